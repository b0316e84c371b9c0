package locktest

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
)

// RW is a read/write lock with two sides, each of them a Locker.
type RW interface {
	Read() lock.Locker
	Write() lock.Locker
}

// RWHarness creates the locks that [RunRW] tests.
type RWHarness struct {
	// New returns a lock called name, always of the same client.
	New func(name string, opts ...lock.Option) RW

	// Other returns a lock of another client on the same server, as another process would.
	Other func(name string, opts ...lock.Option) RW

	// Watchdog is the watchdog timeout of both clients. Keep it short, such as 1 s, because some
	// tests take several times as long.
	Watchdog time.Duration
}

// rwRules are the rules of a read/write lock in addition to those of each side alone.
var rwRules = []rule{
	{name: "readers share", says: "any number of owners read at once, of the same client and of others", test: readersShare},
	{name: "readers unlock apart", says: "a reader gives back its own hold, once, and no other reader's", test: readersUnlockSeparately},
	{name: "writers are alone", says: "no owner reads or writes while another writes, and none writes while another reads", test: writersAreAlone},
	{name: "many readers and writers", says: "under contention of two clients no caller is inside together with a writer", test: manyReadersAndWriters},
	{name: "tokens of readers", says: "readers have token 0, and the tokens of writers grow, also when readers come in between", test: tokensOfReaders},
	{name: "reading under writing", says: "the owner that writes may read, and each hold counts for itself", test: readingUnderWriting},
	{name: "downgrade", says: "when a writer that also reads stops writing, readers enter at once, and writers do not", test: downgrade},
	{name: "downgraded lease", says: "the reading goes on after the writing, under its own lease", test: downgradedLease},
	{name: "upgrade", says: "an owner that only reads gets ErrUpgrade at once when it asks to write, and goes on reading", test: upgrade},
	{name: "readers enter together", says: "when a writer leaves, all waiting readers enter together", test: readersEnterTogether},
	{name: "readers wait behind a writer", says: "a reader that comes after a waiting writer waits behind it", test: readersWaitBehindAWriter},
	{name: "reentry past a writer", says: "an owner that reads may read once more, also while a writer waits", test: reentryPastAWriter},
	{name: "readers first", says: "with WithReaderPreference a reader does not wait behind a waiting writer", test: readerPreference},
	{name: "readers first for a writer", says: "a writer that waits with WithReaderPreference makes no reader wait", test: readerPreferenceOfAWriter},
	{name: "patient writer", says: "readers wait behind a writer also when it waits for longer than its patience", test: writerTimeout},
	{name: "writer gives up", says: "when a waiting writer gives up, the readers behind it enter", test: writerGivesUp},
	{name: "TryLock of a writer", says: "a TryLock of a writer makes no reader wait", test: tryLockOfAWriter},
	{name: "leases of readers", says: "each reader has a lease of its own, which no other reader lengthens or ends", test: leasesOfReaders},
}

// RunRW tests every rule of a read/write lock, each in a subtest named after it. A failure names
// the rule.
//
//	locktest.RunRW(t, locktest.RWHarness{
//		New:      func(name string, opts ...lock.Option) locktest.RW { return a.NewRWLock(name, opts...) },
//		Other:    func(name string, opts ...lock.Option) locktest.RW { return b.NewRWLock(name, opts...) },
//		Watchdog: time.Second,
//	})
//
// It includes all rules of [Run] for the side that writes. It also includes the rules that apply
// between a reader and a writer, in both directions.
func RunRW(t *testing.T, h RWHarness) {
	for _, p := range rwParts {
		t.Run(strings.ReplaceAll(p.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			try(t, p.rules, p.harness(h), h)
		})
	}
}

// rwPart is a part of RunRW: its rules, and the sides that they test.
type rwPart struct {
	name       string
	rules      []rule
	one, other func(RW) lock.Locker
}

var rwParts = []rwPart{
	{"read and write", rwRules, reads, writes},
	{"write", rules, writes, writes},
	{"read beside write", rulesFor(reading), reads, writes},
	{"write beside read", rulesFor(writing), writes, reads},
}

// harness returns a Harness in which New returns one side of a lock and Other returns one side.
func (p rwPart) harness(h RWHarness) Harness {
	return Harness{
		New:      func(name string, opts ...lock.Option) lock.Locker { return p.one(h.New(name, opts...)) },
		Other:    func(name string, opts ...lock.Option) lock.Locker { return p.other(h.Other(name, opts...)) },
		Watchdog: h.Watchdog,
	}
}

func reads(l RW) lock.Locker  { return l.Read() }
func writes(l RW) lock.Locker { return l.Write() }

// rulesFor returns the rules of Run that also apply between two sides.
func rulesFor(s sides) []rule { return rulesOf(rules, s) }

// rulesOf returns the rules that also apply to s.
func rulesOf(all []rule, s sides) (some []rule) {
	for _, r := range all {
		if r.sides&s != 0 {
			some = append(some, r)
		}
	}
	return some
}

// read and write return the sides of the trial's lock, for the client of New. otherRead and
// otherWrite return them for the other client.
func (t *trial) read(opts ...lock.Option) lock.Locker  { return t.rw.New(t.lock, opts...).Read() }
func (t *trial) write(opts ...lock.Option) lock.Locker { return t.rw.New(t.lock, opts...).Write() }

func (t *trial) otherRead(opts ...lock.Option) lock.Locker { return t.rw.Other(t.lock, opts...).Read() }
func (t *trial) otherWrite(opts ...lock.Option) lock.Locker {
	return t.rw.Other(t.lock, opts...).Write()
}

// waitUntilReadersWait waits until w, a waiting writer, keeps new readers out.
func (t *trial) waitUntilReadersWait(w *waiter) {
	t.Helper()
	for pause := firstPause; ; pause = pause.rest() {
		h, err := t.read().TryLock(t.ctx)
		switch {
		case t.ctx.Err() != nil:
			t.fatal("readers enter although a writer waits")
		case err != nil:
			t.want(err, lock.ErrNotAcquired)
			t.refused("a reader of the other client", t.otherRead())
			return
		}
		t.unlock(h)
		select {
		case <-w.done:
			if t.ctx.Err() == nil {
				t.fatal("the writer did not wait: %v", w.err)
			}
		default:
		}
	}
}

// wantReadersEnter checks that readers of both clients can acquire the lock, immediately and after
// the clock has advanced. The second check is needed because a reader that arrives at the same
// instant as a waiting writer may be admitted.
func (t *trial) wantReadersEnter() {
	t.Helper()
	for range 2 {
		for _, l := range []lock.Locker{t.read(), t.otherRead()} {
			h, err := l.TryLock(t.ctx)
			if err != nil {
				t.broken("a reader should enter: %v", err)
				continue
			}
			t.unlock(h)
		}
		time.Sleep(aWhile / 20)
	}
}

func readersShare(t *trial) {
	l := t.read()
	var holds []lock.Hold
	for _, f := range []func(context.Context) (lock.Hold, error){
		l.Lock, l.Lock, l.TryLock, t.otherRead().Lock, t.otherRead().TryLock, t.read().Lock,
	} {
		h := t.must(f(t.ctx))
		for _, other := range holds {
			one, _ := lockimpl.OwnerFrom(other.Context())
			two, _ := lockimpl.OwnerFrom(h.Context())
			if one == two {
				t.broken("two holds under a plain context have the same owner")
			}
		}
		holds = append(holds, h)
	}
	for _, h := range holds {
		if err := h.Err(); err != nil {
			t.broken("Err of one of %d readers: %v", len(holds), err)
		}
		t.held(t.lock)
		t.unlock(h)
	}
	t.free(t.lock)
}

func readersUnlockSeparately(t *trial) {
	first, second, third := t.must(t.read().Lock(t.ctx)), t.must(t.otherRead().Lock(t.ctx)), t.must(t.read().Lock(t.ctx))
	t.unlock(first)
	for range 3 {
		t.want(first.Unlock(t.ctx), lock.ErrNotHeld)
	}
	t.held(t.lock)
	t.unlock(second)
	t.want(second.Unlock(t.ctx), lock.ErrNotHeld)
	t.held(t.lock)
	if err := third.Err(); err != nil {
		t.broken("the third reader's Err: %v", err)
	}
	t.unlock(third)
	t.free(t.lock)
}

func writersAreAlone(t *trial) {
	clients := []func(string, ...lock.Option) RW{t.rw.New, t.rw.Other}
	for _, one := range clients {
		for _, other := range clients {
			h := t.must(one(t.lock).Write().Lock(t.ctx))
			t.refused("a reader beside a writer", other(t.lock).Read())
			t.refused("a writer beside a writer", other(t.lock).Write())
			t.unlock(h)
			h = t.must(one(t.lock).Read().Lock(t.ctx))
			t.refused("a writer beside a reader", other(t.lock).Write())
			t.unlock(h)
		}
	}
	h := t.must(t.write().Lock(t.ctx))
	c := &crowd{t: t}
	t.waiting(c.come(t.read()), c.come(t.otherRead()), c.come(t.write()), c.come(t.otherWrite()))
	t.unlock(h)
	c.wantAllServed()
	t.free(t.lock)
}

func manyReadersAndWriters(t *trial) {
	var reading, writing atomic.Int32
	var last atomic.Uint64
	var all sync.WaitGroup
	inside := func(l lock.Locker, times int, enter func(lock.Hold), leave func()) {
		all.Go(func() {
			for range times {
				h, err := l.Lock(t.ctx)
				if err != nil {
					t.broken("lock: %v", err)
					return
				}
				enter(h)
				time.Sleep(work)
				leave()
				t.unlock(h)
			}
		})
	}
	for i := range 16 {
		l := t.rw.New(t.lock)
		if i%2 == 1 {
			l = t.rw.Other(t.lock)
		}
		if i < 12 {
			inside(l.Read(), 30, func(lock.Hold) {
				reading.Add(1)
				if n := writing.Load(); n != 0 {
					t.broken("a reader is inside with %d writers", n)
				}
			}, func() { reading.Add(-1) })
			continue
		}
		inside(l.Write(), 15, func(h lock.Hold) {
			if n := writing.Add(1); n != 1 {
				t.broken("%d writers are inside", n)
			}
			if n := reading.Load(); n != 0 {
				t.broken("a writer is inside with %d readers", n)
			}
			if before := last.Swap(h.Token()); before >= h.Token() {
				t.broken("token %d after %d", h.Token(), before)
			}
		}, func() { writing.Add(-1) })
	}
	all.Wait()
	t.free(t.lock)
}

func tokensOfReaders(t *trial) {
	var last uint64
	for range 5 {
		for _, l := range []RW{t.rw.New(t.lock), t.rw.Other(t.lock)} {
			w := t.must(l.Write().Lock(t.ctx))
			if w.Token() <= last {
				t.broken("a writer has token %d after %d", w.Token(), last)
			}
			last = w.Token()
			under := t.must(l.Read().Lock(w.Context()))
			again := t.must(l.Write().Lock(w.Context()))
			if again.Token() != last {
				t.broken("a reentry has token %d, the writer %d", again.Token(), last)
			}
			time.Sleep(work) // otherwise time may not advance
			t.unlock(again, w)
			beside := t.must(l.Read().Lock(t.ctx))
			for _, r := range []lock.Hold{under, beside} {
				if r.Token() != 0 {
					t.broken("a reader has token %d", r.Token())
				}
				t.unlock(r)
			}
		}
	}
}

func readingUnderWriting(t *trial) {
	w := t.must(t.write().Lock(t.ctx))
	r := t.must(t.read().Lock(w.Context()))
	more := t.must(t.read().TryLock(r.Context()))
	again := t.must(t.write().Lock(more.Context())) // it already writes, so this is no upgrade
	for _, h := range []lock.Hold{again, more, r} {
		t.unlock(h)
		t.held(t.lock)
		t.refused("another reader", t.otherRead())
		if err := w.Err(); err != nil {
			t.broken("an inner Unlock ended the writing: %v", err)
		}
	}
	t.unlock(w)
	t.free(t.lock)
}

func downgrade(t *trial) {
	ctx := lock.ContextWithNewOwner(t.ctx)
	w := t.must(t.write().Lock(ctx))
	again := t.must(t.write().Lock(ctx))
	r := t.must(t.read().Lock(ctx))
	readers := []*waiter{t.wait(t.read()), t.wait(t.otherRead()), t.wait(t.otherRead())}
	t.unlock(again)
	t.waiting(readers...)
	t.unlock(w)
	holds := t.got(readers...)
	if err := r.Err(); err != nil {
		t.broken("the end of the writing ended the reading: %v", err)
	}
	t.refused("a writer beside readers", t.write())
	t.held(t.lock)
	t.unlock(holds...)
	t.held(t.lock)
	t.unlock(r)
	t.free(t.lock)
}

func downgradedLease(t *trial) {
	ctx := lock.ContextWithNewOwner(t.ctx)
	w := t.must(t.write(lock.WithFixedLease(t.h.Watchdog / 2)).Lock(ctx))
	r := t.must(t.read().Lock(ctx))
	t.unlock(w)
	t.pass(t.h.Watchdog+t.h.Watchdog/2, r)
	t.held(t.lock)
	t.unlock(r)
	t.free(t.lock)
}

func upgrade(t *trial) {
	ctx := lock.ContextWithNewOwner(t.ctx)
	r := t.must(t.read().Lock(ctx))
	for _, ctx := range []context.Context{ctx, r.Context()} {
		for _, f := range []func(context.Context) (lock.Hold, error){t.write().Lock, t.write().TryLock} {
			h, err := f(ctx)
			if err == nil {
				t.unlock(h)
			}
			t.want(err, lock.ErrUpgrade)
		}
	}
	if err := r.Err(); err != nil {
		t.broken("it no longer reads: %v", err)
	}
	t.held(t.lock)
	t.wantReadersEnter()
	t.unlock(r)
	t.unlock(t.must(t.write().Lock(ctx)))
	t.free(t.lock)
}

func readersEnterTogether(t *trial) {
	w := t.must(t.otherWrite().Lock(t.ctx))
	var readers []*waiter
	for range 5 {
		readers = append(readers, t.wait(t.read()), t.wait(t.otherRead()))
	}
	t.waiting(readers...)
	t.unlock(w)
	t.unlock(t.got(readers...)...) // no reader unlocks before all of them hold the lock
	t.free(t.lock)
}

func readersWaitBehindAWriter(t *trial) {
	for _, writer := range []lock.Locker{t.write(forever), t.otherWrite(forever)} {
		r := t.must(t.read().Lock(t.ctx))
		w := t.wait(writer)
		t.waitUntilReadersWait(w)
		late := []*waiter{t.wait(t.read()), t.wait(t.otherRead())}
		t.waiting(append(late, w)...)
		t.unlock(r)
		wrote := t.got(w)
		t.waiting(late...)
		t.unlock(wrote...)
		t.unlock(t.got(late...)...)
	}
	t.free(t.lock)
}

func reentryPastAWriter(t *trial) {
	for _, writer := range []lock.Locker{t.write(forever), t.otherWrite(forever)} {
		r := t.must(t.read().Lock(t.ctx))
		w := t.wait(writer)
		t.waitUntilReadersWait(w)
		again := t.must(t.read().Lock(r.Context()))
		t.unlock(t.must(t.read().TryLock(again.Context())), again)
		t.waiting(w)
		t.unlock(r)
		t.unlock(t.got(w)...)
	}
	t.free(t.lock)
}

func readerPreference(t *trial) {
	first := lock.WithReaderPreference()
	r := t.must(t.read().Lock(t.ctx))
	w := t.wait(t.otherWrite(forever))
	t.waitUntilReadersWait(w)
	holds := []lock.Hold{r, t.must(t.read(first).Lock(t.ctx)), t.must(t.otherRead(first).TryLock(t.ctx))}
	t.refused("a reader without the option", t.read())
	t.waiting(w)
	t.unlock(holds...)
	wrote := t.got(w)
	t.refused("a reader beside a writer", t.read(first))
	t.unlock(wrote...)
	t.free(t.lock)
}

func readerPreferenceOfAWriter(t *trial) {
	r := t.must(t.read().Lock(t.ctx))
	w := t.wait(t.otherWrite(forever, lock.WithReaderPreference()))
	for end := time.Now().Add(aWhile); time.Now().Before(end); {
		t.wantReadersEnter()
	}
	t.waiting(w)
	t.unlock(r)
	t.unlock(t.got(w)...)
	t.free(t.lock)
}

func writerTimeout(t *trial) {
	r := t.must(t.read().Lock(t.ctx))
	w := t.wait(t.otherWrite(lock.WithWaiterTimeout(t.h.Watchdog)))
	t.waitUntilReadersWait(w)
	t.pass(2*t.h.Watchdog+t.h.Watchdog/2, r)
	t.refused("a reader", t.read())
	t.unlock(r)
	t.unlock(t.got(w)...)
	t.free(t.lock)
}

func writerGivesUp(t *trial) {
	for _, writer := range []lock.Locker{t.write(forever), t.otherWrite(forever)} {
		r := t.must(t.read().Lock(t.ctx))
		w := t.wait(writer)
		t.waitUntilReadersWait(w)
		late := []*waiter{t.wait(t.read()), t.wait(t.otherRead())}
		t.waiting(late...)
		t.gone(w)
		t.unlock(t.got(late...)...)
		t.unlock(r)
	}
	t.free(t.lock)
}

func tryLockOfAWriter(t *trial) {
	r := t.must(t.read().Lock(t.ctx))
	for _, l := range []lock.Locker{t.write(forever), t.otherWrite(forever)} {
		t.refused("a writer beside a reader", l)
		t.wantReadersEnter()
	}
	t.unlock(r)
	t.free(t.lock)
}

func leasesOfReaders(t *trial) {
	short := t.h.Watchdog / 4
	dies := t.must(t.read(lock.WithFixedLease(short)).Lock(t.ctx))
	dead := time.After(short + 50*time.Millisecond) // expired on the server as well
	lives := t.must(t.otherRead().Lock(t.ctx))
	long := t.must(t.read(lock.WithFixedLease(10 * t.h.Watchdog)).Lock(t.ctx)) // longer than the test takes, even on a busy machine

	select {
	case <-dies.Context().Done():
	case <-t.ctx.Done():
		t.fatal("a fixed lease of %v never ended", short)
	}
	<-dead
	t.want(dies.Err(), lock.ErrLost)
	t.want(dies.Unlock(t.ctx), lock.ErrNotHeld, lock.ErrLost)
	t.pass(t.h.Watchdog+t.h.Watchdog/4, lives)
	t.held(t.lock)

	// The long lease remains, and the lock stays held.
	t.unlock(lives)
	t.pass(t.h.Watchdog+t.h.Watchdog/4, long)
	t.held(t.lock)
	t.unlock(long)
	t.free(t.lock)

	// A dead reader does not count as a reader.
	lives = t.must(t.otherRead().Lock(t.ctx))
	dies = t.must(t.read(lock.WithFixedLease(short)).Lock(t.ctx))
	t.pass(short+50*time.Millisecond, lives)
	t.unlock(lives)
	t.free(t.lock)
	t.want(dies.Unlock(t.ctx), lock.ErrNotHeld, lock.ErrLost)
}

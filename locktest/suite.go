package locktest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

// Harness tells Run how to make the locks it tries.
type Harness struct {
	// New returns a lock called name, of a client that stays the same.
	New func(name string, opts ...lock.Option) lock.Locker

	// Other does the same by another client on the same server, as another
	// process would.
	Other func(name string, opts ...lock.Option) lock.Locker

	// Watchdog is the watchdog timeout of both clients. Keep it short, such as
	// a second: some rules take a few of them to show.
	Watchdog time.Duration
}

// rule is one thing that every exclusive lock must keep.
type rule struct {
	name string
	says string
	test func(*trial)
}

// rules in the order of a lock's life.
var rules = []rule{
	{"free lock", "a free lock is granted, and its hold is valid", freeLock},
	{"exclusion", "two holds of different owners are never valid at once", exclusion},
	{"exclusion of goroutines", "goroutines that share a lock value exclude each other", exclusionOfGoroutines},
	{"no accidental re-entry", "a plain context never re-enters, also in the same goroutine", noAccidentalReentry},
	{"re-entry", "under a hold's context the same name re-enters and counts", reentry},
	{"re-entry is per name", "a hold's context does not open other locks", reentryIsPerName},
	{"WithOwner", "holds under one owner may be given back in any order", withOwner},
	{"TryLock", "TryLock answers ErrNotAcquired and does not wait", tryLock},
	{"Lock waits", "Lock gets the lock when its holder unlocks", lockWaits},
	{"first come", "inside a process, who came first is served first", firstCome},
	{"cancelled wait", "a wait that ctx ends matches ErrNotAcquired and ctx.Err(), and leaves nothing", cancelledWait},
	{"limited wait", "a wait that its own limit ends matches ErrNotAcquired and os.ErrDeadlineExceeded, and the limit does not end a hold", limitedWait},
	{"dead context", "under a context that is over, nothing is locked", deadContext},
	{"unlock twice", "the second Unlock answers ErrNotHeld and frees nobody else's lock", unlockTwice},
	{"unlock with a dead context", "Unlock works although its context is over", unlockWithDeadContext},
	{"cause", "the context of a hold says ErrUnlocked after Unlock, and the parent's cause before", cause},
	{"fixed lease", "a fixed lease ends by itself, and the hold is lost", fixedLease},
	{"renewed lease", "without a fixed lease a hold lives as long as it is wanted", renewedLease},
	{"mixed leases", "an inner hold never ends the renewal of the outer one, nor shortens its lease", mixedLeases},
	{"tokens", "tokens grow from holder to holder, and re-entries keep them", tokens},
	{"Do", "Do unlocks after an error and after a panic, and joins errors", do},
	{"names", "odd names are locks of their own or ErrName, never two names on one lock", names},
	{"many", "under contention of two clients nobody is inside with anybody", many},
}

// Run tries every rule that an exclusive lock must keep, each in a subtest
// named after it. A failure says which rule is broken.
func Run(t *testing.T, h Harness) {
	run := fmt.Sprintf("locktest:%08x:", rand.Uint32())
	for _, r := range rules {
		t.Run(strings.ReplaceAll(r.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			r.test(&trial{TB: t, h: h, ctx: ctx, rule: r.says, lock: run + strings.ReplaceAll(r.name, " ", "-")})
		})
	}
}

// trial is one try of one rule.
type trial struct {
	testing.TB
	h    Harness
	ctx  context.Context
	rule string
	lock string // a name that no other rule uses
}

func (t *trial) broken(format string, args ...any) {
	t.Helper()
	t.Errorf("%s.\nRule: %s.", fmt.Sprintf(format, args...), t.rule)
}

func (t *trial) must(h lock.Hold, err error) lock.Hold {
	t.Helper()
	if err != nil {
		t.Fatalf("%v.\nRule: %s.", err, t.rule)
	}
	return h
}

func (t *trial) unlock(h lock.Hold) {
	t.Helper()
	if err := h.Unlock(t.ctx); err != nil {
		t.broken("unlock: %v", err)
	}
}

func (t *trial) want(err error, targets ...error) {
	t.Helper()
	for _, target := range targets {
		if !errors.Is(err, target) {
			t.broken("error %v, want one that matches %v", err, target)
		}
	}
}

// free fails if the lock called name is held.
func (t *trial) free(name string) {
	t.Helper()
	h, err := t.h.Other(name).TryLock(t.ctx)
	if err != nil {
		t.broken("the lock should be free: %v", err)
		return
	}
	t.unlock(h)
}

func (t *trial) held(name string) {
	t.Helper()
	h, err := t.h.Other(name).TryLock(t.ctx)
	if err == nil {
		t.unlock(h)
		t.broken("the lock should be held, and another client got it")
		return
	}
	t.want(err, lock.ErrNotAcquired)
}

func freeLock(t *trial) {
	before := time.Now()
	h := t.must(t.h.New(t.lock).Lock(t.ctx))
	if err := h.Err(); err != nil {
		t.broken("Err of a fresh hold: %v", err)
	}
	if err := h.Context().Err(); err != nil {
		t.broken("Context().Err() of a fresh hold: %v", err)
	}
	if until := h.Until(); !until.After(time.Now()) || until.After(time.Now().Add(t.h.Watchdog)) || until.Before(before) {
		t.broken("Until is %v from now, the lease is %v", time.Until(until), t.h.Watchdog)
	}
	if client, number, ok := strings.Cut(h.Owner(), ":"); !ok || len(client) != 36 || number == "" {
		t.broken("Owner is %q, want <uuid>:<number>", h.Owner())
	}
	if l := t.h.New(t.lock); l.Name() != t.lock {
		t.broken("Name is %q", l.Name())
	}
	t.held(t.lock)
	t.unlock(h)
	t.free(t.lock)
}

func exclusion(t *trial) {
	h := t.must(t.h.New(t.lock).Lock(t.ctx))
	t.held(t.lock)
	t.unlock(h)
	h = t.must(t.h.Other(t.lock).Lock(t.ctx))
	if _, err := t.h.New(t.lock).TryLock(t.ctx); !errors.Is(err, lock.ErrNotAcquired) {
		t.broken("both clients hold it: %v", err)
	}
	t.unlock(h)
}

func exclusionOfGoroutines(t *trial) {
	l := t.h.New(t.lock)
	var inside atomic.Int32
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			for range 5 {
				h, err := l.Lock(t.ctx)
				if err != nil {
					t.broken("lock: %v", err)
					return
				}
				if n := inside.Add(1); n != 1 {
					t.broken("%d inside", n)
				}
				inside.Add(-1)
				t.unlock(h)
			}
		})
	}
	wg.Wait()
}

func noAccidentalReentry(t *trial) {
	l := t.h.New(t.lock)
	h := t.must(l.Lock(t.ctx))
	defer t.unlock(h)
	_, err := l.TryLock(t.ctx)
	t.want(err, lock.ErrNotAcquired)
	ctx, cancel := context.WithTimeout(t.ctx, 50*time.Millisecond)
	defer cancel()
	_, err = l.Lock(ctx)
	t.want(err, lock.ErrNotAcquired, context.DeadlineExceeded)
}

func reentry(t *trial) {
	l := t.h.New(t.lock)
	outer := t.must(l.Lock(t.ctx))
	inner := t.must(t.h.New(t.lock).Lock(outer.Context())) // another handle
	third := t.must(l.TryLock(inner.Context()))
	for _, h := range []lock.Hold{inner, third} {
		if h.Owner() != outer.Owner() {
			t.broken("a re-entry has owner %q, the first hold %q", h.Owner(), outer.Owner())
		}
	}
	for _, h := range []lock.Hold{third, inner} {
		t.unlock(h)
		t.held(t.lock)
		if err := outer.Err(); err != nil {
			t.broken("an inner Unlock ended the outer hold: %v", err)
		}
	}
	t.unlock(outer)
	t.free(t.lock)
}

func reentryIsPerName(t *trial) {
	mine := t.must(t.h.New(t.lock).Lock(t.ctx))
	defer t.unlock(mine)
	theirs := t.must(t.h.New(t.lock + ":2").Lock(t.ctx))
	defer t.unlock(theirs)
	_, err := t.h.New(t.lock + ":2").TryLock(mine.Context())
	t.want(err, lock.ErrNotAcquired)
}

func withOwner(t *trial) {
	ctx := lock.WithOwner(t.ctx)
	l := t.h.New(t.lock)
	first, second := t.must(l.Lock(ctx)), t.must(l.Lock(ctx))
	t.unlock(first)
	t.held(t.lock)
	if err := second.Err(); err != nil {
		t.broken("the first hold's end ended the second: %v", err)
	}
	if _, err := l.TryLock(lock.WithOwner(ctx)); !errors.Is(err, lock.ErrNotAcquired) {
		t.broken("a new owner below the first re-entered: %v", err)
	}
	t.unlock(second)
	t.free(t.lock)
	again := t.must(l.Lock(ctx)) // the owner may come back
	t.unlock(again)
}

func tryLock(t *trial) {
	h := t.must(t.h.Other(t.lock).TryLock(t.ctx))
	_, err := t.h.New(t.lock).TryLock(t.ctx)
	t.want(err, lock.ErrNotAcquired)
	var e *lock.Error
	if !errors.As(err, &e) || e.Op != "trylock" || e.Name != t.lock {
		t.broken("error %#v does not name the operation and the lock", err)
	}
	t.unlock(h)
}

func lockWaits(t *trial) {
	h := t.must(t.h.Other(t.lock).Lock(t.ctx))
	got := make(chan lock.Hold, 1)
	go func() {
		h, err := t.h.New(t.lock).Lock(t.ctx)
		if err != nil {
			t.broken("the waiter: %v", err)
		}
		got <- h
	}()
	select {
	case next := <-got:
		t.broken("it did not wait")
		got <- next
	case <-time.After(100 * time.Millisecond):
	}
	t.unlock(h)
	if next := <-got; next != nil {
		t.unlock(next)
	}
}

func firstCome(t *trial) {
	l := t.h.New(t.lock)
	h := t.must(l.Lock(t.ctx))
	const waiters = 10
	order := make(chan int, waiters)
	var wg sync.WaitGroup
	for i := range waiters {
		started := make(chan struct{})
		wg.Go(func() {
			close(started)
			h, err := l.Lock(t.ctx)
			if err != nil {
				t.broken("waiter %d: %v", i, err)
				return
			}
			order <- i
			t.unlock(h)
		})
		<-started
		time.Sleep(30 * time.Millisecond) // nothing else tells from outside that it stands in line
	}
	t.unlock(h)
	wg.Wait()
	close(order)
	want := 0
	for i := range order {
		if i != want {
			t.broken("waiter %d was served when it was the turn of %d", i, want)
		}
		want++
	}
}

func cancelledWait(t *trial) {
	h := t.must(t.h.Other(t.lock).Lock(t.ctx))
	why := errors.New("the request went away")
	ctx, cancel := context.WithCancelCause(t.ctx)
	time.AfterFunc(50*time.Millisecond, func() { cancel(why) })
	_, err := t.h.New(t.lock).Lock(ctx)
	t.want(err, lock.ErrNotAcquired, context.Canceled, why)
	t.unlock(h)
	t.free(t.lock)
}

func limitedWait(t *trial) {
	limit := 50 * time.Millisecond
	other := t.must(t.h.Other(t.lock).Lock(t.ctx))
	_, err := t.h.New(t.lock, lock.WithWait(limit)).Lock(t.ctx)
	t.want(err, lock.ErrNotAcquired, os.ErrDeadlineExceeded)
	t.unlock(other)
	t.free(t.lock)
	h := t.must(t.h.New(t.lock, lock.WithWait(t.h.Watchdog/4)).Lock(t.ctx))
	select {
	case <-h.Context().Done():
		t.broken("the hold ended with the limit of its wait: %v", h.Err())
	case <-time.After(t.h.Watchdog / 2):
	}
	t.unlock(h)
	_, err = t.h.New(t.lock, lock.WithWait(0)).Lock(t.ctx)
	if err == nil {
		t.broken("a wait of nothing was accepted")
	}
}

func deadContext(t *trial) {
	ctx, cancel := context.WithCancel(t.ctx)
	cancel()
	for _, f := range []func(context.Context) (lock.Hold, error){t.h.New(t.lock).Lock, t.h.New(t.lock).TryLock} {
		_, err := f(ctx)
		t.want(err, lock.ErrNotAcquired, context.Canceled)
	}
	t.free(t.lock)
}

func unlockTwice(t *trial) {
	h := t.must(t.h.New(t.lock).Lock(t.ctx))
	t.unlock(h)
	next := t.must(t.h.Other(t.lock).Lock(t.ctx))
	for range 3 {
		err := h.Unlock(t.ctx)
		t.want(err, lock.ErrNotHeld)
		if errors.Is(err, lock.ErrLost) {
			t.broken("it was given back, not lost: %v", err)
		}
	}
	if _, err := t.h.New(t.lock).TryLock(t.ctx); !errors.Is(err, lock.ErrNotAcquired) {
		t.broken("the second Unlock freed another owner's lock: %v", err)
	}
	t.unlock(next)
}

func unlockWithDeadContext(t *trial) {
	ctx, cancel := context.WithCancel(t.ctx)
	h := t.must(t.h.New(t.lock).Lock(ctx))
	cancel()
	if err := h.Unlock(ctx); err != nil {
		t.broken("unlock: %v", err)
	}
	t.free(t.lock)
}

func cause(t *trial) {
	why := errors.New("the parent's own reason")
	parent, cancel := context.WithCancelCause(t.ctx)
	h := t.must(t.h.New(t.lock).Lock(parent))
	child, stop := context.WithTimeout(h.Context(), time.Hour)
	defer stop()
	t.unlock(h)
	for _, err := range []error{h.Err(), context.Cause(h.Context()), context.Cause(child)} {
		t.want(err, lock.ErrUnlocked)
	}
	if err := h.Context().Err(); err != context.Canceled {
		t.broken("Context().Err() is %v, want context.Canceled", err)
	}
	h = t.must(t.h.New(t.lock).Lock(parent))
	cancel(why)
	t.want(context.Cause(h.Context()), why)
	t.held(t.lock) // the end of a context is not an Unlock
	t.unlock(h)
}

func fixedLease(t *trial) {
	lease := t.h.Watchdog / 4
	h := t.must(t.h.New(t.lock, lock.WithLease(lease)).Lock(t.ctx))
	next := t.must(t.h.Other(t.lock).Lock(t.ctx)) // gets it when the lease is over
	if h.Until().After(time.Now()) {
		t.broken("another got it %v before Until", time.Until(h.Until()))
	}
	select {
	case <-h.Context().Done():
	case <-t.ctx.Done():
	}
	t.want(h.Err(), lock.ErrLost)
	t.want(h.Unlock(t.ctx), lock.ErrNotHeld, lock.ErrLost)
	if _, err := t.h.New(t.lock).TryLock(t.ctx); !errors.Is(err, lock.ErrNotAcquired) {
		t.broken("the stale holder's Unlock freed another owner's lock: %v", err)
	}
	t.unlock(next)
	_, err := t.h.New(t.lock, lock.WithLease(time.Millisecond)).Lock(t.ctx)
	if err == nil {
		t.broken("a lease that nobody can keep was accepted")
	}
}

func renewedLease(t *trial) {
	h := t.must(t.h.New(t.lock).Lock(t.ctx))
	first := h.Until()
	select {
	case <-h.Context().Done():
		t.broken("lost: %v", h.Err())
	case <-time.After(2*t.h.Watchdog + t.h.Watchdog/2):
	}
	if !h.Until().After(first.Add(t.h.Watchdog)) {
		t.broken("Until moved by only %v in two and a half leases", h.Until().Sub(first))
	}
	t.held(t.lock)
	t.unlock(h)
	t.free(t.lock)
}

func mixedLeases(t *trial) {
	ctx := lock.WithOwner(t.ctx)
	outer := t.must(t.h.New(t.lock).Lock(ctx))
	inner := t.must(t.h.New(t.lock, lock.WithLease(t.h.Watchdog/4)).Lock(ctx))
	if left := time.Until(outer.Until()); left < t.h.Watchdog/2 {
		t.broken("the inner lease shortened the outer one to %v", left)
	}
	t.unlock(inner)
	select {
	case <-outer.Context().Done():
		t.broken("the outer hold was lost: %v", outer.Err())
	case <-time.After(2 * t.h.Watchdog):
	}
	t.held(t.lock)
	t.unlock(outer)
}

func tokens(t *trial) {
	var last uint64
	for i := range 20 {
		l := t.h.New(t.lock)
		if i%2 == 1 {
			l = t.h.Other(t.lock)
		}
		h := t.must(l.Lock(t.ctx))
		if h.Token() <= last {
			t.broken("token %d after %d", h.Token(), last)
		}
		last = h.Token()
		again := t.must(l.Lock(h.Context()))
		if again.Token() != last {
			t.broken("a re-entry has token %d, the hold %d", again.Token(), last)
		}
		t.unlock(again)
		t.unlock(h)
	}
}

func do(t *trial) {
	l := t.h.New(t.lock)
	wrong := errors.New("the work failed")
	err := lock.Do(t.ctx, l, func(ctx context.Context) error {
		t.held(t.lock)
		return lock.Do(ctx, l, func(context.Context) error { return wrong }) // re-enters
	})
	t.want(err, wrong)
	t.free(t.lock)
	func() {
		defer func() {
			if recover() == nil {
				t.broken("Do swallowed the panic")
			}
		}()
		_ = lock.Do(t.ctx, l, func(context.Context) error { panic("at work") })
	}()
	t.free(t.lock)
	err = lock.Do(t.ctx, t.h.New(t.lock, lock.WithLease(2*lock.MinLease)), func(ctx context.Context) error {
		select {
		case <-ctx.Done():
		case <-t.ctx.Done():
		}
		return nil
	})
	t.want(err, lock.ErrLost)
}

func names(t *trial) {
	odd := []string{"a b", "a:b:c", "ä€😀", "{tag}:x", "x{tag}y", "a{b}{c}", "\x00\r\n\"'\\", "\xff\xfe", strings.Repeat("n", 1000)}
	bad := []string{"", "a{b", "a}b", "{}x", "}", "{", "a{}b", strings.Repeat("n", 1<<20)}
	var holds []lock.Hold
	for _, name := range odd {
		h, err := t.h.New(t.lock + name).TryLock(t.ctx)
		if err != nil {
			t.broken("name %.40q: %v", name, err)
			continue
		}
		holds = append(holds, h)
		t.held(t.lock + name)
	}
	for _, h := range holds {
		t.unlock(h)
	}
	for _, name := range bad {
		if name != "" {
			name = t.lock + name
		}
		for _, f := range []func(context.Context) (lock.Hold, error){t.h.New(name).Lock, t.h.New(name).TryLock} {
			_, err := f(t.ctx)
			if !errors.Is(err, lock.ErrName) {
				t.broken("name %.40q: %v, want ErrName", name, err)
			}
		}
	}
}

func many(t *trial) {
	var inside atomic.Int32
	var last atomic.Uint64
	var wg sync.WaitGroup
	for i := range 16 {
		l := t.h.New(t.lock)
		if i%2 == 1 {
			l = t.h.Other(t.lock)
		}
		wg.Go(func() {
			for range 25 {
				h, err := l.Lock(t.ctx)
				if err != nil {
					t.broken("lock: %v", err)
					return
				}
				if n := inside.Add(1); n != 1 {
					t.broken("%d inside", n)
				}
				if before := last.Swap(h.Token()); before >= h.Token() {
					t.broken("token %d after %d", h.Token(), before)
				}
				inside.Add(-1)
				t.unlock(h)
			}
		})
	}
	wg.Wait()
	t.free(t.lock)
}

package rwlock_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/kindtest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/rwlock"
)

// These tests show what readers and writers do when some of them die, give up or stop
// writing.

// forever is a patience that no test outlasts: a wish that is gone
// was withdrawn.
var forever = lock.WithWaiterTimeout(time.Hour)

// orders is the lock of these tests, made by a client of its own.
func orders(t *testing.T, s *redistest.Server, opts ...lock.Option) *rwlock.Lock {
	t.Helper()
	return kindtest.NewClient(t, s.Client(t)).NewRWLock("orders", opts...)
}

func exists(t *testing.T, s *redistest.Server, key string) bool {
	t.Helper()
	return kindtest.Number(s.Do(t, "EXISTS", key)) == 1
}

// left returns the time to live of a key; less than zero if it has no expiry.
func left(t *testing.T, s *redistest.Server, key string) time.Duration {
	t.Helper()
	return time.Duration(kindtest.Number(s.Do(t, "PTTL", key))) * time.Millisecond
}

// A reader dies, and another one reads on for longer than the dead one's lease.
// When the living one leaves, a writer enters: one that comes then,
// and one that has been waiting.
func TestDeadReader(t *testing.T) {
	for _, waits := range []bool{false, true} {
		name := "a writer comes"
		if waits {
			name = "a writer waits"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			p := redistest.NewProxy(t, s.Addr())
			mortal := kindtest.NewClient(t, s.Client(t, redistest.Via(p)), kindtest.Fast...)
			alive := kindtest.NewClient(t, s.Client(t), kindtest.Fast...)
			dead := kindtest.MustLock(t, mortal.NewRWLock("orders").Read())
			reader := kindtest.MustLock(t, alive.NewRWLock("orders").Read())
			l := orders(t, s, forever)
			heard := kindtest.Listen(t, s, reading.Channel("orders"))

			p.Refuse(true)
			p.CutAll()
			var waiter *kindtest.Waiter
			if waits {
				waiter = kindtest.Go(t.Context(), l.Write())
			}
			kindtest.WaitFor(t, "the dead reader's lease is over", func() bool { return !exists(t, s, leaseKey("orders", dead.Owner(), 1)) })
			first := reader.Until()
			kindtest.WaitFor(t, "the other reads on", func() bool { return reader.Until().After(first.Add(kindtest.WatchdogTimeout)) })
			state, err := l.Inspect(t.Context())
			if err != nil || len(state.Holders) != 1 || state.HoldCount(reader.Owner()) != 1 {
				t.Errorf("Inspect: %+v, %v, want only the living reader", state, err)
			}
			if waits && !waiter.Waits() {
				t.Fatalf("it writes beside a reader: %v", waiter.Err(t))
			}

			kindtest.MustUnlock(t, reader)
			if waits {
				kindtest.WaitFor(t, "the writer is told", func() bool { return slices.Equal(heard.On(reading.Channel("orders")), []string{"0"}) })
				kindtest.MustUnlock(t, waiter.Hold(t))
			} else {
				h, err := l.Write().TryLock(t.Context())
				if err != nil {
					t.Fatalf("nobody reads any more: %v", err)
				}
				kindtest.MustUnlock(t, h)
			}
			kindtest.WantEmpty(t, s)
			p.Refuse(false)
			kindtest.Lost(t, dead)
		})
	}
}

// process is a client with waiting readers. Its questions go over a connection of its own.
type process struct {
	s     *redistest.Server
	wire  *redistest.Proxy
	c     *client.Client
	asked atomic.Int64 // how many questions it has sent
}

const readers = 20

func newProcess(t *testing.T, s *redistest.Server) *process {
	t.Helper()
	p := &process{s: s, wire: redistest.NewProxy(t, s.Addr())}
	p.c = kindtest.NewClient(t, s.Client(t, redistest.Via(p.wire)))
	p.holdReplies(nil, 0)
	return p
}

// holdReplies delays the replies to all questions after the next few, until held is
// closed.
func (p *process) holdReplies(held chan struct{}, after int64) {
	asked := p.asked.Load()
	p.wire.OnRequest(func(req [][]byte) (a redistest.Action) {
		if strings.EqualFold(string(req[0]), "EVALSHA") && p.asked.Add(1) > asked+after && held != nil {
			a.HoldReply = held
		}
		return a
	})
}

// polled waits until the waiters have asked by themselves: their next poll is
// almost a second away.
func (p *process) polled(t *testing.T) {
	t.Helper()
	before := p.asked.Load()
	kindtest.WaitFor(t, "they ask by themselves", func() bool { return p.asked.Load() > before })
}

// park starts readers that have to wait.
func (p *process) park(t *testing.T, opts ...lock.Option) (parked []*kindtest.Waiter) {
	t.Helper()
	for range readers {
		parked = append(parked, kindtest.Go(t.Context(), p.c.NewRWLock("orders", opts...).Read()))
	}
	reading.Waiting(t, p.s, "orders", readers)
	return parked
}

// allIn waits until all of them read, at the same time, and returns their holds.
func allIn(t *testing.T, parked []*kindtest.Waiter) (holds []lock.Hold) {
	t.Helper()
	for _, w := range parked {
		holds = append(holds, w.Hold(t))
	}
	for _, h := range holds {
		if err := h.Err(); err != nil {
			t.Errorf("a reader: %v", err)
		}
	}
	return holds
}

// byMessage fails if a round reaches the parked readers by their
// polls alone, of which there is one a second. A round changes the lock when they
// have just polled, and returns how long after that all of them had entered. A busy
// machine can be late too, but not each time.
func byMessage(t *testing.T, round func() time.Duration) {
	t.Helper()
	var took []time.Duration
	for range 10 {
		took = append(took, round())
		if took[len(took)-1] < 400*time.Millisecond {
			return
		}
	}
	t.Errorf("readers were in after %v: they were not told", took)
}

// A writer that also reads stops writing. All waiting readers enter at once,
// because a message tells them; another writer does not enter.
func TestDowngrade(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l, p := orders(t, s), newProcess(t, s)
	heard := kindtest.Listen(t, s, reading.Channel("orders"))
	byMessage(t, func() time.Duration {
		owner := lock.ContextWithNewOwner(t.Context())
		w, r := kindtest.MustLockUnder(t, owner, l.Write()), kindtest.MustLockUnder(t, owner, l.Read())
		parked := p.park(t)
		told := len(heard.On(reading.Channel("orders")))
		p.polled(t)
		began := time.Now()
		kindtest.MustUnlock(t, w)
		holds := allIn(t, parked)
		took := time.Since(began)
		kindtest.WaitFor(t, "it is published", func() bool { return len(heard.On(reading.Channel("orders"))) > told })
		if got := heard.On(reading.Channel("orders"))[told:]; !slices.Equal(got, []string{"1"}) {
			t.Errorf("the end of the writing told %q, want one 1", got)
		}
		if err := r.Err(); err != nil {
			t.Errorf("the writer does not read on: %v", err)
		}
		if _, err := p.c.NewRWLock("orders").Write().TryLock(t.Context()); !errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("another writer, while %d read: %v", readers+1, err)
		}
		kindtest.MustUnlock(t, append(holds, r)...)
		kindtest.WantEmpty(t, s)
		return took
	})
}

// When a writer leaves, the waiting readers of a process enter together: once one of
// them has entered, all others ask, and do not wait for each other's answers.
func TestReadersComeInTogether(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := newProcess(t, s)
	w := kindtest.MustLock(t, orders(t, s).Write())
	parked := p.park(t, lock.WithFixedLease(time.Minute)) // each has a hold of its own
	held := make(chan struct{})
	p.holdReplies(held, 3) // polls that come between, and the first reader that enters
	kindtest.MustUnlock(t, w)
	kindtest.WaitFor(t, "Redis has all as readers, although most have no answer", func() bool {
		return len(kindtest.Hash(t, s, "orders")) == readers+1 // and the mode
	})
	close(held)
	kindtest.MustUnlock(t, allIn(t, parked)...)
	kindtest.WantEmpty(t, s)
}

// A writer waits behind a reader, and readers wait behind that writer. When the writer
// gives up, they enter at once, because a message tells them.
func TestWriterGivesUp(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	reader := kindtest.MustLock(t, orders(t, s).Read())
	l, p := orders(t, s, forever), newProcess(t, s)
	byMessage(t, func() time.Duration {
		ctx, giveUp := context.WithCancel(t.Context())
		defer giveUp()
		w := kindtest.Go(ctx, l.Write())
		kindtest.WaitFor(t, "it has a wish", func() bool { return exists(t, s, wish("orders")) })
		parked := p.park(t)
		p.polled(t)
		for i, r := range parked {
			if !r.Waits() {
				t.Fatalf("reader %d went past the writer: %v", i, r.Err(t))
			}
		}
		began := time.Now()
		giveUp()
		holds := allIn(t, parked) // although the first one reads on
		took := time.Since(began)
		if err := w.Err(t); !errors.Is(err, context.Canceled) || errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("the writer: %v", err)
		}
		if exists(t, s, wish("orders")) {
			t.Error("readers came in, and the wish is still there")
		}
		kindtest.MustUnlock(t, holds...)
		return took
	})
	kindtest.MustUnlock(t, reader)
	kindtest.WantEmpty(t, s)
}

// The same happens when the writer's client closes.
func TestWriterCloses(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	reader := kindtest.MustLock(t, orders(t, s).Read())
	c := kindtest.NewClient(t, s.Client(t))
	w := kindtest.Go(t.Context(), c.NewRWLock("orders", forever).Write())
	kindtest.WaitFor(t, "it has a wish", func() bool { return exists(t, s, wish("orders")) })
	parked := newProcess(t, s).park(t)
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if exists(t, s, wish("orders")) {
		t.Error("its client is closed, and its wish is still there")
	}
	if err := w.Err(t); !errors.Is(err, lock.ErrClosed) {
		t.Errorf("the writer: %v", err)
	}
	kindtest.MustUnlock(t, append(allIn(t, parked), reader)...)
	kindtest.WantEmpty(t, s)
}

// A reader waits behind a writer, gives up or closes its client, and leaves nothing in Redis.
func TestReaderGivesUp(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	writer := kindtest.MustLock(t, orders(t, s).Write())
	c := kindtest.NewClient(t, s.Client(t))
	ctx, giveUp := context.WithCancel(t.Context())
	for _, end := range []struct {
		does func()
		want error
	}{
		{giveUp, context.Canceled},
		{func() {
			if err := c.Close(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
		}, lock.ErrClosed},
	} {
		r := kindtest.Go(ctx, c.NewRWLock("orders", forever).Read())
		kindtest.WaitFor(t, "it claims a turn", func() bool { return exists(t, s, turn("orders")) })
		end.does()
		if err := r.Err(t); !errors.Is(err, end.want) {
			t.Errorf("the reader: %v, want %v", err, end.want)
		}
		kindtest.WaitFor(t, "it claims no turn", func() bool { return !exists(t, s, turn("orders")) })
		ctx = t.Context()
	}
	kindtest.MustUnlock(t, writer)
	kindtest.WantEmpty(t, s)
}

// A waiting writer dies. Readers that come later wait behind it for its patience at
// most, and then read together with the reader that it waited for.
func TestDeadWriter(t *testing.T) {
	t.Parallel()
	const patience = 3 * time.Second // renewed each second
	s := redistest.Start(t)
	reader := kindtest.MustLock(t, orders(t, s).Read())
	p := redistest.NewProxy(t, s.Addr())
	c := kindtest.NewClient(t, s.Client(t, redistest.Via(p)), client.WithOpTimeout(kindtest.OpTimeout))
	ctx, die := context.WithCancel(t.Context())
	defer die()
	w := kindtest.Go(ctx, c.NewRWLock("orders", lock.WithWaiterTimeout(patience)).Write())
	kindtest.WaitFor(t, "it has a wish", func() bool { return exists(t, s, wish("orders")) })
	l := orders(t, s)
	if _, err := l.Read().TryLock(t.Context()); !errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("past a waiting writer: %v", err)
	}
	newcomer := kindtest.Go(t.Context(), l.Read())

	p.Refuse(true)
	p.CutAll()
	if ahead := left(t, s, wish("orders")); ahead > patience {
		t.Errorf("a dead writer keeps readers waiting for %v, its patience was %v", ahead, patience)
	}
	h := newcomer.Hold(t)
	if exists(t, s, wish("orders")) {
		t.Error("it came in although the wish is there: the wish did nothing")
	}
	if err := reader.Err(); err != nil {
		t.Error(err)
	}
	die()
	if err := w.Err(t); !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("the writer: %v", err)
	}
	kindtest.MustUnlock(t, h, reader)
	p.Refuse(false)
	kindtest.SoonEmpty(t, s)
}

// An owner that reads and asks to write gets an error at once, from either call and however
// the context carries the owner; no command is sent to Redis.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l := orders(t, s, forever)
	owner := lock.ContextWithNewOwner(t.Context())
	alone, other := kindtest.MustLockUnder(t, owner, l.Read()), kindtest.MustLock(t, orders(t, s).Read())
	for _, holds := range [][]lock.Hold{{alone, other}, {alone}} {
		s.ResetStats(t)
		for name, ask := range map[string]func(context.Context) (lock.Hold, error){"Lock": l.Write().Lock, "TryLock": l.Write().TryLock} {
			for how, ctx := range map[string]context.Context{"ContextWithNewOwner": owner, "the hold's context": alone.Context()} {
				ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
				defer cancel()
				if _, err := ask(ctx); !errors.Is(err, lock.ErrUpgrade) {
					t.Errorf("%s under %s with %d readers: %v, want ErrUpgrade", name, how, len(holds), err)
				}
			}
		}
		if n := s.CommandCalls(t, "evalsha"); n != 0 {
			t.Errorf("Redis was asked %d times", n)
		}
		for _, h := range holds {
			if err := h.Err(); err != nil {
				t.Errorf("a reader: %v", err)
			}
		}
		kindtest.MustUnlock(t, holds[len(holds)-1])
	}
	kindtest.WantEmpty(t, s)
	kindtest.MustUnlock(t, kindtest.MustLockUnder(t, owner, l.Write())) // it no longer reads
}

// A reader of Redisson renews its lease of 30 s, which shortens the hash, and dies. A reader of ours with a longer
// lease goes on reading, and no writer comes in beside it.
func TestReader_besideAShorterOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := redistest.NewMini(t)
		rdb := m.Client(t)
		newLock := func() *rwlock.Lock {
			return kindtest.NewClient(t, m.Client(t), client.WithWatchdogTimeout(time.Hour)).NewRWLock("orders")
		}
		h := kindtest.MustLock(t, newLock().Read())
		const java = "550e8400-e29b-41d4-a716-446655440000:42"
		for _, words := range [][]string{
			{"HSET", "orders", java, "1"},
			{"SET", leaseKey("orders", java, 1), "1", "PX", "30000"},
			{"PEXPIRE", "orders", "30000"},
		} {
			if err := rdb.Do(t.Context(), rdb.B().Arbitrary(words...).Build()).Error(); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(31 * time.Second)
		if w, err := newLock().Write().TryLock(t.Context()); err == nil {
			t.Errorf("a writer is in: %v; the reader: %v", w.Err(), h.Err())
		}
		if err := h.Err(); err != nil {
			t.Errorf("the reader: %v", err)
		}
		kindtest.MustUnlock(t, h)
	})
}

// When a writer stops writing and reads on, the lease becomes the reader's:
// it is neither as long as the writer's was, nor ends with it.
func TestDowngrade_lease(t *testing.T) {
	t.Parallel()
	const short, long = 2 * time.Minute, 20 * time.Minute
	for _, c := range []struct{ write, read time.Duration }{{long, short}, {short, long}} {
		s := redistest.Start(t)
		client := kindtest.NewClient(t, s.Client(t))
		l := func(lease time.Duration) *rwlock.Lock { return client.NewRWLock("orders", lock.WithFixedLease(lease)) }
		owner := lock.ContextWithNewOwner(t.Context())
		w := kindtest.MustLockUnder(t, owner, l(c.write).Write())
		r := kindtest.MustLockUnder(t, owner, l(c.read).Read())
		if got := left(t, s, "orders"); got > long || got < long-time.Minute {
			t.Errorf("writing for %v and reading for %v it lives for %v, want the longer", c.write, c.read, got)
		}
		kindtest.MustUnlock(t, w)
		for _, key := range reading.Keys("orders", r.Owner(), 1) {
			if got := left(t, s, key); got > c.read || got < c.read-time.Minute {
				t.Errorf("after the writing, %s lives for %v, want %v", key, got, c.read)
			}
		}
		reading.WantHeld(t, s, "orders", r.Owner(), 1)
		if got := time.Until(r.Until()); got > c.read || got < c.read-time.Minute {
			t.Errorf("after the writing, Until is %v ahead, want %v", got, c.read)
		}
		kindtest.MustUnlock(t, r)
		kindtest.WantEmpty(t, s)
	}
}

// A reader gives one of its holds back. The rest has the longest lease that the reader
// ever asked for. When it has given all back, the lock lives as long as the
// longest lease of the other readers.
func TestPartialRelease_lease(t *testing.T) {
	t.Parallel()
	const short, long = 2 * time.Minute, 20 * time.Minute
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t))
	l := func(lease time.Duration) lock.Locker { return c.NewRWLock("orders", lock.WithFixedLease(lease)).Read() }
	other := kindtest.MustLock(t, l(short))
	for _, first := range []int{0, 1} { // which of the two is given back first
		owner := lock.ContextWithNewOwner(t.Context())
		holds := []lock.Hold{kindtest.MustLockUnder(t, owner, l(long)), kindtest.MustLockUnder(t, owner, l(short))}
		kindtest.MustUnlock(t, holds[first])
		rest := holds[1-first]
		for _, key := range reading.Keys("orders", rest.Owner(), 1) {
			if got := left(t, s, key); got > long || got < long-time.Minute {
				t.Errorf("%s lives for %v, want %v", key, got, long)
			}
		}
		if second := leaseKey("orders", rest.Owner(), 2); exists(t, s, second) {
			t.Errorf("%s is there, and its owner reads once", second)
		}
		kindtest.MustUnlock(t, rest)
		for _, key := range reading.Keys("orders", other.Owner(), 1) {
			if got := left(t, s, key); got > short || got < short-time.Minute {
				t.Errorf("when the long reader left, %s lives for %v, want %v", key, got, short)
			}
		}
		reading.WantHeld(t, s, "orders", other.Owner(), 1)
	}
	kindtest.MustUnlock(t, other)
	kindtest.WantEmpty(t, s)
}

// The server stands still while readers wait behind a writer that waits behind a
// reader, for longer than the writer's patience. All of them are served, and nothing
// is left.
func TestServerFrozen_behindAWriter(t *testing.T) {
	t.Parallel()
	const patience = time.Second / 2
	s := redistest.Start(t)
	reader := kindtest.MustLock(t, orders(t, s).Read())
	var waiters []*kindtest.Waiter
	for range 2 {
		c := kindtest.NewClient(t, s.Client(t))
		l := c.NewRWLock("orders", lock.WithWaiterTimeout(patience))
		waiters = append(waiters, kindtest.Go(t.Context(), l.Write()), kindtest.Go(t.Context(), l.Read()), kindtest.Go(t.Context(), l.Read()))
	}
	kindtest.WaitFor(t, "a writer has a wish", func() bool { return exists(t, s, wish("orders")) })
	s.Freeze(t)
	<-time.After(client.DefaultOpTimeout + patience) // the time for which the server stands still
	s.Thaw(t)
	kindtest.MustUnlock(t, reader)
	kindtest.ServeAll(t, waiters...)
	kindtest.SoonEmpty(t, s)
}

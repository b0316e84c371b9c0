package rwlock_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/kindtest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/rwlock"
)

// These tests show what readers and writers do when some of them die, stop waiting or stop writing.

// forever is a waiter timeout that no test exceeds: a missing writer intent was removed by its writer.
var forever = lock.WithWaiterTimeout(time.Hour)

// orders is the lock of these tests, created by a separate client.
func orders(t *testing.T, s *redistest.Server, opts ...lock.Option) *rwlock.Lock {
	t.Helper()
	return kindtest.NewClient(t, s.Client(t)).NewRWLock("orders", opts...)
}

func exists(t *testing.T, s *redistest.Server, key string) bool {
	t.Helper()
	return kindtest.Number(s.Do(t, "EXISTS", key)) == 1
}

// left returns the time to live of a key; negative if it has no expiry.
func left(t *testing.T, s *redistest.Server, key string) time.Duration {
	t.Helper()
	return time.Duration(kindtest.Number(s.Do(t, "PTTL", key))) * time.Millisecond
}

// A reader dies, and another one reads for longer than the lease of the dead one. When the living one leaves, a writer
// enters, whether it comes then or has been waiting.
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
			received := kindtest.Listen(t, s, reading.Channel("orders"))

			p.Refuse(true)
			p.CutAll()
			var waiter *kindtest.Waiter
			if waits {
				waiter = kindtest.Go(t.Context(), l.Write())
			}
			kindtest.WaitFor(t, "the dead reader's lease has expired", func() bool { return !exists(t, s, leaseKey("orders", dead.Owner(), 1)) })
			first := reader.Until()
			kindtest.WaitFor(t, "the other reads on", func() bool { return reader.Until().After(first.Add(kindtest.WatchdogTimeout)) })
			state, err := l.Inspect(t.Context())
			if err != nil || len(state.Holders) != 1 || state.HoldCount(reader.Owner()) != 1 {
				t.Errorf("Inspect: %+v, %v, want only the living reader", state, err)
			}
			if waits && !waiter.Waits() {
				t.Fatalf("a writer was admitted while a reader has the lock: %v", waiter.Err(t))
			}

			kindtest.MustUnlock(t, reader)
			if waits {
				kindtest.WaitFor(t, "the writer is notified", func() bool { return slices.Equal(received.On(reading.Channel("orders")), []string{"0"}) })
				kindtest.MustUnlock(t, waiter.Hold(t))
			} else {
				h, err := l.Write().TryLock(t.Context())
				if err != nil {
					t.Fatalf("no reader is left: %v", err)
				}
				kindtest.MustUnlock(t, h)
			}
			kindtest.WantEmpty(t, s)
			p.Refuse(false)
			kindtest.Lost(t, dead)
		})
	}
}

// process is a client with waiting readers.
type process struct {
	s *redistest.Server
	c *client.Client
}

const readers = 20

func newProcess(t *testing.T, s *redistest.Server) *process {
	t.Helper()
	return &process{s, kindtest.NewClient(t, s.Client(t))}
}

// park starts readers that must wait.
func (p *process) park(t *testing.T, opts ...lock.Option) (parked []*kindtest.Waiter) {
	t.Helper()
	for n := range readers {
		parked = append(parked, kindtest.Go(t.Context(), p.c.NewRWLock("orders", opts...).Read()))
		if n == 0 {
			reading.Waiting(t, p.s, "orders", 1) // so that the reservation belongs to this reader, and no other process's request returns it
		}
	}
	reading.Waiting(t, p.s, "orders", readers)
	return parked
}

// allIn waits until all of them read at the same time, and returns their holds.
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

// A writer that also reads stops writing, or a waiting writer is canceled. Waiting readers enter immediately because
// of a message, not at their next poll.
func TestReaders_enterByMessage(t *testing.T) {
	for name, before := range map[string]func(t *testing.T, l, other *rwlock.Lock) (leave func(), reader lock.Hold){
		"downgrade": func(t *testing.T, l, _ *rwlock.Lock) (func(), lock.Hold) {
			owner := lock.ContextWithNewOwner(t.Context())
			w := kindtest.MustLockUnder(t, owner, l.Write())
			return func() { kindtest.MustUnlock(t, w) }, kindtest.MustLockUnder(t, owner, l.Read())
		},
		"writer gives up": func(t *testing.T, l, other *rwlock.Lock) (func(), lock.Hold) {
			reader := kindtest.MustLock(t, other.Read())
			ctx, giveUp := context.WithCancel(t.Context())
			kindtest.Go(ctx, l.Write())
			return giveUp, reader
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := redistest.NewMini(t)
				newLock := func() *rwlock.Lock { return kindtest.NewClient(t, m.Client(t)).NewRWLock("orders", forever) }
				leave, reader := before(t, newLock(), newLock())
				time.Sleep(time.Second) // readers wait only behind a writer that arrived before them
				l := newLock()
				var parked []*kindtest.Waiter
				for range readers {
					parked = append(parked, kindtest.Go(t.Context(), l.Read()))
				}
				time.Sleep(1500 * time.Millisecond) // between two polls
				for i, r := range parked {
					if !r.Waits() {
						t.Fatalf("reader %d overtook the writer: %v", i, r.Err(t))
					}
				}
				start := time.Now()
				leave()
				holds := allIn(t, parked)
				if took := time.Since(start); took != 0 {
					t.Errorf("they entered after %v: they were not notified", took)
				}
				kindtest.MustUnlock(t, append(holds, reader)...)
			})
		})
	}
}

// A writer that also reads stops writing. All waiting readers enter; another writer does not enter.
func TestDowngrade(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l, p := orders(t, s), newProcess(t, s)
	received := kindtest.Listen(t, s, reading.Channel("orders"))
	owner := lock.ContextWithNewOwner(t.Context())
	w, r := kindtest.MustLockUnder(t, owner, l.Write()), kindtest.MustLockUnder(t, owner, l.Read())
	parked := p.park(t)
	kindtest.MustUnlock(t, w)
	holds := allIn(t, parked)
	kindtest.WaitFor(t, "it is published", func() bool { return len(received.On(reading.Channel("orders"))) > 0 })
	if got := received.On(reading.Channel("orders")); !slices.Equal(got, []string{"1"}) {
		t.Errorf("the end of the write hold published %q, want one 1", got)
	}
	if err := r.Err(); err != nil {
		t.Errorf("the writer does not continue to read: %v", err)
	}
	if _, err := p.c.NewRWLock("orders").Write().TryLock(t.Context()); !errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("another writer, while %d read: %v", readers+1, err)
	}
	kindtest.MustUnlock(t, append(holds, r)...)
	kindtest.WantEmpty(t, s)
}

// When a writer leaves, the waiting readers of a process enter together: after one of them has entered, the others do not
// wait for each other's replies.
func TestReaders_enterTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := redistest.NewMini(t)
		wire := m.Proxy(t)
		w := kindtest.MustLock(t, kindtest.NewClient(t, m.Client(t)).NewRWLock("orders").Write())
		l := kindtest.NewClient(t, m.Client(t, redistest.Via(wire))).NewRWLock("orders", lock.WithFixedLease(time.Minute)) // each has a separate hold
		var parked []*kindtest.Waiter
		for range readers {
			parked = append(parked, kindtest.Go(t.Context(), l.Read()))
		}
		time.Sleep(time.Second)
		const delay = 10 * time.Millisecond
		wire.OnRequest(func(req [][]byte) (a redistest.Action) {
			if strings.EqualFold(string(req[0]), "EVALSHA") {
				far := make(chan struct{}) // unlike DelayReply, it does not delay the next replies
				time.AfterFunc(delay, func() { close(far) })
				a.HoldReply = far
			}
			return a
		})
		start := time.Now()
		kindtest.MustUnlock(t, w)
		holds := allIn(t, parked)
		if took := time.Since(start); took >= readers*delay {
			t.Errorf("%d readers entered in %v, one after the other, with %v for a reply", readers, took, delay)
		}
		wire.OnRequest(nil)
		kindtest.MustUnlock(t, holds...)
	})
}

// A writer waits behind a reader, and readers wait behind that writer. When the writer is canceled, they enter.
func TestWriter_givesUp(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	reader := kindtest.MustLock(t, orders(t, s).Read())
	l, p := orders(t, s, forever), newProcess(t, s)
	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	w := kindtest.Go(ctx, l.Write())
	kindtest.WaitFor(t, "the writer has an intent", func() bool { return exists(t, s, intentKey("orders")) })
	parked := p.park(t)
	for i, r := range parked {
		if !r.Waits() {
			t.Fatalf("reader %d overtook the writer: %v", i, r.Err(t))
		}
	}
	giveUp()
	holds := allIn(t, parked) // although the first one continues to read
	if err := w.Err(t); !errors.Is(err, context.Canceled) || errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("the writer: %v", err)
	}
	if exists(t, s, intentKey("orders")) {
		t.Error("readers entered, and the intent still exists")
	}
	kindtest.MustUnlock(t, append(holds, reader)...)
	kindtest.WantEmpty(t, s)
}

// The same if the writer's client is closed.
func TestWriter_clientCloses(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	reader := kindtest.MustLock(t, orders(t, s).Read())
	c := kindtest.NewClient(t, s.Client(t))
	w := kindtest.Go(t.Context(), c.NewRWLock("orders", forever).Write())
	kindtest.WaitFor(t, "the writer has an intent", func() bool { return exists(t, s, intentKey("orders")) })
	parked := newProcess(t, s).park(t)
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if exists(t, s, intentKey("orders")) {
		t.Error("its client is closed, and its intent still exists")
	}
	if err := w.Err(t); !errors.Is(err, lock.ErrClosed) {
		t.Errorf("the writer: %v", err)
	}
	kindtest.MustUnlock(t, append(allIn(t, parked), reader)...)
	kindtest.WantEmpty(t, s)
}

// A reader waits behind a writer, then is canceled or its client is closed, and leaves nothing in Redis.
func TestReader_givesUp(t *testing.T) {
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
		kindtest.WaitFor(t, "the reader has a reservation", func() bool { return exists(t, s, reservationKey("orders")) })
		end.does()
		if err := r.Err(t); !errors.Is(err, end.want) {
			t.Errorf("the reader: %v, want %v", err, end.want)
		}
		kindtest.WaitFor(t, "the reader has no reservation", func() bool { return !exists(t, s, reservationKey("orders")) })
		ctx = t.Context()
	}
	kindtest.MustUnlock(t, writer)
	kindtest.WantEmpty(t, s)
}

// A waiting writer dies. Later readers wait behind it for at most its waiter timeout, and then read together with the
// current reader.
func TestDeadWriter(t *testing.T) {
	t.Parallel()
	const waiterTimeout = 9 * time.Second // renewed every three seconds
	s := redistest.Start(t)
	reader := kindtest.MustLock(t, orders(t, s).Read())
	p := redistest.NewProxy(t, s.Addr())
	c := kindtest.NewClient(t, s.Client(t, redistest.Via(p)), client.WithOpTimeout(kindtest.OpTimeout))
	ctx, die := context.WithCancel(t.Context())
	defer die()
	w := kindtest.Go(ctx, c.NewRWLock("orders", lock.WithWaiterTimeout(waiterTimeout)).Write())
	kindtest.WaitFor(t, "the writer has an intent", func() bool { return exists(t, s, intentKey("orders")) })
	l := orders(t, s)
	if _, err := l.Read().TryLock(t.Context()); !errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("ahead of a waiting writer: %v", err)
	}
	newcomer := kindtest.Go(t.Context(), l.Read())

	p.Refuse(true)
	p.CutAll()
	if ahead := left(t, s, intentKey("orders")); ahead > waiterTimeout {
		t.Errorf("a dead writer blocks readers for %v, its waiter timeout was %v", ahead, waiterTimeout)
	}
	h := newcomer.Hold(t)
	if exists(t, s, intentKey("orders")) {
		t.Error("the reader was admitted although the intent exists")
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

// An owner that reads and requests the write side gets an error immediately, from Lock and TryLock, however the context
// carries the owner. No command is sent.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l := orders(t, s, forever)
	owner := lock.ContextWithNewOwner(t.Context())
	alone, other := kindtest.MustLockUnder(t, owner, l.Read()), kindtest.MustLock(t, orders(t, s).Read())
	for _, holds := range [][]lock.Hold{{alone, other}, {alone}} {
		s.ResetStats(t)
		for name, acquire := range map[string]func(context.Context) (lock.Hold, error){"Lock": l.Write().Lock, "TryLock": l.Write().TryLock} {
			for how, ctx := range map[string]context.Context{"ContextWithNewOwner": owner, "the hold's context": alone.Context()} {
				ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
				defer cancel()
				if _, err := acquire(ctx); !errors.Is(err, lock.ErrUpgrade) {
					t.Errorf("%s under %s with %d readers: %v, want ErrUpgrade", name, how, len(holds), err)
				}
			}
		}
		if n := s.CommandCalls(t, "evalsha"); n != 0 {
			t.Errorf("got %d commands", n)
		}
		for _, h := range holds {
			if err := h.Err(); err != nil {
				t.Errorf("a reader: %v", err)
			}
		}
		kindtest.MustUnlock(t, holds[len(holds)-1])
	}
	kindtest.WantEmpty(t, s)
	kindtest.MustUnlock(t, kindtest.MustLockUnder(t, owner, l.Write())) // the owner no longer reads
}

// A reader of Redisson renews its lease of 30 s, which shortens the expiry of the hash, and dies. A reader of leasehold
// with a longer lease continues to read, and no writer enters.
func TestReader_withAShorterLeaseNextToIt(t *testing.T) {
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

// When a writer stops writing and continues to read, the lock has the reader's lease: it is not as long as the writer's
// lease, and does not end with it.
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
			t.Errorf("write lease %v, read lease %v: the TTL is %v, want the longer", c.write, c.read, got)
		}
		kindtest.MustUnlock(t, w)
		for _, key := range reading.Keys("orders", r.Owner(), 1) {
			if got := left(t, s, key); got > c.read || got < c.read-time.Minute {
				t.Errorf("after the write hold, the TTL of %s is %v, want %v", key, got, c.read)
			}
		}
		reading.WantHeld(t, s, "orders", r.Owner(), 1)
		if got := time.Until(r.Until()); got > c.read || got < c.read-time.Minute {
			t.Errorf("after the write hold, Until is %v ahead, want %v", got, c.read)
		}
		kindtest.MustUnlock(t, r)
		kindtest.WantEmpty(t, s)
	}
}

// A reader releases one of its holds. The others keep the longest lease that the reader has requested. After it
// released all, the lock lives as long as the longest lease of the other readers.
func TestPartialRelease_lease(t *testing.T) {
	t.Parallel()
	const short, long = 2 * time.Minute, 20 * time.Minute
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t))
	l := func(lease time.Duration) lock.Locker { return c.NewRWLock("orders", lock.WithFixedLease(lease)).Read() }
	other := kindtest.MustLock(t, l(short))
	for _, first := range []int{0, 1} { // which of the two is released first
		owner := lock.ContextWithNewOwner(t.Context())
		holds := []lock.Hold{kindtest.MustLockUnder(t, owner, l(long)), kindtest.MustLockUnder(t, owner, l(short))}
		kindtest.MustUnlock(t, holds[first])
		rest := holds[1-first]
		for _, key := range reading.Keys("orders", rest.Owner(), 1) {
			if got := left(t, s, key); got > long || got < long-time.Minute {
				t.Errorf("the TTL of %s is %v, want %v", key, got, long)
			}
		}
		if second := leaseKey("orders", rest.Owner(), 2); exists(t, s, second) {
			t.Errorf("%s is there, and its owner reads once", second)
		}
		kindtest.MustUnlock(t, rest)
		for _, key := range reading.Keys("orders", other.Owner(), 1) {
			if got := left(t, s, key); got > short || got < short-time.Minute {
				t.Errorf("after the long reader left, the TTL of %s is %v, want %v", key, got, short)
			}
		}
		reading.WantHeld(t, s, "orders", other.Owner(), 1)
	}
	kindtest.MustUnlock(t, other)
	kindtest.WantEmpty(t, s)
}

// The server is paused while readers wait behind a writer that waits behind a reader, for longer than the writer's
// waiter timeout. All of them are served, and nothing is left.
func TestServerPaused_behindAWriter(t *testing.T) {
	t.Parallel()
	const waiterTimeout = time.Second / 2
	s := redistest.Start(t)
	reader := kindtest.MustLock(t, orders(t, s).Read())
	var waiters []*kindtest.Waiter
	for range 2 {
		c := kindtest.NewClient(t, s.Client(t))
		l := c.NewRWLock("orders", lock.WithWaiterTimeout(waiterTimeout))
		waiters = append(waiters, kindtest.Go(t.Context(), l.Write()), kindtest.Go(t.Context(), l.Read()), kindtest.Go(t.Context(), l.Read()))
	}
	kindtest.WaitFor(t, "a writer has an intent", func() bool { return exists(t, s, intentKey("orders")) })
	s.Freeze(t)
	<-time.After(client.DefaultOpTimeout + waiterTimeout) // while the server is paused
	s.Thaw(t)
	kindtest.MustUnlock(t, reader)
	kindtest.ServeAll(t, waiters...)
	kindtest.SoonEmpty(t, s)
}

package fairlock_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/kindtest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
)

// These tests show what happens to the queue when a process in it, the server, or the network fails. Waiters have a
// waiter timeout of an hour unless the test depends on it.

// scene is a lock that is held, and two processes for its waiters.
type scene struct {
	queueOf
	holder, a, b *client.Client
	hold         lock.Hold
}

func held(t *testing.T, opts ...client.Option) *scene {
	t.Helper()
	s := redistest.Start(t)
	sc := &scene{
		queueOf: orders(s),
		holder:  kindtest.NewClient(t, s.Client(t), opts...),
		a:       kindtest.NewClient(t, s.Client(t), opts...),
		b:       kindtest.NewClient(t, s.Client(t), opts...),
	}
	sc.hold = kindtest.MustLock(t, sc.holder.NewFairLock("orders"))
	return sc
}

// joinAll puts n waiters into the queue, of the two processes alternately.
func (sc *scene) joinAll(t *testing.T, n int, opts ...lock.Option) (waiters []*kindtest.Waiter) {
	t.Helper()
	for i := range n {
		waiters = append(waiters, sc.join(t, []*client.Client{sc.a, sc.b}[i%2], "orders", opts...))
	}
	return waiters
}

// A waiter that stops waiting leaves the queue immediately, whether its context is canceled or its client is closed.
// The others keep their positions.
func TestWaiter_leavesImmediately(t *testing.T) {
	t.Parallel()
	sc := held(t)
	ctx, cancel := context.WithCancel(t.Context())
	first := sc.join(t, sc.a, "orders", forever)
	second := sc.joinUnder(t, ctx, sc.a, "orders", forever)
	third := sc.join(t, sc.b, "orders", forever)
	owners := sc.owners(t)

	cancel()
	if err := second.Err(t); !errors.Is(err, lock.ErrNotAcquired) || !errors.Is(err, context.Canceled) {
		t.Errorf("the second: %v", err)
	}
	sc.want(t, "the second is gone", 2)
	sc.wantOwners(t, "after the second left", owners[0], owners[2])

	if err := sc.a.Close(t.Context()); err != nil {
		t.Error(err)
	}
	sc.wantOwners(t, "after the first's client closed", owners[2])
	if err := first.Err(t); !errors.Is(err, lock.ErrClosed) {
		t.Errorf("the first: %v", err)
	}
	kindtest.MustUnlock(t, sc.hold)
	serveInOrder(t, third)
	kindtest.WantEmpty(t, sc.s)
}

// The reply to the request that queues a waiter is lost. The waiter retries after another one was queued. It is still
// queued once, at its old position.
func TestLostReply_keepsThePosition(t *testing.T) {
	t.Parallel()
	sc := held(t)
	p := redistest.NewProxy(t, sc.s.Addr())
	c := kindtest.NewClient(t, sc.s.Client(t, redistest.Via(p)))
	before := sc.join(t, sc.a, "orders", forever)
	lost := make(chan struct{})
	p.OnRequest(redistest.Once("EVALSHA", redistest.Action{HoldReply: lost, DropReply: true}))
	it := sc.join(t, c, "orders", forever)
	after := sc.join(t, sc.b, "orders", forever)
	owners := sc.owners(t)
	close(lost)
	kindtest.WaitFor(t, "the waiter is refused and subscribed", func() bool {
		return len(kindtest.Channels(t, sc.s, sc.channel(owners[1]))) == 1
	})
	sc.wantOwners(t, "after the second request", owners...)
	kindtest.MustUnlock(t, sc.hold)
	serveInOrder(t, before, it, after)
	kindtest.WantEmpty(t, sc.s)
}

// The server loses its scripts repeatedly; no waiter loses its position.
func TestScriptFlush_whileQueued(t *testing.T) {
	t.Parallel()
	sc := held(t, kindtest.Patient...)
	kindtest.Flushing(t, sc.s, func() {
		for range 10 {
			waiters := sc.joinAll(t, 5, forever)
			kindtest.MustUnlock(t, sc.hold)
			serveInOrder(t, waiters...)
			sc.hold = kindtest.MustLock(t, sc.holder.NewFairLock("orders"))
		}
	})
	kindtest.MustUnlock(t, sc.hold)
	kindtest.WantEmpty(t, sc.s)
}

// A part of the queue is deleted manually. All waiters are still served, and in order if the list still exists.
func TestDeletedByHand_whileQueued(t *testing.T) {
	for name, keys := range map[string][]string{
		"queue":     {"redisson_lock_queue:{orders}"},
		"deadlines": {"redisson_lock_timeout:{orders}"},
		"both":      {"redisson_lock_queue:{orders}", "redisson_lock_timeout:{orders}"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sc := held(t)
			waiters := sc.joinAll(t, 6, forever)
			sc.s.Do(t, append([]string{"DEL"}, keys...)...)
			sc.want(t, "all are queued again", len(waiters))
			kindtest.MustUnlock(t, sc.hold)
			order := kindtest.ServeAll(t, waiters...)
			if name == "deadlines" && !slices.IsSorted(order) {
				t.Errorf("served in the order %v, although the list was whole", order)
			}
			kindtest.WantEmpty(t, sc.s)
		})
	}
}

// If memory is full, heartbeats still succeed, so no waiter loses its position. After that, all are served in order.
func TestMemoryFull_whileQueued(t *testing.T) {
	t.Parallel()
	const waiterTimeout = 9 * time.Second // a heartbeat every three seconds
	sc := held(t)
	waiters := sc.joinAll(t, 4, lock.WithWaiterTimeout(waiterTimeout))
	owners, before := sc.owners(t), sc.deadlines(t)
	sc.s.Do(t, "CONFIG", "SET", "maxmemory", "100kb")
	kindtest.WaitFor(t, "all sent heartbeats for longer than their waiter timeout", func() bool {
		now := sc.deadlines(t)
		for owner, deadline := range before {
			if now[owner] < deadline+waiterTimeout.Milliseconds() {
				return false
			}
		}
		return true
	})
	sc.wantOwners(t, "after a waiter timeout without memory", owners...)
	sc.s.Do(t, "CONFIG", "SET", "maxmemory", "0")
	kindtest.MustUnlock(t, sc.hold)
	serveInOrder(t, waiters...)
	kindtest.WantEmpty(t, sc.s)
}

// If memory is full when a waiter's turn comes, it continues to wait, and keeps its turn.
func TestMemoryFull_firstInQueue(t *testing.T) {
	t.Parallel()
	sc := held(t)
	waiters := sc.joinAll(t, 4, forever)
	sc.s.Do(t, "CONFIG", "SET", "maxmemory", "100kb")
	sc.s.ResetStats(t)
	kindtest.MustUnlock(t, sc.hold)
	kindtest.WaitFor(t, "they were refused", func() bool { return sc.s.CommandCalls(t, "evalsha") > 4 })
	for i, w := range waiters {
		if !w.Waits() {
			t.Errorf("waiter %d: %v", i, w.Err(t))
		}
	}
	sc.s.Do(t, "CONFIG", "SET", "maxmemory", "0")
	serveInOrder(t, waiters...)
	kindtest.WantEmpty(t, sc.s)
}

// TryLock neither enters the queue nor overtakes, and changes nothing.
func TestTryLock_leavesTheQueueUnchanged(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	q := orders(s)
	c := kindtest.NewClient(t, s.Client(t))
	l := c.NewFairLock("orders")
	refused := func(what string) {
		t.Helper()
		owners, deadlines := q.owners(t), q.deadlines(t)
		hash := kindtest.Hash(t, s, "orders")
		for range 3 {
			if _, err := l.TryLock(t.Context()); !errors.Is(err, lock.ErrNotAcquired) {
				t.Errorf("%s: %v, want ErrNotAcquired", what, err)
			}
		}
		q.wantOwners(t, what, owners...)
		kindtest.WantHash(t, s, "orders", hash)
		for owner, deadline := range q.deadlines(t) {
			if deadlines[owner] != deadline {
				t.Errorf("%s: it moved the deadline of %s by %d ms", what, owner, deadline-deadlines[owner])
			}
		}
	}
	q.put(t, redissonOwner, time.Hour) // its message was lost, and its process sleeps
	refused("free, but a waiter is first")
	s.Do(t, "HSET", "orders", "0b7e2f1a-3c4d-4e5f-8a9b-0c1d2e3f4a5b:1", "1")
	refused("held, and another owner waits")
	s.Do(t, "DEL", "orders")

	// Only living owners count as ahead.
	s.Do(t, "ZADD", q.timeouts(), "1", redissonOwner)
	h, err := l.TryLock(t.Context())
	if err != nil {
		t.Fatalf("behind a dead first waiter: %v", err)
	}
	fair.WantHeld(t, s, "orders", h.Owner(), 1)
	refused("held")
	kindtest.MustUnlock(t, h)
	kindtest.WantEmpty(t, s)
}

// A process with several waiters dies. Together they delay the others by at most one waiter timeout from the last
// heartbeat. The next waiter is served although the release notified a dead one.
func TestDeadWaiters(t *testing.T) {
	t.Parallel()
	const waiterTimeout = 3 * time.Second // a heartbeat per second
	sc := held(t)
	p := redistest.NewProxy(t, sc.s.Addr())
	c := kindtest.NewClient(t, sc.s.Client(t, redistest.Via(p)), kindtest.Fast...)
	ctx, die := context.WithCancel(t.Context())
	defer die()
	var dead []*kindtest.Waiter
	for range 5 {
		dead = append(dead, sc.joinUnder(t, ctx, c, "orders", lock.WithWaiterTimeout(waiterTimeout)))
	}
	owners := sc.owners(t)
	alive := sc.joinAll(t, 2, forever)

	p.Refuse(true)
	p.CutAll()
	deadlines := sc.deadlines(t)
	now := sc.now(t) // the server may execute a heartbeat that had arrived before
	var last int64
	for _, owner := range owners {
		if ahead := deadlines[owner] - now; ahead > waiterTimeout.Milliseconds() {
			t.Errorf("a dead waiter counts as alive for %d ms, want no more than %v", ahead, waiterTimeout)
		}
		last = max(last, deadlines[owner])
	}
	kindtest.MustUnlock(t, sc.hold)
	serveInOrder(t, alive...)
	if now := sc.now(t); now < last {
		t.Errorf("others were served %d ms before the last of the dead counted as dead", last-now)
	}
	kindtest.WantEmpty(t, sc.s)

	die()
	for _, w := range dead {
		if err := w.Err(t); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("a dead waiter: %v", err)
		}
	}
	p.Refuse(false) // the process is reachable again
}

// A release notifies the first in the queue, on the channel of its client, and no other waiter.
func TestRelease_notifiesOnlyTheFirst(t *testing.T) {
	t.Parallel()
	sc := held(t)
	received := kindtest.Listen(t, sc.s, fair.Channel("orders")+"*")
	waiters := sc.joinAll(t, 4, forever)
	owners := sc.owners(t)
	kindtest.MustUnlock(t, sc.hold)
	want := map[string][]string{} // by channel
	for i, w := range waiters {
		h := w.Hold(t)
		sc.s.Do(t, "PUBLISH", fair.Channel("orders")+"end", "0") // after it has arrived, all messages before it have arrived
		kindtest.WaitFor(t, "all messages arrived", func() bool { return len(received.On(fair.Channel("orders")+"end")) == i+1 })
		first := sc.channel(owners[i])
		want[first] = append(want[first], number(owners[i]))
		for _, owner := range owners {
			if got := received.On(sc.channel(owner)); !slices.Equal(got, want[sc.channel(owner)]) {
				t.Errorf("while waiter %d holds the lock, its client received %q, want %q", i, got, want[sc.channel(owner)])
			}
		}
		kindtest.MustUnlock(t, h)
	}
	kindtest.WantEmpty(t, sc.s)
}

// ForceUnlock removes dead owners at the front of the queue and notifies the first living owner. Otherwise the queue
// does not change.
func TestForceUnlock_notifiesTheFirst(t *testing.T) {
	t.Parallel()
	sc := held(t)
	received := kindtest.Listen(t, sc.s, fair.Channel("orders")+"*")
	sc.put(t, redissonOwner, time.Hour)
	waiters := sc.joinAll(t, 2, forever)
	owners := sc.owners(t)
	sc.s.Do(t, "ZADD", sc.timeouts(), "1", redissonOwner) // a dead owner
	if was, err := sc.holder.NewFairLock("orders").ForceUnlock(t.Context()); !was || err != nil {
		t.Fatalf("ForceUnlock: %v, %v", was, err)
	}
	kindtest.WaitFor(t, "the first is notified", func() bool { return slices.Equal(received.On(sc.channel(owners[1])), []string{number(owners[1])}) })
	h := waiters[0].Hold(t)
	sc.wantOwners(t, "after the first was served", owners[2])
	if messages := slices.Concat(received.On(sc.channel(redissonOwner)), received.On(sc.channel(owners[2]))); len(messages) > 0 {
		t.Errorf("others received %q", messages)
	}
	kindtest.Lost(t, sc.hold)
	kindtest.MustUnlock(t, h)
	serveInOrder(t, waiters[1])
	kindtest.WantEmpty(t, sc.s)
}

package locktest

import (
	"context"
	"errors"
	"math/bits"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

// fairRules are the rules of a fair lock in addition to those of Run.
var fairRules = []rule{
	{name: "order", says: "waiters of all clients are served in the order of their arrival", test: order, sides: permits},
	{name: "newcomers", says: "a caller that comes while the lock changes hands does not overtake the queue", test: newcomers, sides: permits},
	{name: "turns", says: "an owner that comes again goes to the end of the queue, in every round", test: turns, sides: permits},
	{name: "reentry past the queue", says: "the holder re-enters at once, and the queue waits on", test: reentryPastTheQueue},
	{name: "TryLock and the queue", says: "TryLock neither enters the queue nor leaves anything there", test: tryLockAndTheQueue, sides: permits},
	{name: "TryLock does not overtake", says: "TryLock never gets the lock while the queue is not empty", test: tryLockDoesNotOvertake, sides: permits},
	{name: "cancelled in the queue", says: "a waiter that is cancelled leaves the queue at once, and the others keep their places", test: canceledInQueue, sides: permits},
	{name: "limited wait in the queue", says: "a waiter whose limit ends leaves the queue at once, and the others keep their places", test: limitedWaitInQueue, sides: permits},
	{name: "cancelled at its turn", says: "when a waiter leaves at its turn, the next one gets the lock", test: canceledWhenFirst, sides: permits},
	{name: "heartbeats", says: "a waiter that waits for longer than its patience keeps its place", test: heartbeats, sides: permits},
	{name: "lease ends", says: "when a holder's lease ends, the next in the queue gets the lock", test: leaseEnds, sides: permits},
	{name: "coming and going", says: "under contention of two clients whose waiters give up at random no two callers are inside together, and the queue is empty in the end", test: joiningAndLeaving, sides: permits},
}

// RunFair tests every rule of a fair lock in addition to those of [Run], each in a subtest named
// after it. Call both:
//
//	h := locktest.Harness{
//		New:      func(name string, opts ...lock.Option) lock.Locker { return a.NewFairLock(name, opts...) },
//		Other:    func(name string, opts ...lock.Option) lock.Locker { return b.NewFairLock(name, opts...) },
//		Watchdog: time.Second,
//		Waiters: func(ctx context.Context, name string) (int, error) {
//			s, err := a.NewFairLock(name).Inspect(ctx)
//			return len(s.Waiters), err
//		},
//	}
//	locktest.Run(t, h)
//	locktest.RunFair(t, h)
//
// The order of arrival is deterministic, because the suite calls Waiters before it starts the next
// waiter.
func RunFair(t *testing.T, h Harness) {
	t.Helper()
	if h.Waiters == nil {
		t.Fatal("locktest: RunFair needs Harness.Waiters, to know the queue")
	}
	try(t, fairRules, h, RWHarness{})
}

// forever is a waiter timeout longer than any test. A waiter that leaves the queue anyway was
// removed from it.
var forever = lock.WithWaiterTimeout(time.Hour)

// client returns New or Other. For i = 0, 1, 2… each client follows both itself and the other one,
// without a repeating pattern.
func (t *trial) client(i int) func(name string, opts ...lock.Option) lock.Locker {
	if bits.OnesCount(uint(i))%2 == 0 {
		return t.h.New
	}
	return t.h.Other
}

func order(t *trial) {
	h := t.must(t.h.New(t.lock).Lock(t.ctx))
	c := &crowd{t: t}
	for i := range 12 {
		c.join(t.client(i)(t.lock))
	}
	t.unlock(h)
	c.want(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
	t.waitQueued(0)
}

func newcomers(t *trial) {
	for i := range 10 {
		h := t.must(t.client(i)(t.lock).Lock(t.ctx))
		c := &crowd{t: t}
		c.join(t.client(i + 1)(t.lock))
		t.unlock(h)
		for range 2 {
			c.come(t.h.New(t.lock))
			c.come(t.h.Other(t.lock))
		}
		if c.wantAllServed(); len(c.order) > 0 && c.order[0] != 0 {
			t.broken("waiters were served in the order %v, want 0 first", c.order)
		}
	}
	t.waitQueued(0)
}

// handedOff is the minimum time of a hold in turns. After a hand-off within a process, the holder is listed among the waiters for
// about 10 ms, and would be counted in place of one that is not queued again yet.
const handedOff = 50 * time.Millisecond

// Each waiter that was served queues again. The lock holder waits until the previous holder is
// queued again, so the next one is determined.
func turns(t *trial) {
	const guests, rounds = 6, 6
	var mu sync.Mutex
	var order []int
	again := guests // number of guests that queue again
	h := t.must(t.h.New(t.lock).Lock(t.ctx))
	var all sync.WaitGroup
	for i := range guests {
		l := t.client(i)(t.lock)
		all.Go(func() {
			for round := range rounds {
				h, err := l.Lock(t.ctx)
				if err != nil {
					t.broken("guest %d: %v", i, err)
					return
				}
				mu.Lock()
				order = append(order, i)
				others := again - 1
				if round == rounds-1 {
					again--
					others = again
				}
				mu.Unlock()
				for range 2 { // the first check may count this guest itself
					time.Sleep(handedOff)
					if err := t.waitQueuedErr(others); err != nil {
						t.broken("while guest %d holds the lock: %v", i, err)
					}
				}
				t.unlock(h)
			}
		})
		t.waitQueued(i + 1)
	}
	t.unlock(h)
	all.Wait()
	for n, i := range order {
		if i != n%guests {
			t.broken("guests were served in the order %v, want 0 to %d in turns", order, guests-1)
			break
		}
	}
	t.waitQueued(0)
}

func reentryPastTheQueue(t *trial) {
	outer := t.must(t.h.New(t.lock).Lock(t.ctx))
	c := &crowd{t: t}
	c.join(t.h.New(t.lock))
	c.join(t.h.Other(t.lock))
	inner := t.must(t.h.New(t.lock).Lock(outer.Context()))
	third := t.must(t.h.New(t.lock).TryLock(inner.Context()))
	t.waitQueued(2)
	t.unlock(third, inner)
	t.held(t.lock)
	if len(c.order) != 0 {
		t.broken("waiter %d was served before the outer hold ended", c.order[0])
	}
	t.unlock(outer)
	c.want(0, 1)
	t.waitQueued(0)
}

func tryLockAndTheQueue(t *trial) {
	h := t.must(t.h.Other(t.lock).Lock(t.ctx))
	try := func(waiters int) {
		t.Helper()
		for _, l := range []lock.Locker{t.h.New(t.lock, forever), t.h.Other(t.lock, forever)} {
			t.refused("a TryLock", l)
			if n, err := t.h.Waiters(t.ctx, t.lock); err != nil || n != waiters {
				t.broken("after a TryLock %d are in the queue (%v), want %d", n, err, waiters)
			}
		}
	}
	try(0)
	c := &crowd{t: t}
	c.join(t.h.New(t.lock))
	try(1)
	t.unlock(h)
	c.want(0)
	t.waitQueued(0)
	t.free(t.lock)
}

// The waiter keeps the lock until it is certain that no TryLock acquired it first.
func tryLockDoesNotOvertake(t *trial) {
	for i := range 10 {
		h := t.must(t.client(i)(t.lock).Lock(t.ctx))
		first := t.wait(t.client(i + 1)(t.lock))
		t.waitQueued(1)
		var overtook atomic.Int32
		var trying sync.WaitGroup
		for _, l := range []lock.Locker{t.h.New(t.lock), t.h.Other(t.lock)} {
			trying.Go(func() {
				for {
					h, err := l.TryLock(t.ctx)
					if err == nil {
						overtook.Add(1)
						t.unlock(h)
						return
					}
					select {
					case <-first.done:
						return
					case <-time.After(work):
					}
				}
			})
		}
		t.unlock(h)
		trying.Wait()
		if n := overtook.Load(); n > 0 {
			t.broken("%d of 2 TryLocks got the lock", n)
		}
		t.unlock(t.got(first)...)
	}
	t.waitQueued(0)
}

func canceledInQueue(t *trial) {
	h := t.must(t.h.New(t.lock).Lock(t.ctx))
	c := &crowd{t: t}
	var waiters []*waiter
	for i := range 8 {
		waiters = append(waiters, c.join(t.client(i)(t.lock, forever)))
	}
	for _, i := range []int{3, 2, 0, 7} { // two in the middle, one of each client, and both ends
		c.leave(waiters[i])
	}
	c.join(t.h.Other(t.lock)) // joins at the end of the queue, which must still be correct
	t.unlock(h)
	c.want(1, 4, 5, 6, 8)
	t.waitQueued(0)
	t.free(t.lock)
}

func limitedWaitInQueue(t *trial) {
	h := t.must(t.h.New(t.lock).Lock(t.ctx))
	c := &crowd{t: t}
	c.join(t.h.Other(t.lock))
	for _, client := range []func(string, ...lock.Option) lock.Locker{t.h.New, t.h.Other} {
		_, err := client(t.lock, forever, lock.WithWait(t.replyTime())).Lock(t.ctx)
		t.want(err, lock.ErrNotAcquired, os.ErrDeadlineExceeded)
		t.waitQueued(1)
	}
	c.join(t.h.New(t.lock))
	t.unlock(h)
	c.want(0, 1)
	t.waitQueued(0)
	t.free(t.lock)
}

// The first waiter is canceled at the same time as the unlock. Whether it is served or not, the
// second one is.
func canceledWhenFirst(t *trial) {
	for i := range 20 {
		h := t.must(t.client(i)(t.lock).Lock(t.ctx))
		c := &crowd{t: t}
		first := c.join(t.client(i+1)(t.lock, forever))
		second := c.join(t.client(i+2)(t.lock, forever))
		time.AfterFunc(time.Duration(rand.IntN(1000))*time.Microsecond, first.cancel)
		t.unlock(h)
		<-second.done
		if second.err != nil {
			t.fatal("the second waiter: %v", second.err)
		}
		c.served.Wait()
		if first.err != nil {
			t.want(first.err, context.Canceled)
		}
	}
	t.waitQueued(0)
	t.free(t.lock)
}

func heartbeats(t *trial) {
	h := t.must(t.h.New(t.lock).Lock(t.ctx))
	c := &crowd{t: t}
	patience := lock.WithWaiterTimeout(t.h.Watchdog)
	c.join(t.h.New(t.lock, patience))
	c.join(t.h.Other(t.lock, patience))
	c.join(t.h.New(t.lock, forever))
	t.pass(2*t.h.Watchdog+t.h.Watchdog/2, h)
	c.join(t.h.Other(t.lock, forever))
	t.unlock(h)
	c.want(0, 1, 2, 3)
	t.waitQueued(0)
}

// The holder does not unlock. Its lease starts when all waiters are in the queue.
func leaseEnds(t *trial) {
	h := t.must(t.h.New(t.lock).Lock(t.ctx))
	fixed := t.wait(t.h.New(t.lock, lock.WithFixedLease(t.h.Watchdog/4)))
	t.waitQueued(1)
	c := &crowd{t: t, line: 1}
	c.join(t.h.Other(t.lock))
	c.join(t.h.New(t.lock))
	t.unlock(h)
	stale := t.got(fixed)[0]
	c.want(0, 1)
	if stale.Until().After(time.Now()) {
		t.broken("others got it %v before Until", time.Until(stale.Until()))
	}
	t.want(stale.Unlock(t.ctx), lock.ErrNotHeld, lock.ErrLost)
	t.waitQueued(0)
}

func joiningAndLeaving(t *trial) {
	var inside atomic.Int32
	var all sync.WaitGroup
	for i := range 12 {
		l := t.client(i)
		all.Go(func() {
			for n := range 12 {
				opts := []lock.Option{forever}
				if n%2 == 0 {
					opts = append(opts, lock.WithWait(time.Millisecond+rand.N(9*time.Millisecond)))
				}
				h, err := l(t.lock, opts...).Lock(t.ctx)
				switch {
				case n%2 == 0 && errors.Is(err, os.ErrDeadlineExceeded):
				case err != nil:
					t.broken("lock: %v", err)
					return
				default:
					if n := inside.Add(1); n != 1 {
						t.broken("%d inside", n)
					}
					time.Sleep(work)
					inside.Add(-1)
					t.unlock(h)
				}
			}
		})
	}
	all.Wait()
	t.waitQueued(0)
	t.free(t.lock)
}

package locktest

import (
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

// fairRules are what a fair lock must keep beyond the rules of Run.
var fairRules = []rule{
	{name: "order", says: "who came first is served first, whichever client it is of", test: order},
	{name: "newcomers", says: "who comes while the lock changes hands does not overtake who stands in line", test: newcomers},
	{name: "turns", says: "who comes again goes to the end of the line, in every round", test: turns},
	{name: "re-entry past the line", says: "the holder re-enters at once, and those in line wait on", test: reentryPastTheLine},
	{name: "TryLock and the line", says: "TryLock neither stands in line nor leaves anything there", test: tryLockAndTheLine},
	{name: "TryLock does not overtake", says: "TryLock never gets the lock while anybody stands in line", test: tryLockDoesNotOvertake},
	{name: "cancelled in line", says: "a waiter that is cancelled leaves the line at once, and the others keep their places", test: cancelledInLine},
	{name: "limited wait in line", says: "a waiter whose own limit ends leaves the line at once, and the others keep their places", test: limitedWaitInLine},
	{name: "cancelled at its turn", says: "a waiter that leaves when its turn comes passes it on", test: cancelledAtItsTurn},
	{name: "heartbeats", says: "a waiter that waits for longer than its patience keeps its place", test: heartbeats},
	{name: "lease ends", says: "when a holder's lease ends, the next in line gets the lock", test: leaseEnds},
	{name: "coming and going", says: "under contention of two clients whose waiters give up at random nobody is inside with anybody, and the line is empty after it", test: comingAndGoing},
}

// RunFair tries every rule that a fair lock must keep beyond those of [Run],
// each in a subtest named after it. Call both:
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
// Who came first is certain: the suite asks Waiters before it lets the next one
// come.
func RunFair(t *testing.T, h Harness) {
	t.Helper()
	if h.Waiters == nil {
		t.Fatal("locktest: RunFair needs Harness.Waiters, to know who stands in line")
	}
	try(t, fairRules, h, RWHarness{})
}

// A waiter with this patience keeps a place that nobody renews for longer than
// any rule takes. Who leaves the line nevertheless was taken out.
var forever = lock.WithPatience(time.Hour)

// client returns New or Other, so that for i = 0, 1, 2… each client comes after
// itself and after the other, in no period.
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
	t.inLine(0)
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
		if c.everybody(); len(c.order) > 0 && c.order[0] != 0 {
			t.broken("waiters were served in the order %v, want 0 first", c.order)
		}
	}
	t.inLine(0)
}

// Everybody who has been served comes again. Who holds the lock waits until the
// one before stands in line again, so it is certain who is next.
func turns(t *trial) {
	const guests, rounds = 6, 6
	var mu sync.Mutex
	var order []int
	again := guests // how many come again
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
				if err := t.inLineErr(others); err != nil {
					t.broken("while guest %d holds the lock: %v", i, err)
				}
				t.unlock(h)
			}
		})
		t.inLine(i + 1)
	}
	t.unlock(h)
	all.Wait()
	for n, i := range order {
		if i != n%guests {
			t.broken("guests were served in the order %v, want 0 to %d in turns", order, guests-1)
			break
		}
	}
	t.inLine(0)
}

func reentryPastTheLine(t *trial) {
	outer := t.must(t.h.New(t.lock).Lock(t.ctx))
	c := &crowd{t: t}
	c.join(t.h.New(t.lock))
	c.join(t.h.Other(t.lock))
	inner := t.must(t.h.New(t.lock).Lock(outer.Context()))
	third := t.must(t.h.New(t.lock).TryLock(inner.Context()))
	t.inLine(2)
	t.unlock(third, inner)
	t.held(t.lock)
	if len(c.order) != 0 {
		t.broken("waiter %d was served before the outer hold ended", c.order[0])
	}
	t.unlock(outer)
	c.want(0, 1)
	t.inLine(0)
}

func tryLockAndTheLine(t *trial) {
	h := t.must(t.h.Other(t.lock).Lock(t.ctx))
	try := func(waiters int) {
		t.Helper()
		for _, l := range []lock.Locker{t.h.New(t.lock, forever), t.h.Other(t.lock, forever)} {
			t.refused("a TryLock", l)
			if n, err := t.h.Waiters(t.ctx, t.lock); err != nil || n != waiters {
				t.broken("after a TryLock %d stand in line (%v), want %d", n, err, waiters)
			}
		}
	}
	try(0)
	c := &crowd{t: t}
	c.join(t.h.New(t.lock))
	try(1)
	t.unlock(h)
	c.want(0)
	t.inLine(0)
	t.free(t.lock)
}

// The one in line has the lock until it is known that no TryLock had it before.
func tryLockDoesNotOvertake(t *trial) {
	for i := range 10 {
		h := t.must(t.client(i)(t.lock).Lock(t.ctx))
		first := t.wait(t.client(i + 1)(t.lock))
		t.inLine(1)
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
			t.broken("%d of 2 who tried got the lock", n)
		}
		t.unlock(t.got(first)...)
	}
	t.inLine(0)
}

func cancelledInLine(t *trial) {
	h := t.must(t.h.New(t.lock).Lock(t.ctx))
	c := &crowd{t: t}
	var waiters []*waiter
	for i := range 8 {
		waiters = append(waiters, c.join(t.client(i)(t.lock, forever)))
	}
	for _, i := range []int{3, 2, 0, 7} { // in the middle, one of each client, and at both ends
		c.leave(waiters[i])
	}
	c.join(t.h.Other(t.lock)) // the end of the line is where it should be
	t.unlock(h)
	c.want(1, 4, 5, 6, 8)
	t.inLine(0)
	t.free(t.lock)
}

func limitedWaitInLine(t *trial) {
	h := t.must(t.h.New(t.lock).Lock(t.ctx))
	c := &crowd{t: t}
	c.join(t.h.Other(t.lock))
	for _, client := range []func(string, ...lock.Option) lock.Locker{t.h.New, t.h.Other} {
		_, err := client(t.lock, forever, lock.WithWait(50*time.Millisecond)).Lock(t.ctx)
		t.want(err, lock.ErrNotAcquired, os.ErrDeadlineExceeded)
		t.inLine(1)
	}
	c.join(t.h.New(t.lock))
	t.unlock(h)
	c.want(0, 1)
	t.inLine(0)
	t.free(t.lock)
}

// The one in front is cancelled at the moment of the unlock. Whether it is served
// or not, the one behind it is.
func cancelledAtItsTurn(t *trial) {
	for i := range 20 {
		h := t.must(t.client(i)(t.lock).Lock(t.ctx))
		c := &crowd{t: t}
		first := c.join(t.client(i+1)(t.lock, forever))
		second := c.join(t.client(i+2)(t.lock, forever))
		time.AfterFunc(time.Duration(rand.IntN(1000))*time.Microsecond, first.cancel)
		t.unlock(h)
		<-second.done
		if second.err != nil {
			t.fatal("the one behind: %v", second.err)
		}
		c.served.Wait()
		if first.err != nil {
			t.want(first.err, lock.ErrNotAcquired)
		}
	}
	t.inLine(0)
	t.free(t.lock)
}

func heartbeats(t *trial) {
	h := t.must(t.h.New(t.lock).Lock(t.ctx))
	c := &crowd{t: t}
	patience := lock.WithPatience(t.h.Watchdog)
	c.join(t.h.New(t.lock, patience))
	c.join(t.h.Other(t.lock, patience))
	c.join(t.h.New(t.lock, forever))
	t.pass(2*t.h.Watchdog+t.h.Watchdog/2, h)
	c.join(t.h.Other(t.lock, forever))
	t.unlock(h)
	c.want(0, 1, 2, 3)
	t.inLine(0)
}

// Nobody unlocks. The lease begins when all stand in line.
func leaseEnds(t *trial) {
	h := t.must(t.h.New(t.lock).Lock(t.ctx))
	fixed := t.wait(t.h.New(t.lock, lock.WithLease(t.h.Watchdog/4)))
	t.inLine(1)
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
	t.inLine(0)
}

func comingAndGoing(t *trial) {
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
	t.inLine(0)
	t.free(t.lock)
}

package locktest

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

// SemaphoreHarness creates the semaphores that [RunSemaphore] tests.
type SemaphoreHarness struct {
	// New returns a handle that acquires n permits of the semaphore called name, which has total
	// permits. The handle is always of the same client.
	New func(name string, total, n int, opts ...lock.Option) lock.Locker

	// Other returns a handle of another client on the same server, as another process would.
	Other func(name string, total, n int, opts ...lock.Option) lock.Locker

	// Watchdog is the watchdog timeout of both clients.
	Watchdog time.Duration

	// Waiters returns the number of queued waiters of the semaphore called name.
	Waiters func(ctx context.Context, name string) (int, error)
}

// RunSemaphore tests every rule of a semaphore, each in a subtest named after it. It includes the
// rules of [Run] and [RunFair] that apply to a semaphore with one permit.
//
//	locktest.RunSemaphore(t, locktest.SemaphoreHarness{
//		New:   func(name string, total, n int, opts ...lock.Option) lock.Locker { return a.NewSemaphore(name, total, opts...).N(n) },
//		Other: func(name string, total, n int, opts ...lock.Option) lock.Locker { return b.NewSemaphore(name, total, opts...).N(n) },
//		Waiters: func(ctx context.Context, name string) (int, error) {
//			s, err := a.NewSemaphore(name, 0).Inspect(ctx)
//			return len(s.Waiters), err
//		},
//		Watchdog: time.Second,
//	})
func RunSemaphore(t *testing.T, h SemaphoreHarness) {
	for name, rules := range semaphoreParts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			try(t, rules, h.one(), RWHarness{})
		})
	}
	t.Run("several_permits", func(t *testing.T) {
		t.Parallel()
		try(t, semaphoreRules, h.one(), RWHarness{})
	})
}

// semaphoreParts are the rules that apply to a semaphore with one permit.
var semaphoreParts = map[string][]rule{
	"one_permit":            rulesOf(rules, permits),
	"one_permit_in_a_queue": rulesOf(fairRules, permits),
}

// one returns a Harness in which each lock is a semaphore with one permit.
func (h SemaphoreHarness) one() Harness {
	return Harness{
		New:      func(name string, opts ...lock.Option) lock.Locker { return h.New(name, 1, 1, opts...) },
		Other:    func(name string, opts ...lock.Option) lock.Locker { return h.Other(name, 1, 1, opts...) },
		Watchdog: h.Watchdog,
		Waiters:  h.Waiters,

		semaphore: &h,
	}
}

// semaphoreRules are the rules of several permits.
var semaphoreRules = []rule{
	{name: "as many", says: "as many callers hold it at once as it has permits, and no more", test: permitsInUse},
	{name: "all or none", says: "a caller that wants several permits gets all of them or none", test: allOrNone},
	{name: "many before few", says: "a caller that wants many permits is not overtaken by those that came later and want fewer", test: manyBeforeFew},
	{name: "no reentry of permits", says: "under a hold's context, Lock takes another permit", test: noReentryOfPermits},
	{name: "never more", says: "under contention never more permits are held than there are, and in the end all are free", test: permitsNeverExceeded},
}

func permitsInUse(t *trial) {
	h := t.h.semaphore
	var holds []lock.Hold
	for i := range 4 {
		l := h.New(t.lock, 4, 1)
		if i%2 == 1 {
			l = h.Other(t.lock, 4, 1)
		}
		holds = append(holds, t.must(l.TryLock(t.ctx)))
	}
	t.refused("a fifth of four", h.New(t.lock, 4, 1))
	w := t.wait(h.Other(t.lock, 4, 1))
	t.waitQueued(1)
	t.unlock(holds[2])
	holds[2] = t.got(w)[0]
	for _, hold := range holds {
		if err := hold.Err(); err != nil {
			t.broken("a hold is over: %v", err)
		}
	}
	t.unlock(holds...)
}

func allOrNone(t *trial) {
	h := t.h.semaphore
	one := t.must(h.New(t.lock, 3, 1).TryLock(t.ctx))
	t.refused("three of two", h.Other(t.lock, 3, 3))
	two := t.must(h.Other(t.lock, 3, 2).TryLock(t.ctx))
	t.refused("one of none", h.New(t.lock, 3, 1))
	t.unlock(one, two)
	t.unlock(t.must(h.New(t.lock, 3, 3).TryLock(t.ctx)))
}

func manyBeforeFew(t *trial) {
	h := t.h.semaphore
	one := t.must(h.New(t.lock, 3, 1).Lock(t.ctx))
	many := t.wait(h.Other(t.lock, 3, 3))
	t.waitQueued(1)
	few := t.wait(h.New(t.lock, 3, 1))
	t.waitQueued(2)
	t.waiting(many, few)
	t.unlock(one)
	all := t.got(many)
	t.waiting(few)
	t.unlock(all...)
	t.unlock(t.got(few)...)
}

func noReentryOfPermits(t *trial) {
	h := t.h.semaphore
	outer := t.must(h.New(t.lock, 2, 1).Lock(t.ctx))
	inner := t.must(h.New(t.lock, 2, 1).TryLock(outer.Context()))
	if _, err := h.New(t.lock, 2, 1).TryLock(inner.Context()); !errors.Is(err, lock.ErrNotAcquired) {
		t.broken("a third of two: %v", err)
	}
	t.unlock(outer)
	if err := context.Cause(inner.Context()); !errors.Is(err, lock.ErrUnlocked) {
		t.broken("the inner hold is under the outer one, whose end left it at %v", err)
	}
	t.unlock(inner)
}

func permitsNeverExceeded(t *trial) {
	h := t.h.semaphore
	const total = 3
	var inside atomic.Int64
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			for range 20 {
				n := 1 + rand.IntN(total)
				l := h.New(t.lock, total, n)
				if i%2 == 1 {
					l = h.Other(t.lock, total, n)
				}
				hold, err := l.Lock(t.ctx)
				if err != nil {
					t.broken("lock: %v", err)
					return
				}
				if now := inside.Add(int64(n)); now > total {
					t.broken("%d permits are held of %d", now, total)
				}
				time.Sleep(work)
				inside.Add(-int64(n))
				t.unlock(hold)
			}
		})
	}
	wg.Wait()
	t.unlock(t.must(h.New(t.lock, total, total).TryLock(t.ctx)))
}

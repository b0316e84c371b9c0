package locktest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/leader"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/ratelimit"
)

// Variables that your test would have.
var (
	t    *testing.T
	a, b *client.Client // two clients of one server, with a watchdog timeout of one second
)

// Two processes, and an hour of renewals that takes no time. In your own file, this is TestReport.
func ExampleServer() {
	testReport := func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := locktest.NewServer(t)
			h, err := s.Client(t).NewLock("report").Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour)
			if _, err := s.Client(t).NewLock("report").TryLock(t.Context()); !errors.Is(err, lock.ErrNotAcquired) {
				t.Errorf("another process: %v", err)
			}
			if err := h.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	testing.RunTests(func(string, string) (bool, error) { return true, nil }, []testing.InternalTest{{Name: "TestReport", F: testReport}})
	// Output:
}

// The rules of an exclusive lock, for your own implementation.
func ExampleRun() {
	locktest.Run(t, locktest.Harness{
		New:      func(name string, opts ...lock.Option) lock.Locker { return a.NewLock(name, opts...) },
		Other:    func(name string, opts ...lock.Option) lock.Locker { return b.NewLock(name, opts...) },
		Watchdog: time.Second,
	})
}

// The rules of a read/write lock.
func ExampleRunRW() {
	locktest.RunRW(t, locktest.RWHarness{
		New:      func(name string, opts ...lock.Option) locktest.RW { return a.NewRWLock(name, opts...) },
		Other:    func(name string, opts ...lock.Option) locktest.RW { return b.NewRWLock(name, opts...) },
		Watchdog: time.Second,
	})
}

// The rules of a semaphore.
func ExampleRunSemaphore() {
	locktest.RunSemaphore(t, locktest.SemaphoreHarness{
		New: func(name string, total, n int, opts ...lock.Option) lock.Locker {
			return a.NewSemaphore(name, total, opts...).N(n)
		},
		Other: func(name string, total, n int, opts ...lock.Option) lock.Locker {
			return b.NewSemaphore(name, total, opts...).N(n)
		},
		Waiters: func(ctx context.Context, name string) (int, error) {
			s, err := a.NewSemaphore(name, 0).Inspect(ctx)
			return len(s.Waiters), err
		},
		Watchdog: time.Second,
	})
}

// The rules of a latch.
func ExampleRunLatch() {
	locktest.RunLatch(t, locktest.LatchHarness{
		New:   func(name string) locktest.Latch { return a.NewLatch(name) },
		Other: func(name string) locktest.Latch { return b.NewLatch(name) },
	})
}

// The rules of a wait group.
func ExampleRunWaitGroup() {
	locktest.RunWaitGroup(t, locktest.WaitGroupHarness{
		New:      func(name string, opts ...lock.Option) locktest.WaitGroup { return a.NewWaitGroup(name, opts...) },
		Other:    func(name string, opts ...lock.Option) locktest.WaitGroup { return b.NewWaitGroup(name, opts...) },
		Watchdog: time.Second,
	})
}

// The rules of a lock and a store for elections.
func ExampleRunElection() {
	locktest.RunElection(t, locktest.ElectionHarness{
		New: func(name string, opts ...lock.Option) (lock.Locker, leader.Store) {
			return a.NewLock(name, opts...), a.NewLeaderStore(name)
		},
		Other: func(name string, opts ...lock.Option) (lock.Locker, leader.Store) {
			return b.NewLock(name, opts...), b.NewLeaderStore(name)
		},
		Watchdog: time.Second,
	})
}

// The rules of a rate limiter.
func ExampleRunLimiter() {
	locktest.RunLimiter(t, locktest.LimiterHarness{
		New: func(name string, limits ...ratelimit.Limit) locktest.Limiter {
			return a.NewRateLimiter(name, ratelimit.FailClosed(), limits...)
		},
		Other: func(name string, limits ...ratelimit.Limit) locktest.Limiter {
			return b.NewRateLimiter(name, ratelimit.FailClosed(), limits...)
		},
	})
}

// The rules of a Bloom filter.
func ExampleRunFilter() {
	locktest.RunFilter(t, locktest.FilterHarness{
		New:   func(name string) locktest.Filter { return a.NewBloomFilter(name) },
		Other: func(name string) locktest.Filter { return b.NewBloomFilter(name) },
	})
}

package latch_test

import (
	"testing"

	"github.com/leasehold-go/leasehold/internal/kindtest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/locktest"
)

func TestRules(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a, b := kindtest.NewRegistered(t, s.Client(t), kindtest.Fast...), kindtest.NewRegistered(t, s.Client(t), kindtest.Fast...)
	t.Run("latch", func(t *testing.T) {
		t.Parallel()
		a, b := kindtest.NewRegistered(t, s.Client(t)), kindtest.NewRegistered(t, s.Client(t)) // with a longer operation timeout, because a latch has no lease
		locktest.RunLatch(t, locktest.LatchHarness{
			New:   func(name string) locktest.Latch { return a.NewLatch(name) },
			Other: func(name string) locktest.Latch { return b.NewLatch(name) },
		})
	})
	t.Run("waitgroup", func(t *testing.T) {
		t.Parallel()
		locktest.RunWaitGroup(t, locktest.WaitGroupHarness{
			New:      func(name string, opts ...lock.Option) locktest.WaitGroup { return a.NewWaitGroup(name, opts...) },
			Other:    func(name string, opts ...lock.Option) locktest.WaitGroup { return b.NewWaitGroup(name, opts...) },
			Watchdog: kindtest.WatchdogTimeout,
		})
	})
}

package semaphore_test

import (
	"context"
	"testing"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/kindtest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/locktest"
)

func TestRules(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rules(t, kindtest.NewRegistered(t, s.Client(t), kindtest.Fast...), kindtest.NewRegistered(t, s.Client(t), kindtest.Fast...))
}

func rules(t *testing.T, a, b *client.Client) {
	maker := func(c *client.Client) func(string, int, int, ...lock.Option) lock.Locker {
		return func(name string, total, n int, opts ...lock.Option) lock.Locker {
			return c.NewSemaphore(name, total, opts...).N(n)
		}
	}
	locktest.RunSemaphore(t, locktest.SemaphoreHarness{
		New:      maker(a),
		Other:    maker(b),
		Watchdog: kindtest.WatchdogTimeout,
		Waiters: func(ctx context.Context, name string) (int, error) {
			s, err := a.NewSemaphore(name, 0).Inspect(ctx)
			return len(s.Waiters), err
		},
	})
}

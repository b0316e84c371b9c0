package locktest

import (
	"context"
	"testing"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
)

type taker func(name string, total, n int, opts ...lock.Option) lock.Locker

// semaphores returns a harness of semaphores that wrap has changed.
func semaphores(wrap func(taker) taker) func(a, b *client.Client) (Harness, RWHarness) {
	of := func(c *client.Client) taker {
		return wrap(func(name string, total, n int, opts ...lock.Option) lock.Locker {
			return c.NewSemaphore(name, total, opts...).N(n)
		})
	}
	return func(a, b *client.Client) (Harness, RWHarness) {
		return SemaphoreHarness{New: of(a), Other: of(b), Watchdog: watchdog, Waiters: func(ctx context.Context, name string) (int, error) {
			s, err := a.NewSemaphore(name, 0).Inspect(ctx)
			return len(s.Waiters), err
		}}.one(), RWHarness{}
	}
}

func TestSemaphoreRules(t *testing.T) {
	t.Parallel()
	for name, rules := range semaphoreParts {
		t.Run(name, func(t *testing.T) { keeps(t, rules, semaphores(func(mk taker) taker { return mk })) })
	}
	keeps(t, semaphoreRules, semaphores(func(mk taker) taker { return mk }))
}

func TestSemaphoreRules_canBeBroken(t *testing.T) {
	t.Parallel()
	testBroken(t, semaphoreRules, []wrong{
		{"there is one permit more", semaphores(func(mk taker) taker {
			return func(name string, total, n int, opts ...lock.Option) lock.Locker { return mk(name, total+1, n, opts...) }
		}), map[string]string{
			"as many":               "a fifth of four got the lock",
			"all or none":           "three of two got the lock",
			"no reentry of permits": "a third of two: <nil>",
			"never more":            "permits are held of 3",
		}},
		{"each caller takes one permit", semaphores(func(mk taker) taker {
			return func(name string, total, n int, opts ...lock.Option) lock.Locker { return mk(name, total, 1, opts...) }
		}), map[string]string{
			"all or none":     "three of two got the lock",
			"never more":      "permits are held of 3",
			"many before few": "are in the queue, want 1",
		}},
	})
}

//go:build linux

package integration_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/semaphore"
	"github.com/redis/rueidis"
)

// The rules of semaphores behind Sentinels and on a cluster, with either way to wake each other, and for a user with the least
// rights.
func TestConformance_semaphore(t *testing.T) {
	t.Parallel()
	const watchdog = 4 * time.Second
	run := func(t *testing.T, connect connector, options ...client.Option) {
		t.Helper()
		options = append([]client.Option{client.WithWatchdogTimeout(watchdog), client.WithOpTimeout(watchdog / 4), client.WithoutRegistry(), client.WithKeyPrefix("orders:")}, options...)
		a, b := ours(t, connect(t), options...), ours(t, connect(t), options...)
		maker := func(c *client.Client) func(string, int, int, ...lock.Option) lock.Locker {
			return func(name string, total, n int, opts ...lock.Option) lock.Locker {
				return c.NewSemaphore(name, total, opts...).N(n)
			}
		}
		locktest.RunSemaphore(t, locktest.SemaphoreHarness{
			New: maker(a), Other: maker(b), Watchdog: watchdog,
			Waiters: func(ctx context.Context, name string) (int, error) {
				s, err := a.NewSemaphore(name, 0).Inspect(ctx)
				return len(s.Waiters), err
			},
		})
	}
	t.Run("sentinel", func(t *testing.T) {
		t.Parallel()
		s := redistest.StartSentinel(t, 1)
		run(t, func(tb testing.TB) rueidis.Client { return s.Client(tb) })
	})
	for name, pubsub := range map[string]client.PubSub{"cluster": client.PubSubSharded, "cluster, plain Pub/Sub": client.PubSubPlain} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := redistest.StartCluster(t)
			run(t, func(tb testing.TB) rueidis.Client { return c.Client(tb) }, client.WithPubSub(pubsub))
		})
	}
}

// Semaphores are held, waited for and given back while their slots move to another node and back: no hold is lost, nothing is
// granted twice, and in the end all permits are free.
func TestSemaphore_movingSlots(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	a, b := ours(t, c.Client(t)), ours(t, c.Client(t))
	const total = 2
	moving := make(chan struct{})
	done := make(chan struct{})
	go func() { // the keys of the semaphore move one by one, in any order
		defer close(done)
		keys := []string{"gpus", "{gpus}:timeout", "leasehold_semaphore_queue:{gpus}", "leasehold_semaphore_alive:{gpus}"}
		for moves := 0; ; moves++ {
			select {
			case <-moving:
				if moves == 0 {
					t.Error("no slot moved")
				}
				return
			case <-time.After(20 * time.Millisecond):
			}
			from := c.Master(t, "gpus")
			m := c.Migrate(t, c.Slot(t, "gpus"), from, another(t, c, from))
			for _, i := range rand.Perm(len(keys)) {
				m.Move(t, keys[i])
			}
			m.Finish(t)
		}
	}()
	results := make(chan error)
	for i := range 6 {
		from := a
		if i%2 == 1 {
			from = b
		}
		go func() {
			results <- func() error {
				for range 60 {
					h, err := from.NewSemaphore("gpus", total).Lock(t.Context())
					if err != nil {
						return err
					}
					time.Sleep(5 * time.Millisecond)
					if err := h.Err(); err != nil {
						return err
					}
					if err := h.Unlock(t.Context()); err != nil {
						return err
					}
				}
				return nil
			}()
		}()
	}
	for range 6 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	close(moving)
	<-done
	var state semaphore.State
	until(t, func() bool {
		var err error
		state, err = a.NewSemaphore("gpus", total).Inspect(t.Context())
		return err == nil && state.Free == total && len(state.Waiters) == 0
	})
	if fmt.Sprint(state.Permits) != "2" {
		t.Errorf("%+v", state)
	}
}

package client_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/ratelimit"
	"github.com/redis/rueidis"
)

// The servers refuse connections. Calls that do not wait fail immediately, despite a long operation timeout and however
// many calls there are. Calls that wait continue.
func TestRefused(t *testing.T) {
	t.Parallel()
	for topology, start := range map[string]func(t *testing.T) (rdb rueidis.Client, kill, restart func()){
		"one server": func(t *testing.T) (rueidis.Client, func(), func()) {
			s := redistest.Start(t)
			return s.Client(t), func() { s.Kill(t) }, func() { s.Restart(t) }
		},
		"Sentinels": func(t *testing.T) (rueidis.Client, func(), func()) {
			s := redistest.StartSentinel(t, 1)
			rdb := s.Client(t)
			return rdb, func() { s.Nodes[0].Kill(t) }, func() { s.Nodes[0].Restart(t) }
		},
		"cluster": func(t *testing.T) (rueidis.Client, func(), func()) {
			c := redistest.StartCluster(t)
			each := func(f func(*redistest.Server)) func() {
				return func() {
					for _, node := range c.Nodes {
						f(node)
					}
				}
			}
			return c.Client(t), each(func(s *redistest.Server) { s.Kill(t) }), each(func(s *redistest.Server) { s.Restart(t) })
		},
	} {
		t.Run(topology, func(t *testing.T) {
			t.Parallel()
			rdb, kill, restart := start(t)
			testRefused(t, rdb, kill, restart)
		})
	}
}

func testRefused(t *testing.T, rdb rueidis.Client, kill, restart func()) {
	const (
		callers   = 100 // of each type of call
		opTimeout = 2 * time.Minute
		soon      = opTimeout / 4 // with slack for a busy machine
	)
	c := open(t, rdb, client.WithWatchdogTimeout(4*opTimeout), client.WithOpTimeout(opTimeout))
	limiter, window := c.NewRateLimiter("calls", ratelimit.FailClosed().After(opTimeout), ratelimit.Limit{Rate: 1, Per: time.Second}), c.NewRedissonRateLimiter("window")
	if _, err := window.Init(t.Context(), 1, time.Second); err != nil {
		t.Fatal(err)
	}
	kinds := map[string]func(name string) lock.Locker{
		"plain":     func(name string) lock.Locker { return c.NewLock(name) },
		"fair":      func(name string) lock.Locker { return c.NewFairLock(name) },
		"read":      func(name string) lock.Locker { return c.NewRWLock(name).Read() },
		"write":     func(name string) lock.Locker { return c.NewRWLock(name).Write() },
		"semaphore": func(name string) lock.Locker { return c.NewSemaphore(name, 1) },
	}
	calls := map[string]func(i int) error{
		"Take":                 func(i int) error { _, err := limiter.Take(t.Context(), fmt.Sprint(i), 1); return err },
		"RedissonLimiter.Take": func(int) error { _, err := window.Take(t.Context(), 1); return err },
		"Inspect":              func(i int) error { _, err := c.NewLock(fmt.Sprint("held:", i)).Inspect(t.Context()); return err },
	}
	for kind, of := range kinds {
		var inner []lock.Hold
		for i := range callers {
			h, err := of(fmt.Sprint("held:", kind, i)).Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			inner = append(inner, h)
		}
		calls["TryLock/"+kind] = func(i int) error { _, err := of(fmt.Sprint("free:", kind, i)).TryLock(t.Context()); return err }
		if kind != "semaphore" { // semaphores are not reentrant
			calls["reentry/"+kind] = func(i int) error { _, err := of(fmt.Sprint("held:", kind, i)).TryLock(inner[i].Context()); return err }
		}
		defer func() { // after all other calls
			var all sync.WaitGroup
			for i, h := range inner {
				all.Go(func() {
					start := time.Now()
					if err := h.Unlock(t.Context()); !errors.Is(err, lock.ErrUnavailable) || time.Since(start) > soon {
						t.Errorf("Unlock of %s %d: %v after %v", kind, i, err, time.Since(start))
					}
				})
			}
			all.Wait()
		}()
	}
	kill()
	ctx, cancel := context.WithCancel(t.Context())
	waits := make(chan error, 1)
	go func() {
		_, err := c.NewLock("waited for").Lock(ctx)
		waits <- err
	}()
	var all sync.WaitGroup
	for name, call := range calls {
		for i := range callers {
			all.Go(func() {
				start := time.Now()
				if err := call(i); !errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrNotAcquired) || time.Since(start) > soon {
					t.Errorf("%s: %v after %v", name, err, time.Since(start))
				}
			})
		}
	}
	all.Wait()
	select {
	case err := <-waits:
		t.Errorf("a Lock ended: %v", err)
	default:
	}
	cancel()
	if err := <-waits; !errors.Is(err, lock.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("a Lock that was canceled: %v", err)
	}
	t.Cleanup(restart) // so that Close is quick: it runs after this, because open registered its cleanup first
}

// One node of a cluster refuses connections. The slot may move to another node, so a call that does not wait retries for
// its operation timeout.
func TestRefused_oneNodeOfACluster(t *testing.T) {
	t.Parallel()
	const opTimeout = time.Second
	cluster := redistest.StartCluster(t)
	c, err := client.New(cluster.Client(t), client.WithOpTimeout(opTimeout), client.WithPubSub(client.PubSubPlain))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) }) // it reports that a node is unavailable
	if err := lock.Do(t.Context(), open(t, cluster.Client(t)).NewLock("orders"), func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
	cluster.Master(t, "orders").Kill(t)
	start := time.Now()
	if _, err := c.NewLock("orders").TryLock(t.Context()); !errors.Is(err, lock.ErrUnavailable) || time.Since(start) < opTimeout/2 {
		t.Errorf("%v after %v", err, time.Since(start))
	}
}

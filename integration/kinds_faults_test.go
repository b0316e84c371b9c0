//go:build linux

package integration_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/leader"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/ratelimit"
)

// How all types behave while slots are migrated, and when a replica takes over.

// keepMoving migrates the slot of keys from master to master, the keys one by one in any order, until stop is called. The
// keys need not exist.
func keepMoving(t *testing.T, c *redistest.Cluster, keys ...string) (stop func()) {
	t.Helper()
	moving, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for moves := 0; ; moves++ {
			select {
			case <-moving:
				if moves == 0 {
					t.Error("no slot moved")
				}
				return
			case <-time.After(20 * time.Millisecond):
			}
			from := c.Master(t, keys[0])
			m := c.Migrate(t, c.Slot(t, keys[0]), from, another(t, c, from))
			for _, i := range rand.Perm(len(keys)) {
				m.Move(t, keys[i])
			}
			m.Finish(t)
		}
	}()
	return func() {
		close(moving)
		<-done
	}
}

// A slot is being migrated for longer than a lease. A plain lock has one key, and works throughout. Scripts of every
// other type name several keys, one of which is missing, so its calls are rejected until the migration ends. Renewals
// name one key, except for readers, which lose the lock.
func TestCluster_openMigration(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	const lease = 12 * time.Second
	us := ours(t, c.Client(t), client.WithWatchdogTimeout(lease), client.WithOpTimeout(lease/4))
	makers := map[string]func(name string) lock.Locker{
		"plain":     func(name string) lock.Locker { return us.NewLock(name) },
		"fenced":    func(name string) lock.Locker { return us.NewLock(name, lock.WithFencing()) },
		"fair":      func(name string) lock.Locker { return us.NewFairLock(name) },
		"read":      func(name string) lock.Locker { return us.NewRWLock(name).Read() },
		"write":     func(name string) lock.Locker { return us.NewRWLock(name).Write() },
		"semaphore": func(name string) lock.Locker { return us.NewSemaphore(name, 1) },
	}
	holds := make(map[string]lock.Hold)
	for k, newLock := range makers {
		h, err := newLock("{m}held-" + k).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		holds[k] = h
	}
	from := c.Master(t, "{m}")
	m := c.Migrate(t, c.Slot(t, "{m}"), from, another(t, c, from))
	granted := make(chan string, len(makers))
	var all sync.WaitGroup
	for k, newLock := range makers {
		all.Go(func() {
			l := newLock("{m}free-" + k)
			h, err := l.TryLock(t.Context())
			if k == "plain" && err != nil || k != "plain" && !errors.Is(err, lock.ErrUnavailable) {
				t.Errorf("%s: TryLock: %v", k, err)
			}
			if err != nil {
				h, err = l.Lock(t.Context())
			}
			if err == nil {
				granted <- k
				err = h.Unlock(t.Context())
			}
			if err != nil {
				t.Errorf("%s: %v", k, err)
			}
		})
	}
	<-holds["read"].Context().Done()
	for k, h := range holds {
		switch err := h.Err(); {
		case k == "read":
			if !errors.Is(err, lock.ErrLost) {
				t.Errorf("the reader: %v", err)
			}
			continue
		case err != nil:
			t.Errorf("%s: %v", k, err)
		}
		if k == "plain" || k == "fenced" {
			if err := h.Unlock(t.Context()); err != nil {
				t.Errorf("%s: %v", k, err)
			}
		}
	}
	if k := <-granted; k != "plain" || len(granted) > 0 {
		t.Errorf("granted during the migration: %s and %d others", k, len(granted))
	}
	m.Finish(t)
	all.Wait()
	for _, k := range []string{"fair", "write", "semaphore"} {
		if err := holds[k].Unlock(t.Context()); err != nil {
			t.Errorf("%s: %v", k, err)
		}
	}
}

// overFailover runs test with both topologies: failover makes a replica that has all earlier writes take over the slot
// of key.
func overFailover(t *testing.T, key string, test func(t *testing.T, a, b *client.Client, failover func())) {
	const lease = 12 * time.Second // longer than a failover takes on a busy machine
	options := []client.Option{client.WithWatchdogTimeout(lease), client.WithOpTimeout(lease / 4)}
	t.Run("sentinel", func(t *testing.T) {
		t.Parallel()
		s := redistest.StartSentinel(t, 2)
		test(t, ours(t, s.Client(t), options...), ours(t, s.Client(t), options...), func() {
			primary := s.Primary(t)
			for _, n := range s.Nodes {
				if n != primary {
					n.WaitUntilFollows(t, primary)
				}
			}
			primary.Do(t, "WAIT", "1", "10000")
			s.Failover(t, primary)
		})
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		c := redistest.StartCluster(t)
		test(t, ours(t, c.Client(t), options...), ours(t, c.Client(t), options...), func() {
			master := c.Master(t, key)
			c.WaitForReplica(t, master)
			c.Failover(t, master)
		})
	})
}

// together runs work in several goroutines, and returns when all have ended.
func together(t *testing.T, n int, work func(i int) error) {
	t.Helper()
	errs := make(chan error)
	for i := range n {
		go func() { errs <- work(i) }()
	}
	for range n {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

// A permit that the new master has is kept across a failover, and a waiter acquires it when it is released.
func TestSemaphore_failover(t *testing.T) {
	t.Parallel()
	overFailover(t, "gpus", func(t *testing.T, a, b *client.Client, failover func()) {
		h, err := a.NewSemaphore("gpus", 1).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		next := make(chan lock.Hold, 1)
		go func() {
			h, err := b.NewSemaphore("gpus", 1).Lock(t.Context())
			if err != nil {
				t.Error(err)
			}
			next <- h
		}()
		until(t, func() bool {
			state, err := a.NewSemaphore("gpus", 1).Inspect(t.Context())
			return err == nil && len(state.Waiters) == 1
		})
		failover()
		renewed := h.Until()
		untilWithin(t, time.Minute, func() bool { return h.Until().After(renewed) || h.Err() != nil })
		if h.Err() != nil || len(next) > 0 {
			t.Errorf("the holder: %v; %d others hold it", h.Err(), len(next))
		}
		if err := h.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if h := soon(t, next); h != nil {
			if err := h.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}

// The limiters admit exactly as many permits as the limits allow, while the slots of their keys are migrated.
func TestRateLimit_movingSlots(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	clients := []*client.Client{ours(t, c.Client(t)), ours(t, c.Client(t))}
	const each, rate = 60, 200
	if _, err := clients[0].NewRedissonRateLimiter("calls").Init(t.Context(), rate, 24*time.Hour); err != nil {
		t.Fatal(err)
	}
	for what, test := range map[string]struct {
		keys []string
		take func(c *client.Client) (ratelimit.Decision, error)
	}{
		"limiter": {[]string{"api:hot"}, func(c *client.Client) (ratelimit.Decision, error) {
			limit := ratelimit.Limit{Rate: rate, Per: 24 * time.Hour}
			return c.NewRateLimiter("api", ratelimit.FailClosed().After(promptTimeout), limit).Take(t.Context(), "hot", 1)
		}},
		"window": {[]string{"calls", "{calls}:value", "{calls}:permits"}, func(c *client.Client) (ratelimit.Decision, error) {
			return c.NewRedissonRateLimiter("calls").Take(t.Context(), 1)
		}},
	} {
		stop := keepMoving(t, c, test.keys...)
		var handedOff atomic.Int64
		together(t, 4, func(i int) error {
			for range each {
				d, err := test.take(clients[i%2])
				if err != nil {
					return fmt.Errorf("%s: %w", what, err)
				}
				handedOff.Add(d.Taken)
				time.Sleep(2 * time.Millisecond)
			}
			return nil
		})
		stop()
		if n := handedOff.Load(); n != rate {
			t.Errorf("%s: %d permits admitted of %d", what, n, rate)
		}
	}
}

// Used quota stays used across a failover to a replica that has it.
func TestRateLimit_failover(t *testing.T) {
	t.Parallel()
	overFailover(t, "{x}", func(t *testing.T, a, b *client.Client, failover func()) {
		limit := ratelimit.Limit{Rate: 10, Per: 24 * time.Hour}
		limiter := func(c *client.Client) *ratelimit.Limiter {
			return c.NewRateLimiter("{x}api", ratelimit.FailClosed().After(5*time.Second), limit)
		}
		if _, err := a.NewRedissonRateLimiter("x").Init(t.Context(), 10, 24*time.Hour); err != nil {
			t.Fatal(err)
		}
		d, err := limiter(a).Take(t.Context(), "hot", 8)
		w, err2 := a.NewRedissonRateLimiter("x").Take(t.Context(), 8)
		if err != nil || err2 != nil || !d.OK || !w.OK {
			t.Fatal(d, err, w, err2)
		}
		failover()
		for _, c := range []*client.Client{a, b} {
			l := limiter(c)
			untilWithin(t, time.Minute, func() bool {
				d, err := l.Take(t.Context(), "hot", 3)
				if err != nil && !errors.Is(err, lock.ErrUnavailable) || d.OK {
					t.Fatalf("11 of 10: %+v, %v", d, err)
				}
				return err == nil
			})
			untilWithin(t, time.Minute, func() bool {
				d, err := c.NewRedissonRateLimiter("x").Take(t.Context(), 3)
				if err != nil && !errors.Is(err, lock.ErrUnavailable) || d.OK {
					t.Fatalf("11 of 10: %+v, %v", d, err)
				}
				return err == nil
			})
		}
	})
}

// Added elements are found while the slots of the filters are migrated.
func TestBloom_movingSlots(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	clients := []*client.Client{ours(t, c.Client(t)), ours(t, c.Client(t))}
	one, some := clients[0].NewBloomFilter("seen"), clients[0].NewShardedBloomFilter("parts", 2)
	for _, f := range []filter{one, some} {
		if _, err := f.Init(t.Context(), 10_000, 0.001); err != nil {
			t.Fatal(err)
		}
	}
	for what, test := range map[string]struct {
		keys []string
		of   func(c *client.Client) filter
	}{
		"one":  {[]string{"seen", "{seen}:config"}, func(c *client.Client) filter { return c.NewBloomFilter("seen") }},
		"some": {[]string{"parts:{1}", "parts:{1}:config"}, func(c *client.Client) filter { return c.NewShardedBloomFilter("parts", 2) }},
	} {
		stop := keepMoving(t, c, test.keys...)
		together(t, 4, func(i int) error {
			f, other := test.of(clients[i%2]), test.of(clients[1-i%2])
			for n := range 60 {
				e := fmt.Append(nil, i, ".", n)
				if _, err := f.Add(t.Context(), e); err != nil {
					return fmt.Errorf("%s: %w", what, err)
				}
				there, err := other.Contains(t.Context(), e, fmt.Append(nil, i, ".", 0))
				if err != nil || !there[0] || !there[1] {
					return fmt.Errorf("%s: what was added is there: %v, %w", what, there, err)
				}
				time.Sleep(2 * time.Millisecond)
			}
			return nil
		})
		stop()
		if n, err := test.of(clients[0]).Count(t.Context()); err != nil || n < 235 || n > 245 {
			t.Errorf("%s: %d elements, %v", what, n, err)
		}
	}
}

type filter interface {
	Init(ctx context.Context, n uint64, p float64) (bool, error)
	Add(ctx context.Context, elements ...[]byte) (int, error)
	Contains(ctx context.Context, elements ...[]byte) ([]bool, error)
	Count(ctx context.Context) (int64, error)
}

// After a failover to a replica that has them, added elements are still found, and new elements can be added. Some or
// all parts of a partitioned filter then have a new master.
func TestBloom_failover(t *testing.T) {
	t.Parallel()
	for what, test := range map[string]struct {
		key string // its master fails
		of  func(c *client.Client) filter
	}{
		"one":  {"seen", func(c *client.Client) filter { return c.NewBloomFilter("seen") }},
		"some": {"parts:{1}", func(c *client.Client) filter { return c.NewShardedBloomFilter("parts", 3) }},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			overFailover(t, test.key, func(t *testing.T, a, b *client.Client, failover func()) {
				f, other := test.of(a), test.of(b)
				if _, err := f.Init(t.Context(), 1000, 0.001); err != nil {
					t.Fatal(err)
				}
				var before, after [][]byte // elements of each of several filters
				for i := range 50 {
					before, after = append(before, fmt.Append(nil, "before ", i)), append(after, fmt.Append(nil, "after ", i))
				}
				if _, err := f.Add(t.Context(), before...); err != nil {
					t.Fatal(err)
				}
				failover()
				for _, f := range []filter{f, other} {
					untilWithin(t, time.Minute, func() bool {
						there, err := f.Contains(t.Context(), before...)
						if err == nil && slices.Contains(there, false) || err != nil && !errors.Is(err, lock.ErrUnavailable) {
							t.Fatalf("what was added: %v, %v", there, err)
						}
						return err == nil
					})
				}
				untilWithin(t, time.Minute, func() bool { _, err := other.Add(t.Context(), after...); return err == nil })
				if there, err := f.Contains(t.Context(), append(before, after...)...); err != nil || slices.Contains(there, false) {
					t.Errorf("%v, %v", there, err)
				}
				if n, err := f.Count(t.Context()); err != nil || n < 90 || n > 110 {
					t.Errorf("%d elements, %v", n, err)
				}
			})
		})
	}
}

// A leader continues while the slot of its election is migrated, others read its value, and the next one leads when it
// resigns.
func TestElection_movingSlots(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	a, b := ours(t, c.Client(t)).NewElection("billing"), ours(t, c.Client(t)).NewElection("billing")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	turns := make(chan context.Context, 100)
	done := make(chan error, 2)
	for value, e := range map[string]*leader.Election{"a": a, "b": b} {
		go func() {
			done <- e.Run(ctx, value, func(ctx context.Context) error {
				turns <- ctx
				<-ctx.Done()
				return nil
			})
		}()
	}
	first := soon(t, turns)
	leads, waits := a, b
	if b.Leading() {
		leads, waits = b, a
	}
	stop := keepMoving(t, c, "billing", "redisson_lock_queue:{billing}", "redisson_lock_timeout:{billing}", "leasehold_leader:{billing}")
	for i := range 30 {
		value := fmt.Sprint("value ", i)
		if err := leads.Publish(ctx, value); err != nil {
			t.Fatal(err)
		}
		l, is, err := waits.Leader(ctx)
		if err != nil || !is || l.Value != value || first.Err() != nil {
			t.Fatalf("%+v, %v, %v; the leader: %v", l, is, err, first.Err())
		}
		time.Sleep(10 * time.Millisecond)
	}
	if !leads.Resign() {
		t.Error("it did not resign")
	}
	second := soon(t, turns)
	if !waits.Leading() || second.Err() != nil {
		t.Error("the other one does not lead")
	}
	stop()
	cancel()
	for range 2 {
		if err := soon(t, done); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

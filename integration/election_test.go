//go:build linux

package integration_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/leader"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/multilock"
)

// After a failover one candidate leads, and an observer of another process detects which one, on either topology.
func TestElection_failover(t *testing.T) {
	t.Parallel()
	const lease = 4 * time.Second
	options := []client.Option{client.WithWatchdogTimeout(lease), client.WithOpTimeout(lease / 4)}
	test := func(t *testing.T, one, other *client.Client, failover func()) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		turns := make(chan string, 100)
		var dones []<-chan error
		for value, c := range map[string]*client.Client{"one": one, "other": other} {
			done := make(chan error, 1)
			dones = append(dones, done)
			e := c.NewElection("billing")
			go func() {
				done <- e.Run(ctx, value, func(ctx context.Context) error { turns <- value; <-ctx.Done(); return nil })
			}()
		}
		says := func(who string) {
			t.Helper()
			untilWithin(t, time.Minute, func() bool {
				l, leads, err := one.NewElection("billing").Leader(t.Context())
				return err == nil && leads && l.Value == who
			})
		}
		seen := make(chan leader.Leader, 1000)
		go func() {
			for l, err := range other.NewElection("billing").Observe(ctx) {
				if err == nil {
					seen <- l
				}
			}
			close(seen)
		}()
		says(soon(t, turns))
		failover()
		// The leader may continue, or a new one may be elected.
		var now leader.Leader
		untilWithin(t, time.Minute, func() bool {
			l, leads, err := one.NewElection("billing").Leader(t.Context())
			now = l
			return err == nil && leads && l.Left > lease/2
		})
		for l := (leader.Leader{}); l.Token < now.Token; {
			l = soon(t, seen)
		}
		cancel()
		for _, done := range dones {
			if err := soon(t, done); err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		for range seen {
		}
	}
	t.Run("sentinel", func(t *testing.T) {
		t.Parallel()
		s := redistest.StartSentinel(t, 2)
		test(t, ours(t, s.Client(t), options...), ours(t, s.Client(t), options...), func() { s.Failover(t, s.Primary(t)) })
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		c := redistest.StartCluster(t)
		test(t, ours(t, c.Client(t), options...), ours(t, c.Client(t), options...), func() {
			master := c.Master(t, "billing")
			c.WaitForReplica(t, master)
			c.Failover(t, master)
		})
	})
}

// observedLock is a lock that reports its holds.
type observedLock struct {
	lock.Locker
	holds chan<- lock.Hold
}

func (n observedLock) Lock(ctx context.Context) (lock.Hold, error) {
	h, err := n.Locker.Lock(ctx)
	if err == nil {
		n.holds <- h
	}
	return h, err
}

// Three processes are candidates in an election with a quorum of three servers, which are killed or paused.
//
//	1 one server fails: the leader stays, and is renewed
//	2 two have failed: the leader is notified no later than Until, and no other process leads
//	3 they recover: one process leads, with a larger token
//
// Two processes never lead at the same time.
func TestElection_quorum(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]struct {
		fail, mend func(*redistest.Server, testing.TB)
	}{
		"dead":   {(*redistest.Server).Kill, (*redistest.Server).Restart},
		"frozen": {(*redistest.Server).Freeze, (*redistest.Server).Thaw},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := &quorums{T: t, lease: 4 * time.Second, timeout: 500 * time.Millisecond}
			for range 3 {
				q.servers = append(q.servers, redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always"))
			}
			q.ready()
			outsider := q.quorum()

			var mu sync.Mutex
			leading := make(map[int]context.Context) // guarded by mu
			alone := func() {
				t.Helper()
				mu.Lock()
				defer mu.Unlock()
				for i, one := range leading {
					for j, other := range leading {
						if i != j && one.Err() == nil && other.Err() == nil && one.Err() == nil {
							t.Fatalf("%d and %d lead", i, j)
						}
					}
				}
			}
			until := func(happened func() bool) {
				t.Helper()
				untilWithin(t, time.Minute, func() bool { alone(); return happened() })
			}

			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			holds, dones := make(chan lock.Hold, 100), make(chan error, 3)
			for i := range 3 {
				candidate := observedLock{multilock.NewQuorum(q.locks(lock.WithFencing()), multilock.WithMaxLease(q.lease), multilock.WithServerTimeout(q.timeout)), holds}
				go func() {
					dones <- leader.Run(ctx, candidate, func(ctx context.Context) error {
						mu.Lock()
						leading[i] = ctx
						mu.Unlock()
						<-ctx.Done()
						mu.Lock()
						delete(leading, i)
						mu.Unlock()
						return nil
					})
				}()
			}
			leads := func() (n int) {
				mu.Lock()
				defer mu.Unlock()
				for _, one := range leading {
					if one.Err() == nil {
						n++
					}
				}
				return n
			}

			until(func() bool { return leads() == 1 })
			h := soon(t, holds)
			fault.fail(q.servers[0], t) // 1
			until(func() bool { return h.Until().After(time.Now().Add(q.lease/2)) && len(multilock.Holds(h)) == 2 })
			confirmed := h.Until()
			until(func() bool { return h.Until().After(confirmed) || h.Err() != nil })
			if err := h.Err(); err != nil || len(holds) > 0 || leads() != 1 {
				t.Fatalf("without one server of three: %v; %d lead", err, leads())
			}

			fault.fail(q.servers[1], t) // 2
			until(func() bool {
				last := h.Until() // a confirmation sent before the server failed can still arrive, and extend it
				late := !time.Now().Before(last)
				err := h.Err()
				if late && err == nil && h.Until().Equal(last) {
					t.Fatal("the leader is not notified at Until")
				}
				return err != nil
			})
			if err := h.Err(); !errors.Is(err, lock.ErrLost) {
				t.Errorf("the leader is notified: %v", err)
			}
			until(func() bool { return leads() == 0 })
			if _, err := outsider.TryLock(t.Context()); !errors.Is(err, lock.ErrUnavailable) || len(holds) > 0 {
				t.Errorf("with one server of three: %v, and %d lead", err, len(holds))
			}

			for _, s := range q.servers[:2] { // 3
				fault.mend(s, t)
			}
			until(func() bool { return leads() == 1 })
			if next := soon(t, holds); next.Token() <= h.Token() || len(holds) > 0 {
				t.Errorf("the token %d follows %d, and %d more lead", next.Token(), h.Token(), len(holds))
			}
			if len(dones) > 0 {
				t.Errorf("a candidate left: %v", <-dones)
				dones <- nil
			}

			cancel()
			for range 3 {
				if err := soon(t, dones); err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			}
			for _, s := range q.servers {
				untilWithin(t, time.Minute, func() bool { return len(s.LockKeys(t)) == 1 }) // the token counter
			}
		})
	}
}

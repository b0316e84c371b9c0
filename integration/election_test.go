//go:build linux

package integration_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/leader"
)

// After a failover one leads, and an observer of another process sees which one, on either topology.
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
		// The leader may go on, or one of them leads anew.
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

package leader_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/kindtest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/leader"
	"github.com/leasehold-go/leasehold/lock"
)

// Each call of a store, when a reply is lost, its caller leaves, the server is paused, or the client is closed.
func TestCalls(t *testing.T) {
	t.Parallel()
	kindtest.Calls(t, func(t *testing.T, c *client.Client, name string) []kindtest.Call {
		h := kindtest.MustLock(t, c.NewFairLock(name))
		b := c.NewLeaderStore(name)
		if err := b.Publish(t.Context(), h, "first", time.Minute); err != nil {
			t.Fatal(err)
		}
		text := func(want string) func(t *testing.T) {
			return func(t *testing.T) {
				if l, leads, err := b.Read(t.Context()); l.Value != want || leads != (want != "") || err != nil {
					t.Errorf("%+v, %v, %v, want %q", l, leads, err, want)
				}
			}
		}
		return []kindtest.Call{
			{Op: "publish", Name: name, Do: func(ctx context.Context) error { return b.Publish(ctx, h, "second", time.Minute) }, After: text("second")},
			{Op: "leader", Name: name, Do: func(ctx context.Context) error { _, _, err := b.Read(ctx); return err }, After: text("first")},
			{Op: "resign", Name: name, Do: func(ctx context.Context) error { return b.Clear(ctx, h) }, After: text("")},
		}
	})
}

// A leader and an observer stop when their contexts are canceled while the server is paused.
func TestRun_canceledWhilePaused(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t), kindtest.Fast...)
	e, other := c.NewElection("billing"), c.NewElection("billing")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	leads := runs(func() error {
		return e.Run(ctx, "a", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	})
	kindtest.WaitFor(t, "it leads", e.Leading)
	waits := runs(func() error { return other.Run(ctx, "b", func(context.Context) error { return nil }) })
	kindtest.WaitFor(t, "it waits", func() bool { return kindtest.Number(s.Do(t, "LLEN", "redisson_lock_queue:{billing}")) == 1 })
	seen := make(chan leader.Leader, 100)
	observes := runs(func() error {
		for l := range other.Observe(ctx) {
			seen <- l
		}
		return nil
	})
	soon(t, seen)
	s.Freeze(t)
	publishes := runs(func() error { return e.Publish(ctx, "c") })
	cancel()
	if err := soon(t, publishes); !errors.Is(err, context.Canceled) && !errors.Is(err, leader.ErrNotLeading) {
		t.Errorf("Publish: %v", err)
	}
	if err := soon(t, observes); err != nil {
		t.Error(err)
	}
	if err := soon(t, waits); !errors.Is(err, context.Canceled) || errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("a candidate: %v", err)
	}
	if err := soon(t, leads); !errors.Is(err, context.Canceled) {
		t.Errorf("the leader: %v", err)
	}
	s.Thaw(t)
	waitForValue(t, other, "")
}

// While memory is full, a leader publishes its value, and clears it.
func TestMemoryFull(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	e := kindtest.NewClient(t, s.Client(t)).NewElection("billing")
	stop := make(chan struct{})
	done := runs(func() error { return e.Run(t.Context(), "a", func(context.Context) error { <-stop; return nil }) })
	waitForValue(t, e, "a")
	s.Do(t, "CONFIG", "SET", "maxmemory", "100kb")
	if err := e.Publish(t.Context(), "b"); err != nil {
		t.Error(err)
	}
	waitForValue(t, e, "b")
	close(stop)
	if err := soon(t, done); err != nil {
		t.Error(err)
	}
	waitForValue(t, e, "")
}

// A candidate retries while Redis is unavailable, and leads afterward.
func TestRun_replies(t *testing.T) {
	t.Parallel()
	kindtest.Waits(t, func(t *testing.T, c, sees *client.Client, name string) kindtest.Wait {
		h := kindtest.MustLock(t, sees.NewFairLock(name))
		e := c.NewElection(name)
		return kindtest.Wait{
			Do:   func(ctx context.Context) error { return e.Run(ctx, "x", func(context.Context) error { return nil }) },
			Over: func() error { return h.Unlock(t.Context()) },
		}
	})
}

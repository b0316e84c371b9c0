package latch_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/kindtest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
)

// Each call of a latch and of a wait group, when a reply is lost, its caller leaves, the server is paused, or the
// client is closed.
func TestCalls(t *testing.T) {
	t.Parallel()
	kindtest.Calls(t, func(t *testing.T, c *client.Client, name string) []kindtest.Call {
		made, open := c.NewLatch(name+"a"), c.NewLatch(name+"b")
		create(t, made, 3)
		create(t, open, 1)
		countDown(t, open, 0)
		left := func(want int64) func(t *testing.T) {
			return func(t *testing.T) {
				if n, err := made.Count(t.Context()); n != want || err != nil {
					t.Errorf("%d left, %v, want %d", n, err, want)
				}
			}
		}
		return []kindtest.Call{
			{Op: "set count", Name: name + "c", Do: func(ctx context.Context) error {
				created, err := c.NewLatch(name+"c").TrySetCount(ctx, 1)
				if err == nil && !created {
					err = errors.New("it was not made")
				}
				return err
			}},
			{Op: "count down", Name: name + "a", Do: func(ctx context.Context) error { _, err := made.CountDown(ctx); return err }, After: left(2)},
			{Op: "count down", Name: name + "a", Do: func(ctx context.Context) error { _, err := made.CountDownOnce(ctx, "part"); return err }, After: left(2)},
			{Op: "count", Name: name + "a", Do: func(ctx context.Context) error { _, err := made.Count(ctx); return err }, After: left(3)},
			{Op: "wait", Name: name + "b", Waits: true, Do: open.Wait},
			{Op: "delete", Name: name + "b", Do: open.Delete},
		}
	})
}

// The same for a wait group.
func TestWaitGroup_calls(t *testing.T) {
	t.Parallel()
	kindtest.Calls(t, func(t *testing.T, c *client.Client, name string) []kindtest.Call {
		waitGroup, ended := c.NewWaitGroup(name+"a"), c.NewWaitGroup(name+"b")
		kindtest.MustUnlock(t, join(t, ended))
		if err := join(t, waitGroup).Fail(t.Context()); err != nil {
			t.Fatal(err)
		}
		state := wantWorkers(t, waitGroup, 0, 0, 1)
		return []kindtest.Call{
			{Op: "add", Name: name + "a", Waits: true, Do: func(ctx context.Context) error { _, err := waitGroup.Add(ctx); return err }, After: func(t *testing.T) { wantWorkers(t, waitGroup, 0, 1, 1) }},
			{Op: "inspect", Name: name + "a", Do: func(ctx context.Context) error { _, err := waitGroup.Inspect(ctx); return err }},
			{Op: "dismiss", Name: name + "a", Do: func(ctx context.Context) error { _, err := waitGroup.Dismiss(ctx, state.Lost...); return err }, After: func(t *testing.T) { wantWorkers(t, waitGroup, 0, 0, 0) }},
			{Op: "wait", Name: name + "b", Waits: true, Do: ended.Wait},
			{Op: "wait for", Name: name + "b", Waits: true, Do: func(ctx context.Context) error { return ended.WaitFor(ctx, 1) }},
			{Op: "delete", Name: name + "b", Do: ended.Delete},
		}
	})
}

// Close with a paused server returns when its context is canceled; workers are lost, and others detect that.
func TestWaitGroup_closeOnAPausedServer(t *testing.T) {
	t.Parallel()
	kindtest.CloseFrozen(t, func(t *testing.T, c *client.Client) lock.Hold { return join(t, c.NewWaitGroup("import")) }, func(t *testing.T, c *client.Client) bool {
		s, err := c.NewWaitGroup("import").Inspect(t.Context())
		return err == nil && s.Done == 0 && len(s.Lost) == 1
	})
}

// Every second reply is lost: a worker remains alive, and is done.
func TestWaitGroup_lostRenewals(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	waitGroup := kindtest.NewClient(t, s.Client(t, redistest.Via(p)), kindtest.Fast...).NewWaitGroup("import")
	m := join(t, waitGroup)
	var loses atomic.Bool
	p.OnRequest(func(req [][]byte) redistest.Action {
		return redistest.Action{DropReply: string(req[0]) == "EVALSHA" && loses.Swap(!loses.Load())}
	})
	start := m.Until()
	kindtest.WaitFor(t, "the worker has outlived a lease and a half", func() bool {
		return m.Err() != nil || m.Until().After(start.Add(kindtest.WatchdogTimeout*3/2))
	})
	kindtest.MustUnlock(t, m)
	if err := waitGroup.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	wantWorkers(t, waitGroup, 1, 0, 0)
}

// A wait continues while Redis is unavailable, and ends when its count is zero or its workers are done.
func TestWaits_replies(t *testing.T) {
	t.Parallel()
	t.Run("latch", func(t *testing.T) {
		t.Parallel()
		kindtest.Waits(t, func(t *testing.T, c, sees *client.Client, name string) kindtest.Wait {
			l := sees.NewLatch(name)
			create(t, l, 1)
			return kindtest.Wait{Do: c.NewLatch(name).Wait, Over: func() error { _, err := l.CountDown(t.Context()); return err }}
		})
	})
	t.Run("waitgroup", func(t *testing.T) {
		t.Parallel()
		kindtest.Waits(t, func(t *testing.T, c, sees *client.Client, name string) kindtest.Wait {
			m := join(t, sees.NewWaitGroup(name))
			return kindtest.Wait{Do: c.NewWaitGroup(name).Wait, Over: func() error { return m.Unlock(t.Context()) }}
		})
	})
}

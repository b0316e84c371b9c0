package semaphore_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/kindtest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/semaphore"
)

// Each call except Lock and Unlock, when a reply is lost, its caller leaves, the server is paused, or the client is
// closed.
func TestCalls(t *testing.T) {
	t.Parallel()
	incr := semaphore.NewScript("return redis.call('INCR', KEYS[1])")
	kindtest.Calls(t, func(t *testing.T, c *client.Client, name string) []kindtest.Call {
		sem := c.NewSemaphore(name, 3)
		h := kindtest.MustLock(t, sem)
		data := "{" + name + "}:data"
		run := func(ctx context.Context) (int64, error) {
			msg, err := sem.Run(ctx, h, incr, []string{data})
			return kindtest.Number(msg), err
		}
		return []kindtest.Call{
			{Op: "inspect", Name: name, Do: func(ctx context.Context) error { _, err := sem.Inspect(ctx); return err }},
			{Op: "slots", Name: name, Do: func(ctx context.Context) error { _, err := sem.Slots(ctx, h); return err }, After: func(t *testing.T) {
				if slots, err := sem.Slots(t.Context(), h); err != nil || len(slots) != 1 || slots[0].Number != 0 {
					t.Errorf("%v, %v", slots, err)
				}
			}},
			{Op: "run", Name: name, Once: true, Do: func(ctx context.Context) error { _, err := run(ctx); return err }, After: func(t *testing.T) {
				if n, err := run(t.Context()); n != 2 || err != nil {
					t.Errorf("it ran %d times before, %v", n-1, err)
				}
			}},
			{Op: "resize", Name: name, Do: func(ctx context.Context) error { return sem.Resize(ctx, 5) }, After: func(t *testing.T) {
				if s, err := sem.Inspect(t.Context()); err != nil || s.Permits != 5 || s.Free != 4 {
					t.Errorf("%+v, %v", s, err)
				}
			}},
		}
	})
}

// Close with a paused server returns when its context is canceled. The holds have ended, and later nothing is left.
func TestClose_onAPausedServer(t *testing.T) {
	t.Parallel()
	kindtest.CloseFrozen(t, func(t *testing.T, c *client.Client) lock.Hold {
		return kindtest.MustLock(t, c.NewSemaphore("gpus", 3).N(2))
	}, func(t *testing.T, c *client.Client) bool {
		s, err := c.NewSemaphore("gpus", 3).Inspect(t.Context())
		return err == nil && s.Free == 3 && len(s.Holders) == 0
	})
}

// Every second reply to a renewal, a heartbeat or a request is lost: a hold continues, and a waiter keeps its position
// and acquires the permit.
func TestLostReplies_renewals(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	a := kindtest.NewClient(t, s.Client(t, redistest.Via(p)), kindtest.Fast...)
	b := kindtest.NewClient(t, s.Client(t), kindtest.Fast...)
	h := kindtest.MustLock(t, a.NewSemaphore("gpus", 2).N(2))
	first := kindtest.Go(t.Context(), a.NewSemaphore("gpus", 2, lock.WithWaiterTimeout(kindtest.WatchdogTimeout)))
	waiting(t, s, "gpus", 1)
	second := kindtest.Go(t.Context(), b.NewSemaphore("gpus", 2).N(2))
	waiting(t, s, "gpus", 2)
	var loses atomic.Bool
	p.OnRequest(func(req [][]byte) redistest.Action {
		return redistest.Action{DropReply: string(req[0]) == "EVALSHA" && loses.Swap(!loses.Load())}
	})
	start := h.Until()
	kindtest.WaitFor(t, "the hold has outlived a lease and a half", func() bool {
		return h.Err() != nil || h.Until().After(start.Add(kindtest.WatchdogTimeout*3/2))
	})
	if err := h.Err(); err != nil {
		t.Error(err)
	}
	if !first.Waits() || !second.Waits() {
		t.Error("more permits than there are")
	}
	p.OnRequest(nil)
	kindtest.MustUnlock(t, h)
	one := first.Hold(t)
	if !second.Waits() {
		t.Error("it overtook the first")
	}
	kindtest.MustUnlock(t, one)
	kindtest.MustUnlock(t, second.Hold(t))
	waitForState(t, s, "gpus", "2", 0)
}

// A semaphore with one permit follows the table of error replies like a lock.
func TestReplies(t *testing.T) {
	t.Parallel()
	kindtest.LockReplies(t, kindtest.Kind{
		New: func(c *client.Client, name string, opts ...lock.Option) lock.Locker {
			return c.NewSemaphore(name, 1, opts...)
		},
		Channel: func(name string) string { return "*{" + name + "}*" },
	})
}

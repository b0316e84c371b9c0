package semaphore_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/kindtest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/semaphore"
	"github.com/redis/rueidis"
)

// The permissions listed in docs/operate/security.md suffice for all operations of a semaphore, and none is
// superfluous.
func TestRights(t *testing.T) {
	t.Parallel()
	permissions := redistest.RightsWithoutLocks(t, "NewSemaphore")
	s := redistest.Start(t)
	single := func(o *rueidis.ClientOption) { o.ForceSingleClient = true }
	as := func(t *testing.T, user string, permissions ...string) *client.Client {
		t.Helper()
		return kindtest.NewClient(t, s.Client(t, s.AddUser(t, user, permissions...), single), append([]client.Option{client.WithKeyPrefix("orders:")}, kindtest.Fast...)...)
	}
	a, b := as(t, "locks", permissions...), as(t, "locks", permissions...)
	for _, name := range []string{"gpus", "{gpus}x"} {
		sem, other := a.NewSemaphore(name, 3), b.NewSemaphore(name, 3)
		queue, leases := "leasehold_semaphore_queue:{orders:gpus}", "{orders:gpus}:timeout"
		if name != "gpus" {
			queue, leases = "leasehold_semaphore_queue:orders:{gpus}x:", "orders:{gpus}x:timeout"
		}
		line := func(n int64) {
			t.Helper()
			kindtest.WaitFor(t, "they wait", func() bool { return kindtest.Number(s.Do(t, "LLEN", queue)) == n })
		}
		h := kindtest.MustLock(t, sem.N(3))
		w := kindtest.Go(t.Context(), other)
		line(1)
		s.Do(t, "DEL", queue)
		ctx, cancel := context.WithCancel(t.Context())
		gone := kindtest.Go(ctx, other.N(2))
		line(2)
		cancel()
		_ = gone.Err(t)
		s.Do(t, "ZADD", leases, "1000", "someone's permit")
		s.Do(t, "DECR", "orders:"+name)
		if err := sem.Resize(t.Context(), 3); err != nil {
			t.Error(err)
		}
		if _, err := sem.Inspect(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := sem.Slots(t.Context(), h); err != nil {
			t.Error(err)
		}
		if _, err := sem.Run(t.Context(), h, semaphore.NewScript("return 1"), nil); err != nil {
			t.Error(err)
		}
		kindtest.WaitFor(t, "it is renewed", func() bool { return h.Until().After(time.Now().Add(kindtest.WatchdogTimeout * 3 / 4)) })
		kindtest.MustUnlock(t, h)
		kindtest.MustUnlock(t, w.Hold(t))
	}
	// Without the permissions listed under Registry, Inspect omits the clients.
	denied := slices.DeleteFunc(s.Denied(t, "locks"), func(d string) bool { return d == "command hmget" })
	if len(denied) > 0 {
		t.Errorf("the permissions of docs/operate/security.md do not cover %q", denied)
	}
	kindtest.WaitFor(t, "they listen no more", func() bool { return s.CommandCallsByClients(t, "unsubscribe") > 0 })
	for i, permission := range permissions {
		if command, ok := strings.CutPrefix(permission, "+"); ok {
			if s.CommandCallsByClients(t, command) == 0 {
				t.Errorf("docs/operate/security.md lists %s, but no command needed it", permission)
			}
			continue
		}
		t.Run("without "+permission, func(t *testing.T) {
			t.Parallel()
			user := "less" + string(rune('a'+i))
			less := slices.DeleteFunc(slices.Clone(permissions), func(other string) bool { return other == permission })
			a, b := as(t, user, less...), as(t, user, less...)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var holds []lock.Hold
			var waiters []*kindtest.Waiter
			for _, name := range []string{"a" + user, "{b" + user + "}"} {
				h, err := a.NewSemaphore(name, 1).Lock(t.Context())
				if err != nil {
					continue
				}
				holds, waiters = append(holds, h), append(waiters, kindtest.Go(ctx, b.NewSemaphore(name, 1)))
				_, _ = a.NewSemaphore(name, 1).Slots(t.Context(), h)
			}
			kindtest.WaitFor(t, "something is denied without "+permission+", which docs/operate/security.md lists", func() bool {
				return len(s.Denied(t, user)) > 0 // a subscription can take a while
			})
			cancel()
			for _, w := range waiters {
				if w.Err(t) == nil {
					t.Error("two at once")
				}
			}
			kindtest.MustUnlock(t, holds...)
		})
	}
}

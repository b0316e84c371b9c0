package latch_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/kindtest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/redis/rueidis"
)

// withEach runs play as a user with the permissions in docs/operate/security.md, which must suffice. It then runs play
// without each of these permissions, and Redis must deny a command.
func withEach(t *testing.T, head string, play func(t *testing.T, s *redistest.Server, a, b *client.Client)) {
	permissions := redistest.RightsWithoutLocks(t, head)
	s := redistest.Start(t)
	as := func(t *testing.T, user string, permissions []string) *client.Client {
		single := func(o *rueidis.ClientOption) { o.ForceSingleClient = true }
		return kindtest.NewClient(t, s.Client(t, s.AddUser(t, user, permissions...), single), append([]client.Option{client.WithKeyPrefix("orders:")}, kindtest.Fast...)...)
	}
	play(t, s, as(t, "all", permissions), as(t, "all", permissions))
	// Without the permissions listed under Registry, a wait group omits the clients.
	if denied := slices.DeleteFunc(s.Denied(t, "all"), func(d string) bool { return head == "NewWaitGroup" && d == "command hmget" }); len(denied) > 0 {
		t.Errorf("the permissions of docs/operate/security.md do not cover %q", denied)
	}
	for i, permission := range permissions {
		if command, ok := strings.CutPrefix(permission, "+"); ok {
			kindtest.WaitFor(t, permission+" was needed: docs/operate/security.md lists it", func() bool { return s.CommandCallsByClients(t, command) > 0 })
			continue
		}
		user := "less" + string(rune('a'+i))
		less := slices.DeleteFunc(slices.Clone(permissions), func(r string) bool { return r == permission })
		s.Do(t, "FLUSHALL")
		play(t, s, as(t, user, less), as(t, user, less))
		if len(s.Denied(t, user)) == 0 {
			t.Errorf("docs/operate/security.md lists %s, but no command is denied without it", permission)
		}
	}
}

// The permissions listed in docs/operate/security.md suffice for all operations of a latch, and none is superfluous.
func TestRights(t *testing.T) {
	t.Parallel()
	withEach(t, "NewLatch", func(t *testing.T, s *redistest.Server, a, b *client.Client) {
		l := a.NewLatch("done")
		_, _ = l.TrySetCount(t.Context(), 2)
		ctx, cancel := context.WithTimeout(t.Context(), kindtest.OpTimeout)
		defer cancel()
		w := wait(ctx, b.NewLatch("done"))
		kindtest.WaitFor(t, "it listens, is denied, or has an error", func() bool {
			return len(kindtest.Channels(t, s, "*")) > 0 || len(w) > 0 || ctx.Err() != nil
		})
		s.Do(t, "ZADD", "leasehold_latch_calls:{orders:done}", "1", "an old call")
		_, _ = l.CountDown(t.Context())
		_, _ = l.Count(t.Context())
		_, _ = l.CountDownOnce(t.Context(), "the last")
		_ = result(t, w)
		_, _ = l.TrySetCount(t.Context(), 2)
		_ = l.Delete(t.Context())
		s.Do(t, "SET", "orders:java", "1") // as in Redisson
		_, _ = a.NewLatch("java").Count(t.Context())
	})
}

package kindtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// Rights tests whether the permissions listed in docs/operate/security.md are sufficient for
// everything that play does with two clients, and whether a call is denied if any one of them is
// missing. play must therefore use every operation of the type.
//
// heads are the headings under which the document lists the permissions of the type and its
// options, in addition to those of every type, such as "NewLock".
func Rights(t *testing.T, k Kind, heads []string, play func(t *testing.T, s *redistest.Server, a, b *client.Client)) {
	rights := redistest.Rights(t, append([]string{"Registry"}, heads...)...)
	s := redistest.Start(t)
	// The document lists the permissions for names that begin with "orders:".
	options := append([]client.Option{client.WithKeyPrefix("orders:")}, Fast...)
	clients := func(t *testing.T, as func(*rueidis.ClientOption)) (a, b *client.Client) {
		t.Helper()
		return NewRegistered(t, s.Client(t, as), options...), NewRegistered(t, s.Client(t, as), options...)
	}

	// A client whose lock is renewed subscribes to force-unlock notifications. The tests of package admin cover that
	// permission.
	forced := redistest.Rights(t, "Forced")[len(redistest.Rights(t)):]
	a, b := clients(t, s.AddUser(t, "locks", slices.Concat(rights, forced)...))
	t.Run("on Redis", func(t *testing.T) { play(t, s, a, b) })
	if denied := s.Denied(t, "locks"); len(denied) > 0 {
		t.Errorf("the rights of docs/operate/security.md do not cover %q", denied)
	}
	for i, right := range rights {
		// The server checks every call. Without the permission for a command, a call is denied
		// exactly if there was one.
		if command, ok := strings.CutPrefix(right, "+"); ok {
			if command == "unsubscribe" { // it is sent a while after the last waiter has left
				WaitFor(t, "they listen no more", func() bool { return s.CommandCallsByClients(t, command) > 0 })
			}
			calls := s.CommandCallsByClients(t, command)
			if strings.HasPrefix(command, "cluster|") { // clients use one of them up to version 7, and the other since 8
				calls = s.CommandCallsByClients(t, "cluster|slots") + s.CommandCallsByClients(t, "cluster|shards")
			}
			if calls == 0 {
				t.Errorf("docs/operate/security.md asks for %s, and nothing needed it", right)
			}
			continue
		}
		t.Run("without "+right, func(t *testing.T) {
			t.Parallel()
			less := slices.DeleteFunc(slices.Clone(rights), func(other string) bool { return other == right })
			user := fmt.Sprint("less", i)
			a, b := clients(t, s.AddUser(t, user, less...))
			var opts []lock.Option
			if slices.Contains(heads, "WithFencing") {
				opts = append(opts, lock.WithFencing())
			}
			for _, name := range []string{fmt.Sprint("a", i), fmt.Sprintf("{b%d}", i)} {
				k.eachWay(t, func(t *testing.T, holder, waiter Kind) {
					meet(t, holder.New(a, name, opts...), waiter.New(b, name, opts...))
				})
				if slices.Contains(heads, "WithLinger") {
					keep(t, k, a, name)
				}
			}
			WaitFor(t, "something is denied without "+right+", which docs/operate/security.md asks for", func() bool {
				return len(s.Denied(t, user)) > 0 // a subscription can take a while
			})
		})
	}
}

// meet makes one owner hold a lock while another waits for it in vain, as far as their permissions
// allow.
func meet(t *testing.T, holder, waiter lock.Locker) {
	t.Helper()
	h, err := holder.Lock(t.Context())
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), OpTimeout)
	defer cancel()
	if _, err := waiter.Lock(ctx); err == nil {
		t.Error("two owners at once")
	}
	if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

// keep makes c keep a lock with WithLinger, as far as its permissions allow. If k's side does not support the option, the other
// side has it.
func keep(t *testing.T, k Kind, c *client.Client, name string) {
	t.Helper()
	if k.Rival != nil {
		k = *k.Rival
	}
	h, err := k.New(c, name, lock.WithLinger(time.Second)).Lock(t.Context())
	if err != nil {
		return
	}
	if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

package client_test

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// open returns a client that uses rdb and is closed at the end of t.
func open(t *testing.T, rdb rueidis.Client, opts ...client.Option) *client.Client {
	t.Helper()
	c, err := client.New(rdb, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return c
}

// inspector is any type of lock.
type inspector interface {
	Inspect(ctx context.Context) (lock.State, error)
}

// eventually inspects l until ok returns true.
func eventually(t *testing.T, l inspector, ok func(lock.State) bool) lock.State {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		s, err := l.Inspect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if ok(s) {
			return s
		}
		if time.Now().After(end) {
			t.Fatalf("the state is still %+v", s)
		}
	}
}

// Inspect shows the holders and waiters of every type of lock, on a single server and on a cluster.
func TestRegistry(t *testing.T) {
	t.Parallel()
	t.Run("one server", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		registry(t, func() rueidis.Client { return s.Client(t) })
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		s := redistest.StartCluster(t)
		registry(t, func() rueidis.Client { return s.Client(t) })
	})
}

func registry(t *testing.T, connect func() rueidis.Client) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	billing := open(t, connect(), client.WithName("billing"), client.WithLabel("zone=a"))
	cron := open(t, connect(), client.WithName("cron"))
	checks := open(t, connect(), client.WithoutRegistry())
	kinds := map[string]func(*client.Client) (lock.Locker, inspector){
		"plain": func(c *client.Client) (lock.Locker, inspector) { l := c.NewLock("plain"); return l, l },
		"fair":  func(c *client.Client) (lock.Locker, inspector) { l := c.NewFairLock("fair"); return l, l },
		"write": func(c *client.Client) (lock.Locker, inspector) { l := c.NewRWLock("rw"); return l.Write(), l },
	}
	for name, of := range kinds {
		t.Run(name, func(t *testing.T) {
			held, _ := of(billing)
			h, err := held.Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			waited := make(chan error)
			go func() {
				l, _ := of(cron)
				_, err := l.Lock(ctx)
				waited <- err
			}()
			_, l := of(checks)
			s := eventually(t, l, func(s lock.State) bool {
				return len(s.Holders) == 1 && s.Holders[0].Client.Known() && len(s.Waiters) == 1 && s.Waiters[0].Client.Known()
			})
			holder, waiter := s.Holders[0].Client, s.Waiters[0].Client
			if holder.ID != billing.ID() || holder.Name != "billing" || holder.Label != "zone=a" || holder.Host != host || holder.PID != os.Getpid() || holder.Version == "" || time.Since(holder.Started).Abs() > time.Minute {
				t.Errorf("the holder is %+v", holder)
			}
			if waiter.ID != cron.ID() || waiter.Name != "cron" || waiter.Label != "" || waiter == holder {
				t.Errorf("the waiter is %+v", waiter)
			}
			cancel()
			<-waited
			if err := h.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// The entry is written with the first lock handle and removed by Close. There is no entry without a registry, or for a
// client without locks.
func TestRegistry_entries(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	entries := func() []string {
		t.Helper()
		reply := s.Do(t, "KEYS", "*")
		keys, err := reply.AsStrSlice()
		if err != nil {
			t.Fatal(err)
		}
		return keys
	}
	open(t, s.Client(t), client.WithName("idle"))
	open(t, s.Client(t), client.WithoutRegistry()).NewLock("orders")
	c, err := client.Open(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	if keys := entries(); len(keys) > 0 {
		t.Errorf("there is %q already", keys)
	}
	c.NewLock("orders")
	for end := time.Now().Add(20 * time.Second); len(entries()) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("there is no entry")
		}
	}
	if keys := entries(); len(keys) != 1 || keys[0] != "leasehold_client:"+c.ID() {
		t.Errorf("%q", keys)
	}
	list := s.Do(t, "CLIENT", "LIST")
	if text, err := list.ToString(); strings.Count(text, " name=leasehold ") != 2 {
		t.Errorf("the entry has no connection of its own: %s, %v", text, err)
	}
	for range 2 {
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if keys := entries(); len(keys) > 0 {
		t.Errorf("there is %q still", keys)
	}
}

// Without the permissions, a client can still lock and logs the denial once. Inspect shows only the client ID.
func TestRegistry_denied(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	as := s.AddUser(t, "locks", redistest.Rights(t, "NewLock", "Forced")...)
	var all output
	c := open(t, s.Client(t, as), client.WithKeyPrefix("orders:"), all.logger())
	l := c.NewLock("42")
	h, err := l.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all.soon(t, "registry entry denied")
	state, err := l.Inspect(t.Context())
	if err != nil || len(state.Holders) != 1 || state.Holders[0].Client != (lock.Client{ID: c.ID()}) {
		t.Errorf("%+v, %v", state, err)
	}
	if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	if text := all.text.String(); strings.Count(text, "\n") != 1 || strings.Contains(text, c.ID()) {
		t.Errorf("logged %s", text)
	}
}

// The permissions listed in the document are sufficient, and each one is necessary.
func TestRegistry_permissions(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	permissions := redistest.Rights(t, "Registry")
	with := func(user string, permissions []string) []string {
		c := open(t, s.Client(t, s.AddUser(t, user, permissions...)), client.WithKeyPrefix("orders:"), client.WithLogger(slog.New(slog.DiscardHandler)))
		l := c.NewRWLock("42").Write()
		h, err := l.TryLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.NewRWLock("42").Inspect(t.Context()); err != nil {
			t.Error(err)
		}
		if err := h.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		for { // Close removes the entry
			entry := s.Do(t, "KEYS", "*"+c.ID()+"*")
			if keys, _ := entry.AsStrSlice(); len(keys) > 0 || len(s.Denied(t, user)) > 0 {
				break
			}
			time.Sleep(time.Millisecond)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		return s.Denied(t, user)
	}
	rw := redistest.Rights(t, "NewRWLock", "Forced")
	if denied := with("full", append(permissions, rw...)); len(denied) > 0 {
		t.Errorf("docs/operate/security.md does not cover %q", denied)
	}
	for i, permission := range permissions[len(redistest.Rights(t)):] {
		less := append(append([]string{}, rw...), permissions[len(redistest.Rights(t)):]...)
		less = append(less[:len(rw)+i], less[len(rw)+i+1:]...)
		if denied := with("less"+string(rune('a'+i)), less); len(denied) == 0 {
			t.Errorf("docs/operate/security.md lists %s, but no command is denied without it", permission)
		}
	}
}

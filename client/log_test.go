package client_test

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
)

// soon waits until the log contains the text.
func (s *output) soon(t *testing.T, what string) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !s.contains(what); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no log line with %q: %s", what, s.text.String())
		}
	}
}

func (s *output) logger() client.Option {
	return client.WithLogger(slog.New(slog.NewTextHandler(s, nil)))
}

// renewed waits until all holds have been renewed.
func renewed(t *testing.T, holds ...lock.Hold) {
	t.Helper()
	var first []time.Time
	for _, h := range holds {
		first = append(first, h.Until())
	}
	end := time.Now().Add(30 * time.Second)
	for i, h := range holds {
		for ; !h.Until().After(first[i]); time.Sleep(5 * time.Millisecond) {
			if err := h.Err(); err != nil || time.Now().After(end) {
				t.Fatalf("hold %d was not renewed: %v", i, err)
			}
		}
	}
}

// A client logs nothing while there is no fault, neither about locks nor about its other work.
func TestLog_nothingWithoutFaults(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	var all output
	a := open(t, s.Client(t), all.logger(), client.WithWatchdogTimeout(20*time.Second), client.WithOpTimeout(5*time.Second))
	b := open(t, s.Client(t), all.logger(), client.WithOpTimeout(5*time.Second))
	kinds := []func(*client.Client) lock.Locker{
		func(c *client.Client) lock.Locker { return c.NewLock("plain") },
		func(c *client.Client) lock.Locker { return c.NewFairLock("fair") },
		func(c *client.Client) lock.Locker { return c.NewRWLock("rw").Read() },
		func(c *client.Client) lock.Locker { return c.NewRWLock("rw2").Write() },
	}
	holds := make([]lock.Hold, len(kinds))
	for i, kind := range kinds {
		var err error
		if holds[i], err = kind(a).Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	renewed(t, holds...)
	for i, kind := range kinds {
		var wg sync.WaitGroup
		for range 10 {
			for _, c := range []*client.Client{a, b} {
				wg.Go(func() {
					if err := lock.Do(t.Context(), kind(c), func(context.Context) error { return nil }); err != nil {
						t.Error(err)
					}
				})
			}
		}
		if err := holds[i].Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		wg.Wait()
	}
	if all.contains("msg=") {
		t.Errorf("logged %s", all.text.String())
	}
}

// A server that evicts keys can evict locks. The client logs that once, even with only the permissions in
// docs/operate/security.md, if the user may read the policy.
func TestLog_evictingServer(t *testing.T) {
	t.Parallel()
	for policy, warns := range map[string]bool{"allkeys-lru": true, "volatile-ttl": true, "noeviction": false} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t, "--maxmemory", "100mb", "--maxmemory-policy", policy)
			can := s.Do(t, "EVAL", "return redis.acl_check_cmd and 1 or 0", "0")
			if n, _ := can.ToInt64(); n == 0 {
				t.Skip("this version cannot check a user's permissions")
			}
			var all output
			open, err := client.Open(t.Context(), s.URL(), all.logger())
			if err != nil {
				t.Fatal(err)
			}
			var renews output
			made, err := client.New(s.Client(t), renews.logger(), client.WithWatchdogTimeout(20*time.Second), client.WithOpTimeout(5*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			h, err := made.NewLock("orders").Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			renewed(t, h)
			if warns {
				all.soon(t, "maxmemory-policy="+policy)
				renews.soon(t, "maxmemory-policy="+policy)
			}
			for _, c := range []*client.Client{open, made} {
				if err := c.Close(t.Context()); err != nil { // waits for the query
					t.Error(err)
				}
			}
			if got := all.contains("maxmemory-policy"); got != warns {
				t.Errorf("logged %s", all.text.String())
			}
		})
	}
}

// A user without permission to read the policy causes no entry in ACL LOG.
func TestLog_evictingServerDenied(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	s.AddUser(t, "locks", redistest.Rights(t, "NewLock")...)
	s.Do(t, "ACL", "SETUSER", "locks", ">hunter2")
	var all output
	c, err := client.Open(t.Context(), "redis://locks:hunter2@"+s.Addr(), all.logger(), client.WithKeyPrefix("orders:"))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(context.Background()); err != nil { // waits for the query
		t.Error(err)
	}
	if all.text.Len() > 0 {
		t.Errorf("logged %s", all.text.String())
	}
	denied := slices.DeleteFunc(s.Denied(t, "locks"), func(d string) bool {
		return d == "command client" || d == "command client|setinfo" // CLIENT SETINFO, which docs/operate/security.md describes, is denied on 6.2 and since 7.2
	})
	if len(denied) > 0 {
		t.Errorf("denied: %q", denied)
	}
}

// If the server denies the subscription, waiters get no notifications. The client logs that, without an owner.
func TestLog_deniedSubscriptions(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.Do(t, "ACL", "SETUSER", "locks", "on", ">hunter2", "resetchannels", "~*", "+@all")
	var all output
	c, err := client.Open(t.Context(), "redis://locks:hunter2@"+s.Addr(), all.logger())
	if err != nil {
		t.Fatal(err)
	}
	other, err := client.New(s.Client(t))
	if err != nil {
		t.Fatal(err)
	}
	h, err := other.NewFairLock("orders").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = c.NewFairLock("orders").Lock(ctx) // ends when ctx is canceled
	}()
	all.soon(t, "subscription denied")
	all.soon(t, "channel=redisson_lock__channel:{orders} ")
	cancel()
	<-done
	if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	for _, c := range []*client.Client{c, other} {
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

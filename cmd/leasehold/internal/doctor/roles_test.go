package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/admin/dashboard"
	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// things has the names of a lock of each type, and of similar keys.
var things = []string{"orders:plain", "orders:fair", "orders:{a}:rw", "orders:semaphore", "orders:latch", "orders:workers", "orders:election", "orders:free"}

// fill makes a client hold a lock of each type until the end of t.
func fill(t *testing.T, rdb rueidis.Client) {
	t.Helper()
	c, err := client.New(rdb, client.WithName("billing"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.WithoutCancel(t.Context())) }) // an operator may have force-unlocked its locks
	for _, l := range []lock.Locker{c.NewLock("orders:plain", lock.WithFencing()), c.NewFairLock("orders:fair"), c.NewRWLock("orders:{a}:rw").Read(), c.NewSemaphore("orders:semaphore", 2)} {
		if _, err := l.Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.NewLatch("orders:latch").TrySetCount(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if _, err := c.NewWaitGroup("orders:workers").Add(t.Context()); err != nil {
		t.Fatal(err)
	}
	leads, done := make(chan struct{}, 2), make(chan error, 1) // a second time after an operator has force-unlocked the lock
	ctx, cancel := context.WithCancel(t.Context())
	e := c.NewElection("orders:election")
	go func() {
		done <- e.Run(ctx, "http://10.0.0.7", func(ctx context.Context) error {
			leads <- struct{}{}
			<-ctx.Done()
			return nil
		})
	}()
	<-leads
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

// apply does everything that an application does with the types of locks of this test, with fencing: one client holds, and another one waits.
func apply(t *testing.T, rdb rueidis.Client) error {
	var clients [2]*client.Client
	for i := range clients {
		c, err := client.New(rdb, client.WithName("shop"))
		if err != nil {
			return err
		}
		defer c.Close(context.WithoutCancel(t.Context()))
		clients[i] = c
	}
	a, b := clients[0], clients[1]
	waiters := func(l interface {
		Inspect(ctx context.Context) (lock.State, error)
	}) func() ([]lock.Waiter, error) {
		return func() ([]lock.Waiter, error) {
			s, err := l.Inspect(t.Context())
			return s.Waiters, err
		}
	}
	for i, l := range []struct {
		held, wanted lock.Locker
		waiters      func() ([]lock.Waiter, error)
	}{
		{a.NewLock("orders:a", lock.WithFencing()), b.NewLock("orders:a", lock.WithFencing()), waiters(a.NewLock("orders:a"))},
		{a.NewLock("orders:{b}"), b.NewLock("orders:{b}"), waiters(a.NewLock("orders:{b}"))},
		{a.NewFairLock("orders:c"), b.NewFairLock("orders:c"), waiters(a.NewFairLock("orders:c"))},
		{a.NewRWLock("orders:d").Read(), b.NewRWLock("orders:d").Write(), waiters(a.NewRWLock("orders:d"))},
		{a.NewRWLock("orders:e").Write(), b.NewRWLock("orders:e").Write(), waiters(a.NewRWLock("orders:e"))},
		{a.NewSemaphore("orders:f", 2).N(2), b.NewSemaphore("orders:f", 2), func() ([]lock.Waiter, error) {
			s, err := a.NewSemaphore("orders:f", 2).Inspect(t.Context())
			return s.Waiters, err
		}},
	} {
		h, err := l.held.Lock(t.Context())
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		waits := make(chan error, 1)
		go func() {
			_, err := l.wanted.Lock(ctx)
			waits <- err
		}()
		for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
			queue, err := l.waiters()
			if err != nil {
				return err
			}
			if len(queue) == 1 {
				break
			}
			if len(waits) > 0 || time.Now().After(end) {
				t.Fatalf("nobody waits for lock %d", i)
			}
		}
		cancel()
		if err := <-waits; !errors.Is(err, context.Canceled) {
			return fmt.Errorf("lock %d: the waiter ended with %w", i, err)
		}
		if err := h.Unlock(t.Context()); err != nil {
			return err
		}
	}
	return nil
}

// watch lists, inspects and watches everything.
func watch(t *testing.T, a *admin.Admin) error {
	for _, name := range things {
		l, err := a.Inspect(t.Context(), name)
		if err == nil {
			_, err = a.Keys(t.Context(), l)
		}
		if err != nil {
			return err
		}
	}
	return list(t, a)
}

// list lists everything.
func list(t *testing.T, a *admin.Admin) error {
	names := map[string]bool{}
	for l, err := range a.Locks(t.Context(), admin.Query{Idle: true}) {
		if err != nil {
			return err
		}
		names[l.Name] = true
	}
	if len(names) != len(things)-1 {
		t.Errorf("the list has %v", names)
	}
	for _, err := range a.Clients(t.Context()) {
		if err != nil {
			return err
		}
	}
	return nil
}

// A user with the ACL that is printed for a role can do everything that the role does, without a denial, and nothing else. The doctor
// finds nothing missing, and finds a permission that is removed.
func TestRoles(t *testing.T) {
	t.Parallel()
	for role, test := range map[string]struct {
		kinds          []string
		may, mayNot    func(t *testing.T, rdb rueidis.Client, a *admin.Admin) error
		less, reported string // a permission that the user does not get, and the check that reports it
	}{
		"application": {
			kinds:  []string{"plain", "fair", "rw", "semaphore", "fencing"},
			may:    func(t *testing.T, rdb rueidis.Client, _ *admin.Admin) error { return apply(t, rdb) },
			mayNot: func(t *testing.T, _ rueidis.Client, a *admin.Admin) error { return list(t, a) },
			less:   "+zadd", reported: "permissions fair",
		},
		"operator": {
			may: func(t *testing.T, rdb rueidis.Client, a *admin.Admin) error {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				for _, err := range a.Watch(ctx, things...) {
					cancel() // at the first event
					if err != nil {
						return err
					}
				}
				if err := watch(t, a); err != nil {
					return err
				}
				for _, name := range things {
					if _, err := a.ForceUnlock(t.Context(), name, "", "stuck"); err != nil && !errors.Is(err, lock.ErrNotHeld) {
						return err
					}
				}
				return nil
			},
			mayNot: func(t *testing.T, rdb rueidis.Client, _ *admin.Admin) error {
				return rdb.Do(t.Context(), rdb.B().Get().Key("other:1").Build()).Error()
			},
			less: "+hlen", reported: "permissions every",
		},
		"page": {
			kinds: append([]string{"ratelimit", "redisson-ratelimit", "bloom"}, listed...),
			may: func(t *testing.T, rdb rueidis.Client, a *admin.Admin) error {
				h, err := dashboard.New(rdb)
				if err != nil {
					return err
				}
				for _, path := range []string{"/", "/locks", "/clients", "/graph", "/limits", "/lock?name=orders:plain"} {
					w := httptest.NewRecorder()
					if h.ServeHTTP(w, httptest.NewRequest("GET", path, nil)); w.Code != 200 {
						t.Errorf("%s: %d, %s", path, w.Code, w.Body)
					}
				}
				return watch(t, a)
			},
			mayNot: unlock,
			less:   "~leasehold_client:*", reported: "permissions admin",
		},
		"exporter": {
			may:    func(t *testing.T, _ rueidis.Client, a *admin.Admin) error { return list(t, a) },
			mayNot: unlock,
			less:   "+scan", reported: "permissions admin",
		},
	} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			fill(t, s.Client(t))
			s.Do(t, "HSET", "session:1", "name", "bob") // keys of other clients, which SCAN lists, too
			s.Do(t, "SET", "counter", "7")
			o := Options{Role: role, Kinds: test.kinds, Prefix: ourPrefix}
			command := strings.Fields(o.ACL())
			s.Do(t, append(command, ">secret")...)
			o.User = command[2]
			as := func(user string) rueidis.Client {
				return s.Client(t, func(c *rueidis.ClientOption) {
					c.Username, c.Password, c.ClientSetInfo = user, "secret", rueidis.DisableClientSetInfo
				})
			}
			rdb := as(o.User)
			a, err := admin.New(rdb)
			if err != nil {
				t.Fatal(err)
			}
			if err := test.may(t, rdb, a); err != nil {
				t.Error(err)
			}
			// A name may also exist with braces, because both forms share their auxiliary keys in Redisson's scheme. The tool checks that, and continues.
			denied := slices.DeleteFunc(s.Denied(t, o.User), func(d string) bool {
				return strings.HasPrefix(d, "key {orders:") || d == "key session:1" || d == "key counter"
			})
			if len(denied) > 0 {
				t.Errorf("denied: %q", denied)
			}
			for _, c := range examine(t, rdb, o).Checks {
				if c.Status == Failure || c.Status == Warning && c.Name != "clock" && c.Name != "memory" {
					t.Errorf("%+v", c)
				}
			}
			if err := test.mayNot(t, rdb, a); err == nil || !strings.Contains(err.Error(), "NOPERM") && !strings.Contains(err.Error(), "can't run this command") {
				t.Errorf("what it may not: %v", err)
			}

			command[2] = "less"
			s.Do(t, append(slices.DeleteFunc(command, func(word string) bool { return word == test.less }), ">secret")...)
			o.User = "less"
			found := slices.ContainsFunc(examine(t, as("less"), o).Checks, func(c Check) bool {
				return c.Name == test.reported && c.Status == Failure && strings.HasSuffix(c.Advice, "ACL SETUSER less "+test.less)
			})
			if !found {
				t.Errorf("the doctor does not find that %s is missing", test.less)
			}
		})
	}
}

func unlock(t *testing.T, _ rueidis.Client, a *admin.Admin) error {
	_, err := a.ForceUnlock(t.Context(), "orders:plain", "", "")
	return err
}

// The prefix of names is literal, and names that contain braces are covered.
func TestACL(t *testing.T) {
	for prefix, want := range map[string]string{"": " ~* ", "a*[b]:": ` ~a\*\[b]:* `} {
		o := Options{Role: "exporter", Prefix: prefix}
		if acl := o.ACL(); !strings.Contains(acl, want) || strings.Contains(acl, "orders") {
			t.Errorf("%q: %s", prefix, acl)
		}
	}
	acl := Options{Role: "operator", Prefix: "a:", Kinds: []string{"fair", "cluster"}}.ACL()
	for _, want := range []string{" ~leasehold_forced:{a:* ", " ~leasehold_forced:a:* ", " +ssubscribe "} {
		if !strings.Contains(acl, want) {
			t.Errorf("no %s in %s", want, acl)
		}
	}
	if strings.Contains(acl, "semaphore") {
		t.Errorf("kinds that nobody named: %s", acl)
	}
}

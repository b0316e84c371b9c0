package reentrant_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/redis/rueidis"
)

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

// newClient returns a client on rdb that is closed, and must close cleanly, at
// the end of t.
func newClient(t testing.TB, rdb rueidis.Client, opts ...client.Option) *client.Client {
	t.Helper()
	c, err := client.New(rdb, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := c.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestRules(t *testing.T) {
	s := redistest.Start(t)
	a := newClient(t, s.Client(t), client.WithWatchdogTimeout(time.Second))
	b := newClient(t, s.Client(t), client.WithWatchdogTimeout(time.Second))
	t.Run("on Redis", func(t *testing.T) {
		locktest.Run(t, locktest.Harness{
			New:      func(name string, opts ...lock.Option) lock.Locker { return a.NewLock(name, opts...) },
			Other:    func(name string, opts ...lock.Option) lock.Locker { return b.NewLock(name, opts...) },
			Watchdog: time.Second,
		})
	})
	wantEmpty(t, s)
}

// The rights that the README asks for are enough for everything a lock does.
func TestRules_withTheLeastRights(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(readme), "A user needs\n`")
	rights, _, ok := strings.Cut(rest, "`")
	if !ok {
		t.Fatal("the README does not say which rights a user needs")
	}
	s := redistest.Start(t)
	s.Do(t, append([]string{"ACL", "SETUSER", "locks", "on", ">secret", "~*", "&redisson_lock__channel:*", "-@all"}, strings.Fields(rights)...)...)
	as := func(o *rueidis.ClientOption) { o.Username, o.Password = "locks", "secret" }
	a := newClient(t, s.Client(t, as), client.WithWatchdogTimeout(time.Second))
	b := newClient(t, s.Client(t, as), client.WithWatchdogTimeout(time.Second))
	t.Run("on Redis", func(t *testing.T) {
		locktest.Run(t, locktest.Harness{
			New:      func(name string, opts ...lock.Option) lock.Locker { return a.NewLock(name, opts...) },
			Other:    func(name string, opts ...lock.Option) lock.Locker { return b.NewLock(name, opts...) },
			Watchdog: time.Second,
		})
	})
	l := a.NewLock("orders")
	mustLock(t, l)
	if _, err := l.Inspect(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := l.ForceUnlock(t.Context()); err != nil {
		t.Error(err)
	}
	denied := s.Do(t, "ACL", "LOG")
	if entries, _ := denied.ToArray(); len(entries) != 0 {
		t.Errorf("denied: %s", denied.String())
	}
}

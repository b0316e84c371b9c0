package reentrant_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/kindtest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/reentrant"
)

// addr is the address of an in-memory server, for the examples.
var addr string

func TestMain(m *testing.M) { redistest.VerifyTestMain(redistest.WithMemory(m, &addr)) }

var _ lock.Locker = (*reentrant.Lock)(nil)

var plain = kindtest.OneHash(
	func(c *client.Client, name string, opts ...lock.Option) lock.Locker { return c.NewLock(name, opts...) },
	func(c *client.Client, name string) kindtest.Operator { return c.NewLock(name) },
)

func TestFaults(t *testing.T) { t.Parallel(); kindtest.Faults(t, plain) }

func TestModel(t *testing.T) { t.Parallel(); kindtest.Model(t, plain) }

func TestRules(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a := kindtest.NewRegistered(t, s.Client(t), kindtest.Fast...)
	b := kindtest.NewRegistered(t, s.Client(t), kindtest.Fast...)
	t.Run("on Redis", func(t *testing.T) { rules(t, a, b) })
	kindtest.SoonEmpty(t, s)
}

// The rules hold while other goroutines of the same clients acquire locks, so that changes are batched.
func TestRules_inBatches(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a := kindtest.NewRegistered(t, s.Client(t), kindtest.Fast...)
	b := kindtest.NewRegistered(t, s.Client(t), kindtest.Fast...)
	ctx, cancel := context.WithCancel(t.Context())
	var others sync.WaitGroup
	for n := range 6 {
		l := []*client.Client{a, b}[n%2].NewLock(fmt.Sprint("busy-", n))
		others.Go(func() {
			for ctx.Err() == nil {
				h, err := l.Lock(t.Context())
				if err == nil {
					err = h.Unlock(t.Context())
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	before := s.CommandCallsByClients(t, "evalsha")
	t.Run("on Redis", func(t *testing.T) { rules(t, a, b) })
	if s.CommandCallsByClients(t, "evalsha") == before {
		t.Error("the lock was never busy")
	}
	cancel()
	others.Wait()
	kindtest.SoonEmpty(t, s)
}

func rules(t *testing.T, a, b *client.Client) {
	locktest.Run(t, locktest.Harness{
		New:      func(name string, opts ...lock.Option) lock.Locker { return a.NewLock(name, opts...) },
		Other:    func(name string, opts ...lock.Option) lock.Locker { return b.NewLock(name, opts...) },
		Watchdog: kindtest.WatchdogTimeout,
	})
}

// The permissions listed in docs/operate/security.md suffice for all operations of a lock.
func TestRules_withMinimalPermissions(t *testing.T) {
	t.Parallel()
	kindtest.Rights(t, plain, []string{"NewLock"}, func(t *testing.T, _ *redistest.Server, a, b *client.Client) {
		t.Run("rules", func(t *testing.T) { rules(t, a, b) })
		byForce(t, a)
	})
}

func TestOptions_withMinimalPermissions(t *testing.T) {
	t.Parallel()
	kindtest.Rights(t, plain, []string{"NewLock", "WithFencing", "WithReplicas"}, func(t *testing.T, s *redistest.Server, a, b *client.Client) {
		fenced := []lock.Option{lock.WithFencing(), lock.WithReplicas(1, 10*time.Millisecond)}
		h := kindtest.MustLock(t, a.NewLock("orders", fenced[0]))
		w := kindtest.Go(t.Context(), b.NewLock("orders", fenced[0]))
		plain.Waiting(t, s, "orders:orders", 1)
		again := kindtest.MustLockUnder(t, h.Context(), a.NewLock("orders", fenced...))
		first := h.Until()
		kindtest.WaitFor(t, "it is renewed", func() bool { return h.Until().After(first.Add(100 * time.Millisecond)) })
		kindtest.MustUnlock(t, again, h)
		kindtest.MustUnlock(t, w.Hold(t))
		if _, err := a.NewLock("orders", fenced...).Lock(t.Context()); !errors.Is(err, lock.ErrReplicas) {
			t.Errorf("%v: there is no replica", err)
		}
		byForce(t, a)
	})
}

func byForce(t *testing.T, c *client.Client) {
	t.Helper()
	l := c.NewLock("by force")
	kindtest.MustLock(t, l)
	if _, err := l.Inspect(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := l.ForceUnlock(t.Context()); err != nil {
		t.Error(err)
	}
}

// Whatever the names are, a process that waits for one lock receives no message about another: each name has a separate
// channel.
func TestChannels_namesLikeChannels(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a, b := kindtest.NewClient(t, s.Client(t), kindtest.Fast...), kindtest.NewClient(t, s.Client(t), kindtest.Fast...)
	id, _, _ := strings.Cut(kindtest.MustLock(t, b.NewLock("who")).Owner(), ":")
	names := []string{"x", "{x}", "{x}:leasehold", "{x}:" + id}
	var waiters []*kindtest.Waiter
	for _, name := range names {
		kindtest.MustLock(t, a.NewLock(name))
		waiters = append(waiters, kindtest.Go(t.Context(), b.NewLock(name)))
	}
	// Two of leasehold for each name, and one of Redisson, which x and {x} share.
	want := 3*len(names) - 1
	channels := func() []string { // excludes the channels for force-unlock notifications
		return slices.DeleteFunc(kindtest.Channels(t, s, "*"), func(c string) bool { return strings.HasPrefix(c, "leasehold_client:") })
	}
	kindtest.WaitFor(t, "b listens", func() bool { return len(channels()) >= want })
	if all := channels(); len(all) != want {
		t.Errorf("%d channels, want %d: %q", len(all), want, all)
	}
	if err := a.Close(t.Context()); err != nil {
		t.Error(err)
	}
	for _, w := range waiters {
		kindtest.MustUnlock(t, w.Hold(t))
	}
}

// Locks that linger keep the rules of all locks.
func TestRules_linger(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a := kindtest.NewRegistered(t, s.Client(t), kindtest.Fast...)
	b := kindtest.NewRegistered(t, s.Client(t), kindtest.Fast...)
	t.Run("on Redis", func(t *testing.T) {
		locktest.Run(t, locktest.Harness{
			New: func(name string, opts ...lock.Option) lock.Locker {
				return a.NewLock(name, kindtest.Lingering(opts)...)
			},
			Other: func(name string, opts ...lock.Option) lock.Locker {
				return b.NewLock(name, kindtest.Lingering(opts)...)
			},
			Watchdog: kindtest.WatchdogTimeout,
		})
	})
	kindtest.SoonEmpty(t, s)
}

package guides

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
)

// A server without the commands that a proxy may lack. Waiters get no notifications there, and poll.
func TestProxy_withoutCommands(t *testing.T) {
	var config []string
	for _, missing := range []string{"HELLO", "CLIENT", "CLUSTER", "SUBSCRIBE", "SSUBSCRIBE", "ROLE"} {
		config = append(config, "--rename-command", missing, "")
	}
	s := redistest.Start(t, config...)
	waiting := map[string]chan struct{}{"plain": make(chan struct{}, 1), "fair": make(chan struct{}, 1), "write": make(chan struct{}, 1), "semaphore": make(chan struct{}, 1)}
	var clients []*client.Client
	for range 2 { // processes
		c, err := client.Open(t.Context(), s.URL(), client.WithObserver(lock.Observer{
			Waiting: func(_ context.Context, e lock.Event) { waiting[e.Kind] <- struct{}{} },
		}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := c.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
		clients = append(clients, c)
	}
	for kind, of := range map[string]func(*client.Client) lock.Locker{
		"plain":     func(c *client.Client) lock.Locker { return c.NewLock("plain") },
		"fair":      func(c *client.Client) lock.Locker { return c.NewFairLock("fair") },
		"write":     func(c *client.Client) lock.Locker { return c.NewRWLock("rw").Write() },
		"semaphore": func(c *client.Client) lock.Locker { return c.NewSemaphore("gpus", 1) },
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			h, err := of(clients[0]).Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error)
			go func() { done <- lock.Do(t.Context(), of(clients[1]), func(context.Context) error { return nil }) }()
			<-waiting[kind]
			if err := h.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}

	l := clients[0].NewLatch("import")
	if _, err := l.TrySetCount(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	released := make(chan error)
	go func() { released <- clients[1].NewLatch("import").Wait(t.Context()) }()
	if _, err := l.CountDown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-released; err != nil {
		t.Error(err)
	}
}

// A proxy can report an error although the server executed the command. After a text that leasehold knows, the call retries; after any other it
// fails, and the lock is released in the background.
func TestProxy_errors(t *testing.T) {
	s := redistest.Start(t)
	for text, known := range map[string]bool{"upstream failure": true, "ERR no luck": false} {
		for what, acquire := range map[string]func(l lock.Locker) (lock.Hold, error){
			"Lock":    func(l lock.Locker) (lock.Hold, error) { return l.Lock(t.Context()) },
			"TryLock": func(l lock.Locker) (lock.Hold, error) { return l.TryLock(t.Context()) },
		} {
			t.Run(what+", "+text, func(t *testing.T) {
				proxy := redistest.NewProxy(t, s.Addr())
				c, err := client.Open(t.Context(), "redis://"+proxy.Addr())
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close(context.Background())
				if err := lock.Do(t.Context(), c.NewLock("other"), func(context.Context) error { return nil }); err != nil { // the server has the scripts now
					t.Fatal(err)
				}
				var reported atomic.Bool // only the first command about this lock, and none of the registry's
				proxy.OnRequest(func(request [][]byte) (act redistest.Action) {
					about := slices.ContainsFunc(request, func(word []byte) bool { return string(word) == "orders:42" })
					if about && reported.CompareAndSwap(false, true) {
						act = redistest.Action{Refuse: text, Execute: true}
					}
					return act
				})
				h, err := acquire(c.NewLock("orders:42"))
				switch {
				case known && err == nil:
					err = h.Unlock(t.Context())
				case !known && err != nil && strings.Contains(err.Error(), "no luck") && !errors.Is(err, lock.ErrUnavailable):
					err = nil
				}
				if err != nil || known != (h != nil) {
					t.Errorf("%v, %v", h, err)
				}
				if err := c.Close(t.Context()); err != nil { // it waits for what goes on in the background
					t.Error(err)
				}
				exists := s.Do(t, "EXISTS", "orders:42")
				if n, err := exists.ToInt64(); n != 0 || err != nil {
					t.Errorf("%d keys of the lock, %v", n, err)
				}
			})
		}
	}
}

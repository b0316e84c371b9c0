package guides

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// connect opens a client behind a proxy that looks like one server, and supports no more than RESP2, scripts and PING.
func connect(url string, opts ...client.Option) (*client.Client, rueidis.Client, error) {
	option, err := client.ParseURL(url)
	if err != nil {
		return nil, nil, err
	}
	option.AlwaysRESP2 = true                           // instead of HELLO 3
	option.ForceSingleClient = true                     // no CLUSTER SLOTS
	option.ClientName = ""                              // no CLIENT SETNAME
	option.ClientSetInfo = rueidis.DisableClientSetInfo // no CLIENT SETINFO
	rdb, err := rueidis.NewClient(option)
	if err != nil {
		return nil, nil, err
	}
	c, err := client.New(rdb, opts...)
	if err != nil {
		rdb.Close()
		return nil, nil, err
	}
	return c, rdb, nil // close c first
}

// A server without the commands that a proxy may lack. Waiters get no notifications there, and poll.
func TestConnect(t *testing.T) {
	var config []string
	for _, missing := range []string{"HELLO", "CLIENT", "CLUSTER", "SUBSCRIBE", "SSUBSCRIBE", "ROLE"} {
		config = append(config, "--rename-command", missing, "")
	}
	s := redistest.Start(t, config...)
	waiting := map[string]chan struct{}{"plain": make(chan struct{}, 1), "fair": make(chan struct{}, 1), "write": make(chan struct{}, 1), "semaphore": make(chan struct{}, 1)}
	var clients []*client.Client
	for range 2 { // processes
		c, rdb, err := connect(s.URL(), client.WithObserver(lock.Observer{
			Waiting: func(_ context.Context, e lock.Event) { waiting[e.Kind] <- struct{}{} },
		}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := c.Close(context.Background()); err != nil {
				t.Error(err)
			}
			rdb.Close()
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

// A proxy that times out may report an error although the server executed the command. No client can tell, so the lock stays until
// its lease expires.
func TestConnect_errorOfTheProxy(t *testing.T) {
	s := redistest.Start(t)
	proxy := redistest.NewProxy(t, s.Addr())
	c, rdb, err := connect("redis://" + proxy.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer rdb.Close()
	defer c.Close(context.Background())
	if err := lock.Do(t.Context(), c.NewLock("other"), func(context.Context) error { return nil }); err != nil { // the server has the scripts now
		t.Fatal(err)
	}
	proxy.OnRequest(func(request [][]byte) (act redistest.Action) {
		if bytes.Contains(bytes.Join(request, nil), []byte("orders:42")) {
			act = redistest.Action{Refuse: "upstream failure", Execute: true}
		}
		return act
	})
	if _, err := c.NewLock("orders:42").TryLock(t.Context()); err == nil || errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("the proxy reports an error: %v", err)
	}
	exists := s.Do(t, "EXISTS", "orders:42")
	if n, err := exists.ToInt64(); n != 1 || err != nil {
		t.Errorf("%d keys of the lock (%v): then the page is wrong", n, err)
	}
}

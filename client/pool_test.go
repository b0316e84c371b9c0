package client_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

const noConnection = "blocking pool exhausted"

// count returns how often the text occurs in the log.
func (s *output) count(what string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Count(s.text.String(), what)
}

// The application uses all connections of the shared pool. The client logs that once, whichever of its parts waits
// for one: notifications, its entry, or acquisitions with replicas.
func TestPool_exhausted(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]client.Option{"with an entry": nil, "without": {client.WithoutRegistry()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			rdb := s.Client(t, func(o *rueidis.ClientOption) { o.BlockingPoolSize = 1; o.ForceSingleClient = true })
			_, release := rdb.Dedicate()
			var all output
			c := open(t, rdb, append(opts, all.logger())...)
			defer release()
			other := open(t, s.Client(t))
			h, err := other.NewLock("held").Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			waited := make(chan error, 1)
			go func() { waited <- lock.Do(t.Context(), c.NewLock("held"), func(context.Context) error { return nil }) }()
			all.soon(t, noConnection)
			for range 2 {
				if _, err := c.NewLock("orders", lock.WithReplicas(1, time.Second)).TryLock(t.Context()); !errors.Is(err, lock.ErrUnavailable) {
					t.Errorf("TryLock with replicas: %v", err)
				}
			}
			if err := h.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
			if err := <-waited; err != nil {
				t.Error(err)
			}
			if n := all.count(noConnection); n != 1 {
				t.Errorf("logged %d times", n)
			}
		})
	}
}

// A server that does not respond also prevents a caller from getting a connection. The log does not report an exhausted
// pool.
func TestPool_pausedServer(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	rdb := s.Client(t, redistest.Via(p))
	var all output
	c := open(t, rdb, all.logger(), client.WithOpTimeout(time.Second))
	p.Freeze(true)
	defer p.Freeze(false)
	for range 2 {
		if _, err := c.NewLock("orders", lock.WithReplicas(1, time.Second)).TryLock(t.Context()); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("TryLock with replicas: %v", err)
		}
	}
	if n := all.count(noConnection); n != 0 {
		t.Errorf("logged %d times", n)
	}
}

// waking is a client whose server was paused. It gets no connection until the server responds to the PING with which the client
// checks whether the server responds at all.
type waking struct {
	rueidis.Client
	awake chan struct{}
	once  *sync.Once
}

func (w waking) Dedicate() (rueidis.DedicatedClient, func()) {
	<-w.awake
	return w.Client.Dedicate()
}

func (w waking) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	if cmd.Commands()[0] == "PING" {
		w.once.Do(func() { close(w.awake) })
	}
	return w.Client.Do(ctx, cmd)
}

// A server that was paused and resumes during that check does not count as an exhausted pool.
func TestPool_pauseEnds(t *testing.T) {
	t.Parallel()
	var all output
	w := waking{redistest.Start(t).Client(t), make(chan struct{}), new(sync.Once)}
	c := open(t, w, all.logger(), client.WithOpTimeout(time.Second), client.WithoutRegistry())
	if _, err := c.NewLock("orders", lock.WithReplicas(1, time.Second)).TryLock(t.Context()); !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("TryLock with replicas: %v", err)
	}
	<-w.awake
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) { // it would log one operation timeout after the PING
		if n := all.count(noConnection); n != 0 {
			t.Fatalf("logged %d times", n)
		}
	}
}

package client_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/ratelimit"
	"github.com/redis/rueidis"
)

// addr is the address of an in-memory server, for the examples.
var addr string

func TestMain(m *testing.M) { redistest.VerifyTestMain(redistest.WithMemory(m, &addr)) }

// On virtual time: with the shortest watchdog timeout, a server has 16 ms to reply.
func TestOptions(t *testing.T) { synctest.Test(t, testOptions) }

func testOptions(t *testing.T) {
	rdb := redistest.NewMini(t).Client(t)
	for name, opts := range map[string][]client.Option{
		"none":                  {},
		"only a short watchdog": {client.WithWatchdogTimeout(time.Second)},
		"the shortest watchdog": {client.WithWatchdogTimeout(100 * time.Millisecond)},
		"a quarter":             {client.WithWatchdogTimeout(time.Second), client.WithOpTimeout(250 * time.Millisecond)},
		"in any order":          {client.WithOpTimeout(250 * time.Millisecond), client.WithWatchdogTimeout(time.Second)},
		"prefix":                {client.WithKeyPrefix("{shop}:")},
		"logger":                {client.WithLogger(slog.Default())},
		"known":                 {client.WithName("billing"), client.WithLabel("zone=a, ä")},
		"unknown":               {client.WithoutRegistry()},
	} {
		c, err := client.New(rdb, opts...)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		h, err := c.NewLock("orders").Lock(t.Context())
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if err := h.Unlock(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOptions_bad(t *testing.T) {
	rdb := redistest.NewMini(t).Client(t)
	for name, bad := range map[string]struct {
		opts []client.Option
		text string
	}{
		"watchdog too short":  {[]client.Option{client.WithWatchdogTimeout(99 * time.Millisecond)}, "WithWatchdogTimeout(99ms): must be at least 100ms"},
		"no watchdog":         {[]client.Option{client.WithWatchdogTimeout(0)}, "WithWatchdogTimeout(0s): must be at least 100ms"},
		"negative watchdog":   {[]client.Option{client.WithWatchdogTimeout(-time.Second)}, "WithWatchdogTimeout(-1s): must be at least 100ms"},
		"no answer allowed":   {[]client.Option{client.WithOpTimeout(0)}, "WithOpTimeout(0s): must be at least 1ms"},
		"no unit":             {[]client.Option{client.WithOpTimeout(5)}, "WithOpTimeout(5ns): must be at least 1ms"},
		"nil option":          {[]client.Option{client.WithKeyPrefix("x"), nil}, "option 2 of 2 is nil"},
		"no time to retry":    {[]client.Option{client.WithWatchdogTimeout(time.Second), client.WithOpTimeout(251 * time.Millisecond)}, "a quarter of the watchdog timeout"},
		"longer than default": {[]client.Option{client.WithOpTimeout(8 * time.Second)}, "a quarter of the watchdog timeout (30s)"},
		"no name":             {[]client.Option{client.WithName("")}, "omit the option"},
		"two lines":           {[]client.Option{client.WithName("a\nb")}, `WithName("a\nb"): must be a single line of text`},
		"no text":             {[]client.Option{client.WithLabel("\xff")}, `WithLabel("\xff"): must be a single line of text`},
		"a long label":        {[]client.Option{client.WithLabel(strings.Repeat("x", 257))}, "WithLabel: 257 bytes: must be at most 256"},
		"nobody sees it":      {[]client.Option{client.WithName("x"), client.WithoutRegistry()}, "WithoutRegistry: WithName and WithLabel have no effect"},
		"half a brace":        {[]client.Option{client.WithKeyPrefix("shop{")}, "key prefix"},
		"for ever":            {[]client.Option{client.WithWatchdogTimeout(1<<63 - 1)}, "must be at most 8760h0m0s"},
		"no such Pub/Sub":     {[]client.Option{client.WithPubSub(7)}, "PubSub(7)"},
		"nil logger":          {[]client.Option{client.WithLogger(nil)}, "WithLogger(nil)"},
	} {
		if _, err := client.New(rdb, bad.opts...); err == nil || !strings.Contains(err.Error(), bad.text) || !isError(err) {
			t.Errorf("%s: got %v, want %q in it", name, err, bad.text)
		}
		if _, err := client.Open(t.Context(), "redis://127.0.0.1:1", bad.opts...); err == nil || !strings.Contains(err.Error(), bad.text) {
			t.Errorf("%s, Open: got %v, want %q in it", name, err, bad.text)
		}
	}
	if _, err := client.New(nil); err == nil {
		t.Error("a client on nothing")
	}
}

// Without a cluster there are no shards. Like Redisson, every client then uses plain Pub/Sub, whatever the option is.
func TestPubSub_oneServer(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for _, p := range []client.PubSub{client.PubSubAuto, client.PubSubPlain, client.PubSubSharded} {
		t.Run(p.String(), func(t *testing.T) {
			s.ResetStats(t)
			var clients [2]*client.Client
			for i := range clients {
				c, err := client.New(s.Client(t), client.WithPubSub(p))
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close(context.Background())
				clients[i] = c
			}
			h, err := clients[0].NewFairLock("orders").Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got := make(chan error)
			go func() { // the release notifies the next waiter if it belongs to another client
				h, err := clients[1].NewFairLock("orders").Lock(t.Context())
				if err == nil {
					err = h.Unlock(t.Context())
				}
				got <- err
			}()
			for queued := int64(0); queued == 0 || s.CommandCalls(t, "subscribe") == 0; time.Sleep(time.Millisecond) {
				length := s.Do(t, "LLEN", "redisson_lock_queue:{orders}")
				queued, _ = length.ToInt64()
			}
			if err := errors.Join(h.Unlock(t.Context()), <-got); err != nil {
				t.Error(err)
			}
			if n := s.CommandCalls(t, "publish"); n == 0 {
				t.Error("nothing was published")
			}
			for _, command := range []string{"spublish", "ssubscribe", "pubsub|shardnumsub"} {
				if n := s.CommandCalls(t, command); n != 0 {
					t.Errorf("%d %s", n, command)
				}
			}
		})
	}
}

func isError(err error) bool { var e *lock.Error; return errors.As(err, &e) && e.Op != "" }

func TestOpen(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	s := redistest.Start(t, "--unixsocket", socket)
	s.Do(t, "ACL", "SETUSER", "locks", "on", ">secret", "~*", "&*", "+@all")
	for _, url := range []string{s.URL(), s.URL() + "/1", "unix://" + socket, "redis://locks:secret@" + s.Addr(), "valkey://" + s.Addr()} {
		c, err := client.Open(t.Context(), url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		h, err := c.NewLock("orders").Lock(t.Context())
		if err != nil {
			t.Errorf("%s: %v", url, err)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Errorf("%s: %v", url, err)
		}
		if !errors.Is(h.Err(), lock.ErrClosed) {
			t.Errorf("%s: %v", url, h.Err())
		}
	}
}

// A nil context is a bug of the caller. Open panics where the caller can recover, and not in a connecting goroutine.
func TestOpen_nilContext(t *testing.T) {
	var none context.Context
	for name, open := range map[string]func() (*client.Client, error){
		"Open": func() (*client.Client, error) { return client.Open(none, "redis://127.0.0.1:1") },
		"OpenWithOption": func() (*client.Client, error) {
			return client.OpenWithOption(none, rueidis.ClientOption{InitAddress: []string{"127.0.0.1:1"}})
		},
	} {
		func() {
			defer func() {
				if p := recover(); p != "leasehold: nil context" {
					t.Errorf("%s: panicked with %v", name, p)
				}
			}()
			_, err := open()
			t.Errorf("%s: %v", name, err)
		}()
	}
}

// Open works where CLIENT TRACKING is denied, as by many providers. Before Redis 7, a user can be denied only CLIENT
// as a whole.
func TestOpen_withoutClientTracking(t *testing.T) {
	s := redistest.Start(t)
	s.Do(t, "ACL", "SETUSER", "default", "-client")
	c, err := client.Open(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.NewLock("orders").Lock(t.Context()); err != nil {
		t.Error(err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestOpen_fails(t *testing.T) {
	unresponsive, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and sends nothing
	if err != nil {
		t.Fatal(err)
	}
	defer unresponsive.Close()
	for _, url := range []string{"redis://127.0.0.1:1", "http://127.0.0.1", "redis://user:secret@127.0.0.1:1/x", "redis://user:secret@[::1", "redis://user:secret", "redis://user:sec ret", "redis://user:a/secret@127.0.0.1", "redis://user:1/secret/b@127.0.0.1", "redis://us/er:secret@127.0.0.1", "%", "redis://user:secret@" + unresponsive.Addr().String()} {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		start := time.Now()
		_, err := client.Open(ctx, url)
		cancel()
		switch {
		case err == nil || !isError(err):
			t.Errorf("%s: %v", url, err)
		case strings.Contains(err.Error(), "secret"):
			t.Errorf("the error contains the password: %v", err)
		case time.Since(start) > 5*time.Second:
			t.Errorf("%s: failed only after %v", url, time.Since(start))
		}
	}
}

// A signal handler and a deferred Close can run concurrently. When either call returns nil, everything is released, and
// neither closes the connection while the other still uses it.
func TestClose_concurrent(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rounds := 1500 // the two calls rarely overlap
	if testing.Short() {
		rounds = 150
	}
	for i := range rounds {
		c, err := client.Open(t.Context(), s.URL())
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"a", "b", "c"} {
			if _, err := c.NewLock(name).Lock(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		errs := make(chan error)
		for range 2 {
			go func() {
				err := c.Close(t.Context())
				if n := s.Do(t, "DBSIZE"); err == nil {
					if left, _ := n.ToInt64(); left != 0 {
						err = fmt.Errorf("Close returned nil, and %d keys were left", left)
					}
				}
				errs <- err
			}()
		}
		for range 2 {
			if err := <-errs; err != nil {
				t.Fatalf("round %d: %v", i, err)
			}
		}
	}
}

// With a paused server, Close returns when its context is canceled, although rueidis waits to close its connections.
func TestClose_pausedServer(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for i := range 5 { // on a busy machine, one can take a second
		p := redistest.NewProxy(t, s.Addr())
		c, err := client.Open(t.Context(), "redis://"+p.Addr())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.NewLock(fmt.Sprint("a", i)).Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		p.Freeze(true)
		t.Cleanup(func() { p.Freeze(false) })
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		start := time.Now()
		if err := c.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if time.Since(start) < 900*time.Millisecond { // rueidis waits for a second
			return
		}
	}
	t.Error("Close continues after its context was canceled")
}

// With a paused server and a context that is never canceled, Close takes at most three operation timeouts. That holds
// whatever the client is used for, and whether or not it owns the connection.
func TestClose_pausedServerWithoutATimeout(t *testing.T) {
	const timeout = 1500 * time.Millisecond
	for _, borrowed := range []bool{false, true} {
		t.Run(fmt.Sprint("borrowed=", borrowed), func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			opts := []client.Option{client.WithWatchdogTimeout(20 * time.Second), client.WithOpTimeout(timeout)}
			c, err := client.New(s.Client(t), opts...)
			if !borrowed {
				c, err = client.Open(t.Context(), s.URL(), opts...)
			}
			if err != nil {
				t.Fatal(err)
			}
			var holds []lock.Hold
			for i, l := range []lock.Locker{
				c.NewLock("a"), c.NewLock("b"), c.NewLock("c", lock.WithFencing()), c.NewFairLock("fair"), c.NewRWLock("rw").Write(), c.NewRWLock("rw2").Read(),
				c.NewSemaphore("permits", 2),
			} {
				h, err := l.Lock(t.Context())
				if err != nil {
					t.Fatalf("lock %d: %v", i, err)
				}
				holds = append(holds, h)
			}
			limiter := c.NewRateLimiter("limiter", ratelimit.FailClosed().After(10*time.Second), ratelimit.PerHour(1))
			if _, err := limiter.Take(t.Context(), "key", 1); err != nil {
				t.Fatal(err)
			}
			leads := make(chan struct{})
			election := c.NewElection("election")
			var ended sync.WaitGroup
			ended.Go(func() {
				_ = election.Run(context.Background(), "me", func(ctx context.Context) error {
					close(leads)
					<-ctx.Done()
					return ctx.Err()
				})
			})
			<-leads
			ended.Go(func() {
				if _, err := c.NewLock("a").Lock(context.Background()); !errors.Is(err, lock.ErrClosed) {
					t.Errorf("a waiter: %v", err)
				}
			})
			ended.Go(func() {
				if err := limiter.Wait(context.Background(), "key", 1); err == nil {
					t.Error("a call got through")
				}
			})
			s.Freeze(t)
			defer s.Thaw(t)
			start := time.Now()
			err = c.Close(context.Background())
			if took := time.Since(start); took > 3*timeout+5*time.Second { // some slack for a busy machine
				t.Errorf("it took %v, and an operation timeout is %v", took, timeout)
			}
			if !errors.Is(err, lock.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v, want %v", err, lock.ErrUnavailable)
			}
			for i, h := range holds {
				if !errors.Is(h.Err(), lock.ErrClosed) {
					t.Errorf("hold %d: %v", i, h.Err())
				}
			}
			ended.Wait()
		})
	}
}

package main

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/docs/programs/programtest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/ratelimit"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	programtest.Child(func() error {
		return run(os.Getenv("REDIS_URL"), "127.0.0.1:0", func(ctx context.Context) error { return programtest.Work(ctx, "prices") })
	})
	goleak.VerifyTestMain(m, redistest.NotOurs())
}

// open returns the client of one process.
func open(t *testing.T, s *redistest.Server) *client.Client {
	t.Helper()
	c, err := client.Open(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// request returns the response of a replica to a request from an address.
func request(replica http.Handler, method, path, address string) *http.Response {
	r := httptest.NewRequest(method, path, nil)
	r.RemoteAddr = address + ":4711"
	w := httptest.NewRecorder()
	replica.ServeHTTP(w, r)
	return w.Result()
}

// available is request until Redis replies in time, which it may not do on a busy machine. The permits of a late reply are returned.
func available(t *testing.T, replica http.Handler, method, path, address string) (resp *http.Response) {
	t.Helper()
	programtest.Until(t, "Redis replies in time", func() bool {
		resp = request(replica, method, path, address)
		return resp.StatusCode != http.StatusServiceUnavailable
	})
	return resp
}

// A client with IPv6 has all addresses of its network, and one with IPv4 has its own in either notation.
func TestByAddress(t *testing.T) {
	for from, want := range map[string]string{
		"192.0.2.7:4711":                   "192.0.2.7",
		"[::ffff:192.0.2.7]:4711":          "192.0.2.7",
		"[2001:db8:1:2:3:4:5:6]:4711":      "2001:db8:1:2::/64",
		"[2001:db8:1:2:ffff::1%eth0]:4711": "2001:db8:1:2::/64",
		"@":                                "unknown",
	} {
		r := httptest.NewRequest(http.MethodGet, "/search", nil)
		r.RemoteAddr = from
		if key, n := byAddress(r); key != want || n != 1 {
			t.Errorf("%s: %d permits of %q, want %q", from, n, key, want)
		}
	}
}

// Two replicas together admit five log-ins of an address. Without Redis, they admit no log-in, and their share of searches.
func TestHandler(t *testing.T) {
	s := redistest.Start(t)
	replicas := []http.Handler{handler(open(t, s)), handler(open(t, s))}
	for i := range 5 {
		if got := available(t, replicas[i%2], "POST", "/login", "10.0.0.1").StatusCode; got != http.StatusNoContent {
			t.Errorf("log-in %d: %d", i+1, got)
		}
	}
	for i, replica := range replicas {
		if got := available(t, replica, "POST", "/login", "10.0.0.1"); got.StatusCode != http.StatusTooManyRequests || got.Header.Get("Retry-After") == "" {
			t.Errorf("log-in 6 at replica %d: %d, %v", i+1, got.StatusCode, got.Header)
		}
	}
	if got := available(t, replicas[0], "POST", "/login", "10.0.0.2").StatusCode; got != http.StatusNoContent {
		t.Errorf("a log-in from another address: %d", got)
	}

	s.Kill(t)
	if got := request(replicas[0], "POST", "/login", "10.0.0.2").StatusCode; got != http.StatusServiceUnavailable {
		t.Errorf("a log-in without Redis: %d", got)
	}
	if got := request(replicas[0], "GET", "/search", "10.0.0.2").StatusCode; got != http.StatusNoContent {
		t.Errorf("a search without Redis: %d", got)
	}
}

// Two workers together call ten times at once, and then wait for their turns. Without Redis, they wait until it is available.
func TestPoll(t *testing.T) {
	s := redistest.Start(t)
	workers := []*client.Client{open(t, s), open(t, s)}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // before the turn of the eleventh call, which therefore fails
	defer cancel()
	calls := 0
	for _, c := range workers {
		err := poll(ctx, c, func(context.Context) error {
			calls++
			return nil
		})
		if !errors.Is(err, ratelimit.ErrLimited) {
			t.Errorf("a worker ended with %v", err)
		}
	}
	if calls != 10 {
		t.Errorf("%d calls, want 10", calls)
	}

	s.Kill(t)
	short, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer stop()
	err := poll(short, workers[0], func(context.Context) error {
		t.Error("a worker called without Redis")
		return nil
	})
	if !errors.Is(err, lock.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without Redis, a worker ended with %v", err)
	}
}

// A connection that breaks while Redis executes a command of Wait does not end a worker.
func TestPoll_brokenConnection(t *testing.T) {
	proxy := redistest.NewProxy(t, redistest.Start(t).Addr())
	c, err := client.Open(t.Context(), "redis://"+proxy.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	var broke atomic.Bool
	proxy.OnRequest(func(req [][]byte) (act redistest.Action) {
		if string(req[0]) == "EVALSHA" && bytes.Contains(bytes.Join(req, nil), []byte("partner")) {
			act.DropReply = !broke.Swap(true)
		}
		return act
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	called := false
	err = poll(ctx, c, func(context.Context) error {
		called = true
		cancel()
		return nil
	})
	if !called || !errors.Is(err, context.Canceled) || !broke.Load() {
		t.Errorf("called %v, connection broken %v, and the worker ended with %v", called, broke.Load(), err)
	}
}

// SIGTERM ends the program.
func TestLimits_sigterm(t *testing.T) {
	s := redistest.Start(t)
	p := programtest.Start(t, "REDIS_URL="+s.URL())
	p.Await("working on prices")
	p.Terminate()
	p.End()
}

package main

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/contrib/httplock"
	"github.com/leasehold-go/leasehold/docs/programs/programtest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/locktest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	programtest.Child(func() error { return run(os.Getenv("REDIS_URL"), "127.0.0.1:0", programtest.Work) })
	goleak.VerifyTestMain(m, redistest.NotOurs())
}

// payOrder acquires the lock itself, for a handler that does other work before or after.
func payOrder(c *client.Client, charge func(ctx context.Context, order string) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		l := lock.UntilUnlock(c.NewLock("orders:" + r.PathValue("id"))) // held even after the client disconnects
		h, err := l.TryLock(r.Context())
		if err != nil {
			if !httplock.WriteError(w, err) { // neither busy, nor unavailable, nor a bad name
				slog.Error("locking an order", "err", err)
				http.Error(w, "internal error", http.StatusInternalServerError)
			}
			return
		}
		defer h.Unlock(r.Context())

		if err := charge(h.Context(), r.PathValue("id")); err != nil {
			if !httplock.WriteError(w, context.Cause(h.Context())) { // not lost: the charge failed
				slog.Error("charging an order", "err", err)
				http.Error(w, "internal error", http.StatusInternalServerError)
			}
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
}

// Both respond with 409 while the order is being paid, and with 503 without Redis.
func TestHTTP(t *testing.T) {
	inside, leave := make(chan struct{}), make(chan struct{})
	charge := func(ctx context.Context, order string) error {
		if order == "slow" {
			close(inside)
			<-leave
		}
		return ctx.Err()
	}
	serve := func(h http.Handler) *httptest.Server {
		s := httptest.NewServer(h)
		t.Cleanup(s.Close)
		return s
	}
	byHand := func(c *client.Client) http.Handler {
		mux := http.NewServeMux()
		mux.Handle("POST /orders/{id}/payment", payOrder(c, charge))
		return mux
	}
	post := func(s *httptest.Server, order string) int {
		resp, err := http.Post(s.URL+"/orders/"+order+"/payment", "", nil)
		if err != nil {
			t.Error(err)
			return 0
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode
	}
	redis := locktest.NewServer(t)
	one, two := serve(payments(redis.Client(t), charge)), serve(byHand(redis.Client(t))) // two replicas
	slow := make(chan int)
	go func() { slow <- post(one, "slow") }()
	<-inside
	for _, s := range []*httptest.Server{one, two} {
		if got := post(s, "slow"); got != http.StatusConflict {
			t.Errorf("an order that is being paid: %d", got)
		}
		if got := post(s, "42"); got != http.StatusNoContent {
			t.Errorf("another order: %d", got)
		}
	}
	close(leave)
	if got := <-slow; got != http.StatusNoContent {
		t.Errorf("the first: %d", got)
	}

	c, err := client.Open(t.Context(), "redis://127.0.0.1:1", client.WithLazyConnect()) // where nobody listens
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	for _, h := range []http.Handler{payments(c, charge), byHand(c)} {
		if got := post(serve(h), "42"); got != http.StatusServiceUnavailable {
			t.Errorf("without Redis: %d", got)
		}
	}
}

// After SIGTERM, the server accepts no request, and a request that it handles keeps its lock until it is done.
func TestHTTP_sigterm(t *testing.T) {
	s := redistest.Start(t)
	p := programtest.Start(t, "REDIS_URL="+s.URL())
	addr := p.Await("serving ")
	status := make(chan int)
	go func() {
		defer close(status)
		browser := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := browser.Post("http://"+addr+"/orders/42/payment", "", nil)
		if err != nil {
			t.Error(err)
			return
		}
		resp.Body.Close()
		status <- resp.StatusCode
	}()
	p.Await("working on 42")
	p.Terminate()
	programtest.Until(t, "the server accepts no connection", func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	if locks := s.LockKeys(t); len(locks) != 1 || locks[0] != "orders:42" {
		t.Errorf("while it handles a request, the server has %q", locks)
	}
	p.Finish()
	if got := <-status; got != http.StatusNoContent {
		t.Errorf("the request got %d", got)
	}
	if out := p.End(); strings.Contains(out, "canceled") {
		t.Errorf("SIGTERM ended the request: %s", out)
	}
	if locks := s.LockKeys(t); len(locks) != 0 {
		t.Errorf("it leaves %q", locks)
	}
}

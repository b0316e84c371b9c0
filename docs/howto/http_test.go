package howto

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/locktest"
)

// payOrder charges one order at a time, in all replicas of the service.
func payOrder(c *client.Client, charge func(ctx context.Context, order string) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		h, err := c.NewLock("orders:" + r.PathValue("id")).TryLock(r.Context())
		switch {
		case errors.Is(err, lock.ErrBadName): // too long, say
			http.Error(w, "no such order", http.StatusNotFound)
			return
		case errors.Is(err, lock.ErrUnavailable): // first: it is not known whether the order is being paid
			w.Header().Set("Retry-After", "5")
			http.Error(w, "try again later", http.StatusServiceUnavailable)
			return
		case errors.Is(err, lock.ErrNotAcquired):
			http.Error(w, "this order is being paid", http.StatusConflict)
			return
		case err != nil:
			slog.Error("locking an order", "err", err)
			http.Error(w, "internal error", http.StatusInternalServerError)
			return
		}
		defer h.Unlock(r.Context())

		// The context ends when the client goes away, and when the lock is lost.
		if err := charge(h.Context(), r.PathValue("id")); err != nil {
			slog.Error("charging an order", "err", err, "lost", errors.Is(h.Err(), lock.ErrLost))
			http.Error(w, "internal error", http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
}

func TestHTTP(t *testing.T) {
	inside, leave := make(chan struct{}), make(chan struct{})
	serve := func(c *client.Client) *httptest.Server {
		mux := http.NewServeMux()
		mux.Handle("POST /orders/{id}/payment", payOrder(c, func(ctx context.Context, order string) error {
			if order == "slow" {
				close(inside)
				<-leave
			}
			return ctx.Err()
		}))
		s := httptest.NewServer(mux)
		t.Cleanup(s.Close)
		return s
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
	one, two := serve(redis.Client(t)), serve(redis.Client(t)) // two replicas
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
	if got := post(serve(c), "42"); got != http.StatusServiceUnavailable {
		t.Errorf("without Redis: %d", got)
	}
}

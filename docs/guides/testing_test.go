package guides

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/contrib/httplock"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/locktest"
)

// report is the code under test: it writes a report for an hour, step by step.
func report(ctx context.Context, l lock.Locker, write func(step int) error) error {
	return lock.Do(ctx, l, func(ctx context.Context) error {
		for step := range 60 {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := write(step); err != nil {
				return err
			}
			time.Sleep(time.Minute)
		}
		return nil
	})
}

// The second report starts when the first one is done. Two hours of renewals take no time.
func TestReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		began := time.Now()
		var done [2]chan error
		for i, c := range []*client.Client{s.Client(t), s.Client(t)} { // two processes
			done[i] = make(chan error, 1)
			go func() { done[i] <- report(t.Context(), c.NewLock("report"), func(int) error { return nil }) }()
		}
		for i := range done {
			if err := <-done[i]; err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(began); took < 2*time.Hour {
			t.Errorf("two reports of an hour took %v", took)
		}
	})
}

// The lock is lost in the middle, as in a failover. No step follows.
func TestReport_lost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		steps := 0
		err := report(t.Context(), s.Client(t).NewLock("report"), func(step int) error {
			if steps++; step == 10 {
				s.Lose("report")
			}
			return nil
		})
		if !errors.Is(err, lock.ErrLost) || steps > 12 {
			t.Errorf("%v, after %d steps", err, steps)
		}
	})
}

// service serves one report at a time.
func service(c *client.Client, write func(ctx context.Context) error) http.Handler {
	return httplock.Handler(
		func(*http.Request) lock.Locker { return c.NewLock("report") },
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if write(r.Context()) == nil {
				w.WriteHeader(http.StatusNoContent)
			}
		}),
		nil,
	)
}

// The service responds with 409 while the lock is held, with 503 while Redis is down, and with 500 after a loss.
func TestService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		write := func(context.Context) error { return nil }
		h := service(s.Client(t), func(ctx context.Context) error { return write(ctx) })
		request := func(want int) {
			t.Helper()
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("POST", "/report", nil))
			if w.Code != want {
				t.Errorf("status %d, want %d", w.Code, want)
			}
		}
		request(http.StatusNoContent)

		busy, err := s.Client(t).NewLock("report").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		request(http.StatusConflict)
		busy.Unlock(t.Context())

		s.Down()
		request(http.StatusServiceUnavailable)
		s.Up()

		write = func(ctx context.Context) error {
			s.Lose("report")
			lost := time.Now()
			<-ctx.Done()
			if took := time.Since(lost); took > 10*time.Second {
				t.Errorf("the loss was detected after %v", took)
			}
			return context.Cause(ctx)
		}
		request(http.StatusInternalServerError)
	})
}

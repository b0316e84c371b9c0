package guides

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/locktest"
)

// outcome says what became of work.
func outcome(ctx context.Context, orders lock.Locker, work func(context.Context) error) string {
	err := lock.Do(ctx, orders, work)
	switch {
	case errors.Is(err, lock.ErrLost):
		return "lost" // the work may be incomplete, or may run twice: check the data
	case errors.Is(err, context.Canceled):
		return "stopped" // ctx was canceled, as on SIGTERM: the work did not start, or did not finish
	case errors.Is(err, lock.ErrNotAcquired):
		return "busy" // another owner has the lock: skip the work, or retry later
	case errors.Is(err, lock.ErrUnavailable):
		return "unavailable" // no reply: the work did not start, or it is done and its release is not confirmed
	case err != nil:
		return "failed" // an error of the work, or a mistake to fix
	}
	return "done"
}

func TestOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		c := s.Client(t)
		orders := c.NewLock("orders:42", lock.WithWait(0))
		nothing := func(context.Context) error { return nil }
		if got := outcome(t.Context(), orders, nothing); got != "done" {
			t.Error(got)
		}
		if got := outcome(t.Context(), orders, func(context.Context) error { return errors.New("no paper") }); got != "failed" {
			t.Error(got)
		}
		if got := outcome(t.Context(), orders, func(ctx context.Context) error {
			if got := outcome(t.Context(), orders, nothing); got != "busy" {
				t.Error(got)
			}
			if _, err := orders.ForceUnlock(t.Context()); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			return context.Cause(ctx)
		}); got != "lost" {
			t.Error(got)
		}
		terminated, terminate := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, terminate)
		if got := outcome(terminated, orders, func(ctx context.Context) error {
			if got := outcome(terminated, c.NewLock("orders:42"), nothing); got != "stopped" { // waits
				t.Error(got)
			}
			return ctx.Err()
		}); got != "stopped" {
			t.Error(got)
		}
		if got := outcome(t.Context(), orders, func(ctx context.Context) error {
			s.Down()
			<-ctx.Done()
			return context.Cause(ctx)
		}); got != "lost" {
			t.Error(got)
		}
		if got := outcome(t.Context(), orders, nothing); got != "unavailable" {
			t.Error(got)
		}
	})
}

// reenter acquires l twice.
func reenter(ctx context.Context, l lock.Locker) error {
	outer, err := l.Lock(ctx) // waits for other owners
	if err != nil {
		return err
	}
	inner, err := l.Lock(outer.Context()) // re-enters at once
	if err != nil {
		return err
	}
	return errors.Join(inner.Unlock(ctx), outer.Unlock(ctx))
}

func TestReenter(t *testing.T) {
	if err := reenter(t.Context(), locktest.NewServer(t).Client(t).NewLock("orders:42")); err != nil {
		t.Error(err)
	}
}

//go:build linux

package integration_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
)

// Is a lock renewed while it is held, whatever happened to its name before?
// These are scenarios in which Redisson had forgotten to renew, or went on when it should
// not.

const renewalDog = 2 * time.Second

// outlives fails unless h is held for two and a half leases.
func outlives(t *testing.T, h lock.Hold) {
	t.Helper()
	select {
	case <-h.Context().Done():
		t.Errorf("it ended after less than two and a half leases: %v", h.Err())
	case <-time.After(2*renewalDog + renewalDog/2):
	}
	if err := h.Err(); err != nil {
		t.Error(err)
	}
}

// The server restarts empty while an owner holds. It is told, and can take the same
// name again, which is then renewed.
func TestRenewal_sameNameAfterALoss(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, k kind) {
		t.Parallel()
		server := redistest.Start(t)
		l := k.lock(ours(t, server.Client(t), client.WithWatchdogTimeout(renewalDog)), "orders")
		h, err := l.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		server.Kill(t)
		server.Restart(t)
		soon(t, h.Context().Done())
		if err := h.Unlock(t.Context()); !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrLost) {
			t.Errorf("unlock of what was lost: %v", err)
		}
		if h, err = l.Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		outlives(t, h)
		if err := h.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		noKeys(t, server)
	}, plain, fair, read, write)
}

// One owner enters twice and leaves twice. Half-way it is still renewed, and so is
// the next owner after it; in the end no owner is.
func TestRenewal_reentry(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, k kind) {
		t.Parallel()
		server := redistest.Start(t)
		var renewals atomic.Int64
		renewed := func(context.Context, lock.Event) { renewals.Add(1) }
		l := k.lock(ours(t, server.Client(t), client.WithWatchdogTimeout(renewalDog), client.WithObserver(lock.Observer{Renewed: renewed, RenewalFailed: renewed})), "orders")
		outer, err := l.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		inner, err := l.Lock(outer.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := inner.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		outlives(t, outer)
		if err := outer.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		next, err := l.TryLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		outlives(t, next)
		if err := next.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		before := renewals.Load() // and not all scripts: where an answer is slow, the client looks for a late copy
		time.Sleep(renewalDog)    // in which a lock is renewed three times
		if more := renewals.Load() - before; before == 0 || more != 0 {
			t.Errorf("%d renewals of a lock that is held, and %d of one that nobody holds", before, more)
		}
		noKeys(t, server)
	}, plain, fair, read, write)
}

// Sixteen goroutines take any lock that is free, and release it, all the time. A goroutine that
// keeps a lock for longer than a lease has it renewed.
func TestRenewal_amongLocksThatComeAndGo(t *testing.T) {
	t.Parallel()
	const goroutines = 16
	server := redistest.Start(t)
	c := ours(t, server.Client(t), client.WithWatchdogTimeout(renewalDog))
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range goroutines {
		wg.Go(func() {
			for l := c.NewLock("busy"); ; {
				select {
				case <-stop:
					return
				default:
				}
				if h, err := l.TryLock(t.Context()); err == nil {
					_ = h.Unlock(t.Context()) // on a busy machine either can take too long; what is kept counts here
				}
			}
		})
	}
	kept, err := c.NewLock("kept").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	h, err := c.NewLock("busy").Lock(t.Context()) // the same name that the others want
	if err != nil {
		t.Fatal(err)
	}
	outlives(t, h)
	if err := errors.Join(kept.Err(), h.Unlock(t.Context()), kept.Unlock(t.Context())); err != nil {
		t.Error(err)
	}
	close(stop)
	wg.Wait()
	noKeys(t, server)
}

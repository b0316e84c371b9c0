package locktest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/locktest"
)

// A job holds a lock with a lease of an hour, and takes longer. It detects the loss in time, another process acquires the
// lock, and the test does not take an hour.
func TestServer_leaseEndsInVirtualTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		here := s.Client(t).NewLock("report", lock.WithFixedLease(time.Hour))
		there := s.Client(t).NewLock("report")

		h, err := here.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(59 * time.Minute)
		if err := h.Err(); err != nil {
			t.Errorf("the hold after 59 minutes: %v, want nil", err)
		}
		if _, err := there.TryLock(t.Context()); !errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("another client's TryLock after 59 minutes: %v, want %v", err, lock.ErrNotAcquired)
		}

		<-h.Context().Done()
		if err := context.Cause(h.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("why the hold ended: %v, want %v", err, lock.ErrLost)
		}
		time.Sleep(time.Minute)
		if _, err := there.TryLock(t.Context()); err != nil {
			t.Errorf("another client's TryLock after an hour: %v, want nil", err)
		}
	})
}

// 1: A holds the lock for minutes. 2: B waits for it. 3: A unlocks, and B acquires it at the same instant, because of a
// notification, not because of its own poll.
func TestServer_unlockWakesAnotherClient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		a, b := s.Client(t).NewLock("report"), s.Client(t).NewLock("report")

		held, err := a.Lock(t.Context()) // 1
		if err != nil {
			t.Fatal(err)
		}
		woken := make(chan time.Time)
		go func() {
			h, err := b.Lock(t.Context()) // 2
			if err != nil {
				t.Error(err)
			} else if err := h.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
			woken <- time.Now()
		}()

		// Not a whole number of seconds, because B polls at whole seconds.
		time.Sleep(5*time.Minute + 123*time.Millisecond)
		unlocked := time.Now()
		if err := held.Unlock(t.Context()); err != nil { // 3
			t.Errorf("unlock after minutes of renewals: %v", err)
		}
		if late := (<-woken).Sub(unlocked); late != 0 {
			t.Errorf("the waiter had the lock %v after the unlock, want at once", late)
		}
	})
}

// The key is deleted manually, and the next renewal notifies the holder.
func TestServer_keyDeleted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		c := s.Client(t, client.WithWatchdogTimeout(30*time.Second))

		h, err := c.NewLock("report").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Redis().Do(t.Context(), s.Redis().B().Del().Key("report").Build()).Error(); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		<-h.Context().Done()
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("the holder was told after %v, want a third of the watchdog timeout at most", took)
		}
		if err := h.Unlock(t.Context()); !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrLost) {
			t.Errorf("unlock: %v, want %v and %v", err, lock.ErrNotHeld, lock.ErrLost)
		}
	})
}

// While time does not advance, tokens from the clock are equal, and tokens from a counter grow.
func TestServer_tokensWhileTimeStops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := locktest.NewServer(t).Client(t)
		token := func(name string, opts ...lock.Option) uint64 {
			h, err := c.NewLock(name, opts...).Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := h.Unlock(t.Context()); err != nil {
				t.Fatal(err)
			}
			return h.Token()
		}
		if first, second := token("report"), token("report"); first != second {
			t.Errorf("tokens %d and %d: time did not stand still", first, second)
		}
		if first, second := token("fenced", lock.WithFencing()), token("fenced", lock.WithFencing()); first >= second {
			t.Errorf("with fencing, token %d after %d", second, first)
		}
	})
}

// Listen gives the server an address.
func TestServer_listen(t *testing.T) {
	t.Parallel()
	s := locktest.NewServer(t)
	addr := s.Listen(t)

	c, err := client.Open(t.Context(), "redis://"+addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	h, err := c.NewLock("report").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Client(t).NewLock("report").TryLock(t.Context()); !errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("TryLock on the port while the lock is held: %v, want %v", err, lock.ErrNotAcquired)
	}
	if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

package reentrant_test

import (
	"errors"
	"testing"

	"github.com/leasehold-go/leasehold/internal/kindtest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
)

// The next holder has a larger token than the one that a holder raised, even if it waits in the same process, where a
// hand-off sends no command.
func TestRaiseToken(t *testing.T) {
	c := kindtest.NewClient(t, redistest.Start(t).Client(t))
	l := c.NewLock("orders", lock.WithFencing())
	for range 100 {
		h, err := l.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		next := make(chan uint64, 1)
		go func() {
			defer close(next)
			h, err := l.Lock(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			next <- h.Token()
			if err := h.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		}()
		// Usually the other waiter is queued when the token counter is raised.
		raised := h.Token() + 1000
		if err := h.(lockimpl.Fenced).RaiseToken(t.Context(), raised); err != nil {
			t.Fatal(err)
		}
		if err := h.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := <-next
		<-next // the lock is free again
		if got <= raised {
			t.Fatalf("the next holder has token %d, the previous one raised its token to %d", got, raised)
		}
	}
}

// A hold that was lost, or has no token counter, raises nothing.
func TestRaiseToken_fails(t *testing.T) {
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t))
	h, err := c.NewLock("orders").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := h.(lockimpl.Fenced).RaiseToken(t.Context(), 1); !errors.Is(err, errors.ErrUnsupported) || errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("without a token counter: %v", err)
	}
	fenced, err := c.NewLock("fenced", lock.WithFencing()).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.Do(t, "DEL", "fenced")
	if err := fenced.(lockimpl.Fenced).RaiseToken(t.Context(), fenced.Token()+1); !errors.Is(err, lock.ErrLost) || errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("the lock is gone on the server: %v", err)
	}
	for _, h := range []lock.Hold{h, fenced} {
		if err := h.Unlock(t.Context()); err != nil && !errors.Is(err, lock.ErrNotHeld) {
			t.Error(err)
		}
	}
}

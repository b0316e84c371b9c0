package session

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

// A fixed lease lasts for as long as it was extended to, in Redis too, and no longer.
func TestExtend_fixedLease(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context(), lock.WithFixedLease(time.Second))
		began := time.Now()
		if err := h.Extend(w.Context(), time.Minute); err != nil {
			w.Fatal(err)
		}
		if got := h.Until().Sub(began); got < 59*time.Second || got > time.Minute {
			w.Errorf("promised for %v", got)
		}
		if err := h.Extend(w.Context(), time.Second); err != nil {
			w.Fatal(err)
		}
		if got := w.mini.TTL("orders"); got < 59*time.Second || got > time.Minute {
			w.Errorf("the key lives for %v", got)
		}
		time.Sleep(time.Until(h.Until()) - time.Millisecond)
		if err := h.Err(); err != nil {
			w.Errorf("before its end: %v", err)
		}
		time.Sleep(2 * time.Millisecond)
		if err := h.Err(); !errors.Is(err, lock.ErrExpired) {
			w.Errorf("after its end: %v", err)
		}
		_ = h.Unlock(w.Context())
	})
}

// A hold that is renewed goes on being renewed. Its lock goes to nobody else in this process
// while its key would outlive the next holder, and Unlock frees it at once.
func TestExtend_renewed(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		ctx, cancel := context.WithCancel(w.Context())
		defer cancel()
		next := w.waitingFor(w.a, ctx, w.a.NewSpec(plain, "orders", nil))
		time.Sleep(time.Millisecond) // for so long that it may be passed on
		if err := h.Extend(w.Context(), time.Hour); err != nil {
			w.Fatal(err)
		}
		if err := h.Unlock(w.Context()); err != nil {
			w.Fatal(err)
		}
		h = <-next
		if left := w.mini.TTL("orders"); left > leaseTime {
			w.Errorf("the key of the next holder lives for %v", left)
		}
		time.Sleep(3 * leaseTime)
		if err := h.Extend(w.Context(), 2*leaseTime); err != nil {
			w.Fatal(err)
		}
		time.Sleep(4 * leaseTime)
		if err := h.Err(); err != nil {
			w.Errorf("it is not renewed any more: %v", err)
		}
		if err := h.Unlock(w.Context()); err != nil {
			w.Fatal(err)
		}
	})
}

// What cannot be extended is told apart: given back, lost, and a duration that nobody means.
func TestExtend_errors(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		for _, d := range []time.Duration{0, -time.Second, lock.MinLease - 1, 1<<63 - 1} {
			if err := h.Extend(w.Context(), d); err == nil || errors.Is(err, lock.ErrNotHeld) || errors.Is(err, lock.ErrUnavailable) {
				w.Errorf("%v: %v", d, err)
			}
		}
		over, cancel := context.WithCancel(w.Context())
		cancel()
		if err := h.Extend(over, time.Minute); !errors.Is(err, context.Canceled) || errors.Is(err, lock.ErrUnavailable) {
			w.Errorf("under a context that is over: %v", err)
		}
		w.mini.Del("orders")
		if err := h.Extend(w.Context(), time.Minute); !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrGone) {
			w.Errorf("after its key was deleted: %v", err)
		}
		if err := h.Err(); !errors.Is(err, lock.ErrGone) {
			w.Errorf("the hold: %v", err)
		}
		if err := h.Extend(h.Context(), time.Minute); !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrGone) {
			w.Errorf("under its own context: %v", err)
		}
		if w.mini.Exists("orders") {
			w.Error("the key is back")
		}
		_ = h.Unlock(w.Context())
		h = w.lock(w.a, w.Context())
		if err := h.Unlock(w.Context()); err != nil {
			w.Fatal(err)
		}
		if err := h.Extend(w.Context(), time.Minute); !errors.Is(err, lock.ErrNotHeld) || errors.Is(err, lock.ErrLost) {
			w.Errorf("after Unlock: %v", err)
		}
	})
}

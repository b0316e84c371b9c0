package session

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
)

// The server does not answer, and the context of Close ends while Close gives a lock back. All the
// same, nothing of the session goes on: no watchdog, no feed, and nothing is in doubt.
func TestClose_endsWithItsContext(t *testing.T) {
	for range 20 { // chance decided it: two channels of a select were ready
		inBubble(t, func(w *world) {
			h := w.lock(w.a, w.Context())
			w.wire.Refuse(true)
			w.wire.CutAll()
			ctx, cancel := context.WithTimeout(w.Context(), time.Second)
			defer cancel()
			err := w.a.Close(ctx)
			if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 of 1 locks") {
				w.Errorf("Close: %v", err)
			}
			if err := h.Err(); !errors.Is(err, lock.ErrClosed) {
				w.Errorf("the hold: %v", err)
			}
			synctest.Wait()
			if n := w.inDoubt(); n != 0 {
				w.Errorf("%d in doubt", n)
			}
			w.mini.FlushAll()
		})
	}
}

// Close called what AtClose was given before a call of AtClose that came before Close had noted its function: that call fails.
func TestAtClose_besideClose(t *testing.T) {
	s := New(redistest.NewMini(t).Client(t), testConfig())
	s.closer.callLast(t.Context()) // as Close does, when no new call can begin
	if _, err := s.AtClose(func(context.Context) {}); !errors.Is(err, lock.ErrClosed) {
		t.Errorf("%v, and the function is never called", err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

package session

import (
	"context"
	"errors"
	"os"
	"reflect"
	"testing"

	"github.com/leasehold-go/leasehold/lock"
)

// Each Lock allocates an acquisition, of the size class of 512 bytes. The next one has 576 bytes, 8 of which the runtime
// uses. What few locks use belongs in a record that is made at first need.
func TestAcquisition_size(t *testing.T) {
	const most = 512
	if size := reflect.TypeFor[acquisition]().Size(); size > most {
		t.Errorf("an acquisition has %d bytes, want at most %d", size, most)
	}
}

// A lock is lost because Redis did not respond until its lease expired. The errors are about the loss: a caller that retries
// after ErrUnavailable must not take them for a lock that was not acquired.
func TestLost_whileUnavailable(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		w.wire.Freeze(true)
		<-h.Context().Done()
		w.wire.Freeze(false)
		for what, err := range map[string]error{"Err": h.Err(), "cause": context.Cause(h.Context()), "Unlock": h.Unlock(w.Context()), "Extend": h.Extend(w.Context(), leaseTime)} {
			if !errors.Is(err, lock.ErrLost) || !errors.Is(err, lock.ErrExpired) || !errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, lock.ErrUnavailable) {
				w.Errorf("%s: %v", what, err)
			}
		}
	})
}

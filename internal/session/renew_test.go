package session

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
)

// A renewal that the watchdog has given up before its goroutine began is not sent: its locks may have been given back
// since. When Late hears of that, no lease becomes longer.
func TestRenewal_unsent(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		held := h.(*hold).tenure()
		r := &renewal{s: w.a, tenures: []*tenure{held}, sent: time.Now().Add(leaseTime / 4)}
		var sent int
		w.wire.OnRequest(func([][]byte) redistest.Action { sent++; return redistest.Action{} })
		until := h.Until()
		r.Late(nil, command.ErrUnsent)
		synctest.Wait()
		w.wire.OnRequest(nil)
		if !r.Asks() || sent != 0 || !h.Until().Equal(until) {
			w.Errorf("it is sent all the same: %v; %d commands; the lease ends at %v instead of %v", !r.Asks(), sent, h.Until(), until)
		}
		r.Late([]luascripts.Renewed{{Verdict: luascripts.Done}}, nil)
		if h.Until().Equal(until) {
			w.Error("the answer to a renewal that was sent counts for nothing")
		}
		w.unlock(h)
	})
}

package session

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/leasehold-go/leasehold/watchdog"
	"github.com/redis/rueidis"
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

// slowBuilder is a client library that takes its time before it builds a command.
type slowBuilder struct {
	rueidis.Client
	gate atomic.Pointer[chan struct{}]
}

func (c *slowBuilder) B() rueidis.Builder {
	if gate := c.gate.Load(); gate != nil {
		<-*gate
	}
	return c.Client.B()
}

// A renewal that the watchdog gives up while its goroutine prepares it is not sent either.
func TestRenewal_givenUp(t *testing.T) {
	inBubble(t, func(w *world) {
		rdb := &slowBuilder{Client: w.mini.Client(w, redistest.Via(w.wire), func(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 })}
		s := New(rdb, testConfig())
		h := w.lock(s, w.Context())
		batch := []watchdog.Subject{h.(*hold).tenure()}
		var sent int
		w.wire.OnRequest(func(words [][]byte) redistest.Action {
			if strings.HasPrefix(string(words[0]), "EVAL") {
				sent++
			}
			return redistest.Action{}
		})
		if errs := s.renew(w.Context(), batch); errs != nil || sent == 0 {
			w.Errorf("a renewal: %v, %d commands", errs, sent)
		}

		sent = 0
		gate := make(chan struct{})
		rdb.gate.Store(&gate)
		errs := s.renew(w.Context(), batch)
		rdb.gate.Store(nil)
		close(gate)
		synctest.Wait()
		if len(errs) != 1 || sent != 0 {
			w.Errorf("%v; %d commands were sent", errs, sent)
		}
		w.wire.OnRequest(nil)
		w.unlock(h)
		if err := s.Close(w.Context()); err != nil {
			w.Error(err)
		}
	})
}

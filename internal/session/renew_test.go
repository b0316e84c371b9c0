package session

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
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

// Once the client library has taken a renewal, it is sent to the end, although the watchdog does not wait any more.
func TestRenewal_givenUpAfterItWasTaken(t *testing.T) {
	r := new(renewal)
	ctx := untilSent{t.Context(), r}
	first := ctx.Err()
	r.givenUp.Store(true)
	if second := ctx.Err(); first != nil || second != nil {
		t.Errorf("%v, then %v", first, second)
	}
}

// A foreign key in the place of a lock is named.
func TestRenewal_foreignKey(t *testing.T) {
	inBubble(t, func(w *world) {
		if err := w.a.renewed(luascripts.Renewed{Verdict: luascripts.Foreign}); !errors.Is(err, watchdog.ErrGone) || !errors.Is(err, lock.ErrWrongType) {
			w.Error(err)
		}
		if err := w.a.renewed(luascripts.Renewed{Verdict: luascripts.Gone}); err != watchdog.ErrGone {
			w.Error(err)
		}
	})
}

// A renewal is answered when the watchdog does not wait any more. It counts, from when it was sent.
func TestRenewal_answeredLate(t *testing.T) {
	inBubble(t, func(w *world) {
		k, sent := w.late()
		h := w.take(w.a, k, w.Context())
		began := time.Now()
		time.Sleep(leaseTime / 3)
		w.mini.SetError("LOADING Redis is loading the dataset in memory") // the renewals that follow fail
		time.Sleep(2 * opTime)
		w.mini.SetError("")
		tenure := h.(*hold).tenure()
		w.wire.Freeze(true) // for all but the first renewal, which goes by another connection
		close(sent)
		synctest.Wait()
		if left := tenure.lease.Until().Sub(began); left < leaseTime/3+leaseTime*9/10 || left > leaseTime/3+leaseTime {
			w.Errorf("the lease ends %v after the grant", left)
		}
		w.wire.Freeze(false)
		w.unlock(h)
	})
}

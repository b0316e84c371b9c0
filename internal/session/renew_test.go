package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// A renewal is not sent if the watchdog gave up before its goroutine started, because its locks may have been released
// since. Late then extends no lease.
func TestRenewal_unsent(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		held := h.(*hold).acquisition()
		r := &renewal{s: w.a, acquisitions: []*acquisition{held}, sent: time.Now().Add(leaseTime / 4)}
		var sent int
		w.wire.OnRequest(func([][]byte) redistest.Action { sent++; return redistest.Action{} })
		until := h.Until()
		r.Late(nil, command.ErrUnsent)
		synctest.Wait()
		w.wire.OnRequest(nil)
		if sent != 0 || !h.Until().Equal(until) {
			w.Errorf("%d commands; the lease ends at %v instead of %v", sent, h.Until(), until)
		}
		r.Late([]luascripts.Renewed{{Verdict: luascripts.Done}}, nil)
		if h.Until().Equal(until) {
			w.Error("the reply to a renewal that was sent has no effect")
		}
		w.unlock(h)
	})
}

// slowBuilder is a rueidis client that is slow to build commands.
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
		rdb := &slowBuilder{Client: w.mini.Client(w, redistest.Via(w.wire), oneConnection)}
		s := New(rdb, testConfig())
		h := w.lock(s, w.Context())
		batch := []watchdog.Subject{h.(*hold).acquisition()}
		var sent int
		w.wire.OnRequest(func(args [][]byte) redistest.Action {
			if strings.HasPrefix(string(args[0]), "EVAL") {
				sent++
			}
			return redistest.Action{}
		})
		if errs := s.renew(w.Context(), batch); errors.Join(errs...) != nil || sent == 0 {
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
		w.wantNoErr(s.Close(w.Context()))
	})
}

// Once rueidis has accepted a renewal, it is sent completely, even if the watchdog has stopped waiting.
func TestRenewal_givenUpAfterItWasSent(t *testing.T) {
	r := new(renewal)
	ctx := untilSent{t.Context(), r}
	first := ctx.Err()
	r.givenUp.Store(true)
	if second := ctx.Err(); first != nil || second != nil {
		t.Errorf("%v, then %v", first, second)
	}
}

// A key of the wrong type in place of the lock is reported.
func TestRenewal_foreignKey(t *testing.T) {
	inBubble(t, func(w *world) {
		if err := w.a.renewalError(luascripts.Renewed{Verdict: luascripts.Foreign}); !errors.Is(err, watchdog.ErrGone) || !errors.Is(err, lock.ErrWrongType) {
			w.Error(err)
		}
		if err := w.a.renewalError(luascripts.Renewed{Verdict: luascripts.Gone}); err != watchdog.ErrGone {
			w.Error(err)
		}
	})
}

// A renewal gets its reply after the watchdog has stopped waiting. It still extends the lease, from the time of the
// send.
func TestRenewal_lateReply(t *testing.T) {
	inBubble(t, func(w *world) {
		k, sent := w.late()
		h := w.take(w.a, k, w.Context())
		start := time.Now()
		time.Sleep(leaseTime / 3)
		w.mini.SetError(loading) // later renewals fail
		time.Sleep(2 * opTime)
		w.wire.Freeze(true) // for all but the first renewal, which uses another connection; a retry is due now
		w.mini.SetError("")
		held := h.(*hold).acquisition()
		close(sent)
		synctest.Wait()
		if left := held.lease.Until().Sub(start); left < leaseTime/3+leaseTime*9/10 || left > leaseTime/3+leaseTime {
			w.Errorf("the lease ends %v after the grant", left)
		}
		w.wire.Freeze(false)
		w.unlock(h)
	})
}

// A session on a cluster estimates which slots are on the same node, and refreshes the table once per renewal interval.
func TestNode_refreshesTheSlots(t *testing.T) { // not in a bubble: the interval counts from the start of the process
	m := redistest.NewMini(t)
	wire := m.Proxy(t)
	var requests atomic.Int64
	wire.OnRequest(func(args [][]byte) redistest.Action {
		if string(args[0]) == "CLUSTER" {
			requests.Add(1)
		}
		return redistest.Action{}
	})
	c := testConfig()
	c.Lease = 24 * time.Hour
	s := New(m.Client(t, redistest.Via(wire)), c)
	s.nodes.sliced = true
	for range 3 {
		s.node(0)
	}
	if err := s.Close(t.Context()); err != nil { // after the reply
		t.Error(err)
	}
	if n := requests.Load(); n != 1 || s.nodes.slots.Of(0) != s.nodes.slots.Of(16383) {
		t.Errorf("got %d queries; slots of one server are together: %v", n, s.nodes.slots.Of(0) == s.nodes.slots.Of(16383))
	}
}

// On a cluster the locks of a slot are renewed together, whatever the order of the batch. Each lock gets its own reply.
func TestRenewal_bySlot(t *testing.T) {
	inBubble(t, func(w *world) {
		w.a.nodes.sliced = true
		var slots []int
		k := hookable()
		k.Renew = func(ctx context.Context, rdb rueidis.Client, batch []luascripts.Renewal, lease time.Duration, perCall int) []luascripts.Renewed {
			for i := range batch {
				slots = append(slots, int(batch[i].Slot))
			}
			return plain.Renew(ctx, rdb, batch, lease, perCall)
		}
		var holds []lock.Hold
		var batch []watchdog.Subject
		for i, slot := range []uint16{7, 3, 5, 7, 3} {
			spec := w.a.NewSpec(k, fmt.Sprint("orders", i), nil)
			spec.slot = slot
			h := w.mustLock(w.Context(), spec)
			holds, batch = append(holds, h), append(batch, h.(*hold).acquisition())
		}
		w.mini.Del("orders1")
		errs := w.a.renew(w.Context(), batch)
		if !slices.IsSorted(slots) || len(slots) != len(batch) {
			w.Errorf("renewed in the order of the slots %d", slots)
		}
		for i := range batch {
			if gone := i == 1; len(errs) != len(batch) || errors.Is(errs[i], watchdog.ErrGone) != gone || (errs[i] != nil) != gone {
				w.Fatalf("the errors are %v", errs)
			}
		}
		for i, h := range holds {
			if err := h.Unlock(w.Context()); errors.Is(err, lock.ErrLost) != (i == 1) {
				w.Error(err)
			}
		}
	})
}

// A release has granted a lock to a waiter that has not claimed it. A batch of renewals skips that lock, and renews the
// others.
func TestRenewal_skipsUnclaimedLocks(t *testing.T) {
	inBubble(t, func(w *world) {
		first, next, goes := w.withNextOwnerInFlight(w.Context())
		var offered []watchdog.Subject
		for _, at := range w.a.table.known {
			for _, of := range at.state.Offered() {
				offered = append(offered, acquisitionOf(of))
			}
		}
		if len(offered) != 1 {
			w.Fatalf("%d are offered", len(offered))
		}
		batch := offered
		var holds []lock.Hold
		for i := range 2 {
			h := w.mustLock(w.Context(), w.a.NewSpec(plain, fmt.Sprint("other", i), nil))
			holds, batch = append(holds, h), append(batch, h.(*hold).acquisition())
		}
		w.mini.Del("other1")
		if errs := w.a.renew(w.Context(), batch); len(errs) != 3 || errs[0] != errUntaken || errs[1] != nil || !errors.Is(errs[2], watchdog.ErrGone) {
			w.Errorf("the errors are %v", errs)
		}
		w.unlock(holds[0])
		_ = holds[1].Unlock(w.Context()) // the lock is gone
		close(goes)
		w.unlock(w.next(first))
		w.unlock(w.next(next))
	})
}

// An owner has two read holds. The key with the lease of both is renewed.
func TestRenewal_ofAllReadHolds(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		holds := []lock.Hold{w.take(w.a, reading, ctx), w.take(w.a, reading, ctx)}
		time.Sleep(2 * leaseTime)
		if left := w.mini.TTL("{orders}:" + holds[0].Owner() + ":rwlock_timeout:2"); left < leaseTime/2 {
			w.Errorf("the read lease has %v left", left)
		}
		w.unlockAll(holds...)
	})
}

// A lock with a fixed lease is renewed while its owner also has a hold without one. After that it expires.
func TestRenewal_ofAFixedLease(t *testing.T) {
	inBubble(t, func(w *world) {
		fixed := w.lock(w.a, w.Context(), lock.WithFixedLease(10*time.Second))
		renewed := w.lock(w.a, fixed.Context())
		time.Sleep(2 * leaseTime)
		if err := renewed.Err(); err != nil {
			w.Errorf("the renewed hold: %v", err)
		}
		w.unlock(renewed)
		time.Sleep(leaseTime)
		w.wantErr(fixed.Err(), lock.ErrExpired)
	})
}

// The application has closed the rueidis client. The error of a renewal says so, and not that Redis is unavailable.
func TestRenewal_closedClient(t *testing.T) {
	inBubble(t, func(w *world) {
		rdb := w.mini.Client(w)
		s := New(rdb, testConfig())
		h := w.lock(s, w.Context())
		rdb.Close()
		errs := s.renew(w.Context(), []watchdog.Subject{h.(*hold).acquisition()})
		if len(errs) != 1 || !errors.Is(errs[0], rueidis.ErrClosing) || errors.Is(errs[0], lock.ErrUnavailable) {
			w.Error(errs)
		}
		_ = s.Close(w.Context())
		w.mini.FlushAll() // the lock could not be released
	})
}

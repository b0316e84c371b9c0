package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
)

// errUnavailable returns the error of a call to which Redis did not reply.
func errUnavailable(t *testing.T) error {
	t.Helper()
	return fmt.Errorf("paused: %w", lock.ErrUnavailable)
}

// The error reports the wait limit only if the limit ended the wait, not if the caller's context was canceled or the
// error is final.
func TestWithWait_whatEnded(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancelLate := context.WithTimeout(t.Context(), 0)
	defer cancelLate()
	dial := fmt.Errorf("%w: %w", lock.ErrUnavailable, &net.OpError{Op: "dial", Err: context.DeadlineExceeded})
	for _, c := range []struct {
		name         string
		ctx, waiting context.Context
		err          error
		limit        bool
	}{
		{"the limit", t.Context(), ended, errHeldHere, true},
		{"the limit, without a reply", t.Context(), ended, errUnavailable(t), true},
		{"the limit, after a dial that timed out", t.Context(), late, dial, true},
		{"the limit has not ended", t.Context(), t.Context(), errHeldHere, false},
		{"the caller's context", ended, ended, errHeldHere, false},
		{"a final error", t.Context(), ended, lock.ErrClosed, false},
		{"an operator's fault", t.Context(), ended, io.EOF, false},
	} {
		a := attempt{caller: caller{ctx: c.ctx}, waiting: c.waiting}
		if err := a.waited(c.err, time.Second); errors.As(err, new(outOfTime)) != c.limit || !errors.Is(err, c.err) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// A reader that could join without a command does not join if its context is canceled.
func TestReaders_joinNotWithACanceledContext(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
		h := w.take(w.a, reading, w.Context())
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		_, err := w.a.Lock(ctx, w.a.NewSpec(reading, "orders", nil))
		w.wantEnd("Lock", err, []error{context.Canceled}, lock.ErrNotAcquired)
		w.unlock(h)
	})
}

// A canceled context without an error ends the wait for another owner, and the wait for another call of the owner.
func TestLock_reusedContext(t *testing.T) {
	forEach(t, allKinds, func(w *world, k *Kind) {
		owner, cancel := context.WithCancel(lock.ContextWithNewOwner(w.Context()))
		h := w.take(w.b, rival(k), w.Context())
		err := w.beginLock(w.a, k, redistest.Reused{Context: owner})
		synctest.Wait()
		cancel()
		w.wantErr(<-err, lock.ErrNotAcquired)
		w.unlock(h)
	})
	inBubble(t, func(w *world) {
		h := w.lock(w.a, lock.ContextWithNewOwner(w.Context()))
		endTurn := takeTurn(h)
		ctx, cancel := context.WithCancel(context.WithoutCancel(h.Context()))
		err := w.beginLock(w.a, plain, redistest.Reused{Context: ctx})
		cancel()
		w.wantErr(<-err, lock.ErrNotAcquired)
		endTurn()
		w.unlock(h)
	})
}

// A context whose error cannot be compared ends the wait for another owner, and the wait for a reply.
func TestLock_incomparableError(t *testing.T) {
	forEach(t, allKinds, func(w *world, k *Kind) {
		h := w.take(w.b, rival(k), w.Context())
		for _, call := range []lockCall{w.a.Lock, w.a.TryLock} {
			ctx, cancel := context.WithCancel(w.Context())
			err := w.beginFail(call, redistest.Incomparable{Context: ctx}, w.a.NewSpec(k, "orders", nil))
			cancel()
			w.wantErr(<-err, lock.ErrNotAcquired)
		}
		w.unlock(h)
		w.wire.OnRequest(func([][]byte) redistest.Action { return redistest.Action{DelayReply: time.Second} })
		for _, call := range []lockCall{w.a.Lock, w.a.TryLock} {
			ctx, cancel := context.WithCancel(w.Context())
			err := w.beginFail(call, redistest.Incomparable{Context: ctx}, w.a.NewSpec(k, "orders", nil))
			cancel()
			w.wantErr(<-err, context.Canceled)
		}
		w.wire.OnRequest(nil)
	})
}

// The acquisition of a reentry has ended: its command is not sent, alone or in a batch.
func TestReentry_ofAnEndedAcquisition(t *testing.T) {
	inBubble(t, func(w *world) {
		for _, k := range []*Kind{plain, alone} {
			h := w.take(w.a, k, w.Context())
			held := h.(*hold).acquisition()
			r := reenterRequest{t: held, q: luascripts.Request{Owner: held.Name, Lease: leaseTime, Want: 2}, sent: new(time.Time)}
			if joins := r.Batch(new(luascripts.Change)) != nil; joins != k.Batches {
				w.Errorf("the acquisition is open, and its command was batched: %v", joins)
			}
			w.unlock(h)
			n := w.scripts()
			if a, err := r.Send(w.Context()); a.Verdict != luascripts.Gone || err != nil || n.Load() != 0 {
				w.Errorf("%v, %v, %d commands", a.Verdict, err, n.Load())
			}
			if r.Batch(new(luascripts.Change)) != nil {
				w.Error("the acquisition has ended, and its command was batched")
			}
		}
	})
}

// A reentry extends the lease, which counts from the send.
func TestReentry_extendsTheLease(t *testing.T) {
	for _, k := range []*Kind{plain, alone} {
		inBubble(t, func(w *world) {
			h := w.take(w.a, k, w.Context())
			until := h.Until()
			time.Sleep(leaseTime / 4) // no renewal is due yet
			again := w.take(w.a, k, h.Context())
			if more := h.Until().Sub(until); more != leaseTime/4 {
				w.Errorf("a reentry after %v extends the lease by %v", leaseTime/4, more)
			}
			w.unlockAll(again, h)
		})
	}
}

// A reentry is executed after its context was canceled. Redis ends up with one hold. If the connection broke, a duplicate
// may be executed later.
func TestReentry_lateReply(t *testing.T) {
	for _, broke := range []bool{false, true} {
		inBubble(t, func(w *world) {
			h := w.take(w.a, alone, w.Context())
			reply := make(chan struct{})
			w.onNext(redistest.Action{HoldReply: reply, DropReply: broke})
			short, cancel := context.WithTimeout(h.Context(), time.Second)
			defer cancel()
			w.wantFail(w.a.Lock, short, w.a.NewSpec(alone, "orders", nil), context.DeadlineExceeded)
			w.wantCount(h, 2)
			close(reply)
			if broke {
				time.Sleep(opTime / 2)
				w.mini.HSet("orders", h.Owner(), "2") // the duplicate
			}
			time.Sleep(opTime)
			w.wantCount(h, 1)
			w.unlock(h)
		})
	}
}

// Owners that share an acquisition re-enter one at a time. The wait for the turn ends when the context of the call is
// canceled.
func TestReaders_reentryEndsInTime(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
		one, other := lock.ContextWithNewOwner(w.Context()), lock.ContextWithNewOwner(w.Context())
		holds := []lock.Hold{w.take(w.a, reading, one), w.take(w.a, reading, other)}
		reply := make(chan struct{})
		w.onNext(redistest.Action{HoldReply: reply})
		first := w.goRead(w.a, one)
		start := time.Now()
		short, cancel := context.WithTimeout(other, time.Second)
		defer cancel()
		w.wantFail(w.a.Lock, short, w.a.NewSpec(reading, "orders", nil), context.DeadlineExceeded)
		w.wantTook(start, time.Second)
		close(reply)
		for _, h := range append(holds, <-first) {
			w.unlock(h)
		}
	})
}

// The first copy of a reentry is executed and its reply is lost. Redis rejects the second copy. The owner has one
// hold, and soon Redis has one, too.
func TestReentry_refusedAfterALostReply(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.a, alone, w.Context())
		w.onScripts(func(n int) redistest.Action {
			switch n {
			case 2:
				w.mini.SetError("NOPERM this user has no permissions")
			case 3:
				w.mini.SetError("")
			}
			return redistest.Action{DropReply: n == 1}
		})
		w.wantFail(w.a.Lock, h.Context(), w.a.NewSpec(alone, "orders", nil))
		w.mini.SetError("")
		time.Sleep(2 * opTime)
		w.wantCount(h, 1)
		w.unlock(h)
	})
}

// A reentry that Redis rejects or executes is no longer in flight.
func TestReentry_inFlight(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		h := w.take(w.a, alone, ctx)
		settled := func(what string) {
			w.Helper()
			t := h.(*hold).acquisition()
			t.at.lock()
			defer t.at.unlock()
			if !t.Changing().IsZero() || t.Unconfirmed() {
				w.Errorf("%s: in flight since %v, unconfirmed: %v", what, t.Changing(), t.Unconfirmed())
			}
		}
		settled("at first")
		again := w.take(w.a, alone, ctx)
		settled("executed")
		w.unlock(again)
		w.mini.SetError("NOPERM this user has no permissions")
		w.wantFail(w.a.Lock, ctx, w.a.NewSpec(alone, "orders", nil))
		w.mini.SetError("")
		settled("refused")
		w.unlock(h)
	})
}

// Close begins while a reentry waits for its reply. The error is ErrClosed.
func TestReentry_duringClose(t *testing.T) {
	inBubble(t, func(w *world) {
		goes := make(chan struct{})
		k := onRequest(plain, func(r request) (luascripts.Acquired, error) {
			if r.Want > 1 {
				<-goes
				r.rdb = w.rdb
			}
			return r.send()
		})
		ctx := lock.ContextWithNewOwner(w.Context())
		w.take(w.a, k, ctx)
		ended := w.beginLock(w.a, k, ctx)
		closed := w.beginClose()
		close(goes)
		if err := <-ended; !errors.Is(err, lock.ErrClosed) || errors.Is(err, lock.ErrLost) {
			w.Error(err)
		}
		w.wantNoErr(<-closed)
	})
}

// A spec can request another attempt with another spec, but not after a grant or after the wait has ended.
func TestLock_again(t *testing.T) {
	changed := errors.New("changed")
	type test struct {
		after    time.Duration // until Again returns
		declines bool
		want     []error
	}
	forEach(t, map[string]test{
		"again":     {},
		"not again": {declines: true, want: []error{changed}},
		"too late":  {after: 2 * time.Second, want: []error{os.ErrDeadlineExceeded, lock.ErrNotAcquired}},
	}, func(w *world, c test) {
		outdated, next := w.a.NewSpec(plain, "orders", []lock.Option{lock.WithWait(time.Second)}), w.a.NewSpec(plain, "orders", nil)
		outdated.Err = changed
		outdated.Again = func(_ context.Context, err error) *Spec {
			if err != changed {
				w.Errorf("asked after %v", err)
			}
			time.Sleep(c.after)
			if c.declines {
				return nil
			}
			return next
		}
		next.Again = func(_ context.Context, err error) *Spec {
			w.Errorf("asked after %v", err)
			return nil
		}
		if c.want != nil {
			w.wantFail(w.a.Lock, w.Context(), outdated, c.want...)
			return
		}
		w.unlock(w.mustLock(w.Context(), outdated))
	})
}

// WithWait does not limit a TryLock, and no limit applies to a hold that was not granted.
func TestTryLock_limits(t *testing.T) {
	inBubble(t, func(w *world) {
		w.slowScripts(10 * time.Millisecond)
		h := w.must(w.a.TryLock(w.Context(), w.a.NewSpec(plain, "orders", []lock.Option{lock.WithWait(time.Millisecond)})))
		w.wantFail(w.a.TryLock, w.Context(), w.a.NewSpec(plain, "orders", []lock.Option{lock.WithMaxHold(time.Minute)}), lock.ErrNotAcquired)
		w.unlock(h)
	})
}

// A TryLock joins the request of another reader late. It still ends within its own operation timeout.
func TestTryLock_joinsLate(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
		w.mini.SetError(loading)
		start := time.Now()
		tried := w.beginFail(w.a.TryLock, w.Context(), w.a.NewSpec(reading, "orders", nil))
		time.Sleep(opTime / 2)
		w.mini.SetError("")
		w.slowScripts(opTime - time.Millisecond)
		reader := w.goRead(w.a, w.Context())
		if err := <-tried; !errors.Is(err, lock.ErrUnavailable) || time.Since(start) != opTime {
			w.Errorf("%v after %v", err, time.Since(start))
		}
		w.unlock(<-reader)
	})
}

// Permits are not reentrant: an owner that has one must acquire another one, and fails if none is available.
func TestTryLock_nonReentrant(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		spec := w.ofOne(w.a, permits)
		h := w.mustLock(ctx, spec)
		w.wantFail(w.a.TryLock, ctx, spec, lock.ErrNotAcquired)
		w.unlock(h)
		w.mini.Del("orders") // the number of permits
	})
}

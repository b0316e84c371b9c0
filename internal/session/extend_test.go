package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/lockstate"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
)

// extend extends h by d, and fails the test on an error.
func (w *world) extend(h lock.Hold, d time.Duration) {
	w.Helper()
	w.wantNoErr(h.Extend(w.Context(), d))
}

// wantLeft fails the test unless left is d, or up to a minute less.
func (w *world) wantLeft(left, d time.Duration) {
	w.Helper()
	if left > d || left < d-min(d/60, time.Minute) {
		w.Errorf("it is promised for %v, want %v", left, d)
	}
}

// A fixed lease lasts exactly until the time to which it was extended, in Redis as well.
func TestExtend_fixedLease(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context(), lock.WithFixedLease(time.Second))
		start := time.Now()
		w.extend(h, time.Minute)
		w.wantLeft(h.Until().Sub(start), time.Minute)
		w.extend(h, time.Second)
		w.wantLeft(w.mini.TTL("orders"), time.Minute)
		time.Sleep(time.Until(h.Until()) - time.Millisecond)
		w.wantHeld(h)
		time.Sleep(2 * time.Millisecond)
		w.wantErr(h.Err(), lock.ErrExpired)
		_ = h.Unlock(w.Context())
		time.Sleep(time.Second) // until Redis has expired the key
	})
}

// A renewed hold is still renewed after an extension. Its lock is not handed off while the key would outlive the next
// holder, and Unlock frees it immediately.
func TestExtend_renewed(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		next := w.waiting(w.a, w.Context())
		time.Sleep(time.Millisecond) // within the time of a hand-off
		w.extend(h, time.Hour)
		w.unlock(h)
		h = <-next
		if left := w.mini.TTL("orders"); left > leaseTime {
			w.Errorf("the TTL of the next holder's key is %v", left)
		}
		time.Sleep(3 * leaseTime)
		w.extend(h, 2*leaseTime)
		time.Sleep(4 * leaseTime)
		w.wantHeld(h)
		w.unlock(h)
	})
}

// Each case has its own error: a released hold, a lost hold, and an invalid duration. The shortest and the longest
// durations are accepted; one that overflows is rejected, and no command is sent.
func TestExtend_errors(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		w.extend(h, lock.MinLease)
		n := w.scripts()
		for _, d := range []time.Duration{0, -time.Second, lock.MinLease - 1, maxExtension + time.Millisecond, 1<<63 - 1} {
			err := h.Extend(w.Context(), d)
			w.wantNotErrs(err, lock.ErrNotHeld, lock.ErrUnavailable)
			if !strings.Contains(fmt.Sprint(err), fmt.Sprintf("%q: %v: must be at ", "orders", d)) {
				w.Errorf("Extend(%v) does not name its argument: %v", d, err)
			}
		}
		done, cancel := context.WithCancel(w.Context())
		cancel()
		err := h.Extend(done, time.Minute)
		synctest.Wait()
		w.wantErr(err, context.Canceled)
		w.wantNotErrs(err, lock.ErrUnavailable)
		w.wantSent(n, 0)
		w.extend(h, maxExtension)
		w.mini.Del("orders")
		w.wantErr(h.Extend(w.Context(), time.Minute), lock.ErrNotHeld, lock.ErrGone)
		w.wantErr(h.Err(), lock.ErrGone)
		w.wantErr(h.Extend(h.Context(), time.Minute), lock.ErrNotHeld, lock.ErrGone)
		w.wantFree()
		_ = h.Unlock(w.Context())
		h = w.lock(w.a, w.Context())
		w.unlock(h)
		err = h.Extend(w.Context(), time.Minute)
		w.wantErr(err, lock.ErrNotHeld)
		w.wantNotErrs(err, lock.ErrLost)
	})
}

// Close, Unlock or a loss ends the hold after Extend has checked it, and before Extend sends a command. Extend reports
// what ended the hold, and sends nothing.
func TestExtend_endsInBetween(t *testing.T) {
	type test struct {
		ends func(w *world, h lock.Hold)
		by   error
	}
	forEach(t, map[string]test{
		"a loss": {func(w *world, h lock.Hold) { w.loseLock(h.(*hold).acquisition()) }, lock.ErrGone},
		"Close":  {func(w *world, _ lock.Hold) { w.close(w.a) }, lock.ErrClosed},
		"Unlock": {func(w *world, h lock.Hold) { w.unlock(h) }, lock.ErrUnlocked},
	}, func(w *world, c test) {
		h := w.lock(w.a, w.Context())
		n := w.scripts()
		ctx := &errHook{Context: w.Context(), f: func() {
			c.ends(w, h)
			n.Store(0)
		}}
		err := h.Extend(ctx, time.Hour)
		w.wantErr(err, lock.ErrNotHeld)
		for _, by := range []error{lock.ErrClosed, lock.ErrGone} {
			if errors.Is(err, by) != (by == c.by) {
				w.Errorf("%v, want %v", err, c.by)
			}
		}
		w.wantSent(n, 0)
		if a := h.(*hold).acquisition(); locked(a.at, a.Unconfirmed) {
			w.Error("an extension that was not sent counts as unconfirmed")
		}
	})
}

// A loss or a Close has removed the hold from its acquisition, and has not set its cause yet. Extend reports which it was.
func TestExtend_beforeTheCause(t *testing.T) {
	for phase, want := range map[lockstate.Phase]error{lockstate.Lost: lock.ErrLost, lockstate.Closed: lock.ErrClosed} {
		inBubble(t, func(w *world) {
			w.observer() // no witness: it is not notified of this end
			h := w.lock(w.a, w.Context()).(*hold)
			a := h.acquisition()
			err := h.Extend(&errHook{Context: w.Context(), f: func() { // the first step of acquisition.end
				a.at.lock()
				a.at.state.End(&a.Acquisition, phase)
				a.at.unlock()
			}}, time.Hour)
			for _, target := range []error{lock.ErrNotHeld, lock.ErrLost, lock.ErrClosed} {
				if errors.Is(err, target) != (target == lock.ErrNotHeld || target == want) {
					w.Errorf("%v, want %v", err, want)
				}
			}
			w.wantNoErr(w.a.release(w.Context(), a, time.Now(), nil))
			a.at.tidy()
		})
	}
}

// A reader has one key for all its holds. It lives as long as the lease, even after a hold was released.
func TestExtend_eachHoldOfAReader(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		first, second := w.take(w.a, reading, ctx), w.take(w.a, reading, ctx)
		w.extend(first, time.Hour)
		key := "{orders}:" + first.Owner() + ":rwlock_timeout:"
		w.wantLeft(w.mini.TTL(key+"2"), time.Hour)
		w.unlock(second)
		w.wantLeft(w.mini.TTL(key+"1"), time.Hour)
		w.unlock(first)
	})
}

// Redis rejects an extension. The hold lives on, because the error does not affect it.
func TestExtend_refused(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		w.mini.SetError("NOPERM this user has no permissions")
		err := h.Extend(w.Context(), time.Hour)
		w.mini.SetError("")
		w.wantNotErrs(err, lock.ErrNotHeld)
		w.wantHeld(h)
		w.unlock(h)
	})
}

// The lease expires while Extend waits for a reply that never comes: the hold is lost, and Extend returns that.
func TestExtend_expiresInBetween(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context(), lock.WithFixedLease(time.Second))
		reply := make(chan struct{})
		w.onNext(redistest.Action{HoldReply: reply})
		w.wantErr(h.Extend(w.Context(), time.Minute), lock.ErrNotHeld, lock.ErrExpired)
		close(reply)
	})
}

// late returns a kind whose first renewal is not sent until sent is closed.
func (w *world) late() (k *Kind, sent chan struct{}) {
	sent = make(chan struct{})
	return onRenewal(hookable(), func(r renews) []luascripts.Renewed {
		if r.n == 1 {
			<-sent
			r.ctx, r.rdb = w.Context(), w.rdb
		}
		return r.send()
	}), sent
}

// Extend is replied to after its context was canceled. A confirmation extends the lease, from the time of the send; an
// error does not.
func TestExtend_lateReply(t *testing.T) {
	forEach(t, map[string]bool{"gone": true, "confirmed": false}, func(w *world, gone bool) {
		k, sent := w.late()
		h := w.take(w.a, k, w.Context(), lock.WithFixedLease(leaseTime))
		until := h.Until()
		if gone {
			w.mini.Del("orders")
		}
		start := time.Now()
		err := h.Extend(w.within(time.Second), time.Hour)
		w.wantErr(err, context.DeadlineExceeded)
		w.wantNotErrs(err, lock.ErrNotHeld)
		close(sent)
		synctest.Wait()
		if !gone {
			w.wantLeft(h.Until().Sub(start), time.Hour)
		} else if got := h.Until(); !got.Equal(until) {
			w.Errorf("it is gone, and promised for %v", got.Sub(start))
		}
		if err := h.Unlock(w.Context()); errors.Is(err, lock.ErrLost) != gone {
			w.Error(err)
		}
	})
}

// Redis confirms an extension, so it cannot be executed later. After Unlock, one command retains the lock, and no other
// command follows.
func TestExtend_confirmed(t *testing.T) {
	inBubble(t, func(w *world) {
		for _, commands := range []int64{4, 2} { // an extension and a retention; the first time, each is resent with its script
			h := w.lock(w.a, w.Context(), lock.WithMinHold(time.Second))
			n := w.scripts()
			w.extend(h, time.Minute)
			w.unlock(h)
			time.Sleep(time.Minute)
			w.wantSent(n, commands)
		}
	})
}

// The reply to Extend comes after its caller left, and so late that the command may have been sent twice. The second copy
// may be executed later.
func TestExtend_lateReplyOfACopy(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		w.onNext(redistest.Action{DelayReply: 2 * time.Second})
		w.wantErr(h.Extend(w.within(time.Second/2), time.Minute), context.DeadlineExceeded)
		time.Sleep(2 * time.Second)
		if a := h.(*hold).acquisition(); !locked(a.at, func() bool { return a.Late && !a.Unconfirmed() }) {
			w.Error("no copy of the extension is expected")
		}
		w.unlock(h)
	})
}

// Extend was executed, and its reply is lost. The hold ends as if it had not been extended, and the lock does not stay
// locked without a holder.
func TestExtend_replyLost(t *testing.T) {
	inBubble(t, func(w *world) {
		k := onRenewal(plain, func(r renews) []luascripts.Renewed {
			_ = r.send()
			return []luascripts.Renewed{{Err: io.EOF}}
		})
		h := w.take(w.a, k, w.Context(), lock.WithFixedLease(leaseTime))
		w.wantErr(h.Extend(w.Context(), time.Hour), lock.ErrUnavailable)
		<-h.Context().Done()
		w.wantErr(h.Err(), lock.ErrExpired)
		time.Sleep(leaseTime)
		w.wantFree()
	})
}

// A process was paused, and the lease has expired. Extend is the first to check it, and sends no command, even if Redis
// still has the lock.
func TestExtend_checksTheClock(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.untilTheClock(lock.WithFixedLease(time.Second))
		start := time.Now()
		ctx := &errHook{Context: w.Context(), f: func() { w.Error("Extend went on") }}
		w.wantErr(h.Extend(ctx, time.Minute), lock.ErrNotHeld, lock.ErrExpired)
		w.wantTook(start, 0)
		time.Sleep(time.Second)
	})
}

// A fixed lease expires in Redis without a command. The hold ends slightly earlier, because clocks may differ. No other
// owner has the lock until the full lease has passed, and then a waiter has it immediately.
func TestFixedLease_lastsToTheEnd(t *testing.T) {
	forEach(t, map[string]*Kind{"plain": plain, "fair": fair, "writer": writing}, func(w *world, k *Kind) {
		start := time.Now()
		h := w.take(w.a, k, w.Context(), lock.WithFixedLease(time.Hour))
		<-h.Context().Done()
		w.wantErr(h.Err(), lock.ErrExpired)
		if early := time.Hour - time.Since(start); early <= 0 {
			w.Errorf("%v before its end", early)
		}
		time.Sleep(time.Second)
		w.refused(w.b, k)
		next := w.take(w.b, k, w.Context())
		if after := time.Since(start) - time.Hour; after < 0 || after > pollTime {
			w.Errorf("the next has it %v after the end", after)
		}
		w.unlock(next)
	})
}

// A release offers the lock to a waiter, with a separate lease; a call with a fixed lease claims it. The lock is free
// when the fixed lease expires, and not when the offer does.
func TestFixedLease_afterAHandOff(t *testing.T) {
	const fixed = pollTime / 2
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		ctx, cancel := context.WithCancel(w.Context())
		gone := w.waiting(w.b, ctx)
		short := w.waiting(w.b, w.Context(), lock.WithFixedLease(fixed))
		time.Sleep(pollTime / 2)
		cancel()
		if h := <-gone; h != nil {
			w.unlock(h)
		}
		w.unlock(h)
		got := w.next(short)
		start := time.Now()
		next := w.take(w.a, plain, w.Context())
		w.wantWithin(start, fixed) // it is released as soon as it is lost
		w.wantErr(got.Err(), lock.ErrExpired)
		w.unlock(next)
	})
}

// A reentry extends the lock in Redis. Its caller leaves before the reply, or the fixed lease expires here before it. The
// lock is free then, and not a lease after the reentry.
func TestFixedLease_afterAReentry(t *testing.T) {
	type row struct {
		after   time.Duration // when the owner re-enters, after the grant
		timeout time.Duration // of the reentry
		err     error
	}
	forEach(t, map[string]row{
		"abandoned": {2 * time.Second, 100 * time.Millisecond, context.DeadlineExceeded},
		"too late":  {4*time.Second - 100*time.Millisecond, time.Second, lock.ErrLost},
	}, func(w *world, c row) {
		fixed := lock.WithFixedLease(4 * time.Second)
		h := w.take(w.a, alone, w.Context(), fixed)
		time.Sleep(c.after)
		w.onNext(redistest.Action{DelayReply: 200 * time.Millisecond})
		ctx, cancel := context.WithTimeout(context.WithoutCancel(h.Context()), c.timeout)
		defer cancel()
		w.wantFail(w.a.Lock, ctx, w.a.NewSpec(alone, "orders", []lock.Option{fixed}), c.err)
		<-h.Context().Done()
		time.Sleep(time.Second) // for its release
		w.tryElsewhere(alone)
	})
}

// A writer with a fixed lease whose owner also reads stops writing when that lease expires, although the reader
// continues, or had a longer lease.
func TestFixedLease_ofAWriterThatReads(t *testing.T) {
	forEach(t, map[string]bool{"leaves": true, "stays": false}, func(w *world, leaves bool) {
		write := w.take(w.a, writing, w.Context(), lock.WithFixedLease(2*time.Second))
		owner := context.WithoutCancel(write.Context())
		read := w.take(w.a, reading, owner, lock.WithFixedLease(time.Hour))
		if leaves {
			w.unlock(read)
		}
		<-write.Context().Done()
		time.Sleep(time.Second)
		w.tryElsewhere(reading)
		if !leaves {
			w.unlock(read)
		}
	})
}

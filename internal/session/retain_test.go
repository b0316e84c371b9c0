package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

const minute = time.Minute // longer than a lease

// The lock is handed off just before a failed renewal of the previous hold is recorded. It may be executed later, and
// belongs to the next hold then.
func TestUnrenewed_afterAHandOff(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		waiter := w.waiting(w.a, w.Context())
		time.Sleep(time.Millisecond) // tokens need the clock to move
		w.unlock(h)
		second := w.next(waiter)
		h.(*hold).acquisition().markLate()
		if a := second.(*hold).acquisition(); !locked(a.at, func() bool { return a.Late }) {
			w.Error("the next hold expects no delayed renewal")
		}
		w.unlock(second)
	})
}

// A lock that is unlocked early stays locked for its minimum hold time, and no longer.
func TestMinHold(t *testing.T) {
	forEach(t, map[string]*Kind{"plain": plain, "fair": fair}, func(w *world, k *Kind) {
		start := time.Now()
		h := w.take(w.a, k, w.Context(), lock.WithMinHold(minute))
		time.Sleep(time.Second)
		w.unlock(h)
		w.wantErr(h.Err(), lock.ErrUnlocked)
		w.wantTTL(0, minute-time.Second)
		for _, s := range []*Session{w.a, w.b} {
			w.wantFail(s.TryLock, w.Context(), s.NewSpec(k, "orders", nil), lock.ErrNotAcquired)
		}
		here, there := w.goLock(w.a, k, w.Context()), w.goLock(w.b, k, w.Context())
		for range 2 {
			select {
			case h = <-here:
				here = nil
			case h = <-there:
				there = nil
			}
			if after := time.Since(start); after < minute || after > minute+2*pollTime {
				w.Errorf("the next got it after %v", after)
			}
			w.unlock(h)
		}
	})
}

// wantTTL fails the test unless the TTL of the lock is in these bounds.
func (w *world) wantTTL(least, most time.Duration) {
	w.Helper()
	if left := w.mini.TTL("orders"); left < least || left > most {
		w.Errorf("the TTL is %v, want %v to %v", left, least, most)
	}
}

// goLockSoon is goLock for a lock that is handed off: it also lets the clock move, which tokens need.
func (w *world) goLockSoon(k *Kind, ctx context.Context, opts ...lock.Option) <-chan lock.Hold {
	w.Helper()
	next := w.goLock(w.a, k, ctx, opts...)
	time.Sleep(time.Millisecond)
	return next
}

// If the process dies or closes the client, the lock stays locked for the same time.
func TestMinHold_withoutUnlock(t *testing.T) {
	inBubble(t, func(w *world) {
		w.unlock(w.lock(w.a, w.Context())) // loads the script
		n := w.scripts()
		h := w.lock(w.a, w.Context(), lock.WithMinHold(minute))
		w.wantSent(n, 1)
		w.wantTTL(minute, 2*minute) // without a renewal
		time.Sleep(time.Second)
		w.close(w.a)
		w.wantTTL(minute-2*time.Second, minute-time.Second)
		w.wantErr(h.Err(), lock.ErrClosed)
		time.Sleep(minute)
		w.wantEmpty()
	})
}

// The longest minimum hold time of an owner's holds decides, in whatever order they come.
func TestMinHold_longestWins(t *testing.T) {
	inBubble(t, func(w *world) {
		for _, holds := range [][2]time.Duration{{minute, time.Second}, {time.Second, minute}} {
			outer := w.lock(w.a, w.Context(), lock.WithMinHold(holds[0]))
			inner := w.lock(w.a, outer.Context(), lock.WithMinHold(holds[1]))
			w.unlockAll(inner, outer)
			w.wantTTL(minute-time.Second, minute)
			time.Sleep(minute)
		}
	})
}

// After the minimum hold time, Unlock frees the lock immediately.
func TestMinHold_later(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context(), lock.WithMinHold(minute))
		time.Sleep(minute)
		w.unlock(h)
		w.wantEmpty()
	})
}

// Redis does not reply to the Unlock. The reconciler repeats the command later, and does not free the lock.
func TestMinHold_reconciles(t *testing.T) {
	inBubble(t, func(w *world) {
		start := time.Now()
		h := w.lock(w.a, w.Context(), lock.WithMinHold(minute))
		w.cut()
		w.wantErr(h.Unlock(w.Context()))
		time.Sleep(5 * time.Second)
		w.wire.Refuse(false)
		time.Sleep(10 * time.Second)
		want := minute - time.Since(start)
		w.wantTTL(want-time.Second, want)
		time.Sleep(minute)
	})
}

// A lock that was handed off inside the process has less lease time left, so its lease is extended.
func TestMinHold_handedOff(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		next := w.goLockSoon(plain, w.Context(), lock.WithMinHold(minute))
		w.unlock(h)
		h = <-next
		w.wantTTL(minute, 2*minute)
		w.unlock(h)
		w.wantTTL(minute-time.Second, minute)
		time.Sleep(minute)
	})
}

// A lock that must stay locked is not handed off inside the process either.
func TestMinHold_isNotHandedOff(t *testing.T) {
	inBubble(t, func(w *world) {
		start := time.Now()
		h := w.lock(w.a, w.Context(), lock.WithMinHold(leaseTime/2))
		next := w.goLockSoon(plain, w.Context())
		w.unlock(h)
		h = <-next
		if after := time.Since(start); after < leaseTime/2 {
			w.Errorf("the next got it after %v", after)
		}
		w.unlock(h)
	})
}

// The reply to an Unlock is lost, and the lock expires before the repetition arrives.
func TestMinHold_lostReply(t *testing.T) {
	inBubble(t, func(w *world) {
		w.unlock(w.lock(w.a, w.Context(), lock.WithMinHold(time.Second))) // loads the scripts
		h := w.lock(w.a, w.Context(), lock.WithMinHold(time.Second))
		time.Sleep(time.Second - time.Millisecond)
		w.onNext(redistest.Action{DropReply: true})
		w.unlock(h)
	})
}

// wantFree fails if Redis still has the lock, which then has time to expire.
func (w *world) wantFree() {
	w.Helper()
	if w.mini.Exists("orders") {
		w.Errorf("it is held for %v more, without a holder", w.mini.TTL("orders"))
		time.Sleep(time.Hour)
	}
}

// A duplicate of a request, a renewal or an extension is executed after the Unlock. It does not extend the minimum hold time,
// even if its outcome is not known to the watchdog, or became known before there was a minimum hold time.
func TestMinHold_delayedCommand(t *testing.T) {
	minimum := lock.WithMinHold(2 * leaseTime / 3)
	// failedRenewal returns a kind whose first renewal fails, after a delay. The server executes it when execute is called.
	failedRenewal := func(w *world, delay time.Duration) (k *Kind, execute func()) {
		var delayed atomic.Pointer[renews]
		return onRenewal(hookable(), func(r renews) []luascripts.Renewed {
				if !delayed.CompareAndSwap(nil, &r) {
					return r.send()
				}
				time.Sleep(delay)
				return []luascripts.Renewed{{Err: io.EOF}}
			}), func() {
				r := *delayed.Load()
				r.ctx, r.rdb = w.Context(), w.rdb
				r.send()
			}
	}
	forEach(t, map[string]func(w *world) (h lock.Hold, execute func()){
		"a request": func(w *world) (lock.Hold, func()) {
			k, execute := w.failOnce()
			k.Retain = plain.Retain
			return w.take(w.a, k, w.Context(), minimum), execute
		},
		"a renewal": func(w *world) (lock.Hold, func()) {
			k, execute := failedRenewal(w, 0)
			h := w.take(w.a, k, w.Context(), minimum)
			time.Sleep(leaseTime / 2)
			return h, execute
		},
		"an extension": func(w *world) (lock.Hold, func()) {
			k, execute := failedRenewal(w, 0)
			h := w.take(w.a, k, w.Context(), minimum)
			w.wantNoErr(h.Extend(w.Context(), time.Hour))
			return h, execute
		},
		"a renewal in flight at Unlock": func(w *world) (lock.Hold, func()) {
			k, execute := failedRenewal(w, 2*time.Second)
			h := w.take(w.a, k, w.Context(), minimum)
			time.Sleep(leaseTime/3 + time.Second)
			return h, execute
		},
		"a renewal in flight when it is abandoned": func(w *world) (lock.Hold, func()) {
			k, execute := failedRenewal(w, 2*time.Second)
			ctx, cancel := context.WithCancel(w.Context())
			h := w.take(w.a, k, ctx, minimum, lock.WithGrace(time.Second))
			cancel()
			time.Sleep(leaseTime/3 + time.Second + time.Millisecond)
			w.wantErr(h.Err(), lock.ErrAbandoned)
			return nil, execute
		},
		"a renewal before the reentry with the minimum": func(w *world) (lock.Hold, func()) {
			k, execute := failedRenewal(w, 0)
			outer := w.take(w.a, k, w.Context())
			time.Sleep(leaseTime / 2)
			inner := w.take(w.a, k, outer.Context(), minimum)
			w.unlock(outer)
			return inner, execute
		},
		"an extension before the hand-off": func(w *world) (lock.Hold, func()) {
			k, execute := failedRenewal(w, 0)
			first := w.take(w.a, k, w.Context())
			next := w.goLock(w.a, k, w.Context(), minimum)
			w.wantNoErr(first.Extend(w.Context(), leaseTime))
			return w.handedTo(first, next), execute
		},
	}, func(w *world, last func(w *world) (h lock.Hold, execute func())) { w.expiresAfter(last) })
}

// handedTo releases h, and returns the next hold, to which the lock must be handed off.
func (w *world) handedTo(h lock.Hold, next <-chan lock.Hold) lock.Hold {
	w.Helper()
	w.unlock(h)
	second := <-next
	if second.Owner() != h.Owner() {
		w.Error("the lock was not handed off")
	}
	return second
}

// expiresAfter fails the test if a command that is executed after the Unlock of the last hold extends its minimum hold time of
// two thirds of a lease.
func (w *world) expiresAfter(last func(w *world) (h lock.Hold, execute func())) {
	w.Helper()
	h, execute := last(w)
	if h != nil {
		w.unlock(h)
	}
	time.Sleep(time.Second)
	execute()
	time.Sleep(2 * leaseTime / 3)
	w.wantFree()
}

// The same for extensions and reentries that are in flight during the last Unlock, and for a duplicate of a reentry.
func TestMinHold_inFlight(t *testing.T) {
	minimum := lock.WithMinHold(2 * leaseTime / 3)
	extend := func(w *world, h lock.Hold, d time.Duration) {
		go func() { _ = h.Extend(w.Context(), d) }()
		synctest.Wait()
	}
	reenter := func(w *world, k *Kind, outer lock.Hold) (inner lock.Hold, err error) {
		ctx := context.WithoutCancel(outer.Context()) // Unlock does not end the call
		return w.a.TryLock(ctx, w.a.NewSpec(k, "orders", []lock.Option{minimum}))
	}
	forEach(t, map[string]func(w *world) (h lock.Hold, execute func()){
		"an extension": func(w *world) (lock.Hold, func()) {
			k, sent := w.late()
			h := w.take(w.a, k, w.Context(), minimum)
			extend(w, h, time.Hour)
			return h, func() { close(sent) }
		},
		"an extension whose caller left": func(w *world) (lock.Hold, func()) {
			k, sent := w.late()
			h := w.take(w.a, k, w.Context(), minimum)
			w.wantErr(h.Extend(w.within(time.Second/2), time.Hour), context.DeadlineExceeded) // too short to send it twice
			return h, func() { close(sent) }
		},
		"an extension before a hand-off": func(w *world) (lock.Hold, func()) {
			k, sent := w.late()
			first := w.take(w.a, k, w.Context())
			next := w.goLockSoon(k, w.Context(), minimum)
			extend(w, first, leaseTime)
			return w.handedTo(first, next), func() { close(sent) }
		},
		"a reentry": func(w *world) (lock.Hold, func()) {
			sent := make(chan struct{})
			k := onRequest(plain, func(r request) (luascripts.Acquired, error) {
				if r.Want > 1 {
					<-sent
				}
				return r.send()
			})
			h := w.take(w.a, k, w.Context(), minimum)
			go func() { _, _ = reenter(w, k, h) }()
			synctest.Wait()
			return h, func() { close(sent) }
		},
		"a duplicate of a reentry": func(w *world) (lock.Hold, func()) {
			var execute func()
			k := onRequest(plain, func(r request) (luascripts.Acquired, error) {
				if r.Want > 1 && execute == nil {
					r.ctx, r.rdb = w.Context(), w.rdb
					execute = func() { _, _ = r.send() }
					return luascripts.Acquired{}, io.EOF
				}
				return r.send()
			})
			h := w.take(w.a, k, w.Context(), minimum)
			inner := w.must(reenter(w, k, h))
			w.unlock(inner)
			return h, execute
		},
	}, func(w *world, last func(w *world) (h lock.Hold, execute func())) { w.expiresAfter(last) })
}

// An extension or a reentry is in flight during the last Unlock, and is executed after its command. The context of the Unlock
// is canceled before the reply, or the other command is confirmed first.
func TestMinHold_inFlightAndLateReply(t *testing.T) {
	for _, c := range []struct{ reenters, canceled bool }{{false, true}, {false, false}, {true, true}, {true, false}} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			inBubble(t, func(w *world) {
				k, sent := w.late()
				k.Acquire = func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Request) (luascripts.Acquired, error) {
					if q.Want > 1 {
						<-sent
					}
					return plain.Acquire(ctx, rdb, k, q)
				}
				reply := make(chan struct{})
				k.Retain = func(ctx context.Context, rdb rueidis.Client, keys luascripts.Keys, owner string, rest time.Duration) (luascripts.Verdict, error) {
					v, err := plain.Retain(ctx, rdb, keys, owner, rest)
					<-reply
					return v, err
				}
				h := w.take(w.a, k, w.Context(), lock.WithMinHold(2*leaseTime/3))
				reentering := context.WithoutCancel(h.Context()) // Unlock does not end the call
				go func() {
					if c.reenters {
						_, _ = w.a.TryLock(reentering, w.a.NewSpec(k, "orders", nil))
					} else {
						_ = h.Extend(w.Context(), time.Hour)
					}
				}()
				synctest.Wait()
				late := []chan struct{}{sent, reply}
				ctx := w.Context()
				if c.canceled {
					late = []chan struct{}{reply, sent}
					ctx = w.within(time.Second)
				}
				ended := w.begin(func() error { return h.Unlock(ctx) })
				if c.canceled {
					time.Sleep(time.Second)
					synctest.Wait()
				}
				for _, is := range late {
					close(is)
					synctest.Wait()
				}
				if err := <-ended; errors.Is(err, context.DeadlineExceeded) != c.canceled || err != nil && !c.canceled {
					w.Error(err)
				}
				time.Sleep(2 * leaseTime / 3)
				w.wantFree()
			})
		})
	}
}

// A lock is handed off to a call with WithMinHold, which extends its lease, and Redis is unavailable: the call ends
// when its context is canceled, and reports that.
func TestMinHold_unavailable(t *testing.T) {
	for limit, want := range map[time.Duration]error{2 * time.Second: context.DeadlineExceeded, time.Hour: lock.ErrUnavailable} {
		inBubble(t, func(w *world) {
			other := w.lock(w.b, w.Context())
			first := w.waiting(w.a, w.Context())
			start := time.Now()
			ended := w.beginLock(w.a, plain, w.within(limit), lock.WithMinHold(minute))
			w.unlock(other)
			h := w.next(first)
			time.Sleep(time.Millisecond) // within the time of a hand-off
			w.wire.Freeze(true)
			w.unlock(h)
			err := <-ended
			if late := time.Since(start) - limit; late > 0 {
				w.Errorf("returned %v after its deadline", late)
			}
			if !errors.Is(err, want) || errors.Is(err, context.DeadlineExceeded) == errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrNotAcquired) {
				w.Error(err)
			}
			w.wire.Freeze(false)
			time.Sleep(2 * minute)
		})
	}
}

// A lock is handed off to a call with WithMinHold, whose context is canceled while its lease is extended, or just before.
// The error has the cause of the cancellation.
func TestMinHold_canceled(t *testing.T) {
	why := errors.New("shutting down")
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		spec := w.a.NewSpec(plain, "orders", []lock.Option{lock.WithMinHold(minute)})
		ctx, cancel := context.WithCancelCause(w.Context())
		ended := w.beginFail(w.a.Lock, ctx, spec)
		time.Sleep(time.Millisecond) // within the time of a hand-off
		w.onNext(redistest.Action{DelayReply: time.Second})
		time.AfterFunc(time.Second/2, func() { cancel(why) })
		w.unlock(h)
		if err := <-ended; !errors.Is(err, context.Canceled) || !errors.Is(err, why) || errors.Is(err, lock.ErrUnavailable) {
			w.Errorf("while it is extended: %v", err)
		}
		time.Sleep(minute)

		h = w.lock(w.a, w.Context())
		w.wantErr(w.a.applyMinHold(ctx, h.(*hold), spec), context.Canceled, why)
		time.Sleep(minute)
	})
}

// A call without WithMinHold does not retain its lock, and requests no longer lease.
func TestMinHold_unset(t *testing.T) {
	inBubble(t, func(w *world) {
		if d := w.a.NewSpec(plain, "orders", nil).terms.Lease; d != leaseTime {
			w.Errorf("a lease of %v", d)
		}
		h := w.lock(w.a, w.Context())
		if keeps := h.(*hold).acquisition().keepUntil; keeps != nil {
			w.Errorf("the lock is kept until %v", keeps)
		}
		w.unlock(h)
	})
}

// A fixed lease that covers the minimum hold time is not extended.
func TestMinHold_fixedLease(t *testing.T) {
	inBubble(t, func(w *world) {
		w.unlock(w.lock(w.a, w.Context()))
		n := w.scripts()
		h := w.lock(w.a, w.Context(), lock.WithMinHold(10*time.Second), lock.WithFixedLease(10*time.Second))
		if n.Load() != 1 || w.mini.TTL("orders") > 10*time.Second {
			w.Errorf("%d commands; the TTL is %v", n.Load(), w.mini.TTL("orders"))
		}
		time.Sleep(5 * time.Second)
		w.unlock(h)
		time.Sleep(5 * time.Second)
	})
}

// A lock is handed off to a call with WithMinHold. Its lease is not extended, because Redis rejects the command or the
// context of the call is canceled. The lock is released, before the call returns if its context is not canceled. If Close
// has begun, it releases the lock.
func TestMinHold_notExtended(t *testing.T) {
	type test struct {
		refused, closes bool
		within          time.Duration
	}
	forEach(t, map[string]test{
		"refused":               {refused: true, within: minute},
		"canceled":              {within: 2 * time.Second},
		"canceled during Close": {closes: true, within: 2 * time.Second},
	}, func(w *world, c test) {
		sent := make(chan struct{})
		k := onRenewal(hookable(), func(r renews) []luascripts.Renewed {
			if c.refused {
				return []luascripts.Renewed{{Err: command.Final{Err: errors.New("refused")}}}
			}
			<-sent
			r.ctx, r.rdb = w.Context(), w.rdb
			return r.send()
		})
		h := w.take(w.a, k, w.Context())
		ended := w.begin(func() error {
			_, err := w.a.Lock(w.within(c.within), w.a.NewSpec(k, "orders", []lock.Option{lock.WithMinHold(minute)}))
			if w.mini.Exists("orders") && c.refused {
				w.Error("the call returned, and the lock is not released")
			}
			return err
		})
		time.Sleep(time.Millisecond) // within the time of a hand-off
		w.wire.OnRequest(func([][]byte) redistest.Action { return redistest.Action{DelayRequest: time.Millisecond} })
		w.unlock(h)
		synctest.Wait()
		closed := w.begin(func() error {
			if !c.closes {
				return nil
			}
			return w.a.Close(context.Background())
		})
		w.wantErr(<-ended)
		close(sent)
		w.wantNoErr(<-closed)
		time.Sleep(opTime)
		w.wantFree()
	})
}

// The context of an Unlock is canceled, and its command is not executed. The lock is still freed at the end of its
// minimum hold time.
func TestMinHold_unlockCanceled(t *testing.T) {
	inBubble(t, func(w *world) {
		w.unlock(w.lock(w.a, w.Context(), lock.WithMinHold(10*time.Millisecond))) // loads the scripts
		time.Sleep(10 * time.Millisecond)
		h := w.lock(w.a, w.Context(), lock.WithMinHold(2*time.Second))
		goes := make(chan struct{})
		w.onNext(redistest.Action{HoldRequest: goes})
		w.wantErr(h.Unlock(w.within(time.Second)), context.DeadlineExceeded)
		w.wire.CutAll()
		close(goes)
		time.Sleep(2 * opTime)
		w.wantFree()
	})
}

// The reply to an Unlock is lost, and a key of the wrong type has replaced the lock. Unlock reports that.
func TestMinHold_wrongTypeAtTheRepetition(t *testing.T) {
	inBubble(t, func(w *world) {
		w.unlock(w.lock(w.a, w.Context(), lock.WithMinHold(10*time.Millisecond))) // loads the scripts
		time.Sleep(10 * time.Millisecond)
		h := w.lock(w.a, w.Context(), lock.WithMinHold(time.Second))
		w.onScripts(func(n int) redistest.Action {
			if n == 2 {
				w.mini.Del("orders")
				w.wantNoErr(w.mini.Set("orders", "of somebody else"))
			}
			return redistest.Action{DropReply: n == 1}
		})
		w.wantErr(h.Unlock(w.Context()), lock.ErrNotHeld, lock.ErrWrongType)
		w.mini.Del("orders")
	})
}

// A lock is gone from Redis before its minimum hold time has passed. Unlock reports that.
func TestMinHold_gone(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context(), lock.WithMinHold(minute))
		w.mini.Del("orders")
		w.wantErr(h.Unlock(w.Context()), lock.ErrNotHeld, lock.ErrLost)
	})
}

// The context of an Unlock is canceled, and its command gets a reply after that. No further command is sent.
func TestMinHold_lateReplyToUnlock(t *testing.T) {
	inBubble(t, func(w *world) {
		var sent atomic.Int64
		reply := make(chan struct{})
		k := hookable()
		k.Retain = func(ctx context.Context, rdb rueidis.Client, keys luascripts.Keys, owner string, rest time.Duration) (luascripts.Verdict, error) {
			sent.Add(1)
			v, err := plain.Retain(ctx, rdb, keys, owner, rest)
			<-reply
			return v, err
		}
		h := w.take(w.a, k, w.Context(), lock.WithMinHold(minute))
		w.wantErr(h.Unlock(w.within(time.Second)), context.DeadlineExceeded)
		close(reply)
		synctest.Wait()
		time.Sleep(minute)
		w.wantSent(&sent, 1)
	})
}

// A lock is handed off to a call with WithMinHold, and is gone before its lease is extended. The call reports that, and
// not that Redis is unavailable.
func TestMinHold_lostImmediately(t *testing.T) {
	inBubble(t, func(w *world) {
		k := onRenewal(hookable(), func(r renews) []luascripts.Renewed {
			w.mini.Del("orders")
			return r.send()
		})
		h := w.take(w.a, k, w.Context())
		ended := w.beginLock(w.a, k, w.Context(), lock.WithMinHold(minute))
		time.Sleep(time.Millisecond) // within the time of a hand-off
		w.unlock(h)
		if err := <-ended; !errors.Is(err, lock.ErrLost) || errors.Is(err, lock.ErrUnavailable) {
			w.Error(err)
		}
	})
}

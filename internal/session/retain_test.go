package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
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
		h.(*hold).acquisition().unrenewed()
		if a := second.(*hold).acquisition(); !locked(a.at, func() bool { return a.Late }) {
			w.Error("the next hold expects no delayed renewal")
		}
		w.unlock(second)
	})
}

// A lock that is unlocked early stays locked for its minimum hold time, and no longer.
func TestMinHold(t *testing.T) {
	for name, k := range map[string]*Kind{"plain": plain, "fair": fair} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				start := time.Now()
				h := w.take(w.a, k, w.Context(), lock.WithMinHold(minute))
				time.Sleep(time.Second)
				if err := h.Unlock(w.Context()); err != nil {
					w.Fatal(err)
				}
				if err := h.Err(); !errors.Is(err, lock.ErrUnlocked) {
					w.Errorf("after Unlock: %v", err)
				}
				if left := w.mini.TTL("orders"); left > minute-time.Second {
					w.Errorf("the TTL is %v", left)
				}
				for _, s := range []*Session{w.a, w.b} {
					if _, err := s.TryLock(w.Context(), s.NewSpec(k, "orders", nil)); !errors.Is(err, lock.ErrNotAcquired) {
						w.Errorf("it is not locked: %v", err)
					}
				}
				here, there := w.waitingFor(w.a, w.Context(), w.a.NewSpec(k, "orders", nil)), w.waitingFor(w.b, w.Context(), w.b.NewSpec(k, "orders", nil))
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
		})
	}
}

// If the process dies or closes the client, the lock stays locked for the same time.
func TestMinHold_withoutUnlock(t *testing.T) {
	inBubble(t, func(w *world) {
		w.unlock(w.lock(w.a, w.Context())) // loads the script
		n := w.scripts()
		h := w.lock(w.a, w.Context(), lock.WithMinHold(minute))
		if n := n.Load(); n != 1 {
			w.Errorf("a free lock took %d scripts", n)
		}
		if left := w.mini.TTL("orders"); left < minute {
			w.Errorf("without a renewal the TTL is %v", left)
		}
		time.Sleep(time.Second)
		if err := w.a.Close(w.Context()); err != nil {
			w.Fatal(err)
		}
		if left := w.mini.TTL("orders"); left > minute-time.Second || left < minute-2*time.Second {
			w.Errorf("after Close the TTL is %v", left)
		}
		if err := h.Err(); !errors.Is(err, lock.ErrClosed) {
			w.Error(err)
		}
		time.Sleep(minute)
		if keys := w.mini.Keys(); len(keys) != 0 {
			w.Errorf("left: %q", keys)
		}
	})
}

// The longest minimum hold time of an owner's holds decides, in whatever order they come.
func TestMinHold_longestWins(t *testing.T) {
	inBubble(t, func(w *world) {
		for _, holds := range [][2]time.Duration{{minute, time.Second}, {time.Second, minute}} {
			outer := w.lock(w.a, w.Context(), lock.WithMinHold(holds[0]))
			inner := w.lock(w.a, outer.Context(), lock.WithMinHold(holds[1]))
			w.unlock(inner)
			w.unlock(outer)
			if left := w.mini.TTL("orders"); left < minute-time.Second {
				w.Errorf("%v: the TTL is %v", holds, left)
			}
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
		if keys := w.mini.Keys(); len(keys) != 0 {
			w.Errorf("left: %q", keys)
		}
	})
}

// Redis does not reply to the Unlock. The reconciler repeats the command later, and does not free the lock.
func TestMinHold_reconciles(t *testing.T) {
	inBubble(t, func(w *world) {
		start := time.Now()
		h := w.lock(w.a, w.Context(), lock.WithMinHold(minute))
		w.wire.Refuse(true)
		w.wire.CutAll()
		if err := h.Unlock(w.Context()); err == nil {
			w.Error("Unlock was confirmed")
		}
		time.Sleep(5 * time.Second)
		w.wire.Refuse(false)
		time.Sleep(10 * time.Second)
		left := w.mini.TTL("orders")
		if want := minute - time.Since(start); left > want || left < want-time.Second {
			w.Errorf("the TTL is %v, want %v", left, want)
		}
		time.Sleep(minute)
	})
}

// A lock that was handed off inside the process has less lease time left, so its lease is extended.
func TestMinHold_handedOff(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		ctx, cancel := context.WithCancel(w.Context())
		defer cancel()
		next := w.waitingFor(w.a, ctx, w.a.NewSpec(plain, "orders", []lock.Option{lock.WithMinHold(minute)}))
		time.Sleep(time.Millisecond)
		if err := h.Unlock(w.Context()); err != nil {
			w.Fatal(err)
		}
		h = <-next
		if left := w.mini.TTL("orders"); left < minute {
			w.Errorf("the TTL is %v", left)
		}
		w.unlock(h)
		if left := w.mini.TTL("orders"); left > minute || left < minute-time.Second {
			w.Errorf("after Unlock the TTL is %v", left)
		}
		time.Sleep(minute)
	})
}

// A lock that must stay locked is not handed off inside the process either.
func TestMinHold_isNotHandedOff(t *testing.T) {
	inBubble(t, func(w *world) {
		start := time.Now()
		h := w.lock(w.a, w.Context(), lock.WithMinHold(leaseTime/2))
		next := w.waitingFor(w.a, w.Context(), w.a.NewSpec(plain, "orders", nil))
		time.Sleep(time.Millisecond)
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
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DropReply: true}))
		w.unlock(h)
	})
}

// A duplicate of a request arrives after the Unlock. It does not extend the minimum hold time.
func TestMinHold_delayedRequest(t *testing.T) {
	inBubble(t, func(w *world) {
		k, execute := w.failOnce()
		k.Retain = plain.Retain
		h, err := w.a.Lock(w.Context(), w.a.NewSpec(k, "orders", []lock.Option{lock.WithMinHold(leaseTime / 2)}))
		if err != nil {
			w.Fatal(err)
		}
		w.unlock(h)
		time.Sleep(time.Second)
		execute()
		time.Sleep(leaseTime / 2)
		w.wantFree()
	})
}

// A duplicate of a renewal arrives after the Unlock. It does not extend the minimum hold time either.
func TestMinHold_delayedRenewal(t *testing.T) {
	for _, extends := range []bool{false, true} {
		t.Run(fmt.Sprintf("Extend %v", extends), func(t *testing.T) {
			inBubble(t, func(w *world) {
				k := *plain
				var once sync.Once
				var execute func()
				k.Renew = func(ctx context.Context, rdb rueidis.Client, batch []luascripts.Renewal, lease time.Duration, perCall int) (renewed []luascripts.Renewed) {
					batch = slices.Clone(batch)
					once.Do(func() {
						execute = func() { plain.Renew(w.Context(), w.rdb, batch, lease, perCall) }
						renewed = []luascripts.Renewed{{Err: io.EOF}}
					})
					if renewed == nil {
						renewed = plain.Renew(ctx, rdb, batch, lease, perCall)
					}
					return renewed
				}
				h := w.take(w.a, &k, w.Context(), lock.WithMinHold(2*leaseTime/3))
				if extends {
					if err := h.Extend(w.Context(), time.Hour); err != nil {
						w.Fatal(err)
					}
				} else {
					time.Sleep(leaseTime / 2)
				}
				w.unlock(h)
				time.Sleep(time.Second)
				execute()
				time.Sleep(2 * leaseTime / 3)
				w.wantFree()
			})
		})
	}
}

// wantFree fails if Redis still has the lock, which then has time to expire.
func (w *world) wantFree() {
	w.Helper()
	if w.mini.Exists("orders") {
		w.Errorf("it is held for %v more, without a holder", w.mini.TTL("orders"))
		time.Sleep(time.Hour)
	}
}

// The same for renewals and extensions whose outcome is not known to the watchdog, or became known before there was a
// minimum hold time.
func TestMinHold_delayedCommand(t *testing.T) {
	minimum := lock.WithMinHold(2 * leaseTime / 3)
	for name, test := range map[string]struct {
		hold   func(w *world, k *Kind) lock.Hold
		during bool // Unlock is called while the renewal is in flight
	}{
		"in flight at Unlock": {during: true, hold: func(w *world, k *Kind) lock.Hold {
			h := w.take(w.a, k, w.Context(), minimum)
			time.Sleep(leaseTime/3 + time.Second)
			return h
		}},
		"in flight when it is abandoned": {during: true, hold: func(w *world, k *Kind) lock.Hold {
			ctx, cancel := context.WithCancel(w.Context())
			h := w.take(w.a, k, ctx, minimum, lock.WithGrace(time.Second))
			cancel()
			time.Sleep(leaseTime/3 + time.Second + time.Millisecond)
			if !errors.Is(h.Err(), lock.ErrAbandoned) {
				w.Error(h.Err())
			}
			return nil
		}},
		"before the reentry with the minimum": {hold: func(w *world, k *Kind) lock.Hold {
			outer := w.take(w.a, k, w.Context())
			time.Sleep(leaseTime / 2)
			inner := w.take(w.a, k, outer.Context(), minimum)
			w.unlock(outer)
			return inner
		}},
		"before the hand-off": {hold: func(w *world, k *Kind) lock.Hold {
			first := w.take(w.a, k, w.Context())
			next := w.goLockKind(w.a, k, w.Context(), minimum)
			if err := first.Extend(w.Context(), leaseTime); err != nil {
				w.Fatal(err)
			}
			w.unlock(first)
			h := <-next
			if h.Owner() != first.Owner() {
				w.Error("the lock was not handed off")
			}
			return h
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				k := *plain
				var delayed atomic.Pointer[func()] // the first renewal
				k.Renew = func(ctx context.Context, rdb rueidis.Client, batch []luascripts.Renewal, lease time.Duration, perCall int) []luascripts.Renewed {
					batch = slices.Clone(batch)
					execute := func() { plain.Renew(w.Context(), w.rdb, batch, lease, perCall) }
					if !delayed.CompareAndSwap(nil, &execute) {
						return plain.Renew(ctx, rdb, batch, lease, perCall)
					}
					if test.during {
						time.Sleep(2 * time.Second)
					}
					return []luascripts.Renewed{{Err: io.EOF}}
				}
				if h := test.hold(w, &k); h != nil {
					w.unlock(h)
				}
				time.Sleep(time.Second)
				(*delayed.Load())()
				time.Sleep(2 * leaseTime / 3)
				w.wantFree()
			})
		})
	}
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
	for name, last := range map[string]func(w *world) (h lock.Hold, execute func()){
		"an extension": func(w *world) (lock.Hold, func()) {
			k, sent := w.late()
			h := w.take(w.a, k, w.Context(), minimum)
			extend(w, h, time.Hour)
			return h, func() { close(sent) }
		},
		"an extension before a hand-off": func(w *world) (lock.Hold, func()) {
			k, sent := w.late()
			first := w.take(w.a, k, w.Context())
			next := w.goLockKind(w.a, k, w.Context(), minimum)
			time.Sleep(time.Millisecond)
			extend(w, first, leaseTime)
			w.unlock(first)
			h := <-next
			if h.Owner() != first.Owner() {
				w.Error("the lock was not handed off")
			}
			return h, func() { close(sent) }
		},
		"a reentry": func(w *world) (lock.Hold, func()) {
			sent := make(chan struct{})
			k := gated(func(acquire acquireFunc) acquireFunc {
				return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Request) (luascripts.Acquired, error) {
					if q.Want > 1 {
						<-sent
					}
					return acquire(ctx, rdb, k, q)
				}
			}, nil)
			h := w.take(w.a, k, w.Context(), minimum)
			go func() { _, _ = reenter(w, k, h) }()
			synctest.Wait()
			return h, func() { close(sent) }
		},
		"a duplicate of a reentry": func(w *world) (lock.Hold, func()) {
			var execute func()
			k := gated(func(acquire acquireFunc) acquireFunc {
				return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Request) (luascripts.Acquired, error) {
					if q.Want > 1 && execute == nil {
						execute = func() { _, _ = acquire(w.Context(), w.rdb, k, q) }
						return luascripts.Acquired{}, io.EOF
					}
					return acquire(ctx, rdb, k, q)
				}
			}, nil)
			h := w.take(w.a, k, w.Context(), minimum)
			inner, err := reenter(w, k, h)
			if err != nil {
				w.Fatal(err)
			}
			w.unlock(inner)
			return h, execute
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				h, execute := last(w)
				w.unlock(h)
				time.Sleep(time.Second)
				execute()
				time.Sleep(2 * leaseTime / 3)
				w.wantFree()
			})
		})
	}
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
				ended := make(chan error, 1)
				go func() { ended <- h.Unlock(ctx) }()
				synctest.Wait()
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
	for _, limit := range []time.Duration{2 * time.Second, time.Hour} {
		inBubble(t, func(w *world) {
			other := w.lock(w.b, w.Context())
			first := w.waiting(w.a, w.Context())
			synctest.Wait()
			ended, start := make(chan error), time.Now()
			go func() {
				ctx := w.within(limit)
				_, err := w.a.Lock(ctx, w.a.NewSpec(plain, "orders", []lock.Option{lock.WithMinHold(minute)}))
				if late := time.Since(start) - limit; late > 0 {
					w.Errorf("returned %v after its deadline", late)
				}
				ended <- err
			}()
			synctest.Wait()
			w.unlock(other)
			h := w.next(first)
			time.Sleep(time.Millisecond) // within the time of a hand-off
			w.wire.Freeze(true)
			w.unlock(h)
			if err := <-ended; errors.Is(err, context.DeadlineExceeded) != (limit < opTime) || errors.Is(err, lock.ErrUnavailable) != (limit > opTime) || errors.Is(err, lock.ErrNotAcquired) {
				w.Errorf("%v", err)
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
		ctx, cancel := context.WithCancelCause(w.Context())
		ended := make(chan error)
		go func() {
			_, err := w.a.Lock(ctx, w.a.NewSpec(plain, "orders", []lock.Option{lock.WithMinHold(minute)}))
			ended <- err
		}()
		synctest.Wait()
		time.Sleep(time.Millisecond) // within the time of a hand-off
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayReply: time.Second}))
		time.AfterFunc(time.Second/2, func() { cancel(why) })
		w.unlock(h)
		if err := <-ended; !errors.Is(err, context.Canceled) || !errors.Is(err, why) || errors.Is(err, lock.ErrUnavailable) {
			w.Errorf("while it is extended: %v", err)
		}
		time.Sleep(minute)

		h = w.lock(w.a, w.Context())
		err := interrupted(ctx, w.a.applyMinHold(ctx, h.(*hold), w.a.NewSpec(plain, "orders", []lock.Option{lock.WithMinHold(minute)})))
		if !errors.Is(err, context.Canceled) || !errors.Is(err, why) {
			w.Errorf("before it is extended: %v", err)
		}
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
	for _, how := range []string{"refused", "canceled", "canceled during Close"} {
		t.Run(how, func(t *testing.T) {
			inBubble(t, func(w *world) {
				refused := how == "refused"
				k, sent := hookable(), make(chan struct{})
				k.Renew = func(ctx context.Context, rdb rueidis.Client, batch []luascripts.Renewal, lease time.Duration, perCall int) []luascripts.Renewed {
					if refused {
						return []luascripts.Renewed{{Err: command.Final{Err: errors.New("refused")}}}
					}
					<-sent
					return plain.Renew(w.Context(), w.rdb, batch, lease, perCall)
				}
				h := w.take(w.a, k, w.Context())
				ctx := w.within(minute)
				if !refused {
					ctx = w.within(2 * time.Second)
				}
				ended := make(chan error)
				go func() {
					_, err := w.a.Lock(ctx, w.a.NewSpec(k, "orders", []lock.Option{lock.WithMinHold(minute)}))
					if w.mini.Exists("orders") && refused {
						w.Error("the call returned, and the lock is not released")
					}
					ended <- err
				}()
				synctest.Wait()
				time.Sleep(time.Millisecond) // within the time of a hand-off
				w.wire.OnRequest(func([][]byte) redistest.Action { return redistest.Action{DelayRequest: time.Millisecond} })
				w.unlock(h)
				closed := make(chan error, 1)
				if synctest.Wait(); how == "canceled during Close" {
					go func() { closed <- w.a.Close(context.Background()) }()
				} else {
					close(closed)
				}
				if err := <-ended; err == nil {
					w.Error("it has a lock with too short a lease")
				}
				close(sent)
				if err := <-closed; err != nil {
					w.Error(err)
				}
				time.Sleep(opTime)
				if w.mini.Exists("orders") {
					w.Errorf("the lock is held for %v without a holder", w.mini.TTL("orders"))
				}
			})
		})
	}
}

// The context of an Unlock is canceled, and its command is not executed. The lock is still freed at the end of its
// minimum hold time.
func TestMinHold_unlockCanceled(t *testing.T) {
	inBubble(t, func(w *world) {
		w.unlock(w.lock(w.a, w.Context(), lock.WithMinHold(10*time.Millisecond))) // loads the scripts
		time.Sleep(10 * time.Millisecond)
		h := w.lock(w.a, w.Context(), lock.WithMinHold(2*time.Second))
		goes := make(chan struct{})
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{HoldRequest: goes}))
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		if err := h.Unlock(ctx); !errors.Is(err, context.DeadlineExceeded) {
			w.Error(err)
		}
		w.wire.CutAll()
		close(goes)
		time.Sleep(2 * opTime)
		if w.mini.Exists("orders") {
			w.Errorf("the lock is kept for another %v", w.mini.TTL("orders"))
		}
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
				if err := w.mini.Set("orders", "of somebody else"); err != nil {
					w.Error(err)
				}
			}
			return redistest.Action{DropReply: n == 1}
		})
		if err := h.Unlock(w.Context()); !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrWrongType) {
			w.Error(err)
		}
		w.mini.Del("orders")
	})
}

// A lock is gone from Redis before its minimum hold time has passed. Unlock reports that.
func TestMinHold_gone(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context(), lock.WithMinHold(minute))
		w.mini.Del("orders")
		if err := h.Unlock(w.Context()); !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrLost) {
			w.Error(err)
		}
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
		if err := h.Unlock(w.within(time.Second)); !errors.Is(err, context.DeadlineExceeded) {
			w.Error(err)
		}
		close(reply)
		synctest.Wait()
		time.Sleep(minute)
		if n := sent.Load(); n != 1 {
			w.Errorf("%d commands", n)
		}
	})
}

// A lock is handed off to a call with WithMinHold, and is gone before its lease is extended. The call reports that, and
// not that Redis is unavailable.
func TestMinHold_lostImmediately(t *testing.T) {
	inBubble(t, func(w *world) {
		k := hookable()
		k.Renew = func(ctx context.Context, rdb rueidis.Client, batch []luascripts.Renewal, lease time.Duration, perCall int) []luascripts.Renewed {
			w.mini.Del("orders")
			return plain.Renew(ctx, rdb, batch, lease, perCall)
		}
		h := w.take(w.a, k, w.Context())
		ended := make(chan error)
		go func() {
			_, err := w.a.Lock(w.Context(), w.a.NewSpec(k, "orders", []lock.Option{lock.WithMinHold(minute)}))
			ended <- err
		}()
		synctest.Wait()
		time.Sleep(time.Millisecond) // within the time of a hand-off
		w.unlock(h)
		if err := <-ended; !errors.Is(err, lock.ErrLost) || errors.Is(err, lock.ErrUnavailable) {
			w.Error(err)
		}
	})
}

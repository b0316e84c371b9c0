package session

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/leasehold-go/leasehold/watchdog"
	"github.com/redis/rueidis"
)

// Each test here fails without one guard of Unlock.

// A process was paused, and the lease has expired. Unlock is the first to check it, and reports the loss, even if Redis
// still has the lock.
func TestUnlock_checksTheClock(t *testing.T) {
	inBubble(t, func(w *world) {
		for range 100 { // until the watchdog's timer is not first
			h := w.lock(w.a, w.Context(), lock.WithFixedLease(time.Second))
			ended := h.Context().Done()
			time.Sleep(time.Until(h.Until()))
			select {
			case <-ended:
				time.Sleep(time.Second)
				continue
			default:
			}
			if err := h.Unlock(w.Context()); !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrLost) {
				w.Errorf("Unlock: %v", err)
			}
			time.Sleep(time.Second)
			return
		}
		w.Error("the timer was first a hundred times")
	})
}

// The lock is lost after Unlock has checked it. Unlock reports the loss immediately, and sends nothing.
func TestUnlock_lostMeanwhile(t *testing.T) {
	for _, async := range [][]lock.Option{nil, {lock.WithAsyncUnlock()}} {
		inBubble(t, func(w *world) {
			h := w.lock(w.a, w.Context(), async...)
			w.wantEvents("granted")
			w.mini.Del("orders")
			start := time.Now()
			err := h.Unlock(&errHook{Context: w.Context(), f: func() { h.(*hold).acquisition().lease.Lose(lock.ErrGone) }})
			if took := time.Since(start); !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrLost) || took != 0 {
				w.Errorf("%v after %v", err, took)
			}
			w.wantEvents("lost")
		})
	}
}

// A nil context is a bug of the caller. Unlock panics before it changes anything, so the hold can still be unlocked.
func TestUnlock_nilContext(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		func() {
			defer func() {
				if recover() == nil {
					w.Error("it did not panic")
				}
			}()
			var none context.Context
			_ = h.Unlock(none)
		}()
		w.unlock(h)
	})
}

// A release that finds no lock got a reply: its error does not report an unavailable server.
func TestUnlock_lockGoneIsNotUnavailable(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		w.mini.Del("orders")
		if err := h.Unlock(w.Context()); !errors.Is(err, lock.ErrLost) || errors.Is(err, lock.ErrUnavailable) {
			w.Errorf("Unlock: %v", err)
		}
	})
}

// Close begins after the end of a hold, and before its release. Close releases the lock, and Unlock returns ErrClosed.
func TestUnlock_duringClose(t *testing.T) {
	inBubble(t, func(w *world) {
		w.observer() // no witness: it is not notified of this Unlock
		h := w.lock(w.a, w.Context()).(*hold)
		now := time.Now()
		if before := h.endAt(lock.ErrUnlocked, now); before != nil {
			w.Fatal(before)
		}
		if err := w.a.Close(w.Context()); err != nil {
			w.Error(err)
		}
		if err := w.a.unlockEnded(w.Context(), h, now, true); !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrClosed) {
			w.Errorf("Unlock: %v", err)
		}
	})
}

// A renewal is in flight without a reply when a hold is released. The caller waits no longer than its context.
func TestUnlock_canceled(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		renewal := make(chan struct{})
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{HoldReply: renewal}))
		time.Sleep(leaseTime / 3)
		synctest.Wait()
		start := time.Now()
		ctx, cancel := context.WithTimeout(w.Context(), pollTime/2)
		defer cancel()
		err := h.Unlock(ctx)
		if took := time.Since(start); took != pollTime/2 || !errors.Is(err, context.DeadlineExceeded) {
			w.Errorf("Unlock: %v after %v", err, took)
		}
		close(renewal)
	})
}

// The caller of Unlock leaves, and the release gets its reply a moment later. The release is reconciled with exactly
// one command.
func TestUnlock_lateReply(t *testing.T) {
	inBubble(t, func(w *world) {
		reply := make(chan struct{})
		k := gated(nil, nil)
		sent := kindWithSlowRelease(k, 1, reply)
		h := w.take(w.a, k, w.Context())
		ctx, cancel := context.WithTimeout(w.Context(), pollTime/2)
		defer cancel()
		if err := h.Unlock(ctx); !errors.Is(err, context.DeadlineExceeded) {
			w.Errorf("Unlock: %v", err)
		}
		close(reply)
		time.Sleep(leaseTime)
		if n := sent.Load(); n != 2 {
			w.Errorf("got %d commands, want the release and one repetition", n)
		}
	})
}

// reduces is the plain kind. Its first command that leaves some holds calls f.
func reduces(f func(release func() (luascripts.Verdict, error)) (luascripts.Verdict, error)) *Kind {
	k := *hookable()
	release := k.Release
	var first atomic.Bool
	k.Release = func(ctx context.Context, rdb rueidis.Client, keys luascripts.Keys, owner string, leave int) (luascripts.Verdict, error) {
		send := func() (luascripts.Verdict, error) { return release(ctx, rdb, keys, owner, leave) }
		if leave > 0 && first.CompareAndSwap(false, true) {
			return f(send)
		}
		return send()
	}
	return &k
}

// One of two holds is released, and the caller leaves before the reply. The reply is an error: the command is repeated.
func TestReduce_lateError(t *testing.T) {
	inBubble(t, func(w *world) {
		reply := make(chan struct{})
		k := reduces(func(func() (luascripts.Verdict, error)) (luascripts.Verdict, error) {
			<-reply
			return 0, io.EOF
		})
		ctx := lock.ContextWithNewOwner(w.Context())
		outer, inner := w.take(w.a, k, ctx), w.take(w.a, k, ctx)
		short, cancel := context.WithTimeout(w.Context(), pollTime/2)
		defer cancel()
		if err := inner.Unlock(short); !errors.Is(err, context.DeadlineExceeded) {
			w.Errorf("Unlock: %v", err)
		}
		close(reply)
		time.Sleep(pollTime)
		if n := w.count(outer); n != 1 {
			w.Errorf("Redis counts %d holds of one", n)
		}
		w.unlock(outer)
	})
}

// One of two holds is released while another call of the owner has the turn. The lock is lost in the meantime, and then
// the caller leaves: the error reports the loss.
func TestReduce_canceledAfterALoss(t *testing.T) {
	inBubble(t, func(w *world) {
		owner := lock.ContextWithNewOwner(w.Context())
		outer, inner := w.lock(w.a, owner), w.lock(w.a, owner)
		held, turn := outer.(*hold).acquisition(), outer.(*hold).By.Turn
		turn <- struct{}{}
		ctx, cancel := context.WithCancel(w.Context())
		reply := make(chan error)
		go func() { reply <- inner.Unlock(ctx) }()
		synctest.Wait()
		w.mini.Del("orders")
		held.lease.Lose(lock.ErrGone)
		cancel()
		if err := <-reply; !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrLost) {
			w.Errorf("Unlock: %v", err)
		}
		<-turn
	})
}

// One of two holds is released, and Redis is slow. That is no error within the operation timeout.
func TestReduce_operationTimeout(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		outer, inner := w.lock(w.a, ctx), w.lock(w.a, ctx)
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayReply: opTime / 2}))
		w.unlock(inner)
		w.unlock(outer)
	})
}

// Both holds of an owner are released, and the release overtakes the command that leaves one of them. That command
// finds no lock, and neither Unlock fails.
func TestReduce_overtakenByTheRelease(t *testing.T) {
	inBubble(t, func(w *world) {
		goes := make(chan struct{})
		k := reduces(func(send func() (luascripts.Verdict, error)) (luascripts.Verdict, error) {
			<-goes
			return send()
		})
		ctx := lock.ContextWithNewOwner(w.Context())
		outer, inner := w.take(w.a, k, ctx), w.take(w.a, k, ctx)
		reply := make(chan error)
		go func() { reply <- inner.Unlock(w.Context()) }()
		synctest.Wait()
		w.unlock(outer)
		close(goes)
		if err := <-reply; err != nil {
			w.Errorf("Unlock: %v", err)
		}
	})
}

// One of two holds is released, and Redis has none. The other hold is lost immediately, and not at the next renewal.
func TestReduce_detectsALoss(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		outer, inner := w.lock(w.a, ctx), w.lock(w.a, ctx)
		w.mini.Del("orders")
		if err := inner.Unlock(w.Context()); !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrLost) {
			w.Errorf("Unlock: %v", err)
		}
		if err := outer.Err(); !errors.Is(err, lock.ErrGone) {
			w.Errorf("the other hold: %v", err)
		}
	})
}

// One of two holds is released, and Redis has none. A renewal detects that at the same time. The Unlock reports the loss.
func TestReduce_lossDetectedMeanwhile(t *testing.T) {
	inBubble(t, func(w *world) {
		var outer lock.Hold
		k := reduces(func(send func() (luascripts.Verdict, error)) (luascripts.Verdict, error) {
			w.mini.Del("orders")
			v, err := send()
			outer.(*hold).acquisition().lease.Lose(watchdog.ErrGone)
			return v, err
		})
		ctx := lock.ContextWithNewOwner(w.Context())
		outer = w.take(w.a, k, ctx)
		inner := w.take(w.a, k, ctx)
		w.wantEvents("granted", "granted")
		if err := inner.Unlock(w.Context()); !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrLost) {
			w.Errorf("Unlock: %v", err)
		}
		w.wantEvents("lost", "lost")
	})
}

// Both holds of an owner are released. The first release waits for the turn, but another call of the owner has it next, and
// keeps it while it waits for the lock. Both calls of Unlock return immediately.
func TestReduce_releasedMeanwhile(t *testing.T) {
	inBubble(t, func(w *world) {
		owner := lock.ContextWithNewOwner(w.Context())
		outer, inner := w.lock(w.a, owner), w.lock(w.a, owner)
		turn := outer.(*hold).By.Turn
		turn <- struct{}{}
		next := w.waitingFor(w.a, owner, w.a.NewSpec(plain, "orders", nil))
		reply := make(chan error, 1)
		go func() { reply <- inner.Unlock(w.Context()) }()
		synctest.Wait()
		w.unlock(outer)
		other := w.lock(w.b, w.Context())
		<-turn
		synctest.Wait()
		select {
		case err := <-reply:
			if err != nil {
				w.Error(err)
			}
		default:
			w.Error("Unlock waits for another call")
		}
		w.unlock(other)
		w.unlock(w.next(next))
	})
}

// A waiter of the same process, which receives no messages, acquires the lock as soon as it is released. This includes
// kinds without hand-off.
func TestUnlock_wakesLocalWaiters(t *testing.T) {
	for name, k := range map[string]*Kind{"plain": plain, "write": writing} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.withoutPubSub()
				h := w.take(w.a, k, w.Context())
				next := w.waitingFor(w.a, w.Context(), w.a.NewSpec(k, "orders", nil))
				time.Sleep(pollTime * 3 / 2)
				start := time.Now()
				w.unlock(h)
				h = <-next
				if took := time.Since(start); took != 0 {
					w.Errorf("the next has it after %v", took)
				}
				w.unlock(h)
				w.wire.OnRequest(nil)
			})
		})
	}
}

// A release of a kind without hand-off names no next owner: the first request acquires the lock.
func TestUnlock_namesNoNextOwnerWithoutHandOff(t *testing.T) {
	for name, k := range map[string]*Kind{"write": writing} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				h := w.take(w.a, k, w.Context())
				next := w.waitingFor(w.a, w.Context(), w.a.NewSpec(k, "orders", nil))
				if f, _ := h.(*hold).acquisition().newRelease(time.Now()); f.next != nil || f.release.NextOwner != "" {
					w.Errorf("the release names %q", f.release.NextOwner)
				}
				w.unlock(h)
				w.unlock(<-next)
			})
		})
	}
}

// A release gets no reply, and its repetition finds a key of the wrong type: the lock was lost.
func TestUnlock_wrongTypeAtTheRepetition(t *testing.T) {
	inBubble(t, func(w *world) {
		var sent atomic.Int32
		k := gated(nil, func(handOff handOffFunc) handOffFunc {
			return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, p luascripts.Release) (luascripts.Released, error) {
				if sent.Add(1) == 1 {
					return luascripts.Released{}, io.EOF
				}
				return handOff(ctx, rdb, k, owner, p)
			}
		})
		h := w.take(w.a, k, w.Context())
		w.mini.Del("orders")
		w.rdb.Do(w.Context(), w.rdb.B().Set().Key("orders").Value("a string").Build())
		if err := h.Unlock(w.Context()); !errors.Is(err, lock.ErrLost) || !errors.Is(err, lock.ErrWrongType) {
			w.Errorf("Unlock: %v", err)
		}
		w.mini.Del("orders")
	})
}

// No node has the slot for the release, so it was not sent, and its repetition finds no lock: the lock was lost.
func TestUnlock_goneAfterNoNode(t *testing.T) {
	inBubble(t, func(w *world) {
		var sent atomic.Int32
		k := gated(nil, func(handOff handOffFunc) handOffFunc {
			return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, p luascripts.Release) (luascripts.Released, error) {
				if sent.Add(1) == 1 {
					return luascripts.Released{}, rueidis.ErrNoSlot
				}
				return handOff(ctx, rdb, k, owner, p)
			}
		})
		h := w.take(w.a, k, w.Context())
		w.mini.Del("orders")
		if err := h.Unlock(w.Context()); !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrLost) {
			w.Errorf("Unlock: %v", err)
		}
	})
}

// An inner and the outer hold are released concurrently. The command that leaves one hold comes second, and must not
// release the other.
func TestReduce_doesNotFreeTheLock(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		outer, inner := w.lock(w.a, ctx), w.lock(w.a, ctx)
		renewal := make(chan struct{})
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{HoldReply: renewal}))
		time.Sleep(leaseTime / 3)
		synctest.Wait() // a renewal is in flight, and delays the release

		turn := outer.(*hold).By.Turn
		turn <- struct{}{} // another call of this owner has the turn
		errs := make(chan error, 2)
		go func() { errs <- inner.Unlock(w.Context()) }()
		synctest.Wait()
		go func() { errs <- outer.Unlock(w.Context()) }()
		synctest.Wait()
		<-turn
		synctest.Wait()
		close(renewal)
		for range 2 {
			if err := <-errs; err != nil {
				w.Error(err)
			}
		}
	})
}

// The lock is lost while an Unlock waits to send its command.
func TestUnlock_lostBeforeTheCommand(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		outer, inner := w.lock(w.a, ctx), w.lock(w.a, ctx)
		held, turn := outer.(*hold).acquisition(), outer.(*hold).By.Turn
		turn <- struct{}{} // another call of this owner has the turn
		reply := make(chan error)
		go func() { reply <- inner.Unlock(w.Context()) }()
		synctest.Wait()
		w.mini.Del("orders")
		held.lease.Lose(watchdog.ErrGone)
		<-turn
		if err := <-reply; !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrLost) {
			w.Errorf("unlock of a lock that is lost: %v", err)
		}
	})
}

// An Unlock without a reply returns in time, and the release continues.
func TestUnlock_onASlowServer(t *testing.T) {
	inBubble(t, func(w *world) {
		for _, deadline := range []time.Duration{0, time.Second} {
			h := w.lock(w.a, w.Context())
			w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayRequest: 5 * time.Second}))
			ctx, want := w.Context(), opTime
			if deadline > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, deadline)
				defer cancel()
				want = deadline
			}
			start := time.Now()
			err := h.Unlock(ctx)
			if took := time.Since(start); err == nil || errors.Is(err, lock.ErrNotHeld) || took != want {
				w.Errorf("%v after %v, want some other error after %v", err, took, want)
			}
			if err := h.Err(); !errors.Is(err, lock.ErrUnlocked) {
				w.Errorf("the hold: %v", err)
			}
			time.Sleep(10 * time.Second)
			synctest.Wait()
			if keys := w.mini.Keys(); len(keys) != 0 {
				w.Errorf("left: %q", keys)
			}
		}
	})
}

// An unconfirmed partial release is reconciled in the background.
func TestReduce_isReconciled(t *testing.T) {
	inBubble(t, func(w *world) {
		outer := w.lock(w.a, lock.ContextWithNewOwner(w.Context()))
		inner := w.lock(w.a, outer.Context())
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DropRequest: true}))
		if err := inner.Unlock(w.Context()); err != nil {
			w.Errorf("%v: within the operation time-out it is sent again", err)
		}
		if n := w.count(outer); n != 1 {
			w.Errorf("count %d", n)
		}
		inner = w.lock(w.a, outer.Context())
		w.wire.Refuse(true)
		w.wire.CutAll()
		if err := inner.Unlock(w.Context()); err == nil {
			w.Error("the release was confirmed without a reply")
		}
		w.wire.Refuse(false)
		time.Sleep(2 * opTime)
		synctest.Wait()
		if n := w.count(outer); n != 1 || outer.Err() != nil {
			w.Errorf("count %d, outer %v", n, outer.Err())
		}
		w.unlock(outer)
	})
}

// asyncKinds are all kinds, with lock.WithAsyncUnlock.
var asyncKinds = map[string]*Kind{"plain": plain, "fair": fair, "read": reading, "write": writing, "semaphore": permits}

// asyncSpec returns a spec of "orders" with lock.WithAsyncUnlock. A semaphore has one permit.
func (w *world) asyncSpec(k *Kind, opts ...lock.Option) *Spec {
	w.Helper()
	spec := w.a.NewSpec(k, "orders", append(opts, lock.WithAsyncUnlock()))
	if spec.Err != nil {
		w.Fatal(spec.Err)
	}
	if k.Mode == lock.Permit {
		spec.Keys.Total, spec.Keys.Permits = 1, 1
	}
	return spec
}

// noHold fails the test if Redis has a hold of "orders". The number of permits of a semaphore stays.
func (w *world) noHold() {
	w.Helper()
	if n, _ := w.mini.Get("orders"); n == "1" {
		w.mini.Del("orders")
	}
	if keys := w.mini.Keys(); len(keys) != 0 {
		w.Errorf("left: %q", keys)
	}
}

func (w *world) mustLock(ctx context.Context, spec *Spec) lock.Hold {
	w.Helper()
	h, err := w.a.Lock(ctx, spec)
	if err != nil {
		w.Fatal(err)
	}
	return h
}

// unlockImmediately fails the test if Unlock of h takes any time, or if the hold does not end as after any Unlock.
func (w *world) unlockImmediately(h lock.Hold) {
	w.Helper()
	start := time.Now()
	w.unlock(h)
	if took := time.Since(start); took != 0 {
		w.Errorf("Unlock took %v", took)
	}
	if err := h.Err(); !errors.Is(err, lock.ErrUnlocked) || h.Context().Err() == nil || h.Until().After(time.Now()) {
		w.Errorf("the hold: %v until %v", err, h.Until())
	}
	if err := h.Unlock(w.Context()); !errors.Is(err, lock.ErrNotHeld) || errors.Is(err, lock.ErrLost) {
		w.Errorf("the second Unlock: %v", err)
	}
}

// The releases of an owner's two holds are not sent yet. Each Unlock takes no time, and the releases are executed later.
func TestAsyncUnlock_doesNotWait(t *testing.T) {
	for name, k := range asyncKinds {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				goes := make(chan struct{})
				spec := w.asyncSpec(held(k, goes))
				outer := w.mustLock(w.Context(), spec)
				if !k.NonReentrant {
					w.unlockImmediately(w.mustLock(outer.Context(), spec))
				}
				w.unlockImmediately(outer)
				close(goes)
				synctest.Wait()
				w.noHold()
			})
		})
	}
}

// held returns k. Each release waits until goes is closed before it is sent.
func held(k *Kind, goes <-chan struct{}) *Kind {
	c := *k
	c.Batches = false
	if handOff := k.HandOff; handOff != nil {
		c.HandOff = func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, p luascripts.Release) (luascripts.Released, error) {
			<-goes
			return handOff(ctx, rdb, k, owner, p)
		}
	}
	c.Release = func(ctx context.Context, rdb rueidis.Client, keys luascripts.Keys, owner string, leave int) (luascripts.Verdict, error) {
		<-goes
		return k.Release(ctx, rdb, keys, owner, leave)
	}
	return &c
}

// The next request overtakes the release. It is refused, and the call sends another one after the release. For the observer
// it has not waited for another owner.
func TestAsyncUnlock_overtaken(t *testing.T) {
	for name, k := range asyncKinds {
		if k == reading {
			continue // readers do not refuse each other
		}
		for op, acquire := range map[string]func(*Session, context.Context, *Spec) (lock.Hold, error){"TryLock": (*Session).TryLock, "Lock": (*Session).Lock} {
			t.Run(name+"/"+op, func(t *testing.T) {
				inBubble(t, func(w *world) {
					goes := make(chan struct{})
					spec := w.asyncSpec(held(k, goes))
					w.unlockImmediately(w.mustLock(w.Context(), spec))
					w.witness.take()
					var h lock.Hold
					var err error
					returned := false
					go func() {
						h, err = acquire(w.a, w.Context(), spec)
						returned = true
					}()
					synctest.Wait()
					if returned {
						w.Fatalf("%s returned before the release: %v", op, err)
					}
					close(goes)
					synctest.Wait()
					if !returned || err != nil {
						w.Fatalf("%s after the release: %v", op, err)
					}
					if events, _ := w.witness.take(); name != "plain" && slices.Contains(events, "waiting") { // it hands off a plain lock
						w.Errorf("observer events: %q", events)
					}
					w.unlockImmediately(h)
					synctest.Wait()
					w.noHold()
				})
			})
		}
	}
}

// A pair of an acquisition and an Unlock takes one round trip, even if each acquisition follows the Unlock at once: its
// request rarely overtakes the release.
func TestAsyncUnlock_oneRoundTrip(t *testing.T) {
	const trip, pairs = 50 * time.Millisecond, 20
	for name, k := range asyncKinds {
		for op, acquire := range map[string]func(*Session, context.Context, *Spec) (lock.Hold, error){"TryLock": (*Session).TryLock, "Lock": (*Session).Lock} {
			t.Run(name+"/"+op, func(t *testing.T) {
				inBubble(t, func(w *world) {
					w.observer() // of the session that is replaced
					w.close(w.a)
					w.a = New(w.mini.Client(t, redistest.Via(w.wire), func(o *rueidis.ClientOption) { o.PipelineMultiplex, o.AlwaysPipelining = -1, true }), testConfig())
					spec := w.asyncSpec(k)
					pair := func() {
						h, err := acquire(w.a, w.Context(), spec)
						if err != nil {
							w.Fatal(err)
						}
						w.unlock(h)
					}
					pair()
					time.Sleep(trip)
					w.wire.OnRequest(func([][]byte) redistest.Action {
						reply := make(chan struct{})
						time.AfterFunc(trip, func() { close(reply) })
						return redistest.Action{HoldReply: reply}
					})
					start := time.Now()
					for range pairs {
						pair()
					}
					if took := time.Since(start); took > pairs*trip*3/2 {
						w.Errorf("%d pairs took %v", pairs, took)
					}
					time.Sleep(2 * trip)
					w.noHold()
				})
			})
		}
	}
}

// A refused attempt waits for the release until its context is canceled, or until the client closes.
func TestAsyncUnlock_waitIsLimited(t *testing.T) {
	for name, c := range map[string]struct {
		end func(w *world, cancel func())
		err error
	}{
		"context": {func(_ *world, cancel func()) { cancel() }, context.Canceled},
		"Close":   {func(w *world, _ func()) { w.a.Close(w.Context()) }, lock.ErrNotAcquired},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				goes := make(chan struct{})
				spec := w.asyncSpec(held(plain, goes))
				w.unlockImmediately(w.mustLock(w.Context(), spec))
				ctx, cancel := context.WithCancel(w.Context())
				defer cancel()
				start := time.Now()
				time.AfterFunc(time.Second, func() { c.end(w, cancel) })
				_, err := w.a.TryLock(ctx, spec)
				if took := time.Since(start); !errors.Is(err, lock.ErrNotAcquired) || !errors.Is(err, c.err) || took != time.Second {
					w.Errorf("%v after %v", err, took)
				}
				close(goes)
				time.Sleep(2 * leaseTime)
			})
		})
	}
}

// A TryLock is refused, waits for the release, and has no reply to its next request. The refusal was its latest reply.
func TestAsyncUnlock_refusedThenNoReply(t *testing.T) {
	inBubble(t, func(w *world) {
		goes, reply := make(chan struct{}), make(chan struct{})
		k := held(plain, goes)
		sent := 0
		acquire := k.Acquire
		k.Acquire = func(ctx context.Context, rdb rueidis.Client, keys luascripts.Keys, q luascripts.Request) (luascripts.Acquired, error) {
			if sent++; sent == 3 {
				<-reply
			}
			return acquire(ctx, rdb, keys, q)
		}
		spec := w.asyncSpec(k)
		w.unlockImmediately(w.mustLock(w.Context(), spec))
		time.AfterFunc(opTime/2, func() { close(goes) })
		start := time.Now()
		_, err := w.a.TryLock(w.Context(), spec)
		if took := time.Since(start); !errors.Is(err, lock.ErrNotAcquired) || errors.Is(err, lock.ErrUnavailable) || took != opTime {
			w.Errorf("TryLock: %v after %v", err, took)
		}
		close(reply)
		time.Sleep(2 * leaseTime)
	})
}

// The observer and the log each report once the error that Unlock does not return, and the release is repeated.
func TestAsyncUnlock_reportsFailures(t *testing.T) {
	for name, c := range map[string]struct {
		fails func(w *world)
		event string
		err   error
		line  string
	}{
		"unavailable": {
			func(w *world) {
				w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayRequest: 2 * opTime}))
			},
			"released", lock.ErrUnavailable, `msg="release not confirmed, will retry" lock=orders mode=exclusive err="leasehold: unlock \"orders\": `,
		},
		"lost": {
			func(w *world) { w.mini.Del("orders") },
			"lost", lock.ErrLost, `msg="lock lost" lock=orders mode=exclusive cause="lock no longer held on the server `,
		},
	} {
		t.Run(name, func(t *testing.T) {
			withDefaultLogger(t, func(w *world, log *logLines) {
				h := w.mustLock(w.Context(), w.asyncSpec(plain))
				w.wantEvents("granted")
				c.fails(w)
				w.unlockImmediately(h)
				time.Sleep(opTime)
				synctest.Wait()
				if e := w.wantEvents(c.event)[0]; !errors.Is(e.Err, c.err) || e.Name != "orders" || e.Held != 0 {
					w.Errorf("%+v", e)
				}
				if lines := log.lines("orders"); len(lines) != 1 || !strings.Contains(lines[0], c.line) {
					w.Errorf("the log: %q, want one line with %q", lines, c.line)
				}
				time.Sleep(3 * opTime)
				w.noHold()
			})
		})
	}
}

// One of two holds is released, and Redis has none. Unlock returned before, so both losses are reported.
func TestAsyncUnlock_reentryDetectsALoss(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		spec := w.asyncSpec(plain)
		outer, inner := w.mustLock(ctx, spec), w.mustLock(ctx, spec)
		w.wantEvents("granted", "granted")
		w.mini.Del("orders")
		w.unlockImmediately(inner)
		synctest.Wait()
		w.wantEvents("lost", "lost")
		if err := outer.Unlock(w.Context()); !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrLost) {
			w.Errorf("Unlock after a known loss: %v", err)
		}
	})
}

// A loss that this process has detected is returned.
func TestAsyncUnlock_returnsAKnownLoss(t *testing.T) {
	inBubble(t, func(w *world) {
		spec := w.asyncSpec(plain, lock.WithFixedLease(time.Second))
		h := w.mustLock(w.Context(), spec)
		time.Sleep(time.Second)
		if err := h.Unlock(w.Context()); !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrLost) {
			w.Errorf("Unlock: %v", err)
		}
		err := lock.Do(w.Context(), locker{w.a, spec}, func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		})
		if !errors.Is(err, lock.ErrLost) {
			w.Errorf("Do: %v", err)
		}
		time.Sleep(time.Second) // the lease in Redis ends later
	})
}

// Close waits for the release and for the observer. Without a reply, the error of Close reports it.
func TestAsyncUnlock_closeWaits(t *testing.T) {
	for _, slow := range []time.Duration{time.Second, 5 * opTime} {
		t.Run(slow.String(), func(t *testing.T) {
			inBubble(t, func(w *world) {
				var released atomic.Int32
				w.observer().Released = func(context.Context, lock.Event) {
					time.Sleep(time.Second)
					released.Add(1)
				}
				w.unlock(w.lock(w.a, w.Context())) // the server knows the scripts
				h := w.mustLock(w.Context(), w.asyncSpec(plain))
				w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayReply: slow}))
				w.unlockImmediately(h)
				start := time.Now()
				err := w.a.Close(w.Context())
				if took := time.Since(start); slow < opTime && (err != nil || took != slow+time.Second) || slow > opTime && (!errors.Is(err, lock.ErrUnavailable) || took != closeTimeouts*opTime) {
					w.Errorf("Close: %v after %v", err, took)
				}
				if n := released.Load(); n != 2 {
					w.Errorf("%d holds released, want 2", n)
				}
				time.Sleep(slow)
			})
		})
	}
}

// Do returns when the function has returned, without a round trip for Unlock, only with the option.
func TestAsyncUnlock_do(t *testing.T) {
	for name, do := range map[string]func(context.Context, lock.Locker, func(context.Context) error) error{"Do": lock.Do, "TryDo": lock.TryDo} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				var ended time.Time
				for want, spec := range map[time.Duration]*Spec{0: w.asyncSpec(plain), time.Second: w.a.NewSpec(plain, "orders", nil)} {
					w.unlock(w.lock(w.a, w.Context())) // the server knows the scripts
					w.wire.OnRequest(func([][]byte) redistest.Action { return redistest.Action{DelayReply: time.Second} })
					err := do(w.Context(), locker{w.a, spec}, func(context.Context) error {
						ended = time.Now()
						return io.EOF
					})
					if took := time.Since(ended); !errors.Is(err, io.EOF) || took != want {
						w.Errorf("%v, %v after the function, want %v", err, took, want)
					}
					w.wire.OnRequest(nil)
					time.Sleep(time.Second)
				}
			})
		})
	}
}

// A lock with a minimum hold time stays locked after Unlock.
func TestAsyncUnlock_minHold(t *testing.T) {
	inBubble(t, func(w *world) {
		spec := w.asyncSpec(plain, lock.WithMinHold(time.Minute))
		w.unlockImmediately(w.mustLock(w.Context(), spec))
		time.Sleep(50 * time.Second)
		if h, err := w.a.TryLock(w.Context(), spec); !errors.Is(err, lock.ErrNotAcquired) {
			w.Errorf("TryLock: %v %v", h, err)
		}
		time.Sleep(time.Minute)
	})
}

// Each hold is released with the options of its own handle.
func TestAsyncUnlock_isPerHandle(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		outer, inner := w.lock(w.a, ctx), w.mustLock(ctx, w.asyncSpec(plain))
		slow := func() { w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayReply: time.Second})) }
		slow()
		w.unlockImmediately(inner)
		time.Sleep(opTime)
		slow()
		start := time.Now()
		w.unlock(outer)
		if took := time.Since(start); took != time.Second {
			w.Errorf("Unlock without the option took %v", took)
		}
	})
}

// A read hold of Downgrade has the option of its handle. Downgrade itself waits for the release of the write hold,
// because that may find a loss.
func TestAsyncUnlock_downgrade(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.mustLock(w.Context(), w.asyncSpec(writing))
		read, err := w.a.Downgrade(w.Context(), w.asyncSpec(reading), h)
		if err != nil {
			w.Fatal(err)
		}
		if fields, err := w.mini.HKeys("orders"); len(fields) != 2 || err != nil { // the mode and the reader
			w.Errorf("after Downgrade Redis has %q", fields)
		}
		w.wire.OnRequest(func([][]byte) redistest.Action { return redistest.Action{DelayReply: time.Second} })
		w.unlockImmediately(read)
	})
}

// An Unlock gives up before its command is sent, because another command of the owner is in flight. The count in Redis is
// reconciled later.
func TestReduce_givesUpItsTurn(t *testing.T) {
	inBubble(t, func(w *world) {
		owner := lock.ContextWithNewOwner(w.Context())
		outer, inner := w.lock(w.a, owner), w.lock(w.a, owner)
		turn := outer.(*hold).By.Turn
		turn <- struct{}{}
		if err := inner.Unlock(w.within(time.Second)); !errors.Is(err, context.DeadlineExceeded) {
			w.Error(err)
		}
		<-turn
		time.Sleep(opTime)
		if n := w.count(outer); n != 1 {
			w.Errorf("count %d", n)
		}
		w.unlock(outer)
	})
}

// An Unlock that waited nearly an operation timeout, for another command of its owner or for a renewal, still has time for
// its own command.
func TestUnlock_afterALongWait(t *testing.T) {
	for name, holds := range map[string]int{"a command of the owner": 2, "a renewal": 1} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				owner := lock.ContextWithNewOwner(w.Context())
				var h, outer lock.Hold
				for range holds {
					h, outer = w.lock(w.a, owner), h
				}
				if holds == 1 {
					reply := make(chan struct{})
					w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{HoldReply: reply}))
					time.Sleep(leaseTime/3 + time.Millisecond)
					time.AfterFunc(opTime, func() { close(reply) })
				} else {
					turn := h.(*hold).By.Turn
					turn <- struct{}{}
					time.AfterFunc(opTime-time.Millisecond, func() { <-turn })
				}
				start := time.Now()
				time.AfterFunc(opTime-2*time.Millisecond, func() { w.slowScripts(2 * time.Millisecond) })
				if err := h.Unlock(w.Context()); err != nil {
					w.Errorf("%v after %v", err, time.Since(start))
				}
				if outer != nil {
					w.unlock(outer)
				}
			})
		})
	}
}

// A call that follows an Unlock does not wait for a command that has been sent, whatever that command is.
func TestAsyncUnlock_sent(t *testing.T) {
	for name, opts := range map[string][]lock.Option{"one of two holds": nil, "a minimum hold time": {lock.WithMinHold(10 * time.Second)}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				spec := w.asyncSpec(plain, opts...)
				outer := w.mustLock(w.Context(), spec)
				h := outer
				if opts == nil {
					h = w.mustLock(outer.Context(), spec)
				}
				w.slowScripts(time.Second)
				w.unlockImmediately(h)
				if _, err := w.a.TryLock(w.within(time.Minute), spec); !errors.Is(err, lock.ErrNotAcquired) || errors.Is(err, context.DeadlineExceeded) {
					w.Error(err)
				}
				if h != outer {
					w.unlockImmediately(outer)
				}
				time.Sleep(10 * time.Second)
			})
		})
	}
}

// A release that is confirmed is not logged. One that fails is.
func TestAsyncUnlock_log(t *testing.T) {
	withDefaultLogger(t, func(w *world, log *logLines) {
		for _, fails := range []bool{false, true} {
			h := w.mustLock(w.Context(), w.asyncSpec(plain))
			if fails {
				w.mini.SetError("NOPERM this user has no permissions")
			}
			w.unlockImmediately(h)
			synctest.Wait()
			w.mini.SetError("")
			if lines := log.lines("release not confirmed"); (len(lines) > 0) != fails {
				t.Errorf("it fails: %t; %q", fails, lines)
			}
			time.Sleep(opTime)
		}
	})
}

// A release that ends is no longer in flight. Others are.
func TestReleased(t *testing.T) {
	inBubble(t, func(w *world) {
		at, err := w.a.begin(w.a.NewSpec(plain, "orders", nil))
		if err != nil {
			w.Fatal(err)
		}
		defer w.a.done(at)
		ends, other := newReleasing(), newReleasing()
		at.releasing = []*releasing{ends, other}
		at.released(ends)
		<-ends.done
		if !slices.Equal(at.releasing, []*releasing{other}) {
			w.Errorf("%d are in flight", len(at.releasing))
		}
	})
}

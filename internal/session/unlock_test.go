package session

import (
	"context"
	"errors"
	"fmt"
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
		w.unlockLost(w.untilTheClock(lock.WithFixedLease(time.Second)))
		time.Sleep(time.Second)
	})
}

// The lock is lost after Unlock has checked it. Unlock reports the loss immediately, and sends nothing.
func TestUnlock_lostMeanwhile(t *testing.T) {
	forEach(t, map[string][]lock.Option{"sync": nil, "async": {lock.WithAsyncUnlock()}}, func(w *world, opts []lock.Option) {
		h := w.lock(w.a, w.Context(), opts...)
		w.wantEvents("granted")
		w.mini.Del("orders")
		start := time.Now()
		err := h.Unlock(&errHook{Context: w.Context(), f: func() { h.(*hold).acquisition().lease.Lose(lock.ErrGone) }})
		w.wantErr(err, lock.ErrNotHeld, lock.ErrLost)
		w.wantTook(start, 0)
		w.wantEvents("lost")
	})
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
		err := h.Unlock(w.Context())
		w.wantErr(err, lock.ErrLost)
		w.wantNotErrs(err, lock.ErrUnavailable)
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
		w.close(w.a)
		w.wantErr(w.a.unlockEnded(w.Context(), h, now, true), lock.ErrNotHeld, lock.ErrClosed)
	})
}

// renewing makes a renewal of the holds of session a wait for its reply until end is called.
func (w *world) renewing() (end func()) {
	reply := make(chan struct{})
	w.onNext(redistest.Action{HoldReply: reply})
	time.Sleep(leaseTime / 3)
	synctest.Wait()
	return func() { close(reply) }
}

// A renewal is in flight without a reply when a hold is released. The caller waits no longer than its context.
func TestUnlock_canceled(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		end := w.renewing()
		start := time.Now()
		w.wantErr(h.Unlock(w.within(pollTime/2)), context.DeadlineExceeded)
		w.wantTook(start, pollTime/2)
		end()
	})
}

// The context of a call is canceled because another lock was lost. The error of the call has that cause, but does not say
// that the hold of the call was lost.
func TestUnlock_otherLockLost(t *testing.T) {
	other := fmt.Errorf("%w: %w", lock.ErrNotHeld, lock.ErrLost)
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		w.wantEvents("granted")
		w.wire.Freeze(true)
		for _, call := range []func(context.Context) error{
			func(ctx context.Context) error { return h.Extend(ctx, time.Hour) },
			h.Unlock,
		} {
			ctx, cancel := context.WithCancelCause(w.Context())
			ended := w.begin(func() error { return call(ctx) })
			cancel(other)
			err := <-ended
			w.wantErr(err, context.Canceled, other)
			w.wantNotErrs(err, lock.ErrNotHeld, lock.ErrLost)
			if h.Err() == nil {
				w.wantNotErrs(call(ctx), lock.ErrNotHeld, lock.ErrLost)
			}
		}
		w.wantEvents("released")
		w.resume()
	})
}

// The renewal that detects the cancellation calls the observer, whose function unlocks the hold. The Unlock waits no longer
// than the operation timeout, and the other leases of the batch are renewed.
func TestUnlock_inObserver(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx, cancel := context.WithCancel(w.Context())
		h, other := w.lock(w.a, ctx), w.lockNamed("other")
		var unlocked atomic.Bool
		w.observer().Draining = func(context.Context, lock.Event) {
			start := time.Now()
			w.unlock(h)
			w.wantTook(start, opTime)
			unlocked.Store(true)
		}
		cancel()
		time.Sleep(2 * leaseTime)
		if !unlocked.Load() {
			w.Error("Unlock has not returned")
		}
		w.wantFree()
		w.wantHeld(other)
		w.unlock(other)
	})
}

// The caller of Unlock leaves, and the release gets its reply a moment later. The release is reconciled with exactly
// one command.
func TestUnlock_lateReply(t *testing.T) {
	inBubble(t, func(w *world) {
		reply := make(chan struct{})
		k, sent := slowRelease(plain, 1, reply)
		h := w.take(w.a, k, w.Context())
		w.wantErr(h.Unlock(w.within(pollTime/2)), context.DeadlineExceeded)
		close(reply)
		time.Sleep(leaseTime)
		w.wantSent(sent, 2) // the release and one repetition
	})
}

// reduces is the plain kind. Its first command that leaves some holds calls f.
func reduces(f func(release func() (luascripts.Verdict, error)) (luascripts.Verdict, error)) *Kind {
	k := hookable()
	release := k.Release
	var first atomic.Bool
	k.Release = func(ctx context.Context, rdb rueidis.Client, keys luascripts.Keys, owner string, leave int) (luascripts.Verdict, error) {
		send := func() (luascripts.Verdict, error) { return release(ctx, rdb, keys, owner, leave) }
		if leave > 0 && first.CompareAndSwap(false, true) {
			return f(send)
		}
		return send()
	}
	return k
}

// twice locks twice as one owner.
func (w *world) twice(k *Kind) (outer, inner lock.Hold) {
	w.Helper()
	owner := lock.ContextWithNewOwner(w.Context())
	return w.take(w.a, k, owner), w.take(w.a, k, owner)
}

// takeTurn makes another call of the owner of h have the turn, until end is called.
func takeTurn(h lock.Hold) (end func()) {
	turn := h.(*hold).By.Turn
	turn <- struct{}{}
	return func() { <-turn }
}

// One of two holds is released, and the caller leaves before the reply. The reply is an error: the command is repeated.
func TestReduce_lateError(t *testing.T) {
	inBubble(t, func(w *world) {
		reply := make(chan struct{})
		outer, inner := w.twice(reduces(func(func() (luascripts.Verdict, error)) (luascripts.Verdict, error) {
			<-reply
			return 0, io.EOF
		}))
		w.wantErr(inner.Unlock(w.within(pollTime/2)), context.DeadlineExceeded)
		close(reply)
		time.Sleep(pollTime)
		w.wantCount(outer, 1)
		w.unlock(outer)
	})
}

// One of two holds is released while another call of the owner has the turn. The lock is lost in the meantime, and then
// the caller leaves, or has its turn: the error reports the loss.
func TestReduce_lostMeanwhile(t *testing.T) {
	forEach(t, map[string]bool{"the caller leaves": true, "the caller has its turn": false}, func(w *world, leaves bool) {
		outer, inner := w.twice(plain)
		endTurn := takeTurn(outer)
		ctx, cancel := context.WithCancel(w.Context())
		unlocked := w.begin(func() error { return inner.Unlock(ctx) })
		w.mini.Del("orders")
		outer.(*hold).acquisition().lease.Lose(watchdog.ErrGone)
		if leaves {
			cancel()
		} else {
			endTurn()
		}
		w.wantErr(<-unlocked, lock.ErrNotHeld, lock.ErrLost)
		if leaves {
			endTurn()
		}
		cancel()
	})
}

// One of two holds is released, and Redis is slow. That is no error within the operation timeout.
func TestReduce_operationTimeout(t *testing.T) {
	inBubble(t, func(w *world) {
		outer, inner := w.twice(plain)
		w.onNext(redistest.Action{DelayReply: opTime / 2})
		w.unlockAll(inner, outer)
	})
}

// Both holds of an owner are released, and the release overtakes the command that leaves one of them. That command
// finds no lock, and neither Unlock fails.
func TestReduce_overtakenByTheRelease(t *testing.T) {
	inBubble(t, func(w *world) {
		goes := make(chan struct{})
		outer, inner := w.twice(reduces(func(send func() (luascripts.Verdict, error)) (luascripts.Verdict, error) {
			<-goes
			return send()
		}))
		unlocked := w.beginUnlock(inner)
		w.unlock(outer)
		close(goes)
		w.wantNoErr(<-unlocked)
	})
}

// One of two holds is released, and Redis has none. The other hold is lost immediately, and not at the next renewal.
func TestReduce_detectsALoss(t *testing.T) {
	inBubble(t, func(w *world) {
		outer, inner := w.twice(plain)
		w.mini.Del("orders")
		w.unlockLost(inner)
		w.wantErr(outer.Err(), lock.ErrGone)
	})
}

// One of two holds is released, and Redis has none. A renewal detects that at the same time. The Unlock reports the loss.
func TestReduce_lossDetectedMeanwhile(t *testing.T) {
	inBubble(t, func(w *world) {
		var outer, inner lock.Hold
		outer, inner = w.twice(reduces(func(send func() (luascripts.Verdict, error)) (luascripts.Verdict, error) {
			w.mini.Del("orders")
			v, err := send()
			outer.(*hold).acquisition().lease.Lose(watchdog.ErrGone)
			return v, err
		}))
		w.wantEvents("granted", "granted")
		w.unlockLost(inner)
		w.wantEvents("lost", "lost")
	})
}

// Both holds of an owner are released. The first release waits for the turn, but another call of the owner has it next, and
// keeps it while it waits for the lock. Both calls of Unlock return immediately.
func TestReduce_releasedMeanwhile(t *testing.T) {
	inBubble(t, func(w *world) {
		owner := lock.ContextWithNewOwner(w.Context())
		outer, inner := w.lock(w.a, owner), w.lock(w.a, owner)
		endTurn := takeTurn(outer)
		next := w.waiting(w.a, owner)
		unlocked := w.beginUnlock(inner)
		w.unlock(outer)
		other := w.lock(w.b, w.Context())
		endTurn()
		synctest.Wait()
		select {
		case err := <-unlocked:
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
	forEach(t, map[string]*Kind{"plain": plain, "write": writing}, func(w *world, k *Kind) {
		w.withoutPubSub()
		h := w.take(w.a, k, w.Context())
		next := w.goLock(w.a, k, w.Context())
		time.Sleep(pollTime * 3 / 2)
		start := time.Now()
		w.unlock(h)
		h = <-next
		w.wantTook(start, 0)
		w.unlock(h)
		w.wire.OnRequest(nil)
	})
}

// A release of a kind without hand-off names no next owner: the first request acquires the lock.
func TestUnlock_namesNoNextOwnerWithoutHandOff(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.a, writing, w.Context())
		next := w.goLock(w.a, writing, w.Context())
		if f, _ := h.(*hold).acquisition().newRelease(time.Now()); f.next != nil || f.release.NextOwner != "" {
			w.Errorf("the release names %q", f.release.NextOwner)
		}
		w.unlock(h)
		w.unlock(<-next)
	})
}

// failFirstRelease is the plain kind whose first release fails, and is not executed.
func failFirstRelease(err error) *Kind {
	return onRelease(plain, func(r release) (luascripts.Released, error) {
		if r.n == 1 {
			return luascripts.Released{}, err
		}
		return r.send()
	})
}

// A release gets no reply, and its repetition finds a key of the wrong type: the lock was lost.
func TestUnlock_wrongTypeAtTheRepetition(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.a, failFirstRelease(io.EOF), w.Context())
		w.mini.Del("orders")
		w.wantNoErr(w.mini.Set("orders", "a string"))
		w.wantErr(h.Unlock(w.Context()), lock.ErrLost, lock.ErrWrongType)
		w.mini.Del("orders")
	})
}

// No node has the slot for the release, so it was not sent, and its repetition finds no lock: the lock was lost.
func TestUnlock_goneAfterNoNode(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.a, failFirstRelease(rueidis.ErrNoSlot), w.Context())
		w.mini.Del("orders")
		w.unlockLost(h)
	})
}

// An inner and the outer hold are released concurrently. The command that leaves one hold comes second, and must not
// release the other.
func TestReduce_doesNotFreeTheLock(t *testing.T) {
	inBubble(t, func(w *world) {
		outer, inner := w.twice(plain)
		endRenewal := w.renewing() // which delays the release
		endTurn := takeTurn(outer)
		unlocked := []<-chan error{w.beginUnlock(inner), w.beginUnlock(outer)}
		endTurn()
		synctest.Wait()
		endRenewal()
		for _, u := range unlocked {
			w.wantNoErr(<-u)
		}
	})
}

// An Unlock without a reply returns in time, and the release continues.
func TestUnlock_onASlowServer(t *testing.T) {
	inBubble(t, func(w *world) {
		for _, want := range []time.Duration{opTime, time.Second} {
			h := w.lock(w.a, w.Context())
			w.onNext(redistest.Action{DelayRequest: 5 * time.Second})
			ctx := w.Context()
			if want < opTime {
				ctx = w.within(want)
			}
			start := time.Now()
			w.wantNotErrs(h.Unlock(ctx), lock.ErrNotHeld)
			w.wantTook(start, want)
			w.wantErr(h.Err(), lock.ErrUnlocked)
			time.Sleep(10 * time.Second)
			synctest.Wait()
			w.wantEmpty()
		}
	})
}

// An unconfirmed partial release is reconciled in the background.
func TestReduce_isReconciled(t *testing.T) {
	inBubble(t, func(w *world) {
		outer := w.lock(w.a, lock.ContextWithNewOwner(w.Context()))
		inner := w.lock(w.a, outer.Context())
		w.onNext(redistest.Action{DropRequest: true})
		w.unlock(inner) // within the operation timeout it is sent again
		w.wantCount(outer, 1)
		inner = w.lock(w.a, outer.Context())
		w.cut()
		w.wantNotErrs(inner.Unlock(w.Context()))
		w.wire.Refuse(false)
		time.Sleep(2 * opTime)
		synctest.Wait()
		w.wantCount(outer, 1)
		w.wantHeld(outer)
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
	w.wantEmpty()
}

// unlockImmediately fails the test if Unlock of h takes any time, or if the hold does not end as after any Unlock.
func (w *world) unlockImmediately(h lock.Hold) {
	w.Helper()
	start := time.Now()
	w.unlock(h)
	w.wantTook(start, 0)
	if err := h.Err(); !errors.Is(err, lock.ErrUnlocked) || h.Context().Err() == nil || h.Until().After(time.Now()) {
		w.Errorf("the hold: %v until %v", err, h.Until())
	}
	if err := h.Unlock(w.Context()); !errors.Is(err, lock.ErrNotHeld) || errors.Is(err, lock.ErrLost) {
		w.Errorf("the second Unlock: %v", err)
	}
}

// The releases of an owner's two holds are not sent yet. Each Unlock takes no time, and the releases are executed later.
func TestAsyncUnlock_doesNotWait(t *testing.T) {
	forEach(t, asyncKinds, func(w *world, k *Kind) {
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
}

// held returns k. Each release waits until goes is closed before it is sent.
func held(k *Kind, goes <-chan struct{}) *Kind {
	c := *k
	if k.HandOff != nil {
		c = *onRelease(k, func(r release) (luascripts.Released, error) {
			<-goes
			return r.send()
		})
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
	forEach(t, asyncKinds, func(w *world, k *Kind) {
		for _, tries := range []bool{false, true} {
			if k == reading {
				return // readers do not refuse each other
			}
			goes := make(chan struct{})
			spec := w.asyncSpec(held(k, goes))
			w.unlockImmediately(w.mustLock(w.Context(), spec))
			w.witness.take()
			var h lock.Hold
			ended := w.begin(func() (err error) {
				h, err = w.lockOrTry(tries)(w.Context(), spec)
				return err
			})
			if len(ended) > 0 {
				w.Fatalf("tries: %t: it returned before the release: %v", tries, <-ended)
			}
			close(goes)
			synctest.Wait()
			if len(ended) == 0 {
				w.Fatalf("tries: %t: it waits after the release", tries)
			}
			if err := <-ended; err != nil {
				w.Fatalf("tries: %t: %v after the release", tries, err)
			}
			if events, _ := w.witness.take(); k != plain && slices.Contains(events, "waiting") { // it hands off a plain lock
				w.Errorf("observer events: %q", events)
			}
			w.unlockImmediately(h)
			synctest.Wait()
			w.noHold()
		}
	})
}

// A pair of an acquisition and an Unlock takes one round trip, even if each acquisition follows the Unlock at once: its
// request rarely overtakes the release.
func TestAsyncUnlock_oneRoundTrip(t *testing.T) {
	const trip, pairs = 50 * time.Millisecond, 20
	forEach(t, asyncKinds, func(w *world, k *Kind) {
		w.observer() // of the session that is replaced
		w.close(w.a)
		w.a = New(w.mini.Client(w, redistest.Via(w.wire), oneConnection, func(o *rueidis.ClientOption) { o.AlwaysPipelining = true }), testConfig())
		spec := w.asyncSpec(k)
		for _, tries := range []bool{false, true} {
			acquire := w.lockOrTry(tries)
			pair := func() { w.unlock(w.must(acquire(w.Context(), spec))) }
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
			w.wantWithin(start, pairs*trip*3/2)
			w.wire.OnRequest(nil)
			time.Sleep(2 * trip)
			w.noHold()
		}
	})
}

// A refused attempt waits for the release until its context is canceled, or until the client closes.
func TestAsyncUnlock_waitIsLimited(t *testing.T) {
	forEach(t, map[string]error{"context": context.Canceled, "Close": lock.ErrNotAcquired}, func(w *world, want error) {
		goes := make(chan struct{})
		spec := w.asyncSpec(held(plain, goes))
		w.unlockImmediately(w.mustLock(w.Context(), spec))
		ctx, cancel := context.WithCancel(w.Context())
		start := time.Now()
		time.AfterFunc(time.Second, func() {
			if want == context.Canceled {
				cancel()
			} else {
				w.a.Close(w.Context())
			}
		})
		w.wantFail(w.a.TryLock, ctx, spec, lock.ErrNotAcquired, want)
		w.wantTook(start, time.Second)
		close(goes)
		time.Sleep(2 * leaseTime)
		cancel()
	})
}

// A TryLock is refused, waits for the release, and has no reply to its next request. The refusal was its latest reply.
func TestAsyncUnlock_refusedThenNoReply(t *testing.T) {
	inBubble(t, func(w *world) {
		goes, reply := make(chan struct{}), make(chan struct{})
		spec := w.asyncSpec(onRequest(held(plain, goes), func(r request) (luascripts.Acquired, error) {
			if r.n == 3 {
				<-reply
			}
			return r.send()
		}))
		w.unlockImmediately(w.mustLock(w.Context(), spec))
		time.AfterFunc(opTime/2, func() { close(goes) })
		start := time.Now()
		_, err := w.a.TryLock(w.Context(), spec)
		w.wantErr(err, lock.ErrNotAcquired)
		w.wantNotErrs(err, lock.ErrUnavailable)
		w.wantTook(start, opTime)
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
				w.onNext(redistest.Action{DelayRequest: 2 * opTime})
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
		w.unlockLost(outer)
	})
}

// A loss that this process has detected is returned.
func TestAsyncUnlock_returnsAKnownLoss(t *testing.T) {
	inBubble(t, func(w *world) {
		spec := w.asyncSpec(plain, lock.WithFixedLease(time.Second))
		h := w.mustLock(w.Context(), spec)
		time.Sleep(time.Second)
		w.unlockLost(h)
		w.wantErr(lock.Do(w.Context(), locker{w.a, spec}, func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		}), lock.ErrLost)
		time.Sleep(time.Second) // the lease in Redis ends later
	})
}

// Close waits for the release and for the observer. Without a reply, the error of Close reports it.
func TestAsyncUnlock_closeWaits(t *testing.T) {
	forEach(t, map[string]time.Duration{"slow": time.Second, "no reply": 5 * opTime}, func(w *world, slow time.Duration) {
		var released atomic.Int64
		w.observer().Released = func(context.Context, lock.Event) {
			time.Sleep(time.Second)
			released.Add(1)
		}
		w.unlock(w.lock(w.a, w.Context())) // the server knows the scripts
		h := w.mustLock(w.Context(), w.asyncSpec(plain))
		w.onNext(redistest.Action{DelayReply: slow})
		w.unlockImmediately(h)
		start := time.Now()
		err := w.a.Close(w.Context())
		if slow < opTime {
			w.wantNoErr(err)
			w.wantTook(start, slow+time.Second)
		} else {
			w.wantErr(err, lock.ErrUnavailable)
			w.wantTook(start, closeTimeouts*opTime)
		}
		if n := released.Load(); n != 2 {
			w.Errorf("%d holds released, want 2", n)
		}
		time.Sleep(slow)
	})
}

// Do returns when the function has returned, without a round trip for Unlock, only with the option.
func TestAsyncUnlock_do(t *testing.T) {
	type test struct {
		do   func(context.Context, lock.Locker, func(context.Context) error) error
		opts []lock.Option
		want time.Duration
	}
	async := []lock.Option{lock.WithAsyncUnlock()}
	forEach(t, map[string]test{
		"Do": {lock.Do, nil, time.Second}, "TryDo": {lock.TryDo, nil, time.Second},
		"Do, async": {lock.Do, async, 0}, "TryDo, async": {lock.TryDo, async, 0},
	}, func(w *world, c test) {
		w.unlock(w.lock(w.a, w.Context())) // the server knows the scripts
		w.wire.OnRequest(func([][]byte) redistest.Action { return redistest.Action{DelayReply: time.Second} })
		var ended time.Time
		w.wantErr(c.do(w.Context(), locker{w.a, w.a.NewSpec(plain, "orders", c.opts)}, func(context.Context) error {
			ended = time.Now()
			return io.EOF
		}), io.EOF)
		w.wantTook(ended, c.want)
		w.wire.OnRequest(nil)
		time.Sleep(time.Second)
	})
}

// A lock with a minimum hold time stays locked after Unlock.
func TestAsyncUnlock_minHold(t *testing.T) {
	inBubble(t, func(w *world) {
		minHold := lock.WithMinHold(time.Minute)
		w.unlockImmediately(w.mustLock(w.Context(), w.asyncSpec(plain, minHold)))
		time.Sleep(50 * time.Second)
		w.refused(w.a, plain, lock.WithAsyncUnlock(), minHold)
		time.Sleep(time.Minute)
	})
}

// Each hold is released with the options of its own handle.
func TestAsyncUnlock_isPerHandle(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		outer, inner := w.lock(w.a, ctx), w.mustLock(ctx, w.asyncSpec(plain))
		w.onNext(redistest.Action{DelayReply: time.Second})
		w.unlockImmediately(inner)
		time.Sleep(opTime)
		w.onNext(redistest.Action{DelayReply: time.Second})
		start := time.Now()
		w.unlock(outer)
		w.wantTook(start, time.Second)
	})
}

// A read hold of Downgrade has the option of its handle. Downgrade itself waits for the release of the write hold,
// because that may find a loss.
func TestAsyncUnlock_downgrade(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.mustLock(w.Context(), w.asyncSpec(writing))
		read := w.must(w.a.Downgrade(w.Context(), w.asyncSpec(reading), h))
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
		outer, inner := w.twice(plain)
		endTurn := takeTurn(outer)
		w.wantErr(inner.Unlock(w.within(time.Second)), context.DeadlineExceeded)
		endTurn()
		time.Sleep(opTime)
		w.wantCount(outer, 1)
		w.unlock(outer)
	})
}

// An Unlock that waited nearly an operation timeout, for another command of its owner or for a renewal, still has time for
// its own command.
func TestUnlock_afterALongWait(t *testing.T) {
	forEach(t, map[string]bool{"a command of the owner": false, "a renewal": true}, func(w *world, renewal bool) {
		owner := lock.ContextWithNewOwner(w.Context())
		holds := []lock.Hold{w.lock(w.a, owner)}
		if renewal {
			reply := make(chan struct{})
			w.onNext(redistest.Action{HoldReply: reply})
			time.Sleep(leaseTime/3 + time.Millisecond)
			time.AfterFunc(opTime, func() { close(reply) })
		} else {
			holds = append(holds, w.lock(w.a, owner))
			time.AfterFunc(opTime-time.Millisecond, takeTurn(holds[0]))
		}
		time.AfterFunc(opTime-2*time.Millisecond, func() { w.slowScripts(2 * time.Millisecond) })
		w.unlockAll(holds...)
	})
}

// A call that follows an Unlock does not wait for a command that has been sent, whatever that command is.
func TestAsyncUnlock_sent(t *testing.T) {
	forEach(t, map[string][]lock.Option{
		"one of two holds":    nil,
		"a minimum hold time": {lock.WithMinHold(10 * time.Second)},
	}, func(w *world, opts []lock.Option) {
		spec := w.asyncSpec(plain, opts...)
		outer := w.mustLock(w.Context(), spec)
		h := outer
		if opts == nil {
			h = w.mustLock(outer.Context(), spec)
		}
		w.slowScripts(time.Second)
		w.unlockImmediately(h)
		_, err := w.a.TryLock(w.within(time.Minute), spec)
		w.wantErr(err, lock.ErrNotAcquired)
		w.wantNotErrs(err, context.DeadlineExceeded)
		if h != outer {
			w.unlockImmediately(outer)
		}
		time.Sleep(10 * time.Second)
	})
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

// Removals of acquisitions end one by one. A second removal of the same acquisition ends with the first. Without a reply to the
// last request, there may be something left to remove.
func TestRemoved(t *testing.T) {
	inBubble(t, func(w *world) {
		spec := w.a.NewSpec(plain, "orders", nil)
		at, err := w.a.begin(spec)
		if err != nil {
			w.Fatal(err)
		}
		defer w.a.done(at)
		made := func() *acquisition { return acquisitionOf(at.NewAcquisition(&spec.terms, time.Now())) }
		ended, other := made(), made()
		at.willRemove(ended)
		first := at.removing[ended]
		at.willRemove(ended)
		at.willRemove(other)
		at.removed(ended)
		<-first.done
		if len(at.removing) != 1 || at.removing[other] == nil {
			w.Errorf("%d are in flight", len(at.removing))
		}
		at.removed(ended)
		at.state.WillSend(&other.Acquisition, leaseTime, 0)
		at.removed(other)
		if at.removing[other] == nil {
			w.Error("it does not wait for the reply")
		}
		at.state.LateReply(nil, &other.Acquisition, false)
		at.removed(other)
		if len(at.removing) > 0 {
			w.Error("it still waits after the reply")
		}
	})
}

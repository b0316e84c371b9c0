package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/lockstate"
	"github.com/leasehold-go/leasehold/internal/owner"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/leasehold-go/leasehold/watchdog"
)

// Each test here fails without one guard of the wait loop.

// A server that loads its data rejects each command. A TryLock retries until less than a quarter of its time remains,
// independent of the poll interval.
func TestTryLock_retriesWhileTheServerLoads(t *testing.T) {
	inBubble(t, func(w *world) {
		config := testConfig()
		config.Poll = 10 * opTime
		s := New(w.mini.Client(w.T), config)
		w.unlock(w.lock(s, w.Context()))
		w.mini.SetError(loading)
		for range 30 {
			start := time.Now()
			if _, err := s.TryLock(w.Context(), s.NewSpec(plain, "orders", nil)); !strings.Contains(errText(err), loading) {
				w.Error(err)
			}
			if took := time.Since(start); took < opTime-opTime/4 || took > opTime {
				w.Errorf("the last request came after %v, the limit is %v", took, opTime)
			}
		}
		w.mini.SetError("")
		w.close(s)
	})
}

const loading = "LOADING Redis is loading the dataset in memory"

// The reply takes as long as the lease. The call retries immediately, and not at the next poll.
func TestExpiredGrant_retriesImmediately(t *testing.T) {
	inBubble(t, func(w *world) {
		for _, k := range []*Kind{plain, fair, writing} {
			w.unlock(w.take(w.a, k, w.Context())) // loads the scripts
			const slow = 200 * time.Millisecond
			w.onNext(redistest.Action{DelayReply: slow})
			start := time.Now()
			h := w.take(w.a, k, w.Context(), lock.WithFixedLease(slow/2))
			w.wantWithin(start, slow+slow/2)
			w.unlock(h)
			time.Sleep(opTime)
		}
	})
}

// refusedAttempt returns an attempt of session a whose first request was refused.
func (w *world) refusedAttempt(k *Kind) (a *attempt, end func()) {
	spec := w.a.NewSpec(k, "orders", nil)
	at, err := w.a.begin(spec)
	if err != nil {
		w.Fatal(err)
	}
	a = &attempt{s: w.a, spec: spec, at: at, caller: caller{ctx: w.Context(), number: owner.New()}, waiting: w.Context(), timing: timing{began: time.Now(), now: time.Now()}}
	a.join()
	if err := w.asks(a); err != errRefused {
		w.Fatal(err)
	}
	return a, func() {
		a.leave()
		w.a.done(at)
	}
}

// asks makes a send its next request.
func (w *world) asks(a *attempt) error {
	w.Helper()
	step, err := a.next()
	if err != nil || step.Do != lockstate.Send {
		w.Fatal(step.Do, err)
	}
	return a.send()
}

// A waiter that was refused sends another request. It keeps the ticket of its queue, and with it the position in Redis, even
// if an earlier request for the ticket may still be executed.
func TestQueue_keepsItsTicket(t *testing.T) {
	inBubble(t, func(w *world) {
		other := w.lock(w.b, w.Context())
		a, end := w.refusedAttempt(plain)
		ticket := a.t
		locked(a.at, ticket.MarkUncertain)
		a.wakeup()
		if err := w.asks(a); err != errRefused || a.t != ticket {
			w.Errorf("%v, and the ticket is %s, not %s", err, a.t.Name, ticket.Name)
		}
		end()
		synctest.Wait()
		w.unlock(other)
	})
}

// loseLock loses the lock of t, as after a force-unlock.
func (w *world) loseLock(t *acquisition) {
	w.mini.Del("orders")
	t.lease.Lose(watchdog.ErrGone)
}

// A release granted a fair lock to a waiter, and the lock is lost before the waiter runs. The waiter acquires the free lock
// immediately, with a new owner string.
func TestQueue_lostBeforeTheClaim(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.a, fair, w.Context())
		a, end := w.refusedAttempt(fair)
		w.unlock(h)
		synctest.Wait()
		offered := acquisitionOf(a.t)
		w.loseLock(offered)
		start := time.Now()
		if err := a.steps(); err != nil {
			w.Fatal(err)
		}
		next := a.h
		if next == nil || next.acquisition() == offered || next.Owner() == offered.Name || time.Since(start) != 0 {
			w.Fatalf("after %v: a hold of %v", time.Since(start), next)
		}
		w.ours(next)
		w.unlock(next)
		end()
	})
}

// stall blocks the watchdog of session a until wake, as on a busy machine: its observer does not return from a loss.
func (w *world) stall() (wake func()) {
	w.Helper()
	stuck := make(chan struct{})
	w.observer().Lost = func(_ context.Context, e lock.Event) {
		if e.Name == "stalled" {
			<-stuck
		}
	}
	h := w.mustLock(w.Context(), w.a.NewSpec(plain, "stalled", []lock.Option{lock.WithFixedLease(lock.MinLease)}))
	time.Sleep(time.Until(h.Until()))
	synctest.Wait()
	return func() { close(stuck) }
}

// The lease of a reader has expired, and no goroutine has detected that yet. Another reader does not join it, by Lock
// or TryLock, but sends a request.
func TestReaders_joinNoExpiredLease(t *testing.T) {
	forEach(t, map[string]bool{"Lock": false, "TryLock": true}, func(w *world, tries bool) {
		const lease = 100 * time.Millisecond
		w.a.Lease = lease // so that a reply can take almost as long
		w.a.table.rules.Lease = lease
		w.known()
		wake := w.stall()
		w.onNext(redistest.Action{DelayReply: watchdog.Trusted(lease) - lockstate.ShareTime/2})
		first := w.take(w.a, reading, w.Context())
		time.Sleep(time.Until(first.Until()))
		start := time.Now()
		acquire := w.lockOrTry(tries)
		if h, err := acquire(w.Context(), w.a.NewSpec(reading, "orders", nil)); err != nil || time.Since(start) != 0 {
			w.Errorf("%v after %v", err, time.Since(start))
		} else if h.Err() != nil || h.Owner() == first.Owner() {
			w.Errorf("joined an ended acquisition: %v", h.Err())
		} else {
			w.unlock(h)
		}
		w.wantErr(first.Err(), lock.ErrLost)
		wake()
	})
}

// The lease of a writer has expired, and no goroutine has detected that yet. Its owner reads like any other reader:
// others may join it.
func TestReaders_joinAnExpiredWriter(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
		wake := w.stall()
		ctx := lock.ContextWithNewOwner(w.Context())
		wrote := w.take(w.a, writing, ctx, lock.WithFixedLease(time.Second))
		time.Sleep(time.Until(wrote.Until()) + time.Second) // expired in Redis, too
		h := w.take(w.a, reading, ctx)
		if w.mini.HGet("orders", "mode") != "read" {
			w.Error("got a read hold while Redis has a writer")
		}
		if !errors.Is(wrote.Err(), lock.ErrLost) {
			w.Error(wrote.Err())
		}
		next := w.take(w.a, reading, w.Context())
		if next.Owner() != h.Owner() {
			w.Error("no other reader may join it")
		}
		w.unlockAll(next, h)
		wake()
	})
}

// A TryLock is refused because the server loads its data, and then gets no reply. Its error reports both.
func TestTryLock_reportsTheEarlierError(t *testing.T) {
	inBubble(t, func(w *world) {
		w.unlock(w.lock(w.a, w.Context()))
		w.mini.SetError(loading)
		start := time.Now()
		ended := w.beginFail(w.a.TryLock, w.Context(), w.a.NewSpec(alone, "orders", nil))
		w.mini.SetError("")
		w.wire.Freeze(true)
		err := <-ended
		w.wantEnd("TryLock", err, []error{lock.ErrUnavailable, os.ErrDeadlineExceeded}, lock.ErrNotAcquired)
		if !strings.Contains(errText(err), "LOADING") {
			w.Errorf("%v, which does not say what went before", err)
		}
		w.wantTook(start, opTime)
		w.wire.Freeze(false)
		time.Sleep(2 * leaseTime)
	})
}

// A TryLock is refused because the server loads its data. Then its context is canceled, before its next request or
// before the reply to it. Its error reports both.
func TestTryLock_canceledAfterAnError(t *testing.T) {
	forEach(t, map[string]bool{"before the next request": false, "before the reply": true}, func(w *world, sent bool) {
		w.unlock(w.lock(w.a, w.Context()))
		w.mini.SetError(loading)
		ctx := &errOnly{Context: w.Context()}
		ended := w.beginFail(w.a.TryLock, ctx, w.a.NewSpec(plain, "orders", nil))
		synctest.Wait() // it pauses
		w.mini.SetError("")
		n := w.slowScripts(time.Second)
		if sent {
			time.Sleep(time.Second)
		}
		ctx.canceled.Store(true)
		err := <-ended
		w.wantEnd("TryLock", err, []error{context.Canceled, lock.ErrUnavailable}, lock.ErrNotAcquired)
		if !strings.Contains(errText(err), "LOADING") || (n.Load() > 0) != sent {
			w.Errorf("%v, after %d requests", err, n.Load())
		}
	})
}

// The server refuses connections. A TryLock fails at the second refusal, although it has time left.
func TestTryLock_refusedConnections(t *testing.T) {
	inBubble(t, func(w *world) {
		n := 0
		k := onRequest(plain, func(request) (luascripts.Acquired, error) {
			n++
			return luascripts.Acquired{}, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
		})
		w.wantFail(w.a.TryLock, w.Context(), w.a.NewSpec(k, "orders", nil), lock.ErrUnavailable)
		if n != 2 {
			w.Errorf("%d requests, want 2", n)
		}
	})
}

// A renewal without a reply delays the release of an Unlock that did not wait for it. A TryLock waits for the release
// first, and still takes no longer than the operation timeout.
func TestTryLock_waitsForARelease(t *testing.T) {
	inBubble(t, func(w *world) {
		spec := w.asyncSpec(plain)
		h := w.mustLock(w.Context(), spec)
		time.Sleep(leaseTime/3 - time.Millisecond)
		w.wire.Freeze(true)
		time.Sleep(opTime / 3) // the renewal is in flight
		w.unlockImmediately(h)
		start := time.Now()
		w.wantFail(w.a.TryLock, w.Context(), spec, lock.ErrUnavailable)
		w.wantTook(start, opTime)
		w.wire.Freeze(false)
		time.Sleep(2 * leaseTime)
	})
}

// Two waiters give up, and the lock is handed to the first before it is removed from Redis. A TryLock waits for the removal, until
// its context is canceled or the operation timeout has passed. A Lock acquires the lock earlier, when the offer
// expires.
func TestTryLock_afterAWaiterGaveUp(t *testing.T) {
	type test struct {
		tries                 bool
		removed, within, took time.Duration
		match                 error
	}
	tests := map[string]test{
		"removed":   {true, time.Second, time.Hour, time.Second, nil},
		"timed out": {true, 2 * opTime, time.Hour, opTime, lock.ErrNotAcquired},
		"canceled":  {true, 2 * opTime, time.Second, time.Second, lock.ErrNotAcquired},
		"a Lock":    {false, time.Minute, time.Hour, leaseTime, nil},
	}
	for kindName, kind := range map[string]*Kind{"plain": plain, "fair": fair} {
		for name, c := range tests {
			t.Run(kindName+", "+name, func(t *testing.T) {
				inBubble(t, func(w *world) {
					var h lock.Hold
					var sent atomic.Bool
					removes := make(chan struct{})
					k := onRelease(kind, func(r release) (luascripts.Released, error) {
						if r.owner != h.Owner() && !sent.Swap(true) {
							<-removes
						}
						return r.send()
					})
					h = w.take(w.a, k, w.Context())
					leave, second := w.leaving(k), w.leaving(k)
					time.Sleep(leaseTime) // the first has sent a request by then
					leave()
					synctest.Wait()
					second()
					synctest.Wait()
					w.unlock(h)
					time.AfterFunc(c.removed, func() { close(removes) })
					start := time.Now()
					next, err := w.lockOrTry(c.tries)(w.within(c.within), w.a.NewSpec(k, "orders", nil))
					if c.tries {
						w.wantTook(start, c.took)
					}
					w.wantWithin(start, c.took)
					if c.match != nil {
						w.wantErr(err, c.match)
					} else {
						w.unlock(w.must(next, err))
					}
					time.Sleep(c.removed)
				})
			})
		}
	}
}

// A Lock is canceled while its request is in flight, which then acquires the lock. A TryLock that comes meanwhile waits until
// the lock is released. Of the two permits of the semaphore, this process holds the other one.
func TestTryLock_afterACanceledRequest(t *testing.T) {
	forEach(t, map[string]*Kind{"plain": plain, "fair": fair, "write": writing, "semaphore": permits}, func(w *world, k *Kind) {
		spec := w.ofOne(w.a, k)
		if k == permits {
			spec.Keys.Total = 2
		}
		first := w.mustLock(w.Context(), spec) // afterward the server knows the scripts
		if k != permits {
			w.unlock(first)
		}
		w.onNext(redistest.Action{DelayReply: time.Second})
		w.wantErr(<-w.beginFail(w.a.Lock, w.within(time.Millisecond), spec), context.DeadlineExceeded)
		start := time.Now()
		w.unlock(w.must(w.a.TryLock(w.Context(), spec)))
		w.wantWithin(start, time.Second)
		if k == permits {
			w.unlock(first)
			w.mini.Del("orders")
		}
	})
}

// The request of a canceled TryLock is refused. Another TryLock, which is refused too, waits for nothing else.
func TestTryLock_afterACanceledRefusal(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.b, w.Context())
		w.onNext(redistest.Action{DelayReply: time.Second / 2})
		w.wantErr(<-w.beginFail(w.a.TryLock, w.within(time.Millisecond), w.a.NewSpec(plain, "orders", nil)), context.DeadlineExceeded)
		start := time.Now()
		for range 2 {
			w.refused(w.a, plain)
		}
		w.wantWithin(start, time.Second/2)
		w.unlock(h)
	})
}

// The request of a Lock fails, and its context is canceled at the same time. The error reports both.
func TestUnavailable_canceledAtTheError(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := &errOnly{Context: w.Context()}
		k := onRequest(plain, func(request) (luascripts.Acquired, error) {
			ctx.canceled.Store(true)
			return luascripts.Acquired{}, io.EOF
		})
		_, err := w.a.Lock(ctx, w.a.NewSpec(k, "orders", nil))
		w.wantEnd("Lock", err, []error{context.Canceled, lock.ErrUnavailable, io.EOF}, lock.ErrNotAcquired)
	})
}

// The context of a waiter is canceled while a request is in flight, with the error of another call as the cause. The error says
// what the waiter waited for, whatever the other error means.
func TestLock_canceledByAnotherError(t *testing.T) {
	for _, other := range []error{errors.New("shutting down"), lock.ErrClosed, &lock.Error{Err: tooLate{}}} {
		inBubble(t, func(w *world) {
			h := w.lock(w.b, w.Context())
			ctx, cancel := context.WithCancelCause(w.Context())
			ended := w.beginLock(w.a, plain, ctx)
			w.onNext(redistest.Action{DelayReply: opTime / 2})
			time.Sleep(pollTime)
			cancel(other)
			w.wantErr(<-ended, lock.ErrNotAcquired, context.Canceled, other)
			time.Sleep(opTime)
			w.unlock(h)
		})
	}
}

// A reader waits for the reply to another reader's request, and its context is canceled. Redis refused its own request
// just before, so its error does not report Redis as unavailable.
func TestUnavailable_notForAJoinedReader(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
		h := w.take(w.b, writing, w.Context())
		other := w.goRead(w.a, w.Context())
		gate := make(chan struct{})
		var stuck atomic.Bool
		ctx, cancel := context.WithCancel(w.Context())
		late := &errFunc{ctx, func() error {
			if stuck.Load() { // like a goroutine that is not scheduled for a while
				<-gate
			}
			return ctx.Err()
		}}
		ended := w.beginLock(w.a, reading, late, lock.WithReaderPreference())
		time.Sleep(pollTime / 2) // both were refused
		n := w.slowScripts(20 * time.Millisecond)
		stuck.Store(true)
		w.unlock(h) // both are notified
		synctest.Wait()
		close(gate) // the other reader has sent its request
		time.Sleep(10 * time.Millisecond)
		if n.Load() != 1 { // once it leaves, one more script removes its reservation
			w.Errorf("%d requests, want that of the other reader", n.Load())
		}
		cancel()
		w.wantEnd("Lock", <-ended, []error{lock.ErrNotAcquired, context.Canceled}, lock.ErrUnavailable)
		w.unlock(<-other)
	})
}

// Another call of the owner has the turn, the owner has the lock, and no command is in flight. A TryLock that times out
// does not report Redis as unavailable.
func TestTryLock_noRequestInFlight(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		h := w.lock(w.a, ctx)
		turn := h.(*hold).By.Turn
		turn <- struct{}{}
		_, err := w.a.TryLock(ctx, w.a.NewSpec(plain, "orders", nil))
		w.wantEnd("TryLock", err, []error{errAhead}, lock.ErrUnavailable)
		<-turn
		w.unlock(h)
	})
}

// Another call of the owner has the turn, and its reentry is in flight. A wait that ends reports Redis as unavailable if the
// reentry is overdue, or if a TryLock had no time left.
func TestUnavailable_duringAReentry(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context()).(*hold)
		held := h.acquisition()
		a := attempt{s: w.a, spec: held.spec, at: held.at, owner: h.By}
		held.at.lock()
		held.WillChange(time.Now())
		held.at.unlock()
		for _, c := range []struct {
			later       time.Duration
			err         error
			unavailable bool
		}{
			{opTime - 1, context.Canceled, false},
			{0, command.NoReply{After: opTime}, true},
			{1, context.Canceled, true},
		} {
			time.Sleep(c.later)
			if err := a.ended(c.err); errors.Is(err, lock.ErrUnavailable) != c.unavailable || !c.unavailable && err != (command.Canceled{Err: c.err, For: opTime - 1}) {
				w.Errorf("%v, which ended with %v", err, c.err)
			}
		}
		if d := w.a.overdue(w.a.NewSpec(plain, "orders", []lock.Option{lock.WithReplicas(1, time.Second)})); d != opTime+time.Second {
			w.Errorf("with replicas, a request is overdue after %v", d)
		}
		w.unlock(h)
	})
}

// A wait that ends at its own limit reports the limit once.
func TestWithWait_reportsTheLimitOnce(t *testing.T) {
	for err, want := range map[error]string{
		outOfTime{time.Second, lock.ErrNotAcquired}: "not acquired: waited for 1s",
		outOfTime{time.Second, errHeldHere}:         "not acquired: another owner in this process has the lock: waited for 1s",
		outOfTime{time.Second, errUnavailable(t)}:   "waited for 1s: paused: " + lock.ErrUnavailable.Error(),
	} {
		if err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// A server loads its data for a long time, and the retries of a waiter become rare. Then another owner has the lock.
// When the server loads its data again, the waiter retries soon.
func TestWaiter_resetsItsBackoff(t *testing.T) {
	inBubble(t, func(w *world) {
		w.unlock(w.lock(w.a, w.Context())) // loads the script
		other := w.lock(w.b, w.Context())
		w.mini.SetError(loading)
		next := w.waiting(w.a, w.Context())
		time.Sleep(20 * pollTime)
		w.mini.SetError("")
		time.Sleep(3 * pollTime / 2) // it was refused
		w.mini.SetError(loading)
		var requests []time.Time
		w.onScripts(func(int) redistest.Action {
			requests = append(requests, time.Now())
			return redistest.Action{}
		})
		time.Sleep(2 * pollTime)
		w.wire.OnRequest(nil)
		if len(requests) < 2 || requests[1].Sub(requests[0]) > 10*time.Millisecond {
			w.Errorf("got requests at %v", requests)
		}
		w.mini.SetError("")
		w.unlock(other)
		w.unlock(<-next)
	})
}

// A grant comes too late for its lease, and the context of the call is canceled before it retries. The grant is
// released once.
func TestExpiredGrant_isReleasedOnce(t *testing.T) {
	inBubble(t, func(w *world) {
		requests := 0
		k := onRequest(plain, func(r request) (luascripts.Acquired, error) {
			requests++
			a, err := r.send()
			time.Sleep(200 * time.Millisecond)
			return a, err
		})
		k, gaveBack := slowRelease(k, 0, nil)
		var checks atomic.Int64
		ctx := &errFunc{w.Context(), func() error {
			if checks.Add(1) < 4 { // the call checks it at the start, before the request, after the reply, and before the next request
				return nil
			}
			return context.Canceled
		}}
		w.wantFail(w.a.Lock, ctx, w.a.NewSpec(k, "orders", []lock.Option{lock.WithFixedLease(100 * time.Millisecond)}), context.Canceled)
		time.Sleep(opTime / 2) // later the reconciler repeats its command
		synctest.Wait()
		if requests != 1 || gaveBack.Load() != 1 {
			w.Errorf("got %d requests and %d releases", requests, gaveBack.Load())
		}
	})
}

// With WithWait(0), Lock makes one attempt: it acquires a free lock, fails immediately if another owner has it, and
// leaves nothing behind.
func TestWithWait_zero(t *testing.T) {
	forEach(t, allKinds, func(w *world, k *Kind) {
		w.unlock(w.take(w.a, k, w.Context(), lock.WithWait(0)))
		h := w.take(w.b, rival(k), w.Context())
		start := time.Now()
		_, err := w.a.Lock(w.Context(), w.a.NewSpec(k, "orders", []lock.Option{lock.WithWait(0)}))
		w.wantAbout("lock", "orders", err)
		w.wantErr(err, lock.ErrNotAcquired)
		w.wantWithin(start, opTime/2)
		w.unlock(h)
		w.wantEmpty()
	})
}

func TestWaiter_wokenByAMessage(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		next := w.waiting(w.b, w.Context())
		time.Sleep(10*time.Second + pollTime/2) // not at a poll
		released := time.Now()
		w.unlock(h)
		h = <-next
		w.wantTook(released, 0)
		w.unlock(h)
	})
}

// Without any message a waiter retries every poll interval, and when the lease in the last reply expires.
func TestWaiter_polls(t *testing.T) {
	inBubble(t, func(w *world) {
		w.withoutPubSub()
		served := func(free, late time.Duration) {
			w.Helper()
			start := time.Now()
			h := w.lock(w.a, w.Context())
			if took := time.Since(start); took < free || took > free+late {
				w.Errorf("served after %v, it was freed after %v", took, free)
			}
			w.unlock(h)
		}
		w.mini.HSet("orders", "0b7e2f1a-3c4d-4e5f-8a9b-0c1d2e3f4a5b:1", "1")
		w.mini.SetTTL("orders", 300*time.Millisecond)
		served(300*time.Millisecond, 10*time.Millisecond)
		w.mini.HSet("orders", "0b7e2f1a-3c4d-4e5f-8a9b-0c1d2e3f4a5b:1", "1")
		time.AfterFunc(10*time.Second, func() { w.mini.Del("orders") }) // publishes no message
		served(10*time.Second, pollTime)
	})
}

// The release happens between the waiter's request and its subscription.
func TestWaiter_retriesWhenSubscribed(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.b, w.Context())
		subscribe := make(chan struct{})
		w.wire.OnRequest(redistest.Once("SUBSCRIBE", redistest.Action{HoldRequest: subscribe}))
		next := w.waiting(w.a, w.Context()) // it was refused, and its subscription is in flight
		w.unlock(h)                         // no subscriber receives the message
		start := time.Now()
		close(subscribe)
		h = <-next
		w.wantTook(start, 0)
		w.unlock(h)
	})
}

// TryLock neither overtakes a call that waits nor waits, whether they have the same owner or not.
func TestTryLock_doesNotOvertake(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.b, w.Context())
		owner := lock.ContextWithNewOwner(w.Context())
		next := w.waiting(w.a, owner)
		start := time.Now()
		for _, ctx := range []context.Context{owner, w.Context()} {
			w.wantFail(w.a.TryLock, ctx, w.a.NewSpec(plain, "orders", nil), errAhead)
		}
		w.wantTook(start, 0)
		w.unlock(h)
		w.unlock(w.next(next))
	})
}

// A TryLock waits for the turn of its owner, whose lock is lost in the meantime. Another call of the owner is then
// ahead and waits for another owner. Redis is available all the time.
func TestTryLock_behindAWaitOfItsOwner(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		lost, spec := w.lock(w.a, ctx), w.a.NewSpec(plain, "orders", nil)
		w.onNext(redistest.Action{DelayRequest: opTime / 2})
		reentry := w.beginFail(w.a.Lock, ctx, spec) // has the turn
		next := w.waiting(w.a, ctx)                 // has the next turn
		start := time.Now()
		var took time.Duration
		tried := w.beginFail(func(ctx context.Context, spec *Spec) (lock.Hold, error) {
			defer func() { took = time.Since(start) }()
			return w.a.TryLock(ctx, spec)
		}, ctx, spec)
		w.mini.Del("orders")
		other := w.lock(w.b, w.Context())
		time.Sleep(2 * opTime)
		w.unlock(other)
		w.wantErr(<-reentry, lock.ErrLost)
		if w.wantErr(<-tried, lock.ErrNotAcquired); took != opTime {
			w.Errorf("it took %v", took)
		}
		w.unlock(<-next)
		w.wantErr(lost.Unlock(w.Context()), lock.ErrLost)
	})
}

// A grant whose reply takes longer than its lease does not become a hold. Lock makes three attempts.
func TestExpiredGrant(t *testing.T) {
	inBubble(t, func(w *world) {
		const slow = 200 * time.Millisecond
		grants := 0
		k := onRequest(plain, func(r request) (luascripts.Acquired, error) {
			r.rdb = w.rdb
			reply, err := r.send()
			if reply.Verdict == luascripts.Done {
				grants++
				time.Sleep(slow)
			}
			return reply, err
		})
		spec := w.a.NewSpec(k, "orders", []lock.Option{lock.WithFixedLease(slow / 2)})
		for want, call := range map[int]lockCall{3: w.a.Lock, 1: w.a.TryLock} {
			grants = 0
			h, err := call(w.Context(), spec)
			w.wantErr(err, lock.ErrUnavailable)
			if h != nil || !errors.As(err, new(tooLate)) || grants != want {
				w.Errorf("%v, %v after %d grants, want %d", h, err, grants, want)
			}
			time.Sleep(opTime) // what was granted is released
		}
	})
}

func TestWithWait(t *testing.T) {
	inBubble(t, func(w *world) {
		other := w.lock(w.b, w.Context())
		spec := w.a.NewSpec(plain, "orders", []lock.Option{lock.WithWait(5 * time.Second)})
		start := time.Now()
		w.wantFail(w.a.Lock, w.Context(), spec, lock.ErrNotAcquired, os.ErrDeadlineExceeded)
		w.wantTook(start, 5*time.Second)
		w.wantFail(w.a.Lock, w.within(time.Second), spec, context.DeadlineExceeded) // the context ends first
		time.AfterFunc(4*time.Second, func() { w.unlock(other) })
		h := w.mustLock(w.Context(), spec)
		time.Sleep(time.Minute)
		if err := h.Context().Err(); err != nil {
			w.Errorf("the limit of the wait ended the hold: %v", err)
		}
		w.unlock(h)
	})
}

// The wait limit covers the entire wait: for the owner's turn, for a reentry, and for the lock.
func TestWithWait_coversTheWholeCall(t *testing.T) {
	inBubble(t, func(w *world) {
		spec := w.a.NewSpec(plain, "orders", []lock.Option{lock.WithWait(5 * time.Second)})
		check := func(what string, ctx context.Context, want error) {
			w.Helper()
			start := time.Now()
			_, err := w.a.Lock(ctx, spec)
			if took := time.Since(start); took != 5*time.Second || !errors.Is(err, want) || !errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
				w.Errorf("%s: %v after %v", what, err, took)
			}
		}
		other := w.lock(w.b, w.Context())
		ctx := lock.ContextWithNewOwner(w.Context())
		short, cancel := context.WithTimeout(ctx, 4*time.Second)
		defer cancel()
		go func() { _, _ = w.a.Lock(short, w.a.NewSpec(plain, "orders", nil)) }() // has the turn for four seconds
		synctest.Wait()
		check("behind another goroutine of the owner", ctx, lock.ErrNotAcquired)
		w.unlock(other)

		h := w.lock(w.a, ctx)
		w.onNext(redistest.Action{DelayRequest: 8 * time.Second})
		check("a reentry without a reply", ctx, lock.ErrUnavailable)
		w.wire.OnRequest(nil)
		time.Sleep(10 * time.Second)
		w.unlock(h)
	})
}

// TryLock and Unlock take no longer than the operation timeout, whatever they wait for first.
func TestOpTimeout_coversTheWholeCall(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		h := w.lock(w.a, ctx)
		w.onNext(redistest.Action{DelayRequest: opTime - time.Millisecond})
		go func() {
			if h, err := w.a.Lock(ctx, w.a.NewSpec(plain, "orders", nil)); err == nil { // has the turn for almost that time
				_ = h.Unlock(w.Context()) // the reply is late
			}
		}()
		synctest.Wait()
		w.wire.OnRequest(func(req [][]byte) redistest.Action { return redistest.Action{DelayRequest: 2 * opTime} })
		start := time.Now()
		if _, err := w.a.TryLock(ctx, w.a.NewSpec(plain, "orders", nil)); err == nil || time.Since(start) > opTime+time.Millisecond {
			w.Errorf("TryLock: %v after %v", err, time.Since(start))
		}
		w.wire.OnRequest(nil)
		time.Sleep(4 * opTime)
		w.unlock(h)

		h = w.lock(w.a, w.Context())
		time.Sleep(leaseTime/3 - time.Millisecond)
		w.wire.Freeze(true)
		time.Sleep(2 * time.Millisecond) // a renewal is in flight
		start = time.Now()
		if err := h.Unlock(w.Context()); err == nil || time.Since(start) > opTime+20*time.Millisecond {
			w.Errorf("Unlock: %v after %v", err, time.Since(start))
		}
		w.wire.Freeze(false)
		time.Sleep(4 * opTime)
	})
}

// A refused TryLock does not subscribe, because it does not wait.
func TestTryLock_doesNotSubscribe(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.b, w.Context())
		w.wantFail(w.a.TryLock, w.Context(), w.a.NewSpec(plain, "orders", nil), lock.ErrNotAcquired)
		w.wantChannels(0)
		w.unlock(h)
	})
}

// A waiter behind a TryLock sends its request when the TryLock is refused, because it must enter the queue.
func TestTryLock_letsTheNextWaiterSend(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.b, w.Context())
		w.wantFail(w.a.Lock, w.within(10*time.Millisecond), w.a.NewSpec(plain, "orders", nil), lock.ErrNotAcquired) // keeps its subscriptions for a while
		goes := make(chan struct{})
		var queues atomic.Int64
		k := onRequest(plain, func(r request) (luascripts.Acquired, error) {
			if r.n == 1 {
				<-goes
			}
			if r.Offer > 0 {
				queues.Add(1)
			}
			return r.send()
		})
		tried := w.beginFail(w.a.TryLock, w.Context(), w.a.NewSpec(k, "orders", nil))
		next := w.goLock(w.a, k, w.Context())
		close(goes)
		w.wantErr(<-tried, lock.ErrNotAcquired)
		synctest.Wait()
		if queues.Load() == 0 {
			w.Error("the waiter is not queued")
		}
		w.unlock(h)
		w.unlock(<-next)
	})
}

// Ahead returns the error of a TryLock without sending a command while other calls of the process wait for the lock.
func TestAhead(t *testing.T) {
	inBubble(t, func(w *world) {
		spec := w.a.NewSpec(plain, "orders", nil)
		w.wantNoErr(w.a.Ahead(spec))
		h := w.lock(w.b, w.Context())
		next := w.waiting(w.a, w.Context())
		time.Sleep(pollTime / 2)
		n := w.scripts()
		if err := w.a.Ahead(spec); err != errAhead || n.Load() != 0 {
			w.Errorf("%v, after %d commands", err, n.Load())
		}
		if err := w.b.Ahead(w.b.NewSpec(plain, "orders", nil)); err != nil {
			w.Errorf("a waiter of another process is ahead: %v", err)
		}
		if err := w.a.Ahead(w.a.NewSpec(plain, "", nil)); err != nil {
			w.Errorf("a lock without a name: %v", err)
		}
		w.unlock(h)
		w.unlock(w.next(next))
		w.close(w.a)
		if err := w.a.Ahead(spec); err != nil {
			w.Errorf("after Close: %v", err)
		}
	})
}

// A TryLock whose time is up passes on a limit, because 0 would mean none.
func TestTiming_over(t *testing.T) {
	began := time.Now()
	for elapsed, want := range map[time.Duration]time.Duration{0: opTime, opTime - time.Second: time.Second, opTime: time.Millisecond, 2 * opTime: time.Millisecond} {
		a := timing{limit: opTime, began: began, now: began.Add(elapsed)}
		if got := a.timeLeft(); got != want {
			t.Errorf("after %v: %v left, want %v", elapsed, got, want)
		}
		if over := a.endsWithin(time.Second); over != (elapsed >= opTime-time.Second) {
			t.Errorf("after %v: ends within a second: %t", elapsed, over)
		}
	}
}

// While Redis cannot serve, the pauses between the requests of a Lock grow to a poll interval, and no longer.
func TestLock_pauses(t *testing.T) {
	inBubble(t, func(w *world) {
		w.unlock(w.lock(w.a, w.Context()))
		w.mini.SetError(loading)
		next := w.waiting(w.a, w.Context())
		time.Sleep(time.Minute)
		n := w.scripts()
		time.Sleep(time.Hour)
		w.mini.SetError("")
		// with jitter, a pause is three quarters of a poll interval on average
		if most, least := int64(time.Hour/pollTime*3/2), int64(time.Hour/pollTime*5/4); n.Load() > most || n.Load() < least {
			w.Errorf("%d requests in an hour, want %d to %d", n.Load(), least, most)
		}
		time.Sleep(pollTime)
		w.unlock(w.next(next))
	})
}

// Only an error that says nothing but that the wait has ended counts as that. Others say why there was no reply.
func TestLeft(t *testing.T) {
	ended, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	over := ended.Err()
	for name, c := range map[string]struct {
		waiting context.Context
		err     error
		want    bool
	}{
		"the context's":                     {ended, over, true},
		"no reply until then":               {ended, command.Canceled{Err: over, For: time.Second}, true},
		"a dial that timed out":             {ended, &net.OpError{Op: "dial", Err: over}, false},
		"a copy after one that failed":      {ended, fmt.Errorf("%w: %w", over, io.EOF), false},
		"another":                           {ended, io.EOF, false},
		"no reply, and the wait has no end": {t.Context(), command.Canceled{Err: over}, false},
	} {
		if got := (&attempt{waiting: c.waiting}).endedBeforeReply(c.err); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// The owner of the write side waits for the reply to its read request, in two calls. The error of the second is not that
// another owner has the lock.
func TestLock_waitsForTheReadRequestOfTheWriter(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.a, writing, w.Context())
		w.onNext(redistest.Action{DelayReply: opTime / 2})
		reads := make(chan lock.Hold)
		go func() { reads <- w.take(w.a, reading, h.Context()) }()
		synctest.Wait()
		ctx, cancel := context.WithCancel(h.Context())
		err := w.beginLock(w.a, reading, ctx)
		synctest.Wait()
		cancel()
		w.wantEnd("the second Lock", <-err, []error{context.Canceled}, lock.ErrNotAcquired)
		w.unlock(<-reads)
		w.unlock(h)
	})
}

// A wait for an owner in the same process says so, because a second Lock without the context of the first one waits for itself. The
// other permits of a semaphore may be in other processes.
func TestLock_saysThatThisProcessHasTheLock(t *testing.T) {
	const deadline, here = "not acquired: context deadline exceeded", "not acquired: another owner in this process has the lock: context deadline exceeded"
	type wait struct {
		held, wanted *Kind
		elsewhere    bool
		want         string
	}
	forEach(t, map[string]wait{
		"plain":                {plain, plain, false, here},
		"fair":                 {fair, fair, false, here},
		"write":                {writing, writing, false, here},
		"read under a writer":  {writing, reading, false, here},
		"write under a reader": {reading, writing, false, here},
		"semaphore":            {permits, permits, false, deadline},
		"another process":      {plain, plain, true, deadline},
	}, func(w *world, c wait) {
		holder := w.a
		if c.elsewhere {
			holder = w.b
		}
		h := w.must(holder.Lock(w.Context(), w.ofOne(holder, c.held)))
		_, err := w.a.Lock(w.within(5*time.Second), w.ofOne(w.a, c.wanted))
		var e *lock.Error
		if !errors.As(err, &e) || e.Err.Error() != c.want {
			w.Errorf("%v, want %s", err, c.want)
		}
		w.unlock(h)
		w.mini.FlushAll() // deletes the number of permits
	})
}

package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
)

// ended fails the test unless h was lost by cause.
func (w *world) ended(h lock.Hold, cause error) {
	w.Helper()
	defer synctest.Wait() // the observer has been notified by then
	if err := h.Unlock(w.Context()); !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrLost) || !errors.Is(err, cause) {
		w.Errorf("Unlock: %v, want ErrNotHeld, ErrLost and %v", err, cause)
	}
	if left := time.Until(h.Until()); left > 0 {
		w.Errorf("Until is %v ahead", left)
	}
}

var limited = map[string]*Kind{"plain": plain, "fair": fair, "read": reading, "write": writing}

// A hold ends at its limit although it is renewed. A waiter acquires the lock at that time.
func TestMaxHold(t *testing.T) {
	for _, fixed := range [][]lock.Option{nil, {lock.WithFixedLease(5 * time.Minute)}} {
		forEach(t, limited, func(w *world, kind *Kind) {
			const most = 3*leaseTime + leaseTime/2
			start := time.Now()
			h := w.take(w.a, kind, context.Background(), append(fixed, lock.WithMaxHold(most))...)
			served := make(chan time.Time)
			go func() {
				h := w.take(w.b, rival(kind), w.Context())
				served <- time.Now()
				w.unlock(h)
			}()
			if fixed != nil && h.Until().Sub(start) != most {
				w.Errorf("Until is %v after the grant, want %v", h.Until().Sub(start), most)
			}
			time.Sleep(most - time.Nanosecond)
			w.wantHeld(h)
			<-h.Context().Done()
			w.wantTook(start, most)
			w.wantErr(h.Err(), lock.ErrLost, lock.ErrMaxHold)
			if late := (<-served).Sub(start.Add(most)); late != 0 {
				w.Errorf("the next was served %v after that", late)
			}
			w.ended(h, lock.ErrMaxHold)
			w.wantErr(w.wantEnds("lost")[0].Err, lock.ErrMaxHold)
		})
	}
}

// No other goroutine has run when the hold is checked.
func TestMaxHold_atTheFirstCheck(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.untilTheClock(lock.WithMaxHold(time.Second))
		w.wantErr(h.Err(), lock.ErrMaxHold)
		w.ended(h, lock.ErrMaxHold)
		time.Sleep(time.Second)
		w.wantEmpty()
	})
}

// The machine slept after the limit was set. Until and later limits go by the wall clock, and so does the next call of
// Due.
func TestMaxHold_afterASleep(t *testing.T) {
	w := &world{T: t}
	s := New(redistest.NewMini(t).Client(t), testConfig())
	defer s.Close(context.Background())
	ctx := lock.ContextWithNewOwner(t.Context())
	lease := lock.WithFixedLease(2 * time.Hour)
	outer, inner := w.take(s, plain, ctx, lease, lock.WithMaxHold(time.Hour)).(*hold), w.take(s, plain, ctx, lease, lock.WithMaxHold(30*time.Minute))
	a, limits := outer.acquisition(), &outer.limits.Load().earliest
	end := limits.Load().end
	limits.Store(&limit{redistest.BeforeSleep(end, 50*time.Minute), lock.ErrMaxHold})
	a.at.lock()
	outer.limitLocked(time.Now().Add(20*time.Minute), lock.ErrAbandoned)
	a.at.unlock()
	if left := time.Until(outer.Until()); left > 10*time.Minute {
		t.Errorf("%v left, of which the machine slept for 50 minutes", left)
	}
	limits.Store(&limit{redistest.BeforeSleep(end, time.Until(end)-time.Second), lock.ErrMaxHold})
	a.Due()
	select {
	case <-outer.Context().Done():
	case <-time.After(30 * time.Second):
		t.Error("the limit has no effect")
	}
	if err := inner.Err(); err != nil {
		t.Errorf("the inner hold: %v", err)
	}
}

// Readers of a process share their hold in Redis, but each ends at its own limit, without a command.
func TestMaxHold_ofReadersThatShare(t *testing.T) {
	inBubble(t, func(w *world) {
		a := w.take(w.a, reading, w.Context(), lock.WithMaxHold(5*time.Second))
		b := w.take(w.a, reading, w.Context())
		if a.Owner() != b.Owner() {
			w.Fatal("they do not share")
		}
		sent := w.scripts()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		w.ended(a, lock.ErrMaxHold)
		if sent.Load() != 0 {
			w.Errorf("got %d commands", sent.Load())
		}
		time.Sleep(time.Hour)
		w.wantHeld(b)
		w.wantEnds("lost")
		w.unlock(b)
	})
}

// A hold also ends at its limit if it was handed off by another holder of the process, or is a read hold of a downgrade.
func TestMaxHold_howeverItWasAcquired(t *testing.T) {
	forEach(t, map[string]func(w *world) lock.Hold{
		"handed off": func(w *world) lock.Hold {
			first := w.lock(w.a, w.Context())
			next := w.waiting(w.a, w.Context(), lock.WithMaxHold(time.Minute))
			w.unlock(first)
			return <-next
		},
		"downgraded": func(w *world) lock.Hold {
			return w.downgrade(w.a, w.Context(), w.take(w.a, writing, w.Context()), lock.WithMaxHold(time.Minute))
		},
	}, func(w *world, acquire func(w *world) lock.Hold) {
		h := acquire(w)
		time.Sleep(time.Minute)
		w.ended(h, lock.ErrMaxHold)
	})
}

// The context of a hold is canceled without an Unlock. The next renewal detects that, and reports that the hold is draining. A
// lease later the hold is abandoned and lost, and a waiter acquires the lock.
func TestAbandonedHold(t *testing.T) {
	for want, grace := range map[time.Duration][]lock.Option{
		leaseTime:      nil,
		time.Second:    {lock.WithGrace(time.Second)},
		10 * leaseTime: {lock.WithGrace(10 * leaseTime)},
	} {
		forEach(t, limited, func(w *world, kind *Kind) {
			ctx, cancel := context.WithCancelCause(w.Context())
			h := w.take(w.a, kind, ctx, grace...)
			time.Sleep(10*time.Minute + time.Second)
			gone, done := errors.New("gone"), time.Now()
			cancel(gone)
			next := w.take(w.b, rival(kind), w.Context())
			if took := time.Since(done); took > leaseTime/3+want || took < want {
				w.Errorf("another had it %v after the end of the context, want %v and up to a third of a lease", took, want)
			}
			w.unlock(next)
			w.ended(h, lock.ErrAbandoned)
			w.wantErr(h.Err(), lock.ErrLost, lock.ErrAbandoned)
			if cause := context.Cause(h.Context()); cause != gone {
				w.Errorf("its context ended by %v, want the first cause", cause)
			}
			ends := w.wantEnds("abandoned", "draining", "lost")
			for _, e := range ends[:2] {
				if !errors.Is(e.Err, gone) || e.Name != "orders" {
					w.Errorf("got %+v", e)
				}
			}
			if e := ends[2]; !errors.Is(e.Err, lock.ErrAbandoned) || e.Draining != want {
				w.Errorf("notified of a loss: %+v", e)
			}
		})
	}
}

// A holder that unlocks in time has lost nothing, and nothing is reported.
func TestAbandonedHold_unlockedInTime(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx, cancel := context.WithCancel(w.Context())
		h := w.lock(w.a, ctx)
		time.Sleep(time.Second)
		cancel()
		time.Sleep(leaseTime)
		w.unlock(h)
		w.wantEmpty()
		time.Sleep(2 * leaseTime)
		w.wantEnds("draining", "released")
	})
}

// An owner holds the lock twice. The session renews the lock until both contexts are canceled.
func TestAbandonedHold_ofOneHoldOfSeveral(t *testing.T) {
	for _, kind := range []*Kind{plain, reading} {
		inBubble(t, func(w *world) {
			owner := lock.ContextWithNewOwner(w.Context())
			ctx, cancel := context.WithCancel(owner)
			h, other := w.take(w.a, kind, ctx), w.take(w.a, kind, owner)
			cancel()
			time.Sleep(time.Hour)
			w.ended(h, lock.ErrAbandoned)
			w.wantHeld(other)
			w.wantEnds("abandoned", "draining", "lost")
			w.unlock(other)
		})
	}
}

// A fixed lease is not renewed, so its hold is never abandoned.
func TestAbandonedHold_fixedLease(t *testing.T) {
	inBubble(t, func(w *world) {
		owner := lock.ContextWithNewOwner(w.Context())
		under, cancel := context.WithCancel(owner)
		renewed, h := w.lock(w.a, owner), w.lock(w.a, under, lock.WithFixedLease(time.Hour)) // one of them is renewed
		cancel()
		time.Sleep(30 * time.Minute)
		w.wantEnds()
		w.unlockAll(h, renewed)
	})
}

// A waiter of the same process acquires the lock at the limit, and not a poll interval later.
func TestMaxHold_waiterOfTheSameProcess(t *testing.T) {
	inBubble(t, func(w *world) {
		const most = pollTime / 3 // before the waiter polls
		start := time.Now()
		h := w.lock(w.a, w.Context(), lock.WithMaxHold(most))
		next := w.lock(w.a, w.Context())
		if late := time.Since(start) - most; late != 0 {
			w.Errorf("served %v after the limit", late)
		}
		w.ended(h, lock.ErrMaxHold)
		w.unlock(next)
		if n := w.a.dog.Len(); n != 0 {
			w.Errorf("%d leases are watched yet", n)
		}
	})
}

// The context of a hold with a limit is canceled. The hold is lost a lease later, or at its limit if that comes first.
func TestMaxHold_ofAnAbandonedHold(t *testing.T) {
	inBubble(t, func(w *world) {
		for most, cause := range map[time.Duration]error{leaseTime/3 + 5*time.Second: lock.ErrMaxHold, time.Hour: lock.ErrAbandoned} {
			ctx, cancel := context.WithCancel(w.Context())
			h := w.lock(w.a, ctx, lock.WithMaxHold(most))
			cancel()
			time.Sleep(min(most, leaseTime/3+leaseTime) + time.Millisecond)
			w.wantEmpty()
			w.ended(h, cause)
		}
	})
}

// Three holds of an owner each end at their own limit, in whatever order they were acquired. The lock stays until the last ends.
func TestMaxHold_inAnyOrder(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		start := time.Now()
		outer := w.lock(w.a, ctx, lock.WithMaxHold(10*time.Second))
		middle := w.lock(w.a, ctx, lock.WithMaxHold(20*time.Minute))
		inner := w.lock(w.a, ctx, lock.WithMaxHold(10*time.Minute))
		for i, h := range []lock.Hold{outer, inner, middle} {
			most := []time.Duration{10 * time.Second, 10 * time.Minute, 20 * time.Minute}[i]
			time.Sleep(time.Until(start.Add(most - time.Second)))
			if err := h.Err(); err != nil || w.count(h) != 3-i {
				w.Errorf("a second before %v: %v, count %d", most, err, w.count(h))
			}
			time.Sleep(time.Second)
			w.wantEnds("lost")
			w.ended(h, lock.ErrMaxHold)
		}
	})
}

// The owner loses all its holds when one of them reaches its limit. The loss is reported once.
func TestMaxHold_lossAtTheSameTime(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context(), lock.WithMaxHold(time.Hour))
		w.loseLock(h.(*hold).acquisition())
		w.a.sender.Add()
		w.a.expire(h.(*hold))
		w.a.sender.Done()
		w.wantEnds("lost")
		w.ended(h, lock.ErrGone)
	})
}

// The session logs an abandoned hold, and a hold that reached its limit. It does not log one of several holds of an
// owner.
func TestReport_limits(t *testing.T) {
	withDefaultLogger(t, func(w *world, log *logLines) {
		w.observer()
		ctx, cancel := context.WithCancel(w.Context())
		h := w.lock(w.a, ctx)
		cancel()
		time.Sleep(leaseTime)
		log.want(w, 0, "lock abandoned")
		time.Sleep(leaseTime / 2)
		if lines := log.lines("cause="); len(lines) != 2 || !strings.Contains(lines[0], "lock abandoned") || !strings.Contains(lines[1], "lock lost") {
			w.Errorf("abandoned and lost: %q", lines)
		}
		w.ended(h, lock.ErrAbandoned)
		owner := lock.ContextWithNewOwner(w.Context())
		outer, inner := w.lock(w.a, owner), w.lock(w.a, owner, lock.WithMaxHold(reportEvery)) // the first loss was logged just before
		time.Sleep(2 * reportEvery)
		log.want(w, 0, "lock lost")
		w.ended(inner, lock.ErrMaxHold)
		w.unlock(outer)
	})
}

// The state of a lock is removed after its only hold reached its limit.
func TestMaxHold_removesTheEntry(t *testing.T) {
	inBubble(t, func(w *world) {
		w.a.table.most = 0
		h := w.lock(w.a, w.Context(), lock.WithMaxHold(time.Second))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		w.wantEntries(0)
		w.ended(h, lock.ErrMaxHold)
	})
}

// A client without an observer limits holds, too.
func TestLimits_noObserver(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx, cancel := context.WithCancel(w.Context())
		err := lock.Do(ctx, w.locker(w.b, plain), func(ctx context.Context) error {
			h := w.lock(w.b, ctx)
			cancel()
			time.Sleep(2 * leaseTime)
			w.ended(h, lock.ErrAbandoned)
			return nil
		})
		if err != nil {
			w.Error(err)
		}
	})
}

// The caller's context is canceled, or the limit passes, while an Unlock of the hold is in progress. The hold is only released.
func TestLimits_unlockIsFaster(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx, cancel := context.WithCancel(w.Context())
		h := w.lock(w.a, ctx, lock.WithMaxHold(time.Hour)).(*hold)
		h.end(lock.ErrUnlocked) // the first step of Unlock
		w.a.sender.Add()
		w.a.expire(h)
		w.a.sender.Done()
		w.slowScripts(time.Second)
		done := make(chan error)
		go func() { done <- w.a.unlockEnded(w.Context(), h, time.Now(), true) }()
		synctest.Wait()
		cancel()
		w.a.callerCanceled(h) // a renewal began before the Unlock
		w.wantNoErr(<-done)
		if e := w.wantEvents("granted", "released")[1]; e.Draining != 0 {
			w.Errorf("released: %+v", e)
		}
	})
}

// A lock is handed off inside the process when its holder reaches its limit. The next holder has it, and no command is sent.
func TestMaxHold_handsOff(t *testing.T) {
	inBubble(t, func(w *world) {
		k := lingerKinds["plain"]
		w.keepLock(k, lingers)
		first := w.take(w.a, k, w.Context(), lock.WithLinger(time.Hour), lock.WithMaxHold(lingerTime))
		next := w.waitingFor(w.a, w.Context(), w.a.NewSpec(k, "orders", []lock.Option{lingers}))
		sent := w.scripts()
		time.Sleep(lingerTime)
		h := w.next(next)
		w.ended(first, lock.ErrMaxHold)
		if n := sent.Load(); n != 0 || h.Owner() != first.Owner() {
			w.Errorf("%d scripts were sent; owner %s after %s", n, h.Owner(), first.Owner())
		}
		time.Sleep(2 * leaseTime)
		w.wantHeld(h)
		w.unlock(h)
	})
}

// A limit passes while Close is about to release the lock. Close releases it.
func TestMaxHold_duringClose(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context(), lock.WithMaxHold(time.Second))
		at := h.(*hold).acquisition().at
		locked(at, func() bool { at.state.Close(); return true })
		time.Sleep(2 * time.Second)
		w.wantEnds()
		if !w.mini.Exists("orders") {
			w.Error("the lock is released")
		}
	})
}

// A check finds that a limit has passed, and Close comes before the watchdog. The observer and the log report the loss that
// the check found.
func TestMaxHold_checkedBeforeClose(t *testing.T) {
	withDefaultLogger(t, func(w *world, log *logLines) {
		h := w.lock(w.a, w.Context(), lock.WithMaxHold(time.Hour)).(*hold)
		h.end(h.acquisition().lostBy(lock.ErrMaxHold)) // as check does at the limit
		w.close(w.a)
		e := w.wantEnds("lost")[0]
		w.wantErr(h.Err(), lock.ErrMaxHold)
		if e.Err != h.Err() {
			w.Errorf("the hold: %v; got the loss %v", h.Err(), e.Err)
		}
		log.want(w, 1, "lock lost", `cause="`+lock.ErrMaxHold.Error()+`"`)
	})
}

// locker is a lock.Locker in session s, for lock.Do.
type locker struct {
	s    *Session
	spec *Spec
}

func (w *world) locker(s *Session, kind *Kind, opts ...lock.Option) locker {
	return locker{s, s.NewSpec(kind, "orders", opts)}
}

func (l locker) Name() string                                   { return l.spec.Name }
func (l locker) Lock(ctx context.Context) (lock.Hold, error)    { return l.s.Lock(ctx, l.spec) }
func (l locker) TryLock(ctx context.Context) (lock.Hold, error) { return l.s.TryLock(ctx, l.spec) }

// The context of a function that runs under a lock is canceled, and the function continues for an hour. The lock is
// held until it returns. The session reports once that it is still running.
func TestDo_heldUntilTheFunctionReturns(t *testing.T) {
	for name, kind := range limited {
		for want, grace := range map[time.Duration][]lock.Option{leaseTime: nil, time.Second: {lock.WithGrace(time.Second)}} {
			t.Run(fmt.Sprint(name, want), func(t *testing.T) {
				withDefaultLogger(t, func(w *world, log *logLines) {
					others := w.locker(w.b, rival(kind))
					ctx, cancel := context.WithCancelCause(w.Context())
					stop := errors.New("SIGTERM")
					err := lock.Do(ctx, w.locker(w.a, kind, grace...), func(ctx context.Context) error {
						time.Sleep(time.Second)
						cancel(stop)
						<-ctx.Done()
						if cause := context.Cause(ctx); cause != stop {
							w.Errorf("its context ended by %v", cause)
						}
						time.Sleep(leaseTime / 3) // a renewal happens in between
						early := 0
						if grace == nil {
							w.wantErr(w.wantEnds("draining")[0].Err, stop)
							early = 1
						}
						time.Sleep(want)
						for _, e := range w.wantEnds([]string{"draining", "still running"}[early:]...) {
							w.wantErr(e.Err, stop)
						}
						log.want(w, 1, "still running")
						time.Sleep(10 * time.Minute)
						w.wantFail(w.b.TryLock, w.Context(), others.spec, lock.ErrNotAcquired)
						if err := lock.HoldFromContext(ctx).Err(); err != nil {
							w.Errorf("the hold: %v", err)
						}
						return context.Cause(ctx)
					})
					if !errors.Is(err, stop) || errors.Is(err, lock.ErrNotHeld) {
						w.Errorf("Do: %v", err)
					}
					w.wantEnds("released")
					h, err := others.TryLock(w.Context())
					if err != nil {
						w.Fatalf("after it returned: %v", err)
					}
					w.unlock(h)
				})
			})
		}
	}
}

// Do applies UntilUnlock itself. With a locker that UntilUnlock has already wrapped, it still reports that the work drains and
// that it is still running.
func TestDo_underUntilUnlock(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx, cancel := context.WithCancel(w.Context())
		err := lock.Do(ctx, lock.UntilUnlock(w.locker(w.a, plain)), func(context.Context) error {
			cancel()
			time.Sleep(2 * leaseTime)
			return nil
		})
		if err != nil {
			w.Error(err)
		}
		w.wantEnds("draining", "released", "still running")
	})
}

// A function continues after the cancellation, and locks that it acquired reach their limits before and after it is reported
// as still running. It is reported once, and not before its grace has passed.
func TestDo_reportedOnce(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx, cancel := context.WithCancel(w.Context())
		_ = lock.Do(ctx, w.locker(w.a, plain, lock.WithGrace(leaseTime)), func(ctx context.Context) error {
			late := lock.WithGrace(time.Hour)
			before, after := w.lock(w.a, ctx, lock.WithMaxHold(leaseTime), late), w.lock(w.a, ctx, lock.WithMaxHold(3*leaseTime), late)
			cancel()
			time.Sleep(leaseTime/3 + leaseTime - time.Millisecond) // the next renewal detects the cancellation
			w.ended(before, lock.ErrMaxHold)
			w.wantEnds("draining", "draining", "draining", "lost")
			for _, event := range []string{"still running", "lost"} {
				time.Sleep(leaseTime)
				w.wantEnds(event)
			}
			w.ended(after, lock.ErrMaxHold)
			return nil
		})
	})
}

// A function that stops soon after the cancellation is not reported.
func TestDo_stopsSoon(t *testing.T) {
	inBubble(t, func(w *world) {
		for range 20 {
			ctx, cancel := context.WithCancel(w.Context())
			err := lock.Do(ctx, w.locker(w.a, plain), func(ctx context.Context) error {
				time.Sleep(leaseTime/3 - 100*time.Millisecond)
				cancel()
				time.Sleep(300 * time.Millisecond) // a renewal happens in between
				return ctx.Err()
			})
			w.wantErr(err, context.Canceled)
		}
		w.wantEnds(append(slices.Repeat([]string{"draining"}, 20), slices.Repeat([]string{"released"}, 20)...)...)
	})
}

// A function that drains detects a loss through its hold: the lock is gone, the maximum hold time has passed, or the
// client is closed. Its context keeps the first cause.
func TestDo_lostWhileDraining(t *testing.T) {
	type test struct {
		opts []lock.Option
		lose func(w *world)
		want []error
	}
	forEach(t, map[string]test{
		"gone":     {nil, func(w *world) { w.mini.Del("orders") }, []error{lock.ErrLost, lock.ErrGone}},
		"max hold": {[]lock.Option{lock.WithMaxHold(20 * time.Minute)}, func(*world) { time.Sleep(10 * time.Minute) }, []error{lock.ErrLost, lock.ErrMaxHold}},
		"closed": {nil, func(w *world) {
			start := time.Now()
			if err := w.a.Close(w.Context()); err != nil || time.Since(start) > time.Second {
				w.Errorf("Close: %v after %v", err, time.Since(start))
			}
		}, []error{lock.ErrClosed}},
	}, func(w *world, c test) {
		start := time.Now()
		ctx, cancel := context.WithCancel(w.Context())
		err := lock.Do(ctx, w.locker(w.a, plain, c.opts...), func(ctx context.Context) error {
			cancel()
			time.Sleep(10 * time.Minute)
			h := lock.HoldFromContext(ctx)
			w.wantHeld(h)
			c.lose(w)
			<-h.Context().Done()
			w.wantErr(h.Err(), c.want...)
			if cause := context.Cause(ctx); cause != context.Canceled {
				w.Errorf("the context ended by %v", cause)
			}
			return h.Err()
		})
		w.wantErr(err, c.want...)
		if c.opts != nil && time.Since(start) != 20*time.Minute {
			w.Errorf("after %v", time.Since(start))
		}
	})
}

// A lock that a function acquires itself is limited by cancellation, even under the hold of the function.
func TestDo_locksUnderIt(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx, cancel := context.WithCancel(w.Context())
		var last lock.Hold
		_ = lock.Do(ctx, w.locker(w.a, plain), func(ctx context.Context) error {
			h := w.mustLock(ctx, w.a.NewSpec(plain, "own", nil))
			again := w.lock(w.a, ctx) // re-enters
			last = w.mustLock(lock.HoldFromContext(ctx).Context(), w.a.NewSpec(plain, "last", nil))
			cancel()
			time.Sleep(2 * leaseTime)
			w.wantHeld(last)
			w.ended(h, lock.ErrAbandoned)
			w.ended(again, lock.ErrAbandoned)
			w.wantNoErr(lock.HoldFromContext(ctx).Err())
			return nil
		})
		time.Sleep(2 * leaseTime)
		w.ended(last, lock.ErrAbandoned)
		w.wantEnds("abandoned", "abandoned", "abandoned", "draining", "draining", "draining", "draining", "lost", "lost", "lost", "released", "still running")
	})
}

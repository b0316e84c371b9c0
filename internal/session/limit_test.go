package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
)

// losses records the Lost, Abandoned, Draining and StillRunning events of a session's observer, and counts the releases.
type losses struct {
	mu                                 sync.Mutex
	lost, abandoned, draining, running []lock.Event
	released                           int
}

// listen makes the observer of session a record its events.
func (w *world) listen() *losses {
	var n losses
	add := func(to *[]lock.Event) func(context.Context, lock.Event) {
		return func(_ context.Context, e lock.Event) {
			n.mu.Lock()
			defer n.mu.Unlock()
			*to = append(*to, e)
		}
	}
	w.observer().Lost, w.observer().Abandoned = add(&n.lost), add(&n.abandoned)
	w.observer().Draining, w.observer().StillRunning = add(&n.draining), add(&n.running)
	w.observer().Released = func(context.Context, lock.Event) { n.mu.Lock(); n.released++; n.mu.Unlock() }
	return &n
}

// told returns how many Draining and StillRunning events there were by now.
func (n *losses) told() (draining, running int) {
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.draining), len(n.running)
}

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
	for name, kind := range limited {
		for _, fixed := range []time.Duration{0, 5 * time.Minute} {
			t.Run(fmt.Sprint(name, fixed), func(t *testing.T) {
				inBubble(t, func(w *world) {
					n := w.listen()
					const most = 3*leaseTime + leaseTime/2
					opts := []lock.Option{lock.WithMaxHold(most)}
					if fixed > 0 {
						opts = append(opts, lock.WithFixedLease(fixed))
					}
					start := time.Now()
					h := w.take(w.a, kind, context.Background(), opts...)
					waits := kind
					if kind == reading {
						waits = writing
					}
					served := make(chan time.Time)
					go func() {
						h := w.take(w.b, waits, w.Context())
						served <- time.Now()
						w.unlock(h)
					}()
					if fixed > 0 && h.Until().Sub(start) != most {
						w.Errorf("Until is %v after the grant, want %v", h.Until().Sub(start), most)
					}
					time.Sleep(most - time.Nanosecond)
					if err := h.Err(); err != nil {
						w.Errorf("%v, which is too early", err)
					}
					<-h.Context().Done()
					if took := time.Since(start); took != most {
						w.Errorf("notified after %v, want %v", took, most)
					}
					if err := h.Err(); !errors.Is(err, lock.ErrLost) || !errors.Is(err, lock.ErrMaxHold) {
						w.Errorf("lost by %v", err)
					}
					if late := (<-served).Sub(start.Add(most)); late != 0 {
						w.Errorf("the next was served %v after that", late)
					}
					synctest.Wait()
					w.ended(h, lock.ErrMaxHold)
					if len(n.lost) != 1 || !errors.Is(n.lost[0].Err, lock.ErrMaxHold) || n.released != 0 || len(n.abandoned) != 0 {
						w.Errorf("notified of %d losses %v, %d releases, %d abandoned", len(n.lost), n.lost, n.released, len(n.abandoned))
					}
				})
			})
		}
	}
}

// No other goroutine has run: the check comes before the bubble's timers.
func TestMaxHold_atTheFirstCheck(t *testing.T) {
	inBubble(t, func(w *world) {
		for range 100 {
			h := w.lock(w.a, w.Context(), lock.WithMaxHold(time.Second))
			ended := h.Context().Done()
			time.Sleep(time.Second)
			select {
			case <-ended:
				continue
			default:
			}
			if err := h.Err(); !errors.Is(err, lock.ErrMaxHold) {
				w.Errorf("at its end: %v", err)
			}
			w.ended(h, lock.ErrMaxHold)
			time.Sleep(time.Second)
			if keys := w.mini.Keys(); len(keys) != 0 {
				w.Errorf("left: %q", keys)
			}
			return
		}
		w.Error("the timer was first a hundred times")
	})
}

// The machine slept after the limit was set. Until and later limits go by the wall clock, and so does the next call of
// Due.
func TestMaxHold_afterASleep(t *testing.T) {
	s := New(redistest.NewMini(t).Client(t), testConfig())
	defer s.Close(context.Background())
	ctx := lock.ContextWithNewOwner(t.Context())
	take := func(most time.Duration) *hold {
		h, err := s.Lock(ctx, s.NewSpec(plain, "orders", []lock.Option{lock.WithFixedLease(2 * time.Hour), lock.WithMaxHold(most)}))
		if err != nil {
			t.Fatal(err)
		}
		return h.(*hold)
	}
	outer, inner := take(time.Hour), take(30*time.Minute)
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

// Each hold of an owner has its own limit, and the lock stays until the last hold ends.
func TestMaxHold_ofOneHoldOfSeveral(t *testing.T) {
	for name, outerEnds := range map[string]bool{"the outer one": true, "the inner one": false} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				n := w.listen()
				ctx := lock.ContextWithNewOwner(w.Context())
				bounded, free := lock.WithMaxHold(10*time.Second), lock.WithMaxHold(20*time.Minute)
				if !outerEnds {
					bounded, free = free, bounded
				}
				outer, inner := w.lock(w.a, ctx, bounded), w.lock(w.a, ctx, free)
				ends, stays := outer, inner
				if !outerEnds {
					ends, stays = inner, outer
				}
				time.Sleep(10 * time.Second)
				synctest.Wait()
				w.ended(ends, lock.ErrMaxHold)
				if len(n.lost) != 1 {
					w.Errorf("the owner has the lock, and got %d losses, want one", len(n.lost))
				}
				time.Sleep(10 * time.Minute)
				if err := stays.Err(); err != nil || w.count(stays) != 1 {
					w.Errorf("the other hold: %v, count %d", err, w.count(stays))
				}
				time.Sleep(10 * time.Minute)
				w.ended(stays, lock.ErrMaxHold)
				if len(n.lost) != 2 {
					w.Errorf("got %d losses, want two", len(n.lost))
				}
			})
		})
	}
}

// Readers of a process share their hold in Redis, but each ends at its own limit.
func TestMaxHold_ofReadersThatShare(t *testing.T) {
	inBubble(t, func(w *world) {
		n := w.listen()
		a := w.take(w.a, reading, w.Context(), lock.WithMaxHold(10*time.Second))
		b := w.take(w.a, reading, w.Context())
		if a.Owner() != b.Owner() {
			w.Fatal("they do not share")
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		w.ended(a, lock.ErrMaxHold)
		time.Sleep(time.Hour)
		if err := b.Err(); err != nil || len(n.lost) != 1 {
			w.Errorf("the other reader: %v; got %d losses", err, len(n.lost))
		}
		w.unlock(b)
	})
}

// A hold that was handed off by another holder of the process ends, too.
func TestMaxHold_howeverItWasAcquired(t *testing.T) {
	inBubble(t, func(w *world) {
		first := w.lock(w.a, w.Context())
		next := make(chan lock.Hold)
		go func() { next <- w.lock(w.a, w.Context(), lock.WithMaxHold(time.Minute)) }()
		synctest.Wait()
		w.unlock(first)
		h := <-next
		if h.Owner() != first.Owner() {
			w.Log("the lock was not handed off")
		}
		time.Sleep(time.Minute)
		w.ended(h, lock.ErrMaxHold)
	})
}

// The context of a hold is canceled without an Unlock. The session renews the lock for one more lease.
//
//  1. The context is canceled.
//  2. The next renewal detects that, and reports that the hold is draining.
//  3. A lease later the hold is abandoned and lost, and a waiter acquires the lock.
func TestAbandonedHold(t *testing.T) {
	for name, kind := range limited {
		for _, grace := range []time.Duration{0, time.Second, 10 * leaseTime} {
			t.Run(fmt.Sprint(name, grace), func(t *testing.T) {
				inBubble(t, func(w *world) {
					n := w.listen()
					var opts []lock.Option
					want := leaseTime
					if grace > 0 {
						opts, want = append(opts, lock.WithGrace(grace)), grace
					}
					ctx, cancel := context.WithCancelCause(w.Context())
					h := w.take(w.a, kind, ctx, opts...)
					time.Sleep(10*time.Minute + time.Second)
					gone, done := errors.New("gone"), time.Now()
					cancel(gone) // 1
					waits := kind
					if kind == reading {
						waits = writing
					}
					next := w.take(w.b, waits, w.Context()) // 2, 3
					if took := time.Since(done); took > leaseTime/3+want || took < want {
						w.Errorf("another had it %v after the end of the context, want %v and up to a third of a lease", took, want)
					}
					w.unlock(next)
					w.ended(h, lock.ErrAbandoned)
					if err := h.Err(); !errors.Is(err, lock.ErrLost) || !errors.Is(err, lock.ErrAbandoned) {
						w.Errorf("the hold ended by %v, want its loss", err)
					}
					if cause := context.Cause(h.Context()); cause != gone {
						w.Errorf("its context ended by %v, want the first cause", cause)
					}
					if len(n.draining) != 1 || len(n.abandoned) != 1 || len(n.lost) != 1 || n.released != 0 || len(n.running) != 0 {
						w.Fatalf("got %d Draining, %d Abandoned, %d losses and %d releases", len(n.draining), len(n.abandoned), len(n.lost), n.released)
					}
					for _, e := range []lock.Event{n.draining[0], n.abandoned[0]} {
						if !errors.Is(e.Err, gone) || e.Name != "orders" {
							w.Errorf("got %+v", e)
						}
					}
					if e := n.lost[0]; !errors.Is(e.Err, lock.ErrAbandoned) || e.Draining != want {
						w.Errorf("notified of a loss: %+v", e)
					}
				})
			})
		}
	}
}

// A holder that unlocks in time has lost nothing, and nothing is reported.
func TestAbandonedHold_unlockedInTime(t *testing.T) {
	inBubble(t, func(w *world) {
		n := w.listen()
		ctx, cancel := context.WithCancel(w.Context())
		h := w.lock(w.a, ctx)
		time.Sleep(time.Second)
		cancel()
		time.Sleep(leaseTime)
		w.unlock(h)
		if keys := w.mini.Keys(); len(keys) != 0 || len(n.lost) != 0 || len(n.abandoned) != 0 || len(n.draining) != 1 {
			w.Errorf("left: %q; got %d losses and %d abandoned holds", keys, len(n.lost), len(n.abandoned))
		}
		time.Sleep(2 * leaseTime)
		if len(n.lost) != 0 {
			w.Error("lost after its Unlock")
		}
	})
}

// An owner holds the lock twice. The session renews the lock until both contexts are canceled.
func TestAbandonedHold_ofOneHoldOfSeveral(t *testing.T) {
	for _, kind := range []*Kind{plain, reading} {
		inBubble(t, func(w *world) {
			n := w.listen()
			owner := lock.ContextWithNewOwner(w.Context())
			ctx, cancel := context.WithCancel(owner)
			h, other := w.take(w.a, kind, ctx), w.take(w.a, kind, owner)
			cancel()
			time.Sleep(time.Hour)
			w.ended(h, lock.ErrAbandoned)
			if err := other.Err(); err != nil || len(n.lost) != 1 || len(n.abandoned) != 1 {
				w.Errorf("the other hold: %v; got %d losses and %d abandoned holds", err, len(n.lost), len(n.abandoned))
			}
			w.unlock(other)
		})
	}
}

// A fixed lease is not renewed, so its hold is never abandoned.
func TestAbandonedHold_fixedLease(t *testing.T) {
	inBubble(t, func(w *world) {
		n := w.listen()
		owner := lock.ContextWithNewOwner(w.Context())
		under, cancel := context.WithCancel(owner)
		renewed, h := w.lock(w.a, owner), w.lock(w.a, under, lock.WithFixedLease(time.Hour)) // one of them is renewed
		cancel()
		time.Sleep(30 * time.Minute)
		if len(n.abandoned) != 0 || len(n.lost) != 0 {
			w.Errorf("got %d abandoned holds and %d losses", len(n.abandoned), len(n.lost))
		}
		w.unlock(h)
		w.unlock(renewed)
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

// An abandoned hold ends at its earlier limit, if that comes first.
func TestMaxHold_ofAnAbandonedHold(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx, cancel := context.WithCancel(w.Context())
		const most = leaseTime/3 + 5*time.Second
		h := w.lock(w.a, ctx, lock.WithMaxHold(most))
		cancel()
		time.Sleep(most + time.Millisecond)
		if keys := w.mini.Keys(); len(keys) != 0 {
			w.Errorf("left: %q", keys)
		}
		w.ended(h, lock.ErrMaxHold)
	})
}

// The read hold of a downgrade ends at the limit of the read handle.
func TestMaxHold_ofADowngrade(t *testing.T) {
	inBubble(t, func(w *world) {
		write := w.take(w.a, writing, w.Context())
		read, err := w.a.Downgrade(w.Context(), w.a.NewSpec(reading, "orders", []lock.Option{lock.WithMaxHold(time.Minute)}), write)
		if err != nil {
			w.Fatal(err)
		}
		time.Sleep(time.Minute)
		w.ended(read, lock.ErrMaxHold)
	})
}

// A hold has a distant limit, and its context is canceled. It is lost a lease later, and not at the limit.
func TestAbandonedHold_beforeItsLimit(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx, cancel := context.WithCancel(w.Context())
		h := w.lock(w.a, ctx, lock.WithMaxHold(time.Hour))
		cancel()
		time.Sleep(leaseTime/3 + leaseTime + time.Millisecond)
		if keys := w.mini.Keys(); len(keys) != 0 {
			w.Errorf("left: %q", keys)
		}
		w.ended(h, lock.ErrAbandoned)
	})
}

// Three holds of an owner each end at their own limit, in whatever order they were acquired.
func TestMaxHold_inAnyOrder(t *testing.T) {
	inBubble(t, func(w *world) {
		n := w.listen()
		ctx := lock.ContextWithNewOwner(w.Context())
		start := time.Now()
		var holds []lock.Hold
		for _, most := range []time.Duration{10 * time.Second, 30 * time.Second, 20 * time.Second} {
			holds = append(holds, w.lock(w.a, ctx, lock.WithMaxHold(most)))
		}
		for i, at := range []time.Duration{10 * time.Second, 20 * time.Second, 30 * time.Second} {
			time.Sleep(time.Until(start.Add(at)))
			synctest.Wait()
			n.mu.Lock()
			if len(n.lost) != i+1 {
				w.Errorf("%d holds are lost after %v, want %d", len(n.lost), at, i+1)
			}
			n.mu.Unlock()
		}
		for _, h := range holds {
			w.ended(h, lock.ErrMaxHold)
		}
	})
}

// The owner loses all its holds when one of them reaches its limit. The loss is reported once.
func TestMaxHold_lossAtTheSameTime(t *testing.T) {
	inBubble(t, func(w *world) {
		n := w.listen()
		h := w.lock(w.a, w.Context(), lock.WithMaxHold(time.Hour))
		w.mini.Del("orders")
		h.(*hold).acquisition().lease.Lose(lock.ErrGone)
		w.a.sender.Add()
		w.a.expire(h.(*hold))
		w.a.sender.Done()
		synctest.Wait()
		if len(n.lost) != 1 {
			w.Errorf("got %d losses", len(n.lost))
		}
		w.ended(h, lock.ErrGone)
	})
}

// A reader that shares its hold in Redis reaches its limit. No command is sent.
func TestMaxHold_ofASharerCostsNothing(t *testing.T) {
	inBubble(t, func(w *world) {
		n := w.listen()
		a := w.take(w.a, reading, w.Context(), lock.WithMaxHold(5*time.Second))
		b := w.take(w.a, reading, w.Context())
		sent := w.scripts()
		time.Sleep(6 * time.Second)
		w.ended(a, lock.ErrMaxHold)
		if sent.Load() != 0 || len(n.lost) != 1 {
			w.Errorf("got %d commands and %d losses", sent.Load(), len(n.lost))
		}
		w.unlock(b)
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
		if lines := log.lines("lock abandoned"); len(lines) != 0 {
			w.Errorf("abandoned, while it is held: %q", lines)
		}
		time.Sleep(leaseTime / 2)
		if lines := log.lines("cause="); len(lines) != 2 || !strings.Contains(lines[0], "lock abandoned") || !strings.Contains(lines[1], "lock lost") {
			w.Errorf("abandoned and lost: %q", lines)
		}
		w.ended(h, lock.ErrAbandoned)
		owner := lock.ContextWithNewOwner(w.Context())
		outer, inner := w.lock(w.a, owner), w.lock(w.a, owner, lock.WithMaxHold(reportEvery)) // the first loss was logged just before
		time.Sleep(2 * reportEvery)
		if lines := log.lines("lock lost"); len(lines) != 0 {
			w.Errorf("one of two holds: %q", lines)
		}
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
		if known := w.entries(w.a); known != 0 {
			w.Errorf("got %d entries", known)
		}
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
		if err := <-done; err != nil {
			w.Error(err)
		}
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
		if err := h.Err(); err != nil {
			w.Error(err)
		}
		w.unlock(h)
	})
}

// A limit passes while Close is about to release the lock. Close releases it.
func TestMaxHold_duringClose(t *testing.T) {
	inBubble(t, func(w *world) {
		n := w.listen()
		h := w.lock(w.a, w.Context(), lock.WithMaxHold(time.Second))
		at := h.(*hold).acquisition().at
		at.lock()
		at.state.Close()
		at.unlock()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		n.mu.Lock()
		defer n.mu.Unlock()
		if len(n.lost) != 0 || !w.mini.Exists("orders") {
			w.Errorf("got %d losses", len(n.lost))
		}
	})
}

// A check finds that a limit has passed, and Close comes before the watchdog. The observer and the log report the loss that
// the check found.
func TestMaxHold_checkedBeforeClose(t *testing.T) {
	withDefaultLogger(t, func(w *world, log *logLines) {
		n := w.listen()
		h := w.lock(w.a, w.Context(), lock.WithMaxHold(time.Hour)).(*hold)
		h.end(h.acquisition().lostBy(lock.ErrMaxHold)) // as look does at the limit
		if err := w.a.Close(w.Context()); err != nil {
			w.Error(err)
		}
		if len(n.lost) != 1 || n.released != 0 || n.lost[0].Err != h.Err() || !errors.Is(h.Err(), lock.ErrMaxHold) {
			w.Errorf("the hold: %v; got %d releases and the losses %v", h.Err(), n.released, n.lost)
		}
		if lines := log.lines("lock lost"); len(lines) != 1 || !strings.Contains(lines[0], `cause="`+lock.ErrMaxHold.Error()+`"`) {
			w.Errorf("logged: %q", lines)
		}
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
		for _, grace := range []time.Duration{0, time.Second} {
			t.Run(fmt.Sprint(name, grace), func(t *testing.T) {
				withDefaultLogger(t, func(w *world, log *logLines) {
					n := w.listen()
					var opts []lock.Option
					want := leaseTime
					if grace > 0 {
						opts, want = append(opts, lock.WithGrace(grace)), grace
					}
					rivals := w.locker(w.b, kind)
					if kind == reading {
						rivals = w.locker(w.b, writing)
					}
					ctx, cancel := context.WithCancelCause(w.Context())
					stop := errors.New("SIGTERM")
					err := lock.Do(ctx, w.locker(w.a, kind, opts...), func(ctx context.Context) error {
						time.Sleep(time.Second)
						cancel(stop)
						<-ctx.Done()
						if cause := context.Cause(ctx); cause != stop {
							w.Errorf("its context ended by %v", cause)
						}
						const drain = leaseTime / 3 // a renewal happens in between
						time.Sleep(drain)
						n.mu.Lock()
						if len(n.draining) != 1 || grace == 0 && len(n.running) != 0 || !errors.Is(n.draining[0].Err, stop) {
							w.Errorf("got Draining %+v and StillRunning %+v", n.draining, n.running)
						}
						n.mu.Unlock()
						time.Sleep(want)
						n.mu.Lock()
						if len(n.running) != 1 || !errors.Is(n.running[0].Err, stop) {
							w.Errorf("got StillRunning %+v", n.running)
						}
						n.mu.Unlock()
						if lines := log.lines("still running"); len(lines) != 1 {
							w.Errorf("logged: %q", lines)
						}
						time.Sleep(10 * time.Minute)
						if _, err := rivals.TryLock(w.Context()); !errors.Is(err, lock.ErrNotAcquired) {
							w.Errorf("while it runs, another TryLock: %v", err)
						}
						if err := lock.HoldFromContext(ctx).Err(); err != nil {
							w.Errorf("the hold: %v", err)
						}
						return context.Cause(ctx)
					})
					if !errors.Is(err, stop) || errors.Is(err, lock.ErrNotHeld) {
						w.Errorf("Do: %v", err)
					}
					synctest.Wait()
					if len(n.draining) != 1 || len(n.running) != 1 || len(n.abandoned) != 0 || len(n.lost) != 0 || n.released != 1 {
						w.Errorf("got %d Draining, %d StillRunning, %d abandoned holds, %d losses and %d releases", len(n.draining), len(n.running), len(n.abandoned), len(n.lost), n.released)
					}
					h, err := rivals.TryLock(w.Context())
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
		n := w.listen()
		ctx, cancel := context.WithCancel(w.Context())
		err := lock.Do(ctx, lock.UntilUnlock(w.locker(w.a, plain)), func(context.Context) error {
			cancel()
			time.Sleep(2 * leaseTime)
			return nil
		})
		if err != nil || len(n.draining) != 1 || len(n.running) != 1 {
			w.Errorf("%v, and got %d Draining and %d StillRunning", err, len(n.draining), len(n.running))
		}
	})
}

// A function continues after the cancellation, and locks that it acquired reach their limits before and after it is reported
// as still running. It is reported once, and not before its grace has passed.
func TestDo_reportedOnce(t *testing.T) {
	inBubble(t, func(w *world) {
		n := w.listen()
		ctx, cancel := context.WithCancel(w.Context())
		_ = lock.Do(ctx, w.locker(w.a, plain, lock.WithGrace(leaseTime)), func(ctx context.Context) error {
			late := lock.WithGrace(time.Hour)
			before, after := w.lock(w.a, ctx, lock.WithMaxHold(leaseTime), late), w.lock(w.a, ctx, lock.WithMaxHold(3*leaseTime), late)
			cancel()
			time.Sleep(leaseTime/3 + leaseTime - time.Millisecond) // the next renewal detects the cancellation
			w.ended(before, lock.ErrMaxHold)
			if draining, running := n.told(); draining != 3 || running != 0 {
				w.Errorf("too early: got %d Draining and %d StillRunning", draining, running)
			}
			for range 2 {
				time.Sleep(leaseTime)
				if _, running := n.told(); running != 1 {
					w.Errorf("got %d StillRunning", running)
				}
			}
			w.ended(after, lock.ErrMaxHold)
			return nil
		})
	})
}

// A function that stops soon after the cancellation is not reported.
func TestDo_stopsSoon(t *testing.T) {
	inBubble(t, func(w *world) {
		n := w.listen()
		for range 20 {
			ctx, cancel := context.WithCancel(w.Context())
			err := lock.Do(ctx, w.locker(w.a, plain), func(ctx context.Context) error {
				time.Sleep(leaseTime/3 - 100*time.Millisecond)
				cancel()
				time.Sleep(300 * time.Millisecond) // a renewal happens in between
				return ctx.Err()
			})
			if !errors.Is(err, context.Canceled) {
				w.Error(err)
			}
		}
		if len(n.abandoned) != 0 || len(n.running) != 0 {
			w.Errorf("got %d abandoned holds and %d StillRunning", len(n.abandoned), len(n.running))
		}
	})
}

// A function that drains detects a loss through its hold: the lock is gone, the maximum hold time has passed, or the
// client is closed. Its context keeps the first cause.
func TestDo_lostWhileDraining(t *testing.T) {
	for name, c := range map[string]struct {
		opts []lock.Option
		lose func(w *world)
		want []error
	}{
		"gone":     {nil, func(w *world) { w.mini.Del("orders") }, []error{lock.ErrLost, lock.ErrGone}},
		"max hold": {[]lock.Option{lock.WithMaxHold(20 * time.Minute)}, func(*world) { time.Sleep(10 * time.Minute) }, []error{lock.ErrLost, lock.ErrMaxHold}},
		"closed": {nil, func(w *world) {
			start := time.Now()
			if err := w.a.Close(w.Context()); err != nil || time.Since(start) > time.Second {
				w.Errorf("Close: %v after %v", err, time.Since(start))
			}
		}, []error{lock.ErrClosed}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				start := time.Now()
				ctx, cancel := context.WithCancel(w.Context())
				err := lock.Do(ctx, w.locker(w.a, plain, c.opts...), func(ctx context.Context) error {
					cancel()
					time.Sleep(10 * time.Minute)
					h := lock.HoldFromContext(ctx)
					if err := h.Err(); err != nil {
						w.Errorf("before the loss: %v", err)
					}
					c.lose(w)
					<-h.Context().Done()
					for _, want := range c.want {
						if err := h.Err(); !errors.Is(err, want) {
							w.Errorf("after the loss: %v, want %v", err, want)
						}
					}
					if cause := context.Cause(ctx); cause != context.Canceled {
						w.Errorf("the context ended by %v", cause)
					}
					return h.Err()
				})
				for _, want := range c.want {
					if !errors.Is(err, want) {
						w.Errorf("Do: %v, want %v", err, want)
					}
				}
				if name == "max hold" && time.Since(start) != 20*time.Minute {
					w.Errorf("after %v", time.Since(start))
				}
			})
		})
	}
}

// A lock that a function acquires itself is limited by cancellation, even under the hold of the function.
func TestDo_locksUnderIt(t *testing.T) {
	inBubble(t, func(w *world) {
		n := w.listen()
		ctx, cancel := context.WithCancel(w.Context())
		var last lock.Hold
		_ = lock.Do(ctx, w.locker(w.a, plain), func(ctx context.Context) error {
			h, err := w.a.Lock(ctx, w.a.NewSpec(plain, "own", nil))
			if err != nil {
				w.Fatal(err)
			}
			again, err := w.a.Lock(ctx, w.a.NewSpec(plain, "orders", nil)) // re-enters
			if err != nil {
				w.Fatal(err)
			}
			if last, err = w.a.Lock(lock.HoldFromContext(ctx).Context(), w.a.NewSpec(plain, "last", nil)); err != nil {
				w.Fatal(err)
			}
			cancel()
			time.Sleep(2 * leaseTime)
			if err := last.Err(); err != nil {
				w.Error(err)
			}
			w.ended(h, lock.ErrAbandoned)
			w.ended(again, lock.ErrAbandoned)
			if err := lock.HoldFromContext(ctx).Err(); err != nil {
				w.Error(err)
			}
			return nil
		})
		time.Sleep(2 * leaseTime)
		w.ended(last, lock.ErrAbandoned)
		if len(n.abandoned) != 3 || len(n.lost) != 3 || n.released != 1 {
			w.Errorf("got %d abandoned holds, %d losses and %d releases", len(n.abandoned), len(n.lost), n.released)
		}
	})
}

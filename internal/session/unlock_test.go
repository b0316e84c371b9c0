package session

import (
	"context"
	"errors"
	"io"
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

// A process was stopped, and the lease has expired. Unlock is the first to look, and says that the lock was lost: also while Redis
// has it yet.
func TestUnlock_looksAtTheClock(t *testing.T) {
	inBubble(t, func(w *world) {
		for range 100 { // until the timer of the watchdog is not the first
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

// A release that finds nothing was replied to: its error says nothing of a server that does not reply.
func TestUnlock_ofWhatIsGoneWasAnswered(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		w.mini.Del("orders")
		if err := h.Unlock(w.Context()); !errors.Is(err, lock.ErrLost) || errors.Is(err, lock.ErrUnavailable) {
			w.Errorf("Unlock: %v", err)
		}
	})
}

// Close comes after the end of a hold, and before its release. Close gives the lock back, and Unlock says so.
func TestUnlock_crossedByClose(t *testing.T) {
	inBubble(t, func(w *world) {
		w.observer() // no witness: no one tells it of this Unlock
		h := w.lock(w.a, w.Context()).(*hold)
		now := time.Now()
		if before := h.endAt(lock.ErrUnlocked, now); before != nil {
			w.Fatal(before)
		}
		if err := w.a.Close(w.Context()); err != nil {
			w.Error(err)
		}
		if err := w.a.unlockEnded(w.Context(), h, now); !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrClosed) {
			w.Errorf("Unlock: %v", err)
		}
	})
}

// A renewal is under way when a hold is released, and has no reply. The caller waits no longer than its context.
func TestUnlock_endsWithItsContext(t *testing.T) {
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

// The caller of Unlock leaves, and the release is replied to a moment later. That reconciles it: one look, and no more.
func TestUnlock_whoseAnswerIsLate(t *testing.T) {
	inBubble(t, func(w *world) {
		answer := make(chan struct{})
		k := gated(nil, nil)
		sent := passes(k, 1, answer)
		h := w.take(w.a, k, w.Context())
		ctx, cancel := context.WithTimeout(w.Context(), pollTime/2)
		defer cancel()
		if err := h.Unlock(ctx); !errors.Is(err, context.DeadlineExceeded) {
			w.Errorf("Unlock: %v", err)
		}
		close(answer)
		time.Sleep(leaseTime)
		if n := sent.Load(); n != 2 {
			w.Errorf("%d commands, want the release and one look", n)
		}
	})
}

// reduces is the plain kind. The first command that leaves some holds goes to f.
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

// One of two holds is released, and the caller leaves before Redis replies. The reply is an error: Redis is told again.
func TestReduce_thatFailsLate(t *testing.T) {
	inBubble(t, func(w *world) {
		answer := make(chan struct{})
		k := reduces(func(func() (luascripts.Verdict, error)) (luascripts.Verdict, error) {
			<-answer
			return 0, io.EOF
		})
		ctx := lock.ContextWithNewOwner(w.Context())
		outer, inner := w.take(w.a, k, ctx), w.take(w.a, k, ctx)
		short, cancel := context.WithTimeout(w.Context(), pollTime/2)
		defer cancel()
		if err := inner.Unlock(short); !errors.Is(err, context.DeadlineExceeded) {
			w.Errorf("Unlock: %v", err)
		}
		close(answer)
		time.Sleep(pollTime)
		if n := w.count(outer); n != 1 {
			w.Errorf("Redis counts %d holds of one", n)
		}
		w.unlock(outer)
	})
}

// One of two holds is released while another call of the owner has the turn. The lock is lost meanwhile, and then the caller
// leaves: it is notified of the loss.
func TestReduce_leavesAfterALoss(t *testing.T) {
	inBubble(t, func(w *world) {
		owner := lock.ContextWithNewOwner(w.Context())
		outer, inner := w.lock(w.a, owner), w.lock(w.a, owner)
		held, turn := outer.(*hold).acquisition(), outer.(*hold).By.Turn
		turn <- struct{}{}
		ctx, cancel := context.WithCancel(w.Context())
		answer := make(chan error)
		go func() { answer <- inner.Unlock(ctx) }()
		synctest.Wait()
		w.mini.Del("orders")
		held.lease.Lose(lock.ErrGone)
		cancel()
		if err := <-answer; !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrLost) {
			w.Errorf("Unlock: %v", err)
		}
		<-turn
	})
}

// One of two holds is released, and Redis takes its time. That is no error within the operation timeout.
func TestReduce_hasTheOperationTimeOut(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		outer, inner := w.lock(w.a, ctx), w.lock(w.a, ctx)
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayReply: opTime / 2}))
		w.unlock(inner)
		w.unlock(outer)
	})
}

// Both holds of an owner are released, and the release overtakes what leaves one of them. That one finds nothing, and neither
// Unlock fails.
func TestReduce_overtakenByTheRelease(t *testing.T) {
	inBubble(t, func(w *world) {
		goes := make(chan struct{})
		k := reduces(func(send func() (luascripts.Verdict, error)) (luascripts.Verdict, error) {
			<-goes
			return send()
		})
		ctx := lock.ContextWithNewOwner(w.Context())
		outer, inner := w.take(w.a, k, ctx), w.take(w.a, k, ctx)
		answer := make(chan error)
		go func() { answer <- inner.Unlock(w.Context()) }()
		synctest.Wait()
		w.unlock(outer)
		close(goes)
		if err := <-answer; err != nil {
			w.Errorf("Unlock: %v", err)
		}
	})
}

// One of two holds is released, and Redis has none. The other hold is lost at once, and not at the next renewal.
func TestReduce_findsALoss(t *testing.T) {
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

// A waiter of the same process, which gets no messages, has the lock as soon as it is released: of each kind, those among them
// that pass no lock on.
func TestUnlock_wakesTheWaitersHere(t *testing.T) {
	for name, k := range map[string]*Kind{"plain": plain, "write": writing} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.deafened()
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

// A release of a kind that passes no locks on names no one here: whoever asks first has the lock.
func TestUnlock_namesNoHeirOfAKindThatPassesNothingOn(t *testing.T) {
	for name, k := range map[string]*Kind{"write": writing} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				h := w.take(w.a, k, w.Context())
				next := w.waitingFor(w.a, w.Context(), w.a.NewSpec(k, "orders", nil))
				if f := h.(*hold).acquisition().newRelease(time.Now()); f.next != nil || f.pass.Heir != "" {
					w.Errorf("the release names %q", f.pass.Heir)
				}
				w.unlock(h)
				w.unlock(<-next)
			})
		})
	}
}

// A release broke off, and its copy finds that the key holds something else: the lock was lost.
func TestUnlock_repeatedAtAForeignKey(t *testing.T) {
	inBubble(t, func(w *world) {
		var sent atomic.Int32
		k := gated(nil, func(pass passFunc) passFunc {
			return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, p luascripts.Pass) (luascripts.Passed, error) {
				if sent.Add(1) == 1 {
					return luascripts.Passed{}, io.EOF
				}
				return pass(ctx, rdb, k, owner, p)
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

// An inner and the outer hold are released at once. The Unlock that has to say "one less"
// comes second, and must not say "none" in place of the other.
func TestReduce_leavesTheEndToRelease(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		outer, inner := w.lock(w.a, ctx), w.lock(w.a, ctx)
		renewal := make(chan struct{})
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{HoldReply: renewal}))
		time.Sleep(leaseTime / 3)
		synctest.Wait() // a renewal is under way, and holds the release up

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

// The lock is lost while an Unlock waits to say so to Redis.
func TestUnlock_crossedByALoss(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		outer, inner := w.lock(w.a, ctx), w.lock(w.a, ctx)
		held, turn := outer.(*hold).acquisition(), outer.(*hold).By.Turn
		turn <- struct{}{} // another call of this owner has the turn
		answer := make(chan error)
		go func() { answer <- inner.Unlock(w.Context()) }()
		synctest.Wait()
		w.mini.Del("orders")
		held.lease.Lose(watchdog.ErrGone)
		<-turn
		if err := <-answer; !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrLost) {
			w.Errorf("unlock of a lock that is lost: %v", err)
		}
	})
}

// An Unlock whose reply does not come returns in time, and the release goes on.
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

// The session makes up for an unconfirmed partial release in the background.
func TestReduce_isSettled(t *testing.T) {
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
			w.Error("the release was confirmed, without an answer")
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

package session

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/place"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// Each test here fails without one guard of what follows from a loss, from a limit, or from an
// answer that crosses the end of a call.

// A renewal finds that the lock is gone. The next in this process asks at once, whether it has
// asked before or not.
func TestGuard_aLossWakesTheNext(t *testing.T) {
	for name, joins := range map[string]time.Duration{"has asked": pollTime / 4, "has not asked": leaseTime/3 - pollTime/2} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				h := w.lock(w.a, w.Context())
				start := time.Now()
				time.Sleep(joins)
				next := w.waiting(w.a, w.Context())
				time.Sleep(leaseTime/3 - pollTime/10 - time.Since(start))
				w.mini.Del("orders") // publishes nothing
				got := <-next
				if took := time.Since(start); took != leaseTime/3 {
					w.Errorf("the next has it after %v, and the renewal was after %v", took, leaseTime/3)
				}
				if err := h.Err(); !errors.Is(err, lock.ErrLost) {
					w.Errorf("the hold: %v", err)
				}
				w.unlock(got)
			})
		})
	}
}

// A question breaks off, and the next one is granted. The hold is lost, by the server's word or by
// its limit, and then the server carries out the first question: the lock is free again soon.
func TestGuard_aQuestionCarriedOutAfterALoss(t *testing.T) {
	for name, opts := range map[string][]lock.Option{"gone": nil, "limit": {lock.WithMaxHold(leaseTime / 3)}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				k, carryOut := w.brokenOnce()
				h, err := w.a.Lock(w.Context(), w.a.NewSpec(k, "orders", opts))
				if err != nil {
					w.Fatal(err)
				}
				if name == "gone" {
					w.mini.Del("orders") // publishes nothing
				}
				<-h.Context().Done()
				synctest.Wait()
				carryOut()
				time.Sleep(opTime + time.Millisecond)
				if w.mini.Exists("orders") {
					w.Errorf("the lock is held for %v more, without a holder", w.mini.TTL("orders"))
				}
			})
		})
	}
}

// A hold ends by its limit. The next in this process has the lock at once, though it has not
// asked yet.
func TestGuard_aLimitWakesTheNext(t *testing.T) {
	inBubble(t, func(w *world) {
		const most = 2 * time.Second
		start := time.Now()
		w.lock(w.a, w.Context(), lock.WithMaxHold(most))
		time.Sleep(most - pollTime/2)
		next := w.waiting(w.a, w.Context())
		h := <-next
		if took := time.Since(start); took != most {
			w.Errorf("the next has it after %v, and the limit was %v", took, most)
		}
		w.unlock(h)
	})
}

// A re-entry was carried out, and breaks off; what sees to it fails. The lock is not passed on
// with a count that may be wrong.
func TestGuard_notPassedOnAfterAReentryThatBrokeOff(t *testing.T) {
	inBubble(t, func(w *world) {
		k := gated(func(acquire acquireFunc) acquireFunc {
			return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Question) (luascripts.Acquired, error) {
				a, err := acquire(ctx, rdb, k, q)
				if q.Want > 1 {
					return luascripts.Acquired{}, &luascripts.ReplyError{Script: "a garbled reply"}
				}
				return a, err
			}
		}, nil)
		k.Release = func(context.Context, rueidis.Client, luascripts.Keys, string, int) (luascripts.Verdict, error) {
			return 0, &luascripts.ReplyError{Script: "a garbled reply"}
		}
		spec := w.a.NewSpec(k, "orders", nil)
		h := w.take(w.a, k, w.Context())
		if _, err := w.a.Lock(h.Context(), spec); err == nil {
			w.Error("the re-entry did not break off")
		}
		next := w.waitingFor(w.a, w.Context(), spec)
		time.Sleep(time.Millisecond)
		w.unlock(h)
		h = w.next(next)
		w.ours(h)
		w.unlock(h)
	})
}

// The call ends while its question is answered. It does not have the lock then, and the lock is
// free.
func TestGuard_theAnswerCrossesTheEndOfTheWait(t *testing.T) {
	for _, waits := range []bool{true, false} {
		inBubble(t, func(w *world) {
			ctx := &muted{Context: w.Context()}
			k := gated(func(acquire acquireFunc) acquireFunc {
				return func(c context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Question) (luascripts.Acquired, error) {
					a, err := acquire(c, rdb, k, q)
					ctx.over.Store(true)
					return a, err
				}
			}, nil)
			try := map[bool]func(context.Context, *Spec) (lock.Hold, error){true: w.a.Lock, false: w.a.TryLock}[waits]
			if h, err := try(ctx, w.a.NewSpec(k, "orders", nil)); h != nil || errors.Is(err, lock.ErrNotAcquired) || !errors.Is(err, context.Canceled) {
				w.Errorf("%v, %v", h, err)
			}
			synctest.Wait()
			if w.mini.Exists("orders") {
				w.Errorf("the lock is held for %v more, without a holder", w.mini.TTL("orders"))
			}
		})
	}
}

// The answer to a release gives the lock to a waiter here, and most of the lease of that grant is
// over by then. The waiter's own question is under way, and its answer brings a longer lease. With the rest
// of the first grant, the waiter would lose the lock and ask once more.
func TestGuard_aGrantWhoseAnswerIsLate(t *testing.T) {
	inBubble(t, func(w *world) {
		const offer = offerPolls * pollTime
		w.deafened()
		goes := make(chan struct{})
		var asked, passed atomic.Int32
		k := gated(func(acquire acquireFunc) acquireFunc {
			return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Question) (luascripts.Acquired, error) {
				if asked.Add(1) == 2 {
					<-goes
				}
				return acquire(ctx, rdb, k, q)
			}
		}, func(pass passFunc) passFunc {
			return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, p luascripts.Pass) (luascripts.Passed, error) {
				first := passed.Add(1) == 1
				reply, err := pass(ctx, rdb, k, owner, p)
				if first {
					time.Sleep(offer * 5 / 6)
				}
				return reply, err
			}
		})
		h := w.take(w.a, k, w.Context())
		next := w.waitingFor(w.a, w.Context(), w.a.NewSpec(k, "orders", nil))
		time.Sleep(2 * place.MaxPassTime)
		start := time.Now()
		w.unlock(h)
		time.Sleep(time.Until(start.Add(offer + pollTime/2)))
		close(goes)
		h = <-next
		if n := asked.Load(); n != 2 {
			w.Errorf("%d questions, want 2", n)
		}
		w.unlock(h)
	})
}

// A process is told to ask a little later, and then that the lock is its own. It asks at once.
func TestGuard_aGrantAfterAside(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.b, w.Context())
		next := w.waiting(w.a, w.Context())
		w.rdb.Do(w.Context(), w.rdb.B().Publish().Channel("leasehold_channel:{orders}").Message(luascripts.Aside).Build())
		synctest.Wait()
		w.unlock(h)
		w.unlock(w.next(next))
	})
}

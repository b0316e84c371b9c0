package session

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// Each test here fails without one guard of a question, or of its answer.

// The caller leaves, and its question is granted so late that the client library may have sent a copy. The copy is carried out
// when the grant is given back: the lock is free again soon.
func TestAbandoned_aCopyOfALateAnswer(t *testing.T) {
	inBubble(t, func(w *world) {
		var carryOut func()
		k := gated(func(acquire acquireFunc) acquireFunc {
			return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Question) (luascripts.Acquired, error) {
				carryOut = func() {
					if a, err := luascripts.AcquireReentrant(w.Context(), w.rdb, k, q); err != nil || a.Verdict != luascripts.Done {
						w.Errorf("%+v, %v", a, err)
					}
				}
				a, err := acquire(ctx, rdb, k, q)
				time.Sleep(time.Second)
				return a, err
			}
		}, nil)
		ctx, cancel := context.WithTimeout(w.Context(), pollTime/2)
		defer cancel()
		<-w.waitingFor(w.a, ctx, w.a.NewSpec(k, "orders", nil))
		time.Sleep(pollTime)
		if w.mini.Exists("orders") {
			w.Error("the grant was not given back")
		}
		carryOut()
		time.Sleep(opTime)
		if w.mini.Exists("orders") {
			w.Errorf("the lock is held for %v more, without a holder", w.mini.TTL("orders"))
		}
	})
}

// Replicas take their time. That an answer waits for them says nothing about copies: the release is all that is sent after it.
func TestReplicas_aSlowAnswerIsNotInDoubt(t *testing.T) {
	inBubble(t, func(w *world) {
		k := gated(func(acquire acquireFunc) acquireFunc {
			return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Question) (luascripts.Acquired, error) {
				replicas := q.Replicas
				q.Replicas = 0 // the server in memory has none
				a, err := acquire(ctx, rdb, k, q)
				time.Sleep(time.Second)
				a.Confirmed = replicas
				return a, err
			}
		}, nil)
		sent := passes(k, 0, nil)
		w.unlock(w.take(w.a, k, w.Context(), lock.WithReplicas(1, 2*time.Second)))
		time.Sleep(leaseTime)
		if n := sent.Load(); n != 1 {
			w.Errorf("%d commands give it back, want the release alone", n)
		}
	})
}

// Redis says that an earlier copy of the question was granted the lock, and that this is over. The caller asks again.
func TestAbandoned_aGrantThatIsOver(t *testing.T) {
	inBubble(t, func(w *world) {
		var asked atomic.Int32
		k := gated(func(acquire acquireFunc) acquireFunc {
			return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Question) (luascripts.Acquired, error) {
				if asked.Add(1) == 1 {
					return luascripts.Acquired{Verdict: luascripts.Gone}, nil
				}
				return acquire(ctx, rdb, k, q)
			}
		}, nil)
		h, err := w.a.Lock(w.Context(), w.a.NewSpec(k, "orders", nil))
		if err != nil {
			w.Fatal(err)
		}
		w.unlock(h)
	})
}

// A try that is refused does not listen longer than the waiter before it: it waits for nothing.
func TestTry_doesNotListen(t *testing.T) {
	inBubble(t, func(w *world) {
		w.lingering(plain)
		h := w.lock(w.b, w.Context())
		lingers := 0
		for w.a.hub.Channels() > 0 {
			if lingers++; lingers > 1000 {
				w.Fatal("it listens for ever")
			}
			if _, err := w.a.TryLock(w.Context(), w.a.NewSpec(plain, "orders", nil)); err == nil {
				w.Fatal("granted")
			}
			time.Sleep(time.Second)
			synctest.Wait()
		}
		w.unlock(h)
	})
}

// Too few replicas confirm a grant, and Redis refuses to take it back at first. The settler goes on: nothing stays.
func TestReplicas_aGrantThatCannotBeGivenBack(t *testing.T) {
	inBubble(t, func(w *world) {
		var passed atomic.Int32
		k := gated(func(acquire acquireFunc) acquireFunc {
			return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Question) (luascripts.Acquired, error) {
				q.Replicas = 0 // the server in memory has none, and nothing confirms it
				return acquire(ctx, rdb, k, q)
			}
		}, func(pass passFunc) passFunc {
			return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, p luascripts.Pass) (luascripts.Passed, error) {
				if passed.Add(1) == 1 {
					return luascripts.Passed{}, &luascripts.ReplyError{Script: "a garbled reply"}
				}
				return pass(ctx, rdb, k, owner, p)
			}
		})
		if _, err := w.a.TryLock(w.Context(), w.a.NewSpec(k, "orders", []lock.Option{lock.WithReplicas(1, time.Second)})); !errors.Is(err, lock.ErrReplicas) {
			w.Error(err)
		}
		time.Sleep(pollTime)
		if w.mini.Exists("orders") {
			w.Errorf("the lock is held for %v more, without a holder", w.mini.TTL("orders"))
		}
	})
}

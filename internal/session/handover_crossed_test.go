package session

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/place"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

type (
	acquireFunc = func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Question) (luascripts.Acquired, error)
	passFunc    = func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, p luascripts.Pass) (luascripts.Passed, error)
)

// gated is the plain kind, whose answers a test can hold back each by itself: as where
// commands of one owner go by several connections.
func gated(acquire func(acquireFunc) acquireFunc, pass func(passFunc) passFunc) *Kind {
	k := *hookable()
	if acquire != nil {
		k.Acquire = acquire(k.Acquire)
	}
	if pass != nil {
		k.Pass = pass(k.Pass)
	}
	return &k
}

// goLock locks in a goroutine of its own.
func (w *world) goLock(s *Session, k *Kind, ctx context.Context, opts ...lock.Option) <-chan lock.Hold {
	got := make(chan lock.Hold, 1)
	go func() {
		h, err := s.Lock(ctx, s.NewSpec(k, "orders", opts))
		if err != nil {
			w.Error(err)
			close(got)
			return
		}
		got <- h
	}()
	return got
}

// ours fails the test unless Redis has the lock for the owner of h, once.
func (w *world) ours(h lock.Hold) {
	w.Helper()
	synctest.Wait()
	if w.count(h) != 1 || h.Err() != nil {
		w.Errorf("Redis has the lock %d times for the owner, and the hold says %v", w.count(h), h.Err())
	}
	if other, err := w.b.TryLock(w.Context(), w.b.NewSpec(plain, "orders", nil)); err == nil {
		w.Errorf("another has it too: %v", other.Unlock(w.Context()))
	}
}

// The answer to a question comes when the lock has been passed on, under the owner
// string that it was about: what sees to it must not free the lock of the next.
func TestPass_afterAQuestionThatIsStillOpen(t *testing.T) {
	inBubble(t, func(w *world) {
		late := make(chan struct{})
		var asked atomic.Int32
		k := gated(func(acquire acquireFunc) acquireFunc {
			return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Question) (luascripts.Acquired, error) {
				first := asked.Add(1) == 1
				a, err := acquire(ctx, rdb, k, q)
				if first {
					<-late
				}
				return a, err
			}
		}, nil)
		got := w.goLock(w.a, k, w.Context())
		time.Sleep(opTime / 2)
		next := w.goLock(w.a, k, w.Context())
		h := <-got
		time.Sleep(time.Millisecond)
		w.unlock(h)
		after := <-next
		close(late)
		w.ours(after)
		time.Sleep(3 * opTime)
		w.ours(after)
		w.unlock(after)
	})
}

// A group, too, asks again while an answer is still open.
func TestPass_afterAGroupsQuestionThatIsStillOpen(t *testing.T) {
	inBubble(t, func(w *world) {
		late := make(chan struct{})
		var asked atomic.Int32
		got := make(chan []lock.Hold)
		go func() {
			holds, err := w.a.LockAll(w.Context(), w.all(w.a, "orders"), func(ctx context.Context, rdb rueidis.Client, all []luascripts.Taking) (luascripts.Acquired, int, error) {
				first := asked.Add(1) == 1
				a, i, err := luascripts.AcquireAllReentrant(ctx, rdb, all)
				if first {
					<-late
				}
				return a, i, err
			}, true)
			if err != nil {
				w.Error(err)
			}
			got <- holds
		}()
		holds := <-got
		next := w.goLock(w.a, plain, w.Context())
		synctest.Wait()
		time.Sleep(time.Millisecond)
		w.unlock(holds[0])
		after := <-next
		close(late)
		w.ours(after)
		time.Sleep(3 * opTime)
		w.ours(after)
		w.unlock(after)
	})
}

// A re-entry broke off, and is looked after twice; the second look comes when the lock
// has been passed on.
func TestPass_whileAReentryIsSettled(t *testing.T) {
	inBubble(t, func(w *world) {
		var breaks atomic.Bool
		k := gated(func(acquire acquireFunc) acquireFunc {
			return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Question) (luascripts.Acquired, error) {
				a, err := acquire(ctx, rdb, k, q)
				if q.Want == 2 && breaks.CompareAndSwap(true, false) {
					return luascripts.Acquired{}, &luascripts.ReplyError{Script: "a garbled reply"}
				}
				return a, err
			}
		}, nil)
		h, err := w.a.Lock(w.Context(), w.a.NewSpec(k, "orders", nil))
		if err != nil {
			w.Fatal(err)
		}
		next := w.goLock(w.a, k, w.Context())
		synctest.Wait()
		breaks.Store(true)
		if _, err := w.a.Lock(h.Context(), w.a.NewSpec(k, "orders", nil)); err == nil {
			w.Fatal("the re-entry did not break off")
		}
		again, err := w.a.Lock(h.Context(), w.a.NewSpec(k, "orders", nil))
		if err != nil {
			w.Fatal(err)
		}
		w.unlock(again)
		time.Sleep(time.Millisecond)
		w.unlock(h)
		after := <-next
		time.Sleep(3 * opTime)
		w.ours(after)
		w.unlock(after)
	})
}

// The heir of a release asks and is granted the lock, and passes it on, before the
// release hears of it.
func TestInherit_afterTheHeirPassedOn(t *testing.T) {
	inBubble(t, func(w *world) {
		late := make(chan struct{})
		var passed atomic.Int32
		k := gated(nil, func(pass passFunc) passFunc {
			return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, p luascripts.Pass) (luascripts.Passed, error) {
				first := passed.Add(1) == 1
				reply, err := pass(ctx, rdb, k, owner, p)
				if first {
					<-late
				}
				return reply, err
			}
		})
		h, err := w.a.Lock(w.Context(), w.a.NewSpec(k, "orders", nil))
		if err != nil {
			w.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond) // too long to be passed on
		second := w.goLock(w.a, k, w.Context())
		synctest.Wait()
		third := w.goLock(w.a, k, w.Context())
		synctest.Wait()
		go w.unlock(h)
		heir := <-second // it asked
		time.Sleep(time.Millisecond)
		w.unlock(heir)
		after := <-third
		close(late)
		w.ours(after)
		time.Sleep(3 * opTime)
		w.ours(after)
		w.unlock(after)
	})
}

// The waiter that stood in line leaves, and a group is next in this process, which has no use
// for the place in the queue in Redis: the lock must not come to it.
func TestTicket_isOfNoUseForAGroup(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.b, w.Context())
		ctx, cancel := context.WithCancel(w.Context())
		go func() { _, _ = w.a.Lock(ctx, w.a.NewSpec(plain, "orders", nil)) }()
		synctest.Wait()
		served := make(chan time.Time)
		go func() {
			holds, _ := w.a.LockAll(w.Context(), w.all(w.a, "orders", "others"), luascripts.AcquireAllReentrant, true)
			for _, h := range holds {
				w.unlock(h)
			}
			served <- time.Now()
		}()
		time.Sleep(pollTime / 2)
		cancel()
		synctest.Wait()
		began := time.Now()
		w.unlock(h)
		if took := (<-served).Sub(began); took > 0 {
			w.Errorf("the group was served %v after the lock was free", took)
		}
	})
}

// muted is a context whose end is seen only by a caller that looks.
type muted struct {
	context.Context
	over atomic.Bool
}

func (c *muted) Done() <-chan struct{} { return nil }

func (c *muted) Err() error {
	if c.over.Load() {
		return context.Canceled
	}
	return nil
}

// The lock is passed on to a waiter that leaves before the lock arrives, and a group is next in this
// process. The group cannot take the lock, so the session must not renew it for ever.
func TestGift_isOfNoUseForAGroup(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		ctx := &muted{Context: w.Context()}
		go func() { _, _ = w.a.Lock(ctx, w.a.NewSpec(plain, "orders", nil)) }()
		synctest.Wait()
		served := make(chan time.Time)
		go func() {
			holds, _ := w.a.LockAll(w.Context(), w.all(w.a, "orders", "others"), luascripts.AcquireAllReentrant, true)
			for _, h := range holds {
				w.unlock(h)
			}
			served <- time.Now()
		}()
		time.Sleep(time.Millisecond)
		ctx.over.Store(true)
		began := time.Now()
		w.unlock(h)
		select {
		case at := <-served:
			if at.Sub(began) > 0 {
				w.Errorf("the group was served %v after the lock was free", at.Sub(began))
			}
		case <-time.After(10 * leaseTime):
			w.Error("the group was never served")
			_ = w.a.Close(w.Context())
			<-served
		}
	})
}

// A fenced lock is passed on to a waiter that leaves before the lock arrives. The session settles it, so a
// release in the background grants it to the next process. That process may pass on as many tokens as
// any other holder.
func TestSettle_leavesTokensForTheNext(t *testing.T) {
	inBubble(t, func(w *world) {
		fenced := lock.WithFencing()
		h := w.lock(w.a, w.Context(), fenced)
		next := w.goLock(w.b, plain, w.Context(), fenced)
		synctest.Wait()
		h.Unlock(w.Context())
		h = <-next
		far := w.goLock(w.a, plain, w.Context(), fenced)
		synctest.Wait()
		ctx := &muted{Context: w.Context()}
		left := make(chan struct{})
		go func() {
			defer close(left)
			_, _ = w.b.Lock(ctx, w.b.NewSpec(plain, "orders", []lock.Option{fenced}))
		}()
		synctest.Wait()
		time.Sleep(time.Millisecond)
		ctx.over.Store(true)
		w.unlock(h)
		<-left
		after := <-far
		register, err := w.mini.Get("redisson_lock_token:{orders}")
		if latest, _ := strconv.ParseUint(register, 10, 64); err != nil || latest < after.Token()+place.MaxPasses {
			w.Errorf("the register is at %s, and the holder's token is %d", register, after.Token())
		}
		w.unlock(after)
		w.mini.Del("redisson_lock_token:{orders}")
	})
}

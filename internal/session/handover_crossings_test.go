package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/place"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// Each test here fails without one guard of the hand-over, at the moment when a release
// crosses a question, another grant or Close.

// asksOnce is the plain kind. The nth question for "orders" waits until goes is closed: before
// the server has it, or with its answer.
func asksOnce(nth int32, before bool, goes <-chan struct{}) *Kind {
	var asked atomic.Int32
	return gated(func(acquire acquireFunc) acquireFunc {
		return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Question) (luascripts.Acquired, error) {
			waits := k.Lock == "orders" && asked.Add(1) == nth
			if waits && before {
				<-goes
			}
			a, err := acquire(ctx, rdb, k, q)
			if waits && !before {
				<-goes
			}
			return a, err
		}
	}, nil)
}

// justGranted returns a hold of session a, which came by a release a moment ago. The waiter
// behind it is sending the second question for the lock.
func (w *world) justGranted(k *Kind, ctx context.Context) (h lock.Hold, next <-chan lock.Hold) {
	w.Helper()
	h = w.take(w.a, k, w.Context())
	first := w.waitingFor(w.a, w.Context(), w.a.NewSpec(k, "orders", nil))
	next = w.waitingFor(w.a, ctx, w.a.NewSpec(k, "orders", nil))
	time.Sleep(pollTime - place.MaxPassTime/5) // a moment later the first in line asks, just in case
	w.unlock(h)
	h = w.next(first)
	time.Sleep(place.MaxPassTime / 2)
	return h, next
}

// tryElsewhere fails the test if session b cannot have the lock at this moment.
func (w *world) tryElsewhere() {
	w.Helper()
	h, err := w.b.TryLock(w.Context(), w.b.NewSpec(plain, "orders", nil))
	if err != nil {
		w.Errorf("another process does not get it: %v", err)
		return
	}
	w.unlock(h)
}

// meanwhile is a context. The first look at it runs f.
type meanwhile struct {
	context.Context
	once sync.Once
	f    func()
}

func (c *meanwhile) Err() error {
	c.once.Do(c.f)
	return c.Context.Err()
}

// Close comes while a holder gives the lock back. The next in the process is asking Redis at
// this moment, so it is still there. The lock is not passed on to it: it is free for others.
func TestGuard_notPassedOnWhileItCloses(t *testing.T) {
	inBubble(t, func(w *world) {
		const many = 1000 // Close comes to the lock late, as it gives back a part of them at a time
		answer, released := make(chan struct{}), make(chan struct{})
		k := asksOnce(2, true, answer)
		k.Pass = func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, p luascripts.Pass) (luascripts.Passed, error) {
			if k.Lock != "orders" {
				<-released
			}
			return luascripts.PassReentrant(ctx, rdb, k, owner, p)
		}
		for i := range many {
			if _, err := w.a.Lock(w.Context(), w.a.NewSpec(k, fmt.Sprint("x", i), nil)); err != nil {
				w.Fatal(err)
			}
		}
		left := make(chan error, 1)
		h := w.take(w.a, k, w.Context())
		first := w.waitingFor(w.a, w.Context(), w.a.NewSpec(k, "orders", nil))
		go func() {
			_, err := w.a.Lock(w.Context(), w.a.NewSpec(k, "orders", nil))
			left <- err
		}()
		time.Sleep(pollTime - place.MaxPassTime/5) // a moment later the first in line asks, just in case
		w.unlock(h)
		h = w.next(first)
		time.Sleep(place.MaxPassTime / 2)
		closed := make(chan error, 1)
		ctx := &meanwhile{Context: w.Context(), f: func() {
			go func() { closed <- w.a.Close(context.Background()) }()
			synctest.Wait()
		}}
		if err := h.Unlock(ctx); err != nil {
			w.Error(err)
		}
		w.tryElsewhere()
		close(answer)
		if err := <-left; !errors.Is(err, lock.ErrClosed) {
			w.Errorf("the waiter: %v", err)
		}
		close(released)
		if err := <-closed; err != nil {
			w.Error(err)
		}
	})
}

// Close gives the lock back. The next in the process is asking Redis at this moment, so it is
// still there. The release does not name it: the lock is free for others.
func TestGuard_closeReleasesToNobodyHere(t *testing.T) {
	inBubble(t, func(w *world) {
		answer := make(chan struct{})
		k := asksOnce(2, true, answer)
		w.take(w.a, k, w.Context())
		left := make(chan error, 1)
		go func() {
			_, err := w.a.Lock(w.Context(), w.a.NewSpec(k, "orders", nil))
			left <- err
		}()
		time.Sleep(pollTime + time.Millisecond) // it asks, just in case
		closed := make(chan error, 1)
		go func() { closed <- w.a.Close(context.Background()) }()
		synctest.Wait()
		w.tryElsewhere()
		close(answer)
		if err := <-left; !errors.Is(err, lock.ErrClosed) {
			w.Errorf("the waiter: %v", err)
		}
		if err := <-closed; err != nil {
			w.Error(err)
		}
	})
}

// The lock has been passed on, and no waiter has taken it yet: the next in line is asking Redis.
// The lock is lost then, and Redis grants it to a call that waits for several locks. The grant that the
// call gives back does not join the first one in the line: the session would renew one of them without a holder.
func TestGuard_aGiftBesideAGift(t *testing.T) {
	for name, held := range map[string]time.Duration{"passed on": time.Millisecond, "released": 2 * place.MaxPassTime} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				answer := make(chan struct{})
				k := asksOnce(2, false, answer)
				var renewed atomic.Int32
				k.Renew = func(ctx context.Context, rdb rueidis.Client, batch []luascripts.Renewal, lease time.Duration, perCall int) []luascripts.Renewed {
					renewed.Add(int32(len(batch)))
					return luascripts.RenewReentrant(ctx, rdb, batch, lease, perCall)
				}
				other, err := w.b.Lock(w.Context(), w.b.NewSpec(plain, "a", nil))
				if err != nil {
					w.Fatal(err)
				}
				several := make(chan []lock.Hold, 1)
				go func() {
					holds, err := w.a.LockAll(w.Context(), []*Spec{w.a.NewSpec(k, "a", nil), w.a.NewSpec(k, "orders", nil)}, luascripts.AcquireAllReentrant, true)
					if err != nil {
						w.Error(err)
					}
					several <- holds
				}()
				synctest.Wait() // it stands in the line of "a"
				ctx, cancel := context.WithCancel(w.Context())
				h, next := w.justGranted(k, ctx)
				w.mini.Del("orders") // publishes nothing
				w.unlock(h)          // passes it on
				w.unlock(other)
				holds := <-several
				time.Sleep(held)
				for _, h := range holds {
					w.unlock(h)
				}
				cancel()
				<-next
				close(answer)
				time.Sleep(leaseTime)
				if n := renewed.Load(); n != 0 {
					w.Errorf("%d locks are renewed without a holder", n)
				}
			})
		})
	}
}

// The answer to a release is lost, and its repetition finds the lock gone. It was given back,
// and not lost.
func TestGuard_aReleaseThatIsRepeated(t *testing.T) {
	for _, ctx := range []context.Context{context.Background(), t.Context()} {
		t.Run(fmt.Sprintf("can be cancelled %v", ctx.Done() != nil), func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.unlock(w.lock(w.a, w.Context())) // the server knows the scripts
				var lost, released atomic.Int32
				w.observer().Lost = func(context.Context, lock.Event) { lost.Add(1) }
				w.observer().Released = func(context.Context, lock.Event) { released.Add(1) }
				h := w.lock(w.a, w.Context())
				w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DropReply: true}))
				if ctx.Done() != nil {
					ctx = w.Context()
				}
				if err := h.Unlock(ctx); err != nil {
					w.Error(err)
				}
				if lost.Load() != 0 || released.Load() != 1 {
					w.Errorf("the observer hears of %d losses and %d releases", lost.Load(), released.Load())
				}
			})
		})
	}
}

// A release waits for a renewal that is under way. What a re-entry left in doubt is looked at
// meanwhile, and that frees the lock. The release finds it gone: it was given back, and not
// lost.
func TestGuard_aReleaseAfterSettling(t *testing.T) {
	inBubble(t, func(w *world) {
		const ms = time.Millisecond
		renewal := make(chan struct{})
		k := gated(func(acquire acquireFunc) acquireFunc {
			return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Question) (luascripts.Acquired, error) {
				if q.Want > 1 {
					return luascripts.Acquired{}, &luascripts.ReplyError{Script: "a garbled reply"}
				}
				return acquire(ctx, rdb, k, q)
			}
		}, nil)
		k.Renew = func(ctx context.Context, rdb rueidis.Client, batch []luascripts.Renewal, lease time.Duration, perCall int) []luascripts.Renewed {
			<-renewal
			return luascripts.RenewReentrant(ctx, rdb, batch, lease, perCall)
		}
		start := time.Now()
		h := w.take(w.a, k, w.Context())
		const looks = (1 + 2) * opTime // after so long comes the third look
		time.Sleep(leaseTime/3 + 10*ms - looks)
		if _, err := w.a.Lock(h.Context(), w.a.NewSpec(k, "orders", nil)); err == nil {
			w.Error("the re-entry did not break off")
		}
		time.Sleep(time.Until(start.Add(leaseTime/3 + 5*ms))) // it is being renewed
		unlocked := make(chan error, 1)
		go func() { unlocked <- h.Unlock(w.Context()) }()
		time.Sleep(25 * ms) // and looked at again: as late as this if the first look found the turn taken
		synctest.Wait()
		select {
		case err := <-unlocked:
			w.Errorf("the release did not wait for the renewal: %v", err)
		default:
		}
		if w.mini.Exists("orders") {
			w.Error("it was not looked at again")
		}
		close(renewal)
		if err := <-unlocked; err != nil {
			w.Error(err)
		}
	})
}

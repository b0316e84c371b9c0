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

// A lock that is to stand is gone from Redis before its time. Unlock says so.
func TestMinHold_gone(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context(), lock.WithMinHold(minute))
		w.mini.Del("orders")
		if err := h.Unlock(w.Context()); !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrLost) {
			w.Error(err)
		}
	})
}

// An Unlock of a lock that is to stand ends with its context, and is answered after that. Nothing is left to do, and nothing more
// is sent.
func TestMinHold_unlockAnsweredLate(t *testing.T) {
	inBubble(t, func(w *world) {
		var sent atomic.Int64
		answer := make(chan struct{})
		k := hookable()
		k.Retain = func(ctx context.Context, rdb rueidis.Client, keys luascripts.Keys, owner string, rest time.Duration) (luascripts.Verdict, error) {
			sent.Add(1)
			v, err := plain.Retain(ctx, rdb, keys, owner, rest)
			<-answer
			return v, err
		}
		h := w.take(w.a, k, w.Context(), lock.WithMinHold(minute))
		if err := h.Unlock(w.within(time.Second)); !errors.Is(err, context.DeadlineExceeded) {
			w.Error(err)
		}
		close(answer)
		synctest.Wait()
		time.Sleep(minute)
		if n := sent.Load(); n != 1 {
			w.Errorf("%d commands", n)
		}
	})
}

// A lock is passed on to a call with WithMinHold, and is gone before its lease is lengthened. The call says that, and not that Redis
// gives no answer.
func TestMinHold_lostAtOnce(t *testing.T) {
	inBubble(t, func(w *world) {
		k := hookable()
		k.Renew = func(ctx context.Context, rdb rueidis.Client, batch []luascripts.Renewal, lease time.Duration, perCall int) []luascripts.Renewed {
			w.mini.Del("orders")
			return plain.Renew(ctx, rdb, batch, lease, perCall)
		}
		h := w.take(w.a, k, w.Context())
		ended := make(chan error)
		go func() {
			_, err := w.a.Lock(w.Context(), w.a.NewSpec(k, "orders", []lock.Option{lock.WithMinHold(minute)}))
			ended <- err
		}()
		synctest.Wait()
		time.Sleep(time.Millisecond) // the hold is old enough to be passed on
		w.unlock(h)
		if err := <-ended; !errors.Is(err, lock.ErrLost) || errors.Is(err, lock.ErrUnavailable) {
			w.Error(err)
		}
	})
}

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

// Several locks are granted by an answer that takes longer than the lease of one of them. That
// can be chance, and the call asks again; but not for ever.
func TestGroup_anAnswerThatIsTooLate(t *testing.T) {
	for _, always := range []bool{false, true} {
		name := map[bool]string{false: "once", true: "each time"}[always]
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				const lease, slow = time.Second, 2 * time.Second
				asked := 0
				script := func(ctx context.Context, rdb rueidis.Client, all []luascripts.Taking) (luascripts.Acquired, int, error) {
					a, i, err := luascripts.AcquireAllReentrant(ctx, rdb, all)
					if asked++; always || asked == 1 {
						time.Sleep(slow)
					}
					return a, i, err
				}
				ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
				defer cancel()
				specs := []*Spec{w.a.NewSpec(plain, "a", nil), w.a.NewSpec(plain, "b", []lock.Option{lock.WithFixedLease(lease)})}
				holds, err := w.a.LockAll(ctx, specs, script, true)
				switch {
				case !always && err != nil:
					w.Error(err)
				case always && (!errors.As(err, new(tooLate)) || ctx.Err() != nil):
					w.Errorf("%v, want that the answer is too late", err)
				}
				for _, h := range holds {
					w.unlock(h)
				}
			})
		})
	}
}

// The first question for several locks is answered while the call pauses before it asks again.
// They were granted: the call asks at once, and has them.
func TestGroup_anAnswerWhileItPauses(t *testing.T) {
	inBubble(t, func(w *world) {
		answer, forgotten := make(chan struct{}), make(chan struct{})
		var asked atomic.Int32
		var latest atomic.Pointer[time.Time]
		got := make(chan []lock.Hold, 1)
		go func() {
			holds, err := w.a.LockAll(w.Context(), w.all(w.a, "a", "b"), func(ctx context.Context, rdb rueidis.Client, all []luascripts.Taking) (luascripts.Acquired, int, error) {
				now := time.Now()
				latest.Store(&now)
				switch n := asked.Add(1); {
				case n == 1:
					a, i, err := luascripts.AcquireAllReentrant(ctx, rdb, all)
					<-answer
					return a, i, err
				case n <= 5: // so that the pause is long enough to be seen
					<-forgotten
					return luascripts.Acquired{}, 0, &luascripts.UnknownError{}
				}
				return luascripts.AcquireAllReentrant(ctx, rdb, all)
			}, true)
			if err != nil {
				w.Error(err)
			}
			got <- holds
		}()
		for asked.Load() < 5 {
			time.Sleep(time.Millisecond)
			synctest.Wait()
		}
		time.Sleep(time.Until(latest.Load().Add(opTime + time.Millisecond))) // it pauses for longer than that
		start := time.Now()
		close(answer)
		for _, h := range <-got {
			w.unlock(h)
		}
		if took := time.Since(start); took != 0 {
			w.Errorf("it has them %v after the answer", took)
		}
		close(forgotten)
	})
}

// The call ends while its question for several locks is answered. It has none of them then.
func TestGroup_theAnswerCrossesTheEndOfTheWait(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := &muted{Context: w.Context()}
		holds, err := w.a.LockAll(ctx, w.all(w.a, "a", "b"), func(c context.Context, rdb rueidis.Client, all []luascripts.Taking) (luascripts.Acquired, int, error) {
			a, i, err := luascripts.AcquireAllReentrant(c, rdb, all)
			ctx.over.Store(true)
			return a, i, err
		}, true)
		if len(holds) != 0 || errors.Is(err, lock.ErrNotAcquired) || !errors.Is(err, context.Canceled) {
			w.Errorf("%d holds, %v", len(holds), err)
		}
		synctest.Wait()
		if keys := w.mini.Keys(); len(keys) != 0 {
			w.Errorf("left behind: %q", keys)
		}
	})
}

// A call for several locks stands behind those that wait for one of them, and asks nothing
// before it is the first.
func TestGroup_asksInTurn(t *testing.T) {
	inBubble(t, func(w *world) {
		held := w.take(w.b, plain, w.Context())
		ahead := w.gets(w.a, plain, w.Context())
		var asked atomic.Int64
		script := func(ctx context.Context, rdb rueidis.Client, all []luascripts.Taking) (luascripts.Acquired, int, error) {
			asked.Add(1)
			return luascripts.AcquireAllReentrant(ctx, rdb, all)
		}
		got := make(chan []lock.Hold)
		go func() {
			holds, err := w.a.LockAll(w.Context(), w.all(w.a, "a", "orders"), script, true)
			if err != nil {
				t.Error(err)
			}
			got <- holds
		}()
		time.Sleep(10 * pollTime)
		if n := asked.Load(); n != 0 {
			t.Errorf("it asked %d times while another waiter was ahead", n)
		}
		w.unlock(held)
		w.unlock(<-ahead)
		for _, h := range <-got {
			w.unlock(h)
		}
	})
}

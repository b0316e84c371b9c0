package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// all makes the specs of several plain locks.
func (w *world) all(s *Session, names ...string) (specs []*Spec) {
	for _, name := range names {
		specs = append(specs, s.NewSpec(plain, name, nil))
	}
	return specs
}

// together takes all locks at once, or one by one in this order where that is not to be
// had, as package multilock does.
func together(s *Session, ctx context.Context, specs []*Spec) (holds []lock.Hold, err error) {
	ctx = lock.ContextWithNewOwner(ctx)
	holds, err = s.LockAll(ctx, specs, luascripts.AcquireAllReentrant, true)
	if !errors.Is(err, errors.ErrUnsupported) {
		return holds, err
	}
	for _, spec := range specs {
		h, err := s.Lock(ctx, spec)
		if err != nil {
			for _, h := range holds {
				_ = h.Unlock(ctx)
			}
			return nil, err
		}
		holds = append(holds, h)
	}
	return holds, nil
}

func (w *world) takeAll(s *Session, ctx context.Context, names ...string) []lock.Hold {
	w.Helper()
	holds, err := together(s, ctx, w.all(s, names...))
	if err != nil {
		w.Fatal(err)
	}
	return holds
}

func TestGroup_oneScriptForAll(t *testing.T) {
	inBubble(t, func(w *world) {
		for _, h := range w.takeAll(w.a, w.Context(), "warm", "up") {
			w.unlock(h)
		}
		var names []string
		for i := range 10 {
			names = append(names, fmt.Sprint("lock", 9-i))
		}
		n := w.scripts()
		holds := w.takeAll(w.a, w.Context(), names...)
		if got := n.Load(); got != 1 {
			w.Errorf("ten locks took %d commands", got)
		}
		for i, h := range holds {
			if got := w.mini.HGet(names[i], h.Owner()); got != "1" {
				w.Errorf("hold %d is not of %q: %q", i, names[i], got)
			}
		}
		// A hold of the group is a hold as any: it re-enters, is renewed, and is
		// given back by itself.
		again, err := w.a.Lock(holds[3].Context(), w.a.NewSpec(plain, names[3], nil))
		if err != nil {
			w.Fatal(err)
		}
		w.unlock(again)
		if _, err := w.a.LockAll(holds[0].Context(), w.all(w.a, names[0], "other"), luascripts.AcquireAllReentrant, true); !errors.Is(err, errors.ErrUnsupported) {
			w.Errorf("a group with a lock that its owner holds: %v", err)
		}
		time.Sleep(10 * leaseTime)
		for _, h := range holds {
			if err := h.Err(); err != nil {
				w.Error(err)
			}
			w.unlock(h)
		}
	})
}

// While another owner has one of the locks, the waiter holds none of them, and no other owner waits for it.
func TestGroup_waitsWithNothing(t *testing.T) {
	inBubble(t, func(w *world) {
		other, err := w.b.Lock(w.Context(), w.b.NewSpec(plain, "b", nil))
		if err != nil {
			w.Fatal(err)
		}
		done := make(chan time.Time)
		go func() {
			for _, h := range w.takeAll(w.a, w.Context(), "c", "b", "a") {
				w.unlock(h)
			}
			done <- time.Now()
		}()
		synctest.Wait()
		time.Sleep(pollTime + pollTime/2) // between two questions: otherwise the waiter hears of the test's own tries
		n := w.scripts()
		for range 10 {
			time.Sleep(pollTime)
			for _, name := range []string{"a", "c"} {
				for _, s := range []*Session{w.b, w.a} {
					h, err := s.TryLock(w.Context(), s.NewSpec(plain, name, nil))
					if err != nil {
						w.Fatalf("%q is not free: %v", name, err)
					}
					w.unlock(h)
				}
			}
		}
		if asked := n.Load() - 2*10*2; asked < 9 || asked > 11 { // less what a itself locked and unlocked
			w.Errorf("it asked %d times in ten polls", asked)
		}
		freed := time.Now()
		w.unlock(other)
		if took := (<-done).Sub(freed); took != 0 {
			w.Errorf("served %v after the release", took)
		}
	})
}

func TestGroup_endsOfAWait(t *testing.T) {
	inBubble(t, func(w *world) {
		other, err := w.b.Lock(w.Context(), w.b.NewSpec(plain, "b", nil))
		if err != nil {
			w.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(w.Context(), 10*time.Second)
		defer cancel()
		var e *lock.Error
		_, err = w.a.LockAll(ctx, w.all(w.a, "a", "b"), luascripts.AcquireAllReentrant, true)
		if !errors.Is(err, lock.ErrNotAcquired) || !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &e) || e.Op != "lock" || e.Name != "b" {
			w.Errorf("a wait that ctx ended: %v", err)
		}
		_, err = w.a.LockAll(w.Context(), w.all(w.a, "a", "b"), luascripts.AcquireAllReentrant, false)
		if !errors.Is(err, lock.ErrNotAcquired) || !errors.As(err, &e) || e.Op != "trylock" || e.Name != "b" {
			w.Errorf("a try: %v", err)
		}
		w.unlock(other)
		w.rdb.Do(w.Context(), w.rdb.B().Set().Key("s").Value("a string").Build())
		_, err = w.a.LockAll(w.Context(), w.all(w.a, "a", "s"), luascripts.AcquireAllReentrant, true)
		if !errors.Is(err, lock.ErrWrongType) || !errors.As(err, &e) || e.Name != "s" {
			w.Errorf("a foreign key: %v", err)
		}
		w.mini.Del("s")
	})
}

// The limit of WithWait ends the wait for the owner's turn, too, and says so as it does of one lock.
func TestGroup_limitOfTheTurn(t *testing.T) {
	inBubble(t, func(w *world) {
		other, ctx := w.lock(w.b, w.Context()), lock.ContextWithNewOwner(w.Context())
		first := w.waiting(w.a, ctx) // has the turn
		specs := append(w.all(w.a, "b"), w.a.NewSpec(plain, "orders", []lock.Option{lock.WithWait(5 * time.Second)}))
		start := time.Now()
		_, err := w.a.LockAll(ctx, specs, luascripts.AcquireAllReentrant, true)
		if took := time.Since(start); took != 5*time.Second || !errors.Is(err, lock.ErrNotAcquired) || !errors.Is(err, os.ErrDeadlineExceeded) {
			w.Errorf("%v after %v", err, took)
		}
		w.about("orders", err)
		w.unlock(other)
		w.unlock(<-first)
	})
}

// A group that is in line for one lock and refused another makes way at once.
func TestGroup_passesOnWhatItCannotUse(t *testing.T) {
	inBubble(t, func(w *world) {
		var others []lock.Hold
		for _, name := range []string{"b", "c"} {
			h, err := w.b.Lock(w.Context(), w.b.NewSpec(plain, name, nil))
			if err != nil {
				w.Fatal(err)
			}
			others = append(others, h)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			for _, h := range w.takeAll(w.a, w.Context(), "b", "c") {
				w.unlock(h)
			}
		})
		synctest.Wait() // it stands in the line of b
		var served time.Time
		wg.Go(func() {
			h, err := w.a.Lock(w.Context(), w.a.NewSpec(plain, "b", nil))
			if err != nil {
				w.Error(err)
				return
			}
			served = time.Now()
			w.unlock(h)
		})
		synctest.Wait()
		time.Sleep(10*pollTime + pollTime/2)
		freed := time.Now()
		w.unlock(others[0])
		synctest.Wait()
		if served.IsZero() || served.Sub(freed) != 0 {
			w.Errorf("a call that wants nothing else was served %v after the release", served.Sub(freed))
		}
		w.unlock(others[1])
		wg.Wait()
	})
}

func TestGroup_tryDoesNotOvertake(t *testing.T) {
	inBubble(t, func(w *world) {
		h, err := w.b.Lock(w.Context(), w.b.NewSpec(plain, "a", nil))
		if err != nil {
			w.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			h, err := w.a.Lock(w.Context(), w.a.NewSpec(plain, "a", nil))
			if err != nil {
				w.Error(err)
				return
			}
			w.unlock(h)
		}()
		synctest.Wait()
		w.mini.Del("a") // publishes nothing
		if _, err := w.a.LockAll(w.Context(), w.all(w.a, "b", "a"), luascripts.AcquireAllReentrant, false); !errors.Is(err, lock.ErrNotAcquired) {
			w.Errorf("past a waiter of the same process: %v", err)
		}
		<-done
		if err := h.Unlock(w.Context()); !errors.Is(err, lock.ErrLost) {
			w.Error(err)
		}
	})
}

// The caller leaves while the answer is under way: nothing stays behind.
func TestGroup_abandoned(t *testing.T) {
	inBubble(t, func(w *world) {
		for _, h := range w.takeAll(w.a, w.Context(), "a", "b") {
			w.unlock(h) // the scripts are known now
		}
		for _, lostReply := range []bool{false, true} {
			w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayReply: time.Second, DropReply: lostReply}))
			ctx, cancel := context.WithTimeout(w.Context(), 500*time.Millisecond)
			if _, err := w.a.LockAll(ctx, w.all(w.a, "a", "b"), luascripts.AcquireAllReentrant, true); !errors.Is(err, context.DeadlineExceeded) {
				w.Error(err)
			}
			cancel()
			time.Sleep(2*opTime + 2*time.Second)
			if keys := w.mini.Keys(); len(keys) != 0 {
				w.Errorf("left behind (reply lost: %v): %q", lostReply, keys)
			}
		}
	})
}

// Groups overlap in all ways, with single locks among them. All calls get their locks,
// and no two owners ever hold the same lock.
func TestGroup_noDeadlock(t *testing.T) {
	inBubble(t, func(w *world) {
		var inside [5]atomic.Int32
		var wg sync.WaitGroup
		for i := range 20 {
			s := []*Session{w.a, w.b}[i%2]
			wg.Go(func() {
				for j := range 20 {
					var names []string
					for k := range 5 {
						if (i*7+j*3)>>k&1 == 1 {
							names = append(names, fmt.Sprint(k))
						}
					}
					if len(names) == 0 {
						names = []string{"0"}
					}
					if i%3 == 0 {
						names = names[:1]
					}
					holds := w.takeAll(s, w.Context(), names...)
					for _, name := range names {
						if n := inside[strings.IndexByte("01234", name[0])].Add(1); n != 1 {
							w.Errorf("%d inside %s", n, name)
						}
					}
					time.Sleep(time.Millisecond)
					for _, name := range names {
						inside[strings.IndexByte("01234", name[0])].Add(-1)
					}
					for _, h := range holds {
						w.unlock(h)
					}
				}
			})
		}
		wg.Wait()
	})
}

// Two locks are busy all the time, and never free together. A call that wants both has
// them in turn with the others.
func TestGroup_busyLocks(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx, cancel := context.WithCancel(w.Context())
		var wg sync.WaitGroup
		for _, name := range []string{"a", "b"} {
			for i := range 4 {
				s := []*Session{w.a, w.b}[i%2]
				wg.Go(func() {
					for ctx.Err() == nil {
						h, err := s.Lock(w.Context(), s.NewSpec(plain, name, nil))
						if err != nil {
							w.Error(err)
							return
						}
						time.Sleep(time.Duration(3+i) * time.Millisecond)
						w.unlock(h)
					}
				})
			}
		}
		time.Sleep(50 * time.Millisecond)
		const rounds = 10
		start := time.Now()
		for range rounds {
			for _, h := range w.takeAll(w.a, w.Context(), "a", "b") {
				w.unlock(h)
			}
		}
		if took := time.Since(start); took > rounds*3*pollTime {
			w.Errorf("%d times took %v", rounds, took)
		}
		cancel()
		wg.Wait()
	})
}

// Close comes between the first hold of a group and the second, and finds the first:
// each thinks that the other gives it back.
func TestGroup_closedInTheMiddle(t *testing.T) {
	inBubble(t, func(w *world) {
		for i := range 300 { // so that Close comes to the group late
			if _, err := w.a.Lock(w.Context(), w.a.NewSpec(plain, fmt.Sprint("x", i), nil)); err != nil {
				w.Fatal(err)
			}
		}
		w.wire.OnRequest(func([][]byte) redistest.Action { return redistest.Action{DelayReply: 10 * time.Millisecond} })
		var once sync.Once
		closed := make(chan error, 1)
		before := betweenGrants
		defer func() { betweenGrants = before }()
		betweenGrants = func() {
			once.Do(func() {
				go func() { closed <- w.a.Close(context.Background()) }()
				<-w.a.closer.closing
			})
		}
		if _, err := w.a.LockAll(w.Context(), w.all(w.a, "a", "b"), luascripts.AcquireAllReentrant, true); !errors.Is(err, lock.ErrClosed) {
			w.Error(err)
		}
		if err := <-closed; err != nil {
			w.Error(err)
		}
		if keys := w.mini.Keys(); len(keys) != 0 {
			w.Errorf("left behind: %q", keys)
		}
	})
}

// TryLock ends within the operation time-out, also when the owner's turn is taken.
func TestGroup_tryIsBounded(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		h := w.lock(w.a, ctx)
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayReply: 12 * time.Second}))
		done := make(chan struct{})
		go func() {
			defer close(done)
			again, err := w.a.Lock(ctx, w.a.NewSpec(plain, "orders", nil))
			if err != nil {
				w.Error(err)
				return
			}
			w.unlock(again)
		}()
		synctest.Wait()
		began := time.Now()
		if _, err := w.a.LockAll(ctx, w.all(w.a, "orders", "other"), luascripts.AcquireAllReentrant, false); err == nil || time.Since(began) > opTime {
			w.Errorf("%v after %v, the operation time-out is %v", err, time.Since(began), opTime)
		}
		<-done
		w.unlock(h)
	})
}

// A question that broke off was carried out, and one of the locks then ran out. What
// is left of it must not be held while the group waits for that one.
func TestGroup_keepsNothingOfABrokenQuestion(t *testing.T) {
	inBubble(t, func(w *world) {
		for _, h := range w.takeAll(w.a, w.Context(), "a", "b") {
			w.unlock(h) // the scripts are known now
		}
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayReply: 6 * time.Second}))
		specs := []*Spec{w.a.NewSpec(plain, "a", []lock.Option{lock.WithFixedLease(time.Second)}), w.a.NewSpec(plain, "b", nil)}
		ctx, cancel := context.WithCancel(w.Context())
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			if _, err := w.a.LockAll(ctx, specs, luascripts.AcquireAllReentrant, true); !errors.Is(err, context.Canceled) {
				w.Error(err)
			}
		}()
		time.Sleep(2 * time.Second)
		other, err := w.b.Lock(w.Context(), w.b.NewSpec(plain, "a", nil))
		if err != nil {
			w.Fatal(err)
		}
		time.Sleep(15 * time.Second)
		h, err := w.b.TryLock(w.Context(), w.b.NewSpec(plain, "b", nil))
		if err != nil {
			w.Fatalf("b, while the group waits for a: %v", err)
		}
		w.unlock(h)
		cancel()
		<-gone
		w.unlock(other)
	})
}

// A question for several locks breaks off, and the second is granted. The server carries the
// first one out when all is given back: the locks are free again soon.
func TestGroup_aQuestionCarriedOutLate(t *testing.T) {
	inBubble(t, func(w *world) {
		asked := 0
		var broken []luascripts.Taking
		holds, err := w.a.LockAll(w.Context(), w.all(w.a, "a", "b"), func(ctx context.Context, rdb rueidis.Client, all []luascripts.Taking) (luascripts.Acquired, int, error) {
			if asked++; asked == 1 {
				broken = all
				return luascripts.Acquired{}, 0, io.EOF
			}
			return luascripts.AcquireAllReentrant(ctx, rdb, all)
		}, true)
		if err != nil {
			w.Fatal(err)
		}
		for _, h := range holds {
			w.unlock(h)
		}
		if a, _, err := luascripts.AcquireAllReentrant(w.Context(), w.rdb, broken); err != nil || a.Verdict != luascripts.Done {
			w.Fatalf("%+v, %v", a, err)
		}
		time.Sleep(opTime + time.Millisecond)
		if keys := w.mini.Keys(); len(keys) != 0 {
			w.Errorf("held by nobody: %q", keys)
		}
	})
}

// 1: A call for two locks takes them, and its answer is lost. 2: Meanwhile another call of
// the process waits for one of them. The second call is not kept waiting by what the first
// one does not know of.
func TestGroup_lostBehindAnother(t *testing.T) {
	inBubble(t, func(w *world) {
		w.unlock(w.lock(w.a, w.Context()))
		w.wire.OnRequest(redistest.Once("EVAL", redistest.Action{DelayReply: 100 * time.Millisecond, DropReply: true}))
		ctx, cancel := context.WithCancel(w.Context())
		defer cancel()
		specs := []*Spec{w.a.NewSpec(plain, "orders", nil), w.a.NewSpec(plain, "stock", nil)}
		ended := make(chan []lock.Hold, 1)
		go func() { // 1
			holds, _ := w.a.LockAll(ctx, specs, luascripts.AcquireAllReentrant, true)
			ended <- holds
		}()
		synctest.Wait()
		start := time.Now()
		waiter := w.waiting(w.a, w.Context()) // 2
		h := <-waiter
		if took := time.Since(start); took > leaseTime/2 {
			w.Errorf("it waited for %v", took)
		}
		w.unlock(h)
		for _, h := range <-ended {
			w.unlock(h)
		}
	})
}

// A call for several locks is refused. The message that the lock is free comes before the answer, at
// a channel that is still subscribed for an earlier waiter. It is not missed.
func TestGroup_releasedBeforeTheAnswer(t *testing.T) {
	inBubble(t, func(w *world) {
		for _, h := range w.takeAll(w.a, w.Context(), "other", "orders") {
			w.unlock(h) // the server knows the script
		}
		w.lingering(plain)
		h := w.lock(w.b, w.Context())
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayReply: 20 * time.Millisecond}))
		time.AfterFunc(10*time.Millisecond, func() { w.unlock(h) })
		began := time.Now()
		for _, h := range w.takeAll(w.a, w.Context(), "other", "orders") {
			w.unlock(h)
		}
		if took := time.Since(began); took > pollTime/2 {
			w.Errorf("it waited for %v", took)
		}
	})
}

// lingering has session a subscribed to the channel of the lock, with no waiter.
func (w *world) lingering(k *Kind) {
	w.Helper()
	h := w.take(w.b, k, w.Context())
	next := w.waitingFor(w.a, w.Context(), w.a.NewSpec(k, "orders", nil))
	w.unlock(h)
	w.unlock(<-next)
	time.Sleep(time.Second)
}

// The same for a reader that rides along with the question of a TryLock.
func TestShare_releasedBeforeTheAnswer(t *testing.T) {
	inBubble(t, func(w *world) {
		w.unlock(w.take(w.a, reading, w.Context())) // the server knows the script
		w.lingering(writing)
		h := w.take(w.b, writing, w.Context())
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayReply: 20 * time.Millisecond}))
		time.AfterFunc(10*time.Millisecond, func() { w.unlock(h) })
		go func() {
			if _, err := w.a.TryLock(w.Context(), w.a.NewSpec(reading, "orders", nil)); !errors.Is(err, lock.ErrNotAcquired) {
				w.Error(err)
			}
		}()
		synctest.Wait()
		began := time.Now()
		w.unlock(w.take(w.a, reading, w.Context()))
		if took := time.Since(began); took > pollTime/2 {
			w.Errorf("it waited for %v", took)
		}
	})
}

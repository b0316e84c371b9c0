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

	"github.com/leasehold-go/leasehold/internal/keys"
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
		const rounds = 5
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

// Each test here fails without one guard of a call for several locks.

// asksAll is luascripts.AcquireAllReentrant, and counts the questions. before runs before the nth is sent, and after when it
// was answered.
func asksAll(before, after func(n int32)) (TakeAll, *atomic.Int32) {
	asked := new(atomic.Int32)
	return func(ctx context.Context, rdb rueidis.Client, all []luascripts.Taking) (luascripts.Acquired, int, error) {
		n := asked.Add(1)
		if before != nil {
			before(n)
		}
		a, i, err := luascripts.AcquireAllReentrant(ctx, rdb, all)
		if after != nil {
			after(n)
		}
		return a, i, err
	}, asked
}

// about fails the test unless err is about the lock of that name.
func (w *world) about(name string, err error) {
	w.Helper()
	if e := new(lock.Error); !errors.As(err, &e) || e.Name != name {
		w.Errorf("%v, want an error about %q", err, name)
	}
}

// One script takes locks together that are different, of one slot, and without replicas and registers.
func TestCanGroup(t *testing.T) {
	inBubble(t, func(w *world) {
		spec := func(name string, opts ...lock.Option) *Spec { return w.a.NewSpec(plain, name, opts) }
		a := spec("{a}1")
		for name, c := range map[string]struct {
			specs         []*Spec
			alone, sliced bool
		}{
			"none":              {nil, false, false},
			"one":               {[]*Spec{a}, true, true},
			"of one slot":       {[]*Spec{a, spec("{a}2")}, true, true},
			"of two slots":      {[]*Spec{a, spec("{b}1")}, true, false},
			"a name is wrong":   {[]*Spec{a, spec("")}, false, false},
			"replicas":          {[]*Spec{a, spec("{a}2", lock.WithReplicas(1, time.Second))}, false, false},
			"a register":        {[]*Spec{a, spec("{a}2", lock.WithFencing())}, false, false},
			"one of them twice": {[]*Spec{a, spec("{a}2"), spec("{a}1")}, false, false},
		} {
			if can := w.a.CanGroup(c.specs); can != c.alone {
				w.Errorf("%s: %v, want %v", name, can, c.alone)
			}
			w.a.nodes.sliced = true
			if can := w.a.CanGroup(c.specs); can != c.sliced {
				w.Errorf("%s, on a cluster: %v, want %v", name, can, c.sliced)
			}
			w.a.nodes.sliced = false
		}
	})
}

// A try for several locks ends with the operation time-out, however much of that the first question took.
func TestGroup_aTryEndsInTime(t *testing.T) {
	inBubble(t, func(w *world) {
		never := make(chan struct{})
		asked := 0
		start := time.Now()
		_, err := w.a.LockAll(w.Context(), w.all(w.a, "a", "b"), func(context.Context, rueidis.Client, []luascripts.Taking) (a luascripts.Acquired, i int, err error) {
			if asked++; asked == 1 {
				time.Sleep(opTime - pollTime)
			} else {
				<-never
			}
			return a, i, io.EOF
		}, false)
		if took := time.Since(start); took != opTime || !errors.Is(err, lock.ErrUnavailable) {
			w.Errorf("%v after %v", err, took)
		}
		close(never)
	})
}

// The time for which a try waits for its owner's turn counts, too.
func TestGroup_aTryThatWaitsForItsTurn(t *testing.T) {
	inBubble(t, func(w *world) {
		never := make(chan struct{})
		owner := lock.ContextWithNewOwner(w.Context())
		h := w.lock(w.a, owner)
		turn := h.(*hold).By.Turn
		turn <- struct{}{} // another call of this owner has the turn
		time.AfterFunc(opTime-pollTime, func() {
			w.unlock(h)
			<-turn
		})
		start := time.Now()
		_, err := w.a.LockAll(owner, w.all(w.a, "b", "orders"), func(context.Context, rueidis.Client, []luascripts.Taking) (a luascripts.Acquired, i int, err error) {
			<-never
			return a, i, io.EOF
		}, false)
		if took := time.Since(start); took != opTime || err == nil {
			w.Errorf("%v after %v", err, took)
		}
		close(never)
	})
}

// A try for several locks names the one for which another call of the process waits.
func TestGroup_aTryNamesTheLockWithAWaiter(t *testing.T) {
	inBubble(t, func(w *world) {
		other := w.lock(w.b, w.Context())
		waiter := w.waiting(w.a, w.Context())
		_, err := w.a.LockAll(w.Context(), w.all(w.a, "a", "orders"), luascripts.AcquireAllReentrant, false)
		w.about("orders", err)
		w.unlock(other)
		w.unlock(w.next(waiter))
	})
}

// The shortest wait that one of the locks allows ends the wait for all.
func TestGroup_theShortestWait(t *testing.T) {
	const short, long = 2 * time.Second, 5 * time.Second
	for _, waits := range [][2]time.Duration{{short, long}, {long, short}, {short, 0}, {0, short}} {
		t.Run(fmt.Sprint(waits), func(t *testing.T) {
			inBubble(t, func(w *world) {
				other := w.lock(w.b, w.Context())
				var specs []*Spec
				for i, name := range []string{"a", "orders"} {
					var opts []lock.Option
					if waits[i] > 0 {
						opts = append(opts, lock.WithWait(waits[i]))
					}
					specs = append(specs, w.a.NewSpec(plain, name, opts))
				}
				start := time.Now()
				_, err := w.a.LockAll(w.within(time.Minute), specs, luascripts.AcquireAllReentrant, true)
				if took := time.Since(start); took != short || !errors.Is(err, os.ErrDeadlineExceeded) {
					w.Errorf("%v after %v", err, took)
				}
				w.unlock(other)
			})
		})
	}
}

// A context that is over ends the call before anything else does: also where the owner holds one of the locks, which a caller
// would take for a reason to take them one by one.
func TestGroup_aContextThatIsOver(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		ctx, cancel := context.WithCancel(h.Context())
		cancel()
		if _, err := w.a.LockAll(ctx, w.all(w.a, "a", "orders"), luascripts.AcquireAllReentrant, true); !errors.Is(err, context.Canceled) || errors.Is(err, errors.ErrUnsupported) {
			w.Error(err)
		}
		w.unlock(h)
	})
}

// After Close, no call for several locks begins.
func TestGroup_afterClose(t *testing.T) {
	inBubble(t, func(w *world) {
		if err := w.a.Close(w.Context()); err != nil {
			w.Error(err)
		}
		for _, wait := range []bool{false, true} {
			if _, err := w.a.LockAll(w.Context(), w.all(w.a, "a", "b"), luascripts.AcquireAllReentrant, wait); !errors.Is(err, lock.ErrClosed) {
				w.Error(err)
			}
		}
	})
}

// Two calls whose contexts name no owner are two owners.
func TestGroup_twoOwners(t *testing.T) {
	inBubble(t, func(w *world) {
		holds := w.all(w.a, "a", "b")
		first, err := w.a.LockAll(w.Context(), holds, luascripts.AcquireAllReentrant, true)
		if err != nil {
			w.Fatal(err)
		}
		if _, err := w.a.LockAll(w.Context(), w.all(w.a, "a", "c"), luascripts.AcquireAllReentrant, false); !errors.Is(err, lock.ErrNotAcquired) {
			w.Errorf("another call: %v", err)
		}
		for _, h := range first {
			w.unlock(h)
		}
	})
}

// A try that is refused does not listen: it waits for nothing.
func TestGroup_aRefusedTryDoesNotListen(t *testing.T) {
	inBubble(t, func(w *world) {
		other := w.lock(w.b, w.Context())
		_, err := w.a.LockAll(w.Context(), w.all(w.a, "a", "orders"), luascripts.AcquireAllReentrant, false)
		w.about("orders", err)
		if n := w.a.hub.Channels(); n != 0 {
			w.Errorf("it listens to %d channels", n)
		}
		w.unlock(other)
	})
}

// A call stands in line for one lock, and another turns out to be no lock. The call leaves the line: the next caller is the first.
func TestGroup_aForeignKeyWhileItWaits(t *testing.T) {
	inBubble(t, func(w *world) {
		other := w.lock(w.b, w.Context())
		failed := make(chan error, 1)
		go func() {
			_, err := w.a.LockAll(w.Context(), w.all(w.a, "a", "orders"), luascripts.AcquireAllReentrant, true)
			failed <- err
		}()
		synctest.Wait()
		w.rdb.Do(w.Context(), w.rdb.B().Set().Key("a").Value("a string").Build())
		w.unlock(other)
		err := <-failed
		w.about("a", err)
		if !errors.Is(err, lock.ErrWrongType) {
			w.Error(err)
		}
		h, err := w.a.TryLock(w.Context(), w.a.NewSpec(plain, "orders", nil))
		if err != nil {
			w.Fatal(err)
		}
		w.unlock(h)
		w.mini.Del("a")
	})
}

// An error reply ends the call, and says so. Only that of a cluster that keeps the locks in different slots is a reason to take
// them one by one.
func TestGroup_anErrorReply(t *testing.T) {
	inBubble(t, func(w *world) {
		for text, unsupported := range map[string]bool{
			"CROSSSLOT Keys in request don't hash to the same slot": true,
			"ERR something else": false,
		} {
			_, err := w.a.LockAll(w.Context(), w.all(w.a, "a", "b"), func(ctx context.Context, rdb rueidis.Client, _ []luascripts.Taking) (a luascripts.Acquired, i int, err error) {
				return a, i, rdb.Do(ctx, rdb.B().Eval().Script("return redis.error_reply(ARGV[1])").Numkeys(0).Arg(text).Build()).Error()
			}, true)
			if err == nil || errors.Is(err, errors.ErrUnsupported) != unsupported {
				w.Errorf("%s: %v", text, err)
			}
		}
	})
}

// A client that took several locks together hears of a forced unlock.
func TestGroup_hearsOfForce(t *testing.T) {
	inBubble(t, func(w *world) {
		c := testConfig()
		c.Hears = true
		s := New(w.mini.Client(w), c)
		holds, err := s.LockAll(w.Context(), w.all(s, "a", "b"), luascripts.AcquireAllReentrant, true)
		if err != nil {
			w.Fatal(err)
		}
		time.Sleep(2*hearAfter + time.Millisecond)
		if !s.hub.Lingers(keys.Client(s.id)) {
			w.Error("it does not listen")
		}
		for _, h := range holds {
			w.unlock(h)
		}
		if err := s.Close(w.Context()); err != nil {
			w.Error(err)
		}
	})
}

// The answer to a question for several locks takes so long that the client library may have sent a copy. The copy is carried
// out when all is given back: the locks are free again soon.
func TestGroup_aCopyByALifetime(t *testing.T) {
	inBubble(t, func(w *world) {
		var sent []luascripts.Taking
		holds, err := w.a.LockAll(w.Context(), w.all(w.a, "a", "b"), func(ctx context.Context, rdb rueidis.Client, all []luascripts.Taking) (luascripts.Acquired, int, error) {
			sent = all
			a, i, err := luascripts.AcquireAllReentrant(ctx, rdb, all)
			time.Sleep(time.Second)
			return a, i, err
		}, true)
		if err != nil {
			w.Fatal(err)
		}
		for _, h := range holds {
			w.unlock(h)
		}
		synctest.Wait()
		if a, _, err := luascripts.AcquireAllReentrant(w.Context(), w.rdb, sent); err != nil || a.Verdict != luascripts.Done {
			w.Fatalf("%+v, %v", a, err)
		}
		time.Sleep(opTime + time.Millisecond)
		if keys := w.mini.Keys(); len(keys) != 0 {
			w.Errorf("held by nobody: %q", keys)
		}
	})
}

// A refusal that comes late is no reason to ask: the call has asked since.
func TestGroup_aLateRefusal(t *testing.T) {
	inBubble(t, func(w *world) {
		other, answer := w.lock(w.b, w.Context()), make(chan struct{})
		script, asked := asksAll(nil, func(n int32) {
			if n == 1 {
				<-answer
			}
		})
		got := make(chan []lock.Hold, 1)
		go func() {
			holds, err := w.a.LockAll(w.Context(), w.all(w.a, "a", "orders"), script, true)
			if err != nil {
				t.Error(err)
			}
			got <- holds
		}()
		time.Sleep(opTime + pollTime*3/2)
		synctest.Wait()
		before := asked.Load()
		close(answer)
		synctest.Wait()
		if n := asked.Load(); before < 2 || n != before {
			w.Errorf("it asked %d times before the late refusal, and %d times after it", before, n)
		}
		w.unlock(other)
		for _, h := range <-got {
			w.unlock(h)
		}
	})
}

// Another caller waits behind a call for several locks, and gives up when that one has them. Redis has answered all questions, and the
// error says nothing else.
func TestGroup_theNextBehindIt(t *testing.T) {
	inBubble(t, func(w *world) {
		other := w.lock(w.b, w.Context())
		got := make(chan []lock.Hold, 1)
		go func() { got <- w.takeAll(w.a, w.Context(), "a", "orders") }()
		synctest.Wait()
		ctx, cancel := context.WithCancel(w.Context())
		failed := make(chan error, 1)
		go func() {
			_, err := w.a.Lock(ctx, w.a.NewSpec(plain, "orders", nil))
			failed <- err
		}()
		time.Sleep(pollTime * 9 / 10)
		w.unlock(other)
		holds := <-got
		time.Sleep(pollTime / 2)
		cancel()
		if err := <-failed; !errors.Is(err, context.Canceled) || errors.Is(err, lock.ErrUnavailable) {
			w.Error(err)
		}
		for _, h := range holds {
			w.unlock(h)
		}
	})
}

// A question for several locks was carried out, and its answer never came. The server cannot be reached for longer than a command
// takes. When it is back, the locks are free soon.
func TestGroup_settlesAfterABreak(t *testing.T) {
	inBubble(t, func(w *world) {
		var specs []*Spec
		for _, name := range []string{"a", "b"} {
			specs = append(specs, w.a.NewSpec(plain, name, []lock.Option{lock.WithFixedLease(leaseTime)}))
		}
		_, err := w.a.LockAll(w.Context(), specs, func(ctx context.Context, rdb rueidis.Client, all []luascripts.Taking) (a luascripts.Acquired, i int, err error) {
			_, _, _ = luascripts.AcquireAllReentrant(ctx, rdb, all)
			w.wire.Refuse(true)
			w.wire.CutAll()
			return a, i, io.EOF
		}, false)
		if err == nil {
			w.Error("granted")
		}
		time.Sleep(leaseTime / 2)
		if n := len(w.mini.Keys()); n != 2 {
			w.Errorf("%d locks are held meanwhile, want both", n)
		}
		w.wire.Refuse(false)
		time.Sleep(2 * pollTime)
		if keys := w.mini.Keys(); len(keys) != 0 {
			w.Errorf("held by nobody: %q", keys)
		}
	})
}

// A call stands in line for one lock, and the answer to its question comes too late for the lease of another. The error is about
// that one, and the call leaves the line.
func TestGroup_tooLateForAnother(t *testing.T) {
	inBubble(t, func(w *world) {
		other := w.lock(w.b, w.Context())
		specs := []*Spec{w.a.NewSpec(plain, "z", []lock.Option{lock.WithFixedLease(time.Second)}), w.a.NewSpec(plain, "orders", nil)}
		script, _ := asksAll(nil, func(n int32) {
			if n > 1 {
				time.Sleep(time.Second)
			}
		})
		failed := make(chan error, 1)
		go func() {
			_, err := w.a.LockAll(w.Context(), specs, script, true)
			failed <- err
		}()
		synctest.Wait()
		w.unlock(other)
		err := <-failed
		w.about("z", err)
		if !errors.As(err, new(tooLate)) {
			w.Error(err)
		}
		synctest.Wait()
		for _, name := range []string{"z", "orders"} {
			h, err := w.a.TryLock(w.Context(), w.a.NewSpec(plain, name, nil))
			if err != nil {
				w.Fatalf("%s: %v", name, err)
			}
			w.unlock(h)
		}
	})
}

// A call for several locks was refused, and then has them. Each is passed on in this process like any other: no question of it has no
// answer.
func TestGroup_isPassedOn(t *testing.T) {
	inBubble(t, func(w *world) {
		other := w.lock(w.b, w.Context())
		got := make(chan []lock.Hold, 1)
		go func() { got <- w.takeAll(w.a, w.Context(), "a", "orders") }()
		synctest.Wait()
		w.unlock(other)
		holds := <-got
		waiter := w.waiting(w.a, w.Context())
		time.Sleep(time.Millisecond)
		for _, h := range holds {
			w.unlock(h)
		}
		next := w.next(waiter)
		if next.Owner() != holds[1].Owner() {
			w.Error("it was not passed on")
		}
		w.unlock(next)
	})
}

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

package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

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

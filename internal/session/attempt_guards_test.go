package session

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/owner"
	"github.com/leasehold-go/leasehold/internal/place"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/leasehold-go/leasehold/watchdog"
	"github.com/redis/rueidis"
)

// Each test here fails without one guard of the wait loop.

// A server that loads its data refuses each command. A TryLock asks until less than a quarter of its time is left, however seldom a Lock
// of the same client asks.
func TestTryLock_asksUntilItsTimeIsNearlyOver(t *testing.T) {
	inBubble(t, func(w *world) {
		config := testConfig()
		config.Poll = 10 * opTime
		s := New(w.mini.Client(w.T), config)
		w.unlock(w.lock(s, w.Context()))
		w.mini.SetError(loading)
		for range 30 {
			start := time.Now()
			if _, err := s.TryLock(w.Context(), s.NewSpec(plain, "orders", nil)); !strings.Contains(said(err), loading) {
				w.Error(err)
			}
			if took := time.Since(start); took < opTime-opTime/4 || took > opTime {
				w.Errorf("its last question came after %v, and it may take %v", took, opTime)
			}
		}
		w.mini.SetError("")
		if err := s.Close(w.Context()); err != nil {
			w.Error(err)
		}
	})
}

const loading = "LOADING Redis is loading the dataset in memory"

// The answer comes as late as the lease is long. The call asks once more at once, and not when the next poll is due.
func TestGrantBornTooLate_asksAgainAtOnce(t *testing.T) {
	inBubble(t, func(w *world) {
		for _, k := range []*Kind{plain, fair, writing} {
			w.unlock(w.take(w.a, k, w.Context())) // now the server knows the scripts
			const slow = 200 * time.Millisecond
			w.onScripts(func(n int) redistest.Action {
				if n == 1 {
					return redistest.Action{DelayReply: slow}
				}
				return redistest.Action{}
			})
			start := time.Now()
			h := w.take(w.a, k, w.Context(), lock.WithFixedLease(slow/2))
			if took := time.Since(start); took > slow+slow/2 {
				w.Errorf("%v after %v", k.Waits, took)
			}
			w.unlock(h)
			w.wire.OnRequest(nil)
			time.Sleep(opTime)
		}
	})
}

// hands is a fair lock of session a that is about to go to an attempt of the same session. The test makes its steps.
func (w *world) hands() (h lock.Hold, a *attempt, end func()) {
	h = w.take(w.a, fair, w.Context())
	spec := w.a.NewSpec(fair, "orders", nil)
	at, err := w.a.begin(spec)
	if err != nil {
		w.Fatal(err)
	}
	a = &attempt{s: w.a, ctx: w.Context(), waiting: w.Context(), began: time.Now(), fresh: true}
	a.now = a.began
	a.parts = []part{{spec: spec, at: at, owner: at.enter(spec, owner.New(), true)}}
	a.start(&a.parts[0])
	if err := a.step(); err != errRefused {
		w.Fatal(err)
	}
	return h, a, func() {
		a.done()
		w.a.done(at)
	}
}

// forced loses the lock of t, as where somebody unlocked it by force.
func (w *world) forced(t *tenure) {
	w.mini.Del("orders")
	t.lease.Lose(watchdog.ErrGone)
}

// A fair lock came to a waiter by a release, and is lost before the waiter runs. The waiter asks at once, in another name.
func TestQueue_lostBeforeItIsTaken(t *testing.T) {
	inBubble(t, func(w *world) {
		h, a, end := w.hands()
		w.unlock(h)
		synctest.Wait()
		offered := a.parts[0].t
		w.forced(offered)
		if err := a.step(); err != errAgain {
			w.Fatal(err)
		}
		w.asksAnew(a, offered)
		end()
	})
}

// The same, between the moment when the waiter takes it and that when it has its hold.
func TestQueue_lostAsItIsTaken(t *testing.T) {
	inBubble(t, func(w *world) {
		h, a, end := w.hands()
		w.unlock(h)
		synctest.Wait()
		p := &a.parts[0]
		step, err := a.next(p)
		if err != nil || step.Do != place.Take {
			w.Fatal(step.Do, err)
		}
		taken := tenureOf(step.Tenure)
		w.forced(taken)
		if err := a.accept(p, taken); err != errAgain {
			w.Fatal(err)
		}
		w.asksAnew(a, taken)
		end()
	})
}

// asksAnew has a, whose tenure lost is over, make its next step: it acquires the lock, which is free, in another name.
func (w *world) asksAnew(a *attempt, lost *tenure) {
	w.Helper()
	start := time.Now()
	if err := a.step(); err != nil {
		w.Fatal(err)
	}
	h := a.parts[0].h
	if h == nil || h.tenure() == lost || h.Owner() == lost.Name || time.Since(start) != 0 {
		w.Fatalf("after %v: a hold of %v", time.Since(start), h)
	}
	w.ours(h)
	w.unlock(h)
}

// stall has the watchdog of session a stand still, as on a busy machine, until wake: an observer that it tells of a loss does
// not return.
func (w *world) stall() (wake func()) {
	w.Helper()
	stuck := make(chan struct{})
	w.observer().Lost = func(_ context.Context, e lock.Event) {
		if e.Name == "stalled" {
			<-stuck
		}
	}
	h, err := w.a.Lock(w.Context(), w.a.NewSpec(plain, "stalled", []lock.Option{lock.WithFixedLease(lock.MinLease)}))
	if err != nil {
		w.Fatal(err)
	}
	time.Sleep(time.Until(h.Until()))
	synctest.Wait()
	return func() { close(stuck) }
}

// The lease of a reader is over, and nobody has noticed that yet. Another reader does not join it, by Lock or by TryLock, and asks instead.
func TestReaders_notUnderALeaseThatIsOver(t *testing.T) {
	for name, acquire := range map[string]func(*Session, context.Context, *Spec) (lock.Hold, error){"Lock": (*Session).Lock, "TryLock": (*Session).TryLock} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				const lease = 100 * time.Millisecond
				w.a.Lease = lease // so that an answer can take nearly as long
				w.a.places.rules.Lease = lease
				w.known()
				wake := w.stall()
				w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayReply: watchdog.Trusted(lease) - place.ShareTime/2}))
				first := w.take(w.a, reading, w.Context())
				time.Sleep(time.Until(first.Until()))
				start := time.Now()
				if h, err := acquire(w.a, w.Context(), w.a.NewSpec(reading, "orders", nil)); err != nil || time.Since(start) != 0 {
					w.Errorf("%v after %v", err, time.Since(start))
				} else if h.Err() != nil || h.Owner() == first.Owner() {
					w.Errorf("it joined what is over: %v", h.Err())
				} else {
					w.unlock(h)
				}
				if err := first.Err(); !errors.Is(err, lock.ErrLost) {
					w.Error(err)
				}
				wake()
			})
		})
	}
}

// The lease of a writer is over, and nobody has noticed that yet. Its owner comes to read, as any other reader: others may join it.
func TestReaders_besideAWriteThatIsOver(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
		wake := w.stall()
		ctx := lock.ContextWithNewOwner(w.Context())
		wrote := w.take(w.a, writing, ctx, lock.WithFixedLease(time.Second))
		time.Sleep(time.Until(wrote.Until()) + time.Second) // over in Redis, too
		h := w.take(w.a, reading, ctx)
		if w.mini.HGet("orders", "mode") != "read" {
			w.Error("it reads while Redis says that somebody writes")
		}
		if !errors.Is(wrote.Err(), lock.ErrLost) {
			w.Error(wrote.Err())
		}
		next := w.take(w.a, reading, w.Context())
		if next.Owner() != h.Owner() {
			w.Error("no other reader may join it")
		}
		w.unlock(next)
		w.unlock(h)
		wake()
	})
}

// A TryLock is told that the server loads its data, and then gets no answer. Its error says both.
func TestTryLock_saysWhatWentBefore(t *testing.T) {
	inBubble(t, func(w *world) {
		w.unlock(w.lock(w.a, w.Context()))
		w.mini.SetError(loading)
		ended := make(chan error)
		go func() {
			_, err := w.a.TryLock(w.Context(), w.a.NewSpec(plain, "orders", nil))
			ended <- err
		}()
		synctest.Wait()
		w.mini.SetError("")
		w.wire.Freeze(true)
		err := <-ended
		w.wantEnd("TryLock", err, []error{lock.ErrUnavailable, os.ErrDeadlineExceeded}, lock.ErrNotAcquired)
		if !strings.Contains(said(err), "LOADING") {
			w.Errorf("%v, which does not say what went before", err)
		}
		w.wire.Freeze(false)
		time.Sleep(2 * leaseTime)
	})
}

// logs has session s keep what it logs.
func (w *world) logs(s *Session) *strings.Builder {
	var text strings.Builder
	s.report.given = slog.New(slog.NewTextHandler(&text, nil))
	return &text
}

// A call waits for several locks, the first of its line, and Redis becomes unavailable. The log says so.
func TestGroup_aSilentServerIsLogged(t *testing.T) {
	inBubble(t, func(w *world) {
		text := w.logs(w.a)
		other := w.lock(w.b, w.Context())
		ended := make(chan error, 1)
		ctx, cancel := context.WithCancel(w.Context())
		go func() {
			_, err := w.a.LockAll(ctx, w.all(w.a, "orders", "others"), luascripts.AcquireAllReentrant, true)
			ended <- err
		}()
		time.Sleep(pollTime / 2)
		w.wire.Freeze(true)
		time.Sleep(3 * opTime)
		cancel()
		w.wantEnd("LockAll", <-ended, []error{lock.ErrUnavailable, context.Canceled})
		if !strings.Contains(text.String(), "Redis is unavailable") {
			w.Errorf("the log says %q", text)
		}
		w.wire.Freeze(false)
		w.unlock(other)
		time.Sleep(2 * leaseTime)
	})
}

// endsAfter is a context that has ended when it is asked for the n-th time, as one that ends while a call is on its way.
type endsAfter struct {
	context.Context
	n *atomic.Int64
}

func (e endsAfter) Err() error {
	if e.n.Add(-1) > 0 {
		return nil
	}
	return context.Canceled
}

// A call for several locks finds that its context has ended, when it is about to ask. It has asked nothing, so its error does not say
// that Redis gives no answer.
func TestGroup_aTryThatEndsBeforeItAsks(t *testing.T) {
	inBubble(t, func(w *world) {
		for _, wait := range []bool{false, true} {
			ctx := endsAfter{w.Context(), new(atomic.Int64)}
			ctx.n.Store(2)
			_, err := w.a.LockAll(ctx, w.all(w.a, "orders", "others"), luascripts.AcquireAllReentrant, wait)
			w.wantEnd("LockAll", err, []error{context.Canceled}, lock.ErrUnavailable, lock.ErrNotAcquired)
		}
	})
}

// stuck is a context whose Err waits for a channel once there is one, as where a goroutine is not run for a while.
type stuck struct {
	context.Context
	gate *atomic.Pointer[chan struct{}]
}

func (s stuck) Err() error {
	if gate := s.gate.Load(); gate != nil {
		<-*gate
	}
	return s.Context.Err()
}

// A reader waits for the answer to another reader's question, and its context ends. Redis answered its own question a moment ago: it was
// refused. So its error does not say that Redis gives no answer.
func TestUnavailable_notForAReaderThatRides(t *testing.T) {
	inBubble(t, func(w *world) {
		w.known()
		h := w.take(w.b, writing, w.Context())
		other := w.reads(w.a, w.Context())
		ended, gate := make(chan error, 1), make(chan struct{})
		ctx, cancel := context.WithCancel(w.Context())
		late := stuck{ctx, new(atomic.Pointer[chan struct{}])}
		go func() {
			_, err := w.a.Lock(late, w.a.NewSpec(reading, "orders", []lock.Option{lock.WithReaderPreference()}))
			ended <- err
		}()
		time.Sleep(pollTime / 2) // both were refused
		n := w.slowScripts(20 * time.Millisecond)
		late.gate.Store(&gate)
		w.unlock(h) // and both are told
		synctest.Wait()
		close(gate) // the other one has asked
		time.Sleep(10 * time.Millisecond)
		cancel()
		w.wantEnd("Lock", <-ended, []error{lock.ErrNotAcquired, context.Canceled}, lock.ErrUnavailable)
		if n.Load() != 1 {
			w.Errorf("%d questions, want that of the other reader", n.Load())
		}
		w.unlock(<-other)
	})
}

// Another call of the owner has the turn, and the owner has the lock, and no command is under way for it. A TryLock that gives up does not
// say that Redis gives no answer.
func TestTryLock_whileItsOwnerIsNotAsking(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx := lock.ContextWithNewOwner(w.Context())
		h := w.lock(w.a, ctx)
		turn := h.(*hold).By.Turn
		turn <- struct{}{}
		_, err := w.a.TryLock(ctx, w.a.NewSpec(plain, "orders", nil))
		w.wantEnd("TryLock", err, []error{lock.ErrNotAcquired}, lock.ErrUnavailable)
		<-turn
		w.unlock(h)
	})
}

// A wait that came to the end of its own limit says so once.
func TestWithWait_saysTheLimitOnce(t *testing.T) {
	for err, want := range map[error]string{
		outOfTime{time.Second, errWaited}:         "not acquired: waited for 1s",
		outOfTime{time.Second, errUnavailable(t)}: "waited for 1s: frozen: " + lock.ErrUnavailable.Error(),
	} {
		if err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// A question for two locks has no answer, and meanwhile another call comes to wait for the first of them, and stands ahead. The call for two
// asks again in other names once it is the first, and has both at once.
func TestGroup_asksInOtherNames(t *testing.T) {
	inBubble(t, func(w *world) {
		for _, h := range w.takeAll(w.a, w.Context(), "orders", "others") {
			w.unlock(h) // now the server knows the script
		}
		other := w.lock(w.b, w.Context())
		w.onScripts(func(n int) redistest.Action {
			if n == 1 {
				return redistest.Action{DelayReply: 20 * time.Millisecond, DropReply: true}
			}
			return redistest.Action{}
		})
		holds := make(chan []lock.Hold, 1)
		go func() { holds <- w.takeAll(w.a, w.Context(), "orders", "others") }()
		synctest.Wait()
		first := w.waiting(w.a, w.Context())
		time.Sleep(pollTime / 2)
		w.unlock(other)
		h := w.next(first)
		time.Sleep(pollTime / 2)
		n := w.scripts()
		w.unlock(h)
		both := <-holds
		if n.Load() > 3 { // the release, a question that comes before its hint, and one after it
			w.Errorf("a release and a question took %d commands", n.Load())
		}
		for _, h := range both {
			if h.Err() != nil {
				w.Error(h.Err())
			}
			w.unlock(h)
		}
	})
}

// A server loads its data for long, and a waiter asks it ever more seldom. Then it answers that another owner has the lock. When it loads
// once more, the waiter asks again soon.
func TestWaiter_asksSoonAfterAnAnswer(t *testing.T) {
	inBubble(t, func(w *world) {
		w.unlock(w.lock(w.a, w.Context())) // now the server knows the script
		other := w.lock(w.b, w.Context())
		w.mini.SetError(loading)
		next := w.waiting(w.a, w.Context())
		time.Sleep(20 * pollTime)
		w.mini.SetError("")
		time.Sleep(3 * pollTime / 2) // it was refused
		w.mini.SetError(loading)
		var asked []time.Time
		w.onScripts(func(int) redistest.Action {
			asked = append(asked, time.Now())
			return redistest.Action{}
		})
		time.Sleep(2 * pollTime)
		w.wire.OnRequest(nil)
		if len(asked) < 2 || asked[1].Sub(asked[0]) > 10*time.Millisecond {
			w.Errorf("it asked at %v", asked)
		}
		w.mini.SetError("")
		w.unlock(other)
		w.unlock(<-next)
	})
}

// A grant comes too late for its lease, and the context of the call ends before it asks again. What was granted is given back once.
func TestGrantBornTooLate_isGivenBackOnce(t *testing.T) {
	inBubble(t, func(w *world) {
		asked, gaveBack := 0, 0
		k := hookable()
		k.Acquire = func(ctx context.Context, rdb rueidis.Client, keys luascripts.Keys, q luascripts.Question) (luascripts.Acquired, error) {
			asked++
			a, err := plain.Acquire(ctx, rdb, keys, q)
			time.Sleep(200 * time.Millisecond)
			return a, err
		}
		k.Pass = func(ctx context.Context, rdb rueidis.Client, keys luascripts.Keys, owner string, p luascripts.Pass) (luascripts.Passed, error) {
			gaveBack++
			return plain.Pass(ctx, rdb, keys, owner, p)
		}
		ctx := endsAfter{w.Context(), new(atomic.Int64)}
		ctx.n.Store(4) // the call looks as it begins, before the question, after the answer, and before the next question
		_, err := w.a.Lock(ctx, w.a.NewSpec(k, "orders", []lock.Option{lock.WithFixedLease(100 * time.Millisecond)}))
		if !errors.Is(err, context.Canceled) {
			w.Error(err)
		}
		time.Sleep(opTime / 2) // later the settler looks once more
		synctest.Wait()
		if asked != 1 || gaveBack != 1 {
			w.Errorf("it asked %d times, and gave back %d times", asked, gaveBack)
		}
	})
}

// With WithWait(0), Lock makes one attempt: it takes what is free, is refused at once by another owner, and leaves nothing behind.
func TestWithWait_zero(t *testing.T) {
	for name, k := range map[string]*Kind{"plain": plain, "fair": fair, "writer": writing, "reader": reading} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.unlock(w.take(w.a, k, w.Context(), lock.WithWait(0)))
				other := k
				if k == reading {
					other = writing
				}
				h := w.take(w.b, other, w.Context())
				began := time.Now()
				_, err := w.a.Lock(w.Context(), w.a.NewSpec(k, "orders", []lock.Option{lock.WithWait(0)}))
				w.wantAbout("lock", "orders", err)
				if took := time.Since(began); !errors.Is(err, lock.ErrNotAcquired) || errors.Is(err, lock.ErrUnavailable) || took > opTime/2 {
					w.Errorf("%v after %v", err, took)
				}
				w.unlock(h)
				if keys := w.mini.Keys(); len(keys) > 0 {
					w.Errorf("keys: %q", keys)
				}
			})
		})
	}
}

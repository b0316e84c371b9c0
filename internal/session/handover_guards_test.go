package session

import (
	"context"
	"errors"
	"io"
	"strconv"
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

// Each test here fails without one guard of the hand-over: a condition that looks as if
// it were always true, until two things cross.

// waitsOn fails the test if the waiter has the lock already.
func (w *world) waitsOn(holds <-chan lock.Hold) {
	w.Helper()
	synctest.Wait()
	select {
	case h := <-holds:
		w.Errorf("a waiter has the lock, too: %v", h.Owner())
	default:
	}
}

// A holder of this process has lost the lock without knowing, and the next in line has
// asked and holds it. What the first gives back is not passed on beside that.
func TestGuard_whatWasLostIsNotPassedOn(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		waiters := []<-chan lock.Hold{w.waiting(w.a, w.Context()), w.waiting(w.a, w.Context()), w.waiting(w.a, w.Context())}
		time.Sleep(pollTime - place.MaxPassTime/5) // a moment later the first in line asks, just in case
		w.unlock(h)
		lost := w.next(waiters[0]) // by the release, and it may pass the lock on for place.MaxPassTime
		w.mini.Del("orders")       // publishes nothing
		time.Sleep(place.MaxPassTime / 2)
		h = w.next(waiters[1])
		if err := lost.Unlock(w.Context()); !errors.Is(err, lock.ErrLost) {
			w.Errorf("unlock of a lost hold: %v", err)
		}
		w.waitsOn(waiters[2])
		w.ours(h)
		w.unlock(h)
		next := w.next(waiters[2])
		if next.Owner() != h.Owner() {
			w.Error("it was not passed on any more")
		}
		w.unlock(next)
	})
}

// brokenOnce is the plain kind, whose first question breaks off; carryOut has the server
// carry it out.
func (w *world) brokenOnce() (k *Kind, carryOut func()) {
	var asked atomic.Int32
	k = gated(func(acquire acquireFunc) acquireFunc {
		return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Question) (luascripts.Acquired, error) {
			if asked.Add(1) > 1 {
				return acquire(ctx, rdb, k, q)
			}
			carryOut = func() {
				w.Helper()
				if a, err := luascripts.AcquireReentrant(w.Context(), w.rdb, k, q); err != nil || a.Verdict != luascripts.Done {
					w.Fatalf("%+v, %v", a, err)
				}
			}
			return luascripts.Acquired{}, io.EOF
		}
	}, nil)
	return k, func() { w.Helper(); carryOut() }
}

// The first question breaks off, and the second is granted. The server carries the first
// one out when every hold is given back. The lock is free again soon, even when another caller of the
// process waited for it in between.
func TestGuard_aQuestionCarriedOutLate(t *testing.T) {
	for _, more := range []string{"nobody waits", "somebody waits"} {
		t.Run(more, func(t *testing.T) {
			inBubble(t, func(w *world) {
				k, carryOut := w.brokenOnce()
				h, err := w.a.Lock(w.Context(), w.a.NewSpec(k, "orders", nil))
				if err != nil {
					w.Fatal(err)
				}
				if more == "somebody waits" {
					next := w.waitingFor(w.a, w.Context(), w.a.NewSpec(k, "orders", nil))
					time.Sleep(time.Millisecond)
					w.unlock(h)
					h = w.next(next)
				}
				w.unlock(h)
				carryOut()
				time.Sleep(opTime + time.Millisecond)
				if w.mini.Exists("orders") {
					w.Errorf("the lock is held for %v more, without a holder", w.mini.TTL("orders"))
				}
			})
		})
	}
}

// An outer hold asked for a long lease and is given back first. The lock is not passed on
// with that lease: when the next holder dies, its own lease must do.
func TestGuard_aLongLeaseIsNotPassedOn(t *testing.T) {
	inBubble(t, func(w *world) {
		outer := w.lock(w.a, w.Context(), lock.WithFixedLease(time.Hour))
		inner := w.lock(w.a, outer.Context())
		next := w.waiting(w.a, w.Context())
		time.Sleep(time.Millisecond)
		w.unlock(outer)
		w.unlock(inner)
		h := w.next(next)
		if left := w.mini.TTL("orders"); left > leaseTime {
			w.Errorf("the key of the next holder lives for %v", left)
		}
		w.unlock(h)
	})
}

// A waiter asks in the place of one that has gone, with a lease of its own. The hold has the lease and
// the waiting time of the waiter that asks, not those of the other.
func TestGuard_theLeaseOfTheWaiterThatAsks(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.b, w.Context())
		ctx, cancel := context.WithCancel(w.Context())
		gone := w.waiting(w.a, ctx)
		time.Sleep(pollTime / 2)
		var waited time.Duration
		w.observer().Acquired = func(_ context.Context, e lock.Event) { waited = e.Took }
		fixed := w.waiting(w.a, w.Context(), lock.WithFixedLease(7*time.Second))
		cancel()
		<-gone
		time.Sleep(pollTime / 2)
		w.unlock(h)
		got := w.next(fixed)
		if left := w.mini.TTL("orders"); time.Until(got.Until()) > left {
			w.Errorf("trusted for %v, and the key lives for %v", time.Until(got.Until()), left)
		}
		if waited != pollTime/2 {
			w.Errorf("the observer hears that it waited for %v", waited)
		}
		w.unlock(got)
	})
}

// The reply to a release gives the lock to a waiter of the same process. From then on it is
// passed on again, without a command.
func TestGuard_aChainGoesOnAfterARelease(t *testing.T) {
	inBubble(t, func(w *world) {
		w.unlock(w.lock(w.a, w.Context())) // the server knows the scripts
		h := w.lock(w.a, w.Context())
		waiters := []<-chan lock.Hold{w.waiting(w.a, w.Context()), w.waiting(w.a, w.Context()), w.waiting(w.a, w.Context())}
		time.Sleep(2 * place.MaxPassTime)
		sent := w.scripts()
		for _, waiter := range waiters {
			w.unlock(h)
			h = w.next(waiter)
			time.Sleep(time.Millisecond)
		}
		if n := sent.Load(); n != 1 {
			w.Errorf("%d scripts were sent, want the release alone", n)
		}
		w.unlock(h)
	})
}

// The lock changes hands in this process while others wait. Each waiter that becomes the next
// asks once in a poll interval, and no sooner.
func TestGuard_asksOnceAPoll(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		var waiters []<-chan lock.Hold
		for range 4 {
			waiters = append(waiters, w.waiting(w.a, w.Context()))
			time.Sleep(pollTime / 10)
		}
		time.Sleep(pollTime * 55 / 100)
		w.unlock(h) // after 0.95 of a poll interval
		h = w.next(waiters[0])
		time.Sleep(pollTime / 10) // the next asks
		w.unlock(h)
		h = w.next(waiters[1])
		sent := w.scripts()
		time.Sleep(pollTime * 9 / 10)
		if n := sent.Load(); n != 0 {
			w.Errorf("%d scripts within a poll interval", n)
		}
		time.Sleep(pollTime) // the next has asked, and the lease has been renewed
		w.unlock(h)
		h = w.next(waiters[2])
		time.Sleep(pollTime * 3 / 2) // here, too
		w.mini.Del("orders")         // publishes nothing
		time.Sleep(pollTime)
		next := w.next(waiters[3])
		if err := h.Unlock(w.Context()); !errors.Is(err, lock.ErrLost) {
			w.Errorf("unlock of a lost hold: %v", err)
		}
		w.unlock(next)
	})
}

// A lock with a lease of its own is not passed on: the next waiter wants it renewed.
func TestGuard_aFixedLeaseIsNotPassedOn(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context(), lock.WithFixedLease(7*time.Second))
		next := w.waiting(w.a, w.Context())
		time.Sleep(time.Millisecond)
		w.unlock(h)
		h = w.next(next)
		time.Sleep(3 * leaseTime)
		if err := h.Err(); err != nil {
			w.Error(err)
		}
		w.unlock(h)
	})
}

// The lease of a short-lived lock is nearly over when the answer comes. It is not passed on,
// but released: the next has time.
func TestGuard_aLeaseThatIsNearlyOverIsNotPassedOn(t *testing.T) {
	inBubble(t, func(w *world) {
		short := testConfig()
		short.Lease = opTime
		s := New(w.mini.Client(w.T, redistest.Via(w.wire), func(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 }), short)
		w.unlock(w.lock(s, w.Context())) // the server knows the script
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayReply: opTime * 8 / 10}))
		k := gated(nil, nil)
		k.Renew = func(ctx context.Context, rdb rueidis.Client, batch []luascripts.Renewal, lease time.Duration, perCall int) []luascripts.Renewed {
			time.Sleep(opTime / 10) // a renewal takes a while
			return luascripts.RenewReentrant(ctx, rdb, batch, lease, perCall)
		}
		first := w.waitingFor(s, w.Context(), s.NewSpec(k, "orders", nil))
		next := w.waitingFor(s, w.Context(), s.NewSpec(k, "orders", nil))
		h := <-first
		time.Sleep(time.Millisecond)
		w.unlock(h)
		h = w.next(next)
		if left := time.Until(h.Until()); left < opTime/3 {
			w.Errorf("the next has it for %v", left)
		}
		w.unlock(h)
		if err := s.Close(w.Context()); err != nil {
			w.Error(err)
		}
	})
}

// A hold of two was given back, and Redis has not confirmed it. The lock is not passed on
// with a count that may be wrong.
func TestGuard_anUncertainCountIsNotPassedOn(t *testing.T) {
	inBubble(t, func(w *world) {
		k := gated(nil, nil)
		k.Release = func(context.Context, rueidis.Client, luascripts.Keys, string, int) (luascripts.Verdict, error) {
			return 0, &luascripts.ReplyError{Script: "a garbled reply"}
		}
		h := w.take(w.a, k, w.Context())
		again := w.take(w.a, k, h.Context())
		next := w.waitingFor(w.a, w.Context(), w.a.NewSpec(k, "orders", nil))
		time.Sleep(time.Millisecond)
		if err := again.Unlock(w.Context()); err == nil {
			w.Error("the server did not confirm")
		}
		w.unlock(h)
		h = w.next(next)
		w.ours(h)
		w.unlock(h)
	})
}

// A process that no message reaches asks again after 10 ms, 20 ms, and so on up to a poll
// interval, and from the beginning; and says so when it asks. When a message reaches it
// again, it asks once a poll interval.
func TestGuard_howOftenTheDeafAsk(t *testing.T) {
	inBubble(t, func(w *world) {
		var deaf atomic.Bool
		var mu sync.Mutex // for what follows
		var asked, again []time.Duration
		var before time.Time
		take := func() (wasAsked, saidAgain []time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			wasAsked, saidAgain = asked, again
			asked, again = nil, nil
			return wasAsked, saidAgain
		}
		k := gated(func(acquire acquireFunc) acquireFunc {
			return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Question) (luascripts.Acquired, error) {
				mu.Lock()
				first := before.IsZero()
				asked, before = append(asked, time.Since(before)), time.Now()
				again = append(again, q.Again)
				mu.Unlock()
				a, err := acquire(ctx, rdb, k, q)
				a.Deaf = a.Verdict == luascripts.Held && (deaf.Load() || first) // the first waiter does not listen yet
				return a, err
			}
		}, nil)
		h := w.lock(w.b, w.Context())
		waiter := w.waitingFor(w.a, w.Context(), w.a.NewSpec(k, "orders", nil))
		if asked, _ := take(); len(asked) != 2 { // once to begin with, and once when it listens
			w.Errorf("asked %d times at first", len(asked))
		}
		time.Sleep(pollTime / 2)
		deaf.Store(true)
		time.Sleep(3 * pollTime)
		wasAsked, saidAgain := take()
		const ms = time.Millisecond
		want := []time.Duration{pollTime, 10 * ms, 20 * ms, 40 * ms, 80 * ms, 160 * ms, 320 * ms, 640 * ms, 10 * ms, 20 * ms}
		for i, d := range want {
			if i >= len(wasAsked) || wasAsked[i] != d {
				w.Fatalf("asked after %v, want %v", wasAsked, want)
			}
			if i > 1 && saidAgain[i-1] != d {
				w.Errorf("said that it asks again after %v, and asked after %v", saidAgain[i-1], d)
			}
		}
		deaf.Store(false)
		time.Sleep(pollTime)
		take()
		time.Sleep(2 * pollTime)
		if wasAsked, saidAgain := take(); len(wasAsked) != 2 || saidAgain[1] != pollTime {
			w.Errorf("asked %d times in two poll intervals, and said that it asks again after %v", len(wasAsked), saidAgain)
		}
		w.unlock(h)
		w.unlock(w.next(waiter))
	})
}

// A release gets no sound answer, and was not carried out. It is repeated in the background,
// and a waiter of the process has the lock then: also where a re-entry broke off, and waits to
// be looked at again later.
func TestGuard_aReleaseThatFails(t *testing.T) {
	for _, before := range []string{"nothing", "a re-entry"} {
		t.Run(before+" broke off", func(t *testing.T) {
			inBubble(t, func(w *world) {
				var passed atomic.Int32
				k := gated(func(acquire acquireFunc) acquireFunc {
					return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Question) (luascripts.Acquired, error) {
						if q.Want > 1 {
							return luascripts.Acquired{}, &luascripts.ReplyError{Script: "a garbled reply"}
						}
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
				spec := w.a.NewSpec(k, "orders", nil)
				h := w.take(w.a, k, w.Context())
				if before == "a re-entry" {
					if _, err := w.a.Lock(h.Context(), spec); err == nil {
						w.Error("the re-entry did not break off")
					}
				}
				next := w.waitingFor(w.a, w.Context(), spec)
				time.Sleep(2 * place.MaxPassTime)
				start := time.Now()
				if err := h.Unlock(w.Context()); err == nil {
					w.Error("the server did not confirm")
				}
				h = <-next
				if took := time.Since(start); took > pollTime {
					w.Errorf("the next has it after %v", took)
				}
				w.unlock(h)
			})
		})
	}
}

// The holder has no fencing, and the heir in its process has. The heir's token comes from
// the register, which the release raises by as many as it may pass on.
func TestGuard_theHeirsRegister(t *testing.T) {
	inBubble(t, func(w *world) {
		const register = "redisson_lock_token:{orders}"
		if err := w.mini.Set(register, "4000000000000000"); err != nil {
			w.Fatal(err)
		}
		w.unlock(w.lock(w.a, w.Context())) // the server knows the scripts
		h := w.lock(w.a, w.Context())
		next := w.waiting(w.a, w.Context(), lock.WithFencing())
		time.Sleep(2 * place.MaxPassTime)
		sent := w.scripts()
		w.unlock(h)
		h = w.next(next)
		if n := sent.Load(); h.Token() != 4000000000000001 || n != 1 {
			w.Errorf("token %d, by %d scripts", h.Token(), n)
		}
		raised, err := w.mini.Get(register)
		if latest, _ := strconv.ParseUint(raised, 10, 64); err != nil || latest < h.Token()+place.MaxPasses {
			w.Errorf("the register is at %s, %v", raised, err)
		}
		w.unlock(h)
		w.mini.Del(register) // is meant to stay
	})
}

// heirAsks has a waiter of this process ask at the moment when a release gives the lock to
// it. The waiter's question waits for go. The waiter that comes next stands behind it.
func (w *world) heirAsks(ctx context.Context) (first, next <-chan lock.Hold, goes chan struct{}) {
	w.Helper()
	goes = make(chan struct{})
	var asked atomic.Int32
	k := gated(func(acquire acquireFunc) acquireFunc {
		return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Question) (luascripts.Acquired, error) {
			if asked.Add(1) == 2 {
				<-goes
			}
			return acquire(ctx, rdb, k, q)
		}
	}, nil)
	h := w.take(w.a, k, w.Context())
	first = w.waitingFor(w.a, ctx, w.a.NewSpec(k, "orders", nil))
	next = w.waitingFor(w.a, w.Context(), w.a.NewSpec(k, "orders", nil))
	time.Sleep(pollTime + time.Millisecond) // the first in line asks, just in case
	w.unlock(h)
	synctest.Wait()
	return first, next, goes
}

// A release gives the lock to a waiter whose own question is under way, with a short lease
// to begin with. The answer to the question brings a full one.
func TestGuard_theAnswerBringsAFullLease(t *testing.T) {
	inBubble(t, func(w *world) {
		first, next, goes := w.heirAsks(w.Context())
		close(goes)
		h := w.next(first)
		if left := time.Until(h.Until()); left < leaseTime/2 {
			w.Errorf("it is trusted for %v", left)
		}
		w.unlock(h)
		w.unlock(w.next(next))
	})
}

// A release has no answer when its caller goes, and then it has one. A question for the same
// hold broke off before, and is carried out now: the lock is free again soon.
func TestGuard_aQuestionCarriedOutAfterALateAnswer(t *testing.T) {
	inBubble(t, func(w *world) {
		late := make(chan struct{})
		k, carryOut := w.brokenOnce()
		k.Pass = func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, p luascripts.Pass) (luascripts.Passed, error) {
			reply, err := luascripts.PassReentrant(ctx, rdb, k, owner, p)
			<-late
			return reply, err
		}
		h, err := w.a.Lock(w.Context(), w.a.NewSpec(k, "orders", nil))
		if err != nil {
			w.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		if err := h.Unlock(ctx); err == nil {
			w.Error("the server did not answer")
		}
		close(late)
		synctest.Wait()
		carryOut()
		time.Sleep(opTime + time.Millisecond)
		if w.mini.Exists("orders") {
			w.Errorf("the lock is held for %v more, without a holder", w.mini.TTL("orders"))
		}
	})
}

// Several locks are granted together, too late for the lease of the last one. The first can
// be had at once then, and nothing of it is renewed.
func TestGuard_aGroupsGrantThatIsTooLate(t *testing.T) {
	inBubble(t, func(w *world) {
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayReply: 2 * time.Second}))
		for _, h := range w.takeAll(w.b, w.Context(), "a", "orders") {
			w.unlock(h) // the server knows the script
		}
		specs := []*Spec{w.a.NewSpec(plain, "orders", nil), w.a.NewSpec(plain, "the last", []lock.Option{lock.WithFixedLease(time.Second)})}
		if _, err := w.a.LockAll(w.Context(), specs, luascripts.AcquireAllReentrant, false); !errors.As(err, new(tooLate)) {
			w.Error(err)
		}
		synctest.Wait()
		start := time.Now()
		h := w.lock(w.a, w.Context())
		if took := time.Since(start); took > 0 {
			w.Errorf("it came after %v", took)
		}
		if n := w.a.dog.Len(); n != 1 {
			w.Errorf("%d leases are watched", n)
		}
		w.unlock(h)
	})
}

// The next waiter wants the confirmation of replicas. The lock is not passed on to it, as no
// replica was asked.
func TestGuard_notPassedOnToAWaiterWithReplicas(t *testing.T) {
	inBubble(t, func(w *world) {
		var confirmed atomic.Int32
		k := gated(func(acquire acquireFunc) acquireFunc {
			return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Question) (luascripts.Acquired, error) {
				n := q.Replicas
				q.Replicas = 0 // the server in memory has none
				a, err := acquire(ctx, rdb, k, q)
				if a.Confirmed = n; a.Verdict == luascripts.Done && n > 0 {
					confirmed.Add(1)
				}
				return a, err
			}
		}, nil)
		h := w.take(w.a, k, w.Context())
		next := w.waitingFor(w.a, w.Context(), w.a.NewSpec(k, "orders", []lock.Option{lock.WithReplicas(1, time.Millisecond)}))
		time.Sleep(time.Millisecond)
		w.unlock(h)
		h = w.next(next)
		if n := confirmed.Load(); n != 1 {
			w.Errorf("the replicas of %d grants were asked", n)
		}
		w.unlock(h)
	})
}

// A re-entry broke off. The session looks at it again when the lock has been passed on and no waiter
// has taken it yet. The lock stays with the process.
func TestGuard_whatWasPassedOnIsNotSettled(t *testing.T) {
	inBubble(t, func(w *world) {
		late := make(chan struct{})
		var asked atomic.Int32
		var breaks atomic.Bool
		k := gated(func(acquire acquireFunc) acquireFunc {
			return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Question) (luascripts.Acquired, error) {
				a, err := acquire(ctx, rdb, k, q)
				switch {
				case q.Want > 1 && breaks.CompareAndSwap(true, false):
					return luascripts.Acquired{}, &luascripts.ReplyError{Script: "a garbled reply"}
				case q.Want == 1 && asked.Add(1) == 2:
					<-late
				}
				return a, err
			}
		}, nil)
		spec := w.a.NewSpec(k, "orders", nil)
		h := w.take(w.a, k, w.Context())
		waiters := []<-chan lock.Hold{w.waitingFor(w.a, w.Context(), spec), w.waitingFor(w.a, w.Context(), spec)}
		time.Sleep(pollTime - place.MaxPassTime/5) // a moment later the first in line asks, just in case
		w.unlock(h)
		h = w.next(waiters[0])
		breaks.Store(true)
		if _, err := w.a.Lock(h.Context(), spec); err == nil {
			w.Fatal("the re-entry did not break off")
		}
		w.unlock(w.take(w.a, k, h.Context())) // now the count is known
		time.Sleep(place.MaxPassTime / 2)
		w.unlock(h) // passes it on
		owner := h.Owner()
		time.Sleep(opTime - place.MaxPassTime/4) // the re-entry is looked at again
		if w.mini.HGet("orders", owner) != "1" {
			w.Error("the lock was given back")
		}
		close(late)
		h = w.next(waiters[1])
		w.ours(h)
		w.unlock(h)
	})
}

// A grant that too few replicas confirmed is given back. The next waiter of the line asks by
// another owner string: a copy of what gave the grant back may arrive late.
func TestGuard_anUnconfirmedGrantIsNotAskedForAgain(t *testing.T) {
	inBubble(t, func(w *world) {
		goes, asked := make(chan struct{}), make(chan string, 10)
		k := *hookable()
		k.Acquire = func(ctx context.Context, rdb rueidis.Client, keys luascripts.Keys, q luascripts.Question) (luascripts.Acquired, error) {
			asked <- q.Owner
			if q.Replicas == 0 {
				return luascripts.AcquireReentrant(ctx, rdb, keys, q)
			}
			<-goes
			q.Replicas, q.ReplicaTimeout = 0, 0 // nothing confirms it
			return luascripts.AcquireReentrant(ctx, rdb, keys, q)
		}
		failed := make(chan error)
		go func() {
			_, err := w.a.Lock(w.Context(), w.a.NewSpec(&k, "orders", []lock.Option{lock.WithReplicas(1, time.Second)}))
			failed <- err
		}()
		synctest.Wait()
		next := w.gets(w.a, &k, w.Context())
		close(goes)
		if err := <-failed; !errors.Is(err, lock.ErrReplicas) {
			t.Error(err)
		}
		h := <-next
		if first := <-asked; h.Owner() == first {
			t.Error("the next waiter holds the lock by the owner string that was given back")
		}
		w.unlock(h)
	})
}

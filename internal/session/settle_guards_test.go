package session

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// Each test here fails without one guard of what settles.

// garbledReentry is the plain kind. A re-entry while breaks is true is not carried out, and what
// comes back is no sound answer; one while late is true is carried out, and answered when goes
// is closed.
func garbledReentry(breaks, late *atomic.Bool, goes <-chan struct{}) *Kind {
	return gated(func(acquire acquireFunc) acquireFunc {
		return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Question) (luascripts.Acquired, error) {
			if q.Want > 1 && breaks.Load() {
				return luascripts.Acquired{}, &luascripts.ReplyError{Script: "a garbled reply"}
			}
			a, err := acquire(ctx, rdb, k, q)
			if q.Want > 1 && late.Load() {
				<-goes
			}
			return a, err
		}
	}, nil)
}

// What a re-entry left in doubt is looked at again while another re-entry is under way. It waits
// for the owner's turn: else Redis would count one hold of two.
func TestSettle_waitsForTheOwnersTurn(t *testing.T) {
	inBubble(t, func(w *world) {
		var breaks, late atomic.Bool
		goes := make(chan struct{})
		k := garbledReentry(&breaks, &late, goes)
		h := w.take(w.a, k, w.Context())
		breaks.Store(true)
		if _, err := w.a.Lock(h.Context(), w.a.NewSpec(k, "orders", nil)); err == nil {
			w.Error("the re-entry did not break off")
		}
		breaks.Store(false)
		time.Sleep(opTime - time.Millisecond) // a moment later it is looked at again
		late.Store(true)
		again := w.waitingFor(w.a, h.Context(), w.a.NewSpec(k, "orders", nil))
		time.Sleep(2 * time.Millisecond)
		close(goes)
		inner := w.next(again)
		if n := w.count(h); n != 2 {
			w.Errorf("Redis counts %d holds of two", n)
		}
		time.Sleep(pollTime)
		if n := w.count(h); n != 2 {
			w.Errorf("Redis counts %d holds of two, when all is settled", n)
		}
		w.unlock(inner)
		w.unlock(h)
	})
}

// A re-entry breaks off, and the lock is gone. The settler finds that out: the holder is told at
// once, and not at the next renewal.
func TestSettle_tellsOfALoss(t *testing.T) {
	inBubble(t, func(w *world) {
		var breaks, never atomic.Bool
		k := garbledReentry(&breaks, &never, nil)
		h := w.take(w.a, k, w.Context())
		w.mini.Del("orders") // publishes nothing
		breaks.Store(true)
		if _, err := w.a.Lock(h.Context(), w.a.NewSpec(k, "orders", nil)); err == nil {
			w.Error("the re-entry did not break off")
		}
		select { // the settler looks again soon, if the caller had not let go of its turn
		case <-h.Context().Done():
		case <-time.After(pollTime):
		}
		if err := h.Err(); !errors.Is(err, lock.ErrLost) {
			w.Errorf("the hold: %v", err)
		}
	})
}

// A question breaks off when it has been carried out, and its caller has given up. Another waiter
// of this process, which hears no messages, has the lock as soon as it is given back.
func TestSettle_wakesTheWaitersHere(t *testing.T) {
	inBubble(t, func(w *world) {
		w.wire.OnRequest(func(req [][]byte) redistest.Action {
			return redistest.Action{DropRequest: string(req[0]) == "SUBSCRIBE"}
		})
		late := make(chan struct{})
		var asked atomic.Int32
		k := gated(func(acquire acquireFunc) acquireFunc {
			return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Question) (luascripts.Acquired, error) {
				first := asked.Add(1) == 1
				a, err := acquire(ctx, rdb, k, q)
				if first {
					<-late
					return luascripts.Acquired{}, io.EOF
				}
				return a, err
			}
		}, nil)
		spec := w.a.NewSpec(k, "orders", nil)
		ctx, cancel := context.WithCancel(w.Context())
		gone := w.waitingFor(w.a, ctx, spec)
		next := w.waitingFor(w.a, w.Context(), spec)
		cancel()
		<-gone
		time.Sleep(pollTime / 2) // the next has asked, and does not ask at this moment
		start := time.Now()
		close(late)
		h := <-next
		if took := time.Since(start); took != 0 {
			w.Errorf("it has it after %v", took)
		}
		w.wire.OnRequest(nil)
		w.unlock(h)
	})
}

// brokenTwice is the plain kind. The first question breaks off at once, and the second when late
// is closed. Neither is carried out before; carryOut has the server carry out the second.
func (w *world) brokenTwice(late <-chan struct{}) (k *Kind, carryOut func()) {
	var asked atomic.Int32
	k = gated(func(acquire acquireFunc) acquireFunc {
		return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Question) (luascripts.Acquired, error) {
			switch asked.Add(1) {
			case 1:
				return luascripts.Acquired{}, io.EOF
			case 2:
				carryOut = func() {
					if a, err := luascripts.AcquireReentrant(w.Context(), w.rdb, k, q); err != nil || a.Verdict != luascripts.Done {
						w.Errorf("%+v, %v", a, err)
					}
				}
				<-late
				return luascripts.Acquired{}, io.EOF
			}
			return acquire(ctx, rdb, k, q)
		}
	}, nil)
	return k, func() { synctest.Wait(); carryOut() }
}

// Of two questions for one hold, the first broke off long ago, and the looks at it are far apart
// by now. The second breaks off then. The looks begin anew: if the server carries out a copy of it a
// moment later, the lock does not stay without a holder.
func TestSettle_looksAnewAfterAnotherDoubt(t *testing.T) {
	inBubble(t, func(w *world) {
		late := make(chan struct{})
		k, carryOut := w.brokenTwice(late)
		w.unlock(w.take(w.a, k, w.Context()))
		const fourth = (1 + 2 + 4) * opTime // comes the fourth look, and the fifth is as far away as the first
		time.Sleep(fourth + time.Second)
		close(late)
		time.Sleep(time.Second)
		carryOut()
		time.Sleep(opTime)
		if w.mini.Exists("orders") {
			w.Errorf("the lock is held for %v more, without a holder", w.mini.TTL("orders"))
		}
	})
}

// cutOff is for a session whose server cannot be reached for so long.
func (w *world) cutOff(d time.Duration) {
	w.wire.Refuse(true)
	w.wire.CutAll()
	time.Sleep(d)
	w.wire.Refuse(false)
}

// A process is cut off while it waits in a queue, and gives up. Its place is kept for longer than
// a lease lasts; so it is taken back also when the server is back after more than that.
func TestSettle_outlastsThePatience(t *testing.T) {
	inBubble(t, func(w *world) {
		const patience = 2 * leaseTime
		h := w.take(w.b, fair, w.Context())
		ctx, cancel := context.WithCancel(w.Context())
		gone := w.waitingFor(w.a, ctx, w.a.NewSpec(fair, "orders", []lock.Option{lock.WithWaiterTimeout(patience)}))
		time.AfterFunc(time.Millisecond, cancel)
		w.cutOff(patience - 2*pollTime)
		<-gone
		time.Sleep(pollTime + pollTime/2)
		if places, _ := w.mini.List("redisson_lock_queue:{orders}"); len(places) != 0 {
			w.Errorf("in the queue: %q", places)
		}
		w.unlock(h)
	})
}

// A copy of a question is carried out nearly an operation time-out after it broke off, and the
// server is cut off then. It is back when the copy has kept the lock for nearly a lease: that is
// longer than a lease after the question, and the lock is given back.
func TestSettle_outlastsALateCopy(t *testing.T) {
	inBubble(t, func(w *world) {
		k, carryOut := w.brokenOnce()
		h, err := w.a.Lock(w.Context(), w.a.NewSpec(k, "orders", nil))
		if err != nil {
			w.Fatal(err)
		}
		w.unlock(h)
		time.Sleep(opTime - time.Millisecond) // a moment later it is looked at again
		const ms = time.Millisecond
		time.AfterFunc(opTime, carryOut)
		w.cutOff(leaseTime + opTime - pollTime - 300*ms)
		if !w.mini.Exists("orders") {
			w.Error("the copy was not carried out")
		}
		time.Sleep(pollTime + 100*ms)
		if left := w.mini.TTL("orders"); w.mini.Exists("orders") {
			w.Errorf("the lock is held for %v more, without a holder", left)
		}
	})
}

// passes counts the releases of k, those of what settles among them. The nth is carried out, and
// answered when answer is closed.
func passes(k *Kind, nth int32, answer <-chan struct{}) (sent *atomic.Int32) {
	sent = new(atomic.Int32)
	pass := k.Pass
	k.Pass = func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, p luascripts.Pass) (luascripts.Passed, error) {
		n := sent.Add(1)
		reply, err := pass(ctx, rdb, k, owner, p)
		if n == nth {
			<-answer
		}
		return reply, err
	}
	return sent
}

// There is another doubt about a hold while the one before is being settled. The same worker
// settles both, at once and one after the other.
func TestSettle_oneAtATime(t *testing.T) {
	inBubble(t, func(w *world) {
		late, answer := make(chan struct{}), make(chan struct{})
		k, _ := w.brokenTwice(late)
		sent := passes(k, 2, answer) // the release, and the first look
		w.unlock(w.take(w.a, k, w.Context()))
		synctest.Wait() // the first look is under way
		close(late)
		synctest.Wait()
		if n := sent.Load(); n != 2 {
			w.Errorf("%d commands while the first look has no answer, want it and the release", n)
		}
		close(answer)
		synctest.Wait()
		if n := sent.Load(); n != 3 {
			w.Errorf("%d commands, want a look at the second doubt", n)
		}
	})
}

// Close looks once at each doubt that waits for another look. It looks once more at a doubt that
// the session is looking at.
func TestSettle_closeLooksOnce(t *testing.T) {
	for _, during := range []bool{false, true} {
		t.Run(fmt.Sprintf("during a look %v", during), func(t *testing.T) {
			inBubble(t, func(w *world) {
				answer := make(chan struct{})
				k, _ := w.brokenOnce()
				nth := int32(0)
				if during {
					nth = 3 // the release, and the second look
				}
				sent := passes(k, nth, answer)
				w.unlock(w.take(w.a, k, w.Context()))
				time.Sleep(opTime + time.Millisecond)
				if n := sent.Load(); n != 3 {
					w.Errorf("%d commands before, want the release and two looks", n)
				}
				closed := make(chan error, 1)
				go func() { closed <- w.a.Close(context.Background()) }()
				synctest.Wait()
				close(answer)
				if err := <-closed; err != nil {
					w.Error(err)
				}
				if n := sent.Load() - 3; n != 1 {
					w.Errorf("%d looks while it closes, want 1", n)
				}
			})
		})
	}
}

// What is in doubt at one node of a cluster does not wait for what is in doubt at another.
func TestSettle_eachNodeForItself(t *testing.T) {
	inBubble(t, func(w *world) {
		w.a.nodes.sliced = true
		first, second := &tenure{s: w.a, spec: &Spec{slot: 0}}, &tenure{s: w.a, spec: &Spec{slot: 16383}}
		w.a.nodes.slots.Due(time.Hour) // nobody asks the server, which is no cluster
		all := &w.a.settlers
		if a, b := all.of(w.a, first), all.of(w.a, second); a == b || a != all.of(w.a, first) || b != all.of(w.a, second) {
			w.Error("want one settler for each node")
		}
		w.a.nodes.sliced = false
	})
}

// Two locks are in doubt, and are looked at again at the same moment. The first look has no answer: the second does not wait for it.
func TestSettle_severalAtOnce(t *testing.T) {
	inBubble(t, func(w *world) {
		var stuck atomic.Bool
		goes := make(chan struct{})
		copies := make(map[string]func())
		k := gated(func(acquire acquireFunc) acquireFunc {
			return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Question) (luascripts.Acquired, error) {
				if copies[k.Lock] != nil {
					return acquire(ctx, rdb, k, q)
				}
				copies[k.Lock] = func() {
					if a, err := luascripts.AcquireReentrant(w.Context(), w.rdb, k, q); err != nil || a.Verdict != luascripts.Done {
						w.Errorf("%+v, %v", a, err)
					}
				}
				return luascripts.Acquired{}, io.EOF
			}
		}, func(pass passFunc) passFunc {
			return func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, p luascripts.Pass) (luascripts.Passed, error) {
				if stuck.CompareAndSwap(true, false) {
					<-goes
				}
				return pass(ctx, rdb, k, owner, p)
			}
		})
		var holds []lock.Hold
		for _, name := range []string{"a", "b"} {
			h, err := w.a.Lock(w.Context(), w.a.NewSpec(k, name, nil))
			if err != nil {
				w.Fatal(err)
			}
			holds = append(holds, h)
		}
		for _, h := range holds {
			w.unlock(h)
		}
		time.Sleep(opTime - time.Millisecond)
		for _, carryOut := range copies {
			carryOut()
		}
		stuck.Store(true)
		time.Sleep(2 * time.Millisecond)
		if n := len(w.mini.Keys()); n != 1 {
			w.Errorf("%d locks are held by nobody, want the one whose look has no answer", n)
		}
		close(goes)
	})
}

// Two locks are in doubt, and the look at one of them is further away. There is a new doubt about that one: it is looked at at once, and
// does not wait for the other.
func TestSettle_anotherDoubtComesFirst(t *testing.T) {
	inBubble(t, func(w *world) {
		late := make(chan struct{})
		k, _ := w.brokenTwice(late)
		sent := passes(k, 0, nil)
		w.unlock(w.take(w.a, k, w.Context()))
		time.Sleep(opTime + time.Second) // it was looked at again, and the next look is twice as far away
		other, _ := w.brokenOnce()
		h, err := w.a.Lock(w.Context(), w.a.NewSpec(other, "other", nil))
		if err != nil {
			w.Fatal(err)
		}
		w.unlock(h)
		synctest.Wait()
		before := sent.Load()
		close(late)
		synctest.Wait()
		if n := sent.Load() - before; n != 1 {
			w.Errorf("%d looks at the new doubt, want 1", n)
		}
	})
}

// Close comes while one release waits to be repeated, after an error, and another one for the last look. The look is due now, and so
// it is the first.
func TestSettle_closeHurries(t *testing.T) {
	now := time.Now()
	var q settler
	repeat, look := &doubt{due: now.Add(time.Second)}, &doubt{due: now.Add(time.Minute), looks: true, broken: true}
	heap.Push(&q.queue, repeat)
	heap.Push(&q.queue, look)
	q.hurryLocked()
	if q.queue[0] != look || look.due.After(time.Now()) || look.broken || !repeat.due.Equal(now.Add(time.Second)) {
		t.Errorf("the first is %+v, then comes %+v", q.queue[0], q.queue[1])
	}
}

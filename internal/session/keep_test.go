package session

import (
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
)

// How waiters that stand in a queue in Redis hear that their turn has come.

// A change of holder costs three commands: the question that stands in line, the release, and
// the question of the waiter that is told. All waiters of a client listen at one channel.
func TestQueue_commandsOfAChange(t *testing.T) {
	inBubble(t, func(w *world) {
		const waiters = 40
		var scripts, subscriptions atomic.Int64
		w.wire.OnRequest(func(req [][]byte) (a redistest.Action) {
			switch string(req[0]) {
			case "EVALSHA", "EVAL":
				scripts.Add(1)
			case "SUBSCRIBE", "UNSUBSCRIBE":
				subscriptions.Add(1)
			}
			return a
		})
		h := w.take(w.b, fair, w.Context())
		served := w.inOrder(waiters, func(int) lock.Hold { return w.take(w.a, fair, w.Context()) })
		w.unlock(h)
		if order := served(); !slices.IsSorted(order) || len(order) != waiters {
			w.Errorf("served in the order %v", order)
		}
		if n := scripts.Load(); n > 3*waiters+5 { // and a heartbeat when they listen
			w.Errorf("%d scripts for %d changes of holder", n, waiters)
		}
		if n := subscriptions.Load(); n != 1 {
			w.Errorf("%d commands to listen or to listen no more, want 1", n)
		}
	})
}

// 1: a has waited before, and still listens. 2: it asks again; the answer takes long. 3: the
// lock is released before the answer is there, and the message comes first. The waiter asks
// when it has its answer, and does not wait for a heartbeat.
func TestQueue_messageBeforeTheAnswer(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.b, fair, w.Context()) // 1
		served := w.inOrder(1, func(int) lock.Hold { return w.take(w.a, fair, w.Context()) })
		w.unlock(h)
		served()

		h = w.take(w.b, fair, w.Context())
		const late = 100 * time.Millisecond
		served = w.inOrder(1, func(int) lock.Hold { return w.take(w.a, slow(*fair, late), w.Context()) }) // 2
		w.unlock(h)                                                                                       // 3
		synctest.Wait()
		freed := time.Now()
		served()
		if took := time.Since(freed); took > 2*late {
			w.Errorf("it took %v, although two answers take %v", took, 2*late)
		}
	})
}

// If an owner of Redisson has the lock, or stands first in the queue, its release tells the waiter of the
// session at a channel of the waiter's own, and the waiter listens there. Behind owners of this module it does not.
func TestQueue_toldByRedisson(t *testing.T) {
	const (
		theirs   = "3f0c2a52-6f8e-4a3b-9d53-2f9b1c6f5a10:1"
		channel  = "redisson_lock__channel:{orders}:"
		queue    = "redisson_lock_queue:{orders}"
		timeouts = "redisson_lock_timeout:{orders}"
	)
	inBubble(t, func(w *world) {
		told := func(what string) {
			w.Helper()
			served := w.inOrder(1, func(int) lock.Hold { return w.take(w.a, fair, w.Context()) })
			all, err := w.mini.List(queue)
			if err != nil {
				w.Fatal(err)
			}
			it := all[len(all)-1]
			if n := w.mini.PubSubNumSub(channel + it)[channel+it]; n != 1 {
				w.Errorf("%s: %d listen at the channel of the waiter", what, n)
			}
			w.mini.Del("orders")
			w.mini.Del(timeouts)
			w.mini.Del(queue)
			if _, err := w.mini.RPush(queue, it); err != nil { // those before it were served
				w.Fatal(err)
			}
			w.mini.Publish(channel+it, "0")
			freed := time.Now()
			served()
			if took := time.Since(freed); took != 0 {
				w.Errorf("%s: it took %v, although it was told", what, took)
			}
		}
		w.mini.HSet("orders", theirs, "1")
		told("one of Redisson's has it")

		w.take(w.b, fair, w.Context())
		w.mini.RPush(queue, theirs)
		w.mini.ZAdd(timeouts, float64(time.Now().Add(time.Hour).UnixMilli()), theirs)
		told("one of Redisson's is before it")

		h := w.take(w.b, fair, w.Context())
		served := w.inOrder(1, func(int) lock.Hold { return w.take(w.a, fair, w.Context()) })
		if all := w.mini.PubSubChannels(channel + "*"); len(all) != 1 || all[0] != channel+w.a.id+":fair" {
			w.Errorf("without an owner of Redisson, the waiters listen at %q", all)
		}
		w.unlock(h)
		served()
	})
}

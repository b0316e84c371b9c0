package session

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/lockstate"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
)

// inLine starts n waiters for the fair lock in session a, one after the other. served waits for all of them, and fails
// the test unless they were served in this order.
func (w *world) inLine(n int) (served func()) {
	w.Helper()
	return w.inLineAs(n, func(int) lock.Hold { return w.take(w.a, fair, w.Context()) })
}

func (w *world) inLineAs(n int, wait func(i int) lock.Hold) (served func()) {
	order := w.inOrder(n, wait)
	return func() { w.Helper(); w.wantServed(order(), n) }
}

func TestQueue_oneHeartbeatForAll(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.b, fair, w.Context())
		served := w.inLine(50)
		time.Sleep(pollTime)
		n := w.scripts()
		time.Sleep(60 * time.Second)
		if got := n.Load(); got < 59 || got > 61 {
			w.Errorf("50 waiters sent %d commands in a minute, want one a second", got)
		}
		released := time.Now()
		w.unlock(h)
		served()
		w.wantTook(released, 0) // each waiter is notified
	})
}

// inspectQueue returns the waiters of the fair lock.
func (w *world) inspectQueue() []lock.Waiter {
	w.Helper()
	state, err := Inspect(w.Context(), w.b, w.b.NewSpec(fair, "orders", nil), luascripts.InspectFair)
	if err != nil {
		w.Fatal(err)
	}
	return state.Waiters
}

// A waiter with a short waiter timeout needs more frequent heartbeats than the first in the queue.
func TestQueue_heartbeatsForTheShortestTimeout(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.b, fair, w.Context())
		waiterTimeout := []time.Duration{time.Minute, 300 * time.Millisecond, time.Minute}
		sessions := []*Session{w.a, w.a, w.b}
		served := w.inLineAs(3, func(i int) lock.Hold {
			return w.take(sessions[i], fair, w.Context(), lock.WithWaiterTimeout(waiterTimeout[i]))
		})
		for range 20 {
			time.Sleep(450 * time.Millisecond)
			waiters := w.inspectQueue()
			if len(waiters) != 3 {
				w.Fatalf("%+v", waiters)
			}
			for _, waiter := range waiters {
				if waiter.WaiterTimeout <= 0 {
					w.Fatalf("a living waiter counts as dead: %+v", waiters)
				}
			}
		}
		w.unlock(h)
		served()
	})
}

// No message arrives, and the reply to the heartbeat says whose turn it is.
func TestQueue_servedWithoutMessages(t *testing.T) {
	inBubble(t, func(w *world) {
		w.withoutPubSub()
		h := w.take(w.b, fair, w.Context())
		served := w.inLine(3)
		time.Sleep(10 * time.Second)
		released := time.Now()
		w.unlock(h)
		served()
		w.wantWithin(released, 3*pollTime)
	})
}

// A message is lost with the connection for notifications. After the new connection is confirmed, the waiters send one
// heartbeat for all.
func TestQueue_oneHeartbeatAfterAReconnect(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.b, fair, w.Context())
		served := w.inLine(20)
		time.Sleep(pollTime / 4)
		// Longer than all confirmations, even on a slow machine, because a confirmation after the reply triggers
		// another heartbeat.
		n := w.slowScripts(time.Millisecond)
		w.wire.CutAll()
		time.Sleep(pollTime / 2)
		if got := n.Load(); got > 2 {
			w.Errorf("20 waiters sent %d commands after a reconnect, want one or two heartbeats", got)
		}
		w.unlock(h)
		served()
	})
}

// All waiters of a process are disconnected. A waiter behind them waits until all of them count as dead, and sends no
// extra requests. They return to the end of the queue.
func TestQueue_manyDeadCostOneTimeout(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.b, fair, w.Context())
		away := w.inOrder(20, func(int) lock.Hold { return w.take(w.a, fair, w.Context()) })
		time.Sleep(9 * pollTime / 10) // the heartbeats of the two sessions are not at the same time
		behind := w.goLock(w.b, fair, w.Context())
		time.Sleep(10*time.Second + pollTime/5)
		w.cut()
		cut := time.Now()
		w.unlock(h)
		h = <-behind
		if took := time.Since(cut); took < lock.DefaultWaiterTimeout-2*pollTime || took > lock.DefaultWaiterTimeout+10*time.Millisecond {
			w.Errorf("served after %v, want one waiter timeout of %v, minus the age of the last heartbeat", took, lock.DefaultWaiterTimeout)
		}
		w.wire.Refuse(false)
		time.Sleep(time.Minute) // the others return in the meantime
		w.unlock(h)
		if order := away(); len(order) != 20 {
			w.Errorf("%d of 20 were served", len(order))
		}
	})
}

// A waiter that leaves is removed immediately, and the next waiter is notified.
func TestQueue_leavingNotifiesTheNext(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.b, fair, w.Context())
		ctx, cancel := context.WithCancel(w.Context())
		gone := w.beginLock(w.a, fair, ctx)
		next := w.goLock(w.b, fair, w.Context())
		time.Sleep(10*time.Second + pollTime/2) // not at a heartbeat
		// It is the turn of the first waiter, but the message is lost; then the waiter leaves.
		w.wire.Freeze(true)
		w.unlock(h)
		time.Sleep(pollTime / 4)
		left := time.Now()
		cancel()
		w.wire.Freeze(false)
		w.wantErr(<-gone, context.Canceled)
		w.unlock(<-next)
		w.wantTook(left, 0)
	})
}

// A new waiter must not delay the heartbeat of the existing waiters.
func TestQueue_heartbeatsGoOnWhileOthersCome(t *testing.T) {
	inBubble(t, func(w *world) {
		w.withoutPubSub() // its confirmation would trigger a heartbeat
		h := w.take(w.b, fair, w.Context())
		served := w.inLine(1)
		var comers sync.WaitGroup
		for range 60 {
			time.Sleep(pollTime / 4)
			comers.Go(func() { w.unlock(w.take(w.a, fair, w.Context())) })
			synctest.Wait()
			if first := w.inspectQueue()[0]; first.WaiterTimeout < lock.DefaultWaiterTimeout-2*pollTime {
				w.Fatalf("the first in the queue sent no heartbeat: %+v", first)
			}
		}
		w.unlock(h)
		served()
		comers.Wait()
	})
}

// The caller leaves before the reply that it was queued, so it must be removed. A reply that took a second would be
// uncertain in any case.
func TestQueue_leftBeforeTheReply(t *testing.T) {
	inBubble(t, func(w *world) {
		w.unlock(w.take(w.a, fair, w.Context())) // loads the scripts
		h := w.take(w.b, fair, w.Context())
		w.onNext(redistest.Action{DelayReply: 900 * time.Millisecond})
		w.wantFail(w.a.Lock, w.within(500*time.Millisecond), w.a.NewSpec(fair, "orders", nil), context.DeadlineExceeded)
		time.Sleep(600 * time.Millisecond) // for the reply, and its reconciliation
		synctest.Wait()
		w.wantQueued(0)
		w.unlock(h)
	})
}

// The replies to heartbeats take longer than a heartbeat interval. They still report whose turn it is.
func TestQueue_repliesSlowerThanHeartbeats(t *testing.T) {
	inBubble(t, func(w *world) {
		w.withoutPubSub()
		h := w.take(w.b, fair, w.Context())
		far := slow(*fair, 120*time.Millisecond)
		served := w.inLineAs(2, func(int) lock.Hold {
			return w.take(w.a, far, w.Context(), lock.WithWaiterTimeout(300*time.Millisecond))
		})
		time.Sleep(10 * time.Second)
		released := time.Now()
		w.unlock(h)
		served()
		w.wantWithin(released, 2*time.Second)
	})
}

// The request of one waiter takes long. The other waiters of its process send heartbeats in the meantime.
func TestQueue_heartbeatsDuringARequest(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.b, fair, w.Context())
		var late atomic.Bool
		hangs := onRequest(fair, func(r request) (luascripts.Acquired, error) {
			a, err := r.send()
			if late.CompareAndSwap(true, false) {
				time.Sleep(2500 * time.Millisecond) // one of several connections
			}
			return a, err
		})
		served := w.inLineAs(4, func(i int) lock.Hold {
			s, k := w.a, hangs
			if i >= 2 {
				s, k = w.b, fair
			}
			return w.take(s, k, w.Context(), lock.WithWaiterTimeout(time.Second))
		})
		time.Sleep(time.Second)
		late.Store(true)
		w.unlock(h)
		served()
	})
}

// How waiters that are queued in Redis are notified of their turn.

// A change of holder costs three commands: the request that is queued, the release, and the request of the notified
// waiter. All waiters of a client share one channel.
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
		served := w.inLine(waiters)
		w.unlock(h)
		served()
		if n := scripts.Load(); n > 3*waiters+5 { // and a heartbeat after the subscription
			w.Errorf("%d scripts for %d changes of holder", n, waiters)
		}
		w.wantSent(&subscriptions, 1)
	})
}

// 1: a has waited before, and is still subscribed. 2: it waits again; the reply takes long. 3: the lock is released
// before the reply, and the message arrives first. The waiter sends a request after its reply, without waiting for a
// heartbeat.
func TestQueue_messageBeforeTheReply(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.b, fair, w.Context()) // 1
		served := w.inLine(1)
		w.unlock(h)
		served()

		h = w.take(w.b, fair, w.Context())
		const late = 100 * time.Millisecond
		served = w.inLineAs(1, func(int) lock.Hold { return w.take(w.a, slow(*fair, late), w.Context()) }) // 2
		w.unlock(h)                                                                                        // 3
		synctest.Wait()
		released := time.Now()
		served()
		w.wantWithin(released, 2*late)
	})
}

// If an owner of Redisson has the lock or is first in the queue, its release publishes on the waiter's own channel, and
// the waiter subscribes to that. Behind owners of leasehold it does not.
func TestQueue_notifiedByRedisson(t *testing.T) {
	const (
		theirs   = "3f0c2a52-6f8e-4a3b-9d53-2f9b1c6f5a10:1"
		channel  = "redisson_lock__channel:{orders}:"
		queue    = "redisson_lock_queue:{orders}"
		timeouts = "redisson_lock_timeout:{orders}"
	)
	inBubble(t, func(w *world) {
		notified := func(what string) {
			w.Helper()
			served := w.inLine(1)
			all := w.inQueue()
			it := all[len(all)-1]
			if n := w.mini.PubSubNumSub(channel + it)[channel+it]; n != 1 {
				w.Errorf("%s: %d listen at the channel of the waiter", what, n)
			}
			w.mini.Del("orders")
			w.mini.Del(timeouts)
			w.mini.Del(queue)
			if _, err := w.mini.RPush(queue, it); err != nil { // earlier entries were served
				w.Fatal(err)
			}
			w.mini.Publish(channel+it, "0")
			released := time.Now()
			served()
			w.wantTook(released, 0)
		}
		w.mini.HSet("orders", theirs, "1")
		notified("one of Redisson's has it")

		w.take(w.b, fair, w.Context())
		w.mini.RPush(queue, theirs)
		w.mini.ZAdd(timeouts, float64(time.Now().Add(time.Hour).UnixMilli()), theirs)
		notified("one of Redisson's is before it")

		h := w.take(w.b, fair, w.Context())
		served := w.inLine(1)
		if all := w.mini.PubSubChannels(channel + "*"); len(all) != 1 || all[0] != channel+w.a.id+":fair" {
			w.Errorf("without an owner of Redisson, the waiters listen at %q", all)
		}
		w.unlock(h)
		served()
	})
}

// How a fair lock is handed off inside a process and between processes.

// Every change of holder is signaled by the reply to the release, by a message, or inside the process. No waiter
// depends on the heartbeat, which is sent once per poll interval.
func TestQueue_noChangeWaitsForAHeartbeat(t *testing.T) {
	for _, processes := range []int{1, 2} {
		for _, n := range []int{1, 2, 3, 10, 70} {
			t.Run(fmt.Sprintf("%dx%d", processes, n), func(t *testing.T) {
				inBubble(t, func(w *world) {
					start := time.Now()
					var inside atomic.Int32
					w.use(w.Context(), fair, []*Session{w.a, w.b}[:processes], n, 60/n+2, func(*Session) {
						if inside.Add(1) != 1 {
							w.Error("two have the lock")
						}
						inside.Add(-1)
					})()
					w.wantWithin(start, pollTime/2-1)
				})
			})
		}
	}
}

// handedOffHold returns a hold that was handed off inside session a, without waiters. Its release must remove the queue
// position of its call. It has these options.
func (w *world) handedOffHold(opts ...lock.Option) lock.Hold {
	w.Helper()
	h := w.take(w.a, fair, w.Context())
	next := w.goLock(w.a, fair, w.Context())
	last := w.goLock(w.a, fair, w.Context(), append(opts, lock.WithWaiterTimeout(minute))...) // so that it stays in the queue
	w.unlock(h)                                                                               // the reply grants it to the first waiter, and names the second as next
	second := <-next
	time.Sleep(time.Millisecond)
	w.unlock(second)
	third := <-last
	if third.Owner() != second.Owner() || third.Token() <= second.Token() {
		w.Fatal("the lock was not handed off")
	}
	w.wantQueued(1)
	return third
}

// The reply to a release grants the lock to the next waiter of its process, and that waiter sends no request.
func TestQueue_nextOwnerSendsNothing(t *testing.T) {
	inBubble(t, func(w *world) {
		w.unlock(w.take(w.a, fair, w.Context())) // loads the script
		h := w.take(w.a, fair, w.Context())
		next := w.goLock(w.a, fair, w.Context())
		time.Sleep(pollTime / 2)
		scripts := w.scripts()
		w.unlock(h)
		h = <-next
		w.wantSent(scripts, 1)
		w.unlock(h)
	})
}

// The reply to a request names the next waiters of the process, like the reply to a release. The lock is handed off to
// them, and none of them sends a request.
func TestQueue_handedOffAfterARequest(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.b, fair, w.Context())
		holds := make(chan lock.Hold)
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				h := w.take(w.a, fair, w.Context())
				time.Sleep(time.Millisecond)
				holds <- h
				w.unlock(h)
			})
			time.Sleep(2 * lockstate.EntryPause)
		}
		w.unlock(h)
		first := <-holds
		for range 2 {
			if next := <-holds; next.Owner() != first.Owner() || next.Token() <= first.Token() {
				w.Error("the next owner sent a request")
			}
		}
		wg.Wait()
	})
}

func (w *world) inQueue() []string {
	queue, _ := w.mini.List("redisson_lock_queue:{orders}")
	return queue
}

// The owner strings from which an acquisition was handed off are removed from the queue with it, however it ends.
func TestHandedOff_leavesNothing(t *testing.T) {
	forEach(t, map[string]func(w *world, h lock.Hold){
		"unlock": func(w *world, h lock.Hold) { w.unlock(h) },
		"the holder keeps the lock": func(w *world, _ lock.Hold) {
			time.Sleep(lockstate.ServedPause)
			synctest.Wait()
			n := w.scripts()
			time.Sleep(3 * pollTime)
			w.wantSent(n, 0)
		},
		"the holder keeps the lock, and Redis is unreachable for a while": func(w *world, _ lock.Hold) {
			w.onNext(redistest.Action{DropRequest: true})
			time.Sleep(2 * pollTime)
		},
		"close": func(w *world, _ lock.Hold) { w.close(w.a) },
		"an Unlock with a lost reply": func(w *world, h lock.Hold) {
			w.onNext(redistest.Action{DropReply: true})
			_ = h.Unlock(w.Context())
			time.Sleep(10 * time.Second)
		},
		"an Unlock that is executed late": func(w *world, h lock.Hold) {
			w.wire.OnRequest(func([][]byte) redistest.Action { return redistest.Action{DropRequest: true} })
			w.wantNotErrs(h.Unlock(w.Context()))
			w.wire.OnRequest(nil)
			time.Sleep(4 * time.Second)
		},
		"it is lost": func(w *world, h lock.Hold) {
			w.wire.OnRequest(func(req [][]byte) redistest.Action { // no other command about the queue gets through before
				about := slices.ContainsFunc(req, func(arg []byte) bool { return strings.Contains(string(arg), "lock_queue") })
				return redistest.Action{DropRequest: about}
			})
			w.mini.Del("orders")
			<-h.Context().Done()
			w.wantErr(h.Err(), lock.ErrLost)
			w.wire.OnRequest(nil)
			time.Sleep(2 * pollTime)
		},
	}, func(w *world, end func(w *world, h lock.Hold)) {
		h := w.handedOffHold()
		end(w, h)
		synctest.Wait()
		w.wantQueued(0)
		_ = h.Unlock(w.Context())
	})
}

// The same for a lock that stays locked after its Unlock, even if Redis is unavailable at first.
func TestHandedOff_leavesNothingButTheLock(t *testing.T) {
	forEach(t, map[string]redistest.Action{"at once": {}, "later": {DropRequest: true}}, func(w *world, act redistest.Action) {
		h := w.handedOffHold(lock.WithMinHold(minute))
		w.onNext(act)
		w.unlock(h)
		w.wantQueued(0)
		if left := w.mini.TTL("orders"); left > minute || left < minute-time.Second {
			w.Errorf("the lock is kept for %v", left)
		}
		time.Sleep(minute)
	})
}

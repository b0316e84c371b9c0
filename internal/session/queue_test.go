package session

import (
	"context"
	"errors"
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
	"github.com/redis/rueidis"
)

func TestQueue_oneHeartbeatForAll(t *testing.T) {
	inBubble(t, func(w *world) {
		const waiters = 50
		h := w.take(w.b, fair, w.Context())
		served := w.inOrder(waiters, func(int) lock.Hold { return w.take(w.a, fair, w.Context()) })
		time.Sleep(pollTime)
		n := w.scripts()
		time.Sleep(60 * time.Second)
		if got := n.Load(); got < 59 || got > 61 {
			w.Errorf("%d waiters sent %d commands in a minute, want one a second", waiters, got)
		}
		released := time.Now()
		w.unlock(h)
		if order := served(); !slices.IsSorted(order) || len(order) != waiters {
			w.Errorf("served in the order %v", order)
		}
		if took := time.Since(released); took != 0 {
			w.Errorf("it took %v, although each waiter is notified", took)
		}
	})
}

// A waiter with a short waiter timeout needs more frequent heartbeats than the first in the queue.
func TestQueue_heartbeatsForTheShortestTimeout(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.b, fair, w.Context())
		waiterTimeout := []time.Duration{time.Minute, 300 * time.Millisecond, time.Minute}
		sessions := []*Session{w.a, w.a, w.b}
		served := w.inOrder(3, func(i int) lock.Hold {
			return w.take(sessions[i], fair, w.Context(), lock.WithWaiterTimeout(waiterTimeout[i]))
		})
		for range 20 {
			time.Sleep(450 * time.Millisecond)
			state, err := Inspect(w.Context(), w.b, w.b.NewSpec(fair, "orders", nil), luascripts.InspectFair)
			if err != nil || len(state.Waiters) != 3 {
				w.Fatalf("%v: %+v", err, state)
			}
			for _, waiter := range state.Waiters {
				if waiter.WaiterTimeout <= 0 {
					w.Fatalf("a living waiter counts as dead: %+v", state.Waiters)
				}
			}
		}
		w.unlock(h)
		if order := served(); !slices.IsSorted(order) {
			w.Errorf("served in the order %v", order)
		}
	})
}

// No message arrives, and the reply to the heartbeat says whose turn it is.
func TestQueue_servedWithoutMessages(t *testing.T) {
	inBubble(t, func(w *world) {
		w.wire.OnRequest(func(req [][]byte) redistest.Action {
			return redistest.Action{DropRequest: string(req[0]) == "SUBSCRIBE"}
		})
		h := w.take(w.b, fair, w.Context())
		served := w.inOrder(3, func(int) lock.Hold { return w.take(w.a, fair, w.Context()) })
		time.Sleep(10 * time.Second)
		released := time.Now()
		w.unlock(h)
		if order := served(); !slices.IsSorted(order) {
			w.Errorf("served in the order %v", order)
		}
		if took := time.Since(released); took > 3*pollTime {
			w.Errorf("three waiters were served within %v, want a poll interval each", took)
		}
	})
}

// A message is lost with the connection for notifications. After the new connection is confirmed, the waiters send one
// heartbeat for all.
func TestQueue_oneHeartbeatAfterAReconnect(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.b, fair, w.Context())
		served := w.inOrder(20, func(int) lock.Hold { return w.take(w.a, fair, w.Context()) })
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
		behind := make(chan time.Time)
		go func() {
			h := w.take(w.b, fair, w.Context())
			behind <- time.Now()
			time.Sleep(time.Minute) // the others return in the meantime
			w.unlock(h)
			close(behind)
		}()
		synctest.Wait()
		time.Sleep(10*time.Second + pollTime/5)
		w.wire.Refuse(true)
		w.wire.CutAll()
		cut := time.Now()
		w.unlock(h)
		served := <-behind
		if took := served.Sub(cut); took < lock.DefaultWaiterTimeout-2*pollTime || took > lock.DefaultWaiterTimeout+10*time.Millisecond {
			w.Errorf("served after %v, want one waiter timeout of %v, minus the age of the last heartbeat", took, lock.DefaultWaiterTimeout)
		}
		w.wire.Refuse(false)
		if order := away(); len(order) != 20 {
			w.Errorf("%d of 20 were served", len(order))
		}
		if _, more := <-behind; more {
			w.Error("served twice")
		}
	})
}

// A waiter that leaves is removed immediately, and the next waiter is notified.
func TestQueue_leavingNotifiesTheNext(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.b, fair, w.Context())
		ctx, cancel := context.WithCancel(w.Context())
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			if _, err := w.a.Lock(ctx, w.a.NewSpec(fair, "orders", nil)); !errors.Is(err, context.Canceled) {
				w.Error(err)
			}
		}()
		synctest.Wait()
		served := w.inOrder(1, func(int) lock.Hold { return w.take(w.b, fair, w.Context()) })
		time.Sleep(10*time.Second + pollTime/2) // not at a heartbeat
		// It is the turn of the first waiter, but the message is lost; then the waiter leaves.
		w.wire.Freeze(true)
		w.unlock(h)
		time.Sleep(pollTime / 4)
		left := time.Now()
		cancel()
		w.wire.Freeze(false)
		<-gone
		served()
		if took := time.Since(left); took != 0 {
			w.Errorf("the next was served %v after the first had left", took)
		}
	})
}

// A new waiter must not delay the heartbeat of the existing waiters.
func TestQueue_heartbeatsGoOnWhileOthersCome(t *testing.T) {
	inBubble(t, func(w *world) {
		w.wire.OnRequest(func(req [][]byte) redistest.Action { // its confirmation would trigger a heartbeat
			return redistest.Action{DropRequest: string(req[0]) == "SUBSCRIBE"}
		})
		h := w.take(w.b, fair, w.Context())
		served := w.inOrder(1, func(int) lock.Hold { return w.take(w.a, fair, w.Context()) })
		var comers sync.WaitGroup
		for range 60 {
			time.Sleep(pollTime / 4)
			comers.Go(func() { w.unlock(w.take(w.a, fair, w.Context())) })
			synctest.Wait()
			state, err := Inspect(w.Context(), w.b, w.b.NewSpec(fair, "orders", nil), luascripts.InspectFair)
			if err != nil || state.Waiters[0].WaiterTimeout < lock.DefaultWaiterTimeout-2*pollTime {
				w.Fatalf("the first in the queue sent no heartbeat: %v, %+v", err, state.Waiters[0])
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
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayReply: 900 * time.Millisecond}))
		ctx, cancel := context.WithTimeout(w.Context(), 500*time.Millisecond)
		defer cancel()
		if _, err := w.a.Lock(ctx, w.a.NewSpec(fair, "orders", nil)); !errors.Is(err, context.DeadlineExceeded) {
			w.Error(err)
		}
		time.Sleep(600 * time.Millisecond) // for the reply, and its reconciliation
		synctest.Wait()
		if queue, _ := w.mini.List("redisson_lock_queue:{orders}"); len(queue) != 0 {
			w.Errorf("a waiter that left is still queued: %q", queue)
		}
		w.unlock(h)
	})
}

// The replies to heartbeats take longer than a heartbeat interval. They still report whose turn it is.
func TestQueue_repliesSlowerThanHeartbeats(t *testing.T) {
	inBubble(t, func(w *world) {
		w.wire.OnRequest(func(req [][]byte) redistest.Action { // no other notification arrives
			return redistest.Action{DropRequest: string(req[0]) == "SUBSCRIBE"}
		})
		h := w.take(w.b, fair, w.Context())
		far := slow(*fair, 120*time.Millisecond)
		served := w.inOrder(2, func(int) lock.Hold {
			return w.take(w.a, far, w.Context(), lock.WithWaiterTimeout(300*time.Millisecond))
		})
		time.Sleep(10 * time.Second)
		released := time.Now()
		w.unlock(h)
		if order := served(); !slices.IsSorted(order) {
			w.Errorf("served in the order %v", order)
		}
		if took := time.Since(released); took > 2*time.Second {
			w.Errorf("two waiters were served within %v", took)
		}
	})
}

// The request of one waiter takes long. The other waiters of its process send heartbeats in the meantime.
func TestQueue_heartbeatsDuringARequest(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.b, fair, w.Context())
		var late atomic.Bool
		hangs := *fair
		hangs.Acquire = func(ctx context.Context, rdb rueidis.Client, keys luascripts.Keys, q luascripts.Request) (luascripts.Acquired, error) {
			a, err := luascripts.AcquireFair(ctx, rdb, keys, q)
			if late.CompareAndSwap(true, false) {
				time.Sleep(2500 * time.Millisecond) // one of several connections
			}
			return a, err
		}
		sessions := []*Session{w.a, w.a, w.b, w.b}
		served := w.inOrder(4, func(i int) lock.Hold {
			kind := fair
			if sessions[i] == w.a {
				kind = &hangs
			}
			return w.take(sessions[i], kind, w.Context(), lock.WithWaiterTimeout(time.Second))
		})
		time.Sleep(time.Second)
		late.Store(true)
		w.unlock(h)
		if order := served(); !slices.IsSorted(order) {
			w.Errorf("served in the order %v", order)
		}
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
		served := w.inOrder(waiters, func(int) lock.Hold { return w.take(w.a, fair, w.Context()) })
		w.unlock(h)
		if order := served(); !slices.IsSorted(order) || len(order) != waiters {
			w.Errorf("served in the order %v", order)
		}
		if n := scripts.Load(); n > 3*waiters+5 { // and a heartbeat after the subscription
			w.Errorf("%d scripts for %d changes of holder", n, waiters)
		}
		if n := subscriptions.Load(); n != 1 {
			w.Errorf("%d commands to listen or to listen no more, want 1", n)
		}
	})
}

// 1: a has waited before, and is still subscribed. 2: it waits again; the reply takes long. 3: the lock is released
// before the reply, and the message arrives first. The waiter sends a request after its reply, without waiting for a
// heartbeat.
func TestQueue_messageBeforeTheReply(t *testing.T) {
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
		released := time.Now()
		served()
		if took := time.Since(released); took > 2*late {
			w.Errorf("it took %v, although two replies take %v", took, 2*late)
		}
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
		losses := func(what string) {
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
			if _, err := w.mini.RPush(queue, it); err != nil { // earlier entries were served
				w.Fatal(err)
			}
			w.mini.Publish(channel+it, "0")
			released := time.Now()
			served()
			if took := time.Since(released); took != 0 {
				w.Errorf("%s: it took %v, although the waiter was notified", what, took)
			}
		}
		w.mini.HSet("orders", theirs, "1")
		losses("one of Redisson's has it")

		w.take(w.b, fair, w.Context())
		w.mini.RPush(queue, theirs)
		w.mini.ZAdd(timeouts, float64(time.Now().Add(time.Hour).UnixMilli()), theirs)
		losses("one of Redisson's is before it")

		h := w.take(w.b, fair, w.Context())
		served := w.inOrder(1, func(int) lock.Hold { return w.take(w.a, fair, w.Context()) })
		if all := w.mini.PubSubChannels(channel + "*"); len(all) != 1 || all[0] != channel+w.a.id+":fair" {
			w.Errorf("without an owner of Redisson, the waiters listen at %q", all)
		}
		w.unlock(h)
		served()
	})
}

// How a fair lock is handed off inside a process and between processes.

// contend makes n goroutines of each session acquire and release the lock for this number of rounds, and checks mutual
// exclusion.
func (w *world) contend(sessions []*Session, n, rounds int, opts ...lock.Option) {
	w.Helper()
	var wg sync.WaitGroup
	var inside atomic.Int32
	for _, s := range sessions {
		for range n {
			wg.Go(func() {
				for range rounds {
					h := w.take(s, fair, w.Context(), opts...)
					if inside.Add(1) != 1 {
						w.Error("two have the lock")
					}
					inside.Add(-1)
					w.unlock(h)
				}
			})
		}
	}
	wg.Wait()
}

// Every change of holder is signaled by the reply to the release, by a message, or inside the process. No waiter
// depends on the heartbeat, which is sent once per poll interval.
func TestQueue_noChangeWaitsForAHeartbeat(t *testing.T) {
	for _, processes := range []int{1, 2} {
		for _, n := range []int{1, 2, 3, 10, 70} {
			t.Run(fmt.Sprintf("%dx%d", processes, n), func(t *testing.T) {
				inBubble(t, func(w *world) {
					start := time.Now()
					w.contend([]*Session{w.a, w.b}[:processes], n, 60/n+2)
					if took := time.Since(start); took >= pollTime/2 {
						w.Errorf("it took %v", took)
					}
				})
			})
		}
	}
}

// handedOffHold returns a hold that was handed off inside session a, without waiters. Its release must remove the queue
// position of its call. It has these options.
func (w *world) handedOffHold(opts ...lock.Option) lock.Hold {
	w.Helper()
	first := w.take(w.a, fair, w.Context())
	holds := make(chan lock.Hold, 2)
	opts = append(opts, lock.WithWaiterTimeout(minute)) // so that it stays in the queue
	for _, opts := range [][]lock.Option{nil, opts} {
		go func() { holds <- w.take(w.a, fair, w.Context(), opts...) }()
		synctest.Wait()
	}
	w.unlock(first) // the reply grants it to the first waiter, and names the second as next
	second := <-holds
	time.Sleep(time.Millisecond)
	w.unlock(second)
	third := <-holds
	if third.Owner() != second.Owner() || third.Token() <= second.Token() {
		w.Fatal("the lock was not handed off")
	}
	if queue := w.inQueue(); len(queue) != 1 {
		w.Fatalf("got %q queued", queue)
	}
	return third
}

// The reply to a release grants the lock to the next waiter of its process, and that waiter sends no request.
func TestQueue_nextOwnerSendsNothing(t *testing.T) {
	inBubble(t, func(w *world) {
		w.unlock(w.take(w.a, fair, w.Context())) // loads the script
		h := w.take(w.a, fair, w.Context())
		next := make(chan lock.Hold)
		go func() { next <- w.take(w.a, fair, w.Context()) }()
		time.Sleep(pollTime / 2)
		scripts := w.slowScripts(0)
		w.unlock(h)
		h = <-next
		if n := scripts.Load(); n != 1 {
			w.Errorf("%d scripts", n)
		}
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
	for name, end := range map[string]func(w *world, h lock.Hold){
		"unlock": func(w *world, h lock.Hold) { w.unlock(h) },
		"the holder keeps the lock": func(w *world, _ lock.Hold) {
			time.Sleep(lockstate.ServedPause)
			synctest.Wait()
			n := w.scripts()
			time.Sleep(3 * pollTime)
			if got := n.Load(); got != 0 {
				w.Errorf("got %d further commands", got)
			}
		},
		"the holder keeps the lock, and Redis is unreachable for a while": func(w *world, _ lock.Hold) {
			w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DropRequest: true}))
			time.Sleep(2 * pollTime)
		},
		"close": func(w *world, h lock.Hold) {
			if err := w.a.Close(context.Background()); err != nil {
				w.Error(err)
			}
		},
		"an Unlock with a lost reply": func(w *world, h lock.Hold) {
			w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DropReply: true}))
			_ = h.Unlock(w.Context())
			time.Sleep(10 * time.Second)
		},
		"an Unlock that is executed late": func(w *world, h lock.Hold) {
			w.wire.OnRequest(func([][]byte) redistest.Action { return redistest.Action{DropRequest: true} })
			if h.Unlock(w.Context()) == nil {
				w.Error("Unlock succeeded without a reply")
			}
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
			if !errors.Is(h.Err(), lock.ErrLost) {
				w.Error(h.Err())
			}
			w.wire.OnRequest(nil)
			time.Sleep(2 * pollTime)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				h := w.handedOffHold()
				end(w, h)
				synctest.Wait()
				if queue := w.inQueue(); len(queue) != 0 {
					w.Errorf("got %q queued", queue)
				}
				_ = h.Unlock(w.Context())
			})
		})
	}
}

// The same for a lock that stays locked after its Unlock, even if Redis is unavailable at first.
func TestHandedOff_leavesNothingButTheLock(t *testing.T) {
	for name, act := range map[string]redistest.Action{"at once": {}, "later": {DropRequest: true}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				h := w.handedOffHold(lock.WithMinHold(minute))
				w.wire.OnRequest(redistest.Once("EVALSHA", act))
				w.unlock(h)
				if queue := w.inQueue(); len(queue) != 0 {
					w.Errorf("got %q queued", queue)
				}
				if left := w.mini.TTL("orders"); left > minute || left < minute-time.Second {
					w.Errorf("the lock is kept for %v", left)
				}
				time.Sleep(minute)
			})
		})
	}
}

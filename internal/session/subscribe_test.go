package session

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/lockstate"
	"github.com/leasehold-go/leasehold/internal/pubsub"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
)

// A waiter subscribes to the channel of its lock; for a plain lock, also to the channels of the queue and of its process in
// it. It sends a request, and another one after its subscription. If the subscription still exists, it sends no second
// request.
func TestSubscription_sharedWhileItLingers(t *testing.T) {
	type test struct {
		kind     *Kind
		channels int
	}
	forEach(t, map[string]test{"plain": {plain, 3}, "read": {reading, 1}, "write": {writing, 1}}, func(w *world, c test) {
		w.unlock(w.take(w.a, c.kind, w.Context())) // loads the scripts
		for _, want := range []int64{2, 1, 1} {
			h := w.take(w.b, rival(c.kind), w.Context())
			sent := w.scripts()
			waiter := w.goLock(w.a, c.kind, w.Context())
			w.wantSent(sent, want)
			w.wantChannels(c.channels)
			w.unlock(h)
			w.unlock(<-waiter)
			time.Sleep(pubsub.CloseDelay / 2)
		}
	})
}

// withPermitsChannel is a kind whose waiters also subscribe to Redisson's channel for free permits, like those of a
// semaphore.
var withPermitsChannel = &Kind{
	WaitPolicy:       lockstate.RedisQueue,
	Mode:             lock.Exclusive,
	HasWaiterTimeout: true,
	Scripts: Scripts{
		Keys: func(name string) luascripts.Keys {
			k := keys.Fair(name)
			k.Change = keys.Semaphore(name).Change
			return k
		},
		Acquire: luascripts.AcquireFair,
		Release: luascripts.ReleaseFair,
		Renew:   luascripts.RenewReentrant,
		Keep:    luascripts.KeepFair,
	},
}

// Redisson publishes the number of free permits, and no other message arrives. A waiter acquires its permit
// immediately. A leasehold client adds a leading zero and notifies the next waiter itself, so its message triggers no
// request.
func TestWaiter_notifiedOfPermits(t *testing.T) {
	inBubble(t, func(w *world) {
		const channel = "redisson_sc:{orders}"
		h := w.take(w.b, withPermitsChannel, w.Context())
		next := w.goLock(w.a, withPermitsChannel, w.Context())
		time.Sleep(pollTime * 3 / 2)
		w.mini.Del("orders") // publishes no message
		sent := w.scripts()
		w.mini.Publish(channel, "01")
		w.waitsOn(next)
		w.wantSent(sent, 0)
		w.mini.Publish(channel, "1")
		w.unlock(w.next(next))
		_ = h.Unlock(w.Context()) // it is lost
	})
}

// A waiter of a plain lock subscribes to two channels. While its request is in flight, another subscriber of its
// process confirms the first. The second is not confirmed, because the server may deny it. Messages in between may be
// missed, so the waiter retries after a short delay for the second confirmation.
func TestWaiter_oneOfTwoChannels(t *testing.T) {
	inBubble(t, func(w *world) {
		reply := make(chan struct{})
		k := onRequest(plain, func(r request) (luascripts.Acquired, error) {
			a, err := r.send()
			<-reply
			return a, err
		})
		h := w.lock(w.b, w.Context())
		next := w.waitingFor(w.a, w.Context(), w.a.NewSpec(k, "orders", nil))
		other := w.a.Subscribe(keys.Plain("orders").Channel, func() {})
		synctest.Wait()
		w.wire.OnRequest(redistest.Once("SUBSCRIBE", redistest.Action{HoldRequest: w.Context().Done()}))
		w.unlock(h)
		synctest.Wait() // the message was published, and the waiter did not receive it
		start := time.Now()
		close(reply)
		h = <-next
		if took := time.Since(start); took == 0 || took > 2*time.Millisecond {
			w.Errorf("it has the lock after %v", took)
		}
		w.unlock(h)
		other.CloseSoon()
	})
}

// The same, but the second is confirmed, later than that delay.
func TestWaiter_secondChannelLater(t *testing.T) {
	inBubble(t, func(w *world) {
		spec := w.a.NewSpec(withPermitsChannel, "orders", nil)
		h := w.take(w.b, withPermitsChannel, w.Context())
		other := w.a.Subscribe(spec.channel, func() {})
		synctest.Wait()
		w.wire.OnRequest(redistest.Once("SUBSCRIBE", redistest.Action{DelayRequest: pollTime / 2}))
		start := time.Now()
		next := w.waitingFor(w.a, w.Context(), spec)
		time.Sleep(pollTime / 4)
		w.mini.Del("orders") // publishes no message
		got := <-next
		if took := time.Since(start); took < pollTime/2 || took > pollTime/2+2*time.Millisecond {
			w.Errorf("it has the lock after %v, the second channel was confirmed after %v", took, pollTime/2)
		}
		w.unlock(got)
		_ = h.Unlock(w.Context()) // it is lost
		other.CloseSoon()
	})
}

// A client of another release may send other messages to all clients with the queue. They have no effect.
func TestWaiter_unknownMessage(t *testing.T) {
	inBubble(t, func(w *world) {
		k := keys.Plain("orders")
		h := w.lock(w.b, w.Context())
		next := w.waiting(w.a, w.Context())
		time.Sleep(pollTime / 2)
		start := time.Now()
		w.mini.Publish(k.QueueChannel, "unknown")
		synctest.Wait()
		w.mini.Del("orders") // publishes no message
		w.mini.Publish(k.Channel, "0")
		got := <-next
		w.wantTook(start, 0)
		w.unlock(got)
		_ = h.Unlock(w.Context()) // it is lost
	})
}

// The hub dials an unavailable server while a caller waits, and does not dial otherwise.
func TestHub_dialsOnlyForWaiters(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.b, w.Context())
		ctx, cancel := context.WithTimeout(w.Context(), pollTime/2) // at a poll the last request could be uncertain, and reconciled later
		defer cancel()
		_, _ = w.a.Lock(ctx, w.a.NewSpec(plain, "orders", nil)) // makes the hub connect
		synctest.Wait()
		var mu sync.Mutex
		dials := 0
		w.wire.OnRequest(func(req [][]byte) redistest.Action {
			mu.Lock()
			defer mu.Unlock()
			if string(req[0]) == "HELLO" { // the first command of a connection
				dials++
			}
			return redistest.Action{DropRequest: true}
		})
		w.wire.CutAll()
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if dials > 0 {
			w.Errorf("%d tries to connect in a minute, and no caller waits", dials)
		}
		w.wire.OnRequest(nil)
		w.unlock(h)
	})
}

// A waiter receives messages published between its request and the reply.
func TestHub_receivesWhileItLingers(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.b, w.Context())
		waiter := w.waiting(w.a, w.Context())
		w.unlock(h)
		w.unlock(w.next(waiter)) // the subscription lingers
		time.Sleep(pubsub.CloseDelay / 2)
		h = w.lock(w.b, w.Context())
		w.onNext(redistest.Action{DelayReply: pollTime / 2})
		start := time.Now()
		waiter = w.waiting(w.a, w.Context())
		w.unlock(h)
		got := <-waiter
		w.wantTook(start, pollTime/2)
		w.unlock(got)
	})
}

// Subscriptions and polls end with the last waiter, and start again with the next.
func TestHub_subscribesWhileACallWaits(t *testing.T) {
	inBubble(t, func(w *world) {
		const channel = "redisson_lock__channel:{orders}"
		for range 3 {
			h := w.lock(w.b, w.Context())
			ctx, cancel := context.WithCancel(w.Context())
			var wg sync.WaitGroup
			for range 5 {
				wg.Go(func() { _, _ = w.a.Lock(ctx, w.a.NewSpec(plain, "orders", nil)) })
			}
			synctest.Wait()
			if n := w.mini.PubSubNumSub(channel)[channel]; n != 1 {
				w.Errorf("%d subscriptions for five waiters of a process", n)
			}
			cancel()
			wg.Wait()
			time.Sleep(pubsub.CloseDelay - time.Second)
			if n := w.mini.PubSubNumSub(channel)[channel]; n != 1 {
				w.Errorf("%d subscriptions, and a caller waited a moment ago", n)
			}
			time.Sleep(time.Second + time.Millisecond)
			if n := w.mini.PubSubNumSub(channel)[channel]; n != 0 {
				w.Errorf("%d subscriptions, and no caller waits", n)
			}
			w.unlock(h)
		}
	})
}

// The hub reconnects after its connection broke, and the first waiter retries immediately.
func TestHub_retriesAfterAReconnect(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.b, w.Context())
		waiter := w.waiting(w.a, w.Context())
		time.Sleep(5*time.Second + pollTime/2)
		w.wire.CutAll()
		w.unlock(h) // no subscriber receives the message
		start := time.Now()
		w.unlock(<-waiter)
		w.wantWithin(start, 50*time.Millisecond) // as soon as the subscription is back
	})
}

// A waiter polls once per poll interval. After ten of them, it polls less often, up to every second interval, but only
// while its subscription is confirmed.
func TestWaiter_pollsLessOften(t *testing.T) {
	forEach(t, map[string]bool{"subscribed": true, "denied": false}, func(w *world, subscribes bool) {
		h := w.take(w.b, writing, w.Context())
		var sent atomic.Int64
		w.wire.OnRequest(func(req [][]byte) (a redistest.Action) {
			switch name := string(req[0]); {
			case name == "SUBSCRIBE" && !subscribes:
				a.Refuse = "NOPERM no permissions"
			case name == "EVALSHA" || name == "EVAL":
				sent.Add(1)
			}
			return a
		})
		polls := func(n int) int64 {
			before := sent.Load()
			time.Sleep(time.Duration(n) * pollTime)
			synctest.Wait()
			return sent.Load() - before
		}
		waiter := w.goLock(w.a, writing, w.Context(), lock.WithWaiterTimeout(time.Minute))
		time.Sleep(pollTime / 2)
		early := polls(10)
		polls(15)
		late, want := polls(20), int64(20)
		if subscribes {
			want = 10
		}
		if early != 10 || late != want {
			w.Errorf("%d polls in the first ten intervals, %d in twenty later ones, want 10 and %d", early, late, want)
		}
		w.unlock(h)
		w.unlock(<-waiter)
	})
}

// The server that runs the scripts counts no listener of this process, although its subscription is confirmed. The client
// queries the role of the server with the subscription, and does not wait for the next periodic query.
func TestWaiter_checksWhereItIsSubscribed(t *testing.T) {
	inBubble(t, func(w *world) {
		var noPubSub atomic.Bool
		k := onRequest(plain, func(r request) (luascripts.Acquired, error) {
			a, err := r.send()
			a.NoPubSub = a.Verdict == luascripts.Held && noPubSub.Load()
			return a, err
		})
		var roles atomic.Int64
		w.wire.OnRequest(func(req [][]byte) redistest.Action {
			if string(req[0]) == "ROLE" {
				roles.Add(1)
				return redistest.Action{Refuse: loading} // a transient error, and no denial
			}
			return redistest.Action{}
		})
		h := w.lock(w.b, w.Context())
		waiter := w.waitingFor(w.a, w.Context(), w.a.NewSpec(k, "orders", nil))
		time.Sleep(pollTime / 2)
		roles.Store(0)
		time.Sleep(2 * pollTime)
		before := roles.Load()
		noPubSub.Store(true)
		time.Sleep(2 * pollTime)
		synctest.Wait()
		if n := roles.Load(); before != 0 || n == 0 || n > 2 {
			w.Errorf("%d queries before, %d after", before, n-before)
		}
		w.unlock(h)
		w.unlock(w.next(waiter))
	})
}

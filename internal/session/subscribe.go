package session

import (
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/lockstate"
	"github.com/leasehold-go/leasehold/internal/pubsub"
	"github.com/leasehold-go/leasehold/luascripts"
)

// subscriptions are the Pub/Sub subscriptions of a queue. All fields are guarded by the mutex of the state. The hub
// calls the callbacks without its own mutex, because they lock the state.
type subscriptions struct {
	at    *entry               // set once
	queue *lockstate.Queue     // set once
	lock  *pubsub.Subscription // the lock's channel; for a fair lock, the channel of this client's turns

	// Only of plain locks; a semaphore has own, too.
	own           *pubsub.Subscription // the channel of this process; for a semaphore, the channel of Redisson
	all           *pubsub.Subscription // the channel of all clients with the queue
	confirmations [2]int               // how often lock and own were confirmed

	beating chan struct{} // cap 1: wakes the goroutine that sends heartbeats; nil if there is none
}

// subscriptionsOf returns the subscriptions of a queue, which must have some.
func subscriptionsOf(l *lockstate.Queue) *subscriptions { return l.Subscriptions.(*subscriptions) }

// subscriptions returns the subscriptions of l, and creates them if needed. The caller holds the mutex of the state.
func (at *entry) subscriptions(l *lockstate.Queue) *subscriptions {
	if l.Subscriptions == nil {
		l.Subscriptions = &subscriptions{at: at, queue: l}
	}
	return subscriptionsOf(l)
}

// subscribeEarly subscribes before the first request is sent if the hub still has the subscription. Messages
// published before the reply are then received. The caller holds the mutex of the state.
func (at *entry) subscribeEarly(l *lockstate.Queue, spec *Spec) {
	if !l.Subscribed() && at.s.hub.Subscribed(spec.channel) { // mutant: operand 1: speed
		l.Subscribe(&spec.terms, time.Time{})
	}
}

// subscribe subscribes to the channels of a queue. If the queue has already sent a request and a channel is already
// subscribed, a message may have been missed since that request. The queue then retries.
func (at *entry) subscribe(a lockstate.Effect) {
	e, spec, hub := at.subscriptions(a.Queue), specOf(a.Terms), at.s.hub
	asked := !a.Sent.IsZero()
	onMessage := e.onMessage
	if spec.Keep != nil {
		onMessage = e.onTurn
	}
	var already, ownAlready bool
	if !spec.terms.Tickets() && spec.Keys.Change == "" {
		e.lock, already = hub.Subscribe(spec.channel, onMessage, e.notify)
		if already && asked {
			a.Queue.Notify()
		}
		return
	}
	e.lock, already = hub.Subscribe(spec.channel, onMessage, func() { e.confirmed(0) })
	if spec.terms.HandsOff {
		e.own, ownAlready = hub.Subscribe(keys.OfClient(spec.Keys.QueueChannel, at.s.id), e.onHandOff, func() { e.confirmed(1) })
		e.all, _ = hub.Subscribe(spec.Keys.QueueChannel, e.onYield, func() {})
	} else {
		e.own, ownAlready = hub.Subscribe(spec.Keys.Change, e.onChange, func() { e.confirmed(1) })
	}
	for i, is := range [2]bool{already, ownAlready} {
		if is && asked {
			e.confirmedLocked(i)
		}
	}
}

// close closes the subscriptions after a delay, because a process that waited for a lock often waits again.
func (e *subscriptions) close() {
	for _, sub := range []*pubsub.Subscription{e.lock, e.own, e.all} {
		if sub != nil {
			sub.CloseSoon()
		}
	}
}

// notify notifies the queue. The hub calls it when a subscription is confirmed.
func (e *subscriptions) notify() {
	e.at.lock()
	e.queue.Notify()
	e.at.unlock()
}

// onMessage handles a message on the channel of the lock.
func (e *subscriptions) onMessage(string) { e.notify() }

// onChange handles a message with the number of free permits of a semaphore. The message of a leasehold client starts
// with a zero; that client has already notified the waiters whose turn it is.
func (e *subscriptions) onChange(message string) {
	if !strings.HasPrefix(message, "0") {
		e.notify()
	}
}

// onTurn handles a message with the number of the owner that is now first in the queue.
func (e *subscriptions) onTurn(number string) {
	e.at.lock()
	e.queue.OnTurn(e.at.s.id + ":" + number)
	e.at.unlock()
}

// onHandOff handles a message on this client's own channel: the lock may have been handed off to it, unless the message
// is for a client that keeps the lock.
func (e *subscriptions) onHandOff(message string) {
	if message == luascripts.WantedByWaiter || message == luascripts.WantedByTry {
		return
	}
	e.at.lock()
	e.queue.OnHandOff()
	e.at.unlock()
}

// onYield handles a message to all clients with the queue.
func (e *subscriptions) onYield(message string) {
	if message == luascripts.Aside {
		e.at.lock()
		e.queue.YieldUntil(time.Now().Add(asideTime))
		e.at.unlock()
	}
}

// confirmed records the confirmation of one of the two channels of a queue. The queue retries once, after both are
// confirmed.
func (e *subscriptions) confirmed(this int) {
	e.at.lock()
	e.confirmedLocked(this)
	e.at.unlock()
}

func (e *subscriptions) confirmedLocked(this int) {
	e.confirmations[this]++
	n, other := e.confirmations[this], 1-this
	if e.confirmations[other] >= n {
		e.queue.Notify()
		return
	}
	time.AfterFunc(time.Millisecond, func() {
		e.at.lock()
		if e.confirmations[other] < n {
			e.queue.Notify() // the other subscription may be denied
		}
		e.at.unlock()
	})
}

// subscribeOwner subscribes to the channel on which Redisson notifies w of its turn. The channel is never subscribed
// already, because w has its own owner string in the queue.
func (at *entry) subscribeOwner(w *lockstate.Waiter) {
	t := acquisitionOf(w.Queued())
	w.Of, _ = at.s.hub.Subscribe(keys.OfOwner(t.spec.Keys.Channel, t.Name), func(string) {
		at.lock()
		at.state.Wakeup(w)
		at.unlock()
	}, subscriptionsOf(w.Queue()).notify)
}

// unsubscribeOwner closes the subscription of subscribeOwner.
func (at *entry) unsubscribeOwner(w *lockstate.Waiter) {
	w.Of.(*pubsub.Subscription).Close()
}

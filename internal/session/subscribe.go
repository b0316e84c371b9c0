package session

import (
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/lockstate"
	"github.com/leasehold-go/leasehold/internal/pubsub"
	"github.com/leasehold-go/leasehold/luascripts"
)

// subscriptions is how a queue is notified of its lock. Its fields are set, and heard changes, under the mutex
// of the state. The functions that the hub calls take that mutex, so the hub calls them without
// its own.
type subscriptions struct {
	at    *entry               // set once
	queue *lockstate.Queue     // set once
	lock  *pubsub.Subscription // to the lock's channel; of a fair lock, to that of this client's turns

	// Of kinds with a Pass. A semaphore has own, to the channel where Redisson publishes.
	own           *pubsub.Subscription // to the channel of this process
	all           *pubsub.Subscription // to that of all that know of the queue
	confirmations [2]int               // how often lock and own were confirmed

	beating chan struct{} // set once: a token in it, which has room for one, has the goroutine that sends heartbeats look again; nil if there is none
}

// subscriptionsOf returns the subscriptions of a queue that has some.
func subscriptionsOf(l *lockstate.Queue) *subscriptions { return l.Subscriptions.(*subscriptions) }

// subscriptions returns the subscriptions of l, new if need be. The caller has the mutex of the state.
func (at *entry) subscriptions(l *lockstate.Queue) *subscriptions {
	if l.Subscriptions == nil {
		l.Subscriptions = &subscriptions{at: at, queue: l}
	}
	return subscriptionsOf(l)
}

// subscribeEarly listens before anybody asks, if that is to be had for nothing. What is said
// before the reply comes is heard then. The caller has the mutex of the state.
func (at *entry) subscribeEarly(l *lockstate.Queue, spec *Spec) {
	if l.Subscribed() {
		return
	}
	if channel, _ := (&subscriptions{at: at}).channel(spec); at.s.hub.Lingers(channel) {
		l.Subscribe(&spec.terms, time.Time{})
	}
}

// channel returns where a queue of waiters by spec is notified of its lock, and what gets it.
func (e *subscriptions) channel(spec *Spec) (name string, hear func(message string)) {
	if spec.Keep != nil {
		return keys.OfTurns(spec.Keys.Channel, e.at.s.id), e.onTurn
	}
	return spec.Keys.Channel, e.onMessage
}

// subscribe subscribes the channels of a queue. If it has asked, and a channel is subscribed already, what
// was published since then is missed: that is a reason to ask again.
func (at *entry) subscribe(a lockstate.Effect) {
	e, spec, hub := at.subscriptions(a.Queue), a.Terms.Of.(*Spec), at.s.hub
	asked := !a.Sent.IsZero()
	channel, hear := e.channel(spec)
	var already, ownAlready bool
	if !spec.terms.Tickets() && spec.Keys.Change == "" {
		e.lock, already = hub.Subscribe(channel, hear, e.notify)
		if already && asked {
			a.Queue.Notify()
		}
		return
	}
	e.lock, already = hub.Subscribe(channel, hear, func() { e.confirmed(0) })
	if spec.terms.Passes {
		e.own, ownAlready = hub.Subscribe(keys.OfClient(spec.Keys.Line, at.s.id), e.onHandOff, func() { e.confirmed(1) })
		e.all, _ = hub.Subscribe(spec.Keys.Line, e.onYield, func() {})
	} else {
		e.own, ownAlready = hub.Subscribe(spec.Keys.Change, e.onChange, func() { e.confirmed(1) })
	}
	for i, is := range [2]bool{already, ownAlready} {
		if is && asked {
			e.confirmedLocked(i)
		}
	}
}

// close ends the subscriptions soon: a process that waits for a lock often waits again.
func (e *subscriptions) close() {
	for _, sub := range []*pubsub.Subscription{e.lock, e.own, e.all} {
		if sub != nil {
			sub.CloseSoon()
		}
	}
}

// notify gives the queue a notification. The hub calls it when a subscription is confirmed.
func (e *subscriptions) notify() {
	e.at.lock()
	e.queue.Notify()
	e.at.unlock()
}

// onMessage gets what is published at the channel of the lock.
func (e *subscriptions) onMessage(string) { e.notify() }

// onChange gets how many permits of a semaphore are free. A client of ours that says so begins with a
// zero, and has told those whose turn it is.
func (e *subscriptions) onChange(message string) {
	if !strings.HasPrefix(message, "0") {
		e.notify()
	}
}

// onTurn gets the number of an owner whose turn in the queue has come.
func (e *subscriptions) onTurn(number string) {
	e.at.lock()
	e.queue.OnTurn(e.at.s.id + ":" + number)
	e.at.unlock()
}

// onHandOff gets what is published to this process alone.
func (e *subscriptions) onHandOff(string) {
	e.at.lock()
	e.queue.OnHandOff()
	e.at.unlock()
}

// onYield gets what is published to all clients that know of the queue.
func (e *subscriptions) onYield(message string) {
	if message == luascripts.Aside {
		e.at.lock()
		e.queue.YieldUntil(time.Now().Add(asideTime))
		e.at.unlock()
	}
}

// confirmed gets the confirmation of one of two channels that are subscribed together: one
// request after the other one's does for both.
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
			e.queue.Notify() // the other one may be denied
		}
		e.at.unlock()
	})
}

// subscribeOwner subscribes the channel at which Redisson tells w that it is its turn. No one has subscribed it before: w stands in the
// queue by an owner string of its own.
func (at *entry) subscribeOwner(w *lockstate.Waiter) {
	t := acquisitionOf(w.Queued())
	w.Of, _ = at.s.hub.Subscribe(keys.OfOwner(t.spec.Keys.Channel, t.Name), func(string) {
		at.lock()
		at.state.Wakeup(w)
		at.unlock()
	}, subscriptionsOf(w.Queue()).notify)
}

// unsubscribeOwner ends what hearOwn began.
func (at *entry) unsubscribeOwner(w *lockstate.Waiter) {
	w.Of.(*pubsub.Subscription).Close()
	w.Of = nil
}

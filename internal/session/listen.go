package session

import (
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/internal/hint"
	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/place"
	"github.com/leasehold-go/leasehold/luascripts"
)

// ears is how a line hears of its lock. Its fields are set, and heard changes, under the mutex
// of the place. The functions that the hub calls take that mutex, so the hub calls them without
// its own.
type ears struct {
	at   *spot              // set once
	line *place.Line        // set once
	lock *hint.Subscription // to the lock's channel; of a fair lock, to that of this client's turns

	// Of kinds with a Pass. A semaphore has own, to the channel where Redisson publishes.
	own   *hint.Subscription // to the channel of this process
	all   *hint.Subscription // to that of all that know of the line
	heard [2]int             // how often lock and own were confirmed

	beating chan struct{} // set once: a token in it, which has room for one, has the goroutine that sends heartbeats look again; nil if there is none
}

// earsOf returns the ears of a line that has some.
func earsOf(l *place.Line) *ears { return l.Ears.(*ears) }

// ears returns the ears of l, new if need be. The caller has the mutex of the place.
func (at *spot) ears(l *place.Line) *ears {
	if l.Ears == nil {
		l.Ears = &ears{at: at, line: l}
	}
	return earsOf(l)
}

// listenEarly listens before anybody asks, if that is to be had for nothing. What is said
// before the answer comes is heard then. The caller has the mutex of the place.
func (at *spot) listenEarly(l *place.Line, spec *Spec) {
	if l.Listens() {
		return
	}
	if channel, _ := (&ears{at: at}).channel(spec); at.s.hub.Lingers(channel) {
		l.Listen(&spec.terms, time.Time{})
	}
}

// channel returns where a line of waiters by spec hears of its lock, and what hears it.
func (e *ears) channel(spec *Spec) (name string, hear func(message string)) {
	if spec.Keep != nil {
		return keys.OfTurns(spec.Keys.Channel, e.at.s.id), e.called
	}
	return spec.Keys.Channel, e.message
}

// listen subscribes the channels of a line. If it has asked, and a channel is subscribed already, what
// was published since then is missed: that is a reason to ask again.
func (at *spot) listen(a place.Action) {
	e, spec, hub := at.ears(a.Line), a.Terms.Of.(*Spec), at.s.hub
	asked := !a.Sent.IsZero()
	channel, hear := e.channel(spec)
	var already, ownAlready bool
	if !spec.terms.Tickets() && spec.Keys.Change == "" {
		e.lock, already = hub.Subscribe(channel, hear, e.hint)
		if already && asked {
			a.Line.Hint()
		}
		return
	}
	e.lock, already = hub.Subscribe(channel, hear, func() { e.half(0) })
	if spec.terms.Passes {
		e.own, ownAlready = hub.Subscribe(keys.OfClient(spec.Keys.Line, at.s.id), e.told, func() { e.half(1) })
		e.all, _ = hub.Subscribe(spec.Keys.Line, e.stepAside, func() {})
	} else {
		e.own, ownAlready = hub.Subscribe(spec.Keys.Change, e.changed, func() { e.half(1) })
	}
	for i, is := range [2]bool{already, ownAlready} {
		if is && asked {
			e.halfLocked(i)
		}
	}
}

// close ends the subscriptions soon: a process that waits for a lock often waits again.
func (e *ears) close() {
	for _, sub := range []*hint.Subscription{e.lock, e.own, e.all} {
		if sub != nil {
			sub.CloseSoon()
		}
	}
}

// hint gives the line a hint. The hub calls it when a subscription is confirmed.
func (e *ears) hint() {
	e.at.lock()
	e.line.Hint()
	e.at.unlock()
}

// message hears what is published at the channel of the lock.
func (e *ears) message(string) { e.hint() }

// changed hears how many permits of a semaphore are free. A client of ours that says so begins with a
// zero, and has told those whose turn it is.
func (e *ears) changed(message string) {
	if !strings.HasPrefix(message, "0") {
		e.hint()
	}
}

// called hears the number of an owner whose turn in the queue has come.
func (e *ears) called(number string) {
	e.at.lock()
	e.line.Called(e.at.s.id + ":" + number)
	e.at.unlock()
}

// told hears what is published to this process alone.
func (e *ears) told(string) {
	e.at.lock()
	e.line.Told()
	e.at.unlock()
}

// stepAside hears what is published to all clients that know of the queue.
func (e *ears) stepAside(message string) {
	if message == luascripts.Aside {
		e.at.lock()
		e.line.StepAside(time.Now().Add(asideTime))
		e.at.unlock()
	}
}

// half hears the confirmation of one of two channels that are subscribed together: one
// question after the other one's does for both.
func (e *ears) half(this int) {
	e.at.lock()
	e.halfLocked(this)
	e.at.unlock()
}

func (e *ears) halfLocked(this int) {
	e.heard[this]++
	n, other := e.heard[this], 1-this
	if e.heard[other] >= n {
		e.line.Hint()
		return
	}
	time.AfterFunc(time.Millisecond, func() {
		e.at.lock()
		if e.heard[other] < n {
			e.line.Hint() // the other one may be denied
		}
		e.at.unlock()
	})
}

// hearOwn subscribes the channel at which Redisson tells w that it is its turn. Nobody has subscribed it before: w stands in the
// queue by an owner string of its own.
func (at *spot) hearOwn(w *place.Waiter) {
	t := tenureOf(w.Queued())
	w.Of, _ = at.s.hub.Subscribe(keys.OfOwner(t.spec.Keys.Channel, t.Name), func(string) {
		at.lock()
		at.place.Prompt(w)
		at.unlock()
	}, earsOf(w.Line()).hint)
}

// unhear ends what hearOwn began.
func (at *spot) unhear(w *place.Waiter) {
	w.Of.(*hint.Subscription).Close()
	w.Of = nil
}

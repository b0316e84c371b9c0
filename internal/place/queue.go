package place

import "time"

// How waiters keep their places in a fair queue in Redis. The line sends one heartbeat for
// all of them, and no call sends it, as a call may be waiting for a slow answer. The answer
// says whose turn it is, too. So a heartbeat is the poll of all waiters, and a hint is a
// reason to send one. Hints that come while one is under way, as many do when a connection
// is back, are together a reason for one more.

// heartbeat is what a line knows of its heartbeats.
type heartbeat struct {
	on     bool   // a goroutine of the session sends them
	flying int    // how many have no answer yet
	missed bool   // there was a hint while one was under way
	early  string // the owner string that a message about a turn named before the answer came that it stands in the queue
}

// queued is what a waiter knows of its place in the queue.
type queued struct {
	as  *Tenure // as this it stands there; nil if it does not
	own bool    // it hears of its turn at a channel of its own
}

// queue says that w was told to wait in the queue in Redis.
func (l *Line) queue(w *Waiter, r Refusal, now time.Time) {
	p := l.side.p
	if due := l.due(now, r.Left); !l.beat.on || due.Before(l.when.askAt) {
		l.when.askAt = due // waiters that come can make the next heartbeat sooner, and never later
		l.beat.on, p.stays = true, true
		p.act(Action{Verb: Beat, Line: l, Terms: w.Terms})
	}
	l.Listen(w.Terms, r.Sent)
	if w.queued.as != w.Tenure {
		l.unqueue(w)
		w.queued.as = w.Tenure
		if l.beat.early == w.Tenure.Name {
			p.Prompt(w)
		}
	}
	if r.Own && !w.queued.own {
		w.queued.own = true
		p.act(Action{Verb: HearOwn, Waiter: w})
	}
}

// unqueue records that w does not stand in the queue any more, if it did.
func (l *Line) unqueue(w *Waiter) {
	w.queued.as = nil
	if w.queued.own {
		w.queued.own = false
		l.side.p.act(Action{Verb: Unhear, Waiter: w})
	}
}

// Called records a message that it is the turn of the waiter with this owner string.
func (l *Line) Called(name string) {
	for _, w := range l.waiters {
		if w.queued.as != nil && w.queued.as.Name == name {
			l.side.p.Prompt(w)
			return
		}
	}
	l.beat.early = name // the answer that it stands in the queue is on the way
}

// NextBeat returns when the goroutine that sends l's heartbeats looks again, and if one is due
// now, the waiters that it names. If there are any, a Beaten must follow.
func (l *Line) NextBeat(now time.Time) (due time.Time, queued []*Waiter) {
	ready := !now.Before(l.when.askAt)
	if l.when.hinted {
		l.when.hinted = false
		l.beat.missed = l.beat.flying > 0
		ready = ready || !l.beat.missed
	}
	if !ready {
		return l.when.askAt, nil
	}
	l.when.askAt = l.due(now, -1)
	for _, w := range l.waiters {
		if w.queued.as != nil {
			queued = append(queued, w)
		}
	}
	if len(queued) > 0 {
		l.silence.asks(now)
		l.beat.flying++
	}
	return l.when.askAt, queued
}

// Beaten records the answer to a heartbeat that was sent at sent. err is not nil if an error
// came instead, and the next heartbeat may go better.
func (l *Line) Beaten(sent time.Time, err error) {
	if l.beat.flying--; l.beat.flying == 0 && l.beat.missed {
		l.Hint() // NextBeat, which it leads to, forgets missed
	}
	if err != nil {
		l.silence.fails(sent, err)
	} else {
		l.silence.hears(sent)
	}
}

// Queued returns as what w stands in the queue in Redis; nil if it does not.
func (w *Waiter) Queued() *Tenure { return w.queued.as }

// BeatIn has the next heartbeat sent when left has passed, or when a negative left says
// nothing, after a poll interval.
func (l *Line) BeatIn(now time.Time, left time.Duration) {
	if l.side != nil {
		l.when.askAt = l.due(now, left)
		l.side.p.act(Action{Verb: Beat, Line: l})
	}
}

package place

import "time"

// How waiters of kinds with a queue in Redis are kept there. The line sends one heartbeat
// for all of them, behind the calls: a call may be asking, and wait for an answer that is
// slow. The answers also tell whose turn it is. So a heartbeat is the poll of all waiters,
// and a hint is a reason to send one. Many hints that come together, as when a connection
// is back, are a reason for one more when this one is answered.

// heartbeat is what a line knows of its heartbeats.
type heartbeat struct {
	on     bool   // somebody sends them
	flying int    // how many are not answered yet
	missed bool   // there was a hint meanwhile
	early  string // the owner that was told of its turn before it knew that it stands in the queue
}

// queued is what a waiter knows of its place in the queue.
type queued struct {
	as  *Tenure // as this it stands there; nil if it does not
	own bool    // it hears of its turn at a channel of its own
}

// queue says that w was told to wait in the queue in Redis.
func (l *Line) queue(w *Waiter, r Refusal, now time.Time) {
	p := l.side.p
	if due := l.due(now, r.Left); !l.beat.on || l.when.askAt.IsZero() || due.Before(l.when.askAt) {
		l.when.askAt = due // sooner, but never put off by those who come
		l.beat.on, p.stays = true, true
		p.act(Action{Verb: Beat, Line: l, Terms: w.Terms})
	}
	l.Listen(w.Terms, r.Sent)
	if w.queued.as != w.Tenure {
		l.unqueue(w)
		w.queued.as = w.Tenure
		if l.beat.early == w.Tenure.Name {
			p.Ask(w)
		}
	}
	if r.Own && !w.queued.own {
		w.queued.own = true
		p.act(Action{Verb: HearOwn, Waiter: w})
	}
}

// unqueue says that w does not stand in the queue any more, if it did.
func (l *Line) unqueue(w *Waiter) {
	w.queued.as = nil
	if w.queued.own {
		w.queued.own = false
		l.side.p.act(Action{Verb: Unhear, Waiter: w})
	}
}

// Turn says that it is the turn of the waiter with this owner string.
func (l *Line) Turn(name string) {
	for _, w := range l.waiters {
		if w.queued.as != nil && w.queued.as.Name == name {
			l.side.p.Ask(w)
			return
		}
	}
	l.beat.early = name // its own answer is on the way
}

// NextBeat tells the sender of l's heartbeats when to look again, or, if one is due now, for
// which waiters. Each that is for any needs a Beaten.
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

// Beaten records that a heartbeat that was sent at sent was answered, or came to err and
// may come to something else next time.
func (l *Line) Beaten(sent time.Time, err error) {
	if l.beat.flying--; l.beat.flying == 0 && l.beat.missed {
		l.beat.missed = false
		l.Hint()
	}
	if err != nil {
		l.silence.fails(sent, err)
	} else {
		l.silence.hears(sent)
	}
}

// Queued returns as what w stands in the queue in Redis; nil if it does not.
func (w *Waiter) Queued() *Tenure { return w.queued.as }

// BeatIn has the next heartbeat sent when the first of the queue may have its turn, if
// nothing happens for left.
func (l *Line) BeatIn(now time.Time, left time.Duration) {
	if l.side != nil {
		l.when.askAt = l.due(now, left)
		l.side.p.act(Action{Verb: Beat, Line: l})
	}
}

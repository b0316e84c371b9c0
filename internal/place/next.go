package place

import (
	"cmp"
	"time"
)

// Do is what a call does next.
type Do uint8

const (
	Wait   Do = iota // until Due, or until its waiter is woken
	Ask              // send a question for Tenure
	Take             // Tenure is the owner's now: add a hold
	Join             // Tenure is open to readers: add a hold, if its lease is well
	Share            // Hold is the call's: it was let in with the answer to another's question
	Refuse           // the answer to another reader's question is a refusal for this one, too
	Fail             // the answer to another reader's question is an error, Err
)

// Step is what a call does next.
type Step struct {
	Do     Do
	Due    time.Time // zero is never
	Tenure *Tenure
	Queued bool          // Ask: the question is that of the line, and Redis has it queued if it is refused
	Again  time.Duration // Ask, Queued: after how long the line asks again
	Beside *Tenure       // Ask: what the owner has on the other side
	Hold   *Hold
	Left   time.Duration // Refuse: what is left of the other's lease
	Sent   time.Time     // Refuse, Fail: when the question was sent
	Err    error
}

// Next returns what the call of w does at this time. beside is what its owner has on the
// other side of the lock, nil if it has nothing there. limit is how long a call waits for
// the answer to a question.
func (p *Place) Next(w *Waiter, beside *Tenure, limit time.Duration, now time.Time) Step {
	if w.trip != nil {
		step, over := p.landed(w, beside, now)
		if !over || step.Do != Ask {
			return step
		}
		return p.share(w, beside, limit, now)
	}
	due := w.retryAt
	ready := w.reason || !due.IsZero() && !now.Before(due)
	w.reason = false
	if l := w.line; l != nil {
		reason, at := w.Terms.Discipline.next(l, w, now)
		ready = ready || reason
		if due.IsZero() || !at.IsZero() && at.Before(due) {
			due = at
		}
	}
	if !ready {
		return Step{Do: Wait, Due: due}
	}
	w.retryAt = time.Time{}
	w.AskedAt(now)
	if w.stands && w.Terms.Passes {
		if t := w.take(); t != nil {
			return Step{Do: Take, Tenure: t}
		}
	}
	return p.share(w, beside, limit, now)
}

// share is Next for a waiter that has a reason to ask. A reader may come in with another.
func (p *Place) share(w *Waiter, beside *Tenure, limit time.Duration, now time.Time) Step {
	if w.Tenure != nil && w.Tenure.Turn != nil && beside == nil {
		if t := p.Open(w.Terms, w.Tenure.Asked, now); t != nil {
			w.reason = true // it asks if that one is over
			return Step{Do: Join, Tenure: t}
		}
		if p.ride(w, limit, now) {
			return Step{Do: Wait, Due: w.until}
		}
		p.depart(w, now)
	}
	return p.ask(w, beside)
}

// ask is the Step of a waiter that sends its question now.
func (p *Place) ask(w *Waiter, beside *Tenure) Step {
	step := Step{Do: Ask, Tenure: w.Tenure, Beside: beside}
	l := w.line
	if l != nil && w.stands && w.Terms.Passes {
		step.Tenure, step.Queued, step.Again = l.ticket(w.Terms), true, cmp.Or(l.when.deaf, l.when.pace)
	}
	if step.Tenure != nil && beside != nil {
		step.Tenure.grant.beside = true
	}
	return step
}

// Answered records that a question for t has its answer, which is about another lock.
func (p *Place) Answered(t *Tenure) { t.answered(p) }

// AskedAt notes that w asks, or rides along with another that does, at that time.
func (w *Waiter) AskedAt(sent time.Time) {
	w.asked = sent
	if w.line != nil {
		w.line.silence.asks(sent)
	}
}

// Asks records that a question for t is sent, which asks for this lease, and leaves a trace
// that lives so long.
func (p *Place) Asks(t *Tenure, lease, patience time.Duration) { t.asks(p, lease, patience) }

// Refusal is the answer that others have the lock.
type Refusal struct {
	Sent  time.Time     // when the question was sent
	Left  time.Duration // what is left of the other's lease; negative if it has none
	Deaf  bool          // no message reaches this process
	Own   bool          // the waiter may be told of its turn at a channel of its own
	Trace bool          // waiting leaves a trace in Redis
}

// Refused records the answer to a question of w for t that others have the lock.
func (p *Place) Refused(w *Waiter, t *Tenure, r Refusal, now time.Time) {
	t.answered(p)
	t.traced = t.traced || r.Trace
	p.land(w, t, landing{refused: true, left: r.Left}, now)
	p.Waits(w, r, now)
}

// Waits says that w was refused: by the answer to its own question, or to that of another
// reader.
func (p *Place) Waits(w *Waiter, r Refusal, now time.Time) {
	l := w.line
	switch {
	case l == nil:
	case w.once:
		l.silence.hears(w.asked) // no more: the next waiter must ask, for a place in the queue
	case w.stands || w.leads():
		l.shut = true
		l.silence.hears(w.asked)
		w.Terms.Discipline.refused(l, w, r, now)
	}
}

// Broke records that a question of w for t was answered with err.
func (p *Place) Broke(w *Waiter, t *Tenure, mayHaveRun bool, err error) {
	t.answered(p)
	if mayHaveRun {
		p.doubt(t)
	}
	p.land(w, t, landing{err: err}, time.Time{})
}

// GaveBack records that a question of w for t was answered by a grant that w had no use for, as
// err says, and that the grant was given back; confirmed says whether Redis confirmed that. A
// copy of what gave it back may arrive late, so no question is asked in the name of t any more.
func (p *Place) GaveBack(w *Waiter, t *Tenure, confirmed bool, err error) {
	w.adopt(t, w.Owner)
	p.Broke(w, t, !confirmed, err)
}

// CutOff records that the caller of w does not wait any longer for the answer to the
// question for t, which is for Unheard. The readers that ride along ask themselves.
func (p *Place) CutOff(w *Waiter, t *Tenure) { p.land(w, t, landing{}, time.Time{}) }

// Unheard records the answer to a question of w for t that nobody waited for. If it wrote, it
// is a grant or a place in a queue; or nobody knows, as the question broke. It reports
// whether t must be settled now.
func (p *Place) Unheard(w *Waiter, t *Tenure, wrote bool) (settle bool) {
	t.answered(p)
	if !wrote {
		return false
	}
	if !t.Doubt() {
		p.stays = true
		return true
	}
	if w != nil && w.line != nil {
		p.Ask(w) // it may be ours: a good reason to ask
	}
	return false
}

// Retry has w ask again at a time after an error came instead of an answer, and nothing
// came before.
func (p *Place) Retry(w *Waiter, at time.Time) {
	switch {
	case w.line == nil || w.once:
		w.retryAt = at
	case w.stands || w.leads():
		w.Terms.Discipline.retry(w.line, w, at)
	}
}

// Leads reports whether w is the first of its line, and has something to do; or stands in no
// line.
func (w *Waiter) Leads() bool { return w.line == nil || w.leads() }

// Silent notes that err came instead of an answer to w's latest question.
func (w *Waiter) Silent(err error) {
	if w.line != nil {
		w.line.silence.fails(w.asked, err)
	}
}

// Outcome says what became of a grant.
type Outcome uint8

const (
	Holds   Outcome = iota // the hold is added
	TooLate                // the grant came too late for its lease
	Shut                   // the place is closed
)

// Granted records that a question of w for t was answered by a grant with this token, and
// adds h, a hold of o. late says that the grant came too late for its lease; a tenure that
// was known to be granted before does not care.
func (p *Place) Granted(w *Waiter, t *Tenure, o *Owner, h *Hold, token uint64, late bool, now time.Time) Outcome {
	t.answered(p)
	known := w.adopt(t, o)
	s := p.side(t.Terms.Reads)
	switch {
	case known:
	case late:
		t.Doubt() // so that its end takes the grant back
		p.land(w, t, landing{}, now)
		return TooLate
	default:
		t.grant.token, t.grant.since, t.counted = token, now, 1
		t.grant.alive = !t.Terms.Fixed
		if p.closed {
			t.Doubt()
			p.land(w, t, landing{}, now)
			return Shut
		}
		if t.Lives() {
			t.phase, t.owner = Held, o
			o.hold(t)
			p.readOn(t)
			if t.Terms.Passes {
				s.held = t
			}
		}
	}
	added := p.Add(t, o, h)
	if !added && !known {
		t.Doubt()
	}
	p.land(w, t, landing{granted: added}, now)
	switch {
	case added:
		if w != nil && w.line != nil && !t.grant.beside { // or it was let in because its owner writes, and nobody else is
			w.line.silence.hears(w.asked)
			w.Terms.Discipline.granted(w.line, w, now)
		}
		return Holds
	case t.phase == Closed:
		return Shut
	default:
		return TooLate
	}
}

// Cross records that a question for t was answered by a grant as its caller's wait ended.
// The end of t takes the grant back.
func (p *Place) Cross(w *Waiter, t *Tenure) {
	t.answered(p)
	p.doubt(t)
	p.land(w, t, landing{}, time.Time{})
}

// doubt notes that a question for t was or may be carried out, and its caller does not use
// that. A tenure that was offered may be lost by now: nothing else gives back what Redis has
// of it since.
func (p *Place) doubt(t *Tenure) {
	if !t.Doubt() {
		p.giveBack(t)
	}
}

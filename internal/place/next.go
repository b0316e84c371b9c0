package place

import (
	"cmp"
	"time"
)

// Do is what a call does next.
type Do uint8

const (
	Wait   Do = iota // wait until Due, or until the waiter is woken
	Anew             // what was offered is lost: make a new tenure, and ask
	Ask              // send a question for Tenure
	Take             // Tenure is the owner's now: add a hold
	Join             // Tenure is open to readers: add a hold, if its lease has not run out
	Share            // Hold is the call's: the answer to another reader's question let it in
	Refuse           // the answer to another reader's question was a refusal, which holds for this one, too
	Fail             // the answer to another reader's question was an error, Err; or it did not come in time, and Err is nil
)

// Step is what a call does next. Do says which fields are set.
type Step struct {
	Do     Do
	Due    time.Time     // Wait: until then; zero is never
	Tenure *Tenure       // Ask, Take, Join
	Queued bool          // Ask: Tenure is the ticket of the line, and Redis queues it if it refuses
	Again  time.Duration // Ask, Queued: after how long the line asks again
	Beside *Tenure       // Ask: the tenure that the owner has on the other side
	Hold   *Hold         // Share
	Left   time.Duration // Refuse: what is left of the other's lease
	Sent   time.Time     // Refuse, Fail: when the question was sent
	Err    error         // Fail
}

// Next returns what the call of w does at this time. beside is the tenure that its owner
// has on the other side of the lock, nil if there is none. limit is how long a call waits
// for the answer to a question. After a Step that says Ask, the caller calls Asks and sends
// the question.
func (p *Place) Next(w *Waiter, beside *Tenure, limit time.Duration, now time.Time) Step {
	if w.Terms.Reads {
		return p.nextToRead(w, beside, limit, now)
	}
	if ready, due := w.next(now); !ready {
		return Step{Do: Wait, Due: due}
	}
	if !w.once && w.Terms.Passes {
		if t := w.take(now); t != nil {
			return Step{Do: Take, Tenure: t}
		}
		if w.Tenure != nil && !w.Tenure.Lives() {
			return Step{Do: Anew}
		}
	}
	return p.askStep(w, beside, now)
}

// next reports whether w has a reason to ask, which it loses, or else when it looks again.
func (w *Waiter) next(now time.Time) (ready bool, due time.Time) {
	due = w.retryAt
	ready = w.reason || !due.IsZero() && !now.Before(due)
	w.reason = false
	if l := w.line; l != nil {
		reason, lineDue := w.Terms.Discipline.next(l, w, now)
		ready = ready || reason
		if due.IsZero() || !lineDue.IsZero() && lineDue.Before(due) {
			due = lineDue
		}
	}
	if ready {
		w.retryAt = time.Time{}
		w.AskedAt(now)
	}
	return ready, due
}

// askStep is the Step of a waiter that sends its question now.
func (p *Place) askStep(w *Waiter, beside *Tenure, now time.Time) Step {
	step := Step{Do: Ask, Tenure: w.Tenure, Beside: beside}
	l := w.line
	if l != nil && !w.once && w.Terms.Tickets() {
		step.Tenure, step.Queued, step.Again = l.ticket(w.Terms, now), true, cmp.Or(l.when.deaf, l.when.pace)
	}
	if step.Tenure != nil && beside != nil {
		step.Tenure.grant.writes = true
	}
	return step
}

// AskedAt notes that w asked, or began to ride along with another's question, at that time.
func (w *Waiter) AskedAt(sent time.Time) {
	w.asked = sent
	if w.line != nil {
		w.line.silence.asks(sent)
	}
}

// Asks records that a question for t is about to be sent. The question asks for this lease, and may
// leave a trace in Redis that lives so long. Each Asks needs one of Granted, Refused, Broke,
// Cross, Unheard and Answered.
func (p *Place) Asks(t *Tenure, lease, patience time.Duration) { t.asks(p, lease, patience) }

// Refusal is the answer that others have the lock.
type Refusal struct {
	Sent  time.Time     // when the question was sent
	Left  time.Duration // what is left of the other's lease; negative if that is not known
	Deaf  bool          // no message reaches this process
	Own   bool          // an owner of Redisson may tell the waiter of its turn, at a channel of its own
	Trace bool          // the question left a trace in Redis
}

// Refused records the answer to a question of w for t that others have the lock.
func (p *Place) Refused(w *Waiter, t *Tenure, r Refusal, now time.Time) {
	t.answered(p)
	t.traced = t.traced || r.Trace
	if !t.Lives() {
		p.giveBack(t) // the question may have put it into the queue again, after what the end took back
	}
	p.land(w, t, landing{refused: true, left: r.Left}, now)
	p.Waits(w, r, now)
}

// Waits records that w was refused: by the answer to its own question, or to that of another
// reader.
func (p *Place) Waits(w *Waiter, r Refusal, now time.Time) {
	l := w.line
	switch {
	case l == nil:
	case w.once:
		l.silence.hears(w.asked) // no more: the next waiter must ask, for a place in the queue
	default:
		l.shut = true
		l.silence.hears(w.asked)
		w.Terms.Discipline.refused(l, w, r, now)
	}
}

// Broke records that a question of w for t came to err. mayHaveRun says that the server may
// have carried it out, or may do so yet.
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

// Unheard records the answer to a question of w for t for which the call did not wait. wrote
// says that the script may have written: it granted the lock, or queued the waiter, or the
// question broke off. Unheard reports whether the caller must settle t.
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
		p.Prompt(w) // it may have the lock
	}
	return false
}

// Retry has w, which waits, ask again at due, if nothing is a reason to do so before: an error came
// instead of an answer.
func (p *Place) Retry(w *Waiter, due time.Time) { w.Terms.Discipline.retry(w.line, w, due) }

// Leads reports whether w asks for itself: it is the first of its line, and roused, or it
// stands in no line.
func (w *Waiter) Leads() bool { return w.line == nil || w.leads() }

// Refuses reports whether a waiter with these terms waits for another owner, as far as is known: a question of its line
// was answered, or an owner of this process has the lock.
func (p *Place) Refuses(c *Terms) bool {
	return p.Line(c).Silence().Heard() || p.side(c.Reads).held != nil
}

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
	TooLate                // the grant came too late for its lease, or the tenure was over by then
	Shut                   // the place is closed
)

// Granted records that a question of w for t was answered by a grant with this token, and
// adds h, a hold of o. late says that the answer took as long as the lease is trusted. That
// does not matter to a tenure that was known to have the lock before.
func (p *Place) Granted(w *Waiter, t *Tenure, o *Owner, h *Hold, token uint64, late bool, now time.Time) Outcome {
	t.answered(p)
	known := w.adopt(t, o)
	s := p.side(t.Terms.Reads)
	switch {
	case known:
		t.grant.token = max(t.grant.token, token) // others may have had the lock since the release that offered it
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
		if w != nil && w.line != nil && !t.grant.writes { // else it was let in because its owner writes, which says nothing about the others
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

// Cross records that a question for t was answered by a grant just as the wait of its call
// ended. The end of t gives the grant back.
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

package lockstate

import (
	"cmp"
	"time"
)

// Do is what a call does next.
type Do uint8

const (
	Wait    Do = iota // wait until Due, or until the waiter is woken
	Restart           // what was offered is lost: make a new acquisition, and ask
	Send              // send a request for Acquisition
	Take              // Acquisition is the owner's now: add a hold
	Join              // Acquisition is open to readers: add a hold, if its lease has not expired
	Share             // Hold is the call's: the reply to another reader's request let it in
	Refuse            // the reply to another reader's request was a refusal, which holds for this one, too
	Fail              // the reply to another reader's request was an error, Err; or it did not come in time, and Err is nil
)

// Step is what a call does next. Do says which fields are set.
type Step struct {
	Do          Do
	Due         time.Time     // Wait: until then; zero is never
	Acquisition *Acquisition  // Ask, Take, Join
	Queued      bool          // Ask: Acquisition is the ticket of the queue, and Redis queues it if it refuses
	Again       time.Duration // Ask, Queued: after how long the queue asks again
	Sibling     *Acquisition  // Ask: the acquisition that the owner has on the other side
	Hold        *Hold         // Share
	Left        time.Duration // Refuse: what is left of the other's lease
	Sent        time.Time     // Refuse, Fail: when the request was sent
	Err         error         // Fail
}

// Next returns what the call of w does at this time. beside is the acquisition that its owner
// has on the other side of the lock, nil if there is none. limit is how long a call waits
// for the reply to a request. After a Step that says Ask, the caller calls WillSend and sends
// the request.
func (p *Lock) Next(w *Waiter, beside *Acquisition, limit time.Duration, now time.Time) Step {
	if w.Terms.Reads {
		return p.nextToRead(w, beside, limit, now)
	}
	if ready, due := w.next(now); !ready {
		return Step{Do: Wait, Due: due}
	}
	if !w.once && w.Terms.Passes {
		if t := w.take(now); t != nil {
			return Step{Do: Take, Acquisition: t}
		}
		if w.Acquisition != nil && !w.Acquisition.Lives() {
			return Step{Do: Restart}
		}
	}
	return p.sendStep(w, beside, now)
}

// next reports whether w has a reason to ask, which it loses, or else when it looks again.
func (w *Waiter) next(now time.Time) (ready bool, due time.Time) {
	due = w.retryAt
	ready = w.reason || !due.IsZero() && !now.Before(due)
	w.reason = false
	if l := w.queue; l != nil {
		reason, lineDue := w.Terms.WaitPolicy.next(l, w, now)
		ready = ready || reason
		if due.IsZero() || !lineDue.IsZero() && lineDue.Before(due) {
			due = lineDue
		}
	}
	if ready {
		w.retryAt = time.Time{}
		w.SentAt(now)
	}
	return ready, due
}

// sendStep is the Step of a waiter that sends its request now.
func (p *Lock) sendStep(w *Waiter, beside *Acquisition, now time.Time) Step {
	step := Step{Do: Send, Acquisition: w.Acquisition, Sibling: beside}
	l := w.queue
	if l != nil && !w.once && w.Terms.Tickets() {
		step.Acquisition, step.Queued, step.Again = l.ticket(w.Terms, now), true, cmp.Or(l.when.pollWithoutPubSub, l.when.pace)
	}
	if step.Acquisition != nil && beside != nil {
		step.Acquisition.grant.writes = true
	}
	return step
}

// SentAt notes that w asked, or began to share another's request, at that time.
func (w *Waiter) SentAt(sent time.Time) {
	w.sentAt = sent
	if w.queue != nil {
		w.queue.outage.sent(sent)
	}
}

// WillSend records that a request for t is about to be sent. The request asks for this lease, and may
// leave a trace in Redis that lives so long. Each WillSend needs one of Granted, Refused, Failed,
// GrantedAfterCancel, LateReply and Answered.
func (p *Lock) WillSend(t *Acquisition, lease, patience time.Duration) {
	t.willSend(p, lease, patience)
}

// Refusal is the reply that others have the lock.
type Refusal struct {
	Sent     time.Time     // when the request was sent
	Left     time.Duration // what is left of the other's lease; negative if that is not known
	NoPubSub bool          // no message reaches this process
	Own      bool          // an owner of Redisson may tell the waiter of its turn, at a channel of its own
	Trace    bool          // the request left a trace in Redis
}

// Refused records the reply to a request of w for t that others have the lock.
func (p *Lock) Refused(w *Waiter, t *Acquisition, r Refusal, now time.Time) {
	t.answered(p)
	t.traced = t.traced || r.Trace
	if !t.Lives() {
		p.release(t) // the request may have put it into the queue again, after what the end took back
	}
	if t.Terms.Reads {
		p.finishRequest(w, t, sharedResult{refused: true, left: r.Left}, now)
	}
	p.Waits(w, r, now)
}

// Waits records that w was refused: by the reply to its own request, or to that of another
// reader.
func (p *Lock) Waits(w *Waiter, r Refusal, now time.Time) {
	l := w.queue
	switch {
	case l == nil:
	case w.once:
		l.outage.replied(w.sentAt) // no more: the next waiter must ask, for a position in the queue
	default:
		l.refusedLast = true
		l.outage.replied(w.sentAt)
		w.Terms.WaitPolicy.refused(l, w, r, now)
	}
}

// Failed records that a request of w for t came to err. mayHaveRun says that the server may
// have carried it out, or may do so yet.
func (p *Lock) Failed(w *Waiter, t *Acquisition, mayHaveRun bool, err error) {
	t.answered(p)
	if mayHaveRun {
		p.markUncertain(t)
	}
	if t.Terms.Reads {
		p.finishRequest(w, t, sharedResult{err: err}, time.Time{})
	}
}

// RolledBack records that a request of w for t was replied to by a grant that w had no use for, as
// err says, and that the grant was released; confirmed says whether Redis confirmed that. A
// copy of what released it may arrive late, so no request is asked in the name of t any more.
func (p *Lock) RolledBack(w *Waiter, t *Acquisition, confirmed bool, err error) {
	w.adopt(t, w.Owner)
	p.Failed(w, t, !confirmed, err)
}

// Abandoned records that the caller of w does not wait any longer for the reply to the
// request for t, which is for LateReply. The readers that join it ask themselves.
func (p *Lock) Abandoned(w *Waiter, t *Acquisition) {
	if t.Terms.Reads {
		p.finishRequest(w, t, sharedResult{}, time.Time{})
	}
}

// LateReply records the reply to a request of w for t for which the call did not wait. wrote
// says that the script may have written: it granted the lock, or queued the waiter, or the
// request broke off. LateReply reports whether the caller must reconcile t.
func (p *Lock) LateReply(w *Waiter, t *Acquisition, wrote bool) (settle bool) {
	t.answered(p)
	if !wrote {
		return false
	}
	if !t.MarkUncertain() {
		p.referenced = true
		return true
	}
	if w != nil && w.queue != nil {
		p.Wakeup(w) // it may have the lock
	}
	return false
}

// Retry has w, which waits, ask again at due, if nothing is a reason to do so before: an error came
// instead of a reply.
func (p *Lock) Retry(w *Waiter, due time.Time) { w.Terms.WaitPolicy.retry(w.queue, w, due) }

// Leads reports whether w asks for itself: it is the first of its queue, and active, or it
// stands in no queue.
func (w *Waiter) Leads() bool { return w.queue == nil || w.leads() }

// Refuses reports whether a waiter with these terms waits for another owner, as far as is known: a request of its queue
// was replied to, or an owner of this process has the lock.
func (p *Lock) Refuses(c *Terms) bool {
	return p.Queue(c).Outage().Replied() || p.side(c.Reads).held != nil
}

// Failed notes that err came instead of a reply to w's latest request.
func (w *Waiter) Failed(err error) {
	if w.queue != nil {
		w.queue.outage.failed(w.sentAt, err)
	}
}

// Outcome says what became of a grant.
type Outcome uint8

const (
	Holds   Outcome = iota // the hold is added
	TooLate                // the grant came too late for its lease, or the acquisition was over by then
	Shut                   // the state is closed
)

// Granted records that a request of w for t was replied to by a grant with this token, and
// adds h, a hold of o. late says that the reply took as long as the lease is trusted. That
// does not matter to an acquisition that was known to have the lock before.
func (p *Lock) Granted(w *Waiter, t *Acquisition, o *Owner, h *Hold, token uint64, late bool, now time.Time) Outcome {
	t.answered(p)
	known := w.adopt(t, o)
	s := p.side(t.Terms.Reads)
	switch {
	case known:
		t.grant.token = max(t.grant.token, token) // others may have had the lock since the release that offered it
	case late:
		t.MarkUncertain() // so that its end takes the grant back
		if t.Terms.Reads {
			p.finishRequest(w, t, sharedResult{}, now)
		}
		return TooLate
	default:
		t.grant.token, t.grant.since, t.counted = token, now, 1
		t.grant.alive = !t.Terms.Fixed
		if p.closed {
			t.MarkUncertain()
			if t.Terms.Reads {
				p.finishRequest(w, t, sharedResult{}, now)
			}
			return Shut
		}
		if t.Lives() {
			t.phase, t.owner = Held, o
			o.hold(t)
			if t.Terms.Sided && !t.Terms.Reads {
				p.wakeReader(t)
			}
			if t.Terms.Passes {
				s.held = t
			}
		}
	}
	added := p.Add(t, o, h)
	if !added && !known {
		t.MarkUncertain()
	}
	if t.Terms.Reads {
		p.finishRequest(w, t, sharedResult{granted: added}, now)
	}
	switch {
	case added:
		if w != nil && w.queue != nil && !t.grant.writes { // else it was let in because its owner writes, which says nothing about the others
			w.queue.outage.replied(w.sentAt)
			w.Terms.WaitPolicy.granted(w.queue, w, now)
		}
		return Holds
	case t.phase == Closed:
		return Shut
	default:
		return TooLate
	}
}

// GrantedAfterCancel records that a request for t was replied to by a grant just as the wait of its call
// ended. The end of t gives the grant back.
func (p *Lock) GrantedAfterCancel(w *Waiter, t *Acquisition) {
	t.answered(p)
	p.markUncertain(t)
	if t.Terms.Reads {
		p.finishRequest(w, t, sharedResult{}, time.Time{})
	}
}

// markUncertain notes that a request for t was or may be executed, and its caller does not use
// that. An acquisition that was offered may be lost by now: nothing else releases what Redis has
// of it since.
func (p *Lock) markUncertain(t *Acquisition) {
	if !t.MarkUncertain() {
		p.release(t)
	}
}

package lockstate

import (
	"cmp"
	"slices"
	"time"
)

// Do is the kind of a Step.
type Do uint8

const (
	Wait   Do = iota // wait until Due, or until woken
	Send             // send a request for Acquisition
	Take             // Acquisition is the owner's: add a hold
	Join             // Acquisition is open to readers: call Admit, unless its lease has expired
	Share            // another reader's request was granted for this call, too: it has its Prepared hold
	Refuse           // another reader's request was refused, and the refusal is valid for this call
	Fail             // another reader's request failed with Err, or had no reply in time; then Err is nil
)

// Step is what a call does next. Do says which fields are set.
type Step struct {
	Do          Do
	Due         time.Time     // Wait: wait until then; zero means without limit
	Acquisition *Acquisition  // Send, Take, Join
	Ticket      bool          // Send: Acquisition is a ticket, and Redis queues it if it refuses the request
	RetryAfter  time.Duration // Send, if Ticket: how long the queue waits before it retries
	Sibling     *Acquisition  // Send: the owner's acquisition on the other side
	Kept        time.Duration // Refuse: as in Refusal
	Err         error         // Fail
}

// Next returns what the call of w does now. The caller does it before it unlocks the state, except that it
// sends a request after that: it first calls WillSend.
func (p *Lock) Next(w *Waiter, now time.Time) Step {
	var sibling *Acquisition
	if w.Terms.Sided { // mutant: always: speed
		sibling = w.Owner.Sibling() // if the owner acquires the write side later, w is woken
	}
	if w.joined != nil {
		if step := p.joinedStep(w, sibling, now); step.Do != Send {
			return step
		}
	} else if ready, due := w.next(now); !ready {
		return Step{Do: Wait, Due: due}
	}
	w.retryAt, w.sentAt = time.Time{}, now
	if l := w.queue; l != nil {
		if l.hand.offered != nil { // a single attempt in a queue finds none
			if t := w.take(now); t != nil {
				return Step{Do: Take, Acquisition: t} // no request, so no reply is due
			}
		}
		w.handled = l.heartbeat.handled
		l.outage.sent(now)
	}
	if w.Terms.Reads {
		if step := p.share(w, sibling, now); step.Do != Send {
			return step
		}
	}
	if w.Acquisition != nil && !w.Acquisition.Lives() {
		p.begin(w, now) // it was offered, and lost
	}
	step := Step{Do: Send, Acquisition: w.Acquisition, Sibling: sibling}
	if l := w.queue; !w.once && w.Terms.Tickets() {
		step.Acquisition, step.Ticket, step.RetryAfter = l.ticket(w.Terms, now), true, cmp.Or(l.when.pollWithoutPubSub, l.when.pollInterval)
	}
	if sibling != nil {
		step.Acquisition.writes, sibling.reads = true, true
	}
	return step
}

// ticket returns the ticket of l for a waiter with these terms, and creates one if necessary. Tokens of
// another counter require another ticket.
func (l *Queue) ticket(c *Terms, now time.Time) *Acquisition {
	p := l.side.p
	if t := l.hand.ticket; t != nil && t.Terms.TokenCounter != c.TokenCounter {
		l.hand.ticket = nil
		p.Fail(t)
	}
	if l.hand.ticket == nil {
		l.hand.ticket = p.maker.NewAcquisition(c, now)
		l.hand.ticket.phase = Ticket
	}
	return l.hand.ticket
}

// begin gives w a new acquisition, unless it sends requests for the ticket of its queue.
func (p *Lock) begin(w *Waiter, now time.Time) {
	if w.once || !w.Terms.Tickets() { // mutant: always: memory
		w.Acquisition = p.maker.NewAcquisition(w.Terms, now)
	}
}

// Restart makes w abandon t, the acquisition of its latest request, and send a request for a new one.
func (p *Lock) Restart(w *Waiter, t *Acquisition, now time.Time) {
	p.GiveUp(w, t) // it sent its own request, so it joined none
	p.begin(w, now)
	p.Wakeup(w)
}

// next reports whether w must send a request now, and clears the reason. Otherwise due is when w
// checks again.
func (w *Waiter) next(now time.Time) (ready bool, due time.Time) {
	due = w.retryAt
	ready = w.reason || !due.IsZero() && !now.Before(due)
	w.reason = false
	if l := w.queue; l != nil {
		reason, queueDue := w.Terms.WaitPolicy.next(l, w, now)
		ready = ready || reason
		if due.IsZero() || !queueDue.IsZero() && queueDue.Before(due) {
			due = queueDue
		}
	}
	return ready, due
}

// WillSend records that a request for t is about to be sent. The request is for this lease, and may
// leave an entry in Redis that lives for waiterTimeout. Each WillSend needs exactly one of Granted,
// Refused, Failed, RolledBack and LateReply.
func (p *Lock) WillSend(t *Acquisition, lease, waiterTimeout time.Duration) {
	t.longest, t.traceTTL = max(t.longest, lease), max(t.traceTTL, waiterTimeout)
	t.pending++
	t.sends = min(t.sends+1, 2)
	p.inFlight++
}

// Refusal is a reply that other owners have the lock.
type Refusal struct {
	Sent      time.Time     // when the request was sent
	Left      time.Duration // the remaining lease of the current owner; negative if unknown
	NoPubSub  bool          // no notification reaches this process
	Confirmed bool          // the subscription of this process is confirmed
	Own       bool          // a Redisson owner may notify the waiter of its turn, on the waiter's own channel
	Kept      time.Duration // how long a single attempt retries, because the lock may be kept idle by another process; 0 if not
	Trace     bool          // the request left an entry in Redis
}

// Refused records that Redis refused a request of w for t, because other owners have the lock.
func (p *Lock) Refused(w *Waiter, t *Acquisition, r Refusal, now time.Time) {
	p.answered(w, t, sharedResult{refused: true, left: r.Left, kept: r.Kept})
	t.traced = t.traced || r.Trace // mutant: operand 1: all requests of t leave an entry, or none does
	if !t.Lives() {
		p.release(t) // the request may have queued t again after t was reconciled
	}
	p.waits(w, r, now)
}

// waits records that w was refused, by the reply to its own request or to another reader's.
func (p *Lock) waits(w *Waiter, r Refusal, now time.Time) {
	l := w.queue
	switch {
	case l == nil:
	case w.once:
		l.outage.replied(w.sentAt) // a single attempt is not queued: the next waiter must send its own request to be queued
	default:
		l.refusedLast = true
		l.outage.replied(w.sentAt)
		w.Terms.WaitPolicy.refused(l, w, r, now)
	}
}

// Failed records that a request of w for t failed with err, or with nil if it was granted and its call had
// just stopped waiting. mayHaveRun says that the server may have executed the request, or may still do so.
// What Redis stores for t is then released when t ends.
func (p *Lock) Failed(w *Waiter, t *Acquisition, mayHaveRun bool, err error) {
	p.answered(w, t, sharedResult{err: err})
	if mayHaveRun && !t.MarkUncertain() {
		p.release(t) // t has ended already, so nothing else would release what Redis stores for it
	}
}

// RolledBack records that a request of w for t was granted, but the call could not use the grant
// because of err, and released it. confirmed says whether Redis confirmed that release. A delayed
// duplicate of the release may arrive, so no further request is sent in the name of t.
func (p *Lock) RolledBack(w *Waiter, t *Acquisition, confirmed bool, err error) {
	w.adopt(t, w.Owner)
	p.Failed(w, t, !confirmed, err)
}

// Abandoned records that the call of w no longer waits for the reply to its request for t. LateReply
// receives the reply. The first reader that joined the request sends another one, which the others join.
func (p *Lock) Abandoned(w *Waiter, t *Acquisition) {
	if t.Terms.Reads { // mutant: always: another acquisition has no such request
		p.finishRequest(w, t, sharedResult{})
	}
}

// LateReply records the reply to a request of w for t that the call did not wait for. wrote says that
// the script may have written: it granted the lock, queued the waiter, or failed with an unknown
// outcome. LateReply reports whether the caller must reconcile t.
func (p *Lock) LateReply(w *Waiter, t *Acquisition, wrote bool) (reconcile bool) {
	p.answered(nil, t, sharedResult{})
	if !wrote {
		return false
	}
	if !t.MarkUncertain() {
		return true
	}
	if w != nil {
		p.Wakeup(w) // t may have the lock
	}
	return false
}

// Retry makes w send its request again at due, or earlier if there is a reason. Its last request
// failed.
func (p *Lock) Retry(w *Waiter, due time.Time) { w.Terms.WaitPolicy.retry(w.queue, w, due) }

// IsBehind reports whether w, which is in a queue, waits behind other calls of this process, which send the
// requests. In a fair queue it does so once it has its position in Redis.
func (w *Waiter) IsBehind() bool {
	if w.queue.entersWaiters {
		return w.queued.as != nil
	}
	return w.joined == nil && !w.leads()
}

// Refuses reports whether another owner is known to have the lock or to come first: a request of the
// queue had a reply, an owner in this process has it, or the queue has sent nothing because it lets
// other processes come first.
func (p *Lock) Refuses(c *Terms) bool {
	if l := p.Queue(c); l != nil {
		yields := l.outage.latest.IsZero() && l.waiters[0].since.Before(l.side.yieldUntil)
		if yields || !l.outage.repliedTo.IsZero() {
			return true
		}
	}
	return p.side(c.Reads).held != nil
}

// Excludes reports whether an owner in this process has the lock, and keeps owners with these terms from it.
func (p *Lock) Excludes(c *Terms) bool {
	return slices.ContainsFunc(p.Held(), func(t *Acquisition) bool { return !t.Terms.Reads || !c.Reads })
}

// Failed records that the latest request of w, which is in a queue, failed with err.
func (w *Waiter) Failed(err error) { w.queue.outage.failed(w.sentAt, err) }

// Outcome is the result of Granted.
type Outcome uint8

const (
	Holds   Outcome = iota // the hold was added
	TooLate                // the grant came too late for its lease, or the acquisition had ended
	Shut                   // the state is closed
)

// Granted records that a request of w for t was granted with this token, and adds h as a hold of o.
// late says that the reply took longer than the lease is trusted. That is irrelevant if t was already
// known to have the lock.
func (p *Lock) Granted(w *Waiter, t *Acquisition, o *Owner, h *Hold, token uint64, late bool, now time.Time) Outcome {
	t.pending--
	p.inFlight--
	known := w.adopt(t, o)
	switch {
	case known:
		t.grant.token = max(t.grant.token, token) // other owners may have had the lock since the release that offered it
	case !late && !p.closed && t.Lives():
		if p.keeping != nil { // mutant: always: speed
			p.releaseKept() // it is lost, because Redis granted the lock to t
		}
		t.grant.token, t.grant.since, t.counted = token, now, 1
		t.phase, t.owner = Held, o
		o.hold(t)
		if t.grant.lingering != nil {
			t.grant.lingering.linger = t.Terms.Linger
		}
		if t.Terms.Sided && !t.Terms.Reads { // mutant: always, operand 1, operand 2: speed
			p.wakeReader(t)
		}
		if t.Terms.HandsOff {
			p.side(t.Terms.Reads).held = t
		}
	}
	added := p.Add(t, o, h)
	if !added && !known { // mutant: operand 2: another release does no harm
		t.MarkUncertain() // the grant is released when t ends
	}
	if t.Terms.Reads { // mutant: always: another acquisition has no such request
		p.finishRequest(w, t, sharedResult{granted: added})
	}
	switch {
	case added:
		if w.queue != nil && !t.writes { // a reader admitted because its owner writes says nothing about other waiters
			w.queue.outage.replied(w.sentAt)
			w.Terms.WaitPolicy.granted(w.queue, w, now)
		}
		return Holds
	case p.closed:
		return Shut
	default:
		return TooLate
	}
}

// adopt gives t to o, if t is or was the ticket of w's queue. A reply to a request of w granted the
// lock to t. adopt reports whether t was already known to have the lock, because it was offered.
func (w *Waiter) adopt(t *Acquisition, o *Owner) (known bool) {
	if w.queue == nil || !t.Terms.HandsOff {
		return false
	}
	l := w.queue
	p := l.side.p
	if l.hand.offered != nil && l.hand.offered != t {
		// Redis says that the ticket has the lock, so the acquisition that was handed off is lost.
		p.Fail(l.hand.offered)
	}
	known = l.hand.offered == t
	l.hand = hand{}
	t.owner, t.Came = o, w.since
	switch {
	case !known:
		t.Terms = w.Terms
	case !t.Lives():
	case p.closed:
		p.end(t, Closed) // Close did not return it, so the session has not released it
	default:
		t.phase = Held
		o.hold(t)
	}
	return known
}

// answered records that a request of w for t has its reply. how is what the reply says about other readers.
func (p *Lock) answered(w *Waiter, t *Acquisition, how sharedResult) {
	t.pending--
	p.inFlight--
	if t.Terms.Reads { // mutant: always: speed
		p.finishRequest(w, t, how)
	}
}

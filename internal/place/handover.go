package place

import "time"

// How a lock goes from one holder to the next without becoming free in between, if its kind
// passes locks on.
//
// Inside a process a lock is passed on without a command: the next tenure has the owner
// string and the lease of the one before. After MaxPasses of them, or MaxPassTime, the lock
// is released, and the same script gives it to the first process in the queue in Redis. The
// process that released stands at the end of that queue.
//
// If the first in the queue is the process that releases, the reply to the release says
// so. Any other process gets a message at a channel of its own. The message is only a reason
// to ask: the question finds that the ticket has the lock, and gets a full lease. So nothing
// depends on the message, or on its sender.
//
// A fair lock goes to the next waiter of the queue, and to no other. The grant says which
// waiters of this process are next: up to the first of another process, the lock is passed on
// to them. The release takes them out of the queue in Redis. Where it is not there soon, a
// command of its own does that before: see StrikePause.

// MaxPasses is how often a lock is passed on in a process before it is released. A register
// gives out so many tokens at once.
const MaxPasses = 64

// MaxPassTime is for how long a lock is passed on in a process before it is released.
const MaxPassTime = 10 * time.Millisecond

// suits reports whether a waiter with these terms can take t, which was granted by a release or
// passed on: the waiter wants no lease of its own, no confirmation by replicas, and tokens of
// the same register.
func (c *Terms) suits(t *Tenure) bool {
	return !c.Fixed && !c.Replicas && c.Register == t.Terms.Register
}

// mayPass reports whether the lock of t, which has no hold any more, may be passed on to
// the first waiter of its line. Redis hears nothing of that. So no question may be under
// way or in doubt for this owner string, and it must stand in Redis with one hold.
func (p *Place) mayPass(t *Tenure, now time.Time) bool {
	s := p.side(t.Terms.Reads)
	l := s.line(t.Terms)
	held := now.Sub(t.grant.since)
	switch {
	case l == nil || p.closed || l.hand.offered != nil || s.held != t:
		return false
	case t.unsure || t.pending > 0 || t.counted != 1 || t.grant.raised > 0:
		return false
	case t.longest > p.rules.Lease:
		return false // the key would live for longer than the next holder wants if that one died
	case t.grant.passes >= MaxPasses || held >= MaxPassTime:
		return false
	case held <= time.Duration(t.grant.passes+1)*2*time.Microsecond:
		return false // the next token would be ahead of the server's clock
	}
	return l.heir(t) != nil
}

// heir returns the waiter to which the lock of t may be passed on; nil if there is none.
func (l *Line) heir(t *Tenure) *Waiter {
	if l.queues {
		return l.nextInQueue(t)
	}
	if w := l.waiters[0]; !w.once && w.Terms.suits(t) {
		return w
	}
	return nil
}

// Follows makes next the tenure that has the lock after t, by the same owner string and with
// the next token.
func (next *Tenure) Follows(t *Tenure) {
	next.Terms, next.Name, next.phase = t.Terms, t.Name, Offered
	next.grant = grant{token: t.grant.token + 1, since: t.grant.since, passes: t.grant.passes + 1, alive: true, queue: t.grant.queue}
	next.ledger = ledger{longest: t.longest, counted: 1, served: t.served, servedAt: t.servedAt}
}

// PassTo offers next, which Follows t and has its lease from now on, to t's line. Unlock
// calls it, by its argument pass.
func (p *Place) PassTo(t, next *Tenure) {
	t.grant.next = next
	if l := p.Line(t.Terms); l.queues {
		p.offerTo(l, next, l.nextInQueue(next))
	} else {
		p.offer(l, next)
	}
}

// offer offers t, which has the lock, to the first waiter of l.
func (p *Place) offer(l *Line, t *Tenure) {
	l.hand.offered, l.side.held = t, t
	l.rouse()
}

// Heir returns the first waiter of this process, if the release of t may give the lock to it,
// and the ticket of its line; else nil. The release puts the ticket into the queue in Redis,
// with this offer for a lease, and this patience.
func (p *Place) Heir(t *Tenure, offer, patience time.Duration, now time.Time) (w *Waiter, ticket *Tenure) {
	l := p.Line(t.Terms)
	if l == nil || p.closed || l.hand.offered != nil {
		return nil, nil
	}
	if l.queues {
		return l.firstQueued(t, offer)
	}
	if w = l.waiters[0]; w.once {
		return nil, nil
	}
	ticket = l.ticket(w.Terms, now)
	ticket.traced = true
	ticket.longest, ticket.patience = max(ticket.longest, offer), max(ticket.patience, patience)
	return w, ticket
}

// Pace returns after how long l asks again without a hint.
func (l *Line) Pace() time.Duration { return l.when.pace }

// ticket returns the ticket of l for a waiter with these terms, and makes it if there is none.
// A waiter whose tokens come from another register needs another ticket.
func (l *Line) ticket(c *Terms, now time.Time) *Tenure {
	p := l.side.p
	if t := l.hand.ticket; t != nil && t.Terms.Register != c.Register {
		l.hand.ticket = nil
		p.Fail(t)
	}
	if l.hand.ticket == nil {
		l.hand.ticket = p.rules.Ticket(p, c, now)
		l.hand.ticket.phase = Queued
	}
	return l.hand.ticket
}

// Inheritance is what became of a release that named a ticket as the heir.
type Inheritance struct {
	Broke bool      // the release came to an error
	Done  bool      // the lock was given back
	Token uint64    // Done: the heir's token, if the heir has the lock now; else 0
	Late  bool      // Token: too little is left of the offer
	Aside time.Time // Done: the lock was let go, and others come first until then; zero if it was not
	Sent  time.Time // when the release was sent
}

// Inherit records what became of a release that named ticket as the heir. It reports whether
// ticket is offered to the line now: then the session watches its lease.
func (p *Place) Inherit(ticket *Tenure, i Inheritance, now time.Time) (offered bool) {
	l := p.Line(ticket.Terms)
	if !ticket.Terms.Tickets() {
		return p.succeed(l, ticket, i, now)
	}
	mine := l != nil && l.hand.ticket == ticket
	over := !ticket.Latest().Lives() // it may have been granted the lock meanwhile, and passed it on: that holder has its lease
	switch {
	case i.Broke:
		ticket.Doubt()
	case mine && i.Token != 0:
		offered = p.inherit(l, i, now)
	case mine && !i.Aside.IsZero():
		l.StepAside(i.Aside)
		l.hint()
	case mine && i.Done:
		l.when.askAt = l.due(now, -1)
		l.Listen(ticket.Terms, i.Sent) // the confirmation is a reason to ask, as a message before it is lost
	}
	if l != nil && (i.Broke || !i.Done) {
		l.when.askAt = time.Time{}
		l.hint()
	}
	if over {
		// It was given up meanwhile, and the command that gave it back may have come before the release.
		p.giveBack(ticket)
	}
	return offered
}

// inherit offers the ticket of l, to which a release gave the lock, to the first waiter, if it
// suits that one. Else it has the waiter ask.
func (p *Place) inherit(l *Line, i Inheritance, now time.Time) bool {
	t, first := l.hand.ticket, l.waiters[0]
	if first.once || !first.Terms.suits(t) || i.Late {
		l.when.askAt = time.Time{}
		l.rouse()
		return false
	}
	l.hand.ticket = nil
	t.inherits(i.Token, now)
	p.offer(l, t)
	return true
}

// inherits makes t, to which a release gave the lock, Offered.
func (t *Tenure) inherits(token uint64, now time.Time) {
	t.phase = Offered
	t.grant.token, t.grant.since, t.grant.alive, t.counted = token, now, true, 1
}

// take returns the tenure that is offered to the line, which w takes; nil if there is nothing
// for w to take. Only the first waiter comes here, or any of a line that queues.
func (w *Waiter) take(now time.Time) *Tenure {
	l := w.line
	p := l.side.p
	t := l.hand.offered
	if t == nil || l.queues && l.hand.to != w {
		return nil
	}
	l.hand.offered, l.hand.to = nil, nil
	if !t.Lives() {
		return nil // lost meanwhile
	}
	if p.closed || !w.Terms.suits(t) {
		p.Fail(t)
		return nil
	}
	t.phase, t.owner, t.Came = Held, w.Owner, w.since
	w.Owner.hold(t)
	if l.queues {
		p.serve(w, t, now)
	}
	return t
}

// adopt makes t, which was granted as the answer to a question of w, the tenure of o, if t is
// the ticket of the line or was. It reports whether t was known to have the lock before, as
// it was offered.
func (w *Waiter) adopt(t *Tenure, o *Owner) (known bool) {
	if w == nil || w.line == nil || w.once || !t.Terms.Passes {
		return false
	}
	l := w.line
	p := l.side.p
	if l.hand.offered != nil && l.hand.offered != t {
		// Redis says that the ticket has the lock: what was passed on is lost.
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
		p.end(t, Closed) // Close did not see it, or else would give it back
	default:
		t.phase = Held
		o.hold(t)
	}
	return known
}

// GiveUp ends what w asks for in the name of t. A ticket stays for the next waiter of the
// line, if no question for it is under way or in doubt. If another reader's question let w
// in just as its wait ended, GiveUp returns its hold, and the caller gives that back.
func (p *Place) GiveUp(w *Waiter, t *Tenure) *Hold {
	seat := w.leaveTrip()
	if t == nil {
		return seat
	}
	if l := w.line; l != nil && t == l.hand.offered {
		return seat // the next waiter takes it, or the line gives it back
	} else if l != nil && t == l.hand.ticket {
		if t.unsure || t.pending > 0 {
			// It may come to have the lock, or a longer lease, when no waiter expects that any more.
			l.hand.ticket = nil
			p.Fail(t)
		}
		return seat // the end of the line gives it up
	}
	p.Fail(t)
	return seat
}

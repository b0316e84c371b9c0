package lockstate

import "time"

// How a lock goes from one holder to the next without becoming free in between, if its kind
// passes locks on.
//
// Inside a process a lock is handed off without a command: the next acquisition has the owner
// string and the lease of the one before. After MaxPasses of them, or MaxPassTime, the lock
// is released, and the same script gives it to the first process in the queue in Redis. The
// process that released stands at the end of that queue.
//
// If the first in the queue is the process that releases, the reply to the release says
// so. Any other process gets a message at a channel of its own. The message is only a reason
// to ask: the request finds that the ticket has the lock, and gets a full lease. So nothing
// depends on the message, or on its sender.
//
// A fair lock goes to the next waiter of the queue, and to no other. The grant says which
// waiters of this process are next: up to the first of another process, the lock is handed off
// to them. The release takes them out of the queue in Redis. Where it is not there soon, a
// command of its own does that before: see ServedPause.

// MaxPasses is how often a lock is handed off in a process before it is released. A register
// gives out so many tokens at once.
const MaxPasses = 64

// MaxPassTime is for how long a lock is handed off in a process before it is released.
const MaxPassTime = 10 * time.Millisecond

// canTake reports whether a waiter with these terms can take t, which was granted by a release or
// handed off: the waiter wants no lease of its own, no confirmation by replicas, and tokens of
// the same register.
func (c *Terms) canTake(t *Acquisition) bool {
	return !c.Fixed && !c.Replicas && c.Register == t.Terms.Register
}

// mayPass reports whether the lock of t, which has no hold any more, may be handed off to
// the first waiter of its queue. Redis gets nothing of that. So no request may be under
// way or uncertain for this owner string, and it must stand in Redis with one hold.
func (p *Lock) mayPass(t *Acquisition, now time.Time) bool {
	s := p.side(t.Terms.Reads)
	l := s.queue(t.Terms)
	held := now.Sub(t.grant.since)
	switch {
	case l == nil || p.closed || l.hand.offered != nil || s.held != t:
		return false
	case t.uncertain || t.pending > 0 || t.counted != 1 || t.grant.raised > 0:
		return false
	case t.longest > p.rules.Lease:
		return false // the key would live for longer than the next holder wants if that one died
	case t.grant.passes >= MaxPasses || held >= MaxPassTime:
		return false
	case held <= time.Duration(t.grant.passes+1)*2*time.Microsecond:
		return false // the next token would be ahead of the server's clock
	}
	return l.nextWaiter(t) != nil
}

// nextWaiter owner returns the waiter to which the lock of t may be handed off; nil if there is none.
func (l *Queue) nextWaiter(t *Acquisition) *Waiter {
	if l.inRedis {
		return l.nextInQueue(t)
	}
	if w := l.waiters[0]; !w.once && w.Terms.canTake(t) {
		return w
	}
	return nil
}

// Follows makes next the acquisition that has the lock after t, by the same owner string and with
// the next token.
func (next *Acquisition) Follows(t *Acquisition) {
	next.Terms, next.Name, next.phase = t.Terms, t.Name, Offered
	next.grant = grant{token: t.grant.token + 1, since: t.grant.since, passes: t.grant.passes + 1, alive: true, queue: t.grant.queue}
	next.ledger = ledger{longest: t.longest, counted: 1, served: t.served, servedAt: t.servedAt}
}

// PassTo offers next, which Follows t and has its lease from now on, to t's line. Unlock
// calls it, by its argument pass.
func (p *Lock) PassTo(t, next *Acquisition) {
	t.grant.next = next
	if l := p.Queue(t.Terms); l.inRedis {
		p.offerTo(l, next, l.nextInQueue(next))
	} else {
		p.offer(l, next)
	}
}

// offer offers t, which has the lock, to the first waiter of l.
func (p *Lock) offer(l *Queue, t *Acquisition) {
	l.hand.offered, l.side.held = t, t
	l.activate()
}

// NextOwner returns the first waiter of this process, if the release of t may give the lock to it,
// and the ticket of its queue; else nil. The release puts the ticket into the queue in Redis,
// with this offer for a lease, and this patience.
func (p *Lock) NextOwner(t *Acquisition, offer, patience time.Duration, now time.Time) (w *Waiter, ticket *Acquisition) {
	l := p.Queue(t.Terms)
	if l == nil || p.closed || l.hand.offered != nil {
		return nil, nil
	}
	if l.inRedis {
		return l.firstQueued(t, offer)
	}
	if w = l.waiters[0]; w.once {
		return nil, nil
	}
	ticket = l.ticket(w.Terms, now)
	ticket.traced = true
	ticket.longest, ticket.traceTTL = max(ticket.longest, offer), max(ticket.traceTTL, patience)
	return w, ticket
}

// Pace returns after how long l asks again without a notification.
func (l *Queue) Pace() time.Duration { return l.when.pace }

// ticket returns the ticket of l for a waiter with these terms, and makes it if there is none.
// A waiter whose tokens come from another register needs another ticket.
func (l *Queue) ticket(c *Terms, now time.Time) *Acquisition {
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

// ReleaseResult is what became of a release that named a ticket as the next owner.
type ReleaseResult struct {
	Broke bool      // the release came to an error
	Done  bool      // the lock was released
	Token uint64    // Done: the next owner's token, if the next owner has the lock now; else 0
	Late  bool      // Token: too little is left of the offer
	Aside time.Time // Done: the lock was released, and others come first until then; zero if it was not
	Sent  time.Time // when the release was sent
}

// OnRelease records what became of a release that named ticket as the next owner. It reports whether
// ticket is offered to the queue now: then the session watches its lease.
func (p *Lock) OnRelease(ticket *Acquisition, i ReleaseResult, now time.Time) (offered bool) {
	l := p.Queue(ticket.Terms)
	if !ticket.Terms.Tickets() {
		return p.onFairRelease(l, ticket, i, now)
	}
	mine := l != nil && l.hand.ticket == ticket
	over := !ticket.Latest().Lives() // it may have been granted the lock meanwhile, and passed it on: that holder has its lease
	switch {
	case i.Broke:
		ticket.MarkUncertain()
	case mine && i.Token != 0:
		offered = p.onRelease(l, i, now)
	case mine && !i.Aside.IsZero():
		l.YieldUntil(i.Aside)
		l.notify()
	case mine && i.Done:
		l.when.sendAt = l.due(now, -1)
		l.Subscribe(ticket.Terms, i.Sent) // the confirmation is a reason to ask, as a message before it is lost
	}
	if l != nil && (i.Broke || !i.Done) {
		l.when.sendAt = time.Time{}
		l.notify()
	}
	if over {
		// It was given up meanwhile, and the command that released it may have come before the release.
		p.release(ticket)
	}
	return offered
}

// onRelease offers the ticket of l, to which a release gave the lock, to the first waiter, if it
// suits that one. Else it has the waiter ask.
func (p *Lock) onRelease(l *Queue, i ReleaseResult, now time.Time) bool {
	t, first := l.hand.ticket, l.waiters[0]
	if first.once || !first.Terms.canTake(t) || i.Late {
		l.when.sendAt = time.Time{}
		l.activate()
		return false
	}
	l.hand.ticket = nil
	t.takesOver(i.Token, now)
	p.offer(l, t)
	return true
}

// takesOver makes t, to which a release gave the lock, Offered.
func (t *Acquisition) takesOver(token uint64, now time.Time) {
	t.phase = Offered
	t.grant.token, t.grant.since, t.grant.alive, t.counted = token, now, true, 1
}

// take returns the acquisition that is offered to the queue, which w takes; nil if there is nothing
// for w to take. Only the first waiter comes here, or any of a queue that queues.
func (w *Waiter) take(now time.Time) *Acquisition {
	l := w.queue
	p := l.side.p
	t := l.hand.offered
	if t == nil || l.inRedis && l.hand.to != w {
		return nil
	}
	l.hand.offered, l.hand.to = nil, nil
	if !t.Lives() {
		return nil // lost meanwhile
	}
	if p.closed || !w.Terms.canTake(t) {
		p.Fail(t)
		return nil
	}
	t.phase, t.owner, t.Came = Held, w.Owner, w.since
	w.Owner.hold(t)
	if l.inRedis {
		p.serve(w, t, now)
	}
	return t
}

// adopt makes t, which was granted as the reply to a request of w, the acquisition of o, if t is
// the ticket of the queue or was. It reports whether t was known to have the lock before, as
// it was offered.
func (w *Waiter) adopt(t *Acquisition, o *Owner) (known bool) {
	if w == nil || w.queue == nil || w.once || !t.Terms.Passes {
		return false
	}
	l := w.queue
	p := l.side.p
	if l.hand.offered != nil && l.hand.offered != t {
		// Redis says that the ticket has the lock: what was handed off is lost.
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
		p.end(t, Closed) // Close did not see it, or else would release it
	default:
		t.phase = Held
		o.hold(t)
	}
	return known
}

// GiveUp ends what w asks for in the name of t. A ticket stays for the next waiter of the
// line, if no request for it is under way or uncertain. If another reader's request let w
// in just as its wait ended, GiveUp returns its hold, and the caller releases that.
func (p *Lock) GiveUp(w *Waiter, t *Acquisition) *Hold {
	seat := w.leaveRequest()
	if t == nil {
		return seat
	}
	if l := w.queue; l != nil && t == l.hand.offered {
		return seat // the next waiter takes it, or the queue releases it
	} else if l != nil && t == l.hand.ticket {
		if t.uncertain || t.pending > 0 {
			// It may come to have the lock, or a longer lease, when no waiter expects that any more.
			l.hand.ticket = nil
			p.Fail(t)
		}
		return seat // the end of the queue gives it up
	}
	p.Fail(t)
	return seat
}

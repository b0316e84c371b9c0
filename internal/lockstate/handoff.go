package lockstate

import "time"

// How a lock goes from one owner to the next without becoming free in between, if its kind supports
// hand-offs.
//
// A local hand-off, inside a process, needs no command: the next acquisition takes over the owner
// string and the lease. After MaxHandOffs hand-offs, or MaxHandOffTime, the lock is released. The release
// script grants it to the first process in the Redis queue, and puts the releasing process at the end
// of that queue.
//
// If the releasing process is the first in the queue, the reply to the release says so. Any other
// process is notified on its own channel. The notification only triggers a request. That request
// finds that the ticket has the lock, and gets a full lease. Nothing therefore depends on the
// notification or its sender.
//
// A fair lock goes only to the next waiter in the Redis queue. The grant names the waiters of this
// process that are next, up to the first one of another process. The lock is handed off to them
// locally. The release removes them from the Redis queue. If the release does not come soon, a
// separate command removes them; see ServedPause.

// MaxHandOffs is how often a lock is handed off in a process before it is released. Each grant reserves
// that many fencing tokens.
const MaxHandOffs = 64

// MaxHandOffTime is how long a lock is handed off in a process before it is released. A plain lock that
// lingers has neither limit until another client is known to want it, or its keep time has passed.
const MaxHandOffTime = 10 * time.Millisecond

// canTake reports whether a waiter with these terms can take t, which a release or a local hand-off
// granted. The waiter must not require a fixed lease, confirmation by replicas, or tokens of another
// counter.
func (c *Terms) canTake(t *Acquisition) bool {
	return !c.Fixed && !c.Replicas && c.TokenCounter == t.Terms.TokenCounter
}

// mayHandOff reports whether the lock of t, which has no hold left, may be handed off locally. Redis is
// not notified, so no request for this owner string may be in flight or uncertain, and Redis must
// have exactly one hold of it.
func (p *Lock) mayHandOff(t *Acquisition, now time.Time) bool {
	s := p.side(t.Terms.Reads)
	l := s.queue(t.Terms)
	if l == nil || p.closed || l.hand.offered != nil || s.held != t || !p.canBeTakenOver(t) {
		return false
	}
	held, handOffs := now.Sub(t.grant.since), t.HandOffCount()
	switch {
	case (handOffs >= MaxHandOffs || held >= MaxHandOffTime) && (l.entersWaiters || !p.lingers(t, now)):
		return false
	case held <= time.Duration(handOffs+1)*2*time.Microsecond:
		return false // otherwise the next token would be ahead of the server's clock
	}
	return l.nextWaiter(t) != nil
}

// canBeTakenOver reports whether another acquisition may take over the lock of t without a command.
func (p *Lock) canBeTakenOver(t *Acquisition) bool {
	if t.uncertain || t.pending > 0 || t.counted != 1 || t.Raised() > 0 {
		return false
	}
	return t.longest <= p.rules.Lease // otherwise the key would outlive the next owner's lease if that owner crashed
}

// nextWaiter returns the waiter that the lock of t may be handed off to, or nil if there is none.
func (l *Queue) nextWaiter(t *Acquisition) *Waiter {
	if l.entersWaiters {
		return l.nextInQueue(t)
	}
	if w := l.waiters[0]; !w.once && w.Terms.canTake(t) {
		return w
	}
	return nil
}

// handOffs describes the local hand-offs of a lock under one grant. The acquisitions that have the lock
// under that grant share it: they have the same owner string in Redis. It is made when a grant names
// the next owners, or before the first hand-off. The mutex of the [Lock] guards it.
type handOffs struct {
	count    int          // how often the lock was handed off since the grant
	last     *Acquisition // the acquisition that the lock was handed off to last; before that, the one that was granted it
	queue    []Queuing    // the next owners in the Redis queue, up to the first one of another process
	served   []string     // owner strings of waiters that had the lock, and may be in the Redis queue until the release
	servedAt time.Time    // since when the first of them is no longer waiting
}

// handOffs returns the record of the local hand-offs under the grant of t, and creates it if necessary.
func (t *Acquisition) handOffs() *handOffs {
	if t.grant.handOffs == nil {
		t.grant.handOffs = &handOffs{last: t}
	}
	return t.grant.handOffs
}

// HandOffCount returns how often the lock was handed off in this process since it was granted to t or to
// an acquisition before t.
func (t *Acquisition) HandOffCount() int {
	if t.grant.handOffs == nil {
		return 0
	}
	return t.grant.handOffs.count
}

// Latest returns the acquisition that the lock of t was handed off to last, which is t if there was no
// local hand-off. All of them have the same owner string, so what a command with it does concerns the last one.
func (t *Acquisition) Latest() *Acquisition {
	if t.grant.handOffs == nil {
		return t
	}
	return t.grant.handOffs.last
}

// Served returns the owner strings that the release of t removes from the Redis queue.
func (t *Acquisition) Served() []string {
	if t.grant.handOffs == nil {
		return nil
	}
	return t.grant.handOffs.served
}

// Follows initializes next as the acquisition after t: same owner string, next token.
func (next *Acquisition) Follows(t *Acquisition) {
	next.Terms, next.Name, next.phase, next.Late = t.Terms, t.Name, Offered, t.Late || t.Unconfirmed()
	next.grant = grant{token: t.grant.token + 1, since: t.grant.since, handOffs: t.handOffs(), lingering: t.grant.lingering}
	next.ledger = ledger{longest: t.longest, counted: 1}
}

// HandOffTo offers next to the queue of t, or keeps it if there is no queue. next Follows t and takes over
// its lease. Unlock's argument handOff calls it.
func (p *Lock) HandOffTo(t, next *Acquisition) {
	handOffs := next.grant.handOffs
	handOffs.count, handOffs.last = handOffs.count+1, next
	switch l := p.Queue(t.Terms); {
	case l == nil:
		next.phase = Kept
		p.sides[0].held, p.keeping.kept = next, next
	case l.entersWaiters:
		p.offerTo(l, next, l.nextInQueue(next))
	default:
		p.offer(l, next)
	}
}

// offer offers t, which has the lock, to the first waiter of l.
func (p *Lock) offer(l *Queue, t *Acquisition) {
	l.hand.offered, l.side.held = t, t
	l.activate()
}

// NextOwner returns the waiter of this process that the release of t may name as the next owner, and
// that waiter's acquisition or ticket. Both are nil if there is none. The release queues the ticket
// in Redis for waiterTimeout, with a lease of offer.
func (p *Lock) NextOwner(t *Acquisition, offer, waiterTimeout time.Duration, now time.Time) (w *Waiter, ticket *Acquisition) {
	l := p.Queue(t.Terms)
	if l == nil || p.closed || l.hand.offered != nil {
		return nil, nil
	}
	if l.entersWaiters {
		return l.firstQueued(t, offer)
	}
	if w = l.waiters[0]; w.once {
		return nil, nil
	}
	ticket = l.ticket(w.Terms, now)
	ticket.traced = true
	ticket.longest, ticket.traceTTL = max(ticket.longest, offer), max(ticket.traceTTL, waiterTimeout)
	return w, ticket
}

// PollInterval returns how long l waits before it retries without a notification.
func (l *Queue) PollInterval() time.Duration { return l.when.pollInterval }

// ReleaseResult is the result of a release that named a next owner.
type ReleaseResult struct {
	Broke bool      // the release failed
	Done  bool      // the lock was released
	Token uint64    // if Done: the next owner's token if it was granted the lock; otherwise 0
	Late  bool      // if Token is not 0: too little of the offered lease is left
	Aside time.Time // if Done: the lock was released, and other processes come first until then; zero if not
	Sent  time.Time // when the release was sent
}

// OnRelease records the result of a release that named ticket as the next owner. It reports whether
// ticket is now offered to the queue. If it is, the session watches its lease.
func (p *Lock) OnRelease(ticket *Acquisition, i ReleaseResult, now time.Time) (offered bool) {
	l := p.Queue(ticket.Terms)
	if !ticket.Terms.Tickets() {
		return p.onFairRelease(l, ticket, i, now)
	}
	mine := l != nil && l.hand.ticket == ticket
	over := !ticket.Latest().Lives() // it may have been granted and handed off in the meantime: then the latest acquisition has the lease
	switch {
	case i.Broke:
		ticket.MarkUncertain()
	case mine && i.Token != 0:
		offered = p.onRelease(l, i, now)
	case mine && !i.Aside.IsZero():
		l.YieldUntil(i.Aside)
		l.Notify()
	case mine && i.Done:
		l.when.sendAt = now.Add(l.when.pollInterval)
		l.Subscribe(ticket.Terms, i.Sent) // notifications may be lost until the subscription is confirmed, which triggers a request
	}
	if l != nil && !i.Done {
		l.Notify()
	}
	if over {
		// The release may have granted the lock after the command that reconciled the ticket.
		p.release(ticket)
	}
	return offered
}

// onRelease offers the ticket of l, which a release granted the lock, to the first waiter. If that
// waiter cannot take it, or too little of the lease is left, the waiter sends a request.
func (p *Lock) onRelease(l *Queue, i ReleaseResult, now time.Time) bool {
	t, first := l.hand.ticket, l.waiters[0]
	if first.once || !first.Terms.canTake(t) || i.Late {
		l.when.sendAt, l.when.active = time.Time{}, true
		l.Notify() // the reply to a request in flight changes sendAt, but not this
		return false
	}
	l.hand.ticket = nil
	t.takesOver(i.Token, now)
	p.offer(l, t)
	return true
}

// takesOver makes t Offered, because a release granted the lock to it.
func (t *Acquisition) takesOver(token uint64, now time.Time) {
	t.phase = Offered
	t.grant.token, t.grant.since, t.counted = token, now, 1
}

// take returns the acquisition that is offered to the queue, if w takes it; otherwise nil. If the queue
// is in Redis, any waiter may call it; otherwise only the first.
func (w *Waiter) take(now time.Time) *Acquisition {
	l := w.queue
	p := l.side.p
	t := l.hand.offered
	if l.entersWaiters && l.hand.to != w {
		return nil
	}
	l.hand.offered, l.hand.to = nil, nil
	if !t.Lives() {
		return nil // it was lost in the meantime
	}
	if p.closed || !w.Terms.canTake(t) {
		p.Fail(t)
		return nil
	}
	t.phase, t.owner, t.Came = Held, w.Owner, w.since
	if t.Lingers() {
		t.grant.lingering.linger = w.Terms.Linger
	}
	w.Owner.hold(t)
	if l.entersWaiters {
		p.serve(w, t, now)
	}
	return t
}

// GiveUp ends w's request for t. A ticket stays for the next waiter, unless a request for it is in
// flight or uncertain. If another reader's request admitted w just before, GiveUp returns its hold,
// which the caller releases.
func (p *Lock) GiveUp(w *Waiter, t *Acquisition) *Hold {
	hold := w.leaveRequest()
	if t == nil {
		return hold
	}
	if l := w.queue; l != nil && t == l.hand.offered {
		return hold // the next waiter takes it, or the queue releases it
	} else if l != nil && t == l.hand.ticket {
		if t.uncertain || t.pending > 0 {
			// A late grant or extension would go to a ticket that no waiter watches.
			l.hand.ticket = nil
			p.Fail(t)
		}
		return hold // the ticket ends with the queue
	}
	p.Fail(t)
	return hold
}

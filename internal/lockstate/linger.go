package lockstate

import "time"

// How a process keeps a lock for its next caller (lock.WithLinger). A lock without the option does not
// use this file.
//
// When the last hold ends, the lock is not released: the next acquisition is Kept. It takes over the owner
// string and the lease, as after a local hand-off, and no command is sent. The next caller takes it. It is
// released when it has been kept for the time of the option, when the process has had the lock for
// MinKeepTime or that time, whichever is longer, or when another client was refused.
//
// A refused request of another client notifies this process. The process must not miss that, so an
// acquisition lingers only if:
//
//   - The first request for it was granted, and no release named it as the next owner. No other client
//     is known to wait: a waiter would have been granted the lock instead, or sends a request after this
//     one.
//   - The process was subscribed when it sent that request, and is still.
//   - There was no notification since then. Each notification counts, and each confirmation of a
//     subscription, because messages may have been lost before it.
//
// A notification can still be lost, and Redisson sends none. The keep time bounds the wait of such clients.

// MinKeepTime is how long a process has a lock before it releases it for other clients, even if none
// notified it, unless the time of the option is longer.
const MinKeepTime = time.Second

// tokenTime is the minimum time that a process has a lock for each token that it assigns itself. Its tokens
// then stay behind the server's clock, from which the next holder's token is made.
const tokenTime = 1100 * time.Nanosecond

// lingering says whether and how long a lock lingers under one grant. The acquisitions that have the lock
// under that grant share it. It is created for a request after which this process misses no notification.
// The mutex of the [Lock] guards it.
type lingering struct {
	linger  time.Duration // the time of the option; 0 if the owner does not use it, or before the grant
	noticed uint64        // keeping.noticed when the request was sent
}

// keeping is the state of a lock that lingers. The first request for such a lock creates it.
type keeping struct {
	kept      *Acquisition // nil if there is none
	keptUntil time.Time    // when it is released
	timer     time.Time    // when LingerOver will be called; zero if it will not
	noticed   uint64       // how many notifications there were, and other reasons to assume that other clients wait
	tried     bool         // a client that does not wait was refused
}

// keepTime returns how long the process may have the lock.
func (g *lingering) keepTime() time.Duration { return max(g.linger, MinKeepTime) }

// Lingers reports whether the grant of t allows keeping it after its last hold.
func (t *Acquisition) Lingers() bool { return t.grant.lingering != nil && t.grant.lingering.linger > 0 }

// WillLinger records that the request for t, which WillSend has just recorded, is for a lock that lingers.
// subscribed says that the process is notified of each refusal from now on.
func (p *Lock) WillLinger(t *Acquisition, subscribed bool) {
	t.grant.lingering = nil
	if k := p.keeps(); subscribed && t.sends == 1 && !t.traced {
		t.grant.lingering = &lingering{noticed: k.noticed}
	}
}

// keeps returns the record of the lock that lingers, and creates it if necessary.
func (p *Lock) keeps() *keeping {
	if p.keeping == nil {
		p.keeping = new(keeping)
	}
	return p.keeping
}

// lingers reports whether this process may have the lock of t for longer, whatever its own callers do.
func (p *Lock) lingers(t *Acquisition, now time.Time) bool {
	g := &t.grant
	return t.Lingers() && g.lingering.noticed == p.keeping.noticed && now.Sub(g.since) < g.lingering.keepTime()
}

// mayKeep reports whether the lock of t, which has no hold left, may be kept. Redis is not notified, so
// the conditions are those of mayHandOff.
func (p *Lock) mayKeep(t *Acquisition, now time.Time) bool {
	s := &p.sides[0]
	switch {
	case p.closed || len(s.queues) > 0 || !p.lingers(t, now):
		return false
	case t.Terms.HandsOff && s.held != t:
		return false
	case !p.canBeTakenOver(t):
		return false
	case t.Terms.Sided && (t.reads || p.inFlight > 0 || p.readersHere()):
		return false // reads: the key may have the longer lease of the reader
	}
	return true
}

// readersHere reports whether a call or a hold of this process uses the side of the readers.
func (p *Lock) readersHere() bool { return len(p.sides[1].owners) > 0 }

// keepFor sets when t, which is Kept, is released.
func (p *Lock) keepFor(t *Acquisition, now time.Time) {
	k := p.keeping
	k.keptUntil = now.Add(t.grant.lingering.linger)
	if end := t.grant.since.Add(t.grant.lingering.keepTime()); end.Before(k.keptUntil) {
		k.keptUntil = end
	}
	p.startLinger()
}

// startLinger has LingerOver called when the lock that is kept now is to be released.
func (p *Lock) startLinger() {
	if k := p.keeping; k.timer.IsZero() || k.keptUntil.Before(k.timer) { // a caller with another time may have armed it
		k.timer = k.keptUntil
		p.emit(Effect{Kind: StartLinger, Due: k.keptUntil})
	}
}

// LingerOver handles the timer of a StartLinger effect.
func (p *Lock) LingerOver(now time.Time) {
	k := p.keeping
	k.timer = time.Time{}
	switch {
	case k.kept == nil: // mutant: never: the timer may run once more
	case now.Before(k.keptUntil):
		p.startLinger()
	default:
		p.releaseKept()
	}
}

// Kept returns the acquisition that is kept for the next caller, or nil if there is none.
func (p *Lock) Kept() *Acquisition {
	if p.keeping == nil || p.closed {
		return nil // Close releases it
	}
	return p.keeping.kept
}

// TokenDue returns when the next owner may have the token of t, which is Kept.
func (t *Acquisition) TokenDue() time.Time {
	return t.grant.since.Add(time.Duration(t.HandOffCount()) * tokenTime)
}

// TakeKept makes o the owner of the acquisition that is kept, for a call with these terms that comes now.
// It returns nil if there is none that the call may take. A reader may not: it uses the other side.
func (p *Lock) TakeKept(c *Terms, o *Owner, now time.Time) *Acquisition {
	t := p.Kept()
	if t == nil || !c.canTake(t) || p.readersHere() {
		return nil
	}
	p.keeping.kept = nil
	if !t.Terms.HandsOff {
		p.sides[0].held = nil
	}
	t.phase, t.owner, t.Came = Held, o, now
	t.grant.lingering.linger = c.Linger
	o.hold(t)
	return t
}

// EndKept ends the acquisition that is kept, which a caller cannot take. The caller releases it. EndKept
// returns nil if there is none.
func (p *Lock) EndKept() *Acquisition {
	t := p.Kept()
	if t != nil {
		p.keeping.kept = nil
		p.end(t, Released)
	}
	return t
}

// releaseKept releases the lock if it is kept.
func (p *Lock) releaseKept() {
	if t := p.EndKept(); t != nil {
		p.emit(Effect{Kind: ReleaseKept, Acquisition: t})
	}
}

// Wanted records that another client was refused, or that this process may have missed it. A lock that
// is kept is released; one that is in use does not linger. tries says that the client does not wait.
func (p *Lock) Wanted(tries bool) {
	k := p.keeps()
	k.noticed++
	k.tried = k.tried || tries
	p.releaseKept()
}

// YieldsAfter reports whether this process lets other clients come first after it has released t. It does
// if a client that does not wait was refused. It also does after the keep time if there may be listening
// clients that notify no process. The waiters of a read/write lock have no queue, so they come first, too.
func (p *Lock) YieldsAfter(t *Acquisition, listeners bool, now time.Time) bool {
	k := p.keeping
	tried := k.tried
	k.tried = false
	if tried || !t.Lingers() {
		return tried
	}
	g := &t.grant
	over := now.Sub(g.since) >= g.lingering.keepTime()
	return listeners && over || t.Terms.Sided && (over || g.lingering.noticed != k.noticed)
}

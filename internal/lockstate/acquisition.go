package lockstate

import "time"

// Phase is the stage of an acquisition, from its first request to its end.
type Phase uint8

const (
	Asking   Phase = iota // a waiter sends requests in its name
	Ticket                // a ticket: a queue's waiters send requests in its name, one at a time; once refused, Redis has it in the queue of processes
	Offered               // it has the lock, and the first waiter of its queue is to take it
	Kept                  // it has the lock, and the next caller of this process may take it; see linger.go
	Held                  // an owner holds the lock
	Released              // ended: the last hold was released, the lock was handed off, or there never was a hold
	Closed                // ended by Close
	Lost                  // ended: the lease expired, or Redis no longer has the owner's holds
)

// Lives reports whether an acquisition in this phase has not ended.
func (p Phase) Lives() bool { return p <= Held }

// Acquisition is an owner's time with a lock. It lasts from the first request until the last hold is
// released or lost.
type Acquisition struct {
	Of    any       // set by the session
	Name  string    // set once: its owner string in Redis, shared only with the acquisitions before and after a local hand-off
	Terms *Terms    // before the grant, those of the waiter that sends requests; from then on, those of the first hold
	Came  time.Time // when its waiter came or restarted; for a ticket, when it was made; from the grant on, when the waiter that took it came

	// Turn is the right to send commands for the acquisition, if several owners can share it. It is
	// set once. If it is nil, Owner.Turn is used.
	Turn chan struct{}

	owner *Owner // the owner of the first hold; nil before t is Held
	phase Phase
	Late  bool // a renewal, extension or reentry with this owner string may still be executed; the session sets it, too
	grant grant
	holdings
	ledger
}

// holdings are the holds of an acquisition.
type holdings struct {
	holds   []*Hold  // each belongs to an owner whose acquisition this is
	few     [1]*Hold // preallocated memory for holds
	owners  int32    // how many owners the holds belong to
	renewed int32    // how many of the holds need renewals
}

// grant describes the grant by which an acquisition holds the lock.
type grant struct {
	token uint64
	since time.Time // when this process acquired the lock; zero if it did not

	handOffs  *handOffs  // nil if the lock was not handed off in this process since then, and no next owner is known
	lingering *lingering // nil if the lock does not linger
}

// ledger records what Redis may store for an acquisition, and for how long.
type ledger struct {
	longest       time.Duration // the longest lease that was ever requested
	traceTTL      time.Duration // the longest time that a queue entry or writer intent lives in Redis if no waiter retries
	pending       int32         // the number of requests without a reply
	counted       int32         // the number of holds in Redis; 0 while it is uncertain
	sends         uint8         // the number of requests sent, up to 2
	uncertain     bool          // a request has an unknown outcome, and may still be executed
	traced        bool          // it was queued, or named as the next owner, so Redis may have an entry for it
	maybeReleased bool          // reconciling may have released it
	writes        bool          // a reader's owner held the write lock when it sent the request, and was admitted for that reason
	reads         bool          // a writer's owner has also requested to read: the lock expires with the longer of the two leases
	taken         bool          // its waiter took the lock through another acquisition, whose release removes this one from the queue
	changes       *changes      // nil before the first of them
}

// changes records the commands for a lock that is held: reentries, extensions, releases of one of several
// holds, and raises of the token counter. The mutex of the [Lock] guards it.
type changes struct {
	unconfirmed int       // the number of reentries and extensions that Redis may have executed without confirming
	counting    time.Time // since when a command that changes the number of holds has had no reply; zero if there is none
	raised      uint64    // the largest value that the token counter was raised to; local tokens are too small then; 0 if it was not raised

	ended chan struct{} // closed when the acquisition ends; nil before Ended is called
}

// change returns the record of the changes of t, and creates it if necessary.
func (t *Acquisition) change() *changes {
	if t.changes == nil {
		t.changes = new(changes)
	}
	return t.changes
}

// Hold is one hold of an acquisition.
type Hold struct {
	Of          any          // set by the session
	Acquisition *Acquisition // set once, when it is added
	By          *Owner       // set once, when it is added: its owner; before JoinOpen, memory for a new owner, or nil
	index       int32        // its index in the acquisition's holds
	Fixed       bool         // its lease is not renewed
}

// Phase returns the phase of t.
func (t *Acquisition) Phase() Phase { return t.phase }

// Lives reports whether t has not ended.
func (t *Acquisition) Lives() bool { return t.phase.Lives() }

// InFlight reports whether a request for t has no reply yet.
func (t *Acquisition) InFlight() bool { return t.pending > 0 }

// Owner returns the owner of t's first hold, or nil before t is Held.
func (t *Acquisition) Owner() *Owner { return t.owner }

// Token returns the fencing token of t, or 0 before the grant.
func (t *Acquisition) Token() uint64 { return t.grant.token }

// Since returns when this process acquired the lock, or the zero time if it did not.
func (t *Acquisition) Since() time.Time { return t.grant.since }

// Holds returns the holds of t. The slice is valid until the next event.
func (t *Acquisition) Holds() []*Hold { return t.holds }

// Uncertain reports whether a request for t has an unknown outcome, and may still be executed.
func (t *Acquisition) Uncertain() bool { return t.uncertain }

// MaybeReleased reports whether reconciling may have released t. A release then may find no hold.
func (t *Acquisition) MaybeReleased() bool { return t.maybeReleased }

// Reads reports whether the owner of t, a writer, has also requested to read. The lock then expires with the longer
// of the two leases, even if the reader has left.
func (t *Acquisition) Reads() bool { return t.reads }

// Raise records that the token counter is about to be raised to token. The next owner then needs a
// token from Redis, so the lock is not handed off locally.
func (t *Acquisition) Raise(token uint64) { t.change().raised = max(t.Raised(), token) }

// Raised returns the largest token passed to Raise, or 0 if there was none.
func (t *Acquisition) Raised() uint64 {
	if t.changes == nil {
		return 0
	}
	return t.changes.raised
}

// Ended returns a channel that is closed when t ends.
func (t *Acquisition) Ended() <-chan struct{} {
	c := t.change()
	if c.ended == nil {
		c.ended = make(chan struct{})
		if !t.Lives() {
			close(c.ended)
		}
	}
	return c.ended
}

// MayLive returns how long a command that was sent for t can keep the lock or an entry in Redis.
func (t *Acquisition) MayLive() time.Duration { return max(t.longest, t.traceTTL) }

// MayTake records that an extension or a reentry is about to request a lease of d. The caller calls Took
// if Redis confirms it, or cannot have executed it.
func (t *Acquisition) MayTake(d time.Duration) {
	t.longest = max(t.longest, d)
	t.change().unconfirmed++
}

// Took ends a MayTake. After a confirmation, the caller extends the local lease before it calls Took: if
// the lease expires in between, the lock must be released in Redis.
func (t *Acquisition) Took() { t.changes.unconfirmed-- }

// Unconfirmed reports whether there was a MayTake without a Took: the command may still be executed.
func (t *Acquisition) Unconfirmed() bool { return t.changes != nil && t.changes.unconfirmed > 0 }

// MayLast reports whether the lease of t in Redis may be longer than d, or newer than the one that this
// process knows.
func (t *Acquisition) MayLast(d time.Duration) bool { return t.longest > d || t.Unconfirmed() }

// holdsInRedis returns how many holds of t Redis should have: one for all owners together, and one
// for each reentrant acquisition.
func (t *Acquisition) holdsInRedis() int {
	if len(t.holds) == 0 {
		return 0
	}
	return len(t.holds) - int(t.owners) + 1
}

// WillChange records that a command is about to change the number of holds in Redis, and returns the
// number to set. Once the command is confirmed, the caller calls Count.
func (t *Acquisition) WillChange(now time.Time) (holds int) {
	t.counted = 0
	if c := t.change(); c.counting.IsZero() {
		c.counting = now
	}
	return t.holdsInRedis()
}

// Count records that Redis has n holds of t.
func (t *Acquisition) Count(n int) {
	t.counted = int32(n)
	t.ChangeDone()
}

// ChangeDone records that no command that changes the count is in flight.
func (t *Acquisition) ChangeDone() {
	if t.changes != nil {
		t.changes.counting = time.Time{}
	}
}

// Changing returns since when a command that changes the count has no reply, or the zero time if
// there is none.
func (t *Acquisition) Changing() (since time.Time) {
	if t.changes != nil {
		since = t.changes.counting
	}
	return since
}

// MarkUncertain records that a request for t may still be executed. It reports whether the latest
// acquisition with t's owner string lives, and will be reconciled when it ends. Otherwise the caller
// must reconcile it.
func (t *Acquisition) MarkUncertain() (lives bool) {
	t = t.Latest()
	t.uncertain = true
	return t.Lives()
}

// Reconciling returns how many holds of t reconciling leaves in Redis. If that is 0, a later release
// may find no hold, because reconciling may have released t.
func (t *Acquisition) Reconciling() (holds int) {
	if holds = t.holdsInRedis(); holds == 0 {
		t.maybeReleased = true
	}
	return holds
}

// Add records h as a hold of o. It reports false if t is no longer the acquisition of o, because t
// has ended or o has released all its holds of t.
func (p *Lock) Add(t *Acquisition, o *Owner, h *Hold) bool {
	if o.acquisition != t {
		return false
	}
	h.Acquisition, h.By, h.index = t, o, int32(len(t.holds))
	if t.holds == nil { // mutant: never: speed
		t.holds = t.few[:0] // mutant: removed: speed
	}
	t.holds = append(t.holds, h)
	o.holds++
	o.users++
	if !h.Fixed {
		t.longest = max(t.longest, p.rules.Lease)
		if t.renewed++; t.renewed == 1 && len(t.holds) > 1 { // the grant starts the renewals for the first hold
			p.emit(Effect{Kind: Renew, Acquisition: t})
		}
	}
	return true
}

// remove removes h from the holds of t, and reports whether it was there.
func (p *Lock) remove(t *Acquisition, h *Hold) bool {
	end := int32(len(t.holds)) - 1
	if h.index > end || t.holds[h.index] != h {
		return false
	}
	t.holds[end].index = h.index
	t.holds[h.index] = t.holds[end]
	t.holds[end] = nil // mutant: removed: memory
	t.holds = t.holds[:end]
	if !h.Fixed {
		if t.renewed--; t.renewed == 0 && end > 0 {
			p.emit(Effect{Kind: StopRenewing, Acquisition: t})
		}
	}
	h.By.lose(t)
	return true
}

// Remains describes which holds an acquisition has left after one is released.
type Remains uint8

const (
	NotThere     Remains = iota // the hold was not there, because the acquisition had ended
	OwnerHolds                  // the same owner has other holds
	ProcessKeeps                // there is no hold, but the process keeps the lock: the acquisition has ended, and another one is Kept
	NextHolds                   // the lock was handed off: the acquisition has ended, and another one is Offered
	SharersHold                 // only other owners have holds, so the count in Redis does not change
	NobodyHolds                 // there is no hold: the acquisition has ended, and the caller releases it
)

// ChangesRedis reports whether the caller must send a command: one that releases the lock, or one that sets the count.
func (r Remains) ChangesRedis() bool { return r == NobodyHolds || r == OwnerHolds }

// Unlock removes h from t, and ends t if h was the last hold. If the lock may then be handed off
// locally or kept, Unlock first calls handOff, which makes the next acquisition, calls HandOffTo, and
// reports whether it did.
func (p *Lock) Unlock(t *Acquisition, h *Hold, now time.Time, handOff func(*Acquisition) bool) (remains Remains) {
	switch {
	case !p.remove(t, h):
		return NotThere
	case h.By.acquisition == t:
		return OwnerHolds
	case len(t.holds) > 0:
		return SharersHold
	}
	remains = NobodyHolds
	if p.mayHandOff(t, now) {
		if handOff(t) {
			remains = NextHolds
		}
	} else if t.Lingers() && p.mayKeep(t, now) && handOff(t) { // mutant: operand 2: speed
		p.keepFor(t.Latest(), now)
		remains = ProcessKeeps
	}
	p.end(t, Released)
	return remains
}

// End removes all holds of t, and ends t if it lives. It returns the holds, and the phase that t was in
// before.
func (p *Lock) End(t *Acquisition, how Phase) (ended []*Hold, before Phase) {
	ended, before = t.holds, t.phase
	if before == Kept {
		p.keeping.kept = nil
	}
	t.holds = nil
	for _, h := range ended {
		h.By.lose(t)
	}
	if t.Lives() {
		p.end(t, how)
	}
	return ended, before
}

// end ends t. The caller removes the holds.
func (p *Lock) end(t *Acquisition, how Phase) {
	t.phase = how
	if t.changes != nil && t.changes.ended != nil {
		close(t.changes.ended)
	}
	if t.owner != nil && t.owner.acquisition == t {
		t.owner.acquisition = nil
	}
	if s := p.side(true); s.open == t {
		s.open = nil
	}
}

// Fail ends t, which no owner holds, and reconciles what Redis may store for it.
func (p *Lock) Fail(t *Acquisition) {
	if t.Lives() {
		p.end(t, Released)
	}
	p.NoLongerHeld(t)
	if !t.grant.since.IsZero() || t.traced || t.uncertain {
		p.release(t) // otherwise Redis stores nothing for it, or LateReply will reconcile it
	}
}

// NoLongerHeld records that t does not have the lock any more. The first waiter of each queue of its
// side then sends a request.
func (p *Lock) NoLongerHeld(t *Acquisition) {
	s := p.side(t.Terms.Reads)
	if s.held != t {
		return
	}
	s.held = nil
	for _, l := range s.queues {
		if !l.when.active && !l.entersWaiters {
			l.activate()
		}
	}
}

// release makes the session reconcile t, which has ended.
func (p *Lock) release(t *Acquisition) {
	p.emit(Effect{Kind: Release, Acquisition: t})
}

package lockstate

import "time"

// Phase says where an acquisition is between its first request and its end.
type Phase uint8

const (
	Asking   Phase = iota // a waiter asks in its name
	Queued                // the waiters of a queue ask in its name, one after the other, and Redis has it in the queue of processes
	Offered               // it has the lock, and the first waiter of its queue is to take it
	Held                  // an owner has it
	Released              // over: the last hold was released, or the lock was handed off, or there never was a hold
	Closed                // over: Close ended it
	Lost                  // over: the lease expired, or the server said that the owner holds nothing
)

// Lives reports whether an acquisition in this phase is not over.
func (p Phase) Lives() bool { return p <= Held }

// Acquisition is an owner's time with a lock: from the first request for it until its last
// hold is released, or all are lost.
type Acquisition struct {
	Of    any       // the session's
	Name  string    // set once: its owner string in Redis. Only acquisitions that passed the lock on to each other have the same
	Terms *Terms    // those of the waiter that asks in its name, and from the grant on those of its first hold
	Came  time.Time // when its waiter came, or began anew with it; of a ticket, when it was made, and from the grant on, when the waiter came that got it

	// Turn is the right to send commands for the acquisition, where several owners can share
	// it: set once. Where it is nil, that right is the turn of the owner.
	Turn chan struct{}

	owner *Owner // the owner that asks; nil while it is Queued or Offered
	phase Phase
	grant grant
	holdings
	ledger
}

// holdings are the holds of an acquisition.
type holdings struct {
	holds   []*Hold  // each is of an owner whose acquisition this is
	few     [1]*Hold // memory for holds
	owners  int      // how many owners they belong to
	renewed int      // how many of holds want renewals
}

// grant is what is known of the grant by which an acquisition holds the lock.
type grant struct {
	token  uint64
	since  time.Time    // when this process was granted the lock; zero if it was not
	passes int          // how often the lock was handed off in this process since then
	next   *Acquisition // the acquisition that it was handed off to, under the same owner string; nil if it was not
	queue  []Queuing    // the owners that are next in a queue in Redis, as far as it is in this process
	raised uint64       // to what the register was raised at most, so the tokens that this process counts up from its own are of no use; 0 if it was not
	alive  bool         // the watchdog is to renew the lease

	// Of readers.
	writes bool      // the owner wrote when it asked, and was let in because of that
	latest time.Time // readers that came until then may join
}

// ledger is what Redis may have of an acquisition, and for how long.
type ledger struct {
	longest       time.Duration // the longest lease that was ever asked for
	traceTTL      time.Duration // the longest for which a trace of waiting lives if no one asks again
	pending       int           // how many requests for it have no reply yet
	sends         uint8         // how many were sent: 0, 1, or more
	uncertain     bool          // a request for it broke off, and may be executed late
	traced        bool          // it was told to wait, or named as an next owner: Redis may have a trace of that
	maybeReleased bool          // reconciling may have released it
	taken         bool          // its waiter took the lock by another acquisition, whose release takes it out of the queue
	served        []string      // owner strings of waiters that had the lock since it was granted under this one, and may be in a queue in Redis until it is released
	servedAt      time.Time     // since when the first of them is there for nothing
	counted       int           // how many holds stand in Redis; 0 while that is not certain
	changing      time.Time     // when the first command was due that changes the count and has no reply yet; zero if there is none
}

// Hold is one acquisition.
type Hold struct {
	Of          any          // the session's
	Fixed       bool         // it does not want renewals
	Acquisition *Acquisition // set once, when it is added
	By          *Owner       // set once, when it is added: its owner; before JoinOpen, memory for a new owner, or nil
	index       int          // its index in the acquisition's holds
}

// Phase returns the phase that t is in.
func (t *Acquisition) Phase() Phase { return t.phase }

// Lives reports whether t is not over.
func (t *Acquisition) Lives() bool { return t.phase.Lives() }

// Owner returns the owner of t's first hold; nil before t is Held.
func (t *Acquisition) Owner() *Owner { return t.owner }

// Token returns the fencing token of t; 0 before it is granted.
func (t *Acquisition) Token() uint64 { return t.grant.token }

// PassCount returns how often the lock was handed off in this process before it came to t.
func (t *Acquisition) PassCount() int { return t.grant.passes }

// Since returns when this process was granted the lock; the zero time if it was not.
func (t *Acquisition) Since() time.Time { return t.grant.since }

// Owners returns how many owners have holds of t.
func (t *Acquisition) Owners() int { return t.owners }

// Holds returns the holds of t. The slice is valid until the next event.
func (t *Acquisition) Holds() []*Hold { return t.holds }

// Uncertain reports whether a request for t may be executed late.
func (t *Acquisition) Uncertain() bool { return t.uncertain }

// MaybeReleased reports whether reconciling may have released t, so that a release finds nothing.
func (t *Acquisition) MaybeReleased() bool { return t.maybeReleased }

// Served returns the owner strings that the release of t takes out of the queue.
func (t *Acquisition) Served() []string { return t.served }

// Raise notes that the register is about to be raised to token. The next holder must have a token
// from it, and so asks Redis.
func (t *Acquisition) Raise(token uint64) { t.grant.raised = max(t.grant.raised, token) }

// Raised returns the largest token that Raise was told; 0 if there was none.
func (t *Acquisition) Raised() uint64 { return t.grant.raised }

// MayLive returns for how long a command that was sent for t can keep the lock.
func (t *Acquisition) MayLive() time.Duration { return max(t.longest, t.traceTTL) }

// Longest returns the longest lease that a command for t has asked for, or that a release offered it.
func (t *Acquisition) Longest() time.Duration { return t.longest }

// MayTake notes that a command asks for a lease of d.
func (t *Acquisition) MayTake(d time.Duration) { t.longest = max(t.longest, d) }

// HoldsInRedis returns how many holds Redis should have of t: one for all owners that share it,
// and one for each time that one of them entered once more.
func (t *Acquisition) HoldsInRedis() int {
	if len(t.holds) == 0 {
		return 0
	}
	return len(t.holds) - t.owners + 1
}

// WillChange notes that a command is about to change how many holds stand in Redis, and
// returns how many should stand there now. When the command is confirmed, Count follows.
func (t *Acquisition) WillChange(now time.Time) (holds int) {
	t.counted = 0
	if t.changing.IsZero() {
		t.changing = now
	}
	return t.HoldsInRedis()
}

// Count notes that Redis has n holds of t.
func (t *Acquisition) Count(n int) { t.counted, t.changing = n, time.Time{} }

// ChangeDone notes that no command is under way any more that changes the count.
func (t *Acquisition) ChangeDone() { t.changing = time.Time{} }

// Changing returns since when a command that changes the count has no reply; the zero
// time if there is none.
func (t *Acquisition) Changing() time.Time { return t.changing }

// Latest returns the acquisition that t's lock was handed off to, and t itself if it was not.
// They have the same owner string, and whatever is known of that concerns the latest.
func (t *Acquisition) Latest() *Acquisition {
	for t.grant.next != nil {
		t = t.grant.next
	}
	return t
}

// MarkUncertain notes that a request for t may be executed late. It reports whether the latest
// acquisition of that owner string lives: then its end reconciles that, and else the caller does.
func (t *Acquisition) MarkUncertain() (lives bool) {
	t = t.Latest()
	t.uncertain = true
	return t.Lives()
}

// Reconciling returns how many holds of t reconciling leaves in Redis. Once that was 0, a release
// that finds nothing says nothing: reconciling may have released t.
func (t *Acquisition) Reconciling() (holds int) {
	holds = t.HoldsInRedis()
	t.maybeReleased = t.maybeReleased || holds == 0
	return holds
}

// willSend notes that a request for t is about to be sent. It asks for this lease, and may
// leave a trace in Redis that lives so long.
func (t *Acquisition) willSend(p *Lock, lease, patience time.Duration) {
	t.longest, t.traceTTL = max(t.longest, lease), max(t.traceTTL, patience)
	t.pending++
	t.sends = min(t.sends+1, 2)
	p.inFlight++
}

// answered to notes that a request for t has its reply.
func (t *Acquisition) answered(p *Lock) {
	t.pending--
	p.inFlight--
}

// Add records h, a hold of o. It reports false if t is not the acquisition of o: t is over, or o
// has given all its holds of t back.
func (p *Lock) Add(t *Acquisition, o *Owner, h *Hold) bool {
	if o.acquisition != t {
		return false
	}
	h.Acquisition, h.By, h.index = t, o, len(t.holds)
	if t.holds == nil {
		t.holds = t.few[:0]
	}
	t.holds = append(t.holds, h)
	o.holds++
	o.users++
	if !h.Fixed {
		t.longest = max(t.longest, p.rules.Lease)
		if t.renewed++; t.renewed == 1 && !t.grant.alive {
			t.grant.alive = true
			p.emit(Effect{Kind: Renew, Acquisition: t})
		}
	}
	return true
}

// remove takes h out of the holds of t, and reports whether it was there.
func (p *Lock) remove(t *Acquisition, h *Hold) bool {
	end := len(t.holds) - 1
	if h.index > end || t.holds[h.index] != h {
		return false
	}
	t.holds[end].index = h.index
	t.holds[h.index] = t.holds[end]
	t.holds[end] = nil
	t.holds = t.holds[:end]
	if !h.Fixed {
		if t.renewed--; t.renewed == 0 && end > 0 {
			t.grant.alive = false
			p.emit(Effect{Kind: StopRenewing, Acquisition: t})
		}
	}
	h.By.lose(t)
	return true
}

// Remains says who else holds an acquisition after a hold is released.
type Remains uint8

const (
	NotThere    Remains = iota // the hold was not there: the acquisition was over, and the hold with it
	OwnerHolds                 // other holds of the same owner
	SharersHold                // no hold of that owner, but holds of others
	NobodyHolds                // no hold: the acquisition is over
)

// Unlock takes h out of t. If h was the last hold, t is over. If the lock may then be passed
// on, Unlock first calls pass, which makes the next acquisition and calls PassTo, and reports
// whether it did. If it did not, the caller releases t.
func (p *Lock) Unlock(t *Acquisition, h *Hold, now time.Time, pass func(*Acquisition) bool) (remains Remains, passed bool) {
	if !p.remove(t, h) {
		return NotThere, false
	}
	switch {
	case len(t.holds) == 0:
		passed = p.mayPass(t, now) && pass(t)
		p.end(t, Released)
		return NobodyHolds, passed
	case h.By.acquisition != t:
		return SharersHold, false
	default:
		return OwnerHolds, false
	}
}

// Drop takes h out of t if the count in Redis stays the same: its owner has no other hold,
// and other owners share the acquisition. It reports whether it did.
func (p *Lock) Drop(t *Acquisition, h *Hold) bool {
	return t.owners > 1 && h.By.holds == 1 && p.remove(t, h)
}

// End ends t, if it lives, and takes all its holds out. It returns them, how many owners
// they had, and the phase that t was in before.
func (p *Lock) End(t *Acquisition, how Phase) (ended []*Hold, owners int, before Phase) {
	ended, before = t.holds, t.phase
	t.holds = nil
	if len(ended) > 0 {
		owners = t.owners
	}
	for _, h := range ended {
		h.By.lose(t)
	}
	if t.Lives() {
		p.end(t, how)
	}
	return ended, owners, before
}

// end makes t over. Its holds stay to be taken out.
func (p *Lock) end(t *Acquisition, how Phase) {
	t.phase = how
	if t.owner != nil && t.owner.acquisition == t {
		t.owner.acquisition = nil
	}
	if t.Terms.Reads {
		p.closeToReaders(t)
	}
}

// Fail ends t, which no owner came to hold, and has released what Redis may have of it.
func (p *Lock) Fail(t *Acquisition) {
	if t.Lives() {
		p.end(t, Released)
	}
	p.NoLongerHeld(t)
	if !t.grant.since.IsZero() || t.traced || t.uncertain {
		p.release(t) // else Redis has nothing of it, or LateReply has the reply reconciled
	}
}

// NoLongerHeld notes that t does not have the lock any more, so that the first waiter of its queue
// asks Redis.
func (p *Lock) NoLongerHeld(t *Acquisition) {
	s := p.side(t.Terms.Reads)
	if s.held != t {
		return
	}
	s.held = nil
	if l := s.queue(t.Terms); l != nil && !l.active && !l.inRedis {
		l.activate()
	}
}

// release has the session reconcile t, which is over.
func (p *Lock) release(t *Acquisition) {
	p.referenced = true // reconciling comes back to t
	p.emit(Effect{Kind: Release, Acquisition: t})
}

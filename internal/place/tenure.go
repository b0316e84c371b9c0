package place

import "time"

// Phase says where a tenure is between its first question and its end.
type Phase uint8

const (
	Asking   Phase = iota // a waiter asks in its name
	Queued                // the waiters of a line ask in its name, one after the other, and Redis has it in the queue of processes
	Offered               // it has the lock, and the first waiter of its line is to take it
	Held                  // an owner has it
	Released              // over: the last hold was given back, or the lock was passed on, or there never was a hold
	Closed                // over: Close ended it
	Lost                  // over: the lease ran out, or the server said that the owner holds nothing
)

// Lives reports whether a tenure in this phase is not over.
func (p Phase) Lives() bool { return p <= Held }

// Tenure is an owner's time with a lock: from the first question for it until its last
// hold is given back, or all are lost.
type Tenure struct {
	Of    any       // the session's
	Name  string    // set once: its owner string in Redis. Only tenures that passed the lock on to each other have the same
	Terms *Terms    // those of the waiter that asks in its name, and from the grant on those of its first hold
	Came  time.Time // when its waiter came, or began anew with it; of a ticket, when it was made, and from the grant on, when the waiter came that got it

	// Turn is the right to send commands for the tenure, where several owners can share
	// it: set once. Where it is nil, that right is the turn of the owner.
	Turn chan struct{}

	owner *Owner // the owner that asks; nil while it is Queued or Offered
	phase Phase
	grant grant
	holdings
	ledger
}

// holdings are the holds of a tenure.
type holdings struct {
	holds   []*Hold  // each is of an owner whose tenure this is
	few     [1]*Hold // memory for holds
	owners  int      // how many owners they belong to
	renewed int      // how many of holds want renewals
}

// grant is what is known of the grant by which a tenure holds the lock.
type grant struct {
	token  uint64
	since  time.Time // when this process was granted the lock; zero if it was not
	passes int       // how often the lock was passed on in this process since then
	next   *Tenure   // the tenure that it was passed on to, under the same owner string; nil if it was not
	queue  []Queuing // the owners that are next in a queue in Redis, as far as it is in this process
	raised uint64    // to what the register was raised at most, so the tokens that this process counts up from its own are of no use; 0 if it was not
	alive  bool      // the watchdog is to renew the lease

	// Of readers.
	writes bool      // the owner wrote when it asked, and was let in because of that
	latest time.Time // readers that came until then may join
}

// ledger is what Redis may have of a tenure, and for how long.
type ledger struct {
	longest  time.Duration // the longest lease that was ever asked for
	patience time.Duration // the longest for which a trace of waiting lives if nobody asks again
	pending  int           // how many questions for it have no answer yet
	asked    uint8         // how many were sent: 0, 1, or more
	unsure   bool          // a question for it broke off, and may be carried out late
	traced   bool          // it was told to wait, or named as an heir: Redis may have a trace of that
	freed    bool          // settling may have released it
	taken    bool          // its waiter took the lock by another tenure, whose release takes it out of the queue
	served   []string      // owner strings of waiters that had the lock since it was granted under this one, and may be in a queue in Redis until it is released
	servedAt time.Time     // since when the first of them is there for nothing
	counted  int           // how many holds stand in Redis; 0 while that is not certain
	changing time.Time     // when the first command was due that changes the count and has no answer yet; zero if there is none
}

// Hold is one acquisition.
type Hold struct {
	Of     any     // the session's
	Fixed  bool    // it does not want renewals
	Tenure *Tenure // set once, when it is added
	By     *Owner  // set once, when it is added: its owner; before Seat, memory for a new owner, or nil
	index  int     // its index in the tenure's holds
}

// Phase returns the phase that t is in.
func (t *Tenure) Phase() Phase { return t.phase }

// Lives reports whether t is not over.
func (t *Tenure) Lives() bool { return t.phase.Lives() }

// Owner returns the owner of t's first hold; nil before t is Held.
func (t *Tenure) Owner() *Owner { return t.owner }

// Token returns the fencing token of t; 0 before it is granted.
func (t *Tenure) Token() uint64 { return t.grant.token }

// PassCount returns how often the lock was passed on in this process before it came to t.
func (t *Tenure) PassCount() int { return t.grant.passes }

// Since returns when this process was granted the lock; the zero time if it was not.
func (t *Tenure) Since() time.Time { return t.grant.since }

// Owners returns how many owners have holds of t.
func (t *Tenure) Owners() int { return t.owners }

// Holds returns the holds of t. The slice is valid until the next event.
func (t *Tenure) Holds() []*Hold { return t.holds }

// Unsure reports whether a question for t may be carried out late.
func (t *Tenure) Unsure() bool { return t.unsure }

// Freed reports whether settling may have released t, so that a release finds nothing.
func (t *Tenure) Freed() bool { return t.freed }

// Served returns the owner strings that the release of t takes out of the queue.
func (t *Tenure) Served() []string { return t.served }

// Raise notes that the register is about to be raised to token. The next holder must have a token
// from it, and so asks Redis.
func (t *Tenure) Raise(token uint64) { t.grant.raised = max(t.grant.raised, token) }

// Raised returns the largest token that Raise was told; 0 if there was none.
func (t *Tenure) Raised() uint64 { return t.grant.raised }

// MayLive returns for how long a command that was sent for t can keep the lock.
func (t *Tenure) MayLive() time.Duration { return max(t.longest, t.patience) }

// Longest returns the longest lease that a command for t has asked for, or that a release offered it.
func (t *Tenure) Longest() time.Duration { return t.longest }

// MayTake notes that a command asks for a lease of d.
func (t *Tenure) MayTake(d time.Duration) { t.longest = max(t.longest, d) }

// Stand returns how many holds Redis should have of t: one for all owners that share it,
// and one for each time that one of them entered once more.
func (t *Tenure) Stand() int {
	if len(t.holds) == 0 {
		return 0
	}
	return len(t.holds) - t.owners + 1
}

// WillChange notes that a command is about to change how many holds stand in Redis, and
// returns how many should stand there now. When the command is confirmed, Count follows.
func (t *Tenure) WillChange(now time.Time) (holds int) {
	t.counted = 0
	if t.changing.IsZero() {
		t.changing = now
	}
	return t.Stand()
}

// Count notes that Redis has n holds of t.
func (t *Tenure) Count(n int) { t.counted, t.changing = n, time.Time{} }

// Settle notes that no command is under way any more that changes the count.
func (t *Tenure) Settle() { t.changing = time.Time{} }

// Changing returns since when a command that changes the count has no answer; the zero
// time if there is none.
func (t *Tenure) Changing() time.Time { return t.changing }

// Latest returns the tenure that t's lock was passed on to, and t itself if it was not.
// They have the same owner string, and whatever is known of that concerns the latest.
func (t *Tenure) Latest() *Tenure {
	for t.grant.next != nil {
		t = t.grant.next
	}
	return t
}

// Doubt notes that a question for t may be carried out late. It reports whether the latest
// tenure of that owner string lives: then its end settles that, and else the caller does.
func (t *Tenure) Doubt() (lives bool) {
	t = t.Latest()
	t.unsure = true
	return t.Lives()
}

// Freeing returns how many holds of t settling leaves in Redis. Once that was 0, a release
// that finds nothing says nothing: settling may have released t.
func (t *Tenure) Freeing() (holds int) {
	holds = t.Stand()
	t.freed = t.freed || holds == 0
	return holds
}

// asks notes that a question for t is about to be sent. It asks for this lease, and may
// leave a trace in Redis that lives so long.
func (t *Tenure) asks(p *Place, lease, patience time.Duration) {
	t.longest, t.patience = max(t.longest, lease), max(t.patience, patience)
	t.pending++
	t.asked = min(t.asked+1, 2)
	p.flying++
}

// answered notes that a question for t has its answer.
func (t *Tenure) answered(p *Place) {
	t.pending--
	p.flying--
}

// Add records h, a hold of o. It reports false if t is not the tenure of o: t is over, or o
// has given all its holds of t back.
func (p *Place) Add(t *Tenure, o *Owner, h *Hold) bool {
	if o.tenure != t {
		return false
	}
	h.Tenure, h.By, h.index = t, o, len(t.holds)
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
			p.act(Action{Verb: Renew, Tenure: t})
		}
	}
	return true
}

// remove takes h out of the holds of t, and reports whether it was there.
func (p *Place) remove(t *Tenure, h *Hold) bool {
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
			p.act(Action{Verb: Unrenew, Tenure: t})
		}
	}
	h.By.lose(t)
	return true
}

// Remains says who else holds a tenure after a hold is given back.
type Remains uint8

const (
	NotThere    Remains = iota // the hold was not there: the tenure was over, and the hold with it
	OwnerHolds                 // other holds of the same owner
	SharersHold                // no hold of that owner, but holds of others
	NobodyHolds                // no hold: the tenure is over
)

// Unlock takes h out of t. If h was the last hold, t is over. If the lock may then be passed
// on, Unlock first calls pass, which makes the next tenure and calls PassTo, and reports
// whether it did. If it did not, the caller releases t.
func (p *Place) Unlock(t *Tenure, h *Hold, now time.Time, pass func(*Tenure) bool) (remains Remains, passed bool) {
	if !p.remove(t, h) {
		return NotThere, false
	}
	switch {
	case len(t.holds) == 0:
		passed = p.mayPass(t, now) && pass(t)
		p.end(t, Released)
		return NobodyHolds, passed
	case h.By.tenure != t:
		return SharersHold, false
	default:
		return OwnerHolds, false
	}
}

// Drop takes h out of t if the count in Redis stays the same: its owner has no other hold,
// and other owners share the tenure. It reports whether it did.
func (p *Place) Drop(t *Tenure, h *Hold) bool {
	return t.owners > 1 && h.By.holds == 1 && p.remove(t, h)
}

// End ends t, if it lives, and takes all its holds out. It returns them, how many owners
// they had, and the phase that t was in before.
func (p *Place) End(t *Tenure, how Phase) (ended []*Hold, owners int, before Phase) {
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
func (p *Place) end(t *Tenure, how Phase) {
	t.phase = how
	if t.owner != nil && t.owner.tenure == t {
		t.owner.tenure = nil
	}
	if t.Terms.Reads {
		p.unshare(t)
	}
}

// Fail ends t, which no owner came to hold, and has given back what Redis may have of it.
func (p *Place) Fail(t *Tenure) {
	if t.Lives() {
		p.end(t, Released)
	}
	p.Unhold(t)
	if !t.grant.since.IsZero() || t.traced || t.unsure {
		p.giveBack(t) // else Redis has nothing of it, or Unheard has the answer settled
	}
}

// Unhold notes that t does not have the lock any more, so that the first waiter of its line
// asks Redis.
func (p *Place) Unhold(t *Tenure) {
	s := p.side(t.Terms.Reads)
	if s.held != t {
		return
	}
	s.held = nil
	if l := s.line(t.Terms); l != nil && !l.roused && !l.queues {
		l.rouse()
	}
}

// giveBack has the session settle t, which is over.
func (p *Place) giveBack(t *Tenure) {
	p.stays = true // settling comes back to t
	p.act(Action{Verb: GiveBack, Tenure: t})
}

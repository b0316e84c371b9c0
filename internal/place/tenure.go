package place

import "time"

// Phase says where a tenure is between its first question and its end.
type Phase uint8

const (
	Asking   Phase = iota // an owner asks for the lock
	Queued                // the waiters of a line ask for it in turn, and Redis has it in its queue
	Offered               // it has the lock, and the first waiter of its line is to take it
	Held                  // an owner has it
	Released              // its last hold was given back or passed on, or it never had one
	Closed                // by Close
	Lost                  // by the clock, or by the server's word
)

// Lives reports whether a tenure in this phase is not over.
func (p Phase) Lives() bool { return p <= Held }

// Tenure is an owner's time with a lock: from the first question for it until its last
// hold is given back, or all are lost.
type Tenure struct {
	Of    any       // the session's
	Name  string    // its owner string in Redis; no other tenure has it, except one that the lock is passed on to in this process
	Terms *Terms    // as the first hold asks for it
	Asked time.Time // when the first question was due

	// Turn is as that of an owner, and in its place. It is nil where readers cannot
	// share the tenure.
	Turn chan struct{}

	owner *Owner // the owner that asks; nil while it is Queued or Offered
	phase Phase
	grant grant
	holdings
	ledger
}

// holdings are the holds of a tenure.
type holdings struct {
	holds   []*Hold
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
	raised bool      // the register was raised beyond the tokens that come after its own
	alive  bool      // the lease is renewed

	// Of readers.
	beside bool      // the owner writes, too
	latest time.Time // a reader that came later needs a grant of its own
}

// ledger is what Redis may have of a tenure, and for how long.
type ledger struct {
	longest  time.Duration // the longest lease that was ever asked for
	patience time.Duration // the longest for which a trace of waiting lives unheard
	pending  int           // questions for it that are not answered yet
	unsure   bool          // a question for it broke off, and may be carried out late
	traced   bool          // it was told to wait, and that left a trace in Redis
	freed    bool          // settling may have released it
	counted  int           // the holds that stand in Redis; 0 while that is not certain
	changing time.Time     // when the first command was due that changes how many, and has no answer; zero if there is none
}

// Hold is one acquisition.
type Hold struct {
	Of     any     // the session's
	Fixed  bool    // it does not ask for renewals
	Tenure *Tenure // set when it is added
	By     *Owner  // its owner
	at     int     // its place in the tenure's holds
}

// Phase returns the phase that t is in.
func (t *Tenure) Phase() Phase { return t.phase }

// Lives reports whether t is not over.
func (t *Tenure) Lives() bool { return t.phase.Lives() }

// Owner returns the owner that asks for t, or had its first hold; nil while t is Queued or
// Offered.
func (t *Tenure) Owner() *Owner { return t.owner }

// Token returns the fencing token of t; 0 before it is granted.
func (t *Tenure) Token() uint64 { return t.grant.token }

// Passes returns how often the lock was passed on in this process before it came to t.
func (t *Tenure) Passes() int { return t.grant.passes }

// Owners returns how many owners have holds of t.
func (t *Tenure) Owners() int { return t.owners }

// Holds returns the holds of t. The slice is valid until the next event.
func (t *Tenure) Holds() []*Hold { return t.holds }

// Unsure reports whether a question for t may be carried out late.
func (t *Tenure) Unsure() bool { return t.unsure }

// Freed reports whether settling may have released t.
func (t *Tenure) Freed() bool { return t.freed }

// Raise notes that the register is about to be raised. The next holder must have a token
// from it, and so asks Redis.
func (t *Tenure) Raise() { t.grant.raised = true }

// MayLive returns for how long a command that was sent for t can keep the lock.
func (t *Tenure) MayLive() time.Duration { return max(t.longest, t.patience) }

// MayTake notes that a lease of d is about to be asked for.
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
// returns how many there are here. Count is for when the command is confirmed.
func (t *Tenure) WillChange(now time.Time) (holds int) {
	t.counted = 0
	if t.changing.IsZero() {
		t.changing = now
	}
	return t.Stand()
}

// Count notes that Redis has n holds of t.
func (t *Tenure) Count(n int) { t.counted, t.changing = n, time.Time{} }

// Changing returns since when a command that changes the count has no answer; zero if
// there is none.
func (t *Tenure) Changing() time.Time { return t.changing }

// Latest returns the tenure that t was passed on to, t itself if it was not: what is known
// of their owner string concerns that one.
func (t *Tenure) Latest() *Tenure {
	for t.grant.next != nil {
		t = t.grant.next
	}
	return t
}

// Doubt notes that a question for t may be carried out late. It reports whether the
// tenure lives: then its end sees to that.
func (t *Tenure) Doubt() (lives bool) {
	t = t.Latest()
	t.unsure = true
	return t.Lives()
}

// Freeing returns how many holds settling is to leave of t in Redis. After 0 nobody can say
// whether it was settling that released t.
func (t *Tenure) Freeing() (holds int) {
	holds = t.Stand()
	t.freed = t.freed || holds == 0
	return holds
}

// asks notes that a question for t is about to be sent, which asks for this lease, and
// leaves a trace that lives so long.
func (t *Tenure) asks(p *Place, lease, patience time.Duration) {
	t.longest, t.patience = max(t.longest, lease), max(t.patience, patience)
	t.pending++
	p.flying++
}

// answered notes that a question for t has its answer.
func (t *Tenure) answered(p *Place) {
	t.pending--
	p.flying--
}

// Add records h, a hold of o, and reports false if t is over, or o has given back all that
// it had of it.
func (p *Place) Add(t *Tenure, o *Owner, h *Hold) bool {
	if !t.Lives() || o.tenure != t {
		return false
	}
	h.Tenure, h.By, h.at = t, o, len(t.holds)
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

// take takes h out of the holds, and reports whether it was there.
func (p *Place) take(t *Tenure, h *Hold) bool {
	end := len(t.holds) - 1
	if h.at > end || t.holds[h.at] != h {
		return false
	}
	t.holds[end].at = h.at
	t.holds[h.at] = t.holds[end]
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

// Left is what is left of a tenure after a hold is given back.
type Left uint8

const (
	Nothing Left = iota // the hold was not there: the tenure has ended, and ended the hold with it
	Others              // holds of the same owner
	Sharers             // holds of other owners alone
	None                // no hold: the tenure is over, and is to be released, or passed on before
)

// Unlock takes h out of t. If it was the last one, the tenure is over, unless pass, which
// Unlock calls then, passes it on to another: that reports whether it did.
func (p *Place) Unlock(t *Tenure, h *Hold, now time.Time, pass func(*Tenure) bool) (left Left, passed bool) {
	if !p.take(t, h) {
		return Nothing, false
	}
	switch {
	case len(t.holds) == 0:
		passed = t.Terms.Passes && p.mayPass(t, now) && pass(t)
		p.end(t, Released)
		return None, passed
	case h.By.tenure != t:
		return Sharers, false
	default:
		return Others, false
	}
}

// Drop takes h out of t if that is nothing to Redis: its owner has no other hold, and
// others share the tenure. It reports whether it did.
func (p *Place) Drop(t *Tenure, h *Hold) bool {
	return t.Turn != nil && t.owners > 1 && h.By.tenure == t && h.By.holds == 1 && p.take(t, h)
}

// End ends t, if it lives, and all its holds, which it returns, and how many owners they
// had. before is the phase that t was in.
func (p *Place) End(t *Tenure, how Phase) (ended []*Hold, owners int, before Phase) {
	ended, before = t.holds, t.phase
	t.holds = nil
	if len(ended) > 0 {
		owners = t.owners
	}
	if t.Lives() {
		p.end(t, how)
	}
	for _, h := range ended {
		h.By.lose(t)
	}
	return ended, owners, before
}

func (p *Place) end(t *Tenure, how Phase) {
	t.phase = how
	if t.owner != nil && t.owner.tenure == t {
		t.owner.tenure = nil
	}
	p.unshare(t)
}

// Fail ends t, whose first hold came to nothing, and has what Redis may have of it given
// back.
func (p *Place) Fail(t *Tenure) {
	if t.Lives() {
		p.end(t, Released)
	}
	p.Unhold(t)
	if !t.grant.since.IsZero() || t.traced || t.unsure {
		p.giveBack(t) // else Redis has not heard of it
	}
}

// Unhold notes that the lock is not t's any more, as far as this process goes. A waiter
// here may ask again.
func (p *Place) Unhold(t *Tenure) {
	s := p.side(t.Terms.Reads)
	if s.held != t {
		return
	}
	s.held = nil
	if l := s.line(t.Terms); l != nil && !l.roused {
		l.rouse()
	}
}

func (p *Place) giveBack(t *Tenure) {
	p.stays = true // settling comes back to t
	p.act(Action{Verb: GiveBack, Tenure: t})
}

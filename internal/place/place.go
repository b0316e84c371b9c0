// Package place is one lock in one process, as a state machine. It decides which waiter
// asks Redis and when, what an answer means for the others, to whom a lock goes next, and
// what must be settled later. It holds no context, no client, no timer, no goroutine and
// no mutex: package session brings those.
//
// A [Place] is told of events, by its methods, and of the time by their argument now. It
// answers with what to do:
//
//	the wait loop asks Next                ─▶ wait until a time, ask Redis, or take the lock
//	an answer: Granted, Refused, Broke     ─▶ actions: wake a waiter, listen, settle a tenure
//	Unlock, Lost, Hint, Freed, Quit        ─▶ the same
//
// # Words
//
// An [Owner] is one owner on one side of the lock; a read/write lock has two sides, other
// locks have one. A [Tenure] is an owner's time with the lock, from the first question
// until the last [Hold] is gone. It has a [Phase]:
//
//	Asking ───────────────────────granted──────────────────▶ Held
//	Queued ──granted by a release──▶ Offered ──taken────────▶ Held
//	   └─────granted as an answer───────────────────────────▶ Held
//
// Held, and each phase before it, ends as Released, Closed or Lost.
//
// A [Waiter] is a call that waits for the lock. Waiters stand in a [Line], first come,
// first served. Which of them ask depends on the kind's [Discipline].
//
// A Queued tenure is the ticket of a line: its waiters ask in its name, one after the
// other, and Redis has it in the queue of waiting processes. An Offered tenure holds the
// lock for the line, and its first waiter takes it.
package place

import (
	"slices"
	"time"
)

// Rules are what all places of a client share.
type Rules struct {
	Lease time.Duration // of a hold that is renewed
	Poll  time.Duration // for how long a waiter relies on hints alone

	// Ticket makes the tenure in whose name a line asks.
	Ticket func(*Place, *Terms) *Tenure
}

// Kind is what a place needs to know of a kind of lock, or of one side of it.
type Kind struct {
	Discipline Discipline
	Reads      bool // several owners can hold it at once
	Sided      bool // the lock has another side
	Passes     bool // a holder passes it on, inside the process and by its release
}

// Terms are what a call asks a lock for.
type Terms struct {
	Kind
	Of       any           // the session's: its spec
	Lease    time.Duration // that a grant gives
	Fixed    bool          // the lease is not renewed
	Replicas bool          // replicas must confirm the first hold
	Register string        // of fencing tokens; "" without fencing
	Yield    bool          // a reader waits behind a writer that came before
	Patience time.Duration // how long the trace of a waiter lives in Redis unheard; 0 is none

	// Apart tells which line a waiter stands in, where there are several. The waiters of
	// a read/write lock stand behind those only whose question is as good as their own.
	Apart Apart
}

// Apart says what sets a line apart from others of the same side.
type Apart uint8

const (
	// ReadersFirst is set by lock.WithReadersFirst: Redis lets such a reader in where it
	// refuses others, and such a writer leaves no wish for those behind it.
	ReadersFirst Apart = 1 << iota

	// Replicated is a reader that waits for replicas while others may read already.
	Replicated
)

// MayShare reports whether holds by these terms may share a tenure with other readers: they
// have no lease of their own, and no replicas to wait for.
func (c *Terms) MayShare() bool { return c.Reads && !c.Fixed && !c.Replicas }

// Place is one lock in this process. The caller guards it by a mutex, and carries out
// its actions before the mutex is free again.
type Place struct {
	Of     any // the session's
	rules  *Rules
	sides  [2]side // of those who read, and of all others
	closed bool
	flying int  // questions that are not answered yet
	stays  bool // something may refer to it when nobody uses it any more
	acts   []Action
}

// side is one way to hold the lock.
type side struct {
	p      *Place
	owners map[uint64]*Owner
	lines  []*Line
	spare  *Line     // an empty one, to be used again
	held   *Tenure   // has the lock in this process; only where locks are passed on
	letGo  time.Time // until then others come first: the lock was let go when no line was here
	reading
}

// Init makes p the place of a lock that nobody here has anything to do with yet.
// of is the session's.
func (p *Place) Init(r *Rules, of any) {
	p.rules, p.Of = r, of
	for i := range p.sides {
		p.sides[i].p = p
	}
}

func (p *Place) side(reads bool) *side {
	if reads {
		return &p.sides[1]
	}
	return &p.sides[0]
}

// Verb says what to do.
type Verb uint8

const (
	Wake     Verb = iota // Waiter: its call looks at Next again
	GiveBack             // Tenure: it is over; end its lease, and see to it that Redis has nothing of it
	Listen               // Line, by Terms: hear of the lock from now on; what there is to know was asked for at Sent
	Deafen               // Line: nobody listens any more
	Beat                 // Line, by Terms: its heartbeat looks at NextBeat again; it begins if there is none
	Arm                  // Line: call Alarm at Due
	HearOwn              // Waiter: hear of its turn at a channel of its own, too
	Unhear               // Waiter: do not
	Renew                // Tenure: renew its lease from now on
	Unrenew              // Tenure: do not
)

// Action is something that the session does for a place.
type Action struct {
	Verb   Verb
	Waiter *Waiter
	Tenure *Tenure
	Line   *Line
	Terms  *Terms
	Sent   time.Time
	Due    time.Time
}

func (p *Place) act(a Action) { p.acts = append(p.acts, a) }

// Do calls f with each action that is to be done, also with those that f itself leads to.
func (p *Place) Do(f func(Action)) {
	for i := 0; i < len(p.acts); i++ {
		f(p.acts[i])
	}
	clear(p.acts)
	p.acts = p.acts[:0]
}

// Close ends the place: nothing is passed on, offered or joined from now on. It returns the
// tenures that holds belong to.
func (p *Place) Close() (held []*Tenure) {
	p.closed = true
	return p.Held()
}

// IsClosed reports whether the place is closed.
func (p *Place) IsClosed() bool { return p.closed }

// Held returns the tenures of all owners here, on both sides.
func (p *Place) Held() (held []*Tenure) {
	for i := range p.sides {
		s := &p.sides[i]
		for _, o := range s.owners {
			if o.tenure != nil && !slices.Contains(held, o.tenure) {
				held = append(held, o.tenure)
			}
		}
	}
	return held
}

// Offered returns the tenures that hold the lock for a line here.
func (p *Place) Offered() (offered []*Tenure) {
	for i := range p.sides {
		for _, l := range p.sides[i].lines {
			if l.hand.offered != nil {
				offered = append(offered, l.hand.offered)
			}
		}
	}
	return offered
}

// Unused reports whether nobody has anything to do with the lock here.
func (p *Place) Unused() bool {
	for i := range p.sides {
		s := &p.sides[i]
		if len(s.owners) > 0 || len(s.lines) > 0 || s.open != nil || s.trips > 0 || s.held != nil {
			return false
		}
	}
	return true
}

// Idle reports whether the place is unused, and there is nothing to remember of the lock at
// this time.
func (p *Place) Idle(now time.Time) bool {
	return !now.Before(p.sides[0].letGo) && !now.Before(p.sides[1].letGo) && p.Unused()
}

// Forgotten reports whether nothing refers to the place any more, when it is idle: it can be
// used for another lock after Reset.
func (p *Place) Forgotten() bool { return p.flying == 0 && !p.stays }

// Reset makes an idle and forgotten place as new.
func (p *Place) Reset() {
	for i := range p.sides {
		p.sides[i].letGo = time.Time{}
	}
	p.closed = false
}

// Owner is what one owner of this process has to do with one side of a lock. It lives
// while a call or a hold needs it.
type Owner struct {
	Number uint64        // as the context carries it
	Turn   chan struct{} // cap 1; a call that has put a token in may send commands for this owner; nil before the first call that needs one
	side   *side
	users  int     // calls and holds that need it
	tenure *Tenure // nil while the owner does not hold the lock
	holds  int     // the owner's, of that tenure
	waits  *Waiter // for the first hold to read; nil if none does
}

// Enter returns the owner of this number, new if need be. Each Enter needs a Leave.
func (p *Place) Enter(reads bool, number uint64) *Owner {
	s := p.side(reads)
	o := s.owners[number]
	if o == nil {
		o = s.newOwner(number)
	}
	if o.Turn == nil {
		o.Turn = make(chan struct{}, 1)
	}
	o.users++
	return o
}

func (s *side) newOwner(number uint64) *Owner {
	if s.owners == nil {
		s.owners = make(map[uint64]*Owner)
	}
	o := &Owner{Number: number, side: s}
	s.owners[number] = o
	return o
}

// Leave ends what Enter began.
func (o *Owner) Leave() {
	if o.users--; o.users == 0 {
		delete(o.side.owners, o.Number)
	}
}

// Tenure returns the tenure of the owner's holds; nil if it has none.
func (o *Owner) Tenure() *Tenure { return o.tenure }

// Beside returns the tenure that the same owner has on the other side, nil if it has none.
func (o *Owner) Beside() *Tenure {
	if other := o.other(); other != nil {
		return other.tenure
	}
	return nil
}

// other is the same owner on the other side of the lock; nil if it has nothing to do there.
func (o *Owner) other() *Owner {
	p := o.side.p
	return p.side(o.side == p.side(false)).owners[o.Number]
}

// Asks reports whether a call asks for the first hold of o.
func (o *Owner) Asks() bool { return o.tenure == nil && len(o.Turn) > 0 }

// hold makes t, of which o has no hold yet, the tenure of o.
func (o *Owner) hold(t *Tenure) {
	o.tenure, o.holds = t, 0
	t.owners++
}

// lose notes that o has one hold of t less.
func (o *Owner) lose(t *Tenure) {
	if o.tenure == t {
		if o.holds--; o.holds == 0 {
			o.tenure = nil
			t.owners--
		}
	}
	o.Leave()
}

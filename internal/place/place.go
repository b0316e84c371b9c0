// Package place is one lock in one process, as a state machine. It decides which waiter
// asks Redis and when, what an answer means for the others, to which waiter a lock goes
// next, and what must be settled later. It holds no context, no client, no timer, no
// goroutine and no mutex: package session brings those.
//
// Methods tell a [Place] of events; their argument now is the time of the event. The place
// answers with what to do:
//
//	Next, which the wait loop calls              ─▶ a Step: wait until a time, ask Redis, take the lock
//	an answer: Granted, Refused, Broke, Unheard  ─▶ Actions: wake a waiter, listen, give a tenure back
//	Unlock, End, Hint, Alarm, Inherit, Quit      ─▶ the same
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
// Each of these phases can end as Released. A tenure that has the lock can also end as Lost
// or Closed.
//
// A [Waiter] is a call that waits for the lock. The waiters of a process stand in a [Line],
// first come, first served. Which of them ask depends on the kind's [Discipline]. What Redis
// knows of waiters is a queue: of a plain lock it has the waiting processes, of a fair lock
// each waiter.
//
// A Queued tenure is the ticket of a line: the waiters ask in its name, one after the
// other, and Redis has it in the queue of waiting processes. An Offered tenure has the lock
// for the line, and the first waiter takes it.
//
// A lock is passed on when the next holder is in this process, and Redis hears nothing of
// it. The release of a plain lock gives it to the next process in the queue, and that of a
// fair lock to the next waiter, if that one is in this process. A lock that is let go becomes
// free.
package place

import (
	"slices"
	"sync"
	"time"
)

// Rules are what all places of a client share.
type Rules struct {
	Lease time.Duration // of a hold that is renewed
	Poll  time.Duration // how often a line asks without a hint

	// Ticket makes the tenure in whose name a line asks.
	Ticket func(*Place, *Terms, time.Time) *Tenure

	lines sync.Pool // ended ones, to be used again
}

// Kind is what a place needs to know of a kind of lock, or of one side of it.
type Kind struct {
	Discipline Discipline
	Reads      bool // several owners can hold it at once
	Sided      bool // the lock has another side
	Passes     bool // a holder passes it on inside the process, or gives it to another by its release
}

// Tickets reports whether the waiters of a line ask in the name of a ticket, one after the
// other. Else each has a tenure of its own.
func (k Kind) Tickets() bool { return k.Passes && !k.Discipline.queues() }

// Terms are what a call asks a lock for.
type Terms struct {
	Kind
	Of            any           // the session's: its spec
	Lease         time.Duration // what a grant gives
	Fixed         bool          // the lease is not renewed
	Replicas      bool          // replicas must confirm the first hold
	Register      string        // of fencing tokens; "" without fencing
	Yield         bool          // a reader waits behind a writer that came before
	WaiterTimeout time.Duration // how long the trace of a waiter lives in Redis if it does not ask again; 0 is no trace

	// Apart says in which line a waiter stands, where a side has several. A waiter of a
	// read/write lock stands behind those waiters alone whose answer holds for it, too.
	Apart Apart
}

// Apart says what sets a line apart from others of the same side.
type Apart uint8

const (
	// ReaderPreference is set by lock.WithReaderPreference: Redis lets such a reader in where it
	// refuses others, and such a writer leaves no wish for those behind it.
	ReaderPreference Apart = 1 << iota

	// Replicated is a reader that waits for replicas while others may read already.
	Replicated
)

// MayShare reports whether holds by these terms may share a tenure with other readers: they
// have no lease of their own, and no replicas to wait for.
func (c *Terms) MayShare() bool { return c.Reads && !c.Fixed && !c.Replicas }

// Place is one lock in this process. The session guards it by a mutex, and carries its
// actions out, by Drain, before it unlocks the mutex. That mutex guards all of its owners,
// tenures, holds, lines and waiters, too.
type Place struct {
	Of     any     // the session's: its spot
	rules  *Rules  // set once
	sides  [2]side // 1 is for reading, 0 for everything else
	closed bool
	flying int      // how many questions have no answer yet
	stays  bool     // a goroutine of the session may still refer to the place when it is unused
	struck bool     // Strike or Struck will be called
	acts   []Action // what is to be done
}

// side is one way to hold the lock.
type side struct {
	p      *Place
	owners map[uint64]*Owner
	lines  []*Line
	spare  *Line     // of which Waiter has given memory away, until Join
	held   *Tenure   // Held or Offered: has the lock in this process; only of a kind that passes locks on
	letGo  time.Time // until then other processes come first: the lock was let go while there was no line
	reading
}

// Init makes p the place of a lock that this process has nothing to do with yet.
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
	GiveBack             // Tenure, which is over: stop its lease, and settle it, so that Redis has nothing of it
	Listen               // Line, by Terms: subscribe its channels; its latest question was sent at Sent, so what was said after that may be missed; zero if it has not asked
	Deafen               // Line: end the subscriptions
	Beat                 // Line, by Terms: the goroutine of its heartbeat looks at NextBeat again, and begins if there is none
	Arm                  // Line: call Alarm at Due
	HearOwn              // Waiter: subscribe a channel of its own, at which it hears of its turn
	Unhear               // Waiter: end that subscription
	Strike               // call Place.Strike at Due
	Renew                // Tenure: renew its lease from now on
	Unrenew              // Tenure: stop renewing its lease
)

// Action is something that the session does for a place. Verb says which fields are set.
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

// Drain calls f with each action that is to be done, and with those that f leads to.
func (p *Place) Drain(f func(Action)) {
	for i := 0; i < len(p.acts); i++ {
		f(p.acts[i])
	}
	clear(p.acts)
	p.acts = p.acts[:0]
}

// Close closes the place: from now on no lock is passed on, no release names an heir here,
// no waiter takes what is offered, and no reader joins. It returns the tenures that are
// Held.
func (p *Place) Close() (held []*Tenure) {
	p.closed = true
	return p.Held()
}

// IsClosed reports whether the place is closed.
func (p *Place) IsClosed() bool { return p.closed }

// Held returns the tenures of all owners, on both sides.
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

// Offered returns the tenures that are offered to a line.
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

// Unused reports whether the place has no owner, no line and no tenure.
func (p *Place) Unused() bool {
	for i := range p.sides {
		s := &p.sides[i]
		if len(s.owners) > 0 || len(s.lines) > 0 || s.open != nil || s.trips > 0 || s.held != nil {
			return false
		}
	}
	return true
}

// Idle reports whether the place is unused, and has nothing to remember: the time in which
// others come first is over.
func (p *Place) Idle(now time.Time) bool {
	return !now.Before(p.sides[0].letGo) && !now.Before(p.sides[1].letGo) && p.Unused()
}

// Forgotten reports whether nothing refers to the place, which is idle. After Reset it can
// be the place of another lock.
func (p *Place) Forgotten() bool { return p.flying == 0 && !p.stays }

// Reset makes an idle and forgotten place as new.
func (p *Place) Reset() {
	for i := range p.sides {
		p.sides[i].letGo = time.Time{}
	}
	p.closed = false
}

// Owner is one owner of this process on one side of a lock. It lives while a call or a
// hold needs it.
type Owner struct {
	Number uint64 // set once: as the context carries it

	// Turn is the right to send commands for this owner: a call has the turn while its token
	// is in the channel, which has room for one. It is nil before the first Enter: a reader
	// that joins sends nothing, and while a new owner asks, no other call knows of it.
	Turn chan struct{}

	side   *side   // set once
	users  int     // calls and holds that need the owner
	tenure *Tenure // nil while the owner does not hold the lock
	holds  int     // how many holds of that tenure are the owner's
	waits  *Waiter // the waiter for the owner's first hold to read; nil if there is none
}

// Enter returns the owner of this number, and makes it if there is none. Each Enter needs a
// Leave.
func (p *Place) Enter(reads bool, number uint64) *Owner {
	s := p.side(reads)
	o := s.owners[number]
	if o == nil {
		o = s.newOwner(number, nil)
	}
	if o.Turn == nil {
		o.Turn = make(chan struct{}, 1)
	}
	o.users++
	return o
}

// EnterNew is Enter for an owner of which no other call knows, and which so needs no turn.
func (p *Place) EnterNew(reads bool, number uint64) *Owner {
	o := p.side(reads).newOwner(number, nil)
	o.users++
	return o
}

// newOwner makes an owner, in memory o if there is some.
func (s *side) newOwner(number uint64, o *Owner) *Owner {
	if s.owners == nil {
		s.owners = make(map[uint64]*Owner)
	}
	if o == nil {
		o = new(Owner)
	}
	o.Number, o.side = number, s
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

// Beside returns the tenure that the same owner has on the other side; nil if it has none.
func (o *Owner) Beside() *Tenure {
	if other := o.other(); other != nil {
		return other.tenure
	}
	return nil
}

// OnBothSides reports whether a call or a hold needs the same owner on the other side of the lock.
func (o *Owner) OnBothSides() bool { return o.other() != nil }

// other returns the same owner on the other side of the lock; nil if there is none.
func (o *Owner) other() *Owner {
	p := o.side.p
	return p.side(o.side == p.side(false)).owners[o.Number]
}

// Acquires reports whether a call of o has the turn, and asks for the first hold.
func (o *Owner) Acquires() bool { return o.tenure == nil && len(o.Turn) > 0 }

// hold makes t the tenure of o, which has no hold of it yet.
func (o *Owner) hold(t *Tenure) {
	o.tenure, o.holds = t, 0
	t.owners++
}

// lose notes that one of o's holds of t, which is its tenure, is gone.
func (o *Owner) lose(t *Tenure) {
	if o.holds--; o.holds == 0 {
		o.tenure = nil
		t.owners--
	}
	o.Leave()
}

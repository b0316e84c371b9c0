// Package lockstate implements the local state of one lock in one process, as a state machine. It
// decides which waiter sends a request to Redis and when, what a reply means for the other waiters, which
// waiter gets the lock next, and what must be reconciled later. It is pure: it has no context, no client, no
// timer, no goroutine and no mutex. Package session adds those.
//
// Methods tell a [Lock] of events; the argument now is the time of the event. They return what to do:
//
//	Next, which the wait loop calls                  a Step: wait until a time, send a request, take the lock
//	a reply: Granted, Refused, Failed, LateReply     Effects: wake a waiter, subscribe, release an acquisition
//	Unlock, End, Notify, TimerFired, OnRelease, Quit  the same
//
// # Terms
//
// An [Owner] is one owner on one side of the lock. A read/write lock has two sides, other locks have one.
// An [Acquisition] is an owner's time with the lock, from its first request until its last [Hold] has ended.
// Its [Phase] is:
//
//	Asking ─────────────────────granted──────────────────▶ Held
//	Queued ──granted by a release──▶ Offered ──taken─────▶ Held
//	   └─────granted by a reply──────────────────────────▶ Held
//
// Each of these phases can end as Released. An acquisition that has the lock can also end as Lost or Closed.
//
// A [Waiter] is a call that waits for the lock. The waiters of a process wait in a [Queue], first come, first
// served. Which of them send requests is the [WaitPolicy] of the type of lock. Redis has a queue, too: for a plain
// lock, a queue of processes that have waiters; for a fair lock, a queue of waiters.
//
// A ticket is the acquisition of a queue rather than of an owner: its phase is Queued, all waiters of the queue send
// requests in its name, and Redis has it in the queue of processes. When a release grants the lock to it, it is
// Offered, and the first waiter takes it.
//
// A hand-off gives the lock to the next owner without freeing it. Inside a process it needs no command.
// Between processes the script of the release does it.
package lockstate

import (
	"slices"
	"sync"
	"time"
)

// Rules are what all locks of a client share.
type Rules struct {
	Lease time.Duration // of a hold that is renewed
	Poll  time.Duration // how often a queue asks without a notification

	// Ticket makes the acquisition in whose name a queue asks.
	Ticket func(*Lock, *Terms, time.Time) *Acquisition

	queues sync.Pool // ended ones, to be used again
}

// Kind is what a state needs to know of a kind of lock, or of one side of it.
type Kind struct {
	WaitPolicy WaitPolicy
	Reads      bool // several owners can hold it at once
	Sided      bool // the lock has another side
	Passes     bool // a holder hands it off inside the process, or gives it to another by its release
}

// Tickets reports whether the waiters of a queue ask in the name of a ticket, one after the
// other. Else each has an acquisition of its own.
func (k Kind) Tickets() bool { return k.Passes && !k.WaitPolicy.inRedis() }

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

	// Apart says in which queue a waiter stands, where a side has several. A waiter of a
	// read/write lock stands behind those waiters alone whose reply holds for it, too.
	QueueKey QueueKey
}

// QueueKey says what sets a queue apart from others of the same side.
type QueueKey uint8

const (
	// ReaderPreference is set by lock.WithReaderPreference: Redis lets such a reader in where it
	// refuses others, and such a writer leaves no wish for those behind it.
	ReaderPreference QueueKey = 1 << iota

	// Replicated is a reader that waits for replicas while others may read already.
	Replicated
)

// MayShare reports whether holds by these terms may share an acquisition with other readers: they
// have no lease of their own, and no replicas to wait for.
func (c *Terms) MayShare() bool { return c.Reads && !c.Fixed && !c.Replicas }

// Lock is one lock in this process. The session guards it by a mutex, and carries its
// actions out, by Drain, before it unlocks the mutex. That mutex guards all of its owners,
// acquisitions, holds, queues and waiters, too.
type Lock struct {
	Of         any     // the session's: its spot
	rules      *Rules  // set once
	sides      [2]side // 1 is for reading, 0 for everything else
	closed     bool
	inFlight   int      // how many requests have no reply yet
	referenced bool     // a goroutine of the session may still refer to the state when it is unused
	removing   bool     // RemoveServed or ServedRemoved will be called
	effects    []Effect // what is to be done
}

// side is one way to hold the lock.
type side struct {
	p          *Lock
	owners     map[uint64]*Owner
	queues     []*Queue
	spare      *Queue       // of which Waiter has given memory away, until Join
	held       *Acquisition // Held or Offered: has the lock in this process; only of a kind that passes locks on
	yieldUntil time.Time    // until then other processes come first: the lock was released while there was no queue
	reading
}

// Init makes p the state of a lock that this process has nothing to do with yet.
// of is the session's.
func (p *Lock) Init(r *Rules, of any) {
	p.rules, p.Of = r, of
	for i := range p.sides {
		p.sides[i].p = p
	}
}

func (p *Lock) side(reads bool) *side {
	if reads {
		return &p.sides[1]
	}
	return &p.sides[0]
}

// EffectKind says what to do.
type EffectKind uint8

const (
	Wake             EffectKind = iota // Waiter: its call looks at Next again
	Release                            // Acquisition, which is over: stop its lease, and reconcile it, so that Redis has nothing of it
	Subscribe                          // Queue, by Terms: subscribe its channels; its latest request was sent at Sent, so what was said after that may be missed; zero if it has not asked
	Unsubscribe                        // Queue: end the subscriptions
	Heartbeat                          // Queue, by Terms: the goroutine of its heartbeat looks at NextHeartbeat again, and begins if there is none
	StartTimer                         // Queue: call TimerFired at Due
	SubscribeOwner                     // Waiter: subscribe a channel of its own, at which it is notified of its turn
	UnsubscribeOwner                   // Waiter: end that subscription
	RemoveServed                       // call Lock.RemoveServed at Due
	Renew                              // Acquisition: renew its lease from now on
	StopRenewing                       // Acquisition: stop renewing its lease
)

// Effect is something that the session does for a state. Verb says which fields are set.
type Effect struct {
	Kind        EffectKind
	Waiter      *Waiter
	Acquisition *Acquisition
	Queue       *Queue
	Terms       *Terms
	Sent        time.Time
	Due         time.Time
}

func (p *Lock) emit(a Effect) { p.effects = append(p.effects, a) }

// Drain calls f with each action that is to be done, and with those that f leads to.
func (p *Lock) Drain(f func(Effect)) {
	for i := 0; i < len(p.effects); i++ {
		f(p.effects[i])
	}
	clear(p.effects)
	p.effects = p.effects[:0]
}

// Close closes the state: from now on no lock is handed off, no release names an next owner here,
// no waiter takes what is offered, and no reader joins. It returns the acquisitions that are
// Held.
func (p *Lock) Close() (held []*Acquisition) {
	p.closed = true
	return p.Held()
}

// IsClosed reports whether the state is closed.
func (p *Lock) IsClosed() bool { return p.closed }

// Held returns the acquisitions of all owners, on both sides.
func (p *Lock) Held() (held []*Acquisition) {
	for i := range p.sides {
		s := &p.sides[i]
		for _, o := range s.owners {
			if o.acquisition != nil && !slices.Contains(held, o.acquisition) {
				held = append(held, o.acquisition)
			}
		}
	}
	return held
}

// Offered returns the acquisitions that are offered to a queue.
func (p *Lock) Offered() (offered []*Acquisition) {
	for i := range p.sides {
		for _, l := range p.sides[i].queues {
			if l.hand.offered != nil {
				offered = append(offered, l.hand.offered)
			}
		}
	}
	return offered
}

// Unused reports whether the state has no owner, no queue and no acquisition.
func (p *Lock) Unused() bool {
	for i := range p.sides {
		s := &p.sides[i]
		if len(s.owners) > 0 || len(s.queues) > 0 || s.open != nil || s.requests > 0 || s.held != nil {
			return false
		}
	}
	return true
}

// Idle reports whether the state is unused, and has nothing to remember: the time in which
// others come first is over.
func (p *Lock) Idle(now time.Time) bool {
	return !now.Before(p.sides[0].yieldUntil) && !now.Before(p.sides[1].yieldUntil) && p.Unused()
}

// Unreferenced reports whether nothing refers to the state, which is idle. After Reset it can
// be the state of another lock.
func (p *Lock) Unreferenced() bool { return p.inFlight == 0 && !p.referenced }

// Reset makes an idle and forgotten place as new.
func (p *Lock) Reset() {
	for i := range p.sides {
		p.sides[i].yieldUntil = time.Time{}
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

	side        *side        // set once
	users       int          // calls and holds that need the owner
	acquisition *Acquisition // nil while the owner does not hold the lock
	holds       int          // how many holds of that acquisition are the owner's
	waiter      *Waiter      // the waiter for the owner's first hold to read; nil if there is none
}

// Enter returns the owner of this number, and makes it if there is none. Each Enter needs a
// Leave.
func (p *Lock) Enter(reads bool, number uint64) *Owner {
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
func (p *Lock) EnterNew(reads bool, number uint64) *Owner {
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

// Acquisition returns the acquisition of the owner's holds; nil if it has none.
func (o *Owner) Acquisition() *Acquisition { return o.acquisition }

// Sibling returns the acquisition that the same owner has on the other side; nil if it has none.
func (o *Owner) Sibling() *Acquisition {
	if other := o.other(); other != nil {
		return other.acquisition
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
func (o *Owner) Acquires() bool { return o.acquisition == nil && len(o.Turn) > 0 }

// hold makes t the acquisition of o, which has no hold of it yet.
func (o *Owner) hold(t *Acquisition) {
	o.acquisition, o.holds = t, 0
	t.owners++
}

// lose notes that one of o's holds of t, which is its acquisition, is gone.
func (o *Owner) lose(t *Acquisition) {
	if o.holds--; o.holds == 0 {
		o.acquisition = nil
		t.owners--
	}
	o.Leave()
}

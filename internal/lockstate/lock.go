// Package lockstate implements the local state of one lock in one process, as a state machine. It
// decides which waiter sends a request to Redis, and when. It also decides what a reply means for the
// other waiters, who gets the lock next, and what must be reconciled. It is pure: it has no context,
// client, timer, goroutine or mutex. Package session adds those.
//
// Methods report events to a [Lock]; the argument now is the time of the event. They return what to
// do:
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
//	   └─────granted by a release (fair)──▶ Offered ─────▶ Held
//	Ticket ──granted by a release──▶ Offered ──taken─────▶ Held
//	   └─────granted by a reply──────────────────────────▶ Held
//	Kept ──taken by a caller of this process─────────────▶ Held
//
// The acquisition after a local hand-off begins as Offered or Kept. Each of these phases can end as
// Released. An acquisition that has the lock can also end as Lost or Closed.
//
// A [Waiter] is a call that waits for the lock. The waiters of a process wait in a [Queue], first
// come, first served. The [WaitPolicy] of the type of lock decides which of them send requests. Redis
// has a queue, too: for a plain lock, a queue of processes; for a fair lock or a semaphore, a queue of
// waiters.
//
// A ticket is the acquisition of a queue rather than of an owner, in phase Ticket. All waiters of the
// queue send requests in its name. After a refusal, Redis has it in the queue of processes. When a release grants
// the lock to a ticket, the ticket is Offered, and the first waiter takes it.
//
// A hand-off gives the lock to the next owner without freeing it. A local hand-off, inside the
// process, needs no command. Between processes, the release script performs it.
package lockstate

import (
	"slices"
	"sync"
	"time"
)

// Rules are the settings that all locks of a client share.
type Rules struct {
	Lease     time.Duration // the lease of a hold that is renewed
	Poll      time.Duration // how often a queue retries without a notification
	OpTimeout time.Duration // how long a call waits for the reply to one request

	queues sync.Pool // ended queues, for reuse
}

// Kind describes a type of lock, or one side of it.
type Kind struct {
	WaitPolicy WaitPolicy
	Reads      bool // several owners can hold it at the same time
	Sided      bool // the lock has another side
	HandsOff   bool // a holder hands it off, inside the process or by its release
}

// Tickets reports whether the waiters of a queue send requests in the name of a ticket, one at a
// time. Otherwise each waiter has its own acquisition.
func (k Kind) Tickets() bool { return k.HandsOff && k.WaitPolicy != FairQueue }

// Terms are what a call requests of a lock.
type Terms struct {
	Kind
	Of            any           // set by the session: its spec
	Lease         time.Duration // the lease of a grant
	Fixed         bool          // the lease is not renewed
	Replicas      bool          // replicas must confirm the first hold
	TokenCounter  string        // the token counter; "" without fencing
	Yield         bool          // a reader waits behind a writer that came before it
	WaiterTimeout time.Duration // how long a waiter's entry lives without a retry; 0 if none, or set by the session
	Linger        time.Duration // how long the process keeps the lock after the last release, for the next caller; 0 if it does not

	// QueueKey selects the queue, if a side has several. A waiter of a read/write lock queues only
	// behind waiters whose reply is valid for it, too.
	QueueKey QueueKey
}

// QueueKey distinguishes the queues of one side.
type QueueKey uint8

const (
	// ReaderPreference is set by lock.WithReaderPreference. Redis then admits a reader where it would
	// refuse other readers, and a writer leaves no writer intent.
	ReaderPreference QueueKey = 1 << iota

	// Replicated marks a reader that still waits for replicas while others may read already.
	Replicated
)

// MayShare reports whether holds with these terms may share an acquisition with other readers: their
// lease is renewed, and they wait for no replicas.
func (c *Terms) MayShare() bool { return c.Reads && !c.Fixed && !c.Replicas }

// Lock is the state of one lock in this process. A mutex of the session guards it, and all of its
// owners, acquisitions, holds, queues and waiters, with their records. The session applies the effects
// with Drain before it unlocks that mutex.
type Lock struct {
	rules    *Rules  // set once
	maker    Maker   // set once
	sides    [2]side // 1 for reading, 0 for everything else
	closed   bool
	inFlight int      // the number of requests without a reply
	removing bool     // a RemoveServed effect or the command that it led to is pending
	keeping  *keeping // nil if the lock never lingered
	effects  []Effect // to be applied by Drain
}

// Maker makes acquisitions, to which the session adds its own state.
type Maker interface {
	// NewAcquisition returns an acquisition in its first phase, with a new owner string. A queue
	// uses it as its ticket.
	NewAcquisition(c *Terms, now time.Time) *Acquisition
}

// side is the state of one side of a lock.
type side struct {
	p          *Lock
	owners     map[uint64]*Owner
	queues     []*Queue
	held       *Acquisition // Held, Offered or Kept: has the lock in this process; Held only for a kind that hands off
	yieldUntil time.Time    // other processes come first until then, and a notification is no reason to send a request
	reading
}

// Init makes p the state of a lock that this process has not used yet.
func (p *Lock) Init(r *Rules, m Maker) {
	p.rules, p.maker = r, m
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

// EffectKind is the kind of an Effect. Its comment names the fields that are set.
type EffectKind uint8

const (
	Wake             EffectKind = iota // Waiter: its call calls Next again
	Release                            // Acquisition, which has ended: stop its lease and reconcile it, so that nothing of it stays in Redis
	Subscribe                          // Queue, Terms: subscribe its channels; notifications since Sent, when its latest request was sent, may be lost; zero if it sent none
	Unsubscribe                        // Queue: end the subscriptions
	Heartbeat                          // Queue, Terms: the heartbeat goroutine calls NextHeartbeat again; start it if there is none
	StartTimer                         // Queue: call TimerFired at Due
	SubscribeOwner                     // Waiter: subscribe its own channel, which is notified when it is the waiter's turn
	UnsubscribeOwner                   // Waiter: end that subscription
	RemoveServed                       // call Lock.RemoveServed at Due
	Renew                              // Acquisition: start renewing its lease
	StopRenewing                       // Acquisition: stop renewing its lease
	StartLinger                        // call Lock.LingerOver at Due
	ReleaseKept                        // Acquisition, which has ended and was Kept: release it
)

// Effect is an action that the session performs for a Lock. Kind says which fields are set.
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

// Drain calls f with each pending effect, including effects that f itself adds.
func (p *Lock) Drain(f func(Effect)) {
	for i := 0; i < len(p.effects); i++ {
		f(p.effects[i])
	}
	clear(p.effects) // mutant: removed: memory
	p.effects = p.effects[:0]
}

// Close closes the state. From now on no lock is handed off, no release names a next owner in this
// process, and no waiter takes an offered acquisition. No reader joins. Close returns the
// acquisitions that are Held or Kept.
func (p *Lock) Close() (held []*Acquisition) {
	p.closed = true
	return p.Held()
}

// IsClosed reports whether the state is closed.
func (p *Lock) IsClosed() bool { return p.closed }

// Held returns the acquisitions of all owners, on both sides, and the one that is Kept.
func (p *Lock) Held() (held []*Acquisition) {
	if k := p.keeping; k != nil && k.kept != nil {
		held = append(held, k.kept)
	}
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

// Offered returns the acquisitions that are offered to a queue and not taken yet.
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

// Idle reports whether the state is unused and has nothing to remember: other processes no longer
// come first.
func (p *Lock) Idle(now time.Time) bool {
	return !now.Before(p.sides[0].yieldUntil) && !now.Before(p.sides[1].yieldUntil) && p.Unused()
}

// Owner is one owner in this process on one side of a lock. It lives while a call or a hold needs it.
type Owner struct {
	Number uint64 // set once: the number in the context

	// Turn is the right to send commands for this owner. Its capacity is 1, and a call has the turn
	// while its token is in the channel. It is nil while only one call uses the owner.
	Turn chan struct{}

	side        *side        // set once
	acquisition *Acquisition // nil while the owner does not hold the lock
	users       int32        // the number of calls and holds that need the owner
	holds       int32        // how many holds of that acquisition the owner has
	waiter      *Waiter      // the waiter for the owner's first read hold; nil if there is none
}

// Enter returns the owner with this number, and creates it if necessary. shared means that other calls
// may use the owner; it then has a Turn. Each Enter needs a Leave.
func (p *Lock) Enter(reads bool, number uint64, shared bool) *Owner {
	s := p.side(reads)
	o := s.owners[number]
	if o == nil {
		o = s.newOwner(number, nil)
	}
	if shared && o.Turn == nil { // mutant: operand 1: speed
		o.Turn = make(chan struct{}, 1)
	}
	o.users++
	return o
}

// newOwner makes an owner, in the memory at o unless it is nil.
func (s *side) newOwner(number uint64, o *Owner) *Owner {
	if s.owners == nil {
		s.owners = make(map[uint64]*Owner)
	}
	if o == nil { // mutant: always: speed
		o = new(Owner)
	}
	o.Number, o.side = number, s
	s.owners[number] = o
	return o
}

// Leave ends an Enter.
func (o *Owner) Leave() {
	if o.users--; o.users == 0 {
		delete(o.side.owners, o.Number)
	}
}

// Acquisition returns the acquisition of the owner's holds, or nil if it has none.
func (o *Owner) Acquisition() *Acquisition { return o.acquisition }

// Sibling returns the acquisition of the same owner on the other side, or nil if it has none.
func (o *Owner) Sibling() *Acquisition {
	if other := o.other(); other != nil {
		return other.acquisition
	}
	return nil
}

// other returns the same owner on the other side of the lock, or nil if there is none.
func (o *Owner) other() *Owner {
	p := o.side.p
	return p.side(o.side == p.side(false)).owners[o.Number]
}

// Acquires reports whether a call of o has the turn and is acquiring the first hold.
func (o *Owner) Acquires() bool { return o.acquisition == nil && len(o.Turn) > 0 }

// hold makes t the acquisition of o, which has no hold of t yet.
func (o *Owner) hold(t *Acquisition) {
	o.acquisition, o.holds = t, 0
	t.owners++
}

// lose records that one of o's holds of t is gone. If t was lost, o may have acquired the lock again before the loss is
// recorded; o then has holds of another acquisition.
func (o *Owner) lose(t *Acquisition) {
	if o.acquisition == t {
		if o.holds--; o.holds == 0 {
			o.acquisition = nil
			t.owners--
		}
	}
	o.Leave()
}

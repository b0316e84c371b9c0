package session

import (
	"context"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/place"
	"github.com/leasehold-go/leasehold/lock"
)

// placeID names a place: both sides of a read/write lock are one.
type placeID struct {
	kind *Kind // as family returns it
	key  string
}

func (spec *Spec) id() placeID { return placeID{spec.family(), spec.Keys.Lock} }

// places has the place of each lock that this process has to do with.
//
// Its mutex guards which places there are, and is held for a few instructions. Each place
// has a mutex of its own for everything else. The mutex of places is taken first, then
// that of one place, then those of the watchdog and the hub. That of a hold is taken
// alone: under no other mutex, and with no other under it. Those of the settlers are never
// taken together with that of a place. No mutex is held while a command is sent, a caller's function runs, or a
// context is cancelled: a context may ask its parent, which may be that of a hold, which
// looks at its lease.
//
// Lease.Check, Lease.Lose and Lease.Answered may find that a lease is over, and then end its
// tenure, which takes the mutex of the place; Lease.Stop waits for a renewal, which may do
// so. None of them is called under that mutex. The other methods of a lease may be.
type places struct {
	s     *Session    // set once
	rules place.Rules // set once

	mu         sync.Mutex
	closed     bool              // by Close: no call begins any more
	known      map[placeID]*spot // every place that has users, or is not Idle; and others, up to most
	most       int               // how many places at the most stay known that are Idle
	spare      []*spot           // to be used again: most locks are free, and to make a place costs more than such a lock needs
	remembered []*spot           // in known and without users, but not Idle for some milliseconds: the lock was let go for others
}

// idleSpots is how many places at the most stay known that are Idle: to find one again costs less
// than to make it. spareSpots is how many others at the most are there to be used again.
const (
	idleSpots  = 512
	spareSpots = 512
)

// spot is one place, and its mutex. The methods of its field place, and those of what a place
// has, are pure, and need the mutex. The session's own methods of a spot, a tenure or ears
// take it themselves, where they do not say that the caller has it.
type spot struct {
	s *Session // set once

	// Guarded by the mutex of places.
	id         placeID // zero while it is not known
	users      int     // how many calls are about it
	remembered bool    // it is in places.remembered

	mu    sync.Mutex
	place place.Place // guarded by mu
}

func (all *places) init(s *Session) {
	all.s = s
	all.rules = place.Rules{Lease: s.Lease, Poll: s.Poll, Ticket: s.newTicket}
	all.known = make(map[placeID]*spot)
	all.most = idleSpots
}

// begin enters a call about the lock of spec, unless the session is closed; done leaves it.
func (s *Session) begin(spec *Spec) (*spot, error) {
	all := &s.places
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.closed {
		return nil, lock.ErrClosed
	}
	s.sender.Add()
	id, at := spec.id(), spec.at
	if at == nil || at.s != s || at.id != id {
		if at = all.known[id]; at == nil {
			at = all.newLocked(id)
		}
		spec.at = at
	}
	at.users++
	return at, nil
}

// enter enters a call that is about no lock in particular, unless the session is closed;
// s.sender.Done leaves it.
func (s *Session) enter() error {
	s.places.mu.Lock()
	defer s.places.mu.Unlock()
	if s.places.closed {
		return lock.ErrClosed
	}
	s.sender.Add()
	return nil
}

func (all *places) newLocked(id placeID) (at *spot) {
	if end := len(all.spare) - 1; end >= 0 {
		at, all.spare = all.spare[end], all.spare[:end]
	} else {
		at = &spot{s: all.s}
		at.place.Init(&all.rules, at)
	}
	at.id = id
	all.known[id] = at
	return at
}

// done ends what begin began.
func (s *Session) done(at *spot) {
	all := &s.places
	all.mu.Lock()
	at.users--
	all.tidyLocked(at)
	all.mu.Unlock()
	s.sender.Done()
}

// tidy forgets the place if nobody has anything to do with the lock any more.
func (at *spot) tidy() {
	all := &at.s.places
	all.mu.Lock()
	defer all.mu.Unlock()
	all.tidyLocked(at)
}

func (all *places) tidyLocked(at *spot) {
	if len(all.known) <= all.most && !all.closed || at.users > 0 && len(all.remembered) == 0 {
		return
	}
	now := time.Now()
	for len(all.remembered) > 0 && (all.closed || !all.remembered[0].remembers(now)) {
		first := all.remembered[0]
		all.remembered, first.remembered = all.remembered[1:], false
		all.forgetLocked(first, now)
	}
	all.forgetLocked(at, now)
}

// remembers reports whether there is something to remember of a place that nobody uses. A
// place that is used again is kept again when that ends.
func (at *spot) remembers(now time.Time) bool {
	at.mu.Lock()
	defer at.mu.Unlock()
	return at.place.Unused() && !at.place.Idle(now)
}

func (all *places) forgetLocked(at *spot, now time.Time) {
	if at.users > 0 || all.known[at.id] != at {
		return
	}
	at.mu.Lock()
	defer at.mu.Unlock()
	switch {
	case at.place.Idle(now), all.closed && at.place.Unused():
		delete(all.known, at.id)
		at.id = placeID{}
		if at.place.Forgotten() && !at.remembered && len(all.spare) < spareSpots {
			at.place.Reset()
			all.spare = append(all.spare, at)
		}
	case at.place.Unused() && !at.remembered:
		at.remembered = true
		all.remembered = append(all.remembered, at)
	}
}

// find returns the place of a lock; nil if this process has nothing to do with it.
func (s *Session) find(id placeID) *spot {
	s.places.mu.Lock()
	defer s.places.mu.Unlock()
	return s.places.known[id]
}

// lock locks the place, which the caller then tells of events; unlock carries their actions
// out first.
func (at *spot) lock() { at.mu.Lock() }

func (at *spot) unlock() {
	at.place.Drain(at.carryOut)
	at.mu.Unlock()
}

// carryOut does what the place asks for. The caller has its mutex, as it has in each method
// that carryOut calls: so none of them waits for anything.
func (at *spot) carryOut(a place.Action) {
	switch a.Verb {
	case place.Wake:
		select {
		case a.Waiter.Wake <- struct{}{}:
		default:
		}
	case place.GiveBack:
		at.s.giveBack(tenureOf(a.Tenure))
	case place.Listen:
		at.listen(a)
	case place.Deafen:
		earsOf(a.Line).close()
	case place.HearOwn:
		at.hearOwn(a.Waiter)
	case place.Unhear:
		at.unhear(a.Waiter)
	case place.Beat:
		at.beat(a)
	case place.Arm:
		time.AfterFunc(time.Until(a.Due), func() {
			at.lock()
			a.Line.Alarm()
			at.unlock()
		})
	case place.Strike:
		time.AfterFunc(time.Until(a.Due), at.strike)
	case place.Renew, place.Unrenew:
		tenureOf(a.Tenure).lease.KeepAlive(a.Verb == place.Renew)
	}
}

// giveBack settles t, which is over and which no owner came to hold: Redis is to have nothing
// of it. It does not wait for Redis.
func (s *Session) giveBack(t *tenure) {
	lease, unsure := t.lease, t.Unsure()
	s.sender.Go(func() {
		if lease != nil {
			lease.Stop(context.Background()) // no renewal may follow the release
		}
		s.settle(t, unsure)
	})
}

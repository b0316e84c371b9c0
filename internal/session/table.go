package session

import (
	"context"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/lockstate"
	"github.com/leasehold-go/leasehold/lock"
)

// lockID names a state: both sides of a read/write lock are one.
type lockID struct {
	kind *Kind // as family returns it
	key  string
}

func (spec *Spec) id() lockID { return lockID{spec.family(), spec.Keys.Lock} }

// lockTable has an entry for each lock that the client uses.
//
// Its mutex guards which entries there are, and is held for a few instructions. Each entry has its own mutex for
// everything else. The order is: the mutex of the table, then the mutex of one entry, then those of the
// watchdog and the hub. The mutex of a hold is taken alone: under no other mutex, and with no other under it. The mutexes of the
// reconcilers are never taken together with the mutex of an entry. No mutex is held while a command is sent, a
// caller's function runs, or a context is canceled: a context may call Err of its parent, which may be the context
// of a hold, and that checks its lease.
//
// Lease.Check, Lease.Lose and Lease.Answered may find that a lease has expired, and then end its acquisition, which
// takes the mutex of the entry. Lease.Stop waits for a renewal, which may do the same. None of them is called under
// that mutex. The other methods of a lease may be.
type lockTable struct {
	s     *Session        // set once
	rules lockstate.Rules // set once

	mu         sync.Mutex
	closed     bool              // by Close: no call begins any more
	known      map[lockID]*entry // every entry that has users, or whose state is not Idle; and others, up to most
	most       int               // how many entries stay known whose state is Idle
	spare      []*entry          // to be reused: making an entry costs more than a free lock needs
	remembered []*entry          // in known and without users, but not Idle for some milliseconds: the lock was released for others
}

// Up to idleEntries entries stay known whose state is Idle, because finding one costs less than making it. Up to spareEntries
// others are kept to be reused.
const (
	idleEntries  = 512
	spareEntries = 512
)

// entry is the state of one lock, and its mutex. The methods of lockstate are pure, and need the mutex. The session's own
// methods of an entry, an acquisition or subscriptions take it themselves, unless they say that the caller has it.
type entry struct {
	s *Session // set once

	// Guarded by the mutex of the table.
	id         lockID // zero while it is not known
	users      int    // how many calls are about it
	remembered bool   // it is in lockTable.remembered

	mu    sync.Mutex
	state lockstate.Lock // guarded by mu
}

func (all *lockTable) init(s *Session) {
	all.s = s
	all.rules = lockstate.Rules{Lease: s.Lease, Poll: s.Poll, Ticket: s.newTicket}
	all.known = make(map[lockID]*entry)
	all.most = idleEntries
}

// begin enters a call about the lock of spec, unless the session is closed; done leaves it.
func (s *Session) begin(spec *Spec) (*entry, error) {
	all := &s.table
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
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	if s.table.closed {
		return lock.ErrClosed
	}
	s.sender.Add()
	return nil
}

func (all *lockTable) newLocked(id lockID) (at *entry) {
	if end := len(all.spare) - 1; end >= 0 {
		at, all.spare = all.spare[end], all.spare[:end]
	} else {
		at = &entry{s: all.s}
		at.state.Init(&all.rules, at)
	}
	at.id = id
	all.known[id] = at
	return at
}

// done ends what begin began.
func (s *Session) done(at *entry) {
	all := &s.table
	all.mu.Lock()
	at.users--
	all.tidyLocked(at)
	all.mu.Unlock()
	s.sender.Done()
}

// tidy forgets the state if no one has anything to do with the lock any more.
func (at *entry) tidy() {
	all := &at.s.table
	all.mu.Lock()
	defer all.mu.Unlock()
	all.tidyLocked(at)
}

func (all *lockTable) tidyLocked(at *entry) {
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

// remembers reports whether there is something to remember of a state that no one uses. A
// place that is used again is kept again when that ends.
func (at *entry) remembers(now time.Time) bool {
	at.mu.Lock()
	defer at.mu.Unlock()
	return at.state.Unused() && !at.state.Idle(now)
}

func (all *lockTable) forgetLocked(at *entry, now time.Time) {
	if at.users > 0 || all.known[at.id] != at {
		return
	}
	at.mu.Lock()
	defer at.mu.Unlock()
	switch {
	case at.state.Idle(now), all.closed && at.state.Unused():
		delete(all.known, at.id)
		at.id = lockID{}
		if at.state.Unreferenced() && !at.remembered && len(all.spare) < spareEntries {
			at.state.Reset()
			all.spare = append(all.spare, at)
		}
	case at.state.Unused() && !at.remembered:
		at.remembered = true
		all.remembered = append(all.remembered, at)
	}
}

// find returns the state of a lock; nil if this process has nothing to do with it.
func (s *Session) find(id lockID) *entry {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	return s.table.known[id]
}

// lock locks the state, which the caller then tells of events; unlock carries their actions
// out first.
func (at *entry) lock() { at.mu.Lock() }

func (at *entry) unlock() {
	at.state.Drain(at.apply)
	at.mu.Unlock()
}

// apply does what the state asks for. The caller has its mutex, as it has in each method
// that carryOut calls: so none of them waits for anything.
func (at *entry) apply(a lockstate.Effect) {
	switch a.Kind {
	case lockstate.Wake:
		select {
		case a.Waiter.Wake <- struct{}{}:
		default:
		}
	case lockstate.Release:
		at.s.releaseLater(acquisitionOf(a.Acquisition))
	case lockstate.Subscribe:
		at.subscribe(a)
	case lockstate.Unsubscribe:
		subscriptionsOf(a.Queue).close()
	case lockstate.SubscribeOwner:
		at.subscribeOwner(a.Waiter)
	case lockstate.UnsubscribeOwner:
		at.unsubscribeOwner(a.Waiter)
	case lockstate.Heartbeat:
		at.heartbeat(a)
	case lockstate.StartTimer:
		time.AfterFunc(time.Until(a.Due), func() {
			at.lock()
			a.Queue.TimerFired()
			at.unlock()
		})
	case lockstate.RemoveServed:
		time.AfterFunc(time.Until(a.Due), at.removeServed)
	case lockstate.Renew, lockstate.StopRenewing:
		acquisitionOf(a.Acquisition).lease.KeepAlive(a.Kind == lockstate.Renew)
	}
}

// releaseLater reconciles t, which is over and which no owner came to hold: Redis is to have nothing
// of it. It does not wait for Redis.
func (s *Session) releaseLater(t *acquisition) {
	lease, unsure := t.lease, t.Uncertain()
	s.sender.Go(func() {
		if lease != nil {
			lease.Stop(context.Background()) // no renewal may follow the release
		}
		s.reconcile(t, unsure)
	})
}

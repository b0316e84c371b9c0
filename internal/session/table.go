package session

import (
	"context"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/lockstate"
	"github.com/leasehold-go/leasehold/lock"
)

// lockID identifies an entry. Both sides of a read/write lock have the same lockID.
type lockID struct {
	kind *Kind // of a read/write lock, the write side
	key  string
}

// lockTable has an entry for each lock that the client uses.
//
// Lock order: the mutex of the table, then the mutex of one entry, then the mutexes of the watchdog and the hub. The
// mutex of the table guards the set of entries and is held briefly. The mutex of a hold is never held together with
// another mutex. The mutexes of the reconcilers are never held together with the mutex of an entry.
//
// No mutex is held while a command is sent, a caller's function runs, or a context is canceled. Canceling a context
// may call Err of its parent, which may be the context of a hold, and that checks its lease.
//
// Lease.Check, Lease.Lose and Lease.Answered may detect that a lease has expired, and then end its acquisition, which
// takes the mutex of the entry. Lease.Stop waits for a renewal, which may do the same. None of these four is called
// under that mutex.
type lockTable struct {
	rules lockstate.Rules // set once

	mu     sync.Mutex
	closed bool              // set by Close: begin fails
	known  map[lockID]*entry // every entry that has users or is not Idle; Idle entries are removed while there are more than most
	most   int               // tidying starts when known has more entries
}

// idleEntries is how many Idle entries stay in the table, because a lookup is cheaper than an allocation.
const idleEntries = 512

// entry is the state of one lock, and its mutex. The methods of package lockstate do no I/O and require the mutex.
// Methods of entry, acquisition and subscriptions lock it themselves, unless documented otherwise.
type entry struct {
	s  *Session // set once
	id lockID   // set once

	users int // number of calls that use the entry; guarded by lockTable.mu

	mu        sync.Mutex
	state     lockstate.Lock // guarded by mu
	releasing []*releasing   // releases in flight whose Unlock has returned; guarded by mu

	// removing has the acquisitions that ended waits may have left in Redis, until a command that removes them has ended. Guarded
	// by mu.
	removing map[*acquisition]*releasing

	// Only of a lock that lingers; guarded by mu.
	keeper *keeper
	kept   *time.Timer // of StartLinger effects; nil if there was none
}

func (all *lockTable) init(s *Session) {
	all.rules = lockstate.Rules{Lease: s.Lease, Poll: s.Poll, OpTimeout: s.OpTimeout}
	all.known = make(map[lockID]*entry)
	all.most = idleEntries
}

// begin registers a call that uses the lock of spec. It fails if the session is closed. The caller calls done. A call that
// needs no entry uses s.sender.Enter instead.
func (s *Session) begin(spec *Spec) (*entry, error) {
	all := &s.table
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.closed {
		return nil, lock.ErrClosed
	}
	s.sender.Add()
	at := all.known[spec.id]
	if at == nil {
		at = &entry{s: s, id: spec.id}
		at.state.Init(&all.rules, at)
		all.known[spec.id] = at
	}
	at.users++
	return at, nil
}

// done unregisters a call that begin registered.
func (s *Session) done(at *entry) {
	all := &s.table
	all.mu.Lock()
	at.users--
	all.tidyLocked(at)
	all.mu.Unlock()
	s.sender.Done()
}

// tidy removes the entry from the table if it is no longer used.
func (at *entry) tidy() {
	all := &at.s.table
	all.mu.Lock()
	defer all.mu.Unlock()
	all.tidyLocked(at)
}

func (all *lockTable) tidyLocked(at *entry) {
	if len(all.known) <= all.most && !all.closed || at.users > 0 || all.known[at.id] != at {
		return
	}
	at.mu.Lock()
	defer at.mu.Unlock()
	switch {
	case at.state.Idle(time.Now()), all.closed && at.state.Unused(): // mutant: operand 2: no call uses it, and none can begin
		delete(all.known, at.id)
	case at.state.Unused():
		time.AfterFunc(asideTime, at.tidy) // the lock was released for others
	}
}

// find returns the entry of a lock; nil if the client does not use the lock.
func (s *Session) find(id lockID) *entry {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	return s.table.known[id]
}

// lock locks the state. The caller reports events to the state; unlock applies their effects before it unlocks.
func (at *entry) lock() { at.mu.Lock() }

func (at *entry) unlock() {
	at.state.Drain(at.apply)
	at.mu.Unlock()
}

// locked returns what f returns. It calls f with the mutex of the state.
func locked[T any](at *entry, f func() T) T {
	at.lock()
	defer at.unlock()
	return f()
}

// apply executes an effect. The caller holds at.mu, so neither apply nor the methods it calls may block.
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
	case lockstate.StartLinger:
		at.startLinger(a.Due)
	case lockstate.ReleaseKept:
		at.releaseKept(acquisitionOf(a.Acquisition))
	case lockstate.Renew, lockstate.StopRenewing:
		acquisitionOf(a.Acquisition).lease.KeepAlive(a.Kind == lockstate.Renew)
	}
}

// releaseLater starts a goroutine that removes t, an ended acquisition without holds, from Redis. The caller holds the mutex
// of the state.
func (s *Session) releaseLater(t *acquisition) {
	lease, uncertain := t.lease, t.unsure()
	t.at.willRemove(t)
	s.sender.Go(func() {
		if lease != nil { // mutant: never: speed
			// mutant: removed: speed
			lease.Stop(context.Background()) // no renewal may follow the release
		}
		s.reconcile(t, uncertain)
	})
}

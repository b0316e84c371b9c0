package session

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/internal/lockstate"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/watchdog"
)

// Two events limit a hold that is not unlocked: lock.WithMaxHold, and the cancellation of the caller's context. The
// watchdog calls Due when a limit has passed, from its own queue of leases, so a limit needs no timer and no goroutine.
// The hold is then lost, and the reconciler releases it in Redis.
//
// Cancellation does not limit a hold of lock.Do, or of any other call that knows when the work ends. Due then reports
// that the work is still running.

// limits describes how a hold ends without an Unlock, other than with its lease. Most holds have none. They are created for
// a hold that lasts until Unlock, for options that limit the hold, and when the caller's context is found canceled.
type limits struct {
	caller   context.Context       // set once, only if the hold lasts until Unlock: canceled when its work should stop
	grace    time.Duration         // set once, by lock.WithGrace; 0 means one lease
	earliest atomic.Pointer[limit] // nil without a limit. Set under the mutex of the state

	// Guarded by the mutex of the state.
	canceled bool      // a renewal found the caller's context canceled
	report   time.Time // when to report that the work is still running; zero if not needed
}

// limit is the latest time at which a hold ends, and why it ends then. It is immutable.
type limit struct {
	end   time.Time
	cause error
}

// limit returns the limit of h; nil if there is none.
func (h *hold) limit() *limit {
	if l := h.limits.Load(); l != nil {
		return l.earliest.Load()
	}
	return nil
}

// caller returns the context that is canceled when the work under h should stop. It is the parent of h's context, unless h
// lasts until Unlock.
func (h *hold) caller() context.Context {
	if l := h.limits.Load(); l != nil && l.caller != nil {
		return l.caller
	}
	return h.parent
}

// isCanceled reports whether a renewal found the caller's context canceled. The caller holds the mutex of the state.
func (h *hold) isCanceled() bool {
	l := h.limits.Load()
	return l != nil && l.canceled
}

// ownLimits returns the limits of h, and creates them if necessary. The caller holds the mutex of the state.
func (h *hold) ownLimits() *limits {
	if h.limits.Load() == nil {
		h.limits.Store(new(limits))
	}
	return h.limits.Load()
}

// limitTo limits h, which was acquired just now, to d: lock.WithMaxHold.
func (h *hold) limitTo(d time.Duration) {
	at := h.acquisition().at
	at.lock()
	defer at.unlock()
	h.limitLocked(time.Now().Add(d), lock.ErrMaxHold)
}

// limitLocked sets the limit of h to end, unless the limit is already earlier. The caller holds the mutex of the state.
func (h *hold) limitLocked(end time.Time, cause error) {
	if l := h.limit(); l == nil || end.Before(watchdog.Earlier(l.end)) {
		h.ownLimits().earliest.Store(&limit{end, cause})
		h.acquisition().lease.CallAt(end)
	}
}

// callerCanceled records that the context of h's caller is canceled. It limits h, unless h lasts until Unlock.
func (s *Session) callerCanceled(h *hold) {
	t := h.acquisition()
	t.at.lock()
	if !slices.Contains(t.Holds(), &h.Hold) {
		t.at.unlock()
		return // an Unlock was faster
	}
	l := h.ownLimits()
	l.canceled = true
	end := time.Now().Add(cmp.Or(l.grace, s.Lease))
	if l.caller != nil {
		l.report = end
		t.lease.CallAt(end)
	} else {
		h.limitLocked(end, lock.ErrAbandoned)
	}
	t.at.unlock()
	h.tellDraining()
}

// Due ends the holds of t whose limits have passed, and reports holds whose work is still running. The watchdog calls it.
func (t *acquisition) Due() {
	s := t.at.s
	t.at.lock()
	if t.at.state.IsClosed() {
		t.at.unlock()
		return // Close ends all holds
	}
	var over, running []*hold
	for _, held := range t.Holds() {
		h := holdOf(held)
		l := h.limits.Load()
		if l == nil {
			continue
		}
		if limit := l.earliest.Load(); limit != nil {
			if watchdog.Passed(limit.end) {
				over = append(over, h)
				continue
			}
			t.lease.CallAt(limit.end)
		}
		switch {
		case l.report.IsZero():
		case watchdog.Passed(l.report):
			l.report = time.Time{}
			running = append(running, h)
		default:
			t.lease.CallAt(l.report)
		}
	}
	s.sender.Add()
	t.at.unlock()
	defer s.sender.Done()
	for _, h := range running {
		cause := context.Cause(h.caller())
		s.report.warn("lock held by work still running after cancellation", t.spec.Name, "lock", t.spec.Name, "mode", t.spec.Mode, "cause", cause)
		if s.Observer != nil {
			h.tell(s.Observer.StillRunning, lock.Event{Err: cause})
		}
	}
	for _, h := range over {
		s.expire(h)
	}
	t.at.tidy()
}

// expire ends h, whose limit has passed, as lost. The reconciler releases it. expire does not wait for Redis.
func (s *Session) expire(h *hold) {
	t := h.acquisition()
	why := h.limit().cause
	cause := t.lostBy(why)
	if before := h.end(cause); errors.Is(before, lock.ErrUnlocked) {
		return // an Unlock was faster
	}
	t.at.lock()
	remains := t.remove(h, time.Now())
	t.at.unlock()
	if remains == lockstate.NotThere {
		return // its owner has lost all holds in the meantime
	}
	if remains == lockstate.NobodyHolds {
		// mutant: always: speed
		if _, inFlight := t.lease.End(); inFlight != nil { // not waited for: unless the lock is retained, it is executed before the release or has no effect
			t.markLate()
		}
		t.at.lock()
		t.at.state.NoLongerHeld(&t.Acquisition)
		t.at.dropKeeper()
		t.at.unlock()
	}
	if remains.ChangesRedis() {
		s.reconcile(t, locked(t.at, t.unsure))
	}
	if why == lock.ErrAbandoned {
		canceled := context.Cause(h.caller())
		s.report.warn("lock abandoned", t.spec.Name, "lock", t.spec.Name, "mode", t.spec.Mode, "cause", canceled)
		if s.Observer != nil {
			h.tell(s.Observer.Abandoned, lock.Event{Err: canceled})
		}
	}
	if remains != lockstate.OwnerHolds { // otherwise its owner still has the lock
		s.report.lost(t.spec, why)
	}
	s.tellEnd(h, cause)
}

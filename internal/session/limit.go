package session

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/internal/lockstate"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/watchdog"
)

// Two things bound a hold that its holder does not unlock: lock.WithMaxHold, and in the caller's own hands the cancellation
// of its context, as nothing is renewed for no one. Each sets a limit. The watchdog calls Due
// when the limit has come, from the queue in which it has the lease; no timer and no goroutine
// wait for a limit. The hold is lost then, and the reconciler releases what it has in Redis.
//
// A hold of lock.Do, or of any other call that knows when the work ends, has no limit by the cancellation. Due
// then reports that the work is still running.

// limit is when a hold ends at the latest, and why. It never changes.
type limit struct {
	end   time.Time
	cause error
}

// limit bounds h, which was acquired by spec just now.
func (s *Session) limit(h *hold, spec *Spec) {
	c := &spec.Config
	at := h.acquisition().at
	at.lock()
	defer at.unlock()
	h.grace = c.Grace
	if c.MaxHold > 0 {
		h.limitLocked(time.Now().Add(c.MaxHold), lock.ErrMaxHold)
	}
}

// limitLocked has h end at end, if it does not end before. The mutex of the state is
// held.
func (h *hold) limitLocked(end time.Time, cause error) {
	if l := h.limit.Load(); l == nil || end.Before(l.end) {
		h.limit.Store(&limit{end, cause})
		h.acquisition().lease.CallAt(end)
	}
}

// checkCallers checks the contexts of the callers of holds, which are about to be renewed. It returns the memory of holds.
func (s *Session) checkCallers(holds []*hold) []*hold {
	for _, h := range holds { // without the mutex: the context is the caller's
		if h.caller.Err() != nil {
			s.callerCanceled(h)
		}
	}
	clear(holds)
	return holds[:0]
}

// callerCanceled notes that the context of h's caller was found canceled. A hold in the caller's own hands gets a limit.
func (s *Session) callerCanceled(h *hold) {
	t := h.acquisition()
	t.at.lock()
	if !slices.Contains(t.Holds(), &h.Hold) {
		t.at.unlock()
		return // an Unlock was faster
	}
	h.canceled = true
	end := time.Now().Add(cmp.Or(h.grace, s.Lease))
	if h.untilUnlock {
		h.report = end
		t.lease.CallAt(end)
	} else {
		h.limitLocked(end, lock.ErrAbandoned)
	}
	t.at.unlock()
	h.tellDraining()
}

// Due ends the holds of t whose limits have come, and reports those whose work is still running. The watchdog calls it.
func (t *acquisition) Due() {
	s := t.s
	t.at.lock()
	if !t.Lives() || t.at.state.IsClosed() {
		t.at.unlock()
		return // what ended it ends all holds
	}
	var over, running []*hold
	var next time.Time
	later := func(at time.Time) {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	for _, held := range t.Holds() {
		h := held.Of.(*hold)
		if l := h.limit.Load(); l != nil {
			if watchdog.Passed(l.end) {
				over = append(over, h)
				continue
			}
			later(l.end)
		}
		switch {
		case h.report.IsZero():
		case watchdog.Passed(h.report):
			h.report = time.Time{}
			running = append(running, h)
		default:
			later(h.report)
		}
	}
	if !next.IsZero() {
		t.lease.CallAt(next)
	}
	s.sender.Add()
	t.at.unlock()
	defer s.sender.Done()
	for _, h := range running {
		cause := context.Cause(h.caller)
		s.report.warn("lock held by work still running after cancellation", t.spec.Name, "lock", t.spec.Name, "mode", t.spec.Mode, "cause", cause)
		s.tellStillRunning(h, cause)
	}
	for _, h := range over {
		s.expire(h)
	}
	t.at.tidy()
}

// past is a context that has ended.
var past = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// expire ends h, whose limit has come, as lost, and has the reconciler release it. It does not
// wait for Redis.
func (s *Session) expire(h *hold) {
	t := h.acquisition()
	why := h.limit.Load().cause
	cause := t.lostBy(why)
	if before := h.end(cause); errors.Is(before, lock.ErrUnlocked) {
		return // an Unlock was faster
	}
	remains, passed := t.remove(h, time.Now())
	if remains == lockstate.NobodyHolds && !passed {
		t.lease.Stop(past) // without waiting: a renewal that is under way comes before the release, or finds nothing
		t.noLongerHeld()
	}
	if remains == lockstate.NobodyHolds && !passed || remains == lockstate.OwnerHolds || remains == lockstate.NotThere {
		s.reconcile(t, t.isUncertain())
	}
	if remains == lockstate.NotThere {
		return // its owner lost all holds at this moment
	}
	if why == lock.ErrAbandoned {
		canceled := context.Cause(h.caller)
		s.report.warn("lock abandoned", t.spec.Name, "lock", t.spec.Name, "mode", t.spec.Mode, "cause", canceled)
		s.tellAbandoned(h, canceled)
	}
	if remains != lockstate.OwnerHolds { // else its owner has other holds
		s.report.lost(t.spec, why)
	}
	s.tellLost(h, cause)
}

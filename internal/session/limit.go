package session

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/internal/place"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/watchdog"
)

// Two things bound a hold that its holder does not give back: lock.WithMaxHold, and the end
// of its context, as nothing is renewed for nobody. Each sets a limit. The watchdog calls Due
// when the limit has come, from the queue in which it has the lease; no timer and no goroutine
// wait for a limit. The hold is lost then, and the settler gives back what it has in Redis.

// limit is when a hold ends at the latest, and why. It never changes.
type limit struct {
	end   time.Time
	cause error
}

// limit bounds h, which was acquired by spec just now.
func (s *Session) limit(h *hold, spec *Spec) {
	c := &spec.Config
	if c.MaxHold == 0 && c.Grace == 0 {
		return
	}
	at := h.tenure().at
	at.lock()
	defer at.unlock()
	h.grace = c.Grace
	if c.MaxHold > 0 {
		h.limitLocked(time.Now().Add(c.MaxHold), lock.ErrMaxHold)
	}
}

// limitLocked has h end at end, if it does not end before. The mutex of the place is
// held.
func (h *hold) limitLocked(end time.Time, cause error) {
	if l := h.limit.Load(); l == nil || end.Before(l.end) {
		h.limit.Store(&limit{end, cause})
		h.tenure().lease.CallAt(end)
	}
}

// abandon looks at the contexts of holds, which are about to be renewed. A hold
// whose context has ended gets a limit. It returns the memory of holds.
func (s *Session) abandon(holds []*hold) []*hold {
	for _, h := range holds { // without the mutex: the context is the caller's
		if h.parent.Err() != nil {
			s.abandonOne(h)
		}
	}
	clear(holds)
	return holds[:0]
}

// abandonOne sets a limit for h, whose context has ended.
func (s *Session) abandonOne(h *hold) {
	t := h.tenure()
	t.at.lock()
	if !slices.Contains(t.Holds(), &h.Hold) {
		t.at.unlock()
		return // an Unlock was faster
	}
	grace := h.grace
	if grace == 0 {
		grace = s.Lease
	}
	h.abandoned = true
	h.limitLocked(time.Now().Add(grace), lock.ErrAbandoned)
	until := h.limit.Load().end
	t.at.unlock()
	cause := context.Cause(h.parent)
	s.report.warn("lock abandoned: its context has ended, and nobody unlocked it", t.spec.Name, "lock", t.spec.Name, "mode", t.spec.Mode, "renewed until", until, "cause", cause)
	if s.Observer != nil {
		h.tell(s.Observer.Abandoned, lock.Event{Until: until, Err: cause})
	}
}

// Due ends the holds of t whose limits have come. The watchdog calls it.
func (t *tenure) Due() {
	s := t.s
	t.at.lock()
	if !t.Lives() || t.at.place.IsClosed() {
		t.at.unlock()
		return // what ended it ends all holds
	}
	var over []*hold
	var next time.Time
	for _, held := range t.Holds() {
		h := held.Of.(*hold)
		switch l := h.limit.Load(); {
		case l == nil:
		case watchdog.Passed(l.end):
			over = append(over, h)
		case next.IsZero() || l.end.Before(next):
			next = l.end
		}
	}
	if !next.IsZero() {
		t.lease.CallAt(next)
	}
	s.sender.Add()
	t.at.unlock()
	defer s.sender.Done()
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

// expire ends h, whose limit has come, as lost, and has the settler give it back. It does not
// wait for Redis.
func (s *Session) expire(h *hold) {
	t := h.tenure()
	cause := t.lostBy(h.limit.Load().cause)
	if before := h.end(cause); errors.Is(before, lock.ErrUnlocked) {
		return // an Unlock was faster
	}
	remains, passed := t.remove(h, time.Now())
	if remains == place.NobodyHolds && !passed {
		t.lease.Stop(past) // without waiting: a renewal that is under way comes before the release, or finds nothing
		t.unhold()
	}
	if remains == place.NobodyHolds && !passed || remains == place.OwnerHolds || remains == place.NotThere {
		s.settle(t, t.isUnsure())
	}
	if remains == place.NotThere {
		return // its owner lost all holds at this moment
	}
	if remains != place.OwnerHolds { // else its owner has other holds
		s.report.lost(t.spec, h.limit.Load().cause)
	}
	s.tellLost(h, cause)
}

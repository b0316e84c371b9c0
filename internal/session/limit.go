package session

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/watchdog"
)

// Two things bound a hold that its holder does not give back: lock.WithMaxHold, and the end
// of its context, as nothing is renewed for nobody. Each sets a limit. The watchdog calls
// when it has come, from the queue in which it has the lease; nothing else runs or sleeps
// for a limit. The hold is lost then, and what it has in Redis is given back.

// limit is when a hold ends at the latest, and why. It does not change.
type limit struct {
	at    time.Time
	cause error
}

// limit bounds h, which was acquired by spec just now.
func (s *Session) limit(h *hold, spec *Spec) {
	if spec.MaxHold == 0 && spec.Grace == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h.grace = spec.Grace
	if spec.MaxHold > 0 {
		h.limitLocked(time.Now().Add(spec.MaxHold), lock.ErrMaxHold)
	}
}

// limitLocked has h end at that time, if it does not end before.
func (h *hold) limitLocked(at time.Time, cause error) {
	if l := h.limit.Load(); l == nil || at.Before(l.at) {
		h.limit.Store(&limit{at, cause})
		h.t.lease.CallAt(at)
	}
}

// abandon looks for holds whose contexts have ended, among those of tenures, which are about
// to be renewed. Each gets a limit. It returns holds, the memory that it used.
func (s *Session) abandon(tenures []*tenure, holds []*hold) []*hold {
	s.mu.Lock()
	for _, t := range tenures {
		for _, h := range t.holds {
			if !h.fixed && !h.abandoned {
				holds = append(holds, h)
			}
		}
	}
	s.mu.Unlock()
	for _, h := range holds { // without the mutex: the context is the caller's
		if h.parent.Err() != nil {
			s.abandonOne(h)
		}
	}
	clear(holds)
	return holds[:0]
}

func (s *Session) abandonOne(h *hold) {
	s.mu.Lock()
	if !slices.Contains(h.t.holds, h) {
		s.mu.Unlock()
		return // its holder was faster
	}
	grace := h.grace
	if grace == 0 {
		grace = s.Lease
	}
	h.abandoned = true
	h.limitLocked(time.Now().Add(grace), lock.ErrAbandoned)
	until := h.limit.Load().at
	s.mu.Unlock()
	cause := context.Cause(h.parent)
	s.report.warn("lock abandoned: its context has ended, and nobody unlocked it", h.t.spec.Name, "lock", h.t.spec.Name, "mode", h.t.spec.Mode, "renewed until", until, "cause", cause)
	s.observe(s.Observer.Abandoned, h.t, lock.Event{Until: until, Err: cause})
}

// Due ends the holds of t whose limits have come. The watchdog calls it.
func (t *tenure) Due() {
	s := t.s
	s.mu.Lock()
	if t.over != lives || s.closed {
		s.mu.Unlock()
		return // whoever ended it sees to all holds
	}
	var over []*hold
	var next time.Time
	for _, h := range t.holds {
		switch l := h.limit.Load(); {
		case l == nil:
		case watchdog.Passed(l.at):
			over = append(over, h)
		case next.IsZero() || l.at.Before(next):
			next = l.at
		}
	}
	if !next.IsZero() {
		t.lease.CallAt(next)
	}
	s.work.Add(1)
	s.mu.Unlock()
	defer s.work.Done()
	for _, h := range over {
		s.expire(h)
	}
}

// past is over.
var past = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// expire ends h, whose limit has come, as lost, and gives it back behind everybody's back. It
// does not wait for Redis.
func (s *Session) expire(h *hold) {
	t := h.t
	cause := t.lostBy(h.limit.Load().cause)
	if before := h.end(cause); errors.Is(before, lock.ErrUnlocked) {
		return // its holder was faster
	}
	out, last, passed := t.remove(h)
	if last && !passed {
		t.lease.Stop(past) // a renewal that is under way comes before the release, or finds nothing
		s.unhold(t)
	}
	if last && !passed || !out && !last {
		s.settle(t, t.isUnsure())
	}
	if !out {
		return // its owner has other holds
	}
	s.report.warn("lock lost", t.spec.Name, "lock", t.spec.Name, "mode", t.spec.Mode, "cause", h.limit.Load().cause)
	s.observe(s.Observer.Lost, t, lock.Event{Err: cause})
}

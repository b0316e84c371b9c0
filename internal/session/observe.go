package session

import (
	"cmp"
	"context"
	"errors"
	"os"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/internal/lockstate"
	"github.com/leasehold-go/leasehold/lock"
)

// call is a call of Lock or TryLock for one lock, and the hold that it comes to, as the observer
// knows them. It is nil where no one observes. Its methods then do nothing, not even look at a
// clock.
type call struct {
	s     *Session        // set once
	ctx   context.Context // set once: the caller's
	spec  *Spec           // set once
	id    uint64          // set once
	began time.Time       // set once

	waits   time.Time // when it began to wait; zero if it did not. Used by the goroutine of the call
	granted time.Time // set before the call is that of its hold

	// Guarded by the mutex of the hold, which sees to it that the observer is notified of the grant
	// first, and of one end.
	told     bool      // the observer knows of the grant
	draining time.Time // when it was told that the hold is draining; zero if it was not
	ended    bool      // the hold has ended,
	end      end       // in this way
}

// end is how a hold ended, and when.
type end struct {
	lost bool // else it was released
	err  error
	at   time.Time
}

// calls numbers all calls of this process that are observed.
var calls atomic.Uint64

// observe returns the call that begins now. There is an observer.
func (s *Session) observe(ctx context.Context, spec *Spec) *call {
	return &call{s: s, ctx: ctx, spec: spec, id: calls.Add(1), began: time.Now()}
}

// event returns e with what all events of c have.
func (c *call) event(e lock.Event) lock.Event {
	e.Name, e.Kind, e.Mode, e.ID = c.spec.Name, cmp.Or(c.spec.As, c.spec.Kind.Name), c.spec.Mode, c.id
	return e
}

// ends returns an event of the end of c.
func (c *call) ends() lock.Event {
	now := time.Now()
	e := c.event(lock.Event{Took: now.Sub(c.began)})
	if !c.waits.IsZero() {
		e.Waited = max(now.Sub(c.waits), 1) // 0 would say that it did not wait
	}
	return e
}

// tellWaiting tells the observer, once, that the attempt begins to wait, as others have the lock.
func (a *attempt) tellWaiting() {
	c := a.call
	if c == nil || !c.waits.IsZero() {
		return
	}
	c.waits = time.Now()
	if f := c.s.Observer.Waiting; f != nil {
		var owner string
		if a.t != nil {
			owner = a.t.Name
		}
		f(c.ctx, c.event(lock.Event{Owner: owner}))
	}
}

// tellBehind does so if the attempt is about to sleep because other calls of this process are
// ahead: it has not asked, so no one refused it. Where each waiter has a position in Redis, it does
// so once the attempt has one.
func (a *attempt) tellBehind() {
	if a.call == nil || a.limit > 0 || a.spec.WaitPolicy == lockstate.RedisQueue {
		return
	}
	a.at.lock()
	_, rides := a.w.IsJoined()
	behind := !rides && !a.w.Leads()
	if a.spec.terms.WaitPolicy == lockstate.FairQueue {
		behind = a.w.Queued() != nil
	}
	a.at.unlock()
	if behind {
		a.tellWaiting()
	}
}

// tellFailed tells the observer that the call ended with err, which the caller gets.
func (c *call) tellFailed(err error) {
	if c == nil {
		return
	}
	o := c.s.Observer
	f := o.Failed
	switch {
	case errors.Is(err, lock.ErrUnavailable):
		f = o.Unavailable
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		f = o.TimedOut
	case errors.Is(err, context.Canceled):
		f = o.Canceled
	case errors.Is(err, lock.ErrNotAcquired):
		f = o.NotAcquired
	}
	if f != nil {
		e := c.ends()
		e.Err = err
		f(c.ctx, e)
	}
}

// tellGranted tells the observer that the call has h. If the observer does not return, because it panics or calls
// runtime.Goexit, no one gets h, so tellGranted releases it.
func (c *call) tellGranted(h *hold) {
	returned := false
	defer func() {
		if !returned {
			_ = c.s.unlock(c.ctx, h)
		}
	}()
	e := c.ends()
	c.granted = c.began.Add(e.Took)
	h.mu.Lock()
	if early := h.call; early != nil {
		c.ended, c.end = early.ended, early.end // it is over already
	}
	h.call = c
	h.mu.Unlock()
	if f := c.s.Observer.Acquired; f != nil {
		e.Owner, e.Token = h.Owner(), h.Token()
		f(c.ctx, e)
	}
	h.mu.Lock()
	c.told = true
	ended := c.ended
	h.mu.Unlock()
	if ended {
		h.tellOf(c.end)
	}
	returned = true
}

// tellEnd has the observer are notified of the end of h, by err or by none, once it has heard of the
// grant. If the call that h came from did not return it, the observer is notified of neither. No mutex
// may be held.
func (s *Session) tellEnd(h *hold, lost bool, err error) {
	if s.Observer == nil {
		return
	}
	h.mu.Lock()
	if h.call == nil {
		h.call = new(call) // until tellGranted comes
	}
	e := end{lost, err, h.ended}
	h.call.ended, h.call.end = true, e
	told := h.call.told // else tellGranted tells of the end, perhaps before this goroutine goes on
	h.mu.Unlock()
	if told {
		h.tellOf(e)
	}
}

// tellOf tells the observer of the end of h.
func (h *hold) tellOf(end end) {
	o := h.acquisition().s.Observer
	f := o.Released
	if end.lost {
		f = o.Lost
	}
	h.mu.Lock()
	draining := h.call.draining // does not change after the end
	h.mu.Unlock()
	e := lock.Event{Held: max(end.at.Sub(h.call.granted), 0), Err: end.err}
	if !draining.IsZero() {
		e.Draining = max(end.at.Sub(draining), 1) // 0 would say that it was not draining
	}
	h.tell(f, e)
}

// tellDraining tells the observer that the context of h's caller is canceled, and h is still held.
func (h *hold) tellDraining() {
	h.mu.Lock()
	c := h.call
	drains := c != nil && c.told && !c.ended // otherwise its end would not say so
	if drains {
		c.draining = time.Now()
	}
	h.mu.Unlock()
	if drains {
		h.tell(c.s.Observer.Draining, lock.Event{Err: context.Cause(h.caller)})
	}
}

// tellStillRunning tells the observer that the work under h is still running, long after cause canceled its context.
func (s *Session) tellStillRunning(h *hold, cause error) {
	if s.Observer != nil {
		h.tell(s.Observer.StillRunning, lock.Event{Err: cause})
	}
}

// tellAbandoned tells the observer that h was not unlocked in time after cause canceled its context.
func (s *Session) tellAbandoned(h *hold, cause error) {
	if s.Observer != nil {
		h.tell(s.Observer.Abandoned, lock.Event{Err: cause})
	}
}

// tellLost tells the observer that h is lost by cause.
func (s *Session) tellLost(h *hold, cause error) { s.tellEnd(h, true, cause) }

// tellGivenBack tells the observer what releasing h came to.
func (s *Session) tellGivenBack(h *hold, err error) {
	s.tellEnd(h, errors.Is(err, lock.ErrLost), err)
}

// tellHandedOff tells the observer that the Unlock of h handed the lock off.
func (s *Session) tellHandedOff(h *hold) {
	if s.Observer != nil {
		h.tell(s.Observer.HandedOff, lock.Event{})
	}
}

// tellClosed tells the observer what releasing holds came to that ended together. The Unlock of
// a hold that was unlocked before tells of that one.
func (s *Session) tellClosed(ended []*lockstate.Hold, err error) {
	for _, held := range ended {
		if h := held.Of.(*hold); !h.unlocked() {
			s.tellGivenBack(h, err)
		}
	}
}

// tellEnded tells the observer of holds that ended together as lost. The Unlock of a hold that was
// unlocked before tells of that one.
func (s *Session) tellEnded(ended []*lockstate.Hold, cause error) {
	for _, held := range ended {
		if h := held.Of.(*hold); !h.unlocked() {
			s.tellLost(h, cause)
		}
	}
}

// unlocked reports whether an Unlock ended h.
func (h *hold) unlocked() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cause == lock.ErrUnlocked
}

// tell calls f, if that is not nil, with e, an event of h, if the observer knows of h.
// No mutex may be held.
func (h *hold) tell(f func(context.Context, lock.Event), e lock.Event) {
	if f == nil {
		return
	}
	h.mu.Lock()
	c := h.call
	known := c != nil && c.told
	h.mu.Unlock()
	if !known {
		return
	}
	e = c.event(e)
	e.Owner, e.Token = h.Owner(), h.Token()
	f(c.ctx, e)
}

// one returns a hold of t; nil if there is none.
func (t *acquisition) one() *hold {
	t.at.lock()
	defer t.at.unlock()
	if holds := t.Holds(); len(holds) > 0 {
		return holds[0].Of.(*hold)
	}
	return nil
}

// Renewed tells the observer that the watchdog renewed the lease, when left was left of it.
func (t *acquisition) Renewed(until time.Time, left time.Duration) {
	if t.s.Observer == nil {
		return
	}
	if h := t.one(); h != nil {
		h.tell(t.s.Observer.Renewed, lock.Event{Until: until, Left: left})
	}
}

// Unrenewed notes that a renewal came to err, and tells the observer.
func (t *acquisition) Unrenewed(err error, left time.Duration) {
	t.unrenewed()
	if t.s.Observer == nil || errors.Is(err, errUntaken) {
		return
	}
	if h := t.one(); h != nil {
		h.tell(t.s.Observer.RenewalFailed, lock.Event{Left: left, Err: err})
	}
}

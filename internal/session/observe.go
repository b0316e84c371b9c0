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

// call is a call of Lock or TryLock, and its hold, as reported to the observer. Without an observer it is nil, and its
// methods do nothing, not even read the clock.
type call struct {
	s     *Session        // set once
	ctx   context.Context // set once: the caller's
	spec  *Spec           // set once
	id    uint64          // set once
	began time.Time       // set once

	waits   time.Time // when it began to wait; zero if it did not. Used only by the goroutine of the call
	granted time.Time // set before hold.call is set

	// Guarded by the mutex of the hold. They ensure that the observer is notified of the grant before the end, and of
	// the end once.
	told     bool      // the observer was notified of the grant
	draining time.Time // when the observer was notified that the hold is draining; zero if it was not
	ended    bool      // the hold has ended
	end      end       // valid if ended
}

// end is how and when a hold ended.
type end struct {
	err error // of the release; matches lock.ErrLost if the hold was lost
	at  time.Time
}

// calls is the number of observed calls in this process. It generates the call IDs.
var calls atomic.Uint64

// observe returns a call that begins now. The session must have an observer.
func (s *Session) observe(ctx context.Context, spec *Spec) *call {
	return &call{s: s, ctx: ctx, spec: spec, id: calls.Add(1), began: time.Now()}
}

// event returns e with the fields that are common to all events of c.
func (c *call) event(e lock.Event) lock.Event {
	e.Name, e.Kind, e.Mode, e.ID = c.spec.Name, cmp.Or(c.spec.As, c.spec.Kind.Name), c.spec.Mode, c.id
	return e
}

// ends returns an event for the end of the wait of c.
func (c *call) ends() lock.Event {
	now := time.Now()
	e := c.event(lock.Event{Took: now.Sub(c.began)})
	if !c.waits.IsZero() {
		e.Waited = max(now.Sub(c.waits), 1) // 0 means that it did not wait
	}
	return e
}

// tellWaiting notifies the observer, once, that the attempt begins to wait because another owner has the lock.
func (a *attempt) tellWaiting() {
	c := a.call
	if !c.waits.IsZero() {
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

// tellBehind calls tellWaiting if the attempt is about to sleep behind other calls of this process. Such an attempt has
// sent no request, so it gets no refusal.
func (a *attempt) tellBehind() {
	// mutant: operand 1: speed: a TryLock waits only for another reader's request
	if a.isTry() || a.spec.WaitPolicy == lockstate.RedisQueue {
		return
	}
	a.at.lock()
	behind := a.w.IsBehind()
	a.at.unlock()
	if behind {
		a.tellWaiting()
	}
}

// tellFailed notifies the observer that the call failed with err.
func (c *call) tellFailed(err error) {
	if c == nil {
		return
	}
	o := c.s.Observer
	f := o.Failed
	switch {
	case errors.Is(err, lock.ErrUnavailable):
		f = o.Unavailable
	case errors.Is(err, context.Canceled) && c.ctx.Err() == context.Canceled: // even if the cause of the cancellation is a timeout
		f = o.Canceled
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

// tellGranted notifies the observer that the call acquired h. If the observer panics or calls runtime.Goexit, the
// caller does not receive h, so tellGranted releases it.
func (c *call) tellGranted(h *hold) {
	returned := false
	defer func() {
		if !returned {
			_ = c.s.unlock(c.ctx, h, true)
		}
	}()
	e := c.ends()
	c.granted = c.began.Add(e.Took)
	h.mu.Lock()
	if early := h.call; early != nil {
		c.ended, c.end = early.ended, early.end // it has already ended
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

// tellEnd notifies the observer that h was released or lost with err, after it was notified of the grant. If the call did
// not return h, the observer is notified of neither. The caller must not hold a mutex.
func (s *Session) tellEnd(h *hold, err error) {
	if s.Observer == nil {
		return
	}
	h.mu.Lock()
	if h.call == nil {
		h.call = new(call) // until tellGranted replaces it
	}
	e := end{err, h.ended}
	h.call.ended, h.call.end = true, e
	told := h.call.told // otherwise tellGranted reports the end
	h.mu.Unlock()
	if told { // mutant: always: reports the end twice only if the grant is told right now, which no test can force
		h.tellOf(e)
	}
}

// tellOf calls Observer.Released or Observer.Lost for h.
func (h *hold) tellOf(end end) {
	o := h.acquisition().at.s.Observer
	f := o.Released
	if errors.Is(end.err, lock.ErrLost) {
		f = o.Lost
	}
	h.mu.Lock()
	draining := h.call.draining // constant after the end
	h.mu.Unlock()
	e := lock.Event{Held: max(end.at.Sub(h.call.granted), 0), Err: end.err}
	if !draining.IsZero() {
		e.Draining = max(end.at.Sub(draining), 1) // 0 means that it was not draining
	}
	h.tell(f, e)
}

// tellDraining notifies the observer that the context of h's caller is canceled while h is still held.
func (h *hold) tellDraining() {
	h.mu.Lock()
	c := h.call
	drains := c != nil && c.told && !c.ended // otherwise the event of its end would not match
	if drains {
		c.draining = time.Now()
	}
	h.mu.Unlock()
	if drains {
		h.tell(c.s.Observer.Draining, lock.Event{Err: context.Cause(h.caller())})
	}
}

// tellEnded notifies the observer that these holds ended together, with err. A hold that was found lost before, such as
// at its limit, keeps that cause. tellEnded skips holds that were already unlocked, because their Unlock reports them. It
// returns why one of them was lost; nil if none was.
func (s *Session) tellEnded(ended []*lockstate.Hold, err error) (loss error) {
	for _, held := range ended {
		h := holdOf(held)
		h.mu.Lock()
		cause := h.cause
		h.mu.Unlock()
		if cause == lock.ErrUnlocked {
			continue
		}
		if !errors.Is(cause, lock.ErrLost) {
			cause = err
		}
		if errors.Is(cause, lock.ErrLost) {
			loss = cause
		}
		s.tellEnd(h, cause)
	}
	return loss
}

// tell calls f with e, an event of h, if f is not nil and the observer was notified of the grant. The caller must not
// hold a mutex.
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

// anyHold returns a hold of t; nil if there is none.
func (t *acquisition) anyHold() *hold {
	t.at.lock()
	defer t.at.unlock()
	if holds := t.Holds(); len(holds) > 0 {
		return holdOf(holds[0])
	}
	return nil
}

// Renewed notifies the observer that the watchdog renewed the lease. left is the lease time that remained.
func (t *acquisition) Renewed(until time.Time, left time.Duration) {
	if t.at.s.Observer == nil {
		return
	}
	if h := t.anyHold(); h != nil {
		h.tell(t.at.s.Observer.Renewed, lock.Event{Until: until, Left: left})
	}
}

// Unrenewed records that a renewal failed with err, and notifies the observer.
func (t *acquisition) Unrenewed(err error, left time.Duration) {
	t.markLate()
	if t.at.s.Observer == nil || errors.Is(err, errUntaken) {
		return
	}
	if h := t.anyHold(); h != nil {
		h.tell(t.at.s.Observer.RenewalFailed, lock.Event{Left: left, Err: err})
	}
}

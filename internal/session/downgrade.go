package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
)

// Downgrade gives the write hold w back, and returns a hold of its owner by spec, the
// reading side of the same lock, in its state: under the context that w was taken under. ctx
// is for the call alone.
//
// The owner comes to read while it writes, and stops writing then. So there is no moment
// at which another owner can write, and what fails before the second step leaves w as it was.
func (s *Session) Downgrade(ctx context.Context, spec *Spec, w lock.Hold) (lock.Hold, error) {
	read, c, err := s.downgrade(ctx, spec, w)
	if err != nil {
		err = &lock.Error{Op: "downgrade", Name: spec.Name, Err: err}
		c.tellFailed(err)
		return nil, err
	}
	if spec.limits() {
		s.limit(read, spec)
	}
	return read, nil
}

// downgrade does what Downgrade does. c is the call whose failure the observer is to be notified of; nil if it has heard of its grant, or
// knows of no call.
func (s *Session) downgrade(ctx context.Context, spec *Spec, w lock.Hold) (read *hold, c *call, err error) {
	if spec.Err != nil {
		return nil, nil, spec.Err
	}
	h, ok := w.(*hold)
	if !ok || h.acquisition().s != s || h.acquisition().spec.id() != spec.id() || h.acquisition().spec.Kind != spec.Sibling {
		return nil, nil, fmt.Errorf("%w: not a write hold of this lock", lock.ErrNotHeld)
	}
	if err := h.over(); err != nil {
		return nil, nil, err
	}
	for _, under := range []context.Context{ctx, h.parent} {
		if err := under.Err(); err != nil {
			return nil, nil, interrupted(under, err)
		}
	}
	at, err := s.begin(spec)
	if err != nil {
		return nil, nil, err
	}
	defer s.done(at)
	if s.Observer != nil {
		c = s.observe(h.parent, spec)
	}
	a := &attempt{s: s, spec: spec, call: c, at: at, owner: at.enter(spec, h.By.Number, false), ctx: h.parent, waiting: ctx, began: time.Now(), limit: s.OpTimeout}
	a.now = a.began
	defer a.done()
	read, err = a.inTurn()
	if err == lock.ErrNotAcquired { // by Redis, which never refuses an owner that writes
		h.acquisition().lease.Lose(s.gone(h.acquisition(), luascripts.Gone))
	}
	if err != nil {
		over := h.over()
		err = cmp.Or(over, err)
		if over == nil && ctx.Err() != nil {
			err = interrupted(ctx, err)
		}
		return nil, c, err
	}
	if c != nil {
		c.tellGranted(read)
	}
	if err := s.unlock(ctx, h); errors.Is(err, lock.ErrNotHeld) {
		// It was lost, perhaps before the owner came to read: another may have written.
		_ = s.unlock(ctx, read)
		return nil, nil, err
	}
	return read, nil, nil // although the reconciler may have to tell Redis that the writing is over
}

// over returns the error with which an Unlock of h would fail; nil if h is not over.
func (h *hold) over() error {
	h.look(time.Now()) // a lease that expired is lost, whichever goroutine looks first
	h.mu.Lock()
	defer h.mu.Unlock()
	return notHeld(h.cause)
}

// notHeld returns the error of an Unlock of a hold that had ended before, by that cause; nil
// if cause is nil.
func notHeld(cause error) error {
	switch {
	case cause == nil:
		return nil
	case errors.Is(cause, lock.ErrUnlocked):
		return lock.ErrNotHeld
	default:
		return fmt.Errorf("%w: %w", lock.ErrNotHeld, errors.Unwrap(cause)) // without its name a second time
	}
}

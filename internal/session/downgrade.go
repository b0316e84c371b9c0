package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
)

// Downgrade replaces the write hold w by a read hold of the same owner. spec is the read side of the same lock. The
// read hold has the parent context of w, and lasts until Unlock if w does; ctx is for the call only.
//
// The owner first acquires the read side and then releases the write side, so no other owner can write in between. If
// the first step fails, w is unchanged.
func (s *Session) Downgrade(ctx context.Context, spec *Spec, w lock.Hold) (lock.Hold, error) {
	read, c, err := s.downgrade(ctx, spec, w)
	if err != nil {
		err = &lock.Error{Op: "downgrade", Name: spec.Name, Err: err}
		c.tellFailed(err)
		return nil, err
	}
	if spec.Config.MaxHold > 0 {
		read.limitTo(spec.Config.MaxHold)
	}
	return read, nil
}

// downgrade implements Downgrade. c is the call whose failure the caller reports to the observer; nil if there is none,
// or if its grant was already reported.
func (s *Session) downgrade(ctx context.Context, spec *Spec, w lock.Hold) (read *hold, c *call, err error) {
	if spec.Err != nil {
		return nil, nil, spec.Err
	}
	h, ok := w.(*hold)
	if !ok || h.acquisition().at.s != s || h.acquisition().spec.id != spec.id || h.acquisition().spec.Kind != spec.Sibling {
		return nil, nil, fmt.Errorf("%w: not a write hold of this lock", lock.ErrNotHeld)
	}
	if err := h.over(); err != nil {
		return nil, nil, err
	}
	for _, under := range []context.Context{ctx, h.parent} {
		if under.Err() != nil {
			return nil, nil, command.Ended(under, 0)
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
	by := caller{ctx: h.parent, number: h.By.Number, call: c}
	if l := h.limits.Load(); l != nil {
		by.until = l.caller
	}
	now := time.Now()
	a := &attempt{s: s, spec: spec, at: at, caller: by, owner: at.enter(spec, h.By.Number), waiting: ctx, timing: timing{limit: s.OpTimeout, began: now, now: now}}
	defer at.exit(a.owner)
	read, err = a.inTurn()
	if err == lock.ErrNotAcquired { // Redis never refuses a read to the writer, so the write hold is lost
		h.acquisition().lease.Lose(s.gone(h.acquisition(), luascripts.Gone))
	}
	if err != nil {
		return nil, c, cmp.Or(h.over(), command.Interrupted(ctx, err))
	}
	if c != nil {
		c.tellGranted(read)
	}
	held, returned := read, false
	defer func() {
		if !returned { // even because the observer or the logger panicked or called runtime.Goexit
			_ = s.unlock(context.WithoutCancel(ctx), held, true)
		}
	}()
	if err := s.unlock(ctx, h, true); errors.Is(err, lock.ErrNotHeld) {
		return nil, nil, err // the write hold was lost, perhaps before the read side was acquired: another owner may have written
	}
	returned = true // even if the reconciler still has to release the write side
	return read, nil, nil
}

// over returns the error that an Unlock of h would return; nil if h has not ended.
func (h *hold) over() error {
	h.check(time.Now()) // an expired lease is lost even if the watchdog has not detected it yet
	h.mu.Lock()
	defer h.mu.Unlock()
	return notHeld(h.cause)
}

// notHeld returns the error of an Unlock of a hold that had already ended with cause; nil if cause is nil.
func notHeld(cause error) error {
	switch {
	case cause == nil:
		return nil
	case errors.Is(cause, lock.ErrUnlocked):
		return fmt.Errorf("%w: already unlocked", lock.ErrNotHeld)
	default:
		return fmt.Errorf("%w: %w", lock.ErrNotHeld, errors.Unwrap(cause)) // without the lock's name, which would appear twice
	}
}

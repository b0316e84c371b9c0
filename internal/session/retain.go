package session

import (
	"context"
	"errors"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
)

// A lock with lock.WithMinHold stays locked for a minimum time after its grant. If its last hold is released earlier,
// the acquisition ends, but the release sets the expiry of the lock instead of freeing it. This applies to every
// release: Unlock, Close, a limit and the reconciler.

// minHoldLease returns the lease to request for a minimum hold time of d. After a prompt reply the lease is usable for at
// least d. The lock therefore stays locked for d even if the process dies.
func (s *Session) minHoldLease(d time.Duration) time.Duration {
	return d + d/50 + s.OpTimeout
}

// applyMinHold makes the lock of h stay locked for the minimum hold time of spec. It extends the lease if needed, for
// example after a hand-off.
func (s *Session) applyMinHold(ctx context.Context, h *hold, spec *Spec) error {
	d := spec.Config.MinHold
	began := time.Now()
	until := began.Add(d)
	t := h.acquisition()
	if !h.Fixed && t.lease.Until().Before(until) {
		if err := s.extend(ctx, h, s.minHoldLease(d)); err != nil {
			_ = s.unlock(ctx, h, ctx.Err() == nil) // a call whose context is canceled does not wait for the release
			if errors.Is(err, lock.ErrNotHeld) {
				return err
			}
			return s.sender.Failed(ctx, began, err)
		}
	}
	t.at.lock()
	defer t.at.unlock()
	if t.keepUntil == nil || until.After(*t.keepUntil) {
		t.keepUntil = &until
	}
	return nil
}

// retains reports whether the lock must stay locked for its minimum hold time. The caller holds the mutex of the state.
func (t *acquisition) retains() bool { return t.keepUntil != nil && time.Now().Before(*t.keepUntil) }

// markLate records that a renewal, extension or reentry has an unknown outcome, or that a duplicate of it may be in flight.
func (t *acquisition) markLate() {
	t.at.lock()
	defer t.at.unlock()
	t.Latest().Late = true // t may have been handed off in the meantime
}

// unsure reports whether a command for t may still be executed and keep the lock after t has ended. A delayed renewal,
// extension or reentry has no effect after a release, but it would extend a lock that is retained for its minimum hold
// time. The caller holds the mutex of the state.
func (t *acquisition) unsure() bool {
	// mutant: operand 3: speed
	return t.Uncertain() || t.keepUntil != nil && (t.Late || t.Unconfirmed())
}

// retainRequest is the command that retains the lock of an ended acquisition. It implements command.Call.
type retainRequest struct {
	command.Unbatched[luascripts.Released]
	t *acquisition
}

// Send removes served owners from the queue, if any, and then sends the command.
func (r retainRequest) Send(ctx context.Context) (reply luascripts.Released, err error) {
	t := r.t
	t.at.lock()
	rest, served := time.Until(*t.keepUntil), t.Served()
	t.at.unlock()
	if len(served) > 0 {
		if err := t.removeServed(ctx, served); err != nil {
			return reply, err
		}
	}
	reply.Verdict, err = t.spec.Retain(ctx, t.at.s.rdb, t.spec.Keys, t.Name, rest)
	return reply, err
}

// Late reconciles the acquisition if Redis did not confirm the expiry, or if another command may still extend it.
func (r retainRequest) Late(_ luascripts.Released, err error) {
	if err != nil || locked(r.t.at, r.t.unsure) {
		r.t.at.s.reconcile(r.t, true)
	}
}

package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
)

// A lock with lock.WithMinHold stays locked for a while after its grant. If its last hold is given
// back before, the acquisition is over as any other, but Redis is told when the lock is to expire, instead
// of freeing it. Whatever gives an acquisition back does that: Unlock, Close, the end of a limit and the
// reconciler.

// minHoldLease returns the lease with which a lock is asked for that is to stay locked for d: long
// enough that after a prompt reply the lease is trusted for d. Then the lock also outlives a
// process that dies.
func (s *Session) minHoldLease(d time.Duration) time.Duration {
	return d + d/50 + s.OpTimeout
}

// applyMinHold has the lock of h stay locked for as long as spec says. A lock that was handed off may
// have less of its lease left than that.
func (s *Session) applyMinHold(ctx context.Context, h *hold, spec *Spec) error {
	d := spec.Config.MinHold
	began := time.Now()
	until := began.Add(d)
	t := h.acquisition()
	if !h.Fixed && t.lease.Until().Before(until) {
		if err := s.extend(ctx, h, s.minHoldLease(d)); err != nil {
			if ctx.Err() == nil {
				_ = s.unlock(ctx, h)
			} else if s.enter() == nil { // else Close releases it
				go func() {
					defer s.sender.Done()
					_ = s.unlock(ctx, h)
				}()
			}
			if errors.Is(err, lock.ErrNotHeld) {
				return err
			}
			return s.sender.Failed(ctx, began, err)
		}
	}
	t.at.lock()
	defer t.at.unlock()
	if until.After(t.keepUntil) {
		t.keepUntil = until
	}
	return nil
}

// minHoldLeft returns for how long the lock is to stay locked from now on, 0 if it may be free. The
// mutex of the state is held.
func (t *acquisition) minHoldLeft() time.Duration {
	if t.keepUntil.IsZero() {
		return 0
	}
	return max(time.Until(t.keepUntil), 0)
}

// unrenewed notes that a renewal broke off. Carried out late, it finds nothing after a release. But
// it would keep a lock for longer that is to stand for a while.
func (t *acquisition) unrenewed() {
	t.at.lock()
	defer t.at.unlock()
	if !t.keepUntil.IsZero() {
		t.MarkUncertain()
	}
}

// retains reports whether the lock is to stay locked for a while.
func (t *acquisition) retains() bool {
	t.at.lock()
	defer t.at.unlock()
	return t.minHoldLeft() > 0
}

// retainRequest is the command that lets the lock of an acquisition stand: a command.Call.
type retainRequest struct {
	command.Unbatched[luascripts.Verdict]
	t *acquisition
}

// Send sends the command.
func (r retainRequest) Send(ctx context.Context) (luascripts.Verdict, error) {
	t := r.t
	t.at.lock()
	rest, served := t.minHoldLeft(), t.Served()
	t.at.unlock()
	if len(served) > 0 {
		if err := t.removeServed(ctx, served); err != nil {
			return 0, err
		}
	}
	return t.spec.Retain(ctx, t.s.rdb, t.spec.Keys, t.Name, rest)
}

// Late goes on until Redis confirms that the lock expires in time.
func (r retainRequest) Late(_ luascripts.Verdict, err error) {
	if err != nil {
		r.t.s.reconcile(r.t, true)
	}
}

// retain lets the lock of an acquisition that is over stand in Redis. It fails as release does.
func (s *Session) retain(ctx context.Context, t *acquisition, within time.Duration) error {
	o := command.SendWithRetry[luascripts.Verdict](ctx, s.sender, time.Now(), within, retainRequest{t: t})
	unsure, settled := t.afterRelease(false, false)
	switch {
	case !o.Answered:
		return o.Err
	case o.Err != nil:
		s.sender.Go(func() { s.reconcile(t, true) })
		return o.Err
	case unsure:
		// A command for this acquisition broke off. Carried out late, it would keep the lock for a whole lease.
		s.sender.Go(func() { s.reconcile(t, true) })
	}
	// Gone at a repetition: the first copy was executed, and the lock has expired since.
	if v := o.Value; v == luascripts.Done || v == luascripts.Gone && (o.Repeated || settled) {
		return nil
	}
	return fmt.Errorf("%w: %w: %w", lock.ErrNotHeld, lock.ErrLost, goneBy(o.Value))
}

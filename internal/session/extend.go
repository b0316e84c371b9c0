package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
)

// maxExtension keeps the ends of leases within what clocks can count.
const maxExtension = 100 * 365 * 24 * time.Hour

// Extend makes the lease of h last for d from now on, if it does not last longer.
//
// It is a renewal with another lease, which the server executes only while the owner has the
// lock. So it may be repeated, and a copy that comes late finds nothing.
func (h *hold) Extend(ctx context.Context, d time.Duration) error {
	t := h.acquisition()
	began := time.Now()
	err := t.s.extend(ctx, h, d.Truncate(time.Millisecond))
	if err == nil {
		return nil
	}
	if !errors.Is(err, lock.ErrNotHeld) {
		err = t.s.sender.Failed(ctx, began, err)
	}
	return &lock.Error{Op: "extend", Name: t.spec.Name, Err: err}
}

func (s *Session) extend(ctx context.Context, h *hold, d time.Duration) error {
	switch {
	case d < lock.MinLease:
		return command.Final{Err: fmt.Errorf("%v: must be at least %v", d, lock.MinLease)}
	case d > maxExtension:
		return command.Final{Err: fmt.Errorf("%v: must be at most %v", d, maxExtension)}
	}
	if err := h.over(); err != nil { // before ctx, which can be that of the hold
		return err
	}
	if err := ctx.Err(); err != nil {
		return command.Final{Err: err} // no one was asked
	}
	t := h.acquisition()
	at, err := s.begin(t.spec)
	if err != nil {
		return fmt.Errorf("%w: %w", lock.ErrNotHeld, err)
	}
	defer s.done(at)
	e := &extension{t: t, lease: d}
	at.lock()
	held := slices.Contains(t.Holds(), &h.Hold)
	if held {
		t.MayTake(d) // before it is sent: a lock with a longer lease is not handed off
		t.unconfirmed++
		e.renewal = luascripts.Renewal{Keys: &t.spec.Keys, Owner: t.Name, Slot: t.spec.slot}
	}
	at.unlock()
	if !held {
		return lock.ErrNotHeld // an Unlock was faster
	}
	o := command.SendWithRetry[luascripts.Renewed](ctx, s.sender, time.Now(), s.OpTimeout, e)
	if o.Repeated || o.Err != nil {
		t.unrenewed()
	}
	switch {
	case !o.Answered || o.Err != nil:
		if err := h.over(); err != nil {
			return err
		}
		return o.Err
	case o.Value.Verdict == luascripts.Done:
		e.confirmed()
	default:
		t.lease.Lose(s.gone(t, o.Value.Verdict))
	}
	return h.over()
}

// extension is the command that lengthens a lease: a command.Call.
type extension struct {
	command.Unbatched[luascripts.Renewed]

	t       *acquisition
	lease   time.Duration
	renewal luascripts.Renewal
	sent    time.Time
}

// Send sends the command.
func (e *extension) Send(ctx context.Context) (luascripts.Renewed, error) {
	e.sent = time.Now()
	r := e.t.spec.Renew(ctx, e.t.s.rdb, []luascripts.Renewal{e.renewal}, e.lease, 1)[0]
	return r, r.Err
}

// confirmed tells the lease, which counts from the send.
func (e *extension) confirmed() {
	e.t.lease.Extend(e.sent, e.lease)
	e.t.at.lock()
	defer e.t.at.unlock()
	e.t.unconfirmed-- // last: a lease that ended just before must be released
}

// Late gets the reply for which the call did not wait.
func (e *extension) Late(r luascripts.Renewed, err error) {
	if err == nil && r.Verdict == luascripts.Done {
		e.confirmed()
	}
}

package session

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/lockstate"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
)

// maxExtension keeps lease expiry times from overflowing.
const maxExtension = 100 * 365 * 24 * time.Hour

// Extend extends the lease of h to d from now. It never shortens the lease.
//
// It sends a renewal with a different lease, which is safe to repeat. The server executes it only while the owner has
// the lock, so a delayed duplicate has no effect after a release.
func (h *hold) Extend(ctx context.Context, d time.Duration) error {
	t := h.acquisition()
	began := time.Now()
	err := t.at.s.extend(ctx, h, d)
	if err == nil {
		return nil
	}
	return &lock.Error{Op: "extend", Name: t.spec.Name, Err: t.at.s.holdFailed(ctx, began, err)}
}

func (s *Session) extend(ctx context.Context, h *hold, d time.Duration) error {
	switch {
	case d < lock.MinLease:
		return command.Final{Err: fmt.Errorf("%v: must be at least %v", d, lock.MinLease)}
	case d > maxExtension:
		return command.Final{Err: fmt.Errorf("%v: must be at most %v", d, maxExtension)}
	}
	if err := h.over(); err != nil { // before ctx, which may be the hold's context
		return err
	}
	if ctx.Err() != nil {
		return ofOthers(command.Ended(ctx, 0))
	}
	t := h.acquisition()
	at, err := s.begin(t.spec)
	if err != nil {
		return fmt.Errorf("%w: %w", lock.ErrNotHeld, err)
	}
	defer s.done(at)
	d = d.Truncate(time.Millisecond)
	e := &extension{t: t, lease: d}
	at.lock()
	held := slices.Contains(t.Holds(), &h.Hold)
	if held {
		t.MayTake(d) // before it is sent: a lock with a longer lease is not handed off
		e.renewal = t.renewal()
	}
	phase := t.Phase()
	at.unlock()
	if !held { // it ended in the meantime; after a loss or a Close, its cause may not be set yet
		cause := lock.ErrLost
		if phase == lockstate.Closed {
			cause = lock.ErrClosed
		}
		return cmp.Or(h.over(), fmt.Errorf("%w: %w", lock.ErrNotHeld, cause))
	}
	o := command.SendWithRetry[luascripts.Renewed](ctx, s.sender, s.OpTimeout, e)
	if o.Repeated || o.Err != nil {
		t.markLate()
	}
	switch {
	case o.Err != nil: // there is one if there was no reply
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

// extension is the command that extends a lease. It implements command.Call.
type extension struct {
	command.Unbatched[luascripts.Renewed]

	t       *acquisition
	lease   time.Duration
	renewal luascripts.Renewal
	sent    time.Time
}

// Send sends the renewal with the longer lease.
func (e *extension) Send(ctx context.Context) (luascripts.Renewed, error) {
	e.sent = time.Now()
	r := e.t.spec.Renew(ctx, e.t.at.s.rdb, []luascripts.Renewal{e.renewal}, e.lease, 1)[0]
	return r, r.Err
}

// confirmed extends the local lease, which counts from the time of the send.
func (e *extension) confirmed() {
	e.t.at.lock()
	defer e.t.at.unlock()
	e.t.lease.Extend(e.sent, e.lease)
	if e.t.Lives() { // otherwise it may have extended a lock that was already retained
		e.t.Took()
	}
}

// Late handles the reply after the call has left.
func (e *extension) Late(r luascripts.Renewed, _ error) {
	if r.Verdict == luascripts.Done { // an error has no verdict
		e.confirmed()
	}
}

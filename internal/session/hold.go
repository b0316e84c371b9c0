package session

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/watchdog"
)

// hold is one acquisition, and with holdContext the lock.Hold that callers get.
type hold struct {
	t      *tenure                 // set once
	claim  *claim                  // set once: its owner's
	fixed  bool                    // set once: this hold does not ask for renewals
	inner  context.Context         // set once: under the caller's; ended by end
	cancel context.CancelCauseFunc // set once

	at int // its place in t.holds; guarded by s.mu

	mu    sync.Mutex
	cause error     // why it is over; nil while it is not
	ended time.Time // when
}

var _ lock.Hold = (*hold)(nil)

// newHold makes the next hold of t. Its context is under ctx, which carries the
// owner.
func newHold(ctx context.Context, t *tenure, fixed bool) *hold {
	h := &hold{t: t, claim: t.claim, fixed: fixed}
	h.inner, h.cancel = context.WithCancelCause(ctx)
	return h
}

// end ends the hold with cause and returns nil, or returns why it was over
// before. When it returns, the context is over.
func (h *hold) end(cause error) (before error) {
	h.mu.Lock()
	before = h.cause
	if before == nil {
		h.cause, h.ended = cause, time.Now()
	} else {
		cause = before
	}
	h.mu.Unlock()
	// Without the mutex: cancelling asks the parent context, which may be that
	// of an outer hold, which looks at its lease and may end us. And always: who
	// ended the hold before may not have come this far yet.
	h.cancel(cause)
	return before
}

// look compares the clocks. When the lease is over, it ends the hold itself, and
// does not rely on whoever saw it first to have told everybody.
func (h *hold) look() {
	if h.inner.Err() != nil {
		return
	}
	if cause := h.t.lease.Check(); cause != nil && cause != watchdog.ErrStopped {
		h.end(h.t.lostBy(cause))
	}
}

// Until is the tenure's, but not after the end of this hold.
func (h *hold) Until() time.Time {
	until := h.t.lease.Until()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cause != nil && h.ended.Before(until) {
		return h.ended
	}
	return until
}

func (h *hold) Context() context.Context { return holdContext{h} }
func (h *hold) Err() error               { return context.Cause(holdContext{h}) }
func (h *hold) Token() uint64            { return h.t.token }
func (h *hold) Owner() string            { return h.t.owner }

func (h *hold) Unlock(ctx context.Context) error {
	if err := h.t.s.unlock(ctx, h); err != nil {
		return &lock.Error{Op: "unlock", Name: h.t.spec.Name, Err: err}
	}
	return nil
}

// String says what the hold is of, without its owner: who knows that can
// release the lock.
func (h *hold) String() string { return fmt.Sprintf("hold of %q", h.t.spec.Name) }

// holdContext is a hold's context. Its channel closes on the watchdog's word;
// everything else looks for itself first, so that it is right at once in a
// process that was stopped and whose timers have not fired yet.
type holdContext struct{ h *hold }

// Deadline is the parent's: a lease that is renewed has no end known before.
func (c holdContext) Deadline() (time.Time, bool) { return c.h.inner.Deadline() }

func (c holdContext) Done() <-chan struct{} { return c.h.inner.Done() }

func (c holdContext) Err() error {
	c.h.look()
	return c.h.inner.Err()
}

// Value looks too: before Go 1.26, context.Cause asks a context for nothing else.
func (c holdContext) Value(key any) any {
	c.h.look()
	return c.h.inner.Value(key)
}

func (c holdContext) String() string { return c.h.String() }

package session

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/internal/lockstate"
	"github.com/leasehold-go/leasehold/internal/owner"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/watchdog"
)

// hold is one acquisition, and with holdContext the lock.Hold that callers get.
type hold struct {
	lockstate.Hold                 // guarded by the mutex of its state, except what is set once
	parent         context.Context // set by init: the hold's context is under it
	caller         context.Context // set by init: canceled when the work is to stop; parent, unless untilUnlock
	untilUnlock    bool            // set by init: the hold lasts until Unlock, even after caller is canceled

	limit atomic.Pointer[limit] // when it ends at the latest; nil if there is no limit. Set under the mutex of its state

	// Guarded by the mutex of its state.
	grace    time.Duration // what lock.WithGrace says; 0 is a lease
	canceled bool          // a renewal found caller canceled
	report   time.Time     // when to report that the work is still running; zero if that was done or is not to be done

	// Guarded by mu.
	mu    sync.Mutex
	cause error     // why it is over; nil while it is not
	ended time.Time // when it was over
	call  *call     // the call that it came from; nil while the observer knows nothing of it

	// inner has the channel of the hold's context. Few callers ask for that, so it is nil
	// until one does, or looks at the context after the end.
	inner *inside
}

// inside is a context under the parent of a hold, and its end.
type inside struct {
	context.Context
	cancel context.CancelCauseFunc
}

var _ lock.Hold = (*hold)(nil)

// init makes h a hold under ctx, which the state adds to an acquisition.
func (h *hold) init(ctx context.Context, fixed bool) {
	h.Of, h.Fixed, h.parent, h.caller = h, fixed, ctx, ctx
	if caller, ok := ctx.Value(owner.Caller{}).(context.Context); ok {
		h.caller, h.untilUnlock = caller, true
	}
}

// acquisition returns the acquisition that h belongs to. It does not change after h was added to it.
func (h *hold) acquisition() *acquisition { return acquisitionOf(h.Acquisition) }

// end ends the hold with cause and returns nil, or returns why it was over
// before. When it returns, the context is over.
func (h *hold) end(cause error) (before error) { return h.endAt(cause, time.Now()) }

// endAt is end at this time, which is now.
func (h *hold) endAt(cause error, now time.Time) (before error) {
	if h.parent.Err() != nil {
		h.context() // its context ended before, and has the parent's cause
	}
	h.mu.Lock()
	before = h.cause
	if before == nil {
		h.cause, h.ended = cause, now
	}
	needed := h.inner != nil
	h.mu.Unlock()
	if needed {
		h.context()
	}
	return before
}

// context returns the inside of the hold's context. It has ended if the hold has.
func (h *hold) context() context.Context {
	h.mu.Lock()
	inner, cause := h.inner, h.cause
	h.mu.Unlock()
	if inner == nil {
		parent := h.parent
		if cause != nil {
			parent = context.WithoutCancel(parent) // which may have ended since
		}
		// Without the mutex: this asks the parent, which may be the context of an outer
		// hold, which looks at its lease and may end us. So does cancelling.
		made := new(inside)
		made.Context, made.cancel = context.WithCancelCause(parent)
		h.mu.Lock()
		if h.inner == nil {
			h.inner = made
		}
		inner, cause = h.inner, h.cause
		h.mu.Unlock()
		if inner != made {
			made.cancel(nil) // another goroutine was faster
		}
	}
	if cause == lock.ErrUnlocked {
		cause = h.acquisition().wrap(cause) // not at each Unlock: few callers look
	}
	if cause != nil {
		inner.cancel(cause)
	}
	return inner
}

// now returns the context that the hold's context equals at this moment: the parent, while
// no one can tell the difference.
func (h *hold) now() context.Context {
	h.look(time.Now())
	h.mu.Lock()
	differs := h.inner != nil || h.cause != nil
	h.mu.Unlock()
	if differs {
		return h.context()
	}
	return h.parent
}

// look compares the clocks, at the time that it is now. If the lease is over, look ends the hold,
// as the goroutine that saw the end first may not have told all holds yet.
func (h *hold) look(now time.Time) {
	h.mu.Lock()
	over := h.cause != nil
	h.mu.Unlock()
	if over {
		return
	}
	if l := h.limit.Load(); l != nil && watchdog.Passed(l.end) {
		h.end(h.acquisition().lostBy(l.cause))
		return
	}
	if cause := h.acquisition().lease.CheckAt(now); cause != nil && cause != watchdog.ErrStopped {
		h.end(h.acquisition().lostBy(cause))
	}
}

// Until returns the end of the lease, or the end of this hold or its limit if that is sooner.
func (h *hold) Until() time.Time {
	until := h.acquisition().lease.Until()
	if l := h.limit.Load(); l != nil && l.end.Before(until) {
		until = l.end
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cause != nil && h.ended.Before(until) {
		return h.ended
	}
	return until
}

func (h *hold) Context() context.Context { return holdContext{h} }
func (h *hold) Token() uint64            { return h.acquisition().Token() }
func (h *hold) Owner() string            { return h.acquisition().Name }

// Err returns why the hold is over. A loss is reported even after the context was canceled, which keeps its first cause.
func (h *hold) Err() error {
	ctx := h.now() // of one moment: the hold may end between two looks
	h.mu.Lock()
	cause := h.cause
	h.mu.Unlock()
	if cause != nil && cause != lock.ErrUnlocked {
		return cause
	}
	return context.Cause(ctx)
}

func (h *hold) Unlock(ctx context.Context) error {
	if err := h.acquisition().s.unlock(ctx, h); err != nil {
		return &lock.Error{Op: "unlock", Name: h.acquisition().spec.Name, Err: err}
	}
	return nil
}

// String names the lock, and not the owner: a reader of a log that knows the owner can
// release the lock.
func (h *hold) String() string { return fmt.Sprintf("hold of %q", h.acquisition().spec.Name) }

// holdContext is a hold's context. Its channel closes when the watchdog says so. All other
// methods look at the clocks first, so that they are right at once in a process that was
// stopped and whose timers have not fired yet.
type holdContext struct{ h *hold }

// Deadline returns the parent's: the end of a lease that is renewed is not known before.
func (c holdContext) Deadline() (time.Time, bool) { return c.h.parent.Deadline() }

func (c holdContext) Done() <-chan struct{} { return c.h.context().Done() }

func (c holdContext) Err() error { return c.h.now().Err() }

// Value looks too: before Go 1.26, context.Cause asks a context for nothing else.
func (c holdContext) Value(key any) any {
	if _, ok := key.(owner.Key); ok && !c.h.acquisition().spec.NonReentrant {
		return c.h.By.Number
	}
	return c.h.now().Value(key)
}

func (c holdContext) String() string { return c.h.String() }

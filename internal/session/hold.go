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

// hold implements lock.Hold: one hold of an acquisition. Its context is a holdContext.
type hold struct {
	lockstate.Hold                 // guarded by the mutex of its state, except fields that are set once
	parent         context.Context // set by init: the parent of the hold's context
	async          bool            // set by init: lock.WithAsyncUnlock

	limits atomic.Pointer[limits] // nil if there are none; set by init or under the mutex of its state, then constant

	// Guarded by mu.
	mu    sync.Mutex
	cause error     // why the hold ended; nil while it is held
	ended time.Time // when the hold ended
	call  *call     // the call that acquired it; nil until the observer is notified of the grant or the end is recorded

	// inner is the context with the Done channel of the hold's context. It is created on demand, because few callers
	// use the channel or check the context after the hold has ended.
	inner *inside
}

// inside is a child of the parent context of a hold, with its cancel function.
type inside struct {
	context.Context
	cancel context.CancelCauseFunc
}

var _ lock.Hold = (*hold)(nil)

func holdOf(h *lockstate.Hold) *hold { return h.Of.(*hold) }

// init initializes h for the caller c, which acquires it by spec. The state then adds h to an acquisition.
func (h *hold) init(c caller, spec *Spec) {
	h.Of, h.Fixed, h.parent, h.async = h, spec.terms.Fixed, c.ctx, spec.Config.AsyncUnlock
	if c.until != nil || spec.Config.Grace > 0 { // mutant: always, border: memory
		h.limits.Store(&limits{caller: c.until, grace: spec.Config.Grace})
	}
}

// acquisition returns the acquisition of h. It does not change after h was added to it.
func (h *hold) acquisition() *acquisition { return acquisitionOf(h.Acquisition) }

// end ends the hold with cause and cancels its context. If the hold has already ended, it returns the earlier cause.
func (h *hold) end(cause error) (before error) { return h.endAt(cause, time.Now()) }

// endAt is end with the current time passed in.
func (h *hold) endAt(cause error, now time.Time) (before error) {
	if h.parent.Err() != nil { // mutant: always: speed
		h.context() // keeps the cause of the parent, which was canceled first
	}
	h.mu.Lock()
	before = h.cause
	if before == nil {
		h.cause, h.ended = cause, now
	}
	needed := h.inner != nil // mutant: always: speed
	h.mu.Unlock()
	if needed { // mutant: always: speed
		h.context()
	}
	return before
}

// context returns inner, and creates it if needed. It is canceled if the hold has ended.
func (h *hold) context() context.Context {
	h.mu.Lock()
	inner, cause := h.inner, h.cause
	h.mu.Unlock()
	if inner == nil { // mutant: always: speed
		parent := h.parent
		if cause != nil {
			parent = context.WithoutCancel(parent) // which may have been canceled since
		}
		// Without the mutex: this calls the parent's Err. The parent may be the context of an outer hold, which checks
		// its lease and may end this hold. The same holds for canceling.
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
		cause = h.acquisition().wrap(cause) // wrapped here and not in Unlock, because few callers check the cause
	}
	if cause != nil {
		inner.cancel(cause)
	}
	return inner
}

// current checks the lease and returns the context to which holdContext delegates: the parent if inner is not needed yet,
// otherwise inner.
func (h *hold) current() context.Context {
	h.check(time.Now())
	h.mu.Lock()
	differs := h.inner != nil || h.cause != nil // mutant: always: speed
	h.mu.Unlock()
	if differs { // mutant: always: speed
		return h.context()
	}
	return h.parent
}

// check ends the hold if its limit or its lease has passed; now is the current time. The goroutine that detected the
// expiry first may not have ended all holds yet.
func (h *hold) check(now time.Time) {
	h.mu.Lock()
	over := h.cause != nil // mutant: never: end keeps the first cause
	h.mu.Unlock()
	if over { // mutant: never: end keeps the first cause
		return
	}
	if l := h.limit(); l != nil && watchdog.Passed(l.end) {
		h.end(h.acquisition().lostBy(l.cause))
		return
	}
	if cause := h.acquisition().lease.CheckAt(now); cause != nil && cause != watchdog.ErrStopped {
		h.end(h.acquisition().lostBy(cause))
	}
}

// Until returns when the lease expires, or when the hold or its limit ends if that is earlier.
func (h *hold) Until() time.Time {
	until := h.acquisition().lease.Until()
	if l := h.limit(); l != nil {
		if end := watchdog.Earlier(l.end); end.Before(until) {
			until = end
		}
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

// Err returns why the hold ended. It reports a loss even if the context was canceled before; the context keeps its first
// cause.
func (h *hold) Err() error {
	ctx := h.current() // checked once, because the hold may end between two checks
	h.mu.Lock()
	cause := h.cause
	h.mu.Unlock()
	if cause != nil && cause != lock.ErrUnlocked {
		return cause
	}
	return context.Cause(ctx)
}

func (h *hold) Unlock(ctx context.Context) error {
	if ctx == nil {
		panic("leasehold: nil context") // now, while the hold can still be unlocked
	}
	if err := h.acquisition().at.s.unlock(ctx, h, !h.async); err != nil {
		return h.unlockError(err)
	}
	return nil
}

func (h *hold) unlockError(err error) error {
	return &lock.Error{Op: "unlock", Name: h.acquisition().spec.Name, Err: err}
}

// String omits the owner: a reader of a log who knows the owner string can release the lock.
func (h *hold) String() string { return fmt.Sprintf("hold of %q", h.acquisition().spec.Name) }

// holdContext is a hold's context. Its channel is closed when the watchdog detects the end. All other methods check the
// lease first, so they detect an expiry even if the process was paused and its timers have not fired.
type holdContext struct{ h *hold }

// Deadline returns the parent's deadline, because the expiry of a renewed lease is not known in advance.
func (c holdContext) Deadline() (time.Time, bool) { return c.h.parent.Deadline() }

func (c holdContext) Done() <-chan struct{} { return c.h.context().Done() }

func (c holdContext) Err() error { return c.h.current().Err() }

// Value also checks the lease, because before Go 1.26 context.Cause calls only Value.
func (c holdContext) Value(key any) any {
	switch key.(type) {
	case owner.Key:
		if !c.h.acquisition().spec.NonReentrant {
			return c.h.By.Number
		}
	case owner.Hold:
		return c.h
	}
	return c.h.current().Value(key)
}

func (c holdContext) String() string { return c.h.String() }

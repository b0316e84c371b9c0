package multilock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
)

// Holds returns the holds that h is made of. For a hold of a [Lock], that is one hold for each
// lock, in the order in which the locks were given to [New]. For a hold of a [Quorum], it is one
// hold for each lock that it has now. For any other hold, it returns that hold.
//
// The members have the tokens and the owners. They belong to h, so unlock h, not its members.
func Holds(h lock.Hold) []lock.Hold {
	if several, ok := h.(interface{ holds() []lock.Hold }); ok {
		return several.holds()
	}
	return []lock.Hold{h}
}

// term is the part that all holds of this package share: a context, and the cause of its end. The
// context calls check before it replies, so it is correct immediately in a process that was paused
// and whose timers have not fired yet.
type term struct {
	name   string                  // set once: of the lock
	inner  context.Context         // set once: derived from the caller's; canceled by end
	cancel context.CancelCauseFunc // set once
	check  func()                  // set once: ends the term if its lease has expired

	mu    sync.Mutex
	cause error     // why it has ended; nil while it has not
	ended time.Time // when it ended
}

func newTerm(ctx context.Context, name string, check func()) *term {
	t := &term{name: name, check: check}
	t.inner, t.cancel = context.WithCancelCause(ctx)
	return t
}

// end ends the term with cause and returns nil. If the term had ended before, it returns the earlier
// cause. When it returns, the context is canceled.
func (t *term) end(cause error) (before error) {
	t.mu.Lock()
	before = t.cause
	if before == nil {
		t.cause, t.ended = cause, time.Now()
	} else {
		cause = before
	}
	t.mu.Unlock()
	t.cancel(cause) // without the mutex: it may call a context that calls this one
	return before
}

// endCause returns why the term has ended, or nil if it has not.
func (t *term) endCause() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cause
}

// notHeld returns the error of a call that needs the hold, or nil if the term has not ended.
func (t *term) notHeld() error {
	t.check()
	cause := t.endCause()
	if e, ok := cause.(*lock.Error); ok && e.Name == t.name { // mutant: never: text
		cause = e.Err // the caller adds the name
	}
	switch {
	case cause == nil:
		return nil
	case errors.Is(cause, lock.ErrUnlocked):
		return fmt.Errorf("%w: already unlocked", lock.ErrNotHeld)
	default:
		return fmt.Errorf("%w: %w", lock.ErrNotHeld, cause)
	}
}

// err returns why the term has ended. It reports a loss even if the context was canceled before,
// although the context keeps its first cause.
func (t *term) err() error {
	t.check()
	if cause := t.endCause(); cause != nil && !errors.Is(cause, lock.ErrUnlocked) {
		return cause
	}
	return context.Cause(t.inner)
}

// until returns u or, if that is earlier, the time at which the term ended.
func (t *term) until(u time.Time) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cause != nil && t.ended.Before(u) {
		return t.ended
	}
	return u
}

// termContext is the context of a term.
type termContext struct {
	t *term
	h lock.Hold // of the term
}

func (c termContext) Deadline() (time.Time, bool) { return c.t.inner.Deadline() }

func (c termContext) Done() <-chan struct{} { return c.t.inner.Done() }

func (c termContext) Err() error {
	c.t.check()
	return c.t.inner.Err()
}

// Value calls check, too, because context.Cause calls no other method before Go 1.26.
func (c termContext) Value(key any) any {
	if _, ok := key.(lockimpl.HoldKey); ok {
		return c.h
	}
	c.t.check() // mutant: removed: Go 1.26 calls Err
	return c.t.inner.Value(key)
}

// hold is a hold of a Lock.
type hold struct {
	m       *Lock           // set once
	term    *term           // set once
	members []lock.Hold     // set once: one for each lock
	caller  context.Context // set once: the parent context of the term and of the members' holds

	unlocked atomic.Bool
}

var _ lock.Hold = (*hold)(nil)

// newHold returns a hold under ctx, which carries the owner.
func newHold(ctx context.Context, m *Lock, members []lock.Hold) *hold {
	h := &hold{m: m, members: members, caller: ctx}
	h.term = newTerm(ctx, m.Name(), h.check)
	for _, one := range members {
		context.AfterFunc(one.Context(), h.check)
	}
	return h
}

// check calls Err of all members, which compares their leases with the clock. The cancellation of
// the caller's context does not end the hold: the members are kept until Unlock.
func (h *hold) check() {
	if h.term.endCause() != nil { // mutant: never: speed
		return
	}
	for _, one := range h.members {
		// The cause is read after Err, because the context may be canceled in between.
		// mutant: operand 1: without a cancellation, nil matches the cause
		if cause := one.Err(); cause != nil && !errors.Is(cause, context.Cause(h.caller)) {
			h.term.end(cause)
			return
		}
	}
}

// Until returns the earliest Until of the members.
func (h *hold) Until() time.Time {
	until := h.members[0].Until()
	for _, one := range h.members[1:] {
		if u := one.Until(); u.Before(until) {
			until = u
		}
	}
	return h.term.until(until)
}

func (h *hold) Context() context.Context { return termContext{h.term, h} }
func (h *hold) Err() error               { return h.term.err() }
func (h *hold) Token() uint64            { return 0 }
func (h *hold) Owner() string            { return "" }
func (h *hold) holds() []lock.Hold       { return slices.Clone(h.members) }
func (h *hold) String() string           { return fmt.Sprintf("hold of %q", h.term.name) }

// Extend extends the leases of all members, at the same time.
func (h *hold) Extend(ctx context.Context, d time.Duration) error {
	err := h.term.notHeld()
	if err == nil && ctx.Err() != nil {
		err = canceledHold(ctx)
	}
	if err != nil {
		return &lock.Error{Op: "extend", Name: h.term.name, Err: err}
	}
	errs := make([]error, len(h.members))
	var wg sync.WaitGroup
	for i, one := range h.members {
		wg.Go(func() {
			if err := one.Extend(ctx, d); err != nil {
				errs[i] = withName("extend", h.m.locks[i], err)
			}
		})
	}
	wg.Wait()
	h.check()
	return errors.Join(errs...)
}

// Unlock releases all members, even if some of the releases fail.
func (h *hold) Unlock(ctx context.Context) error {
	if ctx == nil {
		panic("leasehold: nil context") // now, while the hold can still be unlocked
	}
	h.check()
	h.term.end(&lock.Error{Op: "hold", Name: h.term.name, Err: lock.ErrUnlocked})
	if h.unlocked.Swap(true) {
		return &lock.Error{Op: "unlock", Name: h.term.name, Err: h.term.notHeld()}
	}
	return errors.Join(h.release(ctx)...)
}

// release unlocks all members at the same time. The first of a batch is released last: a caller
// that acquires a batch waits for the first lock that another owner has, and should find the others
// free when it acquires that one. If a server does not respond, the call waits only once for the
// operation timeout.
func (h *hold) release(ctx context.Context) []error {
	if !h.m.batch {
		return unlockAll(ctx, h.m.locks, h.members)
	}
	if ctx.Err() != nil { // a deferred Unlock must also work after ctx is canceled
		ctx = context.WithoutCancel(ctx)
	}
	first, others := h.m.order[0], h.holds()
	others[first] = nil
	errs := unlockAll(ctx, h.m.locks, others)
	l, one := h.m.locks[first:first+1], h.members[first:first+1]
	switch {
	case ctx.Err() != nil: // ctx was canceled, so the call returns now
		_ = releaseHolds(ctx, l, slices.Clone(one))
		errs[first] = &lock.Error{Op: "unlock", Name: l[0].Name(), Err: canceledHold(ctx)}
	case slices.ContainsFunc(errs, func(err error) bool { return errors.Is(err, lock.ErrUnavailable) }):
		errs[first] = unlockWithin(ctx, l, one)[0] // the others have waited for the operation timeout
	default:
		errs[first] = unlockAll(ctx, l, one)[0]
	}
	return errs
}

// unlockAll unlocks all holds at the same time, so that a slow one does not delay
// the others, and returns the errors of each, which name the lock.
func unlockAll(ctx context.Context, locks []lock.Locker, holds []lock.Hold) []error {
	errs := make([]error, len(holds))
	var wg sync.WaitGroup
	for i, h := range holds {
		if h != nil {
			wg.Go(func() {
				if err := h.Unlock(ctx); err != nil {
					errs[i] = withName("unlock", locks[i], err)
				}
			})
		}
	}
	wg.Wait()
	return errs
}

// grace is how long a failed call waits until Redis confirms the release of what it had acquired.
const grace = 200 * time.Millisecond

// releaseHolds unlocks the holds that are not nil and clears holds, even after ctx is canceled. It
// waits until the servers have confirmed the releases, ctx is canceled, or the grace period is
// over. Releases then continue in the background, as lock.Hold documents. The error names what was
// not confirmed in time. A lost hold is not an error, because there is nothing to release.
func releaseHolds(ctx context.Context, locks []lock.Locker, holds []lock.Hold) error {
	acquired := slices.Clone(holds)
	clear(holds)
	confirmed := make(chan error, 1)
	go func() {
		errs := unlockWithin(context.WithoutCancel(ctx), locks, acquired)
		for i, err := range errs {
			if errors.Is(err, lock.ErrNotHeld) {
				errs[i] = nil
			}
		}
		confirmed <- errors.Join(errs...)
	}()
	select {
	case err := <-confirmed:
		return err
	case <-ctx.Done():
		return nil
	}
}

// unlockWithin is unlockAll for at most the grace period. If that limit ends a release, the error is
// unconfirmed, because the caller's context was not canceled.
func unlockWithin(ctx context.Context, locks []lock.Locker, holds []lock.Hold) []error {
	within, cancel := context.WithTimeoutCause(ctx, grace, unconfirmed{})
	defer cancel() // mutant: removed: memory
	errs := unlockAll(within, locks, holds)
	for i, err := range errs {
		if context.Cause(within) == error(unconfirmed{}) && errors.Is(err, within.Err()) {
			errs[i] = withName("unlock", locks[i], unconfirmed{})
		}
	}
	return errs
}

// unconfirmed is the error of a release that continues in the background.
type unconfirmed struct{}

// Error reports how long the call waited.
func (unconfirmed) Error() string { return fmt.Sprintf("not confirmed within %v", grace) }

// releaseFailed reports whether err, which releaseHolds returned, contains a failed release. A
// release that is only slow does not count.
func releaseFailed(err error) bool {
	all, ok := err.(interface{ Unwrap() []error })
	return ok && slices.ContainsFunc(all.Unwrap(), func(err error) bool { return !errors.As(err, new(unconfirmed)) })
}

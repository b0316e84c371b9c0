package lock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/mask"
	"github.com/leasehold-go/leasehold/internal/owner"
)

// UntilUnlock returns a Locker for l whose holds last until Unlock. They last even after the
// context given to Lock or TryLock is canceled, because that context cancels only the wait. Use it
// if something calls Unlock reliably when the work is done, such as a framework. [Do] needs no
// UntilUnlock. Wrap a whole multi-lock or quorum, not its members, because a multi-lock checks what its
// members support.
//
// [WithMaxHold], counted from the grant, and [WithFixedLease] bound the hold. Closing the client
// ends it. [WithGrace] does not end it. After that time the client reports once that the work is
// still running (see [Observer]). A hold that is never unlocked blocks all other owners for as long
// as its process lives.
func UntilUnlock(l Locker) Locker {
	if u, ok := l.(untilUnlock); ok {
		return u // a second one would pass a context that is never canceled as the caller's
	}
	return untilUnlock{l}
}

type untilUnlock struct{ Locker }

func (l untilUnlock) Lock(ctx context.Context) (Hold, error) {
	return l.acquire(ctx, "lock", l.Locker.Lock)
}

func (l untilUnlock) TryLock(ctx context.Context) (Hold, error) {
	return l.acquire(ctx, "trylock", l.Locker.TryLock)
}

func (l untilUnlock) acquire(ctx context.Context, op string, acquire func(context.Context) (Hold, error)) (Hold, error) {
	if ctx.Done() == nil {
		return acquire(ctx) // never canceled
	}
	wait := newRelay(ctx, ctx, true, ctx)
	acquired := false
	defer func() {
		if !acquired {
			wait.release() // even if acquire panics
		}
	}()
	h, err := acquire(wait)
	if err != nil {
		return nil, err
	}
	wait.check()
	if acquired = wait.release(); !acquired { // canceled just after the grant, perhaps with the hold's context
		return nil, errors.Join(&Error{Op: op, Name: l.Name(), Err: mask.Canceled(ctx, ErrNotAcquired, ErrUnavailable)}, h.Unlock(ctx))
	}
	return h, nil
}

// HoldFromContext returns the hold under which a function runs, or nil if there is none. It works
// for functions of [Do], [TryDo], and every other call of this module that locks for a function.
// Pass it the context of the function. Given the Context of a hold, it returns that hold. If locks
// are nested, it returns the innermost one.
//
// The context of the function is canceled with the caller's, and the lock stays held until the
// function has returned. A function that still has work to do after the cancellation checks Err of
// the hold. Err returns nil while the lock is held, and an error that matches [ErrLost] after a
// loss. Do not unlock or downgrade the hold, because it belongs to the caller of the function.
func HoldFromContext(ctx context.Context) Hold {
	h, _ := ctx.Value(owner.Hold{}).(Hold)
	return h
}

// workContext returns the context of the work under h for a caller with ctx. It is canceled with ctx, and when h ends. release
// frees its resources once h has ended.
func workContext(ctx context.Context, h Hold) (work context.Context, release func()) {
	held := h.Context()
	work = context.WithValue(held, owner.Hold{}, h)
	if ctx.Done() == nil {
		return work, func() {}
	}
	r := newRelay(work, ctx, false, held, ctx)
	return r, func() {
		r.check()
		r.release()
	}
}

// relay is a context that is canceled when any of several other contexts is, with the same error and cause, until it is released.
// The standard library can derive a context from only one other, and cannot release it. Err checks the others itself, because a
// process that was just resumed may process the cancellation of a hold's context late.
type relay struct {
	context.Context // the values; and the cause after the cancellation, because context.Cause calls Value
	cancel          context.CancelCauseFunc
	done            chan struct{}
	caller          context.Context
	acquires        bool // passed to Lock by UntilUnlock; false for the context of the work

	mu       sync.Mutex
	err      error             // why it is canceled; nil while it is not
	released bool              // it can no longer be canceled
	others   []context.Context // nil after the cancellation or the release
	stops    []func() bool     // stop listening to others
}

// newRelay returns a relay with the values of values. It is canceled when any of the other contexts is.
func newRelay(values, caller context.Context, acquires bool, others ...context.Context) *relay {
	r := &relay{done: make(chan struct{}), caller: caller, acquires: acquires, others: others}
	r.Context, r.cancel = context.WithCancelCause(context.WithoutCancel(values))
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, other := range others {
		r.stops = append(r.stops, context.AfterFunc(other, r.check))
	}
	return r
}

// check cancels r if one of the others is canceled.
func (r *relay) check() {
	r.mu.Lock()
	others := r.others
	r.mu.Unlock()
	for _, other := range others { // without the mutex: a hold's context runs code of its lock
		if err := other.Err(); err != nil {
			r.end(err, context.Cause(other))
			return
		}
	}
}

// end cancels r, unless it is canceled or released already.
func (r *relay) end(err, cause error) {
	r.mu.Lock()
	if r.others == nil {
		r.mu.Unlock()
		return
	}
	r.err, r.others = err, nil
	r.cancel(cause) // with the mutex, so that Err and Cause agree: contexts under r are canceled by other goroutines
	close(r.done)
	stops := r.stops
	r.mu.Unlock()
	for _, stop := range stops {
		stop()
	}
}

// release makes sure that r is never canceled from now on. It reports whether r had not been canceled yet.
func (r *relay) release() bool {
	r.mu.Lock()
	alive, stops := r.err == nil, r.stops
	r.others, r.released = nil, true
	r.mu.Unlock()
	for _, stop := range stops {
		stop()
	}
	return alive
}

// Deadline returns the deadline of the caller's context for work. For a wait it returns none,
// because a Locker could mistake it for the end of the hold.
func (r *relay) Deadline() (deadline time.Time, ok bool) {
	if r.acquires {
		return deadline, false
	}
	return r.caller.Deadline()
}

func (r *relay) Done() <-chan struct{} { return r.done }

func (r *relay) Err() error {
	r.check()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Value checks the hold as well: before Go 1.26, context.Cause calls no other method.
func (r *relay) Value(key any) any {
	r.check()
	if _, ok := key.(owner.Caller); ok && r.acquires {
		r.mu.Lock()
		released := r.released
		r.mu.Unlock()
		if !released { // after the release, Caller would apply to locks acquired under the hold
			return r.caller
		}
	}
	return r.Context.Value(key)
}

// AfterFunc is for contexts derived from r: package context calls it instead of waiting for Done in
// a goroutine.
func (r *relay) AfterFunc(f func()) (stop func() bool) { return context.AfterFunc(r.Context, f) }

func (r *relay) String() string { return fmt.Sprint(r.Context) }

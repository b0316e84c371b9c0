// Package bridge makes it safe to migrate from another lock library to leasehold while old and new
// processes run together. Locks of two libraries do not exclude each other, because they use
// different keys. A bridge acquires both locks, the old one first.
//
//  1. All processes use the old lock.
//  2. Replace them with processes that use a bridge. They exclude the remaining old ones, and each
//     other.
//  3. When no old process is left, replace them with processes that use only leasehold's lock.
//
// Processes of the first and the third step must never run together. An old process and one with
// only leasehold's lock do not exclude each other. To go back, take the steps in reverse order.
//
// The names must differ, because redsync and redislock store a string where leasehold stores a
// hash. Use a prefix for leasehold's locks, such as client.WithKeyPrefix("leasehold:").
package bridge

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

// OldLock is a lock of another library.
type OldLock interface {
	// Lock waits until the lock is held or ctx is canceled, even while Redis is unavailable. It
	// returns permanent errors, such as a missing permission, immediately. The returned context is
	// canceled when the lock is lost, as far as the library reports it. The returned unlock releases
	// the lock.
	//
	// If ctx is canceled first, the error matches ctx.Err(). As far as the library reports it, the
	// error also matches lock.ErrNotAcquired if another owner had the lock, or lock.ErrUnavailable
	// if Redis was unavailable. It never matches both.
	Lock(ctx context.Context) (held context.Context, unlock func(context.Context) error, err error)

	// TryLock is Lock for a caller that does not wait. The error matches lock.ErrNotAcquired if
	// another owner has the lock, and lock.ErrUnavailable if Redis is unavailable.
	TryLock(ctx context.Context) (held context.Context, unlock func(context.Context) error, err error)
}

// ErrOldLockLost is the cause of the context if the old lock was lost.
var ErrOldLockLost = errors.New("lock of the old library lost")

// releaseTime limits the release of the old lock after the caller's context is canceled.
const releaseTime = 3 * time.Second

// Do acquires old and then l, calls fn, and releases both, even if fn panics. The context of fn is
// canceled as soon as one of them can no longer be guaranteed, and when ctx is canceled. Both are
// held until fn has returned, as for [lock.Do]. The order is the same for all callers, so they
// cannot deadlock.
//
// The old lock has its own limits. Hold.Until and Hold.Extend of the hold apply to l only. The
// bridge or the old library extends the old lock. A loss of the old lock is detected by a timer,
// and not by the check in Hold.Err, so a process that was suspended detects it a moment late. l
// must not be a lock of lock.UntilUnlock, whose context does not end with the old lock.
//
// If fn was not called, the error is the error of acquiring a lock. Otherwise it joins the errors
// of fn and of releasing the locks. If ctx was canceled while Do waited, it matches ctx.Err(), and
// lock.ErrNotAcquired if another owner had the lock.
func Do(ctx context.Context, old OldLock, l lock.Locker, fn func(ctx context.Context) error) error {
	return lock.Do(ctx, both{l, old}, fn)
}

// TryDo is Do for a caller that does not wait. If another owner has one of the locks, TryDo does
// not call fn, and the error matches lock.ErrNotAcquired. If Redis is unavailable, it matches
// lock.ErrUnavailable.
func TryDo(ctx context.Context, old OldLock, l lock.Locker, fn func(ctx context.Context) error) error {
	return lock.TryDo(ctx, both{l, old}, fn)
}

// both acquires the old lock first, and then the new one.
type both struct {
	lock.Locker
	old OldLock
}

func (b both) Lock(ctx context.Context) (lock.Hold, error) {
	return b.acquire(ctx, b.old.Lock, b.Locker.Lock)
}

func (b both) TryLock(ctx context.Context) (lock.Hold, error) {
	return b.acquire(ctx, b.old.TryLock, b.Locker.TryLock)
}

func (b both) acquire(ctx context.Context, acquireOld func(context.Context) (context.Context, func(context.Context) error, error), acquire func(context.Context) (lock.Hold, error)) (h lock.Hold, err error) {
	held, unlock, err := acquireOld(ctx)
	if err != nil {
		return nil, fmt.Errorf("bridge: the old lock: %w", err)
	}
	release := func(ctx context.Context) error {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
		defer cancel()
		if err := unlock(within); err != nil {
			return fmt.Errorf("bridge: the old lock: %w", err)
		}
		return nil
	}
	defer func() {
		if h == nil { // even if acquire panics
			err = errors.Join(err, release(ctx))
		}
	}()
	inner, err := acquire(held)
	if err != nil {
		return nil, err
	}
	return bothHold{inner, release}, nil
}

// bothHold is a hold of both locks. The hold of the new lock is under the context of the old one, so it reports the loss
// of either.
type bothHold struct {
	lock.Hold
	releaseOld func(context.Context) error
}

func (h bothHold) Unlock(ctx context.Context) error {
	err := h.Hold.Unlock(ctx)
	return errors.Join(err, h.releaseOld(ctx))
}

// MinHold returns a function that calls fn, and keeps both locks for at least d even if fn returns
// sooner. Use it for jobs whose old processes let the lock expire so that no other process repeats
// them in the same minute. lock.WithMinHold does not apply to the lock of the old library. If ctx
// is canceled, both locks are released.
func MinHold(d time.Duration, fn func(ctx context.Context) error) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		over := time.NewTimer(d)
		defer over.Stop()
		err := fn(ctx)
		select {
		case <-over.C:
		case <-ctx.Done():
		}
		return err
	}
}

// trusted returns until when a lease requested at sent is guaranteed. It subtracts a tenth for clock drift.
func trusted(sent time.Time, lease time.Duration) time.Time { return sent.Add(lease - lease/10) }

// keep extends a lock every third of its lease, until stop is called, which also cancels the context. The context is
// canceled earlier if another owner has the lock. It is also canceled at until, which each extension moves, because
// the lease may expire soon after.
func keep(ctx context.Context, lease time.Duration, until time.Time, extend func(context.Context) error) (held context.Context, stop func()) {
	held, cancel := context.WithCancelCause(ctx)
	var last atomic.Pointer[error]                    // the latest error of extend
	end := time.AfterFunc(time.Until(until), func() { // with a timer, because extend can take longer than its context
		err := errors.New("not extended in time")
		if e := last.Load(); e != nil {
			err = *e
		}
		cancel(fmt.Errorf("%w: %w", ErrOldLockLost, err))
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer end.Stop()
		tick := time.NewTicker(lease / 3)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-held.Done():
				return
			}
			sent := time.Now()
			within, cut := context.WithDeadline(held, until)
			err := extend(within)
			cut()
			switch {
			case held.Err() != nil:
				return
			case err == nil:
				until = trusted(sent, lease)
				end.Reset(time.Until(until))
			case errors.Is(err, errGone):
				cancel(fmt.Errorf("%w: %w", ErrOldLockLost, err))
				return
			default:
				last.Store(&err)
			}
		}
	}()
	return held, func() {
		cancel(context.Canceled)
		<-done
	}
}

// errGone means that another owner has the old lock by now.
var errGone = errors.New("not held")

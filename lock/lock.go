package lock

import (
	"context"
	"errors"
	"time"
)

// Locker is a lock of any type.
//
// A Locker is a name and a way to lock it. Creating one sends no command. It is safe for concurrent
// use, and goroutines that share one exclude each other, unless its type admits several holders or
// they share an owner. It is not a [sync.Locker], because Lock can fail, and only the returned
// [Hold] can be unlocked.
type Locker interface {
	// Name returns the name as the caller gave it.
	Name() string

	// Lock waits until the lock is held or ctx is canceled. If ctx is canceled first, the error
	// matches ctx.Err() and context.Cause(ctx), and what the call did on the server is undone. The
	// error also matches [ErrNotAcquired] if another owner has the lock, or [ErrUnavailable] if Redis
	// failed to reply. It never matches both. It matches neither if ctx was canceled before any reply.
	Lock(ctx context.Context) (Hold, error)

	// TryLock makes one attempt and does not wait for another owner, except for at most 250 ms for a
	// client that may keep the lock: see [WithLinger]. It fails with [ErrNotAcquired] if another owner
	// has the lock, or another caller of this process is ahead. It fails with [ErrUnavailable] if Redis
	// is unavailable.
	TryLock(ctx context.Context) (Hold, error)
}

// Hold is one acquisition of a lock. Each Lock returns its own Hold, even when it re-enters, and
// each Hold releases exactly what it acquired, once. All methods are safe for concurrent use. Only
// Unlock and Extend send commands.
type Hold interface {
	// Context returns a context derived from the one given to Lock. It carries the owner, so locking
	// the same name under it re-enters. It is canceled as soon as the lock can no longer be
	// guaranteed. Its Err method compares the clock on every call. [context.Cause] returns an error
	// that matches [ErrLost], [ErrUnlocked] or [ErrClosed], or the cause of the parent context.
	//
	// Canceling the context given to Lock does not unlock. A hold that is not unlocked after that
	// is renewed for one more lease (see [WithGrace]), and is then lost. If that context is never
	// canceled, a hold that is not unlocked is renewed until its client is closed. Holds of [Do] and
	// [UntilUnlock] last until Unlock, and their contexts are not canceled with that context. The
	// context that Do passes to its function is canceled with the caller's. A function that must
	// finish its work therefore uses HoldFromContext(ctx).Context(), the context of its hold.
	//
	// A context derived from it with a new deadline or cancel function is canceled by another
	// goroutine, which may not have run yet in a process that was just resumed. Only this context,
	// and contexts that merely add values to it, are correct immediately.
	Context() context.Context

	// Unlock releases this hold. It works even after ctx is canceled. If ctx is canceled during the
	// call, Unlock returns early and the release continues in the background.
	//
	// Unlock fails with [ErrNotHeld] if this hold was released before or was lost. If it was lost, the
	// error also matches [ErrLost]. Unlock never touches the lock of another owner. Any other error
	// means that Redis did not confirm the release. The hold has ended anyway, and the release is
	// repeated in the background. The lock is free no later than when the lease expires.
	//
	// With [WithAsyncUnlock], Unlock does not wait for Redis. The log and the [Observer] report what it
	// would have returned.
	//
	// If other callers of the same client wait for a plain or fair lock, Unlock can hand it to the next
	// one without a command to Redis. With [WithLinger], Unlock can keep the lock without a command. A
	// loss that has not been detected yet is then not an error of this hold. The next holder detects it.
	Unlock(ctx context.Context) error

	// Extend extends the lease to d from now, unless it already lasts longer. After that, Until
	// is at least d after the call began, less the margin for clock drift.
	//
	// A hold with [WithFixedLease] gets more time this way. A renewed hold needs Extend only before a
	// time without renewals, such as a planned pause of its process. If the process dies then, the
	// lock stays locked for the rest of d. [WithMaxHold] still bounds the hold.
	//
	// Extend fails with [ErrNotHeld] if the hold was released or lost. If it was lost, the error also
	// matches [ErrLost]. After any other error, the lease may or may not have been extended. d must be
	// at least [MinLease]. Extend requires one round trip. It sends no command if d is out of range,
	// the hold has ended, or ctx is canceled.
	Extend(ctx context.Context, d time.Duration) error

	// Err returns nil while Context is not canceled, and its cause afterward. If the hold is lost
	// after its context was canceled, Err returns an error that matches [ErrLost]. The cause of the
	// context stays the first one. Err reads the clock twice and sends no command.
	Err() error

	// Until returns the time until which exclusion is guaranteed. It moves forward with each renewal,
	// and does not change in between unless a clock of the machine is changed. After a loss it is in
	// the past.
	Until() time.Time

	// Token returns the fencing token. It is larger than the token of every earlier holder of the
	// name. It is equal for all reentries, and for readers with no writer between them. It grows
	// provided that the clock of the server does not move backward. With [WithFencing] it grows even
	// then. It is 0 for a read hold without fencing, a permit of a semaphore, a worker of a wait group,
	// a multi-lock, and a quorum of locks without fencing.
	Token() uint64

	// Owner returns the owner string in Redis, "<client uuid>:<number>", or "" for a multi-lock and a
	// quorum. For a semaphore, ":<permits>" follows. Holds of several readers of one client can share an
	// owner string.
	Owner() string
}

// Do locks l, calls fn, and unlocks l when fn has returned or panics.
//
// The context of fn is canceled as soon as the lock can no longer be guaranteed, and when ctx is
// canceled. After ctx is canceled, the lock stays held until fn has returned, however long that
// takes. A function that hangs keeps the lock, unless the lock has a [WithMaxHold] or a
// [WithFixedLease], or its client is closed. [HoldFromContext] gives fn the hold. The hold reports
// a loss even after ctx is canceled.
//
// If Lock fails, fn is not called, and Do returns the error of Lock. Otherwise Do joins the errors
// of fn and of Unlock. A loss that fn returns, as the cause of its context, is included once. With
// [WithAsyncUnlock], Do does not wait for the reply to the release.
func Do(ctx context.Context, l Locker, fn func(ctx context.Context) error) error {
	h, err := UntilUnlock(l).Lock(ctx)
	if err != nil {
		return err
	}
	return under(ctx, h, fn)
}

// TryDo is like [Do], but does not wait. If another owner has l, fn is not called, and the
// error matches [ErrNotAcquired].
//
//	err := lock.TryDo(ctx, l, report)
//	if errors.Is(err, lock.ErrNotAcquired) {
//		return nil // another replica does it
//	}
//	return err
func TryDo(ctx context.Context, l Locker, fn func(ctx context.Context) error) error {
	h, err := UntilUnlock(l).TryLock(ctx)
	if err != nil {
		return err
	}
	return under(ctx, h, fn)
}

// under calls fn with the work context of h, then unlocks h.
func under(ctx context.Context, h Hold, fn func(ctx context.Context) error) (err error) {
	work, release := workContext(ctx, h)
	defer func() {
		unlock := h.Unlock(ctx)
		release()
		if loss := h.Err(); errors.Is(unlock, ErrLost) && errors.Is(err, loss) {
			unlock = beside(unlock) // fn has already reported the loss
		}
		err = errors.Join(err, unlock)
	}()
	return fn(work)
}

// beside drops the losses from the error of an Unlock. With several locks, others may still be held, and their
// errors remain.
func beside(unlock error) error {
	all, ok := unlock.(interface{ Unwrap() []error }) //nolint:errorlint // below a join there are no errors of other locks
	if !ok {
		return nil
	}
	var others []error
	for _, one := range all.Unwrap() {
		if !errors.Is(one, ErrLost) {
			others = append(others, one)
		}
	}
	return errors.Join(others...)
}

package lock

import (
	"context"
	"errors"
	"time"
)

// Locker is a lock of any kind.
//
// A Locker is a name and a way to lock it; making one does no I/O. It is safe
// for concurrent use, and goroutines that share one exclude each other. It is
// not a [sync.Locker]: locking can fail, and unlocking needs the proof that is
// a [Hold].
type Locker interface {
	// Name returns the name as the caller gave it.
	Name() string

	// Lock waits until the lock is held or ctx ends. When ctx ends first, the error matches
	// ctx.Err(), and what the call did on the server is undone. The error also matches
	// [ErrNotAcquired] if another owner has the lock, or [ErrUnavailable] if Redis failed to
	// reply, never both. It matches neither if ctx ended before any reply.
	Lock(ctx context.Context) (Hold, error)

	// TryLock makes one attempt and does not wait for another owner. It fails
	// with [ErrNotAcquired] when another owner has the lock or another caller
	// of this process is ahead, and with [ErrUnavailable] when Redis is unavailable.
	TryLock(ctx context.Context) (Hold, error)
}

// Hold is one acquisition of a lock. Each Lock returns a Hold of its own, also
// when it re-enters, and each Hold gives back exactly what it took, once. All
// methods are safe for concurrent use, and only Unlock and Extend do I/O.
type Hold interface {
	// Context returns a context under the one given to Lock. It carries the
	// owner, so locking the same name under it re-enters. It is over as soon as
	// the lock is not certainly held: its Err compares the clocks itself, at
	// every call. [context.Cause] tells why: an error that matches [ErrLost],
	// [ErrUnlocked] or [ErrClosed], or the cause of the parent context.
	//
	// Canceling the context given to Lock is no Unlock. A hold that is not unlocked after
	// that is renewed for one more lease (see [WithGrace]), and is then lost. [Do] and [UntilUnlock] hold until
	// Unlock, and the contexts of their holds are not canceled with that context.
	//
	// A context derived from it with a new deadline or cancel function ends with
	// it, but only once its signal has arrived: in a process that was just frozen, only this
	// context, and contexts that merely add values to it, tell the truth at once.
	Context() context.Context

	// Unlock gives this hold back. It works even if ctx is over already; a ctx
	// that ends during the call ends the call, and the release goes on in
	// the background. Unlock fails with [ErrNotHeld] when this hold was given back before or
	// was lost (then the error also matches [ErrLost]); another owner's lock is
	// never touched. Any other error says that Redis did not confirm: the hold
	// is over nevertheless, the release is repeated in the background, and the
	// key is gone at the end of its lease at the latest.
	//
	// A plain lock for which other callers of the same client wait can go to the next of
	// them without a command to Redis. Then a loss that has not been noticed yet is not
	// an error of this hold; the next holder learns of it.
	Unlock(ctx context.Context) error

	// Extend makes the lease last for d from now on, unless it lasts longer already. After that
	// Until is d after the call began, less the margin for the drift of clocks, or later. A
	// hold of [WithFixedLease] so gets more time. A hold that is renewed needs Extend only before
	// a time in which its process cannot renew, such as a planned pause: if the process dies then, the
	// lock stays for the rest of d. [WithMaxHold] bounds the hold all the same.
	//
	// Extend fails with [ErrNotHeld] when the hold was given back before or is lost; then the error also
	// matches [ErrLost]. After any other error the lease is as it was, or was lengthened. It requires
	// one round trip, except where no command is sent: when d is out of range, the hold is over, or ctx is canceled. d must be [MinLease] at least.
	Extend(ctx context.Context, d time.Duration) error

	// Err returns nil while Context is not canceled, and its cause afterwards. If the hold is lost after its context was canceled, Err
	// returns the loss, which matches [ErrLost], while the cause of the context stays the first one. It costs
	// two readings of a clock.
	Err() error

	// Until returns the instant until which exclusion is promised. It moves
	// forward with each renewal, and stands still in between unless a clock of the
	// machine is set. After a loss it lies in the past.
	Until() time.Time

	// Token returns the fencing token: larger than that of every earlier
	// holder of the name, the same for all re-entries, and for readers that no
	// writer came between. It grows while the server's clock does not go back,
	// and with [WithFencing] even if it does. It is 0 for a read hold without fencing, for
	// a multi-lock, and for a quorum of locks without fencing.
	Token() uint64

	// Owner returns the owner as it stands in Redis, "<client uuid>:<number>", or "" for
	// a multi-lock and a quorum. Holds of several readers of one client can have the same.
	Owner() string
}

// Do locks l, calls fn, and unlocks l when fn has returned or panics.
//
// The context of fn is canceled as soon as the lock can no longer be guaranteed, and when ctx is canceled. After ctx is canceled the lock stays held until
// fn has returned, however long that takes: a function that hangs keeps the lock, unless the lock has a [WithMaxHold] or a [WithFixedLease], or its client is
// closed. [HoldFromContext] gives fn the hold, which reports a loss even after ctx is canceled.
//
// The error is that of Lock when fn was not called, and otherwise those of fn and of
// Unlock, joined. A loss that fn returns, as the cause of its context, is in it once.
func Do(ctx context.Context, l Locker, fn func(ctx context.Context) error) error {
	h, err := UntilUnlock(l).Lock(ctx)
	if err != nil {
		return err
	}
	return under(ctx, h, fn)
}

// TryDo is [Do] for a caller that does not wait: if another owner has l, fn is not called, and
// the error matches [ErrNotAcquired].
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

// under calls fn with the context of the work under h, and unlocks.
func under(ctx context.Context, h Hold, fn func(ctx context.Context) error) (err error) {
	work, release := workContext(ctx, h)
	defer func() {
		unlock := h.Unlock(ctx)
		release()
		if loss := h.Err(); errors.Is(unlock, ErrLost) && errors.Is(err, loss) {
			unlock = beside(unlock) // fn has told of the loss
		}
		err = errors.Join(err, unlock)
	}()
	return fn(work)
}

// beside returns what the error of an Unlock says beside a loss: of several locks another one can be held yet.
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

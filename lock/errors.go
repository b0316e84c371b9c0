package lock

import "errors"

// The errors of this module match one of these with [errors.Is], or come from
// the context or from Redis. All of them are wrapped in an [*Error].
var (
	// ErrNotAcquired is returned when another owner has the lock: the latest reply of Redis was a refusal
	// because of that owner, and no later command failed or exceeded the operation timeout; or another
	// caller of this process is ahead in the queue for the lock. No error matches both ErrNotAcquired and
	// [ErrUnavailable].
	ErrNotAcquired = errors.New("not acquired")

	// ErrUnavailable is returned when a call ended without a usable reply from Redis: the server does not
	// respond, refuses connections, cannot write, is a replica, loads its data, or its cluster is down. Whether another
	// owner has the lock is not known; retry later.
	//
	// A command that is merely in flight when the context of the call ends is no fault of Redis. If Redis
	// has not replied before that, the error matches that of the context, and neither ErrNotAcquired nor
	// ErrUnavailable.
	ErrUnavailable = errors.New("no usable reply from Redis")

	// ErrNotHeld: this hold does not hold the lock (any more).
	ErrNotHeld = errors.New("not held")

	// ErrLost: the lease ended, or the server says that this owner does not hold the lock,
	// although the holder did not call Unlock. The error matches one of the five
	// causes below as well, as far as the cause is known.
	ErrLost = errors.New("lock lost")

	// ErrExpired: the hold was lost because the lease ran out. Redis did not confirm a renewal in time,
	// the process or the machine was stopped for too long, or the lease was a fixed one.
	ErrExpired = errors.New("the lease ran out")

	// ErrGone: the hold was lost because the server said that it does not have the lock for this
	// owner any more. The key was deleted or evicted, or a failover forgot it.
	ErrGone = errors.New("the server no longer has it for this owner")

	// ErrMaxHold: the hold was lost because it reached the age that [WithMaxHold] allows.
	ErrMaxHold = errors.New("held for as long as WithMaxHold allows")

	// ErrForceUnlocked: the hold was lost because somebody unlocked the lock by force; the message
	// says who, if that was told. The error matches ErrGone as well.
	ErrForceUnlocked = errors.New("unlocked by force")

	// ErrAbandoned means that the hold was given up because it was not unlocked within the time of [WithGrace] after its context was
	// canceled. Holds of [Do] and [UntilUnlock] are never abandoned.
	ErrAbandoned = errors.New("not unlocked in time after its context was canceled")

	// ErrUnlocked: the cause of a hold's context after Unlock.
	ErrUnlocked = errors.New("unlocked")

	// ErrClosed is returned when the client was closed, or the application closed the rueidis client that it uses.
	ErrClosed = errors.New("client closed")

	// ErrBadName: the name cannot be a lock's name; the message says why.
	ErrBadName = errors.New("bad lock name")

	// ErrUpgrade: an owner that holds the read lock asked for the write lock. It would wait
	// for itself. Unlock the read lock first, or take the write lock first
	// and the read lock under it.
	ErrUpgrade = errors.New("the owner holds the read lock, and would wait for itself")

	// ErrReplicas: the lock was granted, but not confirmed by as many replicas as
	// [WithReplicas] requires, and was given back.
	ErrReplicas = errors.New("not confirmed by enough replicas")

	// ErrWrongType: the key of this name holds something that is not this
	// kind of lock. It is never overwritten or deleted.
	ErrWrongType = errors.New("key holds something else")
)

// Error is what every error that leaves this module is, in the manner of
// [io/fs.PathError]. Use [errors.Is] for the reason.
type Error struct {
	Op   string // the operation: "lock", "trylock", "unlock", "inspect", "hold", …
	Name string // the lock, as the caller named it; empty where there is none
	Err  error
}

// Error returns "op "name": reason".
func (e *Error) Error() string {
	if e.Name == "" {
		return "leasehold: " + e.Op + ": " + e.Err.Error()
	}
	return "leasehold: " + e.Op + " " + quote(e.Name) + ": " + e.Err.Error()
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

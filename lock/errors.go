package lock

import "errors"

// An error of a call on a lock wraps an [*Error]. Most match one of these values with [errors.Is],
// the error of the context, or an error of Redis. Others report an invalid option or argument, or
// are defined by the package of the call.
var (
	// ErrNotAcquired is returned when another owner has the lock. The latest reply of Redis
	// reported that owner, and no later command failed or exceeded the operation timeout.
	// ErrNotAcquired is also returned when another caller of this process is ahead in the queue for
	// the lock. Retry later, or report that the lock is busy. No error of a call on a lock matches both
	// ErrNotAcquired and [ErrUnavailable]. The joined error of [Do] can, if its function returned one.
	ErrNotAcquired = errors.New("not acquired")

	// ErrUnavailable is returned when a call ended without a usable reply from Redis. The server does
	// not respond, refuses connections, cannot write, is a replica or loads its data, or its cluster
	// is down. Whether another owner has the lock is not known. Retry later.
	//
	// A command that is merely in flight when the context is canceled is not a fault of Redis. If
	// Redis has not replied before that, the error matches only the error of the context. It matches
	// neither ErrNotAcquired nor ErrUnavailable.
	ErrUnavailable = errors.New("no usable reply from Redis")

	// ErrNotHeld is returned by Unlock and Extend when the hold was released or lost before the call.
	// There is nothing left to release. If the error also matches [ErrLost], the hold was lost. Check
	// the data in this case. Otherwise this hold was already unlocked.
	ErrNotHeld = errors.New("not held")

	// ErrLost means that the hold ended although the holder did not call Unlock. The lease expired, or
	// the lock is no longer this owner's on the server. Check the data, because the work may have run
	// twice. The error also matches one of the five causes below, if the cause is known. It does not
	// match [ErrUnavailable], even if Redis was unavailable. The joined error of [Do], or of Unlock of
	// several locks, can match both ErrLost and ErrUnavailable.
	ErrLost = errors.New("lock lost")

	// ErrExpired means that the hold was lost because the lease expired. Redis did not confirm a
	// renewal in time, the process or the machine was paused for too long, or the lease was fixed.
	ErrExpired = errors.New("lease expired")

	// ErrGone means that the hold was lost because the server no longer has the lock for this owner.
	// The key was deleted or evicted, or lost in a failover.
	ErrGone = errors.New("lock no longer held on the server (key deleted, evicted or lost in a failover)")

	// ErrMaxHold means that the hold was lost because it reached the limit of [WithMaxHold].
	ErrMaxHold = errors.New("maximum hold time reached (WithMaxHold)")

	// ErrForceUnlocked means that the hold was lost because an operator force-unlocked the lock. The
	// message names the operator if it is known. The error also matches ErrGone.
	ErrForceUnlocked = errors.New("force-unlocked")

	// ErrAbandoned means that the hold was lost because it was not unlocked within the time of
	// [WithGrace] after its context was canceled. Use [Do], or defer Unlock. Holds of [Do] and [UntilUnlock] are never abandoned.
	ErrAbandoned = errors.New("not unlocked in time after its context was canceled")

	// ErrUnlocked is the cause of the context of a hold after Unlock.
	ErrUnlocked = errors.New("unlocked")

	// ErrClosed is returned when the client is closed, or when the application closed the rueidis
	// client that it uses.
	ErrClosed = errors.New("client closed")

	// ErrBadName is returned when the name cannot be the name of a lock. The message says why.
	ErrBadName = errors.New("bad lock name")

	// ErrUpgrade is returned when an owner that holds the read lock requests the write lock. It would
	// wait for itself. Unlock the read lock first, or acquire the write lock first and the read lock
	// under it.
	ErrUpgrade = errors.New("cannot upgrade a read hold to a write hold: unlock the read hold first")

	// ErrReplicas is returned when the lock was granted, but confirmed by fewer replicas than
	// [WithReplicas] requires. The lock was released.
	ErrReplicas = errors.New("not confirmed by enough replicas")

	// ErrWrongType is returned when the key of this name holds something other than this type of lock.
	// The key is never overwritten or deleted. Use another name, or another key prefix.
	ErrWrongType = errors.New("key has the wrong type")
)

// Error describes why a call on a lock failed, in the manner of [io/fs.PathError]. Use [errors.Is]
// to find the reason.
type Error struct {
	Op   string // operation: "lock", "trylock", "unlock", "inspect", "hold", …
	Name string // name of the lock, as the caller gave it; "" if there is none
	Err  error
}

// Error returns the operation, the quoted name and the reason.
func (e *Error) Error() string {
	if e.Name == "" {
		return "leasehold: " + e.Op + ": " + e.Err.Error()
	}
	return "leasehold: " + e.Op + " " + quote(e.Name) + ": " + e.Err.Error()
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

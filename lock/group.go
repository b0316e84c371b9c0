package lock

import "context"

// Grouper is a [Locker] that can be taken together with others of its kind at a lower cost
// than one by one. The multi-lock uses it. It is for implementers of locks.
type Grouper interface {
	Locker

	// Group returns a way to take all of lockers at once, or nil if there is none. The
	// receiver is one of lockers.
	Group(lockers []Locker) Group
}

// Group takes several locks at once, all or none: at no moment can another client see
// that it has some of them. On success it returns a hold for each Locker, in order.
// Its errors are those of a Locker, and name the lock that they are about. An error that
// matches [errors.ErrUnsupported] says that these locks must be taken one by one
// this time.
type Group interface {
	Lock(ctx context.Context) ([]Hold, error)
	TryLock(ctx context.Context) ([]Hold, error)
}

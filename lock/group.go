package lock

import "context"

// Grouper is a [Locker] that can be taken together with others like it for less
// than one by one. The multi-lock uses it; callers need not know.
type Grouper interface {
	Locker

	// Group returns a way to take all of lockers at once, which has the receiver
	// among them, or nil if there is none for these.
	Group(lockers []Locker) Group
}

// Group takes several locks at once, all or none: at no moment does anybody see
// some of them taken by it. On success there is a hold for each Locker, in order.
// Errors are as those of a Locker, and name the lock that they are about. One that
// matches [errors.ErrUnsupported] says that these locks must be taken one by one
// this time.
type Group interface {
	Lock(ctx context.Context) ([]Hold, error)
	TryLock(ctx context.Context) ([]Hold, error)
}

// Package lock defines the interfaces, errors, options and owners that all locks of leasehold
// share. The interfaces are [Locker] and [Hold]. Code that takes a lock as a parameter depends on
// this package alone, which imports only the standard library. Package client creates locks.
//
// # Terms
//
//	owner    the identity that holds a lock; new for each Lock unless the context carries one
//	hold     one successful Lock, released by one Unlock
//	lease    the time after which Redis frees the lock unless it is renewed
//	renew    extend the lease of a lock that is held
//	lost     no longer guaranteed to be held, although the holder did not call Unlock
//	token    a number that grows from holder to holder (fencing token)
//
// # Detecting a loss
//
// A lock on a server is a lease. It can expire while a holder is paused, partitioned or slow. No
// library can prevent that. leasehold guarantees that a holder detects it when it checks.
// [Hold.Until] is never later than the expiry on the server. [Hold.Err] and Hold.Context().Err()
// compare the clock on every call. Even a process that was paused for an hour gets the correct
// result from its first call.
//
// Work that must not be done twice checks the hold before each step that matters. Alternatively, it
// passes [Hold.Token] along, so that the protected resource rejects older tokens. The details are
// in docs/concepts.md in the repository.
//
// # Owners
//
// A goroutine has no identity that could own a lock, so the context carries the owner. Under a
// plain context each acquisition gets a new owner. A second Lock therefore waits for the first,
// even in the same goroutine. [Hold.Context] and the context of [ContextWithNewOwner] carry an
// owner. Locking the same name under one of these contexts re-enters, and increments the hold count. Goroutines that
// share the context are one owner and do not exclude each other. Call [ContextWithNewOwner] for
// each goroutine to give it its own owner.
//
// # Reentry
//
// A call re-enters if its context carries an owner that already holds the lock through the same
// client. Otherwise it waits for whichever owner has the lock. Goroutine, call stack and handle do
// not matter. A reentry
//
//	is granted at once, even if other owners wait; WithWait, WithWaiterTimeout and WithReplicas have no effect
//	returns its own Hold, which needs its own Unlock, in any order; the last Unlock frees the lock
//	has the token and the owner of the first hold; its own WithFencing has no effect
//	never shortens the lease, and extends it if its own is longer; the lease is renewed if any hold is renewed
//	has its own maximum hold and grace; its minimum hold counts from the reentry
//	ends with all other holds of the owner when the lock is lost
//
// Nested calls pass on the context of the hold. The context of the inner hold is derived from the
// outer one, so the outer Unlock cancels it. The lock stays locked until the inner Unlock. Holds
// that do not nest share a context of [ContextWithNewOwner]. Each ends with its own Unlock.
//
//	outer, err := l.Lock(ctx)                // waits for other owners
//	inner, err := l.Lock(outer.Context())    // re-enters; ends with outer
//	again, err := l.Lock(ctx)                // waits for outer: a deadlock if this goroutine holds it
//
//	one := lock.ContextWithNewOwner(ctx)
//	first, err := l.Lock(one)
//	second, err := l.Lock(one)               // re-enters; outlives first
package lock

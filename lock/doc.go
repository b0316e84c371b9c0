// Package lock holds the words that every lock of leasehold speaks: the
// interfaces [Locker] and [Hold], the errors, the options and the idea of an
// owner. It needs nothing but the standard library, so code that takes a lock
// as a parameter depends on this package alone. Package client makes locks.
//
// # Words
//
//	owner    the identity that holds a lock: "<client uuid>:<number>", a fresh one for each acquisition unless a context carries one
//	hold     one successful Lock, given back by one Unlock
//	lease    how long Redis keeps the lock without hearing from its owner
//	renew    to lengthen the lease of a lock that is held
//	lost     no longer certainly held, although the holder did not call Unlock
//	token    a number that grows from holder to holder (a fencing token)
//
// # What a hold promises
//
// A lock on a server is a lease: it can run out under a holder that was
// paused, cut off or slow. No library can prevent that. What this one promises
// is that you can tell. [Hold.Until] never lies beyond the server's own expiry,
// and [Hold.Err] and Hold.Context().Err() compare the clocks themselves at
// every call, so that even a process that was frozen for an hour gets the truth
// from its first look. Work that must not be done twice should look before each
// step that matters, or send [Hold.Token] along and let the resource refuse
// older ones. The repository's docs/evidence/guarantees.md has the details.
//
// # Ownership
//
// Go has no thread that could own a lock. A plain context gets a fresh owner
// for each acquisition: a second Lock waits for the first, also in the same
// goroutine. The owner travels in [Hold.Context], and in what [WithOwner]
// returns; locking the same name under such a context re-enters, and counts.
// Goroutines that share such a context are one owner and do not exclude each
// other. Call [WithOwner] again for each of them to split them.
//
// # Re-entry
//
// One rule says what a call does: it re-enters if its context carries an owner that has the lock
// by the same client, and otherwise waits for whichever owner has it. Goroutine, call stack and
// handle do not matter. What a re-entry does:
//
//	it is granted at once, although others wait; WithWait, WithPatience, WithReplicas have no effect
//	it has a Hold of its own, which needs an Unlock of its own, in any order; the last one frees the lock
//	it has the token and the owner of the first hold; WithFencing of the first hold decides
//	it never shortens the lease, and lengthens it if its own is longer; if any hold is renewed, the lease is
//	its MaxHold and its Grace are its own; its AtLeast counts from the re-entry
//	a loss ends all holds of the owner
//
// Nested calls pass the context of the hold on. The inner hold's context is under the outer
// hold's, so the outer Unlock ends it; the lock stays locked until the inner Unlock too. Holds that
// do not nest share a context of [WithOwner]: each ends by its own Unlock.
//
//	outer, err := l.Lock(ctx)                // waits for others
//	inner, err := l.Lock(outer.Context())    // re-enters; ends with outer
//	again, err := l.Lock(ctx)                // waits for outer: for ever, if this goroutine has it
//
//	one := lock.WithOwner(ctx)
//	first, err := l.Lock(one)
//	second, err := l.Lock(one)               // re-enters; outlives first
package lock

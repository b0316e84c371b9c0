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
// older ones. The repository's docs/GUARANTEES.md has the details.
//
// # Ownership
//
// Go has no thread that could own a lock. A plain context gets a fresh owner
// for each acquisition: a second Lock waits for the first, also in the same
// goroutine. The owner travels in [Hold.Context], and in what [WithOwner]
// returns; locking the same name under such a context re-enters, and counts.
// Goroutines that share such a context are one owner and do not exclude each
// other. Call [WithOwner] again for each of them to split them.
package lock

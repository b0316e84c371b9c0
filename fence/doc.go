// Package fence refuses the writes of stale holders where the data is: in Redis, in a service's
// memory; and by fencesql in a SQL database, by fencehttp at an HTTP server.
//
// # Why a lock is not enough
//
// A lock on a server is a lease. Its holder can look at [lock.Hold.Err], be
// stopped before the next line (by the garbage collector, the hypervisor, a slow
// disk), and write a minute later, when another holder has long begun. A packet
// can be as late. No lock sees that; only the receiver of the write can. So each
// holder gets a token, [lock.Hold.Token], larger than that of every earlier
// holder, and sends it along with each write; and the keeper of the data
// remembers the largest token it saw, and refuses smaller ones:
//
//	A locks, token 33 ── paused ─────────────────────────── write 33: ErrStale
//	                      B locks, token 34 ── write 34: ok
//
// A token that is equal to the largest is accepted: a holder may write many times,
// and the guard does not order its writes. 0 is no token;
// every guard refuses it, with [ErrNoToken].
//
// # Which guard
//
//	the data is in                 guard
//	a Redis string, hash           Redis.Set, Redis.HSet, Redis.Del
//	any other type in Redis        Redis.Run, your script behind the guard
//	SQL, a row                     a fence column and "WHERE fence <= $token"; see fencesql.Unchanged
//	SQL, anything                  fencesql.Guard.Advance, first in the transaction
//	the memory of one process      Mark, and Marks for many resources
//	a service behind HTTP          fencehttp.Handler at its door, and one of the above behind it
//
// # What to mind
//
//   - The check of the register and the write must be one step: one script, one
//     transaction, one critical section. Otherwise a newer holder can write in
//     between.
//   - Each resource has one register, and each register one lock. Tokens of
//     two locks cannot be compared, nor can those of one name on two servers.
//   - The register must live as long as the data, and as long as a stale holder may.
//     Where it is lost (evicted, in the memory of a service that was restarted, in
//     a deleted row, in a failover of Redis that forgets the last writes), the
//     next token is accepted, whatever it is.
//   - Tokens are as good as their source, the Redis server's clock, in µs
//     since 1970, about 1.7e15. [lock.WithFencing] keeps them growing when that
//     clock goes back. A clock that was once far ahead, or a client that can send
//     any token, can raise a register beyond all honest tokens. Then
//     the guard refuses all holders until the register is set right by hand.
//   - ErrStale is final: this holder lost the lock. To repeat the write with
//     the same token is useless, and with another holder's token it is wrong.
package fence

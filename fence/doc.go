// Package fence rejects writes of stale lock holders with fencing tokens. It protects data in Redis
// and in the memory of a process. Package fencesql protects SQL databases, and package fencehttp
// protects HTTP services.
//
// # Why a lock is not enough
//
// A lock on a server is a lease. Its holder can check [lock.Hold.Err] and be paused before the next
// line by the garbage collector, the hypervisor or a slow disk. It can then write a minute later,
// when another owner holds the lock. A packet in the network can be delayed as long. No lock can detect that. Only the
// receiver of the write can.
//
// Each holder therefore has a token, [lock.Hold.Token], which is larger than the tokens of all
// earlier holders. It sends the token with each write. The receiver stores the largest token it has
// seen, and rejects smaller ones:
//
//	A locks, token 33 ── paused ─────────────────────────── write 33: ErrStale
//	                      B locks, token 34 ── write 34: ok
//
// A token that is equal to the largest is accepted. A holder may write many times, and the guard
// does not order its writes. 0 is not a token. Every guard rejects it with [ErrNoToken].
//
// # Choosing a guard
//
//	data                           guard
//	a Redis string or hash         Redis.Set, Redis.HSet, Redis.Del
//	any other type in Redis        Redis.Run, your script behind the guard
//	SQL, one row                   a fence column and "WHERE fence <= $token"; see fencesql.Unchanged
//	SQL, anything                  fencesql.Guard.Advance, first in the transaction
//	memory of one process          Mark, and Marks for many resources
//	a service behind HTTP          fencehttp.Handler, and one of the above behind it
//
// # Using guards safely
//
//   - The check of the token and the write must be one step: one script, one transaction, one critical section.
//     Otherwise a newer holder can write in between.
//   - Each resource has one token counter, and each counter one lock. Tokens of two locks cannot be compared,
//     nor can tokens of one name on two servers.
//   - The counter must live as long as the data, and as long as a stale holder may. If it is lost,
//     the next token is accepted, whatever it is. A counter can be lost by eviction, by a restart if it is in
//     memory, with a deleted row, or in a failover of Redis.
//   - Tokens are as reliable as their source, the clock of the Redis server, in µs since 1970. [lock.WithFencing]
//     keeps them growing when that clock moves backward. A clock that was once far ahead, or a client that can
//     send any token, can raise a counter beyond all valid tokens. The guard then rejects all holders until the
//     counter is corrected manually.
//   - ErrStale is final, because this holder lost the lock. Do not repeat the write with the same
//     token, nor with the token of another holder.
package fence

// Package latch lets processes wait for each other: a [Latch] opens after so many count downs, and a [WaitGroup] is done when
// all its workers are. client.Client.NewLatch and NewWaitGroup make them.
//
//	l := c.NewLatch("import:2026-11-22")
//	if _, err := l.TrySetCount(ctx, 3); err != nil { // one of all that take part
//		return err
//	}
//	…
//	_, err := l.CountDown(ctx) // each of three workers, when its part is done
//	…
//	err := l.Wait(ctx) // until all three are
//
// # Which of them
//
// A latch counts what is done, and knows no workers: the count of a worker that dies never comes, and Wait waits until its
// context ends. Use a latch for work that Java services share, or where the parts of the work are counted, and not the workers. A wait group
// knows its workers: each has a lease, which is renewed while it lives, and Wait names those that were lost.
//
// # A latch in Redis
//
// The count and the messages are those of Redisson's RCountDownLatch, byte for byte. The traces beside it are ours.
//
//	<name>                           string  the count; deleted when it comes to 0
//	leasehold_latch:{<name>}         hash    which round it is, and which one was opened or deleted last
//	leasehold_latch_calls:{<name>}   zset    the calls that were carried out -> until when they are remembered
//
// Waiters listen at redisson_countdownlatch__channel__{<name>}, and look each second, too: a lost message costs a second. The
// waiters of a client for one latch look together. The traces live for a day after they were last used, and while a caller of
// this package waits. If the count has an expiry, which only Java sets, the traces have it, too.
//
// Each call has an id, which is made before it is sent and stands in Redis for an hour. So a call whose answer is lost is
// repeated, and counts once. A first copy that comes late does nothing that the repetition did not do. [Latch.CountDownOnce] takes the id from the
// caller.
//
// # A wait group in Redis
//
//	leasehold_crew:{<name>}   zset   worker -> until when it counts as alive, by the server's clock; or a mark: done, lost
//
// A worker stays there when it is over, so that a copy of a command that comes late changes nothing.
// A release that leaves nobody alive, or a lost worker, is published at the channel of the same name.
//
// # Beside Redisson
//
// Java calls getCountDownLatch(name): countDown, await, trySetCount and getCount on either side do what they do on one side.
//
//   - Redisson cannot tell a latch that is open from one that was never made: its await returns at once for both. Here
//     the traces tell, so Wait fails with [ErrNotInitialized] where there was no latch. They begin when a call of this package
//     first sees the latch. A latch that Java made, and opened before that, leaves none.
//   - Redisson's delete() leaves the traces, so a latch that it deletes looks open to this package. Delete latches by [Latch.Delete]. Java's
//     waiters hear of neither.
//   - A name must have no braces: Redisson's key and channel would be in two slots of a cluster.
//   - RSemaphore, RAtomicLong and RPermitExpirableSemaphore are a number at <name>, too: nothing in Redis tells them apart.
package latch

// Package latch implements countdown latches and wait groups for processes. A [Latch] is released
// when its count reaches zero. A [WaitGroup] is done when all its workers are.
// client.Client.NewLatch and NewWaitGroup create them.
//
//	l := c.NewLatch("import:2026-11-22")
//	if _, err := l.TrySetCount(ctx, 3); err != nil { // any process may create it
//		return err
//	}
//	…
//	_, err := l.CountDown(ctx) // each of three workers, when its part is done
//	…
//	err := l.Wait(ctx) // until all three are done
//
// # Latch or wait group
//
// A latch counts the parts that are done, and does not store its workers. If a worker dies, its
// part is never counted, and Wait waits until its context is canceled. Use a latch for work that
// Java services share, or if you count parts of the work. A wait group stores its workers. Each has
// a lease, which is renewed while the worker lives. Wait names the workers that were lost.
//
// # In Redis
//
// The count and the messages of a latch are those of Redisson's RCountDownLatch, byte for byte. Two
// more keys, which record rounds and calls, are leasehold's own. docs/reference/redis-keys.md in
// the repository describes the keys.
//
// Waiters receive a message when the count reaches zero, and also poll once per second. The waiters
// of a client for one latch poll together. Calls of CountDown that wait in a client become one
// command. Each command has an ID, which Redis stores for an hour. A command whose reply is lost is
// therefore repeated, and counts each of its calls once. [Latch.CountDownOnce] takes the ID from the
// caller.
//
// # Sharing with Redisson
//
// Java services use getCountDownLatch(name). countDown, await, trySetCount and getCount have the
// same effect on both sides.
//
//   - Redisson cannot distinguish a released latch from one that was never created. Its await
//     returns immediately for both. Here Wait fails with [ErrNotInitialized] if there was no latch.
//     The first call of this package for a latch creates the keys that distinguish them. A latch
//     that Java created and released before that call leaves no such keys.
//   - Redisson's delete() leaves those keys, so a latch that it deletes looks released to this
//     package. Delete latches with [Latch.Delete]. Neither call notifies waiters in Java. A latch that
//     expires before this package has read the expiry that Java set looks released, too.
//   - If Java creates a released latch again before this package has read it, both rounds count as
//     one. Wait misses the release, and the named parts of the first round do not count in the
//     second. Create each further round from Go, or use a new name for each round.
//   - A name must not contain braces, because Redisson's key and channel would be in two slots of a
//     cluster.
//   - RSemaphore, RAtomicLong and RPermitExpirableSemaphore are a number at <name>, too, and cannot
//     be distinguished.
package latch

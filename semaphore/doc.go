// Package semaphore implements a semaphore with leases. At most N permits are held at once, across
// all processes. client.Client.NewSemaphore creates one.
//
//	s := c.NewSemaphore("gpus", 4)
//	h, err := s.Lock(ctx) // one permit; s.N(2).Lock acquires two, all or none
//	if err != nil {
//		return err
//	}
//	defer h.Unlock(ctx)
//	return work(h.Context()) // canceled as soon as the permit can no longer be guaranteed
//
// It is a [lock.Locker], so lock.Do, package multilock and everything else that takes a lock accept
// it. A hold is renewed while its holder lives, and its context is canceled when it is lost. The
// permits of a process that dies are free when their leases expire.
//
// # In Redis
//
// The keys are those of Redisson's RPermitExpirableSemaphore, byte for byte. The queue of waiters
// is leasehold's own. The two keys of the semaphore stay in Redis while no permit is held, because
// the number of permits is a setting. docs/reference/redis-keys.md in the repository describes the
// keys.
//
// # Guarantees
//
// At no time are more permits held than there are, provided that the server keeps its data and its
// clock does not jump forward. A failover that loses the latest writes can lose permits. Their
// holders detect that at their next renewal.
//
// Hold.Token is 0, because a token cannot order holders that hold at the same time. [Semaphore.Run]
// protects data in Redis instead. [Semaphore.Slots] gives each permit a number and a token. The
// token is larger than the tokens of all earlier permits with that number.
//
// # Sharing with Redisson
//
//   - Java services use getPermitExpirableSemaphore(name). It counts the permits of leasehold and
//     reads their leases. Both sides notify each other. Java waiters are not queued. They acquire
//     what is free when they check.
//   - Java clients measure leases by their own clocks. A client whose clock is ahead by more than
//     two thirds of the lease (20 of 30 s) can acquire a held permit. The holder detects that at
//     its next renewal. A client whose clock is slow can lose permits too early, by as much.
//   - addPermits and setPermits in Java change the total, as [Semaphore.Resize] does. Handles with
//     a different number then fail with [ErrPermitCount].
//   - A Java RSemaphore cannot be shared. It has no leases, and a held permit leaves no trace but a
//     smaller number. RSemaphore, RCountDownLatch and an RPermitExpirableSemaphore without holders
//     are all a number at <name> and cannot be distinguished. A handle with a number of permits
//     fails with [ErrPermitCount] while permits of an RSemaphore are held. A handle with 0 permits
//     takes them.
//   - While the number of permits is zero, as after setPermits(0), a handle with 0 permits waits.
package semaphore

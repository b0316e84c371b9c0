// Package semaphore is a semaphore with leases: as many callers as it has permits hold it at once, across all
// processes. client.Client.NewSemaphore makes one.
//
//	s := c.NewSemaphore("gpus", 4)
//	h, err := s.Lock(ctx) // one permit; s.N(2).Lock takes two, all or none
//	if err != nil {
//		return err
//	}
//	defer h.Unlock(ctx)
//	return work(h.Context()) // over as soon as the permit is not certainly held
//
// It is a [lock.Locker], so lock.Do, package multilock and everything else that takes a lock takes it too. A hold
// is renewed while its holder lives, and its context ends when it is lost. The permits of a process that dies come back
// when their leases end.
//
// # Protocol
//
// The keys are those of Redisson's RPermitExpirableSemaphore, byte for byte, and the queue of waiters is ours.
//
//	<name>                              string  how many permits are free
//	{<name>}:timeout                    zset    permit -> ms until which it is held, by the server's clock
//	leasehold_semaphore_queue:{<name>}  list    waiting owners, in the order of their arrival
//	leasehold_semaphore_alive:{<name>}  zset    waiting owner -> server's ms until which it counts as alive
//	leasehold_semaphore_slots:{<name>}  hash    number of a slot -> token and permit; only with [Semaphore.Slots]
//
//	acquire  reclaim permits whose leases are over, if too few are free
//	         enough are free beside those that the living waiters before us want: take ours, leave the queue
//	         otherwise: enter the queue, if we are not in it yet
//	keep     the heartbeat: our waiters are alive; the answer says whose turn it is
//	release  give our permits back; leave the queue; tell the waiters that can take theirs now
//	renew    ours: lengthen the lease; never bring a permit back
//
// The two keys of the semaphore itself stay in Redis when no permit is held: the number of permits is a setting. The
// keys of the queue expire an hour after its last waiter was heard of.
//
// A permit has an id, which its owner makes before it asks: so a question and a release can be repeated, and a lost answer
// costs nothing. The waiters of a client listen at leasehold_semaphore:{<name>}:<client uuid>:fair, where
// a release publishes the numbers of those whose turn it is, and at redisson_sc:{<name>}, where Redisson's clients publish. A waiter that dies keeps
// those behind it waiting until its patience ends ([lock.WithWaiterTimeout]). A lost message costs a second.
//
// # What it promises
//
// At no moment are more permits held than there are, as long as the server keeps its data and its clock does not
// jump ahead. A failover that forgets the last writes can forget permits; their holders are told at their next
// renewal. Hold.Token is 0: a token cannot order holders that hold at the same time. [Semaphore.Run] guards data in Redis
// instead. [Semaphore.Slots] gives each permit a number, and a token that is larger than those of all permits that had the number before.
//
// # Beside Redisson
//
//   - Java calls getPermitExpirableSemaphore(name). It counts our permits and reads their leases, and both sides wake
//     each other. Java's waiters are in no queue: they take what is free when they look.
//   - Java's clients count leases by their own clocks. A client whose clock is ahead by more than two thirds of our lease
//     (20 of 30 s) can take a permit that we hold; we are told at the next renewal. The permits of a client whose clock is
//     behind can be taken from it too early, by as much.
//   - Java's addPermits and setPermits change the total, as [Semaphore.Resize] does: handles that say another number fail
//     with [ErrPermitCount].
//   - A Java RSemaphore cannot be shared: it has no leases, and a permit of it that is held leaves no trace but a smaller number. RSemaphore,
//     RCountDownLatch and an RPermitExpirableSemaphore of which no permit is held are all a number at <name>, and nothing in Redis tells them
//     apart. A handle that says how many permits there are gets [ErrPermitCount] while some of an RSemaphore are held. A handle that leaves the number to others takes them.
//   - While the number of permits is zero, as after setPermits(0), a handle that leaves the number to others waits.
package semaphore

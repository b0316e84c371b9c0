// Package leasehold is documentation: it says which lock is for what, and has runnable examples.
// The locks are in the packages below it, and package client makes them.
//
//	go get github.com/leasehold-go/leasehold
//
//	c, err := client.Open(ctx, "redis://127.0.0.1:6379")
//	…
//	err = lock.Do(ctx, c.NewLock("orders:42"), func(ctx context.Context) error {
//		return ship(ctx, 42) // ctx ends as soon as the lock is not certainly held
//	})
//
// leasehold locks across processes and machines, with Redis or Valkey, and in the same keys as
// Redisson, so that Java and Go services exclude each other. A lock is renewed while its holder works,
// and the holder is told when it is lost.
//
// # Which lock
//
//	one at a time                               client.Client.NewLock
//	the same, in the order of arrival           client.Client.NewFairLock
//	so many at a time                           client.Client.NewSemaphore
//	many readers or one writer                  client.Client.NewRWLock
//	several locks, all or none                  multilock.New
//	one lock that outlives a server             multilock.NewQuorum
//	one that leads, and others see which one    client.Client.NewElection, leader.Run
//	wait until so many parts are done           client.Client.NewLatch
//	wait until all workers are done, or lost    client.Client.NewCrew
//	so many calls in so much time               client.Client.NewRateLimiter
//	has this been seen before                   client.Client.NewBloomFilter
//
// Begin with NewLock. Take a fair lock only where the order matters, as each change of holder costs it
// another round trip. Take a quorum only if a lock must stay available although a server is lost for
// good; most jobs need a plain lock on one server, and a fencing token where a stale write would do
// harm.
//
// # How to take it
//
//	wait, work, unlock                          lock.Do
//	work only if it is free                     lock.TryDo
//	the hold in your own hands                  Lock, TryLock, and Hold.Unlock
//	wait for five seconds at most               lock.WithWait(5*time.Second)
//	once a minute, however quick it is          lock.WithAtLeast(50*time.Second)
//	never longer than an hour                   lock.WithMaxHold(time.Hour)
//	no renewals, a fixed lease                  lock.WithFixedLease(time.Minute)
//	a token that refuses stale writers          Hold.Token, and package fence
//
// # What a caller has to mind
//
// A lock on a server is a lease, and can run out under a holder that was paused. So work looks at the
// context that it is given, before each step that must not be done twice. Where a stale write costs
// money, the keeper of the data checks a fencing token.
//
// Two errors need an answer each. [lock.ErrNotAcquired] says that another owner has the lock.
// [lock.ErrUnavailable] says that Redis is unavailable, so that nothing is known. No error matches both. A lost hold ends its context with a cause that matches [lock.ErrLost].
//
// Only the context of a hold re-enters. A second Lock under a plain context waits, also in the same
// goroutine: pass on the context that the hold gives you.
//
// # The words
//
//	owner    the identity that holds a lock: a fresh one for each Lock, unless a context carries one
//	hold     one successful Lock, given back by one Unlock
//	lease    how long Redis keeps the lock without hearing from its owner; 30 s if not set
//	renew    to lengthen the lease; the client does that every third of it
//	lost     no longer certainly held, although the holder did not call Unlock
//	token    a number that grows from holder to holder
//
// # The packages
//
//	client        connects, and makes every lock
//	lock          the words: Locker, Hold, errors, options, Do; code that takes a lock as a parameter needs no other
//	reentrant, fairlock, rwlock, semaphore
//	              the kinds, and what each promises
//	multilock     several locks as one, and quorums
//	fence         refuses stale tokens, in Redis and in memory; fencesql in databases, fencehttp over HTTP
//	leader        elects by any lock, and shows who leads
//	latch         waits until so many parts are done, or all workers
//	ratelimit, bloom
//	              limits and filters, which take no locks
//	httplock      one HTTP request at a time for each lock: 409 when busy, 503 when Redis is unavailable
//	synclock      a sync.Locker
//	admin         lists and inspects locks, and unlocks by force
//	locktest      a server in memory for your tests, and the rules that a lock must keep
//
// The command leasehold holds a lock for a shell command, and shows who holds what. The repository has
// guides, pages for users of Redisson, redsync, redislock and rueidislock, a checklist for
// production and a runbook, in docs.
package leasehold

import _ "github.com/leasehold-go/leasehold/lock" // its names are links above

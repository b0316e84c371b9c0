// Package leasehold gives an overview of the leasehold locks, with runnable examples. The locks are
// in its subpackages, and package client creates them.
//
//	go get github.com/leasehold-go/leasehold/client
//
//	c, err := client.Open(ctx, "redis://127.0.0.1:6379")
//	…
//	err = lock.Do(ctx, c.NewLock("orders:42"), func(ctx context.Context) error {
//		return ship(ctx, 42) // ctx is canceled as soon as the lock can no longer be guaranteed
//	})
//
// leasehold provides distributed locks on Redis or Valkey. It uses the same keys as Redisson, so
// Java and Go services exclude each other. A lock is renewed while its holder works. The holder is
// notified if the lock is lost.
//
// # Choosing a lock
//
//	plain (reentrant) lock: one owner at a time       client.Client.NewLock
//	fair lock: first-come, first-served               client.Client.NewFairLock
//	semaphore: at most N holders at a time            client.Client.NewSemaphore
//	read/write lock: many readers or one writer       client.Client.NewRWLock
//	multi-lock: several locks, all or none            multilock.New
//	Redlock: survives the loss of a server            multilock.NewQuorum
//	leader election, with leader discovery            client.Client.NewElection, leader.Run
//	countdown latch: wait until a count is zero       client.Client.NewLatch
//	wait group: wait until all workers are done       client.Client.NewWaitGroup
//	rate limiter: at most N calls per interval        client.Client.NewRateLimiter
//	Redisson-compatible rate limiter                  client.Client.NewRedissonRateLimiter
//	Bloom filter: approximate set membership          client.Client.NewBloomFilter
//
// Start with NewLock. Use a fair lock only if the order matters, because each hand-off to another
// process requires another round trip. Use a quorum only if a lock must stay available even after a
// server is lost permanently. Most jobs need a plain lock on one server, and a fencing token if a
// stale write would do harm.
//
// # Acquiring a lock
//
//	wait, work, unlock                      lock.Do
//	work only if the lock is free           lock.TryDo
//	manage the hold yourself                Lock, TryLock, and Hold.Unlock
//	wait for at most five seconds           lock.WithWait(5*time.Second)
//	once a minute, however short the work   lock.WithMinHold(50*time.Second)
//	lock the same keys repeatedly           lock.WithLinger(time.Second)
//	hold for at most an hour                lock.WithMaxHold(time.Hour)
//	a fixed lease without renewals          lock.WithFixedLease(time.Minute)
//	release without a round trip            lock.WithAsyncUnlock()
//	reject stale writes                     Hold.Token, and package fence
//
// # Using locks safely
//
// A lock on a server is a lease, and can expire while its holder is paused. Check the context
// before each step that must not be done twice. If a stale write would do harm, have the protected
// resource check a fencing token.
//
// Handle two errors. [lock.ErrNotAcquired] means that another owner has the lock.
// [lock.ErrUnavailable] means that Redis is unavailable, so the state of the lock is unknown. No
// error of a call on a lock matches both. If a hold is lost, its context is canceled with a cause
// that matches [lock.ErrLost].
//
// Lock re-enters only under the context of a hold. A second Lock under a plain context waits, even
// in the same goroutine. To re-enter, pass on the context of the hold.
//
// # Packages
//
//	client        connects, and creates every lock
//	lock          Locker, Hold, errors, options, Do, and the terms; all you need to take a lock as a parameter
//	reentrant, fairlock, rwlock, semaphore
//	              the types of locks
//	multilock     several locks as one, and quorums
//	fence         rejects stale tokens, in Redis and in memory; fencesql in SQL databases, fencehttp over HTTP
//	leader        leader election
//	latch         countdown latches and wait groups
//	ratelimit, bloom
//	              rate limiters and Bloom filters
//	admin         lists, inspects and force-unlocks locks
//	locktest      an in-memory Redis server for tests, and conformance tests for locks
//
// Adapters are in contrib. Packages httplock for net/http and synclock for sync.Locker are in this
// module. Separate modules support asynq, cron libraries, certmagic, OpenTelemetry, Prometheus and
// the options of go-redis. Another one supports migration from redsync, redislock or rueidislock.
//
// The leasehold command runs a shell command under a lock, and shows who holds what. Guides,
// migration from other libraries, a production checklist and a runbook are in docs.
package leasehold

import _ "github.com/leasehold-go/leasehold/lock" // its names are links above

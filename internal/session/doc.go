// Package session implements acquiring, renewing and releasing locks for one client. It connects four packages:
// lockstate decides, command sends, watchdog renews, and pubsub receives messages. The reconcilers of this package
// clean up after calls with an unknown outcome. Each type of lock adds its scripts.
//
// # Files
//
//	session.go  kind.go                the session of a client; types of lock, and the options of one lock
//	table.go  acquisition.go  hold.go  the local state of each lock, and owner strings; type lockTable documents the lock order
//	acquire.go                         Lock and TryLock: the owner's turn, reentry, joining other readers
//	attempt.go  request.go             the wait loop; one request and its reply
//	unlock.go  downgrade.go            Unlock; a write hold that becomes a read hold
//	reconcile.go                       cleaning up after an unknown outcome
//	subscribe.go  heartbeat.go         notifications; positions in a queue in Redis
//	renew.go  limit.go                 renewals; limits of holds that are not unlocked
//	extend.go  retain.go  linger.go    lease extensions; the minimum hold time; locks kept for the next caller
//	close.go  raise.go                 Close; raising the token counter for a quorum
//	query.go  semaphore.go             reading the state of a lock or a semaphore; waits without an owner
//	force.go                           force-unlock, and its notifications
//	observe.go  report.go              observer events; warnings
//
// In the code, a is an attempt, at an entry of the table, t an acquisition, h a hold, o an owner, w a waiter, l a queue,
// p a lockstate.Lock, q a request, and e the subscriptions of a queue.
//
// # Owner strings
//
// An acquisition begins with the owner's first request and ends with its last hold. Package lockstate documents its
// phases. Each acquisition has its own owner string in Redis, except that a hand-off inside the process keeps the
// string. A command still in flight for an ended acquisition therefore cannot affect a later one. Reconciling
// finds the acquisition by its owner string.
//
// # Unknown outcomes
//
// A command was executed, was not executed, or has an unknown outcome: the connection broke, or the caller left before
// the reply. retry.FaultOf decides which. Commands state the desired result ("want 2", "leave 0"), so they are
// idempotent. A waiting caller resolves an unknown outcome by repeating the command. If the caller has left, the
// command's Late method receives the reply:
//
//	granted, and the acquisition has ended      release it (reconcile)
//	granted, and the acquisition lives          the next request finds the grant
//	unknown, and the acquisition has ended      reconcile, and again later: a delayed duplicate may arrive
//	unknown, and the acquisition lives          remember it (Acquisition.MarkUncertain), and reconcile when it ends
//
// Reconciling repeats until the server confirms, or until the longest requested lease has expired. A waiter may leave
// a queue position, a writer intent or a reader reservation in Redis. It belongs to the acquisition and is removed with
// it.
//
// # Waiting
//
// The lock's state decides what a call does next; the call does it and reports the result. A call sends a request
// when it is notified, when the other owner's lease expires, or when a poll interval ends. A notification is a message
// or the confirmation of a subscription. Correctness does not depend on notifications.
//
// A read/write lock has two sides, each with its own Kind. An owner has one acquisition on each side, and commands
// of one side do not wait for commands of the other.
package session

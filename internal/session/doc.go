// Package session implements acquiring, renewing and releasing locks for one client. It joins the parts: package
// lockstate decides, package command sends, package watchdog renews, package pubsub receives messages, and the
// reconcilers of this package clean up after calls with an unknown outcome. A type of lock adds its scripts.
//
// # Where things are
//
//	session.go  kind.go                the session of a client; types of lock, and the options of one lock
//	table.go  acquisition.go  hold.go  what a client has of each lock; the order of mutexes is at type lockTable
//	acquire.go                         Lock and TryLock: the owner's turn, reentry, joining other readers
//	attempt.go  ask.go                 the wait loop; one request and its reply
//	unlock.go  downgrade.go            Unlock; a write hold that becomes a read hold
//	reconcile.go                       cleaning up after an unknown outcome
//	subscribe.go  heartbeat.go         notifications; positions in a queue in Redis
//	renew.go  limit.go                 renewals; holds that are not unlocked
//	extend.go  retain.go               longer leases; a minimum hold
//	close.go  query.go  raise.go       Close; reading the state of a lock; the tokens of a quorum
//	force.go                           force-unlock, and its notifications
//	observe.go  report.go              observer events; warnings
//
// # Owner strings
//
// An owner gets an acquisition with its first request, and has it until its last hold ends; its phases are drawn in
// package lockstate. Each acquisition has its own owner string in Redis, except that a hand-off inside the process keeps the
// string. A command that is still in flight for an acquisition that has ended therefore cannot release or
// acquire what comes later, and reconciling finds it by its name.
//
// # Unknown outcomes
//
// A command was executed, was not executed, or its outcome is unknown: the connection broke, or the caller left before
// the reply. retry.FaultOf decides which. Commands say what must result ("want 2", "leave 0"), so they are safe to
// repeat, and repeating is how a waiting caller resolves an unknown outcome. If the caller has left, the
// command's Late receives the reply:
//
//	granted, and the acquisition has ended      release it (reconcile)
//	granted, and the acquisition lives          the next request finds that
//	unknown, and the acquisition has ended      reconcile, and repeat that later: a delayed duplicate may arrive
//	unknown, and the acquisition lives          remember it (Acquisition.MarkUncertain), and reconcile at its end
//
// Reconciling repeats until the server confirms, or until the longest lease that was requested has expired. A waiter may leave
// a trace in Redis, a position in a queue or a writer intent. It belongs to the acquisition, and is removed with it.
//
// # Waiting
//
// A call asks the lock's state what to do next, does it, and reports the result. A notification is a message, or the
// confirmation of a subscription. It is a reason to send a request, as are the expiry of the other owner's lease
// and the end of a poll interval. Nothing depends on a notification. Reading and writing are two kinds and
// two sides of one lock; an owner has one acquisition on each side, and the commands of one do not wait for those of the other.
package session

// Package multilock makes one lock of several. [New] is for several locks that are
// needed together: all or none. [NewQuorum] is for one lock that has to outlive a
// server: several independent servers have it, and it is held while a majority of
// them says so. Both take any [lock.Locker], and are Lockers themselves.
//
//	all := multilock.New(c.NewLock("account:1"), c.NewLock("account:2"))
//	err := lock.Do(ctx, all, transfer)
//
//	leader := multilock.NewQuorum([]lock.Locker{a.NewLock("leader"), b.NewLock("leader"), c.NewLock("leader")})
//	h, err := leader.Lock(ctx)
//
// # All or none
//
// All locks are taken by one owner, that of the context or a fresh one; so under the
// hold's context the multi-lock re-enters, and so does each of its locks by itself.
//
// One script takes all the locks if it can: that is so for plain locks of one client,
// without lock.WithFencing and lock.WithReplicas, which share a slot on a cluster. While another
// owner has one of them, the call holds none. Otherwise the locks are taken one by one. So are locks
// that are never free together because others have them all the time: the call
// changes to this way after it has seen them change hands a few times. One by one, the locks are taken in the order of their
// names, whatever order they were given in, and the call holds the earlier locks while it waits for the later
// ones. Callers then cannot wait for each other in a ring, if each takes
// all that it needs with one multi-lock. To hold nothing while waiting would not
// need an order, but a call for many locks might never find all of them free at once,
// and would leave the queue of a fair lock again and again. A caller that takes more locks under a
// hold, or names one lock differently in clients with different key prefixes, is
// outside of the order, and should give such a wait a deadline.
//
// Whatever fails, the call gives back what it has taken, also when ctx is over. If the
// lease of a lock runs out while the call waits for the others, it takes that lock again.
//
// The hold is over with the first loss among its members, and the cause names that
// member. The others are kept until Unlock, as the work that they guard may still go on. Unlock
// gives back all, whatever fails. Until is the earliest Until of the members.
//
// The hold's Token is 0 and its Owner is "". A token orders the holders of one lock.
// No single number orders the holders of several: the largest token, say, would make the holder of {a, b}
// newer than a later holder of {b, c} if the server of a is ahead. [Holds] returns the
// members, whose tokens are for the resource of each.
//
// # A majority
//
// A quorum is Redlock, with what was learnt since it was published. An attempt asks all
// servers at the same time, and each answer has a short timeout. The attempt wins as soon as a
// majority has voted for it, and enough of their leases is left. Otherwise it gives everything
// back on all servers, also what is granted later, and the next attempt follows after a
// random pause. During the pause the caller waits for the lock of
// one server, the first in their order that answered. So a waiter learns when the lock is free,
// and attempts do not collide. If that server fails, the pauses remain. Callers
// that share a Quorum stand in line, and only the first of them makes attempts.
//
// A vote is a hold of that server's lock. So each server's lock has all the guarantees of a hold of this
// module: the lease counts from before the command was sent, less a margin for
// the drift of clocks, and both clocks of this process are read; each attempt has an
// owner string of its own; renewals extend only what is still there; a command with an unknown
// outcome is undone. Until is the latest instant until which a majority of
// those leases lasts. A hold that is not unlocked is kept for the longest lease after its
// context is canceled, and one of lock.Do until its function has returned. The hold is lost permanently as soon as fewer than a majority vote,
// and the rest is given back at once. Servers that did not vote, or that failed, are
// asked again in the background while the majority lasts, so the hold can outlive one
// server after the other. A vote that is won so joins a majority that exists without it, and
// proves nothing about the time before.
//
// The error of an attempt says of each server why it had no vote, and means one thing; see [Quorum.TryLock].
//
// Two holders cannot both have a majority, as they would share a server, and a server
// grants the lock to one of them. That holds unless a server forgets a grant:
//
//   - A server that restarts may have forgotten. It has no vote until it has been up
//     for the longest lease ([WithMaxLease]). The client asks for that with INFO
//     after each grant. [WithDurableServers] turns that off.
//   - A replica that is promoted, a FLUSHALL, an eviction or a DEL by hand makes a
//     server forget without a restart. No client can notice that. The servers must be without
//     replicas that take over, and without eviction.
//   - A clock that is set forward on a server ends leases early. See below.
//
// # A token for a quorum
//
// The hold's Token is 0, unless all locks are made with lock.WithFencing. Then it is larger
// than that of every earlier holder. Each server has a register of its own, which a grant
// raises, and the token is the largest that a server of the majority gave. Before Lock
// returns, a majority has raised its registers to that token: one round trip more. Each
// server raises its register only while this holder has its lock, so a holder that
// was stopped in between cannot get a token any more. The servers outside of that majority
// raise theirs in the background. A re-entry keeps the token of the outer hold, whichever servers
// vote for it, and requires no further round trip: while the outer hold is valid, no other owner
// can have a newer token, and a later owner gets a larger one from a server of the outer
// hold's majority. If the outer hold is lost before the re-entry has its votes, the new hold has a new
// token.
//
// Any two majorities share a server, and that server's register is what makes the later
// token the larger one. So this holds if the registers survive: servers may be down,
// restart, or be slow, and their clocks may be hours apart. It does not hold
//
//   - when a register is lost: a server that restarts empty, a FLUSHALL, a replica that is
//     promoted, a disk that is replaced. If that server was the only one that the majority
//     of the earlier holder and that of the later one share, the later token can be the
//     smaller one. If all servers had the token, a majority of them must lose it for
//     that. A register that begins anew begins at the time of its server in microseconds,
//     so tokens still grow if the clocks of the servers differ by less than the time
//     between the two holders;
//   - when another program writes to a register: one at the largest number it can count to stops
//     the lock on all servers, as the token goes to all of them.
//
// Let the servers keep their registers over a restart (appendonly yes, and appendfsync
// always where the machine itself may fail).
//
// # What Redlock is good for
//
// Martin Kleppmann's "How to do distributed locking" (2016) objects to Redlock that its
// safety depends on time: on clocks of servers that do not jump, on processes that do not
// pause at the wrong moment, on servers that do not come back empty too early; and that
// it has no fencing token, without which no lock with a lease is safe. Salvatore
// Sanfilippo's answer, "Is Redlock safe?", is that a client which looks at the clock
// after it has got its votes does notice a pause before that; that a pause after it hits
// every lock with a lease; and that clocks can be kept from jumping.
//
// Both are right. The client here takes care of:
//
//   - pauses, for a holder that looks: Err compares the clocks at every call, and reports the loss
//     in a process that was frozen for an hour;
//   - its own clocks: it measures durations by the monotonic clock, and by the wall clock as
//     well, for a machine that slept;
//   - servers that come back empty;
//   - late answers, and grants that no caller waits for any more.
//
// What remains:
//
//   - The servers expire keys by their wall clocks. A server whose clock is set forward is like
//     a server that forgets: if the lock was held on no more than a majority, another owner
//     can get it. The hold reports that when the next renewal fails, a third of a lease later
//     at most. Let clocks slew, not step.
//   - A pause between the holder's last look and its write. Only the resource can refuse
//     that write. A resource that can compare numbers should get the token with each write:
//     then it is safe whatever the lock does.
//
// So: if the lock only saves double work, one server and a plain lock are enough, and cheaper. Where
// double work does harm and the resource can check a token, take one server and a token
// (package fence). Take a quorum when the lock must stay available and exclusive
// although a server is lost for good; with tokens, if the resource can check them.
package multilock

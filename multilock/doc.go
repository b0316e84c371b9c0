// Package multilock makes one lock of several. [New] is for several locks that are
// needed together: all or none. [NewQuorum] is for one lock that shall outlive a
// server: it is kept on several independent servers, and held while a majority of
// them says so. Both are made of any [lock.Locker], and are one.
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
// Where one script can take them all, which is so for plain locks of one client on one
// server, they are taken together, and while one of them is another's none is held.
// Else they are taken one by one; and so are locks that are never free together, as
// others have them all the time: after they changed hands a few times before the eyes
// of the call. They are taken in the order of their names, whatever order they were
// given in; and those that were taken first are held while the later ones are waited
// for. Callers cannot wait for each other in a ring then, as long as everybody takes
// what he needs by one multi-lock. Taking no lock while waiting for another would not
// need an order, but who needs many locks might never find all of them free at once,
// and would leave the line of a fair lock again and again. Who takes more locks under a
// hold, or names one lock differently by clients with different key prefixes, is
// outside of the order, and should give such a wait a deadline.
//
// Whatever fails, what was taken is given back, also when ctx is over. A lock whose
// lease ran out while the others were waited for is taken again.
//
// The hold is over with the first loss among its members, and the cause names that
// one. The others are kept until Unlock: what they guard may still be in use. Unlock
// gives back all, whatever fails. Until is the earliest of the members'.
//
// The hold's Token is 0 and its Owner is "". A token orders the holders of one lock.
// Of several, no single number does: the largest, say, would make the holder of {a, b}
// newer than a later one of {b, c} if the server of a is ahead. [Holds] gives those of
// the members, for the resource of each.
//
// # A majority
//
// A quorum is Redlock, with what was learnt since it was published. An attempt asks all
// servers at the same time, and each answer has a short time-out. It wins as soon as a
// majority gave its vote, and enough of their leases is left. Else everything is given
// back on all servers, also what is granted later, and the next attempt follows after a
// pause of random length. During the pause the waiter stands in line for the lock of
// one server, the first that answers; so whoever waits is told when the lock is free,
// and comes when no other does. Should that server fail, there are the pauses. Waiters
// of one process stand in line, and only the first of them makes attempts.
//
// A vote is a hold of that server's lock. So all that a hold of this module does is done
// for each server: the lease counts from before the question was sent, less a margin for
// the drift of clocks, and both clocks of this process are read; each attempt has an
// owner string of its own; renewals extend only what is still there; what is not known
// to be carried out is taken back. Until is the latest instant up to which a majority of
// those leases lasts. A hold that nobody unlocks is kept for the longest lease after the
// end of its context. The hold is lost for good as soon as fewer than a majority vote,
// and the others are given back at once. Servers that did not vote, or that failed, are
// asked again in the background while the majority lasts, so that it can outlive one
// server after the other. Each of those joins a majority that was there without it, and
// is no proof of the time before.
//
// Two holders cannot both have a majority, as they would share a server, and a server
// gives the lock to one of them. That is so unless a server forgets what it gave:
//
//   - A server that restarts may have forgotten. It has no vote until it has been up
//     for the longest lease ([WithLongestLease]), which the client finds out by INFO
//     after each grant. [WithDurableServers] turns that off.
//   - A replica that is promoted, a FLUSHALL, an eviction or a DEL by hand makes a
//     server forget without a restart. Nothing can tell. The servers must be without
//     replicas that take over, and without eviction.
//   - A server's clock that is set forward ends leases early. See below.
//
// # A token for a quorum
//
// The hold's Token is 0, unless all locks are made with lock.WithFencing. Then it is larger
// than that of every earlier holder. Each server has a register of its own, which a grant
// raises, and the token is the largest that a server of the majority gave. Before Lock
// returns, a majority has raised its registers to that token: one round trip more. Each
// server raises its register only while it has the lock as this holder's, so a holder who
// was stopped in between cannot get a token any more. The servers outside of that majority
// are told behind the call. A re-entry keeps the token, and costs no more.
//
// Any two majorities share a server, and that server's register is what makes the later
// token the larger one. So this holds as long as the registers survive: servers may be down,
// restart, or be slow, and their clocks may be hours apart. It does not hold
//
//   - when a register is lost: a server that restarts empty, a FLUSHALL, a replica that is
//     promoted, a disk that is replaced. If that server was the only one that the majority
//     of the earlier holder and that of the later one share, the later token can be the
//     smaller one. Where all servers knew the token, a majority of them must lose it for
//     that. A register that begins anew begins at the time of its server in microseconds,
//     so tokens still grow if the clocks of the servers agree to less than the time
//     between the two holders;
//   - when somebody writes to a register: one that is at the end of what it can count stops
//     all servers, as the token goes to all of them.
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
// Both are right. Of these, the client here takes care of:
//
//   - pauses, for a holder that looks: Err compares the clocks at every call, and says no
//     in a process that was frozen for an hour;
//   - its own clocks: it compares durations by the monotonic clock, and the wall clock as
//     well, for a machine that slept;
//   - servers that come back empty;
//   - late answers, and grants that nobody waits for any more.
//
// What remains:
//
//   - The servers expire keys by their wall clocks. One clock that is set forward is as
//     one server that forgets: if the lock was held on no more than a majority, another
//     can get it. The hold says so when the next renewal fails, a third of a lease later
//     at most. Let clocks slew, not step.
//   - A pause between the holder's last look and its write. Only the resource can refuse
//     that write. A resource that can compare numbers should have the token sent along:
//     then it is safe whatever the lock does.
//
// So: to save double work, one server and a plain lock are enough, and cheaper. Where
// double work does harm and the resource can check a token, take one server and a token
// (package fence). A quorum is for when the lock must stay available and exclusive
// although a server is lost for good; with tokens, if the resource can check them.
package multilock

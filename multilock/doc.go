// Package multilock implements locks that are made of several locks. [New] returns a lock that
// acquires several locks together, all or none. [NewQuorum] returns a Redlock, which is one lock on
// several independent servers. It is held while a majority of them grants it, so it survives the
// loss of a minority. Both accept any [lock.Locker], and are Lockers themselves.
//
//	all := multilock.New(c.NewLock("account:1"), c.NewLock("account:2"))
//	err := lock.Do(ctx, all, transfer)
//
//	leader := multilock.NewQuorum([]lock.Locker{a.NewLock("leader"), b.NewLock("leader"), c.NewLock("leader")})
//	h, err := leader.Lock(ctx)
//
// # All or none
//
// One owner acquires all locks. It is the owner that the context carries, or a new one. Under the
// context of the hold, the multi-lock re-enters, and so does each of its locks on its own.
//
// Plain locks of one client are tried at the same time, in one round trip. If another owner has one
// of them, the call releases the others and waits for that one, holding nothing. Locks that are
// never free together are acquired one by one after a few of these waits. Locks of other types are
// always acquired one by one.
//
// One by one, locks are acquired in the order of their names, whatever order they were given in.
// The call holds the earlier locks while it waits for the later ones. Callers that acquire all they
// need with one multi-lock therefore cannot deadlock. A caller that acquires more locks under a
// hold breaks that order. So does a caller that gives one lock different names through key
// prefixes. Set a deadline for such waits.
//
// If the call fails, it releases what it acquired, even after ctx is canceled. If the lease of a
// lock expires while the call waits for the others, the call acquires that lock again.
//
// The hold ends with the first loss among its members, and the cause names that member. The others
// are kept until Unlock, because the work that they protect may still be running. Unlock releases
// all members, whatever fails. Until is the earliest Until of the members.
//
// With [lock.WithAsyncUnlock] on all members, Unlock returns when all releases are on their way. It
// waits for members without the option. A failed Lock or TryLock releases its members in the same
// way. The same applies to a quorum.
//
// The token of the hold is 0 and its owner is "", because no single number orders the holders of
// several locks. [Holds] returns the members. Their tokens are for the resource that each protects.
//
// # Quorum
//
// An attempt sends a request to all servers at the same time, with a short timeout for each. It
// succeeds as soon as a majority has voted for it and enough of their leases remains. Otherwise it
// releases everything on all servers, including what is granted later. The next attempt follows
// after a random pause. During the pause, the caller waits for the lock of one server, so it is
// notified when the lock is free. Callers that share a Quorum are queued, and only the first makes
// attempts.
//
// A vote is a hold of the lock of one server, with all guarantees of a hold of this module. The
// lease counts from before the command was sent, less a margin for clock drift. Each attempt has
// its own owner string. Renewals extend only what still exists. A command with an unknown outcome
// is undone. Until is the latest time until which a majority of those leases lasts.
//
// The hold is lost permanently as soon as fewer than a majority vote. The rest is then released
// immediately. While a majority lasts, servers that did not vote or failed are retried in the
// background. The hold can therefore outlive one server after the other. A hold that is not
// unlocked lasts for the time of [WithMaxLease] after the context given to Lock is canceled, and is
// then lost. A hold of lock.Do lasts until its function has returned.
//
// Two holders cannot both have a majority, because they would share a server, and a server grants
// the lock to one of them. This is guaranteed provided that no server loses a grant:
//
//   - A server that restarts may have lost a grant. It has no vote until it has been up for the
//     longest lease ([WithMaxLease]). The client reads the uptime with INFO after each grant.
//     [WithDurableServers] turns that off. A server computes its uptime from its wall clock, so it
//     votes too early if that clock is moved forward after the restart.
//   - A promoted replica, a FLUSHALL, an eviction or a manual DEL loses grants without a restart.
//     No client can detect that. Use servers without eviction, and without replicas that take over.
//   - A server whose clock is moved forward ends leases early.
//
// # Fencing tokens of a quorum
//
// The token of the hold is 0 unless all locks use lock.WithFencing. With it, the token is larger
// than the token of every earlier holder. This holds even if servers are down, restart or are slow,
// or if their clocks differ by hours.
//
// Each server has a token counter, which a grant raises. The token is the largest that a server of
// the majority returned. Before Lock returns, a majority has raised its counters to that token.
// This requires one more round trip. A server raises its counter only while this holder has its
// lock. The other servers raise theirs in the background. A reentry keeps the token of the outer
// hold and requires no further round trip. In a quorum of read sides, readers with no writer between
// them can have different tokens, in any order; only their order with the writers counts.
//
// The guarantee depends on the counters. A server that restarts without its data, a FLUSHALL, a
// promoted replica or a replaced disk loses a counter. If the majorities of two holders share only
// that server, the later token can be the smaller one. A lost counter restarts at the server time
// in µs. Tokens therefore still grow if the clocks differ by less than the time between the two
// holders. Use appendonly yes, and appendfsync always if the machine itself may fail.
//
// A program that writes the largest possible number to one counter stops the lock on all servers.
//
// # When to use a quorum
//
// If the lock only avoids duplicate work, use one server and a plain lock. If duplicate work does
// harm and the protected resource can check a token, use one server and tokens (package fence). Use
// a quorum when the lock must stay available and exclusive although a server is lost permanently.
// Add tokens if the resource can check them. docs/concepts.md in the repository discusses the
// published criticism of Redlock.
package multilock

// Package luascripts holds every script of this module, and one typed Go function for
// each. Nothing else in this module writes to a lock's keys, or to a rate limiter's.
//
// It is a part of leasehold that can be read by itself, and carries no promise: its API can
// change in every version.
//
// The scripts of rate limiters are here, too: a script is loaded, included and checked in
// one way, and no script text is anywhere else.
//
// A script is a file of its own, <kind>_<verb>.lua. Its header is its contract:
// each key with its type, each argument with its unit, every reply. A test
// reads the headers and fails when a script uses what its header does not list.
// The functions that scripts share are in include_<name>.lua; "-- include: <name>" in
// the second line of a file puts them before it.
//
// # Rules of the scripts
//
//   - A script is told what must result ("want 2"), never what to add. It may be sent
//     twice, and the second copy changes nothing and answers the same. The scripts of
//     rate limiters add, and are sent once.
//   - A script looks first and writes last. A reply below zero, and an error of the
//     first read, mean that the script changed no hold of a living owner. It may have
//     dropped dead owners, or the caller's place in a queue, as its header says.
//   - The first write cannot grow memory, unless an owner takes the lock or begins to wait. So
//     re-entering, renewing and releasing work on a server that is full.
//   - A script never shortens the lease of an owner, except reentrant_retain, whose owner is
//     done. Expiry is relative; no clock but the
//     server's counts.
//   - A plain lock has one key, with lock.WithFencing two. A script with several keys is refused with
//     TRYAGAIN while their cluster slot moves to another node. Channels are
//     arguments, so that access lists need no key pattern for them.
//   - What a script says of a hold, a permit, a member or a latch is final for its caller, so only a primary may say it. A
//     replica can have old data, and a script that only reads would run there. Before such an answer a script sends a
//     command that writes but changes nothing, as HDEL of a field that is never there: a replica refuses it with READONLY. Where the
//     script may also take something, it sends that only before the answer: after any write, a full memory lets the rest through.
//     The flags of Redis 7 ("#!lua") would do the same, but Redis 6.2 does not know them.
//   - A script calls PUBLISH by pcall: a hint that is denied must not turn a release that
//     happened into an error.
//
// # Keys
//
//	kind       key      type  content
//	reentrant  <name>   hash  owner -> hold count, one owner; and leasehold_line, the waiting processes
//	fair       <name>   hash  as a plain lock; the number in an owner string is odd here, and even in a plain lock
//	           redisson_lock_queue:{<name>}     list    waiting owners, in the order of their arrival
//	           redisson_lock_timeout:{<name>}   zset    waiting owner -> server's time in ms until which it counts as alive
//	rw         <name>   hash  mode, owner -> read holds, owner:write -> write holds
//	           {<name>}:<owner>:rwlock_timeout:<n>  string  the lease of a reader; n is the number of its holds, and Redisson's readers have a key for each
//	           leasehold_rwlock_wish:{<name>}       string  the waiting writer that later readers wait behind
//	           leasehold_rwlock_turn:{<name>}       string  the waiting reader that writers wait behind when a writer has left
//	any        redisson_lock_token:{<name>}     string  the latest fencing token, with lock.WithFencing
//	any        leasehold_forced:{<name>}        string  how the lock was last unlocked by force, for a week (written by package admin)
//	client     leasehold_client:<uuid>           hash    what a client tells of itself
//	limit      <name>:<key>  string  what is owed of each limit (include_limit)
//	window     <name>             hash    rate, interval, type, keepAliveTime
//	           {<name>}:value     string  how many units are left
//	           {<name>}:permits   zset    what was taken (include_window) -> when, in the server's ms
//	bloom      <name>             string  the bits
//	           {<name>}:config    hash    size, hashIterations, expectedInsertions, falseProbability
//	latch      <name>             string  the count
//	           leasehold_latch:{<name>}          hash    round, open, gone (include_latch)
//	           leasehold_latch_calls:{<name>}    zset    call that was counted -> server's time in ms until which it is remembered
//	wait group       leasehold_crew:{<name>}     zset  worker -> until when it counts as alive, or a mark (include_crew)
//	leader     leasehold_leader:{<name>}   hash  token, value, number, by, since: what the holder of the lock says of itself
//	fence      leasehold_fence:{<key>}          string  the largest token seen at <key>, a key of the user's
//
// Where a name has braces of its own, none are added, and a key that begins with leasehold
// ends in a colon.
//
// The layout is Redisson's, apart from the keys and the field that begin with leasehold, so that Java and Go
// share locks. The scripts differ from Redisson's in three points: they take the
// resulting count, a re-entry never shortens the lease, and they need no unlock
// latch key, as the count tells a repeated release.
package luascripts

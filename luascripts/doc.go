// Package luascripts contains every Lua script of this module, and one typed Go function for each.
// Nothing else in this module writes to the keys of a lock or of a rate limiter.
//
// The package can be read on its own. Its API can change in every version.
//
// The scripts of rate limiters are here, too. All scripts are loaded, included and checked in one
// way, and no script text is anywhere else.
//
// Each script is a separate file, <kind>_<verb>.lua. Its header is its contract. It lists each key
// with its type, each argument with its unit, and every reply. A test reads the headers and fails
// when a script uses what its header does not list. The functions that scripts share are in
// include_<name>.lua. The line "-- include: <name>", the second of a file, puts them before it.
//
// # Rules of the scripts
//
//   - A script receives the required result ("want 2"), never what to add. It may be sent twice.
//     The second copy changes nothing and returns the same reply. The scripts of rate limiters add,
//     and the scripts that force-unlock remove any holder, so these are sent once.
//   - A script reads first and writes last. A reply below zero, or an error of the first read,
//     means that the script changed no hold of a living owner. It may have removed dead owners, or
//     the caller's queue position, as its header says.
//   - The first write cannot grow memory, unless an owner acquires the lock or starts to wait.
//     Reentering, renewing and releasing therefore work on a server with full memory.
//   - A script never shortens the lease of an owner, except reentrant_retain, whose owner has
//     finished. Expiry is relative, and only the server's clock counts.
//   - A plain lock has one key, or two with lock.WithFencing. A script with several keys is
//     rejected with TRYAGAIN while their cluster slot is migrated to another node. Channels are
//     arguments, so ACL rules need no key pattern for them.
//   - What a script reports about a hold, a permit, a worker or a latch is final for its caller.
//     Only a primary may therefore report it. A replica can have old data, and a script that only
//     reads would run there. Before such a reply, a script calls a command that writes but changes
//     nothing, such as HDEL of a field that never exists. A replica rejects this command with
//     READONLY. A script that may also acquire something calls it only before the reply. The reason
//     is that after any write, full memory no longer stops the rest of a script. The flags of Redis
//     7 ("#!lua") would have the same effect, but Redis 6.2 does not support them.
//   - A script calls PUBLISH with pcall. A notification that is denied must not turn a release that
//     happened into an error.
//
// # Keys
//
//	kind       key      type  content
//	reentrant  <name>   hash  owner -> hold count, one owner; and leasehold_line, the queue of waiting processes
//	fair       <name>   hash  as a plain lock; the number in an owner string begins with one zero here, and with two in a plain lock
//	           redisson_lock_queue:{<name>}     list    waiting owners, in the order of their arrival
//	           redisson_lock_timeout:{<name>}   zset    waiting owner -> server's time in ms until which it counts as alive
//	rw         <name>   hash  mode, owner -> read holds, owner:write -> write holds
//	           {<name>}:<owner>:rwlock_timeout:<n>  string  the lease of a reader; n is the number of its holds. Redisson's readers have a key for each hold
//	           leasehold_rwlock_wish:{<name>}       string  the intent of a waiting writer: later readers wait behind it
//	           leasehold_rwlock_turn:{<name>}       string  the reservation of a waiting reader, and the batch of readers
//	any        redisson_lock_token:{<name>}     string  the latest fencing token, with lock.WithFencing
//	any        leasehold_forced:{<name>}        string  the audit record of the last force-unlock,
//	                                                    for a week; no script writes it
//	client     leasehold_client:<uuid>           hash    the registry entry of a client
//	limit      <name>:<key>  string  the usage of each limit (include_limit)
//	window     <name>             hash    rate, interval, type, keepAliveTime
//	           {<name>}:value     string  the remaining permits
//	           {<name>}:permits   zset    entry of a call (include_window) -> when it took permits, in the server's ms
//	bloom      <name>             string  the bits
//	           {<name>}:config    hash    size, hashIterations, expectedInsertions, falseProbability
//	semaphore  <name>             string  the number of free permits
//	           {<name>}:timeout   zset    held permit -> when its lease expires
//	           leasehold_semaphore_queue:{<name>}   list  waiting owners, in the order of arrival
//	           leasehold_semaphore_alive:{<name>}   zset  waiting owner -> until when it is alive
//	           leasehold_semaphore_slots:{<name>}   hash  slot number -> "<token> <permit>"
//	latch      <name>             string  the count
//	           leasehold_latch:{<name>}          hash    round, open, gone (include_latch)
//	           leasehold_latch_calls:{<name>}    zset    counted call -> server's time in ms until which it is remembered
//	wait group       leasehold_crew:{<name>}     zset  worker -> when its lease expires, or a mark (include_waitgroup)
//	leader     leasehold_leader:{<name>}   hash  token, value, number, by, since: the value of the leader
//	fence      leasehold_fence:{<key>}          string  the highest token seen at <key>, a key of the application
//
// If a name contains braces, none are added, and a key that begins with leasehold ends in a colon.
//
// The layout is Redisson's, apart from the keys and the field that begin with leasehold, so that
// Java and Go share locks. The scripts differ from Redisson's in three points. They receive the
// resulting count. A reentry never shortens the lease. They need no unlock latch key, because the
// count detects a repeated release.
package luascripts

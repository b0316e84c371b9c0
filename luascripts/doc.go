// Package luascripts contains every Lua script of this module, and one typed Go function for each.
// Nothing else in this module writes to the keys of a lock or of a rate limiter.
//
// The package can be read on its own. Its API can change in every version.
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
// docs/reference/redis-keys.md in the repository lists the keys of each type with their content, and
// the header of a script lists the keys that it uses.
//
// The layout is Redisson's, apart from the keys and the field that begin with leasehold, so that
// Java and Go share locks. The scripts differ from Redisson's in three points. They receive the
// resulting count. A reentry never shortens the lease. They need no unlock latch key, because the
// count detects a repeated release.
package luascripts

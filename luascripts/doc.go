// Package luascripts holds every script that changes a lock, and one typed Go
// function for each. Nothing else in this module writes to a lock's keys.
//
// A script is a file of its own, <kind>_<verb>.lua. Its header is its contract:
// each key with its type, each argument with its unit, every reply. A test
// reads the headers and fails when a script uses what its header does not list.
// The functions that scripts share are in include_<name>.lua; "-- include: <name>" in
// the second line of a file puts them before it.
//
// # Rules the scripts keep
//
//   - Told what must result ("want 2"), never what to add. A script may be sent
//     twice, and the second copy changes nothing and answers the same.
//   - Look first, write last. A reply below zero, and any error raised by the
//     first read, mean that nothing was written.
//   - The first write cannot grow memory, except when a free lock is taken. So
//     re-entering, renewing and releasing work on a server that is full.
//   - A lease is only ever lengthened. Expiry is relative; no clock but the
//     server's own counts.
//   - One key for each plain lock. A script with two keys is refused with
//     TRYAGAIN for as long as their cluster slot is on the move. Channels are
//     arguments, so that access lists need no key pattern for them.
//   - PUBLISH by pcall: a hint that is denied must not turn a release that
//     happened into an error.
//
// # Keys
//
//	kind       key      type  content
//	reentrant  <name>   hash  owner -> hold count, one field
//	fair       <name>   hash  as a plain lock
//	           redisson_lock_queue:{<name>}     list    waiting owners, first come first
//	           redisson_lock_timeout:{<name>}   zset    waiting owner -> server's ms until which it counts as alive
//	rw         <name>   hash  mode, owner -> read holds, owner:write -> write holds
//	           {<name>}:<owner>:rwlock_timeout:<n>  string  the lease of a reader, for each of its holds
//	           leasehold_rwlock_wish:{<name>}       string  the waiting writer whom readers let pass
//	           leasehold_rwlock_turn:{<name>}       string  the waiting reader whom writers let pass when a writer leaves
//	any        redisson_lock_token:{<name>}     string  the latest fencing token, with lock.WithFencing
//	fence      leasehold_fence:{<key>}          string  the largest token seen at <key>, a key of the user's
//
// Where a name brings braces of its own, none are added, and what begins with leasehold
// ends in a colon.
//
// The layout is Redisson's, but for what begins with leasehold, so that Java and Go
// share locks. The scripts are our own. They differ from Redisson's where it matters here: the
// resulting count is given, a re-entry never shortens the lease, and no unlock
// latch key is needed, as a repeated release is recognised by its count.
package luascripts

// Package chaos lets real processes take the same locks, and wait for each other by latches and a wait group, while everything
// around them goes wrong, and checks what they saw. It has tests only.
//
//	make chaos                          ten minutes, with a new seed
//	make chaos SEED=42 DURATION=2h      that seed, for two hours
//	make chaos SEED=42 ROUND=7          one round of it
//	make upgrade                        with clients of the latest release, and a deploy and its rollback
//
// A run is a series of rounds. The seed and the number of a round decide what the round is: one
// server, Sentinels, a cluster or five servers with a quorum; which faults come when; how the
// goroutines of its processes take their locks. The order in which threads run is not decided, so a repeated
// round has the same faults, and another history.
//
// Each hold is written down by its process: when it was asked for and granted, when the last look found
// it valid, what its Unlock said. In the end all processes finish, and
//
//	no two holds were valid at once, unless the lock allows that
//	tokens grew from holder to holder
//	no hold was told that it is lost while its lease lasted, and nobody had taken the lock away
//	in a calm round, a fair lock was granted in the order of arrival, unless the machine stood still meanwhile
//	every call came to its end, and Close left no goroutine
//	the server has no key of a lock any more
//	Porcupine finds a legal order of the calls, for the locks that are taken rarely
//
//	no latch was open before each part of its round had been counted, and none that was made was unknown
//	no wait group was done while it had a worker that was not; each lost worker was named, and no other one
//
// After some faults two owners can believe in one lock for a lease: a server that forgot what it knew, a failover
// that forgot the last writes, a lock that was unlocked by force, a server's clock that was set forward. docs/evidence/guarantees.md says
// so. Such overlaps are counted, and are wrong only where they cannot come from the fault. Quorums have no such
// excuse. A latch or a wait group that was made before such a fault can be forgotten; one that is made after it has no excuse.
//
// A failed round leaves a directory: the plan and its faults, the history of all calls as a table, a page that draws it around
// what was wrong, what the processes and the servers logged, and what MONITOR showed.
//
// Redisson takes the same locks and permits, past the broken network. It takes no locks of a quorum, which it does not know, and
// no register of tokens; it takes a fair lock only where it need not wait.
package chaos

// Package chaos makes real processes acquire the same locks, and wait for each other by latches and a wait group, while
// faults of all sorts are injected, and checks what the processes recorded. It has only tests.
//
//	make chaos                          ten minutes, with a new seed
//	make chaos SEED=42 DURATION=2h      that seed, for two hours
//	make chaos SEED=42 ROUND=7          one round of it
//	make upgrade                        with clients of the latest release, and a deploy and its rollback
//
// A run is a series of rounds. The seed and the number of a round determine the topology (one server, Sentinels, a
// cluster, or five servers with a quorum), the schedule of the faults, and how the goroutines of its processes acquire
// their locks. They do not determine the scheduling of threads, so a repeated round has the same faults, but another
// history.
//
// Each process records its holds: when each was requested and granted, when the last check found it valid, and the
// result of its Unlock. In the end all processes finish, and
//
//	no two holds were valid at once, unless the lock allows that
//	tokens increased from holder to holder
//	no hold was reported lost while its lease was valid, unless the lock had been removed
//	in a calm round, a fair lock was granted in the order of arrival, unless the machine stalled in the meantime
//	every call returned, and Close left no goroutine
//	the server has no keys of locks
//	Porcupine finds a legal order of the calls, for the locks that are rarely acquired
//
//	no latch was released before each part of its round had been counted, and none that had been created was unknown
//	no wait group was done while it had a worker that was not; each lost worker was named, and no other one
//
// After some faults, two owners can act as the holder of one lock for a lease: a server that lost its data, a failover
// that lost the last writes, a force-unlock, a server's clock that moved forward (docs/reference/failure-modes.md). Such
// overlaps are counted, and are violations only if the fault cannot explain them. For quorums, no fault is an excuse. A
// latch or a wait group that was created before such a fault can be lost; if it was created after the fault, there is
// no excuse.
//
// A failed round leaves a directory: the plan and its faults, the history of all calls as a table, a page that draws
// the history around each finding, the logs of the processes and the servers, and the output of MONITOR.
//
// Redisson acquires the same locks and permits, bypassing the broken network. It takes no part in quorums, which it
// does not support, or in locks with token counters, and acquires a fair lock only without waiting.
package chaos

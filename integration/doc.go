// Package integration tests leasehold in realistic environments: on real servers, from several operating system
// processes, with faults. It has only tests, in a separate module, so that their dependencies are not dependencies of
// users.
//
//	exclusion    many processes, few names: never two owners inside, and a checked history
//	rwexclusion  the same for read/write locks: never a writer together with another owner
//	fairorder    a thousand waiters, many of which die or give up: none is overtaken
//	fairqueue    the ways in which a queue can break
//	readwrite    the leases of readers and writers
//	readers      readers that wait behind a writer enter together
//	turn         readers among writers without a pause
//	preference   a writer under a stream of readers
//	lostreply    every reply lost once: counts and results stay correct
//	cancel       canceled calls: nothing of them is left
//	pause        processes paused past their leases: the first check detects the loss
//	crash        processes killed: others continue in time
//	handover     a plain lock goes from one owner to the next: processes killed, paused, disconnected
//	             and force-unlocked at each step, turns, and a client that does not know the queue
//	classic      the well-known bugs of simple locks, next to leasehold
//	many         ten thousand locks at once
//	multilock    several locks at once, in any order; quorum: one lock on five servers
//	fence        fencing checks in PostgreSQL and SQLite; fencing: the token counters
//	replicas     locks that replicas confirm
//	renewal      names that were lost, or come and go: held locks are renewed
//	subscriptions many waiters, one connection
//	cluster      the rules on a cluster: notifications, load, a shard that dies
//	conformance  the rules of package locktest on one server, or on your server
//	container    the same on a server in a container
//	topologies   the same over a Unix socket, TLS, with Sentinel, and with the minimum permissions
//	failover     failovers that lose writes: tokens protect the resource
//	failoverload failovers under load: which holders are notified, and when; waiters continue
//	java         Redisson on a JVM, on one server and on a cluster (make interop)
//	hot          a lock that is handed off millions of times, with an exact checker
//	neighbour    forged messages and entries of a hostile client of the same server
//	figures      the measurements of docs/evidence/reliability.md that no other test makes
//
// Package chaos draws faults of all sorts from a seed. Package internal/history decides whether the results of the
// owners were legal. Programs in proof run these tests on several servers (versions) and repeatedly (reliability), and
// write docs/evidence/compatibility.md and docs/evidence/reliability.md.
//
// Each test file covers one subject, described at its first test.
//
// # How to run it
//
//	cd integration && go test ./...
//
// It needs Linux and a redis-server (or valkey-server) on the PATH. The package comment of internal/redistest describes
// which one it uses, and when the tests are skipped or fail without one. It starts and stops its servers itself. A run
// takes some minutes on two cores; -short does a tenth of the work.
//
//	LEASEHOLD_ACQUISITIONS=1000000   how many acquisitions each exclusion test makes
//	LEASEHOLD_SEED=42                repeats a run's random choices, though not its timing
//	LEASEHOLD_FAILOVERS=20           how many failovers each failover test triggers
//	LEASEHOLD_SOAK=5m                how long the soak tests run
//	LEASEHOLD_REQUIRE_JAVA=1         runs the tests with Java, as make interop does, and fails without a JDK and Maven
//	LEASEHOLD_REDIS_URL=redis://…    a server for TestConformance, which leaves nothing on it
//	LEASEHOLD_FAILURES=dir           where histories of failed runs go; a temporary directory if not set
//
// # Workers
//
// A process that a test pauses or kills is this test binary, started again. TestMain checks an environment variable, and
// then executes commands instead of tests: JSON, one line each, from standard input to standard output. Times are read
// from CLOCK_MONOTONIC, which all processes of a host share, so that events of two processes can be put in order.
//
// # Redisson's own scenarios
//
// What the tests of Redisson 4.7.0 cover, and where leasehold tests it. A name without
// a package is a test in this package; "rule" is a rule of package locktest, "fault" a fault of
// internal/kindtest, and both are tested with every type of lock.
//
//	many threads, few names, one connection    TestSubscriptions_oneConnectionForAll
//	an interrupted tryLock                     TestCancel
//	a server that is down                      fault ServerDown
//	remaining lease time, hold counts          fault Inspect, rule "mixed leases", TestJava_reentry
//	a limited wait                             rule "limited wait"
//	expiry; unlocking after it                 rule "fixed lease"
//	force                                      fault ForceUnlock, TestReadWrite_force, TestJava_force
//	a client that disappears                   TestCrash_holder, TestJava_killed, TestJava_weAreKilled
//	unlock by another owner, or twice          rule "unlock twice"; a Hold is the proof
//	reentry; and none by accident              rules "reentry", "no accidental reentry"
//	contention, one client and many            TestExclusion, TestExclusion_readWrite, rule "many"
//	many names                                 TestMany
//	clusters, failover                         TestConformance_cluster, TestCluster_failovers
//	names, a mapper of names                   rule "names", fault KeyPrefix, TestJava_names
//	fair: order                                TestFairOrder, TestJavaFair_mixedQueue
//	fair: leases that expire                   TestFairQueue_expiredLeases
//	fair: deadlines that drift                 TestFairQueue_separateDeadlines, TestFairOrder_deathsDoNotAddUp
//	fair: a failed try leaves nothing          TestFairQueue_failedTryLockLeavesNothing, TestFairQueue_joiningAndLeavingLeavesNothing
//	fair: the server rejects writes            TestFairQueue_writesRejected
//	read/write: leases of several readers      TestReadWrite_longestReadLease, _readersBehindALease, _writerBehindALease
//	read/write: fifty readers are renewed      TestReadWrite_allReadersAreRenewed
//	read/write: reentry and the lease          TestReadWrite_reentryKeepsTheLease, TestReadWrite_leaseIsRenewed
//	read/write: a writer reads, and downgrades TestReadWrite_writerReads, rule "downgrade"
//	read/write: twenty readers behind a writer TestReaders
//	read/write: a dead client's reader         TestCrash_reader, TestJavaRW_deadReader
//	renewal of a name that was lost before     TestRenewal_sameNameAfterALoss
//	renewal and reentry                        TestRenewal_reentry
//	renewal while others come and go           TestRenewal_amongShortLocks
//	multi-lock                                 TestMultiLock, TestQuorum…, rules in package multilock
//	fenced: tokens grow                        TestFencing_tokenCounter, TestJava_fencing
//
// leasehold has none of these: locks that poll instead of listening, listeners of key events, and the
// synchronizers that are not locks.
package integration

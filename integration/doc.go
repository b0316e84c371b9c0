// Package integration tests leasehold as its users meet it: against real
// servers, from several operating system processes, with faults. It holds tests
// only, in a module of its own, so that what they need burdens nobody else.
//
//	exclusion    many processes, few names: never two inside, and a checked history
//	rwexclusion  the same for read/write locks: never a writer with anybody
//	fairorder    a thousand waiters of whom many die or give up: nobody is overtaken
//	fairqueue    the ways in which a queue can go wrong
//	readwrite    the leases of readers and writers, side by side
//	readers      those who wait behind a writer come in together
//	preference   a writer under a stream of readers
//	lostreply    every reply lost once: counts and answers stay right
//	cancel       calls that were given up: nothing of them stays behind
//	pause        processes stopped past their leases: the first look tells
//	crash        processes killed: others go on in time
//	classic      the well-known mistakes of home-made locks, beside ours
//	many         ten thousand locks at once
//	cluster      the rules, and what a cluster can do to them: hints, load, a shard that dies
//	conformance  the rules of package locktest on one server, also one of yours
//	topologies   the same over a Unix socket, TLS, Sentinels, and with few rights
//	failover     failovers that forget: tokens guard
//	failoverload failovers under load: who is told, and when; who goes on
//	model        can the checker of histories fail? And rwmodel, that of read/write locks
//
// Each test file answers one question, and says in its head what would be a
// wrong answer.
//
// # How to run it
//
//	cd integration && go test ./...
//
// It needs Linux and a redis-server (or valkey-server) on the PATH; see
// internal/redistest for which one it takes, and for when it skips and when it
// fails without. It starts and ends its servers itself. A run takes about four
// minutes on two cores; -short does a tenth of the work.
//
//	LEASEHOLD_ACQUISITIONS=1000000   how many acquisitions each exclusion test makes
//	LEASEHOLD_SEED=42                repeats a run's random choices, though not its timing
//	LEASEHOLD_FAILOVERS=20           how many failovers each failover test provokes
//	LEASEHOLD_SOAK=5m                for how long the soak tests go on
//	LEASEHOLD_REDIS_URL=redis://…    a server for TestConformance, which leaves nothing on it
//	LEASEHOLD_FAILURES=dir           where histories of failed runs go; else a temporary directory
//
// # Workers
//
// A process that is to be stopped or killed is this test binary, started once
// more: TestMain looks for a variable in the environment and then does not run
// tests but what it is told, in JSON, one line a command, by standard input and
// output. Times are read from CLOCK_MONOTONIC, which all processes of a host
// share, so that what two processes saw can be put in order.
package integration

//go:build linux

// Command benchmarks measures leasehold next to its peers and the floors, in one
// run on one machine, and prints Markdown.
//
//	go run .                                  everything; some forty minutes
//	go run . -set kinds                       what is no lock: semaphores, latches, rate limiters, Bloom filters
//	go run . -short                           every cell for a moment, to see that it works
//	go run . -cells '^hot' -reps 9            some cells
//	go run . -contenders 'leasehold|^f1'      some contenders
//	go run . -set locks -doc ../../docs/evidence/performance.md    the tables go into that file
//	go run . -cells '^free-' -pictures ../../docs/pictures         its chart, too
//	go run . -cells '^free$' -contenders leasehold -cpuprofile /tmp/prof
//
// It needs Linux and a redis-server or valkey-server on the PATH, and starts and
// ends it itself. [docs/evidence/performance.md] says how it measures. The tables of the kinds that are no locks are in
// [docs/evidence/performance-kinds.md].
//
//	main.go        the flags, and the order in which things happen
//	cells.go       the table of cells: the contenders, the work and the aims of each
//	contenders.go  the table of contenders, and leasehold; peers.go the peers;
//	floors.go      the floors f1 and f2; fused.go the floors f3 and f4
//	rates.go       rate limiters; bits.go Bloom filters; latches.go latches
//	loop.go        the work of most cells: lock, unlock, for a while
//	handover.go    two callers hand one lock to and fro
//	holding.go     many locks held; many goroutines waiting
//	stage.go       a cell's server and worker processes; server.go the server, which can also stand still; delay.go the round trip
//	worker.go      a contender's process; board.go the memory that the processes of a cell share
//	report.go      medians, ratios, Markdown
//	charts.go      pictures of them
//
// A worker process is this program, started once more.
//
// [docs/evidence/performance.md]: ../../docs/evidence/performance.md
// [docs/evidence/performance-kinds.md]: ../../docs/evidence/performance-kinds.md
package main

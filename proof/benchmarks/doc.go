//go:build linux

// Command benchmarks compares leasehold with its peers and the floors in one run on
// one machine, and prints Markdown.
//
//	go run .                                  everything; about forty minutes
//	go run . -set kinds                       only semaphores, latches, rate limiters and Bloom filters
//	go run . -short                           each cell briefly, to check that it works
//	go run . -cells '^hot' -reps 9            some cells
//	go run . -contenders 'leasehold|^f1'      some contenders
//	go run . -set locks -doc ../../docs/evidence/performance.md    also write the tables into that file
//	go run . -cells '^free-' -pictures ../../docs/pictures         also draw its chart
//	go run . -cells '^free$' -contenders leasehold -cpuprofile /tmp/prof
//
// It needs Linux and a redis-server or valkey-server on the PATH, and starts and
// stops the server itself. [docs/evidence/performance.md] describes the method. The tables of objects that are not
// locks are in [docs/evidence/performance-kinds.md].
//
//	main.go        the flags and the sequence of a run
//	cells.go       the cells: contenders, work and targets of each
//	contenders.go  the contenders, and leasehold; peers.go the peers;
//	floors.go      the floors f1 and f2; fused.go the floors f3 and f4
//	rates.go       rate limiters; bits.go Bloom filters; latches.go latches
//	loop.go        the work of most cells: lock, unlock, for a while
//	handover.go    two callers hand one lock back and forth
//	holding.go     many locks held; many goroutines waiting
//	stage.go       a cell's server and worker processes; server.go the server, which can be paused; delay.go the round trip
//	worker.go      a contender's process; board.go the memory that the processes of a cell share
//	report.go      medians, ratios, Markdown
//	charts.go      charts
//
// A worker process is another instance of this program.
//
// [docs/evidence/performance.md]: ../../docs/evidence/performance.md
// [docs/evidence/performance-kinds.md]: ../../docs/evidence/performance-kinds.md
package main

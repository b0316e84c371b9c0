//go:build linux

// Command benchmarks compares leasehold with alternatives and with lower bounds ("floors"), in one run on one machine,
// and prints Markdown.
//
//	go run .                                  everything; about 80 minutes for the locks alone
//	go run . -set kinds                       semaphores, latches, rate limiters and Bloom filters
//	go run . -short                           every cell for a moment, to check that it works
//	go run . -cells '^hot' -reps 9            some cells
//	go run . -contenders 'leasehold|^f1'      some contenders
//	go run . -set locks -doc ../../docs/evidence/performance.md    writes the tables into that file
//	go run . -cells '^free-' -pictures ../../docs/pictures         draws its chart, too
//	go run . -cells '^free$' -contenders leasehold -cpuprofile /tmp/prof
//
// It needs Linux and a redis-server or valkey-server on the PATH, which it starts and stops itself.
// [docs/evidence/performance.md] describes the method. The tables of everything but locks are in
// [docs/evidence/performance-kinds.md].
//
//	main.go        the flags, and the sequence of a run
//	cells.go       the table of cells: the contenders, the work and the targets of each
//	contenders.go  the table of contenders, and leasehold; peers.go the alternatives;
//	floors.go      the floors f1 and f2; fused.go the floors f3 and f4
//	rates.go       rate limiters; bits.go Bloom filters; latches.go latches
//	loop.go        the work of most cells: repeated lock and unlock
//	handover.go    two callers hand one lock back and forth
//	holding.go     many locks held; many goroutines waiting
//	stage.go       a cell's server and worker processes; server.go the server, which can also be paused; delay.go the round trip
//	worker.go      a contender's process; board.go the memory that the processes of a cell share
//	report.go      medians, ratios, Markdown
//	charts.go      charts
//
// A worker process runs this same program.
//
// [docs/evidence/performance.md]: ../../docs/evidence/performance.md
// [docs/evidence/performance-kinds.md]: ../../docs/evidence/performance-kinds.md
package main

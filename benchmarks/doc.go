//go:build linux

// Command benchmarks measures leasehold beside its peers and the floors, in one
// run on one machine, and prints Markdown.
//
//	go run .                                  everything; some twenty-five minutes
//	go run . -short                           every cell for a moment, to see that it works
//	go run . -cells '^hot' -reps 9            some cells
//	go run . -contenders 'leasehold|^f1'      some contenders
//	go run . -doc ../docs/PERFORMANCE.md      and put the tables there
//	go run . -cells '^free$' -contenders leasehold -cpuprofile /tmp/prof
//
// It needs Linux and a redis-server or valkey-server on the PATH, and starts and
// ends it itself. [docs/PERFORMANCE.md] says how it measures.
//
//	main.go        the flags, and the order in which things happen
//	cells.go       the table of cells: who runs, which work, which aims
//	contenders.go  the table of contenders, and leasehold; peers.go the peers;
//	floors.go      the floors: what little could do, and fused.go what little should
//	loop.go        the work of most cells: lock, unlock, for a while
//	handover.go    two processes pass one lock to and fro
//	holding.go     many locks held; many goroutines waiting
//	stage.go       a cell's server and worker processes; server.go the server, also one that stands still
//	worker.go      a contender's process; board.go what those of a cell share
//	report.go      medians, ratios, Markdown
//
// A worker process is this program, started once more.
//
// [docs/PERFORMANCE.md]: ../docs/PERFORMANCE.md
package main

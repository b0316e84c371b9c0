//go:build linux

package main

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// cell is one workload, which the contenders run one after the other, repeatedly.
type cell struct {
	name       string
	title      string
	contenders []string
	reference  string // the contender that the multiples in columns refer to
	processes  int    // processes of each contender
	masters    int    // of a cluster; 0 for one server
	module     bool   // the server loads the module given by -module
	settings   settings
	roundTrip  time.Duration // the added round trip; 0 for none
	more       int           // multiplies the repetitions, where slices are short
	large      bool          // only with -large
	slice      func(*stage) (sample, error)
	columns    []column
	aims       []aim
	headlines  []headline
}

// headline is a row of the summary table.
type headline struct {
	text   string
	metric string
	less   bool // smaller is better
	digits int
}

// column is a metric in a table, or its multiple of the reference's metric.
type column struct {
	head     string
	metric   string
	multiple bool
	digits   int
}

// aim is a target for a metric of leasehold, absolute or as a multiple.
type aim struct {
	what    string
	of      string // the default is leasehold
	metric  string
	over    string // a contender, or best: the best alternative; if empty, the target is absolute
	atLeast float64
	atMost  float64 // when atLeast is 0
}

const best = "best alternative"

var (
	peers   = []string{"rueidislock", "redsync-rueidis", "redsync-goredis", "redislock"}
	hotFive = append([]string{"f2", "f3", "f4", "leasehold", "rueidislock-loop"}, peers...)
	allHot  = append(slices.Clip(hotFive), "redisson")
	// With their default intervals, pollers hardly ever acquire the lock after another goroutine releases it. 5 ms
	// is their best setting here.
	polling = settings{Poll: 5 * time.Millisecond}
)

var (
	throughput = []column{
		{"pairs/s", "locks/s", false, 0}, {"× f1", "locks/s", true, 2}, {"p50 µs", "p50 us", false, 1}, {"p99 ms", "p99 ms", false, 2},
		{"client CPU × f1", "cpu/lock", true, 2}, {"commands", "sent/lock", false, 2}, {"allocs", "allocs", false, 0}, {"B", "bytes", false, 0},
	}
	contention = []column{
		{"changes of holder/s", "switches/s", false, 0}, {"× f3", "switches/s", true, 2}, {"locks/s", "locks/s", false, 0},
		{"commands/lock", "sent/lock", false, 2}, {"Jain", "jain", false, 2}, {"p99 wait ms", "p99 ms", false, 1},
		{"longest ms", "longest ms", false, 0}, {"starved", "starved", false, 0}, {"CPU µs/lock", "cpu/lock", false, 1},
	}
	processes = []column{{"changes of process/s", "moves/s", false, 0}, {"commands/change of process", "sent/move", false, 2}}
	tripwise  = []column{{"locks/round trip", "locks/rtt", false, 2}, {"changes of process/round trip", "moves/rtt", false, 2}}
)

func cat(lists ...[]column) (all []column) {
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

// cells lists all cells, in the order of the tables.
var cells = slices.Concat(lockCells, fleetCells, semaphoreCells, latchCells, rateCells, bloomCells)

// set returns the name of the cell's set: each set has its own page.
func (c *cell) set() string {
	if slices.Contains(lockCells, c) || slices.Contains(fleetCells, c) {
		return "locks"
	}
	return "kinds"
}

// semaphoreCells compare permits with plain locks of this library.
var semaphoreCells = []*cell{
	{
		name: "permit", title: "A free permit of a semaphore, compared with a free lock: one goroutine",
		contenders: []string{"leasehold", "permits"}, reference: "leasehold", processes: 1, more: 4,
		slice:   loop(job{Do: "loop", Goroutines: 1, Each: true}, 250*time.Millisecond),
		columns: append([]column{throughput[0], {"× leasehold", "locks/s", true, 2}}, throughput[2:]...),
		aims: []aim{
			{what: "permits/s, × locks/s", of: "permits", metric: "locks/s", over: "leasehold", atLeast: 0.9},
			{what: "allocations per pair", of: "permits", metric: "allocs", atMost: 10},
		},
	},
	{
		name: "held-permits", title: "10,000 permits of one semaphore held and renewed for 20 s, compared with 10,000 locks, lease 5 s",
		contenders: []string{"leasehold", "permits"}, reference: "leasehold", processes: 1,
		settings: settings{Lease: 5 * time.Second},
		slice:    holding(10_000, 20*time.Second),
		columns: []column{
			{"commands/s", "sent/s", false, 0}, {"× leasehold", "sent/s", true, 2}, {"client CPU ms/s", "cpu/s", false, 1}, {"× leasehold", "cpu/s", true, 2},
			{"server CPU ms/s", "server/s", false, 1}, {"× leasehold", "server/s", true, 2}, {"goroutines", "goroutines", false, 0}, {"KB/permit", "KB", false, 2},
			{"lost", "lost", false, 0}, {"p99 ms of other commands during renewals", "others ms", false, 2},
		},
		aims: []aim{
			{what: "commands/s, × locks", of: "permits", metric: "sent/s", over: "leasehold", atMost: 1.1},
			{what: "client CPU, × locks", of: "permits", metric: "cpu/s", over: "leasehold", atMost: 1.1},
			{what: "server CPU, × locks", of: "permits", metric: "server/s", over: "leasehold", atMost: 1.1},
			{what: "permits lost", of: "permits", metric: "lost", atMost: 0},
		},
	},
}

var lockCells = []*cell{
	free("free", "A free lock, one goroutine: Lock and Unlock", false, 0.95),
	free("free-endless", "The same, with a context that is never canceled", true, 0.95),
	keysOfTheirOwn("keys-64", 64, false, 0, 1.05),
	keysOfTheirOwn("keys-512", 512, false, 0, 1.0),
	keysOfTheirOwn("keys-64-endless", 64, true, 0, 1.05),
	keysOfTheirOwn("keys-512-endless", 512, true, 0, 1.0),
	onACluster("keys-64-cluster", 64),
	onACluster("keys-512-cluster", 512),
	keysOfTheirOwn("keys-64-far", 64, false, time.Millisecond, 1.0),
	keysOfTheirOwn("keys-512-far", 512, false, time.Millisecond, 1.0),
	asyncFar("async-keys-far", 100, "100 locks in turn", 0.91),
	asyncFar("async-key-far", 1, "one lock repeatedly", 0.91),
	away(0.25), away(0.5), away(1), away(2), away(5), away(10),
	kept("kept", 1, 50),
	kept("kept-64", 64, 20),
	{
		name: "kept-2", title: "One lock, two processes in turn: locks that linger, compared with locks that do not linger",
		contenders: []string{"leasehold", "lingering"}, reference: "leasehold", processes: 2, settings: polling,
		slice: handover(1, 3*time.Millisecond, 2*time.Second),
		columns: []column{
			{"p50 µs", "p50 us", false, 0}, {"× leasehold", "p50 us", true, 2}, {"p99 µs", "p99 us", false, 0}, {"commands", "sent/lock", false, 2},
		},
		aims: []aim{{what: "p50, × leasehold", of: "lingering", metric: "p50 us", over: "leasehold", atMost: 1.1}},
	},
	{
		name: "hot", title: "One contended lock, 100 goroutines of a process",
		contenders: allHot, reference: "f3", processes: 1, settings: polling,
		headlines: []headline{{text: "one contended lock, 100 goroutines: changes of holder per second", metric: "switches/s"}},
		slice:     loop(job{Do: "loop", Goroutines: 100}, time.Second),
		columns:   contention,
		aims: []aim{
			{what: "changes of holder/s, × the best alternative", metric: "switches/s", over: best, atLeast: 20},
			{what: "commands per lock", metric: "sent/lock", atMost: 0.05},
			{what: "Jain's index", metric: "jain", atLeast: 0.99},
		},
	},
	{
		name: "hot-4", title: "One contended lock, four processes of 25 goroutines",
		contenders: allHot, reference: "f3", processes: 4, settings: polling,
		headlines: []headline{{text: "the same, in four processes", metric: "switches/s"}, {text: "the same: commands per lock", metric: "sent/lock", less: true, digits: 2}},
		slice:     loop(job{Do: "loop", Goroutines: 25}, time.Second),
		columns:   cat(contention, processes),
		aims: []aim{
			{what: "changes of holder/s, × the best alternative", metric: "switches/s", over: best, atLeast: 20},
			{what: "commands per change of process", metric: "sent/move", atMost: 2.1},
			{what: "Jain's index", metric: "jain", atLeast: 0.99},
		},
	},
	working1ms("work", 1, 100),
	working1ms("work-4", 4, 25),
	{
		name: "far", title: "One contended lock, 100 goroutines of a process, round trip 1 ms",
		contenders: hotFive, reference: "f3", processes: 1, settings: polling, roundTrip: time.Millisecond,
		headlines: []headline{{text: "one contended lock, 1 ms from Redis: changes of holder per second", metric: "switches/s"}},
		slice:     loop(job{Do: "loop", Goroutines: 100}, 2*time.Second),
		columns:   cat(contention, tripwise[:1]),
		aims:      []aim{{what: "locks per round trip (a hand-off inside a process needs none)", metric: "locks/rtt", atLeast: 10}},
	},
	{
		name: "far-4", title: "One contended lock, four processes of 25 goroutines, round trip 1 ms",
		contenders: hotFive, reference: "f3", processes: 4, settings: polling, roundTrip: time.Millisecond,
		slice:   loop(job{Do: "loop", Goroutines: 25}, 2*time.Second),
		columns: cat(contention, processes, tripwise),
		aims:    []aim{{what: "changes of process per round trip", metric: "moves/rtt", atLeast: 0.95}},
	},
	{
		name: "handover", title: "Two processes, one of them waits: from the call of Unlock until the other holds the lock",
		contenders: allHot, reference: "f3", processes: 2, settings: polling,
		headlines: []headline{{text: "from Unlock in a process to Lock in another, in µs", metric: "p50 us", less: true}},
		slice:     handover(1, 3*time.Millisecond, 2*time.Second),
		columns: []column{
			{"p50 µs", "p50 us", false, 0}, {"× f3", "p50 us", true, 2}, {"p99 µs", "p99 us", false, 0}, {"commands", "sent/lock", false, 2},
		},
		aims: []aim{{what: "p50, × the best alternative", metric: "p50 us", over: best, atMost: 1}},
	},
	{
		name: "handover-far", title: "The same, round trip 1 ms",
		contenders: hotFive, reference: "f3", processes: 2, settings: polling, roundTrip: time.Millisecond,
		slice: handover(1, 10*time.Millisecond, 2*time.Second),
		columns: []column{
			{"p50 µs", "p50 us", false, 0}, {"round trips", "p50 rtt", false, 2}, {"× f3", "p50 us", true, 2}, {"p99 µs", "p99 us", false, 0},
			{"commands", "sent/lock", false, 2},
		},
		aims: []aim{{what: "p50, × the best alternative", metric: "p50 us", over: best, atMost: 1}},
	},
	inTurn("turns", 1, "Two goroutines of a process"),
	inTurn("turns-2", 2, "Two processes"),
	fairly("fair-10", 1, 10),
	fairly("fair-100", 1, 100),
	fairly("fair-4x25", 4, 25),
	fairly("fair-1000", 1, 1000),
	{
		name: "readers", title: "Read lock, 100 readers of a process, no writer; f1 is one pair per reader, on separate keys",
		contenders: []string{"f1", "leasehold"}, reference: "f1", processes: 1,
		slice:   readers(100, time.Second),
		columns: throughput[:6],
		aims: []aim{
			{what: "pairs/s, × one pair per reader", metric: "locks/s", over: "f1", atLeast: 20},
			{what: "commands per pair", metric: "sent/lock", atMost: 0.05},
		},
	},
	{
		name: "waiters", title: "1,000 goroutines wait 10 s for a lock that another process holds, and are then served",
		contenders: []string{"f2", "f3", "leasehold", "rueidislock", "redsync-rueidis", "redislock"}, reference: "f3", processes: 2,
		headlines: []headline{{text: "1,000 waiters: commands per second while they wait", metric: "sent/s", less: true, digits: 1}, {text: "the same: ms until all are served", metric: "drain ms", less: true}},
		slice:     waiters(1000, 10*time.Second),
		columns: []column{
			{"commands/s", "sent/s", false, 1}, {"CPU ms/s", "cpu/s", false, 1}, {"KB/waiter", "KB", false, 1}, {"drain ms", "drain ms", false, 0},
			{"× f3", "drain ms", true, 2}, {"commands to drain", "sent/drain", false, 0},
		},
		aims: []aim{
			{what: "total commands/s while waiting", metric: "sent/s", atMost: 10},
			{what: "KB per waiter", metric: "KB", atMost: 5},
			{what: "time to serve all, × f3", metric: "drain ms", over: "f3", atMost: 1.5},
		},
	},
	waiting(1), waiting(10), waiting(100),
	holdingLocks("held", 10_000, "10,000 locks held and renewed for 20 s, lease 5 s"),
	holdingLocks("held-100k", 100_000, "100,000 locks held and renewed for 20 s, lease 5 s"),
	{
		name: "stall", title: "The server is unresponsive for 60 ms, three times: 64 goroutines on separate keys",
		contenders: append([]string{"f1", "leasehold"}, peers...), reference: "f1", processes: 1,
		headlines: []headline{{text: "Redis stalls for 60 ms: callers that wait indefinitely", metric: "hung", less: true}},
		slice:     stall(job{Do: "loop", Goroutines: 64, Each: true}, 60*time.Millisecond, 1500*time.Millisecond),
		columns: []column{
			{"did not return", "hung", false, 0}, {"failed", "failed", false, 0}, {"longest ms", "longest ms", false, 0}, {"pairs/s", "locks/s", false, 0},
		},
		aims: []aim{{what: "goroutines that never return", metric: "hung", atMost: 0}},
	},
	telemetry("telemetry-free", "Cost of telemetry: a free lock, one goroutine", job{Do: "loop", Goroutines: 1, Each: true}, 4),
	telemetry("telemetry-hot", "Cost of telemetry: one contended lock, 100 goroutines of a process", job{Do: "loop", Goroutines: 100}, 1),
}

// asyncFar compares an Unlock that waits for the reply with one that does not, at a distance.
func asyncFar(name string, names int, what string, least float64) *cell {
	return &cell{
		name: name, title: "Unlock with and without a wait for the reply: one goroutine locks " + what + ", round trip 1 ms",
		contenders: []string{"f1", "leasehold", "async"}, reference: "leasehold", processes: 1, more: 2, roundTrip: time.Millisecond,
		slice: loop(job{Do: "loop", Goroutines: 1, Each: true, Names: names}, 500*time.Millisecond),
		columns: []column{
			{"pairs/s", "locks/s", false, 0}, {"× leasehold", "locks/s", true, 2}, tripwise[0], {"p50 µs", "p50 us", false, 1}, {"p99 ms", "p99 ms", false, 2},
			{"commands", "sent/lock", false, 2}, {"allocs", "allocs", false, 0},
		},
		aims: []aim{{what: "locks per round trip", of: "async", metric: "locks/rtt", atLeast: least}},
	}
}

// distances and crowds list the cells of one chart each.
var (
	distances = []at{{"free-0.25ms", 0.25}, {"free-0.5ms", 0.5}, {"free-1ms", 1}, {"free-2ms", 2}, {"free-5ms", 5}, {"free-10ms", 10}}
	crowds    = []at{{"waiters-1", 1}, {"waiters-10", 10}, {"waiters-100", 100}, {"waiters", 1000}}
)

// away is the cell "free" with a longer round trip.
func away(ms float64) *cell {
	distance := strconv.FormatFloat(ms, 'g', -1, 64)
	return &cell{
		name: "free-" + distance + "ms", title: "A free lock, one goroutine, round trip " + distance + " ms",
		contenders: []string{"f1", "leasehold", "async", "rueidislock-loop", "redsync-rueidis", "redislock"}, reference: "f1", processes: 1, roundTrip: time.Duration(ms * float64(time.Millisecond)),
		slice:   loop(job{Do: "loop", Goroutines: 1, Each: true}, 500*time.Millisecond),
		columns: throughput[:4],
	}
}

// waiting is the cell "waiters" with fewer goroutines.
func waiting(goroutines int) *cell {
	n := number(float64(goroutines), 0)
	return &cell{
		name: "waiters-" + n, title: "Goroutines wait 3 s for a lock that another process holds: " + n,
		contenders: []string{"leasehold", "rueidislock", "redsync-rueidis", "redislock"}, reference: "leasehold", processes: 2,
		slice:   waiters(goroutines, 3*time.Second),
		columns: []column{{"commands/s", "sent/s", false, 1}, {"CPU ms/s", "cpu/s", false, 1}},
	}
}

// telemetry compares a client without telemetry with others.
func telemetry(name, title string, j job, more int) *cell {
	return &cell{
		name: name, title: title,
		contenders: []string{"unregistered", "leasehold", "observed"}, reference: "unregistered", processes: 1, more: more,
		slice: loop(j, 500*time.Millisecond),
		columns: []column{
			{"locks/s", "locks/s", false, 0}, {"× unregistered", "locks/s", true, 2}, {"client CPU µs/lock", "cpu/lock", false, 2}, {"× unregistered", "cpu/lock", true, 2},
			{"commands/lock", "sent/lock", false, 3}, {"allocs", "allocs", false, 1}, {"B", "bytes", false, 0},
		},
		aims: []aim{{what: "locks/s, × unregistered", metric: "locks/s", over: "unregistered", atLeast: 0.97}},
	}
}

func free(name, title string, endless bool, least float64) *cell {
	var headlines []headline
	if !endless {
		headlines = []headline{{text: "a free lock, one goroutine: pairs of Lock and Unlock per second", metric: "locks/s"}}
	}
	return &cell{
		name: name, title: title,
		contenders: append([]string{"f1", "f2", "f3", "leasehold"}, append(peers, "redisson")...), reference: "f1", processes: 1, more: 4,
		slice:   loop(job{Do: "loop", Goroutines: 1, Each: true, Endless: endless}, 250*time.Millisecond),
		columns: throughput, headlines: headlines,
		aims: []aim{
			{what: "pairs/s, × f1", metric: "locks/s", over: "f1", atLeast: least},
			{what: "allocations per pair", metric: "allocs", atMost: 10},
			{what: "bytes per pair", metric: "bytes", atMost: 600},
		},
	}
}

// kept compares locks that linger with locks that do not.
func kept(name string, around int, least float64) *cell {
	title := "A lock that lingers, one goroutine"
	if around > 1 {
		title = number(float64(around), 0) + " locks that linger, one goroutine acquires them in turn"
	}
	return &cell{
		name: name, title: title,
		contenders: []string{"f1", "leasehold", "lingering"}, reference: "f1", processes: 1, more: 2,
		slice:   loop(job{Do: "loop", Goroutines: 1, Each: true, Names: around}, 500*time.Millisecond),
		columns: throughput,
		aims:    []aim{{what: "pairs/s, × f1", of: "lingering", metric: "locks/s", over: "f1", atLeast: least}},
	}
}

func keysOfTheirOwn(name string, goroutines int, endless bool, roundTrip time.Duration, least float64) *cell {
	title := "A lock for each of " + number(float64(goroutines), 0) + " goroutines of a process"
	if endless {
		title += ", with contexts that are never canceled"
	}
	if roundTrip > 0 {
		title += ", round trip 1 ms"
	}
	all := append([]string{"f1", "f2", "leasehold", "leasehold-open"}, peers...)
	var headlines []headline
	if !endless && roundTrip == 0 {
		all = append(all, "redisson")
		headlines = []headline{{text: "free locks, " + number(float64(goroutines), 0) + " goroutines: pairs per second", metric: "locks/s"}}
	}
	return &cell{
		name: name, title: title,
		contenders: all, reference: "f1", processes: 1, more: 2, roundTrip: roundTrip,
		slice:   loop(job{Do: "loop", Goroutines: goroutines, Each: true, Endless: endless}, 500*time.Millisecond),
		columns: throughput, headlines: headlines,
		aims: []aim{
			{what: "pairs/s, × f1", metric: "locks/s", over: "f1", atLeast: least},
			{what: "client CPU per pair, × f1", metric: "cpu/lock", over: "f1", atMost: 0.6},
			{what: "pairs/s with client.Open, × the best alternative", of: "leasehold-open", metric: "locks/s", over: best, atLeast: 1.5},
		},
	}
}

// onACluster is keysOfTheirOwn on a cluster of three, where updates of different slots cannot share a script.
func onACluster(name string, goroutines int) *cell {
	return &cell{
		name: name, title: "A lock for each of " + number(float64(goroutines), 0) + " goroutines of a process, on a cluster of three",
		contenders: append([]string{"f1", "leasehold", "leasehold-open"}, peers...), reference: "f1", processes: 1, more: 2, masters: 3,
		slice:     loop(job{Do: "loop", Goroutines: goroutines, Each: true}, 500*time.Millisecond),
		columns:   throughput,
		headlines: []headline{{text: "free locks on a cluster of three, " + number(float64(goroutines), 0) + " goroutines: pairs per second", metric: "locks/s"}},
		aims:      []aim{{what: "pairs/s, × the best alternative", metric: "locks/s", over: best, atLeast: 1}},
	}
}

func working1ms(name string, processes, goroutines int) *cell {
	title := "The same as hot, with 1 ms of work inside"
	if processes > 1 {
		title = "The same as hot-4, with 1 ms of work inside"
	}
	return &cell{
		name: name, title: title,
		contenders: hotFive, reference: "f3", processes: processes, settings: polling,
		slice:   loop(job{Do: "loop", Goroutines: goroutines, Inside: time.Millisecond}, 2*time.Second),
		columns: contention,
		aims: []aim{
			{what: "longest wait, × f3", metric: "longest ms", over: "f3", atMost: 1.2},
			{what: "goroutines never served", metric: "starved", atMost: 0},
		},
	}
}

// inTurn measures the tail latency of hand-offs: the holder works for longer than a process hands a lock off
// without a command.
func inTurn(name string, processes int, who string) *cell {
	return &cell{
		name: name, title: who + ", one of them waits, with 20 ms of work inside: from the call of Unlock until the other holds the lock",
		contenders: []string{"f2", "f3", "leasehold", "rueidislock-loop", "redislock"}, reference: "f3", processes: processes, settings: polling,
		slice: handover(2/processes, 20*time.Millisecond, 8*time.Second),
		columns: []column{
			{"p50 µs", "p50 us", false, 0}, {"× f3", "p50 us", true, 2}, {"p99 µs", "p99 us", false, 0}, {"commands", "sent/lock", false, 2},
		},
		aims: []aim{{what: "p99, × the best alternative", metric: "p99 us", over: best, atMost: 1}},
	}
}

func fairly(name string, processes, goroutines int) *cell {
	title := "One fair lock, " + number(float64(goroutines), 0) + " goroutines of a process"
	if processes > 1 {
		title = "One fair lock, four processes of " + number(float64(goroutines), 0) + " goroutines"
	}
	// A thousand Java threads on one fair lock do not finish: each of their calls scans the whole queue.
	who := []string{"f3", "leasehold", "redisson"}
	if goroutines >= 1000 {
		who = who[:2]
	}
	return &cell{
		name: name, title: title,
		contenders: who, reference: "f3", processes: processes, settings: settings{Fair: true},
		slice: loop(job{Do: "loop", Goroutines: goroutines}, time.Second),
		columns: cat(contention[:3], []column{
			{"commands/lock", "sent/lock", false, 2}, {"server µs/lock", "busy/lock", false, 1}, {"client CPU µs/lock", "cpu/lock", false, 1},
			{"Jain", "jain", false, 2}, {"p99 wait ms", "p99 ms", false, 1}, {"starved", "starved", false, 0},
		}),
		headlines: []headline{{text: strings.ToLower(title[:1]) + title[1:] + ": changes of holder per second", metric: "switches/s"}},
		aims: []aim{
			{what: "changes of holder/s, × f3", metric: "switches/s", over: "f3", atLeast: 0.5},
			{what: "commands per change of holder", metric: "sent/lock", atMost: 3},
			{what: "goroutines never served", metric: "starved", atMost: 0},
		},
	}
}

func holdingLocks(name string, n int, title string) *cell {
	return &cell{
		name: name, title: title, large: n > 10_000,
		contenders: []string{"f2", "leasehold", "rueidislock", "redsync-rueidis"}, reference: "f2", processes: 1,
		settings: settings{Lease: 5 * time.Second},
		slice:    holding(n, 20*time.Second),
		columns: []column{
			{"commands/s", "sent/s", false, 0}, {"× f2", "sent/s", true, 2}, {"client CPU ms/s", "cpu/s", false, 1}, {"× f2", "cpu/s", true, 2},
			{"goroutines", "goroutines", false, 0}, {"KB/lock", "KB", false, 2}, {"lost", "lost", false, 0},
			{"p99 ms of other commands during renewals", "others ms", false, 2},
		},
		headlines: []headline{
			{text: number(float64(n), 0) + " locks held: commands per second to renew them", metric: "sent/s", less: true},
			{text: "the same: client CPU, ms per second", metric: "cpu/s", less: true, digits: 1},
		},
		aims: []aim{
			{what: "commands/s, × f2", metric: "sent/s", over: "f2", atMost: 1.5},
			{what: "client CPU, × f2", metric: "cpu/s", over: "f2", atMost: 1.5},
			{what: "goroutines", metric: "goroutines", atMost: 20},
			{what: "KB per lock", metric: "KB", atMost: 2},
			{what: "locks lost", metric: "lost", atMost: 0},
			{what: "p99 of other commands during renewals, ms", metric: "others ms", atMost: 2},
		},
	}
}

// readers is the slice of readers of one lock. Contenders without read locks use a separate lock for each
// goroutine.
func readers(goroutines int, d time.Duration) func(*stage) (sample, error) {
	return func(s *stage) (sample, error) {
		ours := contenders[s.contender].kind == ours
		return s.loop(job{Do: "loop", Goroutines: goroutines, Read: ours, Each: !ours}, s.time(d), nil)
	}
}

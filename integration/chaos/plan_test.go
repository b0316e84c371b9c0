//go:build linux

package chaos_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// Constants of all rounds.
const (
	lease     = 1500 * time.Millisecond // of the watchdogs
	opTimeout = lease / 6
	longest   = 2 * lease // the longest lease of any lock
)

// plan is one round: the processes, and the faults with their times. It depends only on the seed, and on the number and
// the length of the round.
type plan struct {
	Seed                  uint64
	Round                 int
	For                   time.Duration
	Topology              string // standalone, sentinel, cluster or quorum
	Temper                string // calm, safe or rough
	Processes, Goroutines int
	Places                []place
	Network               []fault // one after the other, in parallel with those of the servers
	Servers               []fault
	Durable               bool // the server persists each change

	Old func(slot, life int) *oldWorker `json:"-"` // the older version for this life of a process; nil for the current one, or if there are none
}

// place is a lock that the goroutines of all processes acquire, or a latch or a wait group with which they wait for each
// other.
type place struct {
	Name    string
	Kind    string   // plain, fair, rw, semaphore, multi, quorum, latch or wait group
	Fenced  bool     `json:",omitempty"`
	Lingers bool     `json:",omitempty"`
	Members []string `json:",omitempty"` // of a multi-lock
	Weight  int      // how often it is acquired; 0 for a latch and a wait group, which have separate goroutines
}

// permits is the number of permits of each semaphore.
const permits = 3

// fault is one fault.
type fault struct {
	At  time.Duration // after the start of the round, or after the end of the previous fault
	Do  string
	On  int           // which process, place or server
	For time.Duration `json:",omitempty"`
	Arg int           `json:",omitempty"`
}

func (f fault) String() string {
	text := fmt.Sprintf("%6.2fs %s on %d", f.At.Seconds(), f.Do, f.On)
	if f.For > 0 {
		text += fmt.Sprintf(" for %v", f.For)
	}
	if f.Arg != 0 {
		text += fmt.Sprintf(" (%d)", f.Arg)
	}
	return text
}

// kindOfFault is a type of fault that can be drawn: its weight, and its duration.
type kindOfFault struct {
	do          string
	weight      int
	least, most time.Duration
	arg         int // Arg is drawn from 1 to arg
}

// A calm round has no fault that delays heartbeats, so the order of fair queues must hold. A rough one also has faults
// after which two owners may act as the holder for one lease; such overlaps are counted, but are not violations.
var (
	calmNetwork = []kindOfFault{
		{"delay", 2, time.Second, 3 * time.Second, 20},           // of each request and reply, up to this many ms
		{"drop replies", 3, time.Second, 3 * time.Second, 100},   // this many of 1,000, each with its connection
		{"drop requests", 2, time.Second, 3 * time.Second, 50},   // the same
		{"drop messages", 3, time.Second, 3 * time.Second, 1000}, // this many of 1,000, silently
		{"cut", 2, 0, 0, 0}, // all connections of a process
	}
	safeNetwork = append(slices.Clone(calmNetwork),
		kindOfFault{"stop", 4, lease / 2, 3 * lease, 0},                                                       // SIGSTOP
		kindOfFault{"kill", 2, 0, 0, 0},                                                                       // SIGKILL, and another process replaces it
		kindOfFault{"partition", 2, lease / 10, 2 * lease, 0},                                                 // connections are closed, and no new ones are made
		kindOfFault{"half-open", 3, lease / 10, 5 * lease / 2, 0},                                             // no data is forwarded, and no connection is closed
		kindOfFault{"slow, then half-open", 3, lease, 2 * lease, int((lease - opTimeout) / time.Millisecond)}, // each reply is delayed by this many ms; then no data is forwarded for two leases
	)
	calmServers = []kindOfFault{
		{"script flush", 2, time.Second, 3 * time.Second, 0},     // every 10 ms
		{"kill clients", 2, 0, 0, 0},                             // CLIENT KILL TYPE normal
		{"kill subscribers", 3, time.Second, 2 * time.Second, 0}, // CLIENT KILL TYPE pubsub, every 20 ms: messages are lost
	}
	safeServers = append(slices.Clone(calmServers),
		kindOfFault{"freeze", 3, lease / 10, 2 * lease, 0},      // SIGSTOP
		kindOfFault{"memory full", 2, lease / 10, 2 * lease, 0}, // maxmemory 1, noeviction
	)
	roughServers = append(slices.Clone(safeServers),
		kindOfFault{"force", 3, 0, 0, 0},  // ForceUnlock
		kindOfFault{"delete", 3, 0, 0, 0}, // DEL
	)
	// Additional faults of each topology.
	roughOf = map[string][]kindOfFault{
		"standalone": {{"restart empty", 3, 0, lease, 0}, {"clock", 3, lease, 3 * lease, 60}},
		"sentinel":   {{"failover", 5, 0, 0, 2}}, // if Arg is 2, the last writes are lost
		"cluster":    {{"failover", 4, 0, 0, 2}, {"take over", 3, 0, 0, 0}},
	}
	safeOf = map[string][]kindOfFault{
		"durable": {{"crash", 4, 0, lease, 0}}, // kill -9; the server restarts with all its data
		"cluster": {{"move slot", 6, 0, lease / 2, 0}},
		"quorum":  {{"restart empty", 3, 0, 2 * lease, 0}, {"restart three empty", 4, 0, lease / 4, 0}, {"clock", 3, lease, 2 * lease, 60}},
	}
)

// newPlan draws the plan of a round.
func newPlan(seed uint64, round int, length time.Duration) plan {
	// Every four rounds use the four topologies, in random order.
	order := rand.New(rand.NewPCG(seed, uint64(round/4))).Perm(4)
	r := rand.New(rand.NewPCG(seed, 1<<32|uint64(round)))
	p := plan{
		Seed: seed, Round: round, For: length, Processes: 3, Goroutines: 6,
		Topology: []string{"standalone", "sentinel", "cluster", "quorum"}[order[round%4]],
		Temper:   []string{"calm", "safe", "rough", "rough"}[r.IntN(4)],
	}
	if only := topologies(); !slices.Contains(only, p.Topology) {
		p.Topology = only[round%len(only)]
	}
	if p.Topology == "quorum" {
		p.Temper = "safe"
		p.Places = []place{{Name: "quorum", Kind: "quorum", Weight: 3}, {Name: "quorum-fenced", Kind: "quorum", Fenced: true, Weight: 1}, {Name: "quorum-rare", Kind: "quorum", Weight: 1}}
	} else {
		p.Places = []place{
			{Name: "plain", Kind: "plain", Weight: 400},
			{Name: "plain-two", Kind: "plain", Weight: 100},
			{Name: "plain-three", Kind: "plain", Weight: 50},
			{Name: "plain-rare", Kind: "plain", Weight: 10},
			{Name: "plain-fenced", Kind: "plain", Fenced: true, Weight: 150},
			{Name: "plain-lingers", Kind: "plain", Lingers: true, Weight: 60},
			{Name: "plain-lingers-fenced", Kind: "plain", Fenced: true, Lingers: true, Weight: 20},
			{Name: "fair", Kind: "fair", Weight: 150},
			{Name: "fair-rare", Kind: "fair", Weight: 10},
			{Name: "rw", Kind: "rw", Weight: 200},
			{Name: "rw-rare", Kind: "rw", Weight: 20},
			{Name: "rw-lingers", Kind: "rw", Lingers: true, Weight: 20},
			{Name: "semaphore", Kind: "semaphore", Weight: 100},
			{Name: "multi", Kind: "multi", Members: []string{"plain-two", "plain-three"}, Weight: 30},
			{Name: "latch", Kind: "latch"},
			{Name: "latch-two", Kind: "latch"},
			{Name: "waitgroup", Kind: "waitgroup"},
		}
	}
	network, servers := safeNetwork, safeServers
	switch p.Temper {
	case "calm":
		network, servers = calmNetwork, calmServers
	case "rough":
		servers = append(slices.Clone(roughServers), roughOf[p.Topology]...)
	}
	if p.Temper != "calm" {
		servers = append(slices.Clone(servers), safeOf[p.Topology]...)
	}
	if p.Temper == "safe" && p.Topology == "standalone" {
		p.Durable, servers = true, append(slices.Clone(servers), safeOf["durable"]...)
	}
	if p.Topology == "quorum" && r.IntN(3) > 0 { // most rounds leave out faults that a quorum is not guaranteed to survive
		servers = slices.DeleteFunc(servers, func(k kindOfFault) bool { return k.do == "clock" })
	}
	p.Network = draw(r, network, length, p.Processes)
	p.Servers = draw(r, servers, length, 1<<16)
	return p
}

// together reports whether some calls acquire both locks at once.
func (p plan) together(a, b string) bool {
	return slices.ContainsFunc(p.Places, func(m place) bool { return slices.Contains(m.Members, a) && slices.Contains(m.Members, b) })
}

// draw fills the time with random faults.
func draw(r *rand.Rand, kinds []kindOfFault, length time.Duration, on int) (all []fault) {
	sum := 0
	for _, k := range kinds {
		sum += k.weight
	}
	for at := 500 * time.Millisecond; ; {
		dice, i := r.IntN(sum), 0
		for ; dice >= kinds[i].weight; i++ {
			dice -= kinds[i].weight
		}
		k := kinds[i]
		f := fault{At: at, Do: k.do, On: r.IntN(on)}
		if k.most > 0 {
			f.For = (k.least + time.Duration(r.Int64N(int64(k.most-k.least)))).Round(time.Millisecond)
		}
		if k.arg > 0 {
			f.Arg = 1 + r.IntN(k.arg)
		}
		if f.Do == "slow, then half-open" {
			at += 2 * lease
		}
		at += f.For + 100*time.Millisecond + time.Duration(r.Int64N(int64(time.Second))).Round(time.Millisecond)
		if at > length {
			return all
		}
		all = append(all, f)
	}
}

// String formats the plan for the log.
func (p plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "round %d of seed %d: %s, %s, %v, %d processes of %d goroutines", p.Round, p.Seed, p.Topology, p.Temper, p.For, p.Processes, p.Goroutines)
	for _, hand := range []struct {
		name   string
		faults []fault
	}{{"network", p.Network}, {"servers", p.Servers}} {
		fmt.Fprintf(&b, "\n  %s:", hand.name)
		for _, f := range hand.faults {
			fmt.Fprintf(&b, "\n    %v", f)
		}
	}
	return b.String()
}

// The same seed gives the same schedule, and different seeds give different ones. Every type of fault is drawn
// eventually.
func TestPlan(t *testing.T) {
	drawn := map[string]bool{}
	for seed := range uint64(20) {
		for round := range 8 {
			one, two := newPlan(seed, round, 20*time.Second), newPlan(seed, round, 20*time.Second)
			if one.String() != two.String() {
				t.Fatalf("two plans of one seed:\n%v\n%v", one, two)
			}
			if other := newPlan(seed+1, round, 20*time.Second); one.String() == other.String() {
				t.Errorf("the seeds %d and %d have the same plan", seed, seed+1)
			}
			for _, f := range slices.Concat(one.Network, one.Servers) {
				drawn[one.Topology+": "+f.Do] = true
			}
		}
	}
	for topology, extra := range map[string][]kindOfFault{
		"standalone": slices.Concat(safeNetwork, roughServers, roughOf["standalone"], safeOf["durable"]),
		"sentinel":   slices.Concat(safeNetwork, roughServers, roughOf["sentinel"]),
		"cluster":    slices.Concat(safeNetwork, roughServers, roughOf["cluster"], safeOf["cluster"]),
		"quorum":     slices.Concat(safeNetwork, safeServers, safeOf["quorum"]),
	} {
		for _, k := range extra {
			if !drawn[topology+": "+k.do] {
				t.Errorf("%s: %q was never drawn", topology, k.do)
			}
		}
	}
}

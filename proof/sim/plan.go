package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Plan is one history to play: the clients, what their callers do, and the faults. Each part can be removed without
// changing what happens to the others before they interact: no part counts events of another, and no random numbers
// are drawn during the simulation.
type Plan struct {
	Seed    uint64        // of the network delays
	Order   uint64        // of events at the same instant: the seed of the program's random numbers
	Clients int           // number of processes
	Lease   time.Duration // renewed by the watchdogs
	Rate    float64       // of the server's clock, relative to the clients' clock
	Near    time.Duration // the shortest transit time
	Far     time.Duration // the longest transit time
	Locks   []Lock
	Actors  []Actor
	Faults  []Fault
}

// Lock is a lock of some type.
type Lock struct {
	Kind    string // plain, fair, rw or semaphore
	Permits int    // of a semaphore
	Fenced  bool   // its tokens come from a token counter

	Linger time.Duration `json:",omitempty"` // how long a client keeps it after the last release; 0 disables it
}

// Actor is one goroutine of a client. It executes its operations one after the other.
type Actor struct {
	Client int
	Ops    []Op
}

// Op is one operation of an actor: it acquires a lock, holds it for a while and releases it.
type Op struct {
	Do       string        // lock, try or all: one lock, one attempt, all locks at once
	Lock     int           // which one
	Reads    bool          // of a read/write lock: to read
	After    time.Duration // delay before it begins
	Patience time.Duration // how long it waits; 0 is without limit
	Hold     time.Duration // how long it holds the lock
	Again    bool          // acquire the lock again while holding it
	Down     bool          // downgrade from writing to reading
	Fixed    time.Duration // a lease without renewals; 0 is the watchdog's lease
	Async    bool          // Unlock does not wait for the reply
}

// The faults. Those with Nth affect the nth script that a client sends, or the nth message to it; the others happen
// at a given time.
const (
	DropRequest   = "drop-request"   // the connection breaks before the command reaches the server
	DropReply     = "drop-reply"     // the command is executed, and then the connection breaks
	Copy          = "copy"           // the connection breaks; the command reaches the server much later, after what the client sends in the meantime
	DelayRequest  = "delay-request"  // the command and what follows it are delayed
	DelayReply    = "delay-reply"    // the reply and what follows it are delayed
	DropMessage   = "drop-message"   // a Pub/Sub message is lost
	DelayMessage  = "delay-message"  // a Pub/Sub message is delayed
	DoubleMessage = "double-message" // a Pub/Sub message is delivered again later, after subsequent ones

	Cut    = "cut"    // the connections of a client break; what it has sent arrives late, or never
	Refuse = "refuse" // like cut, and new connections fail for a while
	Pause  = "pause"  // nothing that a client sends or receives is delivered
	Freeze = "freeze" // the server is unresponsive
	Flush  = "flush"  // the server loses its scripts
	Kill   = "kill"   // a client is killed; what it has sent arrives late, or never
)

// Fault is one injected fault.
type Fault struct {
	What   string
	Client int
	Nth    int           `json:",omitempty"`
	At     time.Duration `json:",omitempty"`
	For    time.Duration `json:",omitempty"`
}

func (f Fault) String() string {
	if f.Nth > 0 {
		return fmt.Sprintf("client %d: %s %d for %v", f.Client, f.What, f.Nth, f.For)
	}
	return fmt.Sprintf("client %d: %s at %v for %v", f.Client, f.What, f.At, f.For)
}

// ofMessage reports whether f affects a message, and not a script.
func (f Fault) ofMessage() bool {
	return f.What == DropMessage || f.What == DelayMessage || f.What == DoubleMessage
}

// Kinds lists the types of plans, by their locks.
var Kinds = []string{"plain", "fair", "rw", "multi", "semaphore", "mixed", "linger"}

// Crowd is an additional kind: a plain lock that many callers acquire about a thousand times.
const Crowd = "crowd"

// lease is short enough for leases to expire within a history.
const lease = 6 * time.Second

// NewPlan returns the plan of a seed, with locks of the given kind.
func NewPlan(seed uint64, kind string) Plan {
	p := plan(seed, kind)
	r := rand.New(rand.NewPCG(seed, 2)) // separate, so that the rest of the plan does not change
	for _, a := range p.Actors {
		for i := range a.Ops {
			a.Ops[i].Async = r.IntN(4) == 0
		}
	}
	return p
}

func plan(seed uint64, kind string) Plan {
	r := rand.New(rand.NewPCG(seed, 1))
	p := Plan{Seed: seed, Clients: 1 + r.IntN(3), Lease: lease, Rate: 1, Near: 50 * time.Microsecond, Far: 400 * time.Microsecond}
	if r.IntN(2) == 0 {
		p.Rate += (r.Float64() - 0.5) / 55 // a little less than 1 %
	}
	if r.IntN(3) == 0 {
		p.Near, p.Far = 5*time.Millisecond, 20*time.Millisecond
	}
	fenced := r.IntN(4) == 0
	switch kind {
	case "plain", "fair", "rw":
		p.Locks = []Lock{{Kind: kind, Fenced: fenced}}
	case Crowd:
		p.Locks = []Lock{{Kind: "plain", Fenced: fenced}}
		p.crowd(r)
		return p
	case "linger":
		p.Locks = []Lock{{Kind: []string{"plain", "plain", "fair", "rw"}[r.IntN(4)], Fenced: fenced, Linger: []time.Duration{5 * time.Millisecond, 100 * time.Millisecond, time.Second, 3 * time.Second}[r.IntN(4)]}}
		p.lingers(r)
		return p
	case "semaphore":
		p.Locks = []Lock{{Kind: kind, Permits: 1 + r.IntN(2)}}
	case "multi":
		p.Locks = []Lock{{Kind: "plain"}, {Kind: "plain"}}
	default:
		p.Locks = []Lock{{Kind: "plain", Fenced: fenced}, {Kind: "fair"}, {Kind: "rw"}}
	}
	all := kind == "multi" || kind == "mixed" && r.IntN(2) == 0
	for range 2 + r.IntN(5) {
		a := Actor{Client: r.IntN(p.Clients)}
		for range 1 + r.IntN(4) {
			a.Ops = append(a.Ops, newOp(r, p.Locks, all))
		}
		p.Actors = append(p.Actors, a)
	}
	if r.IntN(10) > 0 {
		for range 1 + r.IntN(5) {
			p.Faults = append(p.Faults, newFault(r, p.Clients))
		}
	}
	switch r.IntN(8) {
	case 0:
		p.hush(r)
	case 1:
		p.haunt(r)
	}
	return p
}

// hush adds a client that holds a lock for longer than a lease. The reply to its request, or to a renewal, is
// delayed, and soon after that the client is paused for at least a lease.
func (p *Plan) hush(r *rand.Rand) {
	c, nth := p.Clients, r.IntN(5) // 0, 1: the request (EVALSHA, EVAL); 2, 3: the renewal after a third of the lease; 4: the next one
	late := lease/50 + upTo(r, lease/4)
	p.Clients++
	p.Actors = slices.Insert(p.Actors, 0, Actor{Client: c, Ops: []Op{{Do: "lock", Lock: r.IntN(len(p.Locks)), Hold: 2 * lease}}})
	p.Faults = append(p.Faults,
		Fault{What: DelayReply, Client: c, Nth: 1 + nth, For: late},
		Fault{What: Pause, Client: c, At: time.Duration(nth/2)*lease/3 + late + 10*time.Millisecond + upTo(r, lease/12), For: lease + upTo(r, lease)})
}

// haunt injects a single fault: a new client stops waiting as its connection breaks, and its request is executed
// later. Then another client sends a request.
func (p *Plan) haunt(r *rand.Rand) {
	c, lock := p.Clients, r.IntN(len(p.Locks))
	p.Clients++
	p.Actors = append(p.Actors,
		Actor{Client: c, Ops: []Op{{Do: "lock", Lock: lock, After: upTo(r, 100*time.Millisecond), Patience: micros(r, 20_000)}}},
		Actor{Client: r.IntN(c), Ops: []Op{{Do: "lock", Lock: lock, After: time.Second + upTo(r, time.Second)}}})
	p.Faults = []Fault{{What: Copy, Client: c, Nth: 1 + r.IntN(2), For: upTo(r, time.Second)}}
}

// lingers adds callers that mostly follow one another, so that clients keep the lock, and faults at any time.
func (p *Plan) lingers(r *rand.Rand) {
	p.Clients = 1 + r.IntN(3)
	for range 2 + r.IntN(4) {
		a := Actor{Client: r.IntN(p.Clients)}
		for range 3 + r.IntN(12) {
			o := Op{Do: "lock", Hold: micros(r, 500)}
			switch n := r.IntN(12); {
			case n < 2:
				o = newOp(r, p.Locks, false)
			case n < 4:
				o.Do = "try"
			case n < 6:
				o.After = upTo(r, 2*p.Locks[0].Linger)
			case n < 7:
				o.Patience = micros(r, 10_000)
			default:
				o.After = micros(r, 3000)
			}
			o.Async = o.Async || r.IntN(4) == 0
			a.Ops = append(a.Ops, o)
		}
		p.Actors = append(p.Actors, a)
	}
	if r.IntN(4) > 0 {
		for range 1 + r.IntN(5) {
			f := newFault(r, p.Clients)
			f.Nth *= 1 + r.IntN(3)
			if f.Nth == 0 && r.IntN(2) == 0 {
				f.At = upTo(r, time.Second)
			}
			p.Faults = append(p.Faults, f)
		}
	}
}

// crowd adds callers that mostly hold the lock for a moment, and faults at any time.
func (p *Plan) crowd(r *rand.Rand) {
	p.Clients = 2 + r.IntN(4)
	for range 6 + r.IntN(7) {
		a := Actor{Client: r.IntN(p.Clients)}
		for range 60 + r.IntN(60) {
			o := Op{Do: "lock", Hold: micros(r, 200)}
			switch n := r.IntN(40); {
			case n == 0:
				o = newOp(r, p.Locks, false)
			case n < 8:
				o.After = micros(r, 3000)
			case n < 10:
				o.Patience = micros(r, 10_000)
			}
			a.Ops = append(a.Ops, o)
		}
		p.Actors = append(p.Actors, a)
	}
	for range r.IntN(6) {
		f := newFault(r, p.Clients)
		f.Nth *= 1 + r.IntN(20)
		if f.Nth == 0 {
			f.At = upTo(r, 4*lease)
		}
		p.Faults = append(p.Faults, f)
	}
}

func newOp(r *rand.Rand, locks []Lock, all bool) Op {
	o := Op{Do: "lock", Lock: r.IntN(len(locks)), Reads: r.IntN(2) == 0, Hold: micros(r, 1000)}
	switch n := r.IntN(8); {
	case n == 0:
		o.Do = "try"
	case n <= 3 && all:
		o.Do = "all"
	}
	if r.IntN(3) == 0 {
		o.After = upTo(r, 20*time.Millisecond)
	}
	if r.IntN(8) == 0 {
		o.After = upTo(r, lease)
	}
	if r.IntN(3) == 0 {
		o.Patience = upTo(r, 50*time.Millisecond)
	}
	if r.IntN(8) == 0 {
		o.Patience = upTo(r, lease)
	}
	switch r.IntN(8) {
	case 0, 1:
		o.Hold = upTo(r, 30*time.Millisecond)
	case 2:
		o.Hold = upTo(r, lease+lease/2)
	}
	o.Again = r.IntN(6) == 0
	o.Down = locks[o.Lock].Kind == "rw" && r.IntN(4) == 0
	if r.IntN(5) == 0 {
		o.Fixed = 20*time.Millisecond + upTo(r, lease)
		if r.IntN(2) == 0 {
			o.Fixed = 20*time.Millisecond + upTo(r, 100*time.Millisecond)
		}
		if r.IntN(2) == 0 {
			o.Hold = o.Fixed/2 + upTo(r, o.Fixed) // until around the time when the lease expires
		}
	}
	return o
}

func newFault(r *rand.Rand, clients int) Fault {
	f := Fault{Client: r.IntN(clients)}
	what := []string{
		DropRequest, DropReply, DropReply, Copy, Copy, Copy, DelayRequest, DelayRequest, DelayReply, DelayReply, DropMessage, DropMessage, DelayMessage, DoubleMessage, DoubleMessage,
		Cut, Refuse, Pause, Pause, Freeze, Flush, Kill,
	}
	f.What = what[r.IntN(len(what))]
	switch f.What {
	case DropMessage, DelayMessage, DoubleMessage:
		f.Nth = 1 + r.IntN(6)
	case DropRequest, DropReply, Copy, DelayRequest, DelayReply:
		f.Nth = 1 + r.IntN(20)
	default:
		f.At = upTo(r, 40*time.Millisecond)
		if r.IntN(3) == 0 {
			f.At = upTo(r, 2*lease)
		}
	}
	switch r.IntN(3) {
	case 0:
		f.For = upTo(r, 10*time.Millisecond)
		if r.IntN(2) == 0 {
			f.For = upTo(r, 200*time.Millisecond)
		}
	case 1:
		f.For = upTo(r, time.Second+lease/2)
	case 2:
		f.For = upTo(r, lease+lease/2)
	}
	switch f.What {
	case Copy, Cut, DelayRequest:
		f.For = min(f.For, lease/2) // two of them add up, and clients reconcile delayed commands for one lease
	}
	if (f.What == Cut || f.What == Kill) && r.IntN(2) == 0 {
		f.For = 0
	}
	return f
}

func upTo(r *rand.Rand, d time.Duration) time.Duration {
	return time.Duration(r.Int64N(int64(d/time.Microsecond))) * time.Microsecond
}

func micros(r *rand.Rand, most int) time.Duration {
	return time.Duration(10+r.IntN(most)) * time.Microsecond
}

// size returns a measure of p; a smaller plan is easier to understand.
func (p Plan) size() int {
	n := 10*p.Clients + 10*len(p.Locks) + 20*len(p.Faults)
	for _, a := range p.Actors {
		n += 10
		for _, o := range a.Ops {
			n += 10
			for _, more := range []bool{o.Do != "lock", o.Reads, o.After > 0, o.Patience > 0, o.Hold > 100*time.Microsecond, o.Again, o.Down, o.Fixed > 0, o.Async} {
				if more {
					n++
				}
			}
		}
	}
	if p.Rate != 1 {
		n++
	}
	return n
}

// takesAll reports whether a call of p acquires several locks.
func (p *Plan) takesAll() bool {
	return slices.ContainsFunc(p.Actors, func(a Actor) bool {
		return slices.ContainsFunc(a.Ops, func(o Op) bool { return o.Do == "all" })
	})
}

// mostFree returns how long a lock can be free while a call waits; false if the faults make that unpredictable.
func (p *Plan) mostFree() (d time.Duration, known bool) {
	d = time.Second + 100*time.Millisecond // a waiter polls once per second
	for _, f := range p.Faults {
		if f.What != Copy {
			return 0, false
		}
		d += f.For + time.Second // a client reconciles a second after a delayed command
	}
	return d, d < lease
}

// clone returns a deep copy of p.
func (p Plan) clone() Plan {
	p.Locks, p.Faults, p.Actors = slices.Clone(p.Locks), slices.Clone(p.Faults), slices.Clone(p.Actors)
	for i := range p.Actors {
		p.Actors[i].Ops = slices.Clone(p.Actors[i].Ops)
	}
	return p
}

// Smaller returns plans that are a little smaller than p.
func (p Plan) Smaller() (less []Plan) {
	add := func(change func(*Plan)) {
		c := p.clone()
		change(&c)
		c.tidy()
		if c.size() < p.size() && len(c.Actors) > 0 {
			less = append(less, c)
		}
	}
	for i := range p.Faults {
		add(func(c *Plan) { c.Faults = slices.Delete(c.Faults, i, i+1) })
	}
	if n := len(p.Actors); n > 3 {
		add(func(c *Plan) { c.Actors = c.Actors[:n/2] })
		add(func(c *Plan) { c.Actors = c.Actors[n/2:] })
	}
	for i := range p.Actors {
		add(func(c *Plan) { c.Actors = slices.Delete(c.Actors, i, i+1) })
	}
	add(func(c *Plan) { c.Rate = 1 })
	for i, a := range p.Actors {
		if n := len(a.Ops); n > 3 {
			add(func(c *Plan) { c.Actors[i].Ops = c.Actors[i].Ops[:n/2] })
			add(func(c *Plan) { c.Actors[i].Ops = c.Actors[i].Ops[n/2:] })
		}
		for j := range a.Ops {
			add(func(c *Plan) { c.Actors[i].Ops = slices.Delete(c.Actors[i].Ops, j, j+1) })
		}
		for j := range a.Ops {
			for _, simpler := range []func(*Op){
				func(o *Op) { o.Do = "lock" },
				func(o *Op) { o.After = 0 },
				func(o *Op) { o.Patience = 0 },
				func(o *Op) { o.Hold = 100 * time.Microsecond },
				func(o *Op) { o.Again = false },
				func(o *Op) { o.Down = false },
				func(o *Op) { o.Fixed = 0 },
				func(o *Op) { o.Async = false },
				func(o *Op) { o.Reads = false },
			} {
				add(func(c *Plan) { simpler(&c.Actors[i].Ops[j]) })
			}
		}
	}
	return less
}

// tidy removes actors without operations, and clients at the end without actors.
func (p *Plan) tidy() {
	p.Actors = slices.DeleteFunc(p.Actors, func(a Actor) bool { return len(a.Ops) == 0 })
	most := 0
	for _, a := range p.Actors {
		most = max(most, a.Client+1)
	}
	p.Clients = most
	p.Faults = slices.DeleteFunc(p.Faults, func(f Fault) bool { return f.Client >= most })
}

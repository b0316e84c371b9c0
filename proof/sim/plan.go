package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Plan is one history to be played: which clients there are, what their callers do, and what
// goes wrong. Each part can be taken out without a change of what happens to the others
// before they meet: no part counts events of another, and no random number is drawn while
// the plan is played.
type Plan struct {
	Seed    uint64        // of the delays in the network
	Order   uint64        // of what happens at the same instant: of the random numbers of the program
	Clients int           // how many processes there are
	Lease   time.Duration // that the watchdogs renew
	Rate    float64       // of the server's clock, to that of the clients
	Near    time.Duration // the shortest way to the server
	Far     time.Duration // the longest way
	Locks   []Lock
	Actors  []Actor
	Faults  []Fault
}

// Lock is a lock of a kind.
type Lock struct {
	Kind    string // plain, fair, rw or semaphore
	Permits int    // of a semaphore
	Fenced  bool   // its tokens come from a register

	Linger time.Duration `json:",omitempty"` // how long a client keeps it after the last release; 0 if it does not
}

// Actor is one goroutine of a client. It does one thing after the other.
type Actor struct {
	Client int
	Ops    []Op
}

// Op is what an actor does once: it takes a lock, holds it for a while and gives it back.
type Op struct {
	Do       string        // lock, try or all: one lock, one attempt, all locks at once
	Lock     int           // which one
	Reads    bool          // of a read/write lock: to read
	After    time.Duration // first it does nothing for so long
	Patience time.Duration // it waits for so long; 0 is without an end
	Hold     time.Duration // it holds the lock for so long
	Again    bool          // it takes the lock once more meanwhile
	Down     bool          // having written, it goes on reading
	Fixed    time.Duration // the lease, without renewals; 0 is the watchdog's
	Async    bool          // Unlock does not wait for the reply
}

// The faults. Those with Nth affect the nth script that a client sends, or the nth message
// to it; the others come at a time.
const (
	DropRequest   = "drop-request"   // the connection breaks, and the server never hears of the command
	DropReply     = "drop-reply"     // the command is carried out, and the connection breaks
	Copy          = "copy"           // the connection breaks; the server hears of the command much later, after what the client sends meanwhile
	DelayRequest  = "delay-request"  // the command is on its way for long, and so is what follows it
	DelayReply    = "delay-reply"    // so is the reply
	DropMessage   = "drop-message"   // a message of Pub/Sub is lost
	DelayMessage  = "delay-message"  // a message of Pub/Sub is late
	DoubleMessage = "double-message" // a message of Pub/Sub comes again later, after what follows it

	Cut    = "cut"    // the connections of a client break. What it has sent comes late, or never
	Refuse = "refuse" // and it gets no other for a while
	Pause  = "pause"  // nothing that a client sends or receives moves
	Freeze = "freeze" // the server stands still
	Flush  = "flush"  // the server forgets its scripts
	Kill   = "kill"   // a client ends for good. What it has sent comes late, or never
)

// Fault is one thing that goes wrong.
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

// Kinds are what the locks of a plan can be.
var Kinds = []string{"plain", "fair", "rw", "multi", "semaphore", "mixed", "linger"}

// Crowd is one kind more: a plain lock that many callers have a thousand times.
const Crowd = "crowd"

// lease is short enough that leases end within a history.
const lease = 6 * time.Second

// NewPlan returns the plan of a seed, with locks of a kind.
func NewPlan(seed uint64, kind string) Plan {
	p := plan(seed, kind)
	r := rand.New(rand.NewPCG(seed, 2)) // apart, so that a seed keeps the rest of its plan
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
		p.Rate += (r.Float64() - 0.5) / 55 // a little less than one in a hundred
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

// hush adds a client that has a lock for longer than a lease. The answer to its question, or to a renewal, is
// late, and soon after that nothing is heard of the client for a lease.
func (p *Plan) hush(r *rand.Rand) {
	c, nth := p.Clients, r.IntN(5) // two for the question, as the server may not know the script; two for the renewal after a third of the lease; and the next one
	late := lease/50 + upTo(r, lease/4)
	p.Clients++
	p.Actors = slices.Insert(p.Actors, 0, Actor{Client: c, Ops: []Op{{Do: "lock", Lock: r.IntN(len(p.Locks)), Hold: 2 * lease}}})
	p.Faults = append(p.Faults,
		Fault{What: DelayReply, Client: c, Nth: 1 + nth, For: late},
		Fault{What: Pause, Client: c, At: time.Duration(nth/2)*lease/3 + late + 10*time.Millisecond + upTo(r, lease/12), For: lease + upTo(r, lease)})
}

// haunt has nothing go wrong but one thing: a client that is added gives up as its connection breaks, and what it
// asked is carried out later. Then one of the other clients comes.
func (p *Plan) haunt(r *rand.Rand) {
	c, lock := p.Clients, r.IntN(len(p.Locks))
	p.Clients++
	p.Actors = append(p.Actors,
		Actor{Client: c, Ops: []Op{{Do: "lock", Lock: lock, After: upTo(r, 100*time.Millisecond), Patience: micros(r, 20_000)}}},
		Actor{Client: r.IntN(c), Ops: []Op{{Do: "lock", Lock: lock, After: time.Second + upTo(r, time.Second)}}})
	p.Faults = []Fault{{What: Copy, Client: c, Nth: 1 + r.IntN(2), For: upTo(r, time.Second)}}
}

// lingers adds callers that mostly come one after the other, so that clients keep the lock, and faults at any time.
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

// crowd adds callers that mostly have the lock for a moment, and faults at any time.
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
			o.Hold = o.Fixed/2 + upTo(r, o.Fixed) // until about when the lease ends
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
		f.For = min(f.For, lease/2) // two of them add up, and a client looks for what may come late for a lease
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

// size says how much there is in p; a smaller plan is easier to understand.
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

// takesAll reports whether a call of p is for several locks.
func (p *Plan) takesAll() bool {
	return slices.ContainsFunc(p.Actors, func(a Actor) bool {
		return slices.ContainsFunc(a.Ops, func(o Op) bool { return o.Do == "all" })
	})
}

// mostFree returns for how long a lock can be free while a call waits; false if faults do not let that be known.
func (p *Plan) mostFree() (d time.Duration, known bool) {
	d = time.Second + 100*time.Millisecond // a waiter asks once a second
	for _, f := range p.Faults {
		if f.What != Copy {
			return 0, false
		}
		d += f.For + time.Second // a client looks a second later for what came late
	}
	return d, d < lease
}

// clone returns a copy that shares nothing with p.
func (p Plan) clone() Plan {
	p.Locks, p.Faults, p.Actors = slices.Clone(p.Locks), slices.Clone(p.Faults), slices.Clone(p.Actors)
	for i := range p.Actors {
		p.Actors[i].Ops = slices.Clone(p.Actors[i].Ops)
	}
	return p
}

// Smaller returns plans that have a little less in them than p.
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

// tidy takes out actors that do nothing, and clients at the end that have no actor.
func (p *Plan) tidy() {
	p.Actors = slices.DeleteFunc(p.Actors, func(a Actor) bool { return len(a.Ops) == 0 })
	most := 0
	for _, a := range p.Actors {
		most = max(most, a.Client+1)
	}
	p.Clients = most
	p.Faults = slices.DeleteFunc(p.Faults, func(f Fault) bool { return f.Client >= most })
}

package dashboard

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/lock"
)

// A graph shows which clients wait for which locks, and which clients hold these locks. Clients that wait for each
// other in a ring may be deadlocked.
//
// A deadlock is between owners, each of which holds one lock and waits for another. An owner that is both a holder and a waiter in Redis,
// such as a Redisson thread that waits for a fair lock, is a separate node, and its edges count immediately. A Go process has a different
// owner for each acquisition, so Redis does not show whether the goroutine that holds is the one that waits. Its edges count only after
// they have lasted: in a deadlock nothing changes, but in a healthy service the holders change.
type graph struct {
	Drawings []drawing // those with a ring first
	Rings    int
	Hidden   int // number of drawings beyond mostDrawings
}

// The bounds of a graph.
const (
	mostDrawings = 30
	mostBeside   = 8 // clients on each side of a lock
)

// drawing is a connected component of the graph.
type drawing struct {
	Width, Height int
	Nodes         []*node
	Edges         []*edge
	Ring          []string // the edges of the ring as sentences; empty if there is none
	Sentences     []string // all edges as sentences
}

// node is a client or a lock.
type node struct {
	Name, Note string
	Full       string // the name of a lock, not quoted
	Lock       bool
	Permits    bool // it is a semaphore
	InRing     bool
	X, Y       int

	id        string
	in, out   []*edge
	rank      int
	component int
	state     int // of the walk of inOrder
}

// edge leads from a client to a lock that it waits for, or from a lock to a client that holds it.
type edge struct {
	From, To *node
	InRing   bool
	Back     bool
	Path     string

	counts bool // it can be a part of a ring
}

// graphOf returns the graph of these locks. lasted reports whether an edge has been present for some time.
func graphOf(locks []admin.Lock, lasted func(edgeID) bool) graph {
	b := builder{nodes: make(map[string]*node), lasted: lasted, both: make(map[string]bool)}
	holds := make(map[string]bool)
	for _, l := range locks {
		for _, h := range l.Holders {
			holds[h.Owner] = true
		}
	}
	for _, l := range locks {
		for _, w := range l.Waiters {
			b.both[w.Owner] = holds[w.Owner]
		}
	}
	for _, l := range locks {
		b.add(l)
	}
	return b.graph()
}

// An edgeID identifies an edge across surveys.
type edgeID struct {
	lock, owner string
	waits       bool
}

// edgeIDs returns the edges that these locks have.
func edgeIDs(locks []admin.Lock) (all []edgeID) {
	for _, l := range locks {
		for _, h := range l.Holders {
			all = append(all, edgeID{lock: l.Name, owner: h.Owner})
		}
		for _, w := range l.Waiters {
			all = append(all, edgeID{lock: l.Name, owner: w.Owner, waits: true})
		}
	}
	return all
}

// builder makes a graph.
type builder struct {
	nodes  map[string]*node
	all    []*node
	lasted func(edgeID) bool
	both   map[string]bool // owners that hold a lock and wait for one
}

func (b *builder) node(id string, make func() *node) *node {
	n := b.nodes[id]
	if n == nil {
		n = make()
		n.id = id
		b.nodes[id] = n
		b.all = append(b.all, n)
	}
	return n
}

func (b *builder) client(owner string, c lock.Client) *node {
	id := "client " + lock.ClientID(owner)
	if b.both[owner] {
		id = "owner " + owner
	}
	return b.node(id, func() *node {
		n := &node{Name: clientName(c)}
		if c.Known() {
			n.Name, n.Note = shown(c.Name), fmt.Sprintf("%s, pid %d", shown(c.Host), c.PID)
		}
		return n
	})
}

func (b *builder) add(l admin.Lock) {
	at := b.node("lock "+l.Name, func() *node {
		waiters := plural(len(l.Waiters), "waiter")
		if l.IsFull() {
			waiters = "at least " + waiters
		}
		return &node{Name: shown(l.Name), Full: l.Name, Note: kindName(l.Kind) + ", " + waiters, Lock: true, Permits: l.Kind == admin.Semaphore}
	})
	join := func(from, to *node, id edgeID) {
		i := slices.IndexFunc(from.out, func(e *edge) bool { return e.To == to })
		if i < 0 {
			i = len(from.out)
			e := &edge{From: from, To: to}
			from.out, to.in = append(from.out, e), append(to.in, e)
		}
		from.out[i].counts = from.out[i].counts || b.both[id.owner] || b.lasted(id)
	}
	holders := make(map[string]bool)
	for _, h := range l.Holders {
		if id := lock.ClientID(h.Owner); holders[id] || len(holders) < mostBeside {
			holders[id] = true
			join(at, b.client(h.Owner, h.Client), edgeID{lock: l.Name, owner: h.Owner})
		}
	}
	waiters := make(map[string]bool)
	for _, w := range l.Waiters {
		// Other goroutines of the process that holds the lock may wait for it. That is not a deadlock.
		if id := lock.ClientID(w.Owner); !(holders[id] && len(holders) == 1) && (waiters[id] || len(waiters) < mostBeside) {
			waiters[id] = true
			join(b.client(w.Owner, w.Client), at, edgeID{lock: l.Name, owner: w.Owner, waits: true})
		}
	}
}

func (b *builder) graph() (g graph) {
	for _, part := range closed(b.all) {
		ring := smallest(part)
		for i, n := range ring {
			n.InRing = true
			for _, e := range n.out {
				e.InRing = e.counts && (e.To == ring[(i+1)%len(ring)] || len(ring) == len(part) && slices.Contains(part, e.To))
			}
		}
		g.Rings++
	}
	for _, n := range b.all {
		if n.component == 0 && len(n.in)+len(n.out) > 0 {
			if d, ok := draw(n); ok {
				g.Drawings = append(g.Drawings, d)
			}
		}
	}
	slices.SortStableFunc(g.Drawings, func(a, b drawing) int {
		return cmp.Or(cmp.Compare(len(b.Ring), len(a.Ring)), cmp.Compare(len(b.Nodes), len(a.Nodes)))
	})
	g.Hidden = max(len(g.Drawings)-mostDrawings, 0)
	g.Drawings = g.Drawings[:min(len(g.Drawings), mostDrawings)]
	return g
}

// closed returns the rings that cannot resolve by themselves. A waiter of a semaphore proceeds when any holder releases its permits.
// A ring through a semaphore therefore counts only if all holders of the semaphore are in the ring.
func closed(all []*node) [][]*node {
	for {
		found := rings(all)
		open := make(map[*node]bool)
		for _, ring := range found {
			for _, n := range ring {
				if n.Permits && slices.ContainsFunc(n.out, func(e *edge) bool { return !slices.Contains(ring, e.To) }) {
					open[n] = true
				}
			}
		}
		if len(open) == 0 {
			return found
		}
		all = slices.DeleteFunc(slices.Clone(all), func(n *node) bool { return open[n] })
	}
}

// smallest returns the shortest ring of a strongly connected component, in order, which a reader can check by eye. It returns a
// component with a semaphore whole, because the waiters of a semaphore depend on all of its holders.
func smallest(part []*node) (ring []*node) {
	if slices.ContainsFunc(part, func(n *node) bool { return n.Permits }) {
		return part
	}
	for _, start := range part {
		from, queue := map[*node]*node{}, []*node{start}
		for len(queue) > 0 && from[start] == nil {
			n := queue[0]
			queue = queue[1:]
			for _, e := range n.out {
				if e.counts && slices.Contains(part, e.To) && from[e.To] == nil {
					from[e.To] = n
					queue = append(queue, e.To)
				}
			}
		}
		found := []*node{start}
		for n := from[start]; n != start; n = from[n] {
			found = append(found, n)
		}
		if ring == nil || len(found) < len(ring) {
			slices.Reverse(found[1:])
			ring = found
		}
	}
	return ring
}

// rings returns the strongly connected components with more than one client, over the edges that count (Tarjan's algorithm).
func rings(all []*node) (found [][]*node) {
	index, low := make(map[*node]int), make(map[*node]int)
	on, known := make(map[*node]bool), make(map[*node]bool)
	for _, n := range all {
		known[n] = true
	}
	var stack []*node
	var walk func(n *node)
	walk = func(n *node) {
		index[n], low[n] = len(index)+1, len(index)+1
		stack, on[n] = append(stack, n), true
		for _, e := range n.out {
			if !known[e.To] || !e.counts {
				continue
			}
			if index[e.To] == 0 {
				walk(e.To)
				low[n] = min(low[n], low[e.To])
			} else if on[e.To] {
				low[n] = min(low[n], index[e.To])
			}
		}
		if low[n] != index[n] {
			return
		}
		at := slices.Index(stack, n)
		part := slices.Clone(stack[at:])
		stack = stack[:at]
		clients := 0
		for _, m := range part {
			on[m] = false
			if !m.Lock {
				clients++
			}
		}
		if clients > 1 {
			found = append(found, part)
		}
	}
	for _, n := range all {
		if index[n] == 0 {
			walk(n)
		}
	}
	return found
}

// The measures of a drawing.
const (
	boxWidth, boxHeight = 190, 46
	stepX, stepY        = 250, 66
	margin              = 12
)

// draw draws the connected component of n from left to right: each node is to the right of its predecessors. An
// edge that would close a ring leads back, below all nodes.
func draw(n *node) (d drawing, ok bool) {
	d.Nodes = inOrder(connected(n))
	last := rank(d.Nodes)
	tallest := place(d.Nodes, last)
	d.Width = 2*margin + last*stepX + boxWidth
	d.Height = 2*margin + (tallest-1)*stepY + boxHeight
	bottom := d.Height
	for _, n := range d.Nodes {
		for _, e := range n.out {
			e.Path = e.path(bottom)
			if e.Back {
				d.Height = bottom + 44
			}
			d.Edges = append(d.Edges, e)
			says := e.sentence()
			d.Sentences = append(d.Sentences, says)
			if e.InRing {
				d.Ring = append(d.Ring, says)
			}
		}
	}
	return d, len(d.Edges) > 0
}

// connected returns the connected component of n, regardless of the direction of edges, and marks its nodes.
func connected(n *node) (part []*node) {
	var collect func(n *node)
	collect = func(n *node) {
		if n.component != 0 {
			return
		}
		n.component = 1
		part = append(part, n)
		for _, e := range n.out {
			collect(e.To)
		}
		for _, e := range n.in {
			collect(e.From)
		}
	}
	collect(n)
	return part
}

// inOrder returns the nodes in topological order. It sets Back on the edges that would close a ring.
func inOrder(part []*node) (order []*node) {
	var walk func(n *node)
	walk = func(n *node) {
		n.state = 1
		for _, e := range n.out {
			switch e.To.state {
			case 0:
				walk(e.To)
			case 1:
				e.Back = true
			}
		}
		n.state = 2
		order = append(order, n)
	}
	slices.SortStableFunc(part, func(a, b *node) int { // first the nodes with the fewest incoming edges
		return cmp.Or(cmp.Compare(len(a.in), len(b.in)), cmp.Compare(a.id, b.id))
	})
	for _, n := range part {
		if n.state == 0 {
			walk(n)
		}
	}
	slices.Reverse(order)
	return order
}

// rank assigns each node to a column, and returns the last column.
func rank(order []*node) (last int) {
	for _, n := range order {
		for _, e := range n.out {
			if !e.Back {
				e.To.rank = max(e.To.rank, n.rank+1)
				last = max(last, e.To.rank)
			}
		}
	}
	for _, n := range order { // a node without incoming edges is next to its first successor
		first := last
		for _, e := range n.out {
			first = min(first, e.To.rank)
		}
		if len(n.in) == 0 {
			n.rank = first - 1
		}
	}
	return last
}

// place sets the position of each node in its column, close to its predecessors, and returns the number of nodes in the fullest column.
func place(order []*node, last int) (tallest int) {
	columns := make([][]*node, last+1)
	for _, n := range order {
		columns[n.rank] = append(columns[n.rank], n)
		tallest = max(tallest, len(columns[n.rank]))
	}
	for rank, column := range columns {
		slices.SortStableFunc(column, func(a, b *node) int { return cmp.Compare(middle(a), middle(b)) })
		for i, n := range column {
			n.X = margin + rank*stepX
			n.Y = margin + (tallest-len(column))*stepY/2 + i*stepY
		}
	}
	return tallest
}

// path returns the curve of the edge. An edge that leads back passes below all nodes.
func (e *edge) path(bottom int) string {
	if e.Back {
		x1, y1, x2, y2 := e.From.X+boxWidth/2, e.From.Y+boxHeight, e.To.X+boxWidth/2, e.To.Y+boxHeight+7
		return fmt.Sprintf("M%d %d C%d %d %d %d %d %d", x1, y1, x1, bottom+40, x2, bottom+40, x2, y2)
	}
	x1, y1, x2, y2 := e.From.X+boxWidth, e.From.Y+boxHeight/2, e.To.X-7, e.To.Y+boxHeight/2
	return fmt.Sprintf("M%d %d C%d %d %d %d %d %d", x1, y1, x1+30, y1, x2-30, y2, x2, y2)
}

// sentence describes the edge.
func (e *edge) sentence() string {
	if e.From.Lock {
		return fmt.Sprintf("%s is held by %s.", label(e.From), label(e.To))
	}
	return fmt.Sprintf("%s waits for %s.", label(e.From), label(e.To))
}

// middle returns the mean vertical position of the predecessors of n.
func middle(n *node) float64 {
	sum, count := 0, 0
	for _, e := range n.in {
		if !e.Back {
			sum, count = sum+e.From.Y, count+1
		}
	}
	if count == 0 {
		return 0
	}
	return float64(sum) / float64(count)
}

// label returns the name of a node in a sentence.
func label(n *node) string {
	if n.Note == "" || n.Lock {
		return n.Name
	}
	return n.Name + " (" + n.Note + ")"
}

package command

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// Changes of plain locks travel together: while a batch is under way, the changes of other
// goroutines collect, and are the next batch. A goroutine of the sender's hears the answer to
// each batch. So a caller may leave at any instant, and what became of its change is known all
// the same.
const (
	callMost  = 64  // changes in one script call: a fraction of a millisecond of the server's time
	batchMost = 512 // changes in one batch, which is a pipeline of such calls

	// The next batch follows when one of batchesNear is answered. If answers take long, one more
	// follows the latest after a while: so a change waits for a small part of a round trip
	// before it is sent, and for an answer that does not come only until the next batch.
	batchesNear = 2
	batchesMost = 32
	paceNear    = 500 * time.Microsecond // after which one more follows, at a server that answers within this time,
	paceParts   = 8                      // and at a distance the part of a round trip
	sweepParts  = 16                     // the part of the time-out after which the sweeper looks again
	tripSlow    = 1024                   // the part by which the measured round trip grows towards a longer one
)

// combiner sends the changes of many goroutines to one node.
type combiner struct {
	s    *Sender // set once
	node uint16  // set once

	mu      sync.Mutex
	queue   []*joint // to be sent, in the order of their arrival
	workers int      // how many goroutines send changes, or are about to
	under   []*batch // what they have sent
	latest  time.Time
	trip    time.Duration // the shortest round trip of late
	pacer   timer         // is to have one more batch follow the latest
	sweeper timer         // is to look for callers that have waited for long enough

	work  func() // set once: send, without an allocation for each use
	spare sync.Pool

	// unused has joints that are nobody's. It is not shared between clients: a channel must not
	// leave the bubble of testing/synctest in which it was made.
	unused sync.Pool
}

// timer calls a function once in a while. The mutex of the combiner guards it.
type timer struct {
	*time.Timer
	armed bool
}

// batch is some changes that are under way.
type batch struct {
	sent    time.Time
	joints  []*joint
	changes []*luascripts.Change // those of joints that are sent
}

// joint is one change in the hands of a combiner.
type joint struct {
	luascripts.Change
	limit time.Duration // how long its caller waits; 0 if the caller finds the end by itself
	due   time.Time     // about when its caller has waited for long enough; zero before the sweeper has seen it
	state atomic.Int32  // waits, and what came of it
	wake  chan struct{} // cap 1: gets one token, when the joint does not wait any more and its caller has not left
	late  func()        // hears the answer when the caller has left; set before that
}

// Alone makes a Call that does not travel with others, when it is embedded.
type Alone[T any] struct{}

// Joins says so.
func (Alone[T]) Joins() (node uint16, joins bool) { return 0, false }

// Fill is not called.
func (Alone[T]) Fill(*luascripts.Change) {}

// Answer is not called.
func (Alone[T]) Answer(*luascripts.Change) (none T, err error) { return none, nil }

// What can become of a joint.
const (
	waits    int32 = iota
	overdue        // the caller has waited for long enough, and is about to leave
	left           // the caller has left: the joint is the combiner's
	answered       // the joint is the caller's
)

// combinerOf returns the combiner for a node.
func (s *Sender) combinerOf(node uint16) *combiner {
	all := &s.combiners
	if c := all.first.Load(); c != nil && c.node == node {
		return c
	}
	all.mu.RLock()
	c := all.nodes[node]
	all.mu.RUnlock()
	if c != nil {
		return c
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	if c = all.nodes[node]; c == nil {
		if all.nodes == nil {
			all.nodes = make(map[uint16]*combiner)
		}
		c = newCombiner(s)
		c.node = node
		all.nodes[node] = c
		all.first.CompareAndSwap(nil, c)
	}
	return c
}

// combiners has a combiner for each node of a cluster, so that none delays another; without a
// cluster there is one.
type combiners struct {
	first atomic.Pointer[combiner] // nil before there is one; without a cluster there are no others

	mu    sync.RWMutex
	nodes map[uint16]*combiner
}

func (all *combiners) stop() {
	all.mu.RLock()
	defer all.mu.RUnlock()
	for _, c := range all.nodes {
		c.stop()
	}
}

func newCombiner(s *Sender) *combiner {
	c := &combiner{s: s}
	c.work = c.send
	c.spare.New = func() any { return new(batch) }
	c.unused.New = func() any { return &joint{wake: make(chan struct{}, 1)} }
	return c
}

// together is Await for a call that travels with others.
func together[T any, C Call[T]](ctx context.Context, c *combiner, limit time.Duration, call C) (value T, ok bool, err error) {
	j := c.unused.Get().(*joint)
	call.Fill(&j.Change)
	var timeout <-chan time.Time
	j.limit = 0 // not that of an earlier caller
	switch {
	case limit == 0:
	case limit > c.s.Timeout/2:
		j.limit = limit
	default:
		t := c.s.timer(limit)
		defer c.s.stop(t)
		timeout = t.C
	}
	c.add(j)
	woken := true
	select {
	case <-j.wake:
	case <-ctx.Done():
		woken, err = false, ctx.Err()
	case <-timeout:
		woken, err = false, NoAnswer{After: c.s.Timeout}
	}
	if woken && j.state.Load() == overdue {
		err = NoAnswer{After: c.s.Timeout}
	}
	if err != nil {
		if abandon[T](j, call) {
			return value, false, err
		}
		if !woken {
			<-j.wake
		}
	}
	value, err = call.Answer(&j.Change)
	j.Change, j.late = luascripts.Change{}, nil
	c.unused.Put(j)
	return value, true, err
}

// abandon has the caller of j leave. It reports false if j was answered at this moment.
func abandon[T any, C Call[T]](j *joint, call C) bool {
	j.late = func() { call.Late(call.Answer(&j.Change)) }
	return j.state.CompareAndSwap(waits, left) || j.state.CompareAndSwap(overdue, left)
}

// answer has the caller take the answer, or hears it in the place of a caller that has left.
func (j *joint) answer() {
	switch {
	case j.state.CompareAndSwap(waits, answered):
		j.wake <- struct{}{}
	case !j.state.CompareAndSwap(overdue, answered):
		j.late()
	}
}

// add has j travel with the next batch.
func (c *combiner) add(j *joint) {
	j.state.Store(waits)
	c.mu.Lock()
	j.due = time.Time{}
	c.queue = append(c.queue, j)
	if !c.sweeper.armed {
		c.armLocked(&c.sweeper, c.s.Timeout/sweepParts, c.sweep)
	}
	sends := c.mayLocked()
	if sends {
		c.workers++
	}
	c.mu.Unlock()
	if sends {
		c.s.do(c.work)
	}
}

// mayLocked reports whether one worker more may send what is in the queue. If none may yet, the
// pacer looks again.
func (c *combiner) mayLocked() bool {
	if c.workers < batchesNear {
		return true
	}
	if c.workers == batchesMost || c.pacer.armed { // it looks when it is time
		return false
	}
	pace := paceNear
	if c.trip > paceNear {
		pace = c.trip / paceParts
	}
	wait := pace - time.Since(c.latest)
	if wait > 0 {
		c.s.Add() // until it has looked
		c.armLocked(&c.pacer, wait, c.pace)
	}
	return wait <= 0
}

func (c *combiner) armLocked(t *timer, d time.Duration, f func()) {
	t.armed = true
	if t.Timer == nil {
		t.Timer = time.AfterFunc(d, f)
	} else {
		t.Reset(d)
	}
}

// pace sends what is in the queue, in a goroutine of its own.
func (c *combiner) pace() {
	defer c.s.Done()
	c.mu.Lock()
	c.pacer.armed = false
	sends := len(c.queue) > 0 && c.mayLocked()
	if sends {
		c.workers++
	}
	c.mu.Unlock()
	if sends {
		c.send()
	}
}

// sweep ends the wait of callers that have waited for long enough.
func (c *combiner) sweep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sweeper.armed = false
	now, slack := time.Now(), c.s.Timeout/sweepParts
	sweep := func(all []*joint) {
		for _, j := range all {
			switch {
			case j.limit == 0:
			case j.due.IsZero():
				j.due = now.Add(j.limit - 2*slack) // it came since the last look, and the next is as much later
			case now.After(j.due) && j.state.CompareAndSwap(waits, overdue):
				j.wake <- struct{}{}
			}
		}
	}
	sweep(c.queue)
	for _, b := range c.under {
		sweep(b.joints)
	}
	if len(c.queue) > 0 || len(c.under) > 0 {
		c.armLocked(&c.sweeper, slack, c.sweep)
	}
}

// stop ends the timer that nothing waits for, once nothing is under way any more.
func (c *combiner) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sweeper.Timer != nil {
		c.sweeper.Stop()
	}
}

// ErrUnsent is what Late hears of a question that was never sent.
var ErrUnsent = Final{errors.New("canceled before the command was sent")}

// send sends batches as long as there is something in the queue. One of c.workers runs it.
func (c *combiner) send() {
	b := c.spare.Get().(*batch)
	for c.next(b) {
		if len(b.changes) > 0 {
			c.carryOut(b)
		}
		for _, j := range b.joints {
			j.answer()
		}
		many := len(b.joints) > 1
		clear(b.joints)
		clear(b.changes)
		b.joints, b.changes = b.joints[:0], b.changes[:0]
		if many {
			runtime.Gosched() // the callers come first: their next changes are then in the next batch
		}
	}
	c.spare.Put(b)
}

// next fills b from the queue. It reports false, and the worker ends, if there is nothing, or
// others send it.
func (c *combiner) next(b *batch) bool {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.workers--
	if len(c.queue) == 0 || !c.mayLocked() {
		return false
	}
	c.workers++
	n := min(len(c.queue), batchMost)
	for _, j := range c.queue[:n] {
		b.joints = append(b.joints, j)
		if !j.Gives && j.state.Load() == left {
			j.Err = ErrUnsent // nobody needs the lock any more
		} else {
			b.changes = append(b.changes, &j.Change)
		}
	}
	rest := copy(c.queue, c.queue[n:])
	clear(c.queue[rest:])
	c.queue = c.queue[:rest]
	c.latest, b.sent = now, now
	if len(b.changes) > 0 {
		c.under = append(c.under, b)
	}
	return true
}

// sure is Sure for the changes of a batch. It asks once for all of them, and no longer than a command may take, as all others wait for that.
func (s *Sender) sure(changes []*luascripts.Change) {
	closing := func(c *luascripts.Change) bool { return errors.Is(c.Err, rueidis.ErrClosing) }
	first := slices.IndexFunc(changes, closing)
	if first < 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.Timeout)
	defer cancel()
	if !errors.As(Sure(ctx, s.rdb, changes[first].Err), new(retry.Closed)) {
		return
	}
	for _, c := range changes[first:] {
		if closing(c) {
			c.Err = retry.Closed{Err: c.Err}
		}
	}
}

// carryOut sends b, and waits for the answers.
func (c *combiner) carryOut(b *batch) {
	if c.s.rdb.Mode() == rueidis.ClientModeCluster {
		// The changes of a slot share a script. Of those of a lock, releases come first.
		slices.SortStableFunc(b.changes, func(x, y *luascripts.Change) int { return int(x.Slot) - int(y.Slot) })
	}
	c.s.change(c.s.rdb, b.changes)
	c.s.sure(b.changes)
	took := time.Since(b.sent)
	answers := IsAnswer(b.changes[0].Err)
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.Index(c.under, b)
	c.under = slices.Delete(c.under, i, i+1)
	switch {
	case !answers: // whatever took so long or went so fast, it was not the way to the server and back
	case c.trip == 0 || took < c.trip:
		c.trip = took
	default:
		c.trip += (took - c.trip) / tripSlow
	}
}

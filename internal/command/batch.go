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
// goroutines collect, and are the next batch. A goroutine of the sender's gets the reply to
// each batch. So a caller may leave at any instant, and what became of its change is known all
// the same.
const (
	callMost  = 64  // changes in one script call: a fraction of a millisecond of the server's time
	batchMost = 512 // changes in one batch, which is a pipeline of such calls

	// The next batch follows when one of batchesNear is replied to. If replies take long, one more
	// follows the latest after a while: so a change waits for a small part of a round trip
	// before it is sent, and for a reply that does not come only until the next batch.
	batchesNear = 2
	batchesMost = 32
	paceNear    = 500 * time.Microsecond // after which one more follows, at a server that replies within this time,
	paceParts   = 8                      // and at a distance the part of a round trip
	sweepParts  = 16                     // the part of the timeout after which the sweeper looks again
	tripSlow    = 1024                   // the part by which the measured round trip grows towards a longer one
)

// batcher sends the changes of many goroutines to one node.
type batcher struct {
	s    *Sender // set once
	node uint16  // set once

	mu      sync.Mutex
	queue   []*request // to be sent, in the order of their arrival
	workers int        // how many goroutines send changes, or are about to
	under   []*batch   // what they have sent
	latest  time.Time
	trip    time.Duration // the shortest round trip of late
	pacer   timer         // is to have one more batch follow the latest
	sweeper timer         // is to look for callers that have waited for long enough

	work  func() // set once: send, without an allocation for each use
	spare sync.Pool

	// unused has requests that are no one's. It is not shared between clients: a channel must not
	// leave the bubble of testing/synctest in which it was made.
	unused sync.Pool
}

// timer calls a function once in a while. The mutex of the batcher guards it.
type timer struct {
	*time.Timer
	armed bool
}

// batch is some changes that are under way.
type batch struct {
	sent     time.Time
	requests []*request
	changes  []*luascripts.Change // those of requests that are sent
}

// request is one change in the hands of a batcher.
type request struct {
	luascripts.Change
	limit time.Duration // how long its caller waits; 0 if the caller finds the end by itself
	due   time.Time     // about when its caller has waited for long enough; zero before the sweeper has seen it
	state atomic.Int32  // waits, and what came of it
	wake  chan struct{} // cap 1: gets one token, when the request does not wait any more and its caller has not left
	late  func()        // gets the reply when the caller has left; set before that
}

// Unbatched makes a Call that does not travel with others, when it is embedded.
type Unbatched[T any] struct{}

// Batched says so.
func (Unbatched[T]) Batched() (node uint16, joins bool) { return 0, false }

// Encode is not called.
func (Unbatched[T]) Encode(*luascripts.Change) {}

// Decode is not called.
func (Unbatched[T]) Decode(*luascripts.Change) (none T, err error) { return none, nil }

// What can become of a request.
const (
	waits    int32 = iota
	overdue        // the caller has waited for long enough, and is about to leave
	left           // the caller has left: the request is the batcher's
	answered       // the request is the caller's
)

// batcherOf returns the batcher for a node.
func (s *Sender) batcherOf(node uint16) *batcher {
	all := &s.batchers
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
			all.nodes = make(map[uint16]*batcher)
		}
		c = newBatcher(s)
		c.node = node
		all.nodes[node] = c
		all.first.CompareAndSwap(nil, c)
	}
	return c
}

// batchers has a batcher for each node of a cluster, so that none delays another; without a
// cluster there is one.
type batchers struct {
	first atomic.Pointer[batcher] // nil before there is one; without a cluster there are no others

	mu    sync.RWMutex
	nodes map[uint16]*batcher
}

func (all *batchers) stop() {
	all.mu.RLock()
	defer all.mu.RUnlock()
	for _, c := range all.nodes {
		c.stop()
	}
}

func newBatcher(s *Sender) *batcher {
	c := &batcher{s: s}
	c.work = c.send
	c.spare.New = func() any { return new(batch) }
	c.unused.New = func() any { return &request{wake: make(chan struct{}, 1)} }
	return c
}

// sendBatched is Send for a call that travels with others.
func sendBatched[T any, C Call[T]](ctx context.Context, c *batcher, limit time.Duration, call C) (value T, ok bool, err error) {
	j := c.unused.Get().(*request)
	call.Encode(&j.Change)
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
		woken, err = false, NoReply{After: c.s.Timeout}
	}
	if woken && j.state.Load() == overdue {
		err = NoReply{After: c.s.Timeout}
	}
	if err != nil {
		if abandon[T](j, call) {
			return value, false, err
		}
		if !woken {
			<-j.wake
		}
	}
	value, err = call.Decode(&j.Change)
	j.Change, j.late = luascripts.Change{}, nil
	c.unused.Put(j)
	return value, true, err
}

// abandon has the caller of j leave. It reports false if j was replied to at this moment.
func abandon[T any, C Call[T]](j *request, call C) bool {
	j.late = func() { call.Late(call.Decode(&j.Change)) }
	return j.state.CompareAndSwap(waits, left) || j.state.CompareAndSwap(overdue, left)
}

// answer has the caller take the reply, or receives it in place of a caller that has left.
func (j *request) answer() {
	switch {
	case j.state.CompareAndSwap(waits, answered):
		j.wake <- struct{}{}
	case !j.state.CompareAndSwap(overdue, answered):
		j.late()
	}
}

// add has j travel with the next batch.
func (c *batcher) add(j *request) {
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
func (c *batcher) mayLocked() bool {
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

func (c *batcher) armLocked(t *timer, d time.Duration, f func()) {
	t.armed = true
	if t.Timer == nil {
		t.Timer = time.AfterFunc(d, f)
	} else {
		t.Reset(d)
	}
}

// pace sends what is in the queue, in a goroutine of its own.
func (c *batcher) pace() {
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
func (c *batcher) sweep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sweeper.armed = false
	now, slack := time.Now(), c.s.Timeout/sweepParts
	sweep := func(all []*request) {
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
		sweep(b.requests)
	}
	if len(c.queue) > 0 || len(c.under) > 0 {
		c.armLocked(&c.sweeper, slack, c.sweep)
	}
}

// stop ends the timer that nothing waits for, once nothing is under way any more.
func (c *batcher) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sweeper.Timer != nil {
		c.sweeper.Stop()
	}
}

// ErrUnsent is what Late is notified of a request that was never sent.
var ErrUnsent = Final{errors.New("canceled before the command was sent")}

// send sends batches as long as there is something in the queue. One of c.workers runs it.
func (c *batcher) send() {
	b := c.spare.Get().(*batch)
	for c.next(b) {
		if len(b.changes) > 0 {
			c.roundTrip(b)
		}
		for _, j := range b.requests {
			j.answer()
		}
		many := len(b.requests) > 1
		clear(b.requests)
		clear(b.changes)
		b.requests, b.changes = b.requests[:0], b.changes[:0]
		if many {
			runtime.Gosched() // the callers come first: their next changes are then in the next batch
		}
	}
	c.spare.Put(b)
}

// next fills b from the queue. It reports false, and the worker ends, if there is nothing, or
// others send it.
func (c *batcher) next(b *batch) bool {
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
		b.requests = append(b.requests, j)
		if !j.Gives && j.state.Load() == left {
			j.Err = ErrUnsent // no one needs the lock any more
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

// detectClosed is DetectClosed for the changes of a batch. It asks once for all of them, and no longer than a command may take, as all others wait for that.
func (s *Sender) detectClosed(changes []*luascripts.Change) {
	closing := func(c *luascripts.Change) bool { return errors.Is(c.Err, rueidis.ErrClosing) }
	first := slices.IndexFunc(changes, closing)
	if first < 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.Timeout)
	defer cancel()
	if !errors.As(DetectClosed(ctx, s.rdb, changes[first].Err), new(retry.Closed)) {
		return
	}
	for _, c := range changes[first:] {
		if closing(c) {
			c.Err = retry.Closed{Err: c.Err}
		}
	}
}

// roundTrip sends b, and waits for the replies.
func (c *batcher) roundTrip(b *batch) {
	if c.s.rdb.Mode() == rueidis.ClientModeCluster {
		// The changes of a slot share a script. Of those of a lock, releases come first.
		slices.SortStableFunc(b.changes, func(x, y *luascripts.Change) int { return int(x.Slot) - int(y.Slot) })
	}
	c.s.change(c.s.rdb, b.changes)
	c.s.detectClosed(b.changes)
	took := time.Since(b.sent)
	answers := IsReply(b.changes[0].Err)
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

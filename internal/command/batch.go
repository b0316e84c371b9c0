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

// Changes of plain locks are sent in batches: while a batch is in flight, the changes of other
// goroutines collect for the next one. A goroutine of the sender receives the reply to each batch, so
// the outcome of a change is known even if its caller has stopped waiting.
const (
	callMost  = 64  // changes in one script call: a fraction of a millisecond of server time
	batchMost = 512 // changes in one batch, which is a pipeline of script calls

	// Up to batchesNear batches are in flight without a delay. If replies take longer, one more batch
	// follows after a pause. A change then waits only for a fraction of a round trip before it is
	// sent, and a lost reply delays only its own batch.
	batchesNear = 2
	batchesMost = 32
	paceNear    = 500 * time.Microsecond // the pause if the round trip is at most this long
	paceParts   = 8                      // otherwise the pause is this fraction of the round trip
	sweepParts  = 16                     // the sweeper runs after this fraction of the timeout
	tripSlow    = 1024                   // the fraction by which the measured round trip grows towards a longer one
)

// batcher sends the changes of many goroutines to one node.
type batcher struct {
	s    *Sender // set once
	node uint16  // set once

	mu      sync.Mutex    // guards the fields up to sweeper
	queue   []*request    // to be sent, in the order of arrival
	workers int           // the number of goroutines that send batches, or are about to
	under   []*batch      // batches in flight
	latest  time.Time     // when the latest batch was sent
	trip    time.Duration // the shortest recent round trip
	pacer   timer         // sends one more batch after a pause
	sweeper timer         // ends the wait of overdue callers

	spare sync.Pool

	// unused holds requests for reuse. Clients do not share it: a channel must not leave the
	// testing/synctest bubble in which it was made.
	unused sync.Pool
}

// timer is a reusable timer, guarded by the batcher's mu.
type timer struct {
	*time.Timer
	armed bool
}

// batch is a set of changes in flight.
type batch struct {
	sent     time.Time
	requests []*request
	changes  []*luascripts.Change // the changes to send; it omits abandoned acquires
}

// request is one change that a caller submitted to a batcher.
type request struct {
	luascripts.Change
	limit time.Duration // how long its caller waits; 0 if the caller has its own timer or no limit
	due   time.Time     // about when its caller has waited for limit; zero before the first sweep
	state atomic.Int32  // waits, overdue, left or answered
	wake  chan struct{} // cap 1: receives one token when the request is answered or overdue, unless its caller has left
	late  func()        // receives the reply if the caller has left; set before that
}

// Unbatched can be embedded in a Call that is not batched.
type Unbatched[T any] struct{}

// Batched reports false.
func (Unbatched[T]) Batched() (node uint16, joins bool) { return 0, false }

// Encode is not used.
func (Unbatched[T]) Encode(*luascripts.Change) {}

// Decode is not used.
func (Unbatched[T]) Decode(*luascripts.Change) (none T, err error) { return none, nil }

// The states of a request.
const (
	waits    int32 = iota
	overdue        // the caller has waited for limit, and is about to leave
	left           // the caller has left, and the batcher owns the request
	answered       // the caller owns the request
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

// batchers holds one batcher for each node of a cluster, so that no node delays another. Without a
// cluster there is only one.
type batchers struct {
	first atomic.Pointer[batcher] // the first batcher, the only one without a cluster; nil before it is made

	mu    sync.RWMutex // guards nodes
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
	c.spare.New = func() any { return new(batch) }
	c.unused.New = func() any { return &request{wake: make(chan struct{}, 1)} }
	return c
}

// sendBatched is Send for a batched call.
func sendBatched[T any, C Call[T]](ctx context.Context, c *batcher, limit time.Duration, call C) (value T, ok bool, err error) {
	j := c.unused.Get().(*request)
	call.Encode(&j.Change)
	var timeout <-chan time.Time
	j.limit = 0 // reset the limit of an earlier caller
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

// abandon makes the caller of j leave. It reports false if j was answered just before.
func abandon[T any, C Call[T]](j *request, call C) bool {
	j.late = func() { call.Late(call.Decode(&j.Change)) }
	return j.state.CompareAndSwap(waits, left) || j.state.CompareAndSwap(overdue, left)
}

// answer wakes the caller of j, or handles the reply for a caller that has left.
func (j *request) answer() {
	switch {
	case j.state.CompareAndSwap(waits, answered):
		j.wake <- struct{}{}
	case !j.state.CompareAndSwap(overdue, answered):
		j.late()
	}
}

// add queues j for the next batch.
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
		c.s.do(c)
	}
}

// mayLocked reports whether one more worker may send now. If it is too early, the pacer checks again
// later.
func (c *batcher) mayLocked() bool {
	if c.workers < batchesNear {
		return true
	}
	if c.workers == batchesMost || c.pacer.armed { // the pacer checks in time
		return false
	}
	pace := paceNear
	if c.trip > paceNear {
		pace = c.trip / paceParts
	}
	wait := pace - time.Since(c.latest)
	if wait > 0 {
		c.s.Add() // until pace has run
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

// pace sends batches after a pause. The pacer runs it in a separate goroutine.
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
		c.run()
	}
}

// sweep ends the wait of callers that have waited for their limit.
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
				j.due = now.Add(j.limit - 2*slack) // it came since the last sweep, and the next sweep may be as much too late
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

// stop stops the sweeper once nothing is in flight.
func (c *batcher) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sweeper.Timer != nil {
		c.sweeper.Stop()
	}
}

// ErrUnsent is passed to Late if the request was never sent.
var ErrUnsent = Final{errors.New("canceled before the command was sent")}

// run sends batches until the queue is empty, or other workers suffice. A worker runs it.
func (c *batcher) run() {
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
			runtime.Gosched() // let the callers run first, so that their next changes are in the next batch
		}
	}
	c.spare.Put(b)
}

// next fills b from the queue. It returns false, and the worker ends, if the queue is empty or other
// workers suffice.
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
			j.Err = ErrUnsent // no caller needs the lock any more
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

// detectClosed is DetectClosed for a batch. It sends one PING for all of its changes. The PING has a
// timeout, because all callers of the batch wait for it.
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

// roundTrip sends b and waits for the replies.
func (c *batcher) roundTrip(b *batch) {
	if c.s.rdb.Mode() == rueidis.ClientModeCluster {
		// The changes of a slot share a script, which runs releases first.
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
	case !answers: // no reply arrived, so the duration is not a round trip
	case c.trip == 0 || took < c.trip:
		c.trip = took
	default:
		c.trip += (took - c.trip) / tripSlow
	}
}

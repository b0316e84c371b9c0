package command

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// Up to batchesNear batches are in flight without a delay, or batchesFar if the round trip is longer
// than paceNear. If replies take longer, one more batch follows after a pause. A request then waits
// only for a fraction of a round trip before it is sent, and a lost reply delays only its own batch.
//
// A pause can be a millisecond too long, because a process without other work wakes up that late.
// With a few distant batches in flight, that would be a whole round trip.
const (
	batchesNear = 2
	batchesFar  = 8
	batchesMost = 32
	paceNear    = 500 * time.Microsecond // the pause if the round trip is at most this long
	paceParts   = 16                     // otherwise the pause is this fraction of the round trip
	tripSlow    = 1024                   // the fraction by which the measured round trip grows towards a longer one
)

// Batcher sends the requests of many goroutines in batches, first-come, first-served: while batches
// are in flight, other requests collect for the next one. The number of commands therefore does not
// grow with the number of callers. A goroutine of the sender receives the reply to each batch, so the
// outcome of a request is known even if its caller has stopped waiting.
type Batcher[R any] struct {
	s    *Sender                         // set once
	exec func(batch []*R) (replied bool) // set once: sends a batch and fills in the replies; reports whether there were any
	size func(*R) int                    // set once: the size of a request
	most int                             // set once: the maximum size of a batch that has several requests
	drop func(*R) bool                   // set once: see NewBatcher

	unused sync.Pool // *batch[R]

	mu      sync.Mutex    // guards the fields below
	queue   []*request[R] // to be sent, in the order of arrival
	workers int           // the number of goroutines that send batches, or are about to
	pause   pause         // before one more batch
}

// pause is the pause after which one more batch follows those in flight. Guarded by the batcher's mu.
type pause struct {
	latest time.Time     // when the latest batch was sent
	trip   time.Duration // the shortest recent round trip
	runs   bool
	timer  *time.Timer // ends the pause; nil before the first
}

// request is one request of a batcher.
type request[R any] struct {
	waiter
	R    R
	late func() // receives the reply if the caller has left; set before that; nil ignores the reply
}

func newRequest[R any](r R) *request[R] { return &request[R]{waiter: newWaiter(), R: r} }

// NewBatcher returns a batcher on s. exec sends a batch, fills in the replies, and reports whether
// there were any. size returns the size of a request. A batch of several requests is no larger than
// most. drop is called for a request whose caller left before it was sent, and reports whether it is
// not sent.
func NewBatcher[R any](s *Sender, exec func(batch []*R) bool, size func(*R) int, most int, drop func(*R) bool) *Batcher[R] {
	return &Batcher[R]{s: s, exec: exec, size: size, most: most, drop: drop}
}

// Ask sends r and returns it with its reply. Like the function Ask it returns early if ctx is canceled,
// the sender's timeout has passed, or the sender is shut. If r was not sent by then, it is never sent.
func (b *Batcher[R]) Ask(ctx context.Context, r R) (none R, err error) {
	if ctx.Err() != nil { // mutant: never: speed
		return none, Ended(ctx, 0)
	}
	if err := b.s.Enter(); err != nil {
		return none, err
	}
	defer b.s.Done()
	began := time.Now()
	q := newRequest(r)
	b.add(q)
	if err := q.await(ctx, b.s, b.s.Timeout, b.s.closing); err != nil && !q.over.Swap(true) { // mutant: operand 1: a reply has set over
		return none, b.s.Failed(ctx, began, err)
	}
	return q.R, nil
}

// add queues r for the next batch.
func (b *Batcher[R]) add(r *request[R]) {
	b.mu.Lock()
	b.queue = append(b.queue, r)
	sends := b.needsWorkerLocked()
	b.mu.Unlock()
	if sends {
		b.s.do(b)
	}
}

// needsWorkerLocked reports whether one more worker must send now, and counts it. If it is too early, a
// timer checks again later.
func (b *Batcher[R]) needsWorkerLocked() bool {
	if len(b.queue) == 0 {
		return false
	}
	p, atOnce, pace := &b.pause, batchesNear, paceNear
	if p.trip > paceNear { // mutant: border: speed
		atOnce, pace = batchesFar, p.trip/paceParts
	}
	if b.workers >= atOnce {
		if b.workers == batchesMost || p.runs {
			return false
		}
		if wait := pace - time.Since(p.latest); wait > 0 {
			p.runs = true
			b.s.Add()           // until afterPause has run
			if p.timer == nil { // mutant: always: speed
				p.timer = time.AfterFunc(wait, b.afterPause)
			} else {
				p.timer.Reset(wait)
			}
			return false
		}
	}
	b.workers++
	return true
}

// afterPause sends batches after a pause.
func (b *Batcher[R]) afterPause() {
	defer b.s.Done()
	b.mu.Lock()
	b.pause.runs = false
	sends := b.needsWorkerLocked()
	b.mu.Unlock()
	if sends {
		b.run()
	}
}

// run sends batches until the queue is empty, or other workers suffice. A worker runs it.
func (b *Batcher[R]) run() {
	w, _ := b.unused.Get().(*batch[R])
	if w == nil { // mutant: always: speed
		w = new(batch[R])
	}
	defer b.unused.Put(w) // mutant: removed: speed
	for b.next(w) {
		if len(w.sent) > 0 && b.exec(w.sent) {
			b.measure(time.Since(w.began))
		}
		for _, r := range w.requests {
			if !r.answer() && r.late != nil {
				r.late()
			}
		}
		many := len(w.requests) > 1 // mutant: never, always, border: speed
		clear(w.requests)           // mutant: removed: memory
		clear(w.sent)               // mutant: removed: memory
		if many {                   // mutant: never, always: speed
			runtime.Gosched() // mutant: removed: speed. Let the callers run first, so that their next requests are in the next batch
		}
	}
}

// batch is what a worker sends.
type batch[R any] struct {
	requests []*request[R]
	sent     []*R // of requests, without those whose callers have left
	began    time.Time
}

// next fills w from the queue. It returns false, and the worker ends, if the queue is empty or other
// workers suffice.
func (b *Batcher[R]) next(w *batch[R]) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.workers--; !b.needsWorkerLocked() {
		return false
	}
	w.began = time.Now()
	b.pause.latest = w.began
	size, most := 0, min(len(b.queue), b.most) // mutant: operand 1, operand 2: speed
	w.requests, w.sent = slices.Grow(w.requests[:0], most), slices.Grow(w.sent[:0], most)
	for _, r := range b.queue {
		if size += b.size(&r.R); len(w.requests) > 0 && size > b.most {
			break
		}
		w.requests = append(w.requests, r)
		if !r.over.Load() || !b.drop(&r.R) {
			w.sent = append(w.sent, &r.R)
		}
	}
	rest := copy(b.queue, b.queue[len(w.requests):])
	clear(b.queue[rest:])                                // mutant: removed: memory
	if b.queue = b.queue[:rest]; b.needsWorkerLocked() { // they did not fit
		b.s.do(b) // mutant: removed: another worker is there already, so needsWorkerLocked has only begun a pause
	}
	return true
}

// measure records the round trip of a batch.
func (b *Batcher[R]) measure(took time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := &b.pause; p.trip == 0 || took < p.trip { // mutant: border: the same
		p.trip = took
	} else {
		p.trip += (took - p.trip) / tripSlow
	}
}

// Changes of plain locks are the requests of one batcher for each node.
const (
	callMost  = 64  // changes in one script call: a fraction of a millisecond of server time
	batchMost = 512 // changes in one batch, which is a pipeline of script calls
)

// ErrUnsent is passed to Late if the change was never sent.
var ErrUnsent = Final{errors.New("canceled before the command was sent")}

// batcherOf returns the batcher for a slot.
func (s *Sender) batcherOf(slot uint16) *Batcher[luascripts.Change] {
	node := uint16(0)
	if s.Node != nil {
		node = s.Node(slot)
	}
	b, ok := s.batchers.Load(node)
	if !ok { // mutant: always: the other one wins
		b, _ = s.batchers.LoadOrStore(node, NewBatcher(s, s.exec, func(*luascripts.Change) int { return 1 }, batchMost, unsent))
	}
	return b.(*Batcher[luascripts.Change])
}

// unsent drops an acquire that no caller needs. A release is sent.
func unsent(c *luascripts.Change) bool {
	if !c.IsRelease {
		c.Err = ErrUnsent
	}
	return !c.IsRelease
}

// exec sends a batch of changes.
func (s *Sender) exec(changes []*luascripts.Change) (replied bool) {
	if s.Redis.Mode() == rueidis.ClientModeCluster {
		// The changes of a slot share a script, which runs releases first.
		slices.SortStableFunc(changes, func(x, y *luascripts.Change) int { return int(x.Slot) - int(y.Slot) })
	}
	s.change(context.Background(), s.Redis, changes, callMost)
	if i := slices.IndexFunc(changes, failedClosing); i >= 0 {
		s.detectClosed(changes[i:])
	}
	return IsReply(changes[0].Err)
}

func failedClosing(c *luascripts.Change) bool { return errors.Is(c.Err, rueidis.ErrClosing) }

// detectClosed is DetectClosed for changes of which the first failed with rueidis.ErrClosing. It sends
// one PING for all of them. The PING has a timeout, because all callers of the batch wait for it.
func (s *Sender) detectClosed(changes []*luascripts.Change) {
	ctx, cancel := context.WithTimeout(context.Background(), s.Timeout)
	defer cancel() // mutant: removed: memory
	if !errors.As(DetectClosed(ctx, s.Redis, changes[0].Err), new(retry.Closed)) {
		return
	}
	for _, c := range changes {
		if failedClosing(c) {
			c.Err = retry.Closed{Err: c.Err}
		}
	}
}

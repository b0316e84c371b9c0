package session

import (
	"container/heap"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/luascripts"
)

// reconcile sets the number of holds in Redis to the number that t has now, after a command with an unknown outcome. If
// t has ended, that number is 0. Goroutines of the reconciler repeat this until the server confirms, or until the lease
// of the command must have expired. If the lock of t was handed off, a later acquisition has the owner string. The
// release of that acquisition then reconciles t, too.
//
// broken is true if a delayed duplicate may be in flight, because the connection broke or the caller left. The duplicate
// may arrive after the confirmation, so the reconciler repeats the command later. The intervals double from one
// operation timeout until the requested lease must have expired.
//
// The caller is registered with the sender and holds no mutex.
func (s *Session) reconcile(t *acquisition, broken bool) {
	s.reconcilers.of(s, t).add(t, broken)
}

// reconcilers has one reconciler per node of a cluster, so that an unavailable node does not delay the others. Without
// a cluster there is one.
type reconcilers struct {
	mu    sync.Mutex
	nodes map[uint16]*reconciler // guarded by mu
}

// of returns the reconciler for the node that has t.
func (all *reconcilers) of(s *Session, t *acquisition) *reconciler {
	var node uint16
	if s.sliced() { // mutant: always: speed
		node = s.node(t.spec.slot)
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	q := all.nodes[node]
	if q == nil {
		q = &reconciler{s: s, of: make(map[*acquisition]*pending), wake: make(chan struct{}, 1)}
		if all.nodes == nil {
			all.nodes = make(map[uint16]*reconciler)
		}
		all.nodes[node] = q
	}
	return q
}

// reconcilersAtOnce is the maximum number of goroutines per reconciler. While nothing is due, one of them sleeps. While
// nothing is pending, there is none.
const reconcilersAtOnce = 256

// reconciler reconciles the acquisitions of one node. Its mutex is never held together with the mutex of a state.
type reconciler struct {
	s    *Session      // set once
	wake chan struct{} // cap 1: wakes the sleeping worker, because something is due earlier

	// Guarded by mu.
	mu      sync.Mutex
	queue   pendings                  // ordered by due; without entries that a worker has taken
	of      map[*acquisition]*pending // all pending entries
	workers int
	sleeps  bool // one of the workers sleeps until something is due
}

// pending is an acquisition that must be reconciled. Guarded by the mutex of the reconciler.
type pending struct {
	t       *acquisition // set once
	due     time.Time
	began   time.Time     // the lease has expired once mayLive has passed since then
	last    bool          // a command sent after the lease expired has failed; after another failure the reconciler gives up
	broken  bool          // repeat the command after a confirmation
	again   time.Duration // how long after the confirmation
	pause   retry.Backoff // between failed commands
	repeats bool          // confirmed; the next command is the repetition, and Close has not made it due yet
	anew    bool          // add was called again while a worker had it
	err     error         // of the latest command; nil before the first reply
	index   int           // in the queue; -1 while a worker has it
}

// add queues a pending entry for t, or makes the existing one due again.
func (q *reconciler) add(t *acquisition, broken bool) {
	now := time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	d := q.of[t]
	if d == nil {
		d = &pending{t: t, again: q.s.OpTimeout, index: -1}
		q.of[t] = d
	} else if d.index < 0 {
		d.anew = true
	}
	d.due, d.began, d.repeats, d.last = now, now, false, false
	d.pause = retry.Backoff{Most: q.s.Poll}
	if broken {
		d.broken, d.again = true, q.s.OpTimeout
	}
	switch {
	case d.anew:
		return // the worker that has it puts it back into the queue
	case d.index < 0:
		heap.Push(&q.queue, d)
	default:
		heap.Fix(&q.queue, d.index)
	}
	q.callLocked()
}

// callLocked wakes the sleeping worker, or starts a worker if none sleeps.
func (q *reconciler) callLocked() {
	switch {
	case q.sleeps:
		select {
		case q.wake <- struct{}{}:
		default:
		}
	case q.workers < reconcilersAtOnce: // mutant: always, border: memory
		q.workers++
		q.s.sender.Go(q.work)
	}
}

// work reconciles entries as they become due, until next returns nil.
func (q *reconciler) work() {
	for d := q.next(); d != nil; d = q.next() {
		sent := time.Now()
		err := command.DetectClosed(context.Background(), q.s.rdb, q.s.reconcileOnce(d.t))
		d.t.at.removed(d.t)
		if q.done(d, sent, err) {
			q.s.report.warn("release not confirmed before the lease expired", d.t.spec.Name, "lock", d.t.spec.Name, "err", q.s.sender.Explain(err))
		}
	}
}

// failing returns the name of a lock whose release failed and is to be repeated, and the error.
func (all *reconcilers) failing() (name string, err error) {
	all.mu.Lock()
	defer all.mu.Unlock()
	for _, q := range all.nodes {
		q.mu.Lock()
		for t, d := range q.of {
			if d.err != nil { // mutant: always: text
				name, err = t.spec.Name, d.err
			}
		}
		q.mu.Unlock()
	}
	return name, err
}

// next waits until an entry is due and removes it from the queue. It returns nil, which ends the worker, when the queue
// is empty, when another worker already sleeps, or when Close has stopped waiting.
func (q *reconciler) next() *pending {
	closing := q.s.sender.Closing()
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		select {
		case <-q.s.closer.givenUp:
			q.queue, q.of = nil, make(map[*acquisition]*pending)
		default:
		}
		if len(q.queue) == 0 || q.sleeps {
			q.workers--
			return nil
		}
		wait := time.Until(q.queue[0].due)
		if wait <= 0 {
			d := heap.Pop(&q.queue).(*pending)
			if len(q.queue) > 0 { // mutant: always, border: speed
				q.callLocked() // the next entry may be due, too
			}
			return d
		}
		q.sleeps = true
		q.mu.Unlock()
		hurry := false
		select {
		case <-time.After(wait):
		case <-q.wake:
		case <-closing:
			closing, hurry = nil, true
		case <-q.s.closer.givenUp:
		}
		q.mu.Lock()
		q.sleeps = false
		if hurry {
			q.hurryLocked()
		}
	}
}

// hurryLocked makes every confirmed entry due now, and its repetition the last one.
func (q *reconciler) hurryLocked() {
	now := time.Now()
	for _, d := range q.queue {
		if d.repeats {
			d.repeatNow(now)
		}
	}
	heap.Init(&q.queue)
}

// repeatNow makes the repetition of d due now, and the last one. If it fails, it is retried with pauses.
func (d *pending) repeatNow(now time.Time) {
	d.due, d.began, d.broken, d.repeats = now, now, false, false
}

// done records the result of a command for d, which is not in the queue. It reports whether the reconciler gives up on d
// without a confirmation.
//
// The reconciler gives up after two failed commands that were sent after the lease expired. An earlier command may fail
// because this process or the server was paused. The first one after a pause may fail because its connection broke.
func (q *reconciler) done(d *pending, sent time.Time, err error) (givenUp bool) {
	lives := locked(d.t.at, d.t.MayLive) + q.s.OpTimeout // the timeout is for the delivery of the command
	now := time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	d.err = err
	switch {
	case errors.As(err, new(retry.Closed)):
		// mutant: removed: memory
		delete(q.of, d.t) // the application closed rdb, so no command can be sent
		return false
	case d.anew:
		d.anew = false // it is already due
	case err == nil && (!d.broken || d.again > lives):
		delete(q.of, d.t)
		return false
	case err == nil:
		d.repeats, d.last = true, false
		d.due, d.again = now.Add(d.again), 2*d.again
		d.began = d.due
		select {
		case <-q.s.sender.Closing():
			d.repeatNow(now)
		default:
		}
	case d.last:
		delete(q.of, d.t)
		return true
	default:
		d.last = sent.Sub(d.began) > lives // mutant: border: a nanosecond
		d.due = now.Add(d.pause.Next())
	}
	heap.Push(&q.queue, d)
	if q.sleeps { // mutant: always: speed
		q.callLocked() // d may be due before the sleeping worker wakes
	}
	return false
}

// errTurn is returned when a call has the turn of a live acquisition.
var errTurn = errors.New("another command is in flight")

// reconcileOnce sends one command that sets the number of holds in Redis to the number that t has.
func (s *Session) reconcileOnce(t *acquisition) error {
	t.at.lock()
	lives, o := t.Lives(), t.Acquisition.Owner()
	t.at.unlock()
	if lives {
		turn := t.turn(o)
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
		default:
			return errTurn
		}
	}
	t.at.lock()
	if latest := acquisitionOf(t.Latest()); latest != t {
		t = latest
		if t.Lives() { // mutant: always: speed
			t.at.unlock()
			return nil
		}
	}
	holds, last := t.Reconciling(), t.Token()
	t.at.unlock()
	verdict, err := s.setHolds(context.Background(), t, holds, last)
	switch {
	case err != nil:
		return err
	case holds == 0:
		s.mayBeFree(t.spec)
		return nil
	// mutant: operand 2: if the lock was handed off, its next holder has lost it, too
	case verdict != luascripts.Done && locked(t.at, t.Lives):
		t.lease.Lose(s.gone(t, luascripts.Gone))
	}
	t.at.lock()
	t.ChangeDone()
	t.at.unlock()
	return nil
}

// setHolds sets the number of holds of t in Redis. If it is 0, the script may grant the lock to the next process. last is
// the latest token that this process assigned.
func (s *Session) setHolds(ctx context.Context, t *acquisition, holds int, last uint64) (luascripts.Verdict, error) {
	if holds > 0 {
		return t.spec.Release(ctx, s.rdb, t.spec.Keys, t.Name, holds)
	}
	if locked(t.at, t.retains) {
		reply, err := retainRequest{t: t}.Send(ctx)
		return reply.Verdict, err
	}
	reply, err := t.spec.free(ctx, s.rdb, t.spec.Keys, t.Name, luascripts.Release{Last: last, Spare: MaxSpare, Served: locked(t.at, t.Served)})
	return reply.Verdict, err
}

// pendings is a heap of entries, ordered by due.
type pendings []*pending

func (q pendings) Len() int           { return len(q) }
func (q pendings) Less(i, j int) bool { return q[i].due.Before(q[j].due) }
func (q pendings) Swap(i, j int)      { q[i], q[j] = q[j], q[i]; q[i].index, q[j].index = i, j }

// Push implements heap.Interface.
func (q *pendings) Push(x any) {
	d := x.(*pending)
	d.index = len(*q)
	*q = append(*q, d)
}

// Pop implements heap.Interface.
func (q *pendings) Pop() any {
	end := len(*q) - 1
	d := (*q)[end]
	(*q)[end], d.index = nil, -1
	*q = (*q)[:end]
	return d
}

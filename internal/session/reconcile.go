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

// reconcile makes Redis agree with this process about t, after a command for t
// whose outcome is not known: it leaves as many holds as t has now, which is
// none when t is over. Goroutines of the reconciler do that, and repeat it until the server
// confirms, or until the lease of that command must have expired. If the lock of t was passed
// on, the owner string is that of a later acquisition; then the release of that one reconciles t, too.
//
// If broken, the reconciler looks again later: when a connection broke, or a caller left, a copy
// of the command may still be on its way, and the first confirmation may have overtaken it.
// No one knows how long that takes, so the pauses double, from an operation timeout to when
// the lease that the command asked for would be over.
//
// The caller is counted by the sender, and holds no mutex.
func (s *Session) reconcile(t *acquisition, broken bool) {
	s.reconcilers.of(s, t).add(t, broken)
}

// reconcilers has a reconciler for each node of a cluster, so that a node that does not reply
// delays no other; without a cluster there is one.
type reconcilers struct {
	mu    sync.Mutex
	nodes map[uint16]*reconciler
}

// of returns the reconciler for the node that has t.
func (all *reconcilers) of(s *Session, t *acquisition) *reconciler {
	var node uint16
	if s.sliced() {
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

// settlersAtOnce is how many goroutines at the most reconcile at one node at the same time. While
// nothing is due, one of them sleeps; while nothing is uncertain, there is none.
const reconcilersAtOnce = 256

// reconciler reconciles what is uncertain at one node, however much that is. Its mutex is taken while
// no mutex of a state is held.
type reconciler struct {
	s    *Session      // set once
	wake chan struct{} // cap 1: something is due before the time for which a goroutine sleeps

	mu      sync.Mutex
	queue   pendings                  // by due; without those that a worker reconciles at this moment
	of      map[*acquisition]*pending // all pending entries
	workers int
	sleeps  bool // one of the workers sleeps until something is due
}

// pending is what is to be reconciled about one acquisition. The reconciler's mutex guards it.
type pending struct {
	t      *acquisition // set once
	due    time.Time
	began  time.Time     // mayLive after this, the lease has expired
	last   bool          // a command that was sent after that has failed; if the next one fails, too, the reconciler gives up
	broken bool          // look again after a confirmation,
	again  time.Duration // so much later
	pause  retry.Backoff // after an error
	looks  bool          // it was confirmed, and the next command is another look
	anew   bool          // there is another doubt about t since a worker took this one
	index  int           // in the queue; -1 while a worker has it
}

// add puts a pending entry for t into the queue, or notes that there is one doubt more.
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
	d.due, d.began, d.looks, d.last = now, now, false, false
	d.pause = retry.Backoff{Most: q.s.Poll}
	if broken {
		d.broken, d.again = true, q.s.OpTimeout
	}
	switch {
	case d.anew:
		return // the worker that has it puts it back
	case d.index < 0:
		heap.Push(&q.queue, d)
	default:
		heap.Fix(&q.queue, d.index)
	}
	q.callLocked()
}

// callLocked has a worker take what is due.
func (q *reconciler) callLocked() {
	switch {
	case q.sleeps:
		select {
		case q.wake <- struct{}{}:
		default:
		}
	case q.workers < reconcilersAtOnce:
		q.workers++
		q.s.sender.Go(q.work)
	}
}

// work reconciles what is due until there is nothing left.
func (q *reconciler) work() {
	for d := q.next(); d != nil; d = q.next() {
		sent := time.Now()
		err := command.DetectClosed(context.Background(), q.s.rdb, q.s.reconcileOnce(d.t))
		if q.done(d, sent, err) {
			q.s.report.warn("release not confirmed before the lease expired", d.t.spec.Name, "lock", d.t.spec.Name, "err", q.s.sender.Explain(err))
		}
	}
}

// next waits until something is due and takes it out of the queue. It returns nil, and the
// worker ends, when nothing is left, when another worker sleeps already, or when Close gave up.
func (q *reconciler) next() *pending {
	closing := q.s.closer.closing
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
			if len(q.queue) > 0 {
				q.callLocked() // the next may be due as well, or will be meanwhile
			}
			return d
		}
		q.sleeps = true
		q.mu.Unlock()
		timer := time.NewTimer(wait)
		hurry := false
		select {
		case <-timer.C:
		case <-q.wake:
		case <-closing:
			closing, hurry = nil, true
		case <-q.s.closer.givenUp:
		}
		timer.Stop()
		q.mu.Lock()
		q.sleeps = false
		if hurry {
			q.hurryLocked()
		}
	}
}

// hurryLocked makes every doubt that waits for another look due now, and that look the last.
func (q *reconciler) hurryLocked() {
	now := time.Now()
	for _, d := range q.queue {
		if d.looks {
			d.due, d.began, d.broken = now, now, false
		}
	}
	heap.Init(&q.queue)
}

// done records the result of a command that was sent for d, which is out of the queue. It reports whether d is
// given up, although Redis never confirmed it.
//
// A command that was sent before the lease expired proves nothing when it fails later: this process or the server may have been paused in
// between. Nor does the first one after that, whose connection may have broken in the pause.
func (q *reconciler) done(d *pending, sent time.Time, err error) (givenUp bool) {
	lives := d.t.mayLive()
	now := time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case errors.As(err, new(retry.Closed)):
		delete(q.of, d.t) // the application closed rdb: nothing can be sent any more
		return false
	case d.anew:
		d.anew = false // and due
	case err == nil && (!d.broken || d.again > lives):
		delete(q.of, d.t)
		return false
	case err == nil:
		d.looks, d.last = true, false
		d.due, d.again = now.Add(d.again), 2*d.again
		d.began = d.due
		select {
		case <-q.s.closer.closing:
			d.due, d.began, d.broken = now, now, false // one look more, now
		default:
		}
	case d.last:
		delete(q.of, d.t)
		return true
	default:
		d.last = sent.Sub(d.began) > lives
		d.due = now.Add(d.pause.Next())
	}
	heap.Push(&q.queue, d)
	if q.sleeps {
		q.callLocked() // the worker that sleeps may sleep for too long
	}
	return false
}

// mayLive returns for how long after now a command for t can keep the lock: it may be carried
// out an operation timeout late.
func (t *acquisition) mayLive() time.Duration {
	t.at.lock()
	defer t.at.unlock()
	return t.MayLive() + t.s.OpTimeout
}

// errTurn says that a call has the turn of an acquisition that lives.
var errTurn = errors.New("another command is in flight")

// reconcileOnce sends one command that leaves as many holds in Redis as there are.
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
		if t.Lives() {
			t.at.unlock()
			return nil
		}
	}
	holds, last := t.Reconciling(), t.Token()
	t.at.unlock()
	verdict, err := s.leave(context.Background(), t, holds, last)
	switch {
	case err != nil:
		return err
	case holds == 0:
		s.mayBeFree(t.spec)
		return nil
	case verdict != luascripts.Done && t.isLive():
		t.lease.Lose(s.gone(t, luascripts.Gone))
	}
	t.changeDone()
	return nil
}

// leave tells Redis that t has this many holds. last is the latest token that this process
// gave out: if no hold is left, the script may give the lock to the next process.
func (s *Session) leave(ctx context.Context, t *acquisition, holds int, last uint64) (luascripts.Verdict, error) {
	if holds > 0 {
		return t.spec.Release(ctx, s.rdb, t.spec.Keys, t.Name, holds)
	}
	if t.retains() {
		return retainRequest{t: t}.Send(ctx)
	}
	reply, err := t.spec.free(ctx, s.rdb, t.spec.Keys, t.Name, luascripts.Pass{Last: last, Spare: t.spec.spare, Served: t.served()})
	return reply.Verdict, err
}

// pendings entries is a heap: the doubt that is due first is the first.
type pendings []*pending

func (q pendings) Len() int           { return len(q) }
func (q pendings) Less(i, j int) bool { return q[i].due.Before(q[j].due) }
func (q pendings) Swap(i, j int)      { q[i], q[j] = q[j], q[i]; q[i].index, q[j].index = i, j }

// Push adds a doubt at the end.
func (q *pendings) Push(x any) {
	d := x.(*pending)
	d.index = len(*q)
	*q = append(*q, d)
}

// Pop takes the last doubt out.
func (q *pendings) Pop() any {
	end := len(*q) - 1
	d := (*q)[end]
	(*q)[end], d.index = nil, -1
	*q = (*q)[:end]
	return d
}

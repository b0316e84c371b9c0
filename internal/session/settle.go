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

// settle makes Redis agree with this process about t, after a command for t
// whose outcome is not known: it leaves as many holds as t has now, which is
// none when t is over. Goroutines of the settler do that, and repeat it until the server
// confirms, or until the lease of that command must have run out. If the lock of t was passed
// on, the owner string is that of a later tenure; then the release of that one settles t, too.
//
// If broken, the settler looks again later: when a connection broke, or a caller left, a copy
// of the command may still be on its way, and the first confirmation may have overtaken it.
// Nobody knows how long that takes, so the pauses double, from an operation time-out to when
// the lease that the command asked for would be over.
//
// The caller is counted by the sender, and holds no mutex.
func (s *Session) settle(t *tenure, broken bool) {
	s.settlers.of(s, t).add(t, broken)
}

// settlers has a settler for each node of a cluster, so that a node that does not answer
// delays no other; without a cluster there is one.
type settlers struct {
	mu    sync.Mutex
	nodes map[uint16]*settler
}

// of returns the settler for the node that has t.
func (all *settlers) of(s *Session, t *tenure) *settler {
	var node uint16
	if s.sliced() {
		node = s.node(t.spec.slot)
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	q := all.nodes[node]
	if q == nil {
		q = &settler{s: s, of: make(map[*tenure]*doubt), wake: make(chan struct{}, 1)}
		if all.nodes == nil {
			all.nodes = make(map[uint16]*settler)
		}
		all.nodes[node] = q
	}
	return q
}

// settlersAtOnce is how many goroutines at the most settle at one node at the same time. While
// nothing is due, one of them sleeps; while nothing is in doubt, there is none.
const settlersAtOnce = 256

// settler settles what is in doubt at one node, however much that is. Its mutex is taken while
// no mutex of a place is held.
type settler struct {
	s    *Session      // set once
	wake chan struct{} // cap 1: something is due before the time for which a goroutine sleeps

	mu      sync.Mutex
	queue   doubts             // by due; without those that a worker settles at this moment
	of      map[*tenure]*doubt // all doubts
	workers int
	sleeps  bool // one of the workers sleeps until something is due
}

// doubt is what is to be settled about one tenure. The settler's mutex guards it.
type doubt struct {
	t      *tenure // set once
	due    time.Time
	began  time.Time     // mayLive after this, the lease has expired
	last   bool          // a command that was sent after that has failed; if the next one fails, too, the settler gives up
	broken bool          // look again after a confirmation,
	again  time.Duration // so much later
	pause  retry.Backoff // after an error
	looks  bool          // it was confirmed, and the next command is another look
	anew   bool          // there is another doubt about t since a worker took this one
	index  int           // in the queue; -1 while a worker has it
}

// add puts a doubt about t into the queue, or notes that there is one doubt more.
func (q *settler) add(t *tenure, broken bool) {
	now := time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	d := q.of[t]
	if d == nil {
		d = &doubt{t: t, again: q.s.OpTimeout, index: -1}
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
func (q *settler) callLocked() {
	switch {
	case q.sleeps:
		select {
		case q.wake <- struct{}{}:
		default:
		}
	case q.workers < settlersAtOnce:
		q.workers++
		q.s.sender.Go(q.work)
	}
}

// work settles what is due until there is nothing left.
func (q *settler) work() {
	for d := q.next(); d != nil; d = q.next() {
		sent := time.Now()
		err := command.Sure(context.Background(), q.s.rdb, q.s.settleOnce(d.t))
		if q.done(d, sent, err) {
			q.s.report.warn("release not confirmed before the lease expired", d.t.spec.Name, "lock", d.t.spec.Name, "err", q.s.sender.Explain(err))
		}
	}
}

// next waits until something is due and takes it out of the queue. It returns nil, and the
// worker ends, when nothing is left, when another worker sleeps already, or when Close gave up.
func (q *settler) next() *doubt {
	closing := q.s.closer.closing
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		select {
		case <-q.s.closer.givenUp:
			q.queue, q.of = nil, make(map[*tenure]*doubt)
		default:
		}
		if len(q.queue) == 0 || q.sleeps {
			q.workers--
			return nil
		}
		wait := time.Until(q.queue[0].due)
		if wait <= 0 {
			d := heap.Pop(&q.queue).(*doubt)
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
func (q *settler) hurryLocked() {
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
func (q *settler) done(d *doubt, sent time.Time, err error) (givenUp bool) {
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
// out an operation time-out late.
func (t *tenure) mayLive() time.Duration {
	t.at.lock()
	defer t.at.unlock()
	return t.MayLive() + t.s.OpTimeout
}

// errTurn says that a call has the turn of a tenure that lives.
var errTurn = errors.New("another command is in flight")

// settleOnce sends one command that leaves as many holds in Redis as there are.
func (s *Session) settleOnce(t *tenure) error {
	t.at.lock()
	lives, o := t.Lives(), t.Tenure.Owner()
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
	if latest := tenureOf(t.Latest()); latest != t {
		t = latest
		if t.Lives() {
			t.at.unlock()
			return nil
		}
	}
	holds, last := t.Freeing(), t.Token()
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
	t.settled()
	return nil
}

// leave tells Redis that t has this many holds. last is the latest token that this process
// gave out: if no hold is left, the script may give the lock to the next process.
func (s *Session) leave(ctx context.Context, t *tenure, holds int, last uint64) (luascripts.Verdict, error) {
	if holds > 0 {
		return t.spec.Release(ctx, s.rdb, t.spec.Keys, t.Name, holds)
	}
	if t.retains() {
		return retention{t: t}.Send(ctx)
	}
	reply, err := t.spec.free(ctx, s.rdb, t.spec.Keys, t.Name, luascripts.Pass{Last: last, Spare: t.spec.spare, Served: t.served()})
	return reply.Verdict, err
}

// doubts is a heap: the doubt that is due first is the first.
type doubts []*doubt

func (q doubts) Len() int           { return len(q) }
func (q doubts) Less(i, j int) bool { return q[i].due.Before(q[j].due) }
func (q doubts) Swap(i, j int)      { q[i], q[j] = q[j], q[i]; q[i].index, q[j].index = i, j }

// Push adds a doubt at the end.
func (q *doubts) Push(x any) {
	d := x.(*doubt)
	d.index = len(*q)
	*q = append(*q, d)
}

// Pop takes the last doubt out.
func (q *doubts) Pop() any {
	end := len(*q) - 1
	d := (*q)[end]
	(*q)[end], d.index = nil, -1
	*q = (*q)[:end]
	return d
}

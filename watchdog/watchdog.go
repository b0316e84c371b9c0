package watchdog

import (
	"container/heap"
	"context"
	"errors"
	"sync"
	"time"
)

// Renew renews the leases of batch and returns one error for each, in order:
// nil when the server confirmed it, one that matches ErrGone when the server
// says that it is not ours, and any other when the outcome is not known. It
// returns within a bounded time whatever the server does. ctx ends when the
// watchdog closes.
type Renew func(ctx context.Context, batch []Subject) []error

// Watchdog watches leases. Make one with New, end it with Close.
type Watchdog struct {
	lease    time.Duration // set once: what a renewal gives
	interval time.Duration // set once: from one renewal to the next
	retry    time.Duration // set once: from a failed renewal to the next
	slack    time.Duration // set once: what is due within it travels along
	renew    Renew         // set once

	ctx    context.Context // of the renewals
	cancel context.CancelFunc
	wake   chan struct{} // something is due before armed
	wg     sync.WaitGroup

	mu      sync.Mutex
	queue   queue   // leases by dueLocked
	armed   instant // when run looks next, if it sleeps
	asleep  bool    // run sleeps until armed
	turns   int     // how often run woke up; a number for tests
	running bool
	closed  bool
}

// New returns a watchdog whose renewals give lease, and are made by renew every
// third of it. It starts no goroutine before the first Watch.
func New(lease time.Duration, renew Renew) *Watchdog {
	w := &Watchdog{
		lease:    lease,
		interval: lease / 3,
		retry:    min(max(lease/24, 5*time.Millisecond), time.Second),
		slack:    lease / 30,
		renew:    renew,
		wake:     make(chan struct{}, 1),
	}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	return w
}

// Watch starts to watch a lease of length d that the server confirmed by a
// command sent at sent. alive says whether to renew it: a third of the watchdog's
// lease after that, or of d if it is shorter. After Close the lease is over at once.
func (w *Watchdog) Watch(s Subject, sent time.Time, d time.Duration, alive bool) *Lease {
	l := &Lease{w: w, subject: s, alive: alive, index: -1}
	start := at(sent)
	l.trustLocked(start.add(Trusted(d)))
	l.renewAt = start.add(min(w.interval, d/3))

	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		l.endLocked(ErrStopped)
		return l
	}
	if !w.running {
		w.running = true
		w.wg.Go(w.run)
	}
	w.placeLocked(l)
	return l
}

// Close ends every watch without telling anybody, and waits for the goroutines.
func (w *Watchdog) Close() {
	w.mu.Lock()
	w.closed = true
	for len(w.queue) > 0 {
		w.queue[len(w.queue)-1].endLocked(ErrStopped)
	}
	w.mu.Unlock()
	w.cancel()
	w.wg.Wait()
}

// Len returns how many leases are under watch.
func (w *Watchdog) Len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.queue)
}

// run sleeps until something is due, and does it.
func (w *Watchdog) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-w.wake:
		case <-w.ctx.Done():
			return
		}
		timer.Reset(w.turn())
	}
}

// turn tells the subjects whose leases ended, sends the renewals that are due,
// and returns how long to sleep.
func (w *Watchdog) turn() time.Duration {
	w.mu.Lock()
	w.asleep = false
	w.turns++
	n := now()
	horizon := n
	var ended []func()
	var batch []*Lease
	var subjects []Subject
	for len(w.queue) > 0 {
		l := w.queue[0]
		if l.until.passed(n) {
			ended = append(ended, l.loseLocked(n, l.expiredLocked()))
		} else if l.renewsLocked() && l.renewAt.passed(horizon) {
			horizon = n.add(w.slack) // one is due: what nearly is comes along
			batch, subjects = append(batch, l), append(subjects, l.subject)
			l.inflight = inflightMark
			w.placeLocked(l)
		} else {
			break
		}
	}
	if len(batch) > 0 {
		over := make(chan struct{})
		for _, l := range batch {
			l.inflight = over
		}
		w.wg.Go(func() { w.carry(batch, subjects, over) })
	}
	sleep := time.Hour // nothing to do: a later Watch wakes us
	if len(w.queue) > 0 {
		sleep = max(w.queue[0].dueLocked().left(n), 0)
	}
	w.armed, w.asleep = n.add(sleep), true
	w.mu.Unlock()

	for _, tell := range ended {
		tell()
	}
	return sleep
}

// inflightMark takes a lease out of the renewals that are due while turn still
// collects them.
var inflightMark = make(chan struct{})

// carry sends one batch of renewals, of leases that were these subjects' a moment
// ago, and sees to the answers.
func (w *Watchdog) carry(batch []*Lease, subjects []Subject, over chan struct{}) {
	defer close(over)
	sent := now() // the trust counts from before the send
	errs := w.renew(w.ctx, subjects)
	n := now()

	var tell []func()
	w.mu.Lock()
	for i, l := range batch {
		l.inflight = nil
		if l.cause != nil {
			continue // stopped, or lost by the clock: whatever came is too late
		}
		switch err := errs[i]; {
		case l.until.passed(n):
			l.failed = err
			tell = append(tell, l.loseLocked(n, l.expiredLocked()))
		case errors.Is(err, ErrGone):
			tell = append(tell, l.loseLocked(n, err))
		case err != nil:
			l.failed = err
			l.renewAt = n.add(w.retry)
			w.placeLocked(l)
		default:
			l.failed = nil
			l.renewAt = sent.add(w.interval)
			l.extendLocked(sent, w.lease)
			until, subject := l.until.time(), l.subject
			tell = append(tell, func() { subject.Renewed(until) })
		}
	}
	w.mu.Unlock()
	for _, t := range tell {
		t()
	}
}

// placeLocked puts l where it belongs in the queue, and wakes run if l is due
// before run would look.
func (w *Watchdog) placeLocked(l *Lease) {
	if l.index < 0 {
		heap.Push(&w.queue, l)
	} else {
		heap.Fix(&w.queue, l.index)
	}
	if w.asleep && l.dueLocked().before(w.armed) {
		w.asleep = false // once is enough
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

func (w *Watchdog) removeLocked(l *Lease) {
	if l.index >= 0 {
		heap.Remove(&w.queue, l.index)
	}
}

// queue is a heap of leases, the next due first.
type queue []*Lease

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].dueLocked().before(q[j].dueLocked()) }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

func (q *queue) Push(x any) {
	l := x.(*Lease)
	l.index = len(*q)
	*q = append(*q, l)
}

func (q *queue) Pop() any {
	last := len(*q) - 1
	l := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	l.index = -1
	return l
}

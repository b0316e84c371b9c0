package watchdog

import (
	"context"
	"sync"
	"time"
)

// Renew renews the leases of batch, which all belong to one group. It returns one error for each, in
// order. The error is nil if the server confirmed the renewal, and matches ErrGone if the server no
// longer has the lease for this owner. Any other error means that the outcome is unknown. Renew may
// return nil instead of a list of nils.
//
// Renew returns within a bounded time whatever the server does, and does not use batch after that.
// For a reply that arrives later it calls [Lease.Answered]. ctx is canceled when the watchdog
// closes.
type Renew func(ctx context.Context, batch []Subject) []error

const (
	sliceCount = 16        // slices of an interval over which many renewals are spread
	pipelined  = 16        // how many batches are sent as one when they are late
	atOnce     = 1000      // about how many leases of a lane one turn moves while it holds the mutex
	never      = time.Hour // the sleep if nothing is due; a later Watch wakes run
)

// Watchdog watches leases. New creates one, Close ends it.
type Watchdog struct {
	lease time.Duration // set once: the lease that a renewal grants
	most  int           // set once: the maximum number of leases in a batch that is not late
	renew Renew         // set once

	ctx    context.Context // of the renewals
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex // guards the fields below, the lanes and the leases
	lanes  map[Group]*lane
	ends   queue   // leases not in any lane's due, by their end, or by callAt if that is earlier
	loop   loop    // of the goroutine that runs turns
	clock  reading // orders the queues, and converts the returned ends of leases
	closed bool
}

// loop is the state of the goroutine that runs turns, for callers that have something for it to do.
// Guarded by the watchdog's mu.
type loop struct {
	started bool
	asleep  bool          // it sleeps until wakesAt
	wakesAt time.Duration // by the monotonic clock, like timers
	wake    chan struct{} // set once; has a value if something is due before wakesAt
	watched bool          // Watch was called since the latest turn
	turns   int           // number of turns, for tests
}

// New returns a watchdog whose renewals grant lease. It calls renew every third of lease, or as
// often as the [Group] of a lease requires. The argument most limits the leases in one call. If
// renewals are late, a call has up to 16 times as many. New starts no goroutine before the first
// Watch.
func New(lease time.Duration, most int, renew Renew) *Watchdog {
	w := &Watchdog{
		lease: lease,
		most:  most,
		renew: renew,
		lanes: make(map[Group]*lane),
		loop:  loop{wake: make(chan struct{}, 1)},
	}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	return w
}

// Watch starts to watch a lease of length d that the server confirmed by a command sent at sent. If
// alive is true, the lease is renewed. The first renewal is after an interval, or after a third of
// d if that is shorter. After Close the lease ends immediately.
func (w *Watchdog) Watch(s Subject, sent time.Time, d time.Duration, alive bool) *Lease {
	return w.WatchIn(new(Lease), s, sent, d, alive)
}

// WatchIn is Watch with memory for the lease, which must be unused. It returns l.
func (w *Watchdog) WatchIn(l *Lease, s Subject, sent time.Time, d time.Duration, alive bool) *Lease {
	l.w, l.subject, l.alive = w, s, alive
	start := of(sent)
	l.until.store(start.add(Trusted(d)))

	w.mu.Lock()
	defer w.mu.Unlock()
	if alive { // otherwise KeepAlive sets it
		l.lane = w.laneLocked(s.Group())
		l.renewAt = start.add(min(l.lane.interval, Interval(d)))
	}
	w.loop.watched = true
	if w.closed {
		l.endLocked(ErrStopped)
		return l
	}
	if !w.loop.started {
		w.loop.started = true
		w.wg.Go(w.run)
	}
	w.placeLocked(l)
	return l
}

// Interval returns the time between two renewals of a lease of this length.
func Interval(lease time.Duration) time.Duration { return lease / 3 }

// laneLocked returns the lane of a group.
func (w *Watchdog) laneLocked(g Group) *lane {
	ln := w.lanes[g]
	if ln == nil {
		interval := Interval(w.lease)
		if g.Within > 0 {
			interval = min(interval, g.Within)
		}
		// mutant: operand 1: speed
		ln = &lane{group: g, interval: interval, slack: min(interval/sliceCount, w.retryPause()) / 2, ahead: interval / 4}
		w.lanes[g] = ln
	}
	return ln
}

// retryPause returns the time from a failed renewal to the next one.
func (w *Watchdog) retryPause() time.Duration {
	return min(max(w.lease/24, 5*time.Millisecond), time.Second)
}

// Close ends every watch without calling a subject, and waits for the goroutines.
func (w *Watchdog) Close() {
	w.mu.Lock()
	w.closed = true
	for _, q := range w.queuesLocked() {
		for q.size > 0 {
			q.firsts[len(q.firsts)-1].endLocked(ErrStopped) // the last is cheap to remove
		}
	}
	w.mu.Unlock()
	w.cancel()
	w.wg.Wait()
}

// Len returns the number of leases under watch.
func (w *Watchdog) Len() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, q := range w.queuesLocked() {
		n += q.size
	}
	return n
}

// queuesLocked returns all queues. Each lease under watch is in one of them.
func (w *Watchdog) queuesLocked() []*queue {
	all := []*queue{&w.ends}
	for _, ln := range w.lanes {
		all = append(all, &ln.due)
	}
	return all
}

// run calls turn whenever something is due.
func (w *Watchdog) run() {
	timer := time.NewTimer(0)
	defer timer.Stop() // mutant: removed: memory
	for {
		select {
		case <-timer.C:
		case <-w.loop.wake:
		case <-w.ctx.Done():
			return
		}
		timer.Reset(w.turn())
	}
}

// turn ends expired leases, calls Due, and starts renewals. It returns how long to sleep.
func (w *Watchdog) turn() time.Duration {
	w.mu.Lock()
	w.loop.asleep = false // mutant: removed: speed
	w.loop.turns++
	w.clockLocked()
	n := now()
	for _, ln := range w.lanes {
		ln.moveDueLocked(w, n)
	}
	var ended []func()
	for l := w.ends.first(); l != nil && l.endsLocked().passed(n); l = w.ends.first() {
		if l.until.load().passed(n) {
			ended = append(ended, l.loseLocked(n, l.expiredLocked()))
			continue
		}
		l.callAt = nil
		w.placeLocked(l)
		ended = append(ended, l.subject.Due)
	}
	for _, ln := range w.lanes {
		if b := ln.startLocked(w, n); b != nil { // mutant: always: speed
			w.wg.Go(func() { w.sendBatches(ln, b) })
		}
	}
	sleep := never
	for _, ln := range w.lanes { // again, because a lease may have changed its lane
		sleep = min(sleep, ln.sleepLocked(w, n))
	}
	if l := w.ends.first(); l != nil {
		sleep = min(sleep, max(l.endsLocked().left(n), 0)) // mutant: operand 4: the timer fires immediately either way
	}
	if sleep == never && w.loop.watched {
		sleep = Interval(w.lease) // most leases end before their first renewal, so the next Watch need not wake run
	}
	if sleep < never { // a timer stops while the machine sleeps, so only the wall clock shows what is due after that
		sleep = min(sleep, w.lease/12, 5*time.Second)
	}
	w.loop.watched = false
	w.loop.wakesAt, w.loop.asleep = n.mono+sleep, true
	w.mu.Unlock()

	for _, notify := range ended {
		notify()
	}
	return sleep
}

// endsLocked returns the time of the next event of l other than a renewal: its end, or a call of Due.
func (l *Lease) endsLocked() instant {
	until := l.until.load()
	if l.callAt != nil && l.callAt.before(until, l.w.clock.n) {
		return *l.callAt
	}
	return until
}

// placeLocked puts l into its queue. It wakes run if l is due before run wakes up.
func (w *Watchdog) placeLocked(l *Lease) {
	w.removeLocked(l)
	q := &w.ends
	l.queued = inEnds
	if l.alive && !l.waiting && l.inFlight == nil && l.renewAt.before(l.endsLocked(), w.clock.n) {
		q, l.queued = &l.lane.due, inDue
	}
	q.add(l)
	w.wakeLocked(l.at())
}

// clockLocked returns w.clock, and reads it again if a clock was changed or the machine slept. Leases
// from before that are then due earlier, or later, than new ones with the same monotonic time. It
// therefore puts all leases into their queues again.
func (w *Watchdog) clockLocked() *reading {
	before := w.clock.n
	if w.clock.again().n == before { // mutant: never: speed
		return &w.clock
	}
	var all []*Lease
	for _, q := range w.queuesLocked() {
		for q.size > 0 {
			l := q.firsts[len(q.firsts)-1] // removing the last lease compares none
			w.removeLocked(l)
			all = append(all, l)
		}
	}
	for _, l := range all {
		w.placeLocked(l)
	}
	return &w.clock
}

// removeLocked removes l from its queue, if it is in one. It is called before l.lane changes.
func (w *Watchdog) removeLocked(l *Lease) {
	switch l.queued {
	case inEnds:
		w.ends.remove(l)
	case inDue:
		l.lane.due.remove(l)
	}
	l.queued = inNone
}

// wakeLocked wakes run if run would sleep past due.
func (w *Watchdog) wakeLocked(due time.Duration) {
	if w.loop.asleep && due < w.loop.wakesAt { // mutant: operand 1, border: speed
		// mutant: removed: speed
		w.loop.asleep = false // one signal is enough
		select {
		case w.loop.wake <- struct{}{}:
		default:
		}
	}
}

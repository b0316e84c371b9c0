package watchdog

import (
	"errors"
	"time"
)

// Group names leases that are renewed together. A group whose renewals are slow does not delay
// others.
type Group struct {
	What any // comparable
	At   int

	Within time.Duration // maximum interval between renewals; 0 for a third of the lease
}

// lane renews the leases of a group, one batch after the other.
//
//	due ── its time has come ─────────────► waiting ─┬─► in flight ──┐
//	 ▲  └─ there is room, and it is almost due ──────┘               │
//	 └───────── renewed, or failed and due again soon ───────────────┘
type lane struct {
	group    Group         // set once
	interval time.Duration // set once: the time from one renewal to the next
	slack    time.Duration // set once: a lease that is due within it goes with the next batch. It is less than retryPause
	ahead    time.Duration // set once: how early or late a renewal may be

	// Guarded by the watchdog's mu.
	due     queue    // leases ordered by renewAt
	waiting []*Lease // leases whose renewal is due, in that order; some may have ended
	front   *batch   // the batch in flight that they wait for; nil if there is none, or only overdue ones
	next    instant  // the next slice is not renewed early before then
	early   int      // how many leases of the current slice remain to be renewed early
}

// batch has the leases of one call of renew.
type batch struct {
	sent     instant
	leases   []*Lease
	subjects []Subject     // the subjects of leases, in the same order
	done     chan struct{} // closed when all replies are recorded and all subjects are notified
}

// moveDueLocked moves leases that are due to ln.waiting. It stops waiting for the batch in flight if
// that is overdue. While a lease is in ln.waiting, it is in w.ends, too.
func (ln *lane) moveDueLocked(w *Watchdog, n instant) {
	if ln.front != nil && ln.front.sent.add(ln.ahead).passed(n) {
		ln.front = nil
	}
	for range atOnce {
		l := ln.due.first()
		if l == nil || !l.renewAt.passed(n) {
			return
		}
		l.waiting = true
		w.placeLocked(l)
		ln.waiting = append(ln.waiting, l)
	}
}

// sleepLocked returns how long ln can sleep.
func (ln *lane) sleepLocked(w *Watchdog, n instant) time.Duration {
	d := never
	if ln.front != nil {
		d = ln.front.sent.add(ln.ahead).left(n)
	} else if len(ln.waiting) > 0 {
		return 0
	}
	if l := ln.due.first(); l != nil {
		left := l.renewAt.left(n)
		d = min(d, left) // mutant: operand 1: turn reads the clocks often enough
		// mutant: border: speed
		if ln.front == nil && ln.due.size > w.most { // more than one batch: spread the renewals
			d = min(d, max(left-ln.ahead, ln.next.left(n))) // mutant: operand 1, operand 3: speed
		}
	}
	return max(d, 0) // mutant: operand 2: a timer of a negative time fires at once, too
}

// startLocked returns the first batch of a slice, or nil if it is too early. A slice starts when a
// lease is due. It can also start early, so that the leases are not all due together the next time.
func (ln *lane) startLocked(w *Watchdog, n instant) *batch {
	if ln.front != nil || ln.sleepLocked(w, n) > 0 {
		return nil
	}
	total := ln.due.size + len(ln.waiting)
	slice := (total/sliceCount/w.most + 1) * w.most // whole batches
	ln.next = n.add(ln.interval / time.Duration(total) * time.Duration(slice))
	ln.early = 0 // mutant: removed: speed
	if len(ln.waiting) == 0 {
		ln.early = slice
	}
	return ln.fillLocked(w, n)
}

// nextLocked returns the batch after b. It returns nil if no lease is waiting or due soon, and the
// slice is done.
func (ln *lane) nextLocked(w *Watchdog, n instant, b *batch) *batch {
	if ln.front == b { // mutant: always: speed
		ln.front = nil
	}
	if ln.front == nil { // mutant: always: speed
		l := ln.due.first()
		// mutant: operand 1, operand 6, border 3: speed
		if len(ln.waiting) > 0 || l != nil && (ln.early > 0 || l.renewAt.left(n) <= ln.slack) {
			return ln.fillLocked(w, n)
		}
	}
	return nil
}

// fillLocked returns a batch of the waiting leases and the ones due soon, or nil if there are none.
func (ln *lane) fillLocked(w *Watchdog, n instant) *batch {
	most := w.most
	if len(ln.waiting) > 0 && ln.waiting[0].renewAt.add(ln.ahead).passed(n) {
		most *= pipelined
	}
	room := min(most, len(ln.waiting)+ln.due.size) // mutant: operand 1, operand 2: memory
	b := &batch{sent: n, leases: make([]*Lease, 0, room), subjects: make([]Subject, 0, room), done: make(chan struct{})}
	for len(b.leases) < most && len(ln.waiting) > 0 { // mutant: operand 1, border 1: speed
		l := ln.waiting[0]
		ln.waiting[0] = nil // mutant: removed: memory
		ln.waiting = ln.waiting[1:]
		l.waiting = false
		w.takeLocked(ln, b, l)
	}
	for len(b.leases) < most {
		l := ln.due.first()
		if l == nil || l.renewAt.left(n) > ln.ahead { // mutant: border: speed
			break
		}
		w.takeLocked(ln, b, l)
	}
	ln.early -= len(b.leases)
	if len(b.leases) == 0 {
		return nil
	}
	ln.front = b
	return b
}

// takeLocked adds l to b, unless l has ended, expired, changed its group, or is not to be renewed.
func (w *Watchdog) takeLocked(ln *lane, b *batch, l *Lease) {
	if l.ended.Load() {
		return // it ended while it was waiting
	}
	if g, until := l.subject.Group(), l.until.load(); until.passed(b.sent) {
		l.renewAt = until // turn will end it
	} else if g != ln.group {
		w.removeLocked(l)
		l.lane = w.laneLocked(g)
	} else if l.alive {
		l.inFlight = b.done
		b.leases, b.subjects = append(b.leases, l), append(b.subjects, l.subject)
	}
	w.placeLocked(l)
}

// sendBatches sends b, handles the replies, and continues with the next batches until no lease of ln is
// due.
func (w *Watchdog) sendBatches(ln *lane, b *batch) {
	for b != nil {
		errs := w.renew(w.ctx, b.subjects)

		w.mu.Lock()
		confirmed, others := b.repliedLocked(w, now(), errs)
		w.mu.Unlock()
		for _, notify := range append(others, confirmed...) { // the others first, because these include losses
			notify()
		}
		close(b.done)

		w.mu.Lock()
		n := now()
		if b = ln.nextLocked(w, n, b); b == nil { // mutant: always: speed
			w.wakeLocked(n.mono + ln.sleepLocked(w, n))
		}
		w.mu.Unlock()
	}
}

// repliedLocked records the replies to b. It returns functions that notify the subjects: those of confirmed renewals, and the
// others.
func (b *batch) repliedLocked(w *Watchdog, n instant, errs []error) (confirmed, others []func()) {
	clock := w.clockLocked()
	for i, l := range b.leases {
		l.inFlight = nil
		if l.ended.Load() {
			continue // stopped, or lost by the clock before the reply arrived
		}
		var err error
		if errs != nil {
			err = errs[i]
		}
		subject, left := l.subject, l.until.load().left(n)
		switch {
		case left <= 0: // mutant: border: at this nanosecond, either is right
			l.err = err
			others = append(others, l.loseLocked(n, l.expiredLocked()))
		case errors.Is(err, ErrGone):
			others = append(others, l.loseLocked(n, err))
		case err != nil:
			l.err = err
			l.renewAt = n.add(w.retryPause())
			w.placeLocked(l)
			others = append(others, func() { subject.Unrenewed(err, left) })
		default:
			l.err = nil
			l.renewAt = b.sent.add(l.lane.interval)
			l.extendLocked(b.sent, w.lease)
			until := clock.time(l.until.load())
			confirmed = append(confirmed, func() { subject.Renewed(until, left) })
		}
	}
	return confirmed, others
}

package watchdog

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

// ErrGone is the error of a renewal if the server no longer has the lease for this owner.
var ErrGone = lock.ErrGone

// ErrExpired is the cause of a loss if a lease expired without a reply from the server.
var ErrExpired = lock.ErrExpired

// ErrStopped is the error of Check after Stop, or after Close of the watchdog.
var ErrStopped = errors.New("lease no longer watched")

// Subject is the user of a lease.
type Subject interface {
	// Lost is called once when the lease ends although Stop was not called. cause matches ErrGone,
	// ErrExpired or the cause given to Lose. Lost runs on the goroutine that detected the end first,
	// and must not block. Other goroutines can detect the end with Check before Lost has run.
	Lost(cause error)
	// Renewed is called after each renewal, with the lease time that remained when the confirmation
	// arrived. It must not block.
	Renewed(until time.Time, left time.Duration)
	// Unrenewed is called after each failed renewal, with the remaining lease time, unless the lease
	// has ended. It must not block.
	Unrenewed(err error, left time.Duration)
	// Due is called at the time given to CallAt. It must not block.
	Due()
	// Group returns the group that the lease is renewed with. It is called before each renewal, must
	// not block, and must not call the watchdog.
	Group() Group
}

// Lease is one lease under watch. Its methods are safe for concurrent use.
type Lease struct {
	w *Watchdog // set once

	// Guarded by w.mu, but IsTrusted reads them without it. If it finds that the lease has ended, Check
	// takes the mutex, and checks again.
	until deadline
	ended atomic.Bool // stopped or lost

	// Guarded by w.mu.
	alive   bool // it is to be renewed
	waiting bool // it is in lane.waiting
	queued  queued
	inQueue
	subject  Subject
	callAt   *instant      // when to call Due; nil if not at all
	renewAt  instant       // when the next renewal is due, if alive
	lane     *lane         // the lane that renews it; set before alive is true for the first time
	inFlight chan struct{} // closed when the renewal in flight has ended; nil if there is none
	err      error         // the cause, once the lease has ended; before, the error of the latest renewal, or nil
}

// queued identifies the queue of a lease.
type queued uint8

const (
	inNone queued = iota // none: it has ended, or is about to be placed
	inEnds               // Watchdog.ends
	inDue                // lane.due
)

// Until returns the end of the lease. It changes only when the lease is renewed or ends, or when a
// clock is changed.
func (l *Lease) Until() time.Time {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	return l.w.clockLocked().time(l.until.load())
}

// Check compares the clocks, and returns nil while the lease is valid. Otherwise it returns the
// cause of the loss, or ErrStopped.
func (l *Lease) Check() error { return l.CheckAt(time.Now()) }

// CheckAt is Check at t, which must be a current time.Now.
func (l *Lease) CheckAt(t time.Time) error {
	if l.IsTrusted(t) { // mutant: never: speed
		return nil
	}
	n := of(t)
	l.w.mu.Lock()
	if l.ended.Load() {
		defer l.w.mu.Unlock()
		return l.err
	}
	if !l.until.load().passed(n) {
		l.w.mu.Unlock()
		return nil
	}
	notify := l.loseLocked(n, l.expiredLocked())
	l.w.mu.Unlock()
	notify()
	return l.err
}

// IsTrusted reports whether the lease is valid at t, which must be a current time.Now. It takes no
// mutex and reports no loss. If it returns false, call Check.
func (l *Lease) IsTrusted(t time.Time) bool { return !l.ended.Load() && !l.until.load().passed(of(t)) }

// Extend records that the server confirmed d more, by a command sent at sent. It never shortens the
// lease, and has no effect once the lease has ended.
func (l *Lease) Extend(sent time.Time, d time.Duration) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	if !l.ended.Load() {
		l.w.clockLocked()
		l.extendLocked(of(sent), d)
	}
}

// Answered records the reply to a renewal that included the lease, after its [Renew] function has
// returned. The renewal was sent at sent. The argument err is nil or an error, as from Renew. A
// confirmation counts from its send. Answered has no effect once the lease has ended, and ignores
// an error that says nothing about the lease.
func (l *Lease) Answered(sent time.Time, err error) {
	l.w.mu.Lock()
	n := now()
	var notify func()
	switch {
	case l.ended.Load() || err != nil && !errors.Is(err, ErrGone):
	case l.until.load().passed(n):
		notify = l.loseLocked(n, l.expiredLocked())
	case err != nil:
		notify = l.loseLocked(n, err)
	default:
		l.err = nil
		start, left := of(sent), l.until.load().left(n)
		clock := l.w.clockLocked()
		if next := start.add(l.lane.interval); l.renewAt.before(next, clock.n) { // mutant: always: speed
			l.renewAt = next
		}
		l.extendLocked(start, l.w.lease)
		subject, until := l.subject, clock.time(l.until.load())
		notify = func() { subject.Renewed(until, left) }
	}
	l.w.mu.Unlock()
	if notify != nil {
		notify()
	}
}

// KeepAlive turns renewals on or off. In both cases the lease expires if nothing is confirmed.
func (l *Lease) KeepAlive(on bool) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	if l.ended.Load() || l.alive == on {
		return
	}
	l.w.removeLocked(l)
	l.alive, l.lane = on, l.w.laneLocked(l.subject.Group())
	l.renewAt = now().add(l.lane.interval)
	l.w.placeLocked(l)
}

// CallAt makes the watchdog call Due of the subject once at t, or sooner if an earlier call is set.
// The time t must come from time.Now. There is no call once the lease has ended.
func (l *Lease) CallAt(t time.Time) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	if at := of(t); !l.ended.Load() && (l.callAt == nil || at.before(*l.callAt, l.w.clockLocked().n)) {
		l.callAt = &at
		l.w.placeLocked(l)
	}
}

// Hand transfers the lease to another subject. From then on s is called instead of the former
// subject. It reports false, and has no effect, if the lease has ended, is not renewed, or has less
// than atLeast left.
func (l *Lease) Hand(s Subject, atLeast time.Duration) bool {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	if l.ended.Load() || !l.alive || l.until.load().left(now()) < atLeast { // mutant: border: a nanosecond
		return false
	}
	l.subject = s
	return true
}

// Lose ends the lease as lost, with cause, unless it has ended already.
func (l *Lease) Lose(cause error) {
	l.w.mu.Lock()
	if l.ended.Load() {
		l.w.mu.Unlock()
		return
	}
	notify := l.loseLocked(now(), cause)
	l.w.mu.Unlock()
	notify()
}

// Stop ends the watch and reports whether the lease was still watched. It waits for a renewal that
// includes the lease, until ctx is canceled.
func (l *Lease) Stop(ctx context.Context) bool {
	was, inFlight := l.End()
	if inFlight != nil {
		select {
		case <-inFlight:
		case <-ctx.Done():
		}
	}
	return was
}

// End is Stop for a caller that does the waiting. The channel inFlight is closed when the renewal
// that includes the lease has ended. It is nil if there is none.
func (l *Lease) End() (was bool, inFlight <-chan struct{}) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	was = !l.ended.Load()
	if was {
		l.endLocked(ErrStopped)
	}
	return was, l.inFlight
}

// loseLocked ends the lease and returns the function that notifies its subject. The caller calls that
// without the mutex.
func (l *Lease) loseLocked(n instant, cause error) (notify func()) {
	if !l.until.load().passed(n) {
		l.until.store(n)
	}
	l.endLocked(cause)
	subject := l.subject
	return func() { subject.Lost(cause) }
}

func (l *Lease) endLocked(cause error) {
	l.ended.Store(true)
	l.err = cause
	l.w.removeLocked(l)
}

// expiredLocked returns the cause of an expiry. It includes the error of the latest renewal, if there
// is one.
func (l *Lease) expiredLocked() error {
	if l.err != nil { // mutant: always: text
		return fmt.Errorf("%w: last renewal failed: %w", ErrExpired, l.err)
	}
	return ErrExpired
}

// extendLocked is Extend, after clockLocked.
func (l *Lease) extendLocked(sent instant, d time.Duration) {
	if until := sent.add(Trusted(d)); l.until.load().before(until, l.w.clock.n) { // never shorten the lease
		l.until.store(until)
	}
	l.w.placeLocked(l)
}

package multilock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/watchdog"
)

// quorumHold is an attempt to acquire a Quorum and, if it succeeds, a hold of it.
//
// It has the state of each server. A server votes for it while it holds the lock there and the
// server has been up for the longest lease. While a majority votes for it, no other attempt can
// have a majority: two majorities share a server, and a server that has not lost its grant does not
// grant the lock to another owner. Once there is no majority, the hold is lost permanently.
//
//	            a majority votes          fewer than a majority: lost
//	polling ──────────────────────▶ won ─────────────────────────────▶ ended
//	   │                             └─ Unlock ───────────────────────▶
//	   └─ no majority, or too late ───────────────────────────────────▶
//
// While the hold lasts, servers without the lock are retried in the background. A lock that is
// granted again is no evidence for the time before, so there must have been a majority without it.
type quorumHold struct {
	q      *Quorum            // set once
	term   *term              // set once: under the caller's context
	base   context.Context    // set once: for the members' holds; it carries the owner, and only stop cancels it
	stop   context.CancelFunc // set once
	token  uint64             // set by fence, before it is won; 0 without fencing
	won    chan struct{}      // closed by win
	caller context.Context    // set once: the caller's context
	idle   chan struct{}      // closed when it has ended and all its goroutines have returned

	mu          sync.Mutex
	raised      []lock.Hold   // the holds whose servers have raised their counters, until it is won
	began       time.Time     // when the poll began, before it sent anything; zero before
	servers     []serverState // replaced by a changed copy, never changed in place
	limit       time.Time     // when it ends at the latest; zero if it has no such limit
	limitCause  error         // why it ends at limit
	fixedUntil  time.Time     // when the fixed leases of a majority expire; zero if they are renewed
	timer       *time.Timer   // ends it at the earlier of limit and fixedUntil; nil without one
	stopAbandon func() bool   // removes abandon from caller; nil before it has won
	running     int           // number of its goroutines
	ended       bool          // servers does not change any more
}

func newQuorumHold(ctx context.Context, q *Quorum) *quorumHold {
	h := &quorumHold{q: q, caller: ctx, won: make(chan struct{}), idle: make(chan struct{}), servers: make([]serverState, len(q.locks))}
	h.term = newTerm(ctx, q.name, h.check)
	// The cancellation of the caller's context cancels the context of the hold, but is not an Unlock:
	// the members are kept until the limit that abandon sets.
	h.base, h.stop = context.WithCancel(context.WithoutCancel(ctx))
	return h
}

// poll requests the votes of all servers that have not voted yet, at the same time. It returns nil
// as soon as there is a majority. If there is none, or waiting is canceled, it releases what it
// acquired and returns why it failed: as soon as that is decided or, if patient, when all servers
// have replied. It returns errInterrupted if waiting was canceled before that was decided. Each poll
// has its own owners in Redis, so a command in flight for an earlier poll is not a vote for a later
// one.
func (h *quorumHold) poll(waiting context.Context, patient bool) error {
	replies, pending := make(chan struct{}, len(h.q.locks)), 0
	h.mu.Lock()
	h.began = time.Now()
	for i, s := range h.servers {
		if s.hold == nil {
			pending++
			h.startLocked(func() { h.firstAttempt(i, replies) })
		}
	}
	h.mu.Unlock()
	// Lockers should return within the timeout. This timer is for one that does not.
	late := time.NewTimer(h.q.timeout + h.q.timeout/4)
	defer late.Stop() // mutant: removed: memory
	for {
		select {
		case <-replies:
			pending--
		case <-late.C:
			pending = 0
		case <-waiting.Done():
			pending = 0
		}
		enough, err := h.decide(h.snapshot(), pending, patient)
		if enough && h.q.fenced {
			done, ok := h.beginDecision(waiting)
			if err = errInterrupted; ok {
				defer done() // when it is won, or has failed
				err = h.fence(waiting)
			}
		}
		switch canceled := waiting.Err() != nil; {
		case err == nil && canceled:
			err = errInterrupted
		case err == errInterrupted && !canceled:
			err = fmt.Errorf("%w: a vote changed while the votes were counted", lock.ErrUnavailable)
		}
		if err != nil {
			h.fail(waiting, err)
			return err
		}
		if enough {
			h.win()
			return nil
		}
	}
}

// snapshot returns the current states of the servers.
func (h *quorumHold) snapshot() []serverState {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.servers
}

// startLocked runs f in a goroutine. After h has ended, only end and the goroutines of h may call it.
func (h *quorumHold) startLocked(f func()) {
	h.running++
	go func() {
		f()
		h.mu.Lock()
		defer h.mu.Unlock()
		h.running--
		h.checkIdleLocked()
	}()
}

func (h *quorumHold) checkIdleLocked() {
	if h.ended && h.running == 0 {
		close(h.idle)
	}
}

// decide reports whether a majority of servers votes, or why the attempt failed. It reports neither
// while that depends on the pending replies or, if patient, while there are any.
func (h *quorumHold) decide(servers []serverState, pending int, patient bool) (enough bool, err error) {
	q := h.q
	until := q.until(servers)
	left, floor := time.Until(until), q.minValidity
	if floor == 0 {
		floor = until.Sub(h.began) / 10
	}
	switch {
	case !until.IsZero() && left >= floor: // mutant: operand 1: from the zero time, left is less than any floor
		return true, nil
	case pending > 0 && (patient || countVotes(servers)+pending >= q.majority):
		return false, nil
	case !until.IsZero():
		return false, fmt.Errorf("%w: majority reached too late: %v of validity left, want at least %v", lock.ErrUnavailable, left, floor)
	}
	e := h.majorityError(nil, servers)
	for i, err := range e.reasons {
		if err == errNotNeeded && time.Since(h.began) >= q.timeout { // mutant: border: text
			e.reasons[i] = noVote{within: time.Since(h.began)} // the server had its full timeout
		}
	}
	switch known, final := e.setVerdict(); {
	case pending > 0 && !final:
		return false, nil
	case !known:
		return false, errInterrupted
	default:
		return false, e
	}
}

// win turns the attempt into a hold.
func (h *quorumHold) win() {
	stopAbandon := context.AfterFunc(h.caller, h.abandon) // without the mutex: the context is the caller's
	h.register()                                          // before won is closed, because it can end from then on
	h.mu.Lock()
	close(h.won)
	if h.q.maxHold > 0 {
		h.limitLocked(h.began.Add(h.q.maxHold), lock.ErrMaxHold)
	}
	if h.q.fixedLease > 0 {
		h.fixedUntil = h.began.Add(h.q.fixedLease)
		h.setTimerLocked()
	}
	h.stopAbandon = stopAbandon
	h.raiseOthersLocked()
	h.mu.Unlock()
	h.check() // a vote may have been lost since the count, before it could end the hold
}

// limitLocked makes h end no later than at.
func (h *quorumHold) limitLocked(at time.Time, why error) {
	if !h.limit.IsZero() && watchdog.Earlier(h.limit).Before(at) {
		return
	}
	h.limit, h.limitCause = at, why
	h.setTimerLocked()
}

// endLocked returns the latest time at which h ends, and the cause; the zero time if there is none.
func (h *quorumHold) endLocked() (at time.Time, why error) {
	if !h.limit.IsZero() { // mutant: always: the zero time stays zero
		at, why = watchdog.Earlier(h.limit), h.limitCause
	}
	if !h.fixedUntil.IsZero() {
		if fixed := watchdog.Earlier(h.fixedUntil); at.IsZero() || fixed.Before(at) {
			at, why = fixed, lock.ErrExpired
		}
	}
	return at, why
}

// setTimerLocked sets the timer after a change of limit or fixedUntil. A timer stops while the machine
// sleeps, so it fires every few seconds, and is set again.
func (h *quorumHold) setTimerLocked() {
	if h.timer != nil { // mutant: never: memory
		h.timer.Stop() // mutant: removed: memory
	}
	at, _ := h.endLocked()
	h.timer = time.AfterFunc(min(time.Until(at), 5*time.Second), func() {
		h.check()
		h.mu.Lock()
		defer h.mu.Unlock()
		if !h.ended {
			h.setTimerLocked()
		}
	})
}

// abandon limits a hold that is not unlocked when the caller's context is canceled, because its
// caller may never unlock it.
func (h *quorumHold) abandon() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.limitLocked(time.Now().Add(h.q.maxLease), lock.ErrAbandoned)
}

// majorityError returns the error that no majority of servers votes.
func (h *quorumHold) majorityError(verdict error, servers []serverState) *majorityError {
	e := &majorityError{verdict: verdict, did: "votes", majority: h.q.majority, reasons: make([]error, len(servers))}
	now := time.Now()
	for i, s := range servers {
		switch {
		case s.votes(now):
			e.votes++
		case now.Before(s.votesFrom):
			e.reasons[i] = startedRecently{s.votesFrom.Sub(now)}
		case s.hold != nil:
			e.reasons[i] = s.hold.Err()
		case s.err != nil:
			e.reasons[i] = s.err
		default:
			e.reasons[i] = errNotNeeded
		}
	}
	return e
}

func (h *quorumHold) hasWon() bool {
	select {
	case <-h.won:
		return true
	default:
		return false
	}
}

// fail ends an attempt and releases what it acquired, in the background if ctx is canceled.
func (h *quorumHold) fail(ctx context.Context, cause error) {
	servers, _ := h.end(cause, nil) // nothing else ends it before it is won
	_ = releaseHolds(ctx, h.q.locks, holdsOf(servers))
	if slices.ContainsFunc(servers, func(s serverState) bool { return errors.As(s.err, new(sameServer)) }) {
		h.waitIdle(ctx) // until releaseDuplicate has returned
	}
}

// check ends the hold if it has reached its limit, or if no majority votes for it.
func (h *quorumHold) check() {
	if !h.hasWon() || h.term.endCause() != nil { // mutant: operand 2: speed
		return
	}
	h.mu.Lock()
	servers := h.servers
	limit, why := h.endLocked()
	h.mu.Unlock()
	if !limit.IsZero() && !time.Now().Before(limit) {
		h.lose(fmt.Errorf("%w: %w", lock.ErrLost, why))
		return
	}
	if countVotes(servers) >= h.q.majority {
		return
	}
	if now := h.snapshot(); &now[0] != &servers[0] {
		h.check() // the lock may have been granted by another server in the meantime
		return
	}
	h.lose(h.majorityError(lock.ErrLost, servers))
}

// lose ends the hold and releases what is left of it, in the background.
func (h *quorumHold) lose(cause error) {
	_, _ = h.end(cause, func(servers []serverState) {
		_ = releaseHolds(context.Background(), h.q.locks, holdsOf(servers))
	})
}

// end ends the attempt or the hold with cause, and returns the last states of the servers. If it
// had ended before, it returns the earlier cause. A then that is not nil runs in the background.
func (h *quorumHold) end(cause error, then func([]serverState)) (servers []serverState, before error) {
	if before := h.term.end(&lock.Error{Op: "hold", Name: h.q.name, Err: cause}); before != nil {
		return nil, before
	}
	h.mu.Lock()
	h.ended = true
	servers = h.servers
	if h.timer != nil { // mutant: never: memory
		h.timer.Stop() // mutant: removed: memory
	}
	if h.stopAbandon != nil {
		h.stopAbandon()
	}
	if then != nil {
		h.startLocked(func() { then(servers) })
	} else {
		h.checkIdleLocked()
	}
	h.mu.Unlock()
	h.unregister()
	h.stop()
	return servers, nil
}

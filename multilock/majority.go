package multilock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
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

var _ lock.Hold = (*quorumHold)(nil)

// serverState is the state of one server in a quorumHold.
type serverState struct {
	hold      lock.Hold // nil if the lock is not held there
	id        string    // the server's run ID; "" if it is not known
	holder    string    // the owner that has the lock there, if the attempt was rejected and the run ID is not known; "" otherwise
	votesFrom time.Time // the hold counts as a vote from then on
	err       error     // why there is no hold
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

// wait waits at server i until the lock is granted there, which is the server's vote. It waits for
// about the longest pause between two polls, and reports whether it returned before that: after a
// grant, or because the lock of that server limits its waits. The server wakes a waiter when the lock
// is free, and serves its waiters one after the other. Polls of all servers at the same time would
// block each other instead.
func (h *quorumHold) wait(waiting context.Context, i int) (early bool) {
	defer context.AfterFunc(waiting, h.stop)() // the poll that follows detects the cancellation
	within := jitter(maxPause)
	end := time.Now().Add(within)
	h.attempt(i, h.q.locks[i].Lock, within)
	return time.Now().Before(end)
}

// serverToWaitAt returns the first server that replied, or -1 if none did. The order is fixed so that
// most waiters choose the same server.
func (h *quorumHold) serverToWaitAt() int {
	return slices.IndexFunc(h.snapshot(), func(s serverState) bool {
		return s.hold != nil || classOf(s.err) == refused // mutant: operand 1: speed
	})
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

// firstAttempt makes the first attempt at server i and sends to replies when it is done. If the
// attempt failed, repair follows.
func (h *quorumHold) firstAttempt(i int, replies chan<- struct{}) {
	done := h.attempt(i, h.q.locks[i].TryLock, h.q.timeout)
	replies <- struct{}{}
	if !done {
		h.repair(i)
	}
}

// repair retries server i once the attempt has won, until the lock is granted there or the hold ends.
func (h *quorumHold) repair(i int) {
	select {
	case <-h.won:
	case <-h.base.Done():
		return
	}
	pace := max(min(h.q.maxLease/30, time.Second), 2*h.q.timeout) // mutant: operand 1, operand 4: speed
	for sleep(h.base, jitter(pace)) {
		if h.attempt(i, h.q.locks[i].TryLock, h.q.timeout) {
			return
		}
	}
}

// attempt makes one attempt at server i and stores the result. It reports whether the server needs
// no further attempts.
func (h *quorumHold) attempt(i int, acquire acquire, within time.Duration) bool {
	s := h.request(i, acquire, within)
	// There must still be a majority without the new grant. Otherwise another owner could have held
	// the lock in the meantime.
	h.check()

	h.mu.Lock()
	if h.ended {
		h.mu.Unlock()
		h.q.release(i, s.hold)
		return true
	}
	won := h.hasWon() // win raises the tokens of the servers that are stored before it
	s = h.storeLocked(i, s)
	h.mu.Unlock()

	if s.err != nil {
		return false
	}
	context.AfterFunc(s.hold.Context(), func() { h.removeEnded(i, s.hold) })
	if h.q.fenced && won {
		_ = h.raise(s.hold, h.token)
	}
	return true
}

// storeLocked stores s as the state of server i, and returns it. If another lock is on the same server,
// s becomes an error.
func (h *quorumHold) storeLocked(i int, s serverState) serverState {
	for j, other := range h.servers {
		if j != i && s.onSameServer(other) {
			s.id, s.holder = "", ""
			s.err = sameServer{min(i, j), max(i, j)} // mutant: operand 1, operand 2, operand 3, operand 4: text
		}
	}
	if duplicate := s.hold; duplicate != nil && s.err != nil { // mutant: operand 1: speed
		s.hold = nil
		h.startLocked(func() { h.releaseDuplicate(i, duplicate) })
	}
	h.servers = slices.Clone(h.servers) // mutant: removed: the race detector notices it
	h.servers[i] = s
	if !slices.ContainsFunc(h.servers, func(s serverState) bool { return s.id == "" }) {
		h.q.distinct.Store(true)
	}
	return s
}

// releaseDuplicate releases one of two holds on the same server when the poll has ended. Until then
// the duplicate must stay: it shows that the other locks of that server are rejected because of
// this attempt, and not because of another owner.
func (h *quorumHold) releaseDuplicate(i int, duplicate lock.Hold) {
	select {
	case <-h.won:
	case <-h.base.Done():
	}
	h.q.release(i, duplicate)
}

// removeEnded removes the ended hold of server i and starts its repair. Before the poll no repair is
// needed, because the poll makes an attempt there.
func (h *quorumHold) removeEnded(i int, gone lock.Hold) {
	if h.base.Err() != nil {
		return // the hold is not lost, but its context is canceled: the end of h releases it
	}
	err := gone.Err()
	if errors.Is(err, lock.ErrMaxHold) && h.hasWon() {
		h.lose(fmt.Errorf("%w: %w", lock.ErrLost, lock.ErrMaxHold)) // otherwise repair would extend the hold indefinitely
		return
	}
	h.mu.Lock()
	if !h.ended {
		h.servers = slices.Clone(h.servers) // mutant: removed: the race detector notices it
		h.servers[i] = serverState{err: err}
		if !h.began.IsZero() { // mutant: always: no test can end a hold between its grant and the poll
			h.startLocked(func() { h.repair(i) })
		}
	}
	h.mu.Unlock()
	h.check()
}

// acquire is a Locker's Lock or TryLock.
type acquire func(context.Context) (lock.Hold, error)

// request makes one attempt at server i, and returns the resulting state.
func (h *quorumHold) request(i int, acquire acquire, within time.Duration) (s serverState) {
	q, l := h.q, h.q.locks[i]
	// The member's hold has this context, so it must not have a deadline.
	ctx, cancel := context.WithCancel(h.base)
	end := time.Now().Add(within)
	timer := time.AfterFunc(within, cancel)
	s.hold, s.err = acquire(ctx)
	if s.err == nil {
		if timer.Stop() { // otherwise ctx is canceled, and the hold has ended
			timer = time.AfterFunc(min(time.Until(end), q.timeout), cancel) // mutant: operand 1: the poll does not wait for it
		}
		s.id, s.votesFrom, s.err = q.witness(ctx, l, time.Until(s.hold.Until()))
		if _, ok := s.hold.(lockimpl.Fenced); q.fenced && !ok {
			s.err = errors.New("holds must implement lockimpl.Fenced")
		}
	} else if classOf(s.err) == refused && !q.distinct.Load() { // perhaps another lock of this quorum has it
		if s.id, _, _ = q.witness(ctx, l, 0); s.id == "" {
			s.holder = holderAt(ctx, l)
		}
	}
	switch late := !timer.Stop(); {
	case s.err != nil && h.base.Err() != nil:
		s.err = errNotNeeded
	case late && (s.err == nil || errors.Is(s.err, context.Canceled)):
		s.err = noVote{within, s.err}
	}
	if s.err != nil {
		if s.hold != nil {
			h.releaseUnused(i, s.hold)
		}
		cancel()
		return serverState{id: s.id, holder: s.holder, err: s.err}
	}
	context.AfterFunc(s.hold.Context(), cancel) // a quorum can outlive many of its members' holds
	return s
}

// releaseUnused releases a hold of server i that is not used as a vote. It waits for that, because the
// next attempt would be rejected, but not after the attempt is canceled: Lock must then return.
func (h *quorumHold) releaseUnused(i int, unused lock.Hold) {
	released := make(chan struct{})
	h.mu.Lock()
	h.startLocked(func() {
		defer close(released)
		h.q.release(i, unused)
	})
	h.mu.Unlock()
	select {
	case <-released:
	case <-h.base.Done():
	}
}

// holderAt returns the owner that holds l, or "" if that is not known.
func holderAt(ctx context.Context, l lock.Locker) string {
	if l, ok := l.(interface {
		Inspect(ctx context.Context) (lock.State, error)
	}); ok {
		if state, err := l.Inspect(ctx); err == nil && len(state.Holders) == 1 {
			return state.Holders[0].Owner
		}
	}
	return ""
}

// onSameServer reports whether s and other are on one server: they have the same run ID or, if a run
// ID is not known, the same owner. An owner string belongs to one acquisition by one client.
func (s serverState) onSameServer(other serverState) bool {
	if s.id != "" && other.id != "" {
		return s.id == other.id
	}
	owner := s.owner()
	return owner != "" && owner == other.owner()
}

// owner returns the owner that is known to have the lock of s.
func (s serverState) owner() string {
	if s.hold != nil {
		return s.hold.Owner()
	}
	return s.holder
}

// release releases the hold h of server i. Only the goroutine of that server waits for it.
func (q *Quorum) release(i int, h lock.Hold) {
	_ = releaseHolds(context.Background(), q.locks[i:i+1], []lock.Hold{h})
}

// witness returns the run ID of the server that has just granted l, and from when on its vote counts.
//
// A server that restarts may have lost a lock that it granted. The holder of that lock is not
// notified, and relies on it until its lease expires, but not longer, because the server has nothing
// left to renew. The server's grants therefore count once it has been up for the longest lease.
//
// The request for the uptime follows the grant. A reply from before the grant would not reveal a
// restart in between. After the grant there are two cases. Either the server has been up since
// before the grant, or it has restarted since and may have lost this grant. In the second case, the
// vote counts from the longest lease after the restart, when this hold has ended.
func (q *Quorum) witness(ctx context.Context, l lock.Locker, lease time.Duration) (id string, votesFrom time.Time, err error) {
	if lease > q.maxLease && !q.durable {
		return "", votesFrom, fmt.Errorf("lease is longer than the maximum lease %v; see WithMaxLease", q.maxLease)
	}
	var s lockimpl.Server
	if w, ok := l.(lockimpl.Witness); ok {
		s, err = w.Server(ctx)
	} else {
		err = errors.New("lock must implement lockimpl.Witness")
	}
	switch {
	case err != nil && q.durable:
		return "", votesFrom, nil
	case err != nil:
		return "", votesFrom, fmt.Errorf("cannot read the server's uptime: %w", err)
	case s.ID == "" && !q.durable:
		return "", votesFrom, errors.New("cannot read the server's run ID")
	case s.ID != "" && !s.Primary:
		return "", votesFrom, fmt.Errorf("%w: server is a replica", lock.ErrUnavailable)
	}
	if !q.durable {
		votesFrom = s.Since.Add(q.maxLease)
	}
	return s.ID, votesFrom, nil
}

// votes reports whether the server votes for the hold now.
func (s serverState) votes(now time.Time) bool {
	return s.hold != nil && !now.Before(s.votesFrom) && s.hold.Err() == nil
}

// countVotes returns how many of servers vote now.
func countVotes(servers []serverState) (n int) {
	now := time.Now()
	for _, s := range servers {
		if s.votes(now) {
			n++
		}
	}
	return n
}

// until returns the latest time until which the leases of a majority of servers last, or the zero
// time if no majority votes now.
func (q *Quorum) until(servers []serverState) time.Time {
	now := time.Now()
	var ends []time.Time
	for _, s := range servers {
		if s.votes(now) {
			ends = append(ends, s.hold.Until())
		}
	}
	if len(ends) < q.majority {
		return time.Time{}
	}
	slices.SortFunc(ends, time.Time.Compare)
	return ends[len(ends)-q.majority]
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
	case !until.IsZero() && left >= floor:
		return true, nil
	case pending > 0 && (patient || countVotes(servers)+pending >= q.majority):
		return false, nil
	case !until.IsZero():
		return false, fmt.Errorf("%w: majority reached too late: %v of validity left, want at least %v", lock.ErrUnavailable, left, floor)
	}
	e := h.majorityError(nil, servers)
	for i, err := range e.reasons {
		if err == errNotNeeded && time.Since(h.began) >= q.timeout {
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
	if !h.limit.IsZero() {
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
	if h.timer != nil {
		h.timer.Stop()
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
	if !h.ended {
		h.limitLocked(time.Now().Add(h.q.maxLease), lock.ErrAbandoned)
	}
}

// majorityError returns the error that no majority of servers votes.
func (h *quorumHold) majorityError(verdict error, servers []serverState) *majorityError {
	e := &majorityError{verdict: verdict, did: "votes", majority: h.q.majority, reasons: make([]error, len(servers))}
	now := time.Now()
	for i, s := range servers {
		switch {
		case s.votes(now):
			e.votes++
		case s.hold != nil && now.Before(s.votesFrom):
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
	if !h.hasWon() || h.term.endCause() != nil {
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
	if h.timer != nil {
		h.timer.Stop()
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

func holdsOf(servers []serverState) []lock.Hold {
	holds := make([]lock.Hold, len(servers))
	for i, s := range servers {
		holds[i] = s.hold
	}
	return holds
}

// Until returns the latest time until which the leases of a majority last. It moves back when a
// server that voted is lost.
func (h *quorumHold) Until() time.Time {
	h.check()
	h.mu.Lock()
	servers := h.servers
	limit, _ := h.endLocked()
	h.mu.Unlock()
	until := h.q.until(servers)
	if until.IsZero() {
		until = time.Now()
	}
	if !limit.IsZero() && limit.Before(until) {
		until = limit
	}
	return h.term.until(until)
}

func (h *quorumHold) Context() context.Context { return termContext{h.term, h} }
func (h *quorumHold) Err() error               { return h.term.err() }
func (h *quorumHold) Token() uint64            { return h.token }
func (h *quorumHold) Owner() string            { return "" }
func (h *quorumHold) String() string           { return fmt.Sprintf("hold of %q", h.q.name) }

func (h *quorumHold) holds() []lock.Hold {
	return slices.DeleteFunc(holdsOf(h.snapshot()), func(h lock.Hold) bool { return h == nil })
}

// Extend extends the leases on all servers, at the same time, and succeeds when a majority of votes has
// confirmed it within the timeout of one server.
func (h *quorumHold) Extend(ctx context.Context, d time.Duration) error {
	if err := h.extend(ctx, d); err != nil {
		return &lock.Error{Op: "extend", Name: h.q.name, Err: err}
	}
	return nil
}

func (h *quorumHold) extend(ctx context.Context, d time.Duration) error {
	if err := h.term.notHeld(); err != nil {
		return err
	}
	if d > h.q.maxLease && !h.q.durable {
		return fmt.Errorf("%v: must be at most the maximum lease %v; see WithMaxLease", d, h.q.maxLease)
	}
	if ctx.Err() != nil {
		return canceledHold(ctx)
	}
	began := time.Now()
	servers := h.snapshot()
	e := h.majorityError(nil, servers)
	e.did, e.votes = "extended", 0
	replies, pending := make(chan reply, len(servers)), 0
	h.mu.Lock()
	for i, s := range servers {
		if s.hold == nil || h.ended {
			continue
		}
		votes := e.reasons[i] == nil // only votes count; a server without one may have it later
		if votes {
			pending++
			e.reasons[i] = errNotNeeded
		}
		h.startLocked(func() {
			within, cancel := context.WithTimeout(h.base, h.q.timeout)
			defer cancel()
			err := s.hold.Extend(within, d)
			if err != nil && within.Err() != nil {
				err = noVote{h.q.timeout, err} // the deadline is not the caller's
			}
			if votes {
				replies <- reply{i, err}
			}
		})
	}
	h.mu.Unlock()
	switch err := e.await(ctx, replies, pending); {
	case err == errInterrupted:
		return canceledHold(ctx)
	case err != nil:
		return cmp.Or(h.term.notHeld(), err)
	}
	h.mu.Lock()
	if at := began.Add(d); !h.fixedUntil.IsZero() && watchdog.Earlier(h.fixedUntil).Before(at) && !h.ended {
		h.fixedUntil = at
		h.setTimerLocked()
	}
	h.mu.Unlock()
	return h.term.notHeld()
}

// Unlock releases the lock on all servers, and stops attempts in flight. It succeeds when the lock
// is free on a majority.
func (h *quorumHold) Unlock(ctx context.Context) error {
	h.check()
	if ctx.Err() != nil { // a deferred Unlock must also work after ctx is canceled
		ctx = context.WithoutCancel(ctx)
	}
	servers, before := h.end(lock.ErrUnlocked, nil)
	err := h.term.notHeld()
	if before == nil {
		err = h.release(ctx, servers)
	}
	h.waitIdle(ctx)
	if err != nil {
		return &lock.Error{Op: "unlock", Name: h.q.name, Err: err}
	}
	return nil
}

// waitIdle waits for the goroutines of the hold, for at most the timeout of one server, or until ctx
// is canceled.
func (h *quorumHold) waitIdle(ctx context.Context) {
	timer := time.NewTimer(h.q.timeout)
	defer timer.Stop()
	select {
	case <-h.idle:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// release releases the locks of all servers at the same time. It returns when all have replied, or
// when the lock is free on a majority and the timeout has passed. The other releases then continue
// in the background, as lock.Hold documents.
func (h *quorumHold) release(ctx context.Context, servers []serverState) error {
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	replies, pending := make(chan reply, len(servers)), 0
	free, gone := 0, 0 // on how many servers the lock is free, and how many did not vote until the release
	now := time.Now()
	e := &majorityError{did: "released", majority: h.q.majority, reasons: make([]error, len(servers))}
	for i, s := range servers {
		if s.hold == nil || now.Before(s.votesFrom) {
			gone++
		}
		if s.hold == nil {
			free++
			continue
		}
		pending++
		go func() { replies <- reply{i, s.hold.Unlock(within)} }()
	}
	timer := time.NewTimer(h.q.timeout)
	defer timer.Stop()
	for late := false; pending > 0; {
		select {
		case r := <-replies:
			pending--
			switch {
			case r.err == nil:
				free++
			case errors.Is(r.err, lock.ErrNotHeld):
				free++
				if !now.Before(servers[r.i].votesFrom) {
					gone++
				}
			default:
				e.reasons[r.i] = r.err
			}
		case <-timer.C:
			late = true
		}
		if late && free >= h.q.majority {
			cancel()
		}
	}
	switch {
	case len(servers)-gone < h.q.majority:
		return fmt.Errorf("%w: %w: lock no longer held by a majority: %d of %d votes", lock.ErrNotHeld, lock.ErrLost, len(servers)-gone, len(servers))
	case free >= h.q.majority:
		return nil
	}
	e.votes = free
	if slices.ContainsFunc(e.reasons, func(r error) bool { return r != nil && !errors.Is(r, ctx.Err()) || errors.Is(r, lock.ErrUnavailable) }) {
		e.setVerdict()
	} // otherwise ctx alone ended the call, and that does not mean that a server is unavailable
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", canceledHold(ctx), e)
	}
	return e
}

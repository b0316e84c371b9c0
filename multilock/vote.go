package multilock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
)

// serverState is the state of one server in a quorumHold.
type serverState struct {
	hold      lock.Hold // nil if the lock is not held there
	id        string    // the server's run ID; "" if it is not known
	holder    string    // the owner that has the lock there, if the attempt was rejected and the run ID is not known; "" otherwise
	votesFrom time.Time // the hold counts as a vote from then on
	err       error     // why there is no hold
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

// holdsOf returns the hold of each server, nil where there is none.
func holdsOf(servers []serverState) []lock.Hold {
	holds := make([]lock.Hold, len(servers))
	for i, s := range servers {
		holds[i] = s.hold
	}
	return holds
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

// firstAttempt makes the first attempt at server i and sends to replies when it is done. If the
// attempt failed, repair follows.
func (h *quorumHold) firstAttempt(i int, replies chan<- struct{}) {
	done := h.attempt(i, h.q.locks[i].TryLock, h.q.timeout)
	replies <- struct{}{}
	if !done {
		h.repair(i)
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
			s = serverState{hold: s.hold}
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
		if s.id, _, _ = q.witness(ctx, l, 0); s.id == "" { // mutant: always: speed
			s.holder = holderAt(ctx, l)
		}
	}
	switch late := !timer.Stop(); {
	case s.err != nil && h.base.Err() != nil: // mutant: operand 1: the end of the attempt releases the hold
		s.err = errNotNeeded
	case late && (s.err == nil || errors.Is(s.err, context.Canceled)):
		s.err = noVote{within, s.err}
	}
	if s.err != nil {
		if s.hold != nil { // mutant: always: speed
			h.releaseUnused(i, s.hold)
		}
		cancel() // mutant: removed: memory
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
		if state, _ := l.Inspect(ctx); len(state.Holders) == 1 { // none after an error
			return state.Holders[0].Owner
		}
	}
	return ""
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
	if lease > q.maxLease && !q.durable { // mutant: border: the remaining lease is always shorter than the whole
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

package multilock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/watchdog"
)

var _ lock.Hold = (*quorumHold)(nil)

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
	if d < lock.MinLease { // once, and not for each server
		return fmt.Errorf("%v: must be at least %v", d, lock.MinLease)
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
			e.reasons[i] = errNotNeeded // mutant: removed: text
		}
		h.startLocked(func() {
			within, cancel := context.WithTimeout(h.base, h.q.timeout)
			defer cancel() // mutant: removed: memory
			err := s.hold.Extend(within, d)
			if err != nil && within.Err() != nil { // mutant: never, operand 1: text, unless the reply came at the same time
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
	if at := began.Add(d); !h.fixedUntil.IsZero() && watchdog.Earlier(h.fixedUntil).Before(at) {
		h.fixedUntil = at // its timer checks it
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
	defer timer.Stop() // mutant: removed: memory
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
	defer cancel() // mutant: removed: memory
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
	defer timer.Stop() // mutant: removed: memory
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
	e.votes = free // mutant: removed: text
	if slices.ContainsFunc(e.reasons, func(r error) bool { return r != nil && !errors.Is(r, ctx.Err()) || errors.Is(r, lock.ErrUnavailable) }) {
		e.setVerdict()
	} // otherwise ctx alone ended the call, and that does not mean that a server is unavailable
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", canceledHold(ctx), e)
	}
	return e
}

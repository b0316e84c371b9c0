package multilock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
)

// The token of a quorum's hold. Each server has a register, which a grant raises, and the
// token is the largest that a server of the majority gave. Before the hold is returned, that
// majority has the token in its registers; and each server raises its own only while
// this hold has its lock.
//
// So any two holds were both granted the lock by some server, and both raised its register
// while they had that lock. The later of the two got a larger token from it.

// fence gives the hold its token. It fails if no majority confirms the token within the time of
// one server, or when ctx ends.
func (h *quorumHold) fence(ctx context.Context) error {
	seats, now := h.now(), time.Now()
	if h.token = h.outer(seats); h.token != 0 {
		return nil
	}
	var voters []lock.Hold
	for _, s := range seats {
		if s.valid(now) {
			voters = append(voters, s.hold)
			h.token = max(h.token, s.hold.Token())
		}
	}
	answers := make(chan error, len(voters))
	h.mu.Lock()
	for _, one := range voters {
		h.startLocked(func() { answers <- h.raise(one, h.token) })
	}
	h.told = voters
	h.mu.Unlock()
	var errs []error
	for confirmed := 0; confirmed < h.q.majority; {
		if len(voters)-len(errs) < h.q.majority {
			return fmt.Errorf("%w: no majority has the token: %w", lock.ErrNotAcquired, errors.Join(errs...))
		}
		select {
		case err := <-answers:
			if err == nil {
				confirmed++
			} else {
				errs = append(errs, err)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// outer returns the token of a hold that this one re-enters, 0 if there is none: the owner
// still has that hold, and a majority of the servers knows both as one.
func (h *quorumHold) outer(seats []seat) uint64 {
	mine, now := make(map[string]bool), time.Now()
	for _, s := range seats {
		if s.valid(now) {
			mine[s.hold.Owner()] = true
		}
	}
	for _, other := range h.q.held(h.base) {
		shared := 0
		for _, s := range other.now() {
			if s.valid(now) && mine[s.hold.Owner()] {
				shared++
			}
		}
		if shared >= h.q.majority && other.Err() == nil {
			return other.token
		}
	}
	return 0
}

// raise makes the server of one raise its register to token.
func (h *quorumHold) raise(one lock.Hold, token uint64) error {
	ctx, cancel := context.WithTimeout(h.base, h.q.timeout)
	defer cancel()
	err := one.(lockimpl.Fenced).RaiseToken(ctx, token)
	if err != nil && ctx.Err() != nil {
		return noVote{h.q.timeout, nil} // the deadline is not the caller's
	}
	return err
}

// spreadLocked raises the registers of those servers, too, that voted while the others
// raised theirs: then the token outlives the loss of more registers.
func (h *quorumHold) spreadLocked() {
	if !h.q.fenced || h.over {
		return
	}
	told := make(map[lock.Hold]bool)
	for _, one := range h.told {
		told[one] = true
	}
	h.told = nil
	for _, s := range h.seats {
		if s.hold != nil && !told[s.hold] {
			h.startLocked(func() { _ = h.raise(s.hold, h.token) })
		}
	}
}

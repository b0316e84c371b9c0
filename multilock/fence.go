package multilock

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
)

// The token of a quorum's hold. Each server has a register, which a grant raises, and the
// token is the largest that a server of the majority gave. Before the hold is returned, that
// majority has the token in its registers; and each server raises its own only while
// this hold has its lock.
//
// A later hold of any owner has a larger token. Its majority and that of the earlier hold share a server, and there are two cases.
// The later owner acquired the lock of that server after its register was raised: then the register gave it a larger
// token. Or it is the same owner, and has kept that server's lock since before that, by another hold: then the
// lock's hold knows to what the register was raised, and the later token is one more at least.
//
// A re-entry keeps the token of the outer hold, whichever servers voted for it. There is a moment at which the outer hold has a majority,
// and so have the servers on whose votes the re-entry is decided, all of which it keeps from then until it is won. So no
// other owner had a majority since the outer hold was won, and nobody has a newer token. Whoever
// comes after both holds meets a server of the outer hold's majority, which had the token before the outer hold was
// returned. If the outer hold is lost before that moment, the call is no re-entry, and gets a token of its own.
//
// Two calls of one owner at the same time could both act as the first. So their decisions come one after the other.

// inTurn waits until no other attempt of this owner decides, and keeps others from deciding until the
// caller calls done. It reports false if ctx ended before.
func (h *quorumHold) inTurn(ctx context.Context) (done func(), is bool) {
	of, mine := holderOf(h.base, h.q), make(chan struct{})
	for {
		holders.Lock()
		other := holders.deciding[of]
		if other == nil {
			if holders.deciding == nil {
				holders.deciding = make(map[holder]chan struct{})
			}
			holders.deciding[of] = mine
		}
		holders.Unlock()
		if other == nil {
			return func() {
				holders.Lock()
				delete(holders.deciding, of)
				holders.Unlock()
				close(mine)
			}, true
		}
		select {
		case <-other:
		case <-ctx.Done():
			return nil, false
		}
	}
}

// fence gives the hold its token, and fails if the majority is not there any more by then. Only the
// servers that vote when it begins count.
func (h *quorumHold) fence(ctx context.Context) error {
	servers := h.voters()
	if !h.outer(servers) {
		if err := h.agree(ctx, servers); err != nil {
			return err
		}
	}
	_, err := h.decide(servers, 0, false) // enough of the validity must be left
	return err
}

// voters returns the states of the servers, without the holds of those that do not vote now.
func (h *quorumHold) voters() []serverState {
	servers := slices.Clone(h.snapshot())
	for i, reason := range h.majorityError(nil, servers).reasons {
		if reason == errOpen {
			reason = noVote{within: time.Since(h.began)}
		}
		if reason != nil {
			servers[i] = serverState{err: reason}
		}
	}
	return servers
}

// outer gives h the token of a hold that it re-enters, and reports whether there is one: this owner has
// that hold, and some server knows both as one. Two majorities of the same servers share one, and a quorum of other servers
// that has the same name shares none.
func (h *quorumHold) outer(servers []serverState) bool {
	if countVotes(servers) < h.q.majority {
		return false
	}
	for _, other := range h.q.held(h.base) {
		knows := func(one lock.Hold) bool {
			return slices.ContainsFunc(other.snapshot(), func(s serverState) bool { return s.hold != nil && s.hold.Owner() == one.Owner() })
		}
		told := slices.DeleteFunc(holdsOf(servers), func(one lock.Hold) bool { return one == nil || !knows(one) })
		if len(told) > 0 && other.token != 0 && other.Err() == nil { // after the votes were counted: they are kept from then on
			h.mu.Lock()
			h.token, h.told = other.token, told // the servers that only h has are told when it has won
			h.mu.Unlock()
			return true
		}
	}
	return false
}

// agree has the voters agree on a token: the largest of theirs, in the registers of a majority. It
// fails if no majority confirms that within the time of one server, or when ctx ends.
func (h *quorumHold) agree(ctx context.Context, servers []serverState) error {
	h.token = 0
	for _, s := range servers {
		if s.hold == nil {
			continue
		}
		h.token = max(h.token, s.hold.Token())
		if raised := s.hold.(lockimpl.Fenced).Raised(); raised > 0 {
			h.token = max(h.token, raised+1) // an earlier hold of this owner may have had that token
		}
	}
	type reply struct {
		i   int
		err error
	}
	e := h.majorityError(nil, servers)
	replies := make(chan reply, len(servers))
	h.mu.Lock()
	h.told = nil
	for i, s := range servers {
		if s.hold != nil {
			h.told = append(h.told, s.hold)
			h.startLocked(func() { replies <- reply{i, h.raise(s.hold, h.token)} })
		}
	}
	h.mu.Unlock()
	for confirmed := 0; confirmed < h.q.majority; {
		if e.votes < h.q.majority {
			e.setVerdict()
			return fmt.Errorf("token not confirmed by a majority: %w", e)
		}
		select {
		case r := <-replies:
			if r.err == nil {
				confirmed++
			} else {
				e.reasons[r.i] = r.err
				e.votes--
			}
		case <-ctx.Done():
			return errCut
		}
	}
	return nil
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
	for _, s := range h.servers {
		if s.hold != nil && !told[s.hold] {
			h.startLocked(func() { _ = h.raise(s.hold, h.token) })
		}
	}
}

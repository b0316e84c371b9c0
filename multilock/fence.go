package multilock

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
)

// The token of a quorum's hold. Each server has a token counter, which a grant raises. The token is
// the largest that a server of the majority returned. Before the hold is returned, a majority has
// raised its counters to that token. A server raises its counter only while this hold has its lock.
//
// A later hold of any owner has a larger token. The majorities of the two holds share a server, and
// there are two cases. If the later owner acquired the lock of that server after its counter was
// raised, the counter returned a larger token. Otherwise the later owner is the same owner, and has
// kept that server's lock through another hold. Then the hold of that lock has stored to what value
// the counter was raised, and the later token is at least one more.
//
// A reentry keeps the token of the outer hold, whichever servers voted for the reentry. At one
// moment, the outer hold has a majority, and the servers that voted for the reentry are a majority,
// too. The reentry keeps all those votes until it is won. No other owner has had a majority since
// the outer hold was won, so no other owner has a newer token. The majority of any hold after both
// shares a server with the outer hold's majority, whose counters had the token before the outer hold
// was returned. If the outer hold is lost before that moment, the call is not a reentry, and has
// its own token.
//
// Two simultaneous calls of one owner could both act as the first. Their decisions are therefore
// made one after the other.

// deciding has the owners with an attempt that decides on its token: a holder, and a channel that is
// closed when it has decided.
var deciding sync.Map

// beginDecision waits until no other attempt of this owner decides on its token, and prevents others
// from deciding until done is called. It reports false if ctx was canceled first.
func (h *quorumHold) beginDecision(ctx context.Context) (done func(), ok bool) {
	of, mine := holderOf(h.base, h.q), make(chan struct{})
	for {
		other, taken := deciding.LoadOrStore(of, mine)
		if !taken {
			return func() {
				deciding.Delete(of)
				close(mine)
			}, true
		}
		select {
		case <-other.(chan struct{}):
		case <-ctx.Done():
			return nil, false
		}
	}
}

// fence sets the token of the hold, and fails if there is no longer a majority. Only the servers that
// vote when it begins count.
func (h *quorumHold) fence(ctx context.Context) error {
	servers := h.voters()
	if !h.useOuterToken(servers) {
		if err := h.agreeOnToken(ctx, servers); err != nil {
			return err
		}
	}
	_, err := h.decide(servers, 0, false) // enough of the validity must remain
	return err
}

// voters returns the states of the servers, without the holds of those that do not vote now.
func (h *quorumHold) voters() []serverState {
	servers := slices.Clone(h.snapshot())
	for i, reason := range h.majorityError(nil, servers).reasons {
		if reason == errNotNeeded { // mutant: never: text
			reason = noVote{within: time.Since(h.began)}
		}
		if reason != nil {
			servers[i] = serverState{err: reason}
		}
	}
	return servers
}

// useOuterToken gives h the token of a hold that it re-enters, and reports whether there is one. That
// is a hold of this owner which shares an owner string with h on one of the servers. Two majorities
// of the same servers share a server. A quorum of other servers with the same name shares none.
func (h *quorumHold) useOuterToken(servers []serverState) bool {
	for _, other := range h.q.held(h.base) {
		knows := func(one lock.Hold) bool {
			return slices.ContainsFunc(other.snapshot(), func(s serverState) bool { return s.hold != nil && s.hold.Owner() == one.Owner() })
		}
		raised := slices.DeleteFunc(holdsOf(servers), func(one lock.Hold) bool { return one == nil || !knows(one) })
		if len(raised) > 0 && other.token != 0 && other.term.notHeld() == nil {
			// fence counts the votes after this check, so at this moment both have a majority.
			h.mu.Lock()
			h.token, h.raised = other.token, raised // win raises the counters of the other servers
			h.mu.Unlock()
			return true
		}
	}
	return false
}

// agreeOnToken sets the token to the largest one of the voters, and raises their counters to it. It
// fails if no majority confirms that within the timeout of one server, or if ctx is canceled.
func (h *quorumHold) agreeOnToken(ctx context.Context, servers []serverState) error {
	for _, s := range servers {
		if s.hold != nil {
			raised := s.hold.(lockimpl.Fenced).Raised() // an earlier hold of this owner may have had that token
			h.token = max(h.token, s.hold.Token(), raised+1)
		}
	}
	e := h.majorityError(nil, servers)
	e.did, e.votes = "confirmed", 0
	replies, pending := make(chan reply, len(servers)), 0
	h.mu.Lock()
	for i, s := range servers {
		if s.hold != nil {
			pending++
			e.reasons[i] = errNotNeeded // mutant: removed: text
			h.raised = append(h.raised, s.hold)
			h.startLocked(func() { replies <- reply{i, h.raise(s.hold, h.token)} })
		}
	}
	h.mu.Unlock()
	if err := e.await(ctx, replies, pending); err == nil || err == errInterrupted {
		return err
	}
	return fmt.Errorf("token not confirmed by a majority: %w", e)
}

// raise makes the server of one raise its counter to token.
func (h *quorumHold) raise(one lock.Hold, token uint64) error {
	ctx, cancel := context.WithTimeout(h.base, h.q.timeout)
	defer cancel() // mutant: removed: memory
	err := one.(lockimpl.Fenced).RaiseToken(ctx, token)
	if err != nil && ctx.Err() != nil { // mutant: never, operand 1: text, unless the reply came at the same time
		return noVote{h.q.timeout, nil} // the deadline is not the caller's
	}
	return err
}

// raiseOthersLocked raises the counters of the servers that voted in the meantime, so that the token
// survives the loss of more counters.
func (h *quorumHold) raiseOthersLocked() {
	if !h.q.fenced {
		return
	}
	raised := make(map[lock.Hold]bool)
	for _, one := range h.raised {
		raised[one] = true
	}
	h.raised = nil // mutant: removed: memory
	for _, s := range h.servers {
		if s.hold != nil && !raised[s.hold] {
			h.startLocked(func() { _ = h.raise(s.hold, h.token) })
		}
	}
}

package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
)

// sendToReplicas sends the request, and waits for the replicas to confirm it.
func (q acquireRequest) sendToReplicas(ctx context.Context) (luascripts.Acquired, error) {
	// rueidis has no timeout for WAIT, so without this one the goroutine could block indefinitely.
	within := q.ReplicaTimeout + q.s.OpTimeout
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel() // mutant: removed: memory
	reply, err := q.spec.Acquire(ctx, q.s.rdb, q.spec.Keys, q.Request)
	if errors.Is(err, context.DeadlineExceeded) { // rueidis may report the deadline before ctx does
		err = command.NoReply{After: within}
	}
	return reply, err
}

// rollBack releases a grant that only this many replicas confirmed, and returns the error of the attempt.
func (a *attempt) rollBack(confirmed int) error {
	s, q, t := a.s, &a.request, a.request.t
	o := command.SendWithRetry[luascripts.Verdict](a.waiting, s.sender, time.Now(), s.OpTimeout, command.Func[luascripts.Verdict](func(ctx context.Context) (luascripts.Verdict, error) {
		return s.leave(ctx, t, 0, 0) // not a.t: the attempt may have returned before this is sent
	}))
	err := command.Final{Err: fmt.Errorf("%w: %d of %d within %v", lock.ErrReplicas, confirmed, q.Replicas, q.ReplicaTimeout)}
	a.at.lock()
	a.at.state.RolledBack(a.w, &t.Acquisition, o.Err == nil, err) // mutant: never: speed
	a.at.unlock()
	return err
}

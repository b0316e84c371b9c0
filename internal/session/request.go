package session

import (
	"context"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/lockstate"
	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/leasehold-go/leasehold/watchdog"
)

// acquireRequest is one request for the first hold of a lock. It implements command.Call.
type acquireRequest struct {
	luascripts.Request
	t    *acquisition      // for which it is sent
	spec *Spec             // the waiter's; a ticket may have another waiter's spec
	w    *lockstate.Waiter // waits for the reply
	sent time.Time
}

// prepare builds the request of step, a lockstate.Send, and reports to the state that it is about to be sent. The caller
// holds the mutex of the state.
func (a *attempt) prepare(step *lockstate.Step) {
	s, spec := a.s, a.spec
	a.t = step.Acquisition
	q := &a.request
	*q = acquireRequest{t: acquisitionOf(a.t), spec: spec, w: a.w, sent: a.now}
	q.Request = luascripts.Request{Owner: a.t.Name, Lease: spec.terms.Lease, Want: 1, Waited: q.sent.Sub(a.t.Came), Yield: spec.terms.Yield, Spare: MaxSpare,
		Replicas: spec.Config.Replicas, ReplicaTimeout: spec.Config.ReplicaTimeout}
	if step.Sibling != nil {
		q.Writer = step.Sibling.Name
	}
	switch {
	case step.Ticket:
		q.Offer, q.WaiterTimeout, q.RetryAfter = s.offer(spec), s.queueTTL(), step.RetryAfter
	case !a.isTry():
		q.WaiterTimeout = spec.terms.WaiterTimeout
	}
	a.at.state.WillSend(a.t, q.Lease, q.WaiterTimeout)
	if spec.terms.Linger > 0 {
		a.at.willLinger(q.t, spec)
	}
	if !a.isTry() {
		a.at.subscribeEarly(a.w.Queue(), spec)
	}
}

func (q acquireRequest) Send(ctx context.Context) (luascripts.Acquired, error) {
	return q.spec.Acquire(ctx, q.t.at.s.rdb, q.spec.Keys, q.Request)
}

// replicatedRequest is an acquireRequest that waits for replicas.
type replicatedRequest struct {
	acquireRequest
	ctx context.Context // canceled when the call ends
}

// Send sends the request, and waits for the replicas to confirm it.
func (q replicatedRequest) Send(context.Context) (luascripts.Acquired, error) {
	reply, err := q.acquireRequest.Send(q.ctx)
	if !command.IsReply(err) && command.Over(q.ctx) { // rueidis may report that it closed the connection then
		err = command.NoReply{After: q.t.at.s.overdue(q.spec)}
	}
	return reply, err
}

// Batch fills in the change.
func (q acquireRequest) Batch(c *luascripts.Change) func(*luascripts.Change) luascripts.Acquired {
	if !q.spec.Batches {
		return nil
	}
	q.spec.encode(c, q.Request)
	return acquiredBy
}

// encode fills in the fields of c for a change of the lock.
func (spec *Spec) encode(c *luascripts.Change, q luascripts.Request) {
	c.Keys, c.Slot, c.Request = &spec.Keys, spec.slot, q
}

func acquiredBy(c *luascripts.Change) luascripts.Acquired { return c.Acquired }

// Late handles the reply after the call has left. The acquisition may have acquired the lock or a queue position. If it
// lives, a later request finds that; if it has ended, Late reconciles it. A request that was not sent needs nothing.
func (q acquireRequest) Late(reply luascripts.Acquired, err error) {
	// mutant: always, border, operand 3, operand 4: speed
	wrote := reply.Verdict == luascripts.Done || reply.Verdict == luascripts.Held && q.WaiterTimeout > 0
	if err != nil { // mutant: always: speed
		wrote = retry.FaultOf(err).MayHaveRun()
	}
	resent := q.resent(time.Now()) && err != command.ErrUnsent // mutant: operand 1: speed
	at := q.t.at
	at.lock()
	mustReconcile := at.state.LateReply(q.w, &q.t.Acquisition, wrote || resent)
	at.unlock()
	if mustReconcile {
		at.s.reconcile(q.t, err != nil || resent) // mutant: always: speed
		return
	}
	at.removed(q.t)
}

// resent reports whether rueidis may have resent the request (ConnLifetime), so that a duplicate is in flight. With
// replicas a slow reply is normal, and the request has a dedicated connection, which rueidis does not recycle.
func (q acquireRequest) resent(now time.Time) bool {
	return q.Replicas == 0 && command.Resent(now.Sub(q.sent))
}

// send sends the request and records the reply. It returns nil if the attempt has its hold, and errRefused if another
// owner has the lock.
func (a *attempt) send() error {
	s, q := a.s, &a.request
	limit := a.s.OpTimeout
	if a.isTry() {
		limit = a.timeLeft()
	}
	var o command.Outcome[luascripts.Acquired]
	if q.Replicas > 0 {
		o = a.sendToReplicas(limit + q.ReplicaTimeout)
	} else {
		o = command.Send[luascripts.Acquired](a.waiting, s.sender, limit, *q)
	}
	reply, err := o.Value, o.Err
	a.now = time.Now()
	resent := o.Repeated || o.Answered && q.resent(a.now)
	if resent {
		locked(a.at, a.t.MarkUncertain)
	}
	switch {
	case !o.Answered:
		a.at.lock()
		a.at.state.Abandoned(a.w, a.t) // Late receives the reply
		a.at.unlock()
		return s.sender.Unanswered(a.waiting, q.sent, err)
	case err != nil:
		// mutant: operand 1: it is marked above
		return a.failed(resent || retry.FaultOf(err).MayHaveRun(), s.sender.Explain(err))
	case reply.Verdict == luascripts.Done:
		return a.granted(reply)
	case reply.Verdict == luascripts.Gone: // an earlier copy was granted, but its reply was lost and the grant has ended
		return a.failed(false, tooLate{q.Lease, a.now.Sub(a.began)})
	case reply.Verdict != luascripts.Held:
		return a.failed(false, command.Final{Err: lock.ErrWrongType})
	}
	confirmed := a.isSubscribed()
	if confirmed && reply.NoPubSub { // mutant: operand 1: speed
		s.hub.Check(a.spec.Keys.Channel)
	}
	a.at.lock()
	a.at.state.Refused(a.w, a.t, lockstate.Refusal{Sent: q.sent, Left: reply.Left, NoPubSub: reply.NoPubSub, Confirmed: confirmed, Own: reply.Own, Trace: q.WaiterTimeout > 0, Kept: reply.Kept}, a.now)
	a.at.unlock()
	if q.Writer != "" {
		return errRefused // a writer that is refused to read has lost the lock
	}
	return a.refused(reply.Kept)
}

// sendToReplicas sends the request, which waits for replicas. If the call ends first, it closes the connection, because WAIT
// would otherwise keep the grant from being released for the rest of the replica timeout.
func (a *attempt) sendToReplicas(limit time.Duration) command.Outcome[luascripts.Acquired] {
	// rueidis has no timeout for WAIT, so without this one the goroutine could block indefinitely.
	ctx, leave := context.WithTimeout(context.Background(), a.s.overdue(a.spec))
	defer leave()
	return command.SendUntilShut[luascripts.Acquired](a.waiting, a.s.sender, limit, replicatedRequest{a.request, ctx})
}

// isSubscribed reports whether the subscriptions that notify the waiters by this spec are confirmed.
func (a *attempt) isSubscribed() bool {
	s, k := a.s, a.spec.Keys
	// mutant: operand 2: speed
	return s.hub.Confirmed(k.Channel) && (!a.spec.terms.HandsOff || s.hub.Confirmed(keys.OfClient(k.QueueChannel, s.id)))
}

// failed records that the request failed with err, and returns the error for the caller.
func (a *attempt) failed(mayHaveRun bool, err error) error {
	err = a.s.foreign(a.waiting, a.spec, err)
	a.at.lock()
	a.at.state.Failed(a.w, a.t, mayHaveRun, err)
	a.at.unlock()
	return err
}

// granted records the grant, and creates the first hold. It fails if the wait has ended, if too few replicas confirmed
// the grant, if the reply came too late for the lease, or if the session is closed.
func (a *attempt) granted(reply luascripts.Acquired) error {
	q, t, lease := &a.request, a.request.t, a.spec.terms.Lease
	if a.waiting.Err() != nil {
		a.at.lock()
		a.at.state.Failed(a.w, a.t, true, nil) // the grant is released when the acquisition ends
		a.at.unlock()
		return command.ErrOf(a.waiting)
	}
	if reply.Confirmed < q.Replicas {
		return a.rollBack(reply.Confirmed)
	}
	h := &t.first
	h.init(a.caller, a.spec)
	took := a.now.Sub(q.sent)
	late := took >= watchdog.Trusted(lease) // mutant: border: a nanosecond
	a.at.lock()
	// mutant: always: a data race, because a renewal uses both without this mutex
	if t.lease == nil {
		t.spec = a.spec // a ticket may have another waiter's spec
		if !late {      // mutant: always: a lease that has expired ends at once
			t.lease = a.s.dog.WatchIn(&t.own, t, q.sent, lease, !a.spec.terms.Fixed)
		}
	} else {
		t.lease.Extend(q.sent, lease)
	}
	outcome := a.at.state.Granted(a.w, &t.Acquisition, a.owner, &h.Hold, reply.Token, late, a.now)
	if reply.Next != "" && outcome == lockstate.Holds { // mutant: always, operand 1, operand 2: speed
		a.at.state.Follow(&t.Acquisition, reply.Next, len(a.s.id)+1)
	}
	a.at.unlock()
	switch outcome {
	case lockstate.TooLate:
		return tooLate{lease, took}
	case lockstate.Shut:
		return command.Final{Err: lock.ErrClosed}
	}
	a.h = h
	return nil
}

// rollBack releases a grant that only this many replicas confirmed, and returns the error of the attempt.
func (a *attempt) rollBack(confirmed int) error {
	s, q, t := a.s, &a.request, a.request.t
	o := command.SendFuncWithRetry(a.waiting, s.sender, s.OpTimeout, func(ctx context.Context) (luascripts.Verdict, error) {
		return s.setHolds(ctx, t, 0, 0) // not a.t: the attempt may have returned before this is sent
	})
	err := command.Final{Err: fmt.Errorf("%w: %d of %d within %v", lock.ErrReplicas, confirmed, q.Replicas, q.ReplicaTimeout)}
	a.at.lock()
	a.at.state.RolledBack(a.w, &t.Acquisition, o.Err == nil, err) // mutant: never: speed
	a.at.unlock()
	return err
}

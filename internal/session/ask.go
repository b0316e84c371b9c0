package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/place"
	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/leasehold-go/leasehold/watchdog"
)

// question is one question for the first hold of a lock: a command.Call.
type question struct {
	luascripts.Question
	s    *Session
	t    *tenure       // in whose name it asks
	spec *Spec         // the waiter's; a ticket may have another waiter's
	w    *place.Waiter // waits for the answer
	sent time.Time
}

// prepare makes the question of step, which says Ask, and tells the place that it is about to
// be sent. The mutex of the place is held.
func (a *attempt) prepare(step *place.Step) {
	s, spec := a.s, a.spec
	a.t = tenureOf(step.Tenure)
	q := &a.question
	*q = question{s: s, t: a.t, spec: spec, w: a.w, sent: a.now}
	q.Question = luascripts.Question{Owner: a.t.Name, Lease: spec.terms.Lease, Want: 1, Waited: q.sent.Sub(a.t.Came), Yield: spec.terms.Yield, Spare: spec.spare()}
	if step.Beside != nil {
		q.Writer = step.Beside.Name
	}
	switch {
	case step.Queued:
		q.Offer, q.WaiterTimeout, q.Again = s.offer(spec), s.patience(), step.Again
	case a.limit == 0:
		q.WaiterTimeout = spec.terms.WaiterTimeout
	}
	if spec.terms.Replicas {
		q.Replicas, q.ReplicaTimeout = spec.Config.Replicas, spec.Config.ReplicaTimeout
	}
	a.at.place.Asks(&a.t.Tenure, max(q.Lease, q.Offer), q.WaiterTimeout)
	if l := a.w.Line(); l != nil && a.limit == 0 {
		a.at.listenEarly(l, spec)
	}
}

// Send sends the question.
func (q question) Send(ctx context.Context) (luascripts.Acquired, error) {
	if q.Replicas == 0 {
		return q.spec.Acquire(ctx, q.s.rdb, q.spec.Keys, q.Question)
	}
	// The question has a time-out of its own: for WAIT the client library has none, and without
	// an answer this goroutine would never end.
	within := q.ReplicaTimeout + q.s.OpTimeout
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	reply, err := q.spec.Acquire(ctx, q.s.rdb, q.spec.Keys, q.Question)
	if errors.Is(err, context.DeadlineExceeded) { // the library can be faster than the context
		err = command.NoAnswer{After: within}
	}
	return reply, err
}

// Joins reports whether the question travels with others.
func (q question) Joins() (node uint16, joins bool) {
	if q.Replicas > 0 {
		return 0, false
	}
	return q.s.joins(q.spec)
}

// Fill fills in the change.
func (q question) Fill(c *luascripts.Change) { q.spec.fill(c, q.Question) }

// Answer returns the answer to the change.
func (q question) Answer(c *luascripts.Change) (luascripts.Acquired, error) { return c.Acquired, c.Err }

// Late hears the answer for which the call did not wait. The tenure may have the lock by it,
// or a place in a queue. If the tenure lives, a later question finds that, and if it is over,
// Late settles it. A question that was not sent leaves nothing to settle.
func (q question) Late(reply luascripts.Acquired, err error) {
	wrote := reply.Verdict == luascripts.Done || reply.Verdict == luascripts.Held && q.WaiterTimeout > 0
	if err != nil {
		wrote = retry.FaultOf(err).MayHaveRun()
	}
	resent := q.resent(time.Now()) && err != command.ErrUnsent
	at := q.t.at
	at.lock()
	settle := at.place.Unheard(q.w, &q.t.Tenure, wrote || resent)
	at.unlock()
	if settle {
		q.s.settle(q.t, err != nil || resent)
	}
}

// resent reports whether a copy of the question may come late, of which nobody knows. With replicas, the answer takes its
// time, and the connection is one that the client library closes under no command.
func (q question) resent(now time.Time) bool {
	return q.Replicas == 0 && command.Resent(now.Sub(q.sent))
}

// ask sends the question for p and records the answer. It returns nil if p has its hold, and
// errRefused if others have the lock.
func (a *attempt) ask() error {
	s, q := a.s, a.question
	limit := a.s.OpTimeout
	if a.limit > 0 {
		limit = a.timeLeft()
	}
	reply, answered, err := command.Await[luascripts.Acquired](a.waiting, s.sender, limit+q.ReplicaTimeout, q)
	a.now = time.Now()
	resent := answered && q.resent(a.now)
	if resent {
		a.t.doubt()
	}
	switch {
	case !answered:
		a.at.lock()
		a.at.place.CutOff(a.w, &a.t.Tenure) // Late hears the answer
		a.at.unlock()
		return s.sender.CutOff(err)
	case err != nil:
		return a.broke(resent || retry.FaultOf(err).MayHaveRun(), s.sender.Explain(err))
	case reply.Verdict == luascripts.Done:
		return a.granted(reply)
	case reply.Verdict == luascripts.Gone: // an earlier copy was granted it, which nobody heard, and that is over
		return a.broke(false, tooLate{q.Lease, a.now.Sub(a.began)})
	case reply.Verdict != luascripts.Held:
		return a.broke(false, command.Final{Err: lock.ErrWrongType})
	}
	a.at.lock()
	a.at.place.Refused(a.w, &a.t.Tenure, place.Refusal{Sent: q.sent, Left: reply.Left, Deaf: reply.Deaf, Own: reply.Own, Trace: q.WaiterTimeout > 0}, a.now)
	a.at.unlock()
	return errRefused
}

// broke records that the question for p was answered with an error, and returns it.
func (a *attempt) broke(mayHaveRun bool, err error) error {
	err = a.s.sender.Foreign(a.waiting, a.spec.Keys.Lock, err)
	a.at.lock()
	a.at.place.Broke(a.w, &a.t.Tenure, mayHaveRun, err)
	a.at.unlock()
	return err
}

// granted makes the first hold of p, unless the wait has ended, or too few replicas confirmed
// the grant, or grant returns an error.
func (a *attempt) granted(reply luascripts.Acquired) error {
	q := &a.question
	if err := a.waiting.Err(); err != nil {
		a.at.lock()
		a.at.place.Cross(a.w, &a.t.Tenure)
		a.at.unlock()
		return err
	}
	if reply.Confirmed < q.Replicas {
		confirmed := a.s.takeBack(a.waiting, a.t)
		err := command.Final{Err: fmt.Errorf("%w: %d of %d within %v", lock.ErrReplicas, reply.Confirmed, q.Replicas, q.ReplicaTimeout)}
		a.at.lock()
		a.at.place.GaveBack(a.w, &a.t.Tenure, confirmed, err)
		a.at.unlock()
		return err
	}
	if err := a.grant(a.w, q.sent, reply.Token); err != nil {
		return err
	}
	a.s.follow(a.t, reply.Next)
	return nil
}

// grant records that the question for p, sent at sent, was answered by a grant, and makes the
// first hold. It fails if the answer came too late for the lease, or the session closed.
func (a *attempt) grant(w *place.Waiter, sent time.Time, token uint64) error {
	t, lease := a.t, a.spec.terms.Lease
	h := &t.first
	h.init(a.ctx, a.spec.terms.Fixed)
	took := a.now.Sub(sent)
	late := took >= watchdog.Trusted(lease)
	a.at.lock()
	if t.lease == nil {
		t.spec = a.spec // a ticket may have another waiter's
	}
	if t.lease != nil {
		t.lease.Extend(sent, lease)
	} else if !late {
		t.lease = a.s.dog.WatchIn(&t.own, t, sent, lease, !a.spec.terms.Fixed)
	}
	outcome := a.at.place.Granted(w, &t.Tenure, a.owner, &h.Hold, token, late, a.now)
	a.at.unlock()
	switch outcome {
	case place.TooLate:
		return tooLate{lease, took}
	case place.Shut:
		return command.Final{Err: lock.ErrClosed}
	}
	a.h = h
	return nil
}

// takeBack gives a grant for t back before the caller hears of it: it is not to become a hold.
// It reports whether Redis confirmed that.
func (s *Session) takeBack(ctx context.Context, t *tenure) bool {
	o := command.Insist[luascripts.Verdict](ctx, s.sender, time.Now(), s.OpTimeout, command.Func[luascripts.Verdict](func(ctx context.Context) (luascripts.Verdict, error) {
		return s.leave(ctx, t, 0, 0)
	}))
	return o.Answered && o.Err == nil
}

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
func (a *attempt) prepare(p *part, step *place.Step) {
	s, spec := a.s, p.spec
	p.t = tenureOf(step.Tenure)
	q := &a.question
	*q = question{s: s, t: p.t, spec: spec, w: a.w, sent: a.now}
	q.Question = luascripts.Question{Owner: p.t.Name, Lease: spec.terms.Lease, Want: 1, Waited: q.sent.Sub(p.t.Came), Yield: spec.terms.Yield, Spare: spec.spare()}
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
	p.at.place.Asks(&p.t.Tenure, max(q.Lease, q.Offer), q.WaiterTimeout)
	if l := a.w.Line(); l != nil && a.limit == 0 {
		p.at.listenEarly(l, spec)
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
func (a *attempt) ask(p *part) error {
	s, q := a.s, a.question
	limit := a.s.OpTimeout
	if a.limit > 0 {
		limit = a.timeLeft()
	}
	reply, answered, err := command.Await[luascripts.Acquired](a.waiting, s.sender, limit+q.ReplicaTimeout, q)
	a.now = time.Now()
	resent := answered && q.resent(a.now)
	if resent {
		p.t.doubt()
	}
	switch {
	case !answered:
		p.at.lock()
		p.at.place.CutOff(a.w, &p.t.Tenure) // Late hears the answer
		p.at.unlock()
		return s.sender.CutOff(err)
	case err != nil:
		return a.broke(p, resent || retry.FaultOf(err).MayHaveRun(), s.sender.Explain(err))
	case reply.Verdict == luascripts.Done:
		return a.granted(p, reply)
	case reply.Verdict == luascripts.Gone: // an earlier copy was granted it, which nobody heard, and that is over
		return a.broke(p, false, tooLate{q.Lease, a.now.Sub(a.began)})
	case reply.Verdict != luascripts.Held:
		return a.broke(p, false, command.Final{Err: lock.ErrWrongType})
	}
	p.at.lock()
	p.at.place.Refused(a.w, &p.t.Tenure, place.Refusal{Sent: q.sent, Left: reply.Left, Deaf: reply.Deaf, Own: reply.Own, Trace: q.WaiterTimeout > 0}, a.now)
	p.at.unlock()
	return errRefused
}

// broke records that the question for p was answered with an error, and returns it.
func (a *attempt) broke(p *part, mayHaveRun bool, err error) error {
	err = a.s.sender.Foreign(a.waiting, p.spec.Keys.Lock, err)
	p.at.lock()
	p.at.place.Broke(a.w, &p.t.Tenure, mayHaveRun, err)
	p.at.unlock()
	return err
}

// granted makes the first hold of p, unless the wait has ended, or too few replicas confirmed
// the grant, or grant returns an error.
func (a *attempt) granted(p *part, reply luascripts.Acquired) error {
	q := &a.question
	if err := a.waiting.Err(); err != nil {
		p.at.lock()
		p.at.place.Cross(a.w, &p.t.Tenure)
		p.at.unlock()
		return err
	}
	if reply.Confirmed < q.Replicas {
		confirmed := a.s.takeBack(a.waiting, p.t)
		err := command.Final{Err: fmt.Errorf("%w: %d of %d within %v", lock.ErrReplicas, reply.Confirmed, q.Replicas, q.ReplicaTimeout)}
		p.at.lock()
		p.at.place.GaveBack(a.w, &p.t.Tenure, confirmed, err)
		p.at.unlock()
		return err
	}
	if err := a.grant(p, a.w, q.sent, reply.Token); err != nil {
		return err
	}
	a.s.follow(p.t, reply.Next)
	return nil
}

// grant records that the question for p, sent at sent, was answered by a grant, and makes the
// first hold. It fails if the answer came too late for the lease, or the session closed.
func (a *attempt) grant(p *part, w *place.Waiter, sent time.Time, token uint64) error {
	t, lease := p.t, p.spec.terms.Lease
	h := &t.first
	h.init(a.ctx, p.spec.terms.Fixed)
	took := a.now.Sub(sent)
	late := took >= watchdog.Trusted(lease)
	p.at.lock()
	if t.lease == nil {
		t.spec = p.spec // a ticket may have another waiter's
	}
	if t.lease != nil {
		t.lease.Extend(sent, lease)
	} else if !late {
		t.lease = a.s.dog.WatchIn(&t.own, t, sent, lease, !p.spec.terms.Fixed)
	}
	outcome := p.at.place.Granted(w, &t.Tenure, p.owner, &h.Hold, token, late, a.now)
	p.at.unlock()
	switch outcome {
	case place.TooLate:
		return tooLate{lease, took}
	case place.Shut:
		return command.Final{Err: lock.ErrClosed}
	}
	p.h = h
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

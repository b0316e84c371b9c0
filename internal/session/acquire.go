package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/internal/owner"
	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/leasehold-go/leasehold/watchdog"
)

// Lock waits for the lock.
func (s *Session) Lock(ctx context.Context, spec *Spec) (lock.Hold, error) {
	return s.acquire(ctx, spec, "lock", true)
}

// TryLock makes one attempt. It has the operation time-out for it: within that,
// what broke off on the way is asked again.
func (s *Session) TryLock(ctx context.Context, spec *Spec) (lock.Hold, error) {
	return s.acquire(ctx, spec, "trylock", false)
}

func (s *Session) acquire(ctx context.Context, spec *Spec, op string, wait bool) (lock.Hold, error) {
	h, err := s.enter(ctx, spec, wait)
	if err == nil {
		s.limit(h, spec)
		return h, nil
	}
	if ctx.Err() != nil {
		err = interrupted(ctx, err)
	}
	return nil, &lock.Error{Op: op, Name: spec.Name, Err: err}
}

// interrupted is the error of an acquisition that ctx ended. It matches
// ErrNotAcquired, ctx.Err() and the context's cause, and also last, which is what
// the last question failed with if Redis did not answer that another owner has it.
func interrupted(ctx context.Context, last error) error {
	ended := ctx.Err()
	if cause := context.Cause(ctx); !errors.Is(ended, cause) {
		ended = fmt.Errorf("%w: %w", ended, cause)
	}
	if last == ctx.Err() || errors.Is(last, lock.ErrNotAcquired) && !errors.Is(last, lock.ErrUnavailable) {
		return fmt.Errorf("%w: %w", lock.ErrNotAcquired, ended)
	}
	return fmt.Errorf("%w: %w: %w", lock.ErrNotAcquired, ended, last)
}

// enter acquires one hold for the owner that ctx carries, or for a fresh one.
func (s *Session) enter(ctx context.Context, spec *Spec, wait bool) (*hold, error) {
	if spec.Err != nil {
		return nil, spec.Err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	number, ok := lock.OwnerFrom(ctx)
	if !ok {
		number = owner.New()
	}
	if spec.shares() {
		now := time.Now()
		if h := s.enterOpen(ctx, spec, nil, number, ok, now, now); h != nil {
			return h, nil
		}
	}
	if err := s.begin(); err != nil {
		return nil, err
	}
	defer s.work.Done()
	c := s.claim(claimID{spec.place(), number})
	defer s.drop(c)
	if !wait {
		if s.asking(c) {
			return nil, s.behind(c.id.place) // another goroutine of this owner waits for it already
		}
		return s.inTurn(ctx, ctx, spec, c, s.OpTimeout, s.try)
	}
	if spec.Wait == 0 {
		return s.inTurn(ctx, ctx, spec, c, 0, s.wait)
	}
	waiting, cancel := context.WithTimeout(ctx, spec.Wait)
	defer cancel()
	h, err := s.inTurn(ctx, waiting, spec, c, 0, s.wait)
	if err != nil && faultOf(err).again && waiting.Err() != nil && ctx.Err() == nil {
		err = waited{spec.Wait, err}
	}
	return h, err
}

// inTurn takes the claim's turn and re-enters, or calls first for the first
// hold. The hold will be under ctx; waiting is what ends the waiting, ctx itself
// or less. limit bounds the whole (0 is no limit).
func (s *Session) inTurn(ctx, waiting context.Context, spec *Spec, c *claim, limit time.Duration, first firstHold) (*hold, error) {
	var began time.Time
	if limit > 0 {
		began = time.Now()
	}
	left := func() time.Duration {
		if limit == 0 {
			return 0
		}
		return max(limit-time.Since(began), time.Millisecond)
	}
	for {
		if err := s.take(waiting, c.turn, left()); err != nil {
			return nil, s.ended(c, err)
		}
		t := s.tenure(c)
		if t == nil {
			return s.firstInTurn(ctx, waiting, spec, c, left(), first)
		}
		h, passed, err := s.reenter(ctx, waiting, spec, c, t, left())
		if !passed {
			c.leave()
		}
		if err != errReleased {
			return h, err
		}
		// Back to the end of the queue for the turn: who gave the other holds
		// back may stand in it.
	}
}

func (s *Session) firstInTurn(ctx, waiting context.Context, spec *Spec, c *claim, limit time.Duration, first firstHold) (*hold, error) {
	defer c.leave()
	if !spec.shared() && s.beside(c) != nil {
		return nil, final{lock.ErrUpgrade}
	}
	return first(ctx, waiting, spec, c, limit)
}

// firstHold is try or wait.
type firstHold func(ctx, waiting context.Context, spec *Spec, c *claim, limit time.Duration) (*hold, error)

// tenure returns the claim's tenure, nil if the owner does not hold the lock.
func (s *Session) tenure(c *claim) *tenure {
	s.mu.Lock()
	t := c.tenure
	s.mu.Unlock()
	if t != nil && t.lease.Check() != nil {
		return nil // this very look may have found it lost
	}
	return t
}

// asking reports whether another call asks for the first hold of c.
func (s *Session) asking(c *claim) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.tenure == nil && len(c.turn) > 0
}

// try asks once, if nobody of this process is ahead.
func (s *Session) try(ctx, waiting context.Context, spec *Spec, c *claim, limit time.Duration) (*hold, error) {
	if spec.Keep == nil && !spec.shared() { // Redis knows better who is ahead, or nobody need be
		w := s.join(spec, passer)
		defer w.leave()
		if !w.leads() {
			return nil, s.behind(c.id.place)
		}
	}
	t := s.newTenure(spec, c)
	end := time.Now().Add(limit)
	pause := retry.Backoff{Most: s.OpTimeout / 4}
	var last error // of the attempt before
	for {
		h, _, err := s.question(ctx, waiting, t, c, nil, 0, limit)
		switch {
		case h != nil:
			return h, nil
		case err == nil:
			return nil, t.fail(lock.ErrNotAcquired)
		case errors.As(err, new(noAnswer)):
			if last != nil {
				err = fmt.Errorf("%w (before that: %w)", err, last) // the last attempt may have had no time left
			}
			return nil, t.fail(err)
		}
		d := pause.Next()
		last, limit = err, time.Until(end)-d
		if !s.mayPass(err) || limit <= 0 || !rest(waiting, d) {
			return nil, t.fail(err)
		}
	}
}

// wait asks until the lock is granted or waiting ends.
//
// It asks only when there is a reason to: it never asked, a hint came, the
// other's lease ran out, or a poll interval is over; the line decides who. A hint
// is never more than a reason to ask, so losing one costs a poll.
func (s *Session) wait(ctx, waiting context.Context, spec *Spec, c *claim, _ time.Duration) (*hold, error) {
	w := s.join(spec, stander)
	defer w.leave()
	if spec.shared() {
		s.waitToRead(c, w)
		defer s.waitToRead(c, nil)
	}
	var t *tenure
	var offer time.Duration
	if spec.Pass == nil {
		t = s.newTenure(spec, c)
	}
	pause := retry.Backoff{Most: s.Poll}
	told, late := false, 0
	for {
		if err := w.turn(waiting); err != nil {
			return nil, w.giveUp(t, s.ended(c, err))
		}
		if spec.Pass != nil {
			if gift := w.take(c); gift != nil {
				h, err := s.accept(ctx, w, gift)
				if err == nil || errors.Is(err, lock.ErrClosed) {
					return h, err
				}
				continue // lost on the way
			}
			t, offer = w.ticket()
		}
		w.willAsk(spec)
		h, left, err := s.question(ctx, waiting, t, c, w, offer, s.OpTimeout)
		switch {
		case h != nil:
			if !t.beside { // or it was let in because it writes, and nobody else is
				w.granted(spec)
			}
			return h, nil
		case err == nil:
			pause.Reset()
			w.refused(t, left)
			if !told {
				told = true
				s.observe(s.Observer.Waiting, &tenure{spec: spec, owner: t.owner}, lock.Event{}) // a ticket may be granted at this moment
			}
		case errors.As(err, new(tooLate)) && late < 2:
			// A slow answer can be chance. Three of them are a lease that is
			// too short for this server.
			late++
			_ = w.giveUp(t, err)
			if spec.Pass == nil {
				t = s.newTenure(spec, c)
			}
			w.ask()
		case !faultOf(err).again:
			return nil, w.giveUp(t, err)
		case waiting.Err() != nil: // turn will say which of the two ended
		default:
			s.silent(spec, w.retryIn(err, pause.Next()), err)
		}
	}
}

// ask sends one question for the first hold of t, which is for the claim c, and waits
// for the answer while waiting lasts. It returns the hold, which is under ctx, or
// what is left of another owner's lease, or an error. w is who waits for it, nil if
// nobody will; offer is what t stands in line for, 0 if it does not.
func (s *Session) ask(ctx, waiting context.Context, t *tenure, c *claim, w *waiter, offer, limit time.Duration) (*hold, time.Duration, error) {
	sent := time.Now()
	if w != nil {
		w.sent = sent
	}
	spec := t.spec
	if offer > 0 {
		spec = w.spec // the ticket may have been another's
	}
	q := luascripts.Question{Owner: t.owner, Lease: s.lease(spec), Want: 1, Waited: sent.Sub(t.asked), Yield: spec.Yield, Spare: spec.spare(), Offer: offer}
	switch {
	case offer > 0:
		q.Patience, q.Again = s.keep(), w.line.again()
	case w != nil:
		q.Patience = spec.Patience
	}
	if spec.Replicas > 0 {
		q.Replicas, q.ReplicaTimeout = spec.Replicas, spec.ReplicaTimeout
		limit += q.ReplicaTimeout
	}
	if other := s.beside(c); other != nil {
		q.Writer, t.beside = other.owner, true
	}
	t.willAsk(max(q.Lease, q.Offer), q.Patience)
	reply, answered, err := s.send(waiting, t, spec, q, w, limit)
	if !answered {
		return nil, 0, s.cutOff(sent, err) // the answer will go to unheard
	}
	t.answered()
	if err != nil {
		if faultOf(err).mayHaveRun {
			t.doubt()
		}
		return nil, 0, s.foreign(waiting, spec, s.told(err))
	}
	switch reply.Verdict {
	case luascripts.Done:
		if err = waiting.Err(); err != nil {
			t.doubt() // crossed the end of the wait: failing takes it back
			return nil, 0, err
		}
		if offer > 0 && w.adopt(t, c) {
			t.lease.Extend(sent, q.Lease)
			h, err := s.accept(ctx, w, t)
			return h, 0, err
		}
		if reply.Confirmed < q.Replicas {
			s.takeBack(waiting, t)
			return nil, 0, final{fmt.Errorf("%w: %d of %d within %v", lock.ErrReplicas, reply.Confirmed, q.Replicas, q.ReplicaTimeout)}
		}
		h, err := s.granted(ctx, t, sent, reply.Token)
		return h, 0, err
	case luascripts.Held:
		if w != nil {
			w.deaf = reply.Deaf
		}
		if q.Patience > 0 {
			t.trace()
		}
		if w != nil {
			w.own = reply.Own
		}
		return nil, reply.Left, nil
	default:
		return nil, 0, s.foreign(waiting, spec, final{lock.ErrForeignKey})
	}
}

// send sends the question q for t. It is await, but without what that takes from the
// heap where the caller's own goroutine sends.
func (s *Session) send(waiting context.Context, t *tenure, spec *Spec, q luascripts.Question, w *waiter, limit time.Duration) (reply luascripts.Acquired, answered bool, err error) {
	var own *endOf
	if q.Replicas == 0 { // or it takes longer, and a connection of its own, for which the library waits without regard to a context
		own = s.inline(waiting, limit)
	}
	if own != nil {
		reply, err = spec.Acquire(own, s.rdb, spec.Keys, q)
		if answered, err = s.inlined(own, err); !answered {
			s.unheard(t, w, q.Patience > 0, luascripts.Acquired{}, err)
		}
		return reply, answered, err
	}
	return s.sendAside(waiting, t, spec, q, w, limit)
}

func (s *Session) sendAside(waiting context.Context, t *tenure, spec *Spec, q luascripts.Question, w *waiter, limit time.Duration) (reply luascripts.Acquired, answered bool, err error) {
	return aside(waiting, s, limit, func(ctx context.Context) (luascripts.Acquired, error) {
		if q.Replicas > 0 {
			return s.acquireReplicated(ctx, spec, q)
		}
		return spec.Acquire(ctx, s.rdb, spec.Keys, q)
	}, func(reply luascripts.Acquired, err error) {
		s.unheard(t, w, q.Patience > 0, reply, err)
	})
}

// acquireReplicated has a bound of its own: for WAIT the client library has none, and without
// an answer this would stay for ever.
func (s *Session) acquireReplicated(ctx context.Context, spec *Spec, q luascripts.Question) (luascripts.Acquired, error) {
	within := q.ReplicaTimeout + s.OpTimeout
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	reply, err := spec.Acquire(ctx, s.rdb, spec.Keys, q)
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = noAnswer{within}
	}
	return reply, err
}

// unheard sees to the answer to a question for t, of w if that is not nil, for which
// nobody waits. A grant is a copy of one that the tenure had by a later question, or
// one that nobody wants any more; so is a place in a queue, if there is one.
func (s *Session) unheard(t *tenure, w *waiter, queues bool, reply luascripts.Acquired, err error) {
	t.answered()
	wrote := reply.Verdict == luascripts.Done || reply.Verdict == luascripts.Held && queues
	if err == nil && !wrote || err != nil && !faultOf(err).mayHaveRun {
		return
	}
	if t.doubt() != lives {
		s.settle(t, err != nil)
	} else if w != nil {
		w.ask() // it may be ours: a good reason to ask
	}
}

// takeBack gives a grant for t back that must not become a hold, before the caller
// hears of it. If that is not confirmed, failing goes on with it.
func (s *Session) takeBack(ctx context.Context, t *tenure) {
	o := insist(ctx, s, s.OpTimeout, func(ctx context.Context) (luascripts.Verdict, error) {
		return s.leave(ctx, t, 0, 0)
	}, nil)
	if !o.answered || o.err != nil {
		t.doubt()
	}
}

// granted makes the first hold of t, unless the grant came too late for its
// lease, for ctx or for the session.
func (s *Session) granted(ctx context.Context, t *tenure, sent time.Time, token uint64) (h *hold, err error) {
	defer func() {
		if err != nil {
			t.doubt() // so that failing takes the grant back
		}
	}()
	switch took, lease := time.Since(sent), s.lease(t.spec); {
	case took >= watchdog.Trusted(lease):
		return nil, tooLate{lease, took}
	case !t.begin(sent, token):
		return nil, final{lock.ErrClosed}
	}
	h = &t.first
	h.init(ctx, t, t.spec.Fixed != 0)
	if !t.add(h) {
		err = tooLate{s.lease(t.spec), time.Since(sent)}
		if _, over := t.state(); over == closed {
			err = final{lock.ErrClosed}
		}
		return nil, err
	}
	s.observeAcquired(h, t.asked)
	return h, nil
}

// errReleased says that another goroutine of the owner gave the last hold back
// while this one wanted to re-enter.
var errReleased = final{errors.New("released meanwhile")}

// reenter adds a hold to a tenure, within limit (0 is as long as waiting lasts). It
// was called with the claim's turn. When a question broke off, it has passed
// the turn on to whoever sees to the answer, so that nothing else of this tenure
// can overtake it.
func (s *Session) reenter(ctx, waiting context.Context, spec *Spec, c *claim, t *tenure, limit time.Duration) (h *hold, passed bool, err error) {
	lease, leave := s.lease(spec), c.leave
	if t.turn != nil {
		if err := s.take(waiting, t.turn, limit); err != nil {
			return nil, false, s.ended(c, err)
		}
		defer func() {
			if !passed {
				<-t.turn
			}
		}()
		leave = func() { <-t.turn; c.leave() }
	}
	holds, _ := t.willChange()
	t.mayTake(lease)
	began := time.Now()
	var sent time.Time
	o := insist(waiting, s, limit, func(ctx context.Context) (luascripts.Acquired, error) {
		if _, over := t.state(); over != lives {
			return luascripts.Acquired{Verdict: luascripts.Gone}, nil
		}
		sent = time.Now()
		return t.spec.Acquire(ctx, s.rdb, t.spec.Keys, luascripts.Question{Owner: t.owner, Lease: lease, Want: holds + 1})
	}, func(_ luascripts.Acquired, err error) {
		leave()
		s.settle(t, err != nil)
	})
	switch {
	case !o.answered:
		return nil, true, s.cutOff(began, o.err)
	case o.err != nil:
		if o.repeated || faultOf(o.err).mayHaveRun {
			s.work.Go(func() { s.settle(t, true) })
		}
		return nil, false, s.told(o.err)
	case o.value.Verdict == luascripts.Done:
		h := newHold(ctx, t, spec.Fixed != 0)
		h.claim = c
		if t.add(h) {
			t.lease.Extend(sent, lease)
			t.count(holds + 1)
			return h, false, nil
		}
	}
	switch _, over := t.state(); over {
	case lives:
		if o.value.Verdict == luascripts.Done { // others share it
			s.work.Go(func() { s.settle(t, false) })
			return nil, false, errReleased
		}
	case released:
		return nil, false, errReleased
	case closed:
		return nil, false, final{lock.ErrClosed}
	}
	cause := watchdog.ErrGone
	if o.value.Verdict == luascripts.Foreign {
		cause = fmt.Errorf("%w: %w", watchdog.ErrGone, lock.ErrForeignKey)
	}
	t.lease.Lose(cause)
	return nil, false, fmt.Errorf("%w: %w", lock.ErrLost, cause)
}

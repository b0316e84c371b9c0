package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/lockstate"
	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/lock"
)

// attempt is one call for the first hold of a lock: the wait loop.
//
// It asks Redis only when there is a reason to: it never asked, a notification came, the other's
// lease expired, or a poll interval is over. The state decides when, and which waiter. A notification
// is only a reason to ask, so a lost notification costs a poll.
//
// One goroutine uses an attempt. What other goroutines see of it is the waiter, which the
// mutex of the state guards.
type attempt struct {
	s       *Session
	spec    *Spec
	call    *call // nil if no one observes
	at      *entry
	owner   *lockstate.Owner
	ctx     context.Context // the hold is under it
	waiting context.Context // ends the wait: ctx, or a part of it
	limit   time.Duration   // how much time a TryLock has; 0 is a Lock
	began   time.Time
	now     time.Time // when it last looked at the clock: as it began, after each sleep, and after each reply
	fresh   bool      // its owner is new, so no other call knows of it

	w       *lockstate.Waiter // nil before it waits in the queue
	t       *acquisition      // in whose name it asks; nil before its queue asks, and after a step that came to nothing
	request acquireRequest    // the latest
	h       *hold             // the result
}

// run takes steps until the lock is granted, or the attempt ends with an error. A TryLock
// ends with the first refusal. Nothing of a failed attempt stays in Redis, also when the observer
// or the logger does not return, because it panics or calls runtime.Goexit.
func (a *attempt) run() error {
	returned := false
	defer func() {
		if !returned {
			_ = a.giveUp(nil)
		}
	}()
	err := a.steps()
	returned = true
	return err
}

// steps is run without that.
func (a *attempt) steps() error {
	pause := retry.Backoff{Most: a.s.Poll}
	if a.limit > 0 {
		pause.Most = a.s.OpTimeout / 4
	}
	late := 0
	var last error // TryLock: of the step before
	for {
		err := a.step()
		switch {
		case err == nil:
			return nil
		case a.limit > 0:
			if again, err := a.again(err, last, pause.Next()); !again {
				return a.giveUp(err)
			}
			last = err
		case err == errAgain:
		case err == errRefused:
			pause.Reset()
			a.tellWaiting()
		case errors.As(err, new(waitOver)):
			return a.giveUp(errors.Unwrap(err))
		case errors.As(err, new(tooLate)) && late < 2:
			// A slow reply can be chance. After three of them the lease is too short
			// for this server.
			late++
			_ = a.giveUp(err)
			a.restart()
			a.wakeup()
		case !retry.FaultOf(err).Passes:
			return a.giveUp(err)
		default:
			a.unanswered(err, pause.Next())
		}
	}
}

// What a step can come to, other than the errors of commands.
var (
	errRefused = errors.New("others have the lock")
	errAgain   = errors.New("look again")
)

// waitOver is what a step comes to when the wait is over.
type waitOver struct{ error }

func (e waitOver) Unwrap() error { return e.error }

// step waits until there is something to do, and does it. It returns nil when the lock is
// held.
func (a *attempt) step() error {
	step, err := a.next()
	if err != nil {
		if a.limit == 0 {
			err = a.ended(err)
		} // a TryLock ends with the first reply, so it has none
		return waitOver{err}
	}
	switch step.Do {
	case lockstate.Restart:
		a.restart()
		a.wakeup()
		return errAgain
	case lockstate.Take:
		return a.accept(acquisitionOf(step.Acquisition))
	case lockstate.Join:
		if a.h = a.s.join(a.ctx, a.at, acquisitionOf(step.Acquisition), a.owner.Number); a.h == nil {
			return errAgain
		}
		a.joined()
		return nil
	case lockstate.Share:
		a.h = step.Hold.Of.(*hold)
		a.joined()
		return nil
	case lockstate.Refuse:
		a.at.lock()
		a.at.state.Waits(a.w, lockstate.Refusal{Sent: step.Sent, Left: step.Left}, a.now)
		a.at.unlock()
		return errRefused
	case lockstate.Fail:
		return a.s.sender.Explain(cmp.Or(step.Err, error(command.NoReply{After: a.s.OpTimeout})))
	}
	return a.send()
}

// joined ends what the attempt asked for p before another reader let it in.
func (a *attempt) joined() {
	a.at.lock()
	a.at.state.Joined(a.w, a.now)
	a.at.unlock()
	_ = a.giveUp(nil)
}

// next waits until the state has something for p to do.
func (a *attempt) next() (lockstate.Step, error) {
	for {
		if a.s.isClosing() {
			return lockstate.Step{}, lock.ErrClosed
		}
		if err := a.waiting.Err(); err != nil {
			return lockstate.Step{}, err
		}
		var beside *lockstate.Acquisition
		if a.spec.Sibling != nil {
			a.at.sibling(a.owner) // this very look may find that it is lost
		}
		a.at.lock()
		if a.spec.Sibling != nil {
			beside = a.owner.Sibling() // with the mutex: an owner that comes to write now gives the waiter its next reason to ask
		}
		step := a.at.state.Next(a.w, beside, cmp.Or(a.timeLeft(), a.s.OpTimeout), a.now)
		switch step.Do {
		case lockstate.Send:
			a.prepare(&step)
		case lockstate.Take:
			acquisitionOf(step.Acquisition).first.init(a.ctx, false)
		}
		a.at.unlock()
		if step.Do != lockstate.Wait {
			return step, nil
		}
		a.tellBehind()
		a.sleep(step.Due)
		a.now = time.Now()
	}
}

// sleep waits until due, where the zero time is never, or until the waiter is woken, or its wait ends.
func (a *attempt) sleep(due time.Time) {
	var timeout <-chan time.Time
	if !due.IsZero() {
		timer := time.NewTimer(time.Until(due))
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case <-a.w.Wake:
	case <-timeout:
	case <-a.waiting.Done():
	case <-a.s.closer.closing:
	}
}

// timeLeft returns how much time a TryLock has left; 0 for a Lock.
func (a *attempt) timeLeft() time.Duration {
	if a.limit == 0 {
		return 0
	}
	return max(a.limit-a.now.Sub(a.began), time.Millisecond)
}

// again reports whether a TryLock takes another step after err, for which it waits until d has
// passed. If not, it fails with the error that again returns. last is the error of the step
// before.
func (a *attempt) again(err, last error, d time.Duration) (bool, error) {
	var over waitOver
	switch {
	case err == errRefused:
		return false, lock.ErrNotAcquired
	case err == errAgain:
		return true, last
	case errors.As(err, &over):
		return false, cmp.Or(last, over.error)
	case err == a.waiting.Err():
		return false, cmp.Or(last, err)
	case errors.As(err, new(command.NoReply)):
		if last != nil {
			err = fmt.Errorf("%w (before that: %w)", err, last) // the last step may have had no time left
		}
		return false, err
	case !a.s.sender.MayPass(err) || a.limit-a.now.Sub(a.began) <= d || a.s.sender.Down(a.waiting, a.timeLeft(), last, err) || !command.Sleep(a.waiting, d):
		return false, err
	}
	a.now = time.Now()
	a.wakeup()
	return true, err
}

// unanswered has the waiter ask again when d has passed, or when there is a reason before: err
// came instead of a reply.
func (a *attempt) unanswered(err error, d time.Duration) {
	over := a.waiting.Err() // the next step says so
	if over != nil {
		if err != over { // the request failed before the wait ended
			a.at.lock()
			a.w.Failed(err)
			a.at.unlock()
		}
		return
	}
	a.at.lock()
	a.w.Failed(err)
	quiet, _ := a.w.Queue().Outage().Lasts(a.now, 0)
	a.at.state.Retry(a.w, a.now.Add(d))
	a.at.unlock()
	a.s.silent(a.spec, quiet, err)
}

// accept adds a hold of t, which the waiter took.
func (a *attempt) accept(t *acquisition) error {
	h := &t.first
	a.at.lock()
	held := a.at.state.Add(&t.Acquisition, a.owner, &h.Hold)
	closed := t.Phase() == lockstate.Closed
	a.at.unlock()
	switch {
	case held:
		a.h = h
		return nil
	case closed:
		return command.Final{Err: lock.ErrClosed}
	default:
		a.restart() // lost on the way
		if !a.spec.terms.Tickets() {
			a.wakeup()
		}
		return errAgain
	}
}

// newWaiter returns a waiter, with memory of the state's if there is some to be had. The
// caller has the mutex of the state.
func (a *attempt) newWaiter() *lockstate.Waiter {
	w := a.at.state.Waiter(&a.spec.terms, a.limit > 0)
	if w.Wake == nil {
		w.Wake = make(chan struct{}, 1)
	}
	w.Terms, w.Owner, w.Tells = &a.spec.terms, a.owner, a.call != nil
	return w
}

// giveUp ends what the attempt asks for in Redis, for good, or until the next waiter of the
// line goes on with it. The attempt itself may go on, with a new acquisition, or have a hold by
// another reader's request: then it has no use for what it asked before. It returns err.
func (a *attempt) giveUp(err error) error {
	var t *lockstate.Acquisition
	if a.t != nil {
		t = &a.t.Acquisition
	}
	a.at.lock()
	seat := a.at.state.GiveUp(a.w, t)
	a.at.unlock()
	if seat != nil {
		h := seat.Of.(*hold) // another's request let it in as the wait ended
		s := a.s
		s.sender.Go(func() { _ = s.unlock(context.Background(), h) })
	}
	return err
}

// restart makes the acquisition in whose name the attempt asks next.
func (a *attempt) restart() {
	a.t = nil
	a.at.lock()
	a.ownAcquisition()
	a.at.unlock()
}

// wakeup gives the waiter a reason to ask, wherever it stands.
func (a *attempt) wakeup() {
	a.at.lock()
	a.at.state.Wakeup(a.w)
	a.at.unlock()
}

// ended returns the error of an attempt whose wait err ended, between two requests.
func (a *attempt) ended(err error) error {
	return a.s.ended(a.at, a.owner, a.spec, err)
}

// ended returns the error of a call for o whose wait err ended: err itself if nothing is known of the lock.
func (s *Session) ended(at *entry, o *lockstate.Owner, spec *Spec, err error) error {
	if err == lock.ErrClosed {
		return err
	}
	now := time.Now()
	_, late := err.(command.NoReply) // takeTurn gave up
	at.lock()
	defer at.unlock()
	if t := o.Acquisition(); t != nil && !t.Changing().IsZero() { // the owner has the lock, so it waited only for Redis
		if d := now.Sub(t.Changing()); late || d >= s.overdue(spec) {
			return s.sender.Unavailable(d, err)
		}
		return err
	}
	if d, instead := at.state.Queue(&spec.terms).Outage().Lasts(now, s.overdue(spec)); d > 0 {
		return s.sender.Unavailable(d, cmp.Or(instead, err))
	}
	switch {
	case late:
		return errAhead
	case at.state.Refuses(&spec.terms):
		return errWaited
	}
	return err
}

var (
	// errAhead is what an attempt fails with that does not wait, or not any longer, behind another call of this process, which waits for
	// another owner.
	errAhead = fmt.Errorf("%w: another call of this process is ahead", lock.ErrNotAcquired)

	// errWaited is what a wait for another owner fails with.
	errWaited = fmt.Errorf("%w: another owner has the lock", lock.ErrNotAcquired)
)

// overdue returns after how long a request for spec must have been replied to.
func (s *Session) overdue(spec *Spec) time.Duration {
	if spec.terms.Replicas {
		return s.OpTimeout + spec.Config.ReplicaTimeout
	}
	return s.OpTimeout
}

// Ahead returns the error of a TryLock by spec if another call of this process waits for the lock; nil if none does.
func (s *Session) Ahead(spec *Spec) error {
	if spec.Err != nil {
		return nil // the attempt says so
	}
	at, err := s.begin(spec)
	if err != nil {
		return nil // likewise
	}
	defer s.done(at)
	at.lock()
	waits := at.state.Queue(&spec.terms) != nil
	at.unlock()
	if !waits {
		return nil
	}
	return at.behind(spec)
}

// behind returns the error of a TryLock that stands behind another call of this process.
func (at *entry) behind(spec *Spec) error {
	at.lock()
	defer at.unlock()
	if d, err := at.state.Queue(&spec.terms).Outage().Lasts(time.Now(), at.s.overdue(spec)); d > 0 {
		return fmt.Errorf("another call of this process is ahead: %w", at.s.sender.Unavailable(d, err))
	}
	return errAhead
}

// tooLate is the error of a grant whose reply took as long as the lease is trusted.
type tooLate struct{ lease, took time.Duration }

func (e tooLate) Error() string {
	return fmt.Sprintf("granted too late: the reply took %v, the lease is %v", e.took, e.lease)
}

// Final says that asking again would not help.
func (e tooLate) Final() {}

// Is makes it match lock.ErrUnavailable: the reply was of no use.
func (e tooLate) Is(target error) bool { return target == lock.ErrUnavailable }

// outOfTime is what a wait fails with that its own limit ended.
type outOfTime struct {
	limit time.Duration
	last  error // matches lock.ErrNotAcquired or lock.ErrUnavailable
}

func (e outOfTime) Error() string {
	if errors.Is(e.last, lock.ErrNotAcquired) {
		return fmt.Sprintf("%v: waited for %s", lock.ErrNotAcquired, command.Brief(e.limit))
	}
	return fmt.Sprintf("waited for %s: %v", command.Brief(e.limit), e.last)
}

// Unwrap returns what the error matches.
func (e outOfTime) Unwrap() []error { return []error{os.ErrDeadlineExceeded, e.last} }

func (e outOfTime) Timeout() bool { return true }

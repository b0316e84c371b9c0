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

// attempt is the wait loop of one call for the first hold of a lock.
//
// It sends a request first, after a notification, when the other owner's lease expires, and when a poll interval ends.
// The state decides when, and for which waiter. A lost notification delays the waiter by at most one poll interval, or
// two after a long wait.
//
// An attempt is used by one goroutine. Other goroutines use only its waiter, which the mutex of the state guards.
type attempt struct {
	s    *Session
	spec *Spec
	at   *entry
	caller
	timing
	owner   *lockstate.Owner // nil before join if no other call uses it
	waiting context.Context  // ends the wait: ctx, or a child of it with a timeout

	w       *lockstate.Waiter      // nil before it waits in the queue
	t       *lockstate.Acquisition // the acquisition of the latest request; nil before the first request if the queue has a ticket
	request acquireRequest         // the latest
	h       *hold                  // the result

	releasing []*releasing // the releases of this process that were in flight when it began, and that it may overtake
}

// caller is the call that an attempt serves, and the owner in its context. It is set once, without the mutex of a state:
// Value of a context could wait for a goroutine that needs that mutex.
type caller struct {
	ctx    context.Context // the parent of the hold's context
	until  context.Context // the context of the work, if the hold lasts until Unlock; otherwise nil
	number uint64          // of the owner
	call   *call           // nil without an observer
}

// timing is when an attempt began, and how long it may last. Only the goroutine of the attempt uses it.
type timing struct {
	limit     time.Duration // the time limit of a TryLock, or of a Lock with WithWait(0); 0 for a Lock that waits
	began     time.Time
	now       time.Time // the current time, updated after each sleep and each reply
	keptSince time.Time // TryLock: when it was first refused with keptElsewhere; zero if it was not
}

// isTry reports whether the attempt does not wait for other owners.
func (t *timing) isTry() bool { return t.limit > 0 }

// timeLeft returns how much time a TryLock has left; 0 for a Lock.
func (t *timing) timeLeft() time.Duration {
	if !t.isTry() {
		return 0
	}
	return max(t.limit-t.now.Sub(t.began), time.Millisecond)
}

// endsWithin reports whether the time limit of a TryLock passes within d.
func (t *timing) endsWithin(d time.Duration) bool { return t.limit-t.now.Sub(t.began) <= d }

// steps executes steps until the lock is acquired or the attempt fails. A TryLock fails at the first refusal.
func (a *attempt) steps() error {
	pause := retry.Backoff{Most: a.s.Poll}
	if a.isTry() {
		pause.Most = a.s.OpTimeout / 4
	}
	late := 0
	var last error // TryLock: the error of the previous step
	for {
		step, err := a.next()
		if err != nil {
			return cmp.Or(last, a.ended(err))
		}
		switch step.Do {
		case lockstate.Send:
			err = a.send()
		case lockstate.Refuse:
			err = a.refused(step.Kept)
		case lockstate.Fail:
			err = a.s.sender.Explain(cmp.Or(step.Err, error(command.NoReply{After: a.s.OpTimeout})))
		}
		switch {
		case err == nil:
			return nil
		case a.isTry():
			again, before := a.again(err, last, pause.Next())
			if !again {
				return before
			}
			last = before
		case err == errRefused:
			pause.Reset()
			if !a.overtook() && a.call != nil {
				a.tellWaiting()
			}
		case a.endedBeforeReply(err): // the next step returns why. Before the rest, because the cause of the context can match anything
		case errors.As(err, new(tooLate)) && late < 2:
			// Slow replies happen. After three of them the lease is too short for this server.
			late++
			a.restart()
		case !retry.FaultOf(err).Temporary:
			return err
		default:
			a.unanswered(err, pause.Next())
		}
	}
}

// errRefused is the result of a request that was refused.
var errRefused = errors.New("others have the lock")

// refused returns the result of a step that was refused. kept is as in lockstate.Refusal.
func (a *attempt) refused(kept time.Duration) error {
	if a.isTry() && kept > 0 {
		return keptElsewhere{kept}
	}
	return errRefused
}

// next waits until the state has a step for the attempt other than Wait. It executes the step, except that a request is
// sent without the mutex, by send. The error says why the wait ended.
func (a *attempt) next() (lockstate.Step, error) {
	var over error // why the wait ended
	for {
		if a.waiting.Err() != nil { // without the mutex: the context is the caller's
			over = command.ErrOf(a.waiting)
		}
		if a.spec.Sibling != nil { // mutant: always: speed
			a.at.valid(a.owner.Sibling) // checks the lease, which may end the acquisition
		}
		a.at.lock()
		if a.at.state.IsClosed() {
			over = lock.ErrClosed
		}
		if over != nil {
			a.at.unlock()
			return lockstate.Step{}, over
		}
		step := a.at.state.Next(a.w, a.now)
		switch step.Do {
		case lockstate.Send:
			a.prepare(&step)
		case lockstate.Take, lockstate.Join, lockstate.Share:
			a.takes(&step)
		}
		a.at.unlock()
		switch {
		case step.Do == lockstate.Join && a.h == nil:
			_ = acquisitionOf(step.Acquisition).lease.Check() // it has expired, which ends the acquisition
		case step.Do != lockstate.Wait:
			return step, nil
		default:
			if a.call != nil {
				a.tellBehind()
			}
			over = a.sleep(step.Due)
			a.now = time.Now()
		}
	}
}

// takes makes a.h the hold of an acquisition that another call acquired. a.h remains nil if the lease of an acquisition that
// is open to readers has expired. The caller holds the mutex of the state.
func (a *attempt) takes(step *lockstate.Step) {
	switch step.Do {
	case lockstate.Take:
		t := acquisitionOf(step.Acquisition)
		a.h = &t.first
		a.h.init(a.caller, a.spec)
		a.at.state.Add(step.Acquisition, a.owner, &a.h.Hold)
		return
	case lockstate.Join:
		if !acquisitionOf(step.Acquisition).lease.IsTrusted(time.Now()) {
			return
		}
		a.at.state.Admit(a.w, step.Acquisition, a.now)
	}
	a.h = holdOf(a.w.Prepared)
}

// sleep waits until due, or until the waiter is woken or its wait ends. If due is zero, there is no timeout. The error says
// that the context of the wait is canceled.
func (a *attempt) sleep(due time.Time) error {
	var timeout <-chan time.Time
	if !due.IsZero() {
		timer := time.NewTimer(time.Until(due))
		defer timer.Stop() // mutant: removed: memory
		timeout = timer.C
	}
	select {
	case <-a.w.Wake:
	case <-timeout:
	case <-a.waiting.Done():
		return command.ErrOf(a.waiting)
	case <-a.s.sender.Closing():
	}
	return nil
}

// again reports whether a TryLock takes another step after err, and waits for d before it. last is the error of the
// previous step. again also returns an error: last for the next step or, without a next step, the error of the TryLock.
func (a *attempt) again(err, last error, d time.Duration) (bool, error) {
	var kept keptElsewhere
	switch {
	case err == errRefused:
		return a.overtook(), lock.ErrNotAcquired
	case a.endedBeforeReply(err): // before the rest, because the cause of the context can match anything
		return false, cmp.Or(last, err)
	case errors.As(err, &kept):
		return a.retryKept(kept), err
	case errors.As(err, new(command.NoReply)):
		if errors.Is(last, lock.ErrNotAcquired) { // the latest reply
			return false, last
		}
		if last != nil {
			err = fmt.Errorf("%w (before that: %w)", err, last) // the last step may have had no time left
		}
		return false, err
	case !a.s.sender.MayPass(err) || a.endsWithin(d) || a.s.sender.Down(a.waiting, a.timeLeft(), last, err) || !command.Sleep(a.waiting, d):
		return false, err
	}
	a.wakeup()
	return true, err
}

// follow waits until the releases of this process whose Unlock did not wait for them are about to be sent, so that the
// first request rarely overtakes one.
func (a *attempt) follow() {
	for _, r := range a.releasing {
		select {
		case <-r.sent:
		case <-a.waiting.Done():
		case <-a.s.sender.Closing():
		}
		a.now = time.Now()
	}
}

// overtook reports whether a refused request may have overtaken a release of this process that no call waits for. In that
// case it waits for the release, and the attempt sends another request.
func (a *attempt) overtook() bool {
	if len(a.releasing) == 0 {
		return false
	}
	var timeout <-chan time.Time
	if a.isTry() {
		timeout = time.After(a.timeLeft())
	}
	for _, r := range a.releasing {
		select {
		case <-r.done: // for an Unlock, at most one operation timeout after it
		case <-timeout:
			return false // the refusal is the latest reply
		case <-a.waiting.Done():
			return false
		case <-a.s.sender.Closing():
			return false
		}
	}
	a.releasing = nil
	a.wakeup()
	return true
}

// endedBeforeReply reports whether err says only that the wait ended before a reply. A dial that timed out matches
// context.DeadlineExceeded, too, but it says why there was no reply.
func (a *attempt) endedBeforeReply(err error) bool {
	return a.waiting.Err() != nil && (err == command.ErrOf(a.waiting) || errors.As(err, new(command.Canceled)))
}

// unanswered makes the waiter retry after d, or earlier if it is woken. Its request failed with err.
func (a *attempt) unanswered(err error, d time.Duration) {
	over := a.waiting.Err() != nil // without the mutex: the context is the caller's
	a.at.lock()
	a.w.Failed(err)
	if over { // the call retries nothing, so the waiter behind it need not wait for d
		a.at.unlock()
		return
	}
	quiet, _ := a.w.Queue().Outage(a.now, 0)
	a.at.state.Retry(a.w, a.now.Add(d))
	a.at.unlock()
	a.s.reportUnavailable(a.spec, quiet, err)
}

// restart makes the attempt send a request for a new acquisition. It abandons the former one.
func (a *attempt) restart() {
	a.at.lock()
	a.at.state.Restart(a.w, a.t, a.now)
	a.t = a.w.Acquisition
	a.at.unlock()
}

// wakeup makes the waiter send a request now, at any position in the queue.
func (a *attempt) wakeup() {
	a.now = time.Now()
	a.at.lock()
	a.at.state.Wakeup(a.w)
	a.at.unlock()
}

// ended returns the error of an attempt whose wait ended with err between two requests. It is err itself if no reply is
// outstanding and it is not known what the attempt waited for.
func (a *attempt) ended(err error) error {
	s, at, spec := a.s, a.at, a.spec
	if err == lock.ErrClosed {
		return err
	}
	now := time.Now()
	_, late := err.(command.NoReply) // takeTurn timed out
	at.lock()
	defer at.unlock()
	if t := a.owner.Acquisition(); t != nil && !t.Changing().IsZero() { // the owner has the lock, so it waited for Redis
		if d := now.Sub(t.Changing()); late || d >= s.overdue(spec) {
			return s.sender.Unavailable(d, err)
		}
		return command.Canceled{Err: err, For: now.Sub(t.Changing())}
	}
	if d, instead := at.state.Queue(&spec.terms).Outage(now, s.overdue(spec)); d > 0 {
		return s.sender.Unavailable(d, cmp.Or(instead, err))
	}
	switch {
	case late:
		return errAhead
	case at.state.Refuses(&spec.terms) && !spec.NonReentrant && at.state.Excludes(&spec.terms):
		return errHeldHere
	case at.state.Refuses(&spec.terms):
		return lock.ErrNotAcquired
	}
	// mutant: never, always, border: text
	if d, _ := at.state.Queue(&spec.terms).Outage(now, 0); d > 0 { // a request is in flight
		return command.Canceled{Err: err, For: d}
	}
	return err
}

var (
	// errAhead is returned by an attempt that stops waiting behind another call of this process.
	errAhead = fmt.Errorf("%w: another call of this process is ahead", lock.ErrNotAcquired)

	// errHeldHere is returned by an attempt that stops waiting for an owner in this process, as a second Lock without the
	// context of the first hold does.
	errHeldHere = fmt.Errorf("%w: another owner in this process has the lock", lock.ErrNotAcquired)
)

// overdue returns the time after which the reply to a request for spec is overdue.
func (s *Session) overdue(spec *Spec) time.Duration {
	return s.OpTimeout + spec.Config.ReplicaTimeout // which is 0 without replicas
}

// Ahead returns the error of a TryLock by spec if another call of this process waits for the lock. Otherwise it returns
// nil.
func (s *Session) Ahead(spec *Spec) error {
	at, err := s.begin(spec) // no call waits for an invalid spec
	if err != nil {
		return nil // the attempt returns the error
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

// behind returns the error of a TryLock that is queued behind another call of this process.
func (at *entry) behind(spec *Spec) error {
	at.lock()
	defer at.unlock()
	if d, err := at.state.Queue(&spec.terms).Outage(time.Now(), at.s.overdue(spec)); d > 0 {
		return fmt.Errorf("another call of this process is ahead: %w", at.s.sender.Unavailable(d, err))
	}
	return errAhead
}

// tooLate is the error of a grant whose reply arrived after the usable part of the lease had passed.
type tooLate struct{ lease, took time.Duration }

func (e tooLate) Error() string {
	return fmt.Sprintf("granted too late: the reply took %v, the lease is %v", e.took, e.lease)
}

// Final marks the error as permanent: a retry would not help.
func (e tooLate) Final() {}

// Is makes the error match lock.ErrUnavailable: the reply came too late to be used.
func (e tooLate) Is(target error) bool { return target == lock.ErrUnavailable }

// outOfTime is the error of an attempt that timed out after the wait of its spec.
type outOfTime struct {
	limit time.Duration
	last  error // matches lock.ErrNotAcquired or lock.ErrUnavailable
}

func (e outOfTime) Error() string {
	if errors.Is(e.last, lock.ErrNotAcquired) {
		return fmt.Sprintf("%v: waited for %s", e.last, command.Brief(e.limit))
	}
	return fmt.Sprintf("waited for %s: %v", command.Brief(e.limit), e.last)
}

func (e outOfTime) Unwrap() []error { return []error{os.ErrDeadlineExceeded, e.last} }

func (e outOfTime) Timeout() bool { return true }

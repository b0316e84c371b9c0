package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/place"
	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/lock"
)

// attempt is one call for the first hold of one lock, or of several at once: the wait loop.
//
// It asks Redis only when there is a reason to: it never asked, a hint came, the other's
// lease ran out, or a poll interval is over. The place decides when, and which waiter. A hint
// is only a reason to ask, so a lost hint costs a poll.
//
// One goroutine uses an attempt. What other goroutines see of it is the waiter, which the
// mutex of the place guards.
type attempt struct {
	s       *Session
	ctx     context.Context // the holds are under it
	waiting context.Context // ends the wait: ctx, or a part of it
	limit   time.Duration   // how much time a TryLock has; 0 is a Lock
	began   time.Time
	now     time.Time // when it last looked at the clock: as it began, after each sleep, and after each answer
	fresh   bool      // its owner is new, so no other call knows of it

	parts   []part
	one     [1]part       // memory for parts
	current int           // the part in whose line w stands, or about which the error is
	w       *place.Waiter // nil while the attempt stands in no line

	question question // the latest, for one lock
	several           // of an attempt for several locks
}

// part is one lock of an attempt.
type part struct {
	spec  *Spec
	call  *call // nil if nobody observes
	at    *spot
	owner *place.Owner
	t     *tenure // in whose name it asks; nil before its line asks, and after a step that came to nothing
	h     *hold   // the result
}

// run takes steps until all locks are granted, or the attempt ends with an error. A TryLock
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
			// A slow answer can be chance. After three of them the lease is too short
			// for this server.
			late++
			_ = a.giveUp(err)
			a.anew()
			a.prompt()
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

// step waits until there is something to do, and does it. It returns nil when all locks are
// held.
func (a *attempt) step() error {
	p := &a.parts[a.current]
	step, err := a.next(p)
	if err != nil {
		if a.limit == 0 {
			err = a.ended(err)
		} // a TryLock ends with the first reply, so it has none
		return waitOver{err}
	}
	switch step.Do {
	case place.Anew:
		a.anew()
		a.prompt()
		return errAgain
	case place.Take:
		return a.accept(p, tenureOf(step.Tenure))
	case place.Join:
		if p.h = a.s.join(a.ctx, p.at, tenureOf(step.Tenure), p.owner.Number); p.h == nil {
			return errAgain
		}
		a.cameIn(p)
		return nil
	case place.Share:
		p.h = step.Hold.Of.(*hold)
		a.cameIn(p)
		return nil
	case place.Refuse:
		p.at.lock()
		p.at.place.Waits(a.w, place.Refusal{Sent: step.Sent, Left: step.Left}, a.now)
		p.at.unlock()
		return errRefused
	case place.Fail:
		return a.s.sender.Explain(cmp.Or(step.Err, error(command.NoAnswer{After: a.s.OpTimeout})))
	}
	if a.script != nil {
		return a.askAll()
	}
	return a.ask(p)
}

// cameIn ends what the attempt asked for p before another reader let it in.
func (a *attempt) cameIn(p *part) {
	p.at.lock()
	p.at.place.CameIn(a.w, a.now)
	p.at.unlock()
	_ = a.giveUp(nil)
}

// next waits until the place has something for p to do.
func (a *attempt) next(p *part) (place.Step, error) {
	for {
		if a.s.isClosing() {
			return place.Step{}, lock.ErrClosed
		}
		if err := a.waiting.Err(); err != nil {
			return place.Step{}, err
		}
		if a.w == nil {
			return place.Step{Do: place.Ask}, nil
		}
		p.at.beside(p.owner, p.spec) // this very look may find that it is lost
		p.at.lock()
		beside := p.owner.Beside() // with the mutex: an owner that comes to write now gives the waiter its next reason to ask
		step := p.at.place.Next(a.w, beside, cmp.Or(a.timeLeft(), a.s.OpTimeout), a.now)
		switch step.Do {
		case place.Ask:
			if a.script == nil {
				a.prepare(p, &step)
			}
		case place.Take:
			tenureOf(step.Tenure).first.init(a.ctx, false)
		}
		p.at.unlock()
		if step.Do != place.Wait {
			return step, nil
		}
		a.tellBehind(p)
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
	case errors.As(err, new(command.NoAnswer)):
		if last != nil {
			err = fmt.Errorf("%w (before that: %w)", err, last) // the last step may have had no time left
		}
		return false, err
	case !a.s.sender.MayPass(err) || a.limit-a.now.Sub(a.began) <= d || a.s.sender.Down(a.waiting, a.timeLeft(), last, err) || !command.Rest(a.waiting, d):
		return false, err
	}
	a.now = time.Now()
	a.prompt()
	return true, err
}

// unanswered has the waiter ask again when d has passed, or when there is a reason before: err
// came instead of an answer.
func (a *attempt) unanswered(err error, d time.Duration) {
	over := a.waiting.Err() // the next step says so
	if a.w == nil {
		a.stand(a.current, a.sent)
	}
	p := &a.parts[a.current]
	if over != nil {
		if err != over { // the question failed before the wait ended
			p.at.lock()
			a.w.Silent(err)
			p.at.unlock()
		}
		return
	}
	p.at.lock()
	a.w.Silent(err)
	quiet, _ := a.w.Line().Silence().Lasts(a.now, 0)
	p.at.place.Retry(a.w, a.now.Add(d))
	leads := a.w.Leads()
	p.at.unlock()
	if leads || a.script == nil {
		a.s.silent(p.spec, quiet, err)
	} else {
		// The waiter ahead would be refused by what the lost question may have taken.
		_ = a.giveUp(err)
		a.anew()
	}
}

// accept adds a hold of t, which the waiter took.
func (a *attempt) accept(p *part, t *tenure) error {
	h := &t.first
	p.at.lock()
	held := p.at.place.Add(&t.Tenure, p.owner, &h.Hold)
	closed := t.Phase() == place.Closed
	p.at.unlock()
	switch {
	case held:
		p.h = h
		return nil
	case closed:
		return command.Final{Err: lock.ErrClosed}
	default:
		a.anew() // lost on the way
		if !p.spec.terms.Tickets() {
			a.prompt()
		}
		return errAgain
	}
}

// stand has the attempt stand in line for the lock of part i, and in no other. Its latest
// question was sent at sent; zero if it has not asked.
func (a *attempt) stand(i int, sent time.Time) {
	a.quit()
	a.current = i
	p := &a.parts[i]
	p.at.lock()
	a.w = p.at.waiter(p, false)
	p.at.place.Join(a.w, place.Stay(a.script == nil), a.now)
	if !sent.IsZero() {
		a.w.AskedAt(sent)
	}
	p.at.unlock()
}

// waiter returns a waiter for p, with memory of the place's if there is some to be had. The
// caller has the mutex of the place.
func (at *spot) waiter(p *part, once bool) *place.Waiter {
	w := at.place.Waiter(&p.spec.terms, once)
	if w.Wake == nil {
		w.Wake = make(chan struct{}, 1)
	}
	w.Terms, w.Owner, w.Tells = &p.spec.terms, p.owner, p.call != nil
	return w
}

// quit has the attempt leave its line.
func (a *attempt) quit() {
	if a.w == nil {
		return
	}
	p := &a.parts[a.current]
	p.at.lock()
	p.at.place.Quit(a.w, a.now)
	p.at.unlock()
	a.w = nil
}

// giveUp ends what the attempt asks for in Redis, for good, or until the next waiter of the
// line goes on with it. The attempt itself may go on, with new tenures, or have a hold by
// another reader's question: then it has no use for what it asked before. It returns err.
func (a *attempt) giveUp(err error) error {
	for i := range a.parts {
		p := &a.parts[i]
		var t *place.Tenure
		if p.t != nil {
			t = &p.t.Tenure
		}
		var seat *place.Hold
		p.at.lock()
		if a.w != nil && i == a.current {
			seat = p.at.place.GiveUp(a.w, t)
		} else if t != nil {
			p.at.place.Fail(t)
		}
		p.at.unlock()
		if seat != nil {
			h := seat.Of.(*hold) // another's question let it in as the wait ended
			s := a.s
			s.sender.Go(func() { _ = s.unlock(context.Background(), h) })
		}
	}
	return err
}

// anew makes the tenures in whose names the attempt asks next.
func (a *attempt) anew() {
	for i := range a.parts {
		p := &a.parts[i]
		p.t = nil
		p.at.lock()
		if a.script != nil {
			p.t = p.at.newTenure(p.spec, a.now)
		} else {
			a.ownTenure(p)
		}
		p.at.unlock()
	}
}

// prompt gives the waiter a reason to ask, wherever it stands.
func (a *attempt) prompt() {
	if a.w == nil {
		return // it asks without one
	}
	p := &a.parts[a.current]
	p.at.lock()
	p.at.place.Prompt(a.w)
	p.at.unlock()
}

// ended returns the error of an attempt whose wait err ended, between two questions.
func (a *attempt) ended(err error) error {
	p := &a.parts[a.current]
	return a.s.ended(p.at, p.owner, p.spec, err)
}

// ended returns the error of a call for o whose wait err ended: err itself if nothing is known of the lock.
func (s *Session) ended(at *spot, o *place.Owner, spec *Spec, err error) error {
	if err == lock.ErrClosed {
		return err
	}
	now := time.Now()
	_, late := err.(command.NoAnswer) // takeTurn gave up
	at.lock()
	defer at.unlock()
	if t := o.Tenure(); t != nil && !t.Changing().IsZero() { // the owner has the lock, so it waited only for Redis
		if d := now.Sub(t.Changing()); late || d >= s.overdue(spec) {
			return s.sender.Silent(d, err)
		}
		return err
	}
	if d, instead := at.place.Line(&spec.terms).Silence().Lasts(now, s.overdue(spec)); d > 0 {
		return s.sender.Silent(d, cmp.Or(instead, err))
	}
	switch {
	case late:
		return errAhead
	case at.place.Refuses(&spec.terms):
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

// overdue returns after how long a question for spec must have been answered.
func (s *Session) overdue(spec *Spec) time.Duration {
	if spec.terms.Replicas {
		return s.OpTimeout + spec.Config.ReplicaTimeout
	}
	return s.OpTimeout
}

// behind returns the error of a TryLock that stands behind another call of this process.
func (at *spot) behind(spec *Spec) error {
	at.lock()
	defer at.unlock()
	if d, err := at.place.Line(&spec.terms).Silence().Lasts(time.Now(), at.s.overdue(spec)); d > 0 {
		return fmt.Errorf("another call of this process is ahead: %w", at.s.sender.Silent(d, err))
	}
	return errAhead
}

// tooLate is the error of a grant whose answer took as long as the lease is trusted.
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
		return fmt.Sprintf("%v: waited for %v", lock.ErrNotAcquired, e.limit)
	}
	return fmt.Sprintf("waited for %v: %v", e.limit, e.last)
}

// Unwrap returns what the error matches.
func (e outOfTime) Unwrap() []error { return []error{os.ErrDeadlineExceeded, e.last} }

func (e outOfTime) Timeout() bool { return true }

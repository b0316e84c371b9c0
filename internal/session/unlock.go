package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/place"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/leasehold-go/leasehold/watchdog"
)

// unlock gives h back.
func (s *Session) unlock(ctx context.Context, h *hold) error {
	began := time.Now()
	h.look(began) // a lease that ran out is lost, whichever goroutine looks first
	if err := notHeld(h.endAt(lock.ErrUnlocked, began)); err != nil {
		return err
	}
	err := s.unlockEnded(ctx, h, began)
	if err != nil && !errors.Is(err, lock.ErrNotHeld) {
		err = s.sender.Failed(ctx, began, err)
	}
	s.tellGivenBack(h, err)
	return err
}

// unlockEnded gives h back, which an Unlock has ended now.
func (s *Session) unlockEnded(ctx context.Context, h *hold, now time.Time) error {
	t := h.tenure()
	if t.Turn != nil && t.drop(h) { // other readers share it
		return nil
	}
	at, err := s.begin(t.spec)
	if err != nil {
		return fmt.Errorf("%w: %w", lock.ErrNotHeld, err) // Close gives it back
	}
	defer s.done(at)

	// A caller that defers an Unlock means it, also when ctx has ended by then.
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	switch remains, passed := t.remove(h, now); {
	case passed:
		s.tellHandedOff(h)
		return nil
	case remains == place.SharersHold: // others came to share it after drop looked
		return nil
	case remains == place.NobodyHolds:
		return s.release(ctx, t, now)
	default:
		return s.reduce(ctx, t, h.By)
	}
}

// drop gives h back without a command, if the count in Redis stays the same. It reports
// whether it did.
func (t *tenure) drop(h *hold) bool {
	t.at.lock()
	defer t.at.unlock()
	return t.at.place.Drop(&t.Tenure, &h.Hold)
}

// remove takes h out of t. It returns what is left of t, and whether the lock was passed on to
// the next waiter of this process.
func (t *tenure) remove(h *hold, now time.Time) (remains place.Remains, passed bool) {
	t.at.lock()
	defer t.at.unlock()
	return t.at.place.Unlock(&t.Tenure, &h.Hold, now, pass)
}

// pass passes the lock of a tenure on to a next one, which gets its lease. It reports false if
// too little of the lease is left, or the watchdog does not renew it. Place.Unlock calls it,
// with the mutex of the place held.
func pass(of *place.Tenure) bool {
	t := tenureOf(of)
	if t.rest() > 0 {
		return false
	}
	next := &tenure{s: t.s, at: t.at, spec: t.spec, lease: t.lease}
	next.Of = next
	next.Follows(of) // before the watchdog knows it
	if !t.lease.Hand(next, t.s.offer(t.spec)/3) {
		return false
	}
	t.at.place.PassTo(of, &next.Tenure)
	return true
}

// release is the command that gives a tenure back that is over, perhaps in favour of another.
type release struct {
	t        *tenure
	register string // of the tokens; "" without fencing
	pass     luascripts.Pass
	heir     *tenure // the ticket of the line in this process; nil if the release names no heir
}

// released is the answer to a release that was sent then.
type released struct {
	luascripts.Passed
	sent time.Time
}

// Send sends the release.
func (f release) Send(ctx context.Context) (r released, err error) {
	t, keys := f.t, f.t.spec.Keys
	keys.Register = f.register
	r.sent = time.Now()
	r.Passed, err = t.spec.free(ctx, t.s.rdb, keys, t.Name, f.pass)
	return r, err
}

// Joins reports whether the release travels with others: it names no heir.
func (f release) Joins() (node uint16, joins bool) {
	if f.heir != nil {
		return 0, false
	}
	return f.t.s.joins(f.t.spec)
}

// Fill fills in the change.
func (f release) Fill(c *luascripts.Change) {
	f.t.spec.fill(c, luascripts.Question{Owner: f.t.Name})
	c.Gives = true
}

// Answer returns the answer to the change.
func (f release) Answer(c *luascripts.Change) (released, error) {
	return released{Passed: c.Passed}, c.Err
}

// Late goes on until Redis confirms that the lock is given back.
func (f release) Late(_ released, err error) {
	f.t.s.settle(f.t, err != nil || f.t.isUnsure())
}

// release gives a tenure that is over back to Redis, in favour of the next waiter if the kind
// passes locks on. It fails with ErrNotHeld and ErrLost when Redis has no hold of the tenure,
// and with what went wrong when Redis did not confirm; then the settler goes on.
//
// The caller has looked at the clock just now.
func (s *Session) release(ctx context.Context, t *tenure, now time.Time) error {
	began := now
	if _, under := t.lease.End(); under != nil { // no renewal may follow the release
		select {
		case <-under:
		case <-ctx.Done():
		}
		now = time.Now()
	}
	within := max(s.OpTimeout-now.Sub(began), 10*time.Millisecond)
	if t.retains() {
		return s.retain(ctx, t, within)
	}
	f := t.newRelease(now)
	o := command.Insist[released](ctx, s.sender, now, within, f)
	if f.heir != nil {
		s.inherit(f, o.Value, o.Err)
	}
	confirmed := o.Answered && o.Err == nil
	unsure, settled := t.afterRelease(confirmed && f.heir == nil, o.Value.Aside)
	switch {
	case !o.Answered:
		return o.Err
	case o.Err != nil:
		s.sender.Go(func() { s.settle(t, true) })
		return o.Err
	case unsure:
		// A question for this tenure broke off, and may be carried out yet.
		s.sender.Go(func() { s.settle(t, true) })
	}
	// Gone at a repetition: the first copy was carried out, and its reply was lost.
	if v := o.Value.Verdict; v == luascripts.Done || v == luascripts.Gone && (o.Repeated || settled) {
		return nil
	}
	return fmt.Errorf("%w: %w: %w", lock.ErrNotHeld, lock.ErrLost, s.gone(t, o.Value.Verdict))
}

// newRelease returns the release of t, in favour of the line in this process if there is one.
func (t *tenure) newRelease(now time.Time) release {
	s := t.s
	f := release{t: t, register: t.spec.Keys.Register, pass: luascripts.Pass{Last: t.Token(), Spare: t.spec.spare()}}
	if !t.Terms.Passes {
		return f
	}
	t.at.lock()
	defer t.at.unlock()
	if !t.Terms.Tickets() {
		f.pass.Served, f.pass.Offer = t.Served(), s.Lease
		if _, heir := t.at.place.Heir(&t.Tenure, s.Lease, 0, now); heir != nil {
			f.heir, f.pass.Heir = tenureOf(heir), heir.Name
		}
		return f
	}
	w, heir := t.at.place.Heir(&t.Tenure, s.offer(t.spec), s.patience(), now)
	if w == nil {
		return f
	}
	spec := w.Terms.Of.(*Spec)
	f.heir = tenureOf(heir)
	f.pass.Heir, f.pass.Offer, f.pass.Again, f.pass.WaiterTimeout = heir.Name, s.offer(spec), w.Line().Pace(), s.patience()
	if r := spec.Keys.Register; r != "" {
		f.register, f.pass.Spare = r, place.MaxPasses
	}
	t.at.listenEarly(w.Line(), spec)
	return f
}

// inherit tells the place what became of a release in favour of its line.
func (s *Session) inherit(f release, r released, err error) {
	i := place.Inheritance{Broke: err != nil, Done: err == nil && r.Verdict == luascripts.Done, Token: r.Token, Sent: r.sent}
	now := time.Now()
	if r.Aside {
		i.Aside = now.Add(asideTime)
	}
	offer := f.pass.Offer
	i.Late = now.Sub(r.sent) > watchdog.Trusted(offer)-offer/3
	heir := f.heir
	heir.at.lock()
	defer heir.at.unlock()
	if heir.at.place.Inherit(&heir.Tenure, i, now) {
		heir.lease = s.dog.WatchIn(&heir.own, heir, r.sent, offer, true)
		heir.at.place.Follow(&heir.Tenure, r.Next, len(s.id)+1)
	}
}

// afterRelease tells the waiters here that the lock is not t's any more, and whether it is free;
// aside says that others come first then. It reports whether t is in doubt all the same,
// and whether settling may have released it before.
func (t *tenure) afterRelease(free, aside bool) (unsure, settled bool) {
	t.at.lock()
	defer t.at.unlock()
	if free && aside {
		t.at.place.LetGo(t.Terms, time.Now().Add(asideTime)) // before any waiter can ask
	}
	t.at.place.Unhold(&t.Tenure)
	if free {
		t.at.place.Free(t.Terms)
	}
	return t.Unsure(), t.Freed()
}

// reduction is the command that leaves some holds of a tenure: a command.Call.
type reduction struct {
	t     *tenure
	holds int
	turn  chan struct{} // which the call has
}

// Send sends the command.
func (r reduction) Send(ctx context.Context) (luascripts.Verdict, error) {
	return r.t.spec.Release(ctx, r.t.s.rdb, r.t.spec.Keys, r.t.Name, r.holds)
}

// Joins reports whether the command travels with others.
func (r reduction) Joins() (node uint16, joins bool) { return r.t.s.joins(r.t.spec) }

// Fill fills in the change.
func (r reduction) Fill(c *luascripts.Change) {
	r.t.spec.fill(c, luascripts.Question{Owner: r.t.Name, Want: r.holds})
	c.Gives = true
}

// Answer returns the answer to the change.
func (r reduction) Answer(c *luascripts.Change) (luascripts.Verdict, error) {
	return c.Passed.Verdict, c.Err
}

// Late lets go of the turn.
func (r reduction) Late(_ luascripts.Verdict, err error) {
	r.t.settled()
	<-r.turn
	if err != nil {
		r.t.s.settle(r.t, true)
	}
}

// reduce tells Redis that o has one hold less of t, which others hold on to.
func (s *Session) reduce(ctx context.Context, t *tenure, o *place.Owner) error {
	turn := t.turn(o)
	began := time.Now()
	if err := s.takeTurn(ctx, turn, s.OpTimeout); err != nil {
		if phase := t.phase(); !phase.Lives() {
			return reducedAfter(phase)
		}
		s.sender.Go(func() { s.settle(t, false) })
		return err
	}
	t.at.lock()
	holds, phase := t.WillChange(time.Now()), t.Phase()
	t.at.unlock()
	if !phase.Lives() {
		<-turn
		return reducedAfter(phase)
	}
	now := time.Now()
	within := max(s.OpTimeout-now.Sub(began), 10*time.Millisecond)
	r := command.Insist[luascripts.Verdict](ctx, s.sender, now, within, reduction{t, holds, turn})
	if !r.Answered {
		return r.Err
	}
	defer func() { <-turn }()
	switch {
	case r.Err != nil:
		s.sender.Go(func() { s.settle(t, true) })
		return r.Err
	case r.Value == luascripts.Done:
		t.count(holds)
		return nil
	case !t.isLive():
		return nil
	}
	cause := s.gone(t, luascripts.Gone)
	t.lease.Lose(cause)
	return fmt.Errorf("%w: %w: %w", lock.ErrNotHeld, lock.ErrLost, cause)
}

// reducedAfter returns the error of an Unlock whose tenure ended before Redis was told of the
// Unlock. What ended the tenure released all holds. If that was a loss, the Unlock failed.
func reducedAfter(phase place.Phase) error {
	if phase == place.Lost {
		return fmt.Errorf("%w: %w", lock.ErrNotHeld, lock.ErrLost)
	}
	return nil
}

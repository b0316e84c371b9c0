package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/lockstate"
	"github.com/leasehold-go/leasehold/internal/mask"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/leasehold-go/leasehold/watchdog"
)

// unlock releases h. If wait is false, it does not wait for replies: see unlockLater.
func (s *Session) unlock(ctx context.Context, h *hold, wait bool) error {
	now := time.Now()
	h.check(now) // an expired lease is lost even if the watchdog has not detected it yet
	if before := h.endAt(lock.ErrUnlocked, now); before != nil {
		return notHeld(before)
	}
	return s.unlockEnded(ctx, h, now, wait)
}

// unlockEnded releases h, which unlock has just ended.
func (s *Session) unlockEnded(ctx context.Context, h *hold, now time.Time, wait bool) error {
	t := h.acquisition()
	at, err := s.begin(t.spec)
	if err != nil { // Close releases it
		return s.unlocked(ctx, h, now, fmt.Errorf("%w: %w", lock.ErrNotHeld, err))
	}
	if ctx.Err() != nil { // a deferred Unlock must release the lock even if ctx is already canceled
		ctx = context.WithoutCancel(ctx)
	}
	t.at.lock()
	remains := t.remove(h, now)
	t.at.unlock()
	if remains.ChangesRedis() {
		if !wait {
			s.unlockLater(ctx, at, h, remains)
			return nil
		}
		return s.unlocked(ctx, h, now, s.sendUnlock(ctx, at, h, remains, now, nil))
	}
	s.done(at)
	switch {
	case remains == lockstate.NotThere: // it ended after unlock checked it
		err = reducedAfter(locked(t.at, t.Phase))
	case s.Observer == nil:
	case remains == lockstate.ProcessKeeps:
		h.tell(s.Observer.Kept, lock.Event{})
	case remains == lockstate.NextHolds:
		h.tell(s.Observer.HandedOff, lock.Event{})
	}
	return s.unlocked(ctx, h, now, err)
}

// unlocked notifies the observer of the result of releasing h, and returns it.
func (s *Session) unlocked(ctx context.Context, h *hold, began time.Time, err error) error {
	err = s.holdFailed(ctx, began, err)
	if s.Observer != nil { // mutant: always: speed
		s.tellEnd(h, err)
	}
	return err
}

// holdFailed returns the error of a call on a hold that began at began and failed with err. ctx is the context of the call.
func (s *Session) holdFailed(ctx context.Context, began time.Time, err error) error {
	if err == nil || errors.Is(err, lock.ErrNotHeld) { // mutant: operand 1: speed
		return err
	}
	return ofOthers(s.sender.Failed(ctx, began, err))
}

// ofOthers returns the error of a call on a hold that has not ended. The call can fail because its context is canceled, with
// the loss of another lock as the cause.
func ofOthers(err error) error { return mask.Error(err, lock.ErrNotHeld, lock.ErrLost) }

// sendUnlock sends the command for h; remains says who then has the lock. It calls done. r is nil if Unlock waits.
func (s *Session) sendUnlock(ctx context.Context, at *entry, h *hold, remains lockstate.Remains, now time.Time, r *releasing) error {
	defer s.done(at)
	if remains == lockstate.NobodyHolds {
		return s.release(ctx, h.acquisition(), now, r)
	}
	r.markSent()
	return s.reduce(ctx, h.acquisition(), h.By)
}

// unlockLater is sendUnlock in a goroutine, which Close waits for: lock.WithAsyncUnlock. It calls done. The observer and
// the log report what Unlock would have returned.
//
// If the next acquisition in this process is in the queue before the release is sent, the release can grant it the lock.
// Otherwise its request comes after the release: see attempt.follow. If its request overtakes the release anyway,
// a refusal counts only after the outcome of the release is known: see attempt.overtook.
func (s *Session) unlockLater(ctx context.Context, at *entry, h *hold, remains lockstate.Remains) {
	ctx = context.WithoutCancel(ctx)
	r := newReleasing()
	at.lock()
	at.releasing = append(at.releasing, r)
	at.unlock()
	s.sender.Go(func() {
		began := time.Now()
		err := func() error {
			defer at.released(r)
			return s.sendUnlock(ctx, at, h, remains, began, r)
		}()
		if err := s.unlocked(ctx, h, began, err); err != nil {
			s.report.unlockFailed(h, err)
		}
	})
}

// releasing is a release in flight that no call waits for: its Unlock has returned, or it removes what an ended wait has left
// in Redis.
type releasing struct {
	once sync.Once     // closes sent
	sent chan struct{} // closed when the release is about to be sent
	done chan struct{} // closed when it ended: it was confirmed, or the reconciler repeats it
}

func newReleasing() *releasing {
	return &releasing{sent: make(chan struct{}), done: make(chan struct{})}
}

// markSent closes sent. r is nil if Unlock waits for the release.
func (r *releasing) markSent() {
	if r != nil {
		r.once.Do(func() { close(r.sent) })
	}
}

// released ends r.
func (at *entry) released(r *releasing) {
	at.lock()
	defer at.unlock()
	at.releasing = slices.DeleteFunc(at.releasing, func(other *releasing) bool { return other == r })
	close(r.done)
}

// willRemove records that t may be in Redis, although no call waits for it, until a command removes it. The caller holds the
// mutex of the state.
func (at *entry) willRemove(t *acquisition) {
	if at.removing[t] != nil {
		return
	}
	if at.removing == nil {
		at.removing = make(map[*acquisition]*releasing)
	}
	r := newReleasing()
	r.markSent()
	at.removing[t] = r
}

// removed records that a command to remove t has ended, or that there is nothing to remove. After a request in flight there
// may be another command.
func (at *entry) removed(t *acquisition) {
	at.lock()
	defer at.unlock()
	if r := at.removing[t]; r != nil && !t.InFlight() {
		close(r.done)
		delete(at.removing, t)
	}
}

// remove removes h from t, as lockstate.Lock.Unlock does. The caller holds the mutex of the state.
func (t *acquisition) remove(h *hold, now time.Time) lockstate.Remains {
	if t.Lingers() && !t.at.listens() { // mutant: operand 1: a lock that does not linger is not kept
		t.at.state.Wanted(false) // notifications may be lost from now on
	}
	return t.at.state.Unlock(&t.Acquisition, &h.Hold, now, handOff)
}

// handOff hands off the lock and its lease to a new acquisition in this process. It returns false if too little of the lease
// remains or the watchdog does not renew it. lockstate.Lock.Unlock calls it with the mutex of the state held.
func handOff(of *lockstate.Acquisition) bool {
	t := acquisitionOf(of)
	if t.retains() || !t.hasToken() {
		return false
	}
	next := &acquisition{at: t.at, spec: t.spec, lease: t.lease}
	next.Of = next
	next.Follows(of) // before it is passed to the watchdog
	if !t.lease.Hand(next, t.at.s.offer(t.spec)/3) {
		return false
	}
	t.at.state.HandOffTo(of, &next.Acquisition)
	return true
}

// releaseRequest is the command that releases an ended acquisition. It can hand off the lock to a next owner.
type releaseRequest struct {
	t            *acquisition
	tokenCounter string // the key of the token counter; "" without fencing
	release      luascripts.Release
	next         *acquisition // the ticket of the queue in this process; nil if the release names no next owner
	releasing    *releasing   // nil if the caller waits for the release
}

// Send sends the release.
func (f releaseRequest) Send(ctx context.Context) (luascripts.Released, error) {
	t, keys := f.t, f.t.spec.Keys
	keys.TokenCounter = f.tokenCounter
	f.releasing.markSent()
	return t.spec.free(ctx, t.at.s.rdb, keys, t.Name, f.release)
}

// Batch fills in the change. A release with a next owner is not batched.
func (f releaseRequest) Batch(c *luascripts.Change) func(*luascripts.Change) luascripts.Released {
	if f.next != nil || !f.t.spec.Batches {
		return nil
	}
	f.releasing.markSent()
	f.t.spec.encode(c, luascripts.Request{Owner: f.t.Name})
	c.IsRelease = true
	return func(c *luascripts.Change) luascripts.Released { return c.Released }
}

// Late reconciles the acquisition if Redis did not confirm the release.
func (f releaseRequest) Late(_ luascripts.Released, err error) {
	// mutant: operand 1: a second copy of a release does nothing
	f.t.at.s.reconcile(f.t, err != nil || locked(f.t.at, f.t.unsure))
}

// release releases an ended acquisition in Redis. If the kind supports hand-off, the lock goes to the next waiter.
// It returns ErrNotHeld and ErrLost if Redis has no hold of the acquisition. If Redis does not confirm, it returns the
// error, and the reconciler continues.
//
// now is the current time. r is nil if the caller waits for the release.
func (s *Session) release(ctx context.Context, t *acquisition, now time.Time, r *releasing) error {
	began := now
	if _, under := t.lease.End(); under != nil { // no renewal may follow the release
		select {
		case <-under:
		case <-ctx.Done():
		case <-time.After(s.OpTimeout): // the observer blocks the renewal, perhaps by waiting for this release
		}
		t.markLate() // the watchdog does not report its outcome any more
		now = time.Now()
	}
	within := max(s.OpTimeout-now.Sub(began), 10*time.Millisecond)
	f, retains := t.newRelease(now)
	if f.releasing = r; retains {
		r.markSent()
		o := command.SendWithRetry[luascripts.Released](ctx, s.sender, within, retainRequest{t: t})
		return s.afterRelease(t, o, false)
	}
	o := command.SendWithRetry[luascripts.Released](ctx, s.sender, within, f)
	if f.next != nil {
		s.onRelease(f, now, o.Value, o.Err)
	}
	// mutant: operand 1, operand 2, operand 3: speed
	return s.afterRelease(t, o, o.Answered && o.Err == nil && f.next == nil)
}

// afterRelease records that t no longer has the lock, and wakes the waiters of this process if the lock is free. It returns
// the error of the release whose outcome is o.
func (s *Session) afterRelease(t *acquisition, o command.Outcome[luascripts.Released], free bool) error {
	t.at.lock()
	// mutant: operand 1: speed
	if free && (o.Value.Aside || t.at.keeper != nil && t.at.state.YieldsAfter(&t.Acquisition, o.Value.Listeners, time.Now())) {
		t.at.state.YieldUntil(t.Terms, time.Now().Add(asideTime)) // before any waiter can send a request
	}
	t.at.state.NoLongerHeld(&t.Acquisition)
	if free {
		t.at.state.Free(t.Terms)
	}
	uncertain, reconciled := t.unsure(), t.MaybeReleased()
	t.at.dropKeeper()
	t.at.unlock()
	switch {
	case !o.Answered:
		return o.Err
	case o.Err != nil:
		s.sender.Go(func() { s.reconcile(t, true) })
		return o.Err
	case uncertain:
		// A request for this acquisition has an unknown outcome and may still be executed. After a retention, it would
		// keep the lock for a full lease.
		s.sender.Go(func() { s.reconcile(t, true) })
	}
	// Gone after a repetition: the first copy was executed, and its reply was lost. A retained lock has expired since.
	if v := o.Value.Verdict; v == luascripts.Done || v == luascripts.Gone && (o.Repeated || reconciled) {
		return nil
	}
	return fmt.Errorf("%w: %w", lock.ErrNotHeld, loss{s.gone(t, o.Value.Verdict)})
}

// newRelease returns the release of t. The next owner is the queue in this process, if there is one. retains reports
// that the lock must stay locked for its minimum hold time instead.
func (t *acquisition) newRelease(now time.Time) (f releaseRequest, retains bool) {
	t.at.lock()
	defer t.at.unlock()
	if t.retains() {
		return f, true
	}
	s := t.at.s
	f = releaseRequest{t: t, tokenCounter: t.spec.Keys.TokenCounter, release: luascripts.Release{Last: t.Token(), Spare: MaxSpare}}
	if !t.Terms.HandsOff {
		return f, false
	}
	if !t.Terms.Tickets() {
		f.release.Served, f.release.Offer = t.Served(), s.Lease
		if _, nextOwner := t.at.state.NextOwner(&t.Acquisition, s.Lease, 0, now); nextOwner != nil {
			f.next, f.release.NextOwner = acquisitionOf(nextOwner), nextOwner.Name
		}
		return f, false
	}
	w, nextOwner := t.at.state.NextOwner(&t.Acquisition, s.offer(t.spec), s.queueTTL(), now)
	if w == nil {
		return f, false
	}
	spec := specOf(w.Terms)
	f.next = acquisitionOf(nextOwner)
	f.release.NextOwner, f.release.Offer, f.release.RetryAfter, f.release.WaiterTimeout = nextOwner.Name, s.offer(spec), w.Queue().PollInterval(), s.queueTTL()
	f.tokenCounter = spec.Keys.TokenCounter
	t.at.subscribeEarly(w.Queue(), spec)
	return f, false
}

// onRelease reports to the state the result of a release with a next owner. sent is when its first copy was sent.
func (s *Session) onRelease(f releaseRequest, sent time.Time, r luascripts.Released, err error) {
	i := lockstate.ReleaseResult{Broke: err != nil, Done: r.Verdict == luascripts.Done, Token: r.Token, Sent: sent}
	now := time.Now()
	if r.Aside {
		i.Aside = now.Add(asideTime)
	}
	offer := f.release.Offer
	i.Late = now.Sub(sent) > watchdog.Trusted(offer)-offer/3 // mutant: border: a nanosecond
	next := f.next
	next.at.lock()
	defer next.at.unlock()
	if next.at.state.OnRelease(&next.Acquisition, i, now) {
		next.lease = s.dog.WatchIn(&next.own, next, sent, offer, true)
		next.at.state.Follow(&next.Acquisition, r.Next, len(s.id)+1)
	}
}

// reduceRequest is the command that sets the number of holds of a live acquisition. It implements command.Call.
type reduceRequest struct {
	t     *acquisition
	holds int
	turn  chan struct{} // the turn of the call; Late releases it
}

// Send sends the command.
func (r reduceRequest) Send(ctx context.Context) (luascripts.Verdict, error) {
	return r.t.spec.Release(ctx, r.t.at.s.rdb, r.t.spec.Keys, r.t.Name, r.holds)
}

// Batch fills in the change.
func (r reduceRequest) Batch(c *luascripts.Change) func(*luascripts.Change) luascripts.Verdict {
	if !r.t.spec.Batches { // mutant: always: speed
		return nil
	}
	r.t.spec.encode(c, luascripts.Request{Owner: r.t.Name, Want: r.holds})
	c.IsRelease = true
	return func(c *luascripts.Change) luascripts.Verdict { return c.Released.Verdict }
}

// Late releases the turn, and reconciles the acquisition after an error.
func (r reduceRequest) Late(_ luascripts.Verdict, err error) {
	r.t.at.lock()
	r.t.ChangeDone()
	r.t.at.unlock()
	<-r.turn
	if err != nil { // mutant: always: speed
		r.t.at.s.reconcile(r.t, true)
	}
}

// reduce removes one hold of o from the count of t in Redis. Other holds of t remain.
func (s *Session) reduce(ctx context.Context, t *acquisition, o *lockstate.Owner) error {
	turn := t.turn(o)
	began := time.Now()
	if err := s.takeTurn(ctx, turn, s.OpTimeout, locked(t.at, t.Ended)); err != nil {
		if phase := locked(t.at, t.Phase); !phase.Lives() {
			return reducedAfter(phase)
		}
		s.sender.Go(func() { s.reconcile(t, false) })
		return err
	}
	t.at.lock()
	holds, phase := t.WillChange(time.Now()), t.Phase()
	t.at.unlock()
	if !phase.Lives() { // mutant: never: speed
		<-turn
		return reducedAfter(phase)
	}
	within := max(s.OpTimeout-time.Since(began), 10*time.Millisecond)
	r := command.SendWithRetry[luascripts.Verdict](ctx, s.sender, within, reduceRequest{t, holds, turn})
	if !r.Answered {
		return r.Err
	}
	defer func() { <-turn }()
	switch {
	case r.Err != nil:
		s.sender.Go(func() { s.reconcile(t, true) })
		return r.Err
	case r.Value == luascripts.Done:
		t.at.lock()
		t.Count(holds)
		t.at.unlock()
		return nil
	}
	if phase := locked(t.at, t.Phase); !phase.Lives() {
		return reducedAfter(phase)
	}
	cause := s.gone(t, luascripts.Gone)
	t.lease.Lose(cause)
	return fmt.Errorf("%w: %w", lock.ErrNotHeld, loss{cause})
}

// reducedAfter returns the error of an Unlock whose acquisition ended before its command was executed. The end released all
// holds, so the Unlock failed only if the acquisition was lost.
func reducedAfter(phase lockstate.Phase) error {
	if phase == lockstate.Lost {
		return fmt.Errorf("%w: %w", lock.ErrNotHeld, lock.ErrLost)
	}
	return nil
}

package session

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/lockstate"
	"github.com/leasehold-go/leasehold/internal/owner"
	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
	"github.com/leasehold-go/leasehold/luascripts"
)

// Lock waits until the lock is acquired, ctx is canceled, or the wait of spec times out.
func (s *Session) Lock(ctx context.Context, spec *Spec) (lock.Hold, error) {
	return s.lock(ctx, spec, "lock")
}

// TryLock makes one attempt within the operation timeout. It retries failed requests within that time.
func (s *Session) TryLock(ctx context.Context, spec *Spec) (lock.Hold, error) {
	return s.lock(ctx, spec, "trylock")
}

// lock implements Lock and TryLock: it acquires a hold, applies the options of spec, and notifies the observer.
func (s *Session) lock(ctx context.Context, spec *Spec, op string) (lock.Hold, error) {
	var c *call
	if s.Observer != nil {
		c = s.observe(ctx, spec)
	}
	wait, waiting := op == "lock" && !spec.Config.Once, ctx
	if wait && spec.Config.Wait > 0 {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(ctx, spec.Config.Wait)
		defer cancel() // mutant: removed: the timer of the context ends it
	}
	h, err := s.acquire(ctx, waiting, spec, wait, c)
	for err != nil && spec.Again != nil {
		next := spec.Again(waiting, err)
		if next == nil {
			break
		}
		if waiting.Err() != nil {
			err = outOfTime{spec.Config.Wait, lock.ErrNotAcquired}
			break
		}
		spec = next
		h, err = s.acquire(ctx, waiting, spec, wait, c)
	}
	if err == nil && spec.Config.MaxHold > 0 {
		h.limitTo(spec.Config.MaxHold)
	}
	if err == nil && spec.Config.MinHold > 0 {
		err = s.applyMinHold(ctx, h, spec)
	}
	if err == nil {
		s.subscribeForcedSoon()
		if c != nil {
			c.tellGranted(h)
		}
		return h, nil
	}
	err = &lock.Error{Op: op, Name: spec.Name, Err: command.Interrupted(ctx, err)}
	c.tellFailed(err)
	return nil, err
}

// acquire acquires one hold for the owner in ctx, or for a new owner. waiting is ctx, or is also canceled when the wait of
// spec times out.
func (s *Session) acquire(ctx, waiting context.Context, spec *Spec, wait bool, c *call) (*hold, error) {
	if spec.Err != nil {
		return nil, spec.Err
	}
	if ctx.Err() != nil {
		return nil, command.Ended(ctx, 0)
	}
	number, known := lockimpl.OwnerFrom(ctx)
	if known = known && !spec.NonReentrant; !known {
		number = owner.New()
	}
	at, err := s.begin(spec)
	if err != nil {
		return nil, err
	}
	defer s.done(at)
	until, _ := ctx.Value(owner.Caller{}).(context.Context)
	by := caller{ctx, until, number, c}
	if spec.terms.MayShare() { // mutant: never: speed
		if h := s.joinOpen(by, at, spec); h != nil {
			return h, nil
		}
	}
	now := time.Now()
	a := &attempt{s: s, spec: spec, at: at, caller: by, waiting: waiting, timing: timing{began: now, now: now}}
	if !wait {
		a.limit = s.OpTimeout
	}
	var h *hold
	if known { // mutant: always: speed
		a.owner = at.enter(spec, number)
		defer at.exit(a.owner)
		if !wait && locked(at, a.owner.Acquires) {
			return nil, at.behind(spec) // another goroutine of this owner already waits for it
		}
		h, err = a.inTurn()
	} else { // no other call uses the owner
		h, err = a.acquireFirst()
	}
	if err != nil && wait { // mutant: always, operand 1, operand 2: speed
		err = a.waited(err, spec.Config.Wait)
	}
	return h, err
}

// waited returns err, wrapped in outOfTime if the attempt timed out after limit, the wait of its spec.
func (a *attempt) waited(err error, limit time.Duration) error {
	if a.waiting.Err() == nil || a.ctx.Err() != nil {
		return err
	}
	if a.endedBeforeReply(err) { // there was no reply
		err = a.s.sender.Unavailable(limit, nil)
	}
	if errors.Is(err, lock.ErrNotAcquired) || errors.Is(err, lock.ErrUnavailable) {
		return outOfTime{limit, err}
	}
	return err
}

// enter returns the owner with this number, which other calls may use. The caller calls exit.
func (at *entry) enter(spec *Spec, number uint64) *lockstate.Owner {
	at.lock()
	defer at.unlock()
	return at.state.Enter(spec.reads(), number, true)
}

func (at *entry) exit(o *lockstate.Owner) {
	at.lock()
	defer at.unlock()
	o.Leave()
	at.dropKeeper()
}

// inTurn takes the owner's turn, so that at most one command of the owner is in flight. If the owner has the lock,
// inTurn re-enters it; otherwise it acquires the first hold.
func (a *attempt) inTurn() (*hold, error) {
	for {
		if h, err := a.oneTurn(); err != errReleased {
			return h, err
		}
		// Take the turn again: the goroutine that released the other holds may be waiting for it.
	}
}

// oneTurn is one iteration of inTurn. It releases the turn even if an observer panics.
func (a *attempt) oneTurn() (h *hold, err error) {
	err = a.s.takeTurn(a.waiting, a.owner.Turn, a.timeLeft(), nil)
	a.now = time.Now()
	if err != nil {
		return nil, a.ended(err)
	}
	passed := false
	defer func() {
		if !passed {
			<-a.owner.Turn
		}
	}()
	t := a.at.valid(a.owner.Acquisition)
	if t == nil {
		return a.acquireFirst()
	}
	h, passed, err = a.reenter(t)
	return h, err
}

// acquireFirst acquires the owner's first hold.
func (a *attempt) acquireFirst() (*hold, error) {
	if a.owner != nil && a.spec.Mode == lock.Write && a.at.valid(a.owner.Sibling) != nil {
		return nil, command.Final{Err: lock.ErrUpgrade}
	}
	first := a.join()
	defer a.leave()
	if !first {
		return nil, a.at.behind(a.spec)
	}
	if a.h != nil {
		return a.h, nil
	}
	if len(a.releasing) > 0 { // mutant: always, border: speed
		a.follow()
	}
	if err := a.steps(); err != nil {
		return nil, err
	}
	return a.h, nil
}

// join takes the lock if this process keeps it, and otherwise puts the attempt into the queue. It reports false if the
// attempt is a TryLock and others are ahead.
func (a *attempt) join() (first bool) {
	a.at.lock()
	defer a.at.unlock()
	p, terms := &a.at.state, &a.spec.terms
	a.owner, first = p.Enter(terms.Reads, a.number, false), true
	if a.at.keeper != nil && a.takeKept() { // mutant: operand 1: speed
		return true
	}
	if a.isTry() {
		a.w, first = p.Try(terms, a.owner, a.now)
		a.w.Deadline = a.began.Add(a.limit)
	} else {
		a.w = p.Join(terms, a.owner, a.now)
	}
	a.w.Tells = a.call != nil // mutant: always: speed
	a.t = a.w.Acquisition
	if terms.MayShare() { // mutant: always: memory
		h := new(hold) // used if another reader's grant admits it
		h.init(a.caller, a.spec)
		a.w.Prepared = &h.Hold
	}
	if len(a.at.releasing) > 0 { // mutant: always, border: speed
		a.releasing = slices.Clone(a.at.releasing)
	}
	// A Lock is notified of these removals. While an owner in this process has the lock, a refusal has another reason.
	if a.isTry() && (a.spec.NonReentrant || !p.Excludes(terms)) {
		for _, r := range a.at.removing {
			a.releasing = append(a.releasing, r)
		}
	}
	return first
}

// leave removes the attempt from the queue, and its owner from the state. Without a hold, even because the observer or
// the logger panicked or called runtime.Goexit, the attempt leaves nothing in Redis: its acquisition is abandoned, unless
// the next waiter of the queue continues with it.
func (a *attempt) leave() {
	a.at.lock()
	var admitted *lockstate.Hold
	if a.h == nil {
		admitted = a.at.state.GiveUp(a.w, a.t)
		if a.t != nil && a.t.InFlight() { // Late removes what the request leaves
			a.at.willRemove(acquisitionOf(a.t))
		}
	}
	if a.w != nil {
		a.at.state.Quit(a.w, a.now)
	}
	a.owner.Leave()
	a.at.dropKeeper()
	a.at.unlock()
	if admitted != nil { // another reader's grant admitted it as the wait ended
		_ = a.s.unlock(context.Background(), holdOf(admitted), false)
	}
}

// joinOpen admits a reader without a command if another reader of this process was granted the lock just now. It
// returns nil if not.
func (s *Session) joinOpen(by caller, at *entry, spec *Spec) *hold {
	memory := new(struct { // one allocation instead of two
		hold
		owner lockstate.Owner
	})
	h, now := &memory.hold, time.Now()
	h.init(by, spec)
	h.By = &memory.owner // mutant: removed: speed
	at.lock()
	defer at.unlock()
	t := at.state.Open(&spec.terms, now, now)
	// mutant: always: speed
	if t == nil || !acquisitionOf(t).lease.IsTrusted(now) || !at.state.JoinOpen(t, &h.Hold, by.number) {
		return nil
	}
	return h
}

// errReleased is returned when another goroutine of the owner released the last hold while this one re-entered.
var errReleased = command.Final{Err: errors.New("released in the meantime")}

// reenterRequest is the command that adds a hold to an acquisition.
type reenterRequest struct {
	t       *acquisition
	q       luascripts.Request
	sent    *time.Time
	endTurn func() // releases the turn
}

// Send sends the command, unless the acquisition has ended.
func (r reenterRequest) Send(ctx context.Context) (luascripts.Acquired, error) {
	if !locked(r.t.at, r.t.Lives) {
		return luascripts.Acquired{Verdict: luascripts.Gone}, nil
	}
	*r.sent = time.Now()
	return r.t.spec.Acquire(ctx, r.t.at.s.rdb, r.t.spec.Keys, r.q)
}

// Batch fills in the change. It returns nil if the acquisition has ended, so that Send returns Gone.
func (r reenterRequest) Batch(c *luascripts.Change) func(*luascripts.Change) luascripts.Acquired {
	if !r.t.spec.Batches || !locked(r.t.at, r.t.Lives) {
		return nil
	}
	*r.sent = time.Now()
	r.t.spec.encode(c, r.q)
	return acquiredBy
}

// Late releases the turn and reconciles the acquisition, because Redis may count one hold too many.
func (r reenterRequest) Late(_ luascripts.Acquired, err error) {
	r.endTurn()
	r.t.at.s.reconcile(r.t, err != nil) // mutant: always: speed
}

// reenter adds a hold to t. The caller has the owner's turn. If the call left before the reply, passed is true and Late
// releases the turn. Until then no other command of this acquisition can overtake the request.
func (a *attempt) reenter(t *acquisition) (h *hold, passed bool, err error) {
	s := a.s
	turn := a.owner.Turn
	lease, endTurn := a.spec.terms.Lease, func() { <-turn }
	if t.Turn != nil {
		if err := s.takeTurn(a.waiting, t.Turn, a.timeLeft(), nil); err != nil {
			return nil, false, a.ended(err)
		}
		defer func() {
			if !passed {
				<-t.Turn
			}
		}()
		endTurn = func() { <-t.Turn; <-turn }
	}
	began := time.Now()
	a.at.lock()
	holds := t.WillChange(began)
	t.MayTake(lease)
	a.at.unlock()
	var sent time.Time
	o := command.SendWithRetry[luascripts.Acquired](a.waiting, s.sender, a.timeLeft(), reenterRequest{t, luascripts.Request{Owner: t.Name, Lease: lease, Want: holds + 1}, &sent, endTurn})
	if o.Repeated { // mutant: always: speed
		t.markLate()
	}
	switch {
	case !o.Answered:
		return nil, true, s.sender.Unanswered(a.waiting, began, o.Err)
	case o.Err != nil:
		if o.Repeated || retry.FaultOf(o.Err).MayHaveRun() {
			s.sender.Go(func() { s.reconcile(t, true) })
		} else {
			a.at.lock()
			t.ChangeDone()
			t.Took()
			a.at.unlock()
		}
		return nil, false, s.sender.Explain(o.Err)
	case o.Value.Verdict == luascripts.Done:
		h := new(hold)
		h.init(a.caller, a.spec)
		a.at.lock()
		added := a.at.state.Add(&t.Acquisition, a.owner, &h.Hold)
		if added {
			t.lease.Extend(sent, lease)
			t.Took()
			t.Count(holds + 1)
		}
		a.at.unlock()
		if added {
			return h, false, nil
		}
	}
	return nil, false, s.notReentered(t, o.Value.Verdict)
}

// notReentered returns the error of a reentry that added no hold to t, although Redis replied with verdict v.
func (s *Session) notReentered(t *acquisition, v luascripts.Verdict) error {
	switch phase := locked(t.at, t.Phase); {
	case phase.Lives():
		if v == luascripts.Done { // Redis counted the hold, but the owner has left an acquisition that other readers share
			s.sender.Go(func() { s.reconcile(t, false) })
			return errReleased
		}
	case phase == lockstate.Released:
		return errReleased
	case phase == lockstate.Closed:
		return command.Final{Err: lock.ErrClosed}
	}
	cause := s.gone(t, v)
	t.lease.Lose(cause)
	return loss{cause}
}

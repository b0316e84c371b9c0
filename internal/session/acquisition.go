package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/lockstate"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/watchdog"
)

// acquisition is an owner's time with a lock, as the session has it: the state's acquisition, and the
// lease that the watchdog watches.
type acquisition struct {
	lockstate.Acquisition
	s         *Session        // set once
	at        *entry          // set once: where, with its mutex for the state's part
	spec      *Spec           // as the first hold asks for it; of a ticket, as its waiter does. Set under at.mu, and for good before lease is
	lease     *watchdog.Lease // set under at.mu, before others see that it is granted
	keepUntil time.Time       // until when the lock is to stay locked: lock.WithMinHold. Guarded by at.mu
	first     hold            // memory for the first hold
	own       watchdog.Lease  // memory for lease; that of an acquisition to which the lock was handed off is another's

	// unconfirmed is the number of extensions that Redis may have made and the lease does not know of. Guarded by at.mu.
	unconfirmed int
}

var _ watchdog.Subject = (*acquisition)(nil)

func acquisitionOf(t *lockstate.Acquisition) *acquisition {
	if t == nil {
		return nil
	}
	return t.Of.(*acquisition)
}

// newAcquisition returns an acquisition that is Asking, from now on.
func (at *entry) newAcquisition(spec *Spec, now time.Time) *acquisition {
	t := &acquisition{s: at.s, at: at, spec: spec}
	t.Of, t.Terms, t.Name, t.Came = t, &spec.terms, at.s.newOwner(now, spec.Keys.Permits, spec.Mark), now
	if spec.terms.MayShare() {
		t.Turn = make(chan struct{}, 1)
	}
	return t
}

// newTicket returns the acquisition in whose name a queue asks: lockstate.Rules.Ticket. The mutex of
// the state is held.
func (s *Session) newTicket(p *lockstate.Lock, c *lockstate.Terms, now time.Time) *lockstate.Acquisition {
	return &p.Of.(*entry).newAcquisition(c.Of.(*Spec), now).Acquisition
}

// turn returns the right to send a command for t: t's own if owners can share it, and else
// that of its owner.
func (t *acquisition) turn(o *lockstate.Owner) chan struct{} {
	if t.Turn != nil {
		return t.Turn
	}
	return o.Turn
}

// isLive reports whether t is not over.
func (t *acquisition) isLive() bool {
	t.at.lock()
	defer t.at.unlock()
	return t.Lives()
}

// phase returns the phase that t is in.
func (t *acquisition) phase() lockstate.Phase {
	t.at.lock()
	defer t.at.unlock()
	return t.Phase()
}

// isUncertain reports whether a request for t may be executed late.
func (t *acquisition) isUncertain() bool {
	t.at.lock()
	defer t.at.unlock()
	return t.Uncertain()
}

// endsByItself reports whether the fixed lease of t is the one that the lock has in Redis: no extension is unconfirmed, and no release offered
// the lock to another waiter in its name, with a longer lease. A writer whose owner reads as well stays there for as long as the reader.
func (t *acquisition) endsByItself() bool {
	t.at.lock()
	defer t.at.unlock()
	return t.unconfirmed == 0 && t.Longest() <= t.spec.terms.Lease && (t.spec.Mode != lock.Write || !t.Acquisition.Owner().OnBothSides())
}

// since returns when this process was granted the lock, by a clock that no one sets back.
func (t *acquisition) since() time.Time {
	t.at.lock()
	defer t.at.unlock()
	return t.Since()
}

// served returns the owner strings that the release of t takes out of a queue.
func (t *acquisition) served() []string {
	t.at.lock()
	defer t.at.unlock()
	return t.Served()
}

// markUncertain notes that a request for t may be executed late.
func (t *acquisition) markUncertain() {
	t.at.lock()
	defer t.at.unlock()
	t.MarkUncertain()
}

// count notes that Redis has n holds of t.
func (t *acquisition) count(n int) {
	t.at.lock()
	defer t.at.unlock()
	t.Count(n)
}

// changeDone notes that no command is under way any more that changes how many holds Redis has.
func (t *acquisition) changeDone() {
	t.at.lock()
	defer t.at.unlock()
	t.ChangeDone()
}

// noLongerHeld notes that t does not have the lock any more.
func (t *acquisition) noLongerHeld() {
	t.at.lock()
	defer t.at.unlock()
	t.at.state.NoLongerHeld(&t.Acquisition)
}

// watch returns the lease of t. The watchdog may renew it before the goroutine that set it
// has unlocked the state.
func (t *acquisition) watch() *watchdog.Lease {
	t.at.lock()
	defer t.at.unlock()
	return t.lease
}

// end ends the acquisition, and all its holds with cause. It returns the holds, and the phase
// that the acquisition was in before.
//
// counted reports that this call ended the acquisition as lost, and that Close has not come to
// its state. Then the caller reconciles what is left in Redis, and calls s.sender.Done. Else
// Close does that.
func (t *acquisition) end(how lockstate.Phase, cause error) (ended []*lockstate.Hold, before lockstate.Phase, counted bool) {
	t.at.lock()
	ended, _, before = t.at.state.End(&t.Acquisition, how)
	if counted = before.Lives() && how == lockstate.Lost && !t.at.state.IsClosed(); counted {
		t.s.sender.Add()
	}
	t.at.unlock()
	for _, h := range ended {
		h.Of.(*hold).end(cause)
	}
	return ended, before, counted
}

// Lost ends the acquisition: the watchdog saw the lease end, or the server said that the owner
// does not have it. The watchdog calls it.
func (t *acquisition) Lost(cause error) {
	ended, before, counted := t.end(lockstate.Lost, t.lostBy(cause))
	if !before.Lives() {
		return
	}
	// A lease that no one renews ends by itself in Redis, when its time is over. Here it ended a little before, as the clocks may differ.
	// After an extension without a reply, or an offer, that time can be much later.
	itself := len(ended) > 0 && t.endsByItself() && errors.Is(cause, watchdog.ErrExpired) && !slices.ContainsFunc(ended, func(h *lockstate.Hold) bool { return !h.Fixed })
	defer t.afterLoss(cause, counted, itself) // also when the logger or the observer panics
	if len(ended) > 0 {
		t.s.report.lost(t.spec, cause)
	}
	t.s.tellEnded(ended, t.lostBy(cause))
}

// afterLoss has waiters ask for the lock of t, which was lost by cause, and the reconciler reconcile what
// is left in Redis. counted is what end returned; itself says that it ends there by itself.
func (t *acquisition) afterLoss(cause error, counted, itself bool) {
	t.noLongerHeld()
	t.s.mayBeFree(t.spec)
	if counted {
		if unsure := t.isUncertain(); unsure || !errors.Is(cause, watchdog.ErrGone) && !itself || t.spec.Keys.Permits > 1 || len(t.served()) > 0 {
			// The server may have it as ours for a while yet, or again by a late copy of a
			// request, or have some of several permits; and others would wait for no one.
			t.s.reconcile(t, unsure)
		}
		t.at.tidy()
		t.s.sender.Done()
	}
}

// Group returns what names the leases that are renewed together with that of t: their script,
// and on a cluster their node.
func (t *acquisition) Group() watchdog.Group {
	g := watchdog.Group{What: t.spec.Kind, Within: t.spec.MaxRenewInterval}
	if t.s.sliced() {
		g.At = int(t.s.node(t.spec.slot))
	}
	return g
}

// lostBy returns the cause with which holds of t end when the lease ended by cause.
func (t *acquisition) lostBy(cause error) error {
	return t.wrap(fmt.Errorf("%w: %w", lock.ErrLost, cause))
}

// wrap returns err, which is about a hold of t, with the name of the lock.
func (t *acquisition) wrap(err error) error {
	return &lock.Error{Op: "hold", Name: t.spec.Name, Err: err}
}

// mayBeFree tells the waiters for the lock in this process that it may be free.
func (s *Session) mayBeFree(spec *Spec) {
	at := s.find(spec.id())
	if at == nil {
		return
	}
	at.lock()
	defer at.unlock()
	at.state.Free(&spec.terms)
}

// takeTurn waits for a turn: until ctx ends, the session closes, or limit has passed (0
// is no limit).
func (s *Session) takeTurn(ctx context.Context, turn chan<- struct{}, limit time.Duration) error {
	select {
	case turn <- struct{}{}:
		return nil
	default:
	}
	var timeout <-chan time.Time
	if limit > 0 {
		t := time.NewTimer(limit)
		defer t.Stop()
		timeout = t.C
	}
	select {
	case turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.closer.closing:
		return lock.ErrClosed
	case <-timeout:
		return command.NoReply{After: s.OpTimeout}
	}
}

// held returns the acquisition of the owner; nil if the owner does not hold the lock. It looks at
// the clocks, and so may find that the acquisition is lost.
func (at *entry) held(o *lockstate.Owner) *acquisition {
	at.lock()
	t := acquisitionOf(o.Acquisition())
	at.unlock()
	if t != nil && t.lease.Check() != nil {
		return nil
	}
	return t
}

// sibling returns the acquisition that the owner has on the other side of the lock; nil if it has
// none there.
func (at *entry) sibling(o *lockstate.Owner) *acquisition {
	at.lock()
	t := acquisitionOf(o.Sibling())
	at.unlock()
	if t == nil || t.lease.Check() != nil {
		return nil
	}
	return t
}

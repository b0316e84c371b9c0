package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/place"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/watchdog"
)

// tenure is an owner's time with a lock, as the session has it: the place's tenure, and the
// lease that the watchdog watches.
type tenure struct {
	place.Tenure
	s     *Session        // set once
	at    *spot           // set once: where, with its mutex for the place's part
	spec  *Spec           // as the first hold asks for it; of a ticket, as its waiter does. Set under at.mu, and for good before lease is
	lease *watchdog.Lease // set under at.mu, before others see that it is granted
	keeps time.Time       // until when the lock is to stay locked: lock.WithMinHold. Guarded by at.mu
	first hold            // memory for the first hold
	own   watchdog.Lease  // memory for lease; that of a tenure to which the lock was passed on is another's

	// unconfirmed is the number of extensions that Redis may have made and the lease does not know of. Guarded by at.mu.
	unconfirmed int
}

var _ watchdog.Subject = (*tenure)(nil)

func tenureOf(t *place.Tenure) *tenure {
	if t == nil {
		return nil
	}
	return t.Of.(*tenure)
}

// newTenure returns a tenure that is Asking, from now on.
func (at *spot) newTenure(spec *Spec, now time.Time) *tenure {
	t := &tenure{s: at.s, at: at, spec: spec}
	t.Of, t.Terms, t.Name, t.Came = t, &spec.terms, at.s.newOwner(now, spec.Keys.Permits, spec.Mark), now
	if spec.terms.MayShare() {
		t.Turn = make(chan struct{}, 1)
	}
	return t
}

// newTicket returns the tenure in whose name a line asks: place.Rules.Ticket. The mutex of
// the place is held.
func (s *Session) newTicket(p *place.Place, c *place.Terms, now time.Time) *place.Tenure {
	return &p.Of.(*spot).newTenure(c.Of.(*Spec), now).Tenure
}

// turn returns the right to send a command for t: t's own if owners can share it, and else
// that of its owner.
func (t *tenure) turn(o *place.Owner) chan struct{} {
	if t.Turn != nil {
		return t.Turn
	}
	return o.Turn
}

// isLive reports whether t is not over.
func (t *tenure) isLive() bool {
	t.at.lock()
	defer t.at.unlock()
	return t.Lives()
}

// phase returns the phase that t is in.
func (t *tenure) phase() place.Phase {
	t.at.lock()
	defer t.at.unlock()
	return t.Phase()
}

// isUnsure reports whether a question for t may be carried out late.
func (t *tenure) isUnsure() bool {
	t.at.lock()
	defer t.at.unlock()
	return t.Unsure()
}

// endsByItself reports whether the fixed lease of t is the one that the lock has in Redis: no extension is unconfirmed, and no release offered
// the lock to another waiter in its name, with a longer lease. A writer whose owner reads as well stays there for as long as the reader.
func (t *tenure) endsByItself() bool {
	t.at.lock()
	defer t.at.unlock()
	return t.unconfirmed == 0 && t.Longest() <= t.spec.terms.Lease && (t.spec.Mode != lock.Write || !t.Tenure.Owner().OnBothSides())
}

// since returns when this process was granted the lock, by a clock that nobody sets back.
func (t *tenure) since() time.Time {
	t.at.lock()
	defer t.at.unlock()
	return t.Since()
}

// served returns the owner strings that the release of t takes out of a queue.
func (t *tenure) served() []string {
	t.at.lock()
	defer t.at.unlock()
	return t.Served()
}

// doubt notes that a question for t may be carried out late.
func (t *tenure) doubt() {
	t.at.lock()
	defer t.at.unlock()
	t.Doubt()
}

// count notes that Redis has n holds of t.
func (t *tenure) count(n int) {
	t.at.lock()
	defer t.at.unlock()
	t.Count(n)
}

// settled notes that no command is under way any more that changes how many holds Redis has.
func (t *tenure) settled() {
	t.at.lock()
	defer t.at.unlock()
	t.Settle()
}

// unhold notes that t does not have the lock any more.
func (t *tenure) unhold() {
	t.at.lock()
	defer t.at.unlock()
	t.at.place.Unhold(&t.Tenure)
}

// watch returns the lease of t. The watchdog may renew it before the goroutine that set it
// has unlocked the place.
func (t *tenure) watch() *watchdog.Lease {
	t.at.lock()
	defer t.at.unlock()
	return t.lease
}

// end ends the tenure, and all its holds with cause. It returns the holds, and the phase
// that the tenure was in before.
//
// counted reports that this call ended the tenure as lost, and that Close has not come to
// its place. Then the caller settles what is left in Redis, and calls s.sender.Done. Else
// Close does that.
func (t *tenure) end(how place.Phase, cause error) (ended []*place.Hold, before place.Phase, counted bool) {
	t.at.lock()
	ended, _, before = t.at.place.End(&t.Tenure, how)
	if counted = before.Lives() && how == place.Lost && !t.at.place.IsClosed(); counted {
		t.s.sender.Add()
	}
	t.at.unlock()
	for _, h := range ended {
		h.Of.(*hold).end(cause)
	}
	return ended, before, counted
}

// Lost ends the tenure: the watchdog saw the lease end, or the server said that the owner
// does not have it. The watchdog calls it.
func (t *tenure) Lost(cause error) {
	ended, before, counted := t.end(place.Lost, t.lostBy(cause))
	if !before.Lives() {
		return
	}
	// A lease that nobody renews ends by itself in Redis, when its time is over. Here it ended a little before, as the clocks may differ.
	// After an extension without a reply, or an offer, that time can be much later.
	itself := len(ended) > 0 && t.endsByItself() && errors.Is(cause, watchdog.ErrExpired) && !slices.ContainsFunc(ended, func(h *place.Hold) bool { return !h.Fixed })
	defer t.afterLoss(cause, counted, itself) // also when the logger or the observer panics
	if len(ended) > 0 {
		t.s.report.lost(t.spec, cause)
	}
	t.s.tellEnded(ended, t.lostBy(cause))
}

// afterLoss has waiters ask for the lock of t, which was lost by cause, and the settler settle what
// is left in Redis. counted is what end returned; itself says that it ends there by itself.
func (t *tenure) afterLoss(cause error, counted, itself bool) {
	t.unhold()
	t.s.mayBeFree(t.spec)
	if counted {
		if unsure := t.isUnsure(); unsure || !errors.Is(cause, watchdog.ErrGone) && !itself || t.spec.Keys.Permits > 1 || len(t.served()) > 0 {
			// The server may have it as ours for a while yet, or again by a late copy of a
			// question, or have some of several permits; and others would wait for nobody.
			t.s.settle(t, unsure)
		}
		t.at.tidy()
		t.s.sender.Done()
	}
}

// Group returns what names the leases that are renewed together with that of t: their script,
// and on a cluster their node.
func (t *tenure) Group() watchdog.Group {
	g := watchdog.Group{What: t.spec.Kind, Within: t.spec.Within}
	if t.s.sliced() {
		g.At = int(t.s.node(t.spec.slot))
	}
	return g
}

// lostBy returns the cause with which holds of t end when the lease ended by cause.
func (t *tenure) lostBy(cause error) error {
	return t.wrap(fmt.Errorf("%w: %w", lock.ErrLost, cause))
}

// wrap returns err, which is about a hold of t, with the name of the lock.
func (t *tenure) wrap(err error) error {
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
	at.place.Free(&spec.terms)
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
		return command.NoAnswer{After: s.OpTimeout}
	}
}

// held returns the tenure of the owner; nil if the owner does not hold the lock. It looks at
// the clocks, and so may find that the tenure is lost.
func (at *spot) held(o *place.Owner) *tenure {
	at.lock()
	t := tenureOf(o.Tenure())
	at.unlock()
	if t != nil && t.lease.Check() != nil {
		return nil
	}
	return t
}

// beside returns the tenure that the owner has on the other side of the lock; nil if it has
// none there.
func (at *spot) beside(o *place.Owner) *tenure {
	at.lock()
	t := tenureOf(o.Beside())
	at.unlock()
	if t == nil || t.lease.Check() != nil {
		return nil
	}
	return t
}

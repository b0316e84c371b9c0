package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/watchdog"
)

// claimID names what one owner of this process has to do with one side of a lock.
type claimID struct {
	place
	owner uint64 // as the context carries it
}

// claim is what one owner of this process has to do with one side of a lock. It
// lives in the session's map for as long as a call or a hold needs it.
type claim struct {
	id   claimID
	turn chan struct{} // cap 1; who has put a token in may send commands for this claim; nil before the first call that needs one

	// Guarded by the session's mu.
	users  int     // calls and holds that need it
	tenure *tenure // nil while the owner does not hold the lock
	holds  int     // the owner's, of that tenure
	waits  *waiter // for the first hold; nil if none does. Only of readers
}

// claim returns the claim of an owner on a key, new if need be. Each call needs
// one of s.drop.
func (s *Session) claim(id claimID) *claim {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.claims[id]
	if c == nil {
		c = &claim{id: id}
		s.claims[id] = c
	}
	if c.turn == nil {
		c.turn = make(chan struct{}, 1)
	}
	c.users++
	return c
}

func (s *Session) drop(c *claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropLocked(c)
}

func (s *Session) dropLocked(c *claim) {
	if c.users--; c.users == 0 {
		delete(s.claims, c.id)
	}
}

// take waits for a turn: until ctx ends, the session closes, or limit has passed (0
// is no limit).
func (s *Session) take(ctx context.Context, turn chan<- struct{}, limit time.Duration) error {
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
	case <-s.closing:
		return lock.ErrClosed
	case <-timeout:
		return noAnswer{s.OpTimeout}
	}
}

// leave passes the turn on.
func (c *claim) leave() { <-c.turn }

// ending says whether a tenure is over, and how it came to be.
type ending int

const (
	lives    ending = iota
	released        // its last hold was given back, or it never had one
	closed          // by Close
	lost            // by the clock, or by the server's word
)

// tenure is an owner's time with a lock: from the first question for it, until
// the last hold is given back or all are lost. It is what the watchdog watches.
type tenure struct {
	s     *Session        // set once
	spec  *Spec           // set once: as the first hold asked for it
	claim *claim          // set once: whose question it is; nil while it stands in a line as a ticket or a gift
	owner string          // set once: as it stands in Redis; no other tenure has it, but one that it was passed on to
	asked time.Time       // when the first question was due
	token uint64          // set by begin
	lease *watchdog.Lease // set by begin

	first hold // memory for the first hold

	// Guarded by s.mu.
	holds    []*hold
	few      [1]*hold      // memory for holds
	owners   int           // how many claims they belong to
	renewed  int           // how many of holds want renewals
	longest  time.Duration // the longest lease that was ever asked for
	patience time.Duration // the longest for which a trace of waiting lives unheard
	over     ending
	unsure   bool      // a question for it broke off, and may be carried out late
	traced   bool      // it was told to wait, and that left a trace in Redis
	freed    bool      // settle may have released it
	counted  int       // the holds that stand in Redis, 0 while that is not certain
	changing time.Time // when the first command was due that changes how many, and has no answer; zero if there is none
	pending  int       // questions for it that were not answered yet

	// Of a tenure whose lock can be passed on (handover.go).
	since  time.Time // when this process was granted the lock
	passes int       // how often it was passed on since then
	raised bool      // the register was raised beyond the tokens that come after its own
	next   *tenure   // to whom it was passed on, under the same owner string; nil if it was not

	// Of one that several readers can share (share.go).
	turn   chan struct{} // set once: as that of a claim, and in its place; nil if nobody can share it
	beside bool          // set before the grant: its owner writes, too
	latest time.Time     // who came later needs a grant of its own
	open   bool          // others may join it
}

var _ watchdog.Subject = (*tenure)(nil)

func (s *Session) newTenure(spec *Spec, c *claim) *tenure {
	now := time.Now()
	t := &tenure{s: s, spec: spec, claim: c, owner: s.newOwner(now), asked: now}
	if spec.shares() {
		t.turn = make(chan struct{}, 1)
	}
	return t
}

// commands is whose turn it is to send a command for t.
func (t *tenure) commands() chan struct{} {
	if t.turn != nil {
		return t.turn
	}
	return t.claim.turn
}

// state returns how many holds Redis should have, and whether t is over.
func (t *tenure) state() (holds int, over ending) {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	return t.standLocked(), t.over
}

// willAsk records that a lease is about to be asked for, and a trace that lives so long
// unheard, by a question whose answer will be recorded by answered.
func (t *tenure) willAsk(lease, patience time.Duration) {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	t.longest, t.patience = max(t.longest, lease), max(t.patience, patience)
	t.pending++
}

// mayTake records that a lease of d is about to be asked for.
func (t *tenure) mayTake(d time.Duration) {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	t.longest = max(t.longest, d)
}

func (t *tenure) answered() {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	t.pending--
}

// willChange is for a command that changes how many holds stand in Redis. It returns
// how many there are here, and how the tenure ended if it did. count is for when
// the command is confirmed.
func (t *tenure) willChange() (holds int, over ending) {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	t.counted = 0
	if t.changing.IsZero() {
		t.changing = time.Now()
	}
	return t.standLocked(), t.over
}

func (t *tenure) count(n int) {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	t.counted, t.changing = n, time.Time{}
}

// doubt records that a question for t may be carried out late, and returns
// whether t is over already: then nobody else will see to it.
func (t *tenure) doubt() ending {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	t = t.latestLocked()
	t.unsure = true
	return t.over
}

// latestLocked returns the tenure that t was passed on to, t itself if it was not:
// what is known of their owner string concerns that one.
func (t *tenure) latestLocked() *tenure {
	for t.next != nil {
		t = t.next
	}
	return t
}

// trace records that waiting for t left a trace in Redis.
func (t *tenure) trace() {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	t.traced = true
}

// beside returns the tenure that the owner of c has on the other side of the
// lock, nil if it has none.
func (s *Session) beside(c *claim) *tenure {
	kind := c.id.kind.Beside
	if kind == nil {
		return nil
	}
	s.mu.Lock()
	other := s.claims[claimID{place{kind: kind, key: c.id.key}, c.id.owner}]
	s.mu.Unlock()
	if other == nil {
		return nil
	}
	return s.tenure(other)
}

// begin records the grant of the first hold, and reports false if the session
// was closed meanwhile.
func (t *tenure) begin(sent time.Time, token uint64) bool {
	t.token = token
	t.lease = t.s.dog.Watch(t, sent, t.s.lease(t.spec), t.spec.Fixed == 0)
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	t.counted, t.since = 1, time.Now()
	if t.s.closed {
		return false
	}
	if t.over == lives {
		t.claim.holdLocked(t)
		t.readOnLocked()
		if t.spec.Pass != nil {
			t.s.held[t.spec.place()] = t
		}
	}
	return true
}

// add records one more hold, and reports false if the tenure is over, or its owner
// has given back all it had of it.
func (t *tenure) add(h *hold) bool {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	return t.addLocked(h)
}

func (t *tenure) addLocked(h *hold) bool {
	c := h.claim
	if t.over != lives || c.tenure != t {
		return false
	}
	h.at = len(t.holds)
	if t.holds == nil {
		t.holds = t.few[:0]
	}
	t.holds = append(t.holds, h)
	c.holds++
	c.users++
	if !h.fixed {
		t.longest = max(t.longest, t.s.Lease)
		if t.renewed++; t.renewed == 1 {
			t.lease.KeepAlive(true)
		}
	}
	return true
}

// holdLocked makes t, of which c has no hold yet, the tenure of c.
func (c *claim) holdLocked(t *tenure) {
	c.tenure, c.holds = t, 0
	t.owners++
}

// loseLocked notes that c has one hold of t less.
func (c *claim) loseLocked(t *tenure) {
	if c.tenure == t {
		if c.holds--; c.holds == 0 {
			c.tenure = nil
			t.owners--
		}
	}
	t.s.dropLocked(c)
}

// standLocked is how many holds Redis should have: one for all who share the tenure,
// and one for each time that one of them entered once more.
func (t *tenure) standLocked() int {
	if len(t.holds) == 0 {
		return 0
	}
	return len(t.holds) - t.owners + 1
}

// remove takes h out, and reports whether it was the last of its owner, and of all, and
// whether the lock was passed on to somebody else in this process.
func (t *tenure) remove(h *hold) (out, last, passed bool) {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	if !t.takeLocked(h) {
		return false, false, false // the tenure ended at the same moment, and ended h with it
	}
	out = h.claim.tenure != t
	if len(t.holds) == 0 {
		passed = t.spec.Pass != nil && t.passLocked()
		t.endLocked(released)
		last = true
	}
	return out, last, passed
}

// takeLocked takes h out of the holds, and reports whether it was there.
func (t *tenure) takeLocked(h *hold) bool {
	end := len(t.holds) - 1
	if h.at > end || t.holds[h.at] != h {
		return false
	}
	t.holds[end].at = h.at
	t.holds[h.at] = t.holds[end]
	t.holds[end] = nil
	t.holds = t.holds[:end]
	if !h.fixed {
		if t.renewed--; t.renewed == 0 && end > 0 {
			t.lease.KeepAlive(false)
		}
	}
	h.claim.loseLocked(t)
	return true
}

// end ends the tenure and all its holds with cause. It returns how many owners they
// had, and how the tenure had ended if it was over already.
//
// Unless Close has begun, a tenure that this call ended as lost is counted in
// s.work: the caller sees to what is left of it. After that, Close does.
func (t *tenure) end(how ending, cause error) (owners int, before ending, counted bool) {
	t.s.mu.Lock()
	ended := t.holds
	t.holds = nil
	if len(ended) > 0 {
		owners = t.owners
	}
	if before = t.over; before == lives {
		t.endLocked(how)
		if counted = how == lost && !t.s.closed; counted {
			t.s.work.Add(1)
		}
	}
	for _, h := range ended {
		h.claim.loseLocked(t)
	}
	t.s.mu.Unlock()
	for _, h := range ended {
		h.end(cause)
	}
	return owners, before, counted
}

func (t *tenure) endLocked(how ending) {
	t.over = how
	if t.claim != nil && t.claim.tenure == t {
		t.claim.tenure = nil
	}
	t.s.unshareLocked(t)
}

// fail ends a tenure whose first hold came to nothing, and sees to it that
// nothing of it is left in Redis. It returns err.
func (t *tenure) fail(err error) error {
	t.s.mu.Lock()
	if t.over == lives {
		t.endLocked(released)
	}
	unsure, traced := t.unsure, t.traced
	t.s.mu.Unlock()
	t.s.unhold(t)
	if t.lease != nil {
		t.lease.Stop(context.Background()) // it is too young to be renewed, so this does not wait
	}
	if unsure || traced {
		t.s.settle(t, unsure)
	}
	return err
}

// Lost ends the tenure: the watchdog saw the lease end, or the server said that
// it is not ours.
func (t *tenure) Lost(cause error) {
	owners, before, counted := t.end(lost, t.lostBy(cause))
	if before != lives {
		return
	}
	if owners > 0 {
		t.s.report.warn("lock lost", t.spec.Name, "lock", t.spec.Name, "mode", t.spec.Mode, "cause", cause)
	}
	for range owners {
		t.s.observe(t.s.Observer.Lost, t, lock.Event{Err: t.lostBy(cause)})
	}
	t.s.unhold(t)
	t.s.hint(t.spec)
	if counted {
		if unsure := t.isUnsure(); unsure || !errors.Is(cause, watchdog.ErrGone) {
			// The server may have it as ours for a while yet, or again by a
			// late copy, and others would wait for nothing.
			t.s.settle(t, unsure)
		}
		t.s.work.Done()
	}
}

// watch returns the lease of t, which the watchdog may renew before begin has returned.
func (t *tenure) watch() *watchdog.Lease {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	return t.lease
}

// Renewed passes on that the watchdog renewed the lease.
func (t *tenure) Renewed(until time.Time) {
	t.s.observe(t.s.Observer.Renewed, t, lock.Event{Until: until})
}

// Group is who is renewed together with t: who shares its script, and on a cluster its
// node.
func (t *tenure) Group() watchdog.Group {
	g := watchdog.Group{What: t.spec.Kind}
	if t.s.sliced {
		g.At = int(t.s.node(t.spec.slot))
	}
	return g
}

// lostBy is the cause that holds of t end with when the lease ended by cause.
func (t *tenure) lostBy(cause error) error {
	return t.wrap(fmt.Errorf("%w: %w", lock.ErrLost, cause))
}

// wrap gives an error about a hold of this tenure its name.
func (t *tenure) wrap(err error) error {
	return &lock.Error{Op: "hold", Name: t.spec.Name, Err: err}
}

// observeAcquired tells of h, for which somebody waited since then.
func (s *Session) observeAcquired(h *hold, since time.Time) {
	if s.Observer.Acquired != nil { // or the clocks need not be read
		s.observe(s.Observer.Acquired, h.t, lock.Event{Until: h.Until(), Wait: time.Since(since)})
	}
}

func (s *Session) observe(f func(lock.Event), t *tenure, e lock.Event) {
	if f != nil {
		e.Name, e.Mode, e.Owner, e.Token = t.spec.Name, t.spec.Mode, t.owner, t.token
		f(e)
	}
}

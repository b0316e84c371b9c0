package session

import (
	"cmp"
	"context"
	"maps"
	"time"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/leasehold-go/leasehold/watchdog"
)

// How a lock goes from one holder to the next without becoming free in between, for
// kinds with a Pass script.
//
// Inside a process it is passed on without a command: the next holder goes on with the
// owner string and the lease of the one before. After maxPasses of them, or
// maxPassTime, the lock is released, and the same script gives it to the first in line,
// which is a process. The process that released stands at the end of the line.
//
// If that is the first in line, the reply to the release says so. Any other process is
// told by a message to a channel of its own. The message is only a reason to ask: the
// question finds that the ticket holds the lock, and gives it a full lease. So nothing
// depends on the message, or on whoever sends one.
//
//	ticket  the tenure in whose name a line of waiters asks, and stands in line in Redis
//	gift    a tenure that holds the lock, and that the first waiter takes

const (
	maxPasses   = 64                    // of tokens in a row, too, that a register gives out at once
	maxPassTime = 10 * time.Millisecond // after that a process elsewhere may be next

	offerPolls = 3  // for how many poll intervals a process in line is granted the lock: what it costs if it died
	keepPolls  = 10 // and for how many its place is kept unheard where nobody can count listeners

	// For so long our waiters do not ask for a free lock that is for others. Redisson wakes a
	// thread before it asks, which takes it a few times as long as us.
	asideTime = 5 * time.Millisecond

	// A process that no message reaches asks again after this time, twice this, and so
	// on up to a poll interval, and then from the beginning: a lock that goes round in
	// turns comes by while it asks often.
	deafPause = 10 * time.Millisecond
	deafPolls = 10 // after so many poll intervals it asks once in each
)

// offer is what spec's lock is granted for when it comes to this process in line. The
// question that finds it granted makes it a full lease.
func (s *Session) offer(spec *Spec) time.Duration { return min(offerPolls*s.Poll, s.lease(spec)) }

// keep is how long a place in line lives unheard where nobody can count listeners.
func (s *Session) keep() time.Duration { return keepPolls * s.Poll }

// spare is how many tokens beyond its own a holder needs, to pass them on.
func (spec *Spec) spare() int {
	if spec.Pass == nil || spec.Keys.Register == "" {
		return 0 // without a register the server's clock leaves room enough
	}
	return maxPasses
}

// takes reports whether a tenure that was granted or passed on does for spec as it
// is: it has no lease of its own, and no replicas to wait for.
func (spec *Spec) takes(t *tenure) bool {
	return spec.Fixed == 0 && spec.Replicas == 0 && spec.Keys.Register == t.spec.Keys.Register
}

// passLocked passes the lock of t, which just gave back its last hold, on to the line,
// and reports whether it did. Redis hears nothing of it. So nothing may be under way
// or in doubt about this owner string, and it must stand there with one hold.
func (t *tenure) passLocked() bool {
	s := t.s
	l := s.lines[t.spec.place()]
	now := time.Now()
	switch {
	case l == nil || s.closed || l.gift != nil || s.held[l.place] != t:
		return false
	case t.unsure || t.pending > 0 || t.counted != 1 || t.raised:
		return false
	case t.longest > s.Lease:
		return false // the key would outlive the next holder by more than its lease
	case t.passes >= maxPasses || now.Sub(t.since) >= maxPassTime:
		return false
	case now.Sub(t.since) <= time.Duration(t.passes+1)*2*time.Microsecond:
		return false // the token of the next must lie behind the server's clock
	}
	spec := l.waiters[0].spec
	if spec == nil || !spec.takes(t) {
		return false
	}
	next := &tenure{
		s: s, spec: t.spec, owner: t.owner, token: t.token + 1, lease: t.lease,
		longest: t.longest, counted: 1, passes: t.passes + 1, since: t.since,
	}
	if !t.lease.Hand(next, s.offer(t.spec)/3) {
		return false
	}
	t.next = next
	l.gift, s.held[l.place] = next, next
	l.rouseLocked()
	return true
}

// pass returns what the release of t says, and in whose favour: the ticket of who
// waits for the lock in this process, or nil.
func (t *tenure) pass() (luascripts.Keys, luascripts.Pass, *tenure) {
	s, k, p := t.s, t.spec.Keys, luascripts.Pass{Last: t.token, Spare: t.spec.spare()}
	if t.spec.Pass == nil {
		return k, p, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lines[t.spec.place()]
	if l == nil || s.closed || l.gift != nil || l.waiters[0].spec == nil {
		return k, p, nil
	}
	spec := l.waiters[0].spec
	l.listenEarlyLocked(spec)
	heir := l.ticketLocked(spec)
	heir.traced = true // from when this is sent
	p.Heir, p.Offer, p.Again, p.Patience = heir.owner, s.offer(spec), l.pace, s.keep()
	heir.longest, heir.patience = max(heir.longest, p.Offer), max(heir.patience, p.Patience)
	if r := spec.Keys.Register; r != "" {
		k.Register, p.Spare = r, maxPasses
	}
	return k, p, heir
}

// unhold notes that the lock is not t's any more, as far as this process goes.
// Whoever waits here may ask again.
func (s *Session) unhold(t *tenure) {
	if t.spec.Pass == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unholdLocked(t)
}

func (s *Session) unholdLocked(t *tenure) {
	place := t.spec.place()
	if s.held[place] != t {
		return
	}
	delete(s.held, place)
	if l := s.lines[place]; l != nil && !l.waiters[0].isFirst() {
		l.rouseLocked()
	}
}

// inherit sees to the heir of a release by pass, with what is known of it: the answer of
// the release, or its error.
func (s *Session) inherit(ticket *tenure, pass luascripts.Pass, g given, err error) {
	s.mu.Lock()
	l := s.lines[ticket.spec.place()]
	mine := l != nil && l.ticket == ticket
	over := ticket.over
	switch {
	case err != nil:
		ticket.unsure = true
	case mine && g.Token != 0:
		l.grantLocked(g.sent, pass.Offer, g.Token)
	case mine && g.Aside:
		l.stepAside(luascripts.Aside)
		l.hint()
	case mine && g.Verdict == luascripts.Done:
		l.askAt = l.dueLocked(luascripts.NoExpiry)
		l.listenLocked(ticket.spec, g.sent) // and asks then, as a message before that is lost
	}
	if l != nil && (err != nil || g.Verdict != luascripts.Done) {
		l.askAt = time.Time{}
		l.hint()
	}
	s.mu.Unlock()
	if over != lives {
		// It was given up meanwhile, and what took it back may have come too soon.
		s.work.Go(func() { s.settle(ticket, err != nil) })
	}
}

// ticket returns the tenure in whose name w asks, which is the first, and for what it
// stands in line then.
func (w *waiter) ticket() (t *tenure, offer time.Duration) {
	w.line.s.mu.Lock()
	defer w.line.s.mu.Unlock()
	return w.line.ticketLocked(w.spec), w.line.s.offer(w.spec)
}

// again is after how long l asks again if it is refused and hears nothing.
func (l *line) again() time.Duration {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	return cmp.Or(l.deaf, l.pace)
}

// unheardLocked says that no message reaches this process. It returns after how long to
// ask again.
func (l *line) unheardLocked() time.Duration {
	pause := cmp.Or(l.deaf, deafPause)
	if time.Since(l.waiters[0].since) >= deafPolls*l.pace {
		l.deaf = l.pace // now the lock waits for it for that long
		return l.pace
	}
	if l.deaf = 2 * pause; l.deaf > l.pace {
		l.deaf = deafPause
	}
	return pause
}

// ticketLocked returns the tenure in whose name l asks, for a waiter with this spec.
func (l *line) ticketLocked(spec *Spec) *tenure {
	if t := l.ticket; t != nil && t.spec.Keys.Register != spec.Keys.Register {
		l.ticket = nil
		l.s.orphanLocked(t)
	}
	if l.ticket == nil {
		l.ticket = l.s.newTenure(spec, nil)
	}
	return l.ticket
}

// grantLocked makes the gift of the ticket, which was granted for offer by a command
// sent at sent, if that does for the first waiter; else that one has a reason to ask.
func (l *line) grantLocked(sent time.Time, offer time.Duration, token uint64) {
	t := l.ticket
	first := l.waiters[0].spec
	switch {
	case !first.takes(t) || time.Since(sent) > watchdog.Trusted(offer)-offer/3:
		l.askAt = time.Time{}
	default:
		l.ticket = nil
		t.token, t.since, t.counted = token, time.Now(), 1
		t.lease = l.s.dog.Watch(t, sent, offer, true)
		l.gift, l.s.held[l.place] = t, t
	}
	l.rouseLocked()
}

// isGift reports whether t holds the lock for a line of which nobody has taken it yet.
func (t *tenure) isGift() bool {
	if t.spec.Pass == nil {
		return false
	}
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	l := t.s.lines[t.spec.place()]
	return l != nil && l.gift == t
}

// told hears that this process may have been granted the lock. It does not block.
func (l *line) told(string) {
	l.aside.Store(nil)
	l.hint()
}

// letGoLocked notes that a lock was let go for others, and that no waiter of this process
// was there to hear it. The next ones ask a little later.
func (s *Session) letGoLocked(p place) {
	now := time.Now()
	if len(s.letGo) >= 100 {
		maps.DeleteFunc(s.letGo, func(_ place, until time.Time) bool { return now.After(until) })
	}
	s.letGo[p] = now.Add(asideTime)
}

// stepAside notes that somebody else should be the first to ask. It does not block.
func (l *line) stepAside(message string) {
	if message == luascripts.Aside {
		end := time.Now().Add(asideTime)
		l.aside.Store(&end)
	}
}

// take gives the gift of the line to w, which is the first, for the claim c; or nil if
// there is none.
func (w *waiter) take(c *claim) *tenure {
	l := w.line
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	t := l.gift
	if t == nil {
		return nil
	}
	l.gift = nil
	if t.over != lives {
		return nil // lost meanwhile
	}
	if s.closed || !w.spec.takes(t) {
		s.orphanLocked(t)
		return nil
	}
	t.claim = c
	c.holdLocked(t)
	return t
}

// adopt makes the ticket, which was granted as the answer to a question of w, the
// tenure of the claim c. It reports whether it was known to be granted already.
func (w *waiter) adopt(t *tenure, c *claim) (known bool) {
	l := w.line
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if l.gift != nil && l.gift != t {
		// Redis has it as the ticket's: what was passed on is lost.
		l.s.orphanLocked(l.gift)
		l.gift = nil
	}
	known = l.gift == t
	l.gift, l.ticket = nil, nil
	t.claim, t.asked = c, w.since
	if !known {
		t.spec = w.spec
	}
	switch {
	case !known || t.over != lives:
	case l.s.closed:
		t.endLocked(closed) // Close did not see it, or would give it back
	default:
		c.holdLocked(t)
	}
	return known
}

// orphanLocked gives back a tenure that nobody takes.
func (s *Session) orphanLocked(t *tenure) {
	if t.over == lives {
		t.endLocked(released)
	}
	s.unholdLocked(t)
	if t.lease == nil && !t.traced && !t.unsure {
		return // Redis has not heard of it
	}
	unsure := t.unsure
	s.work.Go(func() {
		if t.lease != nil {
			t.lease.Stop(context.Background()) // no renewal may follow the release
		}
		s.settle(t, unsure)
	})
}

// giveUp ends what t asks for because of err: for good, or until the next in line goes
// on with it.
func (w *waiter) giveUp(t *tenure, err error) error {
	if t == nil {
		return err // it never asked
	}
	l := w.line
	l.s.mu.Lock()
	if l.gift == t {
		l.s.mu.Unlock()
		return err // for the next, or for the line to give up
	}
	if l.ticket != t {
		l.s.mu.Unlock()
		return t.fail(err)
	}
	defer l.s.mu.Unlock()
	if t.unsure || t.pending > 0 {
		// It may come to hold the lock when nobody expects it any more.
		l.ticket = nil
		l.s.orphanLocked(t)
	}
	return err // when the last waiter leaves, the line gives it up
}

// accept makes the hold of a tenure that w took, which is under ctx.
func (s *Session) accept(ctx context.Context, w *waiter, t *tenure) (*hold, error) {
	h := &t.first
	h.init(ctx, t, false)
	if t.add(h) {
		s.observeAcquired(h, w.since)
		return h, nil
	}
	err := error(tooLate{s.offer(w.spec), time.Since(w.since)})
	if _, over := t.state(); over == closed {
		err = final{lock.ErrClosed}
	}
	return nil, err
}

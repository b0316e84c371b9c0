package session

import (
	"context"
	"strconv"
	"strings"
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
// maxPassTime, it is released, and the same script gives it to the first in line,
// which is a process; so is this one, at the end. That process is told by a message
// to a channel of its own. Both ways the lock comes to the line of waiters first, as
// a tenure that no owner has yet, and whoever is first there takes it.
//
//	ticket  the tenure in whose name the line asks, and stands in line in Redis
//	gift    a tenure that holds the lock, and that the first waiter takes
//
// A message that grants the lock is believed only as far as the lease reaches that
// counts from the ticket's latest refusal, and only if it names that question: the grant
// came after it. One of before is over, as the refusal says. What is lost, late or made
// up costs a question, or is found out by the first renewal.

const (
	maxPasses   = 64                    // of tokens in a row, too, that a register gives out at once
	maxPassTime = 10 * time.Millisecond // after that somebody elsewhere may be next

	offerPolls = 3 // for how many poll intervals a process in line is granted the lock: what it costs if it died
	keepPolls  = 2 // and for how many, and a half, its place is kept unheard

	// For so long we do not ask for a free lock that is for others. Redisson wakes a
	// thread before it asks, which takes it a few times as long as us.
	asideTime = 5 * time.Millisecond
)

// offer is what spec's lock is granted for when it comes to this process in line. The
// first renewal makes it a full lease.
func (s *Session) offer(spec *Spec) time.Duration { return min(offerPolls*s.Poll, s.lease(spec)) }

// keep is how long a place in line lives unheard.
func (s *Session) keep() time.Duration { return keepPolls*s.Poll + s.Poll/2 }

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
	case t.unsure || t.pending > 0 || t.counted != 1:
		return false
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
		s: s, spec: t.spec, owner: t.owner, asked: t.asked, token: t.token + 1, lease: t.lease,
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
	heir.asks++
	p.Heir, p.Offer, p.Patience, p.Ask = heir.owner, heir.offerLocked(spec), s.keep(), heir.asks
	if r := spec.Keys.Register; r != "" {
		k.Register, p.Spare, p.Fenced = r, maxPasses, true
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

// inherit sees to the heir of a release, which was its question of this number: what is
// known of it, sent when the release was sent, or the error of the release.
func (s *Session) inherit(ticket *tenure, sent time.Time, ask int, reply luascripts.Passed, err error) {
	s.mu.Lock()
	l := s.lines[ticket.spec.place()]
	mine := l != nil && l.ticket == ticket
	over := ticket.over
	switch {
	case err != nil:
		ticket.unsure = true
	case mine && reply.Token != 0:
		l.grantLocked(sent, reply.Token)
	case mine && reply.Verdict == luascripts.Done:
		ticket.listed, ticket.ask = sent, ask
		l.askAt = l.dueLocked(luascripts.NoExpiry)
		l.listenLocked(ticket.spec, sent) // and asks then, as a message before that is lost
	}
	if l != nil && (err != nil || reply.Verdict != luascripts.Done) {
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
	t = w.line.ticketLocked(w.spec)
	return t, t.offerLocked(w.spec)
}

// number returns the number of t's next question.
func (t *tenure) number() int {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	t.asks++
	return t.asks
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

// offerLocked is what the lock will be granted for to the ticket t, after a command for
// a waiter with this spec. It never grows: commands may overtake each other.
func (t *tenure) offerLocked(spec *Spec) time.Duration {
	offer := t.s.offer(spec)
	if t.offered == 0 || offer < t.offered {
		t.offered = offer
	}
	t.longest = max(t.longest, t.offered, t.s.keep())
	return t.offered
}

// grantLocked makes the gift of the ticket, whose lease counts from sent, if that does
// for the first waiter; else that one has a reason to ask.
func (l *line) grantLocked(sent time.Time, token uint64) {
	t, offer := l.ticket, l.ticket.offered
	first := l.waiters[0].spec
	switch {
	case first == nil: // it has no use for it
		l.ticket = nil
		l.s.orphanLocked(t)
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

// note is what a message says: that an owner was granted the lock, in the place that this
// question of it had in line.
type note struct {
	owner string
	token uint64
	ask   int
}

// told keeps what a message says for the first waiter. It does not block.
func (l *line) told(message string) {
	if words := strings.Split(message, " "); len(words) == 3 {
		token, err := strconv.ParseUint(words[1], 10, 64)
		if ask, bad := strconv.Atoi(words[2]); err == nil && bad == nil {
			l.note.Store(&note{words[0], token, ask})
			l.aside.Store(nil)
		}
	}
	l.hint()
}

// stepAside notes that somebody else should be the first to ask. It does not block.
func (l *line) stepAside(message string) {
	if message == luascripts.Aside {
		end := time.Now().Add(asideTime)
		l.aside.Store(&end)
	}
}

// hearLocked makes the gift that the latest message told of.
func (l *line) hearLocked() {
	n, t := l.note.Swap(nil), l.ticket
	if n != nil && t != nil && l.gift == nil && n.owner == t.owner && n.ask == t.ask && !t.listed.IsZero() {
		l.grantLocked(t.listed, n.token)
	}
}

// take gives the gift of the line to w, which is the first, for the claim c; or nil if
// there is none.
func (w *waiter) take(c *claim) *tenure {
	l := w.line
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	l.hearLocked()
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
	t.claim, t.asked = c, w.since
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

package place

import (
	"slices"
	"time"
)

// How the readers of a process share one read hold in Redis.
//
// The tenure of a reader that was let in is open for a while: other readers join it without a
// command, each as an owner of its own with holds of its own. Redis has all of them as one
// owner with one hold, and one more for each time that one of them enters once more. The
// last of them to leave gives it back.
//
// A reader that joins has not asked whether a writer waits. So a tenure is open only for
// readers that came at most ShareTime, and a round trip, after the reader that asked; and
// only for ShareTime after the answer. A reader that comes later asks, for a tenure of its
// own that is the open one then; a writer that came in between refuses that. And no reader
// joins while this process knows of a writer that waits.
//
// Readers that come while such a question is under way ride along: the answer lets them in,
// too. They are let in before any of them runs, so that a reader that leaves at once is not
// the last.

// ShareTime is how much later than a reader that asked others may come and enter without a
// question. For so long, and a round trip, a writer can be passed by readers that came after
// it.
const ShareTime = 10 * time.Millisecond

// reading is what the readers of a place have in common.
type reading struct {
	open     *Tenure // readers may join it; nil if there is none
	trip     *trip   // the latest question, if it is under way; else nil
	trips    int     // how many questions are under way
	refusals int     // how often a reader was refused so far
}

// trip is a question for whose answer other readers wait as well.
type trip struct {
	t        *Tenure   // in whose name it is asked
	sent     time.Time // when
	refusals int       // what reading.refusals was then
	riders   []*Waiter // get holds of t if it is granted
	landed   bool      // the answer is there,
	landing            // and this is it
}

// landing is the answer to a question. The zero landing is none: the reader that asked did not
// wait for it, or it says nothing about other readers.
type landing struct {
	granted bool
	refused bool          // others have the lock,
	left    time.Duration // for that long if nothing happens
	err     error         // an error came instead
}

// rider is what a reader knows of its own question and of another's.
type rider struct {
	Seat  *Hold     // the session's: the hold that it gets if another's question lets it in
	own   *trip     // its own question, while that is under way
	trip  *trip     // another's question, while it rides along with that
	until time.Time // then it gives up riding along
	alone bool      // it asks for itself: the other reader was refused, and this one may be let in
}

// opens has readers join t from now on; with nil none can.
func (s *side) opens(t *Tenure) { s.open = t }

// suitsReader reports whether a reader with these terms can join t: t has a token of the same
// register, and its question waited behind writers if the reader does.
func (t *Tenure) suitsReader(c *Terms) bool {
	return c.Register == t.Terms.Register && (t.Terms.Yield || !c.Yield)
}

// Open returns the tenure that a reader with these terms, which came at came, may join now;
// nil if there is none.
func (p *Place) Open(c *Terms, came, now time.Time) *Tenure {
	t := p.side(true).open
	if t == nil || p.closed || !t.suitsReader(c) || came.After(t.grant.latest) || now.Sub(t.grant.since) > ShareTime || p.writerWaits(c) {
		return nil
	}
	return t
}

// writerWaits reports whether a writer waits which readers with these terms let pass, as far
// as this process knows.
func (p *Place) writerWaits(c *Terms) bool {
	if !c.Yield {
		return false
	}
	if l := p.side(true).line(c); l != nil && l.shut {
		return true // a reader was refused: a writer writes or waits, perhaps in another process
	}
	for _, l := range p.side(false).lines {
		if l.apart == 0 && slices.ContainsFunc(l.waiters, func(w *Waiter) bool { return !w.once }) {
			return true
		}
	}
	return false
}

// WaitToRead notes that w waits in line for its owner's first hold to read. writes says that
// the owner writes: then Redis lets it in at once, and w asks whichever waiter is the first,
// as those before it may wait for that very writer.
func (p *Place) WaitToRead(w *Waiter, writes bool) {
	w.Owner.waits = w
	if writes {
		w.reason = true
	}
}

// readOn has the owner of t, which came to write just now, ask to read if it waits for that.
func (p *Place) readOn(t *Tenure) {
	if !t.Terms.Sided || t.Terms.Reads {
		return
	}
	if o := t.owner.other(); o != nil && o.waits != nil {
		p.Prompt(o.waits)
	}
}

// Seat makes h a hold of t for the owner of this number, without a command. It reports false
// if t is not open any more, or if fresh says that the owner must be new, and it is not.
func (p *Place) Seat(t *Tenure, h *Hold, number uint64, fresh bool) bool {
	s := p.side(true)
	o := s.owners[number]
	if s.open != t || p.closed || fresh && o != nil {
		return false
	}
	if o == nil {
		o = s.newOwner(number, h.By)
	}
	o.hold(t)
	return p.Add(t, o, h)
}

// nextToRead is Next for a reader.
func (p *Place) nextToRead(w *Waiter, beside *Tenure, limit time.Duration, now time.Time) Step {
	if w.trip != nil {
		step, over := p.landed(w, beside, now)
		if !over || step.Do != Ask {
			return step
		}
		return p.share(w, beside, limit, now)
	}
	if ready, due := w.next(now); !ready {
		return Step{Do: Wait, Due: due}
	}
	return p.share(w, beside, limit, now)
}

// share returns the Step of a reader that has a reason to ask. It may join another reader, or
// ride along with another's question, instead.
func (p *Place) share(w *Waiter, beside *Tenure, limit time.Duration, now time.Time) Step {
	if w.Tenure.Turn != nil && beside == nil {
		if t := p.Open(w.Terms, w.Tenure.Came, now); t != nil {
			w.reason = true // it asks if that tenure turns out to be over
			return Step{Do: Join, Tenure: t}
		}
		if p.ride(w, limit, now) {
			return Step{Do: Wait, Due: w.until}
		}
		p.depart(w, now)
	}
	return p.askStep(w, beside, now)
}

// ride has w ride along with another reader's question, if one is under way whose answer holds
// for w. It reports whether w does. A reader whose own question broke off asks itself: Redis may have
// let it in, and then it would keep writers out, and wait behind them.
func (p *Place) ride(w *Waiter, limit time.Duration, now time.Time) bool {
	s := p.side(true)
	f := s.trip
	if w.until.IsZero() {
		w.until = now.Add(limit)
	}
	if f == nil || w.alone || w.Tenure.unsure || f.refusals != s.refusals || !f.t.suitsReader(w.Terms) || w.Tenure.Came.After(f.t.Came.Add(ShareTime+now.Sub(f.sent))) || p.writerWaits(w.Terms) {
		return false
	}
	w.trip = f
	f.riders = append(f.riders, w)
	return true
}

// depart notes that the question of w is about to be sent, and that others may ride along.
func (p *Place) depart(w *Waiter, now time.Time) {
	s := p.side(true)
	w.own = &trip{t: w.Tenure, sent: now, refusals: s.refusals}
	w.alone, w.until = false, time.Time{}
	s.trip = w.own
	s.trips++
}

// land records the answer to the question of w for t. A grant lets in the readers that rode
// along, and opens t to others. A refusal ends that others join.
func (p *Place) land(w *Waiter, t *Tenure, how landing, now time.Time) {
	s := p.side(t.Terms.Reads)
	if w == nil || w.own == nil {
		if how.refused && t.Terms.Reads && t.Terms.Yield {
			s.refuse()
		}
		return
	}
	f := w.own
	w.own = nil
	f.landed, f.landing = true, how
	if s.trip == f {
		s.trip = nil
	}
	s.trips--
	switch {
	case how.granted && !t.grant.writes && !t.unsure && t.pending == 0:
		t.grant.latest = t.Came.Add(ShareTime + t.grant.since.Sub(f.sent))
		if f.refusals == s.refusals && (s.open == nil || !t.grant.latest.Before(s.open.grant.latest)) {
			s.opens(t)
		}
		for _, r := range f.riders {
			r.Owner.hold(t)
			p.Add(t, r.Owner, r.Seat)
		}
	case how.granted:
		f.landing = landing{} // t is not one to share: the riders ask
	case how.refused && t.Terms.Yield:
		s.refuse()
	}
	for _, r := range f.riders {
		p.act(Action{Verb: Wake, Waiter: r})
	}
}

// refuse ends that readers join: one was refused, so a writer waits or writes.
func (s *side) refuse() {
	s.refusals++ // so that a question sent before opens nothing if its grant comes later
	s.opens(nil)
}

// unshare ends that readers join t, which is over.
func (p *Place) unshare(t *Tenure) {
	if s := p.side(true); s.open == t {
		s.opens(nil)
	}
}

// landed returns the Step of a waiter that rides along, and whether the ride is over.
func (p *Place) landed(w *Waiter, beside *Tenure, now time.Time) (step Step, over bool) {
	f := w.trip
	if !f.landed {
		if now.Before(w.until) {
			return Step{Do: Wait, Due: w.until}, false
		}
		w.leaveTrip()
		w.until = time.Time{}
		return Step{Do: Fail, Sent: f.sent}, true
	}
	w.trip = nil
	switch {
	case f.granted:
		step = Step{Do: Share, Hold: w.Seat}
	case f.err != nil:
		step = Step{Do: Fail, Sent: f.sent, Err: f.err}
	case f.refused && !w.Tenure.Came.Before(f.t.Came) && w.Terms.Yield == f.t.Terms.Yield && beside == nil:
		step = Step{Do: Refuse, Sent: f.sent, Left: f.left}
	default:
		w.alone = f.refused // it came sooner, or does not wait behind writers, or writes: it may be let in
		return Step{Do: Ask}, true
	}
	w.until, w.alone = time.Time{}, false
	return step, true
}

// CameIn records that w came in with another reader, and so without an answer of its own.
func (p *Place) CameIn(w *Waiter, now time.Time) {
	if l := w.line; l != nil {
		l.silence.hears(w.asked)
		w.Terms.Discipline.granted(l, w, now)
	}
}

// Rides returns when the question was sent that w rides along with, if it does.
func (w *Waiter) Rides() (sent time.Time, rides bool) {
	if w.trip == nil {
		return time.Time{}, false
	}
	return w.trip.sent, true
}

// leaveTrip ends that w rides along. If the question has let w in already, it returns the hold
// of w.
func (w *Waiter) leaveTrip() (seat *Hold) {
	f := w.trip
	if f == nil {
		return nil
	}
	w.trip = nil
	if f.landed {
		if f.granted {
			return w.Seat
		}
		return nil
	}
	f.riders = slices.DeleteFunc(f.riders, func(r *Waiter) bool { return r == w })
	return nil
}

package place

import (
	"slices"
	"time"
)

// How the readers of a process share one read hold in Redis.
//
// The tenure of a reader that was let in is open for others for a while: they enter
// by being counted here, each as an owner of its own with holds of its own. Redis has
// all of them as one owner with one hold, and one more for each time that one of them
// enters once more. The last of them to leave gives it back.
//
// A reader that joins has not asked whether a writer waits. So a tenure is open only for
// readers that came at most ShareTime, and a round trip, after the reader that asked; and
// for no longer than that after the answer. A reader that comes later asks, for a tenure
// of its own that is the open one then; a writer that came in between refuses that. And
// nobody joins once this process knows of a writer that waits.
//
// Readers that come while such a question is under way ride along: the answer is for
// them too. They are let in before any of them runs, so that a reader that leaves at
// once is not the last.

// ShareTime is how much later than a reader, which asked, others may come and enter
// without a question. As long can a writer be passed by readers that came after it.
const ShareTime = 10 * time.Millisecond

// reading is what the readers of a place have in common.
type reading struct {
	open     *Tenure // may be joined; nil if none may
	trip     *trip   // the latest question that is under way; nil if that one is answered
	trips    int     // how many are under way
	refusals int     // how often a reader was refused meanwhile
}

// trip is a question that others wait for as well.
type trip struct {
	t        *Tenure   // in whose name it is asked
	sent     time.Time // when
	refusals int       // those of reading, by then
	riders   []*Waiter // their holds are of t if it is granted
	landed   bool      // the answer is there
	landing            // which is this
}

// landing is what became of a question. If it is nothing of these, nobody waited for the
// answer.
type landing struct {
	granted bool
	refused bool          // others have the lock,
	left    time.Duration // for that long if nothing happens
	err     error         // what Redis said if that was no answer
}

// rider is what a reader knows of the questions of others, and of its own.
type rider struct {
	Seat  *Hold     // the session's: the hold that it gets if it is let in with another reader
	own   *trip     // its own question, while it is under way
	trip  *trip     // the question of another that it waits for
	until time.Time // for so long
	alone bool      // it asks itself: it may be let in where the other reader was refused
}

// opens has readers join t from now on; nil is nobody.
func (s *side) opens(t *Tenure) { s.open = t }

// suitsReader reports whether what t asked is enough for a reader with these terms.
func (t *Tenure) suitsReader(c *Terms) bool {
	return c.Register == t.Terms.Register && (t.Terms.Yield || !c.Yield)
}

// Open returns the tenure that a reader with these terms, which came then, may join now; nil
// if there is none.
func (p *Place) Open(c *Terms, came, now time.Time) *Tenure {
	t := p.side(true).open
	if t == nil || p.closed || !t.suitsReader(c) || came.After(t.grant.latest) || now.Sub(t.grant.since) > ShareTime || p.writerWaits(c) {
		return nil
	}
	return t
}

// writerWaits reports whether a writer of this process waits which readers with these terms
// let pass.
func (p *Place) writerWaits(c *Terms) bool {
	if !c.Yield {
		return false
	}
	if l := p.side(true).line(c); l != nil && l.shut {
		return true // or one elsewhere
	}
	for _, l := range p.side(false).lines {
		if l.apart == 0 && slices.ContainsFunc(l.waiters, func(w *Waiter) bool { return w.stands }) {
			return true
		}
	}
	return false
}

// WaitToRead notes that w waits in line for the first hold of its owner. An owner that
// writes is let in whatever waits, so it asks wherever it stands: those before it may wait
// for that very writer.
func (p *Place) WaitToRead(w *Waiter, writes bool) {
	w.Owner.waits = w
	if writes {
		w.reason = true
	}
}

// readOn lets the owner of t, which has come to write, ask if it waits to read as well.
func (p *Place) readOn(t *Tenure) {
	if !t.Terms.Sided || t.Terms.Reads {
		return
	}
	if o := t.owner.other(); o != nil && o.waits != nil {
		p.Ask(o.waits)
	}
}

// Seat makes h a hold of t for the owner of this number, if t is open yet. It is for a reader
// that joins without a command. If fresh, no call or hold of the owner may be here.
func (p *Place) Seat(t *Tenure, h *Hold, number uint64, fresh bool) bool {
	s := p.side(true)
	o := s.owners[number]
	if s.open != t || p.closed || fresh && o != nil {
		return false
	}
	if o == nil {
		o = s.newOwner(number)
	}
	o.hold(t)
	return p.Add(t, o, h)
}

// ride has w wait for the question of another reader if one is under way that is as good as
// its own, and reports whether it does.
func (p *Place) ride(w *Waiter, limit time.Duration, now time.Time) bool {
	s := p.side(true)
	f := s.trip
	if w.until.IsZero() {
		w.until = now.Add(limit)
	}
	if f == nil || w.alone || f.refusals != s.refusals || !f.t.suitsReader(w.Terms) || w.Tenure.Asked.After(f.t.Asked.Add(ShareTime+now.Sub(f.sent))) || p.writerWaits(w.Terms) {
		return false
	}
	w.trip = f
	f.riders = append(f.riders, w)
	return true
}

// depart notes that w's question is about to be sent, and that others may ride along.
func (p *Place) depart(w *Waiter, now time.Time) {
	s := p.side(true)
	w.own = &trip{t: w.Tenure, sent: now, refusals: s.refusals}
	w.alone, w.until = false, time.Time{}
	s.trip = w.own
	s.trips++
}

// land lets those in that waited for the question of w for t, if it was granted, and opens
// the tenure to others.
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
	case how.granted && t.Lives() && !t.grant.beside && !t.unsure && t.pending == 0 && !p.closed:
		t.grant.latest = t.Asked.Add(ShareTime + t.grant.since.Sub(f.sent))
		if f.refusals == s.refusals && (s.open == nil || !t.grant.latest.Before(s.open.grant.latest)) {
			s.opens(t)
		}
		for _, r := range f.riders {
			r.Owner.hold(t)
			p.Add(t, r.Owner, r.Seat)
		}
	case how.granted:
		f.landing = landing{} // not for others
	case how.refused && t.Terms.Yield:
		s.refuse()
	}
	for _, r := range f.riders {
		p.act(Action{Verb: Wake, Waiter: r})
	}
}

// refuse ends that others join: a reader was refused, as a writer waits, or writes.
func (s *side) refuse() {
	s.refusals++ // also those that were asked for before, and come to know late
	s.opens(nil)
}

// unshare ends that others join t, which is over.
func (p *Place) unshare(t *Tenure) {
	if s := p.side(true); s.open == t {
		s.opens(nil)
	}
}

// landed is Next for a waiter that rides along. It reports whether that is over.
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
	case f.refused && !w.Tenure.Asked.Before(f.t.Asked) && w.Terms.Yield == f.t.Terms.Yield && beside == nil:
		step = Step{Do: Refuse, Sent: f.sent, Left: f.left}
	default:
		w.alone = f.refused // as it came sooner, or lets nobody pass, it may be let in
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

// leaveTrip ends that w rides along. It returns the hold of w if it has one already.
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

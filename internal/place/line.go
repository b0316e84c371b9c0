package place

import (
	"slices"
	"time"
)

// Line is where the waiters of this process stand for one side of one lock, first come,
// first served. What it has learnt about when to ask next stays with it when the next
// waiter is the first.
type Line struct {
	side    *side
	apart   Apart
	waiters []*Waiter
	only    Waiter  // memory for the first of a new line
	roused  bool    // the first waiter leads: it asks when there is a reason to
	shut    bool    // the latest answer was that others have the lock
	listens bool    // it hears of the lock
	silence Silence // whether there are answers
	when    schedule
	hand    hand
	beat    heartbeat
	Ears    any // the session's: how it hears of the lock; nil if it does not
}

// schedule says when a line asks.
type schedule struct {
	askAt  time.Time     // a question, or a heartbeat, is due then without a hint; zero is at once
	pace   time.Duration // and that often
	hinted bool          // something happened to the lock
	armed  bool          // Alarm will come
	timed  bool          // it was armed once
	aside  time.Time     // until then others come first
	deaf   time.Duration // after how long it asks again if no message reaches this process; 0 if one does, as far as is known
}

// hand is what a line has of a kind that is passed on.
type hand struct {
	ticket  *Tenure // Queued: the waiters ask in its name; nil before the first question
	offered *Tenure // Offered: for the first waiter to take; nil if there is none
}

// Waiter is a call that waits for a lock, or makes one attempt.
type Waiter struct {
	Wake   chan struct{} // the session's: cap 1; the call looks at Next again
	Terms  *Terms        // what it asks for
	Owner  *Owner        // for which owner
	Tenure *Tenure       // in whose name it asks; nil if it asks in that of its line, or for several locks at once
	Of     any           // the session's

	line   *Line     // nil if it stands in none
	since  time.Time // when it came
	stands bool      // for what comes to the line; else for the answer to its own question alone
	once   bool      // it makes one attempt
	asking
	queued queued // of kinds with a queue in Redis
	rider         // of readers
}

// asking is why and when a waiter asks, wherever it stands.
type asking struct {
	reason  bool      // it has a reason to ask now
	retryAt time.Time // it asks again then; zero if not
	asked   time.Time // when its latest question was due
}

// Stay says for what a waiter stands in a line: for anything that comes to it, or for the
// answer to its own question alone.
type Stay bool

const (
	Stands Stay = true
	Passes Stay = false
)

// line returns the line in which waiters with these terms stand; nil if there is none.
func (s *side) line(c *Terms) *Line {
	for _, l := range s.lines {
		if l.apart == c.Apart {
			return l
		}
	}
	return nil
}

// Line returns the line in which waiters with these terms stand; nil if there is none.
func (p *Place) Line(c *Terms) *Line { return p.side(c.Reads).line(c) }

// Silence returns what the line knows of how Redis answers; nil for no line.
func (l *Line) Silence() *Silence {
	if l == nil {
		return nil
	}
	return &l.silence
}

// Line returns the line that w stands in; nil if it stands in none.
func (w *Waiter) Line() *Line { return w.line }

// Since returns when w came.
func (w *Waiter) Since() time.Time { return w.since }

// First reports whether w is the first of its line.
func (w *Waiter) First() bool { return w.line != nil && w.line.waiters[0] == w }

// leads reports whether w is the first of its line, and has something to do.
func (w *Waiter) leads() bool { return w.First() && w.line.roused }

// Waiter returns a waiter for these terms, which is about to Join, or to Try once. It is the
// memory of the line that is made for it, if it is the first.
func (p *Place) Waiter(c *Terms, once bool) *Waiter {
	s := p.side(c.Reads)
	if s.line(c) != nil || once && !c.Discipline.inLine() {
		return new(Waiter)
	}
	if s.spare == nil {
		s.spare = new(Line)
	}
	return &s.spare.only
}

// Join has w take a place at the end of the line of its terms.
func (p *Place) Join(w *Waiter, stay Stay, now time.Time) {
	s := p.side(w.Terms.Reads)
	l := s.line(w.Terms)
	if l == nil {
		l = s.newLine(w.Terms.Apart)
	}
	w.line, w.since, w.stands = l, now, bool(stay)
	if len(l.waiters) == 0 {
		l.roused = s.held == nil
	}
	if w.Terms.Patience > 0 {
		l.when.pace = min(l.when.pace, w.Terms.Patience/3) // its trace in Redis must not fade
	}
	l.waiters = append(l.waiters, w)
	if w.Terms.Discipline.asksAtOnce(l) {
		w.reason = true
	}
	l.arm(now)
}

// Try has w make one attempt, and reports false if others are ahead of it.
func (p *Place) Try(w *Waiter, now time.Time) bool {
	w.since, w.reason, w.once = now, true, true
	if !w.Terms.Discipline.inLine() {
		return true
	}
	p.Join(w, Passes, now)
	return w.First()
}

func (s *side) newLine(a Apart) *Line {
	l := s.spare
	s.spare = nil
	if l == nil {
		l = new(Line)
	}
	l.side, l.apart = s, a
	l.when.pace, l.when.aside = s.p.rules.Poll, s.letGo
	s.letGo = time.Time{}
	s.lines = append(s.lines, l)
	return l
}

// Quit has w give up its place in the line. The waiter behind it moves up.
func (p *Place) Quit(w *Waiter, now time.Time) {
	l := w.line
	if l == nil {
		return
	}
	l.unqueue(w)
	if w.Owner.waits == w {
		w.Owner.waits = nil
	}
	i := slices.Index(l.waiters, w)
	l.waiters = slices.Delete(l.waiters, i, i+1)
	switch {
	case len(l.waiters) == 0:
		l.end()
		return
	case i > 0:
		return
	case !l.waiters[0].stands:
		l.refuse()
	}
	l.roused = false
	if l.hand.offered == nil && l.side.held != nil {
		l.arm(now) // its holder in this process will pass it on
	} else {
		l.rouse()
	}
}

// end is for a line that nobody stands in any more.
func (l *Line) end() {
	s := l.side
	s.lines = slices.DeleteFunc(s.lines, func(other *Line) bool { return other == l })
	if l.listens {
		s.p.act(Action{Verb: Deafen, Line: l})
	}
	if l.beat.on {
		s.p.act(Action{Verb: Beat, Line: l}) // for the last time
	}
	l.refuse()
	heard := l.listens || l.beat.on || l.when.timed
	waiters := l.waiters
	*l = Line{waiters: waiters, only: Waiter{Wake: l.only.Wake, Of: l.only.Of}, Ears: l.Ears}
	if !heard && s.spare == nil { // else something outside may know of it yet
		s.spare = l
	}
}

// Ended reports whether nobody stands in l any more.
func (l *Line) Ended() bool { return l.side == nil }

// refuse gives back what came to the line, or may come yet: its first waiter has no use for
// it, or there is none.
func (l *Line) refuse() {
	for _, t := range []*Tenure{l.hand.ticket, l.hand.offered} {
		if t != nil {
			l.side.p.Fail(t)
		}
	}
	l.hand = hand{}
}

// wake has w look at Next again.
func (l *Line) wake(w *Waiter) { l.side.p.act(Action{Verb: Wake, Waiter: w}) }

// rouse tells the first waiter that it has something to do.
func (l *Line) rouse() {
	if l.roused {
		l.hint()
		return
	}
	l.roused = true
	l.wake(l.waiters[0])
}

// hint notes that something happened to the lock.
func (l *Line) hint() {
	l.when.hinted = true
	switch {
	case l.side == nil:
	case l.beat.on:
		l.side.p.act(Action{Verb: Beat, Line: l})
	case l.roused:
		l.wake(l.waiters[0])
	}
}

// arm sees to it that the first waiter asks in time although this process has the lock: it
// may have lost it without knowing.
func (l *Line) arm(now time.Time) {
	if !l.when.armed && l.side.held != nil {
		l.when.armed, l.when.timed = true, true
		l.side.p.act(Action{Verb: Arm, Line: l, Due: now.Add(l.when.pace)})
	}
}

// Alarm says that the time of an Arm has come.
func (l *Line) Alarm() {
	l.when.armed = false
	if l.side != nil && !l.roused {
		l.when.askAt = time.Time{}
		l.rouse()
	}
}

// due is when to look again if Redis said that nothing will happen for left; a negative
// left is no such word.
func (l *Line) due(now time.Time, left time.Duration) time.Time {
	d := l.when.pace
	if left >= 0 {
		d = min(left+time.Millisecond, d)
	}
	return now.Add(d)
}

// Hint notes that something happened to the lock: a message came, or the confirmation that
// the line listens.
func (l *Line) Hint() {
	if l.side != nil {
		l.hint()
	}
}

// Told notes a message to this process alone: it may have been granted the lock.
func (l *Line) Told() {
	l.when.aside = time.Time{}
	l.Hint()
}

// StepAside notes that somebody else should be the first to ask, until then.
func (l *Line) StepAside(until time.Time) { l.when.aside = until }

// Ask gives w a reason to ask, wherever it stands.
func (p *Place) Ask(w *Waiter) {
	w.reason = true
	p.act(Action{Verb: Wake, Waiter: w})
}

// LetGo notes that the lock was let go for others, which come first until then.
func (p *Place) LetGo(c *Terms, until time.Time) {
	s := p.side(c.Reads)
	if l := s.line(c); l != nil {
		l.StepAside(until)
	} else {
		s.letGo = until
	}
}

// Free tells the waiters on either side that the lock may be free, after an owner by these
// terms gave it back. Where Redis itself tells whose turn it is, or where others may still
// hold the lock, there is nothing to tell.
func (p *Place) Free(c *Terms) {
	if !c.Discipline.freed() {
		return
	}
	for i := range p.sides {
		for _, l := range p.sides[i].lines {
			l.hint()
		}
	}
}

// Listens reports whether l hears of the lock.
func (l *Line) Listens() bool { return l.listens }

// Listen has l hear of the lock from now on, if it does not. What there is to know was
// asked for at sent.
func (l *Line) Listen(c *Terms, sent time.Time) {
	if !l.listens {
		l.listens = true
		l.side.p.act(Action{Verb: Listen, Line: l, Terms: c, Sent: sent})
	}
}

// PassOver says that the lock may be free, but not for w: the next waiter must ask.
func (w *Waiter) PassOver() {
	if w.line != nil {
		w.line.when.askAt = time.Time{}
	}
}

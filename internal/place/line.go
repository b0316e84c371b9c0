package place

import (
	"slices"
	"time"
)

// Line is where the waiters of this process stand for one side of one lock, first come,
// first served. It ends with its last waiter. What it has learnt about when to ask stays
// with it when the next waiter comes to be the first.
type Line struct {
	side    *side // nil when the line has ended
	apart   Apart
	waiters []*Waiter // in the order in which they came
	only    Waiter    // memory for the first waiter of a new line
	roused  bool      // the first waiter is to ask when there is a reason; else it waits for what this process has
	shut    bool      // the latest answer was that others have the lock
	listens bool      // it is subscribed
	silence Silence   // since when Redis gives it no answer
	when    schedule
	hand    hand
	queues  bool // it has its waiters enter a queue in Redis
	beat    heartbeat
	Ears    any // the session's: how the line hears of the lock, and its heartbeat; nil before it needs them
}

// schedule says when a line asks, or sends a heartbeat.
type schedule struct {
	askAt  time.Time     // a question, or a heartbeat, is due then without a hint; zero is at once
	pace   time.Duration // and that often
	hinted bool          // something happened to the lock
	armed  bool          // Alarm will come
	timed  bool          // Alarm was to come once, so a timer may refer to the line
	aside  time.Time     // until then others come first, and a hint is no reason to ask
	deaf   time.Duration // the next pause, while no message reaches this process; 0 if messages do, as far as is known
}

// hand is what a line has of a lock that is passed on.
type hand struct {
	ticket  *Tenure // Queued: the waiters ask in its name; nil if none has asked
	offered *Tenure // Offered: for the first waiter to take; nil if there is none
	to      *Waiter // of a line that queues: which waiter is to take it
}

// Waiter is a call that waits for a lock, or makes one attempt.
type Waiter struct {
	Wake   chan struct{} // the session's: a token in it, which has room for one, has the call look at Next again
	Terms  *Terms        // what it asks for
	Owner  *Owner        // its owner
	Tenure *Tenure       // in whose name it asks; nil if that is the line's ticket, or if it asks for several locks at once
	Of     any           // the session's: the subscription of HearOwn
	Tells  bool          // its call looks at Next when the line has had it enter the queue, to tell its observer

	line  *Line     // nil if it stands in none
	since time.Time // when it came
	once  bool      // it makes one attempt, and takes nothing but the answer to its own question
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

// line returns the line in which waiters with these terms stand; nil if there is none.
func (s *side) line(c *Terms) *Line {
	for _, l := range s.lines {
		if l.apart == c.Apart {
			return l
		}
	}
	return nil
}

// Line returns the line in which waiters with these terms stand; nil if none waits.
func (p *Place) Line(c *Terms) *Line { return p.side(c.Reads).line(c) }

// Silence returns what the line knows of Redis' answers. It is nil for a nil line.
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

// leads reports whether w is the first of its line, and the line is roused.
func (w *Waiter) leads() bool { return w.First() && w.line.roused }

// Waiter returns a waiter for these terms, which is about to Join, or to Try once. If a new
// line will be made for it, it is memory of that line.
func (p *Place) Waiter(c *Terms, once bool) *Waiter {
	s := p.side(c.Reads)
	if s.line(c) != nil || once && !c.Discipline.inLine() {
		return new(Waiter)
	}
	if s.spare == nil {
		s.spare = s.p.rules.line()
	}
	return &s.spare.only
}

// Join has w stand at the end of the line of its terms.
func (p *Place) Join(w *Waiter, now time.Time) {
	s := p.side(w.Terms.Reads)
	l := s.line(w.Terms)
	if l == nil {
		l = s.newLine(w.Terms)
	}
	w.line, w.since = l, now
	if len(l.waiters) == 0 {
		l.roused = s.held == nil
	}
	if w.Terms.WaiterTimeout > 0 {
		l.when.pace = min(l.when.pace, w.Terms.WaiterTimeout/3) // its trace in Redis must not run out
	}
	l.waiters = append(l.waiters, w)
	switch {
	case w.Terms.Discipline.asksAtOnce(l):
		w.reason = true
	case l.queues:
		l.enter(w)
	}
	l.arm(now)
}

// Try has w make one attempt. It reports false if the kind's waiters stand in line, and others
// are ahead of w.
func (p *Place) Try(w *Waiter, now time.Time) bool {
	w.since, w.reason, w.once = now, true, true
	if !w.Terms.Discipline.inLine() {
		return true
	}
	p.Join(w, now)
	return w.First()
}

func (s *side) newLine(c *Terms) *Line {
	l := s.spare
	s.spare = nil
	if l == nil {
		l = s.p.rules.line()
	}
	l.side, l.apart, l.queues = s, c.Apart, c.Discipline.queues()
	l.when.pace, l.when.aside = s.p.rules.Poll, s.letGo
	s.letGo = time.Time{}
	s.lines = append(s.lines, l)
	return l
}

// Quit has w leave its line. If w was the first, the next waiter is from now on; and if that
// one does not want what comes to the line, it is given back.
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
		if l.queues {
			w.line = nil
		}
		l.end()
		return
	case l.queues:
		w.line = nil // an entry of it may be answered yet
		l.skip(w)
		return
	case i > 0:
		return
	case l.waiters[0].once:
		l.refuse()
	}
	l.roused = false
	if l.hand.offered == nil && l.side.held != nil {
		l.arm(now) // the holder in this process will pass the lock on, or give it back
	} else {
		l.rouse()
	}
}

// end ends the line, which has no waiter any more. Another place uses it again if nothing may
// refer to it: while a lock is held, its place needs none.
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
	// A question that is under way, and what the session has of the line, may refer to it and its waiter.
	known := l.listens || l.when.timed || l.queues || l.Ears != nil || s.p.flying > 0
	*l = Line{waiters: l.waiters, only: Waiter{Wake: l.only.Wake, Of: l.only.Of}, Ears: l.Ears}
	if !known {
		s.p.rules.lines.Put(l)
	}
}

// line returns a line that no place has.
func (r *Rules) line() *Line {
	if l, _ := r.lines.Get().(*Line); l != nil {
		return l
	}
	return new(Line)
}

// Ended reports whether l has ended.
func (l *Line) Ended() bool { return l.side == nil }

// refuse gives back what came to the line, or may come yet: the first waiter does not want
// it, or there is no waiter.
func (l *Line) refuse() {
	for _, t := range []*Tenure{l.hand.ticket, l.hand.offered} {
		if t != nil {
			l.side.p.Fail(t)
		}
	}
	l.hand = hand{}
}

// wake has the call of w look at Next again.
func (l *Line) wake(w *Waiter) { l.side.p.act(Action{Verb: Wake, Waiter: w}) }

// rouse has the first waiter look at Next: it may have a reason to ask, or something to take.
func (l *Line) rouse() {
	if l.roused {
		l.hint()
		return
	}
	l.roused = true
	l.wake(l.waiters[0])
}

// hint notes a hint: a reason for the line to ask, or to send a heartbeat.
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

// arm has Alarm called after a poll interval, if this process has the lock. Until then the
// first waiter need not ask. After that it must, as the lock may be lost and nobody may know.
func (l *Line) arm(now time.Time) {
	if !l.when.armed && l.side.held != nil && !l.queues {
		l.when.armed, l.when.timed = true, true
		l.side.p.act(Action{Verb: Arm, Line: l, Due: now.Add(l.when.pace)})
	}
}

// Alarm says that the time of an Arm has come. The line may have ended meanwhile.
func (l *Line) Alarm() {
	l.when.armed = false
	if l.side != nil && !l.roused {
		l.when.askAt = time.Time{}
		l.rouse()
	}
}

// due returns when to ask again if Redis said that nothing will happen for left. A negative
// left says nothing.
func (l *Line) due(now time.Time, left time.Duration) time.Time {
	d := l.when.pace
	if left >= 0 {
		d = min(left+time.Millisecond, d)
	}
	return now.Add(d)
}

// Hint notes a hint: a message came, or the confirmation of a subscription. The line may have
// ended meanwhile.
func (l *Line) Hint() {
	if l.side != nil {
		l.hint()
	}
}

// Told notes a message to this process alone, which may have been given the lock.
func (l *Line) Told() {
	l.when.aside = time.Time{}
	l.Hint()
}

// StepAside notes that the lock is let go for others, and that the line does not ask for it
// until then.
func (l *Line) StepAside(until time.Time) { l.when.aside = until }

// Prompt gives w a reason to ask, whichever waiter is the first.
func (p *Place) Prompt(w *Waiter) {
	w.reason = true
	p.act(Action{Verb: Wake, Waiter: w})
}

// LetGo notes that the lock was let go for others, which come first until then. If there is
// no line, the next one knows.
func (p *Place) LetGo(c *Terms, until time.Time) {
	s := p.side(c.Reads)
	if l := s.line(c); l != nil {
		l.StepAside(until)
	} else {
		s.letGo = until
	}
}

// Free gives the waiters on either side a hint, after an owner by these terms gave the lock
// back. It does nothing where Redis itself tells the next waiter, and where others may still
// hold the lock.
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

// Listens reports whether l is subscribed.
func (l *Line) Listens() bool { return l.listens }

// Listen has l subscribed, if it is not. Its latest question was sent at sent: what was said
// since then may be missed.
func (l *Line) Listen(c *Terms, sent time.Time) {
	if !l.listens {
		l.listens = true
		l.side.p.act(Action{Verb: Listen, Line: l, Terms: c, Sent: sent})
	}
}

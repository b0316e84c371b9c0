package place

import (
	"slices"
	"strings"
	"time"
)

// How waiters keep their places in a fair queue in Redis. The line sends one heartbeat for
// all of them, and no call sends it, as a call may be waiting for a slow answer. The answer
// says whose turn it is, too. So a heartbeat is the poll of all waiters, and a hint is a
// reason to send one. Hints that come while one is under way, as many do when a connection
// is back, are together a reason for one more.
//
// The line has its waiters enter the queue, too. While an entry is under way, those that
// come stand together for the next. While others of the line stand in the queue, the next
// waits for EntryPause, too. So waiters that come together stand next to each other, and
// the lock goes from one to the next inside the process. The first waiter of a line asks
// itself, as the lock is free as a rule.
//
// The holder of the lock, and how the lock goes on, are in handover.go.

// EntryPause is the least time between two entries of a line into a queue, while waiters of the
// line stand in the queue already.
const EntryPause = 2 * time.Millisecond

// heartbeat is what a line knows of its heartbeats and entries.
type heartbeat struct {
	on      bool      // a goroutine of the session sends them
	flying  int       // how many have no answer yet
	missed  bool      // there was a hint while one was under way
	hinted  time.Time // when the line looked at its latest hint
	early   string    // the owner string that a message about a turn named before the answer came that it stands in the queue
	entries int       // how many entries have no answer yet
	entered time.Time // when the latest entry was sent
	stand   int       // how many waiters stand in the queue
	coming  []*Waiter // they stand for the next entry
}

// queued is what a waiter knows of its place in the queue.
type queued struct {
	as     *Tenure // as this it stands there; nil if it does not, as far as is known
	enters bool    // the line has it enter
	sent   bool    // an entry of it has no answer yet
	own    bool    // it hears of its turn at a channel of its own
}

// Queuing is a waiter, and as what it stands in the queue in Redis, or enters it.
type Queuing struct {
	Waiter *Waiter
	As     *Tenure
	Enters bool
}

// Round is what the goroutine of a heartbeat sends at a time. Those that enter are the last.
type Round struct {
	Sent    time.Time
	Waiters []Queuing
	keeps   bool // it is a heartbeat
	enters  bool // it is an entry
}

// Enters returns how many waiters enter the queue.
func (r *Round) Enters() (n int) {
	for n < len(r.Waiters) && r.Waiters[len(r.Waiters)-1-n].Enters {
		n++
	}
	return n
}

// queue says that w was told to wait in the queue in Redis.
func (l *Line) queue(w *Waiter, r Refusal, now time.Time) {
	p := l.side.p
	if due := l.due(now, r.Left); !l.beat.on || l.when.askAt.IsZero() || due.Before(l.when.askAt) {
		l.when.askAt = due // waiters that come can make the next heartbeat sooner, and never later
		l.beats(w.Terms)
	}
	l.Listen(w.Terms, r.Sent)
	w.queued.enters = false
	if w.queued.as != w.Tenure {
		l.beat.stand++
		l.unqueue(w)
		w.queued.as = w.Tenure
		switch {
		case l.beat.early == w.Tenure.Name:
			p.Prompt(w)
		case r.Sent.Before(l.beat.hinted):
			l.hint() // there was one since w asked, and the heartbeat that it led to did not speak for w
		}
	}
	if r.Own && !w.queued.own {
		w.queued.own = true
		p.act(Action{Verb: HearOwn, Waiter: w})
	}
}

// beats has the goroutine of the heartbeat look at NextBeat.
func (l *Line) beats(c *Terms) {
	p := l.side.p
	l.beat.on, p.stays = true, true
	p.act(Action{Verb: Beat, Line: l, Terms: c})
}

// enter has w enter the queue, with all that come until then.
func (l *Line) enter(w *Waiter) {
	w.queued.enters = true
	l.beat.coming = append(l.beat.coming, w)
	if !l.beat.on || l.beat.entries == 0 && len(l.beat.coming) == 1 {
		l.beats(w.Terms)
	}
}

// unqueue records that w does not stand in the queue any more, if it did.
func (l *Line) unqueue(w *Waiter) {
	if w.queued.as != nil {
		w.queued.as = nil
		if l.beat.stand--; l.beat.stand == 0 && len(l.beat.coming) > 0 && l.beat.entries == 0 {
			l.beats(w.Terms) // the next entry waits for nothing
		}
	}
	if w.queued.own {
		w.queued.own = false
		l.side.p.act(Action{Verb: Unhear, Waiter: w})
	}
}

// Called records a message that it is the turn of the waiter with this owner string.
func (l *Line) Called(name string) {
	for _, w := range l.waiters {
		if (w.queued.as != nil || w.queued.sent) && w.Tenure.Name == name {
			l.side.p.Prompt(w)
			return
		}
	}
	l.beat.early = name // the answer that it stands in the queue is on the way
}

// NextBeat returns when the goroutine that sends l's heartbeats looks again, and what it
// sends now. If that is for any waiter, a Beaten must follow.
func (l *Line) NextBeat(now time.Time) (due time.Time, r Round) {
	r.Sent = now
	ready := !now.Before(l.when.askAt)
	silent := now.Add(-l.when.pace) // an entry that was sent before that is sent again
	if l.when.hinted {
		l.when.hinted, l.beat.hinted = false, now
		l.beat.missed = l.beat.flying > 0
		ready = ready || !l.beat.missed
	}
	var enter []*Waiter
	switch {
	case ready:
		l.when.askAt = l.due(now, -1)
		for _, w := range l.waiters {
			switch {
			case w.queued.as != nil:
				r.Waiters = append(r.Waiters, Queuing{Waiter: w, As: w.queued.as})
			case w.queued.enters && (!w.queued.sent || w.asked.Before(silent)):
				enter = append(enter, w)
			}
		}
		r.keeps = len(r.Waiters) > 0
		l.beat.coming = nil
	case l.beat.entries == 0 && (l.beat.stand == 0 || !now.Before(l.beat.entered.Add(EntryPause))):
		enter, l.beat.coming = l.beat.coming, nil
	}
	for _, w := range enter {
		if w.line != l || !w.queued.enters {
			continue // it has left, or asked itself
		}
		w.queued.sent, r.enters = true, true
		w.asked = now
		w.Tenure.asks(l.side.p, max(w.Terms.Lease, l.side.p.rules.Lease), w.Terms.WaiterTimeout)
		r.Waiters = append(r.Waiters, Queuing{w, w.Tenure, true})
	}
	if len(r.Waiters) > 0 {
		l.silence.asks(now)
	}
	if r.keeps {
		l.beat.flying++
	}
	if r.enters {
		l.beat.entries++
		l.beat.entered = now
	}
	due = l.when.askAt
	if next := l.beat.entered.Add(EntryPause); len(l.beat.coming) > 0 && l.beat.entries == 0 && next.Before(due) {
		due = next
	}
	return due, r
}

// Beaten records the answer to a Round. err is not nil if an error came instead, and the next
// one may go better. Entered or NotEntered follows for each that was to enter.
func (l *Line) Beaten(r Round, err error) {
	if r.enters {
		if l.beat.entries--; l.side != nil && len(l.beat.coming) > 0 {
			l.beats(l.beat.coming[0].Terms)
		}
	}
	if r.keeps {
		if l.beat.flying--; l.beat.flying == 0 && l.beat.missed {
			l.beat.missed = false
			l.Hint()
		}
	}
	if err != nil {
		l.silence.fails(r.Sent, err)
	} else {
		l.silence.hears(r.Sent)
	}
}

// Entered records that the server has q in the queue, by an entry that was sent at sent. own is
// as in a Refusal. Entered reports whether the caller must settle q.As: its waiter has left.
func (p *Place) Entered(q Queuing, own bool, sent, now time.Time) (settle bool) {
	w, t := q.Waiter, q.As
	switch {
	case t.taken, t.phase == Offered, t.phase == Held:
		t.answered(p) // it has the lock, or had it since: what the entry left goes with that
		return false
	case !t.Lives(), w.line == nil, w.Tenure != t:
		return p.Unheard(nil, t, true)
	}
	w.queued.sent = false
	p.Refused(w, t, Refusal{Sent: sent, Left: -1, Own: own, Trace: true}, now)
	if w.Tells {
		w.line.wake(w)
	}
	return false
}

// NotEntered records that err came instead of the answer to an entry of q. Its waiter asks
// itself. mayHaveRun is as in Broke.
func (p *Place) NotEntered(q Queuing, mayHaveRun bool, err error) {
	w := q.Waiter
	if p.Broke(w, q.As, mayHaveRun, err); w.line != nil && w.Tenure == q.As {
		w.queued.sent, w.queued.enters = false, false
		p.Prompt(w)
	}
}

// Queued returns as what w stands in the queue in Redis; nil if it does not.
func (w *Waiter) Queued() *Tenure { return w.queued.as }

// BeatIn has the next heartbeat sent when left has passed, as the answer to r says, or when a
// negative left says nothing, after a poll interval. An entry can make it sooner, and never
// later.
func (l *Line) BeatIn(r Round, now time.Time, left time.Duration) {
	if due := l.due(now, left); l.side != nil && (r.keeps || due.Before(l.when.askAt)) {
		l.when.askAt = due
		l.side.p.act(Action{Verb: Beat, Line: l})
	}
}

// Follow records the owners that are next in the queue after t, which was granted the lock: the numbers at
// the end of owner strings, with a space between two. All strings begin alike, with the first
// `begin` bytes of t's.
func (p *Place) Follow(t *Tenure, numbers string, begin int) {
	t.grant.queue = nil
	l := p.Line(t.Terms)
	if l == nil || numbers == "" {
		return
	}
	at := 0
	for number := range strings.SplitSeq(numbers, " ") {
		for i := range l.waiters {
			i = (at + i) % len(l.waiters) // as a rule both are in the same order
			if w := l.waiters[i]; w.Tenure.Name[begin:] == number {
				t.grant.queue = append(t.grant.queue, Queuing{Waiter: w, As: w.Tenure})
				at = i + 1
				break
			}
		} // one that is not found is about to leave the queue
	}
}

// nextInQueue returns the waiter that is next in the queue after t, and may take the lock of t;
// nil if there is none in this process.
func (l *Line) nextInQueue(t *Tenure) *Waiter {
	for ; len(t.grant.queue) > 0; t.grant.queue = t.grant.queue[1:] {
		if q := t.grant.queue[0]; q.Waiter.line != l || q.Waiter.Tenure != q.As {
			continue // it has left
		} else if q.Waiter.Terms.suits(t) {
			return q.Waiter
		}
		return nil
	}
	return nil
}

// firstQueued returns the first waiter that stands in the queue in Redis, if the release of t may
// give the lock to it with this lease; else nil.
func (l *Line) firstQueued(t *Tenure, lease time.Duration) (w *Waiter, as *Tenure) {
	for _, w := range l.waiters {
		if w.queued.as != w.Tenure && !w.queued.sent || w.Tenure.phase != Asking {
			continue
		}
		if !w.Terms.suits(t) {
			return nil, nil
		}
		w.Tenure.longest = max(w.Tenure.longest, lease)
		return w, w.Tenure
	}
	return nil, nil
}

// succeed is the Inherit of a line that queues: as is the tenure of the waiter that the release
// named as the heir.
func (p *Place) succeed(l *Line, as *Tenure, i Inheritance, now time.Time) (offered bool) {
	if l == nil {
		return false
	}
	if i.Token != 0 && as.phase == Asking {
		for _, w := range l.waiters {
			if w.Tenure != as {
				continue
			}
			if i.Late || p.closed || l.hand.offered != nil {
				p.Prompt(w)
				return false
			}
			as.inherits(i.Token, now)
			p.offerTo(l, as, w)
			return true
		}
	}
	if i.Broke || !i.Done {
		l.Hint() // the lock may be the heir's, or free
	}
	return false
}

// offerTo offers t, which has the lock, to w of l, which queues.
func (p *Place) offerTo(l *Line, t *Tenure, w *Waiter) {
	l.hand.offered, l.hand.to, l.side.held = t, w, t
	l.wake(w)
}

// serve records that w took t. If the lock was granted under another owner string than w's, the
// place of w in the queue stays until Strike or the release of t.
func (p *Place) serve(w *Waiter, t *Tenure, now time.Time) {
	as := w.Tenure
	w.line.unqueue(w)
	w.queued.enters = false
	if as == t {
		return
	}
	if len(t.served) == 0 {
		t.servedAt = now
	}
	t.served = append(t.served, as.Name)
	if !p.struck {
		p.strikeAt(now.Add(StrikePause))
	}
	as.taken = (as.pending == 0 || as.asked == 1) && !as.unsure // no question in its name is carried out after this
	if as.Lives() {
		p.end(as, Released)
	}
	if as.unsure {
		p.giveBack(as) // a late copy of its question may enter the queue anew
	}
	w.Tenure = t
}

// StrikePause is for how long a waiter that was served stands in the queue in Redis, if the lock
// is not released before. As a rule it is, as a busy lock is released after MaxPassTime. But a
// holder can stay for as long as it likes, and others are not to take those for waiters.
const StrikePause = MaxPassTime

// strikeAt has Strike called.
func (p *Place) strikeAt(due time.Time) {
	p.struck, p.stays = true, true
	p.act(Action{Verb: Strike, Due: due})
}

// Strike says that the time of a Strike has come. If it is time to take served waiters out of
// the queue in Redis, Strike returns their owner strings, and the tenure whose release would
// do that. The session sends that command, and then calls Struck.
func (p *Place) Strike(now time.Time) (t *Tenure, served []string) {
	t = p.sides[0].held
	if t == nil || !t.Lives() || len(t.served) == 0 || p.closed {
		p.struck = false // there is none, or the release of t takes them out
		return nil, nil
	}
	if due := t.servedAt.Add(StrikePause); now.Before(due) {
		p.strikeAt(due)
		return nil, nil
	}
	return t, slices.Clone(t.served)
}

// Struck records what became of the command for the first n served waiters of t; done says that
// Redis confirmed it.
func (p *Place) Struck(t *Tenure, n int, done bool, now time.Time) {
	t = t.Latest()
	pause := StrikePause
	if done {
		t.served, t.servedAt = t.served[n:], now
	} else {
		pause = p.rules.Poll
	}
	p.strikeAt(now.Add(pause)) // there may be more by now
}

// skip passes on what was offered to w, which has left the line.
func (l *Line) skip(w *Waiter) {
	t := l.hand.offered
	if t == nil || l.hand.to != w {
		return
	}
	p := l.side.p
	l.hand.offered, l.hand.to = nil, nil
	if next := l.nextInQueue(t); next != nil && t.Lives() && !p.closed {
		p.offerTo(l, t, next)
	} else {
		p.Fail(t)
	}
}

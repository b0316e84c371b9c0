package lockstate

import (
	"slices"
	"time"
)

// How the readers of a process share one read hold in Redis.
//
// The acquisition of a reader that was let in is open for a while: other readers join it without a
// command, each as an owner of its own with holds of its own. Redis has all of them as one
// owner with one hold, and one more for each time that one of them enters once more. The
// last of them to leave releases it.
//
// A reader that joins has not asked whether a writer waits. So an acquisition is open only for
// readers that came at most ShareTime, and a round trip, after the reader that asked; and
// only for ShareTime after the reply. A reader that comes later asks, for an acquisition of its
// own that is the open one then; a writer that came in between refuses that. And no reader
// joins while this process knows of a writer that waits.
//
// Readers that come while such a request is under way join it: the reply lets them in,
// too. They are let in before any of them runs, so that a reader that leaves at once is not
// the last.

// ShareTime is how much later than a reader that asked others may come and enter without a
// request. For so long, and a round trip, a writer can be passed by readers that came after
// it.
const ShareTime = 10 * time.Millisecond

// reading is what the readers of a state have in common.
type reading struct {
	open     *Acquisition   // readers may join it; nil if there is none
	request  *sharedRequest // the latest request, if it is under way; else nil
	requests int            // how many requests are under way
	refusals int            // how often a reader was refused so far
}

// sharedRequest is a request for whose reply other readers wait as well.
type sharedRequest struct {
	t            *Acquisition // in whose name it is asked
	sent         time.Time    // when
	refusals     int          // what reading.refusals was then
	joiners      []*Waiter    // get holds of t if it is granted
	finished     bool         // the reply is there,
	sharedResult              // and this is it
}

// sharedResult is the reply to a request. The zero landing is none: the reader that asked did not
// wait for it, or it says nothing about other readers.
type sharedResult struct {
	granted bool
	refused bool          // others have the lock,
	left    time.Duration // for that long if nothing happens
	err     error         // an error came instead
}

// joiner is what a reader knows of its own request and of another's.
type joiner struct {
	Prepared *Hold          // the session's: the hold that it gets if another's request lets it in
	own      *sharedRequest // its own request, while that is under way
	joined   *sharedRequest // another's request, while it shares that
	until    time.Time      // then it gives up riding along
	alone    bool           // it asks for itself: the other reader was refused, and this one may be let in
}

// setOpen has readers join t from now on; with nil none can.
func (s *side) setOpen(t *Acquisition) { s.open = t }

// canShare reports whether a reader with these terms can join t: t has a token of the same
// register, and its request waited behind writers if the reader does.
func (t *Acquisition) canShare(c *Terms) bool {
	return c.Register == t.Terms.Register && (t.Terms.Yield || !c.Yield)
}

// Open returns the acquisition that a reader with these terms, which came at came, may join now;
// nil if there is none.
func (p *Lock) Open(c *Terms, came, now time.Time) *Acquisition {
	t := p.side(true).open
	if t == nil || p.closed || !t.canShare(c) || came.After(t.grant.latest) || now.Sub(t.grant.since) > ShareTime || p.writerWaits(c) {
		return nil
	}
	return t
}

// writerWaits reports whether a writer waits which readers with these terms let pass, as far
// as this process knows.
func (p *Lock) writerWaits(c *Terms) bool {
	if !c.Yield {
		return false
	}
	if l := p.side(true).queue(c); l != nil && l.refusedLast {
		return true // a reader was refused: a writer writes or waits, perhaps in another process
	}
	for _, l := range p.side(false).queues {
		if l.key == 0 && slices.ContainsFunc(l.waiters, func(w *Waiter) bool { return !w.once }) {
			return true
		}
	}
	return false
}

// WaitToRead notes that w waits in the queue for its owner's first hold to read. writes says that
// the owner writes: then Redis lets it in at once, and w asks whichever waiter is the first,
// as those before it may wait for that very writer.
func (p *Lock) WaitToRead(w *Waiter, writes bool) {
	w.Owner.waiter = w
	if writes {
		w.reason = true
	}
}

// wakeReader has the owner of t, which came to write just now, ask to read if it waits for that.
func (p *Lock) wakeReader(t *Acquisition) {
	if o := t.owner.other(); o != nil && o.waiter != nil {
		p.Wakeup(o.waiter)
	}
}

// JoinOpen makes h a hold of t for the owner of this number, without a command. It reports false
// if t is not open any more, or if fresh says that the owner must be new, and it is not.
func (p *Lock) JoinOpen(t *Acquisition, h *Hold, number uint64, fresh bool) bool {
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
func (p *Lock) nextToRead(w *Waiter, beside *Acquisition, limit time.Duration, now time.Time) Step {
	if w.joined != nil {
		step, over := p.joinedStep(w, beside, now)
		if !over || step.Do != Send {
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
// share another's request, instead.
func (p *Lock) share(w *Waiter, beside *Acquisition, limit time.Duration, now time.Time) Step {
	if w.Acquisition.Turn != nil && beside == nil {
		if t := p.Open(w.Terms, w.Acquisition.Came, now); t != nil {
			w.reason = true // it asks if that acquisition turns out to be over
			return Step{Do: Join, Acquisition: t}
		}
		if p.joinRequest(w, limit, now) {
			return Step{Do: Wait, Due: w.until}
		}
		p.startRequest(w, now)
	}
	return p.sendStep(w, beside, now)
}

// joinRequest has w share another reader's request, if one is under way whose reply holds
// for w. It reports whether w does. A reader whose own request broke off asks itself: Redis may have
// let it in, and then it would keep writers out, and wait behind them.
func (p *Lock) joinRequest(w *Waiter, limit time.Duration, now time.Time) bool {
	s := p.side(true)
	f := s.request
	if w.until.IsZero() {
		w.until = now.Add(limit)
	}
	if f == nil || w.alone || w.Acquisition.uncertain || f.refusals != s.refusals || !f.t.canShare(w.Terms) || w.Acquisition.Came.After(f.t.Came.Add(ShareTime+now.Sub(f.sent))) || p.writerWaits(w.Terms) {
		return false
	}
	w.joined = f
	f.joiners = append(f.joiners, w)
	return true
}

// startRequest notes that the request of w is about to be sent, and that others may join it.
func (p *Lock) startRequest(w *Waiter, now time.Time) {
	s := p.side(true)
	w.own = &sharedRequest{t: w.Acquisition, sent: now, refusals: s.refusals}
	w.alone, w.until = false, time.Time{}
	s.request = w.own
	s.requests++
}

// finishRequest records the reply to the request of w, a reader, for t. A grant lets in the readers that rode
// along, and opens t to others. A refusal ends that others join.
func (p *Lock) finishRequest(w *Waiter, t *Acquisition, how sharedResult, now time.Time) {
	s := p.side(true)
	if w == nil || w.own == nil {
		if how.refused && t.Terms.Yield {
			s.refuse()
		}
		return
	}
	f := w.own
	w.own = nil
	f.finished, f.sharedResult = true, how
	if s.request == f {
		s.request = nil
	}
	s.requests--
	switch {
	case how.granted && !t.grant.writes && !t.uncertain && t.pending == 0:
		t.grant.latest = t.Came.Add(ShareTime + t.grant.since.Sub(f.sent))
		if f.refusals == s.refusals && (s.open == nil || !t.grant.latest.Before(s.open.grant.latest)) {
			s.setOpen(t)
		}
		for _, r := range f.joiners {
			r.Owner.hold(t)
			p.Add(t, r.Owner, r.Prepared)
		}
	case how.granted:
		f.sharedResult = sharedResult{} // t is not one to share: the riders ask
	case how.refused && t.Terms.Yield:
		s.refuse()
	}
	for _, r := range f.joiners {
		p.emit(Effect{Kind: Wake, Waiter: r})
	}
}

// refuse ends that readers join: one was refused, so a writer waits or writes.
func (s *side) refuse() {
	s.refusals++ // so that a request sent before opens nothing if its grant comes later
	s.setOpen(nil)
}

// closeToReaders ends that readers join t, which is over.
func (p *Lock) closeToReaders(t *Acquisition) {
	if s := p.side(true); s.open == t {
		s.setOpen(nil)
	}
}

// joinedStep returns the Step of a waiter that shares a request, and whether the ride is over.
func (p *Lock) joinedStep(w *Waiter, beside *Acquisition, now time.Time) (step Step, over bool) {
	f := w.joined
	if !f.finished {
		if now.Before(w.until) {
			return Step{Do: Wait, Due: w.until}, false
		}
		w.leaveRequest()
		w.until = time.Time{}
		return Step{Do: Fail, Sent: f.sent}, true
	}
	w.joined = nil
	switch {
	case f.granted:
		step = Step{Do: Share, Hold: w.Prepared}
	case f.err != nil:
		step = Step{Do: Fail, Sent: f.sent, Err: f.err}
	case f.refused && !w.Acquisition.Came.Before(f.t.Came) && w.Terms.Yield == f.t.Terms.Yield && beside == nil:
		step = Step{Do: Refuse, Sent: f.sent, Left: f.left}
	default:
		w.alone = f.refused // it came sooner, or does not wait behind writers, or writes: it may be let in
		return Step{Do: Send}, true
	}
	w.until, w.alone = time.Time{}, false
	return step, true
}

// Joined records that w came in with another reader, and so without a reply of its own.
func (p *Lock) Joined(w *Waiter, now time.Time) {
	if l := w.queue; l != nil {
		l.outage.replied(w.sentAt)
		w.Terms.WaitPolicy.granted(l, w, now)
	}
}

// IsJoined returns when the request was sent that w shares, if it does.
func (w *Waiter) IsJoined() (sent time.Time, rides bool) {
	if w.joined == nil {
		return time.Time{}, false
	}
	return w.joined.sent, true
}

// leaveRequest ends that w shares a request. If the request has let w in already, it returns the hold
// of w.
func (w *Waiter) leaveRequest() (seat *Hold) {
	f := w.joined
	if f == nil {
		return nil
	}
	w.joined = nil
	if f.finished {
		if f.granted {
			return w.Prepared
		}
		return nil
	}
	f.joiners = slices.DeleteFunc(f.joiners, func(r *Waiter) bool { return r == w })
	return nil
}

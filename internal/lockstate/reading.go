package lockstate

import (
	"cmp"
	"slices"
	"time"
)

// How the readers of a process share one read hold in Redis.
//
// The acquisition of a reader stays open for a short time after the grant: other readers join it
// without a command, each as a separate owner with its own holds. In Redis they are one owner with
// one hold, plus one for each reentrant acquisition. The last of them to leave releases it.
//
// A reader that joins does not check whether a writer waits. An acquisition is therefore open only to
// readers that came at most ShareTime, plus a round trip, after the reader that sent the request. It
// is closed ShareTime after the reply. A later reader sends its own request, and opens its own
// acquisition. A writer that came in between refuses that request. No reader joins while this process
// knows of a waiting writer.
//
// Readers that come while a request is in flight join the request: its grant admits them, too. They
// are all admitted before any of them runs, so a reader that leaves immediately is not the last one.

// ShareTime is how long after a reader that sends a request other readers may still come and join it
// without a request. Readers can pass a writer for that long, plus a round trip.
const ShareTime = 10 * time.Millisecond

// reading is the state that the readers of a lock share.
type reading struct {
	open     *Acquisition   // readers may join it; nil if there is none
	latest   time.Time      // readers that came until then may join open
	request  *sharedRequest // the latest request, while it is in flight; otherwise nil
	requests int            // the number of requests in flight
	refusals int            // the number of refusals of readers so far
}

// sharedRequest is a request whose reply other readers wait for, too.
type sharedRequest struct {
	t        *Acquisition // the acquisition of the request
	sent     time.Time    // when it was sent
	refusals int          // reading.refusals when it was sent
	joiners  []*Waiter    // readers that get holds of t if it is granted
	finished bool         // the reply arrived; it is in sharedResult
	sharedResult
}

// sharedResult is the reply to a request. It is zero if the reader that sent the request did not wait
// for the reply, or if the reply says nothing about other readers.
type sharedResult struct {
	granted bool
	refused bool          // other owners have the lock
	left    time.Duration // if refused: their remaining lease
	kept    time.Duration // if refused: as in Refusal
	err     error         // the request failed
}

// joiner is the state of a reader's own request and of the request that it joined. The mutex of the
// [Lock] guards it.
type joiner struct {
	Prepared *Hold          // set by the session: the hold that it gets if another reader's request is granted
	Deadline time.Time      // set by the session: when the call stops waiting for replies, if it makes one attempt; otherwise zero
	own      *sharedRequest // its own request, while in flight
	joined   *sharedRequest // another reader's request that it waits for
	until    time.Time      // it stops waiting for joined requests then
	alone    bool           // it sends its own request: the joined one was refused, but this one may be granted
}

// canShare reports whether a reader with these terms can join t. The token counters must match. If
// the reader waits behind writers, the request of t must have done so, too.
func (t *Acquisition) canShare(c *Terms) bool {
	return c.TokenCounter == t.Terms.TokenCounter && (t.Terms.Yield || !c.Yield)
}

// Open returns the acquisition that a reader with these terms, which came at came, may join now. It
// is nil if there is none.
func (p *Lock) Open(c *Terms, came, now time.Time) *Acquisition {
	s := p.side(true)
	t := s.open
	if t == nil || p.closed || !t.canShare(c) || came.After(s.latest) || now.Sub(t.grant.since) > ShareTime || p.writerWaits(c) {
		return nil
	}
	return t
}

// writerWaits reports whether this process knows of a waiting writer that readers with these terms
// must not pass.
func (p *Lock) writerWaits(c *Terms) bool {
	if !c.Yield {
		return false
	}
	if l := p.side(true).queue(c); l != nil && l.refusedLast {
		return true // a writer holds the lock or waits, perhaps in another process
	}
	for _, l := range p.side(false).queues {
		if l.key == 0 && slices.ContainsFunc(l.waiters, func(w *Waiter) bool { return !w.once }) {
			return true
		}
	}
	return false
}

// wakeReader wakes t's owner if it also waits to read: the writer may read immediately.
func (p *Lock) wakeReader(t *Acquisition) {
	if o := t.owner.other(); o != nil && o.waiter != nil {
		p.Wakeup(o.waiter)
	}
}

// JoinOpen makes h a hold of t, which Open returned, without a command. It reports false if the owner with this
// number exists.
func (p *Lock) JoinOpen(t *Acquisition, h *Hold, number uint64) bool {
	s := p.side(true)
	if s.owners[number] != nil {
		return false
	}
	o := s.newOwner(number, h.By)
	o.hold(t)
	return p.Add(t, o, h)
}

// Admit makes the Prepared hold of w a hold of t, which a Step to Join named.
func (p *Lock) Admit(w *Waiter, t *Acquisition, now time.Time) {
	w.Owner.hold(t)
	p.Add(t, w.Owner, w.Prepared)
	p.shares(w, now)
}

// shares records that w has a hold of another reader's acquisition, without its own reply. It abandons its own
// acquisition.
func (p *Lock) shares(w *Waiter, now time.Time) {
	if l := w.queue; l != nil {
		l.outage.replied(w.sentAt)
		w.Terms.WaitPolicy.granted(l, w, now)
	}
	p.Fail(w.Acquisition)
}

// share returns the Step of a reader that must send a request. The reader may instead join an open
// acquisition or another reader's request.
func (p *Lock) share(w *Waiter, sibling *Acquisition, now time.Time) Step {
	if w.Acquisition.Turn != nil && sibling == nil {
		if t := p.Open(w.Terms, w.Acquisition.Came, now); t != nil {
			w.reason = true // it sends a request if that acquisition turns out to have ended
			return Step{Do: Join, Acquisition: t}
		}
		if p.joinRequest(w, now) {
			return Step{Do: Wait, Due: w.until}
		}
		s := p.side(true)
		w.own = &sharedRequest{t: w.Acquisition, sent: now, refusals: s.refusals} // others can join it
		w.alone, w.until = false, time.Time{}
		s.request = w.own
		s.requests++
	}
	return Step{Do: Send}
}

// joinRequest makes w join the request of another reader, and reports whether it did. The request
// must be in flight, and its reply must be valid for w. A reader whose own request has an unknown
// outcome sends another one: Redis may have admitted it, so its hold would keep writers out while it
// waits behind them.
func (p *Lock) joinRequest(w *Waiter, now time.Time) bool {
	s := p.side(true)
	f := s.request
	if w.until.IsZero() {
		w.until = cmp.Or(w.Deadline, now.Add(p.rules.OpTimeout))
	}
	if f == nil || w.alone || w.Acquisition.uncertain || f.refusals != s.refusals || !f.t.canShare(w.Terms) || w.Acquisition.Came.After(f.t.Came.Add(ShareTime+now.Sub(f.sent))) || p.writerWaits(w.Terms) {
		return false
	}
	w.joined = f
	f.joiners = append(f.joiners, w)
	return true
}

// finishRequest records the reply to the request of w, a reader, for t. A grant admits the joiners,
// and opens t to other readers. A refusal closes the open acquisition.
func (p *Lock) finishRequest(w *Waiter, t *Acquisition, how sharedResult) {
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
	case how.granted && !t.writes && !t.uncertain && t.pending == 0:
		latest := t.Came.Add(ShareTime + t.grant.since.Sub(f.sent))
		if f.refusals == s.refusals && (s.open == nil || !latest.Before(s.latest)) {
			s.open, s.latest = t, latest
		}
		for _, r := range f.joiners {
			r.Owner.hold(t)
			p.Add(t, r.Owner, r.Prepared)
		}
	case how.granted:
		f.sharedResult = sharedResult{} // t cannot be shared: the joiners send their own requests
	case how.refused && t.Terms.Yield:
		s.refuse()
	}
	for _, r := range f.joiners {
		p.emit(Effect{Kind: Wake, Waiter: r})
	}
}

// refuse closes the open acquisition after a refusal, because a writer holds the lock or waits for
// it.
func (s *side) refuse() {
	s.refusals++ // so that the grant of an earlier request does not open its acquisition
	s.open = nil
}

// joinedStep returns the Step of a waiter that joined a request. It is Send if the reply says nothing
// about w.
func (p *Lock) joinedStep(w *Waiter, sibling *Acquisition, now time.Time) (step Step) {
	f := w.joined
	if !f.finished {
		if now.Before(w.until) {
			return Step{Do: Wait, Due: w.until}
		}
		w.leaveRequest()
		w.until = time.Time{}
		return Step{Do: Fail}
	}
	w.joined = nil
	switch {
	case f.granted:
		p.shares(w, now)
		step = Step{Do: Share}
	case f.err != nil:
		step = Step{Do: Fail, Err: f.err}
	case f.refused && !w.Acquisition.Came.Before(f.t.Came) && w.Terms.Yield == f.t.Terms.Yield && sibling == nil:
		p.waits(w, Refusal{Sent: f.sent, Left: f.left}, now)
		step = Step{Do: Refuse, Kept: f.kept}
	default:
		w.alone = f.refused // it came earlier, does not wait behind writers, or writes, so it may be admitted
		return Step{Do: Send}
	}
	w.until, w.alone = time.Time{}, false
	return step
}

// leaveRequest makes w leave the request that it joined. If that request has already admitted w,
// leaveRequest returns the hold of w.
func (w *Waiter) leaveRequest() (hold *Hold) {
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

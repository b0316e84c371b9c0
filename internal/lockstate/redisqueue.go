package lockstate

import (
	"slices"
	"strings"
	"time"
)

// How waiters keep their positions in a fair queue in Redis. The queue sends one heartbeat for
// all of them, and no call sends it, as a call may be waiting for a slow reply. The reply
// says whose turn it is, too. So a heartbeat is the poll of all waiters, and a notification is a
// reason to send one. Notifications that come while one is under way, as many do when a connection
// is back, are together a reason for one more.
//
// The queue has its waiters enter the queue, too. While an entry is under way, those that
// come stand together for the next. While others of the queue stand in the queue, the next
// waits for EntryPause, too. So waiters that come together stand next to each other, and
// the lock goes from one to the next inside the process. The first waiter of a queue asks
// itself, as the lock is free as a rule.
//
// The holder of the lock, and how the lock goes on, are in handover.go.

// EntryPause is the least time between two entries of a queue into a queue, while waiters of the
// line stand in the queue already.
const EntryPause = 2 * time.Millisecond

// heartbeat is what a queue knows of its heartbeats and entries.
type heartbeat struct {
	on       bool      // a goroutine of the session sends them
	flying   int       // how many have no reply yet
	missed   bool      // there was a notification while one was under way
	notified time.Time // when the queue looked at its latest notification
	early    string    // the owner string that a message about a turn named before the reply came that it stands in the queue
	entries  int       // how many entries have no reply yet
	entered  time.Time // when the latest entry was sent
	stand    int       // how many waiters stand in the queue
	coming   []*Waiter // they stand for the next entry
}

// queued is what a waiter knows of its position in the queue.
type queued struct {
	as     *Acquisition // as this it stands there; nil if it does not, as far as is known
	enters bool         // the queue has it enter
	sent   bool         // an entry of it has no reply yet
	own    bool         // it is notified of its turn at a channel of its own
}

// Queuing is a waiter, and as what it stands in the queue in Redis, or enters it.
type Queuing struct {
	Waiter *Waiter
	As     *Acquisition
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

// enqueued says that w was told to wait in the queue in Redis.
func (l *Queue) enqueued(w *Waiter, r Refusal, now time.Time) {
	p := l.side.p
	if due := l.due(now, r.Left); !l.heartbeat.on || l.when.sendAt.IsZero() || due.Before(l.when.sendAt) {
		l.when.sendAt = due // waiters that come can make the next heartbeat sooner, and never later
		l.wakeHeartbeat(w.Terms)
	}
	l.Subscribe(w.Terms, r.Sent)
	w.queued.enters = false
	if w.queued.as != w.Acquisition {
		l.heartbeat.stand++
		l.dequeued(w)
		w.queued.as = w.Acquisition
		switch {
		case l.heartbeat.early == w.Acquisition.Name:
			p.Wakeup(w)
		case r.Sent.Before(l.heartbeat.notified):
			l.notify() // there was one since w asked, and the heartbeat that it led to did not speak for w
		}
	}
	if r.Own && !w.queued.own {
		w.queued.own = true
		p.emit(Effect{Kind: SubscribeOwner, Waiter: w})
	}
}

// wakeHeartbeat has the goroutine of the heartbeat look at NextHeartbeat.
func (l *Queue) wakeHeartbeat(c *Terms) {
	p := l.side.p
	l.heartbeat.on, p.referenced = true, true
	p.emit(Effect{Kind: Heartbeat, Queue: l, Terms: c})
}

// enter has w enter the queue, with all that come until then.
func (l *Queue) enter(w *Waiter) {
	w.queued.enters = true
	l.heartbeat.coming = append(l.heartbeat.coming, w)
	if !l.heartbeat.on || l.heartbeat.entries == 0 && len(l.heartbeat.coming) == 1 {
		l.wakeHeartbeat(w.Terms)
	}
}

// dequeued records that w does not stand in the queue any more, if it did.
func (l *Queue) dequeued(w *Waiter) {
	if w.queued.as != nil {
		w.queued.as = nil
		if l.heartbeat.stand--; l.heartbeat.stand == 0 && len(l.heartbeat.coming) > 0 && l.heartbeat.entries == 0 {
			l.wakeHeartbeat(w.Terms) // the next entry waits for nothing
		}
	}
	if w.queued.own {
		w.queued.own = false
		l.side.p.emit(Effect{Kind: UnsubscribeOwner, Waiter: w})
	}
}

// OnTurn records a message that it is the turn of the waiter with this owner string.
func (l *Queue) OnTurn(name string) {
	for _, w := range l.waiters {
		if (w.queued.as != nil || w.queued.sent) && w.Acquisition.Name == name {
			l.side.p.Wakeup(w)
			return
		}
	}
	l.heartbeat.early = name // the reply that it stands in the queue is on the way
}

// NextHeartbeat returns when the goroutine that sends l's heartbeats looks again, and what it
// sends now. If that is for any waiter, a HeartbeatDone must follow.
func (l *Queue) NextHeartbeat(now time.Time) (due time.Time, r Round) {
	r.Sent = now
	ready := !now.Before(l.when.sendAt)
	silent := now.Add(-l.when.pace) // an entry that was sent before that is sent again
	if l.when.notified {
		l.when.notified, l.heartbeat.notified = false, now
		l.heartbeat.missed = l.heartbeat.flying > 0
		ready = ready || !l.heartbeat.missed
	}
	var enter []*Waiter
	switch {
	case ready:
		l.when.sendAt = l.due(now, -1)
		for _, w := range l.waiters {
			switch {
			case w.queued.as != nil:
				r.Waiters = append(r.Waiters, Queuing{Waiter: w, As: w.queued.as})
			case w.queued.enters && (!w.queued.sent || w.sentAt.Before(silent)):
				enter = append(enter, w)
			}
		}
		r.keeps = len(r.Waiters) > 0
		l.heartbeat.coming = nil
	case l.heartbeat.entries == 0 && (l.heartbeat.stand == 0 || !now.Before(l.heartbeat.entered.Add(EntryPause))):
		enter, l.heartbeat.coming = l.heartbeat.coming, nil
	}
	for _, w := range enter {
		if w.queue != l || !w.queued.enters {
			continue // it has left, or asked itself
		}
		w.queued.sent, r.enters = true, true
		w.sentAt = now
		w.Acquisition.willSend(l.side.p, max(w.Terms.Lease, l.side.p.rules.Lease), w.Terms.WaiterTimeout)
		r.Waiters = append(r.Waiters, Queuing{w, w.Acquisition, true})
	}
	if len(r.Waiters) > 0 {
		l.outage.sent(now)
	}
	if r.keeps {
		l.heartbeat.flying++
	}
	if r.enters {
		l.heartbeat.entries++
		l.heartbeat.entered = now
	}
	due = l.when.sendAt
	if next := l.heartbeat.entered.Add(EntryPause); len(l.heartbeat.coming) > 0 && l.heartbeat.entries == 0 && next.Before(due) {
		due = next
	}
	return due, r
}

// HeartbeatDone records the reply to a Round. err is not nil if an error came instead, and the next
// one may go better. Entered or NotEntered follows for each that was to enter.
func (l *Queue) HeartbeatDone(r Round, err error) {
	if r.enters {
		if l.heartbeat.entries--; l.side != nil && len(l.heartbeat.coming) > 0 {
			l.wakeHeartbeat(l.heartbeat.coming[0].Terms)
		}
	}
	if r.keeps {
		if l.heartbeat.flying--; l.heartbeat.flying == 0 && l.heartbeat.missed {
			l.heartbeat.missed = false
			l.Notify()
		}
	}
	if err != nil {
		l.outage.failed(r.Sent, err)
	} else {
		l.outage.replied(r.Sent)
	}
}

// Entered records that the server has q in the queue, by an entry that was sent at sent. own is
// as in a Refusal. Entered reports whether the caller must reconcile q.As: its waiter has left.
func (p *Lock) Entered(q Queuing, own bool, sent, now time.Time) (settle bool) {
	w, t := q.Waiter, q.As
	switch {
	case t.taken, t.phase == Offered, t.phase == Held:
		t.answered(p) // it has the lock, or had it since: what the entry left goes with that
		return false
	case !t.Lives(), w.queue == nil, w.Acquisition != t:
		return p.LateReply(nil, t, true)
	}
	w.queued.sent = false
	p.Refused(w, t, Refusal{Sent: sent, Left: -1, Own: own, Trace: true}, now)
	if w.Tells {
		w.queue.wake(w)
	}
	return false
}

// NotEntered records that err came instead of the reply to an entry of q. Its waiter asks
// itself. mayHaveRun is as in Failed.
func (p *Lock) NotEntered(q Queuing, mayHaveRun bool, err error) {
	w := q.Waiter
	if p.Failed(w, q.As, mayHaveRun, err); w.queue != nil && w.Acquisition == q.As {
		w.queued.sent, w.queued.enters = false, false
		p.Wakeup(w)
	}
}

// Queued returns as what w stands in the queue in Redis; nil if it does not.
func (w *Waiter) Queued() *Acquisition { return w.queued.as }

// HeartbeatIn has the next heartbeat sent when left has passed, as the reply to r says, or when a
// negative left says nothing, after a poll interval. An entry can make it sooner, and never
// later.
func (l *Queue) HeartbeatIn(r Round, now time.Time, left time.Duration) {
	if due := l.due(now, left); l.side != nil && (r.keeps || due.Before(l.when.sendAt)) {
		l.when.sendAt = due
		l.side.p.emit(Effect{Kind: Heartbeat, Queue: l})
	}
}

// Follow records the owners that are next in the queue after t, which was granted the lock: the numbers at
// the end of owner strings, with a space between two. All strings begin alike, with the first
// `begin` bytes of t's.
func (p *Lock) Follow(t *Acquisition, numbers string, begin int) {
	t.grant.queue = nil
	l := p.Queue(t.Terms)
	if l == nil || numbers == "" {
		return
	}
	at := 0
	for number := range strings.SplitSeq(numbers, " ") {
		for i := range l.waiters {
			i = (at + i) % len(l.waiters) // as a rule both are in the same order
			if w := l.waiters[i]; w.Acquisition.Name[begin:] == number {
				t.grant.queue = append(t.grant.queue, Queuing{Waiter: w, As: w.Acquisition})
				at = i + 1
				break
			}
		} // one that is not found is about to leave the queue
	}
}

// nextInQueue returns the waiter that is next in the queue after t, and may take the lock of t;
// nil if there is none in this process.
func (l *Queue) nextInQueue(t *Acquisition) *Waiter {
	for ; len(t.grant.queue) > 0; t.grant.queue = t.grant.queue[1:] {
		if q := t.grant.queue[0]; q.Waiter.queue != l || q.Waiter.Acquisition != q.As {
			continue // it has left
		} else if q.Waiter.Terms.canTake(t) {
			return q.Waiter
		}
		return nil
	}
	return nil
}

// firstQueued returns the first waiter that stands in the queue in Redis, if the release of t may
// give the lock to it with this lease; else nil.
func (l *Queue) firstQueued(t *Acquisition, lease time.Duration) (w *Waiter, as *Acquisition) {
	for _, w := range l.waiters {
		if w.queued.as != w.Acquisition && !w.queued.sent || w.Acquisition.phase != Asking {
			continue
		}
		if !w.Terms.canTake(t) {
			return nil, nil
		}
		w.Acquisition.longest = max(w.Acquisition.longest, lease)
		return w, w.Acquisition
	}
	return nil, nil
}

// onFairRelease is the OnRelease of a queue that queues: as is the acquisition of the waiter that the release
// named as the next owner.
func (p *Lock) onFairRelease(l *Queue, as *Acquisition, i ReleaseResult, now time.Time) (offered bool) {
	if l == nil {
		return false
	}
	if i.Token != 0 && as.phase == Asking {
		for _, w := range l.waiters {
			if w.Acquisition != as {
				continue
			}
			if i.Late || p.closed || l.hand.offered != nil {
				p.Wakeup(w)
				return false
			}
			as.takesOver(i.Token, now)
			p.offerTo(l, as, w)
			return true
		}
	}
	if i.Broke || !i.Done {
		l.Notify() // the lock may be the next owner's, or free
	}
	return false
}

// offerTo offers t, which has the lock, to w of l, which queues.
func (p *Lock) offerTo(l *Queue, t *Acquisition, w *Waiter) {
	l.hand.offered, l.hand.to, l.side.held = t, w, t
	l.wake(w)
}

// serve records that w took t. If the lock was granted under another owner string than w's, the
// place of w in the queue stays until RemoveServed or the release of t.
func (p *Lock) serve(w *Waiter, t *Acquisition, now time.Time) {
	as := w.Acquisition
	w.queue.dequeued(w)
	w.queued.enters = false
	if as == t {
		return
	}
	if len(t.served) == 0 {
		t.servedAt = now
	}
	t.served = append(t.served, as.Name)
	if !p.removing {
		p.removeServedAt(now.Add(ServedPause))
	}
	as.taken = (as.pending == 0 || as.sends == 1) && !as.uncertain // no request in its name is executed after this
	if as.Lives() {
		p.end(as, Released)
	}
	if as.uncertain {
		p.release(as) // a late copy of its request may enter the queue anew
	}
	w.Acquisition = t
}

// ServedPause is for how long a waiter that was served stands in the queue in Redis, if the lock
// is not released before. As a rule it is, as a busy lock is released after MaxPassTime. But a
// holder can stay for as long as it likes, and others are not to take those for waiters.
const ServedPause = MaxPassTime

// removeServedAt has RemoveServed called.
func (p *Lock) removeServedAt(due time.Time) {
	p.removing, p.referenced = true, true
	p.emit(Effect{Kind: RemoveServed, Due: due})
}

// RemoveServed says that the time of a RemoveServed has come. If it is time to take served waiters out of
// the queue in Redis, RemoveServed returns their owner strings, and the acquisition whose release would
// do that. The session sends that command, and then calls ServedRemoved.
func (p *Lock) RemoveServed(now time.Time) (t *Acquisition, served []string) {
	t = p.sides[0].held
	if t == nil || !t.Lives() || len(t.served) == 0 || p.closed {
		p.removing = false // there is none, or the release of t takes them out
		return nil, nil
	}
	if due := t.servedAt.Add(ServedPause); now.Before(due) {
		p.removeServedAt(due)
		return nil, nil
	}
	return t, slices.Clone(t.served)
}

// ServedRemoved records what became of the command for the first n served waiters of t; done says that
// Redis confirmed it.
func (p *Lock) ServedRemoved(t *Acquisition, n int, done bool, now time.Time) {
	t = t.Latest()
	pause := ServedPause
	if done {
		t.served, t.servedAt = t.served[n:], now
	} else {
		pause = p.rules.Poll
	}
	p.removeServedAt(now.Add(pause)) // there may be more by now
}

// skip hands off what was offered to w, which has left the queue.
func (l *Queue) skip(w *Waiter) {
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

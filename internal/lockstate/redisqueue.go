package lockstate

import (
	"slices"
	"strings"
	"time"
)

// How waiters keep their positions in a queue in Redis. A queue sends one heartbeat for all of its
// waiters. A goroutine of the session sends it, because the calls may be waiting for a slow reply.
// The reply names the waiters whose turn it is, so a heartbeat is also the poll of all waiters, and a
// notification triggers one. After a reconnect, many notifications may come while a heartbeat is in
// flight; together they trigger one more.
//
// For fair locks, the goroutine also enters the waiters in the Redis queue, in batches. While an
// entry is in flight, new waiters collect for the next one. While the queue has waiters in Redis, the
// next entry also waits for EntryPause. Waiters that come together are therefore adjacent, and the
// lock can be handed off locally between them. The first waiter of a queue sends its own request,
// because the lock is usually free. If it lets other processes come first and a second waiter comes in
// the meantime, the queue enters both.
//
// Hand-offs are in handoff.go.

// EntryPause is the minimum time between two entries of a queue that has waiters in Redis.
const EntryPause = 2 * time.Millisecond

// heartbeat is the state of a queue's heartbeats and entries.
type heartbeat struct {
	on      bool      // a goroutine of the session sends them
	flying  int       // heartbeats without a reply
	missed  bool      // there was a notification while a heartbeat was in flight
	handled int       // the number of notifications that the queue has handled
	entries int       // entries without a reply
	entered time.Time // when the latest entry was sent
	stand   int       // the number of waiters in the Redis queue
	coming  []*Waiter // waiters for the next entry
}

// queued is a waiter's state in the Redis queue.
type queued struct {
	as     *Acquisition // its acquisition in the Redis queue; nil if it has none there, as far as is known
	enters bool         // the queue is to enter it
	sent   bool         // its entry has no reply yet
	own    bool         // it is notified of its turn on its own channel
	early  *Acquisition // the acquisition whose turn was notified before the reply that queued it
}

// Queuing is a waiter and its acquisition in the Redis queue.
type Queuing struct {
	Waiter *Waiter
	As     *Acquisition
	Enters bool
}

// Round is what the heartbeat goroutine sends at once. Waiters that enter come last.
type Round struct {
	Sent    time.Time
	Waiters []Queuing
	keeps   bool // it has a heartbeat
	enters  bool // it has an entry
}

// enqueued records that Redis queued w.
func (l *Queue) enqueued(w *Waiter, r Refusal, now time.Time) {
	p := l.side.p
	if due := due(now, r.Left, l.when.pollInterval); l.when.sendAt.IsZero() || due.Before(l.when.sendAt) {
		l.when.sendAt = due // a new waiter can make the next heartbeat earlier, never later
		l.wakeHeartbeat(w.Terms)
	}
	l.Subscribe(w.Terms, r.Sent)
	w.queued.enters = false
	if w.queued.as != w.Acquisition {
		l.heartbeat.stand++
		l.dequeued(w)
		w.queued.as = w.Acquisition
		switch {
		case w.queued.early == w.Acquisition:
			p.Wakeup(w)
		case w.handled != l.heartbeat.handled:
			l.Notify() // w was not in the heartbeat that a notification triggered after w's request was sent
		}
	}
	if r.Own && !w.queued.own {
		w.queued.own = true
		p.emit(Effect{Kind: SubscribeOwner, Waiter: w})
	}
}

// wakeHeartbeat makes the heartbeat goroutine call NextHeartbeat.
func (l *Queue) wakeHeartbeat(c *Terms) {
	p := l.side.p
	l.heartbeat.on = true
	p.emit(Effect{Kind: Heartbeat, Queue: l, Terms: c})
}

// enter adds w to the next entry.
func (l *Queue) enter(w *Waiter) {
	w.queued.enters = true
	l.heartbeat.coming = append(l.heartbeat.coming, w)
	if l.heartbeat.entries == 0 && len(l.heartbeat.coming) == 1 { // mutant: operand 2: speed
		l.wakeHeartbeat(w.Terms)
	}
}

// dequeued records that w is not in the Redis queue any more, if it was.
func (l *Queue) dequeued(w *Waiter) {
	if w.queued.as != nil {
		w.queued.as = nil
		if l.heartbeat.stand--; l.heartbeat.stand == 0 {
			l.wakeHeartbeat(w.Terms) // the next entry need not wait for EntryPause
		}
	}
	if w.queued.own {
		w.queued.own = false
		l.side.p.emit(Effect{Kind: UnsubscribeOwner, Waiter: w})
	}
}

// OnTurn handles a notification that it is the turn of the waiter with this owner string.
func (l *Queue) OnTurn(name string) {
	for _, w := range l.waiters {
		if w.Acquisition.Name != name {
			continue
		}
		if w.queued.as != nil || w.queued.sent {
			l.side.p.Wakeup(w)
		} else {
			w.queued.early = w.Acquisition
		}
		return
	}
}

// NextHeartbeat returns what the heartbeat goroutine of l sends now, and when it calls NextHeartbeat
// again. If the Round has any waiter, a HeartbeatDone must follow.
func (l *Queue) NextHeartbeat(now time.Time) (due time.Time, r Round) {
	r.Sent = now
	ready := !now.Before(l.when.sendAt)
	retryBefore := now.Add(-l.when.pollInterval) // an earlier entry without a reply is sent again
	if l.when.notified {
		l.when.notified = false
		l.heartbeat.handled++
		l.heartbeat.missed = l.heartbeat.flying > 0
		ready = ready || !l.heartbeat.missed
	}
	var enter []*Waiter
	switch {
	case ready:
		l.when.sendAt = now.Add(l.when.pollInterval)
		for _, w := range l.waiters {
			switch {
			case w.queued.as != nil:
				r.Waiters = append(r.Waiters, Queuing{Waiter: w, As: w.queued.as})
			case w.sentAt.Before(retryBefore): // zero if it was never sent
				enter = append(enter, w)
			}
		}
		r.keeps = len(r.Waiters) > 0
		l.heartbeat.coming = nil // mutant: removed: speed
	case l.heartbeat.entries == 0 && (l.heartbeat.stand == 0 || !now.Before(l.heartbeat.entered.Add(EntryPause))):
		enter, l.heartbeat.coming = l.heartbeat.coming, nil
	}
	for _, w := range enter {
		if w.queue != l || !w.queued.enters {
			continue // it has left, or sent its own request
		}
		w.queued.sent, r.enters = true, true
		w.sentAt, w.handled = now, l.heartbeat.handled
		l.side.p.WillSend(w.Acquisition, max(w.Terms.Lease, l.side.p.rules.Lease), w.Terms.WaiterTimeout)
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

// HeartbeatDone records the reply to r, or an error. The caller then calls Entered or NotEntered for
// each waiter that was to enter.
func (l *Queue) HeartbeatDone(r Round, err error) {
	if r.enters {
		if l.heartbeat.entries--; len(l.heartbeat.coming) > 0 {
			l.wakeHeartbeat(l.heartbeat.coming[0].Terms)
		}
	}
	if r.keeps {
		if l.heartbeat.flying--; l.heartbeat.flying == 0 && l.heartbeat.missed {
			l.Notify()
		}
	}
	if err != nil {
		l.outage.failed(r.Sent, err)
	} else {
		l.outage.replied(r.Sent)
	}
}

// Entered records that Redis queued q, by an entry that was sent at sent. own is as in Refusal.
// Entered reports whether the caller must reconcile q.As, because its waiter has left.
func (p *Lock) Entered(q Queuing, own bool, sent, now time.Time) (reconcile bool) {
	w, t := q.Waiter, q.As
	switch {
	case t.taken, t.phase == Offered, t.phase == Held:
		p.answered(nil, t, sharedResult{}) // it has or had the lock: its end also removes what the entry left
		return false
	case !t.Lives(): // its waiter has left, or sends requests for another one
		return p.LateReply(nil, t, true)
	}
	w.queued.sent = false
	p.Refused(w, t, Refusal{Sent: sent, Left: -1, Own: own, Trace: true}, now)
	if w.Tells { // mutant: always: speed
		w.queue.wake(w)
	}
	return false
}

// NotEntered records that the entry of q failed with err. Its waiter sends its own request.
// mayHaveRun is as in Failed.
func (p *Lock) NotEntered(q Queuing, mayHaveRun bool, err error) {
	w := q.Waiter
	if p.Failed(w, q.As, mayHaveRun, err); w.queue != nil && w.Acquisition == q.As {
		w.queued.sent, w.queued.enters = false, false
		p.Wakeup(w)
	}
}

// Queued returns the acquisition of w in the Redis queue, or nil if it has none there.
func (w *Waiter) Queued() *Acquisition { return w.queued.as }

// HeartbeatIn schedules the next heartbeat after left, according to the reply to r. If left is
// negative, that is a poll interval. The reply to an entry can make the next heartbeat earlier, never
// later.
func (l *Queue) HeartbeatIn(r Round, now time.Time, left time.Duration) {
	if due := due(now, left, l.when.pollInterval); l.side != nil && (r.keeps || due.Before(l.when.sendAt)) {
		l.when.sendAt = due
		l.side.p.emit(Effect{Kind: Heartbeat, Queue: l})
	}
}

// Follow records the owners that are next in the Redis queue after t, which was granted the lock.
// numbers are the ends of their owner strings, separated by spaces. All of them start with the first
// begin bytes of t's.
func (p *Lock) Follow(t *Acquisition, numbers string, begin int) {
	l := p.Queue(t.Terms)
	if l == nil || numbers == "" {
		return
	}
	handOffs, at := t.handOffs(), 0
	handOffs.queue = nil
	for number := range strings.SplitSeq(numbers, " ") {
		for i := range l.waiters {
			i = (at + i) % len(l.waiters) // usually both are in the same order
			if w := l.waiters[i]; w.Acquisition.Name[begin:] == number {
				handOffs.queue = append(handOffs.queue, Queuing{Waiter: w, As: w.Acquisition})
				at = i + 1
				break
			}
		} // a waiter that is not found has left, or is about to leave
	}
}

// nextInQueue returns the waiter that is next in the Redis queue after t, if it is in this process
// and can take the lock of t. Otherwise it returns nil.
func (l *Queue) nextInQueue(t *Acquisition) *Waiter {
	handOffs := t.grant.handOffs
	for ; handOffs != nil && len(handOffs.queue) > 0; handOffs.queue = handOffs.queue[1:] {
		if q := handOffs.queue[0]; q.Waiter.queue != l || q.Waiter.Acquisition != q.As {
			continue // it has left
		} else if q.Waiter.Terms.canTake(t) {
			return q.Waiter
		}
		return nil
	}
	return nil
}

// firstQueued returns the first waiter with an entry in the Redis queue, if the release of t may
// grant it the lock with this lease. Otherwise it returns nil.
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

// onFairRelease is OnRelease for a queue in Redis. as is the acquisition of the waiter that the
// release named as the next owner.
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
	if !i.Done {
		l.Notify() // the next owner may have been granted the lock, or the lock may be free
	}
	return false
}

// offerTo offers t, which has the lock, to w of l.
func (p *Lock) offerTo(l *Queue, t *Acquisition, w *Waiter) {
	l.hand.offered, l.hand.to, l.side.held = t, w, t
	l.wake(w)
}

// serve records that w took t. If w has another owner string than t, w's entry stays in the Redis
// queue until RemoveServed or the release of t removes it.
func (p *Lock) serve(w *Waiter, t *Acquisition, now time.Time) {
	as := w.Acquisition
	w.queue.dequeued(w)
	w.queued.enters = false
	if as == t {
		return
	}
	handOffs := t.handOffs()
	if len(handOffs.served) == 0 {
		handOffs.servedAt = now
	}
	handOffs.served = append(handOffs.served, as.Name)
	if !p.removing {
		p.removeServedAt(now.Add(ServedPause))
	}
	as.taken = as.sends == 1 // its entry was executed, or is uncertain and reconciled below
	if as.Lives() {
		p.end(as, Released)
	}
	if as.uncertain {
		p.release(as) // a delayed duplicate of its request may enter the queue again
	}
	w.Acquisition = t
}

// ServedPause is how long the entry of a served waiter stays in the Redis queue if the lock is not
// released before. A busy lock is usually released after MaxHandOffTime. But an owner can hold the lock
// indefinitely, and other clients must not take such entries for waiters.
const ServedPause = MaxHandOffTime

// removeServedAt has RemoveServed called at due.
func (p *Lock) removeServedAt(due time.Time) {
	p.removing = true
	p.emit(Effect{Kind: RemoveServed, Due: due})
}

// RemoveServed handles the timer of a RemoveServed effect. If served waiters must be removed from the
// Redis queue, it returns their owner strings, and the acquisition whose release would remove them.
// The session sends that command and then calls ServedRemoved.
func (p *Lock) RemoveServed(now time.Time) (t *Acquisition, served []string) {
	t = p.sides[0].held
	if t == nil || !t.Lives() || len(t.Served()) == 0 || p.closed {
		p.removing = false // there is none, or the release of t removes them
		return nil, nil
	}
	if due := t.grant.handOffs.servedAt.Add(ServedPause); now.Before(due) {
		p.removeServedAt(due)
		return nil, nil
	}
	return t, slices.Clone(t.Served())
}

// ServedRemoved records the result of the command for the first n served waiters of t. done says that
// Redis confirmed it.
func (p *Lock) ServedRemoved(t *Acquisition, n int, done bool, now time.Time) {
	handOffs, pause := t.handOffs(), ServedPause
	if done {
		handOffs.served, handOffs.servedAt = handOffs.served[n:], now
	} else {
		pause = p.rules.Poll
	}
	p.removeServedAt(now.Add(pause)) // there may be more by then
}

// skip hands off what was offered to w, which has left the queue.
func (l *Queue) skip(w *Waiter) {
	if l.hand.to != w {
		return
	}
	p, t := l.side.p, l.hand.offered
	l.hand.offered, l.hand.to = nil, nil
	if next := l.nextInQueue(t); next != nil && t.Lives() && !p.closed {
		p.offerTo(l, t, next)
	} else {
		p.Fail(t)
	}
}

package lockstate

import (
	"slices"
	"time"
)

// Queue holds the waiters of this process for one side of a lock, first come, first served. It ends
// with its last waiter. What it knows about when to send requests remains when the next waiter
// becomes the first.
type Queue struct {
	side          *side // nil once the queue has ended
	key           QueueKey
	waiters       []*Waiter // in the order of arrival
	only          Waiter    // preallocated memory for the first waiter
	refusedLast   bool      // the latest reply was a refusal
	subscribed    bool      // its channels are subscribed, or about to be
	outage        outage    // since when Redis has not replied to it
	when          schedule
	hand          hand
	entersWaiters bool // it enters its waiters in a Redis queue, in batches: FairQueue. Those of RedisQueue enter by their own requests
	heartbeat     heartbeat
	Subscriptions any // set by the session: its Pub/Sub subscriptions and heartbeat; nil before it needs them
}

// schedule determines whether and when a queue sends a request or a heartbeat.
type schedule struct {
	active            bool          // the first waiter sends a request when there is a reason; otherwise it waits for this process's owner
	sendAt            time.Time     // a request or heartbeat is due then even without a notification; zero means now
	pollInterval      time.Duration // the poll interval
	longPollInterval  time.Duration // the longest poll interval while notifications arrive, as far as is known
	notified          bool          // there was a notification since the latest request or heartbeat
	timerRunning      bool          // TimerFired will be called
	hadTimer          bool          // a timer was started once, so it may refer to the queue
	pollWithoutPubSub time.Duration // the next poll delay while notifications do not arrive; 0 if they do, as far as is known
}

// hand is the state of a queue's hand-offs.
type hand struct {
	ticket  *Acquisition // Ticket: the waiters send requests in its name; nil if none has sent one
	offered *Acquisition // Offered: for the first waiter to take; nil if there is none
	to      *Waiter      // if entersWaiters: the waiter that is to take it
}

// Waiter is a call that waits for a lock, or makes one attempt.
type Waiter struct {
	Wake        chan struct{} // its capacity is 1: a token in it makes the call use Next again
	Terms       *Terms        // what it requests
	Owner       *Owner
	Acquisition *Acquisition // the acquisition that it sends requests for; nil if that is the ticket of the queue
	Of          any          // set by the session: the subscription of SubscribeOwner
	Tells       bool         // its call is woken when the queue has entered it in the Redis queue, to notify its observer

	queue *Queue    // nil if it is in none
	since time.Time // when it came
	once  bool      // it makes a single attempt, and takes only what its own request was granted
	sending
	queued queued // for kinds with a queue in Redis
	joiner        // for readers
}

// sending determines why and when a waiter sends a request, whatever its position.
type sending struct {
	reason  bool      // it must send a request now
	retryAt time.Time // it retries then, or sends its first request if it yields until then; zero means neither is due
	sentAt  time.Time // when its latest request was sent
	handled int       // the number of notifications that its queue had handled by then
}

// queue returns the queue for waiters with these terms, or nil if there is none.
func (s *side) queue(c *Terms) *Queue {
	for _, l := range s.queues {
		if l.key == c.QueueKey {
			return l
		}
	}
	return nil
}

// Queue returns the queue for waiters with these terms, or nil if none waits.
func (p *Lock) Queue(c *Terms) *Queue { return p.side(c.Reads).queue(c) }

// Queue returns the queue of w, or nil if it is in none.
func (w *Waiter) Queue() *Queue { return w.queue }

// isFirst reports whether w is the first waiter of its queue.
func (w *Waiter) isFirst() bool { return w.queue != nil && w.queue.waiters[0] == w }

// leads reports whether w is the first waiter of an active queue.
func (w *Waiter) leads() bool { return w.isFirst() && w.queue.when.active }

// Join makes a call of o wait in the queue of these terms, and returns its waiter. Redis admits a reader
// whose owner writes immediately, so such a reader sends a request whatever its position: waiters ahead of it may
// wait for that same owner.
func (p *Lock) Join(c *Terms, o *Owner, now time.Time) *Waiter {
	s := p.side(c.Reads)
	l := s.queue(c)
	var w *Waiter
	if l == nil {
		l = s.newQueue(c)
		w = &l.only
	} else {
		w = newWaiter()
	}
	w.Terms, w.Owner, w.since, w.queue = c, o, now, l
	p.begin(w, now)
	if c.Reads {
		o.waiter, w.reason = w, o.Sibling() != nil
	}
	if c.WaiterTimeout > 0 {
		most := c.WaiterTimeout / 3 // so that its entry in Redis does not expire
		l.when.pollInterval, l.when.longPollInterval = min(l.when.pollInterval, most), min(l.when.longPollInterval, most)
	}
	l.waiters = append(l.waiters, w)
	switch {
	case l.entersWaiters && len(l.waiters) == 1 && now.Before(l.side.yieldUntil):
		w.retryAt = l.side.yieldUntil // other processes come first
	case c.WaitPolicy.sendsAtOnce(l):
		w.reason = true
	case l.entersWaiters:
		if first := l.waiters[0]; !first.retryAt.IsZero() && first.sentAt.IsZero() { // it yields, and is not in the Redis queue
			first.retryAt = time.Time{} // w must not overtake it
			l.enter(first)
		}
		l.enter(w)
	}
	if s.held != nil {
		l.startTimer(now)
	}
	return w
}

// Try makes a call of o a single attempt, and returns its waiter. It reports false if the policy queues
// single attempts, and other waiters are ahead.
func (p *Lock) Try(c *Terms, o *Owner, now time.Time) (w *Waiter, first bool) {
	if c.WaitPolicy == OnlyFirst {
		w = p.Join(c, o, now)
		first = w.isFirst()
	} else {
		w, first = newWaiter(), true
		w.Terms, w.Owner, w.since = c, o, now
	}
	w.reason, w.once = true, true
	if w.Acquisition == nil { // mutant: always: memory
		p.begin(w, now)
	}
	return w, first
}

func newWaiter() *Waiter { return &Waiter{Wake: make(chan struct{}, 1)} }

// confirmedPolls is the maximum number of poll intervals between two requests of a queue whose subscription is confirmed.
// Up to it, the interval is a tenth of the wait so far, which limits the delay after an event without a message, such as
// the death of the next holder. The maximum is shorter than an offer, so that a lost message does not waste the offer.
const confirmedPolls = 2

// newQueue returns a queue for waiters with these terms. The memory of its first waiter is Queue.only.
func (s *side) newQueue(c *Terms) *Queue {
	l, _ := s.p.rules.queues.Get().(*Queue)
	if l == nil {
		l = &Queue{only: *newWaiter()}
	}
	l.side, l.key, l.entersWaiters = s, c.QueueKey, c.WaitPolicy == FairQueue
	l.when = schedule{active: s.held == nil, pollInterval: s.p.rules.Poll, longPollInterval: confirmedPolls * s.p.rules.Poll}
	s.queues = append(s.queues, l)
	return l
}

// Quit removes w from its queue. If w was the first, the next waiter becomes the first. If that one
// is a single attempt, what the queue was granted is released.
func (p *Lock) Quit(w *Waiter, now time.Time) {
	l := w.queue
	if l == nil {
		return
	}
	if w.queued.as != nil { // mutant: always: speed
		l.dequeued(w)
	}
	w.Owner.waiter = nil // an owner has one waiter at a time
	i := slices.Index(l.waiters, w)
	l.waiters = slices.Delete(l.waiters, i, i+1)
	w.queue = nil // a request or an entry of w may have no reply yet
	switch {
	case len(l.waiters) == 0:
		l.end()
		return
	case l.entersWaiters:
		l.skip(w)
		return
	case i > 0:
		return
	case l.waiters[0].once:
		l.refuse()
	}
	l.when.active = false
	if l.hand.offered == nil && l.side.held != nil {
		l.startTimer(now) // the owner in this process will hand the lock off or release it
	} else {
		l.activate()
	}
}

// end ends the queue, which has no waiter left. If nothing can refer to the queue, any lock may
// reuse it: a lock that is merely held needs no queue.
func (l *Queue) end() {
	s := l.side
	s.queues = slices.DeleteFunc(s.queues, func(other *Queue) bool { return other == l })
	if l.subscribed {
		s.p.emit(Effect{Kind: Unsubscribe, Queue: l})
	}
	if l.heartbeat.on {
		s.p.emit(Effect{Kind: Heartbeat, Queue: l}) // so that the heartbeat ends
	}
	if l.hand != (hand{}) { // mutant: always: speed
		l.refuse()
	}
	// A request in flight and the session's subscriptions may refer to the queue and its waiter.
	known := l.subscribed || l.when.hadTimer || l.entersWaiters || l.Subscriptions != nil || s.p.inFlight > 0
	*l = Queue{waiters: l.waiters, only: Waiter{Wake: l.only.Wake, Of: l.only.Of}, Subscriptions: l.Subscriptions}
	if !known {
		s.p.rules.queues.Put(l)
	}
}

// Ended reports whether l has ended.
func (l *Queue) Ended() bool { return l.side == nil }

// refuse releases what the queue was or may yet be granted. Its first waiter cannot take it, or there
// is no waiter.
func (l *Queue) refuse() {
	for _, t := range []*Acquisition{l.hand.ticket, l.hand.offered} {
		if t != nil {
			l.side.p.Fail(t)
		}
	}
	l.hand = hand{}
}

// wake makes the call of w use Next again.
func (l *Queue) wake(w *Waiter) { l.side.p.emit(Effect{Kind: Wake, Waiter: w}) }

// activate makes the first waiter use Next, because it may have to send a request or take an offer.
func (l *Queue) activate() {
	l.when.active = true
	l.wake(l.waiters[0])
}

// startTimer has TimerFired called after a poll interval, because this process has the lock. Until then
// the first waiter sends nothing. After that it must send a request, because the lock may be lost
// without a notification.
func (l *Queue) startTimer(now time.Time) {
	if !l.when.timerRunning && !l.entersWaiters {
		l.when.timerRunning, l.when.hadTimer = true, true
		l.side.p.emit(Effect{Kind: StartTimer, Queue: l, Due: now.Add(l.when.pollInterval)})
	}
}

// TimerFired handles the timer of a StartTimer effect. The queue may have ended in the meantime.
func (l *Queue) TimerFired() {
	l.when.timerRunning = false
	if l.side != nil && !l.when.active {
		l.when.sendAt = time.Time{}
		l.activate()
	}
}

// due returns when to retry: after left, before which nothing happens according to Redis, and after pace at the latest.
// A negative left means unknown.
func due(now time.Time, left, pace time.Duration) time.Time {
	if left >= 0 {
		pace = min(left+time.Millisecond, pace)
	}
	return now.Add(pace)
}

// Notify records a notification, which is a reason for the queue to send a request or a heartbeat: a message, or the
// confirmation of a subscription. The queue may have ended in the meantime.
func (l *Queue) Notify() {
	l.when.notified = true
	switch {
	case l.heartbeat.on:
		l.side.p.emit(Effect{Kind: Heartbeat, Queue: l})
	case l.when.active:
		l.wake(l.waiters[0])
	}
}

// OnHandOff handles a message on this client's own channel: the lock may have been handed off to it.
func (l *Queue) OnHandOff() {
	l.YieldUntil(time.Time{})
	l.Notify()
}

// YieldUntil is Lock.YieldUntil for the side of l, unless l has ended.
func (l *Queue) YieldUntil(until time.Time) {
	if l.side != nil {
		l.side.yieldUntil = until
	}
}

// Wakeup makes w send a request, whatever its position.
func (p *Lock) Wakeup(w *Waiter) {
	w.reason = true
	p.emit(Effect{Kind: Wake, Waiter: w})
}

// YieldUntil records that the lock was released for other processes, which come first until then. A queue
// sends no request before. In a fair queue that applies only to the first waiter, unless a second one comes:
// waiters in the Redis queue keep their positions.
func (p *Lock) YieldUntil(c *Terms, until time.Time) { p.side(c.Reads).yieldUntil = until }

// Free notifies the queues of both sides after an owner with these terms released the lock. It does
// nothing if Redis notifies the next waiter, or if other owners may still hold the lock.
func (p *Lock) Free(c *Terms) {
	if c.WaitPolicy != OnlyFirst {
		return
	}
	for i := range p.sides {
		for _, l := range p.sides[i].queues {
			l.Notify()
		}
	}
}

// Subscribed reports whether l is subscribed, or about to be.
func (l *Queue) Subscribed() bool { return l.subscribed }

// Subscribe subscribes the channels of l, unless they are. The latest request was sent at sent;
// notifications since then may be lost.
func (l *Queue) Subscribe(c *Terms, sent time.Time) {
	if !l.subscribed {
		l.subscribed = true
		l.side.p.emit(Effect{Kind: Subscribe, Queue: l, Terms: c, Sent: sent})
	}
}

// outage tracks since when Redis has not replied to a queue. It distinguishes "another owner has the
// lock" from "Redis is unavailable". That also serves waiters that send nothing, because the first
// waiter sends requests for all.
//
// Redis is unavailable if a request sent after the last answered one failed or is overdue. Failures
// include a refused connection, a timeout and LOADING. A request that is merely in flight says
// nothing.
type outage struct {
	from      time.Time // when the first request without a reply was sent; zero if there is none
	latest    time.Time // when the latest request was sent
	repliedTo time.Time // when the last answered request was sent; zero if none was answered
	err       error     // the error of a later request; nil if there is none
}

// sent records that a request is sent. Callers read the clock before they take the mutex, so an earlier
// time can follow a later one.
func (q *outage) sent(sent time.Time) {
	if sent.After(q.latest) {
		q.latest = sent
	}
	if q.from.IsZero() {
		q.from = sent
	}
}

// replied records the reply to the request that was sent at sent.
func (q *outage) replied(sent time.Time) {
	if sent.After(q.repliedTo) {
		q.repliedTo = sent
	}
	q.err, q.from = nil, time.Time{}
	if q.latest.After(q.repliedTo) {
		q.from = q.latest // the latest request has no reply yet
	}
}

// failed records that the request sent at sent failed with err.
func (q *outage) failed(sent time.Time, err error) {
	if sent.Before(q.repliedTo) {
		return // a later request was answered
	}
	q.err = err
	if q.from.IsZero() {
		q.from = sent
	}
}

// Outage returns for how long Redis has not replied to l, and the error of the latest request. It returns
// 0 if Redis is available, or l is nil. A request without a reply counts as failed after overdue.
func (l *Queue) Outage(now time.Time, overdue time.Duration) (time.Duration, error) {
	if l == nil || l.outage.from.IsZero() {
		return 0, nil
	}
	if d := now.Sub(l.outage.from); l.outage.err != nil || d >= overdue {
		return max(d, 1), l.outage.err
	}
	return 0, nil
}

package lockstate

import (
	"slices"
	"time"
)

// Queue is where the waiters of this process stand for one side of one lock, first come,
// first served. It ends with its last waiter. What it has learnt about when to ask stays
// with it when the next waiter comes to be the first.
type Queue struct {
	side          *side // nil when the queue has ended
	key           QueueKey
	waiters       []*Waiter // in the order in which they came
	only          Waiter    // memory for the first waiter of a new queue
	active        bool      // the first waiter is to ask when there is a reason; else it waits for what this process has
	refusedLast   bool      // the latest reply was that others have the lock
	subscribed    bool      // it is subscribed
	outage        Outage    // since when Redis gives it no reply
	when          schedule
	hand          hand
	inRedis       bool // it has its waiters enter a queue in Redis
	heartbeat     heartbeat
	Subscriptions any // the session's: how the queue is notified of the lock, and its heartbeat; nil before it needs them
}

// schedule says when a queue asks, or sends a heartbeat.
type schedule struct {
	sendAt            time.Time     // a request, or a heartbeat, is due then without a notification; zero is at once
	pace              time.Duration // and that often
	notified          bool          // something happened to the lock
	timerRunning      bool          // TimerFired will come
	hadTimer          bool          // TimerFired was to come once, so a timer may refer to the queue
	yieldUntil        time.Time     // until then others come first, and a notification is no reason to ask
	pollWithoutPubSub time.Duration // the next pause, while no message reaches this process; 0 if messages do, as far as is known
}

// hand is what a queue has of a lock that is handed off.
type hand struct {
	ticket  *Acquisition // Queued: the waiters ask in its name; nil if none has asked
	offered *Acquisition // Offered: for the first waiter to take; nil if there is none
	to      *Waiter      // of a queue that queues: which waiter is to take it
}

// Waiter is a call that waits for a lock, or makes one attempt.
type Waiter struct {
	Wake        chan struct{} // the session's: a token in it, which has room for one, has the call look at Next again
	Terms       *Terms        // what it asks for
	Owner       *Owner        // its owner
	Acquisition *Acquisition  // in whose name it asks; nil if that is the queue's ticket, or if it asks for several locks at once
	Of          any           // the session's: the subscription of SubscribeOwner
	Tells       bool          // its call looks at Next when the queue has had it enter the queue, to tell its observer

	queue *Queue    // nil if it stands in none
	since time.Time // when it came
	once  bool      // it makes one attempt, and takes nothing but the reply to its own request
	sending
	queued queued // of kinds with a queue in Redis
	joiner        // of readers
}

// sending is why and when a waiter asks, wherever it stands.
type sending struct {
	reason  bool      // it has a reason to ask now
	retryAt time.Time // it asks again then; zero if not
	sentAt  time.Time // when its latest request was due
}

// queue returns the queue in which waiters with these terms stand; nil if there is none.
func (s *side) queue(c *Terms) *Queue {
	for _, l := range s.queues {
		if l.key == c.QueueKey {
			return l
		}
	}
	return nil
}

// Queue returns the queue in which waiters with these terms stand; nil if none waits.
func (p *Lock) Queue(c *Terms) *Queue { return p.side(c.Reads).queue(c) }

// Outage returns what the queue knows of Redis' replies. It is nil for a nil line.
func (l *Queue) Outage() *Outage {
	if l == nil {
		return nil
	}
	return &l.outage
}

// Queue returns the queue that w stands in; nil if it stands in none.
func (w *Waiter) Queue() *Queue { return w.queue }

// Since returns when w came.
func (w *Waiter) Since() time.Time { return w.since }

// First reports whether w is the first of its queue.
func (w *Waiter) First() bool { return w.queue != nil && w.queue.waiters[0] == w }

// leads reports whether w is the first of its queue, and the queue is active.
func (w *Waiter) leads() bool { return w.First() && w.queue.active }

// Waiter returns a waiter for these terms, which is about to Join, or to Try once. If a new
// line will be made for it, it is memory of that queue.
func (p *Lock) Waiter(c *Terms, once bool) *Waiter {
	s := p.side(c.Reads)
	if s.queue(c) != nil || once && !c.WaitPolicy.tryQueues() {
		return new(Waiter)
	}
	if s.spare == nil {
		s.spare = s.p.rules.queue()
	}
	return &s.spare.only
}

// Join has w stand at the end of the queue of its terms.
func (p *Lock) Join(w *Waiter, now time.Time) {
	s := p.side(w.Terms.Reads)
	l := s.queue(w.Terms)
	if l == nil {
		l = s.newQueue(w.Terms)
	}
	w.queue, w.since = l, now
	if len(l.waiters) == 0 {
		l.active = s.held == nil
	}
	if w.Terms.WaiterTimeout > 0 {
		l.when.pace = min(l.when.pace, w.Terms.WaiterTimeout/3) // its trace in Redis must not expired
	}
	l.waiters = append(l.waiters, w)
	switch {
	case w.Terms.WaitPolicy.sendsAtOnce(l):
		w.reason = true
	case l.inRedis:
		l.enter(w)
	}
	if s.held != nil {
		l.startTimer(now)
	}
}

// Try has w make one attempt. It reports false if the kind's waiters wait in the queue, and others
// are ahead of w.
func (p *Lock) Try(w *Waiter, now time.Time) bool {
	w.since, w.reason, w.once = now, true, true
	if !w.Terms.WaitPolicy.tryQueues() {
		return true
	}
	p.Join(w, now)
	return w.First()
}

func (s *side) newQueue(c *Terms) *Queue {
	l := s.spare
	s.spare = nil
	if l == nil {
		l = s.p.rules.queue()
	}
	l.side, l.key, l.inRedis = s, c.QueueKey, c.WaitPolicy.inRedis()
	l.when.pace, l.when.yieldUntil = s.p.rules.Poll, s.yieldUntil
	s.yieldUntil = time.Time{}
	s.queues = append(s.queues, l)
	return l
}

// Quit has w leave its queue. If w was the first, the next waiter is from now on; and if that
// one does not want what comes to the queue, it is released.
func (p *Lock) Quit(w *Waiter, now time.Time) {
	l := w.queue
	if l == nil {
		return
	}
	if w.queued.as != nil || w.queued.own {
		l.dequeued(w)
	}
	if w.Owner.waiter == w {
		w.Owner.waiter = nil
	}
	i := slices.Index(l.waiters, w)
	l.waiters = slices.Delete(l.waiters, i, i+1)
	switch {
	case len(l.waiters) == 0:
		if l.inRedis {
			w.queue = nil
		}
		l.end()
		return
	case l.inRedis:
		w.queue = nil // an entry of it may be replied to yet
		l.skip(w)
		return
	case i > 0:
		return
	case l.waiters[0].once:
		l.refuse()
	}
	l.active = false
	if l.hand.offered == nil && l.side.held != nil {
		l.startTimer(now) // the holder in this process will hand the lock off, or release it
	} else {
		l.activate()
	}
}

// end ends the queue, which has no waiter any more. Another place uses it again if nothing may
// refer to it: while a lock is held, its state needs none.
func (l *Queue) end() {
	s := l.side
	s.queues = slices.DeleteFunc(s.queues, func(other *Queue) bool { return other == l })
	if l.subscribed {
		s.p.emit(Effect{Kind: Unsubscribe, Queue: l})
	}
	if l.heartbeat.on {
		s.p.emit(Effect{Kind: Heartbeat, Queue: l}) // for the last time
	}
	if l.hand != (hand{}) {
		l.refuse()
	}
	// A request that is under way, and what the session has of the queue, may refer to it and its waiter.
	known := l.subscribed || l.when.hadTimer || l.inRedis || l.Subscriptions != nil || s.p.inFlight > 0
	*l = Queue{waiters: l.waiters, only: Waiter{Wake: l.only.Wake, Of: l.only.Of}, Subscriptions: l.Subscriptions}
	if !known {
		s.p.rules.queues.Put(l)
	}
}

// queue returns a queue that no state has.
func (r *Rules) queue() *Queue {
	if l, _ := r.queues.Get().(*Queue); l != nil {
		return l
	}
	return new(Queue)
}

// Ended reports whether l has ended.
func (l *Queue) Ended() bool { return l.side == nil }

// refuse releases what came to the queue, or may come yet: the first waiter does not want
// it, or there is no waiter.
func (l *Queue) refuse() {
	for _, t := range []*Acquisition{l.hand.ticket, l.hand.offered} {
		if t != nil {
			l.side.p.Fail(t)
		}
	}
	l.hand = hand{}
}

// wake has the call of w look at Next again.
func (l *Queue) wake(w *Waiter) { l.side.p.emit(Effect{Kind: Wake, Waiter: w}) }

// activate has the first waiter look at Next: it may have a reason to ask, or something to take.
func (l *Queue) activate() {
	if l.active {
		l.notify()
		return
	}
	l.active = true
	l.wake(l.waiters[0])
}

// notify notes a notification: a reason for the queue to ask, or to send a heartbeat.
func (l *Queue) notify() {
	l.when.notified = true
	switch {
	case l.side == nil:
	case l.heartbeat.on:
		l.side.p.emit(Effect{Kind: Heartbeat, Queue: l})
	case l.active:
		l.wake(l.waiters[0])
	}
}

// startTimer has TimerFired called after a poll interval, if this process has the lock. Until then the
// first waiter need not ask. After that it must, as the lock may be lost and no one may know.
func (l *Queue) startTimer(now time.Time) {
	if !l.when.timerRunning && l.side.held != nil && !l.inRedis {
		l.when.timerRunning, l.when.hadTimer = true, true
		l.side.p.emit(Effect{Kind: StartTimer, Queue: l, Due: now.Add(l.when.pace)})
	}
}

// TimerFired says that the time of an Arm has come. The queue may have ended meanwhile.
func (l *Queue) TimerFired() {
	l.when.timerRunning = false
	if l.side != nil && !l.active {
		l.when.sendAt = time.Time{}
		l.activate()
	}
}

// due returns when to ask again if Redis said that nothing will happen for left. A negative
// left says nothing.
func (l *Queue) due(now time.Time, left time.Duration) time.Time {
	d := l.when.pace
	if left >= 0 {
		d = min(left+time.Millisecond, d)
	}
	return now.Add(d)
}

// Notify notes a notification: a message came, or the confirmation of a subscription. The queue may have
// ended meanwhile.
func (l *Queue) Notify() {
	if l.side != nil {
		l.notify()
	}
}

// OnHandOff notes a message to this process alone, which may have been given the lock.
func (l *Queue) OnHandOff() {
	l.when.yieldUntil = time.Time{}
	l.Notify()
}

// YieldUntil notes that the lock is released for others, and that the queue does not ask for it
// until then.
func (l *Queue) YieldUntil(until time.Time) { l.when.yieldUntil = until }

// Wakeup gives w a reason to ask, whichever waiter is the first.
func (p *Lock) Wakeup(w *Waiter) {
	w.reason = true
	p.emit(Effect{Kind: Wake, Waiter: w})
}

// YieldUntil notes that the lock was released for others, which come first until then. If there is
// no queue, the next one knows.
func (p *Lock) YieldUntil(c *Terms, until time.Time) {
	s := p.side(c.Reads)
	if l := s.queue(c); l != nil {
		l.YieldUntil(until)
	} else {
		s.yieldUntil = until
	}
}

// Free gives the waiters on either side a notification, after an owner by these terms gave the lock
// back. It does nothing where Redis itself tells the next waiter, and where others may still
// hold the lock.
func (p *Lock) Free(c *Terms) {
	if !c.WaitPolicy.wakesOnUnlock() {
		return
	}
	for i := range p.sides {
		for _, l := range p.sides[i].queues {
			l.notify()
		}
	}
}

// Subscribed reports whether l is subscribed.
func (l *Queue) Subscribed() bool { return l.subscribed }

// Subscribe has l subscribed, if it is not. Its latest request was sent at sent: what was said
// since then may be missed.
func (l *Queue) Subscribe(c *Terms, sent time.Time) {
	if !l.subscribed {
		l.subscribed = true
		l.side.p.emit(Effect{Kind: Subscribe, Queue: l, Terms: c, Sent: sent})
	}
}

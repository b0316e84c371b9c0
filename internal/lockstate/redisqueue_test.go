package lockstate

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// queues lets w send a request, and queues it.
func (s *stage) queues(w *Waiter, r Refusal) {
	s.Helper()
	w.reason = true
	asked := s.asks(w)
	r.Sent, r.Trace = s.now, true
	s.Refused(w, asked, r, s.now)
}

// waiters returns the waiters of a round.
func (r Round) waiters() (all []*Waiter) {
	for _, q := range r.Waiters {
		all = append(all, q.Waiter)
	}
	return all
}

// nextBeat returns the waiters of the next round.
func (l *Queue) nextBeat(now time.Time) (due time.Time, waiters []*Waiter) {
	due, r := l.NextHeartbeat(now)
	return due, r.waiters()
}

// keeps is a round that is a heartbeat.
func keeps(sent time.Time) Round { return Round{Sent: sent, keeps: true} }

// The waiters of a queue are in the Redis queue. One heartbeat serves all of them.
func TestNextHeartbeat(t *testing.T) {
	s := newStage(t)
	w := s.stand(&fairTerms, 1)
	s.queues(w, Refusal{Left: time.Hour})
	all := s.done()
	if len(all) != 2 || all[0].Kind != Heartbeat || all[0].Terms != &fairTerms || all[1].Kind != Subscribe {
		t.Fatalf("%+v", all)
	}
	s.wantWait(w, time.Time{})
	if due, queued := w.queue.nextBeat(s.now); due != s.now.Add(pollTime) || queued != nil {
		t.Errorf("%v, %d", due, len(queued))
	}
	s.pass(pollTime / 2)
	second, third := s.stand(&fairTerms, 2), s.stand(&fairTerms, 3)
	s.done()
	s.queues(second, Refusal{Left: -1})
	if s.done() != nil {
		t.Error("a new waiter puts the heartbeat off")
	}
	if s.next(third).Do != Wait || second.Queued() != second.Acquisition || third.Queued() != nil {
		t.Error("Redis has one queued, and the state another")
	}
	s.pass(pollTime / 2)
	due, r := w.queue.NextHeartbeat(s.now)
	if due != s.now.Add(pollTime) || !slices.Equal(r.waiters(), []*Waiter{w, second, third}) || r.enterings() != 1 {
		t.Errorf("%v, %+v", due, r)
	}
	w.queue.HeartbeatDone(keeps(s.now), nil)
	if d, _ := w.queue.Outage(s.now.Add(time.Second), time.Second); d != 0 {
		t.Error("a heartbeat was answered, and the queue does not know")
	}
	w.queue.HeartbeatDone(keeps(s.now), errBroke)
	w.queue.heartbeat.flying = 0
	if _, err := w.queue.Outage(s.now.Add(1), time.Second); err != errBroke {
		t.Error("a heartbeat broke, and the queue does not know")
	}
}

// Redis notifies a waiter of its turn before the queue is subscribed, and the subscription is
// confirmed before the reply to the waiter arrives. The heartbeat that the confirmation triggers does
// not include the waiter yet, so the reply triggers another one. All of this can happen between two
// readings of a coarse clock.
func TestNextHeartbeat_notifiedSinceTheRequest(t *testing.T) {
	s := newStage(t)
	first, second := s.stand(&fairTerms, 1), s.stand(&fairTerms, 2)
	second.reason = true
	asked := s.asks(second)
	s.queues(first, Refusal{Left: -1})
	first.queue.nextBeat(s.now)
	first.queue.Notify() // the confirmation
	s.wantRound(first.queue, first)
	s.done()
	s.Refused(second, asked, Refusal{Sent: s.now, Left: -1, Trace: true}, s.now)
	s.wantDid(Heartbeat, "it waits for the next poll")
	first.queue.HeartbeatDone(keeps(s.now), nil)
	s.wantRound(first.queue, first, second)
	s.done()
	third := s.stand(&fairTerms, 3)
	s.queues(third, Refusal{Left: -1})
	s.wantNotDid(Heartbeat, "a waiter whose request was sent after the notification leads to a heartbeat")
}

// If the owner's lease expires soon, the queue sends its heartbeat then.
func TestHeartbeatIn(t *testing.T) {
	s := newStage(t)
	w, second := s.stand(&fairTerms, 1), s.stand(&fairTerms, 2)
	s.queues(w, Refusal{Left: -1})
	s.done()
	s.queues(second, Refusal{Left: 10 * time.Millisecond})
	s.wantDid(Heartbeat, "the sender does not look again")
	s.wantBeat(w.queue, s.now.Add(11*time.Millisecond))
	w.queue.HeartbeatIn(keeps(s.now), s.now, 20*time.Millisecond)
	s.wantDid(Heartbeat, "the sender does not look again")
	s.wantBeat(w.queue, s.now.Add(21*time.Millisecond))
	entry := Round{Sent: s.now, enters: true}
	w.queue.HeartbeatIn(entry, s.now, -1)
	s.wantNotDid(Heartbeat, "the reply to an entry postpones the heartbeat")
	s.wantBeat(w.queue, s.now.Add(21*time.Millisecond))
	w.queue.HeartbeatIn(entry, s.now, 5*time.Millisecond)
	s.wantDid(Heartbeat, "the reply to an entry does not bring the heartbeat forward")
	s.wantBeat(w.queue, s.now.Add(6*time.Millisecond))
	l := w.queue
	s.Quit(w, s.now)
	s.Quit(second, s.now)
	s.done()
	if l.HeartbeatIn(keeps(s.now), s.now, 0); s.done() != nil {
		t.Error("a queue that ended has a heartbeat")
	}
}

// A notification makes the queue send a heartbeat. Notifications during that heartbeat trigger one
// more, after its reply.
func TestNextHeartbeat_notifications(t *testing.T) {
	s := newStage(t)
	w := s.stand(&fairTerms, 1)
	s.queues(w, Refusal{Left: -1})
	s.done()
	l := w.queue
	l.Notify()
	if all := s.done(); len(all) != 1 || all[0].Kind != Heartbeat {
		t.Fatalf("%+v", all)
	}
	if _, queued := l.nextBeat(s.now); len(queued) != 1 {
		t.Fatal("no heartbeat is sent")
	}
	if d, _ := l.Outage(s.now.Add(time.Second), time.Second); d != time.Second {
		t.Error("a heartbeat is under way, and the queue does not know")
	}
	if _, queued := l.nextBeat(s.now); queued != nil {
		t.Error("one hint, and two heartbeats")
	}
	for range 3 {
		l.Notify()
		if _, queued := l.nextBeat(s.now); queued != nil {
			t.Error("a second is sent before the first is answered")
		}
	}
	s.done()
	l.HeartbeatDone(keeps(s.now), nil)
	s.wantDid(Heartbeat, "the hints meanwhile are lost")
	if _, queued := l.nextBeat(s.now); len(queued) != 1 {
		t.Error("the hints meanwhile are lost")
	}
	l.HeartbeatDone(keeps(s.now), nil)
	if s.done() != nil {
		t.Error("it does not end")
	}
	if _, queued := l.nextBeat(s.now); queued != nil {
		t.Error("a heartbeat without a reason")
	}
	if d, _ := l.Outage(s.now.Add(time.Second), time.Second); d != 0 {
		t.Error("nothing was sent, and the queue waits for a reply")
	}

	// The queue sends a heartbeat that is due, whatever is in flight.
	l.Notify()
	l.NextHeartbeat(s.now)
	s.pass(pollTime)
	l.Notify()
	if _, queued := l.nextBeat(s.now); len(queued) != 1 || l.heartbeat.flying != 2 {
		t.Error("a heartbeat that is due waits for an answer")
	}
	s.done()
	l.HeartbeatDone(keeps(s.now), nil)
	s.wantNotDid(Heartbeat, "a heartbeat follows before the last answer")
	l.HeartbeatDone(keeps(s.now), nil)
	s.wantDid(Heartbeat, "the hint is forgotten")
}

// A waiter sends a request when it is notified of its turn, even if the reply that queued it has not
// arrived.
func TestOnTurn(t *testing.T) {
	s := newStage(t)
	w, second := s.stand(&fairTerms, 1), s.stand(&fairTerms, 2)
	s.queues(w, Refusal{Left: -1})
	s.queues(second, Refusal{Left: -1})
	s.done()
	w.queue.OnTurn(second.Acquisition.Name)
	if all := s.wakes(); !slices.Equal(all, []*Waiter{second}) || s.next(second).Do != Send || s.next(w).Do != Wait {
		t.Error("it is not the turn of the second")
	}
	third := s.stand(&fairTerms, 3)
	third.reason = true
	asked := s.asks(third)
	w.queue.OnTurn(asked.Name)
	if s.wakes() != nil {
		t.Error("one asks while it asks")
	}
	s.Refused(third, asked, Refusal{Sent: s.now, Left: -1}, s.now)
	if all := s.wakes(); !slices.Equal(all, []*Waiter{third}) || s.next(third).Do != Send {
		t.Error("its turn is forgotten")
	}
	s.WillSend(asked, 0, 0)
	s.Refused(third, asked, Refusal{Sent: s.now, Left: -1}, s.now)
	if s.wakes() != nil {
		t.Error("it is its turn twice")
	}

	// Several turns can come before the replies, because a semaphore grants many.
	fourth, fifth := s.stand(&fairTerms, 4), s.stand(&fairTerms, 5)
	var requests []*Acquisition
	for _, w := range []*Waiter{fourth, fifth} {
		w.reason = true
		requests = append(requests, s.asks(w))
		w.queue.OnTurn(w.Acquisition.Name)
	}
	for i, w := range []*Waiter{fourth, fifth} {
		s.Refused(w, requests[i], Refusal{Sent: s.now, Left: -1}, s.now)
		if all := s.wakes(); !slices.Equal(all, []*Waiter{w}) || s.next(w).Do != Send {
			t.Errorf("the turn of waiter %d is forgotten", i+4)
		}
	}

	// A waiter whose entry has no reply yet can send its own request.
	sixth := s.stand(&fairTerms, 6)
	s.wantRound(w.queue, sixth)
	s.done()
	w.queue.OnTurn(sixth.Acquisition.Name)
	if all := s.wakes(); !slices.Equal(all, []*Waiter{sixth}) || s.next(sixth).Do != Send {
		t.Error("it waits for the reply to its entry")
	}
}

// A waiter that may be notified on its own channel subscribes it while it is in the Redis queue.
func TestSubscribeOwner(t *testing.T) {
	s := newStage(t)
	w := s.stand(&fairTerms, 1)
	s.queues(w, Refusal{Left: -1})
	s.wantNotDid(SubscribeOwner, "the waiter hears a channel that it has not been told of")
	own := Refusal{Sent: s.now, Left: -1, Own: true}
	s.WillSend(w.Acquisition, 0, 0)
	s.Refused(w, w.Acquisition, own, s.now)
	s.wantDid(SubscribeOwner, "it does not hear")
	s.WillSend(w.Acquisition, 0, 0)
	s.Refused(w, w.Acquisition, own, s.now)
	s.wantNotDid(SubscribeOwner, "it hears twice")
	w.Acquisition = s.acquisition(&fairTerms) // for the next request, after a reply that came too late
	s.WillSend(w.Acquisition, 0, 0)
	s.Refused(w, w.Acquisition, own, s.now)
	if all := s.done(); len(all) != 2 || all[0].Kind != UnsubscribeOwner || all[1].Kind != SubscribeOwner || w.Queued() != w.Acquisition {
		t.Errorf("%+v", all)
	}
	s.stand(&fairTerms, 2)
	s.Quit(w, s.now)
	if !s.did(UnsubscribeOwner) || w.Queued() != nil {
		t.Error("it hears after it has left")
	}
}

// An entry contains only waiters that wait for it: none that has left, and none that its own request
// queued.
func TestNextHeartbeat_entersThoseThatWait(t *testing.T) {
	s := newStage(t)
	first := s.stand(&fairTerms, 1)
	s.queues(first, Refusal{Left: -1})
	l := first.queue
	l.NextHeartbeat(s.now)
	gone, asked, last := s.stand(&fairTerms, 2), s.stand(&fairTerms, 3), s.stand(&fairTerms, 4)
	s.Quit(gone, s.now)
	s.queues(asked, Refusal{Left: -1})
	s.pass(EntryPause)
	_, r := l.NextHeartbeat(s.now)
	if !slices.Equal(r.waiters(), []*Waiter{last}) || r.enterings() != 1 {
		t.Errorf("%d waiters, of which %d enter", len(r.Waiters), r.enterings())
	}
	if r.Sent != s.now {
		t.Errorf("sent at %v", r.Sent)
	}
}

// The heartbeat goroutine wakes up for a due heartbeat, if that is before new waiters may enter.
func TestNextHeartbeat_dueBeforeTheEntry(t *testing.T) {
	s := newStage(t)
	first := s.stand(&fairTerms, 1)
	s.queues(first, Refusal{Left: -1})
	l := first.queue
	l.NextHeartbeat(s.now)
	one := s.stand(&fairTerms, 2)
	s.pass(EntryPause)
	_, r := l.NextHeartbeat(s.now)
	l.HeartbeatDone(r, nil)
	s.Entered(Queuing{one, one.Acquisition, true}, false, s.now, s.now)
	s.stand(&fairTerms, 3)
	l.HeartbeatIn(keeps(s.now), s.now, 0)
	if due, _ := l.NextHeartbeat(s.now); due != s.now.Add(time.Millisecond) {
		t.Errorf("it looks again in %v", due.Sub(s.now))
	}
}

// Waiters that came while an entry was in flight enter when that entry is answered.
func TestHeartbeatIn_entersThoseThatCame(t *testing.T) {
	s := newStage(t)
	s.asks(s.stand(&fairTerms, 1))
	w := s.stand(&fairTerms, 2)
	_, r := w.queue.NextHeartbeat(s.now)
	s.done()
	s.stand(&fairTerms, 3)
	s.wantNotDid(Heartbeat, "the heartbeat is looked at")
	w.queue.HeartbeatDone(r, nil)
	s.wantDid(Heartbeat, "nobody sends the next entry")
}

// An entry requests the longest lease that a release may grant, or that the waiter requires.
func TestNextHeartbeat_longestLease(t *testing.T) {
	for _, lease := range []time.Duration{time.Second, 2 * leaseTime} {
		s := newStage(t)
		s.asks(s.stand(&fairTerms, 1))
		w := s.stand(with(fairTerms, func(c *Terms) { c.Lease, c.Fixed = lease, true }), 2)
		w.queue.NextHeartbeat(s.now)
		if want := max(lease, leaseTime); w.Acquisition.longest != want {
			t.Errorf("a lease of %v: %v is asked for, want %v", lease, w.Acquisition.longest, want)
		}
	}
}

// The reply to the entry of a waiter that already has the lock counts as the reply to a request. The waiter is not in the
// Redis queue.
func TestEntered_countsAsAReply(t *testing.T) {
	onStages(t, map[string]func(*stage, *Waiter){
		"offered": func(s *stage, w *Waiter) { w.Acquisition.takesOver(7, s.now) },
		"held": func(s *stage, w *Waiter) {
			s.Wakeup(w)
			s.Granted(w, s.asks(w), w.Owner, new(Hold), 7, false, s.now)
		},
	}, func(s *stage, change func(*stage, *Waiter)) {
		s.asks(s.stand(&fairTerms, 1))
		w := s.stand(&fairTerms, 2)
		_, r := w.queue.NextHeartbeat(s.now)
		change(s, w)
		before := s.inFlight
		s.Entered(r.Waiters[0], false, s.now, s.now)
		if w.Acquisition.pending != 0 || s.inFlight != before-1 {
			s.Errorf("%d answers are missing, and %d requests are under way", w.Acquisition.pending, s.inFlight)
		}
		if w.Queued() != nil {
			s.Error("heartbeats keep its entry, which is gone")
		}
	})
}

// The reply to an entry is not the reply to a heartbeat.
func TestHeartbeatDone_entry(t *testing.T) {
	s := newStage(t)
	first := s.stand(&fairTerms, 1)
	s.queues(first, Refusal{Left: -1})
	l := first.queue
	second := s.stand(&fairTerms, 2)
	_, r := l.NextHeartbeat(s.now)
	l.HeartbeatDone(r, nil)
	s.Entered(r.Waiters[0], false, s.now, s.now)
	l.Notify()
	s.wantRound(l, first, second)
	l.Notify()
	if _, all := l.nextBeat(s.now); all != nil {
		t.Error("a second heartbeat is sent before the first is answered")
	}
}

// An observer is notified that a waiter is queued: its call uses Next.
func TestEntered_wakesTheObserversCall(t *testing.T) {
	s := newStage(t)
	s.asks(s.stand(&fairTerms, 1))
	w := s.stand(&fairTerms, 2)
	w.Tells = true
	_, r := w.queue.NextHeartbeat(s.now)
	s.done()
	s.Entered(r.Waiters[0], false, s.now, s.now)
	s.wantWakes(w)
}

// A waiter whose entry failed sends its own request, and no heartbeat enters it in the meantime. An entry of a waiter that has
// left may have been executed, and is removed. No entry concerns a waiter that sends requests under another name by now.
func TestNotEntered(t *testing.T) {
	s := newStage(t)
	s.asks(s.stand(&fairTerms, 1))
	w, gone, anew := s.stand(&fairTerms, 2), s.stand(&fairTerms, 3), s.stand(&fairTerms, 4)
	_, r := w.queue.NextHeartbeat(s.now)
	s.GiveUp(gone, gone.Acquisition)
	s.Quit(gone, s.now)
	anew.Acquisition = s.acquisition(&fairTerms)
	s.done()
	w.queue.HeartbeatDone(r, errBroke)
	for _, q := range r.Waiters {
		s.NotEntered(q, true, errBroke)
	}
	var woken []*Waiter
	var removed []*Acquisition
	for _, a := range s.done() {
		switch a.Kind {
		case Wake:
			woken = append(woken, a.Waiter)
		case Release:
			removed = append(removed, a.Acquisition)
		}
	}
	if !slices.Equal(woken, []*Waiter{w}) || !slices.Contains(removed, r.Waiters[1].As) {
		t.Errorf("%d waiters ask, and %d entries are removed", len(woken), len(removed))
	}
	s.pass(pollTime + 1)
	if _, r := w.queue.NextHeartbeat(s.now); slices.Contains(r.waiters(), w) || !slices.Contains(r.waiters(), anew) {
		t.Error("the entries are not sent again, or are sent by two")
	}
	if s.next(w).Do != Send || !w.Acquisition.Uncertain() {
		t.Error("it does not ask")
	}
}

// The last reply about the next waiters counts. A waiter that sends requests under another name is
// not among them. Without a queue, nothing is recorded.
func TestFollow_theLastReply(t *testing.T) {
	s := newStage(t)
	held, h, w := s.crowd(3)
	s.Follow(held, numbers(w[0]), 2)
	s.Follow(held, numbers(w[1], w[2]), 2)
	w[1].Acquisition = s.acquisition(&fairTerms)
	if s.give(h) == nil || !slices.Equal(s.wakes(), []*Waiter{w[2]}) {
		t.Error("the lock is not passed on to the next that stands in the queue")
	}

	alone := newStage(t)
	held, _ = alone.take(&fairTerms, 1)
	alone.Follow(held, "777", 2)
	if held.grant.handOffs != nil {
		t.Error("somebody is next")
	}
}

// A release names the first waiter that is in the Redis queue, or whose entry is in flight. It names
// none if that waiter must send its own request.
func TestNextOwner_redisQueue(t *testing.T) {
	s := newStage(t)
	held, _ := s.take(&fairTerms, 100)
	waits, enters := s.stand(&fairTerms, 1), s.stand(&fairTerms, 2)
	s.asks(waits)
	if w, _ := s.NextOwner(held, leaseTime, 0, s.now); w != nil {
		t.Error("a next owner that does not stand in the queue")
	}
	_, r := enters.queue.NextHeartbeat(s.now)
	if w, as := s.NextOwner(held, 2*leaseTime, 0, s.now); w != enters || as != enters.Acquisition {
		t.Fatal("an entry is under way, and the waiter is not the next owner")
	} else if as.longest != 2*leaseTime {
		t.Errorf("the key may live for %v by that release, and the waiter thinks %v", 2*leaseTime, as.longest)
	}
	if s.NextOwner(held, time.Second, 0, s.now); enters.Acquisition.longest != 2*leaseTime {
		t.Error("an earlier release gives a longer lease")
	}
	enters.queue.HeartbeatDone(r, nil)
	s.Entered(r.Waiters[0], false, s.now, s.now)
	if !s.OnRelease(enters.Acquisition, ReleaseResult{Done: true, Token: 101, Sent: s.now}, s.now) || enters.queue.hand.to != enters {
		t.Error("the lock is not offered to the next owner")
	}

	other := newStage(t)
	held, _ = other.take(&fairTerms, 100)
	fixed := other.stand(with(fairTerms, func(c *Terms) { c.Fixed = true }), 1)
	other.queues(fixed, Refusal{Left: -1})
	other.queues(other.stand(&fairTerms, 2), Refusal{Left: -1})
	if w, _ := other.NextOwner(held, leaseTime, 0, other.now); w != nil {
		t.Error("the next owner overtakes one that asks for a lease of its own")
	}
}

// A waiter that restarts is not the next owner before Redis has queued its new acquisition.
func TestNextOwner_restarted(t *testing.T) {
	s := newStage(t)
	held, _ := s.take(&fairTerms, 100)
	s.asks(s.stand(&fairTerms, 1))
	w := s.stand(&fairTerms, 2)
	_, r := w.queue.NextHeartbeat(s.now)
	w.queue.HeartbeatDone(r, nil)
	s.Entered(r.Waiters[0], false, s.now, s.now)
	if next, _ := s.NextOwner(held, leaseTime, 0, s.now); next != w {
		t.Fatal("it is not the next owner")
	}
	s.GiveUp(w, w.Acquisition)
	w.Acquisition = s.acquisition(&fairTerms)
	if next, _ := s.NextOwner(held, leaseTime, 0, s.now); next != nil {
		t.Error("the release names an acquisition that Redis has not queued")
	}
}

// A waiter that a release granted the lock sends its own request, if the state is closed by then, or
// has another offer.
func TestOnRelease_redisQueueClosed(t *testing.T) {
	onStages(t, map[string]func(s *stage, l *Queue){
		"closed": func(s *stage, _ *Queue) { s.Close() },
		"busy":   func(s *stage, l *Queue) { s.offerTo(l, s.acquisition(&fairTerms), l.waiters[1]) },
	}, func(s *stage, change func(s *stage, l *Queue)) {
		_, h, w := s.crowd(2)
		_, as := s.NextOwner(h.Acquisition, leaseTime, 0, s.now)
		s.give(h)
		change(s, w[0].queue)
		s.done()
		if s.OnRelease(as, ReleaseResult{Done: true, Token: 7, Sent: s.now}, s.now) {
			s.Error("offered")
		}
		if !slices.Contains(s.wakes(), w[0]) || !w[0].reason {
			s.Error("it does not ask")
		}
	})
}

// An offer stays with its waiter when another waiter leaves. If its own waiter leaves, and no other
// may take it, it is released.
func TestQuit_beforeItTakesTheOffer(t *testing.T) {
	type test struct {
		follow []int // the next waiters in the queue
		leaves int
		change func(s *stage, t *Acquisition)
		gives  bool
		to     int // which waiter has the offer then; -1 if none
	}
	onStages(t, map[string]test{
		"another leaves":             {[]int{0, 1}, 2, nil, false, 0},
		"the next takes it":          {[]int{0, 1}, 0, nil, false, 1},
		"nobody is known to be next": {[]int{0}, 0, nil, true, -1},
		"the offer is lost":          {[]int{0, 1}, 0, func(s *stage, t *Acquisition) { s.End(t, Lost) }, true, -1},
		"the state is closed":        {[]int{0, 1}, 0, func(s *stage, _ *Acquisition) { s.Close() }, true, -1},
	}, func(s *stage, c test) {
		held, h, w := s.crowd(3)
		var next []*Waiter
		for _, i := range c.follow {
			next = append(next, w[i])
		}
		s.Follow(held, numbers(next...), 2)
		offer, l := s.give(h), w[0].queue
		if c.change != nil {
			c.change(s, offer)
		}
		s.done()
		s.Quit(w[c.leaves], s.now)
		if gives := slices.Contains(s.gives(), offer); gives != c.gives {
			s.Errorf("given back %t, want %t", gives, c.gives)
		}
		switch {
		case c.to < 0:
			if l.hand.offered != nil || l.hand.to != nil {
				s.Error("the queue has it still")
			}
		case l.hand.offered != offer || l.hand.to != w[c.to]:
			s.Error("another has it")
		}
	})
}

// A queue in Redis needs no timer, because it sends heartbeats even while this process has the lock.
func TestJoin_redisQueueWithoutTimer(t *testing.T) {
	s := newStage(t)
	s.take(&fairTerms, 100)
	s.stand(&fairTerms, 1)
	s.wantNotDid(StartTimer, "a timer")
}

// A grant by a release stays with its waiter when another waiter leaves.
func TestQuit_besideTheNextOwner(t *testing.T) {
	s := newStage(t)
	_, h, w := s.crowd(3)
	_, as := s.NextOwner(h.Acquisition, leaseTime, 0, s.now)
	s.give(h)
	if !s.OnRelease(as, ReleaseResult{Done: true, Token: 7, Sent: s.now}, s.now) {
		t.Fatal("the next owner does not have the lock")
	}
	s.Follow(as, numbers(w[1], w[2]), 2)
	s.Quit(w[2], s.now)
	if l := w[0].queue; l.hand.offered != as || l.hand.to != w[0] {
		t.Error("another has it")
	}
}

// numbers returns the ends of these waiters' owner strings, as a script returns them.
func numbers(waiters ...*Waiter) string {
	var all []string
	for _, w := range waiters {
		all = append(all, strings.TrimPrefix(w.Acquisition.Name, "p:"))
	}
	return strings.Join(all, " ")
}

// crowd has owners acquire a fair lock and queue for it. It returns the acquisition and hold of the
// owner, and n waiters of the same queue.
func (s *stage) crowd(n int) (t *Acquisition, h *Hold, waiters []*Waiter) {
	s.Helper()
	t, h = s.take(&fairTerms, 100)
	for i := range n {
		w := s.stand(&fairTerms, uint64(i+1))
		s.queues(w, Refusal{Left: -1})
		waiters = append(waiters, w)
	}
	s.pass(time.Millisecond) // a lock is not handed off faster than tokens are allowed to grow
	s.done()
	return t, h, waiters
}

// takes has w take the offer, and leave its queue.
func (s *stage) takes(w *Waiter) *Hold {
	s.Helper()
	step := s.next(w)
	if step.Do != Take {
		s.Fatalf("it does not take the lock: %+v", step)
	}
	h := new(Hold)
	if !s.Add(step.Acquisition, w.Owner, h) {
		s.Fatal("it does not have what it took")
	}
	s.Quit(w, s.now)
	return h
}

// A fair lock is handed off to the waiters that Redis named as the next, in that order, and to no
// others. The release removes them from the queue.
func TestFollow(t *testing.T) {
	s := newStage(t)
	held, h, w := s.crowd(4)
	s.Follow(held, numbers(w[1], w[0], w[2]), 2) // the order in Redis counts, not the local one
	var served []string
	for _, x := range []*Waiter{w[1], w[0], w[2]} {
		served = append(served, x.Acquisition.Name)
		if s.give(h) == nil || !slices.Equal(s.wakes(), []*Waiter{x}) {
			t.Fatal("the lock is not passed on to the next in the queue")
		}
		for _, other := range w {
			if other != x && other.queue != nil && s.next(other).Do != Wait {
				t.Error("another takes it")
			}
		}
		h = s.takes(x)
		if h.Acquisition.Name != held.Name || s.gives() != nil {
			t.Error("the state gives back what the release takes out of the queue")
		}
	}
	if s.give(h) != nil {
		t.Error("passed on to a waiter that may be behind others")
	}
	if got := h.Acquisition.Served(); !slices.Equal(got, served) {
		t.Errorf("the release takes out %q, want %q", got, served)
	}
	if x, as := s.NextOwner(h.Acquisition, leaseTime, 0, time.Time{}); x != w[3] || as != w[3].Acquisition {
		t.Error("the release names no next owner")
	}
}

// A waiter that took the lock has no entry in the Redis queue, and is not the next owner again, even before it leaves
// the queue of this process.
func TestFollow_taken(t *testing.T) {
	s := newStage(t)
	held, h, w := s.crowd(2)
	s.Follow(held, numbers(w...), 2)
	s.give(h)
	step, mine := s.next(w[0]), new(Hold)
	if step.Do != Take || !s.Add(step.Acquisition, w[0].Owner, mine) {
		t.Fatalf("%+v", step)
	}
	w[0].queue.Notify()
	s.wantRound(w[0].queue, w[1])
	s.done()
	if s.give(mine) == nil || !slices.Equal(s.wakes(), []*Waiter{w[1]}) {
		t.Error("the lock is not handed off to the next waiter")
	}
}

// A waiter that left is skipped. A named waiter that cannot take the lock ends the sequence, because
// the others come after it.
func TestFollow_afterAWaiterLeft(t *testing.T) {
	s := newStage(t)
	held, h, w := s.crowd(3)
	fixed := s.stand(with(fairTerms, func(c *Terms) { c.Fixed = true }), 9)
	s.queues(fixed, Refusal{Left: -1})
	s.Follow(held, numbers(w[0], w[1], fixed, w[2])+" 777", 2)
	s.Quit(w[0], s.now)
	s.done()
	if s.give(h) == nil || !slices.Equal(s.wakes(), []*Waiter{w[1]}) {
		t.Fatal("the lock is not passed on past one that left")
	}
	h = s.takes(w[1])
	s.pass(time.Millisecond)
	if s.give(h) != nil {
		t.Error("passed on past one that has to ask for a lease of its own")
	}
}

// A waiter with a reason to send a request does not take another waiter's offer.
func TestFollow_onlyItsWaiter(t *testing.T) {
	s := newStage(t)
	held, h, w := s.crowd(2)
	s.Follow(held, numbers(w...), 2)
	s.give(h)
	s.Wakeup(w[1])
	s.wantStep(w[1], Send, w[1].Acquisition)
}

// If a waiter leaves before it takes its offer, the next waiter gets the offer, or the offer is released.
// The waiter's own entry in the queue is removed.
func TestFollow_leftBeforeTaking(t *testing.T) {
	s := newStage(t)
	held, h, w := s.crowd(2)
	s.Follow(held, numbers(w...), 2)
	next := s.give(h)
	s.done()
	first := w[0].Acquisition
	s.GiveUp(w[0], first)
	s.Quit(w[0], s.now)
	all := s.done()
	gives := func(t *Acquisition) bool {
		return slices.ContainsFunc(all, func(a Effect) bool { return a.Kind == Release && a.Acquisition == t })
	}
	if !gives(first) || gives(next) || w[1].queue.hand.to != w[1] {
		t.Errorf("it is not the next one's: %+v", all)
	}
	s.GiveUp(w[1], w[1].Acquisition)
	s.Quit(w[1], s.now)
	if all = s.done(); !gives(next) || next.Lives() {
		t.Errorf("nobody wants the lock, and it is not given back: %+v", all)
	}
	if s.sides[0].held != nil {
		t.Error("the state has the lock for ever")
	}
}

// A waiter whose offer is lost sends requests under a new name: the old entry may be removed from the
// queue.
func TestFollow_lost(t *testing.T) {
	s := newStage(t)
	_, h, w := s.crowd(1)
	x, as := s.NextOwner(h.Acquisition, leaseTime, 0, time.Time{})
	s.give(h)
	if x != w[0] || !s.OnRelease(as, ReleaseResult{Done: true, Token: 7, Sent: s.now}, s.now) {
		t.Fatal("the next owner does not have the lock")
	}
	s.End(as, Lost)
	s.NoLongerHeld(as)
	if step := s.next(w[0]); step.Do != Send || step.Acquisition == as || step.Acquisition.Name == as.Name {
		t.Errorf("%+v", step)
	}
}

// The reply to a release that named a waiter offers the lock to it. If the reply is unusable, the
// waiter or the queue sends a request.
func TestOnRelease_redisQueue(t *testing.T) {
	type test struct {
		i       ReleaseResult
		offered bool
		asks    bool // the waiter sends a request
		beats   bool // the queue sends a heartbeat
	}
	onStages(t, map[string]test{
		"it has the lock":        {ReleaseResult{Done: true, Token: 7}, true, false, false},
		"another has it":         {ReleaseResult{Done: true}, false, false, false},
		"too late":               {ReleaseResult{Done: true, Token: 7, Late: true}, false, true, false},
		"nobody knows":           {ReleaseResult{Broke: true}, false, false, true},
		"the release came twice": {ReleaseResult{}, false, false, true},
	}, func(s *stage, c test) {
		_, h, w := s.crowd(2)
		w[0].queue.NextHeartbeat(s.now)
		w[0].queue.HeartbeatDone(keeps(s.now), nil)
		_, as := s.NextOwner(h.Acquisition, leaseTime, 0, time.Time{})
		s.give(h)
		s.done()
		c.i.Sent = s.now
		if got := s.OnRelease(as, c.i, s.now); got != c.offered {
			s.Errorf("offered %t, want %t", got, c.offered)
		}
		if got := s.did(Heartbeat); got != c.beats {
			s.Errorf("a heartbeat %t, want %t", got, c.beats)
		}
		if step := s.next(w[0]); (step.Do == Send) != c.asks || (step.Do == Take) != c.offered {
			s.Errorf("%+v", step)
		}
		s.wantNext(w[1], Wait, "another waiter has a reason to do something")
	})
}

// An offer is lost, and its waiter has not restarted yet: a release grants the lock to the next
// waiter.
func TestOnRelease_afterTheOfferWasLost(t *testing.T) {
	s := newStage(t)
	first, h, w := s.crowd(3)
	_, as := s.NextOwner(first, leaseTime, 0, time.Time{})
	s.give(h)
	s.OnRelease(as, ReleaseResult{Done: true, Token: 7, Sent: s.now}, s.now)
	s.End(as, Lost)
	s.NoLongerHeld(as)
	s.Wakeup(w[1])
	next, hold := s.asks(w[1]), new(Hold)
	s.granted(w[1], next, hold, 8)
	s.Quit(w[1], s.now)
	if nextOwner, _ := s.NextOwner(next, leaseTime, 0, time.Time{}); nextOwner != w[2] {
		t.Error("the next owner is not the next that waits")
	}
}

// The next owner's own request can be answered before the release that named it.
func TestOnRelease_redisQueueAfterItsOwnReply(t *testing.T) {
	s := newStage(t)
	_, h, w := s.crowd(1)
	_, as := s.NextOwner(h.Acquisition, leaseTime, 0, time.Time{})
	s.give(h)
	s.Wakeup(w[0])
	if s.asks(w[0]) != as {
		t.Fatal("it asks under another name")
	}
	mine := new(Hold)
	s.granted(w[0], as, mine, 8)
	if s.OnRelease(as, ReleaseResult{Done: true, Token: 7, Sent: s.now}, s.now) || as.Phase() != Held || as.Token() != 8 {
		t.Errorf("it is offered what it has: phase %d, token %d", as.Phase(), as.Token())
	}
}

// removeServedDue lets time pass until the state's RemoveServed is due, and calls it.
func (s *stage) removeServedDue() (t *Acquisition, served []string) {
	s.Helper()
	for _, a := range s.done() {
		if a.Kind == RemoveServed {
			s.pass(max(a.Due.Sub(s.now), 0))
			return s.RemoveServed(s.now)
		}
	}
	s.Fatal("nobody takes served waiters out of the queue")
	return nil, nil
}

// Served waiters leave the queue even if the lock is not released. Each is removed once, and the
// release removes only the rest.
func TestRemoveServed(t *testing.T) {
	s := newStage(t)
	held, h, w := s.crowd(3)
	names := []string{w[0].Acquisition.Name, w[1].Acquisition.Name, w[2].Acquisition.Name}
	s.Follow(held, numbers(w...), 2)
	s.give(h)
	h = s.takes(w[0])
	began := s.now
	s.pass(ServedPause / 2)
	s.give(h)
	h = s.takes(w[1])
	offered := s.give(h)
	of, served := s.removeServedDue()
	if s.now != began.Add(ServedPause) || of != offered || !slices.Equal(served, names[:2]) {
		t.Fatalf("after %v: %q", s.now.Sub(began), served)
	}
	h = s.takes(w[2]) // while the command is under way
	s.ServedRemoved(of, len(served), true, s.now)
	if got := h.Acquisition.Served(); !slices.Equal(got, names[2:]) {
		t.Errorf("%q leave with the release, want %q", got, names[2:])
	}
	if of, served = s.removeServedDue(); of != h.Acquisition || !slices.Equal(served, names[2:]) {
		t.Fatalf("%q", served)
	}
	s.ServedRemoved(of, len(served), false, s.now)
	failed := s.now
	if of, served = s.removeServedDue(); s.now != failed.Add(pollTime) || !slices.Equal(served, names[2:]) {
		t.Errorf("after an error, %v later, %q", s.now.Sub(failed), served)
	}
	s.ServedRemoved(of, len(served), true, s.now)
	if got := h.Acquisition.Served(); len(got) != 0 {
		t.Errorf("%q leave twice", got)
	}
	if of, _ = s.removeServedDue(); of != nil || s.removing {
		t.Error("it does not end")
	}
}

// RemoveServed removes nothing that a release removes, and nothing after Close.
func TestRemoveServed_leftToTheRelease(t *testing.T) {
	onStages(t, map[string]func(s *stage, h *Hold){
		"the release is on its way": func(s *stage, h *Hold) { s.give(h) },
		"the state is closed":       func(s *stage, _ *Hold) { s.Close() },
		"it is lost":                func(s *stage, h *Hold) { s.End(h.Acquisition, Lost) },
	}, func(s *stage, end func(s *stage, h *Hold)) {
		held, h, w := s.crowd(1)
		s.Follow(held, numbers(w...), 2)
		s.give(h)
		h = s.takes(w[0])
		all := s.done()
		s.pass(time.Second)
		end(s, h)
		s.effects = append(s.effects, all...)
		if of, served := s.removeServedDue(); of != nil || len(served) != 0 || s.removing {
			s.Errorf("%q", served)
		}
	})
}

// One timer suffices for a busy lock: while served waiters are recent, RemoveServed is rescheduled,
// and sends nothing.
func TestRemoveServed_busy(t *testing.T) {
	s := newStage(t)
	held, h, w := s.crowd(2)
	s.Follow(held, numbers(w[0]), 2)
	s.give(h)
	h = s.takes(w[0])
	first := s.done()
	s.pass(ServedPause / 2)
	s.give(h) // this is the release
	next := s.acquisition(&fairTerms)
	s.Follow(next, numbers(w[1]), 2)
	s.NoLongerHeld(h.Acquisition)
	next.phase, s.sides[0].held = Held, next
	s.serve(w[1], next, s.now)
	for _, a := range s.done() {
		if a.Kind == RemoveServed {
			t.Error("a second timer")
		}
	}
	s.effects = append(s.effects, first...)
	began := s.now
	if of, _ := s.removeServedDue(); of != nil || !s.removing {
		t.Error("those that were served just now leave by a command")
	}
	if of, _ := s.removeServedDue(); of != next || s.now != began.Add(ServedPause) {
		t.Errorf("after %v", s.now.Sub(began))
	}
}

// Waiters that come together enter the Redis queue together: while an entry is in flight, and for
// EntryPause after it if the queue has waiters in Redis.
func TestEntry_together(t *testing.T) {
	s := newStage(t)
	first := s.stand(&fairTerms, 1)
	asked := s.asks(first)
	l := first.queue
	one := s.stand(&fairTerms, 2)
	s.wantDid(Heartbeat, "nobody sends its entry")
	_, r := l.NextHeartbeat(s.now)
	if !slices.Equal(r.waiters(), []*Waiter{one}) || r.enterings() != 1 || s.inFlight != 2 {
		t.Fatalf("%+v", r)
	}
	two, three := s.stand(&fairTerms, 3), s.stand(&fairTerms, 4)
	if due, r := l.NextHeartbeat(s.now); len(r.Waiters) != 0 || due != s.now.Add(pollTime) {
		t.Errorf("an entry is sent while one is under way: %v, %+v", due, r)
	}
	l.Notify()
	if _, r := l.NextHeartbeat(s.now); slices.Contains(r.waiters(), one) {
		t.Error("an entry that is under way is sent again, by a hint")
	} else if r.enterings() != 2 {
		t.Errorf("a hint leaves those that came: %+v", r)
	}
	l.HeartbeatDone(r, nil)
	s.Entered(r.Waiters[0], false, s.now, s.now)
	s.Refused(first, asked, Refusal{Sent: s.now, Left: -1, Trace: true}, s.now)
	l.heartbeat.entries = 0
	for _, w := range []*Waiter{two, three} {
		s.Entered(Queuing{w, w.Acquisition, true}, false, s.now, s.now)
	}
	if s.inFlight != 0 || one.Queued() != one.Acquisition || three.Queued() != three.Acquisition {
		t.Error("they do not stand in the queue")
	}
	if _, r := l.NextHeartbeat(s.now); !slices.Equal(r.waiters(), []*Waiter{first, one, two, three}) {
		t.Errorf("two requests were sent before the notification, and no heartbeat follows: %+v", r)
	} else {
		l.HeartbeatDone(r, nil)
	}
	s.done()

	four := s.stand(&fairTerms, 5)
	due, r := l.NextHeartbeat(s.now)
	if len(r.Waiters) != 0 || due != s.now.Add(EntryPause) {
		t.Errorf("an entry soon after the last: %v, %+v", due, r)
	}
	s.pass(EntryPause)
	if _, r = l.NextHeartbeat(s.now); !slices.Equal(r.waiters(), []*Waiter{four}) {
		t.Errorf("%+v", r)
	}
	l.HeartbeatDone(r, nil)
	s.Entered(r.Waiters[0], false, s.now, s.now)
	s.done()

	five := s.stand(&fairTerms, 6)
	s.wantDid(Heartbeat, "its entry waits for the next heartbeat")
	for _, w := range []*Waiter{first, one, two, three, four} {
		s.Quit(w, s.now)
	}
	s.wantDid(Heartbeat, "nobody stands in the queue, and the entry waits")
	if _, r := l.NextHeartbeat(s.now); !slices.Equal(r.waiters(), []*Waiter{five}) {
		t.Errorf("%+v", r)
	}
}

// The first waiter sends its own request, so no entry includes it, even if another waiter comes before it has sent that request.
func TestEntry_beforeTheFirstSends(t *testing.T) {
	s := newStage(t)
	first, second := s.stand(&fairTerms, 1), s.stand(&fairTerms, 2)
	s.wantRound(first.queue, second)
	s.wantNext(first, Send, "it does not send its own request")
}

// The outcome of an entry, by the state of its waiter.
func TestEntered(t *testing.T) {
	type test struct {
		change  func(s *stage, w *Waiter)
		settles bool
	}
	onStages(t, map[string]test{
		"it waits":                     {func(*stage, *Waiter) {}, false},
		"it has left":                  {func(s *stage, w *Waiter) { s.GiveUp(w, w.Acquisition); s.Quit(w, s.now) }, true},
		"it had the lock, and lost it": {func(s *stage, w *Waiter) { w.Acquisition.takesOver(7, s.now); s.End(w.Acquisition, Lost) }, true},
		"it has the lock by its name":  {func(s *stage, w *Waiter) { w.Acquisition.takesOver(7, s.now) }, false},
		"it had the lock by another's": {func(s *stage, w *Waiter) { s.serve(w, s.acquisition(&fairTerms), s.now) }, false},
		"two of its entries are under way, and it had the lock": {func(s *stage, w *Waiter) {
			s.WillSend(w.Acquisition, leaseTime, leaseTime)
			s.serve(w, s.acquisition(&fairTerms), s.now)
		}, true},
		"two were, one is answered, and it had the lock": {func(s *stage, w *Waiter) {
			s.WillSend(w.Acquisition, leaseTime, leaseTime)
			s.Entered(Queuing{w, w.Acquisition, true}, false, s.now, s.now)
			s.serve(w, s.acquisition(&fairTerms), s.now)
		}, true},
	}, func(s *stage, c test) {
		s.asks(s.stand(&fairTerms, 1))
		w := s.stand(&fairTerms, 2)
		_, r := w.queue.NextHeartbeat(s.now)
		if c.change(s, w); s.Entered(r.Waiters[0], false, s.now, s.now) != c.settles {
			s.Errorf("settled %t, want %t", !c.settles, c.settles)
		}
	})
}

// A waiter that was handed the lock stays out of the queue: an entry without a reply is not sent
// again, and what an uncertain request may leave is reconciled.
func TestServe_staysOut(t *testing.T) {
	s := newStage(t)
	s.asks(s.stand(&fairTerms, 1))
	w, other := s.stand(&fairTerms, 2), s.stand(&fairTerms, 3)
	w.queue.NextHeartbeat(s.now)
	s.pass(pollTime + 1)
	as := w.Acquisition
	as.uncertain = true
	s.done()
	s.serve(w, s.acquisition(&fairTerms), s.now)
	if !slices.Contains(s.gives(), as) {
		t.Error("its request may bring it into the queue, and nobody takes it out")
	}
	if _, r := w.queue.NextHeartbeat(s.now); !slices.Equal(r.waiters(), []*Waiter{other}) {
		t.Errorf("%+v", r)
	}
}

// A waiter whose offer was lost takes another one. Its own acquisition stays lost.
func TestServe_afterALoss(t *testing.T) {
	s := newStage(t)
	w := s.stand(&fairTerms, 1)
	s.queues(w, Refusal{Left: -1})
	as := w.Acquisition
	as.takesOver(7, s.now)
	s.End(as, Lost)
	s.serve(w, s.acquisition(&fairTerms), s.now)
	if as.Phase() != Lost {
		t.Errorf("phase %d", as.Phase())
	}
}

// enterings returns how many waiters of r enter the queue.
func (r *Round) enterings() (n int) {
	for n < len(r.Waiters) && r.Waiters[len(r.Waiters)-1-n].Enters {
		n++
	}
	return n
}

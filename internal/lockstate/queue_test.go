package lockstate

import (
	"errors"
	"slices"
	"testing"
	"time"
)

// Only the first waiter of a queue sends requests. The next one does so when the first has left.
func TestOnlyFirst(t *testing.T) {
	s := newStage(t)
	w, behind := s.stand(&writeTerms, 1), s.stand(&writeTerms, 2)
	if !w.isFirst() || behind.isFirst() || !w.leads() || behind.leads() || s.Queue(&writeTerms) != w.Queue() || w.since != s.now {
		t.Fatal("the first is not the first")
	}
	s.refused(w)
	s.wantWait(behind, time.Time{})
	s.done()
	w.queue.Notify()
	s.wantWakes(w)
	s.Quit(behind, s.now)
	if s.wakes() != nil || !w.isFirst() {
		t.Error("a waiter is woken as the last one leaves")
	}
	behind = s.stand(&writeTerms, 2)
	s.Quit(w, s.now)
	s.wantWakes(behind)
	s.wantNext(behind, Send)
	s.Quit(behind, s.now)
	if s.Queue(&writeTerms) != nil {
		t.Error("a queue is left without waiters")
	}
	s.Quit(new(Waiter), s.now) // this waiter is in no queue
}

// A queue whose process has the lock retries after a poll interval, because the process may have lost
// the lock.
func TestStartTimer(t *testing.T) {
	scene := func(t *testing.T) (*stage, *Acquisition, *Hold, *Waiter) {
		s := newStage(t)
		held, h := s.take(&plainTerms, 1)
		return s, held, h, s.stand(&plainTerms, 2)
	}
	s, held, _, w := scene(t)
	all := s.done()
	if len(all) != 1 || all[0].Kind != StartTimer || all[0].Due != s.now.Add(pollTime) {
		t.Fatalf("%+v", all)
	}
	if w.leads() || s.next(w).Do != Wait {
		t.Error("it asks for what its process has")
	}
	s.stand(&plainTerms, 3)
	if s.done() != nil {
		t.Error("a second timer is set")
	}
	s.pass(pollTime)
	w.queue.when.sendAt = s.now.Add(pollTime) // the queue was refused before
	w.queue.TimerFired()
	if !slices.Equal(s.wakes(), []*Waiter{w}) || s.next(w).Do != Send {
		t.Error("it does not ask")
	}
	s.WillSend(w.queue.hand.ticket, 0, 0)
	s.Refused(w, w.queue.hand.ticket, Refusal{Sent: s.now, Left: -1}, s.now)
	s.done()
	w.queue.TimerFired()
	if s.done() != nil || s.next(w).Do != Wait {
		t.Error("it asks twice")
	}
	s.Quit(w, s.now)
	if all := s.done(); len(all) != 1 || all[0].Kind != StartTimer || s.Queue(&plainTerms).waiters[0].leads() {
		t.Errorf("%+v", all)
	}
	s.NoLongerHeld(held)
	if len(s.wakes()) != 1 || !s.Queue(&plainTerms).waiters[0].leads() {
		t.Error("the lock has no holder, and the first does not know")
	}
	s.NoLongerHeld(held)
	if s.done() != nil {
		t.Error("it is told twice")
	}

	s, held, _, w = scene(t)
	w.queue.TimerFired()
	s.refused(w)
	s.done()
	if s.NoLongerHeld(held); s.done() != nil {
		t.Error("a waiter that asks already is told that it may ask")
	}

	s, held, _, w = scene(t)
	l := w.queue
	s.Quit(w, s.now)
	s.done()
	if l.TimerFired(); s.done() != nil || !l.Ended() {
		t.Error("the timer of a queue that ended does something")
	}
	if l.OnHandOff(); s.done() != nil {
		t.Error("a message to a queue that ended does something")
	}
	if again := s.stand(&plainTerms, 3); again.queue == l {
		t.Error("a timer may fire for the queue that is used again")
	}
	if s.done(); held.Lives() != true {
		t.Error("it is over")
	}
}

// A queue is reused only if nothing else can refer to it.
func TestEnd_reusesTheQueue(t *testing.T) {
	for name, test := range map[string]struct {
		c       *Terms
		change  func(*stage, *Waiter)
		deafens bool
		beats   bool
		again   bool
	}{
		"nobody knows of it":     {&writeTerms, func(s *stage, w *Waiter) { s.Failed(w, s.asks(w), false, nil) }, false, false, true},
		"a request is under way": {&writeTerms, func(s *stage, w *Waiter) { s.asks(w) }, false, false, false},
		"the session has something of it": {&writeTerms, func(s *stage, w *Waiter) {
			s.Failed(w, s.asks(w), false, nil)
			w.queue.Subscriptions = 1
		}, false, false, false},
		"it listened":        {&writeTerms, func(s *stage, w *Waiter) { s.refused(w) }, true, false, false},
		"it had a heartbeat": {&fairTerms, func(s *stage, w *Waiter) { s.refused(w) }, true, true, false},
	} {
		use := func(t *testing.T) (again bool) {
			s := newStage(t)
			w := s.stand(test.c, 1)
			l := w.queue
			l.when.notified, l.when.pollInterval = true, 1
			test.change(s, w)
			s.done()
			s.Quit(w, s.now)
			var verbs []EffectKind
			for _, a := range s.done() {
				verbs = append(verbs, a.Kind)
			}
			if slices.Contains(verbs, Unsubscribe) != test.deafens || slices.Contains(verbs, Heartbeat) != test.beats {
				t.Errorf("%v", verbs)
			}
			if !l.Ended() {
				t.Error("it has not ended")
			}
			w = s.Join(test.c, s.owner(test.c, 2), s.now)
			again = w == &l.only
			if (w.queue == l) != again || w.queue.when.pollInterval != s.rules.Poll || w.queue.when.notified || w.queued.as != nil {
				t.Errorf("%+v", w.queue)
			}
			return again
		}
		t.Run(name, func(t *testing.T) {
			again := use(t)
			for i := 0; test.again && !again && i < 50; i++ {
				again = use(t) // under the race detector, sync.Pool drops some items
			}
			if again != test.again {
				t.Errorf("the memory is used again: %t", again)
			}
		})
	}
	t.Run("two queues", func(t *testing.T) {
		s := newStage(t)
		w, other := s.stand(&readTerms, 1), s.stand(hastyTerms, 2)
		if w.queue == other.queue || s.Queue(hastyTerms) != other.queue {
			t.Error("they wait in one queue")
		}
		s.Quit(w, s.now)
		if s.Queue(&readTerms) != nil || s.Queue(hastyTerms) != other.queue {
			t.Error("one queue ends, and the other is lost")
		}
		s.Quit(other, s.now)
		if s.stand(&readTerms, 3).queue == s.stand(hastyTerms, 4).queue {
			t.Error("one queue is used twice")
		}
	})
}

// A single attempt queues behind the waiters, if the lock has one owner at a time.
func TestTry(t *testing.T) {
	try := func(s *stage, c *Terms, number uint64) (*Waiter, bool) {
		w, first := s.Try(c, s.owner(c, number), s.now)
		w.Acquisition = s.acquisition(c)
		return w, first
	}
	onStages(t, map[string]*Terms{"plain": &plainTerms, "write": &writeTerms}, func(s *stage, c *Terms) {
		w, may := try(s, c, 1)
		if !may || s.next(w).Do != Send {
			s.Fatal("it does not ask")
		}
		if behind, may := try(s, c, 2); may || behind.isFirst() {
			s.Error("it passes another")
		}
		s.refused(w)
		if l := w.queue; l.subscribed || !l.when.sendAt.IsZero() || l.outage.from != (time.Time{}) {
			s.Errorf("the next relies on its answer: %+v", l)
		}
	})
	onStages(t, map[string]*Terms{"read": &readTerms, "fair": &fairTerms}, func(s *stage, c *Terms) {
		s.refused(s.stand(c, 1))
		w, may := try(s, c, 2)
		if !may || w.queue != nil || w.isFirst() {
			s.Fatal("it stands in the queue")
		}
		s.wantNext(w, Send, "it does not ask")
	})
}

// The first waiter of a queue sends a request after a notification, when the owner's lease expires,
// and at least once per poll interval.
func TestRefused_nextRequest(t *testing.T) {
	type test struct {
		c    *Terms
		left time.Duration
		due  time.Duration
	}
	onStages(t, map[string]test{
		"the lease ends before":    {&plainTerms, 300 * time.Millisecond, 301 * time.Millisecond},
		"the lease has ended":      {&plainTerms, 0, time.Millisecond},
		"the lease ends later":     {&plainTerms, time.Hour, pollTime},
		"there is no lease":        {&plainTerms, -1, pollTime},
		"its trace lives for less": {with(writeTerms, func(c *Terms) { c.WaiterTimeout = 600 * time.Millisecond }), -1, 200 * time.Millisecond},
		"its trace lives for more": {&writeTerms, -1, pollTime},
	}, func(s *stage, test test) {
		w := s.stand(test.c, 1)
		asked := s.asks(w)
		s.pass(time.Millisecond)
		s.Refused(w, asked, Refusal{Sent: s.now, Left: test.left}, s.now)
		if all := s.done(); len(all) != 1 || all[0].Kind != Subscribe || all[0].Sent != s.now || all[0].Terms != test.c || !w.queue.Subscribed() {
			s.Errorf("%+v", all)
		}
		s.wantWait(w, s.now.Add(test.due))
		w.queue.Notify()
		s.wantNext(w, Send, "it does not ask after a hint")
		s.wantNext(w, Wait, "it asks twice after a hint")
		s.pass(test.due)
		s.wantNext(w, Send, "it does not ask in time")
		s.Refused(w, asked, Refusal{Sent: s.now, Left: test.left}, s.now)
		s.wantNotDid(Subscribe, "it listens twice")
	})
}

// While notifications arrive, a queue polls after a tenth of its wait, at least after one poll interval, and at most after two.
func TestRefused_confirmed(t *testing.T) {
	confirmed := Refusal{Left: -1, Confirmed: true}
	type test struct {
		c      *Terms
		r      Refusal
		waited time.Duration
		due    time.Duration
	}
	onStages(t, map[string]test{
		"a short wait":                {&plainTerms, confirmed, 5 * pollTime, pollTime},
		"a longer wait":               {&plainTerms, confirmed, 15 * pollTime, 15 * pollTime / 10},
		"a long wait":                 {&plainTerms, confirmed, time.Hour, 2 * pollTime},
		"its entry expires earlier":   {with(writeTerms, func(c *Terms) { c.WaiterTimeout = 5 * pollTime }), confirmed, time.Hour, 5 * pollTime / 3},
		"its entry expires later":     {&writeTerms, confirmed, time.Hour, 2 * pollTime},
		"not confirmed":               {&plainTerms, Refusal{Left: -1}, time.Hour, pollTime},
		"confirmed, and none arrives": {&plainTerms, Refusal{Left: -1, Confirmed: true, NoPubSub: true}, time.Hour, pollTime},
	}, func(s *stage, test test) {
		w := s.stand(test.c, 1)
		s.pass(test.waited)
		asked := s.asks(w)
		test.r.Sent = s.now
		s.Refused(w, asked, test.r, s.now)
		s.wantWait(w, s.now.Add(test.due))
	})
}

// A process without notifications polls less and less often, and then starts over. After some poll
// intervals, it polls once per interval.
func TestRefused_withoutPubSub(t *testing.T) {
	s := newStage(t)
	w := s.stand(&plainTerms, 1)
	first := s.asks(w)
	r := Refusal{Sent: s.now, Left: -1, NoPubSub: true}
	s.Refused(w, first, r, s.now)
	if step := s.next(w); step.Due != s.now.Add(pollTime) {
		t.Errorf("it cannot hear anything yet, and asks again at %v", step.Due)
	}
	asks := func() time.Duration {
		s.WillSend(first, 0, 0)
		s.Refused(w, first, r, s.now)
		return s.next(w).Due.Sub(s.now)
	}
	var pauses []time.Duration
	for range 9 {
		pauses = append(pauses, asks()/time.Millisecond)
	}
	if want := []time.Duration{10, 20, 40, 80, 160, 320, 640, 10, 20}; !slices.Equal(pauses, want) {
		t.Errorf("it asks again after %d ms, not %d", pauses, want)
	}
	w.queue.Notify()
	if step := s.next(w); step.RetryAfter != 40*time.Millisecond {
		t.Errorf("the request says that it is retried after %v", step.RetryAfter)
	}
	r.NoPubSub = false
	asks()
	r.NoPubSub = true
	for _, want := range []time.Duration{10, 20} {
		if d := asks(); d != want*time.Millisecond {
			t.Errorf("a message reached it, and it asks again after %v", d)
		}
	}
	s.now = w.since.Add(noPubSubPolls*pollTime - 1)
	if d := asks(); d != 40*time.Millisecond {
		t.Error(d)
	}
	s.pass(1)
	for range 2 {
		if d := asks(); d != pollTime {
			t.Error(d)
		}
	}
	w.queue.Notify()
	if step := s.next(w); step.RetryAfter != pollTime {
		t.Errorf("the request says that it is retried after %v", step.RetryAfter)
	}
	r.NoPubSub = false
	asks()
	w.queue.Notify()
	if step := s.next(w); step.RetryAfter != pollTime {
		t.Errorf("the request says that it is retried after %v", step.RetryAfter)
	}
	if w.queue.PollInterval() != pollTime {
		t.Error(w.queue.PollInterval())
	}
}

// While other processes come first, a queue sends no request, even after a notification. It sends one
// when that time has passed.
func TestYieldUntil(t *testing.T) {
	scene := func(t *testing.T, left time.Duration) (*stage, *Waiter) {
		s := newStage(t)
		w := s.stand(&plainTerms, 1)
		s.Refused(w, s.asks(w), Refusal{Sent: s.now, Left: left}, s.now)
		return s, w
	}
	s, w := scene(t, -1)
	until := s.now.Add(asideTime)
	w.queue.YieldUntil(until)
	w.queue.Notify()
	s.wantWait(w, until)
	s.pass(asideTime)
	s.wantNext(w, Send, "it does not ask then")

	s, w = scene(t, asideTime/2)
	due := s.now.Add(asideTime/2 + time.Millisecond)
	w.queue.YieldUntil(s.now.Add(asideTime))
	if step := s.next(w); step.Due != due {
		t.Errorf("%+v", step)
	}
	s.pass(due.Sub(s.now))
	w.queue.YieldUntil(s.now.Add(asideTime))
	s.wantNext(w, Send, "a request that is due is put off")

	s, w = scene(t, -1)
	w.queue.YieldUntil(s.now.Add(asideTime))
	w.queue.OnHandOff()
	s.wantNext(w, Send, "it was told that it may have the lock, and does not ask")
}

// After a process releases the lock for other processes, its queue waits. If there is none, the next
// queue waits.
func TestYieldUntil_theNextQueue(t *testing.T) {
	s := newStage(t)
	until := s.now.Add(asideTime)
	if !s.Idle(s.now) {
		t.Fatal("a new state is in use")
	}
	s.YieldUntil(&plainTerms, until)
	if s.Idle(until.Add(-1)) || !s.Idle(until) || !s.Unused() {
		t.Error("it is idle")
	}
	w := s.stand(&plainTerms, 1)
	s.wantWait(w, until)
	s.pass(asideTime)
	s.refused(w)
	s.YieldUntil(&plainTerms, s.now.Add(asideTime))
	w.queue.Notify()
	s.wantNext(w, Wait, "the queue does not know")
	o := w.Owner
	s.Quit(w, s.now)
	o.Leave()
	s.YieldUntil(&plainTerms, s.now.Add(asideTime))
	s.YieldUntil(&readTerms, s.now.Add(2*asideTime))
	if s.Idle(s.now.Add(asideTime)) {
		t.Error("one side is forgotten")
	}
}

// A queue sends nothing while its process has the lock, even when other processes no longer come first.
func TestYieldUntil_held(t *testing.T) {
	s := newStage(t)
	s.YieldUntil(&plainTerms, s.now.Add(asideTime))
	s.take(&plainTerms, 1)
	w := s.stand(&plainTerms, 2)
	s.wantWait(w, time.Time{})
	s.pass(asideTime)
	s.wantNext(w, Wait)
}

// Redis admits a reader whose owner writes. The opposite does not hold: a writer whose owner reads waits like any other.
func TestJoin_writerThatReads(t *testing.T) {
	s := newStage(t)
	s.take(&readTerms, 1)
	s.stand(&writeTerms, 2)
	w := s.stand(&writeTerms, 1)
	if w.Owner.Sibling() == nil {
		t.Fatal("its owner does not read")
	}
	s.wantNext(w, Wait)
}

// The only waiter of a fair lock lets other processes come first, too. If another waiter comes in the meantime, both enter the
// queue in Redis, in the order in which they came.
func TestYieldUntil_redisQueue(t *testing.T) {
	for _, alone := range []bool{true, false} {
		s := newStage(t)
		until := s.now.Add(asideTime)
		s.YieldUntil(&fairTerms, until)
		first := s.stand(&fairTerms, 1)
		s.wantWait(first, until)
		if alone {
			s.pass(asideTime)
			s.wantNext(first, Send, "it does not send a request then")
			s.Retry(first, s.now.Add(time.Second)) // the request failed
			second := s.stand(&fairTerms, 2)
			s.wantRound(second.queue, second)
			s.pass(time.Second)
			s.wantNext(first, Send, "it does not retry")
			continue
		}
		second := s.stand(&fairTerms, 2)
		s.wantRound(second.queue, first, second)
		s.pass(asideTime)
		s.wantNext(first, Wait)
	}
}

// When one reader is admitted, all readers of the queue send requests. New readers send requests,
// too, until one is refused.
func TestAllAtOnce(t *testing.T) {
	s := newStage(t)
	first := s.reader(ownLeaseTerms, 1)
	s.asks(first)
	second := s.reader(ownLeaseTerms, 2)
	asked := s.asks(second)
	s.Refused(first, first.Acquisition, Refusal{Sent: s.now, Left: -1}, s.now)
	third := s.reader(ownLeaseTerms, 3)
	s.wantNext(third, Wait, "it asks although another was refused")
	s.done()
	if out := s.Granted(second, asked, second.Owner, &Hold{Fixed: true}, 1, false, s.now); out != Holds {
		t.Fatal(out)
	}
	s.wantWakes(first, third)
	if s.next(third).Do != Send || s.next(first).Do != Send {
		t.Error("they do not ask")
	}
	s.wantNext(s.reader(ownLeaseTerms, 4), Send, "a reader that comes now does not ask")

	s.Retry(third, s.now.Add(time.Second))
	s.wantWait(third, s.now.Add(time.Second))
	s.Retry(first, s.now.Add(2*pollTime))
	if step := s.next(first); step.Do != Wait || step.Due != s.now.Add(2*pollTime) || first.queue.when.sendAt != step.Due {
		t.Errorf("%+v", step)
	}
}

// A reader behind others retries in each poll interval if its request has an unknown outcome. A
// delayed duplicate may have admitted it, and writers would wait for it.
func TestAllAtOnce_uncertain(t *testing.T) {
	s := newStage(t)
	first, w := s.reader(&readTerms, 1), s.reader(&readTerms, 2)
	asked := s.asks(w) // the first sends its request later, so that the two do not coincide
	s.Failed(w, asked, true, errBroke)
	s.Retry(w, s.now)
	s.refused(first)
	if s.refused(w) != asked || w.leads() {
		t.Fatal("it asks as another, or for the queue")
	}
	for range 3 {
		s.wantWait(w, s.now.Add(pollTime))
		s.pass(pollTime)
		if s.refused(w) != asked {
			t.Fatal("it asks as another")
		}
	}
	s.pass(pollTime)
	s.lets(w, s.asks(w)) // the duplicate was executed
	if w.Owner.Acquisition() != asked {
		t.Error("it does not hold the lock that Redis has for it")
	}

	// The first waiter of the queue sends a request after a notification anyway.
	s.pass(pollTime)
	s.Failed(first, s.asks(first), true, errBroke)
	s.Retry(first, s.now)
	s.refused(first)
	first.queue.Notify()
	s.wantNext(first, Send, "the first, uncertain too")
}

// After an error, a reader that is not the first retries at its own time or at the queue's, whichever
// is earlier. It does not change when the queue retries.
func TestRetry_ofAReader(t *testing.T) {
	for own, due := range map[time.Duration]time.Duration{time.Second / 2: time.Second / 2, 2 * time.Second: time.Second} {
		s := newStage(t)
		first, w := s.reader(ownLeaseTerms, 1), s.reader(ownLeaseTerms, 2)
		s.asks(first)
		s.next(w)
		s.Refused(first, first.Acquisition, Refusal{Sent: s.now, Left: time.Second - time.Millisecond}, s.now)
		s.Retry(w, s.now.Add(own))
		s.wantWait(first, s.now.Add(time.Second))
		s.Quit(first, s.now)
		s.wantWait(w, s.now.Add(due))
	}
}

// After an error, the first waiter retries. If it has left, the next one does.
func TestRetry(t *testing.T) {
	s := newStage(t)
	w, behind := s.stand(&plainTerms, 1), s.stand(&plainTerms, 2)
	ticket := s.asks(w)
	s.Failed(w, ticket, false, errBroke)
	s.Retry(w, s.now.Add(time.Second))
	if step := s.next(w); step.Do != Wait || step.Due != s.now.Add(time.Second) || ticket.uncertain {
		t.Errorf("%+v", step)
	}
	s.Quit(w, s.now)
	if step := s.next(behind); step.Due != s.now.Add(time.Second) {
		t.Errorf("%+v", step)
	}
}

// A free lock makes waiters send requests, except readers and kinds where Redis notifies the next
// waiter.
func TestFree(t *testing.T) {
	for name, test := range map[string]struct {
		c     *Terms
		hints bool
	}{"plain": {&plainTerms, true}, "write": {&writeTerms, true}, "read": {&readTerms, false}, "fair": {&fairTerms, false}} {
		s := newStage(t)
		w := s.stand(test.c, 1)
		s.refused(w)
		other := s.reader(hastyTerms, 2)
		s.refused(other)
		s.done()
		s.Free(test.c)
		if all := s.wakes(); (len(all) > 0) != test.hints || test.hints && (!slices.Contains(all, w) || !slices.Contains(all, other)) {
			t.Errorf("%s: %d are woken", name, len(all))
		}
	}
}

// When the first waiter acquires the lock, the next one sends a request at the scheduled time. If the
// queue is not subscribed yet, it sends the request immediately.
func TestOnlyFirst_afterAGrant(t *testing.T) {
	for _, listens := range []bool{false, true} {
		s := newStage(t)
		w, behind := s.stand(&writeTerms, 1), s.stand(&writeTerms, 2)
		asked := s.asks(w)
		if listens {
			w.queue.Subscribe(&writeTerms, s.now)
		}
		s.Granted(w, asked, w.Owner, new(Hold), 1, false, s.now)
		s.Quit(w, s.now)
		if step := s.next(behind); (step.Do == Send) == listens || listens && step.Due != s.now.Add(pollTime) {
			t.Errorf("listens: %t, %+v", listens, step)
		}
	}
}

// Refuses reports what keeps a waiter from the lock. A request in flight says nothing.
func TestRefuses(t *testing.T) {
	type test struct {
		change  func(*stage)
		refuses bool
	}
	onStages(t, map[string]test{
		"no waiter":                  {func(*stage) {}, false},
		"no request yet":             {func(s *stage) { s.stand(&plainTerms, 1) }, false},
		"a request in flight":        {func(s *stage) { s.asks(s.stand(&plainTerms, 1)) }, false},
		"a refusal":                  {func(s *stage) { s.refused(s.stand(&plainTerms, 1)) }, true},
		"this process has the lock":  {func(s *stage) { s.take(&plainTerms, 1) }, true},
		"other processes come first": {func(s *stage) { s.YieldUntil(&plainTerms, s.now.Add(1)); s.stand(&plainTerms, 1) }, true},
		"other processes came first": {func(s *stage) {
			s.YieldUntil(&plainTerms, s.now.Add(1))
			w := s.stand(&plainTerms, 1)
			s.pass(1)
			s.asks(w)
		}, false},
	}, func(s *stage, test test) {
		test.change(s)
		if s.Refuses(&plainTerms) != test.refuses {
			s.Errorf("refused: %t, want %t", !test.refuses, test.refuses)
		}
	})
}

// An owner in this process excludes all others, except one reader another.
func TestExcludes(t *testing.T) {
	for _, c := range []struct {
		held, wanted *Terms
		want         bool
	}{
		{&plainTerms, &plainTerms, true}, {&writeTerms, &readTerms, true}, {&readTerms, &writeTerms, true}, {&readTerms, &readTerms, false},
	} {
		s := newStage(t)
		if s.Excludes(c.wanted) {
			t.Error("a free lock excludes an owner")
		}
		s.take(c.held, 1)
		if s.Excludes(c.wanted) != c.want {
			t.Errorf("reading %t, wanted for reading %t: excluded %t", c.held.Reads, c.wanted.Reads, !c.want)
		}
	}
}

// A late reply makes the waiter send a request. If the command wrote, the acquisition is reconciled.
func TestLateReply(t *testing.T) {
	s := newStage(t)
	w := s.stand(&plainTerms, 1)
	ticket := s.asks(w)
	s.Abandoned(w, ticket)
	s.done()
	if s.LateReply(w, ticket, false) || ticket.uncertain || ticket.pending != 0 || s.inFlight != 0 || s.done() != nil {
		t.Error("an answer that wrote nothing does something")
	}
	s.WillSend(ticket, 0, 0)
	if s.LateReply(w, ticket, true) || !ticket.uncertain || !slices.Equal(s.wakes(), []*Waiter{w}) || s.next(w).Do != Send {
		t.Error("it may have the lock, and does not ask")
	}
	s.WillSend(ticket, 0, 0)
	s.GiveUp(w, ticket)
	s.Quit(w, s.now)
	if s.done(); !s.LateReply(w, ticket, true) {
		t.Error("no look settles the answer")
	}

	s = newStage(t)
	own := s.acquisition(&writeTerms)
	s.WillSend(own, 0, 0)
	if s.LateReply(nil, own, true) || s.done() != nil || s.inFlight != 0 {
		t.Error("of a call without a place in the queue")
	}
	own = s.acquisition(&writeTerms)
	s.WillSend(own, 0, 0)
	if s.Fail(own); s.done() != nil || !s.LateReply(nil, own, true) {
		t.Error("the acquisition was given up before its answer, and no look settles it")
	}
	s.WillSend(own, 0, 0)
	s.answered(nil, own, sharedResult{})
	if own.pending != 0 || s.inFlight != 0 {
		t.Error("it is counted")
	}
}

// The queue records the error of a failed request.
func TestOutage(t *testing.T) {
	const overdue = 300 * time.Millisecond
	no := errors.New("no")
	type clock = func(ms int) time.Time
	for name, test := range map[string]struct {
		does  func(q *outage, at clock)
		at    int // ms
		lasts time.Duration
		err   error
		heard bool
	}{
		"nothing was asked":                    {func(*outage, clock) {}, 1, 0, nil, false},
		"the first request is in flight":       {func(q *outage, at clock) { q.sent(at(0)) }, 299, 0, nil, false},
		"it is overdue":                        {func(q *outage, at clock) { q.sent(at(0)) }, 300, overdue, nil, false},
		"it was answered":                      {func(q *outage, at clock) { q.sent(at(0)); q.replied(at(0)) }, 400, 0, nil, true},
		"the next is in flight":                {func(q *outage, at clock) { q.sent(at(0)); q.replied(at(0)); q.sent(at(10)) }, 309, 0, nil, true},
		"the next is overdue":                  {func(q *outage, at clock) { q.sent(at(0)); q.replied(at(0)); q.sent(at(10)) }, 310, overdue, nil, true},
		"an answer to the one before the last": {func(q *outage, at clock) { q.sent(at(0)); q.sent(at(10)); q.replied(at(0)) }, 310, overdue, nil, true},
		"an earlier request is recorded late":  {func(q *outage, at clock) { q.sent(at(10)); q.sent(at(5)); q.replied(at(5)) }, 310, overdue, nil, true},
		"an error":                             {func(q *outage, at clock) { q.sent(at(0)); q.failed(at(0), no) }, 5, 5 * time.Millisecond, no, false},
		"an error just now":                    {func(q *outage, at clock) { q.sent(at(0)); q.failed(at(0), no) }, 0, 1, no, false},
		"errors, since the first": {func(q *outage, at clock) {
			q.sent(at(0))
			q.failed(at(0), no)
			q.sent(at(3))
			q.failed(at(3), no)
		}, 5, 5 * time.Millisecond, no, false},
		"an answer after errors": {func(q *outage, at clock) {
			q.sent(at(0))
			q.failed(at(0), no)
			q.sent(at(3))
			q.replied(at(3))
		}, 5, 0, nil, true},
		"an error after an answer": {func(q *outage, at clock) { q.sent(at(0)); q.replied(at(0)); q.failed(at(2), no) }, 5, 3 * time.Millisecond, no, true},
		"an error of one before the answered one": {func(q *outage, at clock) {
			q.sent(at(0))
			q.sent(at(3))
			q.replied(at(3))
			q.failed(at(0), no)
		}, 500, 0, nil, true},
		"an answer to the one before the answered one": {func(q *outage, at clock) {
			q.sent(at(0))
			q.sent(at(3))
			q.replied(at(3))
			q.replied(at(0))
			q.failed(at(2), no)
		}, 500, 0, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Unix(1, 0)
			at := func(ms int) time.Time { return began.Add(time.Duration(ms) * time.Millisecond) }
			l := new(Queue)
			test.does(&l.outage, at)
			heard := !l.outage.repliedTo.IsZero()
			if d, err := l.Outage(at(test.at), overdue); d != test.lasts || err != test.err || heard != test.heard {
				t.Errorf("it lasts for %v, with %v; heard: %v", d, err, heard)
			}
		})
	}
	if d, err := (*Queue)(nil).Outage(time.Now(), 0); d != 0 || err != nil {
		t.Error("no queue is silent")
	}

	s := newStage(t)
	w := s.stand(&plainTerms, 1)
	lasts := func() time.Duration { d, _ := s.Queue(&plainTerms).Outage(s.now, overdue); return d }
	ticket := s.asks(w)
	s.pass(time.Second)
	if lasts() != time.Second {
		t.Error("the request is under way, and the queue does not know")
	}
	s.Failed(w, ticket, false, no)
	w.Failed(no)
	if d, err := w.queue.Outage(s.now, time.Hour); d != time.Second || err != no {
		t.Errorf("there was an error, and the queue has %v for %v", err, d)
	}
	s.Retry(w, s.now)
	again := s.asks(w)
	s.Refused(w, again, Refusal{Sent: s.now, Left: -1}, s.now)
	if lasts() != 0 {
		t.Error("there was a refusal, and the queue does not know")
	}
	s.Fail(ticket)
	w.queue.hand.ticket = nil
	w.queue.Notify()
	again = s.asks(w)
	w.Failed(no)
	s.pass(time.Second)
	s.Granted(w, again, w.Owner, new(Hold), 1, false, s.now)
	if lasts() != 0 {
		t.Error("there was a grant, and the queue does not know")
	}
}

// A grant that was released counts as a reply. The acquisition is uncertain if Redis did not confirm
// the release. Joined readers receive the error.
func TestRolledBack(t *testing.T) {
	for _, confirmed := range []bool{false, true} {
		s := newStage(t)
		w := s.reader(&readTerms, 1)
		asked := s.asks(w)
		joiner := s.reader(&readTerms, 2)
		s.next(joiner)
		s.RolledBack(w, asked, confirmed, errBroke)
		if asked.pending != 0 || asked.Uncertain() == confirmed {
			t.Errorf("confirmed %t: %d answers are missing, and unsure is %t", confirmed, asked.pending, asked.Uncertain())
		}
		if step := s.next(joiner); step.Do != Fail || step.Err != errBroke {
			t.Errorf("confirmed %t: %+v", confirmed, step)
		}
	}
}

// A delayed duplicate of the release may arrive, so the next request is sent for a new ticket.
func TestRolledBack_ticket(t *testing.T) {
	s := newStage(t)
	w := s.stand(replicatedTerms, 1)
	ticket := s.asks(w)
	s.RolledBack(w, ticket, true, errBroke)
	s.Retry(w, s.now)
	if s.asks(w) == ticket {
		t.Error("the request is sent for the same ticket")
	}
}

// If the queue is not subscribed, the next waiter sends a request immediately, so that it subscribes.
// That holds even after an error.
func TestGranted_theNextSends(t *testing.T) {
	s := newStage(t)
	first, second := s.stand(&plainTerms, 1), s.stand(&plainTerms, 2)
	ticket := s.asks(first)
	s.Failed(first, ticket, false, errBroke)
	s.Retry(first, s.now.Add(time.Second))
	first.queue.Notify()
	if s.asks(first) != ticket {
		t.Fatal("it asks under another name")
	}
	s.granted(first, ticket, new(Hold), 100)
	s.Quit(first, s.now)
	s.NoLongerHeld(ticket)
	second.queue.when.notified = false
	s.wantNext(second, Send)
}

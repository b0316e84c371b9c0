package lockstate

import (
	"errors"
	"slices"
	"testing"
	"time"
)

var (
	hastyTerms      = with(readTerms, func(c *Terms) { c.Yield, c.QueueKey = false, ReaderPreference })
	fencedReadTerms = with(readTerms, func(c *Terms) { c.TokenCounter = "tokens" })
	ownLeaseTerms   = with(readTerms, func(c *Terms) { c.Fixed = true })
	confirmedTerms  = with(readTerms, func(c *Terms) { c.Replicas, c.QueueKey = true, Replicated })
	hastyWriter     = with(writeTerms, func(c *Terms) { c.Yield, c.WaiterTimeout, c.QueueKey = false, 0, ReaderPreference })
)

// lets grants the request of w.
func (s *stage) lets(w *Waiter, t *Acquisition) {
	s.Helper()
	if out := s.Granted(w, t, w.Owner, w.Prepared, 100, false, s.now); out != Holds {
		s.Fatalf("it was not let in: %d", out)
	}
	s.Quit(w, s.now)
}

// reads admits an owner to read, by its own request.
func (s *stage) reads(c *Terms, number uint64) (*Acquisition, *Hold) {
	s.Helper()
	w := s.reader(c, number)
	t, h := s.asks(w), w.Prepared
	s.lets(w, t) // the waiter may be reused then
	return t, h
}

// readsLater admits an owner to read, by its own request, as if it had come later than all others.
func (s *stage) readsLater(number uint64) (*Acquisition, *Hold) {
	s.Helper()
	s.now = s.now.Add(2 * ShareTime)
	w := s.reader(&readTerms, number)
	w.reason, w.alone = true, true
	t, h := s.asks(w), w.Prepared
	s.lets(w, t)
	s.now = s.now.Add(-2 * ShareTime)
	return t, h
}

// joins reports whether a reader that comes now may enter without a request.
func (s *stage) joins(c *Terms, number uint64) bool {
	t := s.Open(c, s.now, s.now)
	return t != nil && s.JoinOpen(t, new(Hold), number)
}

// The acquisition of a reader is open to others for ShareTime, and no longer.
func TestOpen(t *testing.T) {
	s := newStage(t)
	first, _ := s.reads(&readTerms, 1)
	came := s.now
	s.pass(ShareTime)
	if s.Open(&readTerms, came, s.now) != first || s.Open(&readTerms, s.now, s.now) != first {
		t.Error("it is not open for ShareTime")
	}
	s.pass(1)
	if s.Open(&readTerms, s.now, s.now) != nil || s.Open(&readTerms, came, s.now) != nil {
		t.Error("it is open for more than ShareTime")
	}
}

// The acquisition of a reader is not open once the state is closed. Otherwise a caller would be sent
// to join it again and again, in vain.
func TestOpen_closed(t *testing.T) {
	s := newStage(t)
	if first, _ := s.reads(&readTerms, 1); s.Open(&readTerms, s.now, s.now) != first {
		t.Fatal("it is not open")
	}
	s.Close()
	if s.Open(&readTerms, s.now, s.now) != nil {
		t.Error("it is open after Close")
	}
}

// The grant opens the acquisition to readers that came at most ShareTime, plus its round trip, after
// the reader that sent the request.
func TestOpen_roundTrip(t *testing.T) {
	const trip = 2 * ShareTime
	s := newStage(t)
	w := s.reader(&readTerms, 1)
	first := s.asks(w)
	came := s.now
	s.pass(trip)
	s.lets(w, first)
	if s.Open(&readTerms, came.Add(trip+ShareTime), s.now) != first {
		t.Error("a reader that came in time does not join")
	}
	if s.Open(&readTerms, came.Add(trip+ShareTime+1), s.now) != nil {
		t.Error("a reader that came too late joins")
	}
}

// Readers share an acquisition only if their terms are compatible.
func TestOpen_terms(t *testing.T) {
	type test struct {
		first, second *Terms
		joins         bool
	}
	onStages(t, map[string]test{
		"alike":                               {&readTerms, &readTerms, true},
		"another token counter":               {&readTerms, fencedReadTerms, false},
		"the same token counter":              {fencedReadTerms, fencedReadTerms, true},
		"one that lets no writer pass":        {&readTerms, hastyTerms, true},
		"behind one that lets no writer pass": {hastyTerms, &readTerms, false},
	}, func(s *stage, test test) {
		s.reads(test.first, 1)
		if s.joins(test.second, 2) != test.joins {
			s.Errorf("the reader joins: %t", !test.joins)
		}
	})
	for _, c := range []*Terms{&writeTerms, ownLeaseTerms, confirmedTerms} {
		if c.MayShare() {
			t.Errorf("%+v may share", c)
		}
	}
	if !readTerms.MayShare() {
		t.Error("readers may not share")
	}
}

// A reader that was sent to join an ended acquisition sends its own request immediately.
func TestOpen_ended(t *testing.T) {
	s := newStage(t)
	w := s.reader(&readTerms, 2)
	first, h := s.reads(&readTerms, 1)
	s.wantStep(w, Join, first)
	s.give(h)
	w.queue.when.sendAt = s.now.Add(pollTime)
	s.wantNext(w, Send)
}

// No reader joins an open acquisition once the state has a waiting writer, or is closed.
func TestJoinOpen(t *testing.T) {
	type test struct {
		change func(s *stage, t *Acquisition, h *Hold)
		number uint64
		joins  bool
	}
	onStages(t, map[string]test{
		"nothing is against it":                         {func(*stage, *Acquisition, *Hold) {}, 2, true},
		"a reader was refused":                          {func(s *stage, _ *Acquisition, _ *Hold) { s.refused(s.later(&readTerms, 3)) }, 2, false},
		"a reader that lets no writer pass was refused": {func(s *stage, _ *Acquisition, _ *Hold) { s.refused(s.later(hastyTerms, 3)) }, 2, true},
		"a reader with terms of its own was refused":    {func(s *stage, _ *Acquisition, _ *Hold) { s.refused(s.reader(ownLeaseTerms, 3)) }, 2, false},
		"a reader with such terms that lets no writer pass was refused": {func(s *stage, _ *Acquisition, _ *Hold) {
			s.refused(s.reader(with(*hastyTerms, func(c *Terms) { c.Fixed = true }), 3))
		}, 2, true},
		"it is over":                        {func(s *stage, _ *Acquisition, h *Hold) { s.give(h) }, 2, false},
		"it is lost":                        {func(s *stage, t *Acquisition, _ *Hold) { s.End(t, Lost) }, 2, false},
		"closed":                            {func(s *stage, _ *Acquisition, _ *Hold) { s.Close() }, 2, false},
		"another call of the owner is here": {func(s *stage, _ *Acquisition, _ *Hold) { s.owner(&readTerms, 2) }, 2, false},
		"another acquisition is open":       {func(s *stage, _ *Acquisition, _ *Hold) { s.side(true).open = s.acquisition(&readTerms) }, 2, false},
	}, func(s *stage, test test) {
		first, h := s.reads(&readTerms, 1)
		test.change(s, first, h)
		joined := new(Hold)
		open := s.Open(&readTerms, s.now, s.now)
		if (open == first && s.JoinOpen(first, joined, test.number)) != test.joins {
			s.Fatalf("the reader joins: %t", !test.joins)
		}
		if test.joins && (first.owners != 2 || first.holdsInRedis() != 1 || joined.Acquisition != first || joined.By.Acquisition() != first) {
			s.Errorf("%d owners, %d holds in Redis", first.owners, first.holdsInRedis())
		}
	})
	t.Run("a call of the owner that asks itself", func(t *testing.T) {
		s := newStage(t)
		first, _ := s.reads(&readTerms, 1)
		w := s.reader(&readTerms, 2)
		s.Admit(w, first, s.now)
		if w.Prepared.By != w.Owner || w.Owner.Acquisition() != first {
			t.Error("another owner has the hold")
		}
		if w.Acquisition.Lives() {
			t.Error("its own acquisition goes on")
		}
	})
}

// later returns a reader that sends its own request, because it came long after the open acquisition.
func (s *stage) later(c *Terms, number uint64) *Waiter {
	w := s.reader(c, number)
	w.Acquisition.Came = s.now.Add(time.Hour)
	return w
}

// Readers do not join while they must wait behind a writer of this process, or after a refusal of
// their queue.
func TestJoin_behindAWriter(t *testing.T) {
	type test struct {
		c      *Terms
		change func(*stage)
		joins  bool
	}
	onStages(t, map[string]test{
		"a writer waits": {&readTerms, func(s *stage) { s.stand(&writeTerms, 3) }, false},
		"a writer waits, which lets readers pass":      {&readTerms, func(s *stage) { s.stand(hastyWriter, 3) }, true},
		"an attempt to write is first":                 {&readTerms, func(s *stage) { s.tries(&writeTerms, 3) }, true},
		"a writer waits, and the reader does not care": {hastyTerms, func(s *stage) { s.stand(&writeTerms, 3) }, true},
		"a queue that was refused":                     {&readTerms, func(s *stage) { s.reader(&readTerms, 3).queue.refusedLast = true }, false},
	}, func(s *stage, test test) {
		s.reads(&readTerms, 1)
		test.change(s)
		if s.joins(test.c, 2) != test.joins {
			s.Errorf("the reader joins: %t", !test.joins)
		}
	})
}

// A grant does not open an acquisition if it is uncertain, or if its reader came earlier than the
// reader of the open acquisition.
func TestFinishRequest(t *testing.T) {
	type test struct {
		change func(s *stage, w *Waiter, t *Acquisition)
		opens  bool
	}
	onStages(t, map[string]test{
		"nothing is against it":               {func(*stage, *Waiter, *Acquisition) {}, true},
		"its owner writes":                    {func(_ *stage, _ *Waiter, t *Acquisition) { t.writes = true }, false},
		"it is uncertain":                     {func(_ *stage, _ *Waiter, t *Acquisition) { t.MarkUncertain() }, false},
		"another request is under way for it": {func(s *stage, _ *Waiter, t *Acquisition) { s.WillSend(t, 0, 0) }, false},
		"a reader was refused meanwhile":      {func(s *stage, _ *Waiter, _ *Acquisition) { s.side(true).refuse() }, false},
		"a later one is open":                 {func(s *stage, _ *Waiter, _ *Acquisition) { s.readsLater(9) }, false},
		"a later one was open": {func(s *stage, _ *Waiter, _ *Acquisition) {
			t, h := s.readsLater(9)
			s.Unlock(t, h, s.now, nil)
		}, true},
	}, func(s *stage, test test) {
		w := s.reader(&readTerms, 1)
		asked := s.asks(w)
		test.change(s, w, asked)
		s.lets(w, asked)
		if (s.side(true).open == asked) != test.opens {
			s.Errorf("it is open: %t", !test.opens)
		}
	})
	t.Run("one that came as late is open", func(t *testing.T) {
		s := newStage(t)
		first, second := s.reader(&readTerms, 1), s.reader(fencedReadTerms, 2)
		one, two := s.asks(first), s.asks(second)
		h := first.Prepared
		s.lets(first, one)
		s.lets(second, two)
		if s.side(true).open != two {
			t.Error("the last is not the open one")
		}
		if s.give(h); s.side(true).open != two {
			t.Error("the end of another closes it")
		}
	})
	onStages(t, map[string]bool{"closed": false, "too late": true}, func(s *stage, late bool) {
		w, joiner := s.reader(&readTerms, 1), s.reader(&readTerms, 2)
		asked := s.asks(w)
		s.next(joiner)
		if !late {
			s.Close()
		}
		s.Granted(w, asked, w.Owner, w.Prepared, 100, late, s.now)
		if s.side(true).open != nil || s.side(true).requests != 0 || joiner.Owner.Acquisition() != nil {
			s.Error("it is open to others")
		}
		s.wantNext(joiner, Send)
	})
}

// Readers that come while a request is in flight wait for its reply. They are admitted together,
// before any of them runs.
func TestSharedRequest(t *testing.T) {
	scene := func(t *testing.T) (*stage, *Waiter, *Acquisition, *Waiter) {
		s := newStage(t)
		w := s.reader(&readTerms, 1)
		asked := s.asks(w)
		joiner := s.reader(&readTerms, 2)
		sent := s.now
		s.pass(time.Millisecond)
		s.wantWait(joiner, s.now.Add(opTime))
		if joiner.joined == nil || joiner.joined.sent != sent {
			t.Errorf("it did not join the request: %+v", joiner.joined)
		}
		s.done()
		return s, w, asked, joiner
	}
	t.Run("granted", func(t *testing.T) {
		s, w, asked, joiner := scene(t)
		h := w.Prepared
		s.lets(w, asked)
		if asked.owners != 2 || asked.holdsInRedis() != 1 || joiner.Owner.Acquisition() != asked {
			t.Fatalf("%d owners", asked.owners)
		}
		s.give(h)
		if !asked.Lives() {
			t.Error("the first to leave ends it")
		}
		if step := s.next(joiner); step.Do != Share || joiner.Prepared.Acquisition != asked || joiner.Acquisition.Lives() {
			t.Errorf("%+v", step)
		}
		if joiner.joined != nil {
			t.Error("it rides along still")
		}
	})
	t.Run("refused", func(t *testing.T) {
		s, w, asked, joiner := scene(t)
		s.Refused(w, asked, Refusal{Sent: s.now, Left: pollTime / 2, Trace: true, Kept: time.Minute}, s.now)
		s.pass(time.Millisecond)
		if step := s.next(joiner); step.Do != Refuse || step.Kept != time.Minute {
			t.Errorf("%+v", step)
		}
		if due := joiner.queue.when.sendAt; due != s.now.Add(pollTime/2+time.Millisecond) {
			t.Errorf("the queue sends a request in %v", due.Sub(s.now))
		}
	})
	t.Run("refused, and it came sooner", func(t *testing.T) {
		s, w, asked, joiner := scene(t)
		joiner.Acquisition.Came = asked.Came.Add(-time.Second)
		s.Refused(w, asked, Refusal{Sent: s.now, Left: time.Second}, s.now)
		s.wantStep(joiner, Send, joiner.Acquisition)
	})
	t.Run("refused, and its owner writes", func(t *testing.T) {
		s, w, asked, joiner := scene(t)
		s.Refused(w, asked, Refusal{Sent: s.now, Left: time.Second}, s.now)
		s.take(&writeTerms, 2)
		s.wantNext(joiner, Send)
	})
	t.Run("refused, and it lets no writer pass", func(t *testing.T) {
		s := newStage(t)
		w, joiner := s.reader(&readTerms, 1), s.reader(hastyTerms, 2)
		asked := s.asks(w)
		s.next(joiner)
		s.Refused(w, asked, Refusal{Sent: s.now, Left: time.Second}, s.now)
		s.wantNext(joiner, Send)
	})
	t.Run("it broke", func(t *testing.T) {
		s, w, asked, joiner := scene(t)
		err := errors.New("no")
		s.Failed(w, asked, true, err)
		if step := s.next(joiner); step.Do != Fail || step.Err != err {
			t.Errorf("%+v", step)
		}
	})
	t.Run("nobody waits for the answer", func(t *testing.T) {
		s, w, asked, joiner := scene(t)
		s.Abandoned(w, asked)
		s.wantWakes(joiner)
		s.wantStep(joiner, Send, joiner.Acquisition)
	})
	t.Run("it has waited for long enough", func(t *testing.T) {
		s, w, asked, joiner := scene(t)
		s.pass(opTime - 1)
		s.wantNext(joiner, Wait)
		s.pass(1)
		if step := s.next(joiner); step.Do != Fail || step.Err != nil {
			t.Errorf("%+v", step)
		}
		s.lets(w, asked)
		if asked.owners != 1 {
			t.Error("it was let in after its time")
		}
	})
	t.Run("it leaves", func(t *testing.T) {
		s, w, asked, joiner := scene(t)
		other := s.reader(&readTerms, 3)
		s.next(other)
		if joined := s.GiveUp(joiner, joiner.Acquisition); joined != nil {
			t.Error("it has a hold")
		}
		s.Quit(joiner, s.now)
		s.lets(w, asked)
		if joiner.Owner.Acquisition() != nil {
			t.Error("it was let in after it had left")
		}
		if other.Owner.Acquisition() != asked || asked.owners != 2 {
			t.Error("the other one left with it")
		}
	})
	t.Run("it leaves, and was let in", func(t *testing.T) {
		s, w, asked, joiner := scene(t)
		s.lets(w, asked)
		if joined := s.GiveUp(joiner, joiner.Acquisition); joined != joiner.Prepared {
			t.Error("GiveUp does not return the hold of the reader")
		}
	})
	t.Run("it leaves, and was refused", func(t *testing.T) {
		s, w, asked, joiner := scene(t)
		s.Refused(w, asked, Refusal{Sent: s.now, Left: time.Second}, s.now)
		if joined := s.GiveUp(joiner, joiner.Acquisition); joined != nil {
			t.Error("it has a hold")
		}
	})
	t.Run("granted to one that writes", func(t *testing.T) {
		s, w, asked, joiner := scene(t)
		asked.writes = true
		s.lets(w, asked)
		if step := s.next(joiner); asked.owners != 1 || step.Do != Send {
			t.Errorf("%d owners, %+v", asked.owners, step)
		}
	})
}

// A reader joins only a request that it could have sent itself.
func TestSharedRequest_own(t *testing.T) {
	type test struct {
		c      *Terms
		change func(s *stage, w *Waiter)
		rides  bool
	}
	onStages(t, map[string]test{
		"nothing is against it":    {&readTerms, func(*stage, *Waiter) {}, true},
		"it came too late":         {&readTerms, func(s *stage, w *Waiter) { w.Acquisition.Came = s.now.Add(ShareTime + 1) }, false},
		"it came in time":          {&readTerms, func(s *stage, w *Waiter) { w.Acquisition.Came = s.now.Add(ShareTime) }, true},
		"a reader was refused":     {&readTerms, func(s *stage, _ *Waiter) { s.side(true).refuse() }, false},
		"a writer waits":           {&readTerms, func(s *stage, _ *Waiter) { s.stand(&writeTerms, 3) }, false},
		"another token counter":    {fencedReadTerms, func(*stage, *Waiter) {}, false},
		"a lease of its own":       {ownLeaseTerms, func(*stage, *Waiter) {}, false},
		"it was refused with one":  {&readTerms, func(_ *stage, w *Waiter) { w.alone = true }, false},
		"Redis may have let it in": {&readTerms, func(_ *stage, w *Waiter) { w.Acquisition.uncertain = true }, false},
	}, func(s *stage, test test) {
		s.asks(s.reader(&readTerms, 1))
		w := s.reader(test.c, 2)
		test.change(s, w)
		if step := s.next(w); (step.Do == Wait) != test.rides {
			s.Errorf("%+v", step)
		}
	})
	t.Run("its owner writes", func(t *testing.T) {
		s := newStage(t)
		s.asks(s.reader(&readTerms, 1))
		writes, _ := s.take(&writeTerms, 2)
		w := s.reader(&readTerms, 2)
		if step := s.next(w); step.Do != Send || step.Sibling != writes || !step.Acquisition.writes {
			t.Errorf("%+v", step)
		}
	})
	t.Run("it waits for so long in all", func(t *testing.T) {
		s := newStage(t)
		first, second, joiner := s.reader(&readTerms, 1), s.reader(&readTerms, 2), s.reader(&readTerms, 3)
		asked := s.asks(first)
		limit := s.next(joiner).Due
		s.pass(time.Second)
		s.Abandoned(first, asked)
		s.asks(second)
		s.wantWait(joiner, limit)
	})
}

// If two requests are in flight, readers join the later one until it is answered.
func TestSharedRequest_two(t *testing.T) {
	s := newStage(t)
	first, second := s.reader(&readTerms, 1), s.reader(fencedReadTerms, 2)
	one, two := s.asks(first), s.asks(second)
	s.Abandoned(first, one)
	joiner := s.reader(fencedReadTerms, 3)
	s.wantNext(joiner, Wait)
	s.lets(second, two)
	if step := s.next(joiner); step.Do != Share || two.owners != 2 {
		t.Errorf("%+v", step)
	}
}

// A reader that came earlier than a refused one sends its own request, because it may be admitted.
func TestSharedRequest_cameEarlier(t *testing.T) {
	s := newStage(t)
	first, w, third := s.reader(hastyTerms, 1), s.reader(hastyTerms, 2), s.reader(hastyTerms, 3)
	w.Acquisition.Came, third.alone = s.now.Add(-time.Second), true
	s.pass(time.Second)
	asked := s.asks(first)
	s.pass(-time.Millisecond) // its goroutine read the clock first
	s.next(w)
	s.pass(time.Millisecond)
	s.asks(third)
	s.Refused(first, asked, Refusal{Sent: s.now, Left: -1}, s.now)
	s.pass(time.Second)
	s.wantNext(w, Send)
	if d, _ := w.queue.Outage(s.now.Add(opTime), opTime); d != opTime {
		t.Errorf("its request has had no reply for %v, want %v", d, opTime)
	}
	if w.Failed(errBroke); w.queue.outage.err != errBroke {
		t.Error("its failure counts as that of an earlier request")
	}
}

// A reader that has sent its own request can join a request later.
func TestSharedRequest_afterItsOwn(t *testing.T) {
	s := newStage(t)
	first, w := s.reader(hastyTerms, 1), s.reader(hastyTerms, 2)
	w.Acquisition.Came = s.now.Add(-time.Second)
	asked := s.asks(first)
	s.next(w)
	s.Refused(first, asked, Refusal{Sent: s.now, Left: -1}, s.now)
	if own := s.asks(w); own != w.Acquisition { // this reader came earlier
		t.Fatal("it asks for another")
	}
	s.pass(time.Second)
	s.Failed(w, w.Acquisition, false, errBroke)
	s.Wakeup(first)
	s.asks(first)
	s.Wakeup(w)
	s.wantWait(w, s.now.Add(opTime))
}

// A reader whose grant came too late sends a request for a new acquisition, which came later. A refusal of that says
// nothing about a reader that joined it and came earlier.
func TestSharedRequest_restarted(t *testing.T) {
	s := newStage(t)
	first := s.reader(&readTerms, 1)
	former := s.asks(first)
	s.pass(time.Second)
	joiner := s.reader(&readTerms, 2)
	s.pass(time.Second)
	if out := s.Granted(first, former, first.Owner, new(Hold), 1, true, s.now); out != TooLate {
		t.Fatalf("%v", out)
	}
	s.Restart(first, former, s.now)
	asked := s.asks(first)
	if asked == former || former.Lives() {
		t.Error("it asks for the former acquisition")
	}
	s.wantNext(joiner, Wait)
	s.Refused(first, asked, Refusal{Sent: s.now, Left: -1}, s.now)
	s.wantStep(joiner, Send, joiner.Acquisition)
}

// A reader that joined a request in vain can join a later one.
func TestSharedRequest_again(t *testing.T) {
	for name, end := range map[string]func(s *stage, w *Waiter, asked *Acquisition) Do{
		"refused": func(s *stage, w *Waiter, asked *Acquisition) Do {
			s.Refused(w, asked, Refusal{Sent: s.now, Left: -1}, s.now)
			return Refuse
		},
		"an error": func(s *stage, w *Waiter, asked *Acquisition) Do {
			s.Failed(w, asked, false, errBroke)
			return Fail
		},
		"no answer": func(s *stage, _ *Waiter, _ *Acquisition) Do {
			s.pass(opTime)
			return Fail
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			first, second, joiner := s.reader(hastyTerms, 1), s.reader(hastyTerms, 2), s.reader(hastyTerms, 3)
			asked := s.asks(first)
			s.next(joiner)
			s.pass(time.Second)
			want := end(s, first, asked)
			s.wantNext(joiner, want)
			if name != "no answer" { // otherwise the first request is still in flight
				s.Wakeup(second)
				s.asks(second)
			}
			s.Wakeup(joiner)
			s.wantWait(joiner, s.now.Add(opTime))
		})
	}
}

// The first reader of a queue is admitted with a reader that is in no queue. The others of the queue
// send requests immediately.
func TestJoined(t *testing.T) {
	s := newStage(t)
	first := s.reader(hastyTerms, 1)
	s.refused(first)
	second := s.reader(hastyTerms, 2)
	try, _ := s.Try(hastyTerms, s.owner(hastyTerms, 3), s.now)
	try.Prepared = new(Hold)
	asked := s.asks(try)
	s.Wakeup(first)
	s.wantNext(first, Wait, "it did not join the request")
	s.lets(try, asked)
	s.done()
	s.wantNext(first, Share)
	s.pass(2 * ShareTime) // so that no reader can join
	if step := s.next(second); step.Do != Send || !slices.Contains(s.wakes(), second) {
		t.Errorf("%+v", step)
	}
}

// A single attempt to read is in no queue. It can join a reader, too.
func TestJoined_attempt(t *testing.T) {
	s := newStage(t)
	open, _ := s.reads(&readTerms, 1)
	try, _ := s.Try(&readTerms, s.owner(&readTerms, 2), s.now)
	try.Prepared = new(Hold)
	s.wantStep(try, Join, open)
	s.done()
	if s.Admit(try, open, s.now); s.done() != nil {
		t.Error("waiters are notified, and none waits")
	}
}

// An owner that acquires the write lock while it waits to read sends a read request immediately,
// whatever its position.
func TestWakeReader(t *testing.T) {
	s := newStage(t)
	first := s.reader(&readTerms, 2)
	s.refused(first)
	w := s.reader(&readTerms, 1)
	s.wantNext(w, Wait)
	s.done()
	s.take(&writeTerms, 1)
	s.wantWakes(w)
	s.wantNext(w, Send, "it does not ask")
	s.Quit(w, s.now)
	if w.Owner.waiter != nil {
		t.Error("it waits still")
	}

	s = newStage(t)
	s.refused(s.reader(&readTerms, 2))
	writes, _ := s.take(&writeTerms, 1)
	w = s.stand(&readTerms, 1)
	if w.Owner.Sibling() != writes || s.next(w).Do != Send {
		t.Error("a writer stands behind the waiters for its lock")
	}
}

// The read grant of an owner that writes says nothing about other readers.
func TestWakeReader_notOthers(t *testing.T) {
	s := newStage(t)
	behind := s.reader(&readTerms, 2)
	s.refused(behind)
	s.take(&writeTerms, 1)
	w := s.reader(&readTerms, 1)
	w.reason = true
	step := s.next(w)
	s.WillSend(step.Acquisition, leaseTime, 0)
	s.done()
	s.lets(w, step.Acquisition)
	if all := s.wakes(); len(all) > 0 {
		t.Error("others are told to ask")
	}
}

// Each reader releases separately; the last one releases the hold in Redis.
func TestUnlock_shared(t *testing.T) {
	s := newStage(t)
	first, h := s.reads(&readTerms, 1)
	second := new(Hold)
	s.JoinOpen(first, second, 2)
	again := new(Hold)
	s.Add(first, second.By, again)
	if first.holdsInRedis() != 2 {
		t.Errorf("Redis should have %d holds", first.holdsInRedis())
	}
	if left := s.Unlock(first, again, s.now, nil); left != OwnerHolds || first.holdsInRedis() != 1 {
		t.Errorf("%d is left", left)
	}
	if left := s.Unlock(first, second, s.now, nil); left != SharersHold || first.owners != 1 || first.holdsInRedis() != 1 {
		t.Errorf("%d is left", left)
	}
	if left := s.Unlock(first, second, s.now, nil); left != NotThere {
		t.Error("it left twice")
	}
	if left := s.Unlock(first, h, s.now, nil); left != NobodyHolds || first.Lives() {
		t.Errorf("%d is left", left)
	}

	first, h = s.reads(hastyTerms, 3)
	if s.JoinOpen(first, second, 4); s.side(true).owners[4] == nil {
		t.Fatal("it did not join")
	}
	if left := s.Unlock(first, h, s.now, nil); left != SharersHold || !first.Lives() {
		t.Errorf("%d is left", left)
	}
}

// A reader whose owner writes is admitted regardless of other waiters. Its reply says nothing about
// them, and they join as before.
func TestFinishRequest_besideAWrite(t *testing.T) {
	s := newStage(t)
	open, _ := s.reads(&readTerms, 1)
	s.take(&writeTerms, 9)
	w := s.reader(&readTerms, 9)
	w.reason = true
	s.wantNext(w, Send)
	s.WillSend(w.Acquisition, leaseTime, leaseTime)
	if out := s.Granted(w, w.Acquisition, w.Owner, w.Prepared, 101, false, s.now); out != Holds {
		t.Fatal(out)
	}
	if s.Open(&readTerms, s.now, s.now) != open {
		t.Error("nobody joins any more")
	}
}

// Each request is counted once, however it ends. If the reader's owner then writes, the retry is not
// counted.
func TestFinishRequest_once(t *testing.T) {
	s := newStage(t)
	w := s.reader(&readTerms, 1)
	asked := s.asks(w)
	s.Refused(w, asked, Refusal{Sent: s.now, Left: -1, Trace: true}, s.now)
	w.reason = true
	s.take(&writeTerms, 1)
	s.wantNext(w, Send)
	s.WillSend(asked, leaseTime, leaseTime)
	s.Refused(w, asked, Refusal{Sent: s.now, Left: -1, Trace: true}, s.now)
	if s.sides[1].requests != 0 {
		t.Errorf("%d requests are under way", s.sides[1].requests)
	}
}

// The grant of another reader's request counts as a reply from Redis for a reader that joined it.
func TestJoined_countsAsAReply(t *testing.T) {
	s := newStage(t)
	w := s.reader(&readTerms, 1)
	asked := s.asks(w)
	joiner := s.reader(&readTerms, 2)
	s.pass(time.Millisecond)
	s.next(joiner)
	s.lets(w, asked)
	s.pass(opTime)
	s.wantNext(joiner, Share)
	if d, _ := joiner.Queue().Outage(s.now, opTime); d != 0 {
		t.Errorf("Redis is silent for %v", d)
	}
}

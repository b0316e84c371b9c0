package lockstate

import (
	"fmt"
	"testing"
	"time"
)

// fixed, replicated and fenced are terms of plain locks that cannot take a handed-off lock.
var (
	fixedTerms      = with(plainTerms, func(c *Terms) { c.Fixed = true })
	replicatedTerms = with(plainTerms, func(c *Terms) { c.Replicas = true })
	fencedTerms     = with(plainTerms, func(c *Terms) { c.TokenCounter = "tokens" })
)

// Each of these alone prevents a local hand-off.
func TestMayHandOff(t *testing.T) {
	none := func(*stage, *Acquisition) {}
	first := func(c *Terms) func(*stage) { return func(s *stage) { s.stand(c, 2) } }
	type test struct {
		waits  func(*stage)               // a call that waits; nil is a plain one
		change func(*stage, *Acquisition) // runs after the grant
		held   time.Duration              // 0 means a millisecond
		may    bool
	}
	onStages(t, map[string]test{
		"nothing is against it":        {change: none, may: true},
		"nobody waits":                 {waits: func(*stage) {}, change: none},
		"closed":                       {change: func(s *stage, _ *Acquisition) { s.Close() }},
		"another is offered":           {change: func(s *stage, _ *Acquisition) { s.Queue(&plainTerms).hand.offered = s.acquisition(&plainTerms) }},
		"another has the lock":         {change: func(s *stage, _ *Acquisition) { s.side(false).held = s.acquisition(&plainTerms) }},
		"given up":                     {change: func(s *stage, t *Acquisition) { s.NoLongerHeld(t) }},
		"uncertain":                    {change: func(_ *stage, t *Acquisition) { t.MarkUncertain() }},
		"a request is under way":       {change: func(s *stage, t *Acquisition) { s.WillSend(t, 0, 0) }},
		"and answered":                 {change: func(s *stage, t *Acquisition) { s.WillSend(t, 0, 0); s.answered(nil, t, sharedResult{}) }, may: true},
		"the holds are not known":      {change: func(s *stage, t *Acquisition) { t.WillChange(s.now) }},
		"two holds stand":              {change: func(_ *stage, t *Acquisition) { t.Count(2) }},
		"one hold stands again":        {change: func(s *stage, t *Acquisition) { t.WillChange(s.now); t.Count(1) }, may: true},
		"the token counter was raised": {change: func(_ *stage, t *Acquisition) { t.Raise(7) }},
		"a longer lease":               {change: func(_ *stage, t *Acquisition) { t.MayTake(leaseTime + 1) }},
		"the lease of the next":        {change: func(_ *stage, t *Acquisition) { t.MayTake(leaseTime) }, may: true},
		"passed on too often":          {change: func(_ *stage, t *Acquisition) { t.handOffs().count = MaxHandOffs }},
		"passed on often":              {change: func(_ *stage, t *Acquisition) { t.handOffs().count = MaxHandOffs - 1 }, may: true},
		"held for too long":            {change: none, held: MaxHandOffTime},
		"held for long":                {change: none, held: MaxHandOffTime - 1, may: true},
		"the clock is not behind":      {change: none, held: 2 * time.Microsecond},
		"the clock is behind":          {change: none, held: 2*time.Microsecond + 1, may: true},
		"it is not behind the fourth":  {change: func(_ *stage, t *Acquisition) { t.handOffs().count = 3 }, held: 8 * time.Microsecond},
		"it is behind the fourth":      {change: func(_ *stage, t *Acquisition) { t.handOffs().count = 3 }, held: 8*time.Microsecond + 1, may: true},
		"an attempt is first":          {waits: func(s *stage) { s.tries(&plainTerms, 2); s.stand(&plainTerms, 3) }, change: none},
		"an attempt is behind":         {waits: func(s *stage) { s.stand(&plainTerms, 3); s.tries(&plainTerms, 2) }, change: none, may: true},
		"one with a lease of its own":  {waits: first(fixedTerms), change: none},
		"one with replicas":            {waits: first(replicatedTerms), change: none},
		"one with a token counter":     {waits: first(fencedTerms), change: none},
	}, func(s *stage, test test) {
		held, h := s.take(&plainTerms, 1)
		if test.waits == nil {
			s.stand(&plainTerms, 2)
		} else {
			test.waits(s)
		}
		if test.held == 0 {
			test.held = time.Millisecond
		}
		s.pass(test.held)
		test.change(s, held)
		next := s.give(h)
		if (next != nil) != test.may {
			s.Fatalf("the lock was passed on: %t", next != nil)
		}
		if held.Lives() {
			s.Error("the acquisition that was given back lives")
		}
	})
}

// A handed-off acquisition has the name and age of the grant, and its token plus one.
func TestHandOffTo(t *testing.T) {
	s := newStage(t)
	first, h := s.take(&plainTerms, 1)
	since := s.now
	w := s.stand(&plainTerms, 2)
	s.wantNext(w, Wait, "the next waiter asks for a lock that its process has")
	s.pass(time.Millisecond)
	s.done()
	next := s.give(h)
	s.wantWakes(w)
	if next.Name != first.Name || next.Token() != first.Token()+1 || next.HandOffCount() != 1 || next.grant.since != since || next.phase != Offered || next.counted != 1 || next.longest != leaseTime {
		t.Errorf("%+v", next)
	}
	if all := s.Offered(); len(all) != 1 || all[0] != next {
		t.Errorf("offered: %v", all)
	}
	if first.Latest() != next || s.Unused() {
		t.Error("the next is not known")
	}
	if first.phase != Released || !first.MarkUncertain() || first.uncertain || !next.uncertain {
		t.Error("a doubt about the first is not about the next, which has its name")
	}
	next.uncertain = false

	came := s.now
	s.pass(time.Millisecond)
	step := s.next(w)
	if step.Do != Take || step.Acquisition != next || next.phase != Held || next.Owner() != w.Owner || w.Owner.Acquisition() != next || next.Came != came.Add(-time.Millisecond) {
		t.Fatalf("%+v, phase %d", step, next.phase)
	}
	h = new(Hold)
	if !s.Add(next, w.Owner, h) || w.Owner.holds != 1 {
		t.Fatal("the waiter has no hold")
	}
	s.Quit(w, s.now)
	s.stand(&plainTerms, 3)
	if third := s.give(h); third == nil || third.Token() != first.Token()+2 || third.HandOffCount() != 2 {
		t.Errorf("%+v", third)
	}
}

// The next acquisition is late if an extension or a reentry with its owner string may still be executed.
func TestFollows_late(t *testing.T) {
	type test struct {
		change func(*Acquisition)
		late   bool
	}
	onStages(t, map[string]test{
		"no command":                {func(*Acquisition) {}, false},
		"an unconfirmed extension":  {func(t *Acquisition) { t.MayTake(leaseTime) }, true},
		"a confirmed extension":     {func(t *Acquisition) { t.MayTake(leaseTime); t.Took() }, false},
		"the one before it is late": {func(t *Acquisition) { t.Late = true }, true},
	}, func(s *stage, test test) {
		held, h := s.take(&plainTerms, 1)
		s.stand(&plainTerms, 2)
		s.pass(time.Millisecond)
		test.change(held)
		next := s.give(h)
		if next == nil {
			s.Fatal("the lock is not handed off")
		}
		if next.Late != test.late {
			s.Errorf("late: %t, want %t", next.Late, test.late)
		}
	})
}

// The first waiter takes an offered acquisition, unless it cannot use it, the acquisition is lost, or
// the state is closed.
func TestTake(t *testing.T) {
	scene := func(t *testing.T) (*stage, *Acquisition, *Waiter) {
		s := newStage(t)
		_, h := s.take(&plainTerms, 1)
		w := s.stand(&plainTerms, 2)
		s.pass(time.Millisecond)
		next := s.give(h)
		s.done()
		return s, next, w
	}
	t.Run("lost", func(t *testing.T) {
		s, next, w := scene(t)
		s.End(next, Lost)
		s.wantNext(w, Send)
		s.wantGives()
	})
	t.Run("closed", func(t *testing.T) {
		s, next, w := scene(t)
		s.Close()
		if step := s.next(w); step.Do == Take {
			t.Errorf("%+v", step)
		}
		s.wantGives(next)
	})
	t.Run("another comes first", func(t *testing.T) {
		s, next, w := scene(t)
		other := s.stand(fixedTerms, 3)
		s.Quit(w, s.now)
		s.wantWakes(other)
		if step := s.next(other); step.Do == Take {
			t.Errorf("%+v", step)
		}
		if all := s.gives(); len(all) != 1 || all[0] != next || next.Lives() {
			t.Errorf("%v is given back", all)
		}
	})
	t.Run("an attempt comes first", func(t *testing.T) {
		s, next, w := scene(t)
		s.tries(&plainTerms, 3)
		s.Quit(w, s.now)
		s.wantGives(next)
	})
	t.Run("nobody is left", func(t *testing.T) {
		s, next, w := scene(t)
		if joined := s.GiveUp(w, nil); joined != nil {
			t.Error(joined)
		}
		s.Quit(w, s.now)
		s.wantGives(next)
	})
	t.Run("given up by the first", func(t *testing.T) {
		s, next, w := scene(t)
		behind := s.stand(&plainTerms, 3)
		s.GiveUp(w, next)
		s.Quit(w, s.now)
		s.wantGives()
		s.wantNext(behind, Take)
	})
}

// A release names the ticket of the queue as the next owner, if the first waiter can take the lock in
// the name of the ticket.
func TestNextOwner(t *testing.T) {
	type test struct {
		change    func(*stage)
		nextOwner bool
	}
	onStages(t, map[string]test{
		"a call waits": {func(s *stage) { s.stand(&plainTerms, 2) }, true},
		"nobody waits": {func(s *stage) {}, false},
		"closed":       {func(s *stage) { s.stand(&plainTerms, 2); s.Close() }, false},
		"another is offered": {func(s *stage) {
			s.stand(&plainTerms, 2)
			s.Queue(&plainTerms).hand.offered = s.acquisition(&plainTerms)
		}, false},
		"an attempt is first": {func(s *stage) { s.tries(&plainTerms, 2); s.stand(&plainTerms, 3) }, false},
	}, func(s *stage, test test) {
		held, h := s.take(&plainTerms, 1)
		test.change(s)
		s.Unlock(held, h, s.now, func(*Acquisition) bool { return false })
		w, ticket := s.NextOwner(held, offerTime, pollTime, time.Time{})
		if (w != nil) != test.nextOwner || (ticket != nil) != test.nextOwner {
			s.Fatalf("%v, %v", w, ticket)
		}
		if ticket == nil {
			return
		}
		if ticket.phase != Ticket || ticket.longest != offerTime || ticket.traceTTL != pollTime || w != s.Queue(&plainTerms).waiters[0] {
			s.Errorf("%+v", ticket)
		}
		if s.Fail(ticket); len(s.gives()) != 1 {
			s.Error("Redis may have the ticket queued, and no command takes it back")
		}
	})
	t.Run("leases do not get shorter", func(t *testing.T) {
		s := newStage(t)
		held, _ := s.take(&plainTerms, 1)
		s.stand(&plainTerms, 2)
		s.NextOwner(held, 2*offerTime, 2*pollTime, time.Time{})
		if _, ticket := s.NextOwner(held, offerTime, pollTime, time.Time{}); ticket.longest != 2*offerTime || ticket.traceTTL != 2*pollTime || ticket.MayLive() != 2*offerTime {
			t.Errorf("%+v", ticket)
		}
	})
}

// The reply to a release says whether the next owner was granted the lock.
func TestOnRelease(t *testing.T) {
	scene := func(t *testing.T, c *Terms) (*stage, *Acquisition, *Waiter) {
		s := newStage(t)
		held, h := s.take(&plainTerms, 1)
		w := s.stand(c, 2)
		s.next(w)
		s.pass(2 * MaxHandOffTime)
		s.Unlock(held, h, s.now, nil)
		_, ticket := s.NextOwner(held, offerTime, pollTime, time.Time{})
		t.Cleanup(func() {
			if w.queue != nil && s.side(false).held == held {
				s.NoLongerHeld(held)
				if !w.leads() {
					t.Error("the lock has no holder, and the first does not know")
				}
			}
		})
		s.done()
		return s, ticket, w
	}
	t.Run("it has the lock", func(t *testing.T) {
		s, ticket, w := scene(t, &plainTerms)
		if !s.OnRelease(ticket, ReleaseResult{Done: true, Token: 200, Sent: s.now}, s.now) {
			t.Fatal("it is not offered")
		}
		if ticket.phase != Offered || ticket.Token() != 200 || ticket.grant.since != s.now || ticket.counted != 1 || s.side(false).held != ticket {
			t.Errorf("%+v", ticket)
		}
		s.wantStep(w, Take, ticket)
	})
	for name, test := range map[string]struct {
		c    *Terms
		i    ReleaseResult
		swap bool // another attempt becomes the first waiter
	}{
		"too late":                    {&plainTerms, ReleaseResult{Done: true, Token: 200, Late: true}, false},
		"one with a lease of its own": {fixedTerms, ReleaseResult{Done: true, Token: 200}, false},
		"an attempt comes first":      {&plainTerms, ReleaseResult{Done: true, Token: 200}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s, ticket, w := scene(t, test.c)
			if test.swap {
				w.once = true
			}
			w.queue.when.sendAt = s.now.Add(pollTime) // an earlier waiter of the queue was refused
			if s.OnRelease(ticket, test.i, s.now) || ticket.phase != Ticket {
				t.Fatal("it is offered")
			}
			if len(s.wakes()) != 1 || s.next(w).Do != Send {
				t.Error("the first does not ask")
			}
		})
		t.Run(name+", and its request is refused after that", func(t *testing.T) {
			s, ticket, w := scene(t, test.c)
			w.queue.TimerFired()
			if s.asks(w) != ticket {
				t.Fatal("it asks for another acquisition")
			}
			w.once = test.swap
			s.OnRelease(ticket, test.i, s.now)
			s.Refused(w, ticket, Refusal{Sent: s.now, Left: -1, Trace: true}, s.now)
			s.wantNext(w, Send, "the lock is idle")
		})
	}
	t.Run("others come first", func(t *testing.T) {
		s, ticket, w := scene(t, &plainTerms)
		until := s.now.Add(asideTime)
		s.OnRelease(ticket, ReleaseResult{Done: true, Aside: until}, s.now)
		s.NoLongerHeld(s.side(false).held)
		s.wantWait(w, until)
		s.pass(asideTime)
		s.wantNext(w, Send)
	})
	t.Run("others come first, and the first looks late", func(t *testing.T) {
		s, ticket, w := scene(t, &plainTerms)
		w.queue.when.sendAt = s.now.Add(pollTime) // the queue was refused before
		s.OnRelease(ticket, ReleaseResult{Done: true, Aside: s.now.Add(asideTime)}, s.now)
		s.NoLongerHeld(s.side(false).held)
		s.pass(asideTime)
		s.wantNext(w, Send)
	})
	t.Run("another process has it", func(t *testing.T) {
		s, ticket, w := scene(t, &plainTerms)
		s.OnRelease(ticket, ReleaseResult{Done: true, Sent: s.now}, s.now)
		if all := s.done(); len(all) != 1 || all[0].Kind != Subscribe || all[0].Sent != s.now {
			t.Errorf("%+v", all)
		}
		s.NoLongerHeld(s.side(false).held)
		s.wantWait(w, s.now.Add(pollTime))
	})
	for name, i := range map[string]ReleaseResult{"it broke": {Broke: true}, "it was lost": {}} {
		t.Run(name, func(t *testing.T) {
			s, ticket, w := scene(t, &plainTerms)
			w.queue.when.sendAt = s.now.Add(pollTime) // the queue was refused before
			s.OnRelease(ticket, i, s.now)
			s.NoLongerHeld(s.side(false).held)
			s.wantStep(w, Send, ticket)
			if ticket.uncertain != i.Broke {
				t.Error("uncertain:", ticket.uncertain)
			}
		})
	}
	t.Run("given up meanwhile", func(t *testing.T) {
		s, ticket, w := scene(t, &plainTerms)
		s.Quit(w, s.now)
		if len(s.gives()) != 1 {
			t.Fatal("the queue did not give it up")
		}
		if s.OnRelease(ticket, ReleaseResult{Done: true, Token: 200}, s.now) {
			t.Error("it is offered")
		}
		s.wantGives(ticket)
	})
	t.Run("the queue has another", func(t *testing.T) {
		s, ticket, w := scene(t, &plainTerms)
		s.Queue(&plainTerms).hand.ticket = nil
		s.Fail(ticket)
		second := s.Queue(&plainTerms).ticket(&plainTerms, time.Time{})
		if s.OnRelease(ticket, ReleaseResult{Done: true, Token: 200}, s.now) || second.phase != Ticket || w.queue.hand.offered != nil {
			t.Error("another's grant is offered")
		}
	})
}

// The reply to a request is about the ticket, whichever waiter of the queue sent the request.
func TestAdopt(t *testing.T) {
	scene := func(t *testing.T) (*stage, *Acquisition, *Waiter) {
		s := newStage(t)
		w := s.stand(&plainTerms, 2)
		ticket := s.asks(w)
		if ticket.phase != Ticket {
			t.Fatal("it does not ask in the name of the queue")
		}
		return s, ticket, w
	}
	grant := func(s *stage, w *Waiter, ticket *Acquisition, late bool) Outcome {
		return s.Granted(w, ticket, w.Owner, &Hold{Fixed: w.Terms.Fixed}, 100, late, s.now)
	}
	t.Run("granted", func(t *testing.T) {
		s, ticket, w := scene(t)
		if out := grant(s, w, ticket, false); out != Holds || ticket.phase != Held || ticket.Owner() != w.Owner || w.queue.hand != (hand{}) || s.side(false).held != ticket {
			t.Errorf("%d, %+v", out, ticket)
		}
	})
	t.Run("granted to another waiter than the first", func(t *testing.T) {
		s := newStage(t)
		w := s.stand(&plainTerms, 2)
		ticket := s.refused(w)
		came := s.now.Add(pollTime / 2)
		s.pass(pollTime / 2)
		own := with(plainTerms, func(c *Terms) { c.Fixed, c.Lease = true, leaseTime/2 })
		second := s.stand(own, 3)
		s.GiveUp(w, ticket)
		s.Quit(w, s.now)
		s.pass(pollTime)
		if again := s.asks(second); again != ticket {
			t.Fatal("the position in the queue is not kept")
		}
		if out := grant(s, second, ticket, false); out != Holds || ticket.Came != came || ticket.Terms != own {
			t.Errorf("%d, asked %v, %+v", out, ticket.Came, ticket.Terms)
		}
	})
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprintf("offered before, late %t", late), func(t *testing.T) {
			s, ticket, w := scene(t)
			s.OnRelease(ticket, ReleaseResult{Done: true, Token: 200}, s.now)
			if out := grant(s, w, ticket, late); out != Holds || ticket.Token() != 200 || ticket.phase != Held || len(ticket.holds) != 1 || ticket.owners != 1 {
				t.Errorf("%d, %+v", out, ticket)
			}
			if len(s.Offered()) > 0 {
				t.Error("it is offered still")
			}
		})
	}
	t.Run("offered before, and lost", func(t *testing.T) {
		s, ticket, w := scene(t)
		s.OnRelease(ticket, ReleaseResult{Done: true, Token: 200}, s.now)
		s.End(ticket, Lost)
		if out := grant(s, w, ticket, false); out != TooLate || ticket.phase != Lost {
			t.Errorf("%d, phase %d", out, ticket.phase)
		}
	})
	t.Run("offered before, and closed", func(t *testing.T) {
		s, ticket, w := scene(t)
		s.OnRelease(ticket, ReleaseResult{Done: true, Token: 200}, s.now)
		s.Close()
		if out := grant(s, w, ticket, false); out != Shut || ticket.phase != Closed || w.Owner.Acquisition() != nil {
			t.Errorf("%d, phase %d", out, ticket.phase)
		}
	})
	t.Run("another was offered", func(t *testing.T) {
		s, ticket, w := scene(t)
		other := s.acquisition(&plainTerms)
		other.grant.since, other.phase = s.now, Offered
		s.offer(w.queue, other)
		if out := grant(s, w, ticket, false); out != Holds || other.Lives() || s.side(false).held != ticket {
			t.Errorf("%d, %+v", out, other)
		}
		s.wantGives(other)
	})
	t.Run("too late", func(t *testing.T) {
		s, ticket, w := scene(t)
		if out := grant(s, w, ticket, true); out != TooLate || !ticket.uncertain || ticket.grant.since != (time.Time{}) {
			t.Errorf("%d, %+v", out, ticket)
		}
		s.GiveUp(w, ticket)
		s.wantGives(ticket)
	})
	t.Run("closed", func(t *testing.T) {
		s, ticket, w := scene(t)
		s.Close()
		if out := grant(s, w, ticket, false); out != Shut || !ticket.uncertain || len(ticket.holds) > 0 || s.side(false).held != nil {
			t.Errorf("%d, %+v", out, ticket)
		}
		s.GiveUp(w, ticket)
		if all := s.gives(); len(all) != 1 {
			t.Errorf("%v is given back", all)
		}
	})
	t.Run("an attempt of its own", func(t *testing.T) {
		s := newStage(t)
		w, first := s.Try(&plainTerms, s.owner(&plainTerms, 2), s.now)
		if !first {
			t.Fatal("others are ahead")
		}
		w.Acquisition = s.acquisition(&plainTerms)
		if own := s.asks(w); own != w.Acquisition || w.queue.hand.ticket != nil {
			t.Error("it asks in the name of the queue")
		}
		if out := grant(s, w, w.Acquisition, false); out != Holds {
			t.Error(out)
		}
	})
	t.Run("a reader that asks anew", func(t *testing.T) {
		s := newStage(t)
		w := s.reader(&readTerms, 2)
		s.pass(time.Second)
		w.Acquisition = s.acquisition(&readTerms) // after a reply that came too late
		own := s.asks(w)
		if out := grant(s, w, own, false); out != Holds || own.Came != s.now {
			t.Errorf("%d, asked %v", out, own.Came)
		}
	})
	t.Run("ended meanwhile", func(t *testing.T) {
		s := newStage(t)
		o, own := s.owner(&writeTerms, 1), s.acquisition(&writeTerms)
		s.WillSend(own, leaseTime, 0)
		s.Fail(own)
		if out := s.Granted(new(Waiter), own, o, new(Hold), 100, false, s.now); out != TooLate || !own.uncertain || o.Acquisition() != nil {
			t.Errorf("%d, %+v", out, own)
		}
		s.Fail(own)
		if len(s.gives()) != 1 {
			t.Error("no command takes the grant back")
		}
	})
}

// An offered acquisition is lost while a request for it is in flight, and that request is granted. If
// the waiter cannot use the grant, the state releases it.
func TestAdopt_lostBefore(t *testing.T) {
	onStages(t, map[string]func(*stage, *Waiter, *Acquisition){
		"its wait ends": func(s *stage, w *Waiter, t *Acquisition) { s.Failed(w, t, true, nil); s.GiveUp(w, t) },
		"the answer breaks": func(s *stage, w *Waiter, t *Acquisition) {
			s.Failed(w, t, true, errBroke)
			s.Retry(w, s.now)
			s.next(w)
		},
		"nobody hears it": func(s *stage, w *Waiter, t *Acquisition) { s.Abandoned(w, t); s.GiveUp(w, t); s.unheard(w, t) },
	}, func(s *stage, ends func(*stage, *Waiter, *Acquisition)) {
		w := s.stand(&plainTerms, 2)
		s.stand(&plainTerms, 3)
		ticket := s.asks(w)
		s.OnRelease(ticket, ReleaseResult{Done: true, Token: 200}, s.now)
		s.End(ticket, Lost)
		s.NoLongerHeld(ticket)
		s.done()
		ends(s, w, ticket)
		s.wantGives(ticket)
		if next := s.asks(w); next == ticket {
			s.Error("the next asks in an acquisition that is over")
		}
	})
}

// A call that stops waiting leaves to the next waiter what that one can use. It leaves nothing that
// may become a grant without a waiter.
func TestGiveUp(t *testing.T) {
	scene := func(t *testing.T) (*stage, *Acquisition, *Waiter, *Waiter) {
		s := newStage(t)
		w, behind := s.stand(&plainTerms, 2), s.stand(&plainTerms, 3)
		ticket := s.refused(w)
		s.done()
		return s, ticket, w, behind
	}
	for name, test := range map[string]struct {
		change func(*stage, *Acquisition)
		kept   bool
	}{
		"nothing is under way":   {func(*stage, *Acquisition) {}, true},
		"a request is under way": {func(s *stage, t *Acquisition) { s.WillSend(t, 0, 0) }, false},
		"uncertain":              {func(_ *stage, t *Acquisition) { t.MarkUncertain() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, ticket, w, behind := scene(t)
			test.change(s, ticket)
			s.GiveUp(w, ticket)
			if kept := w.queue.hand.ticket == ticket && s.gives() == nil; kept != test.kept || ticket.Lives() != test.kept {
				t.Errorf("kept: %t, it lives: %t", kept, ticket.Lives())
			}
			s.Quit(w, s.now)
			s.pass(pollTime)
			if next := s.asks(behind); (next == ticket) != test.kept {
				t.Errorf("the next asks for %v", next)
			}
		})
	}
	t.Run("its own, of which Redis has not heard", func(t *testing.T) {
		s := newStage(t)
		w := s.stand(&writeTerms, 2)
		s.GiveUp(w, w.Acquisition)
		if w.Acquisition.Lives() || s.gives() != nil {
			t.Error("it lives, or is given back")
		}
	})
	t.Run("its own, of which Redis has a trace", func(t *testing.T) {
		s := newStage(t)
		w := s.stand(&writeTerms, 2)
		s.refused(w)
		s.GiveUp(w, w.Acquisition)
		if all := s.gives(); w.Acquisition.Lives() || len(all) != 1 {
			t.Error("it lives, or is not given back")
		}
	})
	t.Run("nothing", func(t *testing.T) {
		s, _, w, _ := scene(t)
		if s.GiveUp(w, nil) != nil || s.done() != nil {
			t.Error("something was given up")
		}
	})
}

// A queue uses one token counter at a time: another counter needs another ticket.
func TestTicket(t *testing.T) {
	s := newStage(t)
	w, behind := s.stand(&plainTerms, 2), s.stand(fencedTerms, 3)
	ticket := s.refused(w)
	s.GiveUp(w, ticket)
	s.Quit(w, s.now)
	s.done()
	s.pass(pollTime)
	if next := s.asks(behind); next == ticket || ticket.Lives() || next.Terms != fencedTerms {
		t.Errorf("%+v", next)
	}
	s.wantGives(ticket)
}

// A single attempt that becomes the first of its queue ends the ticket, which it cannot use. The next waiter gets a new one.
func TestTicket_afterAnAttempt(t *testing.T) {
	s := newStage(t)
	w, try, behind := s.stand(&plainTerms, 2), s.tries(&plainTerms, 3), s.stand(&plainTerms, 4)
	ticket := s.refused(w)
	s.GiveUp(w, ticket)
	s.Quit(w, s.now)
	s.wantGives(ticket)
	s.Quit(try, s.now)
	s.pass(pollTime)
	if next := s.asks(behind); next == ticket || !next.Lives() {
		t.Errorf("the next waiter sends a request for %+v", next)
	}
}

// A waiter of a fair lock has left its queue when its request is granted. Its owner holds the lock
// anyway, and the queue keeps its own state, which may belong to another waiter.
func TestAdopt_afterItsWaiterLeft(t *testing.T) {
	for _, alone := range []bool{false, true} {
		s := newStage(t)
		other, w := s.stand(&fairTerms, 1), s.stand(&fairTerms, 2)
		w.reason = true // it was notified of its turn
		asked := s.asks(w)
		if alone {
			s.Quit(other, s.now)
		}
		s.Quit(w, s.now)
		if w.queue != nil {
			t.Fatal("it is in the queue still")
		}
		if out := s.Granted(w, asked, w.Owner, new(Hold), 100, false, s.now); out != Holds || w.Owner.Acquisition() != asked {
			t.Errorf("%d, and its owner has %+v", out, w.Owner.Acquisition())
		}
	}
}

// inherited has a release offer the ticket of a queue to its first waiter, whose request for it has
// no reply yet.
func (s *stage) inherited() (w *Waiter, ticket *Acquisition) {
	s.Helper()
	t, h := s.take(&plainTerms, 1)
	w = s.stand(&plainTerms, 2)
	s.pass(pollTime)
	s.Queue(&plainTerms).TimerFired()
	ticket = s.asks(w)
	s.Unlock(t, h, s.now, func(*Acquisition) bool { return false })
	if _, nextOwner := s.NextOwner(t, offerTime, 10*pollTime, time.Time{}); nextOwner != ticket {
		s.Fatal("the ticket is not the next owner")
	}
	if !s.OnRelease(ticket, ReleaseResult{Done: true, Token: 200, Sent: s.now}, s.now) {
		s.Fatal("the ticket is not offered")
	}
	s.NoLongerHeld(t)
	return w, ticket
}

// A request that finds the offer expired in Redis is granted a new lease, perhaps after other owners.
// In a process that was paused, the reply may arrive before the end of the offer is detected. The
// hold has the token of the reply: the token of the offer may be smaller than the token of a later
// owner.
func TestGranted_theTokenOfTheReply(t *testing.T) {
	s := newStage(t)
	w, ticket := s.inherited()
	s.pass(offerTime + time.Second)
	h := new(Hold)
	s.granted(w, ticket, h, 300)
	if got := ticket.Token(); got != 300 {
		t.Errorf("token %d, want that of the answer, 300: another process may have had 250", got)
	}
}

// A request that was in flight when its acquisition was lost can be queued after the acquisition was
// released. A later release would then grant the lock to an owner without a waiter.
func TestRefused_afterTheLoss(t *testing.T) {
	s := newStage(t)
	w, ticket := s.inherited()
	s.End(ticket, Lost)
	s.NoLongerHeld(ticket)
	s.done() // the session reconciles the lost acquisition, and Redis confirms it
	s.Refused(w, ticket, Refusal{Sent: s.now, Left: -1, Trace: true}, s.now)
	if got := s.gives(); len(got) != 1 || got[0] != ticket {
		t.Errorf("given back: %d acquisitions; the queue has one that is over", len(got))
	}
}

// The reply to a release can arrive after the next owner's own request was granted, released and
// handed off locally. The owner string then belongs to the latest acquisition: reconciling the
// earlier one would end a live lease.
func TestOnRelease_afterTheNextOwnerHandedOff(t *testing.T) {
	s := newStage(t)
	held, h := s.take(&plainTerms, 1)
	w := s.stand(&plainTerms, 2)
	s.stand(&plainTerms, 3)
	s.Unlock(held, h, s.now, func(*Acquisition) bool { return false })
	_, nextOwner := s.NextOwner(held, offerTime, 10*pollTime, time.Time{})
	s.pass(pollTime)
	s.Queue(&plainTerms).TimerFired()
	if asked := s.asks(w); asked != nextOwner {
		t.Fatal("it asks in another name")
	}
	first := new(Hold)
	s.granted(w, nextOwner, first, 200)
	s.Quit(w, s.now)
	s.pass(stepTime)
	next := s.give(first)
	if next == nil || !next.Lives() {
		t.Fatal("it is not passed on")
	}
	s.done()
	s.OnRelease(nextOwner, ReleaseResult{Done: true, Token: 150, Sent: s.now}, s.now) // the reply to the release, at last
	if got := s.gives(); len(got) != 0 {
		t.Errorf("the acquisition that passed the lock on is given back, and with it the lease of the next")
	}
}

// A release that found no hold makes the first waiter send a request, and is no reason to subscribe.
func TestOnRelease_nothingReleased(t *testing.T) {
	s := newStage(t)
	held, h := s.take(&plainTerms, 1)
	w := s.stand(&plainTerms, 2)
	s.next(w)
	s.pass(2 * MaxHandOffTime)
	s.Unlock(held, h, s.now, nil)
	_, ticket := s.NextOwner(held, offerTime, pollTime, time.Time{})
	s.NoLongerHeld(held)
	s.next(w)
	w.queue.when.sendAt = s.now.Add(pollTime)
	s.done()
	if s.OnRelease(ticket, ReleaseResult{Sent: s.now}, s.now) {
		t.Error("offered")
	}
	if all := s.done(); len(all) != 1 || all[0].Kind != Wake || all[0].Waiter != w {
		t.Errorf("%+v, want that the waiter is woken", all)
	}
	s.wantNext(w, Send)
}

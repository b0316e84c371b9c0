package place

import (
	"slices"
	"testing"
	"time"
)

// An entry has those alone that wait for it: not a waiter that has left, and not one that has asked itself and stands in the queue.
func TestNextBeat_entersThoseThatWait(t *testing.T) {
	s := newStage(t)
	first := s.stand(&fairTerms, 1)
	s.queues(first, Refusal{Left: -1})
	l := first.line
	l.NextBeat(s.now)
	gone, asked, last := s.stand(&fairTerms, 2), s.stand(&fairTerms, 3), s.stand(&fairTerms, 4)
	s.Quit(gone, s.now)
	s.queues(asked, Refusal{Left: -1})
	s.pass(EntryPause)
	_, r := l.NextBeat(s.now)
	if !slices.Equal(r.waiters(), []*Waiter{last}) || r.Enters() != 1 {
		t.Errorf("%d waiters, of which %d enter", len(r.Waiters), r.Enters())
	}
	if r.Sent != s.now {
		t.Errorf("sent at %v", r.Sent)
	}
}

// The goroutine of a heartbeat looks again when the heartbeat is due, if that is before those that come may enter.
func TestNextBeat_dueBeforeTheEntry(t *testing.T) {
	s := newStage(t)
	first := s.stand(&fairTerms, 1)
	s.queues(first, Refusal{Left: -1})
	l := first.line
	l.NextBeat(s.now)
	one := s.stand(&fairTerms, 2)
	s.pass(EntryPause)
	_, r := l.NextBeat(s.now)
	l.Beaten(r, nil)
	s.Entered(Queuing{one, one.Tenure, true}, false, s.now, s.now)
	s.stand(&fairTerms, 3)
	l.BeatIn(keeps(s.now), s.now, 0)
	if due, _ := l.NextBeat(s.now); due != s.now.Add(time.Millisecond) {
		t.Errorf("it looks again in %v", due.Sub(s.now))
	}
}

// Those that came while an entry was under way enter when that is answered.
func TestBeaten_entersThoseThatCame(t *testing.T) {
	s := newStage(t)
	s.asks(s.stand(&fairTerms, 1))
	w := s.stand(&fairTerms, 2)
	_, r := w.line.NextBeat(s.now)
	s.stand(&fairTerms, 3)
	if s.done(); s.did(Beat) {
		t.Fatal("the heartbeat is looked at")
	}
	w.line.Beaten(r, nil)
	if !s.did(Beat) {
		t.Error("nobody sends the next entry")
	}
}

// An entry asks for the longest lease that a release may give the lock with, or that the waiter has.
func TestNextBeat_longestLease(t *testing.T) {
	for _, lease := range []time.Duration{time.Second, 2 * leaseTime} {
		s := newStage(t)
		s.asks(s.stand(&fairTerms, 1))
		w := s.stand(with(fairTerms, func(c *Terms) { c.Lease, c.Fixed = lease, true }), 2)
		w.line.NextBeat(s.now)
		if want := max(lease, leaseTime); w.Tenure.longest != want {
			t.Errorf("a lease of %v: %v is asked for, want %v", lease, w.Tenure.longest, want)
		}
	}
}

// The answer to the entry of a waiter that has the lock by then is the answer to a question.
func TestEntered_countsTheAnswer(t *testing.T) {
	s := newStage(t)
	s.asks(s.stand(&fairTerms, 1))
	w := s.stand(&fairTerms, 2)
	_, r := w.line.NextBeat(s.now)
	w.Tenure.inherits(7, s.now)
	before := s.flying
	s.Entered(r.Waiters[0], false, s.now, s.now)
	if w.Tenure.pending != 0 || s.flying != before-1 {
		t.Errorf("%d answers are missing, and %d questions are under way", w.Tenure.pending, s.flying)
	}
}

// An observer hears that a waiter stands in the queue: its call looks at Next.
func TestEntered_tells(t *testing.T) {
	s := newStage(t)
	s.asks(s.stand(&fairTerms, 1))
	w := s.stand(&fairTerms, 2)
	w.Tells = true
	_, r := w.line.NextBeat(s.now)
	s.done()
	s.Entered(r.Waiters[0], false, s.now, s.now)
	if !slices.Equal(s.wakes(), []*Waiter{w}) {
		t.Error("its call does not look")
	}
}

// A waiter whose entry came to an error asks itself, and no heartbeat has it enter meanwhile. A waiter that has left, or asks under
// another name by now, has nothing to do with that entry.
func TestNotEntered_whoseEntryItWas(t *testing.T) {
	s := newStage(t)
	s.asks(s.stand(&fairTerms, 1))
	w, gone, anew := s.stand(&fairTerms, 2), s.stand(&fairTerms, 3), s.stand(&fairTerms, 4)
	_, r := w.line.NextBeat(s.now)
	s.GiveUp(gone, gone.Tenure)
	s.Quit(gone, s.now)
	anew.Tenure = s.tenure(&fairTerms)
	s.done()
	w.line.Beaten(r, errBroke)
	for _, q := range r.Waiters {
		s.NotEntered(q, true, errBroke)
	}
	if woken := s.wakes(); !slices.Equal(woken, []*Waiter{w}) {
		t.Errorf("%d waiters ask", len(woken))
	}
	s.pass(pollTime + 1)
	if _, r := w.line.NextBeat(s.now); slices.Contains(r.waiters(), w) || !slices.Contains(r.waiters(), anew) {
		t.Error("the entries are not sent again, or are sent by two")
	}
}

// What Redis said last about the next in the queue holds, and a waiter that asks under another name now is not there. Nothing is
// noted where nobody waits.
func TestFollow_anew(t *testing.T) {
	s := newStage(t)
	held, h, w := s.crowd(3)
	s.Follow(held, numbers(w[0]), 2)
	s.Follow(held, numbers(w[1], w[2]), 2)
	w[1].Tenure = s.tenure(&fairTerms)
	if s.give(h) == nil || !slices.Equal(s.wakes(), []*Waiter{w[2]}) {
		t.Error("the lock is not passed on to the next that stands in the queue")
	}

	alone := newStage(t)
	held, _ = alone.take(&fairTerms, 1)
	alone.Follow(held, "777", 2)
	if held.grant.queue != nil {
		t.Error("somebody is next")
	}
}

// A release names the first waiter that stands in the queue, or that may by now, as its entry is under way. It names none if that one
// has to ask for itself.
func TestHeir_standsInTheQueue(t *testing.T) {
	s := newStage(t)
	held, _ := s.take(&fairTerms, 100)
	waits, enters := s.stand(&fairTerms, 1), s.stand(&fairTerms, 2)
	s.asks(waits)
	if w, _ := s.Heir(held, leaseTime, 0, s.now); w != nil {
		t.Error("an heir that does not stand in the queue")
	}
	_, r := enters.line.NextBeat(s.now)
	if w, as := s.Heir(held, 2*leaseTime, 0, s.now); w != enters || as != enters.Tenure {
		t.Fatal("an entry is under way, and the waiter is not the heir")
	} else if as.longest != 2*leaseTime {
		t.Errorf("the key may live for %v by that release, and the waiter thinks %v", 2*leaseTime, as.longest)
	}
	if s.Heir(held, time.Second, 0, s.now); enters.Tenure.longest != 2*leaseTime {
		t.Error("an earlier release gives a longer lease")
	}
	enters.line.Beaten(r, nil)
	s.Entered(r.Waiters[0], false, s.now, s.now)
	if !s.Inherit(enters.Tenure, Inheritance{Done: true, Token: 101, Sent: s.now}, s.now) || enters.line.hand.to != enters {
		t.Error("the lock is not offered to the heir")
	}

	other := newStage(t)
	held, _ = other.take(&fairTerms, 100)
	fixed := other.stand(with(fairTerms, func(c *Terms) { c.Fixed = true }), 1)
	other.queues(fixed, Refusal{Left: -1})
	other.queues(other.stand(&fairTerms, 2), Refusal{Left: -1})
	if w, _ := other.Heir(held, leaseTime, 0, other.now); w != nil {
		t.Error("the heir overtakes one that asks for a lease of its own")
	}
}

// A waiter to which a release gave the lock asks itself if the place is closed by then, or has another offer.
func TestInherit_queueClosedOrBusy(t *testing.T) {
	for name, change := range map[string]func(s *stage, l *Line){
		"closed": func(s *stage, _ *Line) { s.Close() },
		"busy":   func(s *stage, l *Line) { s.offerTo(l, s.tenure(&fairTerms), l.waiters[1]) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			_, h, w := s.crowd(2)
			_, as := s.Heir(h.Tenure, leaseTime, 0, s.now)
			s.give(h)
			change(s, w[0].line)
			s.done()
			if s.Inherit(as, Inheritance{Done: true, Token: 7, Sent: s.now}, s.now) {
				t.Error("offered")
			}
			if !slices.Contains(s.wakes(), w[0]) || !w[0].reason {
				t.Error("it does not ask")
			}
		})
	}
}

// An offer stays with its waiter when another leaves. If its own waiter leaves, and nobody else may take the lock, it goes back.
func TestQuit_beforeTheOfferIsTaken(t *testing.T) {
	for name, c := range map[string]struct {
		follow []int // which are next in the queue
		leaves int
		change func(s *stage, t *Tenure)
		gives  bool
		to     int // who has the offer then; -1 if nobody has
	}{
		"another leaves":             {[]int{0, 1}, 2, nil, false, 0},
		"the next takes it":          {[]int{0, 1}, 0, nil, false, 1},
		"nobody is known to be next": {[]int{0}, 0, nil, true, -1},
		"the offer is lost":          {[]int{0, 1}, 0, func(s *stage, t *Tenure) { s.End(t, Lost) }, true, -1},
		"the place is closed":        {[]int{0, 1}, 0, func(s *stage, _ *Tenure) { s.Close() }, true, -1},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			held, h, w := s.crowd(3)
			var next []*Waiter
			for _, i := range c.follow {
				next = append(next, w[i])
			}
			s.Follow(held, numbers(next...), 2)
			offer, l := s.give(h), w[0].line
			if c.change != nil {
				c.change(s, offer)
			}
			s.done()
			s.Quit(w[c.leaves], s.now)
			if gives := slices.Contains(s.gives(), offer); gives != c.gives {
				t.Errorf("given back %t, want %t", gives, c.gives)
			}
			switch {
			case c.to < 0:
				if l.hand.offered != nil || l.hand.to != nil {
					t.Error("the line has it still")
				}
			case l.hand.offered != offer || l.hand.to != w[c.to]:
				t.Error("another has it")
			}
		})
	}
}

// A line whose waiters queue in Redis needs no alarm, as it sends heartbeats, also while this process has the lock.
func TestJoin_queuesWithoutAlarm(t *testing.T) {
	s := newStage(t)
	s.take(&fairTerms, 100)
	s.stand(&fairTerms, 1)
	if s.did(Arm) {
		t.Error("an alarm")
	}
}

// What a release gave to a waiter stays with it when another leaves.
func TestQuit_besideAnHeir(t *testing.T) {
	s := newStage(t)
	_, h, w := s.crowd(3)
	_, as := s.Heir(h.Tenure, leaseTime, 0, s.now)
	s.give(h)
	if !s.Inherit(as, Inheritance{Done: true, Token: 7, Sent: s.now}, s.now) {
		t.Fatal("the heir does not have the lock")
	}
	s.Follow(as, numbers(w[1], w[2]), 2)
	s.Quit(w[2], s.now)
	if l := w[0].line; l.hand.offered != as || l.hand.to != w[0] {
		t.Error("another has it")
	}
}

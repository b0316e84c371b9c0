package place

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// numbers are those of the owner strings of these waiters, as a script tells them.
func numbers(waiters ...*Waiter) string {
	var all []string
	for _, w := range waiters {
		all = append(all, strings.TrimPrefix(w.Tenure.Name, "p:"))
	}
	return strings.Join(all, " ")
}

// crowd has owners take a fair lock and stand in its queue: the holder's tenure and hold, and n
// waiters of the same line.
func (s *stage) crowd(n int) (t *Tenure, h *Hold, waiters []*Waiter) {
	s.Helper()
	t, h = s.take(&fairTerms, 100)
	for i := range n {
		w := s.stand(&fairTerms, uint64(i+1))
		s.queues(w, Refusal{Left: -1})
		waiters = append(waiters, w)
	}
	s.pass(time.Millisecond) // a lock is not passed on faster than tokens may count up
	s.done()
	return t, h, waiters
}

// takes has w take what is offered, and leave its line.
func (s *stage) takes(w *Waiter) *Hold {
	s.Helper()
	step := s.next(w)
	if step.Do != Take {
		s.Fatalf("it does not take the lock: %+v", step)
	}
	h := new(Hold)
	if !s.Add(step.Tenure, w.Owner, h) {
		s.Fatal("it does not have what it took")
	}
	s.Quit(w, s.now)
	return h
}

// A fair lock is passed on to those that Redis said are next, in that order, and no further.
// The release takes them out of the queue.
func TestFollow(t *testing.T) {
	s := newStage(t)
	held, h, w := s.crowd(4)
	s.Follow(held, numbers(w[1], w[0], w[2]), 2) // the queue decides, not the line
	var served []string
	for _, x := range []*Waiter{w[1], w[0], w[2]} {
		served = append(served, x.Tenure.Name)
		if s.give(h) == nil || !slices.Equal(s.wakes(), []*Waiter{x}) {
			t.Fatal("the lock is not passed on to the next in the queue")
		}
		for _, other := range w {
			if other != x && other.line != nil && s.next(other).Do != Wait {
				t.Error("another takes it")
			}
		}
		h = s.takes(x)
		if h.Tenure.Name != held.Name || s.gives() != nil {
			t.Error("the place gives back what the release takes out of the queue")
		}
	}
	if s.give(h) != nil {
		t.Error("passed on to a waiter that may be behind others")
	}
	if got := h.Tenure.Served(); !slices.Equal(got, served) {
		t.Errorf("the release takes out %q, want %q", got, served)
	}
	if x, as := s.Heir(h.Tenure, leaseTime, 0, time.Time{}); x != w[3] || as != w[3].Tenure {
		t.Error("the release names no heir")
	}
}

// A waiter that leaves is passed over. One that Redis named and that does not suit ends the
// sequence, as the others come after it.
func TestFollow_leaves(t *testing.T) {
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

// A waiter with a reason to ask does not take what is another's.
func TestFollow_isForOne(t *testing.T) {
	s := newStage(t)
	held, h, w := s.crowd(2)
	s.Follow(held, numbers(w...), 2)
	s.give(h)
	s.Prompt(w[1])
	if step := s.next(w[1]); step.Do != Ask || step.Tenure != w[1].Tenure {
		t.Errorf("%+v", step)
	}
}

// What a waiter was offered goes to the next, or back, if the waiter leaves before it takes
// that. Its own place in the queue is given up.
func TestFollow_leavesTheOffer(t *testing.T) {
	s := newStage(t)
	held, h, w := s.crowd(2)
	s.Follow(held, numbers(w...), 2)
	next := s.give(h)
	s.done()
	first := w[0].Tenure
	s.GiveUp(w[0], first)
	s.Quit(w[0], s.now)
	all := s.done()
	gives := func(t *Tenure) bool {
		return slices.ContainsFunc(all, func(a Action) bool { return a.Verb == GiveBack && a.Tenure == t })
	}
	if !gives(first) || gives(next) || w[1].line.hand.to != w[1] {
		t.Errorf("it is not the next one's: %+v", all)
	}
	s.GiveUp(w[1], w[1].Tenure)
	s.Quit(w[1], s.now)
	if all = s.done(); !gives(next) || next.Lives() {
		t.Errorf("nobody wants the lock, and it is not given back: %+v", all)
	}
	if s.sides[0].held != nil {
		t.Error("the place has the lock for ever")
	}
}

// A waiter whose offer is lost before it takes that asks under a new name: the old one may be
// taken out of the queue.
func TestFollow_loses(t *testing.T) {
	s := newStage(t)
	_, h, w := s.crowd(1)
	x, as := s.Heir(h.Tenure, leaseTime, 0, time.Time{})
	s.give(h)
	if x != w[0] || !s.Inherit(as, Inheritance{Done: true, Token: 7, Sent: s.now}, s.now) {
		t.Fatal("the heir does not have the lock")
	}
	s.End(as, Lost)
	s.Unhold(as)
	if step := s.next(w[0]); step.Do != Anew {
		t.Errorf("%+v", step)
	}
}

// The answer to a release in favour of a waiter offers it the lock. If the answer is of no use,
// the waiter or the line asks.
func TestInherit_queue(t *testing.T) {
	for name, c := range map[string]struct {
		i       Inheritance
		offered bool
		asks    bool // the waiter asks
		beats   bool // the line sends a heartbeat
	}{
		"it has the lock":        {Inheritance{Done: true, Token: 7}, true, false, false},
		"another has it":         {Inheritance{Done: true}, false, false, false},
		"too late":               {Inheritance{Done: true, Token: 7, Late: true}, false, true, false},
		"nobody knows":           {Inheritance{Broke: true}, false, false, true},
		"the release came twice": {Inheritance{}, false, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			_, h, w := s.crowd(2)
			w[0].line.NextBeat(s.now)
			w[0].line.Beaten(keeps(s.now), nil)
			_, as := s.Heir(h.Tenure, leaseTime, 0, time.Time{})
			s.give(h)
			s.done()
			c.i.Sent = s.now
			if got := s.Inherit(as, c.i, s.now); got != c.offered {
				t.Errorf("offered %t, want %t", got, c.offered)
			}
			if got := s.did(Beat); got != c.beats {
				t.Errorf("a heartbeat %t, want %t", got, c.beats)
			}
			if step := s.next(w[0]); (step.Do == Ask) != c.asks || (step.Do == Take) != c.offered {
				t.Errorf("%+v", step)
			}
			if s.next(w[1]).Do != Wait {
				t.Error("another waiter has a reason to do something")
			}
		})
	}
}

// What was offered to a waiter is lost, and it has not begun anew yet: a release gives the lock to the next.
func TestHeir_afterItsOfferWasLost(t *testing.T) {
	s := newStage(t)
	first, h, w := s.crowd(3)
	_, as := s.Heir(first, leaseTime, 0, time.Time{})
	s.give(h)
	s.Inherit(as, Inheritance{Done: true, Token: 7, Sent: s.now}, s.now)
	s.End(as, Lost)
	s.Unhold(as)
	s.Prompt(w[1])
	next, hold := s.asks(w[1]), new(Hold)
	if out := s.Granted(w[1], next, w[1].Owner, hold, 8, false, s.now); out != Holds {
		t.Fatalf("outcome %d", out)
	}
	s.Quit(w[1], s.now)
	if heir, _ := s.Heir(next, leaseTime, 0, time.Time{}); heir != w[2] {
		t.Error("the heir is not the next that waits")
	}
}

// The heir's own question can be answered before the release in its favour.
func TestInherit_queueAfterItsOwnAnswer(t *testing.T) {
	s := newStage(t)
	_, h, w := s.crowd(1)
	_, as := s.Heir(h.Tenure, leaseTime, 0, time.Time{})
	s.give(h)
	s.Prompt(w[0])
	if s.asks(w[0]) != as {
		t.Fatal("it asks under another name")
	}
	mine := new(Hold)
	if out := s.Granted(w[0], as, w[0].Owner, mine, 8, false, s.now); out != Holds {
		t.Fatal(out)
	}
	if s.Inherit(as, Inheritance{Done: true, Token: 7, Sent: s.now}, s.now) || as.Phase() != Held || as.Token() != 8 {
		t.Errorf("it is offered what it has: phase %d, token %d", as.Phase(), as.Token())
	}
}

// strikeDue lets time pass until the place has Strike called, and calls it.
func (s *stage) strikeDue() (t *Tenure, served []string) {
	s.Helper()
	for _, a := range s.done() {
		if a.Verb == Strike {
			s.pass(max(a.Due.Sub(s.now), 0))
			return s.Strike(s.now)
		}
	}
	s.Fatal("nobody takes served waiters out of the queue")
	return nil, nil
}

// Waiters that were served leave the queue though the lock is not released. Each leaves once, and
// the release takes out only those that are left.
func TestStrike(t *testing.T) {
	s := newStage(t)
	held, h, w := s.crowd(3)
	names := []string{w[0].Tenure.Name, w[1].Tenure.Name, w[2].Tenure.Name}
	s.Follow(held, numbers(w...), 2)
	s.give(h)
	h = s.takes(w[0])
	began := s.now
	s.give(h)
	h = s.takes(w[1])
	offered := s.give(h)
	of, served := s.strikeDue()
	if s.now != began.Add(StrikePause) || of != offered || !slices.Equal(served, names[:2]) {
		t.Fatalf("after %v: %q", s.now.Sub(began), served)
	}
	h = s.takes(w[2]) // while the command is under way
	s.Struck(of, len(served), true, s.now)
	if got := h.Tenure.Served(); !slices.Equal(got, names[2:]) {
		t.Errorf("%q leave with the release, want %q", got, names[2:])
	}
	if of, served = s.strikeDue(); of != h.Tenure || !slices.Equal(served, names[2:]) {
		t.Fatalf("%q", served)
	}
	s.Struck(of, len(served), false, s.now)
	failed := s.now
	if of, served = s.strikeDue(); s.now != failed.Add(pollTime) || !slices.Equal(served, names[2:]) {
		t.Errorf("after an error, %v later, %q", s.now.Sub(failed), served)
	}
	s.Struck(of, len(served), true, s.now)
	if got := h.Tenure.Served(); len(got) != 0 {
		t.Errorf("%q leave twice", got)
	}
	if of, _ = s.strikeDue(); of != nil || s.struck {
		t.Error("it does not end")
	}
}

// Nothing is taken out by Strike that a release takes out, and nothing after Close.
func TestStrike_isLeftToTheRelease(t *testing.T) {
	for name, end := range map[string]func(s *stage, h *Hold){
		"the release is on its way": func(s *stage, h *Hold) { s.give(h) },
		"the place is closed":       func(s *stage, _ *Hold) { s.Close() },
		"it is lost":                func(s *stage, h *Hold) { s.End(h.Tenure, Lost) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			held, h, w := s.crowd(1)
			s.Follow(held, numbers(w...), 2)
			s.give(h)
			h = s.takes(w[0])
			all := s.done()
			s.pass(time.Second)
			end(s, h)
			s.acts = append(s.acts, all...)
			if of, served := s.strikeDue(); of != nil || len(served) != 0 || s.struck {
				t.Errorf("%q", served)
			}
		})
	}
}

// One timer is enough for a lock that is busy: while the served are not there for long, Strike
// comes again, and sends nothing.
func TestStrike_busy(t *testing.T) {
	s := newStage(t)
	held, h, w := s.crowd(2)
	s.Follow(held, numbers(w[0]), 2)
	s.give(h)
	h = s.takes(w[0])
	first := s.done()
	s.pass(StrikePause / 2)
	s.give(h) // that is the release
	next := s.tenure(&fairTerms)
	s.Follow(next, numbers(w[1]), 2)
	s.Unhold(h.Tenure)
	next.phase, s.sides[0].held = Held, next
	s.serve(w[1], next, s.now)
	for _, a := range s.done() {
		if a.Verb == Strike {
			t.Error("a second timer")
		}
	}
	s.acts = append(s.acts, first...)
	began := s.now
	if of, _ := s.strikeDue(); of != nil || !s.struck {
		t.Error("those that were served just now leave by a command")
	}
	if of, _ := s.strikeDue(); of != next || s.now != began.Add(StrikePause) {
		t.Errorf("after %v", s.now.Sub(began))
	}
}

// Waiters that come together enter the queue together: while an entry is under way, and for
// a while after it if others of the line stand in the queue.
func TestEnter_together(t *testing.T) {
	s := newStage(t)
	first := s.stand(&fairTerms, 1)
	asked := s.asks(first)
	l := first.line
	one := s.stand(&fairTerms, 2)
	if !s.did(Beat) {
		t.Fatal("nobody sends its entry")
	}
	_, r := l.NextBeat(s.now)
	if !slices.Equal(r.waiters(), []*Waiter{one}) || r.Enters() != 1 || s.flying != 2 {
		t.Fatalf("%+v", r)
	}
	two, three := s.stand(&fairTerms, 3), s.stand(&fairTerms, 4)
	if due, r := l.NextBeat(s.now); len(r.Waiters) != 0 || due != s.now.Add(pollTime) {
		t.Errorf("an entry is sent while one is under way: %v, %+v", due, r)
	}
	l.Hint()
	if _, r := l.NextBeat(s.now); slices.Contains(r.waiters(), one) {
		t.Error("an entry that is under way is sent again, by a hint")
	} else if r.Enters() != 2 {
		t.Errorf("a hint leaves those that came: %+v", r)
	}
	l.Beaten(r, nil)
	s.Entered(r.Waiters[0], false, s.now, s.now)
	s.Refused(first, asked, Refusal{Sent: s.now, Left: -1, Trace: true}, s.now)
	l.beat.entries = 0
	for _, w := range []*Waiter{two, three} {
		s.Entered(Queuing{w, w.Tenure, true}, false, s.now, s.now)
	}
	if s.flying != 0 || one.Queued() != one.Tenure || three.Queued() != three.Tenure {
		t.Error("they do not stand in the queue")
	}
	s.done()

	four := s.stand(&fairTerms, 5)
	due, r := l.NextBeat(s.now)
	if len(r.Waiters) != 0 || due != s.now.Add(EntryPause) {
		t.Errorf("an entry soon after the last: %v, %+v", due, r)
	}
	s.pass(EntryPause)
	if _, r = l.NextBeat(s.now); !slices.Equal(r.waiters(), []*Waiter{four}) {
		t.Errorf("%+v", r)
	}
	l.Beaten(r, nil)
	s.Entered(r.Waiters[0], false, s.now, s.now)
	s.done()

	five := s.stand(&fairTerms, 6)
	s.done()
	for _, w := range []*Waiter{first, one, two, three, four} {
		s.Quit(w, s.now)
	}
	if !s.did(Beat) {
		t.Error("nobody stands in the queue, and the entry waits")
	}
	if _, r := l.NextBeat(s.now); !slices.Equal(r.waiters(), []*Waiter{five}) {
		t.Errorf("%+v", r)
	}
}

// An entry without an answer is sent again after a poll interval, with those that came since.
func TestEnter_again(t *testing.T) {
	s := newStage(t)
	first := s.stand(&fairTerms, 1)
	s.asks(first)
	one := s.stand(&fairTerms, 2)
	l := first.line
	l.NextBeat(s.now)
	two := s.stand(&fairTerms, 3)
	s.pass(pollTime + 1)
	_, r := l.NextBeat(s.now)
	if !slices.Equal(r.waiters(), []*Waiter{one, two}) || one.Tenure.pending != 2 {
		t.Errorf("%+v", r)
	}
}

// What became of an entry, where its waiter is by then.
func TestEntered(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(s *stage, w *Waiter)
		settles bool
	}{
		"it waits":                     {func(*stage, *Waiter) {}, false},
		"it has left":                  {func(s *stage, w *Waiter) { s.GiveUp(w, w.Tenure); s.Quit(w, s.now) }, true},
		"it has the lock by its name":  {func(s *stage, w *Waiter) { w.Tenure.inherits(7, s.now) }, false},
		"it had the lock by another's": {func(s *stage, w *Waiter) { s.serve(w, s.tenure(&fairTerms), s.now) }, false},
		"two of its entries are under way, and it had the lock": {func(s *stage, w *Waiter) {
			s.Asks(w.Tenure, leaseTime, leaseTime)
			s.serve(w, s.tenure(&fairTerms), s.now)
		}, true},
		"two were, one is answered, and it had the lock": {func(s *stage, w *Waiter) {
			s.Asks(w.Tenure, leaseTime, leaseTime)
			s.Entered(Queuing{w, w.Tenure, true}, false, s.now, s.now)
			s.serve(w, s.tenure(&fairTerms), s.now)
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.asks(s.stand(&fairTerms, 1))
			w := s.stand(&fairTerms, 2)
			_, r := w.line.NextBeat(s.now)
			if c.change(s, w); s.Entered(r.Waiters[0], false, s.now, s.now) != c.settles {
				t.Errorf("settled %t, want %t", !c.settles, c.settles)
			}
		})
	}
}

// A waiter to which the lock was passed on stays out of the queue: an entry without an answer is not
// sent again, and what a question that broke off may bring is taken back.
func TestServed_staysOut(t *testing.T) {
	s := newStage(t)
	s.asks(s.stand(&fairTerms, 1))
	w, other := s.stand(&fairTerms, 2), s.stand(&fairTerms, 3)
	w.line.NextBeat(s.now)
	s.pass(pollTime + 1)
	as := w.Tenure
	as.unsure = true
	s.done()
	s.serve(w, s.tenure(&fairTerms), s.now)
	if !slices.Contains(s.gives(), as) {
		t.Error("its question may bring it into the queue, and nobody takes it out")
	}
	if _, r := w.line.NextBeat(s.now); !slices.Equal(r.waiters(), []*Waiter{other}) {
		t.Errorf("%+v", r)
	}
}

// A waiter whose entry came to an error asks itself.
func TestNotEntered(t *testing.T) {
	s := newStage(t)
	s.asks(s.stand(&fairTerms, 1))
	w, gone := s.stand(&fairTerms, 2), s.stand(&fairTerms, 3)
	_, r := w.line.NextBeat(s.now)
	s.GiveUp(gone, gone.Tenure)
	s.Quit(gone, s.now)
	s.done()
	w.line.Beaten(r, errBroke)
	for _, q := range r.Waiters {
		s.NotEntered(q, true, errBroke)
	}
	if s.next(w).Do != Ask || !w.Tenure.Unsure() {
		t.Error("it does not ask")
	}
	if !slices.Contains(s.gives(), r.Waiters[1].As) {
		t.Error("an entry that may have been carried out is not taken back")
	}
}

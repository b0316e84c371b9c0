package place

import (
	"testing"
	"time"
)

// What the model found (directory model of the repository).

// inherited has a release offer the ticket of a line to its first waiter, whose question for it
// has no answer yet.
func (s *stage) inherited() (w *Waiter, ticket *Tenure) {
	s.Helper()
	t, h := s.take(&plainTerms, 1)
	w = s.stand(&plainTerms, 2)
	s.pass(pollTime)
	s.Line(&plainTerms).Alarm()
	ticket = s.asks(w)
	s.Unlock(t, h, s.now, func(*Tenure) bool { return false })
	if _, heir := s.Heir(t, offerTime, 10*pollTime, time.Time{}); heir != ticket {
		s.Fatal("the ticket is not the heir")
	}
	if !s.Inherit(ticket, Inheritance{Done: true, Token: 200, Sent: s.now}, s.now) {
		s.Fatal("the ticket is not offered")
	}
	s.Unhold(t)
	return w, ticket
}

// A question that finds the offer run out at the server is granted the lock anew, perhaps after
// other processes had it. Its answer can come before anybody here has seen the end of the offer,
// as in a process that was stopped. The hold has the token of that answer: the token of the
// offer would be less than that of a holder that has already given the lock back.
func TestGranted_theTokenOfTheAnswer(t *testing.T) {
	s := newStage(t)
	w, ticket := s.inherited()
	s.pass(offerTime + time.Second)
	h := new(Hold)
	if out := s.Granted(w, ticket, w.Owner, h, 300, false, s.now); out != Holds {
		t.Fatalf("outcome %d", out)
	}
	if got := ticket.Token(); got != 300 {
		t.Errorf("token %d, want that of the answer, 300: another process may have had 250", got)
	}
}

// A question that was under way when its tenure was lost can put the tenure into the queue, after
// what the loss left was given back. A release would give the lock to nobody, for an offer.
func TestRefused_afterItsTenureWasLost(t *testing.T) {
	s := newStage(t)
	w, ticket := s.inherited()
	s.End(ticket, Lost)
	s.Unhold(ticket)
	s.done() // the session gives back what the loss left, and Redis confirms that
	s.Refused(w, ticket, Refusal{Sent: s.now, Left: -1, Trace: true}, s.now)
	if got := s.gives(); len(got) != 1 || got[0] != ticket {
		t.Errorf("given back: %d tenures; the queue has one that is over", len(got))
	}
}

// The answer to a release can come after the heir was granted the lock by its own question, gave
// it back, and it was passed on. What the earlier tenure of that owner string had is the next
// holder's now: to give it back would stop the lease of a holder.
func TestInherit_afterTheHeirPassedItOn(t *testing.T) {
	s := newStage(t)
	tenure, h := s.take(&plainTerms, 1)
	w := s.stand(&plainTerms, 2)
	s.stand(&plainTerms, 3)
	s.Unlock(tenure, h, s.now, func(*Tenure) bool { return false })
	_, heir := s.Heir(tenure, offerTime, 10*pollTime, time.Time{})
	s.pass(pollTime)
	s.Line(&plainTerms).Alarm()
	if asked := s.asks(w); asked != heir {
		t.Fatal("it asks in another name")
	}
	first := new(Hold)
	if out := s.Granted(w, heir, w.Owner, first, 200, false, s.now); out != Holds {
		t.Fatalf("outcome %d", out)
	}
	s.Quit(w, s.now)
	s.pass(stepTime)
	next := s.give(first)
	if next == nil || !next.Lives() {
		t.Fatal("it is not passed on")
	}
	s.done()
	s.Inherit(heir, Inheritance{Done: true, Token: 150, Sent: s.now}, s.now) // the answer to the release, at last
	if got := s.gives(); len(got) != 0 {
		t.Errorf("the tenure that passed the lock on is given back, and with it the lease of the next")
	}
}

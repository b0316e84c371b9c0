package place

import "testing"

// A waiter of a line that queues has left the line when its question is answered by a grant. The grant is its owner's all
// the same, and the line, which another waiter may be in, keeps what it has.
func TestAdopt_afterItsWaiterLeft(t *testing.T) {
	s := newStage(t)
	s.stand(&fairTerms, 1)
	w := s.stand(&fairTerms, 2)
	w.reason = true // it was told of its turn
	asked := s.asks(w)
	s.Quit(w, s.now)
	if w.line != nil {
		t.Fatal("it is in the line still")
	}
	if out := s.Granted(w, asked, w.Owner, new(Hold), 100, false, s.now); out != Holds || w.Owner.Tenure() != asked {
		t.Errorf("%d, and its owner has %+v", out, w.Owner.Tenure())
	}
}

// Where the waiters queue in Redis, Redis tells the next that the lock is let go: nobody here is woken for nothing.
func TestUnhold_ofALineThatQueues(t *testing.T) {
	s := newStage(t)
	held, _ := s.take(&fairTerms, 1)
	w := s.stand(&fairTerms, 2)
	s.queues(w, Refusal{Left: -1})
	s.done()
	s.Unhold(held)
	if woken := s.wakes(); len(woken) > 0 || s.side(false).held != nil {
		t.Errorf("%d waiters are woken, and %+v has the lock", len(woken), s.side(false).held)
	}
}

// A reader leaves a tenure that others share, and reads on in one of its own. The end of the first leaves it the second.
func TestEnd_leavesTheOwnersNextTenure(t *testing.T) {
	s := newStage(t)
	first, h := s.reads(&readTerms, 1)
	if !s.joins(&readTerms, 2) {
		t.Fatal("the tenure is not shared")
	}
	owner := h.By
	if remains, _ := s.Unlock(first, h, s.now, nil); remains != SharersHold {
		t.Fatalf("%d holds remain", remains)
	}
	s.pass(2 * ShareTime)
	second, _ := s.reads(&readTerms, 1)
	if second == first || second.owner.Number != owner.Number {
		t.Fatal("it has no tenure of its own")
	}
	first.owner = second.owner // its memory may be used again
	s.End(first, Lost)
	if second.owner.Tenure() != second {
		t.Error("it has lost a tenure that is not over")
	}
}

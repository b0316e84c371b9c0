package place

import (
	"testing"
	"time"
)

// A waiter of a line that queues has left the line when its question is answered by a grant. The grant is its owner's all
// the same, and the line, which another waiter may be in, keeps what it has.
func TestAdopt_afterItsWaiterLeft(t *testing.T) {
	for _, alone := range []bool{false, true} {
		s := newStage(t)
		other, w := s.stand(&fairTerms, 1), s.stand(&fairTerms, 2)
		w.reason = true // it was told of its turn
		asked := s.asks(w)
		if alone {
			s.Quit(other, s.now)
		}
		s.Quit(w, s.now)
		if w.line != nil {
			t.Fatal("it is in the line still")
		}
		if out := s.Granted(w, asked, w.Owner, new(Hold), 100, false, s.now); out != Holds || w.Owner.Tenure() != asked {
			t.Errorf("%d, and its owner has %+v", out, w.Owner.Tenure())
		}
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

// A grant that was given back is an answer. The tenure is in doubt if Redis did not confirm that, and readers that wait for the answer
// hear of the error.
func TestGaveBack(t *testing.T) {
	for _, confirmed := range []bool{false, true} {
		s := newStage(t)
		w := s.reader(&readTerms, 1)
		asked := s.asks(w)
		rider := s.reader(&readTerms, 2)
		s.next(rider)
		s.GaveBack(w, asked, confirmed, errBroke)
		if asked.pending != 0 || asked.Unsure() == confirmed {
			t.Errorf("confirmed %t: %d answers are missing, and unsure is %t", confirmed, asked.pending, asked.Unsure())
		}
		if step := s.next(rider); step.Do != Fail || step.Err != errBroke {
			t.Errorf("confirmed %t: %+v", confirmed, step)
		}
	}
}

// A call for several locks that is the first of its line asks again after an error, when that is due.
func TestRetry_aCallForSeveral(t *testing.T) {
	s := newStage(t)
	w := s.waiter(&plainTerms, 1)
	s.Join(w, OnlyAsks, s.now)
	s.next(w)
	s.Waits(w, Refusal{Sent: s.now, Left: -1}, s.now)
	s.Retry(w, s.now.Add(time.Millisecond))
	if step := s.next(w); step.Do != Wait || step.Due != s.now.Add(time.Millisecond) {
		t.Errorf("%+v", step)
	}
}

// A reader whose owner writes is let in whatever others wait for: its answer says nothing about them. They join as before.
func TestLand_besideAWrite(t *testing.T) {
	s := newStage(t)
	open, _ := s.reads(&readTerms, 1)
	written, _ := s.take(&writeTerms, 9)
	w := s.reader(&readTerms, 9)
	w.reason = true
	if step := s.Next(w, written, opTime, s.now); step.Do != Ask {
		t.Fatalf("%+v", step)
	}
	s.Asks(w.Tenure, leaseTime, leaseTime)
	if out := s.Granted(w, w.Tenure, w.Owner, w.Seat, 101, false, s.now); out != Holds {
		t.Fatal(out)
	}
	if s.Open(&readTerms, s.now, s.now) != open {
		t.Error("nobody joins any more")
	}
}

// A question is under way once, however it ended: when its reader writes, and asks again beside that, no other is taken for it.
func TestLand_once(t *testing.T) {
	s := newStage(t)
	w := s.reader(&readTerms, 1)
	asked := s.asks(w)
	s.Refused(w, asked, Refusal{Sent: s.now, Left: -1, Trace: true}, s.now)
	w.reason = true
	if step := s.Next(w, s.tenure(&writeTerms), opTime, s.now); step.Do != Ask {
		t.Fatalf("%+v", step)
	}
	s.Asks(asked, leaseTime, leaseTime)
	s.Refused(w, asked, Refusal{Sent: s.now, Left: -1, Trace: true}, s.now)
	if s.sides[1].trips != 0 {
		t.Errorf("%d questions are under way", s.sides[1].trips)
	}
}

// A reader that came in with another knows that Redis answered.
func TestCameIn_hears(t *testing.T) {
	s := newStage(t)
	w := s.reader(&readTerms, 1)
	s.asks(w)
	rider := s.reader(&readTerms, 2)
	s.next(rider)
	s.pass(time.Second)
	s.CameIn(rider, s.now)
	if d, _ := rider.Line().Silence().Lasts(s.now, opTime); d != 0 {
		t.Errorf("Redis is silent for %v", d)
	}
}

// The next waiter of a line that does not listen asks at once, so that it begins to, also if the line was to ask later, after an error.
func TestGranted_theNextAsks(t *testing.T) {
	s := newStage(t)
	first, second := s.stand(&plainTerms, 1), s.stand(&plainTerms, 2)
	ticket := s.asks(first)
	s.Broke(first, ticket, false, errBroke)
	s.Retry(first, s.now.Add(time.Second))
	first.line.Hint()
	if s.asks(first) != ticket {
		t.Fatal("it asks under another name")
	}
	if out := s.Granted(first, ticket, first.Owner, new(Hold), 100, false, s.now); out != Holds {
		t.Fatal(out)
	}
	s.Quit(first, s.now)
	s.Unhold(ticket)
	second.line.when.hinted = false
	if step := s.next(second); step.Do != Ask {
		t.Errorf("%+v", step)
	}
}

package place

import (
	"slices"
	"strconv"
	"testing"
	"time"
)

// stage is one place at one time, for tests of a single rule.
type stage struct {
	*testing.T
	Place
	now   time.Time
	named int
}

func newStage(t *testing.T) *stage {
	s := &stage{T: t, now: time.Unix(1_800_000_000, 0)}
	s.Init(&Rules{Lease: leaseTime, Poll: pollTime, Ticket: func(_ *Place, c *Terms, _ time.Time) *Tenure { return s.tenure(c) }}, nil)
	return s
}

func (s *stage) tenure(c *Terms) *Tenure {
	s.named++
	t := &Tenure{Terms: c, Name: "p:" + strconv.Itoa(s.named), Came: s.now}
	if c.MayShare() {
		t.Turn = make(chan struct{}, 1)
	}
	return t
}

// pass has some time pass.
func (s *stage) pass(d time.Duration) { s.now = s.now.Add(d) }

// owner returns an owner with this number.
func (s *stage) owner(c *Terms, number uint64) *Owner { return s.Enter(c.Reads, number) }

// take has an owner take the lock, without waiting.
func (s *stage) take(c *Terms, number uint64) (*Tenure, *Hold) {
	s.Helper()
	t, h := s.tenure(c), new(Hold)
	s.Asks(t, c.Lease, 0)
	if out := s.Granted(nil, t, s.owner(c, number), h, 100, false, s.now); out != Holds {
		s.Fatalf("the lock was not taken: %d", out)
	}
	return t, h
}

// reader has an owner come to read, and wait.
func (s *stage) reader(c *Terms, number uint64) *Waiter {
	w := s.waiter(c, number)
	w.Tenure, w.Seat = s.tenure(c), new(Hold)
	s.Join(w, s.now)
	s.WaitToRead(w, false)
	return w
}

func (s *stage) waiter(c *Terms, number uint64) *Waiter {
	w := s.Waiter(c, false)
	w.Wake, w.Terms, w.Owner = make(chan struct{}, 1), c, s.owner(c, number)
	return w
}

// stand has an owner wait in line.
func (s *stage) stand(c *Terms, number uint64) *Waiter {
	w := s.waiter(c, number)
	if !c.Tickets() {
		w.Tenure = s.tenure(c)
	}
	s.Join(w, s.now)
	return w
}

// tries has an owner make one attempt, which stands in line.
func (s *stage) tries(c *Terms, number uint64) *Waiter {
	w := s.waiter(c, number)
	w.once = true
	s.Join(w, s.now)
	return w
}

// next returns what the call of w does now.
func (s *stage) next(w *Waiter) Step { return s.Next(w, nil, opTime, s.now) }

// asks lets w ask now.
func (s *stage) asks(w *Waiter) *Tenure {
	s.Helper()
	step := s.next(w)
	if step.Do != Ask {
		s.Fatalf("it does not ask: %+v", step)
	}
	s.Asks(step.Tenure, w.Terms.Lease, w.Terms.WaiterTimeout)
	return step.Tenure
}

// refused lets w ask, and refuses it.
func (s *stage) refused(w *Waiter) *Tenure {
	s.Helper()
	t := s.asks(w)
	s.Refused(w, t, Refusal{Sent: s.now, Left: -1, Trace: true}, s.now)
	return t
}

// done returns the actions of the place, and carries them out.
func (s *stage) done() (all []Action) {
	s.Drain(func(a Action) { all = append(all, a) })
	return all
}

// did reports whether the actions of the place include v.
func (s *stage) did(v Verb) bool {
	return slices.ContainsFunc(s.done(), func(a Action) bool { return a.Verb == v })
}

// gives returns the tenures to give back now.
func (s *stage) gives() (all []*Tenure) {
	for _, a := range s.done() {
		if a.Verb == GiveBack {
			all = append(all, a.Tenure)
		}
	}
	return all
}

// wakes returns the waiters to wake now.
func (s *stage) wakes() (all []*Waiter) {
	for _, a := range s.done() {
		if a.Verb == Wake {
			all = append(all, a.Waiter)
		}
	}
	return all
}

// give gives a hold back, and passes the lock on if it may.
func (s *stage) give(h *Hold) (next *Tenure) {
	t := h.Tenure
	s.Unlock(t, h, s.now, func(t *Tenure) bool {
		next = new(Tenure)
		next.Follows(t)
		s.PassTo(t, next)
		return true
	})
	return next
}

// unheard delivers a grant for which w no longer waits, and gives it back if the place does not.
func (s *stage) unheard(w *Waiter, t *Tenure) {
	if s.Unheard(w, t, true) {
		s.giveBack(t)
	}
}

package lockstate

import (
	"slices"
	"strconv"
	"testing"
	"time"
)

// stage is one state at one time, for tests of a single rule.
type stage struct {
	*testing.T
	Lock
	now   time.Time
	named int
}

func newStage(t *testing.T) *stage {
	s := &stage{T: t, now: time.Unix(1_800_000_000, 0)}
	s.Init(&Rules{Lease: leaseTime, Poll: pollTime, OpTimeout: opTime}, makerFunc(s.acquisition))
	return s
}

// makerFunc is a Maker that calls the function.
type makerFunc func(*Terms) *Acquisition

func (m makerFunc) NewAcquisition(c *Terms, _ time.Time) *Acquisition { return m(c) }

func (s *stage) acquisition(c *Terms) *Acquisition {
	s.named++
	t := &Acquisition{Terms: c, Name: "p:" + strconv.Itoa(s.named), Came: s.now}
	if c.MayShare() {
		t.Turn = make(chan struct{}, 1)
	}
	return t
}

// pass lets time pass.
func (s *stage) pass(d time.Duration) { s.now = s.now.Add(d) }

// owner returns an owner with this number.
func (s *stage) owner(c *Terms, number uint64) *Owner { return s.Enter(c.Reads, number, true) }

// take makes an owner acquire the lock, without waiting.
func (s *stage) take(c *Terms, number uint64) (*Acquisition, *Hold) {
	s.Helper()
	t, h := s.acquisition(c), new(Hold)
	s.WillSend(t, c.Lease, 0)
	if out := s.Granted(new(Waiter), t, s.owner(c, number), h, 100, false, s.now); out != Holds {
		s.Fatalf("the lock was not taken: %d", out)
	}
	return t, h
}

// reader makes an owner wait to read.
func (s *stage) reader(c *Terms, number uint64) *Waiter {
	w := s.Join(c, s.owner(c, number), s.now)
	w.Prepared = new(Hold)
	return w
}

// stand makes an owner wait in the queue.
func (s *stage) stand(c *Terms, number uint64) *Waiter { return s.Join(c, s.owner(c, number), s.now) }

// tries makes an owner try once, in the queue.
func (s *stage) tries(c *Terms, number uint64) *Waiter {
	w := s.Join(c, s.owner(c, number), s.now)
	w.once = true
	return w
}

// next returns what the call of w does now.
func (s *stage) next(w *Waiter) Step { return s.Next(w, s.now) }

// asks lets w send a request now.
func (s *stage) asks(w *Waiter) *Acquisition {
	s.Helper()
	step := s.next(w)
	if step.Do != Send {
		s.Fatalf("it does not ask: %+v", step)
	}
	s.WillSend(step.Acquisition, w.Terms.Lease, w.Terms.WaiterTimeout)
	return step.Acquisition
}

// refused lets w send a request, and refuses it.
func (s *stage) refused(w *Waiter) *Acquisition {
	s.Helper()
	t := s.asks(w)
	s.Refused(w, t, Refusal{Sent: s.now, Left: -1, Trace: true}, s.now)
	return t
}

// done applies the effects of the state, and returns them.
func (s *stage) done() (all []Effect) {
	s.Drain(func(a Effect) { all = append(all, a) })
	return all
}

// did reports whether the effects of the state include v.
func (s *stage) did(v EffectKind) bool {
	return slices.ContainsFunc(s.done(), func(a Effect) bool { return a.Kind == v })
}

// wantDid fails the test unless the effects of the state include v.
func (s *stage) wantDid(v EffectKind, otherwise string) {
	s.Helper()
	if !s.did(v) {
		s.Error(otherwise)
	}
}

// wantNotDid fails the test if the effects of the state include v.
func (s *stage) wantNotDid(v EffectKind, otherwise string) {
	s.Helper()
	if s.did(v) {
		s.Error(otherwise)
	}
}

// wantBeat fails the test unless the next heartbeat of l is due then.
func (s *stage) wantBeat(l *Queue, due time.Time) {
	s.Helper()
	if got, _ := l.nextBeat(s.now); got != due {
		s.Errorf("the next heartbeat is due in %v, want %v", got.Sub(s.now), due.Sub(s.now))
	}
}

// gives returns the acquisitions to release now.
func (s *stage) gives() (all []*Acquisition) {
	for _, a := range s.done() {
		if a.Kind == Release {
			all = append(all, a.Acquisition)
		}
	}
	return all
}

// wakes returns the waiters to wake now.
func (s *stage) wakes() (all []*Waiter) {
	for _, a := range s.done() {
		if a.Kind == Wake {
			all = append(all, a.Waiter)
		}
	}
	return all
}

// give releases a hold, and hands the lock off if possible.
func (s *stage) give(h *Hold) (next *Acquisition) {
	t := h.Acquisition
	s.Unlock(t, h, s.now, func(t *Acquisition) bool {
		next = new(Acquisition)
		next.Follows(t)
		s.HandOffTo(t, next)
		return true
	})
	return next
}

// unheard delivers a grant that w no longer waits for, and releases it if the state does not.
func (s *stage) unheard(w *Waiter, t *Acquisition) {
	if s.LateReply(w, t, true) {
		s.release(t)
	}
}

// wantNext fails the test unless the call of w does this now.
func (s *stage) wantNext(w *Waiter, do Do, otherwise ...string) {
	s.Helper()
	if step := s.next(w); step.Do != do {
		s.Errorf("%q: %+v, want %d", otherwise, step, do)
	}
}

// wantWait fails the test unless the call of w waits until due, or without limit if due is zero.
func (s *stage) wantWait(w *Waiter, due time.Time) {
	s.Helper()
	if step := s.next(w); step.Do != Wait || !step.Due.Equal(due) {
		s.Errorf("%+v, want a wait until %v", step, due)
	}
}

// wantWakes fails the test unless exactly these waiters are woken now.
func (s *stage) wantWakes(want ...*Waiter) {
	s.Helper()
	if all := s.wakes(); !slices.Equal(all, want) {
		s.Errorf("%d are woken, want %d", len(all), len(want))
	}
}

// wantRound fails the test unless the next round of l is for exactly these waiters.
func (s *stage) wantRound(l *Queue, want ...*Waiter) {
	s.Helper()
	if _, all := l.nextBeat(s.now); !slices.Equal(all, want) {
		s.Errorf("a round for %d waiters, want %d", len(all), len(want))
	}
}

// granted grants t to w, which has it as h then.
func (s *stage) granted(w *Waiter, t *Acquisition, h *Hold, token uint64) {
	s.Helper()
	if out := s.Granted(w, t, w.Owner, h, token, false, s.now); out != Holds {
		s.Fatalf("outcome %d", out)
	}
}

// wantStep fails the test unless the call of w does this with t now.
func (s *stage) wantStep(w *Waiter, do Do, t *Acquisition) {
	s.Helper()
	if step := s.next(w); step.Do != do || step.Acquisition != t {
		s.Errorf("%+v, want %d", step, do)
	}
}

// wantGives fails the test unless exactly these acquisitions are to be released now.
func (s *stage) wantGives(want ...*Acquisition) {
	s.Helper()
	if all := s.gives(); !slices.Equal(all, want) {
		s.Errorf("%v are released, want %v", all, want)
	}
}

// onStages runs a subtest for each case, on a new stage.
func onStages[C any](t *testing.T, cases map[string]C, f func(s *stage, c C)) {
	t.Helper()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { f(newStage(t), c) })
	}
}

package place

import (
	"errors"
	"slices"
	"testing"
	"time"
)

// Only the first of a line asks. The next asks when the first has left.
func TestFirstAsks(t *testing.T) {
	s := newStage(t)
	w, behind := s.stand(&writeTerms, 1), s.stand(&writeTerms, 2)
	if !w.First() || behind.First() || !w.Leads() || behind.Leads() || s.Line(&writeTerms) != w.Line() || w.Since() != s.now {
		t.Fatal("the first is not the first")
	}
	s.refused(w)
	if step := s.next(behind); step.Do != Wait || !step.Due.IsZero() {
		t.Errorf("%+v", step)
	}
	s.done()
	w.line.Hint()
	if all := s.wakes(); !slices.Equal(all, []*Waiter{w}) {
		t.Errorf("%d are woken", len(all))
	}
	s.Quit(behind, s.now)
	if s.wakes() != nil || !w.First() {
		t.Error("a waiter is woken as the last one leaves")
	}
	behind = s.stand(&writeTerms, 2)
	s.Quit(w, s.now)
	if all := s.wakes(); !slices.Equal(all, []*Waiter{behind}) {
		t.Errorf("%d are woken", len(all))
	}
	if step := s.next(behind); step.Do != Ask { // the hint is for the next
		t.Errorf("%+v", step)
	}
	s.Quit(behind, s.now)
	if s.Line(&writeTerms) != nil {
		t.Error("a line is left without waiters")
	}
	s.Quit(new(Waiter), s.now) // this waiter stands in no line
}

// A line whose process has the lock asks in time all the same: the process may have lost it
// without knowing.
func TestArm(t *testing.T) {
	scene := func(t *testing.T) (*stage, *Tenure, *Hold, *Waiter) {
		s := newStage(t)
		held, h := s.take(&plainTerms, 1)
		return s, held, h, s.stand(&plainTerms, 2)
	}
	s, held, _, w := scene(t)
	all := s.done()
	if len(all) != 1 || all[0].Verb != Arm || all[0].Due != s.now.Add(pollTime) {
		t.Fatalf("%+v", all)
	}
	if w.Leads() || s.next(w).Do != Wait {
		t.Error("it asks for what its process has")
	}
	s.stand(&plainTerms, 3)
	if s.done() != nil {
		t.Error("a second alarm is set")
	}
	s.pass(pollTime)
	w.line.when.askAt = s.now.Add(pollTime) // the line was refused before
	w.line.Alarm()
	if !slices.Equal(s.wakes(), []*Waiter{w}) || s.next(w).Do != Ask {
		t.Error("it does not ask")
	}
	s.Asks(w.line.hand.ticket, 0, 0)
	s.Refused(w, w.line.hand.ticket, Refusal{Sent: s.now, Left: -1}, s.now)
	s.done()
	w.line.Alarm()
	if s.done() != nil || s.next(w).Do != Wait {
		t.Error("it asks twice")
	}
	s.Quit(w, s.now)
	if all := s.done(); len(all) != 1 || all[0].Verb != Arm || w.line.waiters[0].Leads() {
		t.Errorf("%+v", all)
	}
	s.Unhold(held)
	if len(s.wakes()) != 1 || !w.line.waiters[0].Leads() {
		t.Error("the lock has no holder, and the first does not know")
	}
	s.Unhold(held)
	if s.done() != nil {
		t.Error("it is told twice")
	}

	s, held, _, w = scene(t)
	w.line.Alarm()
	s.refused(w)
	s.done()
	if s.Unhold(held); s.done() != nil {
		t.Error("a waiter that asks already is told that it may ask")
	}

	s, held, _, w = scene(t)
	l := w.line
	s.Quit(w, s.now)
	s.done()
	if l.Alarm(); s.done() != nil || !l.Ended() {
		t.Error("the alarm of a line that ended does something")
	}
	if l.Hint(); s.done() != nil {
		t.Error("a message to a line that ended does something")
	}
	if again := s.stand(&plainTerms, 3); again.line == l {
		t.Error("an alarm may come yet for the line that is used again")
	}
	if s.done(); held.Lives() != true {
		t.Error("it is over")
	}
}

// Places use a line again only if nothing else can know of it.
func TestLine_usedAgain(t *testing.T) {
	for name, test := range map[string]struct {
		c       *Terms
		change  func(*stage, *Waiter)
		deafens bool
		beats   bool
		again   bool
	}{
		"nobody knows of it":      {&writeTerms, func(s *stage, w *Waiter) { s.Broke(w, s.asks(w), false, nil) }, false, false, true},
		"a question is under way": {&writeTerms, func(s *stage, w *Waiter) { s.asks(w) }, false, false, false},
		"the session has something of it": {&writeTerms, func(s *stage, w *Waiter) {
			s.Broke(w, s.asks(w), false, nil)
			w.line.Ears = 1
		}, false, false, false},
		"it listened":        {&writeTerms, func(s *stage, w *Waiter) { s.refused(w) }, true, false, false},
		"it had a heartbeat": {&fairTerms, func(s *stage, w *Waiter) { s.refused(w) }, true, true, false},
	} {
		use := func(t *testing.T) (again bool) {
			s := newStage(t)
			w := s.stand(test.c, 1)
			l := w.line
			l.when.hinted, l.when.pace = true, 1
			test.change(s, w)
			s.done()
			s.Quit(w, s.now)
			var verbs []Verb
			for _, a := range s.done() {
				verbs = append(verbs, a.Verb)
			}
			if slices.Contains(verbs, Deafen) != test.deafens || slices.Contains(verbs, Beat) != test.beats {
				t.Errorf("%v", verbs)
			}
			if !l.Ended() {
				t.Error("it has not ended")
			}
			w = s.waiter(test.c, 2)
			again = w == &l.only
			s.Join(w, s.now)
			if (w.line == l) != again || w.line.when.pace != s.rules.Poll || w.line.when.hinted || w.queued.as != nil {
				t.Errorf("%+v", w.line)
			}
			return again
		}
		t.Run(name, func(t *testing.T) {
			again := use(t)
			for i := 0; test.again && !again && i < 50; i++ {
				again = use(t) // under the race detector a sync.Pool forgets some of what it has
			}
			if again != test.again {
				t.Errorf("the memory is used again: %t", again)
			}
		})
	}
	t.Run("two lines", func(t *testing.T) {
		s := newStage(t)
		w, other := s.stand(&readTerms, 1), s.stand(hastyTerms, 2)
		if w.line == other.line || s.Line(hastyTerms) != other.line {
			t.Error("they stand in one line")
		}
		s.Quit(w, s.now)
		s.Quit(other, s.now)
		if s.stand(&readTerms, 3).line == s.stand(hastyTerms, 4).line {
			t.Error("one line is used twice")
		}
	})
}

// An attempt that does not wait stands behind those that wait, if one owner has the lock at a
// time.
func TestTry(t *testing.T) {
	try := func(s *stage, c *Terms, number uint64) (*Waiter, bool) {
		w := s.Waiter(c, true)
		w.Terms, w.Owner, w.Tenure = c, s.owner(c, number), s.tenure(c)
		return w, s.Try(w, s.now)
	}
	for name, c := range map[string]*Terms{"plain": &plainTerms, "write": &writeTerms} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			w, may := try(s, c, 1)
			if !may || s.next(w).Do != Ask {
				t.Fatal("it does not ask")
			}
			if behind, may := try(s, c, 2); may || behind.First() {
				t.Error("it passes another")
			}
			s.refused(w)
			if l := w.line; l.listens || !l.when.askAt.IsZero() || l.silence.from != (time.Time{}) {
				t.Errorf("the next relies on its answer: %+v", l)
			}
		})
	}
	for name, c := range map[string]*Terms{"read": &readTerms, "fair": &fairTerms} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.refused(s.stand(c, 1))
			w, may := try(s, c, 2)
			if !may || w.line != nil || !w.Leads() || w.First() {
				t.Fatal("it stands in line")
			}
			if s.next(w).Do != Ask {
				t.Error("it does not ask")
			}
		})
	}
}

// The first of a line asks when something happened, when the other's lease is over, and at
// least once in a poll interval.
func TestRefused_whenToAsk(t *testing.T) {
	for name, test := range map[string]struct {
		c    *Terms
		left time.Duration
		due  time.Duration
	}{
		"the lease ends before":    {&plainTerms, 300 * time.Millisecond, 301 * time.Millisecond},
		"the lease has ended":      {&plainTerms, 0, time.Millisecond},
		"the lease ends later":     {&plainTerms, time.Hour, pollTime},
		"there is no lease":        {&plainTerms, -1, pollTime},
		"its trace lives for less": {with(writeTerms, func(c *Terms) { c.WaiterTimeout = 600 * time.Millisecond }), -1, 200 * time.Millisecond},
		"its trace lives for more": {&writeTerms, -1, pollTime},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			w := s.stand(test.c, 1)
			asked := s.asks(w)
			s.pass(time.Millisecond)
			s.Refused(w, asked, Refusal{Sent: s.now, Left: test.left}, s.now)
			if all := s.done(); len(all) != 1 || all[0].Verb != Listen || all[0].Sent != s.now || all[0].Terms != test.c || !w.line.Listens() {
				t.Errorf("%+v", all)
			}
			if step := s.next(w); step.Do != Wait || step.Due != s.now.Add(test.due) {
				t.Errorf("%+v", step)
			}
			w.line.Hint()
			if s.next(w).Do != Ask {
				t.Error("it does not ask after a hint")
			}
			if s.next(w).Do != Wait {
				t.Error("it asks twice after a hint")
			}
			s.pass(test.due)
			if s.next(w).Do != Ask {
				t.Error("it does not ask in time")
			}
			s.Refused(w, asked, Refusal{Sent: s.now, Left: test.left}, s.now)
			if s.did(Listen) {
				t.Error("it listens twice")
			}
		})
	}
}

// A process that no message reaches asks more and more seldom, and then from the beginning;
// after some poll intervals, once in each.
func TestRefused_deaf(t *testing.T) {
	s := newStage(t)
	w := s.stand(&plainTerms, 1)
	first := s.asks(w)
	deaf := Refusal{Sent: s.now, Left: -1, Deaf: true}
	s.Refused(w, first, deaf, s.now)
	if step := s.next(w); step.Due != s.now.Add(pollTime) {
		t.Errorf("it cannot hear anything yet, and asks again at %v", step.Due)
	}
	asks := func() time.Duration {
		s.Asks(first, 0, 0)
		s.Refused(w, first, deaf, s.now)
		return s.next(w).Due.Sub(s.now)
	}
	var pauses []time.Duration
	for range 9 {
		pauses = append(pauses, asks()/time.Millisecond)
	}
	if want := []time.Duration{10, 20, 40, 80, 160, 320, 640, 10, 20}; !slices.Equal(pauses, want) {
		t.Errorf("it asks again after %d ms, not %d", pauses, want)
	}
	w.line.Hint()
	if step := s.next(w); step.Again != 40*time.Millisecond {
		t.Errorf("Redis hears that it asks again after %v", step.Again)
	}
	deaf.Deaf = false
	asks()
	deaf.Deaf = true
	for _, want := range []time.Duration{10, 20} {
		if d := asks(); d != want*time.Millisecond {
			t.Errorf("a message reached it, and it asks again after %v", d)
		}
	}
	s.now = w.since.Add(DeafPolls*pollTime - 1)
	if d := asks(); d != 40*time.Millisecond {
		t.Error(d)
	}
	s.pass(1)
	for range 2 {
		if d := asks(); d != pollTime {
			t.Error(d)
		}
	}
	w.line.Hint()
	if step := s.next(w); step.Again != pollTime {
		t.Errorf("Redis hears that it asks again after %v", step.Again)
	}
	deaf.Deaf = false
	asks()
	w.line.Hint()
	if step := s.next(w); step.Again != pollTime {
		t.Errorf("Redis hears that it asks again after %v", step.Again)
	}
	if w.line.Pace() != pollTime {
		t.Error(w.line.Pace())
	}
}

// While others come first, a line asks neither at a hint nor at its own time. It asks when their time is over.
func TestStepAside(t *testing.T) {
	scene := func(t *testing.T, left time.Duration) (*stage, *Waiter) {
		s := newStage(t)
		w := s.stand(&plainTerms, 1)
		s.Refused(w, s.asks(w), Refusal{Sent: s.now, Left: left}, s.now)
		return s, w
	}
	s, w := scene(t, -1)
	until := s.now.Add(asideTime)
	w.line.StepAside(until)
	w.line.Hint()
	if step := s.next(w); step.Do != Wait || step.Due != until {
		t.Fatalf("%+v", step)
	}
	s.pass(asideTime)
	if s.next(w).Do != Ask {
		t.Error("it does not ask then")
	}

	s, w = scene(t, asideTime/2)
	due := s.now.Add(asideTime/2 + time.Millisecond)
	w.line.StepAside(s.now.Add(asideTime))
	if step := s.next(w); step.Due != due {
		t.Errorf("%+v", step)
	}
	s.pass(due.Sub(s.now))
	w.line.StepAside(s.now.Add(asideTime))
	if s.next(w).Do != Ask {
		t.Error("a question that is due is put off")
	}

	s, w = scene(t, -1)
	w.line.StepAside(s.now.Add(asideTime))
	w.line.Told()
	if s.next(w).Do != Ask {
		t.Error("it was told that it may have the lock, and does not ask")
	}
}

// After a process lets the lock go for others, its line steps aside. If there is none, the next line
// does.
func TestLetGo(t *testing.T) {
	s := newStage(t)
	until := s.now.Add(asideTime)
	if !s.Idle(s.now) || !s.Forgotten() {
		t.Fatal("a new place is in use")
	}
	s.LetGo(&plainTerms, until)
	if s.Idle(until.Add(-1)) || !s.Idle(until) || !s.Unused() {
		t.Error("it is idle")
	}
	w := s.stand(&plainTerms, 1)
	if step := s.next(w); step.Do != Wait || step.Due != until {
		t.Errorf("%+v", step)
	}
	s.pass(asideTime)
	s.LetGo(&plainTerms, s.now.Add(asideTime))
	w.line.Hint()
	if w.line.when.aside != s.now.Add(asideTime) || s.side(false).letGo != (time.Time{}) {
		t.Error("the line does not know")
	}
	o := w.Owner
	s.Quit(w, s.now)
	o.Leave()
	s.LetGo(&plainTerms, s.now.Add(asideTime))
	s.LetGo(&readTerms, s.now.Add(2*asideTime))
	if s.Idle(s.now.Add(asideTime)) {
		t.Error("one side is forgotten")
	}
	s.Close()
	if s.Reset(); !s.Idle(s.now) || s.IsClosed() {
		t.Error("it is not as new")
	}
}

// All readers of a line ask when one gets in, and each reader asks when it comes, until one is
// refused.
func TestAllAsk(t *testing.T) {
	s := newStage(t)
	first := s.reader(ownLeaseTerms, 1)
	s.asks(first)
	second := s.reader(ownLeaseTerms, 2)
	asked := s.asks(second)
	s.Refused(first, first.Tenure, Refusal{Sent: s.now, Left: -1}, s.now)
	third := s.reader(ownLeaseTerms, 3)
	if s.next(third).Do != Wait {
		t.Error("it asks although another was refused")
	}
	s.done()
	if out := s.Granted(second, asked, second.Owner, &Hold{Fixed: true}, 1, false, s.now); out != Holds {
		t.Fatal(out)
	}
	if all := s.wakes(); !slices.Equal(all, []*Waiter{first, third}) {
		t.Errorf("%d are woken", len(all))
	}
	if s.next(third).Do != Ask || s.next(first).Do != Ask {
		t.Error("they do not ask")
	}
	if s.next(s.reader(ownLeaseTerms, 4)).Do != Ask {
		t.Error("a reader that comes now does not ask")
	}

	s.Retry(third, s.now.Add(time.Second))
	if step := s.next(third); step.Do != Wait || step.Due != s.now.Add(time.Second) {
		t.Errorf("%+v", step)
	}
	s.Retry(first, s.now.Add(2*pollTime))
	if step := s.next(first); step.Do != Wait || step.Due != s.now.Add(2*pollTime) || first.line.when.askAt != step.Due {
		t.Errorf("%+v", step)
	}
}

// A reader behind others of its line asks in each poll interval if a question of it broke off: a copy that comes late may
// have let it in, and writers wait for it then.
func TestAllAsk_inDoubt(t *testing.T) {
	s := newStage(t)
	first, w := s.reader(&readTerms, 1), s.reader(&readTerms, 2)
	asked := s.asks(w) // the first asks after it, so that they do not ask together
	s.Broke(w, asked, true, errBroke)
	s.Retry(w, s.now)
	s.refused(first)
	if s.refused(w) != asked || w.Leads() {
		t.Fatal("it asks as another, or for the line")
	}
	for range 3 {
		if step := s.next(w); step.Do != Wait || !step.Due.Equal(s.now.Add(pollTime)) {
			t.Fatalf("%+v", step)
		}
		s.pass(pollTime)
		if s.refused(w) != asked {
			t.Fatal("it asks as another")
		}
	}
	s.pass(pollTime)
	s.lets(w, s.asks(w)) // the copy has come
	if w.Owner.Tenure() != asked {
		t.Error("it does not hold the lock that Redis has for it")
	}

	// The first of the line asks by a hint all the same.
	s.pass(pollTime)
	s.Broke(first, s.asks(first), true, errBroke)
	s.Retry(first, s.now)
	s.refused(first)
	first.line.Hint()
	if step := s.next(first); step.Do != Ask {
		t.Errorf("the first, in doubt too: %+v", step)
	}
}

// A reader that had an error when it was not the first looks again at its own time, or at
// that of the line, whichever comes first.
func TestRetry_ofAReader(t *testing.T) {
	for own, due := range map[time.Duration]time.Duration{time.Second / 2: time.Second / 2, 2 * time.Second: time.Second} {
		s := newStage(t)
		first, w := s.reader(ownLeaseTerms, 1), s.reader(ownLeaseTerms, 2)
		s.asks(first)
		s.next(w)
		s.Retry(w, s.now.Add(own))
		s.Refused(first, first.Tenure, Refusal{Sent: s.now, Left: time.Second - time.Millisecond}, s.now)
		s.Quit(first, s.now)
		if step := s.next(w); step.Do != Wait || step.Due != s.now.Add(due) {
			t.Errorf("%+v", step)
		}
	}
}

// After an error the first asks again. If the first has left, the next asks in its place.
func TestRetry(t *testing.T) {
	s := newStage(t)
	w, behind := s.stand(&plainTerms, 1), s.stand(&plainTerms, 2)
	ticket := s.asks(w)
	s.Broke(w, ticket, false, errBroke)
	s.Retry(w, s.now.Add(time.Second))
	if step := s.next(w); step.Do != Wait || step.Due != s.now.Add(time.Second) || ticket.unsure {
		t.Errorf("%+v", step)
	}
	s.Quit(w, s.now)
	if step := s.next(behind); step.Due != s.now.Add(time.Second) {
		t.Errorf("%+v", step)
	}
}

// A free lock is a reason to ask, except for kinds where Redis tells the next waiter and for readers.
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

// When the first of a line gets the lock, the next asks at once if the line does not listen
// yet, and otherwise at its own time.
func TestFirstAsks_afterAGrant(t *testing.T) {
	for _, listens := range []bool{false, true} {
		s := newStage(t)
		w, behind := s.stand(&writeTerms, 1), s.stand(&writeTerms, 2)
		asked := s.asks(w)
		if listens {
			w.line.Listen(&writeTerms, s.now)
		}
		s.Granted(w, asked, w.Owner, new(Hold), 1, false, s.now)
		s.Quit(w, s.now)
		if step := s.next(behind); (step.Do == Ask) == listens || listens && step.Due != s.now.Add(pollTime) {
			t.Errorf("listens: %t, %+v", listens, step)
		}
	}
}

// An answer that no call waits for is a reason to ask. If the command wrote, it is a reason to settle.
func TestUnheard(t *testing.T) {
	s := newStage(t)
	w := s.stand(&plainTerms, 1)
	ticket := s.asks(w)
	s.CutOff(w, ticket)
	s.done()
	if s.Unheard(w, ticket, false) || ticket.unsure || ticket.pending != 0 || s.flying != 0 || s.done() != nil {
		t.Error("an answer that wrote nothing does something")
	}
	s.Asks(ticket, 0, 0)
	if s.Unheard(w, ticket, true) || !ticket.unsure || !slices.Equal(s.wakes(), []*Waiter{w}) || s.next(w).Do != Ask {
		t.Error("it may have the lock, and does not ask")
	}
	s.Asks(ticket, 0, 0)
	s.GiveUp(w, ticket)
	s.Quit(w, s.now)
	if s.done(); !s.Unheard(w, ticket, true) {
		t.Error("no look settles the answer")
	}

	s = newStage(t)
	own := s.tenure(&writeTerms)
	s.Asks(own, 0, 0)
	if s.Forgotten() || s.Unheard(nil, own, true) || s.done() != nil || !s.Forgotten() {
		t.Error("of a call without a place in line")
	}
	own = s.tenure(&writeTerms)
	s.Asks(own, 0, 0)
	if s.Fail(own); s.done() != nil || !s.Unheard(nil, own, true) || s.Forgotten() {
		t.Error("the tenure was given up before its answer, and no look settles it")
	}
	s.Asks(own, 0, 0)
	own.answered(&s.Place)
	if own.pending != 0 || s.flying != 0 {
		t.Error("it is counted")
	}
}

// The line knows the error that came instead of an answer.
func TestSilence(t *testing.T) {
	const overdue = 300 * time.Millisecond
	no := errors.New("no")
	type clock = func(ms int) time.Time
	for name, test := range map[string]struct {
		does  func(q *Silence, at clock)
		at    int // ms
		lasts time.Duration
		err   error
		heard bool
	}{
		"nothing was asked":                    {func(*Silence, clock) {}, 1, 0, nil, false},
		"the first question is in flight":      {func(q *Silence, at clock) { q.asks(at(0)) }, 299, 0, nil, false},
		"it is overdue":                        {func(q *Silence, at clock) { q.asks(at(0)) }, 300, overdue, nil, false},
		"it was answered":                      {func(q *Silence, at clock) { q.asks(at(0)); q.hears(at(0)) }, 400, 0, nil, true},
		"the next is in flight":                {func(q *Silence, at clock) { q.asks(at(0)); q.hears(at(0)); q.asks(at(10)) }, 309, 0, nil, true},
		"the next is overdue":                  {func(q *Silence, at clock) { q.asks(at(0)); q.hears(at(0)); q.asks(at(10)) }, 310, overdue, nil, true},
		"an answer to the one before the last": {func(q *Silence, at clock) { q.asks(at(0)); q.asks(at(10)); q.hears(at(0)) }, 310, overdue, nil, true},
		"an error":                             {func(q *Silence, at clock) { q.asks(at(0)); q.fails(at(0), no) }, 5, 5 * time.Millisecond, no, false},
		"an error just now":                    {func(q *Silence, at clock) { q.asks(at(0)); q.fails(at(0), no) }, 0, 1, no, false},
		"errors, since the first": {func(q *Silence, at clock) {
			q.asks(at(0))
			q.fails(at(0), no)
			q.asks(at(3))
			q.fails(at(3), no)
		}, 5, 5 * time.Millisecond, no, false},
		"an answer after errors": {func(q *Silence, at clock) {
			q.asks(at(0))
			q.fails(at(0), no)
			q.asks(at(3))
			q.hears(at(3))
		}, 5, 0, nil, true},
		"an error after an answer": {func(q *Silence, at clock) { q.asks(at(0)); q.hears(at(0)); q.fails(at(2), no) }, 5, 3 * time.Millisecond, no, true},
		"an error of one before the answered one": {func(q *Silence, at clock) {
			q.asks(at(0))
			q.asks(at(3))
			q.hears(at(3))
			q.fails(at(0), no)
		}, 500, 0, nil, true},
		"an answer to the one before the answered one": {func(q *Silence, at clock) {
			q.asks(at(0))
			q.asks(at(3))
			q.hears(at(3))
			q.hears(at(0))
			q.fails(at(2), no)
		}, 500, 0, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Unix(1, 0)
			at := func(ms int) time.Time { return began.Add(time.Duration(ms) * time.Millisecond) }
			q := new(Silence)
			test.does(q, at)
			if d, err := q.Lasts(at(test.at), overdue); d != test.lasts || err != test.err || q.Heard() != test.heard {
				t.Errorf("it lasts for %v, with %v; heard: %v", d, err, q.Heard())
			}
		})
	}
	if d, err := (*Line)(nil).Silence().Lasts(time.Now(), 0); d != 0 || err != nil || (*Line)(nil).Silence().Heard() {
		t.Error("no line is silent")
	}

	s := newStage(t)
	w := s.stand(&plainTerms, 1)
	lasts := func() time.Duration { d, _ := s.Line(&plainTerms).Silence().Lasts(s.now, overdue); return d }
	ticket := s.asks(w)
	s.pass(time.Second)
	if lasts() != time.Second {
		t.Error("the question is under way, and the line does not know")
	}
	s.Broke(w, ticket, false, no)
	w.Silent(no)
	if lasts() != time.Second {
		t.Error("there was an error, and the line does not know")
	}
	s.Retry(w, s.now)
	again := s.asks(w)
	s.Refused(w, again, Refusal{Sent: s.now, Left: -1}, s.now)
	if lasts() != 0 {
		t.Error("there was a refusal, and the line does not know")
	}
	s.Fail(ticket)
	w.line.hand.ticket = nil
	w.line.Hint()
	again = s.asks(w)
	w.Silent(no)
	s.pass(time.Second)
	s.Granted(w, again, w.Owner, new(Hold), 1, false, s.now)
	if lasts() != 0 {
		t.Error("there was a grant, and the line does not know")
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

package lockstate

import (
	"testing"
	"time"
)

const lingerTime = 200 * time.Millisecond

var (
	keptPlain = with(plainTerms, func(c *Terms) { c.Linger = lingerTime })
	keptWrite = with(writeTerms, func(c *Terms) { c.Linger = lingerTime })
)

// keeps makes an owner acquire a lock that lingers, by the nth request for the acquisition.
func (s *stage) keeps(c *Terms, subscribed bool, requests int) (*Acquisition, *Hold) {
	s.Helper()
	return s.keepsAs(s.acquisition(c), subscribed, requests)
}

// keepsAs is keeps for an acquisition.
func (s *stage) keepsAs(t *Acquisition, subscribed bool, requests int) (*Acquisition, *Hold) {
	s.Helper()
	c, h := t.Terms, new(Hold)
	for range requests - 1 {
		s.WillSend(t, c.Lease, 0)
		s.WillLinger(t, subscribed)
		s.Lock.answered(nil, t, sharedResult{})
	}
	s.WillSend(t, c.Lease, 0)
	s.WillLinger(t, subscribed)
	if out := s.Granted(new(Waiter), t, s.owner(c, 1), h, 100, false, s.now); out != Holds {
		s.Fatalf("the lock was not taken: %d", out)
	}
	s.pass(time.Millisecond)
	return t, h
}

// kept releases the hold, and returns what is kept then.
func (s *stage) kept(h *Hold) *Acquisition {
	h.By.users-- // the call has left
	s.give(h)
	return s.keeping.kept
}

// Each of these alone prevents a lock from being kept.
func TestMayKeep(t *testing.T) {
	none := func(*stage, *Acquisition) {}
	type test struct {
		terms    *Terms
		noPubSub bool
		requests int
		change   func(*stage, *Acquisition)
		held     time.Duration
		traced   bool
		may      bool
	}
	onStages(t, map[string]test{
		"nothing is against it":        {change: none, may: true},
		"a write lock":                 {terms: keptWrite, change: none, may: true},
		"without the option":           {terms: &plainTerms, change: none},
		"it cannot be told":            {noPubSub: true, change: none},
		"it was refused before":        {requests: 2, change: none},
		"after very many requests":     {requests: 257, change: none},
		"a release named it":           {traced: true, change: none},
		"another client waits":         {change: func(s *stage, _ *Acquisition) { s.Wanted(false) }},
		"another client tries":         {change: func(s *stage, _ *Acquisition) { s.Wanted(true) }},
		"closed":                       {change: func(s *stage, _ *Acquisition) { s.Close() }},
		"the keep time is over":        {change: none, held: MinKeepTime},
		"the keep time is almost over": {change: none, held: MinKeepTime - 1, may: true},
		"a longer keep time":           {terms: with(plainTerms, func(c *Terms) { c.Linger = 2 * MinKeepTime }), change: none, held: 2*MinKeepTime - 1, may: true},
		"a caller waits that cannot":   {change: func(s *stage, _ *Acquisition) { s.stand(fixedTerms, 2) }},
		"another has the lock":         {change: func(s *stage, _ *Acquisition) { s.side(false).held = s.acquisition(keptPlain) }},
		"given up":                     {change: func(s *stage, t *Acquisition) { s.NoLongerHeld(t) }},
		"uncertain":                    {change: func(_ *stage, t *Acquisition) { t.MarkUncertain() }},
		"a request is under way":       {change: func(s *stage, t *Acquisition) { s.WillSend(t, 0, 0) }},
		"the holds are not known":      {change: func(s *stage, t *Acquisition) { t.WillChange(s.now) }},
		"the token counter was raised": {change: func(_ *stage, t *Acquisition) { t.Raise(7) }},
		"a longer lease":               {change: func(_ *stage, t *Acquisition) { t.MayTake(leaseTime + 1) }},
		"the lease of the next":        {change: func(_ *stage, t *Acquisition) { t.MayTake(leaseTime) }, may: true},
		"passed on often":              {change: func(_ *stage, t *Acquisition) { t.handOffs().count = 10 * MaxHandOffs }, may: true},
		"with a token counter":         {terms: with(*keptPlain, func(c *Terms) { c.TokenCounter = "tokens" }), change: none, may: true},
		"a writer, and a request":      {terms: keptWrite, change: func(s *stage, _ *Acquisition) { s.WillSend(s.acquisition(&readTerms), 0, 0) }},
		"a plain one, and a request":   {change: func(s *stage, _ *Acquisition) { s.WillSend(s.acquisition(&plainTerms), 0, 0) }, may: true},
		"a writer, and a reader":       {terms: keptWrite, change: func(s *stage, _ *Acquisition) { s.owner(&readTerms, 2) }},
		"a writer that has read":       {terms: keptWrite, change: func(_ *stage, t *Acquisition) { t.reads = true }},
		"a writer, and one waits":      {terms: keptWrite, change: func(s *stage, _ *Acquisition) { s.stand(&writeTerms, 2) }},
	}, func(s *stage, test test) {
		if test.terms == nil {
			test.terms = keptPlain
		}
		if test.held == 0 {
			test.held = 2 * time.Millisecond
		}
		named := s.acquisition(test.terms)
		named.traced = test.traced
		held, h := s.keepsAs(named, !test.noPubSub, max(test.requests, 1))
		s.pass(test.held - time.Millisecond)
		test.change(s, held)
		if kept := s.kept(h); (kept != nil) != test.may {
			s.Fatalf("the lock is kept: %t", kept != nil)
		}
		if held.Lives() {
			s.Error("the acquisition that was given back lives")
		}
		if held := s.Held(); !test.may && len(held) > 0 {
			s.Errorf("held: %v", held)
		}
	})
}

// A kept acquisition has the name and age of the grant, and its token plus one. The next caller takes it.
func TestTakeKept(t *testing.T) {
	for _, terms := range []*Terms{keptPlain, keptWrite} {
		s := newStage(t)
		first, h := s.keeps(terms, true, 1)
		since := s.now.Add(-time.Millisecond)
		kept := s.kept(h)
		if kept.Name != first.Name || kept.Token() != first.Token()+1 || kept.Phase() != Kept || !kept.Lives() || kept.Since() != since || s.side(false).held != kept || s.Unused() {
			t.Fatalf("%+v", kept)
		}
		if all := s.Held(); len(all) != 1 || all[0] != kept || len(s.Offered()) != 0 {
			t.Errorf("held: %v", all)
		}
		o := s.owner(terms, 2)
		if got := s.TakeKept(terms, o, s.now); got != kept || kept.Phase() != Held || kept.Owner() != o || o.Acquisition() != kept || kept.Came != s.now || s.Kept() != nil {
			t.Fatalf("%+v", got)
		}
		if again := s.TakeKept(terms, s.owner(terms, 3), s.now); again != nil {
			t.Error("it is taken twice")
		}
		if held := s.side(false).held; (held == kept) != terms.HandsOff {
			t.Errorf("a lock that is not handed off is offered to waiters: %v", held)
		}
		next := new(Hold)
		if !s.Add(kept, o, next) {
			t.Fatal("no hold")
		}
		if third := s.kept(next); third == nil || third.Token() != first.Token()+2 || third.HandOffCount() != 2 {
			t.Errorf("%+v", third)
		}
	}
}

// These callers cannot take a kept acquisition.
func TestTakeKept_not(t *testing.T) {
	type test struct {
		kept, taker *Terms
		before      func(*stage)
	}
	onStages(t, map[string]test{
		"a fixed lease":         {keptPlain, fixedTerms, nil},
		"replicas":              {keptPlain, replicatedTerms, nil},
		"another token counter": {keptPlain, fencedTerms, nil},
		"a reader":              {keptWrite, &readTerms, nil},
		"beside a reader":       {keptWrite, keptWrite, func(s *stage) { s.owner(&readTerms, 7) }},
		"after Close":           {keptPlain, keptPlain, func(s *stage) { s.Close() }},
		"after the loss":        {keptPlain, keptPlain, func(s *stage) { s.End(s.keeping.kept, Lost) }},
		"after a force":         {keptWrite, keptWrite, func(s *stage) { s.End(s.keeping.kept, Lost) }},
		"after its release":     {keptPlain, keptPlain, func(s *stage) { s.EndKept() }},
		"when it is wanted":     {keptPlain, keptPlain, func(s *stage) { s.Wanted(false) }},
	}, func(s *stage, c test) {
		_, h := s.keeps(c.kept, true, 1)
		kept := s.kept(h)
		if c.before != nil {
			c.before(s)
		}
		if got := s.TakeKept(c.taker, s.owner(c.taker, 2), s.now); got != nil || kept.Phase() == Held {
			s.Error("it is taken")
		}
	})
}

// An earlier acquisition refers to the latest one directly, and so keeps none in between in memory.
func TestKeep_forgets(t *testing.T) {
	s := newStage(t)
	first, h := s.keeps(keptPlain, true, 1)
	earlier := []*Acquisition{first}
	for range 3 {
		kept := s.kept(h)
		earlier = append(earlier, kept)
		for i, t := range earlier {
			if t.Latest() != kept || t.grant.handOffs != kept.grant.handOffs {
				s.Fatalf("acquisition %d does not lead to the latest, or has its own record of the hand-offs", i)
			}
		}
		o := s.owner(keptPlain, 2)
		h = new(Hold)
		if s.TakeKept(keptPlain, o, s.now) != kept || !s.Add(kept, o, h) {
			t.Fatal("it is not taken")
		}
	}
}

// A kept lock is released after the time of the option, and no later than the end of the keep time. Each Unlock restarts the
// time of the option.
func TestLingerOver(t *testing.T) {
	type test struct {
		before time.Duration // how long it was held
		want   time.Duration // after the Unlock
	}
	onStages(t, map[string]test{
		"young": {10 * time.Millisecond, lingerTime},
		"old":   {MinKeepTime - 50*time.Millisecond, 50 * time.Millisecond},
	}, func(s *stage, c test) {
		_, h := s.keeps(keptPlain, true, 1)
		s.pass(c.before - time.Millisecond)
		s.done()
		kept := s.kept(h)
		began := s.now
		due := time.Time{}
		for range 5 {
			for _, a := range s.done() {
				switch a.Kind {
				case StartLinger:
					due = a.Due
				case ReleaseKept:
					if a.Acquisition != kept || s.now.Sub(began) != c.want || kept.Lives() || s.side(false).held != kept {
						s.Errorf("%v after %v", a.Acquisition, s.now.Sub(began))
					}
					return
				}
			}
			if due.IsZero() {
				s.Fatal("no timer")
			}
			s.now = due
			s.LingerOver(s.now)
		}
		s.Error("it is not released")
	})
	s := newStage(t)
	_, h := s.keeps(keptPlain, true, 1)
	s.done()
	kept := s.kept(h)
	s.wantDid(StartLinger, "no timer")
	s.pass(lingerTime / 2)
	o, next := s.owner(keptPlain, 2), new(Hold)
	s.TakeKept(keptPlain, o, s.now)
	s.Add(kept, o, next)
	s.kept(next)
	s.wantNotDid(StartLinger, "a second timer")
	s.pass(lingerTime / 2)
	s.LingerOver(s.now)
	if all := s.done(); len(all) != 1 || all[0].Kind != StartLinger || all[0].Due != s.now.Add(lingerTime/2) {
		t.Errorf("%+v", all)
	}
}

// A release lets others come first after an attempt of another client, or after the keep time if others may listen.
func TestYieldsAfter(t *testing.T) {
	type test struct {
		terms     *Terms
		tries     bool
		waits     bool
		listeners bool
		held      time.Duration
		want      bool
	}
	onStages(t, map[string]test{
		"nothing":                      {keptPlain, false, false, false, 2 * MinKeepTime, false},
		"an attempt":                   {keptPlain, true, false, false, time.Millisecond, true},
		"an attempt and a waiter":      {keptPlain, true, true, false, time.Millisecond, true},
		"an attempt, without it":       {&plainTerms, true, false, false, time.Millisecond, true},
		"others listen":                {keptPlain, false, false, true, MinKeepTime, true},
		"others listen, and too early": {keptPlain, false, false, true, MinKeepTime - 1, false},
		"others listen, without it":    {&plainTerms, false, false, true, 2 * MinKeepTime, false},
		"a writer":                     {keptWrite, false, false, false, MinKeepTime, true},
		"a waiter":                     {keptPlain, false, true, false, time.Millisecond, false},
		"a waiter of a writer":         {keptWrite, false, true, false, time.Millisecond, true},
		"a writer, too early":          {keptWrite, false, false, false, MinKeepTime - 1, false},
	}, func(s *stage, c test) {
		held, _ := s.keeps(c.terms, true, 1)
		if c.tries {
			s.Wanted(true)
		}
		if c.waits {
			s.Wanted(false)
		}
		if got := s.YieldsAfter(held, c.listeners, held.Since().Add(c.held)); got != c.want {
			s.Errorf("%t, want %t", got, c.want)
		}
		if c.tries && s.YieldsAfter(held, false, held.Since()) && c.terms != keptWrite {
			s.Error("once more")
		}
	})
}

// Waiters of the process get a lock that lingers, beyond the limits of a hand-off, as long as no other client wants it.
func TestMayHandOff_lingers(t *testing.T) {
	type test struct {
		terms *Terms
		waits *Terms
		tell  bool
		want  bool
	}
	onStages(t, map[string]test{
		"lingers":            {keptPlain, keptPlain, false, true},
		"does not":           {&plainTerms, &plainTerms, false, false},
		"another wants it":   {keptPlain, keptPlain, true, false},
		"a waiter that does": {keptPlain, &plainTerms, false, true},
	}, func(s *stage, c test) {
		held, h := s.keeps(c.terms, true, 1)
		s.stand(c.waits, 2)
		held.handOffs().count = 2 * MaxHandOffs
		s.pass(2 * MaxHandOffTime)
		if c.tell {
			s.Wanted(false)
		}
		if next := s.give(h); (next != nil) != c.want {
			s.Errorf("handed off: %t", next != nil)
		}
	})
}

// A grant to another owner shows that the lock that was kept is lost. Otherwise two owners of this process would have it, or
// the loss of the first would hide the second, which nothing would release.
func TestKeep_anotherGrant(t *testing.T) {
	for _, terms := range []*Terms{keptPlain, keptWrite} {
		s := newStage(t)
		_, h := s.keeps(terms, true, 1)
		kept := s.kept(h)
		other, _ := s.take(terms, 5)
		if kept.Lives() || s.Kept() != nil || !other.Lives() || !s.did(ReleaseKept) {
			t.Errorf("kept: %v, granted: %v", kept.Phase(), other.Phase())
		}
	}
}

// A waiter without the option that a lock is handed off to does not keep it.
func TestKeep_handedOffToAHandleWithoutTheOption(t *testing.T) {
	for _, c := range []struct {
		waits *Terms
		want  bool
	}{{keptPlain, true}, {&plainTerms, false}} {
		s := newStage(t)
		_, h := s.keeps(keptPlain, true, 1)
		w := s.stand(c.waits, 2)
		s.give(h)
		step, next := s.next(w), new(Hold)
		if step.Do != Take || !s.Add(step.Acquisition, w.Owner, next) {
			t.Fatalf("%+v", step)
		}
		s.Quit(w, s.now)
		if kept := s.kept(next); (kept != nil) != c.want {
			t.Errorf("kept: %t, want %t", kept != nil, c.want)
		}
	}
}

// When a lock that was kept has been released, the first writer of each queue sends a request.
func TestNoLongerHeld_wakesEachQueue(t *testing.T) {
	s := newStage(t)
	_, h := s.keeps(keptWrite, true, 1)
	s.kept(h)
	ended := s.EndKept()
	waiters := []*Waiter{s.stand(&writeTerms, 2), s.stand(with(writeTerms, func(c *Terms) { c.QueueKey = ReaderPreference }), 3)}
	for _, w := range waiters {
		s.wantNext(w, Wait, "before the release")
	}
	s.NoLongerHeld(ended)
	for _, w := range waiters {
		s.wantNext(w, Send, "after the release")
	}
}

// A shorter time of the option releases the lock earlier than a timer that is already running.
func TestLingerOver_aShorterTime(t *testing.T) {
	s := newStage(t)
	_, h := s.keeps(keptPlain, true, 1)
	kept := s.kept(h)
	s.done()
	short := with(*keptPlain, func(c *Terms) { c.Linger = lingerTime / 4 })
	o, next := s.owner(short, 2), new(Hold)
	if s.TakeKept(short, o, s.now) != kept || !s.Add(kept, o, next) {
		t.Fatal("it is not taken")
	}
	s.kept(next)
	if all := s.done(); len(all) != 1 || all[0].Kind != StartLinger || !all[0].Due.Equal(s.now.Add(lingerTime/4)) {
		t.Errorf("%+v", all)
	}
}

// A fair lock that lingers is released for the queue in Redis after the limits of a hand-off.
func TestMayHandOff_fairDoesNotLinger(t *testing.T) {
	keptFair := with(fairTerms, func(c *Terms) { c.Linger = lingerTime })
	for count, want := range map[int]bool{MaxHandOffs - 1: true, MaxHandOffs: false} {
		s := newStage(t)
		held, h := s.keeps(keptFair, true, 1)
		w := s.stand(keptFair, 2)
		s.queues(w, Refusal{Left: -1})
		s.Follow(held, numbers(w), 2)
		held.handOffs().count = count
		if next := s.give(h); (next != nil) != want {
			t.Errorf("after %d hand-offs, handed off: %t", count, next != nil)
		}
	}
}

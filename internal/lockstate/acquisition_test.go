package lockstate

import (
	"slices"
	"testing"
	"time"
)

// An acquisition has the holds of its owner, and Redis should have the same number.
func TestAdd(t *testing.T) {
	s := newStage(t)
	held, h := s.take(&writeTerms, 1)
	o := h.By
	if held.holdsInRedis() != 1 || o.Acquisition() != held || held.Owner() != o || !slices.Equal(held.Holds(), []*Hold{h}) || held.longest != leaseTime {
		t.Fatalf("%+v", held)
	}
	again := new(Hold)
	if !s.Add(held, o, again) || held.holdsInRedis() != 2 || held.owners != 1 {
		t.Fatal("it did not enter once more")
	}
	if s.Add(held, s.owner(&writeTerms, 2), new(Hold)) {
		t.Error("another owner has a hold of it")
	}
	if left := s.Unlock(held, h, s.now, nil); left != OwnerHolds || held.holdsInRedis() != 1 || o.Acquisition() != held {
		t.Errorf("%d is left", left)
	}
	if left := s.Unlock(held, h, s.now, nil); left != NotThere || held.holdsInRedis() != 1 {
		t.Errorf("given back twice, %d is left", left)
	}
	if left := s.Unlock(held, again, s.now, nil); left != NobodyHolds || held.holdsInRedis() != 0 || o.Acquisition() != nil || held.phase != Released || held.owners != 0 {
		t.Errorf("%d is left", left)
	}
	if s.Add(held, o, new(Hold)) {
		t.Error("an acquisition that is over has a hold")
	}
	o.Leave()
	if s.side(false).owners[1] != nil {
		t.Error("an owner that has nothing to do with the lock is here")
	}
}

// An acquisition is renewed while at least one of its holds needs renewals.
func TestAdd_renewals(t *testing.T) {
	s := newStage(t)
	own := with(writeTerms, func(c *Terms) { c.Fixed, c.Lease = true, time.Second })
	asked, o, first := s.acquisition(own), s.owner(own, 1), &Hold{Fixed: true}
	s.WillSend(asked, own.Lease, 0)
	s.Granted(new(Waiter), asked, o, first, 1, false, s.now)
	if s.done() != nil || asked.longest != time.Second {
		t.Fatal("a lease of its own is renewed")
	}
	second, third := new(Hold), new(Hold)
	s.Add(asked, o, second)
	if all := s.done(); len(all) != 1 || all[0].Kind != Renew || all[0].Acquisition != asked || asked.longest != leaseTime {
		t.Errorf("%+v", all)
	}
	s.Add(asked, o, third)
	s.Unlock(asked, second, s.now, nil)
	if all := s.done(); all != nil {
		t.Errorf("%+v", all)
	}
	s.Unlock(asked, third, s.now, nil)
	if all := s.done(); len(all) != 1 || all[0].Kind != StopRenewing {
		t.Errorf("%+v", all)
	}
	s.Add(asked, o, second)
	if all := s.done(); len(all) != 1 || all[0].Kind != Renew {
		t.Errorf("%+v", all)
	}
	s.Unlock(asked, first, s.now, nil)
	s.Unlock(asked, second, s.now, nil)
	if all := s.done(); all != nil { // the acquisition has ended
		t.Errorf("%+v", all)
	}
}

// End ends all holds of all owners, once.
func TestEnd(t *testing.T) {
	s := newStage(t)
	first, h := s.reads(&readTerms, 1)
	second := new(Hold)
	s.JoinOpen(first, second, 2)
	ended, before := s.End(first, Lost)
	if len(ended) != 2 || before != Held || first.Phase() != Lost || first.holdsInRedis() != 0 {
		t.Errorf("%d holds, in phase %d", len(ended), before)
	}
	if h.By.Acquisition() != nil || second.By.Acquisition() != nil || s.side(true).open != nil {
		t.Error("they read still")
	}
	if ended, before = s.End(first, Closed); ended != nil || before != Lost || first.Phase() != Lost {
		t.Error("it ended twice")
	}
	if left := s.Unlock(first, h, s.now, nil); left != NotThere {
		t.Error("it is given back after the end")
	}
	for _, p := range []Phase{Asking, Ticket, Offered, Held} {
		if !p.Lives() {
			t.Errorf("phase %d is over", p)
		}
	}
	for _, p := range []Phase{Released, Closed, Lost} {
		if p.Lives() {
			t.Errorf("phase %d lives", p)
		}
	}
}

// While a command changes the number of holds in Redis, that number is unknown.
func TestWillChange(t *testing.T) {
	s := newStage(t)
	held, _ := s.take(&plainTerms, 1)
	if held.counted != 1 || !held.Changing().IsZero() {
		t.Fatalf("%+v", held.ledger)
	}
	began := s.now
	if n := held.WillChange(began); n != 1 || held.counted != 0 {
		t.Errorf("%d, %+v", n, held.ledger)
	}
	held.WillChange(began.Add(time.Second))
	if held.Changing() != began {
		t.Error("it counts from the last command")
	}
	if held.Count(2); held.counted != 2 || !held.Changing().IsZero() {
		t.Errorf("%+v", held.ledger)
	}
	held.WillChange(began)
	if held.ChangeDone(); held.counted != 0 || !held.Changing().IsZero() {
		t.Errorf("settled: %d since %v", held.counted, held.Changing())
	}
}

// The channel of an acquisition is closed when it ends, and closed from the start if it has ended.
func TestEnded(t *testing.T) {
	for _, early := range []bool{true, false} {
		s := newStage(t)
		held, h := s.take(&plainTerms, 1)
		closed := func() bool {
			select {
			case <-held.Ended():
				return true
			default:
				return false
			}
		}
		if early && closed() {
			t.Error("it has not ended")
		}
		if one, other := held.Ended(), held.Ended(); early && one != other {
			t.Error("a second caller gets another channel, so the first is never notified")
		}
		s.Unlock(held, h, s.now, func(*Acquisition) bool { return false })
		if !closed() {
			t.Error("it has ended")
		}
	}
}

// Reconciling keeps the holds of an acquisition. If it has none, reconciling may have released the
// acquisition.
func TestReconciling(t *testing.T) {
	s := newStage(t)
	held, h := s.take(&plainTerms, 1)
	if held.Reconciling() != 1 || held.MaybeReleased() {
		t.Error("it is freed")
	}
	s.Unlock(held, h, s.now, func(*Acquisition) bool { return false })
	if held.Reconciling() != 0 || !held.MaybeReleased() {
		t.Error("it is not freed")
	}
	s.WillSend(held, leaseTime/2, 2*leaseTime)
	s.WillSend(held, leaseTime/3, leaseTime)
	if held.MayLive() != 2*leaseTime || held.longest != leaseTime {
		t.Errorf("%+v", held.ledger)
	}
	held.MayTake(3 * leaseTime)
	if held.MayTake(1); held.MayLive() != 3*leaseTime {
		t.Errorf("%+v", held.ledger)
	}
	if newer, _ := newStage(t).take(&plainTerms, 1); newer.MayLast(leaseTime) {
		t.Error("a lease that was not changed may last for longer")
	}
	held.Took()
	if !held.MayLast(3 * leaseTime) {
		t.Error("a lease that Redis did not confirm is not expected")
	}
	if held.Took(); held.MayLast(3*leaseTime) || !held.MayLast(3*leaseTime-1) {
		t.Error("the longest lease is not the limit")
	}
}

// A failed acquisition is reconciled if Redis may have anything of it.
func TestFail(t *testing.T) {
	type test struct {
		change func(*stage, *Acquisition)
		gives  bool
	}
	onStages(t, map[string]test{
		"Redis has not heard of it": {func(*stage, *Acquisition) {}, false},
		"it was granted":            {func(s *stage, t *Acquisition) { t.grant.since = s.now }, true},
		"it waited":                 {func(_ *stage, t *Acquisition) { t.traced = true }, true},
		"it is uncertain":           {func(_ *stage, t *Acquisition) { t.MarkUncertain() }, true},
		"it has the lock here":      {func(s *stage, t *Acquisition) { s.side(false).held = t; s.stand(&plainTerms, 2) }, false},
	}, func(s *stage, test test) {
		asked := s.acquisition(&plainTerms)
		test.change(s, asked)
		s.done()
		s.Fail(asked)
		all := s.done()
		gives := slices.ContainsFunc(all, func(a Effect) bool { return a.Kind == Release && a.Acquisition == asked })
		if gives != test.gives || asked.Lives() || s.side(false).held != nil {
			s.Errorf("it is given back: %t", gives)
		}
		if l := s.Queue(&plainTerms); l != nil && !l.waiters[0].leads() {
			s.Error("the lock has no holder, and the first does not know")
		}
	})
	t.Run("it was over", func(t *testing.T) {
		s := newStage(t)
		held, _ := s.take(&plainTerms, 1)
		s.End(held, Lost)
		if s.Fail(held); held.phase != Lost || len(s.gives()) != 1 {
			t.Error("it ends twice, or is not given back")
		}
	})
}

// A state is in use while a call or command uses its lock. A closed state stays closed.
func TestUnused(t *testing.T) {
	for name, change := range map[string]func(*stage){
		"an owner":          func(s *stage) { s.owner(&plainTerms, 1) },
		"a reader":          func(s *stage) { s.owner(&readTerms, 1) },
		"a queue":           func(s *stage) { s.side(false).newQueue(&plainTerms) },
		"what is open":      func(s *stage) { s.side(true).open = s.acquisition(&readTerms) },
		"a request":         func(s *stage) { s.side(true).requests = 1 },
		"what has the lock": func(s *stage) { s.side(false).held = s.acquisition(&plainTerms) },
	} {
		s := newStage(t)
		if change(s); s.Unused() || s.Idle(s.now) {
			t.Errorf("%s, and it is unused", name)
		}
	}
	s := newStage(t)
	held, _ := s.take(&plainTerms, 1)
	shared, _ := s.reads(&readTerms, 1)
	s.JoinOpen(shared, new(Hold), 2)
	all := s.Close()
	if len(all) != 2 || !slices.Contains(all, held) || !slices.Contains(all, shared) || !s.IsClosed() {
		t.Errorf("%d are held", len(all))
	}
}

// Calls with the same owner number share an Owner, which has their acquisitions and lives until the
// last call leaves.
func TestOwner(t *testing.T) {
	s := newStage(t)
	o := s.owner(&plainTerms, 7)
	turn := o.Turn
	if again := s.owner(&plainTerms, 7); again != o || o.Number != 7 || cap(o.Turn) != 1 || o.Turn != turn {
		t.Fatal("two owners have one number, or one owner has two turns")
	}
	if o.Acquires() {
		t.Error("no call asks")
	}
	o.Turn <- struct{}{}
	if !o.Acquires() {
		t.Error("a call asks")
	}
	held := s.acquisition(&plainTerms)
	o.hold(held)
	if o.Acquires() {
		t.Error("it holds the lock")
	}
	o.acquisition = nil
	if o.Sibling() != nil {
		t.Error("it has something on the other side")
	}
	o.Leave()
	if s.side(false).owners[7] != o {
		t.Error("one call left, and the other's owner is gone")
	}
	if o.Leave(); !s.Unused() {
		t.Error("the owner is here, and no call needs it")
	}
	writer, reader := s.owner(&writeTerms, 7), s.owner(&readTerms, 7)
	writes := s.acquisition(&writeTerms)
	writer.hold(writes)
	if reader.Sibling() != writes || writer.Sibling() != nil {
		t.Error("it does not know what it has on the other side")
	}
}

// If the waiters queue in Redis, Redis notifies the next one of the release. No waiter is woken
// unnecessarily.
func TestNoLongerHeld_redisQueue(t *testing.T) {
	s := newStage(t)
	held, _ := s.take(&fairTerms, 1)
	w := s.stand(&fairTerms, 2)
	s.queues(w, Refusal{Left: -1})
	s.done()
	s.NoLongerHeld(held)
	if woken := s.wakes(); len(woken) > 0 || s.side(false).held != nil {
		t.Errorf("%d waiters are woken, and %+v has the lock", len(woken), s.side(false).held)
	}
}

// The lease of an acquisition has ended, but its end is not recorded yet, and its owner acquires the lock again. What is recorded
// of the first acquisition then changes nothing of the second.
func TestEnd_afterItsOwnerHoldsAgain(t *testing.T) {
	s := newStage(t)
	first, _ := s.reads(&readTerms, 1)
	s.pass(2 * ShareTime)
	second, h := s.reads(&readTerms, 1)
	if second == first {
		t.Fatal("it has no acquisition of its own")
	}
	owner := h.By
	if !s.joins(&readTerms, 2) {
		t.Fatal("the second acquisition is not shared")
	}
	s.End(first, Lost)
	if owner.Acquisition() != second {
		t.Fatal("the owner has lost an acquisition that is not over")
	}
	if remains := s.Unlock(second, h, s.now, nil); remains != SharersHold {
		t.Errorf("the owner unlocks, and %d holds remain", remains)
	}
	if remains := s.Unlock(second, second.Holds()[0], s.now, nil); remains != NobodyHolds {
		t.Errorf("both unlock, and %d holds remain", remains)
	}
}

// The largest value that the token counter was raised to counts.
func TestRaise(t *testing.T) {
	held, _ := newStage(t).take(&plainTerms, 1)
	held.Raise(7)
	held.Raise(5)
	if got := held.Raised(); got != 7 {
		t.Errorf("raised to %d, want 7", got)
	}
}

// A hold that is renewed does not make the process forget that a longer lease was requested.
func TestAdd_afterALongerLease(t *testing.T) {
	s := newStage(t)
	asked := s.acquisition(&plainTerms)
	s.WillSend(asked, 2*leaseTime, 0)
	s.Granted(new(Waiter), asked, s.owner(&plainTerms, 1), new(Hold), 1, false, s.now)
	if got := asked.MayLive(); got != 2*leaseTime {
		t.Errorf("Redis may have it for %v, want %v", got, 2*leaseTime)
	}
}

// The end of an earlier acquisition does not end the one that is kept.
func TestEnd_leavesWhatIsKept(t *testing.T) {
	s := newStage(t)
	first, h := s.keeps(keptPlain, true, 1)
	kept := s.kept(h)
	s.End(first, Lost)
	if s.Kept() != kept {
		t.Error("the acquisition that is kept is gone")
	}
}

package place

import (
	"slices"
	"testing"
	"time"
)

// queues lets w ask. The answer tells w to wait in the queue.
func (s *stage) queues(w *Waiter, r Refusal) {
	s.Helper()
	w.reason = true
	asked := s.asks(w)
	r.Sent, r.Trace = s.now, true
	s.Refused(w, asked, r, s.now)
}

// waiters returns the waiters of a round.
func (r Round) waiters() (all []*Waiter) {
	for _, q := range r.Waiters {
		all = append(all, q.Waiter)
	}
	return all
}

// nextBeat returns the waiters of the next round.
func (l *Line) nextBeat(now time.Time) (due time.Time, waiters []*Waiter) {
	due, r := l.NextBeat(now)
	return due, r.waiters()
}

// keeps is a round that is a heartbeat.
func keeps(sent time.Time) Round { return Round{Sent: sent, keeps: true} }

// The waiters of a line stand in the queue. One heartbeat speaks for all.
func TestNextBeat(t *testing.T) {
	s := newStage(t)
	w := s.stand(&fairTerms, 1)
	s.queues(w, Refusal{Left: time.Hour})
	all := s.done()
	if len(all) != 2 || all[0].Verb != Beat || all[0].Terms != &fairTerms || all[1].Verb != Listen {
		t.Fatalf("%+v", all)
	}
	if step := s.next(w); step.Do != Wait || !step.Due.IsZero() {
		t.Errorf("%+v", step)
	}
	if s.Forgotten() {
		t.Error("a heartbeat comes back to a place that is another's")
	}
	if due, queued := w.line.nextBeat(s.now); due != s.now.Add(pollTime) || queued != nil {
		t.Errorf("%v, %d", due, len(queued))
	}
	s.pass(pollTime / 2)
	second, third := s.stand(&fairTerms, 2), s.stand(&fairTerms, 3)
	s.done()
	s.queues(second, Refusal{Left: -1})
	if s.done() != nil {
		t.Error("a new waiter puts the heartbeat off")
	}
	if s.next(third).Do != Wait || second.Queued() != second.Tenure || third.Queued() != nil {
		t.Error("Redis has one queued, and the place another")
	}
	s.pass(pollTime / 2)
	due, r := w.line.NextBeat(s.now)
	if due != s.now.Add(pollTime) || !slices.Equal(r.waiters(), []*Waiter{w, second, third}) || r.Enters() != 1 {
		t.Errorf("%v, %+v", due, r)
	}
	w.line.Beaten(keeps(s.now), nil)
	if d, _ := w.line.Silence().Lasts(s.now.Add(time.Second), time.Second); d != 0 {
		t.Error("a heartbeat was answered, and the line does not know")
	}
	w.line.Beaten(keeps(s.now), errBroke)
	w.line.beat.flying = 0
	if _, err := w.line.Silence().Lasts(s.now.Add(1), time.Second); err != errBroke {
		t.Error("a heartbeat broke, and the line does not know")
	}
}

// Redis tells a waiter of its turn before the line listens, and the confirmation of the subscription comes before the answer to that
// waiter. The heartbeat that the confirmation leads to does not speak for it yet. So the answer leads to another one.
func TestQueue_hintedSinceItAsked(t *testing.T) {
	s := newStage(t)
	first, second := s.stand(&fairTerms, 1), s.stand(&fairTerms, 2)
	second.reason = true
	asked := s.asks(second)
	sent := s.now
	s.pass(stepTime)
	s.queues(first, Refusal{Left: -1})
	first.line.nextBeat(s.now)
	s.pass(stepTime)
	first.line.Hint() // the confirmation
	if _, all := first.line.nextBeat(s.now); !slices.Equal(all, []*Waiter{first}) {
		t.Fatalf("%d waiters", len(all))
	}
	s.done()
	s.Refused(second, asked, Refusal{Sent: sent, Left: -1, Trace: true}, s.now)
	if !s.did(Beat) {
		t.Fatal("it waits for the next poll")
	}
	first.line.Beaten(keeps(s.now), nil)
	if _, all := first.line.nextBeat(s.now); !slices.Equal(all, []*Waiter{first, second}) {
		t.Errorf("%d waiters", len(all))
	}
	s.done()
	s.pass(stepTime)
	third := s.stand(&fairTerms, 3)
	s.queues(third, Refusal{Left: -1})
	if s.did(Beat) {
		t.Error("a waiter that asked after the hint leads to a heartbeat")
	}
}

// If the lease of the holder ends soon, the line sends its heartbeat then.
func TestQueue_sooner(t *testing.T) {
	s := newStage(t)
	w, second := s.stand(&fairTerms, 1), s.stand(&fairTerms, 2)
	s.queues(w, Refusal{Left: -1})
	s.done()
	s.queues(second, Refusal{Left: 10 * time.Millisecond})
	if !s.did(Beat) {
		t.Error("the sender does not look again")
	}
	if due, _ := w.line.nextBeat(s.now); due != s.now.Add(11*time.Millisecond) {
		t.Error(due)
	}
	w.line.BeatIn(keeps(s.now), s.now, 20*time.Millisecond)
	if !s.did(Beat) {
		t.Error("the sender does not look again")
	}
	if due, _ := w.line.nextBeat(s.now); due != s.now.Add(21*time.Millisecond) {
		t.Error(due)
	}
	l := w.line
	s.Quit(w, s.now)
	s.Quit(second, s.now)
	s.done()
	if l.BeatIn(keeps(s.now), s.now, 0); s.done() != nil {
		t.Error("a line that ended has a heartbeat")
	}
}

// A hint makes the line send a heartbeat. Hints that come meanwhile cause one more, when the first is answered.
func TestNextBeat_hints(t *testing.T) {
	s := newStage(t)
	w := s.stand(&fairTerms, 1)
	s.queues(w, Refusal{Left: -1})
	s.done()
	l := w.line
	l.Hint()
	if all := s.done(); len(all) != 1 || all[0].Verb != Beat {
		t.Fatalf("%+v", all)
	}
	if _, queued := l.nextBeat(s.now); len(queued) != 1 {
		t.Fatal("no heartbeat is sent")
	}
	if d, _ := l.Silence().Lasts(s.now.Add(time.Second), time.Second); d != time.Second {
		t.Error("a heartbeat is under way, and the line does not know")
	}
	if _, queued := l.nextBeat(s.now); queued != nil {
		t.Error("one hint, and two heartbeats")
	}
	for range 3 {
		l.Hint()
		if _, queued := l.nextBeat(s.now); queued != nil {
			t.Error("a second is sent before the first is answered")
		}
	}
	s.done()
	l.Beaten(keeps(s.now), nil)
	if !s.did(Beat) {
		t.Error("the hints meanwhile are lost")
	}
	if _, queued := l.nextBeat(s.now); len(queued) != 1 {
		t.Error("the hints meanwhile are lost")
	}
	l.Beaten(keeps(s.now), nil)
	if s.done() != nil {
		t.Error("it does not end")
	}

	// The line sends a heartbeat that is due, whatever is under way.
	l.Hint()
	l.NextBeat(s.now)
	s.pass(pollTime)
	l.Hint()
	if _, queued := l.nextBeat(s.now); len(queued) != 1 || l.beat.flying != 2 {
		t.Error("a heartbeat that is due waits for an answer")
	}
	l.Beaten(keeps(s.now), nil)
	if s.done(); !l.beat.missed {
		t.Error("the hint is forgotten before the last answer")
	}
	if l.Beaten(keeps(s.now), nil); !s.did(Beat) {
		t.Error("the hint is forgotten")
	}
}

// A waiter asks when its turn has come, even if it hears of its turn before it knows that it stands
// in the queue.
func TestTurn(t *testing.T) {
	s := newStage(t)
	w, second := s.stand(&fairTerms, 1), s.stand(&fairTerms, 2)
	s.queues(w, Refusal{Left: -1})
	s.queues(second, Refusal{Left: -1})
	s.done()
	w.line.Called(second.Tenure.Name)
	if all := s.wakes(); !slices.Equal(all, []*Waiter{second}) || s.next(second).Do != Ask || s.next(w).Do != Wait {
		t.Error("it is not the turn of the second")
	}
	third := s.stand(&fairTerms, 3)
	third.reason = true
	asked := s.asks(third)
	w.line.Called(asked.Name)
	if s.wakes() != nil {
		t.Error("one asks while it asks")
	}
	s.Refused(third, asked, Refusal{Sent: s.now, Left: -1}, s.now)
	if all := s.wakes(); !slices.Equal(all, []*Waiter{third}) || s.next(third).Do != Ask {
		t.Error("its turn is forgotten")
	}
	s.Asks(asked, 0, 0)
	s.Refused(third, asked, Refusal{Sent: s.now, Left: -1}, s.now)
	if s.wakes() != nil {
		t.Error("it is its turn twice")
	}
}

// A waiter that may be told at a channel of its own hears that, while it stands in the
// queue.
func TestHearOwn(t *testing.T) {
	s := newStage(t)
	w := s.stand(&fairTerms, 1)
	s.queues(w, Refusal{Left: -1})
	if s.did(HearOwn) {
		t.Error("the waiter hears a channel that it has not been told of")
	}
	own := Refusal{Sent: s.now, Left: -1, Own: true}
	s.Asks(w.Tenure, 0, 0)
	s.Refused(w, w.Tenure, own, s.now)
	if !s.did(HearOwn) {
		t.Error("it does not hear")
	}
	s.Asks(w.Tenure, 0, 0)
	s.Refused(w, w.Tenure, own, s.now)
	if s.did(HearOwn) {
		t.Error("it hears twice")
	}
	w.Tenure = s.tenure(&fairTerms) // of the next question, after an answer that came too late
	s.Asks(w.Tenure, 0, 0)
	s.Refused(w, w.Tenure, own, s.now)
	if all := s.done(); len(all) != 2 || all[0].Verb != Unhear || all[1].Verb != HearOwn || w.Queued() != w.Tenure {
		t.Errorf("%+v", all)
	}
	s.stand(&fairTerms, 2)
	s.Quit(w, s.now)
	if !s.did(Unhear) || w.Queued() != nil {
		t.Error("it hears after it has left")
	}
}

// A waiter of a kind with a queue asks again after an error, wherever it stands.
func TestQueueInRedis_retry(t *testing.T) {
	s := newStage(t)
	s.stand(&fairTerms, 1)
	w := s.stand(&fairTerms, 2)
	w.reason = true
	asked := s.asks(w)
	s.Broke(w, asked, true, errBroke)
	s.Retry(w, s.now.Add(time.Second))
	if step := s.next(w); step.Do != Wait || step.Due != s.now.Add(time.Second) {
		t.Errorf("%+v", step)
	}
	s.pass(time.Second)
	if step := s.next(w); step.Do != Ask || step.Tenure != asked {
		t.Errorf("%+v", step)
	}
	s.Asks(asked, 0, 0)
	s.done()
	if out := s.Granted(w, asked, w.Owner, new(Hold), 1, false, s.now); out != Holds || s.wakes() != nil {
		t.Error("others are told, and Redis does that")
	}
}

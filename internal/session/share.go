package session

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

// How the readers of a process share one read hold in Redis.
//
// The tenure of a reader who was let in is open for others for a while: they enter
// by being counted here, each as an owner of its own with holds of its own. Redis has
// all of them as one owner with one hold, and one more for each time that one of them
// enters once more. The last of them to leave gives it back; a free lock is free.
//
// Who joins has not asked whether a writer waits. So a tenure is open for those only
// who came at most shareTime, and a round trip, after the reader who asked; and for no
// longer than that after the answer. Whoever comes later asks, for a tenure of its
// own that is the open one then; a writer who came in between refuses that. And
// nobody joins once this process knows of a writer who waits.
//
// Those who come while such a question is under way ride along: the answer is for
// them too. They are let in before any of them runs, so that a reader who leaves at
// once is not the last.

// shareTime is how much later than a reader, who asked, others may come and enter
// without a question. As long can a writer be passed by who came after it.
const shareTime = 10 * time.Millisecond

// shared is what readers of a place have in common.
type shared struct {
	open     *tenure // may be joined; nil if none may
	trip     *trip   // the latest question that is under way; nil if that one is answered
	trips    int     // how many are under way
	refusals int     // how often a reader was refused meanwhile
}

// trip is a question that others wait for as well.
type trip struct {
	t        *tenure       // in whose name it is asked
	sent     time.Time     // when
	refusals int           // those of shared, by then
	over     chan struct{} // closed when the answer is there

	// Guarded by s.mu.
	riders  []*hold       // of t if it is granted
	landed  bool          // nobody may ride along any more
	seated  bool          // the riders have the lock
	refused bool          // others have it,
	left    time.Duration // for that long if nothing happens
	err     error         // what Redis said if that was no answer
}

// set has readers join t from now on; nil is nobody.
func (sh *shared) set(t *tenure) {
	if sh.open != nil {
		sh.open.open = false
	}
	if sh.open = t; t != nil {
		t.open = true
	}
}

// shares reports whether holds of spec may share a tenure: it has no lease of its own,
// and no replicas to wait for.
func (spec *Spec) shares() bool { return spec.shared() && spec.Fixed == 0 && spec.Replicas == 0 }

// suits reports whether what t asked is enough for spec.
func (t *tenure) suits(spec *Spec) bool {
	return spec.Keys.Register == t.spec.Keys.Register && (t.spec.Yield || !spec.Yield)
}

// openLocked returns the tenure that a reader with this spec, who came then, may join
// now; or nil.
func (s *Session) openLocked(spec *Spec, came, now time.Time) *tenure {
	sh := s.shares[spec.place()]
	if sh == nil || sh.open == nil {
		return nil
	}
	t := sh.open
	if !t.suits(spec) || came.After(t.latest) || now.Sub(t.since) > shareTime || s.writerWaitsLocked(spec) {
		return nil
	}
	return t
}

// writerWaitsLocked reports whether a writer of this process waits whom readers with
// this spec let pass.
func (s *Session) writerWaitsLocked(spec *Spec) bool {
	if !spec.Yield || len(s.lines) == 0 {
		return false
	}
	if l := s.lines[spec.line()]; l != nil && l.shut {
		return true // or one elsewhere
	}
	l := s.lines[place{kind: spec.Beside, key: spec.Keys.Lock}]
	return l != nil && slices.ContainsFunc(l.waiters, func(w *waiter) bool { return w.spec != nil })
}

// waitToRead notes that w waits in line for the first hold of c; nil is nobody. An owner
// who writes is let in whoever waits, so it asks wherever it stands: those before it may
// wait for that very writer.
func (s *Session) waitToRead(c *claim, w *waiter) {
	s.mu.Lock()
	c.waits = w
	s.mu.Unlock()
	if w != nil && s.beside(c) != nil {
		w.ask()
	}
}

// readOnLocked lets the owner of t, who has come to write, ask if it waits to read as well.
func (t *tenure) readOnLocked() {
	if t.spec.Mode != lock.Write {
		return
	}
	if c := t.s.claims[claimID{place{kind: t.spec.Beside, key: t.spec.Keys.Lock}, t.claim.id.owner}]; c != nil && c.waits != nil {
		c.waits.ask()
	}
}

// enterOpen lets an owner in without a command, if it may. The hold will be
// under ctx. c is the owner's claim; it is nil for one that no call
// is about, as far as the caller knows, and known says that there can be one all the same.
func (s *Session) enterOpen(ctx context.Context, spec *Spec, c *claim, owner uint64, known bool, came, now time.Time) *hold {
	s.mu.Lock()
	t := s.openLocked(spec, came, now)
	s.mu.Unlock()
	if t == nil || t.lease.Check() != nil {
		return nil
	}
	h := newHold(ctx, t, false)
	if !s.seat(t, h, c, claimID{spec.place(), owner}, known) {
		return nil
	}
	s.observeAcquired(h, came)
	return h
}

// seat makes h, of the claim c or of a new one, a hold of t, if that is open yet.
func (s *Session) seat(t *tenure, h *hold, c *claim, id claimID, known bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !t.open || s.closed {
		return false
	}
	if c == nil {
		if known && s.claims[id] != nil {
			return false
		}
		c = &claim{id: id}
		s.claims[id] = c
	}
	h.claim = c
	c.holdLocked(t)
	return t.addLocked(h)
}

// leaveOpen gives h back if that is nothing to Redis: its owner has no other hold, and
// is not the last of those who share the tenure. It reports whether it did.
func (t *tenure) leaveOpen(h *hold) bool {
	if t.turn == nil {
		return false
	}
	t.s.mu.Lock()
	left := t.owners > 1 && h.claim.tenure == t && h.claim.holds == 1 && t.takeLocked(h)
	t.s.mu.Unlock()
	if left {
		t.s.observe(t.s.Observer.Released, t, lock.Event{})
	}
	return left
}

// question is ask, for readers who share what is granted. Redis is asked only where
// the tenure of another reader cannot be joined, and no question is under way whose
// answer is for this one too.
func (s *Session) question(ctx, waiting context.Context, t *tenure, c *claim, w *waiter, offer, limit time.Duration) (*hold, time.Duration, error) {
	began := time.Now()
	for alone := false; ; {
		if t.turn == nil || s.beside(c) != nil {
			h, left, err := s.ask(ctx, waiting, t, c, w, offer, limit)
			if h == nil && err == nil && t.spec.shared() && t.spec.Yield {
				s.refuse(t.spec.place())
			}
			return h, left, err
		}
		if h := s.enterOpen(ctx, t.spec, c, 0, true, t.asked, time.Now()); h != nil {
			_ = t.fail(nil) // what it asked before is of no use any more
			return h, 0, nil
		}
		rest := max(limit-time.Since(began), time.Millisecond)
		f, own := s.depart(t, alone)
		if own {
			if w == nil {
				limit = rest
			}
			h, left, err := s.ask(ctx, waiting, t, c, w, offer, limit)
			s.land(f, h != nil, left, err, waiting.Err() == nil)
			return h, left, err
		}
		switch h, err := s.ride(ctx, waiting, f, t, c, rest); {
		case err != nil:
			return nil, 0, err
		case h != nil:
			_ = t.fail(nil)
			return h, 0, nil
		case f.refused && !t.asked.Before(f.t.asked) && t.spec.Yield == f.t.spec.Yield && s.beside(c) == nil:
			return nil, f.left, nil
		}
		alone = f.refused // as it came sooner, or lets nobody pass, it may be let in
	}
}

// depart returns the question that t waits for: that of another reader if one is under
// way that is as good as one for t, and t need not be alone, or else its own.
func (s *Session) depart(t *tenure, alone bool) (f *trip, own bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sh := s.sharedLocked(t.spec.place())
	now := time.Now()
	if f := sh.trip; f != nil && !alone && f.refusals == sh.refusals && f.t.suits(t.spec) && !t.asked.After(f.t.asked.Add(shareTime+now.Sub(f.sent))) && !s.writerWaitsLocked(t.spec) {
		return f, false
	}
	f = &trip{t: t, sent: now, refusals: sh.refusals, over: make(chan struct{})}
	sh.trip = f
	sh.trips++
	return f, true
}

// sharedLocked returns what the readers of a place have in common.
func (s *Session) sharedLocked(key place) *shared {
	sh := s.shares[key]
	if sh == nil {
		sh = &shared{}
		s.shares[key] = sh
	}
	return sh
}

// land lets those in who waited for the question of f, if it was granted, and opens
// the tenure to others. The error is theirs as well, unless it is that the one who asked
// did not wait for the answer.
func (s *Session) land(f *trip, granted bool, left time.Duration, err error, waited bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := f.t
	key := t.spec.place()
	sh := s.shares[key]
	f.landed, f.refused, f.left = true, err == nil && !granted, left
	if waited && !errors.As(err, new(noAnswer)) {
		f.err = err
	}
	if sh.trip == f {
		sh.trip = nil
	}
	sh.trips--
	switch {
	case granted && t.over == lives && !t.beside && !t.unsure && t.pending == 0 && !s.closed:
		t.latest = t.asked.Add(shareTime + t.since.Sub(f.sent))
		if f.refusals == sh.refusals && (sh.open == nil || !t.latest.Before(sh.open.latest)) {
			sh.set(t)
		}
		for _, h := range f.riders {
			h.claim.holdLocked(t)
			t.addLocked(h)
		}
		f.seated = true
	case f.refused && t.spec.Yield:
		sh.refuse()
	}
	s.tidyLocked(key, sh)
	close(f.over)
}

// refuse ends that others join: a reader was refused, as a writer waits, or writes.
func (sh *shared) refuse() {
	sh.refusals++ // also those who were asked for before, and come to know late
	sh.set(nil)
}

// refuse is for a reader who asked for itself alone.
func (s *Session) refuse(key place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sh := s.shares[key]; sh != nil {
		sh.refuse()
		s.tidyLocked(key, sh)
	}
}

func (s *Session) tidyLocked(key place, sh *shared) {
	if sh.open == nil && sh.trips == 0 {
		delete(s.shares, key)
	}
}

// unshareLocked ends that others join t, which is over.
func (s *Session) unshareLocked(t *tenure) {
	if t.turn == nil {
		return
	}
	key := t.spec.place()
	if sh := s.shares[key]; sh != nil && sh.open == t {
		sh.set(nil)
		s.tidyLocked(key, sh)
	}
}

// ride waits for the answer to f, the question of another reader. It returns the hold
// that came of it, nil if none did.
func (s *Session) ride(ctx, waiting context.Context, f *trip, t *tenure, c *claim, limit time.Duration) (*hold, error) {
	h := newHold(ctx, f.t, false)
	h.claim = c
	s.mu.Lock()
	boards := !f.landed
	if boards {
		f.riders = append(f.riders, h)
	}
	s.mu.Unlock()

	timer := time.NewTimer(limit)
	defer timer.Stop()
	var err error
	select {
	case <-f.over:
		err = f.err
	case <-waiting.Done():
		err = waiting.Err()
	case <-timer.C:
		err = noAnswer{s.OpTimeout}
	case <-s.closing:
		err = final{lock.ErrClosed}
	}
	err = s.cutOff(f.sent, err)
	s.mu.Lock()
	if !f.landed {
		f.riders = slices.DeleteFunc(f.riders, func(r *hold) bool { return r == h })
	}
	in := boards && f.seated
	s.mu.Unlock()
	if !in {
		return nil, err
	}
	s.observeAcquired(h, t.asked)
	if err != nil { // crossed the end of the wait
		s.work.Go(func() { _ = s.unlock(context.Background(), h) })
		return nil, err
	}
	return h, nil
}

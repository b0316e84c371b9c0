package session

import (
	"context"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/leasehold-go/leasehold/watchdog"
)

// unlock gives h back.
func (s *Session) unlock(ctx context.Context, h *hold) error {
	t := h.t
	h.look() // a lease that ran out is lost, whoever looks first
	if err := notHeld(h.end(lock.ErrUnlocked)); err != nil {
		return err
	}
	if t.leaveOpen(h) {
		return nil
	}
	if err := s.begin(); err != nil {
		return fmt.Errorf("%w: %w", lock.ErrNotHeld, err) // Close gives it back
	}
	defer s.work.Done()

	// Who defers an unlock means it, also when ctx is over by then.
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	switch out, last, passed := t.remove(h); {
	case passed:
		s.observe(s.Observer.Released, t, lock.Event{})
		return nil
	case last:
		return s.release(ctx, t, 1)
	case out: // others came to share it at this moment
		s.observe(s.Observer.Released, t, lock.Event{})
		return nil
	default:
		return s.reduce(ctx, t)
	}
}

// release gives a tenure that is over back to Redis. It fails with ErrNotHeld
// and ErrLost when Redis has it as gone, and with what went wrong when Redis did
// not confirm; then it goes on in the background. The observer hears of it for so many
// owners.
func (s *Session) release(ctx context.Context, t *tenure, owners int) error {
	began := time.Now()
	t.lease.Stop(ctx) // no renewal may follow the release
	within := max(s.OpTimeout-time.Since(began), 10*time.Millisecond)
	keys, pass, heir := t.pass()
	o := s.give(ctx, t, keys, pass, within)
	if heir != nil {
		s.inherit(heir, pass, o.value, o.err)
	}
	s.unhold(t)
	switch {
	case !o.answered:
		return o.err
	case o.err != nil:
		s.work.Go(func() { s.settle(t, true) })
		return o.err
	}
	if heir == nil {
		s.freed(t.spec, o.value.Aside)
	}
	if t.isUnsure() {
		// A question for this tenure broke off, and may be carried out yet.
		s.work.Go(func() { s.settle(t, true) })
	}
	// Gone at a repetition: the first copy did it, and only its reply was lost.
	if v := o.value.Verdict; v == luascripts.Done || v == luascripts.Gone && (o.repeated || t.isFreed()) {
		for range owners {
			s.observe(s.Observer.Released, t, lock.Event{})
		}
		return nil
	}
	cause := watchdog.ErrGone
	if o.value.Verdict == luascripts.Foreign {
		cause = fmt.Errorf("%w: %w", watchdog.ErrGone, lock.ErrForeignKey)
	}
	for range owners {
		s.observe(s.Observer.Lost, t, lock.Event{Err: t.lostBy(cause)})
	}
	return fmt.Errorf("%w: %w: %w", lock.ErrNotHeld, lock.ErrLost, cause)
}

// given is the answer to a release that was sent then.
type given struct {
	luascripts.Passed
	sent time.Time
}

func (t *tenure) give(ctx context.Context, keys luascripts.Keys, pass luascripts.Pass) (g given, err error) {
	g.sent = time.Now()
	if t.spec.Pass == nil {
		g.Verdict, err = t.spec.Release(ctx, t.s.rdb, keys, t.owner, 0)
	} else {
		g.Passed, err = t.spec.Pass(ctx, t.s.rdb, keys, t.owner, pass)
	}
	return g, err
}

// give insists on the release of t. It is insist, but without what that takes from the
// heap where the caller's own goroutine sends, and is answered.
func (s *Session) give(ctx context.Context, t *tenure, keys luascripts.Keys, pass luascripts.Pass, within time.Duration) (o outcome[given]) {
	if own := s.inline(ctx, within); own != nil {
		began := time.Now()
		o.value, o.err = t.give(own, keys, pass)
		o.answered, o.err = s.inlined(own, o.err)
		if o.err == nil {
			return o
		}
		f := faultOf(o.err)
		if !o.answered {
			s.work.Go(func() { s.settle(t, true) })
		}
		within -= time.Since(began)
		if !o.answered || !f.again || within <= 0 {
			return o
		}
		o.repeated = f.mayHaveRun
	}
	return s.giveAside(ctx, t, keys, pass, within, o.repeated)
}

func (s *Session) giveAside(ctx context.Context, t *tenure, keys luascripts.Keys, pass luascripts.Pass, within time.Duration, repeated bool) outcome[given] {
	o := insist(ctx, s, within, func(ctx context.Context) (given, error) {
		return t.give(ctx, keys, pass)
	}, func(_ given, err error) {
		s.settle(t, err != nil || t.isUnsure())
	})
	o.repeated = o.repeated || repeated
	return o
}

func (t *tenure) isUnsure() bool {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	return t.unsure
}

func (t *tenure) isFreed() bool {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	return t.freed
}

// reduce tells Redis that a tenure which lives on has fewer holds.
func (s *Session) reduce(ctx context.Context, t *tenure) error {
	turn := t.commands()
	began := time.Now()
	if err := s.take(ctx, turn, s.OpTimeout); err != nil {
		if _, over := t.state(); over != lives {
			return reducedAfter(over)
		}
		s.work.Go(func() { s.settle(t, false) })
		return err
	}
	within := max(s.OpTimeout-time.Since(began), 10*time.Millisecond)
	holds, over := t.willChange()
	if over != lives {
		<-turn
		return reducedAfter(over)
	}
	o := insist(ctx, s, within, func(ctx context.Context) (luascripts.Verdict, error) {
		return t.spec.Release(ctx, s.rdb, t.spec.Keys, t.owner, holds)
	}, func(_ luascripts.Verdict, err error) {
		<-turn
		if err != nil {
			s.settle(t, true)
		}
	})
	if !o.answered {
		return o.err
	}
	defer func() { <-turn }()
	if o.err != nil {
		s.work.Go(func() { s.settle(t, true) })
		return o.err
	}
	if o.value == luascripts.Done {
		t.count(holds)
		return nil
	}
	if _, over := t.state(); over != lives {
		return nil
	}
	t.lease.Lose(watchdog.ErrGone)
	return fmt.Errorf("%w: %w: %w", lock.ErrNotHeld, lock.ErrLost, watchdog.ErrGone)
}

// reducedAfter is the answer to an Unlock whose tenure ended before Redis was
// told of it. Whoever ended it sees to all of it; but a loss is not an Unlock.
func reducedAfter(over ending) error {
	if over == lost {
		return fmt.Errorf("%w: %w", lock.ErrNotHeld, lock.ErrLost)
	}
	return nil
}

package multilock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/multilock"
)

// A majority is enough to extend a quorum, even past the end of its fixed leases.
func TestQuorum_extend(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		locks := w.locks("one")
		for i := range locks {
			locks[i].(*fake).forFixed().lease = lease / 2
		}
		start := time.Now()
		h := w.lock(multilock.NewQuorum(locks, with(nil)...))
		time.Sleep(rtt) // so that all three have it
		w.wantHeld("1 2 3")
		w.sites[2].kill()
		if err := h.Extend(w.Context(), lease); err != nil {
			t.Fatal(err)
		}
		if until := h.Until().Sub(start); until < lease*9/10 || until > lease+serverTimeout {
			w.Errorf("until %v, want %v", until, lease)
		}
		time.Sleep(lease * 3 / 4)
		if err := h.Err(); err != nil {
			w.Errorf("after the first lease: %v", err)
		}
		if err := h.Extend(w.Context(), lease+1); err == nil || errors.Is(err, lock.ErrNotHeld) {
			w.Errorf("longer than the longest lease: %v", err)
		}
		if err := h.Extend(w.Context(), lock.MinLease-1); err == nil || strings.Count(err.Error(), "must be at least 10ms") != 1 {
			w.Errorf("shorter than the shortest lease: %v", err)
		}
		if err := h.Extend(w.Context(), lock.MinLease); err != nil {
			w.Errorf("the shortest lease: %v", err)
		}
		w.sites[1].kill()
		if err := h.Extend(w.Context(), lease); err == nil {
			w.Error("a minority extended the quorum")
		}
		<-h.Context().Done()
		want(t, h.Err(), lock.ErrLost)
		want(t, h.Extend(w.Context(), lease), lock.ErrNotHeld, lock.ErrLost)
		want(t, h.Extend(h.Context(), lease), lock.ErrNotHeld, lock.ErrLost)
		_ = h.Unlock(w.Context())
	})
}

// Extend never ends a hold of fixed leases earlier. The errors of the servers are the error of Extend, if a majority of
// them is permanent.
func TestQuorum_extendNeverShortens(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		locks := w.locks("one")
		for _, l := range locks {
			l.(*fake).forFixed()
		}
		h := w.lock(multilock.NewQuorum(locks, with(nil)...))
		until := h.Until()
		if err := h.Extend(w.Context(), lease/4); err != nil {
			w.Error(err)
		}
		if h.Until() != until {
			w.Errorf("Until moves by %v", h.Until().Sub(until))
		}
		w.unlock(h)

		for i, l := range locks {
			locks[i] = witness{hookedLock{Locker: l, after: func(h lock.Hold) lock.Hold { return failsToExtend{h} }}, l.(lockimpl.Witness)}
		}
		h = w.lock(multilock.NewQuorum(locks, with(nil)...))
		w.wantHeld("1 2 3")
		err := h.Extend(w.Context(), lease)
		want(t, err, errFault)
		wantNot(t, err, lock.ErrUnavailable)
		w.unlock(h)
	})
}

// failsToExtend is a hold that cannot be extended.
type failsToExtend struct{ lock.Hold }

func (failsToExtend) Extend(context.Context, time.Duration) error { return errFault }

// After Unlock, Extend extends nothing.
func TestQuorum_extendAfterUnlock(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		h := w.lock(multilock.NewQuorum(w.locks("one"), with(nil)...))
		if err := h.Unlock(w.Context()); err != nil {
			t.Fatal(err)
		}
		err := h.Extend(w.Context(), lease)
		want(t, err, lock.ErrNotHeld)
		if errors.Is(err, lock.ErrLost) {
			w.Errorf("%v: the hold was not lost", err)
		}
		w.wantHeld("")
	})
}

// Extend extends all members of a multi-lock, and names those that it could not extend.
func TestMultiLock_extend(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		a, b := w.locks("a")[0], w.locks("b")[1]
		for _, l := range []lock.Locker{a, b} {
			l.(*fake).forFixed().lease = lease / 2
		}
		h, err := multilock.New(a, b).Lock(w.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Extend(w.Context(), lease); err != nil {
			t.Fatal(err)
		}
		if left := time.Until(h.Until()); left < lease*9/10 {
			w.Errorf("for %v, want %v", left, lease)
		}
		w.sites[1].forget()
		err = h.Extend(w.Context(), lease)
		want(t, err, lock.ErrNotHeld, lock.ErrLost)
		want(t, h.Err(), lock.ErrLost)
		_ = h.Unlock(w.Context())
	})
}

// After the loss of a member, after Unlock, or if its context is canceled, Extend of a multi-lock sends no command.
func TestMultiLock_extendSendsNothing(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		s := w.sites[0]
		h := must(w.T)(multilock.New(s.lock("one", "a", lease), s.lock("one", "b", lease)).Lock(w.Context()))
		extend := func(ctx context.Context) error {
			s.set(func() { s.commands = nil })
			err := h.Extend(ctx, lease)
			synctest.Wait()
			if sent := s.received(); len(sent) > 0 {
				w.Errorf("it sent %q and returned: %v", sent, err)
			}
			return err
		}
		canceled, cancel := context.WithCancel(w.Context())
		cancel()
		want(t, extend(canceled), context.Canceled)
		s.set(func() { delete(s.keys, "b") })
		<-h.Context().Done()
		err := extend(w.Context())
		want(t, err, lock.ErrNotHeld, lock.ErrLost)
		if text := err.Error(); !strings.HasPrefix(text, `leasehold: extend "a+b": not held: leasehold: hold "b": lock lost`) {
			w.Error(text)
		}
		want(t, extend(canceled), lock.ErrNotHeld, lock.ErrLost)
		_ = h.Unlock(w.Context())
		want(t, extend(w.Context()), lock.ErrNotHeld, lock.ErrLost)

		h = must(w.T)(multilock.New(s.lock("one", "a", lease)).Lock(w.Context()))
		w.unlock(h)
		err = extend(w.Context())
		want(t, err, lock.ErrNotHeld)
		wantNot(t, err, lock.ErrLost)
	})
}

// A call that does not get all locks releases those it has. A lock with a minimum hold time cannot be released. A quorum
// needs the replies of the server for each vote, and a kept lock sends no command.
func TestMinHold(t *testing.T) {
	s := locktest.NewServer(t)
	c := s.Client(t)
	for option, opt := range map[string]lock.Option{"WithMinHold": lock.WithMinHold(time.Second), "WithLinger": lock.WithLinger(time.Second)} {
		one, two, three := c.NewLock("1"), c.NewLock("2"), c.NewLock("3", opt)
		for name, l := range map[string]lock.Locker{
			"a multi-lock": multilock.New(one, two, three),
			"a quorum":     multilock.NewQuorum([]lock.Locker{one, two, three}),
		} {
			if _, err := l.TryLock(t.Context()); err == nil || !strings.Contains(err.Error(), "lock 3 of 3: "+option) {
				t.Errorf("%s, %s: %v", name, option, err)
			}
		}
	}
}

// A server that started recently has no vote, so its reply does not extend the quorum.
func TestQuorum_extendWithoutAMajority(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		w.sites[2].restart()
		h := w.lock(multilock.NewQuorum(w.locks("one"), with(nil)...))
		w.wantHeld("1 2 3")
		w.sites[1].pause()
		err := h.Extend(w.Context(), lease)
		want(t, err, lock.ErrUnavailable)
		wantNot(t, err, lock.ErrNotHeld)
		w.sites[1].resume()
		if err := h.Extend(w.Context(), lease); err != nil {
			t.Error(err)
		}
		w.unlock(h)
	})
}

// One server has lost the lock, and another does not respond. Extend fails, but the quorum is still held.
func TestQuorum_extendAfterOneLoss(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		h := w.lock(multilock.NewQuorum(w.locks("one"), with(nil)...))
		w.wantHeld("1 2 3")
		w.sites[0].forget()
		w.sites[1].pause()
		err := h.Extend(w.Context(), lease)
		want(t, err, lock.ErrUnavailable)
		wantNot(t, err, lock.ErrNotHeld, lock.ErrLost)
		if err := h.Err(); err != nil {
			t.Errorf("the hold ended: %v", err)
		}
		w.sites[1].resume()
		w.unlock(h)
	})
}

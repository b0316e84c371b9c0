package session

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

// What ends a hold's context first is its cause, whichever goroutine looks at it, and when.
func TestContext_causeIsWhatCameFirst(t *testing.T) {
	gone := errors.New("the caller has gone")
	looks := map[string]func(context.Context) context.Context{
		"nobody looks":     func(c context.Context) context.Context { return nil },
		"somebody listens": func(c context.Context) context.Context { c.Done(); return nil },
		"derived": func(c context.Context) context.Context {
			d, cancel := context.WithCancel(c)
			t.Cleanup(cancel)
			return d
		},
	}
	for when, first := range looks {
		for then, second := range looks {
			for _, unlocked := range []bool{true, false} {
				inBubble(t, func(w *world) {
					parent, cancel := context.WithCancelCause(context.Background())
					h := w.lock(w.a, parent)
					c := h.Context()
					derived := []context.Context{c, first(c)}
					want, ends := lock.ErrUnlocked, []func(){func() { w.unlock(h) }, func() { cancel(gone) }}
					if !unlocked {
						want, ends[0], ends[1] = gone, ends[1], ends[0]
					}
					if c.Err() != nil || context.Cause(c) != nil || h.Err() != nil {
						w.Errorf("over before anything ended it: %v", h.Err())
					}
					ends[0]()
					derived = append(derived, second(c))
					ends[1]()
					for _, c := range append(derived, h.Context()) {
						if c == nil {
							continue
						}
						select {
						case <-c.Done():
						default:
							w.Errorf("%s, %s: the channel is open", when, then)
						}
						if cause := context.Cause(c); !errors.Is(cause, want) || !errors.Is(c.Err(), context.Canceled) {
							w.Errorf("%s, %s: it ended by %v (%v), want %v", when, then, cause, c.Err(), want)
						}
					}
					if !errors.Is(h.Err(), want) {
						w.Errorf("%s, %s: Err is %v, want %v", when, then, h.Err(), want)
					}
				})
			}
		}
	}
}

// nosy is a caller's context, whose Done first does something else. It counts what waits for its end.
type nosy struct {
	context.Context
	first func()
	done  chan struct{}
	waits int
}

func (c *nosy) Done() <-chan struct{} {
	if f := c.first; f != nil {
		c.first = nil
		f()
	}
	return c.done
}

// AfterFunc is for package context, which calls it in place of a goroutine.
func (c *nosy) AfterFunc(func()) (stop func() bool) {
	c.waits++
	return func() bool { c.waits--; return true }
}

// Two ask for the context of a hold at once. Both get the same, and nothing is left of the other in the caller's context, which
// may live for as long as the program.
func TestContext_leavesNothingInTheCallers(t *testing.T) {
	inBubble(t, func(w *world) {
		parent := &nosy{Context: w.Context(), done: make(chan struct{})}
		h := w.lock(w.a, parent)
		waits := parent.waits
		var other <-chan struct{}
		parent.first = func() { other = h.Context().Done() }
		if done := h.Context().Done(); other == nil || done != other {
			w.Error("two ends of one hold")
		}
		if n := parent.waits - waits; n != 1 {
			w.Errorf("the caller's context tells %d of its end, want 1", n)
		}
		w.unlock(h)
		if n := parent.waits - waits; n != 0 {
			w.Errorf("the caller's context tells %d of its end after Unlock", n)
		}
	})
}

// A hold that was released says of which lock it was, as one that was lost does.
func TestContext_namesTheLock(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		w.unlock(h)
		for how, err := range map[string]error{"Err": h.Err(), "the context": context.Cause(h.Context())} {
			var of *lock.Error
			if !errors.As(err, &of) || of.Name != "orders" || !errors.Is(err, lock.ErrUnlocked) {
				w.Errorf("%s: %v", how, err)
			}
		}
	})
}

// Until promises no more than the lease, though the limit of the hold lies far ahead.
func TestUntil_beforeALimitThatIsFar(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context(), lock.WithMaxHold(time.Hour))
		if left := time.Until(h.Until()); left > leaseTime {
			w.Errorf("a lease of %v lasts for %v", leaseTime, left)
		}
		w.unlock(h)
	})
}

// A process was stopped, and sees a second after the end of a lease that it is over. Until says when that was.
func TestUntil_ofALossThatIsSeenLate(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.b, w.Context(), lock.WithFixedLease(time.Second))
		until := h.Until()
		if before := h.(*hold).endAt(lock.ErrExpired, until.Add(time.Second)); before != nil {
			w.Fatal(before)
		}
		if got := h.Until(); !got.Equal(until) {
			w.Errorf("it moved by %v", got.Sub(until))
		}
	})
}

// A kind that is never entered again carries on the owner of its caller: under the context of such a hold, the caller's locks are
// entered once more.
func TestContext_carriesTheCallersOwner(t *testing.T) {
	inBubble(t, func(w *world) {
		outer := w.lock(w.a, lock.ContextWithNewOwner(w.Context()))
		k := *plain
		k.NonReentrant = true
		permit, err := w.a.Lock(outer.Context(), w.a.NewSpec(&k, "permits", nil))
		if err != nil {
			w.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(permit.Context(), pollTime)
		defer cancel()
		inner, err := w.a.Lock(ctx, w.a.NewSpec(plain, "orders", nil))
		if err != nil {
			w.Fatal(err)
		}
		if permit.Owner() == outer.Owner() || inner.Owner() != outer.Owner() || w.count(outer) != 2 {
			w.Errorf("%s, %s, %s: %d holds", outer.Owner(), permit.Owner(), inner.Owner(), w.count(outer))
		}
		w.unlock(inner)
		w.unlock(permit)
		w.unlock(outer)
	})
}

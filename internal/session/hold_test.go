package session

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

// The first event that ends a hold's context is its cause, whichever goroutine checks it, and when. It cancels the context and
// those derived from it immediately.
func TestContext_firstCause(t *testing.T) {
	gone := errors.New("the caller has gone")
	checks := map[string]func(context.Context) context.Context{
		"no call checks":        func(c context.Context) context.Context { return nil },
		"a call waits for Done": func(c context.Context) context.Context { c.Done(); return nil },
		"derived": func(c context.Context) context.Context {
			d, cancel := context.WithCancel(c)
			t.Cleanup(cancel)
			return d
		},
	}
	for when, first := range checks {
		for then, second := range checks {
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
						w.Errorf("canceled before any event: %v", h.Err())
					}
					ends[0]()
					for _, c := range derived {
						if c != nil && c.Err() == nil {
							w.Errorf("%s: not canceled immediately", when)
						}
					}
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

// hookedContext is a caller's context whose Done first runs a function. It counts the AfterFuncs registered on it.
type hookedContext struct {
	context.Context
	first func()
	done  chan struct{}
	waits int
}

func (c *hookedContext) Done() <-chan struct{} {
	if f := c.first; f != nil {
		c.first = nil
		f()
	}
	return c.done
}

// AfterFunc is called by package context instead of starting a goroutine.
func (c *hookedContext) AfterFunc(func()) (stop func() bool) {
	c.waits++
	return func() bool { c.waits--; return true }
}

// Two goroutines request the context of a hold at the same time. Both get the same context, and the other one leaves
// nothing in the caller's context, which may live as long as the program.
func TestContext_leavesNothingInTheParent(t *testing.T) {
	inBubble(t, func(w *world) {
		parent := &hookedContext{Context: w.Context(), done: make(chan struct{})}
		h := w.lock(w.a, parent)
		waits := parent.waits
		var other <-chan struct{}
		parent.first = func() { other = h.Context().Done() }
		if done := h.Context().Done(); other == nil || done != other {
			w.Error("two ends of one hold")
		}
		if n := parent.waits - waits; n != 1 {
			w.Errorf("the caller's context has %d AfterFuncs, want 1", n)
		}
		w.unlock(h)
		if n := parent.waits - waits; n != 0 {
			w.Errorf("the caller's context has %d AfterFuncs after Unlock", n)
		}
	})
}

// The error of a released hold names the lock, like the error of a lost hold.
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

// While Close ends a hold, its lease may be stopped already. That is not a loss.
func TestHold_leaseStopped(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		h.(*hold).acquisition().lease.Stop(w.Context())
		w.wantNoErr(h.Err())
		w.unlock(h)
	})
}

// Until returns no more than the lease, even if the limit of the hold is later.
func TestUntil_beforeADistantLimit(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context(), lock.WithMaxHold(time.Hour))
		if left := time.Until(h.Until()); left > leaseTime {
			w.Errorf("a lease of %v lasts for %v", leaseTime, left)
		}
		w.unlock(h)
	})
}

// A process was paused, and detects the expiry of a lease a second late. Until returns when the lease expired.
func TestUntil_lossDetectedLate(t *testing.T) {
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

// The contexts of a non-reentrant kind carry the caller's owner: under such a context, the caller's locks are
// re-entered.
func TestContext_carriesTheCallersOwner(t *testing.T) {
	inBubble(t, func(w *world) {
		outer := w.lock(w.a, lock.ContextWithNewOwner(w.Context()))
		k := *plain
		k.NonReentrant = true
		permit := w.mustLock(outer.Context(), w.a.NewSpec(&k, "permits", nil))
		ctx, cancel := context.WithTimeout(permit.Context(), pollTime)
		defer cancel()
		inner := w.mustLock(ctx, w.a.NewSpec(plain, "orders", nil))
		if permit.Owner() == outer.Owner() || inner.Owner() != outer.Owner() || w.count(outer) != 2 {
			w.Errorf("%s, %s, %s: %d holds", outer.Owner(), permit.Owner(), inner.Owner(), w.count(outer))
		}
		w.unlockAll(inner, permit, outer)
	})
}

// stateHook is a context that calls f before each Err and each Value.
type stateHook struct {
	context.Context
	f func()
}

func (c *stateHook) Err() error {
	c.f()
	return c.Context.Err()
}

func (c *stateHook) Value(key any) any {
	c.f()
	return c.Context.Value(key)
}

// No method of a caller's context is called with the mutex of the state: it may wait for a goroutine that needs that mutex.
func TestContext_calledWithoutTheMutex(t *testing.T) {
	onLingering(t, func(w *world, k *Kind) {
		w.keepLock(k, lingers)
		spec := w.a.NewSpec(k, "orders", []lock.Option{lingers})
		at := w.a.find(spec.id)
		ctx := &stateHook{w.Context(), func() {
			for range 1_000_000 { // another goroutine that has the mutex soon unlocks it
				if at.mu.TryLock() {
					at.mu.Unlock()
					return
				}
				runtime.Gosched()
			}
			w.Error("called with the mutex")
		}}
		h := w.take(w.a, k, ctx, lingers) // it was kept
		next := w.waitingFor(w.a, ctx, spec)
		time.Sleep(time.Millisecond)
		w.unlock(h)
		w.unlock(w.next(next)) // a plain or fair lock is handed off
		time.Sleep(lingerTime) // if it is kept
		w.mini.SetError(loading)
		next = w.waitingFor(w.a, ctx, w.a.NewSpec(k, "orders", nil))
		w.mini.SetError("")
		w.unlock(<-next)
		if k == writing {
			w.unlock(w.take(w.a, reading, ctx))
		}
	})
}

// The context of a hold carries that hold, and not the hold under which it was acquired: a token from the context is its own.
func TestContext_carriesItsHold(t *testing.T) {
	inBubble(t, func(w *world) {
		outer := w.lock(w.a, context.Background())
		ctx, cancel := context.WithCancel(outer.Context())
		defer cancel()
		if got := lock.HoldFromContext(ctx); got != outer {
			w.Errorf("from a derived context: %v, want %v", got, outer)
		}
		err := lock.Do(ctx, locker{w.a, w.a.NewSpec(plain, "other", nil)}, func(ctx context.Context) error {
			inner, err := w.a.Lock(ctx, w.a.NewSpec(plain, "inner", nil))
			if err != nil {
				return err
			}
			work := lock.HoldFromContext(ctx)
			if got := lock.HoldFromContext(inner.Context()); got != inner || work == outer || work == inner {
				w.Errorf("nested: %v in %v, want %v", got, work, inner)
			}
			return inner.Unlock(ctx)
		})
		if err != nil {
			w.Error(err)
		}
		w.unlock(outer)
	})
}

// The context of a hold is first checked after the hold has ended and its parent was canceled. Its cause is the end of the
// hold, which came first.
func TestContext_firstLookAfterTheEnd(t *testing.T) {
	inBubble(t, func(w *world) {
		gone := errors.New("the caller has gone")
		parent, cancel := context.WithCancelCause(context.Background())
		h := w.lock(w.a, parent)
		w.unlock(h)
		cancel(gone)
		if cause := context.Cause(h.Context()); !errors.Is(cause, lock.ErrUnlocked) || errors.Is(cause, gone) {
			w.Error(cause)
		}
	})
}

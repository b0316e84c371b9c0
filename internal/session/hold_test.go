package session

import (
	"context"
	"errors"
	"testing"

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

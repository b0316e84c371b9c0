package leader_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/leader"
	"github.com/leasehold-go/leasehold/lock"
)

// pausedHold is a hold whose context has an error before its channel is closed, as in a process that was paused.
type pausedHold struct {
	context.Context
	ended atomic.Bool
	lost  atomic.Pointer[func()] // called by the next Err, like an observer that is notified of the loss
}

func (h *pausedHold) Name() string                               { return "paused" }
func (h *pausedHold) Lock(context.Context) (lock.Hold, error)    { return held{h}, nil }
func (h *pausedHold) TryLock(context.Context) (lock.Hold, error) { return held{h}, nil }
func (h *pausedHold) Err() error {
	if lost := h.lost.Swap(nil); lost != nil {
		(*lost)()
	}
	if h.ended.Load() {
		return context.Canceled
	}
	return h.Context.Err()
}

type held struct{ h *pausedHold }

func (h held) Context() context.Context                    { return h.h }
func (h held) Unlock(context.Context) error                { return nil }
func (h held) Extend(context.Context, time.Duration) error { return nil }
func (h held) Err() error                                  { return h.h.Err() }
func (h held) Until() time.Time                            { return time.Now().Add(time.Hour) }
func (h held) Token() uint64                               { return 1 }
func (h held) Owner() string                               { return "" }

// emptyStore is a store without values.
type emptyStore struct{}

func (emptyStore) Publish(context.Context, lock.Hold, string, time.Duration) error { return nil }
func (emptyStore) Clear(context.Context, lock.Hold) error                          { return nil }
func (emptyStore) Read(context.Context) (leader.Leader, bool, error) {
	return leader.Leader{}, false, nil
}
func (emptyStore) Watch(func()) (func(), error) { return func() {}, nil }

// A leader that checks its context detects the loss immediately, even before its channel is closed.
func TestElection_paused(t *testing.T) {
	h := &pausedHold{Context: t.Context()}
	e := leader.New(h, emptyStore{})
	own := errors.New("seen")
	err := e.Run(t.Context(), "", func(ctx context.Context) error {
		if ctx.Err() != nil || !e.Leading() {
			t.Error("the leader does not lead")
		}
		h.ended.Store(true)
		if ctx.Err() == nil || e.Leading() || e.Resign() {
			t.Error("the paused leader acts as the leader")
		}
		return own
	})
	if !errors.Is(err, own) {
		t.Error(err)
	}
}

// A call detects that the lock is lost. The observer that is notified in the same goroutine calls the election.
func TestElection_calledByAnObserver(t *testing.T) {
	for name, call := range map[string]func(e *leader.Election) bool{
		"Leading": (*leader.Election).Leading,
		"Resign":  (*leader.Election).Resign,
		"Publish": func(e *leader.Election) bool { return e.Publish(t.Context(), "") == nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := &pausedHold{Context: t.Context()}
			e := leader.New(h, emptyStore{})
			called := false
			observer := func() {
				called = true
				h.ended.Store(true)
				leads := make(chan bool, 1)
				go func() { leads <- e.Leading() }()
				select {
				case l := <-leads:
					if l {
						t.Error("it leads after the loss")
					}
				case <-time.After(time.Minute):
					t.Error("the observer waits for the call that it was called by")
				}
			}
			if err := e.Run(t.Context(), "", func(context.Context) error {
				h.lost.Store(&observer)
				if call(e) {
					t.Error("it succeeds after the loss")
				}
				return errors.New("done")
			}); err == nil || !called {
				t.Errorf("%v, called %t", err, called)
			}
		})
	}
}

// discardingStore discards all values.
type discardingStore struct {
	emptyStore
	posts chan string // receives each published value
}

func (b discardingStore) Publish(_ context.Context, _ lock.Hold, value string, _ time.Duration) error {
	select {
	case <-b.posts:
	default:
	}
	b.posts <- value
	return lock.ErrUnavailable
}

// A leader that has resigned publishes nothing, even when it leads again, and does not wait for that. Its lock is
// released after its function has returned.
func TestPublish_afterResigning(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // only if the test fails
	defer cancel()
	h, b := &pausedHold{Context: ctx}, discardingStore{posts: make(chan string, 1)}
	e := leader.New(h, b)
	rounds := 0
	err := e.Run(ctx, "", func(context.Context) error {
		value := soon(t, b.posts)
		if rounds++; rounds > 1 {
			if value != "in time" {
				t.Errorf("got %q", value)
			}
			return nil
		}
		under := runs(func() error { return e.Publish(ctx, "in time") })
		for soon(t, b.posts) != "in time" {
		}
		if !e.Resign() {
			t.Error("it did not resign")
		}
		if err := soon(t, under); !errors.Is(err, leader.ErrNotLeading) || !errors.Is(err, leader.ErrResigned) {
			t.Error(err)
		}
		if err := e.Publish(ctx, "late"); !errors.Is(err, leader.ErrNotLeading) {
			t.Error(err)
		}
		return nil
	})
	if err != nil || rounds != 2 {
		t.Error(err, rounds)
	}
}

// failingStore returns its errors one by one, and then discards all values.
type failingStore struct {
	emptyStore
	errs  chan error
	posts chan string
}

func (b failingStore) Publish(_ context.Context, _ lock.Hold, value string, _ time.Duration) error {
	b.posts <- value
	select {
	case err := <-b.errs:
		return err
	default:
		return nil
	}
}

// The context of Publish is canceled while Redis is unavailable. The error has the cause.
func TestPublish_canceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := failingStore{errs: make(chan error, 9), posts: make(chan string, 99)}
		e := leader.New(&pausedHold{Context: t.Context()}, b)
		if err := e.Run(t.Context(), "old", func(ctx context.Context) error {
			synctest.Wait()
			b.errs <- lock.ErrUnavailable
			b.errs <- lock.ErrUnavailable
			why := errors.New("shutting down")
			ctx, cancel := context.WithTimeoutCause(ctx, 1500*time.Millisecond, why)
			defer cancel()
			if err := e.Publish(ctx, "new"); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, why) || err.Error() != `leasehold: publish "paused": context deadline exceeded: shutting down` {
				t.Error(err)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	})
}

// A permanent error ends Publish, and an unavailable Redis does not; the value is published later anyway.
func TestPublish_refused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := errors.New("full")
		for _, step := range []struct {
			errs []error
			want error
		}{
			{[]error{lock.ErrUnavailable, fmt.Errorf("paused: %w", lock.ErrUnavailable)}, nil},
			{[]error{own}, own},
			{[]error{lock.ErrUnavailable, &lock.Error{Op: "post", Name: "store", Err: own}}, own},
			{[]error{&lock.Error{Op: "post", Name: "store", Err: leader.ErrNotLeading}}, leader.ErrNotLeading},
		} {
			b := failingStore{errs: make(chan error, 9), posts: make(chan string, 99)}
			e := leader.New(&pausedHold{Context: t.Context()}, b)
			if err := e.Run(t.Context(), "old", func(ctx context.Context) error {
				synctest.Wait()
				<-b.posts
				for _, err := range step.errs {
					b.errs <- err
				}
				ctx, cancel := context.WithTimeout(ctx, time.Minute)
				defer cancel()
				err := e.Publish(ctx, "new")
				var named *lock.Error
				if !errors.Is(err, step.want) || err != nil && (!errors.As(err, &named) || named.Op != "publish" || named.Name != "paused") {
					t.Errorf("after %v: %v, want %v", step.errs, err, step.want)
				}
				if err != nil && strings.Count(err.Error(), "leasehold:") != 1 {
					t.Error(err)
				}
				if n := len(b.posts); n != len(step.errs)+1 && step.want == nil || n != len(step.errs) && step.want != nil {
					t.Errorf("after %v: posted %d times", step.errs, n)
				}
				if step.want != nil {
					for range step.errs {
						<-b.posts
					}
					if value := <-b.posts; value != "new" {
						t.Errorf("after %v: published %q", step.errs, value)
					}
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		}
	})
}

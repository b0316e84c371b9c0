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

// frozenHold is a hold whose context has an error before its channel is closed, as in a process that was paused.
type frozenHold struct {
	context.Context
	over atomic.Bool
}

func (h *frozenHold) Name() string                               { return "frozen" }
func (h *frozenHold) Lock(context.Context) (lock.Hold, error)    { return held{h}, nil }
func (h *frozenHold) TryLock(context.Context) (lock.Hold, error) { return held{h}, nil }
func (h *frozenHold) Err() error {
	if h.over.Load() {
		return context.Canceled
	}
	return h.Context.Err()
}

type held struct{ h *frozenHold }

func (h held) Context() context.Context                    { return h.h }
func (h held) Unlock(context.Context) error                { return nil }
func (h held) Extend(context.Context, time.Duration) error { return nil }
func (h held) Err() error                                  { return h.h.Err() }
func (h held) Until() time.Time                            { return time.Now().Add(time.Hour) }
func (h held) Token() uint64                               { return 1 }
func (h held) Owner() string                               { return "" }

// noBoard is a store without values.
type noBoard struct{}

func (noBoard) Publish(context.Context, lock.Hold, string, time.Duration) error { return nil }
func (noBoard) Clear(context.Context, lock.Hold) error                          { return nil }
func (noBoard) Read(context.Context) (leader.Leader, bool, error)               { return leader.Leader{}, false, nil }
func (noBoard) Watch(func()) (func(), error)                                    { return func() {}, nil }

// A leader that checks its context detects the loss immediately, even before its channel is closed.
func TestElection_frozen(t *testing.T) {
	h := &frozenHold{Context: t.Context()}
	e := leader.New(h, noBoard{})
	own := errors.New("seen")
	err := e.Run(t.Context(), "", func(ctx context.Context) error {
		if ctx.Err() != nil || !e.Leading() {
			t.Error("it does not lead")
		}
		h.over.Store(true)
		if ctx.Err() == nil || e.Leading() || e.Resign() {
			t.Error("it believes to lead")
		}
		return own
	})
	if !errors.Is(err, own) {
		t.Error(err)
	}
}

// deafBoard discards all values.
type deafBoard struct {
	noBoard
	posts chan string // the latest value
}

func (b deafBoard) Publish(_ context.Context, _ lock.Hold, value string, _ time.Duration) error {
	select {
	case <-b.posts:
	default:
	}
	b.posts <- value
	return lock.ErrUnavailable
}

// A leader that has resigned publishes nothing, even when it leads again, and does not wait for that. Its lock is
// released after its function has returned.
func TestElection_proclaimsAfterResigning(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // only if the test fails
	defer cancel()
	h, b := &frozenHold{Context: ctx}, deafBoard{posts: make(chan string, 1)}
	e := leader.New(h, b)
	turns := 0
	err := e.Run(ctx, "", func(context.Context) error {
		said := soon(t, b.posts)
		if turns++; turns > 1 {
			if said != "in time" {
				t.Errorf("it says %q", said)
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
	if err != nil || turns != 2 {
		t.Error(err, turns)
	}
}

// crossBoard returns its errors one by one, and then discards all values.
type crossBoard struct {
	noBoard
	errs  chan error
	posts chan string
}

func (b crossBoard) Publish(_ context.Context, _ lock.Hold, value string, _ time.Duration) error {
	b.posts <- value
	select {
	case err := <-b.errs:
		return err
	default:
		return nil
	}
}

// A permanent error ends Publish, and an unavailable Redis does not; the value is published later anyway.
func TestPublish_refused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := errors.New("full")
		for _, step := range []struct {
			errs []error
			want error
		}{
			{[]error{lock.ErrUnavailable, fmt.Errorf("frozen: %w", lock.ErrUnavailable)}, nil},
			{[]error{own}, own},
			{[]error{lock.ErrUnavailable, &lock.Error{Op: "post", Name: "store", Err: own}}, own},
			{[]error{&lock.Error{Op: "post", Name: "store", Err: leader.ErrNotLeading}}, leader.ErrNotLeading},
		} {
			b := crossBoard{errs: make(chan error, 9), posts: make(chan string, 99)}
			e := leader.New(&frozenHold{Context: t.Context()}, b)
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
				if !errors.Is(err, step.want) || err != nil && (!errors.As(err, &named) || named.Op != "publish" || named.Name != "frozen") {
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
					if said := <-b.posts; said != "new" {
						t.Errorf("after %v it says %q", step.errs, said)
					}
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		}
	})
}

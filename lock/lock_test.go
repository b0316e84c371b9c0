package lock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

func TestError(t *testing.T) {
	err := error(&lock.Error{Op: "unlock", Name: "orders:42", Err: fmt.Errorf("%w: %w", lock.ErrNotHeld, io.EOF)})
	if got, want := err.Error(), `leasehold: unlock "orders:42": not held: EOF`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, io.EOF) {
		t.Error("the reasons are hidden")
	}
	if got := (&lock.Error{Op: "open", Err: io.EOF}).Error(); got != "leasehold: open: EOF" {
		t.Error(got)
	}
	for _, name := range []string{strings.Repeat("x", 1<<20), strings.Repeat("\n", 1<<20)} {
		if got := (&lock.Error{Op: "lock", Name: name, Err: io.EOF}).Error(); len(got) > 1000 || strings.Contains(got, "\n") {
			t.Errorf("a name of a megabyte makes an error of %d bytes", len(got))
		}
	}
}

// holder is a Locker with a single hold, which was lost if loss is not nil.
type holder struct{ loss, unlock error }

func (h holder) Name() string                               { return "orders" }
func (h holder) Lock(context.Context) (lock.Hold, error)    { return h, nil }
func (h holder) TryLock(context.Context) (lock.Hold, error) { return h, nil }
func (h holder) Context() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	if h.loss != nil {
		cancel(h.loss)
	}
	_ = cancel
	return ctx
}
func (h holder) Unlock(context.Context) error { return h.unlock }
func (h holder) Err() error                   { return h.loss }
func (h holder) Until() time.Time             { return time.Time{} }
func (h holder) Token() uint64                { return 0 }
func (h holder) Owner() string                { return "" }

func (h holder) Extend(context.Context, time.Duration) error { return nil }

// Do returns each error exactly once.
func TestDo_errors(t *testing.T) {
	loss := &lock.Error{Op: "hold", Name: "orders", Err: fmt.Errorf("%w: lease expired", lock.ErrLost)}
	late := &lock.Error{Op: "unlock", Name: "orders", Err: fmt.Errorf("%w: %w", lock.ErrNotHeld, loss.Err)}
	other := &lock.Error{Op: "hold", Name: "other", Err: fmt.Errorf("%w: lease expired", lock.ErrLost)}
	silent := &lock.Error{Op: "unlock", Name: "other", Err: lock.ErrUnavailable}
	for name, c := range map[string]struct {
		h    holder
		fn   error
		want string
	}{
		"all is well":                   {holder{}, nil, "<nil>"},
		"fn fails":                      {holder{}, io.EOF, "EOF"},
		"Unlock fails":                  {holder{unlock: io.EOF}, nil, "EOF"},
		"both fail":                     {holder{unlock: io.EOF}, io.ErrNoProgress, io.ErrNoProgress.Error() + "\nEOF"},
		"lost, told by fn":              {holder{loss, late}, fmt.Errorf("work: %w", loss), "work: " + loss.Error()},
		"lost, not told by fn":          {holder{loss, late}, context.Canceled, "context canceled\n" + late.Error()},
		"lost, and fn went well":        {holder{loss, late}, nil, late.Error()},
		"one of several is lost":        {holder{loss, errors.Join(late, other)}, loss, loss.Error()},
		"another one may be held":       {holder{loss, errors.Join(late, silent)}, loss, loss.Error() + "\n" + silent.Error()},
		"lost, and fn lost another one": {holder{loss, late}, other, other.Error() + "\n" + late.Error()},
	} {
		err := lock.Do(t.Context(), c.h, func(context.Context) error { return c.fn })
		if got := fmt.Sprint(err); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		err = lock.TryDo(t.Context(), c.h, func(context.Context) error { return c.fn })
		if got := fmt.Sprint(err); got != c.want {
			t.Errorf("%s, TryDo: %q, want %q", name, got, c.want)
		}
	}
}

// busy is a Locker held by another owner.
type busy struct{ holder }

func (busy) Lock(context.Context) (lock.Hold, error)    { panic("TryDo waits") }
func (busy) TryLock(context.Context) (lock.Hold, error) { return nil, lock.ErrNotAcquired }

// TryDo neither waits nor calls its function when another owner has the lock.
func TestTryDo_busy(t *testing.T) {
	err := lock.TryDo(t.Context(), busy{}, func(context.Context) error {
		t.Error("it was called")
		return nil
	})
	if !errors.Is(err, lock.ErrNotAcquired) {
		t.Error(err)
	}
}

// under is a Locker whose holds derive their context from the context given to Lock, as other implementations of Locker may do.
// It calls lock just before Lock returns.
type under struct {
	busy
	lock     func(ctx context.Context)
	ctx      context.Context
	end      context.CancelCauseFunc
	deadline bool // whether the context given to Lock had a deadline
}

func (l *under) Lock(ctx context.Context) (lock.Hold, error) { return l.TryLock(ctx) }

func (l *under) TryLock(ctx context.Context) (lock.Hold, error) {
	l.ctx, l.end = context.WithCancelCause(ctx)
	_, l.deadline = ctx.Deadline()
	if l.lock != nil {
		l.lock(l.ctx)
	}
	return l, nil
}

func (l *under) Context() context.Context { return l.ctx }
func (l *under) Err() error               { return context.Cause(l.ctx) }
func (l *under) Unlock(context.Context) error {
	l.end(lock.ErrUnlocked)
	return nil
}

// The context of the function, and contexts derived from it, are canceled with the caller's context, with the same error and
// cause. The hold continues.
func TestDo_canceled(t *testing.T) {
	why := errors.New("shutting down")
	for name, c := range map[string]struct {
		begin     func(context.Context) (context.Context, func())
		err, want error
	}{
		"canceled": {func(ctx context.Context) (context.Context, func()) {
			ctx, cancel := context.WithCancelCause(ctx)
			return ctx, func() { cancel(why) }
		}, context.Canceled, why},
		"deadline": {func(ctx context.Context) (context.Context, func()) {
			ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, why)
			return ctx, func() { time.Sleep(time.Minute + time.Second); cancel() }
		}, context.DeadlineExceeded, why},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				type key struct{}
				l := new(under)
				for _, do := range []func(context.Context, lock.Locker, func(context.Context) error) error{lock.Do, lock.TryDo} {
					ctx, cancel := c.begin(context.WithValue(t.Context(), key{}, "value"))
					var leaked context.Context
					err := do(ctx, l, func(work context.Context) error {
						leaked = work
						child, stop := context.WithTimeout(work, time.Hour)
						defer stop()
						deadline, has := ctx.Deadline()
						if d, ok := work.Deadline(); !d.Equal(deadline) || ok != has {
							t.Errorf("the deadline is %v, %v", d, ok)
						}
						if d, ok := lock.HoldFromContext(work).Context().Deadline(); ok || l.deadline {
							t.Errorf("the hold has the deadline %v, or its Lock had one: %v", d, l.deadline)
						}
						if work.Err() != nil || context.Cause(work) != nil {
							t.Errorf("at first: %v, %v", work.Err(), context.Cause(work))
						}
						cancel()
						if err := work.Err(); err != c.err {
							t.Errorf("at once: %v", err)
						}
						<-work.Done()
						<-child.Done()
						for _, ctx := range []context.Context{work, child} {
							if err, cause := ctx.Err(), context.Cause(ctx); err != c.err || cause != c.want {
								t.Errorf("%v, %v", err, cause)
							}
						}
						h := lock.HoldFromContext(child)
						if h != lock.Hold(l) || h.Err() != nil || h.Context().Err() != nil || h.Context().Value(key{}) != "value" || work.Value(key{}) != "value" {
							t.Errorf("the hold is %v, %v", h, h.Err())
						}
						return nil
					})
					if err != nil {
						t.Error(err)
					}
					if err := context.Cause(leaked); err != c.want {
						t.Errorf("afterwards: %v", err)
					}
				}
			})
		})
	}
}

// When the hold is lost, the context of the function and contexts derived from it are canceled.
func TestDo_lost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		loss := fmt.Errorf("%w: lease expired", lock.ErrLost)
		for name, ctx := range map[string]context.Context{"may be canceled": t.Context(), "is never canceled": context.Background()} {
			l := new(under)
			var leaked context.Context
			err := lock.Do(ctx, l, func(work context.Context) error {
				leaked = work
				if lock.HoldFromContext(work) != lock.Hold(l) || work.Err() != nil {
					t.Errorf("%s: %v, %v", name, lock.HoldFromContext(work), work.Err())
				}
				l.end(loss)
				if err := context.Cause(work); err != loss || work.Err() != context.Canceled {
					t.Errorf("%s: %v, %v", name, err, work.Err())
				}
				return nil
			})
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if err := lock.Do(ctx, l, func(work context.Context) error { leaked = work; return nil }); err != nil || !errors.Is(context.Cause(leaked), lock.ErrUnlocked) {
				t.Errorf("%s: %v, and the context after Unlock: %v", name, err, context.Cause(leaked))
			}
		}
	})
}

// The caller's context limits the wait. If it is canceled just after the grant, together with the hold's context, the lock is
// unlocked and the function is not called.
func TestDo_canceledWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		why := errors.New("shutting down")
		ctx, cancel := context.WithCancelCause(t.Context())
		l := &under{lock: func(ctx context.Context) {
			cancel(why)
			<-ctx.Done()
		}}
		for _, call := range []func() error{
			func() error {
				return lock.Do(ctx, l, func(context.Context) error { panic("it was called") })
			},
			func() error {
				_, err := lock.UntilUnlock(l).Lock(ctx)
				return err
			},
		} {
			err := call()
			if !errors.Is(err, context.Canceled) || !errors.Is(err, why) || errors.Is(err, lock.ErrNotAcquired) || !strings.Contains(err.Error(), `"orders"`) {
				t.Error(err)
			}
			if !errors.Is(l.Err(), why) || l.ctx.Err() == nil {
				t.Errorf("the hold: %v", l.Err())
			}
		}
	})
}

// The cause of the caller's context may be the error of another call. The error of the wait does not match that error.
func TestUntilUnlock_causeOfAnotherCall(t *testing.T) {
	why := errors.New("shutting down")
	for _, other := range []error{lock.ErrNotAcquired, lock.ErrUnavailable} {
		ctx, cancel := context.WithCancelCause(t.Context())
		l := &under{lock: func(context.Context) {
			cancel(&lock.Error{Op: "lock", Name: "bills", Err: fmt.Errorf("%w: %w", other, why)})
		}}
		_, err := lock.UntilUnlock(l).TryLock(ctx)
		var e *lock.Error
		if errors.Is(err, other) || !errors.Is(err, context.Canceled) || !errors.Is(err, why) || !errors.As(err, &e) || e.Name != "orders" {
			t.Error(err)
		}
	}
}

// If Lock panics, the context that was passed to it is no longer canceled with the caller's.
func TestUntilUnlock_panics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var waits context.Context
		func() {
			defer func() { _ = recover() }()
			_, _ = lock.UntilUnlock(&under{lock: func(ctx context.Context) { waits = ctx; panic("oops") }}).TryLock(ctx)
		}()
		cancel()
		synctest.Wait()
		if err := waits.Err(); err != nil {
			t.Error(err)
		}
	})
}

func TestHoldFromContext_none(t *testing.T) {
	if h := lock.HoldFromContext(t.Context()); h != nil {
		t.Error(h)
	}
}

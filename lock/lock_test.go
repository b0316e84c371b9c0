package lock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
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

// holder is a Locker whose one hold was lost, or was not.
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

// Do returns each error, and each once.
func TestDo_errors(t *testing.T) {
	loss := &lock.Error{Op: "hold", Name: "orders", Err: fmt.Errorf("%w: the lease ran out", lock.ErrLost)}
	late := &lock.Error{Op: "unlock", Name: "orders", Err: fmt.Errorf("%w: %w", lock.ErrNotHeld, loss.Err)}
	other := &lock.Error{Op: "hold", Name: "other", Err: fmt.Errorf("%w: the lease ran out", lock.ErrLost)}
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

// busy is a Locker that another owner has.
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

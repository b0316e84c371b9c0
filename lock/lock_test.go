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

func TestNewConfig(t *testing.T) {
	for name, c := range map[string]struct {
		opts []lock.Option
		want lock.Config
		ok   bool
	}{
		"none":            {nil, lock.Config{Patience: lock.DefaultPatience}, true},
		"lease":           {[]lock.Option{lock.WithFixedLease(time.Minute)}, lock.Config{Lease: time.Minute, Patience: lock.DefaultPatience}, true},
		"fraction":        {[]lock.Option{lock.WithFixedLease(time.Second + 1)}, lock.Config{Lease: time.Second, Patience: lock.DefaultPatience}, true},
		"shortest":        {[]lock.Option{lock.WithFixedLease(lock.MinLease)}, lock.Config{Lease: lock.MinLease, Patience: lock.DefaultPatience}, true},
		"wait":            {[]lock.Option{lock.WithWait(time.Millisecond)}, lock.Config{Wait: time.Millisecond, Patience: lock.DefaultPatience}, true},
		"the last counts": {[]lock.Option{lock.WithFixedLease(time.Minute), lock.WithFixedLease(time.Hour)}, lock.Config{Lease: time.Hour, Patience: lock.DefaultPatience}, true},
		"patience":        {[]lock.Option{lock.WithPatience(lock.MinPatience + 1)}, lock.Config{Patience: lock.MinPatience}, true},
		"max hold":        {[]lock.Option{lock.WithMaxHold(lock.MinLease)}, lock.Config{MaxHold: lock.MinLease, Patience: lock.DefaultPatience}, true},
		"grace":           {[]lock.Option{lock.WithGrace(lock.MinLease)}, lock.Config{Grace: lock.MinLease, Patience: lock.DefaultPatience}, true},
		"no max hold":     {[]lock.Option{lock.WithMaxHold(0)}, lock.Config{}, false},
		"little max hold": {[]lock.Option{lock.WithMaxHold(lock.MinLease - 1)}, lock.Config{}, false},
		"long max hold":   {[]lock.Option{lock.WithMaxHold(1<<63 - 1)}, lock.Config{}, false},
		"no grace":        {[]lock.Option{lock.WithGrace(-1)}, lock.Config{}, false},
		"little grace":    {[]lock.Option{lock.WithGrace(lock.MinLease - 1)}, lock.Config{}, false},
		"long grace":      {[]lock.Option{lock.WithGrace(1<<63 - 1)}, lock.Config{}, false},
		"readers first":   {[]lock.Option{lock.WithReadersFirst()}, lock.Config{Patience: lock.DefaultPatience, ReadersFirst: true}, true},
		"no patience":     {[]lock.Option{lock.WithPatience(0)}, lock.Config{}, false},
		"little patience": {[]lock.Option{lock.WithPatience(lock.MinPatience - 1)}, lock.Config{}, false},
		"long patience":   {[]lock.Option{lock.WithPatience(1<<63 - 1)}, lock.Config{}, false},
		"too short":       {[]lock.Option{lock.WithFixedLease(lock.MinLease - 1)}, lock.Config{}, false},
		"too long":        {[]lock.Option{lock.WithFixedLease(1<<63 - 1)}, lock.Config{}, false},
		"no lease":        {[]lock.Option{lock.WithFixedLease(0)}, lock.Config{}, false},
		"negative lease":  {[]lock.Option{lock.WithFixedLease(-time.Second)}, lock.Config{}, false},
		"no wait":         {[]lock.Option{lock.WithWait(0)}, lock.Config{}, false},
		"negative wait":   {[]lock.Option{lock.WithWait(-time.Second)}, lock.Config{}, false},
	} {
		got, err := lock.NewConfig(c.opts...)
		if (err == nil) != c.ok || c.ok && got != c.want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// An error about a value that cannot be meant names the option, the value as given and the least; it is
// never taken for something else.
func TestNewConfig_says(t *testing.T) {
	for want, option := range map[string]lock.Option{
		"WithFixedLease(5ns): the least is 10ms":         lock.WithFixedLease(5),
		"WithFixedLease(900µs): the least is 10ms":       lock.WithFixedLease(900 * time.Microsecond),
		"WithFixedLease(0s): the least is 10ms":          lock.WithFixedLease(0),
		"WithFixedLease(-1s): the least is 10ms":         lock.WithFixedLease(-time.Second),
		"WithWait(5ns): the least is 1ms":                lock.WithWait(5),
		"WithWait(900µs): the least is 1ms":              lock.WithWait(900 * time.Microsecond),
		"WithWait(0s): the least is 1ms":                 lock.WithWait(0),
		"WithWait(-1ns): the least is 1ms":               lock.WithWait(-1),
		"WithPatience(5ns): the least is 100ms":          lock.WithPatience(5),
		"WithPatience(-1h0m0s): the least is 100ms":      lock.WithPatience(-time.Hour),
		"WithReplicas(0, 1s): at least one must confirm": lock.WithReplicas(0, time.Second),
		"WithReplicas(1, 5ns): the least timeout is 1ms": lock.WithReplicas(1, 5),
		"WithReplicas(1, -1s): the least timeout is 1ms": lock.WithReplicas(1, -time.Second),
		"option 2 of 3 is nil":                           nil,
	} {
		_, err := lock.NewConfig(lock.WithFencing(), option, lock.WithReadersFirst())
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
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

// Do returns each error, and each once.
func TestDo_errors(t *testing.T) {
	loss := &lock.Error{Op: "hold", Name: "orders", Err: fmt.Errorf("%w: the lease ran out", lock.ErrLost)}
	late := &lock.Error{Op: "unlock", Name: "orders", Err: fmt.Errorf("%w: %w", lock.ErrNotHeld, loss.Err)}
	other := &lock.Error{Op: "hold", Name: "other", Err: fmt.Errorf("%w: the lease ran out", lock.ErrLost)}
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
		"lost, and fn lost another one": {holder{loss, late}, other, other.Error() + "\n" + late.Error()},
	} {
		err := lock.Do(t.Context(), c.h, func(context.Context) error { return c.fn })
		if got := fmt.Sprint(err); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestWithOwner(t *testing.T) {
	if _, ok := lock.OwnerFrom(context.Background()); ok {
		t.Error("a plain context has an owner")
	}
	ctx := lock.WithOwner(context.Background())
	a, ok := lock.OwnerFrom(ctx)
	b, _ := lock.OwnerFrom(lock.WithOwner(ctx))
	if !ok || a == b {
		t.Errorf("owners %d and %d", a, b)
	}
	child, cancel := context.WithCancel(ctx)
	defer cancel()
	if c, _ := lock.OwnerFrom(child); c != a {
		t.Errorf("below it, the owner is %d and not %d", c, a)
	}
}

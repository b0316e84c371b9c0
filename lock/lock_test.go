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
		"lease":           {[]lock.Option{lock.WithLease(time.Minute)}, lock.Config{Lease: time.Minute, Patience: lock.DefaultPatience}, true},
		"fraction":        {[]lock.Option{lock.WithLease(time.Second + 1)}, lock.Config{Lease: time.Second, Patience: lock.DefaultPatience}, true},
		"shortest":        {[]lock.Option{lock.WithLease(lock.MinLease)}, lock.Config{Lease: lock.MinLease, Patience: lock.DefaultPatience}, true},
		"wait":            {[]lock.Option{lock.WithWait(1)}, lock.Config{Wait: 1, Patience: lock.DefaultPatience}, true},
		"the last counts": {[]lock.Option{lock.WithLease(time.Minute), lock.WithLease(time.Hour)}, lock.Config{Lease: time.Hour, Patience: lock.DefaultPatience}, true},
		"patience":        {[]lock.Option{lock.WithPatience(lock.MinPatience + 1)}, lock.Config{Patience: lock.MinPatience}, true},
		"readers first":   {[]lock.Option{lock.WithReadersFirst()}, lock.Config{Patience: lock.DefaultPatience, ReadersFirst: true}, true},
		"no patience":     {[]lock.Option{lock.WithPatience(0)}, lock.Config{}, false},
		"little patience": {[]lock.Option{lock.WithPatience(lock.MinPatience - 1)}, lock.Config{}, false},
		"long patience":   {[]lock.Option{lock.WithPatience(1<<63 - 1)}, lock.Config{}, false},
		"too short":       {[]lock.Option{lock.WithLease(lock.MinLease - 1)}, lock.Config{}, false},
		"too long":        {[]lock.Option{lock.WithLease(1<<63 - 1)}, lock.Config{}, false},
		"no lease":        {[]lock.Option{lock.WithLease(0)}, lock.Config{}, false},
		"negative lease":  {[]lock.Option{lock.WithLease(-time.Second)}, lock.Config{}, false},
		"no wait":         {[]lock.Option{lock.WithWait(0)}, lock.Config{}, false},
		"negative wait":   {[]lock.Option{lock.WithWait(-time.Second)}, lock.Config{}, false},
	} {
		got, err := lock.NewConfig(c.opts...)
		if (err == nil) != c.ok || c.ok && got != c.want {
			t.Errorf("%s: %+v, %v", name, got, err)
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

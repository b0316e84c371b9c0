package lockimpl_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
)

func TestNewConfig(t *testing.T) {
	for name, c := range map[string]struct {
		opts []lock.Option
		want lockimpl.Config
		ok   bool
	}{
		"none":                  {nil, lockimpl.Config{WaiterTimeout: lock.DefaultWaiterTimeout}, true},
		"lease":                 {[]lock.Option{lock.WithFixedLease(time.Minute)}, lockimpl.Config{Lease: time.Minute, WaiterTimeout: lock.DefaultWaiterTimeout}, true},
		"fraction":              {[]lock.Option{lock.WithFixedLease(time.Second + 1)}, lockimpl.Config{Lease: time.Second, WaiterTimeout: lock.DefaultWaiterTimeout}, true},
		"shortest":              {[]lock.Option{lock.WithFixedLease(lock.MinLease)}, lockimpl.Config{Lease: lock.MinLease, WaiterTimeout: lock.DefaultWaiterTimeout}, true},
		"wait":                  {[]lock.Option{lock.WithWait(time.Millisecond)}, lockimpl.Config{Wait: time.Millisecond, WaiterTimeout: lock.DefaultWaiterTimeout}, true},
		"the last counts":       {[]lock.Option{lock.WithFixedLease(time.Minute), lock.WithFixedLease(time.Hour)}, lockimpl.Config{Lease: time.Hour, WaiterTimeout: lock.DefaultWaiterTimeout}, true},
		"patience":              {[]lock.Option{lock.WithWaiterTimeout(lock.MinWaiterTimeout + 1)}, lockimpl.Config{WaiterTimeout: lock.MinWaiterTimeout}, true},
		"max hold":              {[]lock.Option{lock.WithMaxHold(lock.MinLease)}, lockimpl.Config{MaxHold: lock.MinLease, WaiterTimeout: lock.DefaultWaiterTimeout}, true},
		"grace":                 {[]lock.Option{lock.WithGrace(lock.MinLease)}, lockimpl.Config{Grace: lock.MinLease, WaiterTimeout: lock.DefaultWaiterTimeout}, true},
		"no max hold":           {[]lock.Option{lock.WithMaxHold(0)}, lockimpl.Config{}, false},
		"little max hold":       {[]lock.Option{lock.WithMaxHold(lock.MinLease - 1)}, lockimpl.Config{}, false},
		"long max hold":         {[]lock.Option{lock.WithMaxHold(1<<63 - 1)}, lockimpl.Config{}, false},
		"no grace":              {[]lock.Option{lock.WithGrace(-1)}, lockimpl.Config{}, false},
		"little grace":          {[]lock.Option{lock.WithGrace(lock.MinLease - 1)}, lockimpl.Config{}, false},
		"long grace":            {[]lock.Option{lock.WithGrace(1<<63 - 1)}, lockimpl.Config{}, false},
		"readers first":         {[]lock.Option{lock.WithReaderPreference()}, lockimpl.Config{WaiterTimeout: lock.DefaultWaiterTimeout, ReaderPreference: true}, true},
		"no patience":           {[]lock.Option{lock.WithWaiterTimeout(0)}, lockimpl.Config{}, false},
		"little patience":       {[]lock.Option{lock.WithWaiterTimeout(lock.MinWaiterTimeout - 1)}, lockimpl.Config{}, false},
		"long patience":         {[]lock.Option{lock.WithWaiterTimeout(1<<63 - 1)}, lockimpl.Config{}, false},
		"too short":             {[]lock.Option{lock.WithFixedLease(lock.MinLease - 1)}, lockimpl.Config{}, false},
		"too long":              {[]lock.Option{lock.WithFixedLease(1<<63 - 1)}, lockimpl.Config{}, false},
		"no lease":              {[]lock.Option{lock.WithFixedLease(0)}, lockimpl.Config{}, false},
		"negative lease":        {[]lock.Option{lock.WithFixedLease(-time.Second)}, lockimpl.Config{}, false},
		"grace, no renewal":     {[]lock.Option{lock.WithFixedLease(time.Minute), lock.WithGrace(time.Minute)}, lockimpl.Config{}, false},
		"at least":              {[]lock.Option{lock.WithMinHold(time.Minute), lock.WithFixedLease(time.Minute), lock.WithMaxHold(time.Minute)}, lockimpl.Config{Lease: time.Minute, MaxHold: time.Minute, MinHold: time.Minute, WaiterTimeout: lock.DefaultWaiterTimeout}, true},
		"fractions":             {[]lock.Option{lock.WithMinHold(time.Minute + 1), lock.WithFixedLease(time.Minute + 1), lock.WithMaxHold(time.Minute + 1)}, lockimpl.Config{Lease: time.Minute, MaxHold: time.Minute + 1, MinHold: time.Minute, WaiterTimeout: lock.DefaultWaiterTimeout}, true},
		"longer than the lease": {[]lock.Option{lock.WithMinHold(time.Minute + time.Millisecond), lock.WithFixedLease(time.Minute)}, lockimpl.Config{}, false},
		"longer than MaxHold":   {[]lock.Option{lock.WithMinHold(time.Minute + time.Millisecond), lock.WithMaxHold(time.Minute)}, lockimpl.Config{}, false},
		"little at least":       {[]lock.Option{lock.WithMinHold(lock.MinLease - 1)}, lockimpl.Config{}, false},
		"no wait":               {[]lock.Option{lock.WithWait(0)}, lockimpl.Config{Once: true, WaiterTimeout: lock.DefaultWaiterTimeout}, true},
		"a wait after none":     {[]lock.Option{lock.WithWait(0), lock.WithWait(time.Second)}, lockimpl.Config{Wait: time.Second, WaiterTimeout: lock.DefaultWaiterTimeout}, true},
		"linger":                {[]lock.Option{lock.WithLinger(time.Millisecond)}, lockimpl.Config{Linger: time.Millisecond, WaiterTimeout: lock.DefaultWaiterTimeout}, true},
		"linger, fixed lease":   {[]lock.Option{lock.WithLinger(time.Second), lock.WithFixedLease(time.Minute)}, lockimpl.Config{}, false},
		"linger, replicas":      {[]lock.Option{lock.WithReplicas(1, time.Second), lock.WithLinger(time.Second)}, lockimpl.Config{}, false},
		"no linger":             {[]lock.Option{lock.WithLinger(0)}, lockimpl.Config{}, false},
		"negative wait":         {[]lock.Option{lock.WithWait(-time.Second)}, lockimpl.Config{}, false},
	} {
		got, err := lockimpl.NewConfig("a lock", lockimpl.All, c.opts...)
		if (err == nil) != c.ok || c.ok && got != c.want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// For an invalid value, the error names the option, the value as given and the minimum. It matches no
// other error.
func TestNewConfig_says(t *testing.T) {
	for want, option := range map[string]lock.Option{
		"WithFixedLease(5ns): must be at least 10ms":                       lock.WithFixedLease(5),
		"WithFixedLease(900µs): must be at least 10ms":                     lock.WithFixedLease(900 * time.Microsecond),
		"WithFixedLease(0s): must be at least 10ms":                        lock.WithFixedLease(0),
		"WithFixedLease(-1s): must be at least 10ms":                       lock.WithFixedLease(-time.Second),
		"WithWait(5ns): must be 0, or at least 1ms":                        lock.WithWait(5),
		"WithWait(900µs): must be 0, or at least 1ms":                      lock.WithWait(900 * time.Microsecond),
		"WithWait(-1ns): must be 0, or at least 1ms":                       lock.WithWait(-1),
		"WithWaiterTimeout(5ns): must be at least 100ms":                   lock.WithWaiterTimeout(5),
		"WithWaiterTimeout(-1h0m0s): must be at least 100ms":               lock.WithWaiterTimeout(-time.Hour),
		"WithLinger(5ns): must be at least 1ms":                            lock.WithLinger(5),
		"WithReplicas(0, 1s): want at least 1 replica, or omit the option": lock.WithReplicas(0, time.Second),
		"WithReplicas(1, 5ns): timeout must be at least 1ms":               lock.WithReplicas(1, 5),
		"WithReplicas(1, -1s): timeout must be at least 1ms":               lock.WithReplicas(1, -time.Second),
		"option 2 of 3 is nil":                                             nil,
	} {
		_, err := lockimpl.NewConfig("a lock", lockimpl.All, lock.WithFencing(), option, lock.WithReaderPreference())
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// If a type does not support an option, the error names both. The same applies to several options.
func TestNewConfig_unknown(t *testing.T) {
	for want, opts := range map[string][]lock.Option{
		"WithWaiterTimeout: not supported by a plain lock; remove the option: unsupported operation":    {lock.WithWait(time.Second), lock.WithWaiterTimeout(time.Second)},
		"WithReaderPreference: not supported by a plain lock; remove the option: unsupported operation": {lock.WithReaderPreference()},
		"": {lock.WithWait(time.Second)},
	} {
		_, err := lockimpl.NewConfig("a plain lock", lockimpl.Wait, opts...)
		if got := ""; err != nil {
			got = err.Error()
			if got != want {
				t.Errorf("%q, want %q", got, want)
			}
		} else if want != "" {
			t.Errorf("no error, want %q", want)
		}
	}
	_, err := lockimpl.NewConfig("a plain lock", lockimpl.Wait, lock.WithWaiterTimeout(1), lock.WithFencing())
	for _, name := range []string{"WithWaiterTimeout", "WithFencing"} {
		if !strings.Contains(err.Error(), name+": not supported by a plain lock") {
			t.Errorf("%v: it does not name %s", err, name)
		}
	}
}

func TestContextWithNewOwner(t *testing.T) {
	if _, ok := lockimpl.OwnerFrom(context.Background()); ok {
		t.Error("a plain context has an owner")
	}
	ctx := lock.ContextWithNewOwner(context.Background())
	a, ok := lockimpl.OwnerFrom(ctx)
	b, _ := lockimpl.OwnerFrom(lock.ContextWithNewOwner(ctx))
	if !ok || a == b {
		t.Errorf("owners %d and %d", a, b)
	}
	child, cancel := context.WithCancel(ctx)
	defer cancel()
	if c, _ := lockimpl.OwnerFrom(child); c != a {
		t.Errorf("below it, the owner is %d and not %d", c, a)
	}
}

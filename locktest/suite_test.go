package locktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
)

func TestRun(t *testing.T) {
	s := NewServer(t)
	a, b := s.Client(t, client.WithWatchdogTimeout(time.Second)), s.Client(t, client.WithWatchdogTimeout(time.Second))
	Run(t, harness(a, b, func(l lock.Locker) lock.Locker { return l }))
}

func harness(a, b *client.Client, wrap func(lock.Locker) lock.Locker) Harness {
	return Harness{
		New:      func(name string, opts ...lock.Option) lock.Locker { return wrap(a.NewLock(name, opts...)) },
		Other:    func(name string, opts ...lock.Option) lock.Locker { return wrap(b.NewLock(name, opts...)) },
		Watchdog: time.Second,
	}
}

// A rule that no lock can break says nothing. So each must be broken by one of
// these, which are real locks with something wrong.
func TestRules_canBeBroken(t *testing.T) {
	s := NewServer(t)
	a, b := s.Client(t, client.WithWatchdogTimeout(time.Second)), s.Client(t, client.WithWatchdogTimeout(time.Second))
	var n atomic.Int64
	wrong := map[string]func(lock.Locker) lock.Locker{
		"every call has a lock of its own": func(l lock.Locker) lock.Locker {
			return locker{l, func(ctx context.Context, _ bool) (lock.Hold, error) {
				return a.NewLock(fmt.Sprint("own:", n.Add(1))).Lock(ctx)
			}, nil}
		},
		"all names are one": func(l lock.Locker) lock.Locker {
			one := a.NewLock("one", lock.WithWait(300*time.Millisecond))
			return locker{l, func(ctx context.Context, wait bool) (lock.Hold, error) {
				if wait {
					return one.Lock(ctx)
				}
				return one.TryLock(ctx)
			}, nil}
		},
		"unlock does nothing": func(l lock.Locker) lock.Locker {
			return locker{l, nil, func(lock.Hold, context.Context) error { return nil }}
		},
		"unlock depends on its context": func(l lock.Locker) lock.Locker {
			return locker{l, nil, func(h lock.Hold, ctx context.Context) error {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				return h.Unlock(ctx)
			}}
		},
		"errors are bare, and dead contexts lock": func(l lock.Locker) lock.Locker {
			return locker{l, func(ctx context.Context, wait bool) (lock.Hold, error) {
				if ctx.Err() != nil {
					return l.TryLock(context.WithoutCancel(ctx))
				}
				f := l.TryLock
				if wait {
					f = l.Lock
				}
				h, err := f(ctx)
				if err != nil {
					return nil, errors.New(err.Error())
				}
				return h, nil
			}, nil}
		},
		"leases are fixed": func(l lock.Locker) lock.Locker {
			short := a.NewLock(l.Name(), lock.WithLease(100*time.Millisecond))
			return locker{l, func(ctx context.Context, wait bool) (lock.Hold, error) {
				if wait {
					return short.Lock(ctx)
				}
				return short.TryLock(ctx)
			}, nil}
		},
		"the last to come is served first, and tries wait": func(l lock.Locker) lock.Locker {
			return locker{l, func(ctx context.Context, wait bool) (lock.Hold, error) {
				if wait {
					time.Sleep(time.Duration(200-20*(n.Add(1)%10)) * time.Millisecond)
				}
				return l.TryLock(ctx)
			}, nil}
		},
	}
	var mu sync.Mutex
	broken := map[string][]string{}
	var wg sync.WaitGroup
	for what, wrap := range wrong {
		wg.Go(func() {
			for _, r := range rules {
				if fails(r, harness(a, b, wrap), what+r.name) {
					mu.Lock()
					broken[r.name] = append(broken[r.name], what)
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	for _, r := range rules {
		if len(broken[r.name]) == 0 {
			t.Errorf("no wrong lock breaks the rule %q", r.name)
		}
		slices.Sort(broken[r.name])
		t.Logf("%-26s is broken when %q", r.name, broken[r.name])
	}
}

// fails reports whether a lock breaks a rule, or gets nowhere with it.
func fails(r rule, h Harness, name string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
	defer cancel()
	v := &verdict{}
	done := make(chan struct{})
	go func() { // a goroutine of its own: Fatal ends it
		defer close(done)
		defer func() {
			if recover() != nil {
				v.failed.Store(true)
			}
		}()
		r.test(&trial{TB: v, h: h, ctx: ctx, rule: r.says, lock: name})
	}()
	<-done
	return v.failed.Load()
}

// verdict is a testing.TB that only remembers.
type verdict struct {
	testing.TB
	failed atomic.Bool
}

func (v *verdict) Helper()               {}
func (v *verdict) Errorf(string, ...any) { v.failed.Store(true) }
func (v *verdict) Fatalf(string, ...any) { v.failed.Store(true); panic("fatal") }

// locker is a lock with another way to lock, or to unlock.
type locker struct {
	lock.Locker
	lock   func(ctx context.Context, wait bool) (lock.Hold, error)
	unlock func(h lock.Hold, ctx context.Context) error
}

func (l locker) Lock(ctx context.Context) (lock.Hold, error)    { return l.hold(ctx, true) }
func (l locker) TryLock(ctx context.Context) (lock.Hold, error) { return l.hold(ctx, false) }

func (l locker) hold(ctx context.Context, wait bool) (h lock.Hold, err error) {
	switch {
	case l.lock != nil:
		h, err = l.lock(ctx, wait)
	case wait:
		h, err = l.Locker.Lock(ctx)
	default:
		h, err = l.Locker.TryLock(ctx)
	}
	if err == nil && l.unlock != nil {
		h = unlocker{h, l.unlock}
	}
	return h, err
}

type unlocker struct {
	lock.Hold
	unlock func(h lock.Hold, ctx context.Context) error
}

func (u unlocker) Unlock(ctx context.Context) error { return u.unlock(u.Hold, ctx) }

package locktest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
)

func TestRules(t *testing.T) {
	t.Parallel()
	keeps(t, rules, func(a, b *client.Client) (Harness, RWHarness) { return plain(a, b, right), RWHarness{} })
}

// A lock whose Unlock does not wait keeps all rules, provided that other clients try it a moment
// later.
func TestRules_async(t *testing.T) {
	t.Parallel()
	keeps(t, rules, func(a, b *client.Client) (Harness, RWHarness) {
		h := plain(a, b, with(lock.WithAsyncUnlock()))
		h.Other = changed(func(ctx context.Context, l locker, wait bool) (lock.Hold, error) {
			if !wait {
				time.Sleep(time.Millisecond)
			}
			return acquire(ctx, l, wait)
		}, nil)(func(name string, opts ...option) locker { return b.NewLock(name, opts...) })
		return h, RWHarness{}
	})
}

// A lock that lingers keeps all rules.
func TestRules_linger(t *testing.T) {
	t.Parallel()
	keeps(t, rules, func(a, b *client.Client) (Harness, RWHarness) {
		lingers := func(mk maker) maker {
			return func(name string, opts ...option) locker {
				c, _ := lockimpl.NewConfig("a lock", lockimpl.All, opts...)
				if c.Lease == 0 && c.Linger == 0 {
					opts = append(opts, lock.WithLinger(100*time.Millisecond))
				}
				return mk(name, opts...)
			}
		}
		return plain(a, b, lingers), RWHarness{}
	})
}

// plain returns a harness of plain locks that wrap has changed.
func plain(a, b *client.Client, wrap func(maker) maker) Harness {
	return Harness{
		New:      wrap(func(name string, opts ...option) locker { return a.NewLock(name, opts...) }),
		Other:    wrap(func(name string, opts ...option) locker { return b.NewLock(name, opts...) }),
		Watchdog: watchdog,
	}
}

// ways has the ways to break a lock, whatever its type.
var ways = []way{
	{"every call has a lock of its own", func(mk maker) maker {
		return changed(func(ctx context.Context, _ locker, _ bool) (lock.Hold, error) {
			return mk(fmt.Sprint("own:", rand.Uint64())).Lock(ctx)
		}, nil)(mk)
	}, map[string]string{
		"free lock":               "another client got the lock",
		"exclusion":               "another client got the lock",
		"exclusion of goroutines": "inside",
		"no accidental reentry":   "error <nil>",
		"reentry":                 "a reentry has owner",
		"reentry is per name":     "error <nil>",
		"ContextWithNewOwner":     "another client got the lock",
		"TryLock":                 "error <nil>",
		"Lock waits":              "waiter 0 did not wait",
		"cancelled wait":          "error <nil>",
		"limited wait":            "error <nil>",
		"unlock twice":            "freed another owner's lock: <nil>",
		"fixed lease":             "before Until",
		"many":                    "inside",
	}},
	{"all names are one", func(mk maker) maker {
		return changed(func(ctx context.Context, _ locker, wait bool) (lock.Hold, error) {
			return acquire(ctx, mk("one", lock.WithWait(300*time.Millisecond)), wait)
		}, nil)(mk)
	}, map[string]string{
		"reentry is per name": "waited for 300ms",
		"names":               "want ErrBadName",
	}},
	{"unlock does nothing", changed(acquire, unlocks(func(context.Context, locker, lock.Hold) error { return nil })), map[string]string{
		"free lock":           "the lock should be free",
		"reentry":             "the lock should be free",
		"ContextWithNewOwner": "the lock should be free",
		"Lock waits":          "not acquired: context deadline exceeded",
		"cause":               "want one that matches unlocked",
		"unlock twice":        "not acquired: context deadline exceeded",
		"asynchronous unlock": "want one that matches not held",
		"linger":              "want one that matches unlocked",
		"Do":                  "the lock should be free",
	}},
	{"unlock depends on its context", changed(acquire, unlocks(func(ctx context.Context, _ locker, h lock.Hold) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return h.Unlock(ctx)
	})), map[string]string{
		"unlock with a dead context": "unlock: context canceled",
	}},
	{"errors are bare, and dead contexts lock", changed(func(ctx context.Context, l locker, wait bool) (lock.Hold, error) {
		if ctx.Err() != nil {
			return l.TryLock(context.WithoutCancel(ctx))
		}
		h, err := acquire(ctx, l, wait)
		if err != nil {
			return nil, errors.New(err.Error())
		}
		return h, nil
	}, nil), map[string]string{
		"TryLock":        "want one that matches not acquired",
		"cancelled wait": "want one that matches not acquired",
		"limited wait":   "want one that matches not acquired",
		"dead context":   "error <nil>",
	}},
	{"errors say that another owner has the lock, and that Redis is unavailable", changed(func(ctx context.Context, l locker, wait bool) (lock.Hold, error) {
		h, err := acquire(ctx, l, wait)
		if err != nil {
			return nil, fmt.Errorf("%w: %w: %w", lock.ErrNotAcquired, lock.ErrUnavailable, err)
		}
		return h, nil
	}, nil), map[string]string{
		"no accidental reentry": "matches both",
		"reentry is per name":   "matches both",
		"TryLock":               "matches both",
		"cancelled wait":        "matches both",
		"limited wait":          "matches both",
		"one meaning":           "matches both",
		"dead context":          "matches both",
	}},
	{"a call that was not made says that another owner has the lock", changed(func(ctx context.Context, l locker, wait bool) (lock.Hold, error) {
		h, err := acquire(ctx, l, wait)
		if err != nil && ctx.Err() != nil && !errors.Is(err, lock.ErrNotAcquired) {
			err = fmt.Errorf("%w: %w", lock.ErrNotAcquired, err)
		}
		return h, err
	}, nil), map[string]string{
		"dead context": "says more than that the context is over",
	}},
	{"leases are short", with(lock.WithFixedLease(100 * time.Millisecond)), map[string]string{
		"limited wait":  "the hold is over",
		"renewed lease": "the hold is over",
		"canceled work": "the hold is over",
		"mixed leases":  "lock lost",
	}},
	{"the last to come is served first, and TryLock waits", func(mk maker) maker {
		var n atomic.Int64
		return changed(func(ctx context.Context, l locker, wait bool) (lock.Hold, error) {
			if wait {
				time.Sleep(time.Duration(200-20*(n.Add(1)%10)) * time.Millisecond)
			}
			return l.TryLock(ctx)
		}, nil)(mk)
	}, map[string]string{
		"first come": "served in the order",
	}},
	{"Extend says yes, and does nothing", changed(acquire, func(_ locker, h lock.Hold) lock.Hold { return lazyHold{h} }), map[string]string{
		"Extend": "is promised for",
	}},
	{"tokens stand still", changed(acquire, token7), map[string]string{
		"tokens": "token 7 after 7",
		"linger": "token 7 after 7",
		"many":   "token 7 after 7",
	}},
}

// way is a way to break locks, and what the suite then reports.
type way struct {
	what   string
	wrap   func(maker) maker
	breaks map[string]string
}

func TestRules_canBeBroken(t *testing.T) {
	t.Parallel()
	var locks []wrong
	for _, w := range ways {
		locks = append(locks, wrong{w.what, func(a, b *client.Client) (Harness, RWHarness) {
			return plain(a, b, w.wrap), RWHarness{}
		}, w.breaks})
	}
	testBroken(t, rules, locks)
}

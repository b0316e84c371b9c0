package locktest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/ratelimit"
)

type limiterMaker = func(name string, limits ...ratelimit.Limit) Limiter

// limiting returns a harness of limiters that wrap has changed.
func limiting(wrap func(limiterMaker) limiterMaker) func(a, b *client.Client) (Harness, RWHarness) {
	of := func(c *client.Client) limiterMaker {
		return wrap(func(name string, limits ...ratelimit.Limit) Limiter {
			return c.NewRateLimiter(name, ratelimit.FailClosed(), limits...)
		})
	}
	return func(a, b *client.Client) (Harness, RWHarness) {
		return Harness{limiter: &LimiterHarness{New: of(a), Other: of(b)}}, RWHarness{}
	}
}

func TestLimiterRules(t *testing.T) {
	t.Parallel()
	keeps(t, limiterRules, limiting(func(mk limiterMaker) limiterMaker { return mk }))
}

// wrongLimiter is a limiter with some incorrect methods.
type wrongLimiter struct {
	Limiter
	take   func(ctx context.Context, l Limiter, key string, n int64) (ratelimit.Decision, error)
	upTo   func(ctx context.Context, l Limiter, key string, n int64) (ratelimit.Decision, error)
	peek   func(ctx context.Context, l Limiter, key string) (ratelimit.Decision, error)
	refund func(ctx context.Context, l Limiter, key string, d ratelimit.Decision) error
	reset  func(ctx context.Context, l Limiter, key string) error
	wait   func(ctx context.Context, l Limiter, key string, n int64) error
}

func (w wrongLimiter) Take(ctx context.Context, key string, n int64) (ratelimit.Decision, error) {
	if w.take != nil {
		return w.take(ctx, w.Limiter, key, n)
	}
	return w.Limiter.Take(ctx, key, n)
}

func (w wrongLimiter) TakeUpTo(ctx context.Context, key string, n int64) (ratelimit.Decision, error) {
	if w.upTo != nil {
		return w.upTo(ctx, w.Limiter, key, n)
	}
	return w.Limiter.TakeUpTo(ctx, key, n)
}

func (w wrongLimiter) Peek(ctx context.Context, key string) (ratelimit.Decision, error) {
	if w.peek != nil {
		return w.peek(ctx, w.Limiter, key)
	}
	return w.Limiter.Peek(ctx, key)
}

func (w wrongLimiter) Refund(ctx context.Context, key string, d ratelimit.Decision) error {
	if w.refund != nil {
		return w.refund(ctx, w.Limiter, key, d)
	}
	return w.Limiter.Refund(ctx, key, d)
}

func (w wrongLimiter) Reset(ctx context.Context, key string) error {
	if w.reset != nil {
		return w.reset(ctx, w.Limiter, key)
	}
	return w.Limiter.Reset(ctx, key)
}

func (w wrongLimiter) Wait(ctx context.Context, key string, n int64) error {
	if w.wait != nil {
		return w.wait(ctx, w.Limiter, key, n)
	}
	return w.Limiter.Wait(ctx, key, n)
}

func TestLimiterRules_canBeBroken(t *testing.T) {
	t.Parallel()
	with := func(w wrongLimiter) func(a, b *client.Client) (Harness, RWHarness) {
		return limiting(func(mk limiterMaker) limiterMaker {
			return func(name string, limits ...ratelimit.Limit) Limiter {
				w := w
				w.Limiter = mk(name, limits...)
				return w
			}
		})
	}
	testBroken(t, limiterRules, []wrong{
		{"each client has a limiter of its own", func(a, b *client.Client) (Harness, RWHarness) {
			h, rw := limiting(func(mk limiterMaker) limiterMaker { return mk })(a, b)
			mk := h.limiter.Other
			h.limiter.Other = func(name string, limits ...ratelimit.Limit) Limiter { return mk(name+"2", limits...) }
			return h, rw
		}, map[string]string{
			"burst":       "OK is true, 1 taken, 4 remain",
			"many takers": "80 units passed, want 40",
		}},
		{"all keys are one", with(wrongLimiter{
			take: func(ctx context.Context, l Limiter, _ string, n int64) (ratelimit.Decision, error) {
				return l.Take(ctx, "one", n)
			},
		}), map[string]string{
			"burst": "want true, 5, 0",
		}},
		{"Take takes what is there", with(wrongLimiter{
			take: func(ctx context.Context, l Limiter, key string, n int64) (ratelimit.Decision, error) {
				return l.TakeUpTo(ctx, key, n)
			},
		}), map[string]string{
			"all or none of the units": "OK is true, 2 taken, 0 remain",
		}},
		{"TakeUpTo takes all or none", with(wrongLimiter{
			upTo: func(ctx context.Context, l Limiter, key string, n int64) (ratelimit.Decision, error) {
				return l.Take(ctx, key, n)
			},
		}), map[string]string{
			"all or none of the units": "want true, 2, 0",
		}},
		{"Peek takes a unit", with(wrongLimiter{
			peek: func(ctx context.Context, l Limiter, key string) (ratelimit.Decision, error) {
				_, _ = l.Take(ctx, key, 1)
				return l.Peek(ctx, key)
			},
		}), map[string]string{
			"peek":                 "1 remain",
			"bad numbers of units": "2 remain",
		}},
		{"Refund does nothing", with(wrongLimiter{
			refund: func(context.Context, Limiter, string, ratelimit.Decision) error { return nil },
		}), map[string]string{
			"refund": "want true, 2, 0",
		}},
		{"RetryAfter is short", with(wrongLimiter{
			take: func(ctx context.Context, l Limiter, key string, n int64) (ratelimit.Decision, error) {
				d, err := l.Take(ctx, key, n)
				d.RetryAfter /= 2
				return d, err
			},
		}), map[string]string{
			"refill": "after RetryAfter",
		}},
		{"the rate is ten times as high", limiting(func(mk limiterMaker) limiterMaker {
			return func(name string, limits ...ratelimit.Limit) Limiter {
				for i := range limits {
					limits[i].Rate *= 10
				}
				return mk(name, limits...)
			}
		}), map[string]string{
			"refill":        "units have passed within",
			"wait in order": `"another unit" was never read`,
		}},
		{"Wait lets everybody pass", with(wrongLimiter{
			wait: func(context.Context, Limiter, string, int64) error { return nil },
		}), map[string]string{
			"wait in order":            `"another unit" was never read`,
			"too late a turn":          "error <nil>",
			"cancelled wait for units": `"two units" was never read`,
			"bad numbers of units":     "error <nil>",
		}},
		{"Wait does not tell that it was cancelled", with(wrongLimiter{
			wait: func(ctx context.Context, l Limiter, key string, n int64) error {
				if err := l.Wait(ctx, key, n); ctx.Err() == nil {
					return err
				}
				return nil
			},
		}), map[string]string{
			"cancelled wait for units": "error <nil>",
		}},
		{"Wait keeps its units", with(wrongLimiter{
			wait: func(ctx context.Context, l Limiter, key string, n int64) error {
				done := make(chan error, 1)
				go func() { done <- l.Wait(context.WithoutCancel(ctx), key, n) }()
				select {
				case err := <-done:
					return err
				case <-ctx.Done():
					return &lock.Error{Op: "wait", Name: key, Err: ctx.Err()}
				}
			},
		}), map[string]string{
			"cancelled wait for units": `"one unit" was never read`,
			"units for the next call":  "OK is false, 0 taken",
		}},
		{"Reset does nothing", with(wrongLimiter{
			reset: func(context.Context, Limiter, string) error { return nil },
		}), map[string]string{
			"reset": "OK is false, 0 taken, 0 remain",
		}},
		{"Reset resets another key", with(wrongLimiter{
			reset: func(ctx context.Context, l Limiter, key string) error {
				return errors.Join(l.Reset(ctx, key), l.Reset(ctx, "other"))
			},
		}), map[string]string{
			"reset": "OK is true, 2 taken",
		}},
		{"a refusal is remembered for long", limiting(func(mk limiterMaker) limiterMaker {
			return func(name string, limits ...ratelimit.Limit) Limiter {
				refused := false
				return wrongLimiter{Limiter: mk(name, limits...), take: func(ctx context.Context, l Limiter, key string, n int64) (ratelimit.Decision, error) {
					if refused && key == "key" {
						return ratelimit.Decision{RetryAfter: time.Hour}, nil
					}
					d, err := l.Take(ctx, key, n)
					refused = key == "key" && err == nil && !d.OK && n > 1
					return d, err
				}}
			}
		}), map[string]string{
			"reset":                   "OK is false, 0 taken",
			"units for the next call": "OK is false, 0 taken",
		}},
	})
}

package locktest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/latch"
)

// latches returns a harness of latches that wrap has changed.
func latches(wrap func(mk func(name string) Latch) func(name string) Latch) func(a, b *client.Client) (Harness, RWHarness) {
	of := func(c *client.Client) func(string) Latch {
		return wrap(func(name string) Latch { return c.NewLatch(name) })
	}
	return func(a, b *client.Client) (Harness, RWHarness) {
		return Harness{latch: &LatchHarness{New: of(a), Other: of(b)}}, RWHarness{}
	}
}

func TestLatchRules(t *testing.T) {
	t.Parallel()
	keeps(t, latchRules, latches(func(mk func(string) Latch) func(string) Latch { return mk }))
}

// wrongLatch is a latch with some incorrect methods.
type wrongLatch struct {
	Latch
	wait   func(ctx context.Context, l Latch) error
	down   func(ctx context.Context, l Latch) (int64, error)
	once   func(ctx context.Context, l Latch, part string) (int64, error)
	set    func(ctx context.Context, l Latch, n int64) (bool, error)
	delete func(ctx context.Context, l Latch) error
}

func (w wrongLatch) Wait(ctx context.Context) error {
	if w.wait != nil {
		return w.wait(ctx, w.Latch)
	}
	return w.Latch.Wait(ctx)
}

func (w wrongLatch) CountDown(ctx context.Context) (int64, error) {
	if w.down != nil {
		return w.down(ctx, w.Latch)
	}
	return w.Latch.CountDown(ctx)
}

func (w wrongLatch) CountDownOnce(ctx context.Context, part string) (int64, error) {
	if w.once != nil {
		return w.once(ctx, w.Latch, part)
	}
	return w.Latch.CountDownOnce(ctx, part)
}

func (w wrongLatch) TrySetCount(ctx context.Context, n int64) (bool, error) {
	if w.set != nil {
		return w.set(ctx, w.Latch, n)
	}
	return w.Latch.TrySetCount(ctx, n)
}

func (w wrongLatch) Delete(ctx context.Context) error {
	if w.delete != nil {
		return w.delete(ctx, w.Latch)
	}
	return w.Latch.Delete(ctx)
}

func TestLatchRules_canBeBroken(t *testing.T) {
	t.Parallel()
	with := func(w wrongLatch) func(a, b *client.Client) (Harness, RWHarness) {
		return latches(func(mk func(string) Latch) func(string) Latch {
			return func(name string) Latch {
				w := w
				w.Latch = mk(name)
				return w
			}
		})
	}
	bare := func(err error) error {
		if err == nil {
			return nil
		}
		return errors.New(err.Error())
	}
	testBroken(t, latchRules, []wrong{
		{"every handle has a latch of its own", latches(func(mk func(string) Latch) func(string) Latch {
			return func(string) Latch { return mk(fmt.Sprint("own:", rand.Uint64())) }
		}), map[string]string{
			"made once":    "made twice: true",
			"counts":       "not initialized: call TrySetCount first), want 4",
			"latch waits":  "wait 2 ended",
			"open":         "0 are left (error <nil>), want 2",
			"counted once": "not initialized: call TrySetCount first), want 2",
			"never made":   "Name is",
		}},
		{"all names are one", latches(func(mk func(string) Latch) func(string) Latch {
			return func(string) Latch { return mk("one") }
		}), map[string]string{
			"names of latches": "made is false",
		}},
		{"errors are bare", with(wrongLatch{
			wait: func(ctx context.Context, l Latch) error { return bare(l.Wait(ctx)) },
		}), map[string]string{
			"never made":                 "want a *lock.Error",
			"deleted":                    "want a *lock.Error",
			"cancelled wait for a latch": "want a *lock.Error",
		}},
		{"any count does", with(wrongLatch{
			set: func(ctx context.Context, l Latch, n int64) (bool, error) {
				return l.TrySetCount(ctx, max(1, min(n, latch.MaxCount)))
			},
		}), map[string]string{
			"bad counts": "a count of 0 made a latch",
		}},
		{"Wait does not wait", with(wrongLatch{
			wait: func(context.Context, Latch) error { return nil },
		}), map[string]string{
			"never made":                 "error <nil>",
			"latch waits":                "wait 0 ended: <nil>",
			"rounds":                     "wait 0 ended: <nil>",
			"deleted":                    "wait 0 ended: <nil>",
			"cancelled wait for a latch": "error <nil>",
		}},
		{"Wait goes on with the next round", with(wrongLatch{
			wait: func(ctx context.Context, l Latch) error {
				if err := l.Wait(ctx); err != nil {
					return err
				}
				time.Sleep(time.Millisecond)
				return l.Wait(ctx)
			},
		}), map[string]string{
			"rounds": "wait 0: leasehold: wait \"it\": context deadline exceeded",
		}},
		{"parts have no names", with(wrongLatch{
			once: func(ctx context.Context, l Latch, _ string) (int64, error) { return l.CountDown(ctx) },
		}), map[string]string{
			"bad counts":   "error <nil>",
			"counted once": "1 are left (error <nil>), want 2",
		}},
		{"a call counts twice", with(wrongLatch{
			down: func(ctx context.Context, l Latch) (int64, error) {
				if _, err := l.CountDown(ctx); err != nil {
					return 0, err
				}
				return l.CountDown(ctx)
			},
		}), map[string]string{
			"counts":      "2 are left (error <nil>), want 3",
			"latch waits": "wait 0 ended: <nil>",
			"many count":  "want each once",
		}},
		{"Delete counts to 0", with(wrongLatch{
			delete: func(ctx context.Context, l Latch) error {
				for {
					if left, err := l.CountDown(ctx); left == 0 || err != nil {
						return nil
					}
				}
			},
		}), map[string]string{
			"deleted": "error <nil>",
		}},
	})
}

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
	"github.com/leasehold-go/leasehold/lock"
)

type waitGroupMaker = func(name string, opts ...lock.Option) WaitGroup

// waitGroups returns a harness of wait groups that wrap has changed.
func waitGroups(wrap func(waitGroupMaker) waitGroupMaker) func(a, b *client.Client) (Harness, RWHarness) {
	of := func(c *client.Client) waitGroupMaker {
		return wrap(func(name string, opts ...lock.Option) WaitGroup { return c.NewWaitGroup(name, opts...) })
	}
	return func(a, b *client.Client) (Harness, RWHarness) {
		return Harness{waitGroup: &WaitGroupHarness{New: of(a), Other: of(b), Watchdog: watchdog}, Watchdog: watchdog}, RWHarness{}
	}
}

func TestWaitGroupRules(t *testing.T) {
	t.Parallel()
	keeps(t, waitGroupRules, waitGroups(func(mk waitGroupMaker) waitGroupMaker { return mk }))
}

// wrongWaitGroup is a wait group with some incorrect methods.
type wrongWaitGroup struct {
	WaitGroup
	join    func(ctx context.Context, c WaitGroup) (*latch.Worker, error)
	wait    func(ctx context.Context, c WaitGroup) error
	do      func(ctx context.Context, c WaitGroup, fn func(context.Context) error) error
	dismiss func(ctx context.Context, c WaitGroup, workers []lock.Holder) (int, error)
	delete  func(ctx context.Context, c WaitGroup) error
}

func (w wrongWaitGroup) Add(ctx context.Context) (*latch.Worker, error) {
	if w.join != nil {
		return w.join(ctx, w.WaitGroup)
	}
	return w.WaitGroup.Add(ctx)
}

func (w wrongWaitGroup) Wait(ctx context.Context) error {
	if w.wait != nil {
		return w.wait(ctx, w.WaitGroup)
	}
	return w.WaitGroup.Wait(ctx)
}

func (w wrongWaitGroup) Do(ctx context.Context, fn func(context.Context) error) error {
	if w.do != nil {
		return w.do(ctx, w.WaitGroup, fn)
	}
	return w.WaitGroup.Do(ctx, fn)
}

func (w wrongWaitGroup) Dismiss(ctx context.Context, workers ...lock.Holder) (int, error) {
	if w.dismiss != nil {
		return w.dismiss(ctx, w.WaitGroup, workers)
	}
	return w.WaitGroup.Dismiss(ctx, workers...)
}

func (w wrongWaitGroup) Delete(ctx context.Context) error {
	if w.delete != nil {
		return w.delete(ctx, w.WaitGroup)
	}
	return w.WaitGroup.Delete(ctx)
}

func TestWaitGroupRules_canBeBroken(t *testing.T) {
	t.Parallel()
	with := func(w wrongWaitGroup) func(a, b *client.Client) (Harness, RWHarness) {
		return waitGroups(func(mk waitGroupMaker) waitGroupMaker {
			return func(name string, opts ...lock.Option) WaitGroup {
				w := w
				w.WaitGroup = mk(name, opts...)
				return w
			}
		})
	}
	held := func(unlock func(context.Context, lock.Hold) error) wrongWaitGroup {
		return wrongWaitGroup{join: func(ctx context.Context, c WaitGroup) (*latch.Worker, error) {
			m, err := c.Add(ctx)
			if err == nil {
				h := m.Hold
				m.Hold = changedHold{h, func(ctx context.Context) error { return unlock(ctx, h) }}
			}
			return m, err
		}}
	}
	testBroken(t, waitGroupRules, []wrong{
		{"every handle has a wait group of its own", waitGroups(func(mk waitGroupMaker) waitGroupMaker {
			return func(_ string, opts ...lock.Option) WaitGroup { return mk(fmt.Sprint("own:", rand.Uint64()), opts...) }
		}), map[string]string{
			"all are done":    "wait 1 ended",
			"a worker each":   "0 are done, 0 alive",
			"renewed workers": "0 are done, 0 alive",
		}},
		{"Wait does not wait", with(wrongWaitGroup{
			wait: func(context.Context, WaitGroup) error { return nil },
		}), map[string]string{
			"nobody has joined":         "error <nil>",
			"all are done":              "wait 0 ended: <nil>",
			"lease of a worker ends":    "error <nil>",
			"failed workers":            "error <nil>",
			"dismissed workers":         "error <nil>",
			"deleted wait group":        "error <nil>",
			"cancelled in a wait group": "error <nil>",
			"many workers":              "wait 0 ended: <nil>",
		}},
		{"leases are short", waitGroups(func(mk waitGroupMaker) waitGroupMaker {
			return func(name string, opts ...lock.Option) WaitGroup {
				return mk(name, append(opts, lock.WithFixedLease(100*time.Millisecond))...)
			}
		}), map[string]string{
			"renewed workers": "the hold is over",
		}},
		{"leases do not end", waitGroups(func(mk waitGroupMaker) waitGroupMaker {
			return func(name string, _ ...lock.Option) WaitGroup { return mk(name) }
		}), map[string]string{
			"lease of a worker ends": "the context of a worker that is lost does not end",
		}},
		{"all of a wait group are one worker", waitGroups(func(mk waitGroupMaker) waitGroupMaker {
			all := make(map[string]*latch.Worker)
			return func(name string, opts ...lock.Option) WaitGroup {
				return wrongWaitGroup{WaitGroup: mk(name, opts...), join: func(ctx context.Context, c WaitGroup) (*latch.Worker, error) {
					var err error
					if all[name] == nil {
						all[name], err = c.Add(ctx)
					}
					return all[name], err
				}}
			}
		}), map[string]string{
			"a worker each": "both workers are",
			"all are done":  "2 alive",
		}},
		{"the end of a worker says nothing", with(held(func(context.Context, lock.Hold) error { return nil })), map[string]string{
			"all are done":   "0 are done, 3 alive",
			"done once":      "error <nil>",
			"failed workers": "context deadline exceeded",
		}},
		{"Do says that all is done", with(wrongWaitGroup{
			do: func(ctx context.Context, c WaitGroup, fn func(context.Context) error) error {
				m, err := c.Add(ctx)
				if err != nil {
					return err
				}
				defer func() { _ = m.Unlock(ctx) }()
				return fn(m.Context())
			},
		}), map[string]string{
			"Do of a wait group": "2 are done, 0 alive, 0 lost",
		}},
		{"Dismiss does nothing", with(wrongWaitGroup{
			dismiss: func(context.Context, WaitGroup, []lock.Holder) (int, error) { return 1, nil },
		}), map[string]string{
			"dismissed workers": "wait 0 ended",
		}},
		{"Delete waits until all are done", with(wrongWaitGroup{
			delete: func(ctx context.Context, c WaitGroup) error {
				ctx, cancel := context.WithTimeout(ctx, watchdog)
				defer cancel()
				return errors.Join(c.Wait(ctx), c.Delete(context.WithoutCancel(ctx)))
			},
		}), map[string]string{
			"deleted wait group": "delete: ",
		}},
		{"Join does not look at its context", with(wrongWaitGroup{
			join: func(ctx context.Context, c WaitGroup) (*latch.Worker, error) {
				return c.Add(context.WithoutCancel(ctx))
			},
		}), map[string]string{
			"cancelled in a wait group": "error <nil>",
		}},
	})
}

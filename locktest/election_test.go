package locktest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/leader"
	"github.com/leasehold-go/leasehold/lock"
)

// electing returns the lock and the store of an election.
type electing = func(name string, opts ...option) (locker, leader.Store)

// elected returns a harness of elections that wrap has changed.
func elected(wrap func(electing) electing) func(a, b *client.Client) (Harness, RWHarness) {
	of := func(c *client.Client) electing {
		return wrap(func(name string, opts ...option) (locker, leader.Store) {
			return c.NewLock(name, opts...), c.NewLeaderStore(name)
		})
	}
	return func(a, b *client.Client) (Harness, RWHarness) {
		return Harness{election: &ElectionHarness{New: of(a), Other: of(b), Watchdog: watchdog}, Watchdog: watchdog}, RWHarness{}
	}
}

func TestElectionRules(t *testing.T) {
	t.Parallel()
	keeps(t, electionRules, elected(func(mk electing) electing { return mk }))
}

// wrongStore is a store with some incorrect methods.
type wrongStore struct {
	leader.Store
	post  func(ctx context.Context, b leader.Store, h lock.Hold, value string, d time.Duration) error
	clear func(ctx context.Context, b leader.Store, h lock.Hold) error
	read  func(ctx context.Context, b leader.Store) (leader.Leader, bool, error)
}

func (w wrongStore) Publish(ctx context.Context, h lock.Hold, value string, d time.Duration) error {
	if w.post != nil {
		return w.post(ctx, w.Store, h, value, d)
	}
	return w.Store.Publish(ctx, h, value, d)
}

func (w wrongStore) Clear(ctx context.Context, h lock.Hold) error {
	if w.clear != nil {
		return w.clear(ctx, w.Store, h)
	}
	return w.Store.Clear(ctx, h)
}

func (w wrongStore) Read(ctx context.Context) (leader.Leader, bool, error) {
	if w.read != nil {
		return w.read(ctx, w.Store)
	}
	return w.Store.Read(ctx)
}

// newHold is a hold with the largest token.
type newHold struct{ lock.Hold }

func (newHold) Token() uint64 { return 1 << 62 }

func TestElectionRules_canBeBroken(t *testing.T) {
	t.Parallel()
	boards := func(w wrongStore) func(a, b *client.Client) (Harness, RWHarness) {
		return elected(func(mk electing) electing {
			return func(name string, opts ...option) (locker, leader.Store) {
				l, b := mk(name, opts...)
				w := w
				w.Store = b
				return l, w
			}
		})
	}
	locks := func(wrap func(maker) maker) func(a, b *client.Client) (Harness, RWHarness) {
		return elected(func(mk electing) electing {
			return func(name string, opts ...option) (locker, leader.Store) {
				_, b := mk(name)
				return wrap(func(name string, opts ...option) locker { l, _ := mk(name, opts...); return l })(name, opts...), b
			}
		})
	}
	testBroken(t, electionRules, []wrong{
		{"every handle has a lock of its own", locks(func(mk maker) maker {
			return func(_ string, opts ...option) locker { return mk(fmt.Sprint("own:", rand.Uint64()), opts...) }
		}), map[string]string{
			"leaders in turn": "two lead at once",
		}},
		{"every handle has a board of its own", elected(func(mk electing) electing {
			return func(name string, opts ...option) (locker, leader.Store) {
				l, _ := mk(name, opts...)
				_, b := mk(fmt.Sprint("own:", rand.Uint64()))
				return l, b
			}
		}), map[string]string{
			"what a leader says": `"first" was never read`,
			"watched":            `"first" was never seen`,
		}},
		{"values are cut", boards(wrongStore{
			post: func(ctx context.Context, b leader.Store, h lock.Hold, value string, d time.Duration) error {
				return b.Publish(ctx, h, value[:min(len(value), 100)], d)
			},
		}), map[string]string{
			"what a leader says": "100 bytes are read of 4096",
		}},
		{"what is said stays", boards(wrongStore{
			clear: func(context.Context, leader.Store, lock.Hold) error { return nil },
			post: func(ctx context.Context, b leader.Store, h lock.Hold, value string, _ time.Duration) error {
				return b.Publish(ctx, h, value, time.Hour)
			},
		}), map[string]string{
			"what a leader says":     `"" was never read`,
			"lease of a leader ends": `"" was never read`,
			"stale leader":           `"" was never read`,
		}},
		{"a board believes each leader", boards(wrongStore{
			post: func(ctx context.Context, b leader.Store, h lock.Hold, value string, d time.Duration) error {
				return b.Publish(ctx, newHold{h}, value, d)
			},
		}), map[string]string{
			"stale leader": "error <nil>, want one that matches not leading",
		}},
		{"a board cannot be read", boards(wrongStore{
			read: func(context.Context, leader.Store) (leader.Leader, bool, error) {
				return leader.Leader{}, false, errors.New("no")
			},
		}), map[string]string{
			"watched": "Observe ended: no",
		}},
		{"one client is never served", func(a, b *client.Client) (Harness, RWHarness) {
			h, _ := elected(func(mk electing) electing { return mk })(a, b)
			h.election.Other = func(name string, opts ...option) (locker, leader.Store) {
				return changed(func(ctx context.Context, _ locker, _ bool) (lock.Hold, error) {
					<-ctx.Done()
					return nil, ctx.Err()
				}, nil)(func(name string, opts ...option) locker { return b.NewLock(name, opts...) })(name, opts...), b.NewLeaderStore(name)
			}
			return h, RWHarness{}
		}, map[string]string{
			"resigned leader": "never leads",
		}},
		{"leases are renewed", locks(func(mk maker) maker {
			return func(name string, _ ...option) locker { return mk(name) }
		}), map[string]string{
			"lease of a leader ends": "the context of a leader that is lost does not end",
		}},
	})
}

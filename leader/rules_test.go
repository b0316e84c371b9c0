package leader_test

import (
	"testing"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/kindtest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/leader"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/locktest"
)

func TestRules(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a, b := kindtest.NewClient(t, s.Client(t), kindtest.Fast...), kindtest.NewClient(t, s.Client(t), kindtest.Fast...)
	for kind, of := range map[string]func(c *client.Client, name string, opts ...lock.Option) lock.Locker{
		"fair": func(c *client.Client, name string, opts ...lock.Option) lock.Locker {
			return c.NewFairLock(name, opts...)
		},
		"plain": func(c *client.Client, name string, opts ...lock.Option) lock.Locker { return c.NewLock(name, opts...) },
		"write": func(c *client.Client, name string, opts ...lock.Option) lock.Locker {
			return c.NewRWLock(name, opts...).Write()
		},
	} {
		maker := func(c *client.Client) func(name string, opts ...lock.Option) (lock.Locker, leader.Store) {
			return func(name string, opts ...lock.Option) (lock.Locker, leader.Store) {
				return of(c, name, opts...), c.NewLeaderStore(name)
			}
		}
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			locktest.RunElection(t, locktest.ElectionHarness{New: maker(a), Other: maker(b), Watchdog: kindtest.WatchdogTimeout})
		})
	}
}

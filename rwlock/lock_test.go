package rwlock_test

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/kindtest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/locktest"
)

func TestMain(m *testing.M) { kindtest.Main(m) }

// The two sides. Writers exclude each other, and readers and writers do.
var (
	writing = kindtest.Kind{
		New: func(c *client.Client, name string, opts ...lock.Option) lock.Locker {
			return c.NewRWLock(name, opts...).Write()
		},
		Mode: lock.Write,
		Hash: func(owner string, holds int) map[string]string {
			return map[string]string{"mode": "write", owner + ":write": strconv.Itoa(holds)}
		},
		Keys: func(name, _ string, _ int) []string { return []string{name} },
	}
	reading = kindtest.Kind{
		New: func(c *client.Client, name string, opts ...lock.Option) lock.Locker {
			return c.NewRWLock(name, opts...).Read()
		},
		Mode: lock.Read,
		Hash: func(owner string, holds int) map[string]string {
			return map[string]string{"mode": "read", owner: strconv.Itoa(holds)}
		},
		Keys: func(name, owner string, holds int) []string { return append(leases(name, owner, holds), name) },

		Rival:     &writing,
		Questions: 1, // until one of them was told to wait, readers ask each for itself
	}
)

func init() {
	for _, side := range []*kindtest.Kind{&writing, &reading} {
		side.Operator = func(c *client.Client, name string) kindtest.Operator { return c.NewRWLock(name) }
		side.Patterns = func(prefix string) []string {
			return []string{"~" + prefix + "*", "~{" + prefix + "*:rwlock_timeout:*", "~leasehold_rwlock_wish:{" + prefix + "*"}
		}
		side.Channel = func(name string) string { return "redisson_rwlock:{" + name + "}" }
		side.OtherKind = map[string]string{"somebody:1": "1"}
		side.TellsHashes = true
	}
}

// leases are the keys that an owner reads by, one for each of its holds.
func leases(name, owner string, holds int) (keys []string) {
	for n := range holds {
		keys = append(keys, fmt.Sprintf("{%s}:%s:rwlock_timeout:%d", name, owner, n+1))
	}
	return keys
}

// wish is where a waiting writer asks readers to let it pass.
func wish(name string) string { return "leasehold_rwlock_wish:{" + name + "}" }

func TestFaults(t *testing.T) {
	t.Parallel()
	t.Run("read", func(t *testing.T) { t.Parallel(); kindtest.Faults(t, reading) })
	t.Run("write", func(t *testing.T) { t.Parallel(); kindtest.Faults(t, writing) })
}

// Who only ever writes has a lock that one owner holds at a time.
func TestModel_writers(t *testing.T) { t.Parallel(); kindtest.Model(t, writing) }

func TestRules(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a := kindtest.NewClient(t, s.Client(t), kindtest.Fast...)
	b := kindtest.NewClient(t, s.Client(t), kindtest.Fast...)
	t.Run("on Redis", func(t *testing.T) { rules(t, a, b) })
	kindtest.WantEmpty(t, s)
}

func rules(t *testing.T, a, b *client.Client) {
	locktest.RunRW(t, locktest.RWHarness{
		New:      func(name string, opts ...lock.Option) locktest.RW { return a.NewRWLock(name, opts...) },
		Other:    func(name string, opts ...lock.Option) locktest.RW { return b.NewRWLock(name, opts...) },
		Watchdog: kindtest.WatchdogTimeout,
	})
}

// The rights that docs/SECURITY.md asks for are enough for everything a read/write lock
// does.
func TestRules_withTheLeastRights(t *testing.T) {
	t.Parallel()
	kindtest.Rights(t, reading, []string{"NewRWLock"}, func(t *testing.T, s *redistest.Server, a, b *client.Client) {
		t.Run("rules", func(t *testing.T) { rules(t, a, b) })
		l := a.NewRWLock("orders")
		dead := kindtest.MustLock(t, l.Read())
		s.Do(t, append([]string{"DEL"}, leases("orders:orders", dead.Owner(), 1)...)...)
		kindtest.MustUnlock(t, kindtest.MustLock(t, b.NewRWLock("orders").Write())) // past the dead one
		kindtest.Lost(t, dead)
		kindtest.MustLock(t, l.Read())
		if _, err := l.Inspect(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := l.ForceUnlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

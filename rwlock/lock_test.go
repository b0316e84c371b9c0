package rwlock_test

import (
	"errors"
	"fmt"
	"strconv"
	"testing"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/kindtest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/locktest"
)

// addr is the address of an in-memory server, for the examples.
var addr string

func TestMain(m *testing.M) { redistest.VerifyTestMain(redistest.WithMemory(m, &addr)) }

// The two sides: writers exclude each other, and readers and writers exclude each other.
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
		Keys: func(name, owner string, holds int) []string { return []string{leaseKey(name, owner, holds), name} },

		Rival:    &writing,
		Requests: 1, // until one of them must wait, each reader sends a request
	}
)

func init() {
	for _, side := range []*kindtest.Kind{&writing, &reading} {
		side.Patient = true
		side.Operator = func(c *client.Client, name string) kindtest.Operator { return c.NewRWLock(name) }
		side.Patterns = func(prefix string) []string {
			return []string{"~" + prefix + "*", "~{" + prefix + "*:rwlock_timeout:*", "~leasehold_rwlock_wish:{" + prefix + "*", "~leasehold_rwlock_turn:{" + prefix + "*"}
		}
		side.Channel = func(name string) string { return "redisson_rwlock:{" + name + "}" }
		side.OtherKind = map[string]string{"0b7e2f1a-3c4d-4e5f-8a9b-0c1d2e3f4a5b:1": "1"}
		side.TellsHashes = true
	}
}

// leaseKey returns the key of an owner's read lease, which is the lease of its latest hold.
func leaseKey(name, owner string, holds int) string {
	return fmt.Sprintf("{%s}:%s:rwlock_timeout:%d", name, owner, holds)
}

// reservationKey is the key of the reservation of waiting readers.
func reservationKey(name string) string { return "leasehold_rwlock_turn:{" + name + "}" }

// intentKey is the key of the intent of a waiting writer.
func intentKey(name string) string { return "leasehold_rwlock_wish:{" + name + "}" }

func TestFaults(t *testing.T) {
	t.Parallel()
	t.Run("read", func(t *testing.T) { t.Parallel(); kindtest.Faults(t, reading) })
	t.Run("write", func(t *testing.T) { t.Parallel(); kindtest.Faults(t, writing) })
}

// For owners that only write, the lock behaves like an exclusive lock.
func TestModel_writers(t *testing.T) { t.Parallel(); kindtest.Model(t, writing) }

func TestRules(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a := kindtest.NewRegistered(t, s.Client(t), kindtest.Fast...)
	b := kindtest.NewRegistered(t, s.Client(t), kindtest.Fast...)
	t.Run("on Redis", func(t *testing.T) { rules(t, a, b) })
	kindtest.SoonEmpty(t, s)
}

func rules(t *testing.T, a, b *client.Client) {
	locktest.RunRW(t, locktest.RWHarness{
		New:      func(name string, opts ...lock.Option) locktest.RW { return a.NewRWLock(name, opts...) },
		Other:    func(name string, opts ...lock.Option) locktest.RW { return b.NewRWLock(name, opts...) },
		Watchdog: kindtest.WatchdogTimeout,
	})
}

// The permissions listed in docs/operate/security.md suffice for all operations of a read/write lock.
func TestRules_withMinimalPermissions(t *testing.T) {
	t.Parallel()
	kindtest.Rights(t, reading, []string{"NewRWLock", "WithLinger"}, func(t *testing.T, s *redistest.Server, a, b *client.Client) {
		t.Run("rules", func(t *testing.T) { rules(t, a, b) })
		l := a.NewRWLock("orders")
		dead := kindtest.MustLock(t, l.Read())
		s.Do(t, "DEL", leaseKey("orders:orders", dead.Owner(), 1))
		kindtest.MustUnlock(t, kindtest.MustLock(t, b.NewRWLock("orders").Write())) // although the intent of the dead writer exists
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

// On a real server: a writer and a reader of another client wait. A downgrade admits the reader and not the writer, and
// finally nothing is left.
func TestDowngrade_betweenWaiters(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l, other := orders(t, s), orders(t, s)
	first := orders(t, s, lock.WithReaderPreference()) // otherwise the order of two simultaneous waiters would decide
	write := kindtest.MustLock(t, l.Write())
	reader := kindtest.Go(t.Context(), first.Read())
	reading.Waiting(t, s, "orders", 1)
	writer := kindtest.Go(t.Context(), other.Write())
	kindtest.WaitFor(t, "the writer waits", func() bool { return exists(t, s, intentKey("orders")) })

	read, err := l.Downgrade(write.Context(), write)
	if err != nil {
		t.Fatal(err)
	}
	sharing := reader.Hold(t)
	if write.Err() == nil || read.Err() != nil || !writer.Waits() {
		t.Errorf("the write hold: %v, the read hold: %v", write.Err(), read.Err())
	}
	state, err := l.Inspect(t.Context())
	if err != nil || state.Mode != lock.Read || state.HoldCount(read.Owner()) != 1 || state.HoldCount(sharing.Owner()) != 1 {
		t.Errorf("%+v, %v", state, err)
	}
	kindtest.MustUnlock(t, sharing)
	kindtest.MustUnlock(t, read)
	kindtest.MustUnlock(t, writer.Hold(t))
	if _, err := l.Downgrade(t.Context(), write); !errors.Is(err, lock.ErrNotHeld) {
		t.Errorf("again: %v", err)
	}
	kindtest.WantEmpty(t, s)
}

// A writer that waits for x does not block readers of {x}.
func TestNames_withBracesHaveASeparateIntent(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a, b := kindtest.NewClient(t, s.Client(t), kindtest.Fast...), kindtest.NewClient(t, s.Client(t), kindtest.Fast...)
	for _, names := range [][2]string{{"x", "{x}"}, {"{y}", "y"}} {
		waitedFor := kindtest.MustLock(t, a.NewRWLock(names[0]).Read())
		writer := kindtest.Go(t.Context(), b.NewRWLock(names[0]).Write())
		kindtest.WaitFor(t, "the writer has an intent", func() bool { return len(keysLike(t, s, "leasehold_rwlock_wish:*")) == 1 })
		other := kindtest.MustLock(t, a.NewRWLock(names[1]).Read())
		if late, err := b.NewRWLock(names[1]).Read().TryLock(t.Context()); err != nil {
			t.Errorf("%s: a reader is refused (%v), and a writer waits for %s only", names[1], err, names[0])
		} else {
			kindtest.MustUnlock(t, late)
		}
		kindtest.MustUnlock(t, waitedFor, other)
		kindtest.MustUnlock(t, writer.Hold(t))
	}
}

func keysLike(t *testing.T, s *redistest.Server, pattern string) []string {
	t.Helper()
	return kindtest.List(s.Do(t, "KEYS", pattern))
}

// Write locks that linger keep the rules of all read/write locks.
func TestRules_linger(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a := kindtest.NewRegistered(t, s.Client(t), kindtest.Fast...)
	b := kindtest.NewRegistered(t, s.Client(t), kindtest.Fast...)
	t.Run("on Redis", func(t *testing.T) {
		locktest.RunRW(t, locktest.RWHarness{
			New: func(name string, opts ...lock.Option) locktest.RW {
				return a.NewRWLock(name, kindtest.Lingering(opts)...)
			},
			Other: func(name string, opts ...lock.Option) locktest.RW {
				return b.NewRWLock(name, kindtest.Lingering(opts)...)
			},
			Watchdog: kindtest.WatchdogTimeout,
		})
	})
	kindtest.SoonEmpty(t, s)
}

//go:build linux

package integration_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/leader"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/ratelimit"
	"github.com/redis/rueidis"
)

// connector makes a new connection to one deployment of Redis. The connection is closed when tb ends.
type connector func(tb testing.TB) rueidis.Client

// conformance tests every rule of package locktest on a deployment, with every type. It needs at most two connections,
// and leaves no keys behind, so it can run on a shared server.
//
// All keys begin with "orders:", so a user with permissions for only these can run it.
func conformance(t *testing.T, connect connector, options ...client.Option) {
	t.Helper()
	for maker := range suites {
		t.Run(maker, func(t *testing.T) {
			t.Parallel()
			conformanceOf(t, maker, connect, connect, options...)
		})
	}
}

// suite has the rules of a type.
type suite struct {
	rules   func(t *testing.T, a, b *client.Client, watchdog time.Duration)
	traces  bool // some of its keys remain after use
	noLease bool // no rule waits until a lease expires
}

// suites has the rules of every type, by the method of Client that makes it. The two sides of a read/write lock are tested
// together.
var suites = map[string]suite{
	"NewLock": {rules: func(t *testing.T, a, b *client.Client, watchdog time.Duration) {
		locktest.Run(t, plain.harness(a, b, watchdog))
	}},
	"NewFairLock":  {rules: fairRules},
	"NewRWLock":    {rules: rwRules},
	"NewSemaphore": {rules: semaphoreRules, traces: true},
	"NewLatch":     {rules: latchRules, traces: true, noLease: true},
	"NewWaitGroup": {rules: waitGroupRules, traces: true},
	"NewElection":  {rules: electionRules, traces: true},

	"NewRateLimiter": {rules: limiterRules, traces: true, noLease: true},
	"NewBloomFilter": {rules: filterRules, traces: true, noLease: true},
}

func (k kind) harness(a, b *client.Client, watchdog time.Duration) locktest.Harness {
	return locktest.Harness{
		New:      func(name string, o ...lock.Option) lock.Locker { return k.lock(a, name, o...) },
		Other:    func(name string, o ...lock.Option) lock.Locker { return k.lock(b, name, o...) },
		Watchdog: watchdog,
	}
}

func fairRules(t *testing.T, a, b *client.Client, watchdog time.Duration) {
	h := fair.harness(a, b, watchdog)
	h.Waiters = func(ctx context.Context, name string) (int, error) {
		s, err := fair.inspect(ctx, a, name)
		return len(s.Waiters), err
	}
	locktest.RunFair(t, h)
	locktest.Run(t, h)
}

func rwRules(t *testing.T, a, b *client.Client, watchdog time.Duration) {
	locktest.RunRW(t, locktest.RWHarness{
		New:      func(name string, o ...lock.Option) locktest.RW { return a.NewRWLock(name, o...) },
		Other:    func(name string, o ...lock.Option) locktest.RW { return b.NewRWLock(name, o...) },
		Watchdog: watchdog,
	})
}

func semaphoreRules(t *testing.T, a, b *client.Client, watchdog time.Duration) {
	maker := func(c *client.Client) func(string, int, int, ...lock.Option) lock.Locker {
		return func(name string, total, n int, o ...lock.Option) lock.Locker {
			return c.NewSemaphore(name, total, o...).N(n)
		}
	}
	locktest.RunSemaphore(t, locktest.SemaphoreHarness{
		New: maker(a), Other: maker(b), Watchdog: watchdog,
		Waiters: func(ctx context.Context, name string) (int, error) {
			s, err := a.NewSemaphore(name, 0).Inspect(ctx)
			return len(s.Waiters), err
		},
	})
}

func latchRules(t *testing.T, a, b *client.Client, _ time.Duration) {
	locktest.RunLatch(t, locktest.LatchHarness{
		New:   func(name string) locktest.Latch { return a.NewLatch(name) },
		Other: func(name string) locktest.Latch { return b.NewLatch(name) },
	})
}

func waitGroupRules(t *testing.T, a, b *client.Client, watchdog time.Duration) {
	locktest.RunWaitGroup(t, locktest.WaitGroupHarness{
		New:      func(name string, o ...lock.Option) locktest.WaitGroup { return a.NewWaitGroup(name, o...) },
		Other:    func(name string, o ...lock.Option) locktest.WaitGroup { return b.NewWaitGroup(name, o...) },
		Watchdog: watchdog,
	})
}

func electionRules(t *testing.T, a, b *client.Client, watchdog time.Duration) {
	maker := func(c *client.Client) func(string, ...lock.Option) (lock.Locker, leader.Store) {
		return func(name string, o ...lock.Option) (lock.Locker, leader.Store) {
			return c.NewFairLock(name, o...), c.NewLeaderStore(name)
		}
	}
	locktest.RunElection(t, locktest.ElectionHarness{New: maker(a), Other: maker(b), Watchdog: watchdog})
}

func limiterRules(t *testing.T, a, b *client.Client, _ time.Duration) {
	maker := func(c *client.Client) func(string, ...ratelimit.Limit) locktest.Limiter {
		return func(name string, limits ...ratelimit.Limit) locktest.Limiter {
			return c.NewRateLimiter(name, ratelimit.FailClosed().After(promptTimeout), limits...)
		}
	}
	locktest.RunLimiter(t, locktest.LimiterHarness{New: maker(a), Other: maker(b)})
}

func filterRules(t *testing.T, a, b *client.Client, _ time.Duration) {
	locktest.RunFilter(t, locktest.FilterHarness{
		New:   func(name string) locktest.Filter { return a.NewBloomFilter(name) },
		Other: func(name string) locktest.Filter { return b.NewBloomFilter(name) },
	})
}

// conformanceOf tests one type. It searches for remaining keys as admin, which may use SCAN.
func conformanceOf(t *testing.T, maker string, connect, admin connector, options ...client.Option) {
	t.Helper()
	watchdog := 8 * time.Second // leaves 2 s for a reply, as a busy machine needs
	if suites[maker].noLease {
		watchdog *= 4 // no rule takes longer because of it
	}
	prefix := fmt.Sprintf("orders:%08x:", rand.Uint32())
	options = append([]client.Option{
		client.WithWatchdogTimeout(watchdog), client.WithOpTimeout(watchdog / 4), client.WithKeyPrefix(prefix),
	}, options...)
	a, b := registered(t, connect(t), options...), registered(t, connect(t), options...)
	t.Run("rules", func(t *testing.T) { suites[maker].rules(t, a, b, watchdog) })
	if suites[maker].traces {
		rdb := admin(t)
		for _, node := range rdb.Nodes() {
			for _, key := range scan(t, node, "*"+prefix+"*") {
				do(t, rdb, "DEL", key)
			}
		}
	}
	nothingLeft(t, admin, prefix)
}

// nothingLeft waits until no node has a key with this prefix, because replicas are slightly behind.
func nothingLeft(t *testing.T, admin connector, prefix string) {
	t.Helper()
	for addr, node := range admin(t).Nodes() {
		until(t, func() bool {
			keys := scan(t, node, "*"+prefix+"*")
			if len(keys) > 0 {
				t.Logf("%s: %d keys, such as %q", addr, len(keys), keys[0])
			}
			return len(keys) == 0
		})
	}
}

// scan returns the keys of one node that match pattern.
func scan(t *testing.T, node rueidis.Client, pattern string) (keys []string) {
	t.Helper()
	for cursor := uint64(0); ; {
		page, err := node.Do(t.Context(), node.B().Scan().Cursor(cursor).Match(pattern).Count(1000).Build()).AsScanEntry()
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, page.Elements...)
		if cursor = page.Cursor; cursor == 0 {
			return keys
		}
	}
}

// aServer returns a server that the test must not disturb: the one in LEASEHOLD_REDIS_URL, any URL that client.Open
// accepts; otherwise one that redistest starts; without an installed binary, one in a container.
func aServer(t *testing.T) connector {
	t.Helper()
	if url := os.Getenv("LEASEHOLD_REDIS_URL"); url != "" {
		return connectTo(t, url)
	}
	if !redistest.Installed() {
		connect, err := inContainer(t)
		if err == nil {
			return connect
		}
		t.Logf("no server in a container either: %v", err)
	}
	server := redistest.Start(t)
	return func(tb testing.TB) rueidis.Client { return server.Client(tb) }
}

func TestConformance(t *testing.T) { conformance(t, aServer(t)) }

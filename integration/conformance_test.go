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
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/redis/rueidis"
)

// connector makes a new connection to one deployment of Redis. The end of tb
// closes the connection.
type connector func(tb testing.TB) rueidis.Client

// conformance tests every rule of package locktest on a deployment, with every
// kind of lock. It needs no more than two connections, and leaves nothing: it can
// be run on a server that others use.
//
// All keys begin with "orders:", so that a user with rights to these alone can
// run it.
func conformance(t *testing.T, connect connector, options ...client.Option) {
	t.Helper()
	for _, k := range []kind{plain, fair, write} {
		t.Run(k.maker(), func(t *testing.T) {
			t.Parallel()
			conformanceOf(t, k, connect, connect, options...)
		})
	}
}

// conformanceOf does so with one kind; the two sides of a read/write lock are
// tested together. It looks for remaining keys as admin, which may SCAN.
func conformanceOf(t *testing.T, k kind, connect, admin connector, options ...client.Option) {
	t.Helper()
	const watchdog = 4 * time.Second // a busy machine keeps up with this at least
	prefix := fmt.Sprintf("orders:%08x:", rand.Uint32())
	options = append([]client.Option{
		client.WithWatchdogTimeout(watchdog), client.WithOpTimeout(watchdog / 4), client.WithKeyPrefix(prefix),
	}, options...)
	a, b := registered(t, connect(t), options...), registered(t, connect(t), options...)
	t.Run("rules", func(t *testing.T) {
		if k == read || k == write {
			locktest.RunRW(t, locktest.RWHarness{
				New:      func(name string, o ...lock.Option) locktest.RW { return a.NewRWLock(name, o...) },
				Other:    func(name string, o ...lock.Option) locktest.RW { return b.NewRWLock(name, o...) },
				Watchdog: watchdog,
			})
			return
		}
		h := locktest.Harness{
			New:      func(name string, o ...lock.Option) lock.Locker { return k.lock(a, name, o...) },
			Other:    func(name string, o ...lock.Option) lock.Locker { return k.lock(b, name, o...) },
			Watchdog: watchdog,
		}
		if k == fair {
			h.Waiters = func(ctx context.Context, name string) (int, error) {
				s, err := k.inspect(ctx, a, name)
				return len(s.Waiters), err
			}
			locktest.RunFair(t, h)
		}
		locktest.Run(t, h)
	})
	nothingLeft(t, admin, prefix)
}

// maker is the method of Client that makes locks of the kind.
func (k kind) maker() string {
	switch k {
	case fair:
		return "NewFairLock"
	case read, write:
		return "NewRWLock"
	}
	return "NewLock"
}

// nothingLeft waits until no node has a key with prefix in it: replicas are a
// little behind.
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

// aServer returns any one server, which the test must not break: that of
// LEASEHOLD_REDIS_URL, which may be any URL that client.Open takes; otherwise one
// that redistest starts; where no binary is installed, one in a container.
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

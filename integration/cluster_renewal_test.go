//go:build linux

package integration_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// renewed counts the renewals of each lock.
type renewed struct {
	mu    sync.Mutex
	count map[string]int
	total int64
}

func (r *renewed) observe() client.Option {
	r.count = make(map[string]int)
	return client.WithObserver(lock.Observer{Renewed: func(_ context.Context, e lock.Event) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.count[e.Name]++
		r.total++
	}})
}

// often waits until each of the locks was renewed that many more times.
func (r *renewed) often(t *testing.T, names []string, times int) {
	t.Helper()
	r.mu.Lock()
	want := make(map[string]int, len(names))
	for _, name := range names {
		want[name] = r.count[name] + times
	}
	r.mu.Unlock()
	until(t, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		for name, n := range want {
			if r.count[name] < n {
				return false
			}
		}
		return true
	})
}

func holdAll(t *testing.T, c *client.Client, names []string) (holds []lock.Hold) {
	t.Helper()
	for _, name := range names {
		h, err := c.NewLock(name).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		holds = append(holds, h)
	}
	return holds
}

// One shard, master and replica, stops replying, but keeps its connections. The locks of the other shards are renewed
// as before; its own are lost, each when its lease expires.
func TestClusterRenewal_unavailableShardDelaysNoOther(t *testing.T) {
	t.Parallel()
	const lease, opTimeout = 4 * time.Second, time.Second
	c := redistest.StartCluster(t, "--cluster-require-full-coverage", "no")
	var r renewed
	l := ours(t, c.Client(t), client.WithWatchdogTimeout(lease), client.WithOpTimeout(opTimeout), r.observe())
	unresponsive := c.Master(t, "0")
	replica := c.Replica(t, unresponsive)
	var theirs, others []string
	for i := range 300 {
		name := fmt.Sprint(i)
		if c.Master(t, name) == unresponsive {
			theirs = append(theirs, name)
		} else {
			others = append(others, name)
		}
	}
	holds, lost := holdAll(t, l, others), holdAll(t, l, theirs)
	r.often(t, append(others, theirs...), 1)

	replica.Freeze(t) // the replica first, otherwise it would take over
	unresponsive.Freeze(t)
	defer replica.Thaw(t)
	defer unresponsive.Thaw(t)
	for _, h := range lost {
		soon(t, h.Context().Done())
		if err := context.Cause(h.Context()); !errors.Is(err, lock.ErrLost) {
			t.Fatalf("a lock of the unavailable shard: got %v, want ErrLost", err)
		}
	}
	r.often(t, others, 3) // for longer than a lease
	for i, h := range holds {
		if err := h.Err(); err != nil {
			t.Fatalf("%s, on another shard: %v", others[i], err)
		}
	}
}

// Locks whose names share a hash tag share scripts, even when the locks of two slots of a node are due alternately.
func TestClusterRenewal_locksOfOneSlotShareAScript(t *testing.T) {
	t.Parallel()
	const n = 200
	c := redistest.StartCluster(t)
	var r renewed
	l := ours(t, c.Client(t), client.WithWatchdogTimeout(3*time.Second), r.observe())
	other := "other"
	for c.Master(t, other) != c.Master(t, "orders") {
		other += "."
	}
	var names []string
	for i := range n / 2 {
		names = append(names, fmt.Sprintf("{orders}:%d", i), fmt.Sprintf("{%s}:%d", other, i))
	}
	holds := holdAll(t, l, names)
	calls := func() (sum int64) {
		for _, master := range c.Masters(t) {
			sum += master.CommandCalls(t, "evalsha")
		}
		return sum
	}
	renewals := func() int64 {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.total
	}
	before, base := calls(), renewals()
	r.often(t, names, 3)
	total := renewals() - base
	if sent := calls() - before; sent > total/10 {
		t.Errorf("%d scripts for %d renewals, want a tenth at the most", sent, total)
	}
	for _, h := range holds {
		unlock(t, h)
	}
}

// A slot is being migrated, and each of the two nodes has some of its locks: no script can renew them together, so each
// is renewed separately.
func TestClusterRenewal_halfMigratedSlot(t *testing.T) {
	t.Parallel()
	const n = 20
	c := redistest.StartCluster(t)
	var r renewed
	l := ours(t, c.Client(t, func(o *rueidis.ClientOption) { o.ClusterOption.ShardsRefreshInterval = time.Second }),
		client.WithWatchdogTimeout(3*time.Second), r.observe())
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("{orders}:%d", i))
	}
	holds := holdAll(t, l, names)
	from := c.Master(t, names[0])
	to := c.Masters(t)[0]
	if to == from {
		to = c.Masters(t)[1]
	}
	m := c.Migrate(t, c.Slot(t, names[0]), from, to)
	m.Move(t, names[:n/2]...)
	r.often(t, names, 4) // for longer than a lease
	m.Finish(t)
	r.often(t, names, 2)
	for _, h := range holds {
		unlock(t, h)
	}
}

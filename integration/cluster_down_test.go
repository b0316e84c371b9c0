//go:build linux

package integration_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// A shard dies, master and replica, and the whole cluster rejects commands. Holders and callers get the right errors in
// time, on the dead shard and on a living one.
//
//	1 two locks are held and have waiters, one on each shard
//	2 the shard dies
//	3 calls return in time, with the reason
//	4 the holders are notified at Until
//	5 the shard is back, empty: the waiters continue, and nothing is left
func TestCluster_down(t *testing.T) {
	t.Parallel()
	eachPubSub(t, func(t *testing.T, p client.PubSub) {
		t.Parallel()
		const lease, opTimeout = 6 * time.Second, time.Second
		c := redistest.StartCluster(t)
		connect := func() *client.Client {
			return ours(t, c.Client(t, func(o *rueidis.ClientOption) { o.ClusterOption.ShardsRefreshInterval = time.Second }),
				client.WithPubSub(p), client.WithWatchdogTimeout(lease), client.WithOpTimeout(opTimeout))
		}
		holder, waiter, third := connect(), connect(), connect()
		dies := c.Master(t, "dies")
		lives := "lives"
		for c.Master(t, lives) == dies {
			lives += "."
		}
		names := []string{"dies", lives}

		crowd := wait(t, holder, waiter, names) // 1
		replica := c.Replica(t, dies)
		replica.Kill(t) // 2: the replica first, otherwise it would take over
		dies.Kill(t)
		c.FindTheDead(t)
		until(t, func() bool {
			reply := c.Master(t, lives).Do(t, "CLUSTER", "INFO")
			text, _ := reply.ToString()
			return strings.Contains(text, "cluster_state:fail")
		})

		for i, name := range names { // 3
			l := third.NewLock(name)
			start := time.Now()
			if _, err := l.TryLock(t.Context()); err == nil || errors.Is(err, lock.ErrNotAcquired) {
				t.Errorf("%s: TryLock: got %v, want the error of the cluster", name, err)
			} else if name == lives && !strings.Contains(err.Error(), "CLUSTERDOWN") {
				t.Errorf("%s: TryLock: %v, want CLUSTERDOWN", name, err)
			}
			if _, err := third.NewLock(name, lock.WithWait(time.Second)).Lock(t.Context()); !errors.Is(err, lock.ErrUnavailable) {
				t.Errorf("%s: Lock: %v, want ErrUnavailable", name, err)
			} else if name == lives && !strings.Contains(err.Error(), "CLUSTERDOWN") {
				t.Errorf("%s: Lock: %v, want CLUSTERDOWN", name, err)
			}
			if _, err := l.Inspect(t.Context()); err == nil {
				t.Errorf("%s: Inspect: no error", name)
			}
			if took := time.Since(start); took > promptTimeout {
				t.Errorf("%s: three calls took %v", name, took)
			}

			h := crowd.holds[i] // 4
			select {
			case <-h.Context().Done():
			case <-time.After(promptTimeout):
				t.Fatalf("%s: the holder is not notified", name)
			}
			if err := context.Cause(h.Context()); !errors.Is(err, lock.ErrLost) {
				t.Errorf("%s: %v, want ErrLost", name, err)
			}
		}

		dies.Restart(t) // 5
		replica.Restart(t)
		c.WaitUntilWell(t)
		for i, name := range names {
			select {
			case r := <-crowd.got[i]:
				if r.err != nil {
					t.Fatalf("%s: the waiter: %v", name, r.err)
				}
				if err := r.hold.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
			case <-time.After(promptTimeout):
				t.Fatalf("%s: the waiter is stuck", name)
			}
			if err := crowd.holds[i].Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
				t.Errorf("%s: the first holder's Unlock: %v, want ErrLost", name, err)
			}
		}
		until(t, func() bool {
			n := int64(0)
			for _, master := range c.Masters(t) {
				n += keys(t, master)
			}
			return n == 0
		})
	})
}

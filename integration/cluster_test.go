//go:build linux

package integration_test

import (
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/redis/rueidis"
)

// eachPubSub runs a test with both types of Pub/Sub on a cluster.
func eachPubSub(t *testing.T, test func(*testing.T, client.PubSub)) {
	t.Helper()
	for _, p := range []client.PubSub{client.PubSubPlain, client.PubSubSharded} {
		t.Run(p.String(), func(t *testing.T) {
			needs(t, p)
			test(t, p)
		})
	}
}

// needs skips the test if the server does not support this type of Pub/Sub: sharded Pub/Sub exists since Redis 7.0.
func needs(t *testing.T, p client.PubSub) {
	t.Helper()
	if p == client.PubSubSharded && !redistest.Start(t).KnowsSharded(t) {
		t.Skip("this server has no sharded Pub/Sub")
	}
}

// The rules of every type hold on a cluster: with sharded Pub/Sub, which the client detects, for a user with the minimum
// permissions, and with plain Pub/Sub.
func TestConformance_cluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	t.Run("plain", func(t *testing.T) {
		t.Parallel()
		conformance(t, func(tb testing.TB) rueidis.Client { return c.Client(tb) }, client.WithPubSub(client.PubSubPlain))
	})
	if !c.Nodes[0].KnowsSharded(t) {
		t.Run("least rights", func(t *testing.T) {
			t.Parallel()
			minimalPermissions(t, c.Nodes, c.Client, "Cluster")
		})
		return
	}
	t.Run("sharded", func(t *testing.T) {
		t.Parallel()
		minimalPermissions(t, c.Nodes, c.Client, "Cluster")
	})
	t.Cleanup(func() {
		for _, command := range []string{"ssubscribe", "sunsubscribe", "pubsub|shardnumsub"} {
			calls := int64(0)
			for _, n := range c.Nodes {
				calls += n.CommandCalls(t, command)
			}
			if calls == 0 {
				t.Errorf("%s was never called: the test shows nothing", command)
			}
		}
	})
}

// A client without permission to check for sharded Pub/Sub uses plain Pub/Sub, and works. Without any reply, Open fails.
func TestCluster_probe(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	var as func(*rueidis.ClientOption)
	for _, n := range c.Nodes {
		as = n.AddUser(t, "locks", redistest.Rights(t, "NewLock")...)
	}
	crowd := wait(t, ours(t, c.Client(t, as)), ours(t, c.Client(t, as)), []string{"orders:1", "orders:2"})
	until(t, func() bool {
		received := listeners(t, c, client.PubSubPlain, crowd.channels)
		return received[crowd.channels[0]] == 1 && received[crowd.channels[1]] == 1
	})
	crowd.pass(t)

	rdb := c.Client(t)
	for _, n := range c.Nodes {
		n.Freeze(t)
	}
	if _, err := client.New(rdb, client.WithOpTimeout(100*time.Millisecond)); err == nil || !strings.Contains(err.Error(), "WithPubSub") {
		t.Errorf("New with a paused cluster: got %v, want an error that names WithPubSub", err)
	}
	for _, p := range []client.PubSub{client.PubSubPlain, client.PubSubSharded} {
		if _, err := client.New(rdb, client.WithPubSub(p)); err != nil {
			t.Errorf("New with %v: got %v, want no query", p, err)
		}
	}
	for _, n := range c.Nodes {
		n.Thaw(t)
	}
}

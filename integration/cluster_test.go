//go:build linux

package integration_test

import (
	"testing"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/redis/rueidis"
)

// eachPubSub runs a test with both ways of waking waiters on a cluster.
func eachPubSub(t *testing.T, test func(*testing.T, client.PubSub)) {
	t.Helper()
	for _, p := range []client.PubSub{client.PubSubPlain, client.PubSubSharded} {
		t.Run(p.String(), func(t *testing.T) { test(t, p) })
	}
}

// The rules of every kind hold on a cluster.
func TestCluster_conformance(t *testing.T) {
	c := redistest.StartCluster(t)
	eachPubSub(t, func(t *testing.T, p client.PubSub) {
		conformance(t, func(tb testing.TB) rueidis.Client { return c.Client(tb) }, client.WithPubSub(p))
	})
}

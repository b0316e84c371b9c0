//go:build linux

package integration_test

import (
	"testing"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/redis/rueidis"
)

// A cluster behind one address, as proxies and some clouds offer it: the rules of every kind hold, both where clients
// take the address for one server, and where they take it for a cluster with one node.
func TestOneAddress_conformance(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	sharded := knowsSharded(t, c.Nodes[0])
	conformance := func(t *testing.T, oneNode bool, options ...client.Option) {
		r := redistest.NewRouter(t, c, oneNode)
		for maker := range suites {
			t.Run(maker, func(t *testing.T) {
				t.Parallel()
				conformanceOf(t, maker,
					func(tb testing.TB) rueidis.Client { return r.Client(tb) },
					func(tb testing.TB) rueidis.Client { return c.Client(tb) }, options...)
			})
		}
	}
	t.Run("as a server", func(t *testing.T) { conformance(t, false) })
	for _, p := range []client.PubSub{client.PubSubPlain, client.PubSubSharded} {
		t.Run("as a cluster, "+p.String(), func(t *testing.T) {
			if p == client.PubSubSharded && !sharded {
				t.Skip("this server has no sharded Pub/Sub")
			}
			conformance(t, true, client.WithPubSub(p))
		})
	}
}

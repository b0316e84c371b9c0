//go:build linux

package integration_test

import (
	"math/rand/v2"
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
	for what, oneNode := range map[string]bool{"as a server": false, "as a cluster": true} {
		t.Run(what, func(t *testing.T) {
			r := redistest.NewRouter(t, c, oneNode)
			for maker := range suites {
				t.Run(maker, func(t *testing.T) {
					t.Parallel()
					conformanceOf(t, maker,
						func(tb testing.TB) rueidis.Client { return r.Client(tb) },
						func(tb testing.TB) rueidis.Client { return c.Client(tb) })
				})
			}
		})
	}
}

// Owners of both clients take turns behind one address, while slots move and replicas take over as planned: nobody
// meets another, no lock is lost, and no waiter is forgotten. Where clients take the address for one server, a process
// listens at one node, and the others count no listener there: then waiters rely on the questions that they ask once a poll
// interval.
func TestOneAddress_load(t *testing.T) {
	t.Parallel()
	for what, oneNode := range map[string]bool{"as a server": false, "as a cluster": true} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c := redistest.StartCluster(t)
			r := redistest.NewRouter(t, c, oneNode)
			l := startClusterLoadBy(t, c, client.PubSubAuto, func() rueidis.Client { return r.Client(t) })
			random := rand.New(rand.NewPCG(seed(t), 1))
			masters := c.Masters(t)
			for round := range min(plannedRounds(t), len(masters)) {
				l.goesOn()
				l.migrate(random)
				l.goesOn()
				promoteInCluster(t, c, c.Replica(t, masters[round]))
			}
			l.goesOn()
			l.end()
			if l.overlaps > 0 || l.lost > 0 {
				t.Error("two owners at once, or a lock that was lost")
			}
			if r.Followed() == 0 {
				t.Error("no node sent the router to another: the test proves nothing")
			}
		})
	}
}

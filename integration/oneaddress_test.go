//go:build linux

package integration_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/multilock"
	"github.com/redis/rueidis"
)

// A cluster behind a proxy, as some cloud providers offer it: the rules of every type hold, whether clients detect a
// single server or a cluster with one node.
func TestOneAddress_conformance(t *testing.T) {
	withOthers(t)
	c := redistest.StartCluster(t)
	for what, oneNode := range map[string]bool{"as a server": false, "as a cluster": true} {
		if oneNode && !thorough() {
			continue
		}
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

// Owners of both clients compete behind a proxy, while slots are migrated and replicas take over in planned failovers:
// no lock has two owners at once, none is lost, and every waiter is served.
func TestOneAddress_load(t *testing.T) {
	withOthers(t)
	for what, oneNode := range map[string]bool{"as a server": false, "as a cluster": true} {
		if oneNode && !thorough() {
			continue
		}
		t.Run(what, func(t *testing.T) {
			c := redistest.StartCluster(t)
			r := redistest.NewRouter(t, c, oneNode)
			l := startClusterLoadBy(t, c, client.PubSubAuto, func() rueidis.Client { return r.Client(t) })
			random := rand.New(rand.NewPCG(seed(t), 1))
			masters := c.Masters(t)
			rounds := min(plannedRounds(), len(masters))
			for round := range rounds {
				l.goesOn()
				l.migrate(random)
				l.goesOn()
				promoteInCluster(t, c, c.Replica(t, masters[round]))
			}
			l.goesOn()
			l.end(fmt.Sprintf("%d slots were migrated, with %d planned failovers", rounds, rounds))
			if l.overlaps > 0 || l.lost > 0 {
				t.Error("two owners at once, or a lock that was lost")
			}
			if r.Followed() == 0 {
				t.Error("no node redirected the router: the test shows nothing")
			}
		})
	}
}

// If clients detect a single server, a process is subscribed at one node only. Clients connected to other nodes count
// no subscriber, but their messages reach it. A waiter therefore acquires the lock soon, and at most a poll interval
// after its release.
func TestOneAddress_handOver(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	for what, oneNode := range map[string]bool{"as a server": false, "as a cluster": true} {
		r := redistest.NewRouter(t, c, oneNode)
		holder, waiter := ours(t, r.Client(t)), ours(t, r.Client(t))
		for _, k := range []kind{plain, fair} {
			var took []time.Duration
			for i := range 6 {
				name := fmt.Sprintf("%s-%d-%v", k, i, oneNode)
				h, err := k.lock(holder, name).Lock(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				got := make(chan handedOff, 1)
				go func() {
					h, err := k.lock(waiter, name).Lock(t.Context())
					got <- handedOff{h, err, time.Now()}
				}()
				until(t, func() bool {
					state, err := k.inspect(t.Context(), holder, name)
					return err == nil && len(state.Waiters) == 1
				})
				if err := h.Unlock(t.Context()); err != nil {
					t.Fatal(err)
				}
				released := time.Now()
				p := soon(t, got)
				if p.err != nil {
					t.Fatal(p.err)
				}
				took = append(took, p.at.Sub(released))
				if err := p.hold.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
			}
			slices.Sort(took)
			t.Logf("%s, %s: from the release to the grant %v to %v, the median %v", what, k, took[0], took[len(took)-1], median(took))
			if middle := median(took); middle > poll+loadOpTimeout { // the machine may pause for a while
				t.Errorf("%s, %s: waiters acquired the lock %v after its release", what, k, middle)
			}
		}
	}
}

// Locks of several slots are acquired together, although no script may have keys of two slots: if clients detect a
// single server, the error reply shows that it is a cluster, and they acquire the locks one by one.
func TestOneAddress_multilock(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	names := []string{"a", "b", "c"}
	nodes := map[*redistest.Server]bool{}
	for _, name := range names {
		nodes[c.Master(t, name)] = true
	}
	if len(nodes) < 2 {
		t.Fatal("all locks are on one node")
	}
	for what, oneNode := range map[string]bool{"as a server": false, "as a cluster": true} {
		r := redistest.NewRouter(t, c, oneNode)
		one, other := ours(t, r.Client(t)), ours(t, r.Client(t))
		both := func(c *client.Client) lock.Locker {
			var members []lock.Locker
			for _, name := range names {
				members = append(members, c.NewLock(name))
			}
			return multilock.New(members...)
		}
		for range 3 {
			p := pairOf(t, both(one), both(other))
			for _, name := range names {
				if _, err := other.NewLock(name).TryLock(t.Context()); !errors.Is(err, lock.ErrNotAcquired) {
					t.Errorf("%s: TryLock of %q: %v, want ErrNotAcquired", what, name, err)
				}
			}
			p.unlock(t, p.first)
			p.wait(t)
			if p.both {
				t.Errorf("%s: two owners", what)
			}
			p.unlock(t, p.second)
		}
	}
	until(t, func() bool {
		n := int64(0)
		for _, master := range c.Masters(t) {
			n += keys(t, master)
		}
		return n == 0
	})
}

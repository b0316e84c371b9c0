//go:build linux

package integration_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/multilock"
	"github.com/redis/rueidis"
)

// A planned failover: two servers swap their roles while both are alive, and the test closes no connection. If the old
// primary stops until the new one has all writes, no write is lost: no lock has two owners, and none is lost.
//
//	1 a lock of each type has an owner, and an owner of the other client waits for it; a latch and a wait group are waited for
//	2 the servers swap their roles, while others come and go
//	3 each owner keeps its lock: a renewal is confirmed by the new primary
//	4 the owner unlocks, and the waiter acquires the lock; the latch is released, the wait group is done
//
// If the failover loses writes, as with Sentinels, a lock may be lost, too, with its owner notified; but a lock that
// the new primary has keeps its only owner.
func planned(t *testing.T, rounds int, forgets bool, connect func() rueidis.Client, change func(round int)) {
	t.Helper()
	clients := make([]*client.Client, 2)
	for i := range clients {
		clients[i] = ours(t, connect(), client.WithWatchdogTimeout(loadLease), client.WithOpTimeout(loadLease/4))
	}
	load := startTraffic(t, clients)
	kept, lost := 0, 0
	for round := range rounds {
		one, other := clients[round%2], clients[(round+1)%2]
		name := func(what string) string { return fmt.Sprintf("%s-%d", what, round) }
		pairs := []*pair{ // 1
			pairOf(t, one.NewSemaphore(name("semaphore"), 1).N(1), other.NewSemaphore(name("semaphore"), 1).N(1)),
			pairOf(t, multilock.New(one.NewLock(name("multi-a")), one.NewLock(name("multi-b"))), other.NewLock(name("multi-b"))),
		}
		for _, k := range []kind{plain, fair, read, write} {
			pairs = append(pairs, newPair(t, k, one, other, name(string(k))))
		}
		if _, err := one.NewLatch(name("latch")).TrySetCount(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		member, err := one.NewWaitGroup(name("waitgroup")).Add(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		opened, done := waits(t, other.NewLatch(name("latch"))), make(chan error, 1)
		go func() { done <- other.NewWaitGroup(name("waitgroup")).Wait(t.Context()) }()
		load.goesOn(t)

		change(round) // 2
		changed := time.Now()

		for _, p := range pairs {
			untilWithin(t, time.Minute, func() bool { // 3
				return p.first.Err() != nil || p.first.Until().After(changed.Add(loadLease-loadLease/100))
			})
			err := p.first.Unlock(t.Context()) // 4
			if errors.Is(err, lock.ErrLost) {
				lost++
				if !forgets {
					t.Errorf("round %d, %s: its owner lost it", round, p.name)
				}
			} else if err != nil {
				t.Errorf("round %d, %s: %v", round, p.name, err)
			} else {
				kept++
			}
			p.wait(t)
			if p.both && !forgets {
				t.Errorf("round %d, %s: two owners", round, p.name)
			}
			p.unlock(t, p.second)
		}
		untilWithin(t, time.Minute, func() bool {
			_, err := one.NewLatch(name("latch")).CountDownOnce(t.Context(), "done")
			return err == nil
		})
		if err := soon(t, opened); err != nil {
			t.Error(err)
		}
		if err := member.Unlock(t.Context()); err != nil && !(forgets && errors.Is(err, lock.ErrLost)) {
			t.Errorf("round %d, the wait group: %v", round, err)
		}
		if err := soon(t, done); err != nil && !forgets {
			t.Errorf("round %d, the wait group: %v", round, err)
		}
		load.goesOn(t)
	}
	load.stop()
	t.Logf("%d planned failovers: %d locks kept, %d lost; load: acquired %s; %d lost, %d releases unconfirmed, %d times two owners",
		rounds, kept, lost, counts(load.locked), load.lost.Load(), load.unconfirmed.Load(), load.overlaps.Load())
	if kept == 0 {
		t.Error("no lock was kept")
	}
	if n, m := load.overlaps.Load(), load.lost.Load(); !forgets && n+m > 0 {
		t.Errorf("%d times two owners, %d locks lost: a planned failover forgets nothing", n, m)
	}
}

// thorough reports whether the test runs under make versions, which does more of the slow work.
func thorough() bool { return os.Getenv("LEASEHOLD_VERSIONS") != "" }

// withOthers makes a test parallel, except under make versions, where it would only run next to other expensive tests.
func withOthers(t *testing.T) {
	t.Helper()
	if !thorough() {
		t.Parallel()
	}
}

// plannedRounds returns the number of planned failovers that a test triggers.
func plannedRounds() int {
	if thorough() {
		return 3
	}
	return 1
}

// promote makes the Sentinels promote the replica.
func promote(t *testing.T, s *redistest.Sentinel, how ...string) {
	t.Helper()
	old := s.Primary(t)
	s.Sentinels[0].Do(t, append([]string{"SENTINEL", "FAILOVER", redistest.PrimaryName}, how...)...)
	next := old
	untilWithin(t, time.Minute, func() bool { next = s.Primary(t); return next != old })
	old.WaitUntilFollows(t, next)
}

// exchange makes a primary and its replica swap their roles with FAILOVER.
func exchange(t *testing.T, old, next *redistest.Server) {
	t.Helper()
	next.WaitUntilFollows(t, old)
	old.Do(t, "FAILOVER")
	untilWithin(t, time.Minute, func() bool { return isMaster(t, next) })
	old.WaitUntilFollows(t, next)
}

// replicated starts a primary and a replica of it.
func replicated(t *testing.T) [2]*redistest.Server {
	t.Helper()
	config := []string{"--repl-diskless-sync-delay", "0"}
	primary, replica := redistest.Start(t, config...), redistest.Start(t, config...)
	host, port, _ := strings.Cut(primary.Addr(), ":")
	replica.Do(t, "REPLICAOF", host, port)
	replica.WaitUntilFollows(t, primary)
	return [2]*redistest.Server{primary, replica}
}

// FAILOVER, behind an address that leads to the primary. Old connections still lead to the old primary, until the
// client replaces them because of their age.
func TestPlanned_failover(t *testing.T) {
	t.Parallel()
	servers := replicated(t)
	wire := redistest.NewProxy(t, servers[0].Addr())
	planned(t, plannedRounds(), false, func() rueidis.Client {
		return servers[0].Client(t, redistest.Via(wire), func(o *rueidis.ClientOption) { o.ConnLifetime = time.Second })
	}, func(round int) {
		old, next := servers[round%2], servers[(round+1)%2]
		exchange(t, old, next)
		wire.Redirect(next.Addr())
	})
}

// The same with connections without a maximum age: the client stays with a server that rejects writes. Its calls report
// that, and its owner is notified by the end of its lease; until then no other owner has the lock. Once the connections
// are cut, work continues. Only then does the address lead to the new primary: on a busy machine rueidis closes a
// connection whose reply is late, and with a new connection the owner would keep its locks.
func TestPlanned_failoverAndOldConnections(t *testing.T) {
	t.Parallel()
	servers := replicated(t)
	wire := redistest.NewProxy(t, servers[0].Addr())
	const lease = 6 * time.Second
	options := []client.Option{client.WithWatchdogTimeout(lease), client.WithOpTimeout(time.Second)}
	left := ours(t, servers[0].Client(t, redistest.Via(wire)), options...)
	holds := map[kind]lock.Hold{}
	for _, k := range []kind{plain, fair, read, write} {
		h, err := k.lock(left, string(k)).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		holds[k] = h
	}
	exchange(t, servers[0], servers[1])

	if _, err := left.NewLock("new", lock.WithWait(time.Second)).Lock(t.Context()); !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("Lock at a server that became a replica: %v, want ErrUnavailable", err)
	}
	moved := ours(t, servers[1].Client(t), options...)
	for k, h := range holds {
		second, err := k.rival().lock(moved, string(k), lock.WithWait(lease+promptTimeout)).Lock(t.Context())
		if err != nil {
			t.Errorf("%s: %v", k, err)
			continue
		}
		if h.Err() == nil {
			t.Errorf("%s: two owners", k)
		}
		if err := second.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	}
	wire.Redirect(servers[1].Addr())
	wire.CutAll()
	untilWithin(t, time.Minute, func() bool {
		h, err := left.NewLock("new").Lock(t.Context())
		return err == nil && h.Unlock(t.Context()) == nil
	})
}

// Sentinels swap the roles on request. They do not stop the old primary, so locks that it grants in the meantime are
// lost.
func TestPlanned_sentinel(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t, 2)
	planned(t, plannedRounds(), true, func() rueidis.Client { return s.Client(t) }, func(int) { promote(t, s) })
}

// The Sentinels of Valkey 9.0 and later can use FAILOVER, which loses no writes.
func TestPlanned_sentinelCoordinated(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t, 2)
	info := s.Nodes[0].Do(t, "INFO", "server")
	text, _ := info.ToString()
	_, version, valkey := strings.Cut(text, "valkey_version:")
	if major, _, _ := strings.Cut(version, "."); !valkey || len(major) == 1 && major < "9" {
		t.Skip("this version has no coordinated Sentinel failover")
	}
	planned(t, plannedRounds(), false, func() rueidis.Client { return s.Client(t) }, func(int) { promote(t, s, "COORDINATED") })
}

// CLUSTER FAILOVER, at most once per shard. The nodes have long timeouts, so none treats another as dead.
func TestPlanned_cluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	replicas := map[int]*redistest.Server{}
	for i, master := range c.Masters(t) {
		replicas[i] = c.Replica(t, master)
	}
	planned(t, min(plannedRounds(), len(replicas)), false, func() rueidis.Client { return c.Client(t) }, func(round int) {
		promoteInCluster(t, c, replicas[round])
	})
}

// promoteInCluster makes a replica the master of its shard with CLUSTER FAILOVER. Nodes with long timeouts vote for a shard
// only once in half a minute.
func promoteInCluster(t *testing.T, c *redistest.Cluster, next *redistest.Server) {
	t.Helper()
	next.Do(t, "CLUSTER", "FAILOVER")
	untilWithin(t, time.Minute, func() bool { return isMaster(t, next) })
	c.WaitUntilWell(t)
}

// isMaster reports whether a server's role is master.
func isMaster(t *testing.T, server *redistest.Server) bool {
	t.Helper()
	info := server.Do(t, "INFO", "replication")
	text, _ := info.ToString()
	return strings.Contains(text, "role:master")
}

package pubsub

import (
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/redis/rueidis"
)

// The hub must subscribe where the scripts run. A demoted server still receives the messages of its
// master. But the master does not count the listeners there, and treats a waiting process as dead.

// testConfig is a Config that queries the role often.
func testConfig(sharded bool) Config {
	return Config{Timeout: 3 * time.Second, RoleInterval: 50 * time.Millisecond, Sharded: sharded}
}

// listener is a listener.
type listener struct {
	sub       *Subscription
	messages  chan string
	confirmed chan struct{}
}

func listen(t *testing.T, h *Hub, channel string) *listener {
	t.Helper()
	e := &listener{messages: make(chan string, 100), confirmed: make(chan struct{}, 100)}
	var already bool
	e.sub, already = h.Subscribe(channel, func(message string) { e.messages <- message }, func() { e.confirmed <- struct{}{} })
	if already {
		e.confirmed <- struct{}{}
	}
	t.Cleanup(h.Close)
	t.Cleanup(e.sub.Close)
	within(t, "the first confirmation", e.confirmed)
	return e
}

func within[T any](t *testing.T, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(20 * time.Second):
		t.Fatalf("waited in vain for %s", what)
	}
	return v
}

// counted waits until server counts a listener to channel.
func counted(t *testing.T, command string, server *redistest.Server, channel string) {
	t.Helper()
	waitFor(t, "the listener is counted at the new master", func() bool { return count(t, command, server, channel) == 1 })
}

func count(t *testing.T, command string, server *redistest.Server, channel string) int64 {
	t.Helper()
	reply := server.Do(t, "PUBSUB", command, channel)
	parts, err := reply.ToArray()
	if err != nil || len(parts) != 2 {
		t.Fatalf("%s: %v, %v", command, parts, err)
	}
	n, _ := parts[1].ToInt64()
	return n
}

func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// receives publishes at server until e receives it.
func (e *listener) receives(t *testing.T, command string, server *redistest.Server, channel string) {
	t.Helper()
	for len(e.messages) > 0 {
		<-e.messages
	}
	server.Do(t, command, channel, "now")
	if got := within(t, "a message", e.messages); got != "now" {
		t.Errorf("received %q", got)
	}
}

// atOnce makes a server send its data to a replica without waiting for other replicas.
var atOnce = []string{"--repl-diskless-sync-delay", "0"}

// replicaOf starts a server that follows master.
func replicaOf(t *testing.T, master *redistest.Server) *redistest.Server {
	t.Helper()
	replica := redistest.Start(t, atOnce...)
	follow(t, replica, master)
	return replica
}

func follow(t *testing.T, replica, master *redistest.Server) {
	t.Helper()
	host, port, _ := net.SplitHostPort(master.Addr())
	replica.Do(t, "REPLICAOF", host, port)
	waitFor(t, "the replica is in step", func() bool { return role(t, replica) == "slave connected" })
}

// role returns "master", or "slave" and the state of its link.
func role(t *testing.T, s *redistest.Server) string {
	t.Helper()
	reply := s.Do(t, "ROLE")
	parts, err := reply.ToArray()
	if err != nil || len(parts) < 3 {
		t.Fatalf("ROLE: %v", err)
	}
	name, _ := parts[0].ToString()
	if name == "slave" {
		state, _ := parts[3].ToString()
		return name + " " + state
	}
	return name
}

// An address moves to the new master, and its old connections stay at the old one:
//
//	1 the hub has a listener
//	2 FAILOVER: the two change roles; the address leads to the new master from now on
//	3 the hub detects that and moves, although no connection has broken
func TestFollow_addressMoves(t *testing.T) {
	t.Parallel()
	old := redistest.Start(t, atOnce...)
	next := replicaOf(t, old)
	wire := redistest.NewProxy(t, old.Addr())
	const channel = "redisson_lock__channel:{orders}"
	e := listen(t, New(old.Client(t, redistest.Via(wire)), testConfig(false)), channel) // 1

	old.Do(t, "FAILOVER") // 2
	wire.Redirect(next.Addr())
	waitFor(t, "the two have changed roles", func() bool { return role(t, next) == "master" && role(t, old) == "slave connected" })

	counted(t, "NUMSUB", next, channel) // 3
	within(t, "the confirmation there", e.confirmed)
	e.receives(t, "PUBLISH", next, channel)
	if n := count(t, "NUMSUB", old, channel); n != 0 {
		t.Errorf("%d listeners are left on the old master", n)
	}
}

// The same with Sentinels that fail over on request.
func TestFollow_sentinel(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t, 2)
	old := s.Primary(t)
	const channel = "redisson_lock__channel:{orders}"
	e := listen(t, New(s.Client(t), testConfig(false)), channel)
	s.Sentinels[0].Do(t, "SENTINEL", "FAILOVER", "primary")
	var next *redistest.Server
	waitFor(t, "another is the primary", func() bool { next = s.Primary(t); return next != old })
	counted(t, "NUMSUB", next, channel)
	e.receives(t, "PUBLISH", next, channel)
}

// A replica of a cluster takes over while its master lives. With sharded Pub/Sub, both receive the
// messages of the shard, and only the master counts listeners.
func TestFollow_sharded(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	if !c.Nodes[0].KnowsSharded(t) {
		t.Skip("this server has no sharded Pub/Sub")
	}
	h := New(c.Client(t, func(o *rueidis.ClientOption) { o.ClusterOption.ShardsRefreshInterval = time.Second }), testConfig(true)) // otherwise no command makes the client detect the new master
	for i := range 3 {
		channel := fmt.Sprintf("redisson_lock__channel:{orders:%d}", i)
		e := listen(t, h, channel)
		old := c.Master(t, channel)
		counted(t, "SHARDNUMSUB", old, channel)
		next := c.Replica(t, old)
		c.TakeOver(t, next)
		counted(t, "SHARDNUMSUB", next, channel)
		e.receives(t, "SPUBLISH", next, channel)
	}
}

// Every node of a cluster receives plain Pub/Sub messages, so the hub stays where it is.
func TestFollow_notWithPlainPubSubOnACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	const channel = "redisson_lock__channel:{orders}"
	e := listen(t, New(c.Client(t), testConfig(false)), channel)
	c.TakeOver(t, c.Replica(t, c.Master(t, channel)))
	waitFor(t, "the hub receives", func() bool { // the nodes may have to connect to each other again
		c.Master(t, channel).Do(t, "PUBLISH", channel, "now")
		return len(e.messages) > 0
	})
	for _, n := range c.Nodes {
		if calls := n.CommandCallsByClients(t, "role"); calls > 0 {
			t.Errorf("%s got %d role queries", n.Addr(), calls)
		}
	}
}

// While there is no other master, the hub stays at a replica. It leaves a replica that follows a
// master, but not without a pause:
//
//	1 the master is gone: the hub stays on the replica
//	2 it is back, and the address still leads to the replica: the hub connects again and
//	  again, and more and more rarely
//	3 the replica becomes a master: the hub stays
func TestFollow_staysWithoutAMaster(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t, atOnce...)
	replica := replicaOf(t, master)
	master.Kill(t)
	waitFor(t, "the replica detects that its master is gone", func() bool { return role(t, replica) != "slave connected" })
	wire := redistest.NewProxy(t, replica.Addr())
	var dials, queries atomic.Int64
	wire.OnRequest(func(req [][]byte) redistest.Action {
		switch strings.ToUpper(string(req[0])) {
		case "HELLO":
			dials.Add(1)
		case "ROLE":
			queries.Add(1)
		}
		return redistest.Action{}
	})
	const channel = "redisson_lock__channel:{orders}"
	rdb := replica.Client(t, redistest.Via(wire), func(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 })
	e := listen(t, New(rdb, testConfig(false)), channel) // 1
	before := dials.Load()
	again := queries.Load() + 5
	waitFor(t, "the hub has sent more queries", func() bool { return queries.Load() >= again })
	if n := dials.Load() - before; n != 0 {
		t.Errorf("%d new connections, and there is no other server", n)
	}

	start := time.Now()
	master.Restart(t) // 2
	waitFor(t, "the replica follows again", func() bool { return role(t, replica) == "slave connected" })
	waitFor(t, "the hub has left", func() bool { return dials.Load() > before })
	for dials.Load() < before+8 && time.Since(start) < 40*time.Second {
		time.Sleep(10 * time.Millisecond)
	}
	if took := time.Since(start); took < time.Second {
		t.Errorf("8 connections in %v: the pauses do not grow", took)
	}

	replica.Do(t, "REPLICAOF", "NO", "ONE") // 3
	waitFor(t, "the hub receives from the replica", func() bool {
		replica.Do(t, "PUBLISH", channel, "now")
		return len(e.messages) > 0
	})
}

// A server that denies ROLE is queried once for each connection, and its messages arrive.
func TestFollow_roleDenied(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	const channel = "redisson_lock__channel:{orders}"
	e := listen(t, New(s.Client(t, s.AddUser(t, "norole", "&*", "+subscribe", "+unsubscribe", "+ping", "+cluster|slots")), testConfig(false)), channel)
	listen(t, New(s.Client(t), testConfig(false)), channel) // it would query as often
	waitForRoleQueries(t, s, 10)
	stats := s.Do(t, "INFO", "commandstats")
	text, _ := stats.ToString()
	if _, role, _ := strings.Cut(text, "cmdstat_role:"); !strings.Contains(role, ",rejected_calls=1,") {
		t.Errorf("another query after a denial: %.100s", role)
	}
	e.receives(t, "PUBLISH", s, channel)
}

// The role is queried while a channel has listeners, and not while a subscription lingers.
func TestFollow_onlyWithListeners(t *testing.T) {
	t.Parallel()
	s, other := redistest.Start(t), redistest.Start(t)
	const channel = "redisson_lock__channel:{orders}"
	listen(t, New(other.Client(t), testConfig(false)), channel) // to see how often a server is queried
	h := New(s.Client(t), testConfig(false))
	e := listen(t, h, channel)
	waitForRoleQueries(t, s, 4)
	e.sub.CloseSoon()
	var before int64
	waitFor(t, "no query is in flight", func() bool {
		before = s.CommandCallsByClients(t, "role")
		waitForRoleQueries(t, other, 4)
		return s.CommandCallsByClients(t, "role") == before
	})
	waitForRoleQueries(t, other, 10)
	if n := s.CommandCallsByClients(t, "role") - before; n != 0 {
		t.Errorf("got %d queries without a listener", n)
	}
	listen(t, h, channel)
	waitForRoleQueries(t, s, 4)
}

// waitForRoleQueries waits until clients have queried the role of s n times more.
func waitForRoleQueries(t *testing.T, s *redistest.Server, n int64) {
	t.Helper()
	n += s.CommandCallsByClients(t, "role")
	waitFor(t, "its role was queried", func() bool { return s.CommandCallsByClients(t, "role") >= n })
}

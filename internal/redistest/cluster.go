package redistest

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

// Cluster is three masters with a replica each, each in a separate process. Their roles change with each failover: use
// Master and Replica.
type Cluster struct {
	Nodes []*Server
}

// clusterMasters is the minimum number of masters: a majority of them must agree that one is dead.
const clusterMasters = 3

// Timeouts after which the nodes consider an unresponsive node dead. On a busy machine a healthy node can be
// unresponsive for a second. With a short timeout, its replica then takes over, or the cluster is down. So the short
// timeout is used only when a node is really dead, and while the nodes join, because they then exchange messages more
// often.
const (
	nodeTimeout  = time.Second
	nodePatience = 15 * time.Second // Redis' default
)

// StartCluster starts a cluster and returns when all its nodes agree that it is healthy, and all replicas are in sync.
// The nodes use the long timeout; [Cluster.Failover] switches to the short one. config is for the nodes.
func StartCluster(tb testing.TB, config ...string) *Cluster {
	tb.Helper()
	c := &Cluster{}
	for range 2 * clusterMasters {
		c.Nodes = append(c.Nodes, Start(tb, append(append(nodeConfig(""),
			"--cluster-enabled", "yes",
			"--cluster-node-timeout", strconv.FormatInt(nodeTimeout.Milliseconds(), 10),
			"--cluster-replica-validity-factor", "0", // a replica may take over even if it lost its link long ago
			"--cluster-allow-replica-migration", "no",
		), config...)...))
	}
	c.join(tb, c.Addrs())
	for i, n := range c.Nodes[clusterMasters:] {
		n.Do(tb, "CLUSTER", "REPLICATE", c.id(tb, c.Nodes[i]))
	}
	c.WaitUntilWell(tb)
	c.setNodeTimeout(tb, nodePatience)
	return c
}

// shared has the cluster of [SharedCluster], and the cleanups that [VerifyTestMain] runs at the end.
var shared struct {
	sync.Mutex // held by the test that uses the cluster
	cluster    *Cluster
	ends       []func()
}

// SharedCluster returns a cluster that the tests of a package, including parallel ones, use one after the other,
// because starting a cluster takes seconds. It is empty. A test must leave the nodes as they were.
func SharedCluster(tb testing.TB) *Cluster {
	tb.Helper()
	shared.Lock()
	tb.Cleanup(shared.Unlock)
	if shared.cluster == nil {
		shared.cluster = StartCluster(lasting{tb})
	}
	for _, n := range shared.cluster.Masters(tb) {
		n.Do(tb, "FLUSHALL")
	}
	return shared.cluster
}

// lasting is a testing.TB whose servers last until the end of the package's tests.
type lasting struct{ testing.TB }

func (lasting) Cleanup(f func()) { shared.ends = append(shared.ends, f) }

func (l lasting) TempDir() string {
	l.Helper()
	dir, err := os.MkdirTemp("", "redistest")
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// endShared stops the shared cluster.
func endShared() {
	for _, end := range slices.Backward(shared.ends) {
		end()
	}
}

// join assigns the slots to the first nodes, and makes all nodes meet at these addresses.
func (c *Cluster) join(tb testing.TB, addrs []string) {
	tb.Helper()
	for i, n := range c.Nodes[:clusterMasters] {
		first, next := i*slots/clusterMasters, (i+1)*slots/clusterMasters
		n.AddSlots(tb, first, next)
		n.Do(tb, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1)) // otherwise two nodes could have the same epoch
	}
	var met time.Time
	meet := func() {
		met = time.Now()
		for _, addr := range addrs[1:] {
			host, port, _ := strings.Cut(addr, ":")
			c.Nodes[0].Do(tb, "CLUSTER", "MEET", host, port)
		}
	}
	meet()
	waitUntil(tb, "all nodes know each other", func() bool {
		for _, n := range c.Nodes {
			if strings.Count(c.text(tb, n, "NODES"), " connected") != len(c.Nodes) {
				if time.Since(met) > 2*max(nodeTimeout, time.Second) {
					meet() // on a busy machine, meeting can exceed the node timeout, and a node forgets the other
				}
				return false
			}
		}
		return true
	})
}

// FindTheDead makes the running nodes detect dead ones quickly, for the rest of the test.
func (c *Cluster) FindTheDead(tb testing.TB) {
	tb.Helper()
	c.setNodeTimeout(tb, nodeTimeout)
}

// WaitUntilFailed waits until all running nodes mark node as failed.
func (c *Cluster) WaitUntilFailed(tb testing.TB, node *Server) {
	tb.Helper()
	waitUntil(tb, "the nodes find the dead one", func() bool {
		for _, n := range c.Nodes {
			if n.running() && !slices.ContainsFunc(strings.Split(c.text(tb, n, "NODES"), "\n"), func(line string) bool {
				return strings.Contains(line, node.Addr()+"@") && strings.Contains(line, ",fail") && !strings.Contains(line, "fail?")
			}) {
				return false
			}
		}
		return true
	})
}

func (c *Cluster) setNodeTimeout(tb testing.TB, d time.Duration) {
	tb.Helper()
	for _, n := range c.Nodes {
		if n.running() {
			n.Do(tb, "CONFIG", "SET", "cluster-node-timeout", strconv.FormatInt(d.Milliseconds(), 10))
		}
	}
}

// text returns a node's reply to a subcommand of CLUSTER.
func (c *Cluster) text(tb testing.TB, node *Server, subcommand string) string {
	tb.Helper()
	reply := node.Do(tb, "CLUSTER", subcommand)
	s, err := reply.ToString()
	if err != nil {
		tb.Fatalf("CLUSTER %s: %v", subcommand, err)
	}
	return strings.TrimPrefix(s, "txt:") // the format prefix in RESP3
}

func (c *Cluster) id(tb testing.TB, node *Server) string {
	tb.Helper()
	return c.text(tb, node, "MYID")
}

// Addrs returns the addresses of all nodes, for a client.
func (c *Cluster) Addrs() (addrs []string) {
	for _, n := range c.Nodes {
		addrs = append(addrs, n.Addr())
	}
	return addrs
}

// Client connects to the cluster. The client is closed when tb ends.
func (c *Cluster) Client(tb testing.TB, edit ...func(*rueidis.ClientOption)) rueidis.Client {
	tb.Helper()
	return connect(tb, rueidis.ClientOption{InitAddress: c.Addrs(), DisableCache: true}, edit)
}

// WaitUntilWell waits until all running nodes agree that the cluster is healthy and which node has which slots, and
// until every replica among them is in sync: according to the replica, and to its master, which delays writes until
// the replica has acknowledged something.
func (c *Cluster) WaitUntilWell(tb testing.TB) {
	tb.Helper()
	waitUntil(tb, "the cluster is well", func() bool {
		views := map[string]bool{}
		replicas, follow := 0, 0
		for _, n := range c.Nodes {
			if !n.running() {
				continue
			}
			if !strings.Contains(c.text(tb, n, "INFO"), "cluster_state:ok") {
				return false
			}
			info := n.Do(tb, "INFO", "replication")
			text, _ := info.ToString()
			if strings.Contains(text, "role:slave") {
				replicas++
				if !strings.Contains(text, "master_link_status:up") {
					return false
				}
			}
			follow += len(inStep(text))
			views[strings.Join(c.view(tb, n), "\n")] = true
		}
		return len(views) == 1 && replicas == follow
	})
}

// view returns node's view of which node has which slots, and which is a replica of which.
func (c *Cluster) view(tb testing.TB, node *Server) (view []string) {
	tb.Helper()
	for _, n := range c.nodesSeenBy(tb, node) {
		view = append(view, n.id+" "+n.role+" "+n.master+" "+strings.Join(n.slots, " "))
	}
	slices.Sort(view)
	return view
}

// seen is one node in another node's view.
type seen struct {
	id, addr, role, master string
	slots                  []string // "0-5460", without slots that are being migrated
}

// nodesSeenBy reads CLUSTER NODES: "<id> <ip:port@bus> <flags> <master> <ping>
// <pong> <epoch> <link> <slot>...".
func (c *Cluster) nodesSeenBy(tb testing.TB, node *Server) (all []seen) {
	tb.Helper()
	for line := range strings.Lines(c.text(tb, node, "NODES")) {
		f := strings.Fields(line)
		if len(f) < 8 {
			tb.Fatalf("CLUSTER NODES: %q", line)
		}
		n := seen{id: f[0], master: f[3]}
		n.addr, _, _ = strings.Cut(f[1], "@")
		for _, flag := range strings.Split(f[2], ",") {
			if flag == "master" || flag == "slave" {
				n.role = flag
			}
		}
		for _, s := range f[8:] {
			if !strings.HasPrefix(s, "[") {
				n.slots = append(n.slots, s)
			}
		}
		all = append(all, n)
	}
	return all
}

// Slot returns the slot of a key or a channel.
func (c *Cluster) Slot(tb testing.TB, key string) int {
	tb.Helper()
	reply := c.anyone(tb).Do(tb, "CLUSTER", "KEYSLOT", key)
	n, err := reply.ToInt64()
	if err != nil {
		tb.Fatal(err)
	}
	return int(n)
}

// anyone returns a running node.
func (c *Cluster) anyone(tb testing.TB) *Server {
	tb.Helper()
	i := slices.IndexFunc(c.Nodes, (*Server).running)
	if i < 0 {
		tb.Fatal("redistest: all nodes of the cluster are dead")
	}
	return c.Nodes[i]
}

// Master returns the node that serves key.
func (c *Cluster) Master(tb testing.TB, key string) *Server {
	tb.Helper()
	slot := c.Slot(tb, key)
	for _, n := range c.nodesSeenBy(tb, c.anyone(tb)) {
		for _, part := range n.slots {
			from, to, ranged := strings.Cut(part, "-")
			if !ranged {
				to = from
			}
			first, _ := strconv.Atoi(from)
			last, _ := strconv.Atoi(to)
			if first <= slot && slot <= last {
				return c.byAddr(tb, n.addr)
			}
		}
	}
	tb.Fatalf("redistest: nobody has slot %d", slot)
	return nil
}

// Masters returns the running nodes that have slots.
func (c *Cluster) Masters(tb testing.TB) (masters []*Server) {
	tb.Helper()
	for _, n := range c.nodesSeenBy(tb, c.anyone(tb)) {
		if s := c.byAddr(tb, n.addr); len(n.slots) > 0 && s.running() {
			masters = append(masters, s)
		}
	}
	return masters
}

// Replica returns the replica of master.
func (c *Cluster) Replica(tb testing.TB, master *Server) *Server {
	tb.Helper()
	all := c.nodesSeenBy(tb, c.anyone(tb))
	i := slices.IndexFunc(all, func(n seen) bool { return n.addr == master.Addr() })
	if i >= 0 {
		if j := slices.IndexFunc(all, func(n seen) bool { return n.master == all[i].id }); j >= 0 {
			return c.byAddr(tb, all[j].addr)
		}
	}
	tb.Fatalf("redistest: %s has no replica", master.Addr())
	return nil
}

func (c *Cluster) byAddr(tb testing.TB, addr string) *Server {
	tb.Helper()
	i := slices.IndexFunc(c.Nodes, func(s *Server) bool { return s.Addr() == addr })
	if i < 0 {
		tb.Fatalf("redistest: no node at %s", addr)
	}
	return c.Nodes[i]
}

// CutReplication withholds everything that master writes from now on from its replica, for as long as the master
// lives. A failover loses those writes.
func (c *Cluster) CutReplication(tb testing.TB, master *Server) {
	tb.Helper()
	cutReplication(tb, master)
}

// WaitForReplica waits until the replica of master has everything that was written so far. A link that is up is not
// enough: after a resynchronization the master delays the next writes.
func (c *Cluster) WaitForReplica(tb testing.TB, master *Server) {
	tb.Helper()
	offset := func(name string) int {
		reply := master.Do(tb, "INFO", "replication")
		text, _ := reply.ToString()
		_, after, _ := strings.Cut(text, name)
		n, _ := strconv.Atoi(after[:max(0, strings.IndexAny(after, ",\r"))])
		return n
	}
	written := offset("master_repl_offset:")
	waitUntil(tb, "the replica has everything", func() bool { return offset(",offset=") >= written })
}

// Failover kills master and returns the replica that took over, once all other nodes
// agree on it.
func (c *Cluster) Failover(tb testing.TB, master *Server) *Server {
	tb.Helper()
	next := c.Replica(tb, master)
	master.Kill(tb)
	c.FindTheDead(tb)
	waitUntil(tb, "the replica takes over", func() bool { return !next.replicates(tb) })
	c.WaitUntilWell(tb)
	c.setNodeTimeout(tb, nodePatience)
	return next
}

// TakeOver makes a replica the master while the old master is alive. The old master becomes its replica.
func (c *Cluster) TakeOver(tb testing.TB, replica *Server) {
	tb.Helper()
	c.FindTheDead(tb) // with the long timeout, a node votes again about the same master only after a while
	var asked time.Time
	waitUntil(tb, "the replica takes over", func() bool {
		if replica.replicates(tb) && time.Since(asked) > 6*time.Second { // it stops trying after five
			asked = time.Now()
			replica.Do(tb, "CLUSTER", "FAILOVER")
		}
		return !replica.replicates(tb)
	})
	c.WaitUntilWell(tb)
	c.setNodeTimeout(tb, nodePatience)
}

// replicates reports whether s is a replica, according to itself.
func (s *Server) replicates(tb testing.TB) bool {
	tb.Helper()
	reply := s.Do(tb, "INFO", "replication")
	text, _ := reply.ToString()
	return !strings.Contains(text, "role:master")
}

// Rejoin starts a killed node again, empty. If another node has taken over from it since, it becomes the replica of
// that node.
func (c *Cluster) Rejoin(tb testing.TB, node *Server) {
	tb.Helper()
	node.Restart(tb)
	c.WaitUntilWell(tb)
	c.setNodeTimeout(tb, nodePatience)
}

// Migration is a slot that is being migrated from one master to another. Clients keep working.
type Migration struct {
	cluster  *Cluster
	slot     string
	from, to *Server
}

// Migrate starts to migrate a slot, like redis-cli. Keys that do not exist yet are created on the new master from now
// on.
func (c *Cluster) Migrate(tb testing.TB, slot int, from, to *Server) *Migration {
	tb.Helper()
	m := &Migration{cluster: c, slot: strconv.Itoa(slot), from: from, to: to}
	to.Do(tb, "CLUSTER", "SETSLOT", m.slot, "IMPORTING", c.id(tb, from))
	from.Do(tb, "CLUSTER", "SETSLOT", m.slot, "MIGRATING", c.id(tb, to))
	return m
}

// Keys returns the keys of the slot that have not been migrated.
func (m *Migration) Keys(tb testing.TB) []string {
	tb.Helper()
	reply := m.from.Do(tb, "CLUSTER", "GETKEYSINSLOT", m.slot, "1000")
	keys, err := reply.AsStrSlice()
	if err != nil {
		tb.Fatal(err)
	}
	return keys
}

// Move migrates keys of the slot. Keys that no longer exist are skipped.
func (m *Migration) Move(tb testing.TB, keys ...string) {
	tb.Helper()
	if len(keys) > 0 {
		host, port, _ := strings.Cut(m.to.Addr(), ":")
		m.from.Do(tb, append([]string{"MIGRATE", host, port, "", "0", "5000", "KEYS"}, keys...)...)
	}
}

// Finish migrates the remaining keys, and the slot itself.
func (m *Migration) Finish(tb testing.TB) {
	tb.Helper()
	for keys := m.Keys(tb); len(keys) > 0; keys = m.Keys(tb) {
		m.Move(tb, keys...)
	}
	// The new owner first: the slot always has an owner.
	for _, node := range append([]*Server{m.to, m.from}, m.cluster.Masters(tb)...) {
		node.Do(tb, "CLUSTER", "SETSLOT", m.slot, "NODE", m.cluster.id(tb, m.to))
	}
	m.cluster.WaitUntilWell(tb)
}

// Unassign leaves the slot of key without an owner.
func (c *Cluster) Unassign(tb testing.TB, key string) {
	tb.Helper()
	slot := strconv.Itoa(c.Slot(tb, key))
	// The owner first: while it has the slot, its messages assign the slot again on the other nodes.
	owner := c.Master(tb, key)
	owner.Do(tb, "CLUSTER", "DELSLOTS", slot)
	for _, node := range c.Nodes {
		if node != owner {
			node.Do(tb, "CLUSTER", "DELSLOTS", slot)
		}
	}
}

// AddSlots assigns the slots from first up to, but not including, next to a node of a cluster. It adds them one by
// one, because ADDSLOTSRANGE requires Redis 7.0.
func (s *Server) AddSlots(tb testing.TB, first, next int) {
	tb.Helper()
	args := []string{"CLUSTER", "ADDSLOTS"}
	for slot := first; slot < next; slot++ {
		args = append(args, strconv.Itoa(slot))
	}
	s.Do(tb, args...)
}

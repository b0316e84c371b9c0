package pubsub

import (
	"context"
	"crypto/tls"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/rueidis"
)

// world is a hub with in-memory servers, on the clock of a bubble. They support only Pub/Sub, plain
// and sharded.
type world struct {
	*testing.T
	*Hub
	nodes map[string]*node // by address
	done  chan struct{}    // closed at the end

	mu     sync.Mutex
	known  map[string]bool     // guarded by mu: the addresses that the client knows
	owners map[string]string   // guarded by mu: by channel, the address of the node that has its slot; any has it if that is not set
	denied map[string][]string // guarded by mu: by channel, what Denied was called with
}

// client is the hub's client of these servers.
type client struct {
	rueidis.Client
	world *world
	mode  rueidis.ClientMode
}

func (c *client) Mode() rueidis.ClientMode { return c.mode }

func (c *client) Nodes() map[string]rueidis.Client {
	c.world.mu.Lock()
	defer c.world.mu.Unlock()
	nodes := map[string]rueidis.Client{}
	for addr := range c.world.known {
		nodes[addr] = c.world.nodes[addr].client
	}
	return nodes
}

const (
	roleInterval = 10 * time.Second // between two queries of the role
	timeout      = 3 * time.Second
)

// inBubble runs a test with a hub on the servers at addrs.
func inBubble(t *testing.T, mode rueidis.ClientMode, sharded bool, addrs []string, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, nodes: map[string]*node{}, done: make(chan struct{}), known: map[string]bool{}, owners: map[string]string{}, denied: map[string][]string{}}
		for _, addr := range addrs {
			w.nodes[addr] = newNode(w, addr)
			w.known[addr] = true
		}
		w.Hub = New(&client{w.nodes[addrs[0]].client, w, mode}, Config{Timeout: timeout, RoleInterval: roleInterval, Sharded: sharded, Denied: func(channel string, err error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.denied[channel] = append(w.denied[channel], err.Error())
		}})
		t.Cleanup(w.Hub.Close)
		t.Cleanup(func() { close(w.done) })
		test(w)
	})
}

// plain runs a test with one server and plain Pub/Sub.
func plain(t *testing.T, test func(w *world, n *node)) {
	t.Helper()
	inBubble(t, rueidis.ClientModeStandalone, false, []string{"a:1"}, func(w *world) { test(w, w.nodes["a:1"]) })
}

// sharded runs a test with a cluster and sharded Pub/Sub.
func sharded(t *testing.T, addrs []string, test func(w *world)) {
	t.Helper()
	inBubble(t, rueidis.ClientModeCluster, true, addrs, test)
}

// own sets the node that has the slot of a channel.
func (w *world) own(channel, addr string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.owners[channel] = addr
}

// know sets whether the client knows a node.
func (w *world) know(addr string, known bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.known, addr)
	if known {
		w.known[addr] = true
	}
}

// connections returns the addresses of the nodes that the hub has a subscriber for.
func (w *world) connections() []string {
	w.Hub.mu.Lock()
	defer w.Hub.mu.Unlock()
	return slices.Sorted(maps.Keys(w.subscribers))
}

// node is a server.
type node struct {
	world  *world
	addr   string
	server *server.Server
	client rueidis.Client

	mu        sync.Mutex
	handler   func(command string) string // guarded by mu: returns its replies; it executes the command if handler is nil, or returns ""
	refuse    bool                        // guarded by mu: it accepts no connections
	dials     int                         // guarded by mu: connection attempts since the last call of dialled
	conns     []net.Conn                  // guarded by mu
	received  []string                    // guarded by mu: the commands about channels and roles since the last call of commands
	listeners map[string]*server.Peer     // guarded by mu: by channel
}

func newNode(w *world, addr string) *node {
	n := &node{world: w, addr: addr, server: server.NewServerConn(), listeners: map[string]*server.Peer{}}
	n.server.SetPreHook(n.reply)
	w.Cleanup(n.server.Close)
	var err error
	n.client, err = rueidis.NewClient(rueidis.ClientOption{
		InitAddress:       []string{addr},
		Dialer:            net.Dialer{KeepAlive: time.Second + 7}, // as in redistest.Mini
		ForceSingleClient: true,
		DisableCache:      true,
		BlockingPoolSize:  10, // connections for subscribers
		DialCtxFn:         func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) { return n.dial() },
	})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(n.client.Close)
	return n
}

func (n *node) dial() (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dials++
	if n.refuse {
		return nil, syscall.ECONNREFUSED
	}
	near, far := net.Pipe()
	n.conns = append(n.conns, far)
	n.server.ServeConn(far)
	return near, nil
}

// reply replies to a command.
func (n *node) reply(c *server.Peer, cmd string, args ...string) bool {
	switch cmd {
	case "HELLO":
		c.Resp3 = true
		c.WriteRaw("%2\r\n$5\r\nproto\r\n:3\r\n$7\r\nversion\r\n$5\r\n7.2.0\r\n")
		return true
	case "PING":
		c.WriteInline("PONG")
		return true
	case "CLIENT", "QUIT":
		c.WriteOK()
		return true
	}
	slices.Sort(args)
	command := strings.Join(append([]string{cmd}, args...), " ")
	n.mu.Lock()
	n.received = append(n.received, command)
	handler := n.handler
	n.mu.Unlock()
	if handler != nil {
		if reply := handler(command); reply != "" {
			c.WriteRaw(reply)
			return true
		}
	}
	if cmd == "ROLE" {
		c.WriteRaw(roleIs("master"))
		return true
	}
	if cmd == "SSUBSCRIBE" && len(args) > 1 {
		c.WriteError("CROSSSLOT Keys in request don't hash to the same slot")
		return true
	}
	for _, channel := range args {
		if addr := n.world.owner(channel); cmd == "SSUBSCRIBE" && addr != "" && addr != n.addr {
			c.WriteError("MOVED 1 " + addr)
			continue
		}
		n.mu.Lock()
		n.listeners[channel] = c
		if strings.HasSuffix(cmd, "UNSUBSCRIBE") {
			delete(n.listeners, channel)
		}
		n.mu.Unlock()
		push(c, strings.ToLower(cmd), channel)
	}
	return true
}

func (w *world) owner(channel string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.owners[channel]
}

// push sends a client a Pub/Sub notification about a channel: the third word is a message, or else a
// number.
func push(c *server.Peer, parts ...string) {
	c.Block(func(out *server.Writer) {
		out.WritePushLen(3)
		for _, part := range parts {
			out.WriteBulk(part)
		}
		if len(parts) < 3 {
			out.WriteInt(1)
		}
	})
}

// roleIs is a reply to ROLE: of a master, or of a replica with the state of its link.
func roleIs(role string, link ...string) string {
	if len(link) == 0 {
		return "*3\r\n+" + role + "\r\n:0\r\n*0\r\n"
	}
	return "*5\r\n+" + role + "\r\n+host\r\n:6379\r\n+" + link[0] + "\r\n:0\r\n"
}

// answers makes the node reply with the result of handler, which may block.
func (n *node) answers(handler func(command string) string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.handler = handler
}

// answersTo makes the node reply to this command with reply, and to others as usual.
func (n *node) answersTo(command, reply string) {
	n.answers(func(c string) string {
		if c == command {
			return reply
		}
		return ""
	})
}

// holds delays the reply to command until the release: reply, or the result of the command if that is
// "". The node replies to nothing else on that connection until then.
func (n *node) holds(command, reply string) (release func()) {
	n.mu.Lock()
	before := n.handler
	n.mu.Unlock()
	released := make(chan struct{})
	n.answers(func(now string) string {
		switch {
		case now == command:
			select {
			case <-released:
			case <-n.world.done:
			}
			return reply
		case before != nil:
			return before(now)
		}
		return ""
	})
	return func() { close(released) }
}

// push sends something to the listeners of a channel: "message" or "smessage" with the message, or
// "sunsubscribe".
func (n *node) push(kind, channel string, message ...string) {
	n.world.Helper()
	synctest.Wait()
	n.mu.Lock()
	c := n.listeners[channel]
	n.mu.Unlock()
	if c == nil {
		n.world.Fatalf("%s has no listener at %s", channel, n.addr)
	}
	push(c, append([]string{kind, channel}, message...)...)
	c.Flush()
	synctest.Wait()
}

// cut breaks the connections. If refuse is true, new ones are refused until the next cut.
func (n *node) cut(refuse bool) {
	synctest.Wait()
	n.mu.Lock()
	for _, c := range n.conns {
		c.Close()
	}
	n.refuse, n.conns, n.dials = refuse, nil, 0
	n.mu.Unlock()
	synctest.Wait()
}

// dialled returns the number of connection attempts since the last call, or cut.
func (n *node) dialled() int {
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	defer func() { n.dials = 0 }()
	return n.dials
}

// commands returns the commands since the last call.
func (n *node) commands() string {
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	defer func() { n.received = nil }()
	return strings.Join(n.received, ", ")
}

// queries returns how many of the commands since the last call were command.
func (n *node) count(command string) (times int) {
	for part := range strings.SplitSeq(n.commands(), ", ") {
		if part == command {
			times++
		}
	}
	return times
}

// testListener is a listener.
type testListener struct {
	*Subscription
	already  bool
	mu       sync.Mutex
	received []string // guarded by mu
}

// listens adds a listener to a channel.
func (w *world) listens(channel string) *testListener {
	h := &testListener{}
	record := func(what string) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.received = append(h.received, what)
	}
	h.Subscription, h.already = w.Subscribe(channel, record, func() { record("confirmed") })
	w.Cleanup(h.Close)
	return h
}

// receives returns what the listener received since the last call: messages and confirmations.
func (h *testListener) receives() string {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	defer func() { h.received = nil }()
	return strings.Join(h.received, ", ")
}

// is fails the test unless got equals want.
func is[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

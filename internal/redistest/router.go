package redistest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/rueidis"
)

// slots is the number of slots in a cluster.
const slots = 16384

// Router is a proxy that makes a cluster available at a single address, as some cloud providers offer it. It sends each
// command to the master of the first key, and follows MOVED and ASK. A command without a key, including a plain
// subscription, goes to one master, chosen at random for each client connection. It executes the requests of a
// connection one after the other, and closes the connection when one of its nodes is gone.
type Router struct {
	nodes    []string // set once: the addresses of all nodes
	one      bool     // set once: it acts as a cluster with one node
	listener net.Listener
	wg       sync.WaitGroup
	moved    atomic.Int64

	mu    sync.Mutex
	ended bool                      // guarded by mu
	slots [slots]string             // guarded by mu: the address of the master; "" if unknown
	conns map[net.Conn]struct{}     // guarded by mu: of clients
	seen  map[string]map[string]int // guarded by mu: how often each node received each command
}

// NewRouter starts a router to the cluster. To clients it looks like a single server. If oneNode is true, CLUSTER SLOTS
// and SHARDS report the router as the only node, so it looks like a cluster. The router is closed when tb ends.
func NewRouter(tb testing.TB, c *Cluster, oneNode bool) *Router {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("redistest: router: %v", err)
	}
	r := &Router{nodes: c.Addrs(), one: oneNode, listener: listener, conns: map[net.Conn]struct{}{}, seen: map[string]map[string]int{}}
	tb.Cleanup(func() {
		listener.Close()
		r.mu.Lock()
		r.ended = true
		for conn := range r.conns {
			conn.Close()
		}
		r.mu.Unlock()
		r.wg.Wait()
	})
	r.wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			r.serve(conn)
		}
	})
	return r
}

// Addr returns the address for clients, "127.0.0.1:port".
func (r *Router) Addr() string { return r.listener.Addr().String() }

// Client connects to the router, with several connections, because each of them waits for one reply at a time. The
// client is closed when tb ends.
func (r *Router) Client(tb testing.TB, edit ...func(*rueidis.ClientOption)) rueidis.Client {
	tb.Helper()
	return connect(tb, rueidis.ClientOption{InitAddress: []string{r.Addr()}, DisableCache: true, PipelineMultiplex: 4}, edit)
}

// Followed returns how often a node redirected a command to another one.
func (r *Router) Followed() int64 { return r.moved.Load() }

// Spread returns how many nodes received the command, such as "EVALSHA".
func (r *Router) Spread(command string) (nodes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, commands := range r.seen {
		if commands[strings.ToUpper(command)] > 0 {
			nodes++
		}
	}
	return nodes
}

func (r *Router) serve(conn net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		conn.Close()
		return
	}
	r.conns[conn] = struct{}{}
	r.wg.Go(func() {
		f := &route{router: r, client: conn, links: map[string]*backend{}}
		f.run()
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.conns, conn)
	})
}

// route is one client connection, with its connections to the nodes used so far.
type route struct {
	router *Router
	client net.Conn
	hello  []byte // the request by which the client chose its protocol and user
	home   string // the node for commands without a key; "" before the first such command
	last   string // the node of the last command with a key, where WAIT must go

	out   sync.Mutex // guards writes to the client
	links map[string]*backend
	wg    sync.WaitGroup
}

// backend is a connection to a node.
type backend struct {
	conn    net.Conn
	replies chan []byte // closed when the connection ends
}

func (f *route) run() {
	defer f.wg.Wait()
	defer func() {
		f.client.Close()
		for _, b := range f.links {
			b.conn.Close()
		}
	}()
	in := bufio.NewReader(f.client)
	for {
		raw, req, err := readRequest(in)
		if err != nil {
			return
		}
		if err := f.answer(raw, req); err != nil {
			return
		}
	}
}

// answer executes one request.
func (f *route) answer(raw []byte, req [][]byte) error {
	name := strings.ToUpper(string(req[0]))
	switch name {
	case "HELLO", "AUTH":
		f.hello = raw
	case "CLUSTER":
		return f.write(f.router.cluster(req))
	case "WAIT":
		if f.last != "" {
			return f.relay(f.last, raw, req, false)
		}
	}
	key, keyed := firstKey(name, req)
	if !keyed {
		if f.home == "" {
			home, err := f.anyMaster()
			if err != nil {
				return err
			}
			f.home = home
		}
		return f.relay(f.home, raw, req, true)
	}
	slot := slotOf(key)
	f.last = f.router.master(slot)
	return f.relay(f.last, raw, req, false)
}

// relay sends a request to a node, and its reply to the client. Unless stay is set, it follows MOVED and ASK.
func (f *route) relay(addr string, raw []byte, req [][]byte, stay bool) error {
	asking := false
	for range 10 {
		reply, err := f.exchange(addr, raw, req, asking)
		if err != nil {
			f.router.forget(addr)
			return err
		}
		if reply == nil { // a subscription, whose confirmations were already forwarded
			return nil
		}
		words := strings.Fields(string(reply[:min(len(reply), 100)]))
		if stay || len(words) != 3 || words[0] != "-MOVED" && words[0] != "-ASK" {
			return f.write(reply)
		}
		f.router.moved.Add(1)
		addr, asking = words[2], words[0] == "-ASK"
		if slot, err := strconv.Atoi(words[1]); err == nil && !asking {
			f.router.learn(slot, addr)
			f.last = addr
		}
	}
	return f.write([]byte("-CLUSTERDOWN the nodes send each other around\r\n"))
}

// exchange sends a request to a node, and returns the reply.
func (f *route) exchange(addr string, raw []byte, req [][]byte, asking bool) ([]byte, error) {
	b, err := f.link(addr)
	if err != nil {
		return nil, err
	}
	f.router.count(addr, string(req[0]))
	if asking {
		if reply, err := b.ask([]byte("*1\r\n$6\r\nASKING\r\n")); err != nil || reply[0] == '-' {
			return reply, err
		}
	}
	if !strings.HasSuffix(strings.ToLower(string(req[0])), "subscribe") {
		return b.ask(raw)
	}
	// Confirmations are messages, one per channel. The reply to a PING comes after all of them.
	reply, err := b.ask(append(bytes.Clone(raw), ping...))
	if err == nil && reply[0] == '-' {
		_, err = b.next()
		return reply, err
	}
	return nil, err
}

var ping = []byte("*1\r\n$4\r\nPING\r\n")

// link returns the connection to a node.
func (f *route) link(addr string) (*backend, error) {
	if b := f.links[addr]; b != nil {
		return b, nil
	}
	conn, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		return nil, err
	}
	b := &backend{conn: conn, replies: make(chan []byte, 16)}
	f.links[addr] = b
	f.wg.Go(func() {
		// A lost node ends the client's connection, too: the client may be waiting for its messages.
		defer f.client.Close()
		defer close(b.replies)
		b.read(f)
	})
	if f.hello != nil {
		if reply, err := b.ask(f.hello); err != nil || reply[0] == '-' {
			return nil, errors.Join(err, fmt.Errorf("HELLO: %.100q", reply))
		}
	}
	return b, nil
}

// read separates messages, which are forwarded immediately, from replies.
func (b *backend) read(f *route) {
	in := bufio.NewReader(b.conn)
	for {
		var frame bytes.Buffer
		if readFrame(in, &frame) != nil {
			return
		}
		raw := frame.Bytes()
		if raw[0] != '>' && pubsubWord(raw) == "" {
			b.replies <- raw
		} else if f.write(raw) != nil {
			return
		}
	}
}

func (b *backend) ask(raw []byte) ([]byte, error) {
	if _, err := b.conn.Write(raw); err != nil {
		return nil, err
	}
	return b.next()
}

func (b *backend) next() ([]byte, error) {
	reply, ok := <-b.replies
	if !ok {
		return nil, net.ErrClosed
	}
	return reply, nil
}

// write sends a frame to the client.
func (f *route) write(raw []byte) error {
	f.out.Lock()
	defer f.out.Unlock()
	_, err := f.client.Write(raw)
	return err
}

// anyMaster returns a node that reports itself as a master.
func (f *route) anyMaster() (string, error) {
	for _, i := range rand.Perm(len(f.router.nodes)) {
		addr := f.router.nodes[i]
		conn, err := net.DialTimeout("tcp", addr, patience)
		if err != nil {
			continue
		}
		_, err = conn.Write([]byte("*2\r\n$4\r\nINFO\r\n$11\r\nreplication\r\n"))
		var info bytes.Buffer
		if err == nil {
			err = readFrame(bufio.NewReader(conn), &info)
		}
		conn.Close()
		if err == nil && bytes.Contains(info.Bytes(), []byte("role:master")) {
			return addr, nil
		}
	}
	return "", errors.New("no master")
}

// master returns the node of a slot, or any node, which then redirects.
func (r *Router) master(slot int) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.slots[slot] != "" {
		return r.slots[slot]
	}
	return r.nodes[rand.IntN(len(r.nodes))]
}

func (r *Router) learn(slot int, addr string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.slots[slot] = addr
}

// forget forgets a lost node.
func (r *Router) forget(addr string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for slot := range r.slots {
		if r.slots[slot] == addr {
			r.slots[slot] = ""
		}
	}
}

func (r *Router) count(addr, command string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen[addr] == nil {
		r.seen[addr] = map[string]int{}
	}
	r.seen[addr][strings.ToUpper(command)]++
}

// cluster returns the router's own reply to a CLUSTER command.
func (r *Router) cluster(req [][]byte) []byte {
	host, port, _ := net.SplitHostPort(r.Addr())
	const id = "0123456789012345678901234567890123456789"
	word := ""
	if len(req) > 1 {
		word = strings.ToUpper(string(req[1]))
	}
	switch {
	case r.one && word == "SLOTS":
		return fmt.Appendf(nil, "*1\r\n*3\r\n:0\r\n:%d\r\n*3\r\n$%d\r\n%s\r\n:%s\r\n$40\r\n%s\r\n", slots-1, len(host), host, port, id)
	case r.one && word == "SHARDS":
		return fmt.Appendf(nil, "*1\r\n%%2\r\n$5\r\nslots\r\n*2\r\n:0\r\n:%d\r\n$5\r\nnodes\r\n*1\r\n%%5\r\n$2\r\nid\r\n$40\r\n%s\r\n$4\r\nport\r\n:%s\r\n$8\r\nendpoint\r\n$%d\r\n%s\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$6\r\nhealth\r\n$6\r\nonline\r\n",
			slots-1, id, port, len(host), host)
	}
	return []byte("-ERR This instance has cluster support disabled\r\n")
}

// firstKey returns the key by which a command is routed, if it has one.
func firstKey(name string, req [][]byte) (key []byte, ok bool) {
	at := 1
	switch name {
	case "EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO":
		if len(req) < 4 || string(req[2]) == "0" {
			return nil, false
		}
		at = 3
	case "PUBSUB":
		if len(req) < 3 || !strings.EqualFold(string(req[1]), "SHARDNUMSUB") {
			return nil, false
		}
		at = 2
	case "PING", "HELLO", "AUTH", "CLIENT", "ROLE", "SUBSCRIBE", "UNSUBSCRIBE", "PSUBSCRIBE", "PUNSUBSCRIBE", "PUBLISH", "TIME", "INFO",
		"SCRIPT", "COMMAND", "CONFIG", "SCAN", "SELECT", "ECHO", "QUIT", "WAIT", "DISCARD":
		return nil, false
	}
	if len(req) <= at {
		return nil, false
	}
	return req[at], true
}

// slotOf returns the slot of a key, like Redis: CRC16 (XMODEM) of the hash tag, or of the whole key.
func slotOf(key []byte) int {
	if _, after, ok := bytes.Cut(key, []byte("{")); ok {
		if tag, _, ok := bytes.Cut(after, []byte("}")); ok && len(tag) > 0 {
			key = tag
		}
	}
	crc := uint16(0)
	for _, b := range key {
		crc ^= uint16(b) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			if crc <<= 1; carry {
				crc ^= 0x1021
			}
		}
	}
	return int(crc) % slots
}

package pubsub

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/redis/rueidis"
)

// The role decides whether the hub stays at a server, and how often it queries the role. A replica
// without its master may be the next master. A server that denies ROLE is not queried again on that
// connection.
func TestLook_role(t *testing.T) {
	for name, c := range map[string]struct {
		reply string
		leave bool
		count int // in ten role intervals
	}{
		"a master":                        {roleIs("master"), false, 10},
		"a replica that follows":          {roleIs("slave", "connected"), true, 0},
		"a replica that connects":         {roleIs("slave", "connecting"), false, 10},
		"a replica that is a master, too": {roleIs("active-replica", "connected"), false, 10},
		"neither":                         {"*2\r\n+sentinel\r\n*0\r\n", false, 10},
		"ROLE denied":                     {"-NOPERM no permissions to run the 'role' command\r\n", false, 1},
		"a server that loads its data":    {"-LOADING Redis is loading the dataset in memory\r\n", false, 10},
	} {
		t.Run(name, func(t *testing.T) {
			plain(t, func(w *world, n *node) {
				x := w.listens("x")
				time.Sleep(roleInterval / 2)
				n.dialled()
				n.commands()
				n.answersTo("ROLE", c.reply)
				time.Sleep(10 * roleInterval)
				if c.leave {
					if n.dialled() < 10 {
						t.Error("the hub stays at the server")
					}
					return
				}
				is(t, "connections", n.dialled(), 0)
				is(t, "role queries", n.count("ROLE"), c.count)
				is(t, "the listener receives", x.receives(), "confirmed")
			})
		})
	}
}

// A following replica is tried for a minute. Each connection that the hub leaves is closed.
func TestLook_connectionsEnd(t *testing.T) {
	plain(t, func(w *world, n *node) {
		n.answersTo("ROLE", roleIs("slave", "connected"))
		x := w.listens("x")
		time.Sleep(time.Minute)
		if n := n.dialled(); n < 60 {
			t.Errorf("%d tries in a minute", n)
		}
		if n := n.server.ClientsLen(); n > 2 { // the client's first one, and perhaps one of the hub
			t.Errorf("%d connections are open", n)
		}
		n.answers(nil)
		time.Sleep(2 * time.Second)
		is(t, "the listener receives", x.receives(), "confirmed")
	})
}

// The role of a server is queried periodically, however many channels are subscribed.
func TestLook_onePerServer(t *testing.T) {
	plain(t, func(w *world, n *node) {
		for i := range 75 {
			w.listens(fmt.Sprint(i))
			time.Sleep(roleInterval / 50)
		}
		is(t, "role queries", n.count("ROLE"), 2)
	})
}

// All nodes of a cluster receive plain messages, so the role makes no difference.
func TestLook_plainOnACluster(t *testing.T) {
	inBubble(t, rueidis.ClientModeCluster, false, []string{"a:1"}, func(w *world) {
		x := w.listens("x")
		time.Sleep(10 * roleInterval)
		is(t, "commands", w.nodes["a:1"].commands(), "SUBSCRIBE x")
		is(t, "the listener receives", x.receives(), "confirmed")
	})
}

// A server that does not reply is left after one timeout.
func TestLook_timeout(t *testing.T) {
	plain(t, func(w *world, n *node) {
		x := w.listens("x")
		synctest.Wait()
		n.holds("ROLE", "")
		is(t, "the listener receives", x.receives(), "confirmed")
		n.dialled()
		time.Sleep(roleInterval + timeout - 1)
		is(t, "connections", n.dialled(), 0)
		n.answers(nil)
		time.Sleep(closing + 10*time.Millisecond)
		is(t, "the listener receives", x.receives(), "confirmed")
	})
}

// A server that stops replying is left after one timeout, even if only a subscription or its end
// shows it.
func TestSend_timeout(t *testing.T) {
	for name, c := range map[string]struct {
		command string
		changes func(w *world, y *testListener)
	}{
		"subscribe":   {"SUBSCRIBE z", func(w *world, _ *testListener) { w.listens("z") }},
		"unsubscribe": {"UNSUBSCRIBE y", func(_ *world, y *testListener) { y.Close() }},
	} {
		t.Run(name, func(t *testing.T) {
			plain(t, func(w *world, n *node) {
				x, y := w.listens("x"), w.listens("y")
				synctest.Wait()
				n.holds(c.command, "")
				n.dialled()
				c.changes(w, y)
				is(t, "the listener receives", x.receives(), "confirmed")
				time.Sleep(timeout - 1)
				is(t, "connections", n.dialled(), 0)
				n.answers(nil)
				time.Sleep(closing + 10*time.Millisecond)
				is(t, "the listener receives", x.receives(), "confirmed")
			})
		})
	}
}

// One of several channels is denied, so each is sent alone. The server no longer replies: it is left
// after one timeout.
func TestSend_timeoutOneByOne(t *testing.T) {
	plain(t, func(w *world, n *node) {
		n.answers(func(command string) string {
			switch command {
			case "ROLE":
				return ""
			case "SUBSCRIBE x y":
				return "-NOPERM\r\n"
			}
			<-w.done
			return ""
		})
		begin := n.holds("ROLE", "")
		x, y := w.listens("x"), w.listens("y")
		begin()
		time.Sleep(timeout - 1)
		n.dialled()
		n.answers(nil)
		time.Sleep(closing + 10*time.Millisecond)
		is(t, "connections", n.dialled(), 1)
		is(t, "the listeners receive", x.receives()+", "+y.receives(), "confirmed, confirmed")
	})
}

// closing is how long rueidis takes to close a connection to a server that does not reply.
const closing = time.Second

// A temporary error is retried with growing pauses, and not reported. Any other error is reported
// once, and is final.
func TestRefused(t *testing.T) {
	for reply, passes := range map[string]bool{
		"MASTERDOWN Link with MASTER is down":                                   true,
		"NOPERM No permissions to access one of the channels used as arguments": false,
	} {
		t.Run(reply, func(t *testing.T) {
			plain(t, func(w *world, n *node) {
				y := w.listens("y")
				synctest.Wait()
				n.answersTo("SUBSCRIBE x", "-"+reply+"\r\n")
				x := w.listens("x")
				time.Sleep(time.Minute)
				n.push("message", "y", "hello")
				is(t, "the other listener receives", y.receives(), "confirmed, hello")
				tries := n.count("SUBSCRIBE x")
				n.answers(nil)
				time.Sleep(time.Second)
				if passes {
					if tries < 60 || tries > 140 {
						t.Errorf("%d tries in a minute", tries)
					}
					is(t, "the listener receives", x.receives(), "confirmed")
					is(t, "reported", len(w.denied), 0)
					return
				}
				is(t, "tries", tries, 1)
				is(t, "the listener receives", x.receives(), "")
				is(t, "reported", strings.Join(w.denied["x"], ", "), reply)
				is(t, "unsubscribed", n.count("UNSUBSCRIBE x"), 0)
			})
		})
	}
}

// Denied may be nil.
func TestRefused_notReported(t *testing.T) {
	plain(t, func(w *world, n *node) {
		w.Denied = nil
		n.holds("SUBSCRIBE x", "-NOPERM\r\n")()
		w.listens("x")
		is(t, "tries", n.count("SUBSCRIBE x"), 1)
		y := w.listens("y")
		is(t, "the other listener receives", y.receives(), "confirmed")
	})
}

// One of several channels is denied, and so is the command for all of them. The messages of the
// others arrive.
func TestRefused_oneOfSeveral(t *testing.T) {
	plain(t, func(w *world, n *node) {
		n.answers(func(command string) string {
			if strings.HasPrefix(command, "SUBSCRIBE") && strings.Contains(command, "x") {
				return "-NOPERM\r\n"
			}
			return ""
		})
		begin := n.holds("ROLE", "")
		x, y, z := w.listens("x"), w.listens("y"), w.listens("z")
		begin()
		is(t, "the listener receives", x.receives(), "")
		is(t, "the other listeners receive", y.receives()+", "+z.receives(), "confirmed, confirmed")
		is(t, "reported", strings.Join(w.denied["x"], ", "), "NOPERM")
		is(t, "reported of others", len(w.denied), 1)
	})
}

// A node without the slot of a channel names the node that has it. That node is used immediately, and
// first for other channels of the slot. The first node receives no further commands.
func TestSharded_moved(t *testing.T) {
	sharded(t, []string{"a:1", "b:1"}, func(w *world) {
		a, b := w.nodes["a:1"], w.nodes["b:1"]
		w.own("{a}", "a:1")
		w.own("{b}", "b:1")
		first := w.listens("{a}")
		is(t, "the listener receives", first.receives(), "confirmed")
		b.commands() // it may have been used first
		a.commands()
		second := w.listens("{b}")
		is(t, "the listener receives", second.receives(), "confirmed")
		b.commands()
		a.commands()
		for range 3 {
			w.listens("{a}:2").Close()
			is(t, "commands at the node without the slot", b.commands(), "")
			a.commands()
		}
		first.Close()
		synctest.Wait()
		a.commands()
		time.Sleep(10 * roleInterval)
		is(t, "commands at the node without listeners", a.commands(), "")
		is(t, "role queries", b.count("ROLE"), 10)
		b.push("smessage", "{b}", "hello")
		is(t, "the listener receives", second.receives(), "hello")
		second.Close()
		is(t, "commands", b.commands(), "SUNSUBSCRIBE {b}")
	})
}

// A node names another one only by its port, as with cluster-preferred-endpoint-type unknown-endpoint.
func TestSharded_movedWithoutAHost(t *testing.T) {
	for _, addr := range []string{":2", "?:2"} {
		sharded(t, []string{"a:1", "a:2"}, func(w *world) {
			w.own("{a}", "a:1")
			is(t, "the listener receives", w.listens("{a}").receives(), "confirmed")
			w.own("{b}", "a:2")
			w.nodes["a:1"].answersTo("SSUBSCRIBE {b}", "-MOVED 1 "+addr+"\r\n")
			is(t, "the listener receives", w.listens("{b}").receives(), "confirmed")
		})
	}
}

// A node that does not have the slots of its channels names the node that does. What it never
// confirmed is never unsubscribed there.
func TestSharded_redirected(t *testing.T) {
	sharded(t, []string{"a:1", "b:1"}, func(w *world) {
		a, b := w.nodes["a:1"], w.nodes["b:1"]
		w.own("{a}", "a:1")
		w.own("{b}", "b:1")
		w.own("{b}:2", "b:1")
		w.know("b:1", false)
		w.listens("{a}")
		synctest.Wait()
		w.know("b:1", true)
		a.commands()
		w.listens("{b}")
		is(t, "commands there", a.commands(), "SSUBSCRIBE {b}")
		is(t, "commands where the slot is", b.commands(), "ROLE, SSUBSCRIBE {b}")
		w.listens("{b}:2")
		is(t, "commands there", a.commands(), "")
		is(t, "commands where the slot is", b.commands(), "SSUBSCRIBE {b}:2")
		for i := range 10 {
			w.listens(fmt.Sprint("{a}:", i))
			is(t, "commands there", a.commands(), fmt.Sprint("SSUBSCRIBE {a}:", i))
			is(t, "commands at the other", b.commands(), "")
		}
	})
}

// Channels of unknown slots are subscribed where there is a connection, one by one, because their
// slots can differ.
func TestSharded_oneConnection(t *testing.T) {
	var addrs []string
	for i := range 20 {
		addrs = append(addrs, fmt.Sprintf("%d:1", i))
	}
	sharded(t, addrs, func(w *world) {
		w.listens("x")
		synctest.Wait()
		addr := w.connections()[0]
		n := w.nodes[addr]
		n.commands()
		release := n.holds("SSUBSCRIBE y", "")
		all := []*testListener{w.listens("y")}
		synctest.Wait()
		for i := range 3 {
			all = append(all, w.listens(fmt.Sprint(i)))
		}
		release()
		for _, l := range all {
			is(t, "the listener receives", l.receives(), "confirmed")
		}
		is(t, "connections", len(w.connections()), 1)
		if commands := n.commands(); strings.Count(commands, "SSUBSCRIBE") != 4 {
			t.Errorf("commands: %v, and the channels go one by one", commands)
		}
	})
}

// Each node names the next one, as during a slot migration. The hub follows the first redirection
// immediately, and the others after a pause.
func TestSharded_chain(t *testing.T) {
	sharded(t, []string{"a:1", "b:1", "c:1"}, func(w *world) {
		w.know("b:1", false)
		w.know("c:1", false)
		w.nodes["b:1"].holds("SSUBSCRIBE x", "-MOVED 1 c:1\r\n")()
		release := w.nodes["a:1"].holds("SSUBSCRIBE x", "-MOVED 1 b:1\r\n")
		x := w.listens("x")
		synctest.Wait()
		w.know("b:1", true)
		w.know("c:1", true)
		release()
		time.Sleep(time.Second)
		is(t, "the listener receives", x.receives(), "confirmed")
		is(t, "commands at the last", w.nodes["c:1"].commands(), "ROLE, SSUBSCRIBE x")
	})
}

// Two nodes redirect to each other for a minute. The hub's attempts become rarer, and it finds the
// channel once one node has it.
func TestSharded_toAndFro(t *testing.T) {
	sharded(t, []string{"a:1", "b:1"}, func(w *world) {
		a, b := w.nodes["a:1"], w.nodes["b:1"]
		tries := 0
		other := func(addr string) func(string) string {
			return func(command string) string {
				if command != "SSUBSCRIBE x" {
					return ""
				}
				w.mu.Lock()
				defer w.mu.Unlock()
				if tries++; tries > 1000 {
					return ""
				}
				return "-MOVED 1 " + addr + "\r\n"
			}
		}
		a.answers(other("b:1"))
		b.answers(other("a:1"))
		x := w.listens("x")
		time.Sleep(time.Minute)
		if n := a.count("SSUBSCRIBE x") + b.count("SSUBSCRIBE x"); n < 60 || n > 140 {
			t.Errorf("%d tries in a minute", n)
		}
		is(t, "reported", len(w.denied), 0)
		a.answers(nil)
		time.Sleep(2 * time.Second)
		is(t, "the listener receives", x.receives(), "confirmed")
	})
}

// A node names one that the client does not know yet. The hub finds the channel there once the client
// does.
func TestSharded_unknownNode(t *testing.T) {
	sharded(t, []string{"a:1", "b:1"}, func(w *world) {
		w.own("x", "b:1")
		w.know("b:1", false)
		x := w.listens("x")
		time.Sleep(time.Minute)
		is(t, "the listener receives", x.receives(), "")
		w.know("b:1", true)
		time.Sleep(2 * time.Second)
		is(t, "the listener receives", x.receives(), "confirmed")
	})
}

// The slot leaves a node, which ends the subscription. The hub queries that node's role, and
// subscribes again, to find the channel.
func TestSharded_slotLeaves(t *testing.T) {
	sharded(t, []string{"a:1", "b:1"}, func(w *world) {
		a, b := w.nodes["a:1"], w.nodes["b:1"]
		w.own("x", "a:1")
		x := w.listens("x")
		is(t, "the listener receives", x.receives(), "confirmed")
		a.commands()
		b.commands()
		w.own("x", "b:1")
		a.push("sunsubscribe", "x")
		is(t, "commands where it was", a.commands(), "ROLE, SSUBSCRIBE x")
		is(t, "the listener receives", x.receives(), "confirmed")
		b.push("smessage", "x", "hello")
		is(t, "the listener receives", x.receives(), "hello")
		b.commands()
		x.Close()
		is(t, "commands where it is", b.commands(), "SUNSUBSCRIBE x")
		w.listens("x")
		is(t, "commands where it is", b.commands(), "SSUBSCRIBE x")
	})
}

// A node fails, and another takes over its slots. Only the channels of that node are subscribed
// again, at other nodes.
func TestSharded_nodeBreaksDown(t *testing.T) {
	sharded(t, []string{"a:1", "b:1"}, func(w *world) {
		a, b := w.nodes["a:1"], w.nodes["b:1"]
		w.own("x", "a:1")
		w.own("y", "b:1")
		x, y := w.listens("x"), w.listens("y")
		is(t, "the listeners receive", x.receives()+", "+y.receives(), "confirmed, confirmed")
		b.commands()
		w.own("x", "b:1")
		a.cut(true)
		is(t, "the other is subscribed", w.listens("y").already, true)
		time.Sleep(10 * time.Millisecond)
		is(t, "the listener receives", x.receives(), "confirmed")
		is(t, "the other listener receives", y.receives(), "")
		is(t, "commands at the other", b.commands(), "SSUBSCRIBE x")
		is(t, "tries to connect", a.dialled(), 0)
	})
}

// The first node does not reply, and the slot is unknown. Another node is used after one timeout and
// one pause. Which one is first is random, so this runs several times.
func TestSharded_unavailableNode(t *testing.T) {
	for range 10 {
		sharded(t, []string{"a:1", "b:1"}, func(w *world) {
			first := ""
			for addr, n := range w.nodes {
				n.answers(func(string) string {
					w.mu.Lock()
					if first == "" {
						first = addr
					}
					unavailable := first == addr
					w.mu.Unlock()
					if unavailable {
						<-w.done
					}
					return ""
				})
			}
			x := w.listens("x")
			time.Sleep(timeout + closing + 10*time.Millisecond)
			is(t, "the listener receives", x.receives(), "confirmed")
		})
	}
}

// A node stops replying. Before its channel moves elsewhere, there is a new connection to that node,
// for a channel of the same slot. The first channel does not go there again.
func TestSharded_unavailableAgain(t *testing.T) {
	sharded(t, []string{"a:1", "b:1"}, func(w *world) {
		w.know("b:1", false)
		x := w.listens("{x}")
		is(t, "the listener receives", x.receives(), "confirmed")
		w.know("b:1", true)
		w.nodes["a:1"].holds("ROLE", "")
		for len(w.connections()) > 0 {
			time.Sleep(time.Millisecond)
		}
		w.listens("{x}:2")
		is(t, "connections", strings.Join(w.connections(), " "), "a:1")
		time.Sleep(10 * time.Millisecond)
		is(t, "the listener receives", x.receives(), "confirmed")
	})
}

// A node is slow to reply about another channel. In the meantime, the only listener leaves, a message
// arrives, a listener is added, and its channel is subscribed at the slot's current node. The late
// reply of the first node has no effect, and it has no subscription there.
func TestSharded_lateReply(t *testing.T) {
	for name, reply := range map[string]string{
		"a confirmation": ">3\r\n$10\r\nssubscribe\r\n$3\r\n{x}\r\n:1\r\n",
		"a refusal":      "-TRYAGAIN\r\n",
		"another node":   "-MOVED 1 c:1\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			sharded(t, []string{"a:1", "b:1", "c:1"}, func(w *world) {
				a, b, c := w.nodes["a:1"], w.nodes["b:1"], w.nodes["c:1"]
				w.own("other", "a:1")
				w.listens("other")
				synctest.Wait()
				w.own("{x}", "a:1")
				release := a.holds("SSUBSCRIBE {x}", reply)
				x := w.listens("{x}")
				synctest.Wait()
				w.own("{x}:2", "b:1")
				w.Hub.mu.Lock()
				w.Hub.owners[w.channels["{x}"].slot] = "b:1"
				w.Hub.mu.Unlock()
				x.Close()
				w.own("{x}", "b:1")
				x = w.listens("{x}")
				is(t, "the listener receives", x.receives(), "confirmed")
				b.commands()
				a.commands()
				c.commands()
				release()
				is(t, "the listener receives", x.receives(), "")
				is(t, "commands where it is", b.commands(), "")
				w.listens("{x}:2")
				is(t, "commands for its slot", b.commands(), "SSUBSCRIBE {x}:2")
				time.Sleep(time.Second)
				b.push("smessage", "{x}", "hello")
				is(t, "the listener receives", x.receives(), "hello")
				is(t, "commands where it was", a.commands(), "SUNSUBSCRIBE {x}")
				is(t, "commands elsewhere", c.commands(), "")
			})
		})
	}
}

// The last listener leaves while its channel's node is slow. Later messages are for no listener.
func TestSubscriber_withoutListeners(t *testing.T) {
	for name, reply := range map[string]string{"a confirmation": "", "a refusal": "-MASTERDOWN\r\n"} {
		t.Run(name, func(t *testing.T) {
			plain(t, func(w *world, n *node) {
				y := w.listens("y")
				synctest.Wait()
				release := n.holds("SUBSCRIBE x", reply)
				x := w.listens("x")
				synctest.Wait()
				x.Close()
				y.Close()
				n.push("message", "y", "hello")
				is(t, "the listener receives", y.receives(), "confirmed")
				n.commands()
				release()
				is(t, "the listener receives", x.receives(), "")
				is(t, "channels", w.Channels(), 0)
				if commands := n.commands(); commands != "UNSUBSCRIBE x y" {
					t.Errorf("commands: %q", commands)
				}
			})
		})
	}
}

// A connection breaks between the replies to several subscriptions. rueidis 1.0.79 can then resend
// commands whose memory it has recycled. Another command may be in that memory by then, and rueidis
// sends it; or rueidis panics.
func TestSend_cutBetweenReplies(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	if !server.KnowsSharded(t) {
		t.Skip("this server has no sharded Pub/Sub")
	}
	var cuts atomic.Int64
	rdb := server.Client(t, func(o *rueidis.ClientOption) {
		o.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			conn, err := d.DialContext(ctx, "tcp", addr)
			return &oneReply{Conn: conn, cuts: &cuts}, err
		}
	})
	h := New(rdb, testConfig(true))
	defer h.Close()
	f := &subscriber{hub: h}
	var channels []string
	for i := range 10 {
		channels = append(channels, fmt.Sprintf("redisson_lock__channel:{orders}:%d", i))
	}
	const times = 300
	for range times {
		conn, release := rdb.Dedicate()
		if f.send(conn, channels, f.subscribe) {
			t.Error("a cut connection is still used")
		}
		conn.Close()
		release()
	}
	if n := cuts.Load(); n != times {
		t.Errorf("%d of %d connections were cut after a reply", n, times)
	}
}

// oneReply is a connection that breaks after the first reply to SSUBSCRIBE.
type oneReply struct {
	net.Conn
	cuts    *atomic.Int64 // how many have broken
	replied bool
}

func (c *oneReply) Read(b []byte) (int, error) {
	if c.replied {
		return 0, net.ErrClosed
	}
	n, err := c.Conn.Read(b)
	begin := []byte(">3\r\n$10\r\nssubscribe")
	if i := bytes.Index(b[:n], begin); i >= 0 {
		c.replied = true
		c.cuts.Add(1)
		if next := bytes.Index(b[i+1:n], begin); next >= 0 {
			n = i + 1 + next
		}
	}
	return n, err
}

// A server that no longer executes scripts may be left before the next periodic query: Check queries the role, but not
// twice within a second.
func TestCheck(t *testing.T) {
	plain(t, func(w *world, n *node) {
		x := w.listens("x")
		is(t, "the listener receives", x.receives(), "confirmed")
		time.Sleep(checkPause)
		n.commands()
		for range 3 {
			w.Check("x")
			w.Check("no channel")
			is(t, "role queries", n.count("ROLE"), 1)
			w.Check("x")
			time.Sleep(checkPause - 1)
			w.Check("x")
			is(t, "role queries", n.count("ROLE"), 0)
			time.Sleep(time.Nanosecond)
		}
		n.answersTo("ROLE", roleIs("slave", "connected"))
		n.dialled()
		w.Check("x")
		if time.Sleep(time.Second); n.dialled() == 0 {
			t.Error("the hub stays at a replica")
		}
	})
}

// Only the channels that were routed, or whose subscription ended, are compared: a process can have many others.
func TestDifference(t *testing.T) {
	h := &Hub{Config: Config{RoleInterval: time.Hour}, ctx: t.Context(), channels: make(map[string]*channel)}
	f := &subscriber{hub: h, changed: make(chan struct{}, 1), have: map[string]bool{"ended": true}}
	h.subscribers = map[string]*subscriber{"": f}
	h.channels["other"] = &channel{name: "other", subscriber: f}
	s, _ := h.Subscribe("x", func(string) {}, func() {})
	for _, step := range []struct {
		before      func()
		add, remove string
	}{
		{func() {}, "x", ""},
		{func() {}, "", ""},
		{func() { f.route("x") }, "", ""}, // it has been sent
		{s.Close, "", "x"},
		{func() { f.route("x") }, "", ""},
	} {
		step.before()
		add, remove := f.difference()
		is(t, "to subscribe", strings.Join(add, " "), step.add)
		is(t, "to unsubscribe", strings.Join(remove, " "), step.remove)
		is(t, "to compare again", len(f.routed), 0)
	}
}

package pubsub

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/redis/rueidis"
)

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

// A closed hub calls no listener, and sends nothing to its server.
func TestSubscribe_closedHub(t *testing.T) {
	plain(t, func(w *world, n *node) {
		w.Hub.Close()
		n.dialled()
		x := w.listens("x")
		is(t, "subscribed already", x.already, false)
		time.Sleep(time.Minute)
		is(t, "channels", w.Channels(), 0)
		is(t, "connections", n.dialled(), 0)
		x.Close()
	})
}

// A listener added before the confirmation is called like the first one. For one that is added later,
// Subscribe reports that there will be none.
func TestSubscribe_beforeTheConfirmation(t *testing.T) {
	plain(t, func(w *world, n *node) {
		confirm := n.holds("SUBSCRIBE x", "")
		first, second := w.listens("x"), w.listens("x")
		is(t, "received before", first.receives()+second.receives(), "")
		is(t, "subscribed already", second.already, false)
		confirm()
		is(t, "the first listener receives", first.receives(), "confirmed")
		is(t, "the second listener receives", second.receives(), "confirmed")
		third := w.listens("x")
		is(t, "subscribed already", third.already, true)
		is(t, "the third listener receives", third.receives(), "")
		is(t, "commands", n.commands(), "ROLE, SUBSCRIBE x")
	})
}

// A channel is subscribed until its last listener has closed. All commands about channels use one
// connection, without delay.
func TestClose_theLastListener(t *testing.T) {
	plain(t, func(w *world, n *node) {
		first, second, other := w.listens("x"), w.listens("x"), w.listens("y")
		synctest.Wait()
		n.commands()
		first.Close()
		is(t, "commands", n.commands(), "")
		n.push("message", "x", "hello")
		is(t, "the first listener receives", first.receives(), "confirmed")
		is(t, "the second listener receives", second.receives(), "confirmed, hello")
		second.Close()
		is(t, "channels", w.Channels(), 1)
		is(t, "it lingers", w.Subscribed("x"), false)
		is(t, "commands", n.commands(), "UNSUBSCRIBE x")
		w.listens("z")
		is(t, "commands", n.commands(), "SUBSCRIBE z")
		is(t, "the other listener receives", other.receives(), "confirmed")
		is(t, "connections", n.dialled(), 2) // the hub's, and the client's first one
	})
}

// A new listener keeps a lingering channel, for itself and for CloseDelay after it. The role is not
// queried without listeners, so it may be due.
func TestCloseSoon_comesBack(t *testing.T) {
	plain(t, func(w *world, n *node) {
		w.listens("x").CloseSoon()
		time.Sleep(CloseDelay * 3 / 5)
		x := w.listens("x")
		synctest.Wait()
		x.CloseSoon()
		time.Sleep(CloseDelay * 3 / 5)
		is(t, "it lingers", w.Subscribed("x"), true)
		x = w.listens("x")
		n.commands()
		time.Sleep(10 * roleInterval)
		n.push("message", "x", "hello")
		is(t, "the listener receives", x.receives(), "hello")
		is(t, "role queries", n.count("ROLE"), 10)

		x.CloseSoon()
		time.Sleep(CloseDelay - 1)
		is(t, "commands", n.commands(), "")
		time.Sleep(time.Nanosecond)
		is(t, "commands", n.commands(), "UNSUBSCRIBE x")
	})
}

// While a channel lingers, the role is not queried. When a listener is added later, it is queried
// immediately.
func TestCloseSoon_queriesTheRoleAgain(t *testing.T) {
	plain(t, func(w *world, n *node) {
		x := w.listens("x")
		synctest.Wait()
		time.Sleep(roleInterval - CloseDelay/2)
		x.CloseSoon()
		n.commands()
		time.Sleep(CloseDelay * 3 / 4)
		is(t, "commands", n.commands(), "")
		w.listens("x")
		is(t, "commands", n.commands(), "ROLE")
	})
}

// A listener is added just as the lingering ends. Either way, its channel is subscribed.
func TestCloseSoon_theLastMoment(t *testing.T) {
	plain(t, func(w *world, n *node) {
		for i := range 200 {
			x := w.listens("x")
			synctest.Wait()
			x.CloseSoon()
			time.Sleep(CloseDelay)
			x = w.listens("x")
			synctest.Wait()
			if !w.Subscribed("x") {
				t.Fatalf("round %d: the channel has a listener, and is not subscribed", i)
			}
			x.Close()
		}
	})
}

// CloseAfter keeps a channel subscribed for the given time, and for CloseDelay at least.
func TestCloseAfter(t *testing.T) {
	plain(t, func(w *world, n *node) {
		for after, want := range map[time.Duration]time.Duration{time.Second: CloseDelay, 3 * CloseDelay: 3 * CloseDelay} {
			x := w.listens("x")
			synctest.Wait()
			n.commands()
			x.CloseAfter(after)
			time.Sleep(want - 1)
			is(t, "commands", n.commands(), "")
			time.Sleep(time.Nanosecond)
			is(t, "commands", n.commands(), "UNSUBSCRIBE x")
		}
	})
}

// The role of a server cannot be queried without a connection. The hub queries it when there is one again.
func TestCheck_withoutAConnection(t *testing.T) {
	plain(t, func(w *world, n *node) {
		w.listens("x")
		synctest.Wait()
		n.cut(false)
		n.commands()
		w.Check("x")
		w.Check("no such channel")
		time.Sleep(CloseDelay)
		is(t, "commands", n.commands(), "ROLE, SUBSCRIBE x")
	})
}

// The connection breaks while a channel lingers: the hub does not reconnect. A listener added after
// the break is unaffected by the end of the lingering.
func TestCloseSoon_breaks(t *testing.T) {
	plain(t, func(w *world, n *node) {
		w.listens("x").CloseSoon()
		n.cut(false)
		is(t, "it lingers", w.Subscribed("x"), false)
		time.Sleep(CloseDelay / 2)
		is(t, "connections", n.dialled(), 0)
		x := w.listens("x")
		time.Sleep(2 * CloseDelay)
		n.push("message", "x", "hello")
		is(t, "the listener receives", x.receives(), "confirmed, hello")
	})
}

// Listeners come and go between two connection attempts. Only the remaining ones are subscribed.
func TestLater_listenersComeAndGo(t *testing.T) {
	plain(t, func(w *world, n *node) {
		x, y := w.listens("x"), w.listens("y")
		n.cut(false)
		n.commands()
		second := w.listens("x")
		is(t, "subscribed already", second.already, false)
		second.Close()
		x.CloseSoon()
		x = w.listens("x")
		is(t, "subscribed already", x.already, false)
		y.Close()
		time.Sleep(10 * time.Millisecond)
		is(t, "the listener receives", x.receives(), "confirmed")
		is(t, "commands", n.commands(), "ROLE, SUBSCRIBE x")
		is(t, "connections", n.dialled(), 1)
	})
}

// The last listener leaves between two connection attempts, or the hub is closed then. There is no
// further attempt.
func TestLater_noListenerLeft(t *testing.T) {
	for name, end := range map[string]func(w *world, x *testListener){
		"the listener goes": func(_ *world, x *testListener) { x.Close() },
		"the hub is closed": func(w *world, _ *testListener) { w.Hub.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			plain(t, func(w *world, n *node) {
				x := w.listens("x")
				n.cut(false)
				end(w, x)
				time.Sleep(time.Minute)
				is(t, "connections", n.dialled(), 0)
				is(t, "subscribers", len(w.connections()), 0)
				x.CloseSoon()
				is(t, "channels", w.Channels(), 0)
			})
		})
	}
}

// The pauses between attempts at an unavailable server grow to at most four seconds, so that all clients
// of a server do not reconnect at the same time. After the first success they are short again.
func TestLater_pauses(t *testing.T) {
	plain(t, func(w *world, n *node) {
		x := w.listens("x")
		n.cut(true)
		time.Sleep(time.Minute)
		if n := n.dialled(); n < 15 || n > 40 {
			t.Errorf("%d tries in a minute", n)
		}
		n.cut(false)
		time.Sleep(longestPauseAway)
		is(t, "the listener receives", x.receives(), "confirmed, confirmed")
		n.cut(false)
		time.Sleep(10 * time.Millisecond)
		is(t, "the listener receives after another reconnect", x.receives(), "confirmed")
	})
}

// The channels of a broken connection are confirmed together.
func TestLater_together(t *testing.T) {
	plain(t, func(w *world, n *node) {
		w.listens("x")
		w.listens("y")
		n.cut(false)
		n.commands()
		time.Sleep(10 * time.Millisecond)
		is(t, "commands", n.commands(), "ROLE, SUBSCRIBE x y")
	})
}

// Close waits for the connections to end, which takes no time. It ends lingering channels
// immediately; channels with listeners end with these.
func TestClose_hub(t *testing.T) {
	plain(t, func(w *world, n *node) {
		w.listens("x").CloseSoon()
		y := w.listens("y")
		synctest.Wait()
		start := time.Now()
		w.Hub.Close()
		is(t, "subscribers", len(w.connections()), 0)
		is(t, "it took", time.Since(start), 0)
		is(t, "channels", w.Channels(), 1)
		y.CloseSoon()
		is(t, "channels", w.Channels(), 0)
	})
}

// The hub is closed between two connection attempts. Lingering channels end with it.
func TestClose_hubWithoutConnection(t *testing.T) {
	plain(t, func(w *world, n *node) {
		x, y := w.listens("x"), w.listens("y")
		n.cut(true)
		x.CloseSoon()
		is(t, "channels", w.Channels(), 2)
		w.Hub.Close()
		is(t, "channels", w.Channels(), 1)
		y.Close()
		is(t, "channels", w.Channels(), 0)
	})
}

// The hub is closed while a reply is due. Close does not wait for the reply, only for the connection
// to end.
func TestClose_hubWithoutAReply(t *testing.T) {
	for _, command := range []string{"ROLE", "SUBSCRIBE x"} {
		t.Run(command, func(t *testing.T) {
			plain(t, func(w *world, n *node) {
				n.holds(command, "")
				w.listens("x")
				synctest.Wait()
				start := time.Now()
				w.Hub.Close()
				is(t, "it took", time.Since(start), closing)
			})
		})
	}
}

// shares sends a PING over the connection that the hub shares for name, and reports whether there is one.
func (w *world) shares(name string) bool {
	w.Helper()
	shared, err := w.Share(w.Context(), name, func(conn rueidis.DedicatedClient) error {
		return conn.Do(w.Context(), conn.B().Role().Build()).Error()
	})
	if err != nil {
		w.Errorf("%s: %v", name, err)
	}
	return shared
}

// On one server, commands of other packages and all subscriptions share one connection, whichever comes first. A
// hub that is closed has none.
func TestShare_oneServer(t *testing.T) {
	plain(t, func(w *world, n *node) {
		n.dialled()
		for range 2 {
			is(t, "a connection", w.shares("entry"), true)
		}
		is(t, "the listener receives", w.listens("x").receives(), "confirmed")
		is(t, "a connection", w.shares("entry"), true)
		is(t, "connections", n.dialled(), 1)
		n.cut(false)
		time.Sleep(time.Minute)
		is(t, "a connection", w.shares("entry"), true)
		is(t, "connections", n.dialled(), 1)
		w.Close()
		is(t, "a connection", w.shares("entry"), false)
		is(t, "connections", n.dialled(), 0)
	})
}

// A connection is closed after the commands of other packages, so that none starts while rueidis closes it.
func TestShare_whileTheHubCloses(t *testing.T) {
	plain(t, func(w *world, n *node) {
		w.listens("x")
		begin, closed, result := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		go func() {
			_, err := w.Share(w.Context(), "entry", func(conn rueidis.DedicatedClient) error {
				<-begin
				return conn.Do(w.Context(), conn.B().Role().Build()).Error()
			})
			result <- err
		}()
		synctest.Wait()
		go func() {
			w.Hub.Close()
			close(closed)
		}()
		synctest.Wait()
		close(begin)
		is(t, "the command", <-result, nil)
		<-closed
	})
}

// A command that gets an error reply, or whose caller does not wait for the reply, does not end the connection.
func TestShare_failsWithoutABreak(t *testing.T) {
	plain(t, func(w *world, n *node) {
		is(t, "a connection", w.shares("entry"), true)
		n.dialled()
		n.answersTo("ECHO x", "-LOADING x\r\n")
		ctx, cancel := context.WithCancel(w.Context())
		for _, f := range []func(rueidis.DedicatedClient) error{
			func(conn rueidis.DedicatedClient) error {
				return conn.Do(ctx, conn.B().Echo().Message("x").Build()).Error()
			},
			func(rueidis.DedicatedClient) error { cancel(); return ctx.Err() },
		} {
			if shared, err := w.Share(ctx, "entry", f); !shared || err == nil {
				t.Errorf("%t, %v", shared, err)
			}
			synctest.Wait()
			is(t, "a connection", w.shares("entry"), true)
		}
		is(t, "connections", n.dialled(), 0)
	})
}

// A server that has become a replica rejects a write. The connection ends, because the next one leads to the primary.
func TestShare_onAReplica(t *testing.T) {
	for _, reply := range []string{"READONLY You can't write against a read only replica.", "ERR Error running script: -READONLY You can't write", "REDIRECT 127.0.0.1:6379"} {
		plain(t, func(w *world, n *node) {
			is(t, "a connection", w.shares("entry"), true)
			n.dialled()
			n.answersTo("ECHO x", "-"+reply+"\r\n")
			if shared, err := w.Share(w.Context(), "entry", func(conn rueidis.DedicatedClient) error {
				return conn.Do(w.Context(), conn.B().Echo().Message("x").Build()).Error()
			}); !shared || err == nil {
				t.Errorf("%t, %v", shared, err)
			}
			synctest.Wait()
			is(t, "a connection", w.shares("entry"), true)
			is(t, "connections after "+reply, n.dialled(), 1)
		})
	}
}

// In RESP2, the connection for commands breaks, and the one for subscriptions does not. One command fails. After it, the
// connection is not shared until the hub has a new one.
func TestShare_oneOfTwoBreaks(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	h := New(s.Client(t, func(o *rueidis.ClientOption) { o.AlwaysRESP2 = true }), testConfig(false))
	defer h.Close()
	var id string
	share := func() (bool, error) {
		return h.Share(t.Context(), "entry", func(conn rueidis.DedicatedClient) error {
			n, err := conn.Do(t.Context(), conn.B().ClientId().Build()).AsInt64()
			id = strconv.FormatInt(n, 10)
			return err
		})
	}
	if shared, err := share(); !shared || err != nil {
		t.Fatal(shared, err)
	}
	first := id
	s.Do(t, "CLIENT", "KILL", "ID", first)
	if shared, err := share(); !shared || err == nil {
		t.Errorf("on the broken connection: %t, %v", shared, err)
	}
	for shared, end := false, time.Now().Add(30*time.Second); !shared; time.Sleep(time.Millisecond) {
		var err error
		if shared, err = share(); err != nil || time.Now().After(end) {
			t.Fatalf("after that: %t, %v", shared, err)
		}
	}
	is(t, "the same connection", id == first, false)
}

// Share returns when its context is canceled, although the hub waits for a connection.
func TestShare_withoutConnection(t *testing.T) {
	plain(t, func(w *world, n *node) {
		var release []func()
		for range 10 { // all connections of the pool
			_, free := n.client.Dedicate()
			release = append(release, free)
		}
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		if shared, err := w.Share(ctx, "entry", func(rueidis.DedicatedClient) error { return nil }); !shared || err != ctx.Err() {
			t.Errorf("%v, %v", shared, err)
		}
		for _, free := range release {
			free()
		}
	})
}

// On a cluster, a command can share the connection only at the node of its slot: where a channel of its name is
// subscribed. With plain Pub/Sub, the subscriptions are at any node.
func TestShare_cluster(t *testing.T) {
	sharded(t, []string{"a:1", "b:1"}, func(w *world) {
		w.own("{b}", "b:1")
		w.listens("{a}")
		is(t, "a connection", w.shares("{b}"), false)
		is(t, "the listener receives", w.listens("{b}").receives(), "confirmed")
		w.nodes["b:1"].commands()
		is(t, "a connection", w.shares("{b}"), true)
		is(t, "role queries there", w.nodes["b:1"].count("ROLE"), 1)
	})
	inBubble(t, rueidis.ClientModeCluster, false, []string{"a:1"}, func(w *world) {
		is(t, "the listener receives", w.listens("x").receives(), "confirmed")
		is(t, "a connection", w.shares("x"), false)
	})
}

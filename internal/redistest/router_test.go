package redistest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

// A client that treats the router as one server, and one that treats it as a cluster with one node, can access the
// keys of all nodes, even while a slot is migrated and after a replica has taken over. Their subscriptions receive
// messages.
func TestRouter(t *testing.T) {
	t.Parallel()
	c := StartCluster(t)
	for _, one := range []bool{false, true} {
		for _, resp2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("as a cluster %v, RESP2 %v", one, resp2), func(t *testing.T) {
				r := NewRouter(t, c, one)
				rdb := r.Client(t, func(o *rueidis.ClientOption) { o.AlwaysRESP2 = resp2 })
				if got, want := rdb.Mode() == rueidis.ClientModeCluster, one; got != want {
					t.Fatalf("the client is in mode %v", rdb.Mode())
				}
				direct := c.Client(t)
				set := func(what string) {
					t.Helper()
					for i := range 20 {
						key, value := fmt.Sprint("key:", i), what+fmt.Sprint(i)
						if err := rdb.Do(t.Context(), rdb.B().Eval().Script("return redis.call('SET', KEYS[1], ARGV[1])").Numkeys(1).Key(key).Arg(value).Build()).Error(); err != nil {
							t.Fatal(err)
						}
						if got, err := direct.Do(t.Context(), direct.B().Get().Key(key).Build()).ToString(); got != value || err != nil {
							t.Errorf("%s: the cluster has %q, %v", key, got, err)
						}
						if got, err := rdb.Do(t.Context(), rdb.B().Get().Key(key).Build()).ToString(); got != value || err != nil {
							t.Errorf("%s: the router returns %q, %v", key, got, err)
						}
					}
				}
				set("at rest")
				if n := r.Spread("EVAL"); n < clusterMasters {
					t.Errorf("the scripts went to %d nodes", n)
				}

				from := c.Master(t, "key:0")
				masters := c.Masters(t)
				to := masters[(slices.Index(masters, from)+1)%len(masters)]
				move := c.Migrate(t, c.Slot(t, "key:0"), from, to)
				before := r.Followed()
				set("half-moved")
				direct.Do(t.Context(), direct.B().Del().Key("key:0").Build())
				set("asked") // the key is created on the new master
				move.Finish(t)
				set("moved")
				if r.Followed() == before {
					t.Error("no node sent the router to another")
				}
				c.TakeOver(t, c.Replica(t, c.Master(t, "key:0")))
				set("taken over")

				received := make(chan string, 1)
				conn, release := rdb.Dedicate()
				defer release()
				confirmed := make(chan bool, 9)
				conn.SetPubSubHooks(rueidis.PubSubHooks{
					OnMessage: func(m rueidis.PubSubMessage) {
						select {
						case received <- m.Message:
						default: // there already is one
						}
					},
					OnSubscription: func(rueidis.PubSubSubscription) { confirmed <- true },
				})
				if err := conn.Do(t.Context(), conn.B().Subscribe().Channel("one", "two").Build()).Error(); err != nil {
					t.Fatal(err)
				}
				<-confirmed
				<-confirmed
				for len(received) == 0 { // the nodes may have to reconnect to each other
					c.Masters(t)[0].Do(t, "PUBLISH", "two", "hello")
					time.Sleep(time.Millisecond)
				}
				if got := <-received; got != "hello" {
					t.Errorf("received %q", got)
				}
				sharded := c.Nodes[0].Do(t, "COMMAND", "INFO", "ssubscribe")
				if known, err := sharded.ToArray(); err == nil && len(known) == 1 && !known[0].IsNil() {
					conn, release := rdb.Dedicate()
					defer release()
					shard := make(chan string, 1)
					conn.SetPubSubHooks(rueidis.PubSubHooks{
						OnMessage:      func(m rueidis.PubSubMessage) { shard <- m.Message },
						OnSubscription: func(rueidis.PubSubSubscription) { confirmed <- true },
					})
					if err := conn.Do(t.Context(), conn.B().Ssubscribe().Channel("three").Build()).Error(); err != nil {
						t.Fatal(err)
					}
					<-confirmed
					c.Master(t, "three").Do(t, "SPUBLISH", "three", "sharded")
					if got := <-shard; got != "sharded" {
						t.Errorf("received %q", got)
					}
				}
			})
		}
	}
}

// slotOf returns the same slots as the server.
func TestSlotOf(t *testing.T) {
	s := Start(t, "--cluster-enabled", "yes")
	for _, key := range []string{"", "a", "orders", "{orders}:1", "a{b}c{d}", "{}x", "a{}b", "{{x}}", "x{"} {
		reply := s.Do(t, "CLUSTER", "KEYSLOT", key)
		if want, err := reply.ToInt64(); int(want) != slotOf([]byte(key)) || err != nil {
			t.Errorf("%q: %d, want %d, %v", key, slotOf([]byte(key)), want, err)
		}
	}
}

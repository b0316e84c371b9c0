package redistest

import (
	"strconv"
	"testing"

	"github.com/redis/rueidis"
)

// 1: a client writes. 2: a slot is migrated, with its key, and the client finds it. 3: the master
// dies, and its replica has the data. 4: it comes back as a replica, and can take over again.
func TestCluster(t *testing.T) {
	c := StartCluster(t)
	rdb := c.Client(t)
	get := func(when, want string) {
		t.Helper()
		// The client may still use a dead node.
		waitUntil(t, when+": the client reads "+want, func() bool {
			got, _ := rdb.Do(t.Context(), rdb.B().Get().Key("k").Build()).ToString()
			return got == want
		})
	}
	if n := len(c.Masters(t)); n != 3 {
		t.Fatalf("%d masters, want 3", n)
	}
	set := func(value string) {
		t.Helper()
		waitUntil(t, "a write is taken", func() bool {
			return rdb.Do(t.Context(), rdb.B().Set().Key("k").Value(value).Build()).Error() == nil
		})
		master := c.Master(t, "k")
		waitUntil(t, "the replica has it", func() bool {
			replica := c.Replica(t, master)
			conn, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{replica.Addr()}, DisableCache: true, ForceSingleClient: true})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			multi := conn.DoMulti(t.Context(), conn.B().Readonly().Build(), conn.B().Arbitrary("GET").Keys("k").Build())
			got, _ := multi[1].ToString()
			return got == value
		})
	}
	set("1") // 1
	get("at first", "1")

	from := c.Master(t, "k") // 2
	to := c.Masters(t)[0]
	if to == from {
		to = c.Masters(t)[1]
	}
	m := c.Migrate(t, c.Slot(t, "k"), from, to)
	if keys := m.Keys(t); len(keys) != 1 || keys[0] != "k" {
		t.Errorf("to be moved: %q", keys)
	}
	get("before the move", "1")
	m.Move(t, "k")
	get("on the way", "1")
	m.Finish(t)
	if got := c.Master(t, "k"); got != to {
		t.Fatalf("the slot is at %s, want %s", got.Addr(), to.Addr())
	}
	get("after the move", "1")

	for i := range 2 {
		value := strconv.Itoa(i + 2)
		set(value)
		master := c.Master(t, "k")
		next := c.Failover(t, master) // 3
		if got := c.Master(t, "k"); got != next {
			t.Fatalf("%s serves the key, want %s", got.Addr(), next.Addr())
		}
		get("after the failover", value)
		c.Rejoin(t, master) // 4
	}
}

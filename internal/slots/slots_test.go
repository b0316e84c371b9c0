package slots

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/redis/rueidis"
)

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

// Refresh reads the reply of a cluster with a node that has several ranges of slots.
func TestTable(t *testing.T) {
	c := redistest.StartCluster(t)
	rdb := c.Client(t)
	var table Table
	if table.Of(0) != table.Of(1023) || table.Of(0) == table.Of(1024) {
		t.Error("without a table, adjacent slots should be together")
	}
	read := func() nodes {
		t.Helper()
		if err := table.Refresh(t.Context(), rdb); err != nil {
			t.Fatal(err)
		}
		return *table.known.Load()
	}
	before := read()
	for slot := range count {
		const masters = 3
		node := (slot*masters + masters - 1) / count
		if got, want := table.Of(uint16(slot)), uint16(node*count/masters); got != want {
			t.Fatalf("slot %d is with slot %d, want %d", slot, got, want)
		}
	}
	from, to := c.Master(t, "orders"), c.Masters(t)[0]
	if from == to {
		to = c.Masters(t)[1]
	}
	slot := c.Slot(t, "orders")
	m := c.Migrate(t, slot, from, to)
	m.Finish(t)
	got := read()
	if got[slot] == before[slot] || got[slot-1] != before[slot-1] || got[slot+1] != before[slot+1] {
		t.Errorf("slot %d moved: it is with slot %d, and was with %d", slot, got[slot], before[slot])
	}
	if key := OfKey(rdb, "orders"); int(key) != slot {
		t.Errorf("OfKey: %d, want %d", key, slot)
	}
	if _, err := parse(rueidis.NewErrorResult(errReply)); err == nil {
		t.Error("an error reply was parsed")
	}
	if got, err := parse(rdb.Do(t.Context(), rdb.B().CommandList().Build())); err == nil {
		t.Errorf("a list of strings was parsed: %v", got[0])
	}
}

// Due is true for one of all callers, once per interval.
func TestTable_due(t *testing.T) {
	var table Table
	due := 0
	for range 100 {
		if table.Due(time.Hour) {
			due++
		}
	}
	if due != 1 {
		t.Errorf("Due for %d of 100 callers, want 1", due)
	}
	table.next.Add(-int64(time.Hour)) // an hour passes
	if !table.Due(time.Hour) || table.Due(time.Hour) {
		t.Error("after an hour, want Due for one caller")
	}
}

// Replies to CLUSTER SLOTS, as Lua returns them, in any order. A node is identified by its lowest slot. Slots that are
// missing in the reply belong to the node of the adjacent slots.
func TestParse(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	for name, c := range map[string]struct {
		reply string
		want  map[uint16]uint16 // some slots
	}{
		"in order":            {"{{0,99,{'a',1,'A'}},{100,16383,{'b',1,'B'},{'c',1,'C'}}}", map[uint16]uint16{0: 0, 99: 0, 100: 100, 16383: 100}},
		"out of order":        {"{{9000,16383,{'a',1,'A'}},{500,8999,{'b',1,'B'}},{0,499,{'a',1,'A'}}}", map[uint16]uint16{0: 0, 500: 500, 8999: 500, 9000: 0, 16383: 0}},
		"some slots are left": {"{{0,99,{'a',1,'A'}}}", map[uint16]uint16{99: 0, 2047: 1024, 2048: 2048, 16383: 15360}},
		"nothing":             {"{}", map[uint16]uint16{1023: 0, 1024: 1024}},
	} {
		got, err := parse(rdb.Do(t.Context(), rdb.B().Eval().Script("return "+c.reply).Numkeys(0).Build()))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for slot, node := range c.want {
			if got[slot] != node {
				t.Errorf("%s: slot %d is with slot %d, want %d", name, slot, got[slot], node)
			}
		}
	}
}

// Refresh fails on an invalid reply, and leaves the table unchanged.
func TestParse_wrong(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	for _, reply := range []string{
		"'OK'", "{'OK'}", "{{}}", "{{0,16383}}", "{{0,16383,'a'}}", "{{0,16383,{'a',1}}}",
		"{{'x',16383,{'a',1,'A'}}}", "{{0,'x',{'a',1,'A'}}}", "{{0,16383,{'a',1,7}}}",
		"{{-1,16383,{'a',1,'A'}}}", "{{0,16384,{'a',1,'A'}}}",
	} {
		table := Table{}
		known := nodes{7: 7}
		table.known.Store(&known)
		err := table.Refresh(t.Context(), scriptedClient{rdb, "return " + reply})
		if err == nil || table.known.Load() != &known || table.Of(7) != 7 {
			t.Errorf("%s: %v, slot 7 is with slot %d", reply, err, table.Of(7))
		}
	}
}

// Primaries parses the reply of one server. That server may not know the host of another, and omits its own.
func TestPrimaries(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	for _, c := range []struct {
		reply string
		want  string // "" for an error
	}{
		{"{}", "[]"},
		{"{{0,99,{'a',1}},{100,199,{'b',2,'B'},{'c',3,'C'}},{200,16383,{'a',1,'A'}}}", "[{a:1 [[0 99] [200 16383]]} {b:2 [[100 199]]}]"},
		{"{{0,99,{'a',1,'A'}},{100,199,{'a',2,'B'}}}", "[{a:1 [[0 99]]} {a:2 [[100 199]]}]"},
		{"{{0,99,{'?',1,'A'}},{100,199,{'',2,'B'}}}", "[{here:2 [[100 199]]}]"},
		{"'OK'", ""}, {"{'OK'}", ""}, {"{{0,16383}}", ""}, {"{{0,16383,'a'}}", ""}, {"{{0,16383,{'a'}}}", ""},
	} {
		got, err := Primaries(t.Context(), scriptedClient{rdb, "return " + c.reply}, "here:6379")
		if c.want == "" != (err != nil) || c.want != "" && fmt.Sprint(got) != c.want {
			t.Errorf("%s: %v, %v", c.reply, got, err)
		}
	}
}

// scriptedClient is a client that runs a script instead of each command.
type scriptedClient struct {
	rueidis.Client
	script string
}

func (a scriptedClient) Do(ctx context.Context, _ rueidis.Completed) rueidis.RedisResult {
	return a.Client.Do(ctx, a.B().Eval().Script(a.script).Numkeys(0).Build())
}

// On a cluster the keys of a command must be in one slot; a single server accepts any keys.
func TestElsewhere(t *testing.T) {
	one := redistest.NewMini(t).Client(t)
	for _, c := range []struct {
		rdb    rueidis.Client
		others []string
		want   string
	}{
		{clusterClient{one}, nil, ""},
		{clusterClient{one}, []string{"{orders}:1", "orders"}, ""},
		{clusterClient{one}, []string{"{orders}:1", "bills", "users"}, "bills"},
		{one, []string{"{orders}:1", "bills", "users"}, ""},
	} {
		if other, is := Elsewhere(c.rdb, "orders", c.others); other != c.want || is != (c.want != "") {
			t.Errorf("%v, %q: %q, %v", c.rdb.Mode(), c.others, other, is)
		}
	}
}

// clusterClient is a client that reports the mode of a cluster.
type clusterClient struct{ rueidis.Client }

func (clusterClient) Mode() rueidis.ClientMode { return rueidis.ClientModeCluster }

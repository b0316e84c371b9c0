package slots

import (
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/redis/rueidis"
)

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

// TestTable reads the answer of a cluster with a node that has several ranges of slots.
func TestTable(t *testing.T) {
	c := redistest.StartCluster(t)
	rdb := c.Client(t)
	var table Table
	if table.Of(0) != table.Of(1023) || table.Of(0) == table.Of(1024) {
		t.Error("before the first answer neighbours should be together")
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
	from, to := c.Master(t, "orders"), c.Nodes[0]
	if from == to {
		from, to = to, c.Nodes[1]
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
		t.Error("an error is taken for an answer")
	}
	if got, err := parse(rdb.Do(t.Context(), rdb.B().CommandList().Build())); err == nil {
		t.Errorf("a list of words is taken for an answer: %v", got[0])
	}
}

// Due tells one of all callers to refresh, once in an interval.
func TestTable_due(t *testing.T) {
	var table Table
	due := 0
	for range 100 {
		if table.Due(time.Hour) {
			due++
		}
	}
	if due != 1 {
		t.Errorf("%d of 100 callers are told to refresh, want 1", due)
	}
	table.next.Add(-int64(time.Hour)) // an hour passes
	if !table.Due(time.Hour) || table.Due(time.Hour) {
		t.Error("an hour later one caller is told so")
	}
}

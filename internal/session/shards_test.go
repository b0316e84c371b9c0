package session

import (
	"testing"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/redis/rueidis"
)

// The answer of a cluster, with a node that has its slots in pieces.
func TestParseSlots(t *testing.T) {
	c := redistest.StartCluster(t)
	rdb := c.Client(t)
	read := func() *table {
		t.Helper()
		got, err := parseSlots(rdb.Do(t.Context(), rdb.B().ClusterSlots().Build()))
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	got := read()
	for slot := range got {
		const masters = 3
		node := (slot*masters + masters - 1) / slots
		if want := node * slots / masters; got[slot] != uint16(want) {
			t.Fatalf("slot %d is with slot %d, want %d", slot, got[slot], want)
		}
	}
	from, to := c.Master(t, "orders"), c.Nodes[0]
	if from == to {
		from, to = to, c.Nodes[1]
	}
	slot := c.Slot(t, "orders")
	before := got
	m := c.Migrate(t, slot, from, to)
	m.Finish(t)
	got = read()
	if got[slot] == before[slot] || got[slot-1] != before[slot-1] || got[slot+1] != before[slot+1] {
		t.Errorf("slot %d moved: it is with slot %d, and was with %d", slot, got[slot], before[slot])
	}
	if key := slotOf(rdb, "orders"); int(key) != slot {
		t.Errorf("slotOf: %d, want %d", key, slot)
	}
	if _, err := parseSlots(rueidis.NewErrorResult(errSlots)); err == nil {
		t.Error("an error is taken for an answer")
	}
	if got, err := parseSlots(rdb.Do(t.Context(), rdb.B().CommandList().Build())); err == nil {
		t.Errorf("a list of words is taken for an answer: %v", got[0])
	}
}

package fence_test

import (
	"math"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/fence"
)

// The integration tests try this guard on real databases. These tests need no
// database.

func TestNewSQL(t *testing.T) {
	for table, want := range map[string]string{"": "leasehold_fence", "fences": "fences", "app.Fences_2": "app.Fences_2", "_x": "_x"} {
		for _, d := range []fence.Dialect{fence.PostgreSQL, fence.SQLite} {
			s, err := fence.NewSQL(d, table)
			if err != nil || !strings.Contains(s.Schema(), " "+want+" (") {
				t.Errorf("%q: %v", table, err)
			}
		}
	}
	for _, table := range []string{"a b", "a;DROP TABLE b", `"a"`, "a.b.c", "1a", "a.", ".a", "a-b", "ä", "a\n"} {
		if _, err := fence.NewSQL(fence.PostgreSQL, table); err == nil {
			t.Errorf("%q is a table", table)
		}
	}
	for _, d := range []fence.Dialect{0, 3, -1} {
		if _, err := fence.NewSQL(d, ""); err == nil {
			t.Errorf("%d is a dialect", d)
		}
	}
}

func TestInt64(t *testing.T) {
	_, err := fence.Int64(0)
	isNoToken(t, "0", err)
	if n, err := fence.Int64(math.MaxInt64); err != nil || n != math.MaxInt64 {
		t.Errorf("the largest: %d, %v", n, err)
	}
	if n, err := fence.Int64(math.MaxInt64 + 1); err == nil {
		t.Errorf("one more: %d", n)
	}
	if n, err := fence.Int64(younger); err != nil || n != int64(younger) {
		t.Errorf("%d, %v", n, err)
	}
}

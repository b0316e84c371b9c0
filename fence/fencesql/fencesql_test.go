package fencesql_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/fence/fencesql"
	"github.com/leasehold-go/leasehold/lock"
)

// The integration tests try this guard on real databases. These tests need no
// database.

func TestNew(t *testing.T) {
	for table, want := range map[string]string{"": "leasehold_fence", "fences": "fences", "app.Fences_2": "app.Fences_2", "_x": "_x"} {
		for _, d := range []fencesql.Dialect{fencesql.PostgreSQL, fencesql.SQLite} {
			s, err := fencesql.New(d, table)
			if err != nil || !strings.Contains(s.Schema(), " "+want+" (") {
				t.Errorf("%q: %v", table, err)
			}
		}
	}
	for _, table := range []string{"a b", "a;DROP TABLE b", `"a"`, "a.b.c", "1a", "a.", ".a", "a-b", "ä", "a\n"} {
		if _, err := fencesql.New(fencesql.PostgreSQL, table); err == nil {
			t.Errorf("%q is a table", table)
		}
	}
	for _, d := range []fencesql.Dialect{0, 3, -1} {
		if _, err := fencesql.New(d, ""); err == nil {
			t.Errorf("%d is a dialect", d)
		}
	}
}

func TestInt64(t *testing.T) {
	_, err := fencesql.Int64(0)
	if !errors.Is(err, fence.ErrNoToken) || !errors.As(err, new(*lock.Error)) {
		t.Errorf("0: %v, want ErrNoToken", err)
	}
	if n, err := fencesql.Int64(math.MaxInt64); err != nil || n != math.MaxInt64 {
		t.Errorf("the largest: %d, %v", n, err)
	}
	if n, err := fencesql.Int64(math.MaxInt64 + 1); err == nil {
		t.Errorf("one more: %d", n)
	}
	if n, err := fencesql.Int64(1_795_225_388_576_200); err != nil || n != 1_795_225_388_576_200 {
		t.Errorf("%d, %v", n, err)
	}
}

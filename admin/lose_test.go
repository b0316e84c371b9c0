package admin

import (
	"errors"
	"strconv"
	"testing"

	"github.com/leasehold-go/leasehold/internal/redistest"
)

// If a primary stops responding during a list, its keys count as missing, so a survey does not treat them as deleted.
func TestLose_slots(t *testing.T) {
	t.Parallel()
	cluster := redistest.SharedCluster(t)
	a, err := New(cluster.Client(t))
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := a.masters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dead := cluster.Master(t, "orders")
	other := "orders:1"
	for i := 2; cluster.Master(t, other) == dead; i++ {
		other = "orders:" + strconv.Itoa(i)
	}
	for _, n := range nodes {
		if n.addr == dead.Addr() {
			a.lose(n, errors.New("no reply"))
		}
	}
	if !a.lacks("orders") || a.lacks(other) {
		t.Errorf("the list lacks orders: %v, and %s: %v", a.lacks("orders"), other, a.lacks(other))
	}
}

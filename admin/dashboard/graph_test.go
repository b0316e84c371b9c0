package dashboard

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/lock"
)

// held returns a lock as in a survey, with one holder and these waiters.
func held(name, holder string, waiters ...string) (l admin.Lock) {
	l.Name, l.Kind = name, admin.Plain
	l.Holders = []lock.Holder{{Owner: holder, Count: 1}}
	for _, w := range waiters {
		l.Waiters = append(l.Waiters, lock.Waiter{Owner: w})
	}
	return l
}

func never(edgeID) bool { return false }

// Two replicas whose requests acquire one lock each always hold a lock that the other one waits for. While the holders change from
// survey to survey, there is no deadlock. When they stop changing, there may be one.
func TestGraph_healthy(t *testing.T) {
	var s surveyor
	at := time.Now()
	survey := func(number int) graph {
		at = at.Add(2 * time.Second)
		n := &survey{at: at, contended: []admin.Lock{held("x", fmt.Sprint("a:", number), "b:1"), held("y", fmt.Sprint("b:", number), "a:1")}}
		return graphOf(n.contended, s.lasted(n))
	}
	for i := range 20 {
		if g := survey(i + 10); g.Rings != 0 || len(g.Drawings) != 1 {
			t.Fatalf("survey %d of a healthy service: %d rings, %d drawings", i, g.Rings, len(g.Drawings))
		}
	}
	for i, want := range []int{0, 0, 0, 1} { // 5 s and three surveys
		if g := survey(100); g.Rings != want {
			t.Errorf("survey %d in which nothing changed: %d rings, want %d", i, g.Rings, want)
		}
	}
	if g := survey(101); g.Rings != 0 {
		t.Error("a ring outlives the holder that it goes through")
	}
}

// An edge is not lasting after many surveys in a short time, nor after too few surveys in a long time.
func TestSurveyor_lasted(t *testing.T) {
	id := edgeID{lock: "x", owner: "a:1"}
	for _, c := range []struct {
		apart time.Duration
		want  []bool
	}{
		{time.Second, []bool{false, false, false, false, false, true}},
		{time.Minute, []bool{false, false, true}},
	} {
		var s surveyor
		at := time.Now()
		for i, want := range c.want {
			n := &survey{at: at, contended: []admin.Lock{held("x", "a:1")}}
			if got := s.lasted(n)(id); got != want {
				t.Errorf("%v apart, survey %d: %v, want %v", c.apart, i, got, want)
			}
			at = at.Add(c.apart)
		}
	}
}

// An owner that is both a holder and a waiter counts immediately. Different owners of one process do not.
func TestGraph_owners(t *testing.T) {
	if g := graphOf([]admin.Lock{held("x", "a:1", "b:1"), held("y", "b:1", "a:1")}, never); g.Rings != 1 {
		t.Errorf("two threads that wait for each other: %d rings", g.Rings)
	}
	if g := graphOf([]admin.Lock{held("x", "a:1", "b:1"), held("y", "b:2", "a:1")}, never); g.Rings != 0 {
		t.Errorf("another thread of a process holds the lock: %d rings", g.Rings)
	}
	if g := graphOf([]admin.Lock{held("x", "a:1", "b:2"), held("y", "b:1", "a:1"), held("w", "c:1", "b:1"), held("v", "b:2", "c:2")}, never); g.Rings != 0 {
		t.Errorf("two threads of a process, of which one waits for the end of the other: %d rings", g.Rings)
	}
}

// If clients wait for each other in several rings, the smallest one is shown.
func TestGraph_smallest(t *testing.T) {
	locks := []admin.Lock{held("1", "a:1", "d:1"), held("2", "b:1", "a:1"), held("6", "a:1", "b:1"), held("3", "c:1", "b:1"), held("4", "d:1", "c:1", "b:1"), held("5", "e:1", "c:1")}
	g := graphOf(locks, never)
	if g.Rings != 1 {
		t.Fatalf("%d rings", g.Rings)
	}
	var names []string
	for _, n := range g.Drawings[0].Nodes {
		if n.InRing && n.Lock {
			names = append(names, n.Name)
		}
	}
	slices.Sort(names)
	if got := strings.Join(names, " "); got != "2 6" || len(g.Drawings[0].Ring) != 4 {
		t.Errorf("the ring goes through the locks %s, with %q", got, g.Drawings[0].Ring)
	}

	// A shorter ring through an edge that is not lasting does not count.
	clients := []admin.Lock{held("1", "a:1", "c:2"), held("2", "b:1", "a:2"), held("3", "c:1", "b:2"), held("4", "a:3", "b:2", "c:3")}
	g = graphOf(clients, func(id edgeID) bool { return id != edgeID{lock: "4", owner: "b:2", waits: true} })
	if g.Rings != 1 || len(g.Drawings[0].Ring) != 6 {
		t.Errorf("%d rings, %q", g.Rings, g.Drawings[0].Ring)
	}
}

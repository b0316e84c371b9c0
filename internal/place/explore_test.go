package place

import (
	"flag"
	"slices"
	"testing"
)

// deeper makes the histories longer.
var deeper = flag.Int("deeper", 0, "how many events longer the histories are")

// Every short history of a few calls comes to a good end, whatever happens on the way, and
// at no time is anything wrong. Histories that lead to the same state are followed once.
func TestHistories(t *testing.T) {
	t.Parallel()
	plain, read, write, fair := &plainTerms, &readTerms, &writeTerms, &fairTerms
	for name, test := range map[string]struct {
		cast  cast
		depth int
	}{
		"plain, one process":   {cast{procs: 1, calls: []role{{terms: plain}, {terms: plain}, {terms: plain}}, faults: 1}, 6},
		"plain, two processes": {cast{procs: 2, calls: []role{{terms: plain}, {terms: plain}, {proc: 1, terms: plain}}, faults: 1}, 6},
		"readers and a writer": {cast{procs: 1, calls: []role{{terms: read}, {terms: read}, {terms: write}}, faults: 1}, 6},
		"fair":                 {cast{procs: 2, calls: []role{{terms: fair}, {terms: fair}, {proc: 1, terms: fair}}, faults: 1}, 6},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			explore(t, &test.cast, test.depth+*deeper)
		})
	}
}

// explore follows all histories of so many events.
func explore(t *testing.T, c *cast, depth int) {
	f := new(finger)
	seen := map[uint64]bool{}
	frontier := [][]event{nil}
	events := 0
	for range depth {
		var next [][]event
		for _, path := range frontier {
			w := follow(c, path)
			for _, e := range w.enabled() {
				w := follow(c, path)
				w.do(e)
				events++
				path := append(slices.Clip(path), e)
				if w.wrong != nil {
					t.Fatalf("%v, after\n%s", w.wrong, c.story(path))
				}
				n := f.of(w, w.now)
				if seen[n] {
					continue
				}
				seen[n] = true
				next = append(next, path)
				w.drain()
				if w.wrong != nil {
					t.Fatalf("in the end %v, after\n%s", w.wrong, c.story(path))
				}
			}
		}
		frontier = next
	}
	t.Logf("%d states, %d events", len(seen), events)
}

// follow returns the world after these events.
func follow(c *cast, path []event) *world {
	w := newWorld(c)
	for _, e := range path {
		w.do(e)
	}
	return w
}

package lockstate

import (
	"flag"
	"slices"
	"testing"
	"time"
)

// deeper makes the histories longer.
var deeper = flag.Int("deeper", 0, "how many events longer the histories are")

// Every short history of a few calls ends well, whatever happens, and keeps the invariants. Histories
// that lead to the same state are explored once.
func TestHistories(t *testing.T) {
	t.Parallel()
	var (
		plain, read, write, fair = &plainTerms, &readTerms, &writeTerms, &fairTerms

		keepPlain, keepFair, keepWrite = thatLinger(plainTerms), thatLinger(fairTerms), thatLinger(writeTerms)

		alone  = []role{{terms: plain}, {terms: plain}, {terms: plain}}
		two    = []role{{terms: plain}, {terms: plain}, {proc: 1, terms: plain}}
		mixed  = []role{{terms: plain}, {terms: plain}, {terms: plain, how: tryLock}}
		sides  = []role{{terms: read}, {terms: read}, {terms: write}}
		fairly = []role{{terms: fair}, {terms: fair}, {proc: 1, terms: fair}}

		granted = []event{{start, 0, 0}, {answer, 0, 0}}                                                                // the first call holds the lock
		behind  = []event{{start, 0, 0}, {answer, 0, 0}, {start, 1, 0}, {start, 2, 0}}                                  // and two wait for it
		beyond  = []event{{start, 0, 0}, {answer, 0, 0}, {start, 1, 0}, {start, 2, 0}, {answer, 0, 0}, {confirm, 1, 0}} // in another process, one call is notified of the lock
		beyond3 = []event{{start, 0, 0}, {answer, 0, 0}, {start, 1, 0}, {answer, 0, 0}, {start, 2, 0}, {answer, 0, 0}}  // a call of each process wants it
		kept    = []event{{start, 0, 0}, {answer, 0, 0}, {unlock, 0, 0}}                                                // a process keeps the lock
		gently  = []event{{start, 0, 0}, {look, 0, 0}, {answer, 0, 0}, {leave, 0, 0}}
		queued  = []event{{start, 0, 0}, {answer, 0, 0}, {start, 1, 0}, {answer, 0, 0}, {confirm, 0, 0}, {start, 2, 0}, {answer, 0, 0}} // and Redis has the waiters queued
	)
	for name, test := range map[string]struct {
		cast   cast
		before []event
		depth  int
	}{
		"plain":                      {cast{procs: 1, calls: alone, faults: 1}, nil, 7},
		"plain, two processes":       {cast{procs: 2, calls: two, faults: 1}, nil, 5},
		"plain, two wait":            {cast{procs: 1, calls: alone, faults: 1, pause: true, aside: true}, behind, 5},
		"plain, two wait and close":  {cast{procs: 1, calls: alone, faults: 1, close: true}, behind, 5},
		"plain, two processes wait":  {cast{procs: 2, calls: two, faults: 1, aside: true}, beyond, 5},
		"plain, interrupted":         {cast{procs: 1, calls: alone[:2], faults: 1, fine: true}, gently, 7},
		"plain, an attempt":          {cast{procs: 1, calls: mixed, faults: 1}, nil, 5},
		"readers and a writer":       {cast{procs: 1, calls: sides, faults: 1}, nil, 5},
		"a reader and one behind it": {cast{procs: 1, calls: sides, faults: 1, pause: true, close: true}, granted, 5},
		"plain, kept":                {cast{procs: 2, calls: []role{{terms: keepPlain}, {terms: keepPlain}, {proc: 1, terms: plain}}, faults: 1}, kept, 5},
		"plain, both keep":           {cast{procs: 2, calls: []role{{terms: keepPlain}, {proc: 1, terms: keepPlain}, {proc: 1, terms: keepPlain}}, faults: 1}, kept, 5},
		"plain, kept, and others":    {cast{procs: 2, calls: []role{{terms: keepPlain}, {terms: plain, how: tryLock}, {proc: 1, terms: keepPlain, how: tryLock}}, faults: 1, close: true, pause: true}, kept, 5},
		"plain, three processes":     {cast{procs: 3, calls: []role{{terms: keepPlain}, {proc: 1, terms: keepPlain}, {proc: 2, terms: keepPlain}}}, beyond3, 7},
		"fair, three processes":      {cast{procs: 3, calls: []role{{terms: keepFair}, {proc: 1, terms: keepFair}, {proc: 2, terms: keepFair}}}, beyond3, 7},
		"fair, kept":                 {cast{procs: 2, calls: []role{{terms: keepFair}, {terms: keepFair}, {proc: 1, terms: fair}}, faults: 1}, kept, 5},
		"write, kept":                {cast{procs: 2, calls: []role{{terms: keepWrite}, {terms: keepWrite}, {terms: read}}, faults: 1}, kept, 5},
		"write, kept, and others":    {cast{procs: 2, calls: []role{{terms: keepWrite}, {proc: 1, terms: keepWrite}, {proc: 1, terms: read}}, faults: 1, close: true}, kept, 5},
		"fair":                       {cast{procs: 2, calls: fairly, faults: 1}, nil, 5},
		"fair, two wait":             {cast{procs: 2, calls: fairly, faults: 1, close: true}, queued, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			explore(t, &test.cast, test.before, test.depth+*deeper)
		})
	}
}

// thatLinger returns terms of a lock that lingers for a short time.
func thatLinger(c Terms) *Terms { return with(c, func(c *Terms) { c.Linger = 20 * time.Millisecond }) }

// explore follows all histories that begin with before and continue for depth events.
func explore(t *testing.T, c *cast, before []event, depth int) {
	f := new(finger)
	seen := map[uint64]bool{}
	frontier := [][]event{before}
	events := 0
	for range depth {
		var next [][]event
		for _, path := range frontier {
			w := follow(c, path)
			for _, e := range w.enabled() {
				w := follow(c, path)
				w.step(e)
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
	if events < 500 {
		t.Errorf("only %d events were followed", events)
	}
	t.Logf("%d states, %d events", len(seen), events)
}

// follow returns the world after the events of path.
func follow(c *cast, path []event) *world {
	w := newWorld(c)
	for _, e := range path {
		w.do(e)
	}
	return w
}

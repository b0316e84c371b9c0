package lockstate

import (
	"testing"

	"pgregory.net/rapid"
)

// Long histories of many calls end well, too. They include single attempts, fixed leases, owners that
// read while they write, processes that close, and calls that are interrupted wherever possible.
func TestHistories_long(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := anyCast(t)
		w := newWorld(c)
		var path []event
		for range rapid.IntRange(1, 80).Draw(t, "events") {
			all := w.enabled()
			if len(all) == 0 {
				break
			}
			e := all[rapid.IntRange(0, len(all)-1).Draw(t, "event")]
			path = append(path, e)
			if w.step(e); w.wrong != nil {
				t.Fatalf("%v, after\n%s", w.wrong, c.story(path))
			}
		}
		if w.drain(); w.wrong != nil {
			t.Fatalf("in the end %v, after\n%s", w.wrong, c.story(path))
		}
	})
}

// anyCast returns a random cast.
func anyCast(t *rapid.T) *cast {
	c := &cast{
		procs:    rapid.IntRange(1, 3).Draw(t, "processes"),
		close:    rapid.IntRange(0, 3).Draw(t, "close") == 0,
		pause:    rapid.Bool().Draw(t, "pause"),
		aside:    rapid.Bool().Draw(t, "aside"),
		fine:     rapid.Bool().Draw(t, "fine"),
		noPubSub: rapid.IntRange(0, 5).Draw(t, "noPubSub") == 0,
		keeps:    rapid.IntRange(0, 3).Draw(t, "keeps") == 0,
		faults:   rapid.IntRange(0, 4).Draw(t, "faults"),
	}
	kind := rapid.IntRange(0, 2).Draw(t, "kind")
	for range rapid.IntRange(2, 7).Draw(t, "calls") {
		c.calls = append(c.calls, anyRole(t, kind, c.procs))
	}
	return c
}

// The terms of calls in long histories, by kind. Equal terms are one pointer.
var casts = [3][]*Terms{
	{&plainTerms, &plainTerms, thatLinger(plainTerms), thatLinger(plainTerms), with(plainTerms, func(c *Terms) { c.Fixed, c.Lease = true, 2*leaseTime }), with(plainTerms, func(c *Terms) { c.TokenCounter = "tokens" }), with(plainTerms, func(c *Terms) { c.Replicas = true })},
	{&readTerms, &readTerms, &writeTerms, thatLinger(writeTerms), thatLinger(writeTerms), with(readTerms, func(c *Terms) { c.Fixed = true }), with(readTerms, func(c *Terms) { c.Replicas, c.QueueKey = true, Replicated }), with(readTerms, func(c *Terms) { c.Yield, c.QueueKey = false, ReaderPreference }), with(writeTerms, func(c *Terms) { c.Yield, c.WaiterTimeout, c.QueueKey = false, 0, ReaderPreference }), with(readTerms, func(c *Terms) { c.TokenCounter = "tokens" })},
	{&fairTerms, &fairTerms, thatLinger(fairTerms), thatLinger(fairTerms), with(fairTerms, func(c *Terms) { c.Fixed = true })},
}

func with(c Terms, change func(*Terms)) *Terms {
	change(&c)
	return &c
}

func anyRole(t *rapid.T, kind, procs int) role {
	r := role{
		proc:  rapid.IntRange(0, procs-1).Draw(t, "process"),
		terms: rapid.SampledFrom(casts[kind]).Draw(t, "terms"),
	}
	if rapid.IntRange(0, 7).Draw(t, "how") == 0 {
		r.how = tryLock
	}
	if kind == 1 && rapid.IntRange(0, 2).Draw(t, "shared owner") == 0 {
		r.owner = 100 + uint64(r.proc)
	}
	return r
}

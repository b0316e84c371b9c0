//go:build linux

package chaos_test

import (
	"cmp"
	"math"
	"slices"
	"testing"
	"time"
)

// late is how long after its call a duplicate of a command without a reply may still arrive. rueidis, which has
// accepted it, dials for 5 s, and waits for 10 s for the reply to HELLO; then it sends it. The rest is the network
// delay.
const late = int64(15*time.Second + 2*lease)

// forgotten reports whether the server can have lost, by the given time, what it received or stored at since or later.
func (p *past) forgotten(since, by int64) bool {
	return slices.ContainsFunc(p.events, func(e event) bool { return e.Forgets && e.From <= by && e.To >= since })
}

// calls returns the records of one type of call, in the order of their ends.
func (p *past) calls(side byte) []hold {
	return slices.DeleteFunc(slices.Clone(p.holds), func(h hold) bool { return h.Side != side })
}

// first returns the earliest record of a type of call for each owner.
func (p *past) first(side byte) map[int64]hold {
	all := map[int64]hold{}
	for _, h := range slices.Backward(p.calls(side)) {
		all[h.Owner] = h
	}
	return all
}

// made returns the latest of these records that certainly existed at that time.
func made(all []hold, at int64) (latest hold, ok bool) {
	i, _ := slices.BinarySearchFunc(all, at, func(h hold, at int64) int { return cmp.Compare(h.Granted, at) })
	if i == 0 {
		return hold{}, false
	}
	return all[i-1], true
}

// latch searches for a wait that ended before all parts of its round were counted, and for a latch that was created and
// is unknown.
//
// Wait returns without an error only if the latch is released at some instant of the call. Take the latch created by
// the last call that had returned before the wait began: that round, or a later one, reached 0, and each of its parts
// was counted between the start of that call and the end of the wait.
func (p *past) latch() (found []wrong) {
	sets, all := p.calls(callSet), p.calls(callPart)
	for _, w := range p.calls(callWait) {
		set, _ := made(sets, w.Call)
		counted := 0
		for _, one := range all {
			end := one.End
			if one.Flags&flagUnsure != 0 || one.Release == 0 {
				end += late
			}
			if one.Call <= w.Granted && end >= set.Call {
				counted++
			}
		}
		if counted < parts && !p.forgotten(set.Call, w.Granted) && len(found) < most {
			found = append(found, wrong{saysOpen, p.place.Name, w.Granted, []hold{set, w}})
		}
	}
	return append(found, p.unknown(sets)...)
}

// unknown searches for a reply that says a latch or a wait group does not exist, although it was created and cannot
// have been lost.
func (p *past) unknown(sets []hold) (found []wrong) {
	for _, u := range p.calls(callNone) {
		if set, ok := made(sets, u.Call); ok && !p.forgotten(set.Call, u.Granted) && len(found) < most {
			found = append(found, wrong{"it was made, and is unknown", p.place.Name, u.Granted, []hold{set, u}})
		}
	}
	return found
}

// waitGroup searches for a wait that ended while there was a worker that was not done, for a worker that was wrongly
// named as lost, and for violations by holds.
func (p *past) waitGroup() (found []wrong, sum tally) {
	members := past{place: p.place, holds: p.calls(0), events: p.events}
	found = members.taken(members.tenures(), &sum)
	dropped, byOwner := p.first(callDrop), p.first(0)
	for _, n := range p.calls(callNamed) {
		m, known := byOwner[n.Owner] // the owner is unknown until Join has returned
		alive := m.Look > n.Granted
		done := m.Outcome == outcomeOK && m.Flags&flagFails == 0
		joining := m.Granted-m.Call >= int64(m.lease()) && n.Call < m.Granted // its first lease can have expired before Join received its reply
		if known && (alive || done) && !joining && !p.forgotten(m.Call, n.Granted) && len(found) < most {
			found = append(found, wrong{"a member was called lost, and was not", p.place.Name, n.Granted, []hold{m, n}})
		}
	}
	var busy []hold // from Granted to End, it is certainly a member that is not done
	for _, m := range members.holds {
		// It can be done from its Unlock on, if it was still a member.
		end := int64(math.MaxInt64)
		if m.Release != 0 && m.Flags&(flagFails|flagSeenLost) == 0 {
			end = m.Release
		} else if at, ok := dropped[m.Owner]; ok {
			end = at.Call
		}
		for _, e := range p.events {
			if e.Forgets && e.To >= m.Call {
				end = min(end, e.From)
			}
		}
		m.End = end
		busy = append(busy, m)
	}
	for _, w := range p.calls(callWait) {
		// Is there a member that is not done at each instant of the call?
		reach, by := w.Call, []hold{w}
		for _, m := range busy { // sorted by grant
			if m.Granted > reach {
				break
			}
			if m.End > reach {
				reach, by = m.End, append(by, m)
			}
		}
		nobody := !slices.ContainsFunc(members.holds, func(m hold) bool { return m.Call <= w.Granted })
		if (reach >= w.Granted || nobody) && len(found) < most {
			found = append(found, wrong{saysDone, p.place.Name, w.Granted, by})
		}
	}
	return append(found, p.unknown(slices.DeleteFunc(members.holds, func(m hold) bool { _, ok := dropped[m.Owner]; return ok }))...), sum
}

// The checker of latches detects each type of violation. Each history was written by hand.
func TestCheck_latch(t *testing.T) {
	const ms = int64(time.Millisecond)
	call := func(side byte, from, to int64) hold {
		return hold{record: record{Side: side, Call: from * ms, Granted: to * ms}}
	}
	set, wait, none := func(a, b int64) hold { return call(callSet, a, b) }, func(a, b int64) hold { return call(callWait, a, b) }, func(a, b int64) hold { return call(callNone, a, b) }
	part := func(from, to int64) hold {
		return hold{End: to * ms, record: record{Side: callPart, Call: from * ms, Granted: from * ms, Look: to * ms, Release: to * ms}}
	}
	unsure := func(h hold) hold { h.Flags |= flagUnsure; return h }
	three := []hold{set(1, 2), part(3, 4), part(3, 5), part(3, 6)}
	forgets := event{From: 50 * ms, To: 60 * ms, Forgets: true}
	for _, test := range []struct {
		name   string
		holds  []hold
		events []event
		wrong  int
	}{
		{name: "all parts", holds: append(three, wait(4, 7))},
		{name: "the last part is under way", holds: []hold{set(1, 2), part(3, 4), part(3, 5), part(6, 9), wait(4, 7)}},
		{name: "a part is missing", holds: []hold{set(1, 2), part(3, 4), part(3, 5), part(8, 9), wait(4, 7)}, wrong: 1},
		{name: "a part that was counted twice", holds: []hold{set(1, 2), part(3, 6), part(3, 5), wait(4, 7)}, wrong: 1},
		{name: "the parts of the round before", holds: append(three, wait(4, 7), set(8, 9), part(10, 11), part(10, 11), wait(12, 13)), wrong: 1},
		{name: "the parts of the next round", holds: append(three, wait(4, 7), set(8, 9), part(10, 11), part(10, 11), part(10, 12), wait(11, 13))},
		{name: "a wait from the round before to the next one", holds: append(three, wait(4, 9), set(8, 9))},
		{name: "a copy that comes late", holds: []hold{set(1, 2), part(3, 4), part(3, 5), unsure(part(3, 6)), wait(4, 7), set(8, 9), part(10, 11), part(10, 11), wait(12, 13)}},
		{name: "a copy that comes too late", holds: []hold{set(1, 2), part(3, 4), part(3, 5), unsure(part(3, 6)), wait(4, 7), set(30_000, 30_001), part(30_002, 30_003), part(30_002, 30_003), wait(30_002, 30_004)}, wrong: 1},
		{name: "the round was forgotten", holds: append(three, wait(4, 7), set(20, 21), wait(22, 61)), events: []event{forgets}},
		{name: "nothing was forgotten before", holds: append(three, wait(4, 7), set(20, 21), wait(22, 49)), events: []event{forgets}, wrong: 1},
		{name: "nothing was forgotten since", holds: append(three, wait(4, 7), set(70, 71), wait(72, 73)), events: []event{forgets}, wrong: 1},
		{name: "unknown before it is made", holds: []hold{none(1, 3), set(2, 4)}},
		{name: "unknown after it was made", holds: []hold{set(1, 2), none(3, 4)}, wrong: 1},
		{name: "unknown as it was forgotten", holds: []hold{set(1, 2), none(3, 52)}, events: []event{forgets}},
		{name: "unknown after it was made again", holds: []hold{set(1, 2), set(70, 71), none(72, 73)}, events: []event{forgets}, wrong: 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := past{place: place{Name: "x", Kind: "latch"}, holds: test.holds, events: test.events}
			if found, _ := p.check(); len(found) != test.wrong {
				t.Errorf("%d found, want %d: %v", len(found), test.wrong, found)
			}
		})
	}
}

// The checker of wait groups detects each type of violation.
func TestCheck_waitGroup(t *testing.T) {
	const ms = int64(time.Millisecond)
	call := func(side byte, owner, from, to int64) hold {
		return hold{record: record{Side: side, Owner: owner, Call: from * ms, Granted: to * ms}}
	}
	wait := func(from, to int64) hold { return call(callWait, 0, from, to) }
	named := func(owner, at int64) hold { return call(callNamed, owner, at-1, at) }
	dropped := func(owner, at int64) hold { return call(callDrop, owner, at, at) }
	// done is a member that joined and reported that it is done.
	done := func(owner, from, to int64) hold {
		return hold{record: record{Owner: owner, Call: (from - 1) * ms, Granted: from * ms, Look: to * ms, LookUntil: (to + 1000) * ms, Release: to * ms, Released: (to + 1) * ms, Outcome: outcomeOK}}
	}
	// killed is a member whose process was killed, with its last check at that time.
	killed := func(owner, from, to int64) hold {
		return hold{record: record{Owner: owner, Call: (from - 1) * ms, Granted: from * ms, Look: to * ms, LookUntil: (to + 1000) * ms}}
	}
	with := func(h hold, change func(*hold)) hold { change(&h); return h }
	fails := func(h hold) hold { return with(h, func(h *hold) { h.Flags |= flagFails }) }
	lost := func(h hold) hold {
		return with(h, func(h *hold) { h.Flags |= flagSeenLost; h.Outcome = outcomeExpired; h.LookUntil = h.Release })
	}
	forgets := event{From: 50 * ms, To: 60 * ms, Forgets: true}
	for _, test := range []struct {
		name   string
		holds  []hold
		events []event
		wrong  int
	}{
		{name: "all are done", holds: []hold{done(1, 2, 10), done(2, 3, 12), wait(5, 13)}},
		{name: "one is not", holds: []hold{done(1, 2, 10), done(2, 3, 20), wait(5, 13)}, wrong: 1},
		{name: "there is always one", holds: []hold{done(1, 2, 10), done(2, 9, 20), wait(5, 13)}, wrong: 1},
		{name: "there is a moment without one", holds: []hold{done(1, 2, 10), done(2, 11, 20), wait(5, 13)}},
		{name: "it was not one yet", holds: []hold{done(1, 2, 3), done(2, 5, 20), wait(4, 6)}},
		{name: "nobody has joined", holds: []hold{done(1, 20, 30), wait(5, 13)}, wrong: 1},
		{name: "a member was killed", holds: []hold{killed(1, 2, 10), wait(5, 5000)}, wrong: 1},
		{name: "it was dismissed", holds: []hold{killed(1, 2, 10), named(1, 2000), dropped(1, 2001), wait(5, 5000)}},
		{name: "it was dismissed twice", holds: []hold{killed(1, 2, 10), named(1, 2000), dropped(1, 2001), dropped(1, 2003), wait(2002, 2003)}},
		{name: "it was dismissed later", holds: []hold{killed(1, 2, 10), named(1, 6000), dropped(1, 6001), wait(5, 5000)}, wrong: 1},
		{name: "it was forgotten", holds: []hold{killed(1, 2, 10), wait(5, 5000)}, events: []event{forgets}},
		{name: "another one was forgotten", holds: []hold{killed(1, 62, 63), wait(65, 5000)}, events: []event{forgets}, wrong: 1},
		{name: "a member failed", holds: []hold{fails(done(1, 2, 10)), wait(11, 12)}, wrong: 1},
		{name: "a member came too late", holds: []hold{lost(done(1, 2, 10)), wait(11, 12)}, wrong: 1},
		{name: "a member is lost", holds: []hold{lost(done(1, 2, 10)), named(1, 12), dropped(1, 13), wait(14, 15)}},
		{name: "a member that failed is lost", holds: []hold{fails(done(1, 2, 10)), named(1, 12), dropped(1, 13), wait(14, 15)}},
		{name: "a member that is done was called lost", holds: []hold{done(1, 2, 10), named(1, 12)}, wrong: 1},
		{name: "a member that lives was called lost", holds: []hold{killed(1, 2, 100), named(1, 20)}, wrong: 1},
		{name: "a member that lived was called lost, and again later", holds: []hold{killed(1, 2, 100), named(1, 2000), named(1, 20)}, wrong: 1},
		{name: "a member was called lost while it joined, for longer than a lease", holds: []hold{with(done(1, 2000, 2010), func(h *hold) { h.Call = ms }), named(1, 1999), call(callNamed, 1, 5, 2005)}},
		{name: "a member was called lost while it joined, for less than a lease", holds: []hold{with(done(1, 1000, 2010), func(h *hold) { h.Call = ms }), named(1, 999)}, wrong: 1},
		{name: "a member was called lost after it joined, for longer than a lease", holds: []hold{with(done(1, 2000, 2010), func(h *hold) { h.Call = ms }), named(1, 2005)}, wrong: 1},
		{name: "a member that lives was forgotten", holds: []hold{killed(1, 2, 100), named(1, 70)}, events: []event{forgets}},
		{name: "a member that lives has gone", holds: []hold{with(done(1, 2, 10), func(h *hold) { h.Outcome = outcomeGone })}, wrong: 1},
		{name: "unknown before one joins", holds: []hold{call(callNone, 0, 1, 5), done(1, 3, 4)}},
		{name: "unknown after one joined", holds: []hold{done(1, 2, 10), call(callNone, 0, 5, 6)}, wrong: 1},
		{name: "unknown as all were dismissed", holds: []hold{killed(1, 2, 3), named(1, 2000), dropped(1, 2001), call(callNone, 0, 2005, 2006)}},
		{name: "unknown as it was forgotten", holds: []hold{done(1, 2, 10), call(callNone, 0, 5, 55)}, events: []event{forgets}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := past{place: place{Name: "x", Kind: "waitgroup"}, holds: test.holds, events: test.events}
			if found, _ := p.check(); len(found) != test.wrong {
				t.Errorf("%d found, want %d: %v", len(found), test.wrong, found)
			}
		})
	}
}

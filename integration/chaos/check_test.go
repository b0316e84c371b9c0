//go:build linux

package chaos_test

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/integration/internal/history"
)

// hold is a record, with information about its process.
type hold struct {
	record
	Process string // "go0.1": the second process in the first one's place
	End     int64  // the hold was certainly considered valid until then
}

// ends returns until when the holder considered the hold valid. A killed process did so until it was killed, but no
// longer than Until.
func (r record) ends(killed int64) int64 {
	if killed != 0 && r.Release == 0 && r.Flags&flagSeenLost == 0 {
		return max(r.Look, min(killed, max(r.Until, r.LookUntil)))
	}
	return r.Look
}

// lease returns how long the server keeps the last lease.
func (h hold) lease() time.Duration {
	if h.Flags&flagFixed != 0 {
		return longest
	}
	return lease
}

// event is something that happened in a round.
type event struct {
	From, To int64
	What     string
	Place    string `json:",omitempty"` // the lock that it affects; all if empty
	Forgets  bool   `json:",omitempty"` // earlier holds can be lost by the server
	Takes    bool   `json:",omitempty"` // earlier holds can be lost, but not granted to another owner in the meantime
	Falls    bool   `json:",omitempty"` // tokens without a token counter can decrease
	Lost     bool   `json:",omitempty"` // tokens with a token counter can decrease as well
	Others   bool   `json:",omitempty"` // it affects a lock that several calls acquire together with this one
}

// wrong is a finding of the checker.
type wrong struct {
	What  string
	Place string
	At    int64
	Holds []hold
}

func (w wrong) String() string {
	text := fmt.Sprintf("%s: %s", w.Place, w.What)
	for _, h := range w.Holds {
		if call := calls[h.Side]; call != "" {
			text += fmt.Sprintf("\n    %s: %s from %d to %d, owner %d, part %d", h.Process, call, h.Call-w.At, h.Granted-w.At, h.Owner, h.Token)
			continue
		}
		text += fmt.Sprintf("\n    %s/%d: asked %d, granted %d, believed until %d, unlocked %d, token %d, owner %d, outcome %d",
			h.Process, h.Goroutine, h.Call-w.At, h.Granted-w.At, h.End-w.At, h.Release-w.At, h.Token, h.Owner, h.Outcome)
	}
	return text
}

// past is the history of one place.
type past struct {
	place  place
	holds  []hold  // reentries excluded
	events []event // events that affect the place
	calm   bool
}

// tally is the checker's statistics.
type tally struct {
	Overlaps int           // explained by a fault
	Longest  time.Duration // how long two owners acted as holders after such a fault, at most
	Lost     int           // holds that ended before their Unlock
	Behind   time.Duration // the longest time from the fault until the last lost hold ended
}

// most is the maximum number of reported findings of one sort.
const most = 5

// check searches for violations.
func (p *past) check() (found []wrong, sum tally) {
	slices.SortFunc(p.holds, func(a, b hold) int { return cmp.Compare(a.Granted, b.Granted) })
	switch p.place.Kind {
	case "latch":
		return p.latch(), sum
	case "waitgroup":
		return p.waitGroup()
	}
	start := p.tenures()
	found = append(found, p.overlaps(start, &sum)...)
	found = append(found, p.tokens()...)
	found = append(found, p.taken(start, &sum)...)
	if p.calm && p.place.Kind == "fair" {
		found = append(found, p.order()...)
	}
	return found, sum
}

// acquisition is what the holds of one grant have in common.
type acquisition struct {
	process string
	owner   int64
}

// tenures returns when the first request of each acquisition was sent. The server's state of an acquisition is never
// older.
func (p *past) tenures() map[acquisition]int64 {
	start := make(map[acquisition]int64, len(p.holds))
	for _, h := range p.holds {
		t := acquisition{h.Process, h.Owner}
		if at, ok := start[t]; !ok || h.Call < at {
			start[t] = h.Call
		}
	}
	return start
}

// excused reports whether a fault explains that h was lost, or that lost holds were still considered valid, at the
// given time: the acquisition began before the end of the fault, and no lease has passed since.
func (p *past) excused(h hold, start map[acquisition]int64, at int64) (by event, ok bool) {
	for _, e := range p.events {
		if e.Forgets && at >= e.From && at <= e.To+int64(h.lease()) && start[acquisition{h.Process, h.Owner}] <= e.To {
			return e, true
		}
	}
	return event{}, false
}

// excludes reports whether a and b may not be valid at once.
func (p *past) excludes(a, b hold) bool {
	switch p.place.Kind {
	case "rw":
		return a.Side == 'w' || b.Side == 'w'
	case "semaphore":
		return false // semaphores are counted instead
	}
	return true
}

// overlaps searches for holds that were valid at once. p.holds are sorted by their grants.
func (p *past) overlaps(start map[acquisition]int64, sum *tally) (found []wrong) {
	var live []hold
	for _, h := range p.holds {
		if h.End < h.Granted {
			continue // no check found it valid
		}
		live = slices.DeleteFunc(live, func(l hold) bool { return l.End <= h.Granted })
		used, before := int(h.Permits), []hold(nil)
		for _, l := range live {
			used += int(l.Permits)
			before = append(before, l)
			if !p.excludes(l, h) {
				continue
			}
			e, ok := p.excused(l, start, h.Granted)
			if !ok {
				e, ok = p.excused(h, start, h.Granted)
			}
			if ok {
				sum.Overlaps++
				both := time.Duration(min(l.End, h.End) - h.Granted)
				sum.Longest = max(sum.Longest, both)
				sum.Behind = max(sum.Behind, time.Duration(min(l.End, h.End)-e.From))
			} else if len(found) < most {
				found = append(found, wrong{"two held it at once", p.place.Name, h.Granted, []hold{l, h}})
			}
		}
		if p.place.Kind == "semaphore" && used > permits {
			forgotten := slices.ContainsFunc(append(before, h), func(l hold) bool { _, ok := p.excused(l, start, h.Granted); return ok })
			if forgotten {
				sum.Overlaps++
			} else if len(found) < most {
				found = append(found, wrong{fmt.Sprintf("%d of %d permits were held at once", used, permits), p.place.Name, h.Granted, append(before, h)})
			}
		}
		live = append(live, h)
	}
	return found
}

// falls returns the periods in which the tokens of the place can decrease. Holds of earlier acquisitions remain
// possible for another lease. An earlier holder whose lease is renewed may hand off its lock, with the next token, at
// any time.
func (p *past) falls() (all []event) {
	for _, e := range p.events {
		if !e.Lost && (!e.Falls || p.place.Fenced) {
			continue
		}
		to, latest := e.To+int64(longest), uint64(0)
		for _, h := range p.holds { // sorted by grant
			if h.Token == 0 || h.Side == 'r' {
				continue
			}
			if h.Granted > e.To {
				if h.Token != latest+1 {
					break
				}
				to = max(to, h.Granted)
			}
			latest = h.Token
		}
		all = append(all, event{From: e.From, To: to})
	}
	return all
}

// tokens searches for a token that is not larger than the token of a hold granted before its request.
func (p *past) tokens() (found []wrong) {
	var all []hold // sorted by grant
	for _, h := range p.holds {
		if h.Token != 0 && h.Side != 'r' {
			all = append(all, h)
		}
	}
	byCall := slices.Clone(all)
	slices.SortFunc(byCall, func(a, b hold) int { return cmp.Compare(a.Call, b.Call) })
	falls := p.falls()
	// floor is the end of the last period before h in which tokens could decrease.
	floor := func(h hold) (at int64) {
		for _, f := range falls {
			if h.Granted >= f.From {
				at = max(at, f.To)
			}
		}
		return at
	}
	floors := []int64{0}
	for _, f := range falls {
		floors = append(floors, f.To)
	}
	slices.Sort(floors)
	for _, since := range slices.Compact(floors) {
		var largest hold // of the holds granted after since and before the call of h
		next := 0
		for _, h := range byCall {
			for ; next < len(all) && all[next].Granted < h.Call; next++ {
				if all[next].Granted > since && all[next].Token > largest.Token {
					largest = all[next]
				}
			}
			if h.Token <= largest.Token && floor(h) == since && len(found) < most {
				found = append(found, wrong{"the token of a later holder is not larger", p.place.Name, h.Granted, []hold{largest, h}})
			}
		}
	}
	return found
}

// taken searches for holds that were lost before their lease expired, without a fault that removed the lock.
func (p *past) taken(start map[acquisition]int64, sum *tally) (found []wrong) {
	for _, h := range p.holds {
		if h.Outcome == outcomeExpired || h.Outcome == outcomeGone {
			sum.Lost++
		}
		if h.Flags&flagLate != 0 && len(found) < most {
			found = append(found, wrong{"it was believed after the end of its promise", p.place.Name, h.Look, []hold{h}})
		}
		if h.Outcome != outcomeGone || h.Released >= h.LookUntil {
			continue // the server replied after the lease had expired
		}
		// The hold can have been lost long before its holder is notified.
		explained := slices.ContainsFunc(p.events, func(e event) bool {
			return (e.Forgets || e.Takes || e.Others && h.Flags&flagMulti != 0) && start[acquisition{h.Process, h.Owner}] <= e.To && h.Released >= e.From && h.Granted <= e.To+int64(longest)
		})
		if !explained && len(found) < most {
			found = append(found, wrong{"the server did not have it any more, while its lease lasted", p.place.Name, h.Release, []hold{h}})
		}
	}
	return found
}

// order searches for a hold that was granted before another one whose caller had been refused before the first one's
// request.
func (p *past) order() (found []wrong) {
	byToken := slices.DeleteFunc(slices.Clone(p.holds), func(h hold) bool { return h.Token == 0 }) // Redisson's
	slices.SortFunc(byToken, func(a, b hold) int { return cmp.Compare(b.Token, a.Token) })         // the latest first
	var first hold                                                                                 // of all that were granted later
	for _, h := range byToken {
		if first.Queued != 0 && first.Queued < h.Call && len(found) < most {
			found = append(found, wrong{"it was granted before one that came earlier", p.place.Name, h.Granted, []hold{h, first}})
		}
		if h.Queued != 0 && h.Flags&flagTry == 0 && (first.Queued == 0 || h.Queued < first.Queued) {
			first = h
		}
	}
	return found
}

// mostForPorcupine is the maximum number of holds of a place that Porcupine checks; its memory grows quadratically.
const mostForPorcupine = 4000

// porcupine makes Porcupine search for a legal order, if the history is not too long, and no fault can excuse a
// violation. It reports whether it did.
func (p *past) porcupine(file string) (did bool, err error) {
	forgets := slices.ContainsFunc(p.events, func(e event) bool { return e.Forgets || e.Falls })
	single := p.place.Kind == "plain" || p.place.Kind == "fair" || p.place.Kind == "rw" && !p.place.Fenced
	if forgets || !single || len(p.holds) == 0 || len(p.holds) > mostForPorcupine || slices.ContainsFunc(p.holds, func(h hold) bool { return h.Token == 0 && h.Side != 'r' }) {
		return false, nil
	}
	var ops []history.Op
	for i, h := range p.holds {
		if h.End < h.Granted {
			continue // no process considered it valid
		}
		o := history.Op{
			Kind: history.Acquire, Goroutine: i, Call: h.Call, Queued: h.Queued, Return: h.Granted, OK: true,
			Owner: fmt.Sprintf("%s:%d/%d", h.Process, h.Owner, h.One), Token: h.Token, Until: h.End,
		}
		if h.Side == 'r' {
			o.Side = history.Read
		} else if h.Side == 'w' {
			o.Side = history.Write
		}
		ops = append(ops, o)
		if h.Outcome == outcomeOK && h.Release <= h.End+int64(time.Millisecond) && h.Flags&flagSeenLost == 0 {
			o.Kind, o.Call, o.Return, o.Until, o.Queued = history.Release, h.Release, h.Released, 0, 0
			ops = append(ops, o)
		}
	}
	if p.place.Kind == "rw" {
		_, err = history.Check(history.RWClaims{}, ops)
		if err != nil {
			_ = history.Draw(history.RWClaims{}, ops, file) // the error is reported anyway
		}
		return true, err
	}
	_, err = history.Check(history.Claims{}, ops)
	if err != nil {
		_ = history.Draw(history.Claims{}, ops, file)
	}
	return true, err
}

// The checker detects each type of violation. Each history was written by hand.
func TestCheck(t *testing.T) {
	const ms = int64(time.Millisecond)
	// one is a hold of a process that was requested, granted, last considered valid and unlocked at these milliseconds.
	one := func(process string, call, granted, end int64, token uint64) hold {
		return hold{Process: process, End: end * ms, record: record{
			Call: call * ms, Granted: granted * ms, Look: end * ms, LookUntil: (end + 1000) * ms, Release: end * ms, Released: (end + 1) * ms,
			Token: token, Owner: int64(token), Permits: 1, Outcome: outcomeOK,
		}}
	}
	with := func(h hold, change func(*hold)) hold { change(&h); return h }
	side := func(h hold, side byte) hold { return with(h, func(h *hold) { h.Side = side }) }
	forced := event{From: 50 * ms, To: 51 * ms, Forgets: true}
	for _, test := range []struct {
		name   string
		kind   string
		calm   bool
		fenced bool
		holds  []hold
		events []event
		wrong  int
	}{
		{name: "one after the other", kind: "plain", holds: []hold{one("a", 1, 2, 10, 5), one("b", 1, 11, 20, 6)}},
		{name: "two at once", kind: "plain", holds: []hold{one("a", 1, 2, 10, 5), one("b", 1, 9, 20, 6)}, wrong: 1},
		{name: "two at once, of which the first never looked again", kind: "plain", holds: []hold{one("a", 1, 2, 2, 5), one("b", 1, 9, 20, 6)}},
		{name: "a long one over several", kind: "plain", holds: []hold{one("a", 1, 2, 30, 5), one("b", 1, 9, 10, 6), one("c", 1, 12, 13, 7)}, wrong: 2},
		{name: "two at once, as one was unlocked by force", kind: "plain", holds: []hold{one("a", 1, 2, 100, 5), one("b", 1, 52, 60, 6)}, events: []event{forced}},
		{name: "two at once, both after the force", kind: "plain", holds: []hold{one("a", 55, 60, 100, 5), one("b", 60, 70, 80, 6)}, events: []event{forced}, wrong: 1},
		{name: "two at once, a lease after the force", kind: "plain", holds: []hold{one("a", 1, 2, 9000, 5), one("b", 1, 8000, 8001, 6)}, events: []event{forced}, wrong: 1},
		{name: "two at once before the force", kind: "plain", holds: []hold{one("a", 1, 2, 100, 5), one("b", 1, 40, 60, 6)}, events: []event{forced}, wrong: 1},
		{name: "readers", kind: "rw", holds: []hold{side(one("a", 1, 2, 10, 0), 'r'), side(one("b", 1, 9, 20, 0), 'r')}},
		{name: "a reader and a writer", kind: "rw", holds: []hold{side(one("a", 1, 2, 10, 0), 'r'), side(one("b", 1, 9, 20, 1), 'w')}, wrong: 1},
		{name: "a writer and a reader", kind: "rw", holds: []hold{side(one("a", 1, 2, 10, 1), 'w'), side(one("b", 1, 9, 20, 0), 'r')}, wrong: 1},
		{name: "all permits", kind: "semaphore", holds: []hold{one("a", 1, 2, 10, 0), one("b", 1, 3, 10, 0), one("c", 1, 4, 10, 0)}},
		{name: "one too many", kind: "semaphore", holds: []hold{one("a", 1, 2, 10, 0), one("b", 1, 3, 10, 0), one("c", 1, 4, 10, 0), one("d", 1, 5, 6, 0)}, wrong: 1},
		{name: "a token that falls", kind: "plain", holds: []hold{one("a", 1, 2, 3, 6), one("b", 5, 6, 7, 5)}, wrong: 1},
		{name: "a token given twice", kind: "plain", holds: []hold{one("a", 1, 2, 3, 6), one("b", 5, 6, 7, 6)}, wrong: 1},
		{name: "a token that falls while both ask", kind: "plain", holds: []hold{one("a", 1, 2, 3, 6), one("b", 1, 6, 7, 5)}},
		{name: "a token that falls with the clock", kind: "plain", holds: []hold{one("a", 1, 2, 3, 6), one("b", 55, 56, 57, 5)}, events: []event{{From: 40 * ms, To: 41 * ms, Falls: true}}},
		{name: "a token of a register that falls with the clock", kind: "plain", fenced: true, holds: []hold{one("a", 1, 2, 3, 6), one("b", 55, 56, 57, 5)}, events: []event{{From: 40 * ms, To: 41 * ms, Falls: true}}, wrong: 1},
		{name: "a token that falls long after the clock", kind: "plain", holds: []hold{one("a", 1, 2, 3, 6), one("b", 9000, 9001, 9002, 8), one("c", 9003, 9004, 9005, 7)}, events: []event{{From: 40 * ms, To: 41 * ms, Falls: true}}, wrong: 1},
		{name: "a token from before, handed on long after the clock fell", kind: "plain", holds: []hold{one("a", 1, 2, 3, 6), one("b", 4, 9000, 9001, 7), one("c", 9002, 9003, 9004, 5)}, events: []event{{From: 40 * ms, To: 41 * ms, Falls: true}}},
		{name: "believed for too long", kind: "plain", holds: []hold{with(one("a", 1, 2, 3, 6), func(h *hold) { h.Flags |= flagLate })}, wrong: 1},
		{name: "gone", kind: "plain", holds: []hold{with(one("a", 1, 2, 3, 6), func(h *hold) { h.Outcome = outcomeGone })}, wrong: 1},
		{name: "gone by force", kind: "plain", holds: []hold{with(one("a", 1, 2, 53, 6), func(h *hold) { h.Outcome = outcomeGone })}, events: []event{forced}},
		{name: "gone with another of several", kind: "plain", holds: []hold{with(one("a", 1, 2, 53, 6), func(h *hold) { h.Outcome, h.Flags = outcomeGone, flagMulti })}, events: []event{{From: 50 * ms, To: 51 * ms, Others: true}}},
		{name: "gone beside several", kind: "plain", holds: []hold{with(one("a", 1, 2, 53, 6), func(h *hold) { h.Outcome = outcomeGone })}, events: []event{{From: 50 * ms, To: 51 * ms, Others: true}}, wrong: 1},
		{name: "two at once, as another of several was unlocked by force", kind: "plain", holds: []hold{with(one("a", 1, 2, 100, 5), func(h *hold) { h.Flags = flagMulti }), one("b", 1, 52, 60, 6)}, events: []event{{From: 50 * ms, To: 51 * ms, Others: true}}, wrong: 1},
		{name: "gone with a majority", kind: "quorum", holds: []hold{with(one("a", 1, 2, 53, 6), func(h *hold) { h.Outcome = outcomeGone })}, events: []event{{From: 50 * ms, To: 51 * ms, Takes: true}}},
		{name: "two at once, of a quorum that restarted", kind: "quorum", holds: []hold{one("a", 1, 2, 100, 5), one("b", 1, 52, 60, 6)}, events: []event{{From: 50 * ms, To: 51 * ms, Takes: true}}, wrong: 1},
		{name: "gone by an Unlock that came after its lease", kind: "plain", holds: []hold{with(one("a", 1, 2, 3, 6), func(h *hold) { h.Outcome, h.Released = outcomeGone, 1100*ms })}},
		{name: "gone after its lease", kind: "plain", holds: []hold{with(one("a", 1, 2, 3, 6), func(h *hold) { h.Outcome, h.LookUntil = outcomeGone, 3*ms })}},
		{name: "overtaken", kind: "fair", calm: true, holds: []hold{with(one("a", 1, 20, 30, 8), func(h *hold) { h.Queued = 2 * ms }), one("b", 3, 10, 12, 7)}, wrong: 1},
		{name: "in order", kind: "fair", calm: true, holds: []hold{with(one("a", 1, 4, 5, 7), func(h *hold) { h.Queued = 2 * ms }), one("b", 3, 10, 12, 8)}},
		{name: "overtaken, but not for certain", kind: "fair", calm: true, holds: []hold{with(one("a", 1, 20, 30, 8), func(h *hold) { h.Queued = 4 * ms }), one("b", 3, 10, 12, 7)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := past{place: place{Name: "x", Kind: test.kind, Fenced: test.fenced}, holds: test.holds, events: test.events, calm: test.calm}
			if found, _ := p.check(); len(found) != test.wrong {
				t.Errorf("%d found, want %d: %v", len(found), test.wrong, found)
			}
		})
	}
}

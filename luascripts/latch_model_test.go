package luascripts_test

import (
	"fmt"
	"testing"
	"time"

	keynames "github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
	"pgregory.net/rapid"
)

// latchModel is the expected state of a latch.
type latchModel struct {
	left, round int64
	open, gone  bool            // how the round ended
	parts       map[string]bool // the parts counted in this round
	last        string          // the call or the part with which the count last reached 0
}

// set, down and remove model the calls, and return how much a call did.
func (l *latchModel) set(n int64) int64 {
	if l.left > 0 {
		return 0
	}
	*l = latchModel{left: n, round: l.round + 1, parts: make(map[string]bool), last: l.last}
	return 1
}

func (l *latchModel) down(id, part string, n int64) int64 {
	if part != "" {
		n = 1
		if l.parts[part] {
			return 1
		}
	}
	if l.left == 0 {
		return 0
	}
	did := min(n, l.left)
	l.left -= did
	if l.open = l.left == 0; l.open {
		l.last = l.record(id, part)
	}
	if part != "" {
		l.parts[part] = true
	}
	return did
}

// record returns under which name a call counts.
func (l *latchModel) record(id, part string) string {
	if part == "" {
		return id
	}
	return fmt.Sprint(l.round, ":", part)
}

func (l *latchModel) remove() int64 {
	if l.round == 0 || l.gone {
		return 0
	}
	l.left, l.gone = 0, true
	return 1
}

// However delayed the copies of a call are, it counts once, according to the reply to its first copy that arrived, or to
// its repetition.
func TestLatch_model(t *testing.T) {
	m := redistest.NewMini(t)
	rdb := m.Client(t)
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	rapid.Check(t, func(rt *rapid.T) {
		do(t, rdb, "FLUSHALL")
		k := keynames.Latch("done")
		l := &latchModel{}
		var late []func(rt *rapid.T) // repetitions, and first copies that arrive after the repetition
		sent := 0
		is := func(rt *rapid.T, what string, s luascripts.LatchState, v luascripts.Verdict, err error, did int64, call luascripts.LatchCall) {
			left, open := l.left, l.open && !l.gone
			if did > 0 && call.Count > 0 { // a call that counted receives 0 only if it reached 0, whatever others did since
				left, open = max(left, 1), s.IsOpen()
				if l.last == l.record(call.ID, call.Part) {
					left = 0
				}
			}
			if err != nil || v != luascripts.Done || s.Did != did || s.Left != left || s.IsOpen() != open {
				rt.Fatalf("%s: %+v, %d, %v; want %v of %+v", what, s, v, err, did, l)
			}
		}
		type script func(luascripts.LatchCall) (luascripts.LatchState, luascripts.Verdict, error)
		// calls sends the copies of a call, one of which may arrive later.
		calls := func(rt *rapid.T, what string, call luascripts.LatchCall, f script, effect func(id string) int64) {
			sent++
			call.ID, call.Keep, call.Stay = fmt.Sprint("call ", sent), time.Hour, time.Hour
			send := func(rt *rapid.T, what string, again bool, did int64) {
				c := call
				c.Again = again
				s, v, err := f(c)
				is(rt, what, s, v, err, did, call)
			}
			was := fmt.Sprint(*l)
			did := effect(call.ID)
			switch copies := rapid.SampledFrom([]string{"one", "lost", "late"}).Draw(rt, "copies"); copies {
			case "one":
				send(rt, what, false, did)
			case "lost": // the first reply is lost, and the repetition arrives later
				send(rt, what, false, did)
				changed := fmt.Sprint(*l) != was
				late = append(late, func(rt *rapid.T) {
					if !changed {
						did = effect(call.ID)
					}
					send(rt, what+", once more", true, did)
				})
			case "late":
				send(rt, what+", repeated", true, did)
				late = append(late, func(rt *rapid.T) {
					c := call
					s, v, err := f(c)
					is(rt, "a late copy of "+what, s, v, err, s.Did, call)
				})
			}
		}
		m.SetTime(now)
		rt.Repeat(map[string]func(*rapid.T){
			"set": func(rt *rapid.T) {
				count := rapid.Int64Range(1, 3).Draw(rt, "count")
				calls(rt, "set", luascripts.LatchCall{}, func(c luascripts.LatchCall) (luascripts.LatchState, luascripts.Verdict, error) {
					return luascripts.InitLatch(t.Context(), rdb, k, count, c)
				}, func(string) int64 { return l.set(count) })
			},
			"down": func(rt *rapid.T) {
				part := rapid.SampledFrom([]string{"", "a", "b"}).Draw(rt, "part")
				n := rapid.Int64Range(1, 4).Draw(rt, "n")
				calls(rt, fmt.Sprint("down ", part, n), luascripts.LatchCall{Part: part, Count: n}, func(c luascripts.LatchCall) (luascripts.LatchState, luascripts.Verdict, error) {
					return luascripts.CountDownLatch(t.Context(), rdb, k, c)
				}, func(id string) int64 { return l.down(id, part, n) })
			},
			"delete": func(rt *rapid.T) {
				calls(rt, "delete", luascripts.LatchCall{}, func(c luascripts.LatchCall) (luascripts.LatchState, luascripts.Verdict, error) {
					return luascripts.DeleteLatch(t.Context(), rdb, k, c)
				}, func(string) int64 { return l.remove() })
			},
			"a late copy comes": func(rt *rapid.T) {
				if len(late) == 0 {
					rt.Skip("none is late")
				}
				i := rapid.IntRange(0, len(late)-1).Draw(rt, "which")
				late[i](rt)
				late = append(late[:i], late[i+1:]...)
			},
			"time goes by": func(rt *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(1, 1000).Draw(rt, "ms")) * time.Millisecond)
				m.SetTime(now)
			},
			"": func(rt *rapid.T) {
				s, v, err := luascripts.LatchStatus(t.Context(), rdb, k, time.Hour)
				is(rt, "a look", s, v, err, 0, luascripts.LatchCall{})
			},
		})
	})
}

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

// latchModel is what the model knows of a latch.
type latchModel struct {
	left, round int64
	open, gone  bool            // how the round ended
	parts       map[string]bool // those that count in this round
}

// set, down and remove do what a call does, and report whether it did anything.
func (l *latchModel) set(n int64) bool {
	if l.left > 0 {
		return false
	}
	*l = latchModel{left: n, round: l.round + 1, parts: make(map[string]bool)}
	return true
}

func (l *latchModel) down(part string) bool {
	switch {
	case part != "" && l.parts[part]:
		return true
	case l.left == 0:
		return false
	}
	l.left--
	l.open = l.left == 0
	if part != "" {
		l.parts[part] = true
	}
	return true
}

func (l *latchModel) remove() bool {
	if l.round == 0 || l.gone {
		return false
	}
	l.left, l.gone = 0, true
	return true
}

// Whatever copies of calls come late: each call counts once, as its first copy that came, or its repetition, was answered.
func TestLatch_model(t *testing.T) {
	m := redistest.NewMini(t)
	rdb := m.Client(t)
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	rapid.Check(t, func(rt *rapid.T) {
		do(t, rdb, "FLUSHALL")
		k := keynames.Latch("done")
		l := &latchModel{}
		var late []func(rt *rapid.T) // copies that were sent first, and come later than the repetition
		n := 0
		is := func(rt *rapid.T, what string, s luascripts.LatchState, v luascripts.Verdict, err error, did bool) {
			if err != nil || v != luascripts.Done || s.Did != did || s.Left != l.left || s.IsOpen() != (l.open && !l.gone) {
				rt.Fatalf("%s: %+v, %d, %v; want %v of %+v", what, s, v, err, did, l)
			}
		}
		type script func(luascripts.LatchCall) (luascripts.LatchState, luascripts.Verdict, error)
		// calls sends the copies of a call, of which one may come late.
		calls := func(rt *rapid.T, what string, call luascripts.LatchCall, f script, effect func() bool) {
			n++
			call.ID, call.Keep, call.Stay = fmt.Sprint("call ", n), time.Hour, time.Hour
			send := func(rt *rapid.T, what string, again, did bool) {
				c := call
				c.Again = again
				s, v, err := f(c)
				is(rt, what, s, v, err, did)
			}
			did := effect()
			switch copies := rapid.SampledFrom([]string{"one", "two", "late"}).Draw(rt, "copies"); copies {
			case "one":
				send(rt, what, false, did)
			case "two": // the first answer is lost
				send(rt, what, false, did)
				send(rt, what+", once more", true, did)
			case "late":
				send(rt, what+", repeated", true, did)
				late = append(late, func(rt *rapid.T) {
					c := call
					if s, v, err := f(c); err != nil || v != luascripts.Done || s.Left != l.left || s.IsOpen() != (l.open && !l.gone) {
						rt.Fatalf("a late copy of %q: %+v, %d, %v; want no change of %+v", what, s, v, err, l)
					}
				})
			}
		}
		m.SetTime(now)
		rt.Repeat(map[string]func(*rapid.T){
			"set": func(rt *rapid.T) {
				count := rapid.Int64Range(1, 3).Draw(rt, "count")
				calls(rt, "set", luascripts.LatchCall{}, func(c luascripts.LatchCall) (luascripts.LatchState, luascripts.Verdict, error) {
					return luascripts.InitLatch(t.Context(), rdb, k, count, c)
				}, func() bool { return l.set(count) })
			},
			"down": func(rt *rapid.T) {
				part := rapid.SampledFrom([]string{"", "a", "b"}).Draw(rt, "part")
				calls(rt, "down "+part, luascripts.LatchCall{Part: part}, func(c luascripts.LatchCall) (luascripts.LatchState, luascripts.Verdict, error) {
					return luascripts.CountDownLatch(t.Context(), rdb, k, c)
				}, func() bool { return l.down(part) })
			},
			"delete": func(rt *rapid.T) {
				calls(rt, "delete", luascripts.LatchCall{}, func(c luascripts.LatchCall) (luascripts.LatchState, luascripts.Verdict, error) {
					return luascripts.DeleteLatch(t.Context(), rdb, k, c)
				}, l.remove)
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
				s, v, err := luascripts.LookAtLatch(t.Context(), rdb, k, time.Hour)
				is(rt, "a look", s, v, err, false)
			},
		})
	})
}

package luascripts_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	keynames "github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// What the scripts of windows guard, one thing at a time.

// rated gives a window a rate.
func rated(t *testing.T, rdb rueidis.Client, k luascripts.WindowKeys, rate int64, per time.Duration) {
	t.Helper()
	if r, err := luascripts.InitWindow(t.Context(), rdb, k, rate, per, someday); r.Verdict != luascripts.Done || err != nil {
		t.Fatal(r, err)
	}
}

// taking makes a call for units, with a number for its id.
func taking(t *testing.T, rdb rueidis.Client, k luascripts.WindowKeys, units int64, id int) luascripts.WindowReply {
	t.Helper()
	r, err := luascripts.TakeWindow(t.Context(), rdb, k, units, units, fmt.Sprintf("%016d", id), 0)
	if r.Verdict != luascripts.Done || err != nil {
		t.Fatal(r, err)
	}
	return r
}

// looking looks at a window.
func looking(t *testing.T, rdb rueidis.Client, k luascripts.WindowKeys) luascripts.WindowState {
	t.Helper()
	s, err := luascripts.InspectWindow(t.Context(), rdb, k)
	if s.Verdict != luascripts.Done || err != nil {
		t.Fatal(s, err)
	}
	return s
}

// entered adds entries of one unit each, with numbers for their ids, all of one time in ms.
func entered(t *testing.T, rdb rueidis.Client, k luascripts.WindowKeys, at int64, first, count int) {
	t.Helper()
	for count > 0 {
		words := []string{"ZADD", k.Permits}
		for ; count > 0 && len(words) < 1000; count-- {
			words = append(words, fmt.Sprint(at), fmt.Sprintf("\x10%016d\x01\x00\x00\x00", first))
			first++
		}
		do(t, rdb, words...)
	}
}

// A member of the application that is shorter than an entry, beside entries, counts for nothing.
func TestWindow_shortMember(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := keynames.Window("w")
		rated(t, rdb, k, 10, time.Hour)
		taking(t, rdb, k, 3, 1)
		do(t, rdb, "ZADD", k.Permits, fmt.Sprint(now(t, rdb)+1000), "x")
		do(t, rdb, "DEL", k.Value)
		if s := looking(t, rdb, k); s.Left != 7 {
			t.Errorf("%+v, want 7 left", s)
		}
		if r := taking(t, rdb, k, 7, 2); r.Taken != 7 {
			t.Errorf("%+v, want 7 taken", r)
		}
	})
}

// An entry counts until its interval is over, and no ms longer: for a look, for a taker, and for one that sets another rate.
func TestWindow_endOfTheInterval(t *testing.T) {
	m := redistest.NewMini(t)
	rdb := m.Client(t)
	start := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	for what, left := range map[string]func(k luascripts.WindowKeys) int64{
		"a look":  func(k luascripts.WindowKeys) int64 { return looking(t, rdb, k).Left },
		"a taker": func(k luascripts.WindowKeys) int64 { return taking(t, rdb, k, 0, 2).Remaining },
		"a rate": func(k luascripts.WindowKeys) int64 {
			rated(t, rdb, k, 11, 10*time.Second)
			return taking(t, rdb, k, 0, 2).Remaining - 1
		},
	} {
		for after, want := range map[time.Duration]int64{10*time.Second - time.Millisecond: 7, 10 * time.Second: 10} {
			k := keynames.Window(fmt.Sprint(what, after))
			m.SetTime(start)
			rated(t, rdb, k, 10, 10*time.Second)
			taking(t, rdb, k, 3, 1)
			m.SetTime(start.Add(after))
			if n := left(k); n != want {
				t.Errorf("%s, %v after 3 of 10 were taken: %d are left, want %d", what, after, n, want)
			}
		}
	}
}

// The keys of a window live as long as Redisson has them live, whatever a caller does.
func TestWindow_life(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		for _, alive := range []time.Duration{0, time.Hour} {
			for what, call := range map[string]func(k luascripts.WindowKeys){
				"a taker":                 func(k luascripts.WindowKeys) { taking(t, rdb, k, 1, 3) },
				"a taker that is refused": func(k luascripts.WindowKeys) { taking(t, rdb, k, 9, 3) },
				"a refund": func(k luascripts.WindowKeys) {
					v, err := luascripts.RefundWindow(t.Context(), rdb, k, 3, fmt.Sprintf("%016d", 1))
					check(t, "a refund", v, luascripts.Done, err)
				},
				"a rate": func(k luascripts.WindowKeys) { rated(t, rdb, k, 12, time.Hour) },
			} {
				k := keynames.Window(fmt.Sprint(what, alive))
				config := time.Hour // what is left of its life
				do(t, rdb, "HSET", k.Config, "rate", "10", "interval", "3600000", "type", "0", "keepAliveTime", fmt.Sprint(alive.Milliseconds()))
				taking(t, rdb, k, 3, 1)
				if alive > 0 {
					config = time.Minute
				}
				do(t, rdb, "PEXPIRE", k.Config, fmt.Sprint(config.Milliseconds()))
				call(k)
				keys := []string{k.Config, k.Value}
				if what != "a refund" { // there is no entry any more
					keys = append(keys, k.Permits)
				}
				for _, key := range keys {
					about(t, fmt.Sprintf("%s with %v: %s", what, alive, key), pttl(t, rdb, key), time.Hour)
				}
				if kept := list(t, rdb, "HMGET", k.Config, "keepAliveTime")[0]; kept != fmt.Sprint(alive.Milliseconds()) {
					t.Errorf("%s with %v: the keepAliveTime is %s", what, alive, kept)
				}
			}
		}
	})
}

// A caller that only asks removes entries that are over, and changes the life of no key; a value that was lost lives as long as the entries.
func TestWindow_lifeOfTheValue(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		for lost, life := range map[bool]time.Duration{false: time.Hour, true: 2 * time.Hour} {
			k := keynames.Window(fmt.Sprint("w", lost))
			rated(t, rdb, k, 10, 24*time.Hour)
			entered(t, rdb, k, 1000, 1, 2) // long over
			entered(t, rdb, k, now(t, rdb), 3, 1)
			do(t, rdb, "PEXPIRE", k.Permits, "7200000")
			if !lost {
				do(t, rdb, "SET", k.Value, "7", "PX", "3600000")
			}
			if r := taking(t, rdb, k, 0, 9); r.Remaining != 9 {
				t.Errorf("lost: %v: %+v, want 9 left", lost, r)
			}
			about(t, fmt.Sprintf("lost: %v: the value", lost), pttl(t, rdb, k.Value), life)
			about(t, fmt.Sprintf("lost: %v: the entries", lost), pttl(t, rdb, k.Permits), 2*time.Hour)
		}
	})
}

// A caller that may not read what a window holds is told so, and no key is changed: not even entries that are over are removed.
func TestWindow_deniedToRead(t *testing.T) {
	s := redistest.Start(t)
	admin := s.Client(t)
	k := keynames.Window("w")
	rated(t, admin, k, 10, time.Hour)
	entered(t, admin, k, 1000, 1, 2) // long over
	entered(t, admin, k, now(t, admin), 3, 1)
	for _, value := range []string{"", "7"} { // lost, and there
		if value != "" {
			do(t, admin, "SET", k.Value, value)
		}
		before := contents(t, admin)
		for _, command := range []string{"hmget", "get", "zcard", "zrange"} {
			rdb := denied(t, s, command)
			_, looked := luascripts.InspectWindow(t.Context(), rdb, k)
			_, took := luascripts.TakeWindow(t.Context(), rdb, k, 1, 1, fmt.Sprintf("%016d", 9), 0)
			for what, err := range map[string]error{"a look": looked, "a taker": took} {
				if err == nil || !strings.Contains(err.Error(), "can't run this command") && !strings.Contains(err.Error(), "has no permissions") {
					t.Errorf("%s without %s, value %q: %v", what, command, value, err)
				}
			}
			if after := contents(t, admin); after != before {
				t.Errorf("without %s: %s, was %s", command, after, before)
			}
		}
	}
}

// When a caller may not finish, and may not remove its entry either, what is left is what was left.
func TestWindow_deniedToTakeBack(t *testing.T) {
	s := redistest.Start(t)
	admin := s.Client(t)
	k := keynames.Window("w")
	rated(t, admin, k, 10, time.Hour)
	do(t, admin, "PEXPIRE", k.Config, "3600000")
	taking(t, admin, k, 3, 1)
	rdb := user(t, s, "half", "~*", "&*", "+@all", "-pexpire", "-zrem")
	if r, err := luascripts.TakeWindow(t.Context(), rdb, k, 3, 3, fmt.Sprintf("%016d", 2), 0); err == nil {
		t.Errorf("%+v, want an error", r)
	}
	if r := taking(t, admin, k, 0, 3); r.Remaining != 7 {
		t.Errorf("%+v, want 7 left", r)
	}
}

// A rate that could not be set leaves a window whose value was lost as it was: the next caller counts the entries.
func TestWindow_deniedToSetARate(t *testing.T) {
	s := redistest.Start(t)
	admin := s.Client(t)
	k := keynames.Window("w")
	rated(t, admin, k, 10, time.Hour)
	do(t, admin, "PEXPIRE", k.Config, "3600000")
	taking(t, admin, k, 3, 1)
	do(t, admin, "DEL", k.Value)
	if r, err := luascripts.InitWindow(t.Context(), denied(t, s, "pexpire"), k, 12, time.Hour, someday); err == nil {
		t.Errorf("%+v, want an error", r)
	}
	if r := taking(t, admin, k, 0, 2); r.Remaining != 7 || r.Rate != 10 {
		t.Errorf("%+v, want 7 left of 10", r)
	}
}

// A rate for a shorter interval that could not be set ends the interval of no entry: what was taken still counts, by the rate before.
func TestWindow_deniedToShorten(t *testing.T) {
	s := redistest.Start(t)
	admin := s.Client(t)
	for _, command := range commands("window_init") {
		do(t, admin, "FLUSHALL")
		k := keynames.Window("w")
		rated(t, admin, k, 10, time.Hour)
		do(t, admin, "PEXPIRE", k.Config, "3600000")
		entered(t, admin, k, now(t, admin)-30*time.Minute.Milliseconds(), 1, 10)
		do(t, admin, "SET", k.Value, "0")
		r, err := luascripts.InitWindow(t.Context(), denied(t, s, command), k, 10, 10*time.Minute, someday)
		if took := taking(t, admin, k, 1, 11); err != nil && took.Taken > 0 {
			t.Errorf("without %s: %+v, %v; 11 of 10 were taken", command, r, err)
		}
	}
}

// The copy of a call that takes what is there finds what the call took, behind a thousand entries of others, too.
func TestWindow_copyAmongMany(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := keynames.Window("w")
		rated(t, rdb, k, 3000, time.Hour)
		entered(t, rdb, k, now(t, rdb), 1, 1500)
		for i, ago := range []time.Duration{0, time.Minute} {
			r, err := luascripts.TakeWindow(t.Context(), rdb, k, 2000, 1, fmt.Sprintf("%016d", 9999), ago)
			if err != nil || r.Taken != 1500 || r.Remaining != 0 {
				t.Errorf("copy %d: %+v, %v, want 1,500 taken", i, r, err)
			}
		}
	})
}

// When a rate for a shorter interval ends the intervals of entries, their units come back once.
func TestWindow_shorterInterval(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := keynames.Window("w")
		rated(t, rdb, k, 3000, time.Hour)
		at := now(t, rdb)
		entered(t, rdb, k, at-30*time.Minute.Milliseconds(), 1, 500)
		entered(t, rdb, k, at, 501, 1500)
		rated(t, rdb, k, 3000, 10*time.Minute)
		if s := looking(t, rdb, k); s.Left != 1500 {
			t.Errorf("%+v, want 1,500 left", s)
		}
		if r := taking(t, rdb, k, 1501, 9999); r.Taken != 0 || r.Remaining != 1500 {
			t.Errorf("%+v, want none taken and 1,500 left", r)
		}
	})
}

// What a look says is left is what a caller gets that asks again until no entry is over any more: also where more entries are over than a call removes, and
// Redisson has given units back.
func TestWindow_inspectWhatIsOver(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		for _, over := range []int{500, 1000, 1500, 2000, 2500} {
			for _, released := range []int{0, 15, 1005} {
				k := keynames.Window(fmt.Sprint("w", over, released))
				rated(t, rdb, k, 5000, time.Hour)
				entered(t, rdb, k, 1000, 1, over)
				entered(t, rdb, k, now(t, rdb), over+1, 10)
				do(t, rdb, "SET", k.Value, fmt.Sprint(5000-over-10+released))
				left := looking(t, rdb, k).Left
				for _, more := range []int64{1, 0} {
					r := taking(t, rdb, k, left+more, 9999)
					for r.Taken == 0 && r.Retry == 0 {
						r = taking(t, rdb, k, left+more, 9999)
					}
					if (r.Taken == 0) != (more > 0) {
						t.Errorf("%d are over, %d were given back, a look says %d: a caller for %d gets %+v", over, released, left, left+more, r)
					}
				}
			}
		}
	})
}

// A refusal counts the units that Redisson gave back without their entry.
func TestWindow_refusedAfterARelease(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := keynames.Window("w")
		rated(t, rdb, k, 10, time.Hour)
		taking(t, rdb, k, 10, 1)
		do(t, rdb, "INCRBY", k.Value, "5")
		if r := taking(t, rdb, k, 6, 2); r.Taken != 0 || r.Remaining != 5 {
			t.Errorf("%+v, want none taken and 5 left", r)
		}
	})
}

// No unit counts as taken when the interval of the latest entry is over, also of an entry of a client whose clock is ahead.
func TestWindow_reset(t *testing.T) {
	m := redistest.NewMini(t)
	rdb := m.Client(t)
	start := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	m.SetTime(start)
	k := keynames.Window("w")
	rated(t, rdb, k, 10, 10*time.Second)
	if s := looking(t, rdb, k); s.Reset != 0 {
		t.Errorf("untouched: %+v", s)
	}
	if r, s := taking(t, rdb, k, 3, 1), looking(t, rdb, k); r.Reset != 10*time.Second || s.Reset != r.Reset {
		t.Errorf("%+v, %+v, want 10 s", r, s)
	}
	entered(t, rdb, k, start.Add(4*time.Second).UnixMilli(), 2, 1)
	if r, s := taking(t, rdb, k, 1, 3), looking(t, rdb, k); r.Reset != 14*time.Second || s.Reset != r.Reset {
		t.Errorf("a clock ahead: %+v, %+v, want 14 s", r, s)
	}
}

// A look says whether callers have taken units, also where the value or the entries are lost.
func TestWindow_used(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := keynames.Window("w")
		rated(t, rdb, k, 10, time.Hour)
		for what, lost := range map[string]string{"all is there": "none", "the value is lost": k.Value, "the entries are lost": k.Permits} {
			do(t, rdb, "DEL", k.Value, k.Permits)
			if s := looking(t, rdb, k); s.Used {
				t.Errorf("untouched: %+v", s)
			}
			taking(t, rdb, k, 3, 1)
			do(t, rdb, "DEL", lost)
			if s := looking(t, rdb, k); !s.Used {
				t.Errorf("%s: %+v", what, s)
			}
		}
	})
}

package luascripts_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	keynames "github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// The reported remaining permits are what a caller can take, even after a client of Redisson has miscounted. Reading changes
// nothing.
func TestWindow_inspect(t *testing.T) {
	m := redistest.NewMini(t)
	rdb := m.Client(t)
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	random := rand.New(rand.NewPCG(1, 2))
	rounds := 30
	if testing.Short() {
		rounds = 10
	}
	for round := range rounds {
		k := keynames.Window(fmt.Sprint("w", round))
		const per = 10 * time.Second
		rate := int64(1 + random.IntN(20))
		m.SetTime(now)
		rated(t, rdb, k, rate, per)
		if s, err := luascripts.InspectWindow(t.Context(), rdb, k); err != nil || s != (luascripts.WindowState{Verdict: luascripts.Done, Left: rate, Rate: rate, Per: per}) {
			t.Fatalf("untouched: %+v, %v", s, err)
		}
		for call := range 40 {
			now = now.Add(time.Duration(random.IntN(2500)) * time.Millisecond)
			m.SetTime(now)
			switch random.IntN(12) {
			case 0: // a reply was lost, and the call counted twice
				do(t, rdb, "DECRBY", k.Value, "2")
			case 2:
				do(t, rdb, "DEL", k.Value)
			case 1: // permits were returned without their entries
				do(t, rdb, "INCRBY", k.Value, "3")
			}
			before := contents(t, rdb)
			s, err := luascripts.InspectWindow(t.Context(), rdb, k)
			if after := contents(t, rdb); err != nil || before != after {
				t.Fatalf("a look changed the keys: %v\n%s\n%s", err, before, after)
			}
			take := func(units int64) luascripts.WindowReply {
				r, err := luascripts.TakeWindow(t.Context(), rdb, k, units, units, fmt.Sprintf("%016d", 100*round+call), 0)
				if err != nil {
					t.Fatal(err)
				}
				return r
			}
			if r := take(s.Left + 1); r.Taken != 0 || s.Left == 0 && r.Retry != s.Next || s.Left > 0 && s.Next != 0 || r.Reset != s.Reset {
				t.Fatalf("round %d, call %d: a look says %+v, a caller for one more gets %+v", round, call, s, r)
			}
			if n := min(s.Left, 1+random.Int64N(rate)); n > 0 {
				if r := take(n); r.Taken != n {
					t.Fatalf("round %d, call %d: a look says %+v, a caller for %d gets %+v", round, call, s, n, r)
				}
			}
		}
	}
}

// Permits that a client of Redisson returns are returned once, and not again when the interval of their entry ends.
func TestWindow_release(t *testing.T) {
	m := redistest.NewMini(t)
	rdb := m.Client(t)
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	k := keynames.Window("w")
	m.SetTime(now)
	rated(t, rdb, k, 10, 10*time.Second)
	for i, c := range []struct {
		after       time.Duration
		wants, gets int64
		release     string // the value that Redisson sets afterward
	}{
		{0, 5, 5, "10"}, // min(rate, 5 + 5)
		{9 * time.Second, 10, 10, ""},
		{1001 * time.Millisecond, 1, 0, ""},
		{9 * time.Second, 10, 10, ""},
	} {
		now = now.Add(c.after)
		m.SetTime(now)
		s, err := luascripts.InspectWindow(t.Context(), rdb, k)
		if err != nil || (s.Left >= c.wants) != (c.gets > 0) {
			t.Errorf("call %d: a look says %+v, %v", i, s, err)
		}
		r, err := luascripts.TakeWindow(t.Context(), rdb, k, c.wants, c.wants, fmt.Sprintf("%016d", i), 0)
		if err != nil || r.Taken != c.gets {
			t.Errorf("call %d: %+v, %v, want %d", i, r, err, c.gets)
		}
		if c.release != "" {
			do(t, rdb, "SET", k.Value, c.release)
		}
	}
}

// Whichever command is denied, a failed call has taken no permits, returned none, and set no rate. A call that needs the command
// fails.
func TestWindow_denied(t *testing.T) {
	s := redistest.Start(t)
	admin := s.Client(t)
	k := keynames.Window("w")
	take := func(id string, units int64) func(rdb rueidis.Client) error {
		return func(rdb rueidis.Client) error {
			_, err := luascripts.TakeWindow(t.Context(), rdb, k, units, units, fmt.Sprintf("%016s", id), 0)
			return err
		}
	}
	for what, c := range map[string]struct {
		script string
		run    func(rdb rueidis.Client) error
	}{
		"a taker":                 {"window_take", take("b", 3)},
		"a taker that is refused": {"window_take", take("b", 8)},
		"a refund": {"window_refund", func(rdb rueidis.Client) error {
			_, err := luascripts.RefundWindow(t.Context(), rdb, k, 3, fmt.Sprintf("%016s", "a"))
			return err
		}},
		"a rate": {"window_init", func(rdb rueidis.Client) error {
			_, _, err := luascripts.InitWindow(t.Context(), rdb, k, 12, time.Hour, true, someday)
			return err
		}},
	} {
		for _, alive := range []string{"0", "3600000"} {
			prepare := func() {
				do(t, admin, "FLUSHALL")
				do(t, admin, "HSET", k.Config, "rate", "10", "interval", "3600000", "type", "0", "keepAliveTime", alive)
				do(t, admin, "PEXPIRE", k.Config, "3600000")
				if err := take("a", 3)(admin); err != nil {
					t.Fatal(err)
				}
			}
			prepare()
			s.ResetStats(t)
			if err := c.run(admin); err != nil {
				t.Fatal(err)
			}
			needed := make(map[string]bool)
			for _, command := range commands(c.script) {
				needed[command] = s.CommandCalls(t, command) > 0
			}
			for command := range needed {
				prepare()
				before := contents(t, admin)
				err := c.run(denied(t, s, command))
				if after := contents(t, admin); err != nil && strings.ReplaceAll(after, "*", "") != before || err == nil && needed[command] {
					t.Errorf("%s without %s: %v: %s, was %s", what, command, err, after, before)
				}
			}
		}
	}
}

// A window with a keepAliveTime of Redisson lives while callers wait for its permits.
func TestWindow_keepAlive(t *testing.T) {
	m := redistest.NewMini(t)
	rdb := m.Client(t)
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	m.SetTime(now)
	k := keynames.Window("w")
	do(t, rdb, "HSET", k.Config, "rate", "1", "interval", "10000", "type", "0", "keepAliveTime", "10000")
	do(t, rdb, "PEXPIRE", k.Config, "10000")
	for i, c := range []struct {
		after time.Duration
		gets  int64
	}{{0, 1}, {5 * time.Second, 0}, {5*time.Second + time.Millisecond, 1}} {
		now = now.Add(c.after)
		m.SetTime(now)
		if r, err := luascripts.TakeWindow(t.Context(), rdb, k, 1, 1, fmt.Sprintf("%016d", i), 0); err != nil || r.Verdict != luascripts.Done || r.Taken != c.gets {
			t.Errorf("call %d: %+v, %v, want %d", i, r, err, c.gets)
		}
		about(t, "the window", pttl(t, rdb, k.Config), 10*time.Second)
	}
}

// While its slot is migrated, no script of a window starts something it cannot finish. The cluster makes the client retry.
func TestWindow_slotMoves(t *testing.T) {
	c := redistest.StartCluster(t)
	rdb := c.Client(t)
	k := keynames.Window("w")
	rated(t, rdb, k, 3, time.Hour)
	take := func(ctx context.Context, units int64, id string) (luascripts.WindowReply, error) {
		return luascripts.TakeWindow(ctx, rdb, k, units, units, fmt.Sprintf("%016s", id), 0)
	}
	if r, err := take(t.Context(), 3, "a"); r.Taken != 3 || err != nil {
		t.Fatal(r, err)
	}
	refund := func(ctx context.Context) error {
		_, err := luascripts.RefundWindow(ctx, rdb, k, 3, fmt.Sprintf("%016s", "a"))
		return err
	}
	from := c.Master(t, "w")
	to := c.Masters(t)[0]
	if to == from {
		to = c.Masters(t)[1]
	}
	do(t, rdb, "ZADD", k.Permits, "1000", list(t, rdb, "ZRANGE", k.Permits, "0", "0")[0]) // its interval has ended
	m := c.Migrate(t, c.Slot(t, "w"), from, to)
	for what, call := range map[string]func(context.Context) error{
		"a taker":  func(ctx context.Context) error { _, err := take(ctx, 1, "b"); return err },
		"a refund": refund,
		"a look":   func(ctx context.Context) error { _, err := luascripts.InspectWindow(ctx, rdb, k); return err },
		"a rate": func(ctx context.Context) error {
			_, _, err := luascripts.InitWindow(ctx, rdb, k, 4, time.Hour, true, someday)
			return err
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if err := call(ctx); err == nil || !strings.Contains(err.Error(), "TRYAGAIN") && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", what, err)
		}
	}
	m.Move(t, m.Keys(t)...)
	m.Finish(t)
	if r, err := take(t.Context(), 3, "c"); r.Taken != 3 || err != nil {
		t.Errorf("when it has moved: %+v, %v", r, err)
	}
}

// If the value is lost or wrong, reading counts all entries, however many there are.
func TestWindow_inspectMany(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := keynames.Window("many")
		rated(t, rdb, k, 3000, time.Hour)
		now := time.Now().UnixMilli()
		for part := range 5 {
			words := []string{"ZADD", k.Permits}
			for i := range 500 {
				words = append(words, fmt.Sprint(now-int64(500*part+i)), fmt.Sprintf("\x10%016d\x01\x00\x00\x00", 500*part+i))
			}
			do(t, rdb, words...)
		}
		for _, value := range []string{"", "9999"} { // none, and a wrong one
			if value != "" {
				do(t, rdb, "SET", k.Value, value)
			}
			if s, err := luascripts.InspectWindow(t.Context(), rdb, k); err != nil || s.Left != 500 {
				t.Errorf("value %q: %+v, %v, want 500 left", value, s, err)
			}
		}
	})
}

// Keys of the application with the names of a window's keys do not change, whatever a caller does.
func TestWindow_foreign(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := keynames.Window("w")
		calls := map[string]func() (luascripts.Verdict, error){
			"take": func() (luascripts.Verdict, error) {
				r, err := luascripts.TakeWindow(t.Context(), rdb, k, 1, 1, fmt.Sprintf("%016d", 1), 0)
				return r.Verdict, err
			},
			"refund": func() (luascripts.Verdict, error) {
				return luascripts.RefundWindow(t.Context(), rdb, k, 1, fmt.Sprintf("%016d", 1))
			},
			"look": func() (luascripts.Verdict, error) {
				s, err := luascripts.InspectWindow(t.Context(), rdb, k)
				return s.Verdict, err
			},
			"rate": func() (luascripts.Verdict, error) {
				r, _, err := luascripts.InitWindow(t.Context(), rdb, k, 7, time.Second, true, someday)
				return r.Verdict, err
			},
		}
		for _, words := range [][]string{
			{"SET", k.Value, "hello"}, {"SET", k.Value, "1e3"}, {"SET", k.Value, " 7"}, {"SET", k.Value, ""}, {"RPUSH", k.Value, "x"},
			{"ZADD", k.Permits, "1", "read", "2", "write"}, {"ZADD", k.Permits, "1", ""}, {"SET", k.Permits, "x"},
			{"SET", k.Value, strings.Repeat("1", 21)}, {"HSET", k.Config, "rate", strings.Repeat("1", 20)}, {"HDEL", k.Config, "interval"},
			{"HSET", k.Config, "rate", "0x10"}, {"HSET", k.Config, "rate", "0"}, {"HSET", k.Config, "interval", "1e3"},
		} {
			for _, rated := range []bool{true, false} {
				if !rated && words[1] == k.Config {
					continue
				}
				do(t, rdb, "FLUSHALL")
				if rated {
					do(t, rdb, "HSET", k.Config, "rate", "5", "interval", "1000", "type", "0")
				}
				do(t, rdb, words...)
				before := contents(t, rdb)
				for what, call := range calls {
					if v, err := call(); err != nil || v != luascripts.Foreign && (rated || what == "rate") {
						t.Errorf("%q, %s: %d, %v", words, what, v, err)
					}
				}
				if after := contents(t, rdb); after != before {
					t.Errorf("%q: %s, was %s", words, after, before)
				}
			}
		}
	})
}

func TestWindow_inspectForeign(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		for name, test := range map[string]struct {
			make []string
			want luascripts.Verdict
		}{
			"none":   {nil, luascripts.Uninitialized},
			"string": {[]string{"SET", "string", "x"}, luascripts.Foreign},
			"hash":   {[]string{"HSET", "hash", "a", "b"}, luascripts.Foreign},
			"words":  {[]string{"HSET", "words", "rate", "fast", "interval", "1", "type", "0"}, luascripts.Foreign},
			"each":   {[]string{"HSET", "each", "rate", "5", "interval", "1", "type", "1"}, luascripts.PerClient},
			"value":  {[]string{"HSET", "{value}:value", "x", "1"}, luascripts.Foreign},
			"units":  {[]string{"SET", "{units}:permits", "1"}, luascripts.Foreign},
		} {
			if name == "value" || name == "units" {
				do(t, rdb, "HSET", name, "rate", "5", "interval", "1000", "type", "0")
			}
			if test.make != nil {
				do(t, rdb, test.make...)
			}
			s, err := luascripts.InspectWindow(t.Context(), rdb, keynames.Window(name))
			check(t, name, s.Verdict, test.want, err)
		}
	})
}

// Tests of single conditions in the scripts of windows.

// rated sets the rate of a window.
func rated(t *testing.T, rdb rueidis.Client, k luascripts.WindowKeys, rate int64, per time.Duration) {
	t.Helper()
	if r, _, err := luascripts.InitWindow(t.Context(), rdb, k, rate, per, true, someday); r.Verdict != luascripts.Done || err != nil {
		t.Fatal(r, err)
	}
}

// taking sends a call for units permits, with a number as its ID.
func taking(t *testing.T, rdb rueidis.Client, k luascripts.WindowKeys, units int64, id int) luascripts.WindowReply {
	t.Helper()
	r, err := luascripts.TakeWindow(t.Context(), rdb, k, units, units, fmt.Sprintf("%016d", id), 0)
	if r.Verdict != luascripts.Done || err != nil {
		t.Fatal(r, err)
	}
	return r
}

// looking reads the state of a window.
func looking(t *testing.T, rdb rueidis.Client, k luascripts.WindowKeys) luascripts.WindowState {
	t.Helper()
	s, err := luascripts.InspectWindow(t.Context(), rdb, k)
	if s.Verdict != luascripts.Done || err != nil {
		t.Fatal(s, err)
	}
	return s
}

// entered adds entries of one permit each, with numbers as IDs, all with the same time in ms.
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

// A member of the application that is shorter than an entry is ignored.
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

// An entry counts until its interval ends, to the ms: for a reader, for a caller that takes permits, and for one that sets a
// different rate.
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

// The keys of a window have the TTLs that Redisson gives them, whatever a caller does.
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
				config := time.Hour // its remaining TTL
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

// A caller that only reads removes expired entries, and changes the TTL of no key. A lost value lives as long as the entries.
func TestWindow_lifeOfTheValue(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		for lost, life := range map[bool]time.Duration{false: time.Hour, true: 2 * time.Hour} {
			k := keynames.Window(fmt.Sprint("w", lost))
			rated(t, rdb, k, 10, 24*time.Hour)
			entered(t, rdb, k, 1000, 1, 2) // expired long ago
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

// A caller without permission to read a window gets an error, and no key changes. Not even expired entries are removed.
func TestWindow_deniedToRead(t *testing.T) {
	s := redistest.Start(t)
	admin := s.Client(t)
	k := keynames.Window("w")
	rated(t, admin, k, 10, time.Hour)
	entered(t, admin, k, 1000, 1, 2) // expired long ago
	entered(t, admin, k, now(t, admin), 3, 1)
	for _, value := range []string{"", "7"} { // lost, and present
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

// If a caller is not allowed to finish, nor to remove its entry, the remaining permits are the same as before.
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

// If the rate cannot be set, a window whose value was lost does not change. The next caller counts the entries.
func TestWindow_deniedToSetARate(t *testing.T) {
	s := redistest.Start(t)
	admin := s.Client(t)
	k := keynames.Window("w")
	rated(t, admin, k, 10, time.Hour)
	do(t, admin, "PEXPIRE", k.Config, "3600000")
	taking(t, admin, k, 3, 1)
	do(t, admin, "DEL", k.Value)
	if r, _, err := luascripts.InitWindow(t.Context(), denied(t, s, "pexpire"), k, 12, time.Hour, true, someday); err == nil {
		t.Errorf("%+v, want an error", r)
	}
	value := do(t, admin, "GET", k.Value)
	if text, _ := value.ToString(); text != "7" {
		t.Errorf("the value is %q, want 7", text)
	}
	if r := taking(t, admin, k, 0, 2); r.Remaining != 7 || r.Rate != 10 {
		t.Errorf("%+v, want 7 left of 10", r)
	}
}

// If the rate for a shorter interval cannot be set, no interval of an entry ends. Permits that were taken still count, according
// to the previous rate.
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
		r, _, err := luascripts.InitWindow(t.Context(), denied(t, s, command), k, 10, 10*time.Minute, true, someday)
		if took := taking(t, admin, k, 1, 11); err != nil && took.Taken > 0 {
			t.Errorf("without %s: %+v, %v; 11 of 10 were taken", command, r, err)
		}
	}
}

// The interval that Java sets for a window can be longer than a time.Duration.
func TestWindow_hugeInterval(t *testing.T) {
	rdb, k := redistest.NewMini(t).Client(t), keynames.Window("w")
	do(t, rdb, "HSET", k.Config, "rate", "5", "interval", fmt.Sprint(365000*24*time.Hour.Milliseconds()), "type", "0", "keepAliveTime", "0")
	r, _, err := luascripts.InitWindow(t.Context(), rdb, k, 5, time.Hour, false, someday)
	if err != nil || r.Verdict != luascripts.Other || r.Per < 100*365*24*time.Hour {
		t.Errorf("%+v, %v", r, err)
	}
}

// Java can set any rate and interval of a long, such as Long.MAX_VALUE for no limit, although a script counts exactly only up to 2^53.
func TestWindow_hugeRate(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := keynames.Window("w")
		for _, rate := range []int64{1<<53 + 1, 9999999999999999, math.MaxInt64} {
			do(t, rdb, "FLUSHALL")
			do(t, rdb, "HSET", k.Config, "rate", fmt.Sprint(rate), "interval", fmt.Sprint(rate), "type", "0", "keepAliveTime", "0")
			do(t, rdb, "SET", k.Value, fmt.Sprint(rate)) // as the first call of Redisson does
			left := int64(1 << 53)
			for id := range 3 {
				left -= math.MaxUint32
				if r := taking(t, rdb, k, math.MaxUint32, id); r.Taken != math.MaxUint32 || r.Remaining != left {
					t.Errorf("%d: %+v, want %d left", rate, r, left)
				}
			}
			if s, err := luascripts.InspectWindow(t.Context(), rdb, k); err != nil || s.Left != left {
				t.Errorf("%d: %+v, %v, want %d left", rate, s, err, left)
			}
			do(t, rdb, "DECRBY", k.Value, "1") // as Redisson does
		}
	})
}

// A copy of a call that takes the available permits finds what the call took, even behind a thousand entries of others.
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

// The server's clock moved forward between the copies of a call, by up to a minute. The second copy still finds what the first
// one took.
func TestWindow_copyAfterAClockChange(t *testing.T) {
	m := redistest.NewMini(t)
	rdb, k, start := m.Client(t), keynames.Window("w"), time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	m.SetTime(start)
	rated(t, rdb, k, 30, time.Hour)
	taking(t, rdb, k, 20, 1)
	for _, c := range []struct{ after, ago, taken int64 }{{0, 0, 10}, {60_001, 1, 10}, {60_002, 1, 0}} {
		m.SetTime(start.Add(time.Duration(c.after) * time.Millisecond))
		r, err := luascripts.TakeWindow(t.Context(), rdb, k, 20, 1, fmt.Sprintf("%016d", 2), time.Duration(c.ago)*time.Millisecond)
		if err != nil || r.Taken != c.taken || r.Remaining != 0 {
			t.Errorf("after %d ms: %+v, %v, want %d taken", c.after, r, err, c.taken)
		}
	}
}

// When a rate for a shorter interval ends the intervals of entries, their permits are returned once.
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

// The reported remaining permits are what a caller gets that retries until no entry is expired. This applies even if more entries
// are expired than a call removes, and Redisson has returned permits.
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

// Behind a thousand entries that count, only the permits of expired entries are returned, and none twice. A value that is
// too low stays.
func TestWindow_manyThatCount(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		for what, c := range map[string]struct {
			over, counting int
			value, want    int64
		}{
			"none given back": {1, 1001, 998, 999},
			"some given back": {1, 1001, 1010, 1010},
			"too low":         {0, 1000, 0, 0},
		} {
			k := keynames.Window(what)
			rated(t, rdb, k, 2000, time.Hour)
			entered(t, rdb, k, 1000, 1, c.over) // expired long ago
			entered(t, rdb, k, now(t, rdb), 2, c.counting)
			do(t, rdb, "SET", k.Value, fmt.Sprint(c.value))
			if s := looking(t, rdb, k); s.Left != c.want {
				t.Errorf("%s: %+v, want %d left", what, s, c.want)
			}
			if r := taking(t, rdb, k, 0, 9999); r.Remaining != c.want {
				t.Errorf("%s: %+v, want %d left", what, r, c.want)
			}
		}
	})
}

// If more entries are expired than a call removes, the next call returns more permits, and none counts as taken.
func TestWindow_manyThatAreOver(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := keynames.Window("w")
		rated(t, rdb, k, 2000, time.Hour)
		entered(t, rdb, k, 1000, 1, 1001) // expired long ago
		do(t, rdb, "SET", k.Value, "999")
		if r := taking(t, rdb, k, 0, 9999); r.Remaining != 1999 || r.Next != time.Millisecond || r.Reset != 0 {
			t.Errorf("%+v, want 1,999 left, more in 1ms, and no reset", r)
		}
	})
}

// A rejection counts the permits that Redisson returned without their entry.
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

// No permit counts as taken after the interval of the latest entry has ended, even for an entry of a client whose clock is ahead.
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

// Reading reports whether callers have taken permits, even if the value or the entries are lost.
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

// After the rate was lowered, no caller exceeds the new rate. Permits that were taken above it still count, even when a call is
// refunded.
func TestWindow_lowerRateThenRefund(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := keynames.Window("w")
		rated(t, rdb, k, 10, time.Hour)
		taking(t, rdb, k, 5, 1)
		taking(t, rdb, k, 5, 2)
		rated(t, rdb, k, 5, time.Hour)
		for id, left := range []int64{0, 0, 5} {
			if id > 0 {
				v, err := luascripts.RefundWindow(t.Context(), rdb, k, 5, fmt.Sprintf("%016d", id))
				check(t, "a refund", v, luascripts.Done, err)
			}
			s, r := looking(t, rdb, k), taking(t, rdb, k, left+1, 3)
			if s.Left != left || r.Taken != 0 || r.Remaining != left {
				t.Errorf("after %d refunds: %+v, %+v, want %d left", id, s, r, left)
			}
		}
	})
}

// The same if the value is lower than the entries allow, as after a lost reply to a client of Redisson.
func TestWindow_lowerRateAndCountedTwice(t *testing.T) {
	rdb, k := redistest.Start(t).Client(t), keynames.Window("w")
	rated(t, rdb, k, 10, time.Hour)
	taking(t, rdb, k, 8, 1)
	rated(t, rdb, k, 5, time.Hour)
	do(t, rdb, "SET", k.Value, "-11")
	if r := taking(t, rdb, k, 0, 2); r.Taken != 0 || r.Remaining != 0 {
		t.Errorf("%+v", r)
	}
}

// The same if more entries count than a call reads. A caller can take permits when as many have been returned as the rate was
// exceeded by.
func TestWindow_lowerRateMany(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := keynames.Window("w")
		rated(t, rdb, k, 2500, time.Hour)
		at := now(t, rdb)
		entered(t, rdb, k, at-50*time.Minute.Milliseconds(), 1, 100)
		entered(t, rdb, k, at-40*time.Minute.Milliseconds(), 101, 550)
		entered(t, rdb, k, at, 651, 1550)
		rated(t, rdb, k, 2000, time.Hour) // 2,200 were taken
		for i, left := range []int64{0, 0, 450} {
			if i > 0 { // the interval of the earliest entries ends
				do(t, rdb, append([]string{"ZADD", k.Permits, "XX"}, scored(list(t, rdb, "ZRANGE", k.Permits, "0", fmt.Sprint([]int{0, 99, 549}[i])))...)...)
			}
			s, r := looking(t, rdb, k), taking(t, rdb, k, left+1, 9999)
			if s.Left != left || r.Taken != 0 || r.Remaining != left {
				t.Errorf("step %d: %+v, %+v, want %d left", i, s, r, left)
			}
			if left == 0 { // 200 or 100 must be returned, the last of them with those of 40 minutes ago
				about(t, "the next unit for a look", s.Next, 20*time.Minute)
				about(t, "the next unit for a caller", r.Retry, 20*time.Minute)
				about(t, "the next unit for a reader", taking(t, rdb, k, 0, 9999).Next, 20*time.Minute)
			}
		}
	})
}

// scored puts a time in the distant past before each entry.
func scored(entries []string) (words []string) {
	for _, entry := range entries {
		words = append(words, "1000", entry)
	}
	return words
}

// Transcript of the scripts of a window at the exact end of an interval, and with entries that contradict the value.
func TestWindow_transcript(t *testing.T) {
	play(t, `
		# there is no window until it has a rate
		window_take [w v p n] 1 1 a^16 0 = -3
		window_inspect [w v p n] = -3
		window_refund [w v p n] 1 a^16 = -3
		window_init [w v p n] 5 1000 0 0 = @0
		window_init [w v p n] 5 1000 1 @0 = @0
		KEYS * = []
		window_init [w v p n] 5 1000 0 @1 = 1
		HGETALL w = [interval 1000 keepAliveTime 0 rate 5 type 0]
		window_init [w v p n] 5 1000 0 0 = 0
		window_init [w v p n] 5 2000 0 @99999 = [5 1000]
		window_init [w v p n] 5 2000 1 0 = @0
		window_inspect [w v p n] = [5 0 0 5 1000 0]

		# units are taken once for each call, and come back after the interval
		window_take [w v p n] 3 3 a^16 0 = [3 2 0 1000 5 1000 1000]
		GET v = 2
		window_take [w v p n] 3 3 a^16 0 = [3 2 0 1000 5 1000 1000]
		wait 10
		window_take [w v p n] 3 1 b^16 0 = [2 0 0 1000 5 1000 990]
		window_take [w v p n] 3 1 b^16 10 = [2 0 0 1000 5 1000 990]
		window_take [w v p n] 1 1 c^16 0 = [0 0 990 1000 5 1000 990]
		window_take [w v p n] 4 4 c^16 0 = [0 0 1000 1000 5 1000 990]
		window_take [w v p n] 5 5 c^16 0 = [0 0 1000 1000 5 1000 990]
		window_take [w v p n] 6 6 c^16 0 = [0 0 -1 1000 5 1000 990]
		window_take [w v p n] 0 0 c^16 0 = [0 0 0 1000 5 1000 990]
		window_inspect [w v p n] = [0 990 1000 5 1000 1]
		wait 989
		window_inspect [w v p n] = [0 1 11 5 1000 1]
		window_take [w v p n] 1 1 c^16 0 = [0 0 1 11 5 1000 1]
		wait 1
		window_inspect [w v p n] = [3 0 10 5 1000 1]
		window_take [w v p n] 0 0 c^16 0 = [0 3 0 10 5 1000 10]
		ZCARD p = 1
		window_take [w v p n] 3 3 d^16 0 = [3 0 0 1000 5 1000 10]
		GET v = 0

		# a refund returns the units of a call once
		window_refund [w v p n] 2 d^16 = 0
		window_refund [w v p n] 3 d^16 = 1
		window_refund [w v p n] 3 d^16 = 0
		GET v = 3
		SET v 4
		window_refund [w v p n] 2 b^16 = 1
		GET v = 5
		window_take [w v p n] 2 2 b^16 0 = [2 3 0 1000 5 1000 1000]
		DEL v
		window_refund [w v p n] 2 b^16 = 1
		EXISTS v = 0

		# a copy of a call finds its entry as long as that is not older than the call, and a minute
		window_take [w v p n] 1 1 e^16 0 = [1 4 0 1000 5 1000 1000]
		window_take [w v p n] 9 1 f^16 0 = [4 0 0 1000 5 1000 1000]
		wait 900
		window_take [w v p n] 9 1 f^16 900 = [4 0 0 100 5 1000 100]
		window_take [w v p n] 9 1 e^16 900 = [1 0 0 100 5 1000 100]
		window_take [w v p n] 9 9 f^16 900 = [0 0 -1 100 5 1000 100]
		DEL p v
		window_init [w v p n] 5 10000 1 @99999 = 1
		window_take [w v p n] 2 1 g^16 0 = [2 3 0 10000 5 10000 10000]
		wait 2000
		window_take [w v p n] 2 2 g^16 0 = [2 3 0 8000 5 10000 8000]
		window_take [w v p n] 3 1 g^16 1000 = [2 3 0 8000 5 10000 8000]
		wait 1
		window_take [w v p n] 3 1 g^16 1000 = [2 3 0 7999 5 10000 7999]
		window_take [w v p n] 3 1 g^16 0 = [3 0 0 10000 5 10000 7999]
		window_take [w v p n] 3 1 g^16 0 = [3 0 0 10000 5 10000 7999]

		# another rate counts what was taken; the old one stays from the given time on
		window_init [w v p n] 6 10000 1 @3901 = @3901
		window_init [w v p n] 6 10000 1 @3902 = 1
		GET v = 1
		window_init [w v p n] 1 10000 1 @99999 = 1
		GET v = -4
		window_inspect [w v p n] = [0 10000 10000 1 10000 1]
		window_take [w v p n] 0 0 h^16 0 = [0 0 0 10000 1 10000 10000]
		window_take [w v p n] 1 1 h^16 0 = [0 0 10000 10000 1 10000 10000]
		window_take [w v p n] 3 1 g^16 0 = [3 0 0 10000 1 10000 10000]
		window_take [w v p n] 2 2 h^16 0 = [0 0 -1 10000 1 10000 10000]
		GET v = -4
		window_init [w v p n] 7 1001 1 @99999 = 1
		ZCARD p = 1
		GET v = 4
		window_init [w v p n] 7 2000 1 @99999 = 1
		GET v = 4

		# a value that cannot be right is counted again
		DEL p v
		ZADD p @3900 entry(a^16,2) @3901 entry(b^16,256)
		window_init [w v p n] 300 10000 1 @99999 = 1
		SET v 301
		window_inspect [w v p n] = [42 0 10000 300 10000 1]
		window_take [w v p n] 0 0 c^16 0 = [0 42 0 10000 300 10000 9999]
		GET v = 42
		SET v -1
		window_inspect [w v p n] = [42 0 10000 300 10000 1]
		window_take [w v p n] 0 0 c^16 0 = [0 42 0 10000 300 10000 9999]
		SET v 7
		window_take [w v p n] 2 2 d^16 0 = [2 5 0 10000 300 10000 9999]
		window_refund [w v p n] 2 d^16 = 1
		SET v 0
		window_take [w v p n] 42 42 c^16 0 = [42 0 0 10000 300 10000 9999]
		SET v 5
		window_take [w v p n] 9 9 d^16 0 = [0 5 10000 10000 300 10000 9999]
		PTTL v = -1
		DEL v
		PEXPIRE p 5000
		window_take [w v p n] 0 0 d^16 0 = [0 0 0 10000 300 10000 9999]
		PTTL v = 5000
		SET v 0 PX 70000
		window_take [w v p n] 0 0 d^16 0 = [0 0 0 10000 300 10000 9999]
		wait 9998
		window_take [w v p n] 0 0 d^16 0 = [0 300 0 0 300 10000 0]
		PTTL v = 60002

		# units that Redisson gave back do not come back once more with their entries
		FLUSHALL
		window_init [w v p n] 10 1000 0 @99999 = 1
		ZADD p @12900 entry(a^16,4) @13500 entry(b^16,3)
		SET v 7
		window_inspect [w v p n] = [7 0 601 10 1000 1]
		wait 1
		window_inspect [w v p n] = [7 0 600 10 1000 1]
		window_take [w v p n] 0 0 d^16 0 = [0 7 0 600 10 1000 600]

		# the state lives as long as Redisson's keepAliveTime says, or as its configuration
		HSET w keepAliveTime 5000
		window_take [w v p n] 1 1 e^16 0 = [1 6 0 1000 10 1000 600]
		PTTL w = 5000
		PTTL v = 5000
		PTTL p = 5000
		PEXPIRE w 4000
		window_take [w v p n] 99 99 e^16 0 = [0 6 -1 1000 10 1000 600]
		PTTL w = 5000
		PTTL v = 5000
		HSET w keepAliveTime 0
		PEXPIRE w 3000
		window_take [w v p n] 1 1 f^16 0 = [1 5 0 1000 10 1000 600]
		PTTL w = 3000
		PTTL v = 3000
		PTTL p = 3000
		PERSIST w
		window_take [w v p n] 1 1 g^16 0 = [1 4 0 1000 10 1000 600]
		PTTL p = 3000
		window_refund [w v p n] 1 g^16 = 1

		# what is denied takes nothing
		GET v = 5
		ZCARD p = 3
		without SET
		window_take [w v p n] 1 1 h^16 0 = !NOPERM
		window_refund [w v p n] 1 e^16 = !NOPERM
		window_init [w v p n] 7 2000 1 @99999 = !NOPERM
		without ZREM
		window_refund [w v p n] 1 e^16 = !NOPERM
		without HGET
		window_take [w v p n] 1 1 h^16 0 = !NOPERM
		window_take [w v p n] 9 9 h^16 0 = !NOPERM
		window_refund [w v p n] 1 e^16 = !NOPERM
		without PTTL
		window_take [w v p n] 1 1 h^16 0 = !NOPERM
		without PEXPIRE
		HSET w keepAliveTime 5000
		window_take [w v p n] 1 1 h^16 0 = !NOPERM
		window_init [w v p n] 7 2000 1 @99999 = !NOPERM
		without ZREMRANGEBYSCORE
		window_init [w v p n] 7 2000 1 @99999 = !NOPERM
		without HMGET
		window_take [w v p n] 1 1 h^16 0 = !NOPERM
		window_delete [w v p n] @99999 = !NOPERM
		window_init [w v p n] 7 2000 1 @99999 = !NOPERM
		without GET
		window_take [w v p n] 1 1 h^16 0 = !NOPERM
		window_inspect [w v p n] = !NOPERM
		window_refund [w v p n] 1 e^16 = !NOPERM
		without ZRANGE
		window_delete [w v p n] @99999 = !NOPERM
		without
		GET v = 5
		ZCARD p = 3
		HGETALL w = [interval 1000 keepAliveTime 5000 rate 10 type 0]

		# a window is deleted before the given time
		window_delete [w v p n] 0 = @13900
		window_delete [w v p n] @13900 = @13900
		KEYS * = [p v w]
		window_delete [w v p n] @13901 = 1
		KEYS * = []
		window_delete [w v p n] @13902 = 1
		SET v 1
		window_delete [w v p n] @13902 = 1
		KEYS * = []

		# a window that is full again says so, and one that was never used has no value
		window_init [w v p n] 10 1000 0 @99999 = 1
		window_take [w v p n] 0 0 a^16 0 = [0 10 0 0 10 1000 0]
		EXISTS v = 0
		HDEL w keepAliveTime
		window_take [w v p n] 3 3 a^16 0 = [3 7 0 1000 10 1000 1000]
		wait 1000
		window_take [w v p n] 0 0 a^16 0 = [0 10 0 0 10 1000 0]
		GET v = 10
		FLUSHALL

		# the first units to come back are these, before those of a client whose clock is ahead
		window_init [w v p n] 10 1000 0 @99999 = 1
		ZADD p @20000 entry(a^16,1)
		window_take [w v p n] 1 1 b^16 0 = [1 8 0 6100 10 1000 1000]
		FLUSHALL

		# another key is left alone
		SET s 1
		HSET h a 1
		HSET i rate 5 interval 1000 type 1
		HSET j rate 0 interval 1000 type 0
		HSET k rate 5 interval 12345678901234567890 type 0
		HSET l rate 5 interval 1234567890123456 type 0
		HSET m rate 5 type 0
		HSET o rate 5 interval 1000 type 0
		ZADD z 1 member
		SET x 1x
		SET y 123456789012345678901
		window_take [s v p n] 1 1 a^16 0 = -4
		window_take [h v p n] 1 1 a^16 0 = -4
		window_take [i v p n] 1 1 a^16 0 = -5
		window_take [j v p n] 1 1 a^16 0 = -4
		window_take [k v p n] 1 1 a^16 0 = -4
		window_inspect [l v p n] = [5 0 0 5 1234567890123456 0]
		window_take [m v p n] 1 1 a^16 0 = -4
		window_take [o v z n] 1 1 a^16 0 = -4
		window_take [o v s n] 1 1 a^16 0 = -4
		window_refund [o x p n] 1 a^16 = -4
		window_inspect [o y p n] = -4
		SET y 12345678901234567890
		window_inspect [o y p n] = [5 0 0 5 1000 1]
		window_inspect [o h p n] = -4
		window_init [o h p n] 6 1000 1 @99999 = -4
		window_init [s v p n] 6 1000 1 @99999 = -4
		window_delete [o h p n] @99999 = -4
		window_delete [s v p n] @99999 = -4
		window_delete [i v p n] @99999 = -5
	`)
}

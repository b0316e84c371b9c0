package luascripts_test

import (
	"fmt"
	"testing"
	"time"

	keynames "github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

func latchCall(id string) luascripts.LatchCall {
	return luascripts.LatchCall{ID: id, Keep: time.Hour, Stay: time.Hour}
}

// The scripts behave the same on a real server and on an in-memory one.
func TestLatch(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := keynames.Latch("done")
		must := func(s luascripts.LatchState, v luascripts.Verdict, err error) luascripts.LatchState {
			t.Helper()
			if err != nil || v != luascripts.Done {
				t.Fatalf("%d, %v", v, err)
			}
			return s
		}
		is := func(what string, s luascripts.LatchState, did bool, left int64, open bool) {
			t.Helper()
			if (s.Did > 0) != did || s.Left != left || s.IsOpen() != open {
				t.Errorf("%s: %+v, want %v, %d left, open %v", what, s, did, left, open)
			}
		}
		down := func(id string) luascripts.LatchState {
			t.Helper()
			return must(luascripts.CountDownLatch(t.Context(), rdb, k, latchCall(id)))
		}
		named := func(id, part string, again bool) luascripts.LatchState {
			t.Helper()
			c := latchCall(id)
			c.Part, c.Again = part, again
			return must(luascripts.CountDownLatch(t.Context(), rdb, k, c))
		}
		look := func() luascripts.LatchState {
			t.Helper()
			return must(luascripts.LatchStatus(t.Context(), rdb, k, time.Hour))
		}
		create := func(id string, n int64) luascripts.LatchState {
			t.Helper()
			return must(luascripts.InitLatch(t.Context(), rdb, k, n, latchCall(id)))
		}
		const channel = "redisson_countdownlatch__channel__{done}"
		e := listen(t, rdb)
		is("never made", look(), false, 0, false)
		is("counted down, never made", down("a"), false, 0, false)
		if keys := list(t, rdb, "KEYS", "*"); len(keys) > 0 {
			t.Errorf("looking leaves %q", keys)
		}
		is("made", create("b", 3), true, 3, false)
		e.expect(channel + " 1")
		is("made, once more", create("b", 3), true, 3, false)
		is("made by another", create("c", 7), false, 3, false)
		is("counted", down("d"), true, 2, false)
		is("counted, once more", down("d"), true, 2, false)
		is("a part", named("p1", "p", false), true, 1, false)
		is("a part, once more", named("p2", "p", false), true, 1, false)
		if got := list(t, rdb, "MGET", "done"); got[0] != "1" {
			t.Errorf("the count is %q", got)
		}
		e.expect()
		first := look()
		is("the last", down("e"), true, 0, true)
		e.expect(channel + " 0")
		is("the last, once more", down("e"), true, 0, true)
		is("one too many", down("f"), false, 0, true)
		is("open", look(), false, 0, true)
		if keys := list(t, rdb, "KEYS", "done"); len(keys) > 0 {
			t.Error("an open latch has a count")
		}

		// The second round.
		is("made anew", create("g", 2), true, 2, false)
		e.expect(channel + " 1")
		second := look()
		if second.Round <= first.Round || second.Open != first.Round {
			t.Errorf("round %+v after %+v", second, first)
		}
		is("a late copy of the first round", down("d"), true, 2, false)
		is("a part of the first round", named("p3", "p", false), true, 1, false)
		if s := must(luascripts.DeleteLatch(t.Context(), rdb, k, latchCall("h"))); s.Did == 0 || s.Gone != second.Round {
			t.Errorf("deleted: %+v", s)
		}
		e.expect(channel + " 1")
		is("deleted", look(), false, 0, false)
		is("counted down, deleted", down("i"), false, 0, false)
		is("made anew", create("j", 1), true, 1, false)
		e.expect(channel + " 1")
		is("a late copy of a deletion", must(luascripts.DeleteLatch(t.Context(), rdb, k, latchCall("h"))), true, 1, false)
		is("still there", look(), false, 1, false)

		// A call that had no effect has none when a delayed duplicate arrives.
		repeated := func(id string) luascripts.LatchCall {
			return luascripts.LatchCall{ID: id, Keep: time.Hour, Stay: time.Hour, Again: true}
		}
		is("a repeated creation beside a latch", must(luascripts.InitLatch(t.Context(), rdb, k, 7, repeated("l"))), false, 1, false)
		is("opened", down("m"), true, 0, true)
		e.expect(channel + " 0")
		is("a late copy of the creation", create("l", 7), false, 0, true)
		is("a repeated count of an open latch", must(luascripts.CountDownLatch(t.Context(), rdb, k, repeated("n"))), false, 0, true)
		is("a repeated count of an open latch, once more", must(luascripts.CountDownLatch(t.Context(), rdb, k, repeated("n"))), false, 0, true)
		must(luascripts.DeleteLatch(t.Context(), rdb, k, latchCall("o")))
		e.expect(channel + " 1")
		is("a repeated deletion of none", must(luascripts.DeleteLatch(t.Context(), rdb, k, repeated("p"))), false, 0, false)
		is("made anew", create("q", 1), true, 1, false)
		e.expect(channel + " 1")
		is("a late copy of the count", down("n"), false, 1, false)
		is("a late copy of the deletion", must(luascripts.DeleteLatch(t.Context(), rdb, k, latchCall("p"))), false, 1, false)
		e.expect()

		// A part counts in each round, but not through a copy of a call that has already got its reply from an earlier copy.
		is("opened", down("r"), true, 0, true)
		is("a repeated part of an open latch", named("s1", "p", true), false, 0, true)
		is("made anew", create("t", 2), true, 2, false)
		is("a late copy of the part", named("s1", "p", false), false, 2, false)
		is("a repeated part", named("s2", "p", true), true, 1, false)
		is("a repeated part that another call has counted", named("s3", "p", true), true, 1, false)
		is("opened", down("u"), true, 0, true)
		is("made anew", create("v", 2), true, 2, false)
		for _, id := range []string{"s2", "s3"} {
			is("a late copy of a part of the round before", named(id, "p", false), true, 2, false)
			is("a late copy that is repeated", named(id, "p", true), true, 2, false)
		}
		is("a part of this round", named("s4", "p", false), true, 1, false)
		is("the part that opens", named("s5", "o", false), true, 0, true)
		is("made anew", create("x", 2), true, 2, false)
		is("that part, once more, as its reply was lost", named("s5", "o", true), true, 2, false)
		down("y")
		e.expect(channel+" 0", channel+" 1", channel+" 0", channel+" 1", channel+" 0", channel+" 1")

		// A call that counts several calls returns how many of them had an effect, whatever has happened since.
		together := func(id string, n int64, again bool) luascripts.LatchState {
			t.Helper()
			c := latchCall(id)
			c.Count, c.Again = n, again
			return must(luascripts.CountDownLatch(t.Context(), rdb, k, c))
		}
		counts := func(what string, s luascripts.LatchState, did, left int64) {
			t.Helper()
			if s.Did != did || s.Left != left {
				t.Errorf("%s: %+v, want %d, %d left", what, s, did, left)
			}
		}
		down("w1")
		create("w2", 500)
		counts("calls together", together("w3", 400, false), 400, 100)
		counts("calls together, once more", together("w3", 400, true), 400, 100)
		counts("more calls than counts", together("w4", luascripts.MostCounts, false), 100, 0)
		counts("calls of an open latch", together("w5", 3, true), 0, 0)
		counts("calls that did not reach 0, once more", together("w3", 400, true), 400, 1)
		create("w6", 7)
		counts("more calls than counts, once more", together("w4", luascripts.MostCounts, true), 100, 0)
		counts("calls of an open latch, once more", together("w5", 3, true), 0, 7)
		counts("the rest", together("w7", 6, false), 6, 1)
		e.expect(channel+" 0", channel+" 1", channel+" 0", channel+" 1")

		// Operations of Redisson's clients.
		third := look()
		do(t, rdb, "DEL", "done")
		is("counted down by Redisson", look(), false, 0, true)
		do(t, rdb, "SET", "done", "5")
		if s := look(); s.Left != 5 || s.Round <= third.Round || s.Open != third.Round {
			t.Errorf("made by Redisson: %+v after %+v", s, third)
		}
		do(t, rdb, "SET", "done", "0")
		is("a count of 0", look(), false, 0, true)
		is("made although Redisson left a 0", create("k", 2), true, 2, false)
		e.expect(channel + " 1")
		do(t, rdb, "SET", "done", "-1")
		is("a count below 0", look(), false, 0, true)
		do(t, rdb, "DEL", "done", k.Rounds, k.Calls)
		do(t, rdb, "SET", "done", "0")
		is("a count of 0 that Redisson left, seen first", look(), false, 0, true)

		// The scripts keep an expiry of the count.
		do(t, rdb, "SET", "done", "2", "PX", "60000")
		look()
		if n := number(t, rdb, "PTTL", k.Rounds); n > 60000 || n < 30000 {
			t.Errorf("the traces live for %d ms, and the count for a minute", n)
		}
		down("l")
		down("m")
		if n := number(t, rdb, "PTTL", k.Rounds); n < 1800000 {
			t.Errorf("the traces of an open latch live for %d ms", n)
		}
	})
}

// If Redisson created a latch and its count expires, the latch is gone, and not released, whenever a call read it.
func TestLatch_expires(t *testing.T) {
	m := redistest.NewMini(t)
	rdb := m.Client(t)
	k := keynames.Latch("done")
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	look := func() luascripts.LatchState {
		s, v, err := luascripts.LatchStatus(t.Context(), rdb, k, time.Hour)
		check(t, "a look", v, luascripts.Done, err)
		return s
	}
	for _, life := range []time.Duration{time.Millisecond, 3 * time.Millisecond, 900 * time.Millisecond, 1500 * time.Millisecond, time.Minute} {
		for _, again := range []time.Duration{0, life / 2, life - time.Millisecond} { // the time after which it is read again
			do(t, rdb, "FLUSHALL")
			m.SetTime(now)
			do(t, rdb, "SET", "done", "3", "PX", millis(life))
			look()
			now = now.Add(again)
			m.SetTime(now)
			if s := look(); s.Left != 3 {
				t.Errorf("%v of %v: %+v", again, life, s)
			}
			if rounds, count := pttl(t, rdb, k.Rounds), pttl(t, rdb, "done"); rounds == -time.Millisecond || rounds > max(count-2*time.Millisecond, -2*time.Millisecond) {
				t.Errorf("%v of %v: the traces live for %v, and the count for %v", again, life, rounds, count)
			}
			now = now.Add(life - again)
			m.SetTime(now)
			if s := look(); s.Left != 0 || s.IsOpen() {
				t.Errorf("%v, expired: %+v, open: %t", life, s, s.IsOpen())
			}
		}
	}
}

// No call leaves keys without an expiry, even if it finds what clients of Redisson left, and has no effect.
func TestLatch_traces(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := keynames.Latch("done")
		for what, call := range map[string]func() error{
			"init": func() error {
				_, _, err := luascripts.InitLatch(t.Context(), rdb, k, 3, latchCall("a"))
				return err
			},
			"down": func() error {
				_, _, err := luascripts.CountDownLatch(t.Context(), rdb, k, latchCall("a"))
				return err
			},
			"look": func() error {
				_, _, err := luascripts.LatchStatus(t.Context(), rdb, k, time.Hour)
				return err
			},
			"delete": func() error {
				_, _, err := luascripts.DeleteLatch(t.Context(), rdb, k, latchCall("a"))
				return err
			},
		} {
			for _, count := range []string{"", "0", "2"} {
				for _, known := range []string{"", "a"} { // a call that an earlier copy executed
					do(t, rdb, "FLUSHALL")
					if count != "" {
						do(t, rdb, "SET", "done", count)
					}
					if known != "" {
						do(t, rdb, "ZADD", k.Calls, "1", known)
						do(t, rdb, "PEXPIRE", k.Calls, "3600000")
					}
					if err := call(); err != nil {
						t.Error(err)
					}
					for _, key := range []string{k.Rounds, k.Calls} {
						if number(t, rdb, "PTTL", key) == -1 {
							t.Errorf("%s of %q, known %q: %s has no end", what, count, known, key)
						}
					}
				}
			}
		}
	})
}

// Whichever command is denied, a failed call has changed neither the count nor the round. A later call with the same ID has its
// full effect.
func TestLatch_denied(t *testing.T) {
	s := redistest.Start(t)
	admin := s.Client(t)
	k := keynames.Latch("done")
	type call func(rdb rueidis.Client) (luascripts.LatchState, luascripts.Verdict, error)
	down := func(id, part string) call {
		return func(rdb rueidis.Client) (luascripts.LatchState, luascripts.Verdict, error) {
			c := latchCall(id)
			c.Part = part
			return luascripts.CountDownLatch(t.Context(), rdb, k, c)
		}
	}
	for what, c := range map[string]struct {
		script string
		count  int64
		run    call
		effect string
	}{
		"a count":  {"latch_down", 2, down("a", ""), "1 left, open false, gone false, <nil>"},
		"a part":   {"latch_down", 2, down("a", "p"), "1 left, open false, gone false, <nil>"},
		"the last": {"latch_down", 1, down("a", ""), "0 left, open true, gone false, <nil>"},
		"a latch": {"latch_init", 0, func(rdb rueidis.Client) (luascripts.LatchState, luascripts.Verdict, error) {
			return luascripts.InitLatch(t.Context(), rdb, k, 3, latchCall("a"))
		}, "3 left, open false, gone false, <nil>"},
		"a removal": {"latch_delete", 2, func(rdb rueidis.Client) (luascripts.LatchState, luascripts.Verdict, error) {
			return luascripts.DeleteLatch(t.Context(), rdb, k, latchCall("a"))
		}, "0 left, open false, gone true, <nil>"},
	} {
		for _, command := range commands(c.script) {
			do(t, admin, "FLUSHALL")
			if _, _, err := luascripts.InitLatch(t.Context(), admin, k, max(c.count, 1), latchCall("i")); err != nil {
				t.Fatal(err)
			}
			if c.count == 0 {
				if _, _, err := down("o", "")(admin); err != nil {
					t.Fatal(err)
				}
			}
			do(t, admin, "PERSIST", k.Rounds) // so that each call sets the expiries
			do(t, admin, "PERSIST", k.Calls)
			look := func() string {
				s, _, err := luascripts.LatchStatus(t.Context(), admin, k, time.Hour)
				return fmt.Sprint(s, err)
			}
			// effect returns the visible state of the latch, without the numbers of its rounds.
			effect := func() string {
				s, _, err := luascripts.LatchStatus(t.Context(), admin, k, time.Hour)
				return fmt.Sprintf("%d left, open %t, gone %t, %v", s.Left, s.IsOpen(), s.Round > 0 && s.Gone == s.Round, err)
			}
			before := fmt.Sprint(list(t, admin, "KEYS", "done"), contents(t, admin))
			if s, _, err := c.run(denied(t, s, command)); err == nil {
				if got := effect(); s.Did == 0 || got != c.effect {
					t.Errorf("%s without %s: %+v, and %s; want %s", what, command, s, got, c.effect)
				}
				continue
			}
			if after := fmt.Sprint(list(t, admin, "KEYS", "done"), contents(t, admin)); after != before {
				t.Errorf("%s without %s: %s, was %s", what, command, after, before)
			}
			was := look()
			if s, _, err := c.run(admin); err != nil || s.Did == 0 || look() == was {
				t.Errorf("%s, which was denied %s: %+v, %v", what, command, s, err)
			}
		}
	}
}

// LatchStatus fails for a latch of Redisson if it is not allowed to store the round.
func TestLatchStatus_denied(t *testing.T) {
	s := redistest.Start(t)
	k := keynames.Latch("done")
	do(t, s.Client(t), "SET", "done", "3")
	if state, _, err := luascripts.LatchStatus(t.Context(), denied(t, s, "hset"), k, time.Hour); err == nil {
		t.Errorf("%+v", state)
	}
}

// A key of the wrong type does not change.
func TestLatch_foreign(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		for what, set := range map[string][]string{
			"a list": {"RPUSH", "done", "x"}, "a text": {"SET", "done", "x"}, "a fraction": {"SET", "done", "1.5"}, "a serial number": {"SET", "done", "007"}, "a huge number": {"SET", "done", "12345678901234567"},
			"no rounds": {"SET", "leasehold_latch:{done}", "x"}, "no calls": {"SET", "leasehold_latch_calls:{done}", "x"},
		} {
			do(t, rdb, "FLUSHALL")
			do(t, rdb, set...)
			k := keynames.Latch("done")
			for name, call := range map[string]func() (luascripts.LatchState, luascripts.Verdict, error){
				"init": func() (luascripts.LatchState, luascripts.Verdict, error) {
					return luascripts.InitLatch(t.Context(), rdb, k, 3, latchCall("a"))
				},
				"down": func() (luascripts.LatchState, luascripts.Verdict, error) {
					return luascripts.CountDownLatch(t.Context(), rdb, k, latchCall("a"))
				},
				"look": func() (luascripts.LatchState, luascripts.Verdict, error) {
					return luascripts.LatchStatus(t.Context(), rdb, k, time.Hour)
				},
				"delete": func() (luascripts.LatchState, luascripts.Verdict, error) {
					return luascripts.DeleteLatch(t.Context(), rdb, k, latchCall("a"))
				},
			} {
				if _, v, err := call(); v != luascripts.Foreign || err != nil {
					t.Errorf("%s of %s: %d, %v", name, what, v, err)
				}
			}
			if keys := list(t, rdb, "KEYS", "*"); len(keys) != 1 {
				t.Errorf("%s: %q are there", what, keys)
			}
		}
	})
}

// The number of a round is the time of its creation. It therefore differs from the rounds of a latch whose extra keys are gone.
// It is returned immediately, and grows even if the clock moves backward.
func TestLatch_rounds(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := keynames.Latch("done")
		look := func() luascripts.LatchState {
			t.Helper()
			s, v, err := luascripts.LatchStatus(t.Context(), rdb, k, time.Hour)
			if v != luascripts.Done || err != nil {
				t.Fatalf("%d, %v", v, err)
			}
			return s
		}
		micros := now(t, rdb) * 1000
		do(t, rdb, "SET", "done", "5")
		if s := look(); s.Round < micros {
			t.Errorf("made by Redisson after %d: %+v", micros, s)
		}
		do(t, rdb, "FLUSHALL")
		made, _, err := luascripts.InitLatch(t.Context(), rdb, k, 5, latchCall("a"))
		if err != nil || made.Round < micros || look().Round != made.Round {
			t.Errorf("made after %d: %+v, %v; then %+v", micros, made, err, look())
		}
	})
}

// The extra keys of a latch live as long as the caller specifies, whichever call was the last one.
func TestLatch_tracesStay(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := keynames.Latch("done")
		again := latchCall("a")
		again.Again = true
		for what, c := range map[string]struct {
			before func()
			call   func() error
			keys   []string
		}{
			"made": {func() {}, func() error {
				_, _, err := luascripts.InitLatch(t.Context(), rdb, k, 5, latchCall("a"))
				return err
			}, []string{k.Rounds, k.Calls}},
			"made before": {func() {
				_, _, _ = luascripts.InitLatch(t.Context(), rdb, k, 5, latchCall("b"))
				do(t, rdb, "PEXPIRE", k.Rounds, "60000")
			}, func() error {
				_, _, err := luascripts.InitLatch(t.Context(), rdb, k, 5, latchCall("a"))
				return err
			}, []string{k.Rounds}},
			"deleted": {func() { do(t, rdb, "SET", "done", "5") }, func() error {
				_, _, err := luascripts.DeleteLatch(t.Context(), rdb, k, latchCall("a"))
				return err
			}, []string{k.Rounds, k.Calls}},
			"a repeated deletion of none": {func() {}, func() error {
				_, _, err := luascripts.DeleteLatch(t.Context(), rdb, k, again)
				return err
			}, []string{k.Calls}},
		} {
			do(t, rdb, "FLUSHALL")
			c.before()
			if err := c.call(); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			for _, key := range c.keys {
				if left := pttl(t, rdb, key); left < 30*time.Minute || left > time.Hour {
					t.Errorf("%s: %s lives for %v", what, key, left)
				}
			}
		}
	})
}

// A call is stored until its time has passed.
func TestLatch_forgetsCalls(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		k := keynames.Latch("done")
		do(t, rdb, "SET", "done", "5")
		do(t, rdb, "ZADD", k.Calls, "1000", "old")
		if _, _, err := luascripts.CountDownLatch(t.Context(), rdb, k, latchCall("a")); err != nil {
			t.Fatal(err)
		}
		if calls := list(t, rdb, "ZRANGE", k.Calls, "0", "-1"); len(calls) != 1 || calls[0] != "a" {
			t.Errorf("%q are remembered", calls)
		}
	})
}

// With full memory, a latch can be deleted, and a repeated call is still recognized.
func TestLatch_fullMemory(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	k := keynames.Latch("done")
	if _, _, err := luascripts.InitLatch(t.Context(), rdb, k, 1, latchCall("a")); err != nil {
		t.Fatal(err)
	}
	full(t, s)
	late := latchCall("b")
	late.Again = true
	if made, _, err := luascripts.InitLatch(t.Context(), rdb, k, 7, late); made.Did != 0 || err != nil {
		t.Fatalf("%+v, %v", made, err)
	}
	if gone, _, err := luascripts.DeleteLatch(t.Context(), rdb, k, latchCall("c")); gone.Did != 1 || err != nil {
		t.Errorf("deleted: %+v, %v", gone, err)
	}
	s.Do(t, "CONFIG", "SET", "maxmemory", "0")
	late.Again = false
	if made, _, err := luascripts.InitLatch(t.Context(), rdb, k, 7, late); made.Did != 0 || err != nil {
		t.Errorf("a late copy: %+v, %v", made, err)
	}
}

// Transcript of the scripts of a latch at the exact end of an expiry, and of the time for which a call is stored.
func TestLatch_transcript(t *testing.T) {
	play(t, `
		# a latch is made once, and a call that is repeated is told what it did
		latch_status [c r k n] 5000 = [0 0 0 0 0]
		EXISTS r k = 0
		latch_init [c r k n] 2 i1 1000 5000 ch PUBLISH 0 = [1 2 @0us 0 @-1us]
		GET c = 2
		HGETALL r = [gone @-1us round @0us]
		ZRANGE k 0 -1 WITHSCORES = [i1 @1000]
		PTTL r = 5000
		PTTL k = 5000
		published = [ch~1]
		latch_init [c r k n] 2 i1 1000 5000 ch PUBLISH 1 = [1 2 @0us 0 @-1us]
		published = []
		latch_init [c r k n] 3 i2 1000 5000 ch PUBLISH 0 = [0 2 @0us 0 @-1us]
		ZSCORE k i2 = nil
		latch_init [c r k n] 3 i3 1000 5000 ch PUBLISH 1 = [0 2 @0us 0 @-1us]
		sent ZREM = 1
		ZSCORE k i3 = @1000.001
		latch_init [c r k n] 3 i3 1000 5000 ch PUBLISH 1 = [0 2 @0us 0 @-1us]
		published = []

		# the traces are kept when less than half of their time is left
		PEXPIRE r 2500
		PEXPIRE k 2500
		latch_init [c r k n] 3 i3 1000 5000 ch PUBLISH 1 = [0 2 @0us 0 @-1us]
		latch_init [c r k n] 3 i4 1000 5000 ch PUBLISH 1 = [0 2 @0us 0 @-1us]
		latch_status [c r k n] 5000 = [0 2 @0us 0 @-1us]
		PTTL r = 2500
		PTTL k = 2500
		PEXPIRE r 2499
		latch_status [c r k n] 5000 = [0 2 @0us 0 @-1us]
		PTTL r = 5000
		PTTL k = 2500
		PEXPIRE k 2499
		latch_status [c r k n] 5000 = [0 2 @0us 0 @-1us]
		PTTL k = 5000
		PEXPIRE k 2499
		latch_init [c r k n] 3 i5 1000 5000 ch PUBLISH 1 = [0 2 @0us 0 @-1us]
		PTTL k = 5000
		PEXPIRE k 2499
		latch_delete [x r2 k n] i6 1000 5000 ch PUBLISH 1 = [0 0 0 0 0]
		PTTL k = 5000

		# a count with an expiry takes its traces along, a little sooner
		PEXPIRE c 10000
		PEXPIRE r 8998
		latch_status [c r k n] 5000 = [0 2 @0us 0 @-1us]
		PTTL r = 8998
		PEXPIRE r 8997
		latch_status [c r k n] 5000 = [0 2 @0us 0 @-1us]
		PTTL r = 9998
		PEXPIRE r 9998
		latch_status [c r k n] 5000 = [0 2 @0us 0 @-1us]
		PTTL r = 9998
		PEXPIRE r 9999
		latch_status [c r k n] 5000 = [0 2 @0us 0 @-1us]
		PTTL r = 9998
		PEXPIRE c 500
		PERSIST r
		latch_status [c r k n] 5000 = [0 2 @0us 0 @-1us]
		PTTL r = 498
		PERSIST c

		# each call counts once, and so does each part
		latch_init [d r3 k3 n] 3 i1 1000 5000 ch PUBLISH 0 = [1 3 @0us 0 @-1us]
		published = [ch~1]
		latch_down [d r3 k3 n] d1 '' 1000 5000 ch PUBLISH 0 1 = [1 2 @0us 0 @-1us]
		latch_down [d r3 k3 n] d1 '' 1000 5000 ch PUBLISH 0 1 = [1 2 @0us 0 @-1us]
		latch_down [d r3 k3 n] d2 part 1000 5000 ch PUBLISH 0 1 = [1 1 @0us 0 @-1us]
		latch_down [d r3 k3 n] d3 part 1000 5000 ch PUBLISH 0 1 = [1 1 @0us 0 @-1us]
		latch_down [d r3 k3 n] d4 part 1000 5000 ch PUBLISH 1 1 = [1 1 @0us 0 @-1us]
		ZRANGE k3 0 -1 WITHSCORES = [@0us:part @1000 d1 @1000 d2 @1000 d4 @1000 i1 @1000]
		GET d = 1
		published = []

		# calls are forgotten from the ms on at which they may be
		wait 999
		latch_init [d r3 k3 n] 1 j1 2 5000 ch PUBLISH 1 = [0 1 @0us 0 @-1us]
		wait 1
		latch_down [d r3 k3 n] d5 '' 1000 5000 ch PUBLISH 0 1 = [1 0 @0us @0us @-1us]
		ZRANGE k3 0 -1 WITHSCORES = [j1 @1001.001 d5 @2000]
		published = [ch~0]
		EXISTS d = 0
		HGETALL r3 = [gone @-1us last d5 open @0us round @0us]
		latch_down [d r3 k3 n] d6 '' 1000 5000 ch PUBLISH 0 1 = [0 0 @0us @0us @-1us]
		latch_down [d r3 k3 n] d7 '' 1000 5000 ch PUBLISH 1 1 = [0 0 @0us @0us @-1us]
		latch_down [d r3 k3 n] d7 '' 1000 5000 ch PUBLISH 1 1 = [0 0 @0us @0us @-1us]
		ZRANGE k3 0 -1 WITHSCORES = [j1 @1001.001 d5 @2000 d7 @2000.001]
		latch_status [d r3 k3 n] 5000 = [0 0 @0us @0us @-1us]

		# the next round has a larger number, even if the clock went back
		HSET r3 round @9000000us open @9000000us
		latch_init [d r3 k3 n] 1 i7 1000 5000 ch PUBLISH 0 = [1 1 @9000001us @9000000us @-1us]
		DEL d
		latch_status [d r3 k3 n] 5000 = [0 0 @9000001us @9000001us @-1us]
		SET d 4
		latch_status [d r3 k3 n] 5000 = [0 4 @9000002us @9000001us @-1us]
		sent HDEL = 2
		HGETALL r3 = [gone @-1us last d5 open @9000001us round @9000002us]

		# a deletion is no opening
		published = [ch~1]
		latch_delete [d r3 k3 n] e1 1000 5000 ch PUBLISH 0 = [1 0 @9000002us @9000001us @9000002us]
		published = [ch~1]
		EXISTS d = 0
		latch_status [d r3 k3 n] 5000 = [0 0 @9000002us @9000001us @9000002us]
		latch_delete [d r3 k3 n] e1 1000 5000 ch PUBLISH 1 = [1 0 @9000002us @9000001us @9000002us]
		latch_delete [d r3 k3 n] e2 1000 5000 ch PUBLISH 0 = [0 0 @9000002us @9000001us @9000002us]
		latch_delete [d r3 k3 n] e3 1000 5000 ch PUBLISH 1 = [0 0 @9000002us @9000001us @9000002us]
		latch_delete [d r3 k3 n] e3 1000 5000 ch PUBLISH 1 = [0 0 @9000002us @9000001us @9000002us]
		published = []
		HSET r3 open 0
		SET d 0
		latch_status [d r3 k3 n] 5000 = [0 0 @9000002us 0 @9000002us]
		DEL d r3
		SET d 0
		latch_status [d r3 k3 n] 5000 = [0 0 1 1 0]
		DEL r3
		SET d -3
		latch_status [d r3 k3 n] 5000 = [0 0 1 1 0]

		# a count has up to sixteen digits; another key is left alone
		SET d 1234567890123456
		latch_status [d r3 k3 n] 5000 = [0 1234567890123456 @1000000us 1 0]
		SET d 12345678901234567
		latch_status [d r3 k3 n] 5000 = -4
		SET d 01
		latch_init [d r3 k3 n] 1 z 1000 5000 ch PUBLISH 0 = -4
		latch_down [k3 r3 k3 n] z '' 1000 5000 ch PUBLISH 0 1 = -4
		latch_delete [c d k3 n] z 1000 5000 ch PUBLISH 0 = -4
		latch_status [c r c n] 5000 = -4

		# what was told once is told again, whatever came since
		DEL d r3 k3
		latch_down [d r3 k3 n] q1 part 9000 5000 ch PUBLISH 1 1 = [0 0 0 0 0]
		latch_init [d r3 k3 n] 3 q2 9000 5000 ch PUBLISH 0 = [1 3 @1000000us 0 @999999us]
		sent HDEL = 0
		latch_down [d r3 k3 n] q1 part 9000 5000 ch PUBLISH 1 1 = [0 3 @1000000us 0 @999999us]
		latch_init [d r3 k3 n] 3 q3 9000 5000 ch PUBLISH 1 = [0 3 @1000000us 0 @999999us]
		latch_down [d r3 k3 n] q4 other 9000 5000 ch PUBLISH 1 1 = [1 2 @1000000us 0 @999999us]
		ZSCORE k3 q4 = @10000
		PEXPIRE r3 100
		latch_down [d r3 k3 n] q5 '' 9000 5000 ch PUBLISH 0 1 = [1 1 @1000000us 0 @999999us]
		PTTL r3 = 5000
		PEXPIRE r3 100
		latch_init [d r3 k3 n] 3 q6 9000 5000 ch PUBLISH 0 = [0 1 @1000000us 0 @999999us]
		PTTL r3 = 5000
		PEXPIRE r3 100
		latch_delete [d r3 k3 n] q7 9000 5000 ch PUBLISH 0 = [1 0 @1000000us 0 @1000000us]
		PTTL r3 = 5000
		latch_init [d r3 k3 n] 3 q3 9000 5000 ch PUBLISH 1 = [0 0 @1000000us 0 @1000000us]
		sent HDEL = 1
		DEL r3
		SET d 2
		latch_down [d r3 k3 n] q5 '' 9000 5000 ch PUBLISH 0 1 = [1 2 @1000000us 0 @999999us]
		PTTL r3 = 5000
		without PTTL
		latch_down [d r3 k3 n] q8 '' 9000 5000 ch PUBLISH 0 1 = !NOPERM
		latch_delete [d r3 k3 n] q8 9000 5000 ch PUBLISH 0 = !NOPERM
		without DEL
		latch_down [d r3 k3 n] q8 '' 9000 5000 ch PUBLISH 0 1 = !NOPERM
		latch_delete [d r3 k3 n] q8 9000 5000 ch PUBLISH 0 = !NOPERM
		without
		GET d = 2
		HGETALL r3 = [gone @999999us open 0 round @1000000us]
		ZSCORE k3 q8 = nil

		# a call counts for several, up to the count
		published = [ch~1 ch~1]
		SET e 5 PX 90000
		latch_down [e r4 k4 n] b1 '' 9000 5000 ch PUBLISH 0 3 = [3 2 @1000000us 0 @999999us]
		latch_down [e r4 k4 n] b1 '' 9000 5000 ch PUBLISH 1 3 = [3 2 @1000000us 0 @999999us]
		GET e = 2
		PTTL e = 90000
		published = []
		latch_down [e r4 k4 n] b2 '' 9000 5000 ch PUBLISH 0 3 = [2 0 @1000000us @1000000us @999999us]
		published = [ch~0]
		latch_down [e r4 k4 n] b3 '' 9000 5000 ch PUBLISH 1 1000 = [0 0 @1000000us @1000000us @999999us]
		ZRANGE k4 0 -1 WITHSCORES = [b1 @10000 b2 @10000.001 b3 @10000.9766]
		latch_init [e r4 k4 n] 4 b4 9000 5000 ch PUBLISH 0 = [1 4 @1000001us @1000000us @999999us]
		latch_down [e r4 k4 n] b2 '' 9000 5000 ch PUBLISH 1 3 = [2 0 @1000001us @1000000us @999999us]
		latch_down [e r4 k4 n] b3 '' 9000 5000 ch PUBLISH 1 1000 = [0 4 @1000001us @1000000us @999999us]
		published = [ch~1]

		# what is denied changes nothing
		DEL d r3 k3
		without GET
		latch_status [d r3 k3 n] 5000 = !NOPERM
		latch_init [d r3 k3 n] 1 z 1000 5000 ch PUBLISH 0 = !NOPERM
		without PTTL
		latch_init [d r3 k3 n] 1 z 1000 5000 ch PUBLISH 0 = !NOPERM
		without PEXPIRE
		latch_init [d r3 k3 n] 1 z 1000 5000 ch PUBLISH 0 = !NOPERM
		without ZADD
		latch_init [d r3 k3 n] 1 z 1000 5000 ch PUBLISH 0 = !NOPERM
		without HSET
		latch_init [d r3 k3 n] 1 z 1000 5000 ch PUBLISH 0 = !NOPERM
		EXISTS d r3 k3 = 0
		SET d 2
		latch_status [d r3 k3 n] 5000 = !NOPERM
		without
		latch_status [d r3 k3 n] 5000 = [0 2 @1000000us 0 @999999us]
		without SET
		latch_down [d r3 k3 n] z part 1000 5000 ch PUBLISH 1 1 = !NOPERM
		without HDEL
		latch_delete [d r3 k3 n] z 1000 5000 ch PUBLISH 1 = !NOPERM
		latch_init [d r3 k3 n] 1 z 1000 5000 ch PUBLISH 1 = !NOPERM
		latch_status [d r3 k3 n] 5000 = !NOPERM
		without HSET
		latch_delete [d r3 k3 n] z 1000 5000 ch PUBLISH 1 = !NOPERM
		without PEXPIRE
		latch_down [d r3 k3 n] z part 1000 5000 ch PUBLISH 1 1 = !NOPERM
		latch_delete [d r3 k3 n] z 1000 5000 ch PUBLISH 1 = !NOPERM
		without ZREM
		latch_down [d r3 k3 n] z '' 1000 5000 ch PUBLISH 1 1 = !NOPERM
		latch_delete [d r3 k3 n] z 1000 5000 ch PUBLISH 1 = !NOPERM
		without
		ZRANGE k3 0 -1 = []
		SET d 1
		without HSET
		latch_down [d r3 k3 n] z part 1000 5000 ch PUBLISH 1 1 = !NOPERM
		without
		GET d = 1
		ZRANGE k3 0 -1 = []
	`)
}

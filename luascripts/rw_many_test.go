package luascripts_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
)

// These tests show the cost of many readers. A server does nothing else while a script runs, so each call reads
// at most fifty of them.

// crowd creates a lock with alive living readers, followed by dead ones.
func (l rw) crowd(alive, dead int) {
	l.t.Helper()
	l.clear()
	do(l.t, l.rdb, "HSET", l.keys.Lock, "mode", "read")
	fields := []string{"HSET", l.keys.Lock}
	for i := range alive + dead {
		name := "G" + strconv.Itoa(i+100)
		if i < alive {
			do(l.t, l.rdb, "SET", l.lease(name, 1), "1", "PX", strconv.FormatInt(long.Milliseconds(), 10))
		}
		if fields = append(fields, owner(name), "1"); len(fields) > 2000 || i == alive+dead-1 {
			do(l.t, l.rdb, fields...)
			fields = fields[:2]
		}
	}
	l.ends(l.keys.Lock, long)
}

// calls returns how often the server has run each command since the last CONFIG RESETSTAT.
func (l rw) calls() map[string]float64 {
	l.t.Helper()
	m := do(l.t, l.rdb, "INFO", "commandstats")
	text, _ := m.ToString()
	calls := map[string]float64{}
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		n, _, _ := strings.Cut(rest, ",")
		calls[name], _ = strconv.ParseFloat(n, 64)
	}
	return calls
}

// looks returns the number of keys that each script has read since the last CONFIG RESETSTAT.
func (l rw) looks() (each float64) {
	l.t.Helper()
	calls := l.calls()
	return (calls["pttl"] + calls["hscan"] + calls["del"]) / (calls["evalsha"] + calls["eval"])
}

// crowd creates the lock of c, with times as many readers.
func (c manyCase) crowd(l rw, times int) {
	l.t.Helper()
	if strings.HasPrefix(c.name, "the last") {
		l.crowd(1, c.dead*times-1)
		return
	}
	l.crowd(c.alive*times, c.dead*times)
}

// manyCase is one call on a lock with many readers.
type manyCase struct {
	name        string
	alive, dead int // per ten readers; the test multiplies both
	run         func(l rw)
	after       int64 // the number of fields afterward; -1 is not checked
}

func manyCases() []manyCase {
	writes := func(want luascripts.Verdict) func(l rw) {
		return func(l rw) { l.expect("write", l.asksToWrite("G1").Verdict, want) }
	}
	leaves := func(name string) func(l rw) { return func(l rw) { l.stopsReading(name, luascripts.Done) } }
	sees := func(alive bool) func(l rw) {
		return func(l rw) {
			want := 0
			if alive {
				want = int(number(l.t, l.rdb, "HLEN", l.keys.Lock)) - 1
			}
			s, err := luascripts.InspectRW(l.t.Context(), l.rdb, l.keys)
			if err != nil || len(s.Fields) != want || s.Mode != "read" {
				l.t.Errorf("inspect: %d fields, mode %q, %v, want %d", len(s.Fields), s.Mode, err, want)
			}
		}
	}
	force := func(l rw) {
		got, err := luascripts.ForceRW(l.t.Context(), l.rdb, l.keys)
		check(l.t, "force", got, luascripts.Done, err)
	}
	return []manyCase{
		{"a reader comes", 10, 0, func(l rw) { l.expect("read", l.asksToRead("G1").Verdict, luascripts.Done) }, 12},
		{"a reader leaves", 10, 0, leaves("G100"), 10},
		{"the last reader leaves beside the dead", 0, 10, leaves("G100"), 0},
		{"a writer asks", 10, 0, writes(luascripts.Held), 11},
		{"a writer asks, and all are dead", 0, 10, writes(luascripts.Done), 2},
		{"Inspect", 10, 0, sees(true), 11},
		{"Inspect of the dead", 0, 10, sees(false), 11},
		{"ForceUnlock", 10, 0, force, 0},
	}
}

// No call reads more than about fifty readers, and a call that needs all of them has read all of
// them when it returns.
func TestRW_manyReaders(t *testing.T) {
	l := rw{t, redistest.Start(t).Client(t), rwKeys}
	for _, c := range manyCases() {
		const times = 200 // of ten
		t.Run(c.name, func(t *testing.T) {
			l := rw{t, l.rdb, l.keys}
			c.crowd(l, times)
			want := c.after
			if want > 2 {
				want = int64((c.alive+c.dead)*times) + c.after - int64(c.alive+c.dead)
			}
			do(t, l.rdb, "CONFIG", "RESETSTAT")
			c.run(l)
			if each := l.looks(); each > 130 {
				t.Errorf("a call looked at %.0f keys", each)
			}
			if got := number(t, l.rdb, "HLEN", l.keys.Lock); got != want {
				t.Errorf("%d fields, want %d", got, want)
			}
			if c.name == "ForceUnlock" {
				if all := contents(t, l.rdb); all != "" {
					t.Errorf("left: %.300s", all)
				}
			}
		})
	}
}

// A writer that has read only dead readers, and not all readers, has not established that there is no reader.
func TestRW_aLivingReaderBehindManyDead(t *testing.T) {
	onRW(t, func(t *testing.T, l rw) {
		for _, dead := range []int{60, 1000} { // a small hash is returned as a whole, a large one in pages
			l.crowd(1, dead) // the latest ones come first, and a call reads fifty
			l.expect("write", l.asksToWrite("G1").Verdict, luascripts.Held)
			if n := number(t, l.rdb, "HEXISTS", l.keys.Lock, owner("G100")); n != 1 {
				t.Errorf("of %d dead ones, a living reader is gone", dead)
			}
		}
		l.crowd(0, 60)
		l.expect("write", l.asksToWrite("G1").Verdict, luascripts.Done)
	})
}

// A reader that leaves, and has read only dead readers and not all readers, does not free the lock.
func TestReleaseRead_aLivingReaderBehindManyDead(t *testing.T) {
	onRW(t, func(t *testing.T, l rw) {
		l.crowd(1, 60)
		l.expect("read", l.asksToRead("G1").Verdict, luascripts.Done)
		l.stopsReading("G1", luascripts.Done)
		l.expect("write", l.asksToWrite("G2").Verdict, luascripts.Held)
		l.isNow("read G100=1(1)")
	})
}

// A writer that leaves, and has read only dead readers and not all readers, does not free the lock.
func TestReleaseWrite_aLivingReaderBehindManyDead(t *testing.T) {
	onRW(t, func(t *testing.T, l rw) {
		for _, dead := range []int{60, 1000} { // a small hash is returned as a whole, a large one in pages
			l.crowd(1, dead)
			do(t, l.rdb, "HSET", l.keys.Lock, "mode", "write", owner("G1")+":write", "1")
			l.stopsWriting("G1", luascripts.Done)
			l.expect("write", l.asksToWrite("G2").Verdict, luascripts.Held)
			if n := number(t, l.rdb, "HEXISTS", l.keys.Lock, owner("G100")); n != 1 {
				t.Errorf("of %d dead ones, a living reader is gone", dead)
			}
			l.stopsReading("G100", luascripts.Done)
			l.stopsWriting("G2", luascripts.Gone)

			l.crowd(0, dead)
			do(t, l.rdb, "HSET", l.keys.Lock, "mode", "write", owner("G1")+":write", "1")
			l.stopsWriting("G1", luascripts.Done)
			if all := contents(t, l.rdb); all != "" {
				t.Errorf("left of %d dead ones:\n%.300s", dead, all)
			}
		}
	})
}

// A writer that leaves, and has not read all readers, does not shorten the lease of a reader that it has not read.
func TestReleaseWrite_aLongerLeaseBehindManyDead(t *testing.T) {
	onRW(t, func(t *testing.T, l rw) {
		for _, alive := range []int{1, 60} {
			l.crowd(alive, 60)
			l.held("write G9=1(1) G1:write=1", time.Minute)
			l.ends(l.keys.Lock, long)
			l.stopsWriting("G1", luascripts.Done)
			about(t, "the hash", pttl(t, l.rdb, l.keys.Lock), long)
		}
	})
}

// A leftover field of a writer, for example a manual one, keeps no other writer out.
func TestRW_aFieldBesideTheDead(t *testing.T) {
	onRW(t, func(t *testing.T, l rw) {
		l.held("read G2=1() G9:write=1", long)
		l.expect("write", l.asksToWrite("G1").Verdict, luascripts.Done)
		l.isNow("write G1:write=1")
	})
}

// Processes crash while others keep reading without a gap. The fields of the dead are removed by
// readers that leave, a few at a time.
func TestRW_theDeadDoNotStay(t *testing.T) {
	l := rw{t, redistest.Start(t).Client(t), rwKeys}
	l.crowd(50, 1000)
	for i := 0; i < 2000 && number(t, l.rdb, "HLEN", l.keys.Lock) > 150; i++ {
		l.expect("read", l.asksToRead("G1").Verdict, luascripts.Done)
		l.stopsReading("G1", luascripts.Done)
	}
	if n := number(t, l.rdb, "HLEN", l.keys.Lock); n > 150 {
		t.Errorf("%d fields, of 50 readers", n)
	}
	if s, err := luascripts.InspectRW(t.Context(), l.rdb, l.keys); err != nil || len(s.Fields) != 50 {
		t.Errorf("%d read, %v, want 50", len(s.Fields), err)
	}
}

// A reader with very many holds costs the server no more per call, whether it enters, leaves or renews, or another client
// reads the lock.
func TestRW_workOfManyHolds(t *testing.T) {
	s := redistest.Start(t)
	l := rw{t, s.Client(t), rwKeys}
	read := func(want int) func() {
		return func() {
			l.t.Helper()
			l.expect("read", l.asksToRead("G1", func(q *luascripts.Request) { q.Want = want }).Verdict, luascripts.Done)
		}
	}
	leave := func(leave int) func() {
		return func() {
			l.t.Helper()
			got, err := luascripts.ReleaseRead(t.Context(), l.rdb, l.keys, owner("G1"), leave)
			check(t, "release", got, luascripts.Done, err)
		}
	}
	const holds = 3000
	for n := range holds {
		read(n + 1)()
	}
	for _, c := range []struct {
		name string
		call func()
	}{
		{"reentry", read(holds + 1)},
		{"a second copy", read(holds + 1)},
		{"renewal", func() {
			renewed := luascripts.RenewRead(t.Context(), l.rdb, []luascripts.Renewal{{Keys: &l.keys, Owner: owner("G1")}}, long, 1)
			check(t, "renewal", renewed[0].Verdict, luascripts.Done, renewed[0].Err)
		}},
		{"another reader", func() { l.expect("read", l.asksToRead("G2").Verdict, luascripts.Done) }},
		{"another reader leaves", func() { l.stopsReading("G2", luascripts.Done) }},
		{"a writer", func() { l.expect("write", l.asksToWrite("G3").Verdict, luascripts.Held) }},
		{"Inspect", func() {
			if s, err := luascripts.InspectRW(t.Context(), l.rdb, l.keys); err != nil || len(s.Fields) != 1 {
				t.Errorf("inspect: %+v, %v", s, err)
			}
		}},
		{"release of one", leave(holds)},
		{"release of very many", leave(2)},
		{"back", read(holds)},
		{"release of all", leave(0)},
		{"to be forced", func() { l.stopsWriting("G3", luascripts.Gone); read(1)(); read(holds)() }},
		{"ForceUnlock", func() {
			got, err := luascripts.ForceRW(t.Context(), l.rdb, l.keys)
			check(t, "force", got, luascripts.Done, err)
		}},
	} {
		do(t, l.rdb, "CONFIG", "RESETSTAT")
		c.call()
		n := 0.0
		for _, calls := range l.calls() {
			n += calls
		}
		if n > 45 {
			t.Errorf("%s: %.0f commands", c.name, n)
		}
	}
	if all := withoutIntent(contents(t, l.rdb)); all != "" {
		t.Errorf("left behind:\n%.300s", all)
	}
}

// TestRW_table prints the server time of each operation, by the number of readers:
// LEASEHOLD_TABLE=1 go test -run TestRW_table -v ./luascripts
func TestRW_table(t *testing.T) {
	if os.Getenv("LEASEHOLD_TABLE") == "" {
		t.Skip("LEASEHOLD_TABLE is not set")
	}
	l := rw{t, redistest.Start(t).Client(t), rwKeys}
	do(t, l.rdb, "CONFIG", "SET", "slowlog-log-slower-than", "0", "slowlog-max-len", "100000")
	fmt.Println("| | readers | calls | longest call | all calls |\n|---|---|---|---|---|")
	for _, c := range manyCases() {
		for _, times := range []int{1, 10, 100, 1000} {
			c.crowd(l, times)
			do(t, l.rdb, "SLOWLOG", "RESET")
			c.run(l)
			var longest, sum time.Duration
			calls := 0
			m := do(t, l.rdb, "SLOWLOG", "GET", "-1")
			entries, err := m.ToArray()
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				parts, _ := e.ToArray()
				us, _ := parts[2].ToInt64()
				command, _ := parts[3].AsStrSlice()
				if strings.HasPrefix(strings.ToUpper(command[0]), "EVAL") {
					took := time.Duration(us) * time.Microsecond
					calls, sum, longest = calls+1, sum+took, max(longest, took)
				}
			}
			fmt.Printf("| %s | %d | %d | %v | %v |\n", c.name, 10*times, calls, longest, sum)
		}
	}
}

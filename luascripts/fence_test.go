package luascripts_test

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

const (
	younger = 1_795_225_388_576_200 // like a token, a time in µs
	older   = younger - 1
)

// guarded returns a fence around the key "data".
func guarded(token uint64) luascripts.Fence {
	return luascripts.Fence{Data: "data", TokenCounter: "leasehold_fence:{data}", Token: token}
}

// guard is a guarded write, and its effect on an empty database.
type guard struct {
	write func(t *testing.T, rdb rueidis.Client, f luascripts.Fence) (luascripts.Fenced, error)
	left  string
}

var pushFenced = luascripts.NewOwnFenced(`return redis.call('RPUSH', KEYS[1], ARGV[1])`)

var guards = map[string]guard{
	"set": {func(t *testing.T, rdb rueidis.Client, f luascripts.Fence) (luascripts.Fenced, error) {
		return luascripts.SetFenced(t.Context(), rdb, f, "v")
	}, "data* string [\"v\"]\n"},
	"hset": {func(t *testing.T, rdb rueidis.Client, f luascripts.Fence) (luascripts.Fenced, error) {
		return luascripts.HSetFenced(t.Context(), rdb, f, "a", "1", "b", "2")
	}, "data* hash [\"a=1\" \"b=2\"]\n"},
	"del": {func(t *testing.T, rdb rueidis.Client, f luascripts.Fence) (luascripts.Fenced, error) {
		return luascripts.DelFenced(t.Context(), rdb, f)
	}, ""},
	"own": {func(t *testing.T, rdb rueidis.Client, f luascripts.Fence) (luascripts.Fenced, error) {
		_, got, err := pushFenced.Exec(t.Context(), rdb, f, nil, []string{"v"})
		return got, err
	}, "data* list [\"v\"]\n"},
}

// eachGuard runs a test for each guard, on both servers, starting from an empty database.
func eachGuard(t *testing.T, f func(t *testing.T, rdb rueidis.Client, g guard)) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		for _, name := range slices.Sorted(maps.Keys(guards)) {
			do(t, rdb, "FLUSHALL")
			t.Run(name, func(t *testing.T) { f(t, rdb, guards[name]) })
		}
	})
}

func registered(token uint64) string {
	return fmt.Sprintf("leasehold_fence:{data}* string [\"%d\"]\n", token)
}

// A rejected write changes nothing. An accepted one raises the token counter.
func TestFence(t *testing.T) {
	for _, c := range []struct {
		name             string
		tokenCounter     string // "" means none
		token            uint64
		verdict          luascripts.Verdict
		highest, becomes uint64
	}{
		{"the first", "", older, luascripts.Done, 0, older},
		{"the same again", strconv.Itoa(older), older, luascripts.Done, 0, older},
		{"a younger one", strconv.Itoa(older), younger, luascripts.Done, 0, younger},
		{"an older one", strconv.Itoa(younger), older, luascripts.Stale, younger, younger},
		{"fewer digits, and more as text", "1000", 999, luascripts.Stale, 1000, 1000},
		{"more digits, and less as text", "999", 1000, luascripts.Done, 0, 1000},
		{"a counter's first", "", 1, luascripts.Done, 0, 1},
		{"beyond doubles, older", "9007199254740993", 9007199254740992, luascripts.Stale, 9007199254740993, 9007199254740993},
		{"beyond doubles, younger", "9007199254740992", 9007199254740993, luascripts.Done, 0, 9007199254740993},
		{"the largest, older", strconv.FormatUint(math.MaxUint64, 10), math.MaxUint64 - 1, luascripts.Stale, math.MaxUint64, math.MaxUint64},
		{"the largest", strconv.FormatUint(math.MaxUint64-1, 10), math.MaxUint64, luascripts.Done, 0, math.MaxUint64},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachGuard(t, func(t *testing.T, rdb rueidis.Client, g guard) {
				want := registered(c.becomes)
				if c.verdict == luascripts.Done {
					want = g.left + want
				}
				if c.tokenCounter != "" {
					do(t, rdb, "SET", "leasehold_fence:{data}", c.tokenCounter)
				}
				got, err := g.write(t, rdb, guarded(c.token))
				if err != nil || got != (luascripts.Fenced{Verdict: c.verdict, Highest: c.highest}) {
					t.Errorf("%+v, %v, want %d and %d", got, err, c.verdict, c.highest)
				}
				if left := contents(t, rdb); left != want {
					t.Errorf("left\n%swant\n%s", left, want)
				}
			})
		})
	}
}

// A repeated write changes nothing, unless the script itself adds something.
func TestFence_again(t *testing.T) {
	eachGuard(t, func(t *testing.T, rdb rueidis.Client, g guard) {
		if strings.Contains(g.left, "list") {
			return // a push adds an element each time
		}
		for range 2 {
			got, err := g.write(t, rdb, guarded(older))
			check(t, "write", got.Verdict, luascripts.Done, err)
			if left := contents(t, rdb); left != g.left+registered(older) {
				t.Errorf("left\n%s", left)
			}
		}
	})
}

// After a delete, an older holder cannot create the key again.
func TestFence_deleted(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		for _, make := range [][]string{{"SET", "data", "x"}, {"HSET", "data", "f", "x"}, {"RPUSH", "data", "x"}} {
			do(t, rdb, "FLUSHALL")
			do(t, rdb, make...)
			got, err := luascripts.DelFenced(t.Context(), rdb, guarded(younger))
			check(t, "delete", got.Verdict, luascripts.Done, err)
			if got, err = luascripts.SetFenced(t.Context(), rdb, guarded(older), "back"); err != nil || got.Highest != younger {
				t.Errorf("a write by an older holder: %+v, %v", got, err)
			}
			if left := contents(t, rdb); left != registered(younger) {
				t.Errorf("left\n%s", left)
			}
		}
	})
}

// Each write restarts the expiry of the token counter. A rejection does not change it.
func TestFence_keep(t *testing.T) {
	eachGuard(t, func(t *testing.T, rdb rueidis.Client, g guard) {
		tokenCounter := guarded(0).TokenCounter
		write := func(token uint64, keep time.Duration, want luascripts.Verdict) {
			t.Helper()
			f := guarded(token)
			f.Keep = keep
			got, err := g.write(t, rdb, f)
			check(t, "write", got.Verdict, want, err)
		}
		write(younger, time.Hour, luascripts.Done)
		about(t, "after an hour's", pttl(t, rdb, tokenCounter), time.Hour)
		write(younger, 2*time.Hour, luascripts.Done)
		about(t, "after two hours'", pttl(t, rdb, tokenCounter), 2*time.Hour)
		write(older, 3*time.Hour, luascripts.Stale)
		about(t, "after a refusal", pttl(t, rdb, tokenCounter), 2*time.Hour)
		write(older, 0, luascripts.Stale)
		about(t, "after a refusal without an end", pttl(t, rdb, tokenCounter), 2*time.Hour)
		write(younger, 0, luascripts.Done)
		if left := number(t, rdb, "PTTL", tokenCounter); left != -1 {
			t.Errorf("for ever: %d ms", left)
		}
	})
}

// A token counter or data of the wrong type do not change.
func TestFence_foreign(t *testing.T) {
	eachGuard(t, func(t *testing.T, rdb rueidis.Client, g guard) {
		for _, make := range [][]string{{"HSET", "leasehold_fence:{data}", "f", "1"}, {"SET", "leasehold_fence:{data}", "soon"}, {"SET", "leasehold_fence:{data}", "-1"}, {"SET", "leasehold_fence:{data}", ""}, {"SET", "leasehold_fence:{data}", "007"}} {
			do(t, rdb, "FLUSHALL")
			do(t, rdb, make...)
			before := contents(t, rdb)
			got, err := g.write(t, rdb, guarded(younger))
			check(t, "write", got.Verdict, luascripts.Foreign, err)
			if after := contents(t, rdb); after != before {
				t.Errorf("the register was\n%sand is\n%s", before, after)
			}
		}
	})
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		do(t, rdb, "ZADD", "data", "1", "x")
		before := contents(t, rdb)
		for _, name := range []string{"set", "hset"} {
			if got, err := guards[name].write(t, rdb, guarded(younger)); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
				t.Errorf("%s over a zset: %+v, %v", name, got, err)
			}
		}
		if after := contents(t, rdb); after != before {
			t.Errorf("the data was\n%sand is\n%s", before, after)
		}
	})
}

// On a full server, a write that needs memory is rejected without a trace. A delete works.
func TestFence_fullMemory(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	for _, tokenCounter := range []string{"", strconv.Itoa(older)} {
		s.Do(t, "CONFIG", "SET", "maxmemory", "0")
		s.Do(t, "FLUSHALL")
		s.Do(t, "SET", "data", "x")
		if tokenCounter != "" {
			s.Do(t, "SET", "leasehold_fence:{data}", tokenCounter)
		}
		before := contents(t, rdb)
		full(t, s)
		if got, err := luascripts.SetFenced(t.Context(), rdb, guarded(younger), "v"); err == nil || !strings.Contains(err.Error(), "OOM") {
			t.Errorf("set: %+v, %v, want OOM", got, err)
		}
		f := guarded(younger)
		f.Data, f.TokenCounter = "hash", "leasehold_fence:{hash}"
		if got, err := luascripts.HSetFenced(t.Context(), rdb, f, "a", "1"); err == nil || !strings.Contains(err.Error(), "OOM") {
			t.Errorf("hset: %+v, %v, want OOM", got, err)
		}
		if after := contents(t, rdb); after != before {
			t.Errorf("what was\n%sis now\n%s", before, after)
		}
		got, err := luascripts.DelFenced(t.Context(), rdb, guarded(younger))
		check(t, "delete", got.Verdict, luascripts.Done, err)
		if left := contents(t, rdb); left != registered(younger) {
			t.Errorf("a delete leaves\n%s", left)
		}
	}
}

// Whichever command is denied, the result is an error, and never data without its token counter.
func TestFence_deniedCommands(t *testing.T) {
	s := redistest.Start(t)
	admin := s.Client(t)
	for name, g := range guards {
		if name == "own" {
			continue // the author of the script chooses its commands
		}
		for _, deny := range append(commands("fence_"+name), "evalsha") {
			s.Do(t, "FLUSHALL")
			if name == "del" {
				s.Do(t, "SET", "data", "x")
			}
			before := contents(t, admin)
			if got, err := g.write(t, denied(t, s, deny), guarded(younger)); err == nil {
				t.Errorf("%s without %s: %+v", name, deny, got)
			}
			want := before
			if deny == "hset" || deny == "del" {
				want += registered(younger) // the data is rejected, and so are older holders
			}
			if after := contents(t, admin); after != want {
				t.Errorf("%s without %s leaves\n%s", name, deny, after)
			}
		}
	}
}

// A user's script has its own KEYS, ARGV and reply.
func TestFence_ownScript(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		f := guarded(younger)
		f.Data, f.TokenCounter = "{data}1", "leasehold_fence:{data}1"
		run := func(text string, more, args []string) (rueidis.RedisMessage, luascripts.Fenced, error) {
			return luascripts.NewOwnFenced(text).Exec(t.Context(), rdb, f, more, args)
		}
		args := make([]string, 1, 9) // spare capacity that belongs to the caller
		args[0] = "x"
		m, _, err := run(`return {table.concat(KEYS, ' '), table.concat(ARGV, ' '), #KEYS .. ' and ' .. #ARGV}`, []string{"{data}2", "{data}3"}, args)
		if list, _ := m.AsStrSlice(); err != nil || !slices.Equal(list, []string{"{data}1 {data}2 {data}3", "x", "3 and 1"}) {
			t.Errorf("it sees %q, %v", list, err)
		}
		if args = args[:3]; args[1] != "" {
			t.Errorf("the arguments became %q", args)
		}
		m, _, err = run(`local stale, raise, token = 1, 2, 3 return stale + raise + token`, nil, nil)
		if n, _ := m.AsInt64(); err != nil || n != 6 {
			t.Errorf("names of its own: %d, %v", n, err)
		}
		if m, got, err := run(`return nil`, nil, nil); err != nil || !m.IsNil() || got.Verdict != luascripts.Done {
			t.Errorf("nothing: %v, %+v, %v", m, got, err)
		}
		if _, got, err := run(`return redis.error_reply('SORRY not today')`, nil, nil); err == nil || !strings.Contains(err.Error(), "SORRY") || got != (luascripts.Fenced{}) {
			t.Errorf("an error: %+v, %v", got, err)
		}
		if n := number(t, rdb, "EXISTS", f.TokenCounter); n != 1 {
			t.Errorf("a script that failed left %d registers", n)
		}

		// A rejected script does not run.
		f.Token = older
		m, got, err := run(`redis.call('SET', KEYS[1], 'x') return 1`, nil, nil)
		if err != nil || got != (luascripts.Fenced{Verdict: luascripts.Stale, Highest: younger}) || m != (rueidis.RedisMessage{}) {
			t.Errorf("an older holder: %v, %+v, %v", m, got, err)
		}
		if n := number(t, rdb, "EXISTS", f.Data); n != 0 {
			t.Error("it wrote")
		}
	})
}

// HSet accepts more fields than Lua can unpack at once, and values of any bytes.
func TestFence_hsetLarge(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		var fields []string
		for i := range 10_000 {
			fields = append(fields, strconv.Itoa(i), "\x00\xff\r\n"+strconv.Itoa(i))
		}
		got, err := luascripts.HSetFenced(t.Context(), rdb, guarded(younger), fields...)
		check(t, "hset", got.Verdict, luascripts.Done, err)
		if n := number(t, rdb, "HLEN", "data"); n != 10_000 {
			t.Errorf("%d fields", n)
		}
		m := do(t, rdb, "HGET", "data", "9999")
		if v, _ := m.ToString(); v != "\x00\xff\r\n9999" {
			t.Errorf("the last is %q", v)
		}
	})
}

// No reply of a broken server counts as an accepted or a rejected write.
func FuzzFenceReplies(f *testing.F) {
	for _, s := range []string{":1\r\n", ":0\r\n", ":-1\r\n", "$1\r\n1\r\n", "$-1\r\n", "+OK\r\n", "*1\r\n:1\r\n", "-FENCED 5\r\n", "-FENCED\r\n", "-FENCED x\r\n", "-FENCED -1\r\n", "-FENCEKEY x\r\n", "-ERR x\r\n", "-FENCEDKEY 1\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, reply []byte) {
		rdb, ok := answering(t, reply)
		if !ok {
			return
		}
		got, err := luascripts.SetFenced(t.Context(), rdb, guarded(3), "v")
		var bad *luascripts.ReplyError
		switch {
		case err != nil && got != (luascripts.Fenced{}):
			t.Errorf("an error with a verdict: %+v, %v", got, err)
		case errors.As(err, &bad) && bad.Script != "fence_set":
			t.Errorf("an error without its script: %v", err)
		case err == nil && got.Verdict == luascripts.Done && strings.TrimLeft(string(reply), ":0") != "1\r\n":
			t.Errorf("done by %q", reply)
		case err == nil && got.Verdict == luascripts.Stale && !strings.HasPrefix(string(reply), "-FENCED "):
			t.Errorf("stale by %q", reply)
		case err == nil && got.Verdict == luascripts.Foreign && !strings.HasPrefix(string(reply), "-FENCEKEY"):
			t.Errorf("foreign by %q", reply)
		}
	})
}

// A write whose token is smaller than one already seen is rejected. The token counter lives as long as the call
// specifies.
func TestFence_transcript(t *testing.T) {
	play(t, `
		fence_set [d r] 5 0 one = 1
		GET r = 5
		PTTL r = -1
		fence_set [d r] 5 1000 two = 1
		PTTL r = 1000
		fence_set [d r] 4 0 three = !FENCED
		fence_set [d r] 10 0 four = 1
		GET d = four
		fence_set [d r] 9 0 five = !FENCED
		fence_hset [h r] 9 0 f v = !FENCED
		fence_hset [h r] 10 0 f v = 1
		fence_hset [d r] 11 0 f v = !WRONGTYPE
		GET r = 10
		fence_set [h r] 11 0 v = !WRONGTYPE
		GET r = 10
		fence_del [d r] 9 0 = !FENCED
		fence_del [d r] 10 500 = 1
		PTTL r = 500
		EXISTS d = 0
		fence_del [d r] 10 0 = 1
		SET r 0
		fence_set [d r] 9 0 five = !FENCEKEY
		SET r 1x
		fence_set [d r] 9 0 five = !FENCEKEY
		fence_set [d h] 9 0 five = !FENCEKEY
		without GET
		fence_set [d r] 9 0 five = !NOPERM
		without
		EXISTS d = 0
		SET r 5
		include_fence_body [r] 4 0 = !FENCED
		include_fence_body [r] 6 0 = nil
		GET r = 6
	`)
}

// A user's script is sent as text once, and by its digest afterward, like all other scripts.
func TestOwnScripts_byTheirDigest(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	permitted := luascripts.NewPermitted("return redis.call('SET', KEYS[1], ARGV[1])")
	for range 3 {
		if _, _, err := pushFenced.Exec(t.Context(), rdb, guarded(younger), []string{"list"}, []string{"a"}); err != nil {
			t.Error(err)
		}
		if _, _, err := permitted.Exec(t.Context(), rdb, semaphoreKeys(3), taker(1, 1), []string{"data"}, []string{"a"}); err != nil {
			t.Error(err)
		}
	}
	if n := s.CommandCalls(t, "eval"); n != 2 {
		t.Errorf("two scripts were sent with their texts %d times", n)
	}
}

package luascripts_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

var (
	hourly = luascripts.LimitRule{Rate: 10, Burst: 10, Per: time.Hour}
	dozen  = luascripts.LimitRule{Rate: 12, Burst: 12, Per: 24 * time.Hour}
	yearly = luascripts.LimitRule{Rate: 100, Per: 365 * 24 * time.Hour, Aligned: true}
)

func want(n int64) luascripts.LimitRequest {
	return luascripts.LimitRequest{Units: n, Times: 1, Least: n}
}

// askLimit sends requests for one key.
func askLimit(ctx context.Context, rdb rueidis.Client, key string, rules luascripts.LimitRules, requests []luascripts.LimitRequest) (at int64, replies []luascripts.LimitReply, v luascripts.Verdict, err error) {
	a := luascripts.SendLimits(ctx, rdb, []luascripts.LimitCall{{Key: key, Rules: rules, Requests: requests}}, true, always)[0]
	return a.At, a.Replies, a.Verdict, a.Err
}

func takeUnits(t *testing.T, rdb rueidis.Client, key string, rules luascripts.LimitRules, requests ...luascripts.LimitRequest) (at int64, replies []luascripts.LimitReply) {
	t.Helper()
	at, replies, v, err := askLimit(t.Context(), rdb, key, rules, requests)
	if err != nil || v != luascripts.Done || len(replies) != len(requests) {
		t.Fatalf("take of %q: %+v, %d, %v", key, replies, v, err)
	}
	return at, replies
}

// refundUnits refunds permits that would have been used at a server time.
func refundUnits(t *testing.T, rdb rueidis.Client, key string, rules luascripts.LimitRules, units, at int64) {
	t.Helper()
	takeUnits(t, rdb, key, rules, luascripts.RefundRequest(units, at))
}

func TestLimit_severalRequests(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		rules := luascripts.NewLimitRules(hourly, dozen)
		three := want(3)
		three.Times = 5
		_, r := takeUnits(t, rdb, "k", rules, want(0), want(2), three, luascripts.LimitRequest{Units: 4, Times: 1, Least: 1}, want(1), want(11),
			luascripts.LimitRequest{Units: 1, Times: 1, Least: 1, Wait: time.Hour}, want(0))
		for i, wanted := range []struct{ taken, left int64 }{{0, 10}, {2, 8}, {6, 2}, {2, 0}, {0, 0}, {0, 0}, {1, 0}, {0, 0}} {
			if r[i].Taken != wanted.taken || r[i].Remaining != wanted.left {
				t.Errorf("request %d: %+v, want %+v", i+1, r[i], wanted)
			}
		}
		about(t, "refused 1 of 10 an hour", r[4].Retry, 6*time.Minute)
		about(t, "waits for 1", r[6].Delay, 6*time.Minute)
		if r[5].Retry != luascripts.Never || r[3].Retry != 0 || r[0].Limit != 0 {
			t.Errorf("retry %v and %v, want never and 0; limit %d", r[5].Retry, r[3].Retry, r[0].Limit)
		}
		about(t, "nothing is owed", r[7].Reset, 22*time.Hour)
		about(t, "the key ends", pttl(t, rdb, "k"), 22*time.Hour+2*time.Millisecond)
	})
}

// A caller takes a large burst in full, or exactly the rest that another one left, and not one permit more, although doubles are
// rounded.
func TestLimit_wholeLargeBurst(t *testing.T) {
	m := redistest.NewMini(t)
	rdb := m.Client(t)
	m.SetTime(time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC))
	rules := []luascripts.LimitRule{{Rate: 125_000_000, Burst: 125_000_000, Per: 24 * time.Hour}}
	for random := rand.New(rand.NewPCG(1, 2)); len(rules) < 300; {
		burst := int64(math.Exp(1 + random.Float64()*(math.Log(1e14)-1)))
		rules = append(rules, luascripts.LimitRule{Rate: 1 + burst/(1+random.Int64N(30)), Burst: burst, Per: time.Duration(1+random.IntN(48)) * time.Hour})
	}
	for i, rule := range rules {
		for limits, rules := range []luascripts.LimitRules{luascripts.NewLimitRules(rule), luascripts.NewLimitRules(rule, rule)} {
			for part, first := range []int64{0, 1 + rule.Burst/3, rule.Burst - 1} {
				key := fmt.Sprint(i, limits, part)
				rest := rule.Burst - first
				for _, c := range []struct{ wants, gets, left int64 }{{first, first, rest}, {rest, rest, 0}, {1, 0, 0}} {
					_, r := takeUnits(t, rdb, key, rules, want(c.wants))
					if r[0].Taken != c.gets || r[0].Remaining != c.left {
						t.Errorf("%+v, %d: a caller for %d gets %+v", rule, first, c.wants, r[0])
					}
				}
			}
		}
	}
}

// Each reply names one limit: the one that rejected the call, or else the one with the fewest permits left.
func TestLimit_named(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		perHour := func(rate, burst int64) luascripts.LimitRule {
			return luascripts.LimitRule{Rate: rate, Burst: burst, Per: time.Hour}
		}
		aligned := luascripts.LimitRule{Rate: 6, Per: 100 * 365 * 24 * time.Hour, Aligned: true} // until 2070
		of := func(n int64, times int, least int64, wait time.Duration) luascripts.LimitRequest {
			return luascripts.LimitRequest{Units: n, Times: times, Least: least, Wait: wait}
		}
		for name, c := range map[string]struct {
			rules     []luascripts.LimitRule
			before    int64
			q         luascripts.LimitRequest
			limit     int
			left      int64
			next      time.Duration // of the limit; about a century for an aligned one
			retry     time.Duration
			remaining int64
		}{
			"one limit":                     {[]luascripts.LimitRule{perHour(60, 3)}, 0, want(1), 0, 2, time.Minute, 0, 2},
			"one limit, nothing is left":    {[]luascripts.LimitRule{perHour(60, 3)}, 2, want(1), 0, 0, time.Minute, 0, 0},
			"one limit, all is left":        {[]luascripts.LimitRule{perHour(60, 3)}, 0, want(0), 0, 3, 0, 0, 3},
			"the first has less":            {[]luascripts.LimitRule{perHour(60, 3), perHour(6, 6)}, 0, want(3), 0, 0, time.Minute, 0, 0},
			"the second has less":           {[]luascripts.LimitRule{perHour(6, 6), perHour(60, 3)}, 0, want(3), 1, 0, time.Minute, 0, 0},
			"a tie":                         {[]luascripts.LimitRule{perHour(60, 3), perHour(6, 3)}, 0, want(3), 1, 0, 10 * time.Minute, 0, 0},
			"a tie, the other way round":    {[]luascripts.LimitRule{perHour(6, 3), perHour(60, 3)}, 0, want(2), 0, 1, 10 * time.Minute, 0, 1},
			"a tie with an aligned one":     {[]luascripts.LimitRule{perHour(6, 6), aligned}, 0, want(6), 1, 0, -1, 0, 0},
			"refused by the first":          {[]luascripts.LimitRule{perHour(60, 3), perHour(6, 6)}, 3, want(1), 0, 0, time.Minute, time.Minute, 0},
			"refused by both, on a tie":     {[]luascripts.LimitRule{perHour(60, 3), perHour(6, 3)}, 3, want(1), 1, 0, 10 * time.Minute, 10 * time.Minute, 0},
			"fewer than the least":          {[]luascripts.LimitRule{perHour(60, 3), perHour(6, 4)}, 1, of(4, 1, 3, 0), 0, 2, time.Minute, time.Minute, 2},
			"refused later by the richer":   {[]luascripts.LimitRule{perHour(60, 4), perHour(6, 5)}, 2, want(4), 1, 3, 10 * time.Minute, 10 * time.Minute, 2},
			"refused by an aligned one":     {[]luascripts.LimitRule{perHour(60, 8), aligned}, 5, want(2), 1, 1, -1, -1, 1},
			"more than the smallest burst":  {[]luascripts.LimitRule{perHour(60, 8), perHour(6, 5), perHour(60, 6)}, 1, want(7), 1, 4, 10 * time.Minute, luascripts.Never, 4},
			"served and refused callers":    {[]luascripts.LimitRule{perHour(60, 3), perHour(6, 3)}, 0, of(1, 5, 1, 0), 1, 0, 10 * time.Minute, 10 * time.Minute, 0},
			"behind a caller that waits":    {[]luascripts.LimitRule{perHour(60, 3), perHour(6, 3)}, 3, of(1, 1, 1, time.Hour), 1, 0, 20 * time.Minute, 0, 0},
			"up to, and one limit has more": {[]luascripts.LimitRule{perHour(60, 3), perHour(6, 6)}, 1, of(5, 1, 1, 0), 0, 0, time.Minute, 0, 0},
		} {
			key, rules := name, luascripts.NewLimitRules(c.rules...)
			if c.before > 0 {
				takeUnits(t, rdb, key, rules, want(c.before))
			}
			_, r := takeUnits(t, rdb, key, rules, c.q)
			if r[0].Limit != c.limit || r[0].Left != c.left || r[0].Remaining != c.remaining {
				t.Errorf("%s: limit %d, which has %d left, of all %d: want %d, %d, %d", name, r[0].Limit, r[0].Left, r[0].Remaining, c.limit, c.left, c.remaining)
			}
			for what, times := range map[string][2]time.Duration{"next": {r[0].Next, c.next}, "retry": {r[0].Retry, c.retry}} {
				switch is, wanted := times[0], times[1]; {
				case wanted == -1 && what == "next" || wanted == -1 && c.limit == 1 && name == "refused by an aligned one":
					if is < 365*24*time.Hour {
						t.Errorf("%s: %s in %v, want the end of a window of a century", name, what, is)
					}
				case wanted <= 0:
					if is != wanted {
						t.Errorf("%s: %s in %v, want %v", name, what, is, wanted)
					}
				default:
					about(t, name+": "+what, is, wanted)
				}
			}
		}
	})
}

// After a reset, a key behaves as if no caller had taken anything, for all limits, even those that the caller does not have. It
// is executed in order with the other requests.
func TestLimit_reset(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		all, one := luascripts.NewLimitRules(hourly, yearly), luascripts.NewLimitRules(hourly)
		line := want(4)
		line.Wait = time.Hour
		_, r := takeUnits(t, rdb, "k", all, want(8), line, want(1), luascripts.ResetRequest(), want(0), want(9))
		for i, left := range []int64{2, 0, 0, 10, 10, 1} {
			if r[i].Remaining != left {
				t.Errorf("request %d: %+v, want %d left", i+1, r[i], left)
			}
		}
		if r[4].Reset != 0 || r[4].Limit != 0 {
			t.Errorf("after the reset: %+v", r[4])
		}
		takeUnits(t, rdb, "k", one, luascripts.ResetRequest())
		for number(t, rdb, "EXISTS", "k") != 0 { // it may live for one more ms
		}
		if _, r := takeUnits(t, rdb, "k", all, want(0)); r[0].Remaining != 10 || r[0].Reset != 0 {
			t.Errorf("after a reset by a caller of one limit: %+v", r[0])
		}
		takeUnits(t, rdb, "nothing", one, luascripts.ResetRequest())
		if n := number(t, rdb, "EXISTS", "nothing"); n != 0 {
			t.Error("a reset made a key")
		}
		takeUnits(t, rdb, "window", luascripts.NewLimitRules(yearly), want(5))
		takeUnits(t, rdb, "window", luascripts.NewLimitRules(yearly), luascripts.ResetRequest())
		for number(t, rdb, "EXISTS", "window") != 0 {
		}
	})
}

// The latest reservation is for a later window. After a reset, the current window counts again.
func TestLimit_resetOfALaterWindow(t *testing.T) {
	rdb, _ := limitState(t, "gcra %d 3600000000 1795356000000000:10") // until 14:00
	rules := luascripts.NewLimitRules(luascripts.LimitRule{Rate: 10, Per: time.Hour, Aligned: true})
	if _, r := takeUnits(t, rdb, "k", rules, luascripts.ResetRequest(), want(10)); r[1].Taken != 10 {
		t.Errorf("%+v, want all ten", r)
	}
}

// Refunded permits are available to the next request of the same call.
func TestLimit_refundAndTake(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		rules := luascripts.NewLimitRules(dozen)
		at, _ := takeUnits(t, rdb, "k", rules, want(12))
		_, r := takeUnits(t, rdb, "k", rules, want(12), luascripts.RefundRequest(12, at), want(11))
		if r[0].Taken != 0 || r[1].Taken != 0 || r[2].Taken != 11 {
			t.Errorf("%+v, want nothing, and eleven after the refund", r)
		}
	})
}

// The sum of what many callers want can overflow 64 bits.
func TestLimit_manyWantMuch(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		q := want(1_000_000_000_000_000)
		q.Times = 10_000
		_, r := takeUnits(t, rdb, "k", luascripts.NewLimitRules(hourly), q)
		if r[0].Taken != 0 || r[0].Remaining != 10 || r[0].Retry != luascripts.Never {
			t.Errorf("%+v", r[0])
		}
	})
}

// The used quota of limits that the caller does not have is kept.
func TestLimit_otherCallersStates(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		all, one := luascripts.NewLimitRules(hourly, dozen, yearly), luascripts.NewLimitRules(hourly)
		takeUnits(t, rdb, "k", all, want(7))
		takeUnits(t, rdb, "k", one, want(1))
		if _, r := takeUnits(t, rdb, "k", all, want(0)); r[0].Remaining != 2 || r[0].Limit != 0 {
			t.Errorf("%+v, want 2 of the hour left", r[0])
		}
		faster := luascripts.LimitRule{Rate: 100, Burst: 100, Per: time.Hour}
		if _, r := takeUnits(t, rdb, "k", luascripts.NewLimitRules(faster, dozen, yearly), want(0)); r[0].Remaining != 5 || r[0].Limit != 1 {
			t.Errorf("%+v, want 5 of the day left", r[0])
		}
		takeUnits(t, rdb, "k", luascripts.NewLimitRules(faster, dozen), want(1))
		if _, r := takeUnits(t, rdb, "k", luascripts.NewLimitRules(faster, luascripts.LimitRule{Rate: 100, Burst: 100, Per: time.Hour}, luascripts.LimitRule{Rate: 10, Per: yearly.Per, Aligned: true}), want(0)); r[0].Remaining != 0 {
			t.Errorf("%+v, want nothing of 10 a year left", r[0])
		}
	})
}

// When the server's clock moves backward, the used quota neither grows nor shrinks.
func TestLimit_clockGoesBack(t *testing.T) {
	m := redistest.NewMini(t)
	rdb := m.Client(t)
	noon := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	at := func(when time.Time) { m.SetTime(when) }
	rules := luascripts.NewLimitRules(hourly, luascripts.LimitRule{Rate: 8, Per: 24 * time.Hour, Aligned: true})
	at(noon)
	takeUnits(t, rdb, "k", rules, want(6))
	for _, back := range []time.Duration{time.Millisecond, time.Hour, 30 * 24 * time.Hour} {
		at(noon.Add(-back))
		if _, r := takeUnits(t, rdb, "k", rules, want(0)); r[0].Remaining != 2 || r[0].Reset > 24*time.Hour {
			t.Errorf("%v back: %+v, want 2 left, and less than a day", back, r[0])
		}
	}
	at(noon.Add(-30 * 24 * time.Hour))
	takeUnits(t, rdb, "k", rules, want(1))
	at(noon.Add(-29 * 24 * time.Hour))
	if _, r := takeUnits(t, rdb, "k", rules, want(0)); r[0].Remaining != 8 {
		t.Errorf("a day later: %+v, want 8 left", r[0])
	}

	// A key without permits is refilled according to the new time, although a rejected call takes nothing.
	for name, rule := range map[string]luascripts.LimitRule{"bucket": hourly, "windows": {Rate: 10, Per: time.Hour, Aligned: true}} {
		rules := luascripts.NewLimitRules(rule)
		at(noon)
		takeUnits(t, rdb, name, rules, want(10))
		for _, step := range []struct {
			after time.Duration
			taken int64
		}{{0, 0}, {time.Minute, 0}, {time.Hour, 1}} {
			at(noon.Add(step.after - 24*time.Hour))
			if _, r := takeUnits(t, rdb, name, rules, want(1)); r[0].Taken != step.taken || r[0].Retry > time.Hour {
				t.Errorf("%s, %v after the clock was set back: %+v, want %d taken", name, step.after, r[0], step.taken)
			}
		}
	}
}

func TestLimit_foreign(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		do(t, rdb, "HSET", "hash", "f", "1")
		for name, text := range map[string]string{"counter": "17", "text": "gcra", "words": "gcra 1 2 x", "time": "gcra x 0 0", "later": "gcra 1 x 0", "gap": "gcra 1 0 0 ~1"} {
			do(t, rdb, "SET", name, text)
		}
		before := contents(t, rdb)
		rules := luascripts.NewLimitRules(hourly)
		for _, key := range []string{"hash", "counter", "text", "words", "time", "later", "gap"} {
			_, _, v, err := askLimit(t.Context(), rdb, key, rules, []luascripts.LimitRequest{want(1)})
			check(t, "take of "+key, v, luascripts.Foreign, err)
			for what, q := range map[string]luascripts.LimitRequest{"refund": luascripts.RefundRequest(1, 1), "reset": luascripts.ResetRequest()} {
				_, _, v, err := askLimit(t.Context(), rdb, key, rules, []luascripts.LimitRequest{q})
				check(t, what+" of "+key, v, luascripts.Foreign, err)
			}
		}
		if after := contents(t, rdb); after != before {
			t.Errorf("the script changed a foreign key:\n%s\n%s", before, after)
		}
	})
}

func TestLimit_refund(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		rules := luascripts.NewLimitRules(hourly, yearly)
		at, _ := takeUnits(t, rdb, "k", rules, want(10))
		refundUnits(t, rdb, "k", rules, 4, at)
		// A few µs of the used quota were refilled since the permits were taken.
		_, r := takeUnits(t, rdb, "k", rules, want(0))
		if r[0].Remaining != 4 && r[0].Remaining != 3 {
			t.Errorf("%+v, want 4 left", r[0])
		}
		before := contents(t, rdb)
		refundUnits(t, rdb, "k", luascripts.NewLimitRules(hourly), 4, at-3*time.Hour.Microseconds())
		if after := contents(t, rdb); after != before {
			t.Errorf("a refund of units that time has given back changed the key:\n%s\n%s", before, after)
		}
		refundUnits(t, rdb, "nothing", rules, 4, at)
		if n := number(t, rdb, "EXISTS", "nothing"); n != 0 {
			t.Error("a refund made a key")
		}
	})
}

func TestLimit_faults(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	rules := luascripts.NewLimitRules(hourly)
	takeUnits(t, rdb, "k", rules, want(1))
	before := contents(t, rdb)
	for _, command := range []string{"get", "set", "time"} {
		_, _, _, err := askLimit(t.Context(), denied(t, s, command), "k", rules, []luascripts.LimitRequest{want(1)})
		// Redis before 7.2 uses the first text, later servers the second.
		if err == nil || !strings.Contains(err.Error(), "can't run this command") && !strings.Contains(err.Error(), "has no permissions") {
			t.Errorf("without %s: %v", command, err)
		}
	}
	full(t, s)
	if _, _, _, err := askLimit(t.Context(), rdb, "k", rules, []luascripts.LimitRequest{want(1)}); err == nil || !strings.Contains(err.Error(), "OOM") {
		t.Errorf("a full memory: %v", err)
	}
	s.Do(t, "CONFIG", "SET", "maxmemory", "0")
	if after := contents(t, rdb); after != before {
		t.Errorf("a failed script changed the key:\n%s\n%s", before, after)
	}
}

// A reply that the script never sends is an error.
func TestLimit_replies(t *testing.T) {
	rules := luascripts.NewLimitRules(hourly)
	good := []int64{1_795_000_000_000_000, 1, 0, 9, 0, 0, 1, 9, 0}
	reply := func(n ...int64) []byte {
		text := fmt.Sprintf("*%d\r\n", len(n))
		for _, i := range n {
			text += fmt.Sprintf(":%d\r\n", i)
		}
		return []byte(text)
	}
	ask := func(t *testing.T, b []byte) error {
		rdb, _ := answering(t, b)
		_, _, _, err := askLimit(t.Context(), rdb, "k", rules, []luascripts.LimitRequest{want(1)})
		return err
	}
	if err := ask(t, reply(good...)); err != nil {
		t.Fatal(err)
	}
	for i := range good {
		bad := append([]int64(nil), good...)
		bad[i] = -2
		if ask(t, reply(bad...)) == nil {
			t.Errorf("%d is taken for an answer", bad)
		}
	}
	for _, b := range []string{"+OK\r\n", ":1\r\n", "$-1\r\n", "*0\r\n", "*1\r\n:1795000000000000\r\n", "*2\r\n:1795000000000000\r\n:1\r\n", "*3\r\n:1795000000000000\r\n:-4\r\n:-4\r\n", "*2\r\n:1795000000000000\r\n$1\r\nx\r\n"} {
		if ask(t, []byte(b)) == nil {
			t.Errorf("%q is taken for an answer", b)
		}
	}
	for i, n := range map[int]int64{1: 2, 6: 2, 0: 0} {
		bad := append([]int64(nil), good...)
		bad[i] = n
		if ask(t, reply(bad...)) == nil {
			t.Errorf("%d is taken for an answer", bad)
		}
	}
}

// always repeats every rejected call for each key alone.
func always(error) bool { return true }

// One pipeline has requests for several keys, even for a server that has not loaded the script.
func TestLimit_severalKeys(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		do(t, rdb, "HSET", "hash", "f", "1")
		var calls []luascripts.LimitCall
		for i, key := range []string{"a", "hash", "b"} {
			calls = append(calls, luascripts.LimitCall{Key: key, Rules: luascripts.NewLimitRules(hourly), Requests: []luascripts.LimitRequest{want(int64(i + 1))}})
		}
		for round, left := range [][3]int64{{9, 0, 7}, {8, 0, 4}} {
			for i, a := range luascripts.SendLimits(t.Context(), rdb, calls, true, always) {
				if i == 1 {
					check(t, "a hash", a.Verdict, luascripts.Foreign, a.Err)
				} else if a.Err != nil || a.Replies[0].Remaining != left[i] {
					t.Errorf("round %d, key %d: %+v, want %d left", round, i, a, left[i])
				}
			}
		}
	})
}

// Keys with the same rules share a call of the script.
func TestLimit_sharedCall(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	rules, others := luascripts.NewLimitRules(hourly), luascripts.NewLimitRules(hourly, dozen)
	do(t, rdb, "HSET", "hash", "f", "1")
	call := func(key string, rules luascripts.LimitRules, requests ...luascripts.LimitRequest) luascripts.LimitCall {
		return luascripts.LimitCall{Key: key, Rules: rules, Requests: requests}
	}
	all := []luascripts.LimitCall{
		call("a", rules, want(1)), call("b", rules, want(11)), call("hash", rules, want(1)), call("c", rules, want(2), want(3)), call("d", rules, want(0)),
		call("e", others, want(4)), call("f", others, want(5)),
		call("a", rules, want(9)),
	}
	rest := func(a luascripts.LimitCallReply) (left []int64) {
		for _, r := range a.Replies {
			left = append(left, r.Remaining)
		}
		return left
	}
	ask := func(t *testing.T, rdb rueidis.Client, together bool, wanted ...[]int64) {
		t.Helper()
		for i, a := range luascripts.SendLimits(t.Context(), rdb, all, together, always) {
			if !slices.Equal(rest(a), wanted[i]) || (a.Verdict == luascripts.Foreign) != (all[i].Key == "hash") {
				t.Errorf("key %d: %+v, want %d left", i, a, wanted[i])
			}
		}
	}
	calls := func() int64 { return s.CommandCallsByClients(t, "evalsha") + s.CommandCallsByClients(t, "eval") }

	ask(t, rdb, false, []int64{9}, []int64{10}, nil, []int64{8, 5}, []int64{10}, []int64{6}, []int64{5}, []int64{0})
	do(t, rdb, "DEL", "a", "c", "e", "f")
	before := calls()
	ask(t, rdb, true, []int64{9}, []int64{10}, nil, []int64{8, 5}, []int64{10}, []int64{6}, []int64{5}, []int64{0})
	if n := calls() - before; n != 3 {
		t.Errorf("%d calls of the script for three rows of neighbours with the same rules, want 3", n)
	}
	if n := number(t, rdb, "EXISTS", "b", "d"); n != 0 {
		t.Errorf("a request that took nothing left %d keys", n)
	}

	t.Run("one key is denied", func(t *testing.T) {
		do(t, rdb, "DEL", "a", "c", "e", "f")
		some := s.Client(t, s.AddUser(t, "some", "+@all", "~a", "~b", "~d", "~hash"))
		answers := luascripts.SendLimits(t.Context(), some, all, true, always)
		for i, a := range answers {
			key := all[i].Key
			if denied := strings.Contains("cef", key); denied != (a.Err != nil) {
				t.Errorf("%s: %+v", key, a)
			}
		}
		if left := rest(answers[0]); !slices.Equal(left, []int64{0}) { // the rejected call was repeated when 9 of 10 permits were taken
			t.Errorf("after 9 and 1 of 10 units %d are left: what was refused was carried out", left)
		}
	})
	t.Run("the memory is full", func(t *testing.T) {
		do(t, rdb, "DEL", "a", "c", "e", "f")
		full(t, s)
		defer s.Do(t, "CONFIG", "SET", "maxmemory", "0")
		for i, a := range luascripts.SendLimits(t.Context(), rdb, all, true, always) {
			takes := all[i].Key != "b" && all[i].Key != "d" && all[i].Key != "hash"
			if takes != (a.Err != nil && strings.Contains(a.Err.Error(), "OOM")) {
				t.Errorf("%s: %+v", all[i].Key, a)
			}
		}
	})
	t.Run("one key has a strange value", func(t *testing.T) {
		do(t, rdb, "DEL", "a", "c")
		do(t, rdb, "SET", "b", "gcra 1795000000000000 0 inf")
		defer do(t, rdb, "DEL", "b")
		for i, a := range luascripts.SendLimits(t.Context(), rdb, all[:5], true, always) {
			if strange := all[i].Key == "b"; strange != (a.Err != nil) {
				t.Errorf("%s: %+v", all[i].Key, a)
			}
		}
	})
	t.Run("many requests", func(t *testing.T) {
		var many []luascripts.LimitCall
		for i := range 40 {
			many = append(many, call(fmt.Sprint("many:", i), rules, want(1), want(2), want(3)))
		}
		before := calls()
		for i, a := range luascripts.SendLimits(t.Context(), rdb, many, true, always) {
			if !slices.Equal(rest(a), []int64{9, 7, 4}) {
				t.Errorf("key %d: %+v", i, a)
			}
		}
		if n := calls() - before; n != 2 {
			t.Errorf("%d calls of the script for 120 requests, want 2", n)
		}
	})
}

// On a cluster where one slot has no node, the calls for keys in other slots succeed, unless an earlier copy of them may have
// run.
func TestLimit_aSlotWithoutANode(t *testing.T) {
	c := redistest.StartCluster(t, "--cluster-require-full-coverage", "no")
	c.Unassign(t, "a")
	rules := luascripts.NewLimitRules(hourly)
	var calls []luascripts.LimitCall
	for _, key := range []string{"a", "b", "c"} {
		calls = append(calls, luascripts.LimitCall{Key: key, Rules: rules, Requests: []luascripts.LimitRequest{want(1)}})
	}
	for _, resend := range []bool{false, true} {
		for i, a := range luascripts.SendLimits(t.Context(), c.Client(t), calls, false, func(error) bool { return resend }) {
			if served := calls[i].Key != "a" && resend; served != (a.Err == nil) || !served && !errors.Is(a.Err, rueidis.ErrNoSlot) {
				t.Errorf("%s, resend %v: %+v", calls[i].Key, resend, a)
			}
		}
	}
}

// A limit that the key stores as a different kind of limit starts over, with its full quota.
func TestLimit_anotherKind(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		aligned := luascripts.LimitRule{Rate: 8, Per: 24 * 365 * time.Hour, Aligned: true}
		kinds := []luascripts.LimitRules{luascripts.NewLimitRules(hourly), luascripts.NewLimitRules(aligned)}
		for i, before := range kinds {
			do(t, rdb, "FLUSHALL")
			takeUnits(t, rdb, "k", before, want(6))
			_, r := takeUnits(t, rdb, "k", kinds[1-i], want(0))
			if left := []int64{8, 10}[i]; r[0].Remaining != left || r[0].Reset != 0 {
				t.Errorf("%+v, want %d left, and nothing owed", r[0], left)
			}
		}
		do(t, rdb, "FLUSHALL")
		at, _ := takeUnits(t, rdb, "k", kinds[1], want(6))
		refundUnits(t, rdb, "k", kinds[1], 4, at)
		if _, r := takeUnits(t, rdb, "k", kinds[1], want(0)); r[0].Remaining != 6 {
			t.Errorf("%+v, want 6 left", r[0])
		}
	})
}

// The key lives until all quotas are full, even those of limits that the caller does not have.
func TestLimit_expiryForOthers(t *testing.T) {
	onBoth(t, func(t *testing.T, rdb rueidis.Client) {
		long := luascripts.LimitRule{Rate: 10, Burst: 10, Per: 1000 * time.Hour}
		for _, other := range []luascripts.LimitRule{long, {Rate: 10, Per: 100 * 24 * 365 * time.Hour, Aligned: true}} {
			do(t, rdb, "FLUSHALL")
			takeUnits(t, rdb, "k", luascripts.NewLimitRules(hourly, other), want(5))
			before := pttl(t, rdb, "k")
			takeUnits(t, rdb, "k", luascripts.NewLimitRules(hourly), want(1))
			about(t, "the key ends", pttl(t, rdb, "k"), before+2*time.Millisecond) // both calls round up
		}
	})
}

// limitState sets a key to a state of a limiter at noon, and returns a function that reads it.
func limitState(t *testing.T, format string) (rdb rueidis.Client, text func() string) {
	m := redistest.NewMini(t)
	rdb = m.Client(t)
	noon := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	m.SetTime(noon)
	do(t, rdb, "SET", "k", fmt.Sprintf(format, noon.UnixMicro()))
	return rdb, func() string {
		m := do(t, rdb, "GET", "k")
		s, err := m.ToString()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
}

// What a reservation refunded ahead of others is stored while others are queued and it can still affect any limit, and no longer.
func TestLimit_gapsThatCount(t *testing.T) {
	rules := luascripts.NewLimitRules(luascripts.LimitRule{Rate: 3600, Burst: 10, Per: time.Hour}, luascripts.LimitRule{Rate: 3600, Burst: 10, Per: time.Hour})
	for name, c := range map[string]struct {
		state string
		stays bool
	}{
		"it makes a debt":                {"gcra %d 5000000 15000000 15000000 ~-1000000~3000000~3000000", true},
		"it makes a debt by one limit":   {"gcra %d 5000000 15000000 15000000 ~-1000000~500000~3000000", true},
		"its debt is paid":               {"gcra %d 5000000 15000000 15000000 ~-4000000~3000000~3000000", false},
		"nobody is in line":              {"gcra %d 0 5000000 5000000 ~-1000000~3000000~3000000", false},
		"nobody is in line, and it paid": {"gcra %d 0 5000000 5000000 ~-4000000~3000000~3000000", false},
	} {
		rdb, text := limitState(t, c.state)
		q := want(1)
		q.Wait = time.Hour
		if _, r := takeUnits(t, rdb, "k", rules, q); r[0].Taken != 1 {
			t.Errorf("%s: %+v", name, r[0])
		}
		if got := text(); strings.Contains(got, "~") != c.stays {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// A caller with more limits is queued. A caller with only one of them, which has enough permits, comes after it.
func TestLimit_aReservationOfMoreLimits(t *testing.T) {
	rdb, _ := limitState(t, "gcra %d 5000000 0 15000000")
	_, r := takeUnits(t, rdb, "k", luascripts.NewLimitRules(luascripts.LimitRule{Rate: 3600, Burst: 10, Per: time.Hour}), want(1))
	if r[0].Taken != 0 || r[0].Remaining != 0 || r[0].Retry != 5*time.Second {
		t.Errorf("%+v, want none for 5 s", r[0])
	}
}

// The latest reservation is for a later window. Until then, that limit has no permits left.
func TestLimit_aReservationOfALaterWindow(t *testing.T) {
	rdb, _ := limitState(t, "gcra %d 3600000000 7000000 1795356000000000:1") // until 14:00
	rules := luascripts.NewLimitRules(luascripts.LimitRule{Rate: 3600, Burst: 10, Per: time.Hour}, luascripts.LimitRule{Rate: 10, Per: time.Hour, Aligned: true})
	if _, r := takeUnits(t, rdb, "k", rules, want(0)); r[0].Remaining != 0 || r[0].Limit != 1 {
		t.Errorf("%+v, want that the second has the least left", r[0])
	}
}

// Transcript of the replies and the state of a rate limiter, exact to the µs: buckets, aligned windows, reservations and refunds.
func TestLimit_transcript(t *testing.T) {
	play(t, `
		# a bucket of ten, which gets one each 100 ms
		limit_take [k] 1 10 1000000 10 1 3 1 3 0 = [@0us 3 0 7 0 300000 1 7 100000]
		GET k = gcra~@0us~0~300000
		PTTL k = 301
		limit_take [k] 1 10 1000000 10 1 8 1 8 0 = [@0us 0 0 7 100000 300000 1 7 100000]
		limit_take [k] 1 10 1000000 10 1 8 1 5 0 = [@0us 7 0 0 0 1000000 1 0 100000]
		limit_take [k] 1 10 1000000 10 1 0 1 0 0 = [@0us 0 0 0 0 1000000 1 0 100000]
		limit_take [k] 1 10 1000000 10 1 1 1 1 99999 = [@0us 0 0 0 100000 1000000 1 0 100000]
		limit_take [k] 1 10 1000000 10 1 11 1 11 9999999 = [@0us 0 0 0 -1 1000000 1 0 100000]
		GET k = gcra~@0us~0~1000000
		wait 100
		limit_take [k] 1 10 1000000 10 1 1 1 1 0 = [@100000us 1 0 0 0 1000000 1 0 100000]
		limit_take [k] 1 10 1000000 10 1 2 3 2 0 = [@100000us 0 0 0 200000 1000000 1 0 100000]
		wait 350
		limit_take [k] 1 10 1000000 10 1 2 3 2 0 = [@450000us 2 0 1 50000 850000 1 1 50000]
		GET k = gcra~@450000us~0~850000

		# a reservation waits for its turn, and what comes later waits behind it
		limit_take [k] 1 10 1000000 10 1 3 1 3 249999 = [@450000us 3 150000 0 0 1150000 1 0 250000]
		limit_take [k] 1 10 1000000 10 1 3 1 3 250000 = [@450000us 0 0 0 450000 1150000 1 0 250000]
		GET k = gcra~@450000us~150000~1150000
		PTTL k = 1151
		limit_take [k] 1 10 1000000 10 1 1 1 1 0 = [@450000us 0 0 0 250000 1150000 1 0 250000]
		limit_take [k] 1 10 1000000 10 1 1 1 1 249999 = [@450000us 0 0 0 250000 1150000 1 0 250000]
		limit_take [k] 1 10 1000000 10 1 1 1 1 250000 = [@450000us 1 250000 0 0 1250000 1 0 350000]
		limit_take [k] 1 10 1000000 10 1 2 1 1 1000000 = [@450000us 1 350000 0 0 1350000 1 0 450000]
		GET k = gcra~@450000us~350000~1350000
		limit_take [k] 1 10 1000000 10 1 0 1 0 0 = [@450000us 0 0 0 0 1350000 1 0 450000]

		# the latest one that is given back frees its turn; one before it leaves a gap, until those behind it have left
		limit_take [k] 1 10 1000000 10 1 -1 1 @800000us 0 = [@450000us 0 0 0 0 1250000 1 0 350000]
		GET k = gcra~@450000us~250000~1250000
		limit_take [k] 1 10 1000000 10 1 -3 1 @700000us 0 = [@450000us 0 0 0 0 950000 1 0 50000]
		GET k = gcra~@450000us~0~950000
		limit_take [k] 1 10 1000000 10 1 -1 1 @800000us 0 = [@450000us 0 0 1 0 850000 1 1 50000]
		GET k = gcra~@450000us~0~850000
		limit_take [k] 1 10 1000000 10 1 -1 1 @900000us 0 = [@450000us 0 0 2 0 750000 1 2 50000]
		GET k = gcra~@450000us~0~750000
		limit_take [k] 1 10 1000000 10 1 -2 1 @0us 0 = [@450000us 0 0 2 0 750000 1 2 50000]
		GET k = gcra~@450000us~0~750000
		wait 300
		limit_take [k] 1 10 1000000 10 1 -2 1 @450000us 0 = [@750000us 0 0 5 0 450000 1 5 50000]
		GET k = gcra~@450000us~0~750000
		limit_take [k] 1 10 1000000 10 1 -2 1 @650000us 0 = [@750000us 0 0 6 0 350000 1 6 50000]
		GET k = gcra~@750000us~0~350000
		limit_take [k] 1 10 1000000 10 1 0 0 0 0 = [@750000us 0 0 10 0 0 1 10 0]
		GET k = gcra~@750000us~0~0
		PTTL k = 1
		DEL k
		limit_take [k] 1 10 1000000 10 1 0 0 0 0 = [@750000us 0 0 10 0 0 1 10 0]
		EXISTS k = 0

		# several turns in a row, given back from the front to the end
		limit_take [k] 1 10 1000000 10 1 10 1 10 0 = [@750000us 10 0 0 0 1000000 1 0 100000]
		limit_take [k] 1 10 1000000 10 5 1 1 1 9999999 2 1 2 9999999 1 1 1 9999999 3 1 3 9999999 1 1 1 9999999 = [@750000us 1 100000 0 0 1100000 1 0 200000 2 300000 0 0 1300000 1 0 400000 1 400000 0 0 1400000 1 0 500000 3 700000 0 0 1700000 1 0 800000 1 800000 0 0 1800000 1 0 900000]
		GET k = gcra~@750000us~800000~1800000
		limit_take [k] 1 10 1000000 10 1 -2 1 @1050000us 0 = [@750000us 0 0 0 0 1800000 1 0 900000]
		limit_take [k] 1 10 1000000 10 1 -1 1 @850000us 0 = [@750000us 0 0 0 0 1800000 1 0 900000]
		limit_take [k] 1 10 1000000 10 1 -1 1 @1150000us 0 = [@750000us 0 0 0 0 1800000 1 0 900000]
		GET k = gcra~@750000us~800000~1800000~&100000&100000~&300000&200000~&400000&100000
		wait 120
		limit_take [k] 1 10 1000000 10 1 0 1 0 0 = [@870000us 0 0 0 0 1680000 1 0 780000]
		limit_take [k] 1 10 1000000 10 1 -1 1 @1550000us 0 = [@870000us 0 0 0 0 1580000 1 0 680000]
		GET k = gcra~@870000us~580000~1580000~&-20000&100000~&180000&200000~&280000&100000
		limit_take [k] 1 10 1000000 10 1 -3 1 @1450000us 0 = [@870000us 0 0 1 0 900000 1 1 100000]
		GET k = gcra~@870000us~0~900000
		limit_take [k] 1 10 1000000 10 1 1 1 1 0 = [@870000us 1 0 0 0 1000000 1 0 100000]
		wait 1000
		limit_take [k] 1 10 1000000 10 1 1 1 1 0 = [@1870000us 1 0 9 0 100000 1 9 100000]
		GET k = gcra~@1870000us~0~100000
		DEL k

		# aligned intervals: five in each second
		limit_take [k] 1 5 1000000 0 1 3 1 3 0 = [@1870000us 3 0 2 0 130000 1 2 130000]
		GET k = gcra~@1870000us~0~@2000000us:3
		PTTL k = 131
		limit_take [k] 1 5 1000000 0 1 3 1 3 0 = [@1870000us 0 0 2 130000 130000 1 2 130000]
		limit_take [k] 1 5 1000000 0 1 3 1 1 0 = [@1870000us 2 0 0 0 130000 1 0 130000]
		limit_take [k] 1 5 1000000 0 1 1 1 1 0 = [@1870000us 0 0 0 130000 130000 1 0 130000]
		limit_take [k] 1 5 1000000 0 1 6 1 6 9999999 = [@1870000us 0 0 0 -1 130000 1 0 130000]
		GET k = gcra~@1870000us~0~@2000000us:5
		limit_take [k] 1 5 1000000 0 1 4 1 4 9999999 = [@1870000us 4 130000 0 0 1130000 1 0 130000]
		limit_take [k] 1 5 1000000 0 1 4 1 4 9999999 = [@1870000us 4 1130000 0 0 2130000 1 0 1130000]
		GET k = gcra~@1870000us~1130000~@4000000us:4:@3000000us:4
		PTTL k = 2131
		limit_take [k] 1 5 1000000 0 1 1 1 1 0 = [@1870000us 0 0 0 1130000 2130000 1 0 1130000]
		limit_take [k] 1 5 1000000 0 1 -3 1 @2000000us 0 = [@1870000us 0 0 0 0 2130000 1 0 1130000]
		GET k = gcra~@1870000us~1130000~@4000000us:4:@3000000us:1
		limit_take [k] 1 5 1000000 0 1 -4 1 @4000000us 0 = [@1870000us 0 0 0 0 2130000 1 0 1130000]
		GET k = gcra~@1870000us~1130000~@4000000us:4:@3000000us:1
		limit_take [k] 1 5 1000000 0 1 -4 1 @3000000us 0 = [@1870000us 0 0 0 0 1130000 1 0 130000]
		GET k = gcra~@1870000us~130000~@3000000us:1
		limit_take [k] 1 5 1000000 0 1 -1 1 @2000000us 0 = [@1870000us 0 0 0 0 0 1 0 130000]
		GET k = gcra~@1870000us~130000~@3000000us:0
		wait 1130
		limit_take [k] 1 5 1000000 0 1 0 1 0 0 = [@3000000us 0 0 5 0 0 1 5 0]
		limit_take [k] 1 5 1000000 0 1 2 2 2 0 = [@3000000us 4 0 1 0 1000000 1 1 1000000]
		limit_take [k] 1 5 1000000 0 1 -1 1 @3100000us 0 = [@3000000us 0 0 2 0 1000000 1 2 1000000]
		GET k = gcra~@3000000us~0~@4000000us:3
		limit_take [k] 1 5 1000000 0 1 -2 1 @2100000us 0 = [@3000000us 0 0 2 0 1000000 1 2 1000000]
		GET k = gcra~@3000000us~0~@4000000us:3
		limit_take [k] 1 5 1000000 0 1 0 0 0 0 = [@3000000us 0 0 5 0 0 1 5 0]
		GET k = gcra~@3000000us~0~@4000000us:0
		PTTL k = 1
		DEL k

		# this interval counts again if the callers that wait for a later one leave
		limit_take [k] 1 5 1000000 0 1 4 1 4 0 = [@3000000us 4 0 1 0 1000000 1 1 1000000]
		limit_take [k] 1 5 1000000 0 2 2 1 2 9999999 1 1 1 9999999 = [@3000000us 2 1000000 0 0 2000000 1 0 1000000 1 1000000 0 0 2000000 1 0 1000000]
		GET k = gcra~@3000000us~1000000~@5000000us:3:@4000000us:4
		limit_take [k] 1 5 1000000 0 1 -1 1 @3000000us 0 = [@3000000us 0 0 0 0 2000000 1 0 1000000]
		limit_take [k] 1 5 1000000 0 1 -2 1 @4000000us 0 = [@3000000us 0 0 0 0 2000000 1 0 1000000]
		GET k = gcra~@3000000us~1000000~@5000000us:1:@4000000us:3
		limit_take [k] 1 5 1000000 0 1 -1 1 @4000000us 0 = [@3000000us 0 0 2 0 1000000 1 2 1000000]
		GET k = gcra~@3000000us~0~@4000000us:3
		limit_take [k] 1 5 1000000 0 2 3 1 3 9999999 0 0 0 0 = [@3000000us 3 1000000 0 0 2000000 1 0 1000000 0 0 5 0 0 1 5 0]
		GET k = gcra~@3000000us~0~@4000000us:0
		DEL k

		# two limits: units come of both or of none, and the scarcest is named
		limit_take [k] 2 10 1000000 10 20 60000000 20 1 4 1 4 0 = [@3000000us 4 0 6 0 12000000 1 6 100000]
		GET k = gcra~@3000000us~0~400000~12000000
		limit_take [k] 2 10 1000000 10 20 60000000 20 1 7 1 7 0 = [@3000000us 0 0 6 100000 12000000 1 6 100000]
		wait 500
		limit_take [k] 2 10 1000000 10 20 60000000 20 1 9 1 9 0 = [@3500000us 9 0 1 0 38500000 1 1 100000]
		limit_take [k] 2 10 1000000 10 20 60000000 20 1 8 1 8 0 = [@3500000us 0 0 1 2500000 38500000 2 7 2500000]
		limit_take [k] 2 10 1000000 10 20 60000000 20 1 8 1 7 0 = [@3500000us 0 0 1 600000 38500000 1 1 100000]
		limit_take [k] 2 10 1000000 10 20 60000000 20 1 11 1 11 9999999 = [@3500000us 0 0 1 -1 38500000 1 1 100000]
		limit_take [k] 2 10 1000000 10 20 60000000 20 1 3 1 3 9999999 = [@3500000us 3 200000 0 0 47500000 1 0 300000]
		GET k = gcra~@3500000us~200000~1200000~47500000
		PTTL k = 47501
		limit_take [k] 1 10 1000000 10 1 1 1 1 9999999 = [@3500000us 1 300000 0 0 1300000 1 0 400000]
		GET k = gcra~@3500000us~300000~1300000~47500000
		PTTL k = 47501
		limit_take [k] 2 10 1000000 10 20 60000000 20 1 -3 1 @9999999us 0 = [@3500000us 0 0 0 0 38500000 1 0 100000]
		GET k = gcra~@3500000us~0~1000000~38500000
		DEL k

		# the key lives until nothing is owed of any limit, of whichever caller
		limit_take [k] 2 20 60000000 20 10 1000000 10 1 4 1 4 0 = [@3500000us 4 0 6 0 12000000 2 6 100000]
		PTTL k = 12001
		limit_take [k] 1 20 60000000 20 1 1 1 1 0 = [@3500000us 1 0 15 0 15000000 1 15 3000000]
		PTTL k = 15001
		DEL k
		limit_take [k] 2 10 60000000 10 5 1000000 0 1 4 1 4 0 = [@3500000us 4 0 1 0 24000000 2 1 500000]
		PTTL k = 24001
		limit_take [k] 1 10 60000000 10 1 1 1 1 0 = [@3500000us 1 0 5 0 30000000 1 5 6000000]
		GET k = gcra~@3500000us~0~30000000~@4000000us:4
		PTTL k = 30001
		DEL k

		# of equal limits the first one is named; a smaller rate leaves nothing of a larger one
		limit_take [k] 2 10 1000000 10 10 1000000 10 1 4 1 4 0 = [@3500000us 4 0 6 0 400000 1 6 100000]
		limit_take [k] 2 10 1000000 10 10 1000000 10 1 11 1 11 0 = [@3500000us 0 0 6 -1 400000 1 6 100000]
		limit_take [k] 2 10 1000000 10 10 1000000 10 1 1 2 1 0 = [@3500000us 2 0 4 0 600000 1 4 100000]
		DEL k
		limit_take [k] 1 9 1000000 0 1 7 1 7 0 = [@3500000us 7 0 2 0 500000 1 2 500000]
		limit_take [k] 1 5 1000000 0 1 0 1 0 0 = [@3500000us 0 0 0 0 500000 1 0 500000]
		limit_take [k] 1 5 1000000 0 1 1 1 1 0 = [@3500000us 0 0 0 500000 500000 1 0 500000]

		# a bucket empties with time, also where the clock goes back
		DEL k
		limit_take [k] 1 10 1000000 100 1 3 1 3 0 = [@3500000us 3 0 97 0 300000 1 97 100000]
		wait 100
		limit_take [k] 1 10 1000000 100 1 1 1 1 0 = [@3600000us 1 0 97 0 300000 1 97 100000]
		GET k = gcra~@3600000us~0~300000
		SET k gcra~@3900000us~0~300000
		limit_take [k] 1 10 1000000 100 1 1 1 1 0 = [@3600000us 1 0 96 0 400000 1 96 100000]
		GET k = gcra~@3600000us~0~400000

		# a refund of nothing writes nothing
		DEL k
		limit_take [k] 1 10 1000000 10 1 -1 1 @3600000us 0 = [@3600000us 0 0 10 0 0 1 10 0]
		EXISTS k = 0

		# turns that are a single µs apart are two
		limit_take [k] 1 1000000 1000000 1 3 1 1 1 0 1 1 1 999 1 1 1 999 = [@3600000us 1 0 0 0 1 1 0 1 1 1 0 0 2 1 0 2 1 2 0 0 3 1 0 3]
		limit_take [k] 1 1000000 1000000 1 1 -1 1 @3600001us 0 = [@3600000us 0 0 0 0 3 1 0 3]
		GET k = gcra~@3600000us~2~3~&1&1

		# what comes back to one of several limits shortens the wait by what the others leave
		DEL k
		limit_take [k] 2 1 1000000 1 5 1000000 0 3 1 1 1 0 1 1 1 9999999 1 1 1 9999999 = [@3600000us 1 0 0 0 1000000 1 0 1000000 1 1000000 0 0 2000000 1 0 2000000 1 2000000 0 0 3000000 1 0 3000000]
		GET k = gcra~@3600000us~2000000~3000000~@6000000us:1:@5000000us:1
		limit_take [k] 2 1 1000000 1 5 1000000 0 1 -1 1 @5600000us 0 = [@3600000us 0 0 0 0 2000000 1 0 2000000]
		GET k = gcra~@3600000us~1000000~2000000~@5000000us:1
		DEL k
		limit_take [k] 2 1 1000000 1 5 60000000 0 3 1 1 1 0 1 1 1 9999999 1 1 1 9999999 = [@3600000us 1 0 0 0 56400000 1 0 1000000 1 1000000 0 0 56400000 1 0 2000000 1 2000000 0 0 56400000 1 0 3000000]
		limit_take [k] 2 1 1000000 1 5 60000000 0 1 -1 1 @5600000us 0 = [@3600000us 0 0 0 0 56400000 1 0 2000000]
		GET k = gcra~@3600000us~1000000~2000000~@60000000us:2
		SET k gcra~@3600000us~100000~1100000
		limit_take [k] 1 10 1000000 5 1 -1 1 @3700000us 0 = [@3600000us 0 0 0 0 1000000 1 0 600000]
		GET k = gcra~@3600000us~100000~1000000
		SET k gcra~@3600000us~200000~1200000~&100000&100000
		limit_take [k] 2 10 1000000 10 10 1000000 10 1 -1 1 @3800000us 0 = [@3600000us 0 0 0 0 1000000 1 0 100000]
		GET k = gcra~@3600000us~0~1000000~0

		# a use before others, which costs more than they wait, is noted with its whole cost
		DEL k
		limit_take [k] 2 10 1000000 10 9 10000000 0 1 4 1 4 0 = [@3600000us 4 0 5 0 6400000 2 5 6400000]
		limit_take [k] 2 10 1000000 6 9 10000000 0 2 3 1 3 9999999 1 1 1 9999999 = [@3600000us 3 100000 0 0 6400000 1 0 200000 1 200000 0 0 6400000 1 0 300000]
		GET k = gcra~@3600000us~200000~800000~@10000000us:8
		limit_take [k] 2 10 1000000 6 9 10000000 0 1 -3 1 @3700000us 0 = [@3600000us 0 0 0 0 6400000 1 0 300000]
		GET k = gcra~@3600000us~200000~800000~@10000000us:5~&100000&300000&0

		# such a note lasts until it is paid, or nobody waits
		limit_take [k] 2 10 1000000 6 9 10000000 0 1 1 1 1 9999999 = [@3600000us 1 300000 0 0 6400000 1 0 400000]
		wait 250
		limit_take [k] 2 10 1000000 6 9 10000000 0 1 1 1 1 9999999 = [@3850000us 1 150000 0 0 6150000 1 0 250000]
		GET k = gcra~@3850000us~150000~750000~@10000000us:7~&-150000&300000&0
		DEL k
		limit_take [k] 1 10 1000000 10 1 10 1 10 0 = [@3850000us 10 0 0 0 1000000 1 0 100000]
		limit_take [k] 1 10 1000000 10 2 1 1 1 9999999 7 1 7 9999999 = [@3850000us 1 100000 0 0 1100000 1 0 200000 7 800000 0 0 1800000 1 0 900000]
		limit_take [k] 1 10 1000000 10 1 -1 1 @3950000us 0 = [@3850000us 0 0 0 0 1800000 1 0 900000]
		GET k = gcra~@3850000us~800000~1800000~&100000&100000
		wait 199
		limit_take [k] 1 10 1000000 10 1 1 1 1 9999999 = [@4049000us 1 701000 0 0 1701000 1 0 801000]
		GET k = gcra~@4049000us~701000~1701000~&-99000&100000
		wait 1
		limit_take [k] 1 10 1000000 10 1 1 1 1 9999999 = [@4050000us 1 800000 0 0 1800000 1 0 900000]
		GET k = gcra~@4050000us~800000~1800000
		SET k gcra~@3850000us~150000~900000~&150000&300000
		limit_take [k] 1 10 1000000 10 1 1 1 1 9999999 = [@4050000us 1 0 2 0 800000 1 2 100000]
		GET k = gcra~@4050000us~0~800000

		# a reset forgets reservations, too
		limit_take [k] 1 10 1000000 10 1 0 0 0 0 = [@4050000us 0 0 10 0 0 1 10 0]
		GET k = gcra~@4050000us~0~0
		limit_take [k] 2 10 1000000 10 5 60000000 0 1 4 1 4 0 = [@4050000us 4 0 1 0 55950000 2 1 55950000]
		limit_take [k] 2 10 1000000 10 5 60000000 0 1 4 1 4 99999999 = [@4050000us 4 55950000 0 0 115950000 2 0 55950000]
		GET k = gcra~@4050000us~55950000~56350000~@120000000us:4:@60000000us:4
		limit_take [k] 1 10 1000000 10 1 1 1 1 99999999 = [@4050000us 1 55950000 0 0 56450000 1 0 55950000]
		PTTL k = 115951
		limit_take [k] 2 10 1000000 10 5 60000000 0 1 0 0 0 0 = [@4050000us 0 0 5 0 0 2 5 0]
		GET k = gcra~@4050000us~0~0~@60000000us:0

		# a burst can be larger than the rate; a refund returns no more than was used
		limit_take [k] 1 10 1000000 100 1 100 1 100 0 = [@4050000us 100 0 0 0 10000000 1 0 100000]
		limit_take [k] 1 10 1000000 100 1 20 1 20 9999999 = [@4050000us 20 2000000 0 0 12000000 1 0 2100000]
		DEL k
		limit_take [k] 1 5 60000000 0 1 1 1 1 0 = [@4050000us 1 0 4 0 55950000 1 4 55950000]
		limit_take [k] 1 5 60000000 0 1 -3 1 @4060000us 0 = [@4050000us 0 0 5 0 0 1 5 0]
		GET k = gcra~@4050000us~0~@60000000us:0

		# a refund to a bucket, in a later window of the aligned limit
		DEL k
		wait 900
		limit_take [k] 2 10 1000000 10 5 1000000 0 1 4 1 4 0 = [@4950000us 4 0 1 0 400000 2 1 50000]
		wait 100
		limit_take [k] 2 10 1000000 10 5 1000000 0 1 -4 1 @4950000us 0 = [@5050000us 0 0 5 0 0 2 5 0]
		GET k = gcra~@5050000us~0~0~@6000000us:0
		DEL k

		# a refund of nothing does not undo what the same call took
		DEL k
		limit_take [k] 1 10 1000000 10 2 2 1 2 0 -1 1 @-9999999us 0 = [@5050000us 2 0 8 0 200000 1 8 100000 0 0 8 0 200000 1 8 100000]
		GET k = gcra~@5050000us~0~200000
		DEL k

		# a bucket and an aligned limit
		limit_take [k] 2 10 1000000 10 5 1000000 0 1 4 1 4 0 = [@5050000us 4 0 1 0 950000 2 1 950000]
		GET k = gcra~@5050000us~0~400000~@6000000us:4
		PTTL k = 951
		limit_take [k] 2 10 1000000 10 5 1000000 0 1 2 1 2 0 = [@5050000us 0 0 1 950000 950000 2 1 950000]
		limit_take [k] 2 10 1000000 10 5 1000000 0 1 2 1 2 9999999 = [@5050000us 2 950000 0 0 1950000 2 0 950000]
		GET k = gcra~@5050000us~950000~1150000~@7000000us:2:@6000000us:4
		limit_take [k] 2 10 1000000 10 5 1000000 0 1 1 1 1 9999999 = [@5050000us 1 950000 0 0 1950000 2 0 950000]
		limit_take [k] 2 10 1000000 10 5 1000000 0 1 3 1 3 9999999 = [@5050000us 3 1950000 0 0 2950000 2 0 1950000]
		GET k = gcra~@5050000us~1950000~2250000~@8000000us:3:@7000000us:3
		limit_take [k] 2 10 1000000 10 5 1000000 0 1 -2 1 @6000000us 0 = [@5050000us 0 0 0 0 2950000 2 0 1950000]
		GET k = gcra~@5050000us~1950000~2250000~@8000000us:3:@7000000us:1~&950000&200000&0
		limit_take [k] 2 10 1000000 10 5 1000000 0 1 -3 1 @7000000us 0 = [@5050000us 0 0 0 0 1950000 2 0 950000]
		GET k = gcra~@5050000us~950000~1750000~@7000000us:1
		limit_take [k] 2 10 1000000 10 5 1000000 0 1 -1 1 @6000000us 0 = [@5050000us 0 0 0 0 1650000 2 0 950000]
		GET k = gcra~@5050000us~950000~1650000~@7000000us:0
		wait 900
		limit_take [k] 2 10 1000000 10 5 1000000 0 1 0 1 0 0 = [@5950000us 0 0 0 0 750000 2 0 50000]
		limit_take [k] 1 5 1000000 0 1 1 1 1 0 = [@5950000us 0 0 0 50000 0 1 0 50000]
		GET k = gcra~@5050000us~950000~1650000~@7000000us:0
		limit_take [k] 1 5 1000000 5 1 1 1 1 0 = [@5950000us 0 0 0 50000 750000 1 0 150000]
		GET k = gcra~@5050000us~950000~1650000~@7000000us:0
		DEL k

		# the clock goes back: nothing lasts longer than it would have
		SET k gcra~@9000000us~0~500000
		limit_take [k] 1 10 1000000 10 1 2 1 2 0 = [@5950000us 2 0 3 0 700000 1 3 100000]
		GET k = gcra~@5950000us~0~700000
		SET k gcra~@9000000us~0~@20000000us:3
		limit_take [k] 1 5 1000000 0 1 1 1 1 0 = [@5950000us 1 0 1 0 50000 1 1 50000]
		GET k = gcra~@5950000us~0~@6000000us:4
		SET k gcra~@3000000us~700000~@4000000us:3
		limit_take [k] 1 5 1000000 0 1 1 1 1 0 = [@5950000us 1 0 4 0 50000 1 4 50000]
		limit_take [k] 2 5 1000000 0 10 1000000 10 1 1 1 1 9999999 = [@5950000us 1 0 3 0 100000 1 3 50000]
		GET k = gcra~@5950000us~0~@6000000us:2~100000

		# the units of a call are counted to a billionth
		DEL k
		limit_take [k] 1 3 1000000 3 1 3 1 3 0 = [@5950000us 3 0 0 0 1000000 1 0 333334]
		wait 333
		limit_take [k] 1 3 1000000 3 1 1 1 1 0 = [@6283000us 0 0 0 334 667000 1 0 334]
		wait 1
		limit_take [k] 1 3 1000000 3 1 1 1 1 0 = [@6284000us 1 0 0 0 999334 1 0 332667]
		GET k = gcra~@6284000us~0~999333.33333333326

		# a caller of other limits keeps the interval that counts again; one that has passed by then counts no more
		DEL k
		limit_take [k] 2 1 3000000 1 5 1000000 0 2 1 1 1 0 1 1 1 9999999 = [@6284000us 1 0 0 0 3000000 1 0 3000000 1 3000000 0 0 6000000 1 0 6000000]
		GET k = gcra~@6284000us~3000000~6000000~@10000000us:1:@7000000us:1
		limit_take [k] 1 1 3000000 1 1 1 1 1 9999999 = [@6284000us 1 6000000 0 0 9000000 1 0 9000000]
		GET k = gcra~@6284000us~6000000~9000000~@10000000us:1:@7000000us:1
		limit_take [k] 1 1 3000000 1 1 -1 1 @12284000us 0 = [@6284000us 0 0 0 0 6000000 1 0 6000000]
		wait 1000
		limit_take [k] 2 1 3000000 1 5 1000000 0 1 -1 1 @9284000us 0 = [@7284000us 0 0 0 0 2000000 1 0 2000000]
		GET k = gcra~@7284000us~0~2000000~@8000000us:0
		DEL k

		# several keys in one call, one of which is another key
		SET s x
		SET x gcra~@0us~x~0
		SET y gcra~@0us~0~1:x
		SET z gcra~@0us~0~0~&1
		RPUSH l a
		limit_take [a s x y z l b] 1 10 1000000 10 1 1 1 1 0 1 1 1 1 0 1 1 1 1 0 1 1 1 1 0 1 1 1 1 0 1 1 1 1 0 1 2 1 2 0 = [@7284000us 1 0 9 0 100000 1 9 100000 -4 -4 -4 -4 -4 2 0 8 0 200000 1 8 100000]
		without GET
		limit_take [a] 1 10 1000000 10 1 1 1 1 0 = !NOPERM
		limit_take [a] 1 10 1000000 10 2 1 1 1 0 1 1 1 0 = !NOPERM
		without SET
		limit_take [a] 1 10 1000000 10 1 1 1 1 0 = !NOPERM
		without
	`)

	// With more than a hundred gaps, the first one in the queue is dropped.
	takes, refunds := "", ""
	for i := range 103 {
		takes += " 1 1 1 999999999"
		if i < 102 {
			refunds += fmt.Sprintf(" -1 1 @%dus 0", (i+1)*100000)
		}
	}
	play(t, `
		limit_take [k] 1 10 1000000 10 1 10 1 10 0 = [@0us 10 0 0 0 1000000 1 0 100000]
		limit_take [k] 1 10 1000000 10 103 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 1 1 1 999999999 = [@0us 1 100000 0 0 1100000 1 0 200000 1 200000 0 0 1200000 1 0 300000 1 300000 0 0 1300000 1 0 400000 1 400000 0 0 1400000 1 0 500000 1 500000 0 0 1500000 1 0 600000 1 600000 0 0 1600000 1 0 700000 1 700000 0 0 1700000 1 0 800000 1 800000 0 0 1800000 1 0 900000 1 900000 0 0 1900000 1 0 1000000 1 1000000 0 0 2000000 1 0 1100000 1 1100000 0 0 2100000 1 0 1200000 1 1200000 0 0 2200000 1 0 1300000 1 1300000 0 0 2300000 1 0 1400000 1 1400000 0 0 2400000 1 0 1500000 1 1500000 0 0 2500000 1 0 1600000 1 1600000 0 0 2600000 1 0 1700000 1 1700000 0 0 2700000 1 0 1800000 1 1800000 0 0 2800000 1 0 1900000 1 1900000 0 0 2900000 1 0 2000000 1 2000000 0 0 3000000 1 0 2100000 1 2100000 0 0 3100000 1 0 2200000 1 2200000 0 0 3200000 1 0 2300000 1 2300000 0 0 3300000 1 0 2400000 1 2400000 0 0 3400000 1 0 2500000 1 2500000 0 0 3500000 1 0 2600000 1 2600000 0 0 3600000 1 0 2700000 1 2700000 0 0 3700000 1 0 2800000 1 2800000 0 0 3800000 1 0 2900000 1 2900000 0 0 3900000 1 0 3000000 1 3000000 0 0 4000000 1 0 3100000 1 3100000 0 0 4100000 1 0 3200000 1 3200000 0 0 4200000 1 0 3300000 1 3300000 0 0 4300000 1 0 3400000 1 3400000 0 0 4400000 1 0 3500000 1 3500000 0 0 4500000 1 0 3600000 1 3600000 0 0 4600000 1 0 3700000 1 3700000 0 0 4700000 1 0 3800000 1 3800000 0 0 4800000 1 0 3900000 1 3900000 0 0 4900000 1 0 4000000 1 4000000 0 0 5000000 1 0 4100000 1 4100000 0 0 5100000 1 0 4200000 1 4200000 0 0 5200000 1 0 4300000 1 4300000 0 0 5300000 1 0 4400000 1 4400000 0 0 5400000 1 0 4500000 1 4500000 0 0 5500000 1 0 4600000 1 4600000 0 0 5600000 1 0 4700000 1 4700000 0 0 5700000 1 0 4800000 1 4800000 0 0 5800000 1 0 4900000 1 4900000 0 0 5900000 1 0 5000000 1 5000000 0 0 6000000 1 0 5100000 1 5100000 0 0 6100000 1 0 5200000 1 5200000 0 0 6200000 1 0 5300000 1 5300000 0 0 6300000 1 0 5400000 1 5400000 0 0 6400000 1 0 5500000 1 5500000 0 0 6500000 1 0 5600000 1 5600000 0 0 6600000 1 0 5700000 1 5700000 0 0 6700000 1 0 5800000 1 5800000 0 0 6800000 1 0 5900000 1 5900000 0 0 6900000 1 0 6000000 1 6000000 0 0 7000000 1 0 6100000 1 6100000 0 0 7100000 1 0 6200000 1 6200000 0 0 7200000 1 0 6300000 1 6300000 0 0 7300000 1 0 6400000 1 6400000 0 0 7400000 1 0 6500000 1 6500000 0 0 7500000 1 0 6600000 1 6600000 0 0 7600000 1 0 6700000 1 6700000 0 0 7700000 1 0 6800000 1 6800000 0 0 7800000 1 0 6900000 1 6900000 0 0 7900000 1 0 7000000 1 7000000 0 0 8000000 1 0 7100000 1 7100000 0 0 8100000 1 0 7200000 1 7200000 0 0 8200000 1 0 7300000 1 7300000 0 0 8300000 1 0 7400000 1 7400000 0 0 8400000 1 0 7500000 1 7500000 0 0 8500000 1 0 7600000 1 7600000 0 0 8600000 1 0 7700000 1 7700000 0 0 8700000 1 0 7800000 1 7800000 0 0 8800000 1 0 7900000 1 7900000 0 0 8900000 1 0 8000000 1 8000000 0 0 9000000 1 0 8100000 1 8100000 0 0 9100000 1 0 8200000 1 8200000 0 0 9200000 1 0 8300000 1 8300000 0 0 9300000 1 0 8400000 1 8400000 0 0 9400000 1 0 8500000 1 8500000 0 0 9500000 1 0 8600000 1 8600000 0 0 9600000 1 0 8700000 1 8700000 0 0 9700000 1 0 8800000 1 8800000 0 0 9800000 1 0 8900000 1 8900000 0 0 9900000 1 0 9000000 1 9000000 0 0 10000000 1 0 9100000 1 9100000 0 0 10100000 1 0 9200000 1 9200000 0 0 10200000 1 0 9300000 1 9300000 0 0 10300000 1 0 9400000 1 9400000 0 0 10400000 1 0 9500000 1 9500000 0 0 10500000 1 0 9600000 1 9600000 0 0 10600000 1 0 9700000 1 9700000 0 0 10700000 1 0 9800000 1 9800000 0 0 10800000 1 0 9900000 1 9900000 0 0 10900000 1 0 10000000 1 10000000 0 0 11000000 1 0 10100000 1 10100000 0 0 11100000 1 0 10200000 1 10200000 0 0 11200000 1 0 10300000 1 10300000 0 0 11300000 1 0 10400000]
		limit_take [k] 1 10 1000000 10 102 -1 1 @100000us 0 -1 1 @200000us 0 -1 1 @300000us 0 -1 1 @400000us 0 -1 1 @500000us 0 -1 1 @600000us 0 -1 1 @700000us 0 -1 1 @800000us 0 -1 1 @900000us 0 -1 1 @1000000us 0 -1 1 @1100000us 0 -1 1 @1200000us 0 -1 1 @1300000us 0 -1 1 @1400000us 0 -1 1 @1500000us 0 -1 1 @1600000us 0 -1 1 @1700000us 0 -1 1 @1800000us 0 -1 1 @1900000us 0 -1 1 @2000000us 0 -1 1 @2100000us 0 -1 1 @2200000us 0 -1 1 @2300000us 0 -1 1 @2400000us 0 -1 1 @2500000us 0 -1 1 @2600000us 0 -1 1 @2700000us 0 -1 1 @2800000us 0 -1 1 @2900000us 0 -1 1 @3000000us 0 -1 1 @3100000us 0 -1 1 @3200000us 0 -1 1 @3300000us 0 -1 1 @3400000us 0 -1 1 @3500000us 0 -1 1 @3600000us 0 -1 1 @3700000us 0 -1 1 @3800000us 0 -1 1 @3900000us 0 -1 1 @4000000us 0 -1 1 @4100000us 0 -1 1 @4200000us 0 -1 1 @4300000us 0 -1 1 @4400000us 0 -1 1 @4500000us 0 -1 1 @4600000us 0 -1 1 @4700000us 0 -1 1 @4800000us 0 -1 1 @4900000us 0 -1 1 @5000000us 0 -1 1 @5100000us 0 -1 1 @5200000us 0 -1 1 @5300000us 0 -1 1 @5400000us 0 -1 1 @5500000us 0 -1 1 @5600000us 0 -1 1 @5700000us 0 -1 1 @5800000us 0 -1 1 @5900000us 0 -1 1 @6000000us 0 -1 1 @6100000us 0 -1 1 @6200000us 0 -1 1 @6300000us 0 -1 1 @6400000us 0 -1 1 @6500000us 0 -1 1 @6600000us 0 -1 1 @6700000us 0 -1 1 @6800000us 0 -1 1 @6900000us 0 -1 1 @7000000us 0 -1 1 @7100000us 0 -1 1 @7200000us 0 -1 1 @7300000us 0 -1 1 @7400000us 0 -1 1 @7500000us 0 -1 1 @7600000us 0 -1 1 @7700000us 0 -1 1 @7800000us 0 -1 1 @7900000us 0 -1 1 @8000000us 0 -1 1 @8100000us 0 -1 1 @8200000us 0 -1 1 @8300000us 0 -1 1 @8400000us 0 -1 1 @8500000us 0 -1 1 @8600000us 0 -1 1 @8700000us 0 -1 1 @8800000us 0 -1 1 @8900000us 0 -1 1 @9000000us 0 -1 1 @9100000us 0 -1 1 @9200000us 0 -1 1 @9300000us 0 -1 1 @9400000us 0 -1 1 @9500000us 0 -1 1 @9600000us 0 -1 1 @9700000us 0 -1 1 @9800000us 0 -1 1 @9900000us 0 -1 1 @10000000us 0 -1 1 @10100000us 0 -1 1 @10200000us 0 = [@0us 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000 0 0 0 0 11300000 1 0 10400000]
		limit_take [k] 1 10 1000000 10 1 -1 1 @10300000us 0 = [@0us 0 0 0 0 1200000 1 0 300000]
	`)
}

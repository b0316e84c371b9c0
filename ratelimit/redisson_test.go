package ratelimit_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/kindtest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/ratelimit"
	"github.com/redis/rueidis"
	"pgregory.net/rapid"
)

func window(rdb rueidis.Client, name string) *ratelimit.RedissonLimiter {
	return ratelimit.RedissonLimiterOn(command.New(rdb, command.Config{Timeout: time.Minute}), name)
}

func newWindow(t testing.TB, rdb rueidis.Client, name string, rate int64, per time.Duration) *ratelimit.RedissonLimiter {
	t.Helper()
	w := window(rdb, name)
	if created, err := w.Init(t.Context(), rate, per); err != nil || !created {
		t.Fatalf("init: %v, %v", created, err)
	}
	return w
}

func takeOf(t testing.TB, w *ratelimit.RedissonLimiter, n int64) ratelimit.Decision {
	t.Helper()
	d, err := w.Take(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Every reply equals that of a reference, a plain list of permits with their times.
func TestRedissonLimiter_model(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rdb := redistest.NewMini(t).Client(t)
		round := 0
		rapid.Check(timeless{t}, func(rt *rapid.T) {
			round++
			name := fmt.Sprint("w", round)
			rate := rapid.Int64Range(1, 20).Draw(rt, "rate")
			per := time.Duration(rapid.Int64Range(1, 3000).Draw(rt, "ms")) * time.Millisecond
			w := newWindow(t, rdb, name, rate, per)
			type entry struct {
				at time.Time
				n  int64
				d  ratelimit.Decision
			}
			var log []entry
			// Redis stores milliseconds. An entry is stored up to one millisecond late, so that it never
			// ends before its interval does.
			now := func() time.Time { return time.Now().Truncate(time.Millisecond) }
			stored := func() time.Time { return time.Now().Add(time.Millisecond - 1).Truncate(time.Millisecond) }
			live := func() (entries []entry, used int64) {
				for _, e := range log {
					if e.at.Add(per).After(now()) {
						entries, used = append(entries, e), used+e.n
					}
				}
				return entries, used
			}
			until := func(n int64) time.Duration { // when that many permits are left
				entries, used := live()
				switch {
				case rate-used >= n:
					return 0
				case n > rate:
					return ratelimit.Never
				}
				for _, e := range entries {
					if used -= e.n; rate-used >= n {
						return e.at.Add(per).Sub(now())
					}
				}
				panic("not even after the last entry")
			}
			check := func(d ratelimit.Decision, taken, least int64) {
				rt.Helper()
				entries, used := live()
				left, retry := max(0, rate-used), time.Duration(0)
				if taken < least {
					retry = until(least)
				}
				if d.Taken != taken || d.Remaining != left || d.RetryAfter != retry || d.OK != (taken > 0) {
					rt.Fatalf("%+v, want %d, %d left, retry after %v; %+v", d, taken, left, retry, entries)
				}
			}
			rt.Repeat(map[string]func(*rapid.T){
				"time goes by": func(rt *rapid.T) {
					time.Sleep(time.Duration(rapid.Int64Range(1, 2_000_000).Draw(rt, "µs")) * time.Microsecond)
				},
				"take": func(rt *rapid.T) {
					n := rapid.Int64Range(1, 25).Draw(rt, "units")
					d := takeOf(t, w, n)
					taken := int64(0)
					if _, used := live(); used+n <= rate {
						taken = n
						log = append(log, entry{stored(), n, d})
					}
					check(d, taken, n)
				},
				"take up to": func(rt *rapid.T) {
					n := rapid.Int64Range(1, 25).Draw(rt, "units")
					d, err := w.TakeUpTo(t.Context(), n)
					if err != nil {
						rt.Fatal(err)
					}
					_, used := live()
					taken := max(0, min(n, rate-used))
					if taken > 0 {
						log = append(log, entry{stored(), taken, d})
					}
					check(d, taken, 1)
				},
				"refund": func(rt *rapid.T) {
					if len(log) == 0 {
						return
					}
					i := rapid.IntRange(0, len(log)-1).Draw(rt, "which")
					for range 2 { // the second refund finds the permits already returned
						if err := w.Refund(t.Context(), log[i].d); err != nil {
							rt.Fatal(err)
						}
					}
					log = slices.Delete(log, i, i+1)
				},
				"another rate": func(rt *rapid.T) {
					log, _ = live() // a longer interval does not bring back expired entries
					rate = rapid.Int64Range(1, 20).Draw(rt, "rate")
					per = max(per, time.Duration(rapid.Int64Range(1, 3000).Draw(rt, "ms"))*time.Millisecond)
					if err := w.SetRate(t.Context(), rate, per); err != nil {
						rt.Fatal(err)
					}
				},
				"": func(rt *rapid.T) {
					d, err := w.Peek(t.Context())
					_, used := live()
					left, retry := max(0, rate-used), until(1)
					if err != nil || d.Remaining != left || d.OK != (left > 0) || d.RetryAfter != retry {
						rt.Fatalf("%+v, %v, want %d left, retry after %v", d, err, left, retry)
					}
				},
			})
		})
	})
}

// The keys in Redis have the layout of Redisson.
func TestRedissonLimiter_layout(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	w := newWindow(t, s.Client(t), "calls", 100_000, time.Minute)
	takeOf(t, w, 70_000)
	config := s.Do(t, "HGETALL", "calls")
	fields, _ := config.AsStrMap()
	if len(fields) != 4 || fields["rate"] != "100000" || fields["interval"] != "60000" || fields["type"] != "0" || fields["keepAliveTime"] != "0" {
		t.Errorf("%q", fields)
	}
	value := s.Do(t, "GET", "{calls}:value")
	if text, _ := value.ToString(); text != "30000" {
		t.Errorf("%q are left", text)
	}
	permits := s.Do(t, "ZRANGE", "{calls}:permits", "0", "-1")
	members, _ := permits.AsStrSlice()
	if len(members) != 1 || len(members[0]) != 21 || members[0][0] != 16 || hex.EncodeToString([]byte(members[0][17:])) != "70110100" {
		t.Errorf("%q", members)
	}
	if w := newWindow(t, s.Client(t), "a{b}c", 5, time.Second); !takeOf(t, w, 1).OK {
		t.Error("a name with braces")
	}
	if n, _ := func() (int64, error) { m := s.Do(t, "EXISTS", "a{b}c:value"); return m.ToInt64() }(); n != 1 {
		t.Error("the value of a name with braces is elsewhere")
	}
}

// A delayed duplicate of a SetRate does not undo a newer call, whether the first SetRate was repeated or returned an error.
func TestRedissonLimiter_lateCopies(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	other := newWindow(t, s.Client(t), "w", 1, time.Hour)
	for n, c := range map[int64]struct {
		patience time.Duration
		lose     redistest.Action
		all      bool
		want     error
	}{
		10: {time.Minute, redistest.Action{DropReply: true}, false, nil},
		20: {300 * time.Millisecond, redistest.Action{DropRequest: true}, true, lock.ErrUnavailable},
	} {
		w := ratelimit.RedissonLimiterOn(command.New(s.Client(t, redistest.Via(p)), command.Config{Timeout: c.patience}), "w")
		if err := other.SetRate(t.Context(), n, time.Hour); err != nil {
			t.Fatal(err)
		}
		copied := p.LoseDated(c.lose, c.all)
		for copied() == nil { // a call that fails early may not get this far
			if err := w.SetRate(t.Context(), n+1, time.Hour); !errors.Is(err, c.want) {
				t.Fatalf("%+v: %v", c, err)
			}
		}
		p.OnRequest(nil)
		if err := other.SetRate(t.Context(), n+2, time.Hour); err != nil {
			t.Fatal(err)
		}
		s.Do(t, copied()...)
		if d := takeOf(t, other, 0); d.Limit.Rate != n+2 {
			t.Errorf("%+v: the rate is %d", c, d.Limit.Rate)
		}
	}
}

func TestRedissonLimiter_Init(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	fresh := window(rdb, "fresh")
	for op, err := range map[string]error{
		"take": second(fresh.Take(t.Context(), 1)), "peek": second(fresh.Peek(t.Context())), "wait": fresh.Wait(t.Context(), 1),
	} {
		var e *lock.Error
		if !errors.Is(err, ratelimit.ErrNotInitialized) || !errors.As(err, &e) || e.Op != op || e.Name != "fresh" {
			t.Errorf("%s without a rate: %v", op, err)
		}
	}
	w := newWindow(t, rdb, "w", 5, time.Minute)
	takeOf(t, w, 4)
	if created, err := w.Init(t.Context(), 5, time.Minute); created || err != nil {
		t.Errorf("again: %v, %v", created, err)
	}
	var other *ratelimit.RateError
	if _, err := w.Init(t.Context(), 6, time.Minute); !errors.Is(err, ratelimit.ErrRateMismatch) || !errors.As(err, &other) || *other != (ratelimit.RateError{Rate: 5, Per: time.Minute}) {
		t.Errorf("another rate: %v", err)
	}
	if d := takeOf(t, w, 2); d.OK {
		t.Errorf("%+v: Init forgot units that were taken", d)
	}
	if err := w.SetRate(t.Context(), 7, time.Minute); err != nil {
		t.Fatal(err)
	}
	if d := takeOf(t, w, 3); !d.OK || d.Remaining != 0 {
		t.Errorf("seven: %+v", d)
	}
	if err := w.SetRate(t.Context(), 2, time.Minute); err != nil {
		t.Fatal(err)
	}
	if d := takeOf(t, w, 1); d.OK || d.Remaining != 0 {
		t.Errorf("two: %+v", d)
	}
	sent := s.CommandCalls(t, "evalsha")
	for _, c := range []struct {
		rate int64
		per  time.Duration
	}{{0, time.Second}, {-1, time.Second}, {math.MaxUint32 + 1, time.Second}, {1, 0}, {1, time.Microsecond}, {1, 1500 * time.Microsecond}, {1, math.MaxInt64}} {
		for op, err := range map[string]error{"init": second(w.Init(t.Context(), c.rate, c.per)), "set rate": w.SetRate(t.Context(), c.rate, c.per)} {
			var e *lock.Error
			if !errors.As(err, &e) || e.Op != op || e.Name != "w" || errors.Is(err, ratelimit.ErrRateMismatch) {
				t.Errorf("%s, %+v: %v", op, c, err)
			}
		}
	}
	for _, n := range []int64{-1, math.MaxUint32 + 1, math.MinInt64} {
		for op, err := range map[string]error{"take": second(w.Take(t.Context(), n)), "take up to": second(w.TakeUpTo(t.Context(), n)), "wait": w.Wait(t.Context(), n)} {
			var e *lock.Error
			if !errors.As(err, &e) || e.Op != op || e.Name != "w" {
				t.Errorf("%s %d: %v", op, n, err)
			}
		}
	}
	if n := s.CommandCalls(t, "evalsha") - sent; n > 0 {
		t.Errorf("%d scripts were sent", n)
	}
	if d := takeOf(t, w, math.MaxUint32); d.OK || d.RetryAfter != ratelimit.Never {
		t.Errorf("more than the rate: %+v", d)
	}
	if err := w.Wait(t.Context(), 3); !errors.Is(err, ratelimit.ErrLimited) {
		t.Errorf("wait for more than the rate: %v", err)
	}
	for what, bad := range map[string]*ratelimit.RedissonLimiter{"": window(rdb, ""), "of others": window(rdb, "{x}:value"), "half a brace": window(rdb, "x}"), "nil": window(nil, "x")} {
		if _, err := bad.Take(t.Context(), 1); err == nil {
			t.Errorf("%q: no error", what)
		}
	}
	s.Do(t, "HSET", "perclient", "rate", "1", "interval", "1000", "type", "1", "keepAliveTime", "0")
	if _, err := window(rdb, "perclient").Take(t.Context(), 1); !errors.Is(err, ratelimit.ErrPerClient) {
		t.Errorf("PER_CLIENT: %v", err)
	}
	s.Do(t, "SET", "text", "x")
	s.Do(t, "HSET", "hash", "a", "b", "rate", "x")
	s.Do(t, "HSET", "other", "a", "b")
	for _, name := range []string{"text", "hash", "other"} {
		if _, err := window(rdb, name).Take(t.Context(), 1); !errors.Is(err, lock.ErrWrongType) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := window(rdb, name).Init(t.Context(), 1, time.Second); !errors.Is(err, lock.ErrWrongType) {
			t.Errorf("init of %s: %v", name, err)
		}
	}
	if n := kindtest.Number(s.Do(t, "HLEN", "other")); n != 1 {
		t.Errorf("%d fields in a hash of another application, which had one", n)
	}
}

func second[T any](_ T, err error) error { return err }

// The script fixes two bugs of Redisson's limiter: a counter that drifts, and releases that count twice.
func TestRedissonLimiter_heals(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	t.Run("taken twice from the value", func(t *testing.T) {
		w := newWindow(t, rdb, "drift", 10, time.Hour)
		takeOf(t, w, 4)
		s.Do(t, "DECRBY", "{drift}:value", "4") // Redisson repeats a call after a lost reply
		if d, err := w.Peek(t.Context()); err != nil || !d.OK || d.Remaining != 6 {
			t.Errorf("%+v, %v, want 6 left", d, err)
		}
		if d := takeOf(t, w, 6); !d.OK {
			t.Errorf("%+v: the rate is smaller for ever", d)
		}
	})
	t.Run("given back without its entry", func(t *testing.T) {
		w := newWindow(t, rdb, "release", 10, 5*time.Second)
		takeOf(t, w, 10)
		s.Do(t, "INCRBY", "{release}:value", "5") // Redisson releases
		if a, b := takeOf(t, w, 5), takeOf(t, w, 1); !a.OK || b.OK {
			t.Errorf("%+v, %+v", a, b)
		}
		for end := time.Now().Add(40 * time.Second); takeOf(t, w, 0).ResetAfter > 0 && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
		}
		if d, err := w.TakeUpTo(t.Context(), 100); err != nil || d.Taken != 10 {
			t.Errorf("%+v, %v: 15 of 10 come back", d, err)
		}
	})
	t.Run("the value is lost", func(t *testing.T) {
		w := newWindow(t, rdb, "lost", 10, time.Hour)
		takeOf(t, w, 7)
		s.Do(t, "DEL", "{lost}:value") // manually, or by an eviction
		if d := takeOf(t, w, 4); d.OK || d.Remaining != 3 {
			t.Errorf("%+v: 11 of 10", d)
		}
		if d := takeOf(t, w, 3); !d.OK || d.Remaining != 0 {
			t.Errorf("%+v", d)
		}
	})
	t.Run("too much is left, of many entries", func(t *testing.T) {
		w := newWindow(t, rdb, "crowd", 3000, time.Hour)
		s.Do(t, "EVAL", `local now = redis.call('TIME')[1] * 1000
		for i = 1, 2999 do
			redis.call('ZADD', KEYS[2], now, string.char(16) .. string.format('%016d', i) .. string.char(1, 0, 0, 0))
		end
		redis.call('SET', KEYS[1], 3001)`, "2", "{crowd}:value", "{crowd}:permits")
		if d := takeOf(t, w, 2); d.OK || d.Remaining != 1 {
			t.Errorf("%+v: 3,001 of 3,000", d)
		}
		value := s.Do(t, "GET", "{crowd}:value")
		if text, _ := value.ToString(); text != "1" {
			t.Errorf("%s are left, want 1: each call counts all entries", text)
		}
	})
	t.Run("a million entries are over", func(t *testing.T) {
		newWindow(t, rdb, "many", 20_000, 5*time.Second)
		// Redisson writes such members. These expired long ago.
		s.Do(t, "EVAL", `for i = 1, 20000 do
			redis.call('ZADD', KEYS[2], 1000 + i, string.char(16) .. string.format('%016d', i) .. string.char(1, 0, 0, 0))
		end
		redis.call('SET', KEYS[1], 0)`, "2", "{many}:value", "{many}:permits")
		w := window(rdb, "many")
		if d := takeOf(t, w, 15_000); !d.OK {
			t.Errorf("%+v", d)
		}
		left := s.Do(t, "ZCARD", "{many}:permits")
		if n, _ := left.ToInt64(); n != 20_000-15_000+1 {
			t.Errorf("%d entries, want 5,000 old ones and the new one: a call removes a thousand", n)
		}
	})
}

// After a lost reply the handle retries, and the call counts once.
func TestRedissonLimiter_lostReply(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	w := newWindow(t, s.Client(t, redistest.Via(p)), "w", 10, time.Hour)
	if err := w.Refund(t.Context(), takeOf(t, w, 1)); err != nil { // loads the scripts on the server
		t.Fatal(err)
	}
	p.OnRequest(redistest.Once("EVALSHA", redistest.Action{DropReply: true}))
	if d := takeOf(t, w, 3); !d.OK || d.Remaining != 7 {
		t.Errorf("%+v", d)
	}
	d := takeOf(t, w, 2)
	p.OnRequest(redistest.Once("EVALSHA", redistest.Action{DropReply: true}))
	if err := w.Refund(t.Context(), d); err != nil {
		t.Error(err)
	}
	if d := takeOf(t, w, 0); d.Remaining != 7 {
		t.Errorf("%+v, want 7 left", d)
	}
	for i, want := range []int64{5, 2, 0} { // of the 7 that are left, and then of the rest
		p.OnRequest(redistest.Once("EVALSHA", redistest.Action{DropReply: true}))
		d, err := w.TakeUpTo(t.Context(), 5)
		if err != nil || d.Taken != want || d.OK != (want > 0) || d.Remaining != []int64{2, 0, 0}[i] {
			t.Errorf("up to 5: %+v, %v, want %d", d, err, want)
		}
		if i == 1 {
			defer func() {
				if err := w.Refund(t.Context(), d); err != nil || takeOf(t, w, 0).Remaining != 2 {
					t.Errorf("the refund: %v", err)
				}
			}()
		}
	}
}

// While memory is full, no permits are taken or counted, and the error reports it. Reads and refunds still work.
func TestRedissonLimiter_memoryFull(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	w := newWindow(t, rdb, "w", 5, 24*time.Hour)
	took := takeOf(t, w, 2)
	full := func(what string, err error) {
		t.Helper()
		var e *lock.Error
		if !errors.Is(err, lock.ErrUnavailable) || !errors.As(err, &e) || e.Op == "" || !strings.Contains(err.Error(), "OOM") {
			t.Errorf("%s: %v", what, err)
		}
	}
	remain := func(want int64) {
		t.Helper()
		if d, err := w.Peek(t.Context()); err != nil || d.Remaining != want {
			t.Errorf("%+v, %v; want that %d remain", d, err, want)
		}
	}
	s.Do(t, "CONFIG", "SET", "maxmemory", "100kb") // maxmemory-policy is noeviction
	_, err := w.Take(t.Context(), 1)
	full("take", err)
	_, err = w.TakeUpTo(t.Context(), 7)
	full("take up to", err)
	ctx, cancel := context.WithCancel(t.Context())
	waited := make(chan error, 1)
	s.ResetStats(t)
	go func() { waited <- w.Wait(ctx, 1) }()
	for s.CommandCalls(t, "evalsha") < 2 { // it has received the first reply
		time.Sleep(time.Millisecond)
	}
	cancel()
	err = <-waited
	if full("wait", err); !errors.Is(err, context.Canceled) {
		t.Errorf("full memory ends a wait: %v", err)
	}
	waits := make(chan error, 1)
	go func() { waits <- w.Wait(t.Context(), 1) }()
	full("set rate", w.SetRate(t.Context(), 6, 24*time.Hour))
	_, err = window(rdb, "new").Init(t.Context(), 5, time.Hour)
	full("init", err)
	remain(3)
	if created, err := w.Init(t.Context(), 5, 24*time.Hour); created || err != nil { // with the same rate as before
		t.Errorf("%v, %v", created, err)
	}
	if d := takeOf(t, w, 4); d.OK || d.RetryAfter <= 0 { // a rejection needs no memory
		t.Errorf("4 of 3: %+v", d)
	}
	for range 2 {
		if err := w.Refund(t.Context(), took); err != nil {
			t.Error(err)
		}
		remain(5)
	}
	if len(waits) > 0 {
		t.Errorf("full memory ends a wait: %v", <-waits)
	}
	s.Do(t, "CONFIG", "SET", "maxmemory", "0")
	if err := <-waits; err != nil {
		t.Errorf("a wait that outlasts it: %v", err)
	}
	if d := takeOf(t, w, 4); !d.OK || d.Remaining != 0 {
		t.Errorf("%+v", d)
	}
}

// Expired entries make room for new ones even while memory is full, because a script that has deleted something is allowed to
// write.
func TestRedissonLimiter_memoryFullOfOldEntries(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	w := newWindow(t, s.Client(t), "w", 5, 5*time.Second)
	takeOf(t, w, 5)
	s.Do(t, "CONFIG", "SET", "maxmemory", "100kb")
	if err := w.Wait(t.Context(), 5); err != nil {
		t.Error(err)
	}
	if d, err := w.Peek(t.Context()); err != nil || d.Remaining == 5 {
		t.Errorf("%+v, %v", d, err)
	}
}

// If a caller leaves before the reply, its permits are returned.
func TestRedissonLimiter_cancelled(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	w := newWindow(t, s.Client(t, redistest.Via(p)), "w", 10, time.Hour)
	takeOf(t, w, 0)
	answer := make(chan struct{})
	p.OnRequest(redistest.Once("EVALSHA", redistest.Action{HoldReply: answer}))
	ctx, cancel := context.WithCancel(t.Context())
	s.ResetStats(t)
	done := make(chan error)
	go func() { _, err := w.Take(ctx, 3); done <- err }()
	for s.CommandCalls(t, "evalsha") == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	close(answer)
	for end := time.Now().Add(30 * time.Second); takeOf(t, w, 0).Remaining != 10; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the units of the caller are still taken")
		}
	}
}

// If a call is canceled while its reply is in flight, the next call of the handle can take its permits. The same applies to
// several canceled calls.
func TestRedissonLimiter_cancelledBeforeTheNextCall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := redistest.NewMini(t)
		wire := m.Proxy(t)
		rdb := m.Client(t, redistest.Via(wire))
		for name, call := range map[string]func(ctx context.Context, w *ratelimit.RedissonLimiter) error{
			"take":       func(ctx context.Context, w *ratelimit.RedissonLimiter) error { return second(w.Take(ctx, 3)) },
			"take up to": func(ctx context.Context, w *ratelimit.RedissonLimiter) error { return second(w.TakeUpTo(ctx, 9)) },
			"wait":       func(ctx context.Context, w *ratelimit.RedissonLimiter) error { return w.Wait(ctx, 3) },
		} {
			w := newWindow(t, rdb, name, 3, time.Hour)
			peekAt := func() int64 { return takeOf(t, w, 0).Remaining }
			peekAt() // loads the script on the server
			ctx, cancel := context.WithCancel(t.Context())
			release := make(chan struct{})
			wire.OnRequest(func([][]byte) redistest.Action { return redistest.Action{HoldReply: release} })
			done, next := make(chan error), make(chan ratelimit.Decision)
			for range 2 {
				go func() { done <- call(ctx, w) }()
				synctest.Wait()
			}
			cancel()
			for range 2 {
				if err := <-done; !errors.Is(err, context.Canceled) {
					t.Errorf("%s: %v", name, err)
				}
			}
			// A caller that leaves while it waits for these takes nothing.
			short, stop := context.WithCancel(t.Context())
			go func() { done <- call(short, w) }()
			synctest.Wait()
			stop()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("%s, behind others: %v", name, err)
			}
			go func() { next <- takeOf(t, w, 3) }()
			synctest.Wait()
			close(release)
			if d := <-next; !d.OK || d.Remaining != 0 {
				t.Errorf("after a canceled %s, the next call: %+v", name, d)
			}
			wire.OnRequest(nil)
			cancel()
		}
	})
}

// Delete leaves no keys, and a limiter that is created afterward starts over.
func TestRedissonLimiter_Delete(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	w := newWindow(t, rdb, "w", 2, time.Hour)
	takeOf(t, w, 2)
	wait := make(chan error, 1)
	other := newWindow(t, rdb, "waiting", 1, 6*time.Second)
	takeOf(t, other, 1)
	go func() { wait <- other.Wait(t.Context(), 1) }()
	for range 2 { // the second call finds no limiter
		for _, w := range []*ratelimit.RedissonLimiter{w, other} {
			if err := w.Delete(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if n, err := rdb.Do(t.Context(), rdb.B().Dbsize().Build()).AsInt64(); n != 0 || err != nil {
			t.Errorf("%d keys are left, %v", n, err)
		}
	}
	if _, err := w.Take(t.Context(), 1); !errors.Is(err, ratelimit.ErrNotInitialized) {
		t.Errorf("take: %v", err)
	}
	if err := <-wait; !errors.Is(err, ratelimit.ErrNotInitialized) {
		t.Errorf("a caller that waited: %v", err)
	}
	if created, err := w.Init(t.Context(), 2, time.Hour); err != nil || !created {
		t.Errorf("init: %v, %v", created, err)
	}
	if d := takeOf(t, w, 2); !d.OK {
		t.Errorf("after that: %+v", d)
	}

	exists := func(key string) int64 {
		n, err := rdb.Do(t.Context(), rdb.B().Exists().Key(key).Build()).AsInt64()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for what, words := range map[string][]string{
		`"w" is a number`:               {"SET", "w", "17"},
		`"w" is a hash`:                 {"HSET", "w", "rate", "x"},
		`"{w}:permits" is a list`:       {"RPUSH", "{w}:permits", "1"},
		`"{w}:permits" is a sorted set`: {"ZADD", "{w}:permits", "1", "x"},
		`"{w}:value" is a string`:       {"SET", "{w}:value", "x"},
	} {
		s.Do(t, "FLUSHALL")
		s.Do(t, words...)
		if err := w.Delete(t.Context()); !errors.Is(err, lock.ErrWrongType) || exists(words[1]) != 1 || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	s.Do(t, "FLUSHALL")
	s.Do(t, "HSET", "w", "rate", "2", "interval", "1000", "type", "1", "keepAliveTime", "0")
	if err := w.Delete(t.Context()); !errors.Is(err, ratelimit.ErrPerClient) || exists("w") != 1 {
		t.Errorf("a rate for each client: %v", err)
	}
	s.Do(t, "FLUSHALL")
	s.Do(t, "SET", "{w}:value", "1")
	if err := w.Delete(t.Context()); err != nil || exists("{w}:value") != 0 {
		t.Errorf("a lost rate: %v", err)
	}
}

// A delayed duplicate of a Delete does not delete a limiter that was created since.
func TestRedissonLimiter_lateDelete(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	w, other := window(s.Client(t, redistest.Via(p)), "w"), newWindow(t, s.Client(t), "w", 1, time.Hour)
	copied := p.LoseDated(redistest.Action{DropReply: true}, false)
	if err := w.Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.OnRequest(nil)
	if created, err := other.Init(t.Context(), 2, time.Hour); err != nil || !created {
		t.Fatalf("%v, %v", created, err)
	}
	s.Do(t, copied()...)
	if d := takeOf(t, other, 0); d.Limit.Rate != 2 {
		t.Errorf("%+v", d)
	}
}

// A delayed duplicate of an Init or a SetRate does not create a limiter that was deleted since, whether it is the first copy or
// one that is allowed to set the rate.
func TestRedissonLimiter_lateCreation(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	w, other := window(s.Client(t, redistest.Via(p)), "w"), newWindow(t, s.Client(t), "w", 1, time.Hour)
	first := func() (words func() []string) {
		var sent []string
		lose := redistest.Once("EVALSHA", redistest.Action{DropReply: true})
		p.OnRequest(func(req [][]byte) redistest.Action {
			a := lose(req)
			if a.DropReply {
				for _, word := range req {
					sent = append(sent, string(word))
				}
			}
			return a
		})
		return func() []string { return sent }
	}
	dated := func() (words func() []string) { return p.LoseDated(redistest.Action{DropReply: true}, false) }
	for op, set := range map[string]func() error{
		"init":     func() error { return second(w.Init(t.Context(), 2, time.Hour)) },
		"set rate": func() error { return w.SetRate(t.Context(), 2, time.Hour) },
	} {
		for which, copied := range map[string]func() (words func() []string){"the first copy": first, "a copy that may set the rate": dated} {
			if err := other.Delete(t.Context()); err != nil {
				t.Fatal(err)
			}
			words := copied()
			if err := set(); err != nil {
				t.Fatal(err)
			}
			p.OnRequest(nil)
			if d := takeOf(t, other, 0); d.Limit.Rate != 2 {
				t.Errorf("%s: %+v", op, d)
			}
			if err := other.Delete(t.Context()); err != nil {
				t.Fatal(err)
			}
			if words() == nil {
				t.Fatalf("%s of %s: it was not sent", which, op)
			}
			s.Do(t, words()...)
			if d, err := other.Peek(t.Context()); !errors.Is(err, ratelimit.ErrNotInitialized) {
				t.Errorf("%s of %s: %+v, %v", which, op, d, err)
			}
		}
	}
}

// A handle serves its waiters one after the other, each as soon as a permit is available.
func TestRedissonLimiter_Wait(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWindow(t, redistest.NewMini(t).Client(t), "w", 2, time.Second)
		start := time.Now()
		for i := range 6 {
			if err := w.Wait(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			if got, want := time.Since(start).Truncate(time.Millisecond), time.Duration(i/2)*time.Second; got < want || got > want+10*time.Millisecond {
				t.Errorf("the %d-th after %v, want %v", i, got, want)
			}
		}
		var limited *ratelimit.LimitedError
		if err := w.Wait(soon(t, 500*time.Millisecond), 1); !errors.As(err, &limited) || limited.RetryAfter > time.Second {
			t.Errorf("not in time: %v", err)
		}
	})
}

// A caller in the process's queue whose context is canceled without an error gets no permits.
func TestRedissonLimiter_reusedContext(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWindow(t, redistest.NewMini(t).Client(t), "w", 1, time.Hour)
		if err := w.Wait(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		first := make(chan error, 1)
		go func() { first <- w.Wait(t.Context(), 1) }()
		synctest.Wait()
		if err := w.Wait(redistest.Reused{Context: soon(t, time.Second)}, 1); !errors.Is(err, context.Canceled) {
			t.Errorf("behind another caller: %v", err)
		}
		if err := <-first; err != nil {
			t.Error(err)
		}
	})
}

func TestRedissonLimiter_cluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	rdb := c.Client(t)
	for i := range 10 {
		for _, name := range []string{"w" + strconv.Itoa(i), "{w}" + strconv.Itoa(i)} {
			w := newWindow(t, rdb, name, 2, time.Hour)
			if a, b := takeOf(t, w, 2), takeOf(t, w, 1); !a.OK || b.OK {
				t.Errorf("%s: %+v, %+v", name, a, b)
			}
		}
	}
}

func TestRights_window(t *testing.T) {
	t.Parallel()
	withEach(t, "NewRedissonRateLimiter", func(t *testing.T, rdb rueidis.Client) {
		w := ratelimit.RedissonLimiterOn(command.New(rdb, command.Config{Prefix: "orders:", Timeout: time.Minute}), "w")
		_, err := w.Init(t.Context(), 2, 20*time.Millisecond)
		for range 3 {
			if err == nil {
				var d ratelimit.Decision
				if d, err = w.Take(t.Context(), 1); err == nil {
					_ = w.Refund(t.Context(), d)
					_, err = w.Take(t.Context(), 1)
				}
			}
			_, _ = w.Take(t.Context(), 2) // rejected
			time.Sleep(25 * time.Millisecond)
			_, _ = w.Take(t.Context(), 1) // removes the expired entries
			_ = w.SetRate(t.Context(), 3, 30*time.Millisecond)
			_ = w.SetRate(t.Context(), 2, 20*time.Millisecond)
		}
		_ = rdb.Do(t.Context(), rdb.B().Pexpire().Key("orders:w").Milliseconds(60_000).Build()).Error()
		_, _ = w.Take(t.Context(), 1)
		if e := w.Delete(t.Context()); err == nil {
			err = e
		}
		if err != nil && !strings.Contains(err.Error(), "security.md") && !errors.Is(err, ratelimit.ErrNotInitialized) {
			t.Errorf("denied: %v", err)
		}
	})
}

package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/ratelimit"
)

// A call with invalid arguments fails with an error that names the operation and the argument, and sends nothing.
func TestBadInput(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	fine := ratelimit.PerSecond(10)
	s.ResetStats(t)
	for what, l := range map[string]*ratelimit.Limiter{
		"no client":     ratelimit.New(nil, "api", closed, fine),
		"no name":       ratelimit.New(rdb, "", closed, fine),
		"a colon":       ratelimit.New(rdb, "api:v1", closed, fine),
		"half a brace":  ratelimit.New(rdb, "a{", closed, fine),
		"a long name":   ratelimit.New(rdb, strings.Repeat("x", 5000), closed, fine),
		"of locks":      ratelimit.New(rdb, "redisson_lock_queue", closed, fine),
		"no policy":     ratelimit.New(rdb, "api", ratelimit.Policy{}, fine),
		"no mode":       ratelimit.New(rdb, "api", ratelimit.Policy{}.After(time.Second), fine),
		"no patience":   ratelimit.New(rdb, "api", ratelimit.FailOpen().After(0), fine),
		"no processes":  ratelimit.New(rdb, "api", ratelimit.FailLocal(0), fine),
		"no limit":      ratelimit.New(rdb, "api", closed),
		"many limits":   ratelimit.New(rdb, "api", closed, slices.Repeat([]ratelimit.Limit{fine}, 9)...),
		"no rate":       ratelimit.New(rdb, "api", closed, ratelimit.Limit{Per: time.Second}),
		"rate below 0":  ratelimit.New(rdb, "api", closed, ratelimit.PerSecond(-1)),
		"huge rate":     ratelimit.New(rdb, "api", closed, ratelimit.PerSecond(math.MaxInt64)),
		"no period":     ratelimit.New(rdb, "api", closed, ratelimit.Limit{Rate: 1}),
		"of a ns":       ratelimit.New(rdb, "api", closed, ratelimit.Limit{Rate: 1, Per: time.Nanosecond}),
		"of 1.5 µs":     ratelimit.New(rdb, "api", closed, ratelimit.Limit{Rate: 1, Per: 1500}),
		"of centuries":  ratelimit.New(rdb, "api", closed, ratelimit.Limit{Rate: 1, Per: math.MaxInt64 / 1000 * 1000}),
		"burst below 0": ratelimit.New(rdb, "api", closed, ratelimit.Limit{Rate: 1, Per: time.Second, Burst: -1}),
		"huge burst":    ratelimit.New(rdb, "api", closed, ratelimit.Limit{Rate: 1, Per: time.Hour, Burst: 1_000_000_000_000}),
		"aligned burst": ratelimit.New(rdb, "api", closed, ratelimit.Limit{Rate: 9, Per: time.Second, Burst: 5, Aligned: true}),
		"then no limit": ratelimit.New(rdb, "api", closed, fine).With(),
	} {
		_, err1 := l.Take(t.Context(), "k", 1)
		_, err2 := l.Peek(t.Context(), "k")
		_, err3 := l.Reserve(t.Context(), "k", 1)
		for op, err := range map[string]error{"take": err1, "peek": err2, "reserve": err3, "wait": l.Wait(t.Context(), "k", 1), "refund": l.Refund(t.Context(), "k", ratelimit.Decision{})} {
			var e *lock.Error
			if !errors.As(err, &e) || e.Op != op || !strings.HasSuffix(e.Name, ":k") || len(err.Error()) > 500 {
				t.Errorf("%s: %s: %v", what, op, err)
			}
		}
	}
	l := ratelimit.New(rdb, "api", closed, fine)
	for _, n := range []int64{-1, math.MinInt64, math.MaxInt64} {
		for op, err := range map[string]error{
			"take": second(l.Take(t.Context(), "k", n)), "take up to": second(l.TakeUpTo(t.Context(), "k", n)),
			"reserve": second(l.Reserve(t.Context(), "k", n)), "wait": l.Wait(t.Context(), "k", n),
		} {
			var e *lock.Error
			if !errors.As(err, &e) || e.Op != op || e.Name != "api:k" {
				t.Errorf("%s, %d units: %v", op, n, err)
			}
		}
	}
	if _, err := l.Take(t.Context(), strings.Repeat("k", 5000), 1); !errors.Is(err, lock.ErrBadName) {
		t.Errorf("a long key: %v", err)
	}
	for _, key := range []string{"value", "permits", "config", "timeout"} { // names of the keys of a RedissonLimiter, a filter or a semaphore called x
		if _, err := ratelimit.New(rdb, "{x}", closed, fine).Take(t.Context(), key, 1); !errors.Is(err, lock.ErrBadName) {
			t.Errorf("{x}:%s: %v", key, err)
		}
	}
	if n := s.CommandCalls(t, "evalsha"); n != 0 {
		t.Errorf("%d scripts were sent", n)
	}
	if d := take(t, ratelimit.New(rdb, "{x}", closed, fine), "ann", 1); !d.OK {
		t.Errorf("%+v", d)
	}
	// Keys can come from untrusted input, so every text is a valid key.
	for _, key := range []string{"", ":", "{", "}{", "{}", "a\x00b", "ü", strings.Repeat("k", 4000)} {
		if d := take(t, l, key, 10); !d.OK {
			t.Errorf("%q: %+v", key, d)
		}
	}
}

func TestTake_foreignKey(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.Do(t, "HSET", "api:hash", "a", "b")
	s.Do(t, "SET", "api:counter", "17")
	for _, policy := range []ratelimit.Policy{closed, ratelimit.FailOpen().After(time.Minute), ratelimit.FailLocal(1).After(time.Minute)} {
		l := ratelimit.New(s.Client(t), "api", policy, ratelimit.PerSecond(1))
		for key, says := range map[string]string{"hash": "key has the wrong type: a hash that is not a lock", "counter": "key has the wrong type: a number"} {
			if d, err := l.Take(t.Context(), key, 1); !errors.Is(err, lock.ErrWrongType) || d.OK || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %+v, %v, want %q", key, d, err, says)
			}
		}
	}
}

// A call takes permits from all limits or from none.
func TestTake_severalLimits(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	l := ratelimit.New(rdb, "api", closed, ratelimit.Limit{Rate: 1, Per: time.Hour, Burst: 5}, ratelimit.Limit{Rate: 100, Per: 24 * time.Hour, Burst: 8}, ratelimit.Limit{Rate: 7, Per: 365 * 24 * time.Hour, Aligned: true})
	for i, step := range []struct {
		n, remaining int64
		ok           bool
		scarcest     int64
	}{{4, 1, true, 5}, {2, 1, false, 5}, {1, 0, true, 5}} {
		if d := take(t, l, "k", step.n); d.OK != step.ok || d.Remaining != step.remaining || d.Limit.Burst != step.scarcest {
			t.Errorf("step %d: %+v, want %+v", i+1, d, step)
		}
	}
	if d := take(t, l, "k", 6); d.OK || d.RetryAfter != ratelimit.Never {
		t.Errorf("6 of 5: %+v, want never", d)
	}
	if d := take(t, l.With(ratelimit.Limit{Rate: 1000, Per: time.Second}, ratelimit.Limit{Rate: 100, Per: 24 * time.Hour, Burst: 8}, ratelimit.Limit{Rate: 7, Per: 365 * 24 * time.Hour, Aligned: true}), "k", 3); d.OK || d.Remaining != 0 {
		t.Errorf("other limits: %+v", d)
	}
	// The used quota refills in five hours. It still takes five hours under a rate of two per hour.
	if d := peek(t, l.With(ratelimit.Limit{Rate: 2, Per: time.Hour, Burst: 20}), "k"); d.Remaining != 10 {
		t.Errorf("twice the rate: %+v, want 10 left", d)
	}
}

// Clients with several connections take permits as fast as they can. By their own clocks, in no
// period do they take more than the burst plus the rate.
func TestTake_neverMoreThanTheLimit(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	limit := ratelimit.Limit{Rate: 200, Per: time.Second, Burst: 50} // a busy machine can keep up with it
	type seen struct{ sent, heard time.Time }
	var mu sync.Mutex
	var log []seen
	var wg sync.WaitGroup
	start := time.Now()
	for range 8 {
		l := ratelimit.New(s.Client(t), "api", closed, limit)
		for range 4 {
			wg.Go(func() {
				for range 30 {
					sent := time.Now()
					d, err := l.Take(t.Context(), "hot", 1)
					if err != nil {
						t.Error(err)
						return
					}
					if !d.OK {
						sent = time.Now() // the permits are taken between now and the return
						if err := l.Wait(t.Context(), "hot", 1); err != nil {
							t.Error(err)
							return
						}
					}
					mu.Lock()
					log = append(log, seen{sent, time.Now()})
					mu.Unlock()
				}
			})
		}
	}
	wg.Wait()
	slices.SortFunc(log, func(a, b seen) int { return a.heard.Compare(b.heard) })
	worst := 0.0
	for i, from := range log {
		n := 0
		for _, to := range log {
			// A call that was sent after from and replied to before to happened in between.
			if !to.sent.Before(from.sent) {
				n++
				// The limiter uses the server's wall clock, which can be changed in the meantime.
				took := max(to.heard.Sub(from.sent), to.heard.Round(0).Sub(from.sent.Round(0)))
				if allowed := float64(limit.Burst) + took.Seconds()*float64(limit.Rate); float64(n) > allowed+1e-6 {
					t.Fatalf("from the %d-th on: %d in %v, allowed are %.1f", i, n, took, allowed)
				} else {
					worst = max(worst, float64(n)/allowed)
				}
			}
		}
	}
	if worst < 0.5 || len(log) < 100 {
		t.Errorf("%d taken in %v, at most %.2f of the allowed number: that proves little", len(log), time.Since(start), worst)
	}
}

// Callers that arrive while a request is in flight share the next request, first-come, first-served.
func TestTake_together(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	rdb := s.Client(t, redistest.Via(p))
	l := ratelimit.New(rdb, "api", closed, ratelimit.Limit{Rate: 60, Per: 24 * time.Hour})
	peek(t, l, "k") // loads the script on the server
	s.ResetStats(t)

	answer := make(chan struct{})
	p.OnRequest(redistest.Once("EVALSHA", redistest.Action{HoldReply: answer}))
	var wg sync.WaitGroup
	first := make(chan ratelimit.Decision, 1)
	wg.Go(func() { d, _ := l.Take(t.Context(), "k", 1); first <- d })
	for s.CommandCalls(t, "evalsha") == 0 {
		time.Sleep(time.Millisecond)
	}
	const crowd = 200
	var taken, remaining sync.Map
	ready := make(chan struct{}, crowd)
	for i := range crowd {
		wg.Go(func() {
			ready <- struct{}{}
			d, err := l.Take(t.Context(), "k", 1)
			if err != nil {
				t.Error(err)
			}
			if d.OK {
				taken.Store(i, true)
				if _, twice := remaining.LoadOrStore(d.Remaining, true); twice {
					t.Errorf("two callers were told that %d are left", d.Remaining)
				}
			}
		})
	}
	for range crowd {
		<-ready
	}
	ratelimit.WaitForAsks(l, "k", crowd)
	close(answer)
	wg.Wait()
	n := 0
	taken.Range(func(any, any) bool { n++; return true })
	if d := <-first; !d.OK || n != 59 {
		t.Errorf("the first: %+v; of the crowd %d, want 59", d, n)
	}
	if calls := s.CommandCalls(t, "evalsha"); calls != 2 {
		t.Errorf("%d commands for %d callers, want 2", calls, crowd+1)
	}
}

// After a rejection the limiter sends nothing until permits are available, or until a second has passed.
func TestTake_refusedHere(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := redistest.NewMini(t)
		rdb, scripts := counted(t, m)
		l := ratelimit.New(rdb, "api", closed, ratelimit.Limit{Rate: 5, Per: time.Second})
		slow := l.With(ratelimit.Limit{Rate: 1, Per: time.Hour})
		take(t, l, "k", 5)
		first := take(t, l, "k", 2)
		before := scripts.Load()
		for range 10 {
			if d := take(t, l, "k", 2); d.OK || d.RetryAfter > first.RetryAfter {
				t.Errorf("%+v, after %+v", d, first)
			}
			time.Sleep(first.RetryAfter / 11)
		}
		if n := scripts.Load() - before; n != 0 {
			t.Errorf("%d scripts were sent", n)
		}
		time.Sleep(first.RetryAfter)
		if d := take(t, l, "k", 2); !d.OK {
			t.Errorf("after its time: %+v", d)
		}
		d := take(t, slow, "slow", 1)
		if take(t, slow, "slow", 1).OK {
			t.Error("twice an hour")
		}
		if err := l.Refund(t.Context(), "slow", d); err != nil {
			t.Fatal(err)
		}
		m.Del("api:slow") // as an operator or a refund by another process does
		time.Sleep(time.Second)
		if d := take(t, slow, "slow", 1); !d.OK {
			t.Errorf("a second after the debt was gone: %+v", d)
		}
	})
}

// The machine slept after a rejection, and the permits are available again.
func TestTake_refusedBeforeASleep(t *testing.T) {
	m := redistest.NewMini(t)
	rdb, scripts := counted(t, m)
	l := ratelimit.New(rdb, "api", closed, ratelimit.Limit{Rate: 1, Per: time.Hour})
	take(t, l, "k", 1)
	if take(t, l, "k", 1).OK {
		t.Fatal("two of one")
	}
	before := scripts.Load()
	ratelimit.Sleep(l, time.Hour)
	if take(t, l, "k", 1); scripts.Load() == before {
		t.Error("refused without a request")
	}
}

// A duration that includes a sleep counts the sleep. A clock that moved backward subtracts nothing.
func TestSince(t *testing.T) {
	now := time.Now()
	if d := ratelimit.Since(redistest.BeforeSleep(now, time.Hour)); d < time.Hour {
		t.Errorf("%v, with an hour of sleep", d)
	}
	if d := ratelimit.Since(redistest.BeforeSleep(now, -time.Hour)); d < 0 {
		t.Errorf("%v", d)
	}
}

// The limiter drops a cached rejection when this process returns permits.
func TestRefund_isSeenAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := ratelimit.New(redistest.NewMini(t).Client(t), "api", closed, ratelimit.Limit{Rate: 2, Per: time.Minute})
		d := take(t, l, "k", 2)
		if take(t, l, "k", 2).OK {
			t.Fatal("four of two")
		}
		if err := l.Refund(t.Context(), "k", d); err != nil {
			t.Fatal(err)
		}
		if d := take(t, l, "k", 2); !d.OK {
			t.Errorf("%+v", d)
		}
	})
}

// Reset restores the full quota of a key, for this process immediately, whatever it has cached, and for others within a second.
// Other keys are not affected.
func TestReset(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := redistest.NewMini(t)
		limits := []ratelimit.Limit{ratelimit.PerHour(3), {Rate: 5, Per: 100 * 24 * time.Hour, Aligned: true}}
		a := ratelimit.New(m.Client(t), "api", closed, limits...)
		b := ratelimit.New(m.Client(t), "api", closed, limits...)
		reset := func() {
			t.Helper()
			if err := a.Reset(t.Context(), "k"); err != nil {
				t.Fatal(err)
			}
		}
		take(t, a, "other", 1)
		take(t, a, "k", 3)
		with := a.With(ratelimit.PerHour(2))
		for _, l := range []*ratelimit.Limiter{a, b, with} { // all of them cache the rejection
			if d := take(t, l, "k", 2); d.OK {
				t.Fatalf("%+v", d)
			}
		}
		reset()
		if d := take(t, with, "k", 2); !d.OK {
			t.Errorf("with another limit: %+v", d)
		}
		reset()
		if d := take(t, a, "k", 3); !d.OK || d.Remaining != 0 {
			t.Errorf("this process: %+v", d)
		}
		reset()
		if d := take(t, b, "k", 2); d.OK {
			t.Errorf("another process asked: %+v", d)
		}
		time.Sleep(time.Second)
		if d := take(t, b, "k", 2); !d.OK || d.Remaining != 1 {
			t.Errorf("another process, a second later: %+v", d)
		}
		reset()
		time.Sleep(2 * time.Millisecond)
		if keys := m.Keys(); !slices.Equal(keys, []string{"api:other"}) {
			t.Errorf("in Redis: %q", keys)
		}
		if d := peek(t, a, "other"); d.Remaining != 2 {
			t.Errorf("another key: %+v", d)
		}
	})
}

// A waiting caller keeps its turn when the key is reset.
func TestReset_ofAWaiter(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := ratelimit.New(redistest.NewMini(t).Client(t), "api", closed, ratelimit.PerMinute(1))
		take(t, l, "k", 1)
		start, done := time.Now(), make(chan error)
		go func() { done <- l.Wait(t.Context(), "k", 1) }()
		synctest.Wait()
		if err := l.Reset(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		if d := take(t, l, "k", 1); !d.OK {
			t.Errorf("%+v", d)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		isNear(t, "the turn of the waiter", time.Since(start), time.Minute)
	})
}

// While Redis is unavailable, Reset fails whatever the policy. If it was not sent yet, it is not sent later. When Redis is
// available, Reset also resets the count of this process.
func TestReset_withoutRedis(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for _, p := range []ratelimit.Policy{ratelimit.FailClosed(), ratelimit.FailOpen(), ratelimit.FailLocal(1)} {
			l, wire := silent(t, p)
			take(t, l, "k", 4)
			wire.Freeze(true)
			_, _ = l.Take(t.Context(), "k", 1) // is overdue
			var e *lock.Error
			if err := l.Reset(t.Context(), "k"); !errors.Is(err, lock.ErrUnavailable) || !errors.As(err, &e) || e.Op != "reset" || e.Name != "api:k" {
				t.Errorf("%v", err)
			}
			thaw(wire)
			if d := peek(t, l, "k"); d.Remaining > 6 {
				t.Errorf("a Reset that failed was sent: %+v", d)
			}
		}
		l, wire := silent(t, ratelimit.FailLocal(1))
		wire.Freeze(true)
		if d := take(t, l, "k", 10); !d.OK || d.Err == nil {
			t.Fatalf("%+v", d)
		}
		thaw(wire)
		if err := l.Reset(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		wire.Freeze(true)
		if d := take(t, l, "k", 10); !d.OK || d.Err == nil {
			t.Errorf("in the count of this process: %+v", d)
		}
		thaw(wire)
	})
}

// After a lost reply, the permits are taken once. The error reports that the outcome is unknown.
func TestTake_lostReply(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	l := ratelimit.New(s.Client(t, redistest.Via(p)), "api", closed, ratelimit.Limit{Rate: 10, Per: 24 * time.Hour})
	peek(t, l, "k")
	for what, act := range map[string]redistest.Action{"reply": {DropReply: true}, "request": {DropRequest: true}} {
		p.OnRequest(redistest.Once("EVALSHA", act))
		if d, err := l.Take(t.Context(), what, 3); !errors.Is(err, lock.ErrUnavailable) || d.OK || !errors.Is(d.Err, lock.ErrUnavailable) {
			t.Errorf("a lost %s: %+v, %v", what, d, err)
		}
		want := map[string]int64{"reply": 7, "request": 10}[what]
		if d := peek(t, l, what); d.Remaining != want {
			t.Errorf("a lost %s: %+v, want %d left", what, d, want)
		}
	}
}

// A proxy sends an error after the server executed a call for several keys. The call is not repeated, because that would
// take the permits twice.
func TestTake_severalKeysBehindAProxy(t *testing.T) {
	t.Parallel()
	t.Run("an error of the proxy", func(t *testing.T) {
		severalKeysBehindAProxy(t, redistest.Action{Refuse: "upstream failure", Execute: true})
	})
	t.Run("an error so late that the call can have been sent twice", func(t *testing.T) {
		severalKeysBehindAProxy(t, redistest.Action{Refuse: "LOADING x", Execute: true, DelayReply: time.Second})
	})
}

func severalKeysBehindAProxy(t *testing.T, refuse redistest.Action) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	l := ratelimit.New(s.Client(t, redistest.Via(p)), "api", closed, ratelimit.Limit{Rate: 10, Per: 24 * time.Hour})
	peek(t, l, "k")
	answer, asked := make(chan struct{}), make(chan struct{})
	requests, shared := 0, ""
	p.OnRequest(func(req [][]byte) (act redistest.Action) {
		if string(req[0]) != "EVALSHA" {
			return act
		}
		switch requests++; {
		case requests == 1:
			close(asked)
			act.HoldReply = answer
		case shared == "" && string(req[2]) != "1":
			shared = string(req[2])
			act = refuse
		}
		return act
	})
	var wg sync.WaitGroup
	wg.Go(func() { peek(t, l, "k") })
	<-asked
	const crowd = 20
	var errs [crowd]error
	for i := range crowd {
		wg.Go(func() { _, errs[i] = l.Take(t.Context(), fmt.Sprint("k", i), 1) })
	}
	time.AfterFunc(100*time.Millisecond, func() { close(answer) }) // by then most of them share the next call
	wg.Wait()
	p.OnRequest(nil)
	if shared == "" {
		t.Fatal("no call was for several keys")
	}
	failed := 0
	for i, err := range errs {
		if errors.Is(err, lock.ErrUnavailable) {
			failed++
		} else if err != nil {
			t.Error(err)
		}
		if d := peek(t, l, fmt.Sprint("k", i)); d.Remaining != 9 {
			t.Errorf("key %d: %d units are left after a Take of one that returned %v, want 9", i, d.Remaining, err)
		}
	}
	if fmt.Sprint(failed) != shared {
		t.Errorf("%d calls failed, and the call was for %s", failed, shared)
	}
}

// If a caller leaves before the reply, its permits are returned.
func TestTake_cancelled(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	l := ratelimit.New(s.Client(t, redistest.Via(p)), "api", closed, ratelimit.Limit{Rate: 10, Per: 24 * time.Hour})
	peek(t, l, "k")
	for what, call := range map[string]func(ctx context.Context) error{
		"take":    func(ctx context.Context) error { _, err := l.Take(ctx, "k", 3); return err },
		"reserve": func(ctx context.Context) error { _, err := l.Reserve(ctx, "k", 3); return err },
		"wait":    func(ctx context.Context) error { return l.Wait(ctx, "k", 3) },
	} {
		answer := make(chan struct{})
		p.OnRequest(redistest.Once("EVALSHA", redistest.Action{HoldReply: answer}))
		ctx, cancel := context.WithCancel(t.Context())
		s.ResetStats(t)
		done := make(chan error)
		go func() { done <- call(ctx) }()
		for s.CommandCalls(t, "evalsha") == 0 {
			time.Sleep(time.Millisecond)
		}
		cancel()
		var e *lock.Error
		if err := <-done; !errors.Is(err, context.Canceled) || !errors.As(err, &e) || e.Op != what || e.Name != "api:k" {
			t.Errorf("%s: %v", what, err)
		}
		close(answer)
		untilLeft(t, l, "k", 10)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Take(ctx, "k", 1); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled before: %v", err)
	}
}

// untilLeft waits until at least n permits are left, within rounding.
func untilLeft(t *testing.T, l *ratelimit.Limiter, key string, n int64) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		d := peek(t, l, key)
		// The µs between the two calls refill permits, though not exactly.
		if d.Remaining >= n || d.Remaining == n-1 && d.ResetAfter < time.Minute {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%+v, want %d left", d, n)
		}
	}
}

// Close ends every wait, and the permits of the waiters are returned.
func TestClose(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := command.New(redistest.NewMini(t).Client(t), command.Config{Prefix: "p:", Timeout: time.Minute})
		l := ratelimit.On(s, "api", closed, ratelimit.Limit{Rate: 1, Per: time.Minute})
		take(t, l, "k", 1)
		done := make(chan error)
		go func() { done <- l.Wait(t.Context(), "k", 1) }()
		synctest.Wait()
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-done; !errors.Is(err, lock.ErrClosed) {
			t.Errorf("a waiter: %v", err)
		}
		if _, err := l.Take(t.Context(), "k", 1); !errors.Is(err, lock.ErrClosed) {
			t.Errorf("after it: %v", err)
		}
		if err := l.Wait(t.Context(), "k", 1); !errors.Is(err, lock.ErrClosed) {
			t.Errorf("after it: %v", err)
		}
		other := ratelimit.On(command.New(s.Redis, command.Config{Prefix: "p:", Timeout: time.Minute}), "api", closed, ratelimit.Limit{Rate: 1, Per: time.Minute})
		if d := peek(t, other, "k"); d.ResetAfter > time.Minute {
			t.Errorf("%+v: the waiter's unit is still taken", d)
		}
	})
}

// On a cluster every key has its own slot, whatever characters it contains.
func TestCluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	l := ratelimit.New(c.Client(t), "api", closed, ratelimit.PerHour(3), ratelimit.PerHour(100))
	var wg sync.WaitGroup
	for i := range 60 {
		for _, key := range []string{fmt.Sprint("k", i), fmt.Sprintf("{%d", i), fmt.Sprintf("}%d{x}", i)} {
			wg.Go(func() {
				if a, b := take(t, l, key, 3), take(t, l, key, 1); !a.OK || b.OK {
					t.Errorf("%q: %+v, %+v", key, a, b)
				}
				if err := l.Wait(soon(t, 20*time.Second), key, 3); !errors.Is(err, ratelimit.ErrLimited) {
					t.Errorf("%q: %v", key, err)
				}
			})
		}
	}
	wg.Wait()

	// The slot of a key is migrated to another node.
	key := "moved"
	take(t, l, key, 2)
	from := c.Master(t, "api:"+key)
	to := c.Masters(t)[0]
	if to == from {
		to = c.Masters(t)[1]
	}
	m := c.Migrate(t, c.Slot(t, "api:"+key), from, to)
	if d := peek(t, l, key); d.Remaining != 1 {
		t.Errorf("while its slot moves: %+v", d)
	}
	m.Move(t, m.Keys(t)...)
	if d := peek(t, l, key); d.Remaining != 1 {
		t.Errorf("when it has moved: %+v", d)
	}
	m.Finish(t)
	if d := take(t, l, key, 1); !d.OK || d.Remaining != 0 {
		t.Errorf("after that: %+v", d)
	}
}

package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/ratelimit"
)

var daily = ratelimit.Limit{Rate: 10, Per: 24 * time.Hour}

// silent returns a limiter of ten permits per day, whose server does not respond while wire is frozen.
func silent(t *testing.T, p ratelimit.Policy) (l *ratelimit.Limiter, wire *redistest.Proxy) {
	t.Helper()
	m := redistest.NewMini(t)
	wire = m.Proxy(t)
	l = ratelimit.New(m.Client(t, redistest.Via(wire)), "api", p, daily)
	peek(t, l, "k")
	return l, wire
}

// thaw makes the server respond again, and waits until the late replies have arrived.
func thaw(wire *redistest.Proxy) {
	wire.Freeze(false)
	time.Sleep(time.Second)
	synctest.Wait()
}

func TestClosed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l, wire := silent(t, ratelimit.FailClosed())
		wire.Freeze(true)
		for i, want := range []time.Duration{50 * time.Millisecond, 0, 0} {
			start := time.Now()
			d, err := l.Take(t.Context(), fmt.Sprint(i), 1)
			var e *lock.Error
			if !errors.Is(err, lock.ErrUnavailable) || !errors.As(err, &e) || d.OK || d.Taken != 0 || d.Err == nil {
				t.Errorf("call %d: %+v, %v", i, d, err)
			}
			// While a request is overdue, callers do not wait.
			isNear(t, fmt.Sprintf("call %d took", i), time.Since(start), want)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if err := l.Wait(ctx, "k", 1); !errors.Is(err, lock.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a wait that ends in the silence: %v", err)
		}
		waits := make(chan error, 1)
		go func() { waits <- l.Wait(t.Context(), "waits", 1) }()
		time.Sleep(time.Second)
		if len(waits) > 0 {
			t.Errorf("the silence ends a wait: %v", <-waits)
		}
		thaw(wire)
		if err := <-waits; err != nil {
			t.Errorf("a wait that outlasts the silence: %v", err)
		}
		for i := range 3 {
			if d := peek(t, l, fmt.Sprint(i)); d.Remaining != 10 {
				t.Errorf("key %d: %+v: the units of a refused call are still taken", i, d)
			}
		}
		if d := take(t, l, "k", 10); !d.OK {
			t.Errorf("afterwards: %+v", d)
		}
	})
}

func TestOpen(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l, wire := silent(t, ratelimit.FailOpen().After(20*time.Millisecond))
		wire.Freeze(true)
		for i, want := range []time.Duration{20 * time.Millisecond, 0} {
			start := time.Now()
			d, err := l.Take(t.Context(), "k", 4)
			if err != nil || !d.OK || d.Taken != 4 || !errors.Is(d.Err, lock.ErrUnavailable) {
				t.Errorf("call %d: %+v, %v", i, d, err)
			}
			isNear(t, fmt.Sprintf("call %d took", i), time.Since(start), want)
		}
		if d, err := l.Take(t.Context(), "k", 1000); err != nil || !d.OK {
			t.Errorf("more than the limit: %+v, %v", d, err)
		}
		if d := peek(t, l, "k"); !d.OK || d.RetryAfter != 0 || !errors.Is(d.Err, lock.ErrUnavailable) {
			t.Errorf("peek: %+v", d)
		}
		r, err := l.Reserve(t.Context(), "k", 1)
		if err != nil || r.Delay() != 0 || !errors.Is(r.Err(), lock.ErrUnavailable) {
			t.Errorf("reserve: %+v, %v", r, err)
		}
		if err := l.Wait(t.Context(), "k", 1); err != nil {
			t.Errorf("wait: %v", err)
		}
		thaw(wire)
		if d := peek(t, l, "k"); d.Remaining != 6 {
			t.Errorf("%+v: the server was told of 4 that were let pass", d)
		}
	})
}

func TestLocal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l, wire := silent(t, ratelimit.FailLocal(2))
		fast := l.With(ratelimit.Limit{Rate: 10, Per: time.Second, Burst: 4}, ratelimit.Limit{Rate: 40, Per: time.Hour, Aligned: true})
		wire.Freeze(true)
		take := func(l *ratelimit.Limiter, key string, n int64) ratelimit.Decision {
			t.Helper()
			d, err := l.Take(t.Context(), key, n)
			if err != nil || !errors.Is(d.Err, lock.ErrUnavailable) {
				t.Fatalf("%+v, %v", d, err)
			}
			return d
		}
		// The share is half of ten per day.
		if d := take(l, "k", 5); !d.OK || d.Remaining != 0 {
			t.Errorf("%+v", d)
		}
		if d := take(l, "k", 1); d.OK || d.RetryAfter <= 4*time.Hour || d.RetryAfter > 5*time.Hour {
			t.Errorf("%+v, want in 4.8 h", d)
		}
		if d := take(l, "k", 6); d.OK || d.RetryAfter != ratelimit.Never {
			t.Errorf("%+v, want never", d)
		}
		if d := peek(t, l, "k"); d.OK || d.Remaining != 0 || d.RetryAfter <= 4*time.Hour || d.RetryAfter > 5*time.Hour {
			t.Errorf("%+v, want one in 4.8 h", d)
		}
		if d := peek(t, l, "untouched"); !d.OK || d.Remaining != 5 || d.RetryAfter != 0 {
			t.Errorf("%+v, want all five", d)
		}
		if d := take(l, "other", 1); !d.OK {
			t.Errorf("%+v", d)
		}
		// The limits are a burst of two, five per second and twenty per hour. A call takes permits from all of them or from none.
		start := time.Now()
		for i := range 20 {
			if err := fast.Wait(t.Context(), "k", 1); err != nil {
				t.Fatal(err)
			}
			isNear(t, fmt.Sprintf("turn %d", i), time.Since(start), time.Duration(max(0, i-1))*200*time.Millisecond)
		}
		time.Sleep(time.Second)
		if d := take(fast, "k", 1); d.OK || d.Limit.Per != time.Hour {
			t.Errorf("%+v, want the hour's limit", d)
		}
		if err := fast.Wait(soon(t, time.Minute), "k", 1); !errors.Is(err, ratelimit.ErrLimited) {
			t.Errorf("in this hour: %v", err)
		}
		r, err := fast.Reserve(t.Context(), "k", 1)
		if err != nil {
			t.Fatal(err)
		}
		hourly := l.With(ratelimit.Limit{Rate: 4, Per: time.Hour, Aligned: true})
		take(hourly, "hourly", 2)
		if _, err := hourly.Reserve(t.Context(), "hourly", 1); err != nil {
			t.Fatal(err)
		}
		if d := take(hourly, "hourly", 1); d.OK {
			t.Errorf("%+v, before a caller that waits for the next hour", d)
		}
		isNear(t, "the next hour", r.Delay(), time.Until(start.Truncate(time.Hour).Add(time.Hour)))
	})
}

// Even without Redis, a decision names the limit that rejected the call. Otherwise it names the limit with the fewest permits
// left, or the one of them that gets its next permit last.
func TestLocal_namesTheLimit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l, wire := silent(t, ratelimit.FailLocal(1))
		second, minute, few := ratelimit.PerSecond(3), ratelimit.PerMinute(3), ratelimit.PerHour(2)
		wire.Freeze(true)
		for i, c := range []struct {
			limits []ratelimit.Limit
			before int64
			n      int64
			want   ratelimit.Limit
		}{
			{[]ratelimit.Limit{second, minute}, 0, 3, minute}, // neither has permits left
			{[]ratelimit.Limit{second, minute}, 3, 1, minute},
			{[]ratelimit.Limit{minute, second}, 3, 1, minute},
			{[]ratelimit.Limit{second, ratelimit.PerMinute(6)}, 3, 1, second},
			{[]ratelimit.Limit{minute, few}, 0, 3, few}, // more than its burst
			{[]ratelimit.Limit{{Rate: 1, Per: time.Second, Burst: 4}, {Rate: 1, Per: 10 * time.Second, Burst: 5}}, 2, 4, ratelimit.Limit{Rate: 1, Per: 10 * time.Second, Burst: 5}},
		} {
			with, key := l.With(c.limits...), fmt.Sprint(i)
			if c.before > 0 {
				take(t, with, key, c.before)
			}
			d := take(t, with, key, c.n)
			if d.Limit.Rate != c.want.Rate || d.Limit.Per != c.want.Per || d.Err == nil {
				t.Errorf("case %d: %+v, want %+v", i, d, c.want)
			}
		}
		thaw(wire)
	})
}

func TestLocal_manyProcesses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		count := ratelimit.CountHere(1_000_000, ratelimit.Limit{Rate: 1, Per: 24 * time.Hour})
		if c := count(1, 1, 0); c.Taken != 1 || c.Reset < 24*time.Hour {
			t.Errorf("%+v", c)
		}
		if c := count(1, 1, ratelimit.MaxWait); c.Taken != 0 || c.Retry < 24*time.Hour {
			t.Errorf("%+v", c)
		}
		h := http.Header{}
		ratelimit.Decision{RetryAfter: count(1, 1, 0).Retry, Limit: ratelimit.PerHour(1)}.SetHeader(h, "api")
		if after := h.Get("Retry-After"); strings.HasPrefix(after, "-") || len(after) < 6 {
			t.Errorf("Retry-After: %s", after)
		}
	})
}

// Even without Redis, the permits of a caller that leaves its Wait are returned immediately if no later caller of the process
// waits. Otherwise they are returned when the later callers leave.
func TestLocal_leave(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l, wire := silent(t, ratelimit.FailLocal(1))
		l = l.With(ratelimit.Limit{Rate: 1, Per: time.Second, Burst: 2})
		wire.Freeze(true)
		if d, err := l.Take(t.Context(), "k", 2); err != nil || !d.OK {
			t.Fatal(d, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() { left <- l.Wait(ctx, "k", 1) }()
		synctest.Wait()
		reserve := func(delay time.Duration) *ratelimit.Reservation {
			t.Helper()
			r, err := l.Reserve(t.Context(), "k", 1)
			if err != nil {
				t.Fatal(err)
			}
			isNear(t, "the delay", r.Delay(), delay)
			return r
		}
		later := reserve(2 * time.Second)
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		latest := reserve(3 * time.Second) // the callers that stay keep their turns
		for _, r := range []*ratelimit.Reservation{later, latest, latest} {
			if err := r.Cancel(t.Context()); err != nil {
				t.Error(err)
			}
		}
		r := reserve(time.Second)
		time.Sleep(time.Second)
		if err := r.Cancel(t.Context()); err != nil { // its turn has come, so it may have used its permit
			t.Error(err)
		}
		reserve(time.Second)
	})
}

// Redis refuses connections.
func TestRefusedConnections(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l, wire := silent(t, ratelimit.FailClosed().After(time.Minute))
		wire.Refuse(true)
		wire.CutAll()
		if _, err := l.Take(t.Context(), "k", 1); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("%v", err)
		}
		wire.Refuse(false)
		for range 100 {
			if d, err := l.Take(t.Context(), "k", 1); err == nil && d.OK {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
		t.Error("the limiter never works again")
	})
}

// If the caller's context is canceled before the reply timeout, Take returns its error and the policy does not decide.
func TestPolicy_ofAContextThatEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l, wire := silent(t, ratelimit.FailOpen())
		wire.Freeze(true)
		d, err := l.Take(soon(t, 10*time.Millisecond), "k", 1)
		if !errors.Is(err, context.DeadlineExceeded) || d.OK {
			t.Errorf("%+v, %v", d, err)
		}
		thaw(wire)
		if d := peek(t, l, "k"); d.Remaining != 10 {
			t.Errorf("%+v", d)
		}
	})
}

// An unresponsive node of a cluster does not affect the keys of other nodes.
func TestPolicy_onACluster(t *testing.T) {
	t.Parallel()
	// The options prevent replicas from being promoted.
	c := redistest.StartCluster(t, "--cluster-require-full-coverage", "no", "--cluster-replica-no-failover", "yes")
	rdb := c.Client(t)
	l := ratelimit.New(rdb, "api", ratelimit.FailOpen().After(2*time.Second), daily)
	frozen := c.Master(t, "api:0")
	var here, elsewhere []string
	for i := 0; len(here) < 3 || len(elsewhere) < 3; i++ {
		key := fmt.Sprint(i)
		if c.Master(t, "api:"+key) == frozen {
			here = append(here, key)
		} else {
			elsewhere = append(elsewhere, key)
		}
	}
	for _, key := range append(here, elsewhere...) {
		take(t, l, key, 1)
	}
	frozen.Freeze(t)
	defer frozen.Thaw(t)
	for i := range 3 {
		if d := take(t, l, here[i], 1); !d.OK || d.Err == nil {
			t.Errorf("at the frozen node: %+v", d)
		}
		if d := take(t, l, elsewhere[i], 1); !d.OK || d.Err != nil {
			t.Errorf("at another node: %+v", d)
		}
	}
}

package ratelimit_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/ratelimit"
)

// Prefetching needs few commands for many permits, and callers get all of the permits.
func TestPrefetch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rdb, scripts := counted(t, redistest.NewMini(t))
		plain := ratelimit.New(rdb, "api", closed, ratelimit.Limit{Rate: 100, Per: 24 * time.Hour})
		l := plain.Prefetch(20, time.Second)
		peek(t, l, "k")
		before := scripts.Load()
		for i := range 100 {
			if d := take(t, l, "k", 1); !d.OK || d.Taken != 1 || d.Remaining != int64(99-i) {
				t.Fatalf("unit %d: %+v", i, d)
			}
		}
		if n := scripts.Load() - before; n != 5 {
			t.Errorf("%d commands for 100 units by 21", n)
		}
		for range 10 {
			if d := take(t, l, "k", 1); d.OK || d.RetryAfter <= 0 {
				t.Errorf("%+v", d)
			}
		}
		if n := scripts.Load() - before; n != 6 {
			t.Errorf("%d commands, want one for ten refusals", n-5)
		}
		// Permits that are not used in time are lost. This call takes 21 permits for one.
		take(t, l, "late", 1)
		time.Sleep(time.Second)
		take(t, l, "late", 1)
		if d := peek(t, plain, "late"); d.Remaining != 58 {
			t.Errorf("%+v, want 58 left", d)
		}
		// The call uses the permits in the stock together with those that it fetches.
		if d := take(t, l, "late", 30); !d.OK || d.Remaining != 48 {
			t.Errorf("%+v, want 48 left, here and there", d)
		}
		// After a rejection the permits are still in the stock.
		before = scripts.Load()
		if d := take(t, l, "late", 90); d.OK {
			t.Errorf("%+v", d)
		}
		if d := take(t, l, "late", 19); !d.OK || scripts.Load() != before+1 {
			t.Errorf("%+v, %d commands, want one, for the refusal", d, scripts.Load()-before)
		}
		if d := take(t, l, "late", 101); d.OK || d.RetryAfter != ratelimit.Never {
			t.Errorf("%+v, want never", d)
		}
	})
}

// Even if processes use their permits late, the admitted permits stay within the documented bound.
func TestPrefetch_bound(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := redistest.NewMini(t)
		limit, within := ratelimit.Limit{Rate: 200, Per: time.Second, Burst: 40}, 300*time.Millisecond
		var mu sync.Mutex
		var log []time.Time
		var wg sync.WaitGroup
		for i := range 4 {
			l := ratelimit.New(m.Client(t), "api", closed, limit).Prefetch(5, within)
			wg.Go(func() {
				for j := range 600 {
					d, err := l.Take(t.Context(), "hot", 1)
					if err != nil {
						t.Error(err)
						return
					}
					if d.OK {
						mu.Lock()
						log = append(log, time.Now())
						mu.Unlock()
					}
					time.Sleep(time.Duration(i+j%7) * 3 * time.Millisecond)
				}
			})
		}
		wg.Wait()
		slices.SortFunc(log, time.Time.Compare)
		for i := range log {
			for j := i; j < len(log); j++ {
				if allowed := float64(limit.Burst) + float64(limit.Rate)*(log[j].Sub(log[i])+within).Seconds(); float64(j-i+1) > allowed {
					t.Fatalf("%d in %v, allowed are %.1f", j-i+1, log[j].Sub(log[i]), allowed)
				}
			}
		}
		if len(log) < 500 {
			t.Errorf("only %d units passed", len(log))
		}
	})
}

// The machine slept until the permits in the stock had expired.
func TestPrefetch_afterASleep(t *testing.T) {
	rdb, scripts := counted(t, redistest.NewMini(t))
	l := ratelimit.New(rdb, "api", closed, ratelimit.Limit{Rate: 100, Per: 24 * time.Hour}).Prefetch(20, time.Hour)
	take(t, l, "k", 1)
	before := scripts.Load()
	ratelimit.Sleep(l, 50*time.Minute)
	if take(t, l, "k", 1); scripts.Load() != before {
		t.Error("the stock was not used after 50 minutes of an hour")
	}
	ratelimit.Sleep(l, 10*time.Minute)
	if take(t, l, "k", 1); scripts.Load() == before {
		t.Error("the stock was used after the hour")
	}
}

// Callers that arrive while another one fetches wait for its permits. Those that get none share one command instead of
// sending one each.
func TestPrefetch_crowd(t *testing.T) {
	const trip = 15 * time.Millisecond // the policy waits for 50 ms
	for _, c := range []struct {
		extra   int64
		callers int
		trips   time.Duration
	}{{100, 101, 1}, {10, 200, 3}} {
		t.Run(fmt.Sprint(c.callers), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m := redistest.NewMini(t)
				wire := m.Proxy(t)
				l := ratelimit.New(m.Client(t, redistest.Via(wire)), "api", ratelimit.FailClosed(), ratelimit.Limit{Rate: 1000, Per: time.Hour}).Prefetch(c.extra, time.Minute)
				peek(t, l, "k")
				wire.OnRequest(func(req [][]byte) (a redistest.Action) {
					if isScript(req) {
						a.DelayReply = trip
					}
					return a
				})
				start := time.Now()
				var wg sync.WaitGroup
				for range c.callers {
					wg.Go(func() {
						if d := take(t, l, "k", 1); !d.OK {
							t.Errorf("%+v", d)
						}
					})
				}
				wg.Wait()
				if took := time.Since(start); took > c.trips*trip {
					t.Errorf("%d callers took %v, want %d round trips of %v", c.callers, took, c.trips, trip)
				}
			})
		})
	}
}

// A refund of permits from the stock returns no more than the part of the oldest ones that has not been refilled.
func TestPrefetch_refund(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rdb, _ := counted(t, redistest.NewMini(t))
		plain := ratelimit.New(rdb, "api", closed, ratelimit.Limit{Rate: 10, Per: time.Second, Burst: 100})
		l := plain.Prefetch(50, time.Second)
		take(t, l, "k", 1) // uses 51 permits
		time.Sleep(900 * time.Millisecond)
		d := take(t, l, "k", 51) // 50 from the stock, and uses 51 more
		if left := peek(t, plain, "k").Remaining; left != 7 {
			t.Errorf("%d are left, want 7", left)
		}
		if err := l.Refund(t.Context(), "k", d); err != nil {
			t.Error(err)
		}
		if left := peek(t, plain, "k").Remaining; left != 49 {
			t.Errorf("%d are left after the refund of 51, of which 9 have been refilled, want 49", left)
		}
	})
}

func TestPrefetch_silence(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l, wire := silent(t, ratelimit.FailClosed())
		l = l.Prefetch(3, time.Minute)
		take(t, l, "k", 1)
		wire.Freeze(true)
		for range 3 { // the stock has these permits
			if d := take(t, l, "k", 1); !d.OK {
				t.Errorf("%+v", d)
			}
		}
		if _, err := l.Take(t.Context(), "k", 1); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("%v", err)
		}
		thaw(wire)
		if d := take(t, l, "k", 1); !d.OK {
			t.Errorf("afterwards: %+v", d)
		}
	})
}

func TestPrefetch_badInput(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	l := ratelimit.New(rdb, "api", closed, ratelimit.PerSecond(10))
	for _, bad := range []*ratelimit.Limiter{
		l.Prefetch(0, time.Second), l.Prefetch(-1, time.Second), l.Prefetch(6, time.Second), l.Prefetch(5, 0), l.Prefetch(5, 2*time.Hour),
		l.Prefetch(5, time.Second).With(ratelimit.PerSecond(9)),
	} {
		if _, err := bad.Take(t.Context(), "k", 1); err == nil {
			t.Error("no error")
		}
	}
	if d := take(t, l.Prefetch(5, time.Second), "k", 1); !d.OK {
		t.Errorf("%+v", d)
	}
}

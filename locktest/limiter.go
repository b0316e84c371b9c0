package locktest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/ratelimit"
)

// Limiter is what [RunLimiter] needs of a rate limiter. *ratelimit.Limiter implements it.
type Limiter interface {
	Take(ctx context.Context, key string, n int64) (ratelimit.Decision, error)
	TakeUpTo(ctx context.Context, key string, n int64) (ratelimit.Decision, error)
	Peek(ctx context.Context, key string) (ratelimit.Decision, error)
	Refund(ctx context.Context, key string, d ratelimit.Decision) error
	Reset(ctx context.Context, key string) error
	Wait(ctx context.Context, key string, n int64) error
}

// LimiterHarness creates the limiters that [RunLimiter] tests.
type LimiterHarness struct {
	// New returns a limiter called name, always of the same client.
	New func(name string, limits ...ratelimit.Limit) Limiter

	// Other returns a limiter of another client on the same server, as another process would.
	Other func(name string, limits ...ratelimit.Limit) Limiter
}

// RunLimiter tests every rule of a rate limiter, each in a subtest named after it.
//
//	locktest.RunLimiter(t, locktest.LimiterHarness{
//		New: func(name string, limits ...ratelimit.Limit) locktest.Limiter {
//			return a.NewRateLimiter(name, ratelimit.FailClosed(), limits...)
//		},
//		Other: func(name string, limits ...ratelimit.Limit) locktest.Limiter {
//			return b.NewRateLimiter(name, ratelimit.FailClosed(), limits...)
//		},
//	})
func RunLimiter(t *testing.T, h LimiterHarness) {
	try(t, limiterRules, Harness{limiter: &h}, RWHarness{})
}

// limiterRules are in the order in which a user meets them.
var limiterRules = []rule{
	{name: "burst", says: "as many units as the burst pass at once, of all clients together, and of each key", test: burst},
	{name: "all or none of the units", says: "Take takes all units of all limits or none, and TakeUpTo those that are there", test: allPermitsOrNone},
	{name: "peek", says: "Peek tells what Take would find, and changes nothing", test: peeks},
	{name: "refund", says: "Refund gives back what a decision took, and not more than the burst", test: refunds},
	{name: "refill", says: "units come back at the rate: not before RetryAfter, and then they do", test: refills},
	{name: "wait in order", says: "Wait serves its callers in the order in which they came, at the rate, and nobody passes them", test: waitsInOrder},
	{name: "too late a turn", says: "Wait fails at once with ErrLimited, and takes nothing, if its turn comes after the end of its context", test: turnAfterTheDeadline},
	{name: "cancelled wait for units", says: "a Wait that its context ends returns the error of the context, and its units come back", test: canceledPermits},
	{name: "units for the next call", says: "the units of a Wait that its context ends are there for the next call of the same client", test: permitsForTheNextCall},
	{name: "reset", says: "Reset makes a key as new, for its own client at once and for others within a second", test: resets},
	{name: "bad numbers of units", says: "a negative number of units is an error, and takes nothing", test: badPermits},
	{name: "many takers", says: "under contention of two clients no more units pass than the burst", test: manyTakers},
}

// slow is a limit of n permits at once that refills too slowly to matter.
func slow(n int64) ratelimit.Limit {
	return ratelimit.Limit{Rate: 1, Per: 24 * time.Hour, Burst: n}
}

// limiters returns a handle of the trial's limiter for each client.
func (t *trial) limiters(limits ...ratelimit.Limit) (a, b Limiter) {
	name := strings.ReplaceAll(t.lock, ":", "-") // the name of a limiter must not contain a colon
	return t.h.limiter.New(name, limits...), t.h.limiter.Other(name, limits...)
}

// decides returns a check for a decision.
func (t *trial) decides(ok bool, taken, remaining int64) func(ratelimit.Decision, error) ratelimit.Decision {
	t.Helper()
	return func(d ratelimit.Decision, err error) ratelimit.Decision {
		t.Helper()
		if err != nil || d.Err != nil || d.OK != ok || d.Taken != taken || d.Remaining != remaining {
			t.broken("OK is %v, %d taken, %d remain (errors %v, %v), want %v, %d, %d", d.OK, d.Taken, d.Remaining, err, d.Err, ok, taken, remaining)
		}
		return d
	}
}

// waitForReset waits until is returns true for the time until the full quota is available.
func (t *trial) waitForReset(l Limiter, what string, is func(resetAfter time.Duration) bool) time.Duration {
	t.Helper()
	for {
		d, err := l.Peek(t.ctx, "key")
		if err != nil && t.ctx.Err() == nil {
			t.fatal("peek: %v", err)
		}
		if err == nil && is(d.ResetAfter) {
			return d.ResetAfter
		}
		t.rest(what, d.ResetAfter)
	}
}

func burst(t *trial) {
	a, b := t.limiters(slow(5))
	for i := range int64(5) {
		t.decides(true, 1, 4-i)([]Limiter{a, b}[i%2].Take(t.ctx, "key", 1))
	}
	for _, l := range []Limiter{a, b} {
		if d := t.decides(false, 0, 0)(l.Take(t.ctx, "key", 1)); d.RetryAfter <= 0 || d.ResetAfter < d.RetryAfter {
			t.broken("a refused caller is to come again after %v, and all is as new after %v", d.RetryAfter, d.ResetAfter)
		}
	}
	t.decides(true, 5, 0)(b.Take(t.ctx, "other", 5))
	t.decides(false, 0, 0)(a.Take(t.ctx, "other", 1))
	t.decides(true, 1, 4)(a.Take(t.ctx, "*:{ü}\x00", 1))
}

func allPermitsOrNone(t *trial) {
	a, b := t.limiters(slow(5), slow(8))
	t.decides(true, 3, 2)(a.Take(t.ctx, "key", 3))
	t.decides(false, 0, 2)(b.Take(t.ctx, "key", 3))
	if d := t.decides(false, 0, 2)(a.Take(t.ctx, "key", 6)); d.RetryAfter != ratelimit.Never {
		t.broken("six of five are to come after %v, want Never", d.RetryAfter)
	}
	t.decides(true, 0, 2)(b.Take(t.ctx, "key", 0))
	t.decides(true, 2, 0)(b.TakeUpTo(t.ctx, "key", 4))
	t.decides(false, 0, 0)(a.TakeUpTo(t.ctx, "key", 4))
}

func peeks(t *trial) {
	a, b := t.limiters(slow(2))
	for _, left := range []int64{2, 1, 0} {
		for _, l := range []Limiter{a, b, a} {
			t.decides(left > 0, 0, left)(l.Peek(t.ctx, "key"))
		}
		if left > 0 {
			t.decides(true, 1, left-1)(b.Take(t.ctx, "key", 1))
		}
	}
}

func refunds(t *trial) {
	a, b := t.limiters(slow(5))
	refund := func(l Limiter, d ratelimit.Decision) {
		t.Helper()
		if err := l.Refund(t.ctx, "key", d); err != nil {
			t.broken("refund: %v", err)
		}
	}
	two := t.decides(true, 2, 3)(a.Take(t.ctx, "key", 2))
	t.decides(true, 3, 0)(b.Take(t.ctx, "key", 3))
	refused := t.decides(false, 0, 0)(a.Take(t.ctx, "key", 2))
	refund(a, refused) // took nothing
	t.decides(false, 0, 0)(b.Take(t.ctx, "key", 1))
	refund(a, two)
	t.decides(true, 2, 0)(b.Take(t.ctx, "key", 2))
	t.decides(false, 0, 0)(a.Take(t.ctx, "key", 1))
}

func refills(t *trial) {
	const every = 50 * time.Millisecond
	a, b := t.limiters(ratelimit.Limit{Rate: 1, Per: every, Burst: 3})
	began, passed := time.Now(), 0
	for passed < 9 {
		d, err := []Limiter{a, b}[passed%2].Take(t.ctx, "key", 1)
		switch {
		case err != nil:
			t.fatal("take: %v", err)
		case d.OK:
			passed++
			if most := 3 + int((time.Since(began)+every/10)/every); passed > most {
				t.broken("%d units have passed within %v, want %d at the most", passed, time.Since(began), most)
			}
			continue
		case d.RetryAfter <= 0 || d.RetryAfter > every:
			t.broken("a unit comes after %v, want %v at the most", d.RetryAfter, every)
		}
		again := time.After(d.RetryAfter + time.Millisecond)
		select {
		case <-again:
		case <-t.ctx.Done():
			t.fatal("units do not come back")
		}
		if d, err := a.Peek(t.ctx, "key"); err != nil || !d.OK {
			t.broken("after RetryAfter: %+v, error %v", d, err)
			return
		}
	}
}

func waitsInOrder(t *trial) {
	end, _ := t.ctx.Deadline()
	every := (time.Until(end) / 12).Truncate(time.Millisecond) // 5 s, so that even a busy machine reads the used quota before half of it is refilled
	a, b := t.limiters(ratelimit.Limit{Rate: 1, Per: every, Burst: 1})
	began := time.Now()
	t.decides(true, 1, 0)(a.Take(t.ctx, "key", 1))
	var waits []*ending
	var turns [4]atomic.Int64 // time from began until each caller is served
	for i := range turns {
		owed := t.waitForReset(b, "a debt", func(d time.Duration) bool { return d > 0 })
		read := time.Now()
		waits = append(waits, t.begin(func(ctx context.Context) error {
			defer func() { turns[i].Store(int64(time.Since(began))) }()
			return []Limiter{a, b}[i%2].Wait(ctx, "key", 1)
		}))
		asked := read
		t.waitForReset(b, "another unit", func(d time.Duration) bool { // the caller is queued
			more := d > 0 && d+asked.Sub(read) > owed+every/4 // at least as much of owed has been refilled by then
			asked = time.Now()                                // before the next Peek
			return more
		})
	}
	t.decides(false, 0, 0)(b.Take(t.ctx, "key", 1))
	t.ended(waits...)
	for i := range turns {
		// No caller is served before its turn, so none overtakes another. This check works even if the
		// machine wakes several callers late.
		if took, due := time.Duration(turns[i].Load()), time.Duration(i+1)*every; took < due-every/10 {
			t.broken("caller %d is served after %v, want %v at least", i, took, due)
		}
	}
}

func turnAfterTheDeadline(t *trial) {
	a, b := t.limiters(slow(1))
	if err := a.Wait(t.ctx, "key", 1); err != nil { // a permit is available
		t.broken("wait: %v", err)
	}
	before := t.decides(false, 0, 0)(b.Peek(t.ctx, "key"))
	for _, l := range []Limiter{a, b} {
		err := l.Wait(t.ctx, "key", 1)
		var e *ratelimit.LimitedError
		if t.named(err, ratelimit.ErrLimited); !errors.As(err, &e) || e.RetryAfter <= 0 {
			t.broken("the error %v has no time after which to come again", err)
		}
	}
	if after := t.decides(false, 0, 0)(a.Peek(t.ctx, "key")); after.ResetAfter > before.ResetAfter {
		t.broken("a refused Wait costs: as new after %v, and %v before", after.ResetAfter, before.ResetAfter)
	}
}

func canceledPermits(t *trial) {
	end, _ := t.ctx.Deadline()
	every := (time.Until(end) * 4 / 5).Truncate(time.Millisecond) // two permits are not refilled within the time of the trial
	a, b := t.limiters(ratelimit.Limit{Rate: 1, Per: every, Burst: 1})
	began := time.Now()
	t.decides(true, 1, 0)(a.Take(t.ctx, "key", 1))
	w := t.begin(func(ctx context.Context) error { return a.Wait(ctx, "key", 1) })
	two := func(d time.Duration) bool { return d > 2*every-time.Since(began)-every/2 }
	t.waitForReset(b, "two units", two)
	w.cancel()
	t.failed(context.Canceled, w)
	t.waitForReset(b, "one unit", func(d time.Duration) bool { return !two(d) })
}

func permitsForTheNextCall(t *trial) {
	a, b := t.limiters(ratelimit.Limit{Rate: 1, Per: time.Hour, Burst: 3})
	t.decides(true, 1, 2)(a.Take(t.ctx, "key", 1))
	ctx, cancel := context.WithCancel(context.Background()) // without a deadline, because the turn comes in an hour
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- a.Wait(ctx, "key", 3) }()
	t.waitForReset(b, "four units", func(d time.Duration) bool { return d > 3*time.Hour })
	t.decides(false, 0, 0)(a.Take(t.ctx, "key", 2)) // a rejection that a client can cache
	cancel()
	t.named(<-done, context.Canceled)
	t.decides(true, 2, 0)(a.Take(t.ctx, "key", 2))
}

func resets(t *trial) {
	a, b := t.limiters(slow(2), slow(3))
	t.decides(true, 2, 0)(a.Take(t.ctx, "key", 2))
	t.decides(true, 1, 1)(b.Take(t.ctx, "other", 1))
	for _, l := range []Limiter{a, b} {
		t.decides(false, 0, 0)(l.Take(t.ctx, "key", 2)) // a rejection that a client can cache
	}
	reset := func(l Limiter) {
		t.Helper()
		if err := l.Reset(t.ctx, "key"); err != nil {
			t.broken("reset: %v", err)
		}
	}
	reset(a)
	t.decides(true, 2, 0)(a.Take(t.ctx, "key", 2))
	reset(a)
	end := time.Now().Add(time.Second)
	for {
		asked := time.Now()
		d, err := b.Take(t.ctx, "key", 2)
		if err == nil && d.OK {
			break
		}
		if err != nil || asked.After(end) {
			t.broken("another client, a second after the reset: %+v, error %v", d, err)
			break
		}
		t.rest("a reset", d.RetryAfter)
	}
	t.decides(false, 0, 1)(b.Take(t.ctx, "other", 2))
}

func badPermits(t *trial) {
	a, b := t.limiters(slow(3))
	_, err := a.Take(t.ctx, "key", -1)
	t.named(err, nil)
	_, err = b.TakeUpTo(t.ctx, "key", -1<<63)
	t.named(err, nil)
	t.named(a.Wait(t.ctx, "key", -1), nil)
	t.decides(true, 0, 3)(b.Peek(t.ctx, "key"))
}

func manyTakers(t *trial) {
	const most, callers = 40, 8
	a, b := t.limiters(slow(most))
	var passed atomic.Int64
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for range most / callers * 2 {
				if d, err := []Limiter{a, b}[i%2].Take(t.ctx, "key", 1); err != nil {
					t.broken("take: %v", err)
				} else if d.OK {
					passed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if n := passed.Load(); n != most {
		t.broken("%d units passed, want %d", n, most)
	}
}

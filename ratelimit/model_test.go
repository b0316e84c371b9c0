package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/ratelimit"
	"pgregory.net/rapid"
)

// bucket is the reference for one limit, a bucket that refills as documented for Limit. It counts
// in fractions, so it is exact. Times are in µs since 1970.
type bucket struct {
	limit ratelimit.Limit
	level *big.Rat // the permits at the time at
	at    *big.Rat
}

func newBucket(l ratelimit.Limit, now int64) *bucket {
	return &bucket{l, new(big.Rat).SetInt64(capacity(l)), new(big.Rat).SetInt64(now)}
}

func capacity(l ratelimit.Limit) int64 {
	if l.Burst > 0 {
		return l.Burst
	}
	return l.Rate
}

func (b *bucket) per() *big.Rat { return new(big.Rat).SetInt64(b.limit.Per.Microseconds()) }

// window returns the number of the window of t.
func (b *bucket) window(t *big.Rat) *big.Int {
	q := new(big.Rat).Quo(t, b.per())
	return new(big.Int).Div(q.Num(), q.Denom())
}

// levelAt returns the permits available at t, which is not before at.
func (b *bucket) levelAt(t *big.Rat) *big.Rat {
	most := new(big.Rat).SetInt64(capacity(b.limit))
	if b.limit.Aligned {
		if b.window(t).Cmp(b.window(b.at)) > 0 {
			return most
		}
		return b.level
	}
	in := new(big.Rat).Sub(t, b.at)
	in.Mul(in, new(big.Rat).SetInt64(b.limit.Rate)).Quo(in, b.per()).Add(in, b.level)
	if in.Cmp(most) > 0 {
		return most
	}
	return in
}

// enough returns the earliest time at or after t at which n permits are available.
func (b *bucket) enough(n int64, t *big.Rat) *big.Rat {
	lacks := new(big.Rat).Sub(new(big.Rat).SetInt64(n), b.levelAt(t))
	if lacks.Sign() <= 0 {
		return t
	}
	if b.limit.Aligned {
		next := new(big.Rat).SetInt(new(big.Int).Add(b.window(t), big.NewInt(1)))
		return next.Mul(next, b.per())
	}
	lacks.Mul(lacks, b.per()).Quo(lacks, new(big.Rat).SetInt64(b.limit.Rate))
	return lacks.Add(lacks, t)
}

// use takes n permits at t.
func (b *bucket) use(n int64, t *big.Rat) {
	b.level = new(big.Rat).Sub(b.levelAt(t), new(big.Rat).SetInt64(n))
	b.at = t
}

// buckets is the reference for a limiter.
type buckets struct {
	all    []*bucket
	latest *big.Rat // when the latest reservation is due
}

func newBuckets(limits []ratelimit.Limit, now int64) *buckets {
	b := &buckets{latest: new(big.Rat)}
	for _, l := range limits {
		b.all = append(b.all, newBucket(l, now))
	}
	return b
}

// from returns the earliest time at which a caller that arrives at now can use permits.
func (b *buckets) from(now int64) *big.Rat {
	t := new(big.Rat).SetInt64(now)
	if b.latest.Cmp(t) > 0 {
		return b.latest
	}
	return t
}

func (b *buckets) left(now int64) int64 {
	if b.latest.Cmp(new(big.Rat).SetInt64(now)) > 0 {
		return 0
	}
	least := int64(math.MaxInt64)
	for _, one := range b.all {
		level := one.levelAt(b.from(now))
		least = min(least, new(big.Int).Div(level.Num(), level.Denom()).Int64())
	}
	return max(0, least)
}

func (b *buckets) earliest(n, now int64) *big.Rat {
	for t := b.from(now); ; {
		next := t
		for _, one := range b.all {
			next = one.enough(n, next)
		}
		if next.Cmp(t) == 0 {
			return t
		}
		t = next
	}
}

func (b *buckets) use(n int64, t *big.Rat) {
	for _, one := range b.all {
		one.use(n, t)
	}
	if b.latest.Cmp(t) < 0 {
		b.latest = t
	}
}

// after returns the time from now to t, rounded up to µs.
func after(now int64, t *big.Rat) time.Duration {
	d := new(big.Rat).Sub(t, new(big.Rat).SetInt64(now))
	q, m := new(big.Int).DivMod(d.Num(), d.Denom(), new(big.Int))
	if m.Sign() > 0 {
		q.Add(q, big.NewInt(1))
	}
	return time.Duration(q.Int64()) * time.Microsecond
}

// near reports whether two durations differ by at most one µs, the precision of a double.
func near(a, b time.Duration) bool { return max(a-b, b-a) <= time.Microsecond }

func drawLimit(rt *rapid.T, label string) ratelimit.Limit {
	l := ratelimit.Limit{
		Rate: rapid.Int64Range(1, 20).Draw(rt, label+" rate"),
		Per:  rapid.SampledFrom([]time.Duration{100 * time.Microsecond, time.Second, 7 * time.Second, time.Minute}).Draw(rt, label+" per"),
	}
	if l.Aligned = rapid.IntRange(0, 3).Draw(rt, label+" aligned") == 0; !l.Aligned {
		l.Burst = rapid.Int64Range(0, 25).Draw(rt, label+" burst")
	}
	return l
}

// timeless hides the deadline of a test from rapid, because a bubble does not allow reading it.
type timeless struct{ rapid.TB }

// bubble runs f with virtual time.
func bubble(t *testing.T, f func(t *testing.T)) { t.Parallel(); synctest.Test(t, f) }

// Every reply equals that of the reference, for one limit and for several.
func TestModel(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rdb := redistest.NewMini(t).Client(t)
		round := 0
		rapid.Check(timeless{t}, func(rt *rapid.T) {
			round++
			key := fmt.Sprint(round)
			var limits []ratelimit.Limit
			for i := range rapid.IntRange(1, 3).Draw(rt, "limits") {
				limits = append(limits, drawLimit(rt, fmt.Sprint("limit ", i)))
			}
			// A new limiter has no cached rejection, so it sends a command.
			fresh := func() *ratelimit.Limiter { return ratelimit.New(rdb, "model", closed, limits...) }
			l, remembers := fresh(), rapid.Bool().Draw(rt, "remembers")
			limiter := func() *ratelimit.Limiter {
				if remembers {
					return l
				}
				return fresh()
			}
			most := int64(math.MaxInt64)
			for _, one := range limits {
				most = min(most, capacity(one))
			}
			now := func() int64 { return time.Now().UnixMicro() }
			ref := newBuckets(limits, now())
			check := func(what string, d ratelimit.Decision, taken, least int64, ok bool) {
				rt.Helper()
				retry := time.Duration(0)
				switch {
				case ok:
				case least > most:
					retry = ratelimit.Never
				default:
					retry = after(now(), ref.earliest(max(least, 1), now()))
				}
				if remembers && !ok && d.OK == ok && d.Taken == 0 && d.RetryAfter <= retry+time.Microsecond {
					return // the other fields date from the rejection
				}
				if d.OK != ok || d.Taken != taken || d.Remaining != ref.left(now()) || !near(d.RetryAfter, retry) || d.Err != nil {
					rt.Fatalf("%s at %d: %+v, want %v, %d, %d left, retry after %v", what, now(), d, ok, taken, ref.left(now()), retry)
				}
			}
			units := func() int64 { return rapid.Int64Range(1, 30).Draw(rt, "units") }
			rt.Repeat(map[string]func(*rapid.T){
				"time goes by": func(rt *rapid.T) {
					longest := rapid.SampledFrom([]int64{100, 1_000_000, 90_000_000}).Draw(rt, "at most")
					time.Sleep(time.Duration(rapid.Int64Range(1, longest).Draw(rt, "µs")) * time.Microsecond)
				},
				"take": func(rt *rapid.T) {
					n := units()
					d, err := limiter().Take(t.Context(), key, n)
					if err != nil {
						rt.Fatal(err)
					}
					ok := n <= ref.left(now())
					taken := int64(0)
					if ok {
						taken = n
						ref.use(n, ref.from(now()))
					}
					check(fmt.Sprint("take ", n), d, taken, n, ok)
				},
				"take up to": func(rt *rapid.T) {
					n := units()
					d, err := limiter().TakeUpTo(t.Context(), key, n)
					if err != nil {
						rt.Fatal(err)
					}
					taken := min(n, ref.left(now()))
					if taken > 0 {
						ref.use(taken, ref.from(now()))
					}
					check(fmt.Sprint("take up to ", n), d, taken, 1, taken > 0)
				},
				"peek": func(rt *rapid.T) {
					d, err := limiter().Peek(t.Context(), key)
					if err != nil {
						rt.Fatal(err)
					}
					check("peek", d, 0, 0, ref.left(now()) > 0)
				},
				"reserve": func(rt *rapid.T) {
					n := units()
					wait := rapid.SampledFrom([]time.Duration{time.Microsecond, time.Second, 20 * time.Second, 3 * time.Minute}).Draw(rt, "wait")
					ctx, cancel := context.WithTimeout(t.Context(), wait)
					defer cancel()
					r, err := limiter().Reserve(ctx, key, n)
					due := ref.earliest(min(n, most), now())
					delay := after(now(), due)
					var limited *ratelimit.LimitedError
					switch {
					case n > most:
						if !errors.As(err, &limited) || limited.RetryAfter != ratelimit.Never {
							rt.Fatalf("reserve %d of %d: %v", n, most, err)
						}
					case errors.As(err, &limited) && errors.Is(err, ratelimit.ErrLimited):
						if delay+time.Microsecond <= wait || !near(limited.RetryAfter, delay) && !(remembers && limited.RetryAfter < delay) {
							rt.Fatalf("reserve %d within %v: %v, want a delay of %v", n, wait, err, delay)
						}
					case err != nil:
						rt.Fatal(err)
					default:
						if !near(r.Delay(), delay) || r.Delay() > wait+time.Microsecond {
							rt.Fatalf("reserve %d within %v: a delay of %v, want %v", n, wait, r.Delay(), delay)
						}
						ref.use(n, due)
					}
				},
			})
		})
	})
}

// The count of the policy FailLocal equals the reference for the share of each process.
func TestLocal_model(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rapid.Check(timeless{t}, func(rt *rapid.T) {
			processes := rapid.SampledFrom([]int64{1, 1, 2, 3}).Draw(rt, "processes")
			var limits, shares []ratelimit.Limit
			for i := range rapid.IntRange(1, 3).Draw(rt, "limits") {
				l := drawLimit(rt, fmt.Sprint("limit ", i))
				share := ratelimit.Limit{Rate: l.Rate, Per: l.Per * time.Duration(processes), Burst: max(1, capacity(l)/processes)}
				if l.Aligned {
					share = ratelimit.Limit{Rate: share.Burst, Per: l.Per, Aligned: true}
				}
				limits, shares = append(limits, l), append(shares, share)
			}
			count := ratelimit.CountHere(processes, limits...)
			now := func() int64 { return time.Now().UnixMicro() }
			began := now()
			ref := newBuckets(shares, began)
			type used struct {
				n     int64
				at    *big.Rat
				leave func() // while the caller is queued
				gone  bool
			}
			var all []*used // in order of arrival, without those whose permits were returned
			use := func(n int64, at *big.Rat, leave func()) {
				ref.use(n, at)
				all = append(all, &used{n: n, at: at, leave: leave})
			}
			inLine := func(u *used) bool { return u.leave != nil && u.at.Cmp(new(big.Rat).SetInt64(now())) > 0 }
			most := int64(math.MaxInt64)
			for _, s := range shares {
				most = min(most, capacity(s))
			}
			ask := func(rt *rapid.T, n, least int64, wait time.Duration) {
				want := ratelimit.Counted{}
				got := count(n, least, wait)
				switch have := ref.left(now()); {
				case have >= least:
					if want.Taken = min(n, have); want.Taken > 0 {
						use(want.Taken, ref.from(now()), got.Leave)
					}
				case least > most:
					want.Retry = ratelimit.Never
				default:
					due := ref.earliest(least, now())
					want.Retry = after(now(), due)
					if wait > 0 && want.Retry <= wait {
						want.Taken, want.Delay, want.Retry = least, want.Retry, 0
						use(least, due, got.Leave)
					}
				}
				want.Remaining = ref.left(now())
				if got.Taken != want.Taken || got.Remaining != want.Remaining || !near(got.Delay, want.Delay) || !near(got.Retry, want.Retry) {
					rt.Fatalf("%d, %d at least, within %v at %d: %+v, want %+v", n, least, wait, now(), got, want)
				}
			}
			units := func(rt *rapid.T) int64 { return rapid.Int64Range(1, 30).Draw(rt, "units") }
			rt.Repeat(map[string]func(*rapid.T){
				"time goes by": func(rt *rapid.T) {
					longest := rapid.SampledFrom([]int64{100, 1_000_000, 90_000_000}).Draw(rt, "at most")
					time.Sleep(time.Duration(rapid.Int64Range(1, longest).Draw(rt, "µs")) * time.Microsecond)
				},
				"take":       func(rt *rapid.T) { n := units(rt); ask(rt, n, n, 0) },
				"take up to": func(rt *rapid.T) { ask(rt, units(rt), 1, 0) },
				"peek":       func(rt *rapid.T) { ask(rt, 0, 0, 0) },
				"leave": func(rt *rapid.T) {
					var line []*used
					for _, u := range all {
						if inLine(u) {
							line = append(line, u)
						}
					}
					if len(line) == 0 {
						rt.Skip("nobody waits")
					}
					u := line[rapid.IntRange(0, len(line)-1).Draw(rt, "who")]
					u.leave()
					u.gone = true
					for len(all) > 0 && all[len(all)-1].gone && inLine(all[len(all)-1]) {
						all = all[:len(all)-1]
					}
					ref = newBuckets(shares, began) // as if those callers had never arrived
					for _, u := range all {
						ref.use(u.n, u.at)
					}
				},
				"reserve": func(rt *rapid.T) {
					n := units(rt)
					ask(rt, n, n, rapid.SampledFrom([]time.Duration{time.Microsecond, time.Second, 3 * time.Minute}).Draw(rt, "wait"))
				},
			})
		})
	})
}

// use is a number of permits that a caller used, and when.
type use struct {
	at int64 // µs
	n  int64
}

// Whatever callers refund and cancel, the permits that they use stay within the limits, and no caller overtakes a waiting one.
// The test replays all uses in order through the reference, which must always have the permits.
func TestRefund_neverLetsMorePass(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rdb := redistest.NewMini(t).Client(t)
		round := 0
		rapid.Check(timeless{t}, func(rt *rapid.T) {
			round++
			key := fmt.Sprint(round)
			var limits []ratelimit.Limit
			for i := range rapid.IntRange(1, 2).Draw(rt, "limits") {
				l := drawLimit(rt, fmt.Sprint("limit ", i))
				l.Per = max(l.Per, time.Second)
				limits = append(limits, l)
			}
			l := ratelimit.New(rdb, "refund", closed, limits...)
			start := time.Now().UnixMicro()
			type taken struct {
				use
				back func() error
			}
			var out []*taken
			var used []use
			got := func(rt *rapid.T, at, n int64, back func() error) {
				for _, o := range out {
					if o.at > time.Now().UnixMicro() && at < o.at-1 {
						rt.Fatalf("limits %+v: %d units at %d, before %d that somebody waits for until %d", limits, n, at, o.n, o.at)
					}
				}
				out = append(out, &taken{use{at, n}, back})
			}
			rt.Repeat(map[string]func(*rapid.T){
				"time goes by": func(rt *rapid.T) {
					time.Sleep(time.Duration(rapid.Int64Range(1, 3_000_000).Draw(rt, "µs")) * time.Microsecond)
				},
				"take": func(rt *rapid.T) {
					d, err := l.TakeUpTo(t.Context(), key, rapid.Int64Range(1, 10).Draw(rt, "units"))
					if err != nil {
						rt.Fatal(err)
					}
					if d.OK {
						got(rt, time.Now().UnixMicro(), d.Taken, func() error { return l.Refund(t.Context(), key, d) })
					}
				},
				"reserve": func(rt *rapid.T) {
					n := rapid.Int64Range(1, 10).Draw(rt, "units")
					r, err := l.Reserve(t.Context(), key, n)
					if err == nil {
						got(rt, time.Now().Add(r.Delay()).UnixMicro(), n, func() error { return r.Cancel(t.Context()) })
					} else if !errors.Is(err, ratelimit.ErrLimited) {
						rt.Fatal(err)
					}
				},
				"give back": func(rt *rapid.T) {
					// Permits that were due in the past were used, or are returned late. In neither case may more permits be
					// admitted.
					if len(out) == 0 {
						return
					}
					i := rapid.IntRange(0, len(out)-1).Draw(rt, "which")
					if err := out[i].back(); err != nil {
						rt.Fatal(err)
					}
					out = slices.Delete(out, i, i+1)
				},
			})
			for _, o := range out {
				used = append(used, o.use)
			}
			slices.SortStableFunc(used, func(a, b use) int { return int(a.at - b.at) })
			ref := newBuckets(limits, start)
			for _, u := range used {
				at := new(big.Rat).SetInt64(u.at)
				for i, b := range ref.all {
					// Delays are rounded up to a µs, so two uses may be one µs too close.
					if d := after(u.at, b.enough(u.n, at)); d > 2*time.Microsecond {
						rt.Fatalf("limit %+v: the use of %d at %d is %v early; of %v", limits[i], u.n, u.at, d, used)
					}
					b.use(u.n, b.enough(u.n, at))
				}
			}
		})
	})
}

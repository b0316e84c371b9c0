package watchdog

import (
	"sync/atomic"
	"time"
)

// margin returns the part of a lease of length d that is not trusted.
func margin(d time.Duration) time.Duration { return d/100 + 2*time.Millisecond }

// Trusted returns how long a lease of length d is valid, counted from the send of the command that
// granted it. It is d less the margin for clock drift.
func Trusted(d time.Duration) time.Duration { return d - margin(d) }

// instant is one moment by both clocks.
type instant struct {
	mono time.Duration // since about the start of this process; stops while the machine sleeps
	wall int64         // Unix nanoseconds; can be changed
}

var epoch = time.Now()

// now reads both clocks.
func now() instant { return of(time.Now()) }

// of returns the instant of t, like at. The clocks must not have been changed since t was read. It
// is a variable so that tests can make the clocks differ.
var of = at

// at returns the instant of t, which must come from time.Now.
func at(t time.Time) instant { return instant{mono: t.Sub(epoch), wall: t.UnixNano()} }

// Passed reports whether t, which must come from time.Now, has passed by either clock.
func Passed(t time.Time) bool { return at(t).passed(now()) }

// Earlier returns t, which must come from time.Now, or the time at which the wall clock reaches t if
// that is earlier: after the machine slept, or after the wall clock was moved forward.
func Earlier(t time.Time) time.Time {
	n := time.Now()
	if earlier := n.Add(at(t).left(of(n))); t.Sub(earlier) >= time.Millisecond { // mutant: border: a nanosecond. Less is the time between the readings of two clocks
		return earlier
	}
	return t
}

func (i instant) add(d time.Duration) instant { return instant{i.mono + d, i.wall + int64(d)} }

// passed reports whether n is not before i, by either clock.
func (i instant) passed(n instant) bool { return n.mono >= i.mono || n.wall >= i.wall } // mutant: border 2: a nanosecond by the wall clock

// before reports whether i passes before j, each by the clock that reaches it first. The clocks are
// read at n: i and j can be from before a clock was changed.
func (i instant) before(j, n instant) bool { return i.left(n) < j.left(n) } // mutant: border: their order does not matter

// left returns the time from n to i, by the clock that has less time left.
func (i instant) left(n instant) time.Duration {
	return min(i.mono-n.mono, time.Duration(i.wall-n.wall))
}

// deadline is an instant that can be read without the mutex that guards its changes. A reader may
// then see one clock's value from before a change, and the other's from after it.
type deadline struct{ mono, wall atomic.Int64 }

func (d *deadline) load() instant { return instant{time.Duration(d.mono.Load()), d.wall.Load()} }

func (d *deadline) store(i instant) { d.mono.Store(int64(i.mono)); d.wall.Store(i.wall) }

// reading is one reading of both clocks, by which instants are returned as time.Time.
type reading struct {
	t time.Time
	n instant // the moment of t
}

// again reads both clocks, and keeps the earlier reading unless a clock was changed. Until then, the
// same instant always results in the same time.Time, although two readings of two clocks differ by
// nanoseconds.
func (r *reading) again() *reading {
	var latest reading
	for range 2 { // if this process is paused between the readings of the two clocks, one time differs
		latest.t = time.Now()
		latest.n = of(latest.t)
		changed := latest.n.mono - r.n.mono - time.Duration(latest.n.wall-r.n.wall)
		if changed.Abs() < time.Millisecond {
			return r
		}
	}
	*r = latest
	return r
}

// time returns i as a time.Time with both clocks' values.
func (r *reading) time(i instant) time.Time { return r.t.Add(i.left(r.n)) }

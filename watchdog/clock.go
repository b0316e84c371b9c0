package watchdog

import (
	"math"
	"time"
)

// margin returns how much of a lease of length d is not trusted.
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

// of is at, for a current t. It is a variable so that tests can let the clocks differ.
var of = at

// at returns the moment of t, which must come from time.Now.
func at(t time.Time) instant { return instant{mono: t.Sub(epoch), wall: t.UnixNano()} }

// Passed reports whether t, which must come from time.Now, has passed by either clock.
func Passed(t time.Time) bool { return at(t).passed(now()) }

// noTime is an instant that never comes.
var noTime = instant{mono: math.MaxInt64, wall: math.MaxInt64}

func (i instant) add(d time.Duration) instant {
	return instant{mono: i.mono + d, wall: i.wall + int64(d)}
}

// passed reports whether n is not before i, by either clock.
func (i instant) passed(n instant) bool { return n.mono >= i.mono || n.wall >= i.wall }

// before orders instants by the monotonic clock, which timers use.
func (i instant) before(j instant) bool { return i.mono < j.mono }

// left returns the time from n to i, by the clock that has less left.
func (i instant) left(n instant) time.Duration {
	return min(i.mono-n.mono, time.Duration(i.wall-n.wall))
}

// time returns i as a time.Time with both readings. It reads the clocks only once, so a pause between
// two readings cannot distort it.
func (i instant) time() time.Time {
	t := time.Now()
	return t.Add(i.left(of(t)))
}

package watchdog

import "time"

// margin is what is cut off a lease of length d before it is trusted.
func margin(d time.Duration) time.Duration { return d/100 + 2*time.Millisecond }

// Trusted returns for how long a lease of length d is trusted, counted from the
// send of the command that gave it.
func Trusted(d time.Duration) time.Duration { return d - margin(d) }

// instant is one moment as both clocks show it.
type instant struct {
	mono time.Duration // since this process began, roughly; stands still while the machine sleeps
	wall int64         // Unix nanoseconds; can be set
}

var epoch = time.Now()

// now reads both clocks. A variable, so that a test can let them run apart.
var now = func() instant { return at(time.Now()) }

// at returns the moment of t, which must come from time.Now.
func at(t time.Time) instant { return instant{mono: t.Sub(epoch), wall: t.UnixNano()} }

func (i instant) add(d time.Duration) instant {
	return instant{mono: i.mono + d, wall: i.wall + int64(d)}
}

// passed reports whether i is over at n, by either clock.
func (i instant) passed(n instant) bool { return n.mono >= i.mono || n.wall >= i.wall }

// before orders instants for the queue, by the clock that timers use.
func (i instant) before(j instant) bool { return i.mono < j.mono }

// left returns how long it is from n to i, by the clock that says less.
func (i instant) left(n instant) time.Duration {
	return min(i.mono-n.mono, time.Duration(i.wall-n.wall))
}

// time returns i as a time.Time, with both readings.
func (i instant) time() time.Time {
	t := time.Now()
	return t.Add(i.left(now()))
}

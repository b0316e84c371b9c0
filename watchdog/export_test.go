package watchdog

import (
	"sync/atomic"
	"testing"
	"time"
)

// Skew is how far the wall clock is ahead of the monotonic clock.
type Skew struct {
	by   atomic.Int64
	once atomic.Int64
}

// NewSkew makes the watchdog use its clocks until the end of the test. All watchdogs of the test are closed before
// that.
func NewSkew(t testing.TB) *Skew {
	s := &Skew{}
	before := of
	t.Cleanup(func() { of = before })
	of = func(t time.Time) instant {
		i := before(t)
		i.wall += s.by.Load() + s.once.Swap(0)
		return i
	}
	return s
}

// Set makes the wall clock jump.
func (s *Skew) Set(by time.Duration) { s.by.Store(int64(by)) }

// Once makes the next reading of the wall clock wrong, as if the process were paused between the readings of the two
// clocks.
func (s *Skew) Once(by time.Duration) { s.once.Store(int64(by)) }

// Turns returns how often turn ran.
func (w *Watchdog) Turns() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.loop.turns
}

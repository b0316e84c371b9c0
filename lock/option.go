package lock

import (
	"fmt"
	"time"
)

// maxLease keeps the ends of leases within what clocks can count.
const maxLease = 100 * 365 * 24 * time.Hour

// MinLease is the shortest lease there is: below it, the margin for clock
// drift and the time of a round trip would leave nothing to promise.
const MinLease = 10 * time.Millisecond

// Option changes how one lock handle locks. The zero options are the right
// choice for most: a lease that renews itself for as long as the hold lives.
type Option interface {
	apply(*Config)
}

// Config is what a list of options says. Kinds of locks read it; callers use
// the options.
type Config struct {
	// Lease is the fixed lease, or 0 for one that is renewed.
	Lease time.Duration

	// Wait is how long Lock waits at most, or 0 for as long as its context.
	Wait time.Duration
}

// NewConfig applies opts in order and checks the result.
func NewConfig(opts ...Option) (Config, error) {
	var c Config
	for _, o := range opts {
		o.apply(&c)
	}
	switch {
	case c.Lease != 0 && c.Lease < MinLease:
		return c, fmt.Errorf("lease %v: the shortest is %v", c.Lease, MinLease)
	case c.Lease > maxLease:
		return c, fmt.Errorf("lease %v: the longest is %v", c.Lease, maxLease)
	case c.Wait < 0:
		return c, fmt.Errorf("wait %v: it must be more than zero; TryLock does not wait", c.Wait)
	}
	return c, nil
}

// never is what an option leaves that was given zero or less: a mistake that
// NewConfig refuses, and not the default.
const never = -1

type leaseOption time.Duration

func (o leaseOption) apply(c *Config) {
	c.Lease = time.Duration(o).Truncate(time.Millisecond)
	if o <= 0 {
		c.Lease = never
	}
}

type waitOption time.Duration

func (o waitOption) apply(c *Config) {
	c.Wait = time.Duration(o)
	if o <= 0 {
		c.Wait = never
	}
}

// WithLease gives holds a fixed lease that nothing renews: the lock frees
// itself d after it was taken, whatever its holder does, and the hold is lost
// then. Fractions of a millisecond are cut off. The shortest lease is
// [MinLease]; less is an error of the first call.
//
// Re-entry never shortens the lease of an outer hold, and may lengthen it.
func WithLease(d time.Duration) Option { return leaseOption(d) }

// WithWait lets Lock wait for at most d, and then fail with an error that
// matches [ErrNotAcquired] and [os.ErrDeadlineExceeded].
//
// A deadline on the context given to Lock does that too, but it also ends the
// context of the hold. This does not: wait for five seconds, hold for hours.
func WithWait(d time.Duration) Option { return waitOption(d) }

package multilock

import (
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

// Defaults of the options of a [Quorum].
const (
	DefaultServerTimeout = 50 * time.Millisecond // or a hundredth of the longest lease, if that is less
	DefaultLongestLease  = 30 * time.Second      // client.DefaultWatchdogTimeout
)

// leastServerTimeout is the default for very short leases.
const leastServerTimeout = 5 * time.Millisecond

// Option configures a [Quorum]. What is not given follows from what is.
type Option func(*config)

type config struct {
	timeout time.Duration // for one attempt at one server
	longest time.Duration // the longest lease that anybody has
	least   time.Duration // the least validity of a fresh hold; 0 is a tenth of its own lease
	most    time.Duration // for how long a hold lives at most; 0 is no limit
	limit   time.Duration // for how long Lock waits at most; 0 is no limit
	durable bool          // the servers forget nothing
	errs    []error       // about what was given
}

// set sets what an option with a duration is for, which must be more than least.
func (c *config) set(what *time.Duration, option string, d, least time.Duration) {
	*what = d
	if d < least {
		c.errs = append(c.errs, fmt.Errorf("%s(%v): the least is %v", option, d, least))
	}
}

// WithServerTimeout sets for how long an attempt waits for the vote of one server:
// [DefaultServerTimeout] if not set. It should be some round trips, and a small part
// of the lease: two who try at the same time hinder each other for that long.
func WithServerTimeout(d time.Duration) Option {
	return func(c *config) { c.set(&c.timeout, "WithServerTimeout", d, time.Millisecond) }
}

// WithLongestLease says how long the longest lease is that anybody ever takes on
// these servers under this name: the watchdog timeout of a client, or what
// lock.WithLease gives. It is [DefaultLongestLease] if not set. A server that came up
// less than that ago has no vote, as it may have forgotten a lease that its holder
// still relies on. A lease of this Quorum's own locks that is longer is an error.
func WithLongestLease(d time.Duration) Option {
	return func(c *config) { c.set(&c.longest, "WithLongestLease", d, lock.MinLease) }
}

// WithMinValidity sets what must be left of a fresh hold's validity for it to be
// worth having: a tenth of the lease if not set.
func WithMinValidity(d time.Duration) Option {
	return func(c *config) { c.set(&c.least, "WithMinValidity", d, time.Millisecond) }
}

// WithMaxHold ends a hold d after it was acquired, however well it is renewed: it is
// lost then, by a cause that matches lock.ErrMaxHold, and given back. It bounds for how
// long a holder that hangs can keep the lock from others. lock.WithMaxHold among the
// options of the servers' locks does the same, with the shortest of them.
func WithMaxHold(d time.Duration) Option {
	return func(c *config) { c.set(&c.most, "WithMaxHold", d, lock.MinLease) }
}

// WithWait lets Lock wait for at most d, as lock.WithWait does for one lock. A deadline
// on the context would end the hold too.
func WithWait(d time.Duration) Option {
	return func(c *config) { c.set(&c.limit, "WithWait", d, time.Millisecond) }
}

// WithDurableServers says that no server forgets a lock when it restarts: appendonly
// yes and appendfsync always on all of them, and disks that keep their word. Then a
// server has its vote at once after a restart, and also if it cannot be asked how
// long it has been up. Without that being true, two can hold the lock at once.
func WithDurableServers() Option {
	return func(c *config) { c.durable = true }
}

func configure(opts []Option) (config, error) {
	c := config{longest: DefaultLongestLease}
	for i, o := range opts {
		if o == nil {
			c.errs = append(c.errs, fmt.Errorf("option %d of %d is nil", i+1, len(opts)))
			continue
		}
		o(&c)
	}
	if c.timeout == 0 {
		c.timeout = min(max(c.longest/100, leastServerTimeout), DefaultServerTimeout)
	}
	switch {
	case len(c.errs) > 0:
		return c, errors.Join(c.errs...)
	case c.most > 0 && c.least > c.most:
		return c, fmt.Errorf("WithMinValidity(%v): it must not be more than WithMaxHold(%v)", c.least, c.most)
	case c.timeout > c.longest/4:
		return c, fmt.Errorf("WithServerTimeout(%v): it must not be more than a quarter of the longest lease, which is %v", c.timeout, c.longest)
	}
	return c, nil
}

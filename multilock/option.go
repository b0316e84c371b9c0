package multilock

import (
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

// Defaults of the options of a [Quorum].
const (
	DefaultServerTimeout = 50 * time.Millisecond // or a hundredth of the longest lease, if that is less; 5 ms at least
	DefaultMaxLease      = 30 * time.Second      // client.DefaultWatchdogTimeout
)

// leastServerTimeout is the least that the default is, for very short leases.
const leastServerTimeout = 5 * time.Millisecond

// Option configures a [Quorum].
type Option interface{ apply(*config) }

type option func(*config)

func (o option) apply(c *config) { o(c) }

type config struct {
	timeout time.Duration // for one attempt at one server
	longest time.Duration // the longest lease that any holder has
	least   time.Duration // the least validity of a fresh hold; 0 is a tenth of its own lease
	most    time.Duration // the longest that a hold lives; 0 is no limit
	limit   time.Duration // the longest that Lock waits; 0 is no limit
	once    bool          // Lock makes one attempt
	durable bool          // the servers forget nothing
	errs    []error       // about the options that were given
}

// set sets what to d, the duration of an option, and notes an error if d is less than least.
func (c *config) set(what *time.Duration, option string, d, least time.Duration) {
	*what = d
	if d < least {
		c.errs = append(c.errs, fmt.Errorf("%s(%v): the least is %v", option, d, least))
	}
}

// WithServerTimeout sets how long an attempt waits for the vote of one server:
// [DefaultServerTimeout] if not set. It should be some round trips, and a small part
// of the lease: two attempts at the same time can hinder each other for that time.
func WithServerTimeout(d time.Duration) Option {
	return option(func(c *config) { c.set(&c.timeout, "WithServerTimeout", d, time.Millisecond) })
}

// WithMaxLease says how long the longest lease is that any holder ever takes on
// these servers under this name: the watchdog timeout of a client, or a duration of
// lock.WithFixedLease gives. It is [DefaultMaxLease] if not set. A server that started
// less than that ago has no vote, as it may have forgotten a lease that its holder
// still relies on. A lease of this Quorum's own locks that is longer is an error.
func WithMaxLease(d time.Duration) Option {
	return option(func(c *config) { c.set(&c.longest, "WithMaxLease", d, lock.MinLease) })
}

// WithMinValidity sets how much of a fresh hold's validity must be left for the attempt
// to succeed: a tenth of the lease if not set.
func WithMinValidity(d time.Duration) Option {
	return option(func(c *config) { c.set(&c.least, "WithMinValidity", d, time.Millisecond) })
}

// WithMaxHold ends a hold d after it was acquired, even if it is renewed: the hold is then
// lost, with a cause that matches lock.ErrMaxHold, and given back. It bounds how
// long a holder that hangs can keep other owners out. lock.WithMaxHold among the
// options of the servers' locks does the same, with the shortest of them.
func WithMaxHold(d time.Duration) Option {
	return option(func(c *config) { c.set(&c.most, "WithMaxHold", d, lock.MinLease) })
}

// WithWait lets Lock wait for at most d, as lock.WithWait does for one lock. A deadline
// on the context would end the hold too. With WithWait(0), Lock makes one attempt, as TryLock does.
func WithWait(d time.Duration) Option {
	return option(func(c *config) {
		if c.limit, c.once = d, d == 0; !c.once {
			c.set(&c.limit, "WithWait", d, time.Millisecond)
		}
	})
}

// WithDurableServers says that no server forgets a lock when it restarts: appendonly
// yes and appendfsync always on all of them, and disks that really write when told to. Then a
// server has its vote at once after a restart, and also if it cannot be asked how
// long it has been up. If that is not true, two owners can hold the lock at once.
func WithDurableServers() Option {
	return option(func(c *config) { c.durable = true })
}

func configure(opts []Option) (config, error) {
	c := config{longest: DefaultMaxLease}
	for i, o := range opts {
		if o == nil {
			c.errs = append(c.errs, fmt.Errorf("option %d of %d is nil", i+1, len(opts)))
			continue
		}
		o.apply(&c)
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

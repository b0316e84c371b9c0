package multilock

import (
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

// Defaults of the options of a [Quorum].
const (
	DefaultServerTimeout = 50 * time.Millisecond // or 1 % of the longest lease if that is less, but at least 5 ms
	DefaultMaxLease      = 30 * time.Second      // client.DefaultWatchdogTimeout
)

// minServerTimeout is the minimum of the default, for very short leases.
const minServerTimeout = 5 * time.Millisecond

// Option configures a [Quorum].
type Option interface{ apply(*config) }

type option func(*config)

func (o option) apply(c *config) { o(c) }

type config struct {
	timeout     time.Duration // for one attempt at one server
	maxLease    time.Duration // the longest lease of any holder
	minValidity time.Duration // the minimum validity of a new hold; 0 for a tenth of its lease
	maxHold     time.Duration // the maximum duration of a hold; 0 for no limit
	maxWait     time.Duration // the maximum duration of a Lock; 0 for no limit
	once        bool          // Lock makes one attempt
	durable     bool          // no server loses a lock when it restarts
	errs        []error       // the errors of the options
}

// set sets field to d, the duration of an option, and adds an error if d is less than minimum.
func (c *config) set(field *time.Duration, option string, d, minimum time.Duration) {
	*field = d
	if d < minimum {
		c.errs = append(c.errs, fmt.Errorf("%s(%v): must be at least %v", option, d, minimum))
	}
}

// WithServerTimeout sets how long an attempt waits for the vote of one server. The default is
// [DefaultServerTimeout]. It should be several round trips, and a small part of the lease.
// Simultaneous attempts can block each other for that time.
func WithServerTimeout(d time.Duration) Option {
	return option(func(c *config) { c.set(&c.timeout, "WithServerTimeout", d, time.Millisecond) })
}

// WithMaxLease sets the longest lease that any holder uses on these servers under this name. It is
// the watchdog timeout of a client, or the duration of lock.WithFixedLease. The default is
// [DefaultMaxLease]. A server that started less than that ago has no vote. It may have lost a lease
// that its holder still relies on. If a lock of this Quorum has a longer lease, each call fails.
func WithMaxLease(d time.Duration) Option {
	return option(func(c *config) { c.set(&c.maxLease, "WithMaxLease", d, lock.MinLease) })
}

// WithMinValidity sets how much of the lease must remain for an attempt to succeed. The default is
// 10 % of the lease. It must be at most the longest lease (see [WithMaxLease]).
func WithMinValidity(d time.Duration) Option {
	return option(func(c *config) { c.set(&c.minValidity, "WithMinValidity", d, time.Millisecond) })
}

// WithMaxHold sets the maximum duration of a hold. By default there is none. After d the hold is
// lost and released, even if it is renewed. The cause matches lock.ErrMaxHold. Use it to bound how
// long a holder that hangs keeps out other owners. If the locks of the servers use
// lock.WithMaxHold, the shortest of them has the same effect.
func WithMaxHold(d time.Duration) Option {
	return option(func(c *config) { c.set(&c.maxHold, "WithMaxHold", d, lock.MinLease) })
}

// WithWait limits how long Lock waits, as lock.WithWait does for one lock. A deadline on the
// context would end the hold too. With WithWait(0), Lock makes one attempt, as TryLock does.
// Otherwise d must be at least 1 ms.
func WithWait(d time.Duration) Option {
	return option(func(c *config) {
		if c.maxWait, c.once = d, d == 0; !c.once && d < time.Millisecond {
			c.errs = append(c.errs, fmt.Errorf("WithWait(%v): must be 0, or at least %v", d, time.Millisecond))
		}
	})
}

// WithDurableServers declares that no server loses a lock when it restarts. All of them use
// appendonly yes and appendfsync always, on disks that honor fsync. A server then has its vote
// immediately after a restart. It also has its vote if its uptime cannot be read. If the
// declaration is wrong, two owners can hold the lock at once.
func WithDurableServers() Option {
	return option(func(c *config) { c.durable = true })
}

func configure(opts []Option) (config, error) {
	c := config{maxLease: DefaultMaxLease}
	for i, o := range opts {
		if o == nil {
			c.errs = append(c.errs, fmt.Errorf("option %d of %d is nil", i+1, len(opts)))
			continue
		}
		o.apply(&c)
	}
	if c.timeout == 0 {
		c.timeout = min(max(c.maxLease/100, minServerTimeout), DefaultServerTimeout)
	}
	switch {
	case len(c.errs) > 0:
		return c, errors.Join(c.errs...)
	case c.maxHold > 0 && c.minValidity > c.maxHold:
		return c, fmt.Errorf("WithMinValidity(%v): must be at most WithMaxHold(%v)", c.minValidity, c.maxHold)
	case c.minValidity > c.maxLease && !c.durable: // no hold has a longer lease
		return c, fmt.Errorf("WithMinValidity(%v): must be at most the maximum lease (%v); see WithMaxLease", c.minValidity, c.maxLease)
	case c.timeout > c.maxLease/4:
		return c, fmt.Errorf("WithServerTimeout(%v): must be at most a quarter of the maximum lease (%v)", c.timeout, c.maxLease)
	}
	return c, nil
}

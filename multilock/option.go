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
}

// WithServerTimeout sets for how long an attempt waits for the vote of one server:
// [DefaultServerTimeout] if not set. It should be some round trips, and a small part
// of the lease: two who try at the same time hinder each other for that long.
func WithServerTimeout(d time.Duration) Option {
	return func(c *config) { c.timeout = given(d) }
}

// WithLongestLease says how long the longest lease is that anybody ever takes on
// these servers under this name: the watchdog timeout of a client, or what
// lock.WithLease gives. It is [DefaultLongestLease] if not set. A server that came up
// less than that ago has no vote, as it may have forgotten a lease that its holder
// still relies on. A lease of this Quorum's own locks that is longer is an error.
func WithLongestLease(d time.Duration) Option {
	return func(c *config) { c.longest = given(d) }
}

// WithMinValidity sets what must be left of a fresh hold's validity for it to be
// worth having: a tenth of the lease if not set.
func WithMinValidity(d time.Duration) Option {
	return func(c *config) { c.least = given(d) }
}

// WithMaxHold ends a hold d after it was acquired, however well it is renewed: it is
// lost then, and given back. It bounds for how long a holder that hangs, and whose
// watchdog does not, can keep the lock from others.
func WithMaxHold(d time.Duration) Option {
	return func(c *config) { c.most = given(d) }
}

// WithWait lets Lock wait for at most d, as lock.WithWait does for one lock. A deadline
// on the context would end the hold too.
func WithWait(d time.Duration) Option {
	return func(c *config) { c.limit = given(d) }
}

// WithDurableServers says that no server forgets a lock when it restarts: appendonly
// yes and appendfsync always on all of them, and disks that keep their word. Then a
// server has its vote at once after a restart, and also if it cannot be asked how
// long it has been up. Without that being true, two can hold the lock at once.
func WithDurableServers() Option {
	return func(c *config) { c.durable = true }
}

// never is what an option leaves that was given zero or less: a mistake, and not the
// default.
const never = -1

func given(d time.Duration) time.Duration {
	if d <= 0 {
		return never
	}
	return d
}

func configure(opts []Option) (config, error) {
	c := config{longest: DefaultLongestLease}
	for _, o := range opts {
		o(&c)
	}
	if c.timeout == 0 {
		c.timeout = min(max(c.longest/100, leastServerTimeout), DefaultServerTimeout)
	}
	switch {
	case c.timeout == never, c.longest == never, c.least == never, c.most == never, c.limit == never:
		return c, errors.New("an option with a time that is not more than zero")
	case c.most > 0 && c.least > c.most:
		return c, fmt.Errorf("a validity of %v at least and a hold of %v at the most", c.least, c.most)
	case c.longest < lock.MinLease:
		return c, fmt.Errorf("longest lease %v: the shortest lease there is is %v", c.longest, lock.MinLease)
	case c.timeout > c.longest/4:
		return c, fmt.Errorf("server timeout %v: it must not be more than a quarter of the longest lease, which is %v", c.timeout, c.longest)
	}
	return c, nil
}

package client

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/leasehold-go/leasehold/internal/session"
	"github.com/leasehold-go/leasehold/lock"
)

// Defaults of the options.
const (
	DefaultWatchdogTimeout = 30 * time.Second
	DefaultOpTimeout       = 3 * time.Second // or a sixth of the watchdog timeout, if that is less
)

// poll is how long a waiter relies on hints alone.
const poll = time.Second

// Option configures a client. What is not given follows from what is.
type Option func(*config)

type config struct {
	session.Config
	opTimeoutGiven bool
	pubsub         PubSub
}

// WithWatchdogTimeout sets the lease of locks without a fixed one. The watchdog
// renews it every third; when the process dies, the lock is free after at most
// this time. The default is 30 s, the least is 100 ms, the most a year.
func WithWatchdogTimeout(d time.Duration) Option {
	return func(c *config) { c.Lease = d }
}

// WithOpTimeout sets how long one command to Redis may stay unanswered before
// its outcome counts as unknown. It bounds TryLock and Unlock also when their
// context has no deadline. The default is 3 s, or a sixth of the watchdog
// timeout if that is less. It must not be more than a quarter of the watchdog
// timeout: a renewal that gets no answer would leave no time for another try.
func WithOpTimeout(d time.Duration) Option {
	return func(c *config) { c.OpTimeout, c.opTimeoutGiven = d, true }
}

// WithKeyPrefix puts prefix before the name of every lock in Redis, as a
// NameMapper of Redisson would.
func WithKeyPrefix(prefix string) Option {
	return func(c *config) { c.KeyPrefix = prefix }
}

// WithLogger makes the client log: at Warn when a lock was lost or Redis does not
// answer a waiter for seconds, and at Debug. The default logs nothing.
func WithLogger(l *slog.Logger) Option {
	return func(c *config) { c.Logger = l }
}

// WithObserver tells o what happens to the client's locks, for metrics and
// traces.
func WithObserver(o lock.Observer) Option {
	return func(c *config) { c.Observer = o }
}

// WithPubSub says how a release reaches those who wait. It only matters on a cluster;
// everywhere else it is plain. The default is PubSubAuto.
func WithPubSub(p PubSub) Option {
	return func(c *config) { c.pubsub = p }
}

// configure applies opts and checks what comes of it.
func configure(opts []Option) (config, error) {
	c := config{Config: session.Config{
		Lease:  DefaultWatchdogTimeout,
		Poll:   poll,
		Logger: slog.New(slog.DiscardHandler),
	}}
	for _, o := range opts {
		o(&c)
	}
	if !c.opTimeoutGiven {
		c.OpTimeout = min(DefaultOpTimeout, c.Lease/6).Truncate(time.Millisecond)
	}
	switch {
	case c.Lease < 10*lock.MinLease:
		return c, fmt.Errorf("watchdog timeout %v: the least is %v", c.Lease, 10*lock.MinLease)
	case c.Lease > 365*24*time.Hour:
		return c, fmt.Errorf("watchdog timeout %v: the most is a year", c.Lease)
	case c.OpTimeout <= 0:
		return c, fmt.Errorf("operation timeout %v: it must be more than zero", c.OpTimeout)
	case c.OpTimeout > c.Lease/4:
		return c, fmt.Errorf("operation timeout %v: it must not be more than a quarter of the watchdog timeout, which is %v", c.OpTimeout, c.Lease)
	case c.pubsub < PubSubAuto || c.pubsub > PubSubSharded:
		return c, fmt.Errorf("%v: it must be PubSubAuto, PubSubPlain or PubSubSharded", c.pubsub)
	case c.Logger == nil:
		return c, errors.New("the logger is nil")
	}
	c.Lease = c.Lease.Truncate(time.Millisecond)
	return c, session.CheckPrefix(c.KeyPrefix)
}

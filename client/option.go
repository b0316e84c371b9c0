package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/registry"
	"github.com/leasehold-go/leasehold/internal/session"
	"github.com/leasehold-go/leasehold/lock"
)

// Defaults of the options.
const (
	DefaultWatchdogTimeout = 30 * time.Second
	DefaultOpTimeout       = 3 * time.Second // or a sixth of the watchdog timeout if that is less
)

// poll is the poll interval: the first waiter of a process retries after it if there is no
// notification, or after up to twice as long if it has waited long. Offers and queue positions last
// multiples of it.
const poll = time.Second

// Option configures a client.
type Option interface{ apply(*config) }

type option func(*config)

func (o option) apply(c *config) { o(c) }

type config struct {
	session.Config
	opTimeoutGiven bool
	pubsub         PubSub
	errs           []error // errors about invalid options
	lazy           bool
	name, label    string
	unregistered   bool
}

// within records an error if the duration d of an option is less than least or more than most.
func (c *config) within(option string, d, least, most time.Duration) {
	switch {
	case d < least:
		c.errs = append(c.errs, fmt.Errorf("%s(%v): must be at least %v", option, d, least))
	case d > most:
		c.errs = append(c.errs, fmt.Errorf("%s(%v): must be at most %v", option, d, most))
	}
}

// Bounds for the values of options.
const (
	minWatchdogTimeout = 10 * lock.MinLease
	maxWatchdogTimeout = 365 * 24 * time.Hour
	minOpTimeout       = time.Millisecond
)

// WithWatchdogTimeout sets the lease of locks without a fixed lease. The default is 30 s. It must
// be at least 100 ms and at most one year. The watchdog renews the lease whenever a third of it has
// passed. If the process dies, the lock is free after at most this time.
//
// Leases of readers are renewed at least every 10 s. A reader of Redisson that renews shortens the
// lease of the lock to its own watchdog timeout (30 s by default). If Redisson's watchdog timeout
// is less than 10 s, do not set a longer one here.
func WithWatchdogTimeout(d time.Duration) Option {
	return option(func(c *config) {
		c.Lease = d
		c.within("WithWatchdogTimeout", d, minWatchdogTimeout, maxWatchdogTimeout)
	})
}

// WithOpTimeout sets how long a command to Redis may take before its outcome counts as unknown. It
// bounds TryLock and Unlock even if their context has no deadline. The default is 3 s, or a sixth
// of the watchdog timeout if that is less. It must be at least 1 ms and at most a quarter of the
// watchdog timeout. This lets a renewal that times out be retried before the lease expires.
func WithOpTimeout(d time.Duration) Option {
	return option(func(c *config) {
		c.OpTimeout, c.opTimeoutGiven = d, true
		c.within("WithOpTimeout", d, minOpTimeout, maxWatchdogTimeout)
	})
}

// WithKeyPrefix puts prefix before the name of every lock and other object in Redis, like a
// NameMapper of Redisson. By default there is no prefix. All clients that share a lock must use the
// same prefix. Without it they do not exclude each other, and no error reports it.
func WithKeyPrefix(prefix string) Option {
	return option(func(c *config) { c.KeyPrefix = prefix })
}

// WithLogger makes the client log to l instead of [slog.Default].
//
// The client logs faults that no call returns. It logs a lost lock at Error. It logs a fault at
// Warn if it can lead to a loss, keeps other owners waiting, or hides the client from operators. It
// logs nothing else by default. It logs each message at most once in 10 s for one lock, and for up
// to 10 locks in that time. The next message of that kind counts the suppressed ones. No message
// contains a password or an owner. docs/operate/runbook.md explains each message.
//
// With a logger from this option the client also logs at Debug. A logger on [slog.DiscardHandler]
// silences it. Like the functions of a [lock.Observer], the handler must not block: renewals can wait
// for it.
func WithLogger(l *slog.Logger) Option {
	return option(func(c *config) {
		if c.Logger = l; l == nil {
			c.errs = append(c.errs, errors.New("WithLogger(nil): omit the option, or pass slog.New(slog.DiscardHandler)"))
		}
	})
}

// WithObserver makes the client call the functions of o when something happens to its locks, for
// metrics and traces. Packages leaseholdotel and leaseholdprom, which are separate modules, create
// such observers. If the option is given several times, all observers are called, in the given
// order.
func WithObserver(o lock.Observer) Option {
	return option(func(c *config) {
		switch {
		case reflect.ValueOf(o).IsZero(): // an observer without functions costs nothing
		case c.Observer == nil:
			c.Observer = &o
		default:
			c.Observer = both(c.Observer, &o)
		}
	})
}

// both returns an observer that calls a and then b.
func both(a, b *lock.Observer) *lock.Observer {
	type function = func(context.Context, lock.Event)
	var ab lock.Observer
	to, as, bs := reflect.ValueOf(&ab).Elem(), reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem()
	for i := range to.NumField() {
		switch f, g := as.Field(i).Interface().(function), bs.Field(i).Interface().(function); {
		case f == nil:
			to.Field(i).Set(bs.Field(i))
		case g == nil:
			to.Field(i).Set(as.Field(i))
		default:
			to.Field(i).Set(reflect.ValueOf(func(ctx context.Context, e lock.Event) {
				f(ctx, e)
				g(ctx, e)
			}))
		}
	}
	return &ab
}

// WithName sets the client name shown to operators, typically the name of the service. The default
// is the name of the program. The name must not exceed 256 bytes.
//
// While its locks are used, a client keeps a small entry in Redis. It contains the name, label,
// host, process ID, version of this library and start time. With it, Inspect and the leasehold tool
// can show which process holds a lock and which ones wait. Anyone who can read the key sees the
// entry, so do not put secrets into it. docs/reference/redis-keys.md in the repository describes
// the keys.
//
// The client writes the entry in the background when the first handle of a lock is created. It
// refreshes the entry every 10 s, and Close removes it. The entry expires a minute after the
// process died. It shares the connection for notifications. On a cluster, it can use another
// connection from the blocking pool of the rueidis client. No lock waits for it or depends on it.
func WithName(name string) Option {
	return option(func(c *config) {
		c.name = name
		c.text("WithName", name)
		if name == "" {
			c.errs = append(c.errs, errors.New(`WithName(""): omit the option to use the program name`))
		}
	})
}

// WithLabel adds a text for operators, such as a zone or a revision, to the entry of [WithName]. It
// must not exceed 256 bytes.
func WithLabel(label string) Option {
	return option(func(c *config) {
		c.label = label
		c.text("WithLabel", label)
	})
}

// WithoutRegistry keeps the client from writing the entry of [WithName]. It then writes no keys
// other than those of its locks, and operators see only its UUID.
func WithoutRegistry() Option {
	return option(func(c *config) { c.unregistered = true })
}

// text records an error if the text of an option is not readable for operators.
func (c *config) text(option, text string) {
	switch {
	case len(text) > registry.MostText:
		c.errs = append(c.errs, fmt.Errorf("%s: %d bytes: must be at most %d", option, len(text), registry.MostText))
	case !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl):
		c.errs = append(c.errs, fmt.Errorf("%s(%q): must be a single line of text", option, text))
	}
}

// WithPubSub sets how a release notifies the waiters on a cluster. The default is PubSubAuto. It
// has no effect elsewhere.
func WithPubSub(p PubSub) Option {
	return option(func(c *config) { c.pubsub = p })
}

// configure applies opts and checks the result.
func configure(opts []Option) (config, error) {
	c := config{Config: session.Config{
		Lease:         DefaultWatchdogTimeout,
		Poll:          poll,
		CheckEviction: true,
	}}
	for i, o := range opts {
		if o == nil {
			c.errs = append(c.errs, fmt.Errorf("option %d of %d is nil", i+1, len(opts)))
			continue
		}
		o.apply(&c)
	}
	if !c.opTimeoutGiven {
		c.OpTimeout = min(DefaultOpTimeout, c.Lease/6).Truncate(time.Millisecond)
	}
	switch {
	case len(c.errs) > 0:
		return c, errors.Join(c.errs...)
	case c.OpTimeout > c.Lease/4:
		return c, fmt.Errorf("WithOpTimeout(%v): must be at most a quarter of the watchdog timeout (%v)", c.OpTimeout, c.Lease)
	case c.unregistered && (c.name != "" || c.label != ""):
		return c, errors.New("WithoutRegistry: WithName and WithLabel have no effect with it; remove them")
	case c.pubsub < PubSubAuto || c.pubsub > PubSubSharded:
		return c, fmt.Errorf("WithPubSub(%v): must be PubSubAuto, PubSubPlain or PubSubSharded", c.pubsub)
	}
	c.Lease = c.Lease.Truncate(time.Millisecond)
	return c, keys.CheckPrefix(c.KeyPrefix)
}

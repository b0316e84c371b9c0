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
	DefaultOpTimeout       = 3 * time.Second // or a sixth of the watchdog timeout, if that is less
)

// poll is the longest time for which a waiter relies on hints alone.
const poll = time.Second

// Option configures a client.
type Option interface{ apply(*config) }

type option func(*config)

func (o option) apply(c *config) { o(c) }

type config struct {
	session.Config
	opTimeoutGiven bool
	pubsub         PubSub
	errs           []error // about the options that were given
	lazy           bool
	name, label    string
	unregistered   bool
}

// within notes an error about a duration that was given to an option and is less than
// least or more than most.
func (c *config) within(option string, d, least, most time.Duration) {
	switch {
	case d < least:
		c.errs = append(c.errs, fmt.Errorf("%s(%v): the least is %v", option, d, least))
	case d > most:
		c.errs = append(c.errs, fmt.Errorf("%s(%v): the most is %v", option, d, most))
	}
}

// The bounds of what the options take.
const (
	minWatchdogTimeout = 10 * lock.MinLease
	maxWatchdogTimeout = 365 * 24 * time.Hour
	minOpTimeout       = time.Millisecond
)

// WithWatchdogTimeout sets the lease of locks without a fixed one. The watchdog
// renews it every third; when the process dies, the lock is free after at most
// this time. The default is 30 s, the least is 100 ms, the most a year.
//
// The leases of readers are renewed every 10 s at least, as readers of Redisson that renew theirs shorten the lock to their own
// watchdog timeout, which is 30 s if not set. If theirs is less than 10 s, set no longer one here.
func WithWatchdogTimeout(d time.Duration) Option {
	return option(func(c *config) {
		c.Lease = d
		c.within("WithWatchdogTimeout", d, minWatchdogTimeout, maxWatchdogTimeout)
	})
}

// WithOpTimeout sets how long one command to Redis may stay unanswered before
// its outcome counts as unknown. It bounds TryLock and Unlock also when their
// context has no deadline. The default is 3 s, or a sixth of the watchdog
// timeout if that is less; the least is a millisecond. It must not be more than a
// quarter of the watchdog timeout: a renewal that gets no answer would leave no time for another try.
func WithOpTimeout(d time.Duration) Option {
	return option(func(c *config) {
		c.OpTimeout, c.opTimeoutGiven = d, true
		c.within("WithOpTimeout", d, minOpTimeout, maxWatchdogTimeout)
	})
}

// WithKeyPrefix puts prefix before the name of every lock in Redis, as a
// NameMapper of Redisson would.
func WithKeyPrefix(prefix string) Option {
	return option(func(c *config) { c.KeyPrefix = prefix })
}

// WithLogger makes the client log to l instead of [slog.Default].
//
// The client logs faults that no call returns: at Error a lock that was lost, and at Warn what can lead
// to a loss, keeps other owners waiting, or hides the client from operators. docs/operate/telemetry.md lists all
// messages. While all goes well, it logs nothing. It logs each message about one lock at most once in
// 10 s, and about up to ten locks in that time; the next such message counts in left_out how many it left out.
// No message has a password or an owner in it.
//
// With a logger from this option the client also logs at Debug. A logger on
// [slog.DiscardHandler] silences it.
func WithLogger(l *slog.Logger) Option {
	return option(func(c *config) {
		if c.Logger = l; l == nil {
			c.errs = append(c.errs, errors.New("WithLogger(nil): leave the option away, or give slog.New(slog.DiscardHandler)"))
		}
	})
}

// WithObserver makes the client call the functions of o for what happens to its locks, for metrics
// and traces: packages leaseholdotel and leaseholdprom, which are modules of their own, make such
// observers. If the option is given several times, all of them are called, in that order.
func WithObserver(o lock.Observer) Option {
	return option(func(c *config) {
		switch {
		case reflect.ValueOf(o).IsZero(): // nobody observes, and that costs nothing
		case c.Observer == nil:
			c.Observer = &o
		default:
			c.Observer = both(c.Observer, &o)
		}
	})
}

// both returns an observer that tells a and then b.
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

// WithName says as what the client is known to operators: the name of the application or
// of the service. It is the name of the program if not set, and at most 256 bytes.
//
// A client whose locks are used keeps a small hash, leasehold_client:<uuid>, for as long as it lives:
// name, label, host, process id, version of this library, and since when. An owner string begins with
// that uuid. So Inspect and the tool tell who holds a lock, and who waits. The entry is written in
// the background when the first handle of a lock is made, heard of every ten seconds, removed
// by Close, and gone a minute after the process died. It takes a connection of the rueidis client's
// blocking pool, so that no lock waits for it, and none depends on it. Everybody with the
// right to read it sees it: keep secrets out of it.
func WithName(name string) Option {
	return option(func(c *config) {
		c.name = name
		c.text("WithName", name)
		if name == "" {
			c.errs = append(c.errs, errors.New(`WithName(""): leave the option away for the name of the program`))
		}
	})
}

// WithLabel adds whatever else operators should know of the client, such as a zone or a
// revision, to what [WithName] describes. It is at most 256 bytes.
func WithLabel(label string) Option {
	return option(func(c *config) {
		c.label = label
		c.text("WithLabel", label)
	})
}

// WithoutRegistry keeps the client from telling who it is: see [WithName]. It then
// writes no key but those of its locks, and operators see its uuid alone.
func WithoutRegistry() Option {
	return option(func(c *config) { c.unregistered = true })
}

// text notes an error about a text that was given to an option and that operators could not read.
func (c *config) text(option, text string) {
	switch {
	case len(text) > registry.MostText:
		c.errs = append(c.errs, fmt.Errorf("%s: %d bytes, the most is %d", option, len(text), registry.MostText))
	case !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl):
		c.errs = append(c.errs, fmt.Errorf("%s(%q): it must be text on one line", option, text))
	}
}

// WithPubSub says how a release reaches the waiters. It only matters on a cluster;
// everywhere else it is plain. The default is PubSubAuto.
func WithPubSub(p PubSub) Option {
	return option(func(c *config) { c.pubsub = p })
}

// configure applies opts and checks the result.
func configure(opts []Option) (config, error) {
	c := config{Config: session.Config{
		Lease: DefaultWatchdogTimeout,
		Poll:  poll,
		Look:  true,
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
		return c, fmt.Errorf("WithOpTimeout(%v): it must not be more than a quarter of the watchdog timeout, which is %v", c.OpTimeout, c.Lease)
	case c.unregistered && (c.name != "" || c.label != ""):
		return c, errors.New("WithoutRegistry: nobody would see what WithName and WithLabel say; leave them away")
	case c.pubsub < PubSubAuto || c.pubsub > PubSubSharded:
		return c, fmt.Errorf("WithPubSub(%v): it must be PubSubAuto, PubSubPlain or PubSubSharded", c.pubsub)
	}
	c.Lease = c.Lease.Truncate(time.Millisecond)
	return c, keys.CheckPrefix(c.KeyPrefix)
}

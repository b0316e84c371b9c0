package lock

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// maxLease keeps the ends of leases within what clocks can count.
const maxLease = 100 * 365 * 24 * time.Hour

// MinLease is the shortest lease there is: with a shorter one, the margin for clock
// drift and the time of a round trip would leave no time to promise.
const MinLease = 10 * time.Millisecond

// Option changes how one lock handle locks. The zero options are the right
// choice for most: a lease that is renewed until the hold ends.
type Option interface {
	apply(*Config) error
}

// Config is what a list of options says. Kinds of locks read it; callers use
// the options.
type Config struct {
	// Lease is the fixed lease, or 0 for one that is renewed.
	Lease time.Duration

	// Wait is how long Lock waits at most, or 0 for no limit but its context.
	Wait time.Duration

	// Patience is how long a waiter counts as alive after the server last heard from it,
	// for locks whose waiters are known in Redis.
	Patience time.Duration

	// Fencing says that tokens come from a register that outlives the lock.
	Fencing bool

	// Replicas is how many replicas must confirm an acquisition within
	// ReplicaTimeout.
	Replicas       int
	ReplicaTimeout time.Duration

	// MaxHold is how long a hold lasts at most, or 0 for no limit.
	MaxHold time.Duration

	// Grace is how long a hold is still renewed after its context has ended, or 0 for
	// one lease.
	Grace time.Duration

	// ReadersFirst says that readers do not wait behind a waiting writer.
	ReadersFirst bool
}

// DefaultPatience is how long a waiter keeps its place after the server last heard
// from it, if [WithPatience] does not say otherwise.
const DefaultPatience = 5 * time.Second

// MinPatience is the least patience there is: a heartbeat renews a place in a queue
// every third of it, and the network may be slow.
const MinPatience = 100 * time.Millisecond

// minWait is the shortest limit of a wait: a shorter one is most likely a number without
// its unit.
const minWait = time.Millisecond

// NewConfig applies opts in order and checks the result.
func NewConfig(opts ...Option) (Config, error) {
	c := Config{Patience: DefaultPatience}
	var errs []error
	for i, o := range opts {
		if o == nil {
			errs = append(errs, fmt.Errorf("option %d of %d is nil", i+1, len(opts)))
			continue
		}
		if err := o.apply(&c); err != nil {
			errs = append(errs, err)
		}
	}
	return c, errors.Join(errs...)
}

// within returns an error about a duration that was given to an option and is less than
// least or more than most.
func within(option string, d, least, most time.Duration) error {
	switch {
	case d < least:
		return fmt.Errorf("%s(%v): the least is %v", option, d, least)
	case d > most:
		return fmt.Errorf("%s(%v): the most is %v", option, d, most)
	}
	return nil
}

type leaseOption time.Duration

func (o leaseOption) apply(c *Config) error {
	c.Lease = time.Duration(o).Truncate(time.Millisecond)
	return within("WithFixedLease", time.Duration(o), MinLease, maxLease)
}

type waitOption time.Duration

func (o waitOption) apply(c *Config) error {
	c.Wait = time.Duration(o)
	return within("WithWait", time.Duration(o), minWait, math.MaxInt64)
}

type patienceOption time.Duration

func (o patienceOption) apply(c *Config) error {
	c.Patience = time.Duration(o).Truncate(time.Millisecond)
	return within("WithPatience", time.Duration(o), MinPatience, maxLease)
}

type fencingOption struct{}

func (fencingOption) apply(c *Config) error {
	c.Fencing = true
	return nil
}

type replicasOption struct {
	n       int
	timeout time.Duration
}

func (o replicasOption) apply(c *Config) error {
	c.Replicas, c.ReplicaTimeout = o.n, o.timeout.Truncate(time.Millisecond)
	if o.n <= 0 {
		return fmt.Errorf("WithReplicas(%d, %v): at least one must confirm, or leave the option away", o.n, o.timeout)
	}
	if o.timeout < time.Millisecond {
		return fmt.Errorf("WithReplicas(%d, %v): the least timeout is %v", o.n, o.timeout, time.Millisecond)
	}
	return nil
}

type maxHoldOption time.Duration

func (o maxHoldOption) apply(c *Config) error {
	c.MaxHold = time.Duration(o)
	return within("WithMaxHold", c.MaxHold, MinLease, maxLease)
}

type graceOption time.Duration

func (o graceOption) apply(c *Config) error {
	c.Grace = time.Duration(o)
	return within("WithGrace", c.Grace, MinLease, maxLease)
}

type readersFirstOption struct{}

func (readersFirstOption) apply(c *Config) error {
	c.ReadersFirst = true
	return nil
}

// WithFixedLease turns renewals off: the lock becomes free d after it was taken, whatever its
// holder does, and the hold is lost then, with a cause that matches [ErrExpired]. Without it
// the lease is renewed until Unlock, and a holder that works for longer than expected keeps
// the lock; so most callers want no such option. To bound a hold that is renewed, use
// [WithMaxHold].
//
// It is what the lease time of Redisson's lock(leaseTime, unit), redsync's WithExpiry and
// redislock's ttl are. Fractions of a millisecond are cut off. The least is [MinLease]; a
// shorter one, such as a number without a unit, is an error of the handle's first call.
//
// A re-entry under a hold that is renewed, or whose lease lasts longer, changes nothing: it
// never shortens the lease of an outer hold, and may lengthen it.
func WithFixedLease(d time.Duration) Option { return leaseOption(d) }

// WithWait lets Lock wait for at most d. After that Lock fails with an error that
// matches [ErrNotAcquired] and [os.ErrDeadlineExceeded], and [ErrUnavailable] if Redis
// gave no answer. The least is a millisecond.
//
// A deadline on the context given to Lock limits the wait too, but it also ends the
// context of the hold. WithWait does not: wait for five seconds, hold for hours.
func WithWait(d time.Duration) Option { return waitOption(d) }

// WithPatience sets how long a waiter counts as alive after the server last heard from
// it. A process that died keeps the waiters behind it in a fair lock's queue waiting for
// that time, and a writer that died waiting keeps new readers waiting for it. (A reader that
// died waiting keeps writers waiting for 100 ms at most.) A waiter reports
// every third of it, and once a second at least. A process that was frozen
// for longer goes to the end of the queue. It is [DefaultPatience] if not set, and
// has no effect on locks that do not queue in Redis.
func WithPatience(d time.Duration) Option { return patienceOption(d) }

// WithReadersFirst lets readers in whenever no owner writes, also ahead of a writer that
// came before them. Under readers that overlap without a gap, such a writer
// waits for ever. On the writer's handle, the option says that the writer does not hold
// readers back. It has no effect on other kinds of locks.
func WithReadersFirst() Option { return readersFirstOption{} }

// WithFencing makes the tokens of holds grow whatever the clock of the server
// does: a register in Redis remembers the latest, and a new holder gets the
// server's time in µs or one more than that, whichever is larger. The register
// has no expiry and stays when the lock is free, 16 bytes and its key for each
// name ever locked so; it is Redisson's, so that a Java RFencedLock of the same
// name goes on with the same sequence. The first hold of an owner decides.
//
// With it, read holds have a token too: larger than that of every earlier writer, and
// smaller than that of every later one. Readers that no writer came between have the same,
// so that a resource that has seen one of them accepts the others. An owner that reads while it
// writes has two tokens, and the reader's is the larger one.
//
// Without it, tokens are the server's time alone, and cost nothing: they grow
// if that clock does not go back.
func WithFencing() Option { return fencingOption{} }

// WithReplicas makes an acquisition count only if n replicas have confirmed it
// within timeout; otherwise it is given back, and the error matches [ErrReplicas]. It
// narrows the window in which a failover forgets a lock, and does not close it: a
// replica that was not among the n can be promoted. A re-entry needs no confirmation.
//
// It costs a connection of its own for each acquisition under way, and the time
// of the slowest of n replicas. timeout must not be more than half of the lease.
func WithReplicas(n int, timeout time.Duration) Option { return replicasOption{n, timeout} }

// WithMaxHold ends a hold d after it was acquired, even if it is renewed: the hold is
// then lost, with a cause that matches [ErrLost] and [ErrMaxHold], and is given back to
// Redis. It bounds how long a holder that hangs can keep other owners out.
//
// Each hold of a re-entrant lock has its own d, or none. The lock is free when no hold of
// the owner is left. d must not be less than [MinLease].
func WithMaxHold(d time.Duration) Option { return maxHoldOption(d) }

// WithGrace sets how long a hold is still renewed after the context that was given to
// Lock has ended, if it is not unlocked: for one lease if not set. The time counts from
// the renewal that finds the context over, which is at most a third of the lease after its
// end. Then the hold is lost, with a cause that matches [ErrLost] and [ErrAbandoned], and is
// given back to Redis. [Observer.Abandoned] is called when the time begins.
//
// A hold under context.Background is never abandoned, and neither is one that its holder
// unlocks in time. The least is [MinLease]. WithGrace has no effect on a fixed lease, which is
// never renewed.
func WithGrace(d time.Duration) Option { return graceOption(d) }

package lock

import (
	"errors"
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

	// Patience is for how long a waiter that is not heard from counts as alive,
	// where waiting leaves a trace in Redis.
	Patience time.Duration

	// Fencing says that tokens come from a register that outlives the lock.
	Fencing bool

	// Replicas is how many replicas must confirm an acquisition within
	// ReplicaTimeout.
	Replicas       int
	ReplicaTimeout time.Duration

	// ReadersFirst says that readers need not wait behind a waiting writer.
	ReadersFirst bool
}

// DefaultPatience is for how long a waiter that is not heard from keeps its
// place, if [WithPatience] does not say otherwise.
const DefaultPatience = 5 * time.Second

// MinPatience is the least patience there is: a place in a queue is renewed by a
// heartbeat every third of it, and the wire may be slow.
const MinPatience = 100 * time.Millisecond

// NewConfig applies opts in order and checks the result.
func NewConfig(opts ...Option) (Config, error) {
	c := Config{Patience: DefaultPatience}
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
	case c.Patience < MinPatience:
		return c, fmt.Errorf("patience %v: the least is %v", c.Patience, MinPatience)
	case c.Patience > maxLease:
		return c, fmt.Errorf("patience %v: the most is %v", c.Patience, maxLease)
	case c.Replicas < 0:
		return c, errors.New("replicas: at least one must confirm, or leave the option away")
	case c.Replicas > 0 && c.ReplicaTimeout < time.Millisecond:
		return c, fmt.Errorf("replica timeout %v: the least is a millisecond", c.ReplicaTimeout)
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

type patienceOption time.Duration

func (o patienceOption) apply(c *Config) { c.Patience = time.Duration(o).Truncate(time.Millisecond) }

type fencingOption struct{}

func (fencingOption) apply(c *Config) { c.Fencing = true }

type replicasOption struct {
	n       int
	timeout time.Duration
}

func (o replicasOption) apply(c *Config) {
	c.Replicas, c.ReplicaTimeout = o.n, o.timeout.Truncate(time.Millisecond)
	if o.n <= 0 {
		c.Replicas = never
	}
}

type readersFirstOption struct{}

func (readersFirstOption) apply(c *Config) { c.ReadersFirst = true }

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

// WithPatience sets for how long a waiter that is not heard from counts as alive:
// for that long a process that died keeps those behind it in a fair lock's queue
// waiting, and new readers behind a writer who died waiting. Waiters are heard
// from every third of it, and once a second at least. A process that was frozen
// for longer goes to the end of the queue. It is [DefaultPatience] if not set, and
// has no effect on locks that do not queue in Redis.
func WithPatience(d time.Duration) Option { return patienceOption(d) }

// WithReadersFirst lets readers in whenever nobody writes, also past a writer who
// was there before them. Under readers that overlap without a gap, such a writer
// waits for ever. For the writer's handle it says not to hold readers back. It
// has no effect on other kinds of locks.
func WithReadersFirst() Option { return readersFirstOption{} }

// WithFencing makes the tokens of holds grow whatever the clock of the server
// does: a register in Redis remembers the latest, and a new holder gets the
// server's time in µs or one more than that, whichever is larger. The register
// has no expiry and stays when the lock is free, 16 bytes and its key for each
// name ever locked so; it is Redisson's, so that a Java RFencedLock of the same
// name goes on with the same sequence. The first hold of an owner decides.
//
// With it, read holds have a token too: that of the latest writer. It is larger
// once another has written.
//
// Without it, tokens are the server's time alone, and cost nothing: they grow as
// long as that clock does not go back.
func WithFencing() Option { return fencingOption{} }

// WithReplicas makes an acquisition count only when n replicas have confirmed it
// within timeout; else it is given back, and the error matches [ErrReplicas]. It
// narrows the window in which a failover forgets a lock, and does not close it: a
// replica that was not among the n can be promoted. A re-entry is not confirmed
// again.
//
// It costs a connection of its own for each acquisition under way, and the time
// of the slowest of n replicas. timeout must not be more than half of the lease.
func WithReplicas(n int, timeout time.Duration) Option { return replicasOption{n, timeout} }

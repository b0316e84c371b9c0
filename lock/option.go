package lock

import (
	"fmt"
	"math"
	"time"

	"github.com/leasehold-go/leasehold/internal/option"
)

// maxLease keeps the ends of leases within what clocks can count.
const maxLease = 100 * 365 * 24 * time.Hour

// MinLease is the shortest lease there is: with a shorter one, the margin for clock
// drift and the time of a round trip would leave no time to promise.
const MinLease = 10 * time.Millisecond

// Option changes how one lock handle locks. Few locks need one: the default is a lease that
// is renewed until the hold ends, and a wait that only its context limits. Each kind of lock
// says which options it knows. A nil, a value that makes no sense and an option that the kind does
// not know are errors of the first call; the last matches [errors.ErrUnsupported]. Of two that are
// the same, the last counts.
//
// The functions of this package make options, and lockimpl.NewConfig reads them.
type Option interface {
	Setting() option.Setting
}

// setting is an [Option].
type setting option.Setting

func (s setting) Setting() option.Setting { return option.Setting(s) }

// DefaultWaiterTimeout is how long a waiter keeps its place after the server last heard
// from it, if [WithWaiterTimeout] does not say otherwise.
const DefaultWaiterTimeout = 5 * time.Second

// MinWaiterTimeout is the least patience there is: a heartbeat renews a place in a queue
// every third of it, and the network may be slow.
const MinWaiterTimeout = 100 * time.Millisecond

// minWait is the shortest limit of a wait: a shorter one is most likely a number without
// its unit.
const minWait = time.Millisecond

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

// WithFixedLease turns renewals off: Redis frees the lock d after it was acquired, unless it is
// unlocked before. The hold is lost 1 % of d and 2 ms earlier, because clocks may differ, with a cause that matches [ErrExpired]. Without it
// the lease is renewed until Unlock, and a holder that works for longer than expected keeps
// the lock; so most callers want no such option. To bound a hold that is renewed, use
// [WithMaxHold].
//
// It is what the lease time of Redisson's lock(leaseTime, unit), redsync's WithExpiry and
// redislock's ttl are. Fractions of a millisecond are cut off. The least is [MinLease]; a
// shorter one, such as a number without a unit, is an error of the handle's first call.
//
// The lease of a reader of a read/write lock that readers of Redisson share should be no longer than their watchdog timeout, which is 30 s if
// not set. When such a reader renews its lease, Redisson shortens the lock to that time; and when that reader dies, a writer comes in, although
// the reader with the fixed lease has not left.
//
// A re-entry under a hold that is renewed, or whose lease lasts longer, changes nothing: it
// never shortens the lease of an outer hold, and may lengthen it.
func WithFixedLease(d time.Duration) Option {
	return setting{option.FixedLease, "WithFixedLease", func(c *option.Config) error {
		c.Lease = d.Truncate(time.Millisecond)
		return within("WithFixedLease", d, MinLease, maxLease)
	}}
}

// WithWait lets Lock wait for at most d. After that Lock fails with an error that
// matches [os.ErrDeadlineExceeded], and either [ErrNotAcquired] if another owner has the lock, or
// [ErrUnavailable] if Redis did not reply. If d is shorter than a round trip, no reply can come in time. With
// WithWait(0), Lock makes one attempt, as TryLock does. Otherwise d must be at least a millisecond.
//
// A deadline on the context given to Lock limits the wait too, but it also ends the
// context of the hold. WithWait does not: wait for five seconds, hold for hours. Package
// multilock says what it limits for several locks.
func WithWait(d time.Duration) Option {
	return setting{option.Wait, "WithWait", func(c *option.Config) error {
		if c.Wait, c.Once = d, d == 0; c.Once {
			return nil
		}
		return within("WithWait", d, minWait, math.MaxInt64)
	}}
}

// WithWaiterTimeout sets how long a waiter counts as alive after the server last heard from
// it. A process that died keeps the waiters behind it in a fair lock's queue waiting for
// that time, and a writer that died waiting keeps new readers waiting for it. (A reader that
// died waiting keeps writers waiting for 100 ms at most.) A waiter reports
// every third of it, and once a second at least. A process that was frozen
// for longer goes to the end of the queue. It is [DefaultWaiterTimeout] if not set. Fair and
// read/write locks know it; the waiters of a plain lock have no place that could be lost.
func WithWaiterTimeout(d time.Duration) Option {
	return setting{option.WaiterTimeout, "WithWaiterTimeout", func(c *option.Config) error {
		c.WaiterTimeout = d.Truncate(time.Millisecond)
		return within("WithWaiterTimeout", d, MinWaiterTimeout, maxLease)
	}}
}

// WithReaderPreference lets readers in whenever no owner writes, also ahead of a writer that
// came before them. Under readers that overlap without a gap, such a writer
// waits for ever. On the writer's handle, the option says that the writer does not hold
// readers back. Only read/write locks know it.
func WithReaderPreference() Option {
	return setting{option.ReaderPreference, "WithReaderPreference", func(c *option.Config) error {
		c.ReaderPreference = true
		return nil
	}}
}

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
func WithFencing() Option {
	return setting{option.Fencing, "WithFencing", func(c *option.Config) error {
		c.Fencing = true
		return nil
	}}
}

// WithReplicas makes an acquisition count only if n replicas have confirmed it
// within timeout; otherwise it is released, and the error matches [ErrReplicas]. If the server becomes a replica in the
// meantime, Lock goes on at the new primary, and TryLock can fail with [ErrUnavailable]. WithReplicas
// narrows the window in which a failover forgets a lock, and does not close it: a
// replica that was not among the n can be promoted. A re-entry needs no confirmation.
//
// It costs a connection of its own for each acquisition under way, and the time
// of the slowest of n replicas. timeout must not be more than half of the lease.
func WithReplicas(n int, timeout time.Duration) Option {
	return setting{option.Replicas, "WithReplicas", func(c *option.Config) error {
		c.Replicas, c.ReplicaTimeout = n, timeout.Truncate(time.Millisecond)
		if n <= 0 {
			return fmt.Errorf("WithReplicas(%d, %v): at least one must confirm, or leave the option away", n, timeout)
		}
		if timeout < time.Millisecond {
			return fmt.Errorf("WithReplicas(%d, %v): the least timeout is %v", n, timeout, time.Millisecond)
		}
		return nil
	}}
}

// WithMaxHold ends a hold d after it was acquired, even if it is renewed: the hold is
// then lost, with a cause that matches [ErrLost] and [ErrMaxHold], and is given back to
// Redis. It bounds how long a holder that hangs can keep other owners out, including a function of [Do], an HTTP handler, a task or a
// leader, which otherwise keeps the lock until it returns.
//
// Each hold of a re-entrant lock has its own d, or none. The lock is free when no hold of
// the owner is left. d must not be less than [MinLease].
func WithMaxHold(d time.Duration) Option {
	return setting{option.MaxHold, "WithMaxHold", func(c *option.Config) error {
		c.MaxHold = d
		return within("WithMaxHold", d, MinLease, maxLease)
	}}
}

// WithMinHold keeps the lock locked for d after it was acquired, even if it is unlocked before:
// for a job that must not run twice within a minute, although it takes a second and the clocks of
// the machines differ.
//
// Unlock returns at once and ends the hold. What it leaves in Redis is the lock, which expires when d
// is over; until then other owners wait, and TryLock fails with [ErrNotAcquired]. Neither Close nor
// the end of the process frees it sooner, and Inspect shows the owner, who is not there any more. The
// lease is d at least, so that the lock also outlives a process that dies. A waiter of Redisson asks again
// when the lease ends that it saw.
//
// Plain and fair locks know it. d is [MinLease] at least, and no more than that of
// [WithFixedLease] and [WithMaxHold].
func WithMinHold(d time.Duration) Option {
	return setting{option.MinHold, "WithMinHold", func(c *option.Config) error {
		c.MinHold = d
		return within("WithMinHold", d, MinLease, maxLease)
	}}
}

// WithGrace sets for how long a hold that is not unlocked is still renewed after the context given to
// Lock is canceled. The default is one lease. It must be at least [MinLease]. The time counts from
// the renewal that detects the cancellation, at most a third of the lease after it. Then the hold is given up: it is released and lost, and
// [Observer.Abandoned] is called. From then on Hold.Err and the error of Unlock match [ErrLost] and [ErrAbandoned]. [context.Cause] of the hold's context
// does not, because a context keeps its first cause.
//
// It bounds only holds in the caller's own hands. The function of [Do] and the like, and a hold of [UntilUnlock], keep the lock until they are
// done. For them it is the time after which the log and [Observer.StillRunning] report, once, that the work is still running; use [WithMaxHold]
// to bound them.
//
// A hold under context.Background is never abandoned, and neither is one that its holder
// unlocks in time. With [WithFixedLease], which is never renewed, it is an error.
func WithGrace(d time.Duration) Option {
	return setting{option.Grace, "WithGrace", func(c *option.Config) error {
		c.Grace = d
		return within("WithGrace", d, MinLease, maxLease)
	}}
}

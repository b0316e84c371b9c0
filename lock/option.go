package lock

import (
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/internal/option"
)

// maxLease keeps the ends of leases within what clocks can count.
const maxLease = 100 * 365 * 24 * time.Hour

// MinLease is the shortest lease. With a shorter one, the margin for clock drift and the time of a
// round trip would leave nothing to guarantee.
const MinLease = 10 * time.Millisecond

// Option changes how one lock handle locks. Most locks need none. By default the lease is renewed
// until the hold ends, and only the context limits a wait. Each type of lock documents which
// options it supports. A nil option, an invalid value or an unsupported option makes the first call
// fail. For an unsupported option, the error matches [errors.ErrUnsupported]. If the same
// option is given twice, the second one applies.
//
// The functions of this package create options, and lockimpl.NewConfig reads them.
type Option interface {
	Setting() option.Setting
}

// setting is an [Option].
type setting option.Setting

func (s setting) Setting() option.Setting { return option.Setting(s) }

// DefaultWaiterTimeout is the default of [WithWaiterTimeout].
const DefaultWaiterTimeout = 5 * time.Second

// MinWaiterTimeout is the minimum of [WithWaiterTimeout]. A waiter sends a heartbeat every third of
// the timeout, and the network may be slow.
const MinWaiterTimeout = 100 * time.Millisecond

// minWait is the shortest limit of a wait: a shorter one is most likely a number without
// its unit.
const minWait = time.Millisecond

// within returns an error about a duration that was given to an option and is less than
// least or more than most.
func within(option string, d, least, most time.Duration) error {
	switch {
	case d < least:
		return fmt.Errorf("%s(%v): must be at least %v", option, d, least)
	case d > most:
		return fmt.Errorf("%s(%v): must be at most %v", option, d, most)
	}
	return nil
}

// WithFixedLease sets a lease that is not renewed. Redis frees the lock d after it was acquired,
// unless it is unlocked before. By default the lease is renewed until Unlock, as most callers need.
// The lease d must be at least [MinLease]. Fractions of a millisecond are dropped. To bound a hold
// that is renewed, use [WithMaxHold].
//
// The hold is lost 1 % of d and 2 ms before that time, because clocks may differ. The cause matches
// [ErrExpired]. The option corresponds to the lease time of Redisson's lock(leaseTime, unit),
// redsync's WithExpiry and redislock's ttl.
//
// If readers of Redisson share a read/write lock, the fixed lease of a reader should not exceed
// their watchdog timeout (30 s by default). When a reader of Redisson renews its lease, it shortens
// the lease of the lock to that time. If that reader dies, a writer can acquire the lock although
// the reader with the fixed lease still holds it.
//
// A reentry under a hold that is renewed, or whose lease lasts longer, changes nothing. It never
// shortens the lease of an outer hold, and may extend it.
func WithFixedLease(d time.Duration) Option {
	return setting{option.FixedLease, "WithFixedLease", func(c *option.Config) error {
		c.Lease = d.Truncate(time.Millisecond)
		return within("WithFixedLease", d, MinLease, maxLease)
	}}
}

// WithWait limits how long Lock waits. By default only the context limits it. After d, Lock fails
// with an error that matches [os.ErrDeadlineExceeded]. The error also matches [ErrNotAcquired] if
// another owner has the lock, or [ErrUnavailable] if Redis did not reply. If d is shorter than a
// round trip, no reply can arrive in time. With WithWait(0), Lock makes one attempt, as TryLock
// does. Otherwise d must be at least 1 ms.
//
// A deadline on the context given to Lock limits the wait too, but it also cancels the context of
// the hold. WithWait does not, so a caller can wait for five seconds and hold for hours. Package
// multilock documents what it limits for several locks.
func WithWait(d time.Duration) Option {
	return setting{option.Wait, "WithWait", func(c *option.Config) error {
		if c.Wait, c.Once = d, d == 0; !c.Once && d < minWait {
			return fmt.Errorf("WithWait(%v): must be 0, or at least %v", d, minWait)
		}
		return nil
	}}
}

// WithWaiterTimeout sets how long a waiter counts as alive after its last heartbeat. The default is
// [DefaultWaiterTimeout]. It must be at least [MinWaiterTimeout]. Only fair locks, read/write locks
// and semaphores support it. A plain lock needs none: a process keeps its place while it is
// subscribed.
//
// In the queue of a fair lock or semaphore, a dead process delays the waiters behind it by that
// time. A writer that died while it waited delays new readers by that time. A reader that died
// while it waited delays writers by at most 100 ms. A waiter sends a heartbeat every third of the
// time, and at least once per second; for a read/write lock, every two seconds after a long wait. A
// process that was paused for longer moves to the end of the queue.
func WithWaiterTimeout(d time.Duration) Option {
	return setting{option.WaiterTimeout, "WithWaiterTimeout", func(c *option.Config) error {
		c.WaiterTimeout = d.Truncate(time.Millisecond)
		return within("WithWaiterTimeout", d, MinWaiterTimeout, maxLease)
	}}
}

// WithReaderPreference admits readers whenever no owner writes, even ahead of a writer that came
// before them. Such a writer can wait indefinitely while readers overlap without a gap. On the
// handle of the writer, the option means that the writer does not hold back readers. Only
// read/write locks support it.
func WithReaderPreference() Option {
	return setting{option.ReaderPreference, "WithReaderPreference", func(c *option.Config) error {
		c.ReaderPreference = true
		return nil
	}}
}

// WithFencing makes fencing tokens grow even if the clock of the server moves backward. A token
// counter in Redis stores the latest token. A new holder gets the server time in µs, or the latest
// token plus one if that is larger. For a reentry, the option of the owner's first hold applies.
//
// The counter has no expiry and stays when the lock is free. It takes about 100 bytes for each name
// that was ever locked this way. A Redisson RFencedLock of the same name uses the same counter. All
// handles of a name must have the option, or none: a holder without it does not raise the counter.
//
// With this option, read holds have a token too. A reader's token is larger than the token of every
// earlier writer, and smaller than the token of every later writer. Readers with no writer between
// them have the same token. A resource that has seen one of them accepts the others. An owner that
// reads while it writes has two tokens. The reader's token is the larger one.
//
// Without this option, tokens are the server time alone and cost nothing. They grow provided that
// the clock of the server does not move backward.
func WithFencing() Option {
	return setting{option.Fencing, "WithFencing", func(c *option.Config) error {
		c.Fencing = true
		return nil
	}}
}

// WithReplicas requires that n replicas confirm an acquisition within timeout. Otherwise the lock
// is released, and the error matches [ErrReplicas]. timeout must not exceed half of the lease. If
// the server becomes a replica in the meantime, Lock continues at the new primary, and TryLock can
// fail with [ErrUnavailable].
//
// The option narrows the window in which a failover loses a lock. It does not close it, because a
// replica that was not among the n can be promoted. Renewals and reentries need no confirmation, so
// a replica that has received nothing for a lease lacks the lock, too. Each acquisition in progress
// uses a separate connection, and takes the time of the slowest of the n replicas. A TryLock takes
// up to timeout longer.
func WithReplicas(n int, timeout time.Duration) Option {
	return setting{option.Replicas, "WithReplicas", func(c *option.Config) error {
		c.Replicas, c.ReplicaTimeout = n, timeout.Truncate(time.Millisecond)
		if n <= 0 {
			return fmt.Errorf("WithReplicas(%d, %v): want at least 1 replica, or omit the option", n, timeout)
		}
		if timeout < time.Millisecond {
			return fmt.Errorf("WithReplicas(%d, %v): timeout must be at least %v", n, timeout, time.Millisecond)
		}
		return nil
	}}
}

// WithMaxHold sets the maximum duration of a hold. By default there is none. The duration d must be
// at least [MinLease]. After d the hold is lost and released in Redis, even if it is renewed. The
// cause matches [ErrLost] and [ErrMaxHold]. Use it to bound how long a holder that hangs keeps out
// other owners. A function of [Do], an HTTP handler, a task or a leader otherwise keeps the lock
// until it returns.
//
// Each hold of a reentrant lock has its own limit, or none. The lock is free when the owner has no
// hold left.
func WithMaxHold(d time.Duration) Option {
	return setting{option.MaxHold, "WithMaxHold", func(c *option.Config) error {
		c.MaxHold = d
		return within("WithMaxHold", d, MinLease, maxLease)
	}}
}

// WithMinHold keeps the lock locked for d after it was acquired, even if it is unlocked before. Use
// it for a job that takes a second and must not run twice within a minute, although the clocks of
// the machines differ. The duration d must be at least [MinLease], and at most the durations of
// [WithFixedLease] and [WithMaxHold]. Fractions of a millisecond are dropped. Only plain and fair
// locks support it. Time during which the machine is asleep does not count.
//
// Unlock returns immediately and ends the hold. It leaves the lock in Redis until d has passed.
// Until then other owners wait, and TryLock fails with [ErrNotAcquired]. Neither Close nor the end
// of the process frees the lock sooner, and Inspect shows the owner that released it. The lease is
// at least d, so the lock also outlives a process that dies. A waiter of Redisson retries when the
// lease that it saw expires.
func WithMinHold(d time.Duration) Option {
	return setting{option.MinHold, "WithMinHold", func(c *option.Config) error {
		c.MinHold = d.Truncate(time.Millisecond)
		return within("WithMinHold", d, MinLease, maxLease)
	}}
}

// WithAsyncUnlock makes Unlock return without waiting for the reply to the release. By default
// Unlock waits. Use it for a distant server. A pair of Lock and Unlock then takes one round trip
// instead of two, and so does a call of [Do] or [TryDo]. All types of locks support it. A wait group
// does not, because Done reports that the worker counts as done.
//
// When Unlock returns, the hold has ended, and the client is about to send the release. Unlock
// still fails with [ErrNotHeld] if it is called twice, or after a loss that this process has
// detected. It does not return what the reply reports. If the reply reports a loss, the log and
// [Observer.Lost] report it. If Redis does not confirm the release, the log and [Observer.Released]
// report it, and the release is repeated in the background. Omit the option if the caller acts on
// the error of Unlock, for example by checking the data after a loss.
//
// The next Lock or TryLock of this client for the name comes after the release. If its request
// overtakes the release and is rejected, the call waits for the release and sends another request.
// If Lock of a plain lock begins after the release was sent, it sends its request when the reply to
// the release arrives. Other
// clients, and Inspect, can see the lock held for a moment longer. If the process ends immediately
// after Unlock, the lock can stay locked until its lease expires. Closing the client waits for
// releases.
//
// The option belongs to the handle. Each hold of that handle, including a reentry, is unlocked
// this way. With [WithMinHold], the lock stays locked for its minimum time. The Unlock of several
// locks waits only for those without the option. Downgrade of a read/write lock always waits.
func WithAsyncUnlock() Option {
	return setting{option.AsyncUnlock, "WithAsyncUnlock", func(c *option.Config) error {
		c.AsyncUnlock = true
		return nil
	}}
}

// WithGrace sets how long a hold that is not unlocked is still renewed after the context given to
// Lock is canceled. The default is one lease. It must be at least [MinLease]. It cannot be used
// with [WithFixedLease], whose lease is never renewed.
//
// The time counts from the renewal that detects the cancellation, at most a third of the lease
// after it. Then the hold is abandoned. It is released and lost, and [Observer.Abandoned] is
// called. From then on Hold.Err and the error of Unlock match [ErrLost] and [ErrAbandoned].
// [context.Cause] of the context of the hold does not, because a context keeps its first cause.
//
// The option bounds only holds that the caller must unlock. The function of [Do] keeps the lock
// until it returns, and a hold of [UntilUnlock] lasts until Unlock. After the grace time, the log
// and [Observer.StillRunning] report once that their work is still running. Use [WithMaxHold] to
// bound them. A hold under context.Background is never abandoned.
func WithGrace(d time.Duration) Option {
	return setting{option.Grace, "WithGrace", func(c *option.Config) error {
		c.Grace = d
		return within("WithGrace", d, MinLease, maxLease)
	}}
}

// WithLinger keeps the lock in this process for up to d after its last Unlock. Neither that Unlock
// nor the next Lock or TryLock of the process then needs a command. By default Unlock releases the
// lock. Use it for work that is sharded by key, where the same process locks the same names again
// and again. The duration d must be at least 1 ms. Only plain locks, fair locks and the write side of
// read/write locks support it. It cannot be used with [WithFixedLease] or [WithReplicas].
//
// If another process requests the lock, this process releases it immediately, or at the next Unlock
// if it is in use. After its first request, a waiter of another process waits for at most d or one
// second, whichever is longer, in addition to the current hold. For a waiter of Redisson or of a
// write lock, the lock is then free for 5 ms. If its request takes longer, it can miss that time
// while callers of this process keep coming.
//
// TryLock of another process waits for that release for at most d, but at least 10 ms and at most
// 250 ms. Its error then matches [ErrNotAcquired] and reports that the lock is in use, or kept
// idle.
//
// While a waiter's notification from another process is on its way, a caller of this process can
// still acquire a kept fair lock ahead of that waiter.
//
// Each hold has a larger token than the previous one. The lease is renewed while the lock is kept, so a
// process that crashes keeps others out for at most the lease. If the lock is lost while it is kept, no
// hold ends. Until the client detects the loss, within a third of the lease, a caller can still acquire
// the kept lock; that hold is then lost. After that, callers acquire it as usual. Close releases it.
//
// A lock lingers only if no other process waited when it was acquired, and only if the client has
// been subscribed to its channel since before that. The first acquisition of a name therefore does
// not linger. With [WithFencing], the lock is released after 64 holders, and a write lock never
// lingers. For each name in use, the client subscribes to one channel.
func WithLinger(d time.Duration) Option {
	return setting{option.Linger, "WithLinger", func(c *option.Config) error {
		c.Linger = d
		return within("WithLinger", d, minWait, maxLease)
	}}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/multilock"
	"github.com/redis/rueidis"
)

// locking is which lock is taken, and how: flags of run.
type locking struct {
	shared, exclusive, fair, quorum bool

	waits       bool // wait was given
	wait        time.Duration
	noWait      bool
	lease       time.Duration
	noRenew     bool
	fencing     bool
	durable     bool
	voteTimeout time.Duration
}

// leastLease is the least that a client takes as its watchdog's timeout.
const leastLease = 10 * lock.MinLease

// check returns what is wrong with the flags, given the number of servers.
func (l *locking) check(servers int) error {
	switch {
	case l.waits && l.noWait:
		return usagef("--wait and --no-wait exclude each other")
	case l.shared && l.exclusive, l.shared && l.fair, l.exclusive && l.fair:
		return usagef("--shared, --exclusive and --fair exclude each other")
	case l.fair && l.quorum:
		return usagef("--fair and --quorum exclude each other: a quorum has no queue")
	case l.wait < 0:
		return usagef("--wait %v: it must not be less than 0", l.wait)
	case l.lease < leastLease:
		return usagef("--lease %v: the least is %v", l.lease, leastLease)
	case servers > 1 && !l.quorum:
		return usagef("%d URLs: a lock on several servers needs --quorum", servers)
	case l.quorum && (servers < 3 || servers%2 == 0):
		return usagef("--quorum with %d URLs: an odd number is needed, and three at least", servers)
	case !l.quorum && l.durable:
		return usagef("--durable goes with --quorum")
	case l.voteTimeout <= 0:
		return usagef("--vote-timeout %v: it must be more than 0", l.voteTimeout)
	}
	return nil
}

// tries reports whether the lock is asked for once.
func (l *locking) tries() bool { return l.noWait || l.waits && l.wait == 0 }

// lockOf returns the lock called name on c.
func (l *locking) lockOf(c *client.Client, name string) lock.Witness {
	var opts []lock.Option
	if l.noRenew {
		opts = append(opts, lock.WithLease(l.lease))
	}
	if l.wait > 0 {
		opts = append(opts, lock.WithWait(l.wait))
	}
	if l.fencing {
		opts = append(opts, lock.WithFencing())
	}
	switch {
	case l.shared:
		return c.NewRWLock(name, opts...).Read().(lock.Witness)
	case l.exclusive:
		return c.NewRWLock(name, opts...).Write().(lock.Witness)
	case l.fair:
		return c.NewFairLock(name, opts...)
	}
	return c.NewLock(name, opts...)
}

// quorumOf returns the lock that locks make together.
func (l *locking) quorumOf(locks []lock.Locker) lock.Locker {
	opts := []multilock.Option{
		multilock.WithLongestLease(max(l.lease, multilock.DefaultLongestLease)),
		multilock.WithServerTimeout(l.voteTimeout),
	}
	if l.wait > 0 {
		opts = append(opts, multilock.WithWait(l.wait))
	}
	if l.durable {
		opts = append(opts, multilock.WithDurableServers())
	}
	return multilock.NewQuorum(locks, opts...)
}

// opened is a lock with the connections that it needs.
type opened struct {
	lock.Locker
	voters []*voter

	mu      sync.Mutex
	closers []func(context.Context)
}

// open connects to the servers at addresses, and returns the lock called name on them.
func (r *runner) open(ctx context.Context, addresses []string) (*opened, error) {
	o := &opened{voters: make([]*voter, len(addresses))}
	var connecting sync.WaitGroup
	for i, address := range addresses {
		connecting.Go(func() { o.voters[i] = r.openVoter(ctx, address, o) })
	}
	connecting.Wait()

	var locks []lock.Locker
	var errs []error
	for _, v := range o.voters {
		locks = append(locks, v)
		if v.absent != nil {
			errs = append(errs, v.absent)
		}
	}
	if len(errs) > len(locks)/2 {
		o.close(ctx)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, errors.Join(errs...)
	}
	for _, err := range errs {
		r.trouble("%v; going on without it", err)
	}
	o.Locker = locks[0]
	if r.quorum {
		o.Locker = r.quorumOf(locks)
	}
	return o, nil
}

func (r *runner) openVoter(ctx context.Context, address string, o *opened) *voter {
	rdb, err := r.dial(ctx, address)
	if err != nil {
		return &voter{name: r.name, absent: err}
	}
	c, err := client.New(rdb, client.WithName("leasehold run"), client.WithLabel(r.label()), client.WithWatchdogTimeout(r.lease), client.WithLogger(r.logger()), client.WithObserver(r.observer()))
	if err != nil {
		rdb.Close()
		return &voter{name: r.name, absent: fmt.Errorf("%s: %w", redacted(address), err)}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closers = append(o.closers, func(ctx context.Context) { r.closeClient(ctx, c, rdb) })
	return &voter{Witness: r.lockOf(c, r.name), name: r.name, within: r.voteTimeout}
}

// observer returns one that says, once, that the waiting has begun.
func (r *runner) observer() lock.Observer {
	return lock.Observer{Waiting: func(lock.Event) {
		r.waiting.Do(func() { r.happens("another owner has %q: waiting", r.name) })
	}}
}

// closeClient closes c and then its connection. What a call that ended has left in
// Redis is taken back by then. A server that does not answer keeps the connection open;
// the end of the process does not wait for that.
func (r *runner) closeClient(ctx context.Context, c *client.Client, rdb rueidis.Client) {
	if err := c.Close(ctx); err != nil {
		r.happens("%v; what is left in Redis is gone when the lease of %v ends", err, r.lease)
		return
	}
	rdb.Close()
}

// close closes the clients, for as long as ctx lasts.
func (o *opened) close(ctx context.Context) {
	var closing sync.WaitGroup
	for _, closeClient := range o.closers {
		closing.Go(func() { closeClient(ctx) })
	}
	closing.Wait()
}

// take takes the lock as the flags say.
func (o *opened) take(ctx context.Context, l *locking) (lock.Hold, error) {
	if l.tries() {
		return o.TryLock(ctx)
	}
	return o.Lock(ctx)
}

// refused reports whether err of take says that somebody else has the lock. Where a majority
// of the servers said nothing about it, nobody knows.
func (o *opened) refused(err error) bool {
	if len(o.voters) == 1 {
		return busy(err)
	}
	failed := 0
	for _, v := range o.voters {
		if v.silent() {
			failed++
		}
	}
	return errors.Is(err, lock.ErrNotAcquired) && failed <= len(o.voters)/2
}

// voter is the lock on one server. It remembers whether the server failed to say who has
// the lock; one that could not be reached at the start has no vote.
type voter struct {
	lock.Witness // nil if absent
	name         string
	absent       error
	within       time.Duration // what an attempt waits for the vote

	mu     sync.Mutex
	failed bool      // to answer the last question
	asked  time.Time // when, of a question under way; else zero
}

// silent reports whether the server did not say who has the lock. That one answer was not
// waited for, as others had decided, does not count.
func (v *voter) silent() bool {
	if v.absent != nil {
		return true
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.failed || v.overdueLocked()
}

// overdueLocked reports whether an answer is missing for a long time.
func (v *voter) overdueLocked() bool {
	return !v.asked.IsZero() && time.Since(v.asked) > v.within/2
}

// Name returns the name of the lock.
func (v *voter) Name() string { return v.name }

// Lock is that of the lock.
func (v *voter) Lock(ctx context.Context) (lock.Hold, error) {
	if v.absent != nil {
		return nil, v.absent
	}
	return v.Witness.Lock(ctx)
}

// TryLock is that of the lock.
func (v *voter) TryLock(ctx context.Context) (lock.Hold, error) {
	if v.absent != nil {
		return nil, v.absent
	}
	v.mu.Lock()
	v.asked = time.Now()
	v.mu.Unlock()
	h, err := v.Witness.TryLock(ctx)
	v.mu.Lock()
	defer v.mu.Unlock()
	if ctx.Err() == nil {
		v.failed = err != nil && !busy(err)
	} else {
		v.failed = v.overdueLocked()
	}
	v.asked = time.Time{}
	return h, err
}

// Server is that of the lock.
func (v *voter) Server(ctx context.Context) (lock.Server, error) {
	if v.absent != nil {
		return lock.Server{}, v.absent
	}
	return v.Witness.Server(ctx)
}

// label is what operators see of the command: its name. Its arguments may have secrets in them.
func (r *runner) label() string {
	name := strings.Map(func(c rune) rune {
		if unicode.IsControl(c) {
			return '?'
		}
		return c
	}, strings.ToValidUTF8(filepath.Base(r.argv[0]), "?"))
	return strings.ToValidUTF8(name[:min(len(name), 128)], "")
}

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
	"github.com/leasehold-go/leasehold/lock/lockimpl"
	"github.com/leasehold-go/leasehold/multilock"
	"github.com/leasehold-go/leasehold/semaphore"
	"github.com/redis/rueidis"
)

// locking has the flags of run that select the lock and how to take it.
type locking struct {
	shared, exclusive, fair, quorum bool

	counts      bool // the --permits flag was given
	permits     int
	waits       bool // the --wait flag was given
	wait        time.Duration
	noWait      bool
	lease       time.Duration
	noRenew     bool
	fencing     bool
	durable     bool
	voteTimeout time.Duration
}

// leastLease is the least timeout that a client accepts for its watchdog.
const leastLease = 10 * lock.MinLease

// check returns an error if the flags do not fit each other or the number of servers.
func (l *locking) check(servers int) error {
	switch {
	case l.waits && l.noWait:
		return usagef("--wait and --no-wait exclude each other")
	case l.shared && l.exclusive, l.shared && l.fair, l.exclusive && l.fair:
		return usagef("--shared, --exclusive and --fair exclude each other")
	case l.counts && (l.shared || l.exclusive || l.fair || l.quorum || l.fencing):
		return usagef("--permits goes with none of --shared, --exclusive, --fair, --quorum and --fencing")
	case l.counts && (l.permits < 1 || l.permits > semaphore.MaxPermits):
		return usagef("--permits %d: it must be from 1 to %d", l.permits, semaphore.MaxPermits)
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
		return usagef("--durable-servers goes with --quorum")
	case l.voteTimeout <= 0:
		return usagef("--server-timeout %v: it must be more than 0", l.voteTimeout)
	}
	return nil
}

// tries reports whether run asks for the lock only once.
func (l *locking) tries() bool { return l.noWait || l.waits && l.wait == 0 }

// lockOf returns the lock called name on c.
func (l *locking) lockOf(c *client.Client, name string) lockimpl.Witness {
	var opts []lock.Option
	if l.noRenew {
		opts = append(opts, lock.WithFixedLease(l.lease))
	}
	if l.wait > 0 {
		opts = append(opts, lock.WithWait(l.wait))
	}
	if l.fencing {
		opts = append(opts, lock.WithFencing())
	}
	switch {
	case l.shared:
		return c.NewRWLock(name, opts...).Read().(lockimpl.Witness)
	case l.exclusive:
		return c.NewRWLock(name, opts...).Write().(lockimpl.Witness)
	case l.fair:
		return c.NewFairLock(name, opts...)
	case l.counts:
		return c.NewSemaphore(name, l.permits, opts...)
	}
	return c.NewLock(name, opts...)
}

// quorumOf returns the quorum lock made of locks.
func (l *locking) quorumOf(locks []lock.Locker) lock.Locker {
	opts := []multilock.Option{
		multilock.WithMaxLease(max(l.lease, multilock.DefaultMaxLease)),
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

// opened is a lock with its connections.
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
	return &voter{Witness: r.lockOf(c, r.name), name: r.name}
}

// observer returns an observer that says, once, that run waits.
func (r *runner) observer() lock.Observer {
	return lock.Observer{Waiting: func(context.Context, lock.Event) {
		r.waiting.Do(func() { r.happens("another owner has %q: waiting", r.name) })
	}}
}

// closeClient closes c and then its connection. Closing c takes back what an ended call has
// left in Redis. A server that does not answer keeps the connection open, and the end of the
// process does not wait for it.
func (r *runner) closeClient(ctx context.Context, c *client.Client, rdb rueidis.Client) {
	if err := c.Close(ctx); err != nil {
		r.happens("%v; what is left in Redis is gone when the lease of %v ends", err, r.lease)
		return
	}
	rdb.Close()
}

// close closes the clients, and waits for that until the end of ctx at the most.
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

// voter is the lock on one server. A server that could not be reached at the start has no vote.
type voter struct {
	lockimpl.Witness // nil if the server could not be reached at the start
	name             string
	absent           error
}

// Name returns the name of the lock.
func (v *voter) Name() string { return v.name }

// Lock calls Lock of the lock.
func (v *voter) Lock(ctx context.Context) (lock.Hold, error) {
	if v.absent != nil {
		return nil, v.absent
	}
	return v.Witness.Lock(ctx)
}

// TryLock calls TryLock of the lock.
func (v *voter) TryLock(ctx context.Context) (lock.Hold, error) {
	if v.absent != nil {
		return nil, v.absent
	}
	return v.Witness.TryLock(ctx)
}

// Server calls Server of the lock.
func (v *voter) Server(ctx context.Context) (lockimpl.Server, error) {
	if v.absent != nil {
		return lockimpl.Server{}, v.absent
	}
	return v.Witness.Server(ctx)
}

// label returns the name of the command, which operators see. It leaves out the arguments, which may have
// secrets in them.
func (r *runner) label() string {
	name := strings.Map(func(c rune) rune {
		if unicode.IsControl(c) {
			return '?'
		}
		return c
	}, strings.ToValidUTF8(filepath.Base(r.argv[0]), "?"))
	return "runs " + strings.ToValidUTF8(name[:min(len(name), 128)], "")
}

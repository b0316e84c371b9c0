package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
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

// locking has the flags of run that select the lock and how to acquire it.
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
	maxHold     time.Duration
	reenters    bool // the --reenter flag was given
}

// leastLease is the minimum watchdog timeout of a client.
const leastLease = 10 * lock.MinLease

// check returns an error if the flags conflict with each other or with the number of servers.
func (l *locking) check(servers int) error {
	switch {
	case l.waits && l.noWait:
		return usagef("--wait and --no-wait exclude each other: use one of them")
	case l.shared && l.exclusive, l.shared && l.fair, l.exclusive && l.fair:
		return usagef("--shared, --exclusive and --fair exclude each other: use one of them")
	case l.counts && (l.shared || l.exclusive || l.fair || l.quorum || l.fencing):
		return usagef("--permits cannot be combined with --shared, --exclusive, --fair, --quorum or --fencing")
	case l.counts && (l.permits < 1 || l.permits > semaphore.MaxPermits):
		return usagef("--permits %d: must be at least 1 and at most %d", l.permits, semaphore.MaxPermits)
	case l.fair && l.quorum:
		return usagef("--fair and --quorum exclude each other: a quorum has no queue")
	case l.wait < 0:
		return usagef("--wait %v: must not be negative", l.wait)
	case l.lease < leastLease:
		return usagef("--lease %v: must be at least %v", l.lease, leastLease)
	case servers > 1 && !l.quorum:
		return usagef("%d URLs: a lock on several servers requires --quorum", servers)
	case l.quorum && (servers < 3 || servers%2 == 0):
		return usagef("--quorum with %s: want an odd number, at least 3", plural(int64(servers), "URL"))
	case !l.quorum && l.durable:
		return usagef("--durable-servers requires --quorum")
	case l.maxHold != 0 && l.maxHold < lock.MinLease:
		return usagef("--max-hold %v: must be at least %v", l.maxHold, lock.MinLease)
	case l.voteTimeout <= 0:
		return usagef("--server-timeout %v: must be positive", l.voteTimeout)
	}
	return nil
}

// tries reports whether run makes only one attempt to acquire the lock.
func (l *locking) tries() bool { return l.noWait || l.waits && l.wait == 0 }

// lockOptions returns the options of a lock, for a call of Lock that waits until deadline.
func (l *locking) lockOptions(deadline time.Time) (opts []lock.Option) {
	if l.noRenew {
		opts = append(opts, lock.WithFixedLease(l.lease))
	}
	if l.wait > 0 {
		opts = append(opts, lock.WithWait(untilThen(deadline)))
	}
	if l.fencing {
		opts = append(opts, lock.WithFencing())
	}
	return opts
}

// lockOf returns the lock called name on c, for a call of Lock that waits until deadline, and its inspector.
func (l *locking) lockOf(c *client.Client, name string, deadline time.Time) (lockimpl.Witness, inspector) {
	opts := l.lockOptions(deadline)
	switch {
	case l.shared, l.exclusive:
		both := c.NewRWLock(name, opts...)
		side := both.Write()
		if l.shared {
			side = both.Read()
		}
		return side.(lockimpl.Witness), inspectorOf(both)
	case l.fair:
		fair := c.NewFairLock(name, opts...)
		return fair, inspectorOf(fair)
	case l.counts:
		s := c.NewSemaphore(name, l.permits, opts...)
		return s, func(ctx context.Context) (situation, error) {
			found, err := s.Inspect(ctx)
			state := lock.State{Name: name, Lease: lock.NoExpiry}
			for _, h := range found.Holders {
				state.Holders = append(state.Holders, lock.Holder{Owner: h.Owner, Count: h.Permits, Mode: lock.Permit, Since: h.Since, Client: h.Client})
			}
			return situation{state, found.Free}, err
		}
	}
	plain := c.NewLock(name, opts...)
	return plain, inspectorOf(plain)
}

// untilThen returns the time until t, but at least the minimum wait.
func untilThen(t time.Time) time.Duration { return max(time.Until(t), time.Millisecond) }

// inspector reads the state of a lock.
type inspector func(ctx context.Context) (situation, error)

func inspectorOf(l interface {
	Inspect(ctx context.Context) (lock.State, error)
}) inspector {
	return func(ctx context.Context) (situation, error) {
		s, err := l.Inspect(ctx)
		return situation{State: s}, err
	}
}

// quorumOf returns the quorum lock of these locks, for a call of Lock that waits until deadline.
func (l *locking) quorumOf(locks []lock.Locker, deadline time.Time) lock.Locker {
	opts := []multilock.Option{
		multilock.WithMaxLease(max(l.lease, multilock.DefaultMaxLease)),
		multilock.WithServerTimeout(l.voteTimeout),
	}
	if l.wait > 0 {
		opts = append(opts, multilock.WithWait(untilThen(deadline)))
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

const (
	firstPause = 100 * time.Millisecond // between two attempts to connect
	mostPause  = time.Second
)

// open connects to the servers at addresses, and returns the lock on them. A majority of the servers is enough. With --wait, it retries until
// deadline, because a server may be starting.
func (w *wait) open(ctx context.Context, addresses []string, deadline time.Time) (*opened, error) {
	o := &opened{voters: make([]*voter, len(addresses))}
	dialing := ctx
	if w.wait > 0 {
		var cancel context.CancelFunc
		dialing, cancel = context.WithDeadline(ctx, deadline)
		defer cancel()
	}
	var errs []error
	for pause := firstPause; ; pause = min(2*pause, mostPause) {
		w.connect(dialing, addresses, deadline, o)
		var final int // number of errors that a retry cannot fix
		errs, final = o.absent()
		if len(errs) <= len(addresses)/2 {
			break
		}
		if w.wait == 0 || dialing.Err() != nil || final > len(addresses)/2 {
			closing, cancel := w.closing(context.WithoutCancel(ctx))
			defer cancel()
			o.close(closing)
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return nil, errors.Join(errs...)
		}
		w.reached(nil, errors.Join(errs...))
		select {
		case <-time.After(pause):
		case <-dialing.Done():
		}
	}
	config, _ := lockimpl.NewConfig("a lock", lockimpl.All, w.lockOptions(deadline)...) // the locks report invalid options
	var locks []lock.Locker
	for _, v := range o.voters {
		v.config = config
		locks = append(locks, v)
	}
	for _, err := range errs {
		w.trouble("%v; continuing without this server", err)
	}
	o.Locker = locks[0]
	if w.quorum {
		o.Locker = w.quorumOf(locks, deadline)
	}
	w.reached(o, nil)
	return o, nil
}

// connect makes one attempt for each server without a connection.
func (w *wait) connect(ctx context.Context, addresses []string, deadline time.Time, o *opened) {
	var connecting sync.WaitGroup
	for i, address := range addresses {
		if v := o.voters[i]; v != nil && v.absent == nil {
			continue
		}
		connecting.Go(func() {
			v := w.openVoter(ctx, address, deadline, o)
			if o.voters[i] == nil || v.absent == nil || ctx.Err() == nil { // the previous error says more than that of an attempt that was cut short
				o.voters[i] = v
			}
		})
	}
	connecting.Wait()
}

// absent returns the errors of the servers without a connection, and the number of errors that a retry cannot fix.
func (o *opened) absent() (errs []error, final int) {
	for _, v := range o.voters {
		if v.absent == nil {
			continue
		}
		errs = append(errs, v.absent)
		if !errors.Is(v.absent, lock.ErrUnavailable) {
			final++
		}
	}
	return errs, final
}

func (w *wait) openVoter(ctx context.Context, address string, deadline time.Time, o *opened) *voter {
	rdb, err := w.dial(ctx, address)
	if err != nil {
		return &voter{name: w.name, absent: err}
	}
	c, err := client.New(rdb, client.WithName("leasehold run"), client.WithLabel(w.label()), client.WithWatchdogTimeout(w.lease), client.WithLogger(w.logger()), client.WithObserver(w.observer()))
	if err != nil {
		rdb.Close()
		return &voter{name: w.name, absent: fmt.Errorf("%s: %w", redacted(address), err)}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closers = append(o.closers, func(ctx context.Context) { w.closeClient(ctx, c, rdb) })
	l, inspect := w.lockOf(c, w.name, deadline)
	others := func(ctx context.Context) (situation, error) {
		s, err := inspect(ctx)
		s.Holders = slices.DeleteFunc(s.Holders, func(h lock.Holder) bool { return clientOf(h.Owner) == c.ID() }) // a vote without a majority
		return s, err
	}
	return &voter{Witness: l, inspect: others, name: w.name, client: c.ID()}
}

// observer returns an observer that is called when the wait for another owner begins.
func (w *wait) observer() lock.Observer {
	return lock.Observer{Waiting: func(context.Context, lock.Event) { w.begins() }}
}

// closeClient closes c and then its connection. Closing c removes what a canceled call has
// left in Redis. If the server does not respond, the connection stays open until the process
// ends, because the end must not wait for the server.
func (r *runner) closeClient(ctx context.Context, c *client.Client, rdb rueidis.Client) {
	if err := c.Close(ctx); err != nil {
		r.happens("%v; keys left in Redis expire within %v", err, r.lease)
		return
	}
	rdb.Close()
}

// close closes the clients, and waits for them at most until ctx is canceled.
func (o *opened) close(ctx context.Context) {
	var closing sync.WaitGroup
	for _, closeClient := range o.closers {
		closing.Go(func() { closeClient(ctx) })
	}
	closing.Wait()
}

// voter is the lock on one server. A server that could not be reached at the start has no vote.
type voter struct {
	lockimpl.Witness // nil if the server could not be reached at the start
	inspect          inspector
	name             string
	client           string // its UUID
	absent           error
	config           lockimpl.Config // set by open
}

// Config returns the options of the lock, even of a server that could not be reached: a quorum compares them.
func (v *voter) Config() lockimpl.Config { return v.config }

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

// label returns the name of the command for operators. It omits the arguments, which may contain
// secrets.
func (r *runner) label() string {
	name := strings.Map(func(c rune) rune {
		if unicode.IsControl(c) {
			return '?'
		}
		return c
	}, strings.ToValidUTF8(filepath.Base(r.argv[0]), "?"))
	return "runs " + strings.ToValidUTF8(name[:min(len(name), 128)], "")
}

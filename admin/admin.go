// Package admin lists, inspects and force-unlocks locks, for operators and their tools. It
// recognizes locks of every type, including those of Redisson, by the shape of their fields, and
// leaves every other key unchanged. It also shows the state of rate limiters, Bloom filters and
// elections.
//
//	a, err := admin.New(rdb)
//	…
//	for l, err := range a.Locks(ctx, admin.Query{Match: "orders:*"}) {
//		if err != nil {
//			return err
//		}
//		fmt.Println(l.Name, l.Kind, l.Lease, l.Holders)
//	}
//
// The name of a lock in this package is its key, which includes the key prefix of its clients
// (client.WithKeyPrefix). Applications do not need this package, because a lock has its own Inspect
// and ForceUnlock.
//
// Errors match the same values as those of locks, such as lock.ErrUnavailable if no usable reply came
// within [WithOpTimeout].
//
// The Redis user needs the permissions of the types of locks in use, and those under "admin" in
// docs/operate/security.md.
package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
	"unicode"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/pubsub"
	"github.com/leasehold-go/leasehold/internal/registry"
	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/leader"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// DefaultOpTimeout is the default of [WithOpTimeout].
const DefaultOpTimeout = 5 * time.Second

// An Admin reads locks from outside. It holds no lock and opens no connection other than those of
// its client. It is safe for concurrent use.
type Admin struct {
	rdb     rueidis.Client // set once
	timeout time.Duration  // set once
	who     string         // set once

	progress func(scanned float64) // set once; may be nil

	mu      sync.Mutex
	publish string    // PUBLISH or SPUBLISH; empty until publishes has detected it
	absent  []absence // the primaries that did not respond
}

// Option configures an Admin.
type Option interface{ apply(*Admin) error }

type option func(*Admin) error

func (o option) apply(a *Admin) error { return o(a) }

// WithOpTimeout sets how long a command to Redis may take. The default is [DefaultOpTimeout]. It
// must be at least 1 ms.
func WithOpTimeout(d time.Duration) Option {
	return option(func(a *Admin) error {
		if d < time.Millisecond {
			return fmt.Errorf("WithOpTimeout(%v): must be at least %v", d, time.Millisecond)
		}
		a.timeout = d
		return nil
	})
}

// WithOperator sets the name of the operator, which ForceUnlock sends to the holder and stores in
// the audit record. The default is the user of the program and the machine, such as "alice@host-7".
// The name must be one line of at most 256 bytes.
func WithOperator(who string) Option {
	return option(func(a *Admin) error {
		if err := legible(who); err != nil || who == "" {
			return fmt.Errorf("WithOperator(%.300q): must be a single line of up to %d bytes", who, registry.MostText)
		}
		a.who = who
		return nil
	})
}

// WithProgress sets a function that Locks calls after each part of a list. Its argument is the
// share of the keys that have been scanned, from 0 to 1. Use it to show the progress of a list on a
// server with many keys.
func WithProgress(progress func(scanned float64)) Option {
	return option(func(a *Admin) error {
		a.progress = progress
		return nil
	})
}

// legible returns an error unless text is a single line of at most registry.MostText bytes.
func legible(text string) error {
	if len(text) > registry.MostText {
		return fmt.Errorf("%d bytes: must be at most %d", len(text), registry.MostText)
	}
	for _, c := range text {
		if unicode.IsControl(c) || c == unicode.ReplacementChar {
			return errors.New("must be a single line of text")
		}
	}
	return nil
}

// New returns an Admin that uses rdb, a rueidis client of any kind, and never closes it. New sends
// no command.
func New(rdb rueidis.Client, opts ...Option) (*Admin, error) {
	if rdb == nil {
		return nil, &lock.Error{Op: "new admin", Err: errors.New("the rueidis client is nil")}
	}
	a := &Admin{rdb: rdb, timeout: DefaultOpTimeout, who: operator()}
	for i, o := range opts {
		err := fmt.Errorf("option %d of %d is nil", i+1, len(opts))
		if o != nil {
			err = o.apply(a)
		}
		if err != nil {
			return nil, &lock.Error{Op: "new admin", Err: err}
		}
	}
	return a, nil
}

// Kind is the type of a lock or of a synchronizer.
type Kind string

// The types of locks and synchronizers. A fair lock that Redisson holds looks like a plain lock in
// Redis while it has no waiters, and is listed as one.
const (
	Plain     Kind = "plain"
	Fair      Kind = "fair"
	ReadWrite Kind = "rw"
	Semaphore Kind = "semaphore" // recognized only while a permit is held or an owner waits: its key is a plain number
	Latch     Kind = "latch"     // recognized only until it is released, and only if package latch has used it: its key is a plain number
	WaitGroup Kind = "waitgroup" // listed while it has live or lost workers; the live ones are its Holders

	RateLimit         Kind = "ratelimit"          // used quota of one key of a rate limiter; its name is <limiter>:<key>
	RedissonRateLimit Kind = "redisson-ratelimit" // a Redisson-compatible rate limiter
	Bloom             Kind = "bloom"              // a Bloom filter, which may be split (bloom.Sharded)

	// Election is only for a Query. It selects the locks whose holder has published a leader value
	// (package leader). The Kind of such a Lock is the type of its lock, which is Fair for
	// client.Client.NewElection.
	Election Kind = "election"
)

// Lock is the state of a lock in Redis, or of a latch, a wait group, a rate limiter or a Bloom
// filter.
type Lock struct {
	lock.State
	Kind    Kind // "" if the lock has neither holders nor waiters
	Holding int  // number of owners that hold it; a list may have only some of them in Holders
	Waiting int  // number of waiters that Redis stores: see lock.Waiter and IsFull

	// Gone is the number of waiters of a plain lock whose clients have no entry in Redis (see
	// IsGone).
	Gone int

	leases  map[side]time.Duration // of the holders that have their own lease: see HolderLease
	line    []string               // clients in the queue of a plain lock; set only in a list
	nowhere map[string]bool        // clients of leasehold that have no entry in Redis

	// HighestToken is the fencing token counter, or 0 if there is none. The next token will be
	// larger. Only Inspect sets it.
	HighestToken uint64

	// Token is the fencing token with which the holder acquired the lock, if the lock uses
	// [lock.WithFencing]. It is 0 if no owner holds the lock, or without a counter. The token of
	// the holder is larger if the lock was handed off within its process, or is part of a quorum.
	// It is not larger than HighestToken. Only Inspect sets it.
	Token uint64

	// For a semaphore: the total number of permits, and the number of free ones. After a Resize the
	// number of free permits can be negative, if more are held than there are.
	Permits, Free int64

	Left int64         // count of a latch; 0 if it is released
	Done int           // number of workers of a wait group that are done
	Lost []lock.Holder // lost workers of a wait group; a list has only some

	// Leader is what the leader has published (package leader), or nil. After a leader has lost its
	// lock, its last value stays for at most Left. Only Inspect sets Left.
	Leader *leader.Leader

	Limit         *LimitState         // for the Kind RateLimit
	RedissonLimit *RedissonLimitState // for the Kind RedissonRateLimit
	Filter        *FilterState        // for the Kind Bloom

	// Ambiguous is the reason why a semaphore without holders, a rate limiter or a filter may be
	// something else. It is "" if there is no reason to doubt.
	Ambiguous string

	// ForceUnlock is the audit record of the latest force-unlock in the last week, or nil. Only
	// Inspect sets it.
	ForceUnlock *ForceUnlockRecord
}

// side is how an owner holds a lock.
type side struct {
	owner string
	mode  lock.Mode
}

// lease records the remaining time of h's own lease. A Redisson reader has one lease for each hold, and the longest counts.
func (l *Lock) lease(h lock.Holder, left time.Duration) {
	if l.leases == nil {
		l.leases = make(map[side]time.Duration)
	}
	id := side{h.Owner, h.Mode}
	if uint64(left) >= uint64(l.leases[id]) { // NoExpiry, which is negative, is the longest
		l.leases[id] = left
	}
}

// UnknownLease is the remaining lease time of a holder whose lease was not read.
const UnknownLease time.Duration = -2

// HolderLease returns the remaining lease time of h, a holder of l. The holders of a semaphore, the
// workers of a wait group and the readers of a read/write lock each have their own lease, and Lease
// is the longest of them. HolderLease returns lock.NoExpiry if the lease does not expire. It returns
// [UnknownLease] for a reader whose lease was not read: the user lacks permission, a list has only
// some of the readers, or it has a writer that also reads.
func (l *Lock) HolderLease(h lock.Holder) time.Duration {
	if left, own := l.leases[side{h.Owner, h.Mode}]; own {
		return left
	}
	if h.Mode == lock.Read {
		return UnknownLease
	}
	return l.Lease
}

// within returns the context for one command or pipeline.
func (a *Admin) within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, a.timeout, command.NoReply{After: a.timeout})
}

// failed returns the error that the caller receives when an operation with the context ctx has failed with err.
func (a *Admin) failed(ctx context.Context, op, name string, err error) error {
	return &lock.Error{Op: op, Name: name, Err: a.explain(ctx, err)}
}

// explain returns what err means to the caller, whose context is ctx.
func (a *Admin) explain(ctx context.Context, err error) error {
	if errors.As(err, new(command.Canceled)) || errors.Is(err, lock.ErrUnavailable) {
		return err // it was explained before
	}
	late := errors.Is(err, context.DeadlineExceeded) || errors.As(err, new(command.NoReply))
	if command.Settle(ctx); ctx.Err() != nil && (late || errors.Is(err, ctx.Err())) { // even if rueidis reports only the deadline that within set
		return command.Ended(ctx, 0)
	}
	if late {
		err = command.NoReply{After: a.timeout}
	}
	err = command.DetectClosed(ctx, a.rdb, err)
	if late || errors.Is(err, io.EOF) || errors.As(err, new(net.Error)) || errors.As(err, new(retry.Closed)) || errors.As(err, new(*rueidis.RedisError)) {
		err = command.New(a.rdb, command.Config{}).Explain(err) // all other errors are those of this package
	}
	return luascripts.Discreet(err)
}

// publishes returns the command that publishes notifications, which is the one that clients use.
func (a *Admin) publishes(ctx context.Context) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.publish == "" {
		sharded, err := pubsub.Sharded(ctx, a.rdb, a.timeout)
		if err != nil {
			return "", err
		}
		a.publish = "PUBLISH"
		if sharded {
			a.publish = "SPUBLISH"
		}
	}
	return a.publish, nil
}

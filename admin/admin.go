// Package admin serves operators and their tools. It lists the locks of a server or a
// cluster, shows the holders and the waiters of each, and unlocks a lock by force. It
// recognises locks of every kind, those of Redisson included, by the shape of their fields. It
// leaves every other key alone. It shows how rate limiters, Bloom filters and elections stand, too.
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
// The name of a lock here is its key, so it includes the prefix of the clients that use it
// (client.WithKeyPrefix). Applications need none of this: a lock has Inspect and ForceUnlock of its own.
//
// The Redis user needs the rights of the kinds of locks in use, and those under "admin" in docs/operate/security.md.
package admin

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
	"unicode"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/hint"
	"github.com/leasehold-go/leasehold/internal/registry"
	"github.com/leasehold-go/leasehold/leader"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// DefaultOpTimeout is the time that one question to Redis may stay unanswered, unless
// WithOpTimeout sets another.
const DefaultOpTimeout = 5 * time.Second

// An Admin looks at locks from outside. It holds no lock and opens no connection beside those of
// its client. It is safe for concurrent use.
type Admin struct {
	rdb     rueidis.Client // set once
	timeout time.Duration  // set once
	who     string         // set once

	mu      sync.Mutex
	publish string    // PUBLISH or SPUBLISH; empty until publishes has asked the server
	absent  []absence // the primaries that did not respond
}

// Option configures an Admin.
type Option interface{ apply(*Admin) error }

type option func(*Admin) error

func (o option) apply(a *Admin) error { return o(a) }

// WithOpTimeout sets the time that one question to Redis may stay unanswered. The default is
// DefaultOpTimeout, and the least is a millisecond.
func WithOpTimeout(d time.Duration) Option {
	return option(func(a *Admin) error {
		if d < time.Millisecond {
			return fmt.Errorf("WithOpTimeout(%v): must be at least %v", d, time.Millisecond)
		}
		a.timeout = d
		return nil
	})
}

// WithOperator names the operator. Unlock tells the name to the holder, and notes it for a week.
// The default is the user of the program and the machine, such as "alice@host-7". The name has
// at most 256 bytes, on one line.
func WithOperator(who string) Option {
	return option(func(a *Admin) error {
		if err := legible(who); err != nil || who == "" {
			return fmt.Errorf("WithOperator(%.300q): must be a single line of up to %d bytes", who, registry.MostText)
		}
		a.who = who
		return nil
	})
}

// legible returns an error if a text is not fit for people to read.
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

// New returns an Admin on rdb, a rueidis client of any kind, which the Admin never closes. New does no I/O.
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

// Kind is a kind of lock, or of what is like a lock.
type Kind string

// The kinds. A fair lock that Redisson holds and nobody waits for looks like a plain one in Redis, and is
// shown as one.
const (
	Plain     Kind = "plain"
	Fair      Kind = "fair"
	ReadWrite Kind = "rw"
	Semaphore Kind = "semaphore" // while a permit is held, or an owner waits; else it is a number like any other
	Latch     Kind = "latch"     // while it is closed, and package latch has seen it; else it is a number like any other
	WaitGroup Kind = "waitgroup" // while members are at work, or lost; they are its Holders

	RateLimit         Kind = "ratelimit"          // what a rate limiter owes of one key, while it owes something; its name is <limiter>:<key>
	RedissonRateLimit Kind = "redisson-ratelimit" // a rate limiter in Redisson's layout
	Bloom             Kind = "bloom"              // a Bloom filter, also one that is made of several

	// Election is the Kind of a Query alone. It selects the locks whose holder says something as a leader (package leader). The
	// Kind of such a Lock is that of its lock, which is a fair one for client.Client.NewElection.
	Election Kind = "election"
)

// Lock is a lock as it stands in Redis, or a latch, a wait group, a rate limiter or a Bloom filter.
type Lock struct {
	lock.State
	Kind    Kind // empty if the lock has neither holders nor waiters
	Holding int  // the number of owners that hold it; Holders has fewer where a list shows only some
	Waiting int  // the number of waiters that Redis knows of: see lock.Waiter

	// Gone is the number of waiters of a plain lock whose clients have no entry in Redis: see IsGone.
	Gone int

	line    []string        // the clients that wait for a plain lock, of a lock in a list
	nowhere map[string]bool // those of its clients that have no entry

	// HighestToken is the register of fencing tokens, 0 if there is none: the next token will be larger. Only Inspect sets it.
	HighestToken uint64

	// Token is the fencing token with which the holder acquired the lock, provided that it uses [lock.WithFencing]; 0 if no owner holds the lock, or
	// without a register. If the process of the holder handed the lock off to another of its goroutines, or the lock is part of a quorum, the holder's token is larger, but
	// not larger than HighestToken. Only Inspect sets it.
	Token uint64

	// Of a semaphore: how many permits there are in all, and how many are free; fewer than none if
	// there are more holders than permits, after a Resize.
	Permits, Free int64

	Left int64         // the count of a latch; 0 if it is open
	Done int           // the number of workers of a wait group that are done
	Lost []lock.Holder // the workers of a wait group that were lost; a list shows some

	// Leader is what stands there as the word of the leader (package leader), and is nil if nobody says anything. After a leader
	// has lost its lock, its last word stays for Left at most. Only Inspect sets Left.
	Leader *leader.Leader

	Limit         *LimitState         // of the Kind RateLimit
	RedissonLimit *RedissonLimitState // of the Kind RedissonRateLimit
	Filter        *FilterState        // of the Kind Bloom

	// Ambiguous says why a rate limiter or a filter may be something else, and is empty if nothing speaks for that.
	Ambiguous string

	// Forced tells how the lock was last unlocked by force in the last week, and is nil if it was not.
	// Only Inspect sets it.
	ForceUnlock *ForceUnlockRecord
}

// within returns the context of one question.
func (a *Admin) within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, a.timeout, fmt.Errorf("no reply from Redis for %v", a.timeout))
}

// failed returns the error of the caller for err, with which a question under ctx failed.
func (a *Admin) failed(ctx context.Context, op, name string, err error) error {
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, ctx.Err()) && !errors.Is(err, cause) {
		err = cause
	}
	err = luascripts.Discreet(err)
	if command.Refused(err) {
		err = command.Refusal("", "", err)
	}
	return &lock.Error{Op: op, Name: name, Err: err}
}

// publishes returns the command that sends messages: the same one that clients use.
func (a *Admin) publishes(ctx context.Context) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.publish == "" {
		sharded, err := hint.Sharded(ctx, a.rdb, a.timeout)
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

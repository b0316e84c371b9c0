// Package lockimpl defines the interfaces for authors of lock types. They let a type take part in
// multi-locks and quorums. The functions read options, and find the owner in a context. Code that
// only uses locks does not need it.
//
// A type that implements [lock.Locker] works with everything in this module. The other interfaces
// are optional:
//
//	Configured  lets a quorum check the leases and tokens of its locks
//	Witness     reports which server has the lock, and when that server started
//	Fenced      lets a quorum agree on one token
//	Batched     lets a multi-lock acquire several locks at once
//	Counted     reports that several owners can hold the lock at once
//
// Package locktest has conformance tests.
package lockimpl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/internal/option"
	"github.com/leasehold-go/leasehold/internal/owner"
	"github.com/leasehold-go/leasehold/lock"
)

// HoldKey is the key under which the context of a hold returns the hold itself, for
// [lock.HoldFromContext]. For a type whose holds do not, that function returns the hold of the work
// around it.
type HoldKey = owner.Hold

// Config is the result of a list of options.
type Config = option.Config

// Options is a set of options of package lock.
type Options = option.Set

// Options, each named after the function that creates it.
const (
	FixedLease       = option.FixedLease
	Wait             = option.Wait
	WaiterTimeout    = option.WaiterTimeout
	Fencing          = option.Fencing
	Replicas         = option.Replicas
	MaxHold          = option.MaxHold
	Grace            = option.Grace
	ReaderPreference = option.ReaderPreference
	MinHold          = option.MinHold
	Linger           = option.Linger
	AsyncUnlock      = option.AsyncUnlock

	// All is the set of all options.
	All = FixedLease | Wait | WaiterTimeout | Fencing | Replicas | MaxHold | Grace | ReaderPreference | MinHold | Linger | AsyncUnlock
)

// NewConfig applies opts in order. An option that is nil or has an invalid value is an error. An
// option that is not in known is an error that matches [errors.ErrUnsupported]. The argument kind
// names the type of lock in the error, for example "a fair lock".
func NewConfig(kind string, known Options, opts ...lock.Option) (Config, error) {
	c := Config{WaiterTimeout: lock.DefaultWaiterTimeout}
	var errs []error
	var given Options
	for i, o := range opts {
		if o == nil {
			errs = append(errs, fmt.Errorf("option %d of %d is nil", i+1, len(opts)))
			continue
		}
		s := o.Setting()
		given |= s.Which
		if known&s.Which == 0 {
			errs = append(errs, fmt.Errorf("%s: not supported by %s; remove the option: %w", s.Name, kind, errors.ErrUnsupported))
		}
		if err := s.Apply(&c); err != nil {
			errs = append(errs, err)
		}
	}
	if given&FixedLease != 0 && given&Grace != 0 {
		errs = append(errs, errors.New("WithGrace: a lease of WithFixedLease is never renewed; remove one of them"))
	}
	for other, name := range map[Options]string{FixedLease: "WithFixedLease", Replicas: "WithReplicas"} {
		if given&Linger != 0 && given&other != 0 {
			errs = append(errs, fmt.Errorf("WithLinger: a lock with %s does not linger; remove one of them", name))
		}
	}
	for name, d := range map[string]time.Duration{"WithFixedLease": c.Lease, "WithMaxHold": c.MaxHold} {
		if 0 < d && d < c.MinHold {
			errs = append(errs, fmt.Errorf("WithMinHold(%v): must be at most %s(%v)", c.MinHold, name, d))
		}
	}
	return c, errors.Join(errs...)
}

// OwnerFrom returns the number of the owner that ctx carries, and whether it carries one. Contexts
// of [lock.ContextWithNewOwner] and [lock.Hold] carry one.
func OwnerFrom(ctx context.Context) (number uint64, ok bool) {
	number, ok = ctx.Value(owner.Key{}).(uint64)
	return number, ok
}

// Configured is a [lock.Locker] that returns its options. All locks of this module implement it. A
// quorum checks whether the leases of its locks are fixed, and whether their tokens come from token
// counters.
type Configured interface {
	lock.Locker

	// Config returns the options.
	Config() Config
}

// Fenced is a [lock.Hold] with a token from a token counter. The holder can raise the counter. All
// holds of this module implement it. A quorum uses it to agree on one token with all its servers.
type Fenced interface {
	lock.Hold

	// RaiseToken makes the tokens of all later holders of the name larger than token. The token of the
	// hold does not change. RaiseToken fails with [lock.ErrLost] if the server no longer has the lock
	// for this owner. It fails with [errors.ErrUnsupported] if the lock was created without
	// [lock.WithFencing].
	RaiseToken(ctx context.Context, token uint64) error

	// Raised returns the largest token that was passed to RaiseToken, by this hold or another hold of
	// its owner, since the owner acquired the lock. It is 0 if RaiseToken was not called.
	Raised() uint64
}

// Batched is a [lock.Locker] that shares batches with other locks. Commands of these locks travel
// in one batch if they are sent at the same time. The multi-lock tries to acquire locks of one
// batch together, and others one by one.
type Batched interface {
	lock.Locker

	// Batch returns a comparable value that is equal for all locks that share batches.
	Batch() any

	// Ahead returns the error that TryLock returns, without sending a command, if another call of this
	// process waits for the lock. Otherwise it returns nil. An owner that holds the lock can call TryLock
	// anyway, which re-enters it.
	Ahead() error
}

// Server describes the server that has a lock.
type Server struct {
	ID      string    // new after each start of the server; equal for two locks of one server
	Since   time.Time // the server has been running without a restart at least since then
	Primary bool      // the server accepts writes, and is not a replica
}

// Witness is a [lock.Locker] that reports its server. All locks of this module implement it. A
// quorum checks the server before it counts its vote. A server that restarted without its data may
// have lost a lock that it granted.
type Witness interface {
	lock.Locker

	// Server returns the server that has the lock. Since is by its wall clock, rounded toward now to a
	// second.
	Server(ctx context.Context) (Server, error)
}

// Counted is a [lock.Locker] that acquires permits of a semaphore, so that several owners hold it
// at once. A multi-lock acquires no semaphore twice, and a quorum none with more than one permit.
type Counted interface {
	lock.Locker

	// Semaphore returns an identifier and the total number of permits, or 0 if the handle has none.
	// The identifier is equal for all handles of one semaphore of a client.
	Semaphore() (of any, permits int)
}

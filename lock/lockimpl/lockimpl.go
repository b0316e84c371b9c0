// Package lockimpl is for authors of locks: what a kind of lock needs to read options, to find
// the owner in a context, and to take part in multi-locks and quorums. Code that only uses locks
// needs package lock, and nothing of this.
//
// A kind that implements [lock.Locker] works with everything of this module. The other interfaces
// are optional:
//
//	Configured  a quorum checks the leases and the tokens of its locks
//	Witness     a quorum asks which server has the lock, and since when it is up
//	Fenced      a quorum agrees on one token
//	Grouper     a multi-lock takes several locks at once
//
// Package locktest has the rules that a lock must keep.
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

// Config is what a list of options says.
type Config = option.Config

// Options is a set of options, by the functions of package lock that make them.
type Options = option.Set

// The options.
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

	// All is every option that there is.
	All = FixedLease | Wait | WaiterTimeout | Fencing | Replicas | MaxHold | Grace | ReaderPreference | MinHold
)

// NewConfig applies opts in order. An option that is nil, that is not in known or that has a
// value that makes no sense, is an error; for one that is not in known the error matches
// [errors.ErrUnsupported]. kind is what the error calls the lock: "a fair lock".
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
			errs = append(errs, fmt.Errorf("%s: %w: %s does not know this option; leave it away", s.Name, errors.ErrUnsupported, kind))
		}
		if err := s.Apply(&c); err != nil {
			errs = append(errs, err)
		}
	}
	if given&FixedLease != 0 && given&Grace != 0 {
		errs = append(errs, errors.New("WithGrace: a lease of WithFixedLease is never renewed; leave one of them away"))
	}
	for name, d := range map[string]time.Duration{"WithFixedLease": c.Lease, "WithMaxHold": c.MaxHold} {
		if 0 < d && d < c.MinHold {
			errs = append(errs, fmt.Errorf("WithMinHold(%v): it must not be more than %s(%v)", c.MinHold, name, d))
		}
	}
	return c, errors.Join(errs...)
}

// OwnerFrom returns the number of the owner that ctx carries, and whether it carries one:
// [lock.ContextWithNewOwner] and [lock.Hold].Context put it there.
func OwnerFrom(ctx context.Context) (number uint64, ok bool) {
	number, ok = ctx.Value(owner.Key{}).(uint64)
	return number, ok
}

// Configured is a [lock.Locker] that tells its options. All kinds of this module are; a
// quorum checks whether the leases of its locks end by themselves, and whether their tokens
// come from registers.
type Configured interface {
	lock.Locker

	// Config returns what the options say.
	Config() Config
}

// Fenced is a [lock.Hold] whose token comes from a register that the holder can raise. All
// holds of this module are; a quorum uses it to agree on one token with all its servers.
type Fenced interface {
	lock.Hold

	// RaiseToken makes the tokens of all later holders of the name larger than token. The
	// hold's own token does not change. RaiseToken fails with [lock.ErrLost] if the server does not have the
	// lock as this owner's any longer, and with [errors.ErrUnsupported] if the lock was made
	// without [lock.WithFencing].
	RaiseToken(ctx context.Context, token uint64) error

	// Raised returns the largest token that RaiseToken was called with, by this hold or by another hold of its owner,
	// since the owner acquired the lock; 0 if it was not called.
	Raised() uint64
}

// Grouper is a [lock.Locker] that can be taken together with others of its kind at a lower cost
// than one by one. The multi-lock uses it.
type Grouper interface {
	lock.Locker

	// Group returns a way to take all of lockers at once, or nil if there is none. The
	// receiver is one of lockers.
	Group(lockers []lock.Locker) Group
}

// Group takes several locks at once, all or none: at no moment can another client see
// that it has some of them. On success it returns a hold for each lock.Locker, in order.
// Its errors are those of a lock.Locker, and name the lock that they are about. An error that
// matches [errors.ErrUnsupported] says that these locks must be taken one by one
// this time.
type Group interface {
	Lock(ctx context.Context) ([]lock.Hold, error)
	TryLock(ctx context.Context) ([]lock.Hold, error)
}

// Server is what is known of the server that has a lock.
type Server struct {
	ID      string    // a new one after each start of the server; equal for two locks of one server
	Since   time.Time // the server has been running without a restart since then, or longer
	Primary bool      // the server takes writes, and is no replica
}

// Witness is a [lock.Locker] that can tell which server has it. All kinds of this module
// are; a quorum asks for the server before it counts its vote, as a server that came
// back empty may have forgotten a lock that it granted.
type Witness interface {
	lock.Locker

	// Server asks the server that has the lock. Since is by its own wall clock,
	// and to the second, rounded towards now.
	Server(ctx context.Context) (Server, error)
}

// Counted is a [lock.Locker] that takes permits of a semaphore, so that several owners hold it at once. A
// multi-lock takes no semaphore twice, and a quorum takes none with more than one permit.
type Counted interface {
	lock.Locker

	// Semaphore returns a value that is equal for all handles of a client of one semaphore, and how many
	// permits there are in all; 0 if the handle does not say.
	Semaphore() (of any, permits int)
}

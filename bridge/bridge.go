// Package bridge makes it safe to move from another lock library to leasehold while old and new
// processes run together. Two libraries do not exclude each other, as each has keys of its own. A bridge
// takes both locks, the old one first.
//
//  1. All processes have the old lock.
//  2. Replace them by processes that use a bridge. They exclude those that are left, and each other.
//  3. When no old process is left, replace them by processes with leasehold's lock alone.
//
// Between two steps there must be no process of the step before the last: an old process and
// one with leasehold's lock alone do not see each other. To go back, take the steps in the other order.
//
// The names must differ, as redsync and redislock keep a string where leasehold keeps a hash. Give
// leasehold's lock a prefix, such as client.WithKeyPrefix("leasehold:").
package bridge

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

// Old is a lock of another library.
type Old interface {
	// Lock waits until the lock is held, or ctx ends. The context that it returns ends when the
	// lock is lost, as far as the library tells; unlock gives it back.
	Lock(ctx context.Context) (held context.Context, unlock func(context.Context) error, err error)
}

// ErrOldLost is the cause of the context when the old lock was lost.
var ErrOldLost = errors.New("the lock of the old library is lost")

// releaseTime is how long giving back the old lock may take when the caller's context is over.
const releaseTime = 3 * time.Second

// Do takes old and then l, calls fn, and gives both back, also when fn panics. The context given to fn is over as
// soon as one of them is not held any more. The order is the same for all callers, so they
// never wait for each other in a ring.
//
// The error is that of taking a lock when fn was not called, and otherwise those of fn and of
// giving back, joined.
func Do(ctx context.Context, old Old, l lock.Locker, fn func(ctx context.Context) error) (err error) {
	held, unlock, err := old.Lock(ctx)
	if err != nil {
		return fmt.Errorf("bridge: the old lock: %w", err)
	}
	defer func() {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
		defer cancel()
		if e := unlock(within); e != nil {
			err = errors.Join(err, fmt.Errorf("bridge: the old lock: %w", e))
		}
	}()
	return lock.Do(held, l, fn)
}

// keep extends a lock every third of its lease, until stop is called. Then the context is over. It is over before
// when extend fails for so long that the lease may have run out.
func keep(ctx context.Context, lease time.Duration, extend func(context.Context) error) (held context.Context, stop func()) {
	held, cancel := context.WithCancelCause(ctx)
	until := time.Now().Add(lease - lease/10)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(lease / 3)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-held.Done():
				return
			}
			sent := time.Now()
			within, end := context.WithDeadline(held, until)
			err := extend(within)
			end()
			switch {
			case held.Err() != nil:
				return
			case err == nil:
				until = sent.Add(lease - lease/10)
			case !time.Now().Before(until) || errors.Is(err, errGone):
				cancel(fmt.Errorf("%w: %w", ErrOldLost, err))
				return
			}
		}
	}()
	return held, func() {
		cancel(context.Canceled)
		<-done
	}
}

// errGone says that the old lock is another owner's by now.
var errGone = errors.New("not held")

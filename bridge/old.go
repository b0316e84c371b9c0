package bridge

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis/rueidislock"
)

// Redsync is a lock of redsync v4. lease is its expiry, which Do extends; options are those
// that your mutexes have, without WithExpiry and WithTries. It waits as redsync does, by polling, until ctx ends.
func Redsync(rs *redsync.Redsync, name string, lease time.Duration, options ...redsync.Option) Old {
	return redsyncLock{rs, name, lease, options}
}

type redsyncLock struct {
	rs      *redsync.Redsync
	name    string
	lease   time.Duration
	options []redsync.Option
}

func (l redsyncLock) Lock(ctx context.Context) (context.Context, func(context.Context) error, error) {
	return l.lock(ctx, 1<<30)
}

func (l redsyncLock) TryLock(ctx context.Context) (context.Context, func(context.Context) error, error) {
	return l.lock(ctx, 1)
}

func (l redsyncLock) lock(ctx context.Context, tries int) (context.Context, func(context.Context) error, error) {
	options := append([]redsync.Option{redsync.WithExpiry(l.lease), redsync.WithTries(tries)}, l.options...)
	m := l.rs.NewMutex(l.name, options...) // a mutex of redsync is for one goroutine
	if err := m.LockContext(ctx); err != nil {
		return nil, nil, notTaken(ctx, err, errors.As(err, new(*redsync.ErrTaken)))
	}
	held, stop := keep(ctx, l.lease, m.Until().Add(-l.lease/10), func(ctx context.Context) error {
		ok, err := m.ExtendContext(ctx)
		if err == nil && !ok || errors.Is(err, redsync.ErrExtendFailed) || errors.As(err, new(*redsync.ErrTaken)) {
			return errors.Join(errGone, err)
		}
		return err
	})
	return held, func(ctx context.Context) error {
		stop()
		ok, err := m.UnlockContext(ctx)
		if err == nil && !ok {
			return errGone
		}
		return err
	}, nil
}

// Redislock is a lock of bsm/redislock. lease is its ttl, which Do refreshes. It waits by polling every poll, until ctx ends.
func Redislock(c *redislock.Client, key string, lease, poll time.Duration) Old {
	return redislockLock{c, key, lease, poll}
}

type redislockLock struct {
	c           *redislock.Client
	key         string
	lease, poll time.Duration
}

func (l redislockLock) Lock(ctx context.Context) (context.Context, func(context.Context) error, error) {
	for {
		held, unlock, err := l.TryLock(ctx) // Obtain can wait, too, but nobody would know when it sent the question
		if !errors.Is(err, redislock.ErrNotObtained) {
			return held, unlock, err
		}
		select {
		case <-time.After(max(l.poll, time.Millisecond)):
		case <-ctx.Done():
			return nil, nil, notTaken(ctx, err, true)
		}
	}
}

func (l redislockLock) TryLock(ctx context.Context) (context.Context, func(context.Context) error, error) {
	sent := time.Now()
	got, err := l.c.Obtain(ctx, l.key, l.lease, nil)
	if err != nil {
		return nil, nil, notTaken(ctx, err, errors.Is(err, redislock.ErrNotObtained))
	}
	held, stop := keep(ctx, l.lease, trusted(sent, l.lease), func(ctx context.Context) error {
		err := got.Refresh(ctx, l.lease, nil)
		if errors.Is(err, redislock.ErrNotObtained) || errors.Is(err, redislock.ErrLockNotHeld) {
			return errors.Join(errGone, err)
		}
		return err
	})
	return held, func(ctx context.Context) error {
		stop()
		return got.Release(ctx)
	}, nil
}

// Rueidislock is a lock of rueidislock, which renews it and tells of its loss.
func Rueidislock(l rueidislock.Locker, name string) Old { return rueidisLock{l, name} }

type rueidisLock struct {
	l    rueidislock.Locker
	name string
}

func (l rueidisLock) Lock(ctx context.Context) (context.Context, func(context.Context) error, error) {
	held, cancel, err := l.l.WithContext(ctx, l.name)
	return rueidisHeld(ctx, held, cancel, err)
}

func (l rueidisLock) TryLock(ctx context.Context) (context.Context, func(context.Context) error, error) {
	held, cancel, err := l.l.TryWithContext(ctx, l.name)
	return rueidisHeld(ctx, held, cancel, err)
}

// rueidisHeld makes an Old's results of those of rueidislock.
func rueidisHeld(ctx, held context.Context, cancel context.CancelFunc, err error) (context.Context, func(context.Context) error, error) {
	if err != nil {
		return nil, nil, notTaken(ctx, err, errors.Is(err, rueidislock.ErrNotLocked))
	}
	return held, func(context.Context) error {
		lost := held.Err() != nil && ctx.Err() == nil // otherwise it ended with the caller's context
		cancel()
		if lost {
			return ErrOldLost
		}
		return nil
	}, nil
}

// notTaken returns the error of a lock that was not taken: err, and what leasehold says of the same. taken says that
// another has the lock.
func notTaken(ctx context.Context, err error, taken bool) error {
	switch {
	case ctx.Err() != nil:
		return errors.Join(lock.ErrNotAcquired, ctx.Err(), err)
	case taken:
		return errors.Join(lock.ErrNotAcquired, err)
	}
	return err
}

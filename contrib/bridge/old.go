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

// askAgain is how long a Lock of rueidislock waits before the bridge asks again. rueidislock waits for a message of the server, and asks only
// then. Version 1.0.79 can miss the message, and would wait for ever for a lock that is free. The time is longer than an answer takes, as
// the bridge breaks a question off, too.
const askAgain = 5 * time.Second

func (l rueidisLock) Lock(ctx context.Context) (context.Context, func(context.Context) error, error) {
	for {
		within, end := context.WithCancel(ctx) // without a deadline of its own, which rueidislock would make the end of the lock
		timer := time.AfterFunc(askAgain, end)
		held, cancel, err := l.l.WithContext(within, l.name)
		inTime := timer.Stop()
		switch {
		case err == nil && inTime:
			return rueidisHeld(ctx, held, func() { cancel(); end() }, nil)
		case err == nil: // within ended just after the lock was taken, and with it the lock
			cancel()
		case inTime || ctx.Err() != nil || !errors.Is(err, context.Canceled):
			end()
			return rueidisHeld(ctx, nil, nil, err)
		}
	}
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

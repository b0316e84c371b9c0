package bridge

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis/rueidislock"
)

// Redsync returns a lock of redsync v4. lease is its expiry, which Do extends. options are the
// options of your mutexes, without WithExpiry and WithTries. It waits by polling, as redsync does,
// until ctx is canceled.
func Redsync(rs *redsync.Redsync, name string, lease time.Duration, options ...redsync.Option) OldLock {
	return redsyncLock{rs, name, lease, options}
}

type redsyncLock struct {
	rs      *redsync.Redsync
	name    string
	lease   time.Duration
	options []redsync.Option
}

func (l redsyncLock) Lock(ctx context.Context) (context.Context, func(context.Context) error, error) {
	held, unlock, err := l.lock(ctx, 1, nil)
	for waits(err) && ctx.Err() == nil {
		// Two tries per call, one pause of redsync apart, and the same pause between calls. A single call with more tries would
		// not report the result of the latest one.
		began := time.Now()
		if held, unlock, err = l.lock(ctx, 2, err); err != nil {
			pause(ctx, time.Since(began))
		}
	}
	if err != nil && !errors.Is(err, ctx.Err()) {
		err = errors.Join(ctx.Err(), err)
	}
	return held, unlock, err
}

func (l redsyncLock) TryLock(ctx context.Context) (context.Context, func(context.Context) error, error) {
	return l.lock(ctx, 1, nil)
}

// lock makes this number of tries. If ctx is canceled during them, the error includes last, the error of the previous tries.
func (l redsyncLock) lock(ctx context.Context, tries int, last error) (context.Context, func(context.Context) error, error) {
	options := append([]redsync.Option{redsync.WithExpiry(l.lease), redsync.WithTries(tries)}, l.options...)
	m := l.rs.NewMutex(l.name, options...) // a mutex of redsync must not be shared by goroutines
	if err := m.LockContext(ctx); err != nil {
		return nil, nil, notTaken(ctx, err, errors.As(err, new(*redsync.ErrTaken)), last)
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

// Redislock returns a lock of bsm/redislock. lease is its ttl, which Do refreshes. It waits by
// polling at the interval poll, until ctx is canceled.
func Redislock(c *redislock.Client, key string, lease, poll time.Duration) OldLock {
	return redislockLock{c, key, lease, poll}
}

type redislockLock struct {
	c           *redislock.Client
	key         string
	lease, poll time.Duration
}

func (l redislockLock) Lock(ctx context.Context) (context.Context, func(context.Context) error, error) {
	var last error
	for {
		held, unlock, err := l.lock(ctx, last) // Obtain can wait too, but does not report when it sent the request
		if !waits(err) {
			return held, unlock, err
		}
		last = err
		if !pause(ctx, max(l.poll, time.Millisecond)) {
			return nil, nil, errors.Join(ctx.Err(), err)
		}
	}
}

func (l redislockLock) TryLock(ctx context.Context) (context.Context, func(context.Context) error, error) {
	return l.lock(ctx, nil)
}

func (l redislockLock) lock(ctx context.Context, last error) (context.Context, func(context.Context) error, error) {
	sent := time.Now()
	got, err := l.c.Obtain(ctx, l.key, l.lease, nil)
	if err != nil {
		return nil, nil, notTaken(ctx, err, errors.Is(err, redislock.ErrNotObtained), last)
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

// Rueidislock returns a lock of rueidislock, which renews it and reports its loss.
func Rueidislock(l rueidislock.Locker, name string) OldLock { return rueidisLock{l, name} }

type rueidisLock struct {
	l    rueidislock.Locker
	name string
}

// askAgain is how long Lock of rueidislock waits before the bridge retries. rueidislock sends a request only after a message from
// the server. Version 1.0.79 can miss the message, and would then wait indefinitely for a free lock. The interval exceeds the
// time of a reply, because the bridge also cancels a request in flight.
const askAgain = 5 * time.Second

func (l rueidisLock) Lock(ctx context.Context) (context.Context, func(context.Context) error, error) {
	for {
		held, unlock, last := l.TryLock(ctx) // WithContext does not report why it waits
		if !waits(last) || ctx.Err() != nil {
			return held, unlock, last
		}
		within, end := context.WithCancel(ctx) // without a deadline, which rueidislock would use as the end of the lock
		timer := time.AfterFunc(askAgain, end)
		held, cancel, err := l.l.WithContext(within, l.name)
		inTime := timer.Stop()
		switch {
		case err == nil && inTime:
			return rueidisHeld(ctx, held, func() { cancel(); end() }, nil, nil)
		case err == nil: // within was canceled just after the acquisition, so the lock ended too
			cancel()
		case inTime || ctx.Err() != nil || !errors.Is(err, context.Canceled):
			end()
			return rueidisHeld(ctx, nil, nil, err, last)
		}
	}
}

func (l rueidisLock) TryLock(ctx context.Context) (context.Context, func(context.Context) error, error) {
	held, cancel, err := l.l.TryWithContext(ctx, l.name)
	return rueidisHeld(ctx, held, cancel, err, nil)
}

// rueidisHeld converts the results of rueidislock to those of an OldLock. last is the error of the previous attempt.
func rueidisHeld(ctx, held context.Context, cancel context.CancelFunc, err, last error) (context.Context, func(context.Context) error, error) {
	if err != nil {
		return nil, nil, notTaken(ctx, err, errors.Is(err, rueidislock.ErrNotLocked), last)
	}
	named, end := context.WithCancelCause(context.WithoutCancel(held)) // rueidislock does not report that it lost the lock
	stop := context.AfterFunc(held, func() { end(cmp.Or(context.Cause(ctx), ErrOldLockLost)) })
	return named, func(context.Context) error {
		lost := held.Err() != nil && ctx.Err() == nil // otherwise it ended with the caller's context
		stop()
		cancel()
		end(context.Canceled)
		if lost {
			return ErrOldLockLost
		}
		return nil
	}, nil
}

// notTaken returns the error of a failed acquisition, which joins err with the corresponding error of leasehold. taken
// reports that another owner has the lock. If ctx was canceled during the attempt, last, the error of the previous attempt,
// decides.
func notTaken(ctx context.Context, err error, taken bool, last error) error {
	switch {
	case ctx.Err() == nil && taken:
		return errors.Join(lock.ErrNotAcquired, err)
	case ctx.Err() == nil && unavailable(err):
		return errors.Join(lock.ErrUnavailable, err)
	case ctx.Err() == nil:
		return err
	case taken, errors.Is(last, lock.ErrNotAcquired):
		return errors.Join(lock.ErrNotAcquired, ctx.Err(), err)
	case errors.Is(last, lock.ErrUnavailable):
		return errors.Join(lock.ErrUnavailable, ctx.Err(), err)
	}
	return errors.Join(ctx.Err(), err)
}

// waits reports whether Lock continues after err, a result of notTaken.
func waits(err error) bool {
	return errors.Is(err, lock.ErrNotAcquired) || errors.Is(err, lock.ErrUnavailable)
}

// Codes of error replies after which the same command may succeed later, and after which it fails again.
var (
	transient = []string{"LOADING", "BUSY", "NOREPLICAS", "READONLY", "MASTERDOWN", "OOM", "MISCONF", "MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"}
	final     = []string{"NOAUTH", "WRONGPASS", "NOPERM", "DENIED", "NOPROTO", "WRONGTYPE", "CROSSSLOT", "ERR"}
)

// unavailable reports whether err means that Redis did not decide, or is unknown. In most clients, an error reply is a generic
// type, so it is identified by its code. Redsync joins the errors of its servers. One transient error among them is enough.
func unavailable(err error) bool {
	for _, target := range []error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, os.ErrDeadlineExceeded, context.DeadlineExceeded, redsync.ErrFailed} {
		if errors.Is(err, target) {
			return true
		}
	}
	if errors.As(err, new(net.Error)) || errors.As(err, new(*redsync.ErrNodeTaken)) {
		return true
	}
	text := err.Error()
	switch {
	case has(text, transient), strings.Contains(text, "max number of clients"):
		return true
	case errors.Is(err, rueidislock.ErrLockerClosed), errors.Is(err, redis.ErrClosed), strings.Contains(text, "closed pool"): // the latter is redigo's
		return false
	}
	return !has(text, final)
}

// has reports whether the text of an error contains one of the codes as a word. Before Redis 7, an error of a script starts with
// a dash.
func has(text string, codes []string) bool {
	for word := range strings.FieldsSeq(text) {
		if slices.Contains(codes, strings.TrimPrefix(word, "-")) {
			return true
		}
	}
	return false
}

// pause waits for d. It reports false if ctx is canceled first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

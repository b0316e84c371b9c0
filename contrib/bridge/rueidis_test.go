package bridge

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/redis/rueidis/rueidislock"
)

// deafLocker is a rueidislock that misses the messages of the server. Its first calls, `deaf` of them, wait until their contexts
// are canceled.
type deafLocker struct {
	rueidislock.Locker
	deaf, calls, given int
	late               bool // the lock is granted just when the call ends
}

// TryWithContext returns that another owner has the lock.
func (l *deafLocker) TryWithContext(ctx context.Context, _ string) (context.Context, context.CancelFunc, error) {
	if ctx.Err() != nil {
		return nil, nil, ctx.Err()
	}
	return nil, nil, rueidislock.ErrNotLocked
}

func (l *deafLocker) WithContext(ctx context.Context, _ string) (context.Context, context.CancelFunc, error) {
	l.calls++
	if l.calls <= l.deaf {
		<-ctx.Done()
		if !l.late {
			return nil, nil, ctx.Err()
		}
	}
	held, cancel := context.WithCancel(ctx)
	return held, func() { l.given++; cancel() }, nil
}

func TestRueidislock_asksAgain(t *testing.T) {
	for name, late := range map[string]bool{"no lock": false, "a lock that came too late": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &deafLocker{deaf: 2, late: late}
				began := time.Now()
				held, unlock, err := Rueidislock(l, "orders").Lock(t.Context())
				if err != nil || held.Err() != nil || time.Since(began) != 2*askAgain {
					t.Fatalf("after %v: %v", time.Since(began), err)
				}
				time.Sleep(time.Minute)
				if held.Err() != nil {
					t.Errorf("the lock ended: %v", held.Err())
				}
				if err := unlock(t.Context()); err != nil {
					t.Error(err)
				}
				want := 1
				if late {
					want = 3
				}
				if held.Err() == nil || l.given != want {
					t.Errorf("given back %d times, want %d; the context: %v", l.given, want, held.Err())
				}
			})
		})
	}
}

// If the caller's context is canceled, Lock returns.
func TestRueidislock_givesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*askAgain/2)
		defer cancel()
		l := &deafLocker{deaf: 100}
		if _, _, err := Rueidislock(l, "orders").Lock(ctx); !errors.Is(err, lock.ErrNotAcquired) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		if l.calls != 3 {
			t.Errorf("asked %d times", l.calls)
		}
	})
}

// losingLocker is a rueidislock whose lock is lost as soon as it was acquired.
type losingLocker struct{ rueidislock.Locker }

func (losingLocker) TryWithContext(ctx context.Context, _ string) (context.Context, context.CancelFunc, error) {
	held, cancel := context.WithCancel(ctx)
	time.AfterFunc(time.Second, cancel)
	return held, cancel, nil
}

// The loss of the old lock is the cause of the context, and the hold reports it, even after the caller's context is canceled.
func TestRueidislock_lost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locktest.NewServer(t).Client(t).NewLock("orders")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for _, canceled := range []bool{false, true} {
			err := TryDo(ctx, Rueidislock(losingLocker{}, "orders"), l, func(ctx context.Context) error {
				if canceled {
					cancel()
				}
				h := lock.HoldFromContext(ctx)
				if err := h.Err(); err != nil {
					t.Errorf("before the loss: %v", err)
				}
				time.Sleep(time.Minute)
				if err, cause := h.Err(), context.Cause(ctx); !errors.Is(err, ErrOldLockLost) || errors.Is(cause, ErrOldLockLost) == canceled {
					t.Errorf("after the loss: %v, the cause: %v", err, cause)
				}
				return nil
			})
			if !errors.Is(err, ErrOldLockLost) {
				t.Errorf("%v", err)
			}
		}
	})
}

// An error of another library also matches the corresponding error of leasehold: another owner has the lock, Redis is
// unavailable, or neither.
func TestNotTaken(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	refused, down := errors.Join(lock.ErrNotAcquired, errors.New("taken")), errors.Join(lock.ErrUnavailable, io.EOF)
	for name, c := range map[string]struct {
		ctx   context.Context
		err   error
		taken bool
		last  error
		want  error // ErrNotAcquired, ErrUnavailable or nil
	}{
		"taken":                                    {t.Context(), redislock.ErrNotObtained, true, nil, lock.ErrNotAcquired},
		"a refused connection":                     {t.Context(), &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, false, nil, lock.ErrUnavailable},
		"a connection that ends":                   {t.Context(), &redsync.RedisError{Err: io.EOF}, false, nil, lock.ErrUnavailable},
		"a server that starts":                     {t.Context(), &redsync.RedisError{Err: errors.New("LOADING Redis is loading the dataset in memory")}, false, nil, lock.ErrUnavailable},
		"a majority that came too late":            {t.Context(), redsync.ErrFailed, false, nil, lock.ErrUnavailable},
		"a missing permission":                     {t.Context(), errors.New("NOPERM this user has no permissions"), false, nil, nil},
		"canceled before any reply":                {over, context.Canceled, false, nil, nil},
		"canceled after a refusal":                 {over, redsync.ErrFailed, false, refused, lock.ErrNotAcquired},
		"canceled after an attempt that failed":    {over, redsync.ErrFailed, false, down, lock.ErrUnavailable},
		"canceled just after the lock was refused": {over, redislock.ErrNotObtained, true, down, lock.ErrNotAcquired},
	} {
		err := notTaken(c.ctx, c.err, c.taken, c.last)
		for _, target := range []error{lock.ErrNotAcquired, lock.ErrUnavailable} {
			if errors.Is(err, target) != (c.want == target) {
				t.Errorf("%s: %v; does it match %v?", name, err, target)
			}
		}
		if !errors.Is(err, c.err) || c.ctx.Err() != nil && !errors.Is(err, c.ctx.Err()) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Package asynqlock makes asynq process at most one task at a time per lock, across all servers,
// for example one task per customer.
//
//	mux := asynq.NewServeMux()
//	mux.Use(asynqlock.Middleware(func(t *asynq.Task) lock.Locker { return c.NewLock("customers:" + customer(t)) }))
//	server := asynq.NewServer(redis, asynq.Config{IsFailure: asynqlock.IsFailure})
//
// A task whose lock is busy returns to its queue, and asynq retries it after the time of
// asynq.Config.RetryDelayFunc. On its last attempt it waits for the lock instead, because asynq
// would archive it.
package asynqlock

import (
	"context"
	"errors"

	"github.com/hibiken/asynq"
	"github.com/leasehold-go/leasehold/lock"
)

// Middleware returns a middleware that makes one attempt at the lock of a task, and processes the
// task while it holds the lock. lockOf returns the lock of a task, or nil for a task that needs
// none.
//
// On the last attempt of a task, asynq archives it after any error. The middleware then waits for
// the lock until the context of the task is canceled.
//
// If another task has the lock, the task is not processed, and the error matches
// lock.ErrNotAcquired. If Redis is unavailable, it matches lock.ErrUnavailable. If the client is
// closed, it matches lock.ErrClosed. If the context of the task is canceled before a reply, it
// matches the error of that context. asynq then retries the task. With [IsFailure] none of these
// errors counts as a failure. But asynq does not wait for the error of a task whose time limit has
// passed, and counts a failure. The limit should be longer than client.WithOpTimeout.
//
// The context of the task is canceled if the lock is lost. The handler must check it before each
// step that must not be done twice. lock.HoldFromContext returns the hold. If the lock is lost
// during a task, the error matches lock.ErrLost, whatever the handler returned. asynq then retries
// the task, unless the handler returned asynq.SkipRetry or asynq.RevokeTask. If the client is closed
// during a task, that holds for lock.ErrClosed.
//
// Each task is its own owner, even if asynq.Config.BaseContext returns the context of a hold.
//
// The lock is held until the handler returns, however long that takes, so it needs no time limit
// like that of asynq.Unique. asynq does not wait for a handler that exceeds the time limit of its
// task, or that a shutdown does not end in time. It retries the task, and the retry finds the lock
// busy until the first handler has returned. A handler that hangs therefore keeps the lock until
// its process ends. Use lock.WithMaxHold to limit that.
func Middleware(lockOf func(*asynq.Task) lock.Locker) asynq.MiddlewareFunc {
	return func(next asynq.Handler) asynq.Handler {
		return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) (err error) {
			l := lockOf(t)
			if l == nil {
				return next.ProcessTask(ctx, t)
			}
			if ctx.Value(ownerKey{}) == nil { // no other Middleware has set the owner of this task
				ctx = context.WithValue(lock.ContextWithNewOwner(ctx), ownerKey{}, true)
			}
			called := false
			var ended error // why the hold ended before the handler returned
			do := lock.TryDo
			if isLastAttempt(ctx) {
				do = lock.Do
			}
			unlock := do(ctx, l, func(ctx context.Context) error {
				called = true
				err = next.ProcessTask(ctx, t)
				ended = lock.HoldFromContext(ctx).Err()
				return nil
			})
			switch {
			case called:
				// If Redis does not confirm the release, that is no reason to process the task again.
				if ended == nil && errors.Is(unlock, lock.ErrLost) {
					ended = unlock
				}
				switch {
				case err == nil:
					return ended
				case ended == nil || errors.Is(err, ended):
					return err
				default: // usually, the handler returned the error of its canceled context
					return errors.Join(err, ended)
				}
			case errors.Is(unlock, lock.ErrNotAcquired), errors.Is(unlock, lock.ErrUnavailable), errors.Is(unlock, lock.ErrClosed), ctx.Err() != nil && errors.Is(unlock, ctx.Err()):
				return notProcessed{unlock}
			default:
				return unlock
			}
		})
	}
}

// isLastAttempt reports whether asynq archives the task of ctx after any error, even one that does not count as a failure.
func isLastAttempt(ctx context.Context) bool {
	failures, _ := asynq.GetRetryCount(ctx)
	most, ok := asynq.GetMaxRetry(ctx)
	return ok && failures >= most
}

// ownerKey is the key of a context value that marks a task with its own owner.
type ownerKey struct{}

// notProcessed is the error of a task that was not processed, because its lock was busy or Redis was unavailable. A handler's own
// errors can match the same errors of package lock, and count as failures.
type notProcessed struct{ error }

func (e notProcessed) Unwrap() error { return e.error }

// IsFailure reports whether err counts as a failure of a task, for asynq.Config. A task has not
// failed if it was not processed because its lock was busy, or because Redis was unavailable. It
// has not failed if the server or the client was shutting down. asynq retries such a task without
// counting that. An error of the handler counts, even one about another lock. An error that only an
// operator can fix, such as a missing permission, counts too. asynq does not call IsFailure for the
// last attempt of a task, such as the only one with asynq.MaxRetry(0).
func IsFailure(err error) bool {
	return !errors.As(err, new(notProcessed))
}

// Package asynqlock has asynq process one task at a time for each lock, in all its servers: one task of a customer, say.
//
//	mux := asynq.NewServeMux()
//	mux.Use(asynqlock.Middleware(func(t *asynq.Task) lock.Locker { return c.NewLock("customers:" + customer(t)) }))
//	server := asynq.NewServer(redis, asynq.Config{IsFailure: asynqlock.IsFailure})
//
// A task whose lock is busy goes back to its queue, and asynq tries it again after the time of asynq.Config.RetryDelayFunc.
package asynqlock

import (
	"context"
	"errors"

	"github.com/hibiken/asynq"
	"github.com/leasehold-go/leasehold/lock"
)

// Middleware returns a middleware that makes one attempt at the lock of a task, and processes the task while it holds the lock.
// lockOf returns the lock of a task, or nil for a task that needs none.
//
// If another task has the lock, the task is not processed, and the error matches lock.ErrNotAcquired. If Redis is unavailable, it matches
// lock.ErrUnavailable; if the client was closed, lock.ErrClosed; and if the context of the task ended before a reply, that context's error. asynq
// then tries the task again; with [IsFailure] none of these counts as a failure.
//
// The context of the task ends when the lock is lost, and the handler looks at it before each step that must not be done
// twice. A task during which the lock was lost has an error that matches lock.ErrLost, also if the handler returned nil, and asynq
// tries it again. The lock is renewed while the handler runs, however long that takes, so it needs no time limit like that of
// asynq.Unique.
func Middleware(lockOf func(*asynq.Task) lock.Locker) asynq.MiddlewareFunc {
	return func(next asynq.Handler) asynq.Handler {
		return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) (err error) {
			l := lockOf(t)
			if l == nil {
				return next.ProcessTask(ctx, t)
			}
			h, err := l.TryLock(ctx)
			switch {
			case errors.Is(err, lock.ErrNotAcquired), errors.Is(err, lock.ErrUnavailable), errors.Is(err, lock.ErrClosed), ctx.Err() != nil && errors.Is(err, ctx.Err()):
				return notProcessed{err}
			case err != nil:
				return err
			}
			defer func() {
				// A release that Redis does not confirm is no reason to process the task again.
				if e := h.Unlock(ctx); err == nil && errors.Is(e, lock.ErrLost) {
					err = e
				}
			}()
			return next.ProcessTask(h.Context(), t)
		})
	}
}

// notProcessed is the error of a task that was not processed, because its lock was busy or could not be asked for. A handler's own errors can match the same
// errors of package lock, and count.
type notProcessed struct{ error }

func (e notProcessed) Unwrap() error { return e.error }

// IsFailure is for asynq.Config. It reports whether err counts as a failure of a task. A task that was not processed because its lock
// was busy, Redis was unavailable, or the server or the client was shutting down has not failed: asynq tries it again without counting that. An error of
// the handler counts, even one about another lock, and so does one that only an operator can fix, such as a missing permission. asynq asks only where asynq.MaxRetry is 1 at least; it archives a task with 0 after any error.
func IsFailure(err error) bool {
	return !errors.As(err, new(notProcessed))
}

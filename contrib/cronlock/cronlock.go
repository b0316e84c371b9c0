// Package cronlock makes robfig/cron v3 run each job in one of several processes.
//
//	invoices := c.NewLock("cron:invoices", lock.WithMinHold(50*time.Second))
//	one := cronlock.SkipIfLocked(invoices, report)
//	s.AddJob("* * * * *", cron.NewChain(one).Then(job))
package cronlock

import (
	"context"
	"errors"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/robfig/cron/v3"
)

// SkipIfLocked returns a wrapper that runs a job while it holds l, and skips the run if another
// process holds l. It does not wait. Each job needs its own lock.
//
// Create the lock with lock.WithMinHold and a little less than the interval. Otherwise a process
// with a slow clock runs a short job a second time. The lock is held until the job returns, however
// long that takes. Use lock.WithMaxHold, because a job that hangs keeps the lock until its process
// ends. cron passes no context to the job. Use [Func] for a job that must stop when the lock is
// lost.
//
// If report is not nil, it is called with other errors. The error matches lock.ErrUnavailable if
// Redis is unavailable and the run is skipped. It matches lock.ErrLost if the lock was lost while
// the job ran, even if the job panicked. The panic then continues.
func SkipIfLocked(l lock.Locker, report func(error)) cron.JobWrapper {
	return func(job cron.Job) cron.Job {
		return Func(l, report, func(context.Context) error {
			job.Run()
			return nil
		})
	}
}

// Func returns a job that calls fn with the context of a hold of l, and skips the run if another
// process holds l. The context is canceled as soon as the lock can no longer be guaranteed. report
// is also called with the errors of fn (see [SkipIfLocked]).
func Func(l lock.Locker, report func(error), fn func(ctx context.Context) error) cron.Job {
	return cron.FuncJob(func() {
		tell := func(err error) {
			if err != nil && report != nil {
				report(err)
			}
		}
		called := false
		err := lock.TryDo(context.Background(), l, func(ctx context.Context) (err error) {
			called = true
			panics := true
			defer func() {
				if panics { // TryDo does not return
					tell(lock.HoldFromContext(ctx).Err())
				}
			}()
			err = fn(ctx)
			panics = false
			return err
		})
		if called || !errors.Is(err, lock.ErrNotAcquired) {
			tell(err)
		}
	})
}

// Package cronlock has robfig/cron v3 run each job in one of several processes.
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

// SkipIfLocked returns a wrapper that runs a job while it holds l, and skips the run if another process holds l. It does not
// wait. Each job needs a lock of its own.
//
// Give the lock lock.WithMinHold with a little less than the interval. Otherwise a process whose clock is late runs a
// quick job a second time. The lock is held until the job returns, however long that takes; give the lock lock.WithMaxHold, because a job that hangs keeps it
// until its process ends. cron gives a job no
// context: one that must stop when the lock is lost is made with [Func].
//
// report is told what else goes wrong, if it is not nil: Redis is unavailable and the run is skipped (lock.ErrUnavailable), or
// the lock was lost while the job ran (lock.ErrLost).
func SkipIfLocked(l lock.Locker, report func(error)) cron.JobWrapper {
	return func(job cron.Job) cron.Job {
		return Func(l, report, func(context.Context) error {
			job.Run()
			return nil
		})
	}
}

// Func returns a job that calls fn with the context of a hold of l, and skips the run if another process holds l. The context
// is over as soon as the lock is not certainly held. report is told the errors of fn, too; see [SkipIfLocked].
func Func(l lock.Locker, report func(error), fn func(ctx context.Context) error) cron.Job {
	return cron.FuncJob(func() {
		called := false
		err := lock.TryDo(context.Background(), l, func(ctx context.Context) error {
			called = true
			return fn(ctx)
		})
		if !called && errors.Is(err, lock.ErrNotAcquired) {
			return
		}
		if err != nil && report != nil {
			report(err)
		}
	})
}

package demo

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
)

var (
	shortLease = 2 * time.Second // the default is 30 s, but then there would be little to see
	jobTime    = 3 * shortLease
)

// jobReport is the result of the long job.
type jobReport struct {
	took     time.Duration
	err      error // why its hold ended; nil if it lasted
	renewals int64
	tries    int   // attempts of the rival while the job ran
	granted  int   // successful attempts of the rival
	next     error // why the rival did not acquire the lock after the job
}

// longJob works under a lock for much longer than its lease lasts, while a rival
// keeps trying to acquire the lock. The watchdog renews the lease.
func longJob(ctx context.Context, s *stage) error {
	s.out.line("A job of %v under a lease of %v, and a rival that keeps trying to acquire the lock.", jobTime, shortLease)
	var report jobReport
	var renewals atomic.Int64
	worker, err := s.open(ctx,
		client.WithWatchdogTimeout(shortLease),
		client.WithObserver(lock.Observer{Renewed: func(context.Context, lock.Event) { renewals.Add(1) }}),
	)
	if err != nil {
		return err
	}
	rival, err := s.open(ctx)
	if err != nil {
		return err
	}

	hold, err := worker.NewLock("job").Lock(ctx)
	if err != nil {
		return err
	}
	start := time.Now()
	rivalCtx, stopRival := context.WithCancel(ctx)
	var rivalErr error
	var running sync.WaitGroup
	running.Go(func() {
		report.tries, report.granted, rivalErr = keepTrying(rivalCtx, rival.NewLock("job"), func(tries int) {
			s.out.progress("job running for %.1f s; %d attempts by the rival; the lease expires in %.1f s",
				time.Since(start).Seconds(), tries, time.Until(hold.Until()).Seconds())
		})
	})
	report.err = work(hold.Context())
	report.took = time.Since(start)
	report.renewals = renewals.Load()
	stopRival()
	running.Wait()
	if err := errors.Join(context.Cause(ctx), rivalErr); err != nil {
		return err
	}

	if err := hold.Unlock(ctx); err != nil && report.err == nil {
		return err
	}
	next, err := rival.NewLock("job").TryLock(ctx)
	if err == nil {
		err = next.Unlock(ctx)
	}
	report.next = err
	s.check(checkJob(report)...)
	return nil
}

// work takes jobTime. It ends early if ctx is canceled: the lock is then lost, and
// the work must not continue.
func work(ctx context.Context) error {
	if err := sleep(ctx, jobTime); err != nil {
		return err
	}
	return context.Cause(ctx) // a last check before the result counts
}

// keepTrying tries to acquire l until ctx is canceled. It does not cancel the last attempt:
// a canceled attempt can still acquire the lock for a moment, before it is released again. It does not cancel the last
// Unlock either, which would then fail.
func keepTrying(ctx context.Context, l lock.Locker, progress func(tries int)) (tries, granted int, err error) {
	whole := context.WithoutCancel(ctx)
	for ; sleep(ctx, 100*time.Millisecond) == nil; tries++ {
		progress(tries)
		hold, err := l.TryLock(whole)
		switch {
		case err == nil:
			granted++
			if err := hold.Unlock(whole); err != nil {
				return tries, granted, err
			}
		case !errors.Is(err, lock.ErrNotAcquired) && !errors.Is(err, lock.ErrUnavailable):
			return tries, granted, err
		}
	}
	return tries, granted, nil
}

func checkJob(r jobReport) []claim {
	claims := []claim{
		claimf(r.renewals >= int64(jobTime/shortLease), "the watchdog renewed the lease %d times", r.renewals),
		claimf(r.tries > 0 && r.granted == 0, "the rival tried %d times and acquired the lock %d times", r.tries, r.granted),
	}
	if r.err != nil {
		return append(claims, claimf(false, "the job lost its lock after %.1f s: %v", r.took.Seconds(), r.err))
	}
	claims = append(claims, claimf(r.took >= jobTime, "the job held its lock for all %.1f s", r.took.Seconds()))
	if r.next != nil {
		return append(claims, claimf(false, "the rival did not acquire the lock after the job: %v", r.next))
	}
	return append(claims, claimf(true, "the rival acquired the lock after the job, at its first attempt"))
}

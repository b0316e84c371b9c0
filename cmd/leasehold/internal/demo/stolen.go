package demo

import (
	"context"
	"errors"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
)

// toldWithin is the maximum time until a holder detects the theft. The next renewal, within a third of the lease, detects it. On
// a machine that is too busy for that, the lease expires on the holder's own clock.
var toldWithin = shortLease

// theftReport is the result of the scene.
type theftReport struct {
	told       time.Duration // from the theft until the job detected it
	cause      error         // why the hold of the job ended
	unlock     error         // of the job's Unlock
	thiefHolds int           // hold count of the thief in Redis after that
	tokens     [2]uint64     // of the job and of the thief
}

// stolenLock deletes the key of a lock under its holder, as an operator might by hand, and
// has another client acquire the lock. No lock can prevent that, but the holder detects it.
func stolenLock(ctx context.Context, s *stage) error {
	s.out.line("The key of a lock is deleted with DEL, and another client acquires the lock.")
	owner, err := s.open(ctx, client.WithWatchdogTimeout(shortLease))
	if err != nil {
		return err
	}
	thief, err := s.open(ctx)
	if err != nil {
		return err
	}
	var report theftReport

	hold, err := owner.NewLock("vault").Lock(ctx)
	if err != nil {
		return err
	}
	start := time.Now()
	if err := s.data.steal(ctx, "vault"); err != nil {
		return err
	}
	stolen, err := thief.NewLock("vault").TryLock(ctx)
	if err != nil {
		return err
	}
	s.out.progress("lock stolen; the job has not detected it yet")

	<-hold.Context().Done()
	report.told = time.Since(start)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	report.cause = hold.Err()
	report.unlock = hold.Unlock(ctx)
	report.tokens = [2]uint64{hold.Token(), stolen.Token()}

	state, err := thief.NewLock("vault").Inspect(ctx)
	if err != nil {
		return err
	}
	report.thiefHolds = state.HoldCount(stolen.Owner())
	if err := stolen.Unlock(ctx); err != nil {
		return err
	}
	s.check(checkTheft(report)...)
	return nil
}

func checkTheft(r theftReport) []claim {
	return []claim{
		claimf(errors.Is(r.cause, lock.ErrLost), "the job's context was canceled: %v", r.cause),
		claimf(r.told <= toldWithin, "that was %d ms after the theft; the lease expires within %d ms",
			r.told.Milliseconds(), toldWithin.Milliseconds()),
		claimf(errors.Is(r.unlock, lock.ErrNotHeld), "the job's Unlock reports it too: %v", r.unlock),
		claimf(r.thiefHolds == 1, "that Unlock did not release the thief's lock: the thief has %d hold in Redis", r.thiefHolds),
		claimf(r.tokens[0] < r.tokens[1], "the thief has a larger fencing token: %d after %d", r.tokens[1], r.tokens[0]),
	}
}

package demo

import (
	"context"
	"errors"
	"time"

	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/lock"
)

const opening, ofA, ofB = 100, 30, 50 // euros: the balance of an account, and what A and B pay in

var stuckLease = 1500 * time.Millisecond

// staleReport is the result of the scene with A, the stale holder, and B, the next one.
type staleReport struct {
	before, after error     // error of A's hold before the pause, and after all writes
	tokens        [2]uint64 // of A and of B
	bare, guarded int       // euros in the accounts, after both had written
	refusal       error     // of the stale write of A to the guarded account
	again         int       // euros in the guarded account, after A had started over
}

// staleHolder pauses a holder for longer than its lease, between its last check of the
// lock and its write. No lock can prevent that write, but a fencing check at the data can.
func staleHolder(ctx context.Context, s *stage) error {
	s.out.line("Two accounts of %d euros: one has a fencing check, which records the highest token, and one has none.", opening)
	s.out.line("A is to pay in %d, reads both, and is paused for longer than its lease. B pays in %d. Then A continues.", ofA, ofB)
	report, err := playStale(ctx, s, s.data.setGuarded)
	if err != nil {
		return err
	}
	s.check(checkStale(report)...)
	return nil
}

// playStale plays the scene with this write, which should have a fencing check.
func playStale(ctx context.Context, s *stage, write func(ctx context.Context, token uint64, name string, n int) error) (r staleReport, err error) {
	a, err := s.open(ctx)
	if err != nil {
		return r, err
	}
	b, err := s.open(ctx)
	if err != nil {
		return r, err
	}
	for _, account := range []string{"bare", "guarded"} {
		if err := s.data.setNumber(ctx, account, opening); err != nil {
			return r, err
		}
	}
	lockOfA := a.NewLock("accounts", lock.WithFixedLease(stuckLease))

	stuck, err := lockOfA.Lock(ctx)
	if err != nil {
		return r, err
	}
	bare, guarded, err := accounts(ctx, s.data)
	if err != nil {
		return r, err
	}
	r.before = stuck.Err()
	s.out.progress("A is paused, and B waits for the lock")

	hold, err := b.NewLock("accounts").Lock(ctx)
	if err != nil {
		return r, err
	}
	r.tokens = [2]uint64{stuck.Token(), hold.Token()}
	fresh, freshGuarded, err := accounts(ctx, s.data)
	if err != nil {
		return r, err
	}
	err = errors.Join(
		s.data.setNumber(ctx, "bare", fresh+ofB),
		write(ctx, hold.Token(), "guarded", freshGuarded+ofB),
		hold.Unlock(ctx),
	)
	if err != nil {
		return r, err
	}

	if err := s.data.setNumber(ctx, "bare", bare+ofA); err != nil {
		return r, err
	}
	r.refusal = write(ctx, stuck.Token(), "guarded", guarded+ofA)
	r.after = stuck.Err()
	if r.bare, r.guarded, err = accounts(ctx, s.data); err != nil {
		return r, err
	}

	again, err := lockOfA.Lock(ctx)
	if err != nil {
		return r, err
	}
	if _, guarded, err = accounts(ctx, s.data); err != nil {
		return r, err
	}
	err = errors.Join(write(ctx, again.Token(), "guarded", guarded+ofA), again.Unlock(ctx))
	if err != nil {
		return r, err
	}
	_, r.again, err = accounts(ctx, s.data)
	return r, err
}

// accounts returns the balance of each account in euros.
func accounts(ctx context.Context, d *data) (bare, guarded int, err error) {
	if bare, err = d.number(ctx, "bare"); err != nil {
		return 0, 0, err
	}
	guarded, err = d.number(ctx, "guarded")
	return bare, guarded, err
}

func checkStale(r staleReport) []claim {
	var stale *fence.StaleError
	named := errors.As(r.refusal, &stale) && stale.Token == r.tokens[0] && stale.Highest == r.tokens[1]
	return []claim{
		claimf(r.before == nil, "A checked its lock just before the pause, and held it"),
		claimf(r.tokens[0] < r.tokens[1], "its lease expired, and B acquired the lock with a larger token"),
		claimf(r.bare == opening+ofA, "without a fencing check, A overwrote the write of B: of %d euros, %d are left", opening+ofA+ofB, r.bare),
		claimf(named && errors.Is(r.refusal, fence.ErrStale), "with a fencing check, the stale write of A was rejected: %v", r.refusal),
		claimf(r.guarded == opening+ofB, "that account has %d euros, as B wrote", r.guarded),
		claimf(errors.Is(r.after, lock.ErrLost), "A's hold reports the loss when A checks it again: %v", r.after),
		claimf(r.again == opening+ofA+ofB, "A started over with a new token, and the account has %d euros", r.again),
	}
}

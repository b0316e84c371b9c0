package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/reentrant"
)

// nestedReport is the result of the nested call.
type nestedReport struct {
	counts   []int // hold count of the owner after each step
	stranger error // error of TryLock under a context without the owner
	tokens   [2]uint64
}

// nestedCall acquires a lock, and makes a call that acquires the same lock again.
// The context of the hold carries the owner, so the second Lock does not wait for
// the first one. Redis counts the holds.
func nestedCall(ctx context.Context, s *stage) error {
	s.out.line("A call holds a lock, and makes another call that acquires the same lock (reentry).")
	c, err := s.open(ctx)
	if err != nil {
		return err
	}
	shelf := c.NewLock("shelf")
	var report nestedReport

	outer, err := shelf.Lock(ctx)
	if err != nil {
		return err
	}
	if err := report.count(ctx, shelf, outer); err != nil {
		return err
	}

	inner, err := shelf.Lock(outer.Context()) // with ctx it would wait indefinitely
	if err != nil {
		return err
	}
	if err := report.count(ctx, shelf, outer); err != nil {
		return err
	}
	report.tokens = [2]uint64{outer.Token(), inner.Token()}
	_, report.stranger = shelf.TryLock(ctx)

	for _, hold := range []lock.Hold{inner, outer} {
		if err := hold.Unlock(ctx); err != nil {
			return err
		}
		if err := report.count(ctx, shelf, outer); err != nil {
			return err
		}
	}
	s.check(checkNested(report)...)
	return nil
}

// count records the hold count in Redis of the owner of hold.
func (r *nestedReport) count(ctx context.Context, l *reentrant.Lock, hold lock.Hold) error {
	state, err := l.Inspect(ctx)
	if err != nil {
		return err
	}
	r.counts = append(r.counts, state.HoldCount(hold.Owner()))
	return nil
}

func checkNested(r nestedReport) []claim {
	stranger := fmt.Sprint(r.stranger)
	if r.stranger == nil {
		stranger = "it acquired the lock"
	}
	return []claim{
		claimf(slices.Equal(r.counts, []int{1, 2, 1, 0}), "hold count in Redis after Lock, Lock, Unlock, Unlock: %v", r.counts),
		claimf(r.tokens[0] != 0 && r.tokens[0] == r.tokens[1], "both holds have the same fencing token, %d and %d", r.tokens[0], r.tokens[1]),
		claimf(errors.Is(r.stranger, lock.ErrNotAcquired), "a call without the owner's context does not acquire it: %s", stranger),
	}
}

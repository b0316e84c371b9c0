package session

import (
	"context"
	"fmt"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/leasehold-go/leasehold/watchdog"
	"github.com/redis/rueidis"
)

// question is a script about a lock that belongs to no owner.
type question[T any] = func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys) (T, error)

// Ask runs a script that changes nothing: again, for as long as that may help
// and the operation time-out lasts.
func Ask[T any](ctx context.Context, s *Session, spec *Spec, op string, q question[T]) (T, error) {
	return once(ctx, s, spec, op, func() (T, error) {
		o := insist(ctx, s, s.OpTimeout, func(ctx context.Context) (T, error) { return q(ctx, s.rdb, spec.Keys) }, nil)
		return o.value, o.err
	})
}

// Force runs a script that frees spec whoever holds it, and reports whether
// anybody did. It is sent once. The holders of this session are told why.
func (s *Session) Force(ctx context.Context, spec *Spec, op string, q question[luascripts.Verdict], why error) (bool, error) {
	// Taken down before the script runs: who comes to hold the lock after it
	// must not be told that it lost it.
	held := s.holding(spec)
	verdict, err := once(ctx, s, spec, op, func() (luascripts.Verdict, error) {
		v, _, err := await(ctx, s, s.OpTimeout, func(ctx context.Context) (luascripts.Verdict, error) { return q(ctx, s.rdb, spec.Keys) }, nil)
		if err == nil && v == luascripts.Foreign {
			err = lock.ErrForeignKey
		}
		return v, err
	})
	if err != nil {
		return false, err
	}
	for _, t := range held {
		t.lease.Lose(fmt.Errorf("%w: %w", watchdog.ErrGone, why))
	}
	s.hint(spec.Keys.Lock)
	return verdict == luascripts.Done, nil
}

// holding returns the tenures of this session on spec.
func (s *Session) holding(spec *Spec) (held []*tenure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, c := range s.claims {
		if id.key == spec.Keys.Lock && c.tenure != nil {
			held = append(held, c.tenure)
		}
	}
	return held
}

func once[T any](ctx context.Context, s *Session, spec *Spec, op string, run func() (T, error)) (value T, err error) {
	defer func() {
		if err != nil {
			err = &lock.Error{Op: op, Name: spec.Name, Err: readable(err)}
		}
	}()
	if spec.Err != nil {
		return value, spec.Err
	}
	if err := ctx.Err(); err != nil {
		return value, err
	}
	if err := s.begin(); err != nil {
		return value, err
	}
	defer s.work.Done()
	return run()
}

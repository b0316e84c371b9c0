package guides

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/locktest"
)

// report is what a service of yours does: it writes an hour-long report, step by step.
func report(ctx context.Context, l lock.Locker, write func(step int) error) error {
	return lock.Do(ctx, l, func(ctx context.Context) error {
		for step := range 60 {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := write(step); err != nil {
				return err
			}
			time.Sleep(time.Minute)
		}
		return nil
	})
}

// An hour of renewals takes no time, and the second report begins when the first one is done.
func TestReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		began := time.Now()
		var done [2]chan error
		for i, c := range []*client.Client{s.Client(t), s.Client(t)} { // two processes
			done[i] = make(chan error, 1)
			go func() { done[i] <- report(t.Context(), c.NewLock("report"), func(int) error { return nil }) }()
		}
		for i := range done {
			if err := <-done[i]; err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(began); took < 2*time.Hour {
			t.Errorf("two reports of an hour took %v", took)
		}
	})
}

// The lock is taken away in the middle, as by a failover. No step follows.
func TestReport_lost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		steps := 0
		err := report(t.Context(), s.Client(t).NewLock("report"), func(step int) error {
			if steps++; step == 10 {
				r := s.Redis()
				return r.Do(t.Context(), r.B().Del().Key("report").Build()).Error()
			}
			return nil
		})
		if !errors.Is(err, lock.ErrLost) || steps > 12 {
			t.Errorf("%v, after %d steps", err, steps)
		}
	})
}

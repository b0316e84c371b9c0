package guides

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/locktest"
	"golang.org/x/sync/errgroup"
)

// transcode takes jobs from a queue. At most four jobs run at once across all processes, and at most
// one per worker in this process.
func transcode(ctx context.Context, c *client.Client, workers int, jobs <-chan string, do func(ctx context.Context, job string) error) error {
	gpus := c.NewSemaphore("gpus", 4)
	group, ctx := errgroup.WithContext(ctx) // canceled on the first error
	for range workers {
		group.Go(func() error {
			for {
				h, err := gpus.Lock(ctx) // first the permit, then the job
				if err != nil {
					return err
				}
				job, more := next(ctx, jobs)
				if more {
					err = do(h.Context(), job) // canceled as soon as the permit is lost
				} else {
					err = ctx.Err()
				}
				if err = errors.Join(err, h.Unlock(ctx)); err != nil || !more {
					return err
				}
			}
		})
	}
	return group.Wait()
}

// next returns the next job, or false if there are no more.
func next(ctx context.Context, jobs <-chan string) (job string, more bool) {
	select {
	case job, more = <-jobs:
	case <-ctx.Done():
	}
	return job, more
}

func TestTranscode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		jobs := make(chan string)
		var inside, most, done atomic.Int32
		do := func(ctx context.Context, job string) error {
			n := inside.Add(1)
			defer inside.Add(-1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			select {
			case <-time.After(time.Minute): // longer than a lease
				done.Add(1)
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		ended := make(chan error)
		for range 3 { // processes
			c := s.Client(t)
			go func() { ended <- transcode(t.Context(), c, 5, jobs, do) }()
		}
		for i := range 40 {
			jobs <- fmt.Sprint(i)
		}
		close(jobs)
		for range 3 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		if done.Load() != 40 || most.Load() != 4 {
			t.Errorf("%d jobs were done, %d at once", done.Load(), most.Load())
		}
	})
}

// The first error ends the other workers, and leaves no permit taken.
func TestTranscode_error(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		jobs := make(chan string, 2)
		jobs <- "good"
		jobs <- "bad"
		broken := errors.New("out of film")
		err := transcode(t.Context(), s.Client(t), 5, jobs, func(ctx context.Context, job string) error {
			if job == "bad" {
				return broken
			}
			<-ctx.Done()
			return context.Cause(ctx)
		})
		if !errors.Is(err, broken) || errors.Is(err, lock.ErrLost) {
			t.Errorf("%v", err)
		}
		synctest.Wait() // a permit that came after its caller had left is given back in the background
		if state, err := s.Client(t).NewSemaphore("gpus", 4).Inspect(t.Context()); err != nil || state.Free != 4 {
			t.Errorf("%+v, %v", state, err)
		}
	})
}

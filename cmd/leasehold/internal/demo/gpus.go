package demo

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/semaphore"
)

const (
	gpus      = 3
	trainings = 12
	trainers  = 3                      // clients
	trainTime = 120 * time.Millisecond // of each training
)

var deadWithin = shortLease + 2*time.Second

// gpuReport is the result of the scene.
type gpuReport struct {
	ran, most int           // number of trainings, and maximum number of busy GPUs
	before    int           // small trainings that came after the big one, and overtook it
	died      time.Duration // from the death of a holder until another client had its GPUs
	free      int64         // at the end
	wrong     error         // of a client with a different permit count
}

// shareGPUs lets trainings share a few GPUs, a semaphore. One training needs all of them, and one holder dies.
func shareGPUs(ctx context.Context, s *stage) error {
	s.out.line("%d GPUs as a semaphore, and %d trainings by %d clients. One training needs all GPUs. At the end, a process dies with all GPUs.", gpus, trainings, trainers)
	report, err := playGPUs(ctx, s)
	if err != nil {
		return err
	}
	s.check(checkGPUs(report)...)
	return nil
}

// take returns n of the GPUs as a lock.
func take(c *client.Client, n int) lock.Locker { return c.NewSemaphore("gpus", gpus).N(n) }

func playGPUs(ctx context.Context, s *stage) (r gpuReport, err error) {
	clients, err := s.openMany(ctx, trainers)
	if err != nil {
		return r, err
	}
	var (
		mu      sync.Mutex
		running int  // guarded by mu
		bigRan  bool // guarded by mu: the training that needs all GPUs
	)
	train := func(ctx context.Context, c *client.Client, n int, late bool) error {
		return lock.Do(ctx, take(c, n), func(ctx context.Context) error {
			mu.Lock()
			running += n
			r.ran++
			r.most = max(r.most, running)
			if late && !bigRan {
				r.before++
			}
			bigRan = bigRan || n == gpus
			s.out.progress("%d of %d GPUs busy", running, gpus)
			mu.Unlock()
			defer func() {
				mu.Lock()
				running -= n
				mu.Unlock()
			}()
			return sleep(ctx, trainTime)
		})
	}
	all := clients[0].NewSemaphore("gpus", gpus)
	waits := func(ctx context.Context, n int) error { // until at least n wait
		for {
			state, err := all.Inspect(ctx)
			if err != nil || len(state.Waiters) >= n {
				return err
			}
			if err := sleep(ctx, 5*time.Millisecond); err != nil {
				return err
			}
		}
	}
	first, err := take(clients[0], 1).Lock(ctx) // a GPU is busy until the big one waits
	if err != nil {
		return r, err
	}
	err = each(ctx, trainings+1, func(ctx context.Context, i int) error {
		switch {
		case i == 0:
			return train(ctx, clients[0], gpus, false)
		case i == trainings:
			if err := waits(ctx, trainings); err != nil { // the others are queued behind it
				return err
			}
			return first.Unlock(ctx)
		}
		if err := waits(ctx, 1); err != nil {
			return err
		}
		return train(ctx, clients[i%trainers], 1, true)
	})
	if err != nil {
		return r, err
	}

	if r.died, err = dieWithGPUs(ctx, s, clients[1]); err != nil {
		return r, err
	}
	_, r.wrong = clients[2].NewSemaphore("gpus", gpus+1).TryLock(ctx)
	state, err := all.Inspect(ctx)
	r.free = state.Free
	return r, err
}

// dieWithGPUs kills a process that holds all GPUs, and returns the time until heir acquires them.
func dieWithGPUs(ctx context.Context, s *stage, heir *client.Client) (time.Duration, error) {
	mortal, kill, err := s.openMortal(s.address, client.WithWatchdogTimeout(shortLease))
	if err != nil {
		return 0, err
	}
	if _, err := take(mortal, gpus).Lock(ctx); err != nil {
		return 0, err
	}
	_ = kill(ctx) // it can no longer release its GPUs, and returns that error
	died := time.Now()
	s.out.progress("a process died while it held all GPUs")
	hold, err := take(heir, gpus).Lock(ctx)
	if err != nil {
		return 0, err
	}
	back := time.Since(died)
	return back, hold.Unlock(ctx)
}

func checkGPUs(r gpuReport) []claim {
	return []claim{
		claimf(r.ran == trainings && r.most <= gpus, "all %d trainings ran, and at most %d GPUs were busy at once", r.ran, r.most),
		claimf(r.before == 0, "the training that needs all GPUs was not starved: %d later ones ran before it", r.before),
		claimf(r.died > shortLease/2 && r.died < deadWithin, "a process died with all GPUs: they were free %.1f s later, when its lease of %.1f s expired", r.died.Seconds(), shortLease.Seconds()),
		claimf(errors.Is(r.wrong, semaphore.ErrPermitCount), "a client with a different permit count fails: %v", r.wrong),
		claimf(r.free == gpus, "%d of %d GPUs are free at the end", r.free, gpus),
	}
}

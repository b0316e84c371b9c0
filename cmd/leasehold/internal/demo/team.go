package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/latch"
)

const teamParts = 8

// teamReport is the result of the scene.
type teamReport struct {
	early  bool          // the wait for the latch ended before the last part
	left   int64         // count of the latch after each part was reported three times
	waited error         // of the wait for the latch
	absent error         // of a wait for a latch that was never initialized
	lost   int64         // number of lost workers that the wait for the wait group reported
	named  time.Duration // time from the death of a worker to that report
	done   error         // of the wait for the wait group, after another worker had done the part
}

// team lets workers do the parts of a job: a latch counts the parts, and a wait group tracks the workers. One worker dies.
func team(ctx context.Context, s *stage) error {
	s.out.line("A countdown latch of %d parts, each reported three times. Then a worker of a wait group dies with a lease of %v.", teamParts, shortLease)
	report, err := playTeam(ctx, s)
	if err != nil {
		return err
	}
	s.check(checkTeam(report)...)
	return nil
}

func playTeam(ctx context.Context, s *stage) (r teamReport, err error) {
	clients, err := s.openMany(ctx, 2)
	if err != nil {
		return r, err
	}
	l := clients[0].NewLatch("parts")
	if _, err := l.TrySetCount(ctx, teamParts+1); err != nil {
		return r, err
	}
	waited := make(chan error, 1)
	go func() { waited <- clients[1].NewLatch("parts").Wait(ctx) }()
	err = each(ctx, 3*teamParts, func(ctx context.Context, i int) error {
		_, err := clients[i%2].NewLatch("parts").CountDownOnce(ctx, fmt.Sprint("part ", i%teamParts))
		return err
	})
	if err != nil {
		return r, err
	}
	r.early = len(waited) > 0
	if r.left, err = l.Count(ctx); err != nil {
		return r, err
	}
	if _, err := l.CountDown(ctx); err != nil {
		return r, err
	}
	r.waited = <-waited
	r.absent = clients[0].NewLatch("never made").Wait(ctx)
	if err := l.Delete(ctx); err != nil {
		return r, err
	}

	waitGroup := clients[0].NewWaitGroup("team")
	mortal, kill, err := s.openMortal(s.address, client.WithWatchdogTimeout(shortLease))
	if err != nil {
		return r, err
	}
	if _, err := mortal.NewWaitGroup("team").Add(ctx); err != nil {
		return r, err
	}
	works := func(ctx context.Context) error { return sleep(ctx, 10*time.Millisecond) }
	if err := waitGroup.Do(ctx, works); err != nil {
		return r, err
	}
	_ = kill(ctx) // it cannot leave the wait group
	died := time.Now()
	s.out.progress("a worker died")
	var lost *latch.LostError
	if err := clients[1].NewWaitGroup("team").Wait(ctx); !errors.As(err, &lost) {
		r.done = err
		return r, nil
	}
	r.lost, r.named = lost.Lost, time.Since(died)
	if err := waitGroup.Do(ctx, works); err != nil { // another worker does its part
		return r, err
	}
	if _, err := waitGroup.Dismiss(ctx, lost.Workers...); err != nil {
		return r, err
	}
	r.done = waitGroup.WaitFor(ctx, 2)
	return r, waitGroup.Delete(ctx)
}

func checkTeam(r teamReport) []claim {
	return []claim{
		claimf(r.left == 1 && !r.early, "%d reports of %d parts counted %d times", 3*teamParts, teamParts, teamParts+1-r.left),
		claimf(r.waited == nil, "the waiter continues after the last part"),
		claimf(errors.Is(r.absent, latch.ErrNotInitialized), "a latch without a count is not a released one: %v", r.absent),
		claimf(r.lost == 1, "the wait group reported the dead worker after %v", r.named.Round(time.Millisecond)),
		claimf(r.done == nil, "the job completes after another worker has done the part"),
	}
}

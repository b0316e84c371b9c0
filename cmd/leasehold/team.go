package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/latch"
	"github.com/leasehold-go/leasehold/lock"
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

// electionReport is the result of the scene.
type electionReport struct {
	told   time.Duration // time from the deletion of the leader's lock to the cancellation of its context
	values []string      // leader values that another process observed
	second string        // the leader after that
}

// elections lets two processes run for election. The lock of the first leader is deleted by hand, and the second one resigns.
func elections(ctx context.Context, s *stage) error {
	s.out.line("Two processes run for election. The lock of the leader is deleted.")
	report, err := playElections(ctx, s)
	if err != nil {
		return err
	}
	s.check(checkElections(report)...)
	return nil
}

func playElections(ctx context.Context, s *stage) (r electionReport, err error) {
	clients, err := s.openMany(ctx, 3, client.WithWatchdogTimeout(shortLease))
	if err != nil {
		return r, err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	type turn struct {
		value string
		ctx   context.Context
	}
	turns := make(chan turn, 100)
	over := make(chan error, 2)
	run := func(i int) {
		value := fmt.Sprint("node ", i)
		over <- clients[i].NewElection("election").Run(ctx, value, func(ctx context.Context) error {
			turns <- turn{value, ctx}
			<-ctx.Done()
			return nil
		})
	}
	go run(0)
	first := <-turns
	go run(1)
	seen := make(chan string, 100)
	go func() {
		defer close(seen)
		for l, err := range clients[2].NewElection("election").Observe(ctx) {
			if err == nil && l.Value != "" {
				seen <- l.Value
			}
		}
	}()
	r.values = append(r.values, <-seen)
	if err := s.data.steal(ctx, "election"); err != nil {
		return r, err
	}
	stolen := time.Now()
	<-first.ctx.Done()
	r.told = time.Since(stolen)
	if !errors.Is(context.Cause(first.ctx), lock.ErrLost) {
		return r, fmt.Errorf("the leader's context was canceled for another reason: %w", context.Cause(first.ctx))
	}
	r.second = (<-turns).value
	r.values = append(r.values, <-seen)
	stop()
	for range 2 {
		if err := <-over; err != nil && !errors.Is(err, context.Canceled) {
			return r, err
		}
	}
	for range seen {
	}
	return r, nil
}

func checkElections(r electionReport) []claim {
	last := len(r.values) - 1
	return []claim{
		claimf(r.told < shortLease+time.Second, "the leader detected the loss %v after its lock was deleted", r.told.Round(time.Millisecond)),
		claimf(last > 0 && r.values[0] == "node 0" && r.values[last] != "", "a third process observed the leaders: %v", r.values),
		claimf(r.second != "", "%s leads after that", r.second),
	}
}

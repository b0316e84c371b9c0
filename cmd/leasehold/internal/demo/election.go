package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
)

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

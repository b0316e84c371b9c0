package guides

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/locktest"
)

// everyMinute runs job once per minute in one of the replicas that call it. A run that takes
// longer than a minute skips the minutes it covers.
func everyMinute(ctx context.Context, c *client.Client, job func(context.Context) error) {
	l := c.NewLock("cron:invoices", lock.WithMinHold(50*time.Second))
	for {
		next := time.Now().Truncate(time.Minute).Add(time.Minute)
		select {
		case <-time.After(time.Until(next)):
		case <-ctx.Done():
			return
		}
		err := lock.TryDo(ctx, l, job)
		if errors.Is(err, lock.ErrNotAcquired) {
			continue // another replica is running it, or just ran it
		}
		if err != nil {
			slog.Error("cron:invoices", "err", err) // Redis is unavailable, or the job failed or lost the lock
		}
	}
}

func TestCron(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs, inside atomic.Int32
		s := locktest.NewServer(t)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute+30*time.Second)
		defer cancel()
		job := func(context.Context) error {
			if inside.Add(1) > 1 {
				t.Error("it runs twice at the same time")
			}
			defer inside.Add(-1)
			if runs.Add(1) == 3 {
				time.Sleep(150 * time.Second) // longer than a minute, once
			}
			return nil
		}
		for i := range 3 {
			c := s.Client(t)
			go func() {
				time.Sleep(time.Duration(i) * 5 * time.Second) // as if its clock were wrong by that
				everyMinute(ctx, c, job)
			}()
		}
		<-ctx.Done()
		synctest.Wait()
		if n := runs.Load(); n != 8 {
			t.Errorf("in ten minutes, with a run that covers two more: %d runs", n)
		}
	})
}

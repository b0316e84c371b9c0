// Command nightly is the program of docs/guides/cron.md.
package main

import (
	"context"
	"errors"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

func main() {
	if err := run(os.Getenv("REDIS_URL"), 2*time.Hour, invoices); err != nil { // at 02:00 UTC
		log.Fatal(err)
	}
}

// invoices is your job.
func invoices(ctx context.Context, night string) error {
	log.Print("sending the invoices of ", night)
	return ctx.Err()
}

// run calls job once per night, in one of the replicas that call run.
func run(url string, at time.Duration, job func(ctx context.Context, night string) error) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	option, err := client.ParseURL(url)
	if err != nil {
		return err
	}
	rdb, err := rueidis.NewClient(option)
	if err != nil {
		return err
	}
	defer rdb.Close()
	c, err := client.New(rdb, client.WithName("nightly"))
	if err != nil {
		return err
	}
	defer c.Close(context.Background())
	guard, err := fence.NewRedis(rdb)
	if err != nil {
		return err
	}

	const day, retry, mark = 24 * time.Hour, 10 * time.Minute, "cron:invoices:done"
	l := c.NewLock("cron:invoices", lock.WithFencing(), lock.WithMaxHold(3*time.Hour))
	due := time.Now().UTC().Add(-at).Truncate(day).Add(at) // the latest night, in case no replica did it
	for {
		night := due.Format(time.DateOnly)
		err := lock.Do(ctx, l, func(ctx context.Context) error { // waits while another replica runs the job
			done, err := rdb.Do(ctx, rdb.B().Get().Key(mark).Build()).ToString()
			if err != nil && !rueidis.IsRedisNil(err) {
				return err
			}
			if done >= night {
				return nil // another replica did it
			}
			if err := job(ctx, night); err != nil {
				return err
			}
			token := lock.HoldFromContext(ctx).Token()
			return guard.Set(context.WithoutCancel(ctx), token, mark, night) // even after SIGTERM: the job is done
		})
		wait := retry
		if err == nil {
			due = due.Add(day)
			wait = time.Until(due)
		} else if ctx.Err() == nil || !errors.Is(err, context.Canceled) { // SIGTERM is not a failure
			slog.Error("nightly job failed, will retry", "night", night, "err", err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
	}
}

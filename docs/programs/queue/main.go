// Command queue is a program of docs/guides/queue.md and docs/guides/shutdown.md.
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
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

func main() {
	if err := run(os.Getenv("REDIS_URL"), charge); err != nil {
		log.Fatal(err)
	}
}

// charge is your work.
func charge(ctx context.Context, order string) error {
	log.Print("charging order ", order)
	return ctx.Err()
}

// run works on the jobs of the stream "jobs": XADD jobs * id j-17 order 42
func run(url string, do func(ctx context.Context, order string) error) error {
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
	c, err := client.New(rdb, client.WithName("worker"))
	if err != nil {
		return err
	}
	defer c.Close(context.Background())
	group := rdb.B().XgroupCreate().Key("jobs").Group("workers").Id("0").Mkstream().Build()
	if err := rdb.Do(ctx, group).Error(); err != nil && !rueidis.IsRedisBusyGroup(err) {
		return err
	}

	cursor := "0"
	for ctx.Err() == nil { // SIGTERM stops the intake
		jobs, err := receive(ctx, rdb, &cursor)
		for _, job := range jobs { // at most one
			err = process(ctx, c, rdb, job, do)
		}
		if err != nil && (ctx.Err() == nil || !errors.Is(err, context.Canceled)) { // SIGTERM is not a failure
			slog.Warn("job not done, will be delivered again", "err", err)
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		}
	}
	return nil
}

// receive returns a job that no worker acknowledged within a minute, or else a new one, or none. XAUTOCLAIM examines only some
// unacknowledged jobs, and the next call continues at its cursor.
func receive(ctx context.Context, rdb rueidis.Client, cursor *string) ([]rueidis.XRangeEntry, error) {
	self, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	claim := rdb.B().Xautoclaim().Key("jobs").Group("workers").Consumer(self).MinIdleTime("60000").Start(*cursor).Count(1).Build()
	claimed, err := rdb.Do(ctx, claim).ToArray()
	if err != nil {
		return nil, err
	}
	if *cursor, err = claimed[0].ToString(); err != nil {
		return nil, err
	}
	if jobs, err := claimed[1].AsXRange(); err != nil || len(jobs) > 0 {
		return jobs, err
	}
	read := rdb.B().Xreadgroup().Group("workers", self).Count(1).Block(1000).Streams().Key("jobs").Id(">").Build()
	streams, err := rdb.Do(ctx, read).AsXRead()
	if rueidis.IsRedisNil(err) {
		return nil, nil
	}
	return streams["jobs"], err
}

// process does a job under the lock of its order, and removes it. A job that was done before is only removed.
func process(ctx context.Context, c *client.Client, rdb rueidis.Client, job rueidis.XRangeEntry, do func(ctx context.Context, order string) error) error {
	mark, order := "jobs:done:"+job.FieldValues["id"], job.FieldValues["order"]
	err := lock.TryDo(ctx, c.NewLock("orders:"+order, lock.WithMaxHold(10*time.Minute)), func(ctx context.Context) error {
		held := lock.HoldFromContext(ctx).Context() // canceled by a loss, but not by SIGTERM
		done, err := rdb.Do(held, rdb.B().Exists().Key(mark).Build()).AsBool()
		if err != nil || done {
			return err
		}
		if err := do(held, order); err != nil {
			return err
		}
		return rdb.Do(context.WithoutCancel(ctx), rdb.B().Set().Key(mark).Value("1").Ex(7*24*time.Hour).Build()).Error()
	})
	if err != nil {
		return err // not acknowledged: delivered again after a minute
	}
	ack, del := rdb.B().Xack().Key("jobs").Group("workers").Id(job.ID).Build(), rdb.B().Xdel().Key("jobs").Id(job.ID).Build()
	replies := rdb.DoMulti(context.WithoutCancel(ctx), ack, del)
	return errors.Join(replies[0].Error(), replies[1].Error())
}

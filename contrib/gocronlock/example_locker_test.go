package gocronlock_test

import (
	"context"
	"log"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/contrib/gocronlock"
	"github.com/leasehold-go/leasehold/lock"
)

// everyMinute starts a scheduler. One process runs the job each minute.
func everyMinute(c *client.Client, job func()) (gocron.Scheduler, error) {
	locker := gocronlock.NewLocker(func(job string) lock.Locker {
		return c.NewLock("cron:"+job, lock.WithMinHold(50*time.Second))
	})
	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
	if err != nil {
		return nil, err
	}
	_, err = s.NewJob(gocron.CronJob("* * * * *", false), gocron.NewTask(job), gocron.WithName("invoices"))
	if err != nil {
		return nil, err
	}
	s.Start()
	return s, nil
}

// The process that acquires the lock first runs the job.
func ExampleNewLocker() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	s, err := everyMinute(c, func() { log.Print("invoices") })
	if err != nil {
		log.Print(err)
		return
	}
	// … until the process ends …
	if err := s.Shutdown(); err != nil {
		log.Print(err)
	}
	// Output:
}

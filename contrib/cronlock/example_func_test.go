package cronlock_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/contrib/cronlock"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/robfig/cron/v3"
)

// invoices adds a job that one process runs each minute.
func invoices(s *cron.Cron, c *client.Client, job func(ctx context.Context) error) error {
	l := c.NewLock("cron:invoices", lock.WithMinHold(50*time.Second))
	report := func(err error) { log.Print("cron:invoices: ", err) } // unavailable, lost, or an error of the job
	_, err := s.AddJob("* * * * *", cronlock.Func(l, report, job))
	return err
}

// The context of the job is canceled when the lock is lost. The second process skips the run.
func ExampleFunc() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	for _, s := range []*cron.Cron{cron.New(), cron.New()} { // two processes
		err := invoices(s, c, func(ctx context.Context) error {
			fmt.Println("writing invoices")
			return ctx.Err()
		})
		if err != nil {
			log.Print(err)
			return
		}
		s.Entries()[0].Job.Run() // as s.Start does at the full minute
	}
	// Output: writing invoices
}

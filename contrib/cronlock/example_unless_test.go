package cronlock_test

import (
	"context"
	"fmt"
	"log"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/contrib/cronlock"
	"github.com/robfig/cron/v3"
)

// Wrap an existing job. It has no context, so it is not notified of a loss.
func ExampleSkipIfLocked() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	job := cron.FuncJob(func() { fmt.Println("writing a report") })
	failed := func(err error) { log.Print("cron:report: ", err) } // Redis is unavailable, or the lock was lost
	one := cronlock.SkipIfLocked(c.NewLock("cron:report"), failed)
	cron.NewChain(one).Then(job).Run() // like the schedule
	// Output: writing a report
}

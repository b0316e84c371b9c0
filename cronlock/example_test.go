package cronlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/cronlock"
	"github.com/leasehold-go/leasehold/internal/memredis"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/robfig/cron/v3"
)

// invoices adds a job that one of all processes runs each minute.
func invoices(s *cron.Cron, c *client.Client, job func(ctx context.Context) error) error {
	l := c.NewLock("cron:invoices", lock.WithAtLeast(50*time.Second))
	report := func(err error) { log.Print("cron:invoices: ", err) } // no answer from Redis, a loss, or an error of the job
	_, err := s.AddJob("* * * * *", cronlock.Func(l, report, job))
	return err
}

// A job with a context, which ends when the lock is lost. The second process skips the run.
func ExampleFunc() {
	ctx := context.Background()
	c, closeAll := open(ctx)
	defer closeAll()
	for _, s := range []*cron.Cron{cron.New(), cron.New()} { // two processes
		err := invoices(s, c, func(ctx context.Context) error {
			fmt.Println("writing invoices")
			return ctx.Err()
		})
		if err != nil {
			log.Fatal(err)
		}
		s.Entries()[0].Job.Run() // as s.Start has it run at the full minute
	}
	// Output: writing invoices
}

// A job that is there already is wrapped. It has no context, so it does not hear of a loss.
func ExampleUnless() {
	ctx := context.Background()
	c, closeAll := open(ctx)
	defer closeAll()
	job := cron.FuncJob(func() { fmt.Println("writing invoices") })
	report := func(err error) { fmt.Println(errors.Is(err, lock.ErrUnavailable), err) }
	one := cronlock.Unless(c.NewLock("cron:invoices"), report)
	cron.NewChain(one).Then(job).Run()
	// Output: writing invoices
}

// open returns a client of a server in memory. Yours is of redis://127.0.0.1:6379, say.
func open(ctx context.Context) (c *client.Client, closeAll func()) {
	server, err := memredis.Start()
	if err != nil {
		log.Fatal(err)
	}
	c, err = client.Open(ctx, "redis://"+server.Addr())
	if err != nil {
		log.Fatal(err)
	}
	return c, func() {
		c.Close(ctx)
		server.Close()
	}
}

package gocronlock_test

import (
	"context"
	"log"
	"sync"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/gocronlock"
	"github.com/leasehold-go/leasehold/internal/memredis"
	"github.com/leasehold-go/leasehold/lock"
)

// everyMinute starts a scheduler of which one in all processes runs each minute's job.
func everyMinute(c *client.Client, job func()) (gocron.Scheduler, error) {
	locker := gocronlock.NewLocker(func(job string) lock.Locker {
		return c.NewLock("cron:"+job, lock.WithAtLeast(50*time.Second))
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

// Each run of a job belongs to the process that is first.
func ExampleNewLocker() {
	ctx := context.Background()
	c, closeAll := open(ctx)
	defer closeAll()
	s, err := everyMinute(c, func() { log.Print("invoices") })
	if err != nil {
		log.Fatal(err)
	}
	if err := s.Shutdown(); err != nil {
		log.Print(err)
	}
	// Output:
}

// The leader runs all jobs, until it closes or loses its lock.
func ExampleElector() {
	ctx := context.Background()
	c, closeAll := open(ctx)
	defer closeAll()
	elector := gocronlock.NewElector(c.NewLock("cron:leader"))
	defer elector.Close() // gives the lock back; another process is the leader then

	var once sync.WaitGroup
	once.Add(1)
	s, err := gocron.NewScheduler(gocron.WithDistributedElector(elector))
	if err != nil {
		log.Fatal(err)
	}
	for elector.IsLeader(ctx) != nil { // a job that is due before that is skipped; so this waits
		time.Sleep(time.Millisecond)
	}
	_, err = s.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()), gocron.NewTask(once.Done))
	if err != nil {
		log.Fatal(err)
	}
	s.Start()
	once.Wait()
	if err := s.Shutdown(); err != nil {
		log.Print(err)
	}
	// Output:
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

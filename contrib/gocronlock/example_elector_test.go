package gocronlock_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/contrib/gocronlock"
)

// The leader runs all jobs, until it closes or loses its lock.
func ExampleElector() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	elector := gocronlock.NewElector(c.NewLock("cron:leader"))
	defer elector.Close()              // releases the lock, so that another process becomes the leader
	for elector.IsLeader(ctx) != nil { // wait, because a job that is due before that is skipped
		time.Sleep(10 * time.Millisecond)
	}

	s, err := gocron.NewScheduler(gocron.WithDistributedElector(elector))
	if err != nil {
		log.Print(err)
		return
	}
	done := make(chan string)
	_, err = s.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()), gocron.NewTask(func() { done <- "done" }))
	if err != nil {
		log.Print(err)
		return
	}
	s.Start()
	fmt.Println(<-done)
	if err := s.Shutdown(); err != nil {
		log.Print(err)
	}
	// Output: done
}

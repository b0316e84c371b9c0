package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
)

func main() {
	if err := run(); err != nil {
		log.Fatal(err) // the lock was lost, Redis is unavailable, Ctrl-C, or SIGTERM
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c, err := client.Open(ctx, "redis://127.0.0.1:6379")
	if err != nil {
		return err
	}
	defer c.Close(context.Background()) // releases every lock still held

	fmt.Println("waiting for the lock")
	err = lock.Do(ctx, c.NewLock("orders:42"), func(ctx context.Context) error {
		for step := 1; step <= 3; step++ {
			fmt.Println("lock held, step", step, "of 3")
			select {
			case <-time.After(time.Second): // the work
			case <-ctx.Done(): // the lock is lost, Ctrl-C, or SIGTERM
				return context.Cause(ctx)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	fmt.Println("done, lock released")
	return nil
}

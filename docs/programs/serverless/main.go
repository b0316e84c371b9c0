// Command serverless is the program of docs/guides/serverless.md.
package main

import (
	"bufio"
	"context"
	"log"
	"os"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
)

func main() {
	ctx := context.Background()
	// One client per process. A client must not be part of a VM snapshot that is restored twice.
	c, err := client.Open(ctx, os.Getenv("REDIS_URL"), client.WithWatchdogTimeout(10*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	for events := bufio.NewScanner(os.Stdin); events.Scan(); { // on AWS Lambda: lambda.Start
		if err := handle(ctx, c, events.Text(), write); err != nil {
			log.Print(err)
		}
	}
}

// handle processes one event, and releases the lock before it returns.
func handle(ctx context.Context, c *client.Client, id string, write func(ctx context.Context, token uint64, part int) error) error {
	l := c.NewLock("invoices:"+id, lock.WithWait(2*time.Second), lock.WithFencing())
	return lock.Do(ctx, l, func(ctx context.Context) error {
		h := lock.HoldFromContext(ctx)
		for part := range 3 {
			if err := h.Err(); err != nil { // compares the clocks, even right after a pause
				return err
			}
			if err := write(ctx, h.Token(), part); err != nil {
				return err
			}
		}
		return nil
	})
}

// write is your work. The resource that it writes to rejects older tokens.
func write(ctx context.Context, token uint64, part int) error {
	log.Print("part ", part, " with token ", token)
	return ctx.Err()
}

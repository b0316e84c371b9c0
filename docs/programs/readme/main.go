package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
)

func main() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://127.0.0.1:6379")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx) // gives back every lock that it still holds

	orders := c.NewLock("orders:42", lock.WithWait(5*time.Second))
	err = lock.Do(ctx, orders, func(ctx context.Context) error {
		for step := 1; step <= 3; step++ {
			if ctx.Err() != nil { // over as soon as the lock is not certainly held
				return context.Cause(ctx)
			}
			fmt.Println("shipping, step", step)
		}
		return nil
	})
	switch {
	case errors.Is(err, lock.ErrNotAcquired):
		fmt.Println("another process ships it")
	case errors.Is(err, lock.ErrUnavailable):
		fmt.Println("Redis is unavailable")
	case err != nil:
		fmt.Println("failed, or lost the lock:", err)
	}
}

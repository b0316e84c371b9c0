package fairlock_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
)

// Callers are served first-come, first-served across all processes. This caller waits for at most five seconds.
func Example() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	desk := c.NewFairLock("desk", lock.WithWait(5*time.Second))

	err = lock.Do(ctx, desk, func(ctx context.Context) error {
		fmt.Println("next, please") // ctx is canceled as soon as the lock can no longer be guaranteed
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// next, please
	// <nil>
}

// Two callers are served in the order of their requests.
func ExampleLock() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	counter := c.NewFairLock("counter")
	h, err := counter.Lock(ctx)
	if err != nil {
		log.Print(err)
		return
	}

	served := make(chan error)
	for i, caller := range []string{"first", "second"} {
		go func() {
			served <- lock.Do(ctx, counter, func(context.Context) error {
				fmt.Println(caller)
				return nil
			})
		}()
		for range time.Tick(10 * time.Millisecond) { // until it is queued
			state, err := counter.Inspect(ctx)
			if err != nil {
				log.Print(err)
				return
			}
			if len(state.Waiters) > i {
				break
			}
		}
	}
	if err := h.Unlock(ctx); err != nil {
		log.Print(err)
		return
	}
	fmt.Println(<-served, <-served)
	// Output:
	// first
	// second
	// <nil> <nil>
}

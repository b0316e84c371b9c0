package fairlock_test

import (
	"context"
	"fmt"
	"log"
	"sync"

	"github.com/leasehold-go/leasehold/fairlock"
	"github.com/leasehold-go/leasehold/internal/exampletest"
)

// Two processes are served in the order in which they asked.
func ExampleLock() {
	redis := exampletest.Start()
	defer redis.Close()
	ctx := context.Background()
	h, err := redis.Client().NewFairLock("desk").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}

	var served sync.WaitGroup
	for i, process := range []string{"first", "second"} {
		var desk *fairlock.Lock = redis.Client().NewFairLock("desk")
		served.Go(func() {
			h, err := desk.Lock(ctx)
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println(process)
			_ = h.Unlock(ctx)
		})
		for { // until it stands in the queue
			if state, err := desk.Inspect(ctx); err != nil || len(state.Waiters) > i {
				break
			}
		}
	}
	_ = h.Unlock(ctx)
	served.Wait()
	// Output:
	// first
	// second
}

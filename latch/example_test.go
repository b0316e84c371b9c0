package latch_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/latch"
)

// Three workers import one part each, and a fourth process waits for all of them.
func Example() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	l := c.NewLatch("import")
	if _, err := l.TrySetCount(ctx, 3); err != nil { // any participant can call it; the first call creates the latch
		log.Print(err)
		return
	}

	for worker := range 3 {
		go func() {
			// … import the part …
			if _, err := l.CountDownOnce(ctx, fmt.Sprint("part ", worker)); err != nil {
				log.Print(err) // unknown outcome: the worker can repeat the call
			}
		}()
	}

	fmt.Println(l.Wait(ctx))
	// Output: <nil>
}

// Two workers import one part each. The waiting process is notified of a lost worker.
func ExampleWaitGroup() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	waitGroup := c.NewWaitGroup("import")

	part := func(ctx context.Context) error { return ctx.Err() } // … work until ctx is canceled …
	broken := func(context.Context) error { return errors.New("disk full") }
	fmt.Println(waitGroup.Do(ctx, part))
	fmt.Println(waitGroup.Do(ctx, broken))

	err = waitGroup.WaitFor(ctx, 2) // two workers were added, and all are done
	var lost *latch.LostError
	if errors.As(err, &lost) {
		fmt.Println(lost.Lost, "lost")
		if _, err := waitGroup.Dismiss(ctx, lost.Workers...); err != nil { // another worker does its part
			log.Print(err)
			return
		}
		fmt.Println(waitGroup.Do(ctx, part))
	}
	fmt.Println(waitGroup.WaitFor(ctx, 2))
	// Output:
	// <nil>
	// disk full
	// 1 lost
	// <nil>
	// <nil>
}

// A latch that was never created is not a released latch.
func ExampleLatch_Wait() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	err = c.NewLatch("never made").Wait(ctx)
	fmt.Println(errors.Is(err, latch.ErrNotInitialized))
	fmt.Println(err)
	// Output:
	// true
	// leasehold: wait "never made": not initialized: call TrySetCount first
}

// A worker adds itself, and reports when it is done.
func ExampleWorker() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	waitGroup := c.NewWaitGroup("inventory")
	m, err := waitGroup.Add(ctx)
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Println(m.Context().Err()) // canceled as soon as it can no longer be guaranteed that the worker counts as alive
	fmt.Println(m.Done(ctx))       // the worker is done
	fmt.Println(waitGroup.Wait(ctx))
	// Output:
	// <nil>
	// <nil>
	// <nil>
}

// The state of a wait group.
func ExampleWaitGroupState() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	state, err := c.NewWaitGroup("import").Inspect(ctx)
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Println(state.Done, "are done")
	for i, m := range state.Alive {
		fmt.Println(m.Client, "is alive for another", state.Left[i])
	}
	for _, m := range state.Lost {
		fmt.Println(m.Client, "was lost")
	}
}

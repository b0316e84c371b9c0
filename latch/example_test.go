package latch_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/latch"
)

// Three workers import a part each, and a fourth process waits for all of them.
func Example() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	l := c.NewLatch("import")
	if _, err := l.TrySetCount(ctx, 3); err != nil { // all that take part can do that; the first one makes it
		log.Fatal(err)
	}

	for worker := range 3 {
		go func() {
			// … import the part …
			if _, err := l.CountDownOnce(ctx, fmt.Sprint("part ", worker)); err != nil {
				log.Print(err) // nobody knows if it was counted: the worker can call it again
			}
		}()
	}

	fmt.Println(l.Wait(ctx))
	// Output: <nil>
}

// Two workers import a part each. The one that waits learns of the one that was lost.
func ExampleWaitGroup() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	waitGroup := c.NewWaitGroup("import")

	part := func(ctx context.Context) error { return ctx.Err() } // … work, while ctx is not over …
	broken := func(context.Context) error { return errors.New("disk full") }
	fmt.Println(waitGroup.Do(ctx, part))
	fmt.Println(waitGroup.Do(ctx, broken))

	err = waitGroup.WaitFor(ctx, 2) // two have joined, and all are done
	var lost *latch.LostError
	if errors.As(err, &lost) {
		fmt.Println(lost.Lost, "lost")
		if _, err := waitGroup.Dismiss(ctx, lost.Workers...); err != nil { // another one does its part
			log.Fatal(err)
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

// A latch that nobody has made is no open latch.
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

// A worker joins by itself, and says when it is done.
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
		log.Fatal(err)
	}
	fmt.Println(m.Context().Err()) // over as soon as it does not certainly count as alive
	fmt.Println(m.Done(ctx))       // it is done
	fmt.Println(waitGroup.Wait(ctx))
	// Output:
	// <nil>
	// <nil>
	// <nil>
}

// What a wait group is at.
func ExampleWaitGroupState() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	state, err := c.NewWaitGroup("import").Inspect(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(state.Done, "are done")
	for i, m := range state.Alive {
		fmt.Println(m.Client, "is at work, and counts as alive for", state.Left[i])
	}
	for _, m := range state.Lost {
		fmt.Println(m.Client, "was lost")
	}
}

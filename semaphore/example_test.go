package semaphore_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/semaphore"
)

// At most four callers render at the same time, across all processes.
func Example() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	gpus := c.NewSemaphore("gpus", 4)

	err = lock.Do(ctx, gpus, func(ctx context.Context) error {
		fmt.Println("rendering") // ctx is canceled as soon as the permit can no longer be guaranteed
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// rendering
	// <nil>
}

// One caller has three of four permits, so a caller that wants two is rejected.
func ExampleSemaphore() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	gpus := c.NewSemaphore("gpus", 4)

	h, err := gpus.N(3).Lock(ctx)
	if err != nil {
		log.Print(err)
		return
	}
	_, err = gpus.N(2).TryLock(ctx)
	fmt.Println(errors.Is(err, lock.ErrNotAcquired))
	fmt.Println(lock.TryDo(ctx, gpus, func(context.Context) error { return nil })) // the fourth
	_, err = c.NewSemaphore("gpus", 5).TryLock(ctx)                                // all processes must use the same number
	fmt.Println(errors.Is(err, semaphore.ErrPermitCount))
	fmt.Println(h.Unlock(ctx))
	// Output:
	// true
	// <nil>
	// true
	// <nil>
}

// Inspect shows how many permits are free, and who holds the others.
func ExampleState() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr, client.WithName("render"))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	gpus := c.NewSemaphore("gpus", 4)
	h, err := gpus.N(3).Lock(ctx)
	if err != nil {
		log.Print(err)
		return
	}
	defer h.Unlock(ctx)

	state, err := gpus.Inspect(ctx)
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Println(state.Permits, "permits,", state.Free, "free")
	for _, holder := range state.Holders {
		fmt.Println(holder.Permits, "of them are ours:", holder.Owner == h.Owner())
	}
	// Output:
	// 4 permits, 1 free
	// 3 of them are ours: true
}

// A script that writes only while the permit is held, by the server's clock.
func ExampleScript() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	gpus := c.NewSemaphore("gpus", 4)
	done := semaphore.NewScript(`return redis.call('set', KEYS[1], ARGV[1])`)

	h, err := gpus.Lock(ctx)
	if err != nil {
		log.Print(err)
		return
	}
	reply, err := gpus.Run(ctx, h, done, []string{"{gpus}:done"}, "frame 7")
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Println(reply.ToString())
	fmt.Println(h.Unlock(ctx))
	_, err = gpus.Run(ctx, h, done, []string{"{gpus}:done"}, "frame 8") // too late
	fmt.Println(errors.Is(err, lock.ErrLost))
	// Output:
	// OK <nil>
	// <nil>
	// true
}

// Each of two workers does the part of the work with its number. The next worker with that number has a larger token.
func ExampleSlot() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	workers := c.NewSemaphore("workers", 2)
	enter := func() (lock.Hold, semaphore.Slot) {
		h, err := workers.Lock(ctx)
		if err != nil {
			panic(err)
		}
		slots, err := workers.Slots(ctx, h) // one per permit
		if err != nil {
			panic(err)
		}
		return h, slots[0]
	}

	first, one := enter()
	second, two := enter()
	fmt.Println("part", one.Number, "and part", two.Number)
	fmt.Println(first.Unlock(ctx))
	third, three := enter()
	fmt.Println("part", three.Number, "again, with a larger token:", three.Token > one.Token)
	fmt.Println(second.Unlock(ctx), third.Unlock(ctx))
	// Output:
	// part 0 and part 1
	// <nil>
	// part 0 again, with a larger token: true
	// <nil> <nil>
}

package semaphore_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/exampletest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/semaphore"
)

// Four permits: one caller has three of them, so the next one that wants two gets none.
func ExampleSemaphore() {
	redis := exampletest.Start()
	defer redis.Close()
	ctx := context.Background()
	gpus := redis.Client().NewSemaphore("gpus", 4)

	h, err := gpus.N(3).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	_, err = gpus.N(2).TryLock(ctx)
	fmt.Println(errors.Is(err, lock.ErrNotAcquired))
	fmt.Println(lock.TryDo(ctx, gpus, func(context.Context) error { return nil })) // the fourth
	_, err = redis.Client().NewSemaphore("gpus", 5).TryLock(ctx)
	fmt.Println(errors.Is(err, semaphore.ErrPermits))
	fmt.Println(h.Unlock(ctx))
	// Output:
	// true
	// <nil>
	// true
	// <nil>
}

// How many permits are free, and who has the others.
func ExampleState() {
	redis := exampletest.Start()
	defer redis.Close()
	ctx := context.Background()
	gpus := redis.Client(client.WithName("render")).NewSemaphore("gpus", 4)
	h, err := gpus.N(3).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer h.Unlock(ctx)

	state, err := gpus.Inspect(ctx)
	if err != nil {
		log.Fatal(err)
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
	redis := exampletest.Start()
	defer redis.Close()
	ctx := context.Background()
	gpus := redis.Client().NewSemaphore("gpus", 4)
	done := semaphore.NewScript(`return redis.call('incr', KEYS[1])`)

	h, err := gpus.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	reply, err := gpus.Run(ctx, h, done, []string{"{gpus}:done"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(reply.AsInt64())
	_ = h.Unlock(ctx)
	_, err = gpus.Run(ctx, h, done, []string{"{gpus}:done"}) // too late
	fmt.Println(errors.Is(err, lock.ErrLost))
	// Output:
	// 1 <nil>
	// true
}

// Each of two workers takes the part of the work that has its number. The worker that gets a part next has a larger token for it.
func ExampleSlot() {
	redis := exampletest.Start()
	defer redis.Close()
	ctx := context.Background()
	workers := redis.Client().NewSemaphore("workers", 2)
	enter := func() (lock.Hold, semaphore.Slot) {
		h, err := workers.Lock(ctx)
		if err != nil {
			log.Fatal(err)
		}
		slots, err := workers.Slots(ctx, h) // one for each permit
		if err != nil {
			log.Fatal(err)
		}
		return h, slots[0]
	}

	first, a := enter()
	second, b := enter()
	fmt.Println("part", a.Number, "and part", b.Number)
	_ = first.Unlock(ctx)
	third, c := enter()
	fmt.Println("part", c.Number, "again, with a larger token:", c.Token > a.Token)
	_ = second.Unlock(ctx)
	_ = third.Unlock(ctx)
	// Output:
	// part 0 and part 1
	// part 0 again, with a larger token: true
}

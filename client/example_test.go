package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
)

func Example() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://127.0.0.1:6379")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	l := c.NewLock("orders:42") // no I/O, safe for concurrent use
	h, err := l.Lock(ctx)       // waits until the lock is held or ctx ends
	if err != nil {
		log.Print(err)
		return
	}
	defer h.Unlock(ctx) // works although ctx may be over by then

	ship := func(ctx context.Context) error { return ctx.Err() }
	if err := ship(h.Context()); err != nil { // over as soon as the lock is not certainly held
		log.Print(err)
	}
}

// Do is the shortest form: it locks, runs, and unlocks whatever happens.
func Example_do() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://127.0.0.1:6379")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	err = lock.Do(ctx, c.NewLock("report:2026-11"), func(ctx context.Context) error {
		for page := range 1000 {
			if err := ctx.Err(); err != nil { // looks at the clocks, not only at a signal
				return context.Cause(ctx)
			}
			_ = page // write it
		}
		return nil
	})
	if err != nil {
		log.Print(err)
	}
}

// One attempt, for work that need not be done if another process is doing it already.
func Example_tryLock() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://127.0.0.1:6379")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	h, err := c.NewLock("cron:nightly").TryLock(ctx)
	switch {
	case errors.Is(err, lock.ErrNotAcquired):
		fmt.Println("another instance does it")
		return
	case err != nil:
		log.Print(err) // Redis did not answer: that is not the same
		return
	}
	defer h.Unlock(ctx)
}

// A job that must not run longer than its lease, whatever happens to it.
func Example_fixedLease() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://127.0.0.1:6379")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	h, err := c.NewLock("import", lock.WithFixedLease(time.Minute)).Lock(ctx)
	if err != nil {
		log.Print(err)
		return
	}
	defer h.Unlock(ctx)
	fmt.Println("ours until", h.Until())
}

// Wait for five seconds at most, and hold the lock while the work goes on. A
// deadline on ctx would end the context of the hold as well.
func Example_limitedWait() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://127.0.0.1:6379")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	h, err := c.NewLock("import", lock.WithWait(5*time.Second)).Lock(ctx)
	if err != nil {
		log.Print(err) // matches lock.ErrNotAcquired when the time was up
		return
	}
	defer h.Unlock(ctx)
}

// Nested calls that take the same lock re-enter by the hold's context.
func Example_reentry() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://127.0.0.1:6379")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	account := c.NewLock("account:7")

	deposit := func(ctx context.Context, cents int) error {
		return lock.Do(ctx, account, func(context.Context) error { return nil })
	}
	err = lock.Do(ctx, account, func(ctx context.Context) error {
		return deposit(ctx, 100) // count 2, and back to 1
	})
	if err != nil {
		log.Print(err)
	}
}

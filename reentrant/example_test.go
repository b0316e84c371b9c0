package reentrant_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
)

// A long job that runs in one process at a time. The lock is renewed until the job ends, and the job stops if the lock
// is lost.
func Example() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	nightly := c.NewLock("nightly")

	err = lock.Do(ctx, nightly, func(ctx context.Context) error {
		for _, table := range []string{"orders", "customers"} {
			if ctx.Err() != nil { // canceled as soon as the lock can no longer be guaranteed
				return context.Cause(ctx)
			}
			fmt.Println("exporting", table)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// exporting orders
	// exporting customers
	// <nil>
}

// A nested call re-enters with the context of the hold. A call with another context has another owner.
func ExampleLock() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	account := c.NewLock("account:7")

	deposit := func(ctx context.Context) error { // acquires the lock itself, for its other callers
		return lock.TryDo(ctx, account, func(context.Context) error { return nil })
	}
	err = lock.Do(ctx, account, func(held context.Context) error {
		fmt.Println("under the hold's context:", deposit(held))
		fmt.Println("under another one:", deposit(ctx))
		return nil
	})
	fmt.Println(err)
	// Output:
	// under the hold's context: <nil>
	// under another one: leasehold: trylock "account:7": not acquired
	// <nil>
}

// An operator force-unlocks a stuck lock, and the holder is notified.
func ExampleLock_ForceUnlock() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	stuck := c.NewLock("stuck")

	err = lock.Do(ctx, stuck, func(ctx context.Context) error {
		forced, err := stuck.ForceUnlock(ctx) // in another process; or: leasehold unlock stuck
		fmt.Println("force-unlocked:", forced, err)
		<-ctx.Done()
		return context.Cause(ctx)
	})
	fmt.Println(errors.Is(err, lock.ErrLost), errors.Is(err, lock.ErrForceUnlocked))
	// Output:
	// force-unlocked: true <nil>
	// true true
}

package reentrant_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
)

// A long job, which one process at a time does. The lock is renewed until the job ends, and the job ends when the lock is lost.
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
			if ctx.Err() != nil { // over as soon as the lock is not certainly held
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

// A nested call re-enters by the context of the hold. A call under another context is another owner's.
func ExampleLock() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	account := c.NewLock("account:7")

	deposit := func(ctx context.Context) error { // locks by itself, as its other callers need that
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

// An operator takes the lock away from a holder that is stuck, and the holder is told.
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
		fmt.Println("taken away:", forced, err)
		<-ctx.Done()
		return context.Cause(ctx)
	})
	fmt.Println(errors.Is(err, lock.ErrLost), errors.Is(err, lock.ErrForceUnlocked))
	// Output:
	// taken away: true <nil>
	// true true
}

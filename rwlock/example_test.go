package rwlock_test

import (
	"context"
	"fmt"
	"log"
	"sync"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
)

// Any number of callers read at the same time, in all processes, and a writer is alone.
func Example() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	catalog := c.NewRWLock("catalog")

	err = lock.Do(ctx, catalog.Write(), func(ctx context.Context) error {
		fmt.Println("writing") // ctx is canceled as soon as the lock can no longer be guaranteed
		return ctx.Err()
	})
	if err != nil {
		log.Print(err)
		return
	}
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			err := lock.Do(ctx, catalog.Read(), func(context.Context) error {
				fmt.Println("reading")
				return nil
			})
			if err != nil {
				log.Print(err)
			}
		})
	}
	readers.Wait()
	// Output:
	// writing
	// reading
	// reading
}

// One process fills a cache and continues to read what it wrote. In the meantime other readers enter, but no other
// writer can change the cache.
func ExampleLock_Downgrade() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	prices := c.NewRWLock("prices")

	write, err := prices.Write().Lock(ctx)
	if err != nil {
		log.Print(err)
		return
	}
	defer write.Unlock(ctx) // if the downgrade fails
	fmt.Println("filling:", write.Context().Err())

	read, err := prices.Downgrade(ctx, write)
	if err != nil {
		log.Print(err)
		return
	}
	defer read.Unlock(ctx)
	fmt.Println("reading:", read.Context().Err()) // the write hold has ended, and the read hold continues
	// Output:
	// filling: <nil>
	// reading: <nil>
}

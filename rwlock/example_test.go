package rwlock_test

import (
	"context"
	"log"

	"github.com/leasehold-go/leasehold/client"
)

// One process fills a cache and goes on reading what it wrote. By then the others read as well,
// and no other writer can have changed it in between.
func ExampleLock_Downgrade() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://127.0.0.1:6379")
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
	fill := func(ctx context.Context) error { return ctx.Err() }
	if err := fill(write.Context()); err != nil {
		log.Print(err)
		_ = write.Unlock(ctx)
		return
	}

	read, err := prices.Downgrade(ctx, write)
	if err != nil {
		log.Print(err)
		_ = write.Unlock(ctx) // it is still held, if it was not lost
		return
	}
	defer read.Unlock(ctx)

	answer := func(ctx context.Context) error { return ctx.Err() }
	if err := answer(read.Context()); err != nil { // the write hold is over, and this goes on
		log.Print(err)
	}
}

package rwlock_test

import (
	"context"
	"fmt"
	"log"

	"github.com/leasehold-go/leasehold/internal/exampletest"
)

// One process fills a cache and goes on reading what it wrote. By then the others read as well,
// and no other writer can have changed it in between.
func ExampleLock_Downgrade() {
	redis := exampletest.Start() // in memory; yours is redis://127.0.0.1:6379, say
	defer redis.Close()
	ctx := context.Background()
	prices := redis.Client().NewRWLock("prices")

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
	fmt.Println(answer(read.Context())) // the write hold is over, and this goes on
	// Output: <nil>
}

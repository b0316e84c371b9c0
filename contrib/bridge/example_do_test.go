package bridge_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/contrib/bridge"
	"github.com/redis/go-redis/v9"
)

// ship runs work under both locks, in the middle of the rollout. The client needs a key prefix,
// client.WithKeyPrefix("leasehold:"). Without it, every call fails with lock.ErrWrongType.
func ship(ctx context.Context, rs *redsync.Redsync, c *client.Client, work func(ctx context.Context) error) error {
	old := bridge.Redsync(rs, "orders:42", 8*time.Second)
	return bridge.Do(ctx, old, c.NewLock("orders:42"), work)
}

// In the middle of the rollout, a process waits for processes that use only redsync, and for processes that use only leasehold.
func ExampleDo() {
	ctx := context.Background()
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	rs := redsync.New(goredis.NewPool(rdb))
	c, err := client.Open(ctx, "redis://"+addr, client.WithKeyPrefix("leasehold:"))
	if err != nil {
		log.Print(err)
		return
	}
	defer c.Close(ctx)

	err = ship(ctx, rs, c, func(ctx context.Context) error {
		fmt.Println("redsync has it:", rs.NewMutex("orders:42").TryLockContext(ctx) == nil)
		_, err := c.NewLock("orders:42").TryLock(context.Background()) // another owner
		fmt.Println("leasehold has it:", err == nil)
		return ctx.Err() // canceled as soon as one of the two locks can no longer be guaranteed
	})
	fmt.Println(err)
	// Output:
	// redsync has it: false
	// leasehold has it: false
	// <nil>
}

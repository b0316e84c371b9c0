package bridge_test

import (
	"context"
	"fmt"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/leasehold-go/leasehold/bridge"
	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/exampletest"
	"github.com/redis/go-redis/v9"
)

// ship is what a process does in the middle of the rollout.
func ship(ctx context.Context, rs *redsync.Redsync, c *client.Client, work func(ctx context.Context) error) error {
	old := bridge.Redsync(rs, "orders:42", 8*time.Second)
	return bridge.Do(ctx, old, c.NewLock("orders:42"), work)
}

// A process in the middle of the rollout waits for those that have redsync alone, and for those that have leasehold alone.
func ExampleDo() {
	server := exampletest.Start() // in memory; yours is redis://127.0.0.1:6379, say
	defer server.Close()
	option, err := redis.ParseURL(server.URL())
	if err != nil {
		fmt.Println(err)
		return
	}
	rdb := redis.NewClient(option)
	defer rdb.Close()
	rs := redsync.New(goredis.NewPool(rdb))
	c := server.Client(client.WithKeyPrefix("leasehold:"))

	ctx := context.Background()
	err = ship(ctx, rs, c, func(ctx context.Context) error {
		fmt.Println("redsync has it:", rs.NewMutex("orders:42").TryLockContext(ctx) == nil)
		_, err := c.NewLock("orders:42").TryLock(context.Background())
		fmt.Println("leasehold has it:", err == nil)
		return nil
	})
	fmt.Println(err)
	// Output:
	// redsync has it: false
	// leasehold has it: false
	// <nil>
}

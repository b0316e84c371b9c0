package bridge_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/leasehold-go/leasehold/bridge"
	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/exampletest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/go-redis/v9"
)

// ship is what a process does in the middle of the rollout. The names of c have a prefix,
// client.WithKeyPrefix("leasehold:"); without it every call fails with lock.ErrForeignKey.
func ship(ctx context.Context, rs *redsync.Redsync, c *client.Client, work func(ctx context.Context) error) error {
	old := bridge.Redsync(rs, "orders:42", 8*time.Second)
	return bridge.Do(ctx, old, c.NewLock("orders:42"), work)
}

// invoices runs job in one process a minute, beside old processes whose lock of redsync expires by itself.
func invoices(ctx context.Context, rs *redsync.Redsync, c *client.Client, job func(ctx context.Context) error) error {
	old := bridge.Redsync(rs, "cron:invoices", 50*time.Second)
	return bridge.TryDo(ctx, old, c.NewLock("cron:invoices"), bridge.AtLeast(50*time.Second, job))
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

// A job that runs once a minute in one process, in the middle of the rollout. Another process has the old lock.
func ExampleTryDo() {
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
	_ = rs.NewMutex("cron:invoices", redsync.WithExpiry(50*time.Second)).TryLockContext(ctx) // as an old process does
	err = invoices(ctx, rs, c, func(context.Context) error { return nil })
	fmt.Println(errors.Is(err, lock.ErrNotAcquired))
	// Output:
	// true
}

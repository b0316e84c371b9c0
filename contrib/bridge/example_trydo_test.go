package bridge_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/contrib/bridge"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/go-redis/v9"
)

// invoices runs job in one process per minute. The old processes let their redsync lock expire.
func invoices(ctx context.Context, rs *redsync.Redsync, c *client.Client, job func(ctx context.Context) error) error {
	old := bridge.Redsync(rs, "cron:invoices", 50*time.Second)
	return bridge.TryDo(ctx, old, c.NewLock("cron:invoices"), bridge.MinHold(50*time.Second, job))
}

// In the middle of the rollout, a job runs in one process per minute. Another process has the old lock.
func ExampleTryDo() {
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

	other := rs.NewMutex("cron:invoices", redsync.WithExpiry(50*time.Second)) // the lock of an old process
	if err := other.TryLockContext(ctx); err != nil {
		log.Print(err)
		return
	}
	err = invoices(ctx, rs, c, func(context.Context) error { return nil })
	fmt.Println(errors.Is(err, lock.ErrNotAcquired))
	// Output: true
}

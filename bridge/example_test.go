package bridge_test

import (
	"context"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/leasehold-go/leasehold/bridge"
	"github.com/leasehold-go/leasehold/client"
)

// ship is what a process does in the middle of the rollout.
func ship(ctx context.Context, rs *redsync.Redsync, c *client.Client, work func(ctx context.Context) error) error {
	old := bridge.Redsync(rs, "orders:42", 8*time.Second)
	return bridge.Do(ctx, old, c.NewLock("orders:42"), work)
}

func ExampleDo() { _ = ship }

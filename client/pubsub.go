package client

import (
	"context"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/pubsub"
	"github.com/redis/rueidis"
)

// PubSub is how a release notifies the waiters on a cluster. All clients of a lock should use the
// same mode. Otherwise they still exclude each other, but waiters detect a release only by polling.
// Waiters of leasehold detect it within a second, or within 2 s after a long wait, and waiters of
// Redisson when the lease expires.
type PubSub int

const (
	// PubSubAuto uses sharded Pub/Sub if the cluster supports it (since Redis 7.0), and plain Pub/Sub
	// otherwise. It is the default of Redisson too.
	PubSubAuto PubSub = iota

	// PubSubPlain publishes each message to all nodes of the cluster (PUBLISH), like Redisson before
	// 3.22.0, and later versions with shardedSubscriptionMode OFF.
	PubSubPlain

	// PubSubSharded publishes each message to the nodes of one shard (SPUBLISH).
	PubSubSharded
)

// String returns "auto", "plain" or "sharded".
func (p PubSub) String() string {
	switch p {
	case PubSubAuto:
		return "auto"
	case PubSubPlain:
		return "plain"
	case PubSubSharded:
		return "sharded"
	}
	return fmt.Sprintf("PubSub(%d)", int(p))
}

// sharded reports whether p means sharded Pub/Sub on rdb. Without a cluster there are no shards,
// whatever p is. If necessary, it queries a node.
func (p PubSub) sharded(ctx context.Context, rdb rueidis.Client, timeout time.Duration) (bool, error) {
	if p != PubSubAuto {
		return rdb.Mode() == rueidis.ClientModeCluster && p == PubSubSharded, nil
	}
	began := time.Now()
	sharded, err := pubsub.Sharded(ctx, rdb, timeout)
	if err != nil {
		if command.Settle(ctx); ctx.Err() == nil && err == context.DeadlineExceeded {
			err = command.NoReply{After: timeout}
		}
		err = command.New(rdb, command.Config{Timeout: timeout}).Failed(ctx, began, err)
		return false, fmt.Errorf("detect sharded Pub/Sub (see WithPubSub): %w", err)
	}
	return sharded, nil
}

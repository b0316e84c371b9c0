package client

import (
	"context"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/internal/hint"
	"github.com/redis/rueidis"
)

// PubSub says how a release reaches the waiters, on a cluster. All clients of a
// lock should use the same way. Otherwise they still exclude each other, but
// their waiters hear of a release only when they ask the next time: waiters
// of leasehold ask after a second, waiters of Redisson when the lease ends.
type PubSub int

const (
	// PubSubAuto is sharded where the cluster supports it (since Redis 7.0), and plain
	// elsewhere. Redisson's default is the same.
	PubSubAuto PubSub = iota

	// PubSubPlain publishes each message to all nodes of the cluster (PUBLISH). So do
	// Redisson before 3.22.0, and later ones with shardedSubscriptionMode OFF.
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

// sharded decides which it is on rdb. Outside of clusters there is nothing to
// shard, whatever p says. It asks a node if it must.
func (p PubSub) sharded(ctx context.Context, rdb rueidis.Client, timeout time.Duration) (bool, error) {
	if p != PubSubAuto {
		return rdb.Mode() == rueidis.ClientModeCluster && p == PubSubSharded, nil
	}
	sharded, err := hint.Sharded(ctx, rdb, timeout)
	if err != nil {
		return false, fmt.Errorf("detect sharded Pub/Sub (see WithPubSub): %w", err)
	}
	return sharded, nil
}

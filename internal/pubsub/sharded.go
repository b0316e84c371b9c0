package pubsub

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/redis/rueidis"
)

// Sharded reports whether rdb must use sharded Pub/Sub, as Redisson does: rdb is connected to a
// cluster that supports it. Any node can tell. While one has not replied for a part of timeout, the
// next is queried, too. Without a cluster, no command is sent.
//
// An error reply means no: the server is too old, or denies the command. A temporary error, such as
// BUSY, is inconclusive. If no other reply arrives within timeout, or before ctx is canceled, Sharded
// fails, because a wrong guess would cost every waiter its notifications.
func Sharded(ctx context.Context, rdb rueidis.Client, timeout time.Duration) (bool, error) {
	if rdb.Mode() != rueidis.ClientModeCluster {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel() // mutant: removed: memory
	nodes := slices.Collect(maps.Values(rdb.Nodes()))
	if len(nodes) == 0 { // no node has slots yet
		nodes = []rueidis.Client{rdb}
	}
	replies := make(chan error, len(nodes))
	next := time.NewTicker(timeout/time.Duration(len(nodes)+1) + 1)
	defer next.Stop() // mutant: removed: memory
	var err error
	for queried, failed := 0, 0; failed < len(nodes); {
		if queried < len(nodes) {
			n := nodes[queried]
			queried++
			go func() { replies <- n.Do(ctx, n.B().PubsubShardnumsub().Build()).Error() }() // a client that is dialing ignores ctx
		}
		select {
		case err = <-replies:
			failed++
		case <-next.C:
			continue
		case <-ctx.Done():
			return false, ctx.Err()
		}
		if reply, refused := rueidis.IsRedisErr(err); err == nil || refused && !retry.Temporary(reply.Error()) {
			return err == nil, nil
		}
	}
	return false, err
}

package pubsub

import (
	"context"
	"time"

	"github.com/redis/rueidis"
)

// Sharded asks whether messages go by sharded Pub/Sub on rdb, as Redisson does: they do on a
// cluster that knows it. Outside of clusters there is nothing to shard, and no one is asked. Any server of the
// cluster can tell; if the first has no connection, the others are asked.
//
// An error reply means no: the server is too old, or does not let us ask. No reply
// within timeout, or before ctx ends, is an error: to guess wrong would cost every
// waiter its notifications.
func Sharded(ctx context.Context, rdb rueidis.Client, timeout time.Duration) (bool, error) {
	if rdb.Mode() != rueidis.ClientModeCluster {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	answer := make(chan error, 1)
	go func() { // a client that is dialling does not look at ctx
		err := rdb.Do(ctx, rdb.B().PubsubShardnumsub().Build()).Error()
		for _, n := range rdb.Nodes() {
			if _, replied := rueidis.IsRedisErr(err); err == nil || replied {
				break
			}
			err = n.Do(ctx, n.B().PubsubShardnumsub().Build()).Error()
		}
		answer <- err
	}()
	var err error
	select {
	case err = <-answer:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if _, refused := rueidis.IsRedisErr(err); err == nil || refused {
		return err == nil, nil
	}
	return false, err
}

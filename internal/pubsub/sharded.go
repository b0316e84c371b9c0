package pubsub

import (
	"context"
	"time"

	"github.com/redis/rueidis"
)

// Sharded reports whether rdb must use sharded Pub/Sub, as Redisson does: rdb is connected to a
// cluster that supports it. Any node can tell; if the first has no connection, the others are
// queried. Without a cluster, no command is sent.
//
// An error reply means no: the server is too old, or denies the command. No reply within timeout, or
// before ctx is canceled, is an error, because a wrong guess would cost every waiter its
// notifications.
func Sharded(ctx context.Context, rdb rueidis.Client, timeout time.Duration) (bool, error) {
	if rdb.Mode() != rueidis.ClientModeCluster {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	answer := make(chan error, 1)
	go func() { // a client that is dialing ignores ctx
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

package pubsub

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/redis/rueidis"
)

// An unavailable server, which the client queries now and then, does not matter: any other can tell. Without any, there is
// an error: at once if each refuses connections.
func TestSharded_unavailable(t *testing.T) {
	for name, fail := range map[string]func(*redistest.Server, testing.TB){"killed": (*redistest.Server).Kill, "paused": (*redistest.Server).Freeze} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if !redistest.Start(t).KnowsSharded(t) {
				t.Skip("this server does not support sharded Pub/Sub")
			}
			c := redistest.StartCluster(t)
			rdb := c.Client(t, func(o *rueidis.ClientOption) {
				o.Dialer.Timeout, o.ConnWriteTimeout = time.Minute, time.Minute // the client alone would not detect in time that a node is paused
			})
			first := c.Masters(t)[0]
			fail(first, t)
			for range 30 {
				if sharded, err := Sharded(t.Context(), rdb, 10*time.Second); !sharded || err != nil {
					t.Fatal(sharded, err)
				}
			}
			for _, s := range c.Nodes {
				if s != first {
					fail(s, t)
				}
			}
			within := 10 * time.Second
			if name == "paused" {
				within = time.Second
			}
			if _, err := Sharded(t.Context(), rdb, within); err == nil || errors.Is(err, context.DeadlineExceeded) != (name == "paused") {
				t.Errorf("without any node: %v", err)
			}
		})
	}
}

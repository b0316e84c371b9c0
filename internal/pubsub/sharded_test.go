package pubsub

import (
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
)

// An unavailable server, which the client queries now and then, does not matter: any other can tell.
func TestSharded_unavailable(t *testing.T) {
	t.Parallel()
	if !redistest.Start(t).KnowsSharded(t) {
		t.Skip("this server does not support sharded Pub/Sub")
	}
	c := redistest.StartCluster(t)
	rdb := c.Client(t)
	c.Masters(t)[0].Kill(t)
	for range 30 {
		if sharded, err := Sharded(t.Context(), rdb, 30*time.Second); !sharded || err != nil {
			t.Fatal(sharded, err)
		}
	}
}

package client_test

import (
	"context"
	"log"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/multilock"
)

// A quorum of three servers starts while one of them is down.
func ExampleWithLazyConnect() {
	ctx := context.Background()
	var locks []lock.Locker
	for _, url := range []string{"redis://10.0.0.1:6379", "redis://10.0.0.2:6379", "redis://10.0.0.3:6379"} {
		c, err := client.Open(ctx, url, client.WithLazyConnect())
		if err != nil {
			log.Fatal(err) // the URL or an option is wrong
		}
		defer c.Close(ctx)
		locks = append(locks, c.NewLock("leader"))
	}

	h, err := multilock.NewQuorum(locks).Lock(ctx)
	if err != nil {
		log.Print(err) // says of each server why it has no vote
		return
	}
	defer h.Unlock(ctx)
}

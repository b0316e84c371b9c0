package synclock_test

import (
	"context"
	"fmt"
	"log"
	"sync"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/contrib/synclock"
)

// A package that requires a sync.Locker uses one that all processes share.
func ExampleLocker() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	save := func(mu sync.Locker) { // in a package that does not depend on leasehold
		mu.Lock()
		defer mu.Unlock()
		fmt.Println("saved")
	}
	save(synclock.New(c.NewLock("store")))
	// Output: saved
}

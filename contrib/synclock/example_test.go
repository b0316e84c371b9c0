package synclock_test

import (
	"context"
	"fmt"
	"log"
	"sync"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/contrib/synclock"
)

// A store that wants a sync.Locker gets one that all processes share.
func ExampleLocker() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)

	save := func(mu sync.Locker) { // as a package that knows nothing of leasehold has it
		mu.Lock()
		defer mu.Unlock()
		fmt.Println("saved")
	}
	save(synclock.New(c.NewLock("store")))
	// Output: saved
}

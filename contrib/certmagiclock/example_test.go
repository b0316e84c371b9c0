package certmagiclock_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/caddyserver/certmagic"
	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/contrib/certmagiclock"
	"github.com/leasehold-go/leasehold/lock"
)

// The certificates are in a directory that all servers share, and the locks are in Redis.
func ExampleStorage() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	dir, err := os.MkdirTemp("", "certificates") // in your program, on a shared disk
	if err != nil {
		log.Print(err)
		return
	}
	defer os.RemoveAll(dir)

	storage := certmagiclock.New(&certmagic.FileStorage{Path: dir}, func(name string) lock.Locker {
		return c.NewLock("certmagic:" + name)
	})
	certmagic.Default.Storage = storage // certmagic does the rest: it calls Lock and Unlock

	fmt.Println(storage.Lock(ctx, "issue_cert_example.com"))
	fmt.Println(storage.Unlock(ctx, "issue_cert_example.com"))
	// Output:
	// <nil>
	// <nil>
}

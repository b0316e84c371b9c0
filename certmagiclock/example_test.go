package certmagiclock_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/caddyserver/certmagic"
	"github.com/leasehold-go/leasehold/certmagiclock"
	"github.com/leasehold-go/leasehold/internal/exampletest"
	"github.com/leasehold-go/leasehold/lock"
)

// Certificates in a directory that all servers share, and locks in Redis.
func ExampleStorage() {
	redis := exampletest.Start() // in memory; yours is client.Open(ctx, "redis://127.0.0.1:6379"), say
	defer redis.Close()
	c := redis.Client()
	dir, err := os.MkdirTemp("", "certificates")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	storage := certmagiclock.New(&certmagic.FileStorage{Path: dir}, func(name string) lock.Locker {
		return c.NewLock("certmagic:" + name)
	})
	certmagic.Default.Storage = storage // certmagic does the rest

	ctx := context.Background()
	fmt.Println(storage.Lock(ctx, "issue_cert_example.com"))
	fmt.Println(storage.Unlock(ctx, "issue_cert_example.com"))
	// Output:
	// <nil>
	// <nil>
}

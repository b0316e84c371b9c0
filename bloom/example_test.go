package bloom_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/leasehold-go/leasehold/bloom"
	"github.com/leasehold-go/leasehold/client"
	"github.com/redis/rueidis"
)

// A crawler remembers the addresses that it has seen.
func Example() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	seen := c.NewBloomFilter("seen")
	if _, err := seen.Init(ctx, 100_000, 0.001); err != nil {
		log.Print(err)
		return
	}

	added, err := seen.Add(ctx, []byte("https://example.com/"), []byte("https://example.org/"))
	fmt.Println(added, err)
	there, err := seen.Contains(ctx, []byte("https://example.org/"), []byte("https://example.net/"))
	fmt.Println(there, err)
	n, err := seen.Count(ctx)
	fmt.Println(n, err)
	// Output:
	// 2 <nil>
	// [true false] <nil>
	// 2 <nil>
}

// Java fills the filter with its default codec.
func ExampleWithKryo5() {
	ctx := context.Background()
	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		log.Fatal(err)
	}
	defer rdb.Close()
	users := bloom.New(rdb, "users", bloom.WithKryo5())
	if _, err := users.Init(ctx, 1000, 0.01); err != nil {
		log.Print(err)
		return
	}
	fmt.Println(users.Add(ctx, []byte("ann")))
	// Output: 1 <nil>
}

// One filter is split into four, which spread over a cluster.
func ExampleNewSharded() {
	ctx := context.Background()
	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		log.Fatal(err)
	}
	defer rdb.Close()
	mails := bloom.NewSharded(rdb, "mails", 4)
	if _, err := mails.Init(ctx, 100_000, 0.001); err != nil {
		log.Print(err)
		return
	}
	fmt.Println(mails.Add(ctx, []byte("ann@example.com"), []byte("bob@example.com")))
	fmt.Println(mails.Contains(ctx, []byte("ann@example.com"), []byte("eve@example.com")))
	// Output:
	// 2 <nil>
	// [true false] <nil>
}

// The parameters of a filter are stored in Redis. Init fails if a process passes different ones.
func ExampleConfig() {
	ctx := context.Background()
	c, err := client.Open(ctx, "redis://"+addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	words := c.NewBloomFilter("words")
	if _, err := words.Init(ctx, 1000, 0.01); err != nil {
		log.Print(err)
		return
	}
	config, err := words.Config(ctx)
	fmt.Println(config.Expected, config.P, config.Size, config.Hashes, err)

	_, err = words.Init(ctx, 5000, 0.01)
	var other *bloom.ConfigError
	fmt.Println(errors.Is(err, bloom.ErrConfigMismatch), errors.As(err, &other) && other.Config == config)
	// Output:
	// 1000 0.01 9585 7 <nil>
	// true true
}

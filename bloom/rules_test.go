package bloom_test

import (
	"testing"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/kindtest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/locktest"
)

func TestRules(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a, b := kindtest.NewClient(t, s.Client(t)), kindtest.NewClient(t, s.Client(t))
	for kind, of := range map[string]func(c *client.Client, name string) locktest.Filter{
		"filter":  func(c *client.Client, name string) locktest.Filter { return c.NewBloomFilter(name) },
		"sharded": func(c *client.Client, name string) locktest.Filter { return c.NewShardedBloomFilter(name, 3) },
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			locktest.RunFilter(t, locktest.FilterHarness{
				New:   func(name string) locktest.Filter { return of(a, name) },
				Other: func(name string) locktest.Filter { return of(b, name) },
			})
		})
	}
}

package client_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/ratelimit"
)

// Objects without a lease use the client's key prefix, and end when the client is closed.
func TestWithoutLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := redistest.NewMini(t)
		c, err := client.New(m.Client(t), client.WithKeyPrefix("p:"))
		if err != nil {
			t.Fatal(err)
		}
		l := c.NewRateLimiter("api", ratelimit.FailClosed().After(10*time.Second), ratelimit.PerMinute(1))
		w := c.NewRedissonRateLimiter("window")
		f := c.NewBloomFilter("filter")
		s := c.NewShardedBloomFilter("shards", 2)
		if d, err := l.Take(t.Context(), "ann", 1); err != nil || !d.OK {
			t.Fatalf("%+v, %v", d, err)
		}
		if _, err := w.Init(t.Context(), 1, time.Minute); err != nil {
			t.Fatal(err)
		}
		if d, err := w.Take(t.Context(), 1); err != nil || !d.OK {
			t.Fatalf("%+v, %v", d, err)
		}
		if _, err := f.Init(t.Context(), 10, 0.1); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Init(t.Context(), 10, 0.1); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"p:api:ann", "p:window", "{p:window}:value", "{p:window}:permits", "p:filter", "{p:filter}:config", "p:shards:{0}", "p:shards:{1}:config"} {
			if !m.Exists(key) {
				t.Errorf("there is no %s: %q", key, m.Keys())
			}
		}
		ended := make(chan error, 2)
		go func() { ended <- l.Wait(t.Context(), "ann", 1) }()
		go func() { ended <- w.Wait(t.Context(), 1) }()
		synctest.Wait()
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := <-ended; !errors.Is(err, lock.ErrClosed) {
				t.Errorf("a waiter: %v", err)
			}
		}
		if _, err := f.Add(t.Context(), []byte("a")); !errors.Is(err, lock.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

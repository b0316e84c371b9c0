//go:build linux

package integration_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
)

// The code of docs/guides/java.md.

// prepare creates what Java and Go share. Either side may call it first, with the same numbers.
func prepare(ctx context.Context, c *client.Client) error {
	if _, err := c.NewRedissonRateLimiter("carrier").Init(ctx, 10, time.Second); err != nil { // trySetRate(OVERALL, 10, ofSeconds(1))
		return err
	}
	if _, err := c.NewBloomFilter("shipped").Init(ctx, 10_000, 0.01); err != nil { // tryInit(10_000, 0.01), with StringCodec
		return err
	}
	_, err := c.NewLatch("shift").TrySetCount(ctx, 100) // trySetCount(100)
	return err
}

// ship ships an order from one of four docks. Java services do the same, with the same names.
func ship(ctx context.Context, c *client.Client, order string, load func(ctx context.Context) error) error {
	if err := c.NewRedissonRateLimiter("carrier").Wait(ctx, 1); err != nil { // acquire()
		return err
	}
	docks := c.NewSemaphore("docks", 4) // getPermitExpirableSemaphore("docks")
	err := lock.Do(ctx, docks, func(ctx context.Context) error {
		return lock.Do(ctx, c.NewLock("orders:"+order), load) // getLock("orders:" + order)
	})
	if err != nil {
		return err
	}
	if _, err := c.NewBloomFilter("shipped").Add(ctx, []byte(order)); err != nil { // add(order)
		return err
	}
	_, err = c.NewLatch("shift").CountDown(ctx) // countDown()
	return err
}

// The keys are those that Redisson uses for its objects of these names.
func TestGuide_java(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := ours(t, s.Client(t))
	if err := prepare(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	types := func(want map[string]string) {
		t.Helper()
		for key, kind := range want {
			reply := s.Do(t, "TYPE", key)
			if got, err := reply.ToString(); got != kind || err != nil {
				t.Errorf("%s is a %s (%v), want %s", key, got, err, kind)
			}
		}
	}
	err := ship(t.Context(), c, "42", func(context.Context) error {
		types(map[string]string{"orders:42": "hash", "docks": "string", "{docks}:timeout": "zset"})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	types(map[string]string{
		"orders:42": "none", "docks": "string", "{docks}:timeout": "none",
		"carrier": "hash", "{carrier}:value": "string", "{carrier}:permits": "zset",
		"shipped": "string", "{shipped}:config": "hash", "shift": "string",
	})
	left := s.Do(t, "GET", "shift")
	if n, err := left.ToString(); n != "99" || err != nil {
		t.Errorf("the latch is at %s (%v), want 99", n, err)
	}
}

// Java finds what Go has created, contends with it, and sees its changes.
func TestJavaGuide(t *testing.T) {
	t.Parallel()
	eachJavaSite(t, func(t *testing.T, at *javaSite) {
		s := newJavaScene(t, at)
		if err := prepare(t.Context(), s.c); err != nil {
			t.Fatal(err)
		}
		docks, shift := javaPermits{s.java, "docks"}, javaLatch{s.java, "shift"}
		for _, q := range []javaRequest{
			{Do: "rate.trySetRate", Name: "carrier", N: 10, Interval: 1000},
			{Do: "bloom.tryInit", Name: "shipped", N: 10_000, P: 0.01},
		} {
			if asks[bool](t, s.java, q) {
				t.Errorf("%s: Java created it again", q.Do)
			}
		}
		if shift.creates(t, 100) {
			t.Error("Java created the latch again")
		}

		driver := s.java.lock("driver", plain, "orders:42")
		driver.get(t)
		loaded, shipped := make(chan struct{}), make(chan error, 1)
		leave := make(chan struct{})
		go func() {
			shipped <- ship(t.Context(), s.c, "42", func(context.Context) error {
				close(loaded)
				<-leave
				return nil
			})
		}()
		until(t, func() bool {
			state, err := s.c.NewLock("orders:42").Inspect(t.Context())
			return err == nil && len(state.Waiters) == 1
		})
		docks.stands(t, 3, 1, 4) // it holds one dock
		driver.unlock(t)
		<-loaded
		if driver.try(t) {
			t.Error("Java has the lock, too")
		}
		close(leave)
		if err := <-shipped; err != nil {
			t.Fatal(err)
		}
		docks.stands(t, 4, 0, 4)
		shift.counts(t, 99)
		if got := asks[[]bool](t, s.java, javaRequest{Do: "bloom.contains", Name: "shipped", Elements: []string{"42"}}); !slices.Equal(got, []bool{true}) {
			t.Errorf("Java does not find the order in the filter: %v", got)
		}
	})
}

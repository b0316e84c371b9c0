package bridge_test

import (
	"context"
	"errors"
	"testing"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/go-redis/v9"
)

// Code of docs/guides/goredis.md.

// connect opens both clients on the same server.
func connect(ctx context.Context, url string) (*redis.Client, *client.Client, error) {
	option, err := redis.ParseURL(url)
	if err != nil {
		return nil, nil, err
	}
	locks, err := client.Open(ctx, url, client.WithKeyPrefix("lock:")) // avoid collisions with your own keys
	if err != nil {
		return nil, nil, err
	}
	return redis.NewClient(option), locks, nil
}

// addStock reads and writes a number with several commands.
func addStock(ctx context.Context, rdb *redis.Client, locks *client.Client, item string, n int64) error {
	l := locks.NewLock("stock:" + item)
	return lock.Do(ctx, l, func(ctx context.Context) error { // go-redis returns when the lock is lost
		have, err := rdb.Get(ctx, "stock:"+item).Int64()
		if err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		return rdb.Set(ctx, "stock:"+item, have+n, 0).Err()
	})
}

// setPrice rejects stale holders. The highest token is stored next to the price.
var setPrice = redis.NewScript(`
	local seen = redis.call('hget', KEYS[1], 'token')
	if seen and tonumber(seen) > tonumber(ARGV[1]) then
		return 0
	end
	redis.call('hset', KEYS[1], 'token', ARGV[1], 'price', ARGV[2])
	return 1`)

// changePrice writes a price, and fails if a newer holder of the lock has written.
func changePrice(ctx context.Context, rdb *redis.Client, h lock.Hold, item string, price int) error {
	written, err := setPrice.Run(ctx, rdb, []string{"price:" + item}, h.Token(), price).Bool()
	if err == nil && !written {
		return fence.ErrStale
	}
	return err
}

func TestGoRedis(t *testing.T) {
	server := redistest.Start(t)
	ctx := t.Context()
	rdb, locks, err := connect(ctx, server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer rdb.Close()
	defer locks.Close(context.Background())

	const callers, each = 4, 25
	ended := make(chan error)
	for range callers {
		go func() {
			var err error
			for range each {
				err = errors.Join(err, addStock(ctx, rdb, locks, "tea", 1))
			}
			ended <- err
		}()
	}
	for range callers {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if n, err := rdb.Get(ctx, "stock:tea").Int64(); err != nil || n != callers*each {
		t.Errorf("%d, %v, want %d", n, err, callers*each)
	}

	l := locks.NewLock("price:tea", lock.WithFencing())
	late, err := l.Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := changePrice(ctx, rdb, late, "tea", 3); err != nil {
		t.Error(err)
	}
	if err := late.Unlock(ctx); err != nil {
		t.Error(err)
	}
	newer, err := l.Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer newer.Unlock(ctx)
	for range 2 { // a holder can write any number of times
		if err := changePrice(ctx, rdb, newer, "tea", 4); err != nil {
			t.Error(err)
		}
	}
	if err := changePrice(ctx, rdb, late, "tea", 5); !errors.Is(err, fence.ErrStale) {
		t.Errorf("a late holder: %v", err)
	}
	if price, err := rdb.HGet(ctx, "price:tea", "price").Int(); err != nil || price != 4 {
		t.Errorf("the price is %d, %v", price, err)
	}
}

package bridge_test

import (
	"context"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/go-redis/v9"
)

// Code of docs/migrate/go-libraries.md.

// before runs work under a lock of redsync.
func before(ctx context.Context, rs *redsync.Redsync, work func(ctx context.Context) error) error {
	m := rs.NewMutex("job", redsync.WithExpiry(8*time.Second))
	if err := m.LockContext(ctx); err != nil {
		return err
	}
	defer m.UnlockContext(ctx)
	return work(ctx)
}

// after runs work under a lock of leasehold.
func after(ctx context.Context, c *client.Client, work func(ctx context.Context) error) error {
	l := c.NewLock("job", lock.WithWait(8*time.Second)) // the 32 tries of redsync take up to 8 s
	h, err := l.Lock(ctx)
	if err != nil {
		return err
	}
	defer h.Unlock(ctx)
	return work(h.Context()) // canceled when the lock is lost
}

// Both run work while the lock is held, and neither runs it while another holder has the lock.
func TestMigrate(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr()})
	defer rdb.Close()
	rs := redsync.New(goredis.NewPool(rdb))
	c, err := client.Open(t.Context(), s.URL(), client.WithKeyPrefix("leasehold:"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(context.Background())
	for name, run := range map[string]func(work func(ctx context.Context) error) error{
		"redsync":   func(work func(ctx context.Context) error) error { return before(t.Context(), rs, work) },
		"leasehold": func(work func(ctx context.Context) error) error { return after(t.Context(), c, work) },
	} {
		ran := 0
		err := run(func(context.Context) error {
			ran++
			if err := run(func(context.Context) error { ran++; return nil }); err == nil {
				t.Errorf("%s: two at once", name)
			}
			return nil
		})
		if err != nil || ran != 1 {
			t.Errorf("%s: %v, work ran %d times", name, err, ran)
		}
	}
}

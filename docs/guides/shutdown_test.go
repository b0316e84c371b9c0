package guides

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/locktest"
)

// finish runs job to its end, even after ctx is canceled by SIGTERM. The lock is held until job returns.
func finish(ctx context.Context, c *client.Client, job func(ctx context.Context) error) error {
	return lock.Do(ctx, c.NewLock("job"), func(ctx context.Context) error {
		return job(lock.HoldFromContext(ctx).Context()) // canceled by a loss, but not by SIGTERM
	})
}

// After SIGTERM, the job goes on for hours, and holds its lock.
func TestFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		ctx, cancel := context.WithCancel(t.Context())
		err := finish(ctx, s.Client(t), func(ctx context.Context) error {
			cancel() // as signal.NotifyContext does on SIGTERM
			time.Sleep(3 * time.Hour)
			if _, err := s.Client(t).NewLock("job").TryLock(t.Context()); err == nil {
				t.Error("another process has the lock")
			}
			return ctx.Err()
		})
		if err != nil {
			t.Error(err)
		}
	})
}

package guides

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/memredis"
	"github.com/leasehold-go/leasehold/lock"
)

// run works until Kubernetes stops the pod, and leaves no lock behind.
func run(url string, work func(ctx context.Context, c *client.Client) error) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()

	c, err := client.Open(ctx, url,
		client.WithName("billing"),
		client.WithLabel(os.Getenv("POD_NAME")), // shown by leasehold ls -o wide
	)
	if err != nil {
		return err
	}
	defer func() {
		// Shorter than the grace period of the pod. A lock that is not released in
		// time becomes free when its lease expires.
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		c.Close(ctx)
	}()
	return work(ctx, c) // ctx is canceled by SIGTERM
}

func TestRun(t *testing.T) {
	s, err := memredis.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	err = run("redis://"+s.Addr(), func(ctx context.Context, c *client.Client) error {
		return lock.Do(ctx, c.NewLock("import"), func(ctx context.Context) error {
			if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		})
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
	if s.Exists("import") {
		t.Error("the lock is left behind")
	}
}

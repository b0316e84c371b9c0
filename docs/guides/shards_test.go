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

// consume handles the messages of one partition, one after the other. The lock of a customer excludes other
// processes while the partition moves from one process to another.
func consume(ctx context.Context, c *client.Client, messages <-chan message, handle func(ctx context.Context, m message) error) error {
	for m := range messages {
		l := c.NewLock("customer:"+m.customer, lock.WithLinger(time.Second))
		err := lock.Do(ctx, l, func(ctx context.Context) error { return handle(ctx, m) })
		if err != nil {
			return err
		}
	}
	return nil
}

type message struct{ customer, text string }

// Two processes have a partition one after the other. No message is handled twice at a time, and each has a larger token.
func TestConsume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		inside := 0
		for range 2 {
			c := s.Client(t)
			messages := make(chan message, 100)
			for range 50 {
				messages <- message{"ada", "order 7"}
				messages <- message{"bob", "order 8"}
			}
			close(messages)
			err := consume(t.Context(), c, messages, func(ctx context.Context, m message) error {
				if inside++; inside != 1 {
					t.Error("two at a time")
				}
				time.Sleep(time.Millisecond)
				inside--
				return ctx.Err()
			})
			if err != nil {
				t.Error(err)
			}
		}
		kept, err := s.Redis().Do(t.Context(), s.Redis().B().Keys().Pattern("customer:*").Build()).AsStrSlice()
		if err != nil || len(kept) != 2 {
			t.Errorf("%q are kept, %v", kept, err)
		}
	})
}

package send_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/leasehold-go/leasehold/internal/send"
)

// A caller whose context has ended has no question sent, though the crowd has room for one.
func TestCrowd_ended(t *testing.T) {
	srv := new(server)
	inCrowd(t, srv, func(t *testing.T, _ *send.Sender, c *send.Crowd[int, int]) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 20 {
			if _, err := c.Ask(ctx, 1); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			synctest.Wait()
		}
		if got := srv.asked(); len(got) != 0 {
			t.Errorf("asked %v", got)
		}
	})
}

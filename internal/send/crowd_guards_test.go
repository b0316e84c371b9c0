package send_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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

// Many callers ask one after another, alone and in pairs. Each of them is answered at once, however many have asked before.
func TestCrowd_again(t *testing.T) {
	inCrowd(t, new(server), func(t *testing.T, _ *send.Sender, c *send.Crowd[int, int]) {
		for i := range 3 * 8 {
			var callers sync.WaitGroup
			for q := range 1 + i%2 {
				callers.Go(func() {
					start := time.Now()
					if a, err := c.Ask(t.Context(), q); a != 2*q || err != nil || time.Since(start) != time.Second {
						t.Errorf("question %d of caller %d: %d, %v after %v", q, i, a, err, time.Since(start))
					}
				})
			}
			callers.Wait()
		}
	})
}

//go:build linux

package integration_test

import (
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
)

// subscriptions returns how many connections are subscribed to a channel.
func subscriptions(t *testing.T, server *redistest.Server) (n int) {
	t.Helper()
	reply := server.Do(t, "CLIENT", "LIST")
	text, err := reply.ToString()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(strings.TrimPrefix(text, "txt:")) {
		if strings.Contains(line, " sub=") && !strings.Contains(line, " sub=0 ") {
			n++
		}
	}
	return n
}

// Many goroutines of two clients wait for several locks at once, and all are served. Each client uses one
// connection for all subscriptions, and in the end no subscription is left.
func TestSubscriptions_oneConnectionForAll(t *testing.T) {
	t.Parallel()
	const goroutines, names = 32, 5
	acquisitions := amount(5000)
	server := redistest.Start(t)
	clients := []*client.Client{ours(t, server.Client(t)), ours(t, server.Client(t))}
	var wg sync.WaitGroup
	for i := range goroutines {
		wg.Go(func() {
			for j := range acquisitions / goroutines {
				var options []lock.Option
				if j%2 == 0 {
					options = append(options, lock.WithWait(promptTimeout)) // long enough
				}
				h, err := clients[i%len(clients)].NewLock("orders:"+strconv.Itoa((i+j)%names), options...).Lock(t.Context())
				if err == nil {
					err = h.Unlock(t.Context())
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	most := 0
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
			most = max(most, subscriptions(t, server))
		}
	}
	if most != len(clients) {
		t.Errorf("%d connections listened, want one for each of %d clients", most, len(clients))
	}
	until(t, func() bool { // some time after the last waiter
		reply := server.Do(t, "PUBSUB", "CHANNELS")
		channels, err := reply.AsStrSlice()
		return err == nil && len(channels) == 0
	})
	noKeys(t, server)
}

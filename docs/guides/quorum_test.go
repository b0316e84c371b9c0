package guides

import (
	"context"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/memredis"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/multilock"
)

// electors returns a client for each of the independent servers.
func electors(ctx context.Context, urls []string) ([]*client.Client, error) {
	var clients []*client.Client
	for _, url := range urls {
		// Connect lazily, so that the process can start while one server is down.
		c, err := client.Open(ctx, url, client.WithLazyConnect())
		if err != nil {
			return nil, err
		}
		clients = append(clients, c)
	}
	return clients, nil
}

// leader returns a lock that a majority of the servers must grant.
func leader(clients []*client.Client, opts ...multilock.Option) *multilock.Quorum {
	var locks []lock.Locker
	for _, c := range clients {
		locks = append(locks, c.NewLock("leader", lock.WithFencing()))
	}
	return multilock.NewQuorum(locks, opts...)
}

func TestQuorum(t *testing.T) {
	var urls []string
	for i := range 3 {
		s, err := memredis.Start()
		if err != nil {
			t.Fatal(err)
		}
		urls = append(urls, "redis://"+s.Addr())
		if i == 2 {
			s.Close() // this one is down
		} else {
			defer s.Close()
		}
	}
	clients, err := electors(t.Context(), urls)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		for _, c := range clients {
			c.Close(ctx) // the server that is down confirms nothing
		}
	}()
	// The servers of the test have just started, so without this they would have no vote.
	h, err := leader(clients, multilock.WithDurableServers()).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if h.Token() == 0 {
		t.Error("there is no token")
	}
	if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

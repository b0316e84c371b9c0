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

// openAll returns a client for each of the independent servers.
func openAll(ctx context.Context, urls []string) ([]*client.Client, error) {
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

// onQuorum runs work under a lock that a majority of the servers must grant.
func onQuorum(ctx context.Context, urls []string, work func(ctx context.Context) error, opts ...multilock.Option) error {
	clients, err := openAll(ctx, urls)
	if err != nil {
		return err
	}
	defer closeAll(clients)
	var locks []lock.Locker
	for _, c := range clients {
		locks = append(locks, c.NewLock("ledger", lock.WithFencing()))
	}
	return lock.Do(ctx, multilock.NewQuorum(locks, opts...), work)
}

// closeAll closes the clients. It waits for up to a second for a server that is down.
func closeAll(clients []*client.Client) {
	for _, c := range clients {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		c.Close(ctx)
		cancel()
	}
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
	worked := false
	work := func(ctx context.Context) error {
		if worked = true; lock.HoldFromContext(ctx).Token() == 0 {
			t.Error("there is no token")
		}
		return nil
	}
	// The servers of the test have just started, so without this they would have no vote.
	if err := onQuorum(t.Context(), urls, work, multilock.WithDurableServers()); err != nil || !worked {
		t.Errorf("work was called: %t; %v", worked, err)
	}
}

//go:build linux

package integration_test

import (
	"context"
	"errors"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// failovers returns the number of failovers that a test triggers.
func failovers(t *testing.T) int {
	t.Helper()
	given := os.Getenv("LEASEHOLD_FAILOVERS")
	if given == "" {
		return 3
	}
	n, err := strconv.Atoi(given)
	if err != nil {
		t.Fatalf("LEASEHOLD_FAILOVERS: %v", err)
	}
	return n
}

// Failovers lose the lock: no replica had it when the primary died. The next owner acquires it while the first still
// acts as the holder, and no lock on Redis can prevent that. The following must hold anyway: tokens never decrease; a
// resource that checks them rejects the first owner's writes after a write of the second; and the first owner is
// notified.
func TestFailover_tokensGuard(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t, 2)
	resource := redistest.Start(t)
	guard, err := fence.NewRedis(resource.Client(t))
	if err != nil {
		t.Fatal(err)
	}
	var clients []*client.Client
	for range 2 {
		clients = append(clients, ours(t, s.Client(t)))
	}

	var last uint64
	overlaps, refused := 0, 0
	for round := range failovers(t) {
		primary := s.Primary(t)
		s.CutReplication(t, primary)
		// A fixed lease is not renewed, so the first owner is not notified.
		first, err := clients[round%2].NewLock("orders", lock.WithFencing(), lock.WithFixedLease(time.Minute)).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if first.Token() <= last {
			t.Errorf("round %d: token %d after %d", round, first.Token(), last)
		}
		// The first owner writes for as long as its lease is valid, and after that: it checks nothing but the replies
		// of the fencing check.
		var received atomic.Bool // the resource has seen the second owner's token
		var refusals atomic.Int64
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for {
				after := received.Load()
				err := guard.Set(context.Background(), first.Token(), "stock", "first")
				switch {
				case errors.Is(err, fence.ErrStale):
					refusals.Add(1)
				case err != nil:
					t.Errorf("round %d: the resource: %v", round, err)
				case after:
					t.Errorf("round %d: a stale write was accepted", round)
				}
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
				}
			}
		}()
		got := make(chan lock.Hold)
		go func() {
			h, err := clients[(round+1)%2].NewLock("orders", lock.WithFencing()).Lock(t.Context())
			if err != nil {
				t.Error(err)
			}
			got <- h
		}()
		next := s.Failover(t, primary)
		second := <-got
		if second == nil {
			t.FailNow()
		}
		if first.Err() == nil {
			overlaps++
		}
		if second.Token() <= first.Token() {
			t.Errorf("round %d: token %d after %d", round, second.Token(), first.Token())
		}
		last = second.Token()
		if err := guard.Set(t.Context(), second.Token(), "stock", "second"); err != nil {
			t.Errorf("round %d: the second owner's write: %v", round, err)
		}
		received.Store(true)
		until(t, func() bool { return refusals.Load() > 0 })
		if err := first.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("round %d: the first owner's Unlock: %v, want ErrLost", round, err)
		}
		close(stop)
		<-done
		refused += int(refusals.Load())
		if err := second.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		s.Rejoin(t, primary, next)
	}
	t.Logf("%d failovers that lost the lock: two owners at once %d times; %d stale writes were rejected, none accepted",
		failovers(t), overlaps, refused)
	if overlaps == 0 || refused == 0 {
		t.Error("no write had a stale token: the test shows nothing")
	}
}

// The primary is paused, and the Sentinels promote another server. A second later, the client library closes its
// connection to the old one, with commands in flight: waits continue at the new primary, and so does a release.
func TestFailover_pausedPrimary(t *testing.T) {
	t.Parallel()
	const locks = 20
	s := redistest.StartSentinel(t, 2)
	others := ours(t, s.Client(t))
	c := ours(t, s.Client(t, func(o *rueidis.ClientOption) { o.AlwaysPipelining = true }), client.WithWatchdogTimeout(time.Minute), client.WithOpTimeout(15*time.Second)) // so that calls still wait for the commands in flight
	for i := range locks {
		if _, err := others.NewLock(strconv.Itoa(i), lock.WithFixedLease(15*time.Second)).Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	h, err := c.NewLock("orders", lock.WithFixedLease(10*time.Minute)).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var waits sync.WaitGroup
	for i := range locks {
		waits.Go(func() {
			if _, err := c.NewLock(strconv.Itoa(i)).Lock(t.Context()); err != nil {
				t.Errorf("a wait: %v", err)
			}
		})
	}
	primary := s.Primary(t)
	primary.Freeze(t)
	defer primary.Thaw(t)
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := h.Unlock(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Unlock: %v", err)
	}
	replica := s.Nodes[0]
	if replica == primary {
		replica = s.Nodes[1]
	}
	rdb := replica.Client(t)
	until(t, func() bool {
		args, failed := rdb.Do(t.Context(), rdb.B().Role().Build()).ToArray()
		if failed != nil { // Sentinels close the connections of the server that they promote
			return false
		}
		is, _ := args[0].ToString()
		n, err := rdb.Do(t.Context(), rdb.B().Exists().Key("orders").Build()).ToInt64()
		return is == "master" && err == nil && n == 0
	})
	waits.Wait()
}

//go:build linux

package integration_test

import (
	"context"
	"errors"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
)

// failovers is how many failovers a test provokes.
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

// Failovers forget the lock: no replica had it when the primary died. The
// next owner gets it while the first still believes in it, and no lock on Redis
// can prevent that. This must hold nevertheless: tokens never go back; a
// resource that checks them accepts nothing from the first owner once it
// has heard of the second; and the first owner is told.
func TestFailover_tokensGuard(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t, 2)
	resource := redistest.Start(t)
	guard, err := fence.NewRedis(resource.Client(t))
	if err != nil {
		t.Fatal(err)
	}
	const lease, opTimeout = 6 * time.Second, 1500 * time.Millisecond
	var clients []*client.Client
	for range 2 {
		clients = append(clients, ours(t, s.Client(t), client.WithWatchdogTimeout(lease), client.WithOpTimeout(opTimeout)))
	}

	var last uint64
	overlaps, refused := 0, 0
	for round := range failovers(t) {
		primary := s.Primary(t)
		s.CutReplication(t, primary)
		// A fixed lease is not renewed, so nothing tells the first owner.
		first, err := clients[round%2].NewLock("orders", lock.WithFencing(), lock.WithFixedLease(time.Minute)).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if first.Token() <= last {
			t.Errorf("round %d: token %d after %d", round, first.Token(), last)
		}
		// The first owner writes while it may, and longer: it looks at
		// nothing but the answers of the guard.
		var heard atomic.Bool // the resource has heard of the second
		var refusals atomic.Int64
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for {
				after := heard.Load()
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
		heard.Store(true)
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
	t.Logf("%d failovers that forgot the lock: %d times two owners believed in it at once; %d stale writes were refused, none accepted",
		failovers(t), overlaps, refused)
	if overlaps == 0 || refused == 0 {
		t.Error("nobody ever wrote with a stale token: the test proves nothing")
	}
}

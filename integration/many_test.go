//go:build linux

package integration_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
)

// Ten thousand locks cost no more goroutines than ten. One client holds them all, with a lease of 12 s that is renewed
// every 4 s.
//
//	1 it acquires them, and holds them until each was renewed three times: for
//	longer than a lease
//	2 in the meantime the number of goroutines does not grow with the number of locks
//	3 none is lost: neither its hold nor its key
//	4 Close releases them all
func TestMany(t *testing.T) {
	const (
		few      = 10
		dog      = 12 * time.Second
		renewals = 3
		most     = 20 // more goroutines than with a few locks
	)
	n := amount(10_000)
	server := redistest.Start(t)
	rdb := server.Client(t)

	var mu sync.Mutex
	renewed := make(map[string]int, n) // guarded by mu: how often each lock was renewed
	ready := 0                         // guarded by mu: how many were renewed often enough
	enough := make(chan struct{})
	c, err := client.New(rdb, client.WithoutRegistry(), client.WithWatchdogTimeout(dog), client.WithObserver(lock.Observer{
		Renewed: func(_ context.Context, e lock.Event) {
			mu.Lock()
			defer mu.Unlock()
			if renewed[e.Name]++; renewed[e.Name] == renewals {
				if ready++; ready == n {
					close(enough)
				}
			}
		},
		Lost: func(_ context.Context, e lock.Event) { t.Errorf("lost: %v", e.Err) },
	}))
	if err != nil {
		t.Fatal(err)
	}

	holds := make([]lock.Hold, n)
	take := func(from, to int) {
		var wg sync.WaitGroup
		for part := range 16 {
			wg.Go(func() {
				for i := from + part; i < to; i += 16 {
					h, err := c.NewLock(fmt.Sprintf("many%d", i)).Lock(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					holds[i] = h
				}
			})
		}
		wg.Wait()
		if t.Failed() {
			t.FailNow()
		}
	}
	take(0, few) // 1
	base := runtime.NumGoroutine()
	began := time.Now()
	take(few, n)
	taken := time.Since(began)

	before, start := server.CommandCalls(t, "evalsha"), time.Now()
	peak := 0
	for watch, deadline := time.NewTicker(10*time.Millisecond), time.After(time.Minute); ; {
		select {
		case <-watch.C: // 2
			peak = max(peak, runtime.NumGoroutine())
			continue
		case <-enough:
			watch.Stop()
		case <-deadline:
			t.Fatalf("not all locks were renewed %d times within a minute", renewals)
		}
		break
	}
	took := time.Since(start)
	commands := server.CommandCalls(t, "evalsha") - before
	if peak > base+most {
		t.Errorf("%d goroutines with %d locks, %d with %d: want %d more at the most", peak, n, base, few, most)
	}

	for _, h := range holds { // 3
		if err := h.Err(); err != nil {
			t.Errorf("%v", err)
		}
	}
	if size, err := rdb.Do(t.Context(), rdb.B().Dbsize().Build()).AsInt64(); err != nil || size != int64(n) {
		t.Errorf("the server has %d keys (%v), want %d", size, err, n)
	}

	began = time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), promptTimeout)
	defer cancel()
	if err := c.Close(ctx); err != nil { // 4
		t.Error(err)
	}
	noKeys(t, server)
	t.Logf("%d locks acquired in %v; held for %v by at most %d goroutines (%d with %d locks); renewed by %.0f EVALSHA per second, %.0f locks each; released in %v",
		n, taken.Round(time.Millisecond), took.Round(time.Millisecond), peak, base, few,
		float64(commands)/took.Seconds(), float64(n)*took.Seconds()/(dog/3).Seconds()/float64(commands), time.Since(began).Round(time.Millisecond))
}

package latch_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/locktest"
)

// A client forgets lost workers that are never unlocked, and no worker that is alive.
func TestWaitGroup_forgetsTheLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := locktest.NewServer(t).Client(t, client.WithWatchdogTimeout(time.Second))
		waitGroup, short := c.NewWaitGroup("import"), c.NewWaitGroup("import", lock.WithFixedLease(time.Second))
		for range 20 {
			join(t, short)
		}
		ctx, cancel := context.WithCancel(t.Context())
		for range 2 {
			if _, err := waitGroup.Add(ctx); err != nil {
				t.Fatal(err)
			}
		}
		alive := join(t, waitGroup)
		cancel() // abandoned while they are still renewed
		if n := waitGroup.Known(); n != 23 {
			t.Fatalf("%d are known at first", n)
		}
		time.Sleep(30 * time.Second)
		if n := waitGroup.Known(); n != 23 {
			t.Errorf("%d are known while a late release could be on its way", n)
		}
		time.Sleep(time.Hour)
		if n := waitGroup.Known(); n != 1 {
			t.Errorf("%d are known after an hour, want the one that is alive", n)
		}
		if err := alive.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if n := waitGroup.Known(); n != 0 {
			t.Errorf("%d are known after all", n)
		}
		wantWorkers(t, waitGroup, 1, 0, 22)
	})
}

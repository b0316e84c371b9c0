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

// A client forgets members that are lost and that nobody unlocks, and none that is alive.
func TestCrew_forgetsTheLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := locktest.NewServer(t).Client(t, client.WithWatchdogTimeout(time.Second))
		crew, short := c.NewCrew("import"), c.NewCrew("import", lock.WithFixedLease(time.Second))
		for range 20 {
			join(t, short)
		}
		ctx, cancel := context.WithCancel(t.Context())
		for range 2 {
			if _, err := crew.Join(ctx); err != nil {
				t.Fatal(err)
			}
		}
		alive := join(t, crew)
		cancel() // these are given back as abandoned, while they are still renewed
		if n := crew.Known(); n != 23 {
			t.Fatalf("%d are known at first", n)
		}
		time.Sleep(30 * time.Second)
		if n := crew.Known(); n != 23 {
			t.Errorf("%d are known while a late release could be on its way", n)
		}
		time.Sleep(time.Hour)
		if n := crew.Known(); n != 1 {
			t.Errorf("%d are known after an hour, want the one that is alive", n)
		}
		if err := alive.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if n := crew.Known(); n != 0 {
			t.Errorf("%d are known after all", n)
		}
		crewStands(t, crew, 1, 0, 22)
	})
}

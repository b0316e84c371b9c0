//go:build linux

package integration_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/rwlock"
)

// Readers enter while four writers write without a pause, each with a separate client or all with one client. The test
// counts how many writers enter while a reader waits, because times vary on a busy machine.
//
//	1 four writers write for a millisecond, repeatedly; two readers read repeatedly
//	2 each reader waited for a writer fifty times
//	3 nine times out of ten a reader waited for no more than the writer inside, one that
//	was already waiting, and one more while the other reader has its batch
func TestReaderBatches(t *testing.T) {
	t.Run("clients of their own", func(t *testing.T) { testReaderBatches(t, false) })
	t.Run("one client", func(t *testing.T) { testReaderBatches(t, true) })
}

func testReaderBatches(t *testing.T, one bool) {
	const writers, readers, bound = 4, 2, 3
	rounds := amount(50)
	server := redistest.Start(t)
	only := ours(t, server.Client(t))
	newLock := func() *rwlock.Lock {
		c := only
		if !one {
			c = ours(t, server.Client(t))
		}
		return c.NewRWLock("turn")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var writes atomic.Int64
	var wg sync.WaitGroup
	for range writers {
		l := newLock().Write()
		wg.Go(func() { // 1
			for ctx.Err() == nil {
				h, err := l.Lock(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				writes.Add(1)
				time.Sleep(time.Millisecond) // the work
				if err := h.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	waits := make(chan int64, readers*rounds)
	var reading sync.WaitGroup
	for range readers {
		l := newLock().Read()
		reading.Go(func() {
			for n := 0; n < rounds; {
				before := writes.Load()
				h, err := l.Lock(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				if got := writes.Load() - before; got > 0 {
					waits <- got
					n++
				}
				if err := h.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	reading.Wait() // 2
	cancel()
	wg.Wait()
	close(waits)
	var all []int64
	for n := range waits {
		all = append(all, n)
	}
	slices.Sort(all)
	if len(all) == 0 {
		t.FailNow() // the errors have been reported
	}
	if most := all[len(all)*9/10]; most > bound { // 3
		t.Errorf("one time in ten, at least %d writers entered before a waiting reader; want at most %d", most, bound)
	}
	t.Logf("%d waits of readers; writers admitted before the reader: p50 %d, p90 %d, max %d", len(all), all[len(all)/2], all[len(all)*9/10], all[len(all)-1])
	noKeys(t, server)
}

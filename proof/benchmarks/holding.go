//go:build linux

package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// keep is what a worker holds or waits for between two jobs.
type keep struct {
	holds     []held
	extending context.CancelFunc // nil unless the worker itself must renew the locks
	extenders sync.WaitGroup

	waiters    sync.WaitGroup
	served     atomic.Int64 // how many of the waiters were served
	queued     int64
	violations atomic.Int64
	failed     atomic.Int64
}

// hands is the number of goroutines that acquire and release many locks.
const hands = 64

// take acquires Names locks and keeps them. Where the caller must renew, one goroutine per lock does so
// every third of the lease. Hung is 1 if it takes too long.
func (w *working) take(j job, res *result) error {
	done := make(chan error, 1)
	go func() { done <- w.takeAll(j) }()
	select {
	case err := <-done:
		return err
	case <-time.After(j.ComeBack):
		w.hung = true
		res.Hung = 1
		return nil
	}
}

func (w *working) takeAll(j job) error {
	ctx := context.Background()
	k := &w.keep
	k.holds = make([]held, j.Names)
	var failed atomic.Int64
	var first atomic.Value
	inParallel(j.Names, func(n int) {
		h, err := w.contender.Lock(lockName(n)).Lock(ctx)
		if err != nil {
			failed.Add(1)
			first.CompareAndSwap(nil, err)
			return
		}
		if n < len(w.board.slots) {
			w.board.slots[n].enter(holder(w.Process, 0))
		}
		k.holds[n] = h
	})
	if failed.Load() > 0 {
		return first.Load().(error)
	}
	ctx, k.extending = context.WithCancel(ctx)
	for _, h := range k.holds {
		if e, ok := h.(extender); ok {
			k.extenders.Go(func() { extend(ctx, e, w.Settings.Lease/3) })
		}
	}
	return nil
}

func extend(ctx context.Context, e extender, interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			_ = e.Extend(ctx) // a loss shows up at the release
		case <-ctx.Done():
			return
		}
	}
}

// give releases all locks that take acquired. Failed counts the locks that were lost.
func (w *working) give(_ job, res *result) error {
	k := &w.keep
	k.extending()
	k.extenders.Wait()
	res.At = monotonic()
	var failed atomic.Int64
	inParallel(len(k.holds), func(n int) {
		if n < len(w.board.slots) {
			w.board.slots[n].leave()
		}
		if err := k.holds[n].Unlock(context.Background()); err != nil {
			failed.Add(1)
		}
	})
	k.holds = nil
	res.Failed = failed.Load()
	return nil
}

func inParallel(n int, f func(int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(n, hands) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	wg.Wait()
}

// queue makes goroutines wait for lock 0, and returns at once.
func (w *working) queue(j job, res *result) error {
	k := &w.keep
	k.queued = int64(j.Goroutines)
	k.served.Store(0)
	k.violations.Store(0)
	k.failed.Store(0)
	for g := range j.Goroutines {
		k.waiters.Go(func() {
			ctx := context.Background()
			h, err := w.contender.Lock(lockName(0)).Lock(ctx)
			if err != nil {
				k.failed.Add(1)
				return
			}
			slot := &w.board.slots[0]
			if _, alone := slot.enter(holder(w.Process, g)); !alone {
				k.violations.Add(1)
			}
			slot.leave()
			if h.Unlock(ctx) != nil {
				k.failed.Add(1)
			}
			k.served.Add(1)
		})
	}
	return nil
}

// drain waits until all waiters have been served.
func (w *working) drain(j job, res *result) error {
	k := &w.keep
	done := make(chan struct{})
	go func() {
		k.waiters.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(j.ComeBack):
		w.hung = true
		res.Hung = k.queued - k.served.Load() - k.failed.Load()
	}
	res.At = monotonic()
	res.Total = k.served.Load()
	res.Violations = k.violations.Load()
	res.Failed = k.failed.Load()
	return nil
}

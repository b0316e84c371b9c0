//go:build linux

package main

import (
	"context"
	"errors"
	"math/bits"
	"runtime"
	"time"
)

// tally has the counters of one goroutine of a loop.
type tally struct {
	goroutine                               int
	count, total, switches, moves, allMoves int64
	violations, failed                      int64
	waits                                   *histogram
	longest                                 time.Duration
}

// loop makes goroutines lock and unlock from Begin to End.
func (w *working) loop(j job, res *result) error {
	lockers := make([]locker, j.Goroutines)
	tallies := make(chan tally, j.Goroutines)
	histograms := make([]histogram, j.Goroutines)
	for g := range lockers {
		n := w.lockNumber(j, g)
		lockers[g] = w.contender.Lock(lockName(n))
		if j.Names > 0 {
			lockers[g] = w.inTurn(n, j.Names)
		}
		if j.Read {
			r, ok := w.contender.(reader)
			if !ok {
				return errors.New("has no read locks")
			}
			lockers[g] = r.ReadLock(lockName(n))
		}
	}
	runtime.GC()
	sleepUntil(j.Begin)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	used := cpu()
	for g := range lockers {
		go func() {
			t := tally{goroutine: g, waits: &histograms[g]}
			w.lockAndUnlock(lockers[g], j, &t)
			tallies <- t
		}()
	}

	res.Counts = make([]int64, j.Goroutines)
	late := time.After(time.Duration(j.End-monotonic()) + j.ComeBack)
	for back := range lockers {
		select {
		case t := <-tallies:
			res.add(t)
			continue
		case <-late:
			w.hung = true
			res.Hung = int64(len(lockers) - back)
		}
		break
	}
	res.CPU = cpu() - used
	runtime.ReadMemStats(&after)
	res.Mallocs = after.Mallocs - before.Mallocs
	res.Bytes = after.TotalAlloc - before.TotalAlloc
	return nil
}

func (r *result) add(t tally) {
	r.Counts[t.goroutine] = t.count
	r.Total += t.total
	r.Switches += t.switches
	r.Moves += t.moves
	r.AllMoves += t.allMoves
	r.Violations += t.violations
	r.Failed += t.failed
	r.Waits.add(t.waits)
	r.Longest = max(r.Longest, t.longest)
}

// inTurn returns a locker that cycles through names locks, the n-th set of them. It is for one
// goroutine.
func (w *working) inTurn(n, names int) locker {
	t := &turns{}
	for i := range names {
		t.all = append(t.all, w.contender.Lock(lockName(n*names+i)))
	}
	return t
}

type turns struct {
	all  []locker
	next int
}

func (t *turns) Lock(ctx context.Context) (held, error) {
	l := t.all[t.next]
	t.next = (t.next + 1) % len(t.all)
	return l.Lock(ctx)
}

// lockNumber returns the number of the lock that goroutine g uses.
func (w *working) lockNumber(j job, g int) int {
	if j.Each {
		return w.Process*j.Goroutines + g
	}
	return 0
}

func (w *working) lockAndUnlock(l locker, j job, t *tally) {
	ctx := context.Background()
	if !j.Endless { // like the context of a request, a job, or a service that is stopped
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
	}
	me := holder(w.Process, t.goroutine)
	slot := &w.board.slots[w.lockNumber(j, t.goroutine)]
	end := time.Now().Add(time.Duration(j.End - monotonic()))
	for {
		began := time.Now()
		if began.After(end) && t.total+t.failed > 0 { // at least once, even on a busy machine
			return
		}
		h, err := l.Lock(ctx)
		if err != nil {
			t.failed++
			time.Sleep(time.Millisecond)
			continue
		}
		got := time.Now()
		if !j.Read {
			last, alone := slot.enter(me)
			if !alone {
				t.violations++
			}
			inTime := got.Before(end)
			if last != me && inTime {
				t.switches++
			}
			if processOf(last) != processOf(me) {
				t.allMoves++
				if inTime {
					t.moves++
				}
			}
		}
		if j.Inside > 0 {
			time.Sleep(j.Inside)
		}
		if !j.Read {
			slot.leave()
		}
		if err := h.Unlock(ctx); err != nil {
			t.failed++
		}
		t.total++
		if got.Before(end) {
			t.count++
		}
		took := got.Sub(began)
		if j.Each {
			took = time.Since(began) // there are no waiters here: measure the pair
		}
		t.waits.note(took)
		t.longest = max(t.longest, took)
	}
}

func sleepUntil(at int64) { time.Sleep(time.Duration(at - monotonic())) }

// histogram counts durations; a bucket is at most 1/32 wide.
type histogram [40 * 32]int64

func (h *histogram) note(d time.Duration) { h[bucket(d)]++ }

func bucket(d time.Duration) int {
	n := uint64(max(d, 1))
	if n < 32 {
		return int(n)
	}
	shift := bits.Len64(n) - 6
	return min((shift+1)*32+int(n>>shift)-32, len(histogram{})-1)
}

// middle returns a duration in the bucket.
func middle(bucket int) time.Duration {
	if bucket < 32 {
		return time.Duration(bucket)
	}
	shift := bucket/32 - 1
	return time.Duration(bucket%32+32)<<shift + time.Duration(1)<<shift/2
}

func (h *histogram) add(o *histogram) {
	for i, n := range o {
		h[i] += n
	}
}

// quantile returns the duration that a fraction q of all does not exceed.
func (h *histogram) quantile(q float64) time.Duration {
	var all, seen int64
	for _, n := range h {
		all += n
	}
	for i, n := range h {
		seen += n
		if seen > 0 && float64(seen) >= q*float64(all) {
			return middle(i)
		}
	}
	return 0
}

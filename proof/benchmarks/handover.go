//go:build linux

package main

import (
	"context"
	"time"
)

// handover hands a lock back and forth between two callers, in one process or in two that both run
// this, and measures the time from the call of Unlock in one to the return of Lock in the other.
// Each waits until the other has the lock before it retries, so the lock always changes hands.
func (w *working) handover(j job, res *result) error {
	sleepUntil(j.Begin)
	type outcome struct {
		result
		err error
	}
	done := make(chan outcome, j.Goroutines)
	for g := range j.Goroutines {
		go func() {
			var o outcome
			o.err = w.toAndFro(j, g, &o.result)
			done <- o
		}()
	}
	late := time.After(time.Duration(j.End-monotonic()) + j.ComeBack)
	for range j.Goroutines {
		select {
		case o := <-done:
			if o.err != nil {
				return o.err
			}
			res.Handovers = append(res.Handovers, o.Handovers...)
			res.Total += o.Total
			res.Violations += o.Violations
			res.Failed += o.Failed
		case <-late:
			w.hung = true
			res.Hung = 1
			return nil
		}
	}
	return nil
}

func (w *working) toAndFro(j job, goroutine int, res *result) error {
	ctx := context.Background()
	me := holder(w.Process, goroutine)
	slot := &w.board.slots[0]
	l := w.contender.Lock(lockName(0))
	for monotonic() < j.End {
		h, err := l.Lock(ctx)
		if err != nil {
			return err
		}
		at := monotonic()
		last, alone := slot.enter(me)
		if !alone {
			res.Violations++
		}
		if since := w.board.unlocking.Load(); since != 0 && last != me {
			res.Handovers = append(res.Handovers, time.Duration(at-since))
		}
		time.Sleep(j.Inside) // the other is waiting by then
		slot.leave()
		w.board.unlocking.Store(monotonic())
		if err := h.Unlock(ctx); err != nil {
			res.Failed++
		}
		res.Total++
		for slot.last.Load() == me && monotonic() < j.End {
			time.Sleep(200 * time.Microsecond)
		}
	}
	return nil
}

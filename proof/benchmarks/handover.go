//go:build linux

package main

import (
	"context"
	"time"
)

// handover hands a lock off between two processes that both run this, and measures
// the time from the call of Unlock in one to the return of Lock in the other.
// Each waits for the other to have it before it asks again, so the other always
// gets it.
func (w *working) handover(j job, res *result) error {
	sleepUntil(j.Begin)
	type outcome struct {
		result
		err error
	}
	done := make(chan outcome, 1)
	go func() {
		var o outcome
		o.err = w.toAndFro(j, &o.result)
		done <- o
	}()
	select {
	case o := <-done:
		*res = o.result
		return o.err
	case <-time.After(time.Duration(j.End-monotonic()) + j.ComeBack):
		w.hung = true
		res.Hung = 1
		return nil
	}
}

func (w *working) toAndFro(j job, res *result) error {
	ctx := context.Background()
	me := holder(w.Process, 0)
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

//go:build linux

package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/leasehold-go/leasehold/integration/internal/history"
	"github.com/leasehold-go/leasehold/latch"
)

// parts is the count of each round of a latch: each process counts its own part.
const parts = 3

// meetings returns the functions that goroutines call repeatedly to wait for other processes. One counts the latches
// down in turn, so no round of a latch begins before all processes have finished the earlier one, unless a process was
// killed, or the server lost data. One only waits for latches. One joins the wait group, and one waits for it.
func (w *worker) meetings() (all []func(*rand.Rand)) {
	var latches []*taker
	for i := range w.takers {
		switch t := &w.takers[i]; t.Kind {
		case "latch":
			latches = append(latches, t)
		case "waitgroup":
			all = append(all,
				func(r *rand.Rand) { w.joins(t, r) },
				func(r *rand.Rand) {
					w.awaitsWaitGroup(t)
					time.Sleep(time.Duration(r.IntN(int(10 * time.Millisecond))))
				})
		}
	}
	if len(latches) == 0 {
		return all
	}
	round, before := 0, (*part)(nil)
	return append(all,
		func(r *rand.Rand) {
			before = w.counts(latches[round%len(latches)], before, round, r)
			round++
		},
		func(r *rand.Rand) {
			time.Sleep(time.Duration(r.IntN(int(20 * time.Millisecond))))
			w.awaitsLatch(latches[r.IntN(len(latches))], func() {})
		})
}

// part is a process's part of a round of a latch. Its name is unique.
type part struct {
	*taker
	name string
	*record
}

// counts creates a latch, counts its part, sometimes twice, and waits for the others. In every pause of the wait it
// repeats its part and the previous one, as documented for users who want to survive a server that loses data: another
// process may still need the previous one.
func (w *worker) counts(t *taker, before *part, round int, r *rand.Rand) *part {
	p := &part{t, fmt.Sprintf("%s/%d", filepath.Base(w.File), round), w.records.add(record{
		Side: callPart, Place: int16(t.number), Token: uint64(round), Call: history.Monotonic(), Granted: history.Monotonic(), Until: math.MaxInt64,
	})}
	for over := false; !over && !w.enough.Load(); {
		w.sets(t)
		w.count(p)
		if r.IntN(4) == 0 {
			w.count(p)
		}
		over = w.awaitsLatch(t, func() {
			w.count(p)
			if before != nil {
				w.count(before)
			}
		})
	}
	time.Sleep(time.Duration(r.IntN(int(40 * time.Millisecond))))
	return p
}

// sets creates a latch, if it is released or unknown.
func (w *worker) sets(t *taker) {
	for !w.enough.Load() {
		one := record{Side: callSet, Place: int16(t.number), Call: history.Monotonic()}
		created, err := t.latch.TrySetCount(context.Background(), parts)
		if one.Granted = history.Monotonic(); created {
			w.records.add(one)
		}
		if err == nil {
			return
		}
		w.refusedBy("set", err, t.Name)
		time.Sleep(10 * time.Millisecond) // errors can be immediate, as with a full memory
	}
}

// count counts a part, and retries until there is a reply.
func (w *worker) count(p *part) {
	for !w.enough.Load() {
		one := record{Side: callNone, Place: int16(p.number), Call: history.Monotonic()}
		p.Release = 0
		_, err := p.latch.CountDownOnce(context.Background(), p.name)
		one.Granted = history.Monotonic()
		if err != nil && !errors.Is(err, latch.ErrNotInitialized) {
			p.Flags |= flagUnsure
		}
		p.Look, p.Release = one.Granted, one.Granted
		if err == nil {
			return
		}
		w.refusedBy("count down", err, p.Name)
		if errors.Is(err, latch.ErrNotInitialized) {
			w.records.add(one)
			w.sets(p.taker)
			continue
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// awaitsLatch waits for a latch, and reports whether it was released. Occasionally it does other work in the meantime.
// Once the processes have done enough, it stops waiting if the latch is not released, because the others have left. If
// the latch is released and Wait hangs, so does this process, and its parent reports that.
func (w *worker) awaitsLatch(t *taker, meanwhile func()) (opened bool) {
	one := record{Side: callWait, Place: int16(t.number), Call: history.Monotonic()}
	err := w.awaits(func(ctx context.Context) error {
		err := t.latch.Wait(ctx)
		one.Granted = history.Monotonic()
		return err
	}, func(ctx context.Context) (giveUp bool) {
		meanwhile()
		if !w.enough.Load() {
			return false
		}
		left, err := t.latch.Count(ctx)
		return err == nil && left > 0
	})
	switch {
	case err == nil:
		w.records.add(one)
		return true
	case errors.Is(err, latch.ErrNotInitialized), errors.Is(err, latch.ErrDeleted):
		one.Side = callNone
		w.records.add(one)
	}
	if !errors.Is(err, context.Canceled) {
		w.refusedBy("wait", err, t.Name)
	}
	return false
}

// awaits calls wait, and calls now occasionally, until wait returns or now reports that it is time to stop waiting.
func (w *worker) awaits(wait func(context.Context) error, now func(context.Context) (giveUp bool)) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- wait(ctx) }()
	again := time.NewTicker(lease / 8)
	defer again.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-again.C:
			if now(ctx) {
				cancel()
			}
		}
	}
}

// failing is a worker that is not done when it leaves.
type failing struct{ *latch.Worker }

func (m failing) Unlock(ctx context.Context) error { return m.Fail(ctx) }

// joins is a worker of the wait group for a while, usually briefly, so that the group is empty at times.
func (w *worker) joins(t *taker, r *rand.Rand) {
	time.Sleep(time.Duration(r.IntN(int(40 * time.Millisecond))))
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	one := record{Place: int16(t.number), Permits: 1, Call: history.Monotonic()}
	m, err := t.waitGroup.Add(ctx)
	if err != nil {
		w.refusedBy("join", err, t.Name)
		return
	}
	records := w.grant(t, &one, m)
	stay := time.Duration(r.IntN(int(20 * time.Millisecond)))
	if r.IntN(30) == 0 {
		stay = time.Duration(r.Int64N(int64(2 * lease)))
	}
	w.stay(records, m, stay, r)
	if r.IntN(30) > 0 {
		w.unlock(records, m, t.Name)
		return
	}
	for _, one := range records {
		one.Flags |= flagFails
	}
	w.unlock(records, failing{m}, t.Name)
}

// awaitsWaitGroup waits for the wait group, and dismisses lost workers.
func (w *worker) awaitsWaitGroup(t *taker) {
	err := awaitWaitGroup(t.waitGroup, t.number, func(wait func(context.Context) error) error {
		return w.awaits(wait, func(ctx context.Context) bool { return w.enough.Load() && outlives(ctx, t.waitGroup) })
	}, func(one record) { w.records.add(one) })
	if err != nil && !errors.Is(err, context.Canceled) {
		w.refusedBy("wait for the wait group", err, t.Name)
	}
}

// awaitWaitGroup makes wait call Wait, and records the result. It dismisses lost workers.
func awaitWaitGroup(c *latch.WaitGroup, number int, wait func(func(context.Context) error) error, write func(record)) error {
	one := record{Side: callWait, Place: int16(number), Call: history.Monotonic()}
	err := wait(func(ctx context.Context) error {
		err := c.Wait(ctx)
		one.Granted = history.Monotonic()
		return err
	})
	var lost *latch.LostError
	switch {
	case err == nil:
		write(one)
	case errors.Is(err, latch.ErrNotInitialized), errors.Is(err, latch.ErrDeleted):
		one.Side = callNone
		write(one)
	case errors.As(err, &lost):
		for _, m := range lost.Workers {
			one.Side, one.Owner = callNamed, ownerNumber(m.Owner)
			write(one)
			now := history.Monotonic()
			write(record{Side: callDrop, Place: one.Place, Owner: one.Owner, Call: now, Granted: now})
		}
		_, err = c.Dismiss(context.Background(), lost.Workers...)
	}
	return err
}

// outlives reports whether a worker's remaining lease is longer than any granted lease, because the server's clock
// moved backward.
func outlives(ctx context.Context, c *latch.WaitGroup) bool {
	state, err := c.Inspect(ctx)
	for _, left := range state.Left {
		if err == nil && left > longest {
			return true
		}
	}
	return false
}

// visitLatch checks that a latch can be created again, counted down and waited for.
func (s *scene) visitLatch(p place) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	l := s.locks.NewLatch(p.Name)
	err := l.Delete(ctx)
	made, left := false, int64(-1)
	if err == nil {
		made, err = l.TrySetCount(ctx, 1)
	}
	if err == nil {
		left, err = l.CountDown(ctx)
	}
	if err == nil {
		err = l.Wait(ctx)
	}
	if err != nil || !made || left != 0 {
		s.Errorf("%s, when all is over: made is %v, %d are left, error %v", p.Name, made, left, err)
	}
}

// visitWaitGroup waits for the wait group again, after all its workers have left. Any lost worker must have been named
// by now, or is named here.
func (s *scene) visitWaitGroup(p place, number int) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c := s.locks.NewWaitGroup(p.Name)
	for named := true; named && !outlives(ctx, c); {
		named = false
		err := awaitWaitGroup(c, number, func(wait func(context.Context) error) error { return wait(ctx) }, func(one record) {
			named = named || one.Side == callNamed
			s.last = append(s.last, one)
		})
		if err != nil && !errors.Is(err, latch.ErrNotInitialized) {
			s.Errorf("%s, when all is over: %v", p.Name, err)
		}
	}
	if err := c.Delete(ctx); err != nil {
		s.Errorf("%s, when all is over: %v", p.Name, err)
	}
}

//go:build linux

package main

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// Latches, for the cells that begin with latch.

// latcher is a contender that has latches.
type latcher interface {
	// Latch returns a handle of the latch called name.
	Latch(ctx context.Context, name string) (latched, error)
}

// latched is a latch.
type latched interface {
	TrySetCount(ctx context.Context, n int64) (bool, error)
	CountDown(ctx context.Context) (left int64, err error)
	Wait(ctx context.Context) error
}

func (l leasehold) Latch(_ context.Context, name string) (latched, error) {
	return l.client.NewLatch(name), nil
}

// decr is a floor, not a latch to use: a script that decrements and publishes. A repeated call counts twice, a lost
// message leaves its waiter blocked, and a released latch looks like a missing one.
type decr struct {
	noLocks
	rdb rueidis.Client
	ctx context.Context
	end context.CancelFunc
	wg  *sync.WaitGroup
}

var decrDown = rueidis.NewLuaScript(`
local left = redis.call('DECR', KEYS[1])
if left == 0 then
  redis.call('DEL', KEYS[1])
  redis.call('PUBLISH', KEYS[1], '0')
end
return left`)

func openDecr(s settings) (contender, error) {
	rdb, err := rueidisClient(s.Addr)
	ctx, cancel := context.WithCancel(context.Background())
	return decr{rdb: rdb, ctx: ctx, end: cancel, wg: new(sync.WaitGroup)}, err
}

func (d decr) Close() {
	d.end()
	d.wg.Wait()
	d.rdb.Close()
}

func (d decr) Latch(ctx context.Context, name string) (latched, error) {
	l := decrLatch{rdb: d.rdb, name: name, opened: make(chan struct{}, 1)}
	subscribe(d.ctx, d.wg, d.rdb, name, func(string) { l.opened <- struct{}{} })
	return l, nil
}

type decrLatch struct {
	rdb    rueidis.Client
	name   string
	opened chan struct{} // a token for each round
}

func (l decrLatch) TrySetCount(ctx context.Context, n int64) (bool, error) {
	err := l.rdb.Do(ctx, l.rdb.B().Set().Key(l.name).Value(strconv.FormatInt(n, 10)).Nx().Build()).Error()
	return err == nil, err
}

func (l decrLatch) CountDown(ctx context.Context) (int64, error) {
	return decrDown.Exec(ctx, l.rdb, []string{l.name}, nil).AsInt64()
}

func (l decrLatch) Wait(ctx context.Context) error {
	select {
	case <-l.opened:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// latch makes goroutines count one latch down, round after round from Begin to End. In a round each calls CountDown
// Names times, and one more goroutine waits. Waits has the durations of the calls; Handovers has the times from the
// start of the last call to the end of the wait.
func (w *working) latch(j job, res *result) error {
	c, ok := w.contender.(latcher)
	if !ok {
		return errors.New("has no latches")
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	l, err := c.Latch(ctx, "latch")
	if err != nil {
		return err
	}
	sleepUntil(j.Begin)
	used, end := cpu(), time.Now().Add(time.Duration(j.End-monotonic()))
	for rounds := 0; rounds == 0 || time.Now().Before(end); rounds++ {
		if created, err := l.TrySetCount(ctx, int64(j.Goroutines*j.Names)); err != nil || !created {
			return errors.Join(errors.New("no latch was made"), err)
		}
		opened := make(chan time.Time, 1)
		results := make(chan error, j.Goroutines+1)
		go func() {
			err := l.Wait(ctx)
			opened <- time.Now()
			results <- err
		}()
		tallies := make(chan *histogram, j.Goroutines)
		last := make(chan time.Time, 1)
		for range j.Goroutines {
			go func() {
				waits := new(histogram)
				defer func() { tallies <- waits }()
				for range j.Names {
					began := time.Now()
					left, err := l.CountDown(ctx)
					if err != nil {
						results <- err
						return
					}
					waits.note(time.Since(began))
					if left == 0 {
						last <- began
					}
				}
				results <- nil
			}()
		}
		for range j.Goroutines {
			res.Waits.add(<-tallies)
		}
		for range j.Goroutines + 1 {
			if err := <-results; err != nil {
				return err
			}
		}
		res.Handovers = append(res.Handovers, (<-opened).Sub(<-last))
		res.Total += int64(j.Goroutines * j.Names)
	}
	res.CPU, res.At = cpu()-used, monotonic()
	return nil
}

// latches is the slice of goroutines that count one latch down for d.
func latches(goroutines, each int, d time.Duration) func(*stage) (sample, error) {
	return func(s *stage) (sample, error) {
		r, got, err := s.spun(s.timed(job{Do: "latch", Goroutines: goroutines, Names: each}, s.time(d)))
		if err != nil {
			return nil, err
		}
		got["open us"] = us(median(r.Handovers))
		return got, nil
	}
}

var latchCells = []*cell{
	{
		name: "latch", title: "Rounds of a latch: one goroutine waits, and 64 goroutines of a process count down 100 times each",
		contenders: []string{"decr", "leasehold", "redisson"}, reference: "decr", processes: 1,
		slice: latches(64, 100, time.Second),
		columns: []column{
			{"counts/s", "calls/s", false, 0}, {"× decr", "calls/s", true, 2}, {"p50 µs from the last call to the end of the wait", "open us", false, 0}, {"commands/count", "sent/call", false, 3},
			{"server µs/count", "server us", false, 2}, {"× decr", "server us", true, 2}, {"client CPU µs/count", "cpu/call", false, 2}, {"p99 ms", "p99 ms", false, 2},
		},
		aims: []aim{
			{what: "counts/s, × a script that only counts", metric: "calls/s", over: "decr", atLeast: 1},
			{what: "commands per count", metric: "sent/call", atMost: 0.1},
			{what: "server µs per count", metric: "server us", atMost: 8},
		},
	},
}

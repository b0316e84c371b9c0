package ratelimit

import (
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
)

// WaitForAsks returns when n callers wait for the next request for a key.
func WaitForAsks(l *Limiter, key string, n int) {
	id, _ := l.enter(key, 0)
	for {
		l.desk.mu.Lock()
		lane := l.desk.lanes[id.key]
		enough := lane != nil && len(lane.next) >= n
		l.desk.mu.Unlock()
		if enough {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// A Counted is a reply of the policy FailLocal.
type Counted struct {
	Taken, Remaining    int64
	Delay, Retry, Reset time.Duration

	Leave func() // for a caller that was queued; otherwise nil
}

// CountHere returns a function that counts with the policy FailLocal for one key.
func CountHere(processes int64, limits ...Limit) func(n, least int64, wait time.Duration) Counted {
	l := (&Limiter{bad: nil}).With(limits...)
	m := new(memory)
	return func(n, least int64, wait time.Duration) Counted {
		r, turn := m.take(bucketID{key: "k"}, l.limits, processes, n, least, wait)
		c := Counted{Taken: r.Taken, Remaining: r.Remaining, Delay: r.Delay, Retry: r.Retry, Reset: r.Reset}
		if turn != nil {
			c.Leave = func() { m.leave(turn) }
		}
		return c
	}
}

// Sleep changes the state that l has cached from Redis as if the machine had slept for d.
func Sleep(l *Limiter, d time.Duration) {
	if l.stock != nil {
		l.stock.mu.Lock()
		defer l.stock.mu.Unlock()
		for _, g := range l.stock.grants {
			g.until = redistest.BeforeSleep(g.until, d)
		}
	}
	l.desk.mu.Lock()
	defer l.desk.mu.Unlock()
	for _, all := range l.desk.refused {
		for i := range all {
			all[i].until, all[i].forget = redistest.BeforeSleep(all[i].until, d), redistest.BeforeSleep(all[i].forget, d)
		}
	}
}

// Since returns the time since t.
func Since(t time.Time) time.Duration { return since(t, time.Now()) }

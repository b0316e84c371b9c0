package ratelimit

import (
	"errors"
	"math"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

// without decides about a Take or a Peek after Redis failed with err.
func (l *Limiter) without(op, key string, id laneID, n, least int64, err error) (Decision, error) {
	d := Decision{Err: err, Limit: l.limits[0]}
	switch {
	case !errors.Is(err, lock.ErrUnavailable) || l.policy.mode == closed:
		return d, l.wrap(op, key, err)
	case l.policy.mode == open:
		d.OK, d.Taken = true, n
		return d, nil
	}
	r := l.local.take(id, l.limits, l.policy.processes, n, least, 0)
	d.Taken, d.Remaining, d.RetryAfter, d.ResetAfter = r.Taken, r.Remaining, r.Retry, r.Reset
	d.Limit = l.limits[r.Scarcest]
	d.OK = d.Taken > 0 || n == 0
	return d, nil
}

// reserveWithout decides about a reservation after Redis failed with err.
func (l *Limiter) reserveWithout(op, key string, id laneID, n int64, wait time.Duration, err error) (*Reservation, error) {
	reserved := &Reservation{limiter: l, key: key, id: id, n: n, err: err}
	switch l.policy.mode {
	case closed:
		return nil, l.wrap(op, key, err)
	case open:
		return reserved, nil
	}
	r := l.local.take(id, l.limits, l.policy.processes, n, n, wait)
	if r.Taken < n {
		return nil, l.wrap(op, key, &LimitedError{RetryAfter: r.Retry})
	}
	if r.Delay > 0 {
		reserved.ready = time.Now().Add(r.Delay)
	}
	return reserved, nil
}

// memory is the count of the policy Local. The zero memory has counted nothing.
type memory struct {
	mu    sync.Mutex
	keys  map[laneID]*bucket // guarded by mu
	sweep int                // guarded by mu: the number of keys at which those that owe nothing are removed
}

// bucket is the debt of one key, for each limit.
type bucket struct {
	full   []time.Time // for a limit with a burst: when its bucket is full again
	window []int64     // for an aligned limit: its window
	used   []int64     // for an aligned limit: the units taken in that window
	idle   time.Time   // when nothing is owed
	latest time.Time   // when the latest reservation is due
}

// take takes units of this process's share of each limit, as limit_take.lua does of the whole limit.
func (m *memory) take(id laneID, limits []Limit, processes, n, least int64, wait time.Duration) (r answer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	b := m.of(id, len(limits), now)

	// The share is at least one unit: a share of none would make Local the same as Closed.
	most := func(i int) int64 { return max(1, limits[i].Burst/processes) }
	unit := func(i int) float64 {
		return float64(limits[i].Per) / float64(limits[i].Rate) * float64(processes)
	}
	window := func(i int, t time.Time) int64 { return t.UnixMicro() / limits[i].Per.Microseconds() }
	starts := func(i int, w int64) time.Time { return time.UnixMicro(w * limits[i].Per.Microseconds()) }
	taken := func(i int, w int64) int64 {
		if b.window[i] == w {
			return b.used[i]
		}
		return 0
	}
	// left returns the units that limit i has at t if no reservation is ahead.
	left := func(i int, t time.Time) int64 {
		if limits[i].Aligned {
			return max(0, most(i)-taken(i, window(i, t)))
		}
		room := float64(most(i))*unit(i) - float64(max(0, b.full[i].Sub(t)))
		return max(0, int64(math.Floor(room/unit(i)+1e-6)))
	}
	scarcest := func() (units int64, which int) {
		units = math.MaxInt64
		for i := range limits {
			if n := left(i, now); n < units {
				units, which = n, i
			}
		}
		if b.latest.After(now) {
			units = 0
		}
		return units, which
	}
	earliest := func(units int64) time.Time {
		at := now
		if b.latest.After(at) {
			at = b.latest
		}
		for moved := true; moved; {
			moved = false
			for i := range limits {
				need := b.full[i].Add(time.Duration(math.Ceil(float64(units-most(i)) * unit(i))))
				if limits[i].Aligned {
					w := max(window(i, at), b.window[i])
					if taken(i, w)+units > most(i) {
						w++
					}
					need = starts(i, w)
				}
				if need.After(at) {
					at, moved = need, true
				}
			}
		}
		return at
	}

	have, _ := scarcest()
	at := now
	r.Taken = min(n, have)
	if r.Taken < least {
		r.Taken, r.Retry = 0, Never
		possible := true
		for i := range limits {
			possible = possible && least <= most(i)
		}
		if possible {
			at = earliest(least)
			r.Retry = at.Sub(now)
			if wait > 0 && r.Retry <= wait {
				r.Taken, r.Delay, r.Retry = least, r.Retry, 0
			}
		}
	}
	if r.Taken > 0 {
		for i := range limits {
			if limits[i].Aligned {
				w := window(i, at)
				b.used[i] = taken(i, w) + r.Taken
				b.window[i] = w
				b.idle = later(b.idle, starts(i, w+1))
			} else {
				b.full[i] = later(b.full[i], at).Add(time.Duration(math.Ceil(float64(r.Taken) * unit(i))))
				b.idle = later(b.idle, b.full[i])
			}
		}
		b.latest = later(b.latest, at)
	}
	r.Remaining, r.Scarcest = scarcest()
	r.Reset = max(0, b.idle.Sub(now))
	return r
}

// of returns the bucket of a key. The mutex is held.
func (m *memory) of(id laneID, limits int, now time.Time) *bucket {
	if b := m.keys[id]; b != nil {
		return b
	}
	if m.keys == nil {
		m.keys = make(map[laneID]*bucket)
	}
	if len(m.keys) >= max(m.sweep, 1024) {
		for id, b := range m.keys {
			if !b.idle.After(now) {
				delete(m.keys, id)
			}
		}
		m.sweep = 2 * len(m.keys)
	}
	b := &bucket{full: make([]time.Time, limits), window: make([]int64, limits), used: make([]int64, limits)}
	for i := range b.full {
		b.full[i] = now
	}
	m.keys[id] = b
	return b
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

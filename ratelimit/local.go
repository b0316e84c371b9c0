package ratelimit

import (
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

// without decides a Take or a Peek after Redis failed with err.
func (l *Limiter) without(op, key string, id bucketID, n, least int64, err error) (Decision, error) {
	d := Decision{Err: err, Limit: l.limits[0]}
	switch {
	case !errors.Is(err, lock.ErrUnavailable) || l.policy.mode == closed:
		return d, l.wrap(op, key, err)
	case l.policy.mode == open:
		d.OK, d.Taken = true, n
		return d, nil
	}
	r, _ := l.local.take(id, l.limits, l.policy.processes, n, least, 0)
	d.Taken, d.Remaining, d.RetryAfter, d.ResetAfter = r.Taken, r.Remaining, r.Retry, r.Reset
	d.Limit, d.next = l.limits[r.Limit], r.Next
	d.OK = d.Taken > 0 || n == 0
	return d, nil
}

// reserveWithout decides a reservation after Redis failed with err.
func (l *Limiter) reserveWithout(op, key string, id bucketID, n int64, wait time.Duration, err error) (*Reservation, error) {
	reserved := &Reservation{limiter: l, key: key, id: id, n: n, err: err}
	switch l.policy.mode {
	case closed:
		return nil, l.wrap(op, key, err)
	case open:
		return reserved, nil
	}
	r, turn := l.local.take(id, l.limits, l.policy.processes, n, n, wait)
	if r.Taken < n {
		return nil, l.wrap(op, key, &LimitedError{RetryAfter: r.Retry})
	}
	if r.Delay > 0 {
		reserved.ready = time.Now().Add(r.Delay)
		reserved.turn = turn
	}
	return reserved, nil
}

// memory is the in-process count of the policy FailLocal. The zero memory is empty.
type memory struct {
	mu    sync.Mutex
	keys  map[bucketID]*bucket // guarded by mu
	sweep int                  // guarded by mu: number of keys at which keys with their full quota are removed
}

// take takes permits from this process's share of each limit, as limit_take.lua does from the whole limit. A caller that has to
// wait for them gets a turn.
func (m *memory) take(id bucketID, limits []Limit, processes, n, least int64, wait time.Duration) (r answer, waits *turn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	b := m.of(id, limits, processes, now)

	at := now // when the caller uses the permits
	refuses := -1
	have, _ := b.left(now)
	most, smallest := b.most()
	switch {
	case have >= least:
		r.Taken = min(n, have)
		due, _ := b.earliest(1, now)
		r.Next = due.Sub(now) // for a Peek
	case least > most:
		r.Retry, refuses = Never, smallest
	default:
		var due time.Time
		due, refuses = b.earliest(least, now)
		if r.Retry = due.Sub(now); wait > 0 && r.Retry <= wait {
			r.Taken, r.Delay, r.Retry = least, r.Retry, 0
			at = due
			waits = b.join(due, now)
		}
	}
	if r.Taken > 0 {
		b.take(r.Taken, at)
	}
	r.Remaining, r.Limit = b.left(now)
	if r.Retry != 0 && refuses >= 0 {
		r.Limit = refuses
	}
	r.Reset = max(0, b.idle.Sub(now))
	return r, waits
}

// leave removes a caller from the queue before its turn. Its permits are returned if no later caller is queued, and otherwise
// when the later callers have left, too.
func (m *memory) leave(t *turn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t.gone = true
	b := t.of
	for b.serve(time.Now()); len(b.line) > 0 && b.line[len(b.line)-1].gone; b.line = b.line[:len(b.line)-1] {
		last := b.line[len(b.line)-1]
		b.parts, b.latest, b.idle = last.parts, last.latest, last.idle
	}
}

// reset forgets a key, under all limits. Waiting callers keep their turns.
func (m *memory) reset(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id := range m.keys {
		if id.key == key {
			delete(m.keys, id)
		}
	}
}

// of returns the bucket of a key. The mutex is held.
func (m *memory) of(id bucketID, limits []Limit, processes int64, now time.Time) *bucket {
	if b := m.keys[id]; b != nil {
		return b
	}
	if m.keys == nil {
		m.keys = make(map[bucketID]*bucket)
	}
	if len(m.keys) >= max(m.sweep, 1024) {
		for id, b := range m.keys {
			if !b.idle.After(now) {
				delete(m.keys, id)
			}
		}
		m.sweep = 2 * len(m.keys)
	}
	b := &bucket{}
	for _, l := range limits {
		b.parts = append(b.parts, newPart(l, processes))
	}
	m.keys[id] = b
	return b
}

// bucket is the used quota of one key.
type bucket struct {
	parts  []part    // one for each limit
	latest time.Time // when the latest reservation is due
	idle   time.Time // when the full quota is available
	line   []*turn   // waiting callers, first-come, first-served
}

// turn is a caller's position in the queue, with the state of the bucket before it joined. While a caller is queued, only later
// callers in the queue change the bucket.
type turn struct {
	of   *bucket // set once
	at   time.Time
	gone bool // the caller has left

	parts        []part
	latest, idle time.Time
}

// join puts a caller at the end of the queue.
func (b *bucket) join(at, now time.Time) *turn {
	b.serve(now)
	t := &turn{of: b, at: at, parts: slices.Clone(b.parts), latest: b.latest, idle: b.idle}
	b.line = append(b.line, t)
	return t
}

// serve removes the callers whose turn has come from the queue.
func (b *bucket) serve(now time.Time) {
	for len(b.line) > 0 && !b.line[0].at.After(now) {
		b.line = b.line[1:]
	}
}

// left returns the permits that all limits have at now, and the index of the limit with the fewest. If several limits have the
// fewest, it is the one that gets its next permit last.
func (b *bucket) left(now time.Time) (units int64, scarcest int) {
	units = math.MaxInt64
	var latest time.Time // when that limit gets its next permit
	for i := range b.parts {
		n := b.parts[i].left(now)
		next := b.parts[i].enough(n+1, now)
		if n < units || n == units && next.After(latest) {
			units, scarcest, latest = n, i, next
		}
	}
	if b.latest.After(now) { // a reservation comes first
		units = 0
	}
	return units, scarcest
}

// most returns the most permits that a call can take at once, and the index of the limit that determines it.
func (b *bucket) most() (most int64, smallest int) {
	most = math.MaxInt64
	for i := range b.parts {
		if n := b.parts[i].most; n < most {
			most, smallest = n, i
		}
	}
	return most, smallest
}

// earliest returns the earliest time at which a caller that arrives at now can use permits of all limits, and the index of
// the limit that has them last. The index is -1 if only an earlier reservation delays the caller.
func (b *bucket) earliest(units int64, now time.Time) (at time.Time, last int) {
	last = -1
	for at = later(now, b.latest); ; {
		next := at
		for i := range b.parts {
			if t := b.parts[i].enough(units, next); t.After(next) {
				next, last = t, i
			}
		}
		if next.Equal(at) {
			return at, last
		}
		at = next // at this time, another limit may lack permits
	}
}

// take takes permits of all limits that the caller uses at the given time.
func (b *bucket) take(units int64, at time.Time) {
	for i := range b.parts {
		b.idle = later(b.idle, b.parts[i].take(units, at))
	}
	b.latest = later(b.latest, at)
}

// part is this process's share of one limit, and the used quota of that share. It is a bucket, or a count
// per window for an aligned limit.
type part struct {
	most int64   // set once: the size of the bucket, or the permits per window
	unit float64 // set once: the time in which the bucket gets one permit, in ns
	per  int64   // set once: the length of a window in µs; 0 for a bucket

	debt   float64   // the time until the bucket is full, in ns; as of
	asOf   time.Time // this time
	window int64     // the latest window from which permits were taken
	used   int64     // the permits taken from that window
}

func newPart(l Limit, processes int64) part {
	// The share is at least one permit. With a share of 0, FailLocal would be the same as FailClosed.
	p := part{most: max(1, l.Burst/processes), unit: float64(l.Per) / float64(l.Rate) * float64(processes)}
	if l.Aligned {
		p.per = l.Per.Microseconds()
	}
	return p
}

// left returns the permits available at t.
func (p *part) left(t time.Time) int64 {
	if p.per > 0 {
		return max(0, p.most-p.usedOf(p.windowAt(t)))
	}
	return max(0, int64(math.Floor(float64(p.most)-p.debtAt(t)/p.unit+1e-6)))
}

// enough returns the earliest time at or after t at which the permits are available.
func (p *part) enough(units int64, t time.Time) time.Time {
	if p.per > 0 {
		w := max(p.windowAt(t), p.window)
		if p.usedOf(w)+units > p.most {
			w++
		}
		return later(t, p.begin(w))
	}
	return later(t, p.asOf.Add(ns(p.debt-float64(p.most-units)*p.unit)))
}

// take takes permits that the caller uses at t, and returns when the full quota is available again.
func (p *part) take(units int64, t time.Time) time.Time {
	if p.per > 0 {
		w := p.windowAt(t)
		p.window, p.used = w, p.usedOf(w)+units
		return p.begin(w + 1)
	}
	p.debt, p.asOf = p.debtAt(t)+float64(units)*p.unit, t
	return t.Add(ns(p.debt))
}

// debtAt returns the debt as of t.
func (p *part) debtAt(t time.Time) float64 { return max(0, p.debt-float64(t.Sub(p.asOf))) }

// ns converts a number of ns to a Duration. It rounds up, except for the error of float64, and returns at most longest. If many
// processes share a limit, one permit of a share can take longer than a Duration can represent.
func ns(n float64) time.Duration { return time.Duration(math.Ceil(min(n, float64(longest)) - 1e-3)) }

// longest is small enough for a caller to add it to the current time and round it up.
const longest = 100 * 365 * 24 * time.Hour

// windowAt returns the window of t, begin returns the start of a window, and usedOf returns the permits taken from a window.
func (p *part) windowAt(t time.Time) int64   { return t.UnixMicro() / p.per }
func (p *part) begin(window int64) time.Time { return time.UnixMicro(window * p.per) }
func (p *part) usedOf(window int64) int64 {
	if window == p.window {
		return p.used
	}
	return 0
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

package ratelimit

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/luascripts"
)

// Prefetch returns a limiter on the same keys whose Take takes b permits more than the call needs.
// Later calls of this process use them, until within has passed. A busy key therefore costs one
// command for b permits, and most calls cost none.
//
// The limit is less exact. In any time W at most Burst + Rate·(W + within)/Per permits are
// admitted. Permits that a process does not use are lost to the other processes, up to b for each
// key and process. b must be at most half of a Burst, and should be at most Burst/(2·processes).
// TakeUpTo, Peek, Reserve and Wait still send a command each time.
func (l *Limiter) Prefetch(b int64, within time.Duration) *Limiter {
	with := *l
	with.stock = &stock{extra: b, within: within, grants: make(map[bucketID]*grant)}
	return with.With(l.limits...)
}

// stock holds the prefetched permits of this process for each key. Limiters with the same stock share them.
type stock struct {
	extra  int64         // set once
	within time.Duration // set once

	mu     sync.Mutex
	grants map[bucketID]*grant
	sweep  int // number of grants at which expired grants are removed
}

// grant holds the prefetched permits for one key. The mutex of the stock guards it.
type grant struct {
	left     int64
	until    time.Time
	r        answer        // the reply that granted the permits
	fetching chan struct{} // closed when the request in flight ends; nil if none is in flight
}

// check returns an error if s does not suit limits that admit at most most permits at once.
func (s *stock) check(most int64) error {
	switch {
	case s.extra < 1 || s.extra > most/2:
		return fmt.Errorf("Prefetch(%d): must be from 1 to half of the smallest burst, which is %d", s.extra, most)
	case s.within < time.Millisecond || s.within > MaxWait:
		return fmt.Errorf("Prefetch within %v: must be from 1ms to %v", s.within, MaxWait)
	}
	return nil
}

// take is Take from the stock. One caller per key fetches permits at a time, and the others wait for it. If the
// stock is still too small after that, each of them sends its own request, which the desk combines into one
// command.
func (s *stock) take(ctx context.Context, l *Limiter, id bucketID, n int64) (answer, error) {
	for waited := false; ; waited = true {
		s.mu.Lock()
		g := s.of(id)
		now := time.Now()
		if since(g.until, now) >= 0 {
			g.left = 0
		}
		if g.left >= n {
			g.left -= n
			r := g.r
			r.Taken, r.Remaining, r.Retry = n, r.Remaining+g.left, 0
			r.Reset, r.Next = max(0, r.Reset-now.Sub(r.sent)), max(0, r.Next-now.Sub(r.sent))
			s.mu.Unlock()
			return r, nil
		}
		under := g.fetching
		if under == nil {
			had, until, before := g.left, g.until, g.r
			g.left, g.fetching = 0, make(chan struct{})
			s.mu.Unlock()
			return s.fetch(ctx, l, id, g, n, had, until, before)
		}
		s.mu.Unlock()
		if waited {
			return l.desk.ask(ctx, l, id, luascripts.LimitRequest{Units: n, Times: 1, Least: n})
		}
		select {
		case <-under: // at the latest when the policy decides for the fetching caller, which came first
		case <-ctx.Done():
			return answer{}, l.desk.send.Failed(ctx, now, command.ErrOf(ctx))
		}
	}
}

// fetch requests the permits that a caller needs beyond the stock, plus extra ones.
func (s *stock) fetch(ctx context.Context, l *Limiter, id bucketID, g *grant, n, had int64, until time.Time, before answer) (answer, error) {
	need := n - had
	r, err := l.desk.ask(ctx, l, id, luascripts.LimitRequest{Units: need + s.extra, Times: 1, Least: need})
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() {
		close(g.fetching)
		g.fetching = nil
	}()
	if err != nil || r.Taken < need {
		g.left, g.until, g.r = had, until, before
		r.Taken = 0
		return r, err
	}
	g.left, g.until, g.r = r.Taken-need, r.sent.Add(s.within), r
	r.Taken, r.Remaining = n, r.Remaining+g.left
	if had > 0 {
		r.at = before.at // a refund counts from the time at which the oldest permits were taken
	}
	return r, nil
}

// of returns the grant of a key. The mutex is held.
func (s *stock) of(id bucketID) *grant {
	if g := s.grants[id]; g != nil {
		return g
	}
	if len(s.grants) >= max(s.sweep, 1024) {
		now := time.Now()
		for id, g := range s.grants {
			if g.fetching == nil && since(g.until, now) >= 0 {
				delete(s.grants, id)
			}
		}
		s.sweep = 2 * len(s.grants)
	}
	g := &grant{}
	s.grants[id] = g
	return g
}

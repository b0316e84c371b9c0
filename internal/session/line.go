package session

import (
	"context"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

// line is where the waiters of this process stand for one lock, first come
// first. Only the first of them asks Redis; what it has learnt about when to
// ask next stays with the line when the next one takes its place.
type line struct {
	s     *Session      // set once
	key   string        // set once
	hints chan struct{} // cap 1: something happened to the lock

	askAt time.Time // the first waiter's: not before this without a hint

	// Guarded by s.mu.
	waiters []*waiter
	sub     *subscription // nil until somebody had to wait
}

// waiter is one place in a line.
type waiter struct {
	line  *line
	first chan struct{} // closed when it is the first
}

// isNow is what the first waiter of a new line gets: it is the first already.
var isNow = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// join takes a place at the end of the line for key.
func (s *Session) join(key string) *waiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lines[key]
	if l == nil {
		l = &line{s: s, key: key, hints: make(chan struct{}, 1)}
		s.lines[key] = l
	}
	w := &waiter{line: l, first: isNow}
	if len(l.waiters) > 0 {
		w.first = make(chan struct{})
	}
	l.waiters = append(l.waiters, w)
	return w
}

// leave gives the place up. Whoever stood behind moves on.
func (w *waiter) leave() {
	l := w.line
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	i := slices.Index(l.waiters, w)
	l.waiters = slices.Delete(l.waiters, i, i+1)
	switch {
	case len(l.waiters) == 0:
		delete(l.s.lines, l.key)
		if l.sub != nil {
			l.sub.close()
		}
	case i == 0:
		close(l.waiters[0].first)
	}
}

func (w *waiter) isFirst() bool {
	select {
	case <-w.first:
		return true
	default:
		return false
	}
}

// turn waits until w is the first in line and has a reason to ask. It fails
// with ctx's error, or with ErrClosed.
func (w *waiter) turn(ctx context.Context) error {
	l := w.line
	select {
	case <-w.first:
	case <-ctx.Done():
		return ctx.Err()
	case <-l.s.closing:
		return lock.ErrClosed
	}
	if d := time.Until(l.askAt); d > 0 {
		due := time.NewTimer(d)
		defer due.Stop()
		select {
		case <-l.hints:
			return ctx.Err()
		case <-due.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-l.s.closing:
			return lock.ErrClosed
		}
	}
	select {
	case <-l.hints: // the question that comes now answers this one too
	case <-l.s.closing:
		return lock.ErrClosed
	default:
	}
	return ctx.Err()
}

// askIn says when the first in line asks next if no hint comes before.
func (w *waiter) askIn(d time.Duration) {
	w.line.askAt = time.Now().Add(d)
}

// granted says that w got the lock. Who is next waits for a hint, unless the
// line does not listen yet: then it must ask, to begin with that.
func (w *waiter) granted() {
	l := w.line
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if l.sub == nil {
		l.askAt = time.Time{}
	} else {
		w.askIn(l.s.Poll)
	}
}

// listen subscribes the line to the lock's channel. A release can slip in
// between our question and our subscription; so the confirmation that we listen
// counts as a hint, and we ask again.
func (w *waiter) listen(channel string) {
	l := w.line
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if l.sub == nil {
		l.sub = l.s.hub.subscribe(channel, l.hint)
	}
}

// hint tells the line that something happened. It does not block.
func (l *line) hint() {
	select {
	case l.hints <- struct{}{}:
	default:
	}
}

// hint tells the waiters for key in this process, if there are any.
func (s *Session) hint(key string) {
	s.mu.Lock()
	l := s.lines[key]
	s.mu.Unlock()
	if l != nil {
		l.hint()
	}
}

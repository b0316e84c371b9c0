package dashboard

import (
	"context"
	"sync"
	"time"
)

// A poll repeats one read on behalf of all callers, and only while there is a caller. After a read, it pauses
// for four times as long as the read took, and for at least one second, so that it does not overload a slow
// server.
type poll[T any] struct {
	ask  func(context.Context) T              // set once
	rest func(T, time.Duration) time.Duration // set once: the pause after a result, given the time of the read

	mu      sync.Mutex
	wanted  int           // number of callers
	running bool          // run is running
	last    T             // the latest result
	due     time.Time     // the time of the next read; zero before the first
	expired bool          // the result of the read in progress will be outdated
	next    chan struct{} // closed at the next result
	wake    chan struct{} // wakes run from its pause
}

// mostTime is the timeout of one read, which can consist of many commands.
const mostTime = time.Minute

// restOf returns the pause after a read that took this long.
func restOf(took time.Duration) time.Duration { return max(every, 4*took) }

func newPoll[T any](ask func(context.Context) T) *poll[T] {
	return &poll[T]{ask: ask, rest: func(_ T, took time.Duration) time.Duration { return restOf(took) }, next: make(chan struct{}), wake: make(chan struct{}, 1)}
}

// get returns the latest result if the next read is not due yet. Otherwise it waits for the next result, until ctx is canceled.
func (p *poll[T]) get(ctx context.Context) (last T, err error) {
	p.enter()
	defer p.leave()
	for {
		p.mu.Lock()
		last, next := p.last, p.next
		fresh := time.Now().Before(p.due)
		p.mu.Unlock()
		if fresh {
			return last, nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return last, context.Cause(ctx)
		}
	}
}

// each calls f after each result, until f returns false or ctx is canceled.
func (p *poll[T]) each(ctx context.Context, f func() bool) {
	p.enter()
	defer p.leave()
	for {
		p.mu.Lock()
		next := p.next
		p.mu.Unlock()
		select {
		case <-next:
			if !f() {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// expire marks the latest result as outdated.
func (p *poll[T]) expire() {
	p.mu.Lock()
	p.due, p.expired = time.Time{}, true
	p.mu.Unlock()
	p.poke()
}

// idle reports whether there is no caller, and the latest result is outdated.
func (p *poll[T]) idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.wanted == 0 && !p.running && time.Now().After(p.due)
}

func (p *poll[T]) enter() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wanted++
	if !p.running {
		p.running = true
		go p.run()
	}
}

func (p *poll[T]) leave() {
	p.mu.Lock()
	p.wanted--
	p.mu.Unlock()
	p.poke()
}

func (p *poll[T]) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// run repeats the read until there is no caller.
func (p *poll[T]) run() {
	for {
		p.mu.Lock()
		if p.wanted == 0 {
			p.running = false
			p.mu.Unlock()
			return
		}
		pause := time.Until(p.due)
		p.expired = p.expired && pause > 0
		p.mu.Unlock()
		if pause > 0 {
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
			case <-p.wake:
			}
			timer.Stop()
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), mostTime)
		began := time.Now()
		answer := p.ask(ctx)
		cancel()
		now := time.Now()
		p.mu.Lock()
		p.last = answer
		if !p.expired {
			p.due = now.Add(p.rest(answer, now.Sub(began)))
		}
		close(p.next)
		p.next = make(chan struct{})
		p.mu.Unlock()
	}
}

package dashboard

import (
	"context"
	"sync"
	"time"
)

// A poll asks one question again and again, on behalf of all who want to know the answer, and only
// while there is one. It rests for four times as long as the last question took, and for a second at least, so a
// slow server is not made slower.
type poll[T any] struct {
	ask  func(context.Context) T              // set once
	rest func(T, time.Duration) time.Duration // set once: how long to wait after an answer that took so long

	mu      sync.Mutex
	wanted  int           // who wants an answer
	running bool          // there is a goroutine
	last    T             // the latest answer
	due     time.Time     // the time of the next question; zero before the first
	expired bool          // the answer to the question on its way will be too old
	next    chan struct{} // closed at the next answer
	wake    chan struct{} // makes the goroutine look around
}

// mostTime is the time that one question may take: it can consist of many to Redis.
const mostTime = time.Minute

// restOf is the rest after a question that took so long.
func restOf(took time.Duration) time.Duration { return max(every, 4*took) }

func newPoll[T any](ask func(context.Context) T) *poll[T] {
	return &poll[T]{ask: ask, rest: func(_ T, took time.Duration) time.Duration { return restOf(took) }, next: make(chan struct{}), wake: make(chan struct{}, 1)}
}

// get returns an answer that is not older than the rhythm of the poll, and waits for one until the end of ctx.
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

// each calls f after each answer, until f returns false or ctx ends.
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

// expire makes the latest answer too old.
func (p *poll[T]) expire() {
	p.mu.Lock()
	p.due, p.expired = time.Time{}, true
	p.mu.Unlock()
	p.poke()
}

// idle reports whether nobody wants an answer, and the latest one is old.
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

// run asks until nobody wants to know.
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

package latch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/pubsub"
	"github.com/leasehold-go/leasehold/internal/session"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
)

// Latches is what all latches and wait groups of a client share.
type Latches struct {
	session *session.Session // set once

	mu      sync.Mutex
	watches map[string]*watch          // by the key of what is waited for
	workers map[string]luascripts.Mark // of wait groups, by owner: what each leaves behind, if it leaves now

	waitGroups *session.Kind // set once
}

// NewLatches is for package client.
func NewLatches(s *session.Session) *Latches {
	all := &Latches{session: s, watches: make(map[string]*watch), workers: make(map[string]luascripts.Mark)}
	all.waitGroups = all.newWaitGroups()
	return all
}

// watch looks at one latch or wait group for all callers of this client that wait for it. One goroutine looks: when a caller
// comes, at a message, and each poll interval.
type watch struct {
	all     *Latches
	key     string
	channel string
	look    func(context.Context) (any, error) // set once
	wake    chan struct{}                      // a token in it, which has room for one, has the goroutine look
	cancel  context.CancelFunc                 // ends the look under way, when nobody waits any more

	callers map[*caller]struct{} // guarded by the mutex of all
	looks   int                  // how many looks have begun; guarded by the mutex of all
}

// caller is a call that waits.
type caller struct {
	judge interface {
		judge(found any) (over bool, err error)
	}
	came int        // how many looks had begun when it came: it learns nothing from these; guarded by the mutex of Latches
	err  error      // of the latest look, if that was not answered; guarded by the mutex of Latches
	done chan error // has room for one
}

// wait waits until a look, which begins after the call, has the judge say that the wait is over, or ctx ends.
func (all *Latches) wait(ctx context.Context, key, channel string, look func(context.Context) (any, error), judge interface {
	judge(found any) (over bool, err error)
}) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := all.session.Enter(); err != nil {
		return err
	}
	defer all.session.Leave()
	c := &caller{judge: judge, done: make(chan error, 1)}
	w, err := all.join(key, channel, look, c)
	if err != nil {
		return err
	}
	select {
	case err := <-c.done:
		return err
	case <-ctx.Done():
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	w.leave(c)
	select {
	case err := <-c.done:
		return err // it came at the last moment
	default:
	}
	if c.err != nil {
		return fmt.Errorf("%w: %w", ctx.Err(), c.err)
	}
	return ctx.Err()
}

// join adds c to the callers for whom the watch of key looks.
func (all *Latches) join(key, channel string, look func(context.Context) (any, error), c *caller) (*watch, error) {
	all.mu.Lock()
	defer all.mu.Unlock()
	w := all.watches[key]
	if w == nil {
		if err := all.session.Enter(); err != nil {
			return nil, err
		}
		ctx, cancel := context.WithCancel(context.Background())
		w = &watch{all: all, key: key, channel: channel, look: look, wake: make(chan struct{}, 1), cancel: cancel, callers: make(map[*caller]struct{})}
		all.watches[key] = w
		go func() {
			defer all.session.Leave()
			defer cancel()
			w.run(ctx)
		}()
	}
	c.came = w.looks
	w.callers[c] = struct{}{}
	w.again()
	return w, nil
}

// leave removes a caller. The last one ends the watch. The caller of leave has the mutex of Latches.
func (w *watch) leave(c *caller) {
	delete(w.callers, c)
	if len(w.callers) == 0 && w.all.watches[w.key] == w {
		delete(w.all.watches, w.key)
		w.cancel()
	}
}

// again has the goroutine look, at once or when the look under way is over. It does not block.
func (w *watch) again() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run looks until nobody waits any more.
func (w *watch) run(ctx context.Context) {
	var sub *pubsub.Subscription
	defer func() {
		if sub != nil {
			sub.CloseSoon()
		}
	}()
	poll := time.NewTimer(w.all.session.Poll)
	defer poll.Stop()
	for {
		select {
		case <-w.wake:
		case <-poll.C:
		case <-ctx.Done():
			return
		case <-w.all.session.Closing():
			w.tell(0, nil, lock.ErrClosed)
			return
		}
		w.all.mu.Lock()
		w.looks++
		look := w.looks
		w.all.mu.Unlock()
		found, err := w.look(ctx)
		if ctx.Err() != nil {
			return
		}
		var e *lock.Error
		if errors.As(err, &e) {
			err = e.Err // each caller names its own call
		}
		w.tell(look, found, err)
		if sub == nil && ctx.Err() == nil {
			sub = w.all.session.Subscribe(w.channel, w.again)
		}
		poll.Reset(w.all.session.Poll)
	}
}

// tell tells the callers what a look has found. Those that came after it had begun wait for the next one.
func (w *watch) tell(look int, found any, err error) {
	w.all.mu.Lock()
	defer w.all.mu.Unlock()
	for c := range w.callers {
		switch {
		case errors.Is(err, lock.ErrUnavailable):
			c.err = err
		case err != nil:
			c.done <- err
			w.leave(c)
		case c.came < look:
			c.err = nil
			if over, err := c.judge.judge(found); over {
				c.done <- err
				w.leave(c)
			}
		}
	}
}

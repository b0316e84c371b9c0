package latch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/pubsub"
	"github.com/leasehold-go/leasehold/internal/session"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
)

// Latches is shared by all latches and wait groups of a client.
type Latches struct {
	session *session.Session // set once
	sender  *command.Sender  // set once

	mu       sync.Mutex
	watches  map[string]*watch          // by key of the latch or wait group; guarded by mu
	counters map[string]*counter        // by key of the latch; guarded by mu
	workers  map[string]luascripts.Mark // by owner: the mark that a release of the worker sets; guarded by mu

	waitGroups *session.Kind // set once
}

// NewLatches is for package client.
func NewLatches(s *session.Session, sender *command.Sender) *Latches {
	all := &Latches{session: s, sender: sender, watches: make(map[string]*watch), counters: make(map[string]*counter), workers: make(map[string]luascripts.Mark)}
	all.waitGroups = all.newWaitGroups()
	return all
}

// watch reads the state of one latch or wait group for all callers of this client that wait for it. One goroutine reads
// it when a caller joins, after each notification, and once per poll interval.
type watch struct {
	all     *Latches
	key     string
	channel string
	read    func(context.Context) (any, error) // set once
	wake    chan struct{}                      // cap 1: makes the goroutine call read
	cancel  context.CancelFunc                 // cancels the current read when the last caller leaves

	callers map[*caller]struct{} // guarded by all.mu
	reads   int                  // number of reads started; guarded by all.mu
}

// caller is a waiting call.
type caller struct {
	condition interface {
		check(found any) (done bool, err error)
	}
	began    time.Time  // when it joined; zero after the result of a read; guarded by Latches.mu
	joinedAt int        // number of reads started before it joined, whose results it ignores; guarded by Latches.mu
	err      error      // of the latest read, if Redis was unavailable; guarded by Latches.mu
	done     chan error // cap 1
}

// wait waits until condition ends the wait, or ctx is canceled. It ignores the result of a read that began before the call.
func (all *Latches) wait(ctx context.Context, key, channel string, read func(context.Context) (any, error), condition interface {
	check(found any) (done bool, err error)
}) error {
	if ctx.Err() != nil {
		return command.Ended(ctx, 0)
	}
	if err := all.session.Enter(); err != nil {
		return err
	}
	defer all.session.Leave()
	c := &caller{condition: condition, began: time.Now(), done: make(chan error, 1)}
	w, err := all.join(key, channel, read, c)
	if err != nil {
		return err
	}
	select {
	case err := <-c.done:
		return err
	case <-ctx.Done():
	}
	over := command.Ended(ctx, 0) // without the mutex: the context is the caller's
	all.mu.Lock()
	defer all.mu.Unlock()
	w.leave(c)
	select {
	case err := <-c.done:
		return err // it ended before leave
	default:
	}
	switch {
	case c.err != nil:
		return fmt.Errorf("%w: %w", over, c.err)
	case !c.began.IsZero():
		over.For = max(time.Since(c.began), 1)
	}
	return over
}

// join adds c to the callers of the watch of key, and creates the watch if needed.
func (all *Latches) join(key, channel string, read func(context.Context) (any, error), c *caller) (*watch, error) {
	all.mu.Lock()
	defer all.mu.Unlock()
	w := all.watches[key]
	if w == nil {
		if err := all.session.Enter(); err != nil {
			return nil, err
		}
		ctx, cancel := context.WithCancel(context.Background())
		w = &watch{all: all, key: key, channel: channel, read: read, wake: make(chan struct{}, 1), cancel: cancel, callers: make(map[*caller]struct{})}
		all.watches[key] = w
		go func() {
			defer all.session.Leave()
			defer cancel()
			w.run(ctx)
		}()
	}
	c.joinedAt = w.reads
	w.callers[c] = struct{}{}
	w.again()
	return w, nil
}

// leave removes c, and ends the watch after the last caller. Latches.mu must be held.
func (w *watch) leave(c *caller) {
	delete(w.callers, c)
	if len(w.callers) == 0 && w.all.watches[w.key] == w {
		delete(w.all.watches, w.key)
		w.cancel()
	}
}

// again makes the goroutine call read, immediately or after the current call. It does not block.
func (w *watch) again() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run calls read until the last caller has left.
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
			w.deliver(0, nil, lock.ErrClosed)
			return
		}
		w.all.mu.Lock()
		w.reads++
		read := w.reads
		w.all.mu.Unlock()
		found, err := w.read(ctx)
		if ctx.Err() != nil {
			return
		}
		if e, named := err.(*lock.Error); named {
			err = e.Err // each caller adds its own operation
		}
		w.deliver(read, found, err)
		if sub == nil && ctx.Err() == nil {
			sub = w.all.session.Subscribe(w.channel, w.again)
		}
		poll.Reset(w.all.session.Poll)
	}
}

// deliver passes the result of a read to the callers. Callers that joined after the read began wait for the next one.
func (w *watch) deliver(read int, found any, err error) {
	w.all.mu.Lock()
	defer w.all.mu.Unlock()
	for c := range w.callers {
		switch {
		case errors.Is(err, lock.ErrUnavailable):
			c.err = err
		case err != nil:
			c.done <- err
			w.leave(c)
		case c.joinedAt < read:
			c.err, c.began = nil, time.Time{}
			if done, err := c.condition.check(found); done {
				c.done <- err
				w.leave(c)
			}
		}
	}
}

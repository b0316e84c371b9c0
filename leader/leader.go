package leader

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/mask"
	"github.com/leasehold-go/leasehold/lock"
)

var (
	// ErrResigned is returned by a function to end its leadership. Run then becomes a candidate again.
	// ErrResigned is also the cause of the context of the function after Resign.
	ErrResigned = errors.New("resigned")

	// ErrNotLeading is returned when this process is not the leader.
	ErrNotLeading = errors.New("not leading")

	// ErrRunning is returned by Run while another Run of the same handle has not returned.
	ErrRunning = errors.New("already running")
)

// Run waits until it holds l, and then calls fn. The context of fn is canceled when ctx is
// canceled, and as soon as the lock can no longer be guaranteed. This process holds l and leads
// until fn has returned, however long that takes after the cancellation. A function that hangs
// therefore remains the leader, unless l has a lock.WithMaxHold or a lock.WithFixedLease.
// lock.HoldFromContext gives fn the hold. The hold reports a loss even after ctx is canceled.
//
// What happens next depends on how fn returns:
//
//   - If the lock was lost, and fn returned nil or an error of its context, Run waits for l and
//     calls fn again.
//   - If fn returned an error that matches [ErrResigned], Run releases l and becomes a candidate
//     again. With a fair lock, all candidates that wait at that moment come first.
//   - If fn returned nil, Run releases l and returns nil.
//   - If fn returned another error, Run releases l and returns it.
//
// While Redis is unavailable, or too few replicas confirm the lock, Run retries until ctx is
// canceled, even past the WithWait of the lock. Any other error of Lock ends Run. Examples are
// [lock.ErrClosed] and [lock.ErrWrongType]. [lock.ErrNotAcquired] ends Run if another process leads
// for longer than WithWait allows. An error that only an operator or the application can fix ends
// it too, such as a missing permission or an invalid option.
//
// An error of releasing l is part of the error of Run. It can match [lock.ErrLost], because fn had
// returned before the loss was detected.
//
// If ctx is canceled, Run waits for fn, unlocks l, and returns what fn returned. If ctx is canceled
// while Run waits for l, Run returns the error of Lock. If fn panics, l is unlocked.
func Run(ctx context.Context, l lock.Locker, fn func(ctx context.Context) error) error {
	return run(ctx, l, func(ctx context.Context) (cause, err error) {
		err = fn(ctx)
		return context.Cause(ctx), err
	})
}

// run is Run, for a function that also returns the cause of its context at the time at which its work was done.
func run(ctx context.Context, l lock.Locker, lead func(ctx context.Context) (cause, err error)) error {
	for {
		led, again, err := leadOnce(ctx, l, lead)
		switch {
		case led && (!again || ctx.Err() != nil):
			return err
		case led:
		case ctx.Err() != nil || !errors.Is(err, lock.ErrUnavailable) && !errors.Is(err, lock.ErrReplicas):
			return err
		case !sleep(ctx, retryTime):
			return canceledAfter(ctx, err)
		}
	}
}

// canceledAfter returns the error of a call whose context was canceled after its last attempt had failed with err, the error of
// Lock.
func canceledAfter(ctx context.Context, err error) error {
	if named, ok := err.(*lock.Error); ok {
		return &lock.Error{Op: named.Op, Name: named.Name, Err: canceledAfter(ctx, named.Err)}
	}
	return fmt.Errorf("%w: %w", canceled(ctx), err)
}

// canceled returns the error of a call whose context is canceled.
func canceled(ctx context.Context) error {
	return mask.Canceled(ctx, lock.ErrNotAcquired, lock.ErrUnavailable)
}

// sleep waits for d. It reports false if ctx is canceled first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// leadOnce waits for l, and calls lead while it holds l. led reports whether lead was called; otherwise err is the error of
// Lock. again reports whether the caller must become a candidate again, unless its context is canceled.
func leadOnce(ctx context.Context, l lock.Locker, lead func(ctx context.Context) (cause, err error)) (led, again bool, err error) {
	lost := false
	unlock := lock.Do(ctx, l, func(ctx context.Context) error {
		led = true
		var cause error // does not include a loss after ctx was canceled, or after the work was done, which unlock reports
		cause, err = lead(ctx)
		lost = errors.Is(cause, lock.ErrLost) || errors.Is(cause, lock.ErrClosed)
		again = lost && (err == nil || errors.Is(err, cause) || errors.Is(err, ctx.Err()))
		return nil
	})
	switch {
	case !led:
		return false, false, unlock
	case again:
	case errors.Is(err, ErrResigned):
		again, err = true, errors.Join(resignError(err), unlock)
	case !lost:
		err = errors.Join(err, unlock)
	}
	return true, again, err
}

// resignError returns the error of a leader that resigned. It returns nil for ErrResigned itself, which has no further
// information.
func resignError(err error) error {
	if err == ErrResigned {
		return nil
	}
	return err
}

// A Store stores the value of a leader. client.Client.NewLeaderStore creates one in Redis. Any
// other store can implement it.
type Store interface {
	// Publish publishes value for the holder of h, for at most d. It fails with [ErrNotLeading] if a
	// holder with a larger token has published a value. An error that matches lock.ErrUnavailable is
	// retried. Any other ends Publish.
	Publish(ctx context.Context, h lock.Hold, value string, d time.Duration) error

	// Clear removes the value of the holder of h.
	Clear(ctx context.Context, h lock.Hold) error

	// Read returns the value of the leader. leads is false if there is none.
	Read(ctx context.Context) (l Leader, leads bool, err error)

	// Watch calls look when the value may have changed, until stop is called. look does not block.
	// Watch may call it too often, and may miss a change.
	Watch(look func()) (stop func(), err error)
}

// Leader is what a leader has published.
type Leader struct {
	Value string        // as given to Run or Publish
	Since time.Time     // when its first value was published, by the clock of the store
	Token uint64        // fencing token of its hold; 0 if the lock has none
	Left  time.Duration // time until the value expires unless it is published again
}

// MaxValueSize is the maximum size of a value in bytes.
const MaxValueSize = 4096

// Election is a leader election. It consists of a lock, and a store for the value of the leader. It
// is safe for concurrent use. It holds no resources and need not be closed.
type Election struct {
	lock  lock.Locker // set once
	store Store       // set once

	// Guarded by mu.
	mu      sync.Mutex
	running bool
	value   string
	term    *term // of this process; nil while it does not lead
}

// term is a period in which this process leads.
type term struct {
	hold    lock.Hold
	ctx     context.Context // canceled when the leader must stop publishing: fn has returned, it has resigned, or the lock is lost
	resign  func()          // cancels ctx and the context of fn
	changed chan struct{}   // cap 1: makes publish publish the value
	waiting []chan<- error  // cap 1 each: receive the result of publishing the value; guarded by Election.mu
}

// New returns an election whose leader is the holder of l and publishes its value in b. With a
// client, use client.Client.NewElection.
func New(l lock.Locker, b Store) *Election { return &Election{lock: l, store: b} }

// Name returns the name of the lock.
func (e *Election) Name() string { return e.lock.Name() }

// Run calls the function [Run] with the lock of the election, and publishes value while this
// process leads. The value is text of at most [MaxValueSize] bytes. [Election.Resign] cancels the
// context of fn, too. The first value is published while fn is already running. If that fails, Run
// retries it, and does not return the error.
//
// Only one Run of a handle can be in progress. Another call fails with [ErrRunning].
func (e *Election) Run(ctx context.Context, value string, fn func(ctx context.Context) error) error {
	if err := check(value); err != nil {
		return e.wrap("run", err)
	}
	e.mu.Lock()
	if e.running {
		e.mu.Unlock()
		return e.wrap("run", ErrRunning)
	}
	e.running, e.value = true, value
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.running = false
	}()
	return run(ctx, e.lock, func(ctx context.Context) (cause, err error) { return e.lead(ctx, fn) })
}

// lead calls fn, and publishes the value until fn has returned or the lock is lost.
func (e *Election) lead(work context.Context, fn func(ctx context.Context) error) (cause, err error) {
	h := lock.HoldFromContext(work)
	ctx, cancel := context.WithCancelCause(work)
	leads, done := context.WithCancel(h.Context())
	publishing, resign := context.WithCancelCause(leads)
	t := &term{hold: h, ctx: publishing, resign: func() { cancel(ErrResigned); resign(ErrResigned) }, changed: make(chan struct{}, 1)}
	e.mu.Lock()
	e.term = t
	e.mu.Unlock()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		e.publish(leads, t)
	}()
	defer func() {
		resigned := errors.Is(context.Cause(ctx), ErrResigned)
		cancel(context.Canceled)
		done()
		<-stopped
		e.mu.Lock()
		e.term = nil
		e.mu.Unlock()
		clear, stop := context.WithTimeout(context.WithoutCancel(ctx), clearTime)
		defer stop()
		_ = e.store.Clear(clear, h) // if it fails, the value expires with the lease
		if resigned && (err == nil || errors.Is(err, context.Canceled)) {
			err = ErrResigned
		}
	}()
	err = fn(termContext{ctx, work})
	return context.Cause(work), err
}

// clearTime is how long a leader that stops leading waits for Clear.
const clearTime = time.Second

// termContext is the context of a leader. Its Err also checks the lease, so it detects an expiry before ctx is canceled.
type termContext struct {
	context.Context
	work context.Context
}

// Err returns why the term of the leader has ended, or nil.
func (c termContext) Err() error {
	if err := c.work.Err(); err != nil {
		return err
	}
	return c.Context.Err()
}

// publish publishes the value of the leader until ctx is canceled. It does so every third of the remaining lease time,
// and when the value changes.
func (e *Election) publish(ctx context.Context, t *term) {
	for ctx.Err() == nil {
		e.mu.Lock()
		value, waiting := e.value, t.waiting
		t.waiting = nil
		e.mu.Unlock()
		err := lock.ErrUnavailable // if the value is not sent
		left := time.Until(t.hold.Until())
		pause := left / 3
		if left >= time.Millisecond {
			err = e.store.Publish(ctx, t.hold, value, left)
		}
		if err != nil {
			pause = min(pause, retryTime)
		}
		if errors.Is(err, lock.ErrUnavailable) || err != nil && ctx.Err() != nil {
			e.mu.Lock()
			t.waiting = append(t.waiting, waiting...)
			e.mu.Unlock()
		} else {
			for _, w := range waiting {
				w <- err
			}
		}
		timer := time.NewTimer(max(pause, 10*time.Millisecond))
		select {
		case <-ctx.Done():
		case <-t.changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// retryTime is the pause after a failed Publish or Lock.
const retryTime = time.Second

// Publish changes the value that this process publishes while it leads, now and when it leads again
// in the same Run. It returns when others can read the value, or ctx is canceled. If this process
// does not lead, has resigned, or stops leading before that, it fails with [ErrNotLeading]. While
// Redis is unavailable, Publish retries. Any other error of the store, such as a missing
// permission, ends it.
//
// If this process was the leader when Publish was called, Run keeps the new value even if Publish
// fails, and retries once per second.
func (e *Election) Publish(ctx context.Context, value string) error {
	const op = "publish"
	if err := check(value); err != nil {
		return e.wrap(op, err)
	}
	t := e.leading()
	e.mu.Lock()
	if t == nil || t.ctx.Err() != nil {
		e.mu.Unlock()
		return e.wrap(op, ErrNotLeading)
	}
	e.value = value
	published := make(chan error, 1)
	t.waiting = append(t.waiting, published)
	e.mu.Unlock()
	select {
	case t.changed <- struct{}{}:
	default:
	}
	select {
	case err := <-published:
		if named, ok := err.(*lock.Error); ok {
			err = named.Err // replace the operation and name of the store
		}
		if err != nil {
			err = e.wrap(op, err)
		}
		return err
	case <-t.ctx.Done():
		return e.wrap(op, fmt.Errorf("%w: %w", ErrNotLeading, context.Cause(t.ctx)))
	case <-ctx.Done():
		return e.wrap(op, canceled(ctx))
	}
}

// check returns an error if value is too long.
func check(value string) error {
	if len(value) > MaxValueSize {
		return fmt.Errorf("value of %d bytes: must be at most %d", len(value), MaxValueSize)
	}
	return nil
}

// Resign ends the leadership of this process. The context of its function is canceled with the
// cause [ErrResigned]. When the function has returned, the next candidate becomes the leader, and
// Run becomes a candidate again. Until then this process leads, and its value stays published.
// Resign does not wait. It reports whether this process was the leader.
func (e *Election) Resign() bool {
	t := e.leading()
	if t == nil {
		return false
	}
	t.resign()
	return true
}

// Leading reports whether this process leads. It then holds the lock, and its function has not
// returned. Leading checks the lease locally and sends no command.
func (e *Election) Leading() bool { return e.leading() != nil }

// leading returns the term of this process, or nil if it does not lead. The caller must not hold the mutex: the hold
// can detect its loss now, and then calls the application's logger and observer, which may call e.
func (e *Election) leading() *term {
	e.mu.Lock()
	t := e.term
	e.mu.Unlock()
	if t == nil || t.hold.Err() != nil {
		return nil
	}
	return t
}

// Leader returns what the leader has published. The result leads is false if there is no leader, or
// if it has not published a value yet.
func (e *Election) Leader(ctx context.Context) (l Leader, leads bool, err error) {
	return e.store.Read(ctx)
}

// observeEvery is the poll interval of Observe.
const observeEvery = time.Second

// Observe yields the values that the leader has published, until ctx is canceled or the caller
// stops. It yields the current value first, and then each change. A [Leader] without Token, Value
// and Since means that there is no leader. Changes that follow each other quickly can be merged
// into one.
//
// If Redis is unavailable, Observe yields that error once and continues. After any other error, it
// ends.
func (e *Election) Observe(ctx context.Context) iter.Seq2[Leader, error] {
	return func(yield func(Leader, error) bool) {
		wake := make(chan struct{}, 1)
		stop, err := e.store.Watch(func() {
			select {
			case wake <- struct{}{}:
			default:
			}
		})
		if err != nil {
			yield(Leader{}, err)
			return
		}
		defer stop()
		tick := time.NewTicker(observeEvery)
		defer tick.Stop()
		var last Leader
		for known, unavailable := false, false; ; {
			l, _, err := e.store.Read(ctx)
			switch {
			case ctx.Err() != nil:
				return
			case errors.Is(err, lock.ErrUnavailable):
				if !unavailable && !yield(Leader{}, err) {
					return
				}
				unavailable = true
			case err != nil:
				yield(Leader{}, err)
				return
			default:
				unavailable = false
				if !known || l.Token != last.Token || l.Value != last.Value || !l.Since.Equal(last.Since) {
					known, last = true, l
					if !yield(l, nil) {
						return
					}
				}
			}
			select {
			case <-wake:
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}
}

// wrap adds the operation and the name to err.
func (e *Election) wrap(op string, err error) error {
	return &lock.Error{Op: op, Name: e.lock.Name(), Err: err}
}

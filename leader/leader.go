package leader

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

var (
	// ErrResigned: the leader gave its leadership up. A function that returns it has Run stand for election again. It is also
	// the cause of the function's context after Resign.
	ErrResigned = errors.New("resigned")

	// ErrNotLeading: this process does not lead at the moment.
	ErrNotLeading = errors.New("not leading")

	// ErrRunning: Run was called while another Run of the same handle had not returned.
	ErrRunning = errors.New("it is running already")
)

// Run waits until it holds l, and calls fn, which leads until it returns. The context of fn is canceled when ctx is canceled, and as soon as the
// lock can no longer be guaranteed. Until fn has returned, this process holds l and leads, however long after the cancellation that is: a function that
// hangs leads on, unless l has a lock.WithMaxHold or a lock.WithFixedLease. lock.HoldFromContext gives fn the hold, which reports a loss even after ctx is canceled.
//
// What happens next depends on how fn ends:
//
//   - The lock was lost, and fn returned nil or an error of its context: Run waits for l again, and calls fn again.
//   - fn returned an error that matches [ErrResigned]: Run gives l back, and stands for election again. With a fair lock, all that wait at that
//     moment come first.
//   - fn returned nil: Run gives l back and returns nil.
//   - fn returned another error: Run gives l back and returns it.
//
// While Redis is unavailable, or too few replicas confirm the lock, Run goes on until ctx is canceled: it calls Lock again if Lock fails with [lock.ErrUnavailable] or
// [lock.ErrReplicas], as it does at the end of its WithWait. Any other error of Lock ends Run: [lock.ErrNotAcquired], when another process leads for longer than WithWait allows;
// [lock.ErrClosed]; [lock.ErrWrongType]; and an error that only an operator or the application can fix, such as a permission that the user lacks or a bad option.
//
// An error of giving l back is in the error of Run, also one that matches [lock.ErrLost]: fn had returned before anybody knew of that loss.
//
// When ctx is canceled, Run waits for fn, unlocks l, and returns what fn returned. If ctx is canceled while Run waits for l, the error is that of Lock. When
// fn panics, l is unlocked.
func Run(ctx context.Context, l lock.Locker, fn func(ctx context.Context) error) error {
	for {
		led, again, err := once(ctx, l, fn)
		switch {
		case led && (!again || ctx.Err() != nil):
			return err
		case led:
		case ctx.Err() != nil || !errors.Is(err, lock.ErrUnavailable) && !errors.Is(err, lock.ErrReplicas):
			return err
		case !rest(ctx, retryTime):
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// rest waits for d, and reports false if ctx ended before.
func rest(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// once waits for l, and calls lead under it. led says that it did, and err is that of Lock otherwise. again says that the caller stands for election
// again, if it has the time.
func once(ctx context.Context, l lock.Locker, lead func(ctx context.Context) error) (led, again bool, err error) {
	lost := false
	unlock := lock.Do(ctx, l, func(ctx context.Context) error {
		led = true
		err = lead(ctx)
		cause := context.Cause(ctx) // a loss during a drain is in the error: it is not the cause
		lost = errors.Is(cause, lock.ErrLost) || errors.Is(cause, lock.ErrClosed)
		again = lost && (err == nil || errors.Is(err, cause) || errors.Is(err, ctx.Err()))
		return nil
	})
	switch {
	case !led:
		return false, false, unlock
	case again:
	case errors.Is(err, ErrResigned):
		again, err = true, errors.Join(unlocked(err), unlock)
	case !lost:
		err = errors.Join(err, unlock)
	}
	return true, again, err
}

// unlocked returns what is left of an error of a leader that resigned, and is told that its time is over: nil if it says no more than that.
func unlocked(err error) error {
	if err == ErrResigned {
		return nil
	}
	return err
}

// A Store keeps what a leader says of itself, where others can read it. client.Client.NewLeaderStore makes one; any other store may
// be one, too.
type Store interface {
	// Publish says value in the name of the holder of h, for d at most. It fails with [ErrNotLeading] if a holder with a
	// larger token has said something. An error that matches lock.ErrUnavailable can pass; any other ends a Publish.
	Publish(ctx context.Context, h lock.Hold, value string, d time.Duration) error

	// Clear takes back what was said in the name of the holder of h.
	Clear(ctx context.Context, h lock.Hold) error

	// Read returns what the leader says. leads is false if nobody says anything.
	Read(ctx context.Context) (l Leader, leads bool, err error)

	// Watch calls look, which does not block, when there may be something new, until stop is called. It may call look
	// too often, and may miss something.
	Watch(look func()) (stop func(), err error)
}

// Leader is what a leader says of itself.
type Leader struct {
	Value string        // as it was given to Run or Publish
	Since time.Time     // when its first value was published, by the clock of the store
	Token uint64        // the fencing token of its hold; 0 if the lock has none
	Left  time.Duration // until this is no longer said, unless it is said again
}

// MaxValueSize is the largest number of bytes of a value.
const MaxValueSize = 4096

// Election is one election: a lock, and a store beside it. It is safe for concurrent use. It has no resources and need not be
// closed.
type Election struct {
	lock  lock.Locker // set once
	store Store       // set once

	mu      sync.Mutex
	running bool
	value   string
	term    *term // of this process, nil while it does not lead
}

// term is the time for which this process leads.
type term struct {
	hold    lock.Hold
	ctx     context.Context // canceled when the leader may publish nothing any more: its function has returned, it has resigned, or the lock is lost
	resign  func()          // cancels the context of the function, and ctx
	changed chan struct{}   // a token in it, which has room for one, has the value published
	waiting []chan<- error  // each has room for what came of publishing the value; guarded by the mutex of the election
}

// New returns an election of the holder of l, which says what it says on b. A caller that has a client uses its NewElection.
func New(l lock.Locker, b Store) *Election { return &Election{lock: l, store: b} }

// Name returns the name of the lock.
func (e *Election) Name() string { return e.lock.Name() }

// Run is the function [Run] on the lock of the election, and publishes value while it leads. value is text of up to [MaxValueSize] bytes. [Election.Resign]
// ends the context of fn, too. The first value is published while fn runs already; an error about that is no error of Run, and it is tried again.
//
// A handle runs once at a time: another call fails with [ErrRunning].
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
	return Run(ctx, e.lock, func(ctx context.Context) error { return e.lead(ctx, fn) })
}

// lead calls fn, and publishes the value until fn has returned, or the lock is lost.
func (e *Election) lead(work context.Context, fn func(ctx context.Context) error) (err error) {
	h := lock.HoldFromContext(work)
	ctx, cancel := context.WithCancelCause(work)
	leads, done := context.WithCancel(h.Context())
	says, resign := context.WithCancelCause(leads)
	t := &term{hold: h, ctx: says, resign: func() { cancel(ErrResigned); resign(ErrResigned) }, changed: make(chan struct{}, 1)}
	e.mu.Lock()
	e.term = t
	e.mu.Unlock()
	over := make(chan struct{})
	go func() {
		defer close(over)
		e.publish(leads, t)
	}()
	defer func() {
		resigned := errors.Is(context.Cause(ctx), ErrResigned)
		cancel(context.Canceled)
		done()
		<-over
		e.mu.Lock()
		e.term = nil
		e.mu.Unlock()
		clear, stop := context.WithTimeout(context.WithoutCancel(ctx), clearTime)
		defer stop()
		_ = e.store.Clear(clear, h) // it ends with the lease
		if resigned && (err == nil || errors.Is(err, context.Canceled)) {
			err = ErrResigned
		}
	}()
	return fn(termContext{ctx, work})
}

// clearTime is for how long a leader that is done waits until its value is taken back.
const clearTime = time.Second

// termContext is the context of a leader. Its Err looks at the clocks, as that of the work under a lock does, and does not wait for a
// signal.
type termContext struct {
	context.Context
	work context.Context
}

// Err returns why the time of the leader is over, nil if it is not.
func (c termContext) Err() error {
	if err := c.work.Err(); err != nil {
		return err
	}
	return c.Context.Err()
}

// publish says the value of the leader until ctx is canceled: each third of the rest of its lease, and when the value changes.
func (e *Election) publish(ctx context.Context, t *term) {
	for ctx.Err() == nil {
		e.mu.Lock()
		value, waiting := e.value, t.waiting
		t.waiting = nil
		e.mu.Unlock()
		err := lock.ErrUnavailable // of a value that was not sent
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

// retryTime is the pause after a value that could not be published, and after a Lock that failed.
const retryTime = time.Second

// Publish changes what this process says while it leads, now and when it leads again in the same Run. It returns when others can read it, or ctx ends. If
// this process does not lead, has resigned, or stops to lead before that, it fails with [ErrNotLeading]. While Redis gives no answer, Publish tries
// again. Another error of the store, such as a right that the user lacks, ends it.
//
// If this process led when Publish was called, Run has the new value also when Publish fails, and tries once a second to say it.
func (e *Election) Publish(ctx context.Context, value string) error {
	const op = "publish"
	if err := check(value); err != nil {
		return e.wrap(op, err)
	}
	e.mu.Lock()
	t := e.term
	if t == nil || t.hold.Err() != nil || t.ctx.Err() != nil {
		e.mu.Unlock()
		return e.wrap(op, ErrNotLeading)
	}
	e.value = value
	posted := make(chan error, 1)
	t.waiting = append(t.waiting, posted)
	e.mu.Unlock()
	select {
	case t.changed <- struct{}{}:
	default:
	}
	select {
	case err := <-posted:
		if named, ok := err.(*lock.Error); ok {
			err = named.Err // it names the store
		}
		if err != nil {
			err = e.wrap(op, err)
		}
		return err
	case <-t.ctx.Done():
		return e.wrap(op, fmt.Errorf("%w: %w", ErrNotLeading, context.Cause(t.ctx)))
	case <-ctx.Done():
		return e.wrap(op, ctx.Err())
	}
}

// check returns what is wrong with a value.
func check(value string) error {
	if len(value) > MaxValueSize {
		return fmt.Errorf("a value of %d bytes: the most is %d", len(value), MaxValueSize)
	}
	return nil
}

// Resign ends the leadership of this process, if it leads: the context of its function is canceled with the cause [ErrResigned], and when the function has returned, the
// next one leads, and Run stands for election again. Until then this process leads, and its value stays published. It reports whether this process led. It does not wait.
func (e *Election) Resign() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.term == nil || e.term.hold.Err() != nil {
		return false
	}
	e.term.resign()
	return true
}

// Leading reports whether this process leads: it holds the lock, and its function has not returned. It compares clocks and sends nothing.
func (e *Election) Leading() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.term != nil && e.term.hold.Err() == nil
}

// Leader returns what the leader says of itself. leads is false if nobody leads, or if the leader has not said anything yet.
func (e *Election) Leader(ctx context.Context) (l Leader, leads bool, err error) {
	return e.store.Read(ctx)
}

// observeEvery is the time between two looks at the store when nothing gives a reason for one.
const observeEvery = time.Second

// Observe yields what the leader says of itself: first what stands there, and then each change, until ctx ends or the caller stops. A
// [Leader] with no Token, Value and Since stands for nobody. Changes that follow each other quickly can be seen as one.
//
// If Redis gives no answer, Observe yields that error once, and goes on. After another error, it ends.
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
		for known, silent := false, false; ; {
			l, _, err := e.store.Read(ctx)
			switch {
			case ctx.Err() != nil:
				return
			case errors.Is(err, lock.ErrUnavailable):
				if !silent && !yield(Leader{}, err) {
					return
				}
				silent = true
			case err != nil:
				yield(Leader{}, err)
				return
			default:
				silent = false
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

package session

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/lockstate"
	"github.com/leasehold-go/leasehold/lock"
)

// closer tracks the progress of Close.
type closer struct {
	givenBack chan struct{} // closed when Close has ended all holds and tried to release their locks
	givenUp   chan struct{} // closed when Close stopped waiting
	once      sync.Once     // closes givenUp

	mu   sync.Mutex
	last map[*func(context.Context)]struct{} // functions that the first Close calls after all holds have ended; nil from then on; guarded by mu
}

// AtClose registers f, which the first Close calls and waits for after it has ended all holds. f may send commands with
// AskLast. stop unregisters f. After Close, AtClose fails with lock.ErrClosed.
func (s *Session) AtClose(f func(context.Context)) (stop func(), err error) {
	if err := s.sender.Enter(); err != nil {
		return nil, err
	}
	defer s.sender.Done()
	c := &s.closer
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == nil { // Close was faster
		return nil, lock.ErrClosed
	}
	c.last[&f] = struct{}{}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.last, &f)
	}, nil
}

// callLast calls the functions registered with AtClose.
func (c *closer) callLast(ctx context.Context) {
	c.mu.Lock()
	var wg sync.WaitGroup
	for f := range c.last {
		wg.Go(func() { (*f)(ctx) })
	}
	c.last = nil
	c.mu.Unlock()
	wg.Wait()
}

// closeTimeouts limits the time of Close, in operation timeouts: one for the releases, and two for other commands in
// flight.
const closeTimeouts = 3

// CloseContext returns the context of a Close that was called with ctx. It is canceled with ctx, or after three
// operation timeouts. If ctx is already canceled, it is canceled after two operation timeouts.
func (s *Session) CloseContext(ctx context.Context) (_ context.Context, cancel context.CancelFunc) {
	if _, bounded := ctx.(closing); bounded {
		return ctx, func() {}
	}
	c := closing{caller: ctx, limit: closeTimeouts * s.OpTimeout}
	if ctx.Err() != nil {
		c.caller, c.limit = context.WithoutCancel(ctx), 2*s.OpTimeout
	}
	c.Context, cancel = context.WithTimeoutCause(c.caller, c.limit, closeTimeout{c.limit})
	return c, cancel
}

// closing is the context of a Close.
type closing struct {
	context.Context
	caller context.Context
	limit  time.Duration
}

// Err returns the caller's error, or that Redis did not respond in time.
func (c closing) Err() error {
	if err := c.Context.Err(); err == nil || c.caller.Err() != nil {
		return err
	}
	return closeTimeout{c.limit}
}

// closeTimeout is the error of a Close that timed out before its caller's context was canceled.
type closeTimeout struct{ limit time.Duration }

// Error reports how long Close waited.
func (e closeTimeout) Error() string {
	return fmt.Sprintf("%v within %v", lock.ErrUnavailable, e.limit)
}

// Is makes the error match lock.ErrUnavailable and os.ErrDeadlineExceeded, but not context.DeadlineExceeded: the
// deadline is not the caller's.
func (e closeTimeout) Is(target error) bool {
	return target == lock.ErrUnavailable || target == os.ErrDeadlineExceeded
}

// Timeout reports true.
func (e closeTimeout) Timeout() bool { return true }

// Close releases every lock still held, ends the waiters with ErrClosed, and waits for all goroutines. It waits until
// ctx is canceled, for at most three operation timeouts. If ctx is already canceled, as is common at program exit, it
// waits for at most two.
//
// The error reports how many locks Redis did not confirm as released; they expire with their leases. It matches ctx's
// error if ctx was canceled, and ErrUnavailable if Close timed out. A second Close also waits, and returns nil if
// nothing is left.
func (s *Session) Close(ctx context.Context) error {
	ctx, cancel := s.CloseContext(ctx)
	defer cancel() // mutant: removed: memory
	held, first := s.table.close()

	// Only the first Close releases the locks. Until then, the watchdog and the hub must keep running, and no other
	// Close may return.
	var unconfirmed error
	if first {
		s.sender.Shut()
		unconfirmed = s.releaseAll(ctx, held)
		s.closer.callLast(ctx)
		close(s.closer.givenBack)
	} else {
		select {
		case <-s.closer.givenBack:
		case <-ctx.Done():
			return command.Ended(ctx, 0)
		}
	}
	idle := make(chan struct{})
	go func() {
		s.hub.Close()
		s.dog.Close()
		s.sender.Wait()
		close(idle)
	}()
	var late error
	select {
	case <-idle:
	case <-ctx.Done():
		late = command.Ended(ctx, 0)
		if name, err := s.reconcilers.failing(); unconfirmed == nil && err != nil { // mutant: operand 1: text
			late = fmt.Errorf("%w: release of %q not confirmed: %w", late, name, s.sender.Explain(err))
		} else if unconfirmed == nil {
			late = fmt.Errorf("%w: commands are still waiting for a reply", late)
		}
		s.closer.once.Do(func() { close(s.closer.givenUp) })
	}
	return errors.Join(late, unconfirmed)
}

// close closes all states. The first call returns the acquisitions that are Held or Kept.
func (all *lockTable) close() (held []*acquisition, first bool) {
	all.mu.Lock()
	first, all.closed = !all.closed, true
	open := slices.Collect(maps.Values(all.known))
	all.mu.Unlock()
	if !first {
		return nil, false
	}
	for _, at := range open {
		at.lock()
		for _, t := range at.state.Close() {
			held = append(held, acquisitionOf(t))
		}
		at.unlock()
		at.tidy()
	}
	return held, true
}

// GaveBack reports whether a Close has ended all holds. After that, only reconcilers send commands.
func (s *Session) GaveBack() bool {
	select {
	case <-s.closer.givenBack:
		return true
	default:
		return false
	}
}

// releaseAll ends the holds of all acquisitions and releases them concurrently. Its error reports how many releases
// Redis did not confirm, and why.
func (s *Session) releaseAll(ctx context.Context, held []*acquisition) error {
	const atOnce = 512 // so that Close can release many locks on a distant server in time
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed int   // guarded by mu
	var name string  // of one of them; guarded by mu
	var reason error // guarded by mu
	slots := make(chan struct{}, atOnce)
	for _, t := range held {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			ended, before, _ := t.end(lockstate.Closed, t.wrap(lock.ErrClosed))
			if before == lockstate.Released {
				return // an Unlock was faster, and releases it
			}
			// An acquisition that was lost just now may still be held in Redis.
			began := time.Now()
			err := s.holdFailed(ctx, began, s.release(ctx, t, began, nil))
			if lost := s.tellEnded(ended, err); lost != nil {
				s.report.lost(t.spec, lost) // no call returns it
			}
			if err != nil && !errors.Is(err, lock.ErrLost) {
				mu.Lock()
				failed, name, reason = failed+1, t.spec.Name, err
				mu.Unlock()
			}
			t.at.tidy()
		})
	}
	wg.Wait()
	if failed == 0 {
		return nil
	}
	return fmt.Errorf("release not confirmed for %d of %d locks, which expire with their leases, such as %q: %w", failed, len(held), name, reason)
}

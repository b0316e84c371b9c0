// Package send sends the commands of rate limiters and Bloom filters, whose callers hold no lease. A
// caller can return before the reply arrives: the command then continues in the background, and Close
// waits for it.
package send

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// A Sender sends commands to Redis. It is safe for concurrent use.
type Sender struct {
	Redis   rueidis.Client // set once; nil if there is none
	Prefix  string         // set once: the prefix of every key
	Timeout time.Duration  // set once: how long a call waits for a reply by default

	closing chan struct{} // closed by Close

	mu     sync.Mutex // guards closed
	closed bool
	work   sync.WaitGroup // calls and goroutines in progress; grows only under mu while the sender is not closed
}

// DefaultTimeout is the Timeout of a sender that no client of this module configures.
const DefaultTimeout = 3 * time.Second

// New returns a sender on rdb. It never closes rdb.
func New(rdb rueidis.Client, prefix string, timeout time.Duration) *Sender {
	return &Sender{Redis: rdb, Prefix: prefix, Timeout: timeout, closing: make(chan struct{})}
}

// Closing returns a channel that is closed when Close begins.
func (s *Sender) Closing() <-chan struct{} { return s.closing }

// Go runs f in a goroutine that Close waits for. After Close it fails with [lock.ErrClosed].
func (s *Sender) Go(f func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return lock.ErrClosed
	}
	s.work.Go(f)
	return nil
}

// Enter begins a call that waits, and still has work to do when Close ends the wait. It fails with
// [lock.ErrClosed] after Close. Each successful Enter needs a Leave.
func (s *Sender) Enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return lock.ErrClosed
	}
	s.work.Add(1)
	return nil
}

// Leave ends an Enter.
func (s *Sender) Leave() { s.work.Done() }

// Sleep sleeps for d. It returns an error if ctx is canceled or the sender is closed first.
func (s *Sender) Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.closing:
		return lock.ErrClosed
	}
}

// Behind runs f in a goroutine that Close waits for. It must be called between Enter and Leave.
func (s *Sender) Behind(f func()) { s.work.Go(f) }

// Close ends the wait of all callers. It then waits for calls and goroutines in progress, until ctx
// is canceled.
func (s *Sender) Close(ctx context.Context) error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.closing)
	}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		s.work.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		select {
		case <-done:
			return nil
		default:
			return fmt.Errorf("%w: commands still wait for a server that does not respond; they end with the connection", ctx.Err())
		}
	}
}

// Ask runs f, which sends a command, and returns its results. It returns before f if ctx is canceled,
// timeout has passed, or the sender is closed.
//
// The context of f is not canceled with ctx. A command in the queue of a connection is executed
// anyway, and canceling its context can close the connection, which would fail other commands.
func Ask[T any](ctx context.Context, s *Sender, timeout time.Duration, f func(context.Context) (T, error)) (none T, err error) {
	if err := ctx.Err(); err != nil {
		return none, err
	}
	type answer struct {
		v   T
		err error
	}
	answered := make(chan answer, 1)
	if err := s.Go(func() {
		v, err := f(context.WithoutCancel(ctx))
		answered <- answer{v, s.Told(err)}
	}); err != nil {
		return none, err
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case a := <-answered:
		return a.v, a.err
	case <-ctx.Done():
		return none, ctx.Err()
	case <-timer.C:
		return none, Silent(timeout)
	case <-s.closing:
		return none, lock.ErrClosed
	}
}

// Dated returns a [command.Dated] for a call that begins now. Use it if a late copy of an earlier
// call must not undo a newer one.
func (s *Sender) Dated() *command.Dated { return command.NewDated(s.Timeout, s.closing) }

// Silent returns the error of a command that had no reply within d.
func Silent(d time.Duration) error { return fmt.Errorf("%w within %v", lock.ErrUnavailable, d) }

// Down reports whether a call fails now although it has time left, like [command.Sender.Down]. last
// and err are the errors of two copies of its command.
func (s *Sender) Down(ctx context.Context, last, err error) bool {
	switch {
	case !command.RefusedTwice(last, err):
		return false
	case s.Redis.Mode() != rueidis.ClientModeCluster:
		return true
	}
	down, failed := Ask(ctx, s, s.Timeout/4, func(ctx context.Context) (bool, error) { return command.AllRefuse(ctx, s.Redis), nil })
	return failed == nil && down
}

// Full reports whether err says that the server cannot write at present. The command was not
// executed.
func Full(err error) bool { return retry.FaultOf(err).AtOnce }

// Own wraps an error that this module found in a reply. Told leaves such an error unchanged.
func Own(err error) error { return command.Final{Err: err} }

// Told returns the error that callers get for err, with which a command failed. It matches
// [lock.ErrUnavailable] if the same command may succeed later. It can send a PING, so it must run in
// a goroutine that sends commands.
func (s *Sender) Told(err error) error {
	if errors.As(err, new(command.Final)) {
		return err
	}
	err = luascripts.Discreet(command.DetectClosed(context.Background(), s.Redis, err))
	if err == nil {
		return nil
	}
	switch f := retry.FaultOf(err); {
	case f.Denied:
		return command.Refusal("", "", err)
	case errors.Is(err, lock.ErrUnavailable):
		return err
	case f.Is == lock.ErrUnavailable:
		return Unavailable{err}
	case f.Is != nil && !errors.Is(err, f.Is):
		return fmt.Errorf("%w: %w", f.Is, err)
	}
	return err
}

// Unavailable is the error of a command that Redis could not serve because of Err. For a missing
// reply, use [Silent].
type Unavailable struct{ Err error }

func (e Unavailable) Error() string { return fmt.Sprintf("%v: %v", lock.ErrUnavailable, e.Err) }

// Unwrap returns lock.ErrUnavailable and Err.
func (e Unavailable) Unwrap() []error { return []error{lock.ErrUnavailable, e.Err} }

// Package send carries what callers ask of Redis who hold no lease: those of rate
// limiters and Bloom filters. A caller can leave before the answer; the command goes on
// behind it, and Close knows of everything that goes on.
package send

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// Sender is a way to Redis. It is safe for concurrent use.
type Sender struct {
	Redis   rueidis.Client // set once; nil if there is none
	Prefix  string         // set once: what every key begins with
	Timeout time.Duration  // set once: how long a call without a patience of its own waits for an answer

	closing chan struct{} // closed by Close

	mu     sync.Mutex
	closed bool
	work   sync.WaitGroup // what goes on; grows only under mu while the sender is not closed
}

// DefaultTimeout is the Timeout of a sender that no client makes.
const DefaultTimeout = 3 * time.Second

// New returns a sender on rdb, which it borrows.
func New(rdb rueidis.Client, prefix string, timeout time.Duration) *Sender {
	return &Sender{Redis: rdb, Prefix: prefix, Timeout: timeout, closing: make(chan struct{})}
}

// Closing returns a channel that is closed when Close begins.
func (s *Sender) Closing() <-chan struct{} { return s.closing }

// Go runs f in a goroutine of its own, which Close waits for. It fails with
// [lock.ErrClosed].
func (s *Sender) Go(f func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return lock.ErrClosed
	}
	s.work.Go(f)
	return nil
}

// Enter begins a call that waits here and has something to do at its end, also if Close
// ended it. It fails with [lock.ErrClosed]; otherwise the caller calls Leave.
func (s *Sender) Enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return lock.ErrClosed
	}
	s.work.Add(1)
	return nil
}

// Leave ends what Enter began.
func (s *Sender) Leave() { s.work.Done() }

// Behind runs f in a goroutine of its own, which Close waits for, for a caller between
// Enter and Leave.
func (s *Sender) Behind(f func()) { s.work.Go(f) }

// Close ends the waiting of all callers, and waits for what goes on, for as long as ctx
// lasts.
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
			return errors.New("commands wait for a server that does not answer; they end with the connection")
		}
	}
}

// Ask runs f, which sends a command, and returns what f does. If ctx ends, the patience
// is over or the sender is closed, Ask returns before f does.
//
// f runs under a context that does not end: a command that stands in the queue of a
// connection is carried out all the same, and a context that ends can close the connection
// under other commands.
func Ask[T any](ctx context.Context, s *Sender, patience time.Duration, f func(context.Context) (T, error)) (none T, err error) {
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
		answered <- answer{v, err}
	}); err != nil {
		return none, err
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case a := <-answered:
		return a.v, Told(a.err)
	case <-ctx.Done():
		return none, ctx.Err()
	case <-timer.C:
		return none, Silent(patience)
	case <-s.closing:
		return none, lock.ErrClosed
	}
}

// Silent is what a question fails with that has no answer for d.
func Silent(d time.Duration) error { return fmt.Errorf("%w within %v", lock.ErrUnavailable, d) }

// unwritable are the codes of the error replies of a server that answers, and that
// cannot keep what it is told.
var unwritable = map[string]bool{"OOM": true, "MISCONF": true, "NOREPLICAS": true}

// Told is what a caller gets of err, which a command failed with. It matches
// [lock.ErrUnavailable] if Redis did not decide, and the same may go better later.
func Told(err error) error {
	var reply *rueidis.RedisError
	err = luascripts.Discreet(err)
	switch {
	case err == nil, errors.Is(err, lock.ErrUnavailable), errors.As(err, new(*luascripts.ReplyError)), errors.As(err, new(*luascripts.UnknownError)):
		return err
	case errors.Is(err, rueidis.ErrClosing):
		return fmt.Errorf("%w: %w", lock.ErrClosed, err)
	case !errors.As(err, &reply), retry.Passes(reply.Error()):
		return fmt.Errorf("%w: %w", lock.ErrUnavailable, err)
	}
	if strings.Contains(reply.Error(), "The user executing the script can't") { // it has no code
		return denied(err)
	}
	for word := range strings.FieldsSeq(reply.Error()) {
		switch code := strings.TrimPrefix(word, "-"); {
		case code == "WRONGTYPE":
			return fmt.Errorf("%w: %w", lock.ErrForeignKey, err)
		case code == "NOPERM":
			return denied(err)
		case unwritable[code]:
			return fmt.Errorf("%w: %w", lock.ErrUnavailable, err)
		}
	}
	return err
}

// denied is err, which says that the user may not do something, with what to do about it.
func denied(err error) error {
	return fmt.Errorf(`%w (grant the rights that docs/SECURITY.md lists under "Rights")`, err)
}

package ratelimit

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
)

// MaxWait is the maximum delay that Wait and Reserve accept.
const MaxWait = time.Hour

// Wait waits until the caller may use n permits of key. Redis serves the callers of all processes
// first-come, first-served. Each caller sends one command, however long it waits.
//
// If the turn of the caller comes after the deadline of ctx, or after [MaxWait], Wait fails
// immediately with [ErrLimited] and takes nothing. If ctx is canceled while the caller waits, Wait
// returns the error of ctx, and the permits are refunded. That happens immediately if no later
// caller waits, and otherwise when the later callers have left, too. This covers the last hundred
// callers that left. A later caller keeps its turn, because it sends no second command. With several
// limits, the quota of a limit that would have admitted the caller sooner stays used until the
// caller's turn.
//
// While Redis is unavailable, the Policy decides. With FailOpen, Wait returns immediately. With
// FailLocal, the caller waits for its turn in this process. With FailClosed, Wait retries at least
// once per second until ctx is canceled, and the error also matches [lock.ErrUnavailable]. If the
// outcome of its command is unknown, as after a connection broke, Wait fails. The permits may be
// taken, and are refilled over time.
func (l *Limiter) Wait(ctx context.Context, key string, n int64) error {
	const op = "wait"
	if l.bad == nil {
		if err := l.desk.send.Enter(); err != nil {
			return l.wrap(op, key, err)
		}
		defer l.desk.send.Done()
	}
	r, err := l.patiently(ctx, op, key, n)
	if err != nil {
		return err
	}
	if r.ready.IsZero() {
		return nil
	}
	if err := l.desk.send.Sleep(ctx, time.Until(r.ready)); err != nil {
		r.leave()
		if r.n > 0 && r.at > 0 {
			l.desk.undo(r.id, l.rules, r.n, r.at)
		}
		return l.wrap(op, key, err)
	}
	return nil
}

// patiently is reserve for a call that waits. While Redis is unavailable and the policy is FailClosed, it retries until ctx
// is canceled. If the permits may have been taken, it does not take them again.
func (l *Limiter) patiently(ctx context.Context, op, key string, n int64) (*Reservation, error) {
	pause := retry.Backoff{Most: longestPause}
	var last error
	for {
		began := time.Now()
		r, err := l.reserve(ctx, op, key, n)
		if late, ok := errors.Unwrap(err).(overdue); ok { // of this call: the cause of ctx can be the error of another one
			// Nothing else is sent for the key until this request ends. A reply would come too late, so its permits are
			// refunded.
			select {
			case <-late.ask.done:
				if late.ask.err != nil {
					err = l.wrap(op, key, late.ask.err)
				}
			case <-ctx.Done():
				last = err.(*lock.Error).Err
			case <-l.desk.send.Closing():
			}
		}
		// A slow reply can belong to a command that was sent twice. A slow dial sends nothing.
		resent := command.Resent(time.Since(began)) && !errors.As(err, new(retry.Undialled))
		taken := errors.Is(err, lock.ErrUnavailable) && !errors.As(err, new(command.NoReply)) && (resent || retry.FaultOf(err).MayHaveRun())
		if err == nil || taken || last == nil && ctx.Err() != nil || !errors.Is(err, lock.ErrUnavailable) && ctx.Err() == nil {
			return r, err
		}
		if ctx.Err() != nil {
			err = command.Ended(ctx, 0)
		} else {
			last = err.(*lock.Error).Err
			err = l.desk.send.Sleep(ctx, pause.Next())
		}
		if err != nil {
			return nil, l.wrap(op, key, fmt.Errorf("%w: %w", err, last))
		}
	}
}

// longestPause is the longest pause between two attempts of a waiting call while Redis is unavailable.
const longestPause = time.Second

// Reserve takes n permits of key that the caller may use after [Reservation.Delay]. It fails with
// [ErrLimited], and takes nothing, if that is after the deadline of ctx, or after [MaxWait].
// Otherwise it is like [Limiter.Wait].
func (l *Limiter) Reserve(ctx context.Context, key string, n int64) (*Reservation, error) {
	return l.reserve(ctx, "reserve", key, n)
}

// A Reservation holds permits that the caller has taken and may use later. It is safe for
// concurrent use.
type Reservation struct {
	limiter *Limiter
	key     string
	id      bucketID
	n       int64
	ready   time.Time // zero if the permits can be used immediately
	at      int64     // when the permits can be used, in µs by the server's clock; 0 if no command was sent
	turn    *turn     // for FailLocal, if the permits cannot be used immediately; otherwise nil
	err     error     // see Decision.Err

	cancelled sync.Once
	failed    error // the error of Cancel
}

// Delay returns the remaining time before the caller may use the permits.
func (r *Reservation) Delay() time.Duration {
	if r.ready.IsZero() {
		return 0
	}
	return max(0, time.Until(r.ready))
}

// Err returns the error of Redis if the Policy decided instead, and nil otherwise.
func (r *Reservation) Err() error { return r.err }

// Cancel returns the permits, except those that were refilled already. While later callers are
// queued, the permits are available again when all of them have left. Do not use the permits
// afterward. Only the first call has an effect. Cancel works even after ctx is canceled, like
// [Limiter.Refund].
func (r *Reservation) Cancel(ctx context.Context) error {
	r.cancelled.Do(func() {
		r.leave()
		if r.n > 0 && r.at > 0 {
			r.failed = r.limiter.wrap("cancel", r.key, r.limiter.refund(ctx, r.id, r.n, r.at))
		}
	})
	return r.failed
}

// leave removes the caller from the queue of FailLocal, if it is queued there.
func (r *Reservation) leave() {
	if r.turn != nil {
		r.limiter.local.leave(r.turn)
	}
}

func (l *Limiter) reserve(ctx context.Context, op, key string, n int64) (*Reservation, error) {
	id, err := l.enter(key, n)
	if err != nil {
		return nil, l.wrap(op, key, err)
	}
	wait := MaxWait
	if deadline, ok := ctx.Deadline(); ok {
		wait = max(0, min(wait, time.Until(deadline)))
	}
	q := luascripts.LimitRequest{Units: n, Times: 1, Least: n, Wait: wait.Truncate(time.Microsecond)}
	r, err := l.desk.ask(ctx, l, id, q)
	switch {
	case errors.Is(err, lock.ErrUnavailable):
		return l.reserveWithout(op, key, id, n, wait, err)
	case err != nil:
		return nil, l.wrap(op, key, err)
	case r.Taken == 0 && n > 0:
		return nil, l.wrap(op, key, &LimitedError{RetryAfter: r.Retry})
	}
	reserved := &Reservation{limiter: l, key: key, id: id, n: n, at: r.at + r.Delay.Microseconds()}
	if r.Delay > 0 {
		reserved.ready = time.Now().Add(r.Delay)
	}
	return reserved, nil
}

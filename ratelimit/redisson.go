package ratelimit

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/internal/send"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

var (
	// ErrNotInitialized: there is no rate in Redis. Call Init.
	ErrNotInitialized = errors.New("not initialised")

	// ErrRateMismatch: there is another rate in Redis. The error is also a [*RateError].
	ErrRateMismatch = errors.New("it has another rate")

	// ErrPerClient: the limiter was made by Redisson with RateType.PER_CLIENT, which is not supported.
	ErrPerClient = errors.New("it has a rate for each client (RateType.PER_CLIENT)")
)

// A RateError has the rate that is in Redis. It matches [ErrRateMismatch].
type RateError struct {
	Rate int64
	Per  time.Duration
}

// Error names the rate.
func (e *RateError) Error() string {
	return fmt.Sprintf("%v: %d per %v", ErrRateMismatch, e.Rate, e.Per)
}

// Is reports whether target is [ErrRateMismatch].
func (e *RateError) Is(target error) bool { return target == ErrRateMismatch }

// A RedissonLimiter is a rate limiter that Go shares with Java services: RedissonClient.getRateLimiter(name), with
// RateType.OVERALL. In any interval callers take at most the rate. Redis remembers each
// call for an interval, in some 130 bytes. Where a rate is replaced, or {<name>}:value is lost, the server reads all of these calls at once: 300,000 of them
// keep it from other work for half a second or more. Where Java has no part, a [Limiter] costs less and
// does more. A RedissonLimiter is safe for concurrent use.
//
// The rate is stored in Redis, so there are three keys: <name>, {<name>}:value and {<name>}:permits. Like those of
// Redisson they stay until [RedissonLimiter.Delete], or for the keepAliveTime that Java gave them.
//
// A RedissonLimiter uses the clock of the server. Redisson uses the clocks of its clients: an entry
// of a client whose clock is ahead by d lasts d longer here, and for that client the entries of others end d
// sooner. Units that Redisson gives back by release can be taken again at once, and do not come back
// once more when their interval is over; with a thousand calls and more in an interval they can.
//
// A RedissonLimiter has no policy: while Redis is unavailable, its calls fail with [lock.ErrUnavailable]. They retry for
// the operation timeout of the client, or for three seconds without a client, or until their context is canceled. While the server's memory is
// full, they fail at once, and take nothing. They also fail at once if nothing listens at the address of the server. [RedissonLimiter.Wait] retries until its context is canceled. A call
// takes its units once, however often it was sent. If the caller has left, the units come back before the next call of this handle
// takes any.
type RedissonLimiter struct {
	send *send.Sender
	name string
	keys luascripts.WindowKeys
	turn chan struct{} // holds an element while a caller of this handle waits for Redis
	bad  error

	mu   sync.Mutex
	left []<-chan struct{} // guarded by mu: each is closed when the units of a caller that has left are back
}

// NewRedissonLimiter returns a handle of the limiter called name, on rdb, which the handle never closes. NewRedissonLimiter does
// no I/O: with a bad name, every call returns the error.
//
// A caller that has a client of this module uses its NewRedissonLimiter instead.
func NewRedissonLimiter(rdb rueidis.Client, name string) *RedissonLimiter {
	return RedissonLimiterOn(send.New(rdb, "", send.DefaultTimeout), name)
}

// RedissonLimiterOn is [NewRedissonLimiter] on the sender of a client of this module.
func RedissonLimiterOn(s *send.Sender, name string) *RedissonLimiter {
	w := &RedissonLimiter{send: s, name: name, keys: keys.Window(s.Prefix + name), turn: make(chan struct{}, 1)}
	w.bad = keys.Check(s.Prefix, name)
	if s.Redis == nil {
		w.bad = errors.New("the rueidis client is nil")
	}
	return w
}

// maxWindow is the most units of a RedissonLimiter: an entry has four bytes for the number.
const maxWindow = math.MaxUint32

// Init sets the rate of the limiter if it has none, as trySetRate does. If the limiter has another rate, Init
// fails with [ErrRateMismatch]; SetRate replaces it.
func (w *RedissonLimiter) Init(ctx context.Context, rate int64, per time.Duration) (created bool, err error) {
	return w.init(ctx, "init", rate, per, false)
}

// SetRate sets the rate of the limiter, whatever it was. Units that were taken before still count. To replace another rate
// costs two round trips: the first one asks for the server's time.
//
// A copy of the command that arrives late undoes no newer call: each copy says until when it may replace a rate, a second after it was sent at
// most. If a connection broke on the way, SetRate returns when that time has passed, so that no copy replaces a rate afterwards. If ctx ends before, one can,
// within that second.
func (w *RedissonLimiter) SetRate(ctx context.Context, rate int64, per time.Duration) error {
	_, err := w.init(ctx, "set rate", rate, per, true)
	return err
}

func (w *RedissonLimiter) init(ctx context.Context, op string, rate int64, per time.Duration, change bool) (created bool, err error) {
	switch {
	case w.bad != nil:
		return false, w.wrap(op, w.bad)
	case rate < 1 || rate > maxWindow:
		return false, w.wrap(op, fmt.Errorf("a rate of %d: it must be from 1 to %d", rate, int64(maxWindow)))
	case per < time.Millisecond || per > maxPer || per%time.Millisecond != 0:
		return false, w.wrap(op, fmt.Errorf("a rate per %v: it must be in whole ms, from 1ms to %v", per, maxPer))
	}
	copies := w.send.Dated()
	r, err := persist(ctx, w, false, func(sent context.Context) (r luascripts.Rated, err error) {
		set := func(before int64) (int64, error) {
			r, err = luascripts.InitWindow(sent, w.send.Redis, w.keys, rate, per, before)
			return r.Now, err
		}
		if change {
			err = copies.Send(ctx, set)
		} else {
			_, err = set(0)
		}
		return r, err
	}, nil)
	copies.Over(ctx)
	switch {
	case err != nil:
		return false, w.wrap(op, err)
	case r.Verdict == luascripts.Other:
		return false, w.wrap(op, &RateError{r.Rate, r.Per})
	}
	return r.Verdict == luascripts.Done, w.wrap(op, refusedBy(r.Verdict))
}

// Take takes n units, or none. A refusal is a Decision that is not OK, and no error. A call for more than the rate
// is always refused, with RetryAfter [Never], and one for 0 units never.
func (w *RedissonLimiter) Take(ctx context.Context, n int64) (Decision, error) {
	return w.take(ctx, "take", n, n, false)
}

// TakeUpTo takes the units that are there, n at most.
func (w *RedissonLimiter) TakeUpTo(ctx context.Context, n int64) (Decision, error) {
	return w.take(ctx, "take up to", n, min(n, 1), false)
}

// Peek returns the state of the limiter, and takes nothing. The Decision is OK if a unit could be taken.
func (w *RedissonLimiter) Peek(ctx context.Context) (Decision, error) {
	d, err := w.take(ctx, "peek", 0, 0, false)
	d.OK = err == nil && d.Remaining > 0
	return d, err
}

func (w *RedissonLimiter) take(ctx context.Context, op string, n, least int64, waits bool) (Decision, error) {
	if err := w.check(n); err != nil {
		return Decision{}, w.wrap(op, err)
	}
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	call := string(id[:])
	var (
		mu    sync.Mutex
		first time.Time // guarded by mu: when the first copy was sent
	)
	for {
		r, err := persist(ctx, w, waits, func(ctx context.Context) (luascripts.WindowReply, error) {
			ago := time.Duration(0)
			mu.Lock()
			if first.IsZero() {
				first = time.Now()
			} else {
				ago = max(time.Since(first), time.Millisecond)
			}
			mu.Unlock()
			return luascripts.TakeWindow(ctx, w.send.Redis, w.keys, n, least, call, ago)
		}, func(r luascripts.WindowReply) {
			if r.Taken > 0 { // if the refund fails, the units come back when the window is over
				_, _ = luascripts.RefundWindow(context.Background(), w.send.Redis, w.keys, r.Taken, call)
			}
		})
		if err == nil {
			err = refusedBy(r.Verdict)
		}
		if err != nil {
			return Decision{Err: err}, w.wrap(op, err)
		}
		if r.Taken < least && r.Retry == 0 {
			continue // the server removes entries that are over in steps, and has not removed all
		}
		return Decision{
			OK: r.Taken > 0 || n == 0, Taken: r.Taken, Remaining: r.Remaining, RetryAfter: r.Retry, ResetAfter: r.Reset,
			Limit: Limit{Rate: r.Rate, Per: r.Per, Burst: r.Rate}, left: r.Remaining, next: r.Next, id: call,
		}, nil
	}
}

// Delete deletes the limiter and its rate. It succeeds if there is none. Later calls, those of Java too, fail as before Init: here with
// [ErrNotInitialized], also in callers that wait. A limiter of RateType.PER_CLIENT is not deleted ([ErrPerClient]). Delete costs two
// round trips: the first one asks for the server's time.
//
// A copy of the command that arrives late deletes no limiter that was made since; see SetRate.
func (w *RedissonLimiter) Delete(ctx context.Context) error {
	const op = "delete"
	if w.bad != nil {
		return w.wrap(op, w.bad)
	}
	copies := w.send.Dated()
	v, err := persist(ctx, w, false, func(sent context.Context) (v luascripts.Verdict, err error) {
		err = copies.Send(ctx, func(before int64) (now int64, err error) {
			v, now, err = luascripts.DeleteWindow(sent, w.send.Redis, w.keys, before)
			return now, err
		})
		return v, err
	}, nil)
	copies.Over(ctx)
	if err == nil {
		err = refusedBy(v)
	}
	return w.wrap(op, err)
}

// Refund gives back the units of d, the answer to a Take or TakeUpTo, which the caller has not used. It can be
// repeated.
func (w *RedissonLimiter) Refund(ctx context.Context, d Decision) error {
	const op = "refund"
	if err := w.check(d.Taken); err != nil || d.Taken == 0 || d.id == "" {
		return w.wrap(op, err)
	}
	v, err := persist(ctx, w, false, func(ctx context.Context) (luascripts.Verdict, error) {
		return luascripts.RefundWindow(ctx, w.send.Redis, w.keys, d.Taken, d.id)
	}, nil)
	if err == nil && v != luascripts.Free {
		err = refusedBy(v)
	}
	return w.wrap(op, err)
}

// Wait waits until it has taken n units. It serves the callers of this handle in the order in which they
// came, and one of them asks at a time. Between processes, and with Java, there is no order: each process asks
// again at the time that Redis gave it, as Redisson does. Wait fails with [ErrLimited] at once if n is more than
// the rate, or if the units are not there before ctx ends. While Redis is unavailable, Wait retries until ctx is canceled. Its error then
// matches [lock.ErrUnavailable], too, except for callers that are queued behind another one: they get the error of their context.
func (w *RedissonLimiter) Wait(ctx context.Context, n int64) error {
	const op = "wait"
	if err := w.check(n); err != nil {
		return w.wrap(op, err)
	}
	select {
	case w.turn <- struct{}{}:
	case <-ctx.Done():
		return w.wrap(op, ctx.Err())
	case <-w.send.Closing():
		return w.wrap(op, lock.ErrClosed)
	}
	defer func() { <-w.turn }()
	for {
		d, err := w.take(ctx, op, n, n, true)
		if err != nil || d.OK {
			return err
		}
		deadline, limited := ctx.Deadline()
		if d.RetryAfter == Never || limited && time.Until(deadline) < d.RetryAfter {
			return w.wrap(op, &LimitedError{RetryAfter: d.RetryAfter})
		}
		if err := w.send.Sleep(ctx, d.RetryAfter); err != nil {
			return w.wrap(op, err)
		}
	}
}

// check returns an error if a call for n units is not valid.
func (w *RedissonLimiter) check(n int64) error {
	if w.bad == nil && (n < 0 || n > maxWindow) {
		return fmt.Errorf("%d units: it must be from 0 to %d", n, int64(maxWindow))
	}
	return w.bad
}

// wrap adds the operation and the name to err. It returns nil for nil.
func (w *RedissonLimiter) wrap(op string, err error) error {
	var e *lock.Error
	if err == nil || errors.As(err, &e) {
		return err
	}
	return &lock.Error{Op: op, Name: w.name, Err: err}
}

// refusedBy returns the error that a verdict of a window means.
func refusedBy(v luascripts.Verdict) error {
	switch v {
	case luascripts.Uninitialized:
		return ErrNotInitialized
	case luascripts.PerClient:
		return ErrPerClient
	case luascripts.Foreign:
		return lock.ErrWrongType
	}
	return nil
}

// persist calls f, which must be safe to repeat, until there is a reply. A call that waits retries until ctx is canceled, and any other one for the timeout of
// the sender, or until the server cannot write. If late is not nil, f takes units: it goes behind callers that have left and whose units are not back yet,
// and if its own caller has left when a reply comes, persist passes the reply to late.
func persist[T any](ctx context.Context, w *RedissonLimiter, waits bool, f func(context.Context) (T, error), late func(T)) (value T, err error) {
	var (
		mu   sync.Mutex
		got  *T                // guarded by mu
		left bool              // guarded by mu: the caller has an error
		sent []<-chan struct{} // guarded by mu: of each copy, closed when it can take no units any more
	)
	defer func() {
		mu.Lock()
		defer mu.Unlock()
		if err != nil && got != nil {
			value, err = *got, nil // it came at the last moment
		}
		if left = err != nil; left && late != nil {
			w.leave(sent)
		}
	}()
	pause := retry.Backoff{Most: w.send.Timeout / 4}
	var last error
	for end := time.Now().Add(w.send.Timeout); ; {
		patience := time.Until(end)
		if waits {
			patience = w.send.Timeout
		} else if patience <= 0 && last != nil {
			return value, last
		}
		earlier := w.leaving(late != nil)
		v, err := send.Ask(ctx, w.send, patience, func(ctx context.Context) (none T, err error) {
			for _, done := range earlier {
				<-done
			}
			mu.Lock()
			if left && late != nil {
				mu.Unlock()
				return none, context.Canceled // nobody waits for this reply
			}
			back := make(chan struct{})
			defer close(back)
			sent = append(sent, back)
			mu.Unlock()
			v, err := f(ctx)
			mu.Lock()
			defer mu.Unlock()
			if err == nil && left && late != nil {
				late(v)
			}
			if err == nil {
				got = &v
			}
			return v, err
		})
		if err == nil {
			return v, nil
		}
		switch {
		case ctx.Err() != nil && last != nil:
			return value, fmt.Errorf("%w: %w", ctx.Err(), last)
		case ctx.Err() != nil, !errors.Is(err, lock.ErrUnavailable), !waits && (send.Full(err) || time.Until(end) <= 0 || w.send.Down(ctx, last, err)):
			return value, err
		}
		last = err
		rest := pause.Next()
		if !waits {
			rest = min(rest, time.Until(end))
		}
		if e := w.send.Sleep(ctx, rest); e != nil {
			return value, fmt.Errorf("%w: %w", e, err)
		}
	}
}

// leave notes that a caller has left before its reply, and when its units are back.
func (w *RedissonLimiter) leave(back []<-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left = append(w.left, back...)
}

// leaving returns when the units of callers that have left are back, for a caller that takes units.
func (w *RedissonLimiter) leaving(takes bool) []<-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left = slices.DeleteFunc(w.left, func(back <-chan struct{}) bool {
		select {
		case <-back:
			return true
		default:
			return false
		}
	})
	if !takes {
		return nil
	}
	return slices.Clone(w.left)
}

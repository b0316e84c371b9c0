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

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

var (
	// ErrNotInitialized is returned when no rate is set in Redis. Call Init first.
	ErrNotInitialized = errors.New("not initialized: call Init first")

	// ErrRateMismatch is returned when a different rate is set in Redis. The error is also a
	// [*RateError].
	ErrRateMismatch = errors.New("rate does not match")

	// ErrPerClient is returned when Redisson created the limiter with RateType.PER_CLIENT, which is
	// not supported.
	ErrPerClient = errors.New("per-client rates (RateType.PER_CLIENT) are not supported")
)

// A RateError has the rate that is set in Redis. It matches [ErrRateMismatch].
type RateError struct {
	Rate int64
	Per  time.Duration
}

// Error names the rate.
func (e *RateError) Error() string {
	return fmt.Sprintf("%v: limiter has %d per %v", ErrRateMismatch, e.Rate, e.Per)
}

// Is reports whether target is [ErrRateMismatch].
func (e *RateError) Is(target error) bool { return target == ErrRateMismatch }

// A RedissonLimiter is a Redisson-compatible rate limiter, which Go and Java services share. In
// Java it is RedissonClient.getRateLimiter(name) with RateType.OVERALL. In any interval callers
// take at most the rate. If no Java service shares the limiter, a [Limiter] costs less and does
// more. A RedissonLimiter is safe for concurrent use.
//
// Redis stores each call for one interval, in about 130 bytes. When a rate is replaced, or
// {<name>}:value is lost, the server reads all of these calls at once. For 300,000 calls that
// blocks it for half a second or more. The keys are <name>, {<name>}:value and {<name>}:permits. As
// with Redisson, they stay until [RedissonLimiter.Delete], or for the keepAliveTime that Java set.
//
// A RedissonLimiter uses the clock of the server, and Redisson the clocks of its clients. If the
// clock of a client is ahead by d, its calls count for d longer here. For that client the calls of
// others end d sooner. Permits that Redisson releases can be taken again immediately. With 1,000
// calls or more in an interval, they can be returned a second time when the interval ends. A rate of
// more than 2^53, such as Long.MAX_VALUE, counts as 2^53.
// If the clock of the server moves backward by d, calls before that count for d longer.
//
// A RedissonLimiter has no policy. While Redis is unavailable, calls retry for the operation
// timeout of the client, or until their context is canceled. Then they fail with
// [lock.ErrUnavailable]. Without a client the timeout is 3 s. If memory is full or the server
// refuses connections, they fail immediately. [RedissonLimiter.Wait] retries until its context is
// canceled. A call takes its permits once within an interval, however often it was sent. If the
// caller leaves while a command is in flight, the permits are returned before the next call of this
// handle takes any. If the reply to that command is lost, the permits count until their interval
// ends.
type RedissonLimiter struct {
	send *command.Sender
	name string
	keys luascripts.WindowKeys
	turn chan struct{} // holds an element while a caller of this handle waits for Redis
	bad  error

	mu   sync.Mutex
	left []<-chan struct{} // guarded by mu: each is closed when the permits of a caller that left are returned
}

// NewRedissonLimiter returns a handle of the limiter called name. The handle uses rdb and never
// closes it. NewRedissonLimiter sends no command. With an invalid name, every call returns the
// error.
//
// With a client of this module, use its NewRedissonLimiter.
func NewRedissonLimiter(rdb rueidis.Client, name string) *RedissonLimiter {
	return RedissonLimiterOn(command.New(rdb, command.Config{Timeout: command.DefaultTimeout}), name)
}

// RedissonLimiterOn is [NewRedissonLimiter] with the sender of a client of this module.
func RedissonLimiterOn(s *command.Sender, name string) *RedissonLimiter {
	w := &RedissonLimiter{send: s, name: name, keys: keys.Window(s.Prefix + name), turn: make(chan struct{}, 1)}
	w.bad = keys.Check(s.Prefix, name)
	if s.Redis == nil {
		w.bad = errors.New("the rueidis client is nil")
	}
	return w
}

// maxWindow is the maximum number of permits of a RedissonLimiter. An entry stores the number in four bytes.
const maxWindow = math.MaxUint32

// Init sets the rate of the limiter if none is set, like trySetRate of Redisson. If a different
// rate is set, Init fails with [ErrRateMismatch]. SetRate replaces the rate. Creating a limiter
// requires two round trips.
//
// If the reply is lost, Init repeats the command, which finds the rate that the first copy has set.
// Init then reports false although it has created the limiter. A delayed duplicate of the command
// creates no limiter that was deleted since (see SetRate).
func (w *RedissonLimiter) Init(ctx context.Context, rate int64, per time.Duration) (created bool, err error) {
	return w.init(ctx, "init", rate, per, false)
}

// SetRate sets the rate of the limiter, whatever it was. Permits that were taken before still
// count. If they exceed the new rate, no permits are available until the excess has expired, and
// availablePermits of Redisson is negative. Changing the rate requires two round trips.
//
// A delayed duplicate of the command does not undo a newer call. Each copy may set a rate for at
// most one second. If a connection broke, SetRate returns when that time has passed. If ctx is
// canceled before, a copy can still run within that second.
func (w *RedissonLimiter) SetRate(ctx context.Context, rate int64, per time.Duration) error {
	_, err := w.init(ctx, "set rate", rate, per, true)
	return err
}

func (w *RedissonLimiter) init(ctx context.Context, op string, rate int64, per time.Duration, change bool) (created bool, err error) {
	switch {
	case w.bad != nil:
		return false, w.wrap(op, w.bad)
	case rate < 1 || rate > maxWindow:
		return false, w.wrap(op, fmt.Errorf("rate %d: must be from 1 to %d", rate, int64(maxWindow)))
	case per < time.Millisecond || per > maxPer || per%time.Millisecond != 0:
		return false, w.wrap(op, fmt.Errorf("rate per %v: must be a multiple of 1ms, from 1ms to %v", per, maxPer))
	}
	copies := w.send.Dated()
	r, err := persist(ctx, w, false, func(sent context.Context) (r luascripts.Rated, err error) {
		err = copies.Send(ctx, func(before int64) (now int64, err error) {
			r, now, err = luascripts.InitWindow(sent, w.send.Redis, w.keys, rate, per, change, before)
			return now, err
		})
		return r, err
	}, nil)
	copies.Over(ctx)
	switch {
	case err != nil:
		return false, w.wrap(op, err)
	case r.Verdict == luascripts.Other:
		return false, w.wrap(op, &RateError{r.Rate, r.Per})
	}
	return r.Verdict == luascripts.Done, w.wrap(op, w.refusedBy(ctx, r.Verdict))
}

// Take takes n permits, or none. A rejection is a Decision that is not OK, and not an error. A call
// for more than the rate is always rejected, with RetryAfter [Never]. A call for 0 permits is never
// rejected.
func (w *RedissonLimiter) Take(ctx context.Context, n int64) (Decision, error) {
	return w.take(ctx, "take", n, n, false)
}

// TakeUpTo takes the available permits, at most n.
func (w *RedissonLimiter) TakeUpTo(ctx context.Context, n int64) (Decision, error) {
	return w.take(ctx, "take up to", n, min(n, 1), false)
}

// Peek returns the state of the limiter and takes nothing. The Decision is OK if a permit could be
// taken. Otherwise RetryAfter is the time until one could be.
func (w *RedissonLimiter) Peek(ctx context.Context) (Decision, error) {
	d, err := w.take(ctx, "peek", 0, 0, false)
	if d.OK = err == nil && d.Remaining > 0; !d.OK {
		d.RetryAfter = d.next
	}
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
				ago = max(since(first, time.Now()), time.Millisecond)
			}
			mu.Unlock()
			return luascripts.TakeWindow(ctx, w.send.Redis, w.keys, n, least, call, ago)
		}, func(r luascripts.WindowReply) {
			if r.Taken > 0 { // if the refund fails, the permits are available again when the interval ends
				_, _ = luascripts.RefundWindow(context.Background(), w.send.Redis, w.keys, r.Taken, call)
			}
		})
		if err == nil {
			err = w.refusedBy(ctx, r.Verdict)
		}
		if err != nil {
			return Decision{Err: err}, w.wrap(op, err)
		}
		if r.Taken < least && r.Retry == 0 {
			continue // the server removes expired entries in steps, and has not removed all
		}
		return Decision{
			OK: r.Taken > 0 || n == 0, Taken: r.Taken, Remaining: r.Remaining, RetryAfter: r.Retry, ResetAfter: r.Reset,
			Limit: Limit{Rate: r.Rate, Per: r.Per, Burst: r.Rate}, left: r.Remaining, next: r.Next, id: call,
		}, nil
	}
}

// Delete deletes the limiter and its rate. It succeeds if there is none. Later calls and waiting
// callers, in Java too, fail as before Init, here with [ErrNotInitialized]. A limiter of
// RateType.PER_CLIENT is not deleted ([ErrPerClient]). Delete requires two round trips. A delayed
// duplicate deletes no limiter that was created since (see SetRate).
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
		err = w.refusedBy(ctx, v)
	}
	return w.wrap(op, err)
}

// Refund returns the unused permits of d, the result of a Take or TakeUpTo. It can be repeated. It
// works even after ctx is canceled.
func (w *RedissonLimiter) Refund(ctx context.Context, d Decision) error {
	const op = "refund"
	if err := w.check(d.Taken); err != nil || d.Taken == 0 || d.id == "" {
		return w.wrap(op, err)
	}
	v, err := persist(deferred(ctx), w, false, func(ctx context.Context) (luascripts.Verdict, error) {
		return luascripts.RefundWindow(ctx, w.send.Redis, w.keys, d.Taken, d.id)
	}, nil)
	if err == nil && v != luascripts.Free {
		err = w.refusedBy(ctx, v)
	}
	return w.wrap(op, err)
}

// Wait waits until it has taken n permits. It serves the callers of this handle first-come,
// first-served, and one of them sends commands at a time. There is no order between processes, or
// with Java. Each process retries at the time that Redis returned, as Redisson does.
//
// Wait fails immediately with [ErrLimited] if n is more than the rate, or if the permits are not
// available before the deadline of ctx. While Redis is unavailable, Wait retries until ctx is
// canceled. Its error then also matches [lock.ErrUnavailable]. Callers that are queued behind
// another one get only the error of their context.
func (w *RedissonLimiter) Wait(ctx context.Context, n int64) error {
	const op = "wait"
	if err := w.check(n); err != nil {
		return w.wrap(op, err)
	}
	select {
	case w.turn <- struct{}{}:
	case <-ctx.Done():
		return w.wrap(op, command.Ended(ctx, 0))
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

// check returns an error if a call for n permits is not valid.
func (w *RedissonLimiter) check(n int64) error {
	if w.bad == nil && (n < 0 || n > maxWindow) {
		return fmt.Errorf("%d permits: must be from 0 to %d", n, int64(maxWindow))
	}
	return w.bad
}

// wrap adds the operation and the name to err. It returns nil for nil.
func (w *RedissonLimiter) wrap(op string, err error) error {
	if _, named := err.(*lock.Error); named || err == nil {
		return err
	}
	return &lock.Error{Op: op, Name: w.name, Err: err}
}

// refusedBy returns the error for a verdict of the script.
func (w *RedissonLimiter) refusedBy(ctx context.Context, v luascripts.Verdict) error {
	switch v {
	case luascripts.Uninitialized:
		return ErrNotInitialized
	case luascripts.PerClient:
		return ErrPerClient
	case luascripts.Foreign:
		k := w.keys
		return w.send.Foreign(ctx, lock.ErrWrongType, command.Key{Name: k.Config, Type: "hash"}, command.Key{Name: k.Value, Type: "string"}, command.Key{Name: k.Permits, Type: "zset"})
	}
	return nil
}

// persist calls f, which must be safe to repeat, until there is a reply. A call that waits retries until ctx is canceled. Any
// other call retries for the timeout of the sender, or until the server cannot write. A non-nil late means that f takes permits.
// Then f runs after the permits of callers that left have been returned. If its own caller has left when a reply arrives, persist
// passes the reply to late.
func persist[T any](ctx context.Context, w *RedissonLimiter, waits bool, f func(context.Context) (T, error), late func(T)) (value T, err error) {
	r := &request[T]{w: w, f: f, late: late}
	defer func() { value, err = r.end(value, err) }()
	if err := w.send.Enter(); err != nil {
		return value, err
	}
	defer w.send.Done()
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
		v, err := command.Ask(ctx, w.send, patience, func(ctx context.Context) (T, error) { return r.send(ctx, earlier) })
		if err == nil {
			return v, nil
		}
		switch {
		case ctx.Err() != nil && last != nil:
			return value, command.Interrupted(ctx, last)
		case ctx.Err() != nil, !errors.Is(err, lock.ErrUnavailable), !waits && (retry.FaultOf(err).Lasts || time.Until(end) <= 0 || w.send.Down(ctx, w.send.Timeout, last, err)):
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

// request is the request of one caller. Several copies of it can be in flight, because persist repeats a request whose reply is
// overdue.
type request[T any] struct {
	w    *RedissonLimiter                 // set once
	f    func(context.Context) (T, error) // set once
	late func(T)                          // set once; nil if f takes no permits

	mu   sync.Mutex
	got  *T                // guarded by mu: the latest reply
	left bool              // guarded by mu: the caller got an error
	sent []<-chan struct{} // guarded by mu: for each copy, closed when it can no longer take permits
}

// send sends a copy after each channel in earlier is closed.
func (r *request[T]) send(ctx context.Context, earlier []<-chan struct{}) (value T, err error) {
	for _, done := range earlier {
		<-done
	}
	r.mu.Lock()
	if r.left && r.late != nil { // mutant: operand 2: without late, the copy is sent at once
		r.mu.Unlock()
		return value, context.Canceled // the caller of this request has left
	}
	back := make(chan struct{})
	defer close(back)
	r.sent = append(r.sent, back)
	r.mu.Unlock()
	value, err = r.f(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.got = &value
		if r.left && r.late != nil {
			r.late(value)
		}
	}
	return value, err
}

// end returns what the caller gets, and records whether it left.
func (r *request[T]) end(value T, err error) (T, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil && r.got != nil {
		value, err = *r.got, nil // the reply arrived at the last moment
	}
	if r.left = err != nil; r.left && r.late != nil {
		r.w.leave(r.sent)
	}
	return value, err
}

// leave records that a caller left before its reply, and the channels that are closed when its permits are returned.
func (w *RedissonLimiter) leave(back []<-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left = append(w.left, back...)
}

// leaving returns the channels that are closed when the permits of callers that left are returned. A caller that takes permits
// waits for them.
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

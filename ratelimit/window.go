package ratelimit

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
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
	// ErrNotInitialised: there is no rate in Redis. Call Init.
	ErrNotInitialised = errors.New("not initialised")

	// ErrOtherRate: there is another rate in Redis. The error is also a [*RateError].
	ErrOtherRate = errors.New("it has another rate")

	// ErrPerClient: the limiter was made by Redisson with RateType.PER_CLIENT, which is not supported.
	ErrPerClient = errors.New("it has a rate for each client (RateType.PER_CLIENT)")
)

// RateError says which rate there is. It matches [ErrOtherRate].
type RateError struct {
	Rate int64
	Per  time.Duration
}

// Error names the rate.
func (e *RateError) Error() string { return fmt.Sprintf("%v: %d per %v", ErrOtherRate, e.Rate, e.Per) }

// Is reports whether target is [ErrOtherRate].
func (e *RateError) Is(target error) bool { return target == ErrOtherRate }

// Window is a limiter of one thing that Java services share: RedissonClient.getRateLimiter(name), with
// RateType.OVERALL. At most Rate units are taken in any time of its interval: it
// remembers each taking for that long, some 130 bytes. Where Java has no part, a [Limiter] costs less and
// does more. It is safe for concurrent use.
//
// The rate stands in Redis, so there are three keys: <name>, {<name>}:value and {<name>}:permits. Like Redisson's they
// stay for good, or for the keepAliveTime that Java gave them.
//
// The clock of the server counts. Redisson counts by the clocks of its clients: an entry
// of a client that is ahead by d lasts d longer here, and to that client entries of others are over d
// sooner. What Redisson gives back by release is counted here until its time is over.
//
// A Window has no policy: without an answer its calls fail with [lock.ErrUnavailable]. They try for
// the operation timeout of the client, three seconds without one, or until their context ends; a call counts once however often it was sent, and what a caller took who
// has left is given back.
type Window struct {
	send *send.Sender
	name string
	keys luascripts.WindowKeys
	turn chan struct{} // holds one thing while a caller of this handle waits in Redis
	bad  error
}

// NewWindow returns a handle of the limiter called name, on rdb, which it borrows. It does no I/O; a bad name
// shows as an error of the first call.
//
// A caller who has a client of this module uses its NewWindow instead.
func NewWindow(rdb rueidis.Client, name string) *Window {
	return WindowOn(send.New(rdb, "", send.DefaultTimeout), name)
}

// WindowOn is NewWindow for a client of this module.
func WindowOn(s *send.Sender, name string) *Window {
	w := &Window{send: s, name: name, keys: keys.Window(s.Prefix + name), turn: make(chan struct{}, 1)}
	w.bad = keys.Check(s.Prefix, name)
	if s.Redis == nil {
		w.bad = errors.New("the rueidis client is nil")
	}
	return w
}

// maxWindow is the most units of a Window: an entry has four bytes for them.
const maxWindow = math.MaxUint32

// Init gives the limiter its rate, as trySetRate does, if it has none. It fails with [ErrOtherRate] if it
// has another one: a program that does not mind calls SetRate.
func (w *Window) Init(ctx context.Context, rate int64, per time.Duration) (created bool, err error) {
	return w.init(ctx, "init", rate, per, false)
}

// SetRate gives the limiter its rate, whatever it was. What was taken before counts on.
func (w *Window) SetRate(ctx context.Context, rate int64, per time.Duration) error {
	_, err := w.init(ctx, "set rate", rate, per, true)
	return err
}

func (w *Window) init(ctx context.Context, op string, rate int64, per time.Duration, change bool) (created bool, err error) {
	switch {
	case w.bad != nil:
		return false, w.wrap(op, w.bad)
	case rate < 1 || rate > maxWindow:
		return false, w.wrap(op, fmt.Errorf("a rate of %d: it must be from 1 to %d", rate, int64(maxWindow)))
	case per < time.Millisecond || per > maxPer || per%time.Millisecond != 0:
		return false, w.wrap(op, fmt.Errorf("a rate per %v: it must be in whole ms, from 1ms to %v", per, maxPer))
	}
	type found struct {
		v     luascripts.Verdict
		rate  int64
		every time.Duration
	}
	f, err := persist(ctx, w, func(ctx context.Context) (f found, err error) {
		f.v, f.rate, f.every, err = luascripts.InitWindow(ctx, w.send.Redis, w.keys, rate, per, change)
		return f, err
	}, nil)
	switch {
	case err != nil:
		return false, w.wrap(op, err)
	case f.v == luascripts.Other:
		return false, w.wrap(op, &RateError{f.rate, f.every})
	}
	return f.v == luascripts.Done, w.wrap(op, refusedBy(f.v))
}

// Take takes n units, or none. That they are refused is no error. More than the rate is refused for ever, with
// RetryAfter [Never].
func (w *Window) Take(ctx context.Context, n int64) (Decision, error) {
	return w.take(ctx, "take", n, n)
}

// TakeUpTo takes as many units as there are, n at most.
func (w *Window) TakeUpTo(ctx context.Context, n int64) (Decision, error) {
	return w.take(ctx, "take up to", n, min(n, 1))
}

// Peek says what is left, and takes nothing. OK says that a unit could be taken.
func (w *Window) Peek(ctx context.Context) (Decision, error) {
	d, err := w.take(ctx, "peek", 0, 0)
	d.OK = err == nil && d.Remaining > 0
	return d, err
}

func (w *Window) take(ctx context.Context, op string, n, least int64) (Decision, error) {
	if err := w.check(n); err != nil {
		return Decision{}, w.wrap(op, err)
	}
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	call := string(id[:])
	for {
		r, err := persist(ctx, w, func(ctx context.Context) (luascripts.WindowReply, error) {
			return luascripts.TakeWindow(ctx, w.send.Redis, w.keys, n, least, call)
		}, func(r luascripts.WindowReply) {
			if r.Taken > 0 { // it may fail: then the units come back when the window is over
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
			continue // so much was over that the server did not remove it all at once
		}
		return Decision{
			OK: r.Taken > 0 || n == 0, Taken: r.Taken, Remaining: r.Remaining, RetryAfter: r.Retry, ResetAfter: r.Reset,
			Limit: Limit{Rate: r.Rate, Per: r.Per, Burst: r.Rate}, id: call,
		}, nil
	}
}

// Refund gives back what d, the answer to a Take or TakeUpTo, took, if the caller did not use it. It can be
// repeated.
func (w *Window) Refund(ctx context.Context, d Decision) error {
	const op = "refund"
	if err := w.check(d.Taken); err != nil || d.Taken == 0 || d.id == "" {
		return w.wrap(op, err)
	}
	v, err := persist(ctx, w, func(ctx context.Context) (luascripts.Verdict, error) {
		return luascripts.RefundWindow(ctx, w.send.Redis, w.keys, d.Taken, d.id)
	}, nil)
	if err == nil && v != luascripts.Free {
		err = refusedBy(v)
	}
	return w.wrap(op, err)
}

// Wait waits until it has taken n units. Callers of this handle are served in the order in which they
// came, and one of them asks at a time. Between processes, and with Java, there is no order: as Redisson does, each asks
// again when it was told to. It fails with [ErrLimited] at once if n is more than the rate, or if
// the units cannot be had before ctx ends.
func (w *Window) Wait(ctx context.Context, n int64) error {
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
		d, err := w.take(ctx, op, n, n)
		if err != nil || d.OK {
			return err
		}
		deadline, limited := ctx.Deadline()
		if d.RetryAfter == Never || limited && time.Until(deadline) < d.RetryAfter {
			return w.wrap(op, &LimitedError{RetryAfter: d.RetryAfter})
		}
		if err := w.sleep(ctx, d.RetryAfter); err != nil {
			return w.wrap(op, err)
		}
	}
}

func (w *Window) sleep(ctx context.Context, d time.Duration) error {
	return (&desk{send: w.send}).sleep(ctx, d)
}

// check checks what can be checked here.
func (w *Window) check(n int64) error {
	if w.bad == nil && (n < 0 || n > maxWindow) {
		return fmt.Errorf("%d units: it must be from 0 to %d", n, int64(maxWindow))
	}
	return w.bad
}

// wrap says what was asked for; it keeps nil as it is.
func (w *Window) wrap(op string, err error) error {
	var e *lock.Error
	if err == nil || errors.As(err, &e) {
		return err
	}
	return &lock.Error{Op: op, Name: w.name, Err: err}
}

// refusedBy is what a verdict of a window means as an error.
func refusedBy(v luascripts.Verdict) error {
	switch v {
	case luascripts.Uninitialised:
		return ErrNotInitialised
	case luascripts.PerClient:
		return ErrPerClient
	case luascripts.Foreign:
		return lock.ErrForeignKey
	}
	return nil
}

// persist sends what can be sent again until there is an answer, and tells late, which may be nil, the answer
// that comes after the caller has left.
func persist[T any](ctx context.Context, w *Window, f func(context.Context) (T, error), late func(T)) (none T, err error) {
	pause := retry.Backoff{Most: w.send.Timeout / 4}
	for end := time.Now().Add(w.send.Timeout); ; {
		var (
			mu   sync.Mutex
			got  *T   // guarded by mu
			left bool // guarded by mu
		)
		v, err := send.Ask(ctx, w.send, time.Until(end), func(ctx context.Context) (T, error) {
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
		mu.Lock()
		left = true
		answer := got
		mu.Unlock()
		if answer != nil {
			return *answer, nil // it came at the last moment
		}
		if ctx.Err() != nil || !errors.Is(err, lock.ErrUnavailable) || time.Until(end) <= 0 {
			return none, err
		}
		if e := w.sleep(ctx, min(pause.Next(), time.Until(end))); e != nil {
			return none, fmt.Errorf("%w: %w", e, err)
		}
	}
}

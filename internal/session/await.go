package session

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/redis/rueidis"
)

// await runs send and waits for its answer, until ctx ends or limit has passed
// (0 is no limit). It returns in time whatever the server does; answered tells
// whether value and err are what send returned.
//
// Giving up the wait does not take a command back: it stays in the connection's
// queue, and may grant a lock that nobody knows of. So when nobody waits any more,
// late gets what became of it, at once or once that is known: its reply, or an
// error after which it may have been carried out.
//
// It may only be called between s.begin and s.work.Done, from what s.work counts,
// or from the watchdog, for whose renewals Close waits first.
func await[T any](ctx context.Context, s *Session, limit time.Duration, send func(context.Context) (T, error), late func(T, error)) (value T, answered bool, err error) {
	if own := s.inline(ctx, limit); own != nil {
		value, err = send(own)
		if answered, err = s.inlined(own, err); !answered && late != nil {
			s.work.Go(func() {
				var none T
				late(none, noAnswer{s.OpTimeout})
			})
		}
		return value, answered, err
	}
	return aside(ctx, s, limit, send, late)
}

// aside is await for what may not run in the goroutine of its caller.
func aside[T any](ctx context.Context, s *Session, limit time.Duration, send func(context.Context) (T, error), late func(T, error)) (value T, answered bool, err error) {
	type answer struct {
		value T
		err   error
	}
	answers := make(chan answer) // unbuffered: whoever sends on it knows that it was received
	away := make(chan struct{})
	if s.asides.Add(1) == 1 {
		s.answers.Store(false) // it may have to connect first, and others would wait for that with no regard to a context
	}
	s.do(func() {
		value, err := send(context.Background()) // returns with the server's reply or with the end of the connection
		s.asides.Add(-1)
		s.answers.Store(isAnswer(err))
		select {
		case answers <- answer{value, err}:
		case <-away:
			if late != nil {
				late(value, err)
			}
		}
	})

	var timeout <-chan time.Time
	if limit > 0 {
		t := time.NewTimer(limit)
		defer t.Stop()
		timeout = t.C
	}
	select {
	case a := <-answers:
		return a.value, true, a.err
	case <-ctx.Done():
		close(away)
		return value, false, ctx.Err()
	case <-timeout:
		close(away)
		s.answers.Store(false)
		return value, false, noAnswer{s.OpTimeout} // limit may be the rest of it
	}
}

// idlers is how many goroutines wait for the next command of a caller who can be
// cancelled. One that has grown its stack and sleeps is half the price of a new one.
const idlers = 8

// do runs f in a goroutine that s.work counts.
func (s *Session) do(f func()) {
	select {
	case s.jobs <- f:
	default:
		s.work.Go(func() {
			for f != nil {
				f()
				f = nil // it would be kept alive while there is nothing to do
				f = s.nextJob()
			}
		})
	}
}

// nextJob waits for something to do; nil is nothing any more.
func (s *Session) nextJob() (f func()) {
	defer s.idle.Add(-1)
	if s.idle.Add(1) > idlers {
		return nil
	}
	select {
	case f = <-s.jobs:
	case <-s.closing:
	}
	return f
}

// A command of a caller who cannot be cancelled runs in the caller's own goroutine,
// while the server answers. Two changes of goroutine would cost as much as the rest of
// what a client does for it. The client library returns when the context ends, and then
// nothing is known of the command, as if the connection had broken.
const (
	inlineMost  = 768 // at a time, with those of others: with more on one connection the library can block without regard to the context
	inlineShort = 64  // its time-out is shorter by this part of it, as some of it has passed,
	inlineSlack = 16  // or by up to this part, so that many commands share a context
)

// inline returns the context of a command that may run in the goroutine of a caller with
// ctx and so much time, or nil if it may not. If it may, inlined must follow it.
func (s *Session) inline(ctx context.Context, limit time.Duration) *endOf {
	if ctx.Done() != nil || limit > s.OpTimeout || !s.answers.Load() {
		return nil
	}
	now := time.Now()
	end := s.end.Load()
	if end == nil || end.at.Sub(now) < s.OpTimeout-s.OpTimeout/inlineSlack {
		end = &endOf{at: now.Add(s.OpTimeout - s.OpTimeout/inlineShort)}
		end.Context, end.cancel = context.WithDeadline(context.Background(), end.at)
		s.end.Store(end)
	}
	if end.at.Sub(now) > limit {
		return nil // it has less
	}
	if s.inlines.Add(1)+s.asides.Load() > inlineMost {
		s.inlines.Add(-1)
		return nil
	}
	return end
}

// endOf is a context that ends at some time.
type endOf struct {
	context.Context
	at     time.Time
	cancel context.CancelFunc
}

// inlined reports whether a command that returned err under a context of inline was
// answered, and with what. If the context ended first, it was not. The same error long
// before that is another command's: when that one times out, the client library may
// close the connection, with its error for all who wait there.
func (s *Session) inlined(own *endOf, err error) (answered bool, _ error) {
	s.inlines.Add(-1)
	if isAnswer(err) {
		return true, err
	}
	s.answers.Store(false)
	var dial *net.OpError
	ended := errors.Is(err, context.DeadlineExceeded) && time.Until(own.at) <= s.OpTimeout/inlineSlack
	if ended && !(errors.As(err, &dial) && dial.Op == "dial") {
		return false, noAnswer{s.OpTimeout}
	}
	return true, err
}

// isAnswer reports whether a command that returned err was answered.
func isAnswer(err error) bool {
	_, refused := rueidis.IsRedisErr(err)
	return err == nil || refused
}

// outcome is what became of a command that was sent until something answered.
type outcome[T any] struct {
	value    T
	err      error
	answered bool // value and err are an answer; else late gets it
	repeated bool // a copy of the command before this one may have been carried out
}

// insist awaits send, again and again while that may help: for at most within
// (0 is no limit), and while ctx lasts. send must be safe to repeat.
func insist[T any](ctx context.Context, s *Session, within time.Duration, send func(context.Context) (T, error), late func(T, error)) (o outcome[T]) {
	began := time.Now()
	pause := retry.Backoff{Most: s.OpTimeout / 4}
	limit := within
	for {
		o.value, o.answered, o.err = await(ctx, s, limit, send, late)
		if o.err == nil || !o.answered {
			return o
		}
		f, d := faultOf(o.err), pause.Next()
		if within > 0 {
			limit = within - time.Since(began) - d
		}
		if !f.again || within > 0 && limit <= 0 || !rest(ctx, d) {
			return o
		}
		o.repeated = o.repeated || f.mayHaveRun
	}
}

// rest sleeps for d, and reports false if ctx ended before.
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

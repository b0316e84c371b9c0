package session

import (
	"context"
	"time"
)

// await runs send and waits for its answer, until ctx ends or limit has passed
// (0 is no limit). It returns in time whatever the server and the client
// library do; answered tells whether value and err are what send returned.
//
// Giving up the wait does not take a command back, so send is never
// interrupted: it runs in a goroutine of its own, with a context that does not
// end, and so returns with the server's reply or with the end of the
// connection. When nobody waits any more, late gets what became of it. Nothing
// less would do: a command whose context ended stays in the connection's queue,
// and may grant a lock that nobody knows of.
//
// It may only be called between s.begin and s.work.Done, from what s.work counts,
// or from the watchdog, for whose renewals Close waits first.
func await[T any](ctx context.Context, s *Session, limit time.Duration, send func(context.Context) (T, error), late func(T, error)) (value T, answered bool, err error) {
	type answer struct {
		value T
		err   error
	}
	answers := make(chan answer) // unbuffered: whoever sends on it knows that it was received
	away := make(chan struct{})
	s.work.Go(func() {
		value, err := send(context.Background())
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
		return value, false, noAnswer{s.OpTimeout} // limit may be the rest of it
	}
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
	pause := backoff{most: s.OpTimeout / 4}
	limit := within
	for {
		o.value, o.answered, o.err = await(ctx, s, limit, send, late)
		if o.err == nil || !o.answered {
			return o
		}
		f, d := faultOf(o.err), pause.next()
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

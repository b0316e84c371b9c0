package session

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// fault says what an error means for a script that was sent. This file is the
// one place that decides it.
//
//	reply or error                                       mayHaveRun  again
//	LOADING TRYAGAIN CLUSTERDOWN MASTERDOWN READONLY
//	BUSY MOVED ASK, a failed dial                            no       yes
//	NOAUTH WRONGPASS NOPERM OOM MISCONF NOREPLICAS
//	WRONGTYPE and all other error replies                    no       no
//	a reply that no script of ours gives, WAIT refused       yes      no
//	time-out, EOF, reset, a caller who went away             yes      yes
type fault struct {
	mayHaveRun bool // the server may have carried it out
	again      bool // the same again may go better
}

func faultOf(err error) fault {
	var sure final
	var garbled *luascripts.ReplyError
	var dial *net.OpError
	var reply *rueidis.RedisError
	if errors.As(err, &reply) {
		return fault{again: retry.Passes(reply.Error())}
	}
	switch {
	case errors.As(err, &sure), errors.As(err, new(tooLate)), errors.Is(err, lock.ErrClosed):
		return fault{}
	case errors.As(err, new(*luascripts.UnknownError)):
		return fault{}
	case errors.As(err, &garbled), errors.As(err, new(*luascripts.WaitError)):
		return fault{mayHaveRun: true}
	case errors.As(err, &dial) && dial.Op == "dial":
		return fault{again: true}
	case errors.Is(err, rueidis.ErrClosing):
		return fault{mayHaveRun: true} // somebody closed the client under us
	default:
		return fault{mayHaveRun: true, again: true}
	}
}

// told is what a caller gets of err, which a command failed with: with the
// sentinel that it looks for, and with what to do about it.
func (s *Session) told(err error) error {
	var reply *rueidis.RedisError
	err = luascripts.Discreet(err)
	switch {
	case err == nil || errors.Is(err, lock.ErrUnavailable):
		return err // it was told before
	case errors.As(err, &reply) && strings.Contains(reply.Error(), "WRONGTYPE"):
		return fmt.Errorf("%w: %w", lock.ErrForeignKey, err)
	case errors.As(err, new(*luascripts.WaitError)):
		return fmt.Errorf("%w: %w", lock.ErrReplicas, err)
	case errors.As(err, &reply) && Refused(reply):
		return Refusal(s.address(), s.User, err)
	case isReadOnly(err):
		return s.silentFor(0, fmt.Errorf("it is a replica, and takes no writes: %w", err))
	case faultOf(err).again:
		return s.silentFor(0, err)
	}
	return err
}

// Refused reports whether reply says that the server does not let the user in, or does
// not let it do something.
func Refused(reply *rueidis.RedisError) bool {
	for word := range strings.FieldsSeq(reply.Error()) {
		switch strings.TrimPrefix(word, "-") {
		case "NOAUTH", "WRONGPASS", "NOPERM":
			return true
		}
	}
	return false
}

// Refusal is err, which says that the server at addr does not let user in, or does not
// let it do something, with what to do about it. What is not known is empty.
func Refusal(addr, user string, err error) error {
	who := "Redis"
	if addr != "" {
		who += " at " + addr
	}
	if user != "" {
		who += fmt.Sprintf(", user %q", user)
	}
	advice := "check the user and the password"
	switch text := err.Error(); {
	case strings.Contains(text, "NOPERM"):
		advice = `grant the rights that docs/SECURITY.md lists under "Rights"`
	case strings.Contains(text, "NOAUTH"):
		advice = "the server wants a password, and none was given, as in redis://user:password@host:port"
	}
	return fmt.Errorf("%s: %w (%s)", who, err, advice)
}

// kinds of values that a foreign key can hold, as TYPE has them, and what they may be.
var kinds = map[string]string{
	"string": "a string, as the locks of redsync and redislock are",
	"hash":   "a hash that is no lock of this kind",
	"list":   "a list",
	"set":    "a set",
	"zset":   "a sorted set",
	"stream": "a stream",
}

// foreign is err, which a call for spec failed with, with what the key holds if that is
// what is wrong. It asks the server, for a part of the operation time-out; a server
// that does not say it, or may not, leaves err as it is.
func (s *Session) foreign(ctx context.Context, spec *Spec, err error) error {
	if !errors.Is(err, lock.ErrForeignKey) || ctx.Err() != nil || s.begin() != nil {
		return err
	}
	defer s.work.Done()
	kind, _, failed := await(ctx, s, s.OpTimeout/4, func(ctx context.Context) (string, error) {
		return s.rdb.Do(ctx, s.rdb.B().Type().Key(spec.Keys.Lock).Build()).ToString()
	}, nil)
	if text, ok := kinds[kind]; ok && failed == nil {
		return final{fmt.Errorf("%w: %s", lock.ErrForeignKey, text)}
	}
	return err
}

// isReadOnly reports whether err says that a replica was asked.
func isReadOnly(err error) bool {
	var reply *rueidis.RedisError
	return errors.As(err, &reply) && strings.Contains(reply.Error(), "READONLY")
}

// unavailable is what a call ends with that Redis gave no answer to.
type unavailable struct {
	at    string        // the server's address; "" if there are several
	quiet time.Duration // since its first question without an answer; 0 if that is not known
	err   error         // what came instead; nil if nothing came
}

// silentFor is the error of a call whose questions had no answer for d, if that is
// known; err is what came instead, or the end of the caller's wait.
func (s *Session) silentFor(d time.Duration, err error) error {
	var told unavailable
	if errors.As(err, &told) {
		err = told.err
	}
	if err == context.Canceled || err == context.DeadlineExceeded {
		err = nil
	}
	return unavailable{s.address(), d, err}
}

// address returns that of the server, or "" if there are several.
func (s *Session) address() string {
	if s.sliced {
		return ""
	}
	nodes := s.rdb.Nodes()
	for addr := range nodes {
		if len(nodes) == 1 {
			return addr
		}
	}
	return ""
}

// Error says for how long, and what came instead.
func (e unavailable) Error() string {
	text := "Redis"
	if e.at != "" {
		text += " at " + e.at
	}
	text += " has given no answer"
	var late noAnswer
	if errors.As(e.err, &late) {
		e.quiet = max(e.quiet, late.after)
	}
	if e.quiet > 0 {
		text += " for " + brief(e.quiet)
	}
	if e.err != nil && e.err != error(late) {
		text += ": " + e.err.Error()
	}
	return text
}

// Unwrap returns the sentinel, and what came instead of an answer.
func (e unavailable) Unwrap() []error {
	if e.err == nil {
		return []error{lock.ErrUnavailable}
	}
	return []error{lock.ErrUnavailable, e.err}
}

// brief is d for people.
func brief(d time.Duration) string {
	for _, unit := range []time.Duration{time.Second, time.Millisecond} {
		if d >= unit {
			return d.Round(unit / 10).String()
		}
	}
	return d.String()
}

// final is an error that is ours: no command of it is under way, and asking
// again would not help.
type final struct{ error }

func (e final) Unwrap() error { return e.error }

// tooLate is what a grant fails with that outlived its lease on the way.
type tooLate struct{ lease, took time.Duration }

func (e tooLate) Error() string {
	return fmt.Sprintf("granted, but the answer took %v and the lease is %v", e.took, e.lease)
}

// waited is what a wait fails with that its own limit ended.
type waited struct {
	limit time.Duration
	last  error // what it failed with else: no answer of Redis, or only the end of the limit
}

func (e waited) Error() string {
	text := fmt.Sprintf("%v: waited for %v", lock.ErrNotAcquired, e.limit)
	if e.last != context.DeadlineExceeded {
		text += fmt.Sprintf(": %v", e.last)
	}
	return text
}

// Unwrap leaves out the end of a context that is none of the caller's.
func (e waited) Unwrap() []error {
	if e.last == context.DeadlineExceeded {
		return []error{lock.ErrNotAcquired, os.ErrDeadlineExceeded}
	}
	return []error{lock.ErrNotAcquired, os.ErrDeadlineExceeded, e.last}
}

func (e waited) Timeout() bool { return true }

// noAnswer is what a call fails with when the operation time-out ends it.
type noAnswer struct{ after time.Duration }

// Error says how long was waited.
func (e noAnswer) Error() string { return fmt.Sprintf("no answer from Redis within %v", e.after) }

// Timeout reports true, as for any time-out.
func (e noAnswer) Timeout() bool { return true }

// Is makes it match os.ErrDeadlineExceeded, as time-outs of connections do.
func (e noAnswer) Is(target error) bool { return target == os.ErrDeadlineExceeded }

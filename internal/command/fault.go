package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// Final is an error of the library's own: no command of it is under way, and asking again
// would not help. [retry.FaultOf] knows it, and each other error that has a method Final.
type Final struct{ Err error }

func (e Final) Error() string { return e.Err.Error() }

// Unwrap returns the error.
func (e Final) Unwrap() error { return e.Err }

// Final says that it is one.
func (e Final) Final() {}

// resentAfter is how long rueidis waits for replies on a connection whose ConnLifetime is over, before it closes it.
const resentAfter = time.Second

// Resent reports whether a command whose reply took so long may have been sent twice. When a connection comes to the end
// of its ClientOption.ConnLifetime, rueidis closes it, and sends by the next one, without a word, what has had no reply. The first
// copy may have been executed, or may be yet. No one can see whether the application set that option.
func Resent(took time.Duration) bool { return took >= resentAfter }

// DetectClosed returns err, with which a command that rdb sent failed, or [retry.Closed] if the application has closed rdb. The library
// closes a single connection, too, when Sentinels or a cluster name another server: then rdb is well, but what is under
// way on that connection fails with the same rueidis.ErrClosing. So DetectClosed asks once more, which goes to the server of now.
//
// If rdb failed to connect before, nothing shows that it was closed: the library keeps the error of the latest failed dial in the state of
// ErrClosing, says it once more, and then connects again.
func DetectClosed(ctx context.Context, rdb rueidis.Client, err error) error {
	if !errors.Is(err, rueidis.ErrClosing) {
		return err
	}
	if again := rdb.Do(ctx, rdb.B().Ping().Build()).Error(); errors.Is(again, rueidis.ErrClosing) {
		return retry.Closed{Err: err}
	}
	return err
}

// Foreign returns err, or the error for a key that holds something else if that is the verdict of a script.
func Foreign(v luascripts.Verdict, err error) error {
	if err == nil && v == luascripts.Foreign {
		return Final{lock.ErrWrongType}
	}
	return err
}

// Explain returns err, with which a command failed, as callers get it: with the sentinel of
// package lock that says what is wrong, and with advice.
func (s *Sender) Explain(err error) error {
	err = luascripts.Discreet(err)
	if err == nil || errors.Is(err, lock.ErrUnavailable) {
		return err // an earlier Explain made it
	}
	switch f := retry.FaultOf(err); {
	case f.Denied:
		return Refusal(s.Address(), s.User, err)
	case f.Is == lock.ErrUnavailable && IsReadOnly(err):
		return s.Unavailable(0, fmt.Errorf("server is a read-only replica: %w", err))
	case f.Is == lock.ErrUnavailable:
		return s.Unavailable(0, err)
	case f.Is != nil && !errors.Is(err, f.Is):
		return fmt.Errorf("%w: %w", f.Is, err)
	}
	return err
}

// Abandoned returns the error of a command for whose reply the caller did not wait, as err says. The
// end of the caller's context stays as it is: a command that is merely in flight then is no fault of
// Redis. Any other err, such as NoReply, becomes what Explain makes of it.
func (s *Sender) Abandoned(err error) error {
	if err == context.Canceled || err == context.DeadlineExceeded {
		return err
	}
	return s.Explain(err)
}

// Failed returns the error of a call that began at began and waits for nothing except its own
// command, which failed with err.
func (s *Sender) Failed(ctx context.Context, began time.Time, err error) error {
	if err != nil && err == ctx.Err() {
		return fmt.Errorf("%w: no reply from Redis after %s", err, Brief(max(time.Since(began), 1)))
	}
	return s.Explain(err)
}

// MayPass reports whether a command that failed with err is worth another attempt by a call
// that has little time. A server that turned out to be a replica stays one, unless a Sentinel
// or a cluster says where the master is.
func (s *Sender) MayPass(err error) bool {
	return retry.FaultOf(err).Retries() && !(IsReadOnly(err) && s.rdb.Mode() == rueidis.ClientModeStandalone)
}

// IsReadOnly reports whether err says that a replica was asked.
func IsReadOnly(err error) bool {
	var reply *rueidis.RedisError
	return errors.As(err, &reply) && strings.Contains(reply.Error(), "READONLY")
}

// Address returns the address of the server, or "" if there are several.
func (s *Sender) Address() string {
	if s.rdb.Mode() == rueidis.ClientModeCluster {
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

// unavailable is the error of a call that Redis did not serve: there was no reply, or one that passes, such as LOADING.
type unavailable struct {
	at    string        // the server's address; "" if there are several
	quiet time.Duration // since its first request without a reply; 0 if that is not known
	err   error         // what came instead; nil if nothing came
}

// Unavailable returns the error of a call whose requests had no reply for d; 0 if that is not
// known. err is what came instead, or the end of the caller's wait. It matches
// lock.ErrUnavailable.
func (s *Sender) Unavailable(d time.Duration, err error) error {
	var told unavailable
	if errors.As(err, &told) {
		err = told.err
	}
	if err == context.Canceled || err == context.DeadlineExceeded {
		err = nil
	}
	return unavailable{s.Address(), d, err}
}

// Error says whether Redis replied, for how long it has not served the call, and what came instead.
func (e unavailable) Error() string {
	text := "Redis"
	if e.at != "" {
		text += " at " + e.at
	}
	var late NoReply
	if errors.As(e.err, &late) {
		e.quiet = max(e.quiet, late.After)
	}
	switch replied := late.After == 0 && errors.As(e.err, new(*rueidis.RedisError)); {
	case replied && e.quiet > 0:
		text += " has been unable to serve this for " + Brief(e.quiet)
	case replied:
		text += " cannot serve this now"
	case e.quiet > 0:
		text += " has not responded for " + Brief(e.quiet)
	default:
		text += " does not respond"
	}
	switch _, alone := e.err.(NoReply); {
	case late.before != nil:
		text += ": " + late.before.Error()
	case e.err != nil && !alone:
		text += ": " + e.err.Error()
	}
	return text
}

// Unwrap returns the sentinel, and what came instead of a reply.
func (e unavailable) Unwrap() []error {
	if e.err == nil {
		return []error{lock.ErrUnavailable}
	}
	return []error{lock.ErrUnavailable, e.err}
}

// Brief is d for people.
func Brief(d time.Duration) string {
	for _, unit := range []time.Duration{time.Second, time.Millisecond} {
		if d >= unit {
			return d.Round(unit / 10).String()
		}
	}
	return d.String()
}

// NoReply is the error of a call that the operation timeout ended.
type NoReply struct {
	After  time.Duration
	before error // what came to an earlier copy of the command instead of a reply; nil if nothing did
}

// Error says how long the call waited.
func (e NoReply) Error() string { return fmt.Sprintf("no reply from Redis within %v", e.After) }

// Timeout reports true, as for any timeout.
func (e NoReply) Timeout() bool { return true }

// Is makes it match os.ErrDeadlineExceeded, as timeouts of connections do.
func (e NoReply) Is(target error) bool { return target == os.ErrDeadlineExceeded }

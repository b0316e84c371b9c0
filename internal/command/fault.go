package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/internal/mask"
	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// Final is an error of this module: none of its commands is in flight, and a retry would not help.
// [retry.FaultOf] recognizes it, and every other error with a method Final.
type Final struct{ Err error }

func (e Final) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e Final) Unwrap() error { return e.Err }

// Final marks the error as final.
func (e Final) Final() {}

// resentAfter is how long rueidis waits for replies on a connection past its ConnLifetime, before it
// closes the connection.
const resentAfter = time.Second

// Resent reports whether a command whose reply took that long may have been sent twice. At the end of
// ClientOption.ConnLifetime, rueidis closes the connection and resends the commands without a reply
// on the next one. The first copy may have been executed, or may still be. Whether the application
// set that option is not visible.
func Resent(took time.Duration) bool { return took >= resentAfter }

// DetectClosed returns [retry.Closed] if err, from a command that rdb sent, means that the
// application closed rdb. Otherwise it returns err. rueidis also closes a single connection when
// Sentinel or a cluster reports another server. Commands in flight then fail with the same
// rueidis.ErrClosing, although rdb works. DetectClosed therefore sends a PING, which goes to the
// current server.
//
// If the last dial of rdb failed, DetectClosed does not detect that rdb is closed. rueidis returns
// the dial error once instead of ErrClosing, and then connects again.
func DetectClosed(ctx context.Context, rdb rueidis.Client, err error) error {
	if !errors.Is(err, rueidis.ErrClosing) {
		return err
	}
	if again := rdb.Do(ctx, rdb.B().Ping().Build()).Error(); errors.Is(again, rueidis.ErrClosing) {
		return retry.Closed{Err: err}
	}
	return err
}

// Foreign returns the error for a key of the wrong type if v is the verdict Foreign, and otherwise
// err.
func Foreign(v luascripts.Verdict, err error) error {
	if err == nil && v == luascripts.Foreign {
		return Final{lock.ErrWrongType}
	}
	return err
}

// Over reports whether ctx is canceled. rueidis may report the deadline of ctx before ctx itself
// does.
func Over(ctx context.Context) bool {
	deadline, limited := ctx.Deadline()
	return ctx.Err() != nil || limited && !time.Now().Before(deadline)
}

// Settle waits until ctx is canceled if its deadline has passed: rueidis may report the deadline before
// ctx does. If the wall clock was set forward, ctx can be much later than its deadline, so Settle gives
// up after a second.
func Settle(ctx context.Context) {
	if Over(ctx) {
		Sleep(ctx, time.Second)
	}
}

// ErrOf returns the error of ctx, whose Done channel is closed. It is never nil, which would count as
// a reply: a context that its framework reuses for another request may have no error any more. It can be
// compared, whatever the type of ctx.
func ErrOf(ctx context.Context) error {
	// mutant: operand 1: Comparable is false for nil, too, but does not document it
	if err := ctx.Err(); err != nil && reflect.ValueOf(err).Comparable() {
		return err
	}
	return context.Canceled
}

// Refused reports whether err means that the server does not accept the user, or that the user lacks
// a permission.
func Refused(err error) bool { return retry.FaultOf(err).Denied }

// RefusedKey reports whether err means that the user may run the command, but not on this key.
func RefusedKey(err error) bool {
	if !Refused(err) {
		return false
	}
	text := err.Error()
	// Redis checks the command first. The name of the user can have the other words.
	return !strings.Contains(text, " to run ") && !strings.Contains(text, "channel") && (strings.Contains(text, "a key") || strings.Contains(text, "the keys"))
}

// Refusal adds advice to err, which must be an error for which Refused returns true. addr and user
// are "" if unknown.
func Refusal(addr, user string, err error) error {
	server := "Redis"
	if addr != "" {
		server += " at " + addr
	}
	if user != "" {
		server += fmt.Sprintf(", user %q", user)
	}
	advice := `grant the permissions that docs/operate/security.md lists under "Permissions"`
	switch text := err.Error(); {
	case strings.Contains(text, "NOAUTH"):
		advice = "the server requires a password: set one, as in redis://user:password@host:port"
	case strings.Contains(text, "WRONGPASS"), strings.Contains(text, "invalid password"):
		advice = "check the user and the password; before a password without a user, a URL has a colon, as in redis://:password@host:port"
	}
	return fmt.Errorf("%s: %w (%s)", server, err, advice)
}

// Explain returns the error that callers get for err, with which a command failed: it adds the
// sentinel of package lock, and advice.
func (s *Sender) Explain(err error) error {
	if err == nil {
		return nil
	}
	err = luascripts.Discreet(err)
	if errors.Is(err, lock.ErrUnavailable) || errors.As(err, new(Canceled)) {
		return err // it was explained before
	}
	switch f := retry.FaultOf(err); {
	case f.Denied:
		return Refusal(s.Address(), s.User, err)
	case f.Is == lock.ErrUnavailable && IsReadOnly(err): // mutant: operand 1: READONLY always passes
		if s.Redis.Mode() == rueidis.ClientModeStandalone { // other clients find the new primary themselves
			return s.Unavailable(0, fmt.Errorf("server is a read-only replica; connect to the primary, or via Sentinel (?master_set=NAME): %w", err))
		}
		return s.Unavailable(0, fmt.Errorf("server is a read-only replica: %w", err))
	case f.Is == lock.ErrUnavailable:
		return s.Unavailable(0, err)
	case f.Is != nil && !errors.Is(err, f.Is): // mutant: always, operand 1, operand 2: text
		return fmt.Errorf("%w: %w", f.Is, err)
	}
	return err
}

// Failed returns the error of a call that began at began, waits only for its own command, and failed
// with err. ctx is the context of the call. Errors such as NoReply are explained.
func (s *Sender) Failed(ctx context.Context, began time.Time, err error) error {
	return Interrupted(ctx, s.Unanswered(ctx, began, err))
}

// Unanswered is like Failed, for one of several commands of a call that waits until ctx is canceled.
// If the wait ended because ctx was canceled, the result is Canceled: a command that is merely in
// flight does not mean that Redis is unavailable.
func (s *Sender) Unanswered(ctx context.Context, began time.Time, err error) error {
	if err == ErrOf(ctx) {
		return Ended(ctx, max(time.Since(began), 1))
	}
	return s.Explain(err)
}

// Interrupted returns the error of a call that failed with last. If the context of the call is
// canceled, and that ended the call, the error matches ctx.Err() and the context's cause. It also
// matches lock.ErrNotAcquired or lock.ErrUnavailable if last does.
func Interrupted(ctx context.Context, last error) error {
	if ctx.Err() == nil {
		return last
	}
	ended := Ended(ctx, 0)
	switch {
	case errors.Unwrap(last) == lock.ErrNotAcquired: // it says why
		return fmt.Errorf("%w: %w", last, ended)
	case errors.Is(last, lock.ErrNotAcquired):
		return fmt.Errorf("%w: %w", lock.ErrNotAcquired, ended)
	case errors.Is(last, lock.ErrUnavailable) && !errors.As(last, new(Canceled)):
		return fmt.Errorf("%w: %w", ended, last)
	case last == ErrOf(ctx):
		return ended
	}
	if earlier, ok := last.(Canceled); ok { // of a context that ended earlier, or of this one
		ended.For = earlier.For
		return ended
	}
	return last
}

// Canceled is the error of a call whose context was canceled.
type Canceled struct {
	Err error         // of the context, with the cause of the cancellation
	For time.Duration // how long the command of the call had no reply; 0 if none was in flight
}

// Ended returns the error of a call whose context is ctx, which is canceled. quiet is how long the
// command of the call had no reply; 0 if none was in flight.
func Ended(ctx context.Context, quiet time.Duration) Canceled {
	return Canceled{mask.Canceled(ctx, lock.ErrNotAcquired, lock.ErrUnavailable), quiet} // the cause may be the error of another call
}

// Error reports how long there was no reply.
func (e Canceled) Error() string {
	if e.For == 0 {
		return e.Err.Error()
	}
	return fmt.Sprintf("%v: no reply from Redis after %s", e.Err, Brief(e.For))
}

// Unwrap returns Err.
func (e Canceled) Unwrap() error { return e.Err }

// MayPass reports whether a call with little time should retry a command that failed with err. A
// read-only replica is worth a retry only if Sentinel or a cluster can name the new primary.
func (s *Sender) MayPass(err error) bool {
	return retry.FaultOf(err).Retries() && !(IsReadOnly(err) && s.Redis.Mode() == rueidis.ClientModeStandalone)
}

// IsReadOnly reports whether err means that the server is a read-only replica.
func IsReadOnly(err error) bool {
	var reply *rueidis.RedisError
	return errors.As(err, &reply) && strings.Contains(reply.Error(), "READONLY")
}

// Address returns the address of the server, or "" if there are several.
func (s *Sender) Address() string {
	if s.Redis.Mode() == rueidis.ClientModeCluster {
		return ""
	}
	nodes := s.Redis.Nodes()
	for addr := range nodes {
		if len(nodes) == 1 {
			return addr
		}
	}
	return ""
}

// unavailable is the error of a call that Redis did not serve: it had no reply, or only a temporary
// error such as LOADING.
type unavailable struct {
	at    string        // the server's address; "" if there are several
	quiet time.Duration // the time since the first request without a reply; 0 if unknown
	err   error         // the last error; nil if there is none
}

// Unavailable returns the error of a call whose requests had no reply for d; d is 0 if that is
// unknown. err is the last error, or the end of the caller's wait. The result matches
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

// Error reports whether Redis responded, how long it has not served the call, and the last error.
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

// Unwrap returns the sentinel and the last error.
func (e unavailable) Unwrap() []error {
	if e.err == nil {
		return []error{lock.ErrUnavailable}
	}
	return []error{lock.ErrUnavailable, e.err}
}

// Brief formats d with few digits.
func Brief(d time.Duration) string {
	for _, unit := range []time.Duration{time.Second, time.Millisecond} {
		if d >= unit {
			return d.Round(unit / 10).String()
		}
	}
	return d.String()
}

// NoReply is the error of a call that timed out.
type NoReply struct {
	After  time.Duration
	before error // the error of an earlier copy of the command; nil if there is none
}

// Error reports how long the call waited.
func (e NoReply) Error() string { return fmt.Sprintf("no reply from Redis within %v", e.After) }

// Timeout reports true, as for any timeout.
func (e NoReply) Timeout() bool { return true }

// Is reports a match for os.ErrDeadlineExceeded, as connection timeouts do.
func (e NoReply) Is(target error) bool { return target == os.ErrDeadlineExceeded }

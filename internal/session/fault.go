package session

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"time"

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
	if reply, ok := rueidis.IsRedisErr(err); ok {
		return fault{again: willPass(reply.Error())}
	}
	switch {
	case errors.As(err, &sure), errors.As(err, new(tooLate)):
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

// passing are the error replies of a server that will take the same command
// later. Our scripts give them before their first write or not at all.
var passing = map[string]bool{
	"LOADING": true, "TRYAGAIN": true, "CLUSTERDOWN": true, "MASTERDOWN": true,
	"READONLY": true, "BUSY": true, "MOVED": true, "ASK": true,
}

// willPass reports whether reply has one of those codes. It need not be the
// first word: some servers put their own before an error inside a script, and
// those before Redis 7 keep the dash by which the protocol marks an error.
func willPass(reply string) bool {
	for word := range strings.FieldsSeq(reply) {
		if passing[strings.TrimPrefix(word, "-")] {
			return true
		}
	}
	return false
}

// readable gives errors from Redis the sentinel that callers look for.
func readable(err error) error {
	if reply, ok := rueidis.IsRedisErr(err); ok && strings.Contains(reply.Error(), "WRONGTYPE") {
		return fmt.Errorf("%w: %w", lock.ErrForeignKey, err)
	}
	if errors.As(err, new(*luascripts.WaitError)) {
		return fmt.Errorf("%w: %w", lock.ErrReplicas, err)
	}
	return err
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
		text += fmt.Sprintf(" (before that: %v)", e.last)
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

// backoff is the delay before the next try: it doubles from 10 ms to most, and
// a random part keeps clients from coming back together.
type backoff struct{ last, most time.Duration }

func (b *backoff) next() time.Duration {
	b.last = min(max(2*b.last, 10*time.Millisecond), b.most)
	return b.last/2 + rand.N(b.last/2+1)
}

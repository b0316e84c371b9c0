package ratelimit

import (
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/luascripts"
)

// Never is the RetryAfter of what cannot be taken at all: more than a Burst at once.
const Never = luascripts.Never

// Decision is the answer of a limiter: what CL.THROTTLE gives, in durations.
type Decision struct {
	OK         bool          // units were taken; of a Peek, one could be
	Taken      int64         // how many
	Remaining  int64         // how many are left at once
	RetryAfter time.Duration // not OK: after what time the least that was asked for can be had if nobody takes it before; or Never
	ResetAfter time.Duration // after what time everything is as if nothing had been taken
	Limit      Limit         // the one of the limits that has the least left

	// Err is what Redis failed with where the Policy decided instead. Remaining, RetryAfter and ResetAfter
	// then say what this process knows, which with Open is nothing.
	Err error

	at int64  // of a Limiter: when the units were taken, in µs by the server's clock; 0 if it was not asked
	id string // of a Window: by which call the units were taken
}

// ErrLimited: the units cannot be had in time. The error is also a [*LimitedError].
var ErrLimited = errors.New("rate limited")

// LimitedError says after what time the units could be had. It matches [ErrLimited].
type LimitedError struct {
	RetryAfter time.Duration // or Never
}

// Error says when to come again.
func (e *LimitedError) Error() string {
	if e.RetryAfter == Never {
		return fmt.Sprintf("%v: more than the burst cannot be taken at once", ErrLimited)
	}
	return fmt.Sprintf("%v: not before %v", ErrLimited, e.RetryAfter)
}

// Is reports whether target is [ErrLimited].
func (e *LimitedError) Is(target error) bool { return target == ErrLimited }

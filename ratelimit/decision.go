package ratelimit

import (
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/luascripts"
)

// Never is the RetryAfter of a call for more than a Burst, which no wait makes possible.
const Never = luascripts.Never

// A Decision is the answer of a limiter. It has the fields of CL.THROTTLE, as durations.
type Decision struct {
	OK         bool          // units were taken; for Peek, a unit could be taken
	Taken      int64         // the number of units taken
	Remaining  int64         // the number of units that can be taken at once
	RetryAfter time.Duration // not OK: the time until the least that was asked for is there, if no other call takes it before; or Never
	ResetAfter time.Duration // the time until the key is as if no unit had been taken
	Limit      Limit         // the limit that has the least left; not OK: the limit that refused

	// Err is the error of Redis if the Policy decided instead. Remaining, RetryAfter and ResetAfter
	// then say what this process knows, which is nothing with Open.
	Err error

	left int64         // the units that Limit has left, which can be more than Remaining
	next time.Duration // the time until Limit has one unit more; 0 if it has all
	at   int64         // of a Limiter: when the units were taken, in µs by the server's clock; 0 if the server was not asked
	id   string        // of a RedissonLimiter: the call that took the units
}

// ErrLimited: the units are not there in time. The error is also a [*LimitedError].
var ErrLimited = errors.New("rate limited")

// A LimitedError has the time after which the units could be taken. It matches [ErrLimited].
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

package ratelimit

import (
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-go/leasehold/luascripts"
)

// Never is the RetryAfter of a call for more than a Burst, which can never succeed. While Redis is
// unavailable, [FailLocal] also returns it for more than the share of the process.
const Never = luascripts.Never

// A Decision is the result of a limiter. It has the fields of CL.THROTTLE, as durations.
type Decision struct {
	OK         bool          // permits were taken; for Peek, a permit could be taken
	Taken      int64         // number of permits taken
	Remaining  int64         // number of permits that can be taken now
	RetryAfter time.Duration // if not OK: time until the call could succeed if no other call does before; or Never
	ResetAfter time.Duration // time until the key has its full quota again
	Limit      Limit         // the limit with the least remaining; if not OK, the limit that rejected the call

	// Err is the error of Redis if the Policy decided instead. Remaining, RetryAfter and ResetAfter
	// then have what this process has counted, which is nothing with FailOpen.
	Err error

	left int64         // permits left of Limit, which can be more than Remaining
	next time.Duration // time until Limit has one more permit; 0 if it is full
	at   int64         // of a Limiter: when the permits were taken, in µs by the server's clock; 0 if no command was sent
	id   string        // of a RedissonLimiter: the call that took the permits
}

// ErrLimited is returned when the permits are not available in time. The error is also a
// [*LimitedError].
var ErrLimited = errors.New("rate limited")

// A LimitedError has the time after which the permits could be taken. It matches [ErrLimited].
type LimitedError struct {
	RetryAfter time.Duration // or Never
}

// Error reports when to retry.
func (e *LimitedError) Error() string {
	if e.RetryAfter == Never {
		return fmt.Sprintf("%v: request exceeds the burst", ErrLimited)
	}
	return fmt.Sprintf("%v: retry after %v", ErrLimited, e.RetryAfter)
}

// Is reports whether target is [ErrLimited].
func (e *LimitedError) Is(target error) bool { return target == ErrLimited }

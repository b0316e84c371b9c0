package asynqlock_test

import (
	"context"
	"testing"

	"github.com/hibiken/asynq"
	"github.com/leasehold-go/leasehold/contrib/asynqlock"
	"github.com/leasehold-go/leasehold/internal/adaptertest"
	"github.com/leasehold-go/leasehold/lock"
)

// The outcome of a task after each fault, and whether it counts as a failure. asynq retries a task after any error.
func TestFaults(t *testing.T) {
	t.Parallel()
	adaptertest.Walk(t, map[string]string{
		adaptertest.Free:         "processed",
		adaptertest.Busy:         "not a failure: ErrNotAcquired",
		adaptertest.Refused:      "not a failure: ErrUnavailable",
		adaptertest.Unresponsive: "not a failure: ErrUnavailable",
		adaptertest.ReadOnly:     "not a failure: ErrUnavailable",
		adaptertest.Denied:       "a failure",
		adaptertest.WrongType:    "a failure: ErrWrongType",
		adaptertest.BadName:      "a failure: ErrBadName",
		adaptertest.Closed:       "not a failure: ErrClosed",
		adaptertest.Canceled:     "not a failure: Canceled",
		adaptertest.Deadline:     "not a failure: DeadlineExceeded",
	}, func(t *testing.T, c adaptertest.Call) string {
		seen := ""
		next := asynq.HandlerFunc(func(context.Context, *asynq.Task) error { seen = "processed"; return nil })
		err := asynqlock.Middleware(func(*asynq.Task) lock.Locker { return c.Lock })(next).ProcessTask(c.Ctx, asynq.NewTask("bill", nil))
		switch {
		case err == nil:
			return seen
		case asynqlock.IsFailure(err):
			return seen + "a failure" + adaptertest.Matches(err)
		}
		return seen + "not a failure" + adaptertest.Matches(err)
	})
}

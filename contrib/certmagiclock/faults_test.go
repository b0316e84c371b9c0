package certmagiclock_test

import (
	"testing"

	"github.com/leasehold-go/leasehold/contrib/certmagiclock"
	"github.com/leasehold-go/leasehold/internal/adaptertest"
	"github.com/leasehold-go/leasehold/lock"
)

// The result of TryLock after each fault. Only a busy lock is not an error.
func TestFaults(t *testing.T) {
	t.Parallel()
	adaptertest.Walk(t, map[string]string{
		adaptertest.Free:         "locked",
		adaptertest.Busy:         "not locked",
		adaptertest.Refused:      "error: ErrUnavailable",
		adaptertest.Unresponsive: "error: ErrUnavailable",
		adaptertest.ReadOnly:     "error: ErrUnavailable",
		adaptertest.Denied:       "error",
		adaptertest.WrongType:    "error: ErrWrongType",
		adaptertest.BadName:      "error: ErrBadName",
		adaptertest.Closed:       "error: ErrClosed",
		adaptertest.Canceled:     "error: Canceled",
		adaptertest.Deadline:     "error: DeadlineExceeded",
	}, func(t *testing.T, c adaptertest.Call) string {
		storage := certmagiclock.New(nil, func(string) lock.Locker { return c.Lock })
		ok, err := storage.TryLock(c.Ctx, "example.com")
		switch {
		case err != nil:
			return "error" + adaptertest.Matches(err)
		case !ok:
			return "not locked"
		}
		if err := storage.Unlock(c.Ctx, "example.com"); err != nil {
			return err.Error()
		}
		return "locked"
	})
}

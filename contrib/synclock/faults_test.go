package synclock_test

import (
	"testing"

	"github.com/leasehold-go/leasehold/contrib/synclock"
	"github.com/leasehold-go/leasehold/internal/adaptertest"
	"github.com/leasehold-go/leasehold/lock"
)

// Lock waits. If waiting does not help, it panics with the error.
func TestFaults(t *testing.T) {
	t.Parallel()
	adaptertest.Walk(t, map[string]string{
		adaptertest.Free:         "locked",
		adaptertest.Busy:         adaptertest.None, // it waits
		adaptertest.Refused:      adaptertest.None,
		adaptertest.Unresponsive: adaptertest.None,
		adaptertest.ReadOnly:     adaptertest.None,
		adaptertest.Denied:       "panic",
		adaptertest.WrongType:    "panic: ErrWrongType",
		adaptertest.BadName:      "panic: ErrBadName",
		adaptertest.Closed:       "panic: ErrClosed",
		adaptertest.Canceled:     adaptertest.None, // Lock has no context of its caller
		adaptertest.Deadline:     adaptertest.None,
	}, func(t *testing.T, c adaptertest.Call) (seen string) {
		defer func() {
			if err, ok := recover().(error); ok {
				seen = "panic" + adaptertest.Matches(err)
			}
		}()
		mu := synclock.New(c.Lock)
		mu.Lock()
		defer mu.Unlock()
		return "locked"
	})
	// With a limit, the panic contains the reason for the timeout.
	adaptertest.Walk(t, adaptertest.Only(map[string]string{
		adaptertest.Busy:    "panic: ErrNotAcquired",
		adaptertest.Refused: "panic: ErrUnavailable",
	}), func(t *testing.T, c adaptertest.Call) (seen string) {
		defer func() { seen = "panic" + adaptertest.Matches(recover().(error)) }()
		synclock.New(c.Client.NewLock("orders", lock.WithWait(adaptertest.ReplyTime))).Lock()
		return ""
	})
}

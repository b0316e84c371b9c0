package cronlock

import (
	"testing"

	"github.com/leasehold-go/leasehold/internal/adaptertest"
	"github.com/robfig/cron/v3"
)

// The outcome of a run after each fault, and what is reported.
func TestFaults(t *testing.T) {
	t.Parallel()
	adaptertest.Walk(t, map[string]string{
		adaptertest.Free:         "run",
		adaptertest.Busy:         "",
		adaptertest.Refused:      "reported: ErrUnavailable",
		adaptertest.Unresponsive: "reported: ErrUnavailable",
		adaptertest.ReadOnly:     "reported: ErrUnavailable",
		adaptertest.Denied:       "reported",
		adaptertest.WrongType:    "reported: ErrWrongType",
		adaptertest.BadName:      "reported: ErrBadName",
		adaptertest.Closed:       "reported: ErrClosed",
		adaptertest.Canceled:     adaptertest.None, // cron has no contexts
		adaptertest.Deadline:     adaptertest.None,
	}, func(t *testing.T, c adaptertest.Call) (seen string) {
		report := func(err error) { seen += "reported" + adaptertest.Matches(err) }
		cron.NewChain(SkipIfLocked(c.Lock, report)).Then(cron.FuncJob(func() { seen += "run" })).Run()
		return seen
	})
}

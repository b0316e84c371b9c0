package gocronlock

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/leasehold-go/leasehold/internal/adaptertest"
	"github.com/leasehold-go/leasehold/lock"
)

// The outcome of a run after each fault, and what a listener of gocron receives.
func TestFaults(t *testing.T) {
	t.Parallel()
	adaptertest.Walk(t, map[string]string{
		adaptertest.Free:         "run",
		adaptertest.Busy:         "skipped: ErrNotAcquired",
		adaptertest.Refused:      "skipped: ErrUnavailable",
		adaptertest.Unresponsive: "skipped: ErrUnavailable",
		adaptertest.ReadOnly:     "skipped: ErrUnavailable",
		adaptertest.Denied:       "skipped",
		adaptertest.WrongType:    "skipped: ErrWrongType",
		adaptertest.BadName:      "skipped: ErrBadName",
		adaptertest.Closed:       "skipped: ErrClosed",
		adaptertest.Canceled:     adaptertest.None, // the context of gocron does not cancel an attempt
		adaptertest.Deadline:     adaptertest.None,
	}, func(t *testing.T, c adaptertest.Call) string {
		s, err := gocron.NewScheduler(gocron.WithDistributedLocker(NewLocker(func(string) lock.Locker { return c.Lock })))
		if err != nil {
			t.Fatal(err)
		}
		var once sync.Once
		seen := make(chan string, 1)
		see := func(what string) { once.Do(func() { seen <- what }) }
		_, err = s.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()), gocron.NewTask(func() { see("run") }), gocron.WithName("invoices"),
			gocron.WithEventListeners(gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) { see("skipped" + adaptertest.Matches(err)) })))
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		defer s.Shutdown()
		return <-seen
	})
}

// An Elector reports a permanent error that keeps it from leading.
func TestFaults_elector(t *testing.T) {
	t.Parallel()
	adaptertest.Walk(t, adaptertest.Only(map[string]string{
		adaptertest.Free:      "leads",
		adaptertest.Busy:      "does not lead",
		adaptertest.Denied:    "does not lead, and says why",
		adaptertest.WrongType: "does not lead, and says why: ErrWrongType",
		adaptertest.BadName:   "does not lead, and says why: ErrBadName",
		adaptertest.Closed:    "does not lead, and says why: ErrClosed",
	}), func(t *testing.T, c adaptertest.Call) string {
		e := NewElector(c.Lock)
		defer e.Close()
		for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
			err := e.IsLeader(c.Ctx)
			switch {
			case err == nil:
				return "leads"
			case !errors.Is(err, ErrNotLeader):
				return err.Error()
			case err != ErrNotLeader:
				return "does not lead, and says why" + adaptertest.Matches(err)
			case c.Fault == adaptertest.Busy && time.Since(began) > adaptertest.ReplyTime:
				return "does not lead"
			}
		}
	})
}

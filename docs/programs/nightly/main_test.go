package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/docs/programs/programtest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	programtest.Child(func() error {
		at, err := time.ParseDuration(os.Getenv("AT"))
		if err != nil {
			return err
		}
		return run(os.Getenv("REDIS_URL"), at, programtest.Work)
	})
	goleak.VerifyTestMain(m, redistest.NotOurs())
}

// If the replica that runs the job dies, the next one runs it. The third finds the mark, and does nothing.
func TestNightly(t *testing.T) {
	s := redistest.Start(t)
	c, err := client.New(s.Client(t))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	l := c.NewLock("cron:invoices")
	waiters := func(n int) func() bool {
		return func() bool {
			state, err := l.Inspect(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return len(state.Waiters) == n && state.Locked() == (n > 0)
		}
	}
	now := time.Now().UTC()
	at := now.Sub(now.Truncate(24*time.Hour)) - 12*time.Hour // the night began twelve hours ago, and does not change during the test
	replica := func() *programtest.Process {
		return programtest.Start(t, "REDIS_URL="+s.URL(), "AT="+at.String())
	}

	first := replica()
	night := first.Await("working on ")
	second := replica()
	programtest.Until(t, "the second replica waits", waiters(1))
	first.Kill()
	pttl := s.Do(t, "PTTL", "cron:invoices")
	if left, err := pttl.ToInt64(); err != nil || left <= 0 || left > client.DefaultWatchdogTimeout.Milliseconds() {
		t.Errorf("the dead replica keeps the lock for %d ms, %v", left, err)
	}
	if mark := s.Do(t, "GET", "cron:invoices:done"); !mark.IsNil() {
		t.Error("a night that was not done has the mark")
	}
	s.Do(t, "PEXPIRE", "cron:invoices", "1") // as if the rest of the lease had passed
	if got := second.Await("working on "); got != night {
		t.Errorf("the second replica runs the job of %s, want %s", got, night)
	}
	third := replica()
	programtest.Until(t, "the third replica waits", waiters(1))
	second.Finish()
	programtest.Until(t, "both have released the lock", waiters(0))
	mark := s.Do(t, "GET", "cron:invoices:done")
	if got, err := mark.ToString(); err != nil || got != night {
		t.Errorf("the mark is %q, %v", got, err)
	}
	third.Terminate()
	if out := third.End(); strings.Contains(out, "working on") {
		t.Errorf("the third replica runs the job again: %s", out)
	}
	second.Terminate()
	second.End()
}

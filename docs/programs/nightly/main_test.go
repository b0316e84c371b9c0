package main

import (
	"context"
	"fmt"
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

// replicas returns a function that starts a replica, and one that waits until n replicas wait for the lock, or until it is free if n is 0.
func replicas(t *testing.T, s *redistest.Server) (start func() *programtest.Process, wait func(n int)) {
	t.Helper()
	c, err := client.New(s.Client(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	now := time.Now().UTC()
	at := now.Sub(now.Truncate(24*time.Hour)) - 12*time.Hour // the night began twelve hours ago, and does not change during the test
	start = func() *programtest.Process {
		return programtest.Start(t, "REDIS_URL="+s.URL(), "AT="+at.String())
	}
	wait = func(n int) {
		t.Helper()
		programtest.Until(t, fmt.Sprintf("%d replicas wait", n), func() bool {
			state, err := c.NewLock("cron:invoices").Inspect(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return len(state.Waiters) == n && state.Locked() == (n > 0)
		})
	}
	return start, wait
}

// mark returns the latest night that is done, or "".
func mark(t *testing.T, s *redistest.Server) string {
	t.Helper()
	reply := s.Do(t, "GET", "cron:invoices:done")
	if reply.IsNil() {
		return ""
	}
	night, err := reply.ToString()
	if err != nil {
		t.Fatal(err)
	}
	return night
}

// If the replica that runs the job dies, the next one runs it. The third finds the mark, and does nothing.
func TestNightly_killed(t *testing.T) {
	s := redistest.Start(t)
	start, wait := replicas(t, s)
	first := start()
	night := first.Await("working on ")
	second := start()
	wait(1)
	first.Kill()
	pttl := s.Do(t, "PTTL", "cron:invoices")
	if left, err := pttl.ToInt64(); err != nil || left <= 0 || left > client.DefaultWatchdogTimeout.Milliseconds() {
		t.Errorf("the dead replica keeps the lock for %d ms, %v", left, err)
	}
	if got := mark(t, s); got != "" {
		t.Errorf("a night that is not done has the mark %q", got)
	}
	s.Do(t, "PEXPIRE", "cron:invoices", "1") // as if the rest of the lease had passed
	if got := second.Await("working on "); got != night {
		t.Errorf("the second replica runs the job of %s, want %s", got, night)
	}
	third := start()
	wait(1)
	second.Finish()
	wait(0)
	if got := mark(t, s); got != night {
		t.Errorf("the mark is %q, want %q", got, night)
	}
	third.Terminate()
	if out := third.End(); strings.Contains(out, "working on") {
		t.Errorf("the third replica runs the job again: %s", out)
	}
	second.Terminate()
	second.End()
}

// If the replica that runs the job gets SIGTERM and stops early, the next one runs it at once.
func TestNightly_sigterm(t *testing.T) {
	s := redistest.Start(t)
	start, wait := replicas(t, s)
	first := start()
	first.Await("working on ")
	second := start()
	wait(1)
	first.Terminate()
	first.End()
	second.Await("working on ")
	if got := mark(t, s); got != "" {
		t.Errorf("a night that is not done has the mark %q", got)
	}
	second.Finish()
	wait(0)
	second.Terminate()
	second.End()
}

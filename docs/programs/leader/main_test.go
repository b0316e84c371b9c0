package main

import (
	"context"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/leasehold-go/leasehold/docs/programs/programtest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	programtest.Child(func() error {
		return run(os.Getenv("REDIS_URL"), "127.0.0.1:0", func(ctx context.Context) error { return programtest.Work(ctx, "bills") })
	})
	goleak.VerifyTestMain(m, redistest.NotOurs())
}

// After SIGTERM, a leader leads until its task has ended. Then the other candidate leads.
func TestLeader_sigterm(t *testing.T) {
	s := redistest.Start(t)
	browser := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(addr string) string {
		resp, err := browser.Get(addr + "/leader")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
	owner := func() string {
		keys := s.Do(t, "HKEYS", "billing")
		fields, err := keys.AsStrSlice()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(fields, " ")
	}

	one := programtest.Start(t, "REDIS_URL="+s.URL())
	first := one.Await("candidate ")
	one.Await("working on bills")
	two := programtest.Start(t, "REDIS_URL="+s.URL())
	second := two.Await("candidate ")
	programtest.Until(t, "the second process finds the leader", func() bool { return get(second) == first })

	leads := owner()
	one.Terminate()
	if got := owner(); got != leads || got == "" {
		t.Errorf("after SIGTERM, the owner is %q, want %q", got, leads)
	}
	if got := get(second); got != first {
		t.Errorf("after SIGTERM, the leader is %q, want %q", got, first)
	}
	one.Finish()
	if out := one.End(); strings.Contains(out, "canceled") {
		t.Errorf("SIGTERM ended the task: %s", out)
	}
	two.Await("working on bills")
	programtest.Until(t, "the second process leads", func() bool { return get(second) == second })

	two.Terminate()
	two.Finish()
	two.End()
	if got := owner(); got != "" {
		t.Errorf("when both have ended, the owner is %q", got)
	}
}

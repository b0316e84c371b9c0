package ratelimit_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/ratelimit"
	"github.com/redis/rueidis"
)

// withEach runs play as a user with the permissions of docs/operate/security.md, and expects no
// denial. It then runs play without each permission in turn, and expects a denial.
func withEach(t *testing.T, head string, play func(t *testing.T, rdb rueidis.Client)) {
	rights := redistest.RightsWithoutLocks(t, head)
	s := redistest.Start(t)
	single := func(o *rueidis.ClientOption) { o.ForceSingleClient = true }
	user := s.AddUser(t, "all", rights...)
	play(t, s.Client(t, user, single))
	idle := func(denied string) bool { return denied == "command ping" } // the client sends it on an idle connection, and needs no reply
	if denied := slices.DeleteFunc(s.Denied(t, "all"), idle); len(denied) > 0 {
		t.Errorf("the rights of docs/operate/security.md do not cover %q", denied)
	}
	for _, right := range rights {
		name := "no" + strings.NewReplacer("+", "-", "~", "-", "*", "", ":", "", "{", "", "&", "").Replace(right)
		less := slices.DeleteFunc(slices.Clone(rights), func(r string) bool { return r == right })
		s.Do(t, "SCRIPT", "FLUSH") // so that the client needs EVAL
		s.Do(t, "FLUSHALL")
		play(t, s.Client(t, s.AddUser(t, name, less...), single))
		if len(slices.DeleteFunc(s.Denied(t, name), idle)) == 0 {
			t.Errorf("docs/operate/security.md asks for %s, and nothing is denied without it", right)
		}
	}
}

func TestRights(t *testing.T) {
	t.Parallel()
	withEach(t, "NewRateLimiter", func(t *testing.T, rdb rueidis.Client) {
		l := ratelimit.On(command.New(rdb, command.Config{Prefix: "orders:", Timeout: time.Minute}), "api", closed, ratelimit.PerHour(2))
		d, _ := l.Take(t.Context(), "k", 1)
		_, _ = l.Reserve(t.Context(), "k", 1)
		_ = l.Refund(t.Context(), "k", d)
		_ = l.Reset(t.Context(), "k")
		_, err := l.Peek(t.Context(), "k")
		if err != nil && !strings.Contains(err.Error(), "NOPERM") && !strings.Contains(err.Error(), "security.md") && !strings.Contains(err.Error(), "permission") {
			t.Errorf("denied: %v", err)
		}
	})
}

package admin_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/lock"
)

// Latches are listed until they are released, and can be inspected until they are deleted. Wait groups are listed while they have active or
// lost workers. A worker that is force-unlocked is lost.
func TestLatchAndWaitGroup(t *testing.T) {
	everywhere(t, func(s *scene) {
		must := func(err error) {
			s.Helper()
			if err != nil {
				s.Fatal(err)
			}
		}
		for _, name := range []string{"done", "open", "deleted"} {
			_, err := s.c.NewLatch(name).TrySetCount(s.Context(), 2)
			must(err)
		}
		for range 2 {
			_, err := s.c.NewLatch("open").CountDown(s.Context())
			must(err)
		}
		must(s.c.NewLatch("deleted").Delete(s.Context()))
		s.do("SET", "counter", "5")
		s.do("HSET", "leasehold_latch:{counter}", "name", "bob")
		s.do("ZADD", "leasehold_crew:{ours}", "1", "x")
		waitGroup := s.client("importer").NewWaitGroup("a/b{c}d")
		first, err := waitGroup.Add(s.Context())
		must(err)
		second, err := waitGroup.Add(s.Context())
		must(err)
		third, err := waitGroup.Add(s.Context())
		must(err)
		must(third.Unlock(s.Context()))
		s.lock(s.c.NewLock("orders"))
		for _, test := range []struct {
			query admin.Query
			want  string
		}{
			{admin.Query{}, "a/b{c}d waitgroup 2 0|orders plain 1 0"},
			{admin.Query{Idle: true}, "a/b{c}d waitgroup 2 0|done latch 0 0|orders plain 1 0|ours waitgroup 0 0"},
			{admin.Query{Kind: admin.Plain, Idle: true}, "orders plain 1 0"},
			{admin.Query{Kind: admin.Latch}, "done latch 0 0"},
			{admin.Query{Kind: admin.Latch, Match: "o*"}, ""},
			{admin.Query{Kind: admin.WaitGroup, Match: "a*"}, "a/b{c}d waitgroup 2 0"},
			{admin.Query{Kind: admin.Semaphore}, ""},
		} {
			if got := strings.Join(s.list(test.query), "|"); got != test.want {
				s.Errorf("%+v: %s, want %s", test.query, got, test.want)
			}
		}
		for name, left := range map[string]int64{"done": 2, "open": 0} {
			l, err := s.admin.Inspect(s.Context(), name)
			if err != nil || l.Kind != admin.Latch || l.Left != left || l.Locked() {
				s.Errorf("%s: %+v, %v", name, l, err)
			}
		}
		l, err := s.admin.Inspect(s.Context(), "deleted")
		if err != nil || l.Kind != "" {
			s.Errorf("deleted: %+v, %v", l, err)
		}
		l, err = s.admin.Inspect(s.Context(), "done")
		must(err)
		found, err := s.admin.Keys(s.Context(), l)
		if err != nil || len(found) != 3 || found[0].Name != "done" || found[0].Type != "string" || found[1].Name != "leasehold_latch:{done}" || found[2].Name != "leasehold_latch_calls:{done}" {
			s.Errorf("%+v, %v", found, err)
		}
		if _, err := s.admin.ForceUnlock(s.Context(), "done", "", ""); !errors.Is(err, lock.ErrNotHeld) {
			s.Errorf("a latch, unlocked: %v", err)
		}
		if l, err := s.admin.Inspect(s.Context(), "counter"); err != nil || l.Kind == admin.Latch || l.Ambiguous == "" {
			s.Errorf("a number: %+v, %v", l, err)
		}

		u, err := s.admin.ForceUnlock(s.Context(), "a/b{c}d", first.Owner(), "it hangs")
		if err != nil || len(u.Holders) != 1 {
			s.Errorf("%+v, %v", u, err)
		}
		if err := first.Unlock(s.Context()); !errors.Is(err, lock.ErrNotHeld) {
			s.Errorf("what was taken: %v", err)
		}
		l, err = s.admin.Inspect(s.Context(), "a/b{c}d")
		if err != nil || l.Kind != admin.WaitGroup || l.Mode != lock.Worker || len(l.Holders) != 1 || l.Holders[0].Owner != second.Owner() || l.Holders[0].Client.Name != "importer" || l.Done != 1 || len(l.Lost) != 1 || l.Lost[0].Owner != first.Owner() || l.Lost[0].Client.Name != "importer" {
			s.Errorf("%+v, %v", l, err)
		}
		if found, err := s.admin.Keys(s.Context(), l); err != nil || len(found) < 1 || found[0].Name != "leasehold_crew:a/b{c}d:" || found[0].Type != "zset" {
			s.Errorf("%+v, %v", found, err)
		}
	})
}

// Inspect returns the leader value, and Keys its key.
func TestLeader(t *testing.T) {
	everywhere(t, func(s *scene) {
		e, stop := s.c.NewElection("billing"), make(chan struct{})
		done := make(chan error, 1)
		go func() {
			done <- e.Run(s.Context(), "http://a", func(context.Context) error { <-stop; return nil })
		}()
		for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
			l, err := s.admin.Inspect(s.Context(), "billing")
			if err == nil && l.Leader != nil && l.Leader.Value == "http://a" && l.Locked() {
				found, err := s.admin.Keys(s.Context(), l)
				if err != nil || !slices.ContainsFunc(found, func(k admin.Key) bool { return k.Name == "leasehold_leader:{billing}" }) {
					s.Errorf("%+v, %v", found, err)
				}
				break
			}
			if time.Now().After(end) {
				s.Fatalf("%+v, %v", l, err)
			}
		}
		close(stop)
		if err := <-done; err != nil {
			s.Error(err)
		}
		for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) { // a leader that cannot withdraw its value lets it expire
			if l, err := s.admin.Inspect(s.Context(), "billing"); err == nil && l.Leader == nil {
				break
			} else if time.Now().After(end) {
				s.Fatalf("nobody leads: %+v, %v", l, err)
			}
		}
	})
}

package admin_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/ratelimit"
	"github.com/redis/rueidis"
)

// look returns "name kind holding waiting" of each lock.
func (s *scene) look(survey *admin.Survey, limit time.Duration) (string, admin.Surveyed) {
	s.Helper()
	seen, err := survey.Look(s.Context(), limit)
	s.must(err)
	var all []string
	for _, l := range seen.Locks {
		all = append(all, fmt.Sprintf("%s %s %d %d", l.Name, l.Kind, l.Holding, l.Waiting))
	}
	return strings.Join(all, "|"), seen
}

// A survey of few keys has all locks and clients after each look.
func TestSurvey(t *testing.T) {
	everywhere(t, func(s *scene) {
		s.others()
		plain, fair := s.lock(s.c.NewLock("plain")), s.lock(s.c.NewFairLock("fair"))
		semaphore := s.c.NewSemaphore("permits", 3)
		permit := s.lock(semaphore)
		_, err := s.c.NewLatch("latch").TrySetCount(s.Context(), 2)
		s.must(err)
		worker, err := s.c.NewWaitGroup("group").Add(s.Context())
		s.must(err)
		survey := s.admin.Survey(admin.Query{Idle: true})
		const all = "fair fair 1 0|group waitgroup 1 0|latch latch 0 0|permits semaphore 1 0|plain plain 1 0"
		s.until("the survey has the client", func() bool {
			got, seen := s.look(survey, time.Minute)
			if got != all || !seen.Complete || seen.Scanned != 1 || seen.More {
				s.Fatalf("%s, complete: %v, scanned: %v", got, seen.Complete, seen.Scanned)
			}
			return len(seen.Clients) == 2 // s.others has one
		})
		for _, h := range []lock.Hold{plain, fair, permit} {
			s.must(h.Unlock(s.Context()))
		}
		s.must(worker.Unlock(s.Context()))
		if got, _ := s.look(survey, time.Minute); got != "latch latch 0 0" {
			s.Errorf("%s", got)
		}
	})
}

// After each look, a survey of many keys has the current state of what it has found so far. A released lock disappears, and reappears when it is
// held again.
func TestSurvey_parts(t *testing.T) {
	everywhere(t, func(s *scene) {
		var noise rueidis.Commands
		for i := range 5000 {
			noise = append(noise, s.rdb.B().Set().Key(fmt.Sprint("noise", i)).Value("x").Build())
		}
		for _, r := range s.rdb.DoMulti(s.Context(), noise...) {
			s.must(r.Error())
		}
		holds := make(map[string]lock.Hold)
		var all []string
		for i := range 20 {
			name := fmt.Sprintf("orders:%02d", i)
			holds[name] = s.lock(s.c.NewLock(name))
			all = append(all, name+" plain 1 0")
		}
		survey := s.admin.Survey(admin.Query{Idle: true})
		last, looks := 0, 0
		var known string
		for share := 0.0; ; looks++ {
			got, seen := s.look(survey, 0)
			if len(seen.Locks) < last || !seen.Complete && seen.Scanned <= share {
				s.Fatalf("after %d locks and %v: %s, %v", last, share, got, seen.Scanned)
			}
			last, share = len(seen.Locks), seen.Scanned
			if seen.Complete {
				if got != strings.Join(all, "|") {
					s.Fatalf("%s", got)
				}
				break
			}
		}
		if looks < 5 {
			s.Errorf("%d looks", looks)
		}
		known = "orders:07"
		s.must(holds[known].Unlock(s.Context()))
		if got, _ := s.look(survey, 0); strings.Contains(got, known) {
			s.Errorf("free: %s", got)
		}
		s.lock(s.client("second", client.WithLabel("zone=a")).NewLock(known))
		for range 2 { // whether or not the scan reaches it
			_, seen := s.look(survey, 0)
			found := false
			for _, l := range seen.Locks {
				found = found || l.Name == known && l.Holders[0].Owner != holds[known].Owner()
			}
			if !found {
				s.Errorf("held again: %+v", seen)
			}
		}
	})
}

// Keys without holders are as of the latest pass.
func TestSurvey_limits(t *testing.T) {
	everywhere(t, func(s *scene) {
		_, err := s.c.NewRateLimiter("api", ratelimit.FailClosed().After(patience), ratelimit.PerHour(10)).Take(s.Context(), "alice", 1)
		s.must(err)
		survey := s.admin.Survey(admin.Query{Kind: admin.RateLimit})
		if got, seen := s.look(survey, time.Minute); got != "api:alice ratelimit 0 0" || len(seen.Clients) > 0 {
			s.Errorf("%s, %+v", got, seen.Clients)
		}
		s.do("DEL", "api:alice")
		if got, _ := s.look(survey, time.Minute); got != "" {
			s.Errorf("%s", got)
		}
		if _, err := s.admin.Survey(admin.Query{Kind: "turnstile"}).Look(s.Context(), 0); err == nil || !strings.Contains(err.Error(), "turnstile") {
			s.Errorf("an unknown kind: %v", err)
		}
	})
}

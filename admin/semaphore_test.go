package admin_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// The audit record of a force-unlock is shown even if no permit is held any more.
func TestSemaphore_forcedAndIdle(t *testing.T) {
	everywhere(t, func(s *scene) {
		s.lock(s.c.NewSemaphore("gpus", 4))
		if _, err := s.admin.ForceUnlock(s.Context(), "gpus", "", "it hangs"); err != nil {
			s.Fatal(err)
		}
		l, err := s.admin.Inspect(s.Context(), "gpus")
		if err != nil || l.Kind != admin.Semaphore || l.Free != 4 || l.ForceUnlock == nil || l.ForceUnlock.Reason != "it hangs" {
			s.Errorf("%+v, %v", l, err)
		}
	})
}

// Semaphores are listed and inspected while they are in use, and a permit can be force-unlocked.
func TestSemaphore(t *testing.T) {
	everywhere(t, func(s *scene) {
		s.lock(s.c.NewLock("orders"))
		gpus := s.c.NewSemaphore("gpus", 4)
		two, one := s.lock(gpus.N(2)), s.lock(s.client("other").NewSemaphore("gpus", 4))
		s.lock(s.c.NewSemaphore("a/b{c}d", 2))
		s.do("SET", "counter", "5")
		s.do("ZADD", "some:timeout", "1", "x")
		s.do("ZADD", "{counter}:timeout", "1", "an expired permit of nobody")
		s.do("SET", "left", "0") // its holder and its waiter have died
		s.do("ZADD", "{left}:timeout", "1000", "expired permit 1")
		s.do("RPUSH", "leasehold_semaphore_queue:{left}", "018f0000-0000-7000-8000-000000000000:5:1")
		w, cancel := s.waits(s.client("third").NewSemaphore("gpus", 0).N(3), 1)
		defer cancel()
		_ = w
		for _, test := range []struct {
			query admin.Query
			want  string
		}{
			{admin.Query{}, "a/b{c}d semaphore 1 0|gpus semaphore 2 1|orders plain 1 0"},
			{admin.Query{Kind: admin.Semaphore}, "a/b{c}d semaphore 1 0|gpus semaphore 2 1"},
			{admin.Query{Match: "a*d"}, "a/b{c}d semaphore 1 0"},
			{admin.Query{Kind: admin.Plain}, "orders plain 1 0"},
		} {
			if got := strings.Join(s.list(test.query), "|"); got != test.want {
				s.Errorf("%+v: %s, want %s", test.query, got, test.want)
			}
		}
		l, err := s.admin.Inspect(s.Context(), "gpus")
		if err != nil || l.Kind != admin.Semaphore || l.Mode != lock.Permit || len(l.Holders) != 2 || l.Holders[0].Owner != two.Owner() || l.Holders[0].Count != 2 || l.Holders[0].Client.Name != "billing" || len(l.Waiters) != 1 || l.Waiters[0].Client.Name != "third" {
			s.Errorf("%+v, %v", l, err)
		}
		if l.Permits != 4 || l.Free != 1 {
			s.Errorf("%d of %d permits are free, want 1 of 4", l.Free, l.Permits)
		}
		found, err := s.admin.Keys(s.Context(), l)
		if err != nil || len(found) < 4 || found[0].Type != "string" || found[1].Name != "{gpus}:timeout" {
			s.Errorf("%+v, %v", found, err)
		}
		u, err := s.admin.ForceUnlock(s.Context(), "gpus", one.Owner(), "it hangs")
		if err != nil || len(u.Holders) != 1 {
			s.Errorf("%+v, %v", u, err)
		}
		if err := one.Unlock(s.Context()); !errors.Is(err, lock.ErrNotHeld) {
			s.Errorf("what was taken: %v", err)
		}
		if err := two.Err(); err != nil {
			s.Errorf("the other holder: %v", err)
		}
		s.do("ZADD", "{gpus}:timeout", "922337203685477", "\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10")
		if u, err := s.admin.ForceUnlock(s.Context(), "gpus", "0102030405060708090a0b0c0d0e0f10", ""); err != nil || len(u.Holders) != 1 {
			s.Errorf("Redisson's permit: %+v, %v", u, err)
		}
		if l, err := s.admin.Inspect(s.Context(), "left"); err != nil || l.Locked() || l.Kind != admin.Semaphore || len(l.Waiters) != 1 || l.Free != 1 || l.Permits != 1 {
			s.Errorf("of the dead: %+v, %v", l, err)
		}
	})
}

// A semaphore without holders is a plain number in Redis. Inspect shows it as a semaphore that may be a counter. A list omits it.
func TestSemaphore_idle(t *testing.T) {
	everywhere(t, func(s *scene) {
		if err := s.lock(s.c.NewSemaphore("gpus", 4)).Unlock(s.Context()); err != nil {
			s.Fatal(err)
		}
		l, err := s.admin.Inspect(s.Context(), "gpus")
		if err != nil || l.Kind != admin.Semaphore || l.Locked() || l.Permits != 4 || l.Free != 4 || l.Ambiguous == "" {
			s.Errorf("%+v, %v", l, err)
		}
		if got := s.list(admin.Query{}); len(got) > 0 {
			s.Errorf("the list has %q", got)
		}
		for _, value := range []string{"0", "-1", "4.5", "text", "2147483648000"} {
			s.do("SET", "other", value)
			if _, err := s.admin.Inspect(s.Context(), "other"); !errors.Is(err, lock.ErrWrongType) {
				s.Errorf("%s: %v", value, err)
			}
		}
	})
}

// A list reads several locks at a time if a pipeline cannot read them. Otherwise each of them would take a round trip.
func TestLocks_severalAtATime(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c, err := client.New(s.Client(t))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if _, err := c.NewSemaphore(fmt.Sprint("gpus:", i), 1).Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := c.NewWaitGroup(fmt.Sprint("jobs:", i)).Add(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := c.NewRedissonRateLimiter(fmt.Sprint("sms:", i)).Init(t.Context(), 10, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	wire := redistest.NewProxy(t, s.Addr())
	// A connection that has had only one command at a time would send the second one after the reply to the first.
	a, err := admin.New(s.Client(t, redistest.Via(wire), func(o *rueidis.ClientOption) { o.AlwaysPipelining = true }))
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []admin.Kind{admin.Semaphore, admin.WaitGroup, admin.RedissonRateLimit} {
		another := make(chan struct{})
		first, second := redistest.Once("EVALSHA", redistest.Action{HoldReply: another}), sync.OnceFunc(func() { close(another) })
		wire.OnRequest(func(req [][]byte) redistest.Action {
			act := first(req)
			if act == (redistest.Action{}) && string(req[0]) == "EVALSHA" {
				second()
			}
			return act
		})
		var names []string
		for l, err := range a.Locks(t.Context(), admin.Query{Kind: kind}) {
			if err != nil {
				t.Fatalf("%s: %v", kind, err)
			}
			names = append(names, l.Name)
		}
		if len(names) != 3 {
			t.Errorf("%s: %q", kind, names)
		}
		second()
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

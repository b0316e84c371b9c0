package admin_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/admin"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// watching is a Watch and the events that it has yielded so far.
type watching struct {
	*scene
	told chan admin.Event
	seen []string
}

func (s *scene) watch(names ...string) *watching {
	s.Helper()
	w := &watching{scene: s, told: make(chan admin.Event, 1000)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e, err := range s.admin.Watch(ctx, names...) {
			if err != nil {
				s.Error(err)
				continue
			}
			w.told <- e
		}
	}()
	s.Cleanup(func() {
		cancel()
		<-done
	})
	return w
}

// tells waits for an event of this type about this lock and this owner.
func (w *watching) tells(what admin.EventType, name, owner string) admin.Event {
	w.Helper()
	limit := time.After(patience)
	for {
		select {
		case e := <-w.told:
			w.seen = append(w.seen, fmt.Sprint(e.Type, " ", e.Lock.Name))
			if e.Type == what && e.Lock.Name == name && e.Owner == owner {
				return e
			}
		case <-limit:
			w.Fatalf("nothing says that %s was %s, but %q", name, what, w.seen)
		}
	}
}

func TestWatch(t *testing.T) {
	everywhere(t, func(s *scene) {
		first := s.lock(s.c.NewLock("plain"))
		w := s.watch("plain", "fair", "rw")
		w.tells(admin.Seen, "plain", first.Owner())
		w.tells(admin.Seen, "fair", "")
		w.tells(admin.Seen, "rw", "")
		second := s.client("second")
		for name, l := range map[string]lock.Locker{"plain": second.NewLock("plain"), "fair": second.NewFairLock("fair"), "rw": second.NewRWLock("rw").Write()} {
			held := first
			if name != "plain" {
				if name == "fair" {
					held = s.lock(s.c.NewFairLock(name))
				} else {
					held = s.lock(s.c.NewRWLock(name).Read())
				}
				w.tells(admin.Acquired, name, held.Owner())
			}
			next, _ := s.waits(l, 1)
			waiter := s.inspect(name).Waiters[0].Owner
			w.tells(admin.Queued, name, waiter)
			if err := held.Unlock(s.Context()); err != nil {
				s.Error(err)
			}
			w.tells(admin.Released, name, held.Owner())
			h := <-next
			e := w.tells(admin.Acquired, name, h.Owner())
			if e.Client.ID != second.ID() || e.Lock.Holding != 1 || time.Since(e.At).Abs() > time.Minute {
				s.Errorf("%+v", e)
			}
			w.tells(admin.Renewed, name, "")
			if _, err := s.admin.ForceUnlock(s.Context(), name, "", ""); err != nil {
				s.Error(err)
			}
			if e := w.tells(admin.ForceUnlocked, name, h.Owner()); e.Lock.ForceUnlock == nil {
				s.Errorf("%+v", e)
			}
		}
		s.do("HSET", "plain", redissons+":7", "1")
		s.do("PEXPIRE", "plain", "5000")
		w.tells(admin.Acquired, "plain", redissons+":7")
		w.tells(admin.Expired, "plain", redissons+":7")

		h := s.lock(s.c.NewLock("plain"))
		_, cancel := s.waits(second.NewLock("plain"), 1)
		owner := s.inspect("plain").Waiters[0].Owner
		w.tells(admin.Queued, "plain", owner)
		cancel()
		w.tells(admin.Dequeued, "plain", owner)
		if err := h.Unlock(s.Context()); err != nil {
			s.Error(err)
		}
	})
}

// A holder whose lease has expired did not release the lock, even if other holders still have a lease.
func TestWatch_expiredBesideOthers(t *testing.T) {
	everywhere(t, func(s *scene) {
		s.lock(s.c.NewSemaphore("gpus", 3))
		s.lock(s.c.NewRWLock("rw").Read())
		if _, err := s.c.NewWaitGroup("group").Add(s.Context()); err != nil {
			s.Fatal(err)
		}
		dead := map[string]string{"gpus": "0102030405060708090a0b0c0d0e0f10", "rw": redissons + ":7", "group": redissons + ":7"}
		watches := make(map[string]*watching)
		for name := range dead {
			watches[name] = s.watch(name)
			watches[name].tells(admin.Seen, name, s.inspect(name).Holders[0].Owner)
		}
		end := strconv.FormatInt(time.Now().Add(4*time.Second).UnixMilli(), 10) // the servers have the same clock
		s.do("ZADD", "{gpus}:timeout", end, "\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10")
		s.do("SET", "{rw}:"+redissons+":7:rwlock_timeout:1", "1", "PX", "4000")
		s.do("HSET", "rw", redissons+":7", "1")
		s.do("ZADD", "leasehold_crew:{group}", end, redissons+":7")
		for name, owner := range dead {
			e := watches[name].tells(admin.Acquired, name, owner)
			for _, h := range e.Lock.Holders {
				if own := e.Lock.HolderLease(h); (own <= 4*time.Second) != (h.Owner == owner) {
					s.Errorf("%s, %s: %v left of %v", name, h.Owner, own, e.Lock.Lease)
				}
			}
			watches[name].tells(admin.Expired, name, owner)
		}
	})
}

// A force-unlock removes the holders one by one. Each is reported as force-unlocked, even if Watch reads the lock in between.
func TestWatch_forceUnlockOfSeveral(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	sc := newScene(t, func() rueidis.Client { return s.Client(t) })
	sc.lock(sc.c.NewRWLock("rw").Read())
	sc.lock(sc.client("second").NewRWLock("rw").Read())
	holders := sc.inspect("rw").Holders
	w := sc.watch("rw")
	for _, h := range holders {
		w.tells(admin.Seen, "rw", h.Owner)
	}
	proxy, next := redistest.NewProxy(t, s.Addr()), make(chan struct{})
	proxy.OnRequest(func(req [][]byte) (act redistest.Action) {
		if slices.ContainsFunc(req, func(word []byte) bool { return string(word) == holders[1].Owner }) {
			act.HoldRequest = next
		}
		return act
	})
	a, err := admin.New(s.Client(t, redistest.Via(proxy)), admin.WithOpTimeout(patience))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := a.ForceUnlock(context.WithoutCancel(t.Context()), "rw", "", "")
		done <- err
	}()
	w.tells(admin.ForceUnlocked, "rw", holders[0].Owner)
	close(next)
	w.tells(admin.ForceUnlocked, "rw", holders[1].Owner)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A watcher does not count as a waiter, for which a holder would release a plain lock.
func TestWatch_countsAsNobody(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	sc := newScene(t, func() rueidis.Client { return s.Client(t) })
	w := sc.watch("orders")
	w.tells(admin.Seen, "orders", "")
	sc.until("it listens", func() bool {
		reply := s.Do(t, "PUBSUB", "NUMSUB", "redisson_lock__channel:{orders}", "leasehold_channel:{orders}")
		counts, err := reply.ToArray()
		if err != nil {
			t.Fatal(err)
		}
		n, _ := counts[1].ToInt64()
		m, _ := counts[3].ToInt64()
		return n == 1 && m == 1
	})
}

func TestWatch_fails(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	sc := newScene(t, func() rueidis.Client { return s.Client(t) })
	for want, names := range map[string][]string{
		"no lock to watch":      nil,
		"101 locks":             slices.Repeat([]string{"a"}, 101),
		lock.ErrBadName.Error(): {"a", "b{"},
	} {
		n := 0
		for _, err := range sc.admin.Watch(t.Context(), names...) {
			if n++; err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %s", err, want)
			}
		}
		if n != 1 {
			t.Errorf("%d errors", n)
		}
	}
	sc.do("SET", "text", "x")
	n := 0
	for _, err := range sc.admin.Watch(t.Context(), "text") { // Watch continues after the error
		if !errors.Is(err, lock.ErrWrongType) {
			t.Errorf("%v", err)
		}
		if n++; n == 2 {
			break
		}
	}
}

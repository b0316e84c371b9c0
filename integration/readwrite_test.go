//go:build linux

package integration_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/rwlock"
	"github.com/redis/rueidis"
)

// The leases of a read/write lock's owners are independent. One hash has all of them, and in other locks with this
// layout the lease of one owner became longer or shorter through the calls of others, readers were lost, and a writer
// that only continued to read blocked all others. Each test is one such scene.
type rwScene struct {
	*testing.T
	server *redistest.Server
	rdb    rueidis.Client
	a, b   *rwlock.Lock // of two clients
}

const rwName = "rw"

func newRWScene(t *testing.T, options ...client.Option) *rwScene {
	server := redistest.Start(t)
	rdb := server.Client(t)
	return &rwScene{T: t, server: server, rdb: rdb,
		a: ours(t, rdb, options...).NewRWLock(rwName),
		b: ours(t, server.Client(t), options...).NewRWLock(rwName),
	}
}

func (s *rwScene) lock(ctx context.Context, l lock.Locker) lock.Hold {
	s.Helper()
	h, err := l.Lock(ctx)
	if err != nil {
		s.Fatal(err)
	}
	return h
}

func (s *rwScene) unlock(holds ...lock.Hold) {
	s.Helper()
	for _, h := range holds {
		if err := h.Unlock(s.Context()); err != nil {
			s.Error(err)
		}
	}
}

// others checks what the other client can acquire now.
func (s *rwScene) others(reads, writes bool) {
	s.Helper()
	for _, test := range []struct {
		side string
		l    lock.Locker
		may  bool
	}{{"read", s.b.Read(), reads}, {"write", s.b.Write(), writes}} {
		h, err := test.l.TryLock(s.Context())
		switch {
		case err == nil:
			s.unlock(h)
			if !test.may {
				s.Errorf("another owner may %s", test.side)
			}
		case test.may || !errors.Is(err, lock.ErrNotAcquired):
			s.Errorf("another owner, %s: %v", test.side, err)
		}
	}
}

// held checks how the lock is held: its mode, and the count of the owner of h.
func (s *rwScene) held(mode lock.Mode, h lock.Hold, holds int) {
	s.Helper()
	state, err := s.b.Inspect(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	if state.Mode != mode || h != nil && state.HoldCount(h.Owner()) != holds {
		s.Errorf("the lock is %+v, want %q with %d holds", state, mode, holds)
	}
}

// ttl returns the lock's remaining lease time.
func (s *rwScene) ttl() time.Duration {
	s.Helper()
	ms, err := do(s.T, s.rdb, "PTTL", rwName).AsInt64()
	if err != nil {
		s.Fatal(err)
	}
	return time.Duration(ms) * time.Millisecond
}

// One reader has a long lease and another a short one, and neither unlocks. A writer enters when the long one expires,
// whichever came first.
func TestReadWrite_longestReadLease(t *testing.T) {
	const long, short = 3 * time.Second, time.Second
	for _, test := range []struct {
		name   string
		leases []time.Duration
	}{
		{"long, short", []time.Duration{long, short}},
		{"short, long", []time.Duration{short, long}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newRWScene(t)
			c := ours(t, s.rdb)
			var until time.Time
			for _, lease := range test.leases {
				h := s.lock(t.Context(), c.NewRWLock(rwName, lock.WithFixedLease(lease)).Read())
				if h.Until().After(until) {
					until = h.Until()
				}
			}
			h := s.lock(t.Context(), s.b.Write())
			if now := time.Now(); now.Before(until) {
				t.Errorf("the writer entered %v before a reader's Until", until.Sub(now))
			}
			s.unlock(h)
			noKeys(t, s.server)
		})
	}
}

// Fifty readers of one client hold for longer than a lease. All are renewed, and no writer enters; when they leave, one
// enters immediately.
func TestReadWrite_allReadersAreRenewed(t *testing.T) {
	const n, renewals = 50, 3 // renewals per lease
	var mu sync.Mutex
	renewed := make(map[string]int)
	s := newRWScene(t)
	l := ours(t, s.server.Client(t), client.WithWatchdogTimeout(6*time.Second), client.WithObserver(lock.Observer{
		Renewed: func(_ context.Context, e lock.Event) {
			mu.Lock()
			defer mu.Unlock()
			renewed[e.Owner]++
		},
		Lost: func(_ context.Context, e lock.Event) { t.Errorf("lost: %v", e.Err) },
	})).NewRWLock(rwName)
	var holds []lock.Hold
	owners := make(map[string]bool) // readers of one client can share an owner
	for range n {
		h := s.lock(t.Context(), l.Read())
		holds = append(holds, h)
		owners[h.Owner()] = true
	}
	until(t, func() bool {
		s.others(true, false)
		mu.Lock()
		defer mu.Unlock()
		for owner := range owners {
			if renewed[owner] < renewals {
				return t.Failed()
			}
		}
		return true
	})
	for _, h := range holds {
		if err := h.Err(); err != nil {
			t.Error(err)
		}
	}
	state, err := s.b.Inspect(t.Context())
	if err != nil || len(state.Holders) != len(owners) {
		t.Errorf("%d owners read, want %d (%v)", len(state.Holders), len(owners), err)
	}
	s.unlock(holds...)
	s.others(true, true)
	noKeys(t, s.server)
}

// A reentry with a shorter lease does not shorten the first lease, and a renewed reentry does not add to it.
func TestReadWrite_reentryKeepsTheLease(t *testing.T) {
	const long, short = 20 * time.Second, 500 * time.Millisecond
	s := newRWScene(t)
	c := ours(t, s.rdb, client.WithWatchdogTimeout(long))
	for _, k := range []kind{read, write} {
		t.Run(string(k), func(t *testing.T) {
			for _, first := range [][]lock.Option{{lock.WithFixedLease(long)}, nil} {
				ctx := lock.ContextWithNewOwner(t.Context())
				outer := s.lock(ctx, k.lock(c, rwName, first...))
				lives := func(when string, holds int) {
					lease := k.lease(rwName, outer.Owner())
					if k == read { // a reader has one key for all its holds
						lease = strings.TrimSuffix(lease, "1") + strconv.Itoa(holds)
					}
					for _, key := range []string{rwName, lease} {
						left, err := do(t, s.rdb, "PTTL", key).AsInt64()
						if d := time.Duration(left) * time.Millisecond; err != nil || d < long/4 || d > long {
							t.Errorf("%s, %s has %v left of a lease of %v (%v)", when, key, d, long, err)
						}
					}
				}
				inner := s.lock(ctx, k.lock(c, rwName, lock.WithFixedLease(short)))
				lives("after a shorter one", 2)
				again := s.lock(ctx, k.lock(c, rwName, first...))
				lives("after one more of the same", 3)
				s.unlock(inner)
				lives("when the shorter one is over", 2)
				s.unlock(again)
				lives("when only the first is left", 1)
				s.unlock(outer)
			}
		})
	}
	noKeys(t, s.server)
}

// A writer never unlocks: two readers enter when its lease expires.
func TestReadWrite_readersBehindALease(t *testing.T) {
	const lease = 2 * time.Second
	s := newRWScene(t)
	w := s.lock(t.Context(), ours(t, s.rdb).NewRWLock(rwName, lock.WithFixedLease(lease)).Write())
	var wg sync.WaitGroup
	var both sync.WaitGroup
	both.Add(2)
	for range 2 {
		wg.Go(func() {
			h, err := s.b.Read().Lock(t.Context())
			both.Done()
			if err != nil {
				t.Error(err)
				return
			}
			if early := time.Until(w.Until()); early > 0 {
				t.Errorf("a reader entered %v before the writer's Until", early)
			}
			both.Wait() // together
			s.unlock(h)
		})
	}
	wg.Wait()
	noKeys(t, s.server)
}

// One reader never unlocks, and another one does: a writer enters when the first one's lease expires.
func TestReadWrite_writerBehindALease(t *testing.T) {
	const lease = 2 * time.Second
	s := newRWScene(t)
	r := s.lock(t.Context(), ours(t, s.rdb).NewRWLock(rwName, lock.WithFixedLease(lease)).Read())
	other := s.lock(t.Context(), s.a.Read())
	got := make(chan lock.Hold)
	go func() {
		h, err := s.b.Write().Lock(t.Context())
		if err != nil {
			t.Error(err)
		}
		got <- h
	}()
	until(t, func() bool { // it waits
		state, err := s.a.Inspect(t.Context())
		return err == nil && len(state.Waiters) == 1
	})
	s.unlock(other)
	h := soon(t, got)
	if h == nil {
		return
	}
	if early := time.Until(r.Until()); early > 0 {
		t.Errorf("the writer entered %v before the reader's Until", early)
	}
	s.unlock(h)
	noKeys(t, s.server)
}

// A writer also reads.
//
//	1 it writes, twice, and reads, twice: no other owner is admitted
//	2 it stops reading: it still writes
//	3 it reads, and stops writing: others can read, but not write
//	4 it cannot write again while it reads, and gets an error immediately
//	5 it stops reading: the lock is free
func TestReadWrite_writerReads(t *testing.T) {
	s := newRWScene(t)
	ctx := lock.ContextWithNewOwner(t.Context())
	w1, w2 := s.lock(ctx, s.a.Write()), s.lock(ctx, s.a.Write()) // 1
	s.held(lock.Write, w1, 2)
	r1, r2 := s.lock(ctx, s.a.Read()), s.lock(ctx, s.a.Read())
	s.held(lock.Write, r1, 2)
	s.held(lock.Write, w1, 2)
	s.others(false, false)
	s.unlock(r1, r2) // 2
	s.held(lock.Write, w1, 2)
	s.others(false, false)
	s.unlock(w2)
	s.held(lock.Write, w1, 1)
	s.others(false, false)

	r1 = s.lock(ctx, s.a.Read()) // 3
	s.unlock(w1)
	s.held(lock.Read, r1, 1)
	s.others(true, false)
	if err := r1.Err(); err != nil {
		t.Errorf("the read hold ended with the write hold: %v", err)
	}
	for _, ask := range []func(context.Context) (lock.Hold, error){s.a.Write().Lock, s.a.Write().TryLock} { // 4
		limited, cancel := context.WithTimeout(ctx, promptTimeout)
		if _, err := ask(limited); !errors.Is(err, lock.ErrUpgrade) {
			t.Errorf("asking to write while reading: %v, want lock.ErrUpgrade", err)
		}
		cancel()
	}
	s.others(true, false)
	s.unlock(r1) // 5
	s.held(lock.Free, nil, 0)
	s.others(true, true)
	for _, h := range []lock.Hold{w1, r1} {
		if err := h.Unlock(t.Context()); !errors.Is(err, lock.ErrNotHeld) {
			t.Errorf("unlocking once too often: %v", err)
		}
	}
	noKeys(t, s.server)
}

// The lease of a writer that also reads is renewed; after it has stopped writing, its read lease is.
func TestReadWrite_leaseIsRenewed(t *testing.T) {
	const lease, renewals = 6 * time.Second, 3
	var mu sync.Mutex
	renewed := make(map[lock.Mode]int)
	s := newRWScene(t, client.WithWatchdogTimeout(lease), client.WithObserver(lock.Observer{
		Renewed: func(_ context.Context, e lock.Event) {
			mu.Lock()
			defer mu.Unlock()
			renewed[e.Mode]++
		},
	}))
	ctx := lock.ContextWithNewOwner(t.Context())
	w := s.lock(ctx, s.a.Write())
	r := s.lock(ctx, s.a.Read())
	for _, phase := range []lock.Mode{lock.Write, lock.Read} {
		mu.Lock()
		clear(renewed)
		mu.Unlock()
		untilWithin(t, promptTimeout, func() bool {
			promised := r.Until()
			left := s.ttl()
			if ahead := time.Until(promised); left < ahead || left > lease {
				t.Errorf("%v are left of a lease of %v that is renewed, and its owner has it for %v more", left, lease, ahead)
			}
			mu.Lock()
			defer mu.Unlock()
			return renewed[phase] >= renewals
		})
		if phase == lock.Write {
			s.held(lock.Write, r, 1)
			s.unlock(w)
		}
	}
	s.held(lock.Read, r, 1)
	s.unlock(r)
	noKeys(t, s.server)
}

// ForceUnlock ends all holds of both sides: of a writer that also reads, and of readers of several clients. They are
// notified, and waiters are woken.
func TestReadWrite_force(t *testing.T) {
	s := newRWScene(t, client.WithWatchdogTimeout(6*time.Second))
	if forced, err := s.b.ForceUnlock(t.Context()); err != nil || forced {
		t.Errorf("of a free lock: %v, %v", forced, err)
	}
	for _, test := range []struct {
		name string
		take func() []lock.Hold
	}{
		{"a writer that reads", func() []lock.Hold {
			ctx := lock.ContextWithNewOwner(t.Context())
			return []lock.Hold{s.lock(ctx, s.a.Write()), s.lock(ctx, s.a.Read())}
		}},
		{"readers of two clients", func() []lock.Hold {
			ctx := lock.ContextWithNewOwner(t.Context())
			return []lock.Hold{s.lock(t.Context(), s.a.Read()), s.lock(t.Context(), s.b.Read()), s.lock(ctx, s.a.Read()), s.lock(ctx, s.a.Read())}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			holds := test.take()
			waiter := ours(t, s.server.Client(t)).NewRWLock(rwName)
			got := make(chan lock.Hold)
			go func() {
				h, err := waiter.Write().Lock(t.Context())
				if err != nil {
					t.Error(err)
				}
				got <- h
			}()
			until(t, func() bool {
				state, err := waiter.Inspect(t.Context())
				return err == nil && len(state.Waiters) == 1
			})
			forced, err := s.b.ForceUnlock(t.Context())
			if err != nil || !forced {
				t.Fatalf("%v, %v", forced, err)
			}
			if h := soon(t, got); h != nil {
				s.unlock(h)
			}
			for _, h := range holds {
				soon(t, h.Context().Done())
				if err := h.Err(); !errors.Is(err, lock.ErrLost) {
					t.Errorf("a hold that was ended by force: %v", err)
				}
				if err := h.Unlock(t.Context()); !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrLost) {
					t.Errorf("unlocking it: %v", err)
				}
			}
			noKeys(t, s.server)
		})
	}
}

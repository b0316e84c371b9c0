package locktest_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/locktest"
)

// inBubble runs a test on a server in a bubble, whose client has a lease of 30 s and an operation timeout of 3 s.
func inBubble(t *testing.T, f func(t *testing.T, s *locktest.Server, c *client.Client)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		f(t, s, s.Client(t, client.WithoutRegistry()))
	})
}

func must(t *testing.T, l lock.Locker) lock.Hold {
	t.Helper()
	h, err := l.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// While the server is down, TryLock fails with ErrUnavailable, a wait continues, and a hold outlives an outage that is shorter than its lease.
func TestServer_Down(t *testing.T) {
	inBubble(t, func(t *testing.T, s *locktest.Server, c *client.Client) {
		held := must(t, c.NewLock("held"))
		s.Down()
		if _, err := c.NewLock("job").TryLock(t.Context()); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("TryLock: %v", err)
		}
		got := make(chan time.Time)
		go func() {
			h, err := c.NewLock("job").Lock(t.Context())
			if err != nil {
				t.Error(err)
			} else if err := h.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
			got <- time.Now()
		}()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if len(got) > 0 || held.Err() != nil {
			t.Errorf("a wait of %d ended, %v", len(got), held.Err())
		}
		up := time.Now()
		s.Up()
		if waited := (<-got).Sub(up); waited > time.Second {
			t.Errorf("the wait ended %v after the outage", waited)
		}
		if err := held.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A lease that expires while the server is paused is lost with ErrExpired, before it expires on the server.
func TestServer_Freeze(t *testing.T) {
	inBubble(t, func(t *testing.T, s *locktest.Server, c *client.Client) {
		h := must(t, c.NewLock("job"))
		began := time.Now()
		s.Freeze(time.Minute)
		<-h.Context().Done()
		if err := context.Cause(h.Context()); !errors.Is(err, lock.ErrExpired) || time.Since(began) >= 30*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if _, err := c.NewLock("job").TryLock(t.Context()); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("TryLock: %v", err)
		}
		time.Sleep(time.Until(began.Add(time.Minute)))
		if h, err := c.NewLock("job").TryLock(t.Context()); err != nil {
			t.Errorf("TryLock on the server that responds again: %v", err)
		} else if err := h.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A command that already waits when the server is paused waits until the end of the freeze.
func TestServer_Freeze_delayedCommand(t *testing.T) {
	for name, begin := range map[string]func(s *locktest.Server){
		"Slow":   func(s *locktest.Server) { s.Slow(time.Second) },
		"Freeze": func(s *locktest.Server) { s.Freeze(time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *locktest.Server, _ *client.Client) {
				r, done := s.Redis().Dedicate() // the first set opens this connection
				defer done()
				set := func() {
					if err := r.Do(t.Context(), r.B().Set().Key("key").Value("value").Build()).Error(); err != nil {
						t.Error(err)
					}
				}
				set()
				began := time.Now()
				begin(s)
				replied := make(chan time.Duration)
				go func() {
					set()
					replied <- time.Since(began)
				}()
				time.Sleep(500 * time.Millisecond)
				s.Freeze(2 * time.Second)
				if took := <-replied; took != 2500*time.Millisecond {
					t.Errorf("the command ran after %v", took)
				}
			})
		})
	}
}

// Up ends a freeze and the delay of a command immediately, and the end of the test ends a fault that lasts.
func TestServer_Up(t *testing.T) {
	inBubble(t, func(t *testing.T, s *locktest.Server, c *client.Client) {
		for what, begin := range map[string]func(){
			"Slow":   func() { s.Slow(time.Hour) },
			"Freeze": func() { s.Freeze(time.Hour) },
			"both":   func() { s.Slow(time.Hour); s.Freeze(time.Hour) },
		} {
			began := time.Now()
			begin()
			go func() {
				time.Sleep(time.Second)
				s.Up()
			}()
			h := must(t, c.NewLock("job"))
			if took := time.Since(began); took != time.Second {
				t.Errorf("%s: the lock was acquired after %v", what, took)
			}
			if err := h.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		}
		_ = must(t, c.NewLock("left"))
		s.Down()
	})
}

// The end of the test ends a fault even if no client of the library does.
func TestServer_Up_withoutClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var sending sync.WaitGroup
		t.Cleanup(func() {
			sending.Wait()
			if took := time.Since(began); took >= time.Hour {
				t.Errorf("the test ended after %v", took)
			}
		})
		s := locktest.NewServer(t)
		s.Freeze(time.Hour)
		sending.Go(func() { _ = s.Redis().Do(context.Background(), s.Redis().B().Get().Key("key").Build()).Error() })
		synctest.Wait()
	})
}

// Each command takes as long as Slow sets, until Up.
func TestServer_Slow(t *testing.T) {
	inBubble(t, func(t *testing.T, s *locktest.Server, c *client.Client) {
		if err := must(t, c.NewLock("job")).Unlock(t.Context()); err != nil { // loads its scripts
			t.Fatal(err)
		}
		for _, d := range []time.Duration{40 * time.Millisecond, 0} {
			s.Slow(d)
			began := time.Now()
			h := must(t, c.NewLock("job"))
			if took := time.Since(began); took < d || d == 0 && took > 0 { // a new connection takes longer
				t.Errorf("Lock took %v, want %v", took, d)
			}
			if err := h.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}

// Slow delays a script once, however many commands it runs, and Deny does not apply to these commands.
func TestServer_script(t *testing.T) {
	inBubble(t, func(t *testing.T, s *locktest.Server, _ *client.Client) {
		r, done := s.Redis().Dedicate()
		defer done()
		set := r.B().Eval().Script("redis.call('SET', 'key', '1'); return redis.call('SET', 'key', '2')").Numkeys(0).Build().Pin()
		if err := r.Do(t.Context(), set).Error(); err != nil { // opens the connection
			t.Fatal(err)
		}
		for what, fault := range map[string]struct {
			begin func()
			took  time.Duration
		}{
			"Slow": {func() { s.Slow(time.Second) }, time.Second},
			"Deny": {func() { s.Deny("SET") }, 0},
		} {
			fault.begin()
			began := time.Now()
			if err := r.Do(t.Context(), set).Error(); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			if took := time.Since(began); took != fault.took {
				t.Errorf("%s: the script took %v, want %v", what, took, fault.took)
			}
			s.Up()
		}
	})
}

// Denied commands are rejected as for a user without permission, and no others.
func TestServer_Deny(t *testing.T) {
	inBubble(t, func(t *testing.T, s *locktest.Server, c *client.Client) {
		s.Deny("evalsha", "EVAL")
		_, err := c.NewLock("job").TryLock(t.Context())
		if err == nil || errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("TryLock: %v", err)
		}
		s.Deny("SUBSCRIBE")
		h := must(t, c.NewLock("job"))
		other := s.Client(t, client.WithoutRegistry())
		got := make(chan time.Time, 1)
		go func() {
			h := must(t, other.NewLock("job"))
			got <- time.Now()
			_ = h.Unlock(context.WithoutCancel(t.Context()))
		}()
		synctest.Wait()
		time.Sleep(1500 * time.Millisecond)
		unlocked := time.Now()
		if err := h.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		if waited := (<-got).Sub(unlocked); waited > time.Second {
			t.Errorf("a waiter that cannot subscribe waited for %v", waited)
		}
	})
}

// A lock of each type that the server loses is lost for its holder, and free for others. A missing lock cannot be lost.
func TestServer_Lose(t *testing.T) {
	inBubble(t, func(t *testing.T, s *locktest.Server, c *client.Client) {
		if s.Lose("job") || s.Expire("job") {
			t.Error("a lock that never was is lost")
		}
		other := s.Client(t, client.WithoutRegistry())
		locks := func(c *client.Client) []lock.Locker {
			return []lock.Locker{c.NewLock("plain"), c.NewFairLock("fair"), c.NewRWLock("write").Write(), c.NewRWLock("read").Read(), c.NewSemaphore("permit", 1), c.NewRWLock("{tag}:read").Read(), c.NewSemaphore("{tag}:permit", 1)}
		}
		exclusive := func(c *client.Client) []lock.Locker {
			all := locks(c)
			all[3], all[5] = c.NewRWLock("read").Write(), c.NewRWLock("{tag}:read").Write()
			return all
		}(other)
		for what, lose := range map[string]func(string) bool{"Lose": s.Lose, "Expire": s.Expire} {
			for i, l := range locks(c) {
				h := must(t, l)
				if _, err := exclusive[i].TryLock(t.Context()); !errors.Is(err, lock.ErrNotAcquired) {
					t.Errorf("%s of %s: TryLock before that: %v", what, l.Name(), err)
				}
				if !lose(l.Name()) {
					t.Errorf("%s of %s: there was nothing", what, l.Name())
				}
				next, err := exclusive[i].TryLock(t.Context())
				if err != nil {
					t.Errorf("%s of %s: TryLock of another client: %v", what, l.Name(), err)
					continue
				}
				<-h.Context().Done()
				if err := h.Err(); !errors.Is(err, lock.ErrLost) || !errors.Is(err, lock.ErrGone) {
					t.Errorf("%s of %s: %v", what, l.Name(), err)
				}
				if err := next.Unlock(t.Context()); err != nil {
					t.Errorf("%s of %s: %v", what, l.Name(), err)
				}
			}
		}
	})
}

// A waiter in the queue of a fair lock is lost with the lock, and is kept if only the lease expires.
func TestServer_Lose_waiters(t *testing.T) {
	inBubble(t, func(t *testing.T, s *locktest.Server, c *client.Client) {
		for name, queued := range map[string]int{"expires": 1, "lost": 0, "{tag}:expires": 1, "{tag}:lost": 0} {
			h := must(t, c.NewFairLock(name))
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				if h, err := s.Client(t, client.WithoutRegistry()).NewFairLock(name).Lock(ctx); err == nil {
					_ = h.Unlock(t.Context())
				}
				close(ended)
			}()
			synctest.Wait()
			if queued == 1 {
				s.Expire(name)
			} else {
				s.Lose(name)
			}
			state, err := c.NewFairLock(name).Inspect(t.Context())
			if err != nil || len(state.Holders) != 0 || len(state.Waiters) != queued {
				t.Errorf("%s: %+v, %v: want %d waiters", name, state, err, queued)
			}
			<-h.Context().Done()
			cancel()
			<-ended
		}
	})
}

// The loss of a lock does not affect locks whose names contain its name in braces.
func TestServer_Lose_others(t *testing.T) {
	inBubble(t, func(t *testing.T, s *locktest.Server, c *client.Client) {
		others := []lock.Locker{c.NewLock("{orders}:42"), c.NewRWLock("{orders}:43").Read(), c.NewLock("all:{orders}")}
		for _, l := range others {
			h := must(t, l)
			defer h.Unlock(context.Background())
		}
		if s.Lose("orders") || s.Expire("orders") {
			t.Error("another lock was lost")
		}
		others[1] = c.NewRWLock("{orders}:43").Write()
		for _, l := range others {
			if _, err := l.TryLock(t.Context()); !errors.Is(err, lock.ErrNotAcquired) {
				t.Errorf("%s: %v", l.Name(), err)
			}
		}
	})
}

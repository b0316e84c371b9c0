//go:build linux

package integration_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/latch"
)

// A latch is counted down while its slot is migrated from node to node: each call counts once, and all waiters are
// notified at zero.
func TestLatch_movingSlots(t *testing.T) {
	t.Parallel()
	for name, pubsub := range map[string]client.PubSub{"sharded": client.PubSubSharded, "plain": client.PubSubPlain} {
		t.Run(name, func(t *testing.T) {
			needs(t, pubsub)
			t.Parallel()
			c := redistest.StartCluster(t)
			a, b := ours(t, c.Client(t), client.WithPubSub(pubsub)), ours(t, c.Client(t), client.WithPubSub(pubsub))
			const each = 60
			l := a.NewLatch("done")
			if created, err := l.TrySetCount(t.Context(), 4*each+1); !created || err != nil {
				t.Fatal(created, err)
			}
			waiters := []<-chan error{waits(t, l), waits(t, b.NewLatch("done"))}
			stop := keepMoving(t, c, "done", "leasehold_latch:{done}", "leasehold_latch_calls:{done}")
			results := make(chan error)
			for i := range 4 {
				from := []*client.Client{a, b}[i%2].NewLatch("done")
				go func() {
					results <- func() error {
						for n := range each {
							if _, err := from.CountDownOnce(t.Context(), fmt.Sprint(i, ".", n)); err != nil {
								return err
							}
							time.Sleep(2 * time.Millisecond)
						}
						return nil
					}()
				}()
			}
			for range 4 {
				if err := <-results; err != nil {
					t.Error(err)
				}
			}
			stop()
			if n, err := l.Count(t.Context()); n != 1 || err != nil {
				t.Fatalf("%d are left, %v", n, err)
			}
			if _, err := b.NewLatch("done").CountDown(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, w := range waiters {
				if err := soon(t, w); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A wait continues across a failover, on either topology.
func TestLatch_failover(t *testing.T) {
	t.Parallel()
	test := func(t *testing.T, a, b *latch.Latch, failover func()) {
		if created, err := a.TrySetCount(t.Context(), 2); !created || err != nil {
			t.Fatal(created, err)
		}
		w := waits(t, a)
		if n, err := b.CountDownOnce(t.Context(), "first"); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		failover()
		for _, part := range []string{"first", "second"} {
			untilWithin(t, time.Minute, func() bool {
				n, err := b.CountDownOnce(t.Context(), part)
				if err != nil {
					t.Log(err)
				} else if want := map[string]int64{"first": 1, "second": 0}[part]; n != want {
					t.Errorf("%s: %d are left, want %d", part, n, want)
				}
				return err == nil
			})
		}
		if err := soon(t, w); err != nil {
			t.Error(err)
		}
	}
	t.Run("sentinel", func(t *testing.T) {
		t.Parallel()
		s := redistest.StartSentinel(t, 2)
		primary := s.Primary(t)
		test(t, ours(t, s.Client(t)).NewLatch("done"), ours(t, s.Client(t)).NewLatch("done"), func() {
			for _, n := range s.Nodes {
				if n != primary {
					n.WaitUntilFollows(t, primary)
				}
			}
			primary.Do(t, "WAIT", "1", "10000") // otherwise the failover may lose the first calls
			s.Failover(t, primary)
		})
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		c := redistest.StartCluster(t)
		test(t, ours(t, c.Client(t)).NewLatch("done"), ours(t, c.Client(t)).NewLatch("done"), func() {
			master := c.Master(t, "done")
			c.WaitForReplica(t, master)
			c.Failover(t, master)
		})
	})
}

// Workers join, are renewed and leave while their slot is migrated from node to node: none is lost, and each counts once.
func TestWaitGroup_movingSlots(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	a, b := ours(t, c.Client(t)), ours(t, c.Client(t))
	const each = 40
	first, err := a.NewWaitGroup("import").Add(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	waiters := []<-chan error{make(chan error), make(chan error)}
	for i, from := range []*client.Client{a, b} {
		done := make(chan error, 1)
		go func() { done <- from.NewWaitGroup("import").WaitFor(t.Context(), 4*each+1) }()
		waiters[i] = done
	}
	stop := keepMoving(t, c, "leasehold_crew:{import}")
	results := make(chan error)
	for i := range 4 {
		waitGroup := []*client.Client{a, b}[i%2].NewWaitGroup("import")
		go func() {
			results <- func() error {
				for range each {
					if err := waitGroup.Do(t.Context(), func(ctx context.Context) error { time.Sleep(2 * time.Millisecond); return ctx.Err() }); err != nil {
						return err
					}
				}
				return nil
			}()
		}()
	}
	for range 4 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	stop()
	state, err := b.NewWaitGroup("import").Inspect(t.Context())
	if err != nil || state.Done != 4*each || len(state.Alive) != 1 || len(state.Lost) != 0 {
		t.Errorf("%d done, %d alive, %d lost, %v", state.Done, len(state.Alive), len(state.Lost), err)
	}
	if err := first.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, w := range waiters {
		if err := soon(t, w); err != nil {
			t.Error(err)
		}
	}
}

// Workers survive a failover, on either topology, and the wait continues.
func TestWaitGroup_failover(t *testing.T) {
	t.Parallel()
	test := func(t *testing.T, a, b *latch.WaitGroup, failover func()) {
		m, err := a.Add(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- b.Wait(t.Context()) }()
		failover()
		untilWithin(t, time.Minute, func() bool {
			state, err := b.Inspect(t.Context())
			return err == nil && len(state.Alive) == 1 && len(state.Lost) == 0
		})
		if len(done) > 0 {
			t.Fatalf("the wait ended: %v", <-done)
		}
		if err := m.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if err := soon(t, done); err != nil {
			t.Error(err)
		}
	}
	t.Run("sentinel", func(t *testing.T) {
		t.Parallel()
		s := redistest.StartSentinel(t, 2)
		primary := s.Primary(t)
		test(t, ours(t, s.Client(t)).NewWaitGroup("import"), ours(t, s.Client(t)).NewWaitGroup("import"), func() {
			for _, n := range s.Nodes {
				if n != primary {
					n.WaitUntilFollows(t, primary)
				}
			}
			s.Failover(t, primary)
		})
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		c := redistest.StartCluster(t)
		test(t, ours(t, c.Client(t)).NewWaitGroup("import"), ours(t, c.Client(t)).NewWaitGroup("import"), func() {
			master := c.Master(t, "leasehold_crew:{import}")
			c.WaitForReplica(t, master)
			c.Failover(t, master)
		})
	})
}

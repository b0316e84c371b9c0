//go:build linux

package integration_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
)

// With min-replicas-to-write 1, a new primary rejects writes until a replica follows it. Under load, this ends no wait:
// locks of every type, a latch, a wait group, an election and a limiter continue as soon as the old primary follows the
// new one.
func TestFailover_minReplicas(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t, 2, "--min-replicas-to-write", "1", "--min-replicas-max-lag", "60")
	options := []client.Option{client.WithWatchdogTimeout(6 * time.Second), client.WithOpTimeout(time.Second)}
	a, b := ours(t, s.Client(t), options...), ours(t, s.Client(t), options...)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	var load sync.WaitGroup
	var grants [3]atomic.Int64 // before the failover, while writes are rejected, afterwards
	var phase atomic.Int64
	for i, c := range []*client.Client{a, b} {
		for what, l := range map[string]lock.Locker{
			"plain": c.NewLock("plain"), "fair": c.NewFairLock("fair"), "read": c.NewRWLock("rw").Read(), "write": c.NewRWLock("rw").Write(), "permit": c.NewSemaphore("permits", 1),
		} {
			load.Go(func() {
				for ctx.Err() == nil {
					start := phase.Load()
					h, err := l.Lock(ctx)
					switch {
					case ctx.Err() != nil:
						if err == nil {
							_ = h.Unlock(context.WithoutCancel(ctx))
						}
						return
					case err != nil:
						t.Errorf("client %d, %s: %v", i, what, err)
						return
					}
					if start == phase.Load() {
						grants[start].Add(1)
					}
					time.Sleep(time.Millisecond)
					if err := h.Unlock(context.WithoutCancel(ctx)); err != nil && !errors.Is(err, lock.ErrLost) && !errors.Is(err, lock.ErrUnavailable) {
						t.Errorf("client %d, Unlock of %s: %v", i, what, err)
					}
				}
			})
		}
	}
	var leads atomic.Int64 // number of terms started
	for i, c := range []*client.Client{a, b} {
		load.Go(func() {
			err := c.NewElection("leader").Run(ctx, fmt.Sprint(i), func(term context.Context) error {
				leads.Add(1)
				<-term.Done()
				return term.Err()
			})
			if ctx.Err() == nil {
				t.Errorf("candidate %d left: %v", i, err)
			}
		})
	}
	done := a.NewLatch("done")
	if ok, err := done.TrySetCount(t.Context(), 1); err != nil || !ok {
		t.Fatalf("%t, %v", ok, err)
	}
	waits := make(chan error, 1)
	go func() { waits <- b.NewLatch("done").Wait(t.Context()) }()
	until(t, func() bool { return leads.Load() > 0 && grants[0].Load() > 100 })

	primary := s.Primary(t)
	next := s.Failover(t, primary)
	phase.Store(1)
	until(t, func() bool { // TryLock returns the reason, and that it is transient
		_, err := a.NewLock("another").TryLock(t.Context())
		return err != nil && errors.Is(err, lock.ErrUnavailable) && strings.Contains(err.Error(), "NOREPLICAS")
	})
	joined := make(chan error, 1)
	go func() {
		m, err := a.NewWaitGroup("waitgroup").Add(t.Context()) // it starts while writes are rejected
		if err == nil {
			err = m.Unlock(t.Context())
		}
		joined <- err
	}()
	time.Sleep(2 * time.Second) // some polls, and some renewals
	if len(joined) > 0 || len(waits) > 0 {
		t.Error("a wait ended while writes are refused")
	}
	if n := grants[1].Load(); n > 0 {
		t.Logf("%d grants while writes are refused", n)
	}
	terms := leads.Load()
	s.Rejoin(t, primary, next)
	phase.Store(2)
	until(t, func() bool { return grants[2].Load() > 100 })
	e := a.NewElection("leader")
	until(t, func() bool { _, is, err := e.Leader(t.Context()); return is && err == nil })
	t.Logf("%d terms before writes were accepted again, %d afterwards", terms, leads.Load())
	if err := <-joined; err != nil {
		t.Errorf("a Join that waited: %v", err)
	}
	until(t, func() bool { _, err := done.CountDown(t.Context()); return err == nil })
	if err := <-waits; err != nil {
		t.Errorf("a wait for a latch: %v", err)
	}
	cancel()
	load.Wait()
}

// While a slot is migrated, an Unlock and a TryLock of the same lock are sent in one script. After the Unlock the key is
// gone from the source, which then rejects the acquire: it is retried, and the target grants it.
func TestCluster_acquireAfterARelease(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	const locks = 200
	us := ours(t, c.Client(t))
	name := func(i int) string { return fmt.Sprintf("{t}%d", i) }
	var holds []lock.Hold
	for i := range locks {
		h, err := us.NewLock(name(i)).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		holds = append(holds, h)
	}
	from := c.Master(t, name(0))
	m := c.Migrate(t, c.Slot(t, name(0)), from, another(t, c, from))
	var all sync.WaitGroup
	var granted atomic.Int64
	for i, h := range holds {
		all.Go(func() {
			if err := h.Unlock(t.Context()); err != nil {
				t.Errorf("Unlock of %s: %v", name(i), err)
			}
		})
		all.Go(func() {
			l := us.NewLock(name(i))
			try := l.TryLock
			if i%2 == 0 {
				try = l.Lock
			}
			h, err := try(t.Context())
			switch {
			case err == nil:
				granted.Add(1)
				if err := h.Unlock(t.Context()); err != nil {
					t.Errorf("second Unlock of %s: %v", name(i), err)
				}
			case !errors.Is(err, lock.ErrNotAcquired) || errors.Is(err, lock.ErrUnavailable) || i%2 == 0:
				t.Errorf("%s: %v", name(i), err)
			}
		})
	}
	all.Wait()
	m.Finish(t)
	t.Logf("%d of %d granted", granted.Load(), locks)
}

//go:build linux

package integration_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
)

// Failovers under load, with every type of lock. A lock that the promoted replica has received is kept. Any other lock
// is lost, and can be granted again immediately, so two owners may act as the holder for a while. The test reports how
// often they did, because no lock on Redis can prevent it. The following must hold anyway: every owner of a lost lock
// is notified within one renewal interval and one operation timeout after the promotion, waiters continue, no call
// fails for any other reason, and no keys are left.
func TestFailover_underLoad(t *testing.T) {
	t.Parallel()
	const (
		lease     = 9 * time.Second
		renewal   = lease / 3
		opTimeout = time.Second
		slack     = 2 * time.Second // for following the Sentinels, on a busy machine
	)
	kinds := []kind{plain, fair, read, write}
	s := redistest.StartSentinel(t, 2)
	var clients [2]*client.Client
	for i := range clients {
		clients[i] = ours(t, s.Client(t), client.WithWatchdogTimeout(lease), client.WithOpTimeout(opTimeout))
	}
	load := startTraffic(t, clients[:])

	var kept, told, overlaps int
	var latest, slowest time.Duration // until an owner was notified; until a waiter acquired the lock
	for round := range failovers(t) {
		one, other := clients[round%2], clients[(round+1)%2]
		primary := s.Primary(t)
		replica := s.Nodes[0]
		if replica == primary {
			replica = s.Nodes[1]
		}
		known, forgotten := map[kind]*pair{}, map[kind]*pair{}
		for _, k := range kinds {
			known[k] = newPair(t, k, one, other, fmt.Sprintf("known-%s-%d", k, round))
			until(t, func() bool { return exists(t, replica, known[k].name) })
		}
		load.goesOn(t)
		s.CutReplication(t, primary)
		for _, k := range kinds {
			forgotten[k] = newPair(t, k, one, other, fmt.Sprintf("forgotten-%s-%d", k, round))
		}
		next := s.Failover(t, primary)
		promoted := time.Now()

		for _, k := range kinds {
			p := forgotten[k]
			p.wait(t)
			late := p.told(t).Sub(promoted)
			latest, slowest = max(latest, late), max(slowest, p.at.Sub(promoted))
			if late > renewal+opTimeout+slack {
				t.Errorf("round %d, %s: its owner was notified %v after the promotion", round, k, late)
			}
			if p.both {
				overlaps++
			}
			if err := p.first.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
				t.Errorf("round %d, %s: Unlock of a lost hold: %v", round, k, err)
			}
			p.unlock(t, p.second)
		}
		for _, k := range kinds {
			p := known[k]
			// Either the new primary confirms a renewal, or the lock is lost.
			until(t, func() bool { return p.first.Err() != nil || p.first.Until().After(promoted.Add(lease-lease/100)) })
			has := next.Do(t, "HEXISTS", p.name, k.field(p.first.Owner()))
			if n, err := has.ToInt64(); p.first.Err() == nil {
				kept++
				if n != 1 || err != nil {
					t.Errorf("round %d, %s: its hold is valid, but the lock is gone on the server (%v)", round, k, err)
				}
				p.unlock(t, p.first)
			} else {
				told++
				if err := p.first.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
					t.Errorf("round %d, %s: Unlock of a lost hold: %v", round, k, err)
				}
			}
			p.wait(t)
			if p.both {
				t.Errorf("round %d, %s: two owners, although the server knew of the first", round, k)
			}
			p.unlock(t, p.second)
		}
		load.goesOn(t) // no later than when a lease expires whose release was lost
		s.Rejoin(t, primary, next)
	}
	load.stop()
	t.Logf("%d failovers: of the locks known to the new primary, %d were kept and %d lost; of %d unknown to it, %d had two owners for a time",
		failovers(t), kept, told, failovers(t)*len(kinds), overlaps)
	t.Logf("owners were notified at most %v after the promotion (renewal interval %v + timeout %v); waiters acquired the lock at most %v after it",
		latest.Round(time.Millisecond), renewal, opTimeout, slowest.Round(time.Millisecond))
	t.Logf("load: acquired %s; %d lost, %d releases unconfirmed, %d times two owners",
		counts(load.locked), load.lost.Load(), load.unconfirmed.Load(), load.overlaps.Load())
	if kept == 0 || overlaps == 0 {
		t.Error("no lock was kept, or none had two owners: the test shows nothing")
	}

	// Dead readers that a failover restored are removed by the next request, or with their lease.
	for _, k := range kinds {
		h, err := k.lock(clients[0], load.name(k)).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	}
	primary := s.Primary(t)
	untilWithin(t, lease+promptTimeout, func() bool { return keys(t, primary) == 0 })
}

// pair is an owner of a lock, and an owner of another client that waits for it.
type pair struct {
	name   string
	first  lock.Hold
	second lock.Hold
	at     time.Time // when second was granted
	both   bool      // first still considered it valid then
	done   chan error
	lost   chan time.Time
}

func newPair(t *testing.T, k kind, one, other *client.Client, name string) *pair {
	t.Helper()
	return pairOf(t, k.lock(one, name), k.rival().lock(other, name))
}

// pairOf locks one, and makes another owner wait for other, a handle of the same lock.
func pairOf(t *testing.T, one, other lock.Locker) *pair {
	t.Helper()
	first, err := one.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{name: one.Name(), first: first, done: make(chan error, 1), lost: make(chan time.Time, 1)}
	context.AfterFunc(first.Context(), func() { p.lost <- time.Now() })
	go func() {
		var err error
		p.second, err = other.Lock(t.Context())
		p.at, p.both = time.Now(), first.Err() == nil
		p.done <- err
	}()
	return p
}

// wait waits until the second owner has acquired the lock.
func (p *pair) wait(t *testing.T) {
	t.Helper()
	select {
	case err := <-p.done:
		if err != nil {
			t.Fatalf("%s: its waiter: %v", p.name, err)
		}
	case <-time.After(time.Minute):
		t.Fatalf("%s: its waiter was forgotten", p.name)
	}
}

// told waits until the first owner is notified, and returns the time.
func (p *pair) told(t *testing.T) time.Time {
	t.Helper()
	select {
	case at := <-p.lost:
		return at
	case <-time.After(time.Minute):
		t.Fatalf("%s: its owner was never notified", p.name)
		return time.Time{}
	}
}

func (p *pair) unlock(t *testing.T, h lock.Hold) {
	t.Helper()
	if err := h.Unlock(t.Context()); err != nil && !errors.Is(err, lock.ErrUnavailable) { // the machine was busy; the client retries the release
		t.Errorf("%s: %v", p.name, err)
	}
}

func exists(t *testing.T, server *redistest.Server, key string) bool {
	t.Helper()
	reply := server.Do(t, "EXISTS", key)
	n, err := reply.ToInt64()
	if err != nil {
		t.Fatal(err)
	}
	return n == 1
}

// counts formats the number of each type.
func counts(of map[kind]int) string {
	var all []string
	for _, k := range []kind{plain, fair, read, write} {
		all = append(all, fmt.Sprintf("%d %s", of[k], k))
	}
	return strings.Join(all, ", ")
}

// traffic is a load of short acquisitions, of one lock of each type; readers and writers share one.
type traffic struct {
	cancel context.CancelFunc
	all    sync.WaitGroup

	lost, unconfirmed, overlaps atomic.Int64

	mu     sync.Mutex
	inside map[lock.Hold]kind // guarded by mu
	locked map[kind]int       // guarded by mu; number of acquisitions
}

func (*traffic) name(k kind) string {
	if k == read || k == write {
		return "load-rw"
	}
	return "load-" + string(k)
}

func startTraffic(t *testing.T, clients []*client.Client) *traffic {
	ctx, cancel := context.WithCancel(t.Context())
	l := &traffic{cancel: cancel, inside: map[lock.Hold]kind{}, locked: map[kind]int{}}
	t.Cleanup(l.all.Wait)
	t.Cleanup(cancel)
	for i := range 3 * len(clients) {
		for _, k := range []kind{plain, fair, read, write} {
			l.all.Go(func() {
				for ctx.Err() == nil {
					l.once(t, ctx, k, clients[i%len(clients)])
				}
			})
		}
	}
	return l
}

func (l *traffic) once(t *testing.T, ctx context.Context, k kind, c *client.Client) {
	h, err := k.lock(c, l.name(k)).Lock(ctx)
	if err != nil {
		if ctx.Err() == nil {
			t.Errorf("load, %s: %v", k, err)
		}
		return
	}
	l.enter(h, k)
	time.Sleep(time.Duration(rand.IntN(10)) * time.Millisecond)
	l.mu.Lock()
	delete(l.inside, h)
	l.mu.Unlock()
	switch err := h.Unlock(context.WithoutCancel(ctx)); {
	case errors.Is(err, lock.ErrLost):
		l.lost.Add(1)
	case err != nil:
		l.unconfirmed.Add(1)
	}
}

// enter counts the other valid holds while h is valid.
func (l *traffic) enter(h lock.Hold, k kind) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for other, its := range l.inside {
		if l.name(its) == l.name(k) && (k != read || its != read) && other.Err() == nil && h.Err() == nil {
			l.overlaps.Add(1)
		}
	}
	l.inside[h] = k
	l.locked[k]++
}

// goesOn waits until each type has been locked several more times.
func (l *traffic) goesOn(t *testing.T) {
	t.Helper()
	count := func() map[kind]int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return maps.Clone(l.locked)
	}
	before := count()
	for _, k := range []kind{plain, fair, read, write} {
		untilWithin(t, time.Minute, func() bool { return count()[k] >= before[k]+20 })
	}
}

// stop waits until all of them have finished.
func (l *traffic) stop() {
	l.cancel()
	l.all.Wait()
}

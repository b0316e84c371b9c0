//go:build linux

package integration_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// A free fair lock never waits long for its next owner. Redisson's queue had such bugs: deadlines of waiters moved into
// the future with each waiter that came, left or died, and positions of waiters remained after they had left. Each
// scene has a lock, and clients that wait for it. After each step,
//
//	no owner in the queue counts as alive for longer than its waiter timeout
//	there are as many deadlines as positions
//	in the end there are no keys
//
// TestFairOrder… has more.
type fairScene struct {
	*testing.T
	server *redistest.Server
	rdb    rueidis.Client
	c      *client.Client
}

const fairName = "fair"

func newFairScene(t *testing.T) *fairScene {
	server := redistest.Start(t)
	rdb := server.Client(t)
	s := &fairScene{T: t, server: server, rdb: rdb, c: ours(t, rdb)}
	return s
}

// lock acquires the lock, which must be free.
func (s *fairScene) lock(options ...lock.Option) lock.Hold {
	s.Helper()
	h, err := s.c.NewFairLock(fairName, options...).Lock(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	return h
}

func (s *fairScene) unlock(h lock.Hold) {
	s.Helper()
	if err := h.Unlock(s.Context()); err != nil {
		s.Error(err)
	}
}

// fairWaiter is a call of Lock by a separate client.
type fairWaiter struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when the call has returned
	hold   lock.Hold
	err    error
}

// wait makes another client wait, and returns when it is in the queue at position place.
func (s *fairScene) wait(place int, options ...lock.Option) *fairWaiter {
	s.Helper()
	w := &fairWaiter{done: make(chan struct{})}
	var ctx context.Context
	ctx, w.cancel = context.WithCancel(s.Context())
	l := ours(s.T, s.server.Client(s.T)).NewFairLock(fairName, options...)
	go func() {
		defer close(w.done)
		w.hold, w.err = l.Lock(ctx)
	}()
	s.Cleanup(func() { w.cancel(); <-w.done })
	s.waiters(place)
	return w
}

// granted waits until w has the lock.
func (s *fairScene) granted(w *fairWaiter) lock.Hold {
	s.Helper()
	soon(s.T, w.done)
	if w.err != nil {
		s.Fatal(w.err)
	}
	return w.hold
}

// waiters waits until n owners are in the queue.
func (s *fairScene) waiters(n int) {
	s.Helper()
	until(s.T, func() bool { return queued(s.T, s.rdb, fairName) == int64(n) })
}

// sound checks that no owner counts as alive for longer than most from now.
func (s *fairScene) sound(most time.Duration) {
	s.Helper()
	state, err := s.c.NewFairLock(fairName).Inspect(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	for i, w := range state.Waiters {
		if w.WaiterTimeout > most {
			s.Errorf("number %d in the queue counts as alive for %v more, want %v at the most", i+1, w.WaiterTimeout, most)
		}
	}
	list, zset := queue(fairName)
	both := s.rdb.DoMulti(s.Context(), s.rdb.B().Multi().Build(), s.rdb.B().Llen().Key(list).Build(), s.rdb.B().Zcard().Key(zset).Build(), s.rdb.B().Exec().Build())
	n, err := both[3].AsIntSlice()
	if err != nil || n[0] != n[1] {
		s.Errorf("there are %d places and %d deadlines (%v)", n[0], n[1], err)
	}
}

// Waiters come and stop waiting repeatedly, and one process dies among them.
//
//	1 the lock is held
//	2 three times, ten waiters come, for half a second each, and in the middle a
//	process that is killed
//	3 nothing is left in the queue except the dead waiter, and one that still waits
//	4 the lock is released: the waiter acquires it within a waiter timeout
func TestFairQueue_joiningAndLeavingLeavesNothing(t *testing.T) {
	const stay = 2 * time.Second
	s := newFairScene(t)
	h := s.lock() // 1
	come := func() {
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				_, err := s.c.NewFairLock(fairName, lock.WithWait(500*time.Millisecond), lock.WithWaiterTimeout(stay)).Lock(t.Context())
				if !errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, lock.ErrNotAcquired) && errors.Is(err, lock.ErrUnavailable) {
					t.Errorf("a waiter that gives up: %v", err)
				}
				s.sound(stay)
			})
		}
		wg.Wait()
	}
	come() // 2
	s.waiters(0)
	doomed := startWorker(t)
	doomed.do(t, request{Do: "open", Addr: s.server.Addr()})
	doomed.send(t, request{Do: "lock", Kind: fair, Name: fairName, WaiterTimeout: stay, Wait: time.Hour})
	s.waiters(1)
	come()
	s.waiters(1)
	w := s.wait(2, lock.WithWaiterTimeout(stay))
	doomed.kill()
	come()
	until(t, func() bool { return queued(t, s.rdb, fairName) <= 2 }) // 3: the dead waiter may have been dropped
	s.sound(stay)
	start := time.Now()
	s.unlock(h) // 4
	s.unlock(s.granted(w))
	if took := time.Since(start); took > 5*stay {
		t.Errorf("it took %v until a waiter behind a dead one acquired the lock; want one waiter timeout, %v", took, stay)
	}
	noKeys(t, s.server)
}

// Each waiter has its own deadline: neither a waiter that stops waiting, nor one that is served, moves the deadline of
// another.
//
//	1 the lock is held, and four wait
//	2 the second one stops waiting
//	3 the others are served in their order
func TestFairQueue_separateDeadlines(t *testing.T) {
	const stay = 10 * time.Second
	s := newFairScene(t)
	h := s.lock() // 1
	var waiting []*fairWaiter
	for i := range 4 {
		waiting = append(waiting, s.wait(i+1, lock.WithWaiterTimeout(stay)))
		s.sound(stay)
	}
	waiting[1].cancel() // 2
	soon(t, waiting[1].done)
	if err := waiting[1].err; !errors.Is(err, context.Canceled) {
		t.Errorf("the waiter that gave up: %v", err)
	}
	s.waiters(3)
	s.sound(stay)
	token := h.Token() // 3
	for _, i := range []int{0, 2, 3} {
		s.unlock(h)
		h = s.granted(waiting[i])
		s.sound(stay)
		if h.Token() <= token {
			t.Errorf("waiter %d has the token %d, after %d", i+1, h.Token(), token)
		}
		token = h.Token()
	}
	s.unlock(h)
	noKeys(t, s.server)
}

// A caller of TryLock, or one that stopped waiting, does not block the next one.
func TestFairQueue_failedTryLockLeavesNothing(t *testing.T) {
	s := newFairScene(t)
	h := s.lock()
	other := ours(t, s.server.Client(t))
	if _, err := other.NewFairLock(fairName).TryLock(t.Context()); !errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("trying a lock that is held: %v", err)
	}
	if n := queued(t, s.rdb, fairName); n != 0 {
		t.Errorf("trying put %d in the queue", n)
	}
	w := s.wait(1)
	w.cancel()
	soon(t, w.done)
	if !errors.Is(w.err, context.Canceled) { // it may not have received its reply, and so not know the result
		t.Errorf("waiting for a lock that is held: %v", w.err)
	}
	s.waiters(0)
	s.unlock(h)
	h, err := s.c.NewFairLock(fairName).TryLock(t.Context())
	if err != nil {
		t.Fatalf("trying a lock that is free: %v", err)
	}
	s.unlock(h)
	noKeys(t, s.server)
}

// TryLock does not overtake: a lock that was just released belongs to the first in the queue, even before that one is
// notified.
//
//	1 the lock is held, a process waits for it, and is paused
//	2 the lock is released
//	3 no TryLock acquires it
//	4 the process continues, and acquires it
func TestFairQueue_tryLockDoesNotOvertake(t *testing.T) {
	s := newFairScene(t)
	h := s.lock() // 1
	w := startWorker(t)
	w.do(t, request{Do: "open", Addr: s.server.Addr()})
	answer := w.send(t, request{Do: "lock", Kind: fair, Name: fairName, WaiterTimeout: time.Minute, Wait: time.Hour})
	s.waiters(1)
	w.stop(t)
	s.unlock(h) // 2
	for range 10 {
		if _, err := s.c.NewFairLock(fairName).TryLock(t.Context()); !errors.Is(err, lock.ErrNotAcquired) { // 3
			t.Errorf("trying, when another one has its turn: %v", err)
		}
	}
	w.cont(t) // 4
	g := value[granted](t, must(t, receive(t, answer)))
	w.do(t, request{Do: "unlock", Hold: g.Hold})
	w.do(t, request{Do: "close"})
	noKeys(t, s.server)
}

// Expired leases let the queue continue like unlocks. Four owners want the lock, and none of them unlocks.
func TestFairQueue_expiredLeases(t *testing.T) {
	t.Parallel()
	const n, lease = 4, 2 * time.Second
	s := newFairScene(t)
	before := s.lock()
	var waiting []*fairWaiter
	for i := range n {
		waiting = append(waiting, s.wait(i+1, lock.WithFixedLease(lease)))
	}
	s.unlock(before)
	start := time.Now()
	for i, w := range waiting {
		h := s.granted(w)
		if h.Token() <= before.Token() {
			t.Errorf("number %d was served before the one in front of it", i+1)
		}
		if i > 0 && !errors.Is(before.Err(), lock.ErrLost) {
			t.Errorf("number %d has the lock, and the hold of the previous one: %v", i+1, before.Err())
		}
		before = h
	}
	<-before.Context().Done()
	if took := time.Since(start); took > n*(lease+poll)+10*time.Second {
		t.Errorf("%d leases of %v took %v", n, lease, took)
	}
	until(t, func() bool { return dbsize(t, s.rdb) == 0 })
}

// A waiter stops waiting while the server rejects writes, so its position cannot be removed immediately. Soon after the
// server accepts writes again, it leaves nothing behind.
//
//	1 the lock is held, and one caller waits
//	2 the server rejects writes for a while
//	3 another caller comes, and stops waiting; then the waiter does
//	4 the server accepts writes: the queue is empty within two operation timeouts
func TestFairQueue_writesRejected(t *testing.T) {
	const pause, opTimeout = 1500 * time.Millisecond, 400 * time.Millisecond
	s := newFairScene(t)
	h := s.lock() // 1
	rdb := s.server.Client(t)
	c := ours(t, rdb, client.WithOpTimeout(opTimeout))
	wait := func(ctx context.Context) <-chan error {
		failed := make(chan error, 1)
		go func() {
			_, err := c.NewFairLock(fairName, lock.WithWaiterTimeout(time.Minute)).Lock(ctx)
			failed <- err
		}()
		return failed
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	first := wait(ctx)
	s.waiters(1)
	s.server.Do(t, "CLIENT", "PAUSE", fmt.Sprint(pause.Milliseconds()), "WRITE") // 2
	paused := time.Now()
	late, over := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer over()
	gaveUp := func(failed <-chan error, cause error) {
		t.Helper()
		if err := soon(t, failed); !errors.Is(err, cause) || errors.Is(err, lock.ErrNotAcquired) && errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("a waiter that gave up: %v", err)
		}
	}
	gaveUp(wait(late), context.DeadlineExceeded) // 3
	cancel()
	gaveUp(first, context.Canceled)
	if canceled := time.Since(paused); canceled > pause {
		t.Logf("the waiters gave up after %v, when the pause of %v had ended: this run shows nothing", canceled, pause)
	}
	s.unlock(h) // 4: it is a write as well, so it waits for the end of the pause
	end := time.Now()
	s.waiters(0)
	if took := time.Since(end); took > 10*opTimeout {
		t.Errorf("the queue was empty %v after the server accepted writes again, want %v", took, 2*opTimeout)
	}
	// A duplicate delayed by the pause may arrive after the first retry.
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	noKeys(t, s.server)
}

// The queue or the deadlines are deleted manually while callers wait. All of them are still served soon.
func TestFairQueue_deletedByHand(t *testing.T) {
	const n = 5
	list, zset := queue(fairName)
	for _, key := range []string{list, zset} {
		t.Run(key, func(t *testing.T) {
			s := newFairScene(t)
			h := s.lock()
			var waiting []*fairWaiter
			for i := range n {
				waiting = append(waiting, s.wait(i+1))
			}
			do(t, s.rdb, "DEL", key)
			s.unlock(h)
			start := time.Now()
			tokens := make([]uint64, n)
			var wg sync.WaitGroup
			for i, w := range waiting {
				wg.Go(func() {
					<-w.done
					if w.err != nil {
						t.Error(w.err)
						return
					}
					tokens[i] = w.hold.Token()
					if err := w.hold.Unlock(context.WithoutCancel(t.Context())); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if took := time.Since(start); took > promptTimeout {
				t.Errorf("it took %v until all were served", took)
			}
			if key == zset && !slices.IsSorted(tokens) { // the order is stored in the list
				t.Errorf("without the deadlines, the order was %v", tokens)
			}
			noKeys(t, s.server)
		})
	}
}

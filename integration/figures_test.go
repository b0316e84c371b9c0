//go:build linux

package integration_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// The tests below take the measurements of docs/evidence/reliability.md that no other test takes. A violated guarantee
// fails them; a long duration does not.

// figure returns how often a figure is measured: n times, or a tenth of it in a normal test run.
func figure(n int) int {
	if os.Getenv("LEASEHOLD_FIGURES") == "" {
		return max(3, n/10)
	}
	return n
}

// Measures whether a lock that a replica has confirmed has two owners when the master dies, and whether a lock is rejected
// when no replica receives it.
func TestFigures_replicas(t *testing.T) {
	s := redistest.StartSentinel(t, 2)
	clients := [2]*client.Client{}
	for i := range clients {
		clients[i] = ours(t, s.Client(t), client.WithWatchdogTimeout(9*time.Second), client.WithOpTimeout(time.Second))
	}
	n, locks, refused, overlaps := failovers(t), 0, 0, 0
	for round := range n {
		primary := s.Primary(t)
		var held []lock.Hold
		for i := range 10 {
			h, err := clients[0].NewLock(fmt.Sprintf("confirmed-%d-%d", round, i), lock.WithReplicas(1, 4*time.Second)).Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, h)
		}
		s.CutReplication(t, primary)
		for i := range 10 {
			_, err := clients[0].NewLock(fmt.Sprintf("unconfirmed-%d-%d", round, i), lock.WithReplicas(1, 50*time.Millisecond)).TryLock(t.Context())
			if !errors.Is(err, lock.ErrReplicas) {
				t.Errorf("a lock that no replica has heard of: %v", err)
			}
			refused++
		}
		next := s.Failover(t, primary)
		for i, h := range held {
			other, err := clients[1].NewLock(fmt.Sprintf("confirmed-%d-%d", round, i)).TryLock(t.Context())
			for errors.Is(err, lock.ErrUnavailable) { // it still follows the old primary
				other, err = clients[1].NewLock(fmt.Sprintf("confirmed-%d-%d", round, i)).TryLock(t.Context())
			}
			if err == nil && h.Err() == nil {
				overlaps++
			}
			if err == nil {
				_ = other.Unlock(t.Context()) // it is counted
			}
			locks++
			_ = h.Unlock(t.Context()) // it may be lost because the failover took too long
		}
		s.Rejoin(t, primary, next)
	}
	if overlaps > 0 {
		t.Errorf("%d overlaps", overlaps)
	}
	t.Logf("figure: %d failovers: of %d locks confirmed by a replica, %d had two owners; of %d unconfirmed ones, %d were rejected", n, locks, overlaps, 10*n, refused)
}

// Measures how late calls return while the server is paused, and when holders are notified of a loss.
func TestFigures_frozen(t *testing.T) {
	const dog, deadline = time.Second, 100 * time.Millisecond
	server := redistest.Start(t)
	c := ours(t, server.Client(t), client.WithWatchdogTimeout(dog))
	rounds := figure(20)
	var late, told []time.Duration
	var mu sync.Mutex
	for round := range rounds {
		h, err := c.NewLock("held").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		server.Freeze(t)
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				l := c.NewLock(fmt.Sprintf("frozen-%d-%d", round, i))
				ctx, cancel := context.WithTimeout(t.Context(), deadline)
				defer cancel()
				start := time.Now()
				ask := l.Lock
				if i%2 == 0 {
					ask = l.TryLock
				}
				if _, err := ask(ctx); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, lock.ErrNotAcquired) {
					t.Errorf("on an unresponsive server: %v", err)
				}
				mu.Lock()
				defer mu.Unlock()
				late = append(late, max(0, time.Since(start)-deadline))
			})
		}
		<-h.Context().Done()
		after := time.Since(h.Until())
		wg.Wait()
		told = append(told, after)
		if h.Err() == nil || after < 0 {
			t.Errorf("the holder was notified %v after Until: %v", after, h.Err())
		}
		server.Thaw(t)
		until(t, func() bool { return len(server.LockKeys(t)) == 0 })
	}
	t.Logf("figure: %d calls with a deadline of %v on an unresponsive server returned after the deadline by: %s; %d holders were notified after Until by: %s",
		len(late), deadline, spread(late), len(told), spread(told))
}

// Measures when a disconnected holder is notified of its loss.
func TestFigures_partition(t *testing.T) {
	const dog, parts = 300 * time.Millisecond, 20
	server := redistest.Start(t)
	n := figure(1000)
	var mu sync.Mutex
	var told []time.Duration
	var checks, late atomic.Int64
	var wg sync.WaitGroup
	for i := range parts {
		proxy := redistest.NewProxy(t, server.Addr())
		c := ours(t, server.Client(t, redistest.Via(proxy)), client.WithWatchdogTimeout(dog))
		random := rand.New(rand.NewPCG(1, uint64(i)))
		wg.Go(func() {
			for j := range max(1, n/parts) {
				h, err := c.NewLock(fmt.Sprintf("cut-%d-%d", i, j)).Lock(t.Context())
				if grantedTooLate(err) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				time.Sleep(time.Duration(random.Int64N(int64(dog))))
				proxy.Freeze(true)
				done := h.Context().Done()
				for over := false; !over; time.Sleep(time.Millisecond) {
					at := time.Now()
					valid, end := h.Err() == nil, h.Until()
					checks.Add(1)
					if valid && at.After(end) {
						late.Add(1)
					}
					over = !valid
				}
				<-done
				after := time.Since(h.Until())
				mu.Lock()
				told = append(told, max(0, after))
				mu.Unlock()
				proxy.Freeze(false)
			}
		})
	}
	wg.Wait()
	if late.Load() > 0 {
		t.Errorf("%d checks found a hold valid after Until", late.Load())
	}
	t.Logf("figure: %d holders were partitioned, and all were notified; %d checks, %d found a hold valid after Until; notified after Until by: %s", len(told), checks.Load(), late.Load(), spread(told))
}

// Measures when a holder whose key was deleted is notified. A key that is not a lock stays unchanged.
func TestFigures_deleted(t *testing.T) {
	const dog = 600 * time.Millisecond
	server := redistest.Start(t)
	rdb := server.Client(t)
	c := ours(t, rdb, client.WithWatchdogTimeout(dog))
	n := figure(1000)
	var mu sync.Mutex
	var told []time.Duration
	var foreign atomic.Int64
	var wg sync.WaitGroup
	for i := range 20 {
		random := rand.New(rand.NewPCG(2, uint64(i)))
		wg.Go(func() {
			for j := range max(1, n/20) {
				name := fmt.Sprintf("gone-%d-%d", i, j)
				h, err := c.NewLock(name).Lock(t.Context())
				if grantedTooLate(err) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				time.Sleep(time.Duration(random.Int64N(int64(dog))))
				overwritten := random.IntN(2) == 0
				if overwritten {
					do(t, rdb, "SET", name, "foreign")
				} else {
					do(t, rdb, "DEL", name)
				}
				at := time.Now()
				<-h.Context().Done()
				after := time.Since(at)
				if err := h.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
					t.Errorf("unlock: %v", err)
				}
				if overwritten {
					if text, err := do(t, rdb, "GET", name).ToString(); err != nil || text != "foreign" {
						t.Errorf("the foreign key is %q (%v)", text, err)
					}
					foreign.Add(1)
					do(t, rdb, "DEL", name)
				}
				mu.Lock()
				told = append(told, after)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	t.Logf("figure: the keys of %d held locks were deleted or overwritten; all holders were notified, after: %s (renewal interval %v); all %d keys that were overwritten stayed unchanged", len(told), spread(told), dog/3, foreign.Load())
}

// Measures how long a waiter waits if its message is lost.
func TestFigures_lostMessage(t *testing.T) {
	server := redistest.Start(t)
	rdb := server.Client(t)
	one, other := ours(t, rdb), ours(t, server.Client(t))
	var took []time.Duration
	for i := range figure(1000) {
		name := fmt.Sprint("message", i%10)
		h, err := one.NewLock(name).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		at, waits := make(chan time.Time, 1), make(chan struct{})
		go func() {
			close(waits)
			h, err := other.NewLock(name).Lock(t.Context())
			at <- time.Now()
			if err == nil {
				err = h.Unlock(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
			at <- time.Now()
		}()
		<-waits
		until(t, func() bool { // it is queued
			n, err := do(t, rdb, "HLEN", name).AsInt64()
			return err == nil && n == 2
		})
		server.Do(t, "CLIENT", "KILL", "TYPE", "pubsub")
		start := time.Now()
		if err := h.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		took = append(took, (<-at).Sub(start))
		<-at
	}
	t.Logf("figure: the subscriptions were killed just before the Unlock, %d times; the waiter acquired the lock after: %s", len(took), spread(took))
}

// Measures the time from the Unlock of one process to the grant of another.
func TestFigures_handOver(t *testing.T) {
	server := redistest.Start(t)
	workers := [2]*worker{startWorker(t), startWorker(t)}
	for _, w := range workers {
		w.do(t, request{Do: "open", Addr: server.Addr()})
	}
	rdb := server.Client(t)
	var took []time.Duration
	holder := value[granted](t, workers[0].do(t, request{Do: "lock", Name: "hand", Wait: promptTimeout}))
	for i := range figure(2000) {
		a, b := workers[i%2], workers[(i+1)%2]
		waiting := b.send(t, request{Do: "lock", Name: "hand", Wait: promptTimeout})
		until(t, func() bool {
			n, err := do(t, rdb, "HLEN", "hand").AsInt64()
			return err == nil && n == 2
		})
		start := monotonic()
		a.do(t, request{Do: "unlock", Hold: holder.Hold})
		holder = value[granted](t, must(t, receive(t, waiting)))
		took = append(took, time.Duration(holder.Op.Return-start))
	}
	t.Logf("figure: %d hand-offs between two processes, from the request to unlock in one process to the return of Lock in the other: %s", len(took), spread(took))
}

// Measures how long a waiter waits if its subscription is confirmed but delivers nothing.
func TestFigures_halfOpenSubscription(t *testing.T) {
	server := redistest.Start(t)
	rdb := server.Client(t)
	one := ours(t, rdb)
	proxy := redistest.NewProxy(t, server.Addr())
	never := make(chan struct{})
	defer close(never)
	proxy.OnRequest(func(req [][]byte) (a redistest.Action) {
		if bytes.EqualFold(req[0], []byte("SUBSCRIBE")) {
			a.HoldReply = never // and with it all later replies on this connection
		}
		return a
	})
	withoutMessages := ours(t, server.Client(t, redistest.Via(proxy)))
	var took []time.Duration
	for i := range figure(100) {
		name := fmt.Sprint("deaf", i)
		h, err := one.NewLock(name).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		at := make(chan time.Time, 1)
		var wg sync.WaitGroup
		wg.Go(func() {
			h, err := withoutMessages.NewLock(name).Lock(t.Context())
			at <- time.Now()
			if err == nil {
				err = h.Unlock(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
		})
		until(t, func() bool {
			n, err := do(t, rdb, "HLEN", name).AsInt64()
			return err == nil && n == 2
		})
		time.Sleep(time.Duration(rand.Int64N(int64(time.Second)))) // at any instant between two polls
		start := time.Now()
		if err := h.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		took = append(took, (<-at).Sub(start))
		wg.Wait()
	}
	t.Logf("figure: %d waiters received no notification, and acquired the lock after: %s", len(took), spread(took))
}

// grantedTooLate reports whether a Lock failed because each of its three requests took longer than the lease, as on a
// busy machine.
func grantedTooLate(err error) bool {
	return err != nil && strings.Contains(err.Error(), "granted too late: the reply took")
}

// Locks are renewed and released while the memory of the server is full.
func TestFigures_memoryFull(t *testing.T) {
	t.Parallel()
	const dog = 6 * time.Second
	server := redistest.Start(t)
	var renewals atomic.Int64
	c := ours(t, server.Client(t), client.WithWatchdogTimeout(dog), client.WithOpTimeout(dog/4), client.WithObserver(lock.Observer{
		Renewed: func(context.Context, lock.Event) { renewals.Add(1) },
	}))
	rounds, unlocks, refused := figure(10), 0, 0
	for range rounds {
		var held []lock.Hold
		for i := range 100 {
			k := []kind{plain, fair, read, write}[i%4]
			h, err := k.lock(c, fmt.Sprint("full", i)).Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, h)
		}
		server.Do(t, "CONFIG", "SET", "maxmemory", "1")
		if _, err := c.NewLock("new").TryLock(t.Context()); err != nil {
			refused++
		}
		time.Sleep(2 * dog)
		for _, h := range held {
			if err := h.Err(); err != nil {
				t.Errorf("with the memory full: %v", err)
			}
			unlock(t, h)
			unlocks++
		}
		until(t, func() bool { return len(server.LockKeys(t)) == 0 })
		server.Do(t, "CONFIG", "SET", "maxmemory", "0")
	}
	t.Logf("figure: with the memory full, %d of %d held locks were renewed for two leases (%d renewals) and released; %d of %d new ones were rejected", unlocks, 100*rounds, renewals.Load(), refused, rounds)
}

// Callers are unaffected while the scripts are flushed continuously.
func TestFigures_scriptFlush(t *testing.T) {
	server := redistest.Start(t)
	rdb := server.Client(t)
	c := ours(t, rdb)
	stop := make(chan struct{})
	flushes := 0
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
				do(t, rdb, "SCRIPT", "FLUSH")
				flushes++
			}
		}
	})
	var calls, failed atomic.Int64
	var work sync.WaitGroup
	for i := range 8 {
		work.Go(func() {
			for range figure(10_000) / 8 {
				for _, k := range []kind{plain, fair, read, write} {
					h, err := k.lock(c, fmt.Sprint(k, "flushed", i)).Lock(t.Context())
					if err == nil {
						err = h.Unlock(t.Context())
					}
					calls.Add(2)
					if err != nil {
						failed.Add(1)
						t.Error(err)
					}
				}
			}
		})
	}
	work.Wait()
	close(stop)
	wg.Wait()
	t.Logf("figure: %d calls while the scripts were flushed %d times: %d errors", calls.Load(), flushes, failed.Load())
}

// seenBefore is a client library that reports each command before it accepts it. Like rueidis, it accepts no command
// whose context is canceled.
type seenBefore struct {
	rueidis.Client
	see func(args []string)
}

func (s seenBefore) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	if ctx.Err() == nil {
		s.see(cmd.Commands())
	}
	return s.Client.Do(ctx, cmd)
}

func (s seenBefore) DoMulti(ctx context.Context, cmds ...rueidis.Completed) []rueidis.RedisResult {
	if ctx.Err() == nil {
		for _, cmd := range cmds {
			s.see(cmd.Commands())
		}
	}
	return s.Client.DoMulti(ctx, cmds...)
}

// The library does not renew a lock after its Unlock has returned. Each hold has its own name, and is released just
// when a renewal is due. A release may be retried if a reply is missing. The client library may delay a renewal for
// longer: see TestRenewal_writtenAfterTheRelease.
func TestFigures_unlockAndRenewal(t *testing.T) {
	const dog = 600 * time.Millisecond
	server := redistest.Start(t)
	var over sync.Map            // the names whose Unlock has returned
	var seen, after atomic.Int64 // renewals of locks, and those of locks whose Unlock has returned
	see := func(args []string) {
		for _, key := range renewedKeys(args, dog) {
			seen.Add(1)
			if _, ok := over.Load(key); ok {
				after.Add(1)
			}
		}
	}
	var renewals atomic.Int64
	c := ours(t, seenBefore{server.Client(t), see}, client.WithWatchdogTimeout(dog), client.WithObserver(lock.Observer{
		Renewed: func(context.Context, lock.Event) { renewals.Add(1) },
	}))
	const goroutines = 512
	n := acquisitions(t, 5000)
	var late, lost, unconfirmed atomic.Int64
	var wg sync.WaitGroup
	for i := range goroutines {
		random := rand.New(rand.NewPCG(3, uint64(i)))
		wg.Go(func() {
			for j := range max(1, n/goroutines) {
				name := fmt.Sprintf("over-%d-%d;", i, j)
				h, err := c.NewLock(name).Lock(t.Context())
				if grantedTooLate(err) {
					late.Add(1)
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				time.Sleep(dog/3 - 5*time.Millisecond + time.Duration(random.Int64N(int64(10*time.Millisecond))))
				switch err := h.Unlock(t.Context()); {
				case errors.Is(err, lock.ErrLost):
					lost.Add(1) // the machine was busy for a whole lease; the renewal that came too late may still be in flight
					continue
				case errors.Is(err, lock.ErrUnavailable):
					unconfirmed.Add(1) // it was busy for an operation timeout, and the release is retried
					continue
				case err != nil:
					t.Error(err)
				}
				over.Store(name, true)
			}
		})
	}
	wg.Wait()
	until(t, func() bool { return len(server.LockKeys(t)) == 0 })
	if after.Load() > 0 || seen.Load() < renewals.Load() {
		t.Errorf("%d renewals were sent after the lock was released; %d were seen, and %d reported to the observer", after.Load(), seen.Load(), renewals.Load())
	}
	t.Logf("figure: %d holds were released just when they were due for renewal (%d renewals, %d holds lost, %d releases to be repeated); %d renewals were sent afterwards, 0 keys were left", n/goroutines*goroutines-int(late.Load()), renewals.Load(), lost.Load(), unconfirmed.Load(), after.Load())
}

// Measures the cost of a thousand waiters.
func TestFigures_waiters(t *testing.T) {
	const waiters = 1000
	took := time.Duration(figure(60)) * time.Second
	server := redistest.Start(t)
	rdb := server.Client(t)
	h, err := ours(t, rdb).NewLock("wanted", lock.WithFixedLease(time.Hour)).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c := ours(t, server.Client(t))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range waiters {
		wg.Go(func() {
			if _, err := c.NewLock("wanted").Lock(ctx); !errors.Is(err, lock.ErrNotAcquired) {
				t.Error(err)
			}
		})
	}
	time.Sleep(2 * time.Second) // until all of them wait
	usage := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			t.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	cpu, commands := usage(), server.CommandCalls(t, "evalsha")
	time.Sleep(took)
	cpu, commands = usage()-cpu, server.CommandCalls(t, "evalsha")-commands
	cancel()
	wg.Wait()
	if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	t.Logf("figure: %d goroutines of one process waited for %v: %.2f %% of a processor, %.2f commands per second", waiters, took, 100*cpu.Seconds()/took.Seconds(), float64(commands)/took.Seconds())
}

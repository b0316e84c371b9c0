package session

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// A server is paused during a thousand calls, and each call leaves after 30 ms. When the server is back, all grants are
// released soon, without one goroutine per call.
func TestReconcile_aThousandAbandonedCalls(t *testing.T) {
	for _, broken := range []bool{false, true} {
		t.Run(fmt.Sprintf("broken %v", broken), func(t *testing.T) {
			const calls, few = 1000, 100
			server := redistest.Start(t)
			wire := redistest.NewProxy(t, server.Addr())
			s := New(server.Client(t, redistest.Via(wire), oneConnection), testConfig())
			w := &world{T: t}
			defer w.close(s)
			w.unlock(w.lock(s, t.Context())) // loads the scripts
			before := runtime.NumGoroutine()

			server.Freeze(t)
			var calling sync.WaitGroup
			for i := range calls {
				calling.Go(func() {
					w.wantFail(s.TryLock, w.within(30*time.Millisecond), s.NewSpec(plain, fmt.Sprint("orders", i), nil))
				})
			}
			calling.Wait()
			if broken {
				wire.CutAll()
			}
			server.Thaw(t) // it executes the commands that it had received

			keys := func() int64 {
				size := server.Do(t, "DBSIZE")
				n, err := size.ToInt64()
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
			back := time.Now()
			for more := calls; more > few || keys() > 0; more = runtime.NumGoroutine() - before {
				if time.Since(back) > leaseTime/2 { // enough for a busy machine, and less than the keys live if nothing releases them
					t.Fatalf("after %v there are %d goroutines more than before, and %d keys", time.Since(back), more, keys())
				}
				time.Sleep(time.Millisecond)
			}
			t.Logf("all is free, and %d goroutines more are left, %v after the server was back", runtime.NumGoroutine()-before, time.Since(back))
		})
	}
}

// One goroutine reconciles all pending locks, at increasing intervals until their leases have expired. Close does not
// wait for these intervals.
func TestReconcile_oneGoroutine(t *testing.T) {
	inBubble(t, func(w *world) {
		w.unlock(w.lock(w.a, w.Context()))
		for i := range 50 {
			w.loseReply(w.a.NewSpec(plain, fmt.Sprint("orders", i), nil))
			synctest.Wait()
		}
		w.wire.OnRequest(nil)
		time.Sleep(2 * opTime)
		synctest.Wait()
		q := w.a.reconcilers.nodes[0]
		q.mu.Lock()
		left, workers := len(q.queue), q.workers
		q.mu.Unlock()
		if left == 0 || workers != 1 {
			w.Errorf("got %d pending and %d goroutines, want some and one", left, workers)
		}
		start := time.Now()
		if err := w.a.Close(w.Context()); err != nil || time.Since(start) != 0 {
			w.Errorf("Close: %v after %v", err, time.Since(start))
		}
		if q.workers != 0 || len(q.of) != 0 {
			w.Errorf("left: %d goroutines and %d pending", q.workers, len(q.of))
		}
	})
}

// loseReply makes session a leave a request immediately. The server executes it, and its reply is lost.
func (w *world) loseReply(spec *Spec) {
	w.Helper()
	w.onNext(redistest.Action{DropReply: true})
	w.wantFail(w.a.TryLock, w.within(time.Nanosecond), spec)
}

// An entry that becomes due before the time until which a worker sleeps does not wait for that time.
func TestReconcile_earliestFirst(t *testing.T) {
	inBubble(t, func(w *world) {
		w.unlock(w.lock(w.a, w.Context()))
		abandon := func(name string) {
			w.onNext(redistest.Action{DelayReply: 2 * time.Second, DropReply: true})
			w.wantFail(w.a.TryLock, w.within(time.Second), w.a.NewSpec(plain, name, []lock.Option{lock.WithFixedLease(time.Hour)}))
		}
		abandon("long ago")
		time.Sleep(10 * time.Minute) // the intervals are that long by now
		abandon("just now")
		w.mini.SetError("LOADING the first attempt to take it back fails")
		time.Sleep(1100 * time.Millisecond)
		w.mini.SetError("")
		time.Sleep(opTime)
		synctest.Wait()
		w.wantEmpty()
	})
}

// rueidis may report the deadline for the reply to WAIT as an error of the context, although the caller's context has none.
// Earlier errors, and replies, are what they are.
func TestReplicas_deadline(t *testing.T) {
	for _, c := range []struct {
		after     time.Duration
		err, want error
	}{
		{time.Second, context.DeadlineExceeded, command.NoReply{After: opTime + time.Second}},
		{time.Second / 2, io.EOF, io.EOF},
		{time.Second, nil, nil},
	} {
		inBubble(t, func(w *world) {
			k := onRequest(plain, func(request) (luascripts.Acquired, error) {
				time.Sleep(c.after)
				return luascripts.Acquired{}, c.err
			})
			q := acquireRequest{t: &acquisition{at: &entry{s: w.a}}, spec: w.a.NewSpec(k, "orders", []lock.Option{lock.WithReplicas(1, time.Second)})}
			if _, err := (replicatedRequest{q, w.within(time.Second)}).Send(w.Context()); err != c.want {
				w.Errorf("%v after %v: %v", c.err, c.after, err)
			}
		})
	}
}

// The reply to WAIT never arrives, and rueidis has no timeout for it. The call has one. Then the connection is closed
// and the key is released long before its lease expires.
func TestReplicas_lostReplyToWAIT(t *testing.T) {
	for _, pipelines := range []bool{false, true} {
		t.Run(fmt.Sprintf("pipelines %v", pipelines), func(t *testing.T) { testLostReplyToWait(t, pipelines) })
	}
}

func testLostReplyToWait(t *testing.T, pipelines bool) {
	server := redistest.Start(t)
	wire := redistest.NewProxy(t, server.Addr())
	never := make(chan struct{})
	t.Cleanup(func() { close(never) })
	wire.OnRequest(func(req [][]byte) (a redistest.Action) {
		if string(req[0]) == "WAIT" {
			a.HoldReply = never
		}
		return a
	})
	c := testConfig()
	c.OpTimeout = time.Second
	s := New(server.Client(t, redistest.Via(wire), func(o *rueidis.ClientOption) { o.AlwaysPipelining = pipelines }), c)
	spec := s.NewSpec(plain, "orders", []lock.Option{lock.WithReplicas(1, 100*time.Millisecond)})
	start := time.Now()
	_, err := s.TryLock(context.Background(), spec)
	if !errors.As(err, new(command.NoReply)) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the error of a missing reply", err)
	}
	left := func() (keys int64, waits bool) {
		size, clients := server.Do(t, "DBSIZE"), server.Do(t, "CLIENT", "LIST")
		keys, err1 := size.ToInt64()
		list, err2 := clients.ToString()
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		return keys, strings.Contains(list, "cmd=wait")
	}
	for keys, waits := left(); keys > 0 || waits; keys, waits = left() {
		if time.Since(start) > leaseTime/2 { // leaves time for a slow machine
			t.Errorf("after %v: %d keys; a connection is left: %v", time.Since(start), keys, waits)
			break
		}
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaseTime/2)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// abandoned makes session a abandon a request that the server executes without a reply.
func (w *world) abandoned(k *Kind, opts ...lock.Option) {
	w.Helper()
	w.unlock(w.lock(w.a, w.Context())) // loads the scripts
	w.loseReply(w.a.NewSpec(k, "orders", opts))
}

// pending returns the number of pending entries of session a.
func (w *world) pending() int {
	synctest.Wait()
	q := w.a.reconcilers.nodes[0]
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.of)
}

// A command with an unknown outcome is reconciled repeatedly until its lease must have expired. If it left only a queue
// position, one confirmation is enough.
func TestReconcile_ends(t *testing.T) {
	inBubble(t, func(w *world) {
		wantPending := func(want int) {
			w.Helper()
			if n := w.pending(); n != want {
				w.Errorf("got %d pending, want %d", n, want)
			}
		}
		for _, lease := range []time.Duration{leaseTime, 7 * opTime} { // the second expires, at the latest, after one of the intervals
			w.abandoned(plain, lock.WithFixedLease(lease))
			time.Sleep(leaseTime)
			wantPending(1)
			time.Sleep(2 * leaseTime)
			wantPending(0)
		}

		h := w.lock(w.b, w.Context())
		ctx, cancel := context.WithCancel(w.Context())
		gone := w.waiting(w.a, ctx)
		cancel()
		<-gone
		wantPending(0)
		w.unlock(h)
	})
}

// The server does not reply any more. The session gives up on a pending lock when its lease must have expired, and
// earlier if Close does not wait for that.
func TestReconcile_givesUp(t *testing.T) {
	forEach(t, map[string]func(w *world){
		"at the end of the lease": func(*world) { time.Sleep(2 * leaseTime) },
		"at Close":                func(w *world) { w.wantErr(w.a.Close(w.within(time.Second))) },
	}, func(w *world, end func(w *world)) {
		w.abandoned(plain)
		w.cut()
		end(w)
		if n := w.pending(); n != 0 {
			w.Errorf("got %d pending", n)
		}
		time.Sleep(2 * leaseTime)
	})
}

// Close repeats a confirmed release at once. If Redis refuses connections, it retries with pauses.
func TestReconcile_closeRefused(t *testing.T) {
	inBubble(t, func(w *world) {
		var sent atomic.Int64
		k := onRelease(plain, func(r release) (luascripts.Released, error) {
			if sent.Add(1) > 100 {
				time.Sleep(time.Second) // without any pause, time would stand still
			}
			return r.send()
		})
		w.abandoned(k)
		synctest.Wait()
		w.wantSent(&sent, 1)
		w.cut()
		w.wantErr(w.a.Close(w.within(time.Second)))
		if n := sent.Load(); n < 3 || n > 50 {
			w.Errorf("%d releases, want one at once and some retries", n)
		}
	})
}

// A release that is confirmed while Close waits is repeated at once, even if a worker already sleeps until another one is due.
func TestReconcile_confirmedDuringClose(t *testing.T) {
	inBubble(t, func(w *world) {
		var reconciles atomic.Bool
		var confirmed atomic.Int64
		replies := make(chan struct{})
		k := onRelease(plain, func(r release) (luascripts.Released, error) {
			switch {
			case !reconciles.Load():
				return r.send()
			case r.keys.Lock == "fails":
				return luascripts.Released{}, io.EOF
			}
			<-replies
			confirmed.Add(1)
			return luascripts.Released{Verdict: luascripts.Gone}, nil
		})
		var ended []*acquisition
		for _, name := range []string{"fails", "orders"} {
			h := w.mustLock(w.Context(), w.a.NewSpec(k, name, nil))
			w.unlock(h)
			ended = append(ended, h.(*hold).acquisition())
		}
		reconciles.Store(true)
		for _, t := range ended {
			w.a.reconcile(t, true)
			synctest.Wait()
		}
		closed := w.begin(func() error { return w.a.Close(w.within(time.Second)) })
		close(replies)
		synctest.Wait()
		w.wantSent(&confirmed, 2) // with the repetition, at once
		<-closed
	})
}

// The last repetition is due more than a lease after the first command, and fails at first. It is retried, because a
// duplicate may have been executed just before.
func TestReconcile_lastRepetitionFails(t *testing.T) {
	inBubble(t, func(w *world) {
		k, execute := w.failOnce()
		w.unlock(w.take(w.a, k, w.Context()))
		const last = (1 + 2 + 4 + 8) * opTime
		time.Sleep(last - time.Second)
		execute()
		w.mini.SetError("LOADING it will pass")
		time.Sleep(3 * time.Second / 2)
		w.mini.SetError("")
		time.Sleep(pollTime)
		w.wantFree()
	})
}

// Another server was promoted, and rueidis closes its connection to the old one during a wait and during a release:
// both continue on the next connection.
func TestClosing_connection(t *testing.T) {
	inBubble(t, func(w *world) {
		var broken atomic.Bool
		k := onRequest(plain, func(r request) (luascripts.Acquired, error) {
			if broken.Load() {
				return luascripts.Acquired{}, rueidis.ErrClosing
			}
			return r.send()
		})
		k = onRelease(k, func(r release) (luascripts.Released, error) {
			if broken.Load() {
				return luascripts.Released{}, rueidis.ErrClosing
			}
			return r.send()
		})
		for range 2 {
			h := w.lock(w.b, w.Context())
			holds := w.goLock(w.a, k, w.Context())
			broken.Store(true)
			time.Sleep(2 * pollTime)
			broken.Store(false)
			w.unlock(h)
			h = <-holds
			broken.Store(true)
			w.wantErr(h.Unlock(w.Context()), lock.ErrUnavailable)
			time.Sleep(opTime)
			broken.Store(false)
			time.Sleep(pollTime)
			w.wantFree()
		}
	})
}

// The application closes the rueidis client during a wait, a hold and a pending reconciliation: no call waits for it,
// and nothing keeps running.
func TestClosing_client(t *testing.T) {
	for _, k := range []*Kind{plain, fair} {
		inBubble(t, func(w *world) {
			rdb := w.mini.Client(w)
			s := New(rdb, testConfig())
			h := w.take(s, k, w.Context())
			other := w.must(s.Lock(w.Context(), s.NewSpec(k, "other", nil)))
			first, second := w.beginLock(s, k, w.within(time.Hour)), w.beginLock(s, k, w.within(time.Hour))
			rdb.Close()
			start := time.Now()
			w.wantErr(<-first, rueidis.ErrClosing)
			w.wantErr(<-second, rueidis.ErrClosing)
			w.wantWithin(start, 2*pollTime)
			start = time.Now()
			if _, err := s.TryLock(w.Context(), s.NewSpec(k, "new", nil)); !errors.Is(err, rueidis.ErrClosing) || errors.Is(err, lock.ErrUnavailable) {
				w.Errorf("TryLock: %v", err)
			}
			for _, h := range []lock.Hold{h, other} {
				w.wantErr(h.Unlock(w.Context()), rueidis.ErrClosing)
			}
			if err := s.Close(w.Context()); err != nil || time.Since(start) != 0 {
				w.Errorf("Close: %v, after %v for all", err, time.Since(start))
			}
			w.mini.FlushAll() // no lock could be released
		})
	}
}

// rueidis 1.0.79 forgets that it was closed if it failed to connect before: it returns that error once more, and then
// reconnects. A closed client therefore looks like an unavailable server. If this test fails, rueidis can tell them
// apart, and the documentation of client.New can guarantee more.
func TestClosing_clientAfterAFailedDial(t *testing.T) {
	inBubble(t, func(w *world) {
		var down atomic.Bool
		rdb := w.mini.Client(w, redistest.Via(w.wire), refusedDials(&down))
		s := New(rdb, testConfig())
		w.unlock(w.take(s, plain, w.Context()))
		down.Store(true)
		w.wire.CutAll()
		w.wantFail(s.TryLock, w.Context(), s.NewSpec(plain, "orders", nil), syscall.ECONNREFUSED)
		rdb.Close()
		if _, err := s.Lock(w.within(time.Hour), s.NewSpec(plain, "orders", nil)); !errors.Is(err, lock.ErrUnavailable) || errors.Is(err, rueidis.ErrClosing) {
			w.Errorf("closed, while it is down: %v", err)
		}
		down.Store(false)
		w.unlock(w.take(s, plain, w.Context()))
		w.close(s)
		rdb.Close()
	})
}

// The server becomes a replica during WAIT and replies UNBLOCKED, or that WAIT is not allowed. The wait continues, and
// acquires the lock when WAIT works again. A TryLock that gets only such replies fails with ErrUnavailable, and leaves
// nothing.
func TestReplicas_whenWaitIsUnblocked(t *testing.T) {
	t.Parallel()
	server, replica := redistest.Start(t), redistest.Start(t)
	host, port, _ := net.SplitHostPort(server.Addr())
	replica.Do(t, "REPLICAOF", host, port)
	replica.WaitUntilFollows(t, server)
	for _, refusal := range []string{
		"UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
		"ERR WAIT cannot be used with replica instances. Please also note that since Redis 4.0 if a replica is configured to be writable writes are just local.",
	} {
		wire := redistest.NewProxy(t, server.Addr())
		var refused, left atomic.Int64
		wire.OnRequest(func(req [][]byte) (a redistest.Action) {
			if string(req[0]) == "WAIT" && left.Add(-1) >= 0 {
				refused.Add(1)
				a.Refuse = refusal
			}
			return a
		})
		c := testConfig()
		c.OpTimeout = 5 * time.Second
		s := New(server.Client(t, redistest.Via(wire)), c)
		spec := s.NewSpec(plain, "orders", []lock.Option{lock.WithReplicas(1, 5*time.Second)})
		left.Store(3)
		h, err := s.Lock(t.Context(), spec)
		if err != nil || refused.Load() != 3 {
			t.Fatalf("%s: %v after %d refusals", refusal, err, refused.Load())
		}
		if err := h.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		left.Store(1 << 30)
		if _, err := s.TryLock(t.Context(), spec); !errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrReplicas) || errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("%s: TryLock: %v", refusal, err)
		}
		left.Store(0)
		if err := s.Close(t.Context()); err != nil { // it has released the grants of the script
			t.Error(err)
		}
		if keys := server.LockKeys(t); len(keys) > 0 {
			t.Errorf("%s: %q are left", refusal, keys)
		}
	}
}

// Each test here fails without one guard of the reconciler.

// garbledReentry is the plain kind. A reentry while breaks is true is not executed, and gets an invalid reply. A
// reentry while late is true is executed, and gets its reply when goes is closed.
func garbledReentry(breaks, late *atomic.Bool, goes <-chan struct{}) *Kind {
	return onRequest(plain, func(r request) (luascripts.Acquired, error) {
		if r.Want > 1 && breaks.Load() {
			return luascripts.Acquired{}, errGarbled
		}
		a, err := r.send()
		if r.Want > 1 && late.Load() {
			<-goes
		}
		return a, err
	})
}

// A reentry with an unknown outcome is reconciled again while another reentry is in flight. The reconciler waits for
// the owner's turn: otherwise Redis would count one hold of two.
func TestReconcile_waitsForTheOwnersTurn(t *testing.T) {
	inBubble(t, func(w *world) {
		var breaks, late atomic.Bool
		goes := make(chan struct{})
		k := garbledReentry(&breaks, &late, goes)
		h := w.take(w.a, k, w.Context())
		breaks.Store(true)
		w.wantFail(w.a.Lock, h.Context(), w.a.NewSpec(k, "orders", nil))
		breaks.Store(false)
		time.Sleep(opTime - time.Millisecond) // just before it is reconciled again
		late.Store(true)
		again := w.goLock(w.a, k, h.Context())
		time.Sleep(2 * time.Millisecond)
		close(goes)
		inner := w.next(again)
		for range 2 {
			w.wantCount(h, 2)
			time.Sleep(pollTime)
		}
		w.unlockAll(inner, h)
	})
}

// A reentry fails without a reply, and the lock is gone. The reconciler detects that: the holder is notified
// immediately, and not at the next renewal.
func TestReconcile_detectsALoss(t *testing.T) {
	inBubble(t, func(w *world) {
		var breaks, never atomic.Bool
		k := garbledReentry(&breaks, &never, nil)
		h := w.take(w.a, k, w.Context())
		w.mini.Del("orders") // publishes no message
		breaks.Store(true)
		w.wantFail(w.a.Lock, h.Context(), w.a.NewSpec(k, "orders", nil))
		select { // the reconciler continues soon if the caller has released its turn
		case <-h.Context().Done():
		case <-time.After(pollTime):
		}
		w.wantErr(h.Err(), lock.ErrLost)
	})
}

// A request is executed but gets no reply, and its caller has left. Another waiter of this process, which receives no
// messages, acquires the lock as soon as it is released.
func TestReconcile_wakesLocalWaiters(t *testing.T) {
	inBubble(t, func(w *world) {
		w.withoutPubSub()
		late := make(chan struct{})
		k := onRequest(plain, func(r request) (luascripts.Acquired, error) {
			a, err := r.send()
			if r.n == 1 {
				<-late
				return luascripts.Acquired{}, io.EOF
			}
			return a, err
		})
		ctx, cancel := context.WithCancel(w.Context())
		gone := w.goLock(w.a, k, ctx)
		next := w.goLock(w.a, k, w.Context())
		cancel()
		<-gone
		time.Sleep(pollTime / 2) // the next waiter has sent a request, and sends none now
		start := time.Now()
		close(late)
		h := <-next
		w.wantTook(start, 0)
		w.wire.OnRequest(nil)
		w.unlock(h)
	})
}

// failTwice is the plain kind. The first request fails immediately, and the second when late is closed. Neither is
// executed before; execute makes the server execute the second.
func (w *world) failTwice(late <-chan struct{}) (k *Kind, execute func()) {
	k = onRequest(plain, func(r request) (luascripts.Acquired, error) {
		switch r.n {
		case 1:
			return luascripts.Acquired{}, io.EOF
		case 2:
			execute = func() { w.duplicate(r) }
			<-late
			return luascripts.Acquired{}, io.EOF
		}
		return r.send()
	})
	return k, func() { synctest.Wait(); execute() }
}

// Two requests for one hold fail. The first failed long ago, so the reconciler's intervals are long when the second
// fails. The intervals start over: if the server executes a duplicate a moment later, the lock does not stay without a
// holder.
func TestReconcile_restartsItsIntervals(t *testing.T) {
	inBubble(t, func(w *world) {
		late := make(chan struct{})
		k, execute := w.failTwice(late)
		w.unlock(w.take(w.a, k, w.Context()))
		const fourth = (1 + 2 + 4) * opTime // after the fourth command; the fifth is due as much later
		time.Sleep(fourth + time.Second)
		close(late)
		time.Sleep(time.Second)
		execute()
		time.Sleep(opTime)
		w.wantFree()
	})
}

// disconnected makes the server unreachable for session a, for this long.
func (w *world) disconnected(d time.Duration) {
	w.cut()
	time.Sleep(d)
	w.wire.Refuse(false)
}

// A process is disconnected while it waits in a queue, and gives up. Its queue position outlives a lease, so it is
// removed even if the server is back after more than a lease.
func TestReconcile_outlastsTheWaiterTimeout(t *testing.T) {
	inBubble(t, func(w *world) {
		const waiterTimeout = 2 * leaseTime
		h := w.take(w.b, fair, w.Context())
		ctx, cancel := context.WithCancel(w.Context())
		gone := w.waitingFor(w.a, ctx, w.a.NewSpec(fair, "orders", []lock.Option{lock.WithWaiterTimeout(waiterTimeout)}))
		time.AfterFunc(time.Millisecond, cancel)
		w.disconnected(waiterTimeout - 2*pollTime)
		<-gone
		time.Sleep(pollTime + pollTime/2)
		if queued, _ := w.mini.List("redisson_lock_queue:{orders}"); len(queued) != 0 {
			w.Errorf("queued: %q", queued)
		}
		w.unlock(h)
	})
}

// A duplicate of a request is executed almost an operation timeout after the request failed, and then the server is
// unreachable. It is back after the duplicate has kept the lock for almost a lease, which is more than a lease after
// the request. The lock is released.
func TestReconcile_outlastsADelayedDuplicate(t *testing.T) {
	inBubble(t, func(w *world) {
		k, execute := w.failOnce()
		w.unlock(w.take(w.a, k, w.Context()))
		time.Sleep(opTime - time.Millisecond) // just before it is reconciled again
		const ms = time.Millisecond
		time.AfterFunc(opTime, execute)
		w.disconnected(leaseTime + opTime - pollTime - 300*ms)
		if !w.mini.Exists("orders") {
			w.Error("the duplicate was not executed")
		}
		time.Sleep(pollTime + 100*ms)
		w.wantFree()
	})
}

// slowRelease is k. It counts the releases, including those of the reconciler. The nth is executed, and gets its reply
// when delayed is closed.
func slowRelease(k *Kind, nth int, delayed <-chan struct{}) (slow *Kind, sent *atomic.Int64) {
	sent = new(atomic.Int64)
	return onRelease(k, func(r release) (luascripts.Released, error) {
		sent.Add(1)
		reply, err := r.send()
		if r.n == nth {
			<-delayed
		}
		return reply, err
	}), sent
}

// add is called for a hold while it is being reconciled. The same worker reconciles it again immediately afterwards.
func TestReconcile_oneAtATime(t *testing.T) {
	inBubble(t, func(w *world) {
		late, reply := make(chan struct{}), make(chan struct{})
		k, _ := w.failTwice(late)
		k, sent := slowRelease(k, 2, reply) // the release, and the first command of the reconciler
		w.unlock(w.take(w.a, k, w.Context()))
		synctest.Wait() // that command is in flight
		close(late)
		synctest.Wait()
		w.wantSent(sent, 2) // the release, and the first repetition, which has no reply
		close(reply)
		synctest.Wait()
		w.wantSent(sent, 3) // a repetition for the second entry
	})
}

// Close repeats the command of each confirmed entry once. It also repeats the command of an entry that is being
// reconciled: its first repetition is the second command, after the release.
func TestReconcile_closeRepeatsOnce(t *testing.T) {
	forEach(t, map[string]int{"before a repetition": 0, "during a repetition": 3}, func(w *world, slow int) {
		reply := make(chan struct{})
		k, _ := w.failOnce()
		k, sent := slowRelease(k, slow, reply)
		w.unlock(w.take(w.a, k, w.Context()))
		time.Sleep(opTime + time.Millisecond)
		w.wantSent(sent, 3) // the release and two repetitions
		closed := w.beginClose()
		close(reply)
		w.wantNoErr(<-closed)
		if n := sent.Load() - 3; n != 1 {
			w.Errorf("got %d repetitions during Close, want 1", n)
		}
	})
}

// Reconciling at one node of a cluster does not delay reconciling at another.
func TestReconcile_eachNodeSeparately(t *testing.T) {
	inBubble(t, func(w *world) {
		w.a.nodes.sliced = true
		first, second := &acquisition{spec: &Spec{slot: 0}}, &acquisition{spec: &Spec{slot: 16383}}
		w.a.nodes.slots.Due(time.Hour) // prevents a refresh, because the server is not a cluster
		all := &w.a.reconcilers
		if a, b := all.of(w.a, first), all.of(w.a, second); a == b || a != all.of(w.a, first) || b != all.of(w.a, second) {
			w.Error("want one reconciler for each node")
		}
		w.a.nodes.sliced = false
	})
}

// Two entries are due at the same time. The command for the first gets no reply: the second does not wait for it.
func TestReconcile_severalAtOnce(t *testing.T) {
	inBubble(t, func(w *world) {
		var stuck atomic.Bool
		goes := make(chan struct{})
		failed := make(map[string]request)
		k := onRequest(plain, func(r request) (luascripts.Acquired, error) {
			if _, again := failed[r.keys.Lock]; again {
				return r.send()
			}
			failed[r.keys.Lock] = r
			return luascripts.Acquired{}, io.EOF
		})
		k = onRelease(k, func(r release) (luascripts.Released, error) {
			if stuck.CompareAndSwap(true, false) {
				<-goes
			}
			return r.send()
		})
		a, b := w.mustLock(w.Context(), w.a.NewSpec(k, "a", nil)), w.mustLock(w.Context(), w.a.NewSpec(k, "b", nil))
		w.unlockAll(a, b)
		time.Sleep(opTime - time.Millisecond)
		for _, r := range failed {
			w.duplicate(r)
		}
		stuck.Store(true)
		time.Sleep(2 * time.Millisecond)
		if n := len(w.mini.Keys()); n != 1 {
			w.Errorf("%d locks have no holder, want the one whose repetition has no reply", n)
		}
		close(goes)
	})
}

// Two entries are pending, and one of them is due later. add is called for that one: it is reconciled immediately, and
// does not wait for the other.
func TestReconcile_addedAgainIsDueNow(t *testing.T) {
	inBubble(t, func(w *world) {
		late := make(chan struct{})
		k, _ := w.failTwice(late)
		k, sent := slowRelease(k, 0, nil)
		w.unlock(w.take(w.a, k, w.Context()))
		time.Sleep(opTime + time.Second) // it was reconciled again, and the next interval is twice as long
		other, _ := w.failOnce()
		w.unlock(w.mustLock(w.Context(), w.a.NewSpec(other, "other", nil)))
		synctest.Wait()
		before := sent.Load()
		close(late)
		synctest.Wait()
		if n := sent.Load() - before; n != 1 {
			w.Errorf("got %d repetitions for the new entry, want 1", n)
		}
	})
}

// Close begins while one release waits for a retry after an error, and another for its last repetition. The repetition
// becomes due now, and so comes first.
func TestReconcile_closeMakesItDue(t *testing.T) {
	now := time.Now()
	var q reconciler
	repeat, check := &pending{due: now.Add(time.Second)}, &pending{due: now.Add(time.Minute), repeats: true, broken: true}
	heap.Push(&q.queue, repeat)
	heap.Push(&q.queue, check)
	q.hurryLocked()
	if q.queue[0] != check || check.due.After(time.Now()) || check.broken || !repeat.due.Equal(now.Add(time.Second)) {
		t.Errorf("the first is %+v, the next is %+v", q.queue[0], q.queue[1])
	}
}

// A reentry without a reply may keep the lock for its own lease, which is longer than the lease of the first hold.
func TestReconcile_outlastsTheLongestLease(t *testing.T) {
	inBubble(t, func(w *world) {
		outer := w.lock(w.a, w.Context(), lock.WithFixedLease(2*time.Second))
		w.onNext(redistest.Action{DropReply: true})
		w.wire.Refuse(true)
		short, cancel := context.WithTimeout(outer.Context(), time.Second)
		defer cancel()
		w.wantFail(w.a.Lock, short, w.a.NewSpec(plain, "orders", []lock.Option{lock.WithFixedLease(time.Hour)}))
		time.Sleep(time.Minute) // the outer lease has long expired
		w.wantTTL(30*time.Minute, time.Hour)
		w.wire.Refuse(false)
		time.Sleep(2 * opTime)
		synctest.Wait()
		w.wantEmpty()
		w.wantErr(outer.Err(), lock.ErrLost)
	})
}

// An entry that is made due again is next, wherever it was in the queue.
func TestPendings(t *testing.T) {
	now := time.Now()
	for again := range 7 {
		var q pendings
		var all []*pending
		for i := range 7 {
			all = append(all, &pending{due: now.Add(time.Duration(7 - i))})
			heap.Push(&q, all[i])
		}
		all[again].due = now
		heap.Fix(&q, all[again].index)
		before := now
		for n := range 7 {
			d := heap.Pop(&q).(*pending)
			if n == 0 && d != all[again] || d.due.Before(before) || d.index != -1 {
				t.Errorf("entry %d was made due again: number %d is due %v after it, with the index %d", again, n, d.due.Sub(now), d.index)
			}
			before = d.due
		}
	}
}

package session

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
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

// A server stands still while a thousand calls come, and each is given up after 30 ms. When
// the server is back, all is taken back soon, and no goroutine is left for each of them.
//
//  1. The server stops.
//  2. A thousand calls are given up.
//  3. Their connection breaks, or does not.
//  4. The server goes on: it carries out what it had received.
func TestSettle_aThousandAbandonedCalls(t *testing.T) {
	for _, broken := range []bool{false, true} {
		t.Run(fmt.Sprintf("broken %v", broken), func(t *testing.T) {
			const calls, few = 1000, 100
			server := redistest.Start(t)
			wire := redistest.NewProxy(t, server.Addr())
			s := New(server.Client(t, redistest.Via(wire), func(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 }), testConfig())
			defer func() {
				if err := s.Close(context.Background()); err != nil {
					t.Error(err)
				}
			}()
			h, err := s.Lock(t.Context(), s.NewSpec(plain, "warm", nil)) // the server knows the scripts from now on
			if err == nil {
				err = h.Unlock(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			before := runtime.NumGoroutine()

			server.Freeze(t) // 1
			var calling sync.WaitGroup
			for i := range calls { // 2
				calling.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
					defer cancel()
					if _, err := s.TryLock(ctx, s.NewSpec(plain, fmt.Sprint("orders", i), nil)); err == nil {
						t.Error("granted by a server that stands still")
					}
				})
			}
			calling.Wait()
			if broken {
				wire.CutAll() // 3
			}
			server.Thaw(t) // 4

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
				if time.Since(back) > leaseTime/2 { // a busy machine has that time; by themselves the keys live for longer
					t.Fatalf("after %v there are %d goroutines more than before, and %d keys", time.Since(back), more, keys())
				}
				time.Sleep(time.Millisecond)
			}
			t.Logf("all is free, and %d goroutines more are left, %v after the server was back", runtime.NumGoroutine()-before, time.Since(back))
		})
	}
}

// One goroutine looks again at every lock in doubt, at times that come closer to the end of the lease.
// Close does not wait for those times.
func TestSettle_looksAgainWithOneGoroutine(t *testing.T) {
	inBubble(t, func(w *world) {
		w.unlock(w.lock(w.a, w.Context()))
		const many = 50
		for i := range many {
			w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DropReply: true}))
			ctx, cancel := context.WithCancel(w.Context())
			time.AfterFunc(time.Nanosecond, cancel)
			_, _ = w.a.TryLock(ctx, w.a.NewSpec(plain, fmt.Sprint("orders", i), nil))
			synctest.Wait()
		}
		w.wire.OnRequest(nil)
		time.Sleep(2 * opTime)
		synctest.Wait()
		q := w.a.settlers.nodes[0]
		q.mu.Lock()
		left, workers := len(q.queue), q.workers
		q.mu.Unlock()
		if left == 0 || workers != 1 {
			w.Errorf("%d in doubt, and %d goroutines, want some and one", left, workers)
		}
		start := time.Now()
		if err := w.a.Close(w.Context()); err != nil || time.Since(start) != 0 {
			w.Errorf("Close: %v after %v", err, time.Since(start))
		}
		if q.workers != 0 || len(q.of) != 0 {
			w.Errorf("left: %d goroutines and %d in doubt", q.workers, len(q.of))
		}
	})
}

// What becomes due sooner than what a goroutine sleeps for does not wait for that.
func TestSettle_whatIsDueFirstComesFirst(t *testing.T) {
	inBubble(t, func(w *world) {
		w.unlock(w.lock(w.a, w.Context()))
		spec := func(name string) *Spec {
			return w.a.NewSpec(plain, name, []lock.Option{lock.WithFixedLease(time.Hour)})
		}
		abandon := func(name string) {
			ctx, cancel := context.WithTimeout(w.Context(), time.Second)
			defer cancel()
			if _, err := w.a.TryLock(ctx, spec(name)); err == nil {
				w.Errorf("%s: granted", name)
			}
		}
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayReply: 2 * time.Second, DropReply: true}))
		abandon("long ago")
		time.Sleep(10 * time.Minute) // by now, the pauses are that long
		w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayReply: 2 * time.Second, DropReply: true}))
		abandon("just now")
		w.mini.SetError("LOADING the first attempt to take it back fails")
		time.Sleep(1100 * time.Millisecond)
		w.mini.SetError("")
		time.Sleep(opTime)
		synctest.Wait()
		if keys := w.mini.Keys(); len(keys) != 0 {
			w.Errorf("left: %q", keys)
		}
	})
}

// The answer to WAIT never comes, and the client library sets no bound for it. The call has
// one, and then the connection is closed and the key is given back long before its lease ends.
func TestReplicas_whenTheAnswerToWaitIsLost(t *testing.T) {
	for _, pipelines := range []bool{false, true} {
		t.Run(fmt.Sprintf("pipelines %v", pipelines), func(t *testing.T) { testLostWait(t, pipelines) })
	}
}

func testLostWait(t *testing.T, pipelines bool) {
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
	if !errors.As(err, new(command.NoAnswer)) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want that there was no answer", err)
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
		if time.Since(start) > leaseTime/2 { // a busy machine has that time
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

// abandoned has session a give up a question that the server carries out unheard.
func (w *world) abandoned() {
	w.Helper()
	w.unlock(w.lock(w.a, w.Context())) // the server knows the scripts
	w.wire.OnRequest(redistest.Once("EVALSHA", redistest.Action{DropReply: true}))
	ctx, cancel := context.WithCancel(w.Context())
	time.AfterFunc(time.Nanosecond, cancel)
	if _, err := w.a.TryLock(ctx, w.a.NewSpec(plain, "orders", nil)); err == nil {
		w.Error("granted unheard")
	}
}

// inDoubt is how much session a has to settle.
func (w *world) inDoubt() int {
	synctest.Wait()
	q := w.a.settlers.nodes[0]
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.of)
}

// What broke off is looked at again until its lease must be over, and then no more. What left
// nothing but a place in line is settled when that is confirmed.
func TestSettle_ends(t *testing.T) {
	inBubble(t, func(w *world) {
		w.abandoned()
		time.Sleep(leaseTime)
		if n := w.inDoubt(); n != 1 {
			w.Errorf("%d in doubt, while its lease lasts", n)
		}
		time.Sleep(2 * leaseTime)
		if n := w.inDoubt(); n != 0 {
			w.Errorf("%d in doubt, long after the lease", n)
		}

		h := w.lock(w.b, w.Context())
		ctx, cancel := context.WithCancel(w.Context())
		gone := w.waiting(w.a, ctx)
		cancel()
		<-gone
		if n := w.inDoubt(); n != 0 {
			w.Errorf("%d in doubt, and nothing broke off", n)
		}
		w.unlock(h)
	})
}

// The server does not answer any more. The session gives up a lock in doubt when its lease must be
// over, and sooner if Close does not wait for that.
func TestSettle_givesUp(t *testing.T) {
	for _, closes := range []bool{false, true} {
		t.Run(fmt.Sprintf("Close %v", closes), func(t *testing.T) {
			inBubble(t, func(w *world) {
				w.abandoned()
				w.wire.Refuse(true)
				w.wire.CutAll()
				if closes {
					ctx, cancel := context.WithTimeout(w.Context(), time.Second)
					defer cancel()
					if err := w.a.Close(ctx); err == nil {
						w.Error("Close: all is settled")
					}
				} else {
					time.Sleep(2 * leaseTime)
				}
				if n := w.inDoubt(); n != 0 {
					w.Errorf("%d in doubt", n)
				}
				time.Sleep(2 * leaseTime)
			})
		})
	}
}

// The last look comes longer after the first than the lease lasts, and fails at first. It is
// repeated: a copy may have been carried out just before.
func TestSettle_theLastLookFails(t *testing.T) {
	inBubble(t, func(w *world) {
		k, carryOut := w.brokenOnce()
		h, err := w.a.Lock(w.Context(), w.a.NewSpec(k, "orders", nil))
		if err != nil {
			w.Fatal(err)
		}
		w.unlock(h)
		const last = (1 + 2 + 4 + 8) * opTime
		time.Sleep(last - time.Second)
		carryOut()
		w.mini.SetError("LOADING it will pass")
		time.Sleep(3 * time.Second / 2)
		w.mini.SetError("")
		time.Sleep(pollTime)
		if w.mini.Exists("orders") {
			w.Errorf("the lock is held for %v more, without a holder", w.mini.TTL("orders"))
		}
	})
}

// Another server was promoted, and the client library closes its connection to the old one under a wait and under a release:
// both go on by the next connection.
func TestClosing_aConnection(t *testing.T) {
	inBubble(t, func(w *world) {
		k, broken := hookable(), new(atomic.Bool)
		acquire, pass := k.Acquire, k.Pass
		k.Acquire = func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Question) (luascripts.Acquired, error) {
			if broken.Load() {
				return luascripts.Acquired{}, rueidis.ErrClosing
			}
			return acquire(ctx, rdb, k, q)
		}
		k.Pass = func(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, owner string, p luascripts.Pass) (luascripts.Passed, error) {
			if broken.Load() {
				return luascripts.Passed{}, rueidis.ErrClosing
			}
			return pass(ctx, rdb, k, owner, p)
		}
		for range 2 {
			h := w.lock(w.b, w.Context())
			holds := w.goLock(w.a, k, w.Context())
			synctest.Wait()
			broken.Store(true)
			time.Sleep(2 * pollTime)
			broken.Store(false)
			w.unlock(h)
			h = <-holds
			broken.Store(true)
			if err := h.Unlock(w.Context()); !errors.Is(err, lock.ErrUnavailable) {
				w.Errorf("Unlock: %v", err)
			}
			time.Sleep(opTime)
			broken.Store(false)
			time.Sleep(pollTime)
			if w.mini.Exists("orders") {
				w.Error("the release was forgotten")
			}
		}
	})
}

// The application closes the rueidis client under a wait, a hold and a doubt: no call waits for it, and nothing goes on.
func TestClosing_theClient(t *testing.T) {
	for _, k := range []*Kind{plain, fair} {
		inBubble(t, func(w *world) {
			rdb := w.mini.Client(w)
			s := New(rdb, testConfig())
			h := w.take(s, k, w.Context())
			other, err := s.Lock(w.Context(), s.NewSpec(k, "other", nil))
			if err != nil {
				w.Fatal(err)
			}
			ended := make(chan error, 2)
			for range cap(ended) {
				go func() {
					_, err := s.Lock(w.within(time.Hour), s.NewSpec(k, "orders", nil))
					ended <- err
				}()
			}
			synctest.Wait()
			rdb.Close()
			start := time.Now()
			for range cap(ended) {
				if err := <-ended; !errors.Is(err, rueidis.ErrClosing) || time.Since(start) > 2*pollTime {
					w.Errorf("Lock: %v after %v", err, time.Since(start))
				}
			}
			start = time.Now()
			if _, err := s.TryLock(w.Context(), s.NewSpec(k, "new", nil)); !errors.Is(err, rueidis.ErrClosing) || errors.Is(err, lock.ErrUnavailable) {
				w.Errorf("TryLock: %v", err)
			}
			for _, h := range []lock.Hold{h, other} {
				if err := h.Unlock(w.Context()); !errors.Is(err, rueidis.ErrClosing) {
					w.Errorf("Unlock: %v", err)
				}
			}
			if err := s.Close(w.Context()); err != nil || time.Since(start) != 0 {
				w.Errorf("Close: %v, after %v for all", err, time.Since(start))
			}
			w.mini.FlushAll() // nothing could be given back
		})
	}
}

// rueidis 1.0.79 forgets that it was closed if it failed to connect before: it says that error once more, and then connects again. So a
// closed client cannot be told from a server that is down. Where this test goes red, rueidis has learnt to tell, and docs/evidence/guarantees.md can promise more.
func TestClosing_theClientAfterAFailedDial(t *testing.T) {
	inBubble(t, func(w *world) {
		var down atomic.Bool
		rdb := w.mini.Client(w, redistest.Via(w.wire), func(o *rueidis.ClientOption) {
			dial := o.DialCtxFn
			o.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, c *tls.Config) (net.Conn, error) {
				if down.Load() {
					return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
				}
				return dial(ctx, addr, d, c)
			}
		})
		s := New(rdb, testConfig())
		w.unlock(w.take(s, plain, w.Context()))
		down.Store(true)
		w.wire.CutAll()
		if _, err := s.TryLock(w.Context(), s.NewSpec(plain, "orders", nil)); !errors.Is(err, syscall.ECONNREFUSED) {
			w.Errorf("while it is down: %v", err)
		}
		rdb.Close()
		if _, err := s.Lock(w.within(time.Hour), s.NewSpec(plain, "orders", nil)); !errors.Is(err, lock.ErrUnavailable) || errors.Is(err, rueidis.ErrClosing) {
			w.Errorf("closed, while it is down: %v", err)
		}
		down.Store(false)
		w.unlock(w.take(s, plain, w.Context()))
		if err := s.Close(w.Context()); err != nil {
			w.Error(err)
		}
		rdb.Close()
	})
}

// The server becomes a replica while WAIT counts replicas, and says UNBLOCKED, or that WAIT cannot be used there. The wait goes on, and has the lock when
// WAIT counts again; a TryLock that meets that all the time fails with ErrUnavailable, and leaves nothing.
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
		c.OpTimeout = time.Second
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
		if err := s.Close(t.Context()); err != nil { // it has released what the script granted
			t.Error(err)
		}
		if keys := server.LockKeys(t); len(keys) > 0 {
			t.Errorf("%s: %q are left", refusal, keys)
		}
	}
}

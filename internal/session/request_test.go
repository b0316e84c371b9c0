package session

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
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

// Each test here fails without one guard of a request, or of its reply.

// The caller leaves, and the reply to its request is so late that rueidis may have sent a duplicate, or is an error. The request
// was granted, was refused without a trace in Redis, or had no reply. A copy is executed when the lock is free: it is free again
// soon.
func TestAbandoned_duplicateAfterALateReply(t *testing.T) {
	type test struct{ refused, noReply bool }
	forEach(t, map[string]test{"granted": {}, "refused": {refused: true}, "no reply": {noReply: true}}, func(w *world, c test) {
		var first request
		k := onRequest(plain, func(r request) (luascripts.Acquired, error) {
			first = r
			if c.noReply {
				time.Sleep(pollTime * 3 / 4)
				return luascripts.Acquired{}, io.EOF
			}
			a, err := r.send()
			time.Sleep(time.Second)
			return a, err
		})
		call := w.a.Lock
		if c.refused {
			call = w.a.TryLock
			other := w.lock(w.b, w.Context())
			time.AfterFunc(pollTime/2, func() { w.unlock(other) })
		}
		w.wantFail(call, w.within(pollTime/2), w.a.NewSpec(k, "orders", nil), context.DeadlineExceeded)
		time.Sleep(pollTime)
		w.wantFree()
		w.duplicate(first)
		time.Sleep(opTime)
		w.wantFree()
	})
}

// With replicas a slow reply does not indicate a duplicate: only the release is sent after it.
func TestReplicas_aSlowReplyIsNotReconciled(t *testing.T) {
	inBubble(t, func(w *world) {
		k := onRequest(plain, func(r request) (luascripts.Acquired, error) {
			replicas := r.Replicas
			r.Replicas = 0 // the in-memory server has none
			a, err := r.send()
			time.Sleep(time.Second)
			a.Confirmed = replicas
			return a, err
		})
		k, sent := slowRelease(k, 0, nil)
		w.unlock(w.take(w.a, k, w.Context(), lock.WithReplicas(1, 2*time.Second)))
		time.Sleep(leaseTime)
		w.wantSent(sent, 1) // only the release
	})
}

// The replicas do not respond, so WAIT blocks its connection. A call that ends before the replica timeout, because its
// context is canceled or the session is closed, does not keep the lock for the rest of that time, and does not delay Close.
func TestReplicas_endedDuringWAIT(t *testing.T) {
	unconfirmed := onRequest(plain, func(r request) (luascripts.Acquired, error) {
		r.Replicas = 0 // the in-memory server has none
		a, err := r.send()
		<-r.ctx.Done()
		return a, cmp.Or(err, r.ctx.Err())
	})
	for _, tries := range []bool{false, true} {
		inBubble(t, func(w *world) {
			call := w.lockOrTry(tries)
			spec := w.a.NewSpec(unconfirmed, "orders", []lock.Option{lock.WithReplicas(1, leaseTime/2)})
			w.wantFail(call, w.within(time.Second), spec, context.DeadlineExceeded)
			synctest.Wait()
			w.wantEmpty()

			failed := w.beginFail(call, w.Context(), spec)
			began := time.Now()
			w.close(w.a)
			w.wantTook(began, 0)
			w.wantErr(<-failed, lock.ErrClosed)
			w.wantEmpty()
		})
	}
}

// Redis replies that an earlier copy of the request was granted the lock and that this grant has ended. The caller
// retries.
func TestAbandoned_endedGrant(t *testing.T) {
	inBubble(t, func(w *world) {
		k := onRequest(plain, func(r request) (luascripts.Acquired, error) {
			if r.n == 1 {
				return luascripts.Acquired{Verdict: luascripts.Gone}, nil
			}
			return r.send()
		})
		w.unlock(w.take(w.a, k, w.Context()))
	})
}

// A refused TryLock keeps no subscription beyond the waiter before it.
func TestTryLock_keepsNoSubscription(t *testing.T) {
	inBubble(t, func(w *world) {
		w.lingering(plain)
		h := w.lock(w.b, w.Context())
		lingers := 0
		for w.a.hub.Channels() > 0 {
			if lingers++; lingers > 1000 {
				w.Fatal("the subscription never ends")
			}
			w.wantFail(w.a.TryLock, w.Context(), w.a.NewSpec(plain, "orders", nil))
			time.Sleep(time.Second)
			synctest.Wait()
		}
		w.unlock(h)
	})
}

// Too few replicas confirm a grant, and Redis rejects the first rollback. The reconciler continues: nothing stays.
func TestReplicas_failedRollback(t *testing.T) {
	inBubble(t, func(w *world) {
		k := onRelease(unconfirmed(func() {}), func(r release) (luascripts.Released, error) {
			if r.n == 1 {
				return luascripts.Released{}, errGarbled
			}
			return r.send()
		})
		w.wantFail(w.a.TryLock, w.Context(), w.a.NewSpec(k, "orders", []lock.Option{lock.WithReplicas(1, time.Second)}), lock.ErrReplicas)
		time.Sleep(pollTime)
		w.wantFree()
	})
}

// unconfirmed is the plain kind. No replica confirms a grant, after which granted is called.
func unconfirmed(granted func()) *Kind {
	return onRequest(plain, func(r request) (luascripts.Acquired, error) {
		r.Replicas = 0 // the in-memory server has none
		a, err := r.send()
		granted()
		return a, err
	})
}

// Too few replicas confirm a grant, and the caller leaves before the rollback is sent. The rollback still releases that
// grant, although the memory of the call is already in use for the next call.
func TestReplicas_rollbackAfterTheCallerLeft(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx, cancel := context.WithCancel(w.Context())
		defer cancel()
		var granted atomic.Bool
		k := unconfirmed(func() { granted.Store(true) })
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // the goroutine that sends the rollback starts after the call has returned
		spec := w.a.NewSpec(k, "orders", []lock.Option{lock.WithReplicas(1, time.Second)})
		canceledByCheck := &errFunc{ctx, func() error {
			if granted.CompareAndSwap(true, false) {
				cancel()
				return nil
			}
			return ctx.Err()
		}}
		w.wantFail(w.a.TryLock, canceledByCheck, spec, lock.ErrReplicas)
		synctest.Wait()
		w.wantFree()
	})
}

// When a request that waits for replicas times out, rueidis closes its connection, and may report that instead of the
// deadline. The error is that of a missing reply.
func TestReplicas_connectionClosedAtTheDeadline(t *testing.T) {
	inBubble(t, func(w *world) {
		k := onRequest(plain, func(r request) (luascripts.Acquired, error) {
			<-r.ctx.Done()
			return luascripts.Acquired{}, &net.OpError{Op: "read", Err: net.ErrClosed}
		})
		spec := w.a.NewSpec(k, "orders", []lock.Option{lock.WithReplicas(1, time.Second)})
		at, err := w.a.begin(spec)
		if err != nil {
			w.Fatal(err)
		}
		defer w.a.done(at)
		q := acquireRequest{spec: spec, t: acquisitionOf(at.NewAcquisition(&spec.terms, time.Now()))}
		_, err = replicatedRequest{q, w.within(opTime)}.Send(w.Context())
		w.wantErr(err, os.ErrDeadlineExceeded)
	})
}

// A request that was not sent because its caller had left needs no release, however long it waited to be sent.
func TestRequest_unsent(t *testing.T) {
	for err, want := range map[error]int{command.ErrUnsent: 0, command.NoReply{After: opTime}: 1} {
		inBubble(t, func(w *world) {
			w.unlock(w.lock(w.a, w.Context())) // loads the scripts
			spec := w.a.NewSpec(fair, "orders", nil)
			at, failed := w.a.begin(spec)
			if failed != nil {
				w.Fatal(failed)
			}
			at.lock()
			q := acquireRequest{t: acquisitionOf(at.NewAcquisition(&spec.terms, time.Now())), spec: spec, sent: time.Now()}
			at.state.WillSend(&q.t.Acquisition, leaseTime, 0)
			at.state.Fail(&q.t.Acquisition)
			at.unlock()
			time.Sleep(opTime)
			var sent atomic.Int64
			w.wire.OnRequest(func([][]byte) redistest.Action { sent.Add(1); return redistest.Action{} })
			q.Late(luascripts.Acquired{}, err)
			synctest.Wait()
			if n := int(sent.Load()); min(n, 1) != want {
				w.Errorf("%v: %d commands", err, n)
			}
			w.wire.OnRequest(nil)
			w.a.done(at)
		})
	}
}

// The reply is lost and the caller has left: nothing may stay.
func TestAbandoned_isReleased(t *testing.T) {
	forEach(t, map[string]redistest.Action{
		"reply is slow":   {DelayReply: 2 * time.Second},
		"reply is lost":   {DelayReply: 2 * time.Second, DropReply: true},
		"request is slow": {DelayRequest: 8 * time.Second}, // arrives after two reconciliations
	}, func(w *world, act redistest.Action) {
		w.unlock(w.lock(w.a, w.Context())) // loads the scripts
		w.onNext(act)
		start := time.Now()
		_, err := w.a.Lock(w.within(time.Second), w.a.NewSpec(plain, "orders", nil))
		w.wantEnd("Lock", err, []error{context.DeadlineExceeded}, lock.ErrNotAcquired, lock.ErrUnavailable)
		w.wantTook(start, time.Second)
		time.Sleep(8*time.Second + 2*opTime)
		synctest.Wait()
		w.wantEmpty()
	})
}

// The same, with the duplicate and the release on different connections, so that they are not ordered.
func TestAbandoned_onManyConnections(t *testing.T) {
	inBubble(t, func(w *world) {
		s := New(w.mini.Client(w, redistest.Via(w.wire), func(o *rueidis.ClientOption) { o.PipelineMultiplex = 3 }), testConfig())
		w.unlock(w.lock(s, w.Context())) // loads the scripts
		for i := range 8 {
			w.onNext(redistest.Action{DelayRequest: 8 * time.Second})
			// Without a deadline: otherwise rueidis may close the connection at the deadline, and the duplicate would
			// be lost with it.
			ctx, cancel := context.WithCancel(w.Context())
			time.AfterFunc(time.Second, cancel)
			w.wantFail(s.Lock, ctx, s.NewSpec(plain, fmt.Sprint("orders", i), nil))
			time.Sleep(8*time.Second + 2*opTime)
			synctest.Wait()
			if keys := w.mini.Keys(); len(keys) != 0 {
				w.Fatalf("left: %q", keys)
			}
		}
		w.close(s)
	})
}

// The connection of a request reaches its ConnLifetime, and rueidis silently resends the request. Nothing stays,
// whether the duplicate is sent or the dial fails, and whenever the first copy is executed.
func TestAbandoned_connLifetime(t *testing.T) {
	forEach(t, map[string]bool{"resent": false, "down": true}, func(w *world, down bool) {
		var refuses atomic.Bool
		rdb := w.mini.Client(w, redistest.Via(w.wire), refusedDials(&refuses), func(o *rueidis.ClientOption) {
			o.ConnLifetime, o.AlwaysPipelining = time.Second, true
		})
		s := New(rdb, testConfig())
		w.unlock(w.lock(s, w.Context())) // loads the scripts
		first := make(chan []string, 1)
		act := redistest.Action{HoldRequest: w.Context().Done()} // arrives below
		if down {
			act = redistest.Action{HoldReply: w.Context().Done()}
		}
		once := redistest.Once("EVALSHA", act)
		w.wire.OnRequest(func(req [][]byte) redistest.Action {
			act := once(req)
			if act.HoldRequest != nil || act.HoldReply != nil {
				refuses.Store(down)
				var args []string
				for _, arg := range req {
					args = append(args, string(arg))
				}
				first <- args
			}
			return act
		})
		h, err := s.TryLock(w.Context(), s.NewSpec(plain, "orders", nil))
		if down != errors.Is(err, lock.ErrUnavailable) {
			w.Fatal(err)
		}
		refuses.Store(false)
		if !down {
			w.unlock(h)
			synctest.Wait() // the repetition after the release is done
			if err := w.rdb.Do(w.Context(), w.rdb.B().Arbitrary(<-first...).Build()).Error(); err != nil || !w.mini.Exists("orders") {
				w.Errorf("the duplicate had no effect: %v", err)
			}
		}
		time.Sleep(opTime + pollTime)
		w.wantFree()
		w.close(s)
	})
}

// refusedDials makes a client unable to connect while refuses is true.
func refusedDials(refuses *atomic.Bool) func(o *rueidis.ClientOption) {
	return func(o *rueidis.ClientOption) {
		dial := o.DialCtxFn
		o.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, c *tls.Config) (net.Conn, error) {
			if refuses.Load() {
				return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
			}
			return dial(ctx, addr, d, c)
		}
	}
}

// The reply arrives between two requests of a wait, and then the wait ends. The session releases the grant.
func TestAbandoned_betweenTwoRequests(t *testing.T) {
	const ends = opTime + 2*time.Millisecond
	type test struct {
		opts []lock.Option
		end  func(w *world, cancel func())
	}
	forEach(t, map[string]test{
		"context": {end: func(_ *world, cancel func()) { time.AfterFunc(ends, cancel) }},
		"wait":    {opts: []lock.Option{lock.WithWait(ends)}, end: func(*world, func()) {}},
		"close":   {end: func(w *world, _ func()) { time.AfterFunc(ends, func() { _ = w.a.Close(context.Background()) }) }},
	}, func(w *world, c test) {
		w.wire.OnRequest(func(req [][]byte) redistest.Action {
			if string(req[0]) == "EVALSHA" {
				return redistest.Action{DelayReply: opTime + time.Millisecond} // just too late for its request
			}
			return redistest.Action{}
		})
		ctx, cancel := context.WithCancel(w.Context())
		defer cancel()
		c.end(w, cancel)
		w.wantFail(w.a.Lock, ctx, w.a.NewSpec(plain, "orders", c.opts))
		w.wire.OnRequest(nil)
		time.Sleep(3 * opTime)
		synctest.Wait()
		w.wantEmpty()
	})
}

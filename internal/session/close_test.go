package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
)

// beginClose runs Close of session a in a separate goroutine, without a deadline.
func (w *world) beginClose() <-chan error {
	return w.begin(func() error { return w.a.Close(context.Background()) })
}

// The server does not respond, and the context of Close is canceled while Close releases a lock. No watchdog,
// subscription or reconciler of the session keeps running.
func TestClose_canceled(t *testing.T) {
	for range 20 { // a select with two ready channels chooses at random
		inBubble(t, func(w *world) {
			h := w.lock(w.a, w.Context())
			w.cut()
			err := w.a.Close(w.within(time.Second))
			if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 of 1 locks") {
				w.Errorf("Close: %v", err)
			}
			w.wantErr(h.Err(), lock.ErrClosed)
			synctest.Wait()
			if n := w.pending(); n != 0 {
				w.Errorf("got %d pending", n)
			}
			w.mini.FlushAll()
		})
	}
}

// Close calls the registered functions before a concurrent AtClose has registered its function: that AtClose fails.
func TestAtClose_duringClose(t *testing.T) {
	s := New(redistest.NewMini(t).Client(t), testConfig())
	s.closer.callLast(t.Context()) // as Close does when no new call can begin
	if _, err := s.AtClose(func(context.Context) {}); !errors.Is(err, lock.ErrClosed) {
		t.Errorf("%v, and the function is never called", err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// Close calls the functions registered with AtClose after all holds have ended, and waits for them. It does not call
// stopped functions. A closed session accepts no more of them.
func TestAtClose(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		closing := context.WithValue(w.Context(), key{}, "v")
		var ended atomic.Int64
		for range 3 {
			if _, err := w.a.AtClose(func(ctx context.Context) {
				if h.Err() == nil || w.mini.Exists("orders") || ctx.Value(key{}) != "v" {
					w.Errorf("too early: %v", h.Err())
				}
				time.Sleep(time.Second)
				ended.Add(1)
			}); err != nil {
				w.Fatal(err)
			}
		}
		stop, err := w.a.AtClose(func(context.Context) { w.Error("it was stopped") })
		if err != nil {
			w.Fatal(err)
		}
		stop()
		start := time.Now()
		if err := w.a.Close(closing); err != nil || ended.Load() != 3 || time.Since(start) != time.Second {
			w.Errorf("%v, %d of 3, after %v", err, ended.Load(), time.Since(start))
		}
		if _, err := w.a.AtClose(func(context.Context) {}); !errors.Is(err, lock.ErrClosed) {
			w.Errorf("after Close: %v", err)
		}
	})
}

// A program passes its canceled context to Close. Close still has two operation timeouts.
func TestClose_withACanceledContext(t *testing.T) {
	forEach(t, map[string]bool{"unavailable": true, "available": false}, func(w *world, unavailable bool) {
		w.lock(w.a, w.Context())
		w.wire.Freeze(unavailable)
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		start := time.Now()
		err := w.a.Close(ctx)
		if (err != nil) != unavailable {
			w.Errorf("Close: %v", err)
		}
		w.wantWithin(start, 2*opTime)
		if !unavailable {
			w.wantFree()
		}
		w.wire.Freeze(false)
		w.mini.FlushAll()
	})
}

// The context of Close is canceled before an available server replies. Neither the error of Close nor the observer reports
// the server as unavailable.
func TestClose_canceledBeforeTheReply(t *testing.T) {
	inBubble(t, func(w *world) {
		w.lock(w.a, w.Context())
		w.wantEvents("granted")
		w.onNext(redistest.Action{DelayReply: time.Second})
		why := errors.New("the grace period is over")
		ctx, cancel := context.WithTimeoutCause(w.Context(), time.Millisecond, why)
		defer cancel()
		err := w.a.Close(ctx)
		for _, err := range []error{err, w.wantEvents("released")[0].Err} {
			w.wantErr(err, context.DeadlineExceeded, why)
			w.wantNotErrs(err, lock.ErrUnavailable)
			if text := err.Error(); strings.Count(text, "exceeded: "+why.Error()) != strings.Count(text, "exceeded") {
				w.Errorf("a part of %q does not have the cause", text)
			}
		}
	})
}

// The context of a Close is canceled after three operation timeouts, which is not the caller's deadline. A Close inside
// another Close, as in Client.Close, uses the other's context, even if that is canceled.
func TestCloseContext(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx, cancel := w.a.CloseContext(w.Context())
		defer cancel()
		start := time.Now()
		time.Sleep(3*opTime - 1)
		w.wantNoErr(ctx.Err())
		<-ctx.Done()
		w.wantTook(start, 3*opTime)
		w.wantErr(ctx.Err(), lock.ErrUnavailable, os.ErrDeadlineExceeded)
		w.wantNotErrs(ctx.Err(), context.DeadlineExceeded)
		inner, cancel := w.a.CloseContext(ctx)
		defer cancel()
		if inner != ctx {
			w.Errorf("the inner Close has another context: %v", inner.Err())
		}
	})
}

// The server loads its data while Close releases a lock. The observer gets the same error as for any other call that Redis
// did not serve.
func TestClose_whileTheServerLoads(t *testing.T) {
	inBubble(t, func(w *world) {
		w.lock(w.a, w.Context())
		w.wantEvents("granted")
		w.mini.SetError(loading)
		w.wantErr(w.a.Close(w.Context()), lock.ErrUnavailable)
		w.wantEnd("the release", w.wantEvents("released")[0].Err, []error{lock.ErrUnavailable}, lock.ErrNotHeld)
		w.mini.SetError("")
		w.mini.FlushAll()
	})
}

// The error of Close says which lock Redis did not confirm as released, and why, whether Close or an Unlock before it released the lock.
func TestClose_says(t *testing.T) {
	const held = `1 of 1 locks, which expire with their leases, such as "orders": `
	type row struct {
		unlock, frozen bool
		want           string
	}
	forEach(t, map[string]row{
		"held":                   {false, false, held},
		"unlocked before":        {true, false, `release of "orders" not confirmed: `},
		"unlocked without reply": {true, true, "commands are still waiting for a reply"},
		"held without reply":     {false, true, held},
	}, func(w *world, c row) {
		h := w.lock(w.a, w.Context())
		if c.frozen {
			w.wire.Freeze(true)
		} else {
			w.mini.SetError("READONLY You can't write against a read only replica.")
		}
		if c.unlock {
			w.wantNotErrs(h.Unlock(w.Context()))
		}
		err := w.a.Close(w.Context())
		w.wantErr(err, lock.ErrUnavailable)
		if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "READONLY") == c.frozen ||
			strings.Contains(err.Error(), "waiting for a reply") != (c.unlock && c.frozen) {
			w.Errorf("%v, want %q", err, c.want)
		}
		w.wire.Freeze(false)
		w.mini.SetError("")
		w.mini.FlushAll()
	})
}

// A lock that is gone in Redis is not held any more: Close returns no error for it, and logs the loss.
func TestClose_lockGone(t *testing.T) {
	withDefaultLogger(t, func(w *world, log *logLines) {
		h := w.lock(w.a, w.Context())
		w.mini.Del("orders")
		if err := w.a.Close(w.Context()); err != nil || h.Err() == nil {
			w.Errorf("%v, and the hold: %v", err, h.Err())
		}
		if lines := log.lines("lock lost"); len(lines) != 1 || !strings.Contains(lines[0], lock.ErrGone.Error()) {
			w.Errorf("logged: %q", lines)
		}
	})
}

// An Unlock begins before Close, and ends the acquisition after Close has listed it. The Unlock releases it, and Close
// sends nothing.
func TestClose_duringUnlock(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.a, w.Context())
		var held []*acquisition
		w.wantNoErr(h.Unlock(&errHook{Context: w.Context(), f: func() { held, _ = w.a.table.close() }}))
		n := w.scripts()
		w.a.sender.Shut() // as Close continues
		if err := w.a.releaseAll(w.Context(), held); len(held) != 1 || err != nil || n.Load() != 0 {
			w.Errorf("%d held, %v, %d commands", len(held), err, n.Load())
		}
		close(w.a.closer.givenBack)
	})
}

// A second Close waits for the first one, but no longer than its context. GaveBack reports whether the locks were
// released.
func TestClose_twice(t *testing.T) {
	inBubble(t, func(w *world) {
		w.lock(w.a, w.Context())
		reply := make(chan struct{})
		w.onNext(redistest.Action{HoldReply: reply})
		first := w.beginClose()
		start := time.Now()
		why := errors.New("the grace period is over")
		ctx, cancel := context.WithTimeoutCause(w.Context(), time.Second, why)
		defer cancel()
		w.wantErr(w.a.Close(ctx), context.DeadlineExceeded, why)
		w.wantTook(start, time.Second)
		if len(first) > 0 {
			w.Error("the first Close returned before the reply")
		}
		if w.a.GaveBack() {
			w.Error("GaveBack reports a release, but Redis still has the lock")
		}
		close(reply)
		w.close(w.a)
		w.wantFree()
		if !w.a.GaveBack() {
			w.Error("GaveBack reports no release")
		}
		w.wantNoErr(<-first)
	})
}

// Close begins while a waiter's request is in flight, and the lock then seems free. The waiter does not retry: its call
// ends.
func TestClose_duringARequest(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.lock(w.b, w.Context())
		requests := 0
		var closed <-chan error
		k := onRequest(plain, func(r request) (luascripts.Acquired, error) {
			a, err := r.send()
			if requests = r.n; r.n == 1 {
				closed = w.beginClose()
				w.a.mayBeFree(w.a.NewSpec(plain, "orders", nil))
			}
			return a, err
		})
		w.wantFail(w.a.Lock, w.Context(), w.a.NewSpec(k, "orders", nil), lock.ErrClosed)
		if requests != 1 {
			w.Errorf("%d requests", requests)
		}
		w.wantNoErr(<-closed)
		w.unlock(h)
	})
}

// The reply to a waiter's request comes after Close has stopped waiting, so nothing removes the waiter from the queue in
// Redis. It is a dead waiter from then on: it delays others until its waiter timeout, and the next caller removes it.
func TestClose_beforeTheReplyToAWaiter(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.b, fair, w.Context())
		w.onNext(redistest.Action{DelayReply: 4 * opTime})
		waited := w.beginLock(w.a, fair, w.Context())
		w.wantErr(w.a.Close(w.Context()), lock.ErrUnavailable)
		w.wantErr(<-waited, lock.ErrClosed)
		time.Sleep(opTime + time.Second) // the reply arrives
		w.wantQueued(1)
		w.unlock(h)
		w.unlock(w.take(w.b, fair, w.Context())) // and inBubble finds no key
	})
}

// The server does not respond, and the context of Close is never canceled. Close takes at most three operation
// timeouts, however many locks are held. This includes a second Close, and a Close that has other work.
func TestClose_unavailableServer(t *testing.T) {
	for _, locks := range []int{0, 3, 1000} {
		for name, fail := range map[string]func(w *world){
			"paused":  func(w *world) { w.wire.Freeze(true) },
			"refuses": func(w *world) { w.cut() },
		} {
			t.Run(fmt.Sprint(name, ", locks=", locks), func(t *testing.T) {
				inBubble(t, func(w *world) {
					var holds []lock.Hold
					for i := range locks {
						h := w.mustLock(w.Context(), w.a.NewSpec(plain, fmt.Sprint("orders", i), nil))
						holds = append(holds, h)
					}
					if locks == 0 {
						if _, err := w.a.AtClose(func(ctx context.Context) { <-ctx.Done() }); err != nil {
							w.Fatal(err)
						}
					}
					fail(w)
					start := time.Now()
					var closing sync.WaitGroup
					var failed atomic.Int64
					for range 2 {
						closing.Go(func() {
							err := w.a.Close(context.Background())
							w.wantWithin(start, 3*opTime)
							if err == nil {
								return // the other call timed out at the same time, and nothing keeps running
							}
							failed.Add(1)
							w.wantErr(err, lock.ErrUnavailable)
							w.wantNotErrs(err, context.DeadlineExceeded)
						})
					}
					closing.Wait()
					if locks > 0 && failed.Load() == 0 {
						w.Error("no call of Close fails")
					}
					for _, h := range holds {
						w.wantErr(h.Err(), lock.ErrClosed)
					}
					w.wire.Freeze(false)
					w.wire.CutAll()
					w.mini.FlushAll()
				})
			})
		}
	}
}

// Close wakes waiters: they end with ErrClosed. Without a reply of Redis, Close itself takes longer.
func TestClose_wakesWaiters(t *testing.T) {
	forEach(t, map[string]bool{"unavailable": true, "available": false}, func(w *world, unavailable bool) {
		h := w.lock(w.b, w.Context())
		if unavailable {
			w.cut()
		}
		var waiters []<-chan error
		for range 10 {
			waiters = append(waiters, w.beginLock(w.a, plain, w.Context()))
		}
		time.Sleep(time.Minute - opTime/6)
		start := time.Now()
		closed := w.beginClose()
		for _, ended := range waiters {
			w.wantErr(<-ended, lock.ErrClosed)
		}
		w.wantTook(start, 0)
		if err := <-closed; !unavailable {
			w.wantNoErr(err)
			w.wantTook(start, 0)
		}
		w.wire.Refuse(false)
		w.unlock(h)
	})
}

package session

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// Redis rejects the heartbeat of a waiter that sends no requests itself. When the wait ends soon after that, its error
// reports Redis as unavailable.
func TestHeartbeat_unavailable(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.b, fair, w.Context())
		ctx, cancel := context.WithCancel(w.Context())
		ended := w.beginLock(w.a, fair, ctx)
		time.Sleep(pollTime * 5 / 2)
		w.cut()
		time.Sleep(pollTime/2 + opTime/20) // the heartbeat that was due in between has failed
		cancel()
		w.wantEnd("Lock", <-ended, []error{lock.ErrUnavailable, context.Canceled})
		w.wire.Refuse(false)
		w.unlock(h)
		time.Sleep(leaseTime) // the reconciler is done
	})
}

// Redis replies to the heartbeats of a waiter with errors for longer than a poll interval. The session logs that, and sends no
// more heartbeats than before.
func TestHeartbeat_logsUnavailable(t *testing.T) {
	withDefaultLogger(t, func(w *world, log *logLines) {
		h := w.take(w.b, fair, w.Context())
		next := w.goLock(w.a, fair, w.Context())
		time.Sleep(pollTime / 2)
		w.mini.SetError(loading)
		n := w.scripts()
		time.Sleep(3 * pollTime)
		w.mini.SetError("")
		if got := n.Load(); got > 10 {
			t.Errorf("got %d commands in 3 poll intervals", got)
		}
		if lines := log.lines("redis unavailable"); len(lines) != 1 {
			t.Errorf("logged %d times: %q", len(lines), lines)
		}
		w.unlock(h)
		w.unlock(<-next)
	})
}

// Redis denies the heartbeat of a waiter, which then sends a request itself. When the wait ends before the reply to that
// request, its error does not report Redis as unavailable.
func TestHeartbeat_denied(t *testing.T) {
	inBubble(t, func(w *world) {
		denied := false
		k := *fair
		k.Keep = func(context.Context, rueidis.Client, luascripts.Keys, []luascripts.Waiter) (luascripts.Kept, error) {
			denied = true
			return luascripts.Kept{}, command.Final{Err: errors.New("denied")}
		}
		h := w.take(w.b, &k, w.Context())
		ctx, cancel := context.WithCancel(w.Context())
		ended := w.beginLock(w.a, &k, ctx)
		time.Sleep(pollTime / 2)
		w.slowScripts(pollTime)
		time.Sleep(pollTime)
		cancel()
		w.wantEnd("Lock", <-ended, []error{context.Canceled}, lock.ErrUnavailable)
		if !denied {
			w.Error("no heartbeat was sent")
		}
		time.Sleep(pollTime)
		w.unlock(h)
	})
}

// enters returns a fair kind whose Keep calls enter when it enters waiters in the queue, which never include the first
// one. send sends the command.
func enters(enter func(send func() (luascripts.Kept, error)) (luascripts.Kept, error)) *Kind {
	k := *fair
	k.Keep = func(ctx context.Context, rdb rueidis.Client, keys luascripts.Keys, all []luascripts.Waiter) (luascripts.Kept, error) {
		send := func() (luascripts.Kept, error) { return fair.Keep(ctx, rdb, keys, all) }
		if all[len(all)-1].Enters {
			return enter(send)
		}
		return send()
	}
	return &k
}

// A waiter is not queued by the batched entry because the connection breaks. It sends its own request and is queued
// immediately.
func TestHeartbeat_entryFails(t *testing.T) {
	inBubble(t, func(w *world) {
		var tried atomic.Int64
		k := enters(func(send func() (luascripts.Kept, error)) (luascripts.Kept, error) {
			if tried.Add(1) == 1 {
				return luascripts.Kept{}, io.EOF
			}
			return send()
		})
		h := w.take(w.b, k, w.Context())
		first, second := w.goLock(w.a, k, w.Context()), w.goLock(w.a, k, w.Context())
		time.Sleep(pollTime / 4)
		w.wantQueued(2)
		w.wantSent(&tried, 1)
		w.unlock(h)
		w.unlockEach(first, second)
	})
}

// secondLeaves makes session b hold the lock, and two calls of session a wait for it. The second call leaves.
func (w *world) secondLeaves(k *Kind) (h lock.Hold, first <-chan lock.Hold) {
	w.Helper()
	h = w.take(w.b, k, w.Context())
	first = w.goLock(w.a, k, w.Context())
	leave := w.leaving(k)
	time.Sleep(pollTime / 4)
	leave()
	return h, first
}

// The reply to an entry into the queue is an error after which the entry may have been executed: the connection broke, or the
// error comes so late that rueidis can have sent the entry twice. Its waiter has left, and does not stay in the queue.
func TestHeartbeat_lateErrorOfAnEntry(t *testing.T) {
	for err, after := range map[error]time.Duration{io.EOF: pollTime / 2, rueidis.ErrNoSlot: time.Second} {
		t.Run(err.Error(), func(t *testing.T) {
			inBubble(t, func(w *world) {
				h, first := w.secondLeaves(enters(func(send func() (luascripts.Kept, error)) (luascripts.Kept, error) {
					if _, err := send(); err != nil {
						w.Error(err)
					}
					time.Sleep(after)
					return luascripts.Kept{}, err
				}))
				time.Sleep(2 * pollTime)
				w.wantQueued(1)
				w.unlock(h)
				w.unlock(<-first)
			})
		})
	}
}

// The entry of many waiters takes two scripts. The server executes the first one, and is a replica when the second one arrives.
// A waiter of the first one has left, and does not stay in the queue.
func TestHeartbeat_partOfAnEntryFails(t *testing.T) {
	inBubble(t, func(w *world) {
		first, second := make(chan struct{}), make(chan struct{})
		k := *fair
		k.Keep = func(ctx context.Context, rdb rueidis.Client, keys luascripts.Keys, all []luascripts.Waiter) (luascripts.Kept, error) {
			if len(all) <= luascripts.KeepAtOnce {
				<-first // the others collect
				return fair.Keep(ctx, rdb, keys, all)
			}
			if _, err := fair.Keep(ctx, rdb, keys, all[:luascripts.KeepAtOnce]); err != nil {
				w.Error(err)
			}
			<-second
			w.mini.SetError("READONLY You can't write against a read only replica.")
			defer w.mini.SetError("")
			return fair.Keep(ctx, rdb, keys, all[luascripts.KeepAtOnce:])
		}
		h := w.take(w.b, &k, w.Context())
		ctx, cancel := context.WithCancel(w.Context())
		var leave func()
		for i := range luascripts.KeepAtOnce + 3 {
			if i == luascripts.KeepAtOnce/2 {
				leave = w.leaving(&k)
				continue
			}
			w.goLock(w.a, &k, ctx)
		}
		close(first)
		time.Sleep(pollTime / 4)
		leave()
		close(second)
		time.Sleep(2 * pollTime)
		w.wantQueued(luascripts.KeepAtOnce + 2)
		cancel()
		w.unlock(h)
	})
}

// The reply to an entry into the queue comes so late that rueidis can have sent the entry twice, and the second copy arrives when
// its waiter has left or has been served. The waiter does not stay in the queue.
func TestHeartbeat_lateReplyToAnEntry(t *testing.T) {
	type row struct {
		wait   time.Duration
		served bool
		holds  time.Duration // how long the first waiter holds the lock; after a millisecond it hands the lock off in the process
	}
	forEach(t, map[string]row{
		"leaves before the reply":        {wait: time.Second / 2},
		"leaves after the reply":         {wait: 3 * time.Second / 2},
		"is served before the reply":     {wait: time.Second / 2, served: true},
		"is handed off before the reply": {wait: time.Second / 2, served: true, holds: time.Millisecond},
	}, func(w *world, c row) {
		var again func() (luascripts.Kept, error)
		k := enters(func(send func() (luascripts.Kept, error)) (luascripts.Kept, error) {
			kept, err := send()
			again = send
			time.Sleep(time.Second)
			return kept, err
		})
		h := w.take(w.b, k, w.Context())
		first := w.goLock(w.a, k, w.Context())
		ctx, cancel := context.WithCancel(w.Context())
		defer cancel()
		second := w.goLock(w.a, k, ctx)
		time.Sleep(c.wait)
		if !c.served {
			cancel()
			if h := <-second; h != nil {
				w.Fatal("it has the lock")
			}
		}
		w.unlock(h)
		h = <-first
		time.Sleep(c.holds)
		w.unlock(h)
		if c.served {
			w.unlock(<-second)
		}
		time.Sleep(time.Second)
		if _, err := again(); err != nil {
			w.Error(err)
		}
		w.wantQueued(1) // the second copy
		time.Sleep(opTime)
		w.wantQueued(0)
	})
}

// A waiter leaves while its entry into the queue is in flight, and then the entry is executed. The waiter does not stay
// in the queue.
func TestHeartbeat_leavesBeforeItEnters(t *testing.T) {
	inBubble(t, func(w *world) {
		goes := make(chan struct{})
		h, first := w.secondLeaves(enters(func(send func() (luascripts.Kept, error)) (luascripts.Kept, error) {
			<-goes
			return send()
		}))
		close(goes)
		synctest.Wait()
		w.wantQueued(1)
		w.unlock(h)
		w.unlock(<-first)
	})
}

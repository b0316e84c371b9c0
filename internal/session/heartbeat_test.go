package session

import (
	"context"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// Redis refuses the heartbeat of a waiter that does not ask itself. When the wait ends soon after that, its error says that Redis gives
// no reply.
func TestHeartbeat_silence(t *testing.T) {
	inBubble(t, func(w *world) {
		h := w.take(w.b, fair, w.Context())
		ctx, cancel := context.WithCancel(w.Context())
		ended := make(chan error)
		go func() {
			_, err := w.a.Lock(ctx, w.a.NewSpec(fair, "orders", nil))
			ended <- err
		}()
		time.Sleep(pollTime * 5 / 2)
		w.wire.Refuse(true)
		w.wire.CutAll()
		time.Sleep(pollTime/2 + opTime/20) // the heartbeat that was due in between has failed
		cancel()
		w.wantEnd("Lock", <-ended, []error{lock.ErrUnavailable, context.Canceled})
		w.wire.Refuse(false)
		w.unlock(h)
		time.Sleep(leaseTime) // what is uncertain is reconciled
	})
}

// Redis replies the heartbeats of a waiter with errors for longer than a poll interval. That is reported.
func TestHeartbeat_reportsSilence(t *testing.T) {
	withDefaultLogger(t, func(w *world, log *heard) {
		h := w.take(w.b, fair, w.Context())
		next := w.gets(w.a, fair, w.Context())
		time.Sleep(pollTime / 2)
		w.mini.SetError("LOADING Redis is loading the dataset in memory")
		time.Sleep(3 * pollTime)
		w.mini.SetError("")
		if lines := log.lines("redis unavailable"); len(lines) != 1 {
			t.Errorf("it is reported %d times: %q", len(lines), lines)
		}
		w.unlock(h)
		w.unlock(<-next)
	})
}

// enters returns a fair kind. Where its waiters enter the queue together, as those that are not the first do, enter is called in
// the state of that command, which it gets as send.
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

// A waiter that enters the queue by its queue is not let in, as the connection breaks. It asks itself, and stands in the queue at once.
func TestHeartbeat_anEntryFails(t *testing.T) {
	inBubble(t, func(w *world) {
		var tried atomic.Int64
		k := enters(func(send func() (luascripts.Kept, error)) (luascripts.Kept, error) {
			if tried.Add(1) == 1 {
				return luascripts.Kept{}, io.EOF
			}
			return send()
		})
		h := w.take(w.b, k, w.Context())
		first, second := w.gets(w.a, k, w.Context()), w.gets(w.a, k, w.Context())
		time.Sleep(pollTime / 4)
		if n := len(w.inQueue()); n != 2 || tried.Load() != 1 {
			w.Errorf("%d stand in the queue, after %d entries", n, tried.Load())
		}
		w.unlock(h)
		w.unlock(<-first)
		w.unlock(<-second)
	})
}

// A waiter leaves while its entry into the queue is under way, and then that is executed. It does not stay in the queue.
func TestHeartbeat_leavesBeforeItEnters(t *testing.T) {
	inBubble(t, func(w *world) {
		goes := make(chan struct{})
		k := enters(func(send func() (luascripts.Kept, error)) (luascripts.Kept, error) {
			<-goes
			return send()
		})
		h := w.take(w.b, k, w.Context())
		first := w.gets(w.a, k, w.Context())
		ctx, cancel := context.WithCancel(w.Context())
		left := w.waitingFor(w.a, ctx, w.a.NewSpec(k, "orders", nil))
		time.Sleep(pollTime / 4)
		cancel()
		if _, got := <-left; got {
			w.Fatal("it has the lock")
		}
		close(goes)
		synctest.Wait()
		if queue := w.inQueue(); len(queue) != 1 {
			w.Errorf("%q stand in the queue, and one waits", queue)
		}
		w.unlock(h)
		w.unlock(<-first)
	})
}

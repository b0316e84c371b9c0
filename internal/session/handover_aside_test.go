package session

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// A client publishes "aside" again and again. The waiters of the session still ask, and find a lock
// that becomes free without a message.
func TestAside_saidWithoutEnd(t *testing.T) {
	inBubble(t, func(w *world) {
		w.lock(w.a, w.Context())
		waiter := w.waiting(w.b, w.Context())
		ctx, cancel := context.WithCancel(w.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			for ctx.Err() == nil {
				w.rdb.Do(ctx, w.rdb.B().Publish().Channel("leasehold_channel:{orders}").Message(luascripts.Aside).Build())
				time.Sleep(asideTime - time.Millisecond)
			}
		})
		time.Sleep(2 * asideTime)
		w.mini.Del("orders") // publishes nothing
		time.Sleep(pollTime)
		synctest.Wait()
		w.unlock(w.next(waiter))
		cancel()
		wg.Wait()
	})
}

// A lock that is let go for others is free for them for a moment, also where each process
// has one goroutine that comes back at once.
func TestAside_alsoForWaitersThatComeBack(t *testing.T) {
	inBubble(t, func(w *world) {
		const channel, stranger = "redisson_lock__channel:{orders}", "0b7e2f1a-3c4d-4e5f-8a9b-0c1d2e3f4a5b:1"
		ctx, cancel := context.WithCancel(w.Context())
		var wg sync.WaitGroup
		heard := make(chan struct{}, 1)
		wg.Go(func() {
			_ = w.rdb.Receive(ctx, w.rdb.B().Subscribe().Channel(channel).Build(), func(rueidis.PubSubMessage) {
				select {
				case heard <- struct{}{}:
				default:
				}
			})
		})
		synctest.Wait()
		for _, s := range []*Session{w.a, w.b} {
			for _, pause := range []time.Duration{20 * time.Microsecond, time.Millisecond} { // the first is what a round trip takes
				wg.Go(func() {
					for ctx.Err() == nil {
						h := w.lock(s, w.Context())
						time.Sleep(time.Millisecond)
						w.unlock(h)
						time.Sleep(pause)
					}
				})
			}
		}
		const tries = 20
		got := 0
		for range tries {
			<-heard
			time.Sleep(asideTime / 2) // to wake
			if w.mini.Exists("orders") {
				continue
			}
			w.mini.HSet("orders", stranger, "1")
			got++
			time.Sleep(time.Millisecond)
			w.mini.Del("orders")
			w.rdb.Do(ctx, w.rdb.B().Publish().Channel(channel).Message("0").Build())
			<-heard // that
		}
		cancel()
		wg.Wait()
		if got < tries {
			w.Errorf("a client outside the line got the lock %d times of %d that it was let go", got, tries)
		}
	})
}

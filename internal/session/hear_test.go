package session

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/lock"
)

// Whatever is published on the channels that a session listens to: it gives no one a lock, takes none away, and each
// waiter gets its lock once it is released.
func FuzzMessages(f *testing.F) {
	for _, m := range []string{"", "0", "aside", "taken 1 eve", "taken 18446744073709551616 eve", "taken  ", "granted", "0190b5a2-7e2f-7abc-8def-0123456789ab:1 9", "\x00\xff\r\n", "1 2 3"} {
		f.Add(m, byte(0))
		f.Add(m, byte(2))
	}
	f.Fuzz(func(t *testing.T, message string, times byte) {
		inBubble(t, func(w *world) {
			kinds := []*Kind{plain, fair}
			for _, kind := range kinds {
				held := w.take(w.b, kind, w.Context())
				ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
				waiter := w.waitingFor(w.a, ctx, w.a.NewSpec(kind, "orders", nil))
				channels := w.mini.PubSubChannels("*")
				if len(channels) == 0 {
					w.Fatal("nobody listens, so nothing is proved")
				}
				for i := range int(times%4) + 1 {
					for _, channel := range channels {
						for _, said := range []string{message, "taken " + message, w.a.id + ":" + strconv.Itoa(i) + " " + message} {
							w.mini.Publish(channel, said)
						}
					}
					synctest.Wait()
				}
				select {
				case <-waiter:
					w.Errorf("%q gave it the lock", message)
				default:
				}
				if held.Context().Err() != nil {
					w.Errorf("%q took the lock away", message)
				}
				w.unlock(held)
				time.Sleep(pollTime)
				w.unlock(w.next(waiter))
				cancel()
			}
		})
	})
}

// A caller that has looked subscribes a channel that is still subscribed for an earlier one. What was
// published in between is missed, so it looks again.
func TestSubscribe_lingering(t *testing.T) {
	inBubble(t, func(w *world) {
		looks := 0
		for range 2 {
			sub := w.a.Subscribe("channel", func() { looks++ })
			synctest.Wait()
			sub.CloseSoon()
			time.Sleep(time.Second)
		}
		if looks != 2 {
			w.Errorf("it looked %d times", looks)
		}
	})
}

// The wall clock was an hour ahead when the session asked for its first lock, so the numbers in its owner strings are ahead, too. It
// listens for forced unlocks all the same.
func TestHears_theClockWasSetBack(t *testing.T) {
	inBubble(t, func(w *world) {
		c := testConfig()
		c.WatchForced = true
		s := New(w.mini.Client(w), c)
		s.number.Store(uint64(time.Now().Add(time.Hour).UnixMicro()) << 10)
		h := w.lock(s, w.Context())
		time.Sleep(2*hearAfter + time.Millisecond)
		if !s.hub.Lingers(keys.Client(s.id)) {
			w.Error("it does not listen")
		}
		w.unlock(h)
		if err := s.Close(w.Context()); err != nil {
			w.Error(err)
		}
	})
}

// A call that waits without an owner looks when it is heard, and at each message. Close waits for it, and no call begins after that.
func TestSubscribe_hears(t *testing.T) {
	inBubble(t, func(w *world) {
		s := New(w.mini.Client(w), testConfig())
		if err := s.Enter(); err != nil {
			w.Fatal(err)
		}
		looks := 0
		sub := s.Subscribe("channel", func() { looks++ })
		want := func(n int, what string) {
			w.Helper()
			if synctest.Wait(); looks != n {
				w.Errorf("%s: it looked %d times, want %d", what, looks, n)
			}
		}
		want(1, "the subscription is confirmed")
		w.mini.Publish("channel", "whatever")
		want(2, "something is published")
		sub.Close()
		closed := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(w.Context(), time.Hour)
			defer cancel()
			closed <- s.Close(ctx)
		}()
		<-s.Closing()
		synctest.Wait()
		select {
		case err := <-closed:
			w.Errorf("Close does not wait for the call: %v", err)
		default:
		}
		s.Leave()
		if err := <-closed; err != nil {
			w.Error(err)
		}
		if err := s.Enter(); err != lock.ErrClosed {
			w.Errorf("after Close: %v", err)
		}
	})
}

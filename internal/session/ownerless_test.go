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

// Arbitrary messages on the channels of a session neither grant nor end a hold, and each waiter acquires its lock after
// the release.
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
					w.Fatal("no subscription, so the test shows nothing")
				}
				for i := range int(times%4) + 1 {
					for _, channel := range channels {
						for _, payload := range []string{message, "taken " + message, w.a.id + ":" + strconv.Itoa(i) + " " + message} {
							w.mini.Publish(channel, payload)
						}
					}
					synctest.Wait()
				}
				select {
				case <-waiter:
					w.Errorf("the message %q granted the lock", message)
				default:
				}
				if held.Context().Err() != nil {
					w.Errorf("the message %q ended the hold", message)
				}
				w.unlock(held)
				time.Sleep(pollTime)
				w.unlock(w.next(waiter))
				cancel()
			}
		})
	})
}

// A new caller subscribes to a channel that is still subscribed for an earlier caller. Messages in between may be
// missed, so it checks again.
func TestSubscribe_lingering(t *testing.T) {
	inBubble(t, func(w *world) {
		checks := 0
		for range 2 {
			sub := w.a.Subscribe("channel", func() { checks++ })
			synctest.Wait()
			sub.CloseSoon()
			time.Sleep(time.Second)
		}
		if checks != 2 {
			w.Errorf("got %d checks", checks)
		}
	})
}

// The wall clock was an hour ahead when the session requested its first lock, so the numbers in its owner strings are
// ahead, too. It still listens for force-unlocks.
func TestForceMessages_clockWasSetBack(t *testing.T) {
	inBubble(t, func(w *world) {
		c := testConfig()
		c.WatchForced = true
		s := New(w.mini.Client(w), c)
		s.number.Store(uint64(time.Now().Add(time.Hour).UnixMicro()) << 10)
		h := w.lock(s, w.Context())
		time.Sleep(2*hearAfter + time.Millisecond)
		if !s.hub.Subscribed(keys.Client(s.id)) {
			w.Error("the session is not subscribed")
		}
		w.unlock(h)
		if err := s.Close(w.Context()); err != nil {
			w.Error(err)
		}
	})
}

// A call that waits without an owner checks its state after the subscription and after each message. Close waits for
// it, and then no call begins.
func TestSubscribe_checksAfterEachMessage(t *testing.T) {
	inBubble(t, func(w *world) {
		s := New(w.mini.Client(w), testConfig())
		if err := s.Enter(); err != nil {
			w.Fatal(err)
		}
		checks := 0
		sub := s.Subscribe("channel", func() { checks++ })
		want := func(n int, what string) {
			w.Helper()
			if synctest.Wait(); checks != n {
				w.Errorf("%s: got %d checks, want %d", what, checks, n)
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

// Clients adds the host of a holder, which is in the entry of the holder's client.
func TestClients(t *testing.T) {
	inBubble(t, func(w *world) {
		key := keys.Client(w.b.id)
		w.mini.HSet(key, "host", "host-7")
		state := lock.State{Holders: []lock.Holder{{Owner: w.b.id + ":7"}}}
		w.a.Clients(w.Context(), &state)
		if c := state.Holders[0].Client; c.ID != w.b.id || c.Host != "host-7" {
			w.Errorf("%+v", c)
		}
		w.mini.Del(key)
	})
}

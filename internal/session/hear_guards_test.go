package session

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

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

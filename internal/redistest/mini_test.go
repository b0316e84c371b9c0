package redistest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"

	"github.com/leasehold-go/leasehold/internal/redistest"
)

func TestMini_expiresInVirtualTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := redistest.NewMini(t)
		c := m.Client(t)
		set := c.B().Set().Key("k").Value("v").Px(30 * time.Second).Build()
		if err := c.Do(t.Context(), set).Error(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(29 * time.Second)
		if ttl, err := c.Do(t.Context(), c.B().Pttl().Key("k").Build()).AsInt64(); err != nil || ttl != 1000 {
			t.Errorf("PTTL after 29s: %d, %v, want 1000", ttl, err)
		}
		time.Sleep(2 * time.Second)
		if err := c.Do(t.Context(), c.B().Get().Key("k").Build()).Error(); !rueidis.IsRedisNil(err) {
			t.Errorf("GET after 31s: %v, want nil", err)
		}
	})
}

// 1: B subscribes. 2: A publishes from a script, hours later. 3: B receives it.
func TestMini_publishesFromScripts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := redistest.NewMini(t)
		a, b := m.Client(t), m.Client(t)

		ctx, cancel := context.WithCancel(t.Context())
		received := make(chan string, 1)
		ended := make(chan error)
		go func() { // 1
			ended <- b.Receive(ctx, b.B().Subscribe().Channel("ch").Build(), func(msg rueidis.PubSubMessage) {
				received <- msg.Message
			})
		}()
		time.Sleep(3 * time.Hour)

		script := rueidis.NewLuaScript("return redis.call('PUBLISH', KEYS[1], ARGV[1])")
		if n, err := script.Exec(t.Context(), a, []string{"ch"}, []string{"free"}).AsInt64(); err != nil || n != 1 { // 2
			t.Errorf("PUBLISH: %d, %v, want 1 receiver", n, err)
		}
		if got := <-received; got != "free" { // 3
			t.Errorf("received %q, want %q", got, "free")
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Receive: %v, want %v", err, context.Canceled)
		}
	})
}

// The proxy injects the same faults in virtual time.
func TestMini_proxy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := redistest.NewMini(t)
		p := m.Proxy(t)
		c := m.Client(t, redistest.Via(p))

		p.OnRequest(redistest.Once("INCR", redistest.Action{DropReply: true}))
		if n, err := incr(t.Context(), c); err == nil {
			t.Errorf("INCR whose reply was dropped: %d, want an error", n)
		}
		if n, err := incr(t.Context(), c); err != nil || n != 2 {
			t.Errorf("next INCR: %d, %v, want 2: the first was executed", n, err)
		}

		p.OnRequest(redistest.Once("INCR", redistest.Action{DelayReply: 5 * time.Second}))
		start := time.Now()
		if n, err := incr(t.Context(), c); err != nil || n != 3 || time.Since(start) != 5*time.Second {
			t.Errorf("INCR: %d, %v after %v, want 3 after 5s", n, err, time.Since(start))
		}

		p.Freeze(true)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if _, err := incr(ctx, c); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("INCR over a frozen wire: %v, want %v", err, context.DeadlineExceeded)
		}
		p.Freeze(false)

		p.Refuse(true)
		p.CutAll()
		if n, err := incr(t.Context(), c); err == nil {
			t.Errorf("INCR over a cut wire: %d, want an error", n)
		}
		p.Refuse(false)
		if err := c.Do(t.Context(), c.B().Get().Key("n").Build()).Error(); err != nil {
			t.Errorf("GET, which is retried: %v", err)
		}
	})
}

// Subscriptions go through the proxy in RESP2, where they look like replies.
func TestMini_proxySubscription(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := redistest.NewMini(t)
		c := m.Client(t, redistest.Via(m.Proxy(t)))
		ctx, cancel := context.WithCancel(t.Context())
		received := make(chan string, 1)
		ended := make(chan error)
		go func() {
			ended <- c.Receive(ctx, c.B().Subscribe().Channel("ch").Build(), func(msg rueidis.PubSubMessage) {
				received <- msg.Message
			})
		}()
		time.Sleep(time.Minute) // many of rueidis' PINGs
		for _, want := range []string{"one", "two"} {
			if err := c.Do(t.Context(), c.B().Publish().Channel("ch").Message(want).Build()).Error(); err != nil {
				t.Error(err)
			}
			if got := <-received; got != want {
				t.Errorf("received %q, want %q", got, want)
			}
			time.Sleep(time.Minute)
		}
		cancel()
		<-ended
	})
}

package send_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/internal/send"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

// A caller leaves when its context ends, when its patience is over, or at Close. Its command
// goes on under a context that does not end, and Close waits for it.
func TestAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := send.New(nil, "", time.Minute)
		answer := make(chan struct{})
		defer close(answer)
		var mu sync.Mutex
		var under []context.Context // guarded by mu
		slow := func(ctx context.Context) (int, error) {
			mu.Lock()
			under = append(under, ctx)
			mu.Unlock()
			<-answer
			return 1, ctx.Err()
		}
		sent := func() int {
			mu.Lock()
			defer mu.Unlock()
			return len(under)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if _, err := send.Ask(ctx, s, time.Minute, slow); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("a context that ends: %v after %v", err, time.Since(start))
		}
		if _, err := send.Ask(ctx, s, time.Minute, slow); !errors.Is(err, context.DeadlineExceeded) || sent() != 1 {
			t.Errorf("a context that has ended: %v, %d sent", err, sent())
		}
		if _, err := send.Ask(t.Context(), s, time.Minute, slow); !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "1m0s") {
			t.Errorf("no patience any more: %v", err)
		}
		if n, err := send.Ask(t.Context(), s, time.Minute, func(context.Context) (int, error) { return 7, nil }); n != 7 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			synctest.Wait()
			short, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := s.Close(short); err == nil {
				t.Error("Close did not wait for the command under way")
			}
		}()
		if _, err := send.Ask(t.Context(), s, time.Hour, slow); !errors.Is(err, lock.ErrClosed) {
			t.Errorf("Close: %v", err)
		}
		<-closed
		mu.Lock()
		for _, ctx := range under {
			if ctx.Err() != nil {
				t.Error("the context of a command has ended")
			}
		}
		mu.Unlock()
		if _, err := send.Ask(t.Context(), s, time.Hour, slow); !errors.Is(err, lock.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		if err := s.Enter(); !errors.Is(err, lock.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

// Close waits for callers between Enter and Leave, and they may start goroutines after Close.
func TestEnter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := send.New(nil, "", time.Minute)
		if err := s.Enter(); err != nil {
			t.Fatal(err)
		}
		done := false
		go func() {
			<-s.Closing()
			time.Sleep(time.Second)
			s.Behind(func() { time.Sleep(time.Second); done = true })
			s.Leave()
		}()
		if err := s.Close(t.Context()); err != nil || !done {
			t.Errorf("%v, %v", err, done)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Errorf("again: %v", err)
		}
	})
}

func TestTold(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb, closed := s.Client(t), s.Client(t)
	closed.Close()
	sender := send.New(rdb, "", time.Second)
	reply := func(text string) error {
		return rdb.Do(t.Context(), rdb.B().Eval().Script("return redis.error_reply(ARGV[1])").Numkeys(0).Arg(text).Build()).Error()
	}
	for what, c := range map[string]struct {
		err  error
		want error // nil: the error stays as it is
	}{
		"loading":     {reply("LOADING Redis is loading"), lock.ErrUnavailable},
		"a replica":   {reply("READONLY You can't write"), lock.ErrUnavailable},
		"full":        {reply("OOM command not allowed"), lock.ErrUnavailable},
		"no disk":     {reply("MISCONF Redis is configured"), lock.ErrUnavailable},
		"no replicas": {reply("NOREPLICAS Not enough"), lock.ErrUnavailable},
		"a hash":      {reply("WRONGTYPE Operation against"), lock.ErrForeignKey},
		"denied":      {reply("NOPERM this user has no"), nil},
		"a bug":       {reply("ERR something"), nil},
		"nonsense":    {&luascripts.ReplyError{}, nil},
		"a switch":    {rueidis.ErrClosing, lock.ErrUnavailable},
		"cut":         {io.EOF, lock.ErrUnavailable},
		"refused":     {&net.OpError{Op: "dial", Err: io.EOF}, lock.ErrUnavailable},
	} {
		got := sender.Told(c.err)
		if !errors.Is(got, c.err) || c.want != nil && !errors.Is(got, c.want) || c.want == nil && errors.Is(got, lock.ErrUnavailable) {
			t.Errorf("%s: %v", what, got)
		}
		if again := sender.Told(got); c.want == lock.ErrUnavailable && again.Error() != got.Error() {
			t.Errorf("%s: told twice: %v", what, again)
		}
	}
	if err := sender.Told(reply("NOPERM")); !strings.Contains(err.Error(), "docs/operate/security.md") {
		t.Errorf("no advice: %v", err)
	}
	if sender.Told(nil) != nil {
		t.Error("Told made an error of nil")
	}
	if err := send.New(closed, "", time.Second).Told(rueidis.ErrClosing); !errors.Is(err, lock.ErrClosed) {
		t.Errorf("the rueidis client is closed: %v", err)
	}
}

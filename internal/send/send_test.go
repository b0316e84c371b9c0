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

// A caller returns when its context is canceled, its time has passed, or at Close. Its command
// continues with a context that is not canceled, and Close waits for it.
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
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if _, err := send.Ask(ctx, s, time.Minute, slow); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("a context that ends: %v after %v", err, time.Since(start))
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

// Close waits for callers between Enter and Leave, which may start goroutines after Close.
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
		want error // nil: the error is unchanged
	}{
		"loading":     {reply("LOADING Redis is loading"), lock.ErrUnavailable},
		"a replica":   {reply("READONLY You can't write"), lock.ErrUnavailable},
		"full":        {reply("OOM command not allowed"), lock.ErrUnavailable},
		"no disk":     {reply("MISCONF Redis is configured"), lock.ErrUnavailable},
		"no replicas": {reply("NOREPLICAS Not enough"), lock.ErrUnavailable},
		"a hash":      {reply("WRONGTYPE Operation against"), lock.ErrWrongType},
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

// Sleep returns after its duration, or earlier if the context is canceled or the sender is closed.
func TestSleep(t *testing.T) {
	for name, c := range map[string]struct {
		ctx, close, takes time.Duration // when the context is canceled, when Close begins, and how long Sleep takes
		want              error
	}{
		"to the end":      {time.Minute, time.Minute, time.Second, nil},
		"the context":     {time.Millisecond, time.Minute, time.Millisecond, context.DeadlineExceeded},
		"Close":           {time.Minute, time.Millisecond, time.Millisecond, lock.ErrClosed},
		"it ended before": {0, time.Minute, 0, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := send.New(nil, "", time.Minute)
				ctx, cancel := context.WithTimeout(t.Context(), c.ctx)
				defer cancel()
				end := time.AfterFunc(c.close, func() {
					if err := s.Close(context.Background()); err != nil {
						t.Error(err)
					}
				})
				defer end.Stop()
				start := time.Now()
				if err := s.Sleep(ctx, time.Second); !errors.Is(err, c.want) || time.Since(start) != c.takes {
					t.Errorf("%v after %v, want %v after %v", err, time.Since(start), c.want, c.takes)
				}
			})
		})
	}
}

// late is a canceled context that reports it only when everything else is blocked.
type late struct{ context.Context }

func (c late) Done() <-chan struct{} {
	synctest.Wait()
	return c.Context.Done()
}

// Nothing is in flight any more when the context of Close is canceled. Close then returns nil.
func TestClose_justInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := send.New(nil, "", time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 100 { // repeated, because it is random which of the two Close sees
			if err := s.Close(late{ctx}); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A caller whose context is canceled sends nothing.
func TestAsk_ended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := send.New(nil, "", time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		sent := false
		_, err := send.Ask(ctx, s, time.Minute, func(context.Context) (int, error) { sent = true; return 0, nil })
		synctest.Wait()
		if !errors.Is(err, context.Canceled) || sent {
			t.Errorf("%v, sent: %v", err, sent)
		}
	})
}

// The connection breaks during a command. The caller gets ErrUnavailable with the reason.
func TestAsk_fails(t *testing.T) {
	s := send.New(nil, "", time.Minute)
	_, err := send.Ask(t.Context(), s, time.Minute, func(context.Context) (int, error) { return 0, io.EOF })
	if !errors.Is(err, lock.ErrUnavailable) || !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

// An error that the module found in a reply is not an error of Redis: the caller gets it unchanged.
func TestTold_own(t *testing.T) {
	s := send.New(nil, "", time.Minute)
	own := send.Own(errors.New("ten bits of eleven"))
	if err := s.Told(own); err != own {
		t.Error(err)
	}
}

// The server does not know a command, and repeats its arguments. The error contains no argument, and
// is not temporary.
func TestTold_unknown(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	err := rdb.Do(t.Context(), rdb.B().Arbitrary("NOSUCHCOMMAND").Args("secret").Build()).Error()
	if err == nil || !strings.Contains(err.Error(), "secret") {
		t.Fatalf("the server says %v, so nothing is proved", err)
	}
	err = send.New(rdb, "", time.Second).Told(err)
	if errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "NOSUCHCOMMAND") || strings.Contains(err.Error(), "secret") {
		t.Error(err)
	}
}

// Full reports true only for a server that cannot write at present.
func TestFull(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	for text, want := range map[string]bool{"OOM command not allowed": true, "MISCONF Redis is configured": true, "LOADING Redis is loading": false, "ERR something": false} {
		err := rdb.Do(t.Context(), rdb.B().Eval().Script("return redis.error_reply(ARGV[1])").Numkeys(0).Arg(text).Build()).Error()
		if send.Full(err) != want {
			t.Errorf("%v: %v", err, !want)
		}
	}
	if send.Full(io.EOF) || send.Full(nil) {
		t.Error("a connection that breaks, and no error at all, are no full server")
	}
}

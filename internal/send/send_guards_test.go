package send_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/internal/send"
	"github.com/leasehold-go/leasehold/lock"
)

// Sleep waits for as long as it should. The end of the context ends it before, and so does Close.
func TestSleep(t *testing.T) {
	for name, c := range map[string]struct {
		ctx, close, takes time.Duration // when the context ends, when Close begins, and how long Sleep takes
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

// late is a context that has ended, and says so only when everything else has come to a rest.
type late struct{ context.Context }

func (c late) Done() <-chan struct{} {
	synctest.Wait()
	return c.Context.Done()
}

// Nothing is under way any more when the patience of Close ends. Close says that all is well.
func TestClose_justInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := send.New(nil, "", time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 100 { // each time, it is a matter of luck which of the two Close sees
			if err := s.Close(late{ctx}); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A caller whose context has ended sends nothing.
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

// The connection breaks under a command. The caller hears that Redis is not available, and what happened.
func TestAsk_fails(t *testing.T) {
	s := send.New(nil, "", time.Minute)
	_, err := send.Ask(t.Context(), s, time.Minute, func(context.Context) (int, error) { return 0, io.EOF })
	if !errors.Is(err, lock.ErrUnavailable) || !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

// What the module found in an answer is no failure of Redis: the caller gets the error as it is.
func TestTold_own(t *testing.T) {
	s := send.New(nil, "", time.Minute)
	own := send.Own(errors.New("ten bits of eleven"))
	if err := s.Told(own); err != own {
		t.Error(err)
	}
}

// The server does not know a command, and repeats its arguments. The error has no argument, and does not say that it may pass.
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

// Only a server that cannot write at this moment is full: no other error says that the command was not carried out.
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

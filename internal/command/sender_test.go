package command

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

// newSender returns a sender whose commands reach no server. Call it in a bubble: it ends there.
func newSender(t *testing.T) *Sender {
	s := New(one, Config{Timeout: timeout, Idle: Idlers})
	t.Cleanup(func() {
		s.Shut()
		s.Wait()
		if n := s.Waiting(); n != 0 {
			t.Errorf("after the end %d goroutines wait", n)
		}
	})
	return s
}

// sent is a command that calls its function.
type sent struct {
	Unbatched[int]
	send func(ctx context.Context) (int, error)
	late chan error // nil if no test receives from it
}

func (c sent) Send(ctx context.Context) (int, error) { return c.send(ctx) }

func (c sent) Late(_ int, err error) {
	if c.late != nil {
		c.late <- err
	}
}

// Wait returns only when nothing is counted.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(nil, Config{Timeout: timeout})
		s.Add()
		time.AfterFunc(timeout/2, s.Done)
		start := time.Now()
		s.Wait()
		if took := time.Since(start); took != timeout/2 {
			t.Errorf("after %v", took)
		}
	})
}

// refusal is an error reply of a server.
func refusal(t *testing.T, text string) error {
	m := redistest.NewMini(t)
	rdb := m.Client(t)
	m.SetError(text)
	return rdb.Do(t.Context(), rdb.B().Ping().Build()).Error()
}

// A command without a limit waits as long as the server takes.
func TestSend_waitsWithoutALimit(t *testing.T) {
	refused := refusal(t, "ERR no")
	synctest.Test(t, func(t *testing.T) {
		s := newSender(t)
		for _, failed := range []error{nil, refused, io.EOF} {
			o := Send[int](t.Context(), s, 0, sent{send: func(context.Context) (int, error) {
				time.Sleep(10 * timeout)
				return 7, failed
			}})
			if o.Value != 7 || !o.Answered || o.Err != failed {
				t.Errorf("%+v, want the error %v", o, failed)
			}
		}
	})
}

// A caller leaves when its context is canceled or its limit has passed. The command continues, and
// Late receives its reply.
func TestSend_callersLeave(t *testing.T) {
	for why, limit := range map[string]time.Duration{"its context is canceled": 0, "its time has passed": timeout / 2} {
		synctest.Test(t, func(t *testing.T) {
			s := newSender(t)
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			late, start := make(chan error, 1), time.Now()
			o := Send[int](ctx, s, limit, sent{late: late, send: func(context.Context) (int, error) {
				time.Sleep(2 * timeout)
				return 7, io.EOF
			}})
			if timedOut := errors.As(o.Err, new(NoReply)); o.Answered || timedOut != (limit > 0) || !timedOut && o.Err != ctx.Err() {
				t.Errorf("%s: %+v", why, o)
			}
			if err := <-late; err != io.EOF || time.Since(start) != 2*timeout {
				t.Errorf("%s: Late got %v after %v", why, err, time.Since(start))
			}
		})
	}
}

// A command that waits for replicas has a longer limit than others. Its error reports how long it waited.
func TestSend_longLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := Send[int](t.Context(), newSender(t), 2*timeout, sent{send: func(context.Context) (int, error) {
			time.Sleep(3 * timeout)
			return 0, nil
		}})
		if want := (NoReply{After: 2 * timeout}); o.Err != want {
			t.Errorf("%v, want %v", o.Err, want)
		}
		time.Sleep(timeout)
	})
}

// A goroutine that has sent a command is reused for the next one. Only a few wait for that.
func TestSend_reusesGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSender(t)
		send := func() {
			_ = Send[int](t.Context(), s, 0, sent{send: func(context.Context) (int, error) { time.Sleep(time.Second); return 0, nil }})
		}
		for range 3 {
			send()
			synctest.Wait()
		}
		if n := s.Waiting(); n != 1 {
			t.Errorf("one command at a time, and %d goroutines wait", n)
		}
		var all sync.WaitGroup
		for range 3 * Idlers {
			all.Go(send)
		}
		all.Wait()
		synctest.Wait()
		if n := s.Waiting(); n != Idlers {
			t.Errorf("%d goroutines wait for the next command", n)
		}
	})
}

// SendWithRetry retries a command if that may help, within its limit, and reports whether the server
// may have executed two copies. In the table, send returns the outcome of a copy that is sent that
// long after the start.
func TestSendWithRetry(t *testing.T) {
	var (
		ended   = errors.New("the end")
		dial    = retry.Undialled{Err: &net.OpError{Op: "dial", Err: syscall.EHOSTUNREACH}}
		full    = &luascripts.WaitError{Reply: "MISCONF the disk is full"}
		refused = retry.Undialled{Err: &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}}
		quickly = func(n int, err error) func(int, time.Duration) (time.Duration, error) { // the first n copies fail with err
			return func(copy int, _ time.Duration) (time.Duration, error) {
				if copy <= n {
					return 0, err
				}
				return 0, nil
			}
		}
		down = func(int, time.Duration) (time.Duration, error) { return 0, dial }
	)
	const never = time.Hour
	for what, c := range map[string]struct {
		within time.Duration
		leaves time.Duration // when the caller's context is canceled; 0 if it is not
		send   func(copy int, since time.Duration) (takes time.Duration, err error)

		err      error // nil if there is a reply
		replied  bool
		copies   int           // 0 if random
		took     time.Duration // -1 if random
		repeated bool
	}{
		"a reply":                         {timeout, 0, quickly(0, nil), nil, true, 1, 0, false},
		"a reply after a second":          {timeout, 0, func(int, time.Duration) (time.Duration, error) { return resentAfter, nil }, nil, true, 1, resentAfter, true},
		"nothing was sent":                {timeout, 0, quickly(2, dial), nil, true, 3, -1, false},
		"refused once":                    {timeout, 0, quickly(1, refused), nil, true, 2, -1, false},
		"refused twice":                   {timeout, 0, quickly(2, refused), refused, true, 2, -1, false},
		"refused, no limit":               {0, 0, quickly(20, refused), nil, true, 21, -1, false},
		"transient, but not soon":         {timeout, 0, quickly(2, full), full, true, 1, 0, false},
		"transient for a while, no limit": {0, 0, quickly(3, full), nil, true, 4, -1, true},
		"nothing was sent, no limit":      {0, 0, quickly(20, dial), nil, true, 21, -1, false},
		"the connection broke":            {timeout, 0, quickly(1, io.EOF), nil, true, 2, -1, true},
		"it broke, then more errors":      {timeout, 0, func(copy int, _ time.Duration) (time.Duration, error) { return 0, []error{io.EOF, dial, nil}[copy-1] }, nil, true, 3, -1, true},
		"it would not help":               {timeout, 0, quickly(1, Final{ended}), ended, true, 1, 0, false},
		"it would not help, no limit":     {0, 0, quickly(1, Final{ended}), ended, true, 1, 0, false},
		"down, then the caller leaves": {0, timeout, func(copy int, _ time.Duration) (time.Duration, error) {
			if copy == 1 {
				return 0, dial
			}
			return never, nil
		}, dial, false, 2, timeout, true},
		"down for all of the time": {timeout, 0, down, dial, true, 0, -1, false},
		"down, then no reply": {timeout, 0, func(_ int, since time.Duration) (time.Duration, error) {
			if since < timeout/4 {
				return 0, dial
			}
			return never, nil
		}, NoReply{After: timeout, before: dial}, false, 0, timeout, true},
		"the caller leaves in a pause":     {0, timeout, down, dial, true, 0, timeout, false},
		"the caller leaves before a reply": {0, timeout, func(int, time.Duration) (time.Duration, error) { return never, nil }, context.DeadlineExceeded, false, 1, timeout, true},
		// A command that timed out on its own has used all of its time.
		"the command times out by itself": {0, timeout/2 + 12*time.Millisecond, func(copy int, _ time.Duration) (time.Duration, error) {
			if copy == 1 {
				return 0, io.EOF
			}
			return timeout / 2, NoReply{After: timeout / 2}
		}, NoReply{After: timeout / 2}, true, 2, timeout/2 + 12*time.Millisecond, true},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, ctx := newSender(t), t.Context()
				if c.leaves > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.leaves)
					defer cancel()
				}
				var sends atomic.Int64
				start := time.Now()
				o := SendWithRetry[int](ctx, s, c.within, sent{send: func(context.Context) (int, error) {
					copy := int(sends.Add(1))
					if copy > 1000 {
						return 0, Final{errors.New("it does not end, or makes no pauses")}
					}
					takes, err := c.send(copy, time.Since(start))
					if takes == never {
						<-s.Closing()
					} else {
						time.Sleep(takes)
					}
					return copy, err
				}})
				took, copies := time.Since(start), int(sends.Load())
				if o.Answered != c.replied || o.Repeated != c.repeated || !errors.Is(o.Err, c.err) || o.Err == nil && o.Value != copies {
					t.Errorf("%+v", o)
				}
				if c.copies > 0 && copies != c.copies || c.took >= 0 && took != c.took || c.within > 0 && took > c.within {
					t.Errorf("%d copies in %v", copies, took)
				}
			})
		})
	}
}

// A call fails if the server refuses connections, but only after two refusals. TestRefused of package
// client covers clusters.
func TestDown(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	for name, c := range map[string]struct {
		rdb       rueidis.Client
		last, err error
		down      bool
	}{
		"the first copy":             {one, nil, refused, false},
		"again":                      {one, refused, retry.Undialled{Err: refused}, true},
		"behind Sentinels":           {fixedNodes{mode: rueidis.ClientModeSentinel}, refused, refused, true},
		"a connection ended before":  {one, io.EOF, refused, false},
		"a time-out":                 {one, refused, &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}, false},
		"a connection that is reset": {one, refused, &net.OpError{Op: "read", Err: syscall.ECONNREFUSED}, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := New(c.rdb, Config{Timeout: timeout})
			if down := s.Down(t.Context(), timeout, c.last, c.err); down != c.down {
				t.Errorf("%s: %v", name, down)
			}
		})
	}
}

// nodes are the nodes of a cluster.
type nodes struct {
	fixedNodes
	all map[string]rueidis.Client
}

func (n nodes) Nodes() map[string]rueidis.Client { return n.all }

// On a cluster every node is queried. The call fails only if all of them refuse connections. That takes at most a quarter
// of the operation timeout, or its remainder.
func TestDown_cluster(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	for name, c := range map[string]struct {
		nodes       []string
		limit, took time.Duration
		down        bool
	}{
		"all refuse":                 {[]string{"refuses", "refuses"}, timeout, 0, true},
		"one replies":                {[]string{"refuses", "replies", "refuses"}, timeout, 0, false},
		"one is silent":              {[]string{"refuses", "silent"}, timeout, timeout / 4, false},
		"one is silent, little time": {[]string{"refuses", "silent"}, time.Millisecond, time.Millisecond, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all := make(map[string]rueidis.Client)
				m := redistest.NewMini(t)
				for i, what := range c.nodes {
					p := m.Proxy(t)
					var refuses atomic.Bool
					all[fmt.Sprint(i)] = m.Client(t, redistest.Via(p), func(o *rueidis.ClientOption) {
						dial := o.DialCtxFn
						o.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, config *tls.Config) (net.Conn, error) {
							if refuses.Load() {
								return nil, refused
							}
							return dial(ctx, addr, d, config)
						}
					})
					switch what {
					case "refuses":
						refuses.Store(true)
						p.CutAll()
						rdb := all[fmt.Sprint(i)]
						_ = rdb.Do(t.Context(), rdb.B().Ping().Build()).Error() // detects the closed connection
					case "silent":
						p.Freeze(true)
						defer p.Freeze(false)
					}
				}
				s := New(nodes{fixedNodes{mode: rueidis.ClientModeCluster}, all}, Config{Timeout: timeout})
				start := time.Now()
				if down := s.Down(t.Context(), c.limit, refused, refused); down != c.down || time.Since(start) != c.took {
					t.Errorf("%v after %v", down, time.Since(start))
				}
			})
		})
	}
}

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

const timeout = 3 * time.Second

// A server that refuses connections at first and later does not reply: the error includes the
// refusal, and matches that of a missing reply.
func TestSendWithRetry_reportsTheEarlierError(t *testing.T) {
	rdb := redistest.NewMini(t).Client(t)
	synctest.Test(t, func(t *testing.T) {
		down := errors.New("CLUSTERDOWN The cluster is down")
		unavailable := make(chan struct{})
		s := New(rdb, Config{Timeout: timeout})
		defer s.Wait()
		defer s.Shut()
		defer close(unavailable)
		for _, c := range []struct {
			refuses time.Duration
			want    string
		}{{timeout / 2, " has not responded for 3s: dial: " + down.Error()}, {0, " has not responded for 3s"}} {
			start := time.Now()
			o := SendWithRetry[int](t.Context(), s, timeout, Func[int](func(context.Context) (int, error) {
				if time.Since(start) < c.refuses {
					return 0, &net.OpError{Op: "dial", Err: down}
				}
				<-unavailable
				return 0, nil
			}))
			err := s.Unavailable(0, o.Err)
			if o.Answered || !errors.As(err, new(NoReply)) || !errors.Is(err, lock.ErrUnavailable) || !retry.FaultOf(o.Err).Retries() {
				t.Errorf("%+v", o)
			}
			if !strings.HasSuffix(err.Error(), c.want) {
				t.Errorf("%q, want %q", err, c.want)
			}
		}
	})
}

// The context of a call is canceled while a copy of its command has no reply, or between two copies. The error reports the
// cancellation and the failure of the copy before, if any.
func TestSendWithRetry_canceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reply := make(chan struct{})
		s := New(one, Config{Timeout: timeout})
		defer s.Wait()
		defer s.Shut()
		defer close(reply)
		why := errors.New("shutting down")
		for held := range int64(3) { // the copy that has no reply; 0 is none
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, why)
			defer cancel()
			var sent atomic.Int64
			o := SendWithRetry[int](ctx, s, timeout, Func[int](func(context.Context) (int, error) {
				if sent.Add(1) != held {
					return 0, io.EOF
				}
				<-reply
				return 0, nil
			}))
			err := s.Failed(ctx, time.Now(), o.Err)
			want := "context deadline exceeded: shutting down: Redis at a:1 does not respond: EOF"
			if held == 1 {
				want = "context deadline exceeded: shutting down: no reply from Redis after 1ns"
			}
			if err == nil || err.Error() != want || !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, why) || errors.Is(err, lock.ErrUnavailable) != (held != 1) {
				t.Errorf("if copy %d has no reply: %v, want %s", held, err, want)
			}
		}
	})
}

// A caller returns when its context is canceled, its time has passed, or at Close. Its command
// continues with a context that is not canceled, and Close waits for it.
func TestAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(one, Config{Timeout: time.Minute})
		reply := make(chan struct{})
		defer close(reply)
		var mu sync.Mutex
		var under []context.Context // guarded by mu
		slow := func(ctx context.Context) (int, error) {
			mu.Lock()
			under = append(under, ctx)
			mu.Unlock()
			<-reply
			return 1, ctx.Err()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if _, err := Ask(ctx, s, time.Minute, slow); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("a context that ends: %v after %v", err, time.Since(start))
		}
		if _, err := Ask(t.Context(), s, time.Minute, slow); !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "1m0s") {
			t.Errorf("after the timeout: %v", err)
		}
		if n, err := Ask(t.Context(), s, time.Minute, func(context.Context) (int, error) { return 7, nil }); n != 7 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			synctest.Wait()
			short, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := s.Close(short); err == nil {
				t.Error("Close did not wait for the command in flight")
			}
		}()
		if _, err := Ask(t.Context(), s, time.Hour, slow); !errors.Is(err, lock.ErrClosed) {
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
		if _, err := Ask(t.Context(), s, time.Hour, slow); !errors.Is(err, lock.ErrClosed) {
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
		s := New(one, Config{Timeout: time.Minute})
		if err := s.Enter(); err != nil {
			t.Fatal(err)
		}
		done := false
		go func() {
			<-s.Closing()
			time.Sleep(time.Second)
			s.Go(func() { time.Sleep(time.Second); done = true })
			s.Done()
		}()
		if err := s.Close(t.Context()); err != nil || !done {
			t.Errorf("%v, %v", err, done)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Errorf("again: %v", err)
		}
	})
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
				s := New(one, Config{Timeout: time.Minute})
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

// lateContext is a canceled context that reports it only when everything else is blocked.
type lateContext struct{ context.Context }

func (c lateContext) Done() <-chan struct{} {
	synctest.Wait()
	return c.Context.Done()
}

// Nothing is in flight when the context of Close is canceled. Close then returns nil.
func TestClose_justInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(one, Config{Timeout: time.Minute})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 100 { // repeated, because it is random which of the two Close sees
			if err := s.Close(lateContext{ctx}); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A canceled context without an error, or with one that cannot be compared, ends a call, and does not count as its
// reply.
func TestCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSender(t)
		reply := make(chan struct{})
		slow := func(context.Context) (int, error) { <-reply; return 0, nil }
		batcher := NewBatcher(s, func([]*int) bool { <-reply; return true }, func(*int) int { return 1 }, 1, func(*int) bool { return true })
		for what, call := range map[string]func(ctx context.Context) error{
			"Send":        func(ctx context.Context) error { return Send[int](ctx, s, 0, sent{send: slow}).Err },
			"Ask":         func(ctx context.Context) error { _, err := Ask(ctx, s, time.Minute, slow); return err },
			"Batcher.Ask": func(ctx context.Context) error { _, err := batcher.Ask(ctx, 1); return err },
			"Sleep":       func(ctx context.Context) error { return s.Sleep(ctx, time.Minute) },
			"Dated": func(ctx context.Context) error {
				return s.Dated().Send(ctx, func(int64) (int64, error) { <-ctx.Done(); return 1, nil })
			},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if err := call(redistest.Reused{Context: ctx}); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", what, err)
			}
			cancel()
			ctx, cancel = context.WithTimeout(t.Context(), time.Second)
			if err := call(redistest.Incomparable{Context: ctx}); what != "Send" && !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, lock.ErrUnavailable) {
				t.Errorf("%s, with an error that cannot be compared: %v", what, err)
			}
			cancel()
		}
		close(reply)
	})
}

// A caller whose context is canceled sends nothing.
func TestAsk_canceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(one, Config{Timeout: time.Minute})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		sent := false
		_, err := Ask(ctx, s, time.Minute, func(context.Context) (int, error) { sent = true; return 0, nil })
		synctest.Wait()
		if !errors.Is(err, context.Canceled) || sent {
			t.Errorf("%v, sent: %v", err, sent)
		}
	})
}

// The connection breaks during a command. The caller gets ErrUnavailable with the reason.
func TestAsk_fails(t *testing.T) {
	s := New(one, Config{Timeout: time.Minute})
	_, err := Ask(t.Context(), s, time.Minute, func(context.Context) (int, error) { return 0, io.EOF })
	if !errors.Is(err, lock.ErrUnavailable) || !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

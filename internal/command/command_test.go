package command

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/internal/retry"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

// A script calls a command for which its user lacks the right. Whatever the server's version
// says to that, the error says what to do.
func TestExplain_deniedInAScript(t *testing.T) {
	s := redistest.Start(t)
	admin := s.Client(t)
	if err := admin.Do(t.Context(), admin.B().Arbitrary("ACL", "SETUSER", "default", "-hset").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	rdb := s.Client(t)
	err := rdb.Do(t.Context(), rdb.B().Eval().Script("return redis.call('HSET', KEYS[1], 'a', 1)").Numkeys(1).Key("k").Build()).Error()
	if !Refused(err) {
		t.Fatalf("%v", err)
	}
	if err := New(rdb, Config{Timeout: time.Second}).Explain(err); !strings.Contains(err.Error(), "docs/operate/security.md") {
		t.Errorf("no advice: %v", err)
	}
}

const timeout = 3 * time.Second

// A caller that has less or more time than an operation time-out does not share its end.
func TestInline_hasTheTimeItNeeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		s := New(nil, Config{Timeout: timeout})
		defer s.Wait()
		s.answering.Store(true)
		for limit, inline := range map[time.Duration]bool{0: false, timeout / 2: false, timeout: true, timeout + time.Second: false} {
			own := s.mayInline(ctx, limit)
			if (own != nil) != inline {
				t.Errorf("with a limit of %v it is sent by the caller: %t", limit, own != nil)
			}
			if own == nil {
				continue
			}
			_, _ = s.inlined(own, nil)
			if end, _ := own.Deadline(); time.Until(end) > limit || time.Until(end) < timeout-timeout/8 {
				t.Errorf("with a limit of %v it has %v", limit, time.Until(end))
			}
		}
		if s.mayInline(t.Context(), timeout) != nil {
			t.Error("a caller that can be cancelled sends by itself")
		}
		var own *endOf
		for range inlineMost {
			if own = s.mayInline(ctx, timeout); own == nil {
				t.Fatal("not sent by the caller")
			}
		}
		if s.mayInline(ctx, timeout) != nil {
			t.Error("more at a time than the library has room for")
		}
		s.inline.Store(0)
		time.Sleep(inlineAfter + 1)
		if s.mayInline(ctx, timeout) != nil {
			t.Error("the connection can have broken since the latest answer")
		}
		<-own.Done()
		s.latest.Store(int64(time.Since(s.began)))
		if _, err := s.inlined(own, own.Err()); !errors.As(err, new(NoAnswer)) || s.mayInline(ctx, timeout) != nil {
			t.Errorf("%v, and the next is sent by its caller", err)
		}
	})
}

// switched is a client whose commands go by a connection that the library has closed, until one says so: as a Sentinel client
// when another server was promoted.
type switched struct {
	rueidis.Client
	old rueidis.Client // nil once a command has said so
}

func (s *switched) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	if old := s.old; old != nil {
		s.old = nil
		return old.Do(ctx, cmd)
	}
	return s.Client.Do(ctx, cmd)
}

// The library closes a connection when another server was promoted, with the error of a client that the application has
// closed. Only the latter makes a call end.
func TestSure(t *testing.T) {
	m := redistest.NewMini(t)
	closed := m.Client(t)
	closed.Close()
	for what, ctx := range map[string]context.Context{"inline": context.Background(), "detached": t.Context(), "together": t.Context()} {
		for _, rdb := range []rueidis.Client{&switched{m.Client(t), closed}, closed} {
			get := func(ctx context.Context) (string, error) {
				return rdb.Do(ctx, rdb.B().Get().Key("k").Build()).ToString()
			}
			closing := make(chan struct{})
			s := New(rdb, Config{Timeout: timeout, Closing: closing})
			s.answering.Store(true)
			s.change = func(_ rueidis.CoreClient, changes []*luascripts.Change) {
				_, changes[0].Err = get(context.Background())
			}
			var err error
			if what == "together" {
				_, _, err = await(ctx, s, timeout, step{})
			} else {
				_, _, err = Await[string](ctx, s, timeout, Func[string](get))
			}
			want := retry.Fault{Passes: true, Is: lock.ErrUnavailable}
			if rdb == closed {
				want = retry.Fault{Is: lock.ErrClosed}
			}
			if !errors.Is(err, rueidis.ErrClosing) || retry.FaultOf(err) != want {
				t.Errorf("%s: %v is %+v, want %+v", what, err, retry.FaultOf(err), want)
			}
			close(closing)
			s.Wait()
		}
	}
}

// asked counts the commands that a closed client is asked to send.
type asked struct {
	rueidis.Client
	times int
}

func (a *asked) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	a.times++
	if _, ok := ctx.Deadline(); !ok {
		panic("all that travel together wait for this without an end")
	}
	return a.Client.Do(ctx, cmd)
}

// For a batch the sender asks once, and for a while only; what has an answer keeps it.
func TestSure_batch(t *testing.T) {
	rdb := &asked{Client: redistest.NewMini(t).Client(t)}
	rdb.Close()
	s := New(rdb, Config{Timeout: timeout})
	changes := []*luascripts.Change{{}, {Err: rueidis.ErrClosing}, {Err: io.EOF}, {Err: rueidis.ErrClosing}}
	s.sure(changes)
	for i, want := range []bool{false, true, false, true} {
		if got := errors.As(changes[i].Err, new(retry.Closed)); got != want {
			t.Errorf("change %d: %v", i, changes[i].Err)
		}
	}
	if rdb.times != 1 {
		t.Errorf("it asked %d times", rdb.times)
	}
}

// A server that refuses for the most of the time, and is silent in the end: the error says what it
// said, and is one of a call without an answer all the same.
func TestInsist_saysWhatCameBefore(t *testing.T) {
	rdb := redistest.NewMini(t).Client(t)
	synctest.Test(t, func(t *testing.T) {
		down := errors.New("CLUSTERDOWN The cluster is down")
		silent := make(chan struct{})
		s := New(rdb, Config{Timeout: timeout, Closing: silent})
		defer s.Wait()
		defer close(silent)
		for _, c := range []struct {
			refuses time.Duration
			want    string
		}{{timeout / 2, " has not responded for 3s: dial: " + down.Error()}, {0, " has not responded for 3s"}} {
			began := time.Now()
			o := Insist[int](t.Context(), s, began, timeout, Func[int](func(context.Context) (int, error) {
				if time.Since(began) < c.refuses {
					return 0, &net.OpError{Op: "dial", Err: down}
				}
				<-silent
				return 0, nil
			}))
			err := s.Silent(0, o.Err)
			if o.Answered || !errors.As(err, new(NoAnswer)) || !errors.Is(err, lock.ErrUnavailable) || !retry.FaultOf(o.Err).Retries() {
				t.Errorf("%+v", o)
			}
			if !strings.HasSuffix(err.Error(), c.want) {
				t.Errorf("%q, want %q", err, c.want)
			}
		}
	})
}

// begun is a call that lets its caller leave just before it is sent.
type begun struct {
	Alone[int]
	asks  bool
	gone  <-chan struct{} // closed when its caller has left
	sends chan<- struct{}
	late  chan<- error
}

func (b begun) Asks() bool { <-b.gone; return b.asks }

func (b begun) Send(context.Context) (int, error) { b.sends <- struct{}{}; return 1, nil }

func (b begun) Late(_ int, err error) { b.late <- err }

// A question whose caller has left is not sent any more, and anything else is. Late hears which of the two.
func TestDetached_callersLeave(t *testing.T) {
	rdb := redistest.NewMini(t).Client(t)
	for _, asks := range []bool{true, false} {
		for why, leave := range map[string]func(ctx context.Context) (context.Context, time.Duration){
			"its context ended": func(ctx context.Context) (context.Context, time.Duration) {
				ctx, cancel := context.WithCancel(ctx)
				cancel()
				return ctx, 0
			},
			"its time is over": func(ctx context.Context) (context.Context, time.Duration) { return ctx, time.Second },
		} {
			synctest.Test(t, func(t *testing.T) {
				closing := make(chan struct{})
				s := New(rdb, Config{Timeout: timeout, Closing: closing})
				defer s.Wait()
				defer close(closing)
				gone, sends, late := make(chan struct{}), make(chan struct{}, 1), make(chan error, 1)
				ctx, limit := leave(t.Context())
				if _, answered, err := Detached[int](ctx, s, limit, begun{asks: asks, gone: gone, sends: sends, late: late}); answered || err == nil {
					t.Errorf("%s: %v, %v", why, answered, err)
				}
				close(gone)
				synctest.Wait()
				if err := <-late; errors.Is(err, ErrUnsent) != asks || asks && retry.FaultOf(err).MayHaveRun() {
					t.Errorf("%s: Late hears %v", why, err)
				}
				if sent := len(sends) == 1; sent == asks {
					t.Errorf("%s, and it asks: %v; sent: %v", why, asks, sent)
				}
				if n := s.Load().Detached; n != 0 {
					t.Errorf("%s: %d are under way", why, n)
				}
			})
		}
	}
}

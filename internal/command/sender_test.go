package command

import (
	"context"
	"errors"
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

// newSender returns a sender whose commands reach no server. Make it in a bubble: it ends there.
func newSender(t *testing.T) *Sender {
	closing := make(chan struct{})
	s := New(one, Config{Timeout: timeout, Closing: closing})
	t.Cleanup(func() {
		close(closing)
		s.Wait()
		if load := s.Load(); load.Inline != 0 || load.Detached != 0 || load.Idle != 0 {
			t.Errorf("after the end: %+v", load)
		}
	})
	return s
}

// sent is a command that is what its function does.
type sent struct {
	Alone[int]
	asks bool
	send func(ctx context.Context) (int, error)
	late chan error // nil if nobody hears it
}

func (c sent) Asks() bool { return c.asks }

func (c sent) Send(ctx context.Context) (int, error) { return c.send(ctx) }

func (c sent) Late(_ int, err error) {
	if c.late != nil {
		c.late <- err
	}
}

// refusal is an error reply of a server.
func refusal(t *testing.T, text string) error {
	m := redistest.NewMini(t)
	rdb := m.Client(t)
	m.SetError(text)
	return rdb.Do(t.Context(), rdb.B().Ping().Build()).Error()
}

// Wait comes back when nothing is counted any more, and not before. The context that inline commands share ends with it.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(nil, Config{Timeout: timeout})
		s.answering.Store(true)
		own := s.mayInline(context.Background(), timeout)
		_, _ = s.inlined(own, nil)
		s.Add()
		time.AfterFunc(timeout/2, s.Done)
		began := time.Now()
		s.Wait()
		if took := time.Since(began); took != timeout/2 || !errors.Is(own.Err(), context.Canceled) {
			t.Errorf("after %v, and the context says %v", took, own.Err())
		}
	})
}

// A server falls silent under a command that its caller sends. The caller leaves in time, Late hears of it, and the command is not sent again.
func TestInline_aSilentServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSender(t)
		s.answering.Store(true)
		late, copies := make(chan error, 2), 0
		o := Insist[int](context.Background(), s, time.Now(), timeout, sent{late: late, send: func(ctx context.Context) (int, error) {
			copies++
			<-ctx.Done()
			return 0, ctx.Err()
		}})
		if o.Answered || !errors.As(o.Err, new(NoAnswer)) || copies != 1 {
			t.Errorf("%+v after %d copies", o, copies)
		}
		synctest.Wait()
		if len(late) != 1 || !retry.FaultOf(<-late).MayHaveRun() {
			t.Error("nobody hears that the command may have run")
		}
		if load := s.Load(); load != (Load{}) {
			t.Errorf("afterwards: %+v", load)
		}
	})
}

// Only a command whose own time is over is without an answer: the library gives the same error to all that share a connection, and
// says by a failed dial that nothing was sent. After an answer, also a refusal, the next command may go inline.
func TestInline_whatAnErrorMeans(t *testing.T) {
	refused := refusal(t, "ERR no")
	synctest.Test(t, func(t *testing.T) {
		s := newSender(t)
		const whole = timeout - timeout/inlineShort
		for _, c := range []struct {
			after             time.Duration
			err               error
			answered, answers bool
		}{
			{0, nil, true, true},
			{0, refused, true, true},
			{timeout / 2, context.DeadlineExceeded, true, false},
			{whole, context.DeadlineExceeded, false, false},
			{whole, &net.OpError{Op: "read", Err: context.DeadlineExceeded}, false, false},
			{whole, &net.OpError{Op: "dial", Err: context.DeadlineExceeded}, true, false},
			{whole, io.EOF, true, false},
		} {
			s.answering.Store(true)
			s.latest.Store(int64(time.Since(s.began)))
			s.end.Store(nil)
			own := s.mayInline(context.Background(), timeout)
			time.Sleep(c.after)
			answered, err := s.inlined(own, c.err)
			if answered != c.answered || c.answered && err != c.err || !c.answered && !errors.As(err, new(NoAnswer)) {
				t.Errorf("%v after %v: %t, %v", c.err, c.after, answered, err)
			}
			if load := s.Load(); load != (Load{Answering: c.answers}) {
				t.Errorf("%v after %v: %+v", c.err, c.after, load)
			}
			own.cancel()
		}
	})
}

// One inline command after the other, of callers that have used a little of their time: each finds the connection awake, and nearly the whole
// time-out, and no more than its caller has. Many share a context.
func TestInline_sharesTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSender(t)
		s.answering.Store(true)
		const commands, limit = 400, timeout - timeout/inlineShort
		ends := make(map[*endOf]bool)
		for range commands {
			own := s.mayInline(context.Background(), limit)
			if own == nil {
				t.Fatalf("not inline, %v after the start", time.Since(s.began))
			}
			if end, _ := own.Deadline(); time.Until(end) < timeout-timeout/8 || time.Until(end) > limit {
				t.Errorf("it has %v of %v", time.Until(end), timeout)
			}
			ends[own] = true
			_, _ = s.inlined(own, nil)
			time.Sleep(inlineAfter)
		}
		if len(ends) > commands/10 {
			t.Errorf("%d contexts for %d commands", len(ends), commands)
		}
	})
}

// A command that finds no room among the inline ones takes none, so that there is room as soon as one of them ends.
func TestInline_room(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSender(t)
		s.answering.Store(true)
		var all []*endOf
		for range 2 * inlineMost {
			if own := s.mayInline(context.Background(), timeout); own != nil {
				all = append(all, own)
			}
		}
		if len(all) != inlineMost || s.Load().Inline != inlineMost {
			t.Errorf("%d commands run inline, and %d are counted", len(all), s.Load().Inline)
		}
		for _, own := range all {
			_, _ = s.inlined(own, nil)
		}
	})
}

// A question without a limit waits for as long as the server takes. While nothing else was answered, no other command is inline; then they
// are, until a connection breaks.
func TestDetached_answers(t *testing.T) {
	refused := refusal(t, "ERR no")
	synctest.Test(t, func(t *testing.T) {
		s := newSender(t)
		for _, failed := range []error{nil, refused, io.EOF} {
			s.answering.Store(true)
			value, answered, err := Detached[int](t.Context(), s, 0, sent{asks: true, send: func(context.Context) (int, error) {
				if load := s.Load(); load.Detached != 1 || load.Answering {
					t.Errorf("on the way: %+v", load)
				}
				time.Sleep(10 * timeout)
				return 7, failed
			}})
			if value != 7 || !answered || err != failed {
				t.Errorf("%d, %t, %v, and not %v", value, answered, err, failed)
			}
			own := s.mayInline(context.Background(), timeout)
			if inline := own != nil; inline != IsAnswer(failed) {
				t.Errorf("after %v the next is inline: %t", failed, inline)
			} else if inline {
				_, _ = s.inlined(own, nil)
			}
		}
	})
}

// A command has no answer in its time, though others were answered since it began: the next ones are not inline.
func TestDetached_silence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSender(t)
		takes := func(d time.Duration) sent {
			return sent{send: func(context.Context) (int, error) { time.Sleep(d); return 0, nil }}
		}
		var all sync.WaitGroup
		all.Go(func() {
			if _, answered, err := Detached[int](t.Context(), s, timeout, takes(2*timeout)); answered || !errors.As(err, new(NoAnswer)) {
				t.Errorf("%t, %v", answered, err)
			}
		})
		if _, answered, err := Detached[int](t.Context(), s, timeout, takes(timeout/2)); !answered || err != nil || !s.Load().Answering {
			t.Errorf("%t, %v, %+v", answered, err, s.Load())
		}
		all.Wait()
		if s.Load().Answering {
			t.Error("the server seems to answer")
		}
	})
}

// A goroutine that has sent a command sends the next one, too. A few wait for that, and not as many as there ever were.
func TestDetached_goroutinesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSender(t)
		send := func() {
			_, _, _ = Detached[int](t.Context(), s, 0, sent{send: func(context.Context) (int, error) { time.Sleep(time.Second); return 0, nil }})
		}
		for range 3 {
			send()
			synctest.Wait()
		}
		if n := s.Load().Idle; n != 1 {
			t.Errorf("one command at a time, and %d goroutines wait", n)
		}
		var all sync.WaitGroup
		for range 3 * idlers {
			all.Go(send)
		}
		all.Wait()
		synctest.Wait()
		if n := s.Load().Idle; n != idlers {
			t.Errorf("%d goroutines wait for the next command", n)
		}
	})
}

// Insist sends a command again while that may help, for as long as its caller has time, and says whether the server may have carried out two
// copies. In the table, send says what becomes of a copy that is sent so long after the start.
func TestInsist(t *testing.T) {
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
		leaves time.Duration // when the context of the caller ends; 0 if it does not
		send   func(copy int, since time.Duration) (takes time.Duration, err error)

		err      error // nil if there is an answer
		answered bool
		copies   int           // 0 if that is left to chance
		took     time.Duration // -1 if that is left to chance
		repeated bool
	}{
		"an answer":                     {timeout, 0, quickly(0, nil), nil, true, 1, 0, false},
		"an answer after a second":      {timeout, 0, func(int, time.Duration) (time.Duration, error) { return resentAfter, nil }, nil, true, 1, resentAfter, true},
		"nothing was sent":              {timeout, 0, quickly(2, dial), nil, true, 3, -1, false},
		"refused once":                  {timeout, 0, quickly(1, refused), nil, true, 2, -1, false},
		"refused twice":                 {timeout, 0, quickly(2, refused), refused, true, 2, -1, false},
		"refused, no limit":             {0, 0, quickly(20, refused), nil, true, 21, -1, false},
		"it passes, but hardly soon":    {timeout, 0, quickly(2, full), full, true, 1, 0, false},
		"it passes late, no limit":      {0, 0, quickly(3, full), nil, true, 4, -1, true},
		"nothing was sent, no limit":    {0, 0, quickly(20, dial), nil, true, 21, -1, false},
		"the connection broke":          {timeout, 0, quickly(1, io.EOF), nil, true, 2, -1, true},
		"it broke, and more went wrong": {timeout, 0, func(copy int, _ time.Duration) (time.Duration, error) { return 0, []error{io.EOF, dial, nil}[copy-1] }, nil, true, 3, -1, true},
		"it would not help":             {timeout, 0, quickly(1, Final{ended}), ended, true, 1, 0, false},
		"down for all of the time":      {timeout, 0, down, dial, true, 0, -1, false},
		"down, then silent": {timeout, 0, func(_ int, since time.Duration) (time.Duration, error) {
			if since < timeout/4 {
				return 0, dial
			}
			return never, nil
		}, NoAnswer{After: timeout, before: dial}, false, 0, timeout, true},
		"the caller leaves in a pause":       {0, timeout, down, dial, true, 0, timeout, false},
		"the caller leaves before an answer": {0, timeout, func(int, time.Duration) (time.Duration, error) { return never, nil }, context.DeadlineExceeded, false, 1, timeout, true},
		// A command with an end of its own has had all of its time.
		"it ends by itself": {0, timeout/2 + 12*time.Millisecond, func(copy int, _ time.Duration) (time.Duration, error) {
			if copy == 1 {
				return 0, io.EOF
			}
			return timeout / 2, NoAnswer{After: timeout / 2}
		}, NoAnswer{After: timeout / 2}, true, 2, timeout/2 + 12*time.Millisecond, true},
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
				began := time.Now()
				o := Insist[int](ctx, s, began, c.within, sent{send: func(context.Context) (int, error) {
					copy := int(sends.Add(1))
					if copy > 1000 {
						return 0, Final{errors.New("it does not end, or makes no pauses")}
					}
					takes, err := c.send(copy, time.Since(began))
					if takes == never {
						<-s.Closing
					} else {
						time.Sleep(takes)
					}
					return copy, err
				}})
				took, copies := time.Since(began), int(sends.Load())
				if o.Answered != c.answered || o.Repeated != c.repeated || !errors.Is(o.Err, c.err) || o.Err == nil && o.Value != copies {
					t.Errorf("%+v", o)
				}
				if c.copies > 0 && copies != c.copies || c.took >= 0 && took != c.took || c.within > 0 && took > c.within {
					t.Errorf("%d copies in %v", copies, took)
				}
			})
		})
	}
}

// A call gives up where nothing listens, and not before it was refused twice. TestRefused of package client has clusters.
func TestDown(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	for name, c := range map[string]struct {
		rdb       rueidis.Client
		last, err error
		down      bool
	}{
		"the first copy":             {one, nil, refused, false},
		"again":                      {one, refused, retry.Undialled{Err: refused}, true},
		"behind Sentinels":           {known{mode: rueidis.ClientModeSentinel}, refused, refused, true},
		"a connection ended before":  {one, io.EOF, refused, false},
		"a time-out":                 {one, refused, &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}, false},
		"a connection that is reset": {one, refused, &net.OpError{Op: "read", Err: syscall.ECONNREFUSED}, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := New(c.rdb, Config{Timeout: timeout, Closing: t.Context().Done()})
			if down := s.Down(t.Context(), timeout, c.last, c.err); down != c.down {
				t.Errorf("%s: %v", name, down)
			}
		})
	}
}

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

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

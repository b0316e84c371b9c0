package kindtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// Call is a call other than Lock and Unlock, or a call of a type that is not a lock.
type Call struct {
	Op, Name string // as named in its errors
	Do       func(ctx context.Context) error

	// Once reports that the call is sent once, so that a lost reply is an error.
	Once bool

	// Waits reports that the call waits until its context is canceled.
	Waits bool

	// After checks that the call was executed exactly once; it may be nil.
	After func(t *testing.T)
}

// Calls tests calls when a reply is lost, when their callers leave, while the server is paused, and when the client closes. It
// includes [Replies]. of returns the calls for c, and prepares what they need under name, which no other case uses. It must
// return the same number of calls each time, in the same order. Each call must send at least one script.
func Calls(t *testing.T, of func(t *testing.T, c *client.Client, name string) []Call) {
	s := redistest.Start(t)
	n := 0
	for range 2 { // loads the scripts on the server
		calls := of(t, NewClient(t, s.Client(t)), fmt.Sprint("first", n))
		for n = range calls {
			if err := calls[n].Do(t.Context()); err != nil {
				t.Fatalf("%s: %v", calls[n].Op, err)
			}
		}
		n++
	}
	cases := 0
	// via returns a call with a separate client.
	via := func(t *testing.T, i int) (Call, *client.Client, *redistest.Proxy) {
		p := redistest.NewProxy(t, s.Addr())
		c := NewClient(t, s.Client(t, redistest.Via(p), func(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 }))
		cases++
		return of(t, c, fmt.Sprint("case", cases))[i], c, p
	}
	for i := range n {
		for what, act := range map[string]redistest.Action{"request": {DropRequest: true}, "reply": {DropReply: true}} {
			call, _, p := via(t, i)
			call.lost(t, p, what, act)
		}
		for _, phase := range []string{"request", "reply"} {
			call, _, p := via(t, i)
			call.left(t, p, phase)
		}
		call, c, p := via(t, i)
		call.closing(t, c, p)
	}
	Replies(t, of)
	c := NewClient(t, s.Client(t), client.WithOpTimeout(OpTimeout))
	calls := of(t, c, "frozen")
	s.Freeze(t)
	var wg sync.WaitGroup
	for _, call := range calls {
		wg.Go(func() {
			ctx, cancel := context.WithTimeoutCause(t.Context(), 2*OpTimeout, Why) // some calls wait until their contexts are canceled
			defer cancel()
			err := call.Do(ctx)
			if call.wants(t, "on a frozen server", err, lock.ErrUnavailable); errors.Is(err, context.DeadlineExceeded) != errors.Is(err, Why) {
				t.Errorf("%s: %v does not have the cause", call.Op, err)
			}
		})
	}
	wg.Wait()
	s.Thaw(t)
}

// lost tests the call when the proxy drops its script, or the reply.
func (c Call) lost(t *testing.T, p *redistest.Proxy, what string, act redistest.Action) {
	p.OnRequest(redistest.Once("EVALSHA", act))
	err := c.Do(t.Context())
	p.OnRequest(nil)
	switch {
	case c.Once:
		c.wants(t, "a lost "+what, err, lock.ErrUnavailable)
	case err != nil:
		t.Errorf("%s, a lost %s: %v", c.Op, what, err)
	}
	if c.After != nil && (what == "reply" || !c.Once) {
		c.After(t)
	}
}

// left tests the call when its caller leaves while the script or the reply is on its way, and when the caller had left before.
func (c Call) left(t *testing.T, p *redistest.Proxy, phase string) {
	asked, release := hold(p, phase)
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Do(ctx) }()
	<-asked
	cancel(Why)
	err := <-done
	if c.wantsCanceled(t, "left while its "+phase+" is on its way", err); !strings.Contains(fmt.Sprint(err), silence) {
		t.Errorf("%s: %v does not say that there was no reply", c.Op, err)
	}
	c.wantsCanceled(t, "after its context was canceled", c.Do(ctx))
	close(release)
}

// closing tests the call when its client closes while the reply is on its way, and after the client has closed.
func (c Call) closing(t *testing.T, from *client.Client, p *redistest.Proxy) {
	asked, release := hold(p, "reply")
	done, closed := make(chan error, 1), make(chan error, 1)
	go func() { done <- c.Do(t.Context()) }()
	<-asked
	go func() { closed <- from.Close(t.Context()) }()
	over, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond) // a canceled context gives Close more time
	if err := from.Close(over); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%s: Close while it is under way: %v", c.Op, err)
	}
	cancel()
	close(release)
	if err := <-done; err != nil {
		c.wants(t, "under way when the client closes", err, lock.ErrClosed)
	}
	if err := <-closed; err != nil {
		t.Errorf("%s: Close: %v", c.Op, err)
	}
	c.wants(t, "after Close", c.Do(t.Context()), lock.ErrClosed)
}

// Why is a cause for the cancellation of a call. It is the error of a different call, as with errgroup.
var Why error = &lock.Error{Op: "why", Name: "why", Err: lock.ErrUnavailable}

// wantsCanceled fails the test unless err is the error of a call whose context was canceled with the cause Why.
func (c Call) wantsCanceled(t *testing.T, what string, err error) {
	t.Helper()
	c.wants(t, what, err, context.Canceled)
	if !errors.Is(err, Why) || errors.Is(err, lock.ErrUnavailable) || strings.Count(fmt.Sprint(err), Why.Error()) != 1 {
		t.Errorf("%s, %s: %v does not have the cause", c.Op, what, err)
	}
}

// wants fails the test unless err names the operation and its object, and matches want.
func (c Call) wants(t *testing.T, what string, err, want error) {
	t.Helper()
	var e *lock.Error
	if !errors.Is(err, want) || !errors.As(err, &e) || e.Op != c.Op || e.Name != c.Name {
		t.Errorf("%s, %s: %v", c.Op, what, err)
	}
}

// hold blocks the next script, or its reply, until release is closed. asked is closed when one is blocked.
func hold(p *redistest.Proxy, phase string) (asked, release chan struct{}) {
	asked, release = make(chan struct{}), make(chan struct{})
	act := redistest.Action{HoldRequest: release}
	if phase == "reply" {
		act = redistest.Action{HoldReply: release}
	}
	once := redistest.Once("EVALSHA", act)
	p.OnRequest(func(req [][]byte) redistest.Action {
		a := once(req)
		if a != (redistest.Action{}) {
			close(asked)
		}
		return a
	})
	return asked, release
}

// CloseFrozen tests Close with a paused server, while a client has the hold that holds returns. Close returns when its context
// is canceled, and the hold has ended. When the server responds again, the client releases the hold, so that isFree returns true
// for another client.
func CloseFrozen(t *testing.T, holds func(t *testing.T, c *client.Client) lock.Hold, isFree func(t *testing.T, c *client.Client) bool) {
	s := redistest.Start(t)
	c, err := client.New(s.Client(t, func(o *rueidis.ClientOption) { o.ConnWriteTimeout = 5 * time.Second }), client.WithOpTimeout(OpTimeout))
	if err != nil {
		t.Fatal(err)
	}
	h := holds(t, c)
	s.Freeze(t)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if err := c.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close: %v, want its context's error", err)
	}
	if !errors.Is(h.Err(), lock.ErrClosed) {
		t.Errorf("the hold: %v", h.Err())
	}
	s.Thaw(t)
	_ = c.Close(t.Context()) // waits for work in the background
	other := NewClient(t, s.Client(t))
	WaitFor(t, "it is given back", func() bool { return isFree(t, other) })
}

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

// Call is one call of a kind that is no lock, or that is no Lock and no Unlock.
type Call struct {
	Op, Name string // which its errors name
	Do       func(ctx context.Context) error

	// Once says that it is sent once, so that a lost answer is an error.
	Once bool

	// Waits says that it waits until its context is canceled.
	Waits bool

	// After checks that the call was carried out once; it may be nil.
	After func(t *testing.T)
}

// Calls tests what calls do when an answer is lost, when their callers leave, when the server stands still, and when the
// client closes, and [Replies]. of returns the calls on c, and prepares what they need under this name, which no other case has. It
// returns as many each time, in the same order, and each sends one script at least.
func Calls(t *testing.T, of func(t *testing.T, c *client.Client, name string) []Call) {
	s := redistest.Start(t)
	n := 0
	for range 2 { // now the server knows the scripts
		calls := of(t, NewClient(t, s.Client(t)), fmt.Sprint("first", n))
		for n = range calls {
			if err := calls[n].Do(t.Context()); err != nil {
				t.Fatalf("%s: %v", calls[n].Op, err)
			}
		}
		n++
	}
	cases := 0
	// via returns a call of a client of its own.
	via := func(t *testing.T, i int) (Call, *client.Client, *redistest.Proxy) {
		p := redistest.NewProxy(t, s.Addr())
		c := NewClient(t, s.Client(t, redistest.Via(p), func(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 }))
		cases++
		return of(t, c, fmt.Sprint("case", cases))[i], c, p
	}
	for i := range n {
		for what, act := range map[string]redistest.Action{"request": {DropRequest: true}, "reply": {DropReply: true}} {
			call, _, p := via(t, i)
			p.OnRequest(redistest.Once("EVALSHA", act))
			err := call.Do(t.Context())
			p.OnRequest(nil)
			switch {
			case call.Once:
				call.wants(t, "a lost "+what, err, lock.ErrUnavailable)
			case err != nil:
				t.Errorf("%s, a lost %s: %v", call.Op, what, err)
			}
			if call.After != nil && (what == "reply" || !call.Once) {
				call.After(t)
			}
		}
		for _, phase := range []string{"request", "reply"} {
			call, _, p := via(t, i)
			asked, release := hold(p, phase)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- call.Do(ctx) }()
			<-asked
			cancel()
			err := <-done
			if call.wants(t, "left while its "+phase+" is on its way", err, context.Canceled); !strings.Contains(fmt.Sprint(err), silence) {
				t.Errorf("%s: %v does not say that there was no reply", call.Op, err)
			}
			close(release)
		}
		call, c, p := via(t, i)
		asked, release := hold(p, "reply")
		done, closed := make(chan error, 1), make(chan error, 1)
		go func() { done <- call.Do(t.Context()) }()
		<-asked
		go func() { closed <- c.Close(t.Context()) }()
		over, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond) // a context that has ended gives Close more time
		if err := c.Close(over); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: Close while it is under way: %v", call.Op, err)
		}
		cancel()
		close(release)
		if err := <-done; err != nil {
			call.wants(t, "under way when the client closes", err, lock.ErrClosed)
		}
		if err := <-closed; err != nil {
			t.Errorf("%s: Close: %v", call.Op, err)
		}
		call.wants(t, "after Close", call.Do(t.Context()), lock.ErrClosed)
	}
	Replies(t, of)
	c := NewClient(t, s.Client(t), client.WithOpTimeout(OpTimeout))
	calls := of(t, c, "frozen")
	s.Freeze(t)
	var wg sync.WaitGroup
	for _, call := range calls {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 2*OpTimeout) // some calls wait until their contexts end
			defer cancel()
			call.wants(t, "on a frozen server", call.Do(ctx), lock.ErrUnavailable)
		})
	}
	wg.Wait()
	s.Thaw(t)
}

// wants fails the test unless err names the operation and its object, and matches want.
func (c Call) wants(t *testing.T, what string, err, want error) {
	t.Helper()
	var e *lock.Error
	if !errors.Is(err, want) || !errors.As(err, &e) || e.Op != c.Op || e.Name != c.Name {
		t.Errorf("%s, %s: %v", c.Op, what, err)
	}
}

// hold holds the next script, or its reply, up until release is closed. asked is closed when it has one.
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

// CloseFrozen tests Close on a server that stands still while a client has a hold, which holds makes: Close returns with its
// context, the hold is over, and when the server answers again, the client gives it back, so that isFree says so of another one.
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
	_ = c.Close(t.Context()) // waits for what goes on in the background
	other := NewClient(t, s.Client(t))
	WaitFor(t, "it is given back", func() bool { return isFree(t, other) })
}

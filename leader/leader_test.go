package leader_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/kindtest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/leader"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/multilock"
	"github.com/redis/rueidis"
)

// runs calls run in a separate goroutine.
func runs(run func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- run() }()
	return done
}

func soon[T any](t testing.TB, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(20 * time.Second):
		t.Fatal("it did not happen")
	}
	return v
}

// waitForValue waits until the leader of e publishes value; "" waits until there is no value.
func waitForValue(t testing.TB, e *leader.Election, value string) leader.Leader {
	t.Helper()
	var l leader.Leader
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) { // a value that is not removed still expires
		var leads bool
		var err error
		l, leads, err = e.Leader(t.Context())
		if err == nil && l.Value == value && leads == (value != "") {
			return l
		}
		if time.Now().After(end) {
			t.Fatalf("the leader is %+v, %v, %v, want %q", l, leads, err, value)
		}
	}
}

// Any lock elects. The result of the function decides what happens next.
func TestRun(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t), kindtest.Fast...)
	own := errors.New("disk full")
	for name, l := range map[string]lock.Locker{"plain": c.NewLock("plain"), "fair": c.NewFairLock("fair"), "write": c.NewRWLock("write").Write(), "permit": c.NewSemaphore("permit", 1)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lose := func(ctx context.Context) {
				s.Do(t, "DEL", name, "{"+name+"}:timeout")
				<-ctx.Done()
				if !errors.Is(context.Cause(ctx), lock.ErrLost) {
					t.Errorf("%v", context.Cause(ctx))
				}
			}
			for _, step := range []struct {
				what   string
				rounds []func(ctx context.Context) error
				want   error
			}{
				{"returns", []func(context.Context) error{func(context.Context) error { return nil }}, nil},
				{"fails", []func(context.Context) error{func(context.Context) error { return own }}, own},
				{"loses", []func(context.Context) error{
					func(ctx context.Context) error { lose(ctx); return nil },
					func(ctx context.Context) error { lose(ctx); return ctx.Err() },
					func(ctx context.Context) error { lose(ctx); return context.Cause(ctx) },
					func(context.Context) error { return nil },
				}, nil},
				{"loses, and fails", []func(context.Context) error{func(ctx context.Context) error { lose(ctx); return own }}, own},
				{"resigns", []func(context.Context) error{
					func(context.Context) error { return leader.ErrResigned },
					func(context.Context) error { return fmt.Errorf("enough: %w", leader.ErrResigned) },
					func(context.Context) error { return own },
				}, own},
			} {
				n := 0
				err := leader.Run(t.Context(), l, func(ctx context.Context) error {
					n++
					if n > len(step.rounds) {
						return errors.New("too many rounds")
					}
					return step.rounds[n-1](ctx)
				})
				if !errors.Is(err, step.want) || (err == nil) != (step.want == nil) || n != len(step.rounds) {
					t.Errorf("%s: %v after %d rounds", step.what, err, n)
				}
				h, err := l.TryLock(t.Context())
				if err != nil {
					t.Fatalf("%s: the lock was not released: %v", step.what, err)
				}
				kindtest.MustUnlock(t, h)
			}
		})
	}
}

// When the context is canceled, Run waits for the function and releases the lock; it also releases the lock after a
// panic.
func TestRun_ends(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t))
	l := c.NewFairLock("orders")
	for _, returns := range []error{nil, context.Canceled} {
		ctx, cancel := context.WithCancel(t.Context())
		leads := make(chan struct{})
		done := runs(func() error {
			return leader.Run(ctx, l, func(ctx context.Context) error {
				close(leads)
				<-ctx.Done()
				if len(kindtest.Keys(t, s)) == 0 {
					t.Error("the lock was released before the function returned")
				}
				return returns
			})
		})
		soon(t, leads)
		cancel()
		if err := soon(t, done); !errors.Is(err, returns) || (err == nil) != (returns == nil) {
			t.Errorf("%v, want %v", err, returns)
		}
		kindtest.WantEmpty(t, s)
		if err := leader.Run(ctx, l, func(context.Context) error { return nil }); errors.Is(err, lock.ErrNotAcquired) || !errors.Is(err, context.Canceled) {
			t.Errorf("an ended context: %v", err)
		}
	}
	func() {
		defer func() {
			if r := recover(); r != "oops" {
				t.Errorf("the panic is %v", r)
			}
		}()
		_ = leader.Run(t.Context(), l, func(context.Context) error { panic("oops") })
	}()
	kindtest.WantEmpty(t, s)
}

// A function whose lock was lost has been notified. If the context of Run is then canceled, for example at a
// shutdown, Run returns what the function returned, without the loss.
func TestRun_lostAndCanceled(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l := kindtest.NewClient(t, s.Client(t), kindtest.Fast...).NewFairLock("orders")
	for _, returns := range []error{nil, errors.New("disk full")} {
		ctx, cancel := context.WithCancel(t.Context())
		err := leader.Run(ctx, l, func(ctx context.Context) error {
			s.Do(t, "DEL", "orders")
			<-ctx.Done()
			cancel()
			return returns
		})
		if err != returns {
			t.Errorf("%v, and the function returned %v", err, returns)
		}
	}
}

// One candidate leads, and the others can look it up; a leader that resigned comes last.
func TestElection(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	const n = 3
	var clients []*client.Client
	var elections []*leader.Election
	var leading atomic.Int64
	var dones []<-chan error
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	rounds := make(chan int, 100)
	for i := range n {
		clients = append(clients, kindtest.NewClient(t, s.Client(t)))
		e := clients[i].NewElection("billing")
		elections = append(elections, e)
		dones = append(dones, runs(func() error {
			return e.Run(ctx, fmt.Sprint("http://", i), func(ctx context.Context) error {
				if leading.Add(1) != 1 {
					t.Error("two leaders")
				}
				defer leading.Add(-1)
				if !e.Leading() {
					t.Error("it leads, but Leading is false")
				}
				rounds <- i
				<-ctx.Done()
				return nil
			})
		}))
		if i == 0 {
			soon(t, rounds)
			rounds <- 0
		} else {
			kindtest.WaitFor(t, "it waits", func() bool { return kindtest.Number(s.Do(t, "LLEN", "redisson_lock_queue:{billing}")) == int64(i) })
		}
	}
	var last leader.Leader
	for round := range 2 * n {
		i := soon(t, rounds)
		if i != round%n {
			t.Errorf("round %d: candidate %d leads", round, i)
		}
		for _, e := range elections {
			l := waitForValue(t, e, fmt.Sprint("http://", i))
			if l.Token == 0 || l.Left <= 0 || l.Left > 30*time.Second || time.Since(l.Since).Abs() > time.Minute {
				t.Errorf("%+v", l)
			}
			if e == elections[0] && (l.Token <= last.Token || l.Since.Before(last.Since)) {
				t.Errorf("%+v after %+v", l, last)
			}
			if e != elections[i] && (e.Leading() || e.Resign() || !errors.Is(e.Publish(t.Context(), "me"), leader.ErrNotLeading)) {
				t.Error("a candidate resigned, or published a value")
			}
			last = l
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := elections[i].Publish(redistest.Reused{Context: ended}, fmt.Sprint("still ", i)); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("with a reused context: %#v", err)
		}
		if err := elections[i].Publish(t.Context(), fmt.Sprint("still ", i)); err != nil {
			t.Error(err)
		}
		if l := waitForValue(t, elections[(i+1)%n], fmt.Sprint("still ", i)); l.Token != last.Token || !l.Since.Equal(last.Since) {
			t.Errorf("%+v, which has published again, after %+v", l, last)
		}
		if err := elections[i].Publish(t.Context(), fmt.Sprint("http://", i)); err != nil {
			t.Error(err)
		}
		// On a slow machine the previous leader is queued late.
		kindtest.WaitFor(t, "the others wait", func() bool { return kindtest.Number(s.Do(t, "LLEN", "redisson_lock_queue:{billing}")) == n-1 })
		if !elections[i].Resign() {
			t.Error("it did not resign")
		}
	}
	cancel()
	for _, done := range dones {
		if err := soon(t, done); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	waitForValue(t, elections[0], "")
	// A candidate that leaves while its request is in flight leaves the queue in the background.
	kindtest.WaitFor(t, "all have left the queue", func() bool {
		return slices.Equal(kindtest.Keys(t, s), []string{"leasehold_leader:{billing}"})
	})
	if left := kindtest.Number(s.Do(t, "PTTL", "leasehold_leader:{billing}")); left < 0 || left > time.Minute.Milliseconds() {
		t.Errorf("it is left for %d ms", left)
	}
}

// A process that holds the lock leads under this hold, with its token, as often as it runs.
func TestElection_reentry(t *testing.T) {
	t.Parallel()
	c := kindtest.NewClient(t, redistest.Start(t).Client(t))
	e := c.NewElection("billing")
	outer := kindtest.MustLock(t, c.NewFairLock("billing"))
	for i := range 3 {
		value := fmt.Sprint("http://", i)
		err := e.Run(outer.Context(), value, func(ctx context.Context) error {
			if err := e.Publish(ctx, value); err != nil {
				return err
			}
			if l := waitForValue(t, e, value); l.Token != outer.Token() {
				t.Errorf("%+v, want token %d", l, outer.Token())
			}
			return nil
		})
		if err != nil {
			t.Errorf("run %d: %v", i, err)
		}
		waitForValue(t, e, "")
	}
	kindtest.MustUnlock(t, outer)
}

// Observers are notified of each leader, and that there is none, even without messages.
func TestObserve(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	noPubSubUser := s.AddUser(t, "deaf", "+@all", "~*", "resetchannels")
	leads := kindtest.NewClient(t, s.Client(t)).NewElection("billing")
	for _, observer := range []*client.Client{kindtest.NewClient(t, s.Client(t)), kindtest.NewClient(t, s.Client(t, noPubSubUser))} {
		ctx, cancel := context.WithCancel(t.Context())
		seen := make(chan leader.Leader, 100)
		ended := runs(func() error {
			for l, err := range observer.NewElection("billing").Observe(ctx) {
				if err != nil {
					return err
				}
				seen <- l
			}
			return nil
		})
		if l := soon(t, seen); l != (leader.Leader{}) {
			t.Errorf("at first %+v", l)
		}
		for _, value := range []string{"a", ""} {
			stop := make(chan struct{})
			done := runs(func() error {
				return leads.Run(t.Context(), value, func(context.Context) error { <-stop; return nil })
			})
			if l := soon(t, seen); l.Value != value || l.Token == 0 {
				t.Errorf("%+v, want %q", l, value)
			}
			if err := leads.Publish(t.Context(), "b"); err != nil {
				t.Error(err)
			}
			if l := soon(t, seen); l.Value != "b" {
				t.Errorf("%+v, want b", l)
			}
			close(stop)
			if err := soon(t, done); err != nil {
				t.Error(err)
			}
			if l := soon(t, seen); l != (leader.Leader{}) {
				t.Errorf("without a leader: got %+v", l)
			}
		}
		cancel()
		if err := soon(t, ended); err != nil {
			t.Error(err)
		}
	}
}

// A leader that lost its lock does not overwrite the value of its successor, and the value of a dead leader expires
// with its lease.
func TestStaleLeader(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	old := kindtest.NewClient(t, s.Client(t, redistest.Via(p)), kindtest.Fast...)
	c := kindtest.NewClient(t, s.Client(t), kindtest.Fast...)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	one := old.NewElection("billing")
	first := runs(func() error {
		return one.Run(ctx, "old", func(ctx context.Context) error { <-ctx.Done(); return nil })
	})
	other := c.NewElection("billing")
	before := waitForValue(t, other, "old")
	p.Freeze(true)
	start := time.Now()
	waitForValue(t, other, "")
	if took := time.Since(start); took > kindtest.WatchdogTimeout+10*time.Second {
		t.Errorf("the value of a dead leader stayed for %v", took)
	}
	stop := make(chan struct{})
	second := runs(func() error {
		return other.Run(t.Context(), "new", func(context.Context) error { <-stop; return nil })
	})
	if l := waitForValue(t, other, "new"); l.Token <= before.Token {
		t.Errorf("%+v after %+v", l, before)
	}
	p.Freeze(false) // the delayed commands of the old leader arrive now
	kindtest.WaitFor(t, "the old one waits again", func() bool { return kindtest.Number(s.Do(t, "LLEN", "redisson_lock_queue:{billing}")) == 1 })
	waitForValue(t, other, "new")
	cancel()
	if err := soon(t, first); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	waitForValue(t, other, "new")
	close(stop)
	if err := soon(t, second); err != nil {
		t.Error(err)
	}
}

// The server's clock moved backward after the value of an earlier leader. The error reports why the new leader cannot
// publish.
func TestPublish_clockMovedBackward(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	e := kindtest.NewClient(t, s.Client(t)).NewElection("billing")
	s.Do(t, "HSET", "leasehold_leader:{billing}", "token", "9007199254740991", "number", "1", "by", "another", "over", "1")
	led := runs(func() error {
		return e.Run(t.Context(), "one", func(ctx context.Context) error {
			if err := e.Publish(ctx, "two"); !errors.Is(err, leader.ErrNotLeading) || !strings.Contains(err.Error(), "use WithFencing") {
				t.Errorf("%v, want a reason", err)
			}
			if !e.Leading() {
				t.Error("it does not lead")
			}
			return nil
		})
	})
	if err := soon(t, led); err != nil {
		t.Error(err)
	}
}

// A leader without a token, for example with a multi-lock, clears only its own value.
func TestStaleLeader_withoutToken(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	elects := func() *leader.Election {
		c := kindtest.NewClient(t, s.Client(t))
		return leader.New(multilock.New(c.NewLock("billing")), c.NewLeaderStore("billing"))
	}
	one, two := elects(), elects()
	own := errors.New("seen")
	wake, stop := make(chan struct{}), make(chan struct{})
	first := runs(func() error { return one.Run(t.Context(), "one", func(context.Context) error { <-wake; return own }) })
	waitForValue(t, two, "one")
	s.Do(t, "DEL", "billing")
	second := runs(func() error { return two.Run(t.Context(), "two", func(context.Context) error { <-stop; return nil }) })
	waitForValue(t, one, "two")
	close(wake)
	if err := soon(t, first); !errors.Is(err, own) {
		t.Error(err)
	}
	if l, _, err := one.Leader(t.Context()); l.Value != "two" || err != nil {
		t.Errorf("%+v, %v", l, err)
	}
	close(stop)
	if err := soon(t, second); err != nil {
		t.Error(err)
	}
	waitForValue(t, one, "")
}

// A delayed duplicate of Publish does not restore an earlier value.
func TestPublish_lateCopy(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	e := kindtest.NewClient(t, s.Client(t, redistest.Via(p))).NewElection("billing")
	copied := make(chan []string, 1)
	p.OnRequest(func(req [][]byte) redistest.Action {
		if slices.ContainsFunc(req, func(part []byte) bool { return string(part) == "older" }) {
			var parts []string
			for _, part := range req {
				parts = append(parts, string(part))
			}
			select {
			case copied <- parts:
			default:
			}
		}
		return redistest.Action{}
	})
	if err := e.Run(t.Context(), "older", func(context.Context) error {
		late := <-copied
		if err := e.Publish(t.Context(), "newer"); err != nil {
			return err
		}
		s.Do(t, late...)
		if l, leads, err := e.Leader(t.Context()); l.Value != "newer" || !leads || err != nil {
			t.Errorf("%+v, %v, %v", l, leads, err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// If the store returns a permission error or the key has the wrong type, Publish returns the error immediately, and the
// leader continues. When the cause is gone, it publishes its latest value.
func TestPublish_deniedOrWrongType(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	permissions := redistest.Rights(t, "NewFairLock")
	single := func(o *rueidis.ClientOption) { o.ForceSingleClient = true }
	denied := kindtest.NewClient(t, s.Client(t, s.AddUser(t, "denied", permissions...), single), client.WithKeyPrefix("orders:"))
	all := kindtest.NewClient(t, s.Client(t))
	s.Do(t, "SET", "leasehold_leader:{foreign}", "x")
	for name, of := range map[string]struct {
		e    *leader.Election
		text string
		want error
		fix  []string
	}{
		"denied":  {denied.NewElection("denied"), "NOPERM", nil, append([]string{"ACL", "SETUSER", "denied"}, redistest.Rights(t, "NewElection")...)},
		"foreign": {all.NewElection("foreign"), "a string", lock.ErrWrongType, []string{"DEL", "leasehold_leader:{foreign}"}},
	} {
		if err := of.e.Run(t.Context(), "a", func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 20*time.Second) // only if the test fails
			defer cancel()
			err := of.e.Publish(ctx, "b")
			var e *lock.Error
			if !errors.As(err, &e) || e.Op != "publish" || e.Name != name || ctx.Err() != nil || !strings.Contains(err.Error(), of.text) || of.want != nil && !errors.Is(err, of.want) {
				t.Errorf("%s: %v", name, err)
			}
			if !of.e.Leading() {
				t.Errorf("%s: it does not lead any more", name)
			}
			s.Do(t, of.fix...)
			waitForValue(t, of.e, "b")
			return ctx.Err()
		}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A lost reply to any command has no effect.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	rdb := s.Client(t, redistest.Via(p), func(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 })
	e := kindtest.NewClient(t, rdb).NewElection("billing")
	var loses atomic.Bool
	p.OnRequest(func(req [][]byte) redistest.Action {
		if strings.EqualFold(string(req[0]), "EVALSHA") && loses.Swap(!loses.Load()) {
			return redistest.Action{DropReply: true}
		}
		return redistest.Action{}
	})
	for i := range 20 {
		value := fmt.Sprint("value ", i)
		if err := e.Run(t.Context(), "first", func(context.Context) error {
			if err := e.Publish(t.Context(), value); err != nil {
				return err
			}
			waitForValue(t, e, value)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		waitForValue(t, e, "")
	}
}

// While Redis is unavailable, the leader is notified at the end of its lease, and observers are notified once.
// Afterwards the election continues.
func TestPausedServer(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t), kindtest.Fast...)
	e, other := c.NewElection("billing"), kindtest.NewClient(t, s.Client(t), kindtest.Fast...).NewElection("billing")
	rounds := make(chan context.Context, 10)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := runs(func() error {
		return e.Run(ctx, "a", func(ctx context.Context) error { rounds <- ctx; <-ctx.Done(); return nil })
	})
	first := soon(t, rounds)
	waitForValue(t, other, "a")
	var pauses atomic.Int64
	seen := make(chan leader.Leader, 100)
	ended := runs(func() error {
		for l, err := range other.Observe(ctx) {
			if err != nil {
				if !errors.Is(err, lock.ErrUnavailable) {
					return err
				}
				pauses.Add(1)
				continue
			}
			seen <- l
		}
		return nil
	})
	soon(t, seen)
	s.Freeze(t)
	<-first.Done()
	if !errors.Is(context.Cause(first), lock.ErrLost) {
		t.Errorf("%v", context.Cause(first))
	}
	if _, _, err := other.Leader(t.Context()); !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	s.Thaw(t)
	soon(t, rounds)
	waitForValue(t, other, "a")
	if n := pauses.Load(); n != 1 {
		t.Errorf("the observer was notified %d times", n)
	}
	cancel()
	if err := soon(t, done); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := soon(t, ended); err != nil {
		t.Error(err)
	}
}

// Close ends the leadership and the observers, and later calls fail.
func TestClose(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c, err := client.New(s.Client(t), client.WithoutRegistry())
	if err != nil {
		t.Fatal(err)
	}
	e := c.NewElection("billing")
	leads := make(chan struct{})
	done := runs(func() error {
		return e.Run(t.Context(), "a", func(ctx context.Context) error {
			close(leads)
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), lock.ErrClosed) {
				t.Errorf("%v", context.Cause(ctx))
			}
			return nil
		})
	})
	soon(t, leads)
	waitForValue(t, e, "a")
	over := runs(func() error {
		for _, err := range e.Observe(t.Context()) {
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	for _, ended := range []<-chan error{done, over} {
		if err := soon(t, ended); !errors.Is(err, lock.ErrClosed) {
			t.Errorf("%v", err)
		}
	}
	for _, err := range e.Observe(t.Context()) {
		if !errors.Is(err, lock.ErrClosed) {
			t.Errorf("%v", err)
		}
	}
	if l, leads, err := kindtest.NewClient(t, s.Client(t)).NewElection("billing").Leader(t.Context()); leads || err != nil {
		t.Errorf("after Close: leader %+v, %v", l, err)
	}
}

// Invalid input is an error that names the operation and the election.
func TestBadInput(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t))
	good, bad := c.NewElection("billing"), c.NewElection("")
	none := func(context.Context) error { t.Error("it leads"); return nil }
	stop := make(chan struct{})
	running := c.NewElection("running")
	done := runs(func() error {
		return running.Run(t.Context(), "", func(context.Context) error { <-stop; return nil })
	})
	kindtest.WaitFor(t, "it leads", running.Leading)
	s.Do(t, "SET", "leasehold_leader:{foreign}", "x")
	for what, bad := range map[string]struct {
		op    string
		err   error
		match error
		text  string
	}{
		"a long value":    {"run", good.Run(t.Context(), strings.Repeat("x", leader.MaxValueSize+1), none), nil, "4097 bytes"},
		"a long word":     {"publish", good.Publish(t.Context(), strings.Repeat("x", leader.MaxValueSize+1)), nil, "4097 bytes"},
		"nobody leads":    {"publish", good.Publish(t.Context(), "x"), leader.ErrNotLeading, ""},
		"twice":           {"run", running.Run(t.Context(), "", none), leader.ErrRunning, ""},
		"no name":         {"lock", bad.Run(t.Context(), "", none), lock.ErrBadName, "empty"},
		"half a brace":    {"lock", c.NewElection("x{").Run(t.Context(), "", none), lock.ErrBadName, "without a }"},
		"a bad option":    {"lock", c.NewElection("x", lock.WithFixedLease(1)).Run(t.Context(), "", none), nil, "WithFixedLease"},
		"no name to read": {"leader", func() error { _, _, err := bad.Leader(t.Context()); return err }(), lock.ErrBadName, "empty"},
		"no name to observe": {"observe", func() (err error) {
			for _, err = range bad.Observe(t.Context()) {
			}
			return err
		}(), lock.ErrBadName, "empty"},
		"another key": {"leader", func() error { _, _, err := c.NewElection("foreign").Leader(t.Context()); return err }(), lock.ErrWrongType, ""},
		"its own key": {"lock", c.NewElection("leasehold_leader:x").Run(t.Context(), "", none), lock.ErrBadName, "is reserved for"},
	} {
		var e *lock.Error
		if !errors.As(bad.err, &e) || e.Op != bad.op || bad.match != nil && !errors.Is(bad.err, bad.match) || !strings.Contains(bad.err.Error(), bad.text) {
			t.Errorf("%s: %v", what, bad.err)
		}
	}
	close(stop)
	if err := soon(t, done); err != nil {
		t.Error(err)
	}
}

// The permissions listed in docs/operate/security.md, together with those of the lock, suffice for all operations of an
// election. None is superfluous.
func TestRights(t *testing.T) {
	t.Parallel()
	permissions := redistest.Rights(t, "NewFairLock", "NewElection")
	own := redistest.Rights(t, "NewElection")[len(redistest.Rights(t)):]
	s := redistest.Start(t)
	as := func(user string, permissions []string) *client.Client {
		single := func(o *rueidis.ClientOption) { o.ForceSingleClient = true }
		return kindtest.NewClient(t, s.Client(t, s.AddUser(t, user, permissions...), single), client.WithKeyPrefix("orders:"))
	}
	// play runs every operation of elections, which are observed until end is called.
	play := func(c *client.Client) (end func()) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		var observers sync.WaitGroup
		for _, e := range []*leader.Election{c.NewElection("x"), c.NewElection("{x}")} {
			seen := make(chan struct{})
			see := sync.OnceFunc(func() { close(seen) })
			observers.Go(func() {
				defer see()
				for range e.Observe(ctx) {
					see()
				}
			})
			_ = e.Run(ctx, "a", func(context.Context) error { return e.Publish(ctx, "b") })
			_, _, _ = e.Leader(ctx)
			<-seen
		}
		return func() { cancel(); observers.Wait() }
	}
	play(as("all", permissions))()
	if denied := s.Denied(t, "all"); len(denied) > 0 {
		t.Errorf("the permissions of docs/operate/security.md do not cover %q", denied)
	}
	for i, permission := range own {
		user := fmt.Sprint("less", i)
		s.Do(t, "FLUSHALL")
		end := play(as(user, slices.DeleteFunc(slices.Clone(permissions), func(r string) bool { return r == permission })))
		kindtest.WaitFor(t, "something is denied without "+permission+", which docs/operate/security.md lists", func() bool {
			return len(s.Denied(t, user)) > 0 // a subscription can take a while
		})
		end()
	}
}

// A leader whose context is canceled drains for ten minutes. It leads until it has returned: others can read its value,
// and it can change the value. If it loses the lock in the meantime, it and the caller of Run get the error.
func TestElection_drains(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprint(lost), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := locktest.NewServer(t)
				ours, theirs := s.Client(t), s.Client(t)
				e, other := ours.NewElection("billing"), theirs.NewElection("billing")
				ctx, cancel := context.WithCancel(t.Context())
				leads := make(chan struct{})
				var returned atomic.Bool
				next := func() <-chan error {
					<-leads
					return runs(func() error {
						return other.Run(t.Context(), "next", func(context.Context) error {
							if !returned.Load() && !lost {
								t.Error("two leaders")
							}
							return nil
						})
					})
				}
				done := runs(func() error {
					return e.Run(ctx, "first", func(ctx context.Context) error {
						close(leads)
						time.Sleep(time.Minute)
						cancel()
						<-ctx.Done()
						reads := func(want string) {
							t.Helper()
							if l, _, err := other.Leader(t.Context()); err != nil || l.Value != want || !e.Leading() {
								t.Errorf("it leads: %v; another reads %+v, %v", e.Leading(), l, err)
							}
						}
						time.Sleep(5 * time.Minute)
						reads("first")
						if err := e.Publish(t.Context(), "draining"); err != nil {
							t.Error(err)
						}
						time.Sleep(5 * time.Minute)
						reads("draining")
						h := lock.HoldFromContext(ctx)
						if err := h.Err(); err != nil {
							t.Error(err)
						}
						if lost {
							if _, err := theirs.NewFairLock("billing").ForceUnlock(t.Context()); err != nil {
								t.Error(err)
							}
							<-h.Context().Done()
							if err := h.Err(); !errors.Is(err, lock.ErrLost) || e.Leading() {
								t.Errorf("it leads: %v, and its hold: %v", e.Leading(), err)
							}
						}
						returned.Store(true)
						return nil
					})
				})
				if err := <-next(); err != nil {
					t.Error(err)
				}
				if err := <-done; errors.Is(err, lock.ErrLost) != lost || (err != nil) != lost {
					t.Errorf("Run: %v", err)
				}
			})
		})
	}
}

// A leader that has resigned leads until its function returns.
func TestElection_drainsAfterResigning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		e, other := s.Client(t).NewElection("billing"), s.Client(t).NewElection("billing")
		rounds := 0
		err := e.Run(t.Context(), "first", func(ctx context.Context) error {
			if rounds++; rounds == 2 {
				return nil
			}
			time.Sleep(time.Minute)
			if !e.Resign() {
				t.Error("it did not resign")
			}
			<-ctx.Done()
			time.Sleep(10 * time.Minute)
			if l, _, err := other.Leader(t.Context()); err != nil || l.Value != "first" || !e.Leading() {
				t.Errorf("it leads: %v; another reads %+v, %v", e.Leading(), l, err)
			}
			return ctx.Err()
		})
		if err != nil || rounds != 2 {
			t.Errorf("%v after %d rounds", err, rounds)
		}
	})
}

// slowStore is a store that takes long to clear the value.
type slowStore struct{ emptyStore }

func (slowStore) Clear(context.Context, lock.Hold) error {
	time.Sleep(800 * time.Millisecond)
	return nil
}

// A function that returned while it led is not called again, even if the lock is lost before the value is cleared.
func TestElection_lostWhileClearing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := locktest.NewServer(t).Client(t).NewLock("billing", lock.WithFixedLease(time.Second))
		rounds := 0
		err := leader.New(l, slowStore{}).Run(t.Context(), "x", func(context.Context) error {
			if rounds++; rounds == 1 {
				time.Sleep(500 * time.Millisecond)
			}
			return nil
		})
		if !errors.Is(err, lock.ErrLost) || rounds != 1 {
			t.Errorf("%v after %d rounds", err, rounds)
		}
	})
}

// failing is a lock whose first calls of Lock fail with these errors.
type failing struct {
	pausedHold
	errs  []error
	calls int
}

func (l *failing) Lock(context.Context) (lock.Hold, error) {
	l.calls++
	if l.calls <= len(l.errs) {
		return nil, &lock.Error{Op: "lock", Name: "billing", Err: l.errs[l.calls-1]}
	}
	return held{&l.pausedHold}, nil
}

// A candidate retries while Redis is unavailable, or has too few replicas, until its context is canceled.
func TestRun_lockFails(t *testing.T) {
	refused := fmt.Errorf("%w: NOREPLICAS Not enough good replicas to write.", lock.ErrUnavailable)
	for _, c := range []struct {
		errs  []error
		calls int
		took  time.Duration
		want  error
	}{
		{[]error{refused, refused, refused}, 4, 3 * time.Second, nil},
		{[]error{lock.ErrReplicas, lock.ErrUnavailable}, 3, 2 * time.Second, nil},
		{[]error{lock.ErrNotAcquired}, 1, 0, lock.ErrNotAcquired},
		{[]error{refused, lock.ErrClosed}, 2, time.Second, lock.ErrClosed},
		{[]error{lock.ErrWrongType}, 1, 0, lock.ErrWrongType},
	} {
		synctest.Test(t, func(t *testing.T) {
			for name, run := range map[string]func(l lock.Locker) error{
				"Run": func(l lock.Locker) error {
					return leader.Run(t.Context(), l, func(context.Context) error { return nil })
				},
				"Election.Run": func(l lock.Locker) error {
					return leader.New(l, emptyStore{}).Run(t.Context(), "x", func(context.Context) error { return nil })
				},
			} {
				l := &failing{pausedHold: pausedHold{Context: t.Context()}, errs: c.errs}
				start := time.Now()
				err := run(l)
				if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) || l.calls != c.calls || time.Since(start) != c.took {
					t.Errorf("%s, %v: %v after %d calls and %v", name, c.errs, err, l.calls, time.Since(start))
				}
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		why := errors.New("shutting down")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 2500*time.Millisecond, why)
		defer cancel()
		l := &failing{errs: []error{refused, refused, refused, refused}}
		err := leader.Run(ctx, l, func(context.Context) error { return nil })
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, why) || !errors.Is(err, lock.ErrUnavailable) || l.calls != 3 {
			t.Errorf("%v after %d calls", err, l.calls)
		}
		if want := `leasehold: lock "billing": context deadline exceeded: shutting down: ` + refused.Error(); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	})
}

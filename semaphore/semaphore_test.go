package semaphore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/kindtest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/leasehold-go/leasehold/multilock"
	"github.com/leasehold-go/leasehold/semaphore"
	"github.com/redis/rueidis"
)

// addr is the address of an in-memory server, for the examples.
var addr string

func TestMain(m *testing.M) { redistest.VerifyTestMain(redistest.WithMemory(m, &addr)) }

// wantState fails the test unless the server has this number of free and of held permits of name, and no waiter.
func wantState(t *testing.T, s *redistest.Server, name, free string, held int) {
	t.Helper()
	if problem := stateOf(t, s, name, free, held); problem != "" {
		t.Error(problem)
	}
}

// waitForState waits for the state of wantState, because calls clean up in the background.
func waitForState(t *testing.T, s *redistest.Server, name, free string, held int) {
	t.Helper()
	var problem string
	defer func() {
		if t.Failed() {
			t.Log(problem)
		}
	}()
	kindtest.WaitFor(t, "the semaphore is as it must be", func() bool {
		problem = stateOf(t, s, name, free, held)
		return problem == ""
	})
}

func stateOf(t *testing.T, s *redistest.Server, name, free string, held int) string {
	t.Helper()
	if got := kindtest.Text(s.Do(t, "GET", name)); got != free {
		return fmt.Sprintf("%s permits are free, want %s", got, free)
	}
	if got := kindtest.Number(s.Do(t, "ZCARD", "{"+name+"}:timeout")); got != int64(held) {
		return fmt.Sprintf("%d permits are held, want %d", got, held)
	}
	if got := kindtest.List(s.Do(t, "LRANGE", "leasehold_semaphore_queue:{"+name+"}", "0", "-1")); len(got) > 0 {
		return fmt.Sprintf("%q wait", got)
	}
	if got := kindtest.Number(s.Do(t, "ZCARD", "leasehold_semaphore_alive:{"+name+"}")); got != 0 {
		return fmt.Sprintf("%d waiters count as alive", got)
	}
	return ""
}

// waiting waits until n owners are queued for name in Redis.
func waiting(t *testing.T, s *redistest.Server, name string, n int) {
	t.Helper()
	kindtest.WaitFor(t, fmt.Sprintf("%d wait", n), func() bool {
		return kindtest.Number(s.Do(t, "LLEN", "leasehold_semaphore_queue:{"+name+"}")) == int64(n)
	})
}

// All permits are held; then the first waiter acquires the first free permit, even in another process.
func TestSemaphore(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a, b := kindtest.NewClient(t, s.Client(t)), kindtest.NewClient(t, s.Client(t))
	one, other := a.NewSemaphore("gpus", 3), b.NewSemaphore("gpus", 3)
	holds := []lock.Hold{kindtest.MustLock(t, one), kindtest.MustLock(t, one), kindtest.MustLock(t, other)}
	wantState(t, s, "gpus", "0", 3)
	for _, l := range []lock.Locker{one, other, other.N(2)} {
		if _, err := l.TryLock(t.Context()); !errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("a fourth: %v", err)
		}
	}
	var waiters []*kindtest.Waiter
	for i := range 6 {
		l := one
		if i%2 == 1 {
			l = other
		}
		waiters = append(waiters, kindtest.Go(t.Context(), l))
		waiting(t, s, "gpus", i+1)
	}
	for i, w := range waiters {
		kindtest.MustUnlock(t, holds[0])
		holds = append(holds[1:], w.Hold(t))
		waiting(t, s, "gpus", 5-i)
	}
	kindtest.MustUnlock(t, holds...)
	wantState(t, s, "gpus", "3", 0)
}

// The exact names and contents of the keys.
func TestSemaphore_layout(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t))
	for name, other := range map[string]string{"gpus": "{gpus}:timeout", "{x}y": "{x}y:timeout"} {
		sem := c.NewSemaphore(name, 5)
		h := kindtest.MustLock(t, sem.N(2))
		ids := kindtest.List(s.Do(t, "ZRANGE", other, "0", "-1"))
		if want := luascripts.Permits(h.Owner()); !slices.Equal(ids, want) || len(ids) != 2 || len(ids[0]) != 16 {
			t.Errorf("%q: the ids are %q, want %q", name, ids, want)
		}
		if got := kindtest.Text(s.Do(t, "GET", name)); got != "3" {
			t.Errorf("%q: %s free", name, got)
		}
		now := kindtest.List(s.Do(t, "TIME"))
		for _, id := range ids {
			if score := kindtest.Text(s.Do(t, "ZSCORE", other, id)); len(score) != 13 || score[:6] < now[0][:6] {
				t.Errorf("%q: score %s at %q", name, score, now)
			}
		}
		kindtest.MustUnlock(t, h)
	}
	if got := kindtest.Keys(t, s); !slices.Equal(got, []string{"gpus", "{x}y"}) {
		t.Errorf("left: %q", got)
	}
}

// A semaphore is not reentrant: under a hold's context, Lock acquires another permit. The context still carries the
// owner of a lock.
func TestSemaphore_noReentry(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t))
	outer := kindtest.MustLock(t, c.NewLock("outer"))
	sem := c.NewSemaphore("gpus", 2)
	first := kindtest.MustLockUnder(t, outer.Context(), sem)
	second := kindtest.MustLockUnder(t, first.Context(), sem)
	if first.Owner() == second.Owner() || first.Token() != 0 {
		t.Errorf("%s and %s, token %d", first.Owner(), second.Owner(), first.Token())
	}
	if _, err := sem.TryLock(second.Context()); !errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("a third: %v", err)
	}
	again, err := c.NewLock("outer").TryLock(second.Context())
	if err != nil {
		t.Fatalf("the lock around it, again: %v", err)
	}
	kindtest.MustUnlock(t, again, second, first, outer)
	wantState(t, s, "gpus", "2", 0)
}

// Permits are acquired all or none, and a caller that wants many is not starved.
func TestN(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t))
	sem := c.NewSemaphore("gpus", 4)
	holds := []lock.Hold{kindtest.MustLock(t, sem.N(3)), kindtest.MustLock(t, sem)}
	many := kindtest.Go(t.Context(), sem.N(4))
	waiting(t, s, "gpus", 1)
	few := kindtest.Go(t.Context(), sem)
	waiting(t, s, "gpus", 2)
	kindtest.MustUnlock(t, holds[0])
	stillWaits := func(who string, w *kindtest.Waiter) {
		t.Helper()
		if !w.Waits() {
			t.Errorf("%s did not wait", who)
		}
	}
	if _, err := sem.TryLock(t.Context()); !errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("TryLock of free permits that earlier waiters need: %v", err)
	}
	stillWaits("the one that wants four", many)
	stillWaits("the one behind it", few)
	kindtest.MustUnlock(t, holds[1])
	h := many.Hold(t)
	all4 := kindtest.Text(s.Do(t, "GET", "gpus"))
	if all4 != "0" {
		t.Errorf("%s free while one has all", all4)
	}
	stillWaits("the one behind it", few)
	kindtest.MustUnlock(t, h)
	kindtest.MustUnlock(t, few.Hold(t))
	wantState(t, s, "gpus", "4", 0)
}

// When a caller that wants many permits is canceled, as many callers behind it as possible acquire permits immediately.
func TestN_canceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		a, b := s.Client(t), s.Client(t)
		sem := a.NewSemaphore("gpus", 3)
		h := kindtest.MustLock(t, sem)
		ctx, cancel := context.WithCancel(t.Context())
		many := kindtest.Go(ctx, sem.N(3))
		time.Sleep(time.Millisecond)
		few := []*kindtest.Waiter{kindtest.Go(t.Context(), b.NewSemaphore("gpus", 0)), kindtest.Go(t.Context(), b.NewSemaphore("gpus", 0))}
		time.Sleep(time.Minute)
		synctest.Wait()
		if !few[0].Waits() || !few[1].Waits() {
			t.Error("a permit that the first waiter needs was granted")
		}
		start := time.Now()
		cancel()
		if err := many.Err(t); !errors.Is(err, context.Canceled) || errors.Is(err, lock.ErrUnavailable) {
			t.Error(err)
		}
		holds := []lock.Hold{few[0].Hold(t), few[1].Hold(t), h}
		if took := time.Since(start); took != 0 {
			t.Errorf("they entered after %v: by a heartbeat", took)
		}
		kindtest.MustUnlock(t, holds...)
		if state, err := sem.Inspect(t.Context()); err != nil || state.Free != 3 || len(state.Waiters) != 0 {
			t.Errorf("%+v, %v", state, err)
		}
	})
}

// Invalid input is an error that names the operation and the semaphore, if possible before a command is sent, and never
// an endless wait.
func TestBadInput(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t))
	there := c.NewSemaphore("five", 5)
	kindtest.MustUnlock(t, kindtest.MustLock(t, there))
	s.Do(t, "HSET", "hash", "a", "b")
	s.Do(t, "SET", "text", "many")
	s.Do(t, "SET", "odd", "3")
	s.Do(t, "SET", "{odd}:timeout", "x")
	for what, bad := range map[string]struct {
		l     lock.Locker
		match error
		text  string
		sends bool
	}{
		"no permits at all":          {c.NewSemaphore("x", -1), nil, "-1 permits: must be", false},
		"too many permits":           {c.NewSemaphore("x", semaphore.MaxPermits+1), nil, "2147483648 permits: must be", false},
		"none for a hold":            {c.NewSemaphore("x", 3).N(0), nil, "0 permits for one hold", false},
		"less than none":             {c.NewSemaphore("x", 3).N(-1), nil, "-1 permits for one hold", false},
		"more than one hold can":     {c.NewSemaphore("x", 3000).N(semaphore.MaxPermitsPerHold + 1), nil, "1001 permits for one hold", false},
		"more than there are":        {c.NewSemaphore("x", 3).N(4), semaphore.ErrPermitCount, "call wants 4", false},
		"at least":                   {c.NewSemaphore("x", 3, lock.WithMinHold(time.Second)), nil, "WithMinHold", false},
		"fencing":                    {c.NewSemaphore("x", 3, lock.WithFencing()), nil, "not supported by", false},
		"no name":                    {c.NewSemaphore("", 3), lock.ErrBadName, "empty", false},
		"the other key's name":       {c.NewSemaphore("{x}:timeout", 3), lock.ErrBadName, "timeout", false},
		"the queue's name":           {c.NewSemaphore("leasehold_semaphore_queue:{x}", 3), lock.ErrBadName, "is reserved for", false},
		"half a brace":               {c.NewSemaphore("x}y", 3), lock.ErrBadName, "without a {", false},
		"a bad option":               {c.NewSemaphore("x", 3, lock.WithFixedLease(1)), nil, "WithFixedLease", false},
		"another total":              {c.NewSemaphore("five", 4), semaphore.ErrPermitCount, "semaphore has 5, handle wants 4; call Resize to change the count, or use a handle with 0 permits", true},
		"more than there are stored": {c.NewSemaphore("five", 0).N(6), semaphore.ErrPermitCount, "call wants 6", true},
		"unknown number":             {c.NewSemaphore("new", 0), semaphore.ErrNotInitialized, "no semaphore of that name", true},
		"a hash":                     {c.NewSemaphore("hash", 3), lock.ErrWrongType, "hash", true},
		"a text":                     {c.NewSemaphore("text", 3), lock.ErrWrongType, "", true},
		"a text for a zset":          {c.NewSemaphore("odd", 3), lock.ErrWrongType, `"{odd}:timeout" is a string`, true},
	} {
		before := s.CommandCalls(t, "evalsha")
		for op, call := range map[string]func(context.Context) (lock.Hold, error){"lock": bad.l.Lock, "trylock": bad.l.TryLock} {
			_, err := call(t.Context())
			var e *lock.Error
			if !errors.As(err, &e) || e.Op != op || e.Name != bad.l.Name() || bad.match != nil && !errors.Is(err, bad.match) || !strings.Contains(err.Error(), bad.text) || errors.Is(err, lock.ErrNotAcquired) {
				t.Errorf("%s, %s: %v", what, op, err)
			}
		}
		if sent := s.CommandCalls(t, "evalsha") - before; sent > 0 && !bad.sends {
			t.Errorf("%s: %d commands were sent", what, sent)
		}
	}
	for _, n := range []int{0, -1, semaphore.MaxPermits + 1} {
		var e *lock.Error
		if err := there.Resize(t.Context(), n); !errors.As(err, &e) || e.Op != "resize" || e.Name != "five" {
			t.Errorf("resize to %d: %v", n, err)
		}
	}
	for _, script := range []*semaphore.Script{nil, {}} {
		h := kindtest.MustLock(t, there)
		if _, err := there.Run(t.Context(), h, script, nil); err == nil || err.Error() != `leasehold: run "five": no script: call NewScript` {
			t.Errorf("without a script: %v", err)
		}
		kindtest.MustUnlock(t, h)
	}
	before := s.CommandCalls(t, "evalsha")
	nameless := c.NewSemaphore("", 3)
	h := kindtest.MustLock(t, there)
	_, inspect := nameless.Inspect(t.Context())
	_, slots := nameless.Slots(t.Context(), h)
	_, run := nameless.Run(t.Context(), h, semaphore.NewScript("return 1"), nil)
	kindtest.MustUnlock(t, h)
	for op, err := range map[string]error{"resize": nameless.Resize(t.Context(), 3), "inspect": inspect, "slots": slots, "run": run} {
		var e *lock.Error
		if !errors.As(err, &e) || e.Op != op || !errors.Is(err, lock.ErrBadName) {
			t.Errorf("%s without a name: %v", op, err)
		}
	}
	if sent := s.CommandCalls(t, "evalsha") - before; sent > 2 { // the two commands of the hold
		t.Errorf("%d commands were sent", sent)
	}
	if err := c.NewSemaphore("hash", 3).Resize(t.Context(), 3); !errors.Is(err, lock.ErrWrongType) {
		t.Errorf("resize of a hash: %v", err)
	}
	if _, err := c.NewSemaphore("hash", 3).Inspect(t.Context()); !errors.Is(err, lock.ErrWrongType) {
		t.Errorf("inspect of a hash: %v", err)
	}
	if got := kindtest.Keys(t, s); !slices.Equal(got, []string{"five", "hash", "odd", "text", "{odd}:timeout"}) {
		t.Errorf("keys: %q", got)
	}
}

// A handle with 0 permits waits while the semaphore has none, as after Redisson's setPermits(0), and acquires a permit
// when there are some again.
func TestLock_withoutPermits(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t))
	for _, none := range []string{"0", "-1"} {
		s.Do(t, "SET", "gpus", none)
		open := c.NewSemaphore("gpus", 0)
		if _, err := open.TryLock(t.Context()); !errors.Is(err, lock.ErrNotAcquired) || errors.Is(err, semaphore.ErrPermitCount) {
			t.Errorf("%s permits: %v", none, err)
		}
		waiter := kindtest.Go(t.Context(), open)
		waiting(t, s, "gpus", 1)
		s.Do(t, "SET", "gpus", "2")
		s.Do(t, "PUBLISH", "redisson_sc:{gpus}", "2")
		kindtest.MustUnlock(t, waiter.Hold(t))
		wantState(t, s, "gpus", "2", 0)
	}
}

// Held permits of Java's RSemaphore leave no trace except a smaller number. The error names this possible cause.
func TestLock_permitsWithoutLeases(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t))
	s.Do(t, "SET", "gpus", "3")
	s.Do(t, "DECRBY", "gpus", "1") // the command of RSemaphore.acquire
	for what, l := range map[string]lock.Locker{"of three": c.NewSemaphore("gpus", 3), "three at once": c.NewSemaphore("gpus", 0).N(3)} {
		if _, err := l.TryLock(t.Context()); !errors.Is(err, semaphore.ErrPermitCount) || !strings.Contains(err.Error(), "RSemaphore") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := c.NewSemaphore("gpus", 1).TryLock(t.Context()); !errors.Is(err, semaphore.ErrPermitCount) || strings.Contains(err.Error(), "RSemaphore") {
		t.Errorf("of one: %v", err)
	}
	wantState(t, s, "gpus", "2", 0)
}

// Resize affects waiters immediately: some acquire permits, and those that can never succeed get an error.
func TestResize(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a, b := kindtest.NewClient(t, s.Client(t)), kindtest.NewClient(t, s.Client(t))
	sem := a.NewSemaphore("gpus", 1)
	h := kindtest.MustLock(t, sem)
	named := kindtest.Go(t.Context(), b.NewSemaphore("gpus", 1))
	waiting(t, s, "gpus", 1)
	open := kindtest.Go(t.Context(), b.NewSemaphore("gpus", 0))
	waiting(t, s, "gpus", 2)
	if err := sem.Resize(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	if err := named.Err(t); !errors.Is(err, semaphore.ErrPermitCount) {
		t.Errorf("the handle with 1 permit: %v", err)
	}
	second := open.Hold(t)
	two := kindtest.Go(t.Context(), sem.N(2)) // this handle now uses 3
	waiting(t, s, "gpus", 1)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 { // repeated, because it is random whether it is the next one
		if err := sem.Resize(redistest.Reused{Context: ended}, 3); err != nil && !errors.Is(err, context.Canceled) {
			t.Fatalf("with a reused context: %#v", err)
		}
	}
	if err := a.NewSemaphore("gpus", 3).Resize(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if err := two.Err(t); !errors.Is(err, semaphore.ErrPermitCount) {
		t.Errorf("two of one: %v", err)
	}
	if got := kindtest.Text(s.Do(t, "GET", "gpus")); got != "-1" {
		t.Errorf("%s free, with two of one held", got)
	}
	kindtest.MustUnlock(t, h)
	if _, err := b.NewSemaphore("gpus", 1).TryLock(t.Context()); !errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("one more than there are: %v", err)
	}
	kindtest.MustUnlock(t, second)
	wantState(t, s, "gpus", "1", 0)
	if err := a.NewSemaphore("new", 0).Resize(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	wantState(t, s, "new", "2", 0)
}

// A waiter whose total no longer matches the semaphore gets an error, even if a handle with a different total is queued ahead of
// it in the same client.
func TestResize_behindAnotherTotal(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a, b := kindtest.NewClient(t, s.Client(t)), kindtest.NewClient(t, s.Client(t))
	sem := a.NewSemaphore("gpus", 1)
	h := kindtest.MustLock(t, sem)
	open := kindtest.Go(t.Context(), b.NewSemaphore("gpus", 0))
	waiting(t, s, "gpus", 1)
	named := kindtest.Go(t.Context(), b.NewSemaphore("gpus", 1))
	waiting(t, s, "gpus", 2)
	if err := sem.Resize(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	second := open.Hold(t)
	if err := named.Err(t); !errors.Is(err, semaphore.ErrPermitCount) {
		t.Errorf("the handle with 1 permit: %v", err)
	}
	kindtest.MustUnlock(t, h)
	kindtest.MustUnlock(t, second)
	wantState(t, s, "gpus", "2", 0)
}

// Waiting callers of a handle that resizes the semaphore use the new number.
func TestResize_ownWaiters(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	sem := kindtest.NewClient(t, s.Client(t)).NewSemaphore("gpus", 2)
	both := kindtest.MustLock(t, sem.N(2))
	var waits []*kindtest.Waiter
	for i := range 3 {
		waits = append(waits, kindtest.Go(t.Context(), sem))
		waiting(t, s, "gpus", i+1)
	}
	if err := sem.Resize(t.Context(), 4); err != nil {
		t.Fatal(err)
	}
	kindtest.WaitFor(t, "two have permits", func() bool { return kindtest.Text(s.Do(t, "GET", "gpus")) == "0" })
	waiting(t, s, "gpus", 1)
	two := kindtest.Go(t.Context(), sem.N(2))
	waiting(t, s, "gpus", 2)
	if err := sem.Resize(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if err := two.Err(t); !errors.Is(err, semaphore.ErrPermitCount) {
		t.Errorf("two of one: %v", err)
	}
	waiting(t, s, "gpus", 1)
	kindtest.MustUnlock(t, both)
	kindtest.ServeAll(t, waits...)
	wantState(t, s, "gpus", "1", 0)
}

// A caller that waits while its handle resizes the semaphore waits no longer than lock.WithWait, and its observer gets
// the same events as for any other call.
func TestResize_ownWaiterTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events []string
		note := func(what string) func(context.Context, lock.Event) {
			return func(context.Context, lock.Event) { events = append(events, what) }
		}
		s := locktest.NewServer(t)
		kindtest.MustLock(t, s.Client(t).NewSemaphore("gpus", 2).N(2))
		c := s.Client(t, client.WithObserver(lock.Observer{Waiting: note("waits"), TimedOut: note("timed out"), Failed: note("failed")}))
		sem, began := c.NewSemaphore("gpus", 2, lock.WithWait(10*time.Second)), time.Now()
		w := kindtest.Go(t.Context(), sem)
		time.Sleep(8 * time.Second)
		if err := sem.Resize(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		err := w.Err(t)
		if took := time.Since(began); !errors.Is(err, os.ErrDeadlineExceeded) || took < 10*time.Second || took > 11*time.Second {
			t.Errorf("%v after %v", err, took)
		}
		if want := []string{"waits", "timed out"}; !slices.Equal(events, want) {
			t.Errorf("got %q, want %q", events, want)
		}
	})
}

// A Resize is canceled while another one of its handle is running. The error has the cause.
func TestResize_canceledBehindAnother(t *testing.T) {
	sem := locktest.NewServer(t).Client(t).NewSemaphore("gpus", 2)
	defer sem.Resizes(1)()
	why := errors.New("shutting down")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if err := sem.Resize(ctx, 3); !errors.Is(err, context.Canceled) || !errors.Is(err, why) || err.Error() != `leasehold: resize "gpus": context canceled: shutting down` {
		t.Error(err)
	}
}

// The wait of a caller ends while its handle is still resizing the semaphore: it timed out, or was canceled.
func TestResize_ownWaiterEndsDuringIt(t *testing.T) {
	for want, canceled := range map[string]bool{"timed out": false, "canceled": true} {
		t.Run(want, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var events []string
				note := func(what string) func(context.Context, lock.Event) {
					return func(context.Context, lock.Event) { events = append(events, what) }
				}
				s := locktest.NewServer(t)
				other := s.Client(t).NewSemaphore("gpus", 2)
				kindtest.MustLock(t, other.N(2))
				c := s.Client(t, client.WithObserver(lock.Observer{TimedOut: note("timed out"), Canceled: note("canceled"), Failed: note("failed")}))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				sem := c.NewSemaphore("gpus", 2, lock.WithWait(10*time.Second))
				w := kindtest.Go(ctx, sem)
				synctest.Wait()
				reply := sem.Resizes(1)
				if err := other.Resize(t.Context(), 1); err != nil {
					t.Fatal(err)
				}
				time.Sleep(5 * time.Second) // the waiter was rejected because of the new number
				if canceled {
					cancel()
				}
				err := w.Err(t)
				reply()
				if !errors.Is(err, lock.ErrNotAcquired) || errors.Is(err, os.ErrDeadlineExceeded) == canceled || errors.Is(err, context.Canceled) != canceled || errors.Is(err, semaphore.ErrPermitCount) {
					t.Error(err)
				}
				if !slices.Equal(events, []string{want}) {
					t.Errorf("got %q", events)
				}
			})
		})
	}
}

// A delayed duplicate of a Resize does not undo a newer Resize, whether the first one was repeated or returned an error.
func TestResize_lateCopies(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	other := kindtest.NewClient(t, s.Client(t)).NewSemaphore("gpus", 1)
	for n, c := range map[int]struct {
		waiterTimeout time.Duration
		lose          redistest.Action
		all           bool
		want          error
	}{
		10: {7 * time.Second, redistest.Action{DropReply: true}, false, nil},
		20: {kindtest.OpTimeout, redistest.Action{DropRequest: true}, true, lock.ErrUnavailable},
	} {
		sem := kindtest.NewClient(t, s.Client(t, redistest.Via(p)), client.WithOpTimeout(c.waiterTimeout)).NewSemaphore("gpus", 1)
		if err := other.Resize(t.Context(), n); err != nil { // loads the script
			t.Fatal(err)
		}
		copied := p.LoseDated(c.lose, c.all)
		for copied() == nil { // a call that fails early may not send a copy
			if err := sem.Resize(t.Context(), n+1); !errors.Is(err, c.want) {
				t.Fatalf("%+v: %v", c, err)
			}
		}
		p.OnRequest(nil)
		if err := other.Resize(t.Context(), n+2); err != nil {
			t.Fatal(err)
		}
		s.Do(t, copied()...)
		wantState(t, s, "gpus", strconv.Itoa(n+2), 0)
	}
}

// A caller that is rejected because of a new number waits for the running Resize of its handle.
func TestResize_refusedBeforeItsReply(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t))
	sem := c.NewSemaphore("gpus", 1)
	if err := c.NewSemaphore("gpus", 1).Resize(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	reply := sem.Resizes(2)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := sem.TryLock(ctx); err == nil {
		t.Error("one whose context ended has a permit")
	}
	s.ResetStats(t)
	stays := kindtest.Go(t.Context(), sem)
	kindtest.WaitFor(t, "Redis has refused it", func() bool { return s.CommandCalls(t, "evalsha") > 0 })
	for range 100 { // gives the caller time to return too early
		runtime.Gosched()
	}
	reply()
	kindtest.MustUnlock(t, stays.Hold(t))
}

// Inspect shows who holds what, and who waits.
func TestInspect(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a := kindtest.NewRegistered(t, s.Client(t), client.WithName("trainer"))
	b := kindtest.NewClient(t, s.Client(t))
	sem := a.NewSemaphore("gpus", 5)
	if state, err := sem.Inspect(t.Context()); err != nil || state.Permits != 0 || state.Free != 0 || state.Name != "gpus" {
		t.Errorf("before there is one: %+v, %v", state, err)
	}
	two := kindtest.MustLock(t, sem.N(2))
	one := kindtest.MustLock(t, b.NewSemaphore("gpus", 0))
	s.Do(t, "DECR", "gpus")
	s.Do(t, "ZADD", "{gpus}:timeout", "922337203685477", "\x01\x02\x03\x04\x05\x06\x07\x08\x01\x02\x03\x04\x05\x06\x07\x08") // of Redisson, without a lease
	w := kindtest.Go(t.Context(), sem.N(2))
	waiting(t, s, "gpus", 1)
	kindtest.WaitFor(t, "the client has an entry", func() bool { return len(kindtest.List(s.Do(t, "KEYS", "leasehold_client:*"))) == 1 })
	state, err := sem.Inspect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if state.Permits != 5 || state.Free != 1 || len(state.Holders) != 3 || len(state.Waiters) != 1 {
		t.Fatalf("%+v", state)
	}
	if h := state.Holders[0]; h.Owner != two.Owner() || h.Permits != 2 || h.Lease > 30*time.Second || h.Lease < 10*time.Second || time.Since(h.Since) > time.Minute || h.Client.Name != "trainer" || h.Client.ID != a.ID() {
		t.Errorf("the first holder: %+v", h)
	}
	if h := state.Holders[1]; h.Owner != one.Owner() || h.Permits != 1 || h.Client.ID != b.ID() || h.Client.Known() {
		t.Errorf("the second holder: %+v", h)
	}
	if h := state.Holders[2]; h.Owner != "01020304050607080102030405060708" || h.Lease != lock.NoExpiry || !h.Since.IsZero() {
		t.Errorf("Redisson's: %+v", h)
	}
	if w := state.Waiters[0]; w.Client.Name != "trainer" || w.WaiterTimeout > lock.DefaultWaiterTimeout || w.WaiterTimeout < time.Second || time.Since(w.Since) > time.Minute {
		t.Errorf("the waiter: %+v", w)
	}
	kindtest.MustUnlock(t, two)
	kindtest.MustUnlock(t, w.Hold(t), one)
	if _, err := b.NewSemaphore("gpus", 5).Inspect(t.Context()); err != nil {
		t.Error(err)
	}
}

// All permits of a hold are renewed. If one of them is gone, the hold ends, and the others are released.
func TestRenewal(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t), kindtest.Fast...)
	sem := c.NewSemaphore("gpus", 5)
	h, single := kindtest.MustLock(t, sem.N(3)), kindtest.MustLock(t, sem)
	ids := luascripts.Permits(h.Owner())
	score := func() string { return kindtest.Text(s.Do(t, "ZSCORE", "{gpus}:timeout", ids[2])) }
	for range 2 {
		before := score()
		kindtest.WaitFor(t, "it is renewed", func() bool { return score() > before })
	}
	s.Do(t, "ZADD", "{gpus}:timeout", "XX", "99999999999999", ids[0]) // manually
	before := score()
	kindtest.WaitFor(t, "it is renewed", func() bool { return score() > before })
	if got := kindtest.Text(s.Do(t, "ZSCORE", "{gpus}:timeout", ids[0])); got != "99999999999999" {
		t.Errorf("a renewal shortened a lease to %s", got)
	}
	s.Do(t, "ZREM", "{gpus}:timeout", ids[1])
	s.Do(t, "INCR", "gpus")
	kindtest.Lost(t, h)
	waitForState(t, s, "gpus", "4", 1)
	if single.Err() != nil {
		t.Errorf("another hold: %v", single.Err())
	}
	kindtest.MustUnlock(t, single)
}

// A fixed lease expires without a command, and then a waiter acquires the permit.
func TestFixedLease(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a, b := kindtest.NewClient(t, s.Client(t)), kindtest.NewClient(t, s.Client(t))
	h := kindtest.MustLock(t, a.NewSemaphore("gpus", 1, lock.WithFixedLease(time.Second)))
	next := kindtest.MustLock(t, b.NewSemaphore("gpus", 1))
	kindtest.Lost(t, h)
	kindtest.MustUnlock(t, next)
	waitForState(t, s, "gpus", "1", 0)
}

// Clients of a process that died: their permits are free when the leases expire, even without waiters. A dead waiter
// blocks others for at most its waiter timeout.
func TestDeadProcess(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t))
	sem := c.NewSemaphore("gpus", 10)
	kindtest.MustUnlock(t, kindtest.MustLock(t, sem))
	now := kindtest.List(s.Do(t, "TIME"))[0]
	for i := range 10 {
		s.Do(t, "ZADD", "{gpus}:timeout", fmt.Sprintf("%s%03d", now, 999), fmt.Sprintf("dead permit %04d", i))
	}
	s.Do(t, "SET", "gpus", "0")
	dead := "018f0000-0000-7000-8000-000000000000:5:7"
	s.Do(t, "RPUSH", "leasehold_semaphore_queue:{gpus}", dead)
	s.Do(t, "ZADD", "leasehold_semaphore_alive:{gpus}", now+"500", dead)
	h := kindtest.MustLock(t, sem.N(9))
	kindtest.MustUnlock(t, h)
	waitForState(t, s, "gpus", "10", 0)
}

// Ten thousand abandoned permits: Redisson's own calls fail from 8,000 on.
func TestManyExpired(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t))
	const n = 10_000
	for i := 0; i < n; i += 500 {
		parts := []string{"ZADD", "{gpus}:timeout"}
		for j := range 500 {
			parts = append(parts, "1000", fmt.Sprintf("permit %09d", i+j))
		}
		s.Do(t, parts...)
	}
	s.Do(t, "SET", "gpus", "0")
	sem := c.NewSemaphore("gpus", n)
	if state, err := sem.Inspect(t.Context()); err != nil || state.Free != n || state.Permits != n || len(state.Holders) > 0 {
		t.Errorf("%d of %d free, %d holders, %v", state.Free, state.Permits, len(state.Holders), err)
	}
	var holds []lock.Hold
	for range 10 {
		h, err := sem.N(1000).TryLock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		holds = append(holds, h)
	}
	wantState(t, s, "gpus", "0", n)
	w := kindtest.Go(t.Context(), sem)
	waiting(t, s, "gpus", 1)
	state, err := sem.Inspect(t.Context())
	if err != nil || len(state.Holders) != 10 || state.Holders[0].Permits != 1000 || state.Free != 0 {
		t.Errorf("%d holders, %d free, %v", len(state.Holders), state.Free, err)
	}
	kindtest.MustUnlock(t, holds...)
	kindtest.MustUnlock(t, w.Hold(t))
	wantState(t, s, "gpus", "10000", 0)
}

// Several processes acquire different numbers of permits, and cancel at random. The total is never exceeded, counted
// here and on the server, and finally nothing is left.
func TestPermits_neverExceeded(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	const total = 4
	var inside, most atomic.Int64
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() { // the count on the server
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
			if n := kindtest.Number(s.Do(t, "ZCARD", "{gpus}:timeout")); n > total {
				t.Errorf("%d are held", n)
			}
		}
	})
	var workers sync.WaitGroup
	for range 3 {
		c := kindtest.NewClient(t, s.Client(t))
		for range 6 {
			workers.Go(func() {
				sem := c.NewSemaphore("gpus", total)
				for range 40 {
					n := 1 + rand.IntN(2)
					ctx, cancel := context.WithCancel(t.Context())
					if rand.IntN(4) == 0 {
						time.AfterFunc(time.Duration(rand.IntN(3000))*time.Microsecond, cancel)
					}
					h, err := sem.N(n).Lock(ctx)
					if err != nil {
						if !errors.Is(err, context.Canceled) {
							t.Error(err)
						}
						cancel()
						continue
					}
					now := inside.Add(int64(n))
					for m := most.Load(); now > m && !most.CompareAndSwap(m, now); m = most.Load() {
					}
					time.Sleep(time.Duration(rand.IntN(500)) * time.Microsecond)
					inside.Add(-int64(n))
					if err := h.Unlock(context.Background()); err != nil {
						t.Error(err)
					}
					cancel()
				}
			})
		}
	}
	workers.Wait()
	close(stop)
	wg.Wait()
	if most.Load() != total {
		t.Errorf("at most %d of %d were held at once", most.Load(), total)
	}
	waitForState(t, s, "gpus", "4", 0)
}

// Replies of each command are lost: each call has its effect exactly once.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	rdb := s.Client(t, redistest.Via(p), func(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 })
	sem := kindtest.NewClient(t, rdb).NewSemaphore("gpus", 5)
	lose := func() { p.OnRequest(redistest.Once("EVALSHA", redistest.Action{DropReply: true})) }
	for name, try := range map[string]func(context.Context) (lock.Hold, error){"Lock": sem.Lock, "TryLock": sem.TryLock, "N": sem.N(3).TryLock} {
		want := map[string]int{"N": 3}[name]
		for i := range 10 {
			lose()
			h, err := try(t.Context())
			if err != nil {
				t.Fatalf("%s %d: %v: it was granted, only the reply was lost", name, i, err)
			}
			wantState(t, s, "gpus", fmt.Sprint(5-max(want, 1)), max(want, 1))
			lose()
			if err := h.Unlock(t.Context()); err != nil {
				t.Fatalf("%s %d, unlock: %v: it was executed, only the reply was lost", name, i, err)
			}
			waitForState(t, s, "gpus", "5", 0)
		}
	}
	lose()
	if err := sem.Resize(t.Context(), 6); err != nil {
		t.Errorf("resize: %v", err)
	}
	lose()
	if state, err := sem.Inspect(t.Context()); err != nil || state.Permits != 6 {
		t.Errorf("inspect: %+v, %v", state, err)
	}
	h := kindtest.MustLock(t, sem.N(2))
	lose()
	first, err := sem.Slots(t.Context(), h)
	again, err2 := sem.Slots(t.Context(), h)
	if err != nil || err2 != nil || len(first) != 2 || !slices.Equal(first, again) {
		t.Errorf("slots: %v, %v; %v, %v", first, err, again, err2)
	}
	kindtest.MustUnlock(t, h)
}

// A wait ends while its request or reply is in flight, with or without a free permit. Nothing is left.
func TestCancelledMidway(t *testing.T) {
	t.Parallel()
	for _, free := range []string{"free", "taken"} {
		for _, hold := range []string{"request", "reply", "request lost", "reply lost"} {
			t.Run(free+", "+hold, func(t *testing.T) {
				t.Parallel()
				s := redistest.Start(t)
				p := redistest.NewProxy(t, s.Addr())
				sem := kindtest.NewClient(t, s.Client(t, redistest.Via(p)), client.WithOpTimeout(kindtest.OpTimeout)).NewSemaphore("gpus", 2)
				other := kindtest.NewClient(t, s.Client(t)).NewSemaphore("gpus", 2)
				kindtest.MustUnlock(t, kindtest.MustLock(t, sem)) // loads the script
				n := 0
				if free == "taken" {
					defer kindtest.MustUnlock(t, kindtest.MustLock(t, other.N(2)))
					n = 2
				}
				held := make(chan struct{})
				act := redistest.Action{HoldRequest: held, DropRequest: strings.HasSuffix(hold, "lost")}
				if strings.HasPrefix(hold, "reply") {
					act = redistest.Action{HoldReply: held, DropReply: strings.HasSuffix(hold, "lost")}
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				once := redistest.Once("EVALSHA", act)
				p.OnRequest(func(req [][]byte) redistest.Action {
					a := once(req)
					if a != (redistest.Action{}) {
						cancel()
					}
					return a
				})
				if _, err := sem.Lock(ctx); errors.Is(err, lock.ErrNotAcquired) || errors.Is(err, lock.ErrUnavailable) || !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				close(held)
				waitForState(t, s, "gpus", fmt.Sprint(2-n), n)
			})
		}
	}
}

// Waiters survive lost scripts and broken Pub/Sub connections.
func TestWaiters_surviveFaults(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	holder, waiter := kindtest.NewClient(t, s.Client(t)), kindtest.NewClient(t, s.Client(t))
	kindtest.Flushing(t, s, func() {
		for i := range 10 {
			h := kindtest.MustLock(t, holder.NewSemaphore("gpus", 2).N(2))
			var waiters []*kindtest.Waiter
			for j := range 3 {
				waiters = append(waiters, kindtest.Go(t.Context(), waiter.NewSemaphore("gpus", 2)))
				waiting(t, s, "gpus", j+1)
			}
			if i%2 == 0 {
				s.Do(t, "CLIENT", "KILL", "TYPE", "pubsub")
			}
			kindtest.MustUnlock(t, h)
			kindtest.ServeAll(t, waiters...)
		}
	})
	wantState(t, s, "gpus", "2", 0)
}

// The queue, or the entire semaphore, is deleted manually while owners wait.
func TestDeletedByHand(t *testing.T) {
	t.Parallel()
	for _, keys := range []string{"leasehold_semaphore_queue:{gpus}", "leasehold_semaphore_alive:{gpus}", "{gpus}:timeout", "gpus"} {
		t.Run(keys, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			holder, waiter := kindtest.NewClient(t, s.Client(t), kindtest.Fast...), kindtest.NewClient(t, s.Client(t))
			h := kindtest.MustLock(t, holder.NewSemaphore("gpus", 2).N(2))
			w := []*kindtest.Waiter{kindtest.Go(t.Context(), waiter.NewSemaphore("gpus", 2))}
			waiting(t, s, "gpus", 1)
			w = append(w, kindtest.Go(t.Context(), waiter.NewSemaphore("gpus", 2)))
			waiting(t, s, "gpus", 2)
			if keys == "{gpus}:timeout" { // and the number of free permits is set, so that the total does not change
				s.Do(t, "EVAL", "redis.call('DEL', KEYS[1]) redis.call('SET', KEYS[2], 2)", "2", keys, "gpus")
				kindtest.Lost(t, h)
			} else {
				s.Do(t, "DEL", keys)
				kindtest.MustUnlock(t, h)
			}
			kindtest.ServeAll(t, w...)
			waitForState(t, s, "gpus", "2", 0)
		})
	}
}

// With a paused server each call returns in time, holders are notified at Until, and finally nothing is left.
func TestServerPaused(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t), kindtest.Fast...)
	sem := c.NewSemaphore("gpus", 3)
	h, other := kindtest.MustLock(t, sem), kindtest.MustLock(t, sem)
	s.Freeze(t)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	var all sync.WaitGroup // together: one after the other, they take as long as the lease
	all.Go(func() {
		if _, err := sem.Lock(ctx); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("Lock: %v", err)
		}
	})
	all.Go(func() {
		if _, err := sem.TryLock(t.Context()); !errors.Is(err, lock.ErrUnavailable) || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("TryLock: %v", err)
		}
	})
	all.Go(func() {
		if err := sem.Resize(t.Context(), 3); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("Resize: %v", err)
		}
	})
	all.Go(func() {
		if _, err := sem.Inspect(t.Context()); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("Inspect: %v", err)
		}
	})
	all.Go(func() {
		if err := other.Unlock(t.Context()); !errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrNotHeld) {
			t.Errorf("Unlock: %v", err)
		}
	})
	all.Wait()
	until := h.Until()
	<-h.Context().Done()
	if early := time.Until(until); early > 0 {
		t.Errorf("notified %v before Until", early)
	}
	kindtest.Lost(t, h)
	s.Thaw(t)
	waitForState(t, s, "gpus", "3", 0)
}

// The server restarts without its data: holders are notified at the next renewal, and waiters acquire permits.
func TestServerRestartsEmpty(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a, b := kindtest.NewClient(t, s.Client(t), kindtest.Fast...), kindtest.NewClient(t, s.Client(t), kindtest.Fast...)
	h := kindtest.MustLock(t, a.NewSemaphore("gpus", 1))
	w := kindtest.Go(t.Context(), b.NewSemaphore("gpus", 1))
	waiting(t, s, "gpus", 1)
	s.Kill(t)
	s.Restart(t)
	kindtest.MustUnlock(t, w.Hold(t))
	kindtest.Lost(t, h)
	waitForState(t, s, "gpus", "1", 0)
}

// Close releases all permits, ends the waits, and removes their queue positions.
func TestClose(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c, err := client.New(s.Client(t))
	if err != nil {
		t.Fatal(err)
	}
	sem := c.NewSemaphore("gpus", 3)
	h, two := kindtest.MustLock(t, sem), kindtest.MustLock(t, sem.N(2))
	w := kindtest.Go(t.Context(), sem)
	waiting(t, s, "gpus", 1)
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := w.Err(t); !errors.Is(err, lock.ErrClosed) {
		t.Errorf("a waiter: %v", err)
	}
	for _, h := range []lock.Hold{h, two} {
		if !errors.Is(h.Err(), lock.ErrClosed) {
			t.Errorf("a hold: %v", h.Err())
		}
	}
	if _, err := sem.Lock(t.Context()); !errors.Is(err, lock.ErrClosed) {
		t.Errorf("Lock after Close: %v", err)
	}
	wantState(t, s, "gpus", "3", 0)
}

// A script runs while the permits are held by the server's clock, and not after that.
func TestRun(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t))
	sem := c.NewSemaphore("gpus", 3)
	set := semaphore.NewScript("return redis.call('SET', KEYS[1], ARGV[1])")
	h, other := kindtest.MustLock(t, sem.N(2)), kindtest.MustLock(t, sem)
	write := func(h lock.Hold, text string) error {
		_, err := sem.Run(t.Context(), h, set, []string{"{gpus}:data"}, text)
		return err
	}
	if err := write(h, "one"); err != nil {
		t.Error(err)
	}
	if err := write(other, "two"); err != nil { // both hold at the same time, in any order
		t.Error(err)
	}
	if err := write(h, "three"); err != nil {
		t.Error(err)
	}
	s.Do(t, "ZADD", "{gpus}:timeout", "1000", luascripts.Permits(h.Owner())[1]) // the lease of one has expired
	var e *lock.Error
	if err := write(h, "late"); !errors.Is(err, lock.ErrLost) || !errors.As(err, &e) || e.Op != "run" || e.Name != "gpus" {
		t.Errorf("after the lease: %v", err)
	}
	kindtest.MustUnlock(t, other)
	if err := write(other, "late"); !errors.Is(err, lock.ErrLost) {
		t.Errorf("after the release: %v", err)
	}
	plain := kindtest.MustLock(t, c.NewLock("plain"))
	if err := write(plain, "late"); err == nil || !strings.Contains(err.Error(), "is not a hold of this semaphore") {
		t.Errorf("with another lock: %v", err)
	}
	kindtest.MustUnlock(t, plain)
	if got := kindtest.Text(s.Do(t, "GET", "{gpus}:data")); got != "three" {
		t.Errorf("the data is %q", got)
	}
	_ = h.Unlock(t.Context())
}

// On a cluster, a key in another slot is an error, not a panic.
func TestRun_cluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	sem := kindtest.NewClient(t, c.Client(t)).NewSemaphore("gpus", 3)
	h := kindtest.MustLock(t, sem)
	set := semaphore.NewScript("return redis.call('SET', KEYS[1], ARGV[1])")
	var e *lock.Error
	if _, err := sem.Run(t.Context(), h, set, []string{"{gpus}:data", "elsewhere"}, "one"); !errors.As(err, &e) || e.Op != "run" || e.Name != "gpus" || !strings.Contains(err.Error(), "slot") {
		t.Errorf("a key in another slot: %v", err)
	}
	if _, err := sem.Run(t.Context(), h, set, []string{"{gpus}:data"}, "one"); err != nil {
		t.Error(err)
	}
	kindtest.MustUnlock(t, h)
}

// A permit in a multi-lock: all or none, and the loss of one ends the entire hold.
func TestMultilock(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a, b := kindtest.NewClient(t, s.Client(t), kindtest.Fast...), kindtest.NewClient(t, s.Client(t), kindtest.Fast...)
	of := func(c *client.Client) lock.Locker {
		return multilock.New(c.NewSemaphore("gpus", 2).N(2), c.NewLock("orders"), c.NewSemaphore("licences", 1))
	}
	h := kindtest.MustLock(t, of(a))
	wantState(t, s, "gpus", "0", 2)
	wantState(t, s, "licences", "0", 1)
	w := kindtest.Go(t.Context(), of(b))
	waiting(t, s, "gpus", 1)
	kindtest.MustUnlock(t, h)
	h = w.Hold(t)

	// If one cannot be acquired, the others are released.
	kindtest.MustUnlock(t, h)
	orders := kindtest.MustLock(t, a.NewLock("orders"))
	if _, err := of(b).TryLock(t.Context()); !errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("without the lock: %v", err)
	}
	waitForState(t, s, "gpus", "2", 0)
	waitForState(t, s, "licences", "1", 0)
	ctx, cancel := context.WithCancel(t.Context())
	w = kindtest.Go(ctx, of(b))
	kindtest.WaitFor(t, "it has its permits, and waits for the lock", func() bool { return kindtest.Text(s.Do(t, "GET", "gpus")) == "0" })
	cancel()
	if err := w.Err(t); !errors.Is(err, context.Canceled) || errors.Is(err, lock.ErrUnavailable) { // the lock may not have replied yet
		t.Error(err)
	}
	waitForState(t, s, "gpus", "2", 0)
	kindtest.MustUnlock(t, orders)

	// A permit is lost.
	h = kindtest.MustLock(t, of(a))
	s.Do(t, "EVAL", "redis.call('DEL', KEYS[1]) redis.call('SET', KEYS[2], 1)", "2", "{licences}:timeout", "licences")
	kindtest.Lost(t, h)
	if err := h.Unlock(t.Context()); !errors.Is(err, lock.ErrNotHeld) {
		t.Errorf("unlock of what is lost: %v", err)
	}
	waitForState(t, s, "gpus", "2", 0)
	waitForState(t, s, "licences", "1", 0)
	kindtest.MustUnlock(t, kindtest.MustLock(t, b.NewLock("orders")))
}

// Combinations that would deadlock, or exceed the number of permits, fail at the first call.
func TestMultilock_refused(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c, other := kindtest.NewClient(t, s.Client(t)), kindtest.NewClient(t, s.Client(t))
	gpus := c.NewSemaphore("gpus", 5)
	clients := []*client.Client{c, other, kindtest.NewClient(t, s.Client(t))}
	quorum := func(permits int) lock.Locker {
		var all []lock.Locker
		for i, c := range clients {
			all = append(all, c.NewSemaphore(fmt.Sprint("seat", i), permits))
		}
		return multilock.NewQuorum(all)
	}
	s.ResetStats(t)
	for text, l := range map[string]lock.Locker{
		"use its method N":       multilock.New(gpus, c.NewLock("orders"), gpus.N(2)),
		"of one semaphore":       multilock.New(multilock.New(gpus), c.NewSemaphore("gpus", 5)),
		"semaphore of 2 permits": quorum(2),
		"semaphore of 0 permits": quorum(0),
	} {
		for op, call := range map[string]func(context.Context) (lock.Hold, error){"lock": l.Lock, "trylock": l.TryLock} {
			_, err := call(t.Context())
			var e *lock.Error
			if !errors.As(err, &e) || e.Op != op || !strings.Contains(err.Error(), text) {
				t.Errorf("%q, %s: %v", text, op, err)
			}
		}
	}
	if n := s.CommandCalls(t, "evalsha"); n > 0 {
		t.Errorf("%d commands were sent", n)
	}
	kindtest.MustUnlock(t, kindtest.MustLock(t, multilock.New(gpus, other.NewSemaphore("other", 5), c.NewSemaphore("other", 5)))) // two clients have two owners
}

// A hold of permits supports a maximum hold time and Extend, like other kinds.
func TestMaxHoldAndExtend(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t), kindtest.Fast...)
	short := kindtest.MustLock(t, c.NewSemaphore("gpus", 3, lock.WithMaxHold(kindtest.WatchdogTimeout*3/2)).N(2))
	kept := kindtest.MustLock(t, c.NewSemaphore("gpus", 3))
	start := time.Now()
	kindtest.Lost(t, short, lock.ErrMaxHold)
	if took := time.Since(start); took < kindtest.WatchdogTimeout {
		t.Errorf("it ended after %v of %v", took, kindtest.WatchdogTimeout*3/2)
	}
	waitForState(t, s, "gpus", "2", 1)
	if err := kept.Err(); err != nil {
		t.Errorf("another hold: %v", err)
	}

	fixed := kindtest.MustLock(t, c.NewSemaphore("gpus", 3, lock.WithFixedLease(time.Minute)).N(2))
	if err := fixed.Extend(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if left := time.Until(fixed.Until()); left < 50*time.Minute || left > time.Hour {
		t.Errorf("%v are left of an hour", left)
	}
	now := kindtest.Number(s.Do(t, "EVAL", "local t = redis.call('TIME') return t[1] * 1000", "0"))
	for _, id := range luascripts.Permits(fixed.Owner()) {
		score, err := strconv.ParseInt(kindtest.Text(s.Do(t, "ZSCORE", "{gpus}:timeout", id)), 10, 64)
		if left := time.Duration(score-now) * time.Millisecond; err != nil || left < 50*time.Minute {
			t.Errorf("%v are left of a permit's hour, %v", left, err)
		}
	}
	if err := fixed.Extend(t.Context(), 10*time.Second); err != nil { // never shorter
		t.Error(err)
	}
	if left := time.Until(fixed.Until()); left < 50*time.Minute {
		t.Errorf("%v are left of an hour", left)
	}
	s.Do(t, "ZREM", "{gpus}:timeout", luascripts.Permits(fixed.Owner())[1])
	if err := fixed.Extend(t.Context(), 2*time.Hour); !errors.Is(err, lock.ErrLost) {
		t.Errorf("of what is lost: %v", err)
	}
	kindtest.MustUnlock(t, kept)
}

// A permit has the lowest free number, and keeps it. The next permit with that number has a larger token, even if the
// clock moved backward.
func TestSlots(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a, b := kindtest.NewClient(t, s.Client(t)), kindtest.NewClient(t, s.Client(t))
	one, other := a.NewSemaphore("gpus", 4), b.NewSemaphore("gpus", 4)
	slots := func(sem *semaphore.Semaphore, h lock.Hold, want ...int) (tokens []uint64) {
		t.Helper()
		found, err := sem.Slots(t.Context(), h)
		var numbers []int
		for _, slot := range found {
			numbers, tokens = append(numbers, slot.Number), append(tokens, slot.Token)
		}
		if err != nil || !slices.Equal(numbers, want) {
			t.Errorf("slots %d, %v, want %d", numbers, err, want)
		}
		return tokens
	}
	first, two := kindtest.MustLock(t, one), kindtest.MustLock(t, other.N(2))
	slots(one, first, 0)
	before := slots(other, two, 1, 2)
	if again := slots(one, two, 1, 2); !slices.Equal(again, before) { // with any handle, repeatedly
		t.Errorf("the tokens %d became %d", before, again)
	}
	last := kindtest.MustLock(t, one)
	slots(one, last, 3)
	kindtest.MustUnlock(t, two)
	s.Do(t, "HSET", "leasehold_semaphore_slots:{gpus}", "1", "8000000000000000 "+luascripts.Permits(two.Owner())[0]) // as if the clock had been ahead
	next := kindtest.MustLock(t, one)
	if tokens := slots(one, next, 1); len(tokens) != 1 || tokens[0] != 8000000000000001 {
		t.Errorf("token %d after 8000000000000000", tokens)
	}
	another := kindtest.MustLock(t, other)
	if tokens := slots(other, another, 2); len(tokens) != 1 || tokens[0] <= before[1] {
		t.Errorf("token %d after %d", tokens, before[1])
	}
	slots(one, first, 0)

	// A lost hold has no slots.
	s.Do(t, "ZADD", "{gpus}:timeout", "1000", luascripts.Permits(first.Owner())[0])
	var e *lock.Error
	if _, err := one.Slots(t.Context(), first); !errors.Is(err, lock.ErrLost) || !errors.As(err, &e) || e.Op != "slots" || e.Name != "gpus" {
		t.Errorf("of a permit that is lost: %v", err)
	}
	later := kindtest.MustLock(t, other)
	slots(other, later, 0)
	plain := kindtest.MustLock(t, a.NewLock("plain"))
	if _, err := one.Slots(t.Context(), plain); err == nil || !strings.Contains(err.Error(), "is not a hold of this semaphore") {
		t.Errorf("of another lock: %v", err)
	}
	for _, value := range [][]string{{"SET", "leasehold_semaphore_slots:{gpus}", "x"}, {"HSET", "leasehold_semaphore_slots:{gpus}", "0", "x"}, {"HSET", "leasehold_semaphore_slots:{gpus}", "x", "1 x"}} {
		s.Do(t, "DEL", "leasehold_semaphore_slots:{gpus}")
		s.Do(t, value...)
		if _, err := one.Slots(t.Context(), last); !errors.Is(err, lock.ErrWrongType) {
			t.Errorf("%q: %v", value, err)
		}
	}
	_ = first.Unlock(t.Context())
	kindtest.MustUnlock(t, last, next, another, later, plain)
}

// Holders in several processes: no two of them have the same slot at the same time, all numbers are below the number of
// permits, and the tokens of each slot increase.
func TestSlots_neverTwice(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	const total = 5
	var mu sync.Mutex
	inside, latest := map[int]bool{}, map[int]uint64{} // guarded by mu
	var wg sync.WaitGroup
	for range 3 {
		sem := kindtest.NewClient(t, s.Client(t)).NewSemaphore("gpus", total)
		for range 4 {
			wg.Go(func() {
				for range 30 {
					h, err := sem.N(1 + rand.IntN(3)).Lock(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					found, err := sem.Slots(t.Context(), h)
					if err != nil {
						t.Error(err)
					}
					mu.Lock()
					for _, slot := range found {
						if inside[slot.Number] || slot.Number >= total || slot.Token <= latest[slot.Number] {
							t.Errorf("slot %d, taken: %v, token %d after %d", slot.Number, inside[slot.Number], slot.Token, latest[slot.Number])
						}
						inside[slot.Number], latest[slot.Number] = true, slot.Token
					}
					mu.Unlock()
					time.Sleep(time.Duration(rand.IntN(300)) * time.Microsecond)
					mu.Lock()
					for _, slot := range found {
						delete(inside, slot.Number)
					}
					mu.Unlock()
					if err := h.Unlock(context.Background()); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	if len(latest) != total {
		t.Errorf("%d of %d slots were in use", len(latest), total)
	}
}

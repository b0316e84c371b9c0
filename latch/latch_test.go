package latch_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/kindtest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/latch"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// create creates a latch.
func create(t testing.TB, l *latch.Latch, n int64) {
	t.Helper()
	if created, err := l.TrySetCount(t.Context(), n); err != nil || !created {
		t.Fatalf("made: %v, %v", created, err)
	}
}

// countDown decrements l, and checks that want remains.
func countDown(t testing.TB, l *latch.Latch, want int64) {
	t.Helper()
	if left, err := l.CountDown(t.Context()); err != nil || left != want {
		t.Fatalf("%d left, %v, want %d", left, err, want)
	}
}

// remove deletes l.
func remove(t testing.TB, l *latch.Latch) {
	t.Helper()
	if err := l.Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// wait calls Wait in a separate goroutine.
func wait(ctx context.Context, w interface{ Wait(context.Context) error }) <-chan error {
	done := make(chan error, 1)
	go func() { done <- w.Wait(ctx) }()
	return done
}

// result returns the result of wait.
func result(t testing.TB, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("Wait waits on, although nothing keeps it waiting any more")
		return nil
	}
}

// listen waits until n clients of the server are subscribed for name.
func listen(t testing.TB, s *redistest.Server, name string, n int64) {
	t.Helper()
	channel := "redisson_countdownlatch__channel__{" + name + "}"
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		reply := s.Do(t, "PUBSUB", "NUMSUB", channel)
		all, _ := reply.ToArray()
		if count, _ := all[1].ToInt64(); count == n {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %d listen for %s", n, name)
		}
	}
}

// Callers of two clients wait until the last CountDown, and a later caller does not wait.
func TestLatch(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a, b := kindtest.NewClient(t, s.Client(t)), kindtest.NewClient(t, s.Client(t))
	one, other := a.NewLatch("done"), b.NewLatch("done")
	create(t, one, 3)
	if created, err := other.TrySetCount(t.Context(), 5); created || err != nil {
		t.Errorf("made twice: %v, %v", created, err)
	}
	if got := kindtest.Text(s.Do(t, "GET", "done")); got != "3" {
		t.Errorf("the count is %q", got)
	}
	var waits []<-chan error
	for _, l := range []*latch.Latch{one, other, b.NewLatch("done")} {
		for range 10 {
			waits = append(waits, wait(t.Context(), l))
		}
	}
	listen(t, s, "done", 2)
	countDown(t, one, 2)
	countDown(t, other, 1)
	for _, w := range waits {
		if len(w) > 0 {
			t.Fatalf("one did not wait: %v", <-w)
		}
	}
	if n, err := one.Count(t.Context()); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	countDown(t, other, 0)
	for _, w := range waits {
		if err := result(t, w); err != nil {
			t.Error(err)
		}
	}
	if err := one.Wait(t.Context()); err != nil {
		t.Errorf("late: %v", err)
	}
	countDown(t, one, 0) // a surplus call has no effect
	if n, err := one.Count(t.Context()); n != 0 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if got := kindtest.Keys(t, s); !slices.Equal(got, []string{"leasehold_latch:{done}", "leasehold_latch_calls:{done}"}) {
		t.Errorf("left: %q", got)
	}
	for _, key := range kindtest.Keys(t, s) {
		if left := kindtest.Number(s.Do(t, "PTTL", key)); left < time.Hour.Milliseconds() {
			t.Errorf("the TTL of %s is %d ms", key, left)
		}
	}
}

// A wait is for one round. Callers of the first round return, and callers of the second continue to wait.
func TestRounds(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c, rdb := kindtest.NewClient(t, s.Client(t)), s.Client(t)
	for i := range 20 {
		name := fmt.Sprint("done", i)
		l, other := c.NewLatch(name), kindtest.NewClient(t, rdb)
		create(t, l, 1)
		first := wait(t.Context(), other.NewLatch(name))
		listen(t, s, name, 1)
		s.Do(t, "CLIENT", "KILL", "TYPE", "pubsub") // so that it may miss a message
		countDown(t, l, 0)
		create(t, l, 1)
		if err := result(t, first); err != nil {
			t.Fatal(err)
		}
		if err := other.Close(t.Context()); err != nil { // otherwise it may stay subscribed for a while
			t.Fatal(err)
		}
		second := wait(t.Context(), l)
		listen(t, s, name, 1)
		if len(second) > 0 {
			t.Fatal("the first round ended the wait for the second")
		}
		countDown(t, l, 0)
		if err := result(t, second); err != nil {
			t.Fatal(err)
		}
	}
}

// A caller ignores the result of a read that began before the call.
func TestWait_staleRead(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	l := kindtest.NewClient(t, s.Client(t, redistest.Via(p))).NewLatch("done")
	other := kindtest.NewClient(t, s.Client(t)).NewLatch("done")
	create(t, other, 1)
	countDown(t, other, 0)
	if n, err := other.Count(t.Context()); n != 0 || err != nil { // loads the script
		t.Fatal(n, err)
	}
	held, commands := make(chan struct{}), make(chan struct{})
	once := redistest.Once("EVALSHA", redistest.Action{HoldReply: held})
	p.OnRequest(func(req [][]byte) redistest.Action {
		a := once(req)
		if a != (redistest.Action{}) {
			close(commands)
		}
		return a
	})
	s.ResetStats(t)
	first := wait(t.Context(), l)
	<-commands
	kindtest.WaitFor(t, "the server has seen an open latch", func() bool { return s.CommandCalls(t, "evalsha") > 0 })
	create(t, other, 1)
	second := wait(t.Context(), l)
	if len(first)+len(second) > 0 {
		t.Fatal("a caller did not wait for the reply")
	}
	kindtest.WaitFor(t, "the second caller has joined", func() bool { return l.Waiting() == 2 })
	close(held)
	if err := result(t, first); err != nil {
		t.Error(err)
	}
	listen(t, s, "done", 1)
	if len(second) > 0 {
		t.Errorf("the second one did not wait: %v", <-second)
	}
	countDown(t, other, 0)
	if err := result(t, second); err != nil {
		t.Error(err)
	}
}

// A lost message delays waiters by at most one second, because they poll.
func TestWait_lostMessage(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	user := s.AddUser(t, "deaf", "+@all", "~*", "resetchannels")
	c, noPubSub := kindtest.NewClient(t, s.Client(t)), kindtest.NewClient(t, s.Client(t, user))
	l := c.NewLatch("done")
	create(t, l, 1)
	w := wait(t.Context(), noPubSub.NewLatch("done"))
	kindtest.WaitFor(t, "it was denied", func() bool { return len(s.Denied(t, "deaf")) > 0 })
	countDown(t, l, 0)
	if err := result(t, w); err != nil {
		t.Error(err)
	}
}

// Any number of waiters in a process send one command per poll interval.
func TestWait_together(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t))
	l := c.NewLatch("done")
	create(t, l, 1)
	var waits []<-chan error
	for range 100 {
		waits = append(waits, wait(t.Context(), l))
	}
	listen(t, s, "done", 1)
	kindtest.WaitFor(t, "all wait", func() bool { return l.Waiting() == len(waits) })
	start := time.Now()
	s.ResetStats(t)
	kindtest.WaitFor(t, "some polls have passed", func() bool { return s.CommandCalls(t, "evalsha") >= 3 })
	calls := s.CommandCalls(t, "evalsha")
	if most := int64(time.Since(start)/time.Second) + 10; calls > most {
		t.Errorf("%d commands, want no more than %d", calls, most)
	}
	countDown(t, l, 0)
	for _, w := range waits {
		if err := result(t, w); err != nil {
			t.Error(err)
		}
	}
}

// A wait that fails reports why.
func TestWait_ends(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t), kindtest.Fast...)
	for what, end := range map[string]func(t *testing.T, l *latch.Latch){
		"deleted": func(t *testing.T, l *latch.Latch) {
			if err := l.Delete(t.Context()); err != nil {
				t.Error(err)
			}
		},
		"deleted and created again": func(t *testing.T, l *latch.Latch) {
			if err := l.Delete(t.Context()); err != nil {
				t.Error(err)
			}
			create(t, l, 5)
		},
		"expired": func(t *testing.T, l *latch.Latch) {
			// Both keys at once, as a call that reads the expiry sets them. Otherwise, if the waiter is too slow to read it, the
			// latch counts as released.
			s.Do(t, "EVAL", "redis.call('PEXPIRE', KEYS[1], 2500) redis.call('PEXPIRE', KEYS[2], 2498)", "2", l.Name(), "leasehold_latch:{"+l.Name()+"}")
		},
		"lost": func(t *testing.T, l *latch.Latch) {
			s.Do(t, "DEL", l.Name(), "leasehold_latch:{"+l.Name()+"}", "leasehold_latch_calls:{"+l.Name()+"}")
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			l := c.NewLatch(strings.ReplaceAll(what, " ", "_"))
			create(t, l, 2)
			w := wait(t.Context(), l)
			listen(t, s, l.Name(), 1)
			end(t, l)
			var e *lock.Error
			if err := result(t, w); !errors.Is(err, latch.ErrDeleted) || !errors.As(err, &e) || e.Op != "wait" || e.Name != l.Name() {
				t.Errorf("%v", err)
			}
		})
	}
	t.Run("another key", func(t *testing.T) {
		l := c.NewLatch("foreign")
		create(t, l, 2)
		w := wait(t.Context(), l)
		listen(t, s, "foreign", 1)
		s.Do(t, "RPUSH", "list", "x")
		s.Do(t, "RENAME", "list", "foreign") // atomically, because a latch without its key is released
		if err := result(t, w); !errors.Is(err, lock.ErrWrongType) {
			t.Errorf("%v", err)
		}
	})
	t.Run("restart", func(t *testing.T) {
		s := redistest.Start(t)
		l := kindtest.NewClient(t, s.Client(t), kindtest.Fast...).NewLatch("done")
		create(t, l, 2)
		w := wait(t.Context(), l)
		listen(t, s, "done", 1)
		s.Kill(t)
		s.Restart(t)
		if err := result(t, w); !errors.Is(err, latch.ErrDeleted) {
			t.Errorf("%v", err)
		}
	})
}

// Java sets an expiry for a latch, and then a longer one. The extra keys of the latch live as long as its count.
func TestWait_expiryExtended(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l := kindtest.NewClient(t, s.Client(t)).NewLatch("done")
	create(t, l, 1)
	w := wait(t.Context(), l)
	left := func() int64 { return kindtest.Number(s.Do(t, "PTTL", "leasehold_latch:{done}")) }
	s.Do(t, "PEXPIRE", "done", "10000")
	kindtest.WaitFor(t, "the traces expire with the count", func() bool { return left() <= 10000 })
	s.Do(t, "PEXPIRE", "done", "3600000")
	kindtest.WaitFor(t, "the traces expire later", func() bool { return left() > 20000 })
	countDown(t, l, 0)
	if err := result(t, w); err != nil {
		t.Error(err)
	}
}

// A released round stays released for its waiters, even if the latch is deleted, or created again and deleted, before
// they check. After several more rounds, or if its keys were lost, Redis cannot tell whether the round was released or deleted.
func TestWait_deletedAfterTheRelease(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	far := kindtest.NewClient(t, s.Client(t, redistest.Via(p)))
	near := kindtest.NewClient(t, s.Client(t))
	for what, c := range map[string]struct {
		then func(l *latch.Latch)
		want error
	}{
		"deleted":                     {func(l *latch.Latch) { remove(t, l) }, nil},
		"created again":               {func(l *latch.Latch) { create(t, l, 1) }, nil},
		"created again, and deleted":  {func(l *latch.Latch) { create(t, l, 1); remove(t, l) }, nil},
		"created again, and released": {func(l *latch.Latch) { create(t, l, 1); countDown(t, l, 0) }, nil},
		"another round is deleted":    {func(l *latch.Latch) { create(t, l, 1); countDown(t, l, 0); create(t, l, 1); remove(t, l) }, latch.ErrDeleted},
		"lost, and another round":     {func(l *latch.Latch) { s.Do(t, "FLUSHALL"); create(t, l, 1); countDown(t, l, 0) }, latch.ErrDeleted},
		"lost, and a round of Java":   {func(l *latch.Latch) { s.Do(t, "FLUSHALL"); s.Do(t, "SET", l.Name(), "1"); countDown(t, l, 0) }, latch.ErrDeleted},
	} {
		l := near.NewLatch(strings.ReplaceAll(what, " ", "_"))
		create(t, l, 1)
		w := wait(t.Context(), far.NewLatch(l.Name()))
		listen(t, s, l.Name(), 1)
		p.Freeze(true)
		countDown(t, l, 0)
		c.then(l)
		p.Freeze(false)
		if err := result(t, w); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Each call for a latch that was never created, or was deleted, reports that.
func TestAbsent(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t))
	l := c.NewLatch("done")
	check := func(when string) {
		t.Helper()
		for op, call := range map[string]func(context.Context) error{
			"wait":       l.Wait,
			"count":      func(ctx context.Context) error { _, err := l.Count(ctx); return err },
			"count down": func(ctx context.Context) error { _, err := l.CountDown(ctx); return err },
		} {
			err := call(t.Context())
			var e *lock.Error
			if !errors.Is(err, latch.ErrNotInitialized) || !errors.As(err, &e) || e.Op != op || e.Name != "done" {
				t.Errorf("%s, %s: %v", op, when, err)
			}
		}
	}
	check("never made")
	kindtest.WantEmpty(t, s)
	if err := l.Delete(t.Context()); err != nil {
		t.Error(err)
	}
	create(t, l, 2)
	if err := l.Delete(t.Context()); err != nil {
		t.Error(err)
	}
	check("deleted")
	create(t, l, 1)
	countDown(t, l, 0)
}

// Invalid input is an error that names the operation and the latch, before a command is sent.
func TestBadInput(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t))
	prefixed := kindtest.NewClient(t, s.Client(t), client.WithKeyPrefix("{shop}:"))
	s.ResetStats(t)
	good := c.NewLatch("good")
	for what, bad := range map[string]struct {
		op, name string
		call     func(ctx context.Context) error
		match    error
		text     string
	}{
		"count 0":      {"set count", "good", func(ctx context.Context) error { _, err := good.TrySetCount(ctx, 0); return err }, nil, "count 0: must be"},
		"count -1":     {"set count", "good", func(ctx context.Context) error { _, err := good.TrySetCount(ctx, -1); return err }, nil, "count -1: must be"},
		"a huge count": {"set count", "good", func(ctx context.Context) error { _, err := good.TrySetCount(ctx, latch.MaxCount+1); return err }, nil, "9007199254740991"},
		"no part":      {"count down", "good", func(ctx context.Context) error { _, err := good.CountDownOnce(ctx, ""); return err }, nil, "0 bytes"},
		"a long part": {"count down", "good", func(ctx context.Context) error {
			_, err := good.CountDownOnce(ctx, strings.Repeat("x", 257))
			return err
		}, nil, "257 bytes"},
		"braces":       {"count", "la{t}ch", func(ctx context.Context) error { _, err := c.NewLatch("la{t}ch").Count(ctx); return err }, lock.ErrBadName, "braces"},
		"half a brace": {"wait", "la}tch", func(ctx context.Context) error { return c.NewLatch("la}tch").Wait(ctx) }, lock.ErrBadName, "braces"},
		"a prefix":     {"wait", "x", func(ctx context.Context) error { return prefixed.NewLatch("x").Wait(ctx) }, lock.ErrBadName, "braces"},
		"no name":      {"delete", "", func(ctx context.Context) error { return c.NewLatch("").Delete(ctx) }, lock.ErrBadName, "empty"},
		"a trace":      {"count down", "leasehold_latch:x", func(ctx context.Context) error { _, err := c.NewLatch("leasehold_latch:x").CountDown(ctx); return err }, lock.ErrBadName, "is reserved for"},
		"an ended wait": {"wait", "good", func(ctx context.Context) error {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			return good.Wait(ctx)
		}, context.Canceled, ""},
	} {
		err := bad.call(t.Context())
		var e *lock.Error
		if !errors.As(err, &e) || e.Op != bad.op || e.Name != bad.name || bad.match != nil && !errors.Is(err, bad.match) || !strings.Contains(err.Error(), bad.text) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if n := s.CommandCalls(t, "evalsha") + s.CommandCalls(t, "eval"); n > 0 {
		t.Errorf("%d scripts were sent", n)
	}
}

// Each call has its effect exactly once, even if its reply is lost.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	rdb := s.Client(t, redistest.Via(p), func(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 })
	c := kindtest.NewClient(t, rdb, kindtest.Patient...)
	l := c.NewLatch("done")
	create(t, l, 1)
	countDown(t, l, 0) // loads the scripts
	lose := func() { p.OnRequest(redistest.Once("EVALSHA", redistest.Action{DropReply: true})) }
	for round := range 5 {
		name := fmt.Sprint("done", round) // so that only its own wait is subscribed
		l := c.NewLatch(name)
		lose()
		create(t, l, 20)
		for i := range int64(19) {
			lose()
			countDown(t, l, 19-i)
		}
		lose()
		if n, err := l.Count(t.Context()); n != 1 || err != nil {
			t.Fatalf("%d left, %v", n, err)
		}
		w := wait(t.Context(), l)
		listen(t, s, name, 1)
		lose()
		if round%2 == 0 {
			if err := l.Delete(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := result(t, w); !errors.Is(err, latch.ErrDeleted) {
				t.Fatal(err)
			}
			continue
		}
		countDown(t, l, 0)
		if err := result(t, w); err != nil {
			t.Fatal(err)
		}
	}
}

// countTogether makes n callers count l down, and holds the replies until most of the callers wait for the next command. finish
// passes the replies, and returns what the callers got.
func countTogether(t *testing.T, p *redistest.Proxy, l *latch.Latch, n int) (finish func() (lefts []int64, errs []error)) {
	t.Helper()
	const inFlight = 32 // commands of a latch
	held, seen := make(chan struct{}), new(atomic.Int64)
	p.OnRequest(func(req [][]byte) redistest.Action {
		if string(req[0]) != "EVALSHA" || !slices.ContainsFunc(req, func(arg []byte) bool { return string(arg) == "PUBLISH" }) {
			return redistest.Action{} // a waiter polls and publishes nothing
		}
		seen.Add(1)
		return redistest.Action{HoldReply: held}
	})
	type result struct {
		left int64
		err  error
	}
	results, started := make(chan result, n), 0
	start := func() {
		started++
		go func() {
			left, err := l.CountDown(t.Context())
			results <- result{left, err}
		}()
	}
	kindtest.WaitFor(t, "no more commands are sent", func() bool {
		if seen.Load() < inFlight && started < n {
			start()
		}
		return seen.Load() == inFlight
	})
	for started < n {
		start()
	}
	kindtest.WaitFor(t, "all have called", func() bool { return l.Counting() == n })
	if n := seen.Load(); n != inFlight {
		t.Errorf("%d commands before the replies, want %d", n, inFlight)
	}
	return func() (lefts []int64, errs []error) {
		p.OnRequest(nil)
		close(held)
		for range n {
			r := <-results
			lefts, errs = append(lefts, r.left), append(errs, r.err)
		}
		slices.Sort(lefts)
		return lefts, errs
	}
}

// counting returns a server, a proxy in front of it, and a latch behind the proxy whose script is loaded on the server.
func counting(t *testing.T) (s *redistest.Server, p *redistest.Proxy, c *client.Client, l *latch.Latch) {
	s = redistest.Start(t)
	p = redistest.NewProxy(t, s.Addr())
	c = kindtest.NewClient(t, s.Client(t, redistest.Via(p), func(o *rueidis.ClientOption) { o.PipelineMultiplex, o.AlwaysPipelining = -1, true }), kindtest.Patient...)
	l = c.NewLatch("done")
	create(t, l, 1)
	countDown(t, l, 0)
	return s, p, c, l
}

// CountDown calls of a process that wait at the same time become one command. It counts each of them, and each call
// returns the count left after it. Some of them may arrive after the count is zero.
func TestCountDown_together(t *testing.T) {
	t.Parallel()
	s, p, c, l := counting(t)
	for _, count := range []int64{150, 120, 70} {
		const callers = 120
		create(t, l, count)
		w := wait(t.Context(), c.NewLatch("done"))
		listen(t, s, "done", 1)
		s.ResetStats(t)
		finish := countTogether(t, p, l, callers)
		lefts, errs := finish()
		if err := errors.Join(errs...); err != nil {
			t.Error(err)
		}
		if calls := s.CommandCalls(t, "evalsha"); calls > 60 {
			t.Errorf("%d calls were %d commands", callers, calls)
		}
		var want []int64
		for i := range int64(callers) {
			want = append(want, max(count-1-i, 0))
		}
		slices.Sort(want)
		if !slices.Equal(lefts, want) {
			t.Errorf("of %d: %d are left, want %d", count, lefts, want)
		}
		for left := count - callers - 1; left >= 0; left-- {
			countDown(t, l, left)
		}
		if err := result(t, w); err != nil {
			t.Error(err)
		}
		if n := l.Counters(); n != 0 {
			t.Errorf("%d counters are kept", n)
		}
	}
}

// If the replies to commands that count many calls are lost, each call counts once. Of the calls that count, one returns 0.
func TestCountDown_togetherLostReplies(t *testing.T) {
	t.Parallel()
	_, p, _, l := counting(t)
	const callers, times = 64, 20
	for _, count := range []int64{callers*times + 36, callers * times, callers * times / 2} {
		create(t, l, count)
		sent, lost, zeros := new(atomic.Int64), new(atomic.Int64), new(atomic.Int64)
		p.OnRequest(func(req [][]byte) redistest.Action {
			lose := string(req[0]) == "EVALSHA" && sent.Add(1)%12 == 0 // each breaks all commands that are in flight
			if lose {
				lost.Add(1)
			}
			return redistest.Action{DropReply: lose}
		})
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				for range times {
					left, err := l.CountDown(t.Context())
					if err != nil {
						t.Error(err)
					}
					if left == 0 {
						zeros.Add(1)
					}
				}
			})
		}
		wg.Wait()
		p.OnRequest(nil)
		if want := max(callers*times-count+1, 0); zeros.Load() != want { // those of a released latch return 0, too
			t.Errorf("of %d: %d calls returned 0, want %d", count, zeros.Load(), want)
		}
		if lost.Load() < 3 {
			t.Errorf("only %d replies were lost", lost.Load())
		}
		if n, err := l.Count(t.Context()); n != max(count-callers*times, 0) || err != nil {
			t.Errorf("of %d: %d left, %v", count, n, err)
		}
		for n := max(count-callers*times, 0); n > 0; n-- {
			countDown(t, l, n-1)
		}
	}
}

// A call that is canceled before its command is sent does not count. A call that is canceled later may count.
func TestCountDown_canceled(t *testing.T) {
	t.Parallel()
	_, p, c, l := counting(t)
	create(t, l, 100)
	finish := countTogether(t, p, l, 60)
	ctx, cancel := context.WithCancel(t.Context())
	canceled := make(chan error, 1)
	go func() {
		_, err := c.NewLatch("done").CountDown(ctx)
		canceled <- err
	}()
	kindtest.WaitFor(t, "it has called", func() bool { return l.Counting() == 61 })
	cancel()
	var e *lock.Error
	if err := <-canceled; !errors.Is(err, context.Canceled) || !errors.As(err, &e) || e.Op != "count down" {
		t.Errorf("%v", err)
	}
	if _, errs := finish(); errors.Join(errs...) != nil {
		t.Error(errs)
	}
	if n, err := l.Count(t.Context()); n != 40 || err != nil {
		t.Errorf("%d left, %v", n, err)
	}
}

// All calls of a command fail if there is no latch, a key has another type, or Redis denies the command.
func TestCountDown_togetherFails(t *testing.T) {
	t.Parallel()
	s, p, _, l := counting(t)
	for _, fails := range []struct {
		prepare []string
		match   error
		text    string
	}{
		{[]string{"DEL", "leasehold_latch:{done}"}, latch.ErrNotInitialized, "TrySetCount"},
		{[]string{"RPUSH", "done", "x"}, lock.ErrWrongType, "list"},
		{[]string{"ACL", "SETUSER", "default", "-time"}, nil, "docs/operate/security.md"},
	} {
		s.Do(t, fails.prepare...)
		_, errs := countTogether(t, p, l, 60)()
		for _, err := range errs {
			var e *lock.Error
			if !errors.As(err, &e) || e.Op != "count down" || e.Name != "done" || fails.match != nil && !errors.Is(err, fails.match) || strings.Count(err.Error(), fails.text) != 1 {
				t.Errorf("%v, want %v, %s", err, fails.match, fails.text)
			}
		}
	}
}

// If a repeated call had no effect, a delayed duplicate of it has no effect either.
func TestLateCopies(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	l := kindtest.NewClient(t, s.Client(t, redistest.Via(p), func(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 })).NewLatch("done")
	create(t, l, 1)
	countDown(t, l, 0)
	if err := l.Delete(t.Context()); err != nil { // loads the scripts
		t.Fatal(err)
	}
	// copied returns the first copy of call, whose reply is lost.
	copied := func(call func()) (first []string) {
		lose := redistest.Once("EVALSHA", redistest.Action{DropReply: true})
		p.OnRequest(func(req [][]byte) redistest.Action {
			a := lose(req)
			if a.DropReply {
				for _, arg := range req {
					first = append(first, string(arg))
				}
			}
			return a
		})
		call()
		p.OnRequest(nil)
		return first
	}
	counts := func(what string, want int64) {
		t.Helper()
		if n, err := l.Count(t.Context()); n != want || err != nil {
			t.Errorf("%s: %d are left (error %v), want %d", what, n, err, want)
		}
	}

	deletes := copied(func() {
		if err := l.Delete(t.Context()); err != nil {
			t.Error(err)
		}
	})
	create(t, l, 2)
	s.Do(t, deletes...)
	counts("a deletion of none", 2)
	creates := copied(func() {
		if created, err := l.TrySetCount(t.Context(), 5); created || err != nil {
			t.Errorf("%v, %v", created, err)
		}
	})
	countDown(t, l, 1)
	countDown(t, l, 0)
	s.Do(t, creates...)
	counts("a creation of an existing latch", 0)
	count := copied(func() { countDown(t, l, 0) })
	create(t, l, 2)
	s.Do(t, count...)
	counts("a count of an open latch", 2)
	part := copied(func() {
		if left, err := l.CountDownOnce(t.Context(), "a part"); left != 1 || err != nil {
			t.Errorf("%d, %v", left, err)
		}
	})
	countDown(t, l, 0)
	create(t, l, 2)
	s.Do(t, part...)
	counts("a part of the round before", 2)
}

// A part whose reply is lost counts in no later round when the call is repeated.
func TestCountDownOnce_lostReply(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	a, b := kindtest.NewClient(t, s.Client(t, redistest.Via(p))).NewLatch("done"), kindtest.NewClient(t, s.Client(t)).NewLatch("done")
	create(t, a, 1)
	if left, err := a.CountDownOnce(t.Context(), "loads the script"); left != 0 || err != nil {
		t.Fatal(left, err)
	}
	for what, next := range map[string]func(){"the latch was released": func() {}, "the latch was deleted": func() { remove(t, b) }} {
		create(t, b, 1)
		lose := make(chan struct{})
		p.OnRequest(redistest.Once("EVALSHA", redistest.Action{DropReply: true, HoldReply: lose}))
		repeated := make(chan error, 1)
		go func() {
			left, err := a.CountDownOnce(t.Context(), "a part")
			if err == nil && left != 2 {
				err = fmt.Errorf("%d left, want 2", left)
			}
			repeated <- err
		}()
		if err := b.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		next()
		create(t, b, 2)
		close(lose)
		if err := <-repeated; err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if n, err := b.Count(t.Context()); n != 2 || err != nil {
			t.Errorf("%s: %d left, %v, want 2", what, n, err)
		}
		remove(t, b)
	}
}

// A part of the work counts once, whichever client counts it, and however often.
func TestCountDownOnce(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a, b := kindtest.NewClient(t, s.Client(t)).NewLatch("done"), kindtest.NewClient(t, s.Client(t)).NewLatch("done")
	for range 2 { // each round has its own parts
		create(t, a, 10)
		var wg sync.WaitGroup
		for i := range 10 {
			for range 5 {
				for _, l := range []*latch.Latch{a, b} {
					wg.Go(func() {
						if left, err := l.CountDownOnce(t.Context(), fmt.Sprint("part ", min(i, 8))); err != nil || left < 1 {
							t.Errorf("%d left, %v", left, err)
						}
					})
				}
			}
		}
		wg.Wait()
		if n, err := a.Count(t.Context()); n != 1 || err != nil {
			t.Fatalf("%d left, %v", n, err)
		}
		if left, err := b.CountDownOnce(t.Context(), "the last"); left != 0 || err != nil {
			t.Fatalf("%d left, %v", left, err)
		}
	}
}

// A part is stored for a day after its call, even if the latch is not used again, and so is a release.
func TestCountDownOnce_storedForADay(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l := kindtest.NewClient(t, s.Client(t)).NewLatch("done")
	create(t, l, 2)
	for _, part := range []string{"a", "b"} { // b releases the latch
		keys := []string{"leasehold_latch:{done}", "leasehold_latch_calls:{done}"}
		for _, key := range keys {
			s.Do(t, "PEXPIRE", key, thirteenHours)
		}
		if _, err := l.CountDownOnce(t.Context(), part); err != nil {
			t.Fatal(err)
		}
		for _, key := range keys {
			if left := kindtest.Number(s.Do(t, "PTTL", key)); left < (24*time.Hour - time.Minute).Milliseconds() {
				t.Errorf("after part %s, the TTL of %s is %d ms", part, key, left)
			}
		}
	}
}

// A caller whose context is canceled leaves no goroutine or subscription behind, in each phase of its wait.
func TestWait_cancelled(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	c := kindtest.NewClient(t, s.Client(t, redistest.Via(p)))
	l := c.NewLatch("done")
	create(t, l, 1)
	for _, phase := range []string{"sends", "replied", "listens", "reused"} {
		held := make(chan struct{})
		commands := make(chan struct{})
		act := redistest.Action{HoldRequest: held}
		if phase == "replied" {
			act = redistest.Action{HoldReply: held}
		}
		if phase == "listens" || phase == "reused" {
			close(commands)
		} else {
			once := redistest.Once("EVALSHA", act)
			p.OnRequest(func(req [][]byte) redistest.Action {
				a := once(req)
				if a != (redistest.Action{}) {
					close(commands)
				}
				return a
			})
		}
		ctx, cancel := context.WithCancel(t.Context())
		if phase == "reused" { // its error is nil after the cancellation
			ctx = redistest.Reused{Context: ctx}
		}
		w := wait(ctx, l)
		<-commands
		if phase == "listens" {
			listen(t, s, "done", 1)
		}
		cancel()
		if err := result(t, w); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", phase, err)
		}
		close(held)
		p.OnRequest(nil)
	}
	kindtest.WaitFor(t, "they listen no more", func() bool { return len(kindtest.Channels(t, s, "*")) == 0 })
}

// While Redis is unavailable, calls end with their contexts or after the operation timeout, and a wait continues.
func TestPausedServer(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t), kindtest.Fast...)
	l, waited := c.NewLatch("done"), c.NewLatch("waited")
	create(t, l, 3)
	create(t, waited, 1)
	w := wait(t.Context(), waited)
	listen(t, s, "waited", 1)
	s.Freeze(t)
	for op, call := range map[string]func(context.Context) error{
		"set count":  func(ctx context.Context) error { _, err := l.TrySetCount(ctx, 1); return err },
		"count":      func(ctx context.Context) error { _, err := l.Count(ctx); return err },
		"count down": func(ctx context.Context) error { _, err := l.CountDownOnce(ctx, "mine"); return err },
	} {
		var e *lock.Error
		if err := call(t.Context()); !errors.Is(err, lock.ErrUnavailable) || !errors.As(err, &e) || e.Op != op {
			t.Errorf("%s: %v", op, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*kindtest.OpTimeout)
	defer cancel()
	if err := l.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("wait: %v", err)
	}
	if len(w) > 0 {
		t.Errorf("a wait ended: %v", <-w)
	}
	s.Thaw(t)
	if left, err := l.CountDownOnce(t.Context(), "mine"); left != 2 || err != nil {
		t.Errorf("the count down, repeated by its caller: %d, %v", left, err)
	}
	countDown(t, waited, 0)
	if err := result(t, w); err != nil {
		t.Error(err)
	}
}

// Close ends the waits, and later calls fail.
func TestClose(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c, err := client.New(s.Client(t), client.WithoutRegistry())
	if err != nil {
		t.Fatal(err)
	}
	l := c.NewLatch("done")
	create(t, l, 2)
	var waits []<-chan error
	for range 5 {
		waits = append(waits, wait(t.Context(), l))
	}
	listen(t, s, "done", 1)
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	for _, w := range waits {
		if err := result(t, w); !errors.Is(err, lock.ErrClosed) {
			t.Errorf("%v", err)
		}
	}
	if err := l.Wait(t.Context()); !errors.Is(err, lock.ErrClosed) {
		t.Errorf("%v", err)
	}
	if _, err := l.CountDown(t.Context()); !errors.Is(err, lock.ErrClosed) {
		t.Errorf("%v", err)
	}
	if channels := kindtest.Channels(t, s, "*"); len(channels) > 0 {
		t.Errorf("%q are subscribed", channels)
	}
}

// While memory is full, existing latches can be completed, and no new one can be created.
func TestMemoryFull(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t), kindtest.Fast...)
	l := c.NewLatch("done")
	create(t, l, 2)
	w := wait(t.Context(), l)
	listen(t, s, "done", 1)
	s.Do(t, "CONFIG", "SET", "maxmemory", "100kb")
	if _, err := c.NewLatch("new").TrySetCount(t.Context(), 1); err == nil || !strings.Contains(err.Error(), "OOM") {
		t.Errorf("%v", err)
	}
	countDown(t, l, 1)
	countDown(t, l, 0)
	if err := result(t, w); err != nil {
		t.Error(err)
	}
}

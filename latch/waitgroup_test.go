package latch_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/kindtest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/latch"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/redis/rueidis"
)

// join adds a worker.
func join(t testing.TB, c *latch.WaitGroup) *latch.Worker {
	t.Helper()
	m, err := c.Add(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// wantWorkers fails the test unless c has these numbers of workers: done, alive, lost.
func wantWorkers(t testing.TB, c *latch.WaitGroup, done, alive, lost int) latch.WaitGroupState {
	t.Helper()
	s, err := c.Inspect(t.Context())
	if err != nil || s.Done != done || len(s.Alive) != alive || len(s.Lost) != lost || len(s.Left) != alive {
		t.Errorf("%+v, %v, want %d done, %d alive, %d lost", s, err, done, alive, lost)
	}
	return s
}

// listenWaitGroup waits until n clients of the server are subscribed for the wait group.
func listenWaitGroup(t testing.TB, s *redistest.Server, name string, n int64) {
	t.Helper()
	waitFor(t, "they listen", func() bool {
		reply := s.Do(t, "PUBSUB", "NUMSUB", "leasehold_crew:{"+name+"}")
		all, _ := reply.ToArray()
		count, _ := all[1].ToInt64()
		return count >= n
	})
}

func waitFor(t testing.TB, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// Workers of two clients work, and callers of both wait until the last one is done.
func TestWaitGroup(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a, b := kindtest.NewClient(t, s.Client(t)), kindtest.NewClient(t, s.Client(t))
	one, other := a.NewWaitGroup("import"), b.NewWaitGroup("import")
	var workers []*latch.Worker
	for i := range 6 {
		workers = append(workers, join(t, []*latch.WaitGroup{one, other}[i%2]))
	}
	wantWorkers(t, one, 0, 6, 0)
	waits := []<-chan error{wait(t.Context(), one), wait(t.Context(), other), wait(t.Context(), other)}
	listenWaitGroup(t, s, "import", 2)
	for i, m := range workers {
		for _, w := range waits {
			if len(w) > 0 {
				t.Fatalf("one did not wait: %v", <-w)
			}
		}
		kindtest.MustUnlock(t, m)
		if err := m.Unlock(t.Context()); !errors.Is(err, lock.ErrNotHeld) || errors.Is(err, lock.ErrLost) {
			t.Errorf("twice: %v", err)
		}
		wantWorkers(t, one, i+1, 5-i, 0)
	}
	for _, w := range waits {
		if err := result(t, w); err != nil {
			t.Error(err)
		}
	}
	if err := one.Wait(t.Context()); err != nil {
		t.Errorf("late: %v", err)
	}
	if got := kindtest.Keys(t, s); !slices.Equal(got, []string{"leasehold_crew:{import}"}) {
		t.Errorf("left: %q", got)
	}
	if left := kindtest.Number(s.Do(t, "PTTL", "leasehold_crew:{import}")); left < time.Hour.Milliseconds() {
		t.Errorf("its TTL is %d ms", left)
	}
	if err := other.Delete(t.Context()); err != nil {
		t.Error(err)
	}
	kindtest.WantEmpty(t, s)
	if err := one.Wait(t.Context()); !errors.Is(err, latch.ErrNotInitialized) {
		t.Errorf("deleted: %v", err)
	}
}

// WaitFor waits for workers that have not been added yet, even if the existing ones are done.
func TestWaitGroup_waitFor(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t)).NewWaitGroup("import")
	done := make(chan error, 1)
	go func() { done <- c.WaitFor(t.Context(), 3) }()
	listenWaitGroup(t, s, "import", 1)
	for range 3 {
		if len(done) > 0 {
			t.Fatalf("it did not wait: %v", <-done)
		}
		kindtest.MustUnlock(t, join(t, c))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := c.WaitFor(ctx, 4); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a fourth worker was not added: %v", err)
	}
	if err := result(t, done); err != nil {
		t.Error(err)
	}
}

// A worker that dies is lost, and is reported with its host. It is never done, even if it comes back.
func TestWaitGroup_lost(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	dead := kindtest.NewRegistered(t, s.Client(t, redistest.Via(p)), append([]client.Option{client.WithName("importer")}, kindtest.Fast...)...)
	c := kindtest.NewRegistered(t, s.Client(t), kindtest.Fast...)
	waitGroup := c.NewWaitGroup("import")
	alive := join(t, waitGroup)
	lost := join(t, dead.NewWaitGroup("import"))
	kindtest.WaitFor(t, "it is known", func() bool {
		state := wantWorkers(t, waitGroup, 0, 2, 0)
		return slices.ContainsFunc(state.Alive, func(h lock.Holder) bool { return h.Client.Name == "importer" })
	})
	w := wait(t.Context(), waitGroup)
	listenWaitGroup(t, s, "import", 1)
	p.Freeze(true)
	err := result(t, w)
	var e *latch.LostError
	var named *lock.Error
	if !errors.Is(err, latch.ErrWorkerLost) || !errors.As(err, &e) || !errors.As(err, &named) || named.Op != "wait" || named.Name != "import" {
		t.Fatalf("%v", err)
	}
	if e.Lost != 1 || len(e.Workers) != 1 || e.Workers[0].Owner != lost.Owner() || e.Workers[0].Client.Name != "importer" || e.Workers[0].Since.IsZero() || strings.Contains(err.Error(), lost.Owner()) {
		t.Errorf("%+v: %v", e, err)
	}
	if lost.Err() == nil || alive.Err() != nil {
		t.Errorf("it acts as a worker: %v; the other one: %v", lost.Err(), alive.Err())
	}
	p.Freeze(false)
	if err := lost.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
		t.Errorf("a lost worker is done: %v", err)
	}
	wantWorkers(t, waitGroup, 0, 1, 1)
	kindtest.MustUnlock(t, alive)
	if err := waitGroup.Wait(t.Context()); !errors.Is(err, latch.ErrWorkerLost) {
		t.Errorf("%v", err)
	}

	// Another worker does its part.
	again := join(t, waitGroup)
	if n, err := waitGroup.Dismiss(t.Context(), append(e.Workers, lock.Holder{Owner: again.Owner()}, lock.Holder{Owner: "nobody"})...); n != 1 || err != nil {
		t.Errorf("%d dismissed, %v", n, err)
	}
	w = wait(t.Context(), waitGroup)
	kindtest.MustUnlock(t, again)
	if err := result(t, w); err != nil {
		t.Error(err)
	}
	wantWorkers(t, waitGroup, 2, 0, 0)
}

// If all workers were dismissed, nothing is done: waits in progress and later waits report that. WaitFor waits for
// other workers.
func TestWaitGroup_dismissed(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	sees := kindtest.NewClient(t, s.Client(t, redistest.Via(p))).NewWaitGroup("import")
	c := kindtest.NewClient(t, s.Client(t)).NewWaitGroup("import")
	m := join(t, c)
	under := wait(t.Context(), sees)
	listenWaitGroup(t, s, "import", 1) // now it has seen the worker
	p.Freeze(true)                     // it detects the loss only after the dismissal
	s.Do(t, "PING")                    // the server has replied to a read in flight
	if err := m.Fail(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Dismiss(t.Context(), lock.Holder{Owner: m.Owner()}); n != 1 || err != nil {
		t.Fatalf("%d dismissed, %v", n, err)
	}
	p.Freeze(false)
	if err := result(t, under); !errors.Is(err, latch.ErrNotInitialized) {
		t.Errorf("a wait in progress: %v", err)
	}
	if err := c.Wait(t.Context()); !errors.Is(err, latch.ErrNotInitialized) {
		t.Errorf("a later wait: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := c.WaitFor(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("another worker was not added: %v", err)
	}
	kindtest.MustUnlock(t, join(t, c))
	if err := c.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

const thirteenHours = "46800000" // in ms

// wantStored fails the test unless late callers find the wait group "import" for a day.
func wantStored(t *testing.T, s *redistest.Server) {
	t.Helper()
	if left := kindtest.Number(s.Do(t, "PTTL", "leasehold_crew:{import}")); left < (24*time.Hour - time.Minute).Milliseconds() {
		t.Errorf("the TTL is %d ms", left)
	}
}

// A wait group is stored for a day after each change.
func TestWaitGroup_storedForADay(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t)).NewWaitGroup("import")
	m := join(t, c)
	for _, change := range []func(){
		func() { m = join(t, c) },
		func() { kindtest.MustUnlock(t, m) },
	} {
		s.Do(t, "PEXPIRE", "leasehold_crew:{import}", thirteenHours)
		change()
		wantStored(t, s)
	}
}

// Workers are renewed, and so is the key of a wait group after more than a day.
func TestWaitGroup_renewed(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t), kindtest.Fast...).NewWaitGroup("import")
	m := join(t, c)
	first := m.Until()
	s.Do(t, "PEXPIRE", "leasehold_crew:{import}", thirteenHours)
	kindtest.WaitFor(t, "it is renewed", func() bool { return m.Until().After(first.Add(kindtest.WatchdogTimeout)) })
	wantStored(t, s)
	wantWorkers(t, c, 0, 1, 0)
	kindtest.MustUnlock(t, m)
}

// A worker that fails is lost immediately, and so are the workers of a closed client.
func TestWaitGroup_fails(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	waitGroup := kindtest.NewClient(t, s.Client(t)).NewWaitGroup("import")
	own := errors.New("disk full")
	for what, end := range map[string]func(c *client.Client, name string){
		"fails": func(c *client.Client, name string) {
			if err := c.NewWaitGroup(name).Do(t.Context(), func(context.Context) error { return own }); !errors.Is(err, own) {
				t.Errorf("%v", err)
			}
		},
		"panics": func(c *client.Client, name string) {
			defer func() {
				if r := recover(); r != "oops" {
					t.Errorf("the panic is %v", r)
				}
			}()
			_ = c.NewWaitGroup(name).Do(t.Context(), func(context.Context) error { panic("oops") })
		},
		"closes": func(c *client.Client, name string) {
			m := join(t, c.NewWaitGroup(name))
			if err := c.Close(t.Context()); err != nil || !errors.Is(m.Err(), lock.ErrClosed) {
				t.Errorf("%v, %v", err, m.Err())
			}
		},
	} {
		c, err := client.New(s.Client(t), client.WithoutRegistry())
		if err != nil {
			t.Fatal(err)
		}
		waitGroup = kindtest.NewClient(t, s.Client(t)).NewWaitGroup(what)
		alive := join(t, waitGroup)
		w := wait(t.Context(), waitGroup)
		listenWaitGroup(t, s, what, 1)
		end(c, what)
		if err := result(t, w); !errors.Is(err, latch.ErrWorkerLost) {
			t.Errorf("%s: %v", what, err)
		}
		wantWorkers(t, waitGroup, 0, 1, 1)
		kindtest.MustUnlock(t, alive)
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := waitGroup.Do(t.Context(), func(ctx context.Context) error {
		wantWorkers(t, waitGroup, 1, 1, 1)
		return ctx.Err()
	}); err != nil {
		t.Error(err)
	}
	wantWorkers(t, waitGroup, 2, 0, 1)
}

// The first result of a worker counts, even if Redis receives it late and the caller reports another one in the
// meantime.
func TestWaitGroup_reportsOnce(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for what, c := range map[string]struct {
		first, then func(*latch.Worker, context.Context) error
		done, lost  int
	}{
		"fails":   {(*latch.Worker).Fail, (*latch.Worker).Unlock, 0, 1}, // as with a deferred Unlock
		"is done": {(*latch.Worker).Unlock, (*latch.Worker).Unlock, 1, 0},
	} {
		p := redistest.NewProxy(t, s.Addr())
		waitGroup := kindtest.NewClient(t, s.Client(t, redistest.Via(p)), client.WithOpTimeout(kindtest.OpTimeout)).NewWaitGroup(what)
		sees := kindtest.NewClient(t, s.Client(t)).NewWaitGroup(what)
		m := join(t, waitGroup)
		p.Refuse(true)
		p.CutAll()
		if err := c.first(m, t.Context()); !errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrNotHeld) {
			t.Errorf("%s: %v", what, err)
		}
		if err := c.then(m, t.Context()); !errors.Is(err, lock.ErrNotHeld) {
			t.Errorf("%s, and then: %v", what, err)
		}
		p.Refuse(false)
		kindtest.WaitFor(t, "the command is executed", func() bool {
			state, err := sees.Inspect(t.Context())
			return err == nil && len(state.Alive) == 0
		})
		wantWorkers(t, sees, c.done, 0, c.lost)
	}
}

// hookedHold is a hold whose Unlock first calls a function, one for each call.
type hookedHold struct {
	lock.Hold
	hooks []func()
}

func (h *hookedHold) Unlock(ctx context.Context) error {
	hook := h.hooks[0]
	h.hooks = h.hooks[1:]
	hook()
	return h.Hold.Unlock(ctx)
}

// If two goroutines report different results at the same time, the one that succeeds is the result of the worker.
func TestWaitGroup_reportsTwiceAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waitGroup := locktest.NewServer(t).Client(t).NewWaitGroup("import")
		m := join(t, waitGroup)
		done, h := make(chan error, 1), m.Hold
		m.Hold = &hookedHold{h, []func(){
			func() { // called by Fail
				go func() { done <- m.Done(t.Context()) }()
				synctest.Wait()
			},
			func() { // called by Done if it gets that far; Fail has ended before
				time.Sleep(time.Second)
				m.Hold = h
			},
		}}
		if err := m.Fail(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-done; !errors.Is(err, lock.ErrNotHeld) || !strings.HasPrefix(err.Error(), "leasehold: done ") {
			t.Errorf("it reports a different result: %v", err)
		}
		wantWorkers(t, waitGroup, 0, 0, 1)
	})
}

// The error of a report names the call.
func TestWorker_errorNamesTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waitGroup := locktest.NewServer(t).Client(t).NewWaitGroup("import")
		for op, report := range map[string]func(*latch.Worker, context.Context) error{"done": (*latch.Worker).Done, "fail": (*latch.Worker).Fail, "unlock": (*latch.Worker).Unlock} {
			m := join(t, waitGroup)
			kindtest.MustUnlock(t, m)
			var e *lock.Error
			if err := report(m, t.Context()); !errors.Is(err, lock.ErrNotHeld) || !errors.As(err, &e) || e.Op != op || e.Name != "import" {
				t.Errorf("%s: %v", op, err)
			}
		}
	})
}

// A nil context does not end the worker.
func TestWaitGroup_reportsWithoutContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waitGroup := locktest.NewServer(t).Client(t).NewWaitGroup("import")
		m := join(t, waitGroup)
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			var none context.Context
			_ = m.Done(none)
		}()
		if err := m.Fail(t.Context()); err != nil {
			t.Error(err)
		}
		wantWorkers(t, waitGroup, 0, 0, 1)
	})
}

// If a worker reports its end while Redis is unavailable, it becomes done or lost as reported, however long the outage is,
// provided that its lease lasts.
func TestWaitGroup_reportsInALongOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		waitGroup := s.Client(t).NewWaitGroup("import", lock.WithFixedLease(10*time.Minute))
		done, failed := join(t, waitGroup), join(t, waitGroup)
		s.Down()
		for _, end := range []func(context.Context) error{done.Done, failed.Fail} {
			if err := end(t.Context()); !errors.Is(err, lock.ErrUnavailable) {
				t.Error(err)
			}
		}
		time.Sleep(3 * time.Minute)
		s.Up()
		time.Sleep(time.Minute)
		wantWorkers(t, waitGroup, 1, 0, 1)
		time.Sleep(10 * time.Minute)
		if n := waitGroup.Known(); n != 0 {
			t.Errorf("%d are known after their leases", n)
		}
	})
}

// A worker that Close ends before Add returns has not started, so Add fails.
func TestWaitGroup_closedBeforeAddReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		sees := s.Client(t).NewWaitGroup("import")
		closed := make(chan error, 1)
		var c *client.Client
		c = s.Client(t, client.WithObserver(lock.Observer{Acquired: func(context.Context, lock.Event) {
			go func() { closed <- c.Close(context.Background()) }()
			waitFor(t, "Close has ended the worker", func() bool {
				state, err := sees.Inspect(t.Context())
				return err == nil && len(state.Alive) == 0
			})
		}}))
		if m, err := c.NewWaitGroup("import").Add(t.Context()); !errors.Is(err, lock.ErrClosed) || m != nil {
			t.Errorf("%v, %v", m, err)
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
		wantWorkers(t, sees, 0, 0, 0)
	})
}

// A caller whose context is canceled still reports the result of its worker, once: the cancellation alone ends no
// worker.
func TestWaitGroup_reportsAfterTheCancellation(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	waitGroup := kindtest.NewClient(t, s.Client(t)).NewWaitGroup("import")
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		m, err := waitGroup.Add(ctx)
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		kindtest.MustUnlock(t, m)
		if err := m.Fail(t.Context()); !errors.Is(err, lock.ErrNotHeld) {
			t.Errorf("it reports a different result: %v", err)
		}
	}
	wantWorkers(t, waitGroup, 2, 0, 0)
	ctx, cancel := context.WithCancel(t.Context())
	if err := waitGroup.Do(ctx, func(context.Context) error { cancel(); return nil }); err != nil {
		t.Error(err)
	}
	wantWorkers(t, waitGroup, 3, 0, 0)
	ctx, cancel = context.WithCancel(t.Context())
	if err := waitGroup.Do(ctx, func(ctx context.Context) error { cancel(); return ctx.Err() }); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	wantWorkers(t, waitGroup, 3, 0, 1)
}

// If the context of Do is canceled just after the grant, the function does not run, and there is no worker.
func TestWaitGroup_canceledDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := locktest.NewServer(t).Client(t, client.WithObserver(lock.Observer{Acquired: func(context.Context, lock.Event) { cancel() }}))
		waitGroup := c.NewWaitGroup("import")
		if err := waitGroup.Do(ctx, func(context.Context) error { t.Error("it runs"); return nil }); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		wantWorkers(t, waitGroup, 0, 0, 0)
	})
}

// A canceled Add leaves no worker, neither lost nor done, in each phase.
func TestWaitGroup_canceledAdd(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	c := kindtest.NewClient(t, s.Client(t, redistest.Via(p)))
	waitGroup, sees := c.NewWaitGroup("import"), kindtest.NewClient(t, s.Client(t)).NewWaitGroup("import")
	kindtest.MustUnlock(t, join(t, waitGroup)) // loads the scripts
	for _, phase := range []string{"request", "reply"} {
		held, commands := make(chan struct{}), make(chan struct{})
		act := redistest.Action{HoldRequest: held}
		if phase == "reply" {
			act = redistest.Action{HoldReply: held}
		}
		once := redistest.Once("EVALSHA", act)
		p.OnRequest(func(req [][]byte) redistest.Action {
			a := once(req)
			if a != (redistest.Action{}) {
				close(commands)
			}
			return a
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := waitGroup.Add(ctx)
			done <- err
		}()
		<-commands
		cancel()
		var e *lock.Error
		if err := result(t, done); !errors.Is(err, context.Canceled) || !errors.As(err, &e) || e.Op != "add" {
			t.Errorf("%s: %v", phase, err)
		}
		close(held)
		p.OnRequest(nil)
		kindtest.WaitFor(t, "it is reconciled", func() bool {
			state, err := sees.Inspect(t.Context())
			return err == nil && len(state.Alive) == 0
		})
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	wantWorkers(t, sees, 1, 0, 0)
	if err := sees.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

// A lost reply to any command has no effect.
func TestWaitGroup_lostReplies(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	rdb := s.Client(t, redistest.Via(p), func(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 })
	first, second := kindtest.NewClient(t, rdb), kindtest.NewClient(t, rdb)
	c := first.NewWaitGroup("import")
	kindtest.MustUnlock(t, join(t, c))
	lose := func() { p.OnRequest(redistest.Once("EVALSHA", redistest.Action{DropReply: true})) }
	for i := range 20 {
		lose()
		m := join(t, c)
		lose()
		wantWorkers(t, c, 1+i, 1, i)
		lose()
		kindtest.MustUnlock(t, m)
		failed := join(t, c)
		lose()
		if err := failed.Fail(t.Context()); err != nil {
			t.Error(err)
		}
		lose()
		wantWorkers(t, c, 2+i, 0, i+1)
	}
	lose()
	state, err := c.Inspect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	lose()
	if n, err := c.Dismiss(t.Context(), state.Lost...); n != 20 || err != nil {
		t.Errorf("%d dismissed, %v", n, err)
	}
	lose()
	if err := c.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	// If a reply took a second, the client later ensures that no delayed duplicate of the join remains. In a wait group
	// that was deleted in the meantime, it would leave a mark.
	if err := first.Close(t.Context()); err != nil {
		t.Error(err)
	}
	lose()
	if err := second.NewWaitGroup("import").Delete(t.Context()); err != nil {
		t.Error(err)
	}
	kindtest.WantEmpty(t, s)
}

// A wait that fails reports why.
func TestWaitGroup_ends(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t), kindtest.Fast...)
	for what, end := range map[string]func(waitGroup *latch.WaitGroup){
		"deleted": func(waitGroup *latch.WaitGroup) {
			if err := waitGroup.Delete(t.Context()); err != nil {
				t.Error(err)
			}
		},
		"anew": func(waitGroup *latch.WaitGroup) {
			if err := waitGroup.Delete(t.Context()); err != nil {
				t.Error(err)
			}
			join(t, waitGroup)
		},
		"gone": func(waitGroup *latch.WaitGroup) { s.Do(t, "DEL", "leasehold_crew:{"+waitGroup.Name()+"}") },
	} {
		waitGroup := c.NewWaitGroup(what)
		m := join(t, waitGroup)
		w := wait(t.Context(), waitGroup)
		listenWaitGroup(t, s, what, 1)
		end(waitGroup)
		if err := result(t, w); !errors.Is(err, latch.ErrDeleted) {
			t.Errorf("%s: %v", what, err)
		}
		kindtest.Lost(t, m)
	}
	ctx, cancel := context.WithCancel(t.Context())
	waitGroup := c.NewWaitGroup("canceled")
	m := join(t, waitGroup)
	w := wait(ctx, waitGroup)
	cancel()
	if err := result(t, w); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	kindtest.MustUnlock(t, m)
}

// While Redis is unavailable, workers are lost at the end of their leases, and a wait continues and then reports them.
func TestWaitGroup_pausedServer(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t), kindtest.Fast...)
	waitGroup := c.NewWaitGroup("import")
	patient := kindtest.NewClient(t, s.Client(t)).NewWaitGroup("import")
	m := join(t, waitGroup)
	w := wait(t.Context(), kindtest.NewClient(t, s.Client(t), kindtest.Fast...).NewWaitGroup("import"))
	listenWaitGroup(t, s, "import", 1)
	s.Freeze(t)
	<-m.Context().Done()
	if len(w) > 0 {
		t.Errorf("a wait ended: %v", <-w)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := patient.Add(ctx); errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrNotAcquired) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	s.Thaw(t)
	if err := result(t, w); !errors.Is(err, latch.ErrWorkerLost) {
		t.Errorf("%v", err)
	}
	kindtest.WaitFor(t, "the late worker is taken back", func() bool {
		state, err := waitGroup.Inspect(t.Context())
		return err == nil && len(state.Alive) == 0 && state.Done == 0 && len(state.Lost) == 1
	})
}

// While memory is full, no worker can be added; workers are renewed, fail, are dismissed and are done.
func TestWaitGroup_memoryFull(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	waitGroup := kindtest.NewClient(t, s.Client(t), kindtest.Fast...).NewWaitGroup("import")
	m, fails := join(t, waitGroup), join(t, waitGroup)
	s.Do(t, "CONFIG", "SET", "maxmemory", "100kb")
	ctx, cancel := context.WithCancel(t.Context())
	added := make(chan error, 1)
	go func() { _, err := waitGroup.Add(ctx); added <- err }()
	kindtest.AsksAgain(t, s)
	cancel()
	if err := <-added; !errors.Is(err, lock.ErrUnavailable) || !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "OOM") {
		t.Errorf("%v", err)
	}
	first := m.Until()
	kindtest.WaitFor(t, "it is renewed", func() bool { return m.Until().After(first.Add(kindtest.WatchdogTimeout)) || m.Err() != nil })
	if err := fails.Fail(t.Context()); err != nil {
		t.Error(err)
	}
	state := wantWorkers(t, waitGroup, 0, 1, 1)
	if n, err := waitGroup.Dismiss(t.Context(), state.Lost...); n != 1 || err != nil {
		t.Errorf("%d dismissed, %v", n, err)
	}
	kindtest.MustUnlock(t, m)
	if err := waitGroup.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

// A delayed duplicate of a join has no effect on a worker that was lost, failed or is done. A worker that no caller has
// received yet becomes alive when its own call gets through, even if its first lease expired in the meantime or it was
// dismissed.
func TestWaitGroup_lateCopy(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	rdb := s.Client(t, redistest.Via(p), func(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 })
	c := kindtest.NewClient(t, rdb, kindtest.Fast...)
	watch := kindtest.NewClient(t, s.Client(t), kindtest.Fast...)
	kindtest.MustUnlock(t, join(t, c.NewWaitGroup("first"))) // loads the scripts

	// A command for a lost worker can still be in flight.
	isFor := func(req [][]byte, waitGroup string) bool {
		return len(req) > 3 && string(req[0]) == "EVALSHA" && string(req[3]) == "leasehold_crew:{"+waitGroup+"}"
	}

	for what, end := range map[string]func(*latch.Worker) error{
		"lost": func(m *latch.Worker) error { // its client reports nothing else
			p.Refuse(true)
			p.CutAll()
			<-m.Context().Done()
			return nil
		},
		"failed": func(m *latch.Worker) error { return m.Fail(t.Context()) },
		"done":   func(m *latch.Worker) error { return m.Unlock(t.Context()) },
	} {
		var copied []string
		p.OnRequest(func(req [][]byte) redistest.Action {
			if copied == nil && isFor(req, what) {
				for _, part := range req {
					copied = append(copied, string(part))
				}
			}
			return redistest.Action{}
		})
		waitGroup, sees := c.NewWaitGroup(what, lock.WithFixedLease(kindtest.WatchdogTimeout/2)), watch.NewWaitGroup(what)
		m := join(t, waitGroup)
		p.OnRequest(nil)
		w := wait(t.Context(), sees)
		if err := end(m); err != nil {
			t.Error(err)
		}
		err := result(t, w)
		if what == "done" && err != nil || what != "done" && !errors.Is(err, latch.ErrWorkerLost) {
			t.Errorf("%s: %v", what, err)
		}
		stored := func() []rueidis.ZScore {
			reply := s.Do(t, "ZRANGE", "leasehold_crew:{"+what+"}", "0", "-1", "WITHSCORES")
			all, err := reply.AsZScores()
			if err != nil || len(all) != 2 {
				t.Fatalf("%s: %v, %v", what, all, err)
			}
			return all
		}
		before := stored()
		s.Do(t, copied...)
		if after := stored(); !slices.Equal(after, before) {
			t.Errorf("%s: a late copy makes %v of %v", what, after, before)
		}
		p.Refuse(false)
		_ = m.Unlock(t.Context())
	}

	for what, meanwhile := range map[string]func(sees *latch.WaitGroup){
		"gets through": func(*latch.WaitGroup) {},
		"is dismissed": func(sees *latch.WaitGroup) {
			state := wantWorkers(t, sees, 0, 0, 1)
			if n, err := sees.Dismiss(t.Context(), state.Lost...); n != 1 || err != nil {
				t.Errorf("%d dismissed, %v", n, err)
			}
		},
	} {
		waitGroup, sees := c.NewWaitGroup(what), watch.NewWaitGroup(what)
		p.OnRequest(func(req [][]byte) redistest.Action {
			if isFor(req, what) {
				p.Refuse(true)
				return redistest.Action{DropReply: true}
			}
			return redistest.Action{}
		})
		var m *latch.Worker
		joined := make(chan error, 1)
		go func() {
			var err error
			m, err = waitGroup.Add(t.Context())
			joined <- err
		}()
		kindtest.WaitFor(t, "its first lease has ended", func() bool {
			state, err := sees.Inspect(t.Context())
			return err == nil && len(state.Lost) == 1
		})
		meanwhile(sees)
		p.OnRequest(nil)
		p.Refuse(false)
		if err := result(t, joined); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		wantWorkers(t, sees, 0, 1, 0)
		kindtest.MustUnlock(t, m)
		if err := sees.Wait(t.Context()); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Many workers join and leave concurrently; the last one ends the wait.
func TestWaitGroup_many(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	const n = 2000
	waitGroup := kindtest.NewClient(t, s.Client(t)).NewWaitGroup("import")
	first := join(t, waitGroup)
	w := wait(t.Context(), waitGroup)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range n / 50 {
				m, err := waitGroup.Add(t.Context())
				if err == nil {
					err = m.Unlock(t.Context())
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	wantWorkers(t, waitGroup, n, 1, 0)
	if len(w) > 0 {
		t.Fatalf("it did not wait: %v", <-w)
	}
	kindtest.MustUnlock(t, first)
	if err := result(t, w); err != nil {
		t.Error(err)
	}
}

// Invalid input is an error that names the operation and the wait group.
func TestWaitGroup_badInput(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t))
	s.Do(t, "SET", "leasehold_crew:{foreign}", "x")
	good := c.NewWaitGroup("good")
	for what, bad := range map[string]struct {
		op, name string
		call     func() error
		match    error
		text     string
	}{
		"nobody":             {"wait", "good", func() error { return good.Wait(t.Context()) }, latch.ErrNotInitialized, ""},
		"for none":           {"wait for", "good", func() error { return good.WaitFor(t.Context(), 0) }, nil, "0 workers"},
		"for fewer":          {"wait for", "good", func() error { return good.WaitFor(t.Context(), -1) }, nil, "-1 workers"},
		"no name":            {"add", "", func() error { _, err := c.NewWaitGroup("").Add(t.Context()); return err }, lock.ErrBadName, "empty"},
		"half a brace":       {"add", "x{", func() error { _, err := c.NewWaitGroup("x{").Add(t.Context()); return err }, lock.ErrBadName, "without a }"},
		"a wait group's key": {"wait", "leasehold_crew:x", func() error { return c.NewWaitGroup("leasehold_crew:x").Wait(t.Context()) }, lock.ErrBadName, "reserved for the state of other locks"},
		"fencing":            {"add", "x", func() error { _, err := c.NewWaitGroup("x", lock.WithFencing()).Add(t.Context()); return err }, nil, "not supported by"},
		"a bad option":       {"wait", "x", func() error { return c.NewWaitGroup("x", lock.WithFixedLease(1)).Wait(t.Context()) }, nil, "WithFixedLease"},
		"foreign":            {"add", "foreign", func() error { _, err := c.NewWaitGroup("foreign").Add(t.Context()); return err }, lock.ErrWrongType, ""},
		"foreign wait":       {"wait", "foreign", func() error { return c.NewWaitGroup("foreign").Wait(t.Context()) }, lock.ErrWrongType, ""},
		"wrong type, look":   {"inspect", "foreign", func() error { _, err := c.NewWaitGroup("foreign").Inspect(t.Context()); return err }, lock.ErrWrongType, ""},
		"foreign del":        {"delete", "foreign", func() error { return c.NewWaitGroup("foreign").Delete(t.Context()) }, lock.ErrWrongType, ""},
		"foreign dis": {"dismiss", "foreign", func() error {
			_, err := c.NewWaitGroup("foreign").Dismiss(t.Context(), lock.Holder{Owner: "a"})
			return err
		}, lock.ErrWrongType, ""},
	} {
		err := bad.call()
		var e *lock.Error
		if !errors.As(err, &e) || e.Op != bad.op || e.Name != bad.name || bad.match != nil && !errors.Is(err, bad.match) || !strings.Contains(err.Error(), bad.text) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if got := kindtest.Keys(t, s); !slices.Equal(got, []string{"leasehold_crew:{foreign}"}) {
		t.Errorf("keys: %q", got)
	}
}

// The permissions listed in docs/operate/security.md suffice for all operations of a wait group, and none is
// superfluous.
func TestWaitGroup_rights(t *testing.T) {
	t.Parallel()
	withEach(t, "NewWaitGroup", func(t *testing.T, s *redistest.Server, a, b *client.Client) {
		for _, name := range []string{"x", "{x}"} {
			waitGroup := a.NewWaitGroup(name)
			m, err := waitGroup.Add(t.Context())
			if err != nil {
				continue
			}
			ctx, cancel := context.WithTimeout(t.Context(), kindtest.OpTimeout)
			w := wait(ctx, b.NewWaitGroup(name))
			kindtest.WaitFor(t, "it listens, is denied, or has an error", func() bool {
				return len(kindtest.Channels(t, s, "*")) > 0 || len(w) > 0 || ctx.Err() != nil
			})
			first := m.Until()
			kindtest.WaitFor(t, "it is renewed, or has ended", func() bool { return m.Until().After(first) || m.Err() != nil })
			_ = m.Fail(t.Context())
			_ = result(t, w)
			cancel()
			state, _ := waitGroup.Inspect(t.Context())
			_, _ = waitGroup.Dismiss(t.Context(), state.Lost...)
			_ = waitGroup.Delete(t.Context())
		}
	})
}

// The context of a worker is canceled, and it continues for ten minutes. It counts as alive until it returns, and then
// is done.
func TestWaitGroup_doAfterTheCancellation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		waitGroup, other := s.Client(t).NewWaitGroup("import"), s.Client(t).NewWaitGroup("import")
		ctx, cancel := context.WithCancel(t.Context())
		if err := waitGroup.Do(ctx, func(ctx context.Context) error {
			cancel()
			<-ctx.Done()
			time.Sleep(10 * time.Minute)
			if err := lock.HoldFromContext(ctx).Err(); err != nil {
				t.Error(err)
			}
			wantWorkers(t, other, 0, 1, 0)
			return nil
		}); err != nil {
			t.Error(err)
		}
		wantWorkers(t, other, 1, 0, 0)
	})
}

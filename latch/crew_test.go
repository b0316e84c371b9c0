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

// join makes a member.
func join(t testing.TB, c *latch.Crew) *latch.Member {
	t.Helper()
	m, err := c.Join(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// crewStands fails unless c has so many members: done, alive, lost.
func crewStands(t testing.TB, c *latch.Crew, done, alive, lost int) latch.CrewState {
	t.Helper()
	s, err := c.Inspect(t.Context())
	if err != nil || s.Done != done || len(s.Alive) != alive || len(s.Lost) != lost || len(s.Left) != alive {
		t.Errorf("%+v, %v, want %d done, %d alive, %d lost", s, err, done, alive, lost)
	}
	return s
}

// listenCrew waits until n clients of the server listen for the crew.
func listenCrew(t testing.TB, s *redistest.Server, name string, n int64) {
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

// Members of two clients work, and callers of both wait until the last one is done.
func TestCrew(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a, b := kindtest.NewClient(t, s.Client(t)), kindtest.NewClient(t, s.Client(t))
	one, other := a.NewCrew("import"), b.NewCrew("import")
	var members []*latch.Member
	for i := range 6 {
		members = append(members, join(t, []*latch.Crew{one, other}[i%2]))
	}
	crewStands(t, one, 0, 6, 0)
	waits := []<-chan error{wait(t.Context(), one), wait(t.Context(), other), wait(t.Context(), other)}
	listenCrew(t, s, "import", 2)
	for i, m := range members {
		for _, w := range waits {
			if len(w) > 0 {
				t.Fatalf("one did not wait: %v", <-w)
			}
		}
		kindtest.MustUnlock(t, m)
		if err := m.Unlock(t.Context()); !errors.Is(err, lock.ErrNotHeld) || errors.Is(err, lock.ErrLost) {
			t.Errorf("twice: %v", err)
		}
		crewStands(t, one, i+1, 5-i, 0)
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
		t.Errorf("what stays: %q", got)
	}
	if left := kindtest.Number(s.Do(t, "PTTL", "leasehold_crew:{import}")); left < time.Hour.Milliseconds() {
		t.Errorf("it stays for %d ms", left)
	}
	if err := other.Delete(t.Context()); err != nil {
		t.Error(err)
	}
	kindtest.WantEmpty(t, s)
	if err := one.Wait(t.Context()); !errors.Is(err, latch.ErrNotInitialised) {
		t.Errorf("deleted: %v", err)
	}
}

// WaitFor waits for members that have not come yet, also if those that came are done.
func TestCrew_waitFor(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t)).NewCrew("import")
	done := make(chan error, 1)
	go func() { done <- c.WaitFor(t.Context(), 3) }()
	listenCrew(t, s, "import", 1)
	for range 3 {
		if len(done) > 0 {
			t.Fatalf("it did not wait: %v", <-done)
		}
		kindtest.MustUnlock(t, join(t, c))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := c.WaitFor(ctx, 4); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a fourth never came: %v", err)
	}
	if err := result(t, done); err != nil {
		t.Error(err)
	}
}

// A member that dies is lost, and named with its host. It is never done, also when it comes back.
func TestCrew_lost(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	dead := kindtest.NewRegistered(t, s.Client(t, redistest.Via(p)), append([]client.Option{client.WithName("importer")}, kindtest.Fast...)...)
	c := kindtest.NewRegistered(t, s.Client(t), kindtest.Fast...)
	crew := c.NewCrew("import")
	alive := join(t, crew)
	lost := join(t, dead.NewCrew("import"))
	kindtest.WaitFor(t, "it is known", func() bool {
		state := crewStands(t, crew, 0, 2, 0)
		return slices.ContainsFunc(state.Alive, func(h lock.Holder) bool { return h.Client.Name == "importer" })
	})
	w := wait(t.Context(), crew)
	listenCrew(t, s, "import", 1)
	p.Freeze(true)
	err := result(t, w)
	var e *latch.LostError
	var named *lock.Error
	if !errors.Is(err, latch.ErrMemberLost) || !errors.As(err, &e) || !errors.As(err, &named) || named.Op != "wait" || named.Name != "import" {
		t.Fatalf("%v", err)
	}
	if e.Lost != 1 || len(e.Members) != 1 || e.Members[0].Owner != lost.Owner() || e.Members[0].Client.Name != "importer" || e.Members[0].Since.IsZero() || strings.Contains(err.Error(), lost.Owner()) {
		t.Errorf("%+v: %v", e, err)
	}
	if lost.Err() == nil || alive.Err() != nil {
		t.Errorf("it believes to be a member: %v; the other one: %v", lost.Err(), alive.Err())
	}
	p.Freeze(false)
	if err := lost.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
		t.Errorf("a lost member is done: %v", err)
	}
	crewStands(t, crew, 0, 1, 1)
	kindtest.MustUnlock(t, alive)
	if err := crew.Wait(t.Context()); !errors.Is(err, latch.ErrMemberLost) {
		t.Errorf("%v", err)
	}

	// Another one does its part.
	again := join(t, crew)
	if n, err := crew.Dismiss(t.Context(), append(e.Members, lock.Holder{Owner: again.Owner()}, lock.Holder{Owner: "nobody"})...); n != 1 || err != nil {
		t.Errorf("%d dismissed, %v", n, err)
	}
	w = wait(t.Context(), crew)
	kindtest.MustUnlock(t, again)
	if err := result(t, w); err != nil {
		t.Error(err)
	}
	crewStands(t, crew, 2, 0, 0)
}

// If all members were dismissed, nobody has done anything: a wait that was under way says so, as does one that comes then. WaitFor waits for others.
func TestCrew_dismissed(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	sees := kindtest.NewClient(t, s.Client(t, redistest.Via(p))).NewCrew("import")
	c := kindtest.NewClient(t, s.Client(t)).NewCrew("import")
	m := join(t, c)
	under := wait(t.Context(), sees)
	listenCrew(t, s, "import", 1) // now it has seen the member
	p.Freeze(true)                // it sees the loss only when it is over
	s.Do(t, "PING")               // the server has answered a look that was under way
	if err := m.Fail(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Dismiss(t.Context(), lock.Holder{Owner: m.Owner()}); n != 1 || err != nil {
		t.Fatalf("%d dismissed, %v", n, err)
	}
	p.Freeze(false)
	if err := result(t, under); !errors.Is(err, latch.ErrNotInitialised) {
		t.Errorf("a wait that was under way: %v", err)
	}
	if err := c.Wait(t.Context()); !errors.Is(err, latch.ErrNotInitialised) {
		t.Errorf("a wait that comes later: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := c.WaitFor(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("another one never came: %v", err)
	}
	kindtest.MustUnlock(t, join(t, c))
	if err := c.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

// Members are renewed, and so is the key of a crew that outlives its day.
func TestCrew_renewed(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t), kindtest.Fast...).NewCrew("import")
	m := join(t, c)
	first := m.Until()
	s.Do(t, "PEXPIRE", "leasehold_crew:{import}", "6000")
	kindtest.WaitFor(t, "it is renewed", func() bool { return m.Until().After(first.Add(kindtest.WatchdogTimeout)) })
	if left := kindtest.Number(s.Do(t, "PTTL", "leasehold_crew:{import}")); left < time.Hour.Milliseconds() { // or those who come late find no crew
		t.Errorf("the key lives for %d ms", left)
	}
	crewStands(t, c, 0, 1, 0)
	kindtest.MustUnlock(t, m)
}

// A member that fails is lost at once, and so are those of a client that is closed.
func TestCrew_fails(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	crew := kindtest.NewClient(t, s.Client(t)).NewCrew("import")
	own := errors.New("disk full")
	for what, end := range map[string]func(c *client.Client, name string){
		"fails": func(c *client.Client, name string) {
			if err := c.NewCrew(name).Do(t.Context(), func(context.Context) error { return own }); !errors.Is(err, own) {
				t.Errorf("%v", err)
			}
		},
		"panics": func(c *client.Client, name string) {
			defer func() {
				if r := recover(); r != "oops" {
					t.Errorf("the panic is %v", r)
				}
			}()
			_ = c.NewCrew(name).Do(t.Context(), func(context.Context) error { panic("oops") })
		},
		"closes": func(c *client.Client, name string) {
			m := join(t, c.NewCrew(name))
			if err := c.Close(t.Context()); err != nil || !errors.Is(m.Err(), lock.ErrClosed) {
				t.Errorf("%v, %v", err, m.Err())
			}
		},
	} {
		c, err := client.New(s.Client(t), client.WithoutRegistry())
		if err != nil {
			t.Fatal(err)
		}
		crew = kindtest.NewClient(t, s.Client(t)).NewCrew(what)
		alive := join(t, crew)
		w := wait(t.Context(), crew)
		listenCrew(t, s, what, 1)
		end(c, what)
		if err := result(t, w); !errors.Is(err, latch.ErrMemberLost) {
			t.Errorf("%s: %v", what, err)
		}
		crewStands(t, crew, 0, 1, 1)
		kindtest.MustUnlock(t, alive)
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := crew.Do(t.Context(), func(ctx context.Context) error {
		crewStands(t, crew, 1, 1, 1)
		return ctx.Err()
	}); err != nil {
		t.Error(err)
	}
	crewStands(t, crew, 2, 0, 1)
}

// What a member said first counts, although Redis hears of it late, and the caller says more meanwhile.
func TestCrew_saysOnce(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for what, c := range map[string]struct {
		first, then func(*latch.Member, context.Context) error
		done, lost  int
	}{
		"fails":   {(*latch.Member).Fail, (*latch.Member).Unlock, 0, 1}, // as with a deferred Unlock
		"is done": {(*latch.Member).Unlock, (*latch.Member).Unlock, 1, 0},
	} {
		p := redistest.NewProxy(t, s.Addr())
		crew := kindtest.NewClient(t, s.Client(t, redistest.Via(p)), client.WithOpTimeout(kindtest.OpTimeout)).NewCrew(what)
		sees := kindtest.NewClient(t, s.Client(t)).NewCrew(what)
		m := join(t, crew)
		p.Refuse(true)
		p.CutAll()
		if err := c.first(m, t.Context()); !errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrNotHeld) {
			t.Errorf("%s: %v", what, err)
		}
		if err := c.then(m, t.Context()); !errors.Is(err, lock.ErrNotHeld) {
			t.Errorf("%s, and then: %v", what, err)
		}
		p.Refuse(false)
		kindtest.WaitFor(t, "Redis hears of it", func() bool {
			state, err := sees.Inspect(t.Context())
			return err == nil && len(state.Alive) == 0
		})
		crewStands(t, sees, c.done, 0, c.lost)
	}
}

// A caller whose context has ended says what its member leaves behind all the same, once: the context alone ends no member.
func TestCrew_saysAfterItsContext(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	crew := kindtest.NewClient(t, s.Client(t)).NewCrew("import")
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		m, err := crew.Join(ctx)
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		kindtest.MustUnlock(t, m)
		if err := m.Fail(t.Context()); !errors.Is(err, lock.ErrNotHeld) {
			t.Errorf("it says something else: %v", err)
		}
	}
	crewStands(t, crew, 2, 0, 0)
	ctx, cancel := context.WithCancel(t.Context())
	if err := crew.Do(ctx, func(context.Context) error { cancel(); return nil }); err != nil {
		t.Error(err)
	}
	crewStands(t, crew, 3, 0, 0)
	ctx, cancel = context.WithCancel(t.Context())
	if err := crew.Do(ctx, func(ctx context.Context) error { cancel(); return ctx.Err() }); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	crewStands(t, crew, 3, 0, 1)
}

// A call of Join that is cancelled leaves no member, neither a lost one nor one that is done, in each phase.
func TestCrew_cancelledJoin(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	c := kindtest.NewClient(t, s.Client(t, redistest.Via(p)))
	crew, sees := c.NewCrew("import"), kindtest.NewClient(t, s.Client(t)).NewCrew("import")
	kindtest.MustUnlock(t, join(t, crew)) // now the server knows the scripts
	for _, phase := range []string{"request", "reply"} {
		held, asked := make(chan struct{}), make(chan struct{})
		act := redistest.Action{HoldRequest: held}
		if phase == "reply" {
			act = redistest.Action{HoldReply: held}
		}
		once := redistest.Once("EVALSHA", act)
		p.OnRequest(func(req [][]byte) redistest.Action {
			a := once(req)
			if a != (redistest.Action{}) {
				close(asked)
			}
			return a
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := crew.Join(ctx)
			done <- err
		}()
		<-asked
		cancel()
		var e *lock.Error
		if err := result(t, done); !errors.Is(err, context.Canceled) || !errors.As(err, &e) || e.Op != "join" {
			t.Errorf("%s: %v", phase, err)
		}
		close(held)
		p.OnRequest(nil)
		kindtest.WaitFor(t, "it is settled", func() bool {
			state, err := sees.Inspect(t.Context())
			return err == nil && len(state.Alive) == 0
		})
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	crewStands(t, sees, 1, 0, 0)
	if err := sees.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

// A lost answer costs nothing, whichever command it is of.
func TestCrew_lostReplies(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	rdb := s.Client(t, redistest.Via(p), func(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 })
	first, second := kindtest.NewClient(t, rdb), kindtest.NewClient(t, rdb)
	c := first.NewCrew("import")
	kindtest.MustUnlock(t, join(t, c))
	lose := func() { p.OnRequest(redistest.Once("EVALSHA", redistest.Action{DropReply: true})) }
	for i := range 20 {
		lose()
		m := join(t, c)
		lose()
		crewStands(t, c, 1+i, 1, i)
		lose()
		kindtest.MustUnlock(t, m)
		failed := join(t, c)
		lose()
		if err := failed.Fail(t.Context()); err != nil {
			t.Error(err)
		}
		lose()
		crewStands(t, c, 2+i, 0, i+1)
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
	// Where an answer took a second, the client sees to it later that no copy of a Join comes. In a crew that was deleted
	// meanwhile, that would leave a mark.
	if err := first.Close(t.Context()); err != nil {
		t.Error(err)
	}
	lose()
	if err := second.NewCrew("import").Delete(t.Context()); err != nil {
		t.Error(err)
	}
	kindtest.WantEmpty(t, s)
}

// A wait that ends without all being done says why.
func TestCrew_ends(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t), kindtest.Fast...)
	for what, end := range map[string]func(crew *latch.Crew){
		"deleted": func(crew *latch.Crew) {
			if err := crew.Delete(t.Context()); err != nil {
				t.Error(err)
			}
		},
		"anew": func(crew *latch.Crew) {
			if err := crew.Delete(t.Context()); err != nil {
				t.Error(err)
			}
			join(t, crew)
		},
		"gone": func(crew *latch.Crew) { s.Do(t, "DEL", "leasehold_crew:{"+crew.Name()+"}") },
	} {
		crew := c.NewCrew(what)
		m := join(t, crew)
		w := wait(t.Context(), crew)
		listenCrew(t, s, what, 1)
		end(crew)
		if err := result(t, w); !errors.Is(err, latch.ErrDeleted) {
			t.Errorf("%s: %v", what, err)
		}
		kindtest.Lost(t, m)
	}
	ctx, cancel := context.WithCancel(t.Context())
	crew := c.NewCrew("cancelled")
	m := join(t, crew)
	w := wait(ctx, crew)
	cancel()
	if err := result(t, w); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	kindtest.MustUnlock(t, m)
}

// Without an answer from Redis members are told at the end of their leases, and a wait goes on, and then names them.
func TestCrew_frozenServer(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t), kindtest.Fast...)
	crew := c.NewCrew("import")
	m := join(t, crew)
	w := wait(t.Context(), kindtest.NewClient(t, s.Client(t), kindtest.Fast...).NewCrew("import"))
	listenCrew(t, s, "import", 1)
	s.Freeze(t)
	<-m.Context().Done()
	if len(w) > 0 {
		t.Errorf("a wait ended: %v", <-w)
	}
	ctx, cancel := context.WithTimeout(t.Context(), kindtest.OpTimeout/2)
	defer cancel()
	if _, err := crew.Join(ctx); errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrNotAcquired) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	s.Thaw(t)
	if err := result(t, w); !errors.Is(err, latch.ErrMemberLost) {
		t.Errorf("%v", err)
	}
	kindtest.WaitFor(t, "the late member is taken back", func() bool {
		state, err := crew.Inspect(t.Context())
		return err == nil && len(state.Alive) == 0 && state.Done == 0 && len(state.Lost) == 1
	})
}

// While memory is full, nobody joins; members are renewed, fail, are dismissed and are done.
func TestCrew_memoryFull(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	crew := kindtest.NewClient(t, s.Client(t), kindtest.Fast...).NewCrew("import")
	m, fails := join(t, crew), join(t, crew)
	s.Do(t, "CONFIG", "SET", "maxmemory", "100kb")
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := crew.Join(ctx); !errors.Is(err, lock.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "OOM") {
		t.Errorf("%v", err)
	}
	first := m.Until()
	kindtest.WaitFor(t, "it is renewed", func() bool { return m.Until().After(first.Add(kindtest.WatchdogTimeout)) || m.Err() != nil })
	if err := fails.Fail(t.Context()); err != nil {
		t.Error(err)
	}
	state := crewStands(t, crew, 0, 1, 1)
	if n, err := crew.Dismiss(t.Context(), state.Lost...); n != 1 || err != nil {
		t.Errorf("%d dismissed, %v", n, err)
	}
	kindtest.MustUnlock(t, m)
	if err := crew.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

// A copy of a joining that comes late changes nothing: a member that was lost, failed or is done stays so. One that no caller has had yet becomes a
// member when the call that asks for it comes through, also if its first lease ended meanwhile, or it was dismissed.
func TestCrew_lateCopy(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	rdb := s.Client(t, redistest.Via(p), func(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 })
	c := kindtest.NewClient(t, rdb, kindtest.Fast...)
	watch := kindtest.NewClient(t, s.Client(t), kindtest.Fast...)
	kindtest.MustUnlock(t, join(t, c.NewCrew("first"))) // now the server knows the scripts

	// A command for a member that was lost can still be on its way.
	isFor := func(req [][]byte, crew string) bool {
		return len(req) > 3 && string(req[0]) == "EVALSHA" && string(req[3]) == "leasehold_crew:{"+crew+"}"
	}

	for what, end := range map[string]func(*latch.Member) error{
		"lost": func(m *latch.Member) error { // and its client says nothing more
			p.Refuse(true)
			p.CutAll()
			<-m.Context().Done()
			return nil
		},
		"failed": func(m *latch.Member) error { return m.Fail(t.Context()) },
		"done":   func(m *latch.Member) error { return m.Unlock(t.Context()) },
	} {
		var copied []string
		p.OnRequest(func(req [][]byte) redistest.Action {
			if copied == nil && isFor(req, what) {
				for _, word := range req {
					copied = append(copied, string(word))
				}
			}
			return redistest.Action{}
		})
		crew, sees := c.NewCrew(what, lock.WithFixedLease(kindtest.WatchdogTimeout/2)), watch.NewCrew(what)
		m := join(t, crew)
		p.OnRequest(nil)
		w := wait(t.Context(), sees)
		if err := end(m); err != nil {
			t.Error(err)
		}
		err := result(t, w)
		if what == "done" && err != nil || what != "done" && !errors.Is(err, latch.ErrMemberLost) {
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

	for what, meanwhile := range map[string]func(sees *latch.Crew){
		"comes through": func(*latch.Crew) {},
		"is dismissed": func(sees *latch.Crew) {
			state := crewStands(t, sees, 0, 0, 1)
			if n, err := sees.Dismiss(t.Context(), state.Lost...); n != 1 || err != nil {
				t.Errorf("%d dismissed, %v", n, err)
			}
		},
	} {
		crew, sees := c.NewCrew(what), watch.NewCrew(what)
		p.OnRequest(func(req [][]byte) redistest.Action {
			if isFor(req, what) {
				p.Refuse(true)
				return redistest.Action{DropReply: true}
			}
			return redistest.Action{}
		})
		var m *latch.Member
		joined := make(chan error, 1)
		go func() {
			var err error
			m, err = crew.Join(t.Context())
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
		crewStands(t, sees, 0, 1, 0)
		kindtest.MustUnlock(t, m)
		if err := sees.Wait(t.Context()); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Many join and leave at once; the last to leave ends the wait.
func TestCrew_many(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	const n = 2000
	crew := kindtest.NewClient(t, s.Client(t)).NewCrew("import")
	first := join(t, crew)
	w := wait(t.Context(), crew)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range n / 50 {
				m, err := crew.Join(t.Context())
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
	crewStands(t, crew, n, 1, 0)
	if len(w) > 0 {
		t.Fatalf("it did not wait: %v", <-w)
	}
	kindtest.MustUnlock(t, first)
	if err := result(t, w); err != nil {
		t.Error(err)
	}
}

// Bad input is an error that names the operation and the crew.
func TestCrew_badInput(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := kindtest.NewClient(t, s.Client(t))
	s.Do(t, "SET", "leasehold_crew:{foreign}", "x")
	good := c.NewCrew("good")
	for what, bad := range map[string]struct {
		op, name string
		call     func() error
		match    error
		says     string
	}{
		"nobody":       {"wait", "good", func() error { return good.Wait(t.Context()) }, latch.ErrNotInitialised, ""},
		"for none":     {"wait for", "good", func() error { return good.WaitFor(t.Context(), 0) }, nil, "0 members"},
		"for fewer":    {"wait for", "good", func() error { return good.WaitFor(t.Context(), -1) }, nil, "-1 members"},
		"no name":      {"join", "", func() error { _, err := c.NewCrew("").Join(t.Context()); return err }, lock.ErrBadName, "empty"},
		"half a brace": {"join", "x{", func() error { _, err := c.NewCrew("x{").Join(t.Context()); return err }, lock.ErrBadName, "without a }"},
		"a crew's key": {"wait", "leasehold_crew:x", func() error { return c.NewCrew("leasehold_crew:x").Wait(t.Context()) }, lock.ErrBadName, "keep their state"},
		"fencing":      {"join", "x", func() error { _, err := c.NewCrew("x", lock.WithFencing()).Join(t.Context()); return err }, nil, "does not know this option"},
		"a bad option": {"wait", "x", func() error { return c.NewCrew("x", lock.WithFixedLease(1)).Wait(t.Context()) }, nil, "WithFixedLease"},
		"foreign":      {"join", "foreign", func() error { _, err := c.NewCrew("foreign").Join(t.Context()); return err }, lock.ErrForeignKey, ""},
		"foreign wait": {"wait", "foreign", func() error { return c.NewCrew("foreign").Wait(t.Context()) }, lock.ErrForeignKey, ""},
		"foreign look": {"inspect", "foreign", func() error { _, err := c.NewCrew("foreign").Inspect(t.Context()); return err }, lock.ErrForeignKey, ""},
		"foreign del":  {"delete", "foreign", func() error { return c.NewCrew("foreign").Delete(t.Context()) }, lock.ErrForeignKey, ""},
		"foreign dis":  {"dismiss", "foreign", func() error { _, err := c.NewCrew("foreign").Dismiss(t.Context(), lock.Holder{Owner: "a"}); return err }, lock.ErrForeignKey, ""},
	} {
		err := bad.call()
		var e *lock.Error
		if !errors.As(err, &e) || e.Op != bad.op || e.Name != bad.name || bad.match != nil && !errors.Is(err, bad.match) || !strings.Contains(err.Error(), bad.says) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if got := kindtest.Keys(t, s); !slices.Equal(got, []string{"leasehold_crew:{foreign}"}) {
		t.Errorf("keys: %q", got)
	}
}

// The rights that docs/operate/security.md lists are enough for all that a crew does, and none is too many.
func TestCrew_rights(t *testing.T) {
	t.Parallel()
	withEach(t, "NewCrew", func(t *testing.T, s *redistest.Server, a, b *client.Client) {
		for _, name := range []string{"x", "{x}"} {
			crew := a.NewCrew(name)
			m, err := crew.Join(t.Context())
			if err != nil {
				continue
			}
			ctx, cancel := context.WithTimeout(t.Context(), kindtest.OpTimeout)
			w := wait(ctx, b.NewCrew(name))
			kindtest.WaitFor(t, "it listens, is denied, or has an error", func() bool {
				return len(kindtest.Channels(t, s, "*")) > 0 || len(w) > 0 || ctx.Err() != nil
			})
			first := m.Until()
			kindtest.WaitFor(t, "it is renewed, or over", func() bool { return m.Until().After(first) || m.Err() != nil })
			_ = m.Fail(t.Context())
			_ = result(t, w)
			cancel()
			state, _ := crew.Inspect(t.Context())
			_, _ = crew.Dismiss(t.Context(), state.Lost...)
			_ = crew.Delete(t.Context())
		}
	})
}

// The context of a worker is canceled, and it works on for ten minutes. It is a member until it returns, and then is done.
func TestCrew_worksOnAfterTheCancellation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := locktest.NewServer(t)
		crew, other := s.Client(t).NewCrew("import"), s.Client(t).NewCrew("import")
		ctx, cancel := context.WithCancel(t.Context())
		if err := crew.Do(ctx, func(ctx context.Context) error {
			cancel()
			<-ctx.Done()
			time.Sleep(10 * time.Minute)
			if err := lock.HoldFrom(ctx).Err(); err != nil {
				t.Error(err)
			}
			crewStands(t, other, 0, 1, 0)
			return nil
		}); err != nil {
			t.Error(err)
		}
		crewStands(t, other, 1, 0, 0)
	})
}

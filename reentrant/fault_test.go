package reentrant_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

// What a lock does when its server or the way to it fails, on a real server.
// The watchdog timeout of these tests is a second and a half: renewals come
// every half second, and one command may take a quarter of a second.
const (
	watchdogTimeout = 1500 * time.Millisecond
	opTimeout       = 250 * time.Millisecond
)

var fast = []client.Option{client.WithWatchdogTimeout(watchdogTimeout), client.WithOpTimeout(opTimeout)}

func mustLock(t *testing.T, l lock.Locker) lock.Hold {
	t.Helper()
	h, err := l.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func mustUnlock(t *testing.T, h lock.Hold) {
	t.Helper()
	if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

// waitFor returns when done holds, or fails after long enough for a slow machine.
func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

func text(m rueidis.RedisMessage) string { s, _ := m.ToString(); return s }
func number(m rueidis.RedisMessage) int64 {
	n, _ := m.ToInt64()
	return n
}

// wantEmpty fails if there is a key on the server.
func wantEmpty(t *testing.T, s *redistest.Server) {
	t.Helper()
	if n := number(s.Do(t, "DBSIZE")); n != 0 {
		keys := s.Do(t, "KEYS", "*")
		t.Errorf("%d keys left: %s", n, keys.String())
	}
}

// lost waits for the hold's context and checks that it says why.
func lost(t *testing.T, h lock.Hold, also ...error) {
	t.Helper()
	select {
	case <-h.Context().Done():
	case <-time.After(20 * time.Second):
		t.Fatal("the holder was not told")
	}
	for _, err := range []error{h.Err(), context.Cause(h.Context())} {
		for _, want := range append(also, lock.ErrLost) {
			if !errors.Is(err, want) {
				t.Errorf("cause %v, want one that matches %v", err, want)
			}
		}
	}
	if h.Until().After(time.Now()) {
		t.Error("Until of a lost hold lies ahead")
	}
	if err := h.Unlock(t.Context()); !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrLost) {
		t.Errorf("unlock of a lost hold: %v", err)
	}
}

func TestScriptFlush(t *testing.T) {
	s := redistest.Start(t)
	c := newClient(t, s.Client(t))
	stop := make(chan struct{})
	var flusher sync.WaitGroup
	flusher.Go(func() {
		rdb := s.Client(t)
		for {
			select {
			case <-stop:
				return
			default:
				if err := rdb.Do(t.Context(), rdb.B().ScriptFlush().Build()).Error(); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	l := c.NewLock("orders")
	for range 300 {
		h := mustLock(t, l)
		again, err := l.Lock(h.Context())
		if err != nil {
			t.Fatal(err)
		}
		mustUnlock(t, again)
		mustUnlock(t, h)
	}
	close(stop)
	flusher.Wait()
	wantEmpty(t, s)
}

// The subscription dies just before the release, so its message reaches nobody.
// The new subscription's confirmation must make the waiter look, and the poll
// would in any case; the lease of 30 s would not.
func TestLostMessage(t *testing.T) {
	s := redistest.Start(t)
	holder, waiter := newClient(t, s.Client(t)), newClient(t, s.Client(t))
	for range 20 {
		h := mustLock(t, holder.NewLock("orders"))
		got := make(chan lock.Hold)
		go func() {
			h, err := waiter.NewLock("orders").Lock(t.Context())
			if err != nil {
				t.Error(err)
			}
			got <- h
		}()
		waitFor(t, "somebody listens", func() bool {
			reply := s.Do(t, "PUBSUB", "NUMSUB", "redisson_lock__channel:{orders}")
			all, err := reply.ToArray()
			return err == nil && len(all) == 2 && number(all[1]) == 1
		})
		s.Do(t, "CLIENT", "KILL", "TYPE", "pubsub")
		mustUnlock(t, h)
		select {
		case h := <-got:
			mustUnlock(t, h)
		case <-time.After(15 * time.Second):
			t.Fatal("the waiter sleeps on, although the lock is free")
		}
	}
}

func TestServerRestartsEmpty(t *testing.T) {
	s := redistest.Start(t)
	c := newClient(t, s.Client(t), fast...)
	h := mustLock(t, c.NewLock("orders"))
	got := make(chan lock.Hold)
	go func() {
		h, err := c.NewLock("orders").Lock(t.Context()) // goes on by itself
		if err != nil {
			t.Error(err)
		}
		got <- h
	}()
	s.Kill(t)
	s.Restart(t)
	lost(t, h)
	next := <-got
	if next == nil {
		t.FailNow()
	}
	if err := next.Err(); err != nil {
		t.Error(err)
	}
	mustUnlock(t, next)
	wantEmpty(t, s)
}

func TestServerDown(t *testing.T) {
	s := redistest.Start(t)
	c := newClient(t, s.Client(t), fast...)
	l := c.NewLock("orders")
	s.Kill(t)
	// The connections that were open end one after another; whoever meets such
	// an end sees EOF, and not yet that nobody listens.
	refused := func(err error) bool { return err != nil && strings.Contains(err.Error(), "refused") }
	waitFor(t, "connections are refused", func() bool { _, err := l.Inspect(t.Context()); return refused(err) })
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err := l.Lock(ctx)
	if !errors.Is(err, lock.ErrNotAcquired) || !errors.Is(err, context.DeadlineExceeded) || !refused(err) {
		t.Errorf("Lock: %v, want one that names the time-out and the refused connection", err)
	}
	if _, err := l.TryLock(t.Context()); err == nil || errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("TryLock: %v: a server that is down does not say that somebody has the lock", err)
	}
	if _, err := l.Inspect(t.Context()); err == nil {
		t.Error("Inspect of a server that is down")
	}
	s.Restart(t)
	mustUnlock(t, mustLock(t, l))
}

// Every call returns by its deadline although nothing answers, and the holder
// is told at Until.
func TestServerFrozen(t *testing.T) {
	for _, dialing := range []bool{false, true} {
		t.Run(fmt.Sprintf("dialing %v", dialing), func(t *testing.T) { testServerFrozen(t, dialing) })
	}
}

func testServerFrozen(t *testing.T, dialing bool) {
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	rdb := s.Client(t, redistest.Via(p), func(o *rueidis.ClientOption) { o.Dialer.Timeout = 3 * time.Second })
	c := newClient(t, rdb, fast...)
	l := c.NewLock("orders")
	h, other := mustLock(t, l), mustLock(t, c.NewLock("other"))
	s.Freeze(t)
	if dialing {
		p.CutAll() // whoever needs a connection now dials, and hangs in it
	}

	const patience = 200 * time.Millisecond
	const slack = 2 * time.Second // for a busy machine; a missing bound takes 3 s and more
	var wg sync.WaitGroup
	for i := range 20 {
		for name, call := range map[string]func(context.Context) error{
			"Lock":        func(ctx context.Context) error { _, err := c.NewLock(fmt.Sprint("new", i)).Lock(ctx); return err },
			"TryLock":     func(ctx context.Context) error { _, err := c.NewLock(fmt.Sprint("try", i)).TryLock(ctx); return err },
			"re-entry":    func(ctx context.Context) error { _, err := l.Lock(withParent(ctx, h)); return err },
			"Inspect":     func(ctx context.Context) error { _, err := l.Inspect(ctx); return err },
			"ForceUnlock": func(ctx context.Context) error { _, err := c.NewLock("third").ForceUnlock(ctx); return err },
		} {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				start := time.Now()
				err := call(ctx)
				if took := time.Since(start); err == nil || took > patience+slack {
					t.Errorf("%s on a frozen server: %v after %v, its deadline was %v", name, err, took, patience)
				}
			})
		}
	}
	wg.Go(func() {
		start := time.Now()
		err := other.Unlock(t.Context()) // bounded without any deadline
		if took := time.Since(start); !errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, lock.ErrNotHeld) || took > 2*opTimeout+slack {
			t.Errorf("Unlock on a frozen server: %v after %v", err, took)
		}
	})
	wg.Wait()
	until := h.Until()
	<-h.Context().Done()
	if early := time.Until(until); early > 0 {
		t.Errorf("lost %v before Until", early)
	}
	lost(t, h)
	s.Thaw(t)
	// What was sent meanwhile is carried out now, and taken back.
	waitFor(t, "nothing is left", func() bool { return number(s.Do(t, "DBSIZE")) == 0 })
}

// withParent is ctx with the owner of h.
func withParent(ctx context.Context, h lock.Hold) context.Context {
	return ownerOf{ctx, h.Context()}
}

type ownerOf struct {
	context.Context
	owner context.Context
}

func (c ownerOf) Value(key any) any {
	if v := c.Context.Value(key); v != nil {
		return v
	}
	return c.owner.Value(key)
}

func TestReadOnly(t *testing.T) {
	master, s := redistest.Start(t), redistest.Start(t)
	c := newClient(t, s.Client(t), fast...)
	l := c.NewLock("orders")
	host, port, _ := strings.Cut(master.Addr(), ":")
	s.Do(t, "REPLICAOF", host, port)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := l.Lock(ctx); !errors.Is(err, lock.ErrNotAcquired) || !strings.Contains(err.Error(), "READONLY") {
		t.Errorf("Lock on a replica: %v", err)
	}
	got := make(chan lock.Hold)
	go func() {
		h, err := l.Lock(t.Context())
		if err != nil {
			t.Error(err)
		}
		got <- h
	}()
	s.Do(t, "REPLICAOF", "NO", "ONE")
	if h := <-got; h != nil {
		mustUnlock(t, h)
	}
}

func TestMemoryFull(t *testing.T) {
	s := redistest.Start(t)
	c := newClient(t, s.Client(t), fast...)
	l := c.NewLock("orders")
	h := mustLock(t, l)
	s.Do(t, "CONFIG", "SET", "maxmemory", "100kb")
	if _, err := c.NewLock("new").Lock(t.Context()); err == nil || !strings.Contains(err.Error(), "OOM") || errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("a new lock: %v, want OOM at once", err)
	}
	again, err := l.Lock(h.Context())
	if err != nil {
		t.Fatalf("re-entry: %v", err)
	}
	first := h.Until()
	waitFor(t, "it is renewed", func() bool { return h.Until().After(first.Add(watchdogTimeout)) })
	mustUnlock(t, again)
	mustUnlock(t, h)
	wantEmpty(t, s)
}

func TestForeignKey(t *testing.T) {
	s := redistest.Start(t)
	c := newClient(t, s.Client(t), fast...)
	l := c.NewLock("orders")
	s.Do(t, "SET", "orders", "mine")
	for name, call := range map[string]func() error{
		"Lock":        func() error { _, err := l.Lock(t.Context()); return err },
		"TryLock":     func() error { _, err := l.TryLock(t.Context()); return err },
		"Inspect":     func() error { _, err := l.Inspect(t.Context()); return err },
		"ForceUnlock": func() error { _, err := l.ForceUnlock(t.Context()); return err },
	} {
		if err := call(); !errors.Is(err, lock.ErrForeignKey) {
			t.Errorf("%s: %v, want ErrForeignKey", name, err)
		}
	}
	s.Do(t, "DEL", "orders")
	s.Do(t, "HSET", "orders", "mode", "read", "x", "1")
	for name, call := range map[string]func() error{
		"Lock":        func() error { _, err := l.Lock(t.Context()); return err },
		"Inspect":     func() error { _, err := l.Inspect(t.Context()); return err },
		"ForceUnlock": func() error { _, err := l.ForceUnlock(t.Context()); return err },
	} {
		if err := call(); !errors.Is(err, lock.ErrForeignKey) {
			t.Errorf("%s of a read/write lock: %v, want ErrForeignKey", name, err)
		}
	}
	s.Do(t, "DEL", "orders")
	h := mustLock(t, l)
	s.Do(t, "SET", "orders", "theirs now")
	lost(t, h, lock.ErrForeignKey)
	if got := text(s.Do(t, "GET", "orders")); got != "theirs now" {
		t.Errorf("the foreign key became %q", got)
	}
}

func TestAccessDenied(t *testing.T) {
	s := redistest.Start(t)
	s.Do(t, "ACL", "SETUSER", "locks", "on", "nopass", "~locks:*", "&*", "+@all")
	rdb := s.Client(t, func(o *rueidis.ClientOption) { o.Username, o.Password = "locks", "x" })
	c := newClient(t, rdb, append(fast, client.WithKeyPrefix("locks:"))...)
	l := c.NewLock("orders")
	h := mustLock(t, l)

	outside := newClient(t, rdb, fast...)
	if _, err := outside.NewLock("orders").Lock(t.Context()); err == nil || errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("Lock outside the allowed keys: %v, want the denial at once", err)
	}
	s.Do(t, "ACL", "SETUSER", "locks", "-evalsha", "-eval")
	until := h.Until()
	if _, err := c.NewLock("more").Lock(t.Context()); err == nil || !strings.Contains(err.Error(), "NOPERM") {
		t.Errorf("Lock: %v, want NOPERM", err)
	}
	<-h.Context().Done()
	if early := time.Until(until); early > 0 {
		t.Errorf("told %v before Until: a denied renewal is no loss yet", early)
	}
	lost(t, h)
	if !strings.Contains(h.Err().Error(), "NOPERM") {
		t.Errorf("cause %v does not say that renewals were denied", h.Err())
	}
	s.Do(t, "ACL", "SETUSER", "locks", "+evalsha", "+eval")
	waitFor(t, "it is taken back", func() bool { return number(s.Do(t, "DBSIZE")) == 0 })
}

// A channel that is denied costs its own waiters their hints, and nobody else.
func TestDeniedChannel(t *testing.T) {
	s := redistest.Start(t)
	s.Do(t, "ACL", "SETUSER", "locks", "on", "nopass", "~*", "&redisson_lock__channel:{allowed*", "+@all")
	as := func(o *rueidis.ClientOption) { o.Username, o.Password = "locks", "x" }
	holder, waiter := newClient(t, s.Client(t, as)), newClient(t, s.Client(t, as))
	names := []string{"denied", "allowed"}
	var holds []lock.Hold
	served := make(chan string, len(names))
	for _, name := range names {
		holds = append(holds, mustLock(t, holder.NewLock(name)))
	}
	for _, name := range names { // the denied one first
		go func() {
			h, err := waiter.NewLock(name).Lock(t.Context())
			if err != nil {
				t.Error(err)
			} else {
				mustUnlock(t, h)
			}
			served <- name
		}()
		waitFor(t, "it was denied, or listens", func() bool {
			log := s.Do(t, "ACL", "LOG")
			denials, _ := log.ToArray()
			return len(denials) > 0 && (name == "denied" || text0(s.Do(t, "PUBSUB", "CHANNELS")) == "redisson_lock__channel:{allowed}")
		})
	}
	first := s.Do(t, "CLIENT", "LIST", "TYPE", "pubsub")
	s.ResetStats(t)
	waitFor(t, "some polls have passed", func() bool { return s.CommandCalls(t, "evalsha") >= 4 })
	second := s.Do(t, "CLIENT", "LIST", "TYPE", "pubsub")
	if a, b := connection(text(first)), connection(text(second)); a != b || a == "" {
		t.Errorf("the hints' connection was %q and is %q: a denied channel must not break it", a, b)
	}
	for _, h := range holds {
		mustUnlock(t, h)
	}
	<-served
	<-served
}

// connection is the id in a line of CLIENT LIST.
func connection(list string) string {
	_, rest, _ := strings.Cut(list, "id=")
	id, _, _ := strings.Cut(rest, " ")
	return id
}

func TestUnlockOfAForeignKey(t *testing.T) {
	s := redistest.Start(t)
	c := newClient(t, s.Client(t))
	for name, steal := range map[string][][]string{
		"string":      {{"SET", "orders", "x"}},
		"other hash":  {{"DEL", "orders"}, {"HSET", "orders", "name", "bob"}},
		"count gone":  {{"DEL", "orders"}},
		"other owner": {{"DEL", "orders"}, {"HSET", "orders", "somebody:1", "1"}},
	} {
		h := mustLock(t, c.NewLock("orders"))
		for _, command := range steal {
			s.Do(t, command...)
		}
		err := h.Unlock(t.Context())
		if !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrLost) || errors.Is(err, lock.ErrForeignKey) != (name == "string") {
			t.Errorf("%s: unlock says %v", name, err)
		}
		s.Do(t, "DEL", "orders")
	}
}

func TestForceUnlockOfSomethingElse(t *testing.T) {
	s := redistest.Start(t)
	c := newClient(t, s.Client(t), fast...)
	s.Do(t, "HSET", "user:1", "name", "bob")
	if was, err := c.NewLock("user:1").ForceUnlock(t.Context()); was || !errors.Is(err, lock.ErrForeignKey) {
		t.Errorf("ForceUnlock: %v, %v", was, err)
	}
	if _, err := c.NewLock("user:1").Lock(t.Context()); !errors.Is(err, lock.ErrForeignKey) {
		t.Errorf("Lock: %v", err)
	}
	if got := text(s.Do(t, "HGET", "user:1", "name")); got != "bob" {
		t.Errorf("the user's name is %q now", got)
	}
}

func TestDeletedByHand(t *testing.T) {
	s := redistest.Start(t)
	c := newClient(t, s.Client(t), fast...)
	for _, steal := range [][]string{{"DEL", "orders"}, {"RENAME", "orders", "elsewhere"}, {"FLUSHALL"}} {
		h := mustLock(t, c.NewLock("orders"))
		s.Do(t, steal...)
		s.Do(t, "HSET", "orders", "somebody:1", "1")
		lost(t, h)
		if got := text(s.Do(t, "HGET", "orders", "somebody:1")); got != "1" {
			t.Errorf("after %v the next owner's lock became %q", steal, got)
		}
		s.Do(t, "FLUSHALL")
	}
}

func TestReentryIntoALostLock(t *testing.T) {
	s := redistest.Start(t)
	c := newClient(t, s.Client(t))
	ctx := lock.WithOwner(t.Context())
	l := c.NewLock("orders")
	h, err := l.Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	s.Do(t, "DEL", "orders")
	if _, err := l.Lock(ctx); !errors.Is(err, lock.ErrLost) {
		t.Errorf("re-entry: %v, want ErrLost: it must not take the lock afresh", err)
	}
	lost(t, h) // told by that, long before the first renewal
	wantEmpty(t, s)
	again, err := l.Lock(ctx) // and now afresh
	if err != nil {
		t.Fatal(err)
	}
	if again.Owner() == h.Owner() {
		t.Error("two tenures have one owner in Redis: a late command of the first could end the second")
	}
	mustUnlock(t, again)
}

// A lock whose key has no expiry: waiters go on asking, and the holder's
// renewal puts the expiry back.
func TestPersistedByHand(t *testing.T) {
	s := redistest.Start(t)
	c := newClient(t, s.Client(t), fast...)
	h := mustLock(t, c.NewLock("orders"))
	s.Do(t, "PERSIST", "orders")
	waitFor(t, "the expiry is back", func() bool { return number(s.Do(t, "PTTL", "orders")) > 0 })
	mustUnlock(t, h)

	s.Do(t, "HSET", "orders", "a dead owner:1", "1")
	state, err := c.NewLock("orders").Inspect(t.Context())
	if err != nil || state.Lease != lock.NoExpiry || state.HoldCount("a dead owner:1") != 1 {
		t.Errorf("Inspect: %+v, %v", state, err)
	}
	got := make(chan lock.Hold)
	go func() {
		h, err := c.NewLock("orders").Lock(t.Context())
		if err != nil {
			t.Error(err)
		}
		got <- h
	}()
	waitFor(t, "somebody waits", func() bool { return text0(s.Do(t, "PUBSUB", "CHANNELS")) != "" })
	s.Do(t, "DEL", "orders") // tells nobody
	if h := <-got; h != nil {
		mustUnlock(t, h)
	}
}

// text0 is the first element of a list reply, "" if there is none.
func text0(m rueidis.RedisMessage) string {
	all, err := m.ToArray()
	if err != nil || len(all) == 0 {
		return ""
	}
	return text(all[0])
}

// A link that swallows everything: the holder is told at Until, and what became
// of its lock is cleared up when the link is back.
func TestPartition(t *testing.T) {
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	rdb := s.Client(t, redistest.Via(p), func(o *rueidis.ClientOption) { o.ConnWriteTimeout = time.Second })
	c := newClient(t, rdb, fast...)
	h := mustLock(t, c.NewLock("orders"))
	p.Freeze(true)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := c.NewLock("new").Lock(ctx); !errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("Lock: %v", err)
	}
	until := h.Until()
	<-h.Context().Done()
	if early := time.Until(until); early > 0 {
		t.Errorf("told %v before Until", early)
	}
	lost(t, h)
	p.Freeze(false)
	waitFor(t, "nothing is left", func() bool { return number(s.Do(t, "DBSIZE")) == 0 })
	mustUnlock(t, mustLock(t, c.NewLock("orders")))
}

func TestLostReplies(t *testing.T) {
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	rdb := s.Client(t, redistest.Via(p), func(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 })
	c := newClient(t, rdb)
	ctx := lock.WithOwner(t.Context())
	l := c.NewLock("orders")
	count := func(h lock.Hold) string { return text(s.Do(t, "HGET", "orders", h.Owner())) }
	for name, try := range map[string]func(context.Context) (lock.Hold, error){"Lock": l.Lock, "TryLock": l.TryLock} {
		for i := range 20 {
			p.OnRequest(redistest.Once("EVALSHA", redistest.Action{DropReply: true}))
			h, err := try(ctx)
			if err != nil {
				t.Fatalf("%s %d: %v: the lock was granted, only the reply was lost", name, i, err)
			}
			p.OnRequest(redistest.Once("EVALSHA", redistest.Action{DropReply: true}))
			again, err := try(ctx)
			if err != nil {
				t.Fatalf("%s %d, re-entry: %v", name, i, err)
			}
			if got := count(h); got != "2" {
				t.Fatalf("%s %d: hold count %q after two holds", name, i, got)
			}
			for _, h := range []lock.Hold{again, h} {
				p.OnRequest(redistest.Once("EVALSHA", redistest.Action{DropReply: true}))
				if err := h.Unlock(ctx); err != nil {
					t.Fatalf("%s %d, unlock: %v: it was carried out, only the reply was lost", name, i, err)
				}
			}
			if got := count(h); got != "" {
				t.Fatalf("%s %d: hold count %q after two unlocks", name, i, got)
			}
		}
	}
	wantEmpty(t, s)
}

// A grant that crosses the end of its caller's context is given back.
func TestCancelledMidway(t *testing.T) {
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	c := newClient(t, s.Client(t, redistest.Via(p)))
	c0 := newClient(t, s.Client(t))
	for _, hold := range []string{"request", "reply"} {
		held := make(chan struct{})
		act := redistest.Action{HoldRequest: held}
		if hold == "reply" {
			act = redistest.Action{HoldReply: held}
		}
		p.OnRequest(redistest.Once("EVALSHA", act))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		_, err := c.NewLock("orders").Lock(ctx)
		if !errors.Is(err, lock.ErrNotAcquired) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		cancel()
		close(held) // and now it goes through
		waitFor(t, "the late grant is taken back", func() bool {
			h, err := c0.NewLock("orders").TryLock(t.Context())
			if err == nil {
				mustUnlock(t, h)
			}
			return err == nil
		})
		p.OnRequest(nil)
	}
}

func TestClose(t *testing.T) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	c, err := client.New(rdb)
	if err != nil {
		t.Fatal(err)
	}
	other := newClient(t, s.Client(t))
	theirs := mustLock(t, other.NewLock("theirs"))
	var holds []lock.Hold
	for i := range 200 {
		holds = append(holds, mustLock(t, c.NewLock(fmt.Sprint("mine", i))))
	}
	again, err := c.NewLock("mine0").Lock(holds[0].Context())
	if err != nil {
		t.Fatal(err)
	}
	holds = append(holds, again)
	waiting := make(chan error)
	for range 3 {
		go func() { _, err := c.NewLock("theirs").Lock(t.Context()); waiting <- err }()
	}
	waitFor(t, "somebody waits", func() bool { return text0(s.Do(t, "PUBSUB", "CHANNELS")) != "" })

	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Close(over); err != nil { // works although its context is over
		t.Errorf("Close: %v", err)
	}
	for range 3 {
		if err := <-waiting; !errors.Is(err, lock.ErrClosed) {
			t.Errorf("a waiter: %v, want ErrClosed", err)
		}
	}
	for _, h := range holds {
		if err := h.Err(); !errors.Is(err, lock.ErrClosed) || errors.Is(err, lock.ErrLost) {
			t.Errorf("a hold: %v, want ErrClosed", err)
		}
		if err := h.Unlock(t.Context()); !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrClosed) {
			t.Errorf("unlock after Close: %v", err)
		}
	}
	if n := number(s.Do(t, "DBSIZE")); n != 1 {
		t.Errorf("%d keys, want only the other client's", n)
	}
	waitFor(t, "no subscription is left", func() bool { return text0(s.Do(t, "PUBSUB", "CHANNELS")) == "" })
	if _, err := c.NewLock("new").Lock(t.Context()); !errors.Is(err, lock.ErrClosed) {
		t.Errorf("Lock after Close: %v", err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Errorf("the second Close: %v", err)
	}
	if err := rdb.Do(t.Context(), rdb.B().Ping().Build()).Error(); err != nil {
		t.Errorf("Close closed a client that it had borrowed: %v", err)
	}
	if err := theirs.Err(); err != nil {
		t.Error(err)
	}
	mustUnlock(t, theirs)
}

func TestCloseOnAFrozenServer(t *testing.T) {
	s := redistest.Start(t)
	c, err := client.New(s.Client(t, func(o *rueidis.ClientOption) { o.ConnWriteTimeout = time.Second }), fast...)
	if err != nil {
		t.Fatal(err)
	}
	h := mustLock(t, c.NewLock("orders"))
	s.Freeze(t)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := c.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close: %v, want its context's error", err)
	}
	if !errors.Is(h.Err(), lock.ErrClosed) {
		t.Errorf("the hold: %v", h.Err())
	}
	s.Thaw(t)
	_ = c.Close(t.Context()) // waits for what is left
	waitFor(t, "the key is gone", func() bool { return number(s.Do(t, "DBSIZE")) == 0 })
}

func TestForceUnlock(t *testing.T) {
	s := redistest.Start(t)
	a, b := newClient(t, s.Client(t), fast...), newClient(t, s.Client(t), fast...)
	l := a.NewLock("orders")
	if was, err := l.ForceUnlock(t.Context()); was || err != nil {
		t.Errorf("of a free lock: %v, %v", was, err)
	}
	local, remote := mustLock(t, l), mustLock(t, b.NewLock("remote"))
	got := make(chan lock.Hold)
	go func() {
		h, err := b.NewLock("orders").Lock(t.Context())
		if err != nil {
			t.Error(err)
		}
		got <- h
	}()
	waitFor(t, "somebody waits", func() bool { return text0(s.Do(t, "PUBSUB", "CHANNELS")) != "" })
	for _, name := range []string{"orders", "remote"} {
		if was, err := a.NewLock(name).ForceUnlock(t.Context()); !was || err != nil {
			t.Errorf("%s: %v, %v", name, was, err)
		}
	}
	if err := local.Err(); !errors.Is(err, lock.ErrLost) {
		t.Errorf("the holder of this client was not told at once: %v", err)
	}
	if h := <-got; h != nil {
		mustUnlock(t, h)
	}
	lost(t, remote) // at its next renewal
}

// However many wait in a process, it asks for all of them together.
func TestWaitersOfOneProcessAskOnce(t *testing.T) {
	s := redistest.Start(t)
	holder, c := newClient(t, s.Client(t)), newClient(t, s.Client(t))
	h := mustLock(t, holder.NewLock("orders"))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			if h, err := c.NewLock("orders").Lock(ctx); err == nil {
				t.Error("granted")
				mustUnlock(t, h)
			}
		})
	}
	waitFor(t, "they listen", func() bool { return text0(s.Do(t, "PUBSUB", "CHANNELS")) != "" })
	s.ResetStats(t)
	start := time.Now()
	waitFor(t, "two polls have passed", func() bool { return s.CommandCalls(t, "evalsha") >= 2 })
	took := time.Since(start)
	calls := s.CommandCalls(t, "evalsha")
	if most := int64(took/time.Second) + 4; calls > most {
		t.Errorf("%d questions in %v for 200 waiters", calls, took)
	}
	cancel()
	wg.Wait()
	waitFor(t, "nobody listens any more", func() bool { return text0(s.Do(t, "PUBSUB", "CHANNELS")) == "" })
	mustUnlock(t, h)
}

func TestInspect(t *testing.T) {
	s := redistest.Start(t)
	c := newClient(t, s.Client(t))
	l := c.NewLock("orders")
	state, err := l.Inspect(t.Context())
	if err != nil || state.Locked() || state.Mode != lock.Free || state.Name != "orders" {
		t.Errorf("of a free lock: %+v, %v", state, err)
	}
	h := mustLock(t, l)
	again, err := l.Lock(h.Context())
	if err != nil {
		t.Fatal(err)
	}
	state, err = l.Inspect(t.Context())
	if err != nil || state.Mode != lock.Exclusive || state.HoldCount(h.Owner()) != 2 || len(state.Holders) != 1 {
		t.Errorf("of two holds: %+v, %v", state, err)
	}
	if state.Lease < 29*time.Second || state.Lease > 30*time.Second {
		t.Errorf("lease %v", state.Lease)
	}
	mustUnlock(t, again)
	mustUnlock(t, h)
}

func TestKeyPrefix(t *testing.T) {
	s := redistest.Start(t)
	c := newClient(t, s.Client(t), client.WithKeyPrefix("shop:"))
	h := mustLock(t, c.NewLock("orders"))
	if got := text(s.Do(t, "HGET", "shop:orders", h.Owner())); got != "1" {
		t.Errorf("shop:orders has %q", got)
	}
	mustUnlock(t, h)
}

package kindtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/redis/rueidis"
)

var faults = []struct {
	name string
	test func(*testing.T, Kind)
}{
	// Faults of the server and the network.
	{"ScriptFlush", scriptFlush},
	{"ScriptFlush_waiting", scriptFlushWaiting},
	{"LostMessage", lostMessage},
	{"LostReplies", lostReplies},
	{"CancelledMidway", cancelledMidway},
	{"CancelledMidway_waiting", cancelledMidwayWaiting},
	{"HolderDies", holderDies},
	{"ServerRestartsEmpty", serverRestartsEmpty},
	{"ServerDown", serverDown},
	{"ServerFrozen", serverFrozen},
	{"ServerFrozen_dialing", serverFrozenDialing},
	{"ServerFrozen_waiting", serverFrozenWaiting},
	{"AsyncUnlock", asyncUnlock},
	{"Partition", partition},
	{"ReadOnly", readOnly},
	{"Replies", LockReplies},
	{"ReplicaThatMissedTheLock", replicaThatMissedTheLock},
	{"MemoryFull", memoryFull},
	{"MemoryFull_waiting", memoryFullWaiting},
	{"AccessDenied", accessDenied},
	{"DeniedChannel", deniedChannel},

	// Keys that are changed manually.
	{"ForeignKey", foreignKey},
	{"UnlockOfAForeignKey", unlockOfAForeignKey},
	{"ForceUnlockOfSomethingElse", forceUnlockOfSomethingElse},
	{"DeletedByHand", deletedByHand},
	{"ReentryIntoALostLock", reentryIntoALostLock},
	{"PersistedByHand", persistedByHand},

	// Actions of operators, and the end of programs.
	{"Close", closeClient},
	{"CloseOnAFrozenServer", closeOnAFrozenServer},
	{"ForceUnlock", forceUnlock},
	{"Inspect", inspect},
	{"KeyPrefix", keyPrefix},
	{"WaitersOfOneProcessAskOnce", waitersOfOneProcessAskOnce},
}

// Faults tests a lock while its server or the network fails, on a real server, each fault in a
// subtest.
func Faults(t *testing.T, k Kind) {
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			f.test(t, k)
		})
	}
}

func scriptFlush(t *testing.T, k Kind) {
	s := redistest.Start(t)
	l := k.New(NewClient(t, s.Client(t), Patient...), "orders")
	Flushing(t, s, func() {
		for range 300 {
			h := MustLock(t, l)
			again := MustLockUnder(t, h.Context(), l)
			MustUnlock(t, again, h)
		}
	})
	WantEmpty(t, s)
}

func scriptFlushWaiting(t *testing.T, k Kind) {
	s := redistest.Start(t)
	holder, waiter := NewClient(t, s.Client(t)), NewClient(t, s.Client(t))
	Flushing(t, s, func() {
		for i := range 10 {
			name := fmt.Sprint("orders", i)
			h := MustLock(t, k.rival().New(holder, name))
			var waiters []*Waiter
			for range 3 {
				waiters = append(waiters, Go(t.Context(), k.New(waiter, name)))
			}
			k.Waiting(t, s, name, len(waiters))
			MustUnlock(t, h)
			ServeAll(t, waiters...)
		}
	})
	WantEmpty(t, s)
}

// The subscription breaks just before the release, so no subscriber receives its message. The
// confirmation of the new subscription must make the waiter retry. The poll would do so anyway; the
// lease of 30 s would not.
func lostMessage(t *testing.T, k Kind) {
	k.eachWay(t, func(t *testing.T, holds, waits Kind) {
		s := redistest.Start(t)
		holder, waiter := NewClient(t, s.Client(t)), NewClient(t, s.Client(t))
		for i := range 20 {
			name := fmt.Sprint("orders", i)
			h := MustLock(t, holds.New(holder, name))
			w := Go(t.Context(), waits.New(waiter, name))
			k.Waiting(t, s, name, 1)
			s.Do(t, "CLIENT", "KILL", "TYPE", "pubsub")
			MustUnlock(t, h)
			MustUnlock(t, w.Hold(t))
		}
		WantEmpty(t, s)
	})
}

func lostReplies(t *testing.T, k Kind) {
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	rdb := s.Client(t, redistest.Via(p), func(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 })
	ctx := lock.ContextWithNewOwner(t.Context())
	l := k.New(NewClient(t, rdb), "orders")
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
				t.Fatalf("%s %d, reentry: %v", name, i, err)
			}
			k.WantHeld(t, s, "orders", h.Owner(), 2)
			for left, h := range []lock.Hold{h, again} {
				p.OnRequest(redistest.Once("EVALSHA", redistest.Action{DropReply: true}))
				if err := h.Unlock(ctx); err != nil {
					t.Fatalf("%s %d, unlock: %v: it was carried out, only the reply was lost", name, i, err)
				}
				k.WantHeld(t, s, "orders", h.Owner(), 1-left)
			}
			if t.Failed() {
				t.Fatalf("%s %d", name, i)
			}
		}
	}
	WantEmpty(t, s)
}

// A grant that arrives after its caller's context was canceled is released.
func cancelledMidway(t *testing.T, k Kind) {
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	c, other := NewClient(t, s.Client(t, redistest.Via(p)), Patient...), NewClient(t, s.Client(t))
	for _, phase := range []string{"request", "reply", "reply, with a reused context"} {
		ctx, cancel := context.WithCancel(t.Context())
		phase, reused := strings.CutSuffix(phase, ", with a reused context")
		if reused {
			ctx = redistest.Reused{Context: ctx}
		}
		asked, release := hold(p, phase)
		w := Go(ctx, k.New(c, "orders", endless))
		<-asked
		cancel()
		if err := w.Err(t); !reused {
			wantAlone(t, err, context.Canceled)
		} else if !errors.Is(err, context.Canceled) {
			t.Errorf("with a reused context: %v", err)
		}
		close(release) // now the request arrives
		WaitFor(t, "the late grant is taken back", func() bool {
			h, err := k.rival().New(other, "orders").TryLock(t.Context())
			if err == nil {
				MustUnlock(t, h)
			}
			return err == nil
		})
		p.OnRequest(nil)
		SoonEmpty(t, s)
	}
}

// A context is canceled while its request is in flight, for a lock that another owner has. Whatever
// happens to that request, no trace of the waiter remains, although the waiter timeout would allow
// it.
func cancelledMidwayWaiting(t *testing.T, k Kind) {
	for name, act := range map[string]redistest.Action{
		"request late": {},
		"request lost": {DropRequest: true},
		"reply late":   {},
		"reply lost":   {DropReply: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := redistest.Start(t)
			p := redistest.NewProxy(t, s.Addr())
			c := NewClient(t, s.Client(t, redistest.Via(p)), Patient...)
			h := MustLock(t, k.rival().New(NewClient(t, s.Client(t)), "orders"))
			MustUnlock(t, MustLock(t, k.New(c, "free"))) // loads the script on the server
			s.ResetStats(t)

			pass, asked := make(chan struct{}), make(chan struct{})
			if strings.HasPrefix(name, "request") {
				act.HoldRequest = pass
			} else {
				act.HoldReply = pass
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
			w := Go(ctx, k.New(c, "orders", k.patience(time.Hour)...))
			<-asked
			if act.HoldReply != nil {
				WaitFor(t, "the request was carried out", func() bool { return s.CommandCalls(t, "evalsha") > 0 })
			}
			cancel()
			wantAlone(t, w.Err(t), context.Canceled)
			close(pass)
			if err := c.Close(t.Context()); err != nil { // waits for work in the background
				t.Error(err)
			}
			k.rival().WantHeld(t, s, "orders", h.Owner(), 1) // and there is no other key
			MustUnlock(t, h)
		})
	}
}

// The request of a release is delayed. Unlock does not wait for it, and the next attempt of its client comes after it. If
// the server is paused, the observer is notified, and the release is repeated. Close waits for the release.
func asyncUnlock(t *testing.T, k Kind) {
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	released := make(chan error, 100)
	observer := lock.Observer{Released: func(_ context.Context, e lock.Event) { released <- e.Err }}
	c := NewClient(t, s.Client(t, redistest.Via(p)), append([]client.Option{client.WithObserver(observer)}, Patient...)...)
	l := k.New(c, "orders", lock.WithAsyncUnlock())
	wantReleased := func(want error) {
		t.Helper()
		if err := <-released; !errors.Is(err, want) {
			t.Errorf("the observer is notified of %v, want %v", err, want)
		}
	}
	MustUnlock(t, MustLock(t, l)) // loads the scripts on the server
	wantReleased(nil)

	for range 5 {
		h := MustLock(t, l)
		goes := make(chan struct{})
		p.OnRequest(redistest.Once("EVALSHA", redistest.Action{HoldRequest: goes}))
		MustUnlock(t, h)
		if err := h.Unlock(t.Context()); !errors.Is(err, lock.ErrNotHeld) || errors.Is(err, lock.ErrLost) {
			t.Errorf("the second Unlock: %v", err)
		}
		next := make(chan error)
		go func() {
			h, err := l.TryLock(t.Context())
			if err == nil {
				err = h.Unlock(t.Context())
			}
			next <- err
		}()
		close(goes)
		if err := <-next; err != nil {
			t.Errorf("the next attempt: %v", err)
		}
		wantReleased(nil)
		wantReleased(nil)
	}

	hasty := NewClient(t, s.Client(t, redistest.Via(p)), append([]client.Option{client.WithObserver(observer)}, Fast...)...)
	h := MustLock(t, k.New(hasty, "orders", lock.WithAsyncUnlock()))
	p.Freeze(true)
	MustUnlock(t, h)
	wantReleased(lock.ErrUnavailable)
	p.Freeze(false)
	SoonEmpty(t, s)

	h = MustLock(t, l)
	p.OnRequest(redistest.Once("EVALSHA", redistest.Action{DelayRequest: OpTimeout / 10}))
	MustUnlock(t, h)
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	WantEmpty(t, s)
}

// A process dies while it holds the lock, and sends nothing from then on. A waiter acquires the
// lock when the lease expires, and not before the dead process would have detected the loss.
func holderDies(t *testing.T, k Kind) {
	k.eachWay(t, func(t *testing.T, holds, waits Kind) {
		s := redistest.Start(t)
		p := redistest.NewProxy(t, s.Addr())
		dead := MustLock(t, holds.New(NewClient(t, s.Client(t, redistest.Via(p)), Fast...), "orders"))
		p.Refuse(true)
		p.CutAll()
		h := Go(t.Context(), waits.New(NewClient(t, s.Client(t)), "orders")).Hold(t)
		if err := dead.Err(); !errors.Is(err, lock.ErrLost) {
			t.Errorf("two believe to hold it, the dead one says %v", err)
		}
		waits.WantHeld(t, s, "orders", h.Owner(), 1)
		MustUnlock(t, h)
		WantEmpty(t, s)
		p.Refuse(false) // the process is reachable again, and releases a lock that it has lost
		MustUnlock(t, MustLock(t, holds.New(NewClient(t, s.Client(t)), "orders")))
	})
}

func serverRestartsEmpty(t *testing.T, k Kind) {
	k.eachWay(t, func(t *testing.T, holds, waits Kind) {
		s := redistest.Start(t)
		c := NewClient(t, s.Client(t), Fast...)
		h := MustLock(t, holds.New(c, "orders"))
		w := Go(t.Context(), waits.New(c, "orders", endless)) // it retries on its own
		s.Kill(t)
		s.Restart(t)
		Lost(t, h)
		next := w.Hold(t)
		if err := next.Err(); err != nil {
			t.Error(err)
		}
		MustUnlock(t, next)
		WantEmpty(t, s)
	})
}

func serverDown(t *testing.T, k Kind) {
	s := redistest.Start(t)
	c := NewClient(t, s.Client(t), Fast...)
	l, o := k.New(c, "orders"), k.Operator(c, "orders")
	s.Kill(t)
	// The open connections end one after the other. A call on one of them fails with EOF, not yet
	// with a refused connection.
	refused := func(err error) bool { return err != nil && strings.Contains(err.Error(), "refused") }
	WaitFor(t, "connections are refused", func() bool { _, err := o.Inspect(t.Context()); return refused(err) })
	WaitFor(t, "Lock names what Redis said last", func() bool { // on a busy machine, a refusal may come too late
		ctx, cancel := context.WithTimeout(t.Context(), OpTimeout)
		defer cancel()
		_, err := l.Lock(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, lock.ErrNotAcquired) {
			t.Fatalf("Lock: %v, want one that names the timeout, and no other owner", err)
		}
		return refused(err) && errors.Is(err, lock.ErrUnavailable)
	})
	if _, err := l.TryLock(t.Context()); !errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("TryLock: %v: a server that is down does not say that somebody has the lock", err)
	}
	if _, err := o.Inspect(t.Context()); !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("Inspect of a server that is down: %v", err)
	}
	s.Restart(t)
	MustUnlock(t, MustLock(t, l))
	WantEmpty(t, s)
}

// endless is a lease that does not expire in these tests, so a lock that is free was released.
var endless = lock.WithFixedLease(time.Hour)

// Every call returns by its deadline although the server does not respond, and the holder is
// notified at Until.
func serverFrozen(t *testing.T, k Kind) { testServerFrozen(t, k, false) }

// The same when a call that needs a connection hangs while dialing.
func serverFrozenDialing(t *testing.T, k Kind) { testServerFrozen(t, k, true) }

func testServerFrozen(t *testing.T, k Kind, dialing bool) {
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	rdb := s.Client(t, redistest.Via(p), func(o *rueidis.ClientOption) { o.Dialer.Timeout = 10 * time.Second })
	c := NewClient(t, rdb, Fast...)
	l := k.New(c, "orders")
	h, other := MustLock(t, l), MustLock(t, k.New(c, "other", endless))
	s.Freeze(t)
	if dialing {
		p.CutAll()
	}

	const deadline = 200 * time.Millisecond
	const slack = 5 * time.Second // for a busy machine; a call that ignores its limit takes 10 s or more
	var wg sync.WaitGroup
	for i := range 20 {
		for name, call := range map[string]func(context.Context) error{
			"Lock": func(ctx context.Context) error {
				_, err := k.New(c, fmt.Sprint("new", i), endless).Lock(ctx)
				return err
			},
			"TryLock": func(ctx context.Context) error {
				_, err := k.New(c, fmt.Sprint("try", i), endless).TryLock(ctx)
				return err
			},
			"reentry":     func(ctx context.Context) error { _, err := l.Lock(UnderOwner(ctx, h)); return err },
			"Inspect":     func(ctx context.Context) error { _, err := k.Operator(c, "orders").Inspect(ctx); return err },
			"ForceUnlock": func(ctx context.Context) error { _, err := k.Operator(c, "third").ForceUnlock(ctx); return err },
		} {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), deadline)
				for ctx.Err() != nil { // on a busy machine a goroutine can be delayed that long, and the call would then send nothing
					cancel()
					ctx, cancel = context.WithTimeout(t.Context(), deadline)
				}
				defer cancel()
				start := time.Now()
				err := call(ctx)
				took := time.Since(start)
				if took < deadline/2 && errors.Is(err, context.DeadlineExceeded) {
					return // the goroutine was delayed at that moment
				}
				if took > deadline+slack {
					t.Errorf("%s on a frozen server: %v after %v, its deadline was %v", name, err, took, deadline)
				}
				if dialing && errors.Is(err, lock.ErrUnavailable) && !errors.Is(err, lock.ErrNotAcquired) {
					return // its connection broke
				}
				wantAlone(t, err, context.DeadlineExceeded)
			})
		}
	}
	wg.Go(func() {
		start := time.Now()
		err := other.Unlock(t.Context()) // bounded although it has no deadline
		if took := time.Since(start); !errors.Is(err, os.ErrDeadlineExceeded) || !errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrNotHeld) || took > 2*OpTimeout+slack {
			t.Errorf("Unlock on a frozen server: %v after %v", err, took)
		}
	})
	wg.Wait()
	wantToldAtUntil(t, h)
	s.Thaw(t)
	SoonEmpty(t, s) // commands that were sent in the meantime are executed now, and undone
}

// The server is paused for longer than the waiter timeout of all waiters. They may have lost their
// queue positions, if they have any. All of them are served, and nothing is left.
func serverFrozenWaiting(t *testing.T, k Kind) {
	const patience = time.Second / 2
	s := redistest.Start(t)
	h := MustLock(t, k.rival().New(NewClient(t, s.Client(t)), "orders"))
	var waiters []*Waiter
	for range 2 {
		c := NewClient(t, s.Client(t))
		for range 5 {
			waiters = append(waiters, Go(t.Context(), k.New(c, "orders", k.patience(patience)...)))
		}
	}
	k.Waiting(t, s, "orders", len(waiters))
	s.Freeze(t)
	<-time.After(client.DefaultOpTimeout + patience) // the time for which the server is paused
	s.Thaw(t)
	MustUnlock(t, h)
	ServeAll(t, waiters...)
	SoonEmpty(t, s) // a command whose caller left may be executed late
}

// silence is part of the error of a call whose context was canceled before a reply.
const silence = ": no reply from Redis after "

// wantAlone fails the test unless err is the error of a context that was canceled before a reply, and matches no error of the
// lock.
func wantAlone(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) || errors.Is(err, lock.ErrNotAcquired) || errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), silence) {
		t.Errorf("%v, want %v alone", err, want)
	}
}

// wantToldAtUntil waits until h is lost, which must not be before its Until, because an unavailable
// server alone is not a loss. Until has passed if either clock shows it, because the wall clock may
// be changed in the meantime.
func wantToldAtUntil(t *testing.T, h lock.Hold) {
	t.Helper()
	until := h.Until()
	<-h.Context().Done()
	if early := min(time.Until(until), time.Until(until.Round(0))); early > 0 {
		t.Errorf("told %v before Until", early)
	}
	Lost(t, h)
}

// The network drops everything. The holder is notified at Until, and the rest of its lock is
// removed when the network recovers.
func partition(t *testing.T, k Kind) {
	s := redistest.Start(t)
	p := redistest.NewProxy(t, s.Addr())
	rdb := s.Client(t, redistest.Via(p), func(o *rueidis.ClientOption) { o.ConnWriteTimeout = 5 * time.Second })
	c := NewClient(t, rdb, Fast...)
	h := MustLock(t, k.New(c, "orders"))
	p.Freeze(true)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := k.New(c, "new", endless).Lock(ctx)
	wantAlone(t, err, context.DeadlineExceeded)
	wantToldAtUntil(t, h)
	p.Freeze(false)
	SoonEmpty(t, s)
	MustUnlock(t, MustLock(t, k.New(c, "orders")))
}

func readOnly(t *testing.T, k Kind) {
	master, s := redistest.Start(t), redistest.Start(t)
	l := k.New(NewClient(t, s.Client(t), Fast...), "orders")
	host, port, _ := strings.Cut(master.Addr(), ":")
	s.Do(t, "REPLICAOF", host, port)
	ctx, cancel := context.WithCancel(t.Context())
	waits := Go(ctx, l)
	AsksAgain(t, s)
	cancel()
	wait := waits.Err(t)
	var asked atomic.Int64
	p := redistest.NewProxy(t, s.Addr()) // a separate one, because a request of the canceled call can be late
	p.OnRequest(func(req [][]byte) redistest.Action {
		if strings.HasPrefix(strings.ToUpper(string(req[0])), "EVAL") {
			asked.Add(1)
		}
		return redistest.Action{}
	})
	_, try := k.New(NewClient(t, s.Client(t, redistest.Via(p)), Fast...), "orders").TryLock(t.Context())
	if n := asked.Load(); n == 0 || n > 2 { // the script may not be loaded on the server
		t.Errorf("TryLock asked a replica %d times", n)
	}
	for addr, err := range map[string]error{s.Addr(): wait, p.Addr(): try} {
		if !errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrNotAcquired) || !strings.Contains(err.Error(), "READONLY") || !strings.Contains(err.Error(), addr) {
			t.Errorf("on a replica: %v, want one that names it, %s", err, addr)
		}
	}
	w := Go(t.Context(), l)
	s.Do(t, "REPLICAOF", "NO", "ONE")
	MustUnlock(t, w.Hold(t))
	WantEmpty(t, s)
}

// AsksAgain waits until a call that the server rejects has retried. The first script may not be loaded, and renewals may be among
// the counted scripts.
func AsksAgain(t *testing.T, s *redistest.Server) {
	t.Helper()
	scripts := func() int64 { return s.CommandCalls(t, "evalsha") + s.CommandCalls(t, "eval") }
	before := scripts()
	WaitFor(t, "the call is repeated", func() bool { return scripts() >= before+4 })
}

// A server that became a replica, while a connection to it remains open, may not have a lock yet. The owner does not lose the
// lock because of such a server's replies.
func replicaThatMissedTheLock(t *testing.T, k Kind) {
	s, replica := redistest.Start(t), redistest.Start(t)
	replica.Do(t, "REPLICAOF", "127.0.0.1", "1") // no server is there, so it never receives the lock
	p := redistest.NewProxy(t, s.Addr())
	c := NewClient(t, s.Client(t, redistest.Via(p)), client.WithWatchdogTimeout(GateLease), client.WithOpTimeout(OpTimeout))
	h := MustLock(t, k.New(c, "orders"))

	p.Redirect(replica.Addr())
	p.CutAll()
	replica.ResetStats(t)
	WaitFor(t, "a renewal comes to the replica", func() bool { return replica.CommandCalls(t, "evalsha") > 0 })
	if _, err := k.New(c, "orders").TryLock(UnderOwner(t.Context(), h)); !errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrLost) {
		t.Errorf("reentry on a replica: %v", err)
	}
	if err := h.Unlock(t.Context()); !errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrLost) {
		t.Errorf("Unlock on a replica: %v", err)
	}
	p.Redirect(s.Addr())
	p.CutAll()
	SoonEmpty(t, s)
}

func memoryFull(t *testing.T, k Kind) {
	s := redistest.Start(t)
	c := NewClient(t, s.Client(t), Fast...)
	l := k.New(c, "orders")
	h := MustLock(t, l)
	s.Do(t, "CONFIG", "SET", "maxmemory", "100kb")
	s.ResetStats(t)
	if _, err := k.New(c, "new").TryLock(t.Context()); !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "OOM") || errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("TryLock of a new lock: %v, want OOM", err)
	}
	if n := s.CommandCalls(t, "evalsha") + s.CommandCalls(t, "eval"); n > 3 { // including a renewal, and the script may not be loaded on the server
		t.Errorf("TryLock asked %d times", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	denied := Go(ctx, k.New(c, "new"))
	AsksAgain(t, s)
	cancel()
	if err := denied.Err(t); !errors.Is(err, lock.ErrUnavailable) || !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "OOM") {
		t.Errorf("Lock of a new lock: %v, want OOM at the end of its wait", err)
	}
	other := NewClient(t, s.Client(t), Fast...) // in one script with a reentry, which may write, the new lock could be written as well
	waits := Go(t.Context(), k.New(other, "waits"))
	again, err := l.Lock(h.Context())
	if err != nil {
		t.Fatalf("reentry: %v", err)
	}
	first := h.Until()
	WaitFor(t, "it is renewed", func() bool { return h.Until().After(first.Add(WatchdogTimeout)) })
	k.WantHeld(t, s, "orders", h.Owner(), 2)
	MustUnlock(t, again)
	k.WantHeld(t, s, "orders", h.Owner(), 1)
	MustUnlock(t, h)
	if !waits.Waits() {
		t.Errorf("full memory ends a wait: %v", waits.Err(t))
	}
	s.Do(t, "CONFIG", "SET", "maxmemory", "0")
	MustUnlock(t, waits.Hold(t))
	WantEmpty(t, s)
}

// While memory is full, waiters continue to wait.
func memoryFullWaiting(t *testing.T, k Kind) {
	s := redistest.Start(t)
	h := MustLock(t, k.rival().New(NewClient(t, s.Client(t)), "orders"))
	c := NewClient(t, s.Client(t))
	var waiters []*Waiter
	for range 3 {
		waiters = append(waiters, Go(t.Context(), k.New(c, "orders")))
	}
	k.Waiting(t, s, "orders", len(waiters))
	s.Do(t, "CONFIG", "SET", "maxmemory", "100kb")
	s.ResetStats(t)
	s.Do(t, "CLIENT", "KILL", "TYPE", "pubsub") // makes waiters retry or send a heartbeat, which they also do periodically
	WaitFor(t, "some polls have passed", func() bool { return s.CommandCalls(t, "evalsha") >= 3 })
	for i, w := range waiters {
		if !w.Waits() {
			t.Errorf("waiter %d: %v", i, w.Err(t))
		}
	}
	s.Do(t, "CONFIG", "SET", "maxmemory", "0")
	MustUnlock(t, h)
	ServeAll(t, waiters...)
	WantEmpty(t, s)
}

func accessDenied(t *testing.T, k Kind) {
	s := redistest.Start(t)
	s.Do(t, append([]string{"ACL", "SETUSER", "locks", "on", "nopass", "&*", "+@all"}, k.Patterns("locks:")...)...)
	rdb := s.Client(t, func(o *rueidis.ClientOption) { o.Username, o.Password = "locks", "x" })
	c := NewClient(t, rdb, append(Fast, client.WithKeyPrefix("locks:"))...)
	h := MustLock(t, k.New(c, "orders"))

	outside := NewClient(t, rdb, Fast...)
	if err := Go(t.Context(), k.New(outside, "orders")).Err(t); err == nil || errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("Lock outside the allowed keys: %v, want the denial at once", err)
	}
	s.Do(t, "ACL", "SETUSER", "locks", "-evalsha", "-eval")
	if err := Go(t.Context(), k.New(c, "more")).Err(t); err == nil || !strings.Contains(err.Error(), "NOPERM") {
		t.Errorf("Lock: %v, want NOPERM", err)
	}
	wantToldAtUntil(t, h)
	if !strings.Contains(h.Err().Error(), "NOPERM") && !errors.Is(h.Err(), os.ErrDeadlineExceeded) { // on a busy machine the last renewal may not be denied in time
		t.Errorf("cause %v does not say that renewals were denied", h.Err())
	}
	s.Do(t, "ACL", "SETUSER", "locks", "+evalsha", "+eval")
	SoonEmpty(t, s)
}

// A channel that is denied costs its own waiters their hints, and no others.
func deniedChannel(t *testing.T, k Kind) {
	k.eachWay(t, func(t *testing.T, holds, waits Kind) {
		s := redistest.Start(t)
		s.Do(t, "ACL", "SETUSER", "locks", "on", "nopass", "resetchannels", "~*", "&"+k.Channel("allowed")+"*", "&leasehold_channel:{allowed}*", "+@all")
		as := func(o *rueidis.ClientOption) { o.Username, o.Password = "locks", "x" }
		holder, waiter := NewClient(t, s.Client(t, as)), NewClient(t, s.Client(t, as))
		denied, allowed := MustLock(t, holds.New(holder, "denied")), MustLock(t, holds.New(holder, "allowed"))
		deaf := Go(t.Context(), waits.New(waiter, "denied"))
		WaitFor(t, "it was denied", func() bool {
			log := s.Do(t, "ACL", "LOG")
			denials, _ := log.ToArray()
			return len(denials) > 0
		})
		hears := Go(t.Context(), waits.New(waiter, "allowed"))
		WaitFor(t, "the other one listens", func() bool { return k.listeners(t, s, "allowed") == 1 })

		first := Text(s.Do(t, "CLIENT", "LIST", "TYPE", "pubsub"))
		s.ResetStats(t)
		WaitFor(t, "some polls have passed", func() bool { return s.CommandCalls(t, "evalsha") >= 4 })
		second := Text(s.Do(t, "CLIENT", "LIST", "TYPE", "pubsub"))
		if a, b := connection(first), connection(second); a != b || a == "" {
			t.Errorf("the hints' connection was %q and is %q: a denied channel must not break it", a, b)
		}
		MustUnlock(t, denied, allowed)
		MustUnlock(t, deaf.Hold(t), hears.Hold(t))
		WantEmpty(t, s)
	})
}

// connection returns the id in a line of CLIENT LIST.
func connection(list string) string {
	_, rest, _ := strings.Cut(list, "id=")
	id, _, _ := strings.Cut(rest, " ")
	return id
}

// somebody is an owner that does not belong to any client of these tests.
const somebody = "3f0c2a52-6f8e-4a3b-9d53-2f9b1c6f5a10:1"

func foreignKey(t *testing.T, k Kind) {
	s := redistest.Start(t)
	c := NewClient(t, s.Client(t)) // it queries the content of a key for a quarter of the operation timeout
	l, o := k.New(c, "orders"), k.Operator(c, "orders")
	check := func(what, says string) {
		t.Helper()
		for name, call := range map[string]func() error{
			"lock":         func() error { return Go(t.Context(), l).Err(t) },
			"trylock":      func() error { _, err := l.TryLock(t.Context()); return err },
			"inspect":      func() error { _, err := o.Inspect(t.Context()); return err },
			"force-unlock": func() error { _, err := o.ForceUnlock(t.Context()); return err },
		} {
			if err := call(); !errors.Is(err, lock.ErrWrongType) || !strings.HasPrefix(err.Error(), "leasehold: "+name+` "orders": `) || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%s of %s: %v, want ErrWrongType, and %q", name, what, err, says)
			}
		}
	}
	s.Do(t, "SET", "orders", "mine")
	check("a string", "a string, as the locks of redsync and redislock are")
	if got := Text(s.Do(t, "GET", "orders")); got != "mine" {
		t.Errorf("the foreign key became %q", got)
	}
	s.Do(t, "SET", "orders", "3")
	check("a semaphore", "a number, as semaphores and latches are")
	s.Do(t, "DEL", "orders")
	setHash(t, s, "orders", k.OtherKind)
	called := "a plain or a fair lock"
	if k.OtherKind["mode"] != "" {
		called = "a read/write lock"
	}
	check("a lock of another kind", called)
	WantHash(t, s, "orders", k.OtherKind)
	s.Do(t, "DEL", "orders")
	s.Do(t, "RPUSH", "orders", "secret")
	check("a list", "a list")
	s.Do(t, "DEL", "orders")
	s.Do(t, "HSET", "orders", "secret-field", "secret-value")
	if _, err := o.Inspect(t.Context()); !errors.Is(err, lock.ErrWrongType) || strings.Contains(err.Error(), "secret") {
		t.Errorf("Inspect of a hash of somebody else's: %v, want ErrWrongType, and nothing of what is in it", err)
	}
	s.Do(t, "DEL", "orders")
	h := MustLock(t, k.New(NewClient(t, s.Client(t), Fast...), "orders"))
	s.Do(t, "SET", "orders", "theirs now")
	Lost(t, h, lock.ErrWrongType)
	if got := Text(s.Do(t, "GET", "orders")); got != "theirs now" {
		t.Errorf("the foreign key became %q", got)
	}
}

func unlockOfAForeignKey(t *testing.T, k Kind) {
	s := redistest.Start(t)
	c := NewClient(t, s.Client(t))
	for _, what := range []struct {
		name    string
		steal   func()
		foreign bool
	}{
		{"string", func() { s.Do(t, "SET", "orders", "x") }, true},
		{"other hash", func() { s.Do(t, "DEL", "orders"); s.Do(t, "HSET", "orders", "name", "bob") }, k.TellsHashes},
		{"other kind", func() { s.Do(t, "DEL", "orders"); setHash(t, s, "orders", k.OtherKind) }, k.TellsHashes},
		{"count gone", func() { s.Do(t, "DEL", "orders") }, false},
		{"other owner", func() { s.Do(t, "DEL", "orders"); k.take(t, s, "orders", somebody) }, false},
	} {
		h := MustLock(t, k.New(c, "orders"))
		what.steal()
		before := Text(s.Do(t, "DUMP", "orders"))
		err := h.Unlock(t.Context())
		if !errors.Is(err, lock.ErrNotHeld) || !errors.Is(err, lock.ErrLost) || errors.Is(err, lock.ErrWrongType) != what.foreign {
			t.Errorf("%s: unlock says %v", what.name, err)
		}
		if after := Text(s.Do(t, "DUMP", "orders")); after != before {
			t.Errorf("%s: it was changed from %q to %q", what.name, before, after)
		}
		s.Do(t, "DEL", "orders")
	}
}

func forceUnlockOfSomethingElse(t *testing.T, k Kind) {
	s := redistest.Start(t)
	c := NewClient(t, s.Client(t), Fast...)
	s.Do(t, "HSET", "user:1", "name", "bob")
	if was, err := k.Operator(c, "user:1").ForceUnlock(t.Context()); was || !errors.Is(err, lock.ErrWrongType) {
		t.Errorf("ForceUnlock: %v, %v", was, err)
	}
	if err := Go(t.Context(), k.New(c, "user:1")).Err(t); !errors.Is(err, lock.ErrWrongType) {
		t.Errorf("Lock: %v", err)
	}
	WantHash(t, s, "user:1", map[string]string{"name": "bob"})
}

func deletedByHand(t *testing.T, k Kind) {
	s := redistest.Start(t)
	c := NewClient(t, s.Client(t), Fast...)
	for _, steal := range [][]string{{"DEL", "orders"}, {"RENAME", "orders", "elsewhere"}, {"FLUSHALL"}} {
		h := MustLock(t, k.New(c, "orders"))
		s.Do(t, steal...)
		k.take(t, s, "orders", somebody)
		Lost(t, h)
		WantHash(t, s, "orders", k.rival().Hash(somebody, 1))
		if left := Number(s.Do(t, "PTTL", "orders")); left != -1 {
			t.Errorf("after %v the next owner's lock was given an expiry of %d ms", steal, left)
		}
		s.Do(t, "FLUSHALL")
	}
}

func reentryIntoALostLock(t *testing.T, k Kind) {
	s := redistest.Start(t)
	c := NewClient(t, s.Client(t))
	ctx := lock.ContextWithNewOwner(t.Context())
	l := k.New(c, "orders")
	h := MustLockUnder(t, ctx, l)
	for _, steal := range [][]string{{"DEL", "orders"}, {"FLUSHALL"}} {
		s.Do(t, steal...)
		if err := Go(ctx, l).Err(t); !errors.Is(err, lock.ErrLost) {
			t.Errorf("reentry: %v, want ErrLost: it must not take the lock afresh", err)
		}
		Lost(t, h) // notified by the failed reentry, long before the first renewal
		WantHash(t, s, "orders", nil)
		again := MustLockUnder(t, ctx, l) // and now a fresh acquisition
		if again.Owner() == h.Owner() {
			t.Error("two tenures have one owner in Redis: a late command of the first could end the second")
		}
		h = again
	}
	k.WantHeld(t, s, "orders", h.Owner(), 1)
	MustUnlock(t, h)
	WantEmpty(t, s)
}

// The lock's keys have no expiry. Waiters continue to retry, and the holder's renewal sets an
// expiry again.
func persistedByHand(t *testing.T, k Kind) {
	s := redistest.Start(t)
	c := NewClient(t, s.Client(t), Fast...)
	h := MustLock(t, k.New(c, "orders"))
	for _, key := range k.Keys("orders", h.Owner(), 1) {
		s.Do(t, "PERSIST", key)
		WaitFor(t, "the expiry is back", func() bool { return Number(s.Do(t, "PTTL", key)) > 0 })
	}
	MustUnlock(t, h)

	k.take(t, s, "orders", somebody)
	state, err := k.Operator(NewClient(t, s.Client(t)), "orders").Inspect(t.Context())
	if err != nil || state.Lease != lock.NoExpiry || state.HoldCount(somebody) != 1 {
		t.Errorf("Inspect: %+v, %v", state, err)
	}
	w := Go(t.Context(), k.New(c, "orders", endless))
	k.Waiting(t, s, "orders", 1)
	s.Do(t, "DEL", "orders") // without a notification
	MustUnlock(t, w.Hold(t))
	WantEmpty(t, s)
}

func closeClient(t *testing.T, k Kind) {
	s := redistest.Start(t)
	rdb := s.Client(t)
	c, err := client.New(rdb, client.WithoutRegistry())
	if err != nil {
		t.Fatal(err)
	}
	theirs := MustLock(t, k.rival().New(NewClient(t, s.Client(t)), "theirs"))
	var holds []lock.Hold
	for i := range 200 {
		holds = append(holds, MustLock(t, k.New(c, fmt.Sprint("mine", i))))
	}
	holds = append(holds, MustLockUnder(t, holds[0].Context(), k.New(c, "mine0")))
	var waiters []*Waiter
	for range 3 {
		waiters = append(waiters, Go(t.Context(), k.New(c, "theirs")))
	}
	k.Waiting(t, s, "theirs", len(waiters))

	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Close(over); err != nil { // Close works although its context is canceled
		t.Errorf("Close: %v", err)
	}
	for _, w := range waiters {
		if err := w.Err(t); !errors.Is(err, lock.ErrClosed) {
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
	k.rival().WantHeld(t, s, "theirs", theirs.Owner(), 1) // and no other key
	k.Waiting(t, s, "theirs", 0)
	if _, err := k.New(c, "new").Lock(t.Context()); !errors.Is(err, lock.ErrClosed) {
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
	MustUnlock(t, theirs)
}

func closeOnAFrozenServer(t *testing.T, k Kind) {
	s := redistest.Start(t)
	c, err := client.New(s.Client(t, func(o *rueidis.ClientOption) { o.ConnWriteTimeout = 5 * time.Second }), Fast...)
	if err != nil {
		t.Fatal(err)
	}
	h := MustLock(t, k.New(c, "orders"))
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
	SoonEmpty(t, s)
}

func forceUnlock(t *testing.T, k Kind) {
	s := redistest.Start(t)
	a, b := NewClient(t, s.Client(t), Fast...), NewClient(t, s.Client(t), Fast...)
	if was, err := k.Operator(a, "orders").ForceUnlock(t.Context()); was || err != nil {
		t.Errorf("of a free lock: %v, %v", was, err)
	}
	local, remote := MustLock(t, k.New(a, "orders")), MustLock(t, k.New(b, "remote"))
	w := Go(t.Context(), k.rival().New(b, "orders"))
	k.Waiting(t, s, "orders", 1)
	for _, name := range []string{"orders", "remote"} {
		if was, err := k.Operator(a, name).ForceUnlock(t.Context()); !was || err != nil {
			t.Errorf("%s: %v, %v", name, was, err)
		}
	}
	if err := local.Err(); !errors.Is(err, lock.ErrLost) {
		t.Errorf("the holder of this client was not told at once: %v", err)
	}
	MustUnlock(t, w.Hold(t))
	Lost(t, remote) // it detects the loss with its next renewal
	WantEmpty(t, s)
}

func inspect(t *testing.T, k Kind) {
	s := redistest.Start(t)
	c := NewClient(t, s.Client(t))
	o := k.Operator(c, "orders")
	state, err := o.Inspect(t.Context())
	if err != nil || state.Locked() || state.Mode != lock.Free || state.Name != "orders" {
		t.Errorf("of a free lock: %+v, %v", state, err)
	}
	h := MustLock(t, k.New(c, "orders"))
	again := MustLockUnder(t, h.Context(), k.New(c, "orders"))
	state, err = o.Inspect(t.Context())
	if err != nil || state.Mode != k.Mode || state.HoldCount(h.Owner()) != 2 || len(state.Holders) != 1 || state.Holders[0].Mode != k.Mode {
		t.Errorf("of two holds: %+v, %v", state, err)
	}
	if state.Lease < client.DefaultWatchdogTimeout-5*time.Second || state.Lease > client.DefaultWatchdogTimeout {
		t.Errorf("lease %v", state.Lease)
	}
	MustUnlock(t, again, h)
}

func keyPrefix(t *testing.T, k Kind) {
	s := redistest.Start(t)
	c := NewClient(t, s.Client(t), client.WithKeyPrefix("shop:"))
	h := MustLock(t, k.New(c, "orders"))
	k.WantHeld(t, s, "shop:orders", h.Owner(), 1)
	MustUnlock(t, h)
}

// However many waiters a process has, it sends requests once for all of them, apart from the
// requests that each waiter sends when it arrives.
func waitersOfOneProcessAskOnce(t *testing.T, k Kind) {
	const waiters = 200
	s := redistest.Start(t)
	holder, c := NewClient(t, s.Client(t)), NewClient(t, s.Client(t))
	h := MustLock(t, k.rival().New(holder, "orders"))
	ctx, cancel := context.WithCancel(t.Context())
	start := time.Now()
	s.ResetStats(t)
	var all []*Waiter
	for range waiters {
		all = append(all, Go(ctx, k.New(c, "orders")))
	}
	k.Waiting(t, s, "orders", waiters)
	before := s.CommandCalls(t, "evalsha")
	WaitFor(t, "two polls have passed", func() bool {
		return time.Since(start) > 2500*time.Millisecond && s.CommandCalls(t, "evalsha") >= before+2
	})
	calls := s.CommandCalls(t, "evalsha")
	took := time.Since(start)
	if most := int64(k.Requests*waiters) + int64(took/time.Second) + 6; calls > most {
		t.Errorf("%d requests in %v for %d waiters, want no more than %d", calls, took, waiters, most)
	}
	cancel()
	for _, w := range all {
		if err := w.Err(t); !errors.Is(err, lock.ErrNotAcquired) || !errors.Is(err, context.Canceled) {
			t.Errorf("a waiter: %v", err)
		}
	}
	k.Waiting(t, s, "orders", 0)
	MustUnlock(t, h)
	SoonEmpty(t, s)
}

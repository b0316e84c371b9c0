package multilock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/kindtest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/multilock"
)

// user has a client on each of several servers.
type user []*client.Client

func newUser(t *testing.T, servers ...*redistest.Server) (u user) {
	return newUserWith(t, servers, kindtest.Fast...)
}

func newUserWith(t *testing.T, servers []*redistest.Server, opts ...client.Option) (u user) {
	for _, s := range servers {
		u = append(u, kindtest.NewClient(t, s.Client(t), opts...))
	}
	return u
}

// waiters counts the waiting calls, by name of the lock.
type waiters struct {
	mu sync.Mutex
	n  map[string]int // guarded by mu
}

// observer returns an observer that counts.
func (w *waiters) observer() lock.Observer {
	add := func(name string, n int) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.n[name] += n
	}
	ends := func(_ context.Context, e lock.Event) {
		if e.Waited > 0 {
			add(e.Name, -1)
		}
	}
	return lock.Observer{
		Waiting:  func(_ context.Context, e lock.Event) { add(e.Name, 1) },
		Acquired: ends, NotAcquired: ends, TimedOut: ends, Canceled: ends, Unavailable: ends, Failed: ends,
	}
}

// count implements locktest.Harness.Waiters: a call waits for one of the locks at a time.
func (w *waiters) count(_ context.Context, name string) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.n[name] + w.n[name+":b"] + w.n[name+":c"], nil
}

// together returns a multi-lock of locks on one server, which one script acquires.
func (u user) together(name string, opts ...lock.Option) lock.Locker {
	c := u[0]
	return single{multilock.New(c.NewLock(name, opts...), c.NewLock(name+":b", opts...), c.NewLock(name+":c", opts...)), name}
}

// apart returns a multi-lock of locks of several types and clients, which are acquired one by one.
func (u user) apart(name string, opts ...lock.Option) lock.Locker {
	return single{multilock.New(u[1].NewFairLock(name+":c", opts...), u[0].NewLock(name, opts...), u[2].NewRWLock(name+":b", opts...).Write()), name}
}

// quorum returns a quorum.
func (u user) quorum(name string, opts ...lock.Option) lock.Locker {
	var locks []lock.Locker
	for _, c := range u {
		locks = append(locks, c.NewLock(name, opts...))
	}
	options := []multilock.Option{multilock.WithMaxLease(kindtest.WatchdogTimeout), multilock.WithServerTimeout(kindtest.OpTimeout)}
	if config, err := lockimpl.NewConfig("a plain lock", lockimpl.All, opts...); err == nil && config.Wait > 0 {
		options = append(options, multilock.WithWait(config.Wait))
	}
	return single{multilock.NewQuorum(locks, options...), name}
}

// single makes several locks look like a single lock, for the rules about a name, an owner and a token, which only a single
// lock has.
type single struct {
	lock.Locker
	name string
}

func (l single) Name() string { return l.name }

func (l single) Lock(ctx context.Context) (lock.Hold, error) { return l.hold(l.Locker.Lock(ctx)) }

func (l single) TryLock(ctx context.Context) (lock.Hold, error) {
	return l.hold(l.Locker.TryLock(ctx))
}

func (l single) hold(h lock.Hold, err error) (lock.Hold, error) {
	if err != nil {
		return nil, err
	}
	owner, _ := lockimpl.OwnerFrom(h.Context())
	one := singleHold{Hold: h, owner: fmt.Sprintf("00000000-0000-0000-0000-000000000000:%d", owner)}
	if strings.HasSuffix(l.name, ":tokens") {
		// A quorum does not wait for the last vote. A rule expects the same token on reentry, so
		// both holds need the same servers.
		for deadline := time.Now().Add(kindtest.WatchdogTimeout); len(multilock.Holds(h)) < 3 && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
	}
	for _, member := range multilock.Holds(h) {
		one.token = max(one.token, member.Token()) // the servers of this test share one clock
	}
	return one, nil
}

type singleHold struct {
	lock.Hold
	owner string
	token uint64
}

func (h singleHold) Owner() string { return h.owner }
func (h singleHold) Token() uint64 { return h.token }

// All ways to acquire several locks keep the rules of package locktest.
func TestRules(t *testing.T) {
	t.Parallel()
	servers := []*redistest.Server{redistest.Start(t), redistest.Start(t), redistest.Start(t)}
	waiting := &waiters{n: make(map[string]int)}
	a, b := newUserWith(t, servers, append([]client.Option{client.WithObserver(waiting.observer())}, kindtest.Fast...)...), newUser(t, servers...)
	t.Cleanup(func() { // when all subtests have ended
		for _, s := range servers {
			kindtest.SoonEmpty(t, s)
		}
	})
	up := func() bool { // up for long enough to vote
		for _, s := range servers {
			server, err := newUser(t, s)[0].NewLock("any").Server(t.Context())
			if err != nil || time.Since(server.Since) < kindtest.WatchdogTimeout {
				return false
			}
		}
		return true
	}
	for name, h := range map[string]locktest.Harness{
		"together": {New: a.together, Other: b.together, Watchdog: kindtest.WatchdogTimeout, Waiters: waiting.count},
		"apart":    {New: a.apart, Other: b.apart, Watchdog: kindtest.WatchdogTimeout, Waiters: waiting.count},
		"quorum":   {New: a.quorum, Other: b.quorum, Watchdog: kindtest.WatchdogTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "quorum" {
				kindtest.WaitFor(t, "the servers have a vote", up)
			}
			locktest.Run(t, h)
		})
	}
}

// The releases of several locks are delayed. Unlock waits for none of them if all locks have lock.WithAsyncUnlock, and the
// next attempt comes after them. Unlock waits for a lock without the option.
func TestAsyncUnlock(t *testing.T) {
	t.Parallel()
	var u user
	var proxies []*redistest.Proxy
	for range 3 {
		s := redistest.Start(t)
		p := redistest.NewProxy(t, s.Addr())
		u, proxies = append(u, kindtest.NewClient(t, s.Client(t, redistest.Via(p)), kindtest.Fast...)), append(proxies, p)
	}
	all := map[string]lock.Locker{
		"together": u.together("orders", lock.WithAsyncUnlock()),
		"apart":    u.apart("orders", lock.WithAsyncUnlock()),
		"quorum":   multilock.NewQuorum([]lock.Locker{u[0].NewLock("q", lock.WithAsyncUnlock()), u[1].NewLock("q", lock.WithAsyncUnlock()), u[2].NewLock("q", lock.WithAsyncUnlock())}, multilock.WithMaxLease(kindtest.WatchdogTimeout), multilock.WithServerTimeout(kindtest.OpTimeout), multilock.WithDurableServers()),
	}
	for name, l := range all {
		h := kindtest.MustLock(t, l)
		goes := make(chan struct{})
		var releases atomic.Int64
		for _, p := range proxies {
			p.OnRequest(func([][]byte) redistest.Action {
				releases.Add(1)
				return redistest.Action{HoldRequest: goes}
			})
		}
		if err := h.Unlock(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		kindtest.WaitFor(t, "the releases are sent", func() bool { return releases.Load() >= map[string]int64{"together": 1, "apart": 1, "quorum": 2}[name] })
		for _, p := range proxies {
			p.OnRequest(nil)
		}
		next := make(chan error)
		go func() { next <- lock.TryDo(t.Context(), l, func(context.Context) error { return nil }) }()
		close(goes)
		if err := <-next; err != nil {
			t.Errorf("%s, the next attempt: %v", name, err)
		}
	}

	h := kindtest.MustLock(t, multilock.New(u[0].NewLock("a", lock.WithAsyncUnlock()), u[1].NewLock("b")))
	proxies[1].OnRequest(func([][]byte) redistest.Action { return redistest.Action{DropRequest: true} })
	if err := h.Unlock(t.Context()); !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("Unlock of a lock without the option: %v", err)
	}
	proxies[1].OnRequest(nil)
	proxies[1].CutAll()
}

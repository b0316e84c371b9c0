package locktest

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/lock"
)

// wrong is a lock with a bug, and the rules that it breaks, each with a part of the expected failure. It is not enough
// that a rule fails.
type wrong struct {
	what   string
	locks  func(a, b *client.Client) (Harness, RWHarness)
	breaks map[string]string
}

// testBroken fails unless each rule is broken by one of the wrong locks, and each wrong lock breaks the rules that it
// should. A rule that no lock breaks tests nothing.
func testBroken(t *testing.T, rules []rule, locks []wrong) {
	for _, r := range rules {
		broken := false
		for _, l := range locks {
			says, ok := l.breaks[r.name]
			if !ok {
				continue
			}
			broken = true
			inBubble(t, r.name+", when "+l.what, func(t *testing.T) {
				if said := failuresOf(t, r, l.locks); !strings.Contains(said, says) {
					t.Errorf("the suite says %q, want something with %q", said, says)
				}
			})
		}
		if !broken {
			t.Errorf("no wrong lock breaks the rule %q", r.name)
		}
	}
}

// keeps fails unless locks keep all rules.
func keeps(t *testing.T, rules []rule, locks func(a, b *client.Client) (Harness, RWHarness)) {
	for _, r := range rules {
		inBubble(t, r.name, func(t *testing.T) {
			if said := failuresOf(t, r, locks); said != "" {
				t.Error(said)
			}
		})
	}
}

// inBubble runs a subtest in virtual time: long waits cost nothing, and a busy machine does not look like a broken lock.
// Run, RunFair and RunRW cannot be called in a bubble, which has no subtests; the tests of each type call them, on a real
// server.
func inBubble(t *testing.T, name string, test func(*testing.T)) {
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, test)
	})
}

// watchdog is the watchdog timeout of the clients.
const watchdog = time.Second

// failuresOf tests a rule on the locks of two clients of an in-memory server, and returns its failures.
func failuresOf(t *testing.T, r rule, locks func(a, b *client.Client) (Harness, RWHarness)) string {
	s := NewServer(t)
	short := client.WithWatchdogTimeout(watchdog)
	v := &recorder{}
	on := &trial{TB: v, lock: "it"}
	on.h, on.rw = locks(s.Client(t, short), s.Client(t, short))
	done := make(chan struct{})
	go func() { // in a separate goroutine, because Fatal ends it
		defer close(done)
		r.try(t.Context(), on, 10*watchdog)
	}()
	<-done
	v.mu.Lock()
	defer v.mu.Unlock()
	return strings.Join(v.said, "\n")
}

// recorder is a testing.TB that only records failures.
type recorder struct {
	testing.TB

	mu   sync.Mutex
	said []string
}

func (v *recorder) Helper() {}

func (v *recorder) Errorf(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.said = append(v.said, fmt.Sprintf(format, args...))
}

func (v *recorder) Fatalf(format string, args ...any) {
	v.Errorf(format, args...)
	runtime.Goexit()
}

// maker returns the locks of one client.
type maker = func(name string, opts ...option) locker

type (
	option = lock.Option
	locker = lock.Locker

	acquiring func(ctx context.Context, l locker, wait bool) (lock.Hold, error) // a way to lock l
	changing  func(l locker, h lock.Hold) lock.Hold                             // returns the hold to use instead of a hold of l
)

// acquire locks l correctly.
func acquire(ctx context.Context, l locker, wait bool) (lock.Hold, error) {
	if wait {
		return l.Lock(ctx)
	}
	return l.TryLock(ctx)
}

// right changes nothing.
func right(mk maker) maker { return mk }

// with adds options to locks.
func with(more ...option) func(maker) maker {
	return func(mk maker) maker {
		return func(name string, opts ...option) locker { return mk(name, append(opts, more...)...) }
	}
}

// changed returns locks with a different way to lock and, if change is not nil, different holds.
func changed(way acquiring, change changing) func(maker) maker {
	return func(mk maker) maker {
		return func(name string, opts ...option) locker { return changedLock{mk(name, opts...), way, change} }
	}
}

type changedLock struct {
	locker
	way    acquiring
	change changing
}

func (l changedLock) Lock(ctx context.Context) (lock.Hold, error)    { return l.acquire(ctx, true) }
func (l changedLock) TryLock(ctx context.Context) (lock.Hold, error) { return l.acquire(ctx, false) }

func (l changedLock) acquire(ctx context.Context, wait bool) (lock.Hold, error) {
	h, err := l.way(ctx, l.locker, wait)
	if err == nil && l.change != nil {
		h = l.change(l.locker, h)
	}
	return h, err
}

// unlocks returns holds with a different way to unlock.
func unlocks(way func(ctx context.Context, l locker, h lock.Hold) error) changing {
	return func(l locker, h lock.Hold) lock.Hold {
		return changedHold{h, func(ctx context.Context) error { return way(ctx, l, h) }}
	}
}

type changedHold struct {
	lock.Hold
	unlock func(context.Context) error
}

func (h changedHold) Unlock(ctx context.Context) error { return h.unlock(ctx) }

// token7 gives all holds the same token.
func token7(_ locker, h lock.Hold) lock.Hold { return sevenHold{h} }

type sevenHold struct{ lock.Hold }

func (sevenHold) Token() uint64 { return 7 }

// lazyHold ignores Extend.
type lazyHold struct{ lock.Hold }

func (lazyHold) Extend(context.Context, time.Duration) error { return nil }

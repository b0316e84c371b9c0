package locktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/latch"
	"github.com/leasehold-go/leasehold/lock"
)

// Latch is what [RunLatch] needs of a latch. *latch.Latch implements it.
type Latch interface {
	Name() string
	TrySetCount(ctx context.Context, n int64) (created bool, err error)
	CountDown(ctx context.Context) (left int64, err error)
	CountDownOnce(ctx context.Context, part string) (left int64, err error)
	Count(ctx context.Context) (left int64, err error)
	Delete(ctx context.Context) error
	Wait(ctx context.Context) error
}

// LatchHarness creates the latches that [RunLatch] tests.
type LatchHarness struct {
	// New returns a handle of the latch called name, always of the same client.
	New func(name string) Latch

	// Other returns a handle of another client on the same server, as another process would.
	Other func(name string) Latch
}

// RunLatch tests every rule of a latch, each in a subtest named after it. A latch leaves keys in
// Redis for a day.
//
//	locktest.RunLatch(t, locktest.LatchHarness{
//		New:   func(name string) locktest.Latch { return a.NewLatch(name) },
//		Other: func(name string) locktest.Latch { return b.NewLatch(name) },
//	})
func RunLatch(t *testing.T, h LatchHarness) { try(t, latchRules, Harness{latch: &h}, RWHarness{}) }

// latchRules are in the order of a latch's life cycle.
var latchRules = []rule{
	{name: "never made", says: "every call on a latch that nobody made fails with ErrNotInitialized, and Delete succeeds", test: latchNotCreated},
	{name: "bad counts", says: "a count below 1 or above MaxCount, and a part without a name or with a long one, are errors that change nothing", test: badCounts},
	{name: "made once", says: "TrySetCount makes a latch once, and a later call leaves its count", test: latchCreatedOnce},
	{name: "counts", says: "each count down of either client counts by one, and says what is left", test: counts},
	{name: "latch waits", says: "Wait of either client returns at the last count down, and not before", test: latchWaits},
	{name: "open", says: "Wait returns at once on an open latch, and a count down of it does nothing", test: releasedLatch},
	{name: "counted once", says: "a part counts once in a round, whichever client counts it, and however often", test: countedOnce},
	{name: "rounds", says: "an open latch can be made anew, and a wait for that round ends with it", test: rounds},
	{name: "deleted", says: "Delete ends every wait with ErrDeleted, and nothing is known of the latch after it", test: deletedLatch},
	{name: "cancelled wait for a latch", says: "a wait that its context ends returns the error of the context, and others wait on", test: canceledLatchWait},
	{name: "names of latches", says: "a name with braces is ErrBadName, and odd names are latches of their own", test: latchNames},
	{name: "many count", says: "under contention of two clients each count is left once, and one caller opens the latch", test: manyCount},
}

// latches returns a handle of the trial's latch for each client.
func (t *trial) latches() (a, b Latch) { return t.h.latch.New(t.lock), t.h.latch.Other(t.lock) }

// make creates the latch.
func (t *trial) make(l Latch, n int64) {
	t.Helper()
	if created, err := l.TrySetCount(t.ctx, n); err != nil || !created {
		t.fatal("a latch of %d: made is %v, error %v", n, created, err)
	}
}

// left returns a check that a call returned this remaining count.
func (t *trial) left(want int64) func(got int64, err error) {
	t.Helper()
	return func(got int64, err error) {
		t.Helper()
		if err != nil || got != want {
			t.broken("%d are left (error %v), want %d", got, err, want)
		}
	}
}

// ending is a waiting call in its own goroutine.
type ending struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when it has returned
	err    error         // the returned error
}

// begin starts a waiting call. It ends with the trial at the latest.
func (t *trial) begin(wait func(ctx context.Context) error) *ending {
	ctx, cancel := context.WithCancel(t.ctx)
	e := &ending{cancel: cancel, done: make(chan struct{})}
	t.waiters.Go(func() {
		e.err = wait(ctx)
		close(e.done)
	})
	return e
}

// waitOn fails if any of the waits ends within aWhile.
func (t *trial) waitOn(waits ...*ending) {
	t.Helper()
	time.Sleep(aWhile)
	for i, w := range waits {
		select {
		case <-w.done:
			t.broken("wait %d ended: %v", i, w.err)
		default:
		}
	}
}

// ended waits until the waits end, and fails if any of them returns an error.
func (t *trial) ended(waits ...*ending) {
	t.Helper()
	for i, w := range waits {
		if <-w.done; w.err != nil {
			t.broken("wait %d: %v", i, w.err)
		}
	}
}

// failed waits until the waits end, and fails unless their errors match target and name the latch or wait group.
func (t *trial) failed(target error, waits ...*ending) {
	t.Helper()
	for _, w := range waits {
		<-w.done
		t.named(w.err, target)
	}
}

// deleted waits until the waits end, and fails unless they report that the object was deleted. A call that starts too late
// finds no object.
func (t *trial) deleted(waits ...*ending) {
	t.Helper()
	for _, w := range waits {
		if <-w.done; !errors.Is(w.err, latch.ErrNotInitialized) {
			t.named(w.err, latch.ErrDeleted)
		}
	}
}

// named fails unless err matches target, and names an operation and the object. A nil target matches any error.
func (t *trial) named(err, target error) {
	t.Helper()
	var e *lock.Error
	if !errors.As(err, &e) || e.Op == "" || target != nil && !errors.Is(err, target) {
		t.broken("error %v, want a *lock.Error with an operation that matches %v", err, target)
	}
	if target == context.Canceled {
		t.wantOnlyContextError(err)
	}
}

func latchNotCreated(t *trial) {
	a, b := t.latches()
	absent := func() {
		t.Helper()
		t.named(a.Wait(t.ctx), latch.ErrNotInitialized)
		_, err := b.Count(t.ctx)
		t.named(err, latch.ErrNotInitialized)
		_, err = a.CountDown(t.ctx)
		t.named(err, latch.ErrNotInitialized)
		_, err = b.CountDownOnce(t.ctx, "part")
		t.named(err, latch.ErrNotInitialized)
	}
	absent()
	if err := b.Delete(t.ctx); err != nil {
		t.broken("delete: %v", err)
	}
	absent()
	if a.Name() != t.lock {
		t.broken("Name is %q", a.Name())
	}
}

func badCounts(t *trial) {
	a, b := t.latches()
	bad := func() {
		t.Helper()
		for _, n := range []int64{0, -1, latch.MaxCount + 1, -1 << 63} {
			created, err := a.TrySetCount(t.ctx, n)
			if t.named(err, nil); created {
				t.broken("a count of %d made a latch", n)
			}
		}
		for _, part := range []string{"", strings.Repeat("x", 257)} {
			_, err := a.CountDownOnce(t.ctx, part)
			t.named(err, nil)
		}
	}
	bad()
	_, err := b.Count(t.ctx)
	t.named(err, latch.ErrNotInitialized)
	t.make(b, latch.MaxCount)
	bad()
	t.left(latch.MaxCount)(a.Count(t.ctx))
	t.left(latch.MaxCount - 1)(a.CountDownOnce(t.ctx, strings.Repeat("x", 256)))
}

func latchCreatedOnce(t *trial) {
	a, b := t.latches()
	t.make(a, 2)
	for _, l := range []Latch{a, b} {
		if created, err := l.TrySetCount(t.ctx, 7); created || err != nil {
			t.broken("made twice: %v, error %v", created, err)
		}
	}
	t.left(2)(b.Count(t.ctx))
}

func counts(t *trial) {
	a, b := t.latches()
	t.make(b, 4)
	for n, l := range []Latch{b, a, b, a} {
		t.left(int64(4 - n))(a.Count(t.ctx))
		t.left(int64(3 - n))(l.CountDown(t.ctx))
	}
	t.left(0)(b.Count(t.ctx))
}

func latchWaits(t *trial) {
	a, b := t.latches()
	t.make(a, 3)
	waits := []*ending{t.begin(a.Wait), t.begin(a.Wait), t.begin(b.Wait)}
	t.waitOn(waits...)
	t.left(2)(a.CountDown(t.ctx))
	t.left(1)(b.CountDown(t.ctx))
	t.waitOn(waits...)
	t.left(0)(b.CountDown(t.ctx))
	t.ended(waits...)
}

func releasedLatch(t *trial) {
	a, b := t.latches()
	t.make(a, 1)
	t.left(0)(a.CountDown(t.ctx))
	for _, l := range []Latch{a, b} {
		if err := l.Wait(t.ctx); err != nil {
			t.broken("wait: %v", err)
		}
		t.left(0)(l.CountDown(t.ctx))
	}
	t.make(b, 2)
	t.left(2)(a.Count(t.ctx))
}

func countedOnce(t *trial) {
	a, b := t.latches()
	for range 2 {
		t.make(a, 3)
		for _, l := range []Latch{a, b, a} {
			t.left(2)(l.CountDownOnce(t.ctx, "first"))
		}
		t.left(1)(b.CountDownOnce(t.ctx, "second"))
		t.left(1)(a.CountDownOnce(t.ctx, "first"))
		w := t.begin(b.Wait)
		t.left(0)(a.CountDownOnce(t.ctx, "third"))
		t.left(0)(b.CountDownOnce(t.ctx, "third"))
		t.ended(w)
	}
}

func rounds(t *trial) {
	a, b := t.latches()
	for range 3 {
		t.make(a, 1)
		w := t.begin(b.Wait)
		time.Sleep(10 * aWhile) // w reads this round
		t.waitOn(w)
		t.left(0)(a.CountDown(t.ctx))
		t.make(a, 1) // the next read of w may come after this
		next := t.begin(b.Wait)
		t.ended(w)
		t.waitOn(next)
		t.left(0)(b.CountDown(t.ctx))
		t.ended(next)
	}
}

func deletedLatch(t *trial) {
	a, b := t.latches()
	for range 2 {
		t.make(a, 2)
		waits := []*ending{t.begin(a.Wait), t.begin(b.Wait)}
		t.waitOn(waits...)
		for range 2 {
			if err := b.Delete(t.ctx); err != nil {
				t.broken("delete: %v", err)
			}
		}
		t.deleted(waits...)
		t.named(a.Wait(t.ctx), latch.ErrNotInitialized)
		_, err := b.CountDown(t.ctx)
		t.named(err, latch.ErrNotInitialized)
	}
}

func canceledLatchWait(t *trial) {
	a, b := t.latches()
	t.make(a, 1)
	over, cancel := context.WithCancel(t.ctx)
	cancel()
	t.named(a.Wait(over), context.Canceled)
	waits := t.cancelSome(a.Wait, b.Wait)
	t.left(1)(b.Count(t.ctx))
	t.left(0)(a.CountDown(t.ctx))
	t.ended(waits...)
}

// cancelSome starts waits with two handles. It cancels some of them immediately and some after a while,
// and returns the others, which are still waiting.
func (t *trial) cancelSome(a, b func(context.Context) error) (others []*ending) {
	others = []*ending{t.begin(a), t.begin(b)}
	for i, wait := range []func(context.Context) error{a, b, a, b} {
		w := t.begin(wait)
		if i > 1 { // by then it is subscribed
			t.waitOn(w)
		}
		w.cancel()
		t.failed(context.Canceled, w)
	}
	t.waitOn(others...)
	return others
}

func latchNames(t *trial) {
	for _, bad := range []string{"", t.lock + "{x}", t.lock + "{", t.lock + "}"} {
		l := t.h.latch.New(bad)
		_, err := l.TrySetCount(t.ctx, 1)
		t.named(err, lock.ErrBadName)
		t.named(l.Wait(t.ctx), lock.ErrBadName)
	}
	odd := []string{":", " ", "*", "ü", "\x00", "0"}
	for i, end := range odd {
		t.make(t.h.latch.New(t.lock+end), int64(i+1))
	}
	for i, end := range odd {
		l := t.h.latch.Other(t.lock + end)
		t.left(int64(i + 1))(l.Count(t.ctx))
		if err := l.Delete(t.ctx); err != nil {
			t.broken("delete: %v", err)
		}
	}
}

func manyCount(t *trial) {
	const each, callers = 10, 8
	a, b := t.latches()
	t.make(a, each*callers)
	waits := []*ending{t.begin(a.Wait), t.begin(b.Wait)}
	var mu sync.Mutex
	var all []int64
	var wg sync.WaitGroup
	for i := range callers {
		l := a
		if i%2 == 1 {
			l = b
		}
		wg.Go(func() {
			for n := range each {
				var left int64
				var err error
				if i < callers/2 {
					left, err = l.CountDown(t.ctx)
				} else {
					left, err = l.CountDownOnce(t.ctx, fmt.Sprint(i, ".", n))
				}
				if err != nil {
					t.broken("count down: %v", err)
				}
				mu.Lock()
				all = append(all, left)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	slices.Sort(all)
	for i, left := range all {
		if left != int64(i) {
			t.broken("the counts that were left are %v, want each once", all)
			break
		}
	}
	t.ended(waits...)
}

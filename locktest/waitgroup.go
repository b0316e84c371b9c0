package locktest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/latch"
	"github.com/leasehold-go/leasehold/lock"
)

// WaitGroup is what [RunWaitGroup] needs of a wait group. *latch.WaitGroup implements it.
type WaitGroup interface {
	Name() string
	Add(ctx context.Context) (*latch.Worker, error)
	Do(ctx context.Context, fn func(ctx context.Context) error) error
	Wait(ctx context.Context) error
	WaitFor(ctx context.Context, n int) error
	Dismiss(ctx context.Context, workers ...lock.Holder) (dismissed int, err error)
	Delete(ctx context.Context) error
	Inspect(ctx context.Context) (latch.WaitGroupState, error)
}

// WaitGroupHarness creates the wait groups that [RunWaitGroup] tests.
type WaitGroupHarness struct {
	// New returns a handle of the wait group called name, always of the same client.
	New func(name string, opts ...lock.Option) WaitGroup

	// Other returns a handle of another client on the same server, as another process would.
	Other func(name string, opts ...lock.Option) WaitGroup

	// Watchdog is the watchdog timeout of both clients. Keep it short, such as 1 s, because some
	// tests take several times as long.
	Watchdog time.Duration
}

// RunWaitGroup tests every rule of a wait group, each in a subtest named after it.
//
//	locktest.RunWaitGroup(t, locktest.WaitGroupHarness{
//		New:      func(name string, opts ...lock.Option) locktest.WaitGroup { return a.NewWaitGroup(name, opts...) },
//		Other:    func(name string, opts ...lock.Option) locktest.WaitGroup { return b.NewWaitGroup(name, opts...) },
//		Watchdog: time.Second,
//	})
func RunWaitGroup(t *testing.T, h WaitGroupHarness) {
	try(t, waitGroupRules, Harness{waitGroup: &h, Watchdog: h.Watchdog}, RWHarness{})
}

// waitGroupRules are in the order of a wait group's life cycle.
var waitGroupRules = []rule{
	{name: "nobody has joined", says: "Wait for a wait group that nobody has joined fails with ErrNotInitialized, and WaitFor waits for its workers", test: noWorkers},
	{name: "all are done", says: "Wait of either client returns when all workers are done, and not before", test: allDone},
	{name: "a worker each", says: "each Join is a worker of its own, also under the context of another one", test: oneWorkerPerCall},
	{name: "done once", says: "a worker is done once: the second Unlock fails with ErrNotHeld, and changes nothing", test: doneOnce},
	{name: "renewed workers", says: "a worker lives until it is done, however long it works", test: renewedWorkers},
	{name: "lease of a worker ends", says: "a worker whose lease ends is lost: its context ends, Wait names it, and it is never done", test: workerLeaseExpires},
	{name: "failed workers", says: "a worker that fails is lost at once, and Wait names it", test: failedWorkers},
	{name: "Do of a wait group", says: "Do is done if its function returns nil, and lost after an error or a panic", test: waitGroupDo},
	{name: "dismissed workers", says: "Dismiss takes lost workers out, so that Wait waits for the others, and never one that lives or is done", test: dismissed},
	{name: "deleted wait group", says: "Delete ends every wait with ErrDeleted, and the workers are lost", test: deletedWaitGroup},
	{name: "cancelled in a wait group", says: "a wait that its context ends returns the error of the context, and a cancelled Join leaves no worker", test: canceledInWaitGroup},
	{name: "many workers", says: "under contention of two clients each worker counts once, and Wait ends with the last", test: manyWorkers},
}

// waitGroups returns a handle of the trial's wait group for each client.
func (t *trial) waitGroups(opts ...lock.Option) (a, b WaitGroup) {
	return t.h.waitGroup.New(t.lock, opts...), t.h.waitGroup.Other(t.lock, opts...)
}

func (t *trial) join(c WaitGroup) *latch.Worker {
	t.Helper()
	m, err := c.Add(t.ctx)
	if err != nil {
		t.fatal("add: %v", err)
	}
	if err := m.Err(); err != nil {
		t.broken("Err of a fresh worker: %v", err)
	}
	return m
}

// wantWorkers fails unless both clients read these numbers of workers that are done, alive and lost.
func (t *trial) wantWorkers(done, alive, lost int) {
	t.Helper()
	a, b := t.waitGroups()
	for _, c := range []WaitGroup{a, b} {
		s, err := c.Inspect(t.ctx)
		if err != nil || s.Name != t.lock || s.Done != done || len(s.Alive) != alive || len(s.Left) != alive || len(s.Lost) != lost {
			t.broken("%d are done, %d alive, %d lost (error %v), want %d, %d, %d", s.Done, len(s.Alive), len(s.Lost), err, done, alive, lost)
			return
		}
	}
}

// lost waits until the waits end, and fails unless their errors name these workers.
func (t *trial) lost(workers []*latch.Worker, waits ...*ending) (found []lock.Holder) {
	t.Helper()
	for _, w := range waits {
		<-w.done
		t.named(w.err, latch.ErrWorkerLost)
		var e *latch.LostError
		if !errors.As(w.err, &e) || int(e.Lost) != len(workers) || len(e.Workers) != len(workers) {
			t.broken("%v names %+v, want %d workers", w.err, e, len(workers))
			return nil
		}
		for _, m := range workers {
			if !slices.ContainsFunc(e.Workers, func(h lock.Holder) bool { return h.Owner == m.Owner() }) {
				t.broken("%v does not name %s", w.err, m.Owner())
			}
		}
		found = e.Workers
	}
	return found
}

// wantEnded waits until the context of a worker is canceled.
func (t *trial) wantEnded(m *latch.Worker) {
	t.Helper()
	select {
	case <-m.Context().Done():
	case <-t.ctx.Done():
		t.fatal("the context of a worker that is lost does not end")
	}
}

func noWorkers(t *trial) {
	a, b := t.waitGroups()
	t.named(a.Wait(t.ctx), latch.ErrNotInitialized)
	for _, n := range []int{0, -1} {
		t.named(a.WaitFor(t.ctx, n), nil)
	}
	waits := []*ending{t.begin(func(ctx context.Context) error { return a.WaitFor(ctx, 2) }), t.begin(func(ctx context.Context) error { return b.WaitFor(ctx, 2) })}
	t.waitOn(waits...)
	t.unlock(t.join(a))
	t.waitOn(waits...) // the first one is done, and the second one has not been added
	second := t.join(b)
	t.waitOn(waits...)
	t.unlock(second)
	t.ended(waits...)
	if a.Name() != t.lock {
		t.broken("Name is %q", a.Name())
	}
}

func allDone(t *trial) {
	a, b := t.waitGroups()
	workers := []*latch.Worker{t.join(a), t.join(b), t.join(a)}
	waits := []*ending{t.begin(a.Wait), t.begin(b.Wait)}
	for i, m := range workers {
		t.wantWorkers(i, len(workers)-i, 0)
		t.waitOn(waits...)
		t.unlock(m)
	}
	t.ended(waits...)
	t.wantWorkers(3, 0, 0)
	for _, c := range []WaitGroup{a, b} { // it remains done
		if err := c.Wait(t.ctx); err != nil {
			t.broken("wait: %v", err)
		}
	}
}

func oneWorkerPerCall(t *trial) {
	a, _ := t.waitGroups()
	first := t.join(a)
	second, err := a.Add(first.Context())
	if err != nil {
		t.fatal("add: %v", err)
	}
	if first.Owner() == second.Owner() {
		t.broken("both workers are %s", first.Owner())
	}
	t.wantWorkers(0, 2, 0)
	t.unlock(second)
	t.wantWorkers(1, 1, 0)
	t.unlock(first)
}

func doneOnce(t *trial) {
	a, b := t.waitGroups()
	first, second := t.join(a), t.join(b)
	t.unlock(first)
	for _, again := range []func(context.Context) error{first.Unlock, first.Fail} {
		err := again(t.ctx)
		if t.want(err, lock.ErrNotHeld); errors.Is(err, lock.ErrLost) {
			t.broken("a worker that is done is lost: %v", err)
		}
	}
	t.wantWorkers(1, 1, 0)
	t.unlock(second)
}

func renewedWorkers(t *trial) {
	a, b := t.waitGroups()
	m, other := t.join(a), t.join(b)
	w := t.begin(b.Wait)
	t.pass(2*t.h.Watchdog+t.h.Watchdog/2, m)
	if err := other.Err(); err != nil {
		t.broken("the other worker is over: %v", err)
	}
	t.waitOn(w)
	t.wantWorkers(0, 2, 0)
	t.unlock(m, other)
	t.ended(w)
}

func workerLeaseExpires(t *trial) {
	a, b := t.waitGroups()
	alive := t.join(a)
	short, _ := t.waitGroups(lock.WithFixedLease(t.h.Watchdog / 2))
	m := t.join(short)
	waits := []*ending{t.begin(a.Wait), t.begin(b.Wait)}
	t.wantEnded(m)
	t.want(m.Err(), lock.ErrLost)
	t.lost([]*latch.Worker{m}, waits...)
	t.want(m.Unlock(t.ctx), lock.ErrNotHeld, lock.ErrLost)
	t.wantWorkers(0, 1, 1)
	t.unlock(alive)
	t.lost([]*latch.Worker{m}, t.begin(b.Wait))
}

func failedWorkers(t *trial) {
	a, b := t.waitGroups()
	alive, m, other := t.join(a), t.join(b), t.join(a)
	waits := []*ending{t.begin(a.Wait), t.begin(b.Wait)}
	t.waitOn(waits...)
	began := time.Now()
	if err := m.Fail(t.ctx); err != nil {
		t.broken("fail: %v", err)
	}
	t.lost([]*latch.Worker{m}, waits...)
	if took := time.Since(began); took > t.h.Watchdog {
		t.broken("the waits end after %v, which is longer than a lease", took)
	}
	if err := other.Fail(t.ctx); err != nil {
		t.broken("fail: %v", err)
	}
	t.lost([]*latch.Worker{m, other}, t.begin(b.Wait))
	t.wantWorkers(0, 1, 2)
	t.unlock(alive)
}

func waitGroupDo(t *trial) {
	a, b := t.waitGroups()
	if err := a.Do(t.ctx, func(ctx context.Context) error {
		t.wantWorkers(0, 1, 0)
		return ctx.Err()
	}); err != nil {
		t.broken("do: %v", err)
	}
	t.wantWorkers(1, 0, 0)
	own := errors.New("disk full")
	t.want(b.Do(t.ctx, func(context.Context) error { return own }), own)
	t.wantWorkers(1, 0, 1)
	func() {
		defer func() {
			if r := recover(); r != "oops" {
				t.broken("the panic is %v", r)
			}
		}()
		_ = a.Do(t.ctx, func(context.Context) error { panic("oops") })
	}()
	t.wantWorkers(1, 0, 2)
}

func dismissed(t *trial) {
	a, b := t.waitGroups()
	alive, done, m := t.join(a), t.join(b), t.join(b)
	t.unlock(done)
	if err := m.Fail(t.ctx); err != nil {
		t.broken("fail: %v", err)
	}
	gone := append(t.lost([]*latch.Worker{m}, t.begin(a.Wait)), lock.Holder{Owner: alive.Owner()}, lock.Holder{Owner: done.Owner()}, lock.Holder{Owner: "nobody"})
	for range 2 { // a repeated call returns the same result
		if n, err := b.Dismiss(t.ctx, gone...); n != 1 || err != nil {
			t.broken("%d are dismissed (error %v), want 1", n, err)
		}
	}
	w := t.begin(a.Wait)
	t.waitOn(w)
	t.wantWorkers(1, 1, 0)
	t.unlock(alive)
	t.ended(w)
}

func deletedWaitGroup(t *trial) {
	a, b := t.waitGroups()
	for range 2 {
		workers := []*latch.Worker{t.join(a), t.join(b)}
		waits := []*ending{t.begin(a.Wait), t.begin(b.Wait)}
		t.waitOn(waits...)
		for range 2 {
			if err := b.Delete(t.ctx); err != nil {
				t.broken("delete: %v", err)
			}
		}
		t.deleted(waits...)
		t.named(a.Wait(t.ctx), latch.ErrNotInitialized)
		for _, m := range workers {
			t.wantEnded(m)
			t.want(m.Unlock(t.ctx), lock.ErrNotHeld, lock.ErrLost)
		}
		t.wantWorkers(0, 0, 0)
	}
}

func canceledInWaitGroup(t *trial) {
	a, b := t.waitGroups()
	over, cancel := context.WithCancel(t.ctx)
	cancel()
	_, err := a.Add(over)
	t.named(err, context.Canceled)
	t.named(a.Wait(over), context.Canceled)
	t.wantWorkers(0, 0, 0)
	m := t.join(a)
	waits := t.cancelSome(a.Wait, b.Wait)
	t.unlock(m)
	t.ended(waits...)
}

func manyWorkers(t *trial) {
	const callers, each = 8, 10
	a, b := t.waitGroups()
	first := t.join(a)
	waits := []*ending{t.begin(a.Wait), t.begin(b.Wait)}
	var wg sync.WaitGroup
	for i := range callers {
		c := a
		if i%2 == 1 {
			c = b
		}
		wg.Go(func() {
			for range each {
				if err := c.Do(t.ctx, func(context.Context) error { return nil }); err != nil {
					t.broken("do: %v", err)
				}
			}
		})
	}
	wg.Wait()
	t.waitOn(waits...)
	t.wantWorkers(callers*each, 1, 0)
	t.unlock(first)
	t.ended(waits...)
}

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

// Crew is what [RunCrew] needs of a crew; a *latch.Crew has it.
type Crew interface {
	Name() string
	Join(ctx context.Context) (*latch.Member, error)
	Do(ctx context.Context, fn func(ctx context.Context) error) error
	Wait(ctx context.Context) error
	WaitFor(ctx context.Context, n int) error
	Dismiss(ctx context.Context, members ...lock.Holder) (dismissed int, err error)
	Delete(ctx context.Context) error
	Inspect(ctx context.Context) (latch.CrewState, error)
}

// CrewHarness tells [RunCrew] how to make the crews that it tries.
type CrewHarness struct {
	// New returns a handle of the crew called name, always of the same client.
	New func(name string, opts ...lock.Option) Crew

	// Other returns it of another client on the same server, as another process would.
	Other func(name string, opts ...lock.Option) Crew

	// Watchdog is the watchdog timeout of both clients. Keep it short, such as a second: some rules take a few times as long.
	Watchdog time.Duration
}

// RunCrew tries every rule that a crew must keep, each in a subtest named after it.
//
//	locktest.RunCrew(t, locktest.CrewHarness{
//		New:      func(name string, opts ...lock.Option) locktest.Crew { return a.NewCrew(name, opts...) },
//		Other:    func(name string, opts ...lock.Option) locktest.Crew { return b.NewCrew(name, opts...) },
//		Watchdog: time.Second,
//	})
func RunCrew(t *testing.T, h CrewHarness) {
	try(t, crewRules, Harness{crew: &h, Watchdog: h.Watchdog}, RWHarness{})
}

// crewRules are in the order of a crew's life.
var crewRules = []rule{
	{name: "nobody has joined", says: "Wait for a crew that nobody has joined fails with ErrNotInitialised, and WaitFor waits for its members", test: nobodyJoined},
	{name: "all are done", says: "Wait of either client returns when all members are done, and not before", test: allDone},
	{name: "a member each", says: "each Join is a member of its own, also under the context of another one", test: memberEach},
	{name: "done once", says: "a member is done once: the second Unlock fails with ErrNotHeld, and changes nothing", test: doneOnce},
	{name: "renewed members", says: "a member lives until it is done, however long it works", test: renewedMembers},
	{name: "lease of a member ends", says: "a member whose lease ends is lost: its context ends, Wait names it, and it is never done", test: memberLeaseEnds},
	{name: "failed members", says: "a member that fails is lost at once, and Wait names it", test: failedMembers},
	{name: "Do of a crew", says: "Do is done if its function returns nil, and lost after an error or a panic", test: crewDo},
	{name: "dismissed members", says: "Dismiss takes lost members out, so that Wait waits for the others, and never one that lives or is done", test: dismissed},
	{name: "deleted crew", says: "Delete ends every wait with ErrDeleted, and the members are lost", test: deletedCrew},
	{name: "cancelled in a crew", says: "a wait that its context ends returns the error of the context, and a cancelled Join leaves no member", test: cancelledInCrew},
	{name: "many members", says: "under contention of two clients each member counts once, and Wait ends with the last", test: manyMembers},
}

// crews returns handles of the trial's crew, one of each client.
func (t *trial) crews(opts ...lock.Option) (a, b Crew) {
	return t.h.crew.New(t.lock, opts...), t.h.crew.Other(t.lock, opts...)
}

func (t *trial) join(c Crew) *latch.Member {
	t.Helper()
	m, err := c.Join(t.ctx)
	if err != nil {
		t.fatal("join: %v", err)
	}
	if err := m.Err(); err != nil {
		t.broken("Err of a fresh member: %v", err)
	}
	return m
}

// stands fails unless so many members of the crew are done, alive and lost, by either client.
func (t *trial) stands(done, alive, lost int) {
	t.Helper()
	a, b := t.crews()
	for _, c := range []Crew{a, b} {
		s, err := c.Inspect(t.ctx)
		if err != nil || s.Name != t.lock || s.Done != done || len(s.Alive) != alive || len(s.Left) != alive || len(s.Lost) != lost {
			t.broken("%d are done, %d alive, %d lost (error %v), want %d, %d, %d", s.Done, len(s.Alive), len(s.Lost), err, done, alive, lost)
			return
		}
	}
}

// lost waits until the waits end, and fails unless their errors name these members.
func (t *trial) lost(members []*latch.Member, waits ...*ending) (found []lock.Holder) {
	t.Helper()
	for _, w := range waits {
		<-w.done
		t.named(w.err, latch.ErrMemberLost)
		var e *latch.LostError
		if !errors.As(w.err, &e) || int(e.Lost) != len(members) || len(e.Members) != len(members) {
			t.broken("%v names %+v, want %d members", w.err, e, len(members))
			return nil
		}
		for _, m := range members {
			if !slices.ContainsFunc(e.Members, func(h lock.Holder) bool { return h.Owner == m.Owner() }) {
				t.broken("%v does not name %s", w.err, m.Owner())
			}
		}
		found = e.Members
	}
	return found
}

// over waits until the context of a member ends.
func (t *trial) over(m *latch.Member) {
	t.Helper()
	select {
	case <-m.Context().Done():
	case <-t.ctx.Done():
		t.fatal("the context of a member that is lost does not end")
	}
}

func nobodyJoined(t *trial) {
	a, b := t.crews()
	t.named(a.Wait(t.ctx), latch.ErrNotInitialised)
	for _, n := range []int{0, -1} {
		t.named(a.WaitFor(t.ctx, n), nil)
	}
	waits := []*ending{t.begin(func(ctx context.Context) error { return a.WaitFor(ctx, 2) }), t.begin(func(ctx context.Context) error { return b.WaitFor(ctx, 2) })}
	t.waitOn(waits...)
	t.unlock(t.join(a))
	t.waitOn(waits...) // the first one is done, and the second one has not come
	second := t.join(b)
	t.waitOn(waits...)
	t.unlock(second)
	t.ended(waits...)
	if a.Name() != t.lock {
		t.broken("Name is %q", a.Name())
	}
}

func allDone(t *trial) {
	a, b := t.crews()
	members := []*latch.Member{t.join(a), t.join(b), t.join(a)}
	waits := []*ending{t.begin(a.Wait), t.begin(b.Wait)}
	for i, m := range members {
		t.stands(i, len(members)-i, 0)
		t.waitOn(waits...)
		t.unlock(m)
	}
	t.ended(waits...)
	t.stands(3, 0, 0)
	for _, c := range []Crew{a, b} { // and it stays done
		if err := c.Wait(t.ctx); err != nil {
			t.broken("wait: %v", err)
		}
	}
}

func memberEach(t *trial) {
	a, _ := t.crews()
	first := t.join(a)
	second, err := a.Join(first.Context())
	if err != nil {
		t.fatal("join: %v", err)
	}
	if first.Owner() == second.Owner() {
		t.broken("both members are %s", first.Owner())
	}
	t.stands(0, 2, 0)
	t.unlock(second)
	t.stands(1, 1, 0)
	t.unlock(first)
}

func doneOnce(t *trial) {
	a, b := t.crews()
	first, second := t.join(a), t.join(b)
	t.unlock(first)
	for _, again := range []func(context.Context) error{first.Unlock, first.Fail} {
		err := again(t.ctx)
		if t.want(err, lock.ErrNotHeld); errors.Is(err, lock.ErrLost) {
			t.broken("a member that is done is lost: %v", err)
		}
	}
	t.stands(1, 1, 0)
	t.unlock(second)
}

func renewedMembers(t *trial) {
	a, b := t.crews()
	m, other := t.join(a), t.join(b)
	w := t.begin(b.Wait)
	t.pass(2*t.h.Watchdog+t.h.Watchdog/2, m)
	if err := other.Err(); err != nil {
		t.broken("the other member is over: %v", err)
	}
	t.waitOn(w)
	t.stands(0, 2, 0)
	t.unlock(m, other)
	t.ended(w)
}

func memberLeaseEnds(t *trial) {
	a, b := t.crews()
	alive := t.join(a)
	short, _ := t.crews(lock.WithFixedLease(t.h.Watchdog / 2))
	m := t.join(short)
	waits := []*ending{t.begin(a.Wait), t.begin(b.Wait)}
	t.over(m)
	t.want(m.Err(), lock.ErrLost)
	t.lost([]*latch.Member{m}, waits...)
	t.want(m.Unlock(t.ctx), lock.ErrNotHeld, lock.ErrLost)
	t.stands(0, 1, 1)
	t.unlock(alive)
	t.lost([]*latch.Member{m}, t.begin(b.Wait))
}

func failedMembers(t *trial) {
	a, b := t.crews()
	alive, m, other := t.join(a), t.join(b), t.join(a)
	waits := []*ending{t.begin(a.Wait), t.begin(b.Wait)}
	t.waitOn(waits...)
	began := time.Now()
	if err := m.Fail(t.ctx); err != nil {
		t.broken("fail: %v", err)
	}
	t.lost([]*latch.Member{m}, waits...)
	if took := time.Since(began); took > t.h.Watchdog {
		t.broken("the waits end after %v, which is longer than a lease", took)
	}
	if err := other.Fail(t.ctx); err != nil {
		t.broken("fail: %v", err)
	}
	t.lost([]*latch.Member{m, other}, t.begin(b.Wait))
	t.stands(0, 1, 2)
	t.unlock(alive)
}

func crewDo(t *trial) {
	a, b := t.crews()
	if err := a.Do(t.ctx, func(ctx context.Context) error {
		t.stands(0, 1, 0)
		return ctx.Err()
	}); err != nil {
		t.broken("do: %v", err)
	}
	t.stands(1, 0, 0)
	own := errors.New("disk full")
	t.want(b.Do(t.ctx, func(context.Context) error { return own }), own)
	t.stands(1, 0, 1)
	func() {
		defer func() {
			if r := recover(); r != "oops" {
				t.broken("the panic is %v", r)
			}
		}()
		_ = a.Do(t.ctx, func(context.Context) error { panic("oops") })
	}()
	t.stands(1, 0, 2)
}

func dismissed(t *trial) {
	a, b := t.crews()
	alive, done, m := t.join(a), t.join(b), t.join(b)
	t.unlock(done)
	if err := m.Fail(t.ctx); err != nil {
		t.broken("fail: %v", err)
	}
	gone := append(t.lost([]*latch.Member{m}, t.begin(a.Wait)), lock.Holder{Owner: alive.Owner()}, lock.Holder{Owner: done.Owner()}, lock.Holder{Owner: "nobody"})
	for range 2 { // a repeated call says the same
		if n, err := b.Dismiss(t.ctx, gone...); n != 1 || err != nil {
			t.broken("%d are dismissed (error %v), want 1", n, err)
		}
	}
	w := t.begin(a.Wait)
	t.waitOn(w)
	t.stands(1, 1, 0)
	t.unlock(alive)
	t.ended(w)
}

func deletedCrew(t *trial) {
	a, b := t.crews()
	for range 2 {
		members := []*latch.Member{t.join(a), t.join(b)}
		waits := []*ending{t.begin(a.Wait), t.begin(b.Wait)}
		t.waitOn(waits...)
		for range 2 {
			if err := b.Delete(t.ctx); err != nil {
				t.broken("delete: %v", err)
			}
		}
		t.failed(latch.ErrDeleted, waits...)
		t.named(a.Wait(t.ctx), latch.ErrNotInitialised)
		for _, m := range members {
			t.over(m)
			t.want(m.Unlock(t.ctx), lock.ErrNotHeld, lock.ErrLost)
		}
		t.stands(0, 0, 0)
	}
}

func cancelledInCrew(t *trial) {
	a, b := t.crews()
	over, cancel := context.WithCancel(t.ctx)
	cancel()
	_, err := a.Join(over)
	t.named(err, context.Canceled)
	t.named(a.Wait(over), context.Canceled)
	t.stands(0, 0, 0)
	m := t.join(a)
	waits := t.someGiveUp(a.Wait, b.Wait)
	t.unlock(m)
	t.ended(waits...)
}

func manyMembers(t *trial) {
	const callers, each = 8, 10
	a, b := t.crews()
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
	t.stands(callers*each, 1, 0)
	t.unlock(first)
	t.ended(waits...)
}

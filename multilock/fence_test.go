package multilock_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/fence"
	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/kindtest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
	"github.com/leasehold-go/leasehold/multilock"
)

// respondingKey is the key of a context value: the numbers, from 1, of the servers that respond to a call with the context,
// such as "2 3". Without a value, all respond.
type respondingKey struct{}

// only returns ctx for a call to which only some servers respond.
func only(ctx context.Context, servers ...int) context.Context {
	return context.WithValue(ctx, respondingKey{}, servers)
}

// responds returns nil if server i, from 0, responds to a call under ctx.
func responds(ctx context.Context, i int) error {
	servers, some := ctx.Value(respondingKey{}).([]int)
	for _, n := range servers {
		some = some && n != i+1
	}
	if some {
		return errRefused
	}
	return nil
}

// ofSome returns the locks of a client with fencing, which respect only. Before the attempt at server i, before is called.
func (w *world) ofSome(client string, before func(ctx context.Context, i int)) (locks []lock.Locker, fakes []*fake) {
	for i, l := range w.locks(client) {
		f := l.(*fake).forFenced()
		fakes = append(fakes, f)
		locks = append(locks, raising{f, hookedLock{Locker: f, before: func(ctx context.Context, _ string) error {
			err := responds(ctx, i)
			if err == nil && before != nil {
				before(ctx, i)
			}
			return err
		}}})
	}
	return locks, fakes
}

// setCounters sets the token counters of the servers, in units that are beyond all clocks.
func (w *world) setCounters(units ...uint64) {
	for i, n := range units {
		w.sites[i].set(func() { w.sites[i].tokens["q"] = n << 52 })
	}
}

// Another majority votes for a reentry than for the outer hold, and would give a smaller token. The reentry has the outer
// hold's token.
func TestQuorum_reentryKeepsTheToken(t *testing.T) {
	for _, outerFirst := range []bool{false, true} {
		for _, next := range [][]int{{1, 2}, {1, 3}, {2, 3}} {
			inWorld(t, 3, func(w *world) {
				w.setCounters(5, 1, 1)
				locks, _ := w.ofSome("one", nil)
				q := multilock.NewQuorum(locks, with(nil)...)
				ctx := lock.ContextWithNewOwner(w.Context())
				outer := w.lockUnder(only(ctx, 1, 2), q)
				inner := w.lockUnder(only(ctx, 2, 3), multilock.NewQuorum(locks, with(nil)...)) // another handle
				token := outer.Token()
				if token != 5<<52+1 || inner.Token() != token {
					w.Errorf("got tokens %d and %d, want the same", token, inner.Token())
				}
				if outerFirst {
					w.unlock(outer)
					third := w.lockUnder(only(ctx, 2, 3), q)
					if third.Token() != token {
						w.Errorf("a reentry of the reentry has token %d, want %d", third.Token(), token)
					}
					w.unlock(third, inner)
				} else {
					w.unlock(inner)
					if outer.Err() != nil || outer.Token() != token {
						w.Errorf("the outer hold has token %d after an inner Unlock, want %d: %v", outer.Token(), token, outer.Err())
					}
					w.unlock(outer)
				}
				others, _ := w.ofSome("two", nil)
				h := w.lockUnder(only(w.Context(), next...), multilock.NewQuorum(others, with(nil)...))
				if h.Token() <= token {
					w.Errorf("servers %v: got token %d after %d", next, h.Token(), token)
				}
				w.unlock(h)
			})
		}
	}
}

// The cancellation of the caller's context does not end the outer hold, so a reentry keeps its token then, too.
func TestQuorum_reentryAfterCancellationKeepsTheToken(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		locks, _ := w.ofSome("one", nil)
		q := multilock.NewQuorum(locks, with(nil)...)
		ctx := lock.ContextWithNewOwner(w.Context())
		request, cancel := context.WithCancel(ctx)
		outer := w.lockUnder(request, q)
		cancel()
		inner := w.lockUnder(ctx, q)
		if outer.Token() == 0 || inner.Token() != outer.Token() {
			w.Errorf("got tokens %d and %d, want the same", outer.Token(), inner.Token())
		}
		w.unlock(inner, outer)
	})
}

// Servers that vote only for a reentry get the token in the background. The others do not get it again.
func TestQuorum_reentrySendsTheToken(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		w.setCounters(5, 1, 1)
		locks, _ := w.ofSome("one", nil)
		q := multilock.NewQuorum(locks, with(nil)...)
		ctx := lock.ContextWithNewOwner(w.Context())
		outer := w.lockUnder(only(ctx, 1, 2), q)
		start := time.Now()
		inner := w.lockUnder(only(ctx, 2, 3), q)
		if took := time.Since(start); took != 2*rtt {
			w.Errorf("a reentry took %v, a round trip takes %v", took, rtt)
		}
		time.Sleep(2 * rtt)
		for i, s := range w.sites {
			n := 0
			for _, what := range s.received() {
				if what == "raise" {
					n++
				}
			}
			if token := s.token("q"); n != 1 || token != outer.Token() {
				w.Errorf("server %d got the token %d times and has %d, want %d", i+1, n, token, outer.Token())
			}
		}
		w.unlock(inner, outer)
	})
}

// The outer hold is lost during a reentry, which keeps what the servers have for both. The reentry is then a new holder,
// and has a newer token.
func TestQuorum_outerHoldLostDuringAReentry(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		w.setCounters(5, 1, 1)
		var fakes []*fake
		locks, fakes := w.ofSome("one", func(ctx context.Context, i int) {
			if i == 2 {
				time.Sleep(2 * rtt) // server 2 has voted
				for _, acquisition := range fakes[0].acquisitions {
					acquisition.end(fmt.Errorf("%w: suddenly", lock.ErrLost))
				}
			}
		})
		q := multilock.NewQuorum(locks, with(nil)...)
		ctx := lock.ContextWithNewOwner(w.Context())
		outer := w.lockUnder(only(ctx, 1, 2), q)
		inner := w.lockUnder(only(ctx, 2, 3), q)
		want(t, outer.Err(), lock.ErrLost)
		if inner.Token() <= outer.Token() {
			w.Errorf("got token %d after %d", inner.Token(), outer.Token())
		}
		_ = outer.Unlock(w.Context())
		if err := inner.Err(); err != nil {
			w.Error(err)
		}
		w.unlock(inner)
		time.Sleep(lease)
		others, _ := w.ofSome("two", nil)
		h := w.lockUnder(only(w.Context(), 1, 3), multilock.NewQuorum(others, with(nil)...))
		if h.Token() <= inner.Token() {
			w.Errorf("got token %d after %d", h.Token(), inner.Token())
		}
		w.unlock(h)
	})
}

// fencedControlledHold is a controlledHold whose token can be raised.
type fencedControlledHold struct{ *controlledHold }

func (p fencedControlledHold) RaiseToken(ctx context.Context, token uint64) error {
	return p.Hold.(lockimpl.Fenced).RaiseToken(ctx, token)
}

func (p fencedControlledHold) Raised() uint64 { return p.Hold.(lockimpl.Fenced).Raised() }

// The outer hold has expired, and no call has detected that yet. The next call is no reentry.
func TestQuorum_outerHoldExpired(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		w.setCounters(5, 1, 1)
		var controlled []*controlledHold
		locks, fakes := w.ofSome("one", nil)
		first := raising{fakes[0], hookedLock{Locker: locks[0], after: func(h lock.Hold) lock.Hold {
			controlled = append(controlled, &controlledHold{Hold: h})
			return fencedControlledHold{controlled[0]}
		}}}
		third := raising{fakes[2], hookedLock{Locker: locks[2], after: func(h lock.Hold) lock.Hold {
			controlled[0].endWith(lock.ErrLost)
			return h
		}}}
		q := multilock.NewQuorum([]lock.Locker{first, locks[1], third}, with(nil)...)
		ctx := lock.ContextWithNewOwner(w.Context())
		outer := w.lockUnder(only(ctx, 1, 2), q)
		inner := w.lockUnder(only(ctx, 2, 3), q)
		if inner.Token() <= outer.Token() {
			w.Errorf("got token %d after %d", inner.Token(), outer.Token())
		}
		want(t, outer.Err(), lock.ErrLost)
		w.unlock(inner)
		_ = outer.Unlock(w.Context())
	})
}

// A server that confirmed the token loses the lock before the others have confirmed it, and another server votes in the
// meantime. An owner in between could have had a newer token, so there is no hold.
func TestQuorum_votersChangeBeforeConfirmation(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		locks, fakes := w.ofSome("one", func(_ context.Context, i int) {
			if i == 2 {
				time.Sleep(rtt) // it votes while the others agree
			}
		})
		for i, l := range locks[:2] {
			locks[i] = raising{fakes[i], hookedLock{Locker: l, after: func(h lock.Hold) lock.Hold {
				return &raised{h, func() {
					if i == 0 {
						time.Sleep(3 * rtt)
						return
					}
					time.AfterFunc(2*rtt, func() {
						for _, acquisition := range fakes[1].acquisitions {
							acquisition.end(fmt.Errorf("%w: suddenly", lock.ErrLost))
						}
					})
				}}
			}}}
		}
		_, err := multilock.NewQuorum(locks, with([]multilock.Option{multilock.WithServerTimeout(10 * rtt)})...).TryLock(w.Context())
		want(t, err, lock.ErrUnavailable)
		wantNot(t, err, lock.ErrNotAcquired, lock.ErrLost)
		time.Sleep(lease)
		w.wantHeld("")
	})
}

// An owner keeps the lock of one server with a separate hold, and in the meantime acquires the quorum twice, one after the
// other. Its second hold of the quorum has a larger token.
func TestQuorum_oneServerHeldBetweenHolds(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		w.setCounters(5, 1, 1)
		locks, _ := w.ofSome("one", nil)
		q := multilock.NewQuorum(locks, with(nil)...)
		ctx := lock.ContextWithNewOwner(w.Context())
		kept := must(w.T)(locks[1].TryLock(ctx))
		first := w.lockUnder(only(ctx, 1, 2), q)
		w.unlock(first)
		second := w.lockUnder(only(ctx, 2, 3), q)
		if second.Token() <= first.Token() {
			w.Errorf("got token %d after %d", second.Token(), first.Token())
		}
		w.unlock(second, kept)
		time.Sleep(lease)
		others, _ := w.ofSome("two", nil)
		h := w.lockUnder(only(w.Context(), 1, 3), multilock.NewQuorum(others, with(nil)...))
		if h.Token() <= second.Token() {
			w.Errorf("got token %d after %d", h.Token(), second.Token())
		}
		w.unlock(h)
	})
}

// Two calls of one owner reach their majorities at the same time. They are two holds of one holder, with one token.
func TestQuorum_concurrentCallsOfOneOwner(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		w.setCounters(5, 1, 1)
		locks, _ := w.ofSome("one", func(ctx context.Context, i int) {
			if responds(ctx, 2) == nil && i == 1 {
				time.Sleep(rtt * 3 / 2) // the first call has the lock of server 2
			}
		})
		slow := append([]lock.Locker(nil), locks...)
		for i, l := range slow[:2] {
			slow[i] = raising{l.(raising).fake, hookedLock{Locker: l, after: func(h lock.Hold) lock.Hold {
				return &raised{h, func() { time.Sleep(2 * rtt) }} // it has its majority, and is not done
			}}}
		}
		ctx := lock.ContextWithNewOwner(w.Context())
		var holds [2]lock.Hold
		var calls sync.WaitGroup
		for i, call := range []struct {
			locks   []lock.Locker
			servers []int
		}{{slow, []int{1, 2}}, {locks, []int{2, 3}}} {
			calls.Go(func() {
				h, err := multilock.NewQuorum(call.locks, with(nil)...).TryLock(only(ctx, call.servers...))
				if err != nil {
					w.Error(err)
				}
				holds[i] = h
			})
		}
		calls.Wait()
		if holds[0].Token() != holds[1].Token() {
			w.Errorf("one holder has tokens %d and %d", holds[0].Token(), holds[1].Token())
		}
		w.unlock(holds[:]...)
	})
}

// unfenced is a lock with fencing that does not say so.
type unfenced struct{ raising }

func (l unfenced) Config() lockimpl.Config { return lockimpl.Config{} }

// A hold without a token is re-entered by a quorum with fencing, whose hold has one.
func TestQuorum_outerHoldWithoutAToken(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		locks, _ := w.ofSome("one", nil)
		var plain []lock.Locker
		for _, l := range locks {
			plain = append(plain, unfenced{l.(raising)})
		}
		ctx := lock.ContextWithNewOwner(w.Context())
		outer := w.lockUnder(ctx, multilock.NewQuorum(plain, with(nil)...))
		inner := w.lockUnder(ctx, multilock.NewQuorum(locks, with(nil)...))
		if outer.Token() != 0 || inner.Token() == 0 {
			w.Errorf("got tokens %d and %d, want one for the second only", outer.Token(), inner.Token())
		}
		w.unlock(inner, outer)
	})
}

// A call is canceled while it waits for another call of its owner to decide on the token.
func TestQuorum_canceledWhileAnotherDecides(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		locks, _ := w.ofSome("one", nil)
		slow := slices.Clone(locks)
		for i, l := range slow {
			slow[i] = raising{l.(raising).fake, hookedLock{Locker: l, after: func(h lock.Hold) lock.Hold {
				return &raised{h, func() { time.Sleep(3 * rtt) }}
			}}}
		}
		owner := lock.ContextWithNewOwner(w.Context())
		first := make(chan lock.Hold)
		go func() { first <- must(w.T)(multilock.NewQuorum(slow, with(nil)...).TryLock(owner)) }()
		time.Sleep(rtt * 3 / 2) // the first call has the locks, and decides from half a round trip later on
		ctx, cancel := context.WithTimeout(owner, 3*rtt)
		defer cancel()
		start := time.Now()
		_, err := multilock.NewQuorum(locks, with(nil)...).TryLock(ctx)
		want(t, err, context.DeadlineExceeded)
		if took := time.Since(start); took != 3*rtt {
			w.Errorf("it took %v", took)
		}
		w.unlock(<-first)
		time.Sleep(lease)
		w.wantHeld("")
	})
}

// gated is a real lock whose server responds according to only.
type gated struct {
	lock.Locker
	i int
}

func (l gated) TryLock(ctx context.Context) (lock.Hold, error) {
	if err := responds(ctx, l.i); err != nil {
		return nil, err
	}
	return l.Locker.TryLock(ctx)
}

func (l gated) Lock(ctx context.Context) (lock.Hold, error) {
	if err := responds(ctx, l.i); err != nil {
		return nil, err
	}
	return l.Locker.Lock(ctx)
}

func (l gated) Config() lockimpl.Config { return l.Locker.(lockimpl.Configured).Config() }

func (l gated) Server(ctx context.Context) (lockimpl.Server, error) {
	return l.Locker.(lockimpl.Witness).Server(ctx)
}

// The same on real servers, of which the first is paused while the lock is re-entered. The resource accepts all writes of the owner.
func TestQuorum_reentryWhileServersArePaused(t *testing.T) {
	servers := []*redistest.Server{redistest.Start(t), redistest.Start(t), redistest.Start(t)}
	servers[0].Do(t, "SET", keys.Tokens("q"), "8000000000000000") // as if the clock of the first was ahead once
	quorum := func() *multilock.Quorum {
		var locks []lock.Locker
		for i, s := range servers {
			c := kindtest.NewClient(t, s.Client(t), client.WithWatchdogTimeout(4*unit), client.WithOpTimeout(unit))
			locks = append(locks, gated{c.NewLock("q", lock.WithFencing()), i})
		}
		return multilock.NewQuorum(locks, multilock.WithDurableServers(), multilock.WithMaxLease(4*unit), multilock.WithServerTimeout(unit))
	}
	q := quorum()
	outer, err := q.TryLock(only(t.Context(), 1, 2)) // it never has the third
	if err != nil {
		t.Fatal(err)
	}
	servers[0].Freeze(t)
	inner, err := q.TryLock(only(outer.Context(), 1, 2, 3))
	if err != nil {
		t.Fatal(err)
	}
	var mark fence.Mark
	for _, h := range []lock.Hold{outer, inner, outer} {
		if err := mark.Check(h.Token()); err != nil || h.Err() != nil {
			t.Errorf("the resource rejects a valid holder: %v; %v", err, h.Err())
		}
	}
	if n := len(multilock.Holds(outer)); n != 2 {
		t.Errorf("the outer hold has %d servers", n)
	}
	servers[0].Thaw(t)
	for _, h := range []lock.Hold{inner, outer} {
		if err := h.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	}
	next, err := quorum().Lock(only(t.Context(), 2, 3))
	if err != nil {
		t.Fatal(err)
	}
	if next.Token() <= outer.Token() {
		t.Errorf("got token %d after %d", next.Token(), outer.Token())
	}
	if err := next.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

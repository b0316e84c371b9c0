package multilock_test

import (
	"context"
	"fmt"
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

// voting is the key of a context value: the numbers of the servers, from 1, that respond to a call under the context, such as "2 3". Without one all do.
type voting struct{}

// only returns ctx for a call to which only some servers respond.
func only(ctx context.Context, servers ...int) context.Context {
	return context.WithValue(ctx, voting{}, servers)
}

// responds returns nil if server i, from 0, responds to a call under ctx.
func responds(ctx context.Context, i int) error {
	servers, some := ctx.Value(voting{}).([]int)
	for _, n := range servers {
		some = some && n != i+1
	}
	if some {
		return errRefused
	}
	return nil
}

// ofSome returns the locks of a client with fencing, which obey only. Before the attempt at server i, before is called.
func (w *world) ofSome(client string, before func(ctx context.Context, i int)) (locks []lock.Locker, fakes []*fake) {
	for i, l := range w.locks(client) {
		f := l.(*fake).forFenced()
		fakes = append(fakes, f)
		locks = append(locks, raising{f, odd{Locker: f, before: func(ctx context.Context, _ string) error {
			err := responds(ctx, i)
			if err == nil && before != nil {
				before(ctx, i)
			}
			return err
		}}})
	}
	return locks, fakes
}

// registers sets the registers of the servers, in units that are beyond all clocks.
func (w *world) registers(units ...uint64) {
	for i, n := range units {
		w.sites[i].set(func() { w.sites[i].tokens["q"] = n << 52 })
	}
}

// Another majority votes for a re-entry than for the outer hold, and would give a smaller token. The re-entry has that of the outer hold.
func TestQuorum_reentryKeepsTheToken(t *testing.T) {
	for _, outerFirst := range []bool{false, true} {
		for _, next := range [][]int{{1, 2}, {1, 3}, {2, 3}} {
			inWorld(t, 3, func(w *world) {
				w.registers(5, 1, 1)
				locks, _ := w.ofSome("one", nil)
				q := multilock.NewQuorum(locks, with(nil)...)
				ctx := lock.ContextWithNewOwner(w.Context())
				outer := w.lockUnder(only(ctx, 1, 2), q)
				inner := w.lockUnder(only(ctx, 2, 3), multilock.NewQuorum(locks, with(nil)...)) // another handle
				token := outer.Token()
				if token != 5<<52+1 || inner.Token() != token {
					w.Errorf("the tokens are %d and %d", token, inner.Token())
				}
				if outerFirst {
					w.unlock(outer)
					third := w.lockUnder(only(ctx, 2, 3), q)
					if third.Token() != token {
						w.Errorf("the token of a re-entry of the re-entry is %d, want %d", third.Token(), token)
					}
					w.unlock(third, inner)
				} else {
					w.unlock(inner)
					if outer.Err() != nil || outer.Token() != token {
						w.Errorf("the outer hold has the token %d after an inner Unlock, want %d: %v", outer.Token(), token, outer.Err())
					}
					w.unlock(outer)
				}
				others, _ := w.ofSome("two", nil)
				h := w.lockUnder(only(w.Context(), next...), multilock.NewQuorum(others, with(nil)...))
				if h.Token() <= token {
					w.Errorf("servers %v give the token %d after %d", next, h.Token(), token)
				}
				w.unlock(h)
			})
		}
	}
}

// The servers that vote for a re-entry only are told the token in the background, and the others are not told again.
func TestQuorum_reentryTellsTheToken(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		w.registers(5, 1, 1)
		locks, _ := w.ofSome("one", nil)
		q := multilock.NewQuorum(locks, with(nil)...)
		ctx := lock.ContextWithNewOwner(w.Context())
		outer := w.lockUnder(only(ctx, 1, 2), q)
		began := time.Now()
		inner := w.lockUnder(only(ctx, 2, 3), q)
		if took := time.Since(began); took != 2*rtt {
			w.Errorf("a re-entry took %v, and a round trip is %v", took, rtt)
		}
		time.Sleep(2 * rtt)
		for i, s := range w.sites {
			n := 0
			for _, what := range s.heard() {
				if what == "raise" {
					n++
				}
			}
			if token := s.token("q"); n != 1 || token != outer.Token() {
				w.Errorf("server %d was told %d times and has %d, want %d", i+1, n, token, outer.Token())
			}
		}
		w.unlock(inner, outer)
	})
}

// The outer hold is lost while a re-entry is under way, which keeps what the servers have for both. It is a new holder then, and has a newer token.
func TestQuorum_outerHoldLostDuringAReentry(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		w.registers(5, 1, 1)
		var fakes []*fake
		locks, fakes := w.ofSome("one", func(ctx context.Context, i int) {
			if i == 2 {
				time.Sleep(2 * rtt) // server 2 has voted
				for _, tenure := range fakes[0].tenures {
					tenure.end(fmt.Errorf("%w: all of a sudden", lock.ErrLost))
				}
			}
		})
		q := multilock.NewQuorum(locks, with(nil)...)
		ctx := lock.ContextWithNewOwner(w.Context())
		outer := w.lockUnder(only(ctx, 1, 2), q)
		inner := w.lockUnder(only(ctx, 2, 3), q)
		want(t, outer.Err(), lock.ErrLost)
		if inner.Token() <= outer.Token() {
			w.Errorf("the token %d follows %d", inner.Token(), outer.Token())
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
			w.Errorf("the token %d follows %d", h.Token(), inner.Token())
		}
		w.unlock(h)
	})
}

// fencedPaper is a paper whose token can be raised.
type fencedPaper struct{ *paper }

func (p fencedPaper) RaiseToken(ctx context.Context, token uint64) error {
	return p.Hold.(lockimpl.Fenced).RaiseToken(ctx, token)
}

func (p fencedPaper) Raised() uint64 { return p.Hold.(lockimpl.Fenced).Raised() }

// The outer hold is over by the clocks, and nobody has looked at it yet. What comes now is no re-entry.
func TestQuorum_outerHoldIsOverByTheClocks(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		w.registers(5, 1, 1)
		var papers []*paper
		locks, fakes := w.ofSome("one", nil)
		first := raising{fakes[0], odd{Locker: locks[0], after: func(h lock.Hold) lock.Hold {
			papers = append(papers, &paper{Hold: h})
			return fencedPaper{papers[0]}
		}}}
		third := raising{fakes[2], odd{Locker: locks[2], after: func(h lock.Hold) lock.Hold {
			papers[0].tell(lock.ErrLost)
			return h
		}}}
		q := multilock.NewQuorum([]lock.Locker{first, locks[1], third}, with(nil)...)
		ctx := lock.ContextWithNewOwner(w.Context())
		outer := w.lockUnder(only(ctx, 1, 2), q)
		inner := w.lockUnder(only(ctx, 2, 3), q)
		if inner.Token() <= outer.Token() {
			w.Errorf("the token %d follows %d", inner.Token(), outer.Token())
		}
		want(t, outer.Err(), lock.ErrLost)
		w.unlock(inner)
		_ = outer.Unlock(w.Context())
	})
}

// A server that agreed on the token loses the lock before the others have confirmed it, and another server votes meanwhile. An owner between could have had
// a newer token, so there is no hold.
func TestQuorum_votersChangeWhileTheyAgree(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		locks, fakes := w.ofSome("one", func(_ context.Context, i int) {
			if i == 2 {
				time.Sleep(rtt) // it votes while the others agree
			}
		})
		for i, l := range locks[:2] {
			locks[i] = raising{fakes[i], odd{Locker: l, after: func(h lock.Hold) lock.Hold {
				return &raised{h, func() {
					if i == 0 {
						time.Sleep(3 * rtt)
						return
					}
					time.AfterFunc(2*rtt, func() {
						for _, tenure := range fakes[1].tenures {
							tenure.end(fmt.Errorf("%w: all of a sudden", lock.ErrLost))
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

// An owner keeps the lock of one server by a hold of its own, and has the quorum twice meanwhile, one time after the other. Its second hold of the quorum is a later one.
func TestQuorum_oneServerIsKept(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		w.registers(5, 1, 1)
		locks, _ := w.ofSome("one", nil)
		q := multilock.NewQuorum(locks, with(nil)...)
		ctx := lock.ContextWithNewOwner(w.Context())
		kept := must(w.T)(locks[1].TryLock(ctx))
		first := w.lockUnder(only(ctx, 1, 2), q)
		w.unlock(first)
		second := w.lockUnder(only(ctx, 2, 3), q)
		if second.Token() <= first.Token() {
			w.Errorf("the token %d follows %d", second.Token(), first.Token())
		}
		w.unlock(second, kept)
		time.Sleep(lease)
		others, _ := w.ofSome("two", nil)
		h := w.lockUnder(only(w.Context(), 1, 3), multilock.NewQuorum(others, with(nil)...))
		if h.Token() <= second.Token() {
			w.Errorf("the token %d follows %d", h.Token(), second.Token())
		}
		w.unlock(h)
	})
}

// Two calls of one owner come to their majorities at the same time. They are two holds of one holder, with one token.
func TestQuorum_twoCallsOfOneOwner(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		w.registers(5, 1, 1)
		locks, _ := w.ofSome("one", func(ctx context.Context, i int) {
			if responds(ctx, 2) == nil && i == 1 {
				time.Sleep(rtt * 3 / 2) // the first call has the lock of server 2
			}
		})
		slow := append([]lock.Locker(nil), locks...)
		for i, l := range slow[:2] {
			slow[i] = raising{l.(raising).fake, odd{Locker: l, after: func(h lock.Hold) lock.Hold {
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
			w.Errorf("one holder has the tokens %d and %d", holds[0].Token(), holds[1].Token())
		}
		w.unlock(holds[:]...)
	})
}

// gated is a real lock to which a server responds as only says.
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
			c := kindtest.NewClient(t, s.Client(t), client.WithWatchdogTimeout(4*dog), client.WithOpTimeout(dog))
			locks = append(locks, gated{c.NewLock("q", lock.WithFencing()), i})
		}
		return multilock.NewQuorum(locks, multilock.WithDurableServers(), multilock.WithMaxLease(4*dog), multilock.WithServerTimeout(dog))
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
			t.Errorf("the resource refuses a valid holder: %v; %v", err, h.Err())
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
		t.Errorf("the token %d follows %d", next.Token(), outer.Token())
	}
	if err := next.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

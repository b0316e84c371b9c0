package multilock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
	"github.com/leasehold-go/leasehold/multilock"
)

// The tests of this file hold guards of multi-locks and quorums that no other test does. Each was red without its guard.

// A server that refused at first votes later. It is not taken for another server of the quorum: itself.
func TestQuorum_theRefuserVotesLater(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		w.sites[0].keys["q"] = entry{"other", 1, time.Now().Add(6 * rtt)} // until the second attempt
		h := w.lock(w.quorum("one"))
		time.Sleep(lease)
		if n := len(multilock.Holds(h)); n != 3 || slices.Contains(w.sites[0].heard(), "release") {
			w.Errorf("%d of 3 votes; the first server was asked %q", n, w.sites[0].heard())
		}
		w.unlock(h)
	})
}

// Once it is known that the servers are different, an attempt that is refused does not ask them who they are.
func TestQuorum_asksOnceWhoTheyAre(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		q := w.quorum("one")
		h := w.lock(q)
		w.wantHeld("1 2 3") // all have answered
		time.Sleep(2 * rtt)
		w.unlock(h)
		other := w.lock(w.quorum("two"))
		before := len(w.sites[0].heard())
		_, err := q.TryLock(w.Context())
		want(t, err, lock.ErrNotAcquired)
		if got := w.sites[0].heard()[before:]; !slices.Equal(got, []string{"acquire"}) {
			w.Errorf("the first server was asked %q", got)
		}
		w.unlock(other)
	})
}

// A server that has lost the lock is asked for it again, but not all the time.
func TestQuorum_paceOfRepair(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		h := w.lock(w.quorum("one", multilock.WithServerTimeout(lease/4)))
		w.sites[0].set(func() { w.sites[0].keys["q"] = entry{"other", 1, time.Now().Add(time.Hour)} })
		time.Sleep(lease) // the loss is known
		before := len(w.sites[0].heard())
		time.Sleep(20 * lease)
		if n := len(w.sites[0].heard()) - before; n < 5 || n > 120 { // about every two timeouts, who it is with it
			w.Errorf("the first server was asked %d times", n)
		}
		w.unlock(h)
	})
}

// The server that a waiter waits at grants the lock, and gives no answer any more. The waiter does not wait for
// it longer than for any other server.
func TestQuorum_theGateFreezes(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		for i := range 10 {
			other := w.lock(w.quorum("two"))
			held := make(chan lock.Hold)
			go func() {
				h, err := w.quorum(fmt.Sprint("one", i)).Lock(w.Context())
				if err != nil {
					w.Error(err)
				}
				held <- h
			}()
			time.Sleep(20 * time.Millisecond)
			w.unlock(other)
			for !w.sites[0].has("q") {
				time.Sleep(rtt / 8)
			}
			w.sites[0].freeze()
			frozen := time.Now()
			h := <-held
			if took := time.Since(frozen); took > lease*3/10 { // most of it to give the lock back
				w.Errorf("it took %v", took)
			}
			w.sites[0].thaw()
			w.unlock(h)
			time.Sleep(lease)
		}
	})
}

// noRegister is a lock whose holds cannot raise a token, though it says that it has tokens.
type noRegister struct{ *fake }

func (l noRegister) TryLock(ctx context.Context) (lock.Hold, error) {
	h, err := l.fake.TryLock(ctx)
	return struct{ lock.Hold }{h}, err
}

func TestQuorum_tokensThatCannotBeRaised(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		locks := w.locks("one")
		for i, l := range locks {
			locks[i] = noRegister{l.(*fake).forFenced()}
		}
		_, err := multilock.NewQuorum(locks, with(nil)...).TryLock(w.Context())
		if err == nil || !strings.Contains(err.Error(), "cannot raise a token") {
			w.Error(err)
		}
		time.Sleep(lease)
		w.wantHeld("")
	})
}

// Less than a tenth of the validity is left when the majority is there.
func TestQuorum_almostOver(t *testing.T) {
	for _, late := range []bool{false, true} {
		inWorld(t, 3, func(w *world) {
			for _, s := range w.sites {
				s.wire = lease / 5 // four times that until the votes are there
				if late {
					s.wire = lease * 23 / 100
				}
			}
			h, err := w.quorum("one", multilock.WithMaxLease(8*lease), multilock.WithServerTimeout(2*lease)).TryLock(w.Context())
			if !late && err != nil || late && (err == nil || !strings.Contains(err.Error(), "too late")) {
				w.Errorf("late=%v: %v", late, err)
			}
			if err == nil {
				w.unlock(h)
			}
			time.Sleep(3 * lease)
			w.wantHeld("")
		})
	}
}

// The error tells a server that had its time from one whose answer made no difference any more.
func TestQuorum_notWaitedFor(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		other := w.lock(w.quorum("two"))
		w.sites[2].wire = patience / 2
		_, err := w.quorum("one").TryLock(w.Context())
		if err == nil || !strings.Contains(err.Error(), "server 3: its reply was not waited for") {
			w.Error(err)
		}
		w.unlock(other)
	})
}

// A hold that is abandoned ends after the longest lease, though it could have lasted longer.
func TestQuorum_abandonedBeforeItsMaxHold(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		ctx, cancel := context.WithCancel(w.Context())
		abandoned, err := w.quorum("one", multilock.WithMaxHold(time.Hour)).Lock(ctx)
		if err != nil {
			w.Fatal(err)
		}
		cancel()
		time.Sleep(2 * lease)
		want(t, abandoned.Unlock(w.Context()), lock.ErrNotHeld, lock.ErrAbandoned)
	})
}

// nameless is a lock on a server that does not say which one it is.
type nameless struct{ *fake }

func (nameless) Server(context.Context) (lockimpl.Server, error) { return lockimpl.Server{}, nil }

// Durable servers forget nothing. So it is of no importance since when they have been up, how long the lease is, and
// whether they say who they are.
func TestQuorum_durableServers(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		for _, durable := range []bool{false, true} {
			var opts []multilock.Option
			if durable {
				opts = []multilock.Option{multilock.WithDurableServers()}
			}
			long := w.quorum("long", append(opts, multilock.WithMaxLease(lease/2))...)
			locks := w.locks("nameless")
			for i, l := range locks {
				locks[i] = nameless{l.(*fake)}
			}
			for says, q := range map[string]*multilock.Quorum{
				"its lease is longer than the longest lease": long,
				"it is not known which server it is":         multilock.NewQuorum(locks, with(opts)...),
			} {
				h, err := q.TryLock(w.Context())
				if durable && err != nil || !durable && (err == nil || !strings.Contains(err.Error(), says)) {
					w.Errorf("durable=%v: %v", durable, err)
				}
				if err == nil {
					w.unlock(h)
				} else if errors.Is(err, lock.ErrUnavailable) {
					w.Errorf("%v matches ErrUnavailable", err)
				}
				time.Sleep(10 * rtt)
			}
		}
	})
}

// While a server is asked for the lock again and again, Unlock waits for the other servers only.
func TestQuorum_unlockEndsTheRepair(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		w.sites[0].keys["q"] = entry{"other", 1, time.Now().Add(time.Hour)}
		for i := range 10 {
			h := w.lock(w.quorum("one"))
			time.Sleep(lease/10 + time.Duration(i)*time.Millisecond)
			began := time.Now()
			w.unlock(h)
			if took := time.Since(began); took > 2*rtt {
				w.Errorf("it took %v", took)
			}
		}
	})
}

// A member reaches its longest hold while the attempt waits for other votes. Its vote is lost, and the attempt is not.
func TestQuorum_maxHoldDuringTheAttempt(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		for _, s := range w.sites[1:] {
			s.wire = rtt
		}
		locks := w.locks("one")
		locks[0] = bounded{locks[0].(lockimpl.Witness), 2*rtt + rtt/2} // from its grant; the others vote later than that
		h, err := multilock.NewQuorum(locks, with(nil)...).TryLock(w.Context())
		if err != nil {
			w.Fatal(err)
		}
		time.Sleep(rtt)
		if err := h.Err(); err != nil {
			w.Error(err)
		}
		w.unlock(h)
	})
}

// Extend of a hold that is renewed sets no end to it.
func TestQuorum_extendOfARenewedHold(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		h := w.lock(w.quorum("one"))
		if err := h.Extend(w.Context(), lease); err != nil {
			w.Fatal(err)
		}
		time.Sleep(5 * lease)
		if err := h.Err(); err != nil {
			w.Error(err)
		}
		w.unlock(h)
	})
}

// Extend under a context that is over sends nothing. On durable servers it may be for longer than the longest lease.
func TestQuorum_extendAsItMay(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		h := w.lock(w.quorum("one", multilock.WithDurableServers()))
		time.Sleep(2 * rtt)
		over, cancel := context.WithCancel(w.Context())
		cancel()
		before := len(w.sites[0].heard())
		want(t, h.Extend(over, lease), context.Canceled)
		time.Sleep(2 * rtt)
		if got := w.sites[0].heard()[before:]; len(got) != 0 {
			w.Errorf("the first server was asked %q", got)
		}
		if err := h.Extend(w.Context(), 2*lease); err != nil {
			w.Error(err)
		}
		w.unlock(h)
	})
}

// The leases of the members are fixed, and longer than the longest hold.
func TestQuorum_maxHoldBeforeItsLeases(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		locks := w.locks("one")
		for _, l := range locks {
			l.(*fake).forFixed()
		}
		h := w.lock(multilock.NewQuorum(locks, with([]multilock.Option{multilock.WithMaxHold(lease / 2)})...))
		if left := time.Until(h.Until()); left > lease/2 {
			w.Errorf("%v are left", left)
		}
		time.Sleep(lease / 2)
		want(t, h.Unlock(w.Context()), lock.ErrNotHeld, lock.ErrLost, lock.ErrMaxHold)
		time.Sleep(lease)
	})
}

// registering is a context that counts the functions which wait for its end.
type registering struct {
	context.Context
	done chan struct{}
	n    *atomic.Int64
}

func (c registering) Done() <-chan struct{} { return c.done }

func (c registering) AfterFunc(func()) func() bool {
	c.n.Add(1)
	return func() bool { c.n.Add(-1); return true }
}

// A hold that is over leaves nothing with the context of the caller, which may live for ever.
func TestQuorum_leavesNothingWithItsContext(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		ctx := registering{lock.ContextWithNewOwner(w.Context()), make(chan struct{}), new(atomic.Int64)}
		q := w.quorum("one")
		for range 5 {
			h := w.lockUnder(ctx, q)
			if ctx.n.Load() == 0 {
				w.Error("the hold does not look at its context")
			}
			w.unlock(h)
		}
		time.Sleep(lease)
		if n := ctx.n.Load(); n != 0 {
			w.Errorf("%d functions are left", n)
		}
	})
}

// A quorum of locks with different names is called by all of them.
func TestNewQuorum_names(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		locks := w.locks("one")
		locks[1] = w.sites[1].lock("one", "p", lease)
		if name := multilock.NewQuorum(locks, with(nil)...).Name(); name != "q+p+q" {
			w.Errorf("its name is %q", name)
		}
	})
}

// permits is a semaphore.
type permits struct {
	*fake
	n int
}

func (p permits) Semaphore() (of any, permits int) { return "q", p.n }

// With several permits on each server, two quorums could have a majority.
func TestNewQuorum_permits(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		for n := 1; n <= 2; n++ {
			locks := w.locks(fmt.Sprint(n))
			locks[2] = permits{locks[2].(*fake), n}
			h, err := multilock.NewQuorum(locks, with(nil)...).TryLock(w.Context())
			if (err == nil) != (n == 1) {
				w.Errorf("with %d permits: %v", n, err)
			}
			if err == nil {
				w.unlock(h)
			}
		}
	})
}

// Two of the leases are fixed, and differ. With the vote that is renewed, the longer one makes a majority.
func TestQuorum_fixedLeasesOfSome(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		locks := w.locks("one")
		locks[0].(*fake).forFixed()
		locks[1].(*fake).forFixed().lease = lease / 4
		h := w.lock(multilock.NewQuorum(locks, with(nil)...))
		time.Sleep(lease * 3 / 4)
		if err := h.Err(); err != nil {
			w.Error(err)
		}
		w.unlock(h)
	})
}

// No server can be reached. A caller that waits does not try again at once, again and again.
func TestQuorum_noServerAnswers(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		for _, s := range w.sites {
			s.kill()
		}
		ctx, cancel := context.WithTimeout(w.Context(), 10*time.Second)
		defer cancel()
		_, err := w.quorum("one").Lock(ctx)
		want(t, err, lock.ErrUnavailable, context.DeadlineExceeded)
		wantNot(t, err, lock.ErrNotAcquired)
		if n := len(w.sites[0].heard()); n > 100 {
			w.Errorf("the first was asked %d times in ten seconds", n)
		}
	})
}

// A young server gets its vote while the attempt counts the votes for the last time, in a process that is paused then. An attempt that does not
// win has an error.
func TestQuorum_aVoteComesDuringTheCount(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		w.sites[1].restart()
		locks := w.locks("one")
		var last atomic.Bool // the last answer comes
		locks[0] = witness{odd{Locker: locks[0], before: func(context.Context, string) error {
			time.Sleep(3 * rtt) // the others have answered
			last.Store(true)
			return lock.ErrUnavailable
		}}, locks[0].(lockimpl.Witness)}
		locks[2] = witness{odd{Locker: locks[2], after: func(h lock.Hold) lock.Hold { return pausing{h, &last} }}, locks[2].(lockimpl.Witness)}
		h, err := multilock.NewQuorum(locks, with(nil)...).TryLock(w.Context())
		if h != nil {
			w.Fatal("it won without a count that says so")
		}
		want(t, err, lock.ErrUnavailable)
		wantNot(t, err, lock.ErrNotAcquired)
	})
}

// pausing is a hold whose process is paused when it is looked at, once that is due.
type pausing struct {
	lock.Hold
	due *atomic.Bool
}

func (p pausing) Err() error {
	if p.due.Swap(false) {
		time.Sleep(2 * lease)
	}
	return p.Hold.Err()
}

// The error names the lock once, and of each server without a vote it says why.
func TestQuorum_whatTheErrorSays(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		for _, s := range w.sites[1:] {
			s.keys["q"] = entry{"other", 1, time.Now().Add(time.Hour)}
		}
		w.sites[0].wire = rtt / 4 // it votes before the others refuse
		_, err := w.quorum("one").TryLock(w.Context())
		if got, want := fmt.Sprint(err), `leasehold: trylock "q": not acquired: 1 of 3 votes; server 2: not acquired; server 3: not acquired`; got != want {
			w.Errorf("%s\nwant\n%s", got, want)
		}
	})
}

// The context of a TryLock ends during the attempt, before it is known what that comes to. The error says no more than that.
func TestQuorum_tryIsInterrupted(t *testing.T) {
	for _, frozen := range []int{1, 2} {
		inWorld(t, 3, func(w *world) {
			why := errors.New("the request went away")
			ctx, cancel := context.WithCancelCause(w.Context())
			defer cancel(nil)
			w.sites[0].keys["q"] = entry{"other", 1, time.Now().Add(time.Hour)}
			for _, s := range w.sites[3-frozen:] {
				s.freeze()
			}
			time.AfterFunc(patience/2, func() { cancel(why) })
			_, err := w.quorum("one").TryLock(ctx)
			want(t, err, context.Canceled, why)
			wantNot(t, err, lock.ErrNotAcquired, lock.ErrUnavailable)
			for _, s := range w.sites[3-frozen:] {
				s.thaw()
			}
			time.Sleep(lease)
		})
	}
}

// What the error of a quorum matches, and what it does not: it means one thing, whatever the servers say.
func TestBallot(t *testing.T) {
	busy := fmt.Errorf("%w: as the rules say", lock.ErrNotAcquired)
	down := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	silent := fmt.Errorf("%w: %w", lock.ErrUnavailable, down)
	both := fmt.Errorf("%w: %w: %w", lock.ErrNotAcquired, lock.ErrUnavailable, context.DeadlineExceeded)
	denied, wrong := errors.New("NOPERM"), fmt.Errorf("%w: a string", lock.ErrWrongType)
	lost := fmt.Errorf("%w: %w", lock.ErrLost, lock.ErrExpired)
	young := multilock.Young(time.Second)
	all := []error{lock.ErrNotAcquired, lock.ErrUnavailable, denied, lock.ErrWrongType, lock.ErrLost, context.DeadlineExceeded, context.Canceled}
	for _, test := range []struct {
		reasons []error
		want    []error
	}{
		{[]error{nil, busy, busy}, []error{lock.ErrNotAcquired}},
		{[]error{busy, busy, silent}, []error{lock.ErrNotAcquired}},
		{[]error{busy, busy, denied}, []error{lock.ErrNotAcquired}},
		{[]error{nil, busy, silent}, []error{lock.ErrUnavailable}},
		{[]error{nil, busy, both}, []error{lock.ErrUnavailable}},
		{[]error{both, both, both}, []error{lock.ErrUnavailable}},
		{[]error{busy, silent, silent}, []error{lock.ErrUnavailable}},
		{[]error{nil, busy, young}, []error{lock.ErrUnavailable}},
		{[]error{young, young, young}, []error{lock.ErrUnavailable}},
		{[]error{nil, busy, lost}, []error{lock.ErrUnavailable}},
		{[]error{nil, busy, multilock.NoVote(time.Second, nil)}, []error{lock.ErrUnavailable}},
		{[]error{nil, busy, multilock.NoVote(time.Second, both)}, []error{lock.ErrUnavailable}},
		{[]error{nil, busy, multilock.NoVote(time.Second, busy)}, []error{lock.ErrNotAcquired}},
		{[]error{nil, busy, fmt.Errorf("%w: %w", lock.ErrNotAcquired, os.ErrDeadlineExceeded)}, []error{lock.ErrNotAcquired}},
		{[]error{denied, denied, denied}, []error{denied}},
		{[]error{wrong, wrong, wrong}, []error{lock.ErrWrongType}},
		{[]error{nil, denied, wrong}, []error{denied, lock.ErrWrongType}},
		{[]error{busy, silent, denied}, []error{denied}}, // without the fault, there could be a majority when the server responds
		{[]error{nil, busy, denied}, []error{denied}},
		{[]error{nil, silent, denied}, []error{lock.ErrUnavailable}},
		{[]error{silent, silent, denied}, []error{lock.ErrUnavailable}},
		{[]error{nil, nil, busy, busy, busy}, []error{lock.ErrNotAcquired}},
		{[]error{nil, nil, busy, busy, silent}, []error{lock.ErrUnavailable}},
		{[]error{nil, nil, busy, busy, denied}, []error{denied}},
		{[]error{nil, busy, denied, silent, silent}, []error{lock.ErrUnavailable}},
		{[]error{nil, busy, busy, denied, silent}, []error{denied}},
		{[]error{busy, busy, busy, denied, silent}, []error{lock.ErrNotAcquired}},
	} {
		err := multilock.Judged(test.reasons...)
		for _, target := range all {
			if got := errors.Is(err, target); got != slices.Contains(test.want, target) {
				t.Errorf("%v: it matches %q: %v", err, target, got)
			}
		}
		for i, reason := range test.reasons {
			if reason != nil && !strings.Contains(err.Error(), fmt.Sprintf("server %d: %v", i+1, reason)) {
				t.Errorf("%v: it does not give the reason of server %d", err, i+1)
			}
		}
	}
	want(t, multilock.Judged(nil, silent, silent), down)
	loss := multilock.Loss(nil, busy, multilock.NoVote(time.Second, nil), lost, denied)
	want(t, loss, lock.ErrLost, lock.ErrExpired, denied)
	wantNot(t, loss, lock.ErrNotAcquired, lock.ErrUnavailable, context.Canceled)
}

// A server did not vote in time. What did its Locker say when it was told to stop?
func TestNoVote(t *testing.T) {
	for _, test := range []struct {
		said        error
		text        string
		unavailable bool
	}{
		{nil, "no vote within 1s", true},
		{io.EOF, "no vote within 1s (EOF)", true},
		{lock.ErrNotAcquired, "no vote within 1s (not acquired)", false},
		{fmt.Errorf("%w: %w", lock.ErrNotAcquired, lock.ErrUnavailable), "no vote within 1s (not acquired: no usable reply from Redis)", true},
	} {
		err := multilock.NoVote(time.Second, test.said)
		want(t, err, os.ErrDeadlineExceeded)
		if got := errors.Is(err, lock.ErrUnavailable); got != test.unavailable || err.Error() != test.text || errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("%q, want %q; unavailable %v, want %v", err, test.text, got, test.unavailable)
		}
	}
}

// WithWait ended a Lock, before or after its first attempt.
func TestWaited(t *testing.T) {
	for _, test := range []struct {
		last error
		text string
	}{
		{nil, "no usable reply from Redis: waited for 1s"},
		{multilock.Judged(nil, lock.ErrNotAcquired, lock.ErrNotAcquired), "waited for 1s (last attempt: not acquired: 1 of 3 votes; server 2: not acquired; server 3: not acquired)"},
	} {
		err := multilock.Waited(time.Second, test.last)
		want(t, err, os.ErrDeadlineExceeded)
		wantNot(t, err, context.DeadlineExceeded)
		if refused := test.last != nil; errors.Is(err, lock.ErrNotAcquired) != refused || errors.Is(err, lock.ErrUnavailable) == refused {
			t.Errorf("%v: what does it match?", err)
		}
		if err.Error() != test.text {
			t.Errorf("%q, want %q", err, test.text)
		}
	}
}

// An attempt that no majority answered says what each server said, and nothing of a context that has not ended.
func TestQuorum_whatAnUnavailableTrySays(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		for _, s := range w.sites[1:] {
			s.kill()
		}
		w.sites[0].wire = rtt / 8 // it says who it is and votes before the others fail
		_, err := w.quorum("one").TryLock(w.Context())
		if got, want := fmt.Sprint(err), `leasehold: trylock "q": no usable reply from Redis: 1 of 3 votes; server 2: dial tcp: connection refused; server 3: dial tcp: connection refused`; got != want {
			w.Errorf("%s\nwant\n%s", got, want)
		}
	})
}

// One server votes, one refuses for good, and one is busy. A majority is possible, so Lock waits, for longer than for three attempts.
func TestQuorum_aMajorityIsPossible(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		w.sites[1].keys["q"] = entry{"other", 1, time.Now().Add(lease)}
		locks := w.locks("one")
		denied := witness{odd{Locker: locks[2], before: func(context.Context, string) error { return errors.New("NOPERM") }}, locks[2].(lockimpl.Witness)}
		h, err := multilock.NewQuorum([]lock.Locker{locks[0], locks[1], denied}, with(nil)...).Lock(w.Context())
		if err != nil {
			w.Fatal(err)
		}
		w.unlock(h)
	})
}

// Two Lockers that take permits of one semaphore could wait for each other.
func TestNew_permitsOfOneSemaphore(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		one, two := w.locks("one")[0].(*fake), w.locks("two")[0].(*fake)
		_, err := multilock.New(permits{one, 1}, permits{two, 2}).TryLock(w.Context())
		if err == nil || !strings.Contains(err.Error(), "locks 1 and 2 of 2 take permits of one semaphore") {
			w.Errorf("twice: %v", err)
		}
		h, err := multilock.New(permits{one, 1}).TryLock(w.Context())
		if err != nil {
			w.Fatalf("once: %v", err)
		}
		w.unlock(h)
	})
}

// An attempt out of order that is refused is not made again in order: not by TryLock, which waits for nothing, nor after an error that would come again.
func TestMultiLock_refusedOnce(t *testing.T) {
	denied := errors.New("NOPERM")
	for name, test := range map[string]struct {
		take func(*multilock.Lock, context.Context) (lock.Hold, error)
		err  error
	}{
		"TryLock, busy": {(*multilock.Lock).TryLock, lock.ErrNotAcquired},
		"Lock, denied":  {(*multilock.Lock).Lock, denied},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 2, func(w *world) {
				locks, asked := w.locks("one"), 0 // of one name
				locks[1] = odd{Locker: locks[1], before: func(context.Context, string) error {
					asked++
					return test.err
				}}
				_, err := test.take(multilock.New(locks...), w.Context())
				want(w.T, err, test.err)
				if asked != 1 {
					w.Errorf("the second was asked %d times", asked)
				}
				free(w.T, w.sites, "q")
			})
		})
	}
}

// The lease of a lock runs out while others are waited for. Its hold is unlocked all the same: Redis may still have it.
func TestMultiLock_unlocksWhatRanOut(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		s, unlocked := w.sites[0], 0
		a := odd{Locker: s.lock("one", "a", 100*time.Millisecond).forFixed(), after: func(h lock.Hold) lock.Hold {
			return &paper{Hold: h, unlock: func(context.Context) error {
				unlocked++
				return nil
			}}
		}}
		busy := must(w.T)(s.lock("two", "b", lease).Lock(w.Context()))
		got := make(chan lock.Hold)
		go func() { got <- must(w.T)(multilock.New(a, s.lock("one", "b", lease)).Lock(w.Context())) }()
		time.Sleep(lease) // a has run out
		w.unlock(busy)
		h := <-got
		if unlocked != 1 {
			w.Errorf("a was unlocked %d times before it was taken again", unlocked)
		}
		w.unlock(h)
		free(w.T, w.sites, "a", "b")
	})
}

// The context is over before the first lock is taken. The error says no more than that.
func TestMultiLock_interruptedAtOnce(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		_, err := multilock.New(w.sites[0].lock("one", "a", lease)).Lock(ctx)
		if got, want := fmt.Sprint(err), `leasehold: lock "a": context canceled`; got != want {
			w.Errorf("%s\nwant\n%s", got, want)
		}
	})
}

// A member was over before anybody looked. The hold of all says so, and for how long it was held: until then, and not until somebody looked.
func TestMultiLock_overBeforeALook(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		var p *paper
		a := odd{Locker: w.sites[0].lock("one", "a", lease), after: func(h lock.Hold) lock.Hold {
			p = &paper{Hold: h}
			return p
		}}
		h := must(w.T)(multilock.New(a).Lock(w.Context()))
		p.tell(lock.ErrLost) // its timers have not fired yet
		lost := time.Now()
		time.Sleep(time.Second)
		_ = h.Extend(w.Context(), lease) // which looks
		select {
		case <-h.Context().Done():
		default:
			w.Error("the context does not say so")
		}
		want(w.T, h.Err(), lock.ErrLost)
		if got := h.Until(); !got.Equal(lost) {
			w.Errorf("held until %v, want %v", got, lost)
		}
		_ = h.Unlock(w.Context())
	})
}

// The context of the caller is canceled while Err looks at the holds. That is not the end of the hold: its loss is told afterwards.
func TestMultiLock_canceledDuringALook(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		ctx, cancel := context.WithCancel(w.Context())
		defer cancel()
		var one *paper
		look := func() {}
		a := odd{Locker: w.sites[0].lock("one", "a", lease), after: func(h lock.Hold) lock.Hold {
			one = &paper{Hold: h}
			return looked{one, &look}
		}}
		h := must(w.T)(multilock.New(a).Lock(ctx))
		look = cancel
		want(w.T, h.Err(), context.Canceled)
		one.tell(lock.ErrLost)
		want(w.T, h.Err(), lock.ErrLost)
		_ = h.Unlock(w.Context())
	})
}

// looked is a hold that calls look before it says whether it is over.
type looked struct {
	*paper
	look *func()
}

func (l looked) Err() error {
	(*l.look)()
	return l.paper.Err()
}

// Each server is told the token of a grant once.
func TestQuorum_raisesOnce(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		w.sites[2].wire = rtt * 3 / 4 // it votes while the others are told
		h := w.lock(w.fenced("one"))
		time.Sleep(patience)
		for i, s := range w.sites {
			n := 0
			for _, what := range s.heard() {
				if what == "raise" {
					n++
				}
			}
			if n != 1 {
				w.Errorf("server %d was told %d times", i, n)
			}
		}
		w.unlock(h)
	})
}

// A call that does not get all locks says which of them it could not give back, and why. If that failed, it is the
// failure, and the refusal stands in the text.
func TestMultiLock_saysWhatIsNotGivenBack(t *testing.T) {
	reset := errors.New("connection reset")
	for name, test := range map[string]struct {
		unlock    func(context.Context) error
		says, not string
		is        error
	}{
		"an error":  {func(context.Context) error { return reset }, `trylock "c": not acquired` + "\n" + `leasehold: unlock "b": connection reset`, "not confirmed", reset},
		"no answer": {func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, `unlock "b": not confirmed within 200ms`, `unlock "a"`, lock.ErrNotAcquired},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 1, func(w *world) {
				s := w.sites[0]
				busy := must(w.T)(s.lock("two", "c", lease).Lock(w.Context()))
				b := odd{Locker: s.lock("one", "b", lease), after: func(h lock.Hold) lock.Hold { return &paper{Hold: h, unlock: test.unlock} }}
				_, err := multilock.New(s.lock("one", "a", lease), b, s.lock("one", "c", lease)).TryLock(w.Context())
				want(w.T, err, test.is)
				if got := errors.Is(err, lock.ErrNotAcquired); got != (test.is == lock.ErrNotAcquired) {
					w.Errorf("%v: does it match ErrNotAcquired?", err)
				}
				if err == nil || !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), test.not) {
					w.Errorf("%v\nwant %q, and not %q", err, test.says, test.not)
				}
				w.unlock(busy)
			})
		})
	}
}

// An owner holds a quorum of other servers that has the same name. Its token is not that of this one.
func TestQuorum_theSameNameElsewhere(t *testing.T) {
	inWorld(t, 6, func(w *world) {
		locks := append(w.locks("one")[:3], w.locks("another")[3:]...) // each server has a client of its own
		for _, l := range locks {
			l.(*fake).forFenced()
		}
		ctx := lock.ContextWithNewOwner(w.Context())
		one := w.lockUnder(ctx, multilock.NewQuorum(locks[:3], with(nil)...))
		time.Sleep(time.Second)
		two := w.lockUnder(ctx, multilock.NewQuorum(locks[3:], with(nil)...))
		if one.Token() == two.Token() || two.Token() != w.sites[5].tokens["q"] {
			w.Errorf("tokens %d and %d; the last server has %d", one.Token(), two.Token(), w.sites[5].tokens["q"])
		}
		w.unlock(two, one)
	})
}

// A member was lost, and nobody has looked before the Unlock. The hold of all ends as lost, and not as unlocked.
func TestMultiLock_lostBeforeTheUnlock(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		var p *paper
		a := odd{Locker: w.sites[0].lock("one", "a", lease), after: func(h lock.Hold) lock.Hold {
			p = &paper{Hold: h}
			return p
		}}
		h := must(w.T)(multilock.New(a).Lock(w.Context()))
		p.tell(lock.ErrLost)
		_ = h.Unlock(w.Context())
		want(w.T, h.Err(), lock.ErrLost)
		wantNot(w.T, h.Err(), lock.ErrUnlocked)
	})
}

// Locks that one script cannot take together are unlocked at the same time.
func TestMultiLock_unlocksAtTheSameTime(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		h := must(w.T)(multilock.New(w.sites[0].lock("one", "a", lease), w.sites[1].lock("one", "b", lease)).Lock(w.Context()))
		began := time.Now()
		w.unlock(h)
		if took := time.Since(began); took != rtt {
			w.Errorf("it took %v, want one round trip of %v", took, rtt)
		}
	})
}

// A TryLock whose context is over asks no server.
func TestQuorum_asksNobodyAfterTheEnd(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		_, err := w.quorum("one").TryLock(ctx)
		want(w.T, err, context.Canceled)
		wantNot(w.T, err, lock.ErrNotAcquired, lock.ErrUnavailable)
		time.Sleep(lease)
		for i, s := range w.sites {
			if asked := s.heard(); len(asked) > 0 {
				w.Errorf("server %d was asked %q", i, asked)
			}
		}
	})
}

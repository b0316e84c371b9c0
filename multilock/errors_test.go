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
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/kindtest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
	"github.com/leasehold-go/leasehold/multilock"
)

// unit is the unit of the timeouts of these tests. It is long enough for a busy machine.
const unit = 4 * time.Second

// The intended meanings of an error.
const (
	isRefused     = "ErrNotAcquired"
	isUnavailable = "ErrUnavailable"
	isFault       = "neither"
)

// meaning returns the class of err.
func meaning(err error) string {
	switch refused, unavailable := errors.Is(err, lock.ErrNotAcquired), errors.Is(err, lock.ErrUnavailable); {
	case err == nil:
		return "no error"
	case refused && unavailable:
		return "both"
	case refused:
		return isRefused
	case unavailable:
		return isUnavailable
	default:
		return isFault
	}
}

// each calls f with every server and its index, from 0.
func each(f func(i int, s *redistest.Server), servers ...*redistest.Server) {
	for i, s := range servers {
		f(i, s)
	}
}

// All servers of a quorum, or some, fail in different ways: the errors of TryLock, of Lock, and of Lock with WithWait.
func TestQuorum_faultsOfServers(t *testing.T) {
	denied := func(t *testing.T, s *redistest.Server) { s.Do(t, "ACL", "SETUSER", "default", "-evalsha", "-eval") }
	text := func(t *testing.T, s *redistest.Server) { s.Do(t, "SET", "q", "not a lock") }
	other := func(t *testing.T, s *redistest.Server) {
		s.Do(t, "HSET", "q", "00000000-0000-0000-0000-000000000000:1", "1")
	}
	down := func(t *testing.T, s *redistest.Server) { s.Kill(t) }
	well := func(*testing.T, *redistest.Server) {}
	for name, test := range map[string]struct {
		servers [3]func(*testing.T, *redistest.Server)
		means   string
		text    [3]string
	}{
		"no permission":         {[3]func(*testing.T, *redistest.Server){denied, denied, denied}, isFault, [3]string{"NOPERM", "NOPERM", "NOPERM"}},
		"a string":              {[3]func(*testing.T, *redistest.Server){text, text, text}, isFault, [3]string{"a string", "a string", "a string"}},
		"one of each fault":     {[3]func(*testing.T, *redistest.Server){denied, text, other}, isFault, [3]string{"NOPERM", "a string", "not acquired"}},
		"refused, down, denied": {[3]func(*testing.T, *redistest.Server){other, down, denied}, isFault, [3]string{"not acquired", "refused", "NOPERM"}},
		"down, down, denied":    {[3]func(*testing.T, *redistest.Server){down, down, denied}, isUnavailable, [3]string{"refused", "refused", "NOPERM"}},
		"refused, down, well":   {[3]func(*testing.T, *redistest.Server){other, down, well}, isUnavailable, [3]string{"not acquired", "refused"}},
		"refused twice, down":   {[3]func(*testing.T, *redistest.Server){other, other, down}, isRefused, [3]string{"not acquired", "not acquired"}},
		"refused twice, denied": {[3]func(*testing.T, *redistest.Server){other, other, denied}, isRefused, [3]string{"not acquired", "not acquired"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var u user
			each(func(i int, s *redistest.Server) {
				u = append(u, kindtest.NewClient(t, s.Client(t), client.WithWatchdogTimeout(2*unit), client.WithOpTimeout(unit/2)))
				warm, err := u[i].NewLock("warm").Lock(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if err := warm.Unlock(t.Context()); err != nil {
					t.Fatal(err)
				}
				test.servers[i](t, s)
			}, redistest.Start(t), redistest.Start(t), redistest.Start(t))
			var locks []lock.Locker
			for _, c := range u {
				locks = append(locks, c.NewLock("q"))
			}
			options := []multilock.Option{multilock.WithDurableServers(), multilock.WithMaxLease(10 * unit), multilock.WithServerTimeout(2 * unit)}
			_, tried := multilock.NewQuorum(locks, options...).TryLock(t.Context())
			_, waited := multilock.NewQuorum(locks, append(options, multilock.WithWait(unit))...).Lock(t.Context())
			for call, err := range map[string]error{"TryLock": tried, "Lock": waited} {
				if got := meaning(err); got != test.means {
					t.Errorf("%s: %v: it matches %s, want %s", call, err, got, test.means)
				}
				for i, wantReason := range test.text {
					if part := fmt.Sprintf("server %d: ", i+1); wantReason != "" {
						_, reason, found := strings.Cut(fmt.Sprint(err), part)
						reason, _, _ = strings.Cut(reason, "; server")
						if !found || !strings.Contains(reason, wantReason) {
							t.Errorf("%s: %v: no %q for server %d", call, err, wantReason, i+1)
						}
					}
				}
			}
			if strings.HasPrefix(name, "a string") && (!errors.Is(tried, lock.ErrWrongType) || !errors.Is(waited, lock.ErrWrongType)) {
				t.Errorf("%v; %v: want %v", tried, waited, lock.ErrWrongType)
			}
		})
	}
}

// Servers that started too recently to vote do not count as another owner.
func TestQuorum_allServersStartedRecently(t *testing.T) {
	u := newUser(t, redistest.Start(t), redistest.Start(t), redistest.Start(t))
	var locks []lock.Locker
	for _, c := range u {
		locks = append(locks, c.NewLock("q"))
	}
	_, err := multilock.NewQuorum(locks, multilock.WithMaxLease(time.Hour), multilock.WithServerTimeout(unit)).TryLock(t.Context())
	if meaning(err) != isUnavailable || !strings.Contains(fmt.Sprint(err), "started recently") {
		t.Error(err)
	}
}

// Several clients of one server cannot form a quorum, and the error reports that. It does not matter whether the lock
// is free there or another owner has it, what is between the clients and the server, and whether INFO is allowed.
func TestQuorum_clientsOfOneServer(t *testing.T) {
	s := redistest.Start(t)
	noInfo := s.AddUser(t, "noinfo", "~*", "&*", "+@all", "-info")
	direct := newUser(t, s, s, s)
	one := direct[0]
	clients := map[string][]*client.Client{
		"three clients":   direct,
		"one client":      {one, one, one},
		"behind proxies":  {},
		"WithLazyConnect": {},
		"INFO is denied":  {},
	}
	lazy := func(address string) *client.Client {
		c, err := client.Open(t.Context(), "redis://"+address, client.WithLazyConnect(), client.WithoutRegistry())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close(t.Context()) })
		return c
	}
	for range 3 {
		clients["behind proxies"] = append(clients["behind proxies"], lazy(redistest.NewProxy(t, s.Addr()).Addr()))
		clients["WithLazyConnect"] = append(clients["WithLazyConnect"], lazy(s.Addr()))
		clients["INFO is denied"] = append(clients["INFO is denied"], kindtest.NewClient(t, s.Client(t, noInfo), client.WithWatchdogTimeout(4*unit), client.WithOpTimeout(unit)))
	}
	for name, of := range clients {
		for _, acquired := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", taken=", acquired), func(t *testing.T) {
				key := fmt.Sprint("q:", name)
				if acquired {
					h, err := one.NewLock(key).Lock(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					defer h.Unlock(t.Context())
				}
				var locks []lock.Locker
				for _, c := range of {
					locks = append(locks, c.NewLock(key))
				}
				q := multilock.NewQuorum(locks, multilock.WithDurableServers(), multilock.WithMaxLease(10*unit), multilock.WithServerTimeout(2*unit))
				_, tried := q.TryLock(t.Context())
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				_, waited := q.Lock(ctx)
				for _, err := range []error{tried, waited} {
					if meaning(err) != isFault || !strings.Contains(fmt.Sprint(err), "are on the same server") {
						t.Error(err)
					}
				}
			})
		}
	}
}

// anonymous is a lock of a server that does not report its run ID. A test can delay its calls.
type anonymous struct {
	lock.Locker
	try     func() // before TryLock
	tried   func(lock.Hold) lock.Hold
	inspect func() // before Inspect
	seen    func() // after Inspect
}

func (l anonymous) TryLock(ctx context.Context) (lock.Hold, error) {
	l.try()
	h, err := l.Locker.TryLock(ctx)
	if err == nil {
		h = l.tried(h)
	}
	return h, err
}

func (l anonymous) Inspect(ctx context.Context) (lock.State, error) {
	l.inspect()
	defer l.seen()
	return l.Locker.(interface {
		Inspect(context.Context) (lock.State, error)
	}).Inspect(ctx)
}

// released closes a channel when the hold is unlocked.
type released struct {
	lock.Hold
	gone func()
}

func (h released) Unlock(ctx context.Context) error {
	defer h.gone()
	return h.Hold.Unlock(ctx)
}

// Of three locks on one server, the third is granted, and the second finds the lock there. The first, whose reply is later,
// finds it, too.
func TestQuorum_sameServerDetectedLate(t *testing.T) {
	s := redistest.Start(t)
	of := newUser(t, s, s, s)
	granted, seen, gone := make(chan struct{}), make(chan struct{}), make(chan struct{})
	none, same := func() {}, func(h lock.Hold) lock.Hold { return h }
	behind := func() { <-granted }
	locks := []lock.Locker{
		anonymous{of[0].NewLock("q"), behind, same, func() {
			select {
			case <-gone:
			case <-time.After(unit / 2): // this hold stays
			}
		}, none},
		anonymous{of[1].NewLock("q"), behind, same, none, func() { close(seen) }},
		anonymous{of[2].NewLock("q"), none, func(h lock.Hold) lock.Hold {
			close(granted)
			<-seen
			return released{h, func() { close(gone) }}
		}, none, none},
	}
	_, err := multilock.NewQuorum(locks, multilock.WithDurableServers(), multilock.WithMaxLease(10*unit), multilock.WithServerTimeout(2*unit)).TryLock(t.Context())
	if meaning(err) != isFault || !strings.Contains(fmt.Sprint(err), "are on the same server") {
		t.Error(err)
	}
	if h, err := of[0].NewLock("q").TryLock(t.Context()); err != nil { // nothing is left
		t.Error(err)
	} else if err := h.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

// The cause of the caller's context may be the error of another lock. The error of the call names its operation and its
// lock anyway.
func TestMultiLock_causeOfAnotherLock(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, a, b, _ := three(t)
		for op, call := range map[string]func(context.Context) (lock.Hold, error){"lock": multilock.New(a, b).Lock, "trylock": multilock.New(a, b).TryLock} {
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(&lock.Error{Op: "hold", Name: "bills", Err: lock.ErrLost})
			_, err := call(ctx)
			var e *lock.Error
			if !errors.As(err, &e) || e.Op != op || e.Name != "a" {
				t.Errorf("%s: %v", op, err)
			}
			want(t, err, context.Canceled, lock.ErrLost)
		}
	})
}

// A caller that is queued behind another one of its Quorum gets the error of that one's attempt.
func TestQuorum_queuedError(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		for name, test := range map[string]struct {
			fail  func(s *site)
			means string
		}{
			"busy": {func(s *site) { s.keys["q"] = entry{"other", 1, time.Now().Add(time.Hour)} }, isRefused},
			"dead": {(*site).kill, isUnavailable},
		} {
			for _, s := range w.sites {
				test.fail(s)
			}
			q := w.quorum("one")
			ctx, cancel := context.WithCancel(w.Context())
			first := make(chan error)
			go func() {
				_, err := q.Lock(ctx)
				first <- err
			}()
			time.Sleep(lease)
			_, tried := q.TryLock(w.Context())
			short, end := context.WithTimeout(w.Context(), lease)
			_, waited := q.Lock(short)
			end()
			cancel()
			for _, err := range []error{tried, waited, <-first} {
				if got := meaning(err); got != test.means {
					w.Errorf("%s: %v: it matches %s", name, err, got)
				}
			}
			for _, s := range w.sites {
				s.set(func() { s.down = false })
				s.forget()
			}
		}
	})
}

// A failed attempt of an earlier call is not part of the error about the call that is ahead now.
func TestQuorum_queuedErrorAfterAnOutage(t *testing.T) {
	for _, name := range []string{"Lock", "TryLock"} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 3, func(w *world) {
				q := w.quorum("one")
				for _, s := range w.sites {
					s.kill()
				}
				ctx, end := context.WithTimeout(w.Context(), lease)
				_, err := q.Lock(ctx)
				end()
				want(w.T, err, lock.ErrUnavailable)
				for _, s := range w.sites {
					s.set(func() { s.down = false })
				}
				ahead := make(chan error)
				go func() {
					call := q.Lock
					if name == "TryLock" {
						call = q.TryLock
					}
					h, err := call(w.Context())
					if err == nil {
						err = h.Unlock(w.Context())
					}
					ahead <- err
				}()
				synctest.Wait() // its first attempt is in flight
				_, err = q.TryLock(w.Context())
				if got := meaning(err); got != isRefused {
					w.Errorf("%v: it matches %s", err, got)
				}
				if err := <-ahead; err != nil {
					w.Error(err)
				}
			})
		})
	}
}

// A reentry does not queue, so its failure is not part of the error about the call that is ahead.
func TestQuorum_queuedErrorAfterAReentry(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		type fails struct{}
		locks := w.locks("one")
		for i, l := range locks {
			locks[i] = witness{hookedLock{Locker: l, before: func(ctx context.Context, _ string) error {
				if ctx.Value(fails{}) != nil {
					time.Sleep(rtt / 4)
					return lock.ErrUnavailable
				}
				return nil
			}}, l.(lockimpl.Witness)}
		}
		q := multilock.NewQuorum(locks, with(nil)...)
		h := must(w.T)(q.Lock(w.Context()))
		waiting, stop := context.WithCancel(w.Context())
		ahead := make(chan error)
		go func() {
			_, err := q.Lock(waiting)
			ahead <- err
		}()
		synctest.Wait()                                                                       // its first attempt is in flight
		ctx, end := context.WithTimeout(context.WithValue(h.Context(), fails{}, true), rtt/2) // for one attempt
		defer end()
		_, err := q.Lock(ctx)
		want(w.T, err, lock.ErrUnavailable)
		_, err = q.TryLock(w.Context())
		if got := meaning(err); got != isRefused {
			w.Errorf("%v: it matches %s", err, got)
		}
		stop()
		want(w.T, <-ahead, context.Canceled)
		if err := h.Unlock(w.Context()); err != nil {
			w.Error(err)
		}
	})
}

// The end of a wait cuts its last attempt short. Then the error of the attempt before counts, unless the last one has a
// definite other result: the servers without a reply may still name another owner.
func TestNewResult(t *testing.T) {
	refusal, dead := error(&lock.Error{Op: "lock", Name: "q", Err: lock.ErrNotAcquired}), error(&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED})
	late := multilock.NoVote(time.Second, context.Canceled)
	refused, down := multilock.Judged(refusal, refusal, refusal, dead, dead), multilock.Judged(dead, dead, dead, refusal, refusal)
	for name, c := range map[string]struct {
		err, last error
		want      bool
	}{
		"the first":                     {multilock.Judged(refusal, multilock.Open, multilock.Open, dead, dead), nil, true},
		"two are open":                  {multilock.Judged(refusal, multilock.Open, multilock.Open, dead, dead), refused, false},
		"two are open, and one is late": {multilock.Judged(late, multilock.Open, multilock.Open, dead, dead), refused, false},
		"three are dead":                {multilock.Judged(dead, dead, dead, multilock.Open, multilock.Open), refused, true},
		"three are dead, as before":     {multilock.Judged(dead, dead, dead, multilock.Open, multilock.Open), down, false},
		"one is at fault":               {multilock.Judged(errors.New("NOPERM"), multilock.Open, multilock.Open, dead, dead), refused, false},
		"three refuse":                  {multilock.Judged(refusal, refusal, refusal, multilock.Open, dead), down, true},
		"another error":                 {lock.ErrUnavailable, refused, true},
	} {
		if got := multilock.NewResult(c.err, c.last); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// The error of a quorum matches exactly one of the sentinel errors, whatever the servers reply.
func TestBallot(t *testing.T) {
	busy := fmt.Errorf("%w: as the rules say", lock.ErrNotAcquired)
	down := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	unavailable := fmt.Errorf("%w: %w", lock.ErrUnavailable, down)
	both := fmt.Errorf("%w: %w: %w", lock.ErrNotAcquired, lock.ErrUnavailable, context.DeadlineExceeded)
	denied, wrong := errors.New("NOPERM"), fmt.Errorf("%w: a string", lock.ErrWrongType)
	lost := fmt.Errorf("%w: %w", lock.ErrLost, lock.ErrExpired)
	recent := multilock.StartedRecently(time.Second)
	all := []error{lock.ErrNotAcquired, lock.ErrUnavailable, denied, lock.ErrWrongType, lock.ErrLost, context.DeadlineExceeded, context.Canceled}
	for _, test := range []struct {
		reasons []error
		want    []error
	}{
		{[]error{nil, busy, busy}, []error{lock.ErrNotAcquired}},
		{[]error{busy, busy, unavailable}, []error{lock.ErrNotAcquired}},
		{[]error{busy, busy, denied}, []error{lock.ErrNotAcquired}},
		{[]error{nil, busy, unavailable}, []error{lock.ErrUnavailable}},
		{[]error{nil, busy, both}, []error{lock.ErrUnavailable}},
		{[]error{both, both, both}, []error{lock.ErrUnavailable}},
		{[]error{busy, unavailable, unavailable}, []error{lock.ErrUnavailable}},
		{[]error{nil, busy, recent}, []error{lock.ErrUnavailable}},
		{[]error{recent, recent, recent}, []error{lock.ErrUnavailable}},
		{[]error{nil, busy, lost}, []error{lock.ErrUnavailable}},
		{[]error{nil, busy, multilock.NoVote(time.Second, nil)}, []error{lock.ErrUnavailable}},
		{[]error{nil, busy, multilock.NoVote(time.Second, both)}, []error{lock.ErrUnavailable}},
		{[]error{nil, busy, multilock.NoVote(time.Second, busy)}, []error{lock.ErrNotAcquired}},
		{[]error{nil, busy, fmt.Errorf("%w: %w", lock.ErrNotAcquired, os.ErrDeadlineExceeded)}, []error{lock.ErrNotAcquired}},
		{[]error{denied, denied, denied}, []error{denied}},
		{[]error{wrong, wrong, wrong}, []error{lock.ErrWrongType}},
		{[]error{nil, denied, wrong}, []error{denied, lock.ErrWrongType}},
		{[]error{busy, unavailable, denied}, []error{denied}}, // without the fault, there could be a majority when the server responds
		{[]error{nil, busy, denied}, []error{denied}},
		{[]error{nil, unavailable, denied}, []error{lock.ErrUnavailable}},
		{[]error{unavailable, unavailable, denied}, []error{lock.ErrUnavailable}},
		{[]error{nil, nil, busy, busy, busy}, []error{lock.ErrNotAcquired}},
		{[]error{nil, nil, busy, busy, unavailable}, []error{lock.ErrUnavailable}},
		{[]error{nil, nil, busy, busy, denied}, []error{denied}},
		{[]error{nil, busy, denied, unavailable, unavailable}, []error{lock.ErrUnavailable}},
		{[]error{nil, busy, busy, denied, unavailable}, []error{denied}},
		{[]error{busy, busy, busy, denied, unavailable}, []error{lock.ErrNotAcquired}},
	} {
		err := multilock.Judged(test.reasons...)
		for _, target := range all {
			if got := errors.Is(err, target); got != slices.Contains(test.want, target) {
				t.Errorf("%v: it matches %q: %v", err, target, got)
			}
		}
		for i, reason := range test.reasons {
			if reason != nil && !strings.Contains(err.Error(), fmt.Sprintf("server %d: %v", i+1, reason)) {
				t.Errorf("%v: no reason for server %d", err, i+1)
			}
		}
	}
	want(t, multilock.Judged(nil, unavailable, unavailable), down)
	other := errors.New("another owner")
	loss := multilock.Loss(nil, fmt.Errorf("%w: %w", lock.ErrNotAcquired, other), multilock.NoVote(time.Second, nil), lost, denied)
	want(t, loss, lock.ErrLost, lock.ErrExpired, denied)
	wantNot(t, loss, other, lock.ErrNotAcquired, lock.ErrUnavailable, context.Canceled)
}

// A server did not vote in time. The error includes what its Locker returned when it was canceled.
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
			t.Errorf("%v: wrong match", err)
		}
		if err.Error() != test.text {
			t.Errorf("%q, want %q", err, test.text)
		}
	}
}

package multilock_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/kindtest"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
	"github.com/leasehold-go/leasehold/locktest"
	"github.com/leasehold-go/leasehold/multilock"
)

const lease = time.Second

// three returns locks called a, b and c on the same site.
func three(t *testing.T) (s *site, a, b, c *fake) {
	s = newSites(t, 1)[0]
	return s, s.lock("one", "a", lease), s.lock("one", "b", lease), s.lock("one", "c", lease)
}

func TestNew_sortsLocks(t *testing.T) {
	for _, names := range []string{"abc", "acb", "bac", "bca", "cab", "cba"} {
		bubble(t, func(t *testing.T) {
			s := newSites(t, 1)[0]
			var locks []lock.Locker
			for _, name := range names {
				locks = append(locks, s.lock("one", string(name), lease))
			}
			var commands []string
			for i, l := range locks {
				locks[i] = hookedLock{Locker: l, before: func(_ context.Context, op string) error {
					commands = append(commands, op+" "+l.Name())
					return nil
				}}
			}
			// Multi-locks inside do not change the order.
			m := multilock.New(multilock.New(locks[:2]...), locks[2])
			if got, want := m.Name(), strings.Join(strings.Split(names, ""), "+"); got != want {
				t.Errorf("the name is %q, want %q", got, want)
			}
			for _, op := range []string{"lock", "trylock"} {
				commands = nil
				f := m.Lock
				if op == "trylock" {
					f = m.TryLock
				}
				h := must(t)(f(t.Context()))
				if want := []string{op + " a", op + " b", op + " c"}; !slices.Equal(commands, want) {
					t.Errorf("with %s: got commands %q, want %q", names, commands, want)
				}
				for i, one := range multilock.Holds(h) {
					if owner := one.(*fakeHold).t.f.name; owner != names[i:i+1] {
						t.Errorf("hold %d has the lock %q, want %q", i, owner, names[i:i+1])
					}
				}
				if err := h.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
				free(t, []*site{s}, "a", "b", "c")
			}
		})
	}
}

func TestNew_badLocks(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, a, _, _ := three(t)
		var none *multilock.Lock
		for name, m := range map[string]*multilock.Lock{
			"no locks":         multilock.New(),
			"a nil":            multilock.New(a, nil),
			"a nil multi-lock": multilock.New(none, a),
			"a bad one inside": multilock.New(a, multilock.New()),
		} {
			for _, f := range []func(context.Context) (lock.Hold, error){m.Lock, m.TryLock} {
				_, err := f(t.Context())
				if !errors.As(err, new(*lock.Error)) || errors.Is(err, lock.ErrNotAcquired) {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
		free(t, []*site{s}, "a")
	})
}

// A nil context is a bug of the caller. Unlock and Extend panic in the caller's goroutine before they change anything, so the hold
// can still be unlocked.
func TestMultiLock_nilContext(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, a, b, _ := three(t)
		h := must(t)(multilock.New(a, b).Lock(t.Context()))
		for name, f := range map[string]func(context.Context) error{
			"Unlock": h.Unlock,
			"Extend": func(ctx context.Context) error { return h.Extend(ctx, lease) },
		} {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("%s did not panic", name)
					}
				}()
				var none context.Context
				_ = f(none)
			}()
		}
		if err := h.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		free(t, []*site{s}, "a", "b")
	})
}

func TestMultiLock_hold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, a, b, c := three(t)
		m := multilock.New(c, a, b)
		ctx, cancel := context.WithCancelCause(t.Context())
		h := must(t)(m.Lock(ctx))
		// The first lock was acquired first, so its lease ends first.
		if want := multilock.Holds(h)[1].Until(); h.Until() != want {
			t.Errorf("Until is %v after the start, want the earliest, %v", time.Until(h.Until()), time.Until(want))
		}
		if h.Token() != 0 || h.Owner() != "" {
			t.Errorf("token %d and owner %q of several locks", h.Token(), h.Owner())
		}
		owner, ok := lockimpl.OwnerFrom(h.Context())
		for _, one := range multilock.Holds(h) {
			if its, _ := lockimpl.OwnerFrom(one.Context()); !ok || its != owner {
				t.Errorf("got owner %d of a member, and %d of the multi-lock", its, owner)
			}
		}
		again := must(t)(m.Lock(h.Context()))     // re-enters
		single := must(t)(b.TryLock(h.Context())) // one of the locks re-enters, too
		if _, err := m.TryLock(ctx); err == nil { // another owner does not
			t.Error("a second owner acquired it")
		}
		time.Sleep(3 * lease) // it is renewed
		for _, one := range []lock.Hold{single, again} {
			if err := one.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if err := h.Err(); err != nil || !s.has("a") || !s.has("b") || !s.has("c") {
			t.Errorf("the inner holds ended the outer one: %v", err)
		}
		why := errors.New("the request went away")
		cancel(why)
		want(t, h.Err(), why)
		if !s.has("a") || !s.has("b") || !s.has("c") {
			t.Error("the lock was released with its context")
		}
		if err := h.Unlock(ctx); err != nil {
			t.Errorf("Unlock with a canceled context: %v", err)
		}
		free(t, []*site{s}, "a", "b", "c")
		want(t, h.Err(), why)
		err := h.Unlock(t.Context())
		want(t, err, lock.ErrNotHeld)
		wantNot(t, err, lock.ErrLost, lock.ErrUnlocked)
		if text := err.Error(); !strings.HasSuffix(text, ": not held: already unlocked") {
			t.Error(text)
		}
	})
}

func TestMultiLock_unlocked(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, a, b, _ := three(t)
		h := must(t)(multilock.New(a, b).Lock(t.Context()))
		if err := h.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		want(t, h.Err(), lock.ErrUnlocked)
		want(t, context.Cause(h.Context()), lock.ErrUnlocked)
		if h.Context().Err() != context.Canceled || h.Until().After(time.Now()) {
			t.Errorf("after Unlock: %v, until %v from now", h.Context().Err(), time.Until(h.Until()))
		}
	})
}

// The hold ends with the first loss, at the first check, and the error names the lock.
func TestMultiLock_loss(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, a, b, c := three(t)
		var acquired *controlledHold // the hold of b
		m := multilock.New(a, hookedLock{Locker: b, after: func(h lock.Hold) lock.Hold {
			acquired = &controlledHold{Hold: h}
			return acquired
		}}, c)
		for name, check := range map[string]func(h lock.Hold) error{
			"Err":           lock.Hold.Err,
			"Context().Err": func(h lock.Hold) error { return errors.Join(h.Context().Err(), h.Err()) },
			"Cause":         func(h lock.Hold) error { return context.Cause(h.Context()) },
			"Cause below":   func(h lock.Hold) error { return context.Cause(context.WithValue(h.Context(), check{}, 1)) },
		} {
			h := must(t)(m.Lock(t.Context()))
			if err := check(h); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			acquired.endWith(&lock.Error{Op: "hold", Name: "b", Err: lock.ErrLost})
			err := check(h)
			want(t, err, lock.ErrLost)
			if e := new(lock.Error); !errors.As(err, &e) || e.Name != "b" {
				t.Errorf("%s: %v does not name the lock", name, err)
			}
			select {
			case <-h.Context().Done():
			default:
				t.Errorf("%s: the hold does not stay lost", name)
			}
			if h.Until().After(time.Now()) {
				t.Errorf("%s: lost, but Until is %v ahead", name, time.Until(h.Until()))
			}
			if !s.has("a") || !s.has("c") {
				t.Errorf("%s: the others were released before Unlock", name)
			}
			if err := h.Unlock(t.Context()); err != nil { // only the test ended b, so Redis still has all three
				t.Error(err)
			}
			free(t, []*site{s}, "a", "b", "c")
			want(t, h.Unlock(t.Context()), lock.ErrNotHeld, lock.ErrLost)
		}
	})
}

type check struct{}

// A loss that no call detects cancels the context. Unlock reports it, too, and releases the others.
func TestMultiLock_lossClosesDone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, a, b, c := three(t)
		h := must(t)(multilock.New(a, b, c).Lock(t.Context()))
		s.set(func() { delete(s.keys, "b") })
		<-h.Context().Done()
		want(t, h.Err(), lock.ErrLost)
		err := h.Unlock(t.Context())
		want(t, err, lock.ErrNotHeld, lock.ErrLost)
		if e := new(lock.Error); !errors.As(err, &e) || e.Name != "b" {
			t.Errorf("%v does not name the lock", err)
		}
		free(t, []*site{s}, "a", "b", "c")
	})
}

// Whatever fails, Unlock releases all locks, and the error names each lock that failed.
func TestMultiLock_unlockFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, a, b, c := three(t)
		failed := errors.New("the wire is broken")
		fails := func(l lock.Locker) lock.Locker {
			return hookedLock{Locker: l, after: func(h lock.Hold) lock.Hold {
				return &controlledHold{Hold: h, unlock: func(context.Context) error { return failed }}
			}}
		}
		h := must(t)(multilock.New(fails(a), b, fails(c)).Lock(t.Context()))
		err := h.Unlock(t.Context())
		want(t, err, failed)
		if text := err.Error(); !strings.Contains(text, `unlock "a"`) || !strings.Contains(text, `unlock "c"`) || strings.Contains(text, `"b"`) {
			t.Errorf("the error names the wrong locks: %v", err)
		}
		if s.has("b") {
			t.Error("the lock between them was not released")
		}
	})
}

// However the second of three locks fails, nothing is left.
func TestMultiLock_secondFails(t *testing.T) {
	failed := errors.New("broken")
	for name, test := range map[string]struct {
		b    func(cancel func()) func(ctx context.Context, op string) error
		want []error
	}{
		"an error": {func(func()) func(context.Context, string) error {
			return func(context.Context, string) error { return failed }
		}, []error{failed}},
		"a name": {func(func()) func(context.Context, string) error {
			return func(context.Context, string) error { return &lock.Error{Op: "lock", Name: "b", Err: lock.ErrBadName} }
		}, []error{lock.ErrBadName}},
		"ctx canceled while it waits": {func(cancel func()) func(context.Context, string) error {
			return func(ctx context.Context, _ string) error {
				time.AfterFunc(time.Minute, cancel)
				<-ctx.Done()
				return fmt.Errorf("%w: %w", lock.ErrNotAcquired, ctx.Err())
			}
		}, []error{lock.ErrNotAcquired, context.Canceled}},
		"ctx canceled when it is granted": {func(cancel func()) func(context.Context, string) error {
			return func(context.Context, string) error { cancel(); return nil }
		}, []error{context.Canceled}},
	} {
		for _, op := range []string{"lock", "trylock"} {
			t.Run(name+" "+op, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					s, a, b, c := three(t)
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					m := multilock.New(c, hookedLock{Locker: b, before: test.b(cancel)}, a)
					f := m.Lock
					if op == "trylock" {
						f = m.TryLock
					}
					_, err := f(ctx)
					want(t, err, test.want...)
					if e := new(lock.Error); !errors.As(err, &e) || e.Name != "b" {
						t.Errorf("%v does not name the lock", err)
					}
					if ctx.Err() != nil {
						time.Sleep(rtt) // it is released in the background
					}
					free(t, []*site{s}, "a", "b", "c")
				})
			})
		}
	}
}

func TestMultiLock_tryLockRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, a, b, c := three(t)
		other := must(t)(s.lock("two", "b", lease).Lock(t.Context()))
		start := time.Now()
		_, err := multilock.New(a, b, c).TryLock(t.Context())
		want(t, err, lock.ErrNotAcquired)
		if e := new(lock.Error); !errors.As(err, &e) || e.Op != "trylock" || e.Name != "b" {
			t.Errorf("%v does not name the operation and the lock", err)
		}
		if took := time.Since(start); took != 3*rtt { // acquire a, fail at b, release a
			t.Errorf("it took %v", took)
		}
		free(t, []*site{s}, "a", "c")
		if err := other.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Acquired locks are released even if the server no longer responds. The call does not wait long for that, and its error
// is not the caller's deadline.
func TestMultiLock_releasesInTheBackground(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, a, b, _ := three(t)
		failed := errors.New("broken")
		m := multilock.New(a, hookedLock{Locker: b, before: func(context.Context, string) error { s.pause(); return failed }})
		start := time.Now()
		_, err := m.Lock(t.Context())
		want(t, err, failed)
		wantNot(t, err, context.DeadlineExceeded)
		if !strings.Contains(err.Error(), `unlock "a": not confirmed`) {
			t.Errorf("%v does not name the failed release", err)
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("it took %v", took)
		}
		s.resume()
		time.Sleep(rtt)
		free(t, []*site{s}, "a")
	})
}

// If a lease expires while the call waits for other locks, the call acquires that lock again.
func TestMultiLock_leaseExpiresInBetween(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, _, b, c := three(t)
		a := s.lock("one", "a", 100*time.Millisecond).forFixed()
		other := must(t)(s.lock("two", "b", lease).Lock(t.Context()))
		time.AfterFunc(lease, func() {
			if err := other.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		})
		h := must(t)(multilock.New(a, b, c).Lock(t.Context()))
		for i, one := range multilock.Holds(h) {
			if err := one.Err(); err != nil {
				t.Errorf("member %d: %v", i, err)
			}
		}
		if left := time.Until(h.Until()); left < 80*time.Millisecond {
			t.Errorf("%v remain of a lease of 100 ms", left)
		}
		if err := h.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// The same for locks of one batch: the lease of one expires while the attempt at another takes long.
func TestMultiLock_togetherLeaseExpires(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, _, b, c := three(t)
		a := s.lock("one", "a", 100*time.Millisecond).forFixed()
		slow := true
		m := oneBatch(a, hookedLock{Locker: b, before: func(context.Context, string) error {
			if slow {
				slow = false
				time.Sleep(time.Second)
			}
			return nil
		}}, c)
		for _, f := range []func(context.Context) (lock.Hold, error){m.Lock, m.TryLock} {
			slow = true
			h := must(t)(f(t.Context()))
			if err := h.Err(); err != nil {
				t.Error(err)
			}
			if err := h.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
			free(t, []*site{s}, "a", "b", "c")
		}
	})
}

// If another owner has acquired that lock in the meantime, the later ones are released while the call waits for it.
func TestMultiLock_leaseExpiresAndIsLost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, _, b, c := three(t)
		a := s.lock("one", "a", 100*time.Millisecond).forFixed()
		other := s.lock("two", "a", lease)
		holdB := must(t)(s.lock("two", "b", lease).Lock(t.Context()))
		got := make(chan lock.Hold)
		go func() { got <- must(t)(multilock.New(a, b, c).Lock(t.Context())) }()
		time.Sleep(lease) // the lease of a has expired
		holdA := must(t)(other.Lock(t.Context()))
		if err := holdB.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(lease) // b is granted, and a refused
		free(t, []*site{s}, "b", "c")
		if err := holdA.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if err := (<-got).Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		free(t, []*site{s}, "a", "b", "c")
	})
}

// Leases that are too short to hold all locks at once are an error, not an endless wait.
func TestMultiLock_leaseTooShort(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newSites(t, 1)[0]
		var locks []lock.Locker
		for _, name := range []string{"a", "b"} {
			locks = append(locks, hookedLock{Locker: s.lock("one", name, 100*time.Millisecond).forFixed(), before: func(context.Context, string) error {
				time.Sleep(time.Second)
				return nil
			}})
		}
		_, err := multilock.New(locks...).Lock(t.Context())
		want(t, err, lock.ErrLost)
		wantNot(t, err, lock.ErrNotAcquired, lock.ErrUnavailable)
		if e := new(lock.Error); !errors.As(err, &e) || e.Name != "a" {
			t.Errorf("%v does not name the lock", err)
		}
		free(t, []*site{s}, "a", "b")
	})
}

// The order of locks with one name, on different servers or of different clients, is unknown. A call therefore never waits
// for one of them while it holds another.
func TestMultiLock_sameNameOnSeveralServers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		all := newSites(t, 3)
		var wg sync.WaitGroup
		inside := 0
		for i := range 6 {
			client := fmt.Sprint("client", i)
			locks := []lock.Locker{all[0].lock(client, "x", lease), all[1].lock(client, "x", lease), all[2].lock(client, "x", lease)}
			locks[0], locks[i%3] = locks[i%3], locks[0]
			wg.Go(func() {
				m := multilock.New(locks...)
				for range 20 {
					h := must(t)(m.Lock(t.Context()))
					if inside++; inside != 1 {
						t.Errorf("%d inside", inside)
					}
					time.Sleep(time.Millisecond)
					inside--
					if err := h.Unlock(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait() // the bubble reports a deadlock
		free(t, all, "x")
	})
}

// The same lock through two clients can never be held, and the error reports it. Locks with the same name on two servers are two
// locks, even while another owner has one of them.
func TestMultiLock_sameLockOfTwoClients(t *testing.T) {
	bubble(t, func(t *testing.T) {
		server := locktest.NewServer(t)
		c1, c2 := server.Client(t), server.Client(t)
		for kind, locks := range map[string][]lock.Locker{
			"plain":          {c1.NewLock("x"), c2.NewLock("x")},
			"fair":           {c1.NewFairLock("x"), c2.NewFairLock("x", lock.WithWait(time.Second))},
			"write":          {c1.NewRWLock("x").Write(), c2.NewRWLock("x").Write()},
			"read and write": {c1.NewRWLock("x").Read(), c2.NewRWLock("x").Write()},
			"write and read": {c1.NewRWLock("x").Write(), c2.NewRWLock("x").Read()},
		} {
			m := multilock.New(c1.NewLock("a"), locks[0], c2.NewLock("z"), locks[1])
			for op, f := range map[string]func(context.Context) (lock.Hold, error){"lock": m.Lock, "trylock": m.TryLock} {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				began := time.Now()
				_, err := f(ctx)
				cancel()
				const text = ` "x": locks 2 and 4 of 4 are the same lock through two clients, which exclude each other: use one client`
				if err == nil || err.Error() != "leasehold: "+op+text || time.Since(began) > time.Second {
					t.Errorf("%s, %s: after %v: %v", kind, op, time.Since(began), err)
				}
				for _, sentinel := range []error{lock.ErrNotAcquired, lock.ErrUnavailable, context.DeadlineExceeded} {
					if errors.Is(err, sentinel) {
						t.Errorf("%s, %s: it matches %v", kind, op, sentinel)
					}
				}
			}
		}

		second := locktest.NewServer(t)
		other := must(t)(second.Client(t).NewLock("x").Lock(t.Context()))
		m := multilock.New(c1.NewLock("x"), second.Client(t).NewLock("x"))
		_, err := m.TryLock(t.Context())
		want(t, err, lock.ErrNotAcquired)
		time.AfterFunc(time.Minute, func() { _ = other.Unlock(t.Context()) })
		h := must(t)(m.Lock(t.Context()))
		if err := h.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// beforeTry is a lock that calls before in front of its first TryLock.
type beforeTry struct {
	lock.Locker
	once   *sync.Once
	before func()
}

func (l beforeTry) TryLock(ctx context.Context) (lock.Hold, error) {
	l.once.Do(l.before)
	return l.Locker.TryLock(ctx)
}

func (l beforeTry) Inspect(ctx context.Context) (lock.State, error) {
	return l.Locker.(interface {
		Inspect(ctx context.Context) (lock.State, error)
	}).Inspect(ctx)
}

// A lock is given twice through one client, and the process pauses between the two acquisitions. The first hold has ended then, but
// Redis still has it. Lock releases it and tries again.
func TestMultiLock_endsBeforeTheSecondAcquisition(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := locktest.NewServer(t).Client(t)
		again := beforeTry{c.NewLock("x"), new(sync.Once), func() { time.Sleep(9950 * time.Millisecond) }}
		h := must(t)(multilock.New(c.NewLock("x", lock.WithFixedLease(10*time.Second)), again).Lock(t.Context()))
		if err := h.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Read sides of one lock through two clients do not exclude each other. A writer that begins to wait in between is served first.
func TestMultiLock_readersOfTwoClients(t *testing.T) {
	bubble(t, func(t *testing.T) {
		server := locktest.NewServer(t)
		writer, wrote := server.Client(t).NewRWLock("x").Write(), make(chan error, 1)
		second := beforeTry{server.Client(t).NewRWLock("x").Read(), new(sync.Once), func() {
			go func() {
				wrote <- lock.Do(t.Context(), writer, func(context.Context) error { return nil })
			}()
			time.Sleep(200 * time.Millisecond)
		}}
		h := must(t)(multilock.New(server.Client(t).NewRWLock("x").Read(), second).Lock(t.Context()))
		if err := cmp.Or(h.Unlock(t.Context()), <-wrote); err != nil {
			t.Error(err)
		}
	})
}

// rw is a read/write lock of one owner, which must not write once it reads.
type rw struct {
	mu      sync.Mutex
	reading int
}

func (r *rw) sides(s *site, name string) (read, write lock.Locker) {
	read = hookedLock{Locker: s.lock("reader", name, lease), after: func(h lock.Hold) lock.Hold {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.reading++
		return &controlledHold{Hold: h, unlock: func(context.Context) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.reading--
			return nil
		}}
	}}
	write = hookedLock{Locker: s.lock("writer", name+"\x00", lease), before: func(context.Context, string) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.reading > 0 {
			return lock.ErrUpgrade
		}
		return nil
	}}
	return read, renamed{write, name}
}

type renamed struct {
	lock.Locker
	name string
}

func (r renamed) Name() string { return r.name }

// Both sides of a read/write lock are acquired in the only order that works.
func TestMultiLock_bothSides(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, a, _, c := three(t)
		read, write := new(rw).sides(s, "b")
		for _, m := range []*multilock.Lock{multilock.New(read, write), multilock.New(write, read), multilock.New(c, read, a, write)} {
			for _, f := range []func(context.Context) (lock.Hold, error){m.Lock, m.TryLock} {
				h := must(t)(f(t.Context()))
				if err := h.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
				free(t, []*site{s}, "a", "b", "b\x00", "c")
			}
		}
		// An owner that already reads can never have both.
		outer := must(t)(read.Lock(t.Context()))
		m := multilock.New(read, write)
		for _, f := range []func(context.Context) (lock.Hold, error){m.Lock, m.TryLock} {
			_, err := f(outer.Context())
			want(t, err, lock.ErrUpgrade)
		}
		if err := outer.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A lock that is listed twice is entered twice.
func TestMultiLock_twice(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, a, b, _ := three(t)
		for _, m := range []*multilock.Lock{multilock.New(a, b, a), multilock.New(a, multilock.New(b, a))} {
			h := must(t)(m.Lock(t.Context()))
			if err := h.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
			free(t, []*site{s}, "a", "b")
		}
	})
}

// batched is a lock whose attempts can be sent together with those of other locks of the batch.
type batched struct {
	lock.Locker
	of any
}

func (b batched) Batch() any { return b.of }

// Ahead uses the lock's wrapper, if the wrapper implements it.
func (b batched) Ahead() error {
	if o, ok := b.Locker.(hookedLock); ok && o.ahead {
		return lock.ErrNotAcquired
	}
	return nil
}

// oneBatch returns a multi-lock of locks in one batch.
func oneBatch(locks ...lock.Locker) *multilock.Lock {
	for i, l := range locks {
		locks[i] = batched{l, "client"}
	}
	return multilock.New(locks...)
}

// Locks of one batch are acquired in one round trip, and others one after another. So is a lock that is listed twice.
func TestMultiLock_together(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, a, b, c := three(t)
		for name, test := range map[string]struct {
			m     *multilock.Lock
			trips time.Duration
		}{
			"one batch":       {oneBatch(c, a, b), 1},
			"no batch":        {multilock.New(c, a, b), 3},
			"two batches":     {multilock.New(batched{c, 1}, batched{a, 2}, batched{b, 1}), 3},
			"some of a batch": {multilock.New(batched{c, 1}, a, batched{b, 1}), 3},
			"one twice":       {oneBatch(c, a, c), 3},
		} {
			for op, f := range map[string]func(context.Context) (lock.Hold, error){"lock": test.m.Lock, "trylock": test.m.TryLock} {
				start := time.Now()
				h := must(t)(f(t.Context()))
				if took := time.Since(start); took != test.trips*rtt {
					t.Errorf("%s: %s takes %v, a round trip takes %v", name, op, took, rtt)
				}
				if err := h.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
				free(t, []*site{s}, "a", "b", "c")
			}
		}
	})
}

// While another owner has one of the locks, the call holds none of the others. TryLock keeps none.
func TestMultiLock_togetherHoldsNothingWhileItWaits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, a, b, c := three(t)
		m := oneBatch(a, b, c)
		other := must(t)(s.lock("another", "b", lease).Lock(t.Context()))
		_, err := m.TryLock(t.Context())
		if e := new(lock.Error); !errors.As(err, &e) || e.Name != "b" || !errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("TryLock: %v", err)
		}
		free(t, []*site{s}, "a", "c")
		held := make(chan lock.Hold)
		go func() { held <- must(t)(m.Lock(t.Context())) }()
		time.Sleep(10 * rtt)
		free(t, []*site{s}, "a", "c")
		if err := other.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if err := (<-held).Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		free(t, []*site{s}, "a", "b", "c")
	})
}

// Other callers of the process wait for a lock. The call waits behind them, without a command for the other locks.
func TestMultiLock_togetherBehindLocalWaiters(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, a, b, c := three(t)
		behind := hookedLock{Locker: b, ahead: true, before: func(_ context.Context, op string) error {
			if op == "trylock" {
				return &lock.Error{Op: op, Name: "b", Err: lock.ErrNotAcquired}
			}
			return nil
		}}
		m := oneBatch(a, behind, c)
		s.set(func() { s.commands = nil })
		_, err := m.TryLock(t.Context())
		if e := new(lock.Error); !errors.As(err, &e) || e.Name != "b" || !errors.Is(err, lock.ErrNotAcquired) || len(s.received()) != 0 {
			t.Errorf("TryLock: %v after %q", err, s.received())
		}
		h := must(t)(m.Lock(t.Context()))
		if commands := s.received(); len(commands) != 3 {
			t.Errorf("got commands %q, want one for each lock", commands)
		}
		if err := h.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		free(t, []*site{s}, "a", "b", "c")
	})
}

// Locks that are never free together are acquired one by one, after the call has waited for some of them.
func TestMultiLock_togetherFallsBackToOneByOne(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, a, b, _ := three(t)
		var commands []string
		busy := func(l lock.Locker) lock.Locker { // always free for a waiting caller, and never for any other
			return hookedLock{Locker: l, before: func(_ context.Context, op string) error {
				s.set(func() { commands = append(commands, op+" "+l.Name()) })
				if op == "trylock" {
					return lock.ErrNotAcquired
				}
				return nil
			}}
		}
		h := must(t)(oneBatch(busy(a), busy(b)).Lock(t.Context()))
		if err := h.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		free(t, []*site{s}, "a", "b")
		waits := slices.DeleteFunc(slices.Clone(commands), func(s string) bool { return strings.HasPrefix(s, "try") })
		if got := strings.Join(waits, ", "); got != "lock a, lock b, lock a, lock b, lock a, lock b" {
			t.Errorf("the call waits for: %s", got)
		}
	})
}

// A fault of one lock is the error of a TryLock, even if another owner has a second lock. For a Lock, the lock with the
// fault decides whether to wait.
func TestMultiLock_togetherFault(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, a, b, c := three(t)
		fault := errors.New("a fault")
		locks := 0
		m := oneBatch(hookedLock{Locker: a, before: func(_ context.Context, op string) error {
			if op == "trylock" {
				return lock.ErrNotAcquired
			}
			return nil
		}}, hookedLock{Locker: b, before: func(_ context.Context, op string) error {
			if op == "trylock" && locks == 0 {
				return fault
			}
			locks++
			return nil
		}}, c)
		_, err := m.TryLock(t.Context())
		want(t, err, fault)
		if errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("%v matches ErrNotAcquired", err)
		}
		free(t, []*site{s}, "a", "b", "c")
		h := must(t)(m.Lock(t.Context()))
		if locks == 0 {
			t.Error("the call did not wait for the lock with the fault")
		}
		if err := h.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		free(t, []*site{s}, "a", "b", "c")
	})
}

// The wait of a Lock ends with its context, or with an error of the lock that it waits for. It then holds nothing.
func TestMultiLock_togetherWaitEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, a, b, c := three(t)
		other := must(t)(s.lock("another", "b", lease).Lock(t.Context()))
		ctx, cancel := context.WithTimeout(t.Context(), 10*rtt)
		defer cancel()
		_, err := oneBatch(a, b, c).Lock(ctx)
		want(t, err, context.DeadlineExceeded)
		free(t, []*site{s}, "a", "c")
		closed := hookedLock{Locker: b, before: func(_ context.Context, op string) error {
			if op == "lock" {
				return lock.ErrClosed
			}
			return nil
		}}
		_, err = oneBatch(a, closed, c).Lock(t.Context())
		want(t, err, lock.ErrClosed)
		if e := new(lock.Error); !errors.As(err, &e) || e.Op != "lock" || e.Name != "b" {
			t.Errorf("%v names another lock or operation", err)
		}
		free(t, []*site{s}, "a", "c")
		if err := other.Unlock(t.Context()); err != nil {
			t.Error(err)
		}

		for name, refusal := range map[string]error{"refused": lock.ErrNotAcquired, "interrupted": context.Canceled} {
			ctx, cancel := context.WithCancel(t.Context())
			leaves := hookedLock{Locker: b, before: func(context.Context, string) error {
				time.Sleep(2 * rtt) // the others are granted
				cancel()
				return &lock.Error{Op: "trylock", Name: "b", Err: refusal}
			}}
			_, err := oneBatch(a, leaves, c).Lock(ctx)
			want(t, err, context.Canceled)
			if e := new(lock.Error); !errors.As(err, &e) || e.Op != "lock" || errors.Is(err, lock.ErrNotAcquired) != (refusal == lock.ErrNotAcquired) {
				t.Errorf("%s: %v", name, err)
			}
			time.Sleep(10 * rtt)
			free(t, []*site{s}, "a", "b", "c")
		}
	})
}

// The context is canceled while attempts of a batch are in flight. The error reports what the others returned: a fault rather
// than a rejection, and a rejection rather than the cancellation.
func TestMultiLock_togetherCanceled(t *testing.T) {
	fault := errors.New("a fault")
	for name, test := range map[string]struct{ a, b, want, not error }{
		"rejected":           {lock.ErrNotAcquired, lock.ErrNotAcquired, lock.ErrNotAcquired, fault},
		"rejected and fault": {lock.ErrNotAcquired, fault, fault, lock.ErrNotAcquired},
	} {
		bubble(t, func(t *testing.T) {
			_, a, b, c := three(t)
			ctx, cancel := context.WithTimeout(t.Context(), rtt)
			defer cancel()
			returns := func(l lock.Locker, err error) lock.Locker {
				return hookedLock{Locker: l, before: func(context.Context, string) error { return err }}
			}
			late := hookedLock{Locker: c, before: func(ctx context.Context, _ string) error {
				<-ctx.Done()
				return ctx.Err()
			}}
			_, err := oneBatch(returns(a, test.a), returns(b, test.b), late).Lock(ctx)
			want(t, err, context.DeadlineExceeded, test.want)
			if errors.Is(err, test.not) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}

// A caller of a batch waits for the first lock that another owner has. The first lock is therefore released last, and a
// caller that is woken finds the others free. A context that is canceled in the meantime still ends the call.
func TestMultiLock_togetherReleasesTheFirstLast(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, a, b, c := three(t)
		m := oneBatch(c, a, b)
		h := must(t)(m.Lock(t.Context()))
		done := make(chan error)
		go func() { done <- h.Unlock(t.Context()) }()
		time.Sleep(rtt)
		if !s.has("a") || s.has("b") || s.has("c") {
			t.Errorf("after a round trip: a %v, b %v, c %v", s.has("a"), s.has("b"), s.has("c"))
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		free(t, []*site{s}, "a", "b", "c")

		h = must(t)(m.Lock(t.Context()))
		s.pause()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		start := time.Now()
		err := h.Unlock(ctx)
		want(t, err, context.DeadlineExceeded)
		if took := time.Since(start); took > 500*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		for _, name := range []string{"a", "b", "c"} {
			if !strings.Contains(err.Error(), fmt.Sprintf("unlock %q", name)) {
				t.Errorf("%v does not name %q", err, name)
			}
		}
		s.resume()
		time.Sleep(10 * rtt)
		free(t, []*site{s}, "a", "b", "c")
	})
}

// TryLock of a batch makes one attempt at each lock.
func TestMultiLock_togetherTriesOnce(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		s := w.sites[0]
		busy := must(w.T)(s.lock("two", "b", lease).Lock(w.Context()))
		attempts := 0
		b := hookedLock{Locker: s.lock("one", "b", lease), before: func(context.Context, string) error { attempts++; return nil }}
		_, err := oneBatch(s.lock("one", "a", lease), b).TryLock(w.Context())
		want(w.T, err, lock.ErrNotAcquired)
		if attempts != 1 {
			w.Errorf("%d attempts", attempts)
		}
		w.unlock(busy)
	})
}

// Unlock waits for the first lock of a batch, too, if the others were released in time.
func TestMultiLock_togetherUnlockWaitsForTheFirst(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		s := w.sites[0]
		a := hookedLock{Locker: s.lock("one", "a", lease), after: func(h lock.Hold) lock.Hold {
			return &controlledHold{Hold: h, unlock: func(ctx context.Context) error {
				select {
				case <-time.After(lease / 2):
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}}
		}}
		w.unlock(must(w.T)(oneBatch(a, s.lock("one", "b", lease)).Lock(w.Context())))
		free(w.T, w.sites, "a", "b")
	})
}

// A server that does not respond delays the release of the first lock of a batch only briefly, because the releases of the
// others have already waited for the operation timeout. The caller is still notified that the first one was lost.
func TestMultiLock_togetherUnlockWithoutReplies(t *testing.T) {
	const timeout = 3 * time.Second
	noReply := func(ctx context.Context) error {
		if ctx.Err() != nil {
			ctx = context.WithoutCancel(ctx)
		}
		select {
		case <-time.After(timeout):
			return lock.ErrUnavailable
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	lost := func(context.Context) error { return fmt.Errorf("%w: %w", lock.ErrNotHeld, lock.ErrLost) }
	why := fmt.Errorf("another lock: %w: %w", lock.ErrNotHeld, lock.ErrLost)
	failed := func(ctx context.Context) error {
		<-ctx.Done()
		return fmt.Errorf("%w: %w: EOF", ctx.Err(), lock.ErrUnavailable)
	}
	canceledAfter := func(d time.Duration) func() context.Context {
		return func() context.Context {
			ctx, cancel := context.WithCancelCause(context.Background())
			if d == 0 {
				cancel(why)
			} else {
				time.AfterFunc(d, func() { cancel(why) })
			}
			return ctx
		}
	}
	for name, test := range map[string]struct {
		ctx      func() context.Context
		first    func(context.Context) error
		took     time.Duration
		want     error
		text     string
		canceled bool
	}{
		"no reply":         {context.Background, noReply, timeout + 200*time.Millisecond, lock.ErrUnavailable, `unlock "a": not confirmed within 200ms`, false},
		"failed":           {context.Background, failed, timeout + 200*time.Millisecond, lock.ErrUnavailable, `unlock "a": not confirmed within 200ms`, false},
		"canceled before":  {canceledAfter(0), noReply, timeout + 200*time.Millisecond, lock.ErrUnavailable, `unlock "a": not confirmed within 200ms`, false},
		"canceled at last": {canceledAfter(timeout + 10*time.Millisecond), noReply, timeout + 10*time.Millisecond, lock.ErrUnavailable, `unlock "a": context canceled`, true},
		"canceled during":  {canceledAfter(time.Second), noReply, time.Second, why, `unlock "a": context canceled: another lock: not held`, true},
		"the first lost":   {context.Background, lost, timeout, lock.ErrUnavailable, `unlock "a": not held`, false},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 1, func(w *world) {
				var locks []lock.Locker
				for lockName, unlock := range map[string]func(context.Context) error{"a": test.first, "b": noReply} {
					locks = append(locks, hookedLock{Locker: w.sites[0].lock("one", lockName, lease), after: func(h lock.Hold) lock.Hold {
						return &controlledHold{Hold: h, unlock: unlock}
					}})
				}
				h := must(w.T)(oneBatch(locks...).Lock(w.Context()))
				start := time.Now()
				err := h.Unlock(test.ctx())
				if took := time.Since(start); took != test.took {
					w.Errorf("it took %v, want %v", took, test.took)
				}
				want(w.T, err, test.want)
				wantNot(w.T, err, context.DeadlineExceeded)
				if test.want == why {
					wantNot(w.T, err, lock.ErrNotHeld, lock.ErrLost)
				}
				if errors.Is(err, context.Canceled) != test.canceled {
					w.Errorf("%v: it matches context.Canceled: %v", err, !test.canceled)
				}
				if err == nil || !strings.Contains(err.Error(), test.text) {
					w.Errorf("%v: no %q", err, test.text)
				}
				time.Sleep(timeout) // a release continues in the background
			})
		})
	}
}

func TestHolds_ofAnyHold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, a, _, _ := three(t)
		h := must(t)(a.Lock(t.Context()))
		if holds := multilock.Holds(h); len(holds) != 1 || holds[0] != h {
			t.Errorf("the holds of a plain hold are %v", holds)
		}
		if err := h.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// The context of a hold of several locks carries that hold, and not one of its members or of the work around it.
func TestHolds_context(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var members []lock.Locker
		for range 3 {
			members = append(members, locktest.NewServer(t).Client(t).NewLock("orders"))
		}
		for name, l := range map[string]lock.Locker{"multi-lock": multilock.New(members...), "quorum": multilock.NewQuorum(members, multilock.WithDurableServers())} {
			err := lock.Do(t.Context(), locktest.NewServer(t).Client(t).NewLock("outer"), func(ctx context.Context) error {
				h := must(t)(l.Lock(ctx))
				if got := lock.HoldFromContext(h.Context()); got != h {
					t.Errorf("%s: %v, want %v", name, got, h)
				}
				return h.Unlock(ctx)
			})
			if err != nil {
				t.Error(err)
			}
		}
	})
}

// While the call waits for one lock, it holds those before it and not those after it.
func TestMultiLock_holdsEarlierLocksWhileItWaits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, a, b, c := three(t)
		other := must(t)(s.lock("two", "b", lease).Lock(t.Context()))
		got := make(chan lock.Hold)
		go func() { got <- must(t)(multilock.New(c, b, a).Lock(t.Context())) }()
		time.Sleep(10 * lease)
		synctest.Wait()
		if !s.has("a") || s.has("c") {
			t.Errorf("a is held: %v, c is held: %v", s.has("a"), s.has("c"))
		}
		if err := other.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if err := (<-got).Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// With a server that no longer responds, calls end when their contexts are canceled. The locks that they acquired are
// released in the background.
func TestMultiLock_canceled(t *testing.T) {
	const wait = 50 * time.Millisecond
	for name, call := range map[string]func(t *testing.T, ctx context.Context, m *multilock.Lock) error{
		"lock": func(t *testing.T, ctx context.Context, m *multilock.Lock) error {
			_, err := m.Lock(ctx)
			return err
		},
		"trylock": func(t *testing.T, ctx context.Context, m *multilock.Lock) error {
			_, err := m.TryLock(ctx)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				all := newSites(t, 2)
				a := hookedLock{Locker: all[0].lock("one", "a", lease), after: func(h lock.Hold) lock.Hold {
					all[0].pause()
					all[1].pause()
					return h
				}}
				ctx, cancel := context.WithTimeout(t.Context(), wait)
				defer cancel()
				start := time.Now()
				err := call(t, ctx, multilock.New(a, all[1].lock("one", "b", lease)))
				if took := time.Since(start); took != wait {
					t.Errorf("it took %v, its context had %v", took, wait)
				}
				want(t, err, lock.ErrUnavailable, context.DeadlineExceeded)
				wantNot(t, err, lock.ErrNotAcquired)
				all[0].resume()
				all[1].resume()
				time.Sleep(lease / 2)
				free(t, all, "a", "b")
			})
		})
	}
}

// If the observer of a lock panics, or ends the goroutine, the locks acquired before it are released.
func TestMultiLock_observerPanics(t *testing.T) {
	for name, end := range map[string]func(){"panics": func() { panic("observer") }, "exits": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s, a, b, c := three(t)
				for _, of := range []func(...lock.Locker) *multilock.Lock{multilock.New, oneBatch} {
					var once sync.Once
					m := of(a, b, hookedLock{Locker: c, before: func(context.Context, string) error { once.Do(end); return nil }})
					done := make(chan any)
					go func() {
						defer func() { done <- recover() }()
						_, err := m.Lock(t.Context())
						t.Errorf("it returned: %v", err)
					}()
					if p := <-done; (p == "observer") != (name == "panics") {
						t.Errorf("the call panics: %v", p)
					}
					free(t, []*site{s}, "a", "b", "c")
				}
			})
		})
	}
}

// The function of Do drains for ten minutes. The multi-lock or the quorum is held until it returns, and the function
// detects a loss.
func TestDo(t *testing.T) {
	for _, lost := range []bool{false, true} {
		for name, of := range map[string]func(locks ...lock.Locker) lock.Locker{
			"multi-lock": func(locks ...lock.Locker) lock.Locker { return multilock.New(locks...) },
			"quorum": func(locks ...lock.Locker) lock.Locker {
				return multilock.NewQuorum(locks, multilock.WithDurableServers())
			},
		} {
			t.Run(fmt.Sprint(name, lost), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var servers []*locktest.Server
					var ours, others []lock.Locker
					for range 3 {
						s := locktest.NewServer(t)
						servers = append(servers, s)
						ours, others = append(ours, s.Client(t).NewLock("orders")), append(others, s.Client(t).NewLock("orders"))
					}
					ctx, cancel := context.WithCancel(t.Context())
					err := lock.Do(ctx, of(ours...), func(ctx context.Context) error {
						cancel()
						<-ctx.Done()
						time.Sleep(10*time.Minute + time.Second) // no renewal is in flight, so the next ones find both deleted
						h := lock.HoldFromContext(ctx)
						if err := h.Err(); err != nil {
							t.Error(err)
						}
						if _, err := of(others...).TryLock(t.Context()); !errors.Is(err, lock.ErrNotAcquired) {
							t.Errorf("another TryLock: %v", err)
						}
						if lost {
							for _, s := range servers[:2] {
								r := s.Redis()
								if err := r.Do(t.Context(), r.B().Del().Key("orders").Build()).Error(); err != nil {
									t.Error(err)
								}
							}
							time.Sleep(time.Minute)
							want(t, h.Err(), lock.ErrLost, lock.ErrGone)
						}
						return nil
					})
					if errors.Is(err, lock.ErrLost) != lost || (err != nil) != lost {
						t.Error(err)
					}
					h, err := of(others...).TryLock(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					if err := h.Unlock(t.Context()); err != nil {
						t.Error(err)
					}
				})
			})
		}
	}
}

// A multi-lock that the caller manages is abandoned one lease after its context is canceled, and reports that then, not
// before.
func TestMultiLock_abandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := locktest.NewServer(t).Client(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		h := must(t)(multilock.New(c.NewLock("a"), c.NewLock("b")).Lock(ctx))
		why := errors.New("shutting down")
		cancel(why)
		want(t, h.Err(), why)
		time.Sleep(20 * time.Second)
		want(t, h.Err(), why)
		wantNot(t, h.Err(), lock.ErrLost)
		time.Sleep(time.Minute)
		want(t, h.Err(), lock.ErrLost, lock.ErrAbandoned)
		want(t, context.Cause(h.Context()), why)
		want(t, h.Unlock(t.Context()), lock.ErrNotHeld, lock.ErrLost, lock.ErrAbandoned)
	})
}

// Two Lockers that acquire permits of one semaphore could wait for each other.
func TestNew_permitsOfOneSemaphore(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		one, two := w.locks("one")[0].(*fake), w.locks("two")[0].(*fake)
		_, err := multilock.New(permits{one, 1}, permits{two, 2}).TryLock(w.Context())
		if err == nil || !strings.Contains(err.Error(), "locks 1 and 2 of 2 are permits of one semaphore") {
			w.Errorf("twice: %v", err)
		}
		h, err := multilock.New(permits{one, 1}).TryLock(w.Context())
		if err != nil {
			w.Fatalf("once: %v", err)
		}
		w.unlock(h)
	})
}

// An attempt out of order that is rejected is not repeated in order: not by TryLock, which does not wait, and not after
// an error that would recur.
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
				locks, commands := w.locks("one"), 0 // all with the same name
				locks[1] = hookedLock{Locker: locks[1], before: func(context.Context, string) error {
					commands++
					return test.err
				}}
				_, err := test.take(multilock.New(locks...), w.Context())
				want(w.T, err, test.err)
				if commands != 1 {
					w.Errorf("the second lock got %d attempts", commands)
				}
				free(w.T, w.sites, "q")
			})
		})
	}
}

// The lease of a lock expires while the call waits for others. Its hold is still unlocked: Redis may have it.
func TestMultiLock_unlocksExpiredLocks(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		s, unlocked := w.sites[0], 0
		a := hookedLock{Locker: s.lock("one", "a", 100*time.Millisecond).forFixed(), after: func(h lock.Hold) lock.Hold {
			return &controlledHold{Hold: h, unlock: func(context.Context) error {
				unlocked++
				return nil
			}}
		}}
		busy := must(w.T)(s.lock("two", "b", lease).Lock(w.Context()))
		got := make(chan lock.Hold)
		go func() { got <- must(w.T)(multilock.New(a, s.lock("one", "b", lease)).Lock(w.Context())) }()
		time.Sleep(lease) // the lease of a has expired
		w.unlock(busy)
		h := <-got
		if unlocked != 1 {
			w.Errorf("a was unlocked %d times before it was acquired again", unlocked)
		}
		w.unlock(h)
		free(w.T, w.sites, "a", "b")
	})
}

// The context is canceled before the first lock is acquired. The error reports only that.
func TestMultiLock_canceledBefore(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		_, err := multilock.New(w.sites[0].lock("one", "a", lease)).Lock(ctx)
		if got, want := fmt.Sprint(err), `leasehold: lock "a": context canceled`; got != want {
			w.Errorf("%s\nwant\n%s", got, want)
		}
	})
}

// A member was lost before any check. The hold of all reports the loss, and its time rather than the time of the check.
func TestMultiLock_lostBeforeACheck(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		var p *controlledHold
		a := hookedLock{Locker: w.sites[0].lock("one", "a", lease), after: func(h lock.Hold) lock.Hold {
			p = &controlledHold{Hold: h}
			return p
		}}
		h := must(w.T)(multilock.New(a).Lock(w.Context()))
		p.endWith(lock.ErrLost) // its timers have not fired yet
		lost := time.Now()
		time.Sleep(time.Second)
		_ = h.Extend(w.Context(), lease) // Extend checks the hold
		select {
		case <-h.Context().Done():
		default:
			w.Error("the context is not canceled with the loss")
		}
		want(w.T, h.Err(), lock.ErrLost)
		if got := h.Until(); !got.Equal(lost) {
			w.Errorf("held until %v, want %v", got, lost)
		}
		_ = h.Unlock(w.Context())
	})
}

// The context of the caller is canceled while Err checks the holds. That does not end the hold: its loss is reported
// afterwards.
func TestMultiLock_canceledDuringACheck(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		ctx, cancel := context.WithCancel(w.Context())
		defer cancel()
		var one *controlledHold
		check := func() {}
		a := hookedLock{Locker: w.sites[0].lock("one", "a", lease), after: func(h lock.Hold) lock.Hold {
			one = &controlledHold{Hold: h}
			return checkedHold{one, &check}
		}}
		h := must(w.T)(multilock.New(a).Lock(ctx))
		check = cancel
		want(w.T, h.Err(), context.Canceled)
		one.endWith(lock.ErrLost)
		want(w.T, h.Err(), lock.ErrLost)
		_ = h.Unlock(w.Context())
	})
}

// checkedHold is a hold whose Err first calls check.
type checkedHold struct {
	*controlledHold
	check *func()
}

func (l checkedHold) Err() error {
	(*l.check)()
	return l.controlledHold.Err()
}

// checkFirst makes the holds of the first of locks call check. It returns that lock.
func checkFirst(locks []lock.Locker, check *func()) *fake {
	first := locks[0].(*fake)
	locks[0] = witness{hookedLock{Locker: first, after: func(h lock.Hold) lock.Hold {
		return checkedHold{&controlledHold{Hold: h}, check}
	}}, first}
	return first
}

// A call that does not get all locks names those it could not release, and why. If that failed, it is the failure, and the
// text includes the rejection. A lock that was lost by then needs no release.
func TestMultiLock_reportsFailedReleases(t *testing.T) {
	reset := errors.New("connection reset")
	broken := func(context.Context) error { return reset }
	silent := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	lost := func(context.Context) error { return fmt.Errorf("%w: %w", lock.ErrNotHeld, lock.ErrLost) }
	for name, test := range map[string]struct {
		a, b      func(context.Context) error // how the releases end
		text, not string
		is        error
	}{
		"an error":                 {lost, broken, `trylock "c": not acquired` + "\n" + `leasehold: unlock "b": connection reset`, "not confirmed", reset},
		"an error beside no reply": {broken, silent, `unlock "a": connection reset` + "\n" + `leasehold: unlock "b": not confirmed within 200ms`, "unlock \"a\": not confirmed", reset},
		"no reply":                 {lost, silent, `unlock "b": not confirmed within 200ms`, `unlock "a"`, lock.ErrNotAcquired},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 1, func(w *world) {
				s := w.sites[0]
				busy := must(w.T)(s.lock("two", "c", lease).Lock(w.Context()))
				a := hookedLock{Locker: s.lock("one", "a", lease), after: func(h lock.Hold) lock.Hold { return &controlledHold{Hold: h, unlock: test.a} }}
				b := hookedLock{Locker: s.lock("one", "b", lease), after: func(h lock.Hold) lock.Hold { return &controlledHold{Hold: h, unlock: test.b} }}
				_, err := multilock.New(a, b, s.lock("one", "c", lease)).TryLock(w.Context())
				want(w.T, err, test.is)
				wantNot(w.T, err, lock.ErrNotHeld, lock.ErrLost)
				if got := errors.Is(err, lock.ErrNotAcquired); got != (test.is == lock.ErrNotAcquired) {
					w.Errorf("%v: wrong match of ErrNotAcquired", err)
				}
				if err == nil || !strings.Contains(err.Error(), test.text) || strings.Contains(err.Error(), test.not) {
					w.Errorf("%v\nwant %q, and not %q", err, test.text, test.not)
				}
				w.unlock(busy)
			})
		})
	}
}

// A member was lost, and no call detected it before Unlock. The hold of all ends as lost, and not as unlocked.
func TestMultiLock_lostBeforeUnlock(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		var p *controlledHold
		a := hookedLock{Locker: w.sites[0].lock("one", "a", lease), after: func(h lock.Hold) lock.Hold {
			p = &controlledHold{Hold: h}
			return p
		}}
		h := must(w.T)(multilock.New(a).Lock(w.Context()))
		p.endWith(lock.ErrLost)
		_ = h.Unlock(w.Context())
		want(w.T, h.Err(), lock.ErrLost)
		wantNot(w.T, h.Err(), lock.ErrUnlocked)
	})
}

// Locks that one script cannot acquire together are unlocked concurrently.
func TestMultiLock_unlocksConcurrently(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		h := must(w.T)(multilock.New(w.sites[0].lock("one", "a", lease), w.sites[1].lock("one", "b", lease)).Lock(w.Context()))
		start := time.Now()
		w.unlock(h)
		if took := time.Since(start); took != rtt {
			w.Errorf("it took %v, want one round trip of %v", took, rtt)
		}
	})
}

// A lock that is tried out of order is unavailable. Lock then waits for it in order, as it does for another owner.
func TestMultiLock_unavailableOutOfOrder(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		locks := w.locks("one") // all with the same name
		locks[1] = hookedLock{Locker: locks[1], before: func(_ context.Context, op string) error {
			if op == "trylock" {
				return lock.ErrUnavailable
			}
			return nil
		}}
		m := multilock.New(locks...)
		_, err := m.TryLock(w.Context())
		want(t, err, lock.ErrUnavailable)
		h := must(w.T)(m.Lock(w.Context()))
		w.unlock(h)
		w.wantHeld("")
	})
}

// Other calls of the process wait for the locks of a multi-lock. Under its hold, TryLock re-enters anyway.
func TestMultiLock_reentryAheadOfLocalWaiters(t *testing.T) {
	t.Parallel()
	waiting := &waiters{n: make(map[string]int)}
	c := newUserWith(t, []*redistest.Server{redistest.Start(t)}, append([]client.Option{client.WithObserver(waiting.observer())}, kindtest.Fast...)...)[0]
	a, b := c.NewLock("a"), c.NewLock("a:b")
	m := multilock.New(a, b)
	h := kindtest.MustLock(t, m)
	first, second := kindtest.Go(t.Context(), a), kindtest.Go(t.Context(), b)
	kindtest.WaitFor(t, "both locks have waiters", func() bool {
		n, _ := waiting.count(t.Context(), "a")
		return n == 2
	})
	if _, err := m.TryLock(t.Context()); !errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("TryLock of another owner: %v", err)
	}
	again, err := m.TryLock(h.Context())
	if err != nil {
		t.Fatal(err)
	}
	kindtest.MustUnlock(t, again, h)
	kindtest.MustUnlock(t, first.Hold(t), second.Hold(t))
}

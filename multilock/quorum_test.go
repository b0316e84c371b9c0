package multilock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
	"github.com/leasehold-go/leasehold/multilock"
)

// serverTimeout is the timeout of one server in these tests.
const serverTimeout = 10 * time.Millisecond

// world has some servers and their users.
type world struct {
	*testing.T
	sites []*site
}

func inWorld(t *testing.T, n int, f func(w *world)) {
	t.Helper()
	bubble(t, func(t *testing.T) { f(&world{t, newSites(t, n)}) })
}

// locks returns a lock of one client on each server.
func (w *world) locks(client string) (locks []lock.Locker) {
	for _, s := range w.sites {
		locks = append(locks, s.lock(client, "q", lease))
	}
	return locks
}

// quorum returns the quorum of one client.
func (w *world) quorum(client string, opts ...multilock.Option) *multilock.Quorum {
	return multilock.NewQuorum(w.locks(client), with(opts)...)
}

// fenced returns the quorum of one client, with fencing tokens.
func (w *world) fenced(client string, opts ...multilock.Option) *multilock.Quorum {
	locks := w.locks(client)
	for _, l := range locks {
		l.(*fake).forFenced()
	}
	return multilock.NewQuorum(locks, with(opts)...)
}

func with(opts []multilock.Option) []multilock.Option {
	return append([]multilock.Option{multilock.WithMaxLease(lease), multilock.WithServerTimeout(serverTimeout)}, opts...)
}

func (w *world) lock(q *multilock.Quorum) lock.Hold {
	w.Helper()
	return w.lockUnder(w.Context(), q)
}

func (w *world) lockUnder(ctx context.Context, q *multilock.Quorum) lock.Hold {
	w.Helper()
	h, err := q.TryLock(ctx)
	if err != nil {
		w.Fatal(err)
	}
	return h
}

func (w *world) unlock(holds ...lock.Hold) {
	w.Helper()
	for _, h := range holds {
		if err := h.Unlock(w.Context()); err != nil {
			w.Error(err)
		}
	}
}

// held returns the numbers of the servers that have the lock, such as "1 2 5".
func (w *world) held() string {
	synctest.Wait()
	var all []string
	for i, s := range w.sites {
		if s.has("q") {
			all = append(all, fmt.Sprint(i+1))
		}
	}
	return strings.Join(all, " ")
}

func (w *world) wantHeld(servers string) {
	w.Helper()
	if got := w.held(); got != servers {
		w.Errorf("held on servers %q, want %q", got, servers)
	}
}

// forget makes a server lose the lock, like a DEL.
func (s *site) forget() { s.set(func() { clear(s.keys) }) }

func TestQuorum_contactsServersConcurrently(t *testing.T) {
	inWorld(t, 5, func(w *world) {
		q := w.quorum("one")
		if q.Name() != "q" {
			w.Errorf("got the name %q", q.Name())
		}
		start := time.Now()
		h := w.lock(q)
		if took := time.Since(start); took != 2*rtt { // one round trip for the votes, one for the identity of the servers
			w.Errorf("it took %v, a round trip takes %v", took, rtt)
		}
		w.wantHeld("1 2 3 4 5")
		if want := start.Add(lease - lease/100 - 2*time.Millisecond); h.Until() != want {
			w.Errorf("Until is %v after the start, want %v", h.Until().Sub(start), want.Sub(start))
		}
		if h.Token() != 0 || h.Owner() != "" || len(multilock.Holds(h)) != 5 {
			w.Errorf("token %d, owner %q, %d holds", h.Token(), h.Owner(), len(multilock.Holds(h)))
		}
		time.Sleep(5 * lease) // it is renewed
		if err := h.Err(); err != nil {
			w.Error(err)
		}
		start = time.Now()
		w.unlock(h)
		if took := time.Since(start); took != rtt {
			w.Errorf("the release took %v", took)
		}
		w.wantHeld("")
		want(t, h.Err(), lock.ErrUnlocked)
		err := h.Unlock(w.Context())
		want(t, err, lock.ErrNotHeld)
		wantNot(t, err, lock.ErrLost)
		if text := err.Error(); !strings.HasSuffix(text, ": not held: already unlocked") {
			w.Error(text)
		}
	})
}

// With a minority down, paused or slow, no call waits for it.
func TestQuorum_minorityFails(t *testing.T) {
	for name, fail := range map[string]func(s *site){
		"dead":             (*site).kill,
		"paused":           (*site).pause,
		"slow":             func(s *site) { s.wire = 10 * time.Second },
		"started recently": func(s *site) { s.restart() },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 5, func(w *world) {
				for _, s := range w.sites[:2] {
					fail(s)
				}
				start := time.Now()
				h := w.lock(w.quorum("one"))
				if took := time.Since(start); took != 2*rtt {
					w.Errorf("it took %v", took)
				}
				time.Sleep(10 * lease)
				if err := h.Err(); err != nil {
					w.Error(err)
				}
				start = time.Now()
				w.unlock(h)
				if took := time.Since(start); took > serverTimeout+rtt {
					w.Errorf("the release took %v", took)
				}
				if name == "paused" {
					w.sites[0].resume()
					w.sites[1].resume()
				}
				time.Sleep(3 * time.Minute) // for late grants to be released
				w.wantHeld("")
			})
		})
	}
}

// With a majority down, the call fails soon, and nothing is left.
func TestQuorum_majorityFails(t *testing.T) {
	for name, test := range map[string]struct {
		fail  func(s *site)
		votes string // the number of votes when a majority became impossible
		text  string
	}{
		"dead":             {(*site).kill, "no usable reply from Redis: 0 of 5 votes; server", "connection refused"},
		"paused":           {(*site).pause, "no usable reply from Redis: 2 of 5 votes; server", "no vote within 10ms"},
		"taken":            {func(s *site) { s.keys["q"] = entry{"other", 1, time.Now().Add(time.Hour)} }, "of 5 votes; server", "not acquired"},
		"started recently": {(*site).restart, "no usable reply from Redis: ", "the server started recently"},
		"replica":          {func(s *site) { s.replica = true }, "no usable reply from Redis: ", "server is a replica"},
		"unavailable":      {func(s *site) { s.denied = true }, "no majority: ", "NOPERM"},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 5, func(w *world) {
				for _, s := range w.sites[2:] {
					test.fail(s)
				}
				start := time.Now()
				_, err := w.quorum("one").TryLock(w.Context())
				wantNot(t, err, context.Canceled, context.DeadlineExceeded)
				if got := errors.Is(err, lock.ErrNotAcquired); got != (name == "taken") {
					w.Errorf("%v: wrong match of ErrNotAcquired", err)
				}
				if got := errors.Is(err, lock.ErrUnavailable); got != (name != "taken" && name != "unavailable") {
					w.Errorf("%v: wrong match of ErrUnavailable", err)
				}
				var e *lock.Error
				if !errors.As(err, &e) || e.Op != "trylock" || e.Name != "q" {
					w.Errorf("the error %v does not name the lock", err)
				}
				for _, part := range []string{test.votes, "server 3: ", "server 4: ", "server 5: ", test.text} {
					if !strings.Contains(err.Error(), part) {
						w.Errorf("%q does not contain %q", err, part)
					}
				}
				if took := time.Since(start); took > serverTimeout+2*rtt {
					w.Errorf("it took %v", took)
				}
				if name == "paused" {
					want(t, err, os.ErrDeadlineExceeded)
					for _, s := range w.sites[2:] {
						s.resume()
					}
				}
				time.Sleep(time.Second)
				if name == "taken" {
					w.wantHeld("3 4 5")
				} else {
					w.wantHeld("")
				}
			})
		})
	}
}

// An unavailable minority does not make the quorum unavailable: the other servers reply that another owner has the lock, so
// the error of a wait that ends does not match ErrUnavailable. Without replies from a majority, every wait and every
// attempt matches it, and not ErrNotAcquired, provided that there was time for one attempt.
func TestQuorum_unavailable(t *testing.T) {
	for name, fail := range map[string]func(*site){"dead": (*site).kill, "paused": (*site).pause} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 5, func(w *world) {
				resume := func(sites []*site) {
					if name == "paused" {
						for _, s := range sites {
							s.resume()
						}
					}
				}
				call := func(d time.Duration) (errs []error) {
					ctx, cancel := context.WithTimeout(w.Context(), d)
					defer cancel()
					_, err := w.quorum("one").Lock(ctx)
					errs = append(errs, err)
					_, err = w.quorum("one", multilock.WithWait(d)).Lock(w.Context())
					errs = append(errs, err)
					_, err = w.quorum("one").TryLock(w.Context())
					return append(errs, err)
				}
				other := w.lock(w.quorum("two"))
				fail(w.sites[3])
				fail(w.sites[4])
				for _, err := range append(call(2*time.Second), call(20*time.Second)...) {
					want(t, err, lock.ErrNotAcquired)
					wantNot(t, err, lock.ErrUnavailable)
				}
				fail(w.sites[2])
				for _, d := range []time.Duration{2 * serverTimeout, 2 * time.Second} {
					for _, err := range call(d) {
						want(t, err, lock.ErrUnavailable)
						wantNot(t, err, lock.ErrNotAcquired)
					}
				}
				fail(w.sites[0])
				fail(w.sites[1])
				ctx, cancel := context.WithTimeout(w.Context(), serverTimeout/2)
				defer cancel()
				_, err := w.quorum("one").Lock(ctx)
				want(t, err, context.DeadlineExceeded)
				if name == "paused" { // the wait ended before a server's timeout
					wantNot(t, err, lock.ErrUnavailable)
				}
				wantNot(t, err, lock.ErrNotAcquired)
				resume(w.sites)
				_ = other.Unlock(w.Context())
				time.Sleep(time.Minute)
			})
		})
	}
}

// Of three servers, one is dead and one replies that another owner has the lock. The third reply decides whether the quorum
// is unavailable, so TryLock waits for it.
func TestQuorum_lastReplyDecides(t *testing.T) {
	for _, paused := range []bool{false, true} {
		t.Run(fmt.Sprint("paused=", paused), func(t *testing.T) {
			inWorld(t, 3, func(w *world) {
				other := w.lock(w.quorum("two"))
				w.sites[0].kill()
				w.sites[2].wire = rtt // it replies last, but in time
				if paused {
					w.sites[2].pause()
				}
				_, err := w.quorum("one").TryLock(w.Context())
				if unavailable, refused := errors.Is(err, lock.ErrUnavailable), errors.Is(err, lock.ErrNotAcquired); unavailable != paused || refused == paused {
					w.Errorf("%v: wrong match", err)
				}
				if paused {
					w.sites[2].resume()
				}
				w.unlock(other)
			})
		})
	}
}

// Until is the time until which a majority votes.
func TestQuorum_until(t *testing.T) {
	inWorld(t, 5, func(w *world) {
		locks := w.locks("one")
		for i, d := range []time.Duration{2, 5, 1, 4, 3} {
			locks[i].(*fake).forFixed().lease = d * 100 * time.Millisecond
		}
		start := time.Now()
		h := w.lock(multilock.NewQuorum(locks, with(nil)...))
		synctest.Wait()
		for _, s := range w.sites {
			s.kill() // an expired lease cannot be acquired again
		}
		const third = 300 * time.Millisecond
		if until := h.Until().Sub(start); until != third-third/100-2*time.Millisecond {
			w.Errorf("until %v", until)
		}
		<-h.Context().Done()
		if took := time.Since(start); took != third-third/100-2*time.Millisecond {
			w.Errorf("lost after %v", took)
		}
		err := h.Err()
		want(t, err, lock.ErrLost)
		wantNot(t, err, lock.ErrNotAcquired)
		if h.Until().After(time.Now()) {
			w.Error("the hold is lost, but Until is in the future")
		}
		for _, s := range w.sites {
			s.set(func() { s.down = false })
		}
		ended := time.Now()
		time.Sleep(lease / 10)
		w.wantHeld("") // also the lease with more time left
		want(t, h.Unlock(w.Context()), lock.ErrNotHeld, lock.ErrLost)
		if until := h.Until(); !until.Equal(ended) {
			w.Errorf("Until moves by %v after the end", until.Sub(ended))
		}
	})
}

// Repeated attempts at servers do not make a hold with fixed leases last longer than its leases.
func TestQuorum_fixedLeases(t *testing.T) {
	for _, opts := range [][]multilock.Option{nil, {multilock.WithMaxHold(10 * lease)}} {
		inWorld(t, 3, func(w *world) {
			locks := w.locks("one")
			for i, d := range []time.Duration{lease * 7 / 10, lease, lease} { // as if the call had waited at the first one
				locks[i].(*fake).forFixed().lease = d
			}
			w.sites[2].kill()
			start := time.Now()
			h := w.lock(multilock.NewQuorum(locks, with(opts)...))
			time.Sleep(lease / 2)
			w.sites[2].set(func() { w.sites[2].down = false })
			time.Sleep(lease * 4 / 10)
			w.wantHeld("1 2 3") // the third one recently, and the first one for the second time
			if until := h.Until().Sub(start); until > lease {
				w.Errorf("until %v, the leases are %v", until, lease)
			}
			select {
			case <-h.Context().Done():
			case <-time.After(lease / 10):
				w.Error("the hold outlived its lease")
			}
			want(t, h.Err(), lock.ErrLost, lock.ErrExpired)
			if errors.Is(h.Err(), lock.ErrMaxHold) {
				w.Errorf("%v: got the error of WithMaxHold", h.Err())
			}
			time.Sleep(rtt)
			w.wantHeld("")
			_ = h.Unlock(w.Context())
		})
	}
}

// The first check of a lost hold detects the loss, without a signal.
func TestQuorum_detectsALossAtTheFirstCheck(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		var mu sync.Mutex
		var controlled []*controlledHold
		locks := w.locks("one")
		for i, l := range locks {
			locks[i] = witness{hookedLock{Locker: l, after: func(h lock.Hold) lock.Hold {
				mu.Lock()
				defer mu.Unlock()
				p := &controlledHold{Hold: h}
				controlled = append(controlled, p)
				return p
			}}, l.(lockimpl.Witness)}
		}
		q := multilock.NewQuorum(locks, with(nil)...)
		for name, check := range map[string]func(h lock.Hold) error{
			"Err":           lock.Hold.Err,
			"Context().Err": func(h lock.Hold) error { return errors.Join(h.Context().Err(), h.Err()) },
			"Cause":         func(h lock.Hold) error { return context.Cause(h.Context()) },
			"Until": func(h lock.Hold) error {
				until := h.Until()
				if until.After(time.Now()) {
					return nil
				}
				time.Sleep(rtt)
				if later := h.Until(); later != until {
					w.Errorf("Until moves by %v after the loss", later.Sub(until))
				}
				return h.Err()
			},
		} {
			controlled = nil
			h := w.lock(q)
			synctest.Wait()
			controlled[0].endWith(lock.ErrLost)
			if err := check(h); err != nil {
				w.Errorf("%s: lost although a majority is left: %v", name, err)
			}
			cause := fmt.Errorf("%w: %w", lock.ErrLost, lock.ErrGone)
			controlled[1].endWith(cause)
			want(t, check(h), lock.ErrLost)
			want(t, h.Err(), lock.ErrGone)
			want(t, h.Unlock(w.Context()), lock.ErrNotHeld, lock.ErrLost)
			time.Sleep(time.Second)
			w.wantHeld("")
		}
	})
}

// A loss of the majority between the count of the votes and the acquisition is reported like any other, immediately and by
// Done.
func TestQuorum_lossDuringTheLastVote(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		locks := w.locks("one")
		first, second := locks[0].(*fake), locks[1].(*fake)
		var commands [2]atomic.Int32 // calls of Until of their holds: one by the attempt, then one by each count
		for i, f := range []*fake{first, second} {
			locks[i] = witness{hookedLock{Locker: f, after: func(h lock.Hold) lock.Hold {
				return &watched{h, func() {
					if n := commands[i].Add(1); i == 0 || commands[0].Load() < 2 || n != 2 {
						return
					}
					for _, f := range []*fake{first, second} {
						f.s.kill()
						for _, acquisition := range f.acquisitions {
							acquisition.end(fmt.Errorf("%w: suddenly", lock.ErrLost))
						}
					}
					time.Sleep(time.Microsecond) // the functions that the loss starts have run
				}}
			}}, f}
		}
		first.s.wire /= 2 // it replies before the second
		w.sites[2].kill()
		h := w.lock(multilock.NewQuorum(locks, with(nil)...))
		select {
		case <-h.Context().Done():
		case <-time.After(time.Microsecond):
			w.Error("the hold is lost, but Done is not closed")
		}
		want(t, h.Err(), lock.ErrLost)
	})
}

// watched is a hold that calls a function when its Until is called.
type watched struct {
	lock.Hold
	commands func()
}

func (h *watched) Until() time.Time {
	until := h.Hold.Until()
	h.commands()
	return until
}

type witness struct {
	lock.Locker
	w lockimpl.Witness
}

func (o witness) Server(ctx context.Context) (lockimpl.Server, error) { return o.w.Server(ctx) }

// A lost server gets another request. A hold therefore outlives all its servers, one after the other, if there is enough
// time for each to vote again.
func TestQuorum_repair(t *testing.T) {
	inWorld(t, 5, func(w *world) {
		w.sites[4].kill()
		h := w.lock(w.quorum("one"))
		w.sites[4].restart()
		time.Sleep(lease)
		w.wantHeld("1 2 3 4 5")
		for range 2 {
			for _, s := range w.sites {
				s.restart()
				time.Sleep(3 * lease) // to detect the loss, to acquire the lock again, and until the server can vote
				if err := h.Err(); err != nil {
					w.Fatal(err)
				}
			}
		}
		w.wantHeld("1 2 3 4 5")
		w.unlock(h)
		w.wantHeld("")
	})
}

// A server that granted the lock, and lost it before the others replied, gets another request, too. Otherwise one more
// failure would end the hold.
func TestQuorum_repairAfterALossDuringTheAttempt(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		locks, lost := w.locks("one"), false
		locks[0] = witness{hookedLock{Locker: locks[0], after: func(h lock.Hold) lock.Hold {
			if !lost {
				lost = true
				time.AfterFunc(rtt+rtt/2, func() { // by then it has its vote again
					w.sites[0].forget()
					h.(*fakeHold).t.end(fmt.Errorf("%w: the server forgot it", lock.ErrLost))
				})
			}
			return h
		}}, locks[0].(lockimpl.Witness)}
		for _, s := range w.sites[1:] {
			s.wire = 2 * rtt
		}
		h := w.lock(multilock.NewQuorum(locks, with([]multilock.Option{multilock.WithServerTimeout(lease / 10)})...))
		if n := len(multilock.Holds(h)); n != 2 {
			w.Fatalf("acquired with %d votes, although the first server lost its vote", n)
		}
		time.Sleep(lease)
		w.wantHeld("1 2 3")
		w.sites[1].kill()
		time.Sleep(3 * lease)
		if err := h.Err(); err != nil {
			w.Errorf("lost although two of three servers have it: %v", err)
		}
		w.unlock(h)
	})
}

// A vote that is regained joins a majority that exists without it. It does not revive a lost majority.
func TestQuorum_repairDoesNotReviveAHold(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		h := w.lock(w.quorum("one"))
		synctest.Wait()
		w.sites[0].forget() // the holder detects the loss at the next renewal
		w.sites[1].forget()
		other := w.quorum("two", multilock.WithWait(lease/6))
		if _, err := other.Lock(w.Context()); err != nil {
			w.Fatal(err) // the manual DEL made this possible
		}
		time.Sleep(lease)
		want(t, h.Err(), lock.ErrLost)
		if got := w.held(); got != "1 2" && got != "1 2 3" {
			w.Errorf("held on %q", got)
		}
	})
}

// The same without a signal, as in a process that was paused: the majority was lost when a vote was regained, although no
// call had checked.
func TestQuorum_repairAfterAnUndetectedLoss(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		var first *controlledHold
		locks := w.locks("one")
		locks[0] = witness{hookedLock{Locker: locks[0], after: func(h lock.Hold) lock.Hold {
			first = &controlledHold{Hold: h}
			return first
		}}, locks[0].(lockimpl.Witness)}
		w.sites[2].kill()
		h := w.lock(multilock.NewQuorum(locks, with(nil)...))
		first.endWith(lock.ErrLost)
		w.sites[2].set(func() { w.sites[2].down = false })
		time.Sleep(lease)
		want(t, h.Err(), lock.ErrLost)
		want(t, h.Unlock(w.Context()), lock.ErrNotHeld, lock.ErrLost)
		w.wantHeld("")
	})
}

// A server that started recently does not vote yet, and does later.
func TestQuorum_recentlyStartedServers(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		w.sites[0].restart()
		w.sites[1].restart()
		up := time.Now()
		_, err := w.quorum("one", multilock.WithDurableServers()).TryLock(w.Context())
		if err != nil {
			w.Errorf("durable servers do not vote immediately: %v", err)
		}
		for _, s := range w.sites {
			s.forget()
		}
		h, err := w.quorum("two").Lock(w.Context())
		if err != nil {
			w.Fatal(err)
		}
		// The uptime is in whole seconds.
		if after := time.Since(up); after < lease || after > 3*lease {
			w.Errorf("it took %v until they voted", after)
		}
		w.unlock(h)
	})
}

// A holder acquires the lock on a recently started server, but that server votes later. In the meantime the hold needs the
// other servers.
func TestQuorum_recentlyStartedServerInAHold(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		w.sites[2].restart()
		h := w.lock(w.quorum("one"))
		w.wantHeld("1 2 3")
		w.sites[1].kill()
		<-h.Context().Done()
		want(t, h.Err(), lock.ErrLost) // the third server has been up for less than the longest lease

		w.sites[1].restart()
		time.Sleep(3 * lease)
		w.sites[2].restart()
		h = w.lock(w.quorum("two"))
		time.Sleep(2 * lease)
		w.sites[1].kill()
		time.Sleep(2 * lease)
		if err := h.Err(); err != nil {
			w.Errorf("the third server does not vote: %v", err)
		}
		w.unlock(h)
	})
}

// A server that restarts between the grant and INFO counts as recently started.
func TestQuorum_restartAfterTheGrant(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		locks := w.locks("one")
		for i, l := range locks[:2] {
			locks[i] = witness{hookedLock{Locker: l, after: func(h lock.Hold) lock.Hold {
				w.sites[i].restart()
				return h
			}}, l.(lockimpl.Witness)}
		}
		_, err := multilock.NewQuorum(locks, with(nil)...).TryLock(w.Context())
		want(t, err, lock.ErrUnavailable)
		wantNot(t, err, lock.ErrNotAcquired)
		if !strings.Contains(err.Error(), "started recently") {
			w.Error(err)
		}
	})
}

func TestQuorum_noWitness(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		locks := w.locks("one")
		for i, l := range locks {
			locks[i] = hookedLock{Locker: l}
		}
		for name, q := range map[string]*multilock.Quorum{
			"no witness": multilock.NewQuorum(locks, with(nil)...),
			"long lease": w.quorum("two", multilock.WithMaxLease(lease/2)),
		} {
			start := time.Now()
			_, err := q.Lock(w.Context()) // must not wait indefinitely
			if err == nil || time.Since(start) > time.Second {
				w.Errorf("%s: after %v: %v", name, time.Since(start), err)
			}
			w.wantHeld("")
		}
		w.unlock(w.lock(multilock.NewQuorum(locks, with([]multilock.Option{multilock.WithDurableServers()})...)))
		w.sites[0].denied, w.sites[1].denied = true, true
		w.unlock(w.lock(w.quorum("three", multilock.WithDurableServers())))
	})
}

// Two locks on one server have one vote together.
func TestQuorum_sameServerTwice(t *testing.T) {
	inWorld(t, 5, func(w *world) {
		w.sites[3] = w.sites[1]
		locks := w.locks("one")
		locks[3].(*fake).name = "q2" // otherwise the server itself would reject it
		for _, durable := range []bool{false, true} {
			var opts []multilock.Option
			if durable {
				opts = append(opts, multilock.WithDurableServers())
			}
			q := multilock.NewQuorum(locks, with(opts)...)
			h := w.lock(q)
			synctest.Wait()
			if n := len(multilock.Holds(h)); n != 4 {
				w.Errorf("%d holds on 4 servers", n)
			}
			w.unlock(h)
			w.sites[0].kill()
			w.sites[2].kill()
			_, err := q.TryLock(w.Context())
			want(t, err, lock.ErrUnavailable)
			wantNot(t, err, lock.ErrNotAcquired)
			if !strings.Contains(err.Error(), "of 5 votes") || !strings.Contains(err.Error(), "locks 2 and 4 are on the same server") {
				w.Error(err)
			}
			w.sites[0].set(func() { w.sites[0].down = false })
			w.sites[2].set(func() { w.sites[2].down = false })
			time.Sleep(lease)
			free(t, w.sites, "q", "q2")
		}
		one := []lock.Locker{locks[0], locks[0], locks[0]}
		start := time.Now()
		_, err := multilock.NewQuorum(one, with(nil)...).Lock(w.Context())
		if err == nil || time.Since(start) > time.Second || !strings.Contains(err.Error(), "are on the same server") {
			w.Errorf("the same server three times: after %v: %v", time.Since(start), err)
		}
		wantNot(t, err, lock.ErrNotAcquired, lock.ErrUnavailable)
		time.Sleep(lease)
		w.wantHeld("")
	})
}

func TestNewQuorum_badLocksAndOptions(t *testing.T) {
	inWorld(t, 5, func(w *world) {
		locks := w.locks("one")
		for name, q := range map[string]*multilock.Quorum{
			"none":               multilock.NewQuorum(nil),
			"one":                multilock.NewQuorum(locks[:1]),
			"two":                multilock.NewQuorum(locks[:2]),
			"an even number":     multilock.NewQuorum(locks[:4]),
			"a nil":              multilock.NewQuorum([]lock.Locker{nil, locks[0], locks[1]}),
			"no server timeout":  multilock.NewQuorum(locks, multilock.WithServerTimeout(0)),
			"no lease":           multilock.NewQuorum(locks, multilock.WithMaxLease(-1)),
			"a short lease":      multilock.NewQuorum(locks, multilock.WithMaxLease(1)),
			"no validity":        multilock.NewQuorum(locks, multilock.WithMinValidity(0)),
			"no hold":            multilock.NewQuorum(locks, multilock.WithMaxHold(0)),
			"no wait":            multilock.NewQuorum(locks, multilock.WithWait(1)),
			"a long timeout":     multilock.NewQuorum(locks, multilock.WithMaxLease(lease), multilock.WithServerTimeout(lease)),
			"validity over hold": multilock.NewQuorum(locks, multilock.WithMaxHold(lease), multilock.WithMinValidity(2*lease)),
		} {
			for _, f := range []func(context.Context) (lock.Hold, error){q.Lock, q.TryLock} {
				_, err := f(w.Context())
				if !errors.As(err, new(*lock.Error)) || errors.Is(err, lock.ErrNotAcquired) {
					w.Fatalf("%s: %v", name, err)
				}
			}
		}
		for text, option := range map[string]multilock.Option{
			"WithServerTimeout(5ns): must be at least 1ms": multilock.WithServerTimeout(5),
			"WithMaxLease(5ns): must be at least 10ms":     multilock.WithMaxLease(5),
			"WithMinValidity(-1s): must be at least 1ms":   multilock.WithMinValidity(-time.Second),
			"WithMaxHold(900µs): must be at least 10ms":    multilock.WithMaxHold(900 * time.Microsecond),
			"WithWait(1ns): must be 0, or at least 1ms":    multilock.WithWait(1),
			"option 2 of 2 is nil":                         nil,
		} {
			if _, err := multilock.NewQuorum(locks, multilock.WithDurableServers(), option).TryLock(w.Context()); err == nil || !strings.Contains(err.Error(), text) {
				w.Errorf("got %v, want %q in it", err, text)
			}
		}
		for _, opts := range [][]multilock.Option{
			{multilock.WithMinValidity(time.Millisecond)}, // the minimum
			{multilock.WithMinValidity(lease / 2), multilock.WithMaxHold(lease / 2)},
			{multilock.WithMinValidity(lease * 3 / 4), multilock.WithMaxLease(lease / 2), multilock.WithDurableServers()},
		} {
			w.unlock(w.lock(multilock.NewQuorum(locks, with(opts)...)))
		}
		_, err := multilock.NewQuorum(locks, multilock.WithMaxLease(lease), multilock.WithMinValidity(2*lease)).TryLock(w.Context())
		if text := "WithMinValidity(2s): must be at most the maximum lease (1s)"; err == nil || !strings.Contains(err.Error(), text) {
			w.Errorf("got %v, want %q in it", err, text)
		}
		w.unlock(must(w.T)(w.quorum("one", multilock.WithWait(time.Millisecond)).TryLock(w.Context())))
		w.wantHeld("")
	})
}

// The default of WithServerTimeout is 1 % of the longest lease, but at least 5 ms and at most 50 ms.
func TestQuorum_defaultServerTimeout(t *testing.T) {
	for longest, timeout := range map[time.Duration]string{lease / 10: "5ms", lease: "10ms", 10 * lease: "50ms"} {
		inWorld(t, 3, func(w *world) {
			for _, s := range w.sites {
				s.pause()
				defer s.resume()
			}
			_, err := multilock.NewQuorum(w.locks("one"), multilock.WithMaxLease(longest)).TryLock(w.Context())
			if text := "no vote within " + timeout; err == nil || !strings.Contains(err.Error(), text) {
				w.Errorf("got %v, want %q in it", err, text)
			}
		})
	}
}

func TestQuorum_minValidity(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		_, err := w.quorum("one", multilock.WithMinValidity(lease)).TryLock(w.Context())
		want(t, err, lock.ErrUnavailable)
		wantNot(t, err, lock.ErrNotAcquired)
		if !strings.Contains(err.Error(), "too late") {
			w.Error(err)
		}
		w.wantHeld("")
		left := lease - lease/100 - 2*time.Millisecond - 2*rtt // after the votes
		w.unlock(w.lock(w.quorum("one", multilock.WithMinValidity(left))))
		for _, s := range w.sites { // without the option the minimum is a tenth of the lease
			s.wire = lease / 4
		}
		_, err = w.quorum("one", multilock.WithServerTimeout(lease/4)).TryLock(w.Context())
		want(t, err, lock.ErrUnavailable)
		wantNot(t, err, lock.ErrNotAcquired)
		time.Sleep(lease)
		w.wantHeld("")
	})
}

func TestQuorum_maxHold(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		start := time.Now()
		h := w.lock(w.quorum("one", multilock.WithMaxHold(5*lease)))
		time.Sleep(4 * lease)
		if err := h.Err(); err != nil {
			w.Error(err)
		}
		time.Sleep(lease / 2)
		if until := h.Until().Sub(start); until > 5*lease {
			w.Errorf("until %v", until)
		}
		<-h.Context().Done()
		if took := time.Since(start); took != 5*lease {
			w.Errorf("lost after %v", took)
		}
		want(t, h.Err(), lock.ErrLost, lock.ErrMaxHold)
		time.Sleep(rtt)
		w.wantHeld("")
		want(t, h.Unlock(w.Context()), lock.ErrNotHeld, lock.ErrLost, lock.ErrMaxHold)
	})
}

// The machine slept for most of the time that a hold may last. The hold ends by the wall clock, and a later limit does
// not replace the first.
func TestQuorum_maxHoldAfterASleep(t *testing.T) {
	w := &world{t, newSites(t, 3)}
	h := w.lock(w.longLeased(20*time.Minute, false, multilock.WithMaxHold(time.Hour)))
	multilock.Sleep(h, 50*time.Minute)
	multilock.Abandon(h)
	if left := time.Until(h.Until()); left > 10*time.Minute {
		t.Errorf("%v left", left)
	}
	multilock.Sleep(h, 10*time.Minute-time.Second)
	select {
	case <-h.Context().Done():
	case <-time.After(30 * time.Second):
		t.Error("the limit has no effect until a call checks it")
	}
	want(t, h.Err(), lock.ErrLost, lock.ErrMaxHold)

	h = w.lock(w.longLeased(20*time.Minute, false, multilock.WithMaxHold(time.Hour)))
	multilock.Sleep(h, time.Hour)
	want(t, h.Unlock(t.Context()), lock.ErrNotHeld, lock.ErrLost, lock.ErrMaxHold)
}

// After a sleep, a hold with fixed leases ends by the wall clock, too, and Extend extends it.
func TestQuorum_fixedLeasesAfterASleep(t *testing.T) {
	w := &world{t, newSites(t, 3)}
	h := w.lock(w.longLeased(time.Hour, true))
	multilock.Sleep(h, 50*time.Minute)
	if left := time.Until(h.Until()); left > 10*time.Minute {
		t.Errorf("%v left", left)
	}
	if err := h.Extend(t.Context(), 30*time.Minute); err != nil {
		t.Error(err)
	}
	if left := time.Until(h.Until()); left < 20*time.Minute {
		t.Errorf("%v left after an extension by 30 minutes", left)
	}
	w.unlock(h)
}

// longLeased returns a quorum whose leases do not expire during a test that uses the real clocks.
func (w *world) longLeased(d time.Duration, fixed bool, opts ...multilock.Option) *multilock.Quorum {
	var locks []lock.Locker
	for _, s := range w.sites {
		l := s.lock("one", "q", d)
		if fixed {
			l.forFixed()
		}
		locks = append(locks, l)
	}
	return multilock.NewQuorum(locks, append(opts, multilock.WithMaxLease(d), multilock.WithServerTimeout(30*time.Second))...)
}

// bounded is a lock whose holds end after some time, as with lock.WithMaxHold.
type bounded struct {
	lockimpl.Witness
	most time.Duration
}

type boundedHold struct {
	lock.Hold
	ctx context.Context
}

func (h boundedHold) Context() context.Context { return h.ctx }
func (h boundedHold) Err() error               { return context.Cause(h.ctx) }

func (b bounded) TryLock(ctx context.Context) (lock.Hold, error) {
	h, err := b.Witness.TryLock(ctx)
	if err != nil {
		return nil, err
	}
	under, end := context.WithCancelCause(h.Context())
	time.AfterFunc(b.most, func() {
		end(fmt.Errorf("%w: %w", lock.ErrLost, lock.ErrMaxHold))
		_ = h.Unlock(context.Background())
	})
	return boundedHold{h, under}, nil
}

// The locks of the servers limit their holds. The quorum does not outlive the first of those holds, even if the others were
// acquired later.
func TestQuorum_maxHoldOfMembers(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		locks := w.locks("one")
		for i, l := range locks {
			locks[i] = bounded{l.(lockimpl.Witness), 5 * lease}
		}
		start := time.Now()
		h := w.lock(multilock.NewQuorum(locks, with(nil)...))
		for _, s := range w.sites[1:] { // each lock is acquired again soon
			time.Sleep(2 * lease)
			s.forget()
		}
		<-h.Context().Done()
		if took := time.Since(start); took > 5*lease+10*rtt || took < 5*lease {
			w.Errorf("lost after %v", took)
		}
		want(t, h.Err(), lock.ErrLost, lock.ErrMaxHold)
		time.Sleep(rtt)
		w.wantHeld("")
		want(t, h.Unlock(w.Context()), lock.ErrNotHeld, lock.ErrLost, lock.ErrMaxHold)
		time.Sleep(5 * lease)
	})
}

// lateLock is a lock whose holds detect their end late, as in a process that was paused.
type lateLock struct {
	lockimpl.Witness
	checks *atomic.Int64 // number of checks that still miss the loss
}

type lateHold struct {
	lock.Hold
	checks *atomic.Int64
}

func (l lateLock) TryLock(ctx context.Context) (lock.Hold, error) {
	h, err := l.Witness.TryLock(ctx)
	if err != nil {
		return nil, err
	}
	return lateHold{h, l.checks}, nil
}

func (h lateHold) Err() error {
	if h.checks.Add(-1) < 0 {
		return lock.ErrLost
	}
	return h.Hold.Err()
}

// A call with the context of a hold checks that hold, and so detects its loss, wherever it happened.
func TestQuorum_lossOfTheOuterHold(t *testing.T) {
	for checks := range int64(50) {
		inWorld(t, 3, func(w *world) {
			var left atomic.Int64
			left.Store(1000)
			locks := w.locks("one")
			for i, l := range locks {
				locks[i] = lateLock{l.(lockimpl.Witness), &left}
			}
			outer := w.lock(multilock.NewQuorum(locks, with(nil)...))
			left.Store(checks)
			if inner, err := w.quorum("one").TryLock(outer.Context()); err == nil {
				_ = inner.Unlock(w.Context())
			}
			left.Store(0)
			want(t, outer.Err(), lock.ErrLost)
			time.Sleep(lease)
		})
	}
}

// slowValue is a context with one slow call of Value.
type slowValue struct {
	context.Context
	calls *atomic.Int64 // number of calls before the slow one
}

func (c slowValue) Value(key any) any {
	if c.calls.Add(-1) == 0 {
		time.Sleep(lease / 10)
	}
	return c.Context.Value(key)
}

// A hold ends as soon as it is acquired. Its owner does not count as a holder after that.
func TestQuorum_endsAsItIsAcquired(t *testing.T) {
	for calls := range int64(100) {
		inWorld(t, 3, func(w *world) {
			before := multilock.Holders()
			ctx := slowValue{lock.ContextWithNewOwner(w.Context()), new(atomic.Int64)}
			ctx.calls.Store(calls)
			h, err := w.quorum("one", multilock.WithMaxHold(lock.MinLease)).TryLock(ctx)
			time.Sleep(lease)
			if err == nil {
				want(t, h.Err(), lock.ErrLost, lock.ErrMaxHold)
			}
			if n := multilock.Holders() - before; n != 0 {
				w.Errorf("%d more owners hold it", n)
			}
		})
	}
}

// The caller's context is canceled, and the hold is not unlocked. The members are kept for the longest lease, and are then
// released.
func TestQuorum_abandoned(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		for _, unlocked := range []bool{false, true} {
			ctx, cancel := context.WithCancel(w.Context())
			h, err := w.quorum("one", multilock.WithMaxLease(2*lease)).Lock(ctx)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * lease)
			cancel()
			time.Sleep(2*lease - rtt)
			w.wantHeld("1 2 3")
			if unlocked {
				w.unlock(h)
				w.wantHeld("")
				continue
			}
			time.Sleep(2 * rtt)
			w.wantHeld("")
			want(t, h.Err(), lock.ErrLost, lock.ErrAbandoned)
			want(t, context.Cause(h.Context()), context.Canceled)
			want(t, h.Unlock(w.Context()), lock.ErrNotHeld, lock.ErrLost, lock.ErrAbandoned)
		}
	})
}

func TestQuorum_waitErrors(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		other := w.lock(w.quorum("two"))
		ctx, cancel := context.WithTimeout(w.Context(), 10*time.Second)
		defer cancel()
		start := time.Now()
		_, err := w.quorum("one").Lock(ctx)
		want(t, err, lock.ErrNotAcquired, context.DeadlineExceeded)
		wantNot(t, err, context.Canceled)
		if !strings.Contains(err.Error(), "0 of 3 votes") || time.Since(start) != 10*time.Second {
			w.Errorf("after %v: %v", time.Since(start), err)
		}
		q := w.quorum("one", multilock.WithWait(time.Second))
		_, err = q.Lock(w.Context())
		want(t, err, lock.ErrNotAcquired, os.ErrDeadlineExceeded)
		wantNot(t, err, context.DeadlineExceeded, context.Canceled)

		why := errors.New("the request went away")
		dead, end := context.WithCancelCause(w.Context())
		end(why)
		for _, f := range []func(context.Context) (lock.Hold, error){q.Lock, q.TryLock} {
			_, err := f(dead)
			want(t, err, context.Canceled, why)
			wantNot(t, err, lock.ErrNotAcquired, lock.ErrUnavailable)
		}
		w.unlock(other)

		h, err := q.Lock(w.Context())
		if err != nil {
			w.Fatal(err)
		}
		time.Sleep(3 * time.Second) // the limit of the wait does not end the hold
		if err := h.Err(); err != nil {
			w.Error(err)
		}
		w.unlock(h)

		// During an attempt.
		w.sites[0].pause()
		w.sites[1].pause()
		ctx, cancel = context.WithTimeout(w.Context(), serverTimeout/2)
		defer cancel()
		_, err = q.TryLock(ctx)
		want(t, err, context.DeadlineExceeded)
		wantNot(t, err, lock.ErrNotAcquired, lock.ErrUnavailable)
		w.sites[0].resume()
		w.sites[1].resume()
		time.Sleep(time.Second)
		w.wantHeld("")
	})
}

// Calls end when their contexts are canceled, even if the servers that granted the lock no longer respond. Their
// grants are released in the background.
func TestQuorum_canceled(t *testing.T) {
	const wait = serverTimeout * 9 / 10
	inWorld(t, 3, func(w *world) {
		pause := func() {
			for _, s := range w.sites {
				s.pause()
			}
		}
		resume := func() {
			for _, s := range w.sites {
				s.resume()
			}
			time.Sleep(time.Second)
			w.wantHeld("")
		}
		w.sites[2].kill()
		locks := w.locks("one")
		toPause := slices.Clone(locks)
		toPause[1] = witness{hookedLock{Locker: locks[1], before: func(context.Context, string) error {
			time.Sleep(2*rtt + rtt/2) // the first has voted
			pause()
			return nil
		}}, locks[1].(lockimpl.Witness)}
		q := multilock.NewQuorum(toPause, with([]multilock.Option{multilock.WithDurableServers()})...)
		limited := multilock.NewQuorum(toPause, with([]multilock.Option{multilock.WithDurableServers(), multilock.WithWait(wait)})...)
		for name, call := range map[string]func(context.Context) error{
			"lock":    func(ctx context.Context) error { _, err := q.Lock(ctx); return err },
			"trylock": func(ctx context.Context) error { _, err := q.TryLock(ctx); return err },
			"wait":    func(context.Context) error { _, err := limited.Lock(w.Context()); return err },
		} {
			ctx, cancel := context.WithTimeout(w.Context(), wait)
			start := time.Now()
			err := call(ctx)
			if took := time.Since(start); took != wait {
				w.Errorf("%s took %v, its context had %v: %v", name, took, wait, err)
			}
			wantNot(w.T, err, lock.ErrNotAcquired)
			if limited := name == "wait"; errors.Is(err, lock.ErrUnavailable) != limited || errors.Is(err, context.DeadlineExceeded) == limited {
				w.Errorf("%s: %v: wrong match", name, err)
			}
			cancel()
			resume()
		}

		w.sites[2].set(func() { w.sites[2].down = false })
		w.sites[2].pause()
		locks[2] = witness{uncancelable{locks[2]}, locks[2].(lockimpl.Witness)} // so that a goroutine of the hold continues
		h := w.lock(multilock.NewQuorum(locks, with(nil)...))
		w.sites[0].pause()
		w.sites[1].pause()
		ctx, cancel := context.WithTimeout(w.Context(), wait)
		defer cancel()
		start := time.Now()
		err := h.Unlock(ctx)
		want(t, err, context.DeadlineExceeded)
		wantNot(t, err, lock.ErrUnavailable)
		if took := time.Since(start); took != wait {
			w.Errorf("Unlock took %v, its context had %v", took, wait)
		}
		resume()
	})
}

// The context of an Unlock is canceled. The error matches ErrUnavailable only if a server was unavailable before that.
func TestQuorum_unlockCanceled(t *testing.T) {
	for name, test := range map[string]struct {
		err         error // of the release on one server; the others do not respond
		unavailable bool
	}{
		"no reply":    {nil, false},
		"refused":     {errRefused, true},
		"failed once": {fmt.Errorf("%w: %w", context.Canceled, lock.ErrUnavailable), true},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 3, func(w *world) {
				locks := w.locks("one")
				for i, l := range locks {
					locks[i] = witness{hookedLock{Locker: l, after: func(h lock.Hold) lock.Hold {
						return &controlledHold{Hold: h, unlock: func(ctx context.Context) error {
							if i == 0 && test.err != nil {
								return test.err
							}
							<-ctx.Done()
							return ctx.Err()
						}}
					}}, l.(lockimpl.Witness)}
				}
				h := w.lock(multilock.NewQuorum(locks, with(nil)...))
				synctest.Wait()
				why := fmt.Errorf("another lock: %w: %w", lock.ErrNotHeld, lock.ErrLost)
				ctx, cancel := context.WithCancelCause(w.Context())
				time.AfterFunc(serverTimeout/2, func() { cancel(why) })
				err := h.Unlock(ctx)
				want(t, err, context.Canceled, why)
				wantNot(t, err, lock.ErrNotHeld, lock.ErrLost)
				if errors.Is(err, lock.ErrUnavailable) != test.unavailable {
					t.Errorf("%v: want unavailable %t", err, test.unavailable)
				}
			})
		})
	}
}

// Canceling the caller's context cancels the hold's context, but is not an Unlock.
func TestQuorum_parentContext(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		why := errors.New("the request went away")
		ctx, cancel := context.WithCancelCause(w.Context())
		h := w.lockUnder(ctx, w.quorum("one"))
		cancel(why)
		want(t, h.Err(), why)
		want(t, context.Cause(h.Context()), why)
		time.Sleep(lease - rtt)
		w.wantHeld("1 2 3")
		if err := h.Unlock(ctx); err != nil {
			w.Error(err)
		}
		w.wantHeld("")
	})
}

// Goroutines that share a quorum wait in a queue; only the first sends requests.
func TestQuorum_localQueue(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		q := w.quorum("one")
		h := w.lock(q)
		var order []int
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				h, err := q.Lock(w.Context())
				if err != nil {
					w.Error(err)
					return
				}
				order = append(order, i)
				time.Sleep(10 * time.Millisecond)
				w.unlock(h)
			})
			synctest.Wait()
		}
		_, err := q.TryLock(w.Context())
		want(t, err, lock.ErrNotAcquired)
		last := w.sites[2] // the waiters wait at the first server
		last.set(func() { last.commands = nil })
		time.Sleep(10 * time.Second)
		acquired := 0
		last.set(func() {
			for _, what := range last.commands {
				if what == "acquire" {
					acquired++
				}
			}
		})
		if acquired < 10 || acquired > 40 {
			w.Errorf("ten waiters made %d attempts in ten seconds", acquired)
		}
		w.unlock(h)
		wg.Wait()
		if !slices.IsSorted(order) || len(order) != 10 {
			w.Errorf("served in the order %v", order)
		}
		w.wantHeld("")
	})
}

// An owner in the context, such as a multi-lock's, waits in the queue like any other. Only an owner that holds the lock
// does not, whichever handle it uses.
func TestQuorum_localQueueOfOwners(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		locks := w.locks("one")
		q := multilock.NewQuorum(locks, with(nil)...)
		all := multilock.New(q, w.sites[0].lock("one", "r", lease))
		before := lock.ContextWithNewOwner(w.Context())
		w.unlock(w.lockUnder(before, q))
		h := w.lock(q)
		var order []int
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				h, err := all.Lock(w.Context())
				if err != nil {
					w.Error(err)
					return
				}
				order = append(order, i)
				w.unlock(h)
			})
			synctest.Wait()
		}
		for _, ctx := range []context.Context{lock.ContextWithNewOwner(w.Context()), before} {
			_, err := q.TryLock(ctx)
			want(t, err, lock.ErrNotAcquired)
			if strings.Contains(err.Error(), "votes") {
				w.Errorf("it sent requests although others are queued: %v", err)
			}
		}
		handle := multilock.NewQuorum(locks, with(nil)...)
		wg.Go(func() { w.unlock(must(w.T)(handle.Lock(w.Context()))) })
		synctest.Wait()
		w.unlock(w.lockUnder(h.Context(), q), w.lockUnder(h.Context(), handle))
		w.unlock(h)
		wg.Wait()
		if !slices.IsSorted(order) || len(order) != 10 {
			w.Errorf("served in the order %v", order)
		}
		w.wantHeld("")
	})
}

// A call with a hold's context re-enters, even if others are queued for the lock.
func TestQuorum_reentry(t *testing.T) {
	inWorld(t, 5, func(w *world) {
		q := w.quorum("one")
		outer := w.lock(q)
		synctest.Wait()
		got := make(chan lock.Hold)
		go func() {
			h, err := q.Lock(w.Context())
			if err != nil {
				w.Error(err)
			}
			got <- h
		}()
		synctest.Wait()
		inner, err := q.Lock(outer.Context())
		if err != nil {
			w.Fatal(err)
		}
		synctest.Wait()
		w.sites[0].set(func() {
			if n := w.sites[0].keys["q"].count; n != 2 {
				w.Errorf("the first server has %d holds", n)
			}
		})
		w.unlock(inner)
		if err := outer.Err(); err != nil {
			w.Errorf("the inner Unlock ended the outer hold: %v", err)
		}
		w.wantHeld("1 2 3 4 5")

		// A reentry that reaches only a minority fails, and the outer hold keeps all that it has.
		for _, s := range w.sites[:3] {
			s.pause()
		}
		ctx, cancel := context.WithTimeout(outer.Context(), lease/10)
		defer cancel()
		_, err = q.Lock(ctx)
		want(t, err, lock.ErrUnavailable, context.DeadlineExceeded)
		wantNot(t, err, lock.ErrNotAcquired)
		for _, s := range w.sites[:3] {
			s.resume()
		}
		time.Sleep(lease)
		if err := outer.Err(); err != nil {
			w.Errorf("a failed inner Lock ended the outer hold: %v", err)
		}
		w.wantHeld("1 2 3 4 5")
		w.unlock(outer)
		w.unlock(<-got)
		w.wantHeld("")
	})
}

// An inner hold ends with the outer hold's context; a hold of the same owner without that context does not.
func TestQuorum_owners(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		q := w.quorum("one")
		ctx := lock.ContextWithNewOwner(w.Context())
		first, second := w.lockUnder(ctx, q), w.lockUnder(ctx, q)
		w.unlock(first)
		if err := second.Err(); err != nil {
			w.Error(err)
		}
		w.wantHeld("1 2 3")
		w.unlock(second)
		w.wantHeld("")
	})
}

// Unlock returns when the lock is free on a majority; the other releases continue.
func TestQuorum_unlockWithPausedServers(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		q := w.quorum("one")
		h := w.lock(q)
		synctest.Wait()
		w.sites[0].pause()
		start := time.Now()
		w.unlock(h)
		if took := time.Since(start); took != serverTimeout {
			w.Errorf("it took %v", took)
		}
		w.sites[0].resume()
		time.Sleep(time.Second)
		w.wantHeld("")

		h = w.lock(q)
		synctest.Wait()
		w.sites[0].pause()
		w.sites[1].pause()
		ctx, cancel := context.WithTimeout(w.Context(), 100*time.Millisecond)
		defer cancel()
		err := h.Unlock(ctx)
		want(t, err, context.DeadlineExceeded)
		wantNot(t, err, lock.ErrNotHeld)
		want(t, h.Unlock(w.Context()), lock.ErrNotHeld)
		w.sites[0].resume()
		w.sites[1].resume()
		time.Sleep(time.Second)
		w.wantHeld("")

		// The servers have lost the lock before the holder detects it.
		h = w.lock(q)
		synctest.Wait()
		w.sites[0].forget()
		w.sites[1].forget()
		want(t, h.Unlock(w.Context()), lock.ErrNotHeld, lock.ErrLost)
		w.wantHeld("")
	})
}

// A Locker that ignores its context costs a little time, and its late grants are released.
func TestQuorum_lockersThatIgnoreTheContext(t *testing.T) {
	inWorld(t, 5, func(w *world) {
		locks := w.locks("one")
		for i, l := range locks {
			if i < 3 {
				locks[i] = witness{uncancelable{l}, l.(lockimpl.Witness)}
			}
		}
		for _, s := range w.sites[:3] {
			s.pause()
		}
		start := time.Now()
		_, err := multilock.NewQuorum(locks, with(nil)...).TryLock(w.Context())
		want(t, err, lock.ErrUnavailable)
		wantNot(t, err, lock.ErrNotAcquired)
		if err == nil || !strings.Contains(err.Error(), "server 1: no vote within") {
			w.Error(err)
		}
		if took := time.Since(start); took > 2*serverTimeout+rtt {
			w.Errorf("it took %v", took)
		}
		for _, s := range w.sites[:3] {
			s.resume()
		}
		time.Sleep(time.Second)
		w.wantHeld("")
	})
}

type uncancelable struct{ lock.Locker }

func (s uncancelable) TryLock(ctx context.Context) (lock.Hold, error) {
	return s.Locker.TryLock(context.WithoutCancel(ctx))
}

// Lock does not wait after permanent errors. A minority of such errors has no effect, nor has a transient one.
func TestQuorum_permanentErrors(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		denied := errors.New("NOPERM")
		fails := func(l lock.Locker, err error) lock.Locker {
			return witness{hookedLock{Locker: l, before: func(context.Context, string) error { return err }}, l.(lockimpl.Witness)}
		}
		locks := w.locks("one")
		start := time.Now()
		_, err := multilock.NewQuorum([]lock.Locker{fails(locks[0], denied), fails(locks[1], denied), locks[2]}, with(nil)...).Lock(w.Context())
		want(t, err, denied)
		wantNot(t, err, lock.ErrNotAcquired, lock.ErrUnavailable)
		if got := w.sites[0].received(); len(got) > 0 {
			w.Errorf("a server whose lock failed got %q", got)
		}
		if took := time.Since(start); took > time.Second {
			w.Errorf("it took %v", took)
		}
		time.Sleep(10 * rtt) // late grants are released in the background
		attempts := 0
		twice := witness{hookedLock{Locker: locks[0], before: func(context.Context, string) error {
			if attempts++; attempts <= 2 {
				return denied
			}
			return nil
		}}, locks[0].(lockimpl.Witness)}
		w.unlock(must(t)(multilock.NewQuorum([]lock.Locker{twice, fails(locks[1], denied), locks[2]}, with(nil)...).Lock(w.Context())))
		late := func(l lock.Locker) lock.Locker {
			return witness{hookedLock{Locker: l, before: func(context.Context, string) error {
				time.Sleep(serverTimeout * 11 / 10)
				return denied
			}}, l.(lockimpl.Witness)}
		}
		_, err = multilock.NewQuorum([]lock.Locker{late(locks[0]), late(locks[1]), locks[2]}, with(nil)...).TryLock(w.Context())
		want(t, err, denied)
		wantNot(t, err, lock.ErrUnavailable)
		w.unlock(w.lock(multilock.NewQuorum([]lock.Locker{fails(locks[0], denied), locks[1], locks[2]}, with(nil)...)))
		other := w.lock(w.quorum("two"))
		ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
		defer cancel()
		_, err = multilock.NewQuorum([]lock.Locker{fails(locks[0], denied), locks[1], locks[2]}, with(nil)...).Lock(ctx)
		want(t, err, context.DeadlineExceeded)
		w.unlock(other)
	})
}

// A vote that is regained while the hold ends is released.
func TestQuorum_repairAndUnlock(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		for d := range 100 {
			h := w.lock(w.quorum("one"))
			synctest.Wait()
			w.sites[0].forget()
			time.Sleep(lease/3 + time.Duration(d)*time.Millisecond)
			w.unlock(h)
			time.Sleep(10 * rtt)
			w.wantHeld("")
		}
	})
}

// Waiters wait at one server, and the first of them acquires the lock as soon as it is free there.
func TestQuorum_waitsAtOneServer(t *testing.T) {
	for name, fail := range map[string]func(w *world){
		"all well":               func(w *world) {},
		"the first is dead":      func(w *world) { w.sites[0].kill() },
		"the first is paused":    func(w *world) { w.sites[0].pause() },
		"the first two are slow": func(w *world) { w.sites[0].wire, w.sites[1].wire = time.Minute, time.Minute },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 5, func(w *world) {
				fail(w)
				h := w.lock(w.quorum("holder"))
				var wg sync.WaitGroup
				var mu sync.Mutex
				var worst time.Duration // guarded by mu, as is free
				free := time.Now()
				isFree := func() {
					mu.Lock()
					defer mu.Unlock()
					free = time.Now()
				}
				for i := range 10 {
					q := w.quorum(fmt.Sprint("client", i))
					wg.Go(func() {
						for range 5 {
							h, err := q.Lock(w.Context())
							if err != nil {
								w.Error(err)
								return
							}
							mu.Lock()
							worst = max(worst, time.Since(free))
							mu.Unlock()
							time.Sleep(5 * time.Millisecond)
							w.unlock(h)
							isFree()
						}
					})
				}
				time.Sleep(10 * time.Second)
				isFree()
				w.unlock(h)
				wg.Wait()
				if worst > time.Second { // a waiter polls at least that often
					w.Errorf("the lock was free for %v while others waited", worst)
				}
				t.Logf("the lock was free for at most %v", worst)
				if w.sites[0].resumed != nil {
					w.sites[0].resume()
				}
			})
		})
	}
}

// All servers reject the first attempt of a waiter. It then waits at the first server, which wakes it.
func TestQuorum_wokenByTheFirstServer(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		for i := range 20 {
			h := w.lock(w.quorum("holder"))
			free := make(chan time.Time, 1)
			go func() {
				time.Sleep(time.Duration(10*(i+1)) * time.Millisecond) // less than half of the longest pause
				w.unlock(h)
				free <- time.Now()
			}()
			next, err := w.quorum(fmt.Sprint("waiter", i)).Lock(w.Context())
			if err != nil {
				w.Fatal(err)
			}
			if late := time.Since(<-free); late > 20*time.Millisecond { // a server of these tests wakes within 5 ms
				w.Errorf("the waiter acquired the lock %v after its release", late)
			}
			w.unlock(next)
		}
	})
}

// A caller that is granted the lock on the first server, and rejected by the others, pauses before it retries.
func TestQuorum_pausesWhenOnlyTheFirstGrants(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		for _, s := range w.sites[1:] {
			s.keys["q"] = entry{"other", 1, time.Now().Add(time.Hour)}
		}
		ctx, cancel := context.WithTimeout(w.Context(), 10*time.Second)
		defer cancel()
		_, err := w.quorum("one").Lock(ctx)
		want(t, err, context.DeadlineExceeded)
		if n := len(w.sites[0].received()); n > 300 {
			w.Errorf("the first server got %d commands in ten seconds", n)
		}
		time.Sleep(10 * rtt) // a request may have been sent at the last instant, and is undone
		w.wantHeld("2 3")
	})
}

// With fencing, a hold has a token, which takes one more round trip. A majority has the token before the holder does, and
// the servers that voted later have it soon after.
func TestQuorum_token(t *testing.T) {
	inWorld(t, 5, func(w *world) {
		for i, n := range []uint64{1000, 2000, 3000, 10, 9000} {
			w.sites[i].tokens["q"] = n << 40 // larger than any clock
		}
		w.sites[3].wire = rtt * 5 / 8 // votes while the other servers raise their token counters
		w.sites[4].wire = 4 * rtt     // votes after all the others
		q := w.fenced("one", multilock.WithServerTimeout(lease/10))
		start := time.Now()
		h := w.lock(q)
		if took := time.Since(start); took != 3*rtt {
			w.Errorf("it took %v, a round trip takes %v", took, rtt)
		}
		if want := uint64(3000)<<40 + 1; h.Token() != want {
			w.Errorf("got token %d, want the third server's, %d", h.Token(), want)
		}
		for _, s := range w.sites[:3] {
			s.set(func() {
				if s.tokens["q"] != h.Token() {
					w.Errorf("a server has token %d", s.tokens["q"])
				}
			})
		}
		time.Sleep(10 * rtt)
		for i, s := range w.sites {
			s.set(func() {
				if s.tokens["q"] < h.Token() {
					w.Errorf("server %d voted with token %d", i+1, s.tokens["q"])
				}
			})
		}
		w.sites[4].wire = rtt / 4
		inner := w.lockUnder(h.Context(), q)
		if inner.Token() != h.Token() {
			w.Errorf("a reentry has token %d, the first hold %d", inner.Token(), h.Token())
		}
		w.unlock(inner, h)
		time.Sleep(lease)
		w.sites[0].kill()
		next := w.lock(w.fenced("two", multilock.WithServerTimeout(lease/10)))
		if next.Token() <= h.Token() {
			w.Errorf("got token %d after %d", next.Token(), h.Token())
		}
		time.Sleep(lease)
		w.sites[0].set(func() { w.sites[0].down = false })
		time.Sleep(lease)
		for i, s := range w.sites {
			s.set(func() {
				if s.tokens["q"] < next.Token() {
					w.Errorf("server %d voted with token %d", i+1, s.tokens["q"])
				}
			})
		}
		w.unlock(next)
		w.wantHeld("")

		// The round trip counts as used time.
		left := lease - lease/100 - 2*time.Millisecond - 2*rtt
		_, err := w.fenced("three", multilock.WithMinValidity(left-rtt/2)).TryLock(w.Context())
		want(w.T, err, lock.ErrUnavailable)
		wantNot(w.T, err, lock.ErrNotAcquired)
		if err == nil || !strings.Contains(err.Error(), "too late") {
			w.Errorf("got a hold with less than the minimum validity: %v", err)
		}
	})
}

// Without a majority that confirms the token there is no hold. A request to raise a token counter that arrives after the
// loss is rejected. An attempt that ends with the wait has no result.
func TestQuorum_tokenNotConfirmed(t *testing.T) {
	for name, fail := range map[string]struct {
		do   func(s *site)
		wait time.Duration // 0 for one attempt
		text string
	}{
		"paused":    {(*site).pause, 0, "no vote within"},
		"forgot":    {func(s *site) { s.forget() }, 0, "lock lost"},
		"wait ends": {(*site).pause, serverTimeout * 9 / 10, "waited for"},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 3, func(w *world) {
				locks := w.locks("one")
				for i, l := range locks {
					f := l.(*fake).forFenced()
					locks[i] = raising{f, hookedLock{Locker: f, after: func(h lock.Hold) lock.Hold {
						return &raised{h, func() { fail.do(w.sites[i]) }}
					}}}
				}
				start := time.Now()
				_, err := multilock.NewQuorum(locks, with([]multilock.Option{multilock.WithWait(fail.wait)})...).Lock(w.Context())
				want(t, err, lock.ErrUnavailable)
				wantNot(t, err, lock.ErrNotAcquired, lock.ErrLost)
				if err == nil || !strings.Contains(err.Error(), fail.text) || strings.Contains(err.Error(), "token not confirmed by a majority") == (fail.wait > 0) {
					w.Errorf("%v does not contain %q", err, fail.text)
				}
				if took := time.Since(start); took > 300*time.Millisecond {
					w.Errorf("it took %v", took)
				}
				for _, s := range w.sites {
					if s.resumed != nil {
						s.resume()
					}
				}
				time.Sleep(2 * lease)
				w.wantHeld("")
			})
		})
	}
}

// A server that started recently may have lost the lock of another owner, so it has no vote. It cannot confirm the token in
// place of a server with a vote that does not respond.
func TestQuorum_tokenConfirmedWithoutAVote(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		w.sites[2].restart()
		locks := w.locks("one")
		for i, l := range locks {
			f := l.(*fake).forFenced()
			locks[i] = raising{f, hookedLock{Locker: f, before: func(context.Context, string) error {
				if i == 0 {
					time.Sleep(rtt) // the others have replied when it does
				}
				return nil
			}, after: func(h lock.Hold) lock.Hold {
				return &raised{h, func() {
					if i == 0 {
						w.sites[0].pause()
					}
				}}
			}}}
		}
		_, err := multilock.NewQuorum(locks, with(nil)...).TryLock(w.Context())
		want(t, err, lock.ErrUnavailable)
		wantNot(t, err, lock.ErrNotAcquired)
		w.sites[0].resume()
		time.Sleep(2 * lease)
		w.wantHeld("")
	})
}

// raising is a fake with a separate TryLock.
type raising struct {
	*fake
	o hookedLock
}

func (r raising) TryLock(ctx context.Context) (lock.Hold, error) { return r.o.TryLock(ctx) }

// raised is a hold that calls a function before it raises its token.
type raised struct {
	lock.Hold
	before func()
}

func (r *raised) Raised() uint64 { return r.Hold.(lockimpl.Fenced).Raised() }

func (r *raised) RaiseToken(ctx context.Context, token uint64) error {
	r.before()
	return r.Hold.(lockimpl.Fenced).RaiseToken(ctx, token)
}

func TestNewQuorum_fencingOfSome(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		locks := w.locks("one")
		locks[1].(*fake).forFenced()
		_, err := multilock.NewQuorum(locks, with(nil)...).TryLock(w.Context())
		if err == nil || !strings.Contains(err.Error(), "1 of 3 locks use lock.WithFencing") {
			w.Error(err)
		}
	})
}

// With WithWait(0), Lock makes one attempt.
func TestQuorum_withWaitZero(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		w.unlock(w.lock(w.quorum("one", multilock.WithWait(0))))
		h := w.lock(w.quorum("two"))
		start := time.Now()
		_, err := w.quorum("one", multilock.WithWait(0)).Lock(w.Context())
		var e *lock.Error
		if took := time.Since(start); !errors.Is(err, lock.ErrNotAcquired) || !errors.As(err, &e) || e.Op != "lock" || took > time.Second {
			w.Errorf("%v after %v", err, took)
		}
		w.unlock(h)
	})
}

// The tests below cover conditions of multi-locks and quorums that no other test covers. Each test failed without its
// condition.

// A server that rejected the first attempt votes later. It does not count as another server of the quorum.
func TestQuorum_refusingServerVotesLater(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		w.sites[0].keys["q"] = entry{"other", 1, time.Now().Add(6 * rtt)} // until the second attempt
		h := w.lock(w.quorum("one"))
		time.Sleep(lease)
		if n := len(multilock.Holds(h)); n != 3 || slices.Contains(w.sites[0].received(), "release") {
			w.Errorf("%d of 3 votes; the first server got %q", n, w.sites[0].received())
		}
		w.unlock(h)
	})
}

// Once the servers are known to be different, a rejected attempt does not read their run IDs.
func TestQuorum_readsRunIDsOnce(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		q := w.quorum("one")
		h := w.lock(q)
		w.wantHeld("1 2 3") // all have replied
		time.Sleep(2 * rtt)
		w.unlock(h)
		other := w.lock(w.quorum("two"))
		before := len(w.sites[0].received())
		_, err := q.TryLock(w.Context())
		want(t, err, lock.ErrNotAcquired)
		if got := w.sites[0].received()[before:]; !slices.Equal(got, []string{"acquire"}) {
			w.Errorf("the first server got %q", got)
		}
		w.unlock(other)
	})
}

// A server that has lost the lock gets further requests, with pauses between them.
func TestQuorum_paceOfRepair(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		h := w.lock(w.quorum("one", multilock.WithServerTimeout(lease/4)))
		w.sites[0].set(func() { w.sites[0].keys["q"] = entry{"other", 1, time.Now().Add(time.Hour)} })
		time.Sleep(lease) // the loss is detected
		before := len(w.sites[0].received())
		time.Sleep(20 * lease)
		if n := len(w.sites[0].received()) - before; n < 5 || n > 120 { // about one per two timeouts, each with a request for the server's identity
			w.Errorf("the first server got %d commands", n)
		}
		w.unlock(h)
	})
}

// The server at which a waiter waits grants the lock, and then no longer responds. The waiter waits for it no longer than
// for any other server.
func TestQuorum_firstServerPauses(t *testing.T) {
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
			w.sites[0].pause()
			paused := time.Now()
			h := <-held
			if took := time.Since(paused); took > lease*3/10 { // most of it to release the lock
				w.Errorf("it took %v", took)
			}
			w.sites[0].resume()
			w.unlock(h)
			time.Sleep(lease)
		}
	})
}

// withoutRaise is a lock that reports fencing, but whose holds cannot raise a token.
type withoutRaise struct{ *fake }

func (l withoutRaise) TryLock(ctx context.Context) (lock.Hold, error) {
	h, err := l.fake.TryLock(ctx)
	return struct{ lock.Hold }{h}, err
}

func TestQuorum_tokensThatCannotBeRaised(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		locks := w.locks("one")
		for i, l := range locks {
			locks[i] = withoutRaise{l.(*fake).forFenced()}
		}
		_, err := multilock.NewQuorum(locks, with(nil)...).TryLock(w.Context())
		if err == nil || !strings.Contains(err.Error(), "must implement lockimpl.Fenced") {
			w.Error(err)
		}
		time.Sleep(lease)
		w.wantHeld("")
	})
}

// Less than a tenth of the validity is left when a majority has voted.
func TestQuorum_littleValidityLeft(t *testing.T) {
	for _, late := range []bool{false, true} {
		inWorld(t, 3, func(w *world) {
			for _, s := range w.sites {
				s.wire = lease / 5 // four times that until a majority has voted
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

// The error distinguishes a server that had its time from one whose reply no longer mattered.
func TestQuorum_notWaitedFor(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		other := w.lock(w.quorum("two"))
		w.sites[2].wire = serverTimeout / 2
		_, err := w.quorum("one").TryLock(w.Context())
		if err == nil || !strings.Contains(err.Error(), "server 3: not needed: the other servers had already decided") {
			w.Error(err)
		}
		w.unlock(other)
	})
}

// An abandoned hold ends after the longest lease, or after its maximum hold time if that is earlier.
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

		start := time.Now()
		ctx, cancel = context.WithCancel(w.Context())
		h := must(w.T)(w.quorum("one", multilock.WithMaxHold(lease)).Lock(ctx))
		time.Sleep(lease / 2)
		cancel()
		time.Sleep(rtt)
		if until := h.Until().Sub(start); until > lease {
			w.Errorf("until %v", until)
		}
		time.Sleep(lease / 2)
		err = h.Unlock(w.Context())
		want(t, err, lock.ErrNotHeld, lock.ErrMaxHold)
		wantNot(t, err, lock.ErrAbandoned)
	})
}

// withoutServer is a lock on a server that does not report its run ID.
type withoutServer struct{ *fake }

func (withoutServer) Server(context.Context) (lockimpl.Server, error) { return lockimpl.Server{}, nil }

// Durable servers lose nothing. Their uptime, the length of the lease, and whether they report their run IDs do not
// matter.
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
				locks[i] = withoutServer{l.(*fake)}
			}
			for text, q := range map[string]*multilock.Quorum{
				"lease is longer than the maximum lease": long,
				"cannot read the server's run ID":        multilock.NewQuorum(locks, with(opts)...),
			} {
				h, err := q.TryLock(w.Context())
				if durable && err != nil || !durable && (err == nil || !strings.Contains(err.Error(), text)) {
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

// While requests for the lock are repeated at one server, Unlock waits only for the other servers.
func TestQuorum_unlockStopsTheRepair(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		w.sites[0].keys["q"] = entry{"other", 1, time.Now().Add(time.Hour)}
		for i := range 10 {
			h := w.lock(w.quorum("one"))
			time.Sleep(lease/10 + time.Duration(i)*time.Millisecond)
			start := time.Now()
			w.unlock(h)
			if took := time.Since(start); took > 2*rtt {
				w.Errorf("it took %v", took)
			}
		}
	})
}

// A member reaches its maximum hold time while the attempt waits for other votes. Its vote is lost, and the attempt is not.
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

// Extend of a renewed hold does not limit it.
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

// Extend with a canceled context sends nothing. On durable servers it may exceed the longest lease.
func TestQuorum_extendLimits(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		h := w.lock(w.quorum("one", multilock.WithDurableServers()))
		time.Sleep(2 * rtt)
		why := fmt.Errorf("another lock: %w: %w", lock.ErrNotHeld, lock.ErrLost)
		ended, cancel := context.WithCancelCause(w.Context())
		cancel(why)
		before := len(w.sites[0].received())
		err := h.Extend(ended, lease)
		want(t, err, context.Canceled, why)
		wantNot(t, err, lock.ErrNotHeld, lock.ErrLost)
		time.Sleep(2 * rtt)
		if got := w.sites[0].received()[before:]; len(got) != 0 {
			w.Errorf("the first server got %q", got)
		}
		soon, end := context.WithTimeout(w.Context(), rtt/2)
		defer end()
		want(t, h.Extend(redistest.Reused{Context: soon}, lease), context.Canceled) // a canceled context without an error
		if err := h.Extend(w.Context(), 2*lease); err != nil {
			w.Error(err)
		}
		w.unlock(h)
	})
}

// The leases of the members are fixed, and longer than the maximum hold time.
func TestQuorum_maxHoldBeforeItsLeases(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		locks := w.locks("one")
		for _, l := range locks {
			l.(*fake).forFixed()
		}
		h := w.lock(multilock.NewQuorum(locks, with([]multilock.Option{multilock.WithMaxHold(lease / 2)})...))
		if left := time.Until(h.Until()); left > lease/2 {
			w.Errorf("%v remain", left)
		}
		time.Sleep(lease / 2)
		want(t, h.Unlock(w.Context()), lock.ErrNotHeld, lock.ErrLost, lock.ErrMaxHold)
		time.Sleep(lease)
	})
}

// countingContext is a context that counts the functions registered on it.
type countingContext struct {
	context.Context
	done chan struct{}
	n    *atomic.Int64
}

func (c countingContext) Done() <-chan struct{} { return c.done }

func (c countingContext) AfterFunc(func()) func() bool {
	c.n.Add(1)
	return func() bool { c.n.Add(-1); return true }
}

// A hold that has ended leaves nothing in the context of the caller, which may live as long as the program.
func TestQuorum_leavesNothingInTheParent(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		ctx := countingContext{lock.ContextWithNewOwner(w.Context()), make(chan struct{}), new(atomic.Int64)}
		q := w.quorum("one")
		for range 5 {
			h := w.lockUnder(ctx, q)
			if ctx.n.Load() == 0 {
				w.Error("the hold does not check its context")
			}
			w.unlock(h)
		}
		time.Sleep(lease)
		if n := ctx.n.Load(); n != 0 {
			w.Errorf("%d functions are left", n)
		}
	})
}

// The name of a quorum of locks with different names contains all of them.
func TestNewQuorum_names(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		if name := multilock.NewQuorum([]lock.Locker{w.sites[0].lock("one", "b", lease), nil, w.sites[0].lock("one", "a", lease)}).Name(); name != "b+a" {
			w.Errorf("beside a nil: %q", name)
		}
	})
	inWorld(t, 3, func(w *world) {
		locks := w.locks("one")
		locks[1] = w.sites[1].lock("one", "p", lease)
		if name := multilock.NewQuorum(locks, with(nil)...).Name(); name != "q+p+q" {
			w.Errorf("got the name %q", name)
		}
	})
}

// permits is a semaphore.
type permits struct {
	*fake
	n int
}

func (p permits) Semaphore() (of any, permits int) { return "q", p.n }

// With several permits on each server, two quorums could each have a majority.
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

// Two renewed leases are a majority, whatever the third is. With one renewed lease, the longer of two fixed ones counts.
func TestQuorum_fixedLeasesOfSome(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		locks := w.locks("one")
		locks[1].(*fake).forFixed().lease = lease / 4
		h := w.lock(multilock.NewQuorum(locks, with(nil)...))
		time.Sleep(2 * lease)
		if err := h.Err(); err != nil {
			w.Errorf("with two renewed leases: %v", err)
		}
		w.unlock(h)
		locks = w.locks("two")
		locks[0].(*fake).forFixed()
		locks[1].(*fake).forFixed().lease = lease / 4
		h = w.lock(multilock.NewQuorum(locks, with(nil)...))
		time.Sleep(lease * 3 / 4)
		if err := h.Err(); err != nil {
			w.Errorf("with one renewed lease: %v", err)
		}
		w.unlock(h)
	})
}

// No server is reachable. A waiting caller pauses between its attempts, but not for longer than a second.
func TestQuorum_allServersUnreachable(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		for _, s := range w.sites {
			s.kill()
		}
		ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
		defer cancel()
		_, err := w.quorum("one").Lock(ctx)
		want(t, err, lock.ErrUnavailable, context.DeadlineExceeded)
		wantNot(t, err, lock.ErrNotAcquired)
		if n := len(w.sites[0].received()); n < 60 || n > 200 {
			w.Errorf("the first server got %d commands in a minute", n)
		}
	})
}

// A recently started server gets its vote while the attempt counts the votes for the last time, because the process is
// paused then. A failed attempt returns an error.
func TestQuorum_voteDuringTheCount(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		w.sites[1].restart()
		locks := w.locks("one")
		var last atomic.Bool // the last reply arrives
		locks[0] = witness{hookedLock{Locker: locks[0], before: func(context.Context, string) error {
			time.Sleep(3 * rtt) // the others have replied
			last.Store(true)
			return lock.ErrUnavailable
		}}, locks[0].(lockimpl.Witness)}
		locks[2] = witness{hookedLock{Locker: locks[2], after: func(h lock.Hold) lock.Hold { return pausing{h, &last} }}, locks[2].(lockimpl.Witness)}
		h, err := multilock.NewQuorum(locks, with(nil)...).TryLock(w.Context())
		if h != nil {
			w.Fatal("acquired without a counted majority")
		}
		want(t, err, lock.ErrUnavailable)
		wantNot(t, err, lock.ErrNotAcquired)
	})
}

// pausing is a hold whose process is paused during a check, once due.
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

// While the votes of a hold are counted, one server grants the lock and then another loses it. There was a majority at any
// time.
func TestQuorum_grantAndLossDuringTheCount(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		w.sites[2].kill()
		locks := w.locks("one")
		check := func() {}
		first := checkFirst(locks, &check)
		h := w.lock(multilock.NewQuorum(locks, with(nil)...))
		w.wantHeld("1 2")
		check = func() {
			check = func() {}
			w.sites[2].set(func() { w.sites[2].down = false })
			for !w.sites[2].has("q") {
				time.Sleep(rtt)
			}
			time.Sleep(2 * rtt) // the attempt there has ended
			for _, acquisition := range first.acquisitions {
				acquisition.end(lock.ErrLost)
			}
		}
		if err := h.Err(); err != nil {
			t.Errorf("the hold ended: %v", err)
		}
		w.unlock(h)
	})
}

// The error names the lock once, and the reason of each server without a vote.
func TestQuorum_errorText(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		for _, s := range w.sites[1:] {
			s.keys["q"] = entry{"other", 1, time.Now().Add(time.Hour)}
		}
		w.sites[0].wire = rtt / 4 // it votes before the others reject the attempt
		_, err := w.quorum("one").TryLock(w.Context())
		if got, want := fmt.Sprint(err), `leasehold: trylock "q": not acquired: 1 of 3 votes; server 2: not acquired; server 3: not acquired`; got != want {
			w.Errorf("%s\nwant\n%s", got, want)
		}
	})
}

// The context of a TryLock is canceled during the attempt, before its result is known. The error reports only that.
func TestQuorum_tryLockCanceled(t *testing.T) {
	for _, paused := range []int{1, 2} {
		inWorld(t, 3, func(w *world) {
			why := errors.New("the request went away")
			ctx, cancel := context.WithCancelCause(w.Context())
			defer cancel(nil)
			w.sites[0].keys["q"] = entry{"other", 1, time.Now().Add(time.Hour)}
			for _, s := range w.sites[3-paused:] {
				s.pause()
			}
			time.AfterFunc(serverTimeout/2, func() { cancel(why) })
			_, err := w.quorum("one").TryLock(ctx)
			want(t, err, context.Canceled, why)
			wantNot(t, err, lock.ErrNotAcquired, lock.ErrUnavailable)
			for _, s := range w.sites[3-paused:] {
				s.resume()
			}
			time.Sleep(lease)
		})
	}
}

// The error of an attempt without replies from a majority has the error of each server, and no context error.
func TestQuorum_unavailableErrorText(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		for _, s := range w.sites[1:] {
			s.kill()
		}
		w.sites[0].wire = rtt / 8 // it sends its run ID and votes before the others fail
		_, err := w.quorum("one").TryLock(w.Context())
		if got, want := fmt.Sprint(err), `leasehold: trylock "q": no usable reply from Redis: 1 of 3 votes; server 2: dial tcp: connection refused; server 3: dial tcp: connection refused`; got != want {
			w.Errorf("%s\nwant\n%s", got, want)
		}
	})
}

// One server votes, one fails permanently, and one is busy. A majority is possible, so Lock waits for longer than three
// attempts.
func TestQuorum_waitsWhileAMajorityIsPossible(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		w.sites[1].keys["q"] = entry{"other", 1, time.Now().Add(lease)}
		locks := w.locks("one")
		denied := witness{hookedLock{Locker: locks[2], before: func(context.Context, string) error { return errors.New("NOPERM") }}, locks[2].(lockimpl.Witness)}
		h, err := multilock.NewQuorum([]lock.Locker{locks[0], locks[1], denied}, with(nil)...).Lock(w.Context())
		if err != nil {
			w.Fatal(err)
		}
		w.unlock(h)
	})
}

// Each server gets the token of a grant once.
func TestQuorum_raisesOnce(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		w.sites[2].wire = rtt * 3 / 4 // it votes while the others get the token
		h := w.lock(w.fenced("one"))
		time.Sleep(serverTimeout)
		for i, s := range w.sites {
			n := 0
			for _, what := range s.received() {
				if what == "raise" {
					n++
				}
			}
			if n != 1 {
				w.Errorf("server %d got the token %d times", i, n)
			}
		}
		w.unlock(h)
	})
}

// An owner holds a quorum of other servers with the same name. Its token is unrelated.
func TestQuorum_sameNameOnOtherServers(t *testing.T) {
	inWorld(t, 6, func(w *world) {
		locks := append(w.locks("one")[:3], w.locks("another")[3:]...) // each server has its own client
		for _, l := range locks {
			l.(*fake).forFenced()
		}
		ctx := lock.ContextWithNewOwner(w.Context())
		one := w.lockUnder(ctx, multilock.NewQuorum(locks[:3], with(nil)...))
		time.Sleep(time.Second)
		two := w.lockUnder(ctx, multilock.NewQuorum(locks[3:], with(nil)...))
		if one.Token() == two.Token() || two.Token() != w.sites[5].token("q") {
			w.Errorf("got tokens %d and %d; the last server has %d", one.Token(), two.Token(), w.sites[5].token("q"))
		}
		w.unlock(two, one)
	})
}

// A TryLock with a canceled context sends nothing.
func TestQuorum_sendsNothingWhenCanceled(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		_, err := w.quorum("one").TryLock(ctx)
		want(w.T, err, context.Canceled)
		wantNot(w.T, err, lock.ErrNotAcquired, lock.ErrUnavailable)
		time.Sleep(lease)
		for i, s := range w.sites {
			if commands := s.received(); len(commands) > 0 {
				w.Errorf("server %d got %q", i, commands)
			}
		}
	})
}

// The first server grants the lock to a waiter, and then does not respond. The call returns when its context is canceled,
// and the grant is released in the background.
func TestQuorum_canceledAfterTheFirstGrant(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		other := w.lock(w.quorum("two"))
		ctx, cancel := context.WithCancel(w.Context())
		defer cancel()
		done := make(chan error)
		go func() {
			_, err := w.quorum("one").Lock(ctx)
			done <- err
		}()
		time.Sleep(20 * time.Millisecond)
		w.unlock(other)
		for !w.sites[0].has("q") {
			time.Sleep(rtt / 8)
		}
		w.sites[0].pause()
		time.Sleep(2 * rtt) // the call waits for the reply to its second command
		start := time.Now()
		cancel()
		want(t, <-done, context.Canceled)
		if took := time.Since(start); took != 0 {
			w.Errorf("the call returned %v after its context was canceled", took)
		}
		w.sites[0].resume()
		time.Sleep(lease / 10)
		w.wantHeld("")
	})
}

// slowContext is a context whose Done takes a moment once it is canceled.
type slowContext struct{ context.Context }

func (c slowContext) Done() <-chan struct{} {
	if c.Err() != nil {
		time.Sleep(time.Microsecond)
	}
	return c.Context.Done()
}

// A wait is canceled. The attempts that end with it do not replace the result of the attempt before them.
func TestQuorum_canceledAttemptsAreNoResult(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		other := w.lock(w.quorum("two"))
		locks := w.locks("one")
		for i, l := range locks {
			locks[i] = witness{hookedLock{Locker: l, before: func(ctx context.Context, _ string) error { return ctx.Err() }}, l.(lockimpl.Witness)}
		}
		for range 20 { // the last attempt ends with its replies or the cancellation, at random
			ctx, cancel := context.WithTimeout(w.Context(), 22*time.Millisecond)
			_, err := multilock.NewQuorum(locks, with(nil)...).Lock(slowContext{ctx})
			cancel()
			want(t, err, context.DeadlineExceeded, lock.ErrNotAcquired)
			wantNot(t, err, lock.ErrUnavailable)
		}
		w.unlock(other)
	})
}

// A wait is canceled before the server replies whose rejection would decide the attempt. The error is the one of the attempt
// before.
func TestQuorum_canceledBeforeTheLastRejection(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		other := w.lock(w.quorum("two"))
		w.wantHeld("1 2 3")
		w.sites[1].kill()
		ctx, cancel := context.WithCancel(w.Context())
		locks := w.locks("one")
		locks[0] = witness{hookedLock{Locker: locks[0], before: func(_ context.Context, op string) error {
			if op == "lock" { // it limits its waits
				return lock.ErrNotAcquired
			}
			return nil
		}}, locks[0].(lockimpl.Witness)}
		attempts := 0
		locks[2] = witness{hookedLock{Locker: locks[2], before: func(context.Context, string) error {
			if attempts++; attempts == 2 {
				w.sites[2].pause()
				time.AfterFunc(3*rtt, cancel)
			}
			return nil
		}}, locks[2].(lockimpl.Witness)}
		_, err := multilock.NewQuorum(locks, with(nil)...).Lock(ctx)
		want(t, err, context.Canceled, lock.ErrNotAcquired)
		wantNot(t, err, lock.ErrUnavailable)
		w.sites[2].resume()
		w.unlock(other)
	})
}

// lateContext is a context that is canceled when its Err is called after it was armed.
type lateContext struct {
	context.Context
	cancel context.CancelFunc
	armed  atomic.Bool
}

func (c *lateContext) Err() error {
	if c.armed.Load() {
		c.cancel()
	}
	return c.Context.Err()
}

// The context of a call is canceled while its last vote is counted. There is no hold, and a rejection is still part of
// the error.
func TestQuorum_canceledDuringTheCount(t *testing.T) {
	for _, c := range []struct{ refused, waits bool }{{false, false}, {true, false}, {true, true}} {
		inWorld(t, 3, func(w *world) {
			if !c.waits { // the second server decides; Lock waits for the third, too
				w.sites[2].wire = 3 * rtt
			}
			ctx := new(lateContext)
			ctx.Context, ctx.cancel = context.WithCancel(w.Context())
			defer ctx.cancel()
			locks := w.locks("one")
			for i, l := range locks[:2] {
				locks[i] = witness{hookedLock{Locker: l, before: func(context.Context, string) error {
					time.Sleep(time.Duration(i) * rtt * 5 / 2)
					if !c.refused {
						return nil
					}
					ctx.armed.Store(i == 1)
					return lock.ErrNotAcquired
				}, after: func(h lock.Hold) lock.Hold {
					ctx.armed.Store(i == 1)
					return h
				}}, l.(lockimpl.Witness)}
			}
			q := multilock.NewQuorum(locks, with(nil)...)
			call := q.TryLock
			if c.waits {
				call = q.Lock
			}
			_, err := call(ctx)
			want(t, err, context.Canceled)
			if errors.Is(err, lock.ErrNotAcquired) != c.refused {
				w.Errorf("%+v: %v", c, err)
			}
			time.Sleep(lease)
			w.wantHeld("")
		})
	}
}

// A hold is unlocked while it is about to replace a vote that was lost.
func TestQuorum_lossDuringUnlock(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		locks := w.locks("one")
		check := func() {}
		first := checkFirst(locks, &check)
		h := w.lock(multilock.NewQuorum(locks, with(nil)...))
		synctest.Wait()
		check = func() {
			check = func() {}
			w.unlock(h)
		}
		for _, acquisition := range first.acquisitions {
			acquisition.end(lock.ErrLost)
		}
		time.Sleep(lease)
		want(t, h.Err(), lock.ErrUnlocked)
		w.wantHeld("")
	})
}

// cancelingHold is a hold whose caller is canceled when its context is used for the first time.
type cancelingHold struct {
	lock.Hold
	cancel context.CancelFunc
}

func (h *cancelingHold) Context() context.Context {
	h.cancel()
	<-h.Hold.Context().Done()
	return h.Hold.Context()
}

// The context of a call is canceled when the first server has just granted the lock. The grant is released.
func TestQuorum_canceledAsTheFirstServerGrants(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		for i := range 200 {
			ctx, cancel := context.WithCancel(w.Context())
			locks := w.locks(fmt.Sprint("one", i))
			locks[0] = witness{hookedLock{Locker: locks[0], after: func(h lock.Hold) lock.Hold { return &cancelingHold{h, cancel} }}, locks[0].(lockimpl.Witness)}
			other := w.lock(w.quorum("two"))
			done := make(chan error)
			go func() {
				_, err := multilock.NewQuorum(locks, with(nil)...).Lock(ctx)
				done <- err
			}()
			time.Sleep(20 * time.Millisecond)
			w.unlock(other)
			want(t, <-done, context.Canceled)
			time.Sleep(lease / 10)
			if w.wantHeld(""); t.Failed() {
				return
			}
		}
	})
}

// The lock of the first server limits its waits, as with lock.WithWait. A waiter then pauses between its attempts.
func TestQuorum_pausesIfTheFirstServerDoesNotWait(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		for _, s := range w.sites {
			s.keys["q"] = entry{"other", 1, time.Now().Add(time.Hour)}
		}
		locks := w.locks("one")
		locks[0] = triesOnce{locks[0].(*fake)}
		ctx, cancel := context.WithTimeout(w.Context(), 10*time.Second)
		defer cancel()
		_, err := multilock.NewQuorum(locks, with(nil)...).Lock(ctx)
		want(t, err, context.DeadlineExceeded, lock.ErrNotAcquired)
		if n := len(w.sites[0].received()); n > 300 {
			w.Errorf("the first server got %d commands in ten seconds", n)
		}
	})
}

// triesOnce is a lock with lock.WithWait(0).
type triesOnce struct{ *fake }

func (l triesOnce) Lock(ctx context.Context) (lock.Hold, error) { return l.TryLock(ctx) }

// A server that started recently has no vote. If another server has lost the lock, there was no majority, and Unlock reports
// the loss.
func TestQuorum_unlockWithoutAMajority(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		w.sites[2].restart()
		h := w.lock(w.quorum("one"))
		w.wantHeld("1 2 3")
		w.sites[1].forget()
		want(t, h.Unlock(w.Context()), lock.ErrNotHeld, lock.ErrLost)
		w.wantHeld("")

		h = w.lock(w.quorum("two")) // with two votes
		w.wantHeld("1 2 3")
		w.sites[2].forget() // which has no vote
		w.unlock(h)
		w.wantHeld("")

		w.sites[2].kill()
		h = w.lock(w.quorum("three"))
		w.sites[1].forget()
		want(t, h.Unlock(w.Context()), lock.ErrNotHeld, lock.ErrLost)
	})
}

// Unlock reports that a majority failed to release. Its context was not canceled, and the error does not match that.
func TestQuorum_unlockFails(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		locks := w.locks("one")
		for i, l := range locks[:2] {
			locks[i] = witness{hookedLock{Locker: l, after: func(h lock.Hold) lock.Hold {
				return &controlledHold{Hold: h, unlock: func(context.Context) error { return errRefused }}
			}}, l.(lockimpl.Witness)}
		}
		h := w.lock(multilock.NewQuorum(locks, with(nil)...))
		w.wantHeld("1 2 3")
		err := h.Unlock(w.Context())
		want(t, err, lock.ErrUnavailable)
		wantNot(t, err, context.Canceled, lock.ErrNotHeld)
	})
}

// Unlock with a canceled context waits for a server that does not respond no longer than Unlock with any other.
func TestQuorum_unlockAfterCancellation(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		h := w.lock(w.quorum("one"))
		w.wantHeld("1 2 3")
		w.sites[2].pause()
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		start := time.Now()
		if err := h.Unlock(ctx); err != nil {
			w.Error(err)
		}
		if took := time.Since(start); took != serverTimeout {
			w.Errorf("it took %v, want the timeout of one server", took)
		}
		w.sites[2].resume()
	})
}

// Unlock waits until a grant that arrives in the meantime is released, too.
func TestQuorum_unlockWaitsForALateGrant(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		locks := w.locks("one")
		locks[2] = witness{uncancelable{locks[2]}, locks[2].(lockimpl.Witness)}
		w.sites[2].wire = 3 * rtt / 2
		h := w.lock(multilock.NewQuorum(locks, with(nil)...))
		if !w.sites[2].has("q") {
			w.Error("the third server has not granted the lock")
		}
		w.unlock(h)
		if w.sites[2].has("q") {
			w.Error("the third server still has the lock")
		}
	})
}

// A hold is unlocked while Extend has begun. Extend then sends no command.
func TestQuorum_unlockedDuringExtend(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		nothing := func() {}
		check := nothing
		locks := w.locks("one")
		checkFirst(locks, &check)
		h := w.lock(multilock.NewQuorum(locks, with(nil)...))
		w.wantHeld("1 2 3")
		checks := 0
		check = func() {
			if checks++; checks == 2 { // the first one is before Extend begins
				check = nothing
				w.unlock(h)
			}
		}
		want(t, h.Extend(w.Context(), lease), lock.ErrNotHeld)
		for _, s := range w.sites {
			if slices.Contains(s.received(), "renew") {
				w.Error("it sent a command")
			}
		}
	})
}

// unheld is a lock whose Inspect finds no owner.
type unheld struct{ withoutServer }

func (unheld) Inspect(context.Context) (lock.State, error) { return lock.State{}, nil }

// The locks are rejected, and released before a request shows who had them.
func TestQuorum_releasedBeforeInspect(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		other := w.lock(w.quorum("two"))
		w.wantHeld("1 2 3")
		locks := w.locks("one")
		for i, l := range locks {
			locks[i] = unheld{withoutServer{l.(*fake)}}
		}
		_, err := multilock.NewQuorum(locks, with([]multilock.Option{multilock.WithDurableServers()})...).TryLock(w.Context())
		want(t, err, lock.ErrNotAcquired)
		w.unlock(other)
	})
}

// One of the locks is on the server of another, and only one of the two servers is known.
func TestQuorum_oneServerIsKnown(t *testing.T) {
	for _, first := range []bool{true, false} {
		inWorld(t, 2, func(w *world) {
			locks := w.locks("one")
			known, unknown := witness{locks[0], locks[0].(lockimpl.Witness)}, withoutServer{locks[0].(*fake)}
			twice := []lock.Locker{known, unknown}
			if first {
				twice = []lock.Locker{unknown, known}
			}
			server := twice[1].(lockimpl.Witness)
			twice[1] = witness{hookedLock{Locker: twice[1], before: func(context.Context, string) error {
				time.Sleep(2 * rtt) // after the other one
				return nil
			}}, server}
			w.sites[1].kill()
			_, err := multilock.NewQuorum(append(twice, locks[1]), with([]multilock.Option{multilock.WithDurableServers()})...).TryLock(w.Context())
			if err == nil || !strings.Contains(err.Error(), "locks 1 and 2 are on the same server") {
				w.Error(err)
			}
			w.wantHeld("")
		})
	}
}

// A hold of a quorum that outlives many losses of one server keeps nothing of them.
func TestQuorum_repairFreesTheContext(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		var used []context.Context
		locks := w.locks("one")
		locks[0] = witness{hookedLock{Locker: locks[0], before: func(ctx context.Context, _ string) error {
			used = append(used, ctx)
			return nil
		}}, locks[0].(lockimpl.Witness)}
		h := w.lock(multilock.NewQuorum(locks, with(nil)...))
		w.wantHeld("1 2 3")
		w.sites[0].forget()
		time.Sleep(lease) // the loss is detected, and the lock is acquired again
		w.wantHeld("1 2 3")
		if used[0].Err() == nil || used[len(used)-1].Err() != nil {
			w.Errorf("the context of the lost hold: %v; of the next: %v", used[0].Err(), used[len(used)-1].Err())
		}
		w.unlock(h)
	})
}

// A lock that is given twice is tried again for as long as the hold lasts. The hold keeps nothing of these attempts.
func TestQuorum_duplicateFreesTheContext(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		var used []context.Context
		locks := w.locks("one")
		twice := witness{hookedLock{Locker: locks[0], before: func(ctx context.Context, _ string) error {
			used = append(used, ctx)
			time.Sleep(2 * rtt) // after the grant to the first one
			return nil
		}}, locks[0].(lockimpl.Witness)}
		h := w.lock(multilock.NewQuorum([]lock.Locker{locks[0], twice, locks[1]}, with(nil)...))
		time.Sleep(lease)
		synctest.Wait()
		alive := 0
		for _, ctx := range used {
			if ctx.Err() == nil {
				alive++
			}
		}
		if len(used) < 10 || alive > 1 { // of an attempt in progress
			w.Errorf("%d of %d contexts are not canceled", alive, len(used))
		}
		w.unlock(h)
	})
}

// A grant that comes after the timeout of its server is no vote, even if the Locker ignores that its context was canceled.
func TestQuorum_lateGrantIsNoVote(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		locks := w.locks("one")
		locks[0] = witness{uncancelable{locks[0]}, locks[0].(lockimpl.Witness)}
		w.sites[0].wire = serverTimeout/2 + time.Millisecond/2 // the attempt lasts for longer
		w.sites[1].kill()
		_, err := multilock.NewQuorum(locks, with([]multilock.Option{multilock.WithDurableServers()})...).TryLock(w.Context())
		if err == nil || !strings.Contains(err.Error(), "server 1: no vote within") {
			w.Error(err)
		}
		time.Sleep(rtt + serverTimeout)
		w.wantHeld("")
	})
}

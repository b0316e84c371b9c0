package multilock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/multilock"
	"pgregory.net/rapid"
)

// record collects the failures in a bubble for the test outside.
type record struct {
	mu    sync.Mutex
	wrong []string
}

func (r *record) add(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wrong = append(r.wrong, fmt.Sprintf(format, args...))
}

// caller acquires some locks once.
type caller struct {
	locks []int         // indexes of the locks, in the order of the arguments
	try   bool          // use TryLock
	start time.Duration // when its call starts
	end   time.Duration // when its context is canceled; 0 means never
	hold  time.Duration // how long it holds the locks
	fault map[int]fault // by lock
}

// fault is how a lock fails for a caller.
type fault int

const (
	none     fault = iota
	fails          // it fails with an error
	refuses        // rejects the first attempt
	late           // grants late
	forgets        // its server loses it after the grant
	short          // its lease is short and not renewed
	unlockly       // the first attempt of its Unlock fails
	mistakes
)

var errFault = errors.New("a mistake")

func drawCaller(t *rapid.T, locks int) (c caller) {
	ms := func(name string, most int) time.Duration {
		return time.Duration(rapid.IntRange(0, most).Draw(t, name)) * time.Millisecond
	}
	c.locks = rapid.SliceOfNDistinct(rapid.IntRange(0, locks-1), 1, locks, rapid.ID[int]).Draw(t, "locks")
	c.try = rapid.IntRange(0, 3).Draw(t, "try") == 0
	c.start, c.hold = ms("start", 20), ms("hold", 50)
	if rapid.Bool().Draw(t, "ends") {
		c.end = ms("end", 100)
	}
	c.fault = make(map[int]fault)
	for _, i := range c.locks {
		if rapid.IntRange(0, 3).Draw(t, "faulty") == 0 {
			c.fault[i] = fault(rapid.IntRange(0, int(mistakes)-1).Draw(t, "fault"))
		}
	}
	return c
}

// multi returns the caller's multi-lock. Lock i has the i-th letter as its name. With twins, two locks have the same
// name, on different servers.
func (c caller) multi(client string, all []*site, twins bool) *multilock.Lock {
	var locks []lock.Locker
	for _, i := range c.locks {
		s, name := all[i%2], string(rune('a'+i))
		if twins {
			name = string(rune('a' + i/2))
		}
		f := s.lock(client, name, lease)
		o := hookedLock{Locker: f}
		switch c.fault[i] {
		case fails:
			o.before = func(context.Context, string) error { return errFault }
		case refuses:
			refused := 0
			o.before = func(_ context.Context, op string) error {
				if refused++; op == "trylock" && refused == 1 {
					return lock.ErrNotAcquired
				}
				return nil
			}
		case late:
			o.before = func(context.Context, string) error { time.Sleep(30 * time.Millisecond); return nil }
		case forgets:
			o.after = func(h lock.Hold) lock.Hold {
				s.set(func() { delete(s.keys, name) })
				return h
			}
		case short:
			f.forFixed().lease = 20 * time.Millisecond
		case unlockly:
			o.after = func(h lock.Hold) lock.Hold {
				return &controlledHold{Hold: h, unlock: func(ctx context.Context) error {
					return errors.Join(errFault, h.Unlock(ctx))
				}}
			}
		}
		locks = append(locks, o)
	}
	return multilock.New(locks...)
}

// Several callers acquire some of a few locks, in any order and with all kinds of faults. All calls end, every hold has all
// locks or none, no two callers hold a lock at the same time, and nothing is left.
func TestMultiLock_random(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		locks := rapid.IntRange(1, 6).Draw(rt, "locks")
		twins := rapid.Bool().Draw(rt, "twins")
		callers := make([]caller, rapid.IntRange(1, 5).Draw(rt, "callers"))
		for i := range callers {
			callers[i] = drawCaller(rt, locks)
		}
		var r record
		bubble(t, func(t *testing.T) {
			all := newSites(t, 2)
			var mu sync.Mutex
			inside := make(map[int]lock.Hold)
			var wg sync.WaitGroup
			for n, c := range callers {
				wg.Go(func() {
					time.Sleep(c.start)
					ctx := t.Context()
					if c.end > 0 {
						var cancel context.CancelFunc
						ctx, cancel = context.WithTimeout(ctx, c.end)
						defer cancel()
					}
					m := c.multi(fmt.Sprint("client", n), all, twins)
					acquire := m.Lock
					if c.try {
						acquire = m.TryLock
					}
					h, err := acquire(ctx)
					if err != nil {
						if !errors.As(err, new(*lock.Error)) {
							r.add("caller %d: the error %v names no lock", n, err)
						}
						return
					}
					holds := multilock.Holds(h)
					if len(holds) != len(c.locks) {
						r.add("caller %d: %d holds of %d locks", n, len(holds), len(c.locks))
					}
					mu.Lock()
					for _, i := range c.locks {
						if other := inside[i]; other != nil && other.Err() == nil && h.Err() == nil && !c.forgets(callers, i) {
							r.add("caller %d came to lock %d while another held it", n, i)
						}
						inside[i] = h
					}
					mu.Unlock()
					time.Sleep(c.hold)
					if err := h.Err(); err == nil && h.Until().Before(time.Now()) {
						r.add("caller %d: until %v ago, and not over", n, time.Since(h.Until()))
					}
					err = h.Unlock(t.Context())
					if err != nil && !errors.Is(err, lock.ErrNotHeld) && !errors.Is(err, errFault) {
						r.add("caller %d: unlock: %v", n, err)
					}
				})
			}
			wg.Wait()
			time.Sleep(100 * time.Millisecond) // for late grants to be released
			for i, s := range all {
				for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
					if s.has(name) {
						r.add("lock %q is still held on server %d", name, i)
					}
				}
			}
		})
		if len(r.wrong) > 0 {
			rt.Fatal(strings.Join(r.wrong, "\n"))
		}
	})
}

// forgets reports whether the server of lock i loses it for one of the callers.
func (c caller) forgets(all []caller, i int) bool {
	return slices.ContainsFunc(all, func(c caller) bool { return c.fault[i] == forgets })
}

// event is a change of a server.
type event struct {
	after  time.Duration // since the previous event
	server int
	what   int
	lasts  time.Duration
}

// The tokens of a quorum grow from holder to holder while its servers restart, are down, paused and slow, and their clocks
// differ by hours, provided that each token counter survives the restarts. A reentry keeps the token, and the next hold of
// the same owner has a newer one.
func TestQuorum_tokensGrow(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.SampledFrom([]int{3, 5}).Draw(rt, "servers")
		contenders := rapid.IntRange(2, 4).Draw(rt, "contenders")
		clocks := rapid.SliceOfN(rapid.IntRange(-5, 5), n, n).Draw(rt, "clocks")
		events := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) event {
			return event{
				after:  time.Duration(rapid.IntRange(0, 400).Draw(rt, "after")) * time.Millisecond,
				server: rapid.IntRange(0, n-1).Draw(rt, "server"),
				what:   rapid.IntRange(0, 3).Draw(rt, "what"),
				lasts:  time.Duration(rapid.IntRange(0, 1500).Draw(rt, "lasts")) * time.Millisecond,
			}
		}), 1, 20).Draw(rt, "events")
		var r record
		bubble(t, func(t *testing.T) {
			w := &world{t, newSites(t, n)}
			for i, s := range w.sites {
				s.step = time.Duration(clocks[i]) * time.Hour
			}
			contendFor(w, &r, contenders, func(client string) *multilock.Quorum { return w.fenced(client) }, events)
		})
		if len(r.wrong) > 0 {
			rt.Fatal(strings.Join(r.wrong, "\n"))
		}
	})
}

// Several clients contend for a quorum while its servers restart without their data, are down, paused and slow. No two
// clients hold it at the same time.
func TestQuorum_mutualExclusion(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.SampledFrom([]int{3, 5}).Draw(rt, "servers")
		contenders := rapid.IntRange(2, 4).Draw(rt, "contenders")
		events := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) event {
			return event{
				after:  time.Duration(rapid.IntRange(0, 400).Draw(rt, "after")) * time.Millisecond,
				server: rapid.IntRange(0, n-1).Draw(rt, "server"),
				what:   rapid.IntRange(0, 3).Draw(rt, "what"),
				lasts:  time.Duration(rapid.IntRange(0, 1500).Draw(rt, "lasts")) * time.Millisecond,
			}
		}), 1, 30).Draw(rt, "events")
		var r record
		bubble(t, func(t *testing.T) { contend(t, &r, n, contenders, events) })
		if len(r.wrong) > 0 {
			rt.Fatal(strings.Join(r.wrong, "\n"))
		}
	})
}

// contend makes contenders acquire a quorum repeatedly while events happen to its n servers, and records when two of them
// hold it at the same time. It returns the number of acquisitions.
func contend(t *testing.T, r *record, n, contenders int, events []event, opts ...multilock.Option) (acquired int) {
	w := &world{t, newSites(t, n)}
	return contendFor(w, r, contenders, func(client string) *multilock.Quorum { return w.quorum(client, opts...) }, events)
}

// contendFor is contend for other quorums. If they have tokens, the tokens must grow.
func contendFor(w *world, r *record, contenders int, quorum func(client string) *multilock.Quorum, events []event) (acquired int) {
	t := w.T
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	latest := uint64(0)             // guarded by mu
	held := make(map[lock.Hold]int) // guarded by mu; the value is the client
	check := func() {
		mu.Lock()
		defer mu.Unlock()
		var by []int
		for h, i := range held {
			if h.Err() == nil {
				by = append(by, i)
			}
		}
		if len(by) > 1 {
			r.add("it is held by %v", by)
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			check()
			time.Sleep(time.Millisecond)
		}
	})
	for i := range contenders {
		q := quorum(fmt.Sprint("client", i))
		ctx := ctx
		if i%2 == 1 {
			ctx = lock.ContextWithNewOwner(ctx) // one for all its holds
		}
		wg.Go(func() {
			for round := 0; ctx.Err() == nil; round++ {
				h, err := q.Lock(ctx)
				if err != nil {
					if ctx.Err() == nil {
						r.add("lock: %v", err)
					}
					return
				}
				mu.Lock()
				held[h] = i
				acquired++
				if token := h.Token(); token != 0 && token <= latest {
					r.add("client %d has the token %d, and one before it has %d", i, token, latest)
				}
				latest = max(latest, h.Token())
				mu.Unlock()
				check()
				until := h.Until()
				if h.Token() != 0 && round%2 == 0 {
					inner, err := q.TryLock(h.Context())
					if err == nil && h.Err() == nil && inner.Token() != h.Token() {
						r.add("client %d re-entered, and its token %d became %d", i, h.Token(), inner.Token())
					}
					if err == nil {
						_ = inner.Unlock(ctx)
					}
				}
				time.Sleep(time.Duration((round*37+i*11)%200*(1+round%4)) * time.Millisecond)
				if h.Err() == nil && until.Before(time.Now()) && h.Until().Before(time.Now()) {
					r.add("until %v ago, and not over", time.Since(h.Until()))
				}
				mu.Lock()
				delete(held, h)
				mu.Unlock()
				_ = h.Unlock(ctx)
			}
		})
	}
	for _, e := range events {
		time.Sleep(e.after)
		s := w.sites[e.server]
		wg.Go(func() {
			switch e.what {
			case 0:
				s.restart()
			case 1:
				s.kill()
				time.Sleep(e.lasts)
				s.restart()
			case 2:
				s.stall(e.lasts)
			case 3:
				s.set(func() { s.wire = e.lasts / 100 })
			}
		})
	}
	time.Sleep(5 * lease)
	cancel()
	wg.Wait()
	time.Sleep(2 * lease)
	if got := w.held(); got != "" {
		r.add("it is still held on servers %q", got)
	}
	return acquired
}

// stall pauses s for d, unless it is already paused.
func (s *site) stall(d time.Duration) {
	s.mu.Lock()
	if s.resumed != nil {
		s.mu.Unlock()
		return
	}
	s.resumed = make(chan struct{})
	s.mu.Unlock()
	time.Sleep(d)
	s.resume()
}

// The delay after a restart is necessary. Without it, servers that restart without their data can form a second
// majority. A user may disable it only if the servers keep their data.
func TestQuorum_withoutMaxLeaseTwoHold(t *testing.T) {
	restarts := []event{{after: lease / 2, server: 0}, {server: 1}, {server: 2}}
	for _, guarded := range []bool{true, false} {
		var r record
		bubble(t, func(t *testing.T) {
			w := &world{t, newSites(t, 5)}
			var opts []multilock.Option
			if !guarded {
				opts = append(opts, multilock.WithDurableServers())
			}
			h := w.lock(w.quorum("one", opts...))
			for _, s := range w.sites[:3] {
				s.restart()
			}
			second, err := w.quorum("two", opts...).TryLock(t.Context())
			if h.Err() != nil {
				t.Errorf("the first holder was notified already: %v", h.Err())
			}
			if both := err == nil && second.Err() == nil; both == guarded {
				t.Errorf("guarded: %v, two holders: %v", guarded, both)
			}
			time.Sleep(lease) // the first holder is notified at its next renewal
			want(t, h.Err(), lock.ErrLost)
			if err == nil {
				w.unlock(second)
			}
		})
		acquired := 0
		bubble(t, func(t *testing.T) {
			var many []event
			for range 20 {
				many = append(many, restarts...)
			}
			var opts []multilock.Option
			if !guarded {
				opts = append(opts, multilock.WithDurableServers())
			}
			acquired = contend(t, &r, 5, 4, many, opts...)
		})
		if two := len(r.wrong) > 0; two == guarded || acquired == 0 {
			t.Errorf("guarded: %v; %d acquisitions, %d times two holders: %q", guarded, acquired, len(r.wrong), r.wrong[:min(3, len(r.wrong))])
		}
	}
}

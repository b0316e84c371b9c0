package multilock_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
)

// addrs has the addresses of three in-memory servers, for the examples.
var addrs [3]string

func TestMain(m *testing.M) {
	redistest.VerifyTestMain(redistest.WithMemory(m, &addrs[0], &addrs[1], &addrs[2]))
}

// site is an in-memory server that uses the clock of a bubble. Like a real server, it can be slow, be paused, fail, restart
// without its data, and have its clock changed.
type site struct {
	ctx context.Context // the test's context, which ends everything

	mu       sync.Mutex
	wire     time.Duration // round-trip time
	keys     map[string]entry
	starts   int // how often it has started
	up       time.Time
	down     bool
	resumed  chan struct{}     // nil while it is not paused
	replica  bool              // whether it is a replica
	denied   bool              // denies the command for the server's identity
	step     time.Duration     // how far its clock was moved
	tokens   map[string]uint64 // the token counters, which survive a restart
	commands []string          // commands received, in order
}

// entry is a lock on a site.
type entry struct {
	owner string
	count int
	end   time.Time
}

// rtt is the time of a round trip to a site.
const rtt = 2 * time.Millisecond

var sites int

// newSites returns n sites that started long ago.
func newSites(t *testing.T, n int) (all []*site) {
	for range n {
		sites++
		all = append(all, &site{ctx: t.Context(), wire: rtt / 2, keys: make(map[string]entry), tokens: make(map[string]uint64), starts: sites * 1000, up: time.Now().Add(-24 * time.Hour)})
	}
	return all
}

func (s *site) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = true
}

// restart restarts the site without its data, whether it was killed or not.
func (s *site) restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys, s.down, s.up = make(map[string]entry), false, time.Now()
	s.starts++
}

func (s *site) pause() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resumed = make(chan struct{})
}

func (s *site) resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.resumed)
	s.resumed = nil
}

func (s *site) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// token returns the highest token that the site has for name.
func (s *site) token(name string) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tokens[name]
}

// received returns the commands that the site received, in order.
func (s *site) received() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.commands)
}

// has reports whether name is locked on the site.
func (s *site) has(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.entryLocked(name).count > 0
}

func (s *site) entryLocked(name string) entry {
	e := s.keys[name]
	if !time.Now().Add(s.step).Before(e.end) {
		delete(s.keys, name)
		return entry{}
	}
	return e
}

var errRefused = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}

// do executes one command, and returns when the reply has arrived. Only the end of the test ends it
// earlier.
func (s *site) do(what string, f func(now time.Time)) error {
	s.mu.Lock()
	wire := s.wire
	s.mu.Unlock()
	s.sleep(wire)
	for {
		s.mu.Lock()
		paused := s.resumed
		if paused == nil {
			break
		}
		s.mu.Unlock()
		select {
		case <-paused:
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
	}
	s.commands = append(s.commands, what)
	down := s.down
	if !down {
		f(time.Now().Add(s.step))
	}
	s.mu.Unlock()
	s.sleep(wire)
	if down {
		return errRefused
	}
	return nil
}

// sleep sleeps, but not beyond the end of the test.
func (s *site) sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-s.ctx.Done():
	}
}

// runUntil runs f in a goroutine, and waits for it until ctx is canceled. If the caller has left by then, late is called
// with the value.
func runUntil[T any](ctx context.Context, f func() (T, error), late func(T)) (value T, err error) {
	type outcome struct {
		value T
		err   error
	}
	done, away := make(chan outcome), make(chan struct{})
	go func() {
		value, err := f()
		select {
		case done <- outcome{value, err}:
		case <-away:
			late(value)
		}
	}()
	select {
	case o := <-done:
		return o.value, o.err
	case <-ctx.Done():
		close(away)
		return value, ctx.Err()
	}
}

// fake is a lock of one client on one site. It follows the rules of package lock as far as the tests need them: one owner
// string per acquisition, late grants are released, leases are renewed, and a hold's Err compares the clocks.
type fake struct {
	s      *site
	client string
	name   string
	lease  time.Duration
	fixed  bool
	fenced bool

	mu           sync.Mutex
	number       int
	acquisitions map[uint64]*fakeAcquisition // by the owner that the context carries
}

func (s *site) lock(client, name string, lease time.Duration) *fake {
	return &fake{s: s, client: client, name: name, lease: lease, acquisitions: make(map[uint64]*fakeAcquisition)}
}

// forFixed gives the lock fixed leases.
func (f *fake) forFixed() *fake { f.fixed = true; return f }

// forFenced gives the lock a token counter.
func (f *fake) forFenced() *fake { f.fenced = true; return f }

type fakeAcquisition struct {
	f     *fake
	owner string
	token uint64

	mu     sync.Mutex
	count  int
	raised uint64
	until  time.Time
	ended  error
	holds  []*fakeHold
	stop   chan struct{} // closed with ended
}

func (f *fake) Name() string { return f.name }

func (f *fake) Config() (c lockimpl.Config) {
	if f.fixed {
		c.Lease = f.lease
	}
	c.Fencing = f.fenced
	return c
}

func (f *fake) Server(ctx context.Context) (lockimpl.Server, error) {
	return runUntil(ctx, func() (server lockimpl.Server, err error) {
		denied := false
		err = f.s.do("server", func(time.Time) {
			denied = f.s.denied
			up := time.Since(f.s.up).Truncate(time.Second)
			server = lockimpl.Server{ID: fmt.Sprint("run", f.s.starts), Since: time.Now().Add(-up), Primary: !f.s.replica}
		})
		if denied {
			return lockimpl.Server{}, errors.New("NOPERM")
		}
		return server, err
	}, func(lockimpl.Server) {})
}

func (f *fake) TryLock(ctx context.Context) (lock.Hold, error) {
	h, err := f.try(ctx)
	if err != nil {
		return nil, &lock.Error{Op: "trylock", Name: f.name, Err: err}
	}
	return h, nil
}

func (f *fake) Lock(ctx context.Context) (lock.Hold, error) {
	for {
		h, err := f.try(ctx)
		ended := ctx.Err() // ctx can be canceled at the same instant as the attempt ends
		switch {
		case err == nil:
			return h, nil
		case ended != nil && !errors.Is(err, ended):
			return nil, &lock.Error{Op: "lock", Name: f.name, Err: fmt.Errorf("%w (last attempt: %w)", ended, err)}
		case ended != nil || !errors.Is(err, lock.ErrNotAcquired) && !errors.Is(err, errRefused):
			return nil, &lock.Error{Op: "lock", Name: f.name, Err: err}
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func (f *fake) try(ctx context.Context) (*fakeHold, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%w: %w", lock.ErrNotAcquired, ctx.Err())
	}
	number, ok := lockimpl.OwnerFrom(ctx)
	if !ok {
		ctx = lock.ContextWithNewOwner(ctx)
		number, _ = lockimpl.OwnerFrom(ctx)
	}
	f.mu.Lock()
	t := f.acquisitions[number]
	first := t == nil || t.check() != nil
	if first {
		f.number++
		t = &fakeAcquisition{f: f, owner: fmt.Sprintf("%s at %p:%d", f.client, f.s, f.number), stop: make(chan struct{})}
	}
	f.mu.Unlock()

	sent := time.Now()
	granted, err := runUntil(ctx, func() (granted bool, err error) {
		err = f.s.do("acquire", func(now time.Time) {
			e := f.s.entryLocked(f.name)
			switch {
			case e.count == 0 && first:
				f.s.keys[f.name] = entry{t.owner, 1, now.Add(f.lease)}
				granted = true
				if f.fenced {
					t.token = max(f.s.tokens[f.name]+1, uint64(now.UnixMicro()))
					f.s.tokens[f.name] = t.token
				}
			case e.owner == t.owner:
				e.count++
				f.s.keys[f.name] = e
				granted = true
			}
		})
		return granted, err
	}, func(granted bool) {
		if granted {
			_ = f.s.do("take back", func(time.Time) { f.s.leaveLocked(f.name, t.owner) })
		}
	})
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, fmt.Errorf("%w: %w: %w", lock.ErrNotAcquired, err, lock.ErrUnavailable) // the command was in flight
	case err != nil:
		return nil, err
	case !granted && !first:
		t.end(lock.ErrLost)
		return nil, lock.ErrLost
	case !granted:
		return nil, lock.ErrNotAcquired
	}
	h := &fakeHold{t: t}
	h.inner, h.cancel = context.WithCancelCause(ctx)
	t.mu.Lock()
	t.count++
	t.holds = append(t.holds, h)
	if first {
		t.until = sent.Add(f.lease - f.lease/100 - 2*time.Millisecond)
	}
	t.mu.Unlock()
	if first {
		f.mu.Lock()
		f.acquisitions[number] = t
		f.mu.Unlock()
		go t.live()
	}
	return h, nil
}

func (s *site) leaveLocked(name, owner string) (was bool) {
	e := s.entryLocked(name)
	if e.owner != owner {
		return false
	}
	if e.count--; e.count == 0 {
		delete(s.keys, name)
	} else {
		s.keys[name] = e
	}
	return true
}

// live renews the lease, and ends the hold when that fails.
func (t *fakeAcquisition) live() {
	next := time.Now().Add(t.f.lease / 3)
	for {
		t.mu.Lock()
		until := t.until
		t.mu.Unlock()
		wake := until
		if !t.f.fixed && next.Before(until) {
			wake = next
		}
		timer := time.NewTimer(time.Until(wake))
		select {
		case <-timer.C:
		case <-t.stop:
			timer.Stop()
			return
		case <-t.f.s.ctx.Done():
			timer.Stop()
			return
		}
		if t.check() != nil {
			return
		}
		if wake == next {
			next = time.Now().Add(t.f.lease / 3)
			go t.renew(t.f.lease)
		}
	}
}

// renew extends the lease to d from now.
func (t *fakeAcquisition) renew(d time.Duration) error {
	sent, ours := time.Now(), false
	err := t.f.s.do("renew", func(now time.Time) {
		if e := t.f.s.entryLocked(t.f.name); e.owner == t.owner {
			if end := now.Add(d); end.After(e.end) {
				e.end = end
			}
			ours = true
			t.f.s.keys[t.f.name] = e
		}
	})
	switch {
	case err != nil:
	case !ours:
		t.end(fmt.Errorf("%w: the server no longer has it", lock.ErrLost))
		err = fmt.Errorf("%w: %w", lock.ErrNotHeld, lock.ErrLost)
	case t.check() == nil:
		t.mu.Lock()
		if until := sent.Add(d - d/100 - 2*time.Millisecond); until.After(t.until) {
			t.until = until
		}
		t.mu.Unlock()
	}
	return err
}

// check compares the lease with the clocks.
func (t *fakeAcquisition) check() error {
	t.mu.Lock()
	ended := t.ended
	late := ended == nil && !time.Now().Before(t.until)
	t.mu.Unlock()
	if late {
		ended = t.end(fmt.Errorf("%w: lease expired", lock.ErrLost))
	}
	return ended
}

func (t *fakeAcquisition) end(cause error) error {
	t.mu.Lock()
	holds := t.holds
	if t.ended == nil {
		t.ended = cause
		if now := time.Now(); now.Before(t.until) {
			t.until = now
		}
		close(t.stop)
	}
	cause = t.ended
	t.mu.Unlock()
	for _, h := range holds {
		h.end(cause)
	}
	return cause
}

type fakeHold struct {
	t      *fakeAcquisition
	inner  context.Context
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	cause error
}

func (h *fakeHold) end(cause error) (before error) {
	h.mu.Lock()
	if before = h.cause; before == nil {
		h.cause = cause
	}
	h.mu.Unlock()
	h.cancel(&lock.Error{Op: "hold", Name: h.t.f.name, Err: cause})
	return before
}

func (h *fakeHold) Extend(ctx context.Context, d time.Duration) error {
	_ = h.t.check()
	h.mu.Lock()
	ended := h.cause
	h.mu.Unlock()
	if ended != nil {
		return fmt.Errorf("%w: %w", lock.ErrNotHeld, ended)
	}
	_, err := runUntil(ctx, func() (bool, error) { return true, h.t.renew(d) }, func(bool) {})
	return err
}

func (h *fakeHold) Unlock(ctx context.Context) error {
	f, t := h.t.f, h.t
	_ = t.check()
	if before := h.end(lock.ErrUnlocked); before != nil {
		err := lock.ErrNotHeld
		if before != lock.ErrUnlocked {
			err = fmt.Errorf("%w: %w", lock.ErrNotHeld, before)
		}
		return &lock.Error{Op: "unlock", Name: f.name, Err: err}
	}
	t.mu.Lock()
	t.count--
	t.holds = slices.DeleteFunc(t.holds, func(other *fakeHold) bool { return other == h })
	last := t.count == 0
	t.mu.Unlock()
	if last {
		t.end(lock.ErrUnlocked)
	}
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	was, err := runUntil(ctx, func() (was bool, err error) {
		for start := time.Now(); ; f.s.sleep(100 * time.Millisecond) {
			err = f.s.do("release", func(time.Time) { was = f.s.leaveLocked(f.name, t.owner) })
			if err == nil || time.Since(start) > f.lease || f.s.ctx.Err() != nil {
				return was, err
			}
		}
	}, func(bool) {})
	if err == nil && !was {
		err = fmt.Errorf("%w: %w", lock.ErrNotHeld, lock.ErrLost)
	}
	if err != nil {
		return &lock.Error{Op: "unlock", Name: f.name, Err: err}
	}
	return nil
}

func (h *fakeHold) Context() context.Context { return fakeContext{h} }
func (h *fakeHold) Err() error               { return context.Cause(fakeContext{h}) }

func (h *fakeHold) Token() uint64 {
	if h.t.f.fenced {
		return h.t.token
	}
	return 7
}

func (h *fakeHold) Raised() uint64 {
	h.t.mu.Lock()
	defer h.t.mu.Unlock()
	return h.t.raised
}

func (h *fakeHold) RaiseToken(ctx context.Context, token uint64) error {
	s, name := h.t.f.s, h.t.f.name
	h.t.mu.Lock()
	h.t.raised = max(h.t.raised, token)
	h.t.mu.Unlock()
	_, err := runUntil(ctx, func() (_ bool, err error) {
		had := false
		err = s.do("raise", func(time.Time) {
			if had = s.entryLocked(name).owner == h.t.owner; had {
				s.tokens[name] = max(s.tokens[name], token)
			}
		})
		if err == nil && !had {
			err = lock.ErrLost
		}
		return had, err
	}, func(bool) {})
	return err
}

func (h *fakeHold) Owner() string { return h.t.owner }

func (h *fakeHold) Until() time.Time {
	_ = h.t.check()
	h.t.mu.Lock()
	defer h.t.mu.Unlock()
	return h.t.until
}

type fakeContext struct{ h *fakeHold }

func (c fakeContext) Deadline() (time.Time, bool) { return c.h.inner.Deadline() }
func (c fakeContext) Done() <-chan struct{}       { return c.h.inner.Done() }
func (c fakeContext) Err() error                  { _ = c.h.t.check(); return c.h.inner.Err() }
func (c fakeContext) Value(key any) any           { _ = c.h.t.check(); return c.h.inner.Value(key) }

// hookedLock is a lock with functions that run before and after an attempt.
type hookedLock struct {
	lock.Locker
	before func(ctx context.Context, op string) error // if it returns nil, the attempt of the lock follows
	after  func(h lock.Hold) lock.Hold
	ahead  bool // other callers of the process wait for it
}

func (o hookedLock) acquire(ctx context.Context, op string, f func(context.Context) (lock.Hold, error)) (lock.Hold, error) {
	if o.before != nil {
		if err := o.before(ctx, op); err != nil {
			return nil, err
		}
	}
	h, err := f(ctx)
	if err == nil && o.after != nil {
		h = o.after(h)
	}
	return h, err
}

func (o hookedLock) Lock(ctx context.Context) (lock.Hold, error) {
	return o.acquire(ctx, "lock", o.Locker.Lock)
}

func (o hookedLock) TryLock(ctx context.Context) (lock.Hold, error) {
	return o.acquire(ctx, "trylock", o.Locker.TryLock)
}

// controlledHold is a hold whose state is set by the test, as in a process whose timers have not fired yet.
type controlledHold struct {
	lock.Hold
	mu     sync.Mutex
	err    error
	until  time.Time
	unlock func(context.Context) error
}

func (p *controlledHold) endWith(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err, p.until = err, time.Now()
}

func (p *controlledHold) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return p.err
	}
	return p.Hold.Err()
}

func (p *controlledHold) Until() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.until.IsZero() {
		return p.until
	}
	return p.Hold.Until()
}

func (p *controlledHold) Unlock(ctx context.Context) error {
	if p.unlock != nil {
		if err := p.unlock(ctx); err != nil {
			return err
		}
	}
	return p.Hold.Unlock(ctx)
}

// bubble runs f with virtual time.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

// must returns h if err is nil.
func must(t *testing.T) func(h lock.Hold, err error) lock.Hold {
	return func(h lock.Hold, err error) lock.Hold {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
}

// want fails the test unless err matches all targets.
func want(t *testing.T, err error, targets ...error) {
	t.Helper()
	for _, target := range targets {
		if !errors.Is(err, target) {
			t.Errorf("the error is %q, want one that matches %q", err, target)
		}
	}
}

// wantNot fails the test if err matches one of targets.
func wantNot(t *testing.T, err error, targets ...error) {
	t.Helper()
	for _, target := range targets {
		if errors.Is(err, target) {
			t.Errorf("the error %q matches %q", err, target)
		}
	}
}

// free fails the test if a lock called name is held on any of the sites.
func free(t *testing.T, all []*site, names ...string) {
	t.Helper()
	synctest.Wait()
	for i, s := range all {
		for _, name := range names {
			if s.has(name) {
				t.Errorf("%q is still held on server %d", name, i+1)
			}
		}
	}
}

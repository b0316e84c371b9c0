package semaphore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"

	"github.com/leasehold-go/leasehold/internal/command"
	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/lockstate"
	"github.com/leasehold-go/leasehold/internal/session"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
	"github.com/leasehold-go/leasehold/luascripts"
	"github.com/redis/rueidis"
)

var (
	// ErrPermitCount is returned when the semaphore in Redis has a different number of permits than
	// the handle. It is also returned when it has fewer than the call requests, so that the call would
	// wait indefinitely. [Semaphore.Resize] changes the number, and a handle with 0 permits accepts any.
	ErrPermitCount = errors.New("permit count mismatch")

	// ErrNotInitialized is returned by a handle without a number of permits when there is no semaphore
	// of this name in Redis.
	ErrNotInitialized = errors.New("not initialized")
)

// MaxPermitsPerHold is the maximum number of permits of one hold.
const MaxPermitsPerHold = luascripts.MaxPermitsPerHold

// MaxPermits is the maximum number of permits of a semaphore, the same as Redisson's.
const MaxPermits = math.MaxInt32

var kind = &session.Kind{
	Name:             "semaphore",
	DisplayName:      "a semaphore",
	Mode:             lock.Permit,
	WaitPolicy:       lockstate.RedisQueue,
	HasWaiterTimeout: true,
	NonReentrant:     true,
	Scripts: session.Scripts{
		Keys:    keys.Semaphore,
		Acquire: acquire,
		Release: luascripts.ReleaseSemaphore,
		Renew:   luascripts.RenewSemaphore,
		Keep:    luascripts.KeepSemaphore,
	},
}

// Semaphore is a handle of one semaphore. It is safe for concurrent use. It holds no resources and
// need not be closed.
type Semaphore struct{ one part }

var (
	_ lockimpl.Witness    = (*Semaphore)(nil)
	_ lockimpl.Configured = (*Semaphore)(nil)
	_ lockimpl.Counted    = (*Semaphore)(nil)
	_ lockimpl.Counted    = (*part)(nil)
)

// New is for package client. Use client.Client.NewSemaphore.
func New(s *session.Session, name string, permits int, opts ...lock.Option) *Semaphore {
	all := &all{session: s, name: name, opts: opts, resizing: make(chan struct{}, 1)}
	all.permits.Store(int64(permits))
	return &Semaphore{part{all: all, n: 1}}
}

// all is shared by all handles that N returns for one semaphore.
type all struct {
	session  *session.Session // set once
	name     string           // set once
	opts     []lock.Option    // set once
	permits  atomic.Int64     // the total number that the handle is configured with, or 0; changed by Resize
	resizing chan struct{}    // cap 1: full while a Resize is running
}

// part is a lock.Locker that acquires n permits, all or none.
type part struct {
	*all
	n    int                  // set once
	made atomic.Pointer[made] // the latest
}

// made is a spec, and the total number of permits that it is for.
type made struct {
	permits int64
	spec    *session.Spec
}

// spec returns the spec for the current total number of permits.
func (p *part) spec() *session.Spec {
	permits := p.permits.Load()
	if m := p.made.Load(); m != nil && m.permits == permits {
		return m.spec
	}
	spec := p.session.NewSpec(kind, p.name, p.opts)
	if spec.Err == nil {
		spec.Err = check(permits, p.n)
	}
	spec.Keys.Total, spec.Keys.Permits = int(permits), p.n
	spec.Again = func(ctx context.Context, err error) *session.Spec { return p.again(ctx, permits, err) }
	p.made.Store(&made{permits, spec})
	return spec
}

// check returns an error if a handle with this total number of permits cannot acquire n.
func check(permits int64, n int) error {
	switch {
	case permits < 0 || permits > MaxPermits:
		return fmt.Errorf("%d permits: must be from 1 to %d, or 0 for the existing count", permits, MaxPermits)
	case n < 1 || n > MaxPermitsPerHold:
		return fmt.Errorf("%d permits for one hold: must be from 1 to %d", n, MaxPermitsPerHold)
	case permits > 0 && int64(n) > permits:
		return fmt.Errorf("%w: call wants %d, semaphore has %d", ErrPermitCount, n, permits)
	}
	return nil
}

// acquire implements session.Scripts.Acquire. It converts a mismatch of the permit count to an error of this package,
// which ends the wait.
func acquire(ctx context.Context, rdb rueidis.Client, k luascripts.Keys, q luascripts.Request) (luascripts.Acquired, error) {
	a, err := luascripts.AcquireSemaphore(ctx, rdb, k, q)
	if err == nil {
		return a, nil
	}
	var other *luascripts.TotalError
	switch {
	case !errors.As(err, &other):
		return a, err
	case other.Absent:
		return a, command.Final{Err: fmt.Errorf("%w: %w; give the handle a permit count to create it", ErrNotInitialized, err)}
	case int64(k.Total) > other.Stored:
		return a, command.Final{Err: fmt.Errorf("%w: %w, handle wants %d; %s%s", ErrPermitCount, err, k.Total, change, withoutLeases)}
	case k.Total > 0:
		return a, command.Final{Err: fmt.Errorf("%w: %w, handle wants %d; %s", ErrPermitCount, err, k.Total, change)}
	default:
		return a, command.Final{Err: fmt.Errorf("%w: %w, call wants %d%s", ErrPermitCount, err, k.Permits, withoutLeases)}
	}
}

// change suggests how to fix a different permit count.
const change = "call Resize to change the count, or use a handle with 0 permits for any count"

// withoutLeases names another possible cause of too few permits. Held permits of Redisson's RSemaphore leave no other
// trace.
const withoutLeases = "; if Java uses an RSemaphore of this name, which has no leases, use getPermitExpirableSemaphore there"

func (p *part) Name() string { return p.name }

func (p *part) Lock(ctx context.Context) (lock.Hold, error) { return p.session.Lock(ctx, p.spec()) }

func (p *part) TryLock(ctx context.Context) (lock.Hold, error) {
	return p.session.TryLock(ctx, p.spec())
}

// again implements session.Spec.Again, for a spec that was made for this total number of permits. It retries if the permit
// count did not match because of a concurrent Resize of this handle.
func (p *part) again(ctx context.Context, permits int64, err error) *session.Spec {
	if !errors.Is(err, ErrPermitCount) {
		return nil
	}
	select {
	case p.resizing <- struct{}{}: // waits until a running Resize has updated permits
		<-p.resizing
	case <-ctx.Done():
		if len(p.resizing) > 0 {
			return p.spec() // it is unknown whether the count would match
		}
	}
	if p.permits.Load() == permits {
		return nil
	}
	return p.spec()
}

func (p *part) Config() lockimpl.Config { return p.spec().Config }

func (p *part) Semaphore() (of any, permits int) {
	type object struct {
		session *session.Session
		name    string
	}
	return object{p.session, p.name}, int(p.permits.Load())
}

func (p *part) Server(ctx context.Context) (lockimpl.Server, error) {
	return p.session.Server(ctx, p.spec())
}

// Name returns the name as the caller gave it.
func (s *Semaphore) Name() string { return s.one.Name() }

// Lock waits until it has acquired a permit or ctx is canceled. Callers are served in the order in
// which their requests reach the server, across all processes. There is no reentry. A Lock under
// the context of a hold acquires another permit. If ctx already carries the owner of a lock, the
// context of the new hold carries it too.
//
// If there is no semaphore of this name, the call creates it with the handle's number of permits. A
// handle with 0 permits fails with [ErrNotInitialized] instead. If the semaphore has a different
// number of permits, Lock fails with [ErrPermitCount]. Lock returns both errors without waiting. A handle
// with 0 permits waits while the semaphore has none, as after Redisson's setPermits(0). If ctx is
// canceled first, the call leaves the queue immediately. Other errors are those of a plain lock.
//
// Lock requires one round trip if a permit is free, and otherwise two and a notification. All
// waiters of this process share one heartbeat per second.
func (s *Semaphore) Lock(ctx context.Context) (lock.Hold, error) { return s.one.Lock(ctx) }

// TryLock makes one attempt. It neither enters the queue nor overtakes a waiter. It fails with
// lock.ErrNotAcquired if no permit is left for it after all living waiters in the queue, or if there
// are more than 100 of them. Otherwise it returns the same errors as Lock.
func (s *Semaphore) TryLock(ctx context.Context) (lock.Hold, error) { return s.one.TryLock(ctx) }

// N returns a handle that acquires n permits for one hold, all or none. The number n must be at
// least 1. It must be at most [MaxPermitsPerHold], and at most the number of permits of the
// semaphore. A call that waits for many permits blocks every call queued behind it, even smaller
// ones. Otherwise it might never succeed.
func (s *Semaphore) N(n int) lock.Locker { return &part{all: s.one.all, n: n} }

// Resize sets the total number of permits, and creates the semaphore if there is none. Permits that
// are held stay held. If more are held than there are now, none is granted until enough are
// released.
//
// This handle, and the handles that its N returned, use the new number from then on. Their waiting
// callers retry and move behind the callers that already wait. Handles with a different number fail
// with [ErrPermitCount], and so do their waiting callers, within a second.
//
// Resize requires two round trips, and is retried within the operation timeout. After an error,
// Redis may have the new number while this handle has the old one. Call Resize again in this case.
//
// A delayed duplicate of the command does not undo a newer call, because each copy may run for at
// most one second. If a connection broke, Resize returns when that time has passed. If ctx is
// canceled before, a copy can still run within that second.
func (s *Semaphore) Resize(ctx context.Context, permits int) error {
	const op = "resize"
	if permits < 1 || permits > MaxPermits {
		return &lock.Error{Op: op, Name: s.one.name, Err: fmt.Errorf("%d permits: must be from 1 to %d", permits, MaxPermits)}
	}
	select {
	case s.one.resizing <- struct{}{}: // one at a time, so that permits is the number that the last Resize set
		defer func() { <-s.one.resizing }()
	case <-ctx.Done():
		return &lock.Error{Op: op, Name: s.one.name, Err: command.Ended(ctx, 0)}
	}
	copies := s.one.session.Dated()
	_, err := session.Ask(ctx, s.one.session, s.one.spec(), op, func(sent context.Context, rdb rueidis.Client, k luascripts.Keys) (struct{}, error) {
		return struct{}{}, copies.Send(ctx, func(before int64) (int64, error) {
			verdict, now, err := luascripts.ResizeSemaphore(sent, rdb, k, permits, before)
			return now, command.Foreign(verdict, err)
		})
	})
	if err == nil {
		s.one.permits.Store(int64(permits))
	}
	copies.Over(ctx)
	return err
}

// Config returns the options of the handle.
func (s *Semaphore) Config() lockimpl.Config { return s.one.Config() }

// Server returns the identity and start time of the server that stores the semaphore. It needs
// permission for INFO.
func (s *Semaphore) Server(ctx context.Context) (lockimpl.Server, error) { return s.one.Server(ctx) }

// Semaphore returns the identity of the semaphore and its number of permits. Package multilock uses
// it.
func (s *Semaphore) Semaphore() (of any, permits int) { return s.one.Semaphore() }

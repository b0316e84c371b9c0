// Package reentrant is the plain lock: one owner at a time, with a count, so that
// the owner may take it again. client.Client.NewLock makes one.
//
// # Protocol
//
// In Redis a lock is one hash, <name>: owner -> hold count, that expires with
// the lease. It is Redisson's RLock, byte for byte, and excludes Java services
// that use it.
//
//	acquire  free, or ours: set our count, lengthen the lease
//	         another's: answer what is left of its lease
//	release  ours: set our count; at zero, grant the lock to the first in line, or delete our field and publish a hint
//	renew    ours: lengthen the lease; never bring a key back
//
// A waiter asks, listens on redisson_lock__channel:{<name>}, and asks again
// when it listens, at each message, when the other owner's lease runs out, and once a
// poll interval. Inside a process waiters are served in the order of their arrival,
// and only the first asks.
//
// A lock with waiters is handed off: it does not become free in between. Inside a process
// a hand-off needs no command, up to 64 times in a row or for 10 ms. Then the release grants the lock to the
// first process in line: it writes that process's owner into the hash, and publishes a
// hint at leasehold_channel:{<name>}:<uuid>. The process asks, and the
// answer says that it holds the lock; the message itself grants nothing. A process
// whose question is refused stands in line, in a field of the hash, leasehold_line. A dead process that
// is granted the lock delays the others by three seconds at the most.
//
// Waiters of Redisson and callers of TryLock stand in no line. The lock is freed
// for them now and then: after four grants in a row if a client listens that knows of no line, after 16 if the
// server cannot tell, and otherwise after 64 and a second; never before each process in line had one.
// Our own waiters do not ask for the lock in the next five milliseconds.
//
// Scripts are told the count that must result, so a repeated call changes
// nothing. Each acquisition has a new owner string, so a late copy of an earlier
// command is about an owner that no longer holds the lock.
//
// # Where it differs from Redisson
//
//   - A re-entry never shortens the lease, and a partial release does not change it.
//   - A release deletes the owner's field, not the key.
//   - There is no unlock latch: the count tells a repeated release.
//   - A holder is told when it has lost the lock.
//   - While processes wait, the hash has one more field, which Redisson does not read.
package reentrant

import (
	"context"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/place"
	"github.com/leasehold-go/leasehold/internal/session"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
	"github.com/leasehold-go/leasehold/luascripts"
)

var kind = &session.Kind{
	Name:   "plain",
	Called: "a plain lock",
	Mark:   luascripts.PlainMark,
	Mode:   lock.Exclusive,
	Waits:  place.FirstAsks,
	Joins:  true,
	Scripts: session.Scripts{
		Keys:    keys.Plain,
		Acquire: luascripts.AcquireReentrant,
		Release: luascripts.ReleaseReentrant,
		Pass:    luascripts.PassReentrant,
		Renew:   luascripts.RenewReentrant,
		Retain:  luascripts.RetainReentrant,
	},
}

// Lock is a handle of one lock. It is safe for concurrent use; goroutines that
// share it exclude each other. It has no resources and need not be closed.
type Lock struct {
	session *session.Session
	spec    *session.Spec
}

var (
	_ lockimpl.Witness    = (*Lock)(nil)
	_ lockimpl.Configured = (*Lock)(nil)
)

// New is for package client; use client.Client.NewLock.
func New(s *session.Session, name string, opts ...lock.Option) *Lock {
	return &Lock{session: s, spec: s.NewSpec(kind, name, opts)}
}

// Name returns the name as it was given.
func (l *Lock) Name() string { return l.spec.Name }

// Lock waits until the lock is held or ctx ends. Under a context that carries
// an owner that holds the lock already, it re-enters at once.
//
// When ctx ends first, the error matches ctx.Err(). It also matches lock.ErrNotAcquired if another owner
// has the lock, or lock.ErrUnavailable and the last error if Redis failed to reply; it matches neither if
// ctx ended before any reply. The hold's context is under ctx: to
// limit only the waiting, use lock.WithWait.
//
// The error matches lock.ErrClosed when the client closes, lock.ErrLost when it
// would have re-entered a lock that was lost, lock.ErrBadName and lock.ErrForeignKey
// when the name or the key is not that of a lock. An error reply that waiting
// will not change, such as a denied command, is returned at once. After a reply that
// can pass, such as one about full memory, Lock retries: docs/reference/errors.md lists all
// replies. After an error nothing of this call is left in Redis: at once if the server answers, and otherwise a round trip
// after it answers again, but no longer than the lease.
//
// It costs one round trip when the lock is free.
func (l *Lock) Lock(ctx context.Context) (lock.Hold, error) {
	return l.session.Lock(ctx, l.spec)
}

// TryLock makes one attempt. It fails with lock.ErrNotAcquired when another
// owner holds the lock, or when another caller of this process is ahead in
// its line. If Redis is unavailable, it retries for up to the client's operation timeout,
// or fails at once where waiting that long cannot help, such as with full memory or where nothing
// listens at the address. The error then matches lock.ErrUnavailable, and also
// os.ErrDeadlineExceeded if no reply came in time. Other errors are as those of Lock.
func (l *Lock) TryLock(ctx context.Context) (lock.Hold, error) {
	return l.session.TryLock(ctx, l.spec)
}

// Inspect returns one consistent snapshot of the lock as it stands in Redis.
// Its waiters are the processes in line: Redis does not know the waiters inside a process.
func (l *Lock) Inspect(ctx context.Context) (lock.State, error) {
	return session.Inspect(ctx, l.session, l.spec, luascripts.InspectReentrant)
}

// ForceUnlock frees the lock, whichever owner holds it, and reports whether an owner did.
// It wakes the waiters. A holder of this client learns of the loss at once, and so does one of another client that listens
// (see admin.Admin.Unlock); any other learns of it at its next renewal at the latest. Until then two owners may believe that they hold
// the lock. It is for operators. The cause of the loss matches lock.ErrForced.
//
// The command is sent once: when its outcome is not known, the caller has to look.
func (l *Lock) ForceUnlock(ctx context.Context) (bool, error) {
	return l.session.Force(ctx, l.spec, luascripts.ForceReentrant)
}

// Config returns what the options of the handle say.
func (l *Lock) Config() lockimpl.Config { return l.spec.Config }

// Server asks the server that has the lock which one it is, and since when it has
// been running. It needs the right to INFO.
func (l *Lock) Server(ctx context.Context) (lockimpl.Server, error) {
	return l.session.Server(ctx, l.spec)
}

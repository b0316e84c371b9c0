// Package reentrant is the plain lock: one owner at a time, counted, so that
// the owner may take it again. Make one with client.Client.NewLock.
//
// # Protocol
//
// In Redis a lock is one hash, <name>: owner -> hold count, that expires with
// the lease. It is Redisson's RLock, byte for byte, and excludes Java services
// that use it.
//
//	acquire  free, or ours: set our count, lengthen the lease
//	         another's: answer what is left of its lease
//	release  ours: set our count; at none, give it to the first in line, or delete our field and publish a hint
//	renew    ours: lengthen the lease; never bring a key back
//
// A waiter asks, listens on redisson_lock__channel:{<name>}, and asks again
// when it listens, at each message, when the other's lease runs out, and once a
// poll interval. Inside a process waiters are served first come first served,
// and only the first asks.
//
// A lock that somebody waits for is passed on, not let go. Inside a process that
// needs no command, for 64 times in a row or 10 ms. Then the release gives it to the
// first process in line: it writes that process's owner into the hash, and publishes a
// reason to ask at leasehold_channel:{<name>}:<uuid>. The process asks, and the
// answer says that it holds the lock; the message itself grants nothing. A process
// whose question is refused stands in line, in a field of the hash, leasehold_line. A process that
// is given the lock and is dead costs the others three seconds at the most.
//
// Waiters of Redisson and callers that only try stand in no line. The lock is let go
// for them: after four such grants when somebody listens who stands in no line, else
// after 64 and a second. Our own waiters do not ask for it in the next five milliseconds.
//
// Scripts are told the count that must result, so a repeated call changes
// nothing. Each time an owner comes to hold the lock afresh, it does so under a
// new owner string; a late copy of an earlier command is about a stranger.
//
// # Where it differs from Redisson
//
//   - A re-entry never shortens the lease, and a partial release leaves it be.
//   - A release deletes the owner's field, not the key.
//   - There is no unlock latch: a repeated release is known by its count.
//   - A holder is told when it lost the lock.
//   - The hash has one field more while processes wait. Redisson does not look at it.
package reentrant

import (
	"context"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/place"
	"github.com/leasehold-go/leasehold/internal/session"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/luascripts"
)

var kind = &session.Kind{
	Mode:    lock.Exclusive,
	Waits:   place.FirstAsks,
	Keys:    keys.Plain,
	Acquire: luascripts.AcquireReentrant,
	Release: luascripts.ReleaseReentrant,
	Pass:    luascripts.PassReentrant,
	Renew:   luascripts.RenewReentrant,
}

// Lock is a handle of one lock. It is safe for concurrent use; goroutines that
// share it exclude each other. It holds nothing and need not be closed.
type Lock struct {
	session *session.Session
	spec    *session.Spec
}

var (
	_ lock.Witness    = (*Lock)(nil)
	_ lock.Configured = (*Lock)(nil)
)

// New is for package client; use client.Client.NewLock.
func New(s *session.Session, name string, opts ...lock.Option) *Lock {
	return &Lock{session: s, spec: s.NewSpec(kind, name, opts)}
}

// Name returns the name as it was given.
func (l *Lock) Name() string { return l.spec.Name }

// Lock waits until the lock is held or ctx ends. Under a context that carries
// an owner who holds the lock already, it re-enters at once.
//
// When ctx ends first, the error matches lock.ErrNotAcquired and ctx.Err(), and
// what Redis said last if it gave no answer. The hold's context is under ctx: to
// limit only the waiting, use lock.WithWait.
//
// The error matches lock.ErrClosed when the client closes, lock.ErrLost when it
// would have re-entered a lock that is gone, lock.ErrName and lock.ErrForeignKey
// when the name or the key is not that of a lock. An answer from Redis that
// waiting will not change, such as a denied command or full memory, is returned
// at once. After an error nothing of this call is left in Redis: at once if the server answers, and else a round trip
// after it answers again, but no longer than the lease.
//
// It costs one round trip when the lock is free.
func (l *Lock) Lock(ctx context.Context) (lock.Hold, error) {
	return l.session.Lock(ctx, l.spec)
}

// TryLock makes one attempt. It fails with lock.ErrNotAcquired when another
// owner holds the lock, or when another caller of this process is ahead in
// asking for it; and as Lock does otherwise. When Redis does not answer within
// the client's operation time-out, the error matches os.ErrDeadlineExceeded.
func (l *Lock) TryLock(ctx context.Context) (lock.Hold, error) {
	return l.session.TryLock(ctx, l.spec)
}

// Inspect returns one consistent snapshot of the lock as it stands in Redis.
// It lists no waiters: of those of a plain lock Redis knows the processes only.
func (l *Lock) Inspect(ctx context.Context) (lock.State, error) {
	return session.Inspect(ctx, l.session, l.spec, luascripts.InspectReentrant)
}

// ForceUnlock frees the lock whoever holds it, and reports whether anybody did.
// Waiters are woken. A holder of this client learns of it at once, any other at
// its next renewal at the latest; until then two may believe they hold it. It
// is for operators.
//
// It is sent once: when the outcome is not known, it is for the caller to look.
func (l *Lock) ForceUnlock(ctx context.Context) (bool, error) {
	return l.session.Force(ctx, l.spec, luascripts.ForceReentrant)
}

// Config returns what the options of the handle say.
func (l *Lock) Config() lock.Config { return l.spec.Config }

// Server asks the server that has the lock which one it is, and since when it has
// been running. It needs the right to INFO.
func (l *Lock) Server(ctx context.Context) (lock.Server, error) {
	return l.session.Server(ctx, l.spec)
}

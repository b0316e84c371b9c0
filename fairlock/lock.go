// Package fairlock is the fair lock: one owner at a time, counted, served in the
// order in which they asked, across all processes. Make one with
// client.Client.NewFairLock.
//
// # Protocol
//
// In Redis a fair lock is a hash like that of a plain lock, and beside it a queue
// of waiting owners. It is Redisson's RFairLock, byte for byte.
//
//	<name>                           hash  owner -> hold count; expires with the lease
//	redisson_lock_queue:{<name>}     list  waiting owners, first come first
//	redisson_lock_timeout:{<name>}   zset  waiting owner -> server's ms until which it counts as alive
//
//	acquire  free, and nobody alive is before us: leave the queue, set our count
//	         ours: set our count, lengthen the lease
//	         else: stand in line, if we do not yet
//	keep     the heartbeat: our waiters are alive; tell whose turn it is
//	release  ours: set our count; at none, delete our field
//	         leave the queue; if the lock is free now, tell the first who is alive
//	renew    as a plain lock
//
// Each of them drops the dead that it meets at the head of the queue, a hundred with
// each script.
//
// A waiter asks once, which puts it in line in the order in which the server heard of it.
// All waiters of a client listen at redisson_lock__channel:{<name>}:<client uuid>:fair.
// Only the first in line is told of a release, by its number; then it asks, and has the
// lock. Where a waiter of Redisson has the lock or stands before ours, ours also listens
// at redisson_lock__channel:{<name>}:<owner>, where Redisson tells it. Each process sends
// one heartbeat for all its waiters of a lock, every third of their patience and once a
// second at least; the answer says whose turn it is, so that a lost message costs a
// second. A waiter whose context ends, or whose client closes, leaves the queue at once.
//
// A waiter that is not heard from for its patience, by the server's clock, counts as
// dead. Heartbeats go on in parallel, so the time that several dead cost is one
// patience ([lock.WithPatience], 5 s if not set), not their sum. The waiters of a process
// that was frozen for longer stand in line anew. The queue of a lock that nobody asks
// for any more is gone an hour after the last of its waiters died; one in which a waiter
// of Redisson stands has no expiry, as Redisson would not lengthen it.
//
// # Where it differs from Redisson
//
//   - Deadlines are counted by the server's clock, from the last heartbeat. A
//     waiter of Redisson never renews its own, which begins 300 s after that of
//     its predecessor. Behind one of those, ours are set so that they are right
//     when it has been served and has taken its 300 s off everybody's.
//   - Behind a dead head, waiters sleep until its deadline instead of asking in
//     a loop; and the next is told at once when it is dropped.
//   - Waiters that give up for any reason leave the queue.
//   - Unlocking a lock that is not held fails, also when it is free.
//   - A head without a deadline, as after a DEL by hand, is given one.
//
// A waiter of Redisson that died keeps others waiting for as long as Redisson
// lets it, whoever asks.
package fairlock

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
	Waits:   place.QueueInRedis,
	Keys:    keys.Fair,
	Acquire: luascripts.AcquireFair,
	Release: luascripts.ReleaseFair,
	Renew:   luascripts.RenewReentrant, // once held, it is a hash as any
	Queues:  true,
	Keep:    luascripts.KeepFair,
}

// Lock is a handle of one fair lock. It is safe for concurrent use; goroutines
// that share it exclude each other, in the order in which they came. It holds
// nothing and need not be closed.
type Lock struct {
	session *session.Session
	spec    *session.Spec
}

var (
	_ lock.Witness    = (*Lock)(nil)
	_ lock.Configured = (*Lock)(nil)
)

// New is for package client; use client.Client.NewFairLock.
func New(s *session.Session, name string, opts ...lock.Option) *Lock {
	return &Lock{session: s, spec: s.NewSpec(kind, name, opts)}
}

// Name returns the name as it was given.
func (l *Lock) Name() string { return l.spec.Name }

// Lock stands in line until the lock is held or ctx ends. Under a context that
// carries an owner who holds the lock already, it re-enters at once.
//
// Whoever's question reached the server before another's was sent is served
// before it. When ctx ends first, the error matches lock.ErrNotAcquired and
// ctx.Err(), and what Redis said last if it gave no answer; the place in the
// queue is given up at once, and if Redis does not answer, it is lost when the
// patience of [lock.WithPatience] ends. Else errors are as those of a plain lock.
//
// It costs one round trip when the lock is free and nobody waits, and else two
// and a message; and one heartbeat a second for all waiters of this process.
func (l *Lock) Lock(ctx context.Context) (lock.Hold, error) {
	return l.session.Lock(ctx, l.spec)
}

// TryLock makes one attempt. It neither stands in line nor overtakes: it fails
// with lock.ErrNotAcquired when another owner holds the lock, or when one who is
// alive waits for it. It leaves nothing in Redis. When Redis does not answer
// within the client's operation time-out, the error matches os.ErrDeadlineExceeded.
func (l *Lock) TryLock(ctx context.Context) (lock.Hold, error) {
	return l.session.TryLock(ctx, l.spec)
}

// Inspect returns a snapshot of the lock and its queue as they stand in Redis. It is
// one consistent snapshot of a queue of up to 100 waiters. A longer queue is read in
// parts, so that the server is not kept busy, and a waiter that comes or goes meanwhile
// may be missing. The patience of a waiter is what is left of it: after that it counts
// as dead if it is not heard from. Waiters with no patience left are dead, but have not
// been dropped yet. When the key holds something else, the error matches
// lock.ErrForeignKey.
func (l *Lock) Inspect(ctx context.Context) (lock.State, error) {
	return session.Inspect(ctx, l.session, l.spec, luascripts.InspectFair)
}

// ForceUnlock frees the lock whoever holds it, and reports whether anybody did.
// The queue stays as it is, and its first is told. A holder of this client learns
// of it at once, any other at its next renewal at the latest; until then two may
// believe they hold it. It is for operators.
//
// It is sent once: when the outcome is not known, it is for the caller to look.
func (l *Lock) ForceUnlock(ctx context.Context) (bool, error) {
	return l.session.Force(ctx, l.spec, luascripts.ForceFair)
}

// Config returns what the options of the handle say.
func (l *Lock) Config() lock.Config { return l.spec.Config }

// Server asks the server that has the lock which one it is, and since when it has
// been running. It needs the right to INFO.
func (l *Lock) Server(ctx context.Context) (lock.Server, error) {
	return l.session.Server(ctx, l.spec)
}

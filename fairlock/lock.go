// Package fairlock is the fair lock: one owner at a time, with a count; owners are served in
// the order in which they asked, across all processes. client.Client.NewFairLock
// makes one.
//
// # Protocol
//
// In Redis a fair lock is a hash like that of a plain lock, and a queue
// of waiting owners. The keys are those of Redisson's RFairLock, byte for byte.
//
//	<name>                           hash  owner -> hold count; expires with the lease
//	redisson_lock_queue:{<name>}     list  waiting owners, in the order of their arrival
//	redisson_lock_timeout:{<name>}   zset  waiting owner -> server's time in ms until which it counts as alive
//
//	acquire  free, and no living owner is before us: leave the queue, set our count
//	         ours: set our count, lengthen the lease
//	         otherwise: enter the queue, if we are not in it yet
//	keep     the heartbeat: our waiters are alive, and others of ours enter the queue; the answer says whose turn it is
//	release  ours: set our count; at zero, delete our field, and take those that had the lock since
//	         out of the queue; if the first living owner is of our process, it has the lock now; publish to any other
//	renew    as a plain lock
//
// Acquire, keep and release drop the dead that they meet at the head of the queue, a hundred in
// each call.
//
// A waiter asks once, which puts it into the queue in the order in which the questions reach the server.
// All waiters of a client listen at redisson_lock__channel:{<name>}:<client uuid>:fair.
// A release publishes the number of the first in the queue there; that waiter asks, and has the
// lock. As long as the next in the queue are waiters of the process that has the lock, it passes
// the lock on to them without a command, 64 times or for 10 ms at the most. The holder in Redis
// is the first of them. The others leave the queue by the release, or where a holder stays, 10 ms
// after they were served. Waiters that
// come together enter the queue together: an entry waits for up to 2 ms while others of its
// process stand in the queue. Where a waiter of Redisson has the lock or is before ours, ours also listens
// at redisson_lock__channel:{<name>}:<owner>, where Redisson publishes. Each process sends
// one heartbeat for all its waiters of a lock, every third of their patience and once a
// second at least; the answer says whose turn it is, so a lost message costs a
// second. A waiter whose context ends, or whose client closes, leaves the queue at once.
//
// A waiter counts as dead when the server has not heard from it for its patience, by the server's
// clock. Heartbeats go on in parallel, so several dead waiters cost the others one
// patience ([lock.WithPatience], 5 s if not set), not the sum of theirs. The waiters of a process
// that was frozen for longer enter the queue anew. The keys of a queue that is no longer
// used expire about an hour after the last of its waiters died; a queue with a waiter
// of Redisson has no expiry, as Redisson would not lengthen it.
//
// # Where it differs from Redisson
//
//   - A deadline counts by the server's clock, from the last heartbeat. A
//     waiter of Redisson never renews its own, which begins 300 s after that of
//     its predecessor. Behind such a waiter, ours get deadlines that are right
//     once it has been served and has taken its 300 s off all deadlines.
//   - Behind a dead waiter at the head, the others sleep until its deadline instead of asking in
//     a loop; and the next is told at once when the dead one is dropped.
//   - Waiters that give up for any reason leave the queue.
//   - Unlocking a lock that is not held fails, also when it is free.
//   - A waiter at the head without a deadline, as after a DEL by hand, gets one.
//
// A waiter of Redisson that died keeps all others waiting until Redisson's deadlines
// are over.
//
// # Beside a plain lock
//
// A name belongs to one type of lock. The hash of a fair lock is like that of a plain lock, but the owner string shows the type: the number of an owner
// begins with one zero in a fair lock, and with two in a plain lock. A fair lock under the name of a plain lock that is held fails with
// lock.ErrForeignKey, and vice versa. The owners of Redisson, and of versions before this rule, show no type: next to them, both types wait.
package fairlock

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
	Name:   "fair",
	Called: "a fair lock",
	Mark:   luascripts.FairMark,
	Mode:   lock.Exclusive,
	Waits:  place.FairQueue,
	Queues: true,
	Scripts: session.Scripts{
		Keys:    keys.Fair,
		Acquire: luascripts.AcquireFair,
		Release: luascripts.ReleaseFair,
		Pass:    luascripts.PassFair,
		Retain:  luascripts.RetainReentrant,
		Renew:   luascripts.RenewReentrant, // once held, it is a hash like a plain lock's
		Keep:    luascripts.KeepFair,
	},
}

// Lock is a handle of one fair lock. It is safe for concurrent use; goroutines
// that share it exclude each other, in the order in which they came. It has
// no resources and need not be closed.
type Lock struct {
	session *session.Session
	spec    *session.Spec
}

var (
	_ lockimpl.Witness    = (*Lock)(nil)
	_ lockimpl.Configured = (*Lock)(nil)
)

// New is for package client; use client.Client.NewFairLock.
func New(s *session.Session, name string, opts ...lock.Option) *Lock {
	return &Lock{session: s, spec: s.NewSpec(kind, name, opts)}
}

// NewForElection is for package client; use client.Client.NewElection. Observers are told that the lock is of the kind "election": a leader holds it, and
// others wait for it, for as long as they live.
func NewForElection(s *session.Session, name string, opts ...lock.Option) *Lock {
	l := New(s, name, opts...)
	l.spec.As = "election"
	return l
}

// Name returns the name as it was given.
func (l *Lock) Name() string { return l.spec.Name }

// Lock waits in the queue until the lock is held or ctx ends. Under a context that
// carries an owner that holds the lock already, it re-enters at once.
//
// A caller whose question reached the server before another caller sent its own is served
// first. When ctx ends first, the error is that of a plain lock. The call gives its place in the
// queue up at once; if Redis does not answer, the place is lost when the
// patience of [lock.WithPatience] ends. Other errors are as those of a plain lock.
//
// It costs one round trip when the lock is free and the queue is empty. Otherwise it costs an
// entry, which waiters share that come together, and two round trips and a message for each turn of
// this process; and one heartbeat a second for all waiters of this process.
func (l *Lock) Lock(ctx context.Context) (lock.Hold, error) {
	return l.session.Lock(ctx, l.spec)
}

// TryLock makes one attempt. It neither enters the queue nor overtakes: it fails
// with lock.ErrNotAcquired when another owner holds the lock, or when a living
// owner is in the queue. It leaves nothing in Redis. If Redis is unavailable, the error
// is that of TryLock of a plain lock.
func (l *Lock) TryLock(ctx context.Context) (lock.Hold, error) {
	return l.session.TryLock(ctx, l.spec)
}

// Inspect returns a snapshot of the lock and its queue as they stand in Redis. It is
// one consistent snapshot of a queue of up to 100 waiters. A longer queue is read in
// parts, to keep each script short, and a waiter that comes or goes meanwhile
// may be missing. A waiter to which the lock was passed on inside its process is shown for some
// 10 ms more, and the owner is the one to which Redis granted the lock. The patience of a waiter is what is left of it: after that the waiter counts
// as dead if the server does not hear from it. Waiters with no patience left are dead, but have not
// been dropped yet. Inspect reads who the clients are after that, if Redis says it: see client.WithName. When the key holds something else, the error matches
// lock.ErrForeignKey.
func (l *Lock) Inspect(ctx context.Context) (lock.State, error) {
	return session.Inspect(ctx, l.session, l.spec, luascripts.InspectFair)
}

// ForceUnlock frees the lock, whichever owner holds it, and reports whether an owner did.
// The living in the queue keep their places, and the first is told. A holder of this client learns
// of the loss at once, and so does one of another client that listens (see admin.Admin.Unlock); any other learns of it at
// its next renewal at the latest. Until then two owners may believe that they hold the lock. It is for operators. The cause of
// the loss matches lock.ErrForced.
//
// The command is sent once: when its outcome is not known, the caller has to look.
func (l *Lock) ForceUnlock(ctx context.Context) (bool, error) {
	return l.session.Force(ctx, l.spec, luascripts.ForceFair)
}

// Config returns what the options of the handle say.
func (l *Lock) Config() lockimpl.Config { return l.spec.Config }

// Server asks the server that has the lock which one it is, and since when it has
// been running. It needs the right to INFO.
func (l *Lock) Server(ctx context.Context) (lockimpl.Server, error) {
	return l.session.Server(ctx, l.spec)
}

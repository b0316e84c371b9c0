// Package fairlock implements the fair lock. It has one owner at a time, and a hold count. Owners
// are served first-come, first-served across all processes. client.Client.NewFairLock creates one.
//
// # In Redis
//
// The keys are those of Redisson's RFairLock, byte for byte. docs/reference/redis-keys.md in the
// repository describes the keys, the channels and the hand-off between waiters.
//
// # Waiting
//
// The first request of a waiter puts it into the queue, in the order in which the requests reach
// the server. Waiters that arrive together enter with one command. If others of the process are
// already queued, it is sent up to 2 ms later, and after the reply to the previous such command. A
// release notifies the process of the next waiter. That process then sends a command and acquires
// the lock.
//
// A process sends one heartbeat for all its waiters of a lock, at least once per second. A waiter
// whose context is canceled, or whose client is closed, leaves the queue immediately.
//
// A waiter counts as dead when its heartbeats stop for the time of [lock.WithWaiterTimeout], by the
// clock of the server. Several dead waiters together delay the others by that time once. The
// waiters of a process that was paused for longer move to the end of the queue.
//
// # Differences from Redisson
//
//   - A deadline counts from the last heartbeat, by the clock of the server. A waiter of Redisson
//     never renews its deadline. Its deadline is 300 s (Redisson's fairLockWaitTimeout) after the
//     deadline of the waiter ahead, or after the end of the lease. A waiter of Redisson that died
//     blocks all others until its deadline, even if the lock is free.
//   - Behind a dead waiter at the front, the others sleep until its deadline instead of polling.
//     The next one is notified as soon as the dead one is removed.
//   - Waiters that stop waiting for any reason leave the queue.
//   - Unlocking a lock that is not held fails, even if it is free.
//   - A waiter at the front without a deadline, for example after a manual DEL, gets one.
//
// # Fair and plain locks with the same name
//
// A name belongs to one type of lock. A fair lock under the name of a plain lock that is held fails
// with lock.ErrWrongType, and vice versa. The owner string shows the type. Owners of Redisson, and
// of clients before this rule, show no type. If one of them holds the lock, both types wait.
package fairlock

import (
	"context"

	"github.com/leasehold-go/leasehold/internal/keys"
	"github.com/leasehold-go/leasehold/internal/lockstate"
	"github.com/leasehold-go/leasehold/internal/session"
	"github.com/leasehold-go/leasehold/lock"
	"github.com/leasehold-go/leasehold/lock/lockimpl"
	"github.com/leasehold-go/leasehold/luascripts"
)

var kind = &session.Kind{
	Name:             "fair",
	DisplayName:      "a fair lock",
	Mark:             luascripts.FairMark,
	Mode:             lock.Exclusive,
	WaitPolicy:       lockstate.FairQueue,
	HasWaiterTimeout: true,
	Scripts: session.Scripts{
		Keys:    keys.Fair,
		Acquire: luascripts.AcquireFair,
		Release: luascripts.ReleaseFair,
		HandOff: luascripts.HandOffFair,
		Retain:  luascripts.RetainReentrant,
		Renew:   luascripts.RenewReentrant, // once held, it is a hash like a plain lock's
		Keep:    luascripts.KeepFair,
	},
}

// Lock is a handle of one fair lock. It is safe for concurrent use. Goroutines that share it
// exclude each other, first-come, first-served. It holds no resources and need not be closed.
type Lock struct {
	session *session.Session
	spec    *session.Spec
}

var (
	_ lockimpl.Witness    = (*Lock)(nil)
	_ lockimpl.Configured = (*Lock)(nil)
)

// New is for package client. Use client.Client.NewFairLock.
func New(s *session.Session, name string, opts ...lock.Option) *Lock {
	return &Lock{session: s, spec: s.NewSpec(kind, name, opts)}
}

// NewForElection is for package client. Use client.Client.NewElection. Observers receive the kind
// "election", because a leader holds its lock, and candidates wait for it, for as long as they
// live.
func NewForElection(s *session.Session, name string, opts ...lock.Option) *Lock {
	l := New(s, name, opts...)
	l.spec.As = "election"
	return l
}

// Name returns the name as the caller gave it.
func (l *Lock) Name() string { return l.spec.Name }

// Lock waits in the queue until the lock is held or ctx is canceled. If ctx carries an owner that
// already holds the lock, it re-enters immediately.
//
// A caller whose request reached the server before another caller sent its own is served first. If
// ctx is canceled first, the call leaves the queue immediately. If Redis does not respond, its
// queue position expires after the time of [lock.WithWaiterTimeout]. The errors are those of a
// plain lock.
//
// Lock requires one round trip if the lock is free and the queue is empty. Otherwise, entering the
// queue requires one round trip, shared by waiters that arrive together. Each turn of this process
// requires two round trips and a notification. All waiters of this process share one heartbeat per
// second.
func (l *Lock) Lock(ctx context.Context) (lock.Hold, error) {
	return l.session.Lock(ctx, l.spec)
}

// TryLock makes one attempt. It neither enters the queue nor overtakes a waiter. It fails with
// lock.ErrNotAcquired if another owner holds the lock, or if a living owner is queued. It leaves
// nothing in Redis. If Redis is unavailable, it returns the same error as TryLock of a plain lock.
func (l *Lock) TryLock(ctx context.Context) (lock.Hold, error) {
	return l.session.TryLock(ctx, l.spec)
}

// Inspect returns a snapshot of the lock and its queue. The snapshot is consistent for a queue of
// up to 100 waiters. A longer queue is read in parts, to keep each script short, and may lack a
// waiter that arrives or leaves in the meantime.
//
// After a hand-off within a process, the waiter that acquired the lock is shown in the queue for
// about 10 ms more. The owner is the one to which Redis granted the lock.
//
// The WaiterTimeout of a waiter is the time after which it counts as dead without a further
// heartbeat. Waiters with no time left are dead, but not removed yet. After reading the queue,
// Inspect reads the registry entries of the owners, if Redis replies in time (see client.WithName).
// If the key has the wrong type, the error matches lock.ErrWrongType.
func (l *Lock) Inspect(ctx context.Context) (lock.State, error) {
	return session.Inspect(ctx, l.session, l.spec, luascripts.InspectFair)
}

// ForceUnlock frees the lock, whichever owner holds it, and reports whether an owner did. Living
// waiters keep their queue positions, and the first is notified. ForceUnlock is for operators.
//
// A holder of this client detects the loss immediately. So does a holder of another client if
// that client is subscribed (see admin.Admin.ForceUnlock). Any other holder detects it at its next
// renewal. Until then, two owners may both act as the holder. The cause of the loss matches
// lock.ErrForceUnlocked.
//
// The command is sent once. If its outcome is unknown, check with Inspect.
func (l *Lock) ForceUnlock(ctx context.Context) (bool, error) {
	return l.session.Force(ctx, l.spec, luascripts.ForceFair)
}

// Config returns the options of the handle.
func (l *Lock) Config() lockimpl.Config { return l.spec.Config }

// Server returns the identity and start time of the server that stores the lock. It needs
// permission for INFO.
func (l *Lock) Server(ctx context.Context) (lockimpl.Server, error) {
	return l.session.Server(ctx, l.spec)
}

// Package reentrant implements the plain lock. It has one owner at a time, and a hold count, so
// that the owner can acquire it again. client.Client.NewLock creates one.
//
// # In Redis
//
// A lock is one hash, <name>, that maps the owner to its hold count and expires with the lease. It
// is Redisson's RLock, byte for byte, and excludes Java services that use the same name.
// docs/reference/redis-keys.md in the repository describes the keys, the channels and the hand-off
// between waiters.
//
// # Waiting
//
// A waiter subscribes to the channel of the lock. It retries when the subscription is confirmed,
// after each notification, and when the lease of the other owner expires. It also retries at least
// once per second, or every two seconds after a long wait. Within a process, waiters are served
// first-come, first-served, and only the first sends commands.
//
// # Differences from Redisson
//
//   - A reentry never shortens the lease, and a partial release does not change it.
//   - A release deletes the field of the owner, not the key.
//   - There is no unlock latch, because the count identifies a repeated release.
//   - A holder is notified when it has lost the lock.
//   - While processes wait, the hash has one more field, which Redisson does not read.
package reentrant

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
	Name:        "plain",
	DisplayName: "a plain lock",
	Mark:        luascripts.PlainMark,
	Mode:        lock.Exclusive,
	WaitPolicy:  lockstate.OnlyFirst,
	Batches:     true,
	Scripts: session.Scripts{
		Keys:    keys.Plain,
		Acquire: luascripts.AcquireReentrant,
		Release: luascripts.ReleaseReentrant,
		HandOff: luascripts.HandOffReentrant,
		Renew:   luascripts.RenewReentrant,
		Retain:  luascripts.RetainReentrant,
	},
}

// Lock is a handle of one plain lock. It is safe for concurrent use. Goroutines that share it
// exclude each other. It holds no resources and need not be closed.
type Lock struct {
	session *session.Session
	spec    *session.Spec
}

var (
	_ lockimpl.Witness    = (*Lock)(nil)
	_ lockimpl.Configured = (*Lock)(nil)
	_ lockimpl.Batched    = (*Lock)(nil)
)

// New is for package client. Use client.Client.NewLock.
func New(s *session.Session, name string, opts ...lock.Option) *Lock {
	return &Lock{session: s, spec: s.NewSpec(kind, name, opts)}
}

// Name returns the name as the caller gave it.
func (l *Lock) Name() string { return l.spec.Name }

// Batch returns a value that is equal for all plain locks of a client. Their commands travel
// together. The multi-lock uses it.
func (l *Lock) Batch() any { return l.session }

// Ahead returns the error that TryLock returns, without sending a command, if another call of this
// process waits for the lock. Otherwise it returns nil. The multi-lock uses it.
func (l *Lock) Ahead() error { return l.session.Ahead(l.spec) }

// Lock waits until the lock is held or ctx is canceled. If ctx carries an owner that already holds
// the lock, it re-enters immediately. The context of the hold is derived from ctx. To limit only
// the wait, use lock.WithWait.
//
// If ctx is canceled first, the error matches ctx.Err(). It also matches lock.ErrNotAcquired if
// another owner has the lock, or lock.ErrUnavailable and the last error if Redis failed to reply.
// It matches neither if ctx was canceled before any reply.
//
// Otherwise the error matches lock.ErrClosed if the client is closed. It matches lock.ErrLost if
// the call would have re-entered a lock that was lost. It matches lock.ErrBadName if the name is
// not valid for a lock, or lock.ErrWrongType if the key is not a lock.
//
// An error reply that waiting does not change, such as a denied command, is returned immediately.
// After a transient reply, such as one about full memory, Lock retries. docs/reference/errors.md
// lists all replies.
//
// After an error, nothing of this call is left in Redis. If the server did not reply, cleaning up can
// take two operation timeouts after it replies again, and at most the lease. Lock requires one round
// trip if the lock is free.
func (l *Lock) Lock(ctx context.Context) (lock.Hold, error) {
	return l.session.Lock(ctx, l.spec)
}

// TryLock makes one attempt. It fails with lock.ErrNotAcquired if another owner holds the lock, or
// if another caller of this process is ahead in its queue.
//
// If Redis is unavailable, TryLock retries for up to the operation timeout of the client. It fails
// immediately if waiting that long cannot help, for example if memory is full or the server refuses
// connections. The error then matches lock.ErrUnavailable, and also os.ErrDeadlineExceeded if no
// reply came in time. Other errors are those of Lock.
func (l *Lock) TryLock(ctx context.Context) (lock.Hold, error) {
	return l.session.TryLock(ctx, l.spec)
}

// Inspect returns a consistent snapshot of the lock in Redis. Its waiters are the queued processes.
// Redis does not store the waiters within a process.
func (l *Lock) Inspect(ctx context.Context) (lock.State, error) {
	return session.Inspect(ctx, l.session, l.spec, luascripts.InspectReentrant)
}

// ForceUnlock frees the lock, whichever owner holds it, and reports whether an owner did. It
// notifies the waiters. It is for operators.
//
// A holder of this client detects the loss immediately. So does a holder of another client if
// that client is subscribed (see admin.Admin.ForceUnlock). Any other holder detects it at its next
// renewal. Until then, two owners may both act as the holder. The cause of the loss matches
// lock.ErrForceUnlocked.
//
// The command is sent once. If its outcome is unknown, check with Inspect.
func (l *Lock) ForceUnlock(ctx context.Context) (bool, error) {
	return l.session.Force(ctx, l.spec, luascripts.ForceReentrant)
}

// Config returns the options of the handle.
func (l *Lock) Config() lockimpl.Config { return l.spec.Config }

// Server returns the identity and start time of the server that stores the lock. It needs
// permission for INFO.
func (l *Lock) Server(ctx context.Context) (lockimpl.Server, error) {
	return l.session.Server(ctx, l.spec)
}

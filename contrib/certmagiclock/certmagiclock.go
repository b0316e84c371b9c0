// Package certmagiclock adds leasehold's locks to a storage of certmagic. One of several servers
// then obtains or renews a certificate, and the others wait for it.
//
//	storage := certmagiclock.New(files, func(name string) lock.Locker { return c.NewLock("certmagic:" + name) })
//	certmagic.Default.Storage = storage
//
// The certificates stay in their storage, such as files on a shared disk, a bucket or a database.
// The locks replace those of the storage. They are renewed while certmagic works, and are free soon
// after a server dies.
package certmagiclock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/leasehold-go/leasehold/lock"
)

// Storage is a certmagic.Storage, a certmagic.TryLocker and a certmagic.LockLeaseRenewer. It is
// safe for concurrent use.
type Storage struct {
	certmagic.Storage
	lockOf func(name string) lock.Locker

	// holds has the holds by certmagic's name of the lock: one while a goroutine has the lock. If a goroutine has lost the lock
	// and not unlocked it yet, there are more, in any order.
	mu    sync.Mutex
	holds map[string][]*kept
}

// String returns the String of the storage, or its type. certmagic logs its storage. Without String, the log would
// contain all exported fields of the wrapped storage, such as a password.
func (s *Storage) String() string {
	if inner, ok := s.Storage.(fmt.Stringer); ok {
		return inner.String()
	}
	return fmt.Sprintf("%T", s.Storage)
}

// kept is a hold. Its address identifies it, because the holds of another Locker may not be comparable.
type kept struct{ lock.Hold }

var (
	_ certmagic.Storage          = (*Storage)(nil)
	_ certmagic.TryLocker        = (*Storage)(nil)
	_ certmagic.LockLeaseRenewer = (*Storage)(nil)
)

// New returns storage with the locks of lockOf, which gets certmagic's name of a lock. All servers
// must use it, because a server with the storage's own locks does not exclude the others. The locks
// must be renewed, as they are without lock.WithFixedLease.
func New(storage certmagic.Storage, lockOf func(name string) lock.Locker) *Storage {
	return &Storage{Storage: storage, lockOf: lockOf, holds: make(map[string][]*kept)}
}

// Lock waits until the lock is held or ctx is canceled. The lock is held until Unlock, even after
// ctx is canceled. It is not reentrant, even if ctx is the context of a hold. Its errors are those
// of lock.Locker.
func (s *Storage) Lock(ctx context.Context, name string) error {
	h, err := lock.UntilUnlock(s.lockOf(name)).Lock(lock.ContextWithNewOwner(ctx)) // certmagic's goroutines can share ctx
	if err != nil {
		return err
	}
	s.keep(name, h)
	return nil
}

// TryLock makes one attempt. It returns false without an error if another owner has the lock, and
// an error that matches lock.ErrUnavailable if Redis is unavailable.
func (s *Storage) TryLock(ctx context.Context, name string) (bool, error) {
	h, err := lock.UntilUnlock(s.lockOf(name)).TryLock(lock.ContextWithNewOwner(ctx))
	switch {
	case err == nil:
		s.keep(name, h)
		return true, nil
	case errors.Is(err, lock.ErrNotAcquired):
		return false, nil
	default:
		return false, err
	}
}

// Unlock releases the lock. Its error matches lock.ErrLost if the lock was lost. Another server may
// then have worked on the same certificate. It matches only lock.ErrNotHeld if this server does not
// have the lock. Any other error means that Redis did not confirm the release. The lock is then
// free no later than when its lease expires.
//
// This server does not have the lock after any of these errors. certmagic logs them, and they do
// not undo what it did under the lock. Its CleanUpOwnLocks then logs lock.ErrNotHeld.
//
// If one goroutine of this server has lost the lock and another has acquired it since, there are
// two holds. The first Unlock applies to the lost hold, whichever goroutine calls it. The other
// hold lasts until the second Unlock.
func (s *Storage) Unlock(ctx context.Context, name string) error {
	h := s.take(name)
	if h == nil {
		return &lock.Error{Op: "unlock", Name: name, Err: lock.ErrNotHeld}
	}
	return h.Unlock(ctx)
}

// RenewLockLease returns nil if the lock is still held. certmagic calls it at the start of each
// attempt to obtain a certificate, and its attempts can be hours apart. If the lock was lost since
// the last one, RenewLockLease makes one attempt to acquire it again. If that fails, the error
// matches the cause of the loss and the error of the attempt, and certmagic calls RenewLockLease
// again later. Once the lock is held again, certmagic checks whether another server has stored the
// certificate.
//
// RenewLockLease extends nothing, because the lock is renewed all the time. With a lease of hours,
// a server that dies would block the others for as long.
func (s *Storage) RenewLockLease(ctx context.Context, name string, _ time.Duration) error {
	h := s.next(name)
	if h == nil {
		return &lock.Error{Op: "renew", Name: name, Err: lock.ErrNotHeld}
	}
	lost := h.Err()
	if lost == nil {
		return nil
	}
	_ = h.Unlock(ctx) // a multi-lock still has its other locks
	again, err := lock.UntilUnlock(s.lockOf(name)).TryLock(lock.ContextWithNewOwner(ctx))
	if err != nil {
		return errors.Join(lost, err)
	}
	s.mu.Lock()
	i := slices.Index(s.holds[name], h)
	if i >= 0 {
		s.holds[name][i] = &kept{again}
	}
	s.mu.Unlock()
	if i < 0 { // Unlock took h in the meantime
		return errors.Join(lost, again.Unlock(ctx))
	}
	return nil
}

// keep stores a hold.
func (s *Storage) keep(name string, h lock.Hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds[name] = append(s.holds[name], &kept{h})
}

// take removes and returns the hold that Unlock releases, or nil if there is none.
func (s *Storage) take(name string) *kept {
	for {
		h := s.next(name)
		s.mu.Lock()
		i := slices.Index(s.holds[name], h)
		if i >= 0 {
			s.holds[name] = slices.Delete(s.holds[name], i, i+1)
		}
		if len(s.holds[name]) == 0 {
			delete(s.holds, name)
		}
		s.mu.Unlock()
		if h == nil || i >= 0 {
			return h
		} // otherwise another Unlock took h
	}
}

// next returns the hold that the next Unlock releases, or nil if there is none. A lost hold comes first. It may be the
// last element, if its goroutine was paused after its Lock.
func (s *Storage) next(name string) *kept {
	s.mu.Lock()
	holds := slices.Clone(s.holds[name])
	s.mu.Unlock()
	for _, h := range holds { // without the mutex: Err can detect the loss, and then calls the application's log handler
		if h.Err() != nil {
			return h
		}
	}
	if len(holds) == 0 {
		return nil
	}
	return holds[0]
}

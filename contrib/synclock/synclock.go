// Package synclock turns a lock into a [sync.Locker]. Use it for code that needs one, such as a
// [sync.Cond] or a store that is given its mutex.
//
//	store := NewStore(synclock.New(c.NewLock("store")))
//
// A sync.Locker cannot return an error. Lock therefore panics if it cannot acquire the lock, and
// Unlock panics if the lock was lost. If you can choose, use the lock itself, because its errors
// report what happened.
package synclock

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/leasehold-go/leasehold/lock"
)

// Locker is a [sync.Locker] that holds a lock of leasehold. It is safe for concurrent use, and
// goroutines that share one exclude each other. Like a [sync.Mutex], it is not reentrant, and one
// goroutine may unlock what another has locked.
type Locker struct {
	l lock.Locker

	// holds has one hold while a goroutine has the lock, and none while it is free. If a goroutine has lost the lock and
	// not unlocked it yet, there are more, in any order.
	mu    sync.Mutex
	holds []*kept
}

// kept is a hold. Its address identifies it, because the holds of another Locker may not be comparable.
type kept struct{ lock.Hold }

var _ sync.Locker = (*Locker)(nil)

// New returns a sync.Locker that locks l. It sends no command.
func New(l lock.Locker) *Locker { return &Locker{l: l} }

// Lock waits until the lock is held. It retries while Redis is unavailable. It panics with the
// error of l if the client is closed, the key is not a lock, or the user lacks a permission. It
// also panics if lock.WithWait timed out. Recover the panic where the program can continue without
// the work.
func (s *Locker) Lock() {
	h, err := s.l.Lock(context.Background())
	if err != nil {
		panic(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds = append(s.holds, &kept{h})
}

// Unlock releases the lock. It panics with an error that matches lock.ErrLost if the lock was lost
// before. Another owner may then have had it. It panics if the lock is not locked. If Redis does
// not confirm the release, Unlock returns and the client retries. The lock is free no later than
// when the lease expires.
//
// If one goroutine has lost the lock and another has locked it since, there are two holds. The
// first Unlock applies to the lost hold, whichever goroutine calls it. The other hold lasts until
// the second Unlock.
func (s *Locker) Unlock() {
	h := s.take()
	if h == nil {
		panic(&lock.Error{Op: "unlock", Name: s.l.Name(), Err: lock.ErrNotHeld})
	}
	if err := h.Unlock(context.Background()); errors.Is(err, lock.ErrNotHeld) {
		panic(err)
	}
}

// Hold returns the hold that the next Unlock releases, or nil if there is none. Check its Err or
// Context before each step that must not be done twice.
func (s *Locker) Hold() lock.Hold {
	if h := s.next(); h != nil {
		return h.Hold
	}
	return nil
}

// take removes and returns the hold that Unlock releases, or nil if there is none.
func (s *Locker) take() *kept {
	for {
		h := s.next()
		s.mu.Lock()
		i := slices.Index(s.holds, h)
		if i >= 0 {
			s.holds = slices.Delete(s.holds, i, i+1)
		}
		s.mu.Unlock()
		if h == nil || i >= 0 {
			return h
		} // otherwise another Unlock took h
	}
}

// next returns the hold that the next Unlock releases, or nil if there is none. A lost hold comes first. It may be the
// last element, if its goroutine was paused after its Lock.
func (s *Locker) next() *kept {
	s.mu.Lock()
	holds := slices.Clone(s.holds)
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

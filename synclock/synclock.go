// Package synclock makes a [sync.Locker] of a lock, for code that wants one: a [sync.Cond], a store that is given its mutex.
//
//	store := NewStore(synclock.New(c.NewLock("store")))
//
// A sync.Locker cannot return an error. So Lock panics if it does not get the lock, and Unlock panics if the lock was lost. Use
// the lock itself where you can choose: its errors say what happened.
package synclock

import (
	"context"
	"errors"
	"sync"

	"github.com/leasehold-go/leasehold/lock"
)

// Locker is a [sync.Locker] that holds a lock of leasehold. It is safe for concurrent use, and goroutines that share one exclude each
// other. Like a [sync.Mutex], it is not re-entrant, and one goroutine may unlock what another has locked.
type Locker struct {
	l lock.Locker

	mu   sync.Mutex
	hold lock.Hold // of the goroutine that has the lock; nil while none has it
}

var _ sync.Locker = (*Locker)(nil)

// New returns a sync.Locker that locks l. It does no I/O.
func New(l lock.Locker) *Locker { return &Locker{l: l} }

// Lock waits until the lock is held. It waits for a server that gives no answer, too. It panics with the error of l if that
// comes first: the client was closed, the key holds something else, or the time of lock.WithWait is over. A program that
// goes on without the lock would do harm; recover the panic where the program can do without the work.
func (s *Locker) Lock() {
	h, err := s.l.Lock(context.Background())
	if err != nil {
		panic(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hold = h
}

// Unlock gives the lock back. It panics with an error that matches lock.ErrLost if the lock was lost before: then another owner may
// have had it meanwhile. It panics if the lock is not locked. If Redis does not confirm the release, Unlock returns, as
// the client goes on trying, and the lock is free at the end of its lease at the latest.
func (s *Locker) Unlock() {
	s.mu.Lock()
	h := s.hold
	s.hold = nil
	s.mu.Unlock()
	if h == nil {
		panic(&lock.Error{Op: "unlock", Name: s.l.Name(), Err: lock.ErrNotHeld})
	}
	if err := h.Unlock(context.Background()); errors.Is(err, lock.ErrNotHeld) {
		panic(err)
	}
}

// Hold returns the present hold, or nil if there is none. Work under the lock looks at the hold's Err or Context before each step that
// must not be done twice.
func (s *Locker) Hold() lock.Hold {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hold
}

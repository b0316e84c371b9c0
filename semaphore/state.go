package semaphore

import (
	"context"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

// State is a snapshot of a semaphore.
type State struct {
	Name    string
	Permits int64         // total number; 0 if there is no semaphore
	Free    int64         // available; negative if more are held than there are, after a Resize
	Holders []Holder      // first-come, first-served, with Redisson's at the end
	Waiters []lock.Waiter // first-come, first-served
}

// Holder is one hold of a semaphore, or one permit held by a client of Redisson.
type Holder struct {
	// Owner is the owner string of lock.Hold.Owner, or the ID of Redisson's permit in hexadecimal.
	Owner string

	Permits int           // number of permits of the hold
	Lease   time.Duration // remaining lease time, or lock.NoExpiry
	Since   time.Time     // when it sent its first request, by the clock of its process; zero for Redisson's
	Client  lock.Client   // client of the owner, as far as it is known
}

// Inspect returns a snapshot of the semaphore in Redis. It is consistent for up to 1,000 held
// permits and 1,000 waiters. More are read in parts, and changes in the meantime may be missing.
// Permits whose leases have expired count as free. If a key has the wrong type, the error matches
// lock.ErrWrongType.
func (s *Semaphore) Inspect(ctx context.Context) (State, error) {
	found, leases, free, exists, err := s.one.session.SemaphoreState(ctx, s.one.spec())
	if err != nil {
		return State{}, err
	}
	state := State{Name: found.Name, Waiters: found.Waiters}
	for i, h := range found.Holders {
		state.Holders = append(state.Holders, Holder{Owner: h.Owner, Permits: h.Count, Lease: leases[i], Since: h.Since, Client: h.Client})
		state.Permits += int64(h.Count)
	}
	if exists {
		state.Free = free
		state.Permits += free
	}
	return state, nil
}

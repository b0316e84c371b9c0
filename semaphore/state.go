package semaphore

import (
	"context"
	"time"

	"github.com/leasehold-go/leasehold/lock"
)

// State is a snapshot of a semaphore.
type State struct {
	Name    string
	Permits int64         // how many there are in all; 0 if there is no semaphore
	Free    int64         // how many can be taken; negative if more are held than there are, after a Resize
	Holders []Holder      // in the order in which they asked, with Redisson's at the end
	Waiters []lock.Waiter // in the order of their arrival
}

// Holder is one hold of a semaphore, or one permit that a client of Redisson holds.
type Holder struct {
	// Owner is as lock.Hold.Owner returns it, or the id of Redisson's permit in hexadecimal digits.
	Owner string

	Permits int           // how many it has
	Lease   time.Duration // what is left of it, or lock.NoExpiry
	Since   time.Time     // when it began to ask, by the clock of its process; zero for Redisson's
	Client  lock.Client   // whose it is, as far as that is known
}

// Inspect returns a snapshot of the semaphore as it stands in Redis. It is consistent for up to a thousand permits
// that are held, and a thousand waiters; more are read in parts, and what comes or goes meanwhile may be missing. Permits
// whose leases have run out count as free. When a key holds something else, the error matches lock.ErrWrongType.
func (s *Semaphore) Inspect(ctx context.Context) (State, error) {
	found, leases, free, exists, err := s.one.session.Stock(ctx, s.one.spec())
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

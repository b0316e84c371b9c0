package lock

import "time"

// Mode says how a lock is held.
type Mode string

const (
	Free      Mode = ""          // no owner holds it
	Exclusive Mode = "exclusive" // one owner, counted
	Read      Mode = "read"      // any number of owners
	Write     Mode = "write"     // one writer, which may also read
	Permit    Mode = "permit"    // some of a semaphore's permits, while others have the rest
	Worker    Mode = "worker"    // a worker of a wait group
)

// State is one consistent snapshot of a lock, read by one script on the server.
type State struct {
	Name    string
	Mode    Mode
	Holders []Holder      // by owner; empty when free
	Lease   time.Duration // what is left of it; NoExpiry when the key has none
	Waiters []Waiter      // in the order of their arrival, as far as Redis knows: see Waiter
}

// NoExpiry is the lease of a key without expiry. Leasehold never sets one
// so; a PERSIST by hand does. A holder's next renewal gives the key an expiry again.
const NoExpiry time.Duration = -1

// Holder is one owner that holds the lock.
type Holder struct {
	Owner string
	Count int  // holds of this owner that are not given back yet
	Mode  Mode // how it holds the lock; a writer that also reads is listed twice

	// Since is when this owner began to ask for the lock, by the clock of its process. A
	// plain lock that goes from one goroutine of a process to the next keeps its owner,
	// and so its Since. It is zero for an owner of Redisson's.
	Since time.Time

	Client Client // whose owner it is, as far as that is known
}

// Waiter is one owner that waits, as Redis knows it: an owner in the queue of a fair lock,
// the writer that new readers wait behind, or a process in the line of a plain lock, which waits
// on behalf of all its goroutines.
type Waiter struct {
	Owner         string
	WaiterTimeout time.Duration // the time after which the waiter counts as dead if the server does not hear from it; NoExpiry if it counts as alive while its process listens
	Since         time.Time     // as in Holder
	Client        Client        // as in Holder
}

// Locked reports whether an owner holds the lock.
func (s State) Locked() bool { return len(s.Holders) > 0 }

// HoldCount returns how many holds owner has, reading and writing together, or 0 if
// it has none. [Hold.Owner] gives the owner of a hold.
func (s State) HoldCount(owner string) (count int) {
	for _, h := range s.Holders {
		if h.Owner == owner {
			count += h.Count
		}
	}
	return count
}

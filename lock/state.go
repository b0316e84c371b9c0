package lock

import "time"

// Mode is how a lock is held.
type Mode string

const (
	Free      Mode = ""          // no owner holds it
	Exclusive Mode = "exclusive" // one owner, counted
	Read      Mode = "read"      // any number of owners
	Write     Mode = "write"     // one writer, which may also read
	Permit    Mode = "permit"    // some permits of a semaphore; others may hold the rest
	Worker    Mode = "worker"    // a worker of a wait group
)

// State is a consistent snapshot of a lock, read by one script on the server.
type State struct {
	Name    string
	Mode    Mode
	Holders []Holder      // the writer first, then by owner; empty if the lock is free
	Lease   time.Duration // remaining lease time; NoExpiry if the key has no expiry
	Waiters []Waiter      // first-come, first-served, as far as Redis stores them: see Waiter
}

// NoExpiry is the remaining lease of a key without expiry. leasehold never creates one, but a
// manual PERSIST does. The next renewal by a holder sets an expiry again.
const NoExpiry time.Duration = -1

// Holder is an owner that holds the lock.
type Holder struct {
	Owner string
	Count int  // number of holds of this owner that are not released yet
	Mode  Mode // how it holds the lock; a writer that also reads is listed twice

	// Since is when this owner sent its first request for the lock, by the clock of its process. A
	// plain lock that goes from one goroutine of a process to the next keeps its owner, and its Since.
	// It is zero for an owner of Redisson.
	Since time.Time

	// Lingers reports that the client may keep the lock after its last Unlock: see [WithLinger]. Redis
	// does not store whether the lock is in use, or kept idle.
	Lingers bool

	Client Client // client of the owner, as far as it is known
}

// Waiter is an owner that waits, as Redis stores it. For a fair lock, it is an owner in the queue.
// For a read/write lock, it is the writer that new readers wait behind. For a plain lock, it is a
// process in the queue, which waits on behalf of all its goroutines.
type Waiter struct {
	Owner         string
	WaiterTimeout time.Duration // time after which the waiter counts as dead without a heartbeat; NoExpiry if it counts as alive while its process is subscribed
	Since         time.Time     // as in Holder
	Client        Client        // as in Holder
}

// Locked reports whether an owner holds the lock.
func (s State) Locked() bool { return len(s.Holders) > 0 }

// HoldCount returns the number of holds of owner, reading and writing together, or 0 if it has
// none. [Hold.Owner] returns the owner of a hold.
func (s State) HoldCount(owner string) (count int) {
	for _, h := range s.Holders {
		if h.Owner == owner {
			count += h.Count
		}
	}
	return count
}

package lock

import "time"

// Observer is a set of functions that are told what happens to locks, in the manner of
// net/http/httptrace: set the functions you want, leave the rest nil. They run
// in the middle of locking and must neither block nor lock. More may be added.
type Observer struct {
	Waiting  func(Event) // another owner has the lock; this call starts to wait
	Acquired func(Event) // an owner acquired the lock, with its first hold; Wait is how long that took
	Renewed  func(Event) // Until is the new end
	Released func(Event) // the owner's last hold was given back
	// Abandoned: the context of a hold has ended, and its holder did not unlock it before
	// the next renewal. The hold is renewed until Until, and then lost if it is not unlocked.
	Abandoned func(Event)

	Lost func(Event) // Err tells why; it is called also when an Unlock found the lock gone
}

// Event is what an [Observer] is told. Fields that do not apply are zero.
// Owner is a capability: a client that knows it can act as that owner in a script. Keep it out of
// metric labels.
type Event struct {
	Name  string
	Mode  Mode // how the owner holds the lock, or wants to
	Owner string
	Token uint64
	Until time.Time
	Wait  time.Duration
	Err   error
}

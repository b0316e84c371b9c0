package lock

import "time"

// Observer is told what happens to locks, in the manner of
// net/http/httptrace: set the functions you want, leave the rest nil. They run
// in the middle of locking and must neither block nor lock. More may be added.
type Observer struct {
	Waiting  func(Event) // another owner has it; this call starts to wait
	Acquired func(Event) // an owner came to hold it, by its first hold; Wait tells how long it took
	Renewed  func(Event) // Until is the new end
	Released func(Event) // the owner's last hold was given back
	// Abandoned: the context of a hold has ended, and nobody unlocked it until its lease was
	// renewed the next time. It is renewed until Until, and lost then if nobody unlocks it.
	Abandoned func(Event)

	Lost func(Event) // Err tells why; also when an Unlock found the lock gone
}

// Event is what an [Observer] is told. Fields that do not apply are zero.
// Owner is a capability: who knows it can name it in a script. Keep it out of
// metric labels.
type Event struct {
	Name  string
	Mode  Mode // how the owner holds it, or would
	Owner string
	Token uint64
	Until time.Time
	Wait  time.Duration
	Err   error
}

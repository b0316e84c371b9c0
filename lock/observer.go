package lock

import (
	"context"
	"time"
)

// Observer is a set of functions that a client calls for what happens to its locks, in the
// manner of net/http/httptrace: set the functions that you want, and leave the rest nil. More
// may be added.
//
// The functions run in the middle of locking, several of them at the same time. They must
// neither block nor lock. A client without an observer spends nothing on events.
//
// A function that panics ends the call that it runs in, or the program where it runs in a goroutine
// of the client. A call of Lock or TryLock that ends so gives back what it has taken.
//
// # Calls
//
// Each call of Lock or TryLock ends with exactly one of Granted, Refused, TimedOut, Canceled,
// Unavailable and Failed. Waiting comes before that, at most once. A call for several locks at
// once is a call for each of them here.
//
// # Holds
//
// Each hold begins with Granted, and ends with exactly one of Released and Lost. All other
// events of the hold come in between: none comes before Granted has returned. Only a renewal
// that was under way as the hold ended, and a Draining that it detected, may be told after the end. A re-entry is a
// hold of its own.
//
// # Contexts
//
// The context is that of the call of Lock or TryLock which the event is about. For the events of
// a hold it is the context of the call that the hold came from, which may have ended. So it has
// the caller's values, such as a span, and Event.ID is the same in all events of that call and
// its hold.
type Observer struct {
	// Waiting: Lock begins to wait, as another owner has the lock, or as other calls of this
	// process are ahead.
	Waiting func(context.Context, Event)

	// Granted: the call has its hold.
	Granted func(context.Context, Event)

	// Refused: another owner has the lock, and the call does not wait.
	Refused func(context.Context, Event)

	// TimedOut: the wait reached the limit of WithWait, or the deadline of the context, and Redis
	// was not unavailable.
	TimedOut func(context.Context, Event)

	// Canceled: the context of the call was cancelled.
	Canceled func(context.Context, Event)

	// Unavailable: the call ended without a usable reply from Redis, as for ErrUnavailable.
	Unavailable func(context.Context, Event)

	// Failed: the call ended by any other error, such as ErrForeignKey, ErrReplicas, ErrClosed, or
	// one that Redis answered.
	Failed func(context.Context, Event)

	// Renewed: the watchdog renewed the lease of a hold. Holds that share a lease, such as
	// re-entries and the readers of a process, are renewed together. The event is about one of
	// them.
	Renewed func(context.Context, Event)

	// RenewalFailed: a renewal of that lease came to an error, or was not answered in time. It is
	// tried again until the lease ends.
	RenewalFailed func(context.Context, Event)

	// Draining: the context given to Lock is canceled, and the hold is not unlocked yet. The next renewal after the
	// cancellation detects that, at most a third of the lease later, so work that stops quickly is never reported. A hold of
	// WithFixedLease is not renewed, and not reported.
	Draining func(context.Context, Event)

	// StillRunning: the work of a hold that lasts until Unlock, such as the function of [Do], is still running, for the time of
	// WithGrace after Draining. It is called once. The hold lasts on.
	StillRunning func(context.Context, Event)

	// Abandoned: the hold was not unlocked within the time of WithGrace after Draining, and is given up. Lost
	// follows. Holds that last until Unlock are never abandoned.
	Abandoned func(context.Context, Event)

	// PassedOn: an Unlock gave the lock to the next waiter of this process, without a command
	// to Redis. Released follows.
	PassedOn func(context.Context, Event)

	// Released: the hold was given back, by Unlock or by Close. If Err is not nil, Redis has
	// not confirmed it yet, and the client goes on trying.
	Released func(context.Context, Event)

	// Lost: the hold ended although its holder did not give it back, or an Unlock found it
	// gone. Err tells why.
	Lost func(context.Context, Event)
}

// Event is what an [Observer] is told. Name, Kind, Mode and ID are set in all events, and other
// fields in those that they name.
type Event struct {
	Name string // the lock, as the caller named it
	Kind string // "plain", "fair", "election", "read", "write", "semaphore" or "crew": a read/write lock has two sides
	Mode Mode   // how the owner holds the lock, or wants to

	// ID tells a call, and the hold that it comes to, from all others of this process.
	ID uint64

	// Owner is the owner string, in Granted and in the events of holds, and in Waiting if it is
	// known. It is a capability: a client that knows it can act as that owner in a script. Keep
	// it out of metrics and traces.
	Owner string
	Token uint64 // the fencing token, in the same events, if the hold has one

	Took   time.Duration // the end of a call: how long the call took
	Waited time.Duration // the end of a call: how much of that came after Waiting; 0 if that was not called
	Held   time.Duration // Released and Lost: how long the hold lasted
	Left   time.Duration // Renewed and RenewalFailed: what was left of the lease when the answer came, or the error
	Until  time.Time     // Renewed: the new end of the lease

	// Draining is set in Released and Lost: the time since the event Draining of the hold; 0 if there was none.
	Draining time.Duration

	// Err is what the call returned, in Refused, TimedOut, Canceled, Unavailable and Failed;
	// what went wrong, in RenewalFailed and Released; why, in Lost; and what canceled the context, in
	// Draining, StillRunning and Abandoned.
	Err error
}

package lock

import (
	"context"
	"time"
)

// Observer is a set of functions that a client calls when something happens to its locks, in the
// manner of net/http/httptrace. Set the functions you need and leave the others nil. Later versions
// may add functions.
//
// The functions run in the middle of locking, several at the same time. They must not block, lock or
// unlock: the renewals of other locks can wait for them. A client without an observer creates no
// events.
//
// A function that panics ends the call that it runs in, or the program if it runs in a goroutine of
// the client. A call of Lock or TryLock that ends this way releases what it acquired.
//
// # Calls
//
// Each call of Lock or TryLock ends with exactly one of Acquired, NotAcquired, TimedOut, Canceled,
// Unavailable and Failed. Waiting comes before that, at most once. A call for several locks at once
// is one call for each of them.
//
// # Holds
//
// Each hold begins with Acquired and ends with exactly one of Released and Lost. All other events
// of the hold come in between. None comes before Acquired has returned. A renewal can be in flight
// when the hold ends. The renewal, and a Draining that it detects, can be reported after the end. A
// reentry is a separate hold.
//
// # Contexts
//
// The context is the context of the call of Lock or TryLock. The events of a hold have the context
// of the call that acquired the hold. It may be canceled already. It carries the values of the
// caller, such as a span. Event.ID is the same in all events of a call and its hold.
type Observer struct {
	// Waiting is called when Lock begins to wait, because another owner has the lock, or because other
	// calls of this process are ahead.
	Waiting func(context.Context, Event)

	// Acquired is called when the call has its hold.
	Acquired func(context.Context, Event)

	// NotAcquired is called when another owner has the lock and the call does not wait.
	NotAcquired func(context.Context, Event)

	// TimedOut is called when the wait reached the limit of WithWait or the deadline of the context
	// while Redis was available.
	TimedOut func(context.Context, Event)

	// Canceled is called when the context of the call was canceled.
	Canceled func(context.Context, Event)

	// Unavailable is called when the call ended without a usable reply from Redis, as for
	// ErrUnavailable.
	Unavailable func(context.Context, Event)

	// Failed is called when the call ended with any other error, such as ErrWrongType, ErrReplicas,
	// ErrClosed, or an error reply of Redis.
	Failed func(context.Context, Event)

	// Renewed is called when the watchdog renewed the lease of a hold. Holds that share a lease, such
	// as reentries and the readers of a process, are renewed together. The event is about one of
	// them.
	Renewed func(context.Context, Event)

	// RenewalFailed is called when a renewal of the lease failed or timed out. The watchdog retries
	// until the lease expires.
	RenewalFailed func(context.Context, Event)

	// Draining is called when the context given to Lock is canceled and the hold is not unlocked yet.
	// The next renewal, at most a third of the lease later, detects the cancellation. Work that stops
	// before that is not reported. A hold with WithFixedLease is not renewed and not reported.
	Draining func(context.Context, Event)

	// StillRunning is called once when work is still running after the time of WithGrace since
	// Draining. It is only called for a hold that lasts until Unlock, such as a hold of [Do]. The hold
	// continues.
	StillRunning func(context.Context, Event)

	// Abandoned is called when the hold was not unlocked within the time of WithGrace after Draining,
	// and is therefore released. Lost follows. Holds that last until Unlock are never abandoned.
	Abandoned func(context.Context, Event)

	// HandedOff is called when Unlock handed the lock to the next waiter of this process without a
	// command to Redis. Released follows.
	HandedOff func(context.Context, Event)

	// Kept is called when Unlock kept the lock in this process for its next caller, without a command to
	// Redis: see [WithLinger]. Released follows.
	Kept func(context.Context, Event)

	// Released is called when the hold was released by Unlock or by Close. If Err is not nil, Redis
	// has not confirmed the release yet, and the client retries. With WithAsyncUnlock, Released is
	// called after Unlock has returned, when the result is known.
	Released func(context.Context, Event)

	// Lost is called when the hold ended although its holder did not release it, or when Unlock found
	// that it was gone. Err reports why.
	Lost func(context.Context, Event)
}

// Event is passed to the functions of an [Observer]. Name, Kind, Mode and ID are set in all events.
// Other fields are set in the events that their comments name.
type Event struct {
	Name string // name of the lock, as the caller gave it
	Kind string // "plain", "fair", "election", "read", "write", "semaphore" or "waitgroup"; a read/write lock has two
	Mode Mode   // how the owner holds the lock, or wants to

	// ID identifies a call and the hold that it acquired. It is unique in this process.
	ID uint64

	// Owner is the owner string, in Acquired and in the events of holds, and in Waiting if it is
	// known. It is a capability, because a client that has it can act as that owner in a script. Keep
	// it out of metrics and traces.
	Owner string
	Token uint64 // fencing token, in the same events, if the hold has one

	Took   time.Duration // end of a call: duration of the call
	Waited time.Duration // end of a call: the part of Took after Waiting; 0 without a wait
	Held   time.Duration // Released and Lost: duration of the hold
	Left   time.Duration // Renewed and RenewalFailed: remaining lease time when the reply or the error arrived
	Until  time.Time     // Renewed: new end of the lease

	// Draining is the time since the Draining event of the hold, or 0 if there was none. It is set in
	// Released and Lost.
	Draining time.Duration

	// Err is the error of the call in NotAcquired, TimedOut, Canceled, Unavailable and Failed. In
	// RenewalFailed and Released, it is the error of the command. In Lost, it is the cause of the
	// loss. In Draining, StillRunning and Abandoned, it is the cause of the cancellation.
	Err error
}

// Package option has what the options of package lock say. Package lock makes the options,
// and package lockimpl reads them.
package option

import "time"

// Set is a set of options.
type Set uint16

// The options of package lock.
const (
	FixedLease Set = 1 << iota
	Wait
	WaiterTimeout
	Fencing
	Replicas
	MaxHold
	Grace
	ReaderPreference
	MinHold
	Linger
	AsyncUnlock
)

// Config is what a list of options says: lockimpl.Config.
type Config struct {
	// Lease is the fixed lease, or 0 for one that is renewed.
	Lease time.Duration

	// Wait is how long Lock waits at most, or 0 for no limit but its context.
	Wait time.Duration

	// Once says that Lock makes one attempt, as TryLock does: WithWait(0).
	Once bool

	// WaiterTimeout is how long a waiter counts as alive after the server last heard from it,
	// for locks whose waiters are known in Redis.
	WaiterTimeout time.Duration

	// Fencing says that tokens come from a token counter, which outlives the lock.
	Fencing bool

	// Replicas is how many replicas must confirm an acquisition within
	// ReplicaTimeout.
	Replicas       int
	ReplicaTimeout time.Duration

	// MaxHold is how long a hold lasts at most, or 0 for no limit.
	MaxHold time.Duration

	// Grace is how long a hold is still renewed after its context has ended, or 0 for
	// one lease.
	Grace time.Duration

	// MinHold is how long the lock stays locked at least, or 0.
	MinHold time.Duration

	// Linger is how long the process keeps the lock after its last Unlock, for the next caller, or 0.
	Linger time.Duration

	// ReaderPreference says that readers do not wait behind a waiting writer.
	ReaderPreference bool

	// AsyncUnlock says that Unlock does not wait for the reply to the release.
	AsyncUnlock bool
}

// Setting is one option.
type Setting struct {
	Which Set
	Name  string // of the function that made it
	Apply func(*Config) error
}

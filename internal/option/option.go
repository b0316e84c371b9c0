// Package option defines the settings of the options of package lock. Package lock creates the
// options, and package lockimpl reads them.
package option

import "time"

// Set is a set of options.
type Set uint16

// Options of package lock.
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

// Config is the result of a list of options: lockimpl.Config.
type Config struct {
	// Lease is the fixed lease, or 0 for one that is renewed.
	Lease time.Duration

	// Wait is the maximum time that Lock waits, or 0 if only its context limits it.
	Wait time.Duration

	// Once reports that Lock makes one attempt, as TryLock does: WithWait(0).
	Once bool

	// WaiterTimeout is how long a waiter counts as alive after its last heartbeat, for locks whose
	// waiters are stored in Redis.
	WaiterTimeout time.Duration

	// Fencing reports that tokens come from a token counter, which outlives the lock.
	Fencing bool

	// Replicas is the number of replicas that must confirm an acquisition within ReplicaTimeout.
	Replicas       int
	ReplicaTimeout time.Duration

	// MaxHold is the maximum duration of a hold, or 0 for no limit.
	MaxHold time.Duration

	// Grace is how long a hold is still renewed after its context is canceled, or 0 for one lease.
	Grace time.Duration

	// MinHold is the minimum time that the lock stays locked, or 0.
	MinHold time.Duration

	// Linger is how long the process keeps the lock after its last Unlock, for the next caller, or 0.
	Linger time.Duration

	// ReaderPreference reports that readers do not wait behind a waiting writer.
	ReaderPreference bool

	// AsyncUnlock reports that Unlock does not wait for the reply to the release.
	AsyncUnlock bool
}

// Setting is one option.
type Setting struct {
	Which Set
	Name  string // name of the function that created it
	Apply func(*Config) error
}

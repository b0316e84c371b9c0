// Package owner defines how a context carries an owner. Package lock and the contexts of holds use
// it.
package owner

import "sync/atomic"

// Key is the key of an owner's number, a uint64, in a context.
type Key struct{}

// Caller is the key of a context.Context in the context with which a lock is acquired for work that reliably ends with Unlock. It
// is the context of the caller, which is canceled when the work must stop. The hold is not derived from it, and lasts until
// Unlock.
type Caller struct{}

// Hold is the key of a lock.Hold in the context of a hold, and in the context of the work under a hold.
type Hold struct{}

// numbers counts the owners of this process. All clients share one counter, so that a context
// identifies the same owner to each of them. In Redis, the UUIDs of the clients keep the owners
// apart.
var numbers atomic.Uint64

// New returns the number of a new owner.
func New() uint64 { return numbers.Add(1) }

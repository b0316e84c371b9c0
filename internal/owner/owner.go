// Package owner is how contexts carry an owner: what package lock and the contexts of
// holds agree on.
package owner

import "sync/atomic"

// Key is the key of an owner's number, a uint64, in a context.
type Key struct{}

// numbers counts the owners of this process. One counter for all clients, so that a
// context means the same owner to each of them; their uuids keep the owners apart
// in Redis.
var numbers atomic.Uint64

// New returns the number of an owner that never was before.
func New() uint64 { return numbers.Add(1) }

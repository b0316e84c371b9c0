package lock

import (
	"context"
	"sync/atomic"
)

type ownerKey struct{}

// owners counts the owners of this process. One counter for all clients, so
// that a context means the same owner to each of them; their uuids keep the
// owners apart in Redis.
var owners atomic.Uint64

// WithOwner returns a copy of ctx with a fresh owner. Everything locked below
// it belongs to that owner: the same name re-enters, and holds outlive each
// other in any order. Nothing outside re-enters.
//
// Use it where the holds do not nest: to downgrade from a write to a read lock,
// or to let the first of two holds go before the second. A hold's own context
// carries the owner too, but ends with that hold.
func WithOwner(ctx context.Context) context.Context {
	return context.WithValue(ctx, ownerKey{}, owners.Add(1))
}

// OwnerFrom returns the number of the owner that ctx carries, and whether it
// carries one. Kinds of locks need it; other code rarely does.
func OwnerFrom(ctx context.Context) (owner uint64, ok bool) {
	owner, ok = ctx.Value(ownerKey{}).(uint64)
	return owner, ok
}

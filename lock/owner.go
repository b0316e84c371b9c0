package lock

import (
	"context"

	"github.com/leasehold-go/leasehold/internal/owner"
)

// WithOwner returns a copy of ctx with a fresh owner. Everything locked below
// it belongs to that owner: the same name re-enters, and holds outlive each
// other in any order. Nothing outside re-enters.
//
// Use it where the holds do not nest, to let the first of two holds go before the
// second. A hold's own context carries the owner too, but ends with that hold.
func WithOwner(ctx context.Context) context.Context {
	return context.WithValue(ctx, owner.Key{}, owner.New())
}

// OwnerFrom returns the number of the owner that ctx carries, and whether it
// carries one. Kinds of locks need it; other code rarely does.
func OwnerFrom(ctx context.Context) (number uint64, ok bool) {
	number, ok = ctx.Value(owner.Key{}).(uint64)
	return number, ok
}

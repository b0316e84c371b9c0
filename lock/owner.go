package lock

import (
	"context"

	"github.com/leasehold-go/leasehold/internal/owner"
)

// ContextWithNewOwner returns a copy of ctx that carries a new owner. Every lock acquired under it
// belongs to that owner. Locking the same name re-enters, and the holds may be unlocked in any
// order. A call without that context does not re-enter.
//
// Use it if the holds do not nest, to unlock the first of two holds before the second. The context
// of a hold carries the owner too, but is canceled with that hold.
func ContextWithNewOwner(ctx context.Context) context.Context {
	return context.WithValue(ctx, owner.Key{}, owner.New())
}

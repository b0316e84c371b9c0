package lock

import (
	"context"

	"github.com/leasehold-go/leasehold/internal/owner"
)

// ContextWithNewOwner returns a copy of ctx with a fresh owner. Every lock taken under it
// belongs to that owner: locking the same name re-enters, and the holds may be unlocked in
// any order. A call outside of it does not re-enter.
//
// Use it where the holds do not nest, to unlock the first of two holds before the
// second. A hold's own context carries the owner too, but ends with that hold.
func ContextWithNewOwner(ctx context.Context) context.Context {
	return context.WithValue(ctx, owner.Key{}, owner.New())
}

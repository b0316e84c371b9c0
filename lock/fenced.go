package lock

import "context"

// Fenced is a [Hold] whose token comes from a register that the holder can raise. All
// holds of this module are; a quorum uses it to agree on one token with all its servers.
// It is for implementers of locks.
type Fenced interface {
	Hold

	// RaiseToken makes the tokens of all later holders of the name larger than token. The
	// hold's own token does not change. RaiseToken fails with [ErrLost] if the server does not have the
	// lock as this owner's any longer, and with [errors.ErrUnsupported] if the lock was made
	// without [WithFencing].
	RaiseToken(ctx context.Context, token uint64) error
}

package fence

import (
	"errors"
	"fmt"

	"github.com/leasehold-go/leasehold/lock"
)

var (
	// ErrStale: a larger token was seen, so the sender of this one does not hold the
	// lock any more. Nothing was written. The error is also a [*StaleError].
	ErrStale = errors.New("stale fencing token")

	// ErrNoToken: the token is 0, as that of a read hold without
	// [lock.WithFencing], or there is none at all. Nothing was written.
	ErrNoToken = errors.New("no fencing token")
)

// StaleError has both tokens. It matches [ErrStale].
type StaleError struct {
	Token   uint64 // the token that was refused
	Highest uint64 // the largest that was seen before
}

// Error names both tokens.
func (e *StaleError) Error() string {
	return fmt.Sprintf("%v %d: highest token seen is %d", ErrStale, e.Token, e.Highest)
}

// Is reports whether target is [ErrStale].
func (e *StaleError) Is(target error) bool { return target == ErrStale }

// wrap returns err with the operation and the name; it returns nil for nil.
func wrap(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &lock.Error{Op: op, Name: name, Err: err}
}

// Check compares a token with the largest one that was seen before, for guards of your own. It
// fails with [ErrNoToken] if token is 0, and with a [*StaleError] if highest is larger. It keeps
// nothing: to raise the register is one step with the write, and the guard's.
func Check(token, highest uint64) error {
	switch {
	case token == 0:
		return ErrNoToken
	case token < highest:
		return &StaleError{Token: token, Highest: highest}
	}
	return nil
}

package fence

import (
	"errors"
	"fmt"

	"github.com/leasehold-go/leasehold/lock"
)

var (
	// ErrStale is returned when a larger token was seen, so the sender of this token no longer holds
	// the lock. Nothing was written. The error is also a [*StaleError].
	ErrStale = errors.New("stale fencing token")

	// ErrNoToken is returned when the token is 0, as for a read hold without [lock.WithFencing], or
	// missing. Nothing was written.
	ErrNoToken = errors.New("no fencing token")
)

// StaleError has both tokens. It matches [ErrStale].
type StaleError struct {
	Token   uint64 // the rejected token
	Highest uint64 // the largest token that was seen before
}

// Error names both tokens.
func (e *StaleError) Error() string {
	return fmt.Sprintf("%v %d: highest token seen is %d", ErrStale, e.Token, e.Highest)
}

// Is reports whether target is [ErrStale].
func (e *StaleError) Is(target error) bool { return target == ErrStale }

// wrap returns err with the operation and the name, or nil for nil.
func wrap(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &lock.Error{Op: op, Name: name, Err: err}
}

// Check compares token with the largest one that was seen before, for custom guards. It fails with
// [ErrNoToken] if token is 0, and with a [*StaleError] if highest is larger. It stores nothing. The
// guard must raise the counter and write in one step.
func Check(token, highest uint64) error {
	switch {
	case token == 0:
		return ErrNoToken
	case token < highest:
		return &StaleError{Token: token, Highest: highest}
	}
	return nil
}

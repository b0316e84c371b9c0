// Package mask hides some of the errors that an error matches.
package mask

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
)

// Error returns err so that it matches none of the hidden errors. Its text and everything else that it
// matches stay the same. For example, the cause of a canceled context may be the error of another call,
// which must not look like the result of this call.
func Error(err error, hidden ...error) error { return &masked{err, hidden} }

// Canceled returns the error of ctx, which is canceled, with the cause of the cancellation. It matches both, but the
// cause matches none of the hidden errors.
func Canceled(ctx context.Context, hidden ...error) error {
	err := cmp.Or(ctx.Err(), context.Canceled)                               // a context that its framework reuses may have no error any more
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) { // before Go 1.26, it is nil if a context of another package ended
		return fmt.Errorf("%w: %w", err, Error(cause, hidden...))
	}
	return err
}

// masked is a pointer as an error, because errors must be comparable.
type masked struct {
	error
	hidden []error
}

// Is does not match the hidden errors.
func (e *masked) Is(target error) bool {
	return !slices.Contains(e.hidden, target) && errors.Is(e.error, target)
}

// As finds what errors.As finds in the error.
func (e *masked) As(target any) bool { return errors.As(e.error, target) }

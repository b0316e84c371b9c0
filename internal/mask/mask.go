// Package mask hides from errors.Is what an error matches.
package mask

import (
	"errors"
	"slices"
)

// Error returns err so that it matches none of the hidden errors. Everything else that err matches, and its
// text, stay. The cause of a canceled context, for example, may be the error of another call, so it must not
// say what this call found.
func Error(err error, hidden ...error) error { return masked{err, hidden} }

type masked struct {
	error
	hidden []error
}

// Is does not match the hidden errors.
func (e masked) Is(target error) bool {
	return !slices.Contains(e.hidden, target) && errors.Is(e.error, target)
}

// As finds what errors.As finds in the error.
func (e masked) As(target any) bool { return errors.As(e.error, target) }

package redistest

import "context"

// Reused is a context that a framework reuses for another request. When the Context is canceled, its Done channel is
// closed, but its Err is nil.
type Reused struct{ context.Context }

// Err returns nil.
func (Reused) Err() error { return nil }

// Incomparable is a context whose error is a slice, which panics when it is compared with itself.
type Incomparable struct{ context.Context }

// Err returns nil or Errors.
func (c Incomparable) Err() error {
	if err := c.Context.Err(); err != nil {
		return Errors{err}
	}
	return nil
}

// Errors is the error of Incomparable.
type Errors []error

func (e Errors) Error() string   { return e[0].Error() }
func (e Errors) Unwrap() []error { return e }

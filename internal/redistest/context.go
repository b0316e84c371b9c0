package redistest

import "context"

// Reused is a context that a framework reuses for another request. When the Context is canceled, its Done channel is
// closed, but its Err is nil.
type Reused struct{ context.Context }

// Err returns nil.
func (Reused) Err() error { return nil }

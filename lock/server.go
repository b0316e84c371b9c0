package lock

import (
	"context"
	"time"
)

// Server is what is known of the server that has a lock.
type Server struct {
	ID      string    // a new one after each start of the server; equal for two locks of one server
	Since   time.Time // the server has been running without a restart since then, or longer
	Primary bool      // the server takes writes, and is no replica
}

// Witness is a [Locker] that can tell which server has it. All kinds of this module
// are; a quorum asks for the server before it counts its vote, as a server that came
// back empty may have forgotten a lock that it granted.
type Witness interface {
	Locker

	// Server asks the server that has the lock. Since is by its own wall clock,
	// and to the second, rounded towards now.
	Server(ctx context.Context) (Server, error)
}

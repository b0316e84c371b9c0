package lock

import (
	"context"
	"time"
)

// Server is what is known of the server that keeps a lock.
type Server struct {
	ID      string    // another one after each start of the server; equal for two locks of one server
	Since   time.Time // it has been running without a restart since then, or longer
	Primary bool      // it takes writes, and is no replica
}

// Witness is a [Locker] that can tell of its server. All kinds of this module
// are; a quorum of servers asks before it counts a vote, as a server that came
// back empty may have forgotten a lock that it gave.
type Witness interface {
	Locker

	// Server asks the server that has the lock. Since is by its own wall clock,
	// and to the second, rounded towards now.
	Server(ctx context.Context) (Server, error)
}

package lock

import (
	"fmt"
	"strings"
	"time"
)

// Client is the process behind an owner: what its client told of itself in Redis. Only ID is known of
// a client of Redisson, of one that tells nothing, and of one that died more than a minute ago.
// A user of Redis that may write to that key can write anything into it, so it helps people,
// and proves nothing.
type Client struct {
	ID      string    // the uuid in the owner strings of all its locks
	Host    string    // the machine, or the container
	PID     int       // the process there
	Name    string    // the application
	Label   string    // what the application says besides
	Version string    // of leasehold
	Started time.Time // when the client was made, by its clock
}

// Known reports whether more than the ID is known.
func (c Client) Known() bool { return c.Host != "" }

// String returns the name, host and process, such as "billing on host-7, pid 4711"; or
// the ID, if nothing else is known.
func (c Client) String() string {
	if !c.Known() {
		return c.ID
	}
	return fmt.Sprintf("%s on %s, pid %d", c.Name, c.Host, c.PID)
}

// ClientID returns the client's ID in an owner string, "" if there is none.
func ClientID(owner string) string {
	id, _, ok := strings.Cut(owner, ":")
	if !ok {
		return ""
	}
	return id
}
